"""Commands about local copies of external tables: external status and external sync."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from persist_assets.cli.app import (
    Invocation,
    SelectArgument,
    command,
    err,
    external_app,
    out,
    print_json,
    quiet,
    table_of,
)
from persist_assets.core.errors import NotFoundError, PersistError
from persist_assets.core.model.sources import Source
from persist_assets.external.coverage import short
from persist_assets.external.status import Holding, externals, find_holding, holding_document
from persist_assets.planning.selection import find_source


@command("status", external_app)
def status(given: Invocation, selection: SelectArgument = None) -> None:
    """Tell what is held of external tables, and what is new. Starts no Spark."""
    _tell(given, [find_holding(given.observer.ingestion, s) for s in _chosen(given, selection)])


@command("sync", external_app)
def sync(
    given: Invocation,
    selection: SelectArgument = None,
    again: Annotated[
        bool, typer.Option("--again", help="Read everything needed again, whatever the copy has.")
    ] = False,
    approve: Annotated[
        bool, typer.Option("--approve", help="Allow reading more than `approve_above`.")
    ] = False,
) -> None:
    """Bring the copies of external tables up to date, as builds do before they read them."""
    chosen, ingestion = _chosen(given, selection), given.reader().ingestion
    before = {s.source_id: find_holding(ingestion, s) for s in chosen}
    for source in chosen:
        known = before[source.source_id]
        if known.held is None and known.predicate is None:
            err.print(f"{escape(source.key)} is not needed: no table reads it")
            continue
        if not again and known.pending is not None and known.why is None:
            continue
        try:
            with quiet(given):
                ingestion.sync(source, from_scratch=again, approved=approve)
        except PersistError as error:
            error.location = error.location or source.location
            raise
    _tell(given, [find_holding(ingestion, s) for s in chosen])


def _chosen(given: Invocation, patterns: Sequence[str] | None) -> list[Source]:
    """Return the external tables that patterns name, or that what they select follows from.

    Raises
    ------
    NotFoundError
        There are none.
    """
    project = given.project
    if not patterns:
        return [s for s in project.sources if s.external is not None]
    found: dict[str, Source] = {}
    for pattern in patterns:
        try:
            named = find_source(project, pattern)
        except NotFoundError:
            start = given.select([pattern])
        else:
            start = (named.source_id,)
        some = externals(project, start)
        if not some:
            raise NotFoundError(
                f"`{pattern}` neither is nor reads an external table",
                hint="persist external status lists them",
            )
        found |= {s.source_id: s for s in some}
    return list(found.values())


def _tell(given: Invocation, holdings: Sequence[Holding]) -> None:
    if given.as_json:
        print_json([_holding_json(h) for h in holdings])
        return
    if not holdings:
        out.print("there are no external tables")
        return
    table = table_of("table", "held", "newest", "rows", "bytes", "what is new")
    for found in holdings:
        held, pending = found.held, found.pending
        table.add_row(
            escape(found.source.key),
            short(held.version) if held else "–",
            short(pending.version) if pending else "?",
            str(held.rows) if held else "0",
            str(held.bytes) if held else "0",
            escape(_in_words(found)),
        )
    out.print(table)
    for found in holdings:
        if found.held is not None:
            told = f"{found.source.key} holds {found.held.predicate}"
            err.print(f"[dim]{escape(told)}[/]", soft_wrap=True)


def _in_words(found: Holding) -> str:
    if found.problem is not None:
        return found.problem.message
    if found.why is None:
        return "no table reads it" if found.predicate is None else "up to date"
    return found.why


def _holding_json(found: Holding) -> Mapping[str, Any]:
    held = found.held
    told = holding_document(found)
    return {
        "source_id": found.source.source_id,
        "coverage": told["before"],
        "head": told["version"],
        "rows": held.rows if held else 0,
        "bytes": held.bytes if held else 0,
        "as_of": held.as_of.isoformat() if held else None,
        "pending": {
            "why": found.why,
            "predicate": told["missing"],
            "columns": list(found.pending.columns) if found.pending and found.why else [],
            "again": told["again"],
            "approval": told["approval"],
            "read": told["read"],
        },
        "error": told["error"],
    }


def print_holding(found: Holding) -> None:
    """Print what a plan says of an external table."""
    told = holding_document(found)
    title = f"[bold]{escape(found.source.key)}[/]"
    if found.problem is not None:
        out.print(f"{title} [red]{escape(found.problem.message)}[/]")
    elif found.why is None:
        why = "its copy is up to date" if found.held else "it is not needed"
        out.print(f"{title} [dim]{why}[/]")
    else:
        out.print(f"{title} {escape(found.why)}")
    if found.predicate is not None:
        columns = ", ".join(found.columns) or "no column"
        out.print(f"  needed: {escape(f'{columns} where {found.predicate}')}", soft_wrap=True)
    before = told["before"]
    if before and found.why is not None:
        held = f"{', '.join(before['columns'])} where {before['predicate']}"
        out.print(f"  held:   {escape(held)}", soft_wrap=True)
    for kept in told["not_pushed"]:
        words = f"{kept['expression']} ({kept['reason']})" if kept["expression"] else kept["reason"]
        out.print(f"  [dim]not pushed: {escape(words)}[/]", soft_wrap=True)
    read = found.read
    if read is not None and read.files:
        rows = f"at most {read.rows} rows" if read.rows is not None else "an unknown number of rows"
        files = f"{read.files} of {read.of} file{'s' * (read.of != 1)}"
        out.print(f"  to read: {files}, {rows}, {read.bytes} bytes")
    if found.approval:
        how = f"persist external sync {found.source.key} --approve"
        readers = sorted({need["reader"].partition("@")[0] for need in told["needs"]})
        until = f"until then builds of {', '.join(readers)} fail"
        out.print(f"  [yellow]needs approval:[/] {escape(how)} ({escape(until)})", soft_wrap=True)


def held_json(given: Invocation, source: Source) -> dict[str, Any]:
    """Return what is held of an external table, which is not asked."""
    held = given.observer.ingestion.find(source)
    return {
        "version": held.version if held else None,
        "held": held.predicate if held else None,
        "columns": list(held.columns) if held else [],
        "rows": held.rows if held else 0,
        "bytes": held.bytes if held else 0,
    }
