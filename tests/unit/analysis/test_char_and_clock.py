"""CHAR(n) beside texts, and texts that Spark casts to times, as Spark 4.3 treats them.

Spark pads a text with blanks where it is compared with a column of CHAR(n), if the text is written
there. It does not pad in BETWEEN and NULLIF, nor beside subqueries and computed values.
"""

from __future__ import annotations

import pytest
from conftest import compiled
from pushing import needs_of

import persist_assets.analysis.predicates as p
from persist_assets.core.model.project import Project

RAW = """
CREATE TABLE t (a INT, b STRING, k INT, ch CHAR(5), dt DATE) USING parquet LOCATION 't';
CREATE TABLE u (a INT, b STRING, tags ARRAY<STRING>, m MAP<STRING, INT>) USING parquet LOCATION 'u';
"""


def project(query: str, raw: str = RAW) -> Project:
    made = compiled({"raw.sql": raw, "q.sql": f"CREATE VIEW q AS {query}"})
    assert not made.errors, [str(e) for e in made.errors]
    return made


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("WHERE ch BETWEEN 'a' AND 'a'", "WHERE ch >= 'a' AND ch <= 'a'"),
        ("WHERE ch NOT BETWEEN 'a' AND 'b'", "WHERE ch < 'a' OR ch > 'b'"),
        ("WHERE (SELECT ch) = 'a'", "WHERE ch = 'a'"),
        ("WHERE ch IN ((SELECT 'a'), 'b')", "WHERE ch IN ('a', 'b')"),
    ],
)
def test_conditions_on_char_have_different_build_ids(one: str, other: str) -> None:
    ids = {project(f"SELECT a FROM t {q}").by_id["q@sources/q.sql"].build_id for q in (one, other)}
    assert len(ids) == 2


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "SELECT a FROM (SELECT a, ch, 'a' AS f FROM t) WHERE ch = f",
            "SELECT a FROM t WHERE ch = 'a'",
        ),
        (
            "SELECT a FROM (SELECT a, ch, 'a' AS f FROM t ORDER BY a LIMIT 3) WHERE ch = f",
            "SELECT a FROM (SELECT a, ch FROM t ORDER BY a LIMIT 3) WHERE ch = 'a'",
        ),
        (
            "SELECT CASE ch WHEN f THEN 1 END AS x FROM (SELECT ch, 'a' AS f FROM t)",
            "SELECT CASE ch WHEN 'a' THEN 1 END AS x FROM t",
        ),
        (
            "SELECT t.a FROM t JOIN (SELECT 'a' AS ch) s USING (ch)",
            "SELECT a FROM t WHERE ch = 'a'",
        ),
        (
            "SELECT x FROM (SELECT ch AS x FROM t UNION ALL SELECT b FROM u) WHERE x = 'a'",
            "SELECT x FROM (SELECT b AS x FROM u UNION ALL SELECT ch FROM t) WHERE x = 'a'",
        ),
    ],
)
def test_texts_with_names_and_branches_of_char_count(one: str, other: str) -> None:
    assert len({project(q).by_id["q@sources/q.sql"].build_id for q in (one, other)}) == 2


@pytest.mark.proves("V1")
def test_branches_of_varchar_have_any_order() -> None:
    raw = RAW.replace("b STRING, k INT", "b VARCHAR(9), k INT").replace(
        "b STRING, tags", "b VARCHAR(9), tags"
    )
    queries = (
        "SELECT b FROM t UNION ALL SELECT b FROM u",
        "SELECT b FROM u UNION ALL SELECT b FROM t",
    )
    assert len({project(q, raw).by_id["q@sources/q.sql"].build_id for q in queries}) == 1


@pytest.mark.proves("V1")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(ch) = 'a'", "ch = 'a'"),
        ("ch <=> 'a'", "ch IS NOT DISTINCT FROM 'a'"),
        ("b BETWEEN 'a' AND 'c'", "b >= 'a' AND b <= 'c'"),
    ],
)
def test_equal_conditions_on_texts_have_one_build_id(one: str, other: str) -> None:
    queries = (f"SELECT a FROM t WHERE {condition}" for condition in (one, other))
    assert len({project(q).by_id["q@sources/q.sql"].build_id for q in queries}) == 1


@pytest.mark.proves("V3")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM t WHERE nullif(ch, 'a') IS NOT NULL",
        "SELECT a FROM t WHERE coalesce(nullif(ch, 'a'), 'x') <> 'x'",
        "SELECT a FROM (SELECT a, ch, 'a' AS f FROM t) WHERE ch <> f",
        "SELECT a FROM t WHERE (SELECT ch) <> 'a'",
        "SELECT x FROM (SELECT max(ch) AS x FROM t GROUP BY a) WHERE x <> 'a' AND x = 'a    '",
    ],
)
def test_no_row_is_excluded_by_a_comparison_that_spark_does_not_pad(query: str) -> None:
    """The value 'a    ' of the column fulfils each of these conditions."""
    needs = needs_of(f"{RAW}CREATE MATERIALIZED VIEW q AS {query};")
    predicate = needs["q", "t"].predicate
    assert p.as_text(predicate) in ("TRUE", "ch IS NOT NULL")


@pytest.mark.proves("P8")
@pytest.mark.parametrize(
    "value",
    [
        "timediff(DAY, 'today', dt)",
        "map(dt, 1)['today']",
        "element_at(map(dt, 1), 'today')",
        "array_contains(array(dt), 'today')",
    ],
)
def test_clock_words_beside_times_read_the_clock(value: str) -> None:
    assert project(f"SELECT {value} AS x FROM t").by_id["q@sources/q.sql"].reads_clock


@pytest.mark.parametrize("value", ["m['today']", "array_contains(tags, 'today')"])
def test_words_beside_texts_do_not_read_the_clock(value: str) -> None:
    assert not project(f"SELECT {value} AS x FROM u").by_id["q@sources/q.sql"].reads_clock
