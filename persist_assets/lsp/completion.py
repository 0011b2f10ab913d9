"""Completions at a place in a file: sources, columns, functions, annotations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lsprotocol.types import CompletionItem, CompletionItemKind, MarkupContent, MarkupKind

from persist_assets.analysis.functions import SPARKS
from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.lsp.columns import columns_of
from persist_assets.lsp.hover import kind_of
from persist_assets.lsp.names import in_sql
from persist_assets.lsp.scopes import scope_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from persist_assets.core.model.sources import Source
    from persist_assets.lsp.scopes import Scope, Table
    from persist_assets.lsp.workspace import State

_ANNOTATION = re.compile(r"\s*(?:--@|#@|##@)(?P<written>.*)")
_INSIDE = re.compile(r"[\[{\"][^\]}\"]*$|=\S*$")
"""The end of an annotation that is being written: a value, not a key."""


def complete(state: State, path: str, text: str, offset: int) -> list[CompletionItem]:
    """Return the completions at an offset of a file.

    Parameters
    ----------
    state
        The project as it was last compiled.
    text
        The file as it is now.
    """
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    annotation = _ANNOTATION.match(line)
    if annotation:
        return [] if _INSIDE.search(annotation["written"]) else list(_keys())
    if not path.endswith(".sql") or "--" in line:
        return []
    scope = scope_at(text, offset)
    if scope is None:
        return []
    if scope.expects_table and scope.qualifier is None:
        return [*_ctes(scope), *_sources(state, path)]
    if scope.qualifier is not None:
        table = scope.table(scope.qualifier)
        return list(_columns(state, path, [table])) if table else []
    tables = (t for select in scope.selects for t in select.tables)
    return [*_columns(state, path, tables), *_functions()] if scope.selects else []


def _keys() -> Iterator[CompletionItem]:
    for key, row in KEYS.items():
        lines = (f"- {form}: {meaning}" if form else meaning for form, meaning in row.forms)
        yield CompletionItem(
            key,
            kind=CompletionItemKind.Property,
            documentation=MarkupContent(MarkupKind.Markdown, "\n".join(lines)),
        )


def _ctes(scope: Scope) -> Iterator[CompletionItem]:
    for table in scope.ctes:
        yield CompletionItem(table.name, kind=CompletionItemKind.Variable, detail="WITH")


def _sources(state: State, path: str) -> Iterator[CompletionItem]:
    if state.loaded is None:
        return
    by_name: dict[str, list[Source]] = {}
    for source_id in state.loaded.compilation.units:
        source = state.known.get(source_id)
        if source is not None:
            by_name.setdefault(source.name.lower(), []).append(source)
    for several in by_name.values():
        for source in several:
            here = len(several) == 1 or source.location.path == path
            parts = (source.name,) if here else source.asset_key
            yield CompletionItem(
                label=".".join(parts),
                insert_text=".".join(map(in_sql, parts)),
                kind=CompletionItemKind.Struct,
                detail=f"{kind_of(source)} {source.key}",
                documentation=source.description,
            )


def _columns(state: State, path: str, tables: Iterable[Table]) -> Iterator[CompletionItem]:
    names: set[str] = set()
    for table in tables:
        for column in columns_of(state, path, table):
            if column.name.lower() in names:
                continue
            names.add(column.name.lower())
            of = f" of {column.source.name}" if column.source else ""
            yield CompletionItem(
                label=column.name,
                insert_text=in_sql(column.name),
                kind=CompletionItemKind.Field,
                detail=f"{column.type or 'column'}{of}",
                documentation=column.description,
                sort_text=f"0{column.name}",
            )


def _functions() -> Iterator[CompletionItem]:
    for name, kind in SPARKS.items():
        if name.replace("_", "a").isalnum():
            kinds = CompletionItemKind.Function
            yield CompletionItem(name, kind=kinds, detail=f"{kind} function", sort_text=f"1{name}")
