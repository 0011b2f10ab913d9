"""Differences between two versions of a query: columns, rows, and their description in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled

from persist_assets.planning.diff import (
    Change,
    Expression,
    compare,
    differ,
    in_words,
    items,
    line_of,
    of_project,
    to_rebuild,
)

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project

RAW = "CREATE TABLE t (a INT, b INT, c INT) USING parquet LOCATION 't';\n"
RAW += "CREATE TABLE u (a INT, d INT) USING parquet LOCATION 'u';\n--@ persist\nCREATE VIEW p AS "


def project(query: str, more: str = "") -> Project:
    made = compiled({"a.sql": f"{RAW}{query};\n{more}"})
    assert not made.errors, made.errors
    return made


def changes(before: Project, after: Project) -> list[Change]:
    return [c for c in compare(of_project(before), of_project(after)) if c.change != "same"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("SELECT a, b FROM t", "SELECT a, b + 1 AS b FROM t", "column b changed"),
        ("SELECT a, b, c FROM t", "SELECT a + 1 AS a, b, -c AS c FROM t", "columns a, c changed"),
        ("SELECT a, b FROM t", "SELECT a, b FROM t WHERE a > 1", "its rows changed (WHERE, JOIN, …)"),
        ("SELECT a FROM t", "SELECT a, b + c AS x FROM t", "column x added"),
        ("SELECT a, b FROM t", "SELECT a FROM t", "column b removed"),
        ("SELECT a, b FROM t", "SELECT a, b AS x FROM t", "column b renamed to x"),
        ("SELECT a, b FROM t", "SELECT b, a FROM t", ""),
        (
            "SELECT a, b FROM t WHERE a > 1",
            "SELECT a, b + 1 AS b FROM t WHERE a > 2",
            "its rows changed (WHERE, JOIN, …), column b changed",
        ),
        (
            "SELECT t.a, b FROM t",
            "SELECT t.a, b FROM t JOIN u USING (a)",
            "its rows and all columns changed (FROM, WHERE, JOIN, …)",
        ),
    ],
)  # fmt: skip
def test_a_diff_names_changed_columns_and_rows(before: str, after: str, message: str) -> None:
    old, new = (project(q).by_id["p@sources/a.sql"] for q in (before, after))
    assert old.build_id != new.build_id
    assert in_words(differ(old.digests, new.digests)) == message


def test_equivalent_queries_have_equal_digests() -> None:
    old, new = project("SELECT a, b FROM t"), project("SELECT x.a, x.b FROM (SELECT * FROM t) x")
    assert changes(old, new) == []
    assert old.sources[-1].digests == new.sources[-1].digests


def test_changes_show_expressions_as_the_user_wrote_them() -> None:
    reader = "--@ persist\nCREATE VIEW q AS SELECT b, count(*) AS n FROM p GROUP BY b;\n"
    gone = "--@ persist\nCREATE VIEW g AS SELECT a FROM u;"
    before = project("SELECT a, b  /* so */ +  1 AS b FROM t WHERE a > 1", reader + gone)
    after = project("SELECT a, b * 2 b FROM t WHERE a > 1", reader)
    p, q, g = changes(before, after)
    assert p == Change(
        "p@sources/a.sql",
        "changed",
        ("b",),
        False,
        (Expression("b", "b  /* so */ +  1", "b * 2 b"),),
    )
    assert (q.change, q.because) == ("changed", ("p@sources/a.sql",))
    assert (g.change, g.columns, g.rows_changed) == ("removed", ("a",), None)
    assert g.expressions == (Expression("a", "a", None),)
    assert to_rebuild(of_project(before), of_project(after)) == 2


def test_changed_rows_show_the_text_after_the_select_list() -> None:
    (p,) = changes(project("SELECT a FROM t WHERE a > 1"), project("SELECT a FROM t WHERE a > 2"))
    assert (p.columns, p.rows_changed) == ((), True)
    assert p.expressions == (Expression(None, "FROM t WHERE a > 1", "FROM t WHERE a > 2"),)


def test_a_renamed_source_is_not_rebuilt() -> None:
    before = project("SELECT a FROM t")
    after = compiled({"a.sql": f"{RAW}SELECT a FROM t;".replace("VIEW p", "VIEW z")})
    assert [(c.source_id[0], c.change) for c in changes(before, after)] == [
        ("z", "added"),
        ("p", "removed"),
    ]
    assert to_rebuild(of_project(before), of_project(after)) == 0


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("SELECT a, b + 1 AS x FROM t", {"a": "a", "x": "b + 1"}),
        ("SELECT DISTINCT coalesce(a, b) AS x, t.c FROM t", {"x": "coalesce(a, b)", "c": "t.c"}),
        (
            "WITH w AS (SELECT a, b FROM t) SELECT a, (SELECT max(d) FROM u) AS m FROM w",
            {"a": "a", "m": "(SELECT max(d) FROM u)"},
        ),
        ("SELECT a AS x FROM t UNION ALL SELECT b FROM t", {"x": "a"}),
        ("SELECT *, a + b AS s FROM t", {"s": "a + b"}),
        ("SELECT count(*) AS n, extract(year FROM now()) AS y FROM t", 
         {"n": "count(*)", "y": "extract(year FROM now())"}),
        ("SELECT array(1, 2)[0] AS x, CASE WHEN a > 1 THEN b END AS `y z` FROM t".replace("y z", "y"),
         {"x": "array(1, 2)[0]", "y": "CASE WHEN a > 1 THEN b END"}),
        ("VALUES (1, 2)", {}),
    ],
)  # fmt: skip
def test_select_items_have_the_text_as_written(query: str, texts: dict[str, str]) -> None:
    made = compiled({"a.sql": f"{RAW}{query};"})
    source = made.by_id.get("p@sources/a.sql")
    if source is None:  # columns without names of their own
        made = compiled({"a.sql": f"{RAW.replace('VIEW p', 'VIEW p (x, y)')}{query};"})
        source = made.by_id["p@sources/a.sql"]
    assert source.query is not None
    assert items(source.query).texts == texts


def test_column_names_of_a_view_apply_to_its_select_items() -> None:
    made = compiled({"a.sql": f"{RAW.replace('VIEW p', 'VIEW p (x, y)')}SELECT a, -b FROM t;"})
    query = made.by_id["p@sources/a.sql"].query
    assert query is not None
    assert items(query).texts == {"x": "a", "y": "-b"}


def test_the_line_of_a_column_is_that_of_its_expression() -> None:
    made = project("\n  SELECT a,\n    b + 1\n      AS b\n  FROM t")
    p = made.by_id["p@sources/a.sql"]
    assert (p.location.line, line_of(p, "a"), line_of(p, "b"), line_of(p, "?")) == (4, 5, 6, 4)
