"""Which files a predicate prunes: never one with a matching row."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from conftest import draws
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_assets.external.connectors.pruning import Span, exactly, may_match, span

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
COLUMNS = {
    "i": Span("int", 3, 7, nulls=False),
    "n": Span("bigint", nulls=True, values=False),
    "s": Span("string", "bar", "foo", nulls=False),
    "d": Span("date", date(2024, 1, 31), date(2024, 2, 29)),
    "t": span("timestamp", NOON, NOON, 0, 1),
    "f": span("double", 1.0, 2.0, 0, 5),
    "m": span("decimal(10,2)", Decimal("1.50"), Decimal("2.50"), 0, 5),
    "big": span("decimal(38,2)", Decimal("1.50"), Decimal("2.50"), 0, 5),
    "p": exactly("string", "A"),
    "z": exactly("double", math.nan),
    "unknown": span("int", None, None, None, None),
    "cut": span("string", "a" * 32, "z" * 32 + "\ufffd", 0, 5),
    "b": span("bigint", 2**53 + 1, 2**53 + 1, 0, 1),
    "nan": span("double", math.nan, 2.0, 0, 5),
    "old": span("date", date(1500, 1, 1), date(1582, 10, 4), 0, 5),
    "before": span("timestamp", datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), NOON, 0, 1),
}


@pytest.mark.parametrize(
    "predicate",
    [
        "i > 7", "i < 3", "7 < i", "i = 8", "i >= 7.5", "i IN (1, 2, 9)", "i IS NULL", "i BETWEEN 8 AND 9", "-4 > i",
        "NOT (i <= 7)", "NOT i > 2", "i > 3 AND i > 7", "i > 7 OR i < 3", "(i > 7 OR i < 3) AND foo(i)", "I > 7", "`i` > 7",
        "n IS NOT NULL", "n = 1", "n <> 1", "n > n", "n IN (1)", "s = 'a'", "s > 'fop'", "s LIKE 'z%'", "s LIKE 'a_c'",
        "d > DATE '2024-02-29'", "d = '2024-03-01'", "d < '2024-01-31'", "t > TIMESTAMP '2024-05-06 12:00:00.002Z'",
        "t >= TIMESTAMP '2024-05-08'", "t < DATE '2024-05-01'", "f < 1", "f = 0.5", "m > 2.5", "m = 1",
        "old > DATE '1582-10-14'", "old < '1500-01-01'",
        "before < TIMESTAMP '1969-12-31 23:59:59.997Z'", "b = 9007199254740992", "p = 'B'", "p IS NULL", "false", "NULL", "NOT true", "i = NULL", "z < 1e300", "z IS NULL",
    ],
)  # fmt: skip
def test_files_without_matching_rows_are_pruned(predicate: str) -> None:
    assert not may_match(predicate, COLUMNS)


@pytest.mark.parametrize(
    "predicate",
    [
        "i > 6", "i < 4", "i = 5", "i IN (1, 7)", "i IS NOT NULL", "i BETWEEN 7 AND 9", "NOT (i > 7)", "i <> 3", "i > 7 OR true",
        "n IS NULL", "NOT (n IS NOT NULL)", "s = 'c'", "s LIKE 'f%'", "s LIKE '%z'", "s LIKE 'z\\\\%'", "s = 'it''s'", "s <> 'bar'",
        "s NOT LIKE 'z%'", "i NOT IN (3)", "i NOT BETWEEN 1 AND 9", "d = '2024-02-29'", "d = '2024-2-29'", "i = '9'", "s = 9",
        "t > TIMESTAMP '2024-05-06 12:00:00.0005Z'", "t >= TIMESTAMP '2024-05-07'", "t = DATE '2024-05-06'", "f > 100", "f >= 1e300",
        "m = 2", "big > 3", "p = 'A'", "z > 1e300", "z = z", "p <> 'A'", "f = 3", "unknown IS NULL", "unknown IS NOT NULL", "unknown > 9", "nowhere > 9",
        "i + 1 > 100", "abs(i) > 100", "i <=> 9", "i > i", "s.x = 1", "i = 9 = false", "NOT i = 9 IS NULL", "this is no SQL",
        "cut > 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz😀'", "cut LIKE 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz😀%'", "b = 9007199254740992e0", "nan < 0", "nan <= -1",
        "m = 2.500000000000000000000000000000000001", "old = '1582-10-04'", "before < TIMESTAMP '1969-12-31 23:59:59.9985Z'",
        "i = CAST('9' AS INT)", "d = DATE '2024-2-29'", "d > TIMESTAMP '2024-02-29'", "i IS NOT DISTINCT FROM 9", "CASE WHEN i > 9 THEN true END",
    ],
)  # fmt: skip
def test_files_that_may_match_are_not_pruned(predicate: str) -> None:
    assert may_match(predicate, COLUMNS)


@pytest.mark.parametrize("n_rows", [None, 3])
def test_missing_statistics_are_treated_as_unknown(n_rows: int | None) -> None:
    assert span("int", 1, 2, None, n_rows).nulls
    assert span("int", 1, 2, None, n_rows).values
    assert not span("int", 1, 2, 0, n_rows).nulls
    assert span("int", None, None, 3, n_rows).values is (n_rows is None)
    last = datetime.max.replace(tzinfo=UTC)
    assert span("timestamp", NOON, last, 0, 1).greatest is None


# -------------------------------------------------------------------------------------- soundness

_FLOATS = st.sampled_from([None, -1.5, -0.0, 0.0, 1.0, 1.5, math.nan, math.inf])
_MOMENTS = st.one_of(
    st.none(), st.integers(0, 3_000_000).map(lambda us: NOON + timedelta(microseconds=us))
)
_ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, -2, 0, 1, 3]),
        st.sampled_from([None, "", "a", "ab", "abc", "b", "é", "z%"]),
        _FLOATS,
        _MOMENTS,
        st.sampled_from([None, date(2024, 2, 28), date(2024, 2, 29), date(2024, 3, 1)]),
    ),
    min_size=1,
    max_size=4,
)
_OPS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
_NUMBERS = st.sampled_from(["-2", "0", "1", "0.5", "3"])
_TEXTS = st.sampled_from(["''", "'a'", "'ab'", "'b'", "'é'", "'zz'"])
_DAYS = st.sampled_from(["DATE '2024-02-29'", "DATE '2024-03-01'"])
_INSTANTS = st.integers(0, 3_000_000).map(
    lambda us: f"TIMESTAMPTZ '{(NOON + timedelta(microseconds=us)).isoformat(sep=' ')}'"
)
_NOT = st.sampled_from(["", "NOT "])
_ATOMS = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(["i", "f"]), _OPS, _NUMBERS),
    st.builds("{2} {1} {0}".format, st.sampled_from(["i", "f"]), _OPS, _NUMBERS),
    st.builds("s {} {}".format, _OPS, _TEXTS),
    st.builds("d {} {}".format, _OPS, _DAYS),
    st.builds("t {} {}".format, _OPS, _INSTANTS),
    st.builds("{} IS NULL".format, st.sampled_from("isftd")),
    st.builds("{} IS NOT NULL".format, st.sampled_from("isftd")),
    st.builds("i {}IN ({}, {})".format, _NOT, _NUMBERS, _NUMBERS),
    st.builds("f {}BETWEEN {} AND {}".format, _NOT, _NUMBERS, _NUMBERS),
    st.builds(
        "s {}LIKE {}".format, _NOT, st.sampled_from(["'a%'", "'%b'", "'_b%'", "'zz%'", "'é'"])
    ),
)
_PREDICATES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
    ),
    max_leaves=4,
)
_TYPES = {"i": "int", "s": "string", "f": "double", "t": "timestamp", "d": "date"}


def _as_written(kind: str, values: list[Any]) -> Span:
    """Return a column's statistics as the least precise writer records them."""
    there = [v for v in values if v is not None]
    told: list[Any] = [v for v in there if not (isinstance(v, float) and math.isnan(v))]
    least, greatest = (min(told), max(told)) if told else (None, None)
    if kind == "timestamp" and told:
        least, greatest = (
            m.replace(microsecond=m.microsecond // 1000 * 1000) for m in (least, greatest)
        )
    if kind == "string" and told:
        least, greatest = least[:1], greatest if len(greatest) < 2 else greatest[:1] + "\U0010ffff"
    return span(kind, least, greatest, len(values) - len(there), len(values))


@settings(max_examples=draws(40, 200), deadline=None)
@given(rows=_ROWS, predicate=_PREDICATES)
def test_no_file_with_a_matching_row_is_pruned(rows: list[Any], predicate: str) -> None:
    columns = {
        name: _as_written(kind, [row[n] for row in rows])
        for n, (name, kind) in enumerate(_TYPES.items())
    }
    if may_match(predicate.replace("TIMESTAMPTZ", "TIMESTAMP"), columns):
        return
    with duckdb.connect() as database:
        database.execute("CREATE TABLE t (i INT, s VARCHAR, f DOUBLE, t TIMESTAMPTZ, d DATE)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        found = database.execute(f"SELECT count(*) FROM t WHERE {predicate}").fetchone()
    assert found == (0,), predicate
