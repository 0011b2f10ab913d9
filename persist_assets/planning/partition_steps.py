"""Steps of sources that are built by partitions."""

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
from persist_assets.planning.maintenance import with_maintenance
from persist_assets.planning.reasons import (
    counted,
    last_failure,
    obstacles_to_build,
    unusable_inputs,
    why_no_table,
    why_other_data,
    why_other_rows,
)
from persist_assets.planning.redrawn import names_of_redrawn
from persist_assets.planning.world import PARTITIONS, World

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source


def partition_step(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    partition_keys: Collection[str] | None,
    *,
    force: bool,
) -> Step:
    """Return a step that computes the partitions that are missing or may have other rows.

    Parameters
    ----------
    partition_keys
        The partitions to build; None: all partitions of the source.
    """
    # Sources may have many thousands of partitions: what is trivial is not computed key by key.
    order = world.keys[source.source_id]
    chosen = None if partition_keys is None else frozenset(partition_keys)
    selected = order if chosen is None else [key for key in order if key in chosen]
    present_inputs = inputs(project, source, world, coming)
    base, current = _best_table(project, source, world, coming, expected, present_inputs, selected)
    is_all = force or not current
    todo = selected if is_all else [key for key in selected if key not in current]
    built = filled_keys(order, base.partitions.filled) if base and base.partitions else frozenset()
    last = world.history.get(source.source_id)
    reasons = [] if base else [*_why_no_table(project, source, world, coming)]
    reasons += _why_partitions(
        project, source, world, expected, present_inputs, base, frozenset(todo) - current
    )
    if force:
        reasons.append(Reason("forced", "requested"))
    if reasons:
        reasons += unusable_inputs(project, source, world, coming)
        reasons += obstacles_to_build(project, source, world, coming, todo)
        reasons += last_failure(last)
    filled = _filled(order, base, current | {*todo}, expected, present_inputs)
    stays = base if built - {*todo} else None
    partitions = Partitions(tuple(filled), runs(order, todo), stays.build_uid if stays else None)
    version = RawVersion(PARTITIONS + source.build_id, digest_partitions(filled))
    step = Step(
        source_id=source.source_id,
        action="build" if reasons else "reuse",
        build_id=source.build_id,
        as_of=merge_as_of([[version], *(group.as_of for group in filled)]),
        reasons=tuple(reasons),
        estimate=estimate_of(last) if reasons else None,
        snapshot=None if reasons else base,
        keys=tuple(todo),
        base=stays,
        partitions=partitions,
    )
    return with_maintenance(source, step)


def _best_table(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    present_inputs: AsOf | None,
    selected: Collection[str],
) -> tuple[Snapshot | None, frozenset[str]]:
    """Return the table that lacks the fewest of the selected partitions, and its current ones.

    The environment's own table takes precedence. Another one counts only if no partition of the own
    table is missing there or computed from other data. An imported table has no partitions.
    """
    snapshot = world.manifest.get(source.build_id)
    tables = [] if snapshot is None or source.build_id in world.missing else [snapshot]
    tables += world.elsewhere.get(source.build_id, ())
    tainted = world.tainted.get(source.source_id, frozenset())
    candidates = [
        (table, _current(project, source, table, world, coming, expected, present_inputs) - tainted)
        for table in tables
        if table.partitions is not None
    ]
    if candidates and candidates[0][0] is snapshot:
        order, (own, _) = world.keys[source.source_id], candidates[0]
        candidates = [c for c in candidates if c[0] is own or _has_all(order, c[0], c[1], own)]
    return max(
        candidates, key=lambda c: len(c[1].intersection(selected)), default=(None, frozenset())
    )


def _has_all(order: Sequence[str], table: Snapshot, current: frozenset[str], own: Snapshot) -> bool:
    """Whether a table has all partitions of another one, current or computed from the same data."""
    assert table.partitions is not None
    assert own.partitions is not None
    same: dict[tuple[AsOf, AsOf], set[str]] = {}
    for group in table.partitions.filled:
        same.setdefault((group.as_of, group.inputs), set()).update(expand(order, group.runs))
    return all(
        {*expand(order, group.runs)} <= current | same.get((group.as_of, group.inputs), set())
        for group in own.partitions.filled
    )


def _why_no_table(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step]
) -> Iterable[Reason]:
    """Return why no table has partitions that a build can continue."""
    snapshot = world.manifest.get(source.build_id)
    if snapshot is None:
        last = world.history.get(source.source_id)
        return why_no_table(project, source, last, coming)
    if source.build_id in world.missing:
        return [Reason("missing", f"its table {snapshot.table} is gone")]
    message = f"the partitions of its table {snapshot.table} are unknown: it was imported"
    return [Reason("strategy", message)]


def _why_partitions(
    project: Project,
    source: Source,
    world: World,
    expected: AsOf,
    present_inputs: AsOf | None,
    base: Snapshot | None,
    outdated: frozenset[str],
) -> Iterable[Reason]:
    """Yield the reasons to compute partitions that are not current in a table."""
    order = world.keys[source.source_id]
    groups = base.partitions.filled if base and base.partitions else ()
    built, tainted = filled_keys(order, groups), world.tainted.get(source.source_id, frozenset())
    bad = _in_order(order, tainted & built & outdated)
    if bad:
        yield Reason("tainted", f"{counted(order, bad)} tainted")
    new = _in_order(order, outdated - built)
    if new:
        yield Reason("partition", f"{counted(order, new)} not built yet")
    old = _in_order(order, (outdated & built) - tainted)
    if old and base is not None:
        yield Reason("partition", f"{counted(order, old)} may have changed")
        yield from why_other_data(project, source, base, world, expected)
        then = [version for group in groups for version in group.inputs]
        yield from why_other_rows(project, source, other_rows(then, present_inputs))


def _in_order(order: Sequence[str], chosen: frozenset[str]) -> list[str]:
    return [key for key in order if key in chosen] if chosen else []


def _filled(
    order: Sequence[str],
    base: Snapshot | None,
    current: frozenset[str],
    expected: AsOf,
    present_inputs: AsOf | None,
) -> list[Filled]:
    """Return the data of partitions after the build: one group for each as_of."""
    filled = [Filled(runs(order, current), expected, present_inputs or ())]
    if order and not current:
        filled = []
    for group in base.partitions.filled if base and base.partitions else ():
        rest = [key for key in expand(order, group.runs) if key not in current]
        if rest:
            filled.append(replace(group, runs=runs(order, rest)))
    return filled


def _current(
    project: Project,
    source: Source,
    table: Snapshot,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    now: AsOf | None,
) -> frozenset[str]:
    """Return the partitions of a table whose rows are those that a build would compute."""
    assert table.partitions is not None
    order, current = world.keys[source.source_id], set[str]()
    for group in table.partitions.filled:
        keys = expand(order, group.runs)
        current.update(keys)
        newer, others = group.as_of != expected, other_rows(group.inputs, now)
        if group.inputs == now or not (newer or others):
            continue
        if newer:
            others = other_code(source, group.as_of, expected)
        if follows_from(project, source, others):
            keys = _stale(project, source, table, group, keys, world, coming, expected)
        current -= {*keys}
    return frozenset(current)


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
    """Return the partitions of a group that may have other rows by now."""
    partition, columns = source.annotation.partition, parted_by(source, table)
    changes_by_table = world.aged.get((source.source_id, group.as_of, group.inputs))
    windows = source.windows
    if changes_by_table is None or windows is None or not columns or partition is None:
        return keys
    if names_of_redrawn(project, source, group.as_of, group.inputs, world, coming):
        return keys
    changes = input_changes(project, source, group.as_of, changes_by_table, world, coming, expected)
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
    affected = touched(project, traces, sure, columns[0][1], world.zone)
    return keys if affected is None else reached(partition, columns[0][1], keys, affected[0])


def _with_partitions(project: Project, change: Change, step: Step, world: World) -> Change | None:
    """Return the change of a table after a step that builds some of its partitions."""
    source = project.by_id[step.source_id]
    partition, columns = source.annotation.partition, parted_by(source, step.base)
    if partition is None or not columns or step.keys is None:
        return None
    column, kinds = columns[0][0].lower(), [kind for _, kind in columns]
    if (change.added or change.lost) and column not in change.within:
        return None
    key_boxes = boxes(partition, kinds, step.keys, world.keys[step.source_id])
    spans = merged_spans([*change.within.get(column, ()), *(box[0] for box in key_boxes)])
    return Change((Piece(""),), within={column: spans}) if step.keys else change
