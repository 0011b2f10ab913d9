"""`ci`."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    err,
    exit_code,
    in_bytes,
    out,
    print_json,
    print_problem,
    problem_json,
    quiet,
)
from persist_assets.cli.build import run_build
from persist_assets.cli.reading import rows_json
from persist_assets.cli.testing import cases_of, make_writable, outcome_json
from persist_assets.core.errors import SettingsError, SourcesError
from persist_assets.core.trust import confined
from persist_assets.engine.data_diff import NotCompared, RowsDiffer
from persist_assets.operations.cases import read_cases
from persist_assets.operations.testing import Outcome, run_cases
from persist_assets.planning.changed_checks import checks_of_builds

if TYPE_CHECKING:
    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Build
    from persist_assets.operations.review import Report, Review, Reviewed


@command("ci")
def ci(
    invocation: Invocation,
    selection: SelectArgument = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="ENV|GIT_REF", help="The merge target to compare with."),
    ] = None,
    build: Annotated[
        bool,
        typer.Option("--build", help="Build and test the change in the environment of --env."),
    ] = False,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="The number of differing rows to show.")
    ] = 3,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Also write it as Markdown.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="DIFFERENCE",
            help="Fail for rebuilds, columns, checks, rows or warnings; can be repeated.",
        ),
    ] = None,
    end: Annotated[
        bool, typer.Option("--end", help="End the environment of --env and delete its tables.")
    ] = False,
) -> None:
    """Review a change: what is rebuilt, why and for how long; with --build also the results."""
    from persist_assets.operations import review_text
    from persist_assets.operations.review_rules import read_rules

    if end:
        others = (selection, invocation.exclude, against, build, fail_on, markdown)
        _end(invocation, is_alone=not any(others))
        return
    if against is None:
        raise SettingsError("`persist ci` needs --against", hint="for example, --against prod")
    if build and invocation.settings.environment == against:
        raise SettingsError(
            f"`--build` would build the change in `{against}` itself",
            hint="name an environment for the change: --env pr-123",
        )
    rules = read_rules(fail_on or (), is_built=build)
    if markdown is not None:
        make_writable(markdown)
    with nullcontext() if build else confined(invocation.root):
        report = _report(invocation, against, selection, rules, build=build, sample=sample)
    text = review_text.markdown(report)
    if markdown is not None:
        markdown.write_text(text, encoding="utf-8")
    if invocation.as_json:
        print_json(_report_json(report))
    else:
        sys.stdout.write(text)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _report(
    invocation: Invocation,
    against: str,
    selection: Sequence[str] | None,
    rules: Sequence[str],
    *,
    build: bool,
    sample: int,
) -> "Report":
    """Return the report of a change; errors of its sources are a part of it.

    Parameters
    ----------
    rules
        The names of those that it must not break.
    """
    from persist_assets.operations.review import Report, review
    from persist_assets.operations.review_rules import require_tables, violations

    try:
        project = invocation.project
        restricted = selection or invocation.exclude
        chosen = {*invocation.select(selection)} if restricted else None
        reviewed = review(invocation.settings, project, invocation.ledger, against, chosen)
    except SourcesError as error:
        for problem in error.problems:
            print_problem(invocation, problem)
        return Report(against, problems=tuple(error.problems), exit_code=exit_code(SourcesError))
    require_tables(reviewed, rules)
    report = Report(against, reviewed, shows_rows=sample > 0)
    if build:
        report = _built(invocation, report, reviewed, sample)
        report = _tested(invocation, report, selection)
    broken = violations(report, rules)
    code = report.exit_code or (1 if broken else 0)
    return replace(report, violations=broken, exit_code=code)


def _built(invocation: Invocation, report: "Report", reviewed: "Review", sample: int) -> "Report":
    """Build what differs in the environment of the change, and compare the rows."""
    from persist_assets.operations.documents.builds import RunDocument
    from persist_assets.operations.review import compare_built

    settings, project = invocation.settings, invocation.project
    report = replace(report, environment=settings.environment, notes=_notes(invocation, reviewed))
    chosen = [s for r in reviewed.sources if (s := project.by_id.get(r.source_id)) and s.persisted]
    if not chosen:
        return replace(report, run=RunDocument(run_id=None, published=True, builds=[]))
    names = ", ".join(s.key for s in chosen)
    err.print(f"building in {settings.environment}: {escape(names)}", soft_wrap=True)
    result, document = run_build(invocation, chosen)
    code = 0 if result.success else next((exit_code(f.kind) for f in result.failures), 1)
    builds = invocation.ledger.builds.fetch(run_id=result.run_id)
    report = replace(report, run=document, checks=_failed_checks(invocation, builds))
    tables = {b.source_id: b.snapshot for b in builds if b.state == "succeeded" and b.snapshot}
    with quiet(invocation):
        load = invocation.reader().load_snapshot
        environment = settings.environment
        rows, notes = compare_built(load, reviewed, project, tables, environment, sample)
    return replace(report, rows=rows, notes=(*report.notes, *notes), exit_code=code)


def _notes(invocation: Invocation, reviewed: "Review") -> tuple[str, ...]:
    """Return reasons why builds in the environment may differ from those of the other one."""
    settings, project = invocation.settings, invocation.project
    name, against = settings.environment, reviewed.against
    notes: list[str] = []
    if reviewed.tables is not None and against not in settings.reads:
        notes.append(f"{name} does not read {against}, so it builds upstream tables of its own")
    differing = [
        s.key for s in project.persisted if reviewed.build_ids.get(s.source_id) != s.build_id
    ]
    if differing:
        notes.append(
            f"settings or raw data of {name} differ from those of {against}, "
            f"so rows differ for that reason too: {', '.join(differing)}"
        )
    return tuple(notes)


def _failed_checks(
    invocation: Invocation, builds: "Sequence[Build]"
) -> "dict[SourceID, Sequence[CheckResult]]":
    """Return the failed checks of builds, those that only warn included."""
    failed: dict[SourceID, Sequence[CheckResult]] = {}
    for build in builds:
        uid = build.snapshot.build_uid if build.snapshot else build.build_uid
        source = invocation.project.by_id[build.source_id]
        current = {(c.name, c.definition) for c in checks_of_builds(invocation.project, source)}
        results = invocation.ledger.builds.fetch_checks(uid)
        if failing := [c for c in results if not c.passed and (c.name, c.definition) in current]:
            failed[build.source_id] = failing
    return failed


def _tested(invocation: Invocation, report: "Report", selection: Sequence[str] | None) -> "Report":
    """Run the tests of the selected sources."""
    cases = cases_of(invocation, read_cases(invocation.root), selection)
    outcomes: list[Outcome] = []
    if cases:
        err.print(f"running {len(cases)} test{'s' * (len(cases) != 1)}")
        settings, project, engine = invocation.settings, invocation.project, invocation.engine
        with quiet(invocation):
            outcomes = [*run_cases(settings, project, engine, cases)]
    codes = [exit_code(type(o.error)) if o.error else 1 for o in outcomes if o.status != "passed"]
    if any(o.status == "failed" for o in outcomes):
        codes = [1]
    code = report.exit_code or next(iter(codes), 0)
    return replace(report, tests=tuple(outcomes), exit_code=code)


def _end(invocation: Invocation, *, is_alone: bool) -> None:
    """End the environment of a pull request, unless there are other arguments."""
    from persist_assets.operations.gc import end_environment

    if not is_alone:
        raise SettingsError(
            "`persist ci --end` ends the environment of --env, and takes no other options",
            hint="for example, persist ci --end --env pr-123",
        )
    invocation.keep_going = True  # its sources may have errors
    settings = invocation.settings
    n_entries, collected = end_environment(settings, invocation.project, invocation.ledger)
    freed = sum(c.bytes for c in collected)
    if invocation.as_json:
        tables = [
            {"table": c.table, "versions": list(c.versions), "bytes": c.bytes} for c in collected
        ]
        print_json(
            {
                "environment": settings.environment,
                "entries": n_entries,
                "tables": tables,
                "bytes": freed,
            }
        )
        return
    if not n_entries:
        out.print(f"{settings.environment} had no tables")
    n = f"{n_entries} {'entry' if n_entries == 1 else 'entries'}"
    out.print(f"{settings.environment} has ended: {n}, {in_bytes(freed)} deleted")


# ------------------------------------------------------------------------------------------- JSON


def _report_json(report: "Report") -> dict[str, Any]:
    review = report.review
    builds = report.run.as_json()["builds"] if report.run else []
    by_id = {b["source_id"]: b for b in builds}
    sources = [
        _reviewed_json(r)
        | {"build": by_id.get(r.source_id), "failed_checks": _checks_json(report, r.source_id)}
        | rows_json(report.rows.get(r.source_id))
        | _shares_json(report.rows.get(r.source_id))
        for r in (review.sources if review else ())
    ]
    rebuilt = [r for r in (review.sources if review else ()) if r.is_rebuilt]
    known = [r.seconds for r in rebuilt if r.seconds is not None]
    return {
        "against": report.against,
        "environment": report.environment,
        "exit_code": report.exit_code,
        "problems": [problem_json(p) for p in report.problems],
        "sources": sources,
        "same": review.n_same if review else None,
        "cost": {
            "builds": len(rebuilt),
            "seconds": sum(known) if known else None,
            "not_measured": len(rebuilt) - len(known),
        },
        "tests": None if report.tests is None else [outcome_json(o) for o in report.tests],
        "run_id": report.run.run_id if report.run else None,
        "notes": [*(review.notes if review else ()), *report.notes],
        "violations": [
            {"rule": v.rule, "source_id": v.source_id, "reason": v.reason}
            for v in report.violations
        ],
    }


def _reviewed_json(r: "Reviewed") -> dict[str, Any]:
    columns, checks, step = r.columns, r.checks, r.step
    return {
        "source_id": r.source_id,
        "change": r.difference.change,
        "rebuilt": r.is_rebuilt,
        "reasons": [
            {"code": x.code, "message": x.message, "source_id": x.source_id}
            for x in (step.reasons if step else ())
        ],
        "maintenance": step.maintenance if step else None,
        "seconds": r.seconds,
        "expressions": [
            {"column": e.column, "before": e.before, "after": e.after}
            for e in r.difference.expressions
        ],
        "columns": {
            "known": columns.is_known,
            "added": [{"name": c.name, "type": c.type} for c in columns.added],
            "removed": [{"name": c.name, "type": c.type} for c in columns.removed],
            "retyped": [_altered_json(c) for c in columns.retyped],
            "changed": [*columns.changed],
        },
        "checks": {
            "added": [*checks.added],
            "removed": [*checks.removed],
            "changed": [_altered_json(c) for c in checks.changed],
        },
        "readers_rebuilt": [*r.rebuilt],
        "readers_spared": [*r.spared],
    }


def _shares_json(difference: "RowsDiffer | NotCompared | None") -> dict[str, Any]:
    from persist_assets.operations.review import shares

    return {"shares": shares(difference)} if isinstance(difference, RowsDiffer) else {}


def _altered_json(altered: Any) -> dict[str, str]:
    return {"name": altered.name, "before": altered.before, "after": altered.after}


def _checks_json(report: "Report", source_id: str) -> list[dict[str, Any]]:
    return [
        {
            "name": c.name,
            "check": c.definition,
            "blocking": c.blocking,
            "failed_rows": c.failed_rows,
            "message": c.in_words,
        }
        for c in report.checks.get(source_id, ())
    ]
