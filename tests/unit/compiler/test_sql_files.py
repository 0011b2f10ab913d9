"""Parsing SQL files into declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_assets.compiler.frontends.sql import parse_query, parse_sql
from persist_assets.core.errors import SourcesError

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Declaration


def one(text: str) -> Declaration:
    declarations, problems = parse_sql(text, "sources/a.sql")
    assert not problems, [str(p) for p in problems]
    assert len(declarations) == 1
    return declarations[0]


def problems(text: str) -> list[str]:
    return [str(p).split("\n")[0] for p in parse_sql(text, "sources/a.sql")[1]]


def test_statements_get_the_comments_and_annotations_above_them() -> None:
    declarations, wrong = parse_sql(
        "-- About this file.\n\n"
        "--@ persist\n"
        "-- Daily\n"
        "-- numbers.\n"
        "--@ group=g\n"
        "CREATE VIEW a AS -- not this\nSELECT 1 AS x; -- nor this\n"
        "/* A\n * table. */\n"
        "CREATE TABLE b (x INT) USING parquet LOCATION 'p';\n"
        "-- far away\n\n"
        "CREATE VIEW c AS SELECT 2 AS y",
        "sources/a.sql",
    )
    assert not wrong
    a, b, c = declarations
    assert (a.name, a.annotation.persist, a.annotation.group) == ("a", True, "g")
    assert a.description == "Daily\nnumbers."
    assert b.description == "A\ntable."
    assert c.description is None
    assert [d.location.line for d in declarations] == [7, 11, 14]


@pytest.mark.parametrize(
    "head", ["CREATE VIEW", "create local view", "CREATE OR REPLACE VIEW", "CREATE TEMPORARY VIEW"]
)
def test_every_kind_of_view_is_a_source(head: str) -> None:
    declaration = one(f"{head} v AS SELECT 1 AS a")
    assert (declaration.raw, declaration.name, declaration.materialized) == (
        None,
        "v",
        False,
    )


def test_a_materialized_view_is_persisted() -> None:
    assert one("CREATE MATERIALIZED VIEW v AS SELECT 1 AS a").materialized


def test_the_text_of_a_query_is_stored_as_written() -> None:
    query = one("CREATE VIEW v AS\n  select  A -- why\n from   T ;\n").query
    assert query is not None
    assert query.text == "select  A -- why\n from   T"


def test_references_are_tables_other_than_ctes() -> None:
    query = one(
        "CREATE VIEW v AS WITH q AS (SELECT * FROM a), r AS (SELECT * FROM q) "
        "SELECT /*+ BROADCAST(c) */ * FROM r JOIN x.`b` ON true, c AS d TABLESAMPLE (5 ROWS) "
        "WHERE EXISTS (SELECT 1 FROM q) AND k IN (SELECT k FROM e TABLESAMPLE (10 PERCENT))"
    ).query
    assert query is not None
    assert [r.parts for r in query.references] == [("a",), ("x", "b"), ("c",), ("e",)]
    for reference in query.references:
        written = query.text[reference.start : reference.end].replace("`", "")
        assert written == ".".join(reference.parts)
    assert [r.alias_at is None for r in query.references] == [False, False, True, False]
    last = query.references[-1]
    assert last.alias_at is not None
    assert query.text[: last.alias_at].endswith("(10 PERCENT)")


def test_a_cte_is_not_visible_before_it_is_defined() -> None:
    query = one(
        "CREATE VIEW v AS WITH a AS (SELECT * FROM b), b AS (SELECT 1 AS x) SELECT * FROM a"
    ).query
    assert query is not None
    assert [r.parts for r in query.references] == [("b",)]


def test_a_view_may_name_its_columns() -> None:
    declaration = one("CREATE VIEW v (a COMMENT 'first', b) COMMENT 'what' AS SELECT 1, 2")
    assert declaration.query is not None
    assert declaration.query.column_names == ("a", "b")
    assert declaration.columns[0].description == "first"
    assert declaration.description == "what"


def test_a_raw_table_declares_format_options_columns_and_location() -> None:
    declaration = one(
        "CREATE TABLE t (a INT COMMENT 'x', s STRUCT<aB: INT, c: ARRAY<DEC(3)>>, v VARCHAR(3)) "
        "USING CSV OPTIONS (header true, 'sep' = ';', maxColumns 3) LOCATION 'data/t'"
    )
    assert declaration.raw is not None
    assert (declaration.raw.format, declaration.raw.location) == ("csv", "data/t")
    assert declaration.raw.options == (("header", "true"), ("maxcolumns", "3"), ("sep", ";"))
    assert [c.type for c in declaration.columns] == [
        "int",
        "struct<aB:int,c:array<decimal(3,0)>>",
        "varchar(3)",
    ]


def test_the_path_option_is_the_location() -> None:
    declaration = one("CREATE TABLE t USING json OPTIONS (path 'x')")
    assert declaration.raw is not None
    assert declaration.raw.location == "x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "CREATE VIEW v AS SELECT CASE WHEN a = 1 'x' END AS b FROM t;",
            "sources/a.sql:1:30: error: this WHEN has no THEN [syntax]",
        ),
        (
            "CREATE VIEW v AS SELECT (a FROM x",
            "sources/a.sql:1:25: error: this bracket is not closed before `FROM` [syntax]",
        ),
        (
            "CREATE VIEW v AS SELECT CAST(a AS INT FROM x",
            "sources/a.sql:1:29: error: this bracket is not closed [syntax]",
        ),
        (
            "CREATE VIEW v AS SELECT trim(a, 'b' FROM x",
            "sources/a.sql:1:29: error: this bracket is not closed [syntax]",
        ),
        ("CREATE VIEW v AS\n SELECT 'abc", "sources/a.sql:2:9: error: ' is not closed [syntax]"),
        ("SELECT /* abc", "sources/a.sql:1:8: error: /* is not closed [syntax]"),
        ("CREATE VIEW v AS", "sources/a.sql:1:15: error: a view needs AS and a query [syntax]"),
        ("SELECT 1", "sources/a.sql:1:1: error: `SELECT` does not declare a source [statement]"),
        ("DROP TABLE t", "sources/a.sql:1:1: error: `DROP` does not declare a source [statement]"),
        (
            "CREATE VIEW `a;b` AS SELECT 1 AS x",
            "sources/a.sql:1:13: error: invalid source name `a;b` [name]",
        ),
        (
            "CREATE VIEW `a'b` AS SELECT 1 AS x",
            "sources/a.sql:1:13: error: invalid source name `a'b` [name]",
        ),
        (
            "CREATE VIEW a.b AS SELECT 1 AS x",
            "sources/a.sql:1:15: error: the source name `b` has a qualifier [name]",
        ),
        (
            "CREATE VIEW v AS INSERT INTO x SELECT 1",
            "sources/a.sql:1:18: error: expected a query [syntax]",
        ),
        (
            "CREATE TABLE t (a INT)",
            "sources/a.sql:1:14: error: `t` has no data format [raw-format]",
        ),
        (
            "CREATE TABLE t USING delta",
            "sources/a.sql:1:14: error: `t` has no location [raw-location]",
        ),
        (
            "CREATE TABLE t USING delta LOCATION 'x' AS SELECT 1 AS a",
            "sources/a.sql:1:14: error: a raw table describes data that already exists [statement]",
        ),
        (
            "CREATE TABLE t (a STRING COLLATE UTF8_LCASE) USING csv LOCATION 'x'",
            "sources/a.sql:1:26: error: collations are not supported [type]",
        ),
        (
            "CREATE VIEW v AS SELECT * FROM t VERSION AS OF 3",
            "sources/a.sql:1:32: error: a source cannot read another source at a given version [time-travel]",
        ),
        (
            "--@ persist\n",
            "sources/a.sql:1:1: error: this annotation is not attached to anything [annotation-dangling]",
        ),
        (
            "CREATE VIEW v AS SELECT --@ persist\n 1 AS a",
            "sources/a.sql:1:25: error: this annotation is not attached to anything [annotation-dangling]",
        ),
        (
            "CREATE VIEW v AS SELECT 1 AS a; --@ persist\n",
            "sources/a.sql:1:33: error: this annotation is not attached to anything [annotation-dangling]",
        ),
        (
            "--@ group=g\n;",
            "sources/a.sql:1:1: error: this annotation is not attached to anything [annotation-dangling]",
        ),
        (
            "-- @persist\nCREATE VIEW v AS SELECT 1 AS a",
            "sources/a.sql:1:1: warning: this comment looks like an annotation but is not one [annotation-almost]",
        ),
        (
            "--@ freshness.window=1h\nCREATE VIEW v AS SELECT 1 AS a",
            "sources/a.sql:1:5: error: `freshness` has no effect on a source that is not persisted [annotation-misplaced]",
        ),
        (
            "--@ persist\nCREATE TABLE t USING delta LOCATION 'x'",
            "sources/a.sql:1:5: error: `persist` has no effect on a raw table [annotation-misplaced]",
        ),
    ],
)
def test_each_problem_has_a_location_and_a_message(text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_all_problems_of_a_file_are_reported_together() -> None:
    assert (
        len(
            problems(
                "CREATE VIEW a AS SELECT (; CREATE VIEW b AS SELECT 1 AS x; SELECT 2; --@ presist\n"
            )
        )
        == 3
    )


def test_annotations_in_strings_and_comments_are_ignored() -> None:
    text = "/* --@ persist */ CREATE VIEW v AS SELECT '--@ persist' AS a /* --@ x */ FROM t"
    assert one(text).annotation.persist is None


def test_a_broken_source_still_defines_its_name() -> None:
    declarations, _ = parse_sql(
        "CREATE VIEW a AS SELECT (; CREATE VIEW b AS SELECT * FROM a", "a.sql"
    )
    assert [d.name for d in declarations] == ["a", "b"]
    assert declarations[0].query is None


@pytest.mark.parametrize(
    "text", ["", "DROP TABLE x", "SELECT 1; SELECT 2", "INSERT INTO t SELECT 1", "SELECT ("]
)
def test_an_ad_hoc_query_must_be_a_single_query(text: str) -> None:
    with pytest.raises(SourcesError):
        parse_query(text)


def test_an_ad_hoc_query_has_references() -> None:
    assert [r.parts for r in parse_query("SELECT * FROM a JOIN b.c;").references] == [
        ("a",),
        ("b", "c"),
    ]


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser(text: str) -> None:
    _, wrong = parse_sql(text, "a.sql")
    assert all(p.location.line >= 1 and p.location.column >= 1 for p in wrong)


COMMENTED = """
SELECT count(*) n FROM t GROUP|BY GROUPING|SETS|((a), (k)) ORDER|BY n NULLS|LAST
SELECT sum(a) OVER|(PARTITION|BY k ORDER|BY a ROWS|BETWEEN UNBOUNDED|PRECEDING AND CURRENT|ROW) s FROM t
SELECT a FROM t UNION|ALL SELECT a FROM u EXCEPT|ALL SELECT a FROM t
SELECT t.a FROM t LEFT|OUTER|JOIN u ON t.k = u.k LEFT|ANTI|JOIN w ON t.k = w.k CROSS|JOIN w x NATURAL|JOIN w y
SELECT a FROM t WHERE a IS|NOT|NULL AND k IS|NOT|DISTINCT|FROM a AND NOT|EXISTS|(SELECT 1 FROM u)
SELECT a FROM t WHERE a NOT|IN (1) AND a NOT|BETWEEN 1 AND 2 AND b NOT|LIKE 'x -- y /* z */'
SELECT a FROM t SORT|BY a
SELECT a FROM t DISTRIBUTE|BY a
SELECT a FROM t CLUSTER|BY a
SELECT /*+ BROADCAST(u) */|t.a FROM t JOIN u ON t.k = u.k LATERAL|VIEW|OUTER explode(arr) e AS x
SELECT listagg(b) WITHIN|GROUP (ORDER|BY b) x, count(*) FILTER|(WHERE a > 1) y, DATE|'2024-01-01' z FROM t
SELECT a, count(*) n FROM t GROUP|BY a WITH|ROLLUP
""".strip().splitlines()


@pytest.mark.parametrize(
    "comment", ["/**/", " /* x /* y */ */ ", " -- x\n", "--\n", "/*\n*/-- 'y\r\n"]
)
@pytest.mark.parametrize("query", COMMENTED, ids=lambda q: q[:40])
def test_a_comment_may_replace_any_whitespace(query: str, comment: str) -> None:
    commented = one("CREATE VIEW v AS " + query.replace("|", comment)).query
    blank = one("CREATE VIEW v AS " + query.replace("|", " ")).query
    assert commented is not None
    assert blank is not None
    assert commented.tree == blank.tree
    assert commented.text == query.replace("|", comment)


def test_comments_do_not_change_locations() -> None:
    query = "SELECT a /* é\n x */ FROM t GROUP -- y\r\n BY /* z */ )"
    assert problems(f"-- up here\nCREATE VIEW v AS {query}")[0].startswith("sources/a.sql:4:13: ")
    declaration = one("--@ persist\n-- What.\nCREATE VIEW v AS SELECT a FROM /* x */ t -- y\n")
    assert declaration.annotation.persist
    assert declaration.description == "What."
    assert declaration.query is not None
    assert declaration.query.references[0].location.column == 40


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM t -- C:\\\nWHERE a > 1",
        "SELECT a FROM t GROUP -- \\\n BY a",
        "SELECT a /* /*+ x */ , b -- */\nFROM t",
    ],
)
def test_a_comment_that_spark_would_end_elsewhere_is_rejected(query: str) -> None:
    (problem,) = parse_sql(f"CREATE VIEW v AS\n{query}", "sources/a.sql")[1]
    assert (problem.code, problem.location.line) == ("comment", 2)


@pytest.mark.parametrize(
    "text",
    [
        "-- C:\\\nCREATE VIEW v AS SELECT a FROM t",
        "CREATE VIEW v AS SELECT a FROM t -- C:\\\n",
        "CREATE VIEW v AS SELECT a FROM t -- C:\\ \n WHERE a > 1",
        "CREATE VIEW v AS SELECT '-- \\\n' AS x FROM t /* /* */ */ WHERE a > 1",
    ],
)
def test_a_comment_that_spark_ends_as_expected_is_accepted(text: str) -> None:
    assert one(text).query is not None
