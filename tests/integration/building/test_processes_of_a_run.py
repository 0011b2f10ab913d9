"""Processes of one run: a Dagster executor may run each step in a separate process."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.pins import begin_together, reading_as
from persist_assets.core.errors import PersistError
from persist_assets.ledger.run_pins import LASTING
from persist_assets.operations.gc import collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.ledger.ledger import Ledger

LAKE = [{"transport": {"name": "delta_table_input", "config": {"uri": "e"}}}]
SQL = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
CREATE TABLE d (a BIGINT) USING delta LOCATION 'raw/d';
CREATE TABLE later (a BIGINT) USING parquet LOCATION 'raw/later';
--@ persist
CREATE VIEW first AS
SELECT 't' AS k, count(*) AS n FROM t UNION ALL SELECT 'd', count(*) FROM d;
--@ persist
CREATE VIEW second AS
SELECT k, n FROM first UNION ALL SELECT 't', count(*) FROM t UNION ALL SELECT 'd', count(*) FROM d;
--@ persist
CREATE VIEW third AS SELECT count(*) AS n FROM later;
"""
EXTERNAL = f"""
CREATE EXTERNAL TABLE e (a BIGINT) WITH ('connectors' = '{json.dumps(LAKE)}');
--@ persist
CREATE VIEW one AS SELECT a FROM e WHERE a > 0;
--@ persist
CREATE VIEW other AS SELECT one.a + e.a AS a FROM one JOIN e ON one.a = e.a WHERE e.a < 9;
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


def put(root: Path, *tables: str) -> None:
    """Add a row to some tables."""
    row = pa.table({"a": pa.array([1], pa.int64())})
    for table in tables:
        place = root / ("e" if table == "e" else f"raw/{table}")
        place.mkdir(parents=True, exist_ok=True)
        if table in ("d", "e"):
            write_deltalake(place, row, mode="append")
        else:
            pq.write_table(row, place / f"{len([*place.iterdir()])}.parquet")


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project({"m.sql": SQL})
    put(root, "t", "d")
    return root


@pytest.fixture
def process(root: Path, enter: Callable[..., Builder]) -> Callable[..., Builder]:
    """Return a function that starts another process of a run."""

    def begin(run_id: str = "run", *, shares: bool = True) -> Builder:
        builder = enter(root, run_id=run_id)
        if not shares:
            return builder
        now = datetime.now(UTC)
        with reading_as(begin_together(builder.ledger, builder.settings, run_id, now)):
            return enter(root, run_id=run_id)

    return begin


def named(builder: Builder, name: str) -> Source:
    return next(s for s in builder.project.sources if s.name == name)


def build(builder: Builder, name: str) -> Snapshot:
    snapshot = builder.build(named(builder, name)).snapshot
    assert snapshot is not None
    return snapshot


def rows(root: Path, snapshot: Snapshot) -> list[tuple[Any, ...]]:
    table = DeltaTable(root / ".persist" / "warehouse" / snapshot.table, snapshot.version)
    return sorted(zip(*table.to_pyarrow_table().to_pydict().values(), strict=True))


def versions(snapshot: Snapshot) -> set[tuple[str, str]]:
    return {(v.raw, v.version) for v in snapshot.as_of}


@pytest.mark.proves("U4")
@pytest.mark.parametrize("shares", [True, False])
def test_processes_of_a_run_read_the_same_versions_of_raw_data(
    shares: bool, root: Path, process: Callable[..., Builder]
) -> None:
    one = process(shares=shares)
    first = build(one, "first")
    put(root, "t", "d")
    two = process(shares=shares)
    second = build(two, "second")
    counted = {n for _, n in rows(root, second)}
    if not shares:  # without shared pins, two processes read different data
        assert counted == {1, 2}
        assert len(versions(second)) > len(versions(first))
        return
    assert counted == {1}
    assert versions(second) == versions(first)
    assert two.observer.started_at == one.observer.started_at
    # Data that was missing when the run started is pinned at its first read.
    put(root, "later")
    third = build(process(), "third")
    put(root, "later")
    assert versions(third) == versions(build(process(), "third"))
    # The next run starts with the current data.
    other = process("another")
    assert other.observer.started_at > one.observer.started_at
    build(other, "first")
    assert {n for _, n in rows(root, build(process("another"), "second"))} == {2}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.proves("U4")
def test_processes_of_a_run_read_one_version_of_an_external_table(
    root: Path, process: Callable[..., Builder]
) -> None:
    (root / "sources" / "m.sql").write_text(EXTERNAL)
    put(root, "e")
    waiting = process()
    one = build(process(), "one")
    put(root, "e")
    reads = waiting.observer.pins
    assert len(rows(root, build(waiting, "other"))) == 1  # the table has two rows by now
    assert versions(build(process(), "other")) == versions(one)
    assert reads.is_synced(named(waiting, "e"))
    build(process("another"), "one")
    assert len(rows(root, build(process("another"), "other"))) == 4


@pytest.mark.proves("U4")
def test_processes_that_start_concurrently_read_the_same_versions(
    root: Path, process: Callable[..., Builder]
) -> None:
    one, two = process(), process()
    first = build(one, "first")
    put(root, "t", "d")
    assert versions(build(two, "second")) == versions(first)


@pytest.mark.proves("U4")
def test_data_is_not_read_if_its_listing_cannot_be_stored(
    root: Path, process: Callable[..., Builder]
) -> None:
    """The process retries later, and then reads the version that the others read."""
    builder = process()
    place = root / ".persist" / "warehouse"
    place.mkdir(parents=True)
    (place / ".listings").write_text("in the way")
    with pytest.raises(PersistError):
        builder.observer.pins.pin(named(builder, "t"))
    (place / ".listings").unlink()
    put(root, "t", "d")
    first = build(process(), "first")
    assert versions(build(builder, "second")) == versions(first)


@pytest.mark.proves("U4")
def test_garbage_collection_keeps_listings_that_runs_read(
    root: Path, process: Callable[..., Builder]
) -> None:
    builder = process()
    builder.observer.pins.pin(named(builder, "t"))  # no table depends on this version yet
    put(root, "t", "d")
    (listings,) = (root / ".persist" / "warehouse" / ".listings").iterdir()
    for file in listings.iterdir():
        os.utime(file, (0, 0))
    collect(builder.settings, builder.project, builder.ledger)
    assert rows(root, build(process(), "first")) == [("d", 1), ("t", 1)]


@pytest.mark.proves("U4")
def test_a_step_fails_and_publishes_nothing_if_pinned_data_is_gone(
    root: Path, process: Callable[..., Builder]
) -> None:
    build(process(), "first")
    pq.write_table(pa.table({"a": pa.array([5, 6], pa.int64())}), root / "raw" / "t" / "0.parquet")
    builder = process()
    with pytest.raises(PersistError, match=r"the data that this run began with is gone") as caught:
        builder.build(named(builder, "second"))
    assert "start another run" in (caught.value.hint or "")
    manifest = builder.ledger.manifests.fetch("dev")
    assert named(builder, "second").build_id not in manifest
    build(process("another"), "first")
    assert {n for _, n in rows(root, build(process("another"), "second"))} == {1, 2}


@pytest.mark.proves("U4")
def test_a_run_reads_one_version_after_optimize_and_vacuum(
    root: Path, process: Callable[..., Builder]
) -> None:
    """Other jobs run OPTIMIZE and VACUUM before the run, and write during it."""
    put(root, "d")
    build(process("before"), "first")
    table = DeltaTable(root / "raw" / "d")
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    builder = process()
    first = build(builder, "first")
    put(root, "d")
    second = build(process(), "second")
    assert versions(second) == versions(first)
    assert {n for k, n in rows(root, second) if k == "d"} == {2}


@pytest.mark.proves("U4")
def test_the_first_recorded_pin_of_a_subject_wins(open_ledger: Callable[..., Ledger]) -> None:
    at = [datetime(2026, 1, 1, tzinfo=UTC)]
    one, two = (open_ledger(clock=lambda: at[0]).run_pins for _ in range(2))
    assert one.record("run", {"a": {"v": 1}}) == {"a": {"v": 1}}
    assert two.record("run", {"a": {"v": 2}, "b": {"v": 3}}) == {"a": {"v": 1}, "b": {"v": 3}}
    assert two.record("other", {"a": {"v": 2}}) == {"a": {"v": 2}}
    assert one.fetch("run") == {"a": {"v": 1}, "b": {"v": 3}}
    if not one.database.is_postgres:  # PostgreSQL uses its own clock
        at[0] += LASTING * 2
        one.record("late", {"a": {"v": 4}})
        assert (one.fetch("run"), one.fetch("other")) == ({}, {})
