"""Columns in scope: which they are, of which sources, and where they are defined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.errors import Location
from persist_assets.core.languages import SQL
from persist_assets.core.model.queries import Reference
from persist_assets.lsp.scopes import Item, Scope, Select, Table, declared_in, output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from persist_assets.core.model.sources import Source
    from persist_assets.lsp.workspace import State


@dataclass(frozen=True, slots=True)
class Known:
    """A column in scope.

    Attributes
    ----------
    type, description
        Those of the source's column that it is; None if it is computed here.
    source
        The source whose column it is.
    item
        Where a query of the same file names it.
    """

    name: str
    type: str | None = None
    description: str | None = None
    source: Source | None = None
    item: Item | None = None


def find_source(state: State, path: str, parts: tuple[str, ...]) -> Source | None:
    """Return the source that a name in a file means, as it was when it last compiled."""
    if state.loaded is None or not parts:
        return None
    reference = Reference(parts, 0, 0, None, Location(path))
    fits = state.loaded.compilation.names.find(reference, path, SQL)
    return state.known.get(fits[0][1]) if len(fits) == 1 else None


def columns_of(state: State, path: str, table: Table) -> Iterator[Known]:
    """Yield the columns of a table in scope, in order."""
    if table.query is not None:
        yield from _output(state, path, table.query)
        return
    source = find_source(state, path, table.parts)
    for column in source.known_columns if source else ():
        yield Known(column.name, column.type, column.description, source)


def _output(state: State, path: str, select: Select) -> Iterator[Known]:
    """Yield the output columns of a query in the same file."""
    for item in select.items:
        origin = item.origin or ()
        if item.name is None:
            for table in select.tables:
                if not origin or table.name.lower() == origin[-1].lower():
                    yield from columns_of(state, path, table)
            continue
        whole = _in_tables(state, path, select, origin)
        if whole is None:
            yield Known(item.name, item=item)
        else:
            yield Known(item.name, whole.type, whole.description, whole.source, item)


def _in_tables(state: State, path: str, select: Select, parts: tuple[str, ...]) -> Known | None:
    """Return the column that a name means among the tables of a SELECT."""
    for table in select.tables if parts else ():
        if len(parts) == 1 or table.name.lower() == parts[-2].lower():
            for column in columns_of(state, path, table):
                if column.name.lower() == parts[-1].lower():
                    return column
    return None


def find_column(state: State, path: str, scope: Scope) -> Known | None:
    """Return the column that the word at a place means, or None."""
    if scope.word is None or scope.word.name is None or scope.expects_table:
        return None
    name = scope.word.name
    parts = (name,) if scope.qualifier is None else (scope.qualifier, name)
    for select in scope.selects:
        own = next((i for i in select.items if i.start == scope.word.start), None)
        if own is not None and (own.origin is None or own.origin[-1] != name):
            return Known(name, item=own)  # it is named here
        column = _in_tables(state, path, select, parts)
        if column is not None:
            return column
    return None


def find_table(scope: Scope) -> Table | None:
    """Return the table or common table expression that the word at a place names, or None."""
    if scope.word is None or scope.word.name is None:
        return None
    name = scope.word.name.lower()
    ctes = (t for t in scope.ctes if t.name.lower() == name)
    return next(ctes, None) if scope.expects_table else scope.table(name)


def find_definition_of(state: State, source: Source, name: str) -> tuple[str, int, int] | None:
    """Return the place where the text of a source names one of its columns.

    Returns
    -------
    tuple
        Path, and the offsets of the name. None: the text does not, or it is not SQL.
    """
    for _ in range(len(state.known) + 1):  # a star leads to another source
        path = source.location.path
        if source.language != SQL:
            return None
        text = state.text(path)
        start = text.offset_of(source.location)
        for item in declared_in(text.text, start):
            if (item.name or "").lower() == name.lower():
                return path, item.start, item.end
        select = output_of(text.text, start + 1)
        if select is None:
            return None
        for item in select.items:
            if (item.name or "").lower() == name.lower():
                return path, item.start, item.end
        stars = [i for i in select.items if i.name is None]
        column = next(
            (
                c
                for c in _output(state, path, Select(tuple(stars), select.tables))
                if c.name == name
            ),
            None,
        )
        if column is None:
            return None
        if column.item is not None:
            return path, column.item.start, column.item.end
        if column.source is None or column.source.source_id == source.source_id:
            return None
        source = column.source
    return None
