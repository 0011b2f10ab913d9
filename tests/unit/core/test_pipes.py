"""Pipes become nested queries for the parser, and ambiguous steps are reported."""

from __future__ import annotations

import pytest
from pairs import compiled

from persist_assets.core.dialect import faithful, tokenize
from persist_assets.core.pipes import without_pipes

pytestmark = pytest.mark.proves("V4")
RAW = "CREATE TABLE t (k INT, b STRING, v INT) USING parquet LOCATION 't';\n"


def nested(text: str) -> tuple[str, bool]:
    tokens, is_certain = without_pipes(faithful(tokenize(text), text))
    return " ".join(t.text for t in tokens).replace("ƒ", "").replace(" . ", "."), is_certain


@pytest.mark.parametrize(
    ("pipe", "query"),
    [
        ("FROM t |> WHERE a |> WHERE b OR c", "SELECT * FROM t WHERE ( a ) AND ( b OR c )"),
        ("FROM t |> EXTEND k + 1", "SELECT * , k + 1 FROM t"),
        ("FROM t |> DROP a, b", "SELECT * EXCEPT ( a , b ) FROM t"),
        ("FROM t |> AS x |> WHERE x.k", "SELECT * FROM ( SELECT * FROM t ) AS x WHERE ( x.k )"),
        ("FROM t |> JOIN u USING (k)", "SELECT * FROM t JOIN u USING ( k )"),
        (
            "FROM t |> WHERE v |> LEFT JOIN u ON t.k = u.k",
            "SELECT * FROM ( SELECT * FROM t WHERE ( v ) ) AS t LEFT JOIN u ON t.k = u.k",
        ),
        ("FROM (SELECT 1) x |> LIMIT 1", "SELECT * FROM ( SELECT 1 ) x LIMIT 1"),
        ("FROM t |> AGGREGATE GROUP BY k", "SELECT k FROM t GROUP BY k"),
        ("FROM t |> AGGREGATE n() AS n", "SELECT n ( ) AS n FROM t"),
        (
            "FROM t |> AGGREGATE n() GROUP BY k AS x, f(b, 1)",
            "SELECT k AS x , f ( b , 1 ) , n ( ) FROM t GROUP BY k , f ( b , 1 )",
        ),
        (
            "FROM t |> AGGREGATE n() GROUP BY ((2)), k AS x, 1",
            "SELECT 2 , k AS x , 1 , n ( ) FROM t GROUP BY 2 , k , 1",
        ),
        ("FROM t |> ORDER BY k |> LIMIT 2 OFFSET 1", "SELECT * FROM t ORDER BY k LIMIT 2 OFFSET 1"),
        (
            "FROM t |> ORDER BY k |> SELECT b AS k",
            "SELECT b AS k FROM ( SELECT * FROM t ORDER BY k ) AS t",
        ),
        ("TABLE t |> UNION ALL TABLE u", "( SELECT * FROM t ) UNION ALL SELECT * FROM u"),
        ("VALUES (1) AS x(a) |> WHERE a", "SELECT * FROM VALUES ( 1 ) AS x ( a ) WHERE ( a )"),
        ("SELECT * FROM t |> WHERE t.k", "SELECT * FROM t WHERE ( t.k )"),
        ("SELECT a FROM t WHERE b |> LIMIT 1", "SELECT * FROM ( SELECT a FROM t WHERE b ) LIMIT 1"),
        (
            "WITH c AS (FROM t |> DROP k), d (a) AS (TABLE c) FROM d |> SELECT a",
            "WITH c AS ( SELECT * EXCEPT ( k ) FROM t ) , d ( a ) AS ( SELECT * FROM c )"
            " SELECT a FROM d",
        ),
        ("SELECT f(TABLE t) FROM t", "SELECT f ( TABLE t ) FROM t"),
        ("(SELECT s FROM t) |> SELECT s.k", "SELECT s.k FROM ( ( SELECT s FROM t ) )"),
        ("SELECT 1 AS s |> EXTEND s.k", "SELECT * , s.k FROM ( SELECT 1 AS s )"),
    ],
)
def test_pipe_steps_become_nested_queries(pipe: str, query: str) -> None:
    assert nested(pipe) == (query, True)


@pytest.mark.parametrize(
    "pipe",
    [
        "FROM t |> SELECT k |> WHERE t.k = 1",
        "FROM t |> EXTEND 1 AS k |> WHERE t.k = 1",
        "FROM t |> AS x |> WHERE t.k = 1",
        "FROM t JOIN u |> ORDER BY b |> SELECT u.k",
        "SELECT k FROM t WHERE b |> SELECT t.k",
        "SELECT (SELECT k FROM u) AS k |> SELECT u.k",
        "VALUES (1) AS x(a) UNION ALL VALUES (2) AS y(a) |> SELECT x.a",
        "FROM t |> SELECT k |> WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
        "FROM t |> AGGREGATE n() GROUP BY 2147483648",
        "FROM t |> AGGREGATE n() GROUP BY a, ((1)) AS x",
        "FROM t LATERAL VIEW explode(arr) e AS c |> RIGHT JOIN u ON t.k = u.k",
        "FROM t AS date |> EXTEND 1 AS q |> SELECT date.k",
        "FROM t |> AS row |> EXTEND 1 AS q |> WHERE row.k = 70",
        "FROM t |> AGGREGATE n() GROUP BY k x",
        "FROM t |> AGGREGATE n() GROUP BY k AS b, b",
        "FROM t |> AGGREGATE n() GROUP BY (SELECT 1)",
        "FROM t |> RENAME k AS x",
        "FROM t |> SET t.k = 1",
        "FROM t |> |> SELECT k",
        "|> SELECT k",
        "FROM t SELECT k |> WHERE k = 1",
        "SELECT k FROM t ORDER BY k |> WHERE k = 1",
    ],
)
def test_ambiguous_or_invalid_pipe_steps_are_reported(pipe: str) -> None:
    assert not nested(pipe)[1]


def test_too_deeply_nested_parentheses_are_reported() -> None:
    text = f"FROM t |> WHERE {'(' * 50_000}a{')' * 50_000}"
    assert nested(text)[1] is False


def test_errors_have_their_locations_in_the_piped_query() -> None:
    query = "CREATE VIEW q AS FROM t\n|> WHERE k > 1\n|> SELECT b, typo\n|> DROP b;"
    project = compiled({"raw.sql": RAW, "q.sql": query})
    (error,) = project.errors
    assert error.message == "`typo` is not a column of the tables in this query"
    assert (error.location.line, error.location.column) == (3, 14)


@pytest.mark.parametrize(
    ("query", "converts"),
    [
        ("FROM t |> EXTEND +b AS x", True),
        ("FROM t |> AGGREGATE +sum(v) AS x GROUP BY k", False),
        ("FROM t |> AGGREGATE sum(+b) AS x GROUP BY k", True),
    ],
)
def test_a_unary_plus_before_an_operand_is_preserved(query: str, converts: bool) -> None:
    project = compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS {query};"})
    other = compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS {query.replace('+', '')};"})
    ids = [one.by_id["q@sources/q.sql"].build_id for one in (project, other)]
    assert (ids[0] != ids[1]) is converts


@pytest.mark.parametrize("number", ["0", "4", "9"])
def test_a_number_beyond_the_columns_before_aggregate_is_an_error(number: str) -> None:
    query = f"CREATE VIEW q AS FROM t\n|> AGGREGATE sum(v) AS s\n  GROUP BY 1, {number};"
    (error,) = compiled({"raw.sql": RAW, "q.sql": query}).errors
    assert error.code == "position"
    assert error.message == (
        f"GROUP BY {number} is out of range: the rows before AGGREGATE have 3 columns"
    )
    assert (error.location.line, error.location.column) == (3, 15)


def test_a_number_in_a_pipe_depends_on_the_order_of_columns() -> None:
    query = "CREATE VIEW q AS FROM t |> AGGREGATE count(*) AS n GROUP BY 1;"
    other = RAW.replace("k INT, b STRING", "b STRING, k INT")
    ids = [
        compiled({"raw.sql": raw, "q.sql": query}).by_id["q@sources/q.sql"].build_id
        for raw in (RAW, other)
    ]
    assert ids[0] != ids[1]
