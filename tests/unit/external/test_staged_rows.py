"""Rows of PostgreSQL that are staged for Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from persist_assets.external.connectors.postgres_rows import write_batches


@pytest.mark.parametrize(("file_bytes", "n_files"), [(1, 3), (17, 2), (1000, 1)])
def test_a_full_file_is_followed_by_another(tmp_path: Path, file_bytes: int, n_files: int) -> None:
    batches = [pa.record_batch({"a": [n, n]}) for n in range(3)]  # 16 bytes each
    place = tmp_path / "x" / "rows"
    assert write_batches(iter(batches), str(place), file_bytes) == 6
    files = sorted(place.iterdir())
    assert len(files) == n_files
    rows = [value for file in files for value in parquet.read_table(file)["a"].to_pylist()]
    assert rows == [0, 0, 1, 1, 2, 2]
    metadata = [parquet.read_metadata(file).metadata for file in files]
    # Otherwise Spark may shift dates before 1582.
    assert {m[b"org.apache.spark.version"] for m in metadata} == {b"3.0.0"}


def test_without_rows_there_is_no_directory(tmp_path: Path) -> None:
    assert write_batches(iter(()), str(tmp_path / "rows")) == 0
    assert not (tmp_path / "rows").exists()
