"""Queries that Spark refuses for certain, and their lookalikes that it accepts."""

from __future__ import annotations

TABLES = """\
CREATE TABLE t (a INT, b INT, ts TIMESTAMP, d DATE, c STRING, s STRUCT<x: INT, y: STRING>,
  arr ARRAY<INT>, m MAP<STRING, INT>) USING delta LOCATION 't';
CREATE TABLE u (a INT, e INT) USING delta LOCATION 'u';
CREATE VIEW v AS
"""

COLUMNS = {
    "t": "a INT, b INT, ts TIMESTAMP, d DATE, c STRING, s STRUCT<x: INT, y: STRING>, "
    "arr ARRAY<INT>, m MAP<STRING, INT>",
    "u": "a INT, e INT",
}

REFUSED: tuple[tuple[str, str, int, str, str], ...] = (
    # the query, the code, the column, a part of the message, a part of the hint
    *(
        (query, "position", column, message, "write")
        for query, column, message in (
            ("SELECT a, count(*) n FROM t GROUP BY 3", 38, "GROUP BY 3 is out of range"),
            ("SELECT a, count(*) n FROM t GROUP BY a, (0)", 42, "GROUP BY 0 is out of range"),
            ("SELECT a, count(*) n FROM t GROUP BY a, -1", 42, "GROUP BY -1 is out of range"),
            ("SELECT a, count(*) n FROM t GROUP BY CUBE(1, 9)", 46, "GROUP BY 9 is out of range"),
            ("SELECT * FROM t GROUP BY 1", 26, "GROUP BY 1 counts columns"),
            ("SELECT a, b FROM t ORDER BY 3", 29, "ORDER BY 3 is out of range"),
            ("SELECT a, b FROM t ORDER BY a, - 5 DESC", 34, "the SELECT list has 2 columns"),
            ("SELECT * FROM t ORDER BY 55", 26, "the SELECT list has 8 columns"),
            ("SELECT a FROM t UNION ALL SELECT b FROM t ORDER BY 2", 52, "has 1 column"),
            ("SELECT DISTINCT a FROM t ORDER BY 2", 35, "ORDER BY 2 is out of range"),
        )
    ),
    *(
        (query, "aggregate", column, "is an aggregate", "not aggregated")
        for query, column in (
            ("SELECT sum(b) x FROM t GROUP BY 1", 33),
            ("SELECT sum(b) x, a FROM t GROUP BY x, a", 36),
        )
    ),
    (
        "SELECT a, sum(b) x FROM t GROUP BY a, max(b)",
        *("aggregate", 39, "the aggregate `max(b)` is not allowed in GROUP BY", "not aggregated"),
    ),
    (
        "SELECT sum(count(a)) x FROM t",
        *("nested-aggregate", 12, "`count(a)` is inside the aggregate `sum`", "SELECT sum(x) …"),
    ),
    (
        "SELECT sum(sum(sum(a))) OVER () x FROM t",
        *("nested-aggregate", 16, "`sum(a)` is inside the aggregate `sum`", "FROM (SELECT sum(a)"),
    ),
    (
        "SELECT first(a + max(b)) x FROM t",
        *("nested-aggregate", 18, "`max(b)` is inside the aggregate `first`", "AS x FROM"),
    ),
    (
        "SELECT sum(rank() OVER (ORDER BY a)) x FROM t",
        *("nested-aggregate", 12, "`rank() OVER (ORDER BY a)` is inside", "compute it first"),
    ),
    *(
        (
            query,
            "aggregate",
            column,
            f"the aggregate `{call}` is not allowed in WHERE",
            f"HAVING {call} …",
        )
        for query, column, call in (
            ("SELECT a FROM t WHERE sum(a) > 1", 23, "sum(a)"),
            ("SELECT a FROM t WHERE a > 1 AND NOT count(*) = 1 GROUP BY a", 37, "count(*)"),
            ("SELECT a FROM (SELECT a FROM t WHERE first(a) > 1)", 38, "first(a)"),
            ("WITH q AS (SELECT a FROM t WHERE max(a) > 1) SELECT a FROM q", 34, "max(a)"),
            ("SELECT a FROM t UNION ALL SELECT a FROM u WHERE max(e) > 1", 49, "max(e)"),
        )
    ),
    (
        "SELECT t.a FROM t JOIN u ON t.a = max(u.e)",
        *(
            "aggregate",
            35,
            "the aggregate `max(u.e)` is not allowed in ON",
            "JOIN (SELECT …, max(u.e) AS x",
        ),
    ),
    *(
        (query, "window", column, f"is not allowed in {clause}", hint)
        for query, column, clause, hint in (
            (
                "SELECT a FROM t WHERE row_number() OVER (ORDER BY a) = 1",
                *(23, "WHERE", "QUALIFY row_number() OVER (ORDER BY a) …"),
            ),
            (
                "SELECT a FROM t GROUP BY a HAVING count(*) > 1 AND sum(sum(a)) OVER () = 1",
                *(52, "HAVING", "QUALIFY sum(sum(a)) OVER () …"),
            ),
            (
                "SELECT count(*) n FROM t GROUP BY rank() OVER (ORDER BY a)",
                *(35, "GROUP BY", "FROM (SELECT *, rank() OVER (ORDER BY a) AS x FROM …)"),
            ),
            (
                "SELECT t.a FROM t JOIN u ON lag(e) IGNORE NULLS OVER (ORDER BY e) = t.a",
                *(29, "ON", "lag(e) IGNORE NULLS OVER (ORDER BY e) AS x"),
            ),
        )
    ),
    *(
        (query, "window", 8, message, hint)
        for query, message, hint in (
            ("SELECT row_number() r FROM t", "needs a window", "row_number() OVER (PARTITION BY"),
            ("SELECT lag(a) r FROM t", "needs a window", "lag(a) OVER (PARTITION BY"),
            ("SELECT rank() OVER (PARTITION BY b) r FROM t", "needs ORDER BY", "ORDER BY …)"),
        )
    ),
    (
        "SELECT * EXCEPT (a, zz) FROM t",
        *("unknown-column", 21, "`zz` is not among the columns of this star", "a, b, ts"),
    ),
    (
        "SELECT u.* EXCEPT (ee) FROM t JOIN u ON true",
        *("unknown-column", 20, "`ee` is not among", "did you mean `e`?"),
    ),
    *(
        (query, "syntax", column, "is a string literal in Spark, not a name", hint)
        for query, column, hint in (
            ('SELECT a AS "c" FROM t', 13, "write AS `c`"),
            ("SELECT a AS 'c' FROM t", 13, "write AS `c`"),
            ('SELECT t."a" FROM t', 10, "write `a`"),
            ('SELECT a FROM "t"', 15, "write `t`"),
        )
    ),
    (
        'SELECT a "c" FROM t',
        "syntax",
        10,
        'unexpected `"c"`',
        "a name with quotes takes backticks: `c`",
    ),
    *(
        (query, "syntax", column, "unexpected comma before", "remove it")
        for query, column in (
            ("SELECT a, FROM t", 9),
            ("SELECT a, b, FROM t WHERE a = 1", 12),
            ("SELECT a FROM (SELECT a, FROM t)", 24),
            ("SELECT a FROM t, u, WHERE t.a = 1", 19),
            ("SELECT a FROM t GROUP BY a, HAVING count(*) > 1", 27),
        )
    ),
    ("SELECT sum(a,) x FROM t", "syntax", 13, "between this comma and `)`", "remove the comma"),
    ("SELECT a, , b FROM t", "syntax", 9, "between this comma and `,`", "remove the comma"),
    ("SELECT a, b FROM t GROUP BY a, b,", "syntax", 33, "nothing follows this comma", "remove it"),
    *(
        (query, "syntax", column, "no arrays in square brackets", hint)
        for query, column, hint in (
            ("SELECT [1, 2] AS x FROM t", 8, "write array(1, 2)"),
            ("SELECT explode([1, 2]) AS x FROM t", 16, "write array(1, 2)"),
            ("SELECT a FROM t WHERE a IN [1, 2]", 28, "write array(1, 2)"),
            ("SELECT ARRAY[1, 2] x FROM t", 8, "write array(1, 2)"),
        )
    ),
    *(
        (query, "syntax", 10, message, hint)
        for query, message, hint in (
            ("SELECT * EXCLUDE (a, b) FROM t", "Spark has no * EXCLUDE", "write * EXCEPT (a, b)"),
            ("SELECT * EXCLUDE a FROM t", "Spark has no * EXCLUDE", "write * EXCEPT (a)"),
            ("SELECT * EXCEPT a FROM t", "* EXCEPT needs brackets", "write * EXCEPT (a)"),
            ("SELECT * REPLACE (1 AS a) FROM t", "Spark has no * REPLACE", "write * EXCEPT"),
        )
    ),
    ("SELECT a FROM t LIMIT 5, 10", "syntax", 17, "LIMIT with two", "write LIMIT 10 OFFSET 5"),
    ("SELECT TOP 5 a FROM t", "syntax", 8, "Spark has no TOP", "write LIMIT 5 at the end"),
    (
        "SELECT a FROM t FETCH FIRST 5 ROWS ONLY",
        *("syntax", 17, "Spark has no FETCH", "write LIMIT 5"),
    ),
    *(
        (query, "argument-unit", 8, "is a keyword, not a string", hint)
        for query, hint in (
            ("SELECT datediff('day', d, b.x) x FROM t, t AS b", "datediff(DAY, d, b.x)"),
            ("SELECT timestampadd('hour', 1, ts) x FROM t", "timestampadd(HOUR, 1, ts)"),
        )
    ),
    ("SELECT (a FROM t", "syntax", 8, "this bracket is not closed before `FROM`", "add `)`"),
    (
        "SELECT a FROM t WHERE a = 1)",
        *("syntax", 28, "unexpected `)`", "remove it, or add the `(` that it closes"),
    ),
    (
        "SELECT a FROM (SELECT a FROM t",
        *("syntax", 15, "this bracket is not closed", "add `)`"),
    ),
    ("SELECT a FORM t", "syntax", 15, "unexpected `t`", "did you mean FROM instead of `form`?"),
    ("SELECT a FROM t GROUP a", "syntax", 23, "unexpected `a`", "write GROUP BY"),
    ("SELECT count(*) OVER (PARTITION a) x FROM t", "syntax", 33, "unexpected `a`", "PARTITION BY"),
    ("SELECT a FROM t LEFT u ON t.a = u.a", "syntax", 17, "unexpected `LEFT`", "write LEFT JOIN"),
    ("SELECT a b c FROM t", "syntax", 12, "unexpected `c`", "a comma or an operator"),
    ("SELECT CAST(a INT) x FROM t", "syntax", 15, "CAST has no AS", "CAST(… AS type)"),
    ("SELECT CASE WHEN a = 1 THEN 2 FROM t", "syntax", 29, "CASE has no END", "WHEN … THEN"),
    (
        "WITH x AS (SELECT a FROM t), SELECT a FROM x",
        *(
            "syntax",
            30,
            "the name of a common table expression is missing before",
            "without a comma",
        ),
    ),
)
"""Each query, with the code, the column and parts of the message and the hint of its error."""

ACCEPTED = (
    "SELECT a, count(*) n FROM t GROUP BY 1 ORDER BY 2 DESC, 1",
    "SELECT a, 1 AS one, count(*) n FROM t GROUP BY 1, 2",
    "SELECT a, count(*) n FROM t GROUP BY a, 1 + 5",
    "SELECT a, count(*) n FROM t GROUP BY a, 7L, 7.0, 3000000000, 'x', +9, -(9)",
    "SELECT a, count(*) n FROM t GROUP BY ROLLUP (1)",
    "SELECT a, count(*) n FROM t GROUP BY GROUPING SETS ((1), ())",
    "SELECT a, count(*) n FROM t GROUP BY 1 WITH ROLLUP",
    "SELECT count(*) n, a FROM t GROUP BY 2",
    "SELECT a, (SELECT max(e) FROM u) x, count(*) n FROM t GROUP BY 1, 2",
    "SELECT a, b FROM t ORDER BY 1 + 4, 3L, 3.0, '3', 3000000000, -(3), +5, CAST(5 AS INT)",
    "SELECT * FROM t ORDER BY 5, 7",
    "SELECT a FROM t CLUSTER BY 3",
    "SELECT a, row_number() OVER (ORDER BY 5) r, sum(b) OVER (PARTITION BY 9) q FROM t",
    "SELECT explode(m) AS (k, w), a FROM t ORDER BY 3",
    "SELECT a, b, sum(b) n FROM t GROUP BY ALL ORDER BY 3",
    "SELECT sum(sum(a)) OVER (PARTITION BY b) x FROM t GROUP BY b",
    "SELECT sum(lag(a) OVER (ORDER BY a)) OVER (ORDER BY a) x FROM t",
    "SELECT rank() OVER (ORDER BY sum(a)) x, lag(count(*)) OVER (ORDER BY b) y FROM t GROUP BY b",
    "SELECT first(a) OVER (ORDER BY max(b)) x FROM t GROUP BY a",
    "SELECT sum((SELECT max(u.e) FROM u WHERE u.a = t.a)) x FROM t",
    "SELECT transform(collect_list(a), x -> sum(x)) x FROM t",
    "SELECT aggregate(collect_list(a), 0, (x, y) -> x + y) x FROM t",
    "SELECT array_max(collect_list(a)) x, greatest(sum(a), count(*)) y FROM t",
    "SELECT max(a) FILTER (WHERE b > 1) x FROM t",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) x FROM t",
    "SELECT sum(x) y FROM (SELECT count(*) x FROM t)",
    "SELECT max(grouping(a)) g FROM t GROUP BY ROLLUP (a)",
    "SELECT a FROM t WHERE a > (SELECT avg(a) FROM t)",
    "SELECT a FROM t WHERE a = 1 AND (SELECT count(*) FROM u) > 1",
    "SELECT a FROM t GROUP BY a HAVING EXISTS (SELECT 1 FROM u WHERE u.a > max(t.b))",
    "SELECT a FROM t GROUP BY a HAVING a IN (SELECT e FROM u WHERE max(t.b) > 1)",
    "SELECT a FROM t WHERE a IN (SELECT row_number() OVER (ORDER BY a) FROM u)",
    "SELECT a FROM t GROUP BY a HAVING a IN (SELECT rank() OVER (ORDER BY e) FROM u)",
    "SELECT t.a FROM t JOIN u ON t.a = (SELECT max(a) FROM u)",
    "SELECT a FROM t WHERE exists(arr, x -> x > 1) AND c LIKE ANY ('x', 'y')",
    "SELECT a FROM t WHERE c IS DISTINCT FROM 'x' AND c IS NOT DISTINCT FROM \"y\"",
    "SELECT sum, lag FROM (SELECT 1 sum, 2 lag) WHERE sum > 0 AND lag > 1",
    "SELECT max(a) max FROM t HAVING max > 1",
    "SELECT a, q.n FROM t, LATERAL (SELECT count(*) n FROM u WHERE u.a = t.a) q WHERE q.n > 1",
    "SELECT a, sum(b) FILTER (WHERE b > 1) n FROM t GROUP BY a HAVING n > 1",
    "SELECT a AS x, sum(b) y, y / 2 AS z FROM t GROUP BY x",
    "SELECT row_number() OVER (ORDER BY a) r, r + 1 AS q FROM t QUALIFY r = 1",
    "SELECT row_number() OVER w r FROM t WINDOW w AS (ORDER BY a)",
    "SELECT lag(a) IGNORE NULLS OVER (PARTITION BY b ORDER BY a) r, rank(a) OVER (ORDER BY a) q FROM t",
    "SELECT first_value(a) x, last_value(a) y, any_value(a) z FROM t",
    "SELECT sum(a) OVER (ORDER BY row_number() OVER (ORDER BY a)) r FROM t",
    "SELECT window.start w, count(*) n FROM t GROUP BY window(ts, '1 day') HAVING count(*) > 1",
    "SELECT * FROM (SELECT a, b, c FROM t) PIVOT (sum(b) FOR a IN (1 AS one, 2)) ORDER BY 3",
    "SELECT a, x FROM t LATERAL VIEW explode(arr) v AS x ORDER BY 2",
    "SELECT * EXCEPT (A, t.b, `c`, s.x) FROM t",
    "SELECT s.* EXCEPT (x) FROM t",
    "SELECT u.* EXCEPT (a) FROM t JOIN u USING (a)",
    "SELECT * EXCEPT (`count(1)`) FROM (SELECT count(*), 1 z FROM t)",
    "SELECT struct(* EXCEPT (a)) n, count(* EXCEPT (a)) OVER () m FROM t",
    "SELECT a FROM t EXCEPT SELECT a FROM u",
    "SELECT a * exclude x, exclude FROM (SELECT 1 a, 2 exclude)",
    'SELECT "x" AS c, "x" "y" AS e, c || "x" AS z, c LIKE "x" l FROM t',
    'SELECT DATE "2020-01-01" z, X"1F" AS y, r"a" AS x, INTERVAL "1" DAY i FROM t',
    "SELECT trim(BOTH ',' FROM c) x, extract(year FROM ts) y, substring(c FROM 1 FOR 2) z FROM t",
    "SELECT trim(BOTH ',' FROM \"x\") x FROM t",
    "SELECT t.a, t.`from` FROM (SELECT 1 a, 2 `from`) t",
    "SELECT arr[0] x, arr [1] y, (arr)[0] z, `arr`[0] w, m['k'] k, array(1, 2)[0] l FROM t",
    "SELECT CASE WHEN a = 1 THEN arr[0] ELSE arr[1] END x FROM t WHERE a IN (arr[0])",
    "SELECT split('a,b', ',')[1] x, array(array(1, 2), array())[0] y",
    "SELECT datediff(day, d, d) x, date_diff(DAY, d, d) y, timestampdiff(quarter, d, d) z FROM t",
    "SELECT date_add('2020-01-01', 1) x, dateadd(day, 1, d) y, date_add(d, 1) z FROM t",
    "SELECT date_trunc('month', ts) x, trunc(d, 'month') y, date_trunc(c, ts) z FROM t",
    "SELECT date_trunc('2020-01-01', c) x, date_trunc('month', '2020-01-01') y FROM t",
    "SELECT a FROM t LIMIT ALL OFFSET 1",
    "SELECT arr::array<int>[0] x FROM t WHERE false AND b > arr[0]",
    "SELECT rank() OVER (w) r, rank() OVER (DISTRIBUTE BY a SORT BY b) q FROM t WINDOW w AS (ORDER BY a)",
)
"""Queries without an error."""
