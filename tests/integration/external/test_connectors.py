"""Connectors of external tables: the rows of a version, and the changes since."""

from __future__ import annotations

import math
import os
import shutil
import threading
from array import array
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from conftest import ROOT
from foreign import applied, bag, by_delta
from foreign import delta_connector as connector

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.engine.named_files import one_after_another
from persist_assets.engine.session import translated
from persist_assets.external.connectors.protocol import CHANGE, INSERT

FOREIGN = ROOT / "tests" / "data" / "foreign"


TABLES = [
    # name, columns, predicate of Spark, of DataFusion
    ("table-with-dv-small", ["value"], "value > 3", "value > 3"),
    ("table-without-dv-small", ["value"], "value > 3", "value > 3"),
    ("table_with_column_mapping", ["Super Name", "Company Very Short"], "`Super Name` < 'B'", "\"Super Name\" < 'B'"),
    ("table_with_column_mapping", ["Super Name", "Company Very Short"], "`Company Very Short` = 'BME'", "\"Company Very Short\" = 'BME'"),
    ("checkpoint-v2-table", ["id", "name"], "id > 40", "id > 40"),
    ("delta-0.8.0-null-partition", ["k", "v"], "k IS NULL", "k IS NULL"),
    ("delta-0.8.0-null-partition", ["k", "v"], "k = 'A'", "k = 'A'"),
    ("delta-0.8.0-partitioned", ["value", "year", "month", "day"], "year = '2020' AND value <> '2'", "year = '2020' AND value <> '2'"),
    ("cdf-table", ["id", "name", "birthday"], "birthday > DATE '2023-12-24'", "birthday > DATE '2023-12-24'"),
    ("cdf-table-non-partitioned", ["id", "name", "birthday"], "id = 1 OR name LIKE 'C%'", "id = 1 OR name LIKE 'C%'"),
    ("simple_table", ["id"], "id > 5", "id > 5"),
    ("simple_table_with_checkpoint", ["version"], "version IN (1, 7)", "version IN (1, 7)"),
]  # fmt: skip


@pytest.mark.proves("F11")
@pytest.mark.parametrize(("name", "columns", "predicate", "where"), TABLES)
def test_tables_written_by_other_programs_are_read_correctly(
    spark: Any, name: str, columns: list[str], predicate: str, where: str
) -> None:
    root = FOREIGN / name
    table = connector(spark, root)
    version = table.pin()
    newest = deltalake.DeltaTable(root).version()
    assert version.startswith(f"delta:{newest}:")
    rows = bag(table.snapshot(predicate, columns, version).collect())
    assert rows == by_delta(root, newest, columns, where)
    everything = [f.name for f in deltalake.DeltaTable(root).schema().fields]
    whole = bag(table.snapshot(None, everything, version).collect())
    assert whole == by_delta(root, newest, everything)
    assert 0 < rows.total() < whole.total()
    read = table.prune(predicate, version)
    assert read.rows is None or read.rows >= rows.total()
    assert read.files <= read.of


def test_every_foreign_test_table_is_covered() -> None:
    assert {path.name for path in FOREIGN.iterdir() if path.is_dir()} == {t[0] for t in TABLES}


@pytest.mark.proves("F14")
@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("table-with-dv-small", ["value"]),
        ("cdf-table", ["id", "name", "birthday"]),
        ("cdf-table-non-partitioned", ["id", "name", "birthday"]),
        ("simple_table", ["id"]),
        ("checkpoint-v2-table", ["id", "name"]),
    ],
)
def test_changes_applied_to_an_earlier_version_give_the_later_one(
    spark: Any, name: str, columns: list[str]
) -> None:
    root = FOREIGN / name
    table = connector(spark, root)
    until = table.pin()
    last = deltalake.DeltaTable(root).version()
    since = f"delta:0:{until.split(':')[2]}"
    found = table.changes(since, until, None, columns)
    assert found.full_read_reason is None
    assert found.frame is not None
    before = by_delta(root, 0, columns)
    assert applied(before, found.frame.collect()) == by_delta(root, last, columns)


def written(root: Path, cdf: bool) -> deltalake.DeltaTable:
    rows = {"id": list(range(20)), "c": [f"k{i % 3}" for i in range(20)], "x": [None if i % 5 == 0 else i / 2 for i in range(20)]}  # fmt: skip
    deltalake.write_deltalake(
        root, pa.table(rows), configuration={"delta.enableChangeDataFeed": str(cdf).lower()}
    )
    return deltalake.DeltaTable(root)


def more(root: Path, ids: range, c: str) -> None:
    rows = {"id": list(ids), "c": [c for _ in ids], "x": [float(i) for i in ids]}
    deltalake.write_deltalake(root, pa.table(rows), mode="append")


@pytest.mark.proves("F14")
@pytest.mark.parametrize("cdf", [True, False])
def test_changes_since_a_pinned_version_equal_the_committed_changes(
    spark: Any, tmp_path: Path, cdf: bool
) -> None:
    columns, predicate = ["id", "c", "x"], "c = 'k1' AND x IS NOT NULL"
    table = written(tmp_path / "t", cdf)
    source = connector(spark, tmp_path / "t")
    pinned = source.pin()
    more(tmp_path / "t", range(100, 110), "k1")
    table.update_incremental()
    # A merge, because an update by delta-rs may not record all rows: its files are compared.
    for number, values in (
        (4, {"c": "'k2'"}),  # no longer meets the predicate
        (5, {"c": "'k1'", "x": "1.5"}),  # now meets it
    ):
        row = pa.table({"id": pa.array([number], pa.int64())})
        merger = table.merge(row, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update(values).execute()
    table.delete("id IN (7, 100)")
    table.optimize.compact()
    now = source.pin()
    # The pinned version is unchanged, and the changes since then lead to the newest one.
    start = bag(source.snapshot(predicate, columns, pinned).collect())
    assert start == by_delta(tmp_path / "t", 0, columns, predicate)
    found = source.changes(pinned, now, predicate, columns)
    assert found.full_read_reason is None
    assert found.frame is not None
    changes = found.frame.collect()
    end = by_delta(
        tmp_path / "t", deltalake.DeltaTable(tmp_path / "t").version(), columns, predicate
    )
    assert applied(start, changes) == end
    if cdf:  # exactly: no unchanged row
        assert Counter((r["id"], r[CHANGE]) for r in changes) == Counter(
            {**{(i, INSERT): 1 for i in (*range(100, 110), 5)}, (4, "delete"): 1, (7, "delete"): 1, (100, "delete"): 1}
        )  # fmt: skip
    assert source.changes(now, now, predicate, columns).frame is None


def test_files_without_matching_rows_are_skipped(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    for start in (1000, 2000, 3000):
        more(root, range(start, start + 10), "late")
    source = connector(spark, root)
    read = source.prune("id >= 2000 AND id < 2005", source.pin())
    assert (read.files, read.of, read.rows) == (1, 4, 10)
    assert source.prune("id < 0", source.pin()).files == 0
    assert source.snapshot("id < 0", ["c", "id"], source.pin()).collect() == []
    assert source.prune("c LIKE 'z%' OR x > 1e9", source.pin()).files == 4  # x may be NaN


CORNERS = [
    "m > 1.49", "m = 1.50", "m < 0", "m IN (2.5, 99999999.99)", "m IS NULL", "NOT (m > 1.49)",
    "big >= 12345678901234567890123456.78", "big = 12345678901234567890123456.79",
    "S = 'it''s'", "s = 'a\\\\b'", "s = 'A'", "S LIKE 'a%'", "s > 'é'", "s <> 'a'", "s IS NULL OR s < 'B'", "s NOT LIKE 'i%'",
    "t >= TIMESTAMP '2024-03-31 01:30:00Z'", "t < TIMESTAMP '2024-03-31 03:30:00+02:00'", "t = DATE '2024-03-31'",
    "t > TIMESTAMP '2024-10-27 00:59:59.999999Z'", "d = '2024-02-29'", "d BETWEEN DATE '2024-02-29' AND DATE '2024-03-01'",
    "d = '1582-10-04'", "d < DATE '1582-10-15'", "t < TIMESTAMP '1500-01-01 00:00:00.0005Z'", "t = TIMESTAMP '1969-12-31 23:59:59.9995Z'",
    "t < TIMESTAMP '1969-12-31 23:59:59.9995Z' AND t > TIMESTAMP '1600-01-01'", "s LIKE 'zzzz%'", "s > 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'", "m = 1.5e0",
    "`Odd Name` = 1", "`odd name` <=> NULL", "f = -0.0", "f >= 'NaN'", "f < 1e308 AND NOT f = 0", "true", "m = NULL", "s IN ('A', NULL)",
]  # fmt: skip


@pytest.mark.slow
def test_files_are_read_in_the_order_of_a_column(spark: Any, tmp_path: Path) -> None:
    for day, n in ((3, 600_000), (1, 700_000), (4, 800_000), (2, 650_000)):
        noise = pa.array(array("d", map(math.sin, range(day * n, (day + 1) * n))))
        rows = pa.table({"day": pa.array([day] * n, pa.int32()), "noise": noise})
        deltalake.write_deltalake(tmp_path, rows, mode="append")
    table = connector(spark, tmp_path)

    def days(**how: Any) -> list[int]:
        frame = table.snapshot(None, ["day", "noise"], table.pin(), **how)
        told = frame.selectExpr("spark_partition_id() AS n", "day").distinct().collect()
        return [row.day for row in sorted(told)]

    assert sorted(set(days())) == [1, 2, 3, 4] != days()
    assert days(order="day") == sorted(days(order="day"))
    assert days(order="noise") == days(), "files overlap"


@pytest.mark.slow
@pytest.mark.proves("F11")
def test_a_pushed_down_predicate_selects_the_same_rows_as_a_filter_over_all_rows(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    names = ["m", "big", "s", "t", "d", "Odd Name", "f"]
    schema = pa.schema(
        [("m", pa.decimal128(10, 2)), ("big", pa.decimal128(38, 2)), ("s", pa.string()),
         ("t", pa.timestamp("us", tz="UTC")), ("d", pa.date32()), ("Odd Name", pa.int32()), ("f", pa.float64())]
    )  # fmt: skip
    big = Decimal("12345678901234567890123456.78")

    def at(*moment: int) -> datetime:
        return datetime(*moment, tzinfo=UTC)  # type: ignore[misc]

    rows = [
        (Decimal("1.49"), big, "it's", at(2024, 3, 31, 1, 29, 59, 999999), date(2024, 2, 28), 1, 0.0),
        (Decimal("1.50"), big + Decimal("0.01"), "a\\b", at(2024, 3, 31, 1, 30), date(2024, 2, 29), None, math.nan),
        (Decimal("-3.00"), None, "A", at(2024, 10, 27, 0, 59, 59, 999999), None, 2, -0.0),
        (Decimal("99999999.99"), -big, "a", at(2024, 10, 27, 1, 0), date(2024, 3, 1), 1, math.inf),
        (None, big, "é", None, date(9999, 12, 31), None, None),
        (Decimal("2.50"), big, None, at(2024, 3, 31), date(2024, 3, 2), 3, 5.0),
        (Decimal("2.51"), big, "ê", at(1969, 12, 31, 23), date(1960, 1, 1), 3, -1.5),
        (Decimal("2.52"), big, "z" * 40 + "😀", at(1500, 1, 1, 0, 0, 0, 999), date(1582, 10, 4), 3, -0.0),
        (Decimal("2.53"), big, "z" * 70 + "é", at(1969, 12, 31, 23, 59, 59, 999500), date(1500, 2, 28), 3, 1.0),
    ]  # fmt: skip
    for row in rows:  # one file per row, so that each has statistics of its own
        table = pa.table({n: [v] for n, v in zip(names, row, strict=True)}, schema=schema)
        deltalake.write_deltalake(root, table, mode="append")
    source = connector(spark, root)
    version = source.pin()
    kinds = "decimal(10,2), decimal(38,2), string, timestamp, date, int, double".split(", ")
    whole = spark.createDataFrame(
        rows, ", ".join(f"`{n}` {k}" for n, k in zip(names, kinds, strict=True))
    )
    left_out = 0
    for predicate in CORNERS:
        found = source.snapshot(predicate, names, version).collect()
        expected = whole.where(predicate).collect()
        assert Counter(map(str, found)) == Counter(map(str, expected)), predicate
        read = source.prune(predicate, version)
        assert len(found) <= read.files <= read.of == len(rows)
        left_out += read.of - read.files
    assert left_out > len(CORNERS)


def test_statistics_that_omit_nan_do_not_prune_files_with_nan(spark: Any, tmp_path: Path) -> None:
    # The writer leaves NaN out of the statistics.
    numbers = [1.0, float("nan")]
    rows = pa.table({"x": numbers, "s": [{"y": n} for n in numbers]})
    deltalake.write_deltalake(tmp_path / "t", rows)
    source = connector(spark, tmp_path / "t")
    for predicate in ("x > 5", "s.y >= 5"):
        found = source.snapshot(predicate, ["x"], source.pin()).collect()
        assert [str(r.x) for r in found] == ["nan"], predicate


@pytest.mark.proves("F26")
def test_options_select_the_version_to_pin(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    for start in (1000, 2000, 3000):
        more(root, range(start, start + 10), "late")

    def number(held: str | None = None, **options: Any) -> int:
        return int(connector(spark, root, **options).pin(held).split(":")[1])

    assert number() == 3
    assert number(mode="snapshot", version=1) == 1
    assert number(version=1) == 3  # it follows the changes after version 1
    assert number(end_version=2) == 2
    assert number(end_version=9) == 3
    ended = connector(spark, root, end_version=2)
    version = ended.pin()
    deltalake.DeltaTable(str(root)).create_checkpoint()
    kept = (root / "_delta_log" / f"{1:020}.json").rename(tmp_path / "away")
    with pytest.raises(StorageError):
        ended.pin()
    assert ended.pin(version) == version  # an existing copy may stay
    kept.rename(root / "_delta_log" / f"{1:020}.json")
    table = connector(spark, root)
    held = table.pin().replace("delta:3", "delta:2")
    assert number(held, mode="snapshot") == 2  # an existing copy stays
    for n in range(4):
        os.utime(root / "_delta_log" / f"{n:020}.json", (1_700_000_000 + n, 1_700_000_000 + n))
    assert number(mode="snapshot", datetime="2023-11-14T22:13:21.500000+00:00") == 1
    assert number(datetime="2023-11-14T22:13:21.500000+00:00") == 3
    with pytest.raises(GoneError, match="has no version as of 2023"):
        number(mode="snapshot", datetime="2023-11-14T22:13:19+00:00")


@pytest.mark.proves("F26")
def test_filter_applies_to_all_rows_and_snapshot_filter_only_to_the_first_copy(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    written(root, False)
    source = connector(spark, root, filter="c <> 'k1'", snapshot_filter="id < 5 -- early")
    pinned = source.pin()
    rows = source.snapshot(None, ["id"], pinned).collect()
    assert sorted(r.id for r in rows) == [0, 2, 3]
    more(root, range(100, 102), "k0")
    more(root, range(200, 202), "k1")
    found = source.changes(pinned, source.pin(), None, ["id"])
    assert found.frame is not None
    assert sorted(r.id for r in found.frame.collect()) == [100, 101]


# ------------------------------------------------------------------------------------------ errors


def test_a_mismatch_with_the_declaration_is_reported(spark: Any, tmp_path: Path) -> None:
    written(tmp_path / "t", False)
    for column, said in [
        (Column("ident", "bigint"), "has no column `ident`"),
        (Column("ID", "int"), "`ID` is bigint but is declared as int"),
    ]:
        with pytest.raises(StorageError, match=said):
            connector(spark, tmp_path / "t", (column,)).pin()
    connector(spark, tmp_path / "t", (Column("ID", "bigint"), Column("c", "varchar(3)"))).pin()


def test_all_declaration_mismatches_are_reported_at_once(spark: Any, tmp_path: Path) -> None:
    columns = (
        *(Column("amont", "double"), Column("id", "int"), Column("zz", "date")),
        *(Column("name", "string"), Column("tags", "array<int>")),
    )
    there = pa.table({"id": [1], "amount": [1.5], "name": ["a"], "tags": [["x"]]})
    deltalake.write_deltalake(str(tmp_path / "t"), there)
    source = connector(spark, tmp_path / "t", columns)
    with pytest.raises(StorageError) as raised:
        source.pin()
    assert raised.value.message.endswith(
        " does not match its declaration: it has no columns `amont`, `zz`;"
        " `id` is bigint but is declared as int;"
        " `tags` is array<string> but is declared as array<int>"
    )
    assert raised.value.hint == (
        "for `amont`, did you mean `amount`?; its columns: id, amount, name, tags;"
        " declare `id` as bigint, `tags` as array<string> and cast in a view"
    )


def test_a_missing_table_or_version_is_reported(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no Delta table at"):
        connector(spark, tmp_path / "nowhere").pin()
    written(tmp_path / "t", False)
    with pytest.raises(GoneError, match="version 7"):
        connector(spark, tmp_path / "t", version=7, mode="snapshot").pin()


def test_changes_missing_from_the_log_require_a_full_read(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = written(root, False)
    source = connector(spark, root)
    first = source.pin()
    more(root, range(100, 110), "k1")
    table.update_incremental()
    table.delete("id = 3")
    last = source.pin()
    # A removed file was deleted from storage: the rows that it held are unknown.
    gone = {p.name for p in root.glob("*.parquet")} - {
        Path(u).name for u in deltalake.DeltaTable(root).file_uris()
    }
    kept = tmp_path / "kept"
    for name in gone:
        shutil.move(root / name, kept) if not kept.exists() else None
    assert "is gone" in (source.changes(first, last, None, ["id"]).full_read_reason or "")
    with pytest.raises(GoneError, match="is gone"):
        source.snapshot(None, ["id"], first)
    deltalake.DeltaTable(root).create_checkpoint()
    (root / "_delta_log" / f"{1:020}.json").rename(tmp_path / "1.json")
    assert "no longer has version 1" in (
        source.changes(first, last, None, ["id"]).full_read_reason or ""
    )
    (root / "_delta_log" / f"{0:020}.json").rename(tmp_path / "0.json")
    assert "version 0" in (source.changes(first, last, None, ["id"]).full_read_reason or "")
    assert "replaced by another" in (
        source.changes("delta:0:other", last, None, ["id"]).full_read_reason or ""
    )
    assert "went back" in (source.changes(last, first, None, ["id"]).full_read_reason or "")


def test_dropped_columns_require_a_full_read_new_ones_do_not(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    source = connector(spark, root)
    first = source.pin()
    rows = pa.table({"id": [1], "c": ["k1"], "x": [1.0], "new": ["n"]})
    deltalake.write_deltalake(root, rows, mode="append", schema_mode="merge")
    changes = source.changes(first, source.pin(), None, ["id", "new"])
    assert changes.frame is not None
    assert [tuple(row)[:3] for row in changes.frame.collect()] == [(1, "n", INSERT)]
    rows_now = source.snapshot("new IS NULL", ["id", "new"], source.pin()).collect()
    assert len(rows_now) == 20
    deltalake.write_deltalake(root, rows.drop(["x"]), mode="overwrite", schema_mode="overwrite")
    again = source.changes(first, source.pin(), None, ["id", "new"]).full_read_reason or ""
    assert "its columns changed after version 0" in again


def test_a_recreated_table_is_not_mistaken_for_the_old_one(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    source = connector(spark, root)
    first = source.pin()
    shutil.rmtree(root)
    written(root, False)
    with pytest.raises(GoneError, match="was replaced"):
        source.snapshot(None, ["id"], first)


def test_a_truncated_file_is_an_error(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    source = connector(spark, root)
    (file,) = root.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(StorageError, match="is broken"):
        source.snapshot(None, ["id"], source.pin())


def test_groups_of_files_keep_their_order_and_the_caller_loads_the_first(spark: Any) -> None:
    by_group: dict[int, threading.Thread] = {}

    def load(group: int) -> Any:
        by_group[group] = threading.current_thread()
        return spark.range(group, group + 1)

    rows = one_after_another(load, range(9)).collect()
    assert [row.id for row in rows] == [*range(9)]
    here = threading.current_thread()
    assert [group for group, thread in by_group.items() if thread is here] == [0]


def test_an_error_names_the_file_that_cannot_be_read(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    source = connector(spark, root)
    (file,) = root.glob("*.parquet")
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(StorageError) as caught, translated("reading"):
        source.snapshot(None, ["id"], source.pin()).collect()
    assert caught.value.message == f"reading failed: {file} cannot be read"
    assert caught.value.hint == "it may be broken: have it rewritten"


def test_unknown_reader_features_are_rejected_by_name(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root, False)
    log = root / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    old = next(line for line in text.splitlines() if line.startswith('{"protocol"'))
    new = '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["typeWidening"],"writerFeatures":["typeWidening"]}}'
    log.write_text(text.replace(old, new))
    with pytest.raises(StorageError, match="typeWidening"):
        connector(spark, root).pin()


def test_deletes_in_an_append_only_table_are_reported(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = written(root, False)
    source = connector(spark, root, append_only=True)
    first = source.pin()
    table.delete("id = 3")
    with pytest.raises(StorageError, match="append_only"):
        source.changes(first, source.pin(), None, ["id"])


def test_an_error_names_the_unset_environment_variable(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="PERSIST_SECRET_KEY, which is not set"):
        connector(
            spark, tmp_path, storage=(("aws_secret_access_key", "${env:PERSIST_SECRET_KEY}"),)
        )
