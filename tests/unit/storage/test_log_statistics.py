"""What the log of a Delta table states of its files, where names or paths are ambiguous."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from persist_assets.storage.changes import delta_pieces, raw_change
from persist_assets.storage.raw import pin_delta

if TYPE_CHECKING:
    from pathlib import Path


def commit(root: Path, version: int, *actions: Any) -> None:
    log = root / "_delta_log" / f"{version:020}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(map(json.dumps, actions)))


def field(name: str, kind: object) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


@pytest.mark.parametrize("both", [False, True])
def test_a_column_with_a_dot_in_its_name_has_no_statistics_of_a_field(
    tmp_path: Path, both: bool
) -> None:
    schema = {
        "type": "struct",
        "fields": [
            field("a", {"type": "struct", "fields": [field("b", "integer")]}),
            field("a.b", "integer"),
            field("c", "integer"),
        ],
    }
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    numbers = pa.array([500], pa.int32())
    struct = pa.array([{"b": 1}], pa.struct([("b", pa.int32())]))
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"a": struct, "a.b": numbers, "c": numbers}), tmp_path / "t" / "f")
    values = {"a": {"b": 1}, "c": 500} | ({"a.b": 500} if both else {})
    nulls = {"a": {"b": 0}, "c": 0} | ({"a.b": 0} if both else {})
    stats = {"numRecords": 1, "minValues": values, "maxValues": values, "nullCount": nulls}
    add = {"path": "f", "partitionValues": {}, "size": 9, "modificationTime": 0}
    commit(
        tmp_path / "t",
        0,
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
        {"add": add | {"dataChange": True, "stats": json.dumps(stats)}},
    )
    for column, known in (("a.b", False), ("c", True)):
        (piece,) = delta_pieces(str(tmp_path / "t"), 0, column) or ()
        assert (column in piece.spans) == known


def test_an_added_file_that_is_no_longer_in_a_partitioned_table_is_not_read(
    tmp_path: Path,
) -> None:
    """Its directory may not have the value that the log states; only live files are checked."""
    root = tmp_path / "t"
    write_deltalake(root, pa.table({"id": [0], "k": ["ok"]}), partition_by=["k"])
    before = pin_delta(str(root))
    write_deltalake(root, pa.table({"id": [1], "k": ["é"]}), mode="append", partition_by=["k"])
    text = (root / "_delta_log" / f"{1:020}.json").read_text()
    add = next(a["add"] for a in map(json.loads, text.splitlines()) if "add" in a)
    place = root / "k=é" / "optimized.parquet"
    place.parent.mkdir()
    pq.write_table(pa.table({"id": [1]}), place)
    stats = {"numRecords": 1, "minValues": {"id": 1}, "maxValues": {"id": 1}}
    moved = {
        "path": "k=%C3%A9/optimized.parquet",
        "partitionValues": {"k": "é"},
        "size": place.stat().st_size,
        "modificationTime": 1,
        "dataChange": False,
        "stats": json.dumps(stats | {"nullCount": {"id": 0}}),
    }
    gone = {k: add[k] for k in ("path", "partitionValues", "size")}
    gone |= {"deletionTimestamp": 1, "dataChange": False, "extendedFileMetadata": True}
    commit(root, 2, {"commitInfo": {"operation": "OPTIMIZE"}}, {"remove": gone}, {"add": moved})
    now = pin_delta(str(root))
    assert before.version is not None
    change = raw_change(str(tmp_path), str(root), before.version, now)
    assert change is not None
    assert {p.path for p in change.added} <= {*(now.files or ())}
