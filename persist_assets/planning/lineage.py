"""Column lineage through all sources of a project. Pure.

Edges lead from columns of persisted sources and raw tables to the columns computed from them;
sources in between are dissolved. The column lineage of functions is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.errors import NotFoundError, did_you_mean
from persist_assets.core.model.columns import ColumnRef
from persist_assets.planning.selection import find_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

    Columns = Mapping[ColumnRef, list[ColumnRef]]
    """Neighbouring columns of each column, above or below it."""

Edge = tuple[ColumnRef, ColumnRef]
"""A column, and one that is computed from it."""


def edges(project: Project) -> tuple[Edge, ...]:
    """Return every edge between columns, each once, sorted."""
    pairs = {
        (edge.upstream, ColumnRef(source.source_id, edge.column))
        for source in project.sources
        for edge in source.lineage
    }
    return tuple(sorted(pairs))


def neighbours(project: Project) -> tuple[Columns, Columns]:
    """Return the columns that each is computed from, and those computed from each; sorted."""
    above: dict[ColumnRef, list[ColumnRef]] = {}
    below: dict[ColumnRef, list[ColumnRef]] = {}
    for upstream, column in edges(project):
        above.setdefault(column, []).append(upstream)
        below.setdefault(upstream, []).append(column)
    return above, below


def find_columns(project: Project, reference: str) -> tuple[Source, str | None]:
    """Resolve ``SOURCE`` or ``SOURCE.COLUMN`` to a source, and a column of it or None.

    The name of a source takes precedence over that of a column.

    Raises
    ------
    NotFoundError
        There is no such source, or it has no such column.
    ConflictError
        Several sources have the name.
    """
    try:
        return find_source(project, reference), None
    except NotFoundError as error:
        name, dot, column = reference.rpartition(".")
        if not dot:
            raise
        try:
            source = find_source(project, name)
        except NotFoundError:
            raise error from None
    names = {c.name.lower(): c.name for c in source.columns}
    if column.lower() not in names:
        hint = (
            did_you_mean(column, names.values())
            or f"known columns: {', '.join(names.values()) or '?'}"
        )
        raise NotFoundError(f"`{source.key}` has no column `{column}`", hint=hint)
    return source, names[column.lower()]


def trace(project: Project, start: Iterable[ColumnRef]) -> tuple[Edge, ...]:
    """Return the edges on all paths that lead to columns, and on all that lead on from them.

    Sorted.
    """
    above, below = neighbours(project)
    begun = tuple(start)
    up = {(u, c) for c in _reached(above, begun) for u in above.get(c, ())}
    down = {(c, d) for c in _reached(below, begun) for d in below.get(c, ())}
    return tuple(sorted(up | down))


def _reached(following: Columns, start: Iterable[ColumnRef]) -> set[ColumnRef]:
    visited: set[ColumnRef] = set()
    stack = [*start]
    while stack:
        column = stack.pop()
        if column not in visited:
            visited.add(column)
            stack += following.get(column, ())
    return visited
