"""Which rows and columns of tables programs need; what is pushed past what, and what is not."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import permutations
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pytest
import sqlglot
from conftest import ROOT, compilation_of
from pushing import PATH, TABLES, Writer, coverage_of, fill, hunt, needs_of, short
from pushing import RAW as RANDOM_RAW
from test_rules import without

import persist_assets.meaning.predicates as p
from persist_assets.compiler import resolve_query
from persist_assets.frontends.sql import parse_query
from persist_assets.meaning import binder, pushdown
from persist_assets.meaning.pushdown import Need

RAW = """
CREATE TABLE t (id BIGINT, kind STRING, usr INT, ts TIMESTAMP, d DATE, amt DECIMAL(10,2), f DOUBLE,
  g FLOAT, ok BOOLEAN, n TIMESTAMP_NTZ, `odd name` INT) USING parquet LOCATION 't';
CREATE TABLE u (usr INT, name STRING, since TIMESTAMP, w INT) USING parquet LOCATION 'u';
CREATE VIEW a AS SELECT usr, ts AS at, kind AS sort, id + 1 AS more FROM t WHERE kind = 'a';
CREATE VIEW days AS SELECT date_trunc('day', ts) AS day, usr, count(*) AS c FROM t GROUP BY 1, 2;
CREATE VIEW drawn AS SELECT id, usr, rand() AS r FROM t WHERE kind = 'a';
CREATE VIEW few AS SELECT id, kind FROM t WHERE usr > 3 ORDER BY id LIMIT 5;
CREATE VIEW firsts AS
  SELECT * FROM (SELECT id, usr, ts, row_number() OVER (PARTITION BY usr ORDER BY ts) AS r FROM t)
  WHERE r = 1;
CREATE VIEW both AS
  SELECT 't' AS src, usr, amt AS v FROM t UNION ALL SELECT 'u' AS src, usr, w AS v FROM u;
--@ persist
CREATE VIEW kept AS SELECT usr, kind FROM t WHERE usr > 0;
"""
ALL = "all rows"


def needs(query: str) -> dict[str, Need]:
    """Return by table what a persisted source of this query needs."""
    found = needs_of(f"{RAW}--@ persist\nCREATE VIEW q AS {query};")
    return {table: need for (reader, table), need in found.items() if reader == "q"}


def said(query: str) -> dict[str, list[str]]:
    return {t: [p.as_text(d.predicate) for d in n.disjuncts] for t, n in needs(query).items()}


SHAPES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "filter": ("SELECT id FROM t WHERE kind = 'a' AND usr > 3", {"t": ["kind = 'a' AND usr > 3"]}),
    "inlined view": (
        "SELECT usr FROM a WHERE at >= NOW() - INTERVAL 6 MONTHS AND more > 3",
        {"t": ["kind = 'a' AND ts >= NOW() - INTERVAL 6 MONTHS"]},
    ),
    "persisted source": ("SELECT usr FROM kept WHERE kind = 'a'", {}),
    "CTE": (
        "WITH c AS (SELECT usr AS x FROM t WHERE ok) SELECT x FROM c WHERE x IN (1, 2)",
        {"t": ["ok = TRUE AND usr IN (1, 2)"]},
    ),
    "inner join": (
        "SELECT t.id FROM t JOIN u ON t.usr = u.usr AND u.w > 3 WHERE t.kind = 'a'",
        {"t": ["kind = 'a'"], "u": ["w > 3"]},
    ),
    "self-join": (
        "SELECT x.id FROM t x JOIN t y ON x.id = y.id AND x.kind = 'a' WHERE y.kind = 'b'",
        {"t": ["kind = 'a'", "kind = 'b'"]},
    ),
    "or over two tables": (
        "SELECT t.id FROM t JOIN u ON t.usr = u.usr WHERE t.id = 1 AND u.w = 2 OR t.id = 3",
        {"t": ["id IN (1, 3)"], "u": ["TRUE"]},
    ),
    "left join": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 7"
        " WHERE t.kind = 'a'",
        {"t": ["kind = 'a'"], "u": ["w > 3"]},
    ),
    "null side": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr WHERE u.w IS NULL",
        {"t": ["TRUE"], "u": ["TRUE"]},
    ),
    "null side, rejecting": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr WHERE u.w > 3 OR u.name = 'x'",
        {"t": ["TRUE"], "u": ["name = 'x' OR w > 3"]},
    ),
    "constant of the null side": (
        "SELECT t.id FROM t LEFT JOIN (SELECT usr, 1 AS one FROM u) v ON t.usr = v.usr"
        " WHERE v.one IS NULL",
        {"t": ["TRUE"], "u": ["TRUE"]},
    ),
    "right join": (
        "SELECT u.w FROM t RIGHT JOIN u ON t.usr = u.usr AND t.kind = 'a' AND u.w = 1"
        " WHERE u.name = 'x'",
        {"t": ["kind = 'a'"], "u": ["name = 'x'"]},
    ),
    "full join": (
        "SELECT t.id FROM t FULL JOIN u ON t.usr = u.usr AND u.w > 3 WHERE t.kind IS NULL",
        {"t": ["TRUE"], "u": ["TRUE"]},
    ),
    "semi join": (
        "SELECT id FROM t LEFT SEMI JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 5 WHERE ok",
        {"t": ["id > 5 AND ok = TRUE"], "u": ["w > 3"]},
    ),
    "anti join": (
        "SELECT id FROM t LEFT ANTI JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 5 WHERE ok",
        {"t": ["ok = TRUE"], "u": ["w > 3"]},
    ),
    "subqueries": (
        "SELECT id FROM t WHERE kind = 'a' AND usr IN (SELECT usr FROM u WHERE w > 1)"
        " AND amt > (SELECT max(amt) FROM t WHERE kind = 'b')",
        {"t": ["kind = 'a'", "kind = 'b'"], "u": ["w > 1"]},
    ),
    "groups": (
        "SELECT day FROM days WHERE day >= TIMESTAMP '2024-01-05 00:00:00' AND usr = 7 AND c > 3",
        {
            "t": [
                "date_trunc('day', ts) >= TIMESTAMP '2024-01-05 00:00:00'"
                " AND ts >= TIMESTAMP '2024-01-05 00:00:00' AND usr = 7"
            ]
        },
    ),
    "one group": (
        "SELECT c FROM (SELECT count(*) AS c FROM t WHERE ok) WHERE c > 3",
        {"t": ["ok = TRUE"]},
    ),
    "grouping sets": (
        "SELECT usr FROM (SELECT usr, kind, count(*) AS c FROM t"
        " GROUP BY GROUPING SETS ((usr, kind), (usr))) WHERE usr = 3 AND kind IS NULL",
        {"t": ["usr = 3"]},
    ),
    "distinct": (
        "SELECT usr FROM (SELECT DISTINCT usr, kind FROM t) WHERE kind = 'a'",
        {"t": ["kind = 'a'"]},
    ),
    "union all": (
        "SELECT v FROM both WHERE src = 't' AND usr BETWEEN 1 AND 3",
        {"t": ["usr <= 3 AND usr >= 1"], "u": ["FALSE"]},
    ),
    "a column of several types": ("SELECT v FROM both WHERE v = 3", {"t": ["TRUE"], "u": ["TRUE"]}),
    "except": (
        "SELECT usr FROM (SELECT usr FROM t EXCEPT SELECT usr FROM u WHERE w > 2) WHERE usr = 1",
        {"t": ["TRUE"], "u": ["w > 2"]},
    ),
    "limit": ("SELECT id FROM few WHERE kind = 'a'", {"t": ["usr > 3"]}),
    "window": (
        "SELECT id FROM firsts WHERE ts >= TIMESTAMP '2024-01-01 00:00:00' AND usr = 7",
        {"t": ["usr = 7"]},
    ),
    "window over a filter": (
        "SELECT id, sum(amt) OVER (PARTITION BY usr) AS s FROM t WHERE kind = 'a'",
        {"t": ["kind = 'a'"]},
    ),
    "two windows": (
        "SELECT id FROM (SELECT id, usr, kind, count(*) OVER (PARTITION BY usr) AS x,"
        " count(*) OVER (PARTITION BY usr, kind) AS y FROM t) WHERE x > y AND usr = 1 AND kind = 'a'",
        {"t": ["usr = 1"]},
    ),
    "a window nobody reads": (
        "SELECT id FROM (SELECT id, kind, count(*) OVER () AS c FROM t) WHERE kind = 'a'",
        {"t": ["kind = 'a'"]},
    ),
    "a window of what is joined later": (
        "SELECT x.c FROM (SELECT usr, count(*) OVER () AS c FROM t) x JOIN u ON x.usr = u.usr"
        " WHERE u.w = 1 AND x.usr = 2",
        {"t": ["TRUE"], "u": ["usr = 2 AND w = 1"]},
    ),
    "partitions by a function": (
        "SELECT id FROM (SELECT id, ts, count(*) OVER (PARTITION BY CAST(ts AS DATE)) AS c FROM t)"
        " WHERE c > 1 AND CAST(ts AS DATE) = DATE '2024-02-29' AND ts > '2024-02-29 12:00:00'",
        {
            "t": [
                "CAST(ts AS DATE) = DATE '2024-02-29' AND ts < TIMESTAMP '2024-03-01 00:00:00'"
                " AND ts >= TIMESTAMP '2024-02-29 00:00:00'"
            ]
        },
    ),
    "generated rows": (
        "SELECT id FROM t LATERAL VIEW explode(array(1, usr)) e AS x WHERE x = 1 AND kind = 'a'",
        {"t": ["kind = 'a'"]},
    ),
    "lots": (
        "SELECT b FROM (SELECT id AS b, rand() AS r FROM t WHERE usr = 1) WHERE b = 3 AND r > 0.5",
        {"t": ["usr = 1"]},
    ),
    "lots of a view": ("SELECT id FROM drawn WHERE usr = 3", {"t": ["kind = 'a'"]}),
    "UDF": ("SELECT id FROM t WHERE my_udf(id) AND kind = 'a'", {"t": ["kind = 'a'"]}),
    "UDF in ON": (
        "SELECT t.id FROM t JOIN u ON t.usr = u.usr AND my_udf(w) > 3 AND w = 2",
        {"t": ["TRUE"], "u": ["w = 2"]},
    ),
    # It may be an aggregate, or make several rows of one.
    "UDF in a column": ("SELECT my_udf(usr) AS x FROM t WHERE usr = 1", {"t": ["TRUE"]}),
    "not analysed": (
        "SELECT id FROM t TABLESAMPLE (10 ROWS) WHERE kind = 'a'",
        {"t": ["TRUE"]},
    ),
    "what may raise": (
        "SELECT id FROM t WHERE CAST(kind AS INT) > 3 AND 1 / usr > 2 AND id + 1 = 3 AND amt > 1.5"
        " AND EXTRACT(SECOND FROM ts) = 3",
        {"t": ["amt > 1.5"]},
    ),
    "a function": ("SELECT id FROM t WHERE lower(kind) = 'a' AND usr = 1", {"t": ["usr = 1"]}),
    "all rows": ("SELECT count(*) AS c FROM t", {"t": ["TRUE"]}),
    "implicit casts": (
        "SELECT id FROM t WHERE ts >= '2024-01-05' AND d < '2024-02-01' AND f > 2 AND g = 0.1"
        " AND n < TIMESTAMP '2024-01-01 00:00:00' AND kind > 3",
        {
            "t": [
                "CAST(g AS DOUBLE) = 0.1D AND CAST(n AS TIMESTAMP) < TIMESTAMP '2024-01-01 00:00:00'"
                " AND d < DATE '2024-02-01' AND f > 2.0D AND ts >= TIMESTAMP '2024-01-05 00:00:00'"
            ]
        },
    ),
    "a text that is no time": (
        "SELECT id FROM t WHERE ts >= '5 Jan 2024' AND d = '2024-02-30'",
        {"t": ["TRUE"]},
    ),
    "days and instants": (
        "SELECT id FROM t WHERE d >= NOW() - INTERVAL 6 MONTHS",
        {
            "t": [
                "CAST(d AS TIMESTAMP) >= NOW() - INTERVAL 6 MONTHS"
                " AND d >= CAST(NOW() - INTERVAL 6 MONTHS AS DATE) - INTERVAL 1 DAYS"
            ]
        },
    ),
    "year": (
        "SELECT id FROM t WHERE year(ts) = 2024",
        {
            "t": [
                "ts < TIMESTAMP '2025-01-01 00:00:00' AND ts >= TIMESTAMP '2024-01-01 00:00:00'"
                " AND year(ts) = 2024"
            ]
        },
    ),
    "up to a month": (
        "SELECT id FROM t WHERE trunc(d, 'MM') <= DATE '2024-02-01'",
        {"t": ["d < DATE '2024-03-01' AND trunc(d, 'month') <= DATE '2024-02-01'"]},
    ),
    "NULL": (
        "SELECT id FROM t WHERE usr IN (1, NULL, 2) AND kind IS NOT NULL AND (f IS NULL OR f <= 1D)"
        " AND NOT (ok IS TRUE) AND d <=> DATE '2024-01-01'",
        {
            "t": [
                "d = DATE '2024-01-01' AND (f <= 1.0D OR f IS NULL) AND kind IS NOT NULL"
                " AND (ok <> TRUE OR ok IS NULL) AND usr IN (1, 2)"
            ]
        },
    ),
    "never": (
        "SELECT id FROM t WHERE usr NOT IN (1, NULL) AND kind = 'a'",
        {"t": ["FALSE"]},
    ),
    "negations": (
        "SELECT id FROM t WHERE NOT (usr = 1 OR kind LIKE 'a%') AND NOT (id < 3 AND f > 1D)",
        {"t": ["(f <= 1.0D OR id >= 3) AND kind NOT LIKE 'a%' AND usr <> 1"]},
    ),
    "equal keys": (
        "SELECT t.id FROM t JOIN u ON t.usr = u.usr WHERE u.usr > 5 AND u.w = 1",
        {"t": ["usr > 5"], "u": ["usr > 5 AND w = 1"]},
    ),
    "equal keys of a semi join": (
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.usr = t.usr AND u.usr > 5)",
        {"t": ["usr > 5"], "u": ["usr > 5"]},
    ),
    "keys that are equal and not the same": (
        "SELECT x.id FROM t x JOIN t y ON x.f = y.f AND x.amt = y.amt WHERE x.f > 1D AND y.amt > 1",
        {"t": ["amt > 1", "amt > 1 AND f > 1.0D"]},
    ),
    "equal keys and a window": (
        "SELECT x.c FROM (SELECT usr, id, count(*) OVER (PARTITION BY usr) AS c FROM t) x"
        " JOIN u ON x.usr = u.usr AND x.id = u.w WHERE u.w = 1 AND u.usr = 2",
        {"t": ["usr = 2"], "u": ["usr = 2 AND w = 1"]},
    ),
    "two zeros": (
        "SELECT id FROM t WHERE f NOT IN (0D, 1D) AND f NOT IN (2D, 3D)",
        {"t": ["f <> 2.0D AND f <> 3.0D"]},
    ),
    "patterns": (
        "SELECT id FROM t WHERE kind NOT LIKE 'a%' AND NOT kind LIKE 'b%'"
        " AND NOT (kind NOT LIKE '%c') AND kind LIKE '%d' ESCAPE '/'",
        {"t": ["kind LIKE '%c' AND kind NOT LIKE 'a%' AND kind NOT LIKE 'b%'"]},
    ),
    "digits": (
        "SELECT id FROM t WHERE amt IN (1.5, 12345678901234567890123456789.5)"
        " AND amt IN (1.5, 0.1234567890123456789012345678901)",
        {"t": ["amt = 1.5 OR amt = 12345678901234567890123456789.5"]},
    ),
    "days without a zone": (
        "SELECT id FROM t WHERE n > DATE '2018-11-04'",
        {"t": ["n > TIMESTAMP_NTZ '2018-11-04 00:00:00'"]},
    ),
    "days that began twice": (
        "SELECT id FROM t WHERE CAST(ts AS DATE) <= DATE '2009-10-31'",
        {
            "t": [
                "CAST(ts AS DATE) <= DATE '2009-10-31'"
                " AND ts < TIMESTAMP '2009-11-01 00:00:00' + INTERVAL 1 DAYS"
            ]
        },
    ),
    "hours that begin late": (
        "SELECT id FROM t WHERE date_trunc('hour', ts) >= TIMESTAMP '2024-09-29 04:00:00'",
        {
            "t": [
                "date_trunc('hour', ts) >= TIMESTAMP '2024-09-29 04:00:00'"
                " AND ts >= TIMESTAMP '2024-09-29 04:00:00' - INTERVAL 1 DAYS"
            ]
        },
    ),
    "quotes": (
        r"SELECT id FROM t WHERE kind IN ('it''s', 'a\\b', 'say \'x\'') AND `odd name` = 1",
        {"t": [r"`odd name` = 1 AND kind IN ('a\\b', 'it\'s', 'say \'x\'')"]},
    ),
}
"""Queries, with the predicates of the places in which they read tables."""


@pytest.mark.proves("F4")
@pytest.mark.proves("F6")
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_query_needs_of_its_tables(shape: str) -> None:
    query, expected = SHAPES[shape]
    assert said(query) == expected


COLUMNS: dict[str, tuple[str, dict[str, str]]] = {
    "filter": ("SELECT id FROM t WHERE kind = 'a'", {"t": "id kind"}),
    "nothing but rows": ("SELECT count(*) AS c FROM t", {"t": ""}),
    "unused of a view": ("SELECT usr FROM a", {"t": "kind usr"}),
    "join": ("SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr", {"t": "id usr", "u": "usr"}),
    "exists": (
        "SELECT id FROM t WHERE EXISTS (SELECT name FROM u WHERE u.w = t.usr)",
        {"t": "id usr", "u": "w"},
    ),
    "window": ("SELECT r FROM firsts", {"t": "ts usr"}),
    "order of a limit": ("SELECT kind FROM few", {"t": "id kind usr"}),
    "keys": ("SELECT c FROM days", {"t": "ts usr"}),
    "one of the aggregates": (
        "SELECT x FROM (SELECT max(id) AS x, max(ts) AS y FROM t)",
        {"t": "id"},
    ),
    "distinct": ("SELECT usr FROM (SELECT DISTINCT usr, kind FROM t)", {"t": "kind usr"}),
    "union all": ("SELECT usr FROM both", {"t": "usr", "u": "usr"}),
    "except": (
        "SELECT usr FROM (SELECT usr, kind FROM t EXCEPT SELECT usr, name FROM u)",
        {"t": "kind usr", "u": "name usr"},
    ),
    "generated": ("SELECT x FROM t LATERAL VIEW explode(array(1, usr)) e AS x", {"t": "usr"}),
    "correlated below groups": (
        "SELECT (SELECT max(v) FROM (SELECT w + t.id AS v FROM u)) AS m FROM t",
        {"t": "id", "u": "w"},
    ),
    "UDF": ("SELECT w FROM u WHERE my_udf(name)", {"u": "name w"}),
    "not analysed": ("SELECT w FROM u TABLESAMPLE (10 ROWS)", {"u": "name since usr w"}),
}


@pytest.mark.proves("F3")
@pytest.mark.parametrize("shape", COLUMNS)
def test_which_columns_a_query_needs(shape: str) -> None:
    query, expected = COLUMNS[shape]
    assert {table: " ".join(need.columns) for table, need in needs(query).items()} == expected


KEPT: dict[str, tuple[str, str]] = {
    "UDF": ("UDF", "my_udf(id): my_udf() is not one of Spark's own functions"),
    "UDF in ON": ("UDF", "my_udf(w) > 3: my_udf() is not one of Spark's own functions"),
    "UDF in a column": ("UDF", "because of the function my_udf, which is not one of Spark's own"),
    "not analysed": ("not analysed", "treated as a whole because of TABLESAMPLE"),
    "limit": ("limit above", "kind = 'a': a LIMIT takes its rows before"),
    "null side": ("null side", "w IS NULL: it holds of rows that are not joined"),
    "left join": ("null side", "id > 7: rows that do not fulfil ON are kept"),
    "full join": ("full join", "kind IS NULL: above a FULL JOIN"),
    "window": (
        "window",
        "ts >= TIMESTAMP '2024-01-01 00:00:00': row_number() OVER (…) looks at rows without it",
    ),
    "what may raise": (
        "may raise under ANSI",
        "CAST(kind AS INT) > 3: CAST(kind AS INT) may raise an error",
    ),
    "implicit casts": (
        "may raise under ANSI",
        "kind > 3: int compared with string may raise an error or change either",
    ),
    "a function": ("function", "lower(kind) = 'a': lower(kind) is not among what is pushed"),
    "inner join": ("two tables", "usr = usr: it compares with other rows"),
    "subqueries": (
        "subquery",
        "usr in (SELECT …): it asks another query: joins are not pushed as semi-joins",
    ),
    "groups": ("aggregate", "count() > 3: it is about an aggregate"),
    "grouping sets": (
        "grouping set",
        "kind IS NULL: it is about a key that not every grouping set has",
    ),
    "except": ("set operation", "usr = 1: it is about the rows of EXCEPT"),
    "a column of several types": ("type", "v = 3: the type of v is not certain"),
    "lots": ("draws lots", "id = 3: what it is about draws lots"),
    "all rows": (ALL, "no condition of this place: all rows are read by q@sources/m.sql"),
}


@pytest.mark.proves("F7")
@pytest.mark.proves("F9")
@pytest.mark.parametrize("shape", KEPT)
def test_what_is_not_pushed_is_told_with_its_reason(shape: str) -> None:
    code, words = KEPT[shape]
    kept = [k for need in needs(SHAPES[shape][0]).values() for k in need.kept]
    assert any(k.code == code and k.words.endswith(words) for k in kept), kept


def test_a_function_of_python_is_given_all_rows_of_what_it_is_given() -> None:
    face = pushdown.leaf("t@x", [("a", "int"), ("b", None)])
    relation = pushdown.opaque([face], "it is a function")
    (need,) = pushdown.find_needs("f@x", {"f@x": relation}, {"t@x"})
    assert (need.predicate, need.columns) == (p.TRUE, ("a", "b"))
    assert [k.code for k in need.kept] == [ALL, "not analysed"]


# --------------------------------------------------------------------------------- rules that bite

Search, Reader = pushdown._Search, pushdown._Reader
RULES: list[tuple[str, Callable[..., Any], str, str]] = [
    ("window", Search._block, "if blind:", "if False:"),
    ("window over a filter", pushdown._sees, "if condition in seen:", "if not seen:"),
    ("two windows", pushdown._sees, "return covered(condition)", "return True"),
    ("partitions by a function", pushdown._sees, "term in partition or", "False or"),
    ("a window of what is joined later", pushdown._sees, "if instance not in now.values()", "if not instance"),
    ("limit", Search._node, 'asked = _without(reader, columns, asked, "limit above", why)', "pass"),
    ("lots of a view", Search._given, "elif relation.volatile:", "elif False:"),
    ("lots", Search._node, 'asked = _without(reader, columns, asked, "draws lots", why)', "pass"),
    ("null side", Search._outer, "if _rejects_nulls(second):", "if True:"),
    ("null side, rejecting", Search._outer, "if _rejects_nulls(second):", "if False:"),
    ("left join", Search._outer, "_about(set(map(str, inside[1])))", "_about(set())"),
    ("full join", Search._outer, 'if node.kind != "left":\n            why', 'if node.kind == "x":\n            why'),
    ("grouping sets", Search._aggregate, "node.sets is None or", "True or"),
    ("groups", Search._aggregate, "_about(set(map(str, fixed)))", "_about(set())"),
    ("except", Search._set_operation, 'asked = _without(reader, exprs, asked, "set operation", why)', "pass"),
    ("a column of several types", binder._set_operation, "a.type if a.type == b.type else None", "a.type"),
    ("subqueries", Search._subqueries, "self._visit(reader, block, (), used, frozenset())", "pass"),
    ("anti join", Reader.predicate, "if not negate:", "if True:"),
    ("or over two tables", p.weakened, "return some(weakened(a, keep) for a in term.args)", "return every(weakened(a, keep) for a in term.args)"),
    ("NULL", pushdown._exactly, "*nulls", "*nulls[:0]"),
    ("never", Reader._in, "if negate:\n                return FALSE", "if negate:\n                continue"),
    ("negations", Reader.predicate, "negate=not negate", "negate=negate"),
    ("implicit casts", pushdown._of_text, "return (one, made) if made is not None else None", "return one, other"),
    ("a text that is no time", p.time_literal, "if found is None:\n        return None", "if found is None:\n        return Term(kind, (), (text,))"),
    ("days and instants", pushdown._each_way, "p.shifted_date(limit, -1)", "limit"),
    ("year", pushdown._bounds, "(year, year + 1)", "(year, year)"),
    ("up to a month", pushdown._cut_down, "p.next_first(day, unit)", "p.next_first(day, 'day')"),
    ("constant of the null side", Search._outer, "self._visit(reader, node.left", "self._visit(reader, node.right"),
    ("what may raise", pushdown._cast, "return None", "return term, wanted"),
]  # fmt: skip
"""A shape, the function that has its rule, a part of its text, and what to put there."""


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r[0])
def test_a_shape_comes_out_differently_once_its_rule_is_gone(
    rule: tuple[str, Callable[..., Any], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, function, text, instead = rule
    query, expected = SHAPES[shape]
    broken = without(function, text, instead)
    monkeypatch.setattr(function, "__code__", broken)
    assert said(query) != expected


# ------------------------------------------------------------------------------- whole programs

DOCUMENT = """
CREATE TABLE external_table (id BIGINT NOT NULL, category STRING, ts TIMESTAMP)
  USING parquet LOCATION 'x';
--@ persist
create view v1 as select * from external_table
where
category = 'invoices' and
ts >= NOW() - INTERVAL 6 months;
"""
SECOND = """
--@ persist
create view v2 as select * from external_table
where
category = 'deposits' and
ts >= NOW() - INTERVAL 12 months;
"""
F1 = "category = 'invoices' AND ts >= NOW() - INTERVAL 6 MONTHS"
F2 = "category = 'deposits' AND ts >= NOW() - INTERVAL 12 MONTHS"


@pytest.mark.proves("F20")
def test_the_example_of_the_document_gives_its_filters() -> None:
    tables = ["external_table"]
    before = coverage_of(DOCUMENT, tables)["external_table"]
    assert (before.predicate, before.columns) == (F1, ("category", "id", "ts"))
    needs = needs_of(DOCUMENT + SECOND, tables)
    by_reader = {reader: p.as_text(n.predicate) for (reader, _), n in needs.items()}
    assert by_reader == {"v1": F1, "v2": F2}
    both = coverage_of(DOCUMENT + SECOND, tables)["external_table"]
    assert both.predicate == f"{F2} OR {F1}"
    assert both.term == p.from_text(f"{F1} OR {F2}")
    # What is read when the second view is added.
    missing = p.difference(p.from_text(F2), p.from_text(F1))
    assert p.as_text(missing) == f"({F1}) IS NOT TRUE AND {F2}"


@pytest.mark.proves("F12")
def test_a_program_needs_what_its_readers_need_and_no_more() -> None:
    def predicate(*conditions: str) -> str:
        views = "".join(
            f"--@ persist\nCREATE VIEW q{i} AS SELECT id FROM t WHERE {c};\n"
            for i, c in enumerate(conditions)
        )
        return coverage_of(RAW.replace("--@ persist\n", "") + views)["t"].predicate

    assert predicate("usr = 1", "kind = 'a'", "usr = 1") == "kind = 'a' OR usr = 1"
    assert predicate("usr = 1", "kind = 'a' AND usr = 1") == "usr = 1"
    assert predicate("usr > 3", "usr > 5 AND ok", "usr >= 3") == "usr >= 3"
    # Not less than all of it: none of these holds the other.
    assert predicate("usr > 3", "usr < 2 AND ok") == "ok = TRUE AND usr < 2 OR usr > 3"
    assert predicate("usr = 1", "1 = 1") == "TRUE"
    assert predicate("usr = 1", "usr = 2 AND ok") == "ok = TRUE AND usr = 2 OR usr = 1"


@pytest.mark.proves("F8")
def test_a_view_in_between_narrows_what_is_read() -> None:
    query = "SELECT kind, count(*) AS n FROM {} GROUP BY kind"
    assert said(query.format("t")) == {"t": ["TRUE"]}
    assert said(query.format("a").replace("kind", "sort")) == {"t": ["kind = 'a'"]}


def test_chains_of_sources_are_gone_through_one_by_one() -> None:
    views = "".join(f"CREATE VIEW v{i + 1} AS SELECT k FROM v{i};\n" for i in range(200))
    text = f"{RANDOM_RAW}CREATE VIEW v0 AS SELECT k FROM t;\n{views}--@ persist\n"
    found = coverage_of(f"{text}CREATE VIEW q AS SELECT k FROM v200 WHERE k = 3;")
    assert found["t"].predicate == "k = 3"


@pytest.mark.parametrize(("n", "expected"), [(30, "k > 0"), (60, "TRUE")])
def test_sources_that_read_the_last_one_twice_do_not_double_the_work(n: int, expected: str) -> None:
    views = "".join(
        f"CREATE VIEW v{i + 1} AS SELECT x.k FROM v{i} x LEFT JOIN v{i} y ON x.k = y.k"
        f" AND y.k > {i};\n"
        for i in range(n)
    )
    text = f"{RANDOM_RAW}CREATE VIEW v0 AS SELECT k FROM t;\n{views}--@ persist\n"
    found = needs_of(f"{text}CREATE VIEW q AS SELECT k FROM v{n} WHERE k = 3;")["q", "t"]
    assert p.as_text(found.predicate) == expected
    # Beyond so many ways to ask for one thing, all of it is asked for, and that is told.
    assert ("too many ways" in {k.code for k in found.kept}) == (expected == "TRUE")


@pytest.mark.proves("F10")
def test_a_predicate_has_one_text_in_every_process() -> None:
    script = (
        f"from test_pushdown import *\nprint(repr([coverage_of(RAW + q) for q in {_READERS!r}]))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-P", "-c", script],
            env=os.environ
            | {
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join(
                    (str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "unit"))
                ),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert "Coverage" in told.pop()


_READERS = [f"--@ persist\nCREATE VIEW q AS {query};" for query, _ in [*SHAPES.values()][:12]]


# ------------------------------------------------------------------------------------ predicates

TEXTS = [
    F1,
    f"{F2} OR {F1}",
    "TRUE",
    "FALSE",
    "(a = 1 OR b IS NULL) AND c NOT IN ('x', 'y')",
    "(a = 1) IS NOT TRUE AND b > -3",
    "CAST(f AS DOUBLE) > -1.5D AND f = 1e+300D",
    r"s IN ('a\\b', 'it\'s', 'line" + "\n" + r"two') AND t LIKE '100%'",
    "`odd name` = 1 AND `select` = 2 AND `tick``s` = 3",
    "d >= CAST(NOW() - INTERVAL 6 MONTHS AS DATE) - INTERVAL 1 DAYS",
    "date_trunc('day', ts) >= CURRENT_DATE() - INTERVAL 7 DAYS",
    "n > TIMESTAMP_NTZ '2024-01-01 00:00:00.5' AND ts < TIMESTAMP '2024-01-01 00:00:00+00:00'",
    "trunc(d, 'month') = DATE '2024-02-01' AND year(ts) = 2024",
    "a < b AND amt > 1.50",
    "ts < NOW() - INTERVAL 6 MONTHS + INTERVAL 3 HOURS",
]


@pytest.mark.proves("F10")
@pytest.mark.parametrize("text", TEXTS)
def test_a_predicate_is_read_as_what_was_written(text: str) -> None:
    assert p.as_text(p.from_text(text)) == text


@pytest.mark.parametrize(
    "text", ["", "a +", "a", "a = b + 1", "f(a) = 1", "a IN (SELECT 1)", "x.a = 1", "a = 1; b = 2"]
)
def test_what_the_language_cannot_say_is_refused(text: str) -> None:
    with pytest.raises(p.UnreadableError):
        p.from_text(text)


def test_a_predicate_of_another_format_is_refused() -> None:
    with pytest.raises(p.UnreadableError, match="format 2"):
        p.from_text("TRUE", 2)


IMPLIED = [
    ("a > 2", "a = 3"),
    ("a > 2", "a >= 3 AND b = 1"),
    ("a > 2", "a IN (3, 4)"),
    ("a > 2 OR b = 1", "b = 1 AND c = 2"),
    ("a > 2 OR b = 1", "(a = 5 OR b = 1) AND c = 2"),
    ("a <> 2", "a > 2"),
    ("a <> 2", "a NOT IN (1, 2)"),
    ("a IS NOT NULL", "a = 1"),
    ("a IS NOT NULL", "a NOT LIKE 'x%'"),
    ("ts IS NOT NULL", "year(ts) = 2024"),
    ("a IN (1, 2, 3)", "a IN (1, 3)"),
    ("a >= 1", "a > 1.5"),
    ("s > 'a'", "s = 'b'"),
    ("ts >= NOW() - INTERVAL 12 MONTHS", "ts >= NOW() - INTERVAL 6 MONTHS"),
    ("ts >= NOW() - INTERVAL 2 DAYS", "ts > NOW() - INTERVAL 1 DAYS"),
    ("ts >= NOW() - INTERVAL 2 HOURS", "ts = NOW()"),
    ("ts >= DATE '2024-01-01'", "ts >= DATE '2024-01-02'"),
    ("ts >= TIMESTAMP '2024-01-01 00:00:00'", "ts >= TIMESTAMP '2024-01-02 00:00:00'"),
    ("a = 1", "FALSE"),
    ("TRUE", "a = 1"),
]
NOT_IMPLIED = [
    ("a = 3", "a > 2"),
    ("a > 2", "a > 1"),
    ("a > 2", "b > 2"),
    ("a >= 3", "a > 2"),  # 2.5, in a column of decimals
    ("a = 1 OR b = 1", "a IS NOT NULL"),
    ("a <> 2", "a IS NULL"),
    ("a IS NOT NULL", "a IS NULL"),
    ("a IS NOT NULL", "(a = 1) IS NOT TRUE"),
    ("a > 2", "TRUE"),
    ("ts >= NOW() - INTERVAL 6 MONTHS", "ts >= NOW() - INTERVAL 12 MONTHS"),
    # 1 March less a month is not less than a time 30 days before it.
    ("ts >= NOW() - INTERVAL 1 MONTHS", "ts >= NOW() - INTERVAL 30 DAYS"),
    # A day back may be an hour less, or more, than 24.
    ("ts >= NOW() - INTERVAL 25 HOURS", "ts >= NOW() - INTERVAL 23 HOURS"),
    # Where clocks are put forward, the later text is the earlier instant.
    ("ts > TIMESTAMP '2024-03-10 02:30:00'", "ts > TIMESTAMP '2024-03-10 03:10:00'"),
    ("ts >= CURRENT_DATE()", "ts >= NOW()"),
]


@pytest.mark.parametrize(("coverage", "wanted"), IMPLIED)
def test_what_is_covered_is_known_to_be(coverage: str, wanted: str) -> None:
    assert p.implies(p.from_text(coverage), p.from_text(wanted))
    assert p.difference(p.from_text(wanted), p.from_text(coverage)) == p.FALSE


@pytest.mark.parametrize(("coverage", "wanted"), NOT_IMPLIED)
def test_what_may_not_be_covered_is_not_claimed_to_be(coverage: str, wanted: str) -> None:
    assert not p.implies(p.from_text(coverage), p.from_text(wanted))


def test_what_is_claimed_of_random_predicates_holds_of_rows() -> None:
    draw, connection = Random(7), duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    fill(connection, draw, 60)
    writer, columns = Writer(draw), list(TABLES["t"].items())
    now = dt.datetime(2024, 8, 31, 10, tzinfo=dt.UTC)
    conditions = [writer.condition(columns).replace("TODAY()", "CURRENT_DATE()") for _ in range(30)]
    text = RANDOM_RAW + "".join(
        f"--@ persist\nCREATE VIEW q{i} AS SELECT id FROM t WHERE {c};\n"
        for i, c in enumerate(conditions)
    )
    terms = [p.evaluated(n.predicate, now, dt.UTC) for n in needs_of(text).values()]
    terms += [p.every(draw.sample(terms, 2)) for _ in range(15)]
    terms += [p.some(draw.sample(terms, 2)) for _ in range(15)]
    rows = {t: _rows_where(connection, t) for t in set(terms)}
    claimed = 0
    for coverage, wanted in permutations(rows, 2):
        missing = p.difference(wanted, coverage)
        if missing == p.FALSE:
            claimed += 1
            assert rows[wanted] <= rows[coverage], f"{p.as_text(coverage)} | {p.as_text(wanted)}"
    assert claimed > 50
    for _ in range(30):
        some = draw.sample(list(rows), 3)
        one, other = some[:2]
        assert _rows_where(connection, p.union(some)) == frozenset().union(*(rows[s] for s in some))
        missing = p.difference(one, other)
        assert _rows_where(connection, missing) == rows[one] - rows[other]


def _rows_where(connection: duckdb.DuckDBPyConnection, term: p.Term) -> frozenset[int]:
    text = f"SELECT id FROM base_t WHERE {p.as_text(term)}"
    found = connection.execute(sqlglot.transpile(text, read="spark", write="duckdb")[0])
    return frozenset(i for (i,) in found.fetchall())


# ----------------------------------------------------------------------------------- the clock

NEW_YORK = ZoneInfo("America/New_York")
CLOCK = [
    # Ends of months, and leap days.
    ("NOW() - INTERVAL 6 MONTHS", "2024-08-31 10:00", "UTC", "2024-02-29 10:00:00+00:00"),
    ("NOW() - INTERVAL 6 MONTHS", "2023-08-31 10:00", "UTC", "2023-02-28 10:00:00+00:00"),
    ("NOW() - INTERVAL 12 MONTHS", "2024-02-29 00:00", "UTC", "2023-02-28 00:00:00+00:00"),
    ("NOW() + INTERVAL 1 MONTHS", "2024-12-31 10:00", "UTC", "2025-01-31 10:00:00+00:00"),
    ("NOW() - INTERVAL 1 MONTHS - INTERVAL 1 DAYS", "2024-03-31 10:00", "UTC", "2024-02-28 10:00:00+00:00"),
    # The month ends in New York when it has begun in UTC: 31 July there, less a month, is 30 June.
    ("NOW() - INTERVAL 1 MONTHS", "2024-08-01 02:00", "America/New_York", "2024-07-01 02:00:00+00:00"),
    # A day back is the same time of the day before: 23 hours, and 25.
    ("NOW() - INTERVAL 1 DAYS", "2024-03-10 16:00", "America/New_York", "2024-03-09 17:00:00+00:00"),
    ("NOW() - INTERVAL 1 DAYS", "2024-11-03 17:00", "America/New_York", "2024-11-02 16:00:00+00:00"),
    # Hours are hours while they make no day; of 25, a day is one of the calendar.
    ("NOW() - INTERVAL 23 HOURS", "2024-03-10 16:00", "America/New_York", "2024-03-09 17:00:00+00:00"),
    ("NOW() - INTERVAL 25 HOURS", "2024-03-10 16:00", "America/New_York", "2024-03-09 16:00:00+00:00"),
    # A time that clocks skipped is moved on; of two alike it is the one with the offset of now.
    ("NOW() - INTERVAL 1 DAYS", "2024-03-11 06:30", "America/New_York", "2024-03-10 07:30:00+00:00"),
    ("NOW() - INTERVAL 1 DAYS", "2024-11-04 06:30", "America/New_York", "2024-11-03 06:30:00+00:00"),
    ("NOW() + INTERVAL 1 DAYS", "2024-11-02 05:30", "America/New_York", "2024-11-03 05:30:00+00:00"),
    # Days of the session.
    ("date_trunc('day', NOW())", "2024-03-10 16:00", "America/New_York", "2024-03-10 05:00:00+00:00"),
    ("date_trunc('week', NOW())", "2024-03-10 16:00", "America/New_York", "2024-03-04 05:00:00+00:00"),
    ("date_trunc('quarter', NOW())", "2024-05-10 16:00", "UTC", "2024-04-01 00:00:00+00:00"),
    ("CAST(CURRENT_DATE() AS TIMESTAMP)", "2024-03-10 02:00", "America/New_York", "2024-03-09 05:00:00+00:00"),
    ("TIMESTAMP '2024-03-10 02:30:00'", "2024-01-01 00:00", "America/New_York", "2024-03-10 07:30:00+00:00"),
    ("TIMESTAMP '2024-11-03 01:30:00'", "2024-01-01 00:00", "America/New_York", "2024-11-03 05:30:00+00:00"),
]  # fmt: skip


@pytest.mark.proves("F5")
@pytest.mark.parametrize(("value", "now", "zone", "expected"), CLOCK)
def test_the_clock_is_put_in_with_the_arithmetic_of_calendars(
    value: str, now: str, zone: str, expected: str
) -> None:
    instant = dt.datetime.fromisoformat(now).replace(tzinfo=dt.UTC)
    term = p.from_text(f"ts >= {value}")
    found = p.evaluated(term, instant, ZoneInfo(zone))
    assert p.as_text(found) == f"ts >= TIMESTAMP '{expected}'"
    assert p.reads_clock(term) == ("TIMESTAMP '" not in value)
    assert not p.reads_clock(found)


@pytest.mark.proves("F5")
def test_days_of_the_clock_are_days_of_the_session() -> None:
    now = dt.datetime(2024, 8, 31, 2, tzinfo=dt.UTC)
    term = p.from_text(
        "d >= CURRENT_DATE() - INTERVAL 6 MONTHS AND trunc(d, 'month') < CURRENT_DATE()"
        " AND d <> CAST(NOW() - INTERVAL 1 DAYS AS DATE) OR (ts > NOW()) IS NOT TRUE"
    )
    assert p.as_text(p.evaluated(term, now, NEW_YORK)) == (
        "(ts > TIMESTAMP '2024-08-31 02:00:00+00:00') IS NOT TRUE OR d <> DATE '2024-08-29'"
        " AND d >= DATE '2024-02-29' AND trunc(d, 'month') < DATE '2024-08-30'"
    )


@pytest.mark.proves("F5")
@pytest.mark.parametrize(
    ("written", "pushed"),
    [
        ("NOW() - INTERVAL '6' MONTH", "NOW() - INTERVAL 6 MONTHS"),
        ("current_timestamp() - INTERVAL 1 YEAR", "NOW() - INTERVAL 12 MONTHS"),
        ("NOW() - INTERVAL 2 WEEKS", "NOW() - INTERVAL 14 DAYS"),
        ("NOW() - INTERVAL '1 day 2 hours'", "NOW() - INTERVAL 93600 SECONDS"),
        ("NOW()", "NOW()"),
        ("date_trunc('MONTH', NOW())", "date_trunc('month', NOW())"),
        ("CAST(current_date() - 30 AS TIMESTAMP)", "CAST(CURRENT_DATE() - INTERVAL 30 DAYS AS TIMESTAMP)"),
        ("CAST(add_months(current_date(), -6) AS TIMESTAMP)", "CAST(CURRENT_DATE() - INTERVAL 6 MONTHS AS TIMESTAMP)"),
        ("NOW() - INTERVAL 90000 YEARS", None),
        ("NOW() - make_interval(0, 6)", None),
        ("TIMESTAMP 'yesterday'", None),
    ],
)  # fmt: skip
def test_spellings_of_times_of_the_clock(written: str, pushed: str | None) -> None:
    expected = "TRUE" if pushed is None else f"ts >= {pushed}"
    assert said(f"SELECT id FROM t WHERE ts >= {written}") == {"t": [expected]}


def test_a_clock_that_goes_on_has_the_wider_of_its_bounds() -> None:
    days = [dt.datetime(2024, 8, d, 10, tzinfo=dt.UTC) for d in (29, 31)]

    def within(text: str) -> str:
        term = p.from_text(text)
        return p.as_text(p.evaluated_within(term, *days, dt.UTC)).replace(":00:00+00:00", "h")

    # The 29th, 30th and 31st less six months are one day, of which the 30th has the beginning.
    assert within("ts >= NOW() - INTERVAL 6 MONTHS") == "ts >= TIMESTAMP '2024-02-29 00h'"
    assert within("ts < NOW() - INTERVAL 6 MONTHS") == (
        "ts < TIMESTAMP '2024-02-29 23:59:59.999999+00:00'"
    )
    assert within("d > CURRENT_DATE() AND k = 1") == "d > DATE '2024-08-29' AND k = 1"
    assert within("d = CURRENT_DATE()") == "d <= DATE '2024-08-31' AND d >= DATE '2024-08-29'"
    assert within("d <> CURRENT_DATE() OR k = 1") == "TRUE"
    assert within("d <> date_trunc('month', NOW())") == "d <> TIMESTAMP '2024-08-01 00h'"
    assert within("k = hour(NOW()) AND k > 1") == "k > 1"
    assert within("k = year(NOW())") == "k = 2024"
    assert within("(ts < NOW()) IS NOT TRUE AND k = 1") == "k = 1"
    assert within("CURRENT_DATE() = DATE '2024-08-30'") == "TRUE"
    assert within("CURRENT_DATE() > DATE '2024-08-31'") == "FALSE"
    assert within("ts >= TIMESTAMP '2024-01-01 00:00:00'") == "ts >= TIMESTAMP '2024-01-01 00h'"


ZONES = [
    *("UTC", "America/New_York", "America/St_Johns", "Pacific/Chatham", "Australia/Lord_Howe"),
    *("America/Sao_Paulo", "America/Havana", "Pacific/Apia", "Africa/Cairo", "Asia/Kathmandu"),
]
MOVED = ["NOW()", "CURRENT_DATE()", "CAST(NOW() AS TIMESTAMP_NTZ)", "CAST(NOW() AS DATE)"]
SHIFTS = [
    "6 MONTHS",
    "1 MONTHS",
    "12 MONTHS",
    "240 MONTHS",
    "1 DAYS",
    "30 DAYS",
    "25 HOURS",
    "90 MINUTES",
]
AROUND = [
    "{}",
    "CAST({} AS DATE)",
    "CAST({} AS TIMESTAMP)",
    "CAST(CAST({} AS TIMESTAMP_NTZ) AS TIMESTAMP)",
]
AROUND += [f"date_trunc('{u}', CAST({{}} AS TIMESTAMP))" for u in ("hour", "day", "week", "month")]
AROUND += ["trunc({}, 'month')", "year({})"]


def _clock(draw: Random) -> str:
    base, shift = draw.choice(MOVED), draw.choice(SHIFTS)
    if draw.random() < 0.8 and (base != "CURRENT_DATE()" or shift.endswith(("MONTHS", "DAYS"))):
        base = f"{base} {draw.choice('+-')} INTERVAL {shift}"
    return draw.choice(AROUND).format(base)


def _told(term: p.Term) -> Any:
    """Return the value on the right of a comparison."""
    literal = term.args[1]
    found = p._comparable(literal)
    return found


@pytest.mark.proves("F5")
def test_no_instant_asks_for_more_than_all_of_them_together() -> None:
    draw, narrow = Random(5), 0
    for _ in range(1500):
        zone, text = ZoneInfo(draw.choice(ZONES)), _clock(draw)
        day = draw.choice(
            (
                "2024-08-29",
                "2024-03-09",
                "2024-03-30",
                "2024-11-02",
                "2026-10-31",
                "2025-09-27",
                "2028-02-28",
            )
        )
        first = dt.datetime.fromisoformat(day).replace(tzinfo=dt.UTC) + dt.timedelta(
            minutes=draw.randrange(2880)
        )
        last = first + dt.timedelta(minutes=draw.choice((1, 30, 90, 600, 1500, 3000, 60_000)))
        ends = [
            p.evaluated_within(p.from_text(f"x {op} {text}"), first, last, zone)
            for op in (">=", "<=")
        ]
        assert not any(map(p.reads_clock, ends)), text
        if p.TRUE in ends:
            continue
        least, most = map(_told, ends)
        spread = last - first
        for _ in range(12):
            now = draw.choice((first, last, first + spread * draw.random()))
            value = _told(p.evaluated(p.from_text(f"x = {text}"), now, zone))
            assert least <= value <= most, f"{text} {zone} {first} {last} {now}"
        narrow += 1
    assert narrow > 1300


# ------------------------------------------------------------------------------ random programs


@pytest.mark.proves("F3")
def test_random_programs_are_the_same_over_what_they_need() -> None:
    told = hunt(0, 200)
    assert told["programs"] > 180, told
    assert told["narrowed"] > 100, told
    assert told["needed"] < 0.8 * told["rows"], told


def test_a_table_that_nobody_asks_about_is_not_told_of() -> None:
    compilation = compilation_of({PATH: f"{RAW}--@ persist\nCREATE VIEW q AS SELECT usr FROM u;"})
    found = compilation.needs([f"t@sources/{PATH}"])
    assert [short(n.reader) for n in found] == ["kept"]


def test_a_query_that_stands_in_no_file_needs_what_a_source_would() -> None:
    compilation = compilation_of({PATH: RAW})
    query = parse_query("SELECT usr FROM a WHERE at > '2024-01-01' UNION ALL SELECT usr FROM kept")
    bindings = resolve_query(compilation.project, query)
    (need,) = compilation.needs_of(query, bindings, {f"t@sources/{PATH}"})
    assert p.as_text(need.predicate) == "kind = 'a' AND ts > TIMESTAMP '2024-01-01 00:00:00'"
    assert need.columns == ("kind", "ts", "usr")


PYTHON = """
from persist_assets import table

@table
def counted(t, u):
    return t.select("usr").join(u, "usr")
"""


def test_a_function_needs_all_rows_and_the_columns_that_it_selects() -> None:
    compilation = compilation_of({PATH: RAW, "f.py": PYTHON})
    assert not compilation.project.errors, compilation.project.errors
    found = compilation.needs([f"{name}@sources/{PATH}" for name in "tu"])
    asked = {short(n.table): n for n in found if short(n.reader) == "counted"}
    assert {t: n.columns for t, n in asked.items()} == {
        "t": ("usr",),
        "u": ("name", "since", "usr", "w"),
    }
    assert {p.as_text(n.predicate) for n in asked.values()} == {"TRUE"}
