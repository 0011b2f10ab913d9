"""Inlined functions with queries return the same rows as Spark's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.compiler.frontends.sql import parse_definitions, parse_query
from persist_assets.compiler.frontends.sql_inlining import define

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = "(1, 10.5D, DATE '2024-01-01', 'a', 8), (2, 20.25D, DATE '2024-02-01', 'b', 9), (NULL, -1D, NULL, NULL, 7), (2, 0D, DATE '2024-02-01', '7', 7)"  # fmt: skip
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
    "pair": "(x INT, y STRING) RETURNS TABLE RETURN SELECT struct(x, pair.y) AS p, x + 1 AS q",
    # Values with a query: parameters are columns of a row, which columns of tables hide.
    "best": "(n INT) RETURNS DOUBLE RETURN SELECT max(price) FROM sold AS s WHERE s.n = best.n",
    "hidden": "(n INT) RETURNS BIGINT RETURN (SELECT count(*) FROM sold WHERE sold.n = n)",
    "first_of": (
        "(a INT, b STRING DEFAULT 'none') RETURNS STRING "
        "RETURN coalesce(first_of.b, '') || (SELECT min(label) FROM sold WHERE sold.n <=> a) || a"
    ),
    "has": "(x INT) RETURNS BOOLEAN RETURN x IN (SELECT n FROM sold) AND EXISTS (SELECT * FROM sold WHERE n = x)",
    "lacks": "(x INT) RETURNS BOOLEAN RETURN x NOT IN (SELECT sold.n FROM sold WHERE n > 1)",
    "known_best": "() RETURN (SELECT max(price) FROM sold WHERE n >= least_known)",
    "same": "(x DOUBLE) RETURN SELECT x",
    "st": "(x INT) RETURNS TABLE (n INT, w INT) RETURN SELECT n, x FROM sold",
    "sum_up": "(x INT, y INT) RETURNS INT RETURN SELECT max(id) FROM range(9) WHERE id <= x + y",
    "outside": "(n INT, m INT) RETURNS DOUBLE RETURN best(m) - n + (SELECT min(price) FROM sold)",
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
    "SELECT p.x, p.y, q FROM sold, LATERAL pair(n, label)",
    # For each row.
    "SELECT s.n, s.price, p.* FROM sold s, LATERAL plus(s.n) p",
    "SELECT n, k FROM sold LEFT JOIN LATERAL up_to(n) ON k > 0",
    "SELECT n, k, m FROM sold, LATERAL up_to(n), LATERAL twice(up_to.k)",
    "SELECT label, x.a FROM sold, LATERAL once(price, label) AS x(a, b) WHERE x.b = 'a'",
    "SELECT n, (SELECT max(k) FROM up_to(n)) AS k FROM sold",
    "SELECT n, (SELECT sum(m) FROM plus(2) WHERE m > price) AS m FROM sold",
    "SELECT n FROM sold WHERE n IN (SELECT n FROM known())",
    "SELECT n FROM sold s WHERE EXISTS (SELECT 1 FROM plus(s.n) WHERE m > 3)",
    "SELECT n, c FROM sold, LATERAL (SELECT count(*) AS c FROM up_to(n + 1))",
    # Values.
    "SELECT n, best(n) AS b, hidden(n) AS h FROM sold",
    "SELECT best(2) AS b, known_best() AS k",
    "SELECT label, first_of(n) AS a, first_of(b => label, a => n) AS b FROM sold",
    "SELECT first_of(b => NULL, a => '2') AS b",
    "SELECT n FROM sold WHERE has(n)",
    "SELECT n, has(n) AS h, lacks(n + 1) AS l FROM sold",
    "SELECT n FROM sold WHERE NOT lacks(n)",
    "SELECT label, sum(best(n)) AS b, max(outside(m => n, n => 1)) AS o FROM sold GROUP BY label",
    "SELECT best(n) AS b, count(*) AS c FROM sold GROUP BY best(n)",
    "SELECT best(n) AS b, count(*) AS c FROM sold GROUP BY 1 HAVING count(*) > 0",
    "SELECT n, CASE WHEN n > 1 THEN best(n) ELSE same(price) END AS c FROM sold",
    "SELECT sum(n) OVER (PARTITION BY best(n) ORDER BY same(price)) AS s FROM sold",
    "SELECT a.n FROM sold a JOIN sold b ON a.n = b.n AND a.price > known_best()",
    "SELECT same(n) AS s FROM sold UNION ALL SELECT best(n) AS s FROM (SELECT DISTINCT n FROM sold)",
    "SELECT s.n, z.w FROM sold s, LATERAL st(s.n) z",
    "SELECT sum_up(2, `argument 1`) AS s FROM (SELECT -1 AS `argument 1`)",
    "SELECT best(n) AS b, sum(price) AS p FROM sold GROUP BY b",
    "SELECT best(n) AS b, sum(price) AS p FROM sold s GROUP BY ROLLUP (best(s.n))",
    "SELECT n, count(*) FILTER (WHERE best(n) > 11) AS c FROM sold GROUP BY n",
    "SELECT outside(price, n) AS o, outside(n, price) AS p FROM sold",
    "SELECT outside(m, n) AS o FROM (SELECT n AS m, int(price) AS n FROM sold)",
]


@pytest.fixture
def functions(spark: Any) -> Iterator[Any]:
    """Yield the session with the functions, the variable and the table."""
    spark.sql(DECLARE)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW sold AS "
        f"SELECT n, price, day, label, named_struct('x', x) AS st FROM VALUES {ROWS} AS t(n, price, day, label, x)"
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
@pytest.mark.proves("W31")
def test_inlined_functions_with_queries_return_the_rows_of_sparks_own(functions: Any) -> None:
    texts = [f"CREATE FUNCTION {name}{text};" for name, text in FUNCTIONS.items()]
    known = define(parse_definitions("\n".join([*texts, DECLARE]), "sources/f.sql"))
    assert not known.problems, known.problems
    for text in QUERIES:
        inlined = parse_query(text, None, known).text
        assert not any(f"{name}(" in inlined.replace("`", "") and f"{name}(" in inlined for name in FUNCTIONS), inlined  # fmt: skip
        own, ours = functions.sql(text), functions.sql(inlined)
        assert ours.schema == own.schema, text
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, own.collect())), text
