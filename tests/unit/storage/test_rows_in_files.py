"""Row counts and columns with NULLs, read from the footers of Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.storage.delta_tables import read_sample
from persist_assets.storage.files import rows_in

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.proves("T8")
def test_columns_with_nulls_are_known(tmp_path: Path) -> None:
    """A column may have dots in its name, like a path to a field."""
    rows = pa.table(
        {
            "a": [1, 2, 3],
            "b": [1, None, 3],
            "s": [{"x": 1}, {"x": None}, {"x": 3}],
            "d.e": [1, None, 3],
            "d.f": [1, 2, 3],
        }
    )
    pq.write_table(rows.slice(2), tmp_path / "1.parquet")
    assert rows_in(str(tmp_path)) == (1, frozenset())
    pq.write_table(rows, tmp_path / "2.parquet", row_group_size=1)
    (tmp_path / "_SUCCESS").touch()
    assert rows_in(str(tmp_path)) == (4, {"b", "s", "s.x", "d", "d.e"})


@pytest.mark.proves("T8")
def test_columns_without_statistics_may_have_nulls(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "1.parquet", write_statistics=["b"])
    assert rows_in(str(tmp_path)) == (1, {"a"})


def test_an_empty_directory_has_no_rows_and_no_columns_with_nulls(tmp_path: Path) -> None:
    assert rows_in(str(tmp_path)) == (0, frozenset())


@pytest.mark.proves("K12")
def test_a_sample_has_dates_that_python_lacks_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    days = pa.array([9_999_999, 0], pa.date32())
    nested = pa.array([{"d": 9_999_999}, None], pa.struct({"d": pa.date32()}))
    pq.write_table(pa.table({"a": [1, 2], "day": days, "s": nested}), path)
    assert read_sample([str(path)], 2) == [
        {"a": 1, "day": "29349-01-25", "s": "…"},
        {"a": 2, "day": "1970-01-01", "s": "…"},
    ]
