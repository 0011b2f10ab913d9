"""Random programs return the same over only the needed rows and columns, on DuckDB and Spark.

`PERSIST_NIGHTLY_SEED` sets the random seed; see `tests/support/pushing.py`.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pytest
from conftest import drawn_seed
from pushing import OnDuckDB, OnSpark, check, hunt
from shapes import SHAPES, TRAPS, WIDE, program


@pytest.mark.proves("V52", "V53")
def test_random_programs_have_the_same_rows_over_only_needed_rows_on_duckdb() -> None:
    told = hunt(OnDuckDB(), drawn_seed(), 2000)
    print(dict(told))
    assert told["refused"] < 200, told
    assert told["needed"] < 0.8 * told["rows"], told


@pytest.mark.proves("V50", "V52", "V53")
def test_random_programs_have_the_same_rows_over_only_needed_rows_on_spark(spark: Any) -> None:
    told = hunt(OnSpark(spark), drawn_seed(), 60)
    print(dict(told))
    assert told["refused"] < 6, told


@pytest.mark.proves("V50", "V52", "V53", "V53")
def test_query_shapes_have_the_same_rows_over_only_needed_rows_on_spark(spark: Any) -> None:
    engine, now = OnSpark(spark), dt.datetime(2024, 8, 31, 10, tzinfo=dt.UTC)
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION my_udf(x BIGINT) RETURNS BIGINT RETURN x")
    engine.fill(WIDE, random.Random(drawn_seed()), 40)
    raising = {"what may raise", "a text that is no time", "implicit casts"}
    queries = [q for shape, (q, _) in SHAPES.items() if shape not in {*raising, "lots"}]
    for query in (*queries, *TRAPS.values()):
        check(engine, program(query, kept=False), now, "America/Sao_Paulo")
