"""Hover texts for names of sources and columns, in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.annotations import Kind
from persist_assets.lsp.columns import find_column
from persist_assets.lsp.names import find_mention
from persist_assets.lsp.scopes import scope_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.lsp.columns import Known
    from persist_assets.lsp.workspace import State

_MOST = 12
"""The maximum number of names listed."""


def describe(state: State, path: str, offset: int) -> str | None:
    """Return a description of the name at an offset of a file, in Markdown, or None."""
    if state.loaded is None:
        return None
    mention = find_mention(state, path, offset)
    if mention is not None:
        source = state.known.get(mention.source_id)
        return describe_source(state.loaded.project, source) if source else None
    scope = scope_at(state.text(path).text, offset) if path.endswith(".sql") else None
    if scope is None:
        return None
    column = find_column(state, path, scope)
    if column is not None and column.source is None:
        column = _own(state, path, column) or column
    return describe_column(state.loaded.project, column) if column else None


def _own(state: State, path: str, column: Known) -> Known | None:
    """Return a column that is named here as the output of the source in whose query it stands."""
    if column.item is None:
        return None
    text = state.text(path)
    before = [
        s
        for s in state.known.values()
        if s.location.path == path and text.offset_of(s.location) < column.item.start
    ]
    if not before:
        return None
    source = max(before, key=lambda s: text.offset_of(s.location))
    output = scope_at(text.text, text.offset_of(source.location) + 1)
    if output is None or not output.selects or column.item not in output.selects[-1].items:
        return None
    types = (c for c in source.known_columns if c.name.lower() == column.name.lower())
    return next((type(column)(c.name, c.type, c.description, source) for c in types), None)


def kind_of(source: Source) -> str:
    """Return the kind of a source, in words."""
    if source.kind is Kind.EXTERNAL:
        return "external table"
    if source.kind is Kind.RAW:
        return "raw table"
    return "persisted source" if source.persisted else "source"


def describe_source(project: Project, source: Source) -> str:
    """Return a source's kind, inputs and readers, and the tables that an edit rebuilds."""
    lines = [f"**{source.key}** · {kind_of(source)}"]
    if source.description:
        lines.append(source.description)
    columns = source.known_columns
    if columns:
        rows = (f"| `{c.name}` | {c.type or '?'} | {_cell(c.description)} |" for c in columns)
        lines.append("\n".join(("| column | type | |", "|---|---|---|", *rows)))
    readers = project.readers.get(source.source_id, ())
    for title, ids in (("reads", source.reads), ("read by", readers)):
        if ids:
            lines.append(f"{title}: {_listed(project, ids)}")
    lines.append(_rebuilt(project, source))
    return "\n\n".join(lines)


def _rebuilt(project: Project, source: Source) -> str:
    """Return a sentence about the tables whose BuildIDs depend on a source."""
    reached: dict[SourceID, None] = {source.source_id: None}
    for source_id in reached.copy():
        todo = [source_id]
        while todo:
            for reader in project.readers.get(todo.pop(), ()):
                if reader not in reached:
                    reached[reader] = None
                    todo.append(reader)
    tables = [s for s in reached if s in project.by_id and project.by_id[s].persisted]
    if not tables:
        return "An edit here rebuilds nothing: no persisted source depends on it."
    n = f"up to {len(tables)} tables" if len(tables) > 1 else "1 table"
    return f"An edit here rebuilds {n}: {_listed(project, tables)}"


def _listed(project: Project, ids: Iterable[SourceID]) -> str:
    names = [project.by_id[i].key if i in project.by_id else i for i in ids]
    rest = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + rest


def describe_column(project: Project, column: Known) -> str:
    """Return the type of a column, and the columns from which it is computed."""
    source = column.source
    of = f" · column of **{source.key}**" if source else " · computed in this query"
    lines = [f"`{column.name}` {column.type or ''}{of}".replace("  ", " ")]
    if column.description:
        lines.append(column.description)
    origins = [
        f"{_listed(project, [edge.upstream.source_id])}.{edge.upstream.column}"
        for edge in (source.lineage if source else ())
        if edge.column.lower() == column.name.lower()
    ]
    if origins:
        lines.append(f"computed from: {', '.join(dict.fromkeys(origins))}")
    return "\n\n".join(lines)


def _cell(text: str | None) -> str:
    return (text or "").replace("\n", " ").replace("|", "\\|")
