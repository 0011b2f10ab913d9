"""`build` and `rerun`."""

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    SPARK_LOG,
    ForceOption,
    FromOption,
    Invocation,
    PartitionOption,
    RangeOption,
    SelectArgument,
    SourceArgument,
    ToOption,
    command,
    err,
    exit_code,
    out,
    print_json,
    quiet,
    table_of,
)
from persist_assets.cli.plan import partition_keys, warn_of_former_build_ids
from persist_assets.cli.progress import COLOURS, shown
from persist_assets.core.errors import NotFoundError, SourcesError
from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.durations import in_short
from persist_assets.core.settings.keys import KEEP_GOING
from persist_assets.planning.selection import find_source, names_in

if TYPE_CHECKING:
    from persist_assets.operations.documents.builds import BuildDocument, RunDocument
    from persist_assets.plugin.runs import RunResult


@command("build")
def build(
    invocation: Invocation,
    selection: SelectArgument = None,
    force: ForceOption = False,
    allow_schema_change: Annotated[
        bool,
        typer.Option(
            "--allow-schema-change",
            help="Publish changed columns this time, whatever on_schema_change says.",
        ),
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Build valid sources despite errors in others.")
    ] = False,
    partition: PartitionOption = None,
    partition_range: RangeOption = None,
    first: FromOption = None,
    last: ToOption = None,
) -> None:
    """Build what is out of date, in one Dagster run."""
    if keep_going:
        invocation.keep_going = True
        os.environ[KEEP_GOING] = "true"  # for the project's own definitions
        for name in chain.from_iterable(map(names_in, selection or ())):
            with invocation.naming_errors(name):
                pass  # only look the name up: a source with errors is not an unknown one
    with invocation.naming_errors():
        chosen = [invocation.project.by_id[s] for s in invocation.select(selection)]
    errors = invocation.project.errors
    if not invocation.project.persisted and errors:
        err.print("nothing can be built: all selected sources have errors")
        raise SourcesError(errors)
    if not invocation.project.persisted:
        raise NotFoundError("no source is persisted", hint="annotate a source: --@ persist")
    if not chosen:  # no source is in the requested state
        empty = {"run_id": None, "published": True, "builds": []}
        if invocation.as_json:
            print_json(empty)
        else:
            out.print("no sources selected: nothing to build")
        if errors:
            raise typer.Exit(exit_code(SourcesError))
        return
    source_ids = [s.source_id for s in chosen]
    keys, order = partition_keys(invocation, source_ids, partition, partition_range, first, last)
    warn_of_former_build_ids(invocation)
    if "spark.remote" not in dict(invocation.settings.spark):
        from persist_assets.engine.java import use_java

        use_java()
    from persist_assets.plugin.partitions import partitions_tag
    from persist_assets.plugin.runtime import SCHEMA_TAG

    tags = partitions_tag(keys, order)
    if allow_schema_change:
        tags[SCHEMA_TAG] = "allow"
    result, document = run_build(
        invocation, chosen, force=force, tags=tags, leaves_out=not (force or tags)
    )
    _print_result(invocation, result, document)


@command("rerun")
def rerun(
    invocation: Invocation,
    source: SourceArgument,
    first: Annotated[
        str, typer.Option("--from", metavar="A", help="Start of the window (inclusive).")
    ],
    last: Annotated[str, typer.Option("--to", metavar="B", help="End of the window (inclusive).")],
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also rebuild everything downstream.")
    ] = False,
) -> None:
    """Recompute the rows between two values of the watermark, in one commit."""
    rerun_source = find_source(invocation.project, source)
    if not rerun_source.persisted:
        raise NotFoundError(f"`{rerun_source.name}` has no table", hint="annotate it: --@ persist")
    invocation.observer.span(rerun_source, first, last)
    from persist_assets.plugin.runs import run_window

    with quiet(invocation), shown(err, live=not invocation.verbose) as progress:
        result, chosen = run_window(
            invocation.settings,
            invocation.observer,
            rerun_source,
            first,
            last,
            cascade=cascade,
            verbose=invocation.verbose,
            progress=progress,
        )
    _print_result(invocation, result, _run_document(invocation, chosen, result))


def _print_result(invocation: Invocation, result: "RunResult", document: "RunDocument") -> None:
    """Print the result of a run, and exit with its code if it failed."""
    rows = document.builds
    if invocation.as_json:
        print_json(document.as_json())
    else:
        _print_builds(invocation.project, rows)
        if all(row.action == "reused" for row in rows):
            tables = f"all {len(rows)} tables were" if len(rows) > 1 else "the table was"
            out.print(f"nothing was rebuilt: {tables} up to date")
        outcome = "[green]succeeded[/]" if result.success else "[red]failed[/]"
        if result.run_id is not None:
            out.print(f"run {result.run_id[:8]} {outcome}")
    if not result.success:
        printed = {row.source_id for row in rows if row.build_uid}
        for failure in result.failures:
            if failure.source_id not in printed:  # no event of the run reported it
                text = escape(f"{failure.step}: {failure.message}")
                err.print(f"[red]error[/]: {text}", soft_wrap=True)
        if not invocation.verbose:
            log = invocation.settings.state_dir / SPARK_LOG
            err.print(f"[dim]Spark's log is {log}; -v shows it here[/]", soft_wrap=True)
        raise typer.Exit(next((exit_code(f.kind) for f in result.failures), 1))
    if invocation.project.errors:
        raise typer.Exit(exit_code(SourcesError))


def run_build(
    invocation: Invocation,
    chosen: Sequence[Source],
    *,
    force: bool = False,
    tags: Mapping[str, str] | None = None,
    lines: bool = True,
    leaves_out: bool = False,
) -> tuple["RunResult", "RunDocument"]:
    """Build sources in one run with further tags; return its result, also as a document.

    Parameters
    ----------
    lines
        Print a line as each build begins and ends.
    leaves_out
        Leave out sources for which the run would do nothing.
    """
    from persist_assets.building.reader import Reader
    from persist_assets.plugin.runs import run_assets

    with quiet(invocation), shown(err, lines=lines, live=not invocation.verbose) as progress:
        result = run_assets(
            invocation.settings,
            chosen,
            force=force,
            verbose=invocation.verbose,
            more=tags,
            progress=progress,
            reader=Reader(invocation.observer, invocation.engine) if leaves_out else None,
        )
    return result, _run_document(invocation, chosen, result)


def _run_document(
    invocation: Invocation, chosen: Sequence[Source], result: "RunResult"
) -> "RunDocument":
    from persist_assets.operations.documents.builds import RunDocument

    newest_first = invocation.ledger.builds.fetch(run_id=result.run_id) if result.run_id else []
    builds = {b.source_id: b for b in reversed(newest_first)}
    failures = {f.source_id: f.message for f in result.failures if f.source_id is not None}
    return RunDocument.of(
        result.run_id,
        invocation.project,
        chosen,
        builds,
        failures,
        settled=result.settled,
        published=result.success,
    )


def _print_builds(project: Project, rows: Sequence["BuildDocument"]) -> None:
    table = table_of("source", "action", "method", "rows", "bytes", "time", "table")
    for row in rows:
        sizes = [f"{n:,}" if n is not None else "" for n in (row.rows, row.bytes)]
        if row.rows_written is not None and row.maintenance not in (None, "whole"):
            sizes[0] = f"{row.rows_written:,} of {sizes[0]}"
        seconds = in_short(row.seconds) if row.seconds is not None else ""
        where = f"{row.table} v{row.version}" if row.table else ""
        if row.action == "skipped":
            where = f"[dim]{escape(row.error or '')}[/]"
        key = escape(project.by_id[row.source_id].key)
        action = f"[{COLOURS[row.action]}]{row.action}[/]"
        table.add_row(key, action, row.maintenance or "", *sizes, seconds, where)
    out.print(table)
