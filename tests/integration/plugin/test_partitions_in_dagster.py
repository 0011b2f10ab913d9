"""Partitioned sources as Dagster's partitioned assets: backfills, ranges, staleness."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from deltalake import write_deltalake

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin.partitions import FIRST, LAST
from persist_assets.plugin.runs import open_instance, run_assets
from persist_assets.plugin.wants import REQUEST_TAG
from persist_assets.wants.requests import evaluate_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-02-05"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist partition=weekly time_column=week start="2024-01-01" end="2024-02-05" backfill=multi_run
CREATE VIEW weekly AS SELECT CAST(date_trunc('week', day) AS DATE) AS week, sum(n) AS n
FROM daily GROUP BY 1;
--@ persist
CREATE VIEW total AS SELECT sum(n) AS n FROM weekly;
--@ persist
CREATE VIEW plain AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""
DAILY, WEEKLY, TOTAL = (dg.AssetKey(["m", name]) for name in ("daily", "weekly", "total"))


def put(root: Path, *days: int) -> None:
    schema = pa.schema([("day", pa.date32()), ("n", pa.int32())])
    rows = [{"day": date(2024, 1, 1) + timedelta(n), "n": n} for n in days]
    write_deltalake(str(root / "f"), pa.Table.from_pylist(rows, schema), mode="append")


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    for week in range(5):
        put(made, *range(7 * week, 7 * week + 7))
    return made


def run(
    definitions: dg.Definitions, instance: dg.DagsterInstance, *keys: dg.AssetKey, **tags: str
) -> dg.ExecuteInProcessResult:
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=instance, asset_selection=[*keys], tags=tags, raise_on_error=False
    )


def read(builder: Builder, name: str) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(r) for r in builder.read(builder.project.by_id[f"{name}@sources/m.sql"]).collect()
    )


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_a_backfill_is_one_run_and_equals_an_unpartitioned_build(
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    root: Path,
    enter: Callable[..., Builder],
) -> None:
    definitions = load(root)
    graph = definitions.resolve_asset_graph()
    assert graph.get(DAILY).backfill_policy == dg.BackfillPolicy.single_run()
    assert graph.get(WEEKLY).backfill_policy == dg.BackfillPolicy.multi_run()
    done = run(definitions, instance, DAILY, **{FIRST: "2024-01-01", LAST: "2024-01-31"})
    assert done.success
    assert len(instance.get_materialized_partitions(DAILY)) == 31
    assert len(instance.get_run_records()) == 1
    assert run(definitions, instance, dg.AssetKey(["m", "plain"])).success
    events = instance.fetch_materializations(DAILY, limit=40).records
    assert {e.partition_key for e in events} == instance.get_materialized_partitions(DAILY)
    rows = events[0].asset_materialization
    assert rows is not None
    assert rows.metadata["dagster/row_count"].value == 31
    builder = enter(root)
    january = [r for r in read(builder, "plain") if r[0] < date(2024, 2, 1)]
    assert read(builder, "daily") == january
    assert len(january) == 31


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_a_build_without_partitions_reports_each_of_them_like_the_table(
    load: Callable[..., dg.Definitions], root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    settings = load_settings(root)

    def build() -> None:
        sources = [s for s in load_project(settings).persisted if s.name != "plain"]
        assert run_assets(settings, sources, force=False, verbose=False).success

    def stale(key: dg.AssetKey) -> dict[str | None, set[str]]:
        graph = load(root).resolve_asset_graph()
        with open_instance(settings) as instance:
            resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
            keys = sorted(instance.get_materialized_partitions(key)) or [None]
            assert len(keys) == {DAILY: 35, WEEKLY: 5}.get(key, 1)
            causes = {k: {c.reason for c in resolver.get_stale_causes(key, k)} for k in keys}
        return {k: reasons for k, reasons in causes.items() if reasons}

    build()
    assert [stale(key) for key in (DAILY, WEEKLY, TOTAL)] == [{}, {}, {}]
    code = root / "sources" / "m.sql"
    code.write_text(code.read_text().replace("sum(n) AS n FROM f", "max(n) AS n FROM f"))
    changed = stale(DAILY)
    assert len(changed) == 35
    assert {r for reasons in changed.values() for r in reasons} == {"has a new code version"}
    build()
    assert [stale(key) for key in (DAILY, WEEKLY, TOTAL)] == [{}, {}, {}]


def stale_days(
    definitions: dg.Definitions, instance: dg.DagsterInstance
) -> dict[str | None, set[str]]:
    """Return why Dagster shows days as stale."""
    graph = definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    days = sorted(instance.get_materialized_partitions(DAILY))
    assert len(days) == 35
    causes = {day: {c.reason for c in resolver.get_stale_causes(DAILY, day)} for day in days}
    return {day: reasons for day, reasons in causes.items() if reasons}


def day_versions(instance: dg.DagsterInstance) -> dict[str | None, str]:
    """Return the last data version of each day."""
    records = reversed(instance.fetch_materializations(DAILY, limit=500).records)
    versions = {r.partition_key: r.event_log_entry.tags or {} for r in records}
    return {day: tags["dagster/data_version"] for day, tags in versions.items() if day is not None}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "run", "request"])
@pytest.mark.proves("U7")
def test_partitions_that_a_build_leaves_alone_are_fresh_and_have_the_same_data_version(
    load: Callable[..., dg.Definitions],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    settings = load_settings(root)

    def build(instance: dg.DagsterInstance, day: str, last: str) -> None:
        if how == "command":
            sources = [s for s in load_project(settings).persisted if s.name == "daily"]
            assert run_assets(settings, sources, force=False, verbose=False).success
        elif how == "run":
            assert run(load(root), instance, DAILY, **{FIRST: day, LAST: last}).success
        else:
            definitions, ledger = load(root), Ledger(settings.ledger)
            now, ref = datetime.now(UTC), "m/daily" if day != last else f"m/daily/{day}"
            ledger.wants.create([Want(f"{day} {last}", ref, "dev", now)])
            evaluate_now(Observer(settings, load_project(settings), ledger), "clock")
            (request,) = ledger.requests.fetch("dev", is_open=True)
            ledger.close()
            job = definitions.resolve_job_def("persist_request")
            tags = {REQUEST_TAG: request.request_id}
            assert job.execute_in_process(instance=instance, tags=tags).success

    with open_instance(settings) as instance:
        build(instance, "2024-01-01", "2024-02-04")
        assert stale_days(load(root), instance) == {}
        before = day_versions(instance)
        put(root, 9)
        build(instance, "2024-01-10", "2024-01-10")
        assert stale_days(load(root), instance) == {}
        after = day_versions(instance)
        assert {day for day in before if before[day] != after[day]} == {"2024-01-10"}
        if how == "request":
            return  # a want that the table satisfies makes no other one
        # A change outside of all windows changes no partition.
        put(root, 100)
        build(instance, "2024-01-10", "2024-01-11")
        assert stale_days(load(root), instance) == {}
        # What has been reported is not reported again.
        events = len(instance.fetch_materializations(DAILY, limit=500).records)
        build(instance, "2024-01-10", "2024-01-11")
        reported = len(instance.fetch_materializations(DAILY, limit=500).records) - events
        assert reported == {"command": 1, "run": 2}[how]


@pytest.mark.proves("K8")
def test_partitions_depend_on_the_partitions_that_they_read(
    load: Callable[..., dg.Definitions], instance: dg.DagsterInstance, root: Path
) -> None:
    definitions = load(root)
    graph = definitions.resolve_asset_graph()
    assert isinstance(graph.get_partition_mapping(WEEKLY, DAILY), dg.TimeWindowPartitionMapping)
    assert isinstance(graph.get_partition_mapping(TOTAL, WEEKLY), dg.AllPartitionMapping)
    first = {FIRST: "2024-01-01", LAST: "2024-01-10"}
    assert run(definitions, instance, DAILY, **first).success
    assert run(definitions, instance, WEEKLY, **{"dagster/partition": "2024-01-01"}).success
    late = run(definitions, instance, WEEKLY, **{"dagster/partition": "2024-01-08"})
    assert not late.success
    said = next(e for e in late.all_events if e.is_step_failure).step_failure_data.error
    assert "daily lacks 4 partitions (2024-01-11 to 2024-01-14)" in str(said)


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_the_sensor_requests_only_partitions_that_a_change_can_affect(
    load: Callable[..., dg.Definitions], instance: dg.DagsterInstance, root: Path
) -> None:
    definitions = load(root)

    def requested_runs() -> list[dg.RunRequest]:
        sensor = definitions.resolve_sensor_def("persist_stale")
        with dg.build_sensor_context(instance=instance, definitions=definitions) as context:
            return [*sensor.evaluate_tick(context).run_requests]

    def obey() -> list[tuple[str, str | None, str | None]]:
        found: list[tuple[str, str | None, str | None]] = []
        for request in requested_runs():
            keys = request.asset_selection or []
            assert run(definitions, instance, *keys, **dict(request.tags)).success
            names = "+".join(sorted(key.path[-1] for key in keys))
            found.append((names, request.tags.get(FIRST), request.tags.get(LAST)))
        return found

    assert obey() == [("daily", "2024-01-01", "2024-02-04"), ("plain", None, None)]
    assert obey() == [("weekly", "2024-01-01", "2024-01-29")]
    assert obey() == [("total", None, None)]
    assert obey() == []
    put(root, 9, 12)
    assert obey() == [("daily", "2024-01-10", "2024-01-13"), ("plain", None, None)]
    assert obey() == [("weekly", "2024-01-08", "2024-01-08")]
    assert obey() == [("total", None, None)]
    assert obey() == []


CORNERS = """
CREATE TABLE g (day DATE, o STRING, n INT) USING delta LOCATION 'g';
--@ persist partition { o=[JFK, EWR] day=daily } start="2024-01-01" end="2024-01-05"
CREATE VIEW c AS SELECT day, o, sum(n) AS n FROM g GROUP BY day, o;
"""


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_the_sensor_requests_ranges_of_partitions_with_several_dimensions(
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
) -> None:
    def add(*rows: tuple[int, str, int]) -> None:
        fields = [("day", pa.date32()), ("o", pa.string()), ("n", pa.int32())]
        told = [{"day": date(2024, 1, d), "o": o, "n": n} for d, o, n in rows]
        table = pa.Table.from_pylist(told, pa.schema(fields))
        write_deltalake(str(root / "g"), table, mode="append")

    def obey() -> list[tuple[str, str]]:
        sensor = definitions.resolve_sensor_def("persist_stale")
        with dg.build_sensor_context(instance=instance, definitions=definitions) as context:
            requests = [*sensor.evaluate_tick(context).run_requests]
        for request in requests:
            keys = request.asset_selection or []
            assert run(definitions, instance, *keys, **dict(request.tags)).success
        return [(request.tags[FIRST], request.tags[LAST]) for request in requests]

    root = make_project({"m.sql": CORNERS})
    add((1, "JFK", 1), (2, "EWR", 2))
    definitions = load(root)
    assert obey() == [("2024-01-01|JFK", "2024-01-04|EWR")]
    assert obey() == []
    # The partition with the later day has the earlier value of the other dimension.
    add((1, "EWR", 3))
    add((2, "JFK", 4))
    assert obey() == [("2024-01-01|JFK", "2024-01-02|EWR")]
    assert obey() == []
    assert [r[1:] for r in read(enter(root), "c")] == [
        ("EWR", 3),
        ("JFK", 1),
        ("EWR", 2),
        ("JFK", 4),
    ]
