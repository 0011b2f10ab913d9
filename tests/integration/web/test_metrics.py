"""Metrics of sources at `/metrics`."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from growing import ONE, put
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.core.errors import CheckFailedError
from persist_assets.wants.requests import taint
from persist_assets.web.access import Caller
from persist_assets.web.graph import Graph
from persist_assets.web.metrics import show_metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.building.observe import Observer

START = datetime(2024, 6, 1, 12, tzinfo=UTC)
SQL = f"""{ONE}
--@ persist freshness.window="1h"
CREATE VIEW `größe` AS SELECT ts, x FROM t;
--@ persist
--@ check {{ row_count.max=1 }}
CREATE VIEW small AS SELECT ts FROM t;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-04"
CREATE VIEW daily AS SELECT CAST(ts AS DATE) AS day, x FROM t;
"""


def gauges_of(graph: Graph) -> dict[str, dict[str, float]]:
    """Return the values of each gauge, by source."""

    async def ask() -> str:
        answer = await show_metrics(graph, Caller("test", "read"), {})
        await graph.close()
        return answer.body.decode()  # pyright: ignore

    found: dict[str, dict[str, float]] = {}
    for line in asyncio.run(ask()).splitlines():
        match = re.fullmatch(
            r'persist_source_(\w+)\{environment="dev",source="m/(\w+)"\} (\S+)', line
        )
        if match:
            found.setdefault(match[1], {})[match[2]] = float(match[3])
    return found


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("P29")
def test_metrics_report_the_state_of_each_source(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SQL})
    put(root, 0, (0, "a"))
    now = START

    def start() -> Builder:
        return enter(root, clock=lambda: now)

    def metrics(later: timedelta = timedelta()) -> dict[str, dict[str, float]]:
        builder = start()
        clock = lambda: datetime.now(UTC) + later  # noqa: E731
        return gauges_of(Graph(builder.settings, builder.ledger, clock=clock))

    names = {"größe", "small", "daily"}
    before = metrics()
    assert before == {"failed_builds": dict.fromkeys(names, 0), "tainted": dict.fromkeys(names, 0)}
    builder = start()
    for source in builder.project.persisted:
        builder.build(source)
    found = metrics()
    assert found["rows"] == dict.fromkeys(names, 1)
    assert found["failed_builds"] == dict.fromkeys(names, 0)
    builds = {b.source_id: b for b in builder.ledger.builds.fetch_last("dev").values()}
    for name in names:
        ended = builds[f"{name}@sources/m.sql"].finished_at
        assert ended is not None
        assert found["last_success_timestamp_seconds"][name] == pytest.approx(ended.timestamp())
    age = found["age_seconds"]["größe"]
    assert found["late_seconds"] == {"größe": pytest.approx(age - 3600, abs=1)}

    # A failed build keeps the time of the last success; tainted partitions are counted.
    put(root, 1, (1, "b"), (2, "c"))
    small = start()
    with pytest.raises(CheckFailedError):
        small.build(small.project.by_id["small@sources/m.sql"])
    for key in ("2024-01-01", "2024-01-02"):
        taint(start().observer, f"m/daily/{key}", by="test")
    later = metrics()
    assert later["failed_builds"] == {"größe": 0, "daily": 0, "small": 1}
    assert later["tainted"] == {"größe": 0, "daily": 2, "small": 0}
    last = "last_success_timestamp_seconds"
    assert later[last] == found[last]
    assert later["rows"] == found["rows"]

    # Only sources of the project have metrics.
    (root / "sources" / "m.sql").write_text(SQL.replace("small", "tiny"))
    assert metrics()["failed_builds"] == {"größe": 0, "daily": 0, "tiny": 0}
    assert "small" not in str(metrics())


class Counting(Graph):
    """A graph that counts how often it loads the sources."""

    looks = 0

    def observer(self) -> Observer:
        self.looks += 1
        return super().observer()


@pytest.mark.proves("P29")
def test_metrics_requests_share_one_pending_compilation_of_the_sources(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("persist_assets.web.graph._SOON_S", 0.05)
    builder = enter(make_project({"m.sql": SQL}))
    graph = Counting(builder.settings, builder.ledger)

    async def ask() -> None:
        done = threading.Event()
        looking = asyncio.ensure_future(graph.glance(done.wait))
        for _ in range(3):
            answer = await show_metrics(graph, Caller("test", "read"), {})
            assert "persist_source" not in answer.body.decode()  # pyright: ignore
        done.set()
        await looking
        assert await graph.project() is not None
        await graph.close()

    asyncio.run(ask())
    assert graph.looks in (1, 2)  # the pending compilation, or one of its own
