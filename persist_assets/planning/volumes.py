"""The amount that a build will read, as far as it is known without reading. Pure.

    sizes of the tables, files that came or went, statements of its program ─► `Volume`

A volume is an upper limit: Spark skips files and columns that a statement does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import relation_name
from persist_assets.core.model.plans import Volume

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from persist_assets.core.model.deltas import Merging, Program
    from persist_assets.core.model.plans import Change, Increment, Piece, Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.world import World

UNKNOWN = Volume(None, None)


def to_read(project: Project, source: Source, step: Step, world: World) -> Volume | None:
    """Return what the build of a step will read; None if nothing or unknown before the build.

    Tables that are built before count with their present size.
    """
    if step.action == "reuse" or step.keys is not None:
        return None
    sizes = {s.source_id: world.sizes.get(s.source_id, UNKNOWN) for s in project.inputs(source)}
    increment = step.increment
    if increment is None:
        return total(sizes.values())
    if increment.program is not None:
        return total(_by_program(increment.program, increment.changes, sizes))
    if increment.added:
        return total(_added(increment, source, world, sizes))
    return None


def rows_of_changes(source: Source, step: Step, world: World) -> int | None:
    """Return the rows of the files that came or went since a step's base; None: unknown."""
    increment = step.increment
    if increment is None:
        return None
    changes = world.changes.get(source.source_id, {})
    tables = {**increment.changes, **{s: changes.get(s) for s in increment.added}}
    if not tables or None in tables.values():
        return None
    return total(of_change(change) for change in tables.values() if change is not None).rows


def total(volumes: Iterable[Volume]) -> Volume:
    """Return the sum of volumes; a number that is unknown in one is unknown in the sum.

    Examples
    --------
    >>> total([Volume(1, 10), Volume(None, 5)])
    Volume(rows=None, bytes=15)
    """
    rows: int | None = 0
    size: int | None = 0
    for one in volumes:
        rows = None if rows is None or one.rows is None else rows + one.rows
        size = None if size is None or one.bytes is None else size + one.bytes
    return Volume(rows, size)


def of_pieces(pieces: Collection[Piece]) -> Volume:
    """Return the size of files."""
    rows, sizes = [p.rows for p in pieces], [p.bytes for p in pieces]
    return Volume(
        None if None in rows else sum(n or 0 for n in rows), sum(sizes) if all(sizes) else None
    )


def of_change(change: Change) -> Volume:
    """Return the size of the files that have the rows that changed, and maybe others."""
    if change.feed is not None:
        return Volume(None, change.feed.bytes)
    return of_pieces((*change.added, *change.lost))


def _by_program(
    program: Program | Merging,
    changes: Mapping[SourceID, Change],
    sizes: Mapping[SourceID, Volume],
) -> Iterable[Volume]:
    """Yield what the statements of a program read, table by table."""
    text = "\n".join(program.statements)
    probed = {probe.table for probe in program.probes.values()}
    for table, size in sizes.items():
        change = changes.get(table)
        if change is not None:
            yield of_change(change)
        names = (quote(relation_name(version, table)) for version in ("now", "old", "new"))
        if table in probed or any(name in text for name in names):
            yield size


def _added(
    increment: Increment, source: Source, world: World, sizes: Mapping[SourceID, Volume]
) -> Iterable[Volume]:
    """Yield the sizes of files that were added, and of the tables that they are joined with."""
    changes = world.changes.get(source.source_id, {})
    for table, size in sizes.items():
        files = {*increment.added.get(table, ())}
        change = changes.get(table)
        if table not in increment.added or change is None:
            yield size
            continue
        yield of_pieces([p for p in change.added if p.path in files])
