"""Builds of wants: checking wants, evaluating what can be built now, and building it.

    wants ─► evaluate (`wants.py`) ─► one build request ─► all of it parked ─► one publication

The process that runs a request holds its lease, so that others notice when it dies.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from persist_assets.building.publishing import export
from persist_assets.building.scheduler import Pool
from persist_assets.core.errors import (
    ConflictError,
    LedgerError,
    MissingUpstream,
    NotFoundError,
    PersistError,
    SettingsError,
    did_you_mean,
)
from persist_assets.core.partitions import filled_keys, is_key, window_end, with_rows_of
from persist_assets.core.tracing import spanned
from persist_assets.core.wants import (
    LONGEST_ID,
    UNDER_WAY,
    Evaluation,
    Want,
    blame,
    evaluate,
    is_scheduled,
    ref_of,
    split_graph,
    warn_unknown_graphs,
)
from persist_assets.ledger.taints import Taint
from persist_assets.planning.inputs import CONTENT, rows_version
from persist_assets.planning.promotion import is_due, is_read
from persist_assets.planning.reach import reached_by, with_needed
from persist_assets.planning.takeovers import with_takeovers
from persist_assets.planning.world import is_history, older_code

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from persist_assets.building.builder import Builder
    from persist_assets.building.observe import Observer
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.wants import PartitionRef, Request
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)

_AHEAD = timedelta(days=3660)
"""Partitions that begin within this time can be wanted already."""
_PATIENCE = timedelta(hours=6)
"""The maximum time from a request to the start of its run."""
_SOON = timedelta(minutes=2)
"""The usual time until a run starts a request; Dagster takes half a minute."""
TAKERS = (
    "run `persist serve --build`, turn on the sensor `persist_wants` and Dagster's daemon, "
    "or run `persist evaluate --build`"
)
"""The ways to have build requests built."""
_LATE_AT_ONCE = 5_000
"""The maximum number of missed deadlines that are recorded together."""
LONGEST_S = 100 * 366 * 86_400
"""The longest duration of a want, in seconds."""
YEARS = (1900, 2999)
"""The first and the last year that a time may be in."""
_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Place:
    """The source, and the partition of it, that a reference names."""

    source: Source
    key: str | None


def resolve(observer: Observer, ref: PartitionRef) -> Place:
    """Return the persisted source or the partition, present or future, that a reference names.

    Raises
    ------
    NotFoundError
        There is no such source or partition.
    """
    project = observer.project
    named = project.find_named(ref)
    if named is not None:
        return Place(named[0], _key(observer, *named, ref))
    names = [name for s in project.persisted for name in (s.key, s.name)]
    hint = did_you_mean(ref, names) or did_you_mean(ref.rpartition("/")[0], names)
    raise NotFoundError(f"`{ref}` does not name a persisted source", hint=hint)


def _key(observer: Observer, source: Source, key: str, ref: PartitionRef) -> str | None:
    partition = source.annotation.partition
    if partition is None:
        if key:
            raise NotFoundError(
                f"`{source.name}` has no partitions, but `{ref}` names one",
                hint=f"use {source.key}",
            )
        return None
    if not key:
        return None
    if not is_key(partition, key, observer.started_at + _AHEAD):
        keys = observer.keys()[source.source_id]
        hint = f"known partitions: {keys[0]} to {keys[-1]}" if keys else None
        raise NotFoundError(
            f"`{source.name}` has no partition `{key}`", hint=did_you_mean(key, keys) or hint
        )
    return key


@dataclass(frozen=True, slots=True)
class _Targets:
    """The sources and partitions to build for some references.

    Attributes
    ----------
    places
        The references that name something that exists by now, with their places.
    chosen
        The sources of these places, and all persisted sources upstream of them.
    partition_keys
        The wanted or needed partitions, by source; all partitions of a source that is left out.
    """

    places: Mapping[PartitionRef, Place]
    chosen: frozenset[SourceID]
    partition_keys: Mapping[SourceID, Collection[str]]


def _places(observer: Observer, refs: Iterable[PartitionRef]) -> dict[PartitionRef, Place]:
    """Return the places that references name, without those that cannot be built now.

    These do not exist any more, or their windows have not ended.
    """
    places: dict[PartitionRef, Place] = {}
    project, order = observer.project, observer.keys()
    keys = {source_id: frozenset(of) for source_id, of in order.items()}
    for ref in dict.fromkeys(refs):
        named = project.find_named(ref)
        if named is None:
            continue
        source, key = named
        if not key:
            places[ref] = Place(source, None)
        elif key in keys.get(source.source_id, ()):
            places[ref] = Place(source, key)
    return places


def _targets(observer: Observer, refs: Iterable[PartitionRef]) -> _Targets:
    return _targets_of(observer, _places(observer, refs))


def _targets_of(observer: Observer, places: Mapping[PartitionRef, Place]) -> _Targets:
    project, order = observer.project, observer.keys()
    requested: dict[SourceID, set[str]] = {}
    for place in places.values():
        source_id = place.source.source_id
        if source_id in order:
            built = order[source_id] if place.key is None else (place.key,)
            requested.setdefault(source_id, set()).update(built)
    sources = {p.source.source_id for p in places.values()}
    chosen = frozenset(sources | _above(project, sources))
    needed = with_needed(project, chosen, requested, order, observer.settings.timezone.key)
    return _Targets(places, chosen, needed)


def _above(project: Project, sources: Iterable[SourceID]) -> set[SourceID]:
    """Return all persisted sources upstream of some sources."""
    reached = project.reach(sources, lambda _: False)
    return {s.source_id for s in reached if s.persisted}


def plan_partitions(observer: Observer, refs: Iterable[PartitionRef]) -> Plan:
    """Return what a build of some partitions would do, with everything upstream of them.

    Partitions that cannot be built yet, or any more, are left out.
    """
    return _plan(observer, _targets(observer, refs))


def _plan(observer: Observer, targets: _Targets) -> Plan:
    return observer.plan(targets.chosen, partition_keys=targets.partition_keys)


def _find_current(observer: Observer, places: Mapping[PartitionRef, Place]) -> set[PartitionRef]:
    """Return the partitions, of those that can be built, that a build would not change."""
    targets = _targets_of(observer, places)
    steps = {step.source_id: step for step in _plan(observer, targets).steps}
    manifest = observer.published()
    current: set[PartitionRef] = set()
    for ref, place in targets.places.items():
        step = steps[place.source.source_id]
        to_build = is_due(step, manifest)
        if step.action == "build" and place.key is not None and step.keys is not None:
            has_base = step.base is None or is_read(step.build_id, step.base, manifest)
            to_build = place.key in step.keys or not has_base
        if not to_build:
            current.add(ref)
    return current


@spanned("evaluate")
def evaluate_now(
    observer: Observer, trigger: str, *, force: bool = False
) -> tuple[Evaluation, Request | None]:
    """Evaluate the wants of an environment, and record the result.

    Parameters
    ----------
    trigger
        The cause of the evaluation: ``want``, ``upstream``, ``manual`` or ``clock``. An evaluation
        by the clock is recorded only if it changes something.
    force
        Ignore pauses after failures.

    Returns
    -------
    evaluation, request
        The decisions, and the build request that was made, if any.
    """
    ledger, environment = observer.ledger, observer.settings.environment
    now = observer.clock()
    record_dead(ledger, environment, now)
    record_late(observer)
    since = ledger.events.position()
    open_requests = {request_id for request_id, *_ in ledger.requests.fetch_open(environment)}
    wants = [
        want
        for want in ledger.wants.fetch_active(environment, now)
        if want.state not in UNDER_WAY or want.request_id in open_requests
    ]
    # Data is written before it is announced, so a plan that is made later knows it.
    needed = {d for want in wants for d in want.external_dependencies}
    available = find_available(observer, needed)
    refs = {want.partition_ref for want in wants if want.state not in UNDER_WAY}
    places = _places(observer, refs)
    current = _find_current(observer, places) if refs else set[str]()
    evaluation = evaluate(
        wants,
        now,
        current=current,
        available=available,
        unbuildable=refs - places.keys(),
        force=force,
    )
    has_news = evaluation.satisfied or evaluation.expired or evaluation.partitions
    request = None
    if has_news or trigger != "clock":
        environments = observer.settings.environments
        request = ledger.requests.record_evaluation(
            environment, trigger, evaluation, since=since, environments=environments
        )
    return evaluation, request


def digest_refs(refs: Iterable[PartitionRef]) -> str:
    """Return a text that differs between different sets of partitions."""
    return hashlib.sha256(repr(sorted({*refs})).encode()).hexdigest()


def taint(
    observer: Observer,
    ref: PartitionRef,
    *,
    by: str,
    dry_run: bool = False,
    expected: str | None = None,
) -> list[PartitionRef]:
    """Record that the rows of a partition must not be used, nor those computed from them.

    Until they are rebuilt, readers compute these rows instead.

    Parameters
    ----------
    dry_run
        Record nothing.
    expected
        The digest of the partitions, as far as the user knows them (`digest_refs`); None: any.

    Returns
    -------
    refs
        All tainted partitions, the given one first; empty if none of it was built.

    Raises
    ------
    NotFoundError
        The reference names nothing.
    SettingsError
        It names a history, which cannot be recomputed.
    ConflictError
        Other partitions than the expected ones would be tainted. Nothing was recorded.
    """
    project, order = observer.project, observer.keys()
    place = resolve(observer, ref)
    if place.source.keeps_history:
        raise SettingsError(
            f"`{place.source.name}` keeps a history, which cannot be recomputed",
            hint=f"start it over: persist build {place.source.key} --full-refresh",
        )
    tainted = _reached(observer, place, order)
    full = ref_of(place.source.key, place.key)

    def decide(manifest: Mapping[BuildID, Snapshot], snapshots: Collection[Snapshot]) -> Taint:
        refs: dict[PartitionRef, BuildID] = {}
        marks: dict[str, set[str]] = {}
        manifest = with_takeovers(project, manifest)  # the next build takes these over
        for source_id, keys in tainted.items():
            source = project.by_id[source_id]
            snapshot = manifest.get(source.build_id)
            if snapshot is None:
                continue
            parts, partitions = order.get(source_id), snapshot.partitions
            if parts is None:
                built_keys = [None]
            else:
                filled = filled_keys(parts, partitions.filled) if partitions else {*parts}
                built_keys = [key for key in keys if key in filled]
            refs |= {ref_of(source.key, key): source.build_id for key in built_keys}
            if parts is None or (partitions is None and built_keys):  # rows' partitions are unknown
                shared = dict.fromkeys(_sharing_rows(snapshot, snapshots), ("",))
            else:
                same = of_one_table(snapshot, snapshots)
                shared = with_rows_of(snapshot, [k for k in built_keys if k], same, parts)
            for uid, marked in shared.items():
                marks.setdefault(uid, set()).update(marked)
        if place.key is not None or place.source.source_id not in order:
            refs = {full: place.source.build_id} | refs
        if expected is not None and digest_refs(refs) != expected:
            raise ConflictError(
                f"other partitions are computed from {full} by now", hint="preview the taint again"
            )
        present = {s.build_uid for b, s in manifest.items() if b in project.by_build_id}
        return Taint(refs, _with_readers(marks, snapshots, present))

    taints, environments = observer.ledger.taints, observer.settings.environments
    if dry_run:
        return [*taints.preview(environments, decide).refs]
    taint = taints.record(environments, decide, by=by)
    export(observer.settings, observer.ledger)
    return [*taint.refs]


def _reached(
    observer: Observer, place: Place, order: Mapping[SourceID, tuple[str, ...]]
) -> dict[SourceID, Collection[str]]:
    """Return the partitions whose rows are computed from those of a place, by source."""
    project, zone = observer.project, observer.settings.timezone.key
    all_keys = order.get(place.source.source_id, ())
    tainted: dict[SourceID, Collection[str]] = {
        sharing.source_id: all_keys if place.key is None else (place.key,)
        for sharing in project.by_build_id[place.source.build_id]
    }
    for reader in project.persisted:
        if reader.source_id in tainted:
            continue
        reached: set[str] = set()
        read = project.reach(reader.bindings, lambda s: s.persisted)
        tainted_upstreams = [s for s in read if s.source_id in tainted]
        if tainted_upstreams and reader.keeps_history:
            log.warning(
                "`%s` keeps a history: its existing versions stay",
                reader.name,
                extra={"action": "taint"},
            )
            continue
        for upstream in tainted_upstreams:
            keys = tainted[upstream.source_id]
            reached |= {*reached_by(project, reader, upstream, keys, order, zone)}
        if tainted_upstreams:
            tainted[reader.source_id] = [k for k in order.get(reader.source_id, ()) if k in reached]
    return tainted


def of_one_table(snapshot: Snapshot, snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Return the snapshots with the BuildID of a snapshot, or with one that it had before.

    After an upgrade, the ledger knows a snapshot that was taken over under several BuildIDs.
    """
    snapshots = [*snapshots]
    uids = {s.build_uid for s in snapshots if s.build_id == snapshot.build_id}
    uids.add(snapshot.build_uid)
    build_ids = {s.build_id for s in snapshots if s.build_uid in uids}
    return [s for s in snapshots if s.build_id in build_ids]


def _sharing_rows(snapshot: Snapshot, snapshots: Iterable[Snapshot]) -> Iterator[str]:
    """Yield the snapshots that may share rows with a snapshot, which may have rows of several."""
    writers = _writers(snapshot)
    yield snapshot.build_uid
    yield from (s.build_uid for s in snapshots if not writers.isdisjoint(_writers(s)))


def _writers(snapshot: Snapshot) -> set[str]:
    """Return the builds that wrote rows of a snapshot."""
    return {snapshot.build_uid, *snapshot.parts, older_code(snapshot) or ""} - {""}


def _with_readers(
    marks: Mapping[str, Collection[str]], snapshots: Collection[Snapshot], present: Collection[str]
) -> Mapping[str, Collection[str]]:
    """Return marks, and marks of all snapshots that were computed from marked ones.

    Parameters
    ----------
    snapshots
        All snapshots of the ledger.
    present
        The builds whose marks are final.
    """
    readers: dict[tuple[str, str], list[Snapshot]] = {}
    for snapshot in snapshots:
        groups = snapshot.partitions.filled if snapshot.partitions else ()
        for version in {*snapshot.inputs, *(v for group in groups for v in group.inputs)}:
            readers.setdefault((version.raw, rows_version(version.version)), []).append(snapshot)
        for leaf in snapshot.view.leaves if snapshot.view else ():
            readers.setdefault(("", leaf.build_uid or ""), []).append(snapshot)
    all_marks = dict(marks)
    todo = [s for s in snapshots if s.build_uid in all_marks]
    while todo:
        this = todo.pop()
        rows = (this.build_id, CONTENT + this.content), ("", this.build_uid)
        for reader in (r for place in rows for r in readers.get(place, ())):
            # A history cannot be recomputed.
            is_marked = reader.build_uid in present or reader.build_uid in all_marks
            if not is_marked and not is_history(reader):
                all_marks[reader.build_uid] = ("",)
                todo.append(reader)
    return all_marks


def _not_yet(observer: Observer, refs: Iterable[PartitionRef]) -> set[PartitionRef]:
    """Return the partitions that cannot be built: they have not ended, or are gone."""
    return {*refs} - _places(observer, refs).keys()


def next_due(observer: Observer) -> datetime | None:
    """Return when the passing of time may change the next evaluation.

    Then a want becomes late or expires, a pause ends, or the window of a partition does.
    """
    now, dues = observer.clock(), set[datetime]()
    wants = observer.ledger.wants.fetch_active(observer.settings.environment)
    for want in wants:
        dues |= {d for d in (want.retry_at, want.expires_at, want.deadline) if d is not None}
    for ref in _not_yet(observer, {want.partition_ref for want in wants}):
        with suppress(NotFoundError):
            place = resolve(observer, ref)
            partition = place.source.annotation.partition
            if place.key is not None and partition is not None:
                dues.add(window_end(partition, place.key))
    return min((due for due in dues if due > now), default=None)


def check_want(observer: Observer, want: Want) -> tuple[Want, list[str]]:
    """Return a want with its full reference, and warnings about it.

    Raises
    ------
    NotFoundError
        Its reference names nothing.
    SettingsError
        A text, a time or a duration is invalid, or a dependency names no graph.
    """
    _check_texts(want)
    if is_scheduled(want.want_id):
        raise SettingsError(
            f"`{want.want_id}` is reserved for wants of annotations", hint="use an ID without `:`"
        )
    place = resolve(observer, want.partition_ref)
    warnings: list[str] = []
    for name, seconds in (("ttl", want.ttl_s), ("sla", want.sla_s)):
        if seconds is not None and not 0 <= seconds <= LONGEST_S:
            raise SettingsError(
                f"{name}: {seconds} seconds is out of range",
                hint="use at most a hundred years",
            )
    at = want.data_timestamp
    if at is not None and not YEARS[0] <= at.year <= YEARS[1]:
        raise SettingsError(
            f"{at.isoformat()} is out of range",
            hint=f"use a year from {YEARS[0]} to {YEARS[1]}",
        )
    times = want.deadline, want.expires_at
    if times[0] and times[1] and times[1] < times[0]:
        warnings.append("it expires (ttl) before it is late (sla)")
    for needed in want.external_dependencies:
        if not split_graph(needed)[0]:
            raise SettingsError(
                f"`{needed}` does not name a graph", hint="for example, users:data/users/2024-01-01"
            )
    warnings += warn_unknown(observer.settings, want.external_dependencies)
    return replace(want, partition_ref=ref_of(place.source.key, place.key)), warnings


def warn_unknown(settings: Settings, refs: Iterable[PartitionRef]) -> list[str]:
    """Return a warning for each graph of references that the settings do not declare."""
    names = [upstream.name for upstream in settings.upstreams]
    return [f"{message}; {hint}" for message, hint in warn_unknown_graphs(names, refs)]


def _check_texts(want: Want) -> None:
    """Refuse texts that a database would refuse or change."""
    for name, text, longest in (
        ("the reference", want.partition_ref, _LONGEST_TEXT),
        ("the ID", want.want_id, LONGEST_ID),
        ("the comment", want.comment or "", _LONGEST_TEXT),
        *(("a dependency", needed, _LONGEST_TEXT) for needed in want.external_dependencies),
    ):
        if len(text) > longest:
            raise SettingsError(f"{name} has more than {longest:,} characters")
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise SettingsError(f"{name} has invalid characters", hint="use UTF-8")


def find_available(observer: Observer, refs: Collection[PartitionRef]) -> set[PartitionRef]:
    """Return the available partitions among references to this and other graphs."""
    environment, available = observer.settings.environment, set[str]()
    by_graph: dict[str, dict[str, PartitionRef]] = {}
    for ref in refs:
        graph, name = split_graph(ref)
        by_graph.setdefault(graph, {})[name] = ref
    for graph, names in by_graph.items():
        present = observer.ledger.partitions.fetch_available(environment, graph, refs=[*names])
        available.update(names[name] for name in present)
    return available


def record_dead(ledger: Ledger, environment: str, now: datetime) -> None:
    """Mark requests as failed whose run ended without a reason or never started."""
    for request_id, state, at in ledger.requests.fetch_open(environment):
        if state == "started" and not ledger.leases.is_held(_lease(request_id)):
            ledger.requests.fail(request_id, "its run ended, and no reason was recorded")
        elif state == "requested" and now - at > _PATIENCE:
            ledger.requests.fail(request_id, "no process started it")


def find_untaken(ledger: Ledger, environment: str, now: datetime) -> str | None:
    """Return a message if no process takes build requests; None if one does, or may."""
    requests = ledger.requests.fetch_open(environment)
    if any(state == "started" and ledger.leases.is_held(_lease(i)) for i, state, _ in requests):
        return None  # the others may wait for its end
    waiting = [at for _, state, at in requests if state == "requested"]
    if not waiting or now - waiting[0] < _SOON:
        return None
    n = len(waiting)
    oldest = waiting[0].strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"no process takes build requests: {n} wait{'s' * (n == 1)}"
        f"{', the oldest' * (n > 1)} since {oldest}"
    )


def record_late(observer: Observer) -> int:
    """Record the wants that missed their deadlines, and the causes; return their number."""
    n, now = 0, observer.clock()
    environment = observer.settings.environment
    while late := observer.ledger.wants.fetch_late(environment, now, limit=_LATE_AT_ONCE):
        recorded = _record_late(observer, late)
        n += recorded
        if len(late) < _LATE_AT_ONCE or not recorded:
            break
    return n


def _record_late(observer: Observer, late: Sequence[Want]) -> int:
    """Record which wants missed their deadlines, and the causes; return their number."""
    ledger, environment = observer.ledger, observer.settings.environment
    available = find_available(observer, {d for want in late for d in want.external_dependencies})
    graphs = {split_graph(d)[0] for want in late for d in want.external_dependencies} - {""}
    problems = {graph: ledger.upstreams.find_problem(environment, graph) for graph in graphs}
    running = {b.source_id for b, *_ in ledger.builds.fetch_under_way()}
    names = [s.key for s in observer.project.persisted if s.source_id in running]
    requests = {i: ledger.requests.find(i) for i in {want.request_id for want in late} if i}
    late_wants = [
        (
            want,
            blame(
                want,
                requests.get(want.request_id or ""),
                missing=[(d, None) for d in want.external_dependencies if d not in available],
                problems=problems,
                running=next(iter(names), None),
            ),
        )
        for want in late
    ]
    return ledger.wants.record_misses(late_wants)


def _lease(request_id: str) -> str:
    return f"request {request_id}"


def run_request(
    builder: Builder,
    request: Request,
    *,
    run_id: str | None = None,
    tell: Callable[[Sequence[PendingBuild]], None] | None = None,
    on_failure: Callable[[Source, PersistError], None] | None = None,
) -> bool:
    """Build the partitions of a request; all of them become visible, or none.

    Parameters
    ----------
    builder
        Made for this request.
    tell
        Called with the builds that became visible.
    on_failure
        Called with the source that could not be built, and the reason.

    Returns
    -------
    succeeded
        If False, the failure is recorded in the request and in its wants.

    Raises
    ------
    ConflictError
        Another process runs it, or it has ended.
    """
    ledger, request_id = builder.ledger, request.request_id
    holder = f"{run_id or 'a request'}, process {os.getpid()}"
    with ledger.leases.hold(_lease(request_id), holder, wait_s=0):
        ledger.requests.start(request_id, run_id)
        targets = _targets(builder.observer, request.partitions)
        pool: Pool | None = None
        building: Source | None = None
        try:
            ledger.requests.check_upstreams(request_id)
            lost = [ref for ref in request.partitions if ref not in targets.places]
            if lost:
                raise NotFoundError(f"{', '.join(lost)}: no longer a partition")
            sources = [s for s in builder.project.persisted if s.source_id in targets.chosen]
            pool = Pool(builder, sources, partition_keys=targets.partition_keys)
            for building in sources:
                pool.park(building)
            building = None
            published = builder.publish_parked(request)
        except BaseException as error:
            log.info("action=request request=%s error=%s", request_id, error)
            if pool is not None:
                pool.close()
            _record_failure(builder, request, targets, building, error)
            if not isinstance(error, PersistError):
                raise
            if on_failure is not None and building is not None:
                on_failure(building, error)
            return False
        finally:
            builder.close()
        pool.close()
    if tell is not None:
        tell(published)
    return True


def _record_failure(
    builder: Builder,
    request: Request,
    targets: _Targets,
    building: Source | None,
    error: BaseException,
) -> None:
    """Record that a request failed, the partitions that caused it, and what they wait for."""
    culprits = [ref for ref in request.partitions if ref not in targets.places]
    blameless = isinstance(error, ConflictError | LedgerError) or not isinstance(error, Exception)
    if building is not None and not blameless:
        for ref, place in targets.places.items():
            source_id = place.source.source_id
            if building.source_id in {source_id, *_above(builder.project, [source_id])}:
                culprits.append(ref)
    waits_for = error.refs if isinstance(error, MissingUpstream) else ()
    children = [
        Want(
            uuid.uuid4().hex,
            ref,
            request.environment,
            builder.clock(),
            source={"type": "api", "build_request_id": request.request_id},
            parent=next(iter(request.want_ids), None),
        )
        for ref in waits_for
        if not split_graph(ref)[0]
    ]
    if find_available(builder.observer, {*waits_for}).issuperset(waits_for):
        waits_for = ()  # otherwise the wants would be requested again at once, without a pause
    name = f"`{building.key}`: " if building is not None else ""
    text = str(error) if isinstance(error, Exception) else "interrupted"
    message = f"{name}{text or type(error).__name__}"
    builder.ledger.requests.fail(
        request.request_id, message, culprits, waits_for=waits_for, children=children
    )
