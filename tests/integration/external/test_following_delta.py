"""Changes read from Delta logs turn the rows of one version into those of a later one."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa
import pytest
from conftest import ROOT
from foreign import applied, bag, by_delta
from foreign import delta_connector as connector

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.external.connectors.protocol import CHANGE, DELETE, INSERT, Connector

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = ROOT / "tests" / "data" / "foreign"


def changed(source: Connector, first: int, last: int, columns: Sequence[str], where: str) -> Any:
    _, _, at, *more = source.pin().split(":")
    since, until = (":".join(["delta", str(n), at, "", *more[1:]]) for n in (first, last))
    found = source.changes(since, until, where, columns)
    assert found.full_read_reason is None
    return [] if found.frame is None else found.frame.collect()


def log(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.json"


def commit(root: Path, version: int, *actions: Any) -> None:
    """Write a commit as other writers do."""
    lines = [{"commitInfo": {"operation": "WRITE"}}, *actions]
    log(root, version).write_text("\n".join(json.dumps(line) for line in lines))


def actions_of(root: Path, version: int, kind: str) -> list[Any]:
    found = [json.loads(line) for line in log(root, version).read_text().splitlines()]
    return [action[kind] for action in found if kind in action]


# ------------------------------------------------------------------------- writers' operations


def rows(*ids: int, c: str | None = "k1") -> pa.Table:
    columns = {"id": list(ids), "c": [c] * len(ids), "x": [None if i % 5 == 0 else i / 2 for i in ids]}  # fmt: skip
    return pa.table(columns, schema=pa.schema([("id", pa.int64()), ("c", pa.string()), ("x", pa.float64())]))  # fmt: skip


def merge(table: deltalake.DeltaTable) -> None:
    new = rows(3, 12, 700, 701)
    merged = table.merge(new, "t.id = s.id", source_alias="s", target_alias="t")
    merged = merged.when_matched_update({"x": "99.5"}, "s.id = 3")
    merged.when_matched_delete("s.id = 12").when_not_matched_insert_all().execute()


def record(table: deltalake.DeltaTable, on: str) -> None:
    table.alter.set_table_properties({"delta.enableChangeDataFeed": on})


Step = Callable[[deltalake.DeltaTable], Any]
STEPS: Sequence[Step] = (
    lambda t: deltalake.write_deltalake(t, rows(*range(100, 110)), mode="append"),
    lambda t: deltalake.write_deltalake(t, rows(7, 7, 100), mode="append"),  # duplicate rows
    lambda t: t.update(predicate="id = 4", updates={"c": "'k2'"}),  # leaves the predicate
    lambda t: t.update(predicate="id = 5", updates={"c": "'k1'", "x": "1.5"}),  # and enters it
    lambda t: record(t, "true"),
    lambda t: t.delete("id IN (7, 100)"),
    merge,
    lambda t: t.update(predicate="c = 'k1'", updates={"x": "x + 1"}),
    lambda t: t.optimize.compact(),
    lambda t: record(t, "false"),
    lambda t: t.delete("id = 8"),
    lambda t: t.optimize.z_order(["x"]),
    lambda t: deltalake.write_deltalake(t, rows(900, 901), mode="overwrite", predicate="c = 'k1'"),
    lambda t: t.restore(4),
    lambda t: t.vacuum(dry_run=False),  # deletes no file within the retention
    lambda t: deltalake.write_deltalake(t, rows(1, 2, 3, c=None), mode="overwrite"),
    lambda t: t.delete(),
    lambda t: deltalake.write_deltalake(t, rows(1, 1, c="a b/%=é"), mode="append"),
)


@pytest.mark.slow
@pytest.mark.proves("F14")
@pytest.mark.parametrize("by", [[], ["c"]])
def test_changes_turn_each_version_into_the_next(spark: Any, tmp_path: Path, by: list[str]) -> None:
    root, columns, predicate = tmp_path / "t", ["id", "c", "x"], "c = 'k1' AND x IS NOT NULL"
    first = pa.concat_tables([rows(*range(n, 20, 3), c=f"k{n}" if n else None) for n in range(3)])
    deltalake.write_deltalake(root, first, partition_by=by)
    source = connector(spark, root)
    versions = [0]
    for step in STEPS:
        step(deltalake.DeltaTable(root))
        before, after = versions[-1], deltalake.DeltaTable(root).version()
        versions.append(after)
        if after == before:
            continue
        found = changed(source, before, after, columns, predicate)
        start = by_delta(root, before, columns, predicate)
        assert applied(start, found) == by_delta(root, after, columns, predicate)
        operation = actions_of(root, after, "commitInfo")[0]["operation"]
        quiet = operation in ("OPTIMIZE", "SET TBLPROPERTIES") or operation.startswith("VACUUM")
        assert not quiet or not found
    start, last = by_delta(root, 0, columns), versions[-1]
    assert applied(start, changed(source, 0, last, columns, "true")) == by_delta(
        root, last, columns
    )
    # Recorded changes contain only rows that changed.
    deletes = changed(source, *versions[5:7], columns, "true")
    assert {row[CHANGE] for row in deletes} == {DELETE}
    assert {row["id"] for row in deletes} == {7, 100}


def test_files_without_matching_rows_cause_no_changes(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    for c in ("a", "b"):
        deltalake.write_deltalake(root, rows(1, 2, c=c), mode="append", partition_by=["c"])
    deltalake.write_deltalake(root, rows(10, 11, c="b"), mode="append")
    deltalake.DeltaTable(root).update(predicate="c = 'a' AND id = 1", updates={"x": "7.0"})
    source = connector(spark, root)
    versions = (f"delta:{n}:{source.pin().split(':')[2]}" for n in (1, 3))
    since, until = versions
    for predicate in ("id > 11", "c = 'c'", "c = 'a' AND id >= 3"):
        assert source.changes(since, until, predicate, ["id"]).frame is None
        assert changed(source, 1, 3, ["id"], predicate) == []
    assert {row.id for row in changed(source, 1, 3, ["id"], "c = 'b'")} == {10, 11}


def test_an_empty_table_is_read_as_empty(spark: Any, tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", rows(1, 2), partition_by=["c"])
    deltalake.DeltaTable(tmp_path / "t").delete()
    source = connector(spark, tmp_path / "t")
    assert source.snapshot("id > 0", ["c", "id"], source.pin()).collect() == []
    assert source.prune("id > 0", source.pin()).of == 0


# ----------------------------------------------------------------------------- deletion vectors


def with_vectors(tmp_path: Path) -> Path:
    """Return a copy of a table of ten rows whose second version has a deletion vector."""
    root = tmp_path / "t"
    shutil.copytree(FOREIGN / "table-with-dv-small", root)
    for path in (root, root / "_delta_log"):
        path.chmod(0o755)
    return root


@pytest.mark.slow
def test_rows_deleted_and_restored_by_deletion_vectors_are_followed(
    spark: Any, tmp_path: Path
) -> None:
    root = with_vectors(tmp_path)
    (plain,), (marked,) = actions_of(root, 0, "add"), actions_of(root, 1, "add")
    gone = {k: marked[k] for k in ("path", "partitionValues", "size", "deletionVector")}
    gone |= {"dataChange": True, "deletionTimestamp": 0, "extendedFileMetadata": True}
    commit(root, 2, {"remove": gone}, {"add": plain})  # restored
    commit(root, 3, {"remove": {**gone, "deletionVector": None}}, {"add": marked})
    commit(root, 4, {"remove": gone})
    source = connector(spark, root)

    def changed_values(first: int, last: int) -> list[tuple[int, str]]:
        found = changed(source, first, last, ["value"], "true")
        return sorted((row.value, row[CHANGE]) for row in found)

    assert changed_values(1, 2) == [(0, INSERT), (9, INSERT)]
    assert changed_values(2, 3) == [(0, DELETE), (9, DELETE)]
    assert changed_values(3, 4) == [(n, DELETE) for n in range(1, 9)]
    assert applied(by_delta(root, 0, ["value"]), changed(source, 0, 3, ["value"], "true")) == (
        by_delta(root, 3, ["value"])
    )
    assert sorted(changed_values(0, 4)) == sorted(
        [(0, DELETE), (9, DELETE)] * 2 + [(0, INSERT), (9, INSERT)] + [(n, DELETE) for n in range(1, 9)]
    )  # fmt: skip


@pytest.mark.slow
def test_rows_deleted_before_statistics_were_computed_again_are_followed(
    spark: Any, tmp_path: Path
) -> None:
    root = with_vectors(tmp_path)
    (marked,) = actions_of(root, 1, "add")
    tight = json.loads(marked["stats"])
    tight |= {"minValues": {"value": 1}, "maxValues": {"value": 8}, "tightBounds": True}
    commit(root, 2, {"add": {**marked, "dataChange": False, "stats": json.dumps(tight)}})
    source = connector(spark, root)
    for where, value in (("value >= 9", 9), ("value < 1", 0)):
        rows = changed(source, 0, 2, ["value"], where)
        assert (value, DELETE) in [(row.value, row[CHANGE]) for row in rows]


# --------------------------------------------------------------------------- gaps and full reads


def full_read_reason_of(
    source: Connector, first: int, last: int, columns: Sequence[str] = ("id",)
) -> str:
    at = source.pin().split(":")[2]
    return (
        source.changes(f"delta:{first}:{at}", f"delta:{last}:{at}", None, columns).full_read_reason
        or ""
    )


def test_a_log_cleaned_up_before_a_checkpoint_is_followed(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    for n in range(5):
        deltalake.write_deltalake(root, rows(n), mode="append")
        if n == 2:
            deltalake.DeltaTable(root).create_checkpoint()
    for n in range(2):
        log(root, n).unlink()
    source = connector(spark, root)
    assert [row.id for row in changed(source, 3, 4, ["id"], "true")] == [4]
    assert sorted(row.id for row in changed(source, 2, 4, ["id"], "true")) == [3, 4]
    assert "version 1" in full_read_reason_of(source, 1, 4)
    with pytest.raises(GoneError, match="version 1 of the Delta table"):
        connector(spark, root, mode="snapshot", version=1).pin()
    log(root, 3).unlink()  # the checkpoint is intact, but the next version is missing
    deltalake.DeltaTable(root, version=2)
    with pytest.raises(GoneError, match="lacks version 3 and continues with 4") as caught:
        source.pin()
    assert f"{3:020}.json" in (caught.value.hint or "")


def test_a_gap_in_the_log_is_reported(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    for n in range(4):
        deltalake.write_deltalake(root, rows(n), mode="append")
    held = connector(spark, root).pin()
    log(root, 2).unlink()
    with pytest.raises(GoneError, match="lacks version 2 and continues with 3"):
        connector(spark, root).pin()
    with pytest.raises(GoneError, match="lacks version 2"):
        connector(spark, root).snapshot(None, ["id"], held)


def test_a_broken_log_is_not_reported_as_gone(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    for n in range(3):
        deltalake.write_deltalake(root, rows(n), mode="append")
    source = connector(spark, root)
    last = source.pin()
    deltalake.DeltaTable(root).create_checkpoint()
    log(root, 1).write_text("{")
    with pytest.raises(
        StorageError, match=r"version 1 in the log of the Delta table at .* is broken"
    ):
        source.changes(f"delta:0:{last.split(':')[2]}", last, None, ["id"])
    shutil.rmtree(root)
    deltalake.write_deltalake(root, rows(1))
    log(root, 1).write_text('{"add": ')
    for read in (source.pin, lambda: source.snapshot(None, ["id"], "delta:1:x")):
        with pytest.raises(
            StorageError, match=r"cannot open .* because of .*: .*Json error"
        ) as caught:
            read()
        assert str(log(root, 1)) in str(caught.value)
        assert not isinstance(caught.value, GoneError)
        assert "<unknown>" not in str(caught.value)


def test_a_file_that_is_added_or_removed_twice_is_not_counted_twice(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    for n in range(2):
        deltalake.write_deltalake(root, rows(n), mode="append")
    (add,) = actions_of(root, 1, "add")
    stats = {**add, "dataChange": False, "stats": '{"numRecords":1}'}
    commit(root, 2, {"add": stats})  # added again, with no data change
    source = connector(spark, root)
    assert [row.id for row in changed(source, 0, 2, ["id"], "true")] == [1]
    commit(root, 3, {"add": add})
    assert "version 3 adds or removes a file twice" in full_read_reason_of(source, 0, 3)
    gone = {"path": add["path"], "dataChange": True, "deletionTimestamp": 0, "size": add["size"]}
    commit(root, 4, {"remove": gone})
    commit(root, 5, {"remove": gone})
    assert [row[CHANGE] for row in changed(source, 3, 4, ["id"], "true")] == [DELETE]
    assert "version 5 adds or removes" in full_read_reason_of(source, 4, 5)


def test_added_columns_are_null_in_old_rows_and_replaced_columns_need_a_full_read(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, rows(1, 2))
    more = rows(3).append_column("new", pa.array(["n"]))
    deltalake.write_deltalake(root, more, mode="append", schema_mode="merge")
    deltalake.DeltaTable(root).delete("id = 1")
    source = connector(spark, root)
    found = changed(source, 0, 2, ["id", "new"], "true")
    before = bag([(1, None), (2, None)])
    assert applied(before, found) == by_delta(root, 2, ["id", "new"])
    found = changed(source, 0, 2, ["id", "x"], "new IS NULL OR new = 'n'")
    assert applied(by_delta(root, 0, ["id", "x"]), found) == by_delta(root, 2, ["id", "x"])
    other = pa.table({"id": ["1"], "c": ["k"], "x": [1.0], "new": ["n"]})
    deltalake.write_deltalake(root, other, mode="overwrite", schema_mode="overwrite")
    assert "its columns changed after version 1" in full_read_reason_of(source, 1, 3)
    deltalake.write_deltalake(root, more, mode="overwrite", schema_mode="overwrite")
    assert "its columns changed in version 3" in full_read_reason_of(source, 1, 4)
    found = changed(source, 3, 3, ["id"], "true")
    assert found == []


# --------------------------------------------------------------------------- names and partitions


def schema_string(**physical: str) -> str:
    fields = [
        {"name": name, "type": "long", "nullable": True, "metadata": {"delta.columnMapping.id": n, "delta.columnMapping.physicalName": called}}
        for n, (name, called) in enumerate(physical.items(), 1)
    ]  # fmt: skip
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.proves("F11")
@pytest.mark.parametrize("mode", ["name", "none"])
def test_columns_with_swapped_names_are_distinguished(
    spark: Any, tmp_path: Path, mode: str
) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, pa.table({"a": [1, 2], "b": [100, 200]}))
    (changed_values,) = actions_of(root, 0, "metaData")
    changed_values["schemaString"] = schema_string(a="b", b="a")  # ignored without a mapping mode
    changed_values["configuration"] = {} if mode == "none" else {"delta.columnMapping.mode": mode}
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    commit(root, 1, {"metaData": changed_values}, {"protocol": protocol})
    source = connector(spark, root)
    expected = [(100, 1), (200, 2)] if mode == "name" else [(1, 100), (2, 200)]
    found = source.snapshot("a >= 1", ["a", "b"], source.pin()).collect()
    assert bag(found) == bag(expected)
    assert source.prune("a < 50", source.pin()).files == (mode == "none")
    assert source.prune("b < 50", source.pin()).files == (mode == "name")
    if mode == "name":
        assert "its columns changed" in full_read_reason_of(source, 0, 1, ["a"])


def test_values_of_partitions_are_read_correctly_in_any_time_zone(
    spark: Any, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    texts = ["a b", "x%y=/z", "", None, "é'\"\\", "1.0"]
    noon = datetime(2024, 3, 31, 12, tzinfo=UTC)
    table = pa.table(
        {"p": texts, "t": pa.array([noon] * 6, pa.timestamp("us", tz="UTC")), "f": [0.1, -0.0, float("nan"), 1e20, None, 2.0], "v": list(range(6))}
    )  # fmt: skip
    deltalake.write_deltalake(root, table.slice(0, 1), partition_by=["p", "t", "f"])
    deltalake.write_deltalake(root, table.slice(1), mode="append")
    elsewhere = "America/Los_Angeles"
    source = connector(spark, root, zone=ZoneInfo(elsewhere))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", elsewhere)
    try:
        predicate = f"t = TIMESTAMP '2024-03-31 12:00:00 {elsewhere}'"
        columns = ["v", "p", "f"]
        whole = source.snapshot(predicate, columns, source.pin()).collect()
        came = changed(source, 0, 1, columns, predicate)
        assert changed(source, 0, 1, columns, f"NOT ({predicate})") == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    expected = [(v, p or None, f) for v, p, f in zip(range(6), texts, table["f"].to_pylist(), strict=True)]  # fmt: skip
    assert Counter(map(str, map(tuple, whole))) == Counter(map(str, expected))
    assert Counter(str(tuple(row)[:3]) for row in came) == Counter(map(str, expected[1:]))
    assert source.prune("p = 'x%y=/z'", source.pin()).files == 1
    assert source.prune("p IS NULL", source.pin()).files == 2
    assert source.prune("f > 1e300", source.pin()).files == 5  # all but where it is NULL


# ------------------------------------------------------------------------------------- refused


def told_otherwise(root: Path, configuration: dict[str, str], *features: str) -> None:
    (changed_values,) = actions_of(root, 0, "metaData")
    changed_values["configuration"] = configuration
    reading = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [*features], "writerFeatures": [*features]}  # fmt: skip
    commit(root, 1, {"metaData": changed_values}, {"protocol": reading})


@pytest.mark.parametrize(
    ("feature", "configuration"),
    [
        ("typeWidening", {}),
        ("variantType", {}),
        ("catalogManaged", {}),
        ("columnMapping by id", {"delta.columnMapping.mode": "id"}),
        ("madeUp", {}),
    ],
)
def test_an_unsupported_feature_is_reported_by_name(
    spark: Any, tmp_path: Path, feature: str, configuration: dict[str, str]
) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, pa.table({"a": [1], "b": [2]}))
    (changed_values,) = actions_of(root, 0, "metaData")
    changed_values["schemaString"] = schema_string(a="a", b="b")
    log(root, 0).write_text(
        "\n".join(
            json.dumps({"metaData": changed_values}) if "metaData" in line else line
            for line in log(root, 0).read_text().splitlines()
        )
    )
    told_otherwise(root, configuration, feature.split()[0])
    source = connector(spark, root)
    said = "catalog-managed" if feature == "catalogManaged" else feature
    for read in (source.pin, lambda: source.prune(None, f"delta:1:{changed_values['id']}")):
        with pytest.raises(StorageError, match=said) as caught:
            read()
        assert not isinstance(caught.value, GoneError)


def test_a_datetime_is_rejected_for_a_table_with_in_commit_timestamps(
    spark: Any, tmp_path: Path
) -> None:
    deltalake.write_deltalake(tmp_path / "t", rows(1))
    (changed_values,) = actions_of(tmp_path / "t", 0, "metaData")
    changed_values["configuration"] = {"delta.enableInCommitTimestamps": "true"}
    commit(tmp_path / "t", 1, {"metaData": changed_values})
    with pytest.raises(StorageError, match="inCommitTimestamp"):
        connector(spark, tmp_path / "t", datetime="2999-01-01T00:00:00+00:00").pin()
    assert connector(spark, tmp_path / "t").pin().startswith("delta:1:")


def test_an_error_names_the_corrupt_file(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    deltalake.write_deltalake(root, rows(1, 2))
    (file,) = root.glob("*.parquet")
    file.write_bytes(b"x" * file.stat().st_size)
    source = connector(spark, root)
    with pytest.raises(Exception, match=file.name):
        source.snapshot(None, ["id"], source.pin()).collect()


def test_the_start_version_is_not_needed_once_a_copy_exists(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    for n in range(4):
        deltalake.write_deltalake(root, rows(n), mode="append")
    source = connector(spark, root, version=1)
    held = source.pin()
    deltalake.DeltaTable(root).create_checkpoint()
    for n in range(3):
        log(root, n).unlink()
    assert source.pin(held) == held
    with pytest.raises(GoneError, match="version 1"):
        source.pin()
