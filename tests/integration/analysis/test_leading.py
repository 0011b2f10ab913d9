"""Spans of time functions: the computed span contains Spark's result for each value."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from persist_assets.core.model.columns import MonotoneStep
from persist_assets.core.time_values import (
    DATE_UNITS,
    UNIT_DAYS,
    from_spark,
    lead,
    literal,
    spelled,
)

STEPS: list[tuple[str, str, tuple[MonotoneStep, ...]]] = [
    ("CAST({} AS DATE)", "date", (MonotoneStep("cast", "date", 1),)),
    ("CAST({} AS TIMESTAMP)", "timestamp", (MonotoneStep("cast", "timestamp", 1),)),
    ("CAST({} AS TIMESTAMP_NTZ)", "timestamp_ntz", (MonotoneStep("cast", "timestamp_ntz", 1),)),
    ("year({})", "int", (MonotoneStep("year", "", -1),)),
    *(
        (f"date_trunc('{unit}', {{}})", "timestamp", (MonotoneStep("date_trunc", unit, 1),))
        for unit in sorted(UNIT_DAYS)
    ),
    *(
        (f"trunc({{}}, '{unit}')", "date", (MonotoneStep("trunc", unit, 1),))
        for unit in sorted(DATE_UNITS)
    ),
    (
        "trunc(CAST({} AS DATE), 'mm')",
        "date",
        (MonotoneStep("cast", "date", 1), MonotoneStep("trunc", "mm", 31)),
    ),
]


@pytest.mark.proves("P22")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_the_computed_span_contains_sparks_result(spark: Any, zone: str, kind: str) -> None:
    rng = random.Random(5)
    # Every third day of a year, two days on which clocks change, and two earlier dates.
    days = [date(2024, 1, 1) + timedelta(n) for n in range(0, 366, 3)]
    days += [date(2024, 3, 31), date(2024, 10, 27), date(1969, 12, 31), date(1901, 1, 1)]
    values: list[Any] = [
        day
        if kind == "date"
        else datetime(
            day.year, day.month, day.day, rng.randrange(24), rng.randrange(60), rng.randrange(60),
            rng.randrange(10**6), tzinfo=UTC if kind == "timestamp" else None,
        )
        for day in days
    ]  # fmt: skip
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        listed = ", ".join(f"({n}, {literal(v, kind)})" for n, v in enumerate(values))
        asked = [
            f"{spelled(sql.format('v'), made)} AS s{k}" for k, (sql, made, _) in enumerate(STEPS)
        ]
        rows = spark.sql(f"SELECT n, {', '.join(asked)} FROM VALUES {listed} AS t(n, v)").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert len(rows) == len(values)
    for row in rows:
        value = values[row["n"]]
        for k, (sql, made, steps) in enumerate(STEPS):
            spark_s, led = from_spark(row[f"s{k}"], made), lead((value, value), kind, steps, zone)
            assert spark_s is not None
            assert led is not None
            said = (sql, value, spark_s, led)
            assert led[0] <= spark_s <= led[1], said  # pyright: ignore[reportOperatorIssue]
            if zone == "UTC" and value.year > 1970 and made in ("date", "int"):
                assert led[0] == spark_s, said
