"""Commands that document a project: lineage and docs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    command,
    err,
    exit_code,
    out,
    print_json,
    print_problem,
    source_names,
)
from persist_assets.core.errors import SourcesError
from persist_assets.core.model.columns import ColumnRef
from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.user import make_private
from persist_assets.planning.lineage import find_columns, trace

# ------------------------------------------------------------------------------------------ lineage


@command("lineage")
def lineage(
    invocation: Invocation,
    name: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE[.COLUMN]",
            help="A source, or one of its columns.",
            autocompletion=source_names,
        ),
    ],
) -> None:
    """Show which columns a source's columns are computed from, and which depend on them."""
    invocation.keep_going = True  # only sources that the user asks for have to be sound
    with invocation.naming_errors(name, name.rpartition(".")[0]):
        source, column = find_columns(invocation.project, name)
    names = [column] if column is not None else [c.name for c in source.columns]
    edges = trace(invocation.project, (ColumnRef(source.source_id, name) for name in names))
    if invocation.as_json:
        edges = [{"from": _qualified(a), "to": _qualified(b)} for a, b in edges]
        print_json({"edges": edges})
        return
    key_of = invocation.project.keys
    for a, b in edges:
        left, right = (f"{key_of[c.source_id]}.{c.column}" for c in (a, b))
        out.print(f"{escape(left)} [dim]→[/] {escape(right)}", soft_wrap=True)
    if not edges:
        err.print(escape(_why_no_edges(invocation.project, source, column)), soft_wrap=True)
    if source.function is not None:
        err.print("[dim]the column lineage of functions is unknown[/]")


def _why_no_edges(project: Project, source: Source, column: str | None) -> str:
    """Return why no edge leads to or from a source's column, or any of its columns."""
    name = column if column is not None else source.name
    if source.raw is not None:
        by_it = [s for s in project.sources if source in project.reach(s.bindings, _is_leaf)]
        if not project.readers[source.source_id] and not by_it:
            return f"`{source.name}` is raw data, and nothing reads it"
        if any(not _has_lineage(project, s) for s in by_it):
            return f"the columns that are computed from `{name}` are unknown"
        return f"`{name}` is raw data, and no column is computed from it"
    if not _has_lineage(project, source):
        return f"the columns that `{name}` is computed from are unknown"
    whose = f"`{name}`" if column is not None else f"each column of `{name}`"
    return f"{whose} is computed from no column"


def _has_lineage(project: Project, source: Source) -> bool:
    """Whether it is known which columns those of a source are computed from.

    Functions, and queries that the compiler cannot read, have no known columns.
    """
    read = project.reach(source.bindings, _is_leaf)
    return all(s.columns for s in (source, *read)) and source.function is None


def _is_leaf(source: Source) -> bool:
    return source.is_leaf


def _qualified(column: ColumnRef) -> str:
    return f"{column.source_id}.{column.column}"


# --------------------------------------------------------------------------------------------- docs


@command("docs", is_confined=True)
def docs(
    invocation: Invocation,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The target directory; default: .persist/docs."),
    ] = None,
) -> None:
    """Write a static site: every source with its columns, lineage, checks and tables."""
    from persist_assets.web.site.catalog import read_knowledge
    from persist_assets.web.site.directory import write_site
    from persist_assets.web.site.pages import make_pages

    settings = invocation.settings
    project = invocation.loaded.project
    for problem in project.problems:
        print_problem(invocation, problem)
    paths = {s.location.path for s in (*project.sources, *project.broken)}
    texts: dict[str, str] = {}
    for path in sorted(paths):
        try:
            texts[path] = settings.read_text(path)
        except (OSError, ValueError):
            continue  # its pages say so
    knowledge = read_knowledge(settings, project, invocation.ledger)
    files = make_pages(project, knowledge, texts, settings.environment)
    if directory is None:
        make_private(settings.state_dir)
    site = write_site(directory or settings.state_dir / "docs", files)
    n = sum(path.endswith(".html") for path in files)
    if invocation.as_json:
        document: dict[str, Any] = {"directory": str(site), "pages": n}
        print_json(document)
    else:
        out.print(f"{n} pages in {escape(str(site))}: open index.html", soft_wrap=True)
    if project.errors:
        raise typer.Exit(exit_code(SourcesError))
