"""Copies of external tables through long random histories and killed processes.

Run it with `make nightly`; `PERSIST_NIGHTLY_SEED` is the first seed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from conftest import drawn_seed, wait_for
from ingesting import DeltaLake, DirectoryLake, IcebergLake, Life

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

LIVES, ROUNDS, KILLS = 25, 8, 12
BUILDS = """
import sys
from pathlib import Path
from persist_assets.building.builder import Builder
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.compiler.load import load_project, require
from persist_assets.engine.session import create_session
from persist_assets.core.settings.load import load_settings

settings = load_settings(Path(sys.argv[1]))
engine = SparkEngine(settings, lambda: create_session(settings))
engine.session
print("ready", flush=True)
sys.stdin.readline()
builder = Builder(settings, require(load_project(settings)), Ledger(settings.ledger), engine)
for source in builder.project.persisted:
    with builder.work(source) as work:
        builder.publish(work)
print("done", flush=True)
"""


@pytest.mark.proves("F19", "F23", "F24", "F25")
def test_copies_stay_correct_through_random_histories(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    seed = drawn_seed()
    steps = deaths = 0
    for number in range(LIVES):
        rng = random.Random(seed + number)
        of = rng.choice([DeltaLake, IcebergLake, DirectoryLake])
        keyed = rng.random() < 0.5
        life = Life(make_project({}, name=f"life{number}"), enter, rng, of, keyed=keyed)
        found = life.live(ROUNDS, dying=0.4)
        steps, deaths = steps + found[0], deaths + found[1]
    print(f"{LIVES} lives, {steps} steps, {deaths} deaths, {LIVES * ROUNDS} times compared")


def _has_come(copies: Path, kind: str, before: set[Path], running: subprocess.Popen[str]) -> bool:
    new = {p for p in copies.rglob(f"*{kind}") if p.is_file()} - before
    return bool(new) or running.poll() is not None


@pytest.mark.proves("F23")
def test_copies_stay_correct_when_processes_are_killed(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    seed = drawn_seed()
    rng = random.Random(seed)
    life = Life(make_project({}), enter, rng)
    life.build()
    killed = 0
    for number in range(KILLS):
        life.step("program")
        for kind in ("append", "update", "merge"):
            life.step(kind)
        copies = life.root / ".persist" / "warehouse" / ".external"
        before = {p for p in copies.rglob("*") if p.is_file()}
        running = subprocess.Popen(
            [sys.executable, "-c", BUILDS, str(life.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.stdin.write("go\n")
        running.stdin.flush()
        kind = ".parquet" if number % 2 else ".json"  # files that are written, and commits
        wait_for(partial(_has_come, copies, kind, before, running))
        killed += running.poll() is None
        running.send_signal(signal.SIGKILL)
        running.communicate()
        life.build()
        life.check()
    print(f"{killed} of {KILLS} processes killed")
    assert killed > KILLS // 2
