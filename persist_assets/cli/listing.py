"""Commands that print sources as they are: ls, compile."""

from typing import Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    SourceArgument,
    command,
    out,
    print_json,
    table_of,
)
from persist_assets.cli.check import source_json
from persist_assets.core.errors import NotFoundError
from persist_assets.core.model.sources import Source
from persist_assets.planning.render import substitute
from persist_assets.planning.selection import find_source


@command("ls")
def ls(
    invocation: Invocation,
    selection: SelectArgument = None,
    selectors: Annotated[
        bool, typer.Option("--selectors", help="List the saved selections instead.")
    ] = False,
) -> None:
    """List all sources, or the selected ones."""
    if selectors:
        _list_selectors(invocation)
        return
    sources = invocation.project.sources
    if selection or invocation.exclude:
        chosen = {*invocation.select(selection)}
        sources = tuple(s for s in sources if s.source_id in chosen)
    if invocation.as_json:
        print_json([source_json(s) for s in sources])
        return
    table = table_of("source", "kind", "description")
    for source in sources:
        description = (source.description or "").partition("\n")[0]
        table.add_row(escape(source.key), escape(_kind(source)), escape(description))
    out.print(table)


def _list_selectors(invocation: Invocation) -> None:
    saved = invocation.settings.selectors
    if invocation.as_json:
        print_json([{"name": s.name, "select": [*s.patterns]} for s in saved])
        return
    table = table_of("selector", "selects")
    for selector in saved:
        table.add_row(escape(selector.name), escape(", ".join(selector.patterns)))
    out.print(table)


def _kind(source: Source) -> str:
    """Return the kind of a source in two words."""
    if source.raw is not None:
        return f"{source.raw.format} {'external' if source.raw.external else 'raw'}"
    return f"{source.language} {'table' if source.persisted else 'view'}"


@command("compile")
def compile_(
    invocation: Invocation,
    source: SourceArgument,
) -> None:
    """Print the SQL that computes a source: asset keys stand for tables, the rest is inlined."""
    project = invocation.project
    compiled = find_source(project, source)
    if compiled.query is None or compiled.function is not None:
        kind = "a raw table" if compiled.raw else "a Python function"
        hint = "name a source in SQL or Malloy"
        raise NotFoundError(f"`{compiled.key}` has no SQL: it is {kind}", hint=hint)
    tables = {s.source_id: s.key for s in project.sources if s.raw or s.persisted or s.function}
    statement = substitute(project, compiled.query, compiled.bindings, tables)
    if invocation.as_json:
        reads = [*statement.views]
        document = {"source_id": compiled.source_id, "sql": statement.sql, "reads": reads}
        print_json(document)
        return
    out.print(statement.sql, markup=False, soft_wrap=True)
