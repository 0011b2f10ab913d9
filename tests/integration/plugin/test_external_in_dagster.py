"""External tables in Dagster: metadata of their assets, and builds that follow their versions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from deltalake import DeltaTable, write_deltalake
from test_wants_in_dagster import Location

from persist_assets.core.wants import Want
from persist_assets.operations.watch import Watch
from persist_assets.wants.requests import evaluate_now, run_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

TABLE = """
create external table events (
  id bigint not null, category string, n int, ts timestamp
) with ('connectors' = '[{"transport": {
  "name": "delta_table_input", "config": {"uri": "lake/events"}
}}]');
"""
SOURCES = f"""{TABLE}
--@ persist
create view invoices as select id, n from events where category = 'invoices';
--@ persist
create view odd as select id from invoices where n % 2 = 1;
--@ persist
create view young as
select id, ts from events where category = 'loans' and ts >= NOW() - 6 months;
"""
EVENTS, INVOICES = (dg.AssetKey(["m", n]) for n in ("events", "invoices"))
NOW = datetime.now(UTC)


def put(root: Path, *rows: tuple[int, str, int], days: int = 1) -> str:
    """Append rows to the external table, and return the name of its new version."""
    at = [NOW - timedelta(days=days)] * len(rows)
    table = pa.table(
        {
            "id": pa.array([r[0] for r in rows], pa.int64()),
            "category": [r[1] for r in rows],
            "n": pa.array([r[2] for r in rows], pa.int32()),
            "ts": pa.array(at, pa.timestamp("us", "UTC")),
            "unused": ["much"] * len(rows),
        }
    )
    write_deltalake(str(root / "lake" / "events"), table, mode="append")
    lake = DeltaTable(str(root / "lake" / "events"))
    log = root / "lake" / "events" / "_delta_log" / f"{lake.version():020}.json"
    told = sha256(log.read_bytes()).hexdigest()[:12]
    return f"delta:{lake.version()}:{lake.metadata().id}:{told}"


def ids(builder: Builder, name: str) -> list[int]:
    """Return the ids that readers of a source see."""
    return sorted(r.id for r in builder.read(builder.project.by_key["m", name]).collect())


class Daemon:
    """A stand-in for Dagster's daemon that evaluates the sensor of stale sources."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions, self.instance = definitions, instance
        self.seen: set[str | None] = set()

    def turn(self) -> list[dg.RunRequest]:
        sensor = self.definitions.resolve_sensor_def("persist_stale")
        given = {"instance": self.instance, "definitions": self.definitions}
        with dg.build_sensor_context(**given) as context:
            found = sensor.evaluate_tick(context).run_requests or ()
        new = [r for r in found if r.run_key not in self.seen]
        self.seen |= {r.run_key for r in new}
        return new

    def run(self, request: dg.RunRequest) -> dict[str, str]:
        """Execute a run request, and return the action for each asset."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(
            instance=self.instance,
            asset_selection=request.asset_selection,
            tags=dict(request.tags),
            raise_on_error=False,
        )
        assert done.success
        events = done.get_asset_materialization_events()
        return {
            e.asset_key.path[-1]: str(e.materialization.metadata["action"].value) for e in events
        }

    def obey(self) -> dict[str, str]:
        """Execute run requests until there are none, each asset once; return their actions."""
        found: dict[str, str] = {}
        while requests := self.turn():
            for request in requests:
                told = self.run(request)
                assert not {*told} & {*found}, "it is built again without need"
                found |= told
        return found

    def told(self) -> tuple[str, dict[str, Any]]:
        """Return the data version of the external table, and its metadata."""
        (record,) = self.instance.fetch_materializations(EVENTS, limit=1).records
        event = record.asset_materialization
        assert event is not None
        assert event.tags is not None
        metadata = {k: v.value for k, v in event.metadata.items()}
        return event.tags["dagster/data_version"], metadata

    def held(self) -> dict[str, Any]:
        """Return the metadata that the last run reported for the copy."""
        (record,) = self.instance.fetch_observations(EVENTS, limit=1).records
        event = record.asset_observation
        assert event is not None
        return {k: v.value for k, v in event.metadata.items()}

    def stale(self) -> set[str]:
        graph = self.definitions.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(
            self.instance, graph, LoadingContextForTest(self.instance)
        )
        keys = graph.materializable_asset_keys
        return {k.path[-1] for k in keys if resolver.get_status(k) is not StaleStatus.FRESH}


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    return make_project({"m.sql": SOURCES})


def test_the_asset_of_an_external_table_shows_the_rows_that_sources_need(
    root: Path, load: Callable[..., dg.Definitions]
) -> None:
    graph = load(root).resolve_asset_graph()
    events = graph.get(EVENTS)
    assert graph.external_asset_keys == {EVENTS}
    assert events.kinds == {"delta"}
    metadata = {k: getattr(v, "value", v) for k, v in events.metadata.items()}
    assert metadata["dagster/uri"] == str(root / "lake" / "events")
    assert metadata["connector"] == "delta_table_input"
    needed = metadata["needed"].splitlines()[2:]
    assert [line.split(" | ")[0] for line in needed] == [
        "| [invoices](/assets/m/invoices)",
        "| [young](/assets/m/young)",
    ]
    assert "'invoices'" in needed[0]
    assert "NOW()" in needed[1].upper() or "CURRENT_TIMESTAMP" in needed[1].upper()


@pytest.mark.slow
def test_the_sensor_follows_new_versions_and_rebuilds_only_affected_sources(
    root: Path,
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    enter: Callable[..., Builder],
) -> None:
    first = put(root, (1, "invoices", 1), (2, "invoices", 2), (3, "deposits", 3), (4, "loans", 4))
    daemon = Daemon(load(root), instance)
    (request,) = daemon.turn()
    assert daemon.told()[0] == first
    assert daemon.told()[1]["version held"] == "none"
    assert daemon.turn() == [], "while a run goes on it is not asked for again"
    assert daemon.run(request) == dict.fromkeys(("invoices", "odd", "young"), "built")
    assert daemon.obey() == {}
    held = daemon.held()
    assert (held["version held"], held["rows held"]) == (first, 3)
    assert "unused" not in held["columns held"]
    assert "'invoices'" in held["coverage"]
    (record,) = instance.fetch_materializations(INVOICES, limit=1).records
    assert record.asset_materialization is not None
    names, _, row = str(record.asset_materialization.metadata["external tables"].value).splitlines()
    told = dict(zip(*(line.strip("| ").split(" | ") for line in (names, row)), strict=True))
    assert (told["table"], told["version"]) == ("`m/events`", f"`{first}`")
    assert told["coverage"] == f"`{held['coverage'].strip('`')}`"
    assert (told["rows held"], told["rows read"], told["rows written"]) == ("3", "3", "3")
    assert told["bytes read"] == f"{held['bytes read']:,}"
    assert (held["rows read"], held["bytes read"] > 0) == (3, True)
    assert (held["rows written"], held["bytes written"]) == (3, held["bytes held"])
    assert daemon.stale() == set()

    # Only rows that no source reads: one run, which rebuilds only the source with a clock.
    second = put(root, (5, "deposits", 5))
    (request,) = daemon.turn()
    assert daemon.told()[0] == second
    assert daemon.stale() == {"invoices", "young"}, "Dagster cannot know better yet"
    assert daemon.run(request) == {"invoices": "reused", "odd": "reused", "young": "built"}
    assert daemon.held()["version held"] == second
    assert (daemon.held()["rows read"], daemon.held()["bytes read"]) == (0, 0)
    assert daemon.obey() == {}
    assert daemon.stale() == set()

    # Rows that only `young` reads: the copy has a new version, the other tables do not.
    put(root, (7, "loans", 7))
    (request,) = daemon.turn()
    assert daemon.run(request) == {"invoices": "reused", "odd": "reused", "young": "built"}

    # Rows that `invoices` and `odd` read.
    put(root, (6, "invoices", 7))
    (request,) = daemon.turn()
    assert daemon.run(request) == {"invoices": "built", "odd": "built", "young": "built"}
    assert daemon.obey() == {}
    assert daemon.stale() == set()
    DeltaTable(str(root / "lake" / "events")).delete("id = 1")
    (request,) = daemon.turn()
    assert daemon.run(request)["invoices"] == "built"
    assert ids(enter(root), "invoices") == [2, 6]


DAILY = f"""{TABLE}
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-04"
create view daily as select date_add(date'2024-01-01', n) as day, count(*) as c
from events where category = 'invoices' group by 1;
"""


@pytest.mark.slow
def test_partitioned_sources_follow_new_versions_of_external_tables(
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    enter: Callable[..., Builder],
) -> None:
    root = make_project({"m.sql": DAILY})
    put(root, (1, "invoices", 0), (2, "invoices", 1), (3, "invoices", 1))
    daemon = Daemon(load(root), instance)
    assert daemon.obey() == {"daily": "built"}
    put(root, (4, "deposits", 2))
    assert daemon.obey() == {"daily": "reused"}
    put(root, (5, "invoices", 2))
    assert daemon.obey() == {"daily": "built"}
    assert daemon.turn() == []
    builder = enter(root)
    found = builder.read(builder.project.by_key["m", "daily"]).collect()
    assert sorted((r.day.day, r.c) for r in found) == [(1, 1), (2, 2), (3, 1)]


@pytest.mark.slow
def test_follow_wakes_only_for_new_versions_of_external_tables(
    root: Path, enter: Callable[..., Builder]
) -> None:
    put(root, (1, "invoices", 1), (2, "loans", 2))
    builder = enter(root)
    chosen = tuple(s.source_id for s in builder.project.persisted)
    watch = Watch(builder.settings, builder.project, chosen)

    def look() -> list[str]:
        due = watch.look(builder.ledger)
        return [s.partition("@")[0] for s in due.sources] if due else []

    def build() -> dict[str, str]:
        found: dict[str, str] = {}
        own = enter(root)
        for source in own.project.persisted:
            with own.work(source) as work:
                own.publish(work)
                found[source.name] = work.build.action
        return found

    assert look() == ["invoices", "odd", "young"]
    build()
    assert look() == look() == []
    put(root, (3, "deposits", 3))
    assert look() == ["invoices", "odd", "young"]
    assert look() == []
    assert build() == {"invoices": "reused", "odd": "reused", "young": "built"}
    assert look() == look() == []


@pytest.mark.slow
def test_wants_are_built_from_the_newest_version_of_an_external_table(
    root: Path, enter: Callable[..., Builder]
) -> None:
    put(root, (1, "invoices", 1))
    ledger = enter(root).ledger

    def want(name: str) -> list[int]:
        """Create a want and satisfy it as `persist serve` and its processes do."""
        ledger.wants.create([Want(name, "m/odd", "dev", datetime.now(UTC))])
        planner = enter(root)
        evaluate_now(planner.observer, "want")
        for request in ledger.requests.fetch("dev", is_open=True):
            assert run_request(enter(root).anew(request), request)
        (made,) = (w for w in ledger.wants.fetch("dev") if w.want_id == name)
        assert made.state == "satisfied", made
        return ids(enter(root), "odd")

    assert want("first") == [1]
    put(root, (2, "deposits", 3))
    assert want("second") == [1]
    put(root, (3, "invoices", 3))
    assert want("third") == [1, 3]


@pytest.mark.slow
def test_a_run_for_a_want_reports_the_copy_to_dagster(
    root: Path, spark: Any, instance: dg.DagsterInstance
) -> None:
    version = put(root, (1, "invoices", 1))
    location = Location(root, spark, instance)
    location.want("m/odd")
    ((request,), _), told = location.turn(), Daemon(location.definitions, instance)
    assert location.run(request).success
    assert told.held()["version held"] == version
    assert told.told()[0] == version
    location.ledger.close()


def test_reading_an_external_table_directly_returns_all_rows(
    root: Path, enter: Callable[..., Builder]
) -> None:
    put(root, (1, "invoices", 1), (2, "deposits", 2))
    builder = enter(root)
    for source in builder.project.persisted:
        builder.build(source)
    events = builder.project.by_key["m", "events"]
    read = builder.read(events).collect()
    assert sorted((r.id, r.category, r.n) for r in read) == [(1, "invoices", 1), (2, "deposits", 2)]
    assert ids(builder, "invoices") == [1]
