"""The loop: plan → builds in order → publication. Serves Dagster, the CLI and tests alike.

One build of one source, all under a lease on its BuildID:

    plan again ─► write files ─► measure and check ─► commit to Delta ─► publish in the ledger
                                                                       └► export the manifest

Until the last step readers see what they saw before. A process that dies anywhere leaves at
worst files that no version holds, or a version that no manifest names; the next build of the
source takes the lease over, puts the table right and starts again.

A build may stop before its publication and be parked, without its lease, until its turn comes
(`park`, `resume`): builds of the same run read it already, nobody else does.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import uuid
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from persist_assets.analysis.functions import CLOCK, SPECIAL_DATETIMES
from persist_assets.building.catalog_views import check_catalog, check_leaves, show, shown_as
from persist_assets.building.partition_checks import Parted
from persist_assets.building.reader import HasSnapshot, Reader, Slice
from persist_assets.building.set_checks import again, asked, bound, check_columns, failure
from persist_assets.building.strategies.incremental import (
    continue_table,
    find_window,
    is_clustered,
    window_of,
)
from persist_assets.building.strategies.scd2 import columns_of, identified_by, turn
from persist_assets.core.dialect import quote
from persist_assets.core.errors import (
    BuildError,
    ConflictError,
    GoneError,
    PersistError,
    SettingsError,
)
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.columns import Column, ColumnRef
from persist_assets.core.model.plans import Change, Increment
from persist_assets.core.model.snapshots import (
    Build,
    Leaf,
    RawVersion,
    Snapshot,
    View,
    Written,
    merge_as_of,
)
from persist_assets.core.partitions import (
    between,
    boxes,
    expand,
    filled_keys,
    misfit,
    reached,
    side,
    split,
)
from persist_assets.core.partitions import keys as partition_keys
from persist_assets.core.time_values import TIMES, is_ordered, literal, parsed
from persist_assets.core.wants import Want, ref_of
from persist_assets.engine.python_functions import place_of
from persist_assets.engine.session import translated
from persist_assets.ledger.ledger import Publication
from persist_assets.ledger.manifest_file import export_manifest
from persist_assets.ledger.taints import Kept
from persist_assets.planning.age import unchecked
from persist_assets.planning.diff import what_it_reads
from persist_assets.planning.increments import (
    column_type,
    in_order,
    meeting,
    merged_spans,
    mismatch,
    parted_by,
    time_type,
)
from persist_assets.planning.inputs import CONTENT, drawn, inputs, own_marks, rests_alike
from persist_assets.planning.planner import plan
from persist_assets.planning.reach import lacking
from persist_assets.planning.reasons import what_lacks
from persist_assets.planning.world import UNVERSIONED, World, is_history
from persist_assets.storage.changes import (
    delta_change,
    delta_pieces,
    keep_listing,
    listings_of,
    raw_change,
)
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_tables import find_table, has_snapshot, is_whole
from persist_assets.storage.files import delete_directory
from persist_assets.storage.raw import Pin, pin_raw, still_holds
from persist_assets.storage.types import columns_of_struct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.incremental import Continued, Window
    from persist_assets.core.model.annotations import Fallback
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.plans import Piece, Plan, Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, Partitions
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.time_values import Span
    from persist_assets.core.wants import PartitionRef, Request
    from persist_assets.engine.spark import Engine, Measured
    from persist_assets.ledger.ledger import Lease, Ledger
    from persist_assets.planning.render import Statement
    from persist_assets.storage.delta_commit import Staged

log = logging.getLogger(__name__)

_MOST_AGES = 64
"""Of so many sets of partitions of different ages it is looked for what changed since."""


@dataclass(slots=True)
class Work:
    """A build under way, up to and excluding its publication.

    Attributes
    ----------
    snapshot
        What will be published: of a reused table at once, of a built one after its commit.
    checks
        What came of the checks; none that blocks has failed.
    inputs
        What the rows are computed from directly.
    current_at
        When all that was last known to be current.
    inherited
        Readers see it already, in an environment that theirs reads.
    columns
        Those of what was computed.
    staged, view
        What was written, and what is stored instead of it.
    continued
        Where rows of another snapshot stay: all about that.
    before
        What readers of the environment itself saw when it began.
    latest
        What a history would go on from then.
    kept
        What it keeps of the rows of another snapshot.
    used, taken
        The snapshots that it was computed from, and the one of another environment that it is.
    state
        ``parked``: it waits for its publication, and the lease is given back.
    """

    source: Source
    step: Step
    build: Build
    lease: Lease
    table: str
    checks: tuple[CheckResult, ...] = ()
    inputs: AsOf = ()
    current_at: datetime | None = None
    snapshot: Snapshot | None = None
    inherited: bool = False
    columns: tuple[Column, ...] = ()
    staged: Staged | None = None
    view: View | None = None
    continued: Continued | None = None
    before: Snapshot | None = None
    latest: Snapshot | None = None
    measured: Measured | None = None
    kept: Kept | None = None
    used: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    state: Literal["open", "parked", "published"] = "open"

    @property
    def refs(self) -> tuple[PartitionRef, ...]:
        """The partitions that it builds, by reference; of a table without any, the table."""
        return tuple(ref_of(self.source.key, key) for key in self.step.keys or (None,))

    @property
    def is_within(self) -> bool:
        """Whether it goes on in the table of what it goes on from, which is the environment's."""
        return self.before is not None and self.before == self.step.goes_on_from


class Builder(Reader):
    """Plans, builds and reads the sources of one project in one environment during one run.

    Parameters
    ----------
    run_id
        The run that builds are recorded under.
    changing
        Tables may get other columns, whatever ``on_schema_change`` says.
    origin
        Who wants what is built, for the audit: a `wants.SourceType` under ``type``, and details.
    request
        The build request that it all is for; None: each build is wanted for itself.
    fed, fallback, clock
        See `Reader`.

    Attributes
    ----------
    over
        Set when the run has ended: what still waits for a lease gives up.
    """

    def __init__(
        self,
        settings: Settings,
        project: Project,
        ledger: Ledger,
        engine: Engine,
        *,
        run_id: str | None = None,
        fed: Iterable[SourceID] = (),
        fallback: Fallback | None = None,
        changing: bool = False,
        origin: Mapping[str, Any] | None = None,
        request: Request | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(settings, project, ledger, engine, fed=fed, fallback=fallback, clock=clock)
        self.run_id = run_id
        self.changing = changing
        self.origin = {"type": "api"} if origin is None else origin
        self.request = request
        self._parked: dict[SourceID, Work] = {}
        self._open: dict[str, Work] = {}
        self._has_left = False
        self._temporary: dict[SourceID, Snapshot] = {}
        self._beneath: dict[str, frozenset[str]] = {}
        self._temporary_locks: dict[SourceID, threading.Lock] = {}
        self._temporary_root: str | None = None
        self._closing = ExitStack()
        self.over = threading.Event()

    def anew(self, request: Request | None = None) -> Builder:
        """Return a builder that looks at everything again, for a build request or for none."""
        return Builder(
            self.settings,
            self.project,
            self.ledger,
            self.engine,
            run_id=self.run_id,
            fed=self.fed,
            fallback=self.fallback,
            changing=self.changing,
            origin=self.origin,
            request=request,
            clock=self.clock,
        )

    # ------------------------------------------------------------------------------ planning

    def world(self, sources: Iterable[Source], there: HasSnapshot = has_snapshot) -> World:
        """Return all that a plan of `sources` has to know; `there` says which tables are."""
        manifest = self.manifest()
        sources = tuple(sources)
        reached = self.project.reach((s.source_id for s in sources), lambda _: False)
        raws = [s for s in reached if s.raw is not None]
        versions = {s.source_id: v for s in raws if (v := self.find_version(s)) is not None}
        world = World(
            environment=self.settings.environment,
            manifest=manifest,
            versions=versions,
            day=self.started_at.astimezone(self.settings.timezone).date().isoformat(),
            instant=self.started_at.isoformat(),
            history=self._history(sources),
            missing=[
                source.build_id
                for source in sources
                if (snapshot := manifest.get(source.build_id))
                and not self.is_there(snapshot, there)
            ],
            absent=dict(self._absent),
            elsewhere=self._elsewhere(sources, manifest, there),
            expired={
                source.source_id: self.fallback or source.annotation.freshness.fallback
                for source in (*sources, *reached)
                if source.annotation.freshness
                and (snapshot := manifest.get(source.build_id))
                and self.is_expired(source, snapshot)
            },
            keys=self.keys(),
            zone=self.settings.timezone.key,
            tainted=self.tainted(manifest),
            seen=self.seen(),
            behind=self.behind(),
        )
        world = replace(
            world,
            aged=self._aged(sources, world),
            latest=self._latest(sources, manifest, there),
        )
        return replace(world, changes=self._changes(sources, world))

    def keys(self) -> dict[SourceID, tuple[str, ...]]:
        """Return the partitions that there are of every partitioned source, in order."""
        return {
            source.source_id: partition_keys(partition, self.started_at)
            for source in self.project.persisted
            if (partition := source.annotation.partition) is not None
        }

    def _aged(
        self, sources: Iterable[Source], world: World
    ) -> dict[tuple[SourceID, AsOf, AsOf], dict[SourceID, Change | None]]:
        """Return what became of the tables that partitions follow from, since they were built."""
        found: dict[tuple[SourceID, AsOf, AsOf], dict[SourceID, Change | None]] = {}
        for source in sources:
            if source.annotation.partition is None or source.growth is None:
                continue
            own = world.manifest.get(source.build_id)
            for table in (own, *world.elsewhere.get(source.build_id, ())):
                for group in table.partitions.filled if table and table.partitions else ():
                    told = (source.source_id, group.as_of, group.inputs)
                    if told not in found and len(found) < _MOST_AGES:
                        found[told] = {
                            s: self._change(s, group.as_of, world, group.inputs)
                            for s in sorted(source.growth.reads)
                        }
        return found

    def _latest(
        self,
        sources: Iterable[Source],
        manifest: Mapping[BuildID, Snapshot],
        there: HasSnapshot = has_snapshot,
    ) -> dict[SourceID, Snapshot]:
        """Return what readers last got of sources that may go on when their meaning changes.

        A history goes on from one of an environment that is read, other tables do not.
        """
        found: dict[SourceID, Snapshot] = {}
        wanted = [s for s in sources if s.keeps_history or s.annotation.goes_on]
        own = self.settings.environment
        current = self.ledger.fetch_current(own) if wanted else {}
        read = self.ledger.fetch_current(*self.settings.environments) if wanted else {}
        tainted = self.marks() if wanted else {}
        for source in wanted:
            known = current if not source.keeps_history else read
            last = known.get(source.source_id)
            build_id = last.build_id if last else source.build_id
            snapshot = self.ledger.find_snapshot(own, build_id)
            if source.keeps_history:
                # Another source of its meaning may have gone on with what both have.
                shared = self.ledger.find_snapshot(own, source.build_id)
                own_ones = [s for s in (snapshot, shared) if s and is_history(s)]
                read_ones = [s for s in (manifest.get(build_id),) if s and is_history(s)]
                snapshot = max(own_ones or read_ones, key=lambda s: s.built_at, default=None)
            elif snapshot is not None and (
                snapshot.view or snapshot.build_uid in tainted or not self.is_there(snapshot, there)
            ):
                continue
            if snapshot is not None:
                found[source.source_id] = snapshot
        return found

    def _changes(
        self, sources: Iterable[Source], world: World
    ) -> dict[SourceID, dict[SourceID, Change | None]]:
        """Return what became of the tables that sources read whose own can be continued."""
        found: dict[SourceID, dict[SourceID, Change | None]] = {}
        for source in sources:
            annotation = source.annotation
            if annotation.refresh != "incremental" or source.build_id in world.missing:
                continue
            sharing = (s.annotation for s in self.project.by_build_id[source.build_id])
            if len({(a.refresh, a.time_column) for a in sharing}) > 1:
                continue  # the table is kept in two ways
            own = self.ledger.find_snapshot(self.settings.environment, source.build_id)
            seen = world.manifest.get(source.build_id)
            if own is None and seen is None and annotation.goes_on:
                own = seen = world.latest.get(source.source_id)
            if own is None or own != seen or own.view is not None:
                continue
            if own.time_column != annotation.time_column:
                continue
            reads = source.growth.reads if source.growth else ()
            found[source.source_id] = {
                s: self._change(s, own.as_of, world, own.inputs) for s in sorted(reads)
            }
        return found

    def _change(
        self, source_id: SourceID, as_of: AsOf, world: World, inputs: AsOf = ()
    ) -> Change | None:
        """Return what became of a table since rows of an as_of were computed from it.

        Parameters
        ----------
        inputs
            What they were computed from directly, as far as that is known.
        """
        source = self.project.by_id.get(source_id)
        if source is None:
            return None
        if source.raw is None:
            return self._change_of_table(source, as_of, world, inputs)
        if self.find_version(source) is None:
            return None
        then = [v.version for v in as_of if v.raw == source.build_id]
        if len(then) != 1:
            return None
        place, form = self.raw_place(source)
        return raw_change(self._listings, place, then[0], self.pin(source), form)

    def _change_of_table(
        self, source: Source, as_of: AsOf, world: World, inputs: AsOf
    ) -> Change | None:
        """Return what became of the table of a persisted source.

        Its rows at the time are those of any snapshot that rests on the same data, and has the
        same rows where that is known.
        """
        rows = {v.version for v in inputs if v.raw == source.build_id}

        def is_then(snapshot: Snapshot) -> bool:
            known = not rows or CONTENT + snapshot.content in rows
            return known and rests_alike(snapshot, as_of)

        now = world.readable(source)
        if now is None or now.view is not None:
            return None
        if is_then(now):
            return Change()
        for build in self.ledger.fetch_succeeded(source.build_id):
            then = build.snapshot
            if then and then.table == now.table and is_then(then):
                root = self.settings.table_root(now.table)
                change = delta_change(root, then.version, now.version)
                return change and self._within(source, then, now, change, world)
        return None

    def _within(
        self, source: Source, then: Snapshot, now: Snapshot, change: Change, world: World
    ) -> Change:
        """Return a change of a partitioned table with which partitions were computed since."""
        partition, columns = source.annotation.partition, parted_by(source, now)
        if partition is None or not columns or not (change.added or change.lost):
            return change
        order, built = world.keys[source.source_id], set[str]()
        step: Snapshot | None = now
        while step is not None and step.build_uid != then.build_uid:
            if step.partitions is None or step.partitions.base is None:
                return change
            built.update(expand(order, step.partitions.built))
            step = self.find_written(step.partitions.base)
        if step is None:
            return change
        found = boxes(partition, [kind for _, kind in columns], built, order)
        within = {columns[0][0].lower(): merged_spans(box[0] for box in found)}
        return replace(change, within=within)

    def _history(self, sources: Iterable[Source]) -> dict[SourceID, Build]:
        """Return the last build of every source; of one never built here, what is read of it."""
        history = self.ledger.fetch_last_builds(self.settings.environment)
        if any(s.source_id not in history for s in sources):
            history = self.ledger.fetch_current(*self.settings.environments) | history
        return history

    def _elsewhere(
        self,
        sources: Sequence[Source],
        manifest: Mapping[BuildID, Snapshot],
        there: HasSnapshot,
    ) -> dict[BuildID, list[Snapshot]]:
        """Return what other environments have of sources, where its table is there.

        Nothing of what is tainted in any of them.
        """
        everywhere = self.ledger.fetch_elsewhere(*self.settings.environments)
        tainted = self.ledger.fetch_tainted() if everywhere else {}
        return {
            source.build_id: [
                snapshot
                for snapshot in everywhere.get(source.build_id, ())
                if snapshot != manifest.get(source.build_id)
                and snapshot.build_uid not in tainted
                and self.is_there(snapshot, there)
            ]
            for source in sources
        }

    def manifest(self) -> dict[BuildID, Snapshot]:
        """Return what builds of this run read: what the environment does, and what is parked."""
        manifest = self.ledger.fetch_manifest(*self.settings.environments)
        with self._lock:
            parked = {w.source.build_id: w.snapshot for w in self._parked.values() if w.snapshot}
        return manifest | parked

    def marks(self) -> dict[str, frozenset[str]]:
        """Return what of snapshots must not be used; of what is parked too, which others miss."""
        marks = super().marks()
        with self._lock:
            parked = [(w.build.build_uid, w.kept) for w in self._parked.values()]
        for uid, kept in parked:
            if kept and (left := kept.tainted(marks.get(kept.snapshot_uid, ()))):
                marks[uid] = marks.get(uid, frozenset()) | left
        return marks

    def find_written(self, build_uid: str) -> Snapshot | None:
        """Return the snapshot that a build wrote: one of this run may be parked."""
        with self._lock:
            written = [w.snapshot for w in self._parked.values() if w.snapshot]
        parked = (s for s in written if s.build_uid == build_uid)
        return next(parked, None) or super().find_written(build_uid)

    def plan(
        self,
        selected: Iterable[SourceID],
        *,
        force: bool = False,
        asked: Mapping[SourceID, Collection[str]] | None = None,
        again: Mapping[SourceID, Span] | None = None,
    ) -> Plan:
        """Return what building `selected` would do.

        Parameters
        ----------
        asked
            Which partitions are wanted, of sources of which not all are.
        again
            The values of time columns whose rows are computed again; see `span`.
        """
        chosen = [self.project.by_id[s] for s in selected]
        names = [s.source_id for s in chosen]
        world = self.world(chosen)
        return plan(self.project, names, world, force=force, asked=asked, again=again)

    def span(self, source: Source, low: str, high: str) -> Span:
        """Return the values of the time column of a source between two texts, both with them.

        A day stands for all of its times.

        Raises
        ------
        SettingsError
            A text is none of the column's type, the first comes after the second, or the source is
            not incremental.
        """
        column, known = source.annotation.time_column, self.manifest().get(source.build_id)
        partition = source.annotation.partition
        timed = partition.time if partition else source.annotation.refresh == "incremental"
        if not timed or column is None:
            raise SettingsError(
                f"`{source.name}` has no windows that could be computed again",
                hint="that is for refresh=incremental with a watermark, and for partitions",
                location=source.location,
            )
        kind = time_type(source, known)
        if kind is None or not is_ordered(kind):
            raise SettingsError(
                f"the type of `{column}` is not known before `{source.name}` is built",
                hint=f"build it first: persist build {source.key}",
            )
        ends = (
            parsed(low, kind, self.settings.timezone),
            parsed(high, kind, self.settings.timezone, end=True),
        )
        for text, value in zip((low, high), ends, strict=True):
            if value is None:
                raise SettingsError(
                    f"`{text}` is no {kind}, which `{column}` is",
                    hint="write 2024-01-31, or 2024-01-31T12:00" if kind in TIMES else None,
                )
        if ends[0] > ends[1]:  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
            raise SettingsError(f"`{low}` comes after `{high}`", hint="give the earlier one first")
        return ends  # pyright: ignore[reportReturnType]

    def keys_between(self, source: Source, low: str, high: str) -> frozenset[str]:
        """Return the partitions that may have rows with times between two texts; see `span`."""
        known = self.manifest().get(source.build_id)
        partition, columns = source.annotation.partition, parted_by(source, known)
        assert partition is not None
        order = self.keys()[source.source_id]
        return reached(partition, columns[0][1], order, [self.span(source, low, high)])

    # ------------------------------------------------------------------------------ building

    def build(
        self,
        source: Source,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        again: tuple[str, str] | None = None,
    ) -> Build:
        """Build a source, or reuse its table, and let readers see it.

        Parameters
        ----------
        keys
            The partitions that are wanted; None: all there are.
        again
            From where to where, both with them, rows are computed again by the time column: ISO
            8601 for times, what has no zone in that of the settings.

        Raises
        ------
        PersistError
            It failed; readers see what they saw before.
        """
        with self.work(source, force=force, keys=keys, again=again) as work:
            self.publish(work)
            return work.build

    @contextmanager
    def work(
        self,
        source: Source,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        again: tuple[str, str] | None = None,
    ) -> Generator[Work]:
        """Do everything up to publication, which is the block's business: see `publish`.

        Raises
        ------
        CheckFailedError
            Its rows failed a blocking check.
        PersistError
            Something else failed; it is recorded.
        """
        name = shown_as(self.settings, source)
        if name is not None:
            check_catalog(self.engine, name)
        self.sync([source.source_id])
        with self._leased(source) as lease:
            world = self.world([source], is_whole)
            order = world.keys.get(source.source_id, ())
            unknown = sorted({*keys} - {*order}) if keys is not None else []
            if unknown:
                between(source.name, order, unknown[0], unknown[0])
            for upstream in self.project.inputs(source):
                if upstream.raw is not None:
                    self.pin(upstream)
            asked = {} if keys is None else {source.source_id: keys}
            spans = {} if again is None else {source.source_id: self.span(source, *again)}
            (step,) = plan(
                self.project, [source.source_id], world, force=force, asked=asked, again=spans
            ).steps
            present = step.snapshot
            if present is None and step.base is not None and self._is_own(step.base):
                step = replace(step, increment=Increment(step.base))
            before = self.ledger.find_snapshot(self.settings.environment, source.build_id)
            base = before if before == step.goes_on_from else None
            continued = present or base
            table = continued.table if continued else self._table(source)
            self._tidy(table)
            build = Build(
                build_uid=uuid.uuid4().hex,
                source_id=source.source_id,
                build_id=source.build_id,
                definition=source.definition,
                environment=self.settings.environment,
                run_id=self.run_id,
                state="started",
                action="built" if step.action == "build" else "reused",
                started_at=self.clock(),
                digests=source.digests,
                reads=what_it_reads(self.project, source),
            )
            work = Work(source, step, build, lease, table, before=before)
            own = world.manifest.get(source.build_id)
            if kept := step.base or step.goes_on_from:
                known = kept.partitions
                stays = filled_keys(order, known.filled) if known else frozenset(("",))
                stays = stays.difference(step.keys or ())
                own_base = step.base is None or kept == own
                work.kept = Kept(kept.build_uid, stays, own=own_base)
            self.ledger.record_started(
                build,
                table,
                base=base,
                kept=work.kept,
                wanted=() if self.request else self._wanted_by(work),
                request_id=self.request.request_id if self.request else None,
            )
            work.latest = world.latest.get(source.source_id)
            work.inputs = inputs(self.project, source, world) or ()
            with self._recorded(work):
                if present is not None:
                    uids = frozenset((present.build_uid,))
                    if present != own:
                        work.taken = uids
                    elif present.partitions is None:
                        work.used = uids
                    # What it rests on may be newer, with the same rows (`planner.inputs`).
                    current_at = self._current_at(source, world, step)
                    known = present.partitions
                    if known is not None and step.partitions is not None:
                        known = replace(known, filled=step.partitions.filled)
                    present = replace(
                        present, as_of=step.as_of, current_at=current_at, partitions=known
                    )
                    self._reuse(work, present, world)
                    work.inherited = self._is_inherited(work)
                else:
                    work.current_at = self._current_at(source, world, step)
                    self._compute(work, world)
                if any(not r.passed and r.blocking for r in work.checks):
                    raise failure(source, work.checks)
                yield work

    def _wanted_by(self, work: Work) -> Sequence[Want]:
        """Return what is wanted by a build that nobody has asked for by a want."""
        build = work.build
        return tuple(
            Want(
                f"{build.build_uid}/{ref}",
                ref,
                build.environment,
                build.started_at,
                source={**self.origin, "build_uid": build.build_uid, "run_id": build.run_id},
                state="building",
                request_id=build.build_uid,
            )
            for ref in work.refs
        )

    def _current_at(self, source: Source, world: World, step: Step) -> datetime:
        """Return when all that a step rests on was last known to be current."""
        present = step.snapshot
        if (
            present
            and present.as_of == step.as_of
            and any(v.version.startswith(UNVERSIONED) for v in present.as_of)
        ):
            # Data that does not tell whether it changed was so when it was read.
            return present.known_at
        reached = self.project.reach(
            source.bindings,
            lambda s: s.raw is not None or (s.persisted and world.readable(s) is not None),
        )
        tables = (world.readable(s) for s in reached if s.persisted)
        return min((self.started_at, *(t.known_at for t in tables if t)))

    def _table(self, source: Source) -> str:
        """Return the table that a build of `source` writes: none that others read.

        That is the one it wrote last in this environment, unless another one has taken it over.
        """
        name, others = self.settings.table_name(source.table), set[str]()
        own = self.ledger.find_snapshot(self.settings.environment, source.build_id)
        for environment, table in self.ledger.fetch_tables(source.build_id):
            if environment != self.settings.environment:
                others.add(table)
        tried = [*([own.table] if own else []), name, f"{name}-{self.settings.environment}"]
        free = (t for t in tried if t not in others)
        return next(free, f"{name}-{uuid.uuid4().hex[:8]}")

    def _is_own(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot is of a table that builds of this environment go on writing."""
        own = self.ledger.find_snapshot(self.settings.environment, snapshot.build_id)
        source = self.project.by_build_id[snapshot.build_id][0]
        return own is not None and own == snapshot and own.table == self._table(source)

    def _is_inherited(self, work: Work) -> bool:
        """Whether readers of the environment see a snapshot already, in one that it reads.

        Where it would be too old for them, as far as is known there, it becomes the environment's
        own: it is known here that it still holds.
        """
        environment, build_id = self.settings.environment, work.source.build_id
        own = self.ledger.find_snapshot(environment, build_id)
        seen = self.ledger.find_snapshot(environment, build_id, reads=self.settings.reads)
        return (
            seen is not None
            and own != work.snapshot == seen
            and not any(self.is_expired(s, seen) for s in self._resting_on(build_id))
        )

    def _resting_on(self, build_id: BuildID) -> Iterable[Source]:
        """Return the sources of a meaning, and all that read them, however far down."""
        found: dict[SourceID, Source] = {}
        stack = [*self.project.by_build_id[build_id]]
        while stack:
            source = stack.pop()
            if source.source_id not in found:
                found[source.source_id] = source
                stack += (self.project.by_id[s] for s in self.project.readers[source.source_id])
        return found.values()

    @contextmanager
    def _leased(self, source: Source) -> Generator[Lease]:
        """Hold the lease on a BuildID; of a history on the source too, whatever it means."""
        with ExitStack() as held:
            if source.keeps_history:
                name = f"history {self.settings.environment} {source.source_id}"
                held.enter_context(self.ledger.lease(name, self._holder(), over=self.over))
            name = f"build {source.build_id}"
            yield held.enter_context(self.ledger.lease(name, self._holder(), over=self.over))

    def _holder(self) -> str:
        return f"{self.run_id or 'a build'} on {socket.gethostname()}, process {os.getpid()}"

    def _record_failed(self, work: Work, error: str) -> None:
        request_id = self.request.request_id if self.request else None
        self.ledger.record_failed(work.build, error, request_id=request_id)

    @contextmanager
    def _recorded(self, work: Work) -> Generator[None]:
        """Record a build as failed, and remove its files, if the block does not publish it."""
        with self._lock:
            self._open[work.build.build_uid] = work
        try:
            yield
            if work.state == "open":
                raise BuildError(f"`{work.source.name}` was built and not published")
        except BaseException as error:
            if isinstance(error, PersistError) and error.location is None:
                error.location = place_of(error, self.settings.root) or work.source.location
            if work.state == "open":
                told = str(error) if isinstance(error, Exception) else "interrupted"
                self._record_failed(work, told or type(error).__name__)
                root = self.settings.table_root(work.table)
                self._discard_uncommitted(root, work.build.build_uid)
            raise
        finally:
            with self._lock:
                self._open.pop(work.build.build_uid, None)

    def park(
        self,
        source: Source,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        again: tuple[str, str] | None = None,
    ) -> Work:
        """Do everything up to publication, for `resume`; builds of this run see it at once.

        Raises
        ------
        PersistError
            It failed; that is recorded.
        """
        with self.work(source, force=force, keys=keys, again=again) as work:
            self._commit(work)
            work.state = "parked"
            with self._lock:
                self._parked[source.source_id] = work
        return work

    @contextmanager
    def resume(
        self,
        work: Work,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        again: tuple[str, str] | None = None,
    ) -> Generator[Work]:
        """Go on with a parked build: its publication is the block's business, as with `work`.

        Where somebody else has built it, or what it reads, meanwhile, it is built anew.

        Raises
        ------
        PersistError
            Something failed; it is recorded.
        """
        with self._leased(work.source) as lease:
            usable = self._is_usable(work)
            try:
                if usable:
                    work.lease, work.state = lease, "open"
                    with self._recorded(work):
                        yield work
            finally:
                with self._lock:
                    del self._parked[work.source.source_id]
        if not usable:
            with self.work(work.source, force=force, keys=keys, again=again) as anew:
                yield anew

    def _is_usable(self, work: Work) -> bool:
        """Whether a parked build is still what one that begins now would be. Its lease is held."""
        assert work.snapshot is not None
        return (
            self.ledger.is_under_way(work.build)
            and self._inputs(work.source) == work.inputs
            and (not work.source.keeps_history or self._is_last(work))
            and self.is_there(work.snapshot, is_whole)
        )

    def _is_last(self, work: Work) -> bool:
        """Whether no other build has become what a history goes on from since one has begun."""
        manifest = self.ledger.fetch_manifest(*self.settings.environments)
        return work.latest == self._latest([work.source], manifest).get(work.source.source_id)

    def _inputs(self, source: Source) -> AsOf:
        return inputs(self.project, source, self.world([source])) or ()

    def abandon(self) -> None:
        """Record that what is parked will not be published."""
        with self._lock:
            parked, self._parked = self._parked, {}
        for work in parked.values():
            self._record_failed(work, "its run ended before its turn came")

    def leave_behind(self) -> None:
        """Record that builds under way have failed, and give their leases back.

        They hang, and their run has ended. If they go on, they publish nothing.
        """
        with self._lock:
            self._has_left = True
            works = [*self._open.values()]
        for work in works:
            log.warning("action=leave-behind source=%s", work.source.source_id)
            self._record_failed(work, "interrupted: it did not end by itself")
            self.ledger.give_back(work.lease)

    def _tidy(self, table: str) -> None:
        """Remove what dead builds of a table left behind."""
        with self._lock:
            alive = [w.build.build_uid for w in self._parked.values()]
        for build_uid in self.ledger.record_interrupted(table, alive=alive):
            log.info("action=tidy table=%s build=%s", table, build_uid)
            self._discard_uncommitted(self.settings.table_root(table), build_uid)

    def _discard_uncommitted(self, root: str, build_uid: str) -> None:
        """Delete the files of a build, unless a version of its table holds them."""
        delta = find_table(root)
        commits = delta.history() if delta is not None else []
        if not any(entry.get("persist.build") == build_uid for entry in commits):
            delete_directory(f"{root}/{build_uid}")

    def _reuse(self, work: Work, present: Snapshot, world: World) -> None:
        work.snapshot = present
        before = {c.name: c for c in self.ledger.fetch_checks(present.build_uid)}
        wanted = self._checks(work.source)
        columns = present.columns or self.engine.columns(self.load_snapshot(present), present.table)
        check_columns(work.source, wanted, columns, self._published(work.source))
        known = None
        if not any(_asks_the_clock(c) for c in wanted):
            known = again(self, work.source, wanted, before, world.manifest)
        if known is None:
            rows = self.load_snapshot(present)
            alone = [c for c in wanted if c.alone]
            results = self.engine.audit(rows, alone, present.table)
            parted = self._parted(work, world, present.partitions, lambda: rows)
            known = asked(self, work.source, wanted, results, lambda: rows, world.manifest, parted)
        work.checks = known
        guards = self.project.guards(work.source)
        if any(c.name not in before or before[c.name].definition != c.definition for c in guards):
            self._temporaries(work.source.bindings, world, guarding=True)
        work.checks += _passed(guards)

    def _checks(self, source: Source) -> tuple[Check, ...]:
        """Return the checks of a source, and those that guard its table for others it is of."""
        own = {c.definition for c in source.checks if c.blocking}
        sharing = (s for s in self.project.by_build_id[source.build_id] if s is not source)
        others = [
            replace(c, name=f"{other.key}:{c.name}")
            for other in sharing
            for c in other.checks
            if c.blocking and c.definition not in own
        ]
        return bound((*source.checks, *others), self.clock())

    def _published(self, source: Source) -> Snapshot | None:
        """Return what readers of a source see now, whatever it meant when that was built."""
        if source.annotation.on_schema_change == "sync" or self.changing:
            return None
        current = self.ledger.fetch_current(*self.settings.environments, source_id=source.source_id)
        build = current.get(source.source_id)
        return build.snapshot if build else None

    def _staged_rows(self, staged: Staged, kept: Sequence[str] = ()) -> DataFrame:
        """Return the rows of files that are written, beside those of a table that stay."""
        paths = (*kept, *(f.path for f in staged.files))
        files = tuple(f"{staged.root}/{path}" for path in paths)
        return self.engine.read_files("parquet", Pin(None, files), staged.columns, {})

    def _compute(self, work: Work, world: World) -> None:
        source = work.source
        assert source.query is not None
        guarded = unchecked(self.project, source, world)
        if guarded:
            names = ", ".join(f"`{s.key}`" for s in guarded)
            raise BuildError(
                f"`{source.name}` reads {names}, which is not built: its checks have not passed",
                hint=f"build what it reads too: persist build +{source.key}",
            )
        missing = lacking(self.project, source, world, work.step.keys)
        if missing:
            told = [what_lacks(self.project.by_id[s], world, some) for s, some in missing.items()]
            raise BuildError(
                f"`{source.name}` reads partitions that are not there: {'; '.join(told)}",
                hint=f"build what it reads too: persist build +{source.key}",
            )
        view = self.project.is_view(source)
        increment = work.step.increment
        self._check_base(work)
        # A view is read when they are gone, and an increment does not want all of their rows: then
        # they are only checked.
        guarding = view or increment is not None
        temporary = self._temporaries(source.bindings, world, guarding=guarding)
        if guarding:
            temporary = {}
        window, only = None, dict[str, Slice]()
        if work.step.keys is not None:
            window = self._partitions_window(work, world, parted_by(source, work.step.base))
        elif increment is not None and increment.added:
            only = {s: Slice(files) for s, files in increment.added.items()}
        elif increment is not None:
            window = self._window(source, increment, world)
        if window is not None:
            only = {s: Slice(where=test) for s, test in window.leaves.items()}
            only = self._narrowed(source, window, only, world)
        groups = self._in_order(source, world, only) if len(work.step.keys or ()) > 1 else {}
        only |= groups
        # What is too old is what the plan found so, on which what is recorded rests.
        sliced = [s for s, part in only.items() if part.files is not None]
        tables = source.growth.reads if source.growth else ()
        # Nor is what was tainted then, though it may be built again by now.
        spoilt = {self.project.by_id[s].build_id for s in world.tainted}
        manifest = {b: s for b, s in world.manifest.items() if b not in spoilt}
        read = self.reading(source.bindings, manifest, temporary, world.expired, sliced, tables)
        only = self._unshared(source, read, only)
        work.used = self._uids(read)
        since = None
        trusted = source.annotation.assume is not None
        if source.function is None and increment is not None:
            trusted = increment.past  # else windows are known to follow, whatever the query says
        if increment is not None and trusted and window is not None and window.boxes:
            low = min(box[0][0] for box in window.boxes)  # pyright: ignore[reportArgumentType]
            since = (low, time_type(source, increment.base) or "")
        frame = self.compute(source, read, only, since)
        if work.step.keys is not None and window is None:  # a function, whose types Spark tells
            told = columns_of_struct(self.merged(source, frame).schema.jsonValue())
            seen = replace(source, columns=told)
            _check_partitions(seen)
            window = self._partitions_window(work, world, parted_by(seen))
        time_column = self._time_column(source)
        wanted = self._checks(source)
        columns = self.engine.columns(frame, source.name)
        if source.keeps_history:
            columns = (*columns, *(Column(name, "timestamp") for name in (VALID_FROM, VALID_TO)))
        check_columns(source, wanted, columns, self._published(source))
        checks = [c for c in wanted if c.alone]
        if view:
            statement = self.stated(source.query, source.bindings, read)
            work.view = self._stored(source, statement, read)
            work.columns = columns_of(frame)
            work.measured = self.engine.measure(frame, checks, time_column, source.name)
        else:
            bounds = () if groups else self._bounds(work)
            with self.engine.undivided() if groups else nullcontext():
                if source.keeps_history:
                    self._keep(work, frame, checks, world)
                elif work.is_within and increment is not None and (increment.added or window):
                    key = source.annotation.merge.key if source.annotation.merge else ()
                    self._continue(
                        work,
                        increment,
                        window,
                        frame,
                        checks,
                        key,
                        lambda rows, old: self.merged(source, rows.unionByName(old)),
                        bounds,
                    )
                else:
                    whole = self.merged(source, frame)
                    if increment is not None and (increment.added or window):
                        whole = self._gone_on(work, increment, window, frame)
                    elif window is not None:
                        whole = self._with_others(work, window, whole)
                    work.staged, work.measured = self.engine.write(
                        whole,
                        work.table,
                        work.build.build_uid,
                        checks,
                        time_column,
                        source.name,
                        clustered=is_clustered(source),
                        bounds=bounds,
                    )
            if work.snapshot is None:
                assert work.staged is not None and work.measured is not None
                work.columns = work.staged.columns
        if work.snapshot is None:
            assert work.measured is not None
            if work.measured.timeless:
                log.warning(
                    "`%s`: %d rows were computed that have no `%s`; they count as in no time%s",
                    source.key,
                    work.measured.timeless,
                    time_column,
                    "" if work.measured.watermark else ", and there is no watermark",
                )
            staged, kept = work.staged, work.continued.kept if work.continued else ()
            results = asked(
                self,
                source,
                wanted,
                work.measured.checks,
                lambda: self._staged_rows(staged, kept) if staged else frame,
                world.manifest,
                self._parted(
                    work,
                    world,
                    work.step.partitions,
                    lambda: self._staged_rows(staged) if staged else frame,
                ),
            )
            work.checks = (*results, *_passed(self.project.guards(source)))
        leaves = self.leaves(source.bindings, read)
        self._check_pins(leaves)
        for other in source.compared:
            self._check_pins(self.leaves([other], self.reading([other], world.manifest)))
        self._keep_listings(leaves)

    def _keep_listings(self, leaves: Iterable[Source]) -> None:
        """Keep which files the raw tables had that incremental sources follow."""
        growths = [s.growth for s in self.project.sources if s.growth is not None]
        for source in leaves:
            if any(source.source_id in g.reads for g in growths):
                keep_listing(self._listings, self.pin(source))

    @cached_property
    def _listings(self) -> str:
        """The directory with the listings of raw data that builds of this ledger keep."""
        return listings_of(self.settings.warehouse, self.ledger.log_id())

    def _time_column(self, source: Source) -> str | None:
        """Return the column whose watermark the table of a source has."""
        same = (source, *self.project.by_build_id[source.build_id])
        return next((s.annotation.time_column for s in same if s.annotation.time_column), None)

    def _partitions_window(
        self, work: Work, world: World, columns: tuple[tuple[str, str], ...]
    ) -> Window | None:
        """Return where the rows of the partitions of a step are; None where types are missing."""
        source, partition = work.source, work.source.annotation.partition
        if not columns or work.step.keys is None or partition is None:
            return None
        order = world.keys[source.source_id]
        found = boxes(partition, [kind for _, kind in columns], work.step.keys, order)
        return window_of(self.project, source, columns, found, self.settings.timezone.key)

    def _parted(
        self,
        work: Work,
        world: World,
        partitions: Partitions | None,
        load: Callable[[], DataFrame],
    ) -> Parted | None:
        """Return of which partitions the rows of a build are; None of a source that has none.

        Parameters
        ----------
        partitions
            Those of its table.
        load
            Returns the rows of those that are computed: of a table that is reused all.
        """
        source, base, keys = work.source, work.step.base, work.step.keys
        partition = source.annotation.partition
        if partition is None or partitions is None:
            return None
        order = world.keys[source.source_id]
        there = filled_keys(order, partitions.filled)
        before: dict[str, CheckResult] = {}
        if work.snapshot is None and base is not None:
            before = {c.name: c for c in self.ledger.fetch_checks(base.build_uid)}
        every = tuple(key for key in order if key in there)
        anew = every if base is None or work.snapshot is not None else keys or ()
        zone = self.settings.timezone.key
        return Parted(partition, every, anew, before, load, zone)

    def _bounds(self, work: Work) -> tuple[str, ...]:
        """Return where files of a partitioned table begin: conditions, one for each partition.

        None where there is one partition.
        """
        source, partition = work.source, work.source.annotation.partition
        columns = parted_by(source, work.step.base)
        if partition is None or not columns:
            return ()
        name, kind = columns[0]
        firsts = dict.fromkeys(split(partition, key)[0] for key in work.step.keys or ())
        lows = [side(partition, partition.dimensions[0], part, kind)[0] for part in firsts]
        lows.sort()  # pyright: ignore[reportCallIssue, reportArgumentType]
        return tuple(f"{quote(name)} >= {literal(low, kind)}" for low in lows[1:])

    def _narrowed(
        self, source: Source, window: Window, only: Mapping[SourceID, Slice], world: World
    ) -> dict[SourceID, Slice]:
        """Return what is read for a window without files that have no rows for it."""
        found = {**only}
        traces = source.windows.traces if source.windows else ()
        spans = [box[0] for box in window.boxes]
        zone, kind = self.settings.timezone.key, window.columns[0][1]
        for trace in traces:
            source_id = trace.column.source_id
            pieces = self._pieces(source, trace.column, world)
            if source_id in only and pieces is not None and not found[source_id].groups:
                leaf = column_type(self.project.by_id[source_id].columns, trace.column.column)
                some = meeting(pieces, trace, leaf, kind, zone, spans, nulls=window.nulls)
                if len(some) < len(pieces):
                    files = tuple(piece.path for piece in some)
                    found[source_id] = replace(only[source_id], groups=(files,))
        return found

    def _unshared(
        self, source: Source, read: Mapping[SourceID, Snapshot], only: Mapping[SourceID, Slice]
    ) -> dict[SourceID, Slice]:
        """Return slices of tables without those that something else wants all rows of.

        How rows follow is told of `Growth.reads` as tables of their own. One of them that is not
        read from its table is computed, perhaps from others of which only slices would be read.

        Raises
        ------
        BuildError
            Rows cannot be added without such a slice.
        """
        tables = source.growth.reads if source.growth else ()
        known = [self.project.by_id[s] for s in tables if s in self.project.by_id]
        computed = [s.source_id for s in known if s.source_id not in read and s.raw is None]
        below = self.project.reach(computed, lambda s: s.source_id in read)
        shared = {s.source_id for s in below} & only.keys()
        if any(only[s].files is not None for s in shared):
            names = ", ".join(sorted(f"`{self.project.by_id[s].name}`" for s in computed))
            raise BuildError(
                f"`{source.name}` cannot go on: {names} cannot be read from its table any more",
                hint="build again",
                location=source.location,
            )
        return {s: part for s, part in only.items() if s not in shared}

    def _pieces(self, source: Source, column: ColumnRef, world: World) -> tuple[Piece, ...] | None:
        """Return the files of a table that a source reads itself, with what is in a column.

        None where they say nothing.
        """
        source_id, name = column.source_id, column.column
        leaf = self.project.by_id.get(source_id)
        if leaf is None or leaf not in self.project.inputs(source):
            return None
        table = world.readable(leaf) if leaf.raw is None else None
        if leaf.raw is not None and source_id in world.versions:
            root, form = self.raw_place(leaf)
            commit = self.pin(leaf).commit  # of a copy its version tells it
            if form == "delta":
                number = int(world.versions[source_id].split(":")[1]) if commit is None else commit
                return delta_pieces(root, number, name)
        if table is not None and table.view is None:
            return delta_pieces(self.settings.table_root(table.table), table.version, name)
        return None

    def _in_order(
        self, source: Source, world: World, only: Mapping[SourceID, Slice]
    ) -> dict[SourceID, Slice]:
        """Return what a source is computed of row by row, in files that each have other times.

        Their rows come in order by themselves, where they are read in these groups.
        """
        windows = source.windows
        if windows is None or source.growth is None or len(source.growth.reads) != 1:
            return {}
        (source_id,) = source.growth.reads
        if frozenset((source_id,)) not in source.growth.sums or not windows.traces:
            return {}
        traced = windows.traces[0].column
        pieces = self._pieces(source, traced, world)
        if pieces is None:
            return {}
        column, part = traced.column, only.get(source_id, Slice())
        chosen = {path for files in part.groups for path in files}
        pieces = [p for p in pieces if not part.groups or p.path in chosen]
        kind = column_type(self.project.by_id[source_id].columns, column)
        groups = in_order(pieces, column, kind)
        return {source_id: replace(part, groups=groups)} if groups else {}

    def _with_others(self, work: Work, window: Window, rows: DataFrame) -> DataFrame:
        """Return the rows of a window, and those beside it of what the step starts from."""
        rows = rows.where(window.condition)
        if work.step.base is None:
            return rows
        others = self.load_snapshot(work.step.base).where(f"NOT ({window.condition})")
        return rows.unionByName(others)

    def _window(self, source: Source, increment: Increment, world: World) -> Window | None:
        """Return which values of a source's time column an increment computes again."""

        def load(source_id: SourceID, files: tuple[str, ...]) -> DataFrame:
            leaf = self.project.by_id[source_id]
            table = world.readable(leaf) if leaf.raw is None else None
            return self.load_slice(leaf, table, Slice(files))

        window = find_window(self.engine, self.project, source, increment, load)
        if increment.late and window is not None:
            log.warning(
                "`%s`: new files of %s hold times before %s, the watermark, and its lookback: what"
                " follows from such rows is not computed, as assume=exact says that there are none;"
                " persist rerun computes it",
                source.key,
                ", ".join(increment.late),
                increment.base.watermark,
            )
        if window is None:
            log.warning("`%s` is computed as a whole: its time column does not tell", source.key)
        return window

    def _continue(
        self,
        work: Work,
        increment: Increment,
        window: Window | None,
        frame: DataFrame,
        checks: Sequence[Check],
        key: Sequence[str],
        merged: Callable[[DataFrame, DataFrame], DataFrame],
        bounds: Sequence[str] = (),
    ) -> None:
        """Write what a table has besides what it keeps."""
        source = work.source
        before = {c.name: c for c in self.ledger.fetch_checks(increment.base.build_uid)}
        work.continued = continue_table(
            self.engine,
            source,
            increment,
            window,
            frame,
            work.build.build_uid,
            checks,
            before,
            key,
            merged,
            bounds,
        )
        work.staged, work.measured = work.continued.staged, work.continued.measured

    def _check_base(self, work: Work) -> None:
        """Refuse to go on from what rows of now cannot stand beside, or what is not there.

        Raises
        ------
        BuildError
            It has other columns.
        GoneError
            The table that holds a history is gone.
        ConflictError
            A history has gone on since this run began: what it reads may be older.
        """
        source, history = work.source, work.step.history
        increment = work.step.increment
        if increment is not None and not work.is_within and source.columns:
            _check_fits(source, increment.base, source.columns)
        if history is None:
            return
        if not self.is_there(history, is_whole):
            raise GoneError(
                f"the table {history.table} is gone, and the history of `{source.name}` with it",
                hint="bring its files back; or begin anew: on_change=rebuild and --full-refresh",
                location=source.location,
            )
        others = (
            build
            for build_id in {history.build_id, source.build_id}
            for build in self.ledger.fetch_succeeded(build_id)
            if build.environment in self.settings.environments
            and (build.run_id is None or build.run_id != self.run_id)
        )
        if any(build.started_at > self.started_at for build in others):
            raise ConflictError(
                f"the history of `{source.name}` went on since this run began", hint="run it again"
            )

    def _gone_on(
        self, work: Work, increment: Increment, window: Window | None, frame: DataFrame
    ) -> DataFrame:
        """Return the rows of a table of older code, with what is computed in their place."""
        source, base = work.source, increment.base
        _check_fits(source, base, columns_of(frame))
        kept = self.load_snapshot(base)
        if window is not None:
            frame = frame.where(window.condition)
            if source.annotation.merge is None:
                kept = kept.where(f"NOT ({window.condition})")
        return self.merged(source, frame.unionByName(kept))

    def _keep(self, work: Work, frame: DataFrame, checks: Sequence[Check], world: World) -> None:
        """Write the versions that a history has from now on, if any of them changed."""
        source, history = work.source, work.step.history
        validity = source.annotation.validity
        assert validity is not None
        past = None if history is None else self.load_snapshot(history)
        with turn(source, frame, past, self.started_at) as turned:
            alike = history is not None and history.columns == columns_of(turned.versions)
            if history is not None and work.is_within and alike and not turned.n:
                as_of = merge_as_of([work.step.as_of, own_marks(history.as_of, source)])
                told = {"as_of": as_of, "inputs": work.inputs, "current_at": work.current_at}
                work.build = replace(work.build, action="reused")
                self._reuse(work, replace(history, **told), world)
            elif history is not None and work.is_within and alike:
                self._continue(
                    work,
                    Increment(history),
                    None,
                    turned.changed,
                    checks,
                    identified_by(validity),
                    lambda rows, _: rows,
                )
            else:
                work.staged, work.measured = self.engine.write(
                    turned.versions,
                    work.table,
                    work.build.build_uid,
                    checks,
                    self._time_column(source),
                    source.name,
                )

    def _stored(
        self, source: Source, statement: Statement, read: Mapping[SourceID, Snapshot]
    ) -> View:
        """Return a statement as a query that has the same rows whenever it is run."""
        leaves: list[Leaf] = []
        raws = (self.project.by_id[s] for s in statement.views if s not in read)
        check_leaves(self.settings, source, raws)
        for source_id, name in statement.views.items():
            upstream = self.project.by_id[source_id]
            if source_id in read:
                leaves.append(Leaf(name, read[source_id].build_uid))
                continue
            version = self.pin(upstream).version
            if upstream.external is not None:
                raise BuildError(
                    f"`{source.name}` cannot be a view: `{upstream.name}` is an external table,"
                    " of which only what is needed is there",
                    hint="take out materialized=view",
                    location=source.location,
                )
            if version is None or version.startswith(UNVERSIONED):
                raise BuildError(
                    f"`{source.name}` cannot be a view: the data of `{upstream.name}` does not tell"
                    " whether it changed",
                    hint="take out materialized=view",
                    location=source.location,
                )
            columns = tuple(c.name for c in upstream.columns)
            leaves.append(Leaf(name, raw=RawVersion(upstream.build_id, version), columns=columns))
        return View(statement.sql, tuple(leaves))

    def _temporaries(
        self, bindings: Sequence[SourceID], world: World, *, guarding: bool = False
    ) -> dict[SourceID, Snapshot]:
        """Return the temporary tables that a query reads; what is not there yet is computed.

        Parameters
        ----------
        guarding
            Only those that have checks which block.

        Raises
        ------
        CheckFailedError
            The rows of one failed a blocking check.
        """
        found: dict[SourceID, Snapshot] = {}
        reached = self.project.reach(
            bindings, lambda s: s.persisted and world.readable(s) is not None
        )
        for source in reached:
            if not source.temporary or (guarding and not any(c.blocking for c in source.checks)):
                continue
            rests_on = inputs(self.project, source, world)
            with self._lock:
                lock = self._temporary_locks.setdefault(source.source_id, threading.Lock())
            with lock:
                known = self._temporary.get(source.source_id)
                if known is None or known.inputs != rests_on:
                    known = self._keep_temporarily(source, world, found, rests_on or ())
                    self._temporary[source.source_id] = known
            found[source.source_id] = known
        return found

    def _uids(self, read: Mapping[SourceID, Snapshot]) -> frozenset[str]:
        """Return the snapshots that rows are computed from, those under temporary tables too."""
        uids = {s.build_uid for s in read.values()}
        return frozenset(uids.union(*(self._beneath.get(uid, ()) for uid in uids)))

    def _keep_temporarily(
        self, source: Source, world: World, found: Mapping[SourceID, Snapshot], rests_on: AsOf
    ) -> Snapshot:
        with self._lock:
            if self._temporary_root is None:
                token = uuid.uuid4().hex
                lease = self.ledger.lease(temporary_lease(token), self._holder())
                self._closing.enter_context(lease)
                root = self.settings.table_name(f"{TEMPORARY}/{self.ledger.log_id()}/{token}")
                self._closing.callback(delete_directory, self.settings.table_root(root))
                self._temporary_root = root
        below = self.reading(source.bindings, world.manifest, found, world.expired)
        # Of its readers' needs it may have fewer rows than its own checks are to see.
        read = self.routed([source.source_id], below) if source.checks else below
        frame = self.compute(source, read)
        build_uid = uuid.uuid4().hex
        self._beneath[build_uid] = self._uids(below)
        table = f"{self._temporary_root}/{source.name}-{build_uid[:12]}"
        checks = bound(source.checks, self.clock())
        columns = self.engine.columns(frame, source.name)
        check_columns(source, checks, columns, None)
        alone = [c for c in checks if c.alone]
        staged, measured = self.engine.write(frame, table, build_uid, alone, None, source.name)
        results = asked(
            self,
            source,
            checks,
            measured.checks,
            lambda: self._staged_rows(staged),
            world.manifest,
        )
        if any(not r.passed and r.blocking for r in results):
            raise failure(source, results)
        self._check_pins(self.leaves(source.bindings, read))
        version = commit(staged, build_id=source.build_id, pinned=None)
        return Snapshot(
            build_uid=build_uid,
            source_id=source.source_id,
            build_id=source.build_id,
            table=table,
            version=version,
            as_of=(),
            content=measured.content,
            rows=measured.rows,
            bytes=staged.bytes,
            built_at=self.clock(),
            columns=staged.columns,
            inputs=rests_on,
        )

    def close(self) -> None:
        """Give up what lasts as long as a run does."""
        self.forget()
        self._closing.close()
        self._temporary, self._temporary_root = {}, None

    def _check_pins(self, leaves: Iterable[Source]) -> None:
        """Refuse rows that were computed while the files under them changed.

        More files may have come: they are the next build's.
        """
        for source in leaves:
            if source.raw is None or self.raw_place(source)[1] == "delta":
                continue
            if self.pin(source).files is None:
                continue
            now = pin_raw(source.raw, self.settings.resolve(source.raw.location or ""))
            if not still_holds(self.pin(source), now):
                raise ConflictError(
                    f"the data of `{source.name}` changed while it was being read",
                    hint="run it again",
                )

    def publish(self, work: Work) -> Snapshot:
        """Commit what was written, if anything, and let readers see it.

        Raises
        ------
        ConflictError
            The lease was lost, or somebody else wrote to the table, or to the history; nothing
            was published.
        """
        if work.source.keeps_history and not self._is_last(work):
            raise ConflictError(
                f"the history of `{work.source.name}` went on while it was built",
                hint="run it again",
            )
        self._commit(work)
        told = self._publication(work)
        self.ledger.publish(told, malloy=self.project.malloy)
        self._published_are([work])
        return told.snapshot

    def publish_parked(self, request: Request) -> list[Work]:
        """Let readers see all that is parked, for a request, in one transaction; return it.

        Raises
        ------
        ConflictError
            Somebody else has built something of it, or what it reads, meanwhile; nothing was
            published.
        """
        with self._lock:
            works = sorted(self._parked.values(), key=lambda w: w.source.build_id)
        leases: dict[str, Lease] = {}
        with ExitStack() as held:
            for work in works:
                build_id = work.source.build_id
                if build_id not in leases:  # two sources may mean the same
                    leases[build_id] = held.enter_context(self._leased(work.source))
                if not self._is_usable(work):
                    raise ConflictError(
                        f"`{work.source.name}` changed while other partitions were built",
                        hint="it is built again with the next request",
                    )
                work.lease = leases[build_id]
            publications = [self._publication(work) for work in works]
            self.ledger.publish_together(
                publications, request_id=request.request_id, malloy=self.project.malloy
            )
            with self._lock:
                self._parked.clear()
        self._published_are(works)
        return works

    def _publication(self, work: Work) -> Publication:
        """Return what readers are to see of a build that is committed."""
        assert work.snapshot is not None
        # The other environment may have moved on since.
        inherited = work.inherited and self._is_inherited(work)
        return Publication(
            work.build,
            work.snapshot,
            work.checks,
            work.lease,
            moves=not inherited,
            refs=work.refs,
            kept=work.kept,
            used=work.used,
            environments=self.settings.environments,
            taken=work.taken,
        )

    def _published_are(self, works: Iterable[Work]) -> None:
        """Tell of what readers see from now on."""
        sharing: list[Source] = []
        for work in works:
            work.state = "published"
            work.build = replace(
                work.build, state="succeeded", finished_at=self.clock(), snapshot=work.snapshot
            )
            # Readers of all sources of this meaning read it now.
            sharing += self.project.by_build_id[work.source.build_id]
        export_manifest(self.settings, self.ledger)
        show(self.settings, self.ledger, self.engine, sharing)

    def _commit(self, work: Work) -> None:
        """Make what was written a version of its table, once."""
        if self._has_left:
            raise BuildError(f"the run that builds `{work.source.name}` has ended")
        staged = work.staged
        written = Written(staged.rows, staged.bytes) if staged else Written(0, 0)
        work.build = replace(work.build, written=written)
        if work.snapshot is None and work.measured is not None:
            version, size = 0, 0
            if work.staged is not None:
                pinned = self.ledger.find_pinned_version(work.table)
                continued, base = work.continued, work.step.goes_on_from
                size = continued.bytes if continued else work.staged.bytes
                version = commit(
                    work.staged,
                    build_id=work.source.build_id,
                    pinned=pinned,
                    base=base.version if continued and base else None,
                    kept=continued.kept if continued else (),
                )
            work.snapshot = Snapshot(
                build_uid=work.build.build_uid,
                source_id=work.source.source_id,
                build_id=work.source.build_id,
                table=work.table,
                version=version,
                as_of=drawn(work.step.as_of, work.source, work.build.build_uid),
                content=work.measured.content,
                rows=work.measured.rows,
                bytes=size,
                built_at=self.clock(),
                columns=work.columns,
                watermark=work.measured.watermark,
                inputs=work.inputs,
                current_at=work.current_at,
                view=work.view,
                parts=work.continued.parts if work.continued else (),
                time_column=self._time_column(work.source),
                partitions=work.step.partitions,
            )

    def write_frame(self, frame: DataFrame, root: str, name: str) -> tuple[Staged, int]:
        """Replace the content of a table that is no source's by rows; return its new version.

        Parameters
        ----------
        name
            Of what computes the rows, for messages.

        Raises
        ------
        PersistError
            It failed; the table is as it was.
        """
        uid = uuid.uuid4().hex
        with self.ledger.lease(f"table {root}", name), translated(f"computing {name}"):
            try:
                staged = self.engine.write_files(frame, root, uid)
                return staged, commit(staged, build_id="", pinned=None)
            except BaseException:
                self._discard_uncommitted(root, uid)
                raise


TEMPORARY = ".temporary"
"""The directory of a warehouse that holds tables of runs, by ledger and the names of leases."""


def temporary_lease(token: str) -> str:
    """Return the name of the lease that a run holds as long as it needs its temporary tables."""
    return f"temporary {token}"


def _check_fits(source: Source, base: Snapshot, columns: Iterable[Column]) -> None:
    """Refuse columns that are not those of the table that a source goes on from.

    Raises
    ------
    BuildError
        They differ.
    """
    why = mismatch(base.columns, columns)
    if why is not None:
        raise BuildError(
            f"`{source.name}` cannot go on from {base.table}: {why}",
            hint="compute all of it: --full-refresh, or take out on_change=continue",
            location=source.location,
        )


def _check_partitions(source: Source) -> None:
    """Refuse columns of partitions that have types of which no partitions are.

    Raises
    ------
    BuildError
        One has.
    """
    partition = source.annotation.partition
    for dimension in partition.dimensions if partition else ():
        kind = column_type(source.columns, dimension.column)
        if kind is not None and (wanted := misfit(dimension, kind)):
            raise BuildError(
                f"`{dimension.column}` of `{source.name}` is {kind}: its partitions want {wanted}",
                location=source.location,
            )


def _asks_the_clock(check: Check) -> bool:
    """Whether a check may have another answer later, on the same rows."""
    words = re.findall(r"\w+", (check.expression or "").lower())
    return not CLOCK.union(SPECIAL_DATETIMES).isdisjoint(words)


def _passed(checks: Iterable[Check]) -> tuple[CheckResult, ...]:
    return tuple(CheckResult(c.name, True, c.blocking, 0, c.definition) for c in checks)
