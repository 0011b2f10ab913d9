"""Directories of files as external tables, without reading rows: versions, pruning, errors."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.compiler.frontends.sql import parse_sql
from persist_assets.core.errors import ConflictError, GoneError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import External, RawTable
from persist_assets.external.connectors.directory import DirectoryConnector, directory_connector
from persist_assets.storage.raw import pin_raw

COLUMNS = "id bigint, k string, ts timestamp, amount decimal(10,2), day date, hour int, zone string"


def connector(
    place: Path, columns: str = COLUMNS, form: str = "parquet", **options: str
) -> DirectoryConnector:
    pairs = [text.rsplit(" ", 1) for text in columns.split(", ")]
    declared = [Column(name, kind) for name, kind in pairs]
    reading = (("format", form), *sorted(options.items()))
    external = External("directory_input", reading=reading)
    return directory_connector(external, str(place), declared, {}, no_session, ZoneInfo("UTC"))


def no_session() -> Any:
    raise AssertionError("no rows are read here")


def put(place: Path, ids: list[int], at: int | None = None, **more: object) -> Path:
    """Write a Parquet file; `at`: the time of its last change, in seconds."""
    place.parent.mkdir(parents=True, exist_ok=True)
    moments = [datetime(2024, 1, i % 28 + 1, tzinfo=UTC) for i in ids]
    rows: dict[str, Any] = {
        "id": pa.array(ids, pa.int64()),
        "k": [f"k{i}" for i in ids],
        "ts": pa.array(moments, pa.timestamp("us", "UTC")),
        "amount": pa.array([Decimal(i) for i in ids], pa.decimal128(10, 2)),
        **more,
    }
    pq.write_table(pa.table({n: v for n, v in rows.items() if v is not None}), place)
    if at is not None:
        os.utime(place, (at, at))
    return place


def parted(root: Path, day: str, hour: str = "1", zone: str = "eu") -> Path:
    return root / f"day={day}" / f"hour={hour}" / f"zone={zone}"


@pytest.mark.proves("V30")
def test_versions_identify_listings_and_only_new_files_are_read(tmp_path: Path) -> None:
    one = put(parted(tmp_path, "2026-01-01") / "a.parquet", [1, 2], at=1_000)
    for hidden in ("_SUCCESS", ".a.tmp", "b._COPYING_", "_temporary/0/c.parquet"):
        (tmp_path / hidden).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / hidden).write_text("x")
    first = (table := connector(tmp_path)).pin()
    assert (cost := table.prune(None, first)).files == cost.of == 1
    assert (cost.rows, cost.bytes) == (2, one.stat().st_size)
    table.close()
    assert table.pin() == first
    # A file that is added later is the change, and the earlier version is still readable.
    new = put(parted(tmp_path, "2026-01-02") / "a.parquet", [3], at=2_000)
    second = (table := connector(tmp_path)).pin()
    changes = table.changes(first, second, None, ["id"])
    assert changes.compare_reason is None
    assert (changes.only_came, changes.read.bytes) == (True, new.stat().st_size)
    assert table.prune(None, first).rows == 2
    assert table.changes(first, second, "day < DATE '2026-01-02'", ["id"]).load is None
    # Files that are older than the version, replaced or removed require a comparison.
    late = put(parted(tmp_path, "2026-01-03") / "late.parquet", [4], at=1_500)
    third = (table := connector(tmp_path)).pin()
    changes = table.changes(second, third, None, ["id"])
    assert changes.compare_reason is not None
    assert changes.read.files == 3
    assert not table.is_same(second, third)
    late.unlink()
    assert connector(tmp_path).pin() == second
    put(one, [1, 9], at=1_000)  # with the same size and time
    fourth = (table := connector(tmp_path)).pin()
    assert fourth != second
    assert table.changes(second, fourth, None, ["id"]).compare_reason is not None
    with pytest.raises(GoneError, match="were replaced or removed since"):
        table.prune(None, first)
    new.unlink()
    fifth = (table := connector(tmp_path)).pin()
    assert table.changes(fourth, fifth, None, ["id"]).compare_reason is not None


@pytest.mark.proves("V30")
@pytest.mark.parametrize(
    ("condition", "n_files"),
    [
        ("day = DATE '2026-01-01'", 1),
        ("day < DATE '2026-01-01'", 1),
        ("day > DATE '2026-01-01'", 3),  # NULL meets no comparison
        ("day IS NULL", 1),
        ("hour >= 7", 2),
        ("hour IN (1, 2)", 4),
        ("zone = 'a/b'", 3),
        ("zone LIKE 'e%'", 5),
        ("zone = 'ü'", 2),  # strings with non-ASCII letters are left to Spark
        ("zone = 'eu' AND id > 100", 0),
        ("id = 31", 1),
        ("k = 'k1'", 1),
        ("ts >= TIMESTAMP '2024-01-28 00:00:00'", 0),
        ("ts < TIMESTAMP '2024-01-03 00:00:00'", 2),
        ("amount > 20.5", 4),
        ("amount IS NULL", 0),
        ("concat(k, 'x') = 'y'", 6),
    ],
)
def test_partition_directories_and_statistics_prune_files(
    tmp_path: Path, condition: str, n_files: int
) -> None:
    put(parted(tmp_path, "2026-01-01") / "a.parquet", [1, 2])
    put(parted(tmp_path, "2026-01-02", "007") / "a.parquet", [11, 12])
    put(parted(tmp_path, "2026-01-03", "2", "a%2Fb") / "a.parquet", [21, 22])
    put(parted(tmp_path, "2026-01-04", "8", "%C3%BC") / "a.parquet", [31, 29 + 28])
    put(parted(tmp_path, "__HIVE_DEFAULT_PARTITION__", "2") / "a.parquet", [41, 42])
    put(parted(tmp_path, "2020-01-01", "1", "ü") / "a.parquet", [51, 52])
    table = connector(tmp_path)
    assert table.prune(condition, table.pin()).files == n_files


@pytest.mark.proves("V30")
def test_files_without_usable_statistics_are_not_pruned(tmp_path: Path) -> None:
    moments = pa.array([datetime(1850, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    put(tmp_path / "old.parquet", [1], ts=moments)
    put(tmp_path / "new.parquet", [1])
    table = connector(tmp_path, "id bigint, ts timestamp")
    assert table.prune("ts > TIMESTAMP '2025-01-01 00:00:00'", table.pin()).files == 1
    plain = tmp_path / "plain" / "a.parquet"
    plain.parent.mkdir()
    pq.write_table(pa.table({"id": [1]}), plain, write_statistics=False)
    table = connector(plain.parent, "id bigint")
    assert table.prune("id > 5", table.pin()).files == 1
    mixed = tmp_path / "mixed" / "a.parquet"
    mixed.parent.mkdir()
    pq.write_table(pa.table({"id": [None, None, 1, 2]}), mixed, row_group_size=2)
    table = connector(mixed.parent, "id bigint")
    assert table.prune("id > 5", table.pin()).files == 1  # a group of NULLs has no bounds
    int96 = tmp_path / "int96" / "a.parquet"
    put(int96, [1])
    pq.write_table(pq.read_table(int96), int96, use_deprecated_int96_timestamps=True)
    table = connector(int96.parent, "ts timestamp")
    assert table.prune("ts > TIMESTAMP '2025-01-01 00:00:00'", table.pin()).files == 1


def broken(root: Path, kind: str) -> str:
    """Write an invalid directory of Parquet files, and return its declared columns."""
    put(parted(root, "2026-01-01") / "a.parquet", [1], at=2_000)
    other = parted(root, "2026-01-02") / "b.parquet"
    match kind:
        case "empty":
            for file in root.rglob("*.parquet"):
                file.unlink()
        case "delta":
            (root / "_delta_log").mkdir()
        case "stream":
            (root / "_spark_metadata").mkdir()
        case "text":
            other.parent.mkdir(parents=True)
            other.write_text("id,k\n1,a\n")
        case "between":
            put(root / "day=2026-01-01" / "x" / "hour=1" / "zone=x" / "b.parquet", [2])
        case "beside":
            put(root / "b.parquet", [2])
        case "other names":
            put(root / "date=2026-01-02" / "hour=1" / "zone=x" / "b.parquet", [2])
        case "lacks":
            put(other, [2], at=1_000, k=None)
        case "type":
            put(other, [2], at=1_000, k=[7])
        case "nanoseconds":
            put(other, [2], at=1_000, ts=pa.array([1], pa.timestamp("ns")))
        case "case":
            put(other, [2], at=1_000, K=["x"])
        case _:
            return COLUMNS.replace("bigint", "int")
    return COLUMNS


@pytest.mark.proves("V30")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", "there is no data at"),
        ("delta", "are a Delta table, whose log says which of them count"),
        ("stream", "are the output of a Spark stream"),
        ("text", "b.parquet is not a Parquet file"),
        ("beside", "is not in a partition directory"),
        ("between", "without a value between partition directories"),
        ("other names", "are in directories of different partition columns"),
        ("lacks", "b.parquet does not match its declaration: it has no column `k`"),
        (
            "type",
            "b.parquet does not match its declaration: `k` is bigint but is declared as string",
        ),
        ("nanoseconds", r"`ts` is timestamp\[ns\] but is declared as timestamp"),
        ("case", "differ only in case"),
        ("declared", "`id` is bigint but is declared as int"),
    ],
)
def test_invalid_directories_are_errors(tmp_path: Path, kind: str, message: str) -> None:
    table = connector(tmp_path, broken(tmp_path, kind))
    with pytest.raises(StorageError, match=message):
        table.prune(None, table.pin())


@pytest.mark.proves("V30")
def test_files_may_lack_columns_with_merge_schema(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "a.parquet", [1], at=1_000, k=None)
    put(tmp_path / "b.parquet", [2], at=2_000)
    table = connector(tmp_path, "id bigint, k string", mergeschema="true")
    assert table.prune("k IS NOT NULL", version := table.pin()).files == 1
    assert table.prune("k IS NULL", version).files == 1
    assert not caplog.messages
    table = connector(tmp_path, "id bigint, kk string", mergeschema="true")
    for _ in range(2):
        assert table.prune(None, table.pin()).files == 2
    (warning,) = caplog.messages
    assert "none of the 2 files to read of" in warning
    assert "has `kk`, so it is NULL in all rows" in warning
    put(tmp_path / "c.parquet", [3], at=3_000, k=[7])
    table = connector(tmp_path, "id bigint, k string", mergeschema="true")
    with pytest.raises(StorageError, match="`k` is bigint but is declared as string"):
        table.pin()


@pytest.mark.proves("V30")
def test_escaped_slashes_in_directory_names_do_not_hide_files(tmp_path: Path) -> None:
    for name in ("k=%2F_next", "k=a%2F_b", "k=%2F.git"):
        put(tmp_path / name / "%5Fa.parquet", [1])
    columns = "id bigint, ts timestamp, amount decimal(10,2), k string"
    table = connector(tmp_path, columns)
    assert table.prune(None, table.pin()).files == 3
    # The same holds for raw tables.
    pin = pin_raw(RawTable("parquet", str(tmp_path)), str(tmp_path))
    assert [f.removeprefix(f"{tmp_path}/") for f in pin.files or ()] == [
        "k=%2F.git/%5Fa.parquet",
        "k=%2F_next/%5Fa.parquet",
        "k=a%2F_b/%5Fa.parquet",
    ]


@pytest.mark.proves("V30")
def test_files_from_before_1970_are_read(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", [1], at=-5_000)
    table = connector(tmp_path, "id bigint")
    assert table.prune(None, first := table.pin()).rows == 1
    put(tmp_path / "b.parquet", [2], at=1_000)
    table = connector(tmp_path, "id bigint")
    assert table.prune(None, second := table.pin()).rows == 2
    assert table.changes(first, second, None, ["id"]).read.rows == 1


@pytest.mark.proves("V30")
@pytest.mark.parametrize(
    ("kind", "valid", "wrong"),
    [
        ("tinyint", ("-128", "127", "007"), ("300", "128", "x", "1.0")),
        ("smallint", ("-32768",), ("32768",)),
        ("int", ("2147483647",), ("2147483648", "%31")),
        ("bigint", ("-9223372036854775808",), ("9223372036854775808",)),
        ("date", ("2026-01-31",), ("2026-01-32", "2026%2D01-31", "2026", "x")),
        ("timestamp", ("2026-01-31 10%3A00%3A00.5", "2026-01-31"), ("2026-13-01", "x", "20260131")),
        ("decimal(4,2)", ("1.50", "-10.00"), ("1.5", "1.567", "100.00", "x")),
        ("string", ("x", "%31"), ()),
    ],
)
def test_values_of_partition_directories_must_match_the_declared_type(
    tmp_path: Path, kind: str, valid: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    for text in (*valid, "__HIVE_DEFAULT_PARTITION__"):
        put(tmp_path / f"p={text}" / "a.parquet", [1])
    table = connector(tmp_path, f"id bigint, p {kind}")
    assert table.prune(None, table.pin()).files == len(valid) + 1
    for text in wrong:
        bad = put(tmp_path / f"p={text}" / "a.parquet", [1])
        with pytest.raises(StorageError, match=r"is no value of the declared type"):
            connector(tmp_path, f"id bigint, p {kind}").pin()
        bad.unlink()


@pytest.mark.proves("V30")
def test_statistics_of_repeated_columns_do_not_prune_files(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": pa.array([None, None], pa.int32())}), file)
    # Old writers store a list as a repeated column.
    optional, repeated = b"\x15\x02\x25\x02\x18\x01a", b"\x15\x02\x25\x04\x18\x01a"
    assert file.read_bytes().count(optional) == 1
    file.write_bytes(file.read_bytes().replace(optional, repeated))
    table = connector(tmp_path, "a array<int>")
    assert table.prune("a IS NOT NULL", table.pin()).files == 1


@pytest.mark.proves("V30")
@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_files_changed_after_they_were_read_are_a_conflict(tmp_path: Path, change: str) -> None:
    put(tmp_path / "a.parquet", [1], at=1_000)
    first = connector(tmp_path, "id bigint").pin()
    new = put(tmp_path / "b.parquet", [2], at=2_000)
    table = connector(tmp_path, "id bigint")
    # The footer alone shows that the new file has no matching row.
    assert table.changes(first, table.pin(), "id > 5", ["id"]).load is None
    table.confirm()
    if change == "replaced":
        put(new, [9], at=2_000)  # with the same size and time
    else:
        new.unlink()
    for _ in range(2):
        with pytest.raises(ConflictError, match="changed while they were read"):
            table.confirm()
    table.close()
    table.confirm()


@pytest.mark.proves("V30")
def test_a_file_removed_or_replaced_after_it_was_listed_is_a_conflict(tmp_path: Path) -> None:
    old = put(tmp_path / "a.parquet", [1], at=1_000)
    put(tmp_path / "b.parquet", [2], at=2_000)
    table = connector(tmp_path, "id bigint")
    version = table.pin()  # this reads the newest file only
    old.unlink()
    with pytest.raises(ConflictError, match="is gone since it was listed"):
        table.prune(None, version)
    table = connector(tmp_path, "id bigint")
    first = table.pin()
    new = put(tmp_path / "c.parquet", [3], at=3_000)
    table = connector(tmp_path, "id bigint")
    second = table.pin()
    put(new, [9], at=3_000)  # with the same size and time
    assert table.changes(first, second, "id > 10", ["id"]).load is None
    with pytest.raises(ConflictError, match="changed while they were read"):
        table.confirm()


@pytest.mark.proves("V31")
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("id,k\n1,a\n", {}, "is a header, but the files at .* declares none: id, k"),
        ("id,name\n1,a\n", {"header": "true"}, "lacks `k`: it is id, name"),
        ("id,k,k\n1,a,b\n", {"header": "true"}, "has `k` twice"),
        ("1,a\n", {"encoding": "nothing"}, "unknown encoding `nothing`"),
    ],
)
def test_invalid_csv_headers_are_errors(
    tmp_path: Path, text: str, options: dict[str, str], message: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(StorageError, match=message):
        connector(tmp_path, "id bigint, k string", "csv", **options).pin()


@pytest.mark.proves("V31")
def test_partition_directories_prune_csv_files(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        place = tmp_path / f"day={day}" / "a.csv"
        place.parent.mkdir()
        place.write_text("id;k\n1;a\n")
    options = {"header": "true", "sep": ";"}
    table = connector(tmp_path, "id bigint, k string, day date", "csv", **options)
    cost = table.prune("day = DATE '2026-01-02' AND id = 7", table.pin())
    assert (cost.files, cost.of, cost.rows, cost.bytes) == (1, 2, None, 9)


def declared(config: str) -> list[str]:
    connectors = f'[{{"transport": {{"name": "directory_input", "config": {{{config}}}}}}}]'
    columns = "id bigint, _corrupt_record string" if "KEEPS" in config else "id bigint"
    text = f"create external table t ({columns}) with ('connectors' = '{connectors}');"
    _, problems = parse_sql(text, "a.sql")
    return [p.message for p in problems]


@pytest.mark.proves("V30", "V31")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('"uri": "x"', "needs the format of its files"),
        ('"uri": "x", "format": "json"', "needs the format of its files"),
        ('"format": "csv"', "needs the location of its data"),
        ('"uri": "x", "format": "csv", "options": {"haeder": true}', "have no option `haeder`"),
        (
            '"uri": "x", "format": "csv", "options": {"inferSchema": true}',
            "no option `inferSchema`",
        ),
        ('"uri": "x", "format": "csv", "options": {"header": "yes"}', "`header` must be true or"),
        ('"uri": "x", "format": "csv", "options": {"sep": null}', "`sep` must be a string"),
        ('"uri": "x", "format": "csv", "options": []', "`options` must be an object"),
        ('"uri": "x", "format": "csv", "options": {"mode": "PERMISSIVE"}', "bad records would"),
        ('"uri": "x", "format": "parquet", "options": {"header": true}', "no option `header`"),
        ('"uri": "x", "format": "parquet", "options": {"mergeSchema": 1}', "must be true or false"),
        ('"uri": "x", "format": "parquet", "mode": "follow"', "has no mode follow"),
        ('"uri": "x", "format": "parquet", "version": 3', "has no option `version`"),
        ('"uri": "s3://a:b@x/y", "format": "parquet"', "contains credentials"),
        ('"uri": "x", "format": "csv", "aws_secret_access_key": "abc"', "is a secret"),
    ],
)
def test_invalid_directory_declarations_are_errors(config: str, message: str) -> None:
    assert any(message in text for text in declared(config)), declared(config)


@pytest.mark.proves("V31")
def test_csv_options_of_raw_tables_are_accepted() -> None:
    options = '"header": true, "sep": ";", "maxColumns": 3, "dateFormat": "dd.MM.yyyy"'
    assert declared(f'"uri": "x", "format": "csv", "options": {{{options}}}') == []
    keeps = '"mode": "PERMISSIVE", "nullValue": "KEEPS"'
    assert declared(f'"uri": "x", "format": "csv", "options": {{{keeps}}}') == []
