"""Wants made into builds: what is asked for, what can be built of it now, and building it.

    wants ─► evaluate (`wants.py`) ─► one build request ─► all of it parked ─► one publication

Whoever runs a request holds its lease, so that others see when it died.
"""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from persist_assets.building.explain import stages_of
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
from persist_assets.core.wants import (
    UNDER_WAY,
    Evaluation,
    Want,
    blame,
    evaluate,
    ref_of,
    request_document,
    split_graph,
    want_document,
    warn_unknown_graphs,
)
from persist_assets.ledger.manifest_file import export_manifest
from persist_assets.ledger.taints import Taint
from persist_assets.planning.inputs import CONTENT
from persist_assets.planning.reach import reached_by, with_needed
from persist_assets.planning.world import is_history, older_code

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from persist_assets.building.builder import Builder
    from persist_assets.building.observe import Observer
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.wants import PartitionRef, Request
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)

_AHEAD = timedelta(days=3660)
"""Partitions that begin so long from now can be wanted already."""
_PATIENCE = timedelta(hours=6)
"""So long a request waits for a run to begin."""
_SOON = timedelta(minutes=2)
"""So long it may take until a run begins a request; Dagster's take half a minute."""
TAKERS = (
    "run `persist serve --build`, turn on the sensor `persist_wants` and Dagster's daemon, "
    "or run `persist evaluate --build`"
)
"""What takes build requests."""
_LATE_AT_ONCE = 5_000
"""So many missed deadlines are looked at together."""
LONGEST_S = 100 * 366 * 86_400
"""The longest duration of a want, in seconds."""
YEARS = (1900, 2999)
"""Between these all times are that are given."""
_LONGEST_TEXT, _LONGEST_ID = 2_000, 255


@dataclass(frozen=True, slots=True)
class Place:
    """The source, and the partition of it, that a reference names."""

    source: Source
    key: str | None


def resolve(observer: Observer, ref: PartitionRef) -> Place:
    """Return what a reference names: a persisted source, or a partition there is or will be.

    Raises
    ------
    NotFoundError
        There is no such source or partition.
    """
    project = observer.project
    named = project.find_named(ref)
    if named is not None:
        return Place(named[0], _key(observer, *named, ref))
    known = [name for s in project.persisted for name in (s.key, s.name)]
    found = did_you_mean(ref, known) or did_you_mean(ref.rpartition("/")[0], known)
    raise NotFoundError(f"`{ref}` does not name a persisted source", hint=found)


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
        there = observer.keys()[source.source_id]
        some = f"known partitions: {there[0]} to {there[-1]}" if there else None
        raise NotFoundError(
            f"`{source.name}` has no partition `{key}`", hint=did_you_mean(key, there) or some
        )
    return key


@dataclass(frozen=True, slots=True)
class _Asked:
    """Sources and partitions by what names them.

    Attributes
    ----------
    places
        What references name, of those that name something that there is by now.
    chosen
        Their sources, and all persisted ones that these follow from.
    asked
        The partitions of these that are wanted or needed, of those of which not all are.
    """

    places: Mapping[PartitionRef, Place]
    chosen: frozenset[SourceID]
    asked: Mapping[SourceID, Collection[str]]


def _places(observer: Observer, refs: Iterable[PartitionRef]) -> dict[PartitionRef, Place]:
    """Return what references name, of those that name something that can be built by now."""
    found: dict[PartitionRef, Place] = {}
    for ref in dict.fromkeys(refs):
        try:
            place = resolve(observer, ref)
        except NotFoundError:
            continue  # it was there when it was wanted
        partition = place.source.annotation.partition
        if (
            place.key is not None
            and partition is not None
            and not is_key(partition, place.key, observer.started_at)
        ):
            continue  # its window has not ended
        found[ref] = place
    return found


def _asked(observer: Observer, refs: Iterable[PartitionRef]) -> _Asked:
    project, order = observer.project, observer.keys()
    places = _places(observer, refs)
    wanted: dict[SourceID, set[str]] = {}
    for place in places.values():
        source_id = place.source.source_id
        if source_id in order:
            all_there_are = order[source_id] if place.key is None else (place.key,)
            wanted.setdefault(source_id, set()).update(all_there_are)
    sources = {p.source.source_id for p in places.values()}
    chosen = frozenset(sources | _above(project, sources))
    asked = with_needed(project, chosen, wanted, order, observer.settings.timezone.key)
    return _Asked(places, chosen, asked)


def _above(project: Project, sources: Iterable[SourceID]) -> set[SourceID]:
    """Return the persisted sources that some follow from, however far up."""
    reached = project.reach(sources, lambda _: False)
    return {s.source_id for s in reached if s.persisted}


def find_current(observer: Observer, refs: Iterable[PartitionRef]) -> set[PartitionRef]:
    """Return which partitions are there as they would be built now, of those that can be built."""
    told = _asked(observer, refs)
    planned = observer.plan(told.chosen, partition_keys=told.asked)
    steps = {step.source_id: step for step in planned.steps}
    found: set[PartitionRef] = set()
    for ref, place in told.places.items():
        step = steps[place.source.source_id]
        to_build = step.action == "build"
        if to_build and place.key is not None and step.keys is not None:
            to_build = place.key in step.keys
        if not to_build:
            found.add(ref)
    return found


def evaluate_now(
    observer: Observer, trigger: str, *, force: bool = False
) -> tuple[Evaluation, Request | None]:
    """Decide what is to be done about the wants of an environment, and record it.

    Parameters
    ----------
    trigger
        Why it is decided now: ``want``, ``upstream``, ``manual`` or ``clock``. What the clock
        triggers is recorded only if something comes of it.
    force
        Pauses after failures are over.

    Returns
    -------
    evaluation, request
        What was decided, and the build request that was made, if any.
    """
    ledger, environment = observer.ledger, observer.settings.environment
    now = observer.clock()
    record_dead(ledger, environment, now)
    record_late(observer)
    open_requests = {request_id for request_id, *_ in ledger.fetch_open_requests(environment)}
    wants = [
        want
        for want in ledger.fetch_active(environment)
        if want.state not in UNDER_WAY or want.request_id in open_requests
    ]
    refs = {want.partition_ref for want in wants if want.state not in UNDER_WAY}
    current = find_current(observer, refs) if refs else set[str]()
    needed = {d for want in wants for d in want.external_dependencies}
    found = evaluate(
        wants,
        now,
        current=current,
        available=find_available(observer, needed),
        unbuildable=_not_yet(observer, refs),
        force=force,
    )
    told = found.satisfied or found.expired or found.partitions
    request = None
    if told or trigger != "clock":
        request = ledger.record_evaluation(environment, trigger, found)
    return found, request


def taint(observer: Observer, ref: PartitionRef, *, by: str) -> list[PartitionRef]:
    """Record that what there is of a partition shall not be used, nor what was computed from it.

    Until they are built again their rows are computed for whoever reads them.

    Returns
    -------
    refs
        All that is tainted by it, itself first; nothing where nothing of it is there.

    Raises
    ------
    NotFoundError
        The reference names nothing.
    SettingsError
        It names a history, of which nobody could compute what it was.
    """
    project, order = observer.project, observer.keys()
    place = resolve(observer, ref)
    if place.source.keeps_history:
        raise SettingsError(
            f"`{place.source.name}` keeps a history, which cannot be recomputed",
            hint=f"start it over: persist build {place.source.key} --full-refresh",
        )
    own = order.get(place.source.source_id, ())
    spoilt: dict[SourceID, Collection[str]] = {
        sharing.source_id: own if place.key is None else (place.key,)
        for sharing in project.by_build_id[place.source.build_id]
    }
    for reader in project.persisted:
        if reader.source_id in spoilt:
            continue
        reached: set[str] = set()
        read = project.reach(reader.bindings, lambda s: s.persisted)
        above = [s for s in read if s.source_id in spoilt]
        if above and reader.keeps_history:
            log.warning("`%s` keeps a history: its existing versions stay", reader.name)
            continue
        for upstream in above:
            keys, zone = spoilt[upstream.source_id], observer.settings.timezone.key
            reached |= {*reached_by(project, reader, upstream, keys, order, zone)}
        if above:
            spoilt[reader.source_id] = [k for k in order.get(reader.source_id, ()) if k in reached]
    full = ref_of(place.source.key, place.key)

    def decide(manifest: Mapping[BuildID, Snapshot], kept: Collection[Snapshot]) -> Taint:
        refs: dict[PartitionRef, BuildID] = {}
        marks: dict[str, set[str]] = {}
        for source_id, keys in spoilt.items():
            source = project.by_id[source_id]
            snapshot = manifest.get(source.build_id)
            if snapshot is None:
                continue
            parts, known = order.get(source_id), snapshot.partitions
            if parts is None:
                bad = [None]
            else:
                there = filled_keys(parts, known.filled) if known else {*parts}
                bad = [key for key in keys if key in there]
            refs |= {ref_of(source.key, key): source.build_id for key in bad}
            if parts is None or (known is None and bad):  # nobody knows which rows are of which
                shared = dict.fromkeys(_sharing_rows(snapshot, kept), ("",))
            else:
                same = [s for s in kept if s.build_id == source.build_id]
                shared = with_rows_of(snapshot, [k for k in bad if k], same, parts)
            for uid, some in shared.items():
                marks.setdefault(uid, set()).update(some)
        if place.key is not None or place.source.source_id not in order:
            refs = {full: place.source.build_id} | refs
        present = {s.build_uid for b, s in manifest.items() if b in project.by_build_id}
        return Taint(refs, _with_readers(marks, kept, present))

    taint = observer.ledger.taint(observer.settings.environments, decide, by=by)
    export_manifest(observer.settings, observer.ledger)
    return [*taint.refs]


def _sharing_rows(snapshot: Snapshot, kept: Iterable[Snapshot]) -> Iterator[str]:
    """Yield the snapshots that may have rows of another one, which itself has them of several."""
    own = _writers(snapshot)
    yield snapshot.build_uid
    yield from (s.build_uid for s in kept if not own.isdisjoint(_writers(s)))


def _writers(snapshot: Snapshot) -> set[str]:
    """Return the builds that wrote rows of a snapshot."""
    return {snapshot.build_uid, *snapshot.parts, older_code(snapshot) or ""} - {""}


def _with_readers(
    marks: Mapping[str, Collection[str]], kept: Collection[Snapshot], present: Collection[str]
) -> Mapping[str, Collection[str]]:
    """Return marks with those of all other snapshots that were computed from marked ones.

    Parameters
    ----------
    kept
        All snapshots there are.
    present
        Those of which it is known what of them is to be marked.
    """
    readers: dict[tuple[str, str], list[Snapshot]] = {}
    for snapshot in kept:
        groups = snapshot.partitions.filled if snapshot.partitions else ()
        for version in {*snapshot.inputs, *(v for group in groups for v in group.inputs)}:
            readers.setdefault((version.raw, version.version), []).append(snapshot)
        for leaf in snapshot.view.leaves if snapshot.view else ():
            readers.setdefault(("", leaf.build_uid or ""), []).append(snapshot)
    found = dict(marks)
    todo = [s for s in kept if s.build_uid in found]
    while todo:
        this = todo.pop()
        rows = (this.build_id, CONTENT + this.content), ("", this.build_uid)
        for reader in (r for place in rows for r in readers.get(place, ())):
            # Nobody could compute a history again.
            known = reader.build_uid in present or reader.build_uid in found
            if not known and not is_history(reader):
                found[reader.build_uid] = ("",)
                todo.append(reader)
    return found


def _not_yet(observer: Observer, refs: Iterable[PartitionRef]) -> set[PartitionRef]:
    """Return the partitions that cannot be built: their windows go on, or they are gone."""
    return {*refs} - _places(observer, refs).keys()


def next_due(observer: Observer) -> datetime | None:
    """Return when time alone may change what is to be done about the wants, after an evaluation.

    Then one is late or given up, a pause ends, or the window of a partition does.
    """
    now, dues = observer.clock(), set[datetime]()
    wants = observer.ledger.fetch_active(observer.settings.environment)
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
    """Return a want whose reference is spelled in full, and what is odd about it.

    Raises
    ------
    NotFoundError
        It names nothing.
    SettingsError
        A text, a time or a duration cannot be, or what it needs is of no graph.
    """
    _check_texts(want)
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
    known = [upstream.name for upstream in settings.upstreams]
    return [f"{message}; {hint}" for message, hint in warn_unknown_graphs(known, refs)]


def _check_texts(want: Want) -> None:
    """Refuse what a database would not keep, or not as it is."""
    for name, text, longest in (
        ("the reference", want.partition_ref, _LONGEST_TEXT),
        ("the ID", want.want_id, _LONGEST_ID),
        ("the comment", want.comment or "", _LONGEST_TEXT),
        *(("a dependency", needed, _LONGEST_TEXT) for needed in want.external_dependencies),
    ):
        if len(text) > longest:
            raise SettingsError(f"{name} has more than {longest:,} characters")
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise SettingsError(f"{name} has invalid characters", hint="use UTF-8")


def explained(observer: Observer, ref: PartitionRef) -> dict[str, Any]:
    """Return the chain from a partition to its wants, request, run, build, inputs and code.

    Its `stages` are those of a build that would start now.

    Raises
    ------
    NotFoundError
        The reference names nothing.
    """
    place, ledger = resolve(observer, ref), observer.ledger
    source, environment = place.source, observer.settings.environment
    full = ref_of(source.key, place.key)
    wants = ledger.fetch_wants(environment, refs=[full], limit=5)
    build_uid = ledger.find_available_build(environment, full)
    builds = ledger.fetch_builds(build_uid=build_uid) if build_uid else []
    build = next(iter(builds), None)
    names = {s.build_id: s.name for s in observer.project.sources}
    requests = [r for w in wants if w.request_id and (r := ledger.find_request(w.request_id))]
    location = source.location
    return {
        "partition_ref": full,
        "available": build is not None,
        "wants": [want_document(want) for want in wants],
        "request": request_document(requests[-1]) if requests else None,
        "build": None
        if build is None
        else {
            "build_uid": build.build_uid,
            "run_id": build.run_id,
            "state": build.state,
            "action": build.action,
            "started_at": build.started_at.isoformat(),
            "seconds": build.seconds,
            "rows": build.snapshot.rows if build.snapshot else None,
            "table": build.snapshot.table if build.snapshot else None,
            "version": build.snapshot.version if build.snapshot else None,
        },
        "inputs": [
            {"source": names.get(v.raw, v.raw), "version": v.version}
            for v in (build.snapshot.as_of if build and build.snapshot else ())
            if ":" not in v.raw  # else it tells of the build, not of data
        ],
        "code": {
            "source_id": source.source_id,
            "build_id": build.build_id if build else None,
            "is_current": build is not None and build.build_id == source.build_id,
            "path": location.path,
            "line": location.line,
        },
        "stages": [
            {"stage": s.name, "strategy": s.strategy, "description": s.description}
            for s in (stages_of(observer, source, place.key) if source.persisted else ())
        ],
    }


def find_available(observer: Observer, refs: Collection[PartitionRef]) -> set[PartitionRef]:
    """Return which of some partitions are available, of this graph's and of others'."""
    environment, found = observer.settings.environment, set[str]()
    by_graph: dict[str, dict[str, PartitionRef]] = {}
    for ref in refs:
        graph, name = split_graph(ref)
        by_graph.setdefault(graph, {})[name] = ref
    for graph, names in by_graph.items():
        there = observer.ledger.fetch_available(environment, graph, refs=[*names])
        found.update(names[name] for name in there)
    return found


def record_dead(ledger: Ledger, environment: str, now: datetime) -> None:
    """Record requests as failed whose run has ended without telling why, or has never begun."""
    for request_id, state, at in ledger.fetch_open_requests(environment):
        if state == "started" and not ledger.is_leased(_lease(request_id)):
            ledger.fail_request(request_id, "its run ended without a reason")
        elif state == "requested" and now - at > _PATIENCE:
            ledger.fail_request(request_id, "no process started it")


def find_untaken(ledger: Ledger, environment: str, now: datetime) -> str | None:
    """Return in words since when nothing takes build requests; None if something does, or may."""
    requests = ledger.fetch_open_requests(environment)
    if any(state == "started" and ledger.is_leased(_lease(i)) for i, state, _ in requests):
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
    """Record the wants that missed their deadlines, and whose fault that is; return how many."""
    n, now = 0, observer.clock()
    environment = observer.settings.environment
    while late := observer.ledger.fetch_late(environment, now, limit=_LATE_AT_ONCE):
        recorded = _record_late(observer, late)
        n += recorded
        if len(late) < _LATE_AT_ONCE or not recorded:
            break
    return n


def _record_late(observer: Observer, late: Sequence[Want]) -> int:
    """Record which wants missed their deadlines, and whose fault that is; return how many."""
    ledger, environment = observer.ledger, observer.settings.environment
    available = find_available(observer, {d for want in late for d in want.external_dependencies})
    graphs = {split_graph(d)[0] for want in late for d in want.external_dependencies} - {""}
    problems = {graph: ledger.find_upstream_problem(environment, graph) for graph in graphs}
    running = {b.source_id for b, *_ in ledger.fetch_under_way()}
    names = [s.key for s in observer.project.persisted if s.source_id in running]
    requests = {i: ledger.find_request(i) for i in {want.request_id for want in late} if i}
    told = [
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
    return ledger.record_misses(told)


def _lease(request_id: str) -> str:
    return f"request {request_id}"


def run_request(
    builder: Builder,
    request: Request,
    *,
    run_id: str | None = None,
    tell: Callable[[Sequence[PendingBuild]], None] | None = None,
) -> bool:
    """Build what a request asks for; all of it becomes visible, or nothing.

    Parameters
    ----------
    builder
        Made for this request.
    tell
        Is told what has become visible.

    Returns
    -------
    succeeded
        What failed is recorded, in the request and in its wants.

    Raises
    ------
    ConflictError
        Somebody else runs it, or it has ended.
    """
    ledger, request_id = builder.ledger, request.request_id
    holder = f"{run_id or 'a request'}, process {os.getpid()}"
    with ledger.lease(_lease(request_id), holder, wait_s=0):
        ledger.start_request(request_id, run_id)
        told = _asked(builder.observer, request.partitions)
        pool: Pool | None = None
        building: Source | None = None
        try:
            lost = [ref for ref in request.partitions if ref not in told.places]
            if lost:
                raise NotFoundError(f"{', '.join(lost)}: no longer a partition")
            sources = [s for s in builder.project.persisted if s.source_id in told.chosen]
            pool = Pool(builder, sources, partition_keys=told.asked)
            for building in sources:
                pool.park(building)
            building = None
            published = builder.publish_parked(request)
        except BaseException as error:
            log.info("action=request request=%s error=%s", request_id, error)
            if pool is not None:
                pool.close()
            _record_failure(builder, request, told, building, error)
            if isinstance(error, PersistError):
                return False
            raise
        finally:
            builder.close()
        pool.close()
    if tell is not None:
        tell(published)
    return True


def _record_failure(
    builder: Builder, request: Request, told: _Asked, building: Source | None, error: BaseException
) -> None:
    """Record that a request failed, by whose fault, and what that waits for."""
    culprits = [ref for ref in request.partitions if ref not in told.places]
    nobodys = isinstance(error, ConflictError | LedgerError) or not isinstance(error, Exception)
    if building is not None and not nobodys:
        for ref, place in told.places.items():
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
    name = f"`{building.key}`: " if building is not None else ""
    text = str(error) if isinstance(error, Exception) else "interrupted"
    message = f"{name}{text or type(error).__name__}"
    builder.ledger.fail_request(
        request.request_id, message, culprits, waits_for=waits_for, children=children
    )
