"""Commands that are forked from a warm process behave like freshly started ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import warm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PERSIST = [sys.executable, "-m", "persist_assets.cli"]
MODULE = """
import json, os, sys, time
asked = {
    "argv": sys.argv[1:], "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ),
    "zone": time.tzname, "session": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid(),
    "name": __name__, "main": sys.modules["__main__"].__dict__ is globals(), "stdin": sys.stdin.read(),
    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:3], "spec": __spec__.name,
    "more": len(os.listdir("/proc/self/fd")), "warnings": sys.warnoptions, "seed": os.urandom(4).hex(),
}
print("to stderr", file=sys.stderr)
json.dump(asked, sys.stdout)
raise SystemExit(7)
"""


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list to which each start of a command adds whether it was forked."""
    starts: list[bool] = []
    fork = warm.Popen._fork

    def watched(*arguments: Any) -> bool:
        starts.append(fork(*arguments))
        return starts[-1]

    monkeypatch.setattr(warm.Popen, "_fork", watched)
    return starts


@pytest.mark.parametrize("safe", [(), ("-P",)], ids=["", "-P"])
@pytest.mark.parametrize("session", [False, True])
def test_a_forked_process_behaves_like_a_started_one(
    safe: tuple[str, ...],
    session: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forked: list[bool],
) -> None:
    """The module of the command is in its working directory, where Python looks only without -P."""
    monkeypatch.setattr(warm, "MODULES", ("asked",))
    (tmp_path / "asked.py").write_text(MODULE)
    env = {**os.environ, "TZ": "Asia/Tokyo", "PERSIST_ODD": "ä\udcff"}
    command = [sys.executable, *safe, "-m", "asked", "a", "--b", "c d"]
    ends = []
    for popen in (subprocess.Popen, warm.Popen):
        with popen(
            command, cwd=tmp_path, env=env, start_new_session=session, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            out, err = process.communicate("rows\n", timeout=60)
        answer = json.loads(out) if out else {"seed": None}
        seed = answer.pop("seed")
        ends.append((process.returncode, answer, err.splitlines()[-1:] if safe else err, seed))
    assert forked == [True]
    assert ends[0][:3] == ends[1][:3]
    assert (ends[0][0], bool(ends[0][1])) == ((1, False) if safe else (7, True))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["nope"], ["check"], ["check", "--json"], ["plan", "nope"]],
)
def test_forked_and_started_commands_print_the_same(
    arguments: list[str], make_project: Callable[..., Path], forked: list[bool]
) -> None:
    root = make_project({"m.sql": "--@ persist\nCREATE VIEW q AS SELECT 1 AS n, x;"})
    how: Any = {"cwd": root, "capture_output": True, "text": True}
    started = subprocess.run([*PERSIST, *arguments], **how)
    ended = warm.run([*PERSIST, *arguments], **how)
    assert (started.returncode, started.stdout, started.stderr) == (
        ended.returncode,
        ended.stdout,
        ended.stderr,
    )
    assert forked == [True]


def test_a_forked_process_can_be_polled_and_killed(tmp_path: Path, forked: list[bool]) -> None:
    (tmp_path / "persist.toml").touch()
    serve = [*PERSIST, "serve", "--port", "0"]
    for end in (signal.SIGTERM, signal.SIGKILL):
        with warm.Popen(serve, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert " at http" in process.stdout.readline()
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
            os.kill(process.pid, end)
            assert process.wait(60) == (-end if end == signal.SIGKILL else 0)
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
    assert forked == [True, True]


@pytest.mark.slow
def test_each_forked_command_has_its_own_hash_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: list[bool]
) -> None:
    monkeypatch.setattr(warm, "MODULES", ("hashed",))
    monkeypatch.setattr(warm, "N_WARM", 2)
    (tmp_path / "hashed.py").write_text("print(hash('text'))")
    command = [sys.executable, "-m", "hashed"]
    said = [warm.run(command, cwd=tmp_path, capture_output=True).stdout for _ in range(2)]
    assert said[0] != said[1]
    assert forked == [True, True]


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONHASHSEED": "1"},
        {"PYTHONPATH": "elsewhere"},
        {"COLUMNS": "40"},
        {"LC_ALL": "C"},
        {"PYSPARK_PIN_THREAD": "false"},
    ],
    ids=lambda env: next(iter(env)),
)
def test_variables_that_can_change_imports_force_a_fresh_process(
    env: dict[str, str], tmp_path: Path, forked: list[bool]
) -> None:
    done = warm.run(
        [*PERSIST, "--version"], cwd=tmp_path, env={**os.environ, **env}, capture_output=True
    )
    assert done.returncode == 0
    assert forked == [False]


def test_a_directory_that_shadows_modules_forces_a_fresh_process(
    tmp_path: Path, forked: list[bool]
) -> None:
    (tmp_path / "persist.toml").touch()
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "v.sql").write_text("CREATE VIEW v AS SELECT 1 AS a")
    (tmp_path / "sqlglot.py").write_text("raise SystemExit('this one')")
    done = warm.run([*PERSIST, "check"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "this one" in done.stderr) == (1, True)
    assert forked == [False]
