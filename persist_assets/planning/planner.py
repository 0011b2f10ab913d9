"""What would be built, what reused, and why. Pure: everything known comes as an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from persist_assets.core.model.plans import Plan, Reason, Step
from persist_assets.core.model.snapshots import (
    AsOf,
    RawVersion,
    merge_as_of,
)
from persist_assets.planning.age import is_kept_so, is_young
from persist_assets.planning.changes import estimate_of, increment_of
from persist_assets.planning.inputs import (
    follows_from,
    inputs,
    is_mixed,
    other_code,
    other_rows,
    own_marks,
    versions_of,
    without_draw,
)
from persist_assets.planning.partition_steps import partition_step
from persist_assets.planning.reasons import (
    how_it_failed,
    what_becomes_of_it,
    what_is_old,
    what_stops_it,
    why_no_table,
    why_other_data,
    why_other_rows,
)
from persist_assets.planning.world import OLDER, World, older_code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span


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
            expected = versions_of(project, source, world, coming, inline)
            if source.annotation.partition is not None:
                wanted = (asked or {}).get(source.source_id)
                step = partition_step(project, source, world, coming, expected, wanted, force=force)
            else:
                span = (again or {}).get(source.source_id)
                spans = () if span is None else (span,)
                step = _step(project, source, world, coming, expected, spans, force=force)
            coming[source.source_id] = step
    return Plan(world.environment, tuple(coming.values()))


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
    fits = is_kept_so(project, source)
    mixed = snapshot is not None and is_mixed(source, snapshot, expected)
    if not source.keeps_history and (
        snapshot is None
        or gone
        or not fits(snapshot)
        or mixed
        or without_draw(snapshot.as_of, source) != expected
    ):
        # What another environment has may be the very rows.
        others = world.elsewhere.get(source.build_id, ())
        fitting = [
            s
            for s in others
            if fits(s) and without_draw(s.as_of, source) == expected and older_code(s) is None
        ]
        fitting = [s for s in fitting if not other_rows(s.inputs, now)]
        snapshot, gone, mixed = (fitting[0], False, False) if fitting else (snapshot, gone, mixed)
    young = (
        snapshot is not None
        and not (gone or mixed or whole or again)  # then what it reads is read now
        and fits(snapshot)
        and is_young(source, snapshot, expected, world)
    )
    if snapshot is not None and young:
        expected = without_draw(snapshot.as_of, source)
    last = world.history.get(source.source_id)
    reasons: list[Reason] = []
    same_rows, increment, history = False, None, None
    if snapshot is None:
        reasons += why_no_table(project, source, last, coming)
        goes_on = source.annotation.refresh == "incremental" and source.annotation.goes_on
        if changed and goes_on and not whole and latest is not None:
            increment, why = increment_of(project, source, latest, world, coming, expected)
            reasons.append(why)
    elif gone:
        reasons.append(Reason("missing", f"its table {snapshot.table} is gone"))
    elif not fits(snapshot):
        kept = "stored query" if snapshot.view is None else "table"
        reasons.append(Reason("strategy", f"it is now stored as a {kept}"))
    elif mixed:
        told = "its table has rows of older code, and on_change=continue is not set"
        reasons.append(Reason("older", told))
    elif not young:
        newer = without_draw(snapshot.as_of, source) != expected
        same_rows = newer and bool(snapshot.inputs) and snapshot.inputs == now
        others = other_rows(snapshot.inputs, now)
        if newer:  # what changed of the data tells of all but what is of older code
            others = other_code(source, snapshot.as_of, expected)
        else:
            reasons += why_other_rows(project, source, others)
        if newer and not same_rows:
            if source.source_id in world.expired:
                reasons.append(Reason("age", "its table is older than its freshness window"))
            reasons += why_other_data(project, source, snapshot, world, expected)
        computed = bool(reasons) or (newer and not same_rows)
        whole = whole or not follows_from(project, source, others)
        if computed and not (whole or again) and source.annotation.refresh == "incremental":
            increment, why = increment_of(project, source, snapshot, world, coming, expected)
            reasons.append(why)
    if again and not (whole or mixed) and increment is None and snapshot is not None:
        increment, why = increment_of(project, source, snapshot, world, coming, expected, again)
        reasons.append(why)
    if tainted:
        reasons.append(Reason("tainted", "its table was tainted"))
    if force:
        reasons.append(Reason("forced", "requested"))
    if reasons and source.keeps_history:
        anew = not source.annotation.goes_on and (changed or force)
        history = None if anew else latest
        reasons += what_becomes_of_it(source, latest, history)
    if reasons:
        reasons += what_is_old(project, source, world, coming)
        reasons += what_stops_it(project, source, world, coming)
    if reasons:
        reasons += how_it_failed(last)
    estimate = estimate_of(last, snapshot) if reasons else None
    action: Literal["build", "reuse"] = "build" if reasons else "reuse"
    if action == "reuse" and snapshot is not None:
        own = own_marks(snapshot.as_of, source)
        expected = merge_as_of([expected, own]) if same_rows else snapshot.as_of
    if action == "reuse" and same_rows:
        reasons.append(Reason("same-rows", "the data is newer, but the rows it reads are the same"))
    if action == "reuse" and last is not None and last.build_id == source.build_id:
        reasons += how_it_failed(last)  # a check, which a build asks of what is there too
    base = snapshot if action == "reuse" else increment and increment.base
    if base is not None:
        older = older_code(base) if base.build_id == source.build_id else base.build_uid
        if older is not None:
            expected = merge_as_of([expected, [RawVersion(OLDER + source.build_id, older)]])
            told = f"remaining rows are of older code, of build {older[:8]}: on_change=continue"
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
