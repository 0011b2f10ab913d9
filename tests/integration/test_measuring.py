"""The benchmarks of maintenance detect wrong rows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = "SELECT id, CAST(id AS STRING) AS name, id / 3 AS share FROM range(100)"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import measuring

    yield measuring
    for name in ("measuring", "increments"):  # modules of the benchmarks; tests have similar names
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("ours", "difference"),
    [
        (ROWS, None),
        (ROWS.replace("id / 3", "id / 3 + 1e-12"), None),
        (ROWS.replace("id / 3", "id / 3 + 1e-3"), "100 wrong rows, 100 missing"),
        (f"{ROWS} WHERE id <> 7", "0 wrong rows, 1 missing"),
        (f"{ROWS} UNION ALL {ROWS} WHERE id < 2", "2 wrong rows, 0 missing"),
        (ROWS.replace("CAST(id AS STRING)", "IF(id = 7, NULL, CAST(id AS STRING))"),
         "1 wrong rows, 1 missing"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("columns", ["*", "id, name"])
def test_wrong_and_missing_rows_are_detected(
    spark: Any, measuring: Any, ours: str, difference: str | None, columns: str
) -> None:
    if columns != "*" and "id / 3 +" in ours:
        difference = None
    ours, fresh = (f"SELECT {columns} FROM ({query})" for query in (ours, ROWS))
    assert measuring.find_difference(spark.sql(ours), spark.sql(fresh)) == difference


@pytest.mark.parametrize(
    ("ours", "is_equal"),
    [
        ("1 AS a, 'x' AS b", False),
        ("1L AS a, 'x' AS other", False),
        ("'x' AS b, 1L AS a", False),
        ("1L AS a", False),
        ("1L AS a, 'x' AS b, 2 AS more", False),
        ("1L AS A, 'x' AS b", True),
    ],
)
def test_different_columns_are_a_difference(
    spark: Any, measuring: Any, ours: str, is_equal: bool
) -> None:
    fresh = spark.sql("SELECT 1L AS a, 'x' AS b")
    difference = measuring.find_difference(spark.sql(f"SELECT {ours}"), fresh)
    assert (difference is None) == is_equal
    assert is_equal or difference.startswith("columns ")


@pytest.mark.parametrize(
    ("rows", "unmatched"),
    [
        ([("a", 0.1 + 0.2, 1), ("a", 0.3, -1)], (0, 0)),
        ([("a", 0.3001, 1), ("a", 0.3, -1)], (1, 1)),
        ([("a", 0.3, 1), ("b", 0.3, -1)], (1, 1)),
        ([("a", 0.3, 2), ("a", 0.1 + 0.2, -1)], (1, 0)),
        ([("a", float("nan"), 1), ("a", float("nan"), -1)], (0, 0)),
        ([("a", None, 1), ("a", 0.0, -1)], (1, 1)),
        ([("a", [0.1 + 0.2, None], 1), ("a", [0.3, None], -1)], (0, 0)),
        ([("a", [0.3], 1), ("a", [0.3, 0.3], -1)], (1, 1)),
    ],
)
def test_rows_match_if_their_doubles_are_close(
    measuring: Any, rows: list[Any], unmatched: tuple[int, int]
) -> None:
    assert measuring.count_unmatched(rows, [1]) == unmatched
