"""Which projects share a Spark server, and errors if there can be none. Starts none."""

from __future__ import annotations

import os
import sys
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from persist_assets.core.errors import SettingsError, StorageError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.server import (
    _IN_USE,
    Job,
    Jobs,
    _escaped,
    count_clients,
    find_server,
    list_jobs,
    server_directory,
)
from persist_assets.engine.server import stop_server as stop
from persist_assets.engine.session import create_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from persist_assets.core.settings.values import Settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERSIST_SPARK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def settings(root: Path, spark: str) -> Settings:
    root.mkdir(exist_ok=True)
    (root / "persist.toml").write_text(f"[spark]\nshared = true\n{spark}\n")
    return load_settings(root, environ={})


def test_projects_share_a_server_unless_their_jvm_settings_differ(tmp_path: Path) -> None:
    def place(name: str, spark: str) -> Path:
        return server_directory(settings(tmp_path / name, spark))

    plain = place("a", "")
    assert plain == place("b", "")
    assert plain == place("c", '"spark.sql.shuffle.partitions" = 7\nshared_idle = "1h"')
    assert plain == place("d", '"spark.sql.ansi.enabled" = false\n"spark.app.name" = "d"')
    other = [
        "driver.memory = '3g'",
        "master = 'local[1]'",
        "shared_port = 15002",
        "sql.extensions = 'x'",
    ]
    assert len({plain, *(place("e", text) for text in other)}) == 5


def test_without_a_running_server_no_state_is_found_and_none_is_created(
    tmp_path: Path, home: Path
) -> None:
    place = server_directory(settings(tmp_path / "p", ""))
    assert find_server(place) is None
    assert count_clients(place) == 0
    assert not stop(place)
    assert not home.exists()


def test_the_state_of_a_dead_server_is_ignored(tmp_path: Path) -> None:
    place = server_directory(settings(tmp_path / "p", ""))
    place.mkdir(parents=True)
    (place / "supervisor.lock").touch()
    for text in (
        "",
        "{",
        "[]",
        '{"pid": 1}',
        '{"pid":1,"jvm":1,"port":1,"token":"","started_at":0}',
    ):
        (place / "server.json").write_text(text)
        assert find_server(place) is None


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("local[*]", "local\\u005b*\\u005d"),
        ("-Da=b c\\d", "-Da\\u003db\\u0020c\\u005cd"),
        ("é\n😀", "\\u00e9\\u000a\\ud83d\\ude00"),
    ],
)
def test_any_text_is_escaped_for_java_properties(text: str, escaped: str) -> None:
    assert _escaped(text) == escaped


def test_missing_packages_are_reported_with_the_install_command(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(SettingsError, match=r"pip install persist-assets\[connect\]"):
        create_session(settings(tmp_path / "p", ""))
    assert not home.exists()


@pytest.fixture
def used(tmp_path: Path) -> Iterator[Path]:
    """The state of a server that this process uses."""
    place = tmp_path / "state"
    (place / "clients").mkdir(parents=True)
    (place / "jobs").mkdir()
    mark = FileLock(place / "clients" / uuid.uuid4().hex)
    with mark:
        _IN_USE[place] = mark
        yield place
        del _IN_USE[place]
    assert list_jobs(place) == []  # no process uses it any more


def stages(tasks: int, completed: int) -> list[SimpleNamespace]:
    """Return the progress of a job as reported by Spark's client."""
    return [SimpleNamespace(num_tasks=tasks, num_completed_tasks=completed)]


@pytest.mark.proves("S27")
def test_a_waiting_job_is_listed_and_reported_once(used: Path) -> None:
    now, warned = [1000.0], list[Job]()
    jobs = Jobs("/project", used, warned.append, clock=lambda: now[0])
    jobs(stages(4, 0), 2, "a", False)
    jobs(stages(8, 0), 0, "b", False)
    for _ in range(16):
        now[0] += 2
        jobs(stages(4, 1), 2, "a", False)
        jobs(stages(8, 0), 0, "b", False)
    assert [(job.operation, job.tasks, job.waits_since) for job in warned] == [("b", 8, 1000.0)]
    listed = [(j.operation, j.pid, j.project, j.started_at, j.running) for j in list_jobs(used)]
    assert listed == [
        ("a", os.getpid(), "/project", 1000.0, 2),
        ("b", os.getpid(), "/project", 1000.0, 0),
    ]
    jobs(stages(8, 1), 1, "b", False)
    assert [job.waits_since for job in list_jobs(used)] == [None, None]
    jobs(None, 0, "a", True)
    jobs(None, 0, "never told of", True)
    assert [job.operation for job in list_jobs(used)] == ["b"]
    assert count_clients(used) == 1


@pytest.mark.proves("S27")
def test_a_server_with_only_waiting_jobs_is_stopped(used: Path) -> None:
    now = [1.0]
    jobs = Jobs("/project", used, lambda _: None, clock=lambda: now[0])
    jobs(stages(4, 0), 0, "waits", False)
    jobs(stages(4, 0), 1, "runs", False)
    now[0] = 300
    for _ in range(10):  # the other job uses the cores
        jobs(stages(4, 0), 0, "waits", False)
    jobs(None, 0, "runs", True)
    (used / "server.json").write_text("{}")
    for _ in range(4):
        jobs(stages(4, 0), 0, "waits", False)
    assert (used / "server.json").exists()
    with pytest.raises(StorageError, match="cancelled jobs occupied all of its cores"):
        jobs(stages(4, 0), 0, "waits", False)
    assert not (used / "server.json").exists()


def test_jobs_on_an_external_server_are_not_recorded(tmp_path: Path) -> None:
    now, warned = [0.0], list[Job]()
    jobs = Jobs("/project", None, warned.append, clock=lambda: now[0])
    for now[0] in (1.0, 50.0, 500.0):
        jobs(stages(4, 0), 0, "a", False)
    assert len(warned) == 1
    assert not [*tmp_path.iterdir()]
