"""The Iceberg connector: columns by ID, deletes, and changes between snapshots."""

from __future__ import annotations

import gzip
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from foreign import bag
from icebergs import POINTS, Written, need_iceberg

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import External, RawTable
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import open_session
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.protocol import CHANGE, INSERT, Changes, Connector

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = ROOT / "tests" / "data" / "foreign_iceberg"


@pytest.fixture(autouse=True)
def iceberg() -> None:
    need_iceberg()


def connector(spark: Any, root: Path | str, *columns: Column, **options: Any) -> Connector:
    external = External("iceberg_input", **options)
    return connect(
        RawTable("iceberg", str(root), (), external),
        str(root),
        columns,
        lambda: spark,
        ZoneInfo("UTC"),
    )


READS: list[tuple[str, list[str], str, int]] = [
    ("is_null_is_not_null", ["id", "value"], "id > 6", 1),
    ("is_null_is_not_null", ["id", "value"], "value IS NULL", 3),
    ("is_null_is_not_null", ["value", "id"], "value LIKE 'b%' AND id < 7", 1),
    ("partition_bigint", ["partition_col", "event_type"], "partition_col > 0", 1),
    ("partition_bigint", ["user_id"], "partition_col = -9223372036854775808", 1),
    ("partition_bigint", ["partition_col"], "event_type = 'click'", 1),
]


@pytest.mark.proves("F11")
@pytest.mark.parametrize(("name", "columns", "predicate", "files"), READS)
def test_tables_of_other_writers_are_read_correctly(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    columns: list[str],
    predicate: str,
    files: int,
) -> None:
    from pyiceberg.table import StaticTable

    monkeypatch.chdir(tmp_path)  # paths in its metadata are relative to it
    root = tmp_path / "data" / "persistent" / name
    # Some files were rewritten, and the checksums beside them are outdated.
    shutil.copytree(FOREIGN / name, root, ignore=shutil.ignore_patterns(".*.crc"))
    source = connector(spark, root)
    version = source.pin()
    hint = (root / "metadata" / "version-hint.text").read_text()
    (newest,) = root.glob(f"metadata/*{hint}.metadata.json")
    whole = StaticTable.from_metadata(str(newest)).scan().to_arrow()
    spark.createDataFrame(whole.to_pandas()).createOrReplaceTempView("whole_iceberg")
    expected = spark.sql(f"SELECT {', '.join(columns)} FROM whole_iceberg WHERE {predicate}")
    found = bag(source.snapshot(predicate, columns, version).collect())
    assert found == bag(expected.collect())
    assert 0 < found.total() < whole.num_rows
    assert source.prune(predicate, version).files <= files
    everything = source.snapshot(None, whole.schema.names, version).collect()
    assert bag(everything) == bag(tuple(row.values()) for row in whole.to_pylist())


def test_compressed_metadata_is_found(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0))
    directory = written.root / "metadata"
    metadata = (directory / written.table.metadata_location.rpartition("/")[2]).read_bytes()
    (directory / "v7.gz.metadata.json").write_bytes(gzip.compress(metadata))
    (directory / "version-hint.text").write_text("7")
    first = connector(spark, written.root).pin()
    written.append((2, "b", None))
    metadata = (directory / written.table.metadata_location.rpartition("/")[2]).read_bytes()
    (directory / "v8.gz.metadata.json").write_bytes(gzip.compress(metadata))
    (directory / "version-hint.text").write_text("7")  # it is updated after the metadata
    assert connector(spark, written.root).pin() != first


def test_all_tables_of_other_writers_are_listed() -> None:
    tables = {path.name for path in FOREIGN.iterdir() if path.is_dir()}
    assert tables == {name for name, *_ in READS}


def test_columns_are_read_by_id_after_renames(spark: Any, tmp_path: Path) -> None:
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


def test_nested_fields_are_read_by_id_after_renames(spark: Any, tmp_path: Path) -> None:
    from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

    written = Written(tmp_path)
    inner = StructType(NestedField(90, "a", LongType()), NestedField(91, "b", LongType()))
    with written.table.update_schema() as update:
        update.delete_column("x").delete_column("c")
        update.add_column("s", inner)
        update.add_column("l", ListType(92, inner, element_required=False))
    written.append((1, {"a": 1, "b": 2}, [{"a": 3, "b": 4}]))
    with written.table.update_schema() as update:
        update.rename_column("s.a", "t").rename_column("l.element.b", "u")
    with written.table.update_schema() as update:
        update.rename_column("s.b", "a")
    with written.table.update_schema() as update:
        update.add_column(("s", "b"), StringType())
    written.append((2, {"t": 5, "a": 6, "b": "new"}, [{"a": 7, "u": 8}, None]))
    source = connector(spark, written.root)
    rows = source.snapshot("s.t < 9", ["id", "s", "l"], source.pin()).collect()
    found = {r.id: (r.s.asDict(), [e and e.asDict() for e in r.l]) for r in rows}
    assert found == {
        1: ({"t": 1, "a": 2, "b": None}, [{"a": 3, "u": 4}]),
        2: ({"t": 5, "a": 6, "b": "new"}, [{"a": 7, "u": 8}, None]),
    }


def test_rows_deleted_by_position_are_not_read(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append(*((n, f"k{n % 3}", n / 2) for n in range(10)))
    source = connector(spark, written.root)
    first = source.pin()
    written.delete_positions(0, 7)
    last = source.pin()
    rows = source.snapshot("id < 9", ["id"], last).collect()
    assert sorted(r.id for r in rows) == [1, 2, 3, 4, 5, 6, 8]
    assert source.snapshot(None, ["id"], first).count() == 10
    assert "is not an append: delete" in (
        source.changes(first, last, None, ["id"]).full_read_reason or ""
    )


@pytest.mark.proves("F14")
def test_only_appends_are_read_incrementally(spark: Any, tmp_path: Path) -> None:
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
    assert found.full_read_reason is None
    assert found.frame is not None
    rows = found.frame.collect()
    assert bag((r.id, r.x, r[CHANGE]) for r in rows) == bag([(3, 1.0, INSERT), (5, None, INSERT)])
    assert bag(source.snapshot(None, ["id"], first).collect()) == bag([(1,), (2,)])
    start = source.changes(empty, last, None, ["id"])
    assert start.frame is not None
    assert start.frame.count() == 5
    written.table.delete("id = 3")
    written.hint()
    again = source.changes(first, source.pin(), None, ["id"]).full_read_reason or ""
    assert "is not an append" in again
    assert "does not follow" in (source.changes(last, first, None, ["id"]).full_read_reason or "")
    assert "replaced by another" in (
        source.changes("iceberg:1:other", last, None, ["id"]).full_read_reason or ""
    )


@pytest.mark.proves("F14")
def test_appends_are_read_incrementally_if_manifests_are_merged(spark: Any, tmp_path: Path) -> None:
    merged = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    written = Written(tmp_path, **merged)
    source = connector(spark, written.root)
    versions = [source.pin()]
    for n in range(4):
        written.append((n, "a", None))
        versions.append(source.pin())
    assert len(written.table.current_snapshot().manifests(written.table.io)) == 1
    for n, since in enumerate(versions[:-1]):
        frame = source.changes(since, versions[-1], None, ["id"]).frame
        assert frame is not None
        assert sorted(r.id for r in frame.collect()) == [*range(n, 4)]


@pytest.mark.proves("F26")
def test_column_changes_without_a_snapshot_create_a_version(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    declared = Column("id", "bigint"), Column("c", "string")
    source = connector(spark, written.root, *declared)
    empty = source.pin()
    written.append((1, "a", 1.0))
    first = source.pin()
    assert source.changes(empty, first, None, ["id"]).only_came
    # Undeclared columns may be added and removed: the declared ones do not change.
    with written.table.update_schema() as update:
        update.delete_column("x").add_column("y", written.table.schema().find_type("id"))
    written.hint()
    second = source.pin()
    assert second != first
    assert source.changes(first, second, None, ["id"]) == Changes()
    with written.table.update_schema() as update:
        update.rename_column("c", "z")
    with written.table.update_schema() as update:
        update.add_column("c", written.table.schema().find_type("z"))
    written.hint()
    third = source.pin()
    again = f"its columns changed after snapshot {first.split(':')[1]}"
    assert source.changes(second, third, None, ["id"]).full_read_reason == again
    written.append((2, "b", None, "d"))
    # Each version is read with the columns that it had when it was pinned.
    rows = {v: bag(source.snapshot(None, ["id", "c"], v).collect()) for v in (first, second, third)}
    assert rows == {first: bag([(1, "a")]), second: bag([(1, "a")]), third: bag([(1, None)])}
    assert source.changes(third, source.pin(), None, ["id"]).only_came
    end = connector(spark, written.root, *declared, end_version=int(first.split(":")[1]))
    assert end.pin(third) == third
    assert end.pin() == first
    with pytest.raises(GoneError, match="schema 9 of the Iceberg table"):
        source.snapshot(None, ["id"], f"{first}:9")


@pytest.mark.proves("F26")
def test_deleted_rows_violate_append_only(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0), (2, "b", None))
    source = connector(spark, written.root, append_only=True)
    first = source.pin()
    written.append((3, "a", 1.0))
    written.compact()
    assert source.changes(first, source.pin(), None, ["id"]).only_came
    written.delete([3])
    with pytest.raises(StorageError, match="but it is declared append_only"):
        source.changes(first, source.pin(), None, ["id"])


@pytest.mark.proves("F26")
def test_reading_an_iceberg_table_keeps_the_session_valid(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0))
    source = connector(spark, written.root)
    assert source.snapshot(None, ["id"], source.pin()).count() == 1
    assert open_session(load_settings(tmp_path), lambda: spark) is spark


def test_version_options_select_the_pinned_snapshot(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    numbers: list[int] = []
    for n in range(3):
        written.append((n, "a", None))
        numbers.append(written.table.metadata.current_snapshot_id)

    def number(held: str | None = None, **options: Any) -> int:
        return int(connector(spark, written.root, **options).pin(held).split(":")[1])

    assert number() == numbers[2]
    assert number(mode="snapshot", version=numbers[0]) == numbers[0]
    assert number(version=numbers[0]) == numbers[2]
    assert number(end_version=numbers[1]) == numbers[1]
    for options in ({"end_version": 12345}, {"mode": "snapshot", "version": 12345}):
        with pytest.raises(GoneError, match="snapshot 12345"):
            number(**options)
    with pytest.raises(GoneError, match="lacks a snapshot of"):
        number(mode="snapshot", datetime="2001-01-01T00:00:00+00:00")


def test_invalid_declarations_and_metadata_are_reported(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    for column, said in [
        (Column("ident", "bigint"), "has no column `ident`"),
        (Column("id", "int"), "`id` is bigint but is declared as int"),
    ]:
        with pytest.raises(StorageError, match=said):
            connector(spark, written.root, column).pin()
    several = Column("i", "int"), Column("c", "date"), Column("x", "double"), Column("id", "int")
    with pytest.raises(StorageError, match=r"no column `i`; `c` is string but .*; `id` is bigint"):
        connector(spark, written.root, *several).pin()
    with pytest.raises(StorageError, match="the newest metadata file"):
        connector(spark, tmp_path / "nowhere").pin()
    for n, told in enumerate(("{", "{}", '{"format-version": 9}')):
        (tmp_path / f"v{n}.metadata.json").write_text(told)
        with pytest.raises(StorageError, match=f"cannot open .*v{n}.metadata.json"):
            connector(spark, tmp_path / f"v{n}.metadata.json").pin()
    with pytest.raises(StorageError, match="there is no Iceberg table"):
        connector(spark, tmp_path / "v7.metadata.json").pin()
    with written.table.update_schema() as update:
        from pyiceberg.types import UUIDType

        update.add_column("u", UUIDType())
    written.hint()
    with pytest.raises(StorageError, match="the type uuid of column `u`: not supported"):
        connector(spark, written.root).pin()


def test_nan_is_greater_than_all_numbers(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0), (2, "b", float("nan")))
    source = connector(spark, written.root)
    assert bag(source.snapshot("x > 5", ["id"], source.pin()).collect()) == bag([(2,)])


def test_a_missing_or_truncated_file_is_named_in_the_error(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    source = connector(spark, written.root)
    empty = source.pin()
    written.append((1, "a", 1.0))
    version = source.pin()
    (file,) = written.root.glob("data/*.parquet")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(Exception, match=file.name):
        source.snapshot(None, ["id"], version).collect()
    file.unlink()
    with pytest.raises(GoneError, match=f"{file.name}.* is gone"):
        source.snapshot(None, ["id"], version)
    assert source.snapshot("id > 5", ["id"], version).collect() == []  # the file has no such rows
    assert "is gone" in (source.changes(empty, version, None, ["id"]).full_read_reason or "")


@pytest.mark.proves("F26")
@pytest.mark.parametrize("content", [b"", b"no Avro", None])
@pytest.mark.parametrize("kind", ["*-m*.avro", "snap-*.avro"])
def test_a_missing_or_corrupt_manifest_is_named_in_the_error(
    spark: Any, tmp_path: Path, kind: str, content: bytes | None
) -> None:
    written = Written(tmp_path)
    source = connector(spark, written.root)
    empty = source.pin()
    written.append((1, "a", 1.0))
    version = source.pin()
    (file,) = written.root.glob(f"metadata/{kind}")
    if content is None:
        file.unlink()
        assert f"{file.name}" in (
            source.changes(empty, version, None, ["id"]).full_read_reason or ""
        )
        with pytest.raises(GoneError):
            source.prune(None, version)
    else:
        file.write_bytes(content)
        for read in (
            lambda: source.prune(None, version),
            lambda: source.changes(empty, version, None, ["id"]),
        ):
            with pytest.raises(StorageError, match=f"{file.name} of the Iceberg table"):
                read()


def test_files_without_column_ids_are_rejected(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    place = tmp_path / "other.parquet"
    pq.write_table(pa.table({"id": [1], "c": ["a"], "x": [1.0]}, schema=POINTS), place)
    written.table.add_files([f"file://{place}"])
    written.hint()
    source = connector(spark, written.root)
    with pytest.raises(StorageError, match="have no IDs"):
        source.snapshot(None, ["id"], source.pin())


def test_position_deletes_apply_only_to_the_file_they_name(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append(*((n, "a", None) for n in range(4)))
    (file,) = written.root.glob("data/*.parquet")
    written.delete_positions(1, place=f"file:///elsewhere/{file.name}")
    source = connector(spark, written.root)
    assert source.snapshot(None, ["id"], source.pin()).count() == 4


@pytest.mark.proves("F26")
def test_a_copy_keeps_its_end_version_after_the_snapshot_expires(
    spark: Any, tmp_path: Path
) -> None:
    written = Written(tmp_path)
    for n in range(2):
        written.append((n, "a", None))
    end = written.table.metadata.current_snapshot_id
    source = connector(spark, written.root, end_version=end)
    held = source.pin()
    written.append((2, "a", None))
    written.table.maintenance.expire_snapshots().by_id(end).commit()
    written.hint()
    assert source.pin(held) == held
    with pytest.raises(StorageError, match=f"does not follow from {end}|snapshot {end}"):
        connector(spark, written.root, version=end).pin()


def test_equality_deletes_are_rejected(spark: Any, tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.append((1, "a", 1.0))
    written.delete_positions(0, equality=True)
    source = connector(spark, written.root)
    with pytest.raises(StorageError, match="equality deletes: not supported"):
        source.snapshot(None, ["id"], source.pin())


@pytest.mark.slow
@pytest.mark.proves("F11")
def test_partition_values_are_read_from_metadata(spark: Any, tmp_path: Path) -> None:
    from pyiceberg.transforms import IdentityTransform, VoidTransform
    from pyiceberg.types import BooleanType, DateType, DecimalType, TimestamptzType

    written = Written(tmp_path)
    written.append((0, "before", None))
    with written.table.update_schema() as update:
        update.add_column("d", DateType()).add_column("t", TimestamptzType())
        update.add_column("m", DecimalType(9, 2)).add_column("y", BooleanType())
    with written.table.update_spec() as spec:
        spec.add_field("id", VoidTransform(), "nothing")
        for name in ("c", "d", "t", "m", "y"):
            spec.add_field(name, IdentityTransform(), f"by_{name}")
    noon = datetime(1969, 12, 31, 12, 0, 0, 1, tzinfo=UTC)
    rows = [
        (1, "a b/%=é", 1.0, date(1500, 2, 28), noon, Decimal("-1.50"), True),
        (2, "", None, date(2024, 2, 29), noon, Decimal("0.00"), False),
        (3, None, None, None, None, None, None),
    ]
    written.append(*rows)
    for file in written.root.glob("data/**/*.parquet"):  # without partition columns
        table = pq.ParquetFile(file).read()
        kept = [n for n in table.schema.names if n in ("id", "x")] or table.schema.names
        if "d" in table.schema.names:
            pq.write_table(table.select(kept), file)
    source = connector(spark, written.root)
    version, names = source.pin(), ["id", "c", "x", "d", "t", "m", "y"]
    schema = "id bigint, c string, x double, d date, t timestamp, m decimal(9,2), y boolean"
    whole = spark.createDataFrame([(0, "before", *[None] * 5), *rows], schema)
    for predicate in (
        "true", "c = ''", "c IS NULL", "c > 'a'", "d < DATE '1582-10-04'", "d IS NULL", "m < 0", "m = 0", "NOT y",
        "t = TIMESTAMP '1969-12-31 12:00:00.000001Z'", "t IS NOT NULL AND id > 1",
    ):  # fmt: skip
        found = source.snapshot(predicate, names, version).collect()
        assert bag(found) == bag(whole.where(predicate).collect()), predicate
    assert source.prune("c = ''", version).files == 1
    assert source.prune("m < 0", version).files <= 2  # the unpartitioned file may match
