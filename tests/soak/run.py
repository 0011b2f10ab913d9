"""A soak: two deployments work for minutes while everything is killed; in the end all must be right.

`make soak` runs it. `PERSIST_SOAK_SEED` chooses everything that happens; what it meets when is up to
the machine. As a script: `python -m soak.run [MINUTES]`.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from soak.actions import Actions
from soak.followers import Follower
from soak.invariants import build_all, check_end, check_quiet, check_readers, heal
from soak.world import ENVIRONMENTS, ROOT, World

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET_EVERY_S = 75.0


def main() -> int:
    minutes = float(sys.argv[1] if len(sys.argv) > 1 else "5")
    seed = int(os.environ.get("PERSIST_SOAK_SEED") or random.randrange(10**6))
    base = ROOT / ".persist" / "soak" / str(seed)
    shutil.rmtree(base, ignore_errors=True)
    print(f"PERSIST_SOAK_SEED={seed}; steps are in {base}/steps.log", flush=True)
    base.mkdir(parents=True)
    logging.basicConfig(filename=base / "soak.log")  # what the process itself meets of faults
    world = soak(base, seed, seconds=minutes * 60)
    print(summary(world))
    if not world.violations:
        for path in base.iterdir():
            if path.name != "steps.log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return 1 if world.violations else 0


def soak(
    base: Path, seed: int, *, seconds: float, steps: int | None = None, is_brief: bool = False
) -> World:
    """Let two deployments work for so long, or for so many steps, and look what came of it.

    Parameters
    ----------
    base
        A directory that may be filled: projects, logs and tables.
    is_brief
        Look in the end at one environment, and not at what is left over.
    """
    world = World(base, seed)
    try:
        _work(world, seconds, steps, is_brief=is_brief)
    finally:
        world.close()
    return world


def _work(world: World, seconds: float, steps: int | None, *, is_brief: bool) -> None:
    followers = [Follower(world, deployment) for deployment in world.deployments]
    heal(world)
    for follower in followers:
        follower.start()
    build_all(world, ["prod"] if is_brief else ENVIRONMENTS)
    seen = world.base / "seen.jsonl"
    try:
        with _reading(world, seen) as readers:
            _happen(world, seconds, steps)
            if is_brief:
                check_quiet(world, environments=["prod"])
            else:
                check_quiet(world)
                check_end(world)
            if readers.poll() is not None:
                world.violate(f"the readers ended with {readers.returncode}")
    finally:
        for follower in followers:
            follower.stop()
    for follower in followers:
        world.done["events followed"] += follower.n_events
        world.done["pages of events of services"] += follower.n_pages
        world.done["pages missed for trims"] += follower.n_restarts
        world.done["snapshots gone before they were read"] += sum(follower.lost.values())
    check_readers(world, seen, {f.deployment.name: f.digests for f in followers})


@contextmanager
def _reading(world: World, seen: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Let readers read all tables under fixed names until the block ends."""
    places = [
        f"{d.published}/{d.name}/{table.name}"
        for d in world.deployments
        for table in d.texts.tables
    ]
    script = str(Path(__file__).with_name("readers.py"))
    os.environ["SOAK_ENDPOINT"] = world.proxy.url
    with subprocess.Popen([sys.executable, script, str(seen), *places], stdin=-1) as readers:
        try:
            yield readers
        finally:
            assert readers.stdin is not None
            readers.stdin.close()


def _happen(world: World, seconds: float, steps: int | None) -> None:
    """Let things happen, and all be quiet from time to time."""
    actions, n = Actions(world), 0
    end = time.monotonic() + seconds
    quiet_at = time.monotonic() + QUIET_EVERY_S
    while time.monotonic() < end and (steps is None or n < steps):
        if time.monotonic() > quiet_at and time.monotonic() < end - QUIET_EVERY_S / 3:
            actions.settle()
            check_quiet(world, environments=["prod"])
            quiet_at = time.monotonic() + QUIET_EVERY_S
        actions.step()
        n += 1
        threading.Event().wait(world.chance.uniform(0.05, 0.6))
    actions.settle()


def summary(world: World) -> str:
    """Return the figures of a soak."""

    def listed(counted: Counter[str]) -> str:
        return ", ".join(f"{n} {what}" for what, n in sorted(counted.items())) or "none"

    lines = [
        f"seed {world.seed}, {time.monotonic() - world.began:.0f} s",
        f"steps: {listed(world.done)}",
        f"kills: {world.kills.total()}: {listed(world.kills)}",
        f"faults: {listed(world.faults)}",
        f"violations: {len(world.violations)}",
        *(f"  {text[:2000]}" for text in world.violations[:30]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
