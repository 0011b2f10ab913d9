"""Queries over many builds and wants of the ledger, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.snapshots import Build
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.processes import THIS_MACHINE
from persist_assets.ledger.tables import builds

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger(ledger_url)
    yield opened
    opened.close()


def start(ledger: Ledger, uid: str, run: str | None, second: int, env: str = "dev") -> Build:
    at = NOW + timedelta(seconds=second)
    build = Build(uid, f"s-{uid}", "i", "d", env, run, "started", "built", at)
    ledger.builds.record_started(build, "t")
    return build


@pytest.mark.proves("W24")
def test_runs_count_all_their_builds_and_are_paged_by_start_time(ledger: Ledger) -> None:
    for n in range(5):
        ledger.builds.record_failed(start(ledger, f"a{n}", "a", 10 * n), "x")
        ledger.builds.record_failed(start(ledger, f"b{n}", "b", 10 * n), "x")
    start(ledger, "b5", "b", 60)
    alone = start(ledger, "alone", None, 20)
    ledger.builds.record_failed(alone, "x")
    start(ledger, "elsewhere", "c", 20, env="prod")
    runs = ledger.runs.fetch("dev")
    assert [r.name for r in runs] == ["alone", "a", "b"]
    assert [dict(r.counts) for r in runs] == [
        {"failed": 1},
        {"failed": 5},
        {"failed": 5, "started": 1},
    ]
    assert runs[1].sources == ("s-a0", "s-a1", "s-a2") and runs[1].seconds is not None
    assert runs[2].finished_at is None
    pages: list[str] = []
    before = None
    while page := ledger.runs.fetch("dev", before=before, limit=1):
        pages += [r.name for r in page]
        before = page[-1].started_at, page[-1].name
    assert pages == ["alone", "a", "b"]
    with ledger.events.database.write() as connection:
        gone = builds.update().values(process=f"{THIS_MACHINE}:{2**22 + 1}")
        connection.execute(gone.where(builds.c.build_uid == "b5"))
    assert ledger.runs.fetch_dead("dev") == {"b5"}
    over = ledger.runs.fetch("dev")[2]
    assert dict(over.counts) == {"failed": 6} and over.finished_at is not None


@pytest.mark.proves("W24")
def test_the_latest_build_of_a_source_is_its_last_one_that_ended(ledger: Ledger) -> None:
    for n, uid in enumerate(("z", "y", "x")):
        build = Build(
            uid, "s", "i", "d", "dev", "r", "started", "built", NOW + timedelta(0, n // 2)
        )
        ledger.builds.record_started(build, "t")
        ledger.builds.record_failed(build, uid, checks=[CheckResult(uid, True, True, 0, uid)])
    start(ledger, "going", "r", 99)
    assert {s: b.build_uid for s, b in ledger.builds.fetch_last("dev").items()} == {"s": "x"}
    assert ledger.builds.fetch_last("dev", source_id="other") == {}
    results = ledger.runs.fetch_checks("s", ["x", "z"])
    assert {uid: [r.name for r in of] for uid, of in results.items()} == {"x": ["x"], "z": ["z"]}


def test_a_partition_is_as_overdue_as_its_most_overdue_want(ledger: Ledger) -> None:
    def want(name: str, days: int, env: str = "dev") -> Want:
        at = NOW - timedelta(days=days)
        return Want(name, "p", env, NOW, data_timestamp=at, sla_s=0)

    ledger.wants.create([want("a", 1), want("b", 3), want("c", -1), want("d", 9, "prod")])
    ledger.wants.create([want("e", 5)])
    ledger.wants.cancel("e", by="me", why=None)
    assert ledger.wants.fetch_deadlines("dev") == {"p": NOW - timedelta(days=3)}
    assert ledger.wants.fetch_deadlines("dev", want_ids=["c", "e"]) == {
        "p": NOW + timedelta(days=1)
    }
    assert ledger.wants.find_miss("a") is None
