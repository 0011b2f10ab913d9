"""The types that are inferred for expressions before a build match those of Spark."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from conftest import drawn_seed, draws
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from persist_assets._paths import SPARK_FUNCTIONS
from persist_assets.analysis.functions import functions_of
from persist_assets.analysis.result_types import result_types
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import Location, SourcesError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.spark_types import parse_type
from persist_assets.core.spark_versions import KNOWN_SPARKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

COLUMNS = {
    "i": "INT",
    "l": "BIGINT",
    "h": "SMALLINT",
    "d": "DOUBLE",
    "f": "FLOAT",
    "m": "DECIMAL(10,2)",
    "s": "STRING",
    "b": "BINARY",
    "o": "BOOLEAN",
    "t": "TIMESTAMP",
    "n": "TIMESTAMP_NTZ",
    "e": "DATE",
    "a": "ARRAY<INT>",
}
DECLARED = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
KNOWN = {
    "length(s)": "int",
    "char_length(b)": "int",
    "size(a)": "int",
    "weekofyear(e)": "int",
    "xxhash64(s, i)": "bigint",
    "unix_timestamp(t)": "bigint",
    "ceil(d)": "bigint",
    "floor(i)": "bigint",
    "sqrt(i)": "double",
    "power(i, i)": "double",
    "md5(b)": "string",
    "startswith(s, 'x')": "boolean",
    "sum(length(s))": "bigint",
}
"""Expressions whose types sums and downstream queries rely on."""


def expressions() -> list[str]:
    """Return calls of Spark's functions, and operators, over columns of all types."""
    calls: list[str] = []
    newest = functions_of(KNOWN_SPARKS[-1], SPARK_FUNCTIONS.read_text())
    for name, (kind, arity) in newest.items():
        if kind not in ("scalar", "aggregate") or name in ("and", "or", "not"):
            continue
        numbers = {"1", "2"} if arity == "*" else set(arity.split(","))
        if "1" in numbers:
            calls += [f"{name}({a})" for a in COLUMNS]
        if "2" in numbers:
            calls += [f"{name}({a}, {b})" for a in COLUMNS for b in "islet" if a != b]
        if "3" in numbers:
            calls += [f"{name}({a}, {a}, {a})" for a in COLUMNS]
    for a, b in itertools.product(COLUMNS, COLUMNS):
        calls += [f"{a} {op} {b}" for op in ("+", "-", "*", "/", "%", "DIV", "||")]
        calls += [f"coalesce({a}, {b})", f"IF(o, {a}, {b})", f"greatest({a}, {b})"]
    return calls


def types_before_a_build(root: Path, texts: Sequence[str]) -> list[str | None]:
    """Return the type that downstream queries see for each expression, None if uncertain."""
    (root / "sources" / "v.sql").write_text(
        f"CREATE TABLE v ({DECLARED}) USING parquet LOCATION 'v';\n"
    )
    for n, text in enumerate(texts):  # one file each, so that errors affect no other
        (root / "sources" / f"q{n}.sql").write_text(
            f"CREATE VIEW q{n} AS SELECT {text} AS x FROM v"
        )
    project = load_project(load_settings(root))
    types = {s.name: s.known_columns[0].type for s in project.sources if s.known_columns}
    return [types.get(f"q{n}") for n in range(len(texts))]


@pytest.mark.slow
@pytest.mark.proves("T15")
def test_types_inferred_before_a_build_match_spark(
    make_project: Callable[..., Path], spark: Any
) -> None:
    drawn = random.Random(drawn_seed()).sample(every := expressions(), draws(1000, len(every)))
    texts = [*KNOWN, *drawn]
    ours = types_before_a_build(make_project({}), texts)
    assert ours[: len(KNOWN)] == [*KNOWN.values()]
    spark.createDataFrame([], DECLARED).createOrReplaceTempView("types_before")
    n_compared = 0
    for text, kind in zip(texts, ours, strict=True):
        if kind is None:
            continue
        try:
            frame = spark.sql(f"SELECT {text} AS x FROM types_before")
        except PySparkException:
            continue  # `check` may know fewer errors than Spark
        assert kind.replace(" ", "").lower() == frame.schema[0].dataType.simpleString(), text
        n_compared += 1
    assert n_compared > len(KNOWN)


NESTED = {
    **COLUMNS,
    "k": "MAP<STRING,DECIMAL(5,1)>",
    "r": "STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>",
    "w": "ARRAY<STRUCT<x: INT, `a b`: TIMESTAMP_NTZ>>",
    "v": "VARIANT",
}
INFERRED = {
    # decimals
    "1.50": "decimal(3,2)",
    ".05": "decimal(2,2)",
    "12345678901234567890": "decimal(20,0)",
    "10BD": "decimal(2,0)",
    "1.5D": "double",
    "m + 1": "decimal(11,2)",
    "i + m": "decimal(13,2)",
    "m * 2": "decimal(12,2)",
    "-2 * m": "decimal(12,2)",
    "m * -0.5": "decimal(12,3)",
    "m / 3": "decimal(14,6)",
    "m % 7L": "decimal(3,2)",
    "m * m * m * m": "decimal(38,6)",
    "m / (m * m)": "decimal(36,24)",
    "m * d": "double",
    "f * h": "double",
    "f + f": "float",
    "f / f": "double",
    "sum(m)": "decimal(20,2)",
    "avg(m * m)": "decimal(25,8)",
    "avg(m) OVER (PARTITION BY i)": "decimal(14,6)",
    "sum(m) FILTER (WHERE o)": "decimal(20,2)",
    "round(m, 1)": "decimal(10,1)",
    "round(m, -2)": "decimal(9,0)",
    "round(m)": "decimal(9,0)",
    "floor(m)": "decimal(9,0)",
    "abs(-m)": "decimal(10,2)",
    "CAST(s AS DECIMAL(20, 4)) - m": "decimal(21,4)",
    "coalesce(m, 0)": "decimal(12,2)",
    "CASE WHEN o THEN m WHEN i = 1 THEN 1.555 END": "decimal(11,3)",
    "IF(o, NULL, l + m)": "decimal(23,2)",
    "greatest(i, d)": "double",
    "nullif(m, 0)": "decimal(10,2)",
    "lag(m) OVER (ORDER BY i)": "decimal(10,2)",
    "max_by(m, t)": "decimal(10,2)",
    "(SELECT max(m) + 1 FROM inner_types)": "decimal(11,2)",
    # times
    "to_timestamp(s)": "timestamp",
    "to_timestamp_ntz(s)": "timestamp_ntz",
    "date_trunc('day', n)": "timestamp",
    "coalesce(n, t)": "timestamp",
    "coalesce(e, n)": "timestamp_ntz",
    "e + 1": "date",
    "e + INTERVAL 1 MONTH": "date",
    "e - INTERVAL '2' DAY": "date",
    "n - INTERVAL 3 HOURS": "timestamp_ntz",
    "t + INTERVAL 1 YEAR": "timestamp",
    "dateadd(HOUR, 2, n)": "timestamp_ntz",
    "datediff(HOUR, n, n)": "bigint",
    "e - e": "interval day",
    "t - t": "interval day to second",
    "extract(SECOND FROM t)": "decimal(8,6)",
    "extract(YEAR FROM n)": "int",
    "localtimestamp()": "timestamp_ntz",
    "max(n)": "timestamp_ntz",
    "make_timestamp_ntz(2024, 1, 1, 0, 0, 0)": "timestamp_ntz",
    "from_unixtime(l)": "string",
    # texts and bytes
    "s || i": "string",
    "concat(b, b)": "binary",
    "substring(s, 2)": "string",
    "lpad(s, 3, 'x')": "string",
    "trim(BOTH 'x' FROM s)": "string",
    "regexp_extract_all(s, '(a)')": "array<string>",
    "listagg(s, ',')": "string",
    "X'00FF'": "binary",
    # nested
    "array(1, 2L)": "array<bigint>",
    "array(m, 1)": "array<decimal(12,2)>",
    "sequence(1, 3)": "array<int>",
    "collect_list(DISTINCT m)": "array<decimal(10,2)>",
    "split(s, ',')": "array<string>",
    "named_struct('a', m, 'b', array(s))": "struct<a:decimal(10,2),b:array<string>>",
    "struct(i AS q, t)": "struct<q:int,t:timestamp>",
    "array(struct(m AS x))[0].x": "decimal(10,2)",
    "collect_list(struct(e, n))": "array<struct<e:date,n:timestamp_ntz>>",
    "r.y[0].z": "date",
    "r.y.z": "array<date>",
    "element_at(w, 1).`a b`": "timestamp_ntz",
    "k['x']": "decimal(5,1)",
    "map_keys(k)": "array<string>",
    "map_values(k)": "array<decimal(5,1)>",
    "map('a', m, 'b', NULL)": "map<string,decimal(10,2)>",
    "map_entries(k)": "array<struct<key:string,value:decimal(5,1)>>",
    "flatten(array(a, a))": "array<int>",
    "filter(w, q -> q.x > 1)": "array<struct<x:int,a b:timestamp_ntz>>",
    "from_json(s, 'a INT, b ARRAY<STRING>')": "struct<a:int,b:array<string>>",
    # variants and booleans
    "parse_json(s)": "variant",
    "v:a.b": "variant",
    "v:a.b::decimal(9,3)": "decimal(9,3)",
    "variant_get(v, '$.a', 'array<int>')": "array<int>",
    "exists(a, q -> q > 1)": "boolean",
    "v IS NULL OR o": "boolean",
    # uncertain
    "transform(a, q -> q + 1)": None,
    "coalesce(s, i)": None,
    "aggregate(a, 0, (p, q) -> p + q)": None,
    "substring(from_json(s, 'a BINARY').a, 1)": None,
    "upper(s COLLATE UTF8_LCASE)": None,
    "coalesce(CAST(1 AS DECIMAL(38, 20)), CAST(1 AS DECIMAL(38, 0)))": None,
}
"""Expressions with the types that are passed to Malloy."""


def inferred(text: str) -> str | None:
    """Return the type that is passed to Malloy for an expression over columns of all types."""
    sql = f"SELECT {text} AS x FROM inner_types"
    try:
        query = parse_query(sql, Location("q"))
    except (SourcesError, IndexError):  # the parser itself fails over MAP(x)
        return None
    kinds = tuple(parse_type(kind) for kind in NESTED.values())
    columns = [(tuple(NESTED), kinds) for _ in query.references]
    return (result_types(query, columns, "q") or (None,))[0]


@pytest.mark.slow
@pytest.mark.proves("V36")
def test_types_passed_to_malloy_match_spark(spark: Any) -> None:
    declared = ", ".join(f"{name} {kind}" for name, kind in NESTED.items())
    spark.createDataFrame([], declared).createOrReplaceTempView("inner_types")
    every = expressions()
    drawn = random.Random(drawn_seed()).sample(every, draws(200, len(every)))
    wrong: list[tuple[str, str, str]] = []
    for text in (*INFERRED, *drawn):
        kind = inferred(text)
        if text in INFERRED:
            name = INFERRED[text]
            assert (kind or "").replace("`", "") == (name or ""), text
        if kind is None:
            continue
        try:
            frame = spark.sql(f"SELECT {text} AS x FROM inner_types")
        except (PySparkException, Py4JJavaError):  # the latter are bugs of Spark
            assert text not in INFERRED, text
            continue
        sparks = frame.schema[0].dataType.simpleString()
        if kind.replace("`", "") != sparks:
            wrong.append((text, kind, sparks))
    assert wrong == []
