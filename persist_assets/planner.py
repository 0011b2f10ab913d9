"""What would be built, what reused, and why. Pure: everything known comes as an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from persist_assets.compare import (
    Difference,
    differ,
    in_words,
    line_of,
    what_changed_above,
)
from persist_assets.growth import grow
from persist_assets.model import (
    AsOf,
    Build,
    Change,
    Estimate,
    Fallback,
    Increment,
    Plan,
    RawVersion,
    Reason,
    Snapshot,
    Source,
    Step,
    merge_as_of,
    mixed,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from persist_assets.model import BuildID, Project, SourceID

CLOCK = "clock"
"""The name under which the clock stands in an as_of, for sources that read it."""
DRAW = "draw:"
"""What the names begin with under which draws stand in an as_of: which build of a source that
draws lots its readers rest on."""
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

    def readable(self, source: Source) -> Snapshot | None:
        """Return what readers of a source read, None where its query is computed for them."""
        live = self.expired.get(source.source_id) == "live"
        return None if live else self.manifest.get(source.build_id)


def plan(
    project: Project,
    selected: Iterable[SourceID],
    world: World,
    *,
    force: bool = False,
) -> Plan:
    """Return a step for every selected persisted source, each after those it reads.

    Parameters
    ----------
    force
        Build even what is up to date.
    """
    chosen = set(selected)
    coming: dict[SourceID, Step] = {}
    inline: dict[SourceID, AsOf] = {}
    for source in project.persisted:
        if source.source_id in chosen:
            expected = _as_of(project, source, world, coming, inline)
            coming[source.source_id] = _step(project, source, world, coming, expected, force=force)
    return Plan(world.environment, tuple(coming.values()))


def as_of(project: Project, source: Source, world: World) -> AsOf:
    """Return the raw versions that a build of `source` alone would rest on."""
    return _as_of(project, source, world, {}, {})


def _as_of(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    inline: dict[SourceID, AsOf],
) -> AsOf:
    """Return what a build of `source` would rest on after the steps that come before it.

    Parameters
    ----------
    inline
        What is known of sources that are read inline; what is found is added.
    """
    parts: list[Iterable[RawVersion]] = []
    if source.reads_clock:
        parts.append(
            [RawVersion(CLOCK, world.day if source.reads_clock == "day" else world.instant)]
        )
    for upstream in project.inputs(source):
        if upstream.raw is not None:
            version = world.versions.get(upstream.source_id, NO_DATA)
            parts.append([RawVersion(upstream.build_id, version)])
        elif upstream.source_id in coming:
            step = coming[upstream.source_id]
            parts.append(step.as_of)
            if upstream.volatile and step.action == "build":
                parts.append([RawVersion(DRAW + upstream.build_id, "to come")])
        elif (snapshot := world.readable(upstream)) is not None:
            parts.append(snapshot.as_of)
        else:
            if upstream.source_id not in inline:
                found = _as_of(project, upstream, world, coming, inline)
                inline[upstream.source_id] = found
            parts.append(inline[upstream.source_id])
    return merge_as_of(parts)


def rests_alike(snapshot: Snapshot, as_of: AsOf) -> bool:
    """Whether a snapshot rests on what rows of an as_of do, of all that it rests on."""
    own = {v.raw for v in snapshot.as_of}
    return {v for v in as_of if v.raw in own} == {*snapshot.as_of}


CONTENT = "content:"
"""What the versions begin with under which tables stand among the inputs of rows."""


def inputs(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step] | None = None
) -> AsOf | None:
    """Return what a build of `source` would be computed from directly.

    Rows are a function of the BuildID and of these. None where it is not known yet: a table that
    it reads is built before.
    """
    parts: list[Iterable[RawVersion]] = []
    if source.reads_clock:
        now = world.day if source.reads_clock == "day" else world.instant
        parts.append([RawVersion(CLOCK, now)])
    for upstream in project.inputs(source):
        step = (coming or {}).get(upstream.source_id)
        snapshot = step.snapshot if step else world.readable(upstream)
        if upstream.raw is not None:
            version = world.versions.get(upstream.source_id, NO_DATA)
            parts.append([RawVersion(upstream.build_id, version)])
        elif step is not None and step.action == "build":
            return None
        elif snapshot is not None:
            parts.append([RawVersion(upstream.build_id, CONTENT + snapshot.content)])
        else:
            inline = inputs(project, upstream, world, coming)
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
    *,
    force: bool,
) -> Step:
    snapshot = world.manifest.get(source.build_id)
    gone = snapshot is not None and source.build_id in world.missing
    fits = _is_kept_so(project, source)
    if (
        snapshot is None
        or gone
        or not fits(snapshot)
        or _without_draw(snapshot.as_of, source) != expected
    ):
        # What another environment has may be the very rows.
        others = world.elsewhere.get(source.build_id, ())
        fitting = [s for s in others if fits(s) and _without_draw(s.as_of, source) == expected]
        snapshot, gone = (fitting[0], False) if fitting else (snapshot, gone)
    if snapshot is not None and not gone and _is_young(source, snapshot, expected, world):
        expected = _without_draw(snapshot.as_of, source)
    last = world.history.get(source.source_id)
    reasons: list[Reason] = []
    same_rows, increment = False, None
    if snapshot is None:
        reasons += _why_no_table(project, source, last, coming)
    elif gone:
        reasons.append(Reason("missing", f"its table {snapshot.table} is gone"))
    elif not fits(snapshot):
        kept = "stored query" if snapshot.view is None else "table"
        reasons.append(Reason("strategy", f"it is kept as a {kept} now"))
    elif _without_draw(snapshot.as_of, source) != expected:
        same_rows = bool(snapshot.inputs) and snapshot.inputs == inputs(
            project, source, world, coming
        )
        if not same_rows:
            if source.source_id in world.expired:
                reasons.append(Reason("age", "its table is older than its freshness window"))
            reasons += _why_other_data(project, source, snapshot, expected)
            if not force and source.annotation.refresh == "incremental":
                increment, why = _increment(project, source, snapshot, world, coming, expected)
                reasons.append(why)
    if force:
        reasons.append(Reason("forced", "asked for"))
    if reasons:
        reasons += _what_is_old(project, source, world, coming)
        reasons += _what_stops_it(project, source, world, coming)
    if reasons and last is not None and last.state == "failed":
        error = (last.error or "").splitlines()
        reasons.append(Reason("failed", f"failed last time: {error[0] if error else 'unknown'}"))
    estimate = None
    known = (last and last.snapshot) or snapshot
    if reasons and known is not None:
        seconds = last.seconds if last and last.action == "built" else None
        estimate = Estimate(known.rows, known.bytes, seconds)
    action: Literal["build", "reuse"] = "build" if reasons else "reuse"
    if action == "reuse" and snapshot is not None:
        own = [v for v in snapshot.as_of if v.raw == DRAW + source.build_id]
        expected = merge_as_of([expected, own]) if same_rows else snapshot.as_of
    if action == "reuse" and same_rows:
        reasons.append(Reason("same-rows", "the data is newer, the rows it reads are the same"))
    return Step(
        source_id=source.source_id,
        action=action,
        build_id=source.build_id,
        as_of=expected,
        reasons=tuple(reasons),
        estimate=estimate,
        snapshot=snapshot if action == "reuse" else None,
        increment=increment,
    )


def _increment(
    project: Project,
    source: Source,
    base: Snapshot,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
) -> tuple[Increment | None, Reason]:
    """Return how a build continues a table, if it does, and that it does or why not."""
    known = world.changes.get(source.source_id)
    if known is None:
        why = "the table is another environment's, or another source's too"
        return None, Reason("whole", f"everything is computed: {why}")
    changes: dict[SourceID, Change | None] = {}
    for source_id, change in known.items():
        leaf = project.by_id.get(source_id)
        changes[source_id] = change
        if leaf is not None and leaf.raw is not None:
            then, now = (
                [v.version for v in versions if v.raw == leaf.build_id]
                for versions in (base.as_of, expected)
            )
            if then == now and len(now) == 1:
                changes[source_id] = Change()
            elif now != [world.versions.get(source_id)]:
                changes[source_id] = None  # what it reads mixes versions, or has an older one
        elif leaf is not None and source_id not in coming:
            table = world.readable(leaf)
            if table is None or not rests_alike(table, expected):
                changes[source_id] = None
    before = [s for s in changes if s in coming and coming[s].action == "build"]
    if before:
        names = ", ".join(project.by_id[s].name for s in before)
        return None, Reason("increment", f"what is computed depends on what comes of {names}")
    found = grow(project, source, base, changes)
    if isinstance(found, Increment):
        return found, Reason("increment", _what_is_computed(project, source, found))
    return None, Reason("whole", f"everything is computed: {found}")


def _what_is_computed(project: Project, source: Source, increment: Increment) -> str:
    if increment.past:
        return (
            f"only rows later than {increment.base.watermark} are computed: assume=exact says that"
            " the others are as they were"
        )
    if increment.traces:
        names = ", ".join(sorted(project.by_id[s].name for s in increment.changes))
        return (
            f"only rows are computed whose {source.annotation.time_column} may be that of what"
            f" changed in {names}"
        )
    grown = sorted(project.by_id[s].name for s, files in increment.added.items() if files)
    return f"only what was added to {', '.join(grown) or 'nothing'} is computed"


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
    own = [RawVersion(DRAW + source.build_id, build_uid)] if source.volatile else []
    return merge_as_of([as_of, own])


def _without_draw(as_of: AsOf, source: Source) -> AsOf:
    """Return what a snapshot rests on besides its own draw."""
    return tuple(v for v in as_of if v.raw != DRAW + source.build_id)


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
    """Yield which tables that it reads are older than they may be."""
    for upstream in project.inputs(source):
        fallback = world.expired.get(upstream.source_id)
        if fallback is not None and upstream.source_id not in coming:
            message = f"the table of {upstream.name} is older than its freshness window: "
            yield Reason("age", message + WHEN_OLD[fallback], upstream.source_id)


def _what_stops_it(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step]
) -> Iterable[Reason]:
    for upstream in project.reach(source.bindings, lambda s: _has_table(project, s, world, coming)):
        if upstream.raw is not None and upstream.source_id not in world.versions:
            why = world.absent.get(upstream.source_id, "its data is not there")
            yield Reason("no-data", f"{upstream.name}: {why}", upstream.source_id)
    for upstream in unchecked(project, source, world, coming):
        yield Reason(
            "unchecked", f"{upstream.name} has to pass its checks first", upstream.source_id
        )


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
    what = in_words(difference) or "the order of its columns changed"
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
    project: Project, source: Source, snapshot: Snapshot, expected: AsOf
) -> Iterable[Reason]:
    names = {s.build_id: s for s in project.sources if s.raw is not None}
    then, now = set(_without_draw(snapshot.as_of, source)), set(expected)
    changed = {v.raw: v.version for v in sorted(then - now) + sorted(now - then)}
    for raw, version in changed.items():
        upstream = names.get(raw)
        if raw == CLOCK:
            yield Reason("clock", f"`{source.name}` or what it reads looks at the clock")
        elif raw.startswith(DRAW):
            drawn = next((s for s in project.sources if DRAW + s.build_id == raw), None)
            name = drawn.name if drawn else "something it read"
            yield Reason("upstream", f"{name} drew lots again", drawn.source_id if drawn else None)
        elif upstream is None:
            yield Reason("input", "it rests on data that is no longer read")
        elif version.startswith(UNVERSIONED):
            message = f"the data of {upstream.name} does not tell whether it changed"
            yield Reason("unversioned", message, upstream.source_id)
        elif raw in mixed(snapshot.as_of) and raw not in mixed(expected):
            message = f"it mixes two versions of the data of {upstream.name}"
            yield Reason("mixed", message, upstream.source_id)
        else:
            yield Reason("input", f"the data of {upstream.name} changed", upstream.source_id)
