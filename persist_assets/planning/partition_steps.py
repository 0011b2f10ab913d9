"""The step of a source that is built by partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.core.model.plans import Change, Piece, Reason, Step
from persist_assets.core.model.snapshots import (
    AsOf,
    Filled,
    Partitions,
    RawVersion,
    Snapshot,
    merge_as_of,
)
from persist_assets.core.partitions import (
    boxes,
    expand,
    filled_keys,
    reached,
    runs,
)
from persist_assets.planning.changes import estimate_of, input_changes
from persist_assets.planning.increments import (
    merged_spans,
    parted_by,
    touched,
)
from persist_assets.planning.inputs import (
    digest_partitions,
    follows_from,
    inputs,
    other_code,
    other_rows,
)
from persist_assets.planning.reasons import (
    counted,
    how_it_failed,
    what_is_old,
    what_stops_it,
    why_no_table,
    why_other_data,
    why_other_rows,
)
from persist_assets.planning.world import PARTITIONS, World

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source


def partition_step(
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
            told = f"the partitions of its table {own.table} are unknown: it was imported"
            reasons.append(Reason("strategy", told))
        else:
            reasons += why_no_table(project, source, last, coming)
    new, old = (
        [key for key in todo if (key in there) is known and key not in current]
        for known in (False, True)
    )
    bad = [key for key in old if key in tainted]
    old = [key for key in old if key not in tainted]
    if bad:
        reasons.append(Reason("tainted", f"{counted(order, bad)} tainted"))
    if new:
        reasons.append(Reason("partition", f"{counted(order, new)} not built yet"))
    if old:
        assert base is not None and base.partitions is not None
        reasons.append(Reason("partition", f"{counted(order, old)} may have changed"))
        reasons += why_other_data(project, source, base, world, expected)
        before = [i for group in base.partitions.filled for i in group.inputs]
        reasons += why_other_rows(project, source, other_rows(before, now))
    if force:
        reasons.append(Reason("forced", "requested"))
    if reasons:
        reasons += what_is_old(project, source, world, coming)
        reasons += what_stops_it(project, source, world, coming, todo)
        reasons += how_it_failed(last)
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
        estimate=estimate_of(last) if reasons else None,
        snapshot=None if reasons else base,
        keys=tuple(todo),
        base=stays,
        partitions=partitions,
    )


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
            others = other_code(source, group.as_of, expected)
        if follows_from(project, source, others):
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
    changes = input_changes(project, source, group.as_of, known, world, coming, expected)
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
