"""Tables maintained by deltas have the same rows as their queries computed from scratch.

DuckDB runs the programs; see `tests/support/deltas.py`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from conftest import draws
from deltas import Maintained

from persist_assets.analysis.deltas import printing
from persist_assets.analysis.deltas.program import used_of_tables
from persist_assets.analysis.deltas.relations import Relations
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltas import Bag, Columns

    from persist_assets.core.model.deltas import Merging, Program

RAW = """
CREATE TABLE r (a INT, b INT, k INT, x STRING, n DECIMAL(5,2), d DATE) USING delta LOCATION 'r';
CREATE TABLE s (a INT, k INT, z BIGINT, x STRING) USING delta LOCATION 's';
CREATE TABLE t (k INT, j INT) USING delta LOCATION 't';
CREATE TABLE v (k INT, arr ARRAY<INT>) USING delta LOCATION 'v';
CREATE TABLE f (k INT, y DOUBLE) USING delta LOCATION 'f';
"""
COLUMNS: Columns = {
    "r": {"a": "INT", "b": "INT", "k": "INT", "x": "STRING", "n": "DECIMAL(5,2)", "d": "DATE"},
    "s": {"a": "INT", "k": "INT", "z": "BIGINT", "x": "STRING"},
    "t": {"k": "INT", "j": "INT"},
    "v": {"k": "INT", "arr": "ARRAY<INT>"},
    "f": {"k": "INT", "y": "DOUBLE"},
}

CASES = """
# filter and projection
SELECT a + b AS c, upper(x) AS x FROM r WHERE k > 1 OR x IS NULL
# only constants of some rows
SELECT 1 AS one FROM r WHERE a = 2
# all columns, with duplicates
SELECT k, j FROM t
# inner join
SELECT r.a, s.z FROM r JOIN s ON r.k = s.k
# inner join, of which one side has no columns
SELECT r.a FROM r JOIN t ON r.k = t.k
# inner join by NULL-safe equality
SELECT r.a, s.z FROM r JOIN s ON r.k <=> s.k
# inner join of INT and BIGINT
SELECT r.a, s.x FROM r JOIN s ON r.k = s.z
# inner join by an inequality
SELECT r.a, t.j FROM r JOIN t ON r.k < t.k
# cross join
SELECT r.a, t.j FROM r CROSS JOIN t WHERE r.a = 1
# inner join by expressions
SELECT r.a, s.z FROM r JOIN s ON r.k + 1 = s.k AND r.x = s.x
# self join
SELECT x.a, y.b FROM r x JOIN r y ON x.k = y.a
# self join by one column
SELECT x.j AS i, y.j FROM t x JOIN t y ON x.k = y.k WHERE x.j <= y.j
# join of three
SELECT r.a, s.z, t.j FROM r JOIN s ON r.k = s.k JOIN t ON s.a = t.k
# join of three, two of which are one table
SELECT x.a, y.b, t.j FROM r x JOIN r y ON x.k = y.a JOIN t ON y.b = t.k
# join of two changed tables with an unchanged one
r, s: SELECT r.a, s.z, t.j FROM r JOIN s ON r.k = s.k JOIN t ON s.a = t.k
# join of two changed tables with an unchanged one, with conditions on some and on all of them
r, s: SELECT t.j, r.x, s.x AS y FROM t, r, s WHERE t.k = r.a AND r.k = s.k AND t.j + s.z > r.b AND s.z < r.n
# two joins of changed tables, joined by an unchanged one
r, s: SELECT x.a, q.z, t.j FROM r x JOIN r y ON x.k = y.a JOIN t ON y.b = t.k JOIN s p ON p.k = t.j JOIN s q ON q.a = p.a
# two joins of changed tables, joined by an unchanged one, and a changed subquery over the second
r, s, f: SELECT x.a, q.z FROM r x JOIN r y ON x.k = y.a JOIN t ON y.b = t.k JOIN s p ON p.k = t.j JOIN s q ON q.a = p.a WHERE q.k IN (SELECT 1 FROM f)
# join of two changed tables whose keys a condition on an unchanged one rejects
r, s: SELECT r.a, s.z FROM r JOIN s ON r.k = s.k JOIN t ON t.k = r.k WHERE t.j = 1
# explode over a join of two changed tables
r, v: SELECT q.a, q.e, t.j FROM (SELECT r.a, e.e FROM r JOIN v ON r.k = v.k LATERAL VIEW explode(v.arr) e AS e) q JOIN t ON t.k = q.e
# a subquery over a join of two changed tables and an unchanged one
r, s: SELECT r.a, s.z FROM r JOIN s ON r.k = s.k JOIN t ON t.k = s.a WHERE EXISTS (SELECT 1 FROM v WHERE v.k = r.a AND v.k < s.z + t.j)
# a changed subquery over a join of two changed tables and an unchanged one
r, s, f: SELECT r.a, (SELECT count(*) FROM f WHERE f.k = r.b AND f.y < s.z) AS c FROM r JOIN s ON r.k = s.k JOIN t ON t.k = s.a
# groups of a join of two changed tables with an unchanged one
r, s: SELECT t.j, count(*) AS c, sum(s.z) AS z FROM r JOIN s ON r.k = s.k JOIN t ON t.k = r.a GROUP BY t.j
# a window over a join of two changed tables with an unchanged one
r, s: SELECT r.a, t.j, rank() OVER (PARTITION BY t.j ORDER BY r.a, s.z) AS h FROM r JOIN s ON r.k = s.k JOIN t ON t.k = r.a
# subquery in FROM
SELECT q.c, s.z FROM (SELECT a + 1 AS c, k FROM r WHERE b > 1) q JOIN s ON q.k = s.k
# EXISTS
SELECT a, x FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.z > 1)
# NOT EXISTS
SELECT a, x FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.x = 'a')
# EXISTS with a condition besides equality
SELECT a, b FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.z > r.b)
# EXISTS by two keys
SELECT a, b FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.x = r.x)
# rank of a join by the value of an IN, which is shown, too
SELECT g.a, g.g FROM t JOIN (SELECT a, k, CASE WHEN k IN (SELECT a FROM s) THEN 1 ELSE 0 END AS g FROM r) g ON t.j = g.g QUALIFY rank() OVER (PARTITION BY t.j ORDER BY g.k) = 1
# aggregate of a subquery
SELECT k, sum((SELECT count(*) FROM s WHERE s.k = r.k)) AS n FROM r GROUP BY k
# aggregate of a subquery that is the same for all rows
SELECT k, max((SELECT max(z) FROM s)) AS m, min(a) AS a FROM r GROUP BY k
# groups by a subquery
SELECT n, sum(a) AS a FROM (SELECT (SELECT count(*) FROM s WHERE s.k = r.k) AS n, a FROM r) GROUP BY n
# groups of the rows of a window and of a subquery
SELECT k, max(h + (SELECT count(*) FROM s WHERE s.k = q.h)) AS m FROM (SELECT k, rank() OVER (PARTITION BY k ORDER BY a, b) AS h FROM r) q GROUP BY k
# window beside a subquery
SELECT k, rank() OVER (PARTITION BY k ORDER BY a, b) AS h, (SELECT count(*) FROM s WHERE s.k = r.a) AS n FROM r
# windows over subqueries
SELECT k, sum((SELECT count(*) FROM s WHERE s.k = r.a)) OVER (PARTITION BY k) AS h FROM r WHERE EXISTS (SELECT 1 FROM t WHERE t.k = r.k)
# window partitioned by a subquery, beside another one
SELECT a, count(*) OVER (PARTITION BY (SELECT max(z) FROM s WHERE s.k = r.k)) AS h, (SELECT max(j) FROM t WHERE t.k = r.k) AS j FROM r
# a subquery beside a window that has one
SELECT a + (SELECT count(*) FROM t WHERE t.k = r.k) + max((SELECT max(z) FROM s WHERE s.k = r.k)) OVER (PARTITION BY k) AS h FROM r
# LEFT JOIN of a window beside EXISTS
SELECT t.j, q.m, q.h FROM t LEFT JOIN (SELECT a, EXISTS (SELECT 1 FROM s WHERE s.k = r.k) AS m, rank() OVER (PARTITION BY a ORDER BY b) AS h FROM r) q ON q.a = t.k
# QUALIFY by the value of a subquery
SELECT a, b FROM (SELECT a, b, (SELECT max(z) FROM s WHERE s.k = r.k) AS m FROM r) QUALIFY rank() OVER (PARTITION BY a ORDER BY m) = 1
# LEFT JOIN of the first row of each key
SELECT t.k, t.j, c.a FROM t LEFT JOIN (SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) = 1) c ON c.k = t.k
# LEFT JOIN of the first row of each key, with a condition on it
SELECT t.k, t.j, c.a FROM t LEFT JOIN (SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) = 1) c ON c.k = t.k AND c.a > 1
# LEFT JOIN with a condition in ON on which row is the first
SELECT t.k, t.j, c.a FROM t LEFT JOIN (SELECT *, row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) AS rn FROM r) c ON c.k = t.k AND c.rn = 1
# rows without a first row that qualifies
SELECT t.k, t.j FROM t LEFT JOIN (SELECT k, a FROM (SELECT k, a, b, row_number() OVER (PARTITION BY k ORDER BY a, b) AS rn FROM r) WHERE rn = 1 AND b > 1) c ON c.k = t.k WHERE c.k IS NULL
# rows with a first row that qualifies, beside others
SELECT t.k, t.j FROM t LEFT JOIN (SELECT k, a FROM (SELECT k, a, b, row_number() OVER (PARTITION BY k ORDER BY a, b) AS rn FROM r) WHERE rn = 1 AND b > 1) c ON c.k = t.k WHERE coalesce(c.a, 1) = 1
# chain of LEFT JOINs by a column of the first row
SELECT t.k, c.a, s.z FROM t LEFT JOIN (SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) = 1) c ON c.k = t.k LEFT JOIN s ON s.k = c.a
# LEFT JOIN and inner join by a column of the first row
SELECT t.k, c.a, s.z FROM t LEFT JOIN (SELECT k, a FROM (SELECT k, a, b, row_number() OVER (PARTITION BY k ORDER BY a, b) AS rn FROM r) WHERE rn = 1 AND b > 1) c ON c.k = t.k JOIN s ON s.k = c.a
# inner join of the first row of each key
SELECT t.k, t.j, c.a FROM t JOIN (SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) = 1) c ON c.k = t.k WHERE c.b > 1
# first rows beside their dimension and an aggregate
SELECT c.k, c.a, t.j, q.n FROM (SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) = 1) c LEFT JOIN t ON t.k = c.k LEFT JOIN (SELECT k, count(*) AS n FROM s GROUP BY k) q ON q.k = c.k
# first rows with EXISTS
SELECT c.k, c.a FROM (SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, x, n, d) = 1) c WHERE EXISTS (SELECT 1 FROM s WHERE s.k = c.k)
# LEFT JOIN of averages
SELECT t.k, t.j, c.b FROM t LEFT JOIN (SELECT k, avg(b) AS b FROM r GROUP BY k) c ON c.k = t.k
# LEFT JOIN of averages with a condition on them
SELECT t.j, c.b FROM t LEFT JOIN (SELECT k, avg(b) AS b FROM r GROUP BY k HAVING avg(b) > 1) c ON c.k = t.k
# LEFT JOIN of averages with a condition on them, with the key of the right side
SELECT c.k, t.j, c.b FROM t LEFT JOIN (SELECT k, avg(b) AS b FROM r GROUP BY k HAVING avg(b) > 1) c ON c.k = t.k
# chain of LEFT JOINs by the key of averages with a condition on them
SELECT t.k, t.j, r.a, q.c FROM t LEFT JOIN (SELECT k, sum(y) AS c FROM f GROUP BY k HAVING sum(y) > 1) q ON q.k = t.k LEFT JOIN r ON r.k = q.k
# chain of LEFT JOINs by the key of sums with a condition in ON
SELECT r.a, t.j, q.c FROM r LEFT JOIN (SELECT k, sum(y) AS c FROM f GROUP BY k) q ON q.k = r.k AND q.c > 1 LEFT JOIN t ON t.k = r.k AND t.j = q.k
# FULL JOIN of averages
SELECT c.k, c.b, d.k AS l, d.y FROM (SELECT k, avg(b) AS b FROM r GROUP BY k) c FULL JOIN (SELECT k, sum(y) AS y FROM f GROUP BY k) d ON c.k = d.k
# LEFT JOIN with a subquery of its left side in ON
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND EXISTS (SELECT 1 FROM t WHERE t.k = r.a)
# LEFT JOIN with a subquery of its right side in ON
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND NOT EXISTS (SELECT 1 FROM t WHERE t.k = s.a)
# FULL JOIN with a subquery of each side in ON
SELECT r.a, s.z FROM r FULL JOIN s ON r.k = s.k AND EXISTS (SELECT 1 FROM t WHERE t.k = s.a) AND (SELECT count(*) FROM t WHERE t.k = r.a) > 1
# LEFT JOIN by the value of a subquery
SELECT r.a, s.z FROM r LEFT JOIN s ON s.z = (SELECT count(*) FROM t WHERE t.k = r.k)
# window over rows with EXISTS
SELECT k, a, rank() OVER (PARTITION BY k ORDER BY a, b) AS h FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k)
# window over rows with IN
SELECT k, a, sum(a) OVER (PARTITION BY x) AS h FROM r WHERE k IN (SELECT k FROM s WHERE z > 1)
# LEFT JOIN of two integer types
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.z
# EXISTS of two integer types
SELECT a FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.z = r.k)
# FULL JOIN of two integer types
SELECT r.a, s.k FROM s FULL JOIN r ON r.k = s.z
# groups of a join of two integer types
SELECT s.z, count(*) AS n FROM s JOIN r ON r.a = s.z GROUP BY s.z
# EXISTS in a join
SELECT r.a, t.j FROM r JOIN t ON r.k = t.k WHERE EXISTS (SELECT 1 FROM s WHERE s.k = t.j)
# EXISTS of the same table
SELECT a, k FROM r WHERE EXISTS (SELECT 1 FROM r y WHERE y.a = r.k)
# NOT EXISTS of the same table
SELECT k, j FROM t WHERE NOT EXISTS (SELECT 1 FROM t y WHERE y.k = t.k AND y.j > t.j)
# EXISTS of a join
SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s JOIN t ON s.a = t.j WHERE s.k = r.k)
# EXISTS or not
SELECT a FROM r WHERE a = 1 OR NOT EXISTS (SELECT 1 FROM s WHERE s.k = r.k)
# LEFT SEMI JOIN
SELECT r.a FROM r LEFT SEMI JOIN s ON r.k = s.k
# LEFT ANTI JOIN
SELECT r.a FROM r LEFT ANTI JOIN s ON r.k = s.k
# a subquery in a condition of a subquery on the outer query
SELECT k, x FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND (SELECT count(*) FROM t WHERE t.k = s.a) = r.b)
# a subquery that is one of two conditions of a subquery
SELECT k, (SELECT count(*) FROM s WHERE s.k = r.k AND (EXISTS (SELECT 1 FROM t WHERE t.k = s.a) OR r.x = 'a')) AS c FROM r
# a subquery in a condition of IN
SELECT k, x FROM r WHERE k IN (SELECT s.k FROM s WHERE (SELECT count(*) FROM t WHERE t.k = s.a) <= r.b)
# LEFT ANTI JOIN by a subquery's value
SELECT q.k, q.x FROM r q LEFT ANTI JOIN (SELECT k, (SELECT count(*) FROM t WHERE t.k = s.a) AS c FROM s) p ON p.k = q.k AND p.c = q.b
# groups of rows with a subquery in a condition of a subquery
SELECT x, count(*) AS n FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND (SELECT count(*) FROM t WHERE t.k = s.a) = r.b) GROUP BY x
# IN
SELECT a, b FROM r WHERE k IN (SELECT k FROM s WHERE z > 1)
# IN of two columns
SELECT a, b FROM r WHERE (k, x) IN (SELECT k, x FROM s)
# IN with a correlation
SELECT a, b FROM r WHERE k IN (SELECT k FROM s WHERE s.x = r.x)
# two subqueries in one WHERE
SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k) AND NOT EXISTS (SELECT 1 FROM t WHERE t.k = r.a)
# two subqueries by other keys and of one table
SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k) AND a IN (SELECT a FROM s)
# correlated scalar subquery
SELECT a, b FROM r WHERE b > (SELECT max(z) FROM s WHERE s.k = r.k)
# correlated scalar subquery in the select list
SELECT a, (SELECT sum(z) FROM s WHERE s.k = r.k) AS z FROM r
# count of a correlated subquery
SELECT a, (SELECT count(*) FROM s WHERE s.k = r.k AND s.x = 'a') AS n FROM r
# two correlated scalar subqueries
SELECT a, (SELECT sum(z) FROM s WHERE s.k = r.k) AS z, (SELECT count(*) FROM t WHERE t.k = r.a) AS n FROM r
# two correlated scalar subqueries of few keys
SELECT k, (SELECT count(*) FROM s WHERE s.k % 2 = t.k % 2) AS n, (SELECT count(*) FROM r WHERE r.a % 2 = t.j % 2) AS m FROM t
# two subqueries of few keys that test
SELECT k, j FROM t WHERE EXISTS (SELECT 1 FROM s WHERE s.k % 2 = t.k % 2 AND s.z < 2) OR NOT EXISTS (SELECT 1 FROM r WHERE r.a % 2 = t.j % 2 AND r.b < 2)
# correlated scalar subquery of the same table
SELECT a, k FROM r WHERE n >= (SELECT max(n) FROM r y WHERE y.k = r.k)
# correlated subquery of an unchanged table
r: SELECT a, k FROM r WHERE b < (SELECT count(*) FROM s WHERE s.a <> r.a)
# uncorrelated subquery of an unchanged table
r: SELECT a, k FROM r WHERE b < (SELECT count(*) FROM s) OR k NOT IN (SELECT j FROM t WHERE j > 2)
# keys that only some rows of an unchanged table have
s: SELECT k, j FROM t WHERE k IN (SELECT a FROM r) AND NOT EXISTS (SELECT 1 FROM s WHERE s.k = t.k AND s.a = t.j)
# NOT EXISTS of unchanged tables, beside a join with a changed one
t: SELECT t.j, r.a FROM t JOIN r ON t.k = r.k WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k = r.k)
# a scalar subquery of unchanged tables, beside a join with a changed one
t: SELECT t.j, r.a FROM t JOIN r ON t.k = r.k WHERE r.b >= (SELECT count(*) FROM s WHERE s.k = r.k)
# NOT IN of unchanged tables, beside a filter and a join with a changed one
t: SELECT t.j, r.a FROM t JOIN r ON t.k = r.k WHERE r.a > 1 AND r.b NOT IN (SELECT a FROM s WHERE s.k = r.k)
# a scalar subquery by two keys within IN, beside a filter by another IN
s: SELECT k, j FROM t WHERE k IN (SELECT r.a FROM r WHERE r.k IN (SELECT j FROM t) AND (SELECT count(*) FROM s WHERE s.k = r.k AND s.a = r.a) < 1)
# a scalar subquery within IN, where all tables change
SELECT k, j FROM t WHERE k IN (SELECT r.a FROM r WHERE r.k IN (SELECT j FROM t WHERE k > 0) AND r.b >= (SELECT sum(z) FROM s WHERE s.k = r.k AND s.x = r.x))
# IN in an OR
SELECT a, x FROM r WHERE a = 1 OR k IN (SELECT j FROM t WHERE j > 1)
# IN of several columns in an OR, beside an AND
SELECT a, x FROM r WHERE (k, a) IN (SELECT k, j FROM t) OR b = 1 AND k IN (SELECT k FROM s)
# IN in the conditions of CASE
SELECT a, CASE WHEN k IN (SELECT k FROM s) THEN 'x' WHEN a = 1 OR a IN (SELECT j FROM t) THEN 'y' ELSE x END AS c FROM r
# IN in a condition of CASE, beside the value of an IN
SELECT a, CASE WHEN k IN (SELECT k FROM s) THEN 1 ELSE 2 END AS c, k IN (SELECT k FROM s) AS i FROM r
# NOT IN
SELECT a, x FROM r WHERE k NOT IN (SELECT j FROM t)
# NOT IN of filtered rows, beside a filter
SELECT a, x FROM r WHERE b > 0 AND k NOT IN (SELECT k FROM s WHERE z > 1)
# NOT IN in an OR, beside a join
SELECT r.a, t.j FROM r JOIN t ON r.k = t.k WHERE r.a > 3 OR r.a NOT IN (SELECT a FROM s)
# NOT IN of a column of an unchanged table, whose rows a join finds
r, s: SELECT r.a, t.j FROM r JOIN t ON r.k = t.k WHERE t.j NOT IN (SELECT a FROM s) AND t.k > 0
# NOT IN of the same table
SELECT k, j FROM t WHERE k NOT IN (SELECT j FROM t)
# NOT IN of groups
SELECT a, b FROM r WHERE k NOT IN (SELECT k FROM s GROUP BY k HAVING count(*) > 1)
# NOT IN of a union
SELECT a, b FROM r WHERE k NOT IN (SELECT k FROM s UNION ALL SELECT j FROM t)
# NOT IN of an expression
SELECT a, b FROM r WHERE coalesce(k, a) NOT IN (SELECT nullif(k, 1) FROM s)
# correlated NOT IN
SELECT a, b FROM r WHERE a NOT IN (SELECT a FROM s WHERE s.k = r.k)
# correlated NOT IN of another type
SELECT a, b FROM r WHERE a NOT IN (SELECT z FROM s WHERE s.k = r.k)
# the value of an IN
SELECT a, k IN (SELECT j FROM t) AS i FROM r
# the value of an IN of few rows
SELECT a, k IN (SELECT k FROM s WHERE z = 1 AND a > 1) AS i FROM r
# the values of INs of a few rows of groups, and of other rows
SELECT k IN (SELECT k FROM s WHERE x = 'b' GROUP BY k) AS i, b IN (SELECT j FROM t WHERE k = 1) AS j FROM r WHERE a > 0
# groups by a condition with IN
SELECT i, count(*) AS c, sum(a) AS a FROM (SELECT CASE WHEN k IN (SELECT j FROM t) THEN 1 ELSE 0 END AS i, a FROM r) GROUP BY i
# aggregates of a condition with IN
SELECT x, count(CASE WHEN k IN (SELECT j FROM t) THEN 1 END) AS c FROM r GROUP BY x
# windows over rows with NOT IN
SELECT a, rank() OVER (PARTITION BY k ORDER BY a, b) AS h FROM r WHERE a NOT IN (SELECT a FROM s)
# NOT IN in a side of a LEFT JOIN
SELECT r.a, q.z FROM r LEFT JOIN (SELECT k, z FROM s WHERE a NOT IN (SELECT j FROM t)) q ON r.k = q.k
# IN in the ON of a LEFT JOIN
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND s.a IN (SELECT j FROM t)
# NOT IN in a subquery
SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.a NOT IN (SELECT j FROM t))
# NOT IN within NOT IN
SELECT a FROM r WHERE k NOT IN (SELECT k FROM s WHERE a NOT IN (SELECT j FROM t))
# two NOT INs of one column
SELECT a FROM r WHERE k NOT IN (SELECT k FROM s) AND k NOT IN (SELECT j FROM t)
# EXISTS by NULL-safe equality
SELECT a, b FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k <=> r.k AND s.z > 1)
# NOT EXISTS by NULL-safe equality, beside a filter
s: SELECT k, j FROM t WHERE j > 0 AND NOT EXISTS (SELECT 1 FROM s WHERE nullif(s.k, 1) <=> t.k)
# a scalar subquery by NULL-safe equality, beside a filter
s: SELECT k, j, (SELECT count(*) FROM s WHERE nullif(s.k, 2) <=> t.k) AS n FROM t WHERE j > 0
# EXISTS by NULL-safe equality of a changed table, which is joined with an unchanged one
r, s: SELECT t.j, r.a FROM t JOIN r ON t.k <=> r.k WHERE t.j > 0 AND EXISTS (SELECT 1 FROM s WHERE s.k <=> r.k)
# a scalar subquery by NULL-safe equality, and a filter
SELECT a, (SELECT count(*) FROM s WHERE s.k <=> r.k) AS n FROM r WHERE b > 0
# a scalar subquery of an unchanged table by NULL-safe equality, and a filter
r: SELECT a, (SELECT count(*) FROM s WHERE s.k <=> r.k) AS n FROM r WHERE b > 0
# LEFT JOIN by NULL-safe equality
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k <=> s.k
# LEFT JOIN by NULL-safe equality, of filtered rows
SELECT r.a, q.z FROM r LEFT JOIN (SELECT k, z FROM s WHERE z > 0) q ON r.k <=> q.k AND r.b > 0
# FULL JOIN by NULL-safe equality
SELECT r.a, s.z FROM r FULL JOIN s ON r.k <=> s.k
# anti join by NULL-safe equality
SELECT r.a, r.k FROM r LEFT ANTI JOIN s ON r.k <=> s.k
# groups over a LEFT JOIN by NULL-safe equality
SELECT t.j, count(s.z) AS c, sum(s.z) AS z FROM t LEFT JOIN s ON t.k <=> s.k GROUP BY t.j
# EXISTS of groups by other columns
SELECT a, b FROM r WHERE EXISTS (SELECT 1 FROM (SELECT k, x, max(z) AS m FROM s GROUP BY k, x) g WHERE g.k = r.k AND g.m > 1)
# IN of groups
SELECT a, b FROM r WHERE k IN (SELECT k FROM s GROUP BY k HAVING count(*) > 1)
# nested subqueries
SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND EXISTS (SELECT 1 FROM t WHERE t.k = s.a))
# LEFT JOIN
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k
# LEFT JOIN with a condition on the right side
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND s.x = 'a'
# LEFT JOIN with a condition on the left side
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND r.x = 'a'
# LEFT JOIN with a condition on both sides
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND s.z > r.b
# LEFT JOIN by expressions
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k + 1 = s.k
# LEFT JOIN by NULL-safe equality besides
SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND r.x <=> s.x
# LEFT JOIN of which nothing is read
SELECT r.a FROM r LEFT JOIN s ON r.k = s.k
# FULL JOIN of which nothing is read
SELECT count(*) AS n FROM r FULL JOIN s ON r.k = s.k
# LEFT JOIN without an equality, of an unchanged right side
r: SELECT r.a, t.j FROM r LEFT JOIN t ON r.k > t.k
# LEFT JOIN as an anti join
SELECT r.a FROM r LEFT JOIN s ON r.k = s.k WHERE s.k IS NULL
# LEFT JOIN of a table with itself
SELECT x.a, y.b FROM r x LEFT JOIN r y ON x.k = y.a
# LEFT JOIN below an inner join
SELECT r.a, s.z, t.j FROM r LEFT JOIN s ON r.k = s.k JOIN t ON t.k = r.b
# LEFT JOIN of a LEFT JOIN
SELECT r.a, s.z, t.j FROM r LEFT JOIN s ON r.k = s.k LEFT JOIN t ON t.k = s.a
# LEFT JOIN of an inner join
SELECT r.a, s.z, t.j FROM t LEFT JOIN (r JOIN s ON r.k = s.k) ON t.k = r.a
# RIGHT JOIN
SELECT r.a, s.z FROM r RIGHT JOIN s ON r.k = s.k
# FULL JOIN
SELECT r.a, r.k, s.z, s.k AS sk FROM r FULL JOIN s ON r.k = s.k
# FULL JOIN with a condition besides
SELECT r.a, s.z FROM r FULL JOIN s ON r.k = s.k AND s.z > r.b
# FULL JOIN USING
SELECT k, t.j, s.z FROM t FULL JOIN s USING (k)
# FULL JOIN of aggregates
SELECT coalesce(p.k, q.k) AS k, p.n, q.z FROM (SELECT k, count(*) AS n FROM r GROUP BY k) p FULL JOIN (SELECT k, sum(z) AS z FROM s GROUP BY k) q ON p.k = q.k
# UNION ALL
SELECT a, k FROM r UNION ALL SELECT a, k FROM s
# UNION ALL of other types
SELECT a FROM r UNION ALL SELECT z FROM s UNION ALL SELECT 1.5 FROM t
# UNION of other types
SELECT a AS v FROM r UNION SELECT x FROM s
# UNION ALL of one table
SELECT k FROM t UNION ALL SELECT j FROM t
# UNION
SELECT a, k FROM r UNION SELECT a, k FROM s
# EXCEPT
SELECT k FROM r EXCEPT SELECT k FROM s
# EXCEPT ALL
SELECT k FROM r EXCEPT ALL SELECT k FROM s
# INTERSECT
SELECT k FROM r INTERSECT SELECT k FROM s
# INTERSECT ALL
SELECT k FROM r INTERSECT ALL SELECT k FROM s
# EXCEPT of two columns of one table
SELECT k, j FROM t EXCEPT SELECT j, k FROM t
# a join of a UNION
SELECT u.k, t.j FROM (SELECT k, a FROM r UNION SELECT k, a FROM s) u JOIN t ON u.a = t.k
# GROUP BY
SELECT k, count(*) AS c, sum(n) AS n, max(d) AS d, min(x) AS x FROM r GROUP BY k
# GROUP BY, by an expression and another column
SELECT a % 2 AS p, x, sum(b) AS b FROM r GROUP BY a % 2, x
# GROUP BY with HAVING
SELECT k, sum(b) AS b FROM r GROUP BY k HAVING count(*) > 1 AND max(a) IS NOT NULL
# GROUP BY whose keys are not shown
SELECT count(*) AS c, sum(b) AS b FROM r GROUP BY k
# GROUP BY with DISTINCT and FILTER
SELECT k, count(DISTINCT x) AS c, sum(b) FILTER (WHERE a > 1) AS b FROM r GROUP BY k
# GROUP BY a column of the other side of a join
SELECT t.j, count(*) AS c, sum(r.n) AS n FROM r JOIN t ON r.k = t.k GROUP BY t.j
# GROUP BY a column of the right side of a LEFT JOIN
SELECT t.j, count(*) AS c, sum(r.n) AS n FROM r LEFT JOIN t ON r.k = t.k GROUP BY t.j
# GROUP BY over a subquery that tests
SELECT k, count(*) AS c FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.a) GROUP BY k
# GROUP BY over EXCEPT
SELECT k, count(*) AS c FROM (SELECT k, a FROM r EXCEPT SELECT k, a FROM s) GROUP BY k
# an average, which is a sum of doubles
SELECT k, avg(b) AS b FROM r GROUP BY k
# a sum of doubles by a key
SELECT k, sum(y) AS y FROM f GROUP BY k
# a sum of doubles beside a key, in a join
SELECT g.k, g.y, t.j FROM (SELECT k, sum(y) AS y FROM f GROUP BY k) g JOIN t ON g.k = t.k
# groups of a join that is probed by several keys
SELECT r.k, count(*) AS c FROM r JOIN s ON r.k = s.k JOIN (SELECT j, max(k) AS m FROM t GROUP BY j) g ON g.m = r.k GROUP BY r.k
# a join that is probed by several keys
SELECT r.a, s.z, g.j FROM r JOIN s ON r.k = s.k JOIN (SELECT j, max(k) AS m FROM t GROUP BY j) g ON g.m = r.k
# groups of a join that is probed by keys of a subquery
SELECT r.k, count(*) AS c FROM r JOIN s ON r.k = s.k WHERE EXISTS (SELECT 1 FROM t WHERE t.k = r.a) GROUP BY r.k
# grouping sets with a common column
SELECT k, x, a, sum(b) AS b FROM r GROUP BY GROUPING SETS ((k, x), (k, a))
# grouping sets that say which they are
SELECT k, x, grouping(x) AS g, grouping_id(k, x) AS h, count(*) AS c FROM r GROUP BY GROUPING SETS ((k, x), (k))
# a join of grouping sets
SELECT g.k, g.x, g.c, t.j FROM (SELECT k, x, count(*) AS c FROM r GROUP BY GROUPING SETS ((k, x), (k))) g JOIN t ON t.k = g.k
# DISTINCT
SELECT DISTINCT k, x FROM r
# DISTINCT of a join
SELECT DISTINCT r.x, t.j FROM r JOIN t ON r.k = t.k
# DISTINCT of constants
SELECT DISTINCT x, 1 AS one FROM r WHERE k = 1
# groups for which a subquery finds rows by their keys
SELECT g.k, g.c FROM (SELECT k, count(*) AS c FROM r GROUP BY k) g WHERE EXISTS (SELECT 1 FROM s WHERE s.k = g.k)
# an aggregate of aggregates
SELECT c, count(*) AS ks FROM (SELECT k, count(*) AS c FROM r GROUP BY k) GROUP BY c
# an aggregate of DISTINCT
SELECT k, count(*) AS c FROM (SELECT DISTINCT k, x FROM r) GROUP BY k
# a join of an aggregate
SELECT r.a, r.b, g.c FROM r JOIN (SELECT k, count(*) AS c FROM r GROUP BY k) g ON r.k = g.k
# a LEFT JOIN of an aggregate
SELECT t.k, t.j, g.z FROM t LEFT JOIN (SELECT k, sum(z) AS z FROM s GROUP BY k) g ON t.k = g.k
# a window
SELECT k, b, sum(b) OVER (PARTITION BY k) AS s FROM r
# a window of which the partition is not shown
SELECT b, count(*) OVER (PARTITION BY k) AS c FROM r
# windows of one partition
SELECT k, b, sum(b) OVER (PARTITION BY k ORDER BY a) AS s, rank() OVER (PARTITION BY k ORDER BY b DESC) AS h FROM r
# windows of several partitions that share a column
SELECT k, x, b, sum(b) OVER (PARTITION BY k) AS s, count(*) OVER (PARTITION BY x, k) AS c FROM r
# a window over all columns, in order
SELECT k, j, row_number() OVER (PARTITION BY k ORDER BY j) AS n FROM t
# a window of a join
SELECT t.j, r.b, sum(r.b) OVER (PARTITION BY t.j) AS s FROM r JOIN t ON r.k = t.k
# a window with a filter before it
SELECT k, b, count(*) OVER (PARTITION BY k) AS c FROM r WHERE a > 1
# a window over a window
SELECT k, s, max(s) OVER (PARTITION BY k) AS m FROM (SELECT k, x, sum(b) OVER (PARTITION BY k, x) AS s FROM r)
# a window over a window of another partition
SELECT x, max(s) OVER (PARTITION BY x) AS m FROM (SELECT x, sum(b) OVER (PARTITION BY k) AS s FROM r)
# a join of a window by a column that does not partition it
SELECT w.x, w.a, w.c, t.j FROM (SELECT x, a, count(*) OVER (PARTITION BY x) AS c FROM r) w JOIN t ON w.a = t.k
# an aggregate by a window
SELECT c, sum(b) AS b FROM (SELECT b, count(*) OVER (PARTITION BY k) AS c FROM r) GROUP BY c
# a LEFT JOIN by a window
SELECT t.k, q.k AS l, q.h FROM t LEFT JOIN (SELECT k, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r WHERE a > 0) q ON t.j = q.h
# a filter after a window
SELECT k, b FROM (SELECT k, b, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r) WHERE h = 1
# a join of a window
SELECT w.k, w.c, t.j FROM (SELECT k, count(*) OVER (PARTITION BY k) AS c FROM r) w JOIN t ON w.c = t.k
# NOT IN of an unchanged table
r: SELECT a, k FROM r WHERE a = 1 OR k NOT IN (SELECT j FROM t WHERE j > 3 OR j IS NULL)
# IN of an unchanged table, as a value
r: SELECT a, k IN (SELECT j FROM t WHERE j > 3 OR j IS NULL) AS i FROM r
# NOT IN of an unchanged table beside a changed subquery
r, s: SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k) AND (a = 0 OR k NOT IN (SELECT j FROM t WHERE j > 2))
# a LEFT JOIN of rows that a window chooses
SELECT t.k, t.j, q.b, q.x FROM t LEFT JOIN (SELECT k, a, b, x FROM r QUALIFY rank() OVER (PARTITION BY k ORDER BY b) = 1) q ON t.k = q.k AND q.a > 0
# a FULL JOIN of rows that a window chooses
SELECT p.k, q.k AS l, p.j, q.b FROM (SELECT k, j FROM t QUALIFY rank() OVER (PARTITION BY k ORDER BY j) = 1) p FULL JOIN (SELECT k, b FROM r QUALIFY rank() OVER (PARTITION BY k ORDER BY b) = 1) q ON p.k = q.k
# an aggregate of rows that a window chooses
SELECT x, sum(b) AS b FROM (SELECT x, b, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r) WHERE h = 1 GROUP BY x
# a window over an aggregate
SELECT k, x, c, max(c) OVER (PARTITION BY k) AS m FROM (SELECT k, x, count(*) AS c FROM r GROUP BY k, x)
# a window over grouping sets
SELECT x, c, sum(c) OVER (PARTITION BY x) AS m FROM (SELECT k, x, count(*) AS c FROM r GROUP BY GROUPING SETS ((k, x), (k)))
# QUALIFY
SELECT k, b FROM r QUALIFY rank() OVER (PARTITION BY k ORDER BY b DESC) = 1
# QUALIFY in a join
SELECT t.j, r.b FROM r JOIN t ON r.k = t.k QUALIFY dense_rank() OVER (PARTITION BY t.k ORDER BY r.b) <= 2
# a window whose value may depend on the order of rows, beside its partition
SELECT k, j, row_number() OVER (PARTITION BY k ORDER BY j) AS n, lag(j) OVER (PARTITION BY k ORDER BY j) AS l FROM t
# a window of rounded numbers of which the partition is not shown
SELECT j, avg(j) OVER (PARTITION BY k) AS m FROM t
# a LEFT JOIN by a column that does not partition the window beside it
SELECT t.j, q.h FROM t LEFT JOIN (SELECT a, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r) q ON q.a = t.k
# a FULL JOIN by columns that do not partition the windows beside them
SELECT q.h, q.j, s.c FROM (SELECT j, rank() OVER (PARTITION BY k ORDER BY j) AS h FROM t) q FULL JOIN (SELECT k, count(*) OVER (PARTITION BY a) AS c FROM s) s ON s.k = q.j
# a LEFT JOIN of a subquery's value
SELECT t.j, q.m FROM t LEFT JOIN (SELECT a, EXISTS (SELECT 1 FROM s WHERE s.k = r.k) AS m FROM r) q ON q.a = t.k
# a FULL JOIN of a subquery's value
SELECT t.j, q.m FROM t FULL JOIN (SELECT a, (SELECT max(z) FROM s WHERE s.k = r.k) AS m FROM r) q ON q.a = t.k
# an aggregate by a window beside another column
SELECT x, count(*) AS n, sum(h) AS h FROM (SELECT x, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r) GROUP BY x
# an aggregate of a subquery's value
SELECT x, sum(m) AS m FROM (SELECT x, (SELECT count(*) FROM s WHERE s.k = r.k) AS m FROM r UNION ALL SELECT x, z FROM s) GROUP BY x
# an unchanged subquery beside a window
r: SELECT a, k, (SELECT max(z) FROM s WHERE s.k = r.k) AS m, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r
# a changed subquery in the condition of a window's rows
SELECT a, k, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k)
# deduplication
SELECT k, j FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY j) = 1
# explode
SELECT k, explode(arr) AS e FROM v
# LATERAL VIEW
SELECT v.k, e FROM v LATERAL VIEW explode(arr) g AS e WHERE e > 1
# LATERAL VIEW in a join
SELECT t.j, e FROM v JOIN t ON v.k = t.k LATERAL VIEW explode(arr) g AS e
# an aggregate of LATERAL VIEW
SELECT e, count(*) AS c FROM v LATERAL VIEW explode(arr) g AS e GROUP BY e
# LATERAL VIEW of a window
SELECT q.k, e FROM (SELECT k, rank() OVER (PARTITION BY k ORDER BY j) AS h FROM t) q LATERAL VIEW explode(array(q.h, 0)) g AS e
# a common table expression that is read twice
WITH c AS (SELECT k, count(*) AS n FROM r GROUP BY k) SELECT x.k, y.n FROM c x JOIN c y ON x.n = y.k
# a common table expression of a join, read twice
WITH c AS (SELECT r.a, t.j FROM r JOIN t ON r.k = t.k) SELECT a FROM c UNION ALL SELECT j FROM c WHERE j > 1
# an aggregate of a common table expression beside it
WITH c AS (SELECT r.a, r.n, t.j FROM r JOIN t ON r.k = t.k) SELECT c.a, c.n, g.m FROM c JOIN (SELECT j, sum(n) AS m FROM c GROUP BY j) g ON c.j = g.j
# latest of an outer join
SELECT k, j, z FROM (SELECT t.k, t.j, s.z FROM t LEFT JOIN s ON t.j = s.k) QUALIFY rank() OVER (PARTITION BY k ORDER BY j DESC) = 1
# UNION ALL of an aggregate and rows
SELECT k, sum(b) AS b FROM r GROUP BY k UNION ALL SELECT k, z FROM s WHERE a = 1
# aggregates over all rows, merged
SELECT count(*) AS c, sum(n) AS n, avg(a) AS a, count(x) FILTER (WHERE b > 1) AS x FROM r
# aggregates over all rows of a join, merged
SELECT count(*) AS c, sum(r.n) + 1 AS n FROM r LEFT JOIN t ON r.k = t.k
# ROLLUP, merged
SELECT k, x, count(*) AS c, sum(n) AS n FROM r GROUP BY ROLLUP(k, x)
# an aggregate over all rows of an aggregate, merged
SELECT max(c) AS c, count(*) AS m FROM (SELECT k, count(*) AS c FROM r GROUP BY k)
# CUBE over rows that may be none, merged
SELECT k, x, count(*) AS c, sum(n) AS n, grouping(k) AS g FROM r WHERE a = 2 GROUP BY CUBE(k, x) HAVING count(*) < 5
# the only grouping set has no keys, merged
SELECT count(*) AS c, sum(n) AS n FROM r WHERE a = 2 GROUP BY GROUPING SETS (())
# a total beside groups, merged
SELECT g.k, g.n, t.n AS total FROM (SELECT k, sum(n) AS n FROM r GROUP BY k) g CROSS JOIN (SELECT sum(n) AS n FROM r) t
# CASE, CAST and functions
SELECT CASE WHEN a > b THEN 'more' ELSE concat(x, '!') END AS c, CAST(n AS STRING) AS n, coalesce(k, 0) AS k FROM r
# dates
SELECT d, count(*) AS c FROM r WHERE d >= DATE '2024-01-02' GROUP BY d
# PIVOT
SELECT * FROM (SELECT k, x, b FROM r) PIVOT (sum(b) AS s, max(b) AS m FOR x IN ('a', 'b' AS y))
# PIVOT of texts, beside a join
SELECT t.j, p.two FROM t JOIN (SELECT * FROM (SELECT k, x, a FROM s) PIVOT (min(x) FOR a IN (1 AS one, 2 AS two))) p ON p.k = t.k
# PIVOT without other columns
SELECT * FROM (SELECT x, b FROM r) PIVOT (sum(b) FOR x IN ('a', 'b'))
# VALUES
SELECT r.a, w.m FROM r JOIN (VALUES (1, 'one'), (2, 'two')) AS w (k, m) ON r.k = w.k
"""


def _cases() -> list[tuple[str, str, list[str]]]:
    """Return the title of each case, its query, and the tables that may change, if not all."""
    cases: list[tuple[str, str, list[str]]] = []
    for block in CASES.strip().removeprefix("# ").split("\n# "):
        title, query = block.split("\n", 1)
        names, colon, text = query.partition(": ")
        is_limited = colon and set(names.split(", ")) <= {*COLUMNS}
        cases.append((title, text, names.split(", ")) if is_limited else (title, query, []))
    return cases


def changes(tables: Sequence[str]) -> list[list[str]]:
    """Return which tables change: each alone, then all."""
    each = [[t] for t in tables]
    return [*each, [*tables]] if len(each) > 1 else each


@pytest.mark.proves("T8", "T21", "T22", "T30")
@pytest.mark.parametrize(
    ("query", "tables"), [pytest.param(q, tables, id=title) for title, q, tables in _cases()]
)
def test_maintained_tables_have_the_rows_of_their_query(query: str, tables: list[str]) -> None:
    maintained = Maintained(RAW, query, COLUMNS)
    rng = random.Random(query)
    every, n_differing = changes(tables or maintained.reads), 0
    n_parts = query.count("SELECT") + query.count("JOIN") + query.count("GROUP")
    n_rounds = draws(1, 4) if n_parts > 2 else 1  # a change must meet several parts at once
    for number in range(n_rounds + 8):
        maintained.fill(rng, (14, 4, 8, 14)[number % 4])
        assert maintained.printed() == maintained.rows
        for changed, grows in [*((some, False) for some in every), (every[-1], True)]:
            n_differing += maintained.follow(rng, changed, grows=grows, merges=True).differs
        if n_differing and number + 1 >= n_rounds:
            break
    assert n_differing, "no change of the tables changed rows of the query"


FIRST = (
    "SELECT k, a, x FROM r WHERE b > 0 ORDER BY x DESC, a DESC NULLS FIRST, k LIMIT 4",
    "SELECT r.k, s.z, s.x FROM r JOIN s ON r.k = s.k ORDER BY z, r.k, s.x LIMIT 5",
    "SELECT k, sum(a) AS t, d FROM r GROUP BY k, d ORDER BY t DESC, k, d LIMIT 2",
    "SELECT k FROM r UNION ALL SELECT k FROM s ORDER BY k LIMIT 6",
    "SELECT * FROM (SELECT y, k AS l FROM f ORDER BY l, y LIMIT 2)",
)
"""Queries whose first rows no tie leaves open."""


@pytest.mark.proves("T23")
@pytest.mark.parametrize("query", FIRST)
def test_the_first_rows_are_followed_unless_others_follow_that_nobody_knows(query: str) -> None:
    maintained, rng = Maintained(RAW, query, COLUMNS), random.Random(query)
    methods: Counter[str] = Counter()
    for number in range(draws(16, 200)):
        maintained.fill(rng, (3, 12)[number % 2])
        n_before = maintained.rows.total()
        outcome = maintained.follow(rng, maintained.reads, grows=number % 4 == 1)
        is_full = n_before == int(query.rpartition(" ")[2].rstrip(")"))
        assert outcome.method == "rows" or (number % 4 != 1 and is_full), outcome
        methods[outcome.method, outcome.differs] += 1
    assert methods["rows", True] > methods["whole", True], methods


class WithTies(Maintained):
    """A query whose LIMIT may choose among several rows."""

    def _compare(
        self,
        changed: Sequence[str],
        program: Program | Merging | None,
        rows: Callable[[], Bag],
        expected: Bag,
    ) -> None:
        self.chosen = rows()
        every = self.rows_of(self.query.partition(" ORDER BY")[0])
        assert self.chosen <= every, self.chosen - every
        places = [
            sorted(repr(row[0]) for row in some.elements()) for some in (self.chosen, expected)
        ]
        assert places[0] == places[1]


@pytest.mark.proves("T23")
def test_any_of_the_rows_with_equal_places_can_be_among_the_first() -> None:
    query = "SELECT b, a, k FROM r ORDER BY b LIMIT 3"
    maintained, rng = WithTies(RAW, query, COLUMNS), random.Random(1)
    methods: Counter[str] = Counter()
    for _ in range(draws(20, 300)):
        maintained.fill(rng, 12)
        for _ in range(3):
            outcome = maintained.follow(rng, ["r"])
            methods[outcome.method] += 1
            if outcome.method == "rows":
                maintained.rows = maintained.chosen
    assert methods["rows"] > methods["whole"] > 0


SHARED = (
    "SELECT a FROM r WHERE a > (SELECT max(a) FROM s)",
    "SELECT a, k FROM r WHERE k = (SELECT max(k) FROM r)",
    "SELECT a FROM r WHERE n > (SELECT avg(n) FROM r)",
    "SELECT k, (SELECT max(y) FROM f) AS m FROM t",
    "SELECT k, sum(a) AS s FROM r WHERE b <= (SELECT max(j) FROM t) GROUP BY k",
    "SELECT k, max(a) AS s FROM r GROUP BY k HAVING max(a) < (SELECT max(b) FROM r)",
    "SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND s.a < (SELECT max(j) FROM t)",
    "SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.a >= (SELECT min(j) FROM t))",
    "SELECT k, a, b FROM r WHERE b < (SELECT max(j) FROM t) ORDER BY a, b, k LIMIT 3",
    "SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE a = 2 AND k = 1)",
    "SELECT k, sum(a) AS s FROM r WHERE NOT EXISTS (SELECT 1 FROM t WHERE j = 3) GROUP BY k",
    "SELECT a FROM r WHERE a > 1 OR EXISTS (SELECT k FROM s GROUP BY k, a HAVING count(*) > 2)",
)
"""Queries with a subquery that has one value for all rows."""


@pytest.mark.proves("T24")
@pytest.mark.parametrize("query", SHARED)
def test_a_value_that_all_rows_share_stays_the_same_or_all_rows_are_computed(query: str) -> None:
    maintained, rng = Maintained(RAW, query, COLUMNS), random.Random(query)
    methods: Counter[str] = Counter()
    for _ in range(draws(6, 60)):
        maintained.fill(rng, 12)
        for changed in (maintained.reads, maintained.reads[:1], maintained.reads[-1:]):
            outcome = maintained.follow(rng, changed, merges=True)
            methods[outcome.method] += 1
    assert 0 < methods["whole"] < methods.total(), methods


OBSTACLES = (
    ("of a LIMIT with an OFFSET", "SELECT k, a FROM r ORDER BY a LIMIT 3 OFFSET 1"),
    ("of a LIMIT by an expression", "SELECT k, a FROM r ORDER BY a LIMIT 2 + 1"),
    ("of a LIMIT of more than 100,000 rows", "SELECT k, a FROM r ORDER BY a LIMIT 100001"),
    (
        "of a LIMIT by values that the query does not select",
        "SELECT k, a FROM r ORDER BY a, b LIMIT 3",
    ),
    (
        "of avg(), whose last digits may depend on the order of rows",
        "SELECT k, avg(b) AS m FROM r GROUP BY k ORDER BY m LIMIT 2",
    ),
    ("of a LIMIT", "SELECT k, count(*) AS c FROM (SELECT k FROM r ORDER BY k LIMIT 3) GROUP BY k"),
    (
        "of a LIMIT",
        "SELECT t.j, q.a FROM t JOIN (SELECT k, a FROM r ORDER BY a LIMIT 3) q ON q.k = t.k",
    ),
    ("of an aggregate over all rows", "SELECT t.j, q.c FROM t, (SELECT max(a) AS c FROM r) q"),
    ("of an aggregate over all rows", "SELECT k, count(*) AS c FROM r GROUP BY ROLLUP(k)"),
    (
        "of a window without a PARTITION BY that all windows share",
        "SELECT a, rank() OVER (ORDER BY a) AS h FROM r",
    ),
    (
        "of a window without a PARTITION BY that all windows share",
        "SELECT count(*) OVER (PARTITION BY k) AS c, count(*) OVER (PARTITION BY x) AS i FROM r",
    ),
    (
        "of avg(), whose last digits may depend on the order of rows",
        "SELECT a FROM r WHERE a > (SELECT avg(a) FROM s)",
    ),
    (
        "of sum(), whose last digits may depend on the order of rows",
        "SELECT k, sum(v) AS s FROM (SELECT k, (SELECT sum(y) FROM f) + a AS v FROM r) GROUP BY k",
    ),
    (
        "of a subquery without an equality with the outer query",
        "SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k > r.k)",
    ),
    (
        "of a subquery of the type MAP<STRING,INT>",
        "SELECT a, (SELECT CAST(NULL AS MAP<STRING, INT>) FROM t WHERE j = 7) AS m FROM r",
    ),
    (
        "of a NOT IN, or IN as a value, that is correlated or has several columns or types",
        "SELECT a FROM r WHERE (a, k) NOT IN (SELECT a, k FROM s)",
    ),
    (
        "of a NOT IN, or IN as a value, that is correlated or has several columns or types",
        "SELECT a, x IN (SELECT a FROM s) AS i FROM r",
    ),
    (
        "of a NOT IN, or IN as a value, that is correlated or has several columns or types",
        "SELECT a, a IN (SELECT a FROM s WHERE s.k > r.k) AS i FROM r",
    ),
    (
        "of a subquery in the value before IN",
        "SELECT a FROM r WHERE (SELECT max(j) FROM t WHERE t.k = r.k) NOT IN (SELECT a FROM s)",
    ),
    (
        "of a subquery in the value before IN",
        "SELECT a FROM r WHERE CASE WHEN k IN (SELECT k FROM s) THEN a END IN (SELECT j FROM t)",
    ),
    *(
        ("of IN or NOT IN as a value", query)
        for query in (
            "SELECT a, CASE WHEN a > 0 THEN k IN (SELECT k FROM s) END AS c FROM r",
            "SELECT i, count(*) AS c FROM (SELECT k IN (SELECT j FROM t) AS i FROM r) GROUP BY i",
            "SELECT DISTINCT k IN (SELECT j FROM t) AS i FROM r",
            "SELECT x, max(k IN (SELECT j FROM t)) AS m FROM r GROUP BY x",
            "SELECT a FROM r WHERE coalesce(k IN (SELECT j FROM t), a > 1)",
            "SELECT a, rank() OVER (PARTITION BY k IN (SELECT j FROM t) ORDER BY a) AS h FROM r",
            "SELECT a FROM r LATERAL VIEW explode(array(k IN (SELECT j FROM t))) e AS e WHERE e.e",
            "SELECT a, k NOT IN (SELECT j FROM t) AS i FROM r",
            "SELECT x, count(CASE WHEN k NOT IN (SELECT j FROM t) THEN 1 END) AS c FROM r GROUP BY x",
            "SELECT k NOT IN (SELECT j FROM t) AS i, count(*) AS c FROM r GROUP BY 1",
            "SELECT rank() OVER (PARTITION BY k NOT IN (SELECT j FROM t) ORDER BY a) AS h FROM r",
            "SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k AND s.a NOT IN (SELECT j FROM t)",
            "SELECT r.a FROM r JOIN t ON r.k = t.k WHERE t.j > 1 OR r.a NOT IN (SELECT a FROM s)",
            "SELECT a FROM r WHERE CASE WHEN k NOT IN (SELECT j FROM t) THEN b > 1 END",
            "SELECT a FROM r WHERE coalesce(k NOT IN (SELECT j FROM t), a > 1)",
        )
    ),
    *(
        ("of a column computed by IN that is not used as a condition", query)
        for query in (
            "SELECT a FROM (SELECT DISTINCT a, k IN (SELECT j FROM t) AS i FROM r) WHERE NOT i",
            "SELECT i, NOT i AS n FROM (SELECT k IN (SELECT j FROM t) AS i FROM r)",
        )
    ),
    (
        "of a subquery with conditions on the outer query in several places",
        "SELECT a FROM r WHERE EXISTS"
        " (SELECT 1 FROM s WHERE s.k = r.k UNION ALL SELECT 1 FROM t WHERE t.k = r.k)",
    ),
    (
        "of a subquery that reads changed rows beside those that it finds by keys",
        "SELECT a FROM r WHERE EXISTS"
        " (SELECT 1 FROM (SELECT count(*) AS n FROM s WHERE s.k = r.k) g JOIN t ON t.j = g.n)",
    ),
    (
        "of an outer join without an equality between its sides",
        "SELECT r.a, s.z FROM r LEFT JOIN s ON r.k > s.k",
    ),
    (
        "of a subquery in ON that refers to both sides of an outer join",
        "SELECT r.a FROM r LEFT JOIN s"
        " ON r.k = s.k AND EXISTS (SELECT 1 FROM t WHERE t.k = s.a AND t.j = r.a)",
    ),
    (
        "of an aggregate of a subquery",
        "SELECT a, (SELECT max(CASE WHEN r.a IN (SELECT k FROM t) THEN 1 END) FROM s WHERE s.k = r.k) AS m FROM r",
    ),
    (
        "of sum(), whose last digits may depend on the order of rows",
        "SELECT y FROM (SELECT k, sum(y) AS y FROM f GROUP BY k)",
    ),
    (
        "of sum(), whose last digits may depend on the order of rows",
        "SELECT y, count(*) AS c FROM (SELECT k, sum(y) AS y FROM f GROUP BY k) GROUP BY y",
    ),
    (
        "of avg(), whose last digits may depend on the order of rows",
        "SELECT g.b, t.j FROM (SELECT k, avg(b) AS b FROM r GROUP BY k) g JOIN t ON g.b = t.j",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT x FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY b) = 1",
    ),
    (
        "of sum(), whose last digits may depend on the order of rows",
        "SELECT c, count(*) AS n FROM"
        " (SELECT sum(b) OVER (PARTITION BY k ORDER BY a ROWS 1 PRECEDING) AS c FROM r) GROUP BY c",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT j, row_number() OVER (PARTITION BY k ORDER BY j) AS n FROM t",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT k, sum(IF(n = 1, 1, 0)) AS n FROM"
        " (SELECT k, row_number() OVER (PARTITION BY a ORDER BY a) AS n FROM r) GROUP BY k",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT t.k, q.n FROM t JOIN (SELECT k, a,"
        " row_number() OVER (PARTITION BY a ORDER BY a) AS n FROM r) q ON q.k = t.k",
    ),
    (  # a row of `t` without a latest row would be joined, too
        "of row_number(), whose value may depend on the order of rows",
        "SELECT t.k, s.z FROM t LEFT JOIN (SELECT k, a FROM r QUALIFY row_number()"
        " OVER (PARTITION BY k ORDER BY a) = 1) c ON c.k = t.k JOIN s ON s.a = coalesce(c.a, 1)",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT t.k, e.e FROM t LEFT JOIN (SELECT k, a FROM r QUALIFY row_number() OVER"
        " (PARTITION BY k ORDER BY a) = 1) c ON c.k = t.k"
        " LATERAL VIEW explode(array(coalesce(c.a, 1))) e AS e WHERE e.e = 1",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT q.k, s.z FROM (SELECT DISTINCT t.k, coalesce(c.a, 1) AS a FROM t LEFT JOIN (SELECT"
        " k, a FROM r QUALIFY row_number() OVER (PARTITION BY k ORDER BY a) = 1) c ON c.k = t.k) q"
        " LEFT JOIN s ON s.a = q.a",
    ),
    (  # which rows of `s` count for a row is not certain
        "of row_number(), whose value may depend on the order of rows",
        "SELECT q.k, sum((SELECT max(s.z) FROM s WHERE s.a = q.rn)) AS m FROM (SELECT k, b,"
        " row_number() OVER (PARTITION BY k ORDER BY a) AS rn FROM r) q WHERE q.b = 1 GROUP BY q.k",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT t.k, t.j, q.b FROM t LEFT JOIN (SELECT k, b, rn FROM (SELECT k, b, row_number()"
        " OVER (PARTITION BY k ORDER BY a) AS rn FROM r) WHERE b = 1) q"
        " ON q.k = t.k AND EXISTS (SELECT 1 FROM s WHERE s.a = q.rn)",
    ),
    (  # `q.z` may be NULL
        "of row_number(), whose value may depend on the order of rows",
        "SELECT t.k, t.j, w.c FROM t LEFT JOIN (SELECT p.k, (SELECT count(*) FROM f WHERE f.k ="
        " coalesce(q.z, 0)) AS c FROM r p LEFT JOIN (SELECT k, z, row_number() OVER (PARTITION BY k"
        " ORDER BY a) AS rn FROM s) q ON q.k = p.k AND q.rn = 2) w ON w.k = t.k",
    ),
    (  # ranks of sums that are equal but for their last digits
        "of avg(), whose last digits may depend on the order of rows",
        "SELECT k, h FROM (SELECT k, x, rank() OVER (PARTITION BY x ORDER BY b) AS h FROM"
        " (SELECT k, x, avg(b) AS b FROM r GROUP BY k, x))",
    ),
    (  # the first rows of keys, and of other keys
        "of row_number(), whose value may depend on the order of rows",
        "SELECT p.k, p.x, q.b FROM (SELECT k, x FROM r QUALIFY row_number() OVER (PARTITION BY k"
        " ORDER BY a) = 1) p JOIN (SELECT x, b FROM r QUALIFY row_number() OVER (PARTITION BY x"
        " ORDER BY a) = 1) q ON q.x = p.x",
    ),
    (  # the window is over some of the rows
        "of row_number(), whose value may depend on the order of rows",
        "SELECT k, x, h FROM (SELECT k, x, a, rank() OVER (PARTITION BY k, x ORDER BY a) AS h FROM"
        " (SELECT k, x, a FROM r QUALIFY row_number() OVER (PARTITION BY k, a ORDER BY b) = 1))",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT c.k, t.j FROM t LEFT JOIN (SELECT k, a FROM r QUALIFY row_number()"
        " OVER (PARTITION BY k ORDER BY a) = 1) c ON c.k = t.k",
    ),
    (
        "of row_number(), whose value may depend on the order of rows",
        "SELECT t.k, c.a FROM t FULL JOIN (SELECT k, a FROM r QUALIFY row_number()"
        " OVER (PARTITION BY k ORDER BY a) = 1) c ON c.k = t.k",
    ),
    (
        "of a subquery that reads changed rows beside those that it finds by keys",
        "SELECT a FROM r WHERE EXISTS (SELECT (SELECT count(*) FROM s WHERE s.k = t.j) AS w FROM t"
        " WHERE t.k = r.k INTERSECT SELECT v.k AS w FROM v)",
    ),
    (
        "of max(), whose value may depend on the order of rows",
        "SELECT s, avg(k) AS m FROM (SELECT k, CAST(max(y) AS STRING) AS s FROM f GROUP BY k)"
        " GROUP BY s",
    ),
    (
        "of min(), whose value may depend on the order of rows",
        "SELECT 1 / min(y) AS m FROM f GROUP BY k",
    ),
    ("of a string with a backquote", "SELECT a FROM r WHERE x = '`now:r`'"),
    ("of a string with escapes", r"SELECT a FROM r WHERE x LIKE 'a\\%'"),
    ("of TABLESAMPLE", "SELECT a FROM r TABLESAMPLE (10 PERCENT)"),
)


@pytest.mark.parametrize(("reason", "query"), OBSTACLES, ids=lambda text: text[:40])
def test_a_query_without_a_maintenance_rule_has_a_reason(reason: str, query: str) -> None:
    with pytest.raises(NoRule) as error:
        maintained = Maintained(RAW, query, COLUMNS)
        maintained.program(maintained.reads)
    assert error.value.reason == reason


def test_changes_of_non_key_columns_count_for_other_subquery_conditions() -> None:
    query = "SELECT k, j FROM t WHERE EXISTS (SELECT 1 FROM s WHERE s.k = t.k AND s.a > t.j)"
    maintained, rng = Maintained(RAW, query, COLUMNS), random.Random(3)
    for _ in range(draws(12, 30)):
        maintained.fill(rng, 3)
        maintained.follow(rng, ["s"])


def test_values_of_an_in_of_two_types_are_no_keys() -> None:
    """Several values of the finer type may equal one value of the other."""
    with pytest.raises(NoRule):
        Maintained(RAW, "SELECT y FROM f WHERE y IN (SELECT z FROM s)", COLUMNS).program(["s"])
    query = "SELECT k, y FROM f WHERE (k, y) IN (SELECT k, z FROM s)"
    maintained, rng = Maintained(RAW, query, COLUMNS), random.Random(3)
    program = maintained.program(["s"])
    assert program is not None
    assert not any("HAVING sum" in sql for sql in program.held.values())
    for _ in range(draws(12, 30)):
        maintained.fill(rng, 6)
        maintained.follow(rng, ["s"])


@pytest.mark.parametrize(("column", "is_net"), [("k", True), ("y", False)])
def test_changes_of_integer_keys_are_netted_but_those_of_doubles_are_not(
    column: str, *, is_net: bool
) -> None:
    condition = f"EXISTS (SELECT 1 FROM f WHERE f.{column} = g.{column})"
    maintained = Maintained(RAW, f"SELECT k FROM f AS g WHERE {condition}", COLUMNS)
    program = maintained.program(["f"])
    assert program is not None
    assert any("HAVING sum" in sql for sql in program.held.values()) == is_net


@pytest.mark.proves("T15")
@pytest.mark.parametrize("summed", ["length(x)", "ceil(a / 2)", "levenshtein(x, 'ab')"])
def test_sums_of_functions_of_integers_are_merged(summed: str) -> None:
    query = f"SELECT k, sum({summed}) AS s FROM r GROUP BY k"
    maintained, rng = Maintained(RAW, query, COLUMNS), random.Random(5)
    assert maintained.merging(["r"]).states
    for _ in range(draws(6, 20)):
        maintained.fill(rng, 4)
        maintained.follow(rng, ["r"], merges=True)


def test_a_total_in_a_subquery_is_computed_from_its_state() -> None:
    total = "(SELECT 2 * count(*) FROM r)"
    query = f"SELECT k, sum(a) AS s FROM r GROUP BY k HAVING sum(a) < {total}"
    merging = Maintained(RAW, query, COLUMNS).merging(["r"])
    assert len(merging.states) == 2
    assert "r@sources" not in merging.rows


@pytest.mark.proves("T14")
@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("SELECT k, sum(a) AS s FROM r GROUP BY k", (0,)),
        (
            "SELECT count(*) AS n, x, 2 * sum(a) AS s, k FROM r GROUP BY k, x HAVING sum(a) > 0",
            (3, 1),
        ),
        (
            "SELECT g.n, t.j, g.k FROM (SELECT k, count(*) AS n FROM r GROUP BY k) g JOIN t ON t.k = g.k",
            (2,),
        ),
        ("SELECT count(*) AS n FROM r GROUP BY k", ()),
        ("SELECT k + 1 AS k1, count(*) AS n FROM r GROUP BY k", ()),
        ("SELECT count(*) AS n FROM r", ()),
        (
            "SELECT k, count(*) AS n FROM r GROUP BY k HAVING count(*) < (SELECT count(*) FROM r)",
            (),
        ),
        ("SELECT k, n, sum(n) OVER () AS s FROM (SELECT k, count(*) AS n FROM r GROUP BY k)", ()),
        ("SELECT k, count(*) AS n FROM r GROUP BY k ORDER BY n, k LIMIT 2", ()),
        (
            "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM r GROUP BY k) GROUP BY n",
            (0,),
        ),
        (  # it may have other last digits
            "SELECT k, n, (SELECT sum(y) FROM f) AS y FROM (SELECT k, count(*) AS n FROM r GROUP BY k)",
            (),
        ),
    ],
)
def test_merging_rewrites_only_rows_with_the_keys_of_changed_groups(
    query: str, keys: tuple[int, ...]
) -> None:
    maintained, rng = Maintained(RAW, query, COLUMNS), random.Random(5)
    assert maintained.merging(["r"]).key_columns == keys
    for _ in range(draws(6, 20)):
        maintained.fill(rng, 4)
        maintained.follow(rng, ["r"], merges=True)


def test_expressions_over_a_total_are_printed_in_one_select_with_it() -> None:
    query = "SELECT a FROM r WHERE b > (SELECT 2 * max(z) + 1 FROM s WHERE s.k = r.k)"
    program = Maintained(RAW, query, COLUMNS).program(["r"])
    assert program is not None
    assert re.search(r"\(SELECT [^A-Z]*max\(r\d+_\d+\)[^A-Z]* AS c0 FROM", program.rows)


ADDITIVE = {
    "SELECT a + 1 AS a FROM r WHERE k = 1": ["r"],
    "SELECT r.a, s.z FROM r JOIN s ON r.k = s.k": ["r", "s"],
    "SELECT k FROM r UNION ALL SELECT k FROM s": ["r", "s"],
    "SELECT k, e FROM v LATERAL VIEW explode(arr) g AS e": ["v"],
    "SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k": ["r"],
    "SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k)": ["r"],
    "SELECT r.a FROM r FULL JOIN s ON r.k = s.k": [],
    "SELECT DISTINCT k FROM r": [],
    "SELECT k FROM r INTERSECT SELECT k FROM s": [],
    "SELECT k, max(a) AS a FROM r GROUP BY k": [],
    "SELECT k, rank() OVER (PARTITION BY k ORDER BY a) AS h FROM r": [],
}
"""For each query, the tables whose new rows only add rows to its result."""


@pytest.mark.parametrize("query", ADDITIVE)
def test_only_adds_is_set_only_if_new_rows_cannot_remove_result_rows(query: str) -> None:
    maintained, additive = Maintained(RAW, query, COLUMNS), ADDITIVE[query]
    for table in maintained.reads:
        for grows in (True, False):
            program = maintained.program([table], grows=grows)
            assert program is not None
            assert program.only_adds == (grows and table in additive)
    if additive == maintained.reads:
        assert maintained.program(additive, grows=True).only_adds  # pyright: ignore[reportOptionalMemberAccess]


def test_without_changed_tables_there_is_no_program() -> None:
    maintained = Maintained(RAW, "SELECT a FROM r WHERE b > 1", COLUMNS)
    assert maintained.program([]) is None
    program = maintained.program(["r"])
    assert program is not None
    assert program.columns == {"r@sources/raw.sql": ((0, "a"), (1, "b"))}


NARROW = {
    "SELECT r.a, s.z FROM r LEFT JOIN s ON r.k = s.k": ("ak", "kz"),
    "SELECT r.a FROM r LEFT JOIN s ON r.k = s.k LEFT JOIN t ON s.a = t.k": ("ak", "ak"),
    "SELECT count(*) AS n FROM r FULL JOIN s ON r.k = s.k": ("k", "k"),
    "SELECT k, x, count(*) AS n FROM r GROUP BY GROUPING SETS ((k, x), (k))": ("kx", ""),
    "SELECT k FROM (SELECT *, rank() OVER (PARTITION BY k ORDER BY b) AS h FROM r) WHERE h = 1": (
        *("bk", ""),
    ),
    "SELECT k FROM (SELECT *, sum(b) OVER (PARTITION BY x) AS h FROM r)": ("k", ""),
    "SELECT r.a FROM r WHERE EXISTS (SELECT * FROM s WHERE s.k = r.k)": ("ak", "k"),
}
"""The columns of the tables `r` and `s` that some queries use."""


@pytest.mark.proves("T8")
@pytest.mark.parametrize("query", NARROW)
def test_a_query_depends_only_on_the_columns_that_it_uses(query: str) -> None:
    maintained = Maintained(RAW, query, COLUMNS)
    columns = used_of_tables(maintained.definition.block)
    used = ("".join(n for _, n in columns.get(f"{t}@sources/raw.sql", ())) for t in ("r", "s"))
    assert tuple(used) == NARROW[query]


MISPRINTS: dict[str, tuple[object, str, object]] = {
    "SELECT x IS NULL AS n FROM r": (
        printing._FORMS,
        "is null",
        lambda show, args, words: f"({show(args[0])} IS NOT NULL)",
    ),
    "SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END AS c FROM r": (
        printing._FORMS,
        "case",
        lambda show, args, words: printing._case(show, [*args[:-1]], ()),
    ),
    "SELECT a < b AS c FROM r": (printing._FORMS, "<", printing._FORMS["<="]),
    "SELECT CAST(a AS BIGINT) AS c FROM r": (
        printing._FORMS,
        "cast",
        lambda show, args, words: show(args[0]),
    ),
    "SELECT k, sum(a) OVER (PARTITION BY k ORDER BY b) AS s FROM r": (
        printing,
        "direction",
        lambda sort: " DESC NULLS LAST",
    ),
    "SELECT k, sum(a) OVER (PARTITION BY k ORDER BY b ROWS 1 PRECEDING) AS s FROM r": (
        printing.Printer,
        "_frame",
        lambda self, frame, names: "",
    ),
    "SELECT x FROM r WHERE a = 1": (
        printing._FORMS,
        "number",
        lambda show, args, words: "2",
    ),
    "SELECT k, percentile_cont(0.5) WITHIN GROUP (ORDER BY a DESC) AS p FROM r GROUP BY k": (
        printing,
        "_words_of_direction",
        lambda words: "ASC NULLS FIRST",
    ),
    "SELECT k, j FROM t EXCEPT SELECT j, k FROM t": (
        printing.Printer,
        "node",
        lambda self, node, instance, columns: _reversed(node_of(self, node, instance, columns)),
    ),
}
"""For each query, a part of the printer, and a replacement that prints it wrongly."""

node_of = printing.Printer.node


def _reversed(text: str) -> str:
    left, word, right = text.partition(" EXCEPT ")
    return f"{right}{word}{left}"


@pytest.mark.proves("T9")
@pytest.mark.parametrize("query", MISPRINTS)
def test_a_printed_query_with_another_meaning_is_rejected(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, name, misprint = MISPRINTS[query]
    Maintained(RAW, query, COLUMNS)
    if isinstance(holder, dict):
        monkeypatch.setitem(holder, name, misprint)
    else:
        monkeypatch.setattr(holder, name, misprint)
    with pytest.raises(NoRule, match="printed with another meaning"):
        Maintained(RAW, query, COLUMNS)


HELD_ONCE = {
    "WITH c AS (SELECT k, count(*) AS n FROM r GROUP BY k)"
    " SELECT x.k, y.n FROM c x JOIN c y ON x.n = y.k": {"keys": 2, "change": 1},
    "SELECT k FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.x = 'a')"
    " UNION ALL SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.x = 'a')": {
        "keys": 2
    },
    "SELECT k FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.x = 'l1')"
    " UNION ALL SELECT a FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k AND s.x = 'l2')": {
        "keys": 3
    },
    "SELECT k, rank() OVER (PARTITION BY k ORDER BY a, b) AS h FROM r"
    " WHERE EXISTS (SELECT 1 FROM s WHERE s.k = r.k)": {"keys": 3, "change": 0},
}
"""For each query, the number of held relations of each kind. One with keys is for a probe."""


@pytest.mark.parametrize("query", HELD_ONCE)
def test_equal_parts_of_a_query_are_computed_once(query: str) -> None:
    maintained = Maintained(RAW, query, COLUMNS)
    program = maintained.program(["s"] if "s.k" in query else ["r"])
    assert program is not None
    held = Counter(name.partition(":")[0] for name in program.held)
    assert {kind: held[kind] for kind in HELD_ONCE[query]} == HELD_ONCE[query]


NUMBERED = {
    "SELECT l7.c0, 'l7' AS x FROM t AS l7 WHERE l7.c1 = l9.c0": (
        "SELECT l1.c0, 'l7' AS x FROM t AS l1 WHERE l1.c1 = l2.c0"
    ),
    """SELECT "it's l3", `l``4`, r5_0 FROM `delta:l6` AS l5""": (
        """SELECT "it's l3", `l``4`, r1_0 FROM `delta:l6` AS l1"""
    ),
    "SELECT CAST(l5.c0 AS STRUCT<l5: INT>) FROM t AS l5": (
        "SELECT CAST(l5.c0 AS STRUCT<l5: INT>) FROM t AS l5"
    ),
}
"""Statements, and the text that is held for each."""


@pytest.mark.parametrize("sql", NUMBERED)
def test_only_table_instances_are_renumbered(sql: str) -> None:
    relations = Relations(frozenset(), frozenset(), {})
    name = relations.hold("rows", sql)
    assert relations.held == {name: NUMBERED[sql]}
    assert relations.hold("rows", NUMBERED[sql]) == name


TOUCHED = {
    "SELECT k, count(*) AS n FROM r GROUP BY k": True,
    "SELECT k, count(*) AS n FROM (SELECT k FROM r) GROUP BY k": True,
    "SELECT k, count(*) AS n FROM r WHERE a > 1 GROUP BY k": False,
    "SELECT k + 1 AS k, count(*) AS n FROM r GROUP BY k + 1": False,
}
"""Aggregates, and whether their keys are those of all changed rows of the table."""


def test_queries_share_one_relation_of_the_keys_of_all_changed_rows() -> None:
    names = dict[str, set[str]]()
    for query in TOUCHED:
        program = Maintained(RAW, query, COLUMNS).program(["r"])
        assert program is not None
        names[query] = {name for name in program.held if name.startswith("keys:")}
    shared = {*names[next(iter(TOUCHED))]}
    assert len(shared) == 1
    assert {query: shared <= keys for query, keys in names.items()} == TOUCHED


def test_a_query_searches_a_table_for_the_keys_of_all_its_terms_at_once() -> None:
    query = "SELECT r.a, s.z, t.j FROM r JOIN s ON r.k = s.k JOIN t ON r.k = t.k"
    program = Maintained(RAW, query, COLUMNS).program(["r", "s", "t"])
    assert program is not None
    probes = {p.table.partition("@")[0]: p for p in program.probes.values()}
    origins = {t: [o.partition("@")[0] for o, _ in p.origins] for t, p in probes.items()}
    assert len(program.probes) == 3
    assert origins == {"r": ["s", "t"], "s": ["r", "t"], "t": ["r", "s"]}


JOINED_ONCE = {
    "SELECT r.a, t.j FROM t JOIN r ON t.k = r.a JOIN s ON r.k = s.k": 1,
    "SELECT r.a, t.j FROM r JOIN s ON r.k = s.k JOIN t ON t.k = r.k": 1,
    "SELECT r.a FROM r JOIN s ON r.k = s.k JOIN t ON t.k = r.k WHERE t.j = 1": 4,
    "SELECT r.a, t.j FROM r JOIN t ON t.k = r.a JOIN s ON t.j = s.k": 2,
    "SELECT r.a, t.j FROM r JOIN s ON r.k < s.k JOIN t ON t.k = r.a": 2,
}
"""Queries over `r` and `s`, which change, and how often a program reads `t`, which does not.

A filter on `t` that rejects join keys reduces the keys to search, too.
"""


@pytest.mark.parametrize("query", JOINED_ONCE)
def test_an_unchanged_table_is_joined_once_with_changed_ones_that_are_joined(query: str) -> None:
    program = Maintained(RAW, query, COLUMNS).program(["r", "s"])
    assert program is not None
    assert "\n".join(program.statements).count("`now:t@") == JOINED_ONCE[query]


def test_changed_subqueries_are_tested_once_over_joined_leaves() -> None:
    pairs = (
        "r x JOIN r y ON x.k = y.a JOIN t ON y.b = t.k JOIN s p ON p.k = t.j JOIN s q ON q.a = p.a"
    )
    query = f"SELECT x.a, q.z FROM {pairs} WHERE q.k IN (SELECT 1 FROM f)"
    program = Maintained(RAW, query, COLUMNS).program(["r", "s", "f"])
    assert program is not None
    joined = [sql for name, sql in program.held.items() if name.startswith("change:")]
    assert len(joined) == 2
    assert not any("f@sources" in sql for sql in joined)
