"""Delta tables with a broken file: errors name the file, and published tables stay readable."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import persist
from conftest import ROOT
from deltalake import DeltaTable, write_deltalake
from foreign import delta_connector
from pyroaring import BitMap64

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.sources import RawTable
from persist_assets.storage.raw import pin_raw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

FOREIGN = ROOT / "tests" / "data" / "foreign"
SOURCES = """
create external table t (id bigint, c string) with ('connectors' = '[{
    "transport": {"name": "delta_table_input", "config": {"uri": "lake"}}
}]');
create materialized view v as select id from t where c = 'a';
"""


def put(root: Path, *ids: int) -> None:
    table = pa.table({"id": pa.array(ids, pa.int64()), "c": ["a"] * len(ids)})
    write_deltalake(str(root / "lake"), table, mode="append")


def cut(file: Path) -> Path:
    """Truncate a file to its first half."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def commit(root: Path, number: int) -> Path:
    return root / "lake" / "_delta_log" / f"{number:020}.json"


def cut_last_commit(root: Path) -> Path:
    return cut(commit(root, 2))


def cut_earlier_commit(root: Path) -> Path:
    return cut(commit(root, 1))


def empty_commit(root: Path) -> Path:
    commit(root, 1).write_bytes(b"")
    return commit(root, 1)


def no_object(root: Path) -> Path:
    commit(root, 2).write_text("[1]\n")
    return commit(root, 2)


def checkpoint(root: Path) -> Path:
    DeltaTable(str(root / "lake")).create_checkpoint()
    (found,) = (root / "lake" / "_delta_log").glob("*.checkpoint.parquet")
    return found


def cut_checkpoint(root: Path) -> Path:
    return cut(checkpoint(root))


def overwritten_checkpoint(root: Path) -> Path:
    file = checkpoint(root)
    content = file.read_bytes()
    file.write_bytes(content[:40] + bytes(200) + content[240:])  # its footer is intact
    return file


def lost_checkpoint(root: Path) -> Path:
    checkpoint(root).unlink()
    return root / "lake" / "_delta_log" / "_last_checkpoint"


def cut_data(root: Path) -> Path:
    last = json.loads(commit(root, 2).read_text().splitlines()[-1])
    return cut(root / "lake" / last["add"]["path"])


BREAKS = [
    *(cut_last_commit, cut_earlier_commit, empty_commit, no_object, cut_data),
    *(cut_checkpoint, overwritten_checkpoint, lost_checkpoint),
]


@pytest.mark.slow
@pytest.mark.proves("F23", "F26")
@pytest.mark.parametrize("breaks", BREAKS, ids=lambda b: b.__name__)
def test_a_broken_file_is_named_and_published_tables_stay_readable(
    breaks: Callable[[Path], Path],
    enter: Callable[..., Builder],
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"m.sql": SOURCES})
    put(root, 1)
    put(root, 2)
    builder = enter(root)
    (v,) = builder.project.persisted
    builder.build(v)
    put(root, 3)
    saved = shutil.copytree(root / "lake", root / "saved")
    file = breaks(root)
    # A build reports persist's own error instead of those of delta-rs or Spark.
    builder = enter(root)
    with pytest.raises(StorageError) as raised:
        builder.build(v)
    assert str(file) in raised.value.message
    assert sorted(r.id for r in enter(root).read(v).collect()) == [1, 2]
    copy = builder.observer.ingestion.find(builder.project.sources[0])
    assert copy is not None
    assert copy.rows == 2
    if breaks in (cut_checkpoint, cut_data):
        done = persist("external", "sync", "--json", cwd=root)
        assert done.returncode == 6, done.stderr
        error = json.loads(done.stdout)["error"]
        assert (error["code"], str(file) in error["message"]) == ("StorageError", True)
    # After a repair, changes are followed.
    shutil.rmtree(root / "lake")
    shutil.copytree(saved, root / "lake")
    builder = enter(root)
    builder.build(v)
    assert sorted(r.id for r in builder.read(v).collect()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("table", "pattern"),
    [
        ("table-with-dv-small", "*.bin"),
        ("checkpoint-v2-table", "_delta_log/_sidecars/*.parquet"),
        ("checkpoint-v2-table", "_delta_log/*checkpoint*.json"),
    ],
)
def test_a_broken_part_of_a_log_is_named(tmp_path: Path, table: str, pattern: str) -> None:
    root = shutil.copytree(FOREIGN / table, tmp_path / "t")
    connector = delta_connector(None, root)
    connector.prune(None, connector.pin())
    *_, file = sorted(root.glob(pattern))
    cut(file)
    connector = delta_connector(None, root)
    with pytest.raises(StorageError) as raised:
        connector.prune(None, connector.pin())
    assert type(raised.value) is StorageError
    assert file.name in raised.value.message


def test_broken_files_of_raw_delta_tables_are_named(tmp_path: Path) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2)
    raw = RawTable("delta", "lake")
    pin_raw(raw, str(tmp_path / "lake"))
    file = empty_commit(tmp_path)
    with pytest.raises(StorageError, match=f"{file} is empty"):
        pin_raw(raw, str(tmp_path / "lake"))
    root = shutil.copytree(FOREIGN / "table-with-dv-small", tmp_path / "t")
    (file,) = root.glob("*.bin")
    cut(file)
    with pytest.raises(StorageError, match=file.name):
        pin_raw(raw, str(root))


def test_a_missing_deletion_vector_raises_a_gone_error(tmp_path: Path) -> None:
    root = shutil.copytree(FOREIGN / "table-with-dv-small", tmp_path / "t")
    (file,) = root.glob("*.bin")
    file.unlink()
    connector = delta_connector(None, root)
    with pytest.raises(GoneError, match=file.name):
        connector.prune(None, connector.pin())


def mark(root: Path, rows: int, deleted: int) -> None:
    """Rewrite the file of a table with so many rows, of which the first are marked as deleted."""
    (file,), (vector,) = root.glob("*.parquet"), root.glob("*.bin")
    pq.write_table(pa.table({"value": pa.array(range(rows), pa.int32())}), file)
    bitmap = struct.pack("<I", 1681511377) + BitMap64(range(deleted)).serialize()
    size, crc = struct.pack(">I", len(bitmap)), struct.pack(">I", zlib.crc32(bitmap))
    vector.write_bytes(b"\x01" + size + bitmap + crc)
    for commit in (root / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if add := action.get("add"):
                add["size"] = file.stat().st_size
                add["stats"] = json.dumps(json.loads(add["stats"]) | {"numRecords": rows, "maxValues": {"value": rows - 1}})  # fmt: skip
                if told := add.get("deletionVector"):
                    told |= {"sizeInBytes": len(bitmap), "cardinality": deleted}
        commit.write_text("\n".join(json.dumps(action) for action in actions))


@pytest.mark.slow
def test_more_than_a_million_deleted_rows_are_rejected_with_a_hint(
    spark: Any, tmp_path: Path
) -> None:
    most = 1_000_000
    few = shutil.copytree(FOREIGN / "table-with-dv-small", tmp_path / "few")
    mark(few, 100_003, 100_000)
    source = delta_connector(spark, few)
    kept = source.snapshot(None, ["value"], source.pin())
    assert sorted(r.value for r in kept.collect()) == [100_000, 100_001, 100_002]
    root = shutil.copytree(FOREIGN / "table-with-dv-small", tmp_path / "many")
    mark(root, most + 3, most + 1)
    source = delta_connector(spark, root)
    with pytest.raises(StorageError) as raised:
        source.snapshot(None, ["value"], source.pin())
    assert f"the Delta table at {root} has 1,000,001 rows in" in raised.value.message
    assert "REORG TABLE" in (raised.value.hint or "")
    assert "PURGE" in (raised.value.hint or "")
    # Rows of files that cannot match the predicate do not count.
    assert source.prune(f"value > {most + 100}", source.pin()).files == 0
    assert source.snapshot(f"value > {most + 100}", ["value"], source.pin()).collect() == []
