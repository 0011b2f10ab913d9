"""The files, by statistics, that can hold rows that a build needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.building.key_files import pieces_of
from persist_assets.building.reader import Slice
from persist_assets.core.errors import BuildError
from persist_assets.planning.increments import column_type, in_order, meeting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.building.strategies.strategy import Task
    from persist_assets.building.strategies.windows import Window
    from persist_assets.core.model.columns import ColumnRef
    from persist_assets.core.model.plans import Piece
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot


def slices_of(task: Task, window: Window) -> dict[SourceID, Slice]:
    """Return the rows to read for a window, without files that have none of them."""
    source, settings = task.source, task.reader.settings
    slices = {s: Slice(where=test) for s, test in window.leaves.items()}
    spans = [box[0] for box in window.boxes]
    zone, kind = settings.timezone.key, window.columns[0][1]
    for trace in source.windows.traces if source.windows else ():
        source_id = trace.column.source_id
        pieces = _pieces(task, trace.column)
        if source_id in slices and pieces is not None and not slices[source_id].groups:
            leaf = column_type(task.reader.project.by_id[source_id].columns, trace.column.column)
            some = meeting(pieces, trace, leaf, kind, zone, spans, nulls=window.nulls)
            if len(some) < len(pieces):
                files = tuple(piece.path for piece in some)
                slices[source_id] = replace(slices[source_id], groups=(files,))
    return slices


def ordered_slices(task: Task, slices: Mapping[SourceID, Slice]) -> dict[SourceID, Slice]:
    """Return the table from which rows are computed one by one, in groups of files by time.

    Read in these groups, the rows arrive in the order of the partitions. Empty if the files do not
    allow it.
    """
    source, windows = task.source, task.source.windows
    if windows is None or source.growth is None or len(source.growth.reads) != 1:
        return {}
    (source_id,) = source.growth.reads
    if frozenset((source_id,)) not in source.growth.sums or not windows.traces:
        return {}
    traced = windows.traces[0].column
    pieces = _pieces(task, traced)
    if pieces is None:
        return {}
    column, part = traced.column, slices.get(source_id, Slice())
    chosen = {path for files in part.groups for path in files}
    pieces = [p for p in pieces if not part.groups or p.path in chosen]
    kind = column_type(task.reader.project.by_id[source_id].columns, column)
    groups = in_order(pieces, column, kind)
    return {source_id: replace(part, groups=groups)} if groups else {}


def without_shared(
    task: Task, read: Mapping[SourceID, Snapshot], slices: Mapping[SourceID, Slice]
) -> dict[SourceID, Slice]:
    """Return slices of tables, except tables of which something else reads all rows.

    `Growth.reads` treats each table on its own. A source that is not read from its table is
    computed, perhaps from tables of which only slices would be read.

    Raises
    ------
    BuildError
        Rows cannot be added without such a slice.
    """
    source, project = task.source, task.reader.project
    tables = source.growth.reads if source.growth else ()
    sources = [project.by_id[s] for s in tables if s in project.by_id]
    computed = [s.source_id for s in sources if s.source_id not in read and s.raw is None]
    below = project.reach(computed, lambda s: s.source_id in read)
    shared = {s.source_id for s in below} & slices.keys()
    if any(slices[s].files is not None for s in shared):
        names = ", ".join(sorted(f"`{project.by_id[s].name}`" for s in computed))
        raise BuildError(
            f"`{source.name}` cannot continue: {names} can no longer be read from its table",
            hint="build again",
            location=source.location,
        )
    return {s: part for s, part in slices.items() if s not in shared}


def _pieces(task: Task, column: ColumnRef) -> tuple[Piece, ...] | None:
    """Return the files of a table that the source reads itself, with their statistics of a column.

    None if there are no statistics.
    """
    project, world = task.reader.project, task.world
    leaf = project.by_id.get(column.source_id)
    if leaf is None or leaf not in project.inputs(task.source):
        return None
    if leaf.raw is not None:
        is_versioned = leaf.source_id in world.versions
        return pieces_of(task.reader, leaf, None, column.column) if is_versioned else None
    table = world.readable(leaf)
    return pieces_of(task.reader, leaf, table, column.column) if table else None
