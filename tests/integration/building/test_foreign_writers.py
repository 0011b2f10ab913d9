"""Raw tables as other programs write them: each table equals a computation from scratch."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import date, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from growing import check, kind_of

from persist_assets.building.builder import Builder
from persist_assets.core.errors import StorageError
from persist_assets.operations.environments import roll_back
from persist_assets.storage.changes import delta_change

if TYPE_CHECKING:
    from pathlib import Path

Make = Callable[..., Builder]
RECORDED = {"delta.enableChangeDataFeed": "true"}
READERS = """
CREATE TABLE t (k STRING, v INT) USING delta LOCATION 't';
--@ persist refresh=incremental
CREATE VIEW a_total AS SELECT sum(v) AS s, count(*) AS n FROM t;
--@ persist refresh=incremental
CREATE VIEW b_below AS SELECT v FROM t WHERE v < 100;
--@ persist refresh=incremental
CREATE VIEW c_groups AS SELECT v, count(*) AS n FROM t GROUP BY v;
"""
FOLLOWED = """
CREATE EXTERNAL TABLE t (k STRING, v INT) WITH ('connectors' = '[{"transport":
  {"name": "delta_table_input", "config": {"uri": "t", "mode": "snapshot_and_follow"}}}]');
--@ persist
CREATE VIEW q AS SELECT k, v FROM t;
"""


def build(builder: Builder, among: Collection[str] = ()) -> dict[str, str]:
    """Build sources, compare each with a computation from scratch, and return the methods."""
    methods: dict[str, str] = {}
    for source in builder.project.persisted:
        if not among or source.name in among:
            with builder.work(source) as work:
                builder.publish(work)
            methods[source.name] = kind_of(work)
            check(builder, source, f"a build ({methods[source.name]})")
    return methods


def numbers(*values: int, keys: str = "") -> pa.Table:
    names = [*keys] or ["a"] * len(values)
    return pa.table({"k": names, "v": pa.array(values, pa.int32())})


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_updates_by_delta_rs_are_followed_although_their_change_data_lack_rows(
    make_project: Callable[..., Path], enter: Make
) -> None:
    root = make_project({"m.sql": READERS})
    write_deltalake(root / "t", numbers(1, 2, 2, 3), configuration=RECORDED)
    build(enter(root))
    DeltaTable(root / "t").update(updates={"v": "v + 1"})
    assert n_recorded(root / "t") < 8
    assert set(build(enter(root)).values()) == {"keys", "merge"}


def n_recorded(table: Path) -> int:
    recorded = (table / "_change_data").rglob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in recorded)


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_complete_change_data_of_updates_by_delta_rs_are_read(
    make_project: Callable[..., Path], enter: Make
) -> None:
    root = make_project({"m.sql": READERS})
    write_deltalake(root / "t", numbers(1, 2, 2, 3), configuration=RECORDED)
    build(enter(root))
    DeltaTable(root / "t").update(updates={"v": "v + 10"}, predicate="v = 2")
    assert n_recorded(root / "t") == 4
    change = delta_change(str(root / "t"), 0, 1)
    assert change is not None
    assert change.feed is not None
    assert set(build(enter(root)).values()) == {"keys", "merge"}


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_copies_follow_updates_by_delta_rs(make_project: Callable[..., Path], enter: Make) -> None:
    root = make_project({"m.sql": FOLLOWED})
    write_deltalake(root / "t", numbers(1, 2), configuration=RECORDED)
    for expected in ([1, 2], [2, 2]):
        builder = enter(root)
        build(builder)
        (source,) = builder.project.persisted
        assert sorted(row.v for row in builder.read(source).collect()) == expected
        DeltaTable(root / "t").update(updates={"v": "2"}, predicate="v = 1")


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_sources_that_follow_a_table_from_different_versions_read_different_changes(
    make_project: Callable[..., Path], enter: Make
) -> None:
    """The versions have the same files; what was recorded since then differs."""
    root = make_project({"m.sql": READERS})
    first = numbers(1, 2, 3, keys="abc")
    write_deltalake(root / "t", first, configuration=RECORDED)
    build(enter(root, run_id="r1"))
    merge(root, 11, "a")
    build(enter(root, run_id="r2"), {"a_total"})
    build(enter(root, run_id="r3"), {"b_below", "c_groups"})
    undo(root / "t" / "_delta_log")
    builder = enter(root, run_id="r4")
    build(builder, {"b_below", "c_groups"})
    roll_back(builder.settings, builder.ledger, run="r2")
    merge(root, 102, "b")
    build(enter(root, run_id="r5"))


def merge(root: Path, value: int, key: str) -> None:
    """Update the row of a key."""
    table = DeltaTable(root / "t")
    merger = table.merge(numbers(value, keys=key), "t.k = s.k", source_alias="s", target_alias="t")
    merger.when_matched_update_all().execute()


def undo(log: Path) -> None:
    """Undo version 1 of a table by adding the files of version 0 again."""
    before, after = (
        [json.loads(line) for line in (log / f"{n:020}.json").read_text().splitlines()]
        for n in (0, 1)
    )
    actions = [{"commitInfo": {"operation": "RESTORE"}}]
    for added in (a["add"] for a in after if "add" in a):
        gone = {name: added[name] for name in ("path", "partitionValues", "size", "dataChange")}
        actions.append({"remove": gone | {"deletionTimestamp": 1, "extendedFileMetadata": True}})
    actions += [{"add": a["add"]} for a in before if "add" in a]
    (log / f"{2:020}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_partition_values_are_those_of_the_log(
    make_project: Callable[..., Path], enter: Make
) -> None:
    """delta-rs quotes the bytes of such characters, and Spark reads each as a character."""
    text = "CREATE TABLE t (p STRING, x INT) USING delta LOCATION 't';\n"
    root = make_project({"m.sql": f"{text}--@ persist\nCREATE VIEW q AS SELECT p, x FROM t;"})
    for values in (["é", "a", "x y%z"], ["ß€", "é", "a"]):
        rows = pa.table({"p": values, "x": pa.array([*range(3)], pa.int32())})
        write_deltalake(root / "t", rows, partition_by=["p"], mode="append")
        builder = enter(root)
        build(builder)
        (source,) = builder.project.persisted
        stored = {(row.p, row.x) for row in builder.read(source).collect()}
        table = DeltaTable(root / "t").to_pyarrow_table().to_pylist()
        assert stored == {(row["p"], row["x"]) for row in table}


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_early_days_of_old_writers_are_found(
    make_project: Callable[..., Path], enter: Make
) -> None:
    """Spark reads these days in another calendar than the statistics of the file have them in."""
    root = make_project(
        {
            "m.sql": "CREATE TABLE t (day DATE, x INT) USING parquet LOCATION 't';\n"
            "--@ persist refresh=incremental watermark=day\n"
            "CREATE VIEW w AS SELECT day, sum(x) AS s FROM t GROUP BY day;\n"
        }
    )
    (root / "t").mkdir()
    days = pa.array([date(1500, 1, 10), date(2024, 1, 1)], pa.date32())
    for n in range(2):
        rows = pa.table({"day": days, "x": pa.array([n, 10 * n], pa.int32())})
        with pq.ParquetWriter(root / "t" / f"{n}.parquet", rows.schema, store_schema=False) as file:
            file.write_table(rows)
            file.add_key_value_metadata({"org.apache.spark.version": "2.4.0"})
        build(enter(root))


@pytest.mark.slow
@pytest.mark.proves("T19")
def test_local_times_are_no_moments(make_project: Callable[..., Path], enter: Make) -> None:
    """In UTC, both are the same."""
    sources = (
        "CREATE TABLE t (ts TIMESTAMP) USING delta LOCATION 't';\n"
        "--@ persist\nCREATE VIEW q AS SELECT CAST(ts AS STRING) AS s FROM t;\n"
    )
    root = make_project({"m.sql": sources})
    noon = pa.table({"ts": pa.array([datetime(2024, 1, 1, 12)], pa.timestamp("us"))})
    write_deltalake(root / "t", noon)
    build(enter(root))
    (root / "persist.toml").write_text('timezone = "Europe/Berlin"\n')
    with pytest.raises(StorageError, match="`ts` of the Delta table `t` is a TIMESTAMP_NTZ"):
        build(enter(root))
