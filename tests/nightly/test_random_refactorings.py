"""Random queries in equivalent or similar forms: equal BuildIDs have equal rows on Spark.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from soundness import build_id, difference, make_views, project, run


def of_in(text: str, expression: str = "({in})") -> str:
    """Return a text with an expression in place of the column `i`."""
    return re.sub(r"(?<!AS )\bi\b", expression, text)


CONDITIONS: Sequence[Sequence[str]] = (
    ("{i} > 1", "NOT ({i} <= 1)", "1 < {i}", "{i} > 1 AND TRUE", "{i} > 1 AND 1 = 1", "{i} >= 1"),
    ("{i} = 1 OR {j} = 2", "NOT ({i} <> 1 AND {j} <> 2)", "{i} <=> 1 OR {j} <=> 2"),
    ("NOT ({i} = 1 OR {j} > 2)", "{i} <> 1 AND {j} <= 2", "{i} <> 1 OR {j} <= 2"),
    ("{d} > '2024-01-01'", "{d} > DATE '2024-01-01'", "{d} > TIMESTAMP '2024-01-01'", "{d} > '2024-1-01'"),
    ("{d} BETWEEN '1970-01-01' AND '2024-01-31'", "{d} BETWEEN DATE '1970-01-01' AND DATE '2024-01-31'"),
    ("{t} < '2024-02-29 12:00:00'", "{t} < TIMESTAMP '2024-02-29 12:00:00'", "{t} < '2024-02-29'"),
    ("{t} = '2024-01-01'", "{t} = TIMESTAMP '2024-01-01'", "{t} = DATE '2024-01-01'", "{t} <=> '2024-01-01'"),
    ("{s} LIKE 'a%'", "startswith({s}, 'a')", "{s} LIKE 'a_%'", "{s} ILIKE 'a%'", "contains({s}, 'a')"),
    ("{s} LIKE ANY ('a%', '% ', 'B')", "{s} LIKE 'a%' OR {s} LIKE '% ' OR {s} LIKE 'B'", "{s} LIKE ALL ('a%', '% ', 'B')",
     "{s} NOT LIKE ANY ('a%', '% ', 'B')", "NOT ({s} LIKE ANY ('a%', '% ', 'B'))", "{s} NOT LIKE ALL ('a%', '% ', 'B')",
     "{s} NOT LIKE 'a%' AND {s} NOT LIKE '% ' AND {s} NOT LIKE 'B'", "NOT ({s} LIKE ALL ('a%', '% ', 'B'))"),
    ("{s} ILIKE ANY ('A%', NULL)", "{s} ILIKE 'A%' OR {s} ILIKE NULL", "{s} ILIKE ALL ('A%', NULL)", "NOT ({s} NOT ILIKE ALL ('A%', NULL))"),
    ("{s} LIKE '% '", "endswith({s}, ' ')", "{s} LIKE '%_ '", "endswith({s}, '_ ')", "startswith({s}, '')"),
    ("{i} IN (SELECT a FROM w WHERE z > 100)", "EXISTS (SELECT 1 FROM w WHERE z > 100 AND w.a = {i})",
     "{i} NOT IN (SELECT a FROM w WHERE z > 100)", "NOT EXISTS (SELECT 1 FROM w WHERE z > 100 AND w.a = {i})",
     "NOT ({i} IN (SELECT a FROM w WHERE z > 100))", "{i} = ANY (SELECT a FROM w WHERE z > 100)"),
    ("{i} IN (SELECT max(a) FROM w GROUP BY k)", "EXISTS (SELECT 1 FROM (SELECT max(a) AS m FROM w GROUP BY k) WHERE m = {i})",
     "EXISTS (SELECT max(a) AS m FROM w GROUP BY k HAVING max(a) = {i})"),
    ("{i} + 1 IN (SELECT k FROM w)", "EXISTS (SELECT 1 FROM w WHERE k = {i} + 1)", "{i} IN (SELECT k - 1 FROM w)"),
    ("{i} IN (SELECT bg FROM u)", "EXISTS (SELECT 1 FROM u WHERE bg = {i})"),
    ("{s} IN (SELECT b FROM u)", "EXISTS (SELECT 1 FROM u o WHERE o.b = {s})"),
    ("{f} IN (SELECT d FROM u)", "EXISTS (SELECT 1 FROM u o WHERE o.d = {f})"),
    ("{s} COLLATE UTF8_LCASE = 'A'", "collate({s}, 'UTF8_LCASE') = 'A'", "'A' = {s} COLLATE UTF8_LCASE", "{s} = 'A'", "lower({s}) = 'a'",
     "{s} COLLATE UNICODE_CI = 'A'", "{s} = 'A' COLLATE UTF8_LCASE", "NOT ({s} COLLATE UTF8_LCASE <> 'A')"),
    ("{s} COLLATE UTF8_LCASE IN ('A', 'B ')", "{s} COLLATE UTF8_LCASE = 'A' OR {s} COLLATE UTF8_LCASE = 'B '", "{s} IN ('A', 'B ')"),
    ("{s} COLLATE UTF8_LCASE LIKE 'A%'", "startswith({s} COLLATE UTF8_LCASE, 'A')", "{s} LIKE 'A%'", "startswith({s}, 'A')", "{s} ILIKE 'A%'"),
    ("upper({s} COLLATE UTF8_LCASE) LIKE 'b%'", "startswith(upper({s} COLLATE UTF8_LCASE), 'b')", "upper({s}) LIKE 'b%'"),
    ("{i} & {j} << 1 > 2", "({i} & ({j} << 1)) > 2", "(({i} & {j}) << 1) > 2", "{i} & shiftleft({j}, 1) > 2"),
    ("{i} | {j} ^ 3 & 2 = 3", "({i} | ({j} ^ (3 & 2))) = 3", "(({i} | {j}) ^ 3 & 2) = 3"),
)  # fmt: skip
VALUES: Sequence[Sequence[str]] = (
    ("coalesce({i}, {j})", "CASE WHEN {i} IS NULL THEN {j} ELSE {i} END", "if({i} IS NOT NULL, {i}, {j})",
     "CASE WHEN {j} IS NULL THEN {i} ELSE {j} END", "nvl({i}, {j})", "CASE {i} WHEN NULL THEN {j} ELSE {i} END"),
    ("{i} << 1", "shiftleft({i}, 1)", "{i} >> 1", "shiftright({i}, 1)", "-{i} >>> 1", "-{i} >> 1", "shiftrightunsigned(-{i}, 1)"),
    ("'1' || {i} + 1", "('1' || {i}) + 1", "'1' || ({i} + 1)", "concat('1', {i}) + 1"),
    ("{i} - {j} || 'x'", "({i} - {j}) || 'x'", "{i} * 2 - {j} || 'x'"),
    ("+{i}", "{i}", "positive({i})", "- -{i}"),
    ("+dec * 3", "dec * 3", "dec * +3", "dec * (+3)", "+(dec * 3)"),
    ("-1::string", "(-1)::string", "'-1'", "-(1::string)", "- 1::string"),
    ("trim({s} COLLATE UTF8_LCASE)", "trim(collate({s}, 'utf8_lcase'))", "trim({s})", "trim({s}) COLLATE UTF8_LCASE"),
    ("coalesce({f}, -0.0D)", "CASE WHEN {f} IS NULL THEN -0.0D ELSE {f} END", "coalesce({f}, 0.0D)"),
    ("coalesce({i}, 0L)", "CASE WHEN {i} IS NULL THEN 0L ELSE {i} END", "coalesce({i}, 0)"),
    ("coalesce({s}, {i})", "CASE WHEN {s} IS NULL THEN {i} ELSE {s} END"),
    ("coalesce({r}, named_struct('p', 1, 'q', 'z'))", "CASE WHEN {r} IS NULL THEN named_struct('p', 1, 'q', 'z') ELSE {r} END"),
    ("CASE WHEN {c} THEN {i} ELSE NULL END", "CASE WHEN {c} THEN {i} END", "if({c}, {i}, NULL)", "if({c}, {i}, {j})"),
    ("to_date({t})", "CAST({t} AS DATE)", "date({t})", "to_date({d})", "{t}::date", "to_date({t}, 'yyyy-MM-dd')"),
    ("year({t})", "extract(YEAR FROM {t})", "extract(year FROM {d})", "year({d})", "date_part('YEAR', {t})"),
    ("weekofyear({d})", "extract(WEEK FROM {d})", "extract(YEAROFWEEK FROM {d})", "extract(week FROM {t})"),
    ("dayofweek({d})", "extract(DOW FROM {d})", "extract(DAYOFWEEK FROM {d})", "weekday({d})", "extract(DOW_ISO FROM {d})"),
    ("dayofyear({d})", "extract(DOY FROM {d})", "extract(DAY FROM {d})", "day({d})", "dayofmonth({d})"),
    ("hour({t})", "extract(HOUR FROM {t})", "hour({d})", "extract(HOUR FROM {d})", "minute({t})", "extract(MINUTE FROM {t})"),
    ("second({t})", "extract(SECOND FROM {t})", "extract(MONTH FROM {d})", "month({d})", "quarter({d})", "extract(QUARTER FROM {d})"),
    ("date_trunc('MONTH', {t})", "date_trunc('month', {t})", "date_trunc('Mon', {t})", "date_trunc('month', {d})"),
    ("trunc({d}, 'YEAR')", "trunc({d}, 'year')", "trunc({d}, 'MM')", "trunc({d}, 'mm')", "trunc({d}, {s})"),
)  # fmt: skip
AGGREGATES: Sequence[Sequence[str]] = (
    *(
        (f"{f}(CASE WHEN {{c}} THEN {{v}} END)", f"{f}({{v}}) FILTER (WHERE {{c}})",
         f"{f}(CASE WHEN {{c}} THEN {{v}} ELSE NULL END)", f"{f}(CASE WHEN {{c}} THEN {{v}} ELSE 0 END)",
         f"{f}({{v}})", f"{f}(DISTINCT CASE WHEN {{c}} THEN {{v}} END)", f"{f}(DISTINCT {{v}}) FILTER (WHERE {{c}})")
        for f in ("sum", "count", "avg", "min", "max", "collect_list", "first", "any_value")
    ),
    ("count_if({c})", "count(*) FILTER (WHERE {c})", "count(CASE WHEN {c} THEN 1 END)", "sum(CASE WHEN {c} THEN 1 ELSE 0 END)",
     "sum(1) FILTER (WHERE {c})", "count(1) FILTER (WHERE {c})", "count_if(NOT ({c}))", "count_if({c}) FILTER (WHERE {i} > 1)"),
    ("bool_or(CASE WHEN {c} THEN {i} > 1 END)", "bool_or({i} > 1) FILTER (WHERE {c})", "any({i} > 1) FILTER (WHERE {c})"),
)  # fmt: skip
RELATIONS: Sequence[Sequence[str]] = (
    *(
        ("SELECT t.a, u.c FROM t LEFT JOIN u ON {on} WHERE {r}", "SELECT t.a, u.c FROM t JOIN u ON {on} WHERE {r}",
         "SELECT t.a, u.c FROM t JOIN u ON {on} AND {r}", "SELECT t.a, u.c FROM u RIGHT JOIN t ON {on} WHERE {r}",
         "SELECT a, c FROM (SELECT t.*, u.c, u.k AS uk FROM t LEFT JOIN u ON {on} WHERE {r})", "SELECT t.a, u.c FROM t LEFT JOIN u ON {on} AND {r}",
         "SELECT t.a, u.c FROM t FULL JOIN u ON {on} WHERE {r}", "SELECT t.a, u.c FROM t LEFT JOIN u ON {on}")
        for _ in range(2)
    ),
    ("SELECT t.a, u.c, w.z FROM t LEFT JOIN u ON {on} LEFT JOIN w ON t.k = w.k WHERE {r}",
     "SELECT t.a, u.c, w.z FROM t JOIN u ON {on} LEFT JOIN w ON t.k = w.k WHERE {r}",
     "SELECT t.a, u.c, w.z FROM t LEFT JOIN w ON t.k = w.k LEFT JOIN u ON {on} WHERE {r}",
     "SELECT t.a, u.c, w.z FROM t LEFT JOIN u ON {on} JOIN w ON t.k = w.k WHERE {r}",
     "SELECT t.a, u.c, w.z FROM t LEFT JOIN w ON t.k = w.k JOIN u ON {on} WHERE {r}"),
    ("SELECT u.k, {agg} AS n FROM t LEFT JOIN u ON {on} WHERE {r} GROUP BY u.k", "SELECT u.k, {agg} AS n FROM t JOIN u ON {on} WHERE {r} GROUP BY u.k",
     "SELECT u.k, {agg} AS n FROM t LEFT JOIN u ON {on} GROUP BY u.k HAVING bool_and({r})"),
    *(
        ("SELECT t.a FROM t LEFT JOIN u ON {on} WHERE u.{n} IS NULL", "SELECT t.a FROM t LEFT ANTI JOIN u ON {on}",
         "SELECT t.a FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE {on})", "SELECT t.a FROM u RIGHT JOIN t ON {on} WHERE u.{n} IS NULL",
         "SELECT a FROM (SELECT t.a, u.{n} AS v FROM t LEFT JOIN u ON {on}) WHERE v IS NULL", "SELECT t.a FROM t LEFT SEMI JOIN u ON {on}")
        for _ in range(2)
    ),
    ("SELECT t.a, x.z, y.c FROM t LEFT JOIN w x ON {w} LEFT JOIN u y ON {v}", "SELECT t.a, x.z, y.c FROM t LEFT JOIN u y ON {v} LEFT JOIN w x ON {w}",
     "SELECT t.a, y.z, x.c FROM t LEFT JOIN w y ON {w2} LEFT JOIN u x ON {v2}", "SELECT t.a, x.z, y.c FROM w x RIGHT JOIN t ON {w} LEFT JOIN u y ON {v}",
     "SELECT t.a, x.z, y.c FROM t JOIN w x ON {w} LEFT JOIN u y ON {v}"),
    ("SELECT t.a, x.z, y.z AS q, v.c FROM t LEFT JOIN w x ON {w} LEFT JOIN w y ON {d} LEFT JOIN u v ON t.k = v.k",
     "SELECT t.a, x.z, y.z AS q, v.c FROM t LEFT JOIN u v ON t.k = v.k LEFT JOIN w x ON {w} LEFT JOIN w y ON {d}",
     "SELECT t.a, x.z, y.z AS q, v.c FROM t LEFT JOIN w x ON {w} LEFT JOIN u v ON t.k = v.k LEFT JOIN w y ON {d}",
     "SELECT t.a, y.z, x.z AS q, v.c FROM t LEFT JOIN w x ON {w} LEFT JOIN w y ON {d} LEFT JOIN u v ON t.k = v.k"),
    *(
        ("SELECT {key} AS g, {agg} AS n FROM t JOIN u ON {on} GROUP BY {key} HAVING {h}", "SELECT {key} AS g, {agg} AS n FROM t JOIN u ON {on} WHERE {h} GROUP BY {key}",
         "SELECT g, n FROM (SELECT {key} AS g, {agg} AS n FROM t LEFT JOIN u ON {on} GROUP BY {key}) WHERE {hg}",
         "SELECT {key} AS g, {agg} AS n FROM t LEFT JOIN u ON {on} WHERE {h} GROUP BY {key}",
         "SELECT {key} AS g, {agg} AS n FROM t LEFT JOIN u ON {on} GROUP BY ROLLUP ({key}) HAVING {h}")
        for _ in range(3)
    ),
    ("SELECT count(DISTINCT {key}) AS n FROM t JOIN u ON {on}", "SELECT count(*) AS n FROM (SELECT DISTINCT {key} AS g FROM t JOIN u ON {on}) WHERE g IS NOT NULL",
     "SELECT count(*) AS n FROM (SELECT DISTINCT {key} AS g FROM t JOIN u ON {on} WHERE {key} IS NOT NULL)",
     "SELECT count(*) AS n FROM (SELECT DISTINCT {key} AS g FROM t LEFT JOIN u ON {on} WHERE {key} IS NOT NULL)",
     "SELECT count(*) AS n FROM (SELECT DISTINCT {key} AS g FROM t JOIN u ON {on})", "SELECT count(g) AS n FROM (SELECT DISTINCT {key} AS g FROM t JOIN u ON {on})",
     "SELECT count(DISTINCT {key}) AS n FROM t LEFT JOIN u ON {on} WHERE {key} IS NOT NULL"),
    *(
        (f"SELECT t.a, x.m FROM t {j} LATERAL (SELECT {{agg1}} AS m FROM u WHERE {{on}}) x", f"SELECT y.a, z.m FROM t AS y {j} LATERAL (SELECT {{agg1}} AS m FROM u WHERE {{ony}}) AS z",
         f"SELECT t.a, x.m FROM t {j} LATERAL (SELECT {{agg1}} AS m FROM u WHERE {{on}} GROUP BY u.a) x", f"SELECT t.a, x.m FROM t {j} LATERAL (SELECT u.k AS m FROM u WHERE {{on}} ORDER BY k, a, c LIMIT 1) x",
         f"SELECT t.a, x.m FROM t {j} LATERAL (SELECT u.k AS m FROM u WHERE {{on}} ORDER BY k DESC, a, c LIMIT 1) x", f"SELECT t.a, x.m FROM t {j} LATERAL (SELECT u.k AS m FROM u WHERE {{on}}) x",
         "SELECT t.a, u.k AS m FROM t JOIN u ON {on}", "SELECT t.a, u.k AS m FROM t LEFT JOIN u ON {on}", "SELECT t.a, (SELECT {agg1} FROM u WHERE {on}) AS m FROM t",
         f"SELECT a, m FROM (SELECT t.a, t.k, x.m FROM t {j} LATERAL (SELECT {{agg1}} AS m FROM u WHERE {{on}}) x) WHERE k > 1",
         f"SELECT t.a, x.m FROM (SELECT * FROM t WHERE k > 1) t {j} LATERAL (SELECT {{agg1}} AS m FROM u WHERE {{on}}) x")
        for j in ("JOIN", "LEFT JOIN", ",")
    ),
    ("WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w UNION ALL SELECT w.a, w.k, r.n + 1 FROM r JOIN w ON {rw} WHERE r.n < 3) SELECT a, k, n FROM r",
     "WITH RECURSIVE q AS (SELECT w.a AS x, w.k AS y, 1 AS z FROM w UNION ALL SELECT w.a, w.k, r.z + 1 FROM w, q AS r WHERE 3 > r.z AND {qw}) SELECT x AS a, y AS k, z AS n FROM q",
     "WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w UNION ALL SELECT w.a, w.k, r.n + 1 FROM r JOIN w ON {rw} WHERE r.n < 2) SELECT a, k, n FROM r",
     "WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w UNION ALL SELECT w.k, w.a, r.n + 1 FROM r JOIN w ON {rw} WHERE r.n < 3) SELECT a, k, n FROM r",
     "WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w UNION ALL SELECT w.a, w.k, r.n + 1 FROM r LEFT JOIN w ON {rw} WHERE r.n < 3) SELECT a, k, n FROM r",
     "WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w WHERE a > 1 UNION ALL SELECT w.a, w.k, r.n + 1 FROM r JOIN w ON {rw} WHERE r.n < 3) SELECT a, k, n FROM r",
     "WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w UNION ALL SELECT w.a, w.k, r.n + 1 FROM r JOIN w ON {rw} WHERE r.n < 3) SELECT a, k, n FROM r WHERE a > 1",
     "WITH RECURSIVE r(a, k, n) AS (SELECT a, k, 1 FROM w UNION ALL SELECT w.a, w.k, r.n + 1 FROM r JOIN w ON {rw} WHERE r.n < 3) SELECT a, k, n FROM (SELECT * FROM r) WHERE 1 < a"),
    *(
        (f"SELECT count(*) AS n FROM t GROUP BY t.b{c}", f"SELECT n FROM (SELECT t.b{c} AS g, count(*) AS n FROM t GROUP BY 1)", f"SELECT count(*) AS n FROM (SELECT b{c} AS g FROM t) GROUP BY g",
         f"SELECT count(1) AS n FROM t GROUP BY t.b{c}", "SELECT count(*) AS n FROM t GROUP BY b", f"SELECT count(*) AS n FROM t GROUP BY trim(b{c})",
         f"SELECT n FROM (SELECT b{c} AS g, count(*) AS n FROM t GROUP BY 1) WHERE g = 'A'", f"SELECT count(*) AS n FROM t WHERE b{c} = 'A' GROUP BY b{c}", "SELECT count(*) AS n FROM t WHERE b = 'A' GROUP BY b")
        for c in (" COLLATE UTF8_LCASE", " COLLATE UNICODE_CI", "")
    ),
    *(
        (f"SELECT count(DISTINCT b{c}) AS n FROM t", f"SELECT count(*) AS n FROM (SELECT DISTINCT b{c} AS g FROM t) WHERE g IS NOT NULL", "SELECT count(DISTINCT b) AS n FROM t",
         f"SELECT count(*) AS n FROM t x JOIN t y ON x.b{c} = y.b", f"SELECT count(*) AS n FROM t x, t y WHERE y.b = x.b{c}", "SELECT count(*) AS n FROM t x JOIN t y ON x.b = y.b",
         f"SELECT count(*) AS n FROM t x WHERE b{c} IN (SELECT b FROM u)", f"SELECT count(*) AS n FROM t x WHERE EXISTS (SELECT 1 FROM u WHERE u.b = x.b{c})", "SELECT count(*) AS n FROM t x WHERE b IN (SELECT b FROM u)",
         f"SELECT count(*) AS n FROM t x LEFT JOIN u ON x.b{c} = u.b WHERE u.b IS NULL", f"SELECT count(*) AS n FROM t x LEFT ANTI JOIN u ON x.b{c} = u.b")
        for c in (" COLLATE UTF8_LCASE", " COLLATE UNICODE_CI", "")
    ),
    *(
        (f"SELECT {show} FROM (SELECT a, k, {{in}} AS i FROM t)", f"WITH x AS (SELECT a, k, {{in}} AS i FROM t) SELECT {show} FROM x",
         f"SELECT {show} FROM (SELECT a, k, i FROM (SELECT t.*, {{in}} AS i FROM t))", f"SELECT {of_in(show)} FROM t",
         f"SELECT {show} FROM (SELECT a, k, NOT ({{not}}) AS i FROM t)", f"SELECT {show} FROM (SELECT a, k, {{in}} AS i FROM t UNION ALL SELECT a, k, TRUE FROM t WHERE k > 1000)",
         f"SELECT {show} FROM (SELECT DISTINCT a, k, {{in}} AS i FROM t)", f"SELECT {show} FROM (SELECT a, k, {{in}} AS i FROM t GROUP BY a, k, i)",
         f"SELECT {show} FROM (SELECT t.a, t.k, x.i FROM t JOIN (SELECT a, {{in}} AS i FROM t) x ON t.a = x.a)",
         f"SELECT {show} FROM (SELECT t.a, t.k, x.i FROM t LEFT JOIN (SELECT a, {{in}} AS i FROM t) x ON t.a = x.a)")
        for show in ("a, i AS i", "i AS x, i AS y", "a, CASE WHEN i THEN 1 WHEN k > 1 THEN 2 END AS x", "i AS i, NOT i AS n", "NOT i AS n", "i = FALSE AS n, k", "coalesce(i, k > 1) AS n",
                     "i AND k > 1 AS n", "i OR k > 1 AS n", "max(i) AS n", "count(CASE WHEN i THEN 1 END) AS n", "count_if(i) AS n", "count_if(NOT i) AS n")
    ),
    *(
        (f"SELECT k FROM (SELECT a, k, {{in}} AS i FROM t) WHERE {test}", f"SELECT k FROM (SELECT k, i FROM (SELECT t.*, {{in}} AS i FROM t)) WHERE {test.replace('a >', 'k >')}",
         f"SELECT k FROM t WHERE {of_in(test)}", f"SELECT k FROM (SELECT a, k, i FROM (SELECT a, k, {{in}} AS i FROM t UNION ALL SELECT a, k, TRUE FROM t WHERE k > 1000)) WHERE {test}",
         f"SELECT k FROM (SELECT a, k, {{in}} AS i FROM t GROUP BY ALL) WHERE {test}", f"SELECT k FROM (SELECT a, k, i FROM (SELECT t.*, {{in}} AS i FROM t) GROUP BY a, k, i HAVING {test})",
         f"SELECT t.k FROM t JOIN (SELECT a, k, {{in}} AS i FROM t) x ON t.a = x.a AND {of_in(test, 'x.i').replace('a >', 't.a >')}",
         f"SELECT t.k FROM t LEFT JOIN (SELECT a, k, {{in}} AS i FROM t) x ON t.a = x.a WHERE {of_in(test, 'x.i').replace('a >', 't.a >')}")
        for test in ("i", "NOT i", "i OR a > 1", "NOT i OR a > 1", "NOT (i AND a > 1)", "coalesce(i, TRUE)", "i IS NULL", "CASE WHEN i THEN a > 1 ELSE TRUE END")
    ),
    ("SELECT a, r FROM (SELECT t.a, u.k, rank() OVER (ORDER BY u.k) AS r FROM t LEFT JOIN u ON {on}) WHERE k > 1",
     "SELECT a, r FROM (SELECT t.a, u.k, rank() OVER (ORDER BY u.k) AS r FROM t JOIN u ON {on}) WHERE k > 1",
     "SELECT t.a, rank() OVER (ORDER BY u.k) AS r FROM t JOIN u ON {on} WHERE u.k > 1"),
)  # fmt: skip
"""Whole queries. `{on}` joins t and u; `{r}` is a condition on u, `{h}` on the key `{key}`."""
_ONS = (
    "t.a = u.a",
    "t.k = u.k AND u.a > 1",
    "t.b = u.b",
    "t.a <=> u.a",
    "t.a = u.a AND t.k > 1",
    "t.a < u.k",
    "t.d = u.d",
    "u.k = coalesce(t.k, 2)",
)
_RIGHT = ("u.k = 1", "u.k IS NOT NULL", "u.k IN (1, 5)", "u.k IS NULL", "u.k = 1 OR u.a = 3", "u.k = 1 OR u.a IS NULL", "coalesce(u.k, 1) = 1",
          "u.c > '1980-01-01'", "u.b LIKE 'a%'", "u.k <=> NULL", "NOT (u.k = 1)", "u.d > 0", "u.k + u.a > 2", "u.k > t.a", "u.k BETWEEN 1 AND 3",
          "(u.k = 1) IS TRUE", "if(u.k = 1, FALSE, TRUE)", "u.k IN (SELECT k FROM w)")  # fmt: skip
_INS = (
    ("k IN (SELECT a FROM u)", "k NOT IN (SELECT a FROM u)"),
    ("a + 1 IN (SELECT k FROM w)", "a + 1 NOT IN (SELECT k FROM w)"),
    ("k IN (SELECT w.a FROM w WHERE w.k = t.k)", "k NOT IN (SELECT w.a FROM w WHERE w.k = t.k)"),
    ("k NOT IN (SELECT a FROM u)", "k IN (SELECT a FROM u)"),
)
"""IN as a column, and its negation."""
_KEYS = (
    "t.a",
    "u.k",
    "t.d",
    "t.b",
    "u.c",
    "t.a + 1",
    "t.dec",
    "u.bg",
    "coalesce(u.k, 0)",
    "date_trunc('MONTH', t.ts)",
)
_OF_KEYS = (
    "{} IS NOT NULL",
    "{} > {}",
    "{} IS NULL",
    "CAST({} AS STRING) > '1'",
    "{} = {}",
    "CAST({} AS STRING) LIKE '%0%'",
    "{} IS NOT NULL AND CAST({} AS STRING) <> '0.0'",
)
PLACES = (
    "SELECT {v} AS x FROM {from}",
    "SELECT t.a FROM {from} WHERE {c}",
    "SELECT t.a FROM {from} WHERE ({c}) AND {e}",
    "SELECT t.a FROM {from} WHERE NOT ({c})",
    "SELECT t.a FROM {from} WHERE ({c}) OR {e}",
    "SELECT {c} AS x FROM {from}",
    "SELECT t.k, {g} AS x FROM {from} GROUP BY t.k",
    "SELECT {g} AS x FROM {from}",
    "SELECT t.k FROM {from} GROUP BY t.k HAVING max(t.a) > 1 AND {h}",
    "SELECT t.k, sum(t.a) OVER (PARTITION BY CASE WHEN {c} THEN 1 ELSE NULL END) AS x FROM {from}",
    "SELECT x.v FROM (SELECT t.a, {v} AS v FROM {from}) x WHERE x.v IS NOT NULL",
    "SELECT t.a FROM t LEFT JOIN u ON t.a = u.a AND ({c})",
    "SELECT EXISTS (SELECT 1 FROM {from} WHERE {c}) AS x",
)
FROM = ("t JOIN u ON t.k = u.k", "t LEFT JOIN u ON t.a = u.a", "t, u")


class Drawn:
    """One query in several forms: only one part differs."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.place, self.source = draw.choice(PLACES), draw.choice(FROM)
        self.columns = {
            "i": draw.choice(("t.a", "u.a", "t.k")), "j": draw.choice(("u.k", "t.a", "5")), "s": "t.b",
            "d": "u.c", "t": draw.choice(("t.ts", "CAST(u.c AS TIMESTAMP)")), "f": "t.d", "r": "t.s",
        }  # fmt: skip

    def condition(self, form: str) -> str:
        return form.format(**self.columns)

    def relations(self) -> list[str]:
        """Return the forms of a whole query."""
        draw = self.draw
        key, of_key = draw.choice(_KEYS), draw.choice(_OF_KEYS)
        w, v = (
            draw.choice(("t.a = {0}.a", "t.k = {0}.k AND t.a > 1", "t.a <=> {0}.k")),
            draw.choice(("t.a = {0}.a", "t.k = {0}.k", "t.b = {0}.b")),
        )
        parts = {
            "on": draw.choice(_ONS), "r": draw.choice(_RIGHT), "key": key, "n": draw.choice("ak"),
            "agg": draw.choice(("count(*)", "sum(t.a)", "max(t.b)", "count(DISTINCT t.k)", "avg(t.k)")),
            "h": of_key.format(key, key), "hg": of_key.format("g", "g"), "w": w.format("x"), "w2": w.format("y"), "v": v.format("y"), "v2": v.format("x"),
            "rw": (rw := draw.choice(("r.k = w.a", "r.a = w.k", "r.k <=> w.a", "w.z > 100 + r.a"))), "qw": rw.replace("r.k", "r.y").replace("r.a", "r.x"),
            "agg1": draw.choice(("count(*)", "sum(u.a)", "max(u.b)", "count(DISTINCT u.k)")),
            **dict(zip(("in", "not"), draw.choice(_INS), strict=True)),
            "d": draw.choice(("x.k = y.k", "t.k = y.k", "x.z <=> y.z", "coalesce(x.a, 3) = y.a")),
        }  # fmt: skip
        parts["ony"] = parts["on"].replace("t.", "y.")
        forms = [form.format(**parts) for form in draw.choice(RELATIONS)]
        return [
            form if draw.random() < 0.8 else f"SELECT * FROM ({form}) WHERE TRUE" for form in forms
        ]

    def queries(self) -> list[str]:
        """Return the forms of the query."""
        draw, place = self.draw, self.place
        if draw.random() < 0.5:
            return self.relations()
        c, e = (self.condition(draw.choice(draw.choice(CONDITIONS[:9]))) for _ in range(2))
        if "{g}" in place:
            v = draw.choice(("t.a", "u.k", "t.d", "7", "t.a + 1"))
            parts = [f.format(**self.columns, c=c, v=v) for f in draw.choice(AGGREGATES)]
            return [place.format(**{"from": self.source}, g=part) for part in parts]
        if "{v}" in place:
            parts = [f.format(**self.columns, c=c) for f in draw.choice(VALUES)]
            return [place.format(**{"from": self.source}, v=part) for part in parts]
        parts = [self.condition(f) for f in draw.choice(CONDITIONS)]
        if "{h}" in place:
            parts = [f"bool_or({part})" for part in parts]
            return [place.format(**{"from": self.source}, h=part) for part in parts]
        return [place.format(**{"from": self.source}, c=part, e=e) for part in parts]


@pytest.mark.proves("V1", "V33", "V50", "V51", "V58")
def test_random_queries_with_equal_build_ids_have_equal_rows(spark: Any) -> None:
    make_views(spark)
    budget_s = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
    first = seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", "1"))
    started = time.monotonic()
    n_forms = n_equal = n_failed = 0
    wrong: list[str] = []
    while time.monotonic() - started < budget_s:
        made = {query: project(query) for query in Drawn(random.Random(seed)).queries()}
        seed += 1
        n_forms += len(made)
        for one, other in combinations(made, 2):
            mine = build_id(made[one])
            if mine is None or mine != build_id(made[other]):
                continue
            n_equal += 1
            answers = run(spark, made[one]), run(spark, made[other])
            n_failed += any(answer.error is not None for answer in answers)
            if (answers[0].error is None) != (answers[1].error is None):
                wrong.append(f"seed {seed - 1}: one fails: {answers}\n{one}\n{other}")
            elif differs := difference(*answers):
                wrong.append(f"seed {seed - 1}: {differs}\n{one}\n{other}")
    print(
        f"\nseeds {first} to {seed}: {n_forms} forms, {n_equal} pairs of equal BuildIDs,"
        f" {n_failed} fail, {len(wrong)} wrong"
    )
    assert not wrong, "\n".join(wrong[:10])
    assert n_equal > budget_s / 2
