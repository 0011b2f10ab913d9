"""The start of a build: its step, what it will write and keep, and what prevents it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from persist_assets.building.stages import Started
from persist_assets.building.strategies.incremental import check_fits
from persist_assets.building.takeovers import origin_of
from persist_assets.core.errors import BuildError, ConflictError, GoneError
from persist_assets.core.model.plans import Increment
from persist_assets.core.partitions import between, filled_keys
from persist_assets.core.wants import Want, bounded_id, ref_of
from persist_assets.ledger.taints import Kept
from persist_assets.planning.age import unchecked
from persist_assets.planning.inputs import inputs
from persist_assets.planning.maintenance import is_forbidden, refusal
from persist_assets.planning.planner import plan
from persist_assets.planning.promotion import is_read
from persist_assets.planning.reach import lacking
from persist_assets.planning.reasons import missing_in_words
from persist_assets.planning.world import UNVERSIONED
from persist_assets.storage.delta_tables import find_table, is_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from persist_assets.building.observe import Observer
    from persist_assets.building.stages import PendingBuild
    from persist_assets.building.tables import Tables
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.wants import PartitionRef
    from persist_assets.planning.world import World

log = logging.getLogger(__name__)


def plan_step(
    observer: Observer,
    tables: Tables,
    source: Source,
    world: World,
    *,
    force: bool,
    keys: Collection[str] | None,
    recompute_span: tuple[str, str] | None,
) -> Step:
    """Return the step that the build carries out."""
    order = world.keys.get(source.source_id, ())
    unknown = sorted({*keys} - {*order}) if keys is not None else []
    if unknown:
        between(source.name, order, unknown[0], unknown[0])
    for upstream in observer.project.inputs(source):
        if upstream.raw is not None:
            observer.pins.pin(upstream)
    partition_keys = {} if keys is None else {source.source_id: keys}
    spans = (
        {} if recompute_span is None else {source.source_id: observer.span(source, *recompute_span)}
    )
    (step,) = plan(
        observer.project,
        [source.source_id],
        world,
        force=force,
        partition_keys=partition_keys,
        spans=spans,
    ).steps
    return continued_in_place(tables, step)


def continued_in_place(tables: Tables, step: Step) -> Step:
    """Return a step of a partitioned source that continues the environment's own table in place."""
    if step.snapshot is None and step.base is not None and tables.is_own(step.base):
        return replace(step, increment=Increment(step.base))
    return step


def start(
    observer: Observer,
    tables: Tables,
    source: Source,
    step: Step,
    world: World,
    before: Snapshot | None,
) -> Started:
    """Return what the build will do.

    Parameters
    ----------
    before
        The environment's own snapshot before `world` was observed.
    """
    is_own = before is not None and before.table not in world.foreign
    base = before if is_own and before == step.goes_on_from else None
    continued = step.snapshot or base
    kept_rows = None
    if stays_of := step.base or step.goes_on_from:
        order, had = world.keys.get(source.source_id, ()), stays_of.partitions
        stays = filled_keys(order, had.filled) if had else frozenset(("",))
        stays = stays.difference(step.keys or ())
        is_read = step.base is None or stays_of == world.manifest.get(source.build_id)
        kept_rows = Kept(stays_of.build_uid, stays, own=is_read)
    row_inputs = inputs(observer.project, source, world) or ()
    return Started(
        source=source,
        step=step,
        table=continued.table if continued else tables.name_for(source),
        inputs=row_inputs,
        current_at=current_at(observer, source, world, step),
        before=before,
        latest=world.latest.get(source.source_id),
        kept_rows=kept_rows,
        is_within=base is not None,
        origin=origin_of(observer.project, source, world, step, row_inputs),
        refs=_refs(observer, source, step, world),
        kept_refs=_kept_refs(observer, source, step, world),
    )


def _refs(observer: Observer, source: Source, step: Step, world: World) -> tuple[PartitionRef, ...]:
    """Return what becomes available: partitions, or an unpartitioned table.

    A table of another environment that readers get brings all of its partitions; a present one
    those that nobody has announced here, as after a rollback.
    """
    if step.partitions is None:
        return (ref_of(source.key),)
    if step.snapshot is None:
        return tuple(ref_of(source.key, key) for key in step.keys or ())
    order = world.keys[source.source_id]
    present = filled_keys(order, step.partitions.filled)
    refs = [ref_of(source.key, key) for key in order if key in present]
    known: Collection[PartitionRef] = ()
    if step.snapshot == world.manifest.get(source.build_id):
        fetch = observer.ledger.partitions.fetch_available
        known = fetch(observer.settings.environment, refs=refs)
    return tuple(ref for ref in refs if ref not in known)


def _kept_refs(
    observer: Observer, source: Source, step: Step, world: World
) -> tuple[PartitionRef, ...]:
    """Return the partitions of another environment's table that readers get besides new ones."""
    if step.base is None or step.snapshot is not None or step.partitions is None:
        return ()
    if is_read(source.build_id, step.base, world.manifest):
        return ()
    order = world.keys[source.source_id]
    kept_keys = filled_keys(order, step.partitions.filled) - {*(step.keys or ())}
    refs = [ref_of(source.key, key) for key in order if key in kept_keys]
    known = observer.ledger.partitions.fetch_available(observer.settings.environment, refs=refs)
    return tuple(ref for ref in refs if ref not in known)


def wants_of(started: Started, build: Build, origin: Mapping[str, Any]) -> tuple[Want, ...]:
    """Return the wants of a build that no want requested; `origin` names the requester."""
    return tuple(
        Want(
            bounded_id(f"{build.build_uid}/{ref}"),
            ref,
            build.environment,
            build.started_at,
            source={**origin, "build_uid": build.build_uid, "run_id": build.run_id},
            state="building",
            request_id=build.build_uid,
        )
        for ref in started.refs
    )


def current_at(observer: Observer, source: Source, world: World, step: Step) -> datetime:
    """Return when all data that a step depends on was last known to be current."""
    present = step.snapshot
    if (
        present
        and present.as_of == step.as_of
        and any(v.version.startswith(UNVERSIONED) for v in present.as_of)
    ):
        # Data without a version was current when it was read.
        return present.known_at
    reached = observer.project.reach(
        source.bindings,
        lambda s: s.raw is not None or (s.persisted and world.readable(s) is not None),
    )
    tables = [world.readable(s) for s in reached if s.persisted]
    if step.partitions is not None and len(step.partitions.filled) > 1:
        tables.append(step.base)  # some of its partitions that are not current stay
    return min((observer.started_at, *(t.known_at for t in tables if t)))


def check_started(observer: Observer, started: Started, world: World, run_id: str | None) -> None:
    """Check everything that can stop a build before it computes rows.

    Raises
    ------
    NotIncrementalError
        ``refresh=strict`` forbids the build.
    PersistError
        See `check_inputs` and `check_base`.
    """
    check_inputs(observer, started, world)
    check_base(observer, started, run_id)
    source, step = started.source, started.step
    if is_forbidden(source.annotation, step.reasons):
        raise refusal(source, step.why)
    if step.maintenance == "whole" and any(r.code == "whole" for r in step.reasons):
        log.warning(
            "`%s` is computed in full: %s", source.key, step.why, extra={"action": "compute-all"}
        )


def check_inputs(observer: Observer, started: Started, world: World) -> None:
    """Raise if the source reads sources that must be built and are not.

    Raises
    ------
    BuildError
        Checks that guard it have not passed, partitions that it reads are missing, or it reads a
        function's table that violates its contract. The analysis relies on that contract.
    """
    source, project = started.source, observer.project
    for read in project.reach(source.bindings, lambda s: s.is_leaf):
        table = world.manifest.get(read.build_id)
        promised = read.promised_names
        if table is not None and promised not in (None, {c.name.lower() for c in table.columns}):
            raise BuildError(
                f"`{source.name}` reads `{read.key}`, whose table violates its contract",
                hint=f"build it first, or correct the contract: persist build {read.key}",
            )
    guarded = unchecked(project, source, world)
    if guarded:
        names = ", ".join(f"`{s.key}`" for s in guarded)
        raise BuildError(
            f"`{source.name}` reads {names}, which is not built: its checks have not passed",
            hint=f"build its inputs too: persist build +{source.key}",
        )
    missing = lacking(project, source, world, started.step.keys)
    if missing:
        parts = [missing_in_words(project.by_id[s], world, some) for s, some in missing.items()]
        raise BuildError(
            f"`{source.name}` reads missing partitions: {'; '.join(parts)}",
            hint=f"build its inputs too: persist build +{source.key}",
        )


def check_base(observer: Observer, started: Started, run_id: str | None) -> None:
    """Check that the base table still exists and has the columns of this build.

    Raises
    ------
    BuildError
        It has other columns.
    GoneError
        The table that holds a history is gone.
    ConflictError
        A history was continued since this run began, perhaps from newer data than the run's. Or a
        first build would replace a history that the ledger does not know.
    """
    source, history = started.source, started.step.history
    increment = started.step.increment
    if increment is not None and not started.keeps_files and source.columns:
        check_fits(source, increment.base, source.columns)
    if history is None:
        if source.keeps_history:
            _check_first(observer, started)
        return
    if not observer.is_readable(history, is_whole):
        raise GoneError(
            f"the table {history.table} is gone, and with it the history of `{source.name}`",
            hint="restore its files, or start over: on_change=rebuild and --full-refresh",
            location=source.location,
        )
    # Processes of former releases continue it under BuildIDs that it had before.
    writers = observer.ledger.builds.fetch_holding(history.table).build_ids
    others = (
        build
        for build_id in {history.build_id, source.build_id, *writers}
        for build in observer.ledger.builds.fetch_succeeded(build_id)
        if build.environment in observer.settings.environments
        and (build.run_id is None or build.run_id != run_id)
    )
    if any(build.started_at > observer.started_at for build in others):
        raise ConflictError(
            f"the history of `{source.name}` changed after this run started", hint="try again"
        )


def _check_first(observer: Observer, started: Started) -> None:
    """Check that a history does not start over because the ledger was lost or is older."""
    source, root = started.source, observer.settings.table_root(started.table)
    is_forced = any(reason.code == "forced" for reason in started.step.reasons)
    table = None if is_forced and not source.annotation.goes_on else find_table(root)
    writers = {entry.get("persist.build") for entry in table.history()} if table else set()
    fetch = observer.ledger.builds.fetch
    if any(not fetch(build_uid=uid) for uid in sorted(filter(None, writers))):
        raise ConflictError(
            f"{started.table} has a history of `{source.name}` that the ledger does not know",
            hint="if the ledger was lost, run `persist doctor --fix`; to start over, set"
            " on_change=rebuild and build with --full-refresh",
            location=source.location,
        )


def own_entry(observer: Observer, source: Source) -> Snapshot | None:
    """Return the snapshot that the environment itself, not one that it reads, has of a source."""
    return observer.ledger.manifests.find_snapshot(observer.settings.environment, source.build_id)


def is_unmoved(observer: Observer, work: PendingBuild) -> bool:
    """Whether the manifest entry names what it did when a build started, or the build's result.

    Another source of the run with the same BuildID may have published this result.
    """
    snapshots = own_entry(observer, work.source), work.started.before, work.snapshot
    now, *expected = (s and (s.build_uid, s.version) for s in snapshots)
    return now in expected


def is_inherited(observer: Observer, work: PendingBuild) -> bool:
    """Whether readers of the environment already see a snapshot of an environment it reads.

    If the snapshot would be too old by what that environment knows of it, it becomes the
    environment's own, which knows that it is current.
    """
    settings, build_id = observer.settings, work.source.build_id
    published = observer.ledger.manifests.find_snapshot(
        settings.environment, build_id, reads=settings.reads
    )
    return (
        published is not None
        and own_entry(observer, work.source) != work.snapshot == published
        and not any(
            observer.is_expired(s, published) for s in _resting_on(observer.project, build_id)
        )
    )


def _resting_on(project: Project, build_id: BuildID) -> Iterable[Source]:
    """Return the sources with a BuildID, and everything downstream of them."""
    downstream: dict[SourceID, Source] = {}
    stack = [*project.by_build_id[build_id]]
    while stack:
        source = stack.pop()
        if source.source_id not in downstream:
            downstream[source.source_id] = source
            stack += (project.by_id[s] for s in project.readers[source.source_id])
    return downstream.values()
