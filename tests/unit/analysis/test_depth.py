"""Deep and long queries: their BuildIDs never depend on how much stack is left."""

from __future__ import annotations

import gc
from time import process_time
from typing import TYPE_CHECKING

import pytest
from conftest import compiled, draws, has_taken

from persist_assets.analysis.binding import MAX_DEPTH, MAX_SIZE
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.dialect import MAX_BRACKETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

T = "CREATE TABLE t (a INT, b STRING) USING parquet LOCATION 't';\n"


def project(query: str) -> Project:
    return compiled({"a.sql": f"{T}CREATE VIEW v AS {query}"})


def source(query: str) -> Source:
    found = project(query)
    assert not found.problems, [str(p) for p in found.problems]
    return found.by_id["v@sources/a.sql"]


def deeper(n: int, call: Callable[[], Source]) -> Source:
    """Return the result of `call`, called `n` frames deeper in the stack."""
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
        f"EXISTS (SELECT 1 FROM t t{i} WHERE t{i}.a = t{i - 1}.a AND " for i in range(1, third + 1)
    )
    + "1=1"
    + ")" * third,
}


@pytest.mark.parametrize("query", [*LONG.values(), *DEEP.values()], ids=[*LONG, *DEEP])
def test_long_and_deep_queries_are_analysed_at_any_stack_depth(query: str) -> None:
    started = process_time()
    here = source(query)
    has_taken(process_time() - started, within_s=1.0)
    assert not [n for n in here.notes if "as a whole" in n]
    assert deeper(200, lambda: source(query)).build_id == here.build_id


def test_a_chain_of_two_hundred_sources_compiles_with_lineage() -> None:
    views = "".join(f"CREATE VIEW v{i} AS SELECT a + 1 AS a FROM v{i - 1};" for i in range(1, 200))
    found = compiled({"a.sql": f"{T}CREATE VIEW v0 AS SELECT a FROM t;{views}"})
    assert not found.problems
    assert not [s for s in found.sources if s.notes]
    edges = found.by_id["v199@sources/a.sql"].lineage
    assert [(e.upstream.column, e.column) for e in edges] == [("a", "a")]


def test_an_expression_that_doubles_in_every_cte_is_analysed() -> None:
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
def test_a_query_nested_too_deeply_is_treated_as_a_whole_with_a_note(query: str) -> None:
    here = source(query)
    assert f"nested more than {MAX_DEPTH} levels deep" in here.notes[0]
    assert deeper(200, lambda: source(query)).build_id == here.build_id


@pytest.mark.parametrize(
    "query",
    [
        "SELECT " + "(" * (MAX_BRACKETS + 1) + "a" + ")" * (MAX_BRACKETS + 1) + " AS x FROM t",
        "SELECT a FROM " + "(SELECT a FROM " * 20_000 + "t" + ")" * 20_000,  # would crash Python
        "SELECT a FROM t WHERE " + "NOT " * 5000 + "a = 1",
        "SELECT " + "CASE WHEN a=1 THEN 2 ELSE " * 5000 + "a" + " END" * 5000 + " AS x FROM t",
    ],
)
def test_nesting_beyond_the_parsers_limit_is_reported_with_its_location(query: str) -> None:
    (problem,) = project(query).problems
    assert problem.code == "nesting"
    assert problem.location.line == 2
    assert problem.hint is not None


def test_a_query_that_would_exhaust_the_stack_is_reported() -> None:
    query = "SELECT a FROM t t0 WHERE EXISTS (WITH c0 AS (SELECT a FROM t WHERE t.b = t0.b), "
    query += ", ".join(f"c{i} AS (SELECT max(a) AS a FROM c{i - 1})" for i in range(1, 220))
    (problem,) = project(f"{query} SELECT a FROM c219)").problems
    assert problem.code == "nesting"


def test_adjacent_brackets_do_not_count_as_nesting() -> None:
    assert parse_query("SELECT " + ", ".join(["(1)"] * 2000)).references == ()


def test_an_error_in_a_cte_is_reported_once_and_only_if_the_cte_is_read() -> None:
    (problem,) = project(
        "WITH c AS (SELECT nope FROM t), d AS (SELECT * FROM c) SELECT d.nope FROM d, c"
    ).problems
    assert problem.code == "unknown-column"
    hidden = "WITH c AS (SELECT nope FROM t), d AS (WITH c AS (SELECT a FROM t) SELECT a FROM c)"
    assert not project(f"{hidden} SELECT a FROM d").problems


def views(n: int, body: str) -> str:
    chain = "".join(f"CREATE VIEW v{i} AS {body.format(f'v{i - 1}')};" for i in range(1, n))
    return f"CREATE VIEW v0 AS SELECT a, b FROM t;{chain}"


STEPS = draws(30, 60)
"""Work that doubles in every step would grow a billionfold in thirty steps."""


def cte_chain(body: str) -> str:
    return f"CREATE VIEW v AS {ctes(STEPS, body)}"


def symmetric(n: int, condition: str) -> str:
    """Return a join of one table with itself in which all members look the same."""
    tables = ", ".join(f"t x{i}" for i in range(n))
    around = " AND ".join(f"x{i}.{condition.format(f'x{(i + 1) % n}')}" for i in range(n))
    return f"CREATE VIEW v AS SELECT x0.a FROM {tables} WHERE {around}"


def nested_exists(n: int) -> str:
    inner = f"a = 1 AND {nested_exists(n - 1)}" if n else "a = 1"
    return " AND ".join(f"EXISTS (SELECT 1 FROM t {x}{n} WHERE {inner})" for x in "xy")


TWICE = {
    "join": "SELECT x.a, y.b FROM {0} x JOIN {0} y ON x.a = y.a",
    "left join": "SELECT x.a, y.b FROM {0} x LEFT JOIN {0} y ON x.a = y.a",
    "union all": "SELECT a, b FROM {0} UNION ALL SELECT a, b FROM {0}",
    "union": "SELECT a, b FROM {0} UNION SELECT b, a FROM {0}",
    "except": "SELECT a, b FROM {0} EXCEPT SELECT a + 1, b FROM {0}",
    "groups": "SELECT x.a, y.b FROM {0} x JOIN (SELECT max(a) AS a, b FROM {0} GROUP BY b) y ON x.b = y.b",
    "scalar": "SELECT (SELECT max(a) FROM {0}) AS a, b FROM {0}",
    "correlated": "SELECT (SELECT max(y.a) FROM {0} y WHERE y.b = x.b) AS a, x.b FROM {0} x",
    "in": "SELECT a, b FROM {0} WHERE a IN (SELECT a FROM {0})",
    "exists": "SELECT x.a, x.b FROM {0} x WHERE EXISTS (SELECT 1 FROM {0} y WHERE y.a = x.a)",
    "limits": "SELECT x.a, y.b FROM (SELECT * FROM {0} ORDER BY a LIMIT 5) x, (SELECT * FROM {0} ORDER BY b LIMIT 5) y",
    "windows": "SELECT x.a, sum(y.a) OVER (PARTITION BY x.b) AS b FROM {0} x JOIN {0} y ON x.a = y.a",
    "plus": "SELECT a + a * 2 AS a, b FROM {0}",
    "case": "SELECT CASE WHEN a > 1 THEN a ELSE a + 1 END AS a, b FROM {0}",
    "conditions": "SELECT a, b FROM {0} WHERE (a > 1 OR b = 'x') AND (a < 1 OR b = 'y')",
}
BLOW_UPS = {
    **{f"ctes: {name}": cte_chain(body) for name, body in TWICE.items()},
    **{f"sources: {name}": views(STEPS, body) for name, body in TWICE.items()},
    "symmetric ring": symmetric(16, "a = {}.a"),
    "symmetric ring, not flat": symmetric(60, "a = {}.a"),
    "no conditions": symmetric(16, "a = {}.b").split(" WHERE ")[0],
    "all with all": symmetric(12, "a <> {}.a")
    + "".join(f" AND x{i}.a < x{j}.a" for i in range(12) for j in range(i)),
    "left joins": "CREATE VIEW v AS SELECT t.a FROM t"
    + "".join(f" LEFT JOIN t x{i} ON x{i}.a = t.a" for i in range(80)),
    "full joins": "CREATE VIEW v AS SELECT a FROM t"
    + "".join(f" FULL JOIN t x{i} USING (a)" for i in range(40)),
    "wide union": "CREATE VIEW v AS "
    + " UNION ALL ".join(
        f"SELECT {', '.join(f'a + {j} AS c{j}' for j in range(100))} FROM t WHERE a = {i}"
        for i in range(20)
    ),
    "cube": f"CREATE VIEW v AS SELECT count(*) AS c FROM t GROUP BY CUBE ({', '.join(f'a + {i}' for i in range(1, 30))})",
    "cubes": "CREATE VIEW v AS SELECT count(*) AS c FROM t GROUP BY "
    + ", ".join(f"CUBE (a + {i}, a - {i})" for i in range(1, 15)),
    "nested exists": f"CREATE VIEW v AS SELECT a FROM t WHERE {nested_exists(5)}",
    "aliases of aliases": "CREATE VIEW v AS SELECT a AS x0, "
    + ", ".join(f"x{i - 1} + x{i - 1} * 2 AS x{i}" for i in range(1, 100))
    + " FROM t",
    "case": f"CREATE VIEW v AS SELECT CASE {' '.join(f'WHEN a = {i} THEN {i}' for i in range(1000))} END AS x FROM t",
    "in": f"CREATE VIEW v AS SELECT a FROM t WHERE a IN ({', '.join(map(str, range(3000)))})",
    "or of and": "CREATE VIEW v AS SELECT a FROM t WHERE "
    + " OR ".join(f"(a <> {i} AND b = '{i}')" for i in range(500)),
    "columns and conditions": f"CREATE VIEW v AS SELECT {', '.join(f'a + {i} AS c{i}' for i in range(1000))} FROM t WHERE "
    + " AND ".join(f"a <> {i}" for i in range(500)),
}


@pytest.mark.parametrize("name", BLOW_UPS)
def test_analysis_time_does_not_grow_exponentially(name: str) -> None:
    within_s = STEPS / 60 if name.startswith(("ctes: ", "sources: ")) else 1.0
    gc.collect()  # the garbage of other tests
    started = process_time()
    project = compiled({"a.sql": f"{T}{BLOW_UPS[name]}"})
    has_taken(process_time() - started, within_s=within_s)
    assert not project.problems, [str(p) for p in project.problems]


@pytest.mark.parametrize(
    ("name", "n"), [(name, draws(400, 1000)) for name in ("join", "union all", "scalar")]
)
def test_compile_time_grows_linearly_with_the_length_of_a_chain_of_sources(
    name: str, n: int
) -> None:
    gc.collect()
    started = process_time()
    project = compiled({"a.sql": f"{T}{views(n, TWICE[name])}"})
    has_taken(process_time() - started, within_s=n * 0.005)
    assert not any("as a whole" in note for s in project.sources for note in s.notes)


def test_a_query_too_large_to_merge_has_one_build_id_as_cte_subquery_or_source() -> None:
    def large(n: int) -> str:
        return "SELECT a FROM t WHERE " + " AND ".join(f"a <> {i}" for i in range(n))

    def read(text: str) -> str:
        return compiled({"a.sql": T + text}).by_id["v@sources/a.sql"].build_id

    assert large(300).count("<>") > MAX_SIZE
    cte = read(f"CREATE VIEW v AS WITH c AS ({large(300)}) SELECT a FROM c WHERE a > 1")
    assert cte == read(f"CREATE VIEW v AS SELECT a FROM ({large(300)}) WHERE a > 1")
    assert cte == read(
        f"CREATE VIEW c AS {large(300)}; CREATE VIEW v AS SELECT a FROM c WHERE a > 1"
    )
    assert cte != read(f"CREATE VIEW v AS SELECT a FROM ({large(299)}) WHERE a > 1")
