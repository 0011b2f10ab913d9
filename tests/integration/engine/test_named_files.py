"""All files that a Delta log lists are read, whatever their names; missing rows are an error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from foreign import delta_connector

from persist_assets.core.errors import StorageError
from persist_assets.core.model.sources import RawTable
from persist_assets.core.spark_versions import is_in_use
from persist_assets.storage.raw import digest_of_files, pin_raw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

pytestmark = pytest.mark.proves("S3")

SOURCES = """
create table raw using delta location 'lake';
create external table t (id bigint) with ('connectors' = '[{
    "transport": {"name": "delta_table_input", "config": {"uri": "lake"}}
}]');
create materialized view from_raw as select id from raw;
create materialized view from_external as select id from t where id > 0;
"""


def put(lake: Path, name: str, *ids: int, **stats: int) -> None:
    """Append a file with this name to a Delta table, and change its statistics in the log."""
    table = pa.table({"id": pa.array(ids, pa.int64())})
    write_deltalake(str(lake), table, mode="append")
    commit = max((lake / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if "add" in action)
    (lake / name).parent.mkdir(parents=True, exist_ok=True)
    (lake / add["path"]).rename(lake / name)
    add |= {"path": name, "stats": json.dumps(json.loads(add["stats"]) | stats)}
    commit.write_text("\n".join(map(json.dumps, actions)))


def built(builder: Builder) -> list[list[int]]:
    """Build all persisted sources, and return the ids of each."""
    for view in builder.project.persisted:
        builder.build(view)
    return [sorted(r.id for r in builder.read(v).collect()) for v in builder.project.persisted]


@pytest.mark.slow
def test_delta_files_with_hidden_file_names_are_read(
    enter: Callable[..., Builder], make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": SOURCES})
    lake = root / "lake"
    put(lake, "a.parquet", 1)
    put(lake, "_hidden.parquet", 2)
    put(lake, ".hidden.parquet", 3)
    put(lake, "k=1/_in_a_directory.parquet", 4)  # not a partition of this table
    if not is_in_use("4.3"):  # older versions ignore such files, so builds fail
        with pytest.raises(StorageError, match=r"but its log states 4: .*hidden\.parquet"):
            built(enter(root))
        return
    assert built(enter(root)) == [[1, 2, 3, 4]] * 2
    # A later build reads new ones, too.
    put(lake, "_another.parquet", 5)
    assert built(enter(root)) == [[1, 2, 3, 4, 5]] * 2


def test_versions_recorded_without_hidden_files_need_a_full_read(tmp_path: Path) -> None:
    assert digest_of_files(["a.parquet", "b.parquet"]) == "cb102785c5e9"  # unchanged
    assert digest_of_files(["_a.parquet"]) != "706324b1e75c"
    put(tmp_path, "a.parquet", 1)
    connector = delta_connector(None, tmp_path)
    assert len((plain := connector.pin()).split(":")) == 4  # unchanged
    assert delta_connector(None, tmp_path, mode="snapshot").pin(plain) == plain
    put(tmp_path, "_b.parquet", 2)
    new = connector.pin()
    old = new.rpartition(":")[0]
    assert connector.changes(old, new, None, ["id"]).full_read_reason is not None
    assert connector.changes(plain, new, None, ["id"]).full_read_reason is None
    assert delta_connector(None, tmp_path, mode="snapshot").pin(old) == new
    put(tmp_path, "c.parquet", 3)
    assert connector.changes(old, connector.pin(), None, ["id"]).full_read_reason is not None
    assert connector.changes(new, connector.pin(), None, ["id"]).full_read_reason is None


@pytest.mark.parametrize(
    ("name", "stats", "message"),
    [
        ("b.parquet", {"numRecords": 5}, "b.parquet (2 of 5 rows)"),
        ("_metadata.parquet", {}, "_metadata.parquet (0 of 2 rows)"),  # a name that Spark reserves
    ],
)
def test_fewer_rows_than_the_log_promises_are_an_error(
    name: str,
    stats: dict[str, int],
    message: str,
    enter: Callable[..., Builder],
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"m.sql": SOURCES})
    put(root / "lake", "a.parquet", 1)
    put(root / "lake", name, 2, 3, **stats)
    builder = enter(root)
    for view in builder.project.persisted:
        with pytest.raises(StorageError) as raised:
            builder.build(view)
        assert message in raised.value.message, view.name


def test_files_without_row_counts_in_the_log_are_read(spark: Any, tmp_path: Path) -> None:
    put(tmp_path, "_a.parquet", 1, 2)
    (commit,) = (tmp_path / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    commit.write_text("\n".join(map(json.dumps, actions)))
    source = delta_connector(spark, tmp_path)
    if is_in_use("4.3"):
        assert source.snapshot(None, ["id"], source.pin()).count() == 2
    else:
        with pytest.raises(StorageError, match="Spark reads 0 rows"):
            source.snapshot(None, ["id"], source.pin())
    pin = pin_raw(RawTable("delta", str(tmp_path)), str(tmp_path))
    assert list(pin.rows.values()) == [None]


def test_raw_files_outside_partition_directories_are_an_error(tmp_path: Path) -> None:
    for name in ("k=1/a.parquet", "b.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [1]}), tmp_path / name)
    with pytest.raises(StorageError, match=r"b\.parquet is not in a partition directory"):
        pin_raw(RawTable("parquet", str(tmp_path)), str(tmp_path))
    (tmp_path / "b.parquet").rename(tmp_path / "k=1" / "b.parquet._COPYING_")
    pin = pin_raw(RawTable("parquet", str(tmp_path)), str(tmp_path))
    assert pin.files == (str(tmp_path / "k=1" / "a.parquet"),)
