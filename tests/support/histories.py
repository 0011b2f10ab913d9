"""Histories of a tiny project: what its sources mean, an engine without Spark, processes that die.

`evaluate` is the model: plain Python says which rows a source has. `Quick` computes the same with
SQLite in a millisecond and writes real tables; all else is the real thing. A `Child` is a real
process that does one task, and halts at a step of it, to go on later or to be killed there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import product
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist_assets.building import tables
from persist_assets.building.builder import Builder
from persist_assets.building.stages import PendingBuild
from persist_assets.building.strategies import temporary
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import PersistError, StorageError
from persist_assets.core.model.checks import Check, CheckResult
from persist_assets.core.model.columns import Column
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.row_metrics import Measured
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger import manifest_file
from persist_assets.ledger.connection import Database
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.processes import THIS_MACHINE, is_dead
from persist_assets.operations import gc
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.gc import collect
from persist_assets.storage import delta_deletions, files
from persist_assets.storage.delta_commit import Staged, find_staged
from persist_assets.storage.types import delta_schema

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

# ------------------------------------------------------------------------------------ the project

Rows = list[tuple[int | None, ...]]
Code = Mapping[str, int]
"""Which variant of each source there is."""

FILE = "m.sql"
RAW = """
CREATE TABLE t (k BIGINT, a BIGINT) USING parquet LOCATION 'raw/t';
CREATE TABLE u (k BIGINT, a BIGINT) USING parquet LOCATION 'raw/u';
"""
_CHECKED = '--@ persist\n--@ check { expr { plausible="a <> 7" } }\n'
SOURCES: Mapping[str, Sequence[str]] = {
    "p": [
        f"{_CHECKED}CREATE VIEW p AS SELECT k, a + 1 AS a FROM t;",
        f"{_CHECKED}CREATE VIEW p AS SELECT k, a + 2 AS a FROM t;",
    ],
    # Of the same meaning as `p`, or not.
    "p2": [
        "--@ persist\nCREATE VIEW p2 AS SELECT x.k, x.a + 1 AS a FROM t AS x;",
        "--@ persist\nCREATE VIEW p2 AS SELECT x.k, x.a + 2 AS a FROM t AS x;",
        "CREATE VIEW p2 AS SELECT x.k, x.a + 1 AS a FROM t AS x;",
    ],
    "i": [
        "CREATE VIEW i AS SELECT k, a * 2 AS a FROM p;",
        "CREATE VIEW i AS SELECT k, a FROM p WHERE a < 5;",
    ],
    "q": [
        "--@ persist\nCREATE VIEW q AS SELECT sum(a) AS s FROM i;",
        "--@ persist\nCREATE VIEW q AS SELECT max(a) AS s FROM i;",
        "CREATE VIEW q AS SELECT max(a) AS s FROM i;",
    ],
    "r": [
        "--@ persist\nCREATE VIEW r AS SELECT p2.k AS k, p2.a + u.a AS a FROM p2 JOIN u ON p2.k = u.k;",
        "--@ persist\nCREATE VIEW r AS SELECT p2.k AS k, p2.a - u.a AS a FROM p2 JOIN u ON p2.k = u.k;",
    ],
    "s": [
        "--@ persist\nCREATE VIEW s AS SELECT s FROM q UNION ALL SELECT max(a) AS s FROM r;",
        "--@ persist\nCREATE VIEW s AS SELECT s + 1 AS s FROM q UNION ALL SELECT max(a) AS s FROM r;",
        "",
    ],
}
FIRST: Code = dict.fromkeys(SOURCES, 0)
CONTENTS: Mapping[str, Sequence[Rows]] = {
    # A 6 or a 5 fails the check of `p`, as its variant is.
    "t": [[(1, 1), (2, 2)], [(1, 1), (2, 2), (3, 3)], [(1, 1), (2, 8)], [(1, 6)], [(2, 5)], []],
    "u": [[(1, 10), (2, 20)], [(2, 5)], [(1, 10), (2, 20), (9, 9)]],
}


def persisted(code: Code) -> list[str]:
    """Return the names of the sources that have tables, every one after all it reads."""
    return [name for name, n in code.items() if "--@ persist" in SOURCES[name][n]]


def make_project(root: Path, settings: str = "") -> Path:
    """Make a project of the first variants."""
    root.mkdir(parents=True, exist_ok=True)
    environments = '[env.prod]\n[env.dev]\nreads = "prod"\n[env.qa]\n'
    (root / "persist.toml").write_text(settings + environments)
    write_code(root, FIRST)
    for name, contents in CONTENTS.items():
        write_raw(root, name, contents[0])
    return root


def write_code(root: Path, code: Code) -> None:
    path = root / "sources" / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{os.getpid()}")
    new.write_text(RAW + "\n".join(SOURCES[name][n] for name, n in code.items()))
    new.replace(path)


def write_raw(root: Path, name: str, rows: Rows) -> None:
    columns = {"k": [row[0] for row in rows], "a": [row[1] for row in rows]}
    path = root / "raw" / name / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"_{os.getpid()}")
    pq.write_table(pa.table({c: pa.array(v, pa.int64()) for c, v in columns.items()}), new)
    new.replace(path)


def evaluate(code: Code, name: str, rows_of: Callable[[str], Rows | None]) -> Rows:
    """Return the rows of a source, sorted, from those that are given of raw tables and others."""
    known = rows_of(name)
    if known is not None:
        return known
    n = code[name]

    def of(upstream: str) -> Any:
        return evaluate(code, upstream, rows_of)

    rows: Rows
    match name:
        case "p":
            rows = [(k, a + 1 + n) for k, a in of("t")]
        case "p2":
            rows = [(k, a + 1 + n % 2) for k, a in of("t")]
        case "i":
            rows = [(k, a) for k, a in of("p") if a < 5] if n else [(k, 2 * a) for k, a in of("p")]
        case "q":
            values = [a for _, a in of("i")]
            rows = [((max if n else sum)(values) if values else None,)]
        case "r":
            sign = -1 if n else 1
            pairs = product(of("p2"), of("u"))
            rows = [(k, a + sign * b) for (k, a), (other, b) in pairs if k == other]
        case "s":
            above = [(None if s is None else s + n,) for (s,) in of("q")]
            rows = [*above, (max((a for _, a in of("r")), default=None),)]
        case _:
            raise KeyError(name)
    return in_order(rows)


def in_order(rows: Iterable[tuple[int | None, ...]]) -> Rows:
    return sorted(rows, key=lambda row: [(v is None, v or 0) for v in row])


def read_rows(paths: Iterable[str]) -> Rows:
    """Return the rows of Parquet files, sorted."""
    found: Rows = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return in_order(found)


# ------------------------------------------------------------------------------------- the engine


@dataclass
class Files:
    """Rows that are in files: what a view of them shows is read when it is asked for."""

    engine: Quick
    columns: Sequence[str]
    paths: Sequence[str]

    def createOrReplaceTempView(self, name: str) -> None:
        self.engine.known[name] = self


@dataclass
class Computed:
    columns: Sequence[str]
    rows: Rows


class Quick(SparkEngine):
    """Computes sources of integers with SQLite, and writes them as Spark would."""

    def __init__(self, settings: Any) -> None:
        super().__init__(settings, lambda: None)  # pyright: ignore[reportArgumentType]
        self.known: dict[str, Files] = {}

    @property
    def session(self) -> Any:
        """What has the views: there is no Spark."""
        return self

    def attributed(self, to: object) -> Any:
        """Do nothing: SQLite has no jobs."""
        return nullcontext()

    def read_files(self, form: str, pin: Any, columns: Sequence[Column], options: Any) -> Any:
        return Files(self, [c.name for c in columns], pin.files or ())

    def run(self, statement: Any, columns: Sequence[Column] = ()) -> Any:
        database = sqlite3.connect(":memory:")
        for view in dict.fromkeys(statement.views.values()):
            there = self.known[f"`{view}`"]
            names = ", ".join(f"{c} INTEGER" for c in there.columns)
            database.execute(f"CREATE TABLE `{view}` ({names})")
            try:
                rows = read_rows(there.paths)
            except OSError as error:
                raise StorageError(f"{view} cannot be read: {error}") from error
            marks = ", ".join("?" for _ in there.columns)
            database.executemany(f"INSERT INTO `{view}` VALUES ({marks})", rows)
            cross("read a table")
        sql = statement.sql
        if sql.startswith("WITH "):  # SQLite takes no brackets around a whole query
            head, _, tail = sql.rpartition("\n(")
            sql = f"{head}\nSELECT * FROM ({tail}"
        found = database.execute(sql)
        made = Computed([c[0] for c in found.description], in_order(found))
        database.close()
        assert not columns or made.columns == [c.name for c in columns]
        return made

    def write(
        self, frame: Any, table: str, build_uid: str, checks: Sequence[Check], *_: Any, **__: Any
    ) -> tuple[Staged, Measured]:
        staged = self.write_files(frame, self.settings.table_root(table), build_uid)
        if staged.rows != len(frame.rows):
            raise StorageError(f"{staged.rows} rows of {len(frame.rows)} are there")
        content = sha256(repr(frame.rows).encode()).hexdigest()
        results = self._check(frame.columns, frame.rows, checks)
        return staged, Measured(len(frame.rows), content, None, results)

    def write_files(self, frame: Any, root: str, build_uid: str) -> Staged:
        fields = [
            {"name": c, "type": "long", "nullable": True, "metadata": {}} for c in frame.columns
        ]
        directory = Path(root, build_uid)
        half = len(frame.rows) // 2
        for n, part in enumerate((frame.rows[:half], frame.rows[half:])):
            columns = [pa.array([row[c] for row in part], pa.int64()) for c in range(len(fields))]
            made = pa.table(columns, names=list(frame.columns))
            directory.mkdir(parents=True, exist_ok=True)  # others may have deleted it meanwhile
            pq.write_table(made, directory / f"part-{n}.parquet")
            cross("wrote a file")
        return find_staged(root, build_uid, delta_schema({"type": "struct", "fields": fields}))

    def columns(self, frame: Any, name: str) -> tuple[Column, ...]:
        return tuple(Column(c, "bigint") for c in frame.columns)

    def failing(self, frame: Any, check: Check) -> None:
        """Show nothing of what fails."""

    def audit(self, frame: Any, checks: Sequence[Check], name: str) -> tuple[CheckResult, ...]:
        return self._check(frame.columns, read_rows(frame.paths), checks)

    def _check(self, columns: Any, rows: Rows, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
        assert all(c.expression == "a <> 7" for c in checks)
        at = list(columns).index("a") if checks else 0
        n = sum(row[at] == 7 for row in rows)
        return tuple(CheckResult(c.name, n == 0, c.blocking, n, c.definition) for c in checks)


# ---------------------------------------------------------------------------------------- the runs

Task = tuple[Any, ...]
"""The name of a method of `Run`, and its arguments."""


class Clock:
    """Time that passes when it is asked for, or told."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now


def real_clock() -> datetime:
    return datetime.now(UTC)


class Run:
    """A run of the project in an environment: it keeps the code and the raw data it began with.

    Parameters
    ----------
    ledger, project
        What to use; None: its own.
    patient
        It waits for leases that others hold.
    """

    def __init__(
        self,
        root: Path,
        environment: str,
        clock: Callable[[], datetime] = real_clock,
        engine: Callable[[Any], SparkEngine] = Quick,
        *,
        ledger: Ledger | None = None,
        project: Project | None = None,
        patient: bool = False,
    ) -> None:
        self.settings = load_settings(root, environment=environment)
        self.project = project or require(load_project(self.settings))
        self.clock = clock
        self.ledger = ledger or Ledger(self.settings.ledger, clock=clock)
        self.builder = Builder(
            self.settings, self.project, self.ledger, engine(self.settings), run_id="r", clock=clock
        )
        self.parked: dict[str, PendingBuild] = {}
        if not patient:
            self.builder.over.set()
        for source in self.project.sources:
            if source.raw is not None:
                self.builder.observer.pins.find_version(source)

    def source(self, name: str) -> Source:
        return self.project.by_id[f"{name}@sources/{FILE}"]

    def names(self) -> list[str]:
        return [s.name for s in self.project.persisted]

    def perform(self, task: Task) -> Any:
        """Return what came of a task: of each of its parts its result, or its error."""
        name, *arguments = task
        return getattr(self, name)(*arguments)

    def build(self, names: Iterable[str], force: bool = False) -> dict[str, Any]:
        known = [n for n in names if n in self.names()]
        return {n: attempt(self.builder.build, self.source(n), force=force) for n in known}

    def park(self, name: str) -> Any:
        if name in self.parked or name not in self.names():
            return None
        work = attempt(self.builder.park, self.source(name))
        if isinstance(work, PendingBuild):
            self.parked[name] = work
        return work

    def resume(self, name: str) -> Any:
        work = self.parked.pop(name, None)
        return attempt(self._publish, work) if work else None

    def _publish(self, parked: PendingBuild) -> Any:
        with self.builder.resume(parked) as work:
            self.builder.publish(work)
            return work.build

    def pool(self, names: Sequence[str]) -> dict[str, Any]:
        """Build as a run of Dagster does: ahead first, then each in its turn."""
        for name in names:
            self.park(name)
        return {name: self.resume(name) for name in names}

    def abandon(self) -> None:
        self.builder.abandon()
        self.parked.clear()

    def promote(self, target: str, names: Iterable[str], allow_stale: bool = False) -> Any:
        chosen = [self.source(n).source_id for n in names if n in self.names()]
        return attempt(promote, self.builder, target, chosen, allow_stale=allow_stale)

    def roll_back(self, steps: int = 1, to: int | None = None) -> Any:
        return attempt(roll_back, self.settings, self.ledger, steps=steps, to=to)

    def collect(self, removed: bool = False, *, dry_run: bool = False) -> Any:
        now = self.clock()
        return collect(
            self.settings,
            self.project,
            self.ledger,
            removed=removed,
            dry_run=dry_run,
            clock=lambda: now,
        )

    def close(self) -> None:
        self.ledger.close()


def churn(root: Path, seconds: float, seed: int) -> Counter[str]:
    """Build, promote, roll back, edit and load at random, in one run after another."""
    draw, said, began = random.Random(seed), Counter[str](), time.monotonic()
    code = dict(FIRST)
    while goes_on(began, seconds, said["build: Build"]):
        environment = draw.choice(("dev", "prod", "qa"))
        chance = draw.random()
        if chance < 0.3:
            name = draw.choice([*CONTENTS])
            write_raw(root, name, draw.choice(CONTENTS[name]))
        elif chance < 0.5:
            name = draw.choice([*SOURCES])
            code[name] = draw.randrange(len(SOURCES[name]))
            write_code(root, code)
        run = Run(root, environment, patient=True)
        names = draw.choice((run.names(), draw.sample(run.names(), 2)))
        task: Task = draw.choice(
            (
                ("build", names),
                ("build", names, True),
                ("pool", names),
                ("promote", "prod" if environment == "dev" else "dev", names, True),
                ("roll_back", draw.choice((1, 1, 2))),
            )
        )
        result = run.perform(task)
        for outcome in result.values() if isinstance(result, dict) else [result]:
            said[f"{task[0]}: {type(outcome).__name__}"] += 1
        run.close()
    return said


def sweep(root: Path, seconds: float) -> int:
    """Collect all the time; return how many tables lost something."""
    n, began = 0, time.monotonic()
    while goes_on(began, seconds, n):
        run = Run(root, random.choice(("dev", "prod", "qa")))
        n += len(run.collect())
        run.close()
    return n


def goes_on(began: float, seconds: float, done: int) -> bool:
    """Whether what goes on for so long shall; a slow machine is waited for until it has done any."""
    passed = time.monotonic() - began
    return passed < seconds or (not done and passed < seconds + 60)


def attempt(do: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Return what `do` returns, or the error of ours that it raises."""
    try:
        return do(*arguments, **more)
    except PersistError as error:
        return error


# ----------------------------------------------------------------------------------- the processes


Place = tuple[str, int]
"""Which of the next steps: the n-th one from 0 that has a word in its name; '' is in any."""

WORDS = ("commit", "delta", "deletion", "export", "log", "manifest", "read", "rename", "restore")
BRIEF = ("before a log file's deletion", "after a log file's deletion")
"""Who stands still here for longer than a lease lives deletes, when he goes on, the log of another
table, which somebody may have made in the place of this one."""


class _Here:
    """Where this process is to halt, if anywhere."""

    connection: Connection | None = None
    clock: Clock
    place: Place | None = None
    gently: bool = False


def cross(step: str, *, alone: bool = True) -> None:
    """Halt here, if that is where this process shall.

    Parameters
    ----------
    alone
        Nobody waits here for this process: it can halt for as long as others like.
    """
    if _Here.connection is None or _Here.place is None or (_Here.gently and not alone):
        return
    if threading.current_thread() is not threading.main_thread():
        return  # a heartbeat, while this process is halted
    word, n = _Here.place
    if word not in step:
        return
    _Here.place = word, n - 1
    if n == 0:
        _Here.connection.send(("halted", step, _Here.clock.now))
        now, _Here.place, _Here.gently = _Here.connection.recv()
        _Here.clock.now = max(now, _Here.clock.now)


def _around(owner: Any, name: str, before: str, after: str, *, alone: bool = True) -> None:
    """Make the moments before and after a call of `owner.name` steps."""
    original = getattr(owner, name)

    def call(*arguments: Any, **more: Any) -> Any:
        cross(before, alone=alone)
        result = original(*arguments, **more)
        cross(after, alone=alone)
        return result

    setattr(owner, name, call)


def _make_steps() -> None:
    """Let all that changes the disk or the ledger be crossed, in this process."""
    import deltalake
    from deltalake import transaction

    _around(deltalake.DeltaTable, "create_write_transaction", "before delta", "after delta")
    _around(deltalake.DeltaTable, "restore", "before a restore", "after a restore")
    _around(transaction, "create_table_with_add_actions", "before delta", "after delta")
    _around(SparkEngine, "write_files", "before files", "after files")
    _around(manifest_file, "_export", "before an export", "after an export")
    _around(delta_deletions, "delete_file", *BRIEF)
    _around(delta_deletions, "delete_empty", "before a last deletion", "after a last deletion")
    write = Database.write

    @contextmanager
    def written(self: Database, *, migrating: bool = False) -> Iterator[Any]:
        cross("before a transaction")
        with write(self, migrating=migrating) as connection:
            yield connection
            cross("before a commit", alone=False)
        cross("after a transaction")

    rename = Path.replace

    def replace(self: Path, target: Any) -> Any:
        cross("before a rename", alone=False)
        return rename(self, target)

    def dump(document: Any, file: Any, **how: Any) -> None:
        text = json.dumps(document, **how)
        file.write(text[: len(text) // 2])
        file.flush()
        cross("within a manifest", alone=False)
        file.write(text[len(text) // 2 :])

    delete = files.delete_directory

    def delete_directory(location: str) -> None:
        cross("before a deletion")
        for n, file in enumerate(files.list_files(location)):
            with suppress(FileNotFoundError):
                os.remove(file.location)
            if n == 0:
                cross("within a deletion")
        delete(location)
        cross("after a deletion")

    changed: Any = [(Database, "write", written), (Path, "replace", replace)]
    changed += [(manifest_file, "json", SimpleNamespace(**{**vars(json), "dump": dump}))]
    changed += [
        (m, "delete_directory", delete_directory) for m in (tables, temporary, gc, delta_deletions)
    ]
    for owner, name, new in changed:
        assert hasattr(owner, name)
        setattr(owner, name, new)


def _work(connection: Connection, do: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Do something in this process, at its own pace."""
    connection.send(do(*arguments))


def breed(address: str) -> None:
    """Fork a child for each line of the standard input; the children do tasks.

    This process has used nothing that does not survive a fork: no threads, not delta-rs' runtime.
    """
    import deltalake  # noqa: F401  # imported once, for all children
    import pyarrow.fs  # noqa: F401

    _warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are gone at once
    while sys.stdin.buffer.readline():
        if os.fork() == 0:
            os.close(0)
            try:
                with Client(address, "AF_UNIX") as connection:
                    connection.send(os.getpid())
                    do, *given = connection.recv()
                    do(connection, *given)
            except EOFError:
                os._exit(1)
            finally:
                sys.stderr.flush()
            os._exit(0)


def _warm_up() -> None:
    """Do once what takes long the first time, short of what does not survive a fork."""
    with tempfile.TemporaryDirectory() as directory:
        run = Run(make_project(Path(directory)), "dev")
        run.builder.plan(s.source_id for s in run.project.persisted)
        source = run.source("p")
        assert source.query
        manifest_file = run.builder.observer.manifest()
        run.builder.reader.load(
            *run.builder.reader.statement(source.query, source.bindings, manifest_file)
        )
        run.collect()
        run.close()


def step(
    connection: Connection,
    root: Path,
    environment: str,
    task: Task,
    now: datetime,
    place: Place,
    gently: bool,
    make: Callable[..., Run] = Run,
) -> None:
    """Do a task in this process, step by step, by a run that `make` makes."""
    clock = Clock(now)
    _make_steps()
    _Here.connection, _Here.clock, _Here.place, _Here.gently = connection, clock, place, gently
    run = make(root, environment, clock)
    cross("begun")
    result = run.perform(task)
    connection.send(("done", result, clock.now))


class Zygote:
    """Where children come from.

    Parameters
    ----------
    modules
        What is imported once, for all of them.
    """

    def __init__(self, *modules: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        address = f"{self._directory.name}/s"
        self._listener = Listener(address, "AF_UNIX")
        names = ", ".join(("sys", "histories", *modules))
        code = f"import {names}; histories.breed(sys.argv[1])"
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, address],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def fork(self) -> tuple[int, Connection]:
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        connection = self._listener.accept()
        return connection.recv(), connection

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._listener.close()
        self._directory.cleanup()


class Child:
    """A process that does one task, as a run of its own.

    Parameters
    ----------
    place
        The step at which it halts.
    gently
        It halts only where nobody waits for it.
    do
        What it does, with all that.

    Attributes
    ----------
    step
        Where it has halted; None: it has come to its end.
    beats
        While it is halted its heartbeats go on.
    result
        What came of its task, if it was not killed.
    """

    def __init__(
        self,
        zygote: Zygote,
        root: Path,
        environment: str,
        task: Task,
        clock: Clock,
        place: Place,
        *,
        gently: bool,
        do: Callable[..., None] = step,
    ) -> None:
        self.environment, self.task, self._clock = environment, task, clock
        self.step: str | None = None
        self.beats = False
        self.result: Any = None
        self.pid, self._connection = zygote.fork()
        self._connection.send((do, root, environment, task, clock.now, place, gently))
        self._wait()

    def go_on(self, place: Place | None = None, *, gently: bool = True) -> None:
        """Let it go on, to its end or to another step."""
        self._connection.send((self._clock.now, place, gently))
        self._wait()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.step = None
        bury(self.pid, self._connection)

    def _wait(self) -> None:
        try:
            what, told, now = self._connection.recv()
        except EOFError:
            raise AssertionError(f"{self.task} in {self.environment} broke down") from None
        self._clock.now = max(self._clock.now, now)
        if what == "halted":
            self.step = told
        else:
            self.step, self.result = None, told
            bury(self.pid, self._connection)


class Worker:
    """A process that calls a function, while others do the same."""

    def __init__(self, zygote: Zygote, do: Callable[..., Any], *arguments: Any) -> None:
        self.pid, self._connection = zygote.fork()
        self._connection.send((_work, do, arguments))

    def result(self) -> Any:
        """Return what it returned, once it has."""
        found = self._connection.recv()
        bury(self.pid, self._connection)
        return found

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        bury(self.pid, self._connection)


def bury(pid: int, connection: Connection) -> None:
    """Wait until a process is gone."""
    connection.close()
    pause = threading.Event()
    while not is_dead(THIS_MACHINE, pid):
        pause.wait(0.0005)
