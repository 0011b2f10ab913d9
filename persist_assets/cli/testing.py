"""`test`."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    exit_code,
    out,
    print_json,
    quiet,
    table_of,
)
from persist_assets.cli.reading import print_sides
from persist_assets.core.errors import SettingsError
from persist_assets.engine.row_values import json_value
from persist_assets.operations.cases import DIRECTORY, Case, read_cases
from persist_assets.operations.testing import Difference, Outcome, record, run_cases
from persist_assets.planning.selection import find_declared, find_source

_COLOURS = {"passed": "green", "failed": "red", "error": "red"}


@command("test")
def test(
    invocation: Invocation,
    selection: SelectArgument = None,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write the results as JUnit XML."),
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option("--record", metavar="SOURCE", help="Write a test with some real rows."),
    ] = None,
    n_rows: Annotated[
        int, typer.Option("--rows", min=1, help="With --record: the number of rows of each input.")
    ] = 5,
) -> None:
    """Run the tests of sources: YAML files below `tests`."""
    if recorded is not None:
        _record(invocation, recorded, n_rows)
        return
    if junit is not None:
        make_writable(junit)
    cases = cases_of(invocation, read_cases(invocation.root), selection)
    outcomes: list[Outcome] = []
    if cases:
        settings, project = invocation.settings, invocation.project
        with quiet(invocation):
            for outcome in run_cases(settings, project, invocation.engine, cases):
                outcomes.append(outcome)
                progress = f"{len(outcomes)} of {len(cases)}: {outcome.case.name} {outcome.status}"
                err.print(f"[dim]{escape(progress)}[/]")
    if junit is not None:
        _write_junit(junit, outcomes)
    if invocation.as_json:
        print_json([outcome_json(outcome) for outcome in outcomes])
    else:
        _print(outcomes)
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)
    if errors:
        raise typer.Exit(exit_code(type(errors[0])))


def cases_of(
    invocation: Invocation, cases: Sequence[Case], patterns: Sequence[str] | None
) -> list[Case]:
    """Return the tests of the selected sources, which need not be persisted."""
    project = invocation.project
    by_id = {case.name: [*find_declared(project, case.source)] for case in cases}

    def sources(some: Sequence[str]) -> set[str]:
        ids: set[str] = set()
        for pattern in some:
            declared = find_declared(project, pattern)
            ids |= {*(declared or invocation.find([pattern], views=True))}
        return ids

    included, excluded = sources(patterns or ()), sources(invocation.exclude)
    return [
        case
        for case in cases
        if (not patterns or not included.isdisjoint(by_id[case.name]))
        and excluded.isdisjoint(by_id[case.name])
    ]


def _print(outcomes: Sequence[Outcome]) -> None:
    """Print a line for each test, and what differs."""
    if not outcomes:
        out.print(f"no tests selected: write {DIRECTORY}/NAME.yml, or persist test --record SOURCE")
        return
    table = table_of("test", "source", "result", "seconds")
    for outcome in outcomes:
        result = f"[{_COLOURS[outcome.status]}]{outcome.status}[/]"
        name, source = escape(outcome.case.name), escape(outcome.case.source)
        table.add_row(name, source, result, f"{outcome.seconds:.1f}")
    out.print(table)
    for outcome in outcomes:
        if outcome.status == "passed":
            continue
        title = f"{outcome.case.location}: [bold]{escape(outcome.case.name)}[/]"
        if outcome.error is not None:
            hint = f"\n  hint: {escape(outcome.error.hint)}" if outcome.error.hint else ""
            out.print(f"\n{title}: {escape(outcome.error.message)}{hint}", soft_wrap=True)
        for difference in outcome.differences:
            out.print(f"\n{title}: {escape(_summary(difference))}", soft_wrap=True)
            missing, unexpected = difference.missing, difference.unexpected
            print_sides(_by_column(difference, missing), _by_column(difference, unexpected))
    counts = Counter(outcome.status for outcome in outcomes)
    n, parts = len(outcomes), (f"{counts[s]} {s}" for s in _COLOURS if counts[s])
    out.print(f"\n{n} test{'s' * (n != 1)}: {', '.join(parts)}")


def _summary(difference: Difference) -> str:
    """Return how rows differ, in words."""
    where = "" if difference.part == "expect" else f"CTE `{difference.part}`: "
    n, m = len(difference.missing), len(difference.unexpected)
    verb = "is" if n == 1 else "are"
    return f"{where}{n} expected row{'s' * (n != 1)} {verb} missing (-), {m} unexpected (+)"


def _by_column(difference: Difference, rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(difference.columns, row, strict=True)) for row in rows]


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Return the result of a test as JSON."""
    return {
        "name": outcome.case.name,
        "source": outcome.case.source,
        "path": outcome.case.location.path,
        "line": outcome.case.location.line,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 3),
        "error": outcome.error.message if outcome.error else None,
        "differences": [
            {
                "of": difference.part,
                "missing": json_value(_by_column(difference, difference.missing)),
                "unexpected": json_value(_by_column(difference, difference.unexpected)),
            }
            for difference in outcome.differences
        ],
    }


def make_writable(path: Path) -> None:
    """Make the directory of a file that is written once the work is done.

    Raises
    ------
    SettingsError
        It cannot be written.
    """
    problem = "it is a directory" if path.is_dir() else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            problem = problem or "no permission"
    except OSError as error:
        problem = error.strerror
    if problem:
        raise SettingsError(f"cannot write {path}: {problem}", hint="name another file")


def _write_junit(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write results as JUnit does, which CI servers read."""
    counts = Counter(outcome.status for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name="persist",
        tests=str(len(outcomes)),
        failures=str(counts["failed"]),
        errors=str(counts["error"]),
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=outcome.case.source,
            name=outcome.case.name,
            file=outcome.case.location.path,
            line=str(outcome.case.location.line),
            time=f"{outcome.seconds:.3f}",
        )
        for difference in outcome.differences:
            failure = ElementTree.SubElement(case, "failure", message=_summary(difference))
            lines = [f"- {row}" for row in _by_column(difference, difference.missing)]
            lines += [f"+ {row}" for row in _by_column(difference, difference.unexpected)]
            failure.text = "\n".join(lines)
        if outcome.error is not None:
            ElementTree.SubElement(case, "error", message=outcome.error.message)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _record(invocation: Invocation, name: str, n_rows: int) -> None:
    """Write a test with some real rows of the inputs of a source."""
    import yaml

    source = find_source(invocation.project, name)
    path = invocation.root / DIRECTORY / f"{source.name}.yml"
    if path.exists():
        raise SettingsError(f"{path} already exists", hint="rename or delete it")
    with quiet(invocation):
        body = record(
            invocation.settings,
            invocation.project,
            invocation.engine,
            invocation.reader(),
            source.key,
            n_rows,
        )
    path.parent.mkdir(exist_ok=True)
    document = {f"recorded_{source.name}": body}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    path.write_text(text)
    if invocation.as_json:
        print_json({"path": path.relative_to(invocation.root).as_posix()})
        return
    out.print(f"wrote {path}", markup=False, soft_wrap=True)
    if not body["expect"]:
        err.print("the source returns no rows for these inputs: edit the test before you keep it")
