"""The command line `persist`: prints values, decides nothing.

Results go to stdout, as one JSON document with ``--json``; progress and messages go to stderr.
"""

import functools
import gc
import inspect
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from persist_assets.compare import Change, Standings, compare, to_rebuild
from persist_assets.errors import (
    BuildError,
    ConflictError,
    LedgerError,
    NotFoundError,
    PersistError,
    Problem,
    SettingsError,
    SourcesError,
    StorageError,
)
from persist_assets.frontends.malloy import SUFFIX as MALLOY
from persist_assets.manifest import fetch_document
from persist_assets.model import (
    Build,
    Fallback,
    ManifestChange,
    Plan,
    Project,
    Query,
    Snapshot,
    Source,
    SourceID,
)
from persist_assets.project import load_project, load_query, require, sound
from persist_assets.revisions import WORKING_TREE, find_places
from persist_assets.rows import ChangedRow, NotCompared, RowsDiffer, compare_tables
from persist_assets.selection import find_source, is_simple, select
from persist_assets.settings import KEEP_GOING, Settings, find_root, load_settings
from persist_assets.storage.files import know_stores

if TYPE_CHECKING:
    from persist_assets.builder import Builder
    from persist_assets.ledger.store import Ledger

EXIT_CODES: Sequence[tuple[type[PersistError], int]] = (
    (StorageError, 6),
    (LedgerError, 5),
    (NotFoundError, 4),
    (ConflictError, 4),
    (SourcesError, 3),
    (SettingsError, 2),
    (BuildError, 1),
    (PersistError, 1),
)
"""What the process ends with for each class of error; the first that fits."""
INTERRUPTED = 130
SPARK_LOG = "spark.log"
"""The file below `.persist` that Spark and Dagster log to while the command line works."""

app = typer.Typer(
    name="persist",
    help="Persistent sources for Dagster on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
spark_app = typer.Typer(
    help=r"The Spark server that stays between runs: \[spark] shared = true.", no_args_is_help=True
)
app.add_typer(spark_app, name="spark")
ledger_app = typer.Typer(help="The database of all state.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
_WIDE = 4000  # what is not a terminal gets whole lines
err = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _WIDE)
out = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


# ------------------------------------------------------------------------------------ what is given


@dataclass
class Invocation:
    """What a command is given, and what it works on: made when it is first asked for."""

    project_dir: Path | None = None
    env: str | None = None
    as_json: bool = False
    verbose: bool = False
    keep_going: bool = False
    _closing: list[Callable[[], None]] = field(default_factory=list)

    @cached_property
    def settings(self) -> Settings:
        """The project's settings."""
        root = self.project_dir.resolve() if self.project_dir else find_root(Path.cwd())
        if not root.is_dir():
            raise SettingsError(f"there is no directory {root}")
        settings = load_settings(root, environment=self.env)
        know_stores(settings.stores)
        return settings

    @cached_property
    def project(self) -> Project:
        """The compiled project; what is not an error is printed."""
        project = load_project(self.settings)
        project = sound(project) if self.keep_going else require(project)
        for problem in project.problems:
            print_problem(problem)
        return project

    @cached_property
    def ledger(self) -> "Ledger":
        """The ledger."""
        from persist_assets.ledger.store import Ledger

        ledger = Ledger(self.settings.ledger)
        self._closing.append(ledger.close)
        return ledger

    @cached_property
    def builder(self) -> "Builder":
        """What plans and reads in a session of this process."""
        from persist_assets.builder import Builder
        from persist_assets.engine import Engine
        from persist_assets.session import create_session

        engine = Engine(self.settings, lambda: create_session(self.settings))
        return Builder(self.settings, self.project, self.ledger, engine)

    def select(self, patterns: Sequence[str] | None) -> tuple[SourceID, ...]:
        """Return the persisted sources that patterns select; no patterns: all."""
        if not patterns:
            return tuple(s.source_id for s in self.project.persisted)
        if all(is_simple(p) for p in patterns):
            return select(self.project, patterns)
        from persist_assets.plugin.selection import select_as_dagster

        return select_as_dagster(self.settings, self.project, patterns)

    def close(self) -> None:
        """Give back what was opened."""
        for act in self._closing:
            act()


ProjectOption = Annotated[
    Path | None,
    typer.Option("--project", help="The project root; else the nearest persist.toml upwards is."),
]
EnvOption = Annotated[str | None, typer.Option("--env", help="The environment.")]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Logs, and tracebacks of errors.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
SelectArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Which sources, in Dagster's selection syntax; all if none."),
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against", metavar="ENV|GIT_REF", help="Tell what differs from there, and is rebuilt."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Build even what is up to date.")]


@app.callback()
def everywhere(
    ctx: typer.Context,
    project: ProjectOption = None,
    env: EnvOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Remember the options that stand before the command."""
    ctx.obj = {"project": project, "env": env, "verbose": verbose}


_COMMON = (
    ("ctx", typer.Context, inspect.Parameter.empty),
    ("project", ProjectOption, None),
    ("env", EnvOption, None),
    ("as_json", JsonOption, False),
    ("verbose", VerboseOption, False),
)


def command(
    name: str, on: typer.Typer = app
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: options that all have, and errors as exit codes."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [p for n, p in inspect.signature(function).parameters.items() if n != "given"]
        common = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for n, kind, default in _COMMON
        ]

        @functools.wraps(function)
        def run(ctx: typer.Context, **values: Any) -> None:
            before: Mapping[str, Any] = ctx.obj or {}
            given = Invocation(
                values.pop("project") or before.get("project"),
                values.pop("env") or before.get("env"),
                values.pop("as_json"),
                values.pop("verbose") or bool(before.get("verbose")),
            )
            with as_exit_codes(given):
                function(given, **values)

        signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in own] + common)
        run.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        on.command(name)(run)
        return function

    return decorate


@contextmanager
def as_exit_codes(given: Invocation) -> Generator[None]:
    """End the process with the code of the error's class, if there is an error."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt as error:
        err.print("interrupted")
        raise typer.Exit(INTERRUPTED) from error
    except PersistError as error:
        if given.verbose:
            err.print_exception()
        if given.as_json:
            print_json(_error_json(error))
        if isinstance(error, SourcesError):
            for problem in error.problems:
                print_problem(problem)
        else:
            print_error(error)
        raise typer.Exit(exit_code(type(error))) from error
    except Exception as error:
        if given.verbose:
            err.print_exception()
        err.print(f"[red]error[/]: {escape(f'{type(error).__name__}: {error}')}")
        err.print("  hint: this should not happen: run it again with -v and report what it prints")
        raise typer.Exit(1) from error
    finally:
        given.close()


def _error_json(error: PersistError) -> dict[str, Any]:
    """Return an error as the one document that a command prints on stdout."""
    problems = error.problems if isinstance(error, SourcesError) else ()
    place = error.location
    return {
        "error": {
            "code": type(error).__name__,
            "message": error.message.splitlines()[0],
            "hint": error.hint,
            "path": place.path if place else None,
            "line": place.line if place else None,
            "column": place.column if place else None,
        },
        "problems": [_problem_json(p) for p in problems],
    }


def exit_code(error: type[PersistError]) -> int:
    """Return the exit code of a class of errors."""
    return next(code for kind, code in EXIT_CODES if issubclass(error, kind))


def print_error(error: PersistError) -> None:
    """Print an error on stderr."""
    where = f"{error.location}: " if error.location else ""
    err.print(f"{escape(where)}[red]error[/]: {escape(error.message)}", soft_wrap=True)
    if error.hint:
        err.print(f"  hint: {escape(error.hint)}", soft_wrap=True)


def print_problem(problem: Problem) -> None:
    """Print a problem on stderr."""
    colour = {"error": "red", "warning": "yellow", "note": "cyan"}[problem.severity]
    text = escape(f"{problem.message} [{problem.code}]")
    err.print(f"{problem.location}: [{colour}]{problem.severity}[/]: {text}", soft_wrap=True)
    if problem.hint:
        err.print(f"  hint: {escape(problem.hint)}", soft_wrap=True)


def print_json(document: object) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, default=str, ensure_ascii=False) + "\n")


# -------------------------------------------------------------------------------------------- check


@command("check")
def check(given: Invocation) -> None:
    """Compile all sources and say what is wrong with them."""
    project = load_project(given.settings)
    if given.as_json:
        print_json(
            {
                "sources": [_source_json(s) for s in project.sources],
                "problems": [_problem_json(p) for p in project.problems],
            }
        )
    else:
        for problem in project.problems:
            print_problem(problem)
        for source in project.sources:
            for note in source.notes:
                err.print(
                    f"{source.location}: [cyan]note[/]: {escape(source.name)} {escape(note)}",
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


def _problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON has it."""
    return {
        "code": problem.code,
        "severity": problem.severity,
        "message": problem.message,
        "path": problem.location.path,
        "line": problem.location.line,
        "column": problem.location.column,
        "hint": problem.hint,
    }


# --------------------------------------------------------------------------------------------- plan


@command("plan")
def plan(
    given: Invocation,
    selection: SelectArgument = None,
    force: ForceOption = False,
    against: AgainstOption = None,
) -> None:
    """Show what a build would do, and why. Builds nothing, starts no Spark."""
    chosen = given.select(selection)
    compared = _against(given, against, chosen if selection else None) if against else None
    planned = given.builder.plan(chosen, force=force)
    absent = {
        r.source_id: r.message for s in planned.steps for r in s.reasons if r.code == "no-data"
    }
    for source_id, message in absent.items():
        place = given.project.by_id[source_id or ""].location
        print_problem(Problem("no-data", message, place, severity="warning"))
    if given.as_json:
        told = {"against": _against_json(against, *compared)} if compared else {}
        print_json(_plan_json(given.project, planned) | told)
        return
    out.print(plan_tree(given.project, planned))
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


def _plan_json(project: Project, planned: Plan) -> dict[str, Any]:
    return {
        "environment": planned.environment,
        "steps": [
            {
                "source_id": step.source_id,
                "partition": step.partition,
                "action": step.action,
                "reasons": [
                    {"code": r.code, "message": r.message, "source_id": r.source_id}
                    for r in step.reasons
                ],
                "build_id": step.build_id,
                "notes": list(project.by_id[step.source_id].notes),
                "estimate": {
                    "rows": step.estimate.rows,
                    "bytes": step.estimate.bytes,
                    "seconds": step.estimate.seconds,
                }
                if step.estimate
                else None,
            }
            for step in planned.steps
        ],
        "external": [],
    }


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
        if step.action == "build":
            why = "; ".join(r.message for r in step.reasons)
            label = f"[yellow]build[/] {escape(source.key)} [dim]{escape(why)}[/]{reads}"
        else:
            label = f"[green]reuse[/] {escape(source.key)}{reads}"
        branches[step.source_id] = branch = parent.add(label)
        for note in source.notes:
            branch.add(f"[dim]note: {escape(note)}[/]")
    return root


# --------------------------------------------------------------------------------------------- diff


PlaceArgument = Annotated[
    str, typer.Argument(help="An environment, a git ref, a BuildID, or . for the files.")
]


@command("diff")
def diff(
    given: Invocation,
    before: PlaceArgument,
    after: PlaceArgument,
    selection: SelectArgument = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Compare the rows of both sides' tables too.")
    ] = False,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="Columns that tell rows apart: a,b. Else rows are counted."),
    ] = None,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="Show so many rows of each kind.")
    ] = 5,
) -> None:
    """Explain how sources differ between two places, down to expressions and rows."""
    if key and not rows:
        raise SettingsError("`--key` says how rows are compared", hint="add --rows")
    places = find_places(given.settings, given.project, given.ledger, before, after)
    wanted = set(given.select(selection)) if selection else None
    changes = [
        change
        for change in compare(places[0].standings, places[1].standings)
        if wanted is None or change.source_id in wanted
    ]
    compared: dict[SourceID, RowsDiffer | NotCompared] = {}
    if rows:
        tables = [p.tables for p in places]
        if tables[0] is None or tables[1] is None:
            raise SettingsError(
                f"`{before if tables[0] is None else after}` is files, and files have no rows",
                hint="--rows compares environments and BuildIDs: build the files in one",
            )
        with _quiet(given):
            changes, compared = compare_tables(
                given.builder.load_snapshot,
                changes,
                (tables[0], tables[1]),
                key=_split(key),
                sample=sample,
                names=(before, after),
            )
    changes = [c for c in changes if c.change != "same"]
    if given.as_json:
        told = [_change_json(c) | _rows_json(compared.get(c.source_id)) for c in changes]
        print_json({"sources": told})
        return
    if not changes:
        out.print(f"nothing differs between {escape(before)} and {escape(after)}")
        return
    out.print(changes_tree(f"{before} → {after}", changes))
    for source_id, found in compared.items():
        _print_rows_differ(source_id, found)


def _split(key: Sequence[str] | None) -> list[str]:
    return [name.strip() for given in key or () for name in given.split(",") if name.strip()]


def _rows_json(found: RowsDiffer | NotCompared | None) -> dict[str, Any]:
    if found is None:
        return {}
    if isinstance(found, NotCompared):
        return {"rows_note": found.reason}
    return {
        "rows": {
            "added": found.added,
            "removed": found.removed,
            "changed": found.changed,
            "before": found.before,
            "after": found.after,
        },
        "key": list(found.key),
        "columns_changed": dict(found.columns),
        "columns_not_compared": [
            {"column": u.column, "before": u.before, "after": u.after} for u in found.uncompared
        ],
        "samples": {
            "added": [_cell(row) for row in found.added_rows],
            "removed": [_cell(row) for row in found.removed_rows],
            "changed": [
                {"key": _cell(r.key), "before": _cell(r.before), "after": _cell(r.after)}
                for r in found.changed_rows
            ],
        },
    }


def _print_rows_differ(source_id: SourceID, found: RowsDiffer | NotCompared) -> None:
    """Print how rows differ: what is counted, and below it rows with what they were and are."""
    out.print()
    if isinstance(found, NotCompared):
        out.print(f"[bold]{escape(source_id)}[/] rows not compared: {escape(found.reason)}")
        return
    parts = [f"[green]+{found.added} added[/]", f"[red]-{found.removed} removed[/]"]
    if found.changed is not None:
        parts.append(f"[yellow]~{found.changed} changed[/]")
    how = f" by {', '.join(found.key)}" if found.key else ""
    title = f"[bold]{escape(source_id)}[/] {found.before} → {found.after} rows{escape(how)}"
    out.print(f"{title}: {', '.join(parts)}")
    columns = [f"{escape(name)} ({n})" for name, n in found.columns.items() if n]
    if columns:
        out.print(f"  changed columns: {', '.join(columns)}")
    for u in found.uncompared:
        kinds = f"{u.before or 'not there'} → {u.after or 'not there'}"
        out.print(f"  not compared: {escape(u.column)} [dim]{escape(kinds)}[/]")
    sampled: list[tuple[str, str, dict[str, Any]]] = [
        *(("~", "yellow", _both(row)) for row in found.changed_rows),
        *(("-", "red", row) for row in found.removed_rows),
        *(("+", "green", row) for row in found.added_rows),
    ]
    if not sampled:
        return
    there = dict.fromkeys(name for _, _, row in sampled for name in row)
    names = [*found.key, *(n for n in there if n not in found.key)]
    table = Table("", *(escape(n) for n in names), box=None, pad_edge=False)
    for mark, colour, row in sampled:
        cells = [_change_cell(row[n]) if n in row else "" for n in names]
        table.add_row(f"[{colour}]{mark}[/]", *cells)
    out.print(table)


def _both(row: ChangedRow) -> dict[str, Any]:
    """Return the cells of a changed row; what differs is a pair of what it was and is."""
    return row.key | {n: _Pair(v, row.after[n]) for n, v in row.before.items()}


@dataclass(frozen=True)
class _Pair:
    before: Any
    after: Any


def _change_cell(value: Any) -> str:
    """Return a cell for people who look for differences: nothing is rounded."""
    if isinstance(value, _Pair):
        return f"{_change_cell(value.before)} [yellow]→[/] {_change_cell(value.after)}"
    return _shown(repr(value) if isinstance(value, float) else _cell(value))


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "source_id": change.source_id,
        "change": change.change,
        "columns": list(change.columns),
        "rows_changed": change.rows_changed,
        "expressions": [
            {"column": e.column, "before": e.before, "after": e.after} for e in change.expressions
        ],
        "because": list(change.because),
        "rows": None,
    }


# -------------------------------------------------------------------------------------------- build


@command("build")
def build(
    given: Invocation,
    selection: SelectArgument = None,
    force: ForceOption = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Build what is right although files are wrong.")
    ] = False,
) -> None:
    """Build what is out of date, in one Dagster run."""
    if keep_going:
        given.keep_going = True
        os.environ[KEEP_GOING] = "true"  # for the project's own definitions
    chosen = [given.project.by_id[s] for s in given.select(selection)]
    if not chosen:
        raise NotFoundError("nothing is persisted", hint="annotate a source: --@ persist")
    since = given.ledger.position()
    if "spark.remote" not in dict(given.settings.spark):
        from persist_assets.session import check_java

        check_java()
    from persist_assets.plugin.runs import run_assets

    with _quiet(given), _progress(given, chosen, since):
        result = run_assets(given.settings, chosen, force=force, verbose=given.verbose)
    latest: dict[SourceID, Build] = {}
    for done in reversed(given.ledger.fetch_builds(run_id=result.run_id)):
        latest[done.source_id] = done
    failed = {f.source_id: f.message for f in result.failures}
    rows = [_build_json(s, latest.get(s.source_id), failed.get(s.source_id)) for s in chosen]
    _tell_skipped(given.project, rows)
    if given.as_json:
        print_json({"run_id": result.run_id, "published": result.success, "builds": rows})
    else:
        _print_builds(given.project, rows)
        if all(row["action"] == "reused" for row in rows):
            out.print(f"nothing was rebuilt: all {len(rows)} tables were up to date")
        out.print(
            f"run {result.run_id} {'[green]succeeded[/]' if result.success else '[red]failed[/]'}"
        )
    if not result.success:
        for failure in result.failures:
            if failure.source_id not in latest:  # its end was not told while it ran
                text = escape(f"{failure.step}: {failure.message}")
                err.print(f"[red]error[/]: {text}", soft_wrap=True)
        if not given.verbose:
            log = given.settings.state_dir / SPARK_LOG
            err.print(f"[dim]Spark's log is {log}; -v shows it here[/]", soft_wrap=True)
        raise typer.Exit(next((exit_code(f.kind) for f in result.failures), 1))
    if given.project.errors:
        raise typer.Exit(exit_code(SourcesError))


@contextmanager
def _quiet(given: Invocation) -> Generator[None]:
    """Send what Spark, Dagster and user code print to a log: stdout and stderr are ours.

    With ``-v`` it goes to stderr.
    """
    gc.enable()
    given.settings.state_dir.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    sys.stderr.flush()
    ours = os.fdopen(os.dup(2), "w", encoding="utf-8")
    err.file, before = ours, err.file
    try:
        if given.verbose:
            os.dup2(2, 1)
        else:
            with (given.settings.state_dir / SPARK_LOG).open("ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, copy in enumerate(kept, 1):
            os.dup2(copy, fd)
            os.close(copy)
        err.file = before
        ours.close()


@contextmanager
def _progress(given: Invocation, chosen: Sequence[Source], since: int) -> Generator[None]:
    """Print each build of ours on stderr as it begins and ends, as the ledger's events tell."""
    from persist_assets.ledger.store import this_process

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
    if status:
        status.start()
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
        if status:
            status.stop()


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
    return {
        "source_id": source.source_id,
        "partition": None,
        "build_id": source.build_id,
        "action": action,
        "rows": snapshot.rows if snapshot else None,
        "bytes": snapshot.bytes if snapshot else None,
        "seconds": done.seconds if done else None,
        "table": snapshot.table if snapshot else None,
        "version": snapshot.version if snapshot else None,
        "error": done.error if done else failure,
    }


def _print_builds(project: Project, rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("source", "action", "rows", "bytes", "seconds", "table"):
        table.add_column(
            title, justify="right" if title in ("rows", "bytes", "seconds") else "left"
        )
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
    if source.endswith(MALLOY):
        _show_file(given, source)
        return
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
        if document[title] not in ([], None, {}):
            facts.add_row(f"[dim]{title.replace('_', ' ')}[/]", escape(_said(document[title])))
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
        out.print(f"[dim]check[/] {passed[check['passed']]} {escape(check['check'])}{weight}")
    for title in ("tables", "builds"):
        for row in document[title]:
            said = ", ".join(f"{k} {_said(v)}" for k, v in row.items() if v is not None)
            out.print(f"[dim]{title[:-1]}[/] {escape(said)}", soft_wrap=True)


def _show_file(given: Invocation, written: str) -> None:
    """Show the sources and the named queries of a Malloy file."""
    path = _malloy_path(given.settings, written)
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
    *("freshness", "time_column", "reads", "readers"),
)


def _said(value: Any) -> str:
    """Return a value of a JSON document in words."""
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{k}={v}" if v != "" else str(k) for k, v in value.items())
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


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
    return {
        **_source_json(source),
        "columns": [
            {
                "name": c.name,
                "type": known.get(c.name, c.type),
                "description": c.description,
                "from": origins[c.name],
            }
            for c in source.columns
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
            }
            for c in source.checks
        ],
        "wants": [],
    }


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
        "as_of": {v.raw: v.version for v in snapshot.as_of},
    }


# -------------------------------------------------------------------------------------------- query


@command("query")
def query(
    given: Invocation,
    asked: Annotated[
        str, typer.Argument(metavar="SQL|FILE.malloy[:NAME]", help="A query over sources.")
    ],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="MALLOY", help="A query of Malloy's over FILE.malloy."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many rows.")] = 100,
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    only_sql: Annotated[
        bool, typer.Option("--sql", help="Print what would run, and run nothing.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Read no persisted source inline.")
    ] = False,
    fallback: Annotated[
        str | None,
        typer.Option("--fallback", help="For tables that are too old: live, stale_ok or fail."),
    ] = None,
) -> None:
    """Run a query: what is built is read from its table, the rest is computed."""
    from dataclasses import replace

    from persist_assets.compiler import resolve_query

    if form not in ("table", "json", "csv"):
        raise SettingsError(f"`{form}` is no format", hint="table, json or csv")
    if strict:
        given.settings = replace(given.settings, strict=True)
    if fallback is not None:
        known = {str(f): f for f in get_args(Fallback)}
        if fallback not in known:
            raise SettingsError(f"`{fallback}` is no fallback", hint=f"one of {', '.join(known)}")
        given.builder.fallback = known[fallback]
    parsed, language = _parsed(given, asked, run)
    bindings = resolve_query(given.project, parsed, language)
    manifest = given.ledger.fetch_manifest(*given.settings.environments)
    statement, read = given.builder.statement(parsed, bindings, manifest)
    route = [
        _route(s, read, statement.inlined)
        | {"stale": s in read and given.builder.is_expired(given.project.by_id[s], read[s])}
        for s in (*statement.views, *statement.inlined)
    ]
    if only_sql:
        print_json({"sql": statement.sql, "route": route}) if given.as_json else out.print(
            statement.sql, markup=False, soft_wrap=True
        )
        return
    with _quiet(given):
        frame = given.builder.load(statement, read)
        found = given.builder.engine.collect(frame, limit + 1)
        columns = [{"name": f.name, "type": f.dataType.simpleString()} for f in frame.schema.fields]
    rows = [[_cell(v) for v in row] for row in found[:limit]]
    truncated = len(found) > limit
    if given.as_json or form == "json":
        print_json({"columns": columns, "rows": rows, "truncated": truncated, "route": route})
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout)
        writer.writerow([c["name"] for c in columns])
        writer.writerows(rows)
    else:
        _print_rows(columns, rows, truncated, route)


def _parsed(given: Invocation, asked: str, run: str | None) -> tuple[Query, str | None]:
    """Return the query that is asked for, and its language where it is not SQL."""
    from persist_assets.frontends.malloy import LANGUAGE
    from persist_assets.frontends.sql import parse_query

    file, colon, name = asked.partition(f"{MALLOY}:")
    if not colon and not asked.endswith(MALLOY):
        if run is not None:
            raise SettingsError("--run wants a file of Malloy's before it", hint="FILE.malloy")
        return parse_query(asked), None
    path = _malloy_path(given.settings, (file + MALLOY) if colon else asked)
    if (run is None) == (not colon):
        message = (
            "say which query: a name or a text" if run is None else "a name or --run, not both"
        )
        names = ", ".join(q.name for q in given.project.queries if q.location.path == path)
        hint = f"queries of {path}: {names or 'none'}; or --run 'run: NAME -> {{ … }}'"
        raise SettingsError(message, hint=hint)
    given.project, query = load_query(given.settings, path, name=name or None, text=run)
    return query, LANGUAGE


def _malloy_path(settings: Settings, written: str) -> str:
    """Return the path of a file relative to the root: from here, the root or the sources."""
    for start in (Path.cwd(), settings.root, settings.root / settings.sources):
        found = (start / written).resolve()
        if found.is_file() and found.is_relative_to(settings.root):
            return found.relative_to(settings.root).as_posix()
    raise NotFoundError(f"there is no file {written}", hint=f"files below {settings.root}")


def _route(
    source_id: SourceID, read: Mapping[SourceID, Snapshot], inlined: Sequence[SourceID]
) -> dict[str, Any]:
    if source_id in read:
        return {"source_id": source_id, "from": "table", "version": read[source_id].version}
    origin = "inline" if source_id in inlined else "raw"
    return {"source_id": source_id, "from": origin, "version": None}


def _cell(value: Any) -> Any:
    """Return a value of a row as JSON has it: numbers stay numbers, exact ones stay exact."""
    from pyspark.sql import Row

    match value:
        case float() if not math.isfinite(value):
            # JSON has no numbers for them.
            return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
        case None | bool() | int() | float() | str():
            return value
        case Row():
            return {k: _cell(v) for k, v in value.asDict().items()}
        case dict():
            return {str(k): _cell(v) for k, v in value.items()}
        case list():
            return [_cell(v) for v in value]
        case bytes() | bytearray():
            return value.hex()
        case _:
            return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _shown(value: Any) -> str:
    """Return a cell for people's eyes."""
    if value is None:
        return "[dim]NULL[/]"
    return escape(_plain(value))


def _plain(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case float():
            return f"{value:.6g}"
        case dict():
            within = cast("dict[str, Any]", value)
            return f"{{{', '.join(f'{k}: {_plain(v)}' for k, v in within.items())}}}"
        case list():
            return f"[{', '.join(_plain(v) for v in cast('list[Any]', value))}]"
        case _:
            return str(value)


def _print_rows(
    columns: Sequence[Mapping[str, str]],
    rows: Sequence[Sequence[Any]],
    truncated: bool,
    route: Sequence[Mapping[str, Any]],
) -> None:
    table = Table(box=None, pad_edge=False)
    numeric = ("int", "bigint", "double", "float", "decimal", "smallint", "tinyint")
    for column in columns:
        right = column["type"].startswith(numeric)
        table.add_column(escape(column["name"]), justify="right" if right else "left")
    for row in rows:
        table.add_row(*(_shown(v) for v in row))
    out.print(table)
    told = [
        f"{r['source_id'].partition('@')[0]} from its {r['from']}"
        for r in route
        if r["from"] == "table"
    ]
    told += [f"{r['source_id'].partition('@')[0]} inline" for r in route if r["from"] == "inline"]
    n = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    more = ", there are more" if truncated else ""
    err.print(f"[dim]{'; '.join([n + more, *told])}[/]")


# ----------------------------------------------------------------------------------------- manifest


@command("manifest")
def manifest(
    given: Invocation,
    file: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Read it from a file.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing.")] = False,
    why: Annotated[str | None, typer.Option("--why", help="Kept in the history.")] = None,
) -> None:
    """Print the environment's manifest: BuildID → table, as Malloy writes it; or import one."""
    if file is not None:
        _import(given, file, dry_run=dry_run, why=why)
        return
    if dry_run or why:
        raise SettingsError("--dry-run and --why belong to --import FILE")
    document = fetch_document(given.settings, given.ledger)
    if given.as_json:
        print_json(document)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("build", "source", "table", "rows"):
        table.add_column(title, justify="right" if title == "rows" else "left")
    for build_id, entry in document["entries"].items():
        if "buildId" in entry:  # the same table again, as Malloy's own tools look for it
            continue
        table.add_row(
            build_id[:12],
            escape(entry["sourceId"]),
            escape(entry["tableName"]),
            f"{entry['rows']:,}",
        )
    out.print(table)
    out.print(f"[dim]{given.settings.manifest_path}[/]", soft_wrap=True)


def _import(given: Invocation, file: Path, *, dry_run: bool, why: str | None) -> None:
    from persist_assets.environments import import_manifest

    settings = given.settings
    builder = given.builder if settings.views else None
    done = import_manifest(settings, given.ledger, file, dry_run=dry_run, why=why, builder=builder)
    moved = [
        {
            "build_id": s.build_id,
            "source_id": s.source_id,
            "table": s.table,
            "version": s.version,
            "adopted": s.build_id in done.adopted,
        }
        for s in (done.moved if done.change_id or dry_run else ())
    ]
    refused = [
        {"build_id": r.build_id, "source_id": r.source_id, "reason": r.reason} for r in done.refused
    ]
    differs = done.strict is not None and done.strict != settings.strict
    if given.as_json:
        document = {"change_id": done.change_id, "moved": moved, "same": done.n_same}
        print_json({**document, "refused": refused, "strict_differs": differs})
    else:
        for row in moved:
            known = " [dim](of another ledger)[/]" if row["adopted"] else ""
            what = f"{row['source_id']} {row['table']}@v{row['version']}"
            out.print(f"[green]imported[/] {escape(what)}{known}", soft_wrap=True)
        for r in done.refused:
            what = f"{r.source_id or ''} {(r.build_id or str(file))[:64]}".strip()
            err.print(f"[red]refused[/] {escape(f'{what}: {r.reason}')}", soft_wrap=True)
        said = f"as change {done.change_id}" if done.change_id else "nothing was changed"
        n = f"{len(moved)} imported, {done.n_same} the same already, {len(refused)} refused"
        out.print(f"{n} in {settings.environment}: {said}")
    if differs:
        words = ("strict", "not strict") if done.strict else ("not strict", "strict")
        message = f"the file is {words[0]}, {settings.environment} is {words[1]} and stays so"
        err.print(f"[yellow]warning[/]: {message}; persist.toml decides that", soft_wrap=True)
    if refused:
        raise typer.Exit(4)


# ------------------------------------------------------------------------------------ environments


FromArgument = Annotated[str, typer.Argument(metavar="FROM", help="The environment built in.")]
ToArgument = Annotated[str, typer.Argument(metavar="TO", help="The one that gets it.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing.")]
AllowStaleOption = Annotated[
    bool, typer.Option("--allow-stale", help="Even what is out of date, or does not agree.")
]
WhyOption = Annotated[str | None, typer.Option("--why", help="Kept in the history.")]


@command("promote")
def promote(
    given: Invocation,
    source: FromArgument,
    target: ToArgument,
    selection: SelectArgument = None,
    dry_run: DryRunOption = False,
    allow_stale: AllowStaleOption = False,
    why: WhyOption = None,
) -> None:
    """Let readers of one environment see what another one has built. Copies nothing."""
    from persist_assets import environments

    given.env = source
    before = given.ledger.fetch_current(target)
    decided, change = environments.promote(
        given.builder,
        target,
        given.select(selection),
        allow_stale=allow_stale,
        dry_run=dry_run,
        why=why,
    )
    moved = [
        {
            "source_id": s.source_id,
            "from_build": before[s.source_id].build_id if s.source_id in before else None,
            "to_build": s.build_id,
        }
        for s in (decided.sources if change or dry_run else ())
    ]
    refused = [{"source_id": r.source_id, "reason": r.reason} for r in decided.refused]
    if given.as_json:
        print_json({"change_id": change, "moved": moved, "refused": refused})
    else:
        for refusal in decided.refused:
            err.print(f"[red]refused[/] {escape(refusal.source_id)}: {escape(refusal.reason)}")
        for row in moved:
            out.print(f"[green]promoted[/] {escape(str(row['source_id']))}")
        done = f"as change {change}" if change else "nothing was changed"
        out.print(f"{len(moved)} from {source} to {target}, {len(refused)} refused: {done}")
    if refused:
        raise typer.Exit(4)


@command("history")
def history(
    given: Invocation,
    limit: Annotated[int, typer.Option("--limit", help="How many changes.", min=1)] = 20,
) -> None:
    """Tell how the environment's manifest changed, the latest change first."""
    changes = given.ledger.fetch_history(given.settings.environment, limit=limit)
    if given.as_json:
        print_json([_manifest_change_json(c) for c in changes])
        return
    for change in changes:
        _print_change(change)
    if not changes:
        out.print(f"{given.settings.environment} has not changed yet")


@command("rollback")
def rollback(
    given: Invocation,
    to: Annotated[
        int | None, typer.Option("--to", metavar="CHANGE_ID", help="To right after that change.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Undo so many changes.")] = 1,
    why: WhyOption = None,
) -> None:
    """Put the environment's manifest back to what it was. Copies nothing."""
    from persist_assets import environments

    builder = given.builder if given.settings.views else None
    change = environments.roll_back(
        given.settings, given.ledger, to=to, steps=steps, why=why, builder=builder
    )
    if given.as_json:
        print_json([_manifest_change_json(change)])
    else:
        _print_change(change)


@command("gc")
def gc_(
    given: Invocation,
    dry_run: DryRunOption = False,
    removed: Annotated[
        bool, typer.Option("--removed", help="Of sources too that the project no longer defines.")
    ] = False,
) -> None:
    """Delete the tables and versions that no environment needs, nor its recent history."""
    from persist_assets.collector import collect

    collected = collect(
        given.settings, given.project, given.ledger, removed=removed, dry_run=dry_run
    )
    total = sum(c.bytes for c in collected)
    if given.as_json:
        tables = [
            {"table": c.table, "versions": list(c.versions), "bytes": c.bytes} for c in collected
        ]
        print_json({"tables": tables, "bytes": total})
        return
    for c in collected:
        versions = ", ".join(str(v) for v in c.versions)
        which = (
            f"version{'s' * (len(c.versions) > 1)} {versions}" if versions else "never published"
        )
        out.print(f"{escape(c.table)} [dim]{which}[/], {decimal(c.bytes)}")
    would = "would be deleted" if dry_run else "deleted"
    n = "1 table" if len(collected) == 1 else f"{len(collected)} tables"
    out.print(f"{decimal(total)} of {n} {would}")


def _manifest_change_json(change: ManifestChange) -> dict[str, Any]:
    return {
        "change_id": change.change_id,
        "at": change.at.isoformat(),
        "by": change.by,
        "why": change.why,
        "kind": change.kind,
        "run_id": change.run_id,
        "entries": [
            {
                "source_id": m.source_id,
                "build_id": m.build_id,
                "before": _version(m.before),
                "after": _version(m.after),
            }
            for m in change.moves
        ],
    }


def _version(snapshot: Snapshot | None) -> str | None:
    return f"{snapshot.table}@v{snapshot.version}" if snapshot else None


def _print_change(change: ManifestChange) -> None:
    at = change.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    why = f" [dim]{escape(change.why)}[/]" if change.why else ""
    out.print(f"[bold]{change.change_id}[/] {at} {change.kind} by {escape(change.by)}{why}")
    for m in change.moves:
        ends = f"{_version(m.before) or 'nothing'} → {_version(m.after) or 'nothing'}"
        out.print(f"  {escape(m.source_id)} [dim]{escape(ends)}[/]", soft_wrap=True)


# ------------------------------------------------------------------------------------------- doctor


@command("doctor")
def doctor(
    given: Invocation,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark too.")] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write exported manifests anew where they are wrong.")
    ] = False,
) -> None:
    """Look for what is wrong with the project, its ledger and its tables."""
    from persist_assets.doctor import examine

    root = given.project_dir.resolve() if given.project_dir else find_root(Path.cwd())
    if not root.is_dir():
        raise SettingsError(f"there is no directory {root}")
    environment = given.env or os.environ.get("PERSIST_ENV")
    with ExitStack() as stack:
        if spark:
            with suppress(SettingsError):  # the report tells of it, and Spark is not started
                stack.enter_context(_quiet(given))
        report = examine(root, environment=environment, spark=spark, fix=fix)
    problems = [asdict(f) for f in report.findings]
    if given.as_json:
        print_json({"problems": problems, "checked": report.checked})
    else:
        for name, value in report.checked.items():
            out.print(f"[dim]{name.replace('_', ' ')}[/] {escape(_said(value))}", soft_wrap=True)
        colours = {"error": "red", "warning": "yellow", "note": "cyan"}
        for f in report.findings:
            said = f"[{colours[f.severity]}]{f.severity}[/]: {escape(f'{f.message} [{f.code}]')}"
            err.print(said, soft_wrap=True)
            if f.hint:
                err.print(f"  hint: {escape(f.hint)}", soft_wrap=True)
        n = sum(f.severity != "note" for f in report.findings)
        out.print("all is well" if report.well else f"{n} problem{'s' * (n != 1)}")
    if not report.well:
        raise typer.Exit(1)


# -------------------------------------------------------------------------------------------- spark


@command("start", spark_app)
def spark_start(given: Invocation) -> None:
    """Start the Spark server of this project's settings, if it does not run."""
    from persist_assets.server import ensure_server
    from persist_assets.session import check_java

    settings = given.settings
    check_java()
    ensure_server(settings)
    _tell_server(given)
    if not settings.shared:
        err.print('hint: it is used with "shared = true" below [spark] in persist.toml')


@command("stop", spark_app)
def spark_stop(given: Invocation) -> None:
    """End the Spark server, whoever uses it."""
    from persist_assets.server import server_directory, stop_server

    stopped = stop_server(server_directory(given.settings))
    if given.as_json:
        print_json({"stopped": stopped})
    else:
        out.print("the Spark server is stopped" if stopped else "no Spark server runs")


@command("status", spark_app)
def spark_status(given: Invocation) -> None:
    """Say whether the Spark server runs, where, and how many processes use it."""
    _tell_server(given)


def _tell_server(given: Invocation) -> None:
    from persist_assets.server import count_clients, find_server, server_directory

    directory = server_directory(given.settings)
    server = find_server(directory)
    if given.as_json:
        started = datetime.fromtimestamp(server.started_at, UTC) if server else None
        print_json(
            {
                "running": server is not None,
                "url": server.address if server else None,
                "pid": server.pid if server else None,
                "port": server.port if server else None,
                "started_at": started.isoformat() if started else None,
                "clients": count_clients(directory) if server else 0,
            }
        )
    elif server is None:
        out.print("no Spark server runs")
    else:
        n = count_clients(directory)
        out.print(
            f"the Spark server runs at {server.address}, process {server.pid}, "
            f"{n} client{'s' * (n != 1)}; its log is {directory / 'server.log'}",
            soft_wrap=True,
        )


# ------------------------------------------------------------------------------------------- ledger


@command("migrate", ledger_app)
def ledger_migrate(
    given: Invocation,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Another ledger than the project's.")
    ] = None,
) -> None:
    """Bring a ledger to the version of this release, as every command does that opens it."""
    from persist_assets.ledger.connection import shown
    from persist_assets.ledger.migrations import VERSION
    from persist_assets.ledger.store import Ledger

    url = url or given.settings.ledger
    ledger = Ledger(url)
    ledger.close()
    if given.as_json:
        print_json({"ledger": shown(url), "from": ledger.found, "to": VERSION})
    elif ledger.found == VERSION:
        out.print(f"{escape(shown(url))} has version {VERSION} already", soft_wrap=True)
    elif ledger.found == 0:
        out.print(f"{escape(shown(url))} was made, of version {VERSION}", soft_wrap=True)
    else:
        done = f"was brought from version {ledger.found} to {VERSION}"
        out.print(f"{escape(shown(url))} {done}", soft_wrap=True)


@command("copy", ledger_app)
def ledger_copy(
    given: Invocation,
    source: Annotated[str, typer.Argument(metavar="FROM", help="The URL of a ledger.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The URL of an empty database.")],
) -> None:
    """Copy a whole ledger, exactly, into an empty database: all of it or nothing."""
    from persist_assets.ledger.connection import shown
    from persist_assets.ledger.copying import copy_ledger
    from persist_assets.ledger.migrations import VERSION

    copied = copy_ledger(source, target, tell=lambda name, n: err.print(f"{name}: {n} rows"))
    ends = {"from": shown(source), "to": shown(target)}
    if given.as_json:
        print_json({**ends, "version": VERSION, "tables": dict(copied)})
    else:
        told = f"copied {copied['events']} events and {copied['builds']} builds"
        out.print(f"{told} from {escape(ends['from'])} to {escape(ends['to'])}", soft_wrap=True)
        err.print("hint: let projects use the copy: `ledger` in persist.toml")


def main() -> None:
    """Run the command line."""
    gc.disable()  # most commands end before there is much to collect
    try:
        app()
    finally:
        gc.freeze()  # what is left ends with the process: Python need not look through it


if __name__ == "__main__":
    main()
