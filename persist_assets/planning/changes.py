"""Changes of a source's inputs, and the increments that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.checks import in_units
from persist_assets.core.model.plans import Change, Estimate, Increment, Reason, Step
from persist_assets.core.time_values import to_text
from persist_assets.planning.deltas import Refusal, describe, maintained, unmaintainable
from persist_assets.planning.increments import (
    grow,
    mismatch,
    obstacle,
)
from persist_assets.planning.inputs import rests_alike
from persist_assets.planning.maintenance import IN_FULL
from persist_assets.planning.redrawn import names_of_redrawn
from persist_assets.planning.world import CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import (
        AsOf,
        Build,
        Snapshot,
    )
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span
    from persist_assets.planning.world import World

SAME_ROWS = Reason("same-rows", "the data is newer, but the rows it reads are the same")
_SHARED = "the table is not published yet, or belongs to another source too"


def estimate_of(last: Build | None, snapshot: Snapshot | None = None) -> Estimate | None:
    """Return an estimate of the next build from the last one, else from the size of `snapshot`."""
    latest = (last and last.snapshot) or snapshot
    if latest is None:
        return None
    seconds = last.seconds if last and last.action == "built" else None
    return Estimate(latest.rows, latest.bytes, seconds)


def increment_of(
    project: Project,
    source: Source,
    base: Snapshot,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
    spans: tuple[Span, ...] = (),
) -> tuple[Increment | None, Reason]:
    """Return the increment by which a build continues a table, or None, and the reason."""
    if base.build_id != source.build_id and source.columns:
        why = mismatch(base.columns, source.columns)
        if why is not None:
            return Increment(base), Reason("older", f"it cannot be continued: {why}")
    present_changes = world.changes.get(source.source_id)
    if present_changes is None:
        why = _SHARED
        if base.time_column != source.annotation.time_column:
            why = "its watermark column changed"
        return None, Reason("whole", f"{IN_FULL}{why}")
    changes = input_changes(project, source, base.as_of, present_changes, world, coming, expected)
    direct = _direct(project, source, changes)
    followed = source.growth.reads if source.growth else direct.keys()
    grown = _waits(project, followed, coming)
    if grown is not None:
        return None, Reason("increment", grown)
    clock = {v for v in expected if v.raw == CLOCK}
    if spans and source.annotation.assume is None and not clock <= {*base.as_of}:
        return None, Reason("whole", f"{IN_FULL}{obstacle(source)}")
    growing = {s: changes[s] for s in changes if s in followed}
    grown = grow(project, source, base, growing, spans, world.zone)
    if isinstance(grown, Increment) and not grown.past and base.build_id == source.build_id:
        redrawn = names_of_redrawn(project, source, base.as_of, base.inputs, world, coming)
        grown = _may_differ(redrawn) if redrawn else grown
    if isinstance(grown, str) and not spans:
        waits = _waits(project, direct, coming)
        if waits is not None and unmaintainable(source) is None:
            return None, Reason("increment", waits)
        by_delta = maintained(project, source, base, direct, world, by_cost=False)
        if by_delta is None:
            return None, SAME_ROWS
        if isinstance(by_delta, Increment):
            return by_delta, Reason("increment", describe(project, source, by_delta))
        why = by_delta.why if isinstance(by_delta, Refusal) else by_delta
        untimed = source.annotation.time_column is None
        grown = why if untimed or source.annotation.by else grown
    if isinstance(grown, Increment):
        return grown, Reason("increment", _describe_increment(project, source, grown))
    return None, Reason("whole", f"{IN_FULL}{grown}")


def _may_differ(tables: Sequence[str]) -> str:
    return f"{' and '.join(tables)} may have other rows from the same data"


def delta_of(
    project: Project,
    source: Source,
    base: Snapshot,
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
) -> Increment | Refusal | str | None:
    """Return the increment by which ``refresh=auto`` maintains a table, or why it does not.

    None: no row can differ.

    Only tables whose inputs changed are maintained.
    """
    present_changes = world.changes.get(source.source_id)
    if present_changes is None:
        return unmaintainable(source) or _SHARED
    changes = input_changes(project, source, base.as_of, present_changes, world, coming, expected)
    direct = _direct(project, source, changes)
    waits = _waits(project, direct, coming)
    return waits or maintained(project, source, base, direct, world, by_cost=True)


def _direct(
    project: Project, source: Source, changes: Mapping[SourceID, Change | None]
) -> dict[SourceID, Change | None]:
    """Return the changes of the tables that the source's own query reads."""
    return {s.source_id: changes[s.source_id] for s in project.inputs(source)}


def _waits(
    project: Project, tables: Iterable[SourceID], coming: Mapping[SourceID, Step]
) -> str | None:
    """Return why the change of some tables is not known yet; None: it is."""
    rebuilt = sorted(s for s in tables if s in coming and coming[s].action == "build")
    if not rebuilt:
        return None
    names = " and ".join(project.by_id[s].name for s in rebuilt)
    return f"the method is known once {names} {'are' if len(rebuilt) > 1 else 'is'} built"


def input_changes(
    project: Project,
    source: Source,
    then: AsOf,
    present_changes: Mapping[SourceID, Change | None],
    world: World,
    coming: Mapping[SourceID, Step],
    expected: AsOf,
) -> dict[SourceID, Change | None]:
    """Return the changes of tables between the data that rows depend on and that of the next build.

    Parameters
    ----------
    present_changes
        The changes until now.
    """
    changes: dict[SourceID, Change | None] = {}
    for source_id, change in present_changes.items():
        leaf = project.by_id.get(source_id)
        changes[source_id] = change
        if leaf is not None and leaf.raw is not None:
            former, latest = (
                [v.version for v in versions if v.raw == leaf.build_id]
                for versions in (then, expected)
            )
            if former == latest and len(latest) == 1:
                changes[source_id] = Change()
            elif latest != [world.version(source.source_id, leaf)]:
                changes[source_id] = None  # its inputs mix versions, or have an older one
        elif leaf is not None:
            table, step = world.readable(leaf), coming.get(source_id)
            if step is None and (table is None or not rests_alike(table, expected)):
                changes[source_id] = None
            reused, base = (step.snapshot, step.base) if step is not None else (None, None)
            if reused is not None and (table is None or table.content != reused.content):
                changes[source_id] = None  # it is going to be another environment's table
            if base is not None and (table is None or table.build_uid != base.build_uid):
                changes[source_id] = None  # it is going to continue one
    return changes


def _describe_increment(project: Project, source: Source, increment: Increment) -> str:
    if increment.past:
        lookback = source.annotation.lookback_s
        late = f", and of up to {in_units(lookback)} before," if lookback else ""
        message = (
            f"only rows from {increment.base.watermark} on{late} are computed: assume=exact states"
            " that the others are unchanged"
        )
        if not increment.late:
            return message
        return f"{message}, but new files of {', '.join(increment.late)} contain earlier times"
    column = source.annotation.time_column
    spans = " and ".join(f"{to_text(a)} to {to_text(b)}" for a, b in increment.spans)
    if spans and not increment.traces:
        return f"only rows whose {column} is {spans} are computed"
    if increment.traces:
        names = ", ".join(sorted(project.by_id[s].name for s in increment.changes))
        return (
            f"only rows whose {column} may match what changed in {names}"
            f"{f', or is {spans},' if spans else ''} are computed"
        )
    grown = sorted(project.by_id[s].name for s, files in increment.added.items() if files)
    if not grown:
        return "no rows are computed"
    return f"only rows that follow from rows added to {' and '.join(grown)} are computed"
