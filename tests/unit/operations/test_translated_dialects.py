"""Queries of other dialects keep their rows and columns, or say what to check."""

from __future__ import annotations

import pytest
from support.translated import checks, expression, flat, translated

from persist_assets.operations.importing import translation
from persist_assets.operations.importing.translation import (
    Target,
    UntranslatableError,
    translate,
)

pytestmark = pytest.mark.proves("W8")


def no_refusal(_: object) -> None:
    """Refuse nothing."""


# --------------------------------------------------------------------------------- rows and columns


@pytest.mark.parametrize("dialect", ["duckdb", "snowflake", "bigquery", "redshift"])
def test_qualify_adds_no_column(dialect: str) -> None:
    query = "SELECT * FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY x) = 1"
    sql = flat(translated(query, dialect).sql)
    assert sql.upper().startswith("SELECT * FROM T QUALIFY ROW_NUMBER()")
    assert "_w" not in sql


def test_qualify_stands_between_windows_and_the_order() -> None:
    query = (
        "SELECT sum(x) OVER w AS s FROM t WINDOW w AS (ORDER BY k DESC) "
        "QUALIFY s > 1 ORDER BY s::int LIMIT 3"
    )
    assert flat(translated(query, "duckdb").sql) == (
        "SELECT SUM(x) OVER w AS s FROM t WINDOW w AS (ORDER BY k DESC) "
        "QUALIFY s > 1 ORDER BY CAST(s AS INT) NULLS LAST LIMIT 3"
    )


def test_distinct_on_adds_no_column() -> None:
    query = "SELECT DISTINCT ON (k) * FROM t ORDER BY k, d DESC"
    assert flat(translated(query, "postgres").sql) == (
        "SELECT * EXCEPT (_row_number) FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k "
        "ORDER BY k NULLS LAST, d DESC NULLS FIRST) AS _row_number FROM t) AS _t "
        "WHERE _row_number = 1"
    )


def test_distinct_on_is_ordered_by_what_positions_and_aliases_mean() -> None:
    query = "SELECT DISTINCT ON (1) a + b AS k, v FROM t ORDER BY k, 2"
    sql = flat(translated(query, "duckdb").sql)
    assert "PARTITION BY a + b ORDER BY a + b NULLS LAST, v NULLS LAST" in sql


@pytest.mark.parametrize(
    ("dialect", "query", "reason"),
    [
        ("duckdb", "SELECT list(v ORDER BY t) AS l FROM t", "ORDER BY"),
        ("postgres", "SELECT array_agg(v ORDER BY t) AS l FROM t", "ORDER BY"),
        ("trino", "SELECT array_agg(v ORDER BY t) AS l FROM t", "ORDER BY"),
        ("bigquery", "SELECT array_agg(v ORDER BY t) AS l FROM t", "ORDER BY"),
        ("snowflake", "SELECT array_agg(v) WITHIN GROUP (ORDER BY t) AS l FROM t", "ORDER BY"),
        ("duckdb", "SELECT first(v ORDER BY t) AS l FROM t", "ORDER BY"),
        ("duckdb", "SELECT mode(v ORDER BY t) AS l FROM t", "ORDER BY"),
        ("clickhouse", "SELECT v FROM t LIMIT 1 BY k", "LIMIT BY"),
        ("bigquery", "SELECT string_agg(v ORDER BY v LIMIT 3) AS l FROM t", "LIMIT"),
        ("bigquery", "SELECT any_value(v HAVING MAX w) AS l FROM t", "HAVING"),
        ("postgres", "SELECT DISTINCT ON (k) * FROM t ORDER BY k LIMIT 2", "DISTINCT ON"),
        ("postgres", "SELECT DISTINCT ON (k) * FROM t ORDER BY 1", "position"),
        ("duckdb", "SELECT * FROM t ASOF JOIN u USING (k, d)", "ASOF"),
        ("duckdb", "SELECT k FROM t UNION BY NAME SELECT k FROM u", "BY NAME"),
        ("duckdb", "SELECT k FROM t LIMIT 10%", "percentage"),
        ("tsql", "SELECT TOP 5 WITH TIES k FROM t ORDER BY k", "TIES"),
        ("duckdb", "SELECT * REPLACE (v + 1 AS v) FROM t", "REPLACE"),
        ("duckdb", "SELECT l[1:2] AS l FROM t", "from:to"),
        ("postgres", "SELECT s SIMILAR TO 'a%' AS x FROM t", "SIMILAR"),
        ("postgres", "SELECT array(SELECT 1) AS x FROM t", "ARRAY"),
        ("postgres", "SELECT x > ANY (SELECT 1) AS x FROM t", "ANY"),
        ("postgres", "SELECT extract(epoch FROM x) AS x FROM t", "EPOCH"),
        ("duckdb", "SELECT date_trunc('decade', x) AS x FROM t", "DECADE"),
        (
            "postgres",
            "SELECT sum(v) OVER (ORDER BY k GROUPS 1 PRECEDING) AS x FROM t",
            "GROUPS",
        ),
        ("duckdb", "SELECT map {'k': 1} AS m FROM t", "written"),
        ("duckdb", "SELECT [x FOR x IN l IF x > 1] AS y FROM t", "comprehensions"),
        ("postgres", "SELECT b LIKE ANY(ARRAY['x%']) AS y FROM t", "LIKE ANY or ALL of an array"),
    ],
)
def test_what_spark_does_not_have_is_refused(dialect: str, query: str, reason: str) -> None:
    with pytest.raises(UntranslatableError, match=reason):
        translated(query, dialect)


def test_a_clause_that_is_lost_in_writing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "refusal", no_refusal)
    with pytest.raises(UntranslatableError, match="its ORDER cannot be written"):
        translated("SELECT array_agg(v ORDER BY t) AS l FROM t", "snowflake")


def test_modifiers_that_spark_has_stay() -> None:
    query = (
        "SELECT string_agg(DISTINCT s, '-' ORDER BY s DESC) AS a, "
        "sum(v) FILTER (WHERE v > 1) AS b FROM t"
    )
    assert flat(translated(query, "postgres").sql) == (
        "SELECT LISTAGG(DISTINCT s, '-') WITHIN GROUP (ORDER BY s DESC NULLS FIRST) AS a, "
        "SUM(v) FILTER(WHERE v > 1) AS b FROM t"
    )


def test_arrays_of_groups_keep_their_nulls() -> None:
    query = "SELECT k, list(DISTINCT v) AS l FROM t GROUP BY k"
    sql = flat(translated(query, "duckdb").sql)
    assert "TRANSFORM(COLLECT_LIST(DISTINCT STRUCT(v AS value)), element -> element.value)" in sql
    assert checks(query, "duckdb") == []
    assert expression("array_agg(v) FILTER (WHERE v > 1)", "postgres") == (
        "TRANSFORM(COLLECT_LIST(STRUCT(v AS value)) FILTER(WHERE v > 1), element -> element.value)"
    )
    assert expression("array_agg(v IGNORE NULLS)", "bigquery") == "COLLECT_LIST(v)"


# ------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("dialect", "text", "spark"),
    [
        ("duckdb", "isodow(x)", "WEEKDAY(x) + 1"),
        ("trino", "day_of_week(x)", "WEEKDAY(x) + 1"),
        ("trino", "extract(dow FROM x)", "WEEKDAY(x) + 1"),
        ("postgres", "extract(isodow FROM x)", "WEEKDAY(x) + 1"),
        ("postgres", "date_part('dow', x)", "DAYOFWEEK(x) - 1"),
        ("duckdb", "date_part('dow', x)", "DAYOFWEEK(x) - 1"),
        ("duckdb", "extract(dow FROM x) * 2", "(DAYOFWEEK(x) - 1) * 2"),
        ("duckdb", "weekday(x)", "DAYOFWEEK(x) - 1"),
        ("duckdb", "dayofweek(x)", "DAYOFWEEK(x) - 1"),
        ("duckdb", "dayname(x)", "DATE_FORMAT(x, 'EEEE')"),
        ("duckdb", "monthname(x)", "DATE_FORMAT(x, 'MMMM')"),
        ("duckdb", "week(x)", "WEEKOFYEAR(x)"),
        ("duckdb", "extract(doy FROM x)", "DAYOFYEAR(x)"),
        ("duckdb", "extract(second FROM x)", "SECOND(x)"),
        ("bigquery", "extract(isoyear FROM x)", "EXTRACT(YEAROFWEEK FROM x)"),
        ("bigquery", "extract(isoweek FROM x)", "WEEKOFYEAR(x)"),
        ("bigquery", "date_trunc(x, isoweek)", "TRUNC(x, 'WEEK')"),
        ("duckdb", "date_diff('day', a, b)", "DATEDIFF(b, a)"),
        ("duckdb", "date_diff('month', a, b)", "((YEAR(b) - YEAR(a)) * 12 + MONTH(b) - MONTH(a))"),
        ("snowflake", "datediff(year, a, b)", "(YEAR(b) - YEAR(a))"),
        ("redshift", "datediff(month, a, b)", "((YEAR(b) - YEAR(a)) * 12 + MONTH(b) - MONTH(a))"),
        (
            "bigquery",
            "datetime_diff(b, a, hour)",
            "TIMESTAMPDIFF(HOUR, DATE_TRUNC('HOUR', a), DATE_TRUNC('HOUR', b))",
        ),
        (
            "bigquery",
            "date_diff(b, a, isoweek)",
            "(DATEDIFF(TRUNC(b, 'WEEK'), TRUNC(a, 'WEEK')) DIV 7)",
        ),
        ("bigquery", "timestamp_diff(b, a, hour)", "TIMESTAMPDIFF(HOUR, a, b)"),
        ("trino", "date_diff('hour', a, b)", "DATEDIFF(HOUR, a, b)"),
        ("postgres", "a::date - current_date", "DATEDIFF(CAST(a AS DATE), CURRENT_DATE)"),
        (
            "postgres",
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY v)",
            "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY v)",
        ),
        (
            "snowflake",
            "percentile_disc(0.5) WITHIN GROUP (ORDER BY v DESC)",
            "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY v DESC)",
        ),
        ("bigquery", "percentile_cont(v, 0.5) OVER ()", "PERCENTILE(v, 0.5) OVER ()"),
        ("duckdb", "quantile(v, 0.5)", "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY v)"),
        ("duckdb", "arg_max(v, w)", "MAX_BY(v, CASE WHEN NOT v IS NULL THEN w END)"),
        ("postgres", "x = ANY(arr)", "EXISTS(arr, element -> x = element)"),
        ("postgres", "element = ANY(arr)", "EXISTS(arr, element_1 -> element = element_1)"),
        ("postgres", "x <> ALL(arr)", "FORALL(arr, element -> x <> element)"),
        (
            "postgres",
            "extract(dow FROM d) = ANY(ARRAY[0, 6])",
            "EXISTS(ARRAY(0, 6), element -> (DAYOFWEEK(d) - 1) = element)",
        ),
        ("duckdb", "log(a) > ALL([1, 2])", "FORALL(ARRAY(1, 2), element -> LOG10(a) > element)"),
        ("duckdb", "l[-1] = ANY(m)", "EXISTS(m, element -> TRY_ELEMENT_AT(l, -1) = element)"),
        ("bigquery", "l[offset(n)]", "ELEMENT_AT(l, (n) + 1)"),
        ("bigquery", "l[safe_offset(n)]", "TRY_ELEMENT_AT(l, (n) + 1)"),
        ("bigquery", "l[ordinal(n)]", "ELEMENT_AT(l, n)"),
        ("duckdb", "left(s, -1)", "SUBSTRING(s, 1, GREATEST(LENGTH(s) - 1, 0))"),
        ("postgres", "right(s, -1)", "SUBSTRING(s, 2)"),
        ("duckdb", "substring(s, 0, 2)", "SUBSTRING(s, 1, 1)"),
        ("postgres", "substring(s, -1, 3)", "SUBSTRING(s, 1, 1)"),
        ("duckdb", r"s LIKE 'a\_b'", r"s LIKE 'a\\\\_b'"),
        ("postgres", r"s LIKE 'a\_b'", r"s LIKE 'a\_b'"),
        ("postgres", "s ~* 'x'", "s RLIKE '(?i)x'"),
        ("duckdb", "log10(x)", "LOG10(x)"),
        ("postgres", "log(x)", "LOG10(x)"),
        ("duckdb", "l[-1]", "TRY_ELEMENT_AT(l, -1)"),
        ("duckdb", "strftime(x, '%Y-%m')", "DATE_FORMAT(x, 'yyyy-MM')"),
    ],
)
def test_expressions_keep_their_values(dialect: str, text: str, spark: str) -> None:
    assert expression(text, dialect) == spark
    assert checks(f"SELECT {text} AS y FROM t GROUP BY k", dialect) == []


def test_windows_over_arrays_are_rewritten_too() -> None:
    text = "list(x) OVER (PARTITION BY dayofweek(d))"
    assert "PARTITION BY (DAYOFWEEK(d) - 1)" in expression(text, "duckdb")
    query = "SELECT 1 AS y FROM t WHERE date_part('dow', d) = ANY(SELECT x FROM u)"
    assert "(DAYOFWEEK(d) - 1) IN (SELECT x FROM u)" in flat(translated(query, "duckdb").sql)


def test_a_membership_in_a_subquery_replaces_any() -> None:
    query = "SELECT k FROM t WHERE k = ANY (SELECT k FROM u)"
    assert flat(translated(query, "postgres").sql).endswith("WHERE k IN (SELECT k FROM u)")


# -------------------------------------------------------------------------------------------- notes


@pytest.mark.parametrize(
    ("dialect", "text", "words"),
    [
        ("duckdb", "strange(x)", ["`strange`"]),
        ("duckdb", "strange(x) + strange(y) + other(1)", ["`strange`", "`other`"]),
        ("clickhouse", "sum(x)", ["`sum`"]),
        ("duckdb", "sum(x) + count(*)", []),
        ("duckdb", "epoch_ms(x)", ["`epoch_ms`"]),
        ("duckdb", "regexp_replace(x, 'a', 'b')", ["`regexp_replace`"]),
        ("duckdb", "strftime(x, '%j')", ["`strftime`"]),
        ("duckdb", "date_diff('week', x, y)", ["`date_diff`"]),
        ("trino", "date_diff('month', x, y)", ["`date_diff`"]),
        ("snowflake", "max_by(x, y)", ["`max_by`"]),
        ("bigquery", "CAST(x AS int64)", ["casts to integers"]),
        ("trino", "CAST(1.7 AS integer)", ["casts to integers"]),
        ("duckdb", "count(*)::int", []),
        ("postgres", "x AT TIME ZONE 'utc'", ["AT TIME ZONE"]),
        ("duckdb", "x - y", ["`-`"]),
        ("duckdb", "x - 1", []),
        ("postgres", "x + interval '1 day'", ["intervals"]),
        ("postgres", "(x + interval '1 day')::date", []),
        ("duckdb", "left(x, y)", ["`left`"]),
        ("duckdb", "substring(x, y, 1)", ["`substring`"]),
        ("duckdb", "x LIKE y", ["LIKE"]),
        ("trino", "greatest(x, y)", ["NULLs"]),
        ("trino", "date_trunc('month', x)", ["`date_trunc`"]),
        ("bigquery", "extract(week FROM x)", ["weeks"]),
        ("postgres", "x IN (SELECT 1)", ["IN"]),
        ("postgres", "x -> 'a'", ["`->`"]),
        ("snowflake", "x RLIKE 'a'", ["RLIKE"]),
        ("duckdb", "x // 2", ["`//`"]),
        ("duckdb", "array_agg(x)", ["`array_agg`"]),
        ("duckdb", "l[n]", ["positions"]),
        ("postgres", "l[n]", ["positions"]),
    ],
)
def test_what_may_differ_is_noted(dialect: str, text: str, words: list[str]) -> None:
    notes = checks(f"SELECT {text} AS z FROM t", dialect)
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)


def test_names_before_parentheses_that_are_no_functions_are_not_noted() -> None:
    query = (
        "WITH c(a, b) AS (SELECT 1, 2) SELECT a::decimal(9, 2) AS d FROM c, (SELECT 3) u(e) "
        "WHERE a IN (1) AND EXISTS (SELECT 1) AND NOT (b > 1)"
    )
    assert checks(query, "duckdb") == []


# -------------------------------------------------------------------------------------------- names


def resolve(names: tuple[str, ...]) -> Target | None:
    """Return the models `m` and `orders` by the ends of their names."""
    known = {"m": Target("m", "m.sql", "m"), "orders": Target("shop_orders", "o.sql", "orders_v1")}
    return known.get(names[-1])


@pytest.mark.parametrize(
    ("query", "sql"),
    [
        (
            'SELECT * FROM "dev"."main"."m" AS orders WHERE orders.v > 3',
            "SELECT * FROM m AS orders WHERE orders.v > 3",
        ),
        (
            "WITH orders AS (SELECT * FROM m) SELECT orders.v FROM orders",
            "WITH orders AS (SELECT * FROM m) SELECT orders.v FROM orders",
        ),
        (
            "SELECT orders.v FROM orders JOIN m ON m.v = orders.v",
            "SELECT orders_v1.v FROM shop_orders AS orders_v1 JOIN m ON m.v = orders_v1.v",
        ),
        (
            "SELECT v FROM m AS orders WHERE EXISTS (SELECT 1 FROM m WHERE orders.v = m.v)",
            "SELECT v FROM m AS orders WHERE EXISTS (SELECT 1 FROM m WHERE orders.v = m.v)",
        ),
    ],
)
def test_a_qualifier_is_first_an_alias_of_its_query(query: str, sql: str) -> None:
    assert translate(query, "duckdb", resolve).sql == sql
