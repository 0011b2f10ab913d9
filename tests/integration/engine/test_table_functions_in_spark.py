"""Inlined table functions return the same rows as Spark's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.compiler.frontends.sql import parse_definitions, parse_query
from persist_assets.compiler.frontends.sql_inlining import define

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = "(1, 10.5D, DATE '2024-01-01', 'a'), (2, 20.25D, DATE '2024-02-01', 'b'), (NULL, -1D, NULL, NULL), (2, 0D, DATE '2024-02-01', '7')"  # fmt: skip
DECLARE = "DECLARE OR REPLACE VARIABLE least_known INT DEFAULT '2'"

FUNCTIONS = {
    # Columns get the declared types, by position, and the declared names.
    "since": (
        "(d DATE, least INT DEFAULT 1) RETURNS TABLE (day STRING, total DECIMAL(10, 1)) "
        "RETURN SELECT day, sum(price) FROM sold WHERE day >= d AND n > since.least GROUP BY day"
    ),
    "plus": "(x INT) RETURNS TABLE (n BIGINT, m INT) RETURN SELECT n, n + x FROM sold WHERE n >= x",
    "once": "(x DOUBLE, y STRING DEFAULT 'none') RETURNS TABLE (x INT, y STRING) RETURN SELECT x, y",
    "twice": (
        "(least INT) RETURNS TABLE (m BIGINT) "
        "RETURN SELECT p.m FROM plus(twice.least) AS p UNION ALL SELECT n FROM plus(1)"
    ),
    "top": (
        "(s STRING) RETURNS TABLE (n INT, r INT) RETURN WITH ranked AS "
        "(SELECT n, rank() OVER (ORDER BY price DESC) AS r FROM sold WHERE label <> s) "
        "SELECT n, r FROM ranked ORDER BY r LIMIT 2"
    ),
    "known": "() RETURNS TABLE (n INT) RETURN SELECT n FROM sold WHERE n >= least_known",
    "inferred": "(x INT) RETURNS TABLE RETURN SELECT n, price * inferred.x AS p FROM sold",
    "up_to": "(x INT) RETURNS TABLE (k INT) RETURN SELECT id FROM range(10) WHERE id < up_to.x",
}

QUERIES = [
    "SELECT * FROM since(DATE '2024-01-01')",
    "SELECT since.day, total FROM since('2024-01-15', 0)",
    "SELECT b, a FROM since(least => 0, d => DATE '2023-12-31') AS x(a, b)",
    "SELECT x.day FROM since(least => least_known - 1, d => NULL) x",
    "SELECT n, m FROM plus(1.9)",
    "SELECT n, m FROM plus(least_known)",
    "SELECT p.m, q.m FROM plus(1) p JOIN plus(2) AS q ON p.n = q.n",
    "SELECT p.n, s.label FROM plus(1) p LEFT JOIN sold s USING (n)",
    "SELECT * FROM once(2.7), once(y => 'z', x => '3')",
    "SELECT * FROM once(CAST(NULL AS INT))",
    "SELECT m, count(*) AS c FROM twice(2) GROUP BY m",
    "SELECT * FROM top('a')",
    "WITH x AS (SELECT n FROM known()) SELECT label FROM sold WHERE n IN (SELECT n FROM x)",
    "SELECT sum(k) AS s FROM up_to(4)",
    "SELECT * FROM inferred(2)",
    "SELECT i.p FROM inferred(3) AS i",
    "SELECT k FROM up_to(2) UNION ALL SELECT n FROM known()",
    "SELECT * FROM up_to(3) PIVOT (max(k) FOR k IN (1 AS one, 2 AS two))",
]


@pytest.fixture
def functions(spark: Any) -> Iterator[Any]:
    """Yield the session with the functions, the variable and the table."""
    spark.sql(DECLARE)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW sold AS "
        f"SELECT * FROM VALUES {ROWS} AS t(n, price, day, label)"
    )
    for name, text in FUNCTIONS.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {name}{text}")
    yield spark
    for name in reversed(FUNCTIONS):
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")
    spark.sql("DROP TEMPORARY VARIABLE least_known")
    spark.sql("DROP VIEW sold")


@pytest.mark.slow
@pytest.mark.proves("W29")
def test_inlined_table_functions_return_the_rows_of_sparks_own(functions: Any) -> None:
    texts = [f"CREATE FUNCTION {name}{text};" for name, text in FUNCTIONS.items()]
    known = define(parse_definitions("\n".join([*texts, DECLARE]), "sources/f.sql"))
    assert not known.problems, known.problems
    for text in QUERIES:
        inlined = parse_query(text, None, known).text
        assert not any(f"{name}(" in inlined.replace("`", "") and f"{name}(" in inlined for name in FUNCTIONS), inlined  # fmt: skip
        own, ours = functions.sql(text), functions.sql(inlined)
        assert ours.schema == own.schema, text
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, own.collect())), text
