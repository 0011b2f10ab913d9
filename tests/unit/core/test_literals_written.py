"""Strings, numbers, binaries and intervals in all spellings mean what Spark reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source

TABLE = "CREATE TABLE t (s STRING, d DATE, ts TIMESTAMP) USING parquet LOCATION 't';\n"


def source(query: str) -> Source:
    made = compiled({"t.sql": TABLE, "q.sql": f"--@ persist\nCREATE VIEW q AS {query}"})
    assert not made.errors, [str(p) for p in made.errors]
    return made.by_id["q@sources/q.sql"]


def build_id(text: str) -> str:
    return source(f"SELECT {text} AS x FROM t").build_id


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("""'a'"b\"""", "'ab'"),
        ("""\"a"'b'""", "'ab'"),
        ("r'a' 'b'", "'ab'"),
        ("'a'\nR\"b\"", "'ab'"),
        ("r'a'/* c */r'b'", "'ab'"),
        ("r'0'''", "'0'"),
        ("r'\\' 'n'", "'\\\\n'"),
        ("'\\u0041' 'b' r'\\'", "'\\u0041b\\\\'"),
        ("X '41'", "X'41'"),
        ('x"4A"', "X'4A'"),
        ("- .5D", "-.5D"),
        ("INTERVAL 1 DAY -2 HOURS", "INTERVAL 1 DAY '-2' HOURS"),
        ("INTERVAL 1 DAY + 2 HOURS", "INTERVAL 1 DAY 2 HOURS"),
    ],
)
def test_spellings_of_one_literal_have_one_build_id(one: str, other: str) -> None:
    assert build_id(one) == build_id(other)


@pytest.mark.proves("S2")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("""'a'"b\"""", "'a\"b'"),
        ("""'a'"b\"""", "'a''b'"),
        ("r'0'''", 'r"0\'"'),
        ("r'\\n'", "'\\n'"),
        ("r'\\' 'n'", "'\\n'"),
        ("'\\u0041' '' r'\\n'", "'\\u0041''' r'\\n'"),
        ("r'a' 'b'", "\"r'a' 'b'\""),
        (".5D", ".5BD"),
        ("INTERVAL 1 DAY -2 HOURS", "INTERVAL 1 DAY 2 HOURS"),
        ("X'41'", "'41'"),
    ],
)
def test_literals_that_spark_distinguishes_have_different_build_ids(one: str, other: str) -> None:
    assert build_id(one) != build_id(other)


@pytest.mark.proves("S2")
def test_a_sign_inside_an_interval_does_not_end_it() -> None:
    named = source("SELECT d + INTERVAL 1 DAY - 2 AS hour FROM t")
    assert source("SELECT d + INTERVAL 1 DAY -2 HOUR AS hour FROM t").build_id != named.build_id
    assert source("SELECT d + (INTERVAL 1 DAY -2 HOUR) AS hour FROM t").build_id != named.build_id


@pytest.mark.proves("S2")
def test_names_that_start_with_digits_are_not_read_as_numbers() -> None:
    table = "CREATE TABLE t (`0x41` INT, `0b1` INT) USING parquet LOCATION 't';"
    made = compiled({"t.sql": table, "q.sql": "CREATE VIEW q AS SELECT 0x41 AS x, 0b1 AS y FROM t"})
    assert not made.errors
    assert [c.type for c in made.by_id["q@sources/q.sql"].columns] == ["int", "int"]
