"""Recursive and LATERAL queries, collations and operators are analysed, not digested as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compilation_of, compiled
from pairs import build_id
from pairs import project as pair
from pushing import needs_of

import persist_assets.analysis.predicates as p
from persist_assets.analysis.increments import Increments
from persist_assets.analysis.pushdown.needs import leaf, relate
from persist_assets.analysis.result_types import result_types
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.errors import Location
from persist_assets.core.model.deltas import NoRule
from persist_assets.core.model.project import Project

if TYPE_CHECKING:
    from collections.abc import Sequence

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
def test_recursive_lateral_and_collated_queries_depend_on_columns_they_use(query: str) -> None:
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
def test_columns_of_a_recursive_query_depend_on_all_columns_it_computes() -> None:
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
def test_the_recursion_limit_is_part_of_the_build_id() -> None:
    query = "WITH RECURSIVE r(n) {} AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT n FROM r"
    limits = ("", "MAX RECURSION LEVEL 20", "MAX RECURSION LEVEL 21")
    assert len({build_id(query.format(limit)) for limit in limits}) == 3


@pytest.mark.proves("V50")
def test_a_nested_recursive_query_is_distinguished_from_the_outer_one() -> None:
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
def test_recursive_lateral_and_collated_queries_have_no_delta_rule(query: str, reason: str) -> None:
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
def test_string_types_include_their_collation(expression: str, kind: str | None) -> None:
    view = "SELECT a, b, c, nullif(coalesce(c, b), 'x') AS x FROM m"
    query = f"SELECT {expression} AS z FROM v GROUP BY a, b, c, x"
    assert project(query, view).by_id["q@sources/q.sql"].columns[0].type == kind


@pytest.mark.proves("V51")
def test_an_equality_under_a_collation_pushes_no_value_to_the_other_side() -> None:
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
def test_a_literal_column_differs_from_an_inlined_literal_under_a_collation() -> None:
    column = "SELECT a FROM (SELECT a, b COLLATE UTF8_LCASE AS x, 'A' AS y FROM t) WHERE x = y"
    assert build_id(column) != build_id("SELECT a FROM t WHERE b COLLATE UTF8_LCASE = 'A'")
    plain = "SELECT a FROM (SELECT a, b AS x, 'A' AS y FROM t) WHERE x = y"
    assert build_id(plain) == build_id("SELECT a FROM t WHERE b = 'A'")


@pytest.mark.proves("V51")
def test_values_of_a_collated_column_cannot_be_traced_to_input_rows() -> None:
    table = leaf("m@x", [("b", "string"), ("c", "string collate UTF8_LCASE")])

    def is_followed(column: str) -> bool:
        """Return whether rows with a value of a column depend only on rows of `m` with it."""
        query = f"SELECT {column} AS n, count(*) AS x FROM m GROUP BY {column}"
        relation = relate(parse_query(query, Location("q")), "q", [table])
        growth = Increments(relation.types).growth(relation.block)
        assert growth is not None
        return bool(growth.columns[0].traces)

    assert is_followed("b")
    assert not is_followed("c")


@pytest.mark.proves("V51")
@pytest.mark.parametrize("call", ["replace(b, {}, 'y')", "split_part(b, {}, 1)", "sentences({})"])
def test_string_functions_have_a_certain_type_only_without_collations(call: str) -> None:
    def kinds(text: str) -> tuple[str | None, ...] | None:
        query = parse_query(f"SELECT {call.format(text)} AS x FROM t", Location("q"))
        return result_types(query, [(("b",), ("string",))], "q")

    plain = kinds("'x'")
    assert plain is not None
    assert plain[0] is not None
    assert kinds("'x' COLLATE UTF8_LCASE") == (None,)


@pytest.mark.proves("V56")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM (SELECT a, k AS all FROM t) GROUP BY ALL",
        "SELECT a AS all, count(*) AS n FROM t GROUP BY ALL",
        "SELECT x, y FROM (SELECT 1 AS x, a AS y FROM t GROUP BY GROUPING SETS (a, (k + 1))"
        " ORDER BY `(k + 1)`)",
        "SELECT a, sum(DISTINCT k) FILTER (WHERE k > 1) AS n FROM t x GROUP BY a"
        " HAVING EXISTS (SELECT 1 FROM t y WHERE sum(DISTINCT x.k) = y.k)",
    ],
)
def test_uncertain_queries_are_digested_as_a_whole_without_errors(query: str) -> None:
    made = pair(query)
    assert not made.errors, [str(e) for e in made.errors]
    assert any("as a whole" in note for note in made.by_id["q@sources/q.sql"].notes)


@pytest.mark.proves("V56")
def test_group_by_with_duplicate_column_names_is_not_an_error() -> None:
    query = "(x, y) AS SELECT a AS k, b AS k FROM u GROUP BY b, k"
    raw = "CREATE TABLE u (a INT, b INT) USING parquet LOCATION 'u';"
    made = compiled({"raw.sql": raw, "q.sql": f"CREATE VIEW q {query}"})
    assert not made.errors, [str(e) for e in made.errors]
    assert any("as a whole" in note for note in made.by_id["q@sources/q.sql"].notes)


@pytest.mark.proves("V56")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        # Spark groups by one of two columns that are one expression here.
        (
            "SELECT sum(a) AS k FROM (SELECT a, b AS k, b FROM t) GROUP BY b HAVING k > 'x'",
            "`k` is both an alias and a column",
        ),
        (
            "SELECT sum(k) AS a FROM t GROUP BY a + 1 HAVING a > 1",
            "`a` is both an alias and a column",
        ),
        (
            "SELECT x, sum(a) AS y FROM (SELECT a, k AS x, 1 AS y FROM t) GROUP BY x HAVING y > 1",
            "`y` is both an alias and a column",
        ),
        (
            "SELECT row_number() OVER (ORDER BY a) AS a FROM t QUALIFY a > 1",
            "`a` is both an alias and a column",
        ),
        ("SELECT x FROM t PIVOT (sum(k) FOR a IN (a AS x))", "values that are not constant"),
        ("SELECT x FROM t PIVOT (sum(k) FOR a IN (1 AS x, 1 AS y))", "PIVOT with equal values"),
        ("SELECT max(uuid()) AS p, max(uuid()) AS q FROM t", "that are written alike"),
        ("SELECT p FROM t UNPIVOT ((p, q) FOR n IN ((a, k), (a)))", "other than columns"),
    ],
)
def test_queries_with_ambiguous_names_are_digested_as_a_whole(query: str, reason: str) -> None:
    notes = pair(query).by_id["q@sources/q.sql"].notes
    assert any("as a whole" in note and reason in note for note in notes), notes


@pytest.mark.proves("V56")
@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT * FROM t PIVOT (sum(k) FOR (a, b) IN ((1, 'x') AS one))", ["one"]),
        ("SELECT * FROM w PIVOT (sum(z) AS s, max(z) AS m FOR a IN ('x', 2 AS y))", None),
        ("SELECT * FROM w UNPIVOT ((p, q) FOR n IN ((a, k), (z, a) AS `2`))", ["n", "p", "q"]),
    ],
)
def test_columns_of_pivot_and_unpivot_are_known(query: str, names: list[str] | None) -> None:
    expected = names or ["k", "x_s", "x_m", "y_s", "y_m"]
    source = pair(query).by_id["q@sources/q.sql"]
    own = [c.name for c in source.columns if c.name not in ("d", "arr", "m")]
    assert own == expected
    assert not any("as a whole" in note for note in source.notes)


@pytest.mark.proves("V56")
@pytest.mark.parametrize(
    "pivot",
    [
        "sum(z), max(z) FOR a IN (1)",
        "sum(z) FOR (a, k) IN ((1, 2), (3, 4))",
        "sum(z) FOR a IN (1L, 01)",
    ],
)
def test_pivot_columns_without_plain_names_need_an_alias(pivot: str) -> None:
    (error,) = pair(f"SELECT * FROM (SELECT a, k, z FROM w) PIVOT ({pivot})").errors[:1]
    assert error.code == "column-name"


@pytest.mark.proves("V58")
@pytest.mark.parametrize(
    "use",
    [
        "SELECT NOT i AS n FROM v",
        "SELECT i = FALSE AS n FROM v",
        "SELECT max(i) AS n FROM v",
        "SELECT k FROM v WHERE NOT i",
        "SELECT k FROM v WHERE coalesce(i, TRUE)",
        "SELECT k FROM v WHERE i IN (SELECT a > 1 FROM u)",
        "SELECT a.k FROM v a JOIN v b ON a.i = b.i",
        "SELECT k FROM v ORDER BY NOT i LIMIT 1",
        "SELECT x FROM v LATERAL VIEW explode(array(i)) e AS x",
        "SELECT NOT i AS n FROM v GROUP BY i",
        "SELECT NOT i AS n FROM v GROUP BY CUBE(k, i)",
        "SELECT NOT v.i AS n FROM v FULL JOIN u ON v.k = u.k",
        "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM v WHERE v.k = t.k AND NOT v.i)",
    ],
)
@pytest.mark.parametrize(
    "form", ["{}", "{} UNION ALL SELECT 1, TRUE", "SELECT DISTINCT * FROM ({})"]
)
def test_values_of_a_column_computed_by_in_are_analysed_only_in_a_table(
    use: str, form: str
) -> None:
    view = f"CREATE VIEW v AS {form.format('SELECT k, k IN (SELECT a FROM u) AS i FROM t')}"

    def notes(view: str) -> Sequence[str]:
        made = compiled({"raw.sql": RAW, "q.sql": f"{view}; CREATE VIEW q AS {use}"})
        assert not made.errors, [str(e) for e in made.errors]
        return made.by_id["q@sources/q.sql"].notes

    assert any("computed by IN" in note for note in notes(view))
    assert not notes(f"--@ persist\n{view}")


@pytest.mark.proves("V58")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT k IN (SELECT a FROM u) AS i, NOT i AS n FROM t",
        "SELECT NOT (SELECT k IN (SELECT a FROM u)) AS n FROM t",
    ],
)
def test_values_of_an_alias_or_subquery_computed_by_in_are_not_analysed(query: str) -> None:
    (note,) = pair(query).by_id["q@sources/q.sql"].notes
    assert "computed by IN" in note


@pytest.mark.proves("V58")
@pytest.mark.parametrize("use", ["NOT i", "coalesce(i, k > 1)"])
def test_a_column_of_a_table_computed_by_in_differs_from_the_expression(use: str) -> None:
    view = "CREATE VIEW v AS SELECT k, k IN (SELECT a FROM u) AS i FROM t"
    text = f"--@ persist\n{view}; CREATE VIEW q AS SELECT {use} AS n FROM v;"
    made = compiled({"raw.sql": RAW, "q.sql": text})
    plain = f"SELECT {use.replace('i', '(k IN (SELECT a FROM u))', 1)} AS n FROM t"
    assert (
        made.by_id["q@sources/q.sql"].build_id
        != project(plain, "SELECT 1 AS x").by_id["q@sources/q.sql"].build_id
    )
