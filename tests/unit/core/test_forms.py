"""Constructs of Spark SQL that sqlglot parses differently, or that were once misread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

TABLE = (
    "CREATE TABLE t (s STRING, k INT, ts TIMESTAMP, a INT, st STRUCT<a: INT, b: STRING>)"
    " USING parquet LOCATION 't';\n"
)


def source(query: str, table: str = TABLE) -> Source:
    made = compiled({"t.sql": table, "q.sql": f"--@ persist\nCREATE VIEW q AS {query}"})
    assert not made.errors, [str(p) for p in made.errors]
    return made.by_id["q@sources/q.sql"]


def is_whole(one: Source) -> bool:
    return any("treated as a whole" in note for note in one.notes)


@pytest.mark.proves("S15")
@pytest.mark.parametrize("call", ["window(ts, '15 minutes')", "session_window(ts, '5 minutes')"])
def test_time_windows_are_grouping_keys(call: str) -> None:
    name = call.partition("(")[0]
    quoted = call.replace(name, f"`{name}`")
    same = [
        f"SELECT {name}.start AS x, k, count(*) AS n FROM t GROUP BY {call}, k",
        f"SELECT {name}.start AS x, k, count(*) AS n FROM t GROUP BY k, {call}",
        f"SELECT {call}.start AS x, k, count(*) AS n FROM t GROUP BY {quoted}, k",
        f"SELECT w.start AS x, k, n FROM"
        f" (SELECT {call} AS w, k, count(*) AS n FROM t GROUP BY {call}, k)",
    ]
    made = [source(query) for query in same]
    assert not any(map(is_whole, made))
    assert len({one.build_id for one in made}) == 1
    sliding = source(same[0].replace("minutes')", "minutes', '1 minute')"))
    assert sliding.build_id != made[0].build_id


@pytest.mark.proves("S15")
@pytest.mark.parametrize(
    "query",
    [
        # Unlike columns, they drop rows without a time, and can turn one row into several.
        "SELECT a FROM (SELECT a, window(ts, '1 hour') AS w FROM t)",
        "SELECT a FROM (SELECT DISTINCT a, window(ts, '2 hours', '1 hour') AS w FROM t)",
        "SELECT k, max(window(ts, '1 hour').start) AS x FROM t GROUP BY k, window(ts, '1 hour')",
        "SELECT count(*) AS n FROM t WHERE window(ts, '1 hour').start > TIMESTAMP '2024-01-01'",
        "SELECT count(*) AS n FROM t GROUP BY ROLLUP (window(ts, '1 hour'))",
    ],
)
def test_time_windows_elsewhere_are_not_analyzed_as_columns(query: str) -> None:
    assert is_whole(source(query))


@pytest.mark.proves("S15")
def test_window_can_be_a_column_name_or_begin_a_clause() -> None:
    table = "CREATE TABLE t (window STRUCT<start: INT>, k INT) USING parquet LOCATION 't';"
    a = source("SELECT window, count(*) AS n FROM t GROUP BY window", table)
    b = source("SELECT `window`, count(*) AS n FROM t GROUP BY `window`", table)
    assert a.build_id == b.build_id
    c = source("SELECT sum(k) OVER w AS x FROM t WINDOW w AS (ORDER BY k)")
    assert c.build_id == source("SELECT sum(k) OVER (ORDER BY k) AS x FROM t").build_id


@pytest.mark.proves("S15")
def test_user_is_a_function_unless_a_column_has_that_name() -> None:
    one = source("SELECT s, user AS u FROM t")
    assert one.volatile
    assert one.build_id == source("SELECT s, user() AS u FROM t").build_id
    assert not source(
        "SELECT user FROM t", "CREATE TABLE t (user STRING) USING parquet LOCATION 't';"
    ).volatile


@pytest.mark.proves("S15")
def test_a_star_over_a_struct_expands_to_its_fields() -> None:
    one = source("SELECT k, st.* FROM t")
    assert [(c.name, c.type) for c in one.columns] == [("k", "int"), ("a", "int"), ("b", "string")]
    assert one.build_id == source("SELECT k, st.a, t.st.b FROM t").build_id
    assert source("SELECT st.* EXCEPT (a) FROM t").build_id == source("SELECT st.b FROM t").build_id
    aliased = source("SELECT st.* FROM t AS st JOIN t AS u ON st.k = u.k")
    assert [c.name for c in aliased.columns] == ["s", "k", "ts", "a", "st"]


@pytest.mark.proves("S15")
@pytest.mark.parametrize(
    ("starred", "written"),
    [
        ("* EXCEPT (st.a)", "s, k, ts, a, struct(st.b AS b) AS st, deep"),
        ("t.* EXCEPT (t.st.A, t.k)", "s, ts, a, struct(st.b AS b) AS st, deep"),
        ("st.* EXCEPT (a)", "st.b"),
        ("deep.* EXCEPT (x.p)", "struct(deep.x.q AS q) AS x, deep.y"),
        ("deep.x.* EXCEPT (p)", "deep.x.q"),
        (
            "* EXCEPT (deep.x.p, st)",
            "s, k, ts, a, struct(struct(deep.x.q AS q) AS x, deep.y AS y) AS deep",
        ),
    ],
)
def test_except_of_a_field_leaves_the_rest_of_the_struct(starred: str, written: str) -> None:
    table = TABLE.replace(">)", ">, deep STRUCT<x: STRUCT<p: INT, q: STRING>, y: INT>)")
    nested, explicit = (source(f"SELECT {text} FROM t", table) for text in (starred, written))
    assert not is_whole(nested)
    assert nested.build_id == explicit.build_id
    within = "SELECT count(*) AS n FROM (SELECT DISTINCT {} FROM t)"
    nested, explicit = (source(within.format(text), table) for text in (starred, written))
    assert nested.build_id == explicit.build_id


@pytest.mark.proves("S15")
@pytest.mark.parametrize("names", ["st.a, st", "st.a, st.a", "k, k", "st.z", "k.a"])
def test_except_that_spark_rejects_is_not_analyzed(names: str) -> None:
    assert is_whole(source(f"SELECT * EXCEPT ({names}) FROM t"))


@pytest.mark.proves("W6")
@pytest.mark.parametrize("name", ["z", "u.k"])
def test_except_of_an_unknown_column_is_an_error(name: str) -> None:
    with pytest.raises(AssertionError, match=f"`{name}` is not among the columns of this star"):
        source(f"SELECT * EXCEPT ({name}) FROM t")


@pytest.mark.proves("S15")
def test_order_by_after_distinct_may_qualify_columns() -> None:
    one = source("SELECT DISTINCT a, k FROM t ORDER BY k, a DESC LIMIT 3").build_id
    for query in (
        "SELECT DISTINCT t.a, t.k FROM t ORDER BY t.k, t.a DESC LIMIT 3",
        "SELECT DISTINCT (x.a), k FROM t AS x ORDER BY x.k, a DESC LIMIT 3",
    ):
        assert source(query).build_id == one
    starred = source("SELECT DISTINCT t.* FROM t ORDER BY t.k LIMIT 3").build_id
    assert starred == source("SELECT DISTINCT * FROM t ORDER BY k LIMIT 3").build_id
    with pytest.raises(AssertionError, match="`t` is not a table"):
        source("SELECT DISTINCT t.a AS a FROM t ORDER BY t.a")


@pytest.mark.proves("S15")
def test_values_in_parentheses_may_have_an_alias() -> None:
    one = source("SELECT x, y FROM VALUES (1, 2), (3, 4) AS v(x, y)").build_id
    for values in (
        "(VALUES (1, 2), (3, 4) AS t(x, y)) u",
        "(VALUES (1, 2), (3, 4) AS t(x, y))",
        "(VALUES (1, 2), (3, 4) t(x, y)) AS u",
        "(VALUES (1, 2), (3, 4) AS t(y, z)) AS u(x, y)",
    ):
        assert source(f"SELECT x, y FROM {values}").build_id == one
    assert source("SELECT y AS x, x AS y FROM (VALUES (1, 2), (3, 4) t(x, y)) u").build_id != one
    limited = "SELECT x, y FROM (VALUES (1, 2), (3, 4) t(x, y) ORDER BY x LIMIT 1) u"
    assert source(limited).build_id != one
    assert source("SELECT a FROM t WHERE a IN (VALUES (1), (2) AS v(x))").columns


@pytest.mark.proves("S15")
def test_a_doubled_quote_in_a_comment_is_one_quote() -> None:
    table = "CREATE TABLE t (a INT COMMENT 'Customer''s, own') USING parquet LOCATION 't' COMMENT 'it''s';"
    made = compiled(
        {"t.sql": table, "q.sql": "CREATE VIEW q (a COMMENT 'the a''s') COMMENT 'q''s' AS SELECT a FROM t"}
    )  # fmt: skip
    assert not made.errors
    by_name = {s.name: s for s in made.sources}
    assert by_name["t"].description == "it's"
    assert by_name["q"].description == "q's"
    assert [c.description for c in by_name["t"].columns] == ["Customer's, own"]
    assert [c.description for c in by_name["q"].columns] == ["the a's"]
