"""Parts that all commands share: options, exit codes of errors, printing."""

import functools
import gc
import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from persist_assets.cli.data_warnings import showing_data_warnings
from persist_assets.cli.excerpts import excerpt
from persist_assets.cli.progress import Compiling
from persist_assets.core.errors import (
    BuildError,
    ConflictError,
    LedgerError,
    Location,
    NotFoundError,
    PersistError,
    Problem,
    SettingsError,
    SourcesError,
    StorageError,
)
from persist_assets.core.logs import FORMAT, log_as_json
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import SourceID
from persist_assets.core.object_stores import full_disk, is_full
from persist_assets.core.settings.load import find_root, load_settings
from persist_assets.core.settings.user import make_private
from persist_assets.core.settings.values import Settings
from persist_assets.core.trust import confined

if TYPE_CHECKING:
    from persist_assets.building.builder import Builder
    from persist_assets.building.observe import Observer
    from persist_assets.building.reader import Reader
    from persist_assets.compiler.load import Loaded
    from persist_assets.core.model.annotations import Fallback
    from persist_assets.core.wants import Request
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.planning.selection import State

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
"""The exit code of each class of error; the first match counts."""
USAGE, INTERRUPTED = 2, 130
SPARK_LOG = "spark.log"
"""The file below `.persist` that Spark and Dagster log to while a command runs."""
app = typer.Typer(
    name="persist",
    help="Persistent sources for Dagster on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
spark_app = typer.Typer(
    help=r"The Spark server that runs share: \[spark] shared = true.", no_args_is_help=True
)
app.add_typer(spark_app, name="spark")
ledger_app = typer.Typer(help="The database of all state.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
external_app = typer.Typer(help="Local copies of external tables.", no_args_is_help=True)
app.add_typer(external_app, name="external")
want_app = typer.Typer(help="Requests for data, with deadlines.", no_args_is_help=True)
app.add_typer(want_app, name="want")
alerts_app = typer.Typer(help="Alerts and the channels that get them.", no_args_is_help=True)
app.add_typer(alerts_app, name="alerts")
log = logging.getLogger(__name__)
_WIDE = 4000  # output that is not to a terminal gets whole lines
err = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _WIDE)
out = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


@dataclass
class Invocation:
    """The options and the project of a command; its parts are created on first use.

    Its `texts` are in no file: the paths in the locations of messages name them.
    """

    project_dir: Path | None = None
    env: str | None = None
    as_json: bool = False
    verbose: bool = False
    keep_going: bool = False
    exclude: Sequence[str] = ()
    texts: dict[str, str] = field(default_factory=dict)
    printed: set[Problem] = field(default_factory=set)
    _closing: list[Callable[[], None]] = field(default_factory=list)

    @cached_property
    def root(self) -> Path:
        """The project root."""
        root = self.project_dir.resolve() if self.project_dir else find_root(Path.cwd())
        if not root.is_dir():
            raise SettingsError(f"there is no directory {root}")
        return root

    @cached_property
    def settings(self) -> Settings:
        """The project's settings."""
        from persist_assets.storage.files import know_stores

        settings = load_settings(self.root, environment=self.env)
        know_stores(settings.stores, settings.patience)
        return settings

    @property
    def state_dir(self) -> Path:
        """The project's directory for our own files."""
        try:
            return self.settings.state_dir
        except (PersistError, OSError):
            return self.project_dir or Path.cwd()

    @cached_property
    def loaded(self) -> "Loaded":
        """The project as compiled, with all its problems."""
        from persist_assets.compiler.load import load

        with Compiling(err) as compiling:
            return load(self.settings, compiling)

    @cached_property
    def project(self) -> Project:
        """The compiled project; prints problems that are not errors."""
        from persist_assets.compiler.load import require, sound

        project = (sound if self.keep_going else require)(self.loaded.project)
        for problem in project.problems:
            print_problem(self, problem)
        return project

    @cached_property
    def ledger(self) -> "Ledger":
        """The ledger."""
        from persist_assets.operations.recovery import open_ledger

        ledger = open_ledger(self.settings)
        self._closing.append(ledger.close)
        return ledger

    @cached_property
    def observer(self) -> "Observer":
        """The observer of the current state, which makes plans; starts no Spark."""
        from persist_assets.building.observe import Observer

        return Observer(self.settings, self.project, self.ledger)

    @cached_property
    def engine(self) -> "Engine":
        """The engine that computes rows, in a Spark session of this process."""
        from persist_assets.engine.session import create_session
        from persist_assets.engine.spark import SparkEngine

        return SparkEngine(self.settings, lambda: create_session(self.settings))

    def reader(self, *, fallback: "Fallback | None" = None, local: bool = False) -> "Reader":
        """Return a reader of rows; see `Observer` and `Reader` for the parameters."""
        from persist_assets.building.observe import Observer
        from persist_assets.building.reader import Reader

        settings, engine = self.settings, self.engine
        observer = Observer(settings, self.project, self.ledger, fallback=fallback, engine=engine)
        return Reader(observer, engine, local=local)

    def builder(self, request: "Request | None" = None) -> "Builder":
        """Return a new builder, for a build request or for none."""
        from persist_assets.building.builder import Builder

        return Builder(self.settings, self.project, self.ledger, self.engine, request=request)

    @contextmanager
    def naming_errors(self, *names: str) -> Generator[None]:
        """Raise the errors of unsound sources, printing no others, before names are looked up.

        Parameters
        ----------
        *names
            The first name that any source has is the one meant.

        Raises
        ------
        SourcesError
            A name means only unsound sources, or a file that cannot be read may define it.
        """
        from persist_assets.compiler.load import sound
        from persist_assets.planning.selection import find_declared

        for name in names:
            declared = find_declared(self.loaded.project, name)
            if sound(self.loaded.project).by_id.keys().isdisjoint(declared):
                self.loaded.require(declared)
            if declared:
                break
        try:
            yield
        except NotFoundError as error:
            if self.loaded.project.unread:  # one of these files may define it
                raise SourcesError(self.loaded.project.errors) from error
            raise

    def select(
        self, patterns: Sequence[str] | None, *, views: bool = False
    ) -> tuple[SourceID, ...]:
        """Return the persisted sources that patterns select; all if there are no patterns.

        Those that the option `--exclude` selects are left out.

        Parameters
        ----------
        views
            Sources that are not persisted are selected too, except raw tables.
        """
        every = (s for s in self.project.sources if s.persisted or (views and s.raw is None))
        chosen = tuple(s.source_id for s in every)
        if patterns:
            chosen = self.find(patterns, views=views)
        excluded = self.find(self.exclude, views=views)
        return tuple(s for s in chosen if s not in excluded)

    def find(self, patterns: Sequence[str], *, views: bool = False) -> tuple[SourceID, ...]:
        """Return the persisted sources that patterns select; none if there are no patterns."""
        from persist_assets.planning.selection import select

        return select(self.project, patterns, self.states, self.settings.selectors, views=views)

    def states(self) -> "dict[SourceID, frozenset[State]]":
        """Return the states of the tables of all persisted sources, according to a plan."""
        from persist_assets.planning.selection import states_of

        planned = self.observer.plan(s.source_id for s in self.project.persisted)
        return {step.source_id: states_of(step, self.project) for step in planned.steps}

    def close(self) -> None:
        """Close everything that was opened."""
        for act in self._closing:
            act()


def source_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of sources that a shell may complete a word to.

    They are those of the last compilation: compiling takes longer than people wait for a shell. The
    word may begin as selections do (``+name``).
    """
    from persist_assets.compiler.cache import load_names

    start = re.match(r"\d*\+|", incomplete)
    before = start[0] if start else ""
    chosen = (ctx.parent and ctx.parent.params.get("project")) or ctx.params.get("project")
    try:
        names = load_names(Path(chosen).absolute() if chosen else find_root(Path.cwd()))
    except PersistError:  # it is no project
        return []
    return [before + name for name in names if (before + name).startswith(incomplete)]


ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        help="The project root; default: the nearest directory upwards with a persist.toml.",
    ),
]
EnvOption = Annotated[str | None, typer.Option("--env", help="The environment.")]
VerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show logs and tracebacks of errors.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
SelectArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Sources, in Dagster's selection syntax; default: all.", autocompletion=source_names
    ),
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="SELECT",
        help="The same as an option; can be repeated.",
        autocompletion=source_names,
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="SELECT",
        help="Sources to leave out; can be repeated.",
        autocompletion=source_names,
    ),
]
SourceArgument = Annotated[
    str,
    typer.Argument(metavar="SOURCE", help="A name or an asset key.", autocompletion=source_names),
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="ENV|GIT_REF",
        help="Also show how sources differ from there, and what is rebuilt.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        "--full-refresh",
        help="Build even if up to date, and compute incremental sources in full.",
    ),
]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", metavar="KEY", help="Only this partition.")
]
RangeOption = Annotated[
    str | None,
    typer.Option("--partition-range", metavar="A...B", help="Only the partitions from A to B."),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="A", help="Only partitions from this one on (inclusive)."),
]
ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="B", help="Only partitions up to this one (inclusive)."),
]


class LogFormat(StrEnum):
    """The formats of what is written to stderr."""

    TEXT = "text"
    JSON = "json"


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        out.print(version("persist-assets"))
        raise typer.Exit


@app.callback()
def everywhere(
    ctx: typer.Context,
    project: ProjectOption = None,
    env: EnvOption = None,
    verbose: VerboseOption = False,
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            "--log-format", envvar=FORMAT, help="The format of logs on stderr: text or JSON lines."
        ),
    ] = LogFormat.TEXT,
) -> None:
    """Remember the options that stand before the command."""
    if log_format is LogFormat.JSON:
        os.environ[FORMAT] = log_format  # of this process's children, too
        err.quiet = True  # a copy of stderr has nothing but log lines
        stream = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)
        log_as_json(stream)
    ctx.obj = {"project": project, "env": env, "verbose": verbose}


_COMMON = (
    ("ctx", typer.Context, inspect.Parameter.empty),
    ("project", ProjectOption, None),
    ("env", EnvOption, None),
    ("as_json", JsonOption, False),
    ("verbose", VerboseOption, False),
)
_SELECT = (("select", SelectOption, None), ("exclude", ExcludeOption, None))
"""The options of commands that have a `selection`."""


def command(
    name: str, on: typer.Typer = app, *, is_confined: bool = False, unless: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function into a command: with the common options, and errors as exit codes.

    Parameters
    ----------
    is_confined
        It runs no code of the project, and reaches no untrusted places outside it.
    unless
        The option with which it is not confined.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters = [
            p for n, p in inspect.signature(function).parameters.items() if n != "invocation"
        ]
        selects = any(p.name == "selection" for p in parameters)
        common = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for n, kind, default in (*_COMMON, *(_SELECT if selects else ()))
        ]

        @functools.wraps(function)
        def run(ctx: typer.Context, **values: Any) -> None:
            defaults: Mapping[str, Any] = ctx.obj or {}
            invocation = Invocation(
                values.pop("project") or defaults.get("project"),
                values.pop("env") or defaults.get("env"),
                values.pop("as_json"),
                values.pop("verbose") or bool(defaults.get("verbose")),
            )
            if selects:
                named = (*(values["selection"] or ()), *(values.pop("select") or ()))
                values["selection"] = list(named) or None
                invocation.exclude = values.pop("exclude") or ()
            with as_exit_codes(invocation), ExitStack() as stack:
                if is_confined and not values.get(unless):
                    stack.enter_context(confined(invocation.root))
                function(invocation, **values)

        signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters] + common)
        run.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        on.command(name)(run)
        return function

    return decorate


_BUG = "this is a bug: run it again with -v and report the output"


@contextmanager
def as_exit_codes(invocation: Invocation) -> Generator[None]:
    """End the process with the exit code of the error's class, if there is an error."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt as error:
        if invocation.as_json:
            print_json(_error_json(PersistError("interrupted")))
        err.print("interrupted")
        raise typer.Exit(INTERRUPTED) from error
    except PersistError as error:
        if invocation.verbose:
            err.print_exception()
        if invocation.as_json:
            print_json(_error_json(error))
        if isinstance(error, SourcesError):
            for problem in error.problems:
                print_problem(invocation, problem)
        else:
            print_error(invocation, error)
        raise typer.Exit(exit_code(type(error))) from error
    except Exception as error:
        if invocation.verbose:
            err.print_exception()
        full = find_full_disk(error, invocation.state_dir)
        if invocation.as_json:
            print_json(
                _error_json(full or PersistError(f"{type(error).__name__}: {error}", hint=_BUG))
            )
        if full is not None:
            print_error(invocation, full)
            raise typer.Exit(exit_code(type(full))) from error
        err.print(f"[red]error[/]: {escape(f'{type(error).__name__}: {error}')}")
        err.print(f"  hint: {_BUG}")
        if err.quiet:
            log.exception("this is a bug", extra={"action": "command-failed", "code": "bug"})
        raise typer.Exit(1) from error
    finally:
        invocation.close()


def find_full_disk(error: Exception, state_dir: Path) -> StorageError | None:
    """Return the error to show if the disk of one of our files, or of Dagster's, is full."""
    from persist_assets.ledger.connection import has_room

    message = str(error)
    if isinstance(error, OSError) and is_full(message):
        # One of the files below `.persist`, or of the user's cache.
        return full_disk(Path(error.filename).parent if error.filename else state_dir, message)
    if is_full(message) or "I/O error" in message:  # sometimes this is all that SQLite says
        for written in (state_dir, Path(os.environ.get("DAGSTER_HOME") or state_dir)):
            if not has_room(written):
                return full_disk(written, message.splitlines()[0])
    return None


def _error_json(error: PersistError) -> dict[str, Any]:
    """Return an error as the only document that a command prints on stdout."""
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
        "problems": [problem_json(p) for p in problems],
    }


def print_usage_error(end: SystemExit) -> None:
    """Print wrong usage, which ended the process, as a JSON document."""
    usage: Any = end.__context__
    if end.code == USAGE and hasattr(usage, "format_message"):
        print_json(_error_json(SettingsError(usage.format_message(), hint="see --help")))


def exit_code(error: type[PersistError]) -> int:
    """Return the exit code of a class of errors."""
    return next(code for kind, code in EXIT_CODES if issubclass(error, kind))


def print_error(invocation: Invocation, error: PersistError) -> None:
    """Print an error on stderr, with the line that it is about."""
    if err.quiet:
        keys = {"action": "command-failed", "code": type(error).__name__, "hint": error.hint}
        log.error("%s", error.message, extra={**keys, **_place_keys(error.location)})
    where = f"{error.location}: " if error.location else ""
    err.print(f"{escape(where)}[red]error[/]: {escape(error.message)}", soft_wrap=True)
    if error.location:
        _print_excerpt(invocation, error.location)
    if error.hint:
        err.print(f"  hint: {escape(error.hint)}", soft_wrap=True)


def print_problem(invocation: Invocation, problem: Problem) -> None:
    """Print a problem on stderr, with the line that it is about; once."""
    if problem in invocation.printed:
        return
    invocation.printed.add(problem)
    if err.quiet:
        keys = {"action": "problem", "code": problem.code, "hint": problem.hint}
        level = {"error": logging.ERROR, "warning": logging.WARNING}.get(problem.severity, 20)
        log.log(level, "%s", problem.message, extra={**keys, **_place_keys(problem.location)})
    colour = {"error": "red", "warning": "yellow", "note": "cyan"}[problem.severity]
    text = escape(f"{problem.message} [{problem.code}]")
    err.print(f"{problem.location}: [{colour}]{problem.severity}[/]: {text}", soft_wrap=True)
    if problem.severity != "note":
        _print_excerpt(invocation, problem.location)
    if problem.hint:
        err.print(f"  hint: {escape(problem.hint)}", soft_wrap=True)


def _place_keys(place: Location | None) -> dict[str, Any]:
    return {"path": place.path, "line": place.line, "column": place.column} if place else {}


def _print_excerpt(invocation: Invocation, place: Location) -> None:
    try:
        root = invocation.root
    except SettingsError:
        return  # there is no project
    if (lines := excerpt(root, place, invocation.texts)) is not None:
        err.print(lines, soft_wrap=True)


def table_of(*titles: str) -> Table:
    """Return an empty table with these columns; numbers are right-aligned."""
    table = Table(box=None, pad_edge=False)
    numbers = ("rows", "bytes", "written", "seconds", "time")
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left")
    return table


def print_json(document: object, *, lines: bool = False) -> None:
    """Print one JSON document on stdout; on one line if several `lines` follow each other."""
    indent = None if lines else 2
    sys.stdout.write(json.dumps(document, indent=indent, default=str, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem as JSON."""
    return {
        "code": problem.code,
        "severity": problem.severity,
        "message": problem.message,
        "path": problem.location.path,
        "line": problem.location.line,
        "column": problem.location.column,
        "hint": problem.hint,
    }


class _WarningPrinter(logging.Handler):
    """Prints warnings on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"[yellow]warning[/]: {escape(record.getMessage())}", soft_wrap=True)


@contextmanager
def quiet(invocation: Invocation) -> Generator[None]:
    """Send the output of Spark, Dagster and user code to a log: stdout and stderr are ours.

    With ``-v`` it goes to stderr. Our own warnings, and Spark's about data, always go to stderr.
    """
    gc.freeze()  # modules stay until the end, so Python need not search them
    gc.enable()
    make_private(invocation.settings.state_dir)
    with (
        nullcontext()
        if invocation.verbose
        else showing_data_warnings(err, SPARK_LOG, invocation.settings),
        _diverted(invocation),
    ):
        yield


@contextmanager
def _diverted(invocation: Invocation) -> Generator[None]:
    copies = [os.dup(1), os.dup(2)]
    sys.stdout.flush()
    sys.stderr.flush()
    ours = os.fdopen(os.dup(2), "w", encoding="utf-8")
    err.file, before = ours, err.file
    logger, warnings = logging.getLogger("persist_assets"), _WarningPrinter(logging.WARNING)
    logger.addHandler(warnings)
    try:
        if invocation.verbose:
            os.dup2(2, 1)
        else:
            with (invocation.settings.state_dir / SPARK_LOG).open("ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
        yield
    finally:
        logger.removeHandler(warnings)
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, copy in enumerate(copies, 1):
            os.dup2(copy, fd)
            os.close(copy)
        err.file = before
        ours.close()


def in_words(value: Any) -> str:
    """Return a value of a JSON document in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(in_words, value))
    if isinstance(value, dict):
        return ", ".join(f"{k}={in_words(v)}" if v != "" else str(k) for k, v in value.items())
    return str(value)


def in_bytes(n: int) -> str:
    """Return a size in the unit that suits it.

    Examples
    --------
    >>> in_bytes(999), in_bytes(1_234_567)
    ('999 B', '1.2 MB')
    """
    size, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.1f} {unit}" if unit != "B" else f"{n} B"


def in_local_time(at: str | None) -> str:
    """Return an ISO 8601 time as the user's clock shows it, to the second; '' if there is none.

    Examples
    --------
    >>> len(in_local_time("2026-11-26T09:43:18.123456+00:00")), in_local_time(None)
    (19, '')
    """
    if at is None:
        return ""
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def malloy_path(settings: Settings, written: str) -> str:
    """Return the path of a file relative to the root: given from here, the root or the sources."""
    for start in (Path.cwd(), settings.root, settings.root / settings.sources):
        path = (start / written).resolve()
        if path.is_file() and path.is_relative_to(settings.root):
            return path.relative_to(settings.root).as_posix()
    raise NotFoundError(f"there is no file {written}", hint=f"files below {settings.root}")
