"""SQL functions that return a value of a query are inlined as subqueries that read a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.compiled import loaded, sound, text_of

if TYPE_CHECKING:
    from pathlib import Path

TABLES = """
CREATE TABLE t (k INT, n INT, day DATE) USING parquet LOCATION 'data/t';
CREATE TABLE rates (k INT, rate DOUBLE) USING parquet LOCATION 'data/rates';
"""
FUNCTIONS = """
CREATE FUNCTION rate(k INT) RETURNS DOUBLE RETURN SELECT max(r.rate) FROM rates r WHERE r.k = rate.k;
CREATE FUNCTION scaled(x INT, by INT DEFAULT 2) RETURN x + by * (SELECT count(*) FROM rates WHERE k = x);
CREATE FUNCTION top() RETURNS DOUBLE RETURN (SELECT max(rate) FROM rates WHERE k < lowest);
CREATE FUNCTION twice(x DOUBLE) RETURNS DOUBLE RETURN x + x;
CREATE FUNCTION doubled(x INT) RETURNS DOUBLE RETURN twice(rate(x));
CREATE FUNCTION of(k INT) RETURNS TABLE (rate DOUBLE) RETURN SELECT r.rate FROM rates r WHERE r.k = of.k;
DECLARE VARIABLE lowest INT DEFAULT 3;
"""
RATE = (
    "(SELECT CAST((SELECT max(r.rate) FROM rates r WHERE r.k = rate.k) AS double)"
    " FROM (SELECT CAST({} AS int) AS `argument 1`) AS `rate`(`k`))"
)


def view(query: str) -> str:
    return f"{TABLES}--@ persist\nCREATE VIEW v AS\n{query};\n"


@pytest.mark.proves("W31")
@pytest.mark.parametrize(
    ("query", "meaning"),
    [
        ("SELECT k, rate(n) AS r FROM t", f"SELECT k, {RATE.format('n')} AS r FROM t"),
        (
            "SELECT scaled(by => n, x => k) AS s FROM t",
            "SELECT (SELECT coalesce(x + by * (SELECT count(*) FROM rates WHERE k = x)) FROM"
            " (SELECT CAST(k AS int) AS `argument 1`, CAST(n AS int) AS `argument 2`)"
            " AS `scaled`(`x`, `by`)) AS s FROM t",
        ),
        (
            "SELECT n FROM t WHERE top() > 1",
            "SELECT n FROM t WHERE (SELECT CAST((SELECT max(rate) FROM rates WHERE"
            " k < CAST(3 AS int)) AS double) FROM (SELECT 1) AS `top`) > 1",
        ),
        (
            "SELECT t.n, o.rate FROM t, LATERAL of(t.k) o",
            "SELECT t.n, o.rate FROM t, LATERAL (SELECT `of rows`.`rate` FROM"
            " (SELECT CAST(t.k AS int) AS `argument 1`) AS `of row`(`k`), LATERAL"
            " (SELECT CAST(`rate` AS double) AS `rate` FROM (SELECT r.rate FROM rates r WHERE"
            " r.k = `of row`.`k`) AS `of`(`rate`)) AS `of rows`) o",
        ),
    ],
)
def test_a_call_becomes_a_subquery_that_reads_its_arguments_as_a_row(
    tmp_path: Path, query: str, meaning: str
) -> None:
    project = sound(tmp_path, f=FUNCTIONS, q=view(query))
    assert text_of(project, "v") == meaning
    (v,) = project.persisted
    written = sound(tmp_path, f="", q=view(meaning))
    assert [s.build_id for s in written.persisted] == [v.build_id]
    assert not [n for n in v.notes if "as a whole" in n]
    assert {project.by_id[s].name for s in v.bindings} == {"t", "rates"}


@pytest.mark.proves("W31")
def test_an_edit_of_the_query_of_a_function_rebuilds_its_callers(tmp_path: Path) -> None:
    query = view("SELECT k, doubled(n) AS d FROM t")
    (v,) = sound(tmp_path, f=FUNCTIONS, q=query).persisted
    for old, new, is_same in [
        ("max(r.rate)", "min(r.rate)", False),
        ("r WHERE r.k = rate.k", "AS r /* of a row */ WHERE rate.k = r.k", True),
    ]:
        (other,) = sound(tmp_path, f=FUNCTIONS.replace(old, new, 1), q=query).persisted
        assert (other.build_id == v.build_id) is is_same


CALLS = [
    ("SELECT t.n FROM t JOIN rates r ON rate(t.k) = 2", "35: error: `rate` has a query that depe"),
    ("SELECT n FROM t ORDER BY rate(n) LIMIT 3", "26: error: `rate` has a query that depends on "),
    ("SELECT transform(array(n), e -> rate(e)) AS a FROM t", "33: error: `rate` has a query, and"),
    ("SELECT * FROM VALUES (rate(1)) AS v(r)", "23: error: `rate` has a query, and Spark has no"),
    ("SELECT explode(array(rate(n))) AS r FROM t", "22: error: `rate` has a query, and Spark has"),
    ("SELECT n, rate(k) AS r FROM t GROUP BY n, k", "11: error: `rate` has a query that depends "),
    ("SELECT n, rate(max(k)) AS r FROM t GROUP BY n", "11: error: `rate` has a query that depend"),
    ("SELECT sum(rate(count(k))) AS r FROM t", "17: error: `rate` has a query, and its argument "),
    ("SELECT rate(sum(k) OVER ()) AS r FROM t", "13: error: `rate` has a query, and its argument"),
    ("SELECT rate(int(rate(n))) AS r FROM t", "13: error: `rate` has a query, and so has this a"),
    ("SELECT rate((SELECT max(k) FROM t)) AS r", "13: error: `rate` has a query, and so has this"),
    ("SELECT rate(int(rand() * n)) AS r FROM t", "13: error: the query of `rate` uses `k`, and `"),
    ("SELECT n, o.rate FROM t, LATERAL of(int(9 * rand())) o", "37: error: the query of `of` use"),
    ("SELECT n FROM t LATERAL VIEW of(n) x AS r", "30: error: `of` returns a table [function]"),
    ("SELECT rate(1), n FROM t ORDER BY n", "8: error: the result of `rate` needs a name here"),
    ("SELECT s.n, (SELECT max(rate(s.n)) FROM rates r WHERE r.k = s.k) AS m FROM t s", "30: error: `s."),
    ("SELECT s.n, l.r FROM t s, LATERAL (SELECT rate(s.n) AS r) l", "48: error: `s.n` is a column of "),
    ("WITH rates AS (SELECT 1 AS k) SELECT rate(k) AS r FROM rates", "38: error: `rate` reads `r"),
]  # fmt: skip


@pytest.mark.proves("W31")
@pytest.mark.parametrize(("query", "message"), CALLS)
def test_calls_that_spark_cannot_evaluate_are_rejected(
    tmp_path: Path, query: str, message: str
) -> None:
    (problem,) = loaded(tmp_path, f=FUNCTIONS, q=view(query)).project.errors
    assert str(problem).startswith(f"sources/q.sql:6:{message}"), problem


@pytest.mark.proves("W31")
@pytest.mark.parametrize(
    ("query", "is_valid"),
    [
        ("SELECT rate(n) AS r, count(*) AS c FROM t GROUP BY rate(n)", True),
        ("SELECT rate(n) AS r, count(*) AS c FROM t GROUP BY 1", True),
        ("SELECT rate(n) AS r, count(*) AS c FROM t GROUP BY ALL", True),
        ("SELECT rate(n) AS r, count(*) AS c FROM t GROUP BY n, R", True),
        ("SELECT Rate(n) AS r, count(*) AS c FROM t GROUP BY ROLLUP (rate(t.N))", True),
        ("SELECT n, count(*) FILTER (WHERE rate(n) > 1) AS c FROM t GROUP BY n", True),
        ("SELECT n, rate(n) AS r, count(*) AS c FROM t GROUP BY 1", False),
        ("SELECT n, first(rate(k)) AS r FROM t GROUP BY n", True),
        ("SELECT n FROM t GROUP BY n HAVING rate(n) > 1", True),
        ("SELECT n, rate(1) AS r FROM t GROUP BY n", True),
        ("SELECT t.n FROM t JOIN rates r ON rate(1) = 2", True),
        ("SELECT sum(n) OVER (PARTITION BY rate(k)) AS s FROM t", True),
        ("SELECT n, rate(n) AS r FROM t GROUP BY n", False),
    ],
)
def test_values_of_a_row_may_be_keys_and_arguments_of_aggregates(
    tmp_path: Path, query: str, is_valid: bool
) -> None:
    assert (not loaded(tmp_path, f=FUNCTIONS, q=view(query)).project.errors) is is_valid


@pytest.mark.proves("W31")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("SELECT k, n FROM t", "`f` returns one value, but its query has 2 columns"),
        ("(SELECT max(n) FROM t) + rand()", "has a query, and might have another value each time"),
        ("(SELECT max(n) FROM t) + y", "`y` is not a parameter of `f`"),
        ("(SELECT max(n) FROM t WHERE k > :watermark)", "may use its parameters only"),
        ("sum(x) + (SELECT max(n) FROM t)", "`f` aggregates: `sum`"),
        ("(SELECT f(max(n)) FROM t)", "`f` calls itself: f → f"),
        ("(SELECT n FROM t WHERE absent = 1)", "`absent` is not a column"),
        ("SELECT n FROM absent", "unknown source `absent`"),
        ("SELECT max(rate(x)) FROM t", "`x` is a column of a query two or more levels further out"),
    ],
)
def test_invalid_queries_of_functions_are_errors_at_their_location(
    tmp_path: Path, body: str, message: str
) -> None:
    text = FUNCTIONS + f"\nCREATE FUNCTION f(x INT) RETURN {body};"
    problems = loaded(tmp_path, f=text, q=view("SELECT f(n) AS f FROM t")).project.errors
    assert [p.location.path for p in problems if message in p.message] == ["sources/f.sql"]


@pytest.mark.proves("W31")
def test_struct_names_fields_after_parameters(tmp_path: Path) -> None:
    text = "CREATE FUNCTION f(Lot INT, b INT) RETURN struct(Lot, f.b, b + 1 AS c);"
    project = sound(tmp_path, f=text, q=view("SELECT f(n, k) AS s FROM t"))
    assert text_of(project, "v") == (
        "SELECT coalesce(struct(CAST(n AS int) AS `Lot`, CAST(k AS int) AS `b`, CAST(k AS int) + 1"
        " AS c)) AS s FROM t"
    )
