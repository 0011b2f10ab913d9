"""Dagster's home directory: concurrent first use, detection of damage, repair."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from commands import clean_environ

from persist_assets.operations.doctor import examine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AT_ONCE = """
import os, sys, traceback
import dagster as dg
from persist_assets.plugin.runs import open_instance
from persist_assets.core.settings.load import load_settings
from pathlib import Path
settings = load_settings(Path(sys.argv[1]))
reader, writer = os.pipe()
children = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent closes its end
        try:
            with open_instance(settings) as instance:
                instance.get_runs(limit=1)
                instance.all_asset_keys()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(pid)
os.close(writer)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


def revisions(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    return sorted(revision for (revision,) in found)


def databases(root: Path) -> list[Path]:
    home = root / ".persist" / "dagster"
    return [home / "history" / "runs.db", home / "history" / "runs" / "index.db"]


@pytest.mark.slow
@pytest.mark.proves("S23")
def test_processes_can_initialize_a_dagster_home_concurrently(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({})
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE, str(root), "8"],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert [len(revisions(database)) for database in databases(root)] == [1, 1]


@pytest.mark.slow
@pytest.mark.proves("S23")
def test_doctor_finds_and_repairs_a_home_with_two_revisions(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"m.sql": "CREATE VIEW v AS SELECT 1 AS a"})
    open_once = [sys.executable, "-c", AT_ONCE, str(root), "1"]
    env = clean_environ()
    done = subprocess.run(open_once, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    runs = databases(root)[0]
    (head,) = revisions(runs)
    with closing(sqlite3.connect(runs)) as connection:
        connection.execute("INSERT INTO alembic_version VALUES ('16e3655b4d9b')")
        connection.commit()
    assert len(revisions(runs)) == 2
    broken = subprocess.run(open_once, env=env, capture_output=True, text=True, timeout=180)
    assert broken.returncode == 1
    assert "persist doctor --fix" in broken.stderr
    found = [f for f in examine(root).findings if f.code == "dagster-home"]
    assert [str(runs) in f.message for f in found] == [True]
    assert len(revisions(runs)) == 2
    (found,) = [f for f in examine(root, fix=True).findings if f.code == "dagster-home"]
    assert (found.severity, json.dumps(revisions(runs))) == ("note", json.dumps([head]))
    assert not [f for f in examine(root).findings if f.code == "dagster-home"]
    done = subprocess.run(open_once, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
