"""Several processes share a ledger, on both databases: no update is lost, doubled or mixed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import hammer
import pytest
from test_ledger import a_build, publish

from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from pathlib import Path

Open = Callable[..., Ledger]
STAGES = 5


@pytest.mark.slow
@pytest.mark.proves("P11")
def test_eight_concurrent_processes_lose_no_updates_and_build_nothing_twice(
    ledger_url: str, tmp_path: Path
) -> None:
    outcome = hammer.hammer(ledger_url, tmp_path, seconds=3.0)
    hammer.check(ledger_url, tmp_path, outcome)
    for kind in ("built", "reused", "rebuilt", "failed", "promoted", "rolled back", "tallied"):
        assert outcome.done[kind], f"nothing was {kind}"


def stages(ledger: Ledger) -> None:
    """Publish two tables in each of several environments, both with the environment's version."""
    uid = 0
    for stage in range(STAGES):
        for name in ("left", "right"):
            uid += 1
            build = replace(a_build(str(uid), name), environment=f"stage{stage}")
            publish(ledger, build, version=stage)


MOVES = """
import json, random, sys
from persist_assets.core.errors import ConflictError
from persist_assets.ledger.ledger import Ledger
ledger, times, n = Ledger(sys.argv[1]), int(sys.argv[2]), 0
chance = random.Random(int(sys.argv[3]))
decided = {e: ledger.manifests.fetch(e) for e in ledger.manifests.fetch_environments() if e != "prod"}
print("ready", flush=True)
sys.stdin.readline()
while n < times:
    history = ledger.manifests.fetch_history("prod", limit=8)
    try:
        if history and chance.random() < 0.5:
            to = chance.choice([0, *(c.change_id for c in history[1:])])
            ledger.manifests.roll_back("prod", to, expected=history[0].change_id)
        else:
            stage = chance.choice(sorted(decided))
            ledger.manifests.promote((stage,), "prod", decided[stage])
        n += 1
    except ConflictError:
        pass
ledger.close()
print(json.dumps({"n": n}))
"""


def moving(url: str, times: int, n: int) -> list[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", MOVES, url, str(times)]
    running = [
        subprocess.Popen([*command, str(i)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for i in range(n)
    ]
    hammer.wait_until_ready(running)
    return running


@pytest.mark.slow
def test_readers_see_consistent_manifests_during_concurrent_promotions_and_rollbacks(
    open_ledger: Open, ledger_url: str
) -> None:
    ledger = open_ledger()
    stages(ledger)
    running = moving(ledger_url, times=50, n=4)
    hammer.go(running)
    seen: list[int | None] = []
    while any(process.poll() is None for process in running):
        manifest = ledger.manifests.fetch("prod")
        versions = {s.version for s in manifest.values()}
        assert (len(manifest), len(versions)) in ((0, 0), (2, 1)), "a mixed state"
        seen += versions or {None}
    hammer.finish(running, 10)
    assert len({*seen}) > 2, f"{len(seen)} times the same"
    history = ledger.manifests.fetch_history("prod")
    assert len(history) == 200
    assert {c.kind for c in history} == {"promote", "rollback"}
    hammer.replay(ledger, ledger.events.fetch())


@pytest.mark.slow
def test_two_concurrent_promotions_are_applied_one_after_the_other(
    open_ledger: Open, ledger_url: str
) -> None:
    ledger = open_ledger()
    stages(ledger)
    running = [*moving(ledger_url, times=1, n=1), *moving(ledger_url, times=1, n=1)]
    hammer.go(running)
    assert hammer.finish(running, 60) == [{"n": 1}] * 2
    second, first = ledger.manifests.fetch_history("prod")
    assert {m.build_id: m.after for m in first.moves} == {
        m.build_id: m.before for m in second.moves
    }
    hammer.replay(ledger, ledger.events.fetch())


PUBLISHES = """
import json, sys
sys.path[:0] = json.loads(sys.argv[2])
from test_ledger import a_build, publish
from persist_assets.ledger.ledger import Ledger
ledger = Ledger(sys.argv[1])
print("ready", flush=True)
version = 0
for line in sys.stdin:  # one publication for each: neither of the two processes starves
    version += 1
    publish(ledger, a_build(str(version)), version)
ledger.close()
print(json.dumps({"n": version}))
"""


def test_a_promotion_applies_exactly_the_decided_manifest_or_is_refused(
    open_ledger: Open, ledger_url: str
) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("0"), 0)
    paths = json.dumps([p for p in sys.path if "tests" in p])
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHES, ledger_url, paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    done = {"promoted": 0, "refused": 0}
    until = time.monotonic() + 60
    while done["promoted"] < 5 or not done["refused"]:
        assert time.monotonic() < until, done
        hammer.go([process])
        decided = ledger.manifests.fetch("dev")
        try:
            change = ledger.manifests.promote(("dev",), "prod", decided)
        except hammer.ConflictError as error:
            assert "changed while it was being promoted" in error.message
            done["refused"] += 1
            continue
        (latest,) = ledger.manifests.fetch_history("prod", limit=1)
        assert (latest.change_id, {m.build_id: m.after for m in latest.moves}) == (change, decided)
        done["promoted"] += 1
    (published,) = hammer.finish([process], 10)  # closes its input, which ends it
    assert ledger.manifests.fetch("dev")["build-a"].version == published["n"]
    hammer.replay(ledger, ledger.events.fetch(limit=1_000_000))
