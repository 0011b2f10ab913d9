"""Shapes of queries, with what each needs of its tables: `t` and `u` of columns of many types."""

from __future__ import annotations

from pushing import Program, Tables

WIDE: Tables = {
    "t": {
        **{"id": "BIGINT", "kind": "STRING", "usr": "INT", "ts": "TIMESTAMP", "d": "DATE"},
        **{"amt": "DECIMAL(10,2)", "f": "DOUBLE", "g": "FLOAT", "ok": "BOOLEAN"},
        **{"n": "TIMESTAMP_NTZ", "`odd name`": "INT"},
    },
    "u": {"usr": "INT", "name": "STRING", "since": "TIMESTAMP", "w": "INT"},
}
VIEWS = [
    ("a", "SELECT usr, ts AS at, kind AS sort, id + 1 AS more FROM t WHERE kind = 'a'"),
    ("days", "SELECT date_trunc('day', ts) AS day, usr, count(*) AS c FROM t GROUP BY 1, 2"),
    ("drawn", "SELECT id, usr, rand() AS r FROM t WHERE kind = 'a'"),
    ("few", "SELECT id, kind FROM t WHERE usr > 3 ORDER BY id LIMIT 5"),
    (
        "firsts",
        "SELECT * FROM (SELECT id, usr, ts, row_number() OVER (PARTITION BY usr ORDER BY ts, id) AS r"
        " FROM t) x WHERE r = 1",
    ),
    (
        "either",
        "SELECT 't' AS src, usr, amt AS v FROM t UNION ALL SELECT 'u' AS src, usr, w AS v FROM u",
    ),
    ("kept", "SELECT usr, kind FROM t WHERE usr > 0"),
]


def program(*queries: str, kept: bool = True) -> Program:
    """Return the views above and persisted ones: `kept`, and queries `q`, `q1`, …."""
    named = [(f"q{i or ''}", query) for i, query in enumerate(queries)]
    return Program([*VIEWS, *named], ["kept"] * kept + [name for name, _ in named], WIDE)


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
    "left join of all rows": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 7",
        {"t": ["TRUE"], "u": ["w > 3"]},
    ),
    "left join that is inner": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr AND t.kind = 'a' WHERE u.w > 3",
        {"t": ["kind = 'a'"], "u": ["w > 3"]},
    ),
    "lateral query": (
        "SELECT t.id, x.c FROM t, LATERAL (SELECT count(*) AS c FROM u WHERE u.usr = t.usr"
        " AND u.w > 3) x WHERE t.kind = 'a' AND x.c > 1",
        {"t": ["kind = 'a'"], "u": ["w > 3"]},
    ),
    "left join of a lateral query": (
        "SELECT t.id, x.w FROM t LEFT JOIN LATERAL (SELECT w FROM u WHERE u.usr = t.usr"
        " ORDER BY w, name, since LIMIT 1) x ON true WHERE t.kind = 'a' AND x.w IS NULL",
        {"t": ["kind = 'a'"], "u": ["TRUE"]},
    ),
    "recursive query": (
        "WITH RECURSIVE r(a, n) AS (SELECT usr, 1 FROM u WHERE w > 3 UNION ALL SELECT t.usr, r.n + 1"
        " FROM r JOIN t ON r.a = t.usr AND t.kind = 'a' WHERE r.n < 3) SELECT a FROM r WHERE n = 2",
        {"t": ["kind = 'a'"], "u": ["w > 3"]},
    ),
    "key of a left join": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr WHERE t.usr = 2",
        {"t": ["usr = 2"], "u": ["usr = 2"]},
    ),
    "key of the null side": (
        "SELECT t.id FROM t LEFT JOIN u ON t.usr = u.usr WHERE u.usr = 2 AND u.w IS NULL",
        {"t": ["usr = 2"], "u": ["usr = 2 AND w IS NULL"]},
    ),
    "full join that is left": (
        "SELECT t.id FROM t FULL JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 5"
        " WHERE t.kind = 'a'",
        {"t": ["kind = 'a'"], "u": ["w > 3"]},
    ),
    "full join that is right": (
        "SELECT t.id FROM t FULL JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 5"
        " WHERE u.name = 'x'",
        {"t": ["id > 5"], "u": ["name = 'x'"]},
    ),
    "full join that is inner": (
        "SELECT t.id FROM t FULL JOIN u ON t.usr = u.usr AND u.w > 3 AND t.id > 5"
        " WHERE t.kind = 'a' AND u.name = 'x'",
        {"t": ["id > 5 AND kind = 'a'"], "u": ["name = 'x' AND w > 3"]},
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
        {"t": ["amt IS NOT NULL AND kind = 'a'", "kind = 'b'"], "u": ["w > 1"]},
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
        "SELECT v FROM either WHERE src = 't' AND usr BETWEEN 1 AND 3",
        {"t": ["usr <= 3 AND usr >= 1"], "u": ["FALSE"]},
    ),
    "a column of several types": (
        "SELECT v FROM either WHERE v = 3",
        {"t": ["TRUE"], "u": ["TRUE"]},
    ),
    "except": (
        "SELECT usr FROM (SELECT usr FROM t EXCEPT SELECT usr FROM u WHERE w > 2) WHERE usr = 1",
        {"t": ["usr = 1"], "u": ["usr = 1 AND w > 2"]},
    ),
    "intersect of values that are equal and differ": (
        "SELECT f FROM (SELECT f, usr FROM t INTERSECT SELECT f, usr FROM t WHERE ok)"
        " WHERE f > 1D AND usr = 1",
        {"t": ["ok = TRUE AND usr = 1", "usr = 1"]},
    ),
    "filter of a view that is joined": (
        "SELECT v.usr, u.w FROM (SELECT usr, count(*) AS n FROM t WHERE usr > 3 GROUP BY usr) v"
        " JOIN u ON v.usr = u.usr",
        {"t": ["usr > 3"], "u": ["usr > 3"]},
    ),
    "filter of the left side of a join": (
        "SELECT v.usr, u.w FROM (SELECT usr FROM kept WHERE usr > 3) v LEFT JOIN u ON v.usr = u.usr",
        {"u": ["usr > 3"]},
    ),
    "filter of the right side of a left join": (
        "SELECT t.id FROM t LEFT JOIN (SELECT usr FROM u WHERE usr > 3) v ON v.usr = t.usr",
        {"t": ["TRUE"], "u": ["usr > 3"]},
    ),
    "filters of both branches": (
        "SELECT v.k, u.w FROM (SELECT usr AS k FROM t WHERE usr > 3 UNION ALL SELECT usr FROM t"
        " WHERE usr = 1) v JOIN u ON v.k = u.usr",
        {"t": ["usr = 1", "usr > 3"], "u": ["usr = 1 OR usr > 3"]},
    ),
    "key of an anti join": (
        "SELECT id FROM t WHERE usr = 3 AND NOT EXISTS (SELECT 1 FROM u WHERE u.usr = t.usr)",
        {"t": ["usr = 3"], "u": ["usr = 3"]},
    ),
    "key of a correlated total": (
        "SELECT id, (SELECT max(w) FROM u WHERE u.usr = t.usr) AS m FROM t WHERE usr IN (1, 2)",
        {"t": ["usr IN (1, 2)"], "u": ["usr IN (1, 2)"]},
    ),
    "key of IN": (
        "SELECT id FROM t WHERE usr = 3 AND (usr IN (SELECT usr FROM u WHERE w > 1) OR ok)",
        {"t": ["usr = 3"], "u": ["usr = 3 AND w > 1"]},
    ),
    "key of IN, from the subquery": (
        "SELECT id FROM t WHERE (usr, kind) IN (SELECT usr, name FROM u WHERE usr IN (1, 2))",
        {"t": ["usr IN (1, 2)"], "u": ["usr IN (1, 2)"]},
    ),
    "key of NOT IN": (
        "SELECT id FROM t WHERE usr = 3 AND usr NOT IN (SELECT usr FROM u WHERE w > 1)",
        {"t": ["usr = 3"], "u": ["w > 1"]},
    ),
    "key of IN as a value": (
        "SELECT id, usr IN (SELECT usr FROM u) AS has FROM t WHERE usr = 3",
        {"t": ["usr = 3"], "u": ["TRUE"]},
    ),
    "key of IN above a limit": (
        "SELECT id FROM t WHERE usr = 3 AND usr IN (SELECT usr FROM u ORDER BY w, usr LIMIT 5)",
        {"t": ["usr = 3"], "u": ["TRUE"]},
    ),
    "key of a subquery in a window": (
        "SELECT id, r FROM (SELECT id, usr, sum(id) OVER (PARTITION BY kind ORDER BY id) AS r FROM t"
        " WHERE EXISTS (SELECT 1 FROM u WHERE u.usr = t.usr)) WHERE usr = 3",
        {"t": ["TRUE"], "u": ["TRUE", "usr = 3"]},
    ),
    "key of a lateral query": (
        "SELECT t.id, x.c FROM t, LATERAL (SELECT count(*) AS c FROM u WHERE u.usr = t.usr) x"
        " WHERE t.usr = 3",
        {"t": ["usr = 3"], "u": ["usr = 3"]},
    ),
    "contradiction": (
        "SELECT x.id, y.id AS other FROM t x LEFT JOIN (SELECT id, usr, count(*) AS n FROM t"
        " WHERE usr > 5 GROUP BY id, usr) y ON x.usr = y.usr WHERE x.usr = 3",
        {"t": ["FALSE", "usr = 3"]},
    ),
    "contradiction about a total": (
        "SELECT id FROM t WHERE usr = 3 AND usr > 5 AND amt > (SELECT max(amt) FROM u"
        " JOIN t z ON u.usr = z.usr)",
        {"t": ["FALSE"], "u": ["FALSE"]},
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
    "UDF": ("SELECT id FROM t WHERE my_udf(id) > 2 AND kind = 'a'", {"t": ["kind = 'a'"]}),
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
        {
            "t": [
                "amt > 1.5 AND id IS NOT NULL AND kind IS NOT NULL AND ts IS NOT NULL"
                " AND usr IS NOT NULL"
            ]
        },
    ),
    "a function": (
        "SELECT id FROM t WHERE reverse(kind) = 'a' AND usr = 1",
        {"t": ["kind IS NOT NULL AND usr = 1"]},
    ),
    "a function of a text": (
        "SELECT id FROM t WHERE lower(kind) = 'a' AND length(kind) < 3",
        {"t": ["length(kind) < 3 AND lower(kind) = 'a'"]},
    ),
    "all rows": ("SELECT count(*) AS c FROM t", {"t": ["TRUE"]}),
    "implicit casts": (
        "SELECT id FROM t WHERE ts >= '2024-01-05' AND d < '2024-02-01' AND f > 2 AND g = 0.1"
        " AND n < TIMESTAMP '2024-01-01 00:00:00' AND kind > 3",
        {
            "t": [
                "CAST(g AS DOUBLE) = 0.1D AND CAST(n AS TIMESTAMP) < TIMESTAMP '2024-01-01 00:00:00'"
                " AND d < DATE '2024-02-01' AND f > 2.0D AND kind IS NOT NULL"
                " AND ts >= TIMESTAMP '2024-01-05 00:00:00'"
            ]
        },
    ),
    "a text that is no time": (
        "SELECT id FROM t WHERE ts >= '5 Jan 2024' AND d = '2024-02-30'",
        {"t": ["d IS NOT NULL AND ts IS NOT NULL"]},
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
    "equal keys of a semi join that is read twice": (
        "WITH c AS (SELECT id, usr FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.usr = t.usr))"
        " SELECT x.id, y.usr FROM c x JOIN c y ON x.id <> y.id WHERE x.usr = 2",
        {"t": ["TRUE", "usr = 2"], "u": ["TRUE", "usr = 2"]},
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
    "patterns": (
        "SELECT id FROM t WHERE kind NOT LIKE 'a%' AND NOT kind LIKE 'b%'"
        " AND NOT (kind NOT LIKE '%c') AND kind LIKE '%d' ESCAPE '/'",
        {"t": ["kind LIKE '%c' AND kind NOT LIKE 'a%' AND kind NOT LIKE 'b%'"]},
    ),
    "digits": (
        "SELECT id FROM t WHERE amt IN (1.5, 12345678901234567890123456789.5)"
        " AND amt IN (12345678901234567890123456789.5, 0.1234567890123456789012345678)",
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

TRAPS = {
    # Of eleven values Spark makes a set; -0.0 has to be in it.
    "zeros": f"SELECT id FROM t WHERE f NOT IN ({', '.join(f'{n}D' for n in range(11))})",
    "no zeros": f"SELECT id FROM t WHERE f NOT IN ({', '.join(f'{n}D' for n in range(1, 12))})",
    "NaN": "SELECT id FROM t WHERE f > 1e300 AND NOT f <= 5 AND g >= 0.25",
    "days without a zone": "SELECT id, n FROM t WHERE n > DATE '2018-11-04' AND n <> d",
    "instants without a zone": "SELECT id FROM t WHERE n >= TIMESTAMP '2018-11-04 00:30:00'",
    "digits": "SELECT id FROM t WHERE amt IN (1.5, 12345678901234567890123456789.5, 0.12345678901)",
    "patterns": "SELECT id FROM t WHERE kind NOT LIKE '_b' AND NOT kind LIKE '1%' AND kind LIKE '%'",
    "escapes": r"SELECT id FROM t WHERE kind LIKE '100\\%' OR kind IN ('back\\slash', 'it\'s')",
    "NOT IN with NULL": "SELECT id FROM t WHERE usr NOT IN (SELECT w FROM u WHERE name <> 'a')",
    "EXISTS in OR": (
        "SELECT id FROM t WHERE ok OR EXISTS (SELECT 1 FROM u WHERE u.w = t.usr AND t.id > 9)"
    ),
    "CASE": "SELECT id FROM t WHERE CASE WHEN ok THEN usr > 1 ELSE f > 1 END AND NOT (ok <=> NULL)",
    "nested joins": (
        "SELECT x.id, u.w, y.f FROM t x LEFT JOIN (u LEFT JOIN t y ON u.w = y.usr AND y.ok)"
        " ON x.usr = u.usr AND u.name < 'b' WHERE x.kind = 'a' OR y.f IS NULL AND u.w > 0"
    ),
    "frames": (
        "SELECT * FROM (SELECT usr, d, sum(amt) OVER (PARTITION BY usr ORDER BY d"
        " RANGE BETWEEN INTERVAL 30 DAYS PRECEDING AND CURRENT ROW) AS s FROM t)"
        " WHERE usr IN (1, 2) AND d > DATE '2024-02-01'"
    ),
    "INTERSECT ALL": (
        "SELECT * FROM (SELECT usr, kind FROM t WHERE ok INTERSECT ALL SELECT w, name FROM u) WHERE usr = 1"
    ),
    "CUBE": (
        "SELECT * FROM (SELECT usr, kind, ok, count(*) FILTER (WHERE f > 0) AS n FROM t"
        " GROUP BY usr, CUBE (kind, ok)) WHERE usr = 1 AND kind IS NULL AND ok IS NULL"
    ),
    "PIVOT": "SELECT * FROM (SELECT usr, kind, id FROM t) PIVOT (count(id) FOR kind IN ('a', 'b')) WHERE usr = 1",
    "LATERAL": "SELECT t.id, l.m FROM t, LATERAL (SELECT max(w) AS m FROM u WHERE u.usr = t.usr) l WHERE ok",
    "correlated": "SELECT id FROM t WHERE usr > (SELECT count(*) FROM u WHERE u.name = t.kind AND w > 1)",
}
"""What Spark means by it is easily mistaken."""
