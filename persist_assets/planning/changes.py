"""What became of what a source reads, and what is computed of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.checks import in_units
from persist_assets.core.model.plans import Change, Estimate, Increment, Reason, Step
from persist_assets.core.time_values import to_text
from persist_assets.planning.increments import (
    grow,
    mismatch,
)
from persist_assets.planning.inputs import rests_alike

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def estimate_of(last: Build | None, snapshot: Snapshot | None = None) -> Estimate | None:
    """Return what the last build says of the next one; else what there is of `snapshot`."""
    known = (last and last.snapshot) or snapshot
    if known is None:
        return None
    seconds = last.seconds if last and last.action == "built" else None
    return Estimate(known.rows, known.bytes, seconds)


def increment_of(
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
            return Increment(base), Reason("older", f"it cannot be continued: {why}")
    known = world.changes.get(source.source_id)
    if known is None:
        why = "the table belongs to another environment, or to another source too"
        if base.time_column != source.annotation.time_column:
            why = "its watermark column changed"
        return None, Reason("whole", f"computed in full: {why}")
    changes = input_changes(project, source, base.as_of, known, world, coming, expected)
    before = [s for s in changes if s in coming and coming[s].action == "build"]
    if before:
        names = ", ".join(project.by_id[s].name for s in before)
        return None, Reason("increment", f"how much is computed depends on the builds of {names}")
    found = grow(project, source, base, changes, again, world.zone)
    if isinstance(found, Increment):
        return found, Reason("increment", _what_is_computed(project, source, found))
    return None, Reason("whole", f"computed in full: {found}")


def input_changes(
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
            f"only rows from {increment.base.watermark} on{late} are computed: assume=exact states"
            " that the others are unchanged"
        )
        if not increment.late:
            return told
        return f"{told}, but new files of {', '.join(increment.late)} contain earlier times"
    column = source.annotation.time_column
    asked = " and ".join(f"{to_text(a)} to {to_text(b)}" for a, b in increment.again)
    if asked and not increment.traces:
        return f"only rows whose {column} is {asked} are computed"
    if increment.traces:
        names = ", ".join(sorted(project.by_id[s].name for s in increment.changes))
        return (
            f"only rows are computed whose {column} may match what"
            f" changed in {names}{f', or is {asked}' if asked else ''}"
        )
    grown = sorted(project.by_id[s].name for s, files in increment.added.items() if files)
    return f"only rows added to {', '.join(grown) or 'nothing'} are computed"
