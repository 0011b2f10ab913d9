"""Commands about sources: check, plan, build, show."""

import logging
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from persist_assets.building.documents import plan_document
from persist_assets.cli.app import (
    SPARK_LOG,
    AgainstOption,
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
    in_words,
    malloy_path,
    out,
    print_json,
    print_problem,
    problem_json,
    quiet,
    table_of,
)
from persist_assets.cli.external import held_json, print_holding
from persist_assets.compiler.load import find_former_build_ids
from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.core.errors import (
    NotFoundError,
    Problem,
    SettingsError,
    SourcesError,
)
from persist_assets.core.model.annotations import Kind
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.plans import Plan
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import SourceID
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.keys import KEEP_GOING
from persist_assets.core.settings.values import Settings
from persist_assets.external.status import find_holdings
from persist_assets.operations.revisions import WORKING_TREE, find_places
from persist_assets.planning.diff import Change, Standings, compare, to_rebuild
from persist_assets.planning.reach import asked_for
from persist_assets.planning.selection import find_source
from persist_assets.planning.world import older_code

if TYPE_CHECKING:
    from datetime import datetime

    from persist_assets.plugin.runs import RunResult

# -------------------------------------------------------------------------------------------- check


@command("check", is_confined=True)
def check(given: Invocation) -> None:
    """Compile all sources and say what is wrong with them."""
    project = given.loaded.project
    if given.as_json:
        print_json(
            {
                "sources": [_source_json(s) for s in project.sources],
                "problems": [problem_json(p) for p in project.problems],
            }
        )
    else:
        for problem in project.problems:
            print_problem(problem)
        for source in project.sources:
            for note in () if source.function else source.notes:  # theirs are warnings
                err.print(
                    f"{source.location}: [cyan]note[/]: {escape(source.name)} is {escape(note)}",
                    soft_wrap=True,
                )
        n, persisted = len(project.sources), len(project.persisted)
        wrong = len(project.errors)
        errors = "1 error" if wrong == 1 else f"{wrong} errors"
        out.print(f"{n} source{'s' * (n != 1)}, {persisted} persisted, {errors}")
    if project.errors:
        raise typer.Exit(3)


def _source_json(source: Source) -> dict[str, Any]:
    return {
        "source_id": source.source_id,
        "asset_key": source.key,
        "language": source.language,
        "kind": source.kind.value,
        "persisted": source.persisted,
        "build_id": source.build_id,
        "columns": [{"name": c.name, "type": c.type} for c in source.columns],
        "reads": list(source.reads),
        "path": source.location.path,
        "line": source.location.line,
        "description": source.description,
        "notes": list(source.notes),
    }


# --------------------------------------------------------------------------------------------- plan


@command("plan", is_confined=True)
def plan(
    given: Invocation,
    selection: SelectArgument = None,
    force: ForceOption = False,
    against: AgainstOption = None,
    partition: PartitionOption = None,
    partition_range: RangeOption = None,
    first: FromOption = None,
    last: ToOption = None,
) -> None:
    """Show what a build would do, and why. Builds nothing, starts no Spark."""
    chosen = given.select(selection)
    asked, _ = _asked(given, chosen, _ends(partition, partition_range, first, last))
    compared = _against(given, against, chosen if selection else None) if against else None
    planned = given.observer.plan(chosen, force=force, partition_keys=asked)
    _warn_of_former_build_ids(given)
    absent = {
        r.source_id: r.message for s in planned.steps for r in s.reasons if r.code == "no-data"
    }
    for source_id, message in absent.items():
        place = given.project.by_id[source_id or ""].location
        print_problem(Problem("no-data", message, place, severity="warning"))
    holdings = find_holdings(given.observer.ingestion, chosen)
    if given.as_json:
        told = {"against": _against_json(against, *compared)} if compared else {}
        print_json(plan_document(given.project, planned, holdings) | told)
        return
    out.print(plan_tree(given.project, planned))
    for found in holdings:
        print_holding(found)
    n = sum(step.action == "build" for step in planned.steps)
    out.print(
        f"{n} to build, {len(planned.steps) - n} up to date in [bold]{planned.environment}[/]"
    )
    if compared:
        changes = compare(*compared)
        out.print(changes_tree(f"against {against}", [c for c in changes if c.change != "same"]))
        same = sum(c.change == "same" for c in changes)
        out.print(
            f"{to_rebuild(*compared)} to rebuild, {same} the same as in {escape(against or '')}"
        )


def _warn_of_former_build_ids(given: Invocation) -> None:
    current = {s.build_id for s in given.project.persisted}
    manifest = given.ledger.fetch_manifest(*given.settings.environments)
    problem = find_former_build_ids(given.settings, current, manifest)
    if problem is not None:
        print_problem(problem)


def _against(
    given: Invocation, name: str, chosen: Sequence[SourceID] | None
) -> tuple[Standings, Standings]:
    """Return what persisted sources mean there and here, of those that are chosen."""
    places = find_places(given.settings, given.project, given.ledger, name, WORKING_TREE)
    before, after = (
        {k: s for k, s in p.standings.items() if s.persisted and (chosen is None or k in chosen)}
        for p in places
    )
    return before, after


def _against_json(name: str | None, before: Standings, after: Standings) -> dict[str, Any]:
    return {
        "ref": name,
        "sources": [
            {
                "source_id": c.source_id,
                "change": c.change,
                "columns": list(c.columns),
                "rows_changed": c.rows_changed,
            }
            for c in compare(before, after)
        ],
        "to_rebuild": to_rebuild(before, after),
    }


def changes_tree(title: str, changes: Sequence[Change]) -> Tree:
    """Return changes as a tree: below each source what is said otherwise."""
    root = Tree(f"[bold]{escape(title)}[/]")
    for change in changes:
        parts = [*change.columns]
        if change.change == "changed":
            parts = [*(["rows"] if change.rows_changed else []), *parts]
        what = f" [dim]{escape(', '.join(parts))}[/]" if parts else ""
        colour = {"added": "green", "removed": "red"}.get(change.change, "yellow")
        label = f"[{colour}]{change.change}[/] {escape(change.source_id)}{what}"
        branch = root.add(label)
        for e in change.expressions:
            name = e.column or "rows"
            branch.add(f"{escape(name)}: {_one_line(e.before)} [dim]→[/] {_one_line(e.after)}")
        for source_id in change.because:
            branch.add(f"[dim]because {escape(source_id)} changed[/]")
    return root


def _one_line(text: str | None) -> str:
    return escape(" ".join(text.split())) if text is not None else "[dim]?[/]"


def plan_tree(project: Project, planned: Plan) -> Tree:
    """Return a plan as a tree: every step below one that it reads."""
    steps = {step.source_id: step for step in planned.steps}
    root = Tree(f"[bold]{planned.environment}[/]")
    branches: dict[SourceID, Tree] = {}
    for step in planned.steps:
        source = project.by_id[step.source_id]
        inputs = project.inputs(source)
        parent = next(
            (branches[s.source_id] for s in reversed(inputs) if s.source_id in branches), root
        )
        also = [
            s.name
            for s in inputs
            if s.source_id in steps and branches.get(s.source_id) is not parent
        ]
        reads = f" [dim](reads {', '.join(also)} too)[/]" if also else ""
        colour = "yellow" if step.action == "build" else "green"
        why = "; ".join(r.message for r in step.reasons)
        said = f" [dim]{escape(why)}[/]" if why else ""
        label = f"[{colour}]{step.action}[/] {escape(source.key)}{said}{reads}"
        branches[step.source_id] = branch = parent.add(label)
        for note in source.notes:
            branch.add(f"[dim]note: {escape(note)}[/]")
    return root


# -------------------------------------------------------------------------------------------- build


@command("build")
def build(
    given: Invocation,
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
        given.keep_going = True
        os.environ[KEEP_GOING] = "true"  # for the project's own definitions
    chosen = [given.project.by_id[s] for s in given.select(selection)]
    if not chosen and not selection:
        raise NotFoundError("no source is persisted", hint="annotate a source: --@ persist")
    if not chosen:  # no source is in the state that was asked for
        empty = {"run_id": None, "published": True, "builds": []}
        print_json(empty) if given.as_json else out.print("no sources selected: nothing to build")
        return
    ends = _ends(partition, partition_range, first, last)
    asked, order = _asked(given, [s.source_id for s in chosen], ends)
    _warn_of_former_build_ids(given)
    since = given.ledger.position()
    if "spark.remote" not in dict(given.settings.spark):
        from persist_assets.engine.session import check_java

        check_java()
    from persist_assets.plugin.partitions import asked_tag
    from persist_assets.plugin.runtime import SCHEMA_TAG

    more = asked_tag(asked, order)
    if allow_schema_change:
        more[SCHEMA_TAG] = "allow"
    with _progress(given, chosen, since):
        result, document = run_build(given, chosen, force=force, more=more)
    _tell_result(given, result, document)


@command("rerun")
def rerun(
    given: Invocation,
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
    found = find_source(given.project, source)
    if not found.persisted:
        raise NotFoundError(f"`{found.name}` has no table", hint="annotate it: --@ persist")
    given.observer.span(found, first, last)
    since = given.ledger.position()
    from persist_assets.plugin.runs import run_again

    with quiet(given), _progress(given, given.project.persisted, since):
        result, chosen = run_again(
            given.settings,
            given.observer,
            found,
            first,
            last,
            cascade=cascade,
            verbose=given.verbose,
        )
    _tell_result(given, result, _document(given, chosen, result))


def _tell_result(given: Invocation, result: "RunResult", document: dict[str, Any]) -> None:
    """Print what came of a run, and end as it did."""
    rows: list[dict[str, Any]] = document["builds"]
    if given.as_json:
        print_json(document)
    else:
        _print_builds(given.project, rows)
        if all(row["action"] == "reused" for row in rows):
            out.print(f"nothing was rebuilt: all {len(rows)} tables were up to date")
        out.print(
            f"run {result.run_id} {'[green]succeeded[/]' if result.success else '[red]failed[/]'}"
        )
    if not result.success:
        told = {row["source_id"] for row in rows if row["build_uid"]}
        for failure in result.failures:
            if failure.source_id not in told:  # its end was not told while it ran
                text = escape(f"{failure.step}: {failure.message}")
                err.print(f"[red]error[/]: {text}", soft_wrap=True)
        if not given.verbose:
            log = given.settings.state_dir / SPARK_LOG
            err.print(f"[dim]Spark's log is {log}; -v shows it here[/]", soft_wrap=True)
        raise typer.Exit(next((exit_code(f.kind) for f in result.failures), 1))
    if given.project.errors:
        raise typer.Exit(exit_code(SourcesError))


def _ends(
    partition: str | None, between: str | None, first: str | None, last: str | None
) -> tuple[str | None, str | None] | None:
    """Return the ends of the range of partitions that options say, None where they say none.

    Raises
    ------
    SettingsError
        They say it in two ways.
    """
    if sum(x is not None for x in (partition, between, first or last)) > 1:
        raise SettingsError("--partition, --partition-range and --from, --to exclude each other")
    if partition is not None:
        return partition, partition
    if between is not None:
        start, dots, end = between.partition("...")
        if not (start and dots and end):
            raise SettingsError(
                f"`{between}` is not a partition range",
                hint="for example, 2013-01-01...2013-01-31",
            )
        return start, end
    return (first, last) if first is not None or last is not None else None


def _asked(
    given: Invocation, chosen: Sequence[SourceID], ends: tuple[str | None, str | None] | None
) -> tuple[dict[SourceID, tuple[str, ...]], Mapping[SourceID, tuple[str, ...]]]:
    """Return the partitions of chosen sources in a range, and all there are."""
    if ends is None:
        return {}, {}
    order, zone = given.observer.keys(), given.settings.timezone.key
    some = next((order[s] for s in chosen if order.get(s)), ("?",))
    first, last = ends[0] or some[0], ends[1] or some[-1]
    return asked_for(given.project, chosen, order, zone, first, last), order


def run_build(
    given: Invocation,
    chosen: Sequence[Source],
    *,
    force: bool = False,
    more: Mapping[str, str] | None = None,
) -> tuple["RunResult", dict[str, Any]]:
    """Build sources in one run; return what came of it, and that as JSON has it.

    `more` are further tags of the run.
    """
    from persist_assets.plugin.runs import run_assets

    with quiet(given):
        result = run_assets(given.settings, chosen, force=force, verbose=given.verbose, more=more)
    return result, _document(given, chosen, result)


def _document(given: Invocation, chosen: Sequence[Source], result: "RunResult") -> dict[str, Any]:
    """Return what came of a run as JSON has it."""
    latest: dict[SourceID, Build] = {}
    for done in reversed(given.ledger.fetch_builds(run_id=result.run_id)):
        latest[done.source_id] = done
    failed = {f.source_id: f.message for f in result.failures}
    rows = [_build_json(s, latest.get(s.source_id), failed.get(s.source_id)) for s in chosen]
    _tell_skipped(given.project, rows)
    return {"run_id": result.run_id, "published": result.success, "builds": rows}


@contextmanager
def _progress(given: Invocation, chosen: Sequence[Source], since: int) -> Generator[None]:
    """Print each build of ours on stderr as it begins and ends, as the ledger's events tell."""
    from persist_assets.ledger.ledger import this_process

    stop = threading.Event()
    status = err.status("starting") if err.is_terminal else None
    ours, me = {s.source_id for s in chosen}, this_process()

    def watch() -> None:
        position, last = since, False
        begun: dict[str, datetime] = {}
        while not last:
            last = stop.wait(0.2)
            for event in given.ledger.fetch_events(position):
                position = event.idx
                if event.data.get("source_id") not in ours or event.data["process"] != me:
                    continue
                uid, name = (
                    event.data["build_uid"],
                    escape(event.data["source_id"].partition("@")[0]),
                )
                if event.kind == "build-started":
                    begun[uid] = event.at
                    if status:
                        status.update(f"building {name}")
                elif event.kind == "build-succeeded":
                    seconds = (event.at - begun.get(uid, event.at)).total_seconds()
                    told = f"{event.data['rows']:,} rows, {seconds:.1f} s"
                    err.print(f"  [green]{event.data['action']}[/] {name} [dim]{told}[/]")
                elif event.kind == "build-failed":
                    error = escape(event.data["error"])
                    err.print(f"  [red]failed[/] {name}: {error}", soft_wrap=True)

    watcher = threading.Thread(target=watch, daemon=True, name="progress")
    handler = _Warnings(logging.WARNING)
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


class _Warnings(logging.Handler):
    """Prints warnings on stderr while a build goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"  [yellow]{escape(record.getMessage())}[/]", soft_wrap=True)


def _tell_skipped(project: Project, rows: Sequence[dict[str, Any]]) -> None:
    """Say of every skipped build what stopped it."""
    by_id = {row["source_id"]: row for row in rows}
    for row in rows:
        if row["action"] == "skipped":
            inputs = project.inputs(project.by_id[row["source_id"]])
            stopped = [s.key for s in inputs if by_id.get(s.source_id, {}).get("error")]
            if stopped:
                row["error"] = f"not built because of {', '.join(stopped)}"


def _build_json(source: Source, done: Build | None, failure: str | None) -> dict[str, Any]:
    snapshot = done.snapshot if done else None
    action = "failed" if failure else "skipped"
    if done is not None:
        action = "failed" if done.state != "succeeded" else done.action
    partitions = snapshot.partitions if snapshot and action == "built" else None
    built = partitions.built if partitions else ()
    return {
        "source_id": source.source_id,
        "partition": built[0][0] if len(built) == 1 and built[0][0] == built[0][1] else None,
        "partitions": [list(run) for run in built] if source.annotation.partition else None,
        "build_id": source.build_id,
        "action": action,
        "rows": snapshot.rows if snapshot else None,
        "bytes": snapshot.bytes if snapshot else None,
        "seconds": done.seconds if done else None,
        "table": snapshot.table if snapshot else None,
        "version": snapshot.version if snapshot else None,
        "error": done.error if done else failure,
        "build_uid": done.build_uid if done else None,
    }


def _print_builds(project: Project, rows: Sequence[Mapping[str, Any]]) -> None:
    table = table_of("source", "action", "rows", "bytes", "seconds", "table")
    colours = {"built": "yellow", "reused": "green", "failed": "red", "skipped": "dim"}
    for row in rows:
        action = row["action"]
        numbers = [f"{row[k]:,}" if row[k] is not None else "" for k in ("rows", "bytes")]
        seconds = f"{row['seconds']:.1f}" if row["seconds"] is not None else ""
        where = f"{row['table']} v{row['version']}" if row["table"] else ""
        if action == "skipped":
            where = f"[dim]{escape(row['error'] or '')}[/]"
        key = escape(project.by_id[row["source_id"]].key)
        table.add_row(key, f"[{colours[action]}]{action}[/]", *numbers, seconds, where)
    out.print(table)


# --------------------------------------------------------------------------------------------- show


@command("show")
def show(
    given: Invocation,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE|FILE.malloy", help="A name or an asset key.")
    ],
) -> None:
    """Show everything known of one source, or what a Malloy file defines."""
    given.keep_going = True  # what is broken stops only who asks for it
    if source.endswith(MALLOY):
        _show_file(given, source)
        return
    with given.naming_errors(source):
        found = find_source(given.project, source)
    document = _show_json(given, found)
    if given.as_json:
        print_json(document)
        return
    out.print(f"[bold]{escape(found.key)}[/]  [dim]{found.location}[/]")
    if found.description:
        out.print(escape(found.description))
    facts = Table(box=None, show_header=False, pad_edge=False)
    for title in _FACTS:
        if document.get(title) not in ([], None, {}):
            facts.add_row(f"[dim]{title.replace('_', ' ')}[/]", escape(in_words(document[title])))
    out.print(facts)
    columns = Table(box=None, pad_edge=False, title_justify="left")
    for title in ("column", "type", "from"):
        columns.add_column(title)
    for column in document["columns"]:
        origins = ", ".join(column["from"])
        columns.add_row(
            escape(column["name"]), escape(column["type"] or "?"), f"[dim]{escape(origins)}[/]"
        )
    out.print(columns)
    for note in found.notes:
        out.print(f"[cyan]note[/] {escape(note)}")
    for check in document["checks"]:
        passed = {None: "[dim]not yet[/]", True: "[green]passed[/]", False: "[red]failed[/]"}
        weight = "" if check["blocking"] else " [dim](warns only)[/]"
        told = check["message"] or check["found"]
        found = f": {escape(told)}" if told else ""
        out.print(
            f"[dim]check[/] {passed[check['passed']]} {escape(check['check'])}{weight}{found}"
        )
        for row in check["sample"][:1]:
            out.print(f"[dim]      for example {escape(row)}[/]", soft_wrap=True)
    for title in ("tables", "builds"):
        for row in document[title]:
            said = ", ".join(f"{k} {in_words(v)}" for k, v in row.items() if v is not None)
            out.print(f"[dim]{title[:-1]}[/] {escape(said)}", soft_wrap=True)


def _show_file(given: Invocation, written: str) -> None:
    """Show the sources and the named queries of a Malloy file."""
    path = malloy_path(given.settings, written)
    wrong = [p for p in given.loaded.project.errors if p.location.path == path]
    if wrong:
        raise SourcesError(wrong)
    sources = [s for s in given.project.sources if s.location.path == path]
    queries = [q for q in given.project.queries if q.location.path == path]
    if given.as_json:
        print_json(
            {
                "path": path,
                "sources": [_source_json(s) for s in sources],
                "queries": [
                    {"name": q.name, "line": q.location.line, "description": q.description}
                    for q in queries
                ],
            }
        )
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for one in sources:
        kind = "persisted" if one.persisted else "source"
        table.add_row(f"[dim]{kind}[/]", escape(one.key), escape(one.description or ""))
    for one in queries:
        run = f"{PurePosixPath(path).name}:{one.name}"
        table.add_row("[dim]query[/]", escape(run), escape(one.description or ""))
    out.print(table)


_FACTS = (
    *("kind", "persisted", "build_id", "malloy_build_id", "group", "owners", "tags"),
    *("freshness", "time_column", "reads", "selects", "readers", "external"),
)


def _selects(project: Project, source: Source) -> list[str]:
    """Return the columns that a function is given of what it reads, where these are not all."""
    frames = source.function.frames if source.function else ()
    return [
        f"{project.by_id[read].key}.{column}"
        for parameter, read in zip(frames, source.bindings, strict=bool(frames))
        for column in parameter.columns or ()
    ]


def _show_json(given: Invocation, source: Source) -> dict[str, Any]:
    project, ledger = given.project, given.ledger
    environment, reads = given.settings.environment, given.settings.reads
    snapshot = ledger.find_snapshot(environment, source.build_id, reads=reads)
    origins: dict[str, list[str]] = {c.name: [] for c in source.columns}
    for edge in source.lineage:
        upstream = project.by_id[edge.upstream.source_id]
        origins[edge.column].append(f"{upstream.key}.{edge.upstream.column}")
    checks = {c.name: c for c in ledger.fetch_checks(snapshot.build_uid)} if snapshot else {}
    known = {c.name: c.type for c in snapshot.columns} if snapshot else {}
    # Those of a function are known when it has been computed.
    columns = source.columns or (snapshot.columns if snapshot else ())
    return {
        **_source_json(source),
        "columns": [
            {
                "name": c.name,
                "type": known.get(c.name, c.type),
                "description": c.description,
                "from": origins.get(c.name, []),
            }
            for c in columns
        ],
        "owners": list(source.annotation.owners),
        "tags": dict(source.annotation.tags),
        "group": source.group,
        "time_column": source.annotation.time_column,
        "freshness": {
            k: v
            for k, v in (
                ("window_seconds", source.annotation.freshness.window_s),
                ("warn_seconds", source.annotation.freshness.warn_s),
                ("fallback", source.annotation.freshness.fallback),
            )
            if v is not None
        }
        if source.annotation.freshness
        else None,
        "malloy_build_id": next(iter(source.malloy_ids), None),
        "definition": source.query.text if source.query else None,
        "selects": _selects(project, source),
        "readers": list(project.readers[source.source_id]),
        "tables": [_table_json(given.settings, snapshot)] if snapshot else [],
        "builds": [
            {
                "at": b.started_at.isoformat(),
                "environment": b.environment,
                "action": b.action,
                "state": b.state,
                "build_id": b.build_id,
                "rows": b.snapshot.rows if b.snapshot else None,
                "seconds": b.seconds,
                "run_id": b.run_id,
                "error": b.error,
            }
            for b in ledger.fetch_builds(source_id=source.source_id, limit=5)
        ],
        "checks": [
            {
                "name": c.name,
                "check": c.definition,
                "blocking": c.blocking,
                "passed": checks[c.name].passed if c.name in checks else None,
                "failed_rows": checks[c.name].failed_rows if c.name in checks else None,
                "found": checks[c.name].found if c.name in checks else None,
                "message": _why_failed(checks.get(c.name)),
                "sample": list(checks[c.name].sample) if c.name in checks else [],
                "partitions": [
                    {"partition": p.key, "failed_rows": p.failed_rows, "found": p.found}
                    for p in (checks[c.name].partitions if c.name in checks else ())
                ],
            }
            for c in source.checks
        ],
        "wants": [],
        **({"external": held_json(given, source)} if source.kind is Kind.EXTERNAL else {}),
    }


def _why_failed(result: CheckResult | None) -> str | None:
    return None if result is None or result.passed else result.in_words


def _table_json(settings: Settings, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "environment": settings.environment,
        "table": snapshot.table,
        "version": snapshot.version,
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "built_at": snapshot.built_at.isoformat(),
        "current_at": snapshot.known_at.isoformat(),
        "watermark": snapshot.watermark,
        "older_code": older_code(snapshot),
        "as_of": {v.raw: v.version for v in snapshot.as_of},
    }
