"""Views of the forms that real projects contain: conditions, joins and nesting over `t` and `u`.

`CONDITIONS` are conditions on columns of `t`; `FORMS` put conditions into queries. `VIEWS` has each
condition in the simplest query, and each form with some conditions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from pushing import VALUES, Tables

PLACE = "STRUCT<city: STRING, zip: INT, geo: STRUCT<lat: DOUBLE, since: DATE>>"
REAL: Tables = {
    "t": {
        **{"id": "BIGINT", "k": "INT", "s": "STRING", "s2": "STRING", "ts": "TIMESTAMP"},
        **{"n": "TIMESTAMP_NTZ", "d": "DATE", "amt": "DECIMAL(10,2)", "f": "DOUBLE", "g": "FLOAT"},
        **{"ok": "BOOLEAN", "sm": "SMALLINT", "b": "BINARY", "place": PLACE, "day": "DATE"},
    },
    "u": {
        **{"id": "BIGINT", "k": "INT", "s": "STRING", "name": "STRING", "ts": "TIMESTAMP"},
        **{"d": "DATE", "w": "INT", "f": "DOUBLE", "vip": "BOOLEAN"},
    },
}
"""Columns of the tables; `t` is partitioned by `day`."""

VALUES.update(
    {
        "BIGINT": [0, 1, 2, 3, 5, 2**53 + 1],
        "SMALLINT": [0, 1, 2, 300, -1, None],
        "BINARY": [bytearray(b"\0"), bytearray(b"\1"), bytearray(b""), None],
        PLACE: [
            ("a", 1, (1.5, dt.date(2024, 2, 29))),
            ("ab", 2, (float("nan"), None)),
            (None, 1, None),
            ("b", None, (-0.0, dt.date(2024, 3, 1))),
            None,
        ],
    }
)

NUMBERS = """
k = 3
k <> 3
k > 1 + 1
k >= 10 - 2 * 4
k < 7 / 2
k <= 7 div 2
k = 7 % 4
k > -(1)
k = abs(-2)
k = 2L
k > 1.5
k = 1.0
k < 2.5e0
k = '2'
'1' < k
k <= CAST('3' AS INT)
k = CAST(2.7 AS INT)
k BETWEEN 1 AND 1 + 2
k NOT BETWEEN 1 AND 2
k IN (1, 1 + 1, 7)
k NOT IN (2, 3)
k IN ('1', '2')
k <=> 2
NOT (k <=> 2)
k IS NULL
k IS NOT NULL
k = 1 OR k = 2 OR k > 5
NOT (k = 1 OR k = 2)
k % 2 = 0
k + 1 = 3
-k = 1
id = '5'
id > 2
id IN (1, 2, 3)
id < pow(2, 3)
id >= 4 AND id < 4 + 10
sm = 2
sm > 1
sm IN (1, 2, 300)
sm < 40000
amt > 1.5
amt = 1.5
amt >= 0.06 - 0.01
amt BETWEEN 0.06 - 0.01 AND 0.06 + 2.01
amt < 2
amt = CAST('1.5' AS DECIMAL(10,2))
amt < CAST('2' AS DECIMAL)
amt IN (1.5, 2.25)
amt > 1e0
amt <> 0
amt >= CAST(1.5 AS DECIMAL(10,2))
f > 1.5
f = 2
f >= 0.06 - 0.01
f < 3 * 0.5
f = 0.0
f <> 0
f = CAST('1.5' AS DOUBLE)
f > 1e-1
f IN (1.5, 2.0)
f < CAST(2 AS DOUBLE)
f = double('1.5')
g > 0.25
g = CAST(0.5 AS FLOAT)
g < 1
isnan(f)
f IS NOT NULL AND NOT isnan(f)
"""
TEXTS = """
s = 'a'
s = "ab"
s <> 'a'
s > 'a'
s IN ('a', 'ab', 'b')
s NOT IN ('a', 'b')
s LIKE 'a%'
s LIKE '%b'
s LIKE '%a%'
s LIKE 'a'
s NOT LIKE 'a%'
s LIKE 'a%b'
s LIKE '_b'
s LIKE ANY ('a%', '%b')
s LIKE ALL ('a%', '%b')
s NOT LIKE ALL ('a%', 'b%')
s LIKE SOME ('a%', 'b%')
startswith(s, 'a')
endswith(s, 'b')
contains(s, 'a')
NOT startswith(s, 'a')
NOT contains(s, 'b')
startswith(s, '')
contains(s, '100%')
startswith(s, '_')
left(s, 1) = 'a'
substring(s, 1, 1) = 'a'
s ILIKE 'A%'
s RLIKE '^a'
s = concat('a', 'b')
s = 'a' || 'b'
s = upper('a')
s = lower('AB')
s = trim(' a ')
s >= substring('abc', 1, 2)
s = CAST(1 AS STRING)
lower(s) = 'a'
length(s) = 1
s = s2
s < s2
concat(s, 'x') = 'ax'
coalesce(s, 'a') = 'a'
coalesce(s, 'z') = 'a'
s IS NULL OR s = ''
s <=> 'a'
nullif(s, 'a') IS NULL
b = X'00'
b <> X'01'
b IS NOT NULL
"""
TIMES = """
ts >= '2024-03-01'
ts >= TIMESTAMP '2024-03-01 00:00:00'
ts < '2024-03-10 04:00:00'
ts BETWEEN '2024-01-01' AND '2024-03-01'
ts > DATE '2024-02-29'
ts >= CAST('2024-03-01' AS TIMESTAMP)
ts >= to_timestamp('2024-03-01 00:00:00')
ts >= to_timestamp('2024-03-01')
ts >= TIMESTAMP '2024-03-01 00:00:00' - INTERVAL 1 DAY
ts >= DATE '2024-03-01' - INTERVAL 1 MONTH
ts >= NOW() - INTERVAL 6 MONTHS
ts >= current_timestamp() - INTERVAL 7 DAYS
ts < current_date()
ts >= date_trunc('month', current_date())
ts >= date_trunc('MONTH', TIMESTAMP '2024-03-10 00:00:00')
ts >= date_sub(current_date(), 30)
ts >= add_months(current_date(), -6)
ts < timestamp_seconds(1709251200)
ts >= make_timestamp(2024, 3, 1, 0, 0, 0)
CAST(ts AS DATE) = DATE '2024-02-29'
to_date(ts) >= '2024-03-01'
date(ts) >= DATE '2024-03-01'
year(ts) = 2024
date_trunc('day', ts) = TIMESTAMP '2024-03-01 00:00:00'
date_format(ts, 'yyyy') = '2024'
ts IS NOT NULL
ts = ts
n >= '2024-02-29'
n >= TIMESTAMP_NTZ '2024-02-29 00:00:00'
n > DATE '2024-01-01'
n <= localtimestamp()
n = TIMESTAMP '2024-02-29 12:00:00'
n < CAST('2024-03-01' AS TIMESTAMP_NTZ)
d >= '2024-03-01'
d = DATE '2024-02-29'
d >= DATE '2024-03-01' - INTERVAL 1 DAY
d >= DATE '2024-03-01' - 1
d >= date_add(DATE '2024-02-01', 28)
d >= date_sub('2024-03-02', 1)
d = to_date('2024-02-29')
d = to_date('29.02.2024', 'dd.MM.yyyy')
d = CAST('2024-02-29' AS DATE)
d >= make_date(2024, 3, 1)
d = last_day(DATE '2024-02-05')
d = last_day('2024-02-05')
d <= last_day(current_date())
d >= trunc(current_date(), 'MM')
d >= trunc(DATE '2024-03-10', 'MM')
d >= date_trunc('month', DATE '2024-03-10')
d >= add_months(DATE '2024-01-31', 1)
d < current_date() - 30
d BETWEEN current_date() - INTERVAL 1 YEAR AND current_date()
d IN (DATE '2024-02-29', DATE '2024-03-01')
d IN ('2024-02-29', '2024-03-01')
d <> DATE '2024-03-01'
d > TIMESTAMP '2024-02-29 12:00:00'
d = next_day(DATE '2024-02-28', 'FRI')
d = date_from_unix_date(19782)
year(d) = 2024 AND month(d) = 2
d = DATE '2024-02-29' AND day >= DATE '2024-02-29'
day = DATE '2024-02-29'
day >= '2024-03-01'
day BETWEEN DATE '2024-01-01' AND DATE '2024-02-29' AND k > 1
day IS NULL
day IN (DATE '2024-02-29', DATE '2023-12-31')
year(day) = 2024
day >= current_date() - 365
"""
LOGIC = """
ok
NOT ok
ok = true
ok = false
ok IS TRUE
ok IS NOT TRUE
ok IS FALSE
ok <> true
(s = 'a') = true
(s = 'a') = false
(k > 1) IS TRUE
(k > 1) IS NOT TRUE
(k > 1) <=> true
(s = 'a') = (1 = 1)
if(ok, s, 'z') = 'a'
if(k > 1, 'hi', 'lo') = 'hi'
if(k > 1, 1, 0) = 1
if(k > 1, 1, 0) = 0
if(k > 1, true, false)
CASE WHEN k = 1 THEN 'one' WHEN k = 2 THEN 'two' ELSE 'many' END = 'one'
CASE WHEN k = 1 THEN 'one' WHEN k = 2 THEN 'two' ELSE 'many' END = 'many'
CASE WHEN k = 1 THEN 'one' WHEN k = 2 THEN 'two' END = 'two'
CASE WHEN k = 1 THEN 'one' WHEN k = 2 THEN 'two' END IN ('one', 'two')
CASE WHEN k = 1 THEN 'one' WHEN k = 2 THEN 'two' END IS NULL
CASE s WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 0 END = 2
CASE s WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 0 END > 0
CASE WHEN ok THEN k > 1 ELSE false END
CASE WHEN ok THEN k ELSE 0 END > 1
CASE WHEN s = 'a' THEN k END = 1
coalesce(k, 0) > 1
coalesce(k, 0) = 0
coalesce(k, 0) <> 1
coalesce(ok, false)
coalesce(ok, true)
coalesce(k > 1, false)
nvl(k, 5) = 5
ifnull(s, '') = ''
coalesce(k, sm, 0) > 1
nullif(k, 0) = 1
nvl2(k, s, 'none') = 'a'
(k, s) IN ((1, 'a'), (2, 'b'))
(k, d) IN ((1, DATE '2024-02-29'), (2, DATE '2024-03-01'))
(k, s) = (1, 'a')
struct(k, s) = struct(1, 'a')
k = 1 AND s = 'a' OR k = 2 AND s = 'b'
k = 1 AND (s = 'a' OR f > 1)
k = 1 OR reverse(s) = 'a'
(k = 1 AND reverse(s) = 'a') OR (k = 2 AND s = 'b')
true
1 = 1 AND k = 2
k = 2 AND NOT false
1 = 0
k = NULL
k > 1 AND NULL
isnull(k)
isnotnull(k)
k == 2 AND k != 3
NOT (k > 1 AND s = 'a')
NOT NOT ok
ok AND (ok OR k = 1)
k = greatest(1, 2)
k >= coalesce(NULL, 2)
k = if(true, 2, 3)
k = CASE WHEN 1 = 1 THEN 2 ELSE 3 END
k IN (SELECT 2)
place.city = 'a'
place.zip > 1
place.city IN ('a', 'b')
place.city LIKE 'a%'
place.geo.lat > 1.5
place.geo.since >= '2024-02-29'
place.city IS NOT NULL
place IS NOT NULL
place.city = 'a' AND place.zip = 1
lower(place.city) = 'a'
place['city'] = 'a'
"""


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


CONDITIONS = [*_lines(NUMBERS), *_lines(TEXTS), *_lines(TIMES), *_lines(LOGIC)]

FORMS = {
    "view": "WITH v AS (SELECT id AS i, k, s, ts, d, ok, f FROM t) SELECT i FROM v WHERE {0}",
    "views": "WITH v AS (SELECT * FROM t WHERE {0}), w AS (SELECT id, k, s, ts FROM v WHERE {1})"
    " SELECT id, s FROM w WHERE ts IS NOT NULL",
    "renamed": "SELECT x FROM (SELECT s AS x, k AS y FROM t) WHERE x = 'a' AND y > 1",
    "computed": "SELECT * FROM (SELECT id, CASE WHEN k > 2 THEN 'big' ELSE 'small' END AS size FROM t"
    " WHERE {0}) WHERE size = 'big'",
    "defaulted": "SELECT * FROM (SELECT id, coalesce(s, 'none') AS s FROM t WHERE {0}) WHERE s = 'none'",
    "constants": "SELECT * FROM (SELECT id, 'x' AS src, k FROM t UNION ALL SELECT id, 'y', k FROM u)"
    " WHERE src = 'x' AND k > 1",
    "union": "SELECT * FROM (SELECT id, k, s, ts, d FROM t UNION ALL SELECT id, k, s, ts, d FROM u)"
    " WHERE {2}",
    "distinct": "SELECT * FROM (SELECT DISTINCT k, s FROM t WHERE {0}) WHERE {2}",
    "union distinct": "SELECT * FROM (SELECT k, s FROM t WHERE {0} UNION SELECT k, s FROM u) WHERE {2}",
    "inner join": "SELECT t.id, u.name FROM t JOIN u ON t.k = u.k WHERE {0}",
    "comma join": "SELECT t.id, u.name FROM t, u WHERE t.k = u.k AND {0} AND u.w > 1",
    "using": "SELECT id, k, name FROM (SELECT id, k, s AS s3 FROM t WHERE {0}) JOIN"
    " (SELECT k, name FROM u) USING (k) WHERE k > 1",
    "both sides": "SELECT t.id FROM t JOIN u ON t.k = u.k AND {0} WHERE u.k > 1 AND u.vip",
    "join of texts": "SELECT t.id FROM t JOIN u ON t.s = u.s WHERE u.s = 'a' AND {0}",
    "join of types": "SELECT t.id FROM t JOIN u ON t.k = u.id WHERE {0}",
    "join with or": "SELECT t.id FROM t JOIN u ON t.k = u.k WHERE (t.s = 'a' AND u.w = 1)"
    " OR (t.s = 'b' AND u.w = 2)",
    "join of views": "WITH a AS (SELECT * FROM t WHERE {0} AND k > 1), b AS (SELECT k, w FROM u"
    " WHERE vip) SELECT a.id, b.w FROM a JOIN b ON a.k = b.k",
    "self-join": "SELECT x.id FROM t x JOIN t y ON x.id = y.id AND y.k > 1 WHERE x.s = 'a'",
    "left join": "SELECT t.id, u.name FROM t LEFT JOIN u ON t.k = u.k WHERE {0}",
    "left join, key filtered": "SELECT t.id, u.name FROM t LEFT JOIN u ON t.k = u.k WHERE t.k > 1 AND {0}",
    "left join, filter in ON": "SELECT t.id, u.name FROM t LEFT JOIN u ON t.k = u.k AND u.w > 1 AND u.vip"
    " WHERE {0}",
    "left join as inner": "SELECT t.id, u.name FROM t LEFT JOIN u ON t.k = u.k AND {0} WHERE u.w > 1",
    "left join as inner, key": "SELECT t.id FROM t LEFT JOIN u ON t.k = u.k WHERE u.k > 1",
    "left join as inner, not null": "SELECT t.id FROM t LEFT JOIN u ON t.k = u.k AND t.s = 'a'"
    " WHERE u.k IS NOT NULL",
    "left join without match": "SELECT t.id FROM t LEFT JOIN u ON t.k = u.k WHERE u.k IS NULL AND {0}",
    "right join": "SELECT t.id, u.w FROM t RIGHT JOIN u ON t.k = u.k AND {0} WHERE u.w > 1",
    "right join as inner": "SELECT t.id, u.w FROM t RIGHT JOIN u ON t.k = u.k AND u.w > 1 WHERE {0}",
    "full join": "SELECT t.id, u.w FROM t FULL JOIN u ON t.k = u.k",
    "full join as left": "SELECT t.id, u.w FROM t FULL JOIN u ON t.k = u.k WHERE t.s = 'a'",
    "full join as right": "SELECT t.id, u.w FROM t FULL JOIN u ON t.k = u.k WHERE u.w > 1",
    "full join as inner": "SELECT t.id, u.w FROM t FULL JOIN u ON t.k = u.k WHERE t.s = 'a' AND u.w > 1",
    "full join, merged key": "SELECT k FROM (SELECT k, s FROM t) FULL JOIN (SELECT k, w FROM u) USING (k)"
    " WHERE k > 1",
    "nested left joins": "SELECT t.id FROM t LEFT JOIN u ON t.k = u.k LEFT JOIN u y ON u.id = y.id"
    " WHERE y.w > 1 AND {0}",
    "semi join": "SELECT t.id FROM t LEFT SEMI JOIN u ON t.k = u.k AND u.w > 1 WHERE {0}",
    "anti join": "SELECT t.id FROM t LEFT ANTI JOIN u ON t.k = u.k AND u.w > 1 WHERE {0}",
    "anti join, key filtered": "SELECT t.id FROM t LEFT ANTI JOIN u ON t.k = u.k WHERE t.k > 1",
    "exists": "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.vip) AND {0}",
    "not exists": "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.vip) AND {0}",
    "in subquery": "SELECT id FROM t WHERE k IN (SELECT k FROM u WHERE w > 1) AND {0}",
    "in subquery, key filtered": "SELECT id FROM t WHERE k IN (SELECT k FROM u WHERE k > 1)",
    "not in subquery": "SELECT id FROM t WHERE k NOT IN (SELECT k FROM u WHERE k IS NOT NULL) AND {0}",
    "scalar subquery": "SELECT id FROM t WHERE amt > (SELECT avg(w) FROM u WHERE vip) AND {0}",
    "group": "SELECT k, count(*) AS c FROM t WHERE {0} GROUP BY k",
    "group, having": "SELECT k, count(*) AS c FROM t WHERE {0} GROUP BY k HAVING k > 1 AND count(*) > 1",
    "group, filtered above": "SELECT * FROM (SELECT k, s, max(ts) AS m FROM t GROUP BY k, s)"
    " WHERE {2} AND m IS NOT NULL",
    "group by a day": "SELECT * FROM (SELECT CAST(ts AS DATE) AS day, count(*) AS c FROM t GROUP BY 1)"
    " WHERE day >= DATE '2024-03-01'",
    "rollup": "SELECT * FROM (SELECT k, s, count(*) AS c FROM t WHERE {0} GROUP BY ROLLUP (k, s))"
    " WHERE k = 1",
    "window": "SELECT * FROM (SELECT k, s, id, row_number() OVER (PARTITION BY k ORDER BY id) AS r FROM t)"
    " WHERE r = 1 AND k = 2",
    "window over a filter": "SELECT id, sum(k) OVER (PARTITION BY s) AS x FROM t WHERE {0}",
    "qualify": "SELECT id, k FROM t WHERE {0} QUALIFY row_number() OVER (PARTITION BY k ORDER BY id) = 1",
    "limit": "SELECT * FROM (SELECT id, k, s FROM t WHERE {0} ORDER BY id LIMIT 5) WHERE s = 'a'",
    "explode": "SELECT id, x FROM t LATERAL VIEW explode(array(k, 1)) e AS x WHERE {0} AND x > 0",
    "pivot": "SELECT * FROM (SELECT k, s, id FROM t WHERE {0}) PIVOT (count(id) FOR s IN ('a', 'b'))"
    " WHERE k = 1",
    "unpivot": "SELECT * FROM (SELECT id, k, sm FROM t WHERE {0}) UNPIVOT (v FOR c IN (k, sm)) WHERE id > 2",
    "lateral": "SELECT t.id, l.m FROM t, LATERAL (SELECT max(w) AS m FROM u WHERE u.k = t.k AND u.vip) l"
    " WHERE {0}",
    "lateral join": "SELECT t.id, l.w FROM t JOIN LATERAL (SELECT w FROM u WHERE u.k = t.k AND u.w > 1) l"
    " WHERE {0}",
    "except": "SELECT k, s FROM t WHERE {0} EXCEPT SELECT k, s FROM u WHERE w > 1",
    "except, filtered above": "SELECT * FROM (SELECT k, s FROM t EXCEPT SELECT k, s FROM u) WHERE k = 1",
    "intersect": "SELECT k, s FROM t WHERE {0} INTERSECT SELECT k, s FROM u WHERE w > 1",
    "intersect, filtered above": "SELECT * FROM (SELECT k, s FROM t INTERSECT SELECT k, s FROM u)"
    " WHERE s = 'a'",
    "field above": "SELECT * FROM (SELECT id, place AS p FROM t) WHERE p.city = 'a' AND p.geo.lat > 1",
    "field renamed": "SELECT * FROM (SELECT id, place.zip AS zip FROM t WHERE {0}) WHERE zip = 1",
    "struct made and read": "SELECT * FROM (SELECT id, struct(k, s) AS p FROM t) WHERE p.s = 'a'",
    "three tables": "SELECT t.id FROM t JOIN u ON t.k = u.k JOIN u y ON u.k = y.k WHERE y.k = 2 AND {0}",
    "aggregate joined": "WITH a AS (SELECT k, sum(w) AS w FROM u GROUP BY k) SELECT t.id, a.w FROM t"
    " JOIN a ON t.k = a.k WHERE t.k > 1 AND {0}",
    "latest row": "SELECT t.* FROM t JOIN (SELECT k, max(ts) AS m FROM t GROUP BY k) x"
    " ON t.k = x.k AND t.ts = x.m WHERE t.k = 2",
}
_USED = ["t.k = 2", "t.s = 'a'", "t.ts >= '2024-03-01'", "t.d >= DATE '2024-03-01' - 1"]
_BARE = ["k = 2", "s IN ('a', 'b')", "k IS NOT NULL AND startswith(s, 'a')"]


def views() -> Iterator[tuple[str, str]]:
    """Yield titles and queries."""
    for condition in CONDITIONS:
        yield condition, f"SELECT id FROM t WHERE {condition}"
    for n, (title, form) in enumerate(FORMS.items()):
        qualified = " t" in form and "t." in form
        chosen = [c if qualified else c.replace("t.", "") for c in _USED]
        if title == "view":
            chosen = _BARE
        many = 2 if "{0}" in form else 3 if "{2}" in form else 1
        for i in range(many):
            first, second = chosen[(n + i) % len(chosen)], chosen[(n + i + 1) % len(chosen)]
            yield f"{title} {i + 1}", form.format(first, second, _BARE[(n + i) % len(_BARE)])


VIEWS = dict(views())
"""Queries by their titles."""
