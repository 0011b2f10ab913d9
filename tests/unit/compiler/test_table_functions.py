"""SQL functions that return tables are inlined as subqueries of the calling queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.compiled import loaded, sound, text_of

from persist_assets.core.errors import SourcesError

if TYPE_CHECKING:
    from pathlib import Path


TABLE = "CREATE TABLE t (n INT, price DOUBLE, day DATE) USING parquet LOCATION 'data/t';\n"
SINCE = """
CREATE FUNCTION since(d DATE, least INT DEFAULT 1) RETURNS TABLE (day DATE, m BIGINT)
  RETURN SELECT day, sum(n) FROM t WHERE day >= d AND n > since.least GROUP BY day;
DECLARE VARIABLE first_day DATE DEFAULT '2024-01-01';
CREATE FUNCTION twice(x INT) RETURNS INT RETURN x + x;
"""


def view(query: str, name: str = "v") -> str:
    return f"--@ persist\nCREATE VIEW {name} AS\n{query};\n"


def inlined(d: str, least: str = "1") -> str:
    return (
        "(SELECT CAST(`day` AS date) AS `day`, CAST(`m` AS bigint) AS `m` FROM (SELECT day, sum(n) "
        f"FROM t WHERE day >= CAST({d} AS date) AND n > CAST({least} AS int) GROUP BY day) "
        "AS `since`(`day`, `m`))"
    )


FIRST = "CAST('2024-01-01' AS date)"


@pytest.mark.proves("W29")
@pytest.mark.parametrize(
    ("query", "meaning"),
    [
        ("SELECT m FROM since(first_day)", f"SELECT m FROM {inlined(FIRST)} AS `since`"),
        (
            "SELECT since.m FROM since(DATE'2024-02-01', 3)",
            "SELECT since.m FROM " + inlined("DATE'2024-02-01'", "3") + " AS `since`",
        ),
        (
            "SELECT x.b FROM since(least => twice(2), d => '2024-02-01') AS x(a, b)",
            "SELECT x.b FROM "
            + inlined("'2024-02-01'", "CAST(CAST(2 AS int) + CAST(2 AS int) AS int)")
            + " AS x(a, b)",
        ),
        (
            "WITH x AS (SELECT * FROM since(first_day) z) SELECT n FROM t WHERE n IN (SELECT m FROM x)",
            f"WITH x AS (SELECT * FROM {inlined(FIRST)} z) SELECT n FROM t WHERE n IN (SELECT m FROM x)",
        ),
        (
            "SELECT a.m FROM t JOIN (SELECT m FROM since(first_day)) a ON a.m = t.n",
            f"SELECT a.m FROM t JOIN (SELECT m FROM {inlined(FIRST)} AS `since`) a ON a.m = t.n",
        ),
    ],
)  # fmt: skip
def test_a_call_in_from_becomes_a_subquery_with_the_declared_columns(
    tmp_path: Path, query: str, meaning: str
) -> None:
    project = sound(tmp_path, f=SINCE, q=TABLE + view(query))
    assert text_of(project, "v") == meaning
    called = {s.name: s.build_id for s in project.persisted}
    written = sound(tmp_path, f="", q=TABLE + view(meaning))
    assert {s.name: s.build_id for s in written.persisted} == called


@pytest.mark.proves("W29")
def test_a_source_depends_on_the_tables_that_its_functions_read(tmp_path: Path) -> None:
    """Functions call functions; names are resolved in the file of the function."""
    a = TABLE + "CREATE FUNCTION f(x INT) RETURNS TABLE (n INT) RETURN SELECT n FROM t WHERE n > x;"
    b = (
        "CREATE TABLE t (k INT) USING parquet LOCATION 'data/u';\n"
        "CREATE FUNCTION g(y INT) RETURNS TABLE (m INT) RETURN SELECT n AS m FROM f(y);\n"
        + view("SELECT m, k FROM g(2) JOIN t ON k = m")
    )
    project = sound(tmp_path, a=a, b=b)
    (v,) = project.persisted
    assert {project.by_id[s].key for s in v.bindings} == {"a/t", "b/t"}
    edited = loaded(tmp_path, a=a.replace("n > x", "n >= x")).project
    assert edited.persisted[0].build_id != v.build_id
    assert {edited.by_id[s].key for s in edited.persisted[0].bindings} == {"a/t", "b/t"}
    restored = loaded(tmp_path, a=a.replace("n > x", "n /* of t */ > x")).project
    assert restored.persisted[0].build_id == v.build_id


@pytest.mark.proves("W29")
def test_errors_in_a_functions_query_are_reported_in_its_file(tmp_path: Path) -> None:
    text = "\nCREATE FUNCTION f(x INT) RETURNS TABLE (a INT)\n  RETURN SELECT {} AS a FROM {};"
    call = TABLE + view("SELECT a FROM f(1)")
    assert errors(tmp_path, f=text.format("nope", "t"), q=call)[0].startswith(
        "sources/f.sql:3:17: error: `nope` is not a column"
    )
    assert errors(tmp_path, f=text.format("n", "nope"), q=call) == [
        "sources/f.sql:3:29: error: unknown source `nope` [unknown-name]"
    ]


def errors(root: Path, **files: str) -> list[str]:
    return [str(p).split("\n")[0] for p in loaded(root, **files).project.errors]


CALLS = [
    ("SELECT m FROM t, since(t.day)", "24: error: an argument of `since` reads the column `t.day`"),
    ("SELECT m FROM t JOIN since(day) ON true", "28: error: an argument of `since` reads the col"),
    ("SELECT m FROM t LATERAL VIEW since(day) x AS m", "30: error: `since` returns a table"),
    (
        "WITH T AS (SELECT 1 AS n) SELECT m FROM since(first_day), t",
        "41: error: `since` reads `t`, a common table expression here [function]",
    ),
    ("SELECT m FROM since(current_date)", "21: error: `current_date` could be a column here"),
    ("SELECT m FROM since((SELECT max(day) FROM t))", "21: error: `since` uses `d` for each row"),
    (
        "SELECT m FROM since(date_add(first_day, int(rand() * 9)))",
        "21: error: `since` uses `d` for each row, and `rand` might have another value each time",
    ),
    ("SELECT m FROM since(first_day) TABLESAMPLE (1 ROWS)", "15: error: rows of `since` cannot be"),
    ("SELECT since(first_day) AS x FROM t", "8: error: `since` returns a table [function]"),
    ("SELECT m FROM twice(1)", "15: error: `twice` returns a value [function]"),
    ("SELECT m FROM since()", "15: error: `since` takes 2 arguments, not 0 [argument-count]"),
    ("SELECT m FROM since(e => 1)", "15: error: `since` has no parameter `e` [argument-count]"),
]


@pytest.mark.proves("W29")
@pytest.mark.parametrize(("query", "message"), CALLS)
def test_calls_that_cannot_be_inlined_safely_are_rejected(
    tmp_path: Path, query: str, message: str
) -> None:
    (problem,) = loaded(tmp_path, f=SINCE, q=TABLE + view(query)).project.errors
    assert str(problem).startswith(f"sources/q.sql:4:{message}"), problem


BODIES = [
    ("TABLE", "SELECT * FROM t", "the columns of `f` have no certain names"),
    ("TABLE", "SELECT current_date FROM t", "the columns of `f` have no certain names"),
    ("TABLE (a INT)", "SELECT n FROM (SELECT s.x, n FROM u) WHERE x > 1", "`x` can mean a col"),
    ("TABLE (a INT)", "FROM u |> SELECT s.x, n |> WHERE x > 2 |> SELECT n", "`x` can mean a col"),
    ("TABLE (a INT)", "SELECT n FROM (SELECT n, v:x FROM u) WHERE x > 2", "`x` can mean a column"),
    ("TABLE", "SELECT n + 1 FROM t", "the columns of `f` have no certain names"),
    ("TABLE", "SELECT n, price AS N FROM t", "the columns of `f` have no certain names"),
    ("TABLE (a INT)", "SELECT n AS a FROM t f", "`f` is also a name in its own query"),
    ("TABLE (a INT)", "SELECT n AS x FROM t WHERE n > x", "`x` can mean a column here, or the"),
    ("TABLE (a INT)", "SELECT a FROM explode(array(1)) AS e(a) WHERE a > x", "`x` can mean a col"),
    ("TABLE (a INT)", "SELECT n FROM (SELECT x, n FROM t)", "the parameter `x` needs a name here"),
    ("TABLE (a INT)", "SELECT m FROM (SELECT twice(n), n AS m FROM t)", "of `twice` needs a name"),
    ("TABLE (a INT)", "SELECT n FROM t WHERE n > :watermark", "may use its parameters only"),
    ("TABLE (a INT)", "SELECT a FROM f(1)", "`f` calls itself: f → f"),
    ("TABLE (a INT)", "SELECT n FROM t, since(t.day)", "an argument of `since` reads the column"),
    ("TABLE (a INT)", "SELECT n, n FROM t", "`f` returns 1 column, but its query has 2"),
    ("TABLE (a INT)", "SELECT n, n FROM t UNION SELECT 1, 2", "1 column, but its query has 2"),
    ("TABLE (a INT)", "n + 1", "expected a query"),
]


@pytest.mark.proves("W29")
@pytest.mark.parametrize(("returns", "body", "message"), BODIES)
def test_invalid_and_ambiguous_queries_of_functions_are_rejected(
    tmp_path: Path, returns: str, body: str, message: str
) -> None:
    text = f"\nCREATE FUNCTION f(x INT) RETURNS {returns} RETURN {body};"
    (problem,) = errors(tmp_path, f=SINCE + text, q=TABLE + view("SELECT a FROM f(1)"))
    assert message in problem
    assert problem.startswith("sources/f.sql:7:")


@pytest.mark.proves("W29")
def test_a_parameter_with_the_name_of_a_column_must_be_qualified(
    tmp_path: Path,
) -> None:
    text = "CREATE FUNCTION f(n INT) RETURNS TABLE (a INT)\n  RETURN SELECT price FROM t WHERE day > {};"
    call = TABLE + "CREATE TABLE u (x INT) USING parquet LOCATION 'data/u';\n"
    call += view("SELECT a FROM f(1)")
    (problem,) = loaded(tmp_path, f=text.format("n"), q=call).project.errors
    assert str(problem).split("\n")[0] == (
        "sources/f.sql:2:42: error: `n` means a parameter here, or a column of `t` [function]"
    )
    assert problem.hint == "for the parameter, write f.n"
    with pytest.raises(SourcesError, match="`n` means a parameter here, or a column of `t`"):
        loaded(tmp_path, q=TABLE).parse("SELECT a FROM f(1)")
    project = sound(tmp_path, f=text.format("f.n"), q=call)
    assert "WHERE day > CAST(1 AS int)" in text_of(project, "v")
    # A column of a table that only the calling query reads has no effect.
    other = text.replace("f(n INT)", "f(x INT)").format("x")
    project = sound(tmp_path, f=other, q=call + view("SELECT a, u.x FROM f(1), u", "w"))
    assert "WHERE day > CAST(1 AS int)" in text_of(project, "w")


@pytest.mark.proves("W29")
def test_parameters_are_ambiguous_if_columns_are_unknown(tmp_path: Path) -> None:
    python = "from persist_assets import table\n\n@table\ndef p(t):\n    return t\n"
    text = "CREATE FUNCTION f(x INT) RETURNS TABLE (a INT) RETURN SELECT n FROM p WHERE n > x;\n"
    query = TABLE + view("SELECT a FROM f(1)")
    (problem,) = loaded(tmp_path, f=text, p_py=python, q=query).project.errors
    assert "whose columns are unknown until it is computed" in problem.message
    assert problem.location.path == "sources/f.sql"


@pytest.mark.proves("W29")
def test_columns_take_precedence_over_variables_in_a_functions_query(tmp_path: Path) -> None:
    text = SINCE + (
        "CREATE FUNCTION f() RETURNS TABLE (a INT) RETURN SELECT n FROM t WHERE day > {};\n"
    )
    query = view("SELECT a FROM f()")
    project = sound(tmp_path, f=text.format("first_day"), q=TABLE + query)
    assert f"day > {FIRST}" in text_of(project, "v")
    other = TABLE.replace("day DATE", "day DATE, first_day DATE")
    project = sound(tmp_path, f=text.format("first_day"), q=other + query)
    assert "day > first_day" in text_of(project, "v")
    project = sound(tmp_path, f=text.format("session.first_day"), q=other + query)
    assert f"day > {FIRST}" in text_of(project, "v")


@pytest.mark.proves("W29")
def test_columns_after_table_may_be_those_of_the_query(tmp_path: Path) -> None:
    text = "CREATE FUNCTION f(x INT) RETURNS TABLE RETURN SELECT t.n, price + f.x AS `p q` FROM t;"
    project = sound(tmp_path, f=text, q=TABLE + view("SELECT n, `p q` AS p FROM f(2)"))
    assert text_of(project, "v") == (
        "SELECT n, `p q` AS p FROM (SELECT `n`, `p q` FROM"
        " (SELECT t.n, price + CAST(2 AS int) AS `p q` FROM t) AS `f`(`n`, `p q`)) AS `f`"
    )
    columns = next(s for s in project.persisted if s.name == "v").columns
    assert [c.type for c in columns] == ["int", "double"]
