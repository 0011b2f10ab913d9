"""Spark resolves IDENTIFIER(…) to the names that the parser puts in its place."""

from __future__ import annotations

from typing import Any

import pytest

from persist_assets.compiler.frontends.sql import parse_query

T = "WITH `t` AS (SELECT * FROM VALUES (-1, 2) AS v(a, `b c`)) "
QUERIES = [
    T + "SELECT IDENTIFIER('A') FROM t",
    T + "SELECT IDENTIFIER('`t`.`b c`'), IDENTIFIER('t.a') AS x FROM IDENTIFIER('T')",
    T
    + "SELECT IDENTIFIER('ABS')(a), IDENTIFIER('co' || 'alesce')(NULL, 1) FROM IDENTIFIER('' 't')",
    T + "SELECT IDENTIFIER('if')(a > 1, 1, 2), IDENTIFIER('max')(a) OVER () FROM t",
    T + "SELECT x.a FROM IDENTIFIER('t') AS x WHERE IDENTIFIER('x.a') < 0",
    T + "SELECT sum(`b c`) AS s FROM t GROUP BY IDENTIFIER('a') ORDER BY IDENTIFIER('s')",
    "SELECT * FROM IDENTIFIER('ra' || 'nge')(0, 2)",
]


@pytest.mark.proves("V57")
def test_spark_resolves_identifier_clauses_to_the_same_names(spark: Any) -> None:
    for query in QUERIES:
        written = parse_query(query).text
        assert "IDENTIFIER" not in written
        ours, sparks = spark.sql(written), spark.sql(query)
        assert (ours.columns, ours.collect()) == (sparks.columns, sparks.collect()), query
