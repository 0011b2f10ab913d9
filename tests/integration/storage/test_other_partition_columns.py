"""A Delta table that is rewritten with different partition columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from persist_assets.storage.changes import delta_change

if TYPE_CHECKING:
    from pathlib import Path


def log_of(table: Path) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{0:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_changes_across_new_partition_columns_are_unknown(tmp_path: Path) -> None:
    """Removed files do not contain the values of a former partition column."""
    table, other = tmp_path / "t", tmp_path / "o"
    rows = pa.table({"a": pa.array([1, 2], pa.int32()), "d": pa.array([1, 2], pa.int32())})
    write_deltalake(table, rows, partition_by=["d"])
    write_deltalake(other, rows)
    before, adds = log_of(table), [line for line in log_of(other) if "add" in line]
    for line in adds:
        path = line["add"]["path"]
        (table / path).write_bytes((other / path).read_bytes())
    (metadata,) = (line["metaData"] for line in before if "metaData" in line)
    gone = [
        {
            "remove": {
                "path": line["add"]["path"],
                "partitionValues": line["add"]["partitionValues"],
                "size": line["add"]["size"],
                "deletionTimestamp": 1,
                "dataChange": True,
                "extendedFileMetadata": True,
            }
        }
        for line in before
        if "add" in line
    ]
    commit = [{"metaData": {**metadata, "partitionColumns": []}}, *gone, *adds]
    text = "\n".join(json.dumps(line) for line in commit)
    (table / "_delta_log" / f"{1:020}.json").write_text(text)
    assert delta_change(str(table), 0, 1) is None
    write_deltalake(table, rows, mode="append")
    change = delta_change(str(table), 1, 2)
    assert change is not None
    assert (len(change.added), change.lost) == (1, ())
