"""Iceberg tables through their connector: rows by ids of columns, deletes, and what is followed."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, need

from persist_assets.connectors import connect
from persist_assets.connectors.protocol import CHANGE, INSERT, Connector
from persist_assets.errors import GoneError, StorageError
from persist_assets.model import Column, External, RawTable

FOREIGN = ROOT / "tests" / "data" / "foreign_iceberg"
POINTS = pa.schema([("id", pa.int64()), ("c", pa.string()), ("x", pa.float64())])


@pytest.fixture(autouse=True)
def iceberg() -> None:
    there = importlib.util.find_spec("pyiceberg")
    need("it" if there else None, "install persist-assets[iceberg]")


def connector(spark: Any, root: Path | str, *columns: Column, **said: Any) -> Connector:
    external = External("iceberg_input", **said)
    return connect(RawTable("iceberg", str(root), (), external), str(root), columns, lambda: spark)


def bag(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in rows)


class Written:
    """An Iceberg table that pyiceberg writes, with a hint at its newest metadata."""

    def __init__(self, tmp_path: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.root = tmp_path / "n" / "t"
        self.catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")  # fmt: skip
        self.catalog.create_namespace("n")
        self.table = self.catalog.create_table("n.t", POINTS, location=f"file://{self.root}")
        self.hint()

    def hint(self) -> None:
        newest = self.table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
        (self.root / "metadata" / "version-hint.text").write_text(newest)

    def append(self, *rows: tuple[int, str, float | None]) -> None:
        columns = zip(*rows, strict=True)
        names = [f.name for f in self.table.schema().fields]
        arrays = {n: list(v) for n, v in zip(names, columns, strict=True)}
        types = self.table.schema().as_arrow()
        self.table.append(pa.table(arrays, schema=pa.schema([(f.name, f.type) for f in types])))
        self.hint()

    def delete_positions(self, *positions: int) -> None:
        """Delete rows of the one data file by their numbers, as other writers do."""
        from pyiceberg.manifest import (
            DataFile,
            DataFileContent,
            FileFormat,
            ManifestContent,
            ManifestEntry,
            ManifestEntryStatus,
            ManifestWriterV2,
            write_manifest_list,
        )
        from pyiceberg.typedef import Record

        class Deletes(ManifestWriterV2):
            def content(self) -> ManifestContent:
                return ManifestContent.DELETES

            @property
            def _meta(self) -> dict[str, str]:
                return {**super()._meta, "content": "deletes"}

        table = self.table
        (task,) = table.scan().plan_files()
        place = self.root / "data" / "deletes.parquet"
        rows = {"file_path": [task.file.file_path] * len(positions), "pos": list(positions)}
        pq.write_table(pa.table(rows), place)
        number = 4711
        parent = table.current_snapshot()
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"file://{place}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(positions),
            file_size_in_bytes=place.stat().st_size,
        )
        file.spec_id = 0
        manifest = table.io.new_output(f"file://{self.root}/metadata/deletes-m0.avro")
        with Deletes(table.spec(), table.schema(), manifest, number, "null") as writer:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file
                )
            )
        listed = f"file://{self.root}/metadata/snap-{number}.avro"
        with write_manifest_list(2, table.io.new_output(listed), number, parent.snapshot_id, 2, "null") as lists:  # fmt: skip
            lists.add_manifests([*parent.manifests(table.io), writer.to_manifest_file()])
        place = Path(table.metadata_location.removeprefix("file://"))
        told = json.loads(place.read_text())
        at = parent.timestamp_ms + 1
        told["snapshots"].append(
            {"snapshot-id": number, "parent-snapshot-id": parent.snapshot_id, "sequence-number": 2, "timestamp-ms": at,
             "manifest-list": listed, "summary": {"operation": "delete"}, "schema-id": 0}
        )  # fmt: skip
        told |= {"current-snapshot-id": number, "last-sequence-number": 2, "last-updated-ms": at}
        told["refs"]["main"]["snapshot-id"] = number
        told["snapshot-log"].append({"snapshot-id": number, "timestamp-ms": at})
        (place.parent / "00009-deletes.metadata.json").write_text(json.dumps(told))
        (place.parent / "version-hint.text").write_text("00009-deletes")


@pytest.mark.proves("F11")
@pytest.mark.parametrize(
    ("name", "columns", "predicate", "files"),
    [
        ("is_null_is_not_null", ["id", "value"], "id > 6", 1),
        ("is_null_is_not_null", ["id", "value"], "value IS NULL", 3),
        ("is_null_is_not_null", ["value", "id"], "value LIKE 'b%' AND id < 7", 1),
        ("partition_bigint", ["partition_col", "event_type"], "partition_col > 0", 1),
    ],
)
def test_tables_of_other_writers_have_their_rows(
    spark: Any, name: str, columns: list[str], predicate: str, files: int
) -> None:
    source = connector(spark, FOREIGN / name)
    version = source.pin()
    found = bag(source.snapshot(predicate, columns, version).collect())
    # They have no deletes, so that their files are their rows.
    whole = pa.concat_tables(
        [pq.ParquetFile(p).read(columns) for p in (FOREIGN / name / "data").rglob("*.parquet")]
    )
    spark.createDataFrame(
        [tuple(r[c] for c in columns) for r in whole.to_pylist()],
        ", ".join(f"{c} {'string' if c in ('value', 'event_type') else 'bigint'}" for c in columns),
    ).createOrReplaceTempView("whole_iceberg")
    assert found == bag(spark.sql(f"SELECT * FROM whole_iceberg WHERE {predicate}").collect())
    assert 0 < found.total() < whole.num_rows
    assert source.prune(predicate, version).files <= files


def test_columns_are_what_they_were_whatever_they_are_called(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0), (2, "b", None))
    with written.table.update_schema() as update:
        update.rename_column("c", "kind")
        update.delete_column("x")
    with written.table.update_schema() as update:
        update.add_column("c", written.table.schema().find_type("id"))
        update.add_column("x", written.table.schema().find_type("kind"))
    written.hint()
    written.append((3, "z", 9, "new"))
    source = connector(spark, written.root, Column("kind", "string"), Column("c", "bigint"))
    rows = source.snapshot(None, ["id", "kind", "c", "x"], source.pin()).collect()
    assert bag(rows) == bag([(1, "a", None, None), (2, "b", None, None), (3, "z", 9, "new")])
    one = source.snapshot("c IS NULL AND kind >= 'b'", ["id"], source.pin()).collect()
    assert bag(one) == bag([(2,)])


def test_deleted_rows_are_not_there(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append(*((n, f"k{n % 3}", n / 2) for n in range(10)))
    source = connector(spark, written.root)
    first = source.pin()
    written.delete_positions(0, 7)
    last = source.pin()
    rows = source.snapshot("id < 9", ["id"], last).collect()
    assert sorted(r.id for r in rows) == [1, 2, 3, 4, 5, 6, 8]
    assert source.snapshot(None, ["id"], first).count() == 10
    assert "is not an append but: delete" in (source.changes(first, last, None, ["id"]).again or "")


@pytest.mark.proves("F14")
def test_appends_are_followed_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    empty = connector(spark, written.root).pin()
    written.append((1, "a", 1.0), (2, "b", None))
    source = connector(spark, written.root)
    assert source.snapshot(None, ["id"], empty).collect() == []
    first = source.pin()
    written.append((3, "a", 1.0), (4, "b", None))
    written.append((5, "a", None))
    last = source.pin()
    found = source.changes(first, last, "c = 'a'", ["id", "x"])
    assert found.again is None
    assert found.frame is not None
    rows = found.frame.collect()
    assert bag((r.id, r.x, r[CHANGE]) for r in rows) == bag([(3, 1.0, INSERT), (5, None, INSERT)])
    assert bag(source.snapshot(None, ["id"], first).collect()) == bag([(1,), (2,)])
    start = source.changes(empty, last, None, ["id"])
    assert start.frame is not None
    assert start.frame.count() == 5
    written.table.delete("id = 3")
    written.hint()
    again = source.changes(first, source.pin(), None, ["id"]).again or ""
    assert "is not an append" in again
    assert "does not follow" in (source.changes(last, first, None, ["id"]).again or "")
    assert "another table" in (source.changes("iceberg:1:other", last, None, ["id"]).again or "")


def test_versions_are_where_the_options_say(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    numbers: list[int] = []
    for n in range(3):
        written.append((n, "a", None))
        numbers.append(written.table.metadata.current_snapshot_id)

    def number(held: str | None = None, **said: Any) -> int:
        return int(connector(spark, written.root, **said).pin(held).split(":")[1])

    assert number() == numbers[2]
    assert number(mode="snapshot", version=numbers[0]) == numbers[0]
    assert number(version=numbers[0]) == numbers[2]
    assert number(end_version=numbers[1]) == numbers[1]
    assert number(end_version=12345) == numbers[2]
    with pytest.raises(GoneError, match="snapshot 12345"):
        number(mode="snapshot", version=12345)
    with pytest.raises(GoneError, match="has no snapshot of"):
        number(mode="snapshot", datetime="2001-01-01T00:00:00+00:00")


def test_what_is_wrong_is_named(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    for column, said in [
        (Column("ident", "bigint"), "has no column `ident`"),
        (Column("id", "int"), "is bigint, and is declared as int"),
    ]:
        with pytest.raises(StorageError, match=said):
            connector(spark, written.root, column).pin()
    with pytest.raises(StorageError, match="which metadata file is the newest"):
        connector(spark, tmp_path / "nowhere").pin()
    with pytest.raises(StorageError, match="there is no Iceberg table"):
        connector(spark, tmp_path / "v1.metadata.json").pin()
    with written.table.update_schema() as update:
        from pyiceberg.types import UUIDType

        update.add_column("u", UUIDType())
    written.hint()
    with pytest.raises(StorageError, match="the type uuid of column `u`: not supported"):
        connector(spark, written.root).pin()


def test_numbers_that_are_none_are_greater_than_all(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0), (2, "b", float("nan")))
    source = connector(spark, written.root)
    assert bag(source.snapshot("x > 5", ["id"], source.pin()).collect()) == bag([(2,)])
