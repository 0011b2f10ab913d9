"""The pairs of tests/golden on Spark: only equal pairs return equal rows."""

from __future__ import annotations

from typing import Any

import pytest
from pairs import golden, project
from soundness import difference, make_views, run

NOT_SHOWN = {
    "now() or current_timestamp()": "the clock goes on",
    "a correlated aggregate over three of one table": "Spark refuses outer columns there",
    "IN or EXISTS as a value": "Spark computes IN as FALSE where it is NULL in the standard",
    "an element beyond the end, or get": "one is an error",
    "terms in another order, of which one may overflow": "one may be an error",
    "condition on a key that is a floating-point number, in HAVING or WHERE": "Spark filters before it groups, unless an aggregate depends on the order",
    "a condition on a key with a collation, in HAVING or WHERE": "Spark filters before it groups, although equal keys differ",
    "order below a join": "Spark does not promise to keep it, and today it does not",
}
"""Pairs that Spark cannot confirm, with the reasons."""


@pytest.mark.proves("V50", "V51", "V58")
def test_equal_pairs_return_equal_rows_and_different_pairs_do_not(spark: Any) -> None:
    make_views(spark)
    wrong: list[str] = []
    for name in ("equal.txt", "different.txt"):
        for title, *queries in golden(name):
            if title in NOT_SHOWN:
                continue
            one, other = (run(spark, project(query)) for query in queries)
            if one.error or other.error:
                wrong.append(f"{title}: {one.error or other.error}")
                continue
            said = difference(one, other)
            if (said is None) != (name == "equal.txt"):
                wrong.append(f"{title}: {said or f'no difference: {one}'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.proves("V58")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "SELECT i, NOT i AS n FROM (SELECT k IN (SELECT a FROM u) AS i FROM t)",
            "SELECT k IN (SELECT a FROM u) AS i, k NOT IN (SELECT a FROM u) AS n FROM t",
        ),
        (
            "SELECT k IN (SELECT a FROM u) AS i, NOT i AS n FROM t",
            "SELECT k IN (SELECT a FROM u) AS i, k NOT IN (SELECT a FROM u) AS n FROM t",
        ),
        (
            "SELECT n AS x, n AS y FROM (SELECT NOT i AS n FROM (SELECT k IN (SELECT a FROM u) AS i FROM t))",
            "SELECT NOT i AS x, NOT i AS y FROM (SELECT k IN (SELECT a FROM u) AS i FROM t)",
        ),
    ],
)
def test_values_of_columns_computed_by_in_depend_on_the_plan(
    spark: Any, one: str, other: str
) -> None:
    make_views(spark)
    answers = [run(spark, project(query)) for query in (one, other)]
    assert not any(answer.error for answer in answers)
    assert difference(*answers)
