"""Files of one table that are copied into another: exactly, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.core.errors import StorageError
from persist_assets.storage.changes import change_of_copy
from persist_assets.storage.delta_commit import Staged, commit, find_staged, with_copies
from persist_assets.storage.delta_tables import find_table, live_files, origin

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}],
    }
)
FIRST, SECOND, THIRD = ("1" * 32, "2" * 32, "3" * 32)


def written(root: Path, uid: str, *parts: list[int | None]) -> Staged:
    (root / uid).mkdir(parents=True, exist_ok=True)
    for n, values in enumerate(parts):
        pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), root / uid / f"{n}.parquet")
    return find_staged(str(root), uid, SCHEMA)


@pytest.mark.proves("T13")
def test_copied_files_keep_their_statistics_and_name_their_origin(tmp_path: Path) -> None:
    prod, dev, other = (tmp_path / name for name in ("prod", "dev", "other"))
    first = written(prod, FIRST, [1, 2, None], [7], [8])
    commit(first, build_id="b", pinned=None)
    live = live_files(find_table(str(prod)))
    stay = [f for f in live.values() if f.path != f"{FIRST}/2.parquet"]

    second = with_copies(written(dev, SECOND, [9]), str(prod), stay)
    commit(second, build_id="b", pinned=None)
    copies = live_files(find_table(str(dev)))
    assert {origin(path) for path in copies} == {f.path for f in stay} | {f"{SECOND}/0.parquet"}
    for path, file in copies.items():
        if (was := live.get(origin(path))) is not None:
            assert (file.bytes, file.rows) == (was.bytes, was.rows)
            assert (file.least, file.greatest, file.nulls) == (was.least, was.greatest, was.nulls)

    change = change_of_copy(str(prod), 0, str(dev), 0)
    assert change is not None
    assert [p.path for p in change.added] == [f"{dev}/{SECOND}/0.parquet"]
    assert [p.path for p in change.lost] == [f"{prod}/{FIRST}/2.parquet"]

    third = with_copies(written(other, THIRD), str(dev), copies.values())
    commit(third, build_id="b", pinned=None)
    change = change_of_copy(str(dev), 0, str(other), 0)
    assert change is not None
    assert (change.added, change.lost) == ((), ())


@pytest.mark.parametrize("harm", ["gone", "cut", "other rows"])
def test_a_file_that_changed_after_its_commit_is_not_copied(tmp_path: Path, harm: str) -> None:
    first = written(tmp_path / "prod", FIRST, [1, 2])
    commit(first, build_id="b", pinned=None)
    live = live_files(find_table(first.root))
    file = tmp_path / "prod" / FIRST / "0.parquet"
    if harm == "gone":
        file.unlink()
    elif harm == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    else:
        pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int64())}), file)
    with pytest.raises(StorageError):
        with_copies(written(tmp_path / "dev", SECOND, [9]), first.root, live.values())
