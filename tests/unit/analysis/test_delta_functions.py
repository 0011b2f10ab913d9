"""Calls of SQL functions with queries are maintained by their deltas, in DuckDB."""

from __future__ import annotations

import random

import pytest
from support.deltas import Maintained

from persist_assets.compiler.frontends.sql import parse_definitions, parse_query
from persist_assets.compiler.frontends.sql_inlining import define

COLUMNS = {"t": {"k": "INT", "n": "INT"}, "u": {"k": "INT", "r": "DOUBLE"}}
RAW = """
CREATE TABLE t (k INT, n INT) USING delta LOCATION 'data/t';
CREATE TABLE u (k INT, r DOUBLE) USING delta LOCATION 'data/u';
"""
FUNCTIONS = define(
    parse_definitions(
        """
        CREATE FUNCTION best(k INT) RETURNS DOUBLE RETURN SELECT max(r) FROM u WHERE u.k = best.k;
        CREATE FUNCTION n_of(x INT) RETURN 1 + (SELECT count(*) FROM u WHERE u.k = x);
        CREATE FUNCTION known(x INT) RETURN EXISTS (SELECT 1 FROM u WHERE u.k = x);
        CREATE FUNCTION both(x INT, y INT) RETURN best(x) + coalesce(y, 7);
        CREATE FUNCTION rows_of(x INT) RETURNS TABLE (r DOUBLE) RETURN SELECT r FROM u WHERE u.k = x;
        """,
        "sources/f.sql",
    )
)


@pytest.mark.proves("W31")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, n, best(n) AS r FROM t",
        "SELECT k, n_of(k + n) AS c FROM t WHERE best(k) > 0.5",
        "SELECT k FROM t WHERE NOT known(k)",
        "SELECT n, both(y => n, x => k) AS b FROM t",
        "SELECT t.n, q.r FROM t, LATERAL rows_of(t.k) q",
        "SELECT k, (SELECT max(r) FROM rows_of(n)) AS m FROM t",
    ],
)
def test_tables_that_call_functions_with_queries_follow_changes(query: str) -> None:
    assert not FUNCTIONS.problems
    maintained = Maintained(RAW, parse_query(query, None, FUNCTIONS).text, COLUMNS)
    rng, differs = random.Random(query), 0
    for changed in (["t"], ["u"], ["t", "u"]) * 4:
        maintained.fill(rng, 6)
        for _ in range(3):
            differs += maintained.follow(rng, changed, merges=True).differs
    assert differs > 6
