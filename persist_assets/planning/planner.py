"""What would be built, what reused, and why. Pure: everything known comes as an argument."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from persist_assets.core.errors import NotFoundError
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO, Fallback
from persist_assets.core.model.checks import in_units
from persist_assets.core.model.plans import Change, Estimate, Increment, Piece, Plan, Reason, Step
from persist_assets.core.model.snapshots import (
    AsOf,
    Build,
    Filled,
    Partitions,
    RawVersion,
    Snapshot,
    merge_as_of,
    mixed,
)
from persist_assets.core.partitions import (
    between,
    boxes,
    expand,
    filled_keys,
    reached,
    runs,
    side,
    split,
)
from persist_assets.core.partitions import in_words as keys_in_words
from persist_assets.core.time_values import overlaps_any, to_text
from persist_assets.planning.diff import (
    Difference,
    differ,
    in_words,
    line_of,
    what_changed_above,
)
from persist_assets.planning.increments import (
    grow,
    merged_spans,
    mismatch,
    parted_by,
    touched,
    trace_to_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span

CLOCK = "clock"
"""The name under which the clock stands in an as_of, for sources that read it."""
DRAW = "draw:"
"""What the names begin with under which draws stand in an as_of: which build of a source that
draws lots its readers rest on."""
PARTITIONS = "partitions:"
"""What the names begin with under which partitioned tables stand in an as_of: which partitions
there were, and of what."""
OLDER = "older:"
"""What the names begin with under which it stands in an as_of that some rows are of older code:
the build is named whose table a source went on from when it came to mean something else."""
NO_DATA = "no data"
"""The version of a raw table whose data is not there."""
UNVERSIONED = "unversioned:"
"""What the made-up versions of data without versions begin with."""


@dataclass(frozen=True, slots=True)
class World:
    """What a plan is made against.

    Attributes
    ----------
    manifest
        What the environment's readers read.
    elsewhere
        What readers of other environments read of the same BuildIDs; its tables are there.
    versions
        Of every raw table that the plan may need, its present version by SourceID; one made up
        for this run (`unversioned`) for data that has none.
    absent
        What is wrong with the data of the raw tables that have no version.
    day, instant
        What the clock says, for sources that read it.
    history
        The latest finished build of every source.
    missing
        BuildIDs whose table is in the manifest but not there.
    expired
        The sources whose table in the manifest is older than it may be, and what reads it then.
    changes
        For sources whose own table can be continued, what became until now of each table that
        their rows follow from.
    keys
        The partitions that there are of every partitioned source, in order.
    aged
        For partitioned sources and what some of their partitions rest on, and were computed from,
        the same.
    zone
        The session's time zone.
    latest
        For sources that keep a history, or go on when their meaning changes, what readers last
        got of them, whatever they meant then.
    tainted
        The sources of which there is what must not be used, and of those with partitions which.
    seen
        For readers of external tables, instead of their present versions, those since which what
        they see of them is as it is.
    behind
        Of the external tables whose copies have to be brought up to date, why, in words.
    """

    environment: str
    manifest: Mapping[BuildID, Snapshot]
    versions: Mapping[SourceID, str]
    day: str
    instant: str
    history: Mapping[SourceID, Build]
    missing: Collection[BuildID] = ()
    absent: Mapping[SourceID, str] = field(default_factory=dict[str, str])
    elsewhere: Mapping[BuildID, Collection[Snapshot]] = field(
        default_factory=dict[str, "tuple[Snapshot, ...]"]
    )
    expired: Mapping[SourceID, Fallback] = field(default_factory=dict[str, "Fallback"])
    changes: Mapping[SourceID, Mapping[SourceID, Change | None]] = field(
        default_factory=dict[str, "Mapping[SourceID, Change | None]"]
    )
    keys: Mapping[SourceID, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    aged: Mapping[tuple[SourceID, AsOf, AsOf], Mapping[SourceID, Change | None]] = field(
        default_factory=dict["tuple[SourceID, AsOf, AsOf]", "Mapping[SourceID, Change | None]"]
    )
    zone: str = "UTC"
    latest: Mapping[SourceID, Snapshot] = field(default_factory=dict[str, Snapshot])
    tainted: Mapping[SourceID, frozenset[str]] = field(default_factory=dict[str, "frozenset[str]"])
    seen: Mapping[SourceID, Mapping[SourceID, str]] = field(
        default_factory=dict[str, "Mapping[SourceID, str]"]
    )
    behind: Mapping[SourceID, str] = field(default_factory=dict[str, str])

    def version(self, reader: SourceID, upstream: Source) -> str:
        """Return the version of a raw table that a source's rows would rest on."""
        seen = self.seen.get(reader, {}).get(upstream.source_id)
        return seen or self.versions.get(upstream.source_id, NO_DATA)

    def readable(self, source: Source) -> Snapshot | None:
        """Return what readers of a source read, None where its query is computed for them."""
        live = self.expired.get(source.source_id) == "live"
        usable = not live and source.source_id not in self.tainted
        return self.manifest.get(source.build_id) if usable else None


def plan(
    project: Project,
    selected: Iterable[SourceID],
    world: World,
    *,
    force: bool = False,
    asked: Mapping[SourceID, Collection[str]] | None = None,
    again: Mapping[SourceID, Span] | None = None,
) -> Plan:
    """Return a step for every selected persisted source, each after those it reads.

    Parameters
    ----------
    force
        Build even what is up to date.
    asked
        Which partitions are wanted, of sources of which not all are.
    again
        The values of time columns whose rows are computed again, whatever changed.
    """
    chosen = set(selected)
    coming: dict[SourceID, Step] = {}
    inline: dict[tuple[SourceID, SourceID], AsOf] = {}
    for source in project.persisted:
        if source.source_id in chosen:
            expected = _as_of(project, source, world, coming, inline)
            if source.annotation.partition is not None:
                wanted = (asked or {}).get(source.source_id)
                step = _partition_step(
                    project, source, world, coming, expected, wanted, force=force
                )
            else:
                span = (again or {}).get(source.source_id)
                spans = () if span is None else (span,)
                step = _step(project, source, world, coming, expected, spans, force=force)
            coming[source.source_id] = step
    return Plan(world.environment, tuple(coming.values()))


def as_of(project: Project, source: Source, world: World) -> AsOf:
    """Return the raw versions that a build of `source` alone would rest on."""
    return _as_of(project, source, world, {}, {})


def _as_of(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    inline: dict[tuple[SourceID, SourceID], AsOf],
    reader: SourceID | None = None,
) -> AsOf:
    """Return what a build of `source` would rest on after the steps that come before it.

    Parameters
    ----------
    inline
        What is known of sources that are read inline; what is found is added.
    reader
        Who reads it, if it is read inline.
    """
    parts: list[Iterable[RawVersion]] = []
    reader = _needing(source, reader)
    whose = reader if reader in world.seen else ""
    if source.reads_clock:
        parts.append(
            [RawVersion(CLOCK, world.day if source.reads_clock == "day" else world.instant)]
        )
    for upstream in project.inputs(source):
        if upstream.raw is not None:
            parts.append([RawVersion(upstream.build_id, world.version(reader, upstream))])
        elif upstream.source_id in coming:
            step = coming[upstream.source_id]
            parts.append(step.as_of)
            if upstream.varies and step.action == "build":
                parts.append([RawVersion(DRAW + upstream.build_id, "to come")])
        elif (snapshot := world.readable(upstream)) is not None:
            parts.append(snapshot.as_of)
        else:
            known = (whose, upstream.source_id)
            if known not in inline:
                inline[known] = _as_of(project, upstream, world, coming, inline, reader)
            parts.append(inline[known])
    return merge_as_of(parts)


def _needing(source: Source, reader: SourceID | None) -> SourceID:
    """Return whose needs of external tables count for the rows of a source that is read inline.

    What is persisted needs what it needs, whoever reads it.
    """
    return source.source_id if reader is None or source.persisted else reader


def rests_alike(snapshot: Snapshot, as_of: AsOf) -> bool:
    """Whether a snapshot rests on what rows of an as_of do, of all that it rests on."""
    own = {v.raw for v in snapshot.as_of}
    return {v for v in as_of if v.raw in own} == {*snapshot.as_of}


CONTENT = "content:"
"""What the versions begin with under which tables stand among the inputs of rows."""


def inputs(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step] | None = None,
    reader: SourceID | None = None,
) -> AsOf | None:
    """Return what a build of `source` would be computed from directly.

    Rows are a function of the BuildID and of these. None where it is not known yet: a table that
    it reads is built before.
    """
    parts: list[Iterable[RawVersion]] = []
    reader = _needing(source, reader)
    if source.reads_clock:
        now = world.day if source.reads_clock == "day" else world.instant
        parts.append([RawVersion(CLOCK, now)])
    for upstream in project.inputs(source):
        step = (coming or {}).get(upstream.source_id)
        snapshot = step.snapshot if step else world.readable(upstream)
        if upstream.raw is not None:
            parts.append([RawVersion(upstream.build_id, world.version(reader, upstream))])
        elif step is not None and step.action == "build":
            return None
        elif snapshot is not None:
            parts.append([RawVersion(upstream.build_id, CONTENT + snapshot.content)])
        else:
            inline = inputs(project, upstream, world, coming, reader)
            if inline is None:
                return None
            parts.append(inline)
    return merge_as_of(parts)


def _step(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    again: tuple[Span, ...] = (),
    *,
    force: bool,
) -> Step:
    snapshot = world.manifest.get(source.build_id)
    now = inputs(project, source, world, coming)
    tainted = source.source_id in world.tainted
    whole = force or tainted
    latest = world.latest.get(source.source_id) or snapshot
    changed = latest is not None and latest.build_id != source.build_id
    if source.keeps_history and changed:
        snapshot = None  # that of a meaning it had once, and has again: its history is elsewhere
    gone = snapshot is not None and source.build_id in world.missing
    fits = _is_kept_so(project, source)
    mixed = snapshot is not None and _is_mixed(source, snapshot, expected)
    if not source.keeps_history and (
        snapshot is None
        or gone
        or not fits(snapshot)
        or mixed
        or _without_draw(snapshot.as_of, source) != expected
    ):
        # What another environment has may be the very rows.
        others = world.elsewhere.get(source.build_id, ())
        fitting = [
            s
            for s in others
            if fits(s) and _without_draw(s.as_of, source) == expected and older_code(s) is None
        ]
        fitting = [s for s in fitting if not other_rows(s.inputs, now)]
        snapshot, gone, mixed = (fitting[0], False, False) if fitting else (snapshot, gone, mixed)
    young = (
        snapshot is not None
        and not (gone or mixed or whole or again)  # then what it reads is read now
        and fits(snapshot)
        and _is_young(source, snapshot, expected, world)
    )
    if snapshot is not None and young:
        expected = _without_draw(snapshot.as_of, source)
    last = world.history.get(source.source_id)
    reasons: list[Reason] = []
    same_rows, increment, history = False, None, None
    if snapshot is None:
        reasons += _why_no_table(project, source, last, coming)
        goes_on = source.annotation.refresh == "incremental" and source.annotation.goes_on
        if changed and goes_on and not whole and latest is not None:
            increment, why = _increment(project, source, latest, world, coming, expected)
            reasons.append(why)
    elif gone:
        reasons.append(Reason("missing", f"its table {snapshot.table} is gone"))
    elif not fits(snapshot):
        kept = "stored query" if snapshot.view is None else "table"
        reasons.append(Reason("strategy", f"it is kept as a {kept} now"))
    elif mixed:
        told = "its table has rows of older code, and it does not say on_change=continue"
        reasons.append(Reason("older", told))
    elif not young:
        newer = _without_draw(snapshot.as_of, source) != expected
        same_rows = newer and bool(snapshot.inputs) and snapshot.inputs == now
        others = other_rows(snapshot.inputs, now)
        if newer:  # what changed of the data tells of all but what is of older code
            others = _other_code(source, snapshot.as_of, expected)
        else:
            reasons += _why_other_rows(project, source, others)
        if newer and not same_rows:
            if source.source_id in world.expired:
                reasons.append(Reason("age", "its table is older than its freshness window"))
            reasons += _why_other_data(project, source, snapshot, world, expected)
        computed = bool(reasons) or (newer and not same_rows)
        whole = whole or not _follows(project, source, others)
        if computed and not (whole or again) and source.annotation.refresh == "incremental":
            increment, why = _increment(project, source, snapshot, world, coming, expected)
            reasons.append(why)
    if again and not (whole or mixed) and increment is None and snapshot is not None:
        increment, why = _increment(project, source, snapshot, world, coming, expected, again)
        reasons.append(why)
    if tainted:
        reasons.append(Reason("tainted", "what there is of it was tainted"))
    if force:
        reasons.append(Reason("forced", "asked for"))
    if reasons and source.keeps_history:
        anew = not source.annotation.goes_on and (changed or force)
        history = None if anew else latest
        reasons += _what_becomes_of_it(source, latest, history)
    if reasons:
        reasons += _what_is_old(project, source, world, coming)
        reasons += _what_stops_it(project, source, world, coming)
    if reasons:
        reasons += _how_it_failed(last)
    estimate = _estimate(last, snapshot) if reasons else None
    action: Literal["build", "reuse"] = "build" if reasons else "reuse"
    if action == "reuse" and snapshot is not None:
        own = own_marks(snapshot.as_of, source)
        expected = merge_as_of([expected, own]) if same_rows else snapshot.as_of
    if action == "reuse" and same_rows:
        reasons.append(Reason("same-rows", "the data is newer, the rows it reads are the same"))
    if action == "reuse" and last is not None and last.build_id == source.build_id:
        reasons += _how_it_failed(last)  # a check, which a build asks of what is there too
    base = snapshot if action == "reuse" else increment and increment.base
    if base is not None:
        older = older_code(base) if base.build_id == source.build_id else base.build_uid
        if older is not None:
            expected = merge_as_of([expected, [RawVersion(OLDER + source.build_id, older)]])
            told = f"rows that stay are of older code, of the build {older[:8]}: on_change=continue"
            reasons.append(Reason("older", told))
    return Step(
        source_id=source.source_id,
        action=action,
        build_id=source.build_id,
        as_of=expected,
        reasons=tuple(reasons),
        estimate=estimate,
        snapshot=snapshot if action == "reuse" else None,
        increment=increment,
        history=history,
    )


def _is_mixed(source: Source, snapshot: Snapshot, expected: AsOf) -> bool:
    """Whether a table went on with rows of older code, which its source does not say it may.

    Another source of its meaning does, or it said so itself; what reads such rows has them.
    """
    own = OLDER + source.build_id
    inherited = any(v.raw == own for v in expected)
    return older_code(snapshot) is not None and not (source.annotation.goes_on or inherited)


def other_rows(before: Iterable[RawVersion], now: AsOf | None) -> frozenset[BuildID]:
    """Return what tables have other rows than `before` tells, by their BuildIDs.

    One was built as a whole that is only assumed to be what that gives, or after it was tainted.
    """
    after = {v.raw: v.version for v in now or () if v.version.startswith(CONTENT)}
    told = [v for v in before if v.version.startswith(CONTENT)]
    return frozenset(v.raw for v in told if after.get(v.raw, v.version) != v.version)


def _other_code(source: Source, before: AsOf, now: AsOf) -> frozenset[BuildID]:
    """Return of what other tables, by their BuildIDs, rows of older code came, or went."""
    told = {v for v in {*before} ^ {*now} if v.raw.startswith(OLDER)}
    return frozenset(v.raw.removeprefix(OLDER) for v in told) - {source.build_id}


def _follows(project: Project, source: Source, others: Collection[BuildID]) -> bool:
    """Whether of all tables that have other rows it is known how a source's rows follow them.

    What follows from the raw data below a table does not tell of those that are the table's own.
    """
    growth = source.growth
    followed = (
        {project.by_id[s].build_id for s in growth.reads & project.by_id.keys()} if growth else ()
    )
    return {*followed}.issuperset(others)


def _why_other_rows(
    project: Project, source: Source, others: Collection[BuildID]
) -> Iterable[Reason]:
    """Yield what tables have other rows than rows were computed from, of the same data."""
    if others:
        read = [s.name for s in project.inputs(source) if s.build_id in others]
        yield Reason(
            "input", f"other rows of {', '.join(read or ['what it reads'])}, of the same data"
        )


def _how_it_failed(last: Build | None) -> Iterable[Reason]:
    if last is not None and last.state == "failed":
        error = (last.error or "").splitlines()
        yield Reason("failed", f"failed last time: {error[0] if error else 'unknown'}")


def _estimate(last: Build | None, snapshot: Snapshot | None = None) -> Estimate | None:
    """Return what the last build says of the next one; else what there is of `snapshot`."""
    known = (last and last.snapshot) or snapshot
    if known is None:
        return None
    seconds = last.seconds if last and last.action == "built" else None
    return Estimate(known.rows, known.bytes, seconds)


def _what_becomes_of_it(
    source: Source, latest: Snapshot | None, history: Snapshot | None
) -> Iterable[Reason]:
    """Yield whether a history goes on."""
    if latest is None:
        return
    if history is None:
        yield Reason("history", "its history begins anew: on_change=rebuild")
        return
    told = f"its history goes on from {history.table} version {history.version}"
    why = mismatch(history.columns, source.columns, grows=True) if source.columns else None
    yield Reason("history", told if why is None else f"its history cannot go on: {why}")


def _increment(
    project: Project,
    source: Source,
    base: Snapshot,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    again: tuple[Span, ...] = (),
) -> tuple[Increment | None, Reason]:
    """Return how a build continues a table, if it does, and that it does or why not."""
    if base.build_id != source.build_id and source.columns:
        why = mismatch(base.columns, source.columns)
        if why is not None:
            return Increment(base), Reason("older", f"it cannot go on: {why}")
    known = world.changes.get(source.source_id)
    if known is None:
        why = "the table is another environment's, or another source's too"
        if base.time_column != source.annotation.time_column:
            why = "its watermark was another one"
        return None, Reason("whole", f"everything is computed: {why}")
    changes = _changes(project, source, base.as_of, known, world, coming, expected)
    before = [s for s in changes if s in coming and coming[s].action == "build"]
    if before:
        names = ", ".join(project.by_id[s].name for s in before)
        return None, Reason("increment", f"what is computed depends on what comes of {names}")
    found = grow(project, source, base, changes, again, world.zone)
    if isinstance(found, Increment):
        return found, Reason("increment", _what_is_computed(project, source, found))
    return None, Reason("whole", f"everything is computed: {found}")


def _changes(
    project: Project,
    source: Source,
    then: AsOf,
    known: Mapping[SourceID, Change | None],
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
) -> dict[SourceID, Change | None]:
    """Return what became of tables between what rows rest on and what a build will rest on.

    Parameters
    ----------
    known
        What became of them until now.
    """
    changes: dict[SourceID, Change | None] = {}
    for source_id, change in known.items():
        leaf = project.by_id.get(source_id)
        changes[source_id] = change
        if leaf is not None and leaf.raw is not None:
            before, after = (
                [v.version for v in versions if v.raw == leaf.build_id]
                for versions in (then, expected)
            )
            if before == after and len(after) == 1:
                changes[source_id] = Change()
            elif after != [world.version(source.source_id, leaf)]:
                changes[source_id] = None  # what it reads mixes versions, or has an older one
        elif leaf is not None and source_id not in coming:
            table = world.readable(leaf)
            if table is None or not rests_alike(table, expected):
                changes[source_id] = None
    return changes


def _what_is_computed(project: Project, source: Source, increment: Increment) -> str:
    if increment.past:
        lookback = source.annotation.lookback_s
        late = f", and of up to {in_units(lookback)} before," if lookback else ""
        told = (
            f"only rows from {increment.base.watermark} on{late} are computed: assume=exact says"
            " that the others are as they were"
        )
        if not increment.late:
            return told
        return f"{told}; but new files of {', '.join(increment.late)} hold earlier times"
    column = source.annotation.time_column
    asked = " and ".join(f"{to_text(a)} to {to_text(b)}" for a, b in increment.again)
    if asked and not increment.traces:
        return f"only rows whose {column} is {asked} are computed"
    if increment.traces:
        names = ", ".join(sorted(project.by_id[s].name for s in increment.changes))
        return (
            f"only rows are computed whose {column} may be that of what"
            f" changed in {names}{f', or is {asked}' if asked else ''}"
        )
    grown = sorted(project.by_id[s].name for s, files in increment.added.items() if files)
    return f"only what was added to {', '.join(grown) or 'nothing'} is computed"


# ----------------------------------------------------------------------------------- partitions


def _partition_step(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    asked: Collection[str] | None,
    *,
    force: bool,
) -> Step:
    """Return a step that computes the partitions that are not there, or may have other rows."""
    order = world.keys[source.source_id]
    chosen = None if asked is None else frozenset(asked)
    wanted = [key for key in order if chosen is None or key in chosen]
    own = world.manifest.get(source.build_id)
    gone = own is not None and source.build_id in world.missing
    tables = [] if own is None or gone else [own]
    tables += world.elsewhere.get(source.build_id, ())
    tables = [s for s in tables if s.partitions is not None]  # as of one that was imported
    now = inputs(project, source, world, coming)
    base: Snapshot | None = None
    current = frozenset[str]()
    todo = wanted
    tainted = world.tainted.get(source.source_id, frozenset())
    for table in tables:
        good = _current(project, source, table, world, coming, expected, now) - tainted
        lacking = [key for key in wanted if key not in good]
        if base is None or len(lacking) < len(todo):
            base, current, todo = table, good, lacking
    if force:
        todo = wanted
    last = world.history.get(source.source_id)
    there = filled_keys(order, base.partitions.filled) if base and base.partitions else frozenset()
    reasons: list[Reason] = []
    if base is None:
        if gone and own is not None:
            reasons.append(Reason("missing", f"its table {own.table} is gone"))
        elif own is not None:
            told = f"which partitions its table {own.table} has is not known: it was imported"
            reasons.append(Reason("strategy", told))
        else:
            reasons += _why_no_table(project, source, last, coming)
    new, old = (
        [key for key in todo if (key in there) is known and key not in current]
        for known in (False, True)
    )
    bad = [key for key in old if key in tainted]
    old = [key for key in old if key not in tainted]
    if bad:
        reasons.append(Reason("tainted", f"{_counted(order, bad)} tainted"))
    if new:
        reasons.append(Reason("partition", f"{_counted(order, new)} not built yet"))
    if old:
        assert base is not None and base.partitions is not None
        reasons.append(Reason("partition", f"{_counted(order, old)} may have other rows"))
        reasons += _why_other_data(project, source, base, world, expected)
        before = [i for group in base.partitions.filled for i in group.inputs]
        reasons += _why_other_rows(project, source, other_rows(before, now))
    if force:
        reasons.append(Reason("forced", "asked for"))
    if reasons:
        reasons += _what_is_old(project, source, world, coming)
        reasons += _what_stops_it(project, source, world, coming, todo)
        reasons += _how_it_failed(last)
    done = current | {*todo}
    filled = [Filled(runs(order, done), expected, now or ())] if done or not order else []
    for group in base.partitions.filled if base and base.partitions else ():
        rest = [key for key in expand(order, group.runs) if key not in done]
        if rest:
            filled.append(replace(group, runs=runs(order, rest)))
    stays = base if there - {*todo} else None
    partitions = Partitions(tuple(filled), runs(order, todo), stays.build_uid if stays else None)
    version = RawVersion(PARTITIONS + source.build_id, digest_partitions(filled))
    return Step(
        source_id=source.source_id,
        action="build" if reasons else "reuse",
        build_id=source.build_id,
        as_of=merge_as_of([[version], *(f.as_of for f in filled)]),
        reasons=tuple(reasons),
        estimate=_estimate(last) if reasons else None,
        snapshot=None if reasons else base,
        keys=tuple(todo),
        base=stays,
        partitions=partitions,
    )


def digest_partitions(groups: Sequence[Filled]) -> str:
    """Return a digest of groups of partitions, which stands in the `as_of` of who reads them.

    The ledger keeps it, so the text is spelled out, and does not follow from names of classes.
    """

    def spelled(versions: AsOf) -> str:
        texts = [f"RawVersion(raw={v.raw!r}, version={v.version!r})" for v in versions]
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"

    text = ", ".join(f"({group.runs!r}, {spelled(group.as_of)})" for group in groups)
    return sha256(f"[{text}]".encode()).hexdigest()[:32]


def _counted(order: Sequence[str], chosen: Collection[str]) -> str:
    n = len(chosen)
    return f"{n} partition{'s' * (n != 1)} ({keys_in_words(order, chosen)})"


def _current(
    project: Project,
    source: Source,
    table: Snapshot,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    now: AsOf | None,
) -> frozenset[str]:
    """Return the partitions of a table whose rows are those of what a build will rest on."""
    assert table.partitions is not None
    order, found = world.keys[source.source_id], set[str]()
    for group in table.partitions.filled:
        keys = expand(order, group.runs)
        found.update(keys)
        newer, others = group.as_of != expected, other_rows(group.inputs, now)
        if group.inputs == now or not (newer or others):
            continue
        if newer:
            others = _other_code(source, group.as_of, expected)
        if _follows(project, source, others):
            keys = _stale(project, source, table, group, keys, world, coming, expected)
        found -= {*keys}
    return frozenset(found)


def _stale(
    project: Project,
    source: Source,
    table: Snapshot,
    group: Filled,
    keys: Sequence[str],
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
) -> Collection[str]:
    """Return which partitions of a group may have other rows by now."""
    partition, columns = source.annotation.partition, parted_by(source, table)
    known = world.aged.get((source.source_id, group.as_of, group.inputs))
    windows = source.windows
    if known is None or windows is None or not columns or partition is None:
        return keys
    changes = _changes(project, source, group.as_of, known, world, coming, expected)
    for source_id, change in changes.items():
        step = coming.get(source_id)
        if change is not None and step is not None and step.action == "build":
            changes[source_id] = _with_partitions(project, change, step, world)
    changed = {s: c for s, c in changes.items() if c is None or c.added or c.lost}
    traces = [t for t in windows.traces if t.column.source_id in changed]
    if None in changed.values() or windows.loose & changed.keys():
        return keys
    if {t.column.source_id for t in traces} != {*changed}:
        return keys
    sure = {s: c for s, c in changed.items() if c is not None}
    told = touched(project, traces, sure, columns[0][1], world.zone)
    return keys if told is None else reached(partition, columns[0][1], keys, told[0])


def _with_partitions(project: Project, change: Change, step: Step, world: World) -> Change | None:
    """Return what will have become of a table when a step has built some of its partitions."""
    source = project.by_id[step.source_id]
    partition, columns = source.annotation.partition, parted_by(source, step.base)
    if partition is None or not columns or step.keys is None:
        return None
    column, kinds = columns[0][0].lower(), [kind for _, kind in columns]
    if (change.added or change.lost) and column not in change.within:
        return None
    found = boxes(partition, kinds, step.keys, world.keys[step.source_id])
    spans = merged_spans([*change.within.get(column, ()), *(box[0] for box in found)])
    return Change((Piece(""),), within={column: spans}) if step.keys else change


def needed(
    project: Project,
    source: Source,
    upstream: Source,
    keys: Collection[str] | None,
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> tuple[str, ...]:
    """Return the partitions of what a source reads that rows of partitions of it follow from.

    Parameters
    ----------
    keys
        Those partitions; None: `source` has none, or all of them are meant.
    order, zone
        The partitions there are, and the session's time zone.
    """
    every = (*order[upstream.source_id],)
    partition, columns = source.annotation.partition, parted_by(source)
    theirs, parted = upstream.annotation.partition, parted_by(upstream)
    trace = trace_to_partitions(source, upstream)
    if keys is None or partition is None or trace is None or not columns:
        return every
    assert theirs is not None
    name, kind = trace.column.column.lower(), columns[0][1]
    wanted = boxes(partition, [k for _, k in columns], keys, order[source.source_id])
    is_wanted = overlaps_any(box[0] for box in wanted)
    known: dict[str, bool] = {}
    for key in every:
        part = split(theirs, key)[0]
        if part not in known:
            own = side(theirs, theirs.dimensions[0], part, parted[0][1])
            change = {upstream.source_id: Change((Piece(""),), within={name: (own,)})}
            led = touched(project, [trace], change, kind, zone)
            known[part] = led is None or any(map(is_wanted, led[0]))
    return tuple(key for key in every if known[split(theirs, key)[0]])


def reached_by(
    project: Project,
    source: Source,
    upstream: Source,
    keys: Collection[str],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> Collection[str]:
    """Return the partitions of a source whose rows may follow from partitions of what it reads.

    Parameters
    ----------
    keys
        Those partitions, where `upstream` has some.
    order, zone
        The partitions there are, and the session's time zone.
    """
    theirs, parted = upstream.annotation.partition, parted_by(upstream)
    if theirs is None or not parted:
        return order.get(source.source_id, ())
    found = boxes(theirs, [kind for _, kind in parted], keys, order[upstream.source_id])
    return reached_within(project, source, upstream, [box[0] for box in found], order, zone)


def reached_within(
    project: Project,
    source: Source,
    upstream: Source,
    spans: Iterable[Span],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> Collection[str]:
    """Return the partitions of a source whose rows may follow from windows of what it reads.

    Parameters
    ----------
    spans
        Of the time column of `upstream`, or the one that parts it.
    order, zone
        As for `reached_by`.
    """
    every = order.get(source.source_id, ())
    partition, columns = source.annotation.partition, parted_by(source)
    trace = trace_to_partitions(source, upstream)
    if partition is None or trace is None or not columns:
        return every
    within = {trace.column.column.lower(): merged_spans(spans)}
    change = {upstream.source_id: Change((Piece(""),), within=within)}
    led = touched(project, [trace], change, columns[0][1], zone)
    return every if led is None else reached(partition, columns[0][1], every, led[0])


def lacking(
    project: Project,
    source: Source,
    world: World,
    keys: Collection[str] | None,
    coming: Mapping[SourceID, Step] | None = None,
) -> dict[SourceID, tuple[str, ...]]:
    """Return the partitions that a build would read and that are not there, by their source.

    Parameters
    ----------
    keys
        The partitions that it would compute.
    """
    found: dict[SourceID, tuple[str, ...]] = {}
    for upstream in project.inputs(source):
        if upstream.annotation.partition is None or not upstream.persisted:
            continue
        order, there = world.keys[upstream.source_id], set[str]()
        step = (coming or {}).get(upstream.source_id)
        tainted = world.tainted.get(upstream.source_id)
        if tainted is None:
            table = world.readable(upstream)
        else:  # of a table of which some is tainted the rest is there
            table = world.manifest.get(upstream.build_id)
        for partitions in (step and step.partitions, table and table.partitions):
            if partitions:
                there |= filled_keys(order, partitions.filled)
        there -= (tainted or frozenset()).difference(step.keys or () if step else ())
        if len(there) < len(order):
            wanted = needed(project, source, upstream, keys, world.keys, world.zone)
            missing = tuple(key for key in wanted if key not in there)
            if missing:
                found[upstream.source_id] = missing
    return found


def with_needed(
    project: Project,
    selected: Collection[SourceID],
    wanted: Mapping[SourceID, Collection[str]],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> dict[SourceID, tuple[str, ...]]:
    """Return the wanted partitions of selected sources, and those of others that these follow from.

    Parameters
    ----------
    order, zone
        The partitions there are, and the session's time zone.
    """
    found: dict[SourceID, tuple[str, ...]] = {}
    for source in reversed(project.persisted):
        own = order.get(source.source_id)
        if source.source_id not in selected or own is None:
            continue
        keys = {*wanted.get(source.source_id, ())}
        for reader in project.persisted:
            if reader.source_id in found and source in project.inputs(reader):
                theirs = found[reader.source_id]
                keys |= {*needed(project, reader, source, theirs, order, zone)}
        if keys:
            found[source.source_id] = tuple(key for key in own if key in keys)
    return found


def asked_for(
    project: Project,
    selected: Iterable[SourceID],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
    first: str,
    last: str,
) -> dict[SourceID, tuple[str, ...]]:
    """Return which partitions of selected sources are meant by the keys of a range.

    They are those of the range, of sources that have them, and those that the selected readers'
    rows follow from.

    Parameters
    ----------
    order, zone
        The partitions there are, and the session's time zone.

    Raises
    ------
    NotFoundError
        A selected source has no such partitions, and nothing selected reads it.
    """
    chosen = {*selected}
    wanted: dict[SourceID, tuple[str, ...]] = {}
    unknown: dict[SourceID, NotFoundError] = {}
    for source in project.persisted:
        if source.source_id in chosen and source.source_id in order:
            try:
                wanted[source.source_id] = between(
                    source.name, order[source.source_id], first, last
                )
            except NotFoundError as error:
                unknown[source.source_id] = error
    found = with_needed(project, chosen, wanted, order, zone)
    for source_id, error in unknown.items():
        if source_id not in found:
            raise error
    if not found:
        raise NotFoundError(
            f"nothing selected has a partition `{first}`",
            hint="none of it has partitions: select a source that says partition=…",
        )
    return found


def _is_kept_so(project: Project, source: Source) -> Callable[[Snapshot], bool]:
    """Return what tells whether a snapshot is kept as its source says: in a table, or as a view."""
    view = project.is_view(source)
    return lambda snapshot: (snapshot.view is not None) == view


def _is_young(source: Source, snapshot: Snapshot, expected: AsOf, world: World) -> bool:
    """Whether only data that never tells whether it changed makes a table due, and not yet.

    Such data is read again once the table is older than the window that its source allows it.
    """
    if source.annotation.freshness is None or source.source_id in world.expired:
        return False
    then, now = (
        {(v.raw, UNVERSIONED if v.version.startswith(UNVERSIONED) else v.version) for v in versions}
        for versions in (_without_draw(snapshot.as_of, source), expected)
    )
    return then == now


def drawn(as_of: AsOf, source: Source, build_uid: str) -> AsOf:
    """Return what a new snapshot rests on: its own draw too, if its source draws lots."""
    own = [RawVersion(DRAW + source.build_id, build_uid)] if source.varies else []
    return merge_as_of([as_of, own])


def _without_draw(as_of: AsOf, source: Source) -> AsOf:
    """Return what a snapshot rests on besides its own draw, and the older code of its own rows."""
    return tuple(v for v in as_of if v not in own_marks(as_of, source))


def own_marks(as_of: AsOf, source: Source) -> AsOf:
    """Return what tells of a snapshot of a source which build it is of: no other is like it."""
    own = (DRAW + source.build_id, OLDER + source.build_id)
    return tuple(v for v in as_of if v.raw in own)


def older_code(snapshot: Snapshot) -> str | None:
    """Return the build whose table a snapshot has rows of that are of older code, or None."""
    own = OLDER + snapshot.build_id
    return next((v.version for v in snapshot.as_of if v.raw == own), None)


def is_history(snapshot: Snapshot) -> bool:
    """Whether a snapshot is one of a source that keeps a history, and did so then."""
    times = [(c.name, c.type) for c in snapshot.columns[-2:]]
    draws = any(v.raw == DRAW + snapshot.build_id for v in snapshot.as_of)
    return draws and times == [(VALID_FROM, "timestamp"), (VALID_TO, "timestamp")]


def unchecked(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step] | None = None,
) -> tuple[Source, ...]:
    """Return what a build of `source` would read without the checks that guard it.

    That is what is persisted with checks that block, and would be computed on the way because
    there is no table of it to read.
    """
    inline = project.reach(source.bindings, lambda s: _has_table(project, s, world, coming or {}))
    return tuple(
        s
        for s in inline
        if s.persisted
        and not _has_table(project, s, world, coming or {})
        and any(c.blocking for other in project.by_build_id[s.build_id] for c in other.checks)
    )


def unbuilt(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step] | None = None,
) -> tuple[Source, ...]:
    """Return the histories that a build of `source` would read and that have no table yet."""
    inline = project.reach(source.bindings, lambda s: _has_table(project, s, world, coming or {}))
    return tuple(
        s for s in inline if s.keeps_history and not _has_table(project, s, world, coming or {})
    )


def _has_table(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step]
) -> bool:
    """Whether a source is read from a table: one that is there, or one that is built before."""
    return source.persisted and (
        world.readable(source) is not None
        or any(s.source_id in coming for s in project.by_build_id[source.build_id])
    )


WHEN_OLD: Mapping[Fallback, str] = {
    "live": "its query is computed instead",
    "stale_ok": "it is read as it stands",
    "fail": "it is not read then",
}


def _what_is_old(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step]
) -> Iterable[Reason]:
    """Yield which tables that it reads are older than they may be, and which are not used."""
    for upstream in project.inputs(source):
        if upstream.source_id in world.tainted and upstream.source_id not in coming:
            message = f"what there is of {upstream.name} was tainted: {WHEN_OLD['live']}"
            yield Reason("tainted", message, upstream.source_id)
        fallback = world.expired.get(upstream.source_id)
        if fallback is not None and upstream.source_id not in coming:
            message = f"the table of {upstream.name} is older than its freshness window: "
            yield Reason("age", message + WHEN_OLD[fallback], upstream.source_id)


def _what_stops_it(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    keys: Collection[str] | None = None,
) -> Iterable[Reason]:
    for upstream_id, missing in lacking(project, source, world, keys, coming).items():
        message = what_lacks(project.by_id[upstream_id], world, missing)
        yield Reason("partition", message, upstream_id)
    for upstream in project.reach(source.bindings, lambda s: _has_table(project, s, world, coming)):
        if upstream.raw is not None and upstream.source_id not in world.versions:
            why = world.absent.get(upstream.source_id, "its data is not there")
            yield Reason("no-data", f"{upstream.name}: {why}", upstream.source_id)
    for upstream in unbuilt(project, source, world, coming):
        what = f"{upstream.name} has to be built first: only its table knows its history"
        yield Reason("history", what, upstream.source_id)
    for upstream in unchecked(project, source, world, coming):
        yield Reason(
            "unchecked", f"{upstream.name} has to pass its checks first", upstream.source_id
        )


def what_lacks(upstream: Source, world: World, missing: Collection[str]) -> str:
    """Return in words which partitions of a source that is read are not built."""
    order = world.keys[upstream.source_id]
    return f"{upstream.name} lacks {_counted(order, missing)}"


def _why_no_table(
    project: Project, source: Source, last: Build | None, coming: Mapping[SourceID, Step]
) -> Iterable[Reason]:
    if last is None or last.build_id == source.build_id:
        yield Reason("new", "never built")
        return
    own = last.definition != source.definition
    if own:
        yield Reason("code", _what_changed(source, last))
    above = what_changed_above(project, source, last)
    for upstream, difference in above:
        yield Reason("upstream", _what_changed_of(upstream, difference, last), upstream.source_id)
    if own or above:
        return
    for upstream_id in source.reads:
        step = coming.get(upstream_id)
        if step is not None and any(r.code in ("code", "upstream") for r in step.reasons):
            name = project.by_id[upstream_id].name
            yield Reason("upstream", f"what it reads of {name} changed", upstream_id)
            return
    yield Reason("upstream", "something it reads changed its meaning")


def _what_changed(source: Source, last: Build) -> str:
    """Return what of a source its own words changed, as far as its last build tells."""
    if source.function is not None:
        return f"its code, or code that it reaches, changed: {source.location.path}"
    if last.digests is None:
        return f"changed in {source.location}"
    difference = differ(last.digests, source.digests)
    named = (*difference.changed, *difference.added, *(new for _, new in difference.renamed))
    alone = not difference.rows and len(difference.columns) == 1 and len(named) == 1
    line = line_of(source, named[0]) if alone else source.location.line
    what = in_words(difference) or "its annotation, or the order of its columns, changed"
    return f"{what} in {source.location.path}:{line}"


def _what_changed_of(upstream: Source, difference: Difference, last: Build) -> str:
    """Return what changed of a source that is read."""
    told = {read.source_id: read.definition for read in last.reads}
    if upstream.function is not None:
        return f"the code of {upstream.name} changed, or what it reads"
    if difference.rows and upstream.raw is not None:
        if told[upstream.source_id] == upstream.definition:
            return f"where {upstream.name} lies, or a setting of the session, changed"
        return f"{upstream.name} is declared otherwise"
    return in_words(difference, upstream.name) or f"the columns of {upstream.name} were reordered"


def _why_other_data(
    project: Project, source: Source, snapshot: Snapshot, world: World, expected: AsOf
) -> Iterable[Reason]:
    names = {s.build_id: s for s in project.sources if s.raw is not None}
    then, now = set(_without_draw(snapshot.as_of, source)), set(expected)
    changed = {v.raw: v.version for v in sorted(then - now) + sorted(now - then)}
    for raw, version in changed.items():
        upstream = names.get(raw)
        if raw == CLOCK:
            yield Reason("clock", f"`{source.name}` or what it reads looks at the clock")
        elif raw == PARTITIONS + source.build_id:
            continue  # it tells of its own partitions
        elif raw.startswith(PARTITIONS):
            parted = next((s for s in project.sources if PARTITIONS + s.build_id == raw), None)
            message = f"the partitions of {parted.name if parted else 'what it read'} changed"
            yield Reason("upstream", message, parted.source_id if parted else None)
        elif raw.startswith(DRAW):
            drawn = next((s for s in project.sources if DRAW + s.build_id == raw), None)
            name = drawn.name if drawn else "something it read"
            history = drawn is not None and drawn.keeps_history
            what = f"the history of {name} went on" if history else f"{name} drew lots again"
            yield Reason("upstream", what, drawn.source_id if drawn else None)
        elif raw.startswith(OLDER):
            mixing = next((s for s in project.sources if OLDER + s.build_id == raw), None)
            name = mixing.name if mixing else "something it read"
            what = f"other rows of {name} are of older code"
            yield Reason("upstream", what, mixing.source_id if mixing else None)
        elif upstream is None:
            yield Reason(
                "input", "it rests on data that is no longer read, or declared otherwise now"
            )
        elif version.startswith(UNVERSIONED):
            message = f"the data of {upstream.name} does not tell whether it changed"
            yield Reason("unversioned", message, upstream.source_id)
        elif raw in mixed(snapshot.as_of) and raw not in mixed(expected):
            message = f"it mixes two versions of the data of {upstream.name}"
            yield Reason("mixed", message, upstream.source_id)
        else:
            changed_so = f"the data of {upstream.name} changed"
            message = world.behind.get(upstream.source_id, changed_so)
            yield Reason("input", message, upstream.source_id)
