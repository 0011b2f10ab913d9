"""Malloy's functions and operators return the same edge values on Spark and on DuckDB."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from malloy import Told, malloy

from persist_assets.compiler.malloy.bridge import Connection, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 2**53
NUMBERS = [
    (0, 1, 0.0, 1.0, "0.00"), (1, 3, 0.5, 2.0, "0.50"), (-1, 3, -0.5, 2.0, "-0.50"), (7, 3, 2.5, -2.0, "2.50"),
    (-7, 3, -2.5, 3.0, "-2.50"), (7, -3, 3.33, 1.0, "3.33"), (-7, -3, -3.33, 1.0, "-3.33"), (LARGE - 1, 1, 1e-9, 3.0, "0.01"),
    (LARGE, 2, 1e15, 0.5, "99999999.99"), (LARGE + 1, 1, 123456.789, -1.0, "-99999999.99"), (-LARGE - 1, 1, -123456.789, 2.0, "1.25"),
    (None, 1, None, 1.0, None), (5, None, 5.0, None, "5.00"), (5, 0, 1.0, 0.0, "5.10"), (-8, 2, -0.999999, 2.0, "7.77"),
]  # fmt: skip
TEXTS = [
    ("", "", 0), ("a", "a", 1), ("Abc", "b", 2), ("ÄÖü", "Ö", 1), ("größe", "ß", 4), ("日本語", "本", 2), ("O'H", "'", 3), ("  pad  ", " ", 1),
    ("a.b.c", ".", 5), ("aXbXc", "X", 2), (None, "a", 1), ("b", None, None), ("😀x", "x", 2), ("ab12cd34", "12", 3), ("a\\b", "\\", 2),
    ("50%_x", "%", 100), ("abab", "ab", 2), ("line\nbreak", "\n", 6), ("12", "2", 1), ("$1", "$", 1),
]  # fmt: skip
TIMES = [
    (date(2024, 2, 29), date(2024, 3, 1), datetime(2024, 2, 29, 12, 30, 59, 999999), datetime(2024, 3, 1)),
    (date(2024, 1, 11), date(2024, 1, 1), datetime(2024, 1, 11), datetime(2024, 1, 1, 12)),
    (date(1969, 12, 31), date(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 500000), datetime(1970, 1, 1)),
    (date(2023, 12, 31), date(2024, 12, 31), datetime(2023, 12, 31, 23, 59, 59), datetime(2024, 12, 31, 0, 0, 1)),
    (date(2024, 3, 10), date(2024, 3, 10), datetime(2024, 3, 10, 10), datetime(2024, 3, 10, 9, 59, 59, 1)),
    (date(2024, 1, 31), date(2024, 2, 28), datetime(2024, 1, 31, 6, 7, 8, 9), datetime(2024, 2, 29, 6, 7, 8)),
    (None, date(2024, 1, 1), None, datetime(2024, 1, 1)),
    (date(2024, 11, 3), date(2024, 11, 4), datetime(2024, 11, 3, 5, 30), datetime(2024, 11, 3, 6, 30)),
    (date(1900, 1, 1), date(2100, 6, 15), datetime(1900, 1, 1), datetime(2100, 6, 15, 1, 2, 3, 456000)),
    (date(2024, 5, 4), date(2021, 5, 5), datetime(2024, 5, 4, 3, 2, 1), datetime(2021, 5, 5, 3, 2, 1)),
]  # fmt: skip
TYPES = {
    "numbers": [("i", "bigint"), ("j", "bigint"), ("x", "double"), ("y", "double"), ("d", "decimal(10,2)")],
    "texts": [("s", "string"), ("t", "string"), ("k", "bigint")],
    "times": [("d", "date"), ("e", "date"), ("a", "timestamp"), ("b", "timestamp")],
    "flags": [("p", "boolean"), ("q", "boolean")],
}  # fmt: skip
VALUES: dict[str, list[tuple[Any, ...]]] = {
    "numbers": [(*r[:4], None if r[4] is None else Decimal(r[4])) for r in NUMBERS],
    "texts": TEXTS,
    "times": [tuple(v.replace(tzinfo=UTC) if isinstance(v, datetime) else v for v in r) for r in TIMES],
    "flags": list(product([True, False, None], repeat=2)),
}  # fmt: skip
ARROW = {
    "bigint": pa.int64(), "double": pa.float64(), "decimal(10,2)": pa.decimal128(10, 2), "string": pa.string(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC"), "boolean": pa.bool_(),
}  # fmt: skip
UNITS = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
DAYS = UNITS[3:]
PARTS = (*UNITS, "day_of_week", "day_of_year")

SCALAR: dict[str, str] = {
    "numbers": """
        abs(i); abs(x); abs(d); ceil(i); ceil(x); ceil(d); floor(i); floor(x); floor(d); round(i); round(x); round(d); round(x, 1)
        round(x, 2); round(d, 1); round(x, -1); round(i, -1); trunc(i); trunc(x); trunc(d); trunc(x, 1); trunc(d, 1); trunc(x, -1)
        trunc(-3.33, 1); trunc(x, 2); trunc(x, j); div(i, j); div(x, y); div(d, j); div(i, 2); div(i, 0); div(x, 0); div(-7, 3); div(7, 2)
        sign(i); sign(x); sign(d); sqrt(abs(x)); sqrt(abs(i)); exp(x / 2e14); ln(abs(x) + 1); log(abs(i) + 1, 10); log(8, 2); pow(x, 2)
        pow(2, k_small); pow(abs(x), y); sin(j); cos(j); tan(j); asin(x / 1e16); acos(x / 1e16); atan(x); atan2(x, y); atan2(y, x); pi()
        greatest(i, j); greatest(x, y); least(i, j); least(x, y); greatest(i, j, 0); coalesce(i, j); ifnull(i, -1); nullif(i, 5)
        nullif(x, 2.5); is_nan(x); is_inf(x); chr(66); chr(228); chr(8364); chr(128512); chr(0); i + j; i - j; i * 2; i / j; x / y
        x * y; x + y; x - j; i % j; d % 3; -i; -x; -(i - j); (j + 1) / 2; i / 2; 1 / 3; 7 / 2; d + x; j * 1.5; i ?? 0; x ?? 0.5; i = j; i != j
        i < j; i >= j; x > y; x = y; i is null; i is not null; i ? 5; i ? (5 | 7); i ? > 3 & < 10; not (i = j); i ? 1 to 8; x ? -3 to 3
        pick 'neg' when i < 0 pick 'zero' when i = 0 else 'pos'; i ? pick 'a' when < 0 pick 'b' when 7 else 'c'; i::string; d::number
        '5'::number; '5.5'::number; 'abc':::number; i ~ f'> 3'; x ~ f'[1 to 10]'; x ~ f'(1 to 10]'; i ~ f'not 5'; i ~ f'5, 7'; i ~ f'null'
        i ~ f'not null'; x ~ f'< 0 or > 100'; concat('a', j ?? 0)
    """,
    "texts": r"""
        length(s); byte_length(s); lower(s); upper(s); reverse(s); ascii(s); unicode(s); trim(s); ltrim(s); rtrim(s); trim(s, 'a'); ltrim(s, 'ab')
        rtrim(s, 'cx'); substr(s, 1); substr(s, 2); substr(s, -1); substr(s, 1, 2); substr(s, 2, 1); substr(s, 1, 0); substr(s, 100)
        strpos(s, t); strpos(s, ''); starts_with(s, t); ends_with(s, t); starts_with(s, ''); ends_with(s, 'b'); repeat(s, 2); repeat(s, 0)
        repeat(s, k); string_repeat(s, 2); repeat(s, -1); replace(s, 'a', 'z'); replace(s, '', '-'); replace(s, r'[aeiou]', '*')
        replace(s, r'(a)(b)', '\\2\\1'); replace(s, r'(.)b', '<\\1>'); replace(s, r'b', '$1'); replace(s, r'b', '\\0\\0'); replace(s, r'b', '$')
        replace(s, r'b', 'a\\\\b'); replace(s, r'(a)', '\\12'); replace(s, r'(a)(b)', concat('\\2', '\\1')); replace(s, r'b', concat('$', '\\0\\\\'))
        replace(s, r'\d+', '#'); replace(s, r'[0-9]', concat(upper('a'), '!')); regexp_extract(s, r'[a-z]+'); regexp_extract(s, r'(a)(b)')
        s ~ r'^a'; s ~ r'\d'; s !~ r'a'; s ~ r'(?i)ABC'; s ~ 'a%'; s ~ '%b%'; s !~ '%b%'; s ~ '%\%%'; s ~ '_'; s ~ '日%'; s = t; s != t; s < t
        s >= t; s ? 'a' | 'b'; s is null; s ?? 'none'; concat('a', 'b'); concat(s ?? '', '-', t ?? ''); coalesce(s, t); ifnull(s, 'x')
        nullif(s, t); greatest(s, t); least(s, t); s ~ f'a%'; s ~ f'-a%'; s ~ f'null'; s ~ f'%b%'; s ~ f'a, b'; s ~ f'-a, -b'; 'ä€😀'
        'it\'s'; 'back\\slash'; length('😀'); pick s when s = 'a' else t
    """,
    "times": "; ".join([
        *(f"a.{u}" for u in UNITS), *(f"d.{u}" for u in DAYS), *(f"{p}(a)" for p in PARTS), *(f"{p}(d)" for p in PARTS[3:]),
        *(f"{u}s(a to b)" for u in UNITS[:4]), *(f"{u}s(b to a)" for u in UNITS[:4]), *(f"{u}s(d to e)" for u in DAYS),
        *(f"{u}s(e to d)" for u in DAYS), "hours(d to e)", "seconds(d to e)", "days(a to b.day)",
        *(f"a + 3 {u}s" for u in UNITS), *(f"a - 1 {u}" for u in UNITS), *(f"d + 1 {u}" for u in DAYS), *(f"d - 13 {u}s" for u in DAYS),
        "a.month + 1 month", "a.week - 1 week", "a::date", "d::timestamp", "a = b", "a > b", "d < e", "a ? @2024", "a ? @2024-Q1", "a ? @2024-02",
        "a ? @2024-01-01 to @2024-03-01", "a ? @2024-01-01 for 2 months", "d ? @2024", "d ? @2024-02", "a > @2024-03-10 09:59:59", "d = @2024-02-29",
        "@2024-02-29", "@2024-02-29 12:30:00", "@2024-02-29 12:30:00[America/New_York]", "@2024-Q2", "@2024-02", "@2024",
        "d::string", "coalesce(a, b)", "ifnull(d, e)", "greatest(a, b)", "least(d, e)", "nullif(d, e)", "a is null", "'2024-02-29'::date",
        "'x':::date", "a ~ f'2024'", "a ~ f'after 2024-02-01'", "d ~ f'before 2024-01-15'", "a ~ f'2024-01-01 to 2024-03-01'", "d ~ f'2024-02'",
        "a ~ f'2024-Q1'", "a ~ f'not 2024'", "a ~ f'null'",
    ]),
    "flags": """
        p and q; p or q; not p; p = q; p != q; p is null; p ?? q; p ?? true; pick 1 when p else 0; p::string; p ~ f'true'; p ~ f'false'; p ~ f'not null'
    """,
}  # fmt: skip
ZONED = """
    a.day; a.week; a.month; a.hour; a.year; a.quarter; hour(a); day(a); day_of_week(a); month(a); year(a); second(a); minute(a); day_of_year(a)
    a + 1 day; a + 5 hours; a + 1 month; a::date; d::timestamp; a ? @2024-03; a ? @2023-12-31; days(a to b); a.day + 1 day
"""  # fmt: skip
WHOLE = {
    "aggregates": """numbers -> { aggregate: s is j.sum(), m is j.avg(), least is i.min(), most is i.max(), c is count(), cd is count(j)
        dev is stddev(y), sx is y.sum(), ax is y.avg(), sd is d.sum(), p is sum(y) { where: i > 0 } }""",
    "grouped": "numbers -> { group_by: j; aggregate: s is y.sum(), a is x.avg(), c is count(), r is count() / 2; order_by: j }",
    "windows": """numbers -> { group_by: id; aggregate: s is y.sum(); calculate: r is rank(), rn is row_number(), dr is dense_rank(), l is lag(s)
        l2 is lag(s, 2), l3 is lag(s, 1, 0), ld is lead(s), f is first_value(s), la is last_value(s), sc is sum_cumulative(s), mc is max_cumulative(s)
        mnc is min_cumulative(s), sw is sum_window(s), mw is max_window(s), mnw is min_window(s), am is avg_moving(s, 2), am2 is avg_moving(s, 1, 1)
        sm is sum_moving(s, 2), sm2 is sum_moving(s, 1, 1); order_by: id }""",
    "texts_together": """texts -> { aggregate: least is min(s), most is max(s), c is count(s), sa is string_agg(t) { where: t = 'a' }
        sb is string_agg(t, '-') { where: t = 'a' }, sd is string_agg_distinct(t) { where: t = 'a' } }""",
    "times_together": "times -> { aggregate: least is min(a), most is max(b), c is count(a), dc is count(d), dm is max(d) }",
    "by_second": "times -> { group_by: sec is second(a); aggregate: c is count(); order_by: sec }",
}  # fmt: skip

DOCUMENTED = {"texts": ["upper(s), row 5: 'GRÖẞE' on DuckDB, 'GRÖSSE' on Spark"]}
"""The remaining differences, which docs/malloy.md lists."""


def expressions(text: str) -> list[str]:
    return [e.strip() for line in text.strip().splitlines() for e in line.split("; ") if e.strip()]


def model() -> str:
    extra = {"numbers": " extend { dimension: k_small is id % 7 }"}
    lines = [f"source: {name} is db.table('{name}'){extra.get(name, '')}" for name in TYPES]
    for name, text in [*SCALAR.items(), ("times", ZONED)]:
        zone = "timezone: 'America/New_York'; " if text is ZONED else ""
        fields = ", ".join(f"v{n} is {e}" for n, e in enumerate(expressions(text)))
        title = "zoned" if zone else name
        lines.append(
            f"query: q_{title} is {name} -> {{ {zone}select: id, {fields}; order_by: id }}"
        )
    lines += [f"query: q_{name} is {text}" for name, text in WHOLE.items()]
    return "\n".join(lines)


MODEL = model()
TITLES = {**SCALAR, "zoned": ZONED, **WHOLE}


@pytest.fixture(scope="module")
def columns() -> dict[str, list[tuple[str, str]]]:
    return {name: [("id", "bigint"), *types] for name, types in TYPES.items()}


@pytest.fixture(scope="module")
def compilers(columns: dict[str, list[tuple[str, str]]]) -> Iterator[tuple[Session, Session]]:
    told = Told({"m.malloy": MODEL}, columns)
    with (
        malloy(told, {"db": Connection("d")}) as for_spark,
        malloy(told, {"db": Connection("d", "duckdb")}) as for_duck,
    ):
        yield for_spark, for_duck


@pytest.fixture(scope="module")
def duck(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[tuple[str, str]]]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return a DuckDB connection with the same tables as the views of Spark."""
    connection = duckdb.connect()
    for setting in (
        "TimeZone = 'UTC'",
        "lambda_syntax = 'ENABLE_SINGLE_ARROW'",  # the syntax that Malloy generates
        "error_on_division_by_zero = false",
        "ieee_floating_point_ops = false",
    ):
        connection.execute(f"SET {setting}")
    place = tmp_path_factory.mktemp("values")
    for name, types in columns.items():
        rows = [(n, *row) for n, row in enumerate(VALUES[name], 1)]
        arrays = [pa.array([r[n] for r in rows], ARROW[kind]) for n, (_, kind) in enumerate(types)]
        file = str(Path(place) / f"{name}.parquet")
        pq.write_table(pa.table(arrays, [c for c, _ in types]), file)
        spark.read.parquet(file).createOrReplaceTempView(name)
        instants = [f"{c}::timestamp AS {c}" for c, kind in types if kind == "timestamp"]
        changed = f"REPLACE ({', '.join(instants)})" if instants else ""
        connection.execute(f"CREATE TABLE {name} AS SELECT * {changed} FROM read_parquet('{file}')")
    yield connection
    for name in columns:
        spark.catalog.dropTempView(name)


def plain(value: Any) -> Any:
    """Return a value with dates as timestamps at midnight, and timestamps without a time zone."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    return value


def equal(value: Any, other: Any) -> bool:
    value, other = plain(value), plain(other)
    if value is None or other is None or isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, int) and isinstance(other, int):
        return value == other
    if isinstance(value, int | float | Decimal) and isinstance(other, int | float | Decimal):
        return math.isclose(float(value), float(other), rel_tol=1e-13, abs_tol=1e-15)
    return type(value) is type(other) and value == other


def sql(compiler: Session, name: str) -> str:
    query = compiler.compile_query("m.malloy", name=name)
    assert query.sql is not None, query.problems
    return query.sql


@pytest.mark.slow
@pytest.mark.proves("S4")
@pytest.mark.parametrize("title", TITLES)
def test_functions_return_the_same_values_on_spark_and_duckdb(
    spark: Any, duck: duckdb.DuckDBPyConnection, compilers: tuple[Session, Session], title: str
) -> None:
    for_spark, for_duck = compilers
    found = spark.sql(sql(for_spark, f"q_{title}")).toArrow()
    relation = duck.sql(sql(for_duck, f"q_{title}"))
    expected = relation.fetchall()
    assert found.column_names == relation.columns
    assert found.num_rows == len(expected) > 0
    names = ["id", *expressions(TITLES[title])] if title not in WHOLE else found.column_names
    assert len(names) == len(found.column_names)
    different = [
        f"{name}, row {n}: {cell!r} on DuckDB, {value!r} on Spark"
        for name, values, cells in zip(
            names,
            [c.to_pylist() for c in found.columns],
            zip(*expected, strict=True),
            strict=True,
        )
        for n, (value, cell) in enumerate(zip(values, cells, strict=True), 1)
        if not equal(value, cell)
    ]
    assert different == DOCUMENTED.get(title, [])


@pytest.mark.proves("S4")
def test_thousands_of_values_are_compared() -> None:
    cases = sum(len(expressions(text)) * len(VALUES[t]) for t, text in SCALAR.items())
    assert cases >= 4000
