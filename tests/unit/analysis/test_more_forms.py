"""Recursive and LATERAL queries, collations and operators are analysed, not digested as a whole."""

from __future__ import annotations

import pytest
from conftest import compilation_of, compiled
from pairs import build_id
from pushing import needs_of

import persist_assets.analysis.predicates as p
from persist_assets.analysis.increments import Increments
from persist_assets.analysis.pushdown.needs import leaf, relate
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.errors import Location
from persist_assets.core.model.deltas import NoRule
from persist_assets.core.model.project import Project

RAW = """
CREATE TABLE t (a INT, b STRING, k INT) USING parquet LOCATION 't';
CREATE TABLE u (a INT, k INT, n INT) USING parquet LOCATION 'u';
--@ persist
CREATE VIEW m AS SELECT a, b, b COLLATE UTF8_LCASE AS c, k FROM t;
"""
RECURSIVE = (
    "WITH RECURSIVE r(x, y) AS (SELECT a, 1 FROM v UNION ALL"
    " SELECT u.k, r.y + 1 FROM r JOIN u ON r.x = u.a WHERE r.y < 5) SELECT x, y FROM r"
)
LATERAL = "SELECT v.a, x.m FROM v JOIN LATERAL (SELECT max(k) AS m FROM u WHERE u.a = v.a) x"
COLLATED = "SELECT a, b COLLATE UTF8_LCASE AS x FROM v"


def project(query: str, view: str = "SELECT a, b, k + 1 AS other FROM t") -> Project:
    made = compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW v AS {view}; CREATE VIEW q AS {query}"})
    assert not made.errors, [str(e) for e in made.errors]
    assert not any("as a whole" in n for n in made.by_id["q@sources/q.sql"].notes)
    return made


@pytest.mark.proves("V50")
@pytest.mark.parametrize("query", [RECURSIVE, LATERAL, COLLATED])
def test_they_depend_on_the_columns_that_they_use(query: str) -> None:
    ids = [
        project(query, view).by_id["q@sources/q.sql"].build_id
        for view in (
            "SELECT a, b, k + 1 AS other FROM t",
            "SELECT a, b, k + 2 AS other FROM t",
            "SELECT a + 0 AS a, concat(b, '') AS b, k AS other FROM t",
        )
    ]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.proves("V50")
def test_columns_of_a_recursive_query_come_from_all_that_it_computes() -> None:
    source = project(RECURSIVE).by_id["q@sources/q.sql"]
    assert {(e.upstream.column, e.column) for e in source.lineage} == {
        (column, name) for column in ("a", "k") for name in "xy"
    }


@pytest.mark.proves("V50")
def test_types_of_a_recursive_query_are_certain_only_where_its_branches_agree() -> None:
    query = (
        "WITH RECURSIVE r(x, y) AS (SELECT 1, 1 UNION ALL SELECT x + 1, y + 1L FROM r WHERE x < 3)"
    )
    columns = project(f"{query} SELECT x, y, x + y AS z FROM r").by_id["q@sources/q.sql"].columns
    assert [c.type for c in columns] == ["int", None, None]


@pytest.mark.proves("V50")
def test_a_limit_of_recursion_counts() -> None:
    query = "WITH RECURSIVE r(n) {} AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT n FROM r"
    limits = ("", "MAX RECURSION LEVEL 20", "MAX RECURSION LEVEL 21")
    assert len({build_id(query.format(limit)) for limit in limits}) == 3


@pytest.mark.proves("V50")
def test_a_recursive_query_within_another_is_told_from_it() -> None:
    query = (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM (WITH RECURSIVE q(m) AS"
        " (SELECT n FROM r UNION ALL SELECT {0} FROM q, {1} WHERE {0} < 3) SELECT m AS n FROM q)"
        " WHERE n < 3) SELECT n FROM r"
    )
    inner = build_id(query.format("q.m + 1", "r AS z"))
    assert inner != build_id(query.format("z.m + 1", "q AS z"))


@pytest.mark.proves("V50")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (RECURSIVE, "of WITH RECURSIVE"),
        (LATERAL, "of a LATERAL query"),
        (COLLATED, "of collations"),
        ("SELECT c, count(*) AS n FROM m GROUP BY c", "of collations"),
    ],
)
def test_none_of_them_is_maintained_by_changes(query: str, reason: str) -> None:
    view = "CREATE VIEW v AS SELECT a, b, k + 1 AS other FROM t"
    files = {"raw.sql": RAW, "q.sql": f"{view}; --@ persist\nCREATE VIEW q AS {query};"}
    with pytest.raises(NoRule) as refused:
        compilation_of(files).definition("q@sources/q.sql")
    assert refused.value.reason == reason


@pytest.mark.proves("V51")
@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("c", "string collate UTF8_LCASE"),
        ("b COLLATE unicode_ci", "string collate UNICODE_CI"),
        ("collate(b, 'system.builtin.UTF8_LCASE')", "string collate UTF8_LCASE"),
        ("min(c)", "string collate UTF8_LCASE"),
        ("b COLLATE UTF8_BINARY", None),
        ("upper(c)", None),
        ("trim(x)", None),
        ("upper(b)", "string"),
    ],
)
def test_types_of_texts_follow_collations(expression: str, kind: str | None) -> None:
    view = "SELECT a, b, c, nullif(coalesce(c, b), 'x') AS x FROM m"
    query = f"SELECT {expression} AS z FROM v GROUP BY a, b, c, x"
    assert project(query, view).by_id["q@sources/q.sql"].columns[0].type == kind


@pytest.mark.proves("V51")
def test_an_equality_by_a_collation_says_nothing_of_the_other_side() -> None:
    def needed(query: str) -> dict[str, list[str]]:
        text = f"{RAW} --@ persist\nCREATE VIEW q AS {query};"
        return {
            table: [p.as_text(d.predicate) for d in need.disjuncts]
            for (reader, table), need in needs_of(text, ("t", "m")).items()
            if reader == "q"
        }

    assert needed("SELECT m.a FROM t JOIN m ON t.b = m.b WHERE t.b = 'x'")["m"] == ["b = 'x'"]
    assert needed("SELECT m.a FROM t JOIN m ON t.b = m.c WHERE t.b = 'x'")["m"] == ["c IS NOT NULL"]
    assert needed("SELECT a FROM m WHERE c = 'x'") == {"m": ["c IS NOT NULL"]}
    assert needed("SELECT a FROM m WHERE c LIKE 'x%'") == {"m": ["c IS NOT NULL"]}
    assert needed("SELECT a FROM t WHERE b COLLATE UTF8_LCASE = 'x'") == {"t": ["TRUE"]}


@pytest.mark.proves("V51")
def test_a_text_as_a_column_is_told_from_the_text() -> None:
    column = "SELECT a FROM (SELECT a, b COLLATE UTF8_LCASE AS x, 'A' AS y FROM t) WHERE x = y"
    assert build_id(column) != build_id("SELECT a FROM t WHERE b COLLATE UTF8_LCASE = 'A'")
    plain = "SELECT a FROM (SELECT a, b AS x, 'A' AS y FROM t) WHERE x = y"
    assert build_id(plain) == build_id("SELECT a FROM t WHERE b = 'A'")


@pytest.mark.proves("V51")
def test_partitions_by_a_text_with_a_collation_are_computed_as_a_whole() -> None:
    table = leaf("m@x", [("b", "string"), ("c", "string collate UTF8_LCASE")])

    def is_followed(column: str) -> bool:
        """Whether rows of some values of a column follow from the rows of `m` with these."""
        query = f"SELECT {column} AS n, count(*) AS x FROM m GROUP BY {column}"
        relation = relate(parse_query(query, Location("q")), "q", [table])
        growth = Increments(relation.types).growth(relation.block)
        assert growth is not None
        return bool(growth.columns[0].traces)

    assert is_followed("b")
    assert not is_followed("c")
