"""Dagster as teams run it: PostgreSQL, a queue of runs, two code locations, one shared Spark."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import persist
from conftest import SPARK_TOML, wait_for
from deltalake import DeltaTable, write_deltalake
from deployment import Dagster, dagster_of

from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres import Postgres

    from persist_assets.core.model.snapshots import Build, Snapshot

pytestmark = pytest.mark.slow
DAYS = [date(2025, 1, 1) + timedelta(n) for n in range(365)]
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
defs = dg.Definitions.merge(
    load_sources("sources", assets=[meddler], translator=Waiting),
    dg.Definitions(jobs=[apart, together]),
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
    """A deployment of two projects, and the first one's ledger."""

    dagster: Dagster
    lake: Path
    reports: Path
    ledger: Ledger

    def tables(self, environment: str = "prod") -> dict[str, Snapshot]:
        """Return what readers of the first project see, by the names of sources."""
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


@pytest.fixture(scope="module")
def team(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, servers: None
) -> Iterator[Team]:
    directory = tmp_path_factory.mktemp("team")
    spark = SPARK_TOML + "shared = true\n"
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
        yield Team(dagster, lake, reports, ledger)
        ledger.close()


@pytest.mark.proves("U4")
def test_a_backfill_of_a_year_builds_each_day_once(team: Team) -> None:
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
    # Dagster knows each of the days.
    query = (
        '{ assetNodeOrError(assetKey: {path: ["lake", "flights", "by_day"]}) { ... on AssetNode {'
        " partitionStats { numMaterialized numPartitions numFailed } } } }"
    )
    stats = dagster.ask(query)["assetNodeOrError"]["partitionStats"]
    assert stats == {"numMaterialized": 365, "numPartitions": 365, "numFailed": 0}


@pytest.mark.proves("U4")
def test_steps_in_processes_of_their_own_read_the_same_data(team: Team) -> None:
    """Between two steps, an asset adds rows to what both read."""
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
    # What is settled stays as it is, whoever looks at it.
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
