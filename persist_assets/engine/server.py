"""A warm Spark on this machine: one Spark Connect server for runs, the command line and the UI.

Every Dagster run is a process, and with its own Spark it waits for a JVM to start and warm up. With
``[spark] shared = true`` all processes are clients of one server instead:

    ensure_server ─► supervisor (`python -m persist_assets.engine.server`) ─► JVM (Spark Connect)
        └ client: a locked file that marks the server as used; the kernel unlocks it when the
          client dies

The supervisor ends the JVM and itself when there has been no client for a while. A server belongs
to a user, an installation of Spark, and the settings that no session can change. Projects that
agree on these share it, each in its own sessions. It listens on loopback and requires a token that
only the user can read.

The invariant: a process that starts, stops or counts idle time holds `start.lock`, and a supervisor
holds `supervisor.lock` while it lives. So there is at most one server of a kind, and no server ends
between being found and being used.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from persist_assets._paths import PACKAGE
from persist_assets.core.errors import StorageError
from persist_assets.core.settings.user import user_cache
from persist_assets.engine.class_archive import archived_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from persist_assets.core.settings.values import Settings

START_S = 90.0
"""The time limit for the start of a server, in seconds."""
_END_S = 20.0
"""The time limit for a JVM to end by itself, in seconds."""
_POLL_S = 0.5
_IN_USE: dict[Path, FileLock] = {}
"""The client marks of this process, kept while it lives."""
_STATIC_SQL = (
    "spark.sql.artifact.copyFromLocalToFs.allowDestLocal",
    "spark.sql.avro.schemaUrlAllowedSchemes",
    "spark.sql.broadcastExchange.maxThreadThreshold",
    "spark.sql.cache.serializer",
    "spark.sql.catalog.",
    "spark.sql.catalogImplementation",
    "spark.sql.codegen.cache.maxEntries",
    "spark.sql.codegen.comments",
    "spark.sql.debug",
    "spark.sql.defaultUrlStreamHandlerFactory.enabled",
    "spark.sql.event.truncate.length",
    "spark.sql.extensions",
    "spark.sql.filesourceTableRelationCacheSize",
    "spark.sql.globalTempDatabase",
    "spark.sql.hive.",
    "spark.sql.kafka.disallowedOptions",
    "spark.sql.legacy.hive.thriftServer.allowSettingSystemProperties",
    "spark.sql.legacy.sessionInitWithConfigDefaults",
    "spark.sql.metadataCacheTTLSeconds",
    "spark.sql.queryExecutionListeners",
    "spark.sql.reflect.allowList",
    "spark.sql.restrictedMode.enabled",
    "spark.sql.resultQueryStage.maxThreadThreshold",
    "spark.sql.shuffleExchange.maxThreadThreshold",
    "spark.sql.sources.disabledJdbcConnProviderList",
    "spark.sql.sources.schemaStringLengthThreshold",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.streaming.ui.",
    "spark.sql.subquery.maxThreadThreshold",
    "spark.sql.ui.retainedExecutions",
    "spark.sql.warehouse.dir",
)
"""The beginnings of the settings of Spark SQL that a session cannot change. A test asks Spark."""
_CLIENTS_ENVIRONMENT = frozenset({"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_API_MODE"})
"""Environment variables that turn Spark into a client; a server must not have them."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes
    ----------
    pid, jvm
        The process IDs of the supervisor and of Spark.
    token
        The secret that clients have to send.
    started_at
        The start time, in seconds since the epoch.
    """

    pid: int
    jvm: int
    port: int
    token: str
    started_at: float

    @property
    def address(self) -> str:
        """Its address, without the token."""
        return f"sc://localhost:{self.port}"

    @property
    def url(self) -> str:
        """Its address for Spark Connect clients, with the token."""
        return f"{self.address}/;token={self.token}"


def server_directory(settings: Settings) -> Path:
    """Return the directory with the state of the server that a project shares."""
    kind = [version("pyspark"), sys.executable, settings.shared_port, sorted(_static(settings))]
    name = sha256(json.dumps(kind).encode()).hexdigest()[:12]
    home = os.environ.get("PERSIST_SPARK_HOME") or user_cache()
    return Path(home, "spark", name).absolute()


def _static(settings: Settings) -> list[tuple[str, str]]:
    """Return the settings that a session cannot change; other values need another server."""
    return [
        (k, v)
        for k, v in settings.spark
        if (not k.startswith("spark.sql.") or k.startswith(_STATIC_SQL)) and k != "spark.app.name"
    ]


def find_server(directory: Path) -> Server | None:
    """Return the running server whose state is in a directory, or None."""
    try:
        server = Server(**json.loads((directory / "server.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return server if _held(directory / "supervisor.lock") and _listens(server.port) else None


def count_clients(directory: Path) -> int:
    """Return the number of living processes that use the server whose state is in a directory."""
    marks = directory / "clients"
    return sum(_held(mark) for mark in marks.iterdir()) if marks.is_dir() else 0


@dataclass(slots=True)
class Job:
    """A query that Spark computes for a client.

    Attributes
    ----------
    operation
        Its ID in Spark.
    pid, project
        The client's process, and the root of its project.
    started_at
        The time of Spark's first progress report, in seconds since the epoch.
    tasks, completed, running
        The numbers of its tasks, of completed and of running ones.
    waits_since
        The time since which none of its tasks has run, in seconds since the epoch; None: one runs.
    """

    operation: str
    pid: int
    project: str
    started_at: float
    tasks: int = 0
    completed: int = 0
    running: int = 0
    waits_since: float | None = None


SERVER_LOG = "server.log"
"""The log file in the directory of a server's state."""
WAIT_S = 30.0
"""The time after which a job is reported as waiting for Spark, in seconds."""
STUCK_S = 60.0
"""The time after which a server is ended if a job waits and no client's job runs, in seconds."""
_LOOKS = 5
"""The number of observations in a row without a client's running job that end a server."""


class Jobs:
    """The jobs of this process: a progress handler, which Spark calls every two seconds.

    A cancelled job can continue for minutes and use all processors of a server, although it belongs
    to no client any more. So a server in which jobs wait and no client's job runs is ended.

    Parameters
    ----------
    project
        The root of the jobs' project.
    directory
        The directory of the shared server's state, where other processes find the jobs
        (`list_jobs`); None: the server is not the shared one.
    warn
        Called once for each job that has waited for `WAIT_S`.
    """

    def __init__(
        self,
        project: str,
        directory: Path | None,
        warn: Callable[[Job], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._project, self._directory, self._warn, self._clock = project, directory, warn, clock
        mark = None if directory is None else _IN_USE.get(directory)
        self._file = None if mark is None else _jobs_of(Path(mark.lock_file))
        self._looks = 0
        self._jobs: dict[str, Job] = {}
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Record the progress of a job.

        Raises
        ------
        StorageError
            Cancelled jobs used all processors of the shared server, so it was ended.
        """
        key, now, late, waited_s = operation_id or "", self._clock(), None, 0.0
        with self._lock:
            if done:
                if self._jobs.pop(key, None) is None:
                    return
            else:
                job = self._jobs.setdefault(key, Job(key, os.getpid(), self._project, now))
                active = [*(stages or ())]
                completed = sum(stage.num_completed_tasks for stage in active)
                waits = inflight_tasks == 0 and completed == job.completed
                job.waits_since = (job.waits_since or now) if waits else None
                job.tasks = sum(stage.num_tasks for stage in active)
                job.completed, job.running = completed, inflight_tasks
                waited_s = now - (job.waits_since or now)
                if waited_s >= WAIT_S and key not in self._warned:
                    self._warned.add(key)
                    late = job
            if self._file is not None:
                with suppress(OSError):  # a full disk is no reason to end a build
                    _write(self._file, [asdict(job) for job in self._jobs.values()])
        if late is not None:
            self._warn(late)
        if waited_s >= STUCK_S and self._directory is not None:
            busy = any(job.running for job in list_jobs(self._directory))
            self._looks = 0 if busy else self._looks + 1
            if self._looks >= _LOOKS:
                stop_server(self._directory)
                raise StorageError(
                    "the Spark server was stopped because cancelled jobs occupied all of its cores",
                    hint="try again: the server is restarted when it is needed",
                )


def _jobs_of(mark: Path) -> Path:
    return mark.parents[1] / "jobs" / f"{mark.name}.json"


def list_jobs(directory: Path) -> list[Job]:
    """Return the jobs of all living clients of a server, the oldest first."""
    jobs: list[Job] = []
    marks = directory / "clients"
    for mark in marks.iterdir() if marks.is_dir() else ():
        if _held(mark):
            with suppress(OSError, ValueError, TypeError):
                document = json.loads(_jobs_of(mark).read_text(encoding="utf-8"))
                jobs += [Job(**job) for job in document]
    return sorted(jobs, key=lambda job: job.started_at)


def ensure_server(settings: Settings) -> Server:
    """Return the server that a project shares; start it if necessary. It lives while we do.

    Starting takes about ten seconds.

    Raises
    ------
    StorageError
        It does not start.
    """
    directory = server_directory(settings)
    clients = directory / "clients"
    try:
        clients.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        (directory / "jobs").mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"the Spark server cannot store its state in {directory}: {error.strerror}",
            hint="set PERSIST_SPARK_HOME to another directory",
        ) from error
    with FileLock(directory / "start.lock"):
        server = find_server(directory) or _start(settings, directory)
        if directory not in _IN_USE:
            mark = FileLock(clients / uuid.uuid4().hex, thread_local=False)
            mark.acquire()
            _IN_USE[directory] = mark
    return server


def stop_server(directory: Path) -> bool:
    """End the server whose state is in a directory; return whether there was one."""
    if not directory.is_dir():
        return False
    with FileLock(directory / "start.lock"):
        was_running = _held(directory / "supervisor.lock")
        _end(directory)
    return was_running


def _start(settings: Settings, directory: Path) -> Server:
    _end(directory)  # a server that does not answer, or a JVM without supervisor
    package = str(PACKAGE.parent)
    log_file = directory / SERVER_LOG
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "persist_assets.engine.server", str(directory)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": _path(package, os.environ.get("PYTHONPATH"))},
        )
    document = {
        "port": settings.shared_port,
        "idle_s": settings.shared_idle_s,
        "spark": dict(_static(settings)),
    }
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(document).encode())
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        server = find_server(directory)
        if server is not None:
            process.returncode = 0  # nobody waits for it: it outlives us
            return server
        time.sleep(0.05)
    _end(directory)
    process.kill()
    process.wait()
    lines = log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    telling = [line for line in lines if "Exception" in line or line.startswith("Error")] or lines
    raise StorageError(
        f"the Spark server does not start: {telling[-1].strip() if telling else 'no output'}",
        hint=f"see its log, {log_file}; or disable it: [spark] shared = false",
    )


def _path(*parts: str | None) -> str:
    return os.pathsep.join(part for part in parts if part)


def _end(directory: Path) -> None:
    """End a server: its supervisor, or a JVM without one."""
    supervisor, jvm = _processes(directory)
    lock = directory / "supervisor.lock"
    if _held(lock):
        _signal(supervisor, str(directory), signal.SIGTERM)
        deadline = time.monotonic() + _END_S + 5
        while _held(lock) and time.monotonic() < deadline:
            time.sleep(0.05)
        if _held(lock):
            _signal(supervisor, str(directory), signal.SIGKILL)
    _signal(jvm, _marker(directory), signal.SIGKILL)
    for name in ("server.json", "processes.json"):
        (directory / name).unlink(missing_ok=True)


def _processes(directory: Path) -> tuple[int | None, int | None]:
    """Return the last recorded process IDs of supervisor and JVM."""
    try:
        supervisor, jvm = json.loads((directory / "processes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None, None
    return supervisor, jvm


def _signal(pid: int | None, marker: str, number: signal.Signals) -> None:
    """Send a signal to a process if its command line still contains a marker."""
    if pid is None:
        return
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        command = ""
        if not Path("/proc/self").exists():
            shown = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
            with suppress(OSError):
                done = subprocess.run(shown, capture_output=True, text=True, check=False)
                command = done.stdout
    if marker in command:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _marker(directory: Path) -> str:
    """Return the marker that identifies the JVM of a server."""
    return f"spark.app.name=persist_assets-{directory.name}"


def _held(path: Path) -> bool:
    """Whether a living process holds a lock."""
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


# --------------------------------------------------------------------------------- supervisor


class _Stopped(Exception):
    """The supervisor received a signal."""


def supervise(directory: Path, settings: Mapping[str, Any]) -> None:
    """Run a server until it gets a signal, dies, or has been idle for a while."""
    signals: list[int] = []
    # A handler that raises could interrupt the start of a process, whose ID would be lost.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: signals.append(got))

    def pause(seconds: float) -> None:
        time.sleep(seconds)
        if signals:
            raise _Stopped

    with FileLock(directory / "supervisor.lock", timeout=5):
        token, port = secrets.token_hex(32), _port(settings["port"])
        _write(directory / "processes.json", [os.getpid(), None])
        jvm = _launch(directory, port, token, settings["spark"])
        _write(directory / "processes.json", [os.getpid(), jvm.pid])
        try:
            while not _listens(port):
                if jvm.poll() is not None:
                    return
                pause(0.05)
            server = Server(os.getpid(), jvm.pid, port, token, time.time())
            _write(directory / "server.json", asdict(server))
            _wait(directory, jvm, settings["idle_s"], pause)
        except _Stopped:
            pass
        finally:
            (directory / "server.json").unlink(missing_ok=True)
            jvm.terminate()
            try:
                jvm.wait(_END_S)
            except subprocess.TimeoutExpired:
                jvm.kill()
                jvm.wait()
            (directory / "processes.json").unlink(missing_ok=True)


def _write(path: Path, document: object) -> None:
    """Write a file atomically that only this user can read."""
    new_file = path.with_suffix(".new")
    new_file.unlink(missing_ok=True)
    new_file.touch(mode=0o600)
    new_file.write_text(json.dumps(document), encoding="utf-8")
    new_file.rename(path)


def _launch(
    directory: Path, port: int, token: str, spark: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parent
    config = {
        "spark.scheduler.mode": "FAIR",
        "spark.log.level": "WARN",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **spark,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    # In a file, because everybody can read the command line, and keys of stores are secret.
    properties = directory / "spark.properties"
    properties.unlink(missing_ok=True)
    properties.touch(mode=0o600)
    lines = [f"{_escaped(k)}={_escaped(v)}\n" for k, v in config.items()]
    properties.write_text("".join(lines), encoding="ascii")
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in _CLIENTS_ENVIRONMENT and not k.startswith("SPARK_CONNECT_")
    }
    environment |= {
        "SPARK_HOME": str(home),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    with archived_classes(environment):
        return subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--properties-file", str(properties), "--load-spark-defaults"),
                *("--conf", _marker(directory)),
                "spark-internal",
            ],
            stdin=subprocess.DEVNULL,
            env=environment,
        )


def _escaped(text: str) -> str:
    """Return a text, escaped as a key or value of Java properties."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    plain = re.compile(r"[A-Za-z0-9._/*,;-]")
    return "".join(chr(u) if u < 128 and plain.match(chr(u)) else f"\\u{u:04x}" for u in units)


def _port(port: int) -> int:
    """Return a free port: this one, or any if it is zero. Exit if it is in use."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", port))
        except OSError as error:
            sys.exit(f"Error: cannot use port {port}: {error.strerror}")
        return free.getsockname()[1]


def _wait(directory: Path, jvm: subprocess.Popen[bytes], idle_s: float, pause: Any) -> None:
    """Return once the JVM has died or the server has been idle."""
    used = time.monotonic()
    while jvm.poll() is None:
        # Under the lock, no client can appear between the check and the end.
        with suppress(Timeout), FileLock(directory / "start.lock", timeout=0):
            if _forget_dead(directory):
                used = time.monotonic()
            elif time.monotonic() - used >= idle_s:
                (directory / "server.json").unlink(missing_ok=True)
                return
        pause(_POLL_S)


def _forget_dead(directory: Path) -> int:
    """Return the number of living clients, and remove the marks of dead ones."""
    alive = 0
    for mark in (directory / "clients").iterdir():
        if _held(mark):
            alive += 1
        else:
            mark.unlink(missing_ok=True)
            _jobs_of(mark).unlink(missing_ok=True)
    return alive


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), json.load(sys.stdin))
