"""A query and the built tables → one statement."""

from __future__ import annotations

import pytest
from conftest import compiled

from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.core.dialect import quote
from persist_assets.planning.render import splice, substitute

PROJECT = compiled(
    {
        "raw.sql": "CREATE TABLE t (a INT, B INT) USING parquet LOCATION 't'",
        "d/m.sql": """
        --@ persist
        CREATE VIEW p AS SELECT A, b FROM t;
        CREATE VIEW v (x, y) AS WITH t AS (SELECT * FROM p) SELECT t.a, q.b FROM t JOIN raw.t AS q ON t.a = q.a;
        --@ persist
        CREATE VIEW r AS SELECT v.x FROM V JOIN p TABLESAMPLE (5 ROWS) ON v.x = p.a;
        """,
    }
)
T, P, V, R = "t@sources/raw.sql", "p@sources/d/m.sql", "v@sources/d/m.sql", "r@sources/d/m.sql"


def statement(views: dict[str, str]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    source = PROJECT.by_id[R]
    assert source.query is not None
    made = substitute(PROJECT, source.query, source.bindings, views)
    return made.sql, tuple(made.views), made.inlined


@pytest.mark.proves("M8")
def test_sources_in_the_manifest_are_read_and_others_are_inlined() -> None:
    sql, leaves, inlined = statement({T: "raw/t@files:1", P: "p-123@v4"})
    assert sql == (
        "WITH `d/m/v`(`x`, `y`) AS (\n"
        "WITH t AS (SELECT * FROM `p-123@v4` AS `p`) "
        "SELECT t.a, q.b FROM t JOIN `raw/t@files:1` AS q ON t.a = q.a\n"
        ")\n"
        "(SELECT v.x FROM `d/m/v` AS `V` JOIN `p-123@v4` TABLESAMPLE (5 ROWS) AS `p` ON v.x = p.a)"
    )
    assert leaves == (T, P)
    assert inlined == (V,)


@pytest.mark.proves("M8")
def test_without_a_manifest_everything_is_inlined() -> None:
    sql, leaves, inlined = statement({T: "t"})
    assert leaves == (T,)
    assert inlined == (P, V)
    assert "`d/m/p`(`a`, `B`) AS (\nSELECT A, b FROM `t` AS `t`\n)" in sql


@pytest.mark.proves("M8", "M10")
def test_three_manifests_make_three_statements_of_one_model() -> None:
    made = {statement(views)[0] for views in ({T: "t"}, {T: "t", P: "p@v1"}, {T: "t", P: "p@v2"})}
    assert len(made) == 3


def test_the_column_list_of_a_view_names_the_columns_of_the_statement() -> None:
    source = PROJECT.by_id[V]
    assert source.query is not None
    made = substitute(PROJECT, source.query, source.bindings, {T: "t", P: "p"})
    assert made.sql.startswith("SELECT * FROM (\nWITH t AS")
    assert made.sql.endswith("\n) AS renamed(`x`, `y`)")


def test_names_are_replaced_only_where_they_refer_to_tables() -> None:
    query = parse_query("SELECT p.a, 'p' AS p FROM p, (SELECT p FROM p AS x)")
    assert (
        splice(query, ["A", "B"])
        == "SELECT p.a, 'p' AS p FROM `A` AS `p`, (SELECT p FROM `B` AS x)"
    )


def test_quoted_names_cannot_escape_their_quotes() -> None:
    assert quote("a`; DROP TABLE x --") == "`a``; DROP TABLE x --`"


def test_a_cte_is_not_mistaken_for_a_source_with_the_same_name() -> None:
    project = compiled(
        {
            "m.sql": "CREATE TABLE t (a INT) USING parquet LOCATION 't';\nCREATE VIEW v AS SELECT a FROM t;"
        }
    )
    query = parse_query("WITH `m/v` AS (SELECT -1 AS a) SELECT `m/v`.a, v.a AS b FROM `m/v`, v")
    made = substitute(project, query, ("v@sources/m.sql",), {"t@sources/m.sql": "t"})
    assert made.sql.startswith("WITH `m/v'`(`a`) AS (")
    assert "FROM `m/v`, `m/v'` AS `v`" in made.sql
