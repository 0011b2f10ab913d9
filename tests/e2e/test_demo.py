"""The demo on real flights: its tables are correct, and Dagster's own commands build them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import warm
from conftest import ROOT
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from growing import kind_of
from recorded import build_ids, copy_demo, recorded

from persist_assets.building.builder import Builder
from persist_assets.compiler.compile import resolve_query
from persist_assets.compiler.load import load, load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.home import write_home
from persist_assets.plugin.runs import project_job

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo with its data prepared and nothing built."""
    root = tmp_path_factory.mktemp("flights")
    copy_demo(root)
    return root


@pytest.mark.slow
@pytest.mark.proves("H2")
def test_build_ids_of_the_demo_match_the_recorded_ones(flights: Path) -> None:
    assert build_ids(flights) == recorded()["demo"]


@pytest.fixture(scope="module")
def builder(flights: Path, spark: Any) -> Iterator[Builder]:
    settings = load_settings(flights)
    ledger = Ledger(settings.ledger)
    project = require(load_project(settings))
    yield Builder(settings, project, ledger, SparkEngine(settings, lambda: spark), run_id="demo")
    ledger.close()


@pytest.fixture(scope="module")
def built(builder: Builder) -> Builder:
    """Return a builder that has built all persisted sources."""
    for source in builder.project.persisted:
        builder.build(source)
    return builder


PLAIN = "CREATE TABLE weather_raw USING delta LOCATION '.persist/demo/weather';"


@pytest.fixture(scope="module")
def plain(flights: Path, builder: Builder) -> Iterator[Builder]:
    """The same sources over all raw data: the weather is a raw table, without a copy."""
    path = flights / "examples" / "flights" / "plain"
    shutil.copytree(flights / "examples" / "flights" / "sources", path)
    text = (path / "raw.sql").read_text()
    external = re.search(r"CREATE EXTERNAL TABLE weather_raw .*?;\n", text, re.DOTALL)
    assert external
    (path / "raw.sql").write_text(text.replace(external[0], PLAIN))
    settings = load_settings(flights).with_sources(path)
    yield Builder(settings, require(load_project(settings)), builder.ledger, builder.engine)
    shutil.rmtree(path)


BY_HAND = {
    "carrier_months": """
        WITH routes AS (
          SELECT carrier, trunc(flight_date, 'MM') AS flown_in, origin, dest, count(*) AS n_flights
          FROM departures GROUP BY ALL
        ), ranked AS (
          SELECT *, row_number() OVER (
            PARTITION BY carrier, flown_in ORDER BY n_flights DESC, origin, dest
          ) AS place
          FROM routes
        ), busiest AS (
          SELECT carrier, flown_in, transform(
            array_sort(collect_list(struct(place, origin, dest, n_flights))),
            r -> struct(r.origin, r.dest, r.n_flights)
          ) AS busiest
          FROM ranked WHERE place <= 3 GROUP BY carrier, flown_in
        ), months AS (
          SELECT carrier, trunc(flight_date, 'MM') AS flown_in,
                 count(*) AS n_flights, count_if(dep_delay > 15) AS n_late
          FROM departures GROUP BY ALL
        )
        SELECT carrier, name, CAST(flown_in AS TIMESTAMP) AS flown_in, n_flights, n_late, busiest
        FROM months JOIN busiest USING (carrier, flown_in) JOIN demo_airlines USING (carrier)
    """,
    "delay_percentiles": """
        SELECT name, percentile_cont(0.5) WITHIN GROUP (ORDER BY dep_delay) AS median_delay,
               percentile_cont(0.9) WITHIN GROUP (ORDER BY dep_delay) AS p90_delay
        FROM departures JOIN demo_airlines USING (carrier) GROUP BY name
    """,
    "carrier_quarters": """
        WITH months AS (
          SELECT carrier, trunc(flight_date, 'QUARTER') AS flown_from, month(flight_date),
                 count(*) AS n_flights, count_if(dep_delay > 15) AS n_late
          FROM departures GROUP BY ALL HAVING count(*) > 1000
        )
        SELECT name, CAST(flown_from AS TIMESTAMP) AS flown_from,
               sum(n_flights) AS flights_flown, sum(n_late) / sum(n_flights) AS late_share
        FROM months JOIN demo_airlines USING (carrier) GROUP BY ALL
    """,
    "manufacturers": """
        WITH models AS (
          SELECT manufacturer, model, sum(distance) AS miles, count(*) AS n_flights
          FROM departures JOIN demo_planes USING (tailnum) GROUP BY ALL
        ), ranked AS (
          SELECT *, row_number() OVER (PARTITION BY manufacturer ORDER BY miles DESC, model) AS place
          FROM models
        ), flown AS (
          SELECT manufacturer, sum(n_flights) AS n_flights, sum(miles) AS miles, transform(
            array_sort(collect_list(struct(place, model, miles)) FILTER (WHERE place <= 3)),
            m -> struct(m.model, m.miles)
          ) AS top_models
          FROM ranked GROUP BY manufacturer
        ), made AS (
          SELECT manufacturer, count(*) AS n_planes, sum(seats) AS n_seats, avg(seats) AS mean_seats
          FROM demo_planes WHERE tailnum IN (SELECT tailnum FROM departures) GROUP BY manufacturer
        )
        SELECT manufacturer, n_planes, CAST(n_seats AS DOUBLE) AS n_seats, mean_seats, n_flights,
               miles, top_models
        FROM made JOIN flown USING (manufacturer)
    """,
    "best_months": """
        WITH months AS (
          SELECT carrier, trunc(flight_date, 'MM') AS flown_in,
                 count_if(dep_delay > 15) / count(*) AS late_share
          FROM departures GROUP BY ALL
        )
        SELECT name, CAST(min_by(flown_in, late_share) AS TIMESTAMP) AS flown_in,
               min(late_share) AS late_share
        FROM months JOIN demo_airlines USING (carrier) GROUP BY name
    """,
    "delayed": """
        SELECT f.time_hour + make_dt_interval(0, 0, minute) AS departs_at, carrier, tailnum,
               f.origin, dest, dep_delay, precip * 25.4 AS rain_mm,
               round(wind_speed * 1.609344, 1) AS wind_kmh
        FROM departures AS f LEFT JOIN demo_weather AS w
          ON f.origin = w.origin AND f.time_hour = w.time_hour
        WHERE dep_delay > 60
    """,
    "departures_by_hour": """
        SELECT flight_date, origin, CAST(hour AS INT) AS hour, count(*) AS n_flights,
               sum(dep_delay) AS delay
        FROM departures WHERE month = 1 GROUP BY ALL
    """,
    "rush_hours": """
        SELECT origin, CAST(hour AS INT) AS hour, count(*) AS n_flights,
               sum(dep_delay) / count(*) AS mean_delay
        FROM departures WHERE month = 1 GROUP BY ALL
    """,
}
"""Handwritten SQL on the raw data for the Malloy and Python sources and their readers."""


@pytest.fixture(scope="module")
def by_hand(flights: Path, spark: Any) -> Iterator[Any]:
    """Return a function that runs one of `BY_HAND`."""
    with directly(flights, spark) as run:
        yield run


@contextmanager
def directly(root: Path, spark: Any) -> Iterator[Any]:
    """Return a function that runs one of `BY_HAND` on the raw data of a project."""
    raw = root / ".persist" / "demo"
    for name in ("flights", "planes", "weather"):
        spark.read.parquet(str(raw / name)).createOrReplaceTempView(f"demo_{name}")
    airlines = spark.read.csv(str(raw / "airlines"), header=True)
    airlines.createOrReplaceTempView("demo_airlines")
    spark.sql(
        """CREATE OR REPLACE TEMPORARY VIEW departures AS
        SELECT *, make_date(year, month, day) AS flight_date FROM demo_flights
        WHERE dep_time IS NOT NULL"""
    )
    yield lambda name: spark.sql(BY_HAND[name])
    for name in (
        "departures",
        *(f"demo_{n}" for n in ("flights", "planes", "weather", "airlines")),
    ):
        spark.catalog.dropTempView(name)


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


@pytest.mark.slow
def test_every_table_equals_the_query_run_directly_on_the_raw_data(
    built: Builder, plain: Builder, by_hand: Any
) -> None:
    builder = built
    over_all = {s.name: s for s in plain.project.sources}
    names = [s.name for s in builder.project.sources if s.query]
    assert len(names) >= 8
    assert any(not s.persisted for s in builder.project.sources if s.query)
    others = {s.name for s in builder.project.persisted if s.language != "sql"}
    assert BY_HAND.keys() >= others - {HISTORY}
    manifest = builder.ledger.manifests.fetch("dev")
    assert len(manifest) == len(builder.project.persisted)
    for source in builder.project.sources:
        if source.query is None or source.name == HISTORY:
            continue
        if source.name in BY_HAND:
            direct = by_hand(source.name)
        else:
            same = over_all[source.name]
            assert same.query is not None
            statement, read = plain.reader.statement(same.query, same.bindings, {})
            assert not read, "the comparison must not read any of our tables"
            direct = plain.reader.load(statement, read, same.columns)
        ours = builder.read(source)
        assert [c.lower() for c in direct.columns] == [c.lower() for c in ours.columns]
        if source.name in ("flights", "route_delays", "cancelled", "weather", "delayed"):
            # Large, and without floating-point sums: compared in Spark. With equal counts, no
            # missing row means no extra row.
            assert direct.count() == ours.count()
            assert direct.exceptAll(ours).isEmpty(), source.name
            continue
        expected = sorted((tuple(r) for r in direct.collect()), key=lambda r: repr(r[:3]))
        found = sorted((tuple(r) for r in ours.collect()), key=lambda r: repr(r[:3]))
        assert len(expected) == len(found) > 0
        for one, other in zip(expected, found, strict=True):
            assert all(close(a, b) for a, b in zip(one, other, strict=True)), (
                source.name,
                one,
                other,
            )


@pytest.mark.slow
def test_the_weather_has_one_copy_with_the_needed_columns(built: Builder, flights: Path) -> None:
    lake = DeltaTable(str(flights / ".persist" / "demo" / "weather"))
    assert lake.version() == 3, "a version for each quarter"
    (copy,) = built.ledger.copies.fetch()
    assert re.fullmatch(rf"delta:3:{lake.metadata().id}:[0-9a-f]{{12}}", copy.version)
    assert copy.rows == len(lake.to_pyarrow_table(columns=["origin"])) == 26115
    assert copy.columns == ("origin", "precip", "temp", "time_hour", "visib", "wind_speed")
    readers = {n.reader.partition("@")[0] for n in built.project.needs}
    assert readers == {"delays_by_weather", "delayed"}


def test_the_demo_has_no_problems_and_no_notes(builder: Builder) -> None:
    assert builder.project.problems == ()
    assert not any(s.notes for s in builder.project.sources)


def test_the_graph_is_three_levels_deep(builder: Builder) -> None:
    level: dict[str, int] = {}
    for source in builder.project.persisted:
        inputs = builder.project.inputs(source)
        level[source.name] = 1 + max((level.get(s.name, 0) for s in inputs), default=0)
    assert max(level.values()) >= 3


@pytest.mark.slow
def test_column_types_known_before_the_build_match_the_table(built: Builder) -> None:
    manifest = built.ledger.manifests.fetch("dev")
    for source in built.project.persisted:
        types = {c.name: c.type for c in manifest[source.build_id].columns}
        for column in source.columns:
            assert column.name in types
            assert column.type in (None, types[column.name]), (source.name, column)


@pytest.mark.proves("M5")
def test_a_plan_orders_inputs_before_their_readers(builder: Builder) -> None:
    planned = builder.plan([s.source_id for s in builder.project.persisted])
    position = {step.source_id: i for i, step in enumerate(planned.steps)}
    for source in builder.project.persisted:
        for upstream in builder.project.inputs(source):
            if upstream.persisted:
                assert position[upstream.source_id] < position[source.source_id]


@pytest.mark.slow
@pytest.mark.proves("K5")
@pytest.mark.parametrize(
    "command",
    [
        ["dagster", "asset", "materialize", "-f", "definitions.py", "--select"],
        ["dg", "launch", "--assets"],
    ],
    ids=["dagster asset materialize", "dg launch"],
)
def test_dagsters_own_commands_build_the_demo(
    command: list[str], flights: Path, builder: Builder
) -> None:
    home = write_home(flights / ".persist" / command[0])
    executable = str(Path(sys.executable).parent / command[0])
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PERSIST_ENV": command[0],
        "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
    }
    done = subprocess.run(
        [executable, *command[1:], '+key:"causes/fleet_by_age"'],
        cwd=flights,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.SUCCESS
    source_id = "fleet_by_age@examples/flights/sources/causes.sql"
    found = builder.ledger.manifests.find_snapshot(
        command[0], builder.project.by_id[source_id].build_id
    )
    assert found is not None
    assert found.rows == 12
    manifest = json.loads((flights / ".persist" / "manifests" / f"{command[0]}.json").read_text())
    assert len([e for e in manifest["entries"].values() if "buildId" not in e]) == 3


@pytest.mark.slow
@pytest.mark.proves("K13")
def test_a_rerun_from_failure_runs_only_the_failed_step(flights: Path, tmp_path: Path) -> None:
    root = tmp_path / "again"
    # Without its ledger: closing a SQLite file releases this process's other locks on it.
    built = ("dagster*", "dg", "ledger.db*", "warehouse", "manifests")
    shutil.copytree(flights, root, ignore=shutil.ignore_patterns(*built))
    path = root / "examples" / "flights" / "sources" / "causes.sql"
    good = path.read_text()
    path.write_text(good.replace("floor(age_years / 5) * 5", "raise_error('broken')"))
    home = write_home(root / ".persist" / "home")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        job = dg.build_reconstructable_job(
            "persist_assets.plugin.runs",
            project_job.__name__,
            reconstructable_kwargs={"root": str(root), "sources": "examples/flights/sources"},
        )
        names = ("plane_utilisation", "delays_by_weather", "fleet_by_age")
        keys = [dg.AssetKey(["cleaned", "flights"]), *(dg.AssetKey(["causes", n]) for n in names)]
        failed = dg.execute_job(job, instance, asset_selection=keys)
        ended = {
            e.step_key: e.event_type_value
            for e in failed.all_events
            if e.is_step_success or e.is_step_failure
        }
        assert ended == {
            "cleaned__flights": "STEP_SUCCESS",
            "causes__plane_utilisation": "STEP_SUCCESS",
            "causes__delays_by_weather": "STEP_SUCCESS",
            "causes__fleet_by_age": "STEP_FAILURE",
        }
        path.write_text(good)
        again = dg.execute_job(
            job,
            instance,
            reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance),
        )
        assert {e.step_key for e in again.all_events if e.is_step_success} == {
            "causes__fleet_by_age"
        }
        assert again.success


HISTORY = "planes_as_they_were"
DAILY = dg.AssetKey(["hours", "departures_by_hour"])


@pytest.fixture(scope="module")
def january(
    flights: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, pa.Table, pa.Table]:
    """A copy of the demo as of January 20th; the month's other flights; its other weather.

    JetBlue's flights of the 20th arrive after all other flights of that day. The weather table
    has no version with later days yet.
    """
    root = tmp_path_factory.mktemp("january")
    shutil.copytree(flights, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".persist"))
    raw = flights / ".persist" / "demo"
    demo = shutil.copytree(
        raw, root / ".persist" / "demo", ignore=lambda at, names: {"flights", "weather"} & {*names}
    )
    write_deltalake(demo / "weather", weather_of(raw, "day <= 20"))
    month = pq.read_table(raw / "flights" / "part-0.parquet", filters=[("month", "=", 1)])
    day, carrier = month["day"], month["carrier"]
    later = pc.or_(pc.greater(day, 20), pc.and_(pc.equal(day, 20), pc.equal(carrier, "B6")))
    (demo / "flights").mkdir()
    pq.write_table(month.filter(pc.invert(later)), demo / "flights" / "part-0.parquet")
    return root, month.filter(later), weather_of(raw, "day > 20")


def weather_of(raw: Path, days: str) -> pa.Table:
    """Return the weather of some days of January."""
    lake = DeltaTable(str(raw / "weather"))
    rows = QueryBuilder().register("w", lake).execute(f"SELECT * FROM w WHERE month = 1 AND {days}")
    return pa.table(rows)


@pytest.fixture(scope="module")
def month(january: tuple[Path, pa.Table, pa.Table]) -> tuple[Path, pa.Table, pa.Table]:
    """The project of `january`, with the days of January built in one run."""
    root, *_ = january
    days = "2013-01-01...2013-01-31"
    warm.run(
        [
            *(sys.executable, "-m", "persist_assets.cli", "build", "--partition-range", days),
            *("+departures_by_hour", "delayed", HISTORY),
        ],
        cwd=root,
        check=True,
    )
    return january


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_a_month_of_partitions_is_built_in_one_run(month: tuple[Path, pa.Table, pa.Table]) -> None:
    root, *_ = month
    with dg.DagsterInstance.from_config(str(root / ".persist" / "dagster")) as instance:
        (run,) = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.SUCCESS
        assert len(instance.get_materialized_partitions(DAILY)) == 31


@pytest.mark.slow
@pytest.mark.proves("K8", "P8", "P19")
def test_new_data_updates_python_sources_and_the_history(
    month: tuple[Path, pa.Table, pa.Table], spark: Any
) -> None:
    root, later, weather = month
    settings = load_settings(root)
    with closing(Ledger(settings.ledger)) as ledger:
        project = require(load_project(settings))
        named = {s.name: s for s in project.persisted}
        names = ("flights", "delayed", "departures_by_hour", "rush_hours", HISTORY)

        def build() -> tuple[Builder, dict[str, str]]:
            builder = Builder(settings, project, ledger, SparkEngine(settings, lambda: spark))
            kinds: dict[str, str] = {}
            for name in names:
                with builder.work(named[name]) as work:
                    builder.publish(work)
                    kinds[name] = kind_of(work)
            return builder, kinds

        def versions(builder: Builder) -> dict[str, list[tuple[Any, ...]]]:
            found: dict[str, list[tuple[Any, ...]]] = {}
            rows = builder.read(named[HISTORY]).orderBy("tailnum", "valid_from")
            for row in rows.collect():
                found.setdefault(row.tailnum, []).append((row.seats, row.valid_from, row.valid_to))
            return found

        builder, kinds = build()
        assert kinds == {n: "whole" if n == "rush_hours" else "reused" for n in names}
        before = versions(builder)
        assert len(before) == 3322
        assert {(len(v), v[0][2]) for v in before.values()} == {(1, None)}

        demo = root / ".persist" / "demo"
        pq.write_table(later, demo / "flights" / "part-1.parquet")
        write_deltalake(demo / "weather", weather, mode="append")
        planes = pq.read_table(demo / "planes" / "part-0.parquet").to_pandas()
        sold, refitted = "N10156", "N102UW"
        planes = planes[planes.tailnum != sold]
        planes.loc[planes.tailnum == refitted, "seats"] = 199
        pq.write_table(
            pa.Table.from_pandas(planes, preserve_index=False), demo / "planes" / "part-0.parquet"
        )
        builder, kinds = build()
        assert (kinds["flights"], kinds["delayed"]) == ("added", "windows"), kinds
        with directly(root, spark) as by_hand:
            for name in names[1:4]:
                ours, direct = builder.read(named[name]), by_hand(name)
                assert sorted(ours.collect(), key=repr) == sorted(direct.collect(), key=repr)
        after = versions(builder)
        assert {t for t in before if before[t] != after[t]} == {sold, refitted}
        assert after.keys() == before.keys()
        ((seats, since, until),) = after[sold]
        assert (seats, since) == before[sold][0][:2]
        assert until is not None
        old, new = after[refitted]
        assert (old[:2], old[2]) == (before[refitted][0][:2], new[1])
        assert (new[0], new[2]) == (199, None)


SEATS = "run: flown -> { aggregate: seats is aircraft.seats.sum() }"


def printed(command: str, page: str = "docs/demo.md") -> str:
    """Return the output of a command as shown on a page of the docs."""
    (_, block) = (ROOT / page).read_text().split(f"$ {command}\n")
    return block.split("```")[0].split("\n$ ")[0].rstrip()


VERY_LATE = (
    "persist plan daily_delays+",
    "daily.sql",
    "dep_delay > 60",
    "dep_delay   > 90 /* tidied */",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command", "file", "before", "after"),
    [
        ("README.md", *VERY_LATE),
        ("docs/index.md", *VERY_LATE),
        ("docs/demo.md", *VERY_LATE),
        (
            "docs/demo.md",
            "persist plan carrier_months+",
            "carriers.malloy",
            "dep_delay > 15",
            "dep_delay > 30",
        ),
    ],
)
def test_plans_after_edits_match_the_docs(
    built: Builder, flights: Path, page: str, command: str, file: str, before: str, after: str
) -> None:
    path = flights / "examples" / "flights" / "sources" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    try:
        done = warm.run(
            [sys.executable, "-m", "persist_assets.cli", *command.split()[1:]],
            cwd=flights,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        path.write_text(text)
    assert done.stdout.rstrip() == printed(command, page)


def malloy_rows(
    builder: Builder, file: str, inline: bool = False, **query_arguments: str
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return the rows of a Malloy query, and the names of the tables that it read."""
    path = f"examples/flights/sources/{file}"
    loaded = load(builder.settings)
    project, query = loaded.project, loaded.query(path, **query_arguments)
    manifest = {} if inline else builder.ledger.manifests.fetch("dev")
    statement, read = builder.reader.statement(
        query, resolve_query(project, query, "malloy"), manifest
    )
    rows = [tuple(r) for r in builder.reader.load(statement, read).collect()]
    return rows, [s.partition("@")[0] for s in read]


@pytest.mark.slow
@pytest.mark.proves("M18")
@pytest.mark.parametrize(
    ("command", "file", "asked"),
    [
        ("carriers.malloy:punctuality --limit 3", "carriers.malloy", {"name": "punctuality"}),
        (f"fleet.malloy --run '{SEATS}'", "fleet.malloy", {"text": SEATS}),
    ],
)
def test_malloy_queries_return_the_rows_in_the_docs(
    built: Builder, command: str, file: str, asked: dict[str, str]
) -> None:
    rows, read = malloy_rows(built, file, **asked)
    assert malloy_rows(built, file, inline=True, **asked) == (rows, [])
    _, *lines, route = printed(f"persist query {command}").splitlines()
    assert route.endswith(f"{', '.join(read)} from its table")
    for line, row in zip(lines, rows, strict=False):
        assert re.split(r"\s{2,}", line.strip()) == [str(v) for v in row]


@pytest.mark.slow
def test_sources_that_cancel_an_inherited_persist_are_not_persisted(built: Builder) -> None:
    (quarters,) = (s for s in built.project.sources if s.name == "carrier_quarters")
    assert quarters.persisted
    names = {s.name for s in built.project.persisted}
    assert not names & {"large_months", "latest_quarters"}
    found, read = malloy_rows(built, "seasons.malloy", name="worst_quarters")
    assert read == ["carrier_months"]
    late = [(r[0], r[1], r[3]) for r in built.read(quarters).collect() if r[1].month > 6]
    assert found == sorted(late, key=lambda r: -r[2])[:5]
