"""Commands about local copies of external tables: external status and external sync."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from persist_assets.cli.application import (
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
from persist_assets.core.model.queries import SourceID
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.core.model.sources import Source
from persist_assets.external.coverage import short
from persist_assets.external.status import Holding, externals, find_holding
from persist_assets.planning.selection import find_source


@command("status", external_app)
def status(invocation: Invocation, selection: SelectArgument = None) -> None:
    """Show what the copies of external tables hold, and what is new. Starts no Spark."""
    _print_holdings(
        invocation,
        [
            find_holding(invocation.observer.ingestion, s)
            for s in _select_tables(invocation, selection)
        ],
    )


@command("sync", external_app)
def sync(
    invocation: Invocation,
    selection: SelectArgument = None,
    reread: Annotated[
        bool, typer.Option("--again", help="Read all needed rows again, whatever the copy holds.")
    ] = False,
    approve: Annotated[
        bool, typer.Option("--approve", help="Allow reading more than `approve_above`.")
    ] = False,
) -> None:
    """Update the copies of external tables, as builds do before they read them."""
    chosen, ingestion = _select_tables(invocation, selection), invocation.reader().ingestion
    holdings = {s.source_id: find_holding(ingestion, s) for s in chosen}
    for source in chosen:
        holding = holdings[source.source_id]
        if holding.held is None and holding.predicate is None:
            err.print(f"{escape(source.key)} is not needed: no table reads it")
            continue
        if not reread and holding.pending is not None and holding.why is None:
            continue
        try:
            with quiet(invocation):
                ingestion.sync(source, from_scratch=reread, approved=approve)
        except PersistError as error:
            error.location = error.location or source.location
            raise
    _print_holdings(invocation, [find_holding(ingestion, s) for s in chosen])


def _select_tables(invocation: Invocation, patterns: Sequence[str] | None) -> list[Source]:
    """Return the external tables that patterns name, or that the selected sources depend on.

    Those of the option `--exclude` are left out.

    Raises
    ------
    NotFoundError
        There are none.
    """
    tables = {s.source_id: s for s in invocation.project.sources if s.external is not None}
    if patterns:
        tables = _tables_of(invocation, patterns)
    excluded = _tables_of(invocation, invocation.exclude)
    return [table for source_id, table in tables.items() if source_id not in excluded]


def _tables_of(invocation: Invocation, patterns: Sequence[str]) -> dict[SourceID, Source]:
    project = invocation.project
    tables: dict[SourceID, Source] = {}
    for pattern in patterns:
        try:
            source = find_source(project, pattern)
        except NotFoundError:
            start = invocation.find([pattern])
        else:
            start = (source.source_id,)
        external = externals(project, start)
        if not external:
            raise NotFoundError(
                f"`{pattern}` neither is nor reads an external table",
                hint="persist external status lists all external tables",
            )
        tables |= {s.source_id: s for s in external}
    return tables


def _print_holdings(invocation: Invocation, holdings: Sequence[Holding]) -> None:
    if invocation.as_json:
        print_json([_holding_json(h) for h in holdings])
        return
    if not holdings:
        out.print("there are no external tables")
        return
    table = table_of("table", "held", "newest", "rows", "bytes", "bytes read", "what is new")
    for holding in holdings:
        copy, pending = holding.held, holding.pending
        table.add_row(
            escape(holding.source.key),
            short(copy.version) if copy else "–",
            short(pending.version) if pending else "?",
            str(copy.rows) if copy else "0",
            str(copy.bytes) if copy else "0",
            str(copy.bytes_read) if copy and copy.bytes_read is not None else "–",
            escape(_in_words(holding)),
        )
    out.print(table)
    for holding in holdings:
        if holding.held is not None:
            text = f"{holding.source.key} holds {holding.held.predicate}"
            err.print(f"[dim]{escape(text)}[/]", soft_wrap=True)
        if holding.capabilities is not None:
            can = holding.capabilities
            text = f"{holding.source.key} can push down {can.filters}; columns: {can.columns}"
            err.print(f"[dim]{escape(text)}[/]", soft_wrap=True)


def _in_words(holding: Holding) -> str:
    if holding.problem is not None:
        return holding.problem.message
    if holding.why is None:
        return "no table reads it" if holding.predicate is None else "up to date"
    return holding.why


def _holding_json(holding: Holding) -> Mapping[str, Any]:
    from persist_assets.operations.documents.plans import ExternalDocument

    copy, pending = holding.held, holding.pending
    document = ExternalDocument.of(holding).as_json()
    return {
        "source_id": holding.source.source_id,
        "coverage": document["before"],
        "head": document["version"],
        "rows": copy.rows if copy else 0,
        "bytes": copy.bytes if copy else 0,
        "as_of": copy.as_of.isoformat() if copy else None,
        "pending": {
            "why": holding.why,
            "predicate": holding.missing,
            "columns": list(pending.columns) if pending and holding.why else [],
            "again": holding.full_read_reason,
            "approval": holding.approval,
            "read": document["read"],
        },
        "error": document["error"],
        "last_read": _last_read(copy),
        "capabilities": _capabilities(holding),
    }


def _last_read(copy: LocalCopy | None) -> Mapping[str, int] | None:
    if copy is None or copy.rows_read is None or copy.bytes_read is None:
        return None
    return {"rows": copy.rows_read, "bytes": copy.bytes_read}


def _capabilities(holding: Holding) -> Mapping[str, str] | None:
    can = holding.capabilities
    if can is None:
        return None
    names = "filters", "columns", "versions", "changes"
    return {name: getattr(can, name) for name in names}


def print_holding(holding: Holding) -> None:
    """Print an external table that a plan depends on."""
    copy, read = holding.held, holding.read
    title = f"[bold]{escape(holding.source.key)}[/]"
    if holding.problem is not None:
        out.print(f"{title} [red]{escape(holding.problem.message)}[/]")
    elif holding.why is None:
        why = "its copy is up to date" if copy else "it is not needed"
        out.print(f"{title} [dim]{why}[/]")
    else:
        out.print(f"{title} {escape(holding.why)}")
    if holding.predicate is not None:
        columns = ", ".join(holding.columns) or "no column"
        out.print(f"  needed: {escape(f'{columns} where {holding.predicate}')}", soft_wrap=True)
    if copy and holding.why is not None:
        rows = f"{', '.join(copy.columns)} where {copy.predicate}"
        out.print(f"  held:   {escape(rows)}", soft_wrap=True)
    for _, _, expression, reason in holding.not_pushed:
        condition = f"{expression} ({reason})" if expression else reason
        out.print(f"  [dim]not pushed: {escape(condition)}[/]", soft_wrap=True)
    if read is not None and read.files:
        rows = f"at most {read.rows} rows" if read.rows is not None else "an unknown number of rows"
        files = f"{read.files} of {read.of} file{'s' * (read.of != 1)}"
        out.print(f"  to read: {files}, {rows}, {read.bytes} bytes")
    if holding.approval:
        how = f"persist external sync {holding.source.key} --approve"
        readers = sorted({need.reader.partition("@")[0] for need in holding.needs})
        until = f"until then builds of {', '.join(readers)} fail"
        out.print(f"  [yellow]needs approval:[/] {escape(how)} ({escape(until)})", soft_wrap=True)


def held_json(invocation: Invocation, source: Source) -> dict[str, Any]:
    """Return what the copy of an external table holds, without reading the table itself."""
    copy = invocation.observer.ingestion.find(source)
    return {
        "version": copy.version if copy else None,
        "held": copy.predicate if copy else None,
        "columns": list(copy.columns) if copy else [],
        "rows": copy.rows if copy else 0,
        "bytes": copy.bytes if copy else 0,
    }
