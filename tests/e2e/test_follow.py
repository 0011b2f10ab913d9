"""`persist follow` as a process: batches as data grows, failures and signals."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from following import SOURCES, kill_while_data_grows, put, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.proves("P28")
def test_killed_followers_neither_lose_nor_duplicate_rows(
    make_project: Callable[..., Path],
) -> None:
    kill_while_data_grows(make_project({"m.sql": SOURCES}), seconds=0, kills=1, seed=5)


@pytest.mark.slow
def test_a_follower_waits_for_data_and_retries_failed_builds(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"m.sql": SOURCES})
    follower = start(root, "--json")
    assert follower.stdout and follower.stderr

    def batch() -> dict[str, Any]:
        line = follower.stdout and follower.stdout.readline()
        assert line, follower.stderr and follower.stderr.read()
        document = json.loads(line)
        return {
            "published": document["published"],
            **{b["source_id"][0]: (b["action"], b["rows"]) for b in document["builds"]},
        }

    try:
        assert "q waits: t: there is no data at" in follower.stderr.readline()
        assert "r waits: " in follower.stderr.readline()
        put(root, 0)
        assert batch() == {"published": True, "q": ("built", 10), "r": ("built", 7)}
        put(root, 1, [70, None])
        failed = batch()
        assert (failed["published"], failed["q"], failed["r"][0]) == (
            False,
            ("built", 12),
            "failed",
        )
        assert "1 computed rows have no `n`" in follower.stderr.readline()
        assert "r` failed not_null_d" in follower.stderr.readline()
        put(root, 1, [70])
        while not (last := batch())["published"]:
            pass
        assert last["r"] == ("built", 7)
        follower.send_signal(signal.SIGTERM)
        assert follower.wait(30) == 0
    finally:
        follower.kill()
        follower.communicate()


@pytest.mark.slow
def test_a_follower_retries_an_unreachable_ledger(make_project: Callable[..., Path]) -> None:
    settings = 'ledger = "postgresql+psycopg://127.0.0.1:9/none"\n'
    root = make_project({"m.sql": SOURCES}, settings)
    follower = start(root, "--max-failures", "2")
    out, err = follower.communicate(timeout=120)
    assert (follower.returncode, out) == (5, ""), err
    assert err.count("error: ") == 2
    assert err.count("again in 2 s") == 1


def test_an_interrupt_stops_a_waiting_follower(make_project: Callable[..., Path]) -> None:
    root = make_project({"m.sql": SOURCES})
    follower = start(root)
    try:
        assert follower.stderr
        assert "q waits" in follower.stderr.readline()
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=30)
        assert follower.returncode == 130, err
    finally:
        follower.kill()
        follower.communicate()


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--interval", "soon"], "`soon` is not a duration"), (["--until-idle", "0"], "`0` is no")],
)
def test_invalid_durations_are_rejected(
    make_project: Callable[..., Path], options: list[str], says: str
) -> None:
    follower = start(make_project({"m.sql": SOURCES}), *options)
    _, err = follower.communicate(timeout=30)
    assert follower.returncode == 2
    assert says in err
