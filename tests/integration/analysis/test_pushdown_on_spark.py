"""Pushdown and evaluated clock expressions agree with the rows and times of Spark."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from conftest import drawn_seed
from pushing import CHANGING, OnSpark, at, check, clock, hunt, instant
from shapes import TRAPS, WIDE, program

import persist_assets.analysis.predicates as p


@pytest.mark.slow
@pytest.mark.proves("F3")
def test_random_queries_return_the_same_rows_over_only_the_needed_rows(spark: Any) -> None:
    assert hunt(OnSpark(spark), drawn_seed(), 5)["programs"] == 5


@pytest.mark.slow
@pytest.mark.proves("F5")
def test_clock_expressions_evaluate_as_in_spark(spark: Any) -> None:
    draw, engine = Random(2), OnSpark(spark)
    for zone in CHANGING:
        asked: list[str] = []
        for _ in range(40):
            text, now = clock(draw), instant(draw, zone)
            value = p.evaluated(p.from_text(f"x = {text}"), now, ZoneInfo(zone)).args[1]
            asked.append(f"{at(text, now, zone)} = {p.as_text(value)}")
        (answers,) = engine.rows(f"SELECT {', '.join(asked)}", zone)
        wrong = [text for text, same in zip(asked, answers, strict=True) if not same]
        assert not wrong, f"{zone}: {wrong}"


@pytest.mark.slow
@pytest.mark.proves("F3")
@pytest.mark.parametrize("trap", ["days without a zone"])  # the others: nightly
def test_tricky_queries_return_the_same_rows_over_the_needed_rows(spark: Any, trap: str) -> None:
    now = dt.datetime(2024, 8, 31, 10, tzinfo=dt.UTC)
    engine = OnSpark(spark)
    engine.fill(WIDE, Random(4), 40)
    check(engine, program(TRAPS[trap], kept=False), now, "America/Sao_Paulo")
