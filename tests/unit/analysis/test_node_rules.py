"""The maintenance rule of each node of a query, its obstacles, and their locations."""

from __future__ import annotations

import ast
import re

import pytest
from conftest import ROOT, compilation_of

from persist_assets.analysis.algebra import Given, walk
from persist_assets.analysis.deltas.explaining import node_rules
from persist_assets.analysis.deltas.program import change_of, merging
from persist_assets.core.hints import _NO_HINTS, _OTHERWISE, hint_of
from persist_assets.core.model.deltas import NodeRule, NoRule

RAW = """
CREATE TABLE t (id BIGINT, kind STRING, usr INT, ts TIMESTAMP, amt DECIMAL(10,2), f DOUBLE, n INT)
USING delta LOCATION 't';
CREATE TABLE u (usr INT, name STRING, w INT) USING delta LOCATION 'u';
"""
T, U = "t@sources/raw.sql", "u@sources/raw.sql"


def staged(query: str):
    files = {"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS\n{query};"}
    return compilation_of(files).definition("q@sources/q.sql")


def rules(query: str) -> list[NodeRule]:
    return [*node_rules(staged(query))]


def refusal(query: str, *changed: str, merges: bool = False, grows: bool = False) -> NoRule:
    """Return why a change of tables cannot be followed."""
    tables = frozenset(changed or (T,))
    with pytest.raises(NoRule) as caught:
        (merging if merges else change_of)(staged(query), tables, tables if grows else frozenset())
    return caught.value


@pytest.mark.proves("T11")
@pytest.mark.parametrize(
    ("query", "node", "rule"),
    [
        ("SELECT id FROM t", "SELECT", "the same over the changed rows"),
        ("SELECT id FROM t WHERE n > 3", "WHERE 3 < n", "the same over the changed rows"),
        (
            "SELECT id, name FROM t JOIN u USING (usr)",
            "t JOIN u",
            "the changed rows of each table are joined with the others",
        ),
        (
            "SELECT usr, kind, sum(f) AS s FROM t GROUP BY usr, kind",
            "GROUP BY usr, kind",
            "the groups of touched keys (usr, kind) are computed again",
        ),
        (
            "SELECT DISTINCT usr FROM t",
            "DISTINCT",
            "the rows with touched values are computed again",
        ),
        (
            "SELECT id, usr, rank() OVER (PARTITION BY usr ORDER BY n DESC) AS r FROM t",
            "rank() OVER (PARTITION BY usr ORDER BY n DESC)",
            "the partitions of touched keys (usr) are computed again",
        ),
        (
            "SELECT id, name FROM t LEFT JOIN u USING (usr)",
            "t LEFT JOIN u",
            "the changed rows of the left side are joined; those whose key (usr) is touched on the"
            " right side, again",
        ),
        (
            "SELECT id, name FROM t FULL JOIN u ON t.usr = u.usr",
            "t FULL JOIN u",
            "the rows with touched keys (usr) are joined again",
        ),
        (
            "SELECT usr FROM t UNION ALL SELECT usr FROM u",
            "UNION ALL",
            "the changed rows of each branch",
        ),
        (
            "SELECT usr FROM t EXCEPT SELECT usr FROM u",
            "EXCEPT",
            "the rows with touched values are computed again",
        ),
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.usr = t.usr)",
            "EXISTS (SELECT … FROM u)",
            "the rows whose key (usr) is touched are computed again",
        ),
        (
            "SELECT id FROM t WHERE usr IN (SELECT usr FROM u)",
            "IN (SELECT … FROM u)",
            "the rows whose key (usr) is touched are computed again",
        ),
        (
            "SELECT id, (SELECT max(w) FROM u WHERE u.usr = t.usr) AS m FROM t",
            "(SELECT … FROM u)",
            "the rows whose key (usr) is touched are computed again",
        ),
        (
            "SELECT id FROM t WHERE n > (SELECT max(w) FROM u)",
            "(SELECT … FROM u)",
            "if it has another value than before, all rows are computed",
        ),
        (
            "SELECT id, x FROM t LATERAL VIEW explode(split(kind, ',')) e AS x",
            "LATERAL VIEW explode(split(kind, ','))",
            "the same over the changed rows",
        ),
        (
            "SELECT usr, kind, count(*) AS c FROM t GROUP BY GROUPING SETS ((usr), (usr, kind))",
            "GROUP BY 2 grouping sets of usr, kind",
            "each grouping set is maintained like a GROUP BY of its own",
        ),
        (
            "SELECT u.name FROM VALUES (1) AS v(a) JOIN u ON u.usr = v.a",
            "VALUES",
            "its rows do not change",
        ),
    ],
)
def test_each_kind_of_node_has_its_rule(query: str, node: str, rule: str) -> None:
    (one,) = (r for r in rules(query) if r.node == node)
    assert (one.rule, one.obstacle, one.hint, one.when) == (rule, None, None, ())


@pytest.mark.proves("T11")
@pytest.mark.parametrize(
    ("query", "line", "node", "reason", "hint"),
    [
        (
            "SELECT id, count(*) AS n FROM (\nSELECT id\nFROM t\nORDER BY ts\nLIMIT 10)\nGROUP BY id",
            6,
            "LIMIT 10",
            "of a LIMIT",
            "leave the LIMIT",
        ),
        (
            "SELECT id FROM t\nORDER BY ts\nLIMIT 10",
            4,
            "LIMIT 10",
            "of a LIMIT by values that the query does not select",
            "select all columns of ORDER BY",
        ),
        (
            "SELECT id, ts FROM t\nORDER BY ts\nLIMIT 10 OFFSET 5",
            4,
            "LIMIT 10 OFFSET 5",
            "of a LIMIT with an OFFSET",
            "leave the LIMIT",
        ),
        (
            "SELECT id,\n  rank() OVER (ORDER BY n) AS r\nFROM t",
            3,
            "rank() OVER (ORDER BY n)",
            "of a window without a PARTITION BY that all windows share",
            "give each window",
        ),
        (
            "SELECT id FROM t\nWHERE (usr, n) NOT IN (\n SELECT usr, w FROM u)",
            3,
            "IN (SELECT … FROM u)",
            "of a NOT IN, or IN as a value, that is correlated or has several columns or types",
            "write NOT EXISTS",
        ),
        (
            "SELECT id FROM t\nWHERE EXISTS\n  (SELECT 1 FROM u WHERE u.usr > t.usr)",
            4,
            "EXISTS (SELECT … FROM u)",
            "of a subquery without an equality with the outer query",
            "compare a column",
        ),
        (
            "SELECT id FROM t\nWHERE n >\n  (SELECT avg(w) FROM u)",
            4,
            "(SELECT … FROM u)",
            "of avg(), whose last digits may depend on the order of rows",
            "",
        ),
        (
            "SELECT\n  count(DISTINCT usr) AS c FROM t",
            3,
            "count(DISTINCT usr)",
            "of an aggregate over all rows",
            "group by a column",
        ),
        (
            "SELECT sum(f) AS s\nFROM t\nGROUP BY usr",
            4,
            "GROUP BY usr",
            "of sum(), whose last digits may depend on the order of rows",
            "select the columns that its query groups or partitions by",
        ),
        (
            "SELECT avg(n) AS s FROM t GROUP\n BY usr",
            3,
            "GROUP BY usr",
            "of avg(), whose last digits may depend on the order of rows",
            "",
        ),
        (
            "SELECT first(kind) AS k FROM t\nGROUP BY usr",
            3,
            "GROUP BY usr",
            "of first(), whose value may depend on the order of rows",
            "",
        ),
        (
            "SELECT id FROM t\nQUALIFY row_number() OVER (PARTITION BY usr ORDER BY ts) = 1",
            3,
            "row_number() OVER (PARTITION BY usr ORDER BY ts)",
            "of row_number(), whose value may depend on the order of rows",
            "",
        ),
        (
            "SELECT kind, sum(f) AS s FROM t\nGROUP BY ROLLUP (kind)",
            3,
            "GROUP BY 2 grouping sets of kind",
            "of an aggregate over all rows",
            "",
        ),
    ],
)
def test_an_obstacle_says_where_it_is_and_how_to_remove_it(
    query: str, line: int, node: str, reason: str, hint: str
) -> None:
    (found,) = (r for r in rules(query) if r.obstacle is not None)
    assert (found.node, found.rule, found.obstacle) == (node, "", reason)
    place = found.location
    assert place is not None
    assert (place.path, place.line) == ("sources/q.sql", line)
    assert (found.hint or "").startswith(hint)


def test_an_obstacle_for_some_tables_keeps_the_rule_for_the_others() -> None:
    (join,) = rules("SELECT t.id, u.name FROM t LEFT JOIN u ON t.usr < u.usr")
    assert join.rule == "the changed rows of the left side are joined"
    assert (join.obstacle, join.when) == (
        "of an outer join without an equality between its sides",
        (U,),
    )
    (_, test) = rules("SELECT id FROM t WHERE (usr, n) NOT IN (SELECT usr, w FROM u)")
    assert (test.rule, test.when) == ("", ())  # the node reads only u


@pytest.mark.proves("T11")
@pytest.mark.parametrize(
    ("aggregates", "merging", "is_merged"),
    [
        ("count(*) AS a, sum(amt) AS b", "count(*), sum(amt)", True),
        ("max(n) AS a", "max(n) while rows are only added", True),
        ("sum(f) AS a", "sum() of double cannot be merged exactly", False),
        ("avg(f) AS a", "avg() of double cannot be merged exactly", False),
        ("count(DISTINCT id) AS a", "count(DISTINCT …) cannot be merged", False),
        ("percentile(n, 0.5) AS a", "percentile() cannot be merged", False),
        ("count(*) AS a, first(n) AS b", "first() cannot be merged", False),
    ],
)
def test_an_aggregate_reports_which_of_its_functions_are_merged(
    aggregates: str, merging: str, is_merged: bool
) -> None:
    (node,) = rules(f"SELECT usr, {aggregates} FROM t GROUP BY usr")
    assert (node.node, node.merging, node.is_merged) == ("GROUP BY usr", merging, is_merged)


def test_only_the_outermost_mergeable_aggregate_stores_a_state() -> None:
    inner = "SELECT usr, kind, count(*) AS c FROM t GROUP BY usr, kind"
    outer, below = rules(f"SELECT usr, sum(c) AS c FROM ({inner}) GROUP BY usr")
    assert (outer.is_merged, outer.merging) == (True, "sum(count(*))")
    assert (below.is_merged, below.merging, below.depth) == (False, "", 1)
    outer, below = rules(f"SELECT usr, percentile(c, 0.5) AS c FROM ({inner}) GROUP BY usr")
    assert (outer.is_merged, below.is_merged, below.merging) == (False, True, "count(*)")


def test_the_nodes_are_nested_as_in_the_query() -> None:
    query = """
    WITH a AS (SELECT usr, count(*) AS c FROM t WHERE kind = 'a' GROUP BY usr HAVING count(*) > 2)
    SELECT a.usr, u.name FROM a
    LEFT JOIN u ON a.usr = u.usr AND u.w > 3"""
    assert [(r.depth, r.node) for r in rules(query)] == [
        (0, "(GROUP BY usr) LEFT JOIN u"),
        (1, "HAVING 2 < count(*)"),
        (2, "GROUP BY usr"),
        (3, "WHERE kind = 'a'"),
    ]


@pytest.mark.proves("T11", "T23")
def test_the_last_limit_of_a_query_has_a_rule_and_so_have_the_nodes_below() -> None:
    query = "SELECT usr, sum(n) AS s FROM t\nGROUP BY usr\nORDER BY s DESC, usr\nLIMIT 3"
    limit, groups = rules(query)
    assert (limit.depth, limit.node, limit.location and limit.location.line) == (0, "LIMIT 3", 5)
    assert limit.rule.endswith("are ordered again, while enough rows are left")
    assert (groups.depth, groups.node, groups.is_merged) == (1, "GROUP BY usr", True)
    limit, groups = rules(query.replace("sum(n)", "avg(n)"))
    assert (limit.obstacle, groups.obstacle) == (
        None,
        "of avg(), whose last digits may depend on the order of rows",
    )


@pytest.mark.proves("T11")
def test_a_refusal_names_the_place_of_its_node() -> None:
    error = refusal("SELECT id\nFROM t\nORDER BY ts\nLIMIT 3 OFFSET 1")
    assert error.why == "there is no rule because of a LIMIT with an OFFSET (sources/q.sql:5)"
    error = refusal("SELECT usr,\n max(n) AS m\nFROM t\nGROUP BY usr", merges=True)
    assert error.why == (
        "there is no rule because of max(), which cannot be merged if rows go (sources/q.sql:5)"
    )
    error = refusal("SELECT id, name FROM t\nLEFT JOIN u\n ON t.usr < u.usr", U)
    assert (error.location and error.location.line) == 3
    assert refusal("SELECT id FROM t", merges=True).why == (
        "it has no aggregate that can be merged"
    )


@pytest.mark.parametrize(
    ("query", "line", "reason"),
    [
        ("SELECT id,\n my_udf(n) AS x\nFROM t", 3, "of the function my_udf"),
        (
            "SELECT *\nFROM t\nPIVOT (sum(amt) FOR n IN ('a'))",
            4,
            "of PIVOT by values of another type",
        ),
        ("SELECT *\nFROM t\nPIVOT (median(amt) FOR kind IN ('a'))", 4, "of median() in PIVOT"),
        (
            "SELECT *\nFROM (SELECT n + 1 AS m, n FROM t)\nUNPIVOT (v FOR k IN (n, m))",
            4,
            "of UNPIVOT of computed columns",
        ),
        ("SELECT id FROM t\nWHERE n BETWEEN 1 AND\n  other(2)", 4, "of the function other"),
        ("WITH c AS (SELECT id,\n  odd(n) AS o FROM t)\nSELECT * FROM c", 3, "of the function odd"),
    ],
)
def test_unsupported_syntax_is_reported_with_its_location(
    query: str, line: int | None, reason: str
) -> None:
    with pytest.raises(NoRule) as caught:
        staged(query)
    assert caught.value.reason.startswith(reason)
    place = caught.value.location
    assert place is not None
    assert line is None or place.line == line


def test_locations_refer_to_the_file_that_defines_the_node() -> None:
    files = {
        "raw.sql": RAW,
        "v.sql": "CREATE VIEW v AS\nSELECT usr, count(*) AS c\nFROM t\nGROUP BY usr;",
        "q.sql": "CREATE VIEW q AS SELECT v.usr, c, u.name\nFROM v JOIN u USING (usr);",
    }
    definition = compilation_of(files).definition("q@sources/q.sql")
    places = {r.node: r.location for r in node_rules(definition)}
    assert [(p.path, p.line) for p in places.values() if p] == [
        ("sources/q.sql", 2),
        ("sources/v.sql", 4),
    ]


def test_locations_do_not_change_the_build_id() -> None:
    one, other = (
        compilation_of(
            {"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS {gap}SELECT max(n) AS m{gap}FROM t"}
        )
        for gap in (" ", "\n\n ")
    )
    (first, second) = (c.units["q@sources/q.sql"].source for c in (one, other))
    assert first is not None
    assert second is not None
    assert first.build_id == second.build_id
    texts = [
        [s.initial for s in merging(c.definition("q@sources/q.sql"), frozenset()).states]
        for c in (one, other)
    ]
    assert texts[0] == texts[1]


def reasons() -> list[str]:
    """Return the texts of all `NoRule` in the code, with ``x`` for computed parts."""
    texts: list[str] = []
    for name in ("exactness", "merging", "program", "rules", "staging"):
        path = ROOT / "persist_assets" / "analysis" / "deltas" / f"{name}.py"
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") == "NoRule"
                and node.args
            ):
                match node.args[0]:
                    case ast.Constant(value=str(text)):
                        texts.append(text)
                    case ast.JoinedStr(values=values):
                        texts.append(
                            "".join(
                                getattr(v, "value", "x") if isinstance(v, ast.Constant) else "x"
                                for v in values
                            )
                        )
                    case _:
                        pass
    return texts


@pytest.mark.parametrize("reason", sorted({*reasons()}))
def test_every_reason_of_a_rule_has_a_hint_or_needs_none(reason: str) -> None:
    hint = hint_of(reason)
    assert (hint is None) == bool(re.match(_NO_HINTS, reason)), reason
    assert hint is None or not hint.endswith(".")
    assert hint != _OTHERWISE or reason in ("of x", "a part of the query cannot be analyzed")


def test_every_branch_of_a_large_query_is_explained() -> None:
    branches = " UNION ALL ".join(
        f"SELECT t.usr, count(*) AS c FROM t JOIN u USING (usr) WHERE t.n = {n} GROUP BY t.usr"
        for n in range(60)
    )
    found = rules(branches)
    assert [r.node for r in found[:3]] == ["UNION ALL", "GROUP BY usr", "t JOIN u"]
    assert len(found) == 1 + 2 * 60
    assert not [r for r in found if r.obstacle]


def test_walking_a_query_visits_every_table() -> None:
    tables = {g.rows for g in walk(staged("SELECT 1 AS a FROM t, u").block) if isinstance(g, Given)}
    assert tables == {T, U}
