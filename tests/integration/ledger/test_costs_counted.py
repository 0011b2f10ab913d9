"""The costs of builds, in SQLite and PostgreSQL and on the command line."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import persist, printed

from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.collection import INTERRUPTED
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOW = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    opened = Ledger(ledger_url, clock=lambda: NOW + timedelta(seconds=100))
    yield opened
    opened.close()


@pytest.mark.proves("Y1")
def test_work_is_filtered_by_environment_and_time(ledger: Ledger) -> None:
    def fail(uid: str, second: int, error: str, env: str = "dev") -> None:
        at = NOW + timedelta(seconds=second)
        build = Build(uid, f"s-{uid}", "i", "d", env, None, "started", "built", at)
        ledger.builds.record_started(build, "t")
        ledger.builds.record_failed(build, error)

    fail("a", 0, "x")
    fail("b", 10, INTERRUPTED)
    fail("c", 20, "x", env="prod")
    fail("d", 60, "x")
    work = ledger.costs.fetch_work("dev", NOW, NOW + timedelta(seconds=60))
    assert [(w.source_id, w.run, w.outcome) for w in work] == [
        ("s-a", "a", "failed"),
        ("s-b", "b", "failed"),
    ]
    assert [w.ended_at for w in work] == [NOW + timedelta(seconds=100), None]


@pytest.mark.proves("Y1")
def test_work_includes_all_builds_of_a_run(ledger: Ledger) -> None:
    """They share the cost of the run, whenever they started."""
    for uid, second, run in (("a", -90_000, "r"), ("b", 10, "r"), ("c", -10, "other")):
        at = NOW + timedelta(seconds=second)
        build = Build(uid, f"s-{uid}", "i", "d", "dev", run, "started", "built", at)
        ledger.builds.record_started(build, "t")
        ledger.builds.record_failed(build, "x")
    work = ledger.costs.fetch_work("dev", NOW, NOW + timedelta(seconds=60))
    assert [w.source_id for w in work] == ["s-a", "s-b"]


@pytest.mark.proves("Y3")
def test_build_times_are_counted_by_method_in_buckets(ledger: Ledger) -> None:
    for n, (method, seconds) in enumerate(
        [("whole", 0.5), ("whole", 1.0), ("whole", 7.0), ("merge", 2.0)]
    ):
        at = NOW + timedelta(seconds=n)
        build = Build(f"b{n}", "s", f"i{n}", "d", "dev", None, "started", "built", at)
        ledger.builds.record_started(build, "t")
        done = replace(build, maintenance=method, computed_s=seconds)
        snapshot = Snapshot(f"b{n}", "s", f"i{n}", "t", n, (), "3:a", 3, 300, at)
        ledger.builds.publish(Publication(done, snapshot, []))
    times = ledger.costs.count_times("dev", (1.0, 5.0))
    assert times == {"whole": ([2, 0, 1], 8.5), "merge": ([0, 1, 0], 2.0)}
    assert ledger.costs.count_times("prod", (1.0,)) == {}


TEXT = """
CREATE TABLE t (id INT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW v AS SELECT id FROM t;
--@ persist
CREATE VIEW bad AS SELECT 1 / (id - id) AS x FROM t;
"""
PRICES = """
[cost]
currency = "EUR"
compute_hour = 3600
gb_written = 1_000_000_000.0
gb_month = 1.5
"""


@pytest.mark.slow
@pytest.mark.proves("Y1")
def test_the_cost_command_prices_builds(make_shared_project: Callable[..., Path]) -> None:
    root = make_shared_project({"m.sql": TEXT}, PRICES)
    (root / "raw").mkdir()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), root / "raw" / "a.parquet")

    def costs_json(*arguments: str) -> Any:
        return printed(persist("cost", *arguments, "--json", cwd=root))

    assert costs_json()["days"] == []
    assert persist("build", cwd=root).returncode == 1
    assert persist("build", "v", cwd=root).returncode == 0
    document = costs_json()
    lines = {line["asset_key"]: line for line in document["days"]}
    built, failed = lines["m/v"], lines["m/bad"]
    assert (built["built"], built["reused"], built["failed"]) == (1, 0, 0)
    assert (failed["built"], failed["failed"]) == (0, 1)
    size = built["bytes_written"]
    assert size > 0 and failed["bytes_written"] == 0
    assert built["money"] == pytest.approx(built["compute_seconds"] + size, rel=1e-6)
    assert failed["money"] == pytest.approx(failed["compute_seconds"]) and failed["seconds"] > 0
    assert document["total"]["money"] == pytest.approx(built["money"] + failed["money"])
    assert [x["asset_key"] for x in costs_json("v")["days"]] == ["m/v"]
    shown = persist("cost", "--by", "source", cwd=root).stdout
    assert "EUR" in shown and "m/bad" in shown and "total: 2 builds" in shown
    assert costs_json("--to", "2020-01-01")["days"] == []
    wrong = persist("cost", "--from", "yesterday", cwd=root)
    assert wrong.returncode == 2 and "is not a date" in wrong.stderr
