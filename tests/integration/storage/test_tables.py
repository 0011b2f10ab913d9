"""Delta tables that persist writes, and raw tables of other writers. No Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from deltalake import DeltaTable, write_deltalake

from persist_assets.core.errors import BuildError, ConflictError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import RawTable
from persist_assets.storage.delta_commit import Staged, commit, find_staged
from persist_assets.storage.delta_deletions import delete_builds
from persist_assets.storage.delta_tables import LOG, find_table, read_sample, read_version
from persist_assets.storage.file_columns import missing_columns
from persist_assets.storage.files import delete_directory
from persist_assets.storage.raw import find_columns, pin_raw, public_options
from persist_assets.storage.types import delta_schema

if TYPE_CHECKING:
    from pathlib import Path

STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": False, "metadata": {"x": 1}},
        {"name": "b", "type": "string", "nullable": True, "metadata": {}},
    ],
}
FOREIGN = ROOT / "tests" / "data" / "foreign"


def stage(root: Path, uid: str, rows: int) -> Staged:
    (root / uid).mkdir(parents=True)
    table = pa.table({"a": pa.array(range(rows), pa.int64()), "b": [f"x{n}" for n in range(rows)]})
    pq.write_table(table, root / uid / "part-0.parquet")
    return find_staged(str(root), uid, delta_schema(STRUCT))


def test_a_commit_replaces_all_rows_in_one_version(tmp_path: Path) -> None:
    root = tmp_path / "t"
    assert commit(stage(root, "one", 3), build_id="b", pinned=None) == 0
    assert commit(stage(root, "two", 5), build_id="b", pinned=0) == 1
    assert DeltaTable(str(root)).to_pyarrow_table().num_rows == 5
    assert [f.split("/")[-2] for f in read_version(str(root), 0).files] == ["one"]
    assert [f.split("/")[-2] for f in read_version(str(root), 1).files] == ["two"]
    assert read_version(str(root), 1).columns == (Column("a", "bigint"), Column("b", "string"))


def test_each_version_has_the_columns_of_its_files(tmp_path: Path) -> None:
    root = tmp_path / "t"

    def stage_wider(uid: str) -> Staged:
        staged = stage(root, uid, 4)
        more = {"name": "c", "type": "long", "nullable": True, "metadata": {}}
        wider = {**STRUCT, "fields": [*STRUCT["fields"], more]}
        return replace(staged, schema=delta_schema(wider))

    def columns(version: int) -> str:
        return "".join(c.name for c in read_version(str(root), version).columns)

    commit(stage(root, "one", 3), build_id="b", pinned=None)
    wider = commit(stage_wider("two"), build_id="b", pinned=0)
    assert (columns(0), columns(wider)) == ("ab", "abc")
    kept = [f"one/{path.name}" for path in (root / "one").iterdir()]
    # The head was never published: the commit continues the version before it.
    more = commit(stage(root, "three", 1), build_id="b", pinned=0, base=0, kept_files=kept)
    assert (columns(more), len(read_version(str(root), more).files)) == ("ab", 2)
    again = commit(stage_wider("four"), build_id="b", pinned=more)
    back = commit(stage(root, "five", 1), build_id="b", pinned=again)
    assert (columns(again), columns(back)) == ("abc", "ab")


@pytest.mark.proves("P12")
def test_other_tools_can_read_committed_tables(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    assert pl.read_delta(str(root)).rows() == [(0, "x0"), (1, "x1"), (2, "x2")]
    assert DeltaTable(str(root)).to_pyarrow_dataset().count_rows() == 3


def test_reading_a_version_does_not_import_pandas(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    script = (
        "import sys\n"
        "from persist_assets.storage.delta_tables import read_version\n"
        f"(file,) = read_version({str(root)!r}, 0).files\n"
        "print(file.endswith('.parquet'), 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True False\n"


def test_the_log_has_statistics_and_the_build(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    (action,) = pa.table(DeltaTable(str(root)).get_add_actions(flatten=True)).to_pylist()
    assert (action["num_records"], action["min.a"], action["max.a"], action["max.b"]) == (
        3,
        0,
        2,
        "x2",
    )
    assert DeltaTable(str(root)).history(1)[0]["persist.build"] == "one"


def test_a_commit_first_restores_the_version_before_an_unpublished_head(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    commit(stage(root, "dead", 5), build_id="b", pinned=0)
    assert commit(stage(root, "two", 7), build_id="b", pinned=0) == 3
    table = DeltaTable(str(root))
    assert [h["operation"] for h in reversed(table.history())][2] == "RESTORE"
    assert table.to_pyarrow_table().num_rows == 7


def test_each_version_contains_files_of_only_one_concurrent_writer(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    staged = [stage(root, f"writer-{n}", n) for n in range(1, 17)]
    together = threading.Barrier(8)

    def write(one: Staged) -> int | None:
        together.wait()
        try:
            return commit(one, build_id="b", pinned=None)
        except ConflictError:
            return None

    with ThreadPoolExecutor(8) as pool:
        versions = [v for v in pool.map(write, staged) if v is not None]
    table = DeltaTable(str(root))
    assert sorted(versions) == list(range(1, table.version() + 1))
    for version in versions:
        # No version contains files of two writers.
        assert len({f.split("/")[-2] for f in read_version(str(root), version).files}) == 1


def test_only_one_of_several_concurrent_writers_gets_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    staged = [stage(root, f"writer-{n}", n) for n in range(1, 9)]
    together = threading.Barrier(8, timeout=60)
    write = DeltaTable.create_write_transaction

    def write_together(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        together.wait()  # all have opened version 0
        write(table, *arguments, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", write_together)
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(commit, one, build_id="b", pinned=None) for one in staged]
    errors = {one.build_uid: each.exception() for one, each in zip(staged, done, strict=True)}
    (winner,) = (uid for uid, error in errors.items() if error is None)
    assert [each.result() for each in done if not each.exception()] == [1]
    assert {type(error) for error in errors.values() if error} == {ConflictError}
    assert DeltaTable(str(root)).version() == 1
    assert {f.split("/")[-2] for f in read_version(str(root), 1).files} == {winner}


def test_a_file_that_changed_before_the_commit_is_detected(tmp_path: Path) -> None:
    root = tmp_path / "t"
    staged = stage(root, "one", 3)
    path = root / "one" / "part-0.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(StorageError, match="bytes, not"):
        commit(staged, build_id="b", pinned=None)
    path.unlink()
    with pytest.raises(StorageError, match="is gone"):
        commit(staged, build_id="b", pinned=None)
    assert find_table(str(root)) is None


def test_a_version_whose_files_are_gone_cannot_be_read(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 3), build_id="b", pinned=None)
    shutil.rmtree(root / "one")
    with pytest.raises(StorageError, match=", a file of version 0, is gone"):
        read_version(str(root), 0)
    with pytest.raises(StorageError, match="version 7 of the table"):
        read_version(str(root), 7)


def test_staged_files_can_be_discarded(tmp_path: Path) -> None:
    root = tmp_path / "t"
    stage(root, "one", 3)
    delete_directory(f"{root}/one")
    delete_directory(f"{root}/never")
    assert not (root / "one").exists()


def test_a_sample_is_the_first_rows(tmp_path: Path) -> None:
    root = tmp_path / "t"
    commit(stage(root, "one", 9), build_id="b", pinned=None)
    assert [r["a"] for r in read_sample(read_version(str(root), 0).files, 2)] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("void", True),
        ("interval day to second", True),
        ("variant", True),
        ({"type": "array", "elementType": "void", "containsNull": True}, True),
        ({"type": "struct", "fields": [{"name": "x", "type": "interval month"}]}, True),
        ("decimal(10,2)", False),
        ("timestamp_ntz", False),
    ],
)
def test_unsupported_column_types_have_no_delta_schema(kind: object, refused: bool) -> None:
    struct = {"type": "struct", "fields": [{"name": "c", "type": kind}]}
    if refused:
        with pytest.raises(BuildError, match="column `c` has the type"):
            delta_schema(struct)
    else:
        assert json.loads(delta_schema(struct))["fields"][0]["nullable"] is True


# --------------------------------------------------------------------------------------------- raw


def parquet(path: Path, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_the_version_of_files_depends_on_their_names_and_times(tmp_path: Path) -> None:
    raw, where = RawTable("parquet", "t"), str(tmp_path / "t")
    parquet(tmp_path / "t" / "a.parquet", x=[1])
    first = pin_raw(raw, where)
    (tmp_path / "t" / "_SUCCESS").touch()
    (tmp_path / "t" / ".hidden").touch()
    assert pin_raw(raw, where) == first
    parquet(tmp_path / "t" / "b.parquet", x=[1])
    second = pin_raw(raw, where)
    assert second.version != first.version
    assert len(second.files or ()) == 2
    file = tmp_path / "t" / "b.parquet"
    os.utime(file, ns=(1, 1))
    assert pin_raw(raw, where).version != second.version
    # Another content of the same size, which pretends to be as old. Sizes and times alone are
    # varied in a bucket: on a disk, each change also changes the inode's time.
    second = pin_raw(raw, where)
    parquet(tmp_path / "t" / "b.parquet", x=[2])
    os.utime(file, ns=(1, 1))
    third = pin_raw(raw, where)
    assert [stamp[:2] for stamp in third.stamps] == [stamp[:2] for stamp in second.stamps]
    assert third.version != second.version


def test_missing_data_is_reported(tmp_path: Path) -> None:
    for raw in (RawTable("parquet", "x"), RawTable("delta", "x"), RawTable("csv", "x")):
        with pytest.raises(StorageError, match=r"there is no .*at"):
            pin_raw(raw, str(tmp_path / "x"))


def test_jdbc_tables_have_no_version() -> None:
    assert pin_raw(RawTable("jdbc", None), "").version is None


def test_columns_come_from_the_parquet_footer_with_spark_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "u": pa.array([1], pa.uint32()),
            "t": pa.array([1], pa.timestamp("us", tz="UTC")),
            "n": pa.array([1], pa.timestamp("us")),
            "d": pa.array([None], pa.decimal128(10, 2)),
            "l": pa.array([["x"]], pa.list_(pa.string())),
            "s": pa.array([{"aB": 1.0}], pa.struct([("aB", pa.float64())])),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "c": pa.array(["x"]).dictionary_encode(),
        }
    )
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "a.parquet")
    found = find_columns(RawTable("parquet", "t"), str(tmp_path / "t"))
    assert {c.name: c.type for c in found} == {
        "i": "int",
        "u": "bigint",
        "t": "timestamp",
        "n": "timestamp_ntz",
        "d": "decimal(10,2)",
        "l": "array<string>",
        "s": "struct<aB:double>",
        "m": "map<string,bigint>",
        "c": "string",
    }


def test_partition_directories_are_columns(tmp_path: Path) -> None:
    for year, day, kind in (
        (2013, "2013-01-01", "a%20b"),
        (2014, "2014-01-01", "__HIVE_DEFAULT_PARTITION__"),
    ):
        parquet(
            tmp_path / "t" / f"year={year}" / f"day={day}" / f"kind={kind}" / "p.parquet", x=[1]
        )
    found = find_columns(RawTable("parquet", "t"), str(tmp_path / "t"))
    assert [(c.name, c.type) for c in found] == [
        ("x", "bigint"),
        ("year", "int"),
        ("day", "date"),
        ("kind", "string"),
    ]


def test_declared_columns_missing_from_the_data_are_found(tmp_path: Path) -> None:
    parquet(tmp_path / "t" / "a.parquet", X=[1])
    raw = RawTable("parquet", "t")
    pin = pin_raw(raw, str(tmp_path / "t"))
    assert missing_columns(pin, raw, [Column("x", "int"), Column("y", "int")]) == ["y"]


def test_invalid_parquet_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.parquet").write_text("no")
    with pytest.raises(StorageError, match="is not a Parquet file"):
        find_columns(RawTable("parquet", "t"), str(tmp_path / "t"))


def test_a_delta_table_is_pinned_at_its_version(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, pa.table({"x": [1]}))
    first = pin_raw(RawTable("delta", "t"), where)
    write_deltalake(where, pa.table({"x": [2]}), mode="overwrite")
    second = pin_raw(RawTable("delta", "t"), where)
    assert first.version != second.version
    assert first.files != second.files
    assert len(second.files or ()) == 1


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("cdf-table", 9),
        ("checkpoint-v2-table", 8),
        ("delta-0.8.0-null-partition", 2),
        ("delta-0.8.0-partitioned", 6),
        ("simple_table", 5),
        ("table-without-dv-small", 1),
    ],
)
def test_tables_of_other_writers_are_pinned(name: str, rows: int) -> None:
    assert len(pin_raw(RawTable("delta", name), str(FOREIGN / name)).files or ()) == rows


@pytest.mark.parametrize("name", ["table-with-dv-small", "table_with_column_mapping"])
def test_tables_with_deletion_vectors_or_column_mapping_are_pinned_by_their_log(name: str) -> None:
    pin = pin_raw(RawTable("delta", name), str(FOREIGN / name))
    assert (pin.by_log, pin.files) == (True, None)


@pytest.mark.parametrize(
    ("old", "new", "feature"),
    [
        ('"deletionVectors"]', '"deletionVectors","typeWidening"]', "typeWidening"),
        ('mode":"none"', 'mode":"id"', "columnMapping by id"),
    ],
)
def test_unsupported_delta_features_are_rejected(
    tmp_path: Path, old: str, new: str, feature: str
) -> None:
    root = tmp_path / "t"
    shutil.copytree(FOREIGN / "table-with-dv-small", root)
    first = root / "_delta_log" / f"{0:020}.json"
    for path in (root, first.parent, first):
        path.chmod(0o755)
    first.write_text(first.read_text().replace(old, new))
    with pytest.raises(StorageError, match=f"uses {feature}"):
        pin_raw(RawTable("delta", "t"), str(root))


def test_secret_options_are_not_part_of_the_identity() -> None:
    options = (
        ("accesskey", "x"),
        ("dbtable", "t"),
        ("fs.s3a.secret.key", "y"),
        ("password", "z"),
        ("user", "u"),
    )
    assert public_options(RawTable("jdbc", None, options)) == (("dbtable", "t"),)


def test_older_versions_stay_readable_after_an_unpublished_head_is_replaced(tmp_path: Path) -> None:
    root = tmp_path / "t"
    often = {"delta.checkpointInterval": "4"}
    write_deltalake(str(root), pa.table({"a": [1], "b": ["x"]}), configuration=often)
    commit(stage(root, "one", 1), build_id="b", pinned=0)
    commit(stage(root, "dead", 2), build_id="b", pinned=1)
    months_ago = time.time() - 90 * 86400  # delta-rs would clean up, at a checkpoint
    for file in (root / "_delta_log").iterdir():
        os.utime(file, (months_ago, months_ago))
    assert commit(stage(root, "two", 3), build_id="b", pinned=1) == 4
    assert (root / "_delta_log" / f"{3:020}.checkpoint.parquet").exists()
    assert [f.split("/")[-2] for f in read_version(str(root), 1).files] == ["one"]
    for file in (root / "_delta_log").iterdir():
        os.utime(file, (months_ago, months_ago))
    commit(stage(root, "three", 3), build_id="b", pinned=4)
    commit(stage(root, "four", 3), build_id="b", pinned=5)
    delete_builds(str(root), ["four"], head=5)
    assert (root / "_delta_log" / f"{7:020}.checkpoint.parquet").exists()
    assert [f.split("/")[-2] for f in read_version(str(root), 1).files] == ["one"]
    assert [f.split("/")[-2] for f in read_version(str(root), 7).files] == ["three"]


def test_the_log_is_deleted_only_with_the_last_build(tmp_path: Path) -> None:
    root, one, two = tmp_path / "t", "1" * 32, "2" * 32
    commit(stage(root, one, 1), build_id="b", pinned=None)
    commit(stage(root, two, 2), build_id="b", pinned=None)
    delete_builds(str(root), [one, LOG], head=None)
    assert [f.split("/")[-2] for f in read_version(str(root), 1).files] == [two]
    delete_builds(str(root), [two, LOG], head=None)
    assert not root.exists()
