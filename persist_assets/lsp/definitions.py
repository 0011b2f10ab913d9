"""The places where names are defined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.lsp.columns import find_column, find_definition_of, find_table
from persist_assets.lsp.names import find_mention
from persist_assets.lsp.scopes import scope_at

if TYPE_CHECKING:
    from persist_assets.lsp.workspace import State

    Span = tuple[str, int, int]
    """A path, and the offsets of a name in its text."""


def find_definition(state: State, path: str, offset: int) -> Span | None:
    """Return the place where the name at an offset is defined, or None."""
    assert state.loaded is not None
    mention = find_mention(state, path, offset)
    if mention is not None:
        place = state.loaded.compilation.units[mention.source_id].declaration.location
        return _name_at(state, place.path, state.text(place.path).offset_of(place))
    scope = scope_at(state.text(path).text, offset) if path.endswith(".sql") else None
    if scope is None or scope.word is None:
        return None
    column = find_column(state, path, scope)
    if column is None:
        table = find_table(scope)
        return (path, table.start, table.end) if table else None
    if column.item is not None and column.item.start != scope.word.start:
        return path, column.item.start, column.item.end
    if column.source is None:
        return None
    place = column.source.location
    defined = find_definition_of(state, column.source, column.name)
    return defined or _name_at(state, place.path, state.text(place.path).offset_of(place))


def _name_at(state: State, path: str, start: int) -> Span:
    span = find_mention(state, path, start)
    return path, start, span.end if span else start
