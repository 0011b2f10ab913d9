"""Deep and long queries: what they mean never depends on how much stack is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import compiled

from persist_assets.frontends.sql import MAX_BRACKETS, parse_query
from persist_assets.meaning.binding import MAX_DEPTH
from persist_assets.model import Project, Source

T = "CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 't';\n"


def project(query: str) -> Project:
    return compiled({"a.sql": f"{T}CREATE VIEW v AS {query}"})


def source(query: str) -> Source:
    found = project(query)
    assert not found.problems, [str(p) for p in found.problems]
    return found.by_id["v@sources/a.sql"]


def deeper(n: int, call: Callable[[], Source]) -> Source:
    """Return what `call` returns when it is called `n` frames further down."""
    return deeper(n - 1, call) if n else call()


def ctes(n: int, body: str, last: str = "a") -> str:
    chain = ", ".join(f"c{i} AS ({body.format(f'c{i - 1}')})" for i in range(1, n))
    return f"WITH c0 AS (SELECT a, b FROM t), {chain} SELECT {last} FROM c{n - 1}"


LONG = {
    "and": "SELECT a FROM t WHERE " + " AND ".join(f"a <> {i}" for i in range(1000)),
    "or": "SELECT a FROM t WHERE " + " OR ".join(f"a = {i}" for i in range(1000)),
    "plus": "SELECT " + " + ".join(["a"] * 1000) + " AS x FROM t",
    "concat": "SELECT " + " || ".join(["b"] * 1000) + " AS x FROM t",
    "nested plus": "SELECT " + "(" * 250 + "a" + " + 1)" * 250 + " AS x FROM t",
    "union": " UNION ".join(f"SELECT a FROM t WHERE a = {i}" for i in range(300)),
    "union all": " UNION ALL ".join(f"SELECT a FROM t WHERE a = {i}" for i in range(300)),
    "ctes": ctes(150, "SELECT a + 1 AS a, b FROM {}"),
    "grouped ctes": ctes(150, "SELECT max(a) AS a, b FROM {} GROUP BY b"),
    "limited ctes": ctes(150, "SELECT a, b FROM {} ORDER BY a LIMIT 10"),
    "windowed ctes": ctes(150, "SELECT sum(a) OVER (PARTITION BY b) AS a, b FROM {}"),
    "grouped windows": ctes(60, "SELECT sum(a) OVER (PARTITION BY b) AS a, b FROM {}", "a + 1 AS x")
    + " GROUP BY a",
    "joined ctes": ctes(60, "SELECT x.a, y.b FROM {} x LEFT JOIN t y ON x.a = y.a"),
}

half, third = MAX_DEPTH // 2 - 4, MAX_DEPTH // 3 - 2
DEEP = {
    "calls": "SELECT " + "abs(" * (MAX_DEPTH - 4) + "a" + ")" * (MAX_DEPTH - 4) + " AS x FROM t",
    "conditions": "SELECT a FROM t WHERE " + "(a=1 AND (a=2 OR " * half + "a=3" + "))" * half,
    "cases": "SELECT " + "CASE WHEN a=1 THEN 2 ELSE " * 100 + "a" + " END" * 100 + " AS x FROM t",
    "subqueries": "SELECT a FROM " + "(SELECT a FROM " * half + "t" + " ORDER BY a LIMIT 3)" * half,
    "exists": "SELECT a FROM t t0 WHERE "
    + " ".join(
        f"EXISTS (SELECT 1 FROM t t{i} WHERE t{i}.a = t0.a AND " for i in range(1, third + 1)
    )
    + "1=1"
    + ")" * third,
}


@pytest.mark.parametrize("query", [*LONG.values(), *DEEP.values()], ids=[*LONG, *DEEP])
def test_long_and_deep_queries_are_analysed_wherever_they_are_compiled(query: str) -> None:
    here = source(query)
    assert not [n for n in here.notes if "as a whole" in n]
    assert deeper(200, lambda: source(query)).build_id == here.build_id


def test_a_chain_of_sources_may_be_as_long_as_one_likes() -> None:
    views = "".join(f"CREATE VIEW v{i} AS SELECT a + 1 AS a FROM v{i - 1};" for i in range(1, 200))
    found = compiled({"a.sql": f"{T}CREATE VIEW v0 AS SELECT a FROM t;{views}"})
    assert not found.problems
    assert not [s for s in found.sources if s.notes]
    edges = found.by_id["v199@sources/a.sql"].lineage
    assert [(e.upstream.column, e.column) for e in edges] == [("a", "a")]


def test_an_expression_that_doubles_in_every_step_costs_no_more_than_one_that_does_not() -> None:
    assert source(ctes(60, "SELECT a + a AS a, b FROM {}")).columns[0].type == "int"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT " + "abs(" * 200 + "a" + ")" * 200 + " AS x FROM t",
        "SELECT a FROM t WHERE " + "NOT " * 200 + "a = 1",
        "SELECT a FROM " + "(SELECT a FROM " * 150 + "t" + " ORDER BY a LIMIT 3)" * 150,
        "SELECT a FROM " + "(" * 200 + "t" + " JOIN t USING (a))" * 200,
    ],
)
def test_what_is_nested_more_deeply_is_a_whole_that_says_so(query: str) -> None:
    here = source(query)
    assert f"nested more than {MAX_DEPTH} levels deep" in here.notes[0]
    assert deeper(200, lambda: source(query)).build_id == here.build_id


@pytest.mark.parametrize(
    "query",
    [
        "SELECT " + "(" * (MAX_BRACKETS + 1) + "a" + ")" * (MAX_BRACKETS + 1) + " AS x FROM t",
        "SELECT a FROM " + "(SELECT a FROM " * 20_000 + "t" + ")" * 20_000,  # would end Python
        "SELECT a FROM t WHERE " + "NOT " * 5000 + "a = 1",
        "SELECT " + "CASE WHEN a=1 THEN 2 ELSE " * 5000 + "a" + " END" * 5000 + " AS x FROM t",
    ],
)
def test_what_the_parser_cannot_take_is_a_problem_with_a_place(query: str) -> None:
    (problem,) = project(query).problems
    assert problem.code == "nesting"
    assert problem.location.line == 2
    assert problem.hint is not None


def test_a_stack_that_is_nearly_full_refuses_a_source_and_says_so() -> None:
    query = "SELECT a FROM t t0 WHERE EXISTS (WITH c0 AS (SELECT a FROM t WHERE t.b = t0.b), "
    query += ", ".join(f"c{i} AS (SELECT max(a) AS a FROM c{i - 1})" for i in range(1, 220))
    (problem,) = project(f"{query} SELECT a FROM c219)").problems
    assert problem.code == "nesting"


def test_brackets_side_by_side_are_not_nested() -> None:
    assert parse_query("SELECT " + ", ".join(["(1)"] * 2000)).references == ()


def test_a_problem_in_a_cte_is_reported_once_it_is_read() -> None:
    (problem,) = project(
        "WITH c AS (SELECT nope FROM t), d AS (SELECT * FROM c) SELECT d.nope FROM d, c"
    ).problems
    assert problem.code == "unknown-column"
    hidden = "WITH c AS (SELECT nope FROM t), d AS (WITH c AS (SELECT a FROM t) SELECT a FROM c)"
    assert not project(f"{hidden} SELECT a FROM d").problems
