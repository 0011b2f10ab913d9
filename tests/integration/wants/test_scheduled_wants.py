"""Scheduled wants from annotations: one for each ended window, even with several schedulers."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.wants.requests import check_want
from persist_assets.wants.schedules import make_wants, next_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCES = """
CREATE TABLE f (day DATE, o STRING, n INT) USING parquet LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" timezone="Europe/Berlin"
--@ want { sla="9h" ttl="365d" needs=["users:data/users"] }
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist partition { day=weekly o=[a, b] } start="2024-01-01" want { sla="1d" }
CREATE VIEW weekly AS SELECT day, o, n FROM f;
--@ persist want { every=monthly sla="2d" needs=["users:data/all"] }
CREATE VIEW monthly AS SELECT sum(n) AS n FROM f;
--@ persist
CREATE VIEW never AS SELECT max(n) AS n FROM f;
"""


class Graph:
    """A project, its ledger, and a clock that the test sets."""

    def __init__(self, root: Path) -> None:
        self.settings = load_settings(root)
        self.now = datetime(2024, 2, 5, 6, tzinfo=UTC)
        self.ledger = Ledger(self.settings.ledger, clock=lambda: self.now)

    def observer(self) -> Observer:
        project = require(load_project(self.settings))
        return Observer(self.settings, project, self.ledger, clock=lambda: self.now)

    def made(self) -> dict[str, Want]:
        return {w.partition_ref: w for w in make_wants(self.observer(), "a test")}


@pytest.fixture
def graph(make_project: Callable[..., Path]) -> Iterator[Graph]:
    made = Graph(make_project({"m.sql": SOURCES}))
    yield made
    made.ledger.close()


@pytest.mark.proves("D4")
def test_one_want_is_created_for_each_window_that_has_ended(graph: Graph) -> None:
    made = graph.made()
    weekly = {"m/weekly/2024-01-29|a", "m/weekly/2024-01-29|b"}
    assert made.keys() == {"m/daily/2024-02-04", *weekly, "m/monthly"}
    daily, monthly = made["m/daily/2024-02-04"], made["m/monthly"]
    assert daily.data_timestamp == datetime(2024, 2, 4, 23, tzinfo=UTC)  # midnight in Berlin
    assert daily.deadline == datetime(2024, 2, 5, 8, tzinfo=UTC)
    assert daily.expires_at == graph.now + timedelta(days=365)
    assert daily.external_dependencies == ("users:data/users/2024-02-04",)
    assert daily.source["type"] == "schedule"
    assert monthly.data_timestamp == datetime(2024, 2, 1, tzinfo=UTC)
    assert monthly.external_dependencies == ("users:data/all/2024-01-01",)
    assert graph.made() == {}
    graph.now = datetime(2024, 2, 5, 22, 59, 59, tzinfo=UTC)
    assert graph.made() == {}
    assert next_window(graph.observer()) == datetime(2024, 2, 5, 23, tzinfo=UTC)
    graph.now += timedelta(seconds=1)
    assert graph.made().keys() == {"m/daily/2024-02-05"}


def test_wants_of_missed_windows_are_created_later(graph: Graph) -> None:
    graph.made()
    graph.now += timedelta(days=7)
    named = [f"m/daily/2024-02-{n:02}" for n in range(5, 12)]
    weekly = ["m/weekly/2024-02-05|a", "m/weekly/2024-02-05|b"]
    assert sorted(graph.made()) == sorted([*named, *weekly])


def test_concurrent_schedulers_create_each_want_once(graph: Graph) -> None:
    builders = [graph.observer() for _ in range(4)]
    threads = [threading.Thread(target=make_wants, args=(b, "x")) for b in builders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    created = [e for e in graph.ledger.events.search()[0] if e.kind == "want-created"]
    assert len(created) == 4


def test_a_changed_annotation_applies_from_the_next_window(graph: Graph) -> None:
    graph.made()
    path = graph.settings.root / "sources" / "m.sql"
    path.write_text(path.read_text().replace('"9h"', '"10h"'))
    assert graph.made() == {}
    graph.now += timedelta(days=1)
    (want,) = graph.made().values()
    assert want.sla_s == 36_000


def test_a_longer_cadence_loses_no_window(graph: Graph) -> None:
    path = graph.settings.root / "sources" / "m.sql"
    text = path.read_text()
    path.write_text(text.replace("every=monthly", "every=daily"))
    assert "m/monthly" in graph.made()
    path.write_text(text)
    assert "m/monthly" not in graph.made()
    graph.now = datetime(2024, 3, 1, 1, tzinfo=UTC)
    assert graph.made()["m/monthly"].data_timestamp == datetime(2024, 3, 1, tzinfo=UTC)


def test_no_other_want_takes_the_id_of_a_scheduled_one(graph: Graph) -> None:
    observer = graph.observer()
    want = Want("dev:m/daily@9", "m/monthly", "dev", graph.now)
    with pytest.raises(SettingsError, match="reserved for wants of annotations"):
        check_want(observer, want)


@pytest.mark.proves("V59")
def test_another_time_zone_does_not_end_the_wants_of_a_source(graph: Graph) -> None:
    """A zone further west: its first window ends later than the last one, under the same ID."""
    graph.made()
    path = graph.settings.root / "sources" / "m.sql"
    path.write_text(path.read_text().replace("Europe/Berlin", "America/New_York"))
    graph.now += timedelta(days=1)
    assert graph.made().keys() == {"m/daily/2024-02-05"}
    graph.now += timedelta(days=1)
    assert graph.made().keys() == {"m/daily/2024-02-06"}


@pytest.mark.proves("V59")
def test_a_wrong_clock_leaves_no_window_without_a_want(graph: Graph) -> None:
    """Wants that a process made early count once their windows have ended."""
    graph.made()
    graph.now += timedelta(days=3)
    early = {w.want_id for w in make_wants(graph.observer(), "a test")}
    assert len(early) == 3
    graph.now -= timedelta(days=3)
    now = {w.want_id for w in graph.ledger.wants.fetch_active("dev", graph.now)}
    assert early.isdisjoint(now)
    graph.now += timedelta(days=1)
    later = {w.want_id for w in graph.ledger.wants.fetch_active("dev", graph.now)}
    assert len(early & later) == 1
    graph.now += timedelta(days=3)
    assert graph.made().keys() == {"m/daily/2024-02-08"}
