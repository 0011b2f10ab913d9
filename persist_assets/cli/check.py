"""`check`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    exit_code,
    out,
    print_error,
    print_json,
    print_problem,
    problem_json,
    quiet,
)
from persist_assets.core.errors import (
    NotFoundError,
    Problem,
    SettingsError,
    SourcesError,
    in_order,
)
from persist_assets.core.model.checks import Check, CheckResult
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import SourceID
from persist_assets.core.model.sources import Source
from persist_assets.planning.selection import select

if TYPE_CHECKING:
    from persist_assets.operations.analyser import Analysis
    from persist_assets.operations.data_checks import CheckedSource


@command("check", is_confined=True, unless="data")
def check(
    invocation: Invocation,
    selection: SelectArgument = None,
    data: Annotated[
        bool,
        typer.Option("--data", help="Run the checks of sources over their current rows, in Spark."),
    ] = False,
    spark: Annotated[
        bool,
        typer.Option("--spark", help="Also ask Spark's analyser, over tables without rows."),
    ] = False,
) -> None:
    """Compile all sources and report their problems; or run checks of data."""
    if data and spark:
        raise SettingsError("--data and --spark cannot be combined", hint="run one after the other")
    if data:
        _check_data(invocation, selection)
        return
    if (selection or invocation.exclude) and not spark:
        raise SettingsError(
            "`persist check` compiles all sources",
            hint="add --spark to ask Spark about the selected ones, or --data to run their checks",
        )
    from persist_assets.compiler.programs import never_followed
    from persist_assets.compiler.remarks import remarks_on

    project = invocation.loaded.project
    # Only here, because it derives programs, which loading does not.
    remarks = remarks_on(invocation.settings, project)
    analysis = _analysed(invocation, selection) if spark else None
    analysed = analysis.problems if analysis else ()
    problems = in_order(
        [*project.problems, *never_followed(project), *remarks, *_of_steps(project), *analysed]
    )
    n_errors = sum(problem.severity == "error" for problem in problems)
    if invocation.as_json:
        print_json(
            {
                "sources": [source_json(s) for s in project.sources],
                "problems": [problem_json(p) for p in problems],
                **({"analysed": analysis.n_queries} if analysis else {}),
            }
        )
    else:
        _print_report(invocation, problems, n_errors, analysis)
    if n_errors:
        raise typer.Exit(3)


def _of_steps(project: Project) -> Sequence[Problem]:
    """Return the problems that dagster-k8s finds in the configurations of steps."""
    if all(s.annotation.k8s is None for s in project.persisted):
        return ()
    from persist_assets.plugin.steps import wrong_k8s  # imports Dagster

    return tuple(wrong_k8s(project))


def _print_report(
    invocation: Invocation, problems: Sequence[Problem], n_errors: int, analysis: "Analysis | None"
) -> None:
    """Print problems, notes on sources, and how many there are."""
    project = invocation.loaded.project
    for problem in problems:
        print_problem(invocation, problem)
    for source in project.sources:
        for note in () if source.function else source.notes:  # a function's notes are warnings
            err.print(
                f"{source.location}: [cyan]note[/]: {escape(source.name)} is {escape(note)}",
                soft_wrap=True,
            )
    n, persisted = len(project.sources), len(project.persisted)
    errors = "1 error" if n_errors == 1 else f"{n_errors} errors"
    by_spark = f", {analysis.n_queries} analysed by Spark" if analysis else ""
    out.print(f"{n} source{'s' * (n != 1)}, {persisted} persisted{by_spark}, {errors}")


def _check_data(invocation: Invocation, selection: Sequence[str] | None) -> None:
    """Run the checks of selected sources over their rows, and print the results."""
    from persist_assets.operations.data_checks import check_data

    by_id = invocation.project.by_id
    sources = [by_id[s] for s in invocation.select(selection, views=True) if by_id[s].checks]
    with quiet(invocation):
        checked = [*check_data(invocation.reader(), sources)] if sources else []
    if invocation.as_json:
        environment = invocation.settings.environment
        print_json({"environment": environment, "sources": [_checked_json(c) for c in checked]})
    else:
        for one in checked:
            _print_checked(invocation, one)
        if not sources:
            out.print("no checks to run")
    if any(c.has_failed for c in checked):
        raise typer.Exit(1)
    errors = [c.error for c in checked if c.error is not None]
    if errors:
        raise typer.Exit(exit_code(type(errors[0])))


def _checked_json(checked: "CheckedSource") -> dict[str, Any]:
    results = {r.name: r for r in checked.results}
    return {
        "source_id": checked.source.source_id,
        "persisted": checked.source.persisted,
        "table": checked.snapshot.table if checked.snapshot else None,
        "version": checked.snapshot.version if checked.snapshot else None,
        "built": checked.is_built,
        "checks": [check_json(c, results.get(c.name)) for c in checked.source.checks],
        "error": checked.error.message if checked.error else None,
    }


def _print_checked(invocation: Invocation, checked: "CheckedSource") -> None:
    """Print the results of the checks of one source."""
    note = "" if checked.is_built else " [yellow]not built[/]"
    out.print(f"[bold]{escape(checked.source.key)}[/]{note}")
    if checked.error is not None:
        print_error(invocation, checked.error)
        return
    results = {r.name: r for r in checked.results}
    for one in checked.source.checks if checked.is_built else ():
        print_check(check_json(one, results.get(one.name)))


def check_json(check: Check, result: CheckResult | None, name: str | None = None) -> dict[str, Any]:
    """Return a check and its last result as JSON.

    Parameters
    ----------
    name
        The check's name, if it differs from that of its result.
    """
    return {
        "name": name or check.name,
        "check": check.definition,
        "blocking": check.blocking,
        "passed": result.passed if result else None,
        "failed_rows": result.failed_rows if result else None,
        "found": result.found if result else None,
        "message": result.in_words if result and not result.passed else None,
        "sample": list(result.sample) if result else [],
        "partitions": [
            {"partition": p.key, "failed_rows": p.failed_rows, "found": p.found}
            for p in (result.partitions if result else ())
        ],
        "kept_in": result.kept_in if result else None,
        "kept_rows": result.kept_rows if result else 0,
    }


def print_check(check: Mapping[str, Any]) -> None:
    """Print a check and its last result."""
    outcomes = {None: "[dim]not yet[/]", True: "[green]passed[/]", False: "[red]failed[/]"}
    outcome = outcomes[check["passed"]]
    weight = "" if check["blocking"] else " [dim](warns only)[/]"
    message = check["message"] or check["found"]
    detail = f": {escape(message)}" if message else ""
    out.print(f"[dim]check[/] {outcome} {escape(check['check'])}{weight}{detail}")
    for row in check["sample"][:1]:
        out.print(f"[dim]      for example {escape(row)}[/]", soft_wrap=True)
    if check["kept_in"]:
        where = f"{check['kept_rows']:,} rows kept in {check['kept_in']}"
        out.print(f"[dim]      {escape(where)}[/]", soft_wrap=True)


def _analysed(invocation: Invocation, selection: Sequence[str] | None) -> "Analysis":
    """Analyse the selected queries, or all, with Spark."""
    from persist_assets.operations.analyser import analyse

    project, chosen = invocation.loaded.project, None
    if selection or invocation.exclude:
        chosen = _with_queries(invocation, project, selection)
    with quiet(invocation):
        return analyse(invocation.root, project, invocation.engine, chosen)


def _with_queries(
    invocation: Invocation, project: Project, selection: Sequence[str] | None
) -> list[SourceID]:
    """Return the selected sources, persisted or not, of a project that may have errors."""

    def find(patterns: Sequence[str]) -> Sequence[SourceID]:
        selectors = invocation.settings.selectors
        return select(project, patterns, invocation.states, selectors, views=True)

    try:
        every = [s.source_id for s in project.sources if s.raw is None]
        chosen, excluded = find(selection) if selection else every, find(invocation.exclude)
    except NotFoundError as error:
        if project.errors:  # what could not be compiled may have the name
            raise SourcesError(project.errors) from error
        raise
    return [s for s in chosen if s not in excluded]


def source_json(source: Source) -> dict[str, Any]:
    """Return a source as JSON."""
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
