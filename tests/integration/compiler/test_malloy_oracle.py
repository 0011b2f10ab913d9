"""Malloy on Spark, compared with Malloy on DuckDB: the same queries have the same rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from malloy import Told, malloy
from pyspark.errors import PySparkException

from persist_assets.compiler.malloy.bridge import Connection, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXT = (ROOT / "tests" / "queries" / "flights.malloy").read_text()
QUERIES = re.findall(r"^query: (\w+) is", TEXT, re.MULTILINE)

FLIGHTS = pa.table(
    {
        "id": pa.array(range(1, 13), pa.int32()),
        "carrier": ["AA", "AA", "AA", "BB", "BB", "CC", "CC", "CC", "CC", "DD", None, "BB"],
        "origin": ["ABC", "ABC", "XÄZ", "ABC", "BCD", "BCD", "O'H", "O'H", "ABC", "XÄZ", "XÄZ", "ABC"],
        "destination": ["BCD", "XÄZ", "ABC", "BCD", "ABC", "ABC", "ABC", "BCD", "QQQ", "ABC", "BCD", "BCD"],
        "distance": pa.array([100, 2000, 2000, 450, 500, 1500, 1499, 30, 0, 7, 123456789, None], pa.int32()),
        "delay": pa.array([5, 0, None, -3, 20, 16, 15, 0, None, 61, 5, 1], pa.int32()),
        "price": pa.array([Decimal("10.10"), Decimal("0.00"), None, *[Decimal("99.99")] * 9], pa.decimal128(10, 2)),
        "ratio": [0.1, 0.5, -1.25, None, 2.675, 0.3333333, 1e-9, 7.0, 0.0, 12.5, 99.99, 0.25],
        "flew_on": [date(2024, 1, 1), date(2024, 1, 7), date(2024, 2, 29), date(2024, 2, 1), None, date(2023, 12, 31),
                    date(2024, 3, 3), date(2024, 3, 9), date(2024, 3, 10), date(2024, 7, 1), date(2024, 12, 31), date(2024, 2, 4)],
        "left_at": [datetime(2024, 1, 1), datetime(2024, 1, 6, 23, 59, 59), datetime(2024, 2, 29, 12, 30, 1), datetime(2024, 3, 1),
                    None, datetime(2023, 12, 31, 23, 0), datetime(2024, 3, 10, 9, 59), datetime(2024, 3, 10, 10, 1), datetime(2024, 7, 1, 6),
                    datetime(2024, 7, 1, 7), datetime(2024, 11, 3, 8, 30), datetime(2024, 11, 3, 9, 30)],
        "tags": [["a", "b"], ["a"], [], None, ["c", "c"], ["b", None], ["a"], ["z"], [], ["a"], ["y", "x"], None],
        "legs": pa.array(
            [[{"airport": "P", "mins": 10}, {"airport": "Q", "mins": 20}], [{"airport": "P", "mins": 10}], [], None,
             [{"airport": "Q", "mins": 5}, {"airport": "Q", "mins": 5}], [{"airport": None, "mins": 7}],
             [{"airport": "R", "mins": None}], [], [{"airport": "P", "mins": 1}], None, [{"airport": "S", "mins": 2_000_000_000}], []],
            pa.list_(pa.struct([("airport", pa.string()), ("mins", pa.int32())])),
        ),
    }
).cast(
    pa.schema(
        [
            ("id", pa.int32()), ("carrier", pa.string()), ("origin", pa.string()), ("destination", pa.string()),
            ("distance", pa.int32()), ("delay", pa.int32()), ("price", pa.decimal128(10, 2)), ("ratio", pa.float64()),
            ("flew_on", pa.date32()), ("left_at", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string())),
            ("legs", pa.list_(pa.struct([("airport", pa.string()), ("mins", pa.int32())]))),
        ]
    )
)  # fmt: skip
CARRIERS = pa.table(
    {
        "code": ["AA", "BB", "CC", "EE"],
        "name": ["Alpha", "Beta", "Gamma", None],
        "founded": pa.array([1926, 1999, 2_000_000_000, None], pa.int32()),
        "size": pa.array([3_000_000_000, 7, 2_500_000_000, 1], pa.int64()),
        "share": [0.125, 33.33333333, 1e-8, 5.5],
        "large": pa.array([9_007_199_254_740, 5, 1, 2], pa.int64()),
    }
)
AIRPORTS = pa.table(
    {
        "code": ["ABC", "BCD", "XÄZ", "O'H"],
        "city": ["Abc", "Bcd", None, "O'Hare"],
        "elevation": pa.array([1000, 20, -5, 2_000_000_000], pa.int32()),
    }
)
TABLES = {"flights": FLIGHTS, "carriers": CARRIERS, "airports": AIRPORTS}


def spark_type(kind: Any) -> str:
    if pa.types.is_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{spark_type(f.type)}' for f in kind)}>"
    names = {"int32": "int", "int64": "bigint", "date32[day]": "date", "timestamp[us, tz=UTC]": "timestamp"}  # fmt: skip
    return names.get(str(kind), str(kind).replace("128", ""))


COLUMNS = {
    name: [(f.name, spark_type(f.type)) for f in table.schema] for name, table in TABLES.items()
}


@dataclass
class Engines:
    spark: Any
    duck: Any
    for_spark: Session
    for_duck: Session

    def sql(self, name: str, session: Session) -> str:
        query = session.compile_query("flights.malloy", name=name)
        assert query.problems == ()
        assert query.sql is not None
        return query.sql


@pytest.fixture(scope="module")
def engines(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    told = Told({"flights.malloy": TEXT}, COLUMNS)
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'")
    # Malloy generates SQL for DuckDB 1, where these were the defaults.
    duck.execute("SET lambda_syntax = 'ENABLE_SINGLE_ARROW'")
    duck.execute("SET error_on_division_by_zero = false")
    duck.execute("SET ieee_floating_point_ops = false")
    place = tmp_path_factory.mktemp("tables")
    for name, table in TABLES.items():
        file = str(Path(place) / f"{name}.parquet")
        pq.write_table(table, file)
        spark.read.parquet(file).createOrReplaceTempView(name)
        # Malloy expects DuckDB's timestamps to have no time zone.
        instants = [f"{c}::timestamp AS {c}" for c, kind in COLUMNS[name] if kind == "timestamp"]
        changed = f"REPLACE ({', '.join(instants)})" if instants else ""
        duck.execute(f"CREATE TABLE {name} AS SELECT * {changed} FROM read_parquet('{file}')")
    with (
        malloy(told, {"db": Connection("d")}) as for_spark,
        malloy(told, {"db": Connection("d", "duckdb")}) as for_duck,
    ):
        yield Engines(spark, duck, for_spark, for_duck)
    for name in TABLES:
        spark.catalog.dropTempView(name)


def plain(value: Any, number: Callable[[float], Any] = float) -> Any:
    """Return a value without irrelevant differences: types of numbers, time zones."""
    if isinstance(value, dict):
        return {k: plain(v, number) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v, number) for v in value]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return number(float(value))
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return value


def about(number: float) -> Any:
    return pytest.approx(number, rel=1e-13, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUERIES)
def test_a_malloy_query_has_the_same_rows_on_spark_and_duckdb(engines: Engines, name: str) -> None:
    expected = engines.duck.sql(engines.sql(name, engines.for_duck)).to_arrow_table()
    found = engines.spark.sql(engines.sql(name, engines.for_spark)).toArrow()
    assert found.column_names == expected.column_names
    assert expected.num_rows > 0
    assert plain(found.to_pylist()) == plain(expected.to_pylist(), about)


def test_at_least_sixty_distinct_queries_are_compared() -> None:
    assert len(QUERIES) == len(set(QUERIES)) >= 60


MENDED = {
    "division": "DIVIDE_BY_ZERO",
    "symmetric_sums": "ARITHMETIC_OVERFLOW",
    "unnested_and_joined": "PARSE_SYNTAX_ERROR",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MENDED)
def test_malloys_own_sql_fails_and_the_corrected_sql_runs(engines: Engines, name: str) -> None:
    text = TEXT.replace("source: ", "##! experimental.persistence\nsource: ", 1)
    body = re.search(rf"^query: {name} is (.*?^\}})", text, re.MULTILINE | re.DOTALL)
    assert body is not None
    inner = re.sub(r"\n\s*order_by: [^;}]*?(?=\n})", "", body[1])
    told = Told({"m.malloy": f"{text}\n#@ persist\nsource: persisted is {inner}\n"}, COLUMNS)
    with malloy(told, {"db": Connection("d")}) as session:
        model = session.compile_model("m.malloy")
    (source,) = (s for s in model.sources if s.persist)
    assert source.malloy_sql is not None
    assert source.sql is not None
    with pytest.raises(PySparkException, match=MENDED[name]):
        engines.spark.sql(source.malloy_sql).collect()
    assert engines.spark.sql(source.sql).collect()
