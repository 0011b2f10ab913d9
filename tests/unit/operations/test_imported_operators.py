"""Operators, casts and joins of other dialects keep their values in Spark, or have a note."""

from __future__ import annotations

import pytest
from support.translated import checks, expression, flat, translated

from persist_assets.operations.importing.translation import (
    UntranslatableError,
    translate_condition,
)

pytestmark = pytest.mark.proves("W8")


# -------------------------------------------------------------------------------------------- joins


@pytest.mark.parametrize(
    ("dialect", "query", "view"),
    [
        (
            "duckdb",
            "SELECT k, x FROM t LEFT JOIN UNNEST(l) AS u(x) ON TRUE",
            "LATERAL VIEW OUTER EXPLODE(l) u AS x",
        ),
        (
            "postgres",
            "SELECT k, x FROM t LEFT JOIN LATERAL UNNEST(l) AS u(x) ON (true)",
            "LATERAL VIEW OUTER EXPLODE(l) u AS x",
        ),
        (
            "trino",
            "SELECT k, x, y FROM t LEFT JOIN UNNEST(l, m) AS u(x, y) ON TRUE",
            "LATERAL VIEW OUTER INLINE(ARRAYS_ZIP(l, m)) u AS x, y",
        ),
        (
            "bigquery",
            "SELECT k, x, o FROM t LEFT JOIN UNNEST(l) AS x WITH OFFSET AS o",
            "LATERAL VIEW OUTER POSEXPLODE(l) AS o, x",
        ),
        (
            "duckdb",
            "SELECT k, x FROM t CROSS JOIN UNNEST(l) AS u(x)",
            "LATERAL VIEW EXPLODE(l) u AS x",
        ),
    ],
)
def test_outer_joins_of_arrays_keep_rows_without_elements(
    dialect: str, query: str, view: str
) -> None:
    sql = flat(translated(query, dialect).sql)
    assert sql == f"{query[: query.index(' FROM')]} FROM t {view}"


@pytest.mark.parametrize(
    "join", ["JOIN UNNEST(l) AS u(x) ON x > 1", "RIGHT JOIN UNNEST(l) AS u(x) ON TRUE"]
)
def test_joins_of_arrays_that_spark_does_not_have_are_refused(join: str) -> None:
    with pytest.raises(UntranslatableError, match="JOIN of UNNEST"):
        translated(f"SELECT k, x FROM t {join}", "postgres")


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("dialect", "text", "spark"),
    [
        ("duckdb", "4 | 2 & 1", "(4 | 2) & 1"),
        ("postgres", "a # b & c", "(a ^ b) & c"),
        ("postgres", "a || b + 1", "a || (b + 1)"),
        ("trino", "a || b * 2 || c", "a || (b * 2) || c"),
        ("redshift", "a + 1 | b", "(a + 1) | b"),
        ("duckdb", "(a | b) & c", "(a | b) & c"),
        ("duckdb", "k / 3.0", "CAST(k AS DOUBLE) / 3.0"),
        ("duckdb", "a * 100.0 / 3", "CAST(a * 100.0 AS DOUBLE) / 3"),
        ("duckdb", "sum(d) / count(*)", "CAST(SUM(d) AS DOUBLE) / COUNT(*)"),
        ("duckdb", "a / b / c", "CAST(a AS DOUBLE) / b / c"),
        ("duckdb", "count(*) / 2", "count(*) / 2"),
        ("duckdb", "1e0 * a / b", "1e0 * a / b"),
        ("postgres", "CAST('abc' AS varchar(2))", "LEFT(CAST('abc' AS STRING), 2)"),
        ("snowflake", "CAST(lower(s) AS varchar(2))", "LEFT(CAST(LOWER(s) AS STRING), 2)"),
        ("duckdb", "CAST('abc' AS varchar(2))", "CAST('abc' AS STRING)"),
        (
            "postgres",
            "concat(n, '-', lower(s))",
            "CONCAT(COALESCE(CAST(n AS STRING), ''), '-', COALESCE(LOWER(s), ''))",
        ),
        ("redshift", "concat(n, s)", "concat(n, s)"),
    ],
)
def test_operators_and_casts_keep_their_values(dialect: str, text: str, spark: str) -> None:
    assert expression(text, dialect) == spark
    assert checks(f"SELECT {text} AS y FROM t GROUP BY k", dialect) == []


@pytest.mark.parametrize(
    ("dialect", "text", "words"),
    [
        ("mysql", "a | b & c", ["bit operators"]),
        ("tsql", "a & b + c", ["bit operators"]),
        ("bigquery", "a | b & c", ["bit operators"]),
        ("duckdb", "~a + b", ["`~`"]),
        ("postgres", "k / 3.0", ["decimals"]),
        ("postgres", "a / b", ["two integers"]),
        ("postgres", "a::float8 / b", []),
        ("mysql", "a / b", ["decimals"]),
        ("snowflake", "a / 3.0", ["six digits"]),
        ("bigquery", "a + 0.1", ["fractions"]),
        ("bigquery", "a / 0.1", ["decimals", "fractions"]),
        ("bigquery", "CAST(0.1 AS numeric)", []),
        ("redshift", "'abc'::varchar(2)", ["bytes"]),
        ("tsql", "CAST('abc' AS varchar(2))", ["VARCHAR"]),
        ("postgres", "'abc'::char(2)", ["CHAR"]),
        ("mysql", "CAST('abc' AS char(2))", ["CHAR(n)"]),
        ("duckdb", "concat(a, b)", ["lists"]),
        ("postgres", "CAST(1.0::float8 AS text)", ["doubles"]),
        ("duckdb", "a::text", ["doubles"]),
        ("duckdb", "lower(s)::text || count(*)::text", []),
    ],
)
def test_operators_and_casts_that_may_differ_are_noted(
    dialect: str, text: str, words: list[str]
) -> None:
    notes = checks(f"SELECT {text} AS y FROM t", dialect)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)


@pytest.mark.parametrize("dialect", ["mysql", "tsql"])
@pytest.mark.parametrize(
    ("query", "differs"),
    [
        ("SELECT k FROM t WHERE s = 'x' AND s IN ('y')", True),
        ("SELECT s FROM t GROUP BY s", True),
        ("SELECT t.s FROM t JOIN u ON t.s = u.s", True),
        ("SELECT k FROM t WHERE k = 3 AND d >= '2024-01-01' AND k IN (1, 2)", False),
    ],
)
def test_texts_that_ignore_case_are_noted_once(dialect: str, query: str, differs: bool) -> None:
    notes = [note for note in checks(query, dialect) if "ignore case" in note]
    assert len(notes) == int(differs)


# --------------------------------------------------------------------------------------- conditions


def test_conditions_lose_comments_and_keep_blanks_in_texts() -> None:
    written = "a > 0 -- positive\nand  b <> 'x  y' /* no */"
    assert translate_condition(written, "duckdb").sql == "a > 0 and b <> 'x  y'"


def test_conditions_have_the_notes_of_queries() -> None:
    (note,) = translate_condition("a / b > 1", "postgres").notes
    assert "two integers" in note


@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "bigquery", "snowflake", "tsql"])
def test_averages_are_noted(dialect: str) -> None:
    # Of DECIMAL(10, 2), Spark's have six digits behind the point, DuckDB's are doubles.
    note = f"check `avg`: for integers and decimals, {dialect} may return more or fewer digits"
    assert note in checks("SELECT avg(x) AS y FROM t", dialect)
