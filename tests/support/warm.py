"""Commands of Python that find what they import already there: processes forked from a warm one.

`Popen` and `run` are those of `subprocess`. A command of a module in `MODULES` is forked from a
process that has imported what such commands import, and nothing else: it is a process of its own,
with its own directory, variables, files, session and end. All other commands, and those that an
import could be another one for, start as ever.

Each takes 7 s of CPU to start. By night there are two, which take turns: hashes of text differ from
process to process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES = ("persist_assets.cli", "dagster")
IMPORTS = """
dagster._cli dagster_pyspark deltalake httpx pandas psycopg pyarrow.dataset pyarrow.parquet
py4j.java_gateway pyspark.sql pyspark.sql.connect.session sqlalchemy.dialects.postgresql
sqlalchemy.dialects.sqlite uvicorn
""".split()
LATER = ("AWS_", "DAGSTER_", "PERSIST_", "PYTEST_", "SPARK_")
"""Variables of commands, which are not there while modules are imported."""
START = ("LC_", "LD_", "MALLOC_", "PYTHON")
"""Variables that Python itself reads when it starts."""
HARMLESS = {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "PYTHONPATH"}
N_WARM = 2 if "PERSIST_TEST_BY_NIGHT" in os.environ else 1
"""How many warm processes take turns."""
LONGEST = 150_000
"""No request is longer, in bytes."""


# --------------------------------------------------------------------------------- who starts one


class Popen(subprocess.Popen):
    """A process, forked from a warm one where it can be."""

    _end: socket.socket | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        close_fds, pass_fds, cwd, env, _, _, shell, *handles, signals = rest[:14]
        gid, gids, uid, umask, new_session, group = rest[14:20]
        plain = (executable, preexec_fn, gid, gids, uid) == (None,) * 5 and not (pass_fds or shell)
        if plain and close_fds and signals and umask == -1 and isinstance(args, list):
            request = {
                "args": [os.fspath(a) for a in args],
                "cwd": os.path.abspath(cwd or "."),
                "env": dict(os.environ if env is None else env),
                "session": new_session,
                "group": group,
            }
            mine = (handles[0], handles[3], handles[5])
            files = [i if fd == -1 else fd for i, fd in enumerate(mine)]
            if self._fork(request, files):
                self._close_pipe_fds(*handles)  # pyright: ignore[reportAttributeAccessIssue]
                return
        super()._execute_child(args, executable, preexec_fn, *rest)  # pyright: ignore[reportAttributeAccessIssue]

    def _fork(self, request: dict[str, Any], files: list[int]) -> bool:
        command = request["args"]
        if command[0] != sys.executable or module_of(command)[0] not in MODULES:
            return False
        if any(map(os.isatty, files)) or not hasattr(os, "pidfd_open"):
            return False
        text = json.dumps(request).encode()
        if len(text) > LONGEST:
            return False
        mine, its = socket.socketpair()
        socket.send_fds(next_server(), [text], [*files, its.fileno()])
        its.close()
        answer = json.loads(mine.recv(100))
        if answer is None:
            mine.close()
            return False
        self.pid, self._end = answer, mine
        self._child_created = True
        return True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._end is None:
            return super()._try_wait(wait_flags)  # pyright: ignore[reportAttributeAccessIssue]
        if wait_flags & os.WNOHANG and not select.select([self._end], [], [], 0)[0]:
            return (0, 0)
        status = json.loads(self._end.recv(100))
        self._end.close()
        self._end = None
        return (self.pid, status)

    def _internal_poll(self, *rest: Any, **more: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*rest, **more)  # pyright: ignore[reportAttributeAccessIssue]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # pyright: ignore[reportAttributeAccessIssue]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)  # pyright: ignore[reportAttributeAccessIssue]
            finally:
                self._waitpid_lock.release()  # pyright: ignore[reportAttributeAccessIssue]
        return self.returncode


def run(
    command: list[Any],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command, and return what came of it, as `subprocess.run` does."""
    if capture_output:
        more |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **more) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def module_of(command: list[str]) -> tuple[str | None, bool, list[str]]:
    """Return the module that a command of Python runs, whether with `-P`, and its arguments."""
    safe = command[1:2] == ["-P"]
    if command[1 + safe : 2 + safe] != ["-m"]:
        return None, safe, []
    return command[2 + safe], safe, command[3 + safe :]


_turn = count()


def next_server() -> socket.socket:
    """Return where the next command is asked for."""
    return server(next(_turn) % N_WARM)


@cache
def server(_: int) -> socket.socket:
    """Start a warm process that ends with this one."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())],
            env={k: v for k, v in os.environ.items() if not k.startswith(LATER)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[its.fileno()],
        )
        its.close()
        if not mine.recv(1):
            process.communicate()
            log.seek(0)
            raise RuntimeError(log.read())

    def end() -> None:
        mine.close()
        process.communicate()

    atexit.register(end)
    return mine


# --------------------------------------------------------------------------------- the warm process


class Recording(type(os.environ)):
    """The environment, which remembers what modules have read while they were imported."""

    names: set[str] = set()  # noqa: RUF012

    def __getitem__(self, key: str) -> str:
        self.names.add(key)
        return super().__getitem__(key)


def serve(control: socket.socket) -> tuple[dict[str, Any], list[str]]:
    """Fork a child for each request; return in the child: the request, and where imports look."""
    known = Known(dict(os.environ))
    plain = type(os.environ)
    os.environ.__class__ = Recording
    sys.path[:] = sys.path[1:]  # without the directory of this file
    for name in (*modules(), *IMPORTS):
        importlib.import_module(name)
    os.environ.__class__ = plain
    sys.modules["persist_assets.compiler.software"].name_software()  # reads all of our code, once
    gc.collect()
    gc.freeze()  # what is imported is not looked through again when a child ends
    assert threading.active_count() == 1, threading.enumerate()
    control.send(b"+")
    poll, running = select.poll(), dict[int, tuple[int, socket.socket]]()
    poll.register(control, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                pid, end = running.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                end.send(json.dumps(os.waitpid(pid, 0)[1]).encode())
                end.close()
                continue
            text, files, *_ = socket.recv_fds(control, LONGEST, 4)
            if not text:
                sys.exit()
            request, end = json.loads(text), socket.socket(fileno=files.pop())
            if not known.serves(request):
                end.send(b"null")
            elif pid := os.fork():
                end.send(str(pid).encode())
                handle = os.pidfd_open(pid)
                running[handle] = pid, end
                poll.register(handle, select.POLLIN)
            else:
                become(request, files)
                return request, known.found
            for file in files:
                os.close(file)


def modules() -> list[str]:
    """Return the names of our modules but those that are run as they are imported."""
    package = importlib.import_module("persist_assets")
    assert importlib.import_module("persist_assets.cli").app  # all commands, in their order
    found = pkgutil.walk_packages(package.__path__, "persist_assets.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def path_of(env: Mapping[str, str]) -> list[str]:
    """Return where the variables of a process let it import from."""
    return [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]


class Known:
    """What the warm process was started with."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.found = [p for p in sys.path[1:] if p not in path_of(env)]

    def serves(self, request: dict[str, Any]) -> bool:
        """Return whether a command would import what is imported, and with the same outcome."""
        env, cwd = request["env"], request["cwd"]
        started = {n for n in (*env, *self.env) if n.startswith(START)}
        if any(env.get(n) != self.env.get(n) for n in (started | Recording.names) - HARMLESS):
            return False
        tops = {n: top_of(m) for n, m in sys.modules.items() if "." not in n}
        paths, mine = path_of(env), path_of(self.env)
        if paths not in (mine, [*mine, tops["persist_assets"]]) or not os.path.isdir(cwd):
            return False
        # A module of that directory would hide the one that is imported.
        return all(tops.get(n.partition(".")[0], cwd) == cwd for n in os.listdir(cwd))


def top_of(module: ModuleType) -> str | None:
    """Return the directory that a module was imported from."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    return os.path.dirname(os.path.dirname(file) if hasattr(module, "__path__") else file)


def become(request: dict[str, Any], files: list[int]) -> None:
    """Make this process what it would be if it had been started."""
    if request["session"]:
        os.setsid()
    if request["group"] != -1:
        os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.modules["numpy"].random.seed()


def main() -> None:
    """Serve, and run what a child is asked for."""
    request, found = serve(socket.socket(fileno=int(sys.argv[1])))
    module, safe, arguments = module_of(request["args"])
    sys.argv[:] = ["-m", *arguments]
    sys.path[:] = [*([] if safe else [request["cwd"]]), *path_of(request["env"]), *found]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        runpy._run_module_as_main(module)  # pyright: ignore[reportAttributeAccessIssue]
        status = 0
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code or 0
    end(status)


def end(status: int) -> None:
    """End as Python does, but for taking apart what is imported: that takes 0.6 s."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)  # Python says what is wrong
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
