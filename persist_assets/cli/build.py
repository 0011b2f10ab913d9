"""`build` and `rerun`."""

import logging
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
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
from persist_assets.core.errors import NotFoundError, SourcesError
from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.keys import KEEP_GOING
from persist_assets.planning.selection import find_source

if TYPE_CHECKING:
    from datetime import datetime

    from persist_assets.operations.documents.builds import BuildDocument, RunDocument
    from persist_assets.plugin.runs import RunResult

COLOURS = {"built": "yellow", "reused": "green", "failed": "red", "skipped": "dim"}
"""The colour of each action of a build."""


@command("build")
def build(
    invocation: Invocation,
    selection: SelectArgument = None,
    force: ForceOption = False,
    allow_schema_change: Annotated[
        bool,
        typer.Option(
            "--allow-schema-change",
            help="Publish changed columns this time, whatever on_schema_change is.",
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
    chosen = [invocation.project.by_id[s] for s in invocation.select(selection)]
    if not invocation.project.persisted:
        raise NotFoundError("no source is persisted", hint="annotate a source: --@ persist")
    if not chosen:  # no source is in the requested state
        empty = {"run_id": None, "published": True, "builds": []}
        if invocation.as_json:
            print_json(empty)
        else:
            out.print("no sources selected: nothing to build")
        return
    source_ids = [s.source_id for s in chosen]
    keys, order = partition_keys(invocation, source_ids, partition, partition_range, first, last)
    warn_of_former_build_ids(invocation)
    since = invocation.ledger.events.position()
    if "spark.remote" not in dict(invocation.settings.spark):
        from persist_assets.engine.session import check_java

        check_java()
    from persist_assets.plugin.partitions import asked_tag
    from persist_assets.plugin.runtime import SCHEMA_TAG

    tags = asked_tag(keys, order)
    if allow_schema_change:
        tags[SCHEMA_TAG] = "allow"
    with _progress(invocation, chosen, since):
        result, document = run_build(invocation, chosen, force=force, tags=tags)
    _print_result(invocation, result, document)


@command("rerun")
def rerun(
    invocation: Invocation,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A name or an asset key.")],
    first: Annotated[
        str, typer.Option("--from", metavar="A", help="Start of the window (inclusive).")
    ],
    last: Annotated[str, typer.Option("--to", metavar="B", help="End of the window (inclusive).")],
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also rebuild everything downstream.")
    ] = False,
) -> None:
    """Compute the rows between two values of the watermark again, in one commit."""
    rerun_source = find_source(invocation.project, source)
    if not rerun_source.persisted:
        raise NotFoundError(f"`{rerun_source.name}` has no table", hint="annotate it: --@ persist")
    invocation.observer.span(rerun_source, first, last)
    since = invocation.ledger.events.position()
    from persist_assets.plugin.runs import run_again

    with quiet(invocation), _progress(invocation, invocation.project.persisted, since):
        result, chosen = run_again(
            invocation.settings,
            invocation.observer,
            rerun_source,
            first,
            last,
            cascade=cascade,
            verbose=invocation.verbose,
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
            out.print(f"nothing was rebuilt: all {len(rows)} tables were up to date")
        out.print(
            f"run {result.run_id} {'[green]succeeded[/]' if result.success else '[red]failed[/]'}"
        )
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
) -> tuple["RunResult", "RunDocument"]:
    """Build sources in one run with further tags; return its result, also as a document."""
    from persist_assets.plugin.runs import run_assets

    with quiet(invocation):
        result = run_assets(
            invocation.settings, chosen, force=force, verbose=invocation.verbose, more=tags
        )
    return result, _run_document(invocation, chosen, result)


def _run_document(
    invocation: Invocation, chosen: Sequence[Source], result: "RunResult"
) -> "RunDocument":
    from persist_assets.operations.documents.builds import RunDocument

    newest_first = invocation.ledger.builds.fetch(run_id=result.run_id)
    builds = {b.source_id: b for b in reversed(newest_first)}
    failures = {f.source_id: f.message for f in result.failures if f.source_id is not None}
    return RunDocument.of(
        result.run_id, invocation.project, chosen, builds, failures, published=result.success
    )


@contextmanager
def _progress(invocation: Invocation, chosen: Sequence[Source], since: int) -> Generator[None]:
    """Print this process's builds on stderr as they begin and end, from the ledger's events."""
    from persist_assets.ledger.processes import this_process

    stop = threading.Event()
    status = err.status("starting") if err.is_terminal else None
    source_ids, process = {s.source_id for s in chosen}, this_process()

    def watch() -> None:
        position, last = since, False
        started: dict[str, datetime] = {}
        while not last:
            last = stop.wait(0.2)
            for event in invocation.ledger.events.fetch(position):
                position = event.idx
                data = event.data
                if data.get("source_id") not in source_ids or data["process"] != process:
                    continue
                uid, name = data["build_uid"], escape(data["source_id"].partition("@")[0])
                if event.kind == "build-started":
                    started[uid] = event.at
                    if status:
                        status.update(f"building {name}")
                elif event.kind == "build-succeeded":
                    seconds = (event.at - started.get(uid, event.at)).total_seconds()
                    size = f"{data['rows']:,} rows, {seconds:.1f} s"
                    err.print(f"  [green]{data['action']}[/] {name} [dim]{size}[/]")
                elif event.kind == "build-failed":
                    error = escape(data["error"])
                    err.print(f"  [red]failed[/] {name}: {error}", soft_wrap=True)

    watcher = threading.Thread(target=watch, daemon=True, name="progress")
    handler = _WarningPrinter(logging.WARNING)
    sessions = logging.getLogger("persist_assets.engine.session")
    if status:
        status.start()
    watcher.start()
    sessions.addHandler(handler)
    try:
        yield
    finally:
        sessions.removeHandler(handler)
        stop.set()
        watcher.join()
        if status:
            status.stop()


class _WarningPrinter(logging.Handler):
    """Prints warnings on stderr during a build."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"  [yellow]{escape(record.getMessage())}[/]", soft_wrap=True)


def _print_builds(project: Project, rows: Sequence["BuildDocument"]) -> None:
    table = table_of("source", "action", "rows", "bytes", "seconds", "table")
    for row in rows:
        sizes = [f"{n:,}" if n is not None else "" for n in (row.rows, row.bytes)]
        seconds = f"{row.seconds:.1f}" if row.seconds is not None else ""
        where = f"{row.table} v{row.version}" if row.table else ""
        if row.action == "skipped":
            where = f"[dim]{escape(row.error or '')}[/]"
        key = escape(project.by_id[row.source_id].key)
        table.add_row(key, f"[{COLOURS[row.action]}]{row.action}[/]", *sizes, seconds, where)
    out.print(table)
