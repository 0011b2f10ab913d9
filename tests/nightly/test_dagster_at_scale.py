"""Dagster as teams run it: PostgreSQL, a queue of runs, two code locations, one shared Spark."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import document, persist
from conftest import SPARK_TOML, wait_for
from deltalake import DeltaTable, write_deltalake
from deployment import Dagster, dagster_of, free_ports, memory_of

from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres import Postgres

    from persist_assets.core.model.snapshots import Build, Snapshot

pytestmark = pytest.mark.slow
DAYS = [date(2025, 1, 1) + timedelta(n) for n in range(365)]
# Sleeps in each task, so the job lasts longer than any test.
SLOW = "java_method('java.util.concurrent.locks.LockSupport', 'parkNanos', 600000000000L)"
PARTED = 'partition={} time_column=day start="2025-01-01" end="2026-01-01"'
LAKE = {
    "flights.sql": f"""
CREATE TABLE flights (day DATE, carrier STRING, delay INT) USING parquet LOCATION 'raw/flights';
--@ persist {PARTED.format("daily")}
CREATE VIEW cleaned AS SELECT day, carrier, delay FROM flights WHERE delay IS NOT NULL;
--@ persist {PARTED.format("daily")} check {{ not_null=[carrier] }}
CREATE VIEW by_day AS
SELECT day, carrier, count(*) AS n, sum(delay) AS delay FROM cleaned GROUP BY day, carrier;
--@ persist
CREATE VIEW by_carrier AS
SELECT carrier, sum(n) AS n, sum(delay) AS delay FROM by_day GROUP BY carrier;
""",
    "apart.sql": """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
CREATE TABLE d (a BIGINT) USING delta LOCATION 'raw/d';
--@ persist
CREATE VIEW first AS SELECT 't' AS k, count(*) AS n FROM t UNION ALL SELECT 'd', count(*) FROM d;
--@ persist
CREATE VIEW second AS
SELECT k, n FROM first UNION ALL SELECT 't', count(*) FROM t UNION ALL SELECT 'd', count(*) FROM d;
""",
    "ended.sql": f"""
CREATE TABLE fuse (lasts BOOLEAN) USING parquet LOCATION 'raw/fuse';
--@ persist
CREATE VIEW quick AS SELECT count(*) AS n FROM fuse;
--@ persist
CREATE VIEW endless AS SELECT lasts, CASE WHEN lasts THEN {SLOW} END AS slept FROM fuse;
--@ persist
CREATE VIEW another AS SELECT lasts, 1 AS one, CASE WHEN lasts THEN {SLOW} END AS slept FROM fuse;
--@ persist
CREATE VIEW after AS SELECT count(*) AS n FROM endless;
""",
}
DEFINITIONS = """
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from persist_assets import AssetTranslator, load_sources

RAW = Path(__file__).parent / "raw"


class Waiting(AssetTranslator):
    def asset_spec(self, source):
        spec = super().asset_spec(source)
        return spec.merge_attributes(deps=["meddler"]) if source.name == "second" else spec


@dg.asset(deps=[dg.AssetKey(["lake", "apart", "first"])])
def meddler():
    row = pa.table({"a": pa.array([1], pa.int64())})
    pq.write_table(row, RAW / "t" / f"{len([*(RAW / 't').iterdir()])}.parquet")
    write_deltalake(RAW / "d", row, mode="append")


steps = ["lake/apart/first", "meddler", "lake/apart/second"]
apart = dg.define_asset_job("apart", steps, executor_def=dg.multiprocess_executor)
together = dg.define_asset_job("together", steps)
ended = [f"lake/ended/{name}" for name in ("quick", "endless", "after")]
ended = dg.define_asset_job("ended_apart", ended, executor_def=dg.multiprocess_executor)
defs = dg.Definitions.merge(
    load_sources("sources", assets=[meddler], translator=Waiting),
    dg.Definitions(jobs=[apart, together, ended]),
)
"""
# Where the other project publishes it, under the key that it has in Dagster.
REPORTS = """
CREATE TABLE by_carrier (carrier STRING, n BIGINT, delay BIGINT)
USING delta LOCATION '{place}/lake_flights/by_carrier';
"""
WORST = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW worst AS SELECT carrier FROM by_carrier ORDER BY delay DESC LIMIT 1;
"""


@dataclass(frozen=True)
class Team:
    """A deployment of two projects, and Spark's own list of jobs."""

    dagster: Dagster
    lake: Path
    reports: Path
    spark: str
    ledger: Ledger

    def jobs(self, run_id: str, state: str) -> list[dict[str, Any]]:
        """Return the Spark jobs of a run; none if the Spark server has ended."""
        apps, found = f"{self.spark}/api/v1/applications", list[dict[str, Any]]()
        with suppress(OSError, ValueError):  # while it starts, it answers in HTML
            for app in _get(apps):
                jobs = _get(f"{apps}/{app['id']}/jobs?status={state}")
                found += [j for j in jobs if any(run_id in tag for tag in j.get("jobTags", ()))]
        return found

    def tables(self, environment: str = "prod") -> dict[str, Snapshot]:
        """Return the published tables of the first project, by source name."""
        manifest = self.ledger.manifests.fetch(environment).values()
        return {s.source_id.partition("@")[0]: s for s in manifest}

    def rows(self, name: str, environment: str = "prod") -> list[tuple[Any, ...]]:
        """Return the rows of a source of the first project."""
        snapshot = self.tables(environment)[name]
        root = self.lake / ".persist" / "warehouse" / snapshot.table
        table = DeltaTable(root, snapshot.version).to_pyarrow_table().to_pydict()
        return sorted(zip(*table.values(), strict=True), key=repr)

    def builds(self, run_id: str) -> list[Build]:
        """Return the builds of a run of the first project."""
        return [b for b in self.ledger.builds.fetch() if b.run_id == run_id]


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def _write(place: Path, **columns: pa.Array) -> None:
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), place / f"{len([*place.iterdir()])}.parquet")


def _write_data(root: Path) -> None:
    days = [day for day in DAYS for _ in range(3)]
    carriers = [f"c{n % 5}" for n in range(len(days))]
    delays = [None if n % 11 == 0 else n * 7919 % 240 for n in range(len(days))]
    _write(
        root / "raw" / "flights",
        day=pa.array(days, pa.date32()),
        carrier=pa.array(carriers),
        delay=pa.array(delays, pa.int32()),
    )
    _write(root / "raw" / "t", a=pa.array([1], pa.int64()))
    write_deltalake(root / "raw" / "d", pa.table({"a": pa.array([1], pa.int64())}))
    _write(root / "raw" / "fuse", lasts=pa.array([True]))


@pytest.fixture(scope="module")
def team(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, servers: None
) -> Iterator[Team]:
    directory = tmp_path_factory.mktemp("team")
    port = free_ports(["spark"])["spark"]
    spark = SPARK_TOML.replace('enabled" = "false', 'enabled" = "true')
    spark += f'"spark.ui.port" = "{port}"\nshared = true\n'
    lake, reports, place = directory / "lake", directory / "reports", directory / "published"
    for root, files, settings in (
        (lake, LAKE, f'key_prefix = "lake"\n[env.dev]\n[env.prod.publish]\npath = "{place}"\n'),
        (reports, {"lake/flights.sql": REPORTS, "worst.sql": WORST}, "[env.prod]\n"),
    ):
        ledger = postgres.schema(f"{root.name}_{os.urandom(4).hex()}")
        head = f'environment = "prod"\nledger = "{ledger}"\n'
        for name, text in files.items():
            (root / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "sources" / name).write_text(text.replace("{place}", str(place)))
        (root / "persist.toml").write_text(head + settings + spark)
    (lake / "definitions.py").write_text(DEFINITIONS)
    loads = "from persist_assets import load_sources\n\ndefs = load_sources('sources')\n"
    (reports / "definitions.py").write_text(loads)
    _write_data(lake)
    projects = {"lake": lake, "reports": reports}
    with dagster_of(directory, postgres, projects, {"PERSIST_TRUST": "*"}) as dagster:
        ledger = Ledger(load_settings(lake).ledger)
        yield Team(dagster, lake, reports, f"http://127.0.0.1:{port}", ledger)
        ledger.close()


@pytest.mark.proves("U4")
def test_a_backfill_of_a_year_builds_every_day(team: Team) -> None:
    dagster = team.dagster
    began = time.monotonic()
    launched = dagster.ask(
        "mutation ($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {"
        " __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }",
        p={
            "assetSelection": [{"path": ["lake", "flights", n]} for n in ("cleaned", "by_day")],
            "partitionNames": [day.isoformat() for day in DAYS],
        },
    )["launchPartitionBackfill"]
    assert launched["__typename"] == "LaunchBackfillSuccess", launched

    def status() -> str:
        query = (
            "query ($id: String!) { partitionBackfillOrError(backfillId: $id) {"
            " ... on PartitionBackfill { status } } }"
        )
        return dagster.ask(query, id=launched["backfillId"])["partitionBackfillOrError"]["status"]

    wait_for(lambda: status() in {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED"}, seconds=420)
    assert status() == "COMPLETED_SUCCESS"
    runs = dagster.runs()
    builds = [b for run_id in runs for b in team.builds(run_id)]
    print(
        f"\na backfill of {len(DAYS)} days of two sources: {len(runs)} runs, {len(builds)} builds,"
        f" {time.monotonic() - began:.0f} s"
    )
    assert {*runs.values()} == {"SUCCESS"}
    assert dagster.ended(dagster.launch("lake", "lake/flights/by_carrier")) == "SUCCESS"
    flights = str(team.lake / "raw" / "flights" / "*.parquet")
    for name, query in (
        ("cleaned", "SELECT * FROM f WHERE delay IS NOT NULL"),
        ("by_day", "SELECT day, carrier, count(*), sum(delay)::BIGINT FROM f"
         " WHERE delay IS NOT NULL GROUP BY ALL"),
        ("by_carrier", "SELECT carrier, count(*), sum(delay)::BIGINT FROM f"
         " WHERE delay IS NOT NULL GROUP BY ALL"),
    ):  # fmt: skip
        with duckdb.connect() as connection:
            connection.execute(f"CREATE VIEW f AS FROM read_parquet('{flights}')")
            expected = sorted(connection.execute(query).fetchall(), key=repr)
            assert team.rows(name) == expected, name
    for name in ("cleaned", "by_day"):  # each day was built once
        written = [b.written for b in builds if b.source_id.startswith(f"{name}@")]
        assert sum(w.rows for w in written if w) == len(team.rows(name)), name
    # Dagster knows each of the days.
    query = (
        '{ assetNodeOrError(assetKey: {path: ["lake", "flights", "by_day"]}) { ... on AssetNode {'
        " partitionStats { numMaterialized numPartitions numFailed } } } }"
    )
    stats = dagster.ask(query)["assetNodeOrError"]["partitionStats"]
    assert stats == {"numMaterialized": 365, "numPartitions": 365, "numFailed": 0}


@pytest.mark.proves("U4")
def test_steps_in_separate_processes_read_the_same_data(team: Team) -> None:
    """Between two steps, an asset adds rows to the raw tables that both read."""
    dagster = team.dagster
    run_id = dagster.launch("lake", job="apart")
    assert dagster.ended(run_id) == "SUCCESS", dagster.events(run_id)[-5:]
    pids = {
        m["text"]
        for event in dagster.events(run_id)
        if event.get("eventType") == "STEP_WORKER_STARTED"
        for m in event["metadataEntries"]
        if m["label"] == "pid"
    }
    assert len(pids) == 3
    once = [("d", 1), ("d", 1), ("t", 1), ("t", 1)]
    assert team.rows("second") == once
    # A run in one process does the same.
    assert dagster.ended(dagster.launch("lake", job="together")) == "SUCCESS"
    assert team.rows("second") == [(k, 2 * n) for k, n in once]
    # Current tables are reused, by the command line and by Dagster.
    assert persist("build", "first", "second", cwd=team.lake, env=dagster.env).returncode == 0
    assert team.rows("second") == [(k, 3 * n) for k, n in once]
    before, tables = dagster.runs(), team.tables()
    assert persist("build", "first", "second", cwd=team.lake, env=dagster.env).returncode == 0
    assert dagster.runs() == before
    run_id = dagster.launch("lake", "lake/apart/first", "lake/apart/second", job="apart")
    assert dagster.ended(run_id) == "SUCCESS"
    assert [b.action for b in team.builds(run_id)] == ["reused", "reused"]
    assert {n: s.build_uid for n, s in team.tables().items()} == {
        n: s.build_uid for n, s in tables.items()
    }


@pytest.mark.proves("U4")
def test_terminating_a_run_stops_its_spark_jobs_and_the_next_run_recovers(team: Team) -> None:
    dagster = team.dagster
    keys = [f"lake/ended/{name}" for name in ("quick", "endless", "after")]
    other = dagster.launch("lake", "lake/ended/another")
    wait_for(lambda: team.jobs(other, "running"), seconds=240)
    for job in ("__ASSET_JOB", "ended_apart"):
        run_id = dagster.launch("lake", *keys, job=job)
        wait_for(lambda run_id=run_id: team.jobs(run_id, "running"), seconds=240)
        began = time.monotonic()
        assert terminate(dagster, run_id) == "TerminateRunSuccess"
        assert dagster.ended(run_id, seconds=120) == "CANCELED"
        print(f"\n{job}: {time.monotonic() - began:.1f} s from Terminate to the end of the run")
        wait_for(lambda run_id=run_id: not team.jobs(run_id, "running"), seconds=30)
        assert not [lease for lease, *_ in team.ledger.leases.fetch() if run_id in lease.holder]
        (build,) = [b for b in team.builds(run_id) if b.source_id.startswith("endless@")]
        assert build.state == "failed"
        assert not {"endless", "after"} & team.tables().keys()
        left = [*(team.lake / ".persist" / "warehouse").glob("endless*/**/*.parquet")]
        assert not left
    # The other run survives reloads of code locations, and ends when it is terminated.
    assert dagster.reload("reports") is None
    assert dagster.reload("lake") is None
    assert dagster.status(other) == "STARTED"
    assert team.jobs(other, "running")
    assert terminate(dagster, other) == "TerminateRunSuccess"
    assert dagster.ended(other, seconds=120) == "CANCELED"
    wait_for(lambda: not team.jobs(other, "running"), seconds=30)
    # The next run builds what is missing.
    pq.write_table(pa.table({"lasts": [False]}), team.lake / "raw" / "fuse" / "0.parquet")
    assert dagster.ended(dagster.launch("lake", *keys)) == "SUCCESS"
    assert (team.rows("quick"), team.rows("after")) == ([(1,)], [(1,)])
    assert team.rows("endless") == [(False, None)]


def terminate(dagster: Dagster, run_id: str) -> str:
    query = "mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"
    return dagster.ask(query, id=run_id)["terminateRun"]["__typename"]


@pytest.mark.proves("U4")
def test_code_locations_share_assets_and_reload_independently(team: Team) -> None:
    dagster = team.dagster
    assert {"lake/flights/by_carrier": "lake", "worst/worst": "reports"}.items() <= (
        dagster.assets().items()
    )
    built = persist("build", "+by_carrier", cwd=team.lake, env=dagster.env)
    assert built.returncode == 0, built.stderr
    run_id = dagster.launch("reports", "worst/worst")
    assert dagster.ended(run_id) == "SUCCESS", dagster.events(run_id)[-5:]
    (worst,) = document("query", "SELECT * FROM worst", cwd=team.reports)["rows"]
    assert worst == [max(team.rows("by_carrier"), key=lambda row: row[2])[0]]

    def node(key: str) -> dict[str, Any]:
        query = (
            "query ($k: AssetKeyInput!) { assetNodeOrError(assetKey: $k) { ... on AssetNode {"
            " staleStatus repository { location { name } } dependedByKeys { path }"
            " assetMaterializations(limit: 1) { runId } } } }"
        )
        return dagster.ask(query, k={"path": key.split("/")})["assetNodeOrError"]

    # Dagster links the table that one project reads to the asset of the other one.
    shared = node("lake/flights/by_carrier")
    assert shared["repository"]["location"]["name"] == "lake"
    assert {"path": ["worst", "worst"]} in shared["dependedByKeys"]
    assert shared["staleStatus"] == "FRESH"
    assert shared["assetMaterializations"][0]["runId"]
    assert node("worst/worst")["staleStatus"] == "FRESH"
    # A run in another environment changes nothing in this one.
    before = team.tables()
    run_id = dagster.launch("lake", "lake/apart/first", tags={"persist/environment": "dev"})
    assert dagster.ended(run_id) == "SUCCESS"
    assert {*team.tables("dev")} == {"first"}
    assert team.tables() == before
    # Reloads.
    for location, server in dagster.servers.items():
        before_b, times = memory_of(server.pid), list[float]()
        for _ in range(3):
            began = time.monotonic()
            assert dagster.reload(location) is None
            times.append(time.monotonic() - began)
        most_b = before_b * 1.5
        wait_for(lambda pid=server.pid, most_b=most_b: memory_of(pid) < most_b, seconds=120)
        print(
            f"\n{location}: reloads took {', '.join(f'{s:.1f}' for s in times)} s; its code server has"
            f" {before_b >> 20} MB before them, {memory_of(server.pid) >> 20} MB after them"
        )
