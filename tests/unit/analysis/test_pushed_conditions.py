"""Conditions pushed down to tables: constants, conditional values, tuples, fields, NULLs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pushed_views import CONDITIONS, REAL
from pushing import declared, needs_of
from test_rules import without

import persist_assets.analysis.predicates as p
from persist_assets.analysis.pushdown import bounds, conditionals, constants, terms


def pushed(condition: str) -> str:
    """Return the part of a condition on `t` that is pushed down."""
    text = f"{declared(REAL)}--@ persist\nCREATE VIEW q AS SELECT id FROM t WHERE {condition};\n"
    (need,) = needs_of(text).values()
    assert p.from_text(p.as_text(need.predicate)) == need.predicate
    return p.as_text(need.predicate)


FOLDED = {
    "amt >= 0.06 - 0.01": "amt >= 0.05",
    "amt >= 0.6 * 0.05": "amt >= 0.030",
    "amt < 1 + 0.5": "amt < 1.5",
    "amt = -(1.50)": "amt = -1.50",
    "amt = CAST('1.5' AS DECIMAL(10,2))": "amt = 1.50",
    "amt = CAST('1.5' AS DECIMAL(3,1))": "amt = 1.5",
    "amt > CAST(2 AS DECIMAL)": "amt > 2",
    "k > 10 - 2 * 4": "k > 2",
    "k = -7 div 2": "k = -3",
    "k = -7 % 4": "k = -3",
    "k < 7 / 2": "CAST(k AS DOUBLE) < 3.5D AND k <= 3",
    "k >= 7 / 2": "CAST(k AS DOUBLE) >= 3.5D AND k >= 4",
    "k > 8 / 2": "CAST(k AS DOUBLE) > 4.0D AND k >= 5",
    "k = '2'": "k = 2",
    "k >= '-2'": "k >= -2",
    "id = '9007199254740993'": "id = 9007199254740993",
    "f > '1.5'": "f > 1.5D",
    "g < '0.1'": "CAST(g AS DOUBLE) < 0.1D",
    "g < 2": "CAST(g AS DOUBLE) < 2.0D",
    "g = CAST(0.5 AS FLOAT)": "CAST(g AS DOUBLE) = 0.5D",
    "f = power(2, 3)": "f = 8.0D",
    "k IN (1, '2')": "k IN (1, 2)",
    "d IN ('2024-02-29', DATE '2024-03-01')": "d IN (DATE '2024-02-29', DATE '2024-03-01')",
    "s = concat('a', 'b', 1)": "s = 'ab1'",
    "s = upper(trim(' ab '))": "s = 'AB'",
    "s = substring('abc', 2)": "s = 'bc'",
    "s = right('abc', 2)": "s = 'bc'",
    "s = CAST(DATE '2024-02-29' AS STRING)": "s = '2024-02-29'",
    "b = x'0a'": "b = X'0A'",
    "d = make_date(2024, 2, 29)": "d = DATE '2024-02-29'",
    "d = to_date('29.02.2024', 'dd.MM.yyyy')": "d = DATE '2024-02-29'",
    "d = to_date('20240229', 'yyyyMMdd')": "d = DATE '2024-02-29'",
    "d = last_day('2023-02-05')": "d = DATE '2023-02-28'",
    "d = add_months(DATE '2024-01-31', -11)": "d = DATE '2023-02-28'",
    "d = next_day(DATE '2024-02-29', 'thu')": "d = DATE '2024-03-07'",
    "d <= last_day(current_date())": (
        "d <= trunc(CURRENT_DATE(), 'month') + INTERVAL 1 MONTHS - INTERVAL 1 DAYS"
    ),
    "n < localtimestamp()": "n < CAST(NOW() AS TIMESTAMP_NTZ)",
    "ts < make_timestamp(2024, 3, 1, 9, 5, 0)": "ts < TIMESTAMP '2024-03-01 09:05:00'",
    "ts < timestamp_seconds(-1)": "ts < TIMESTAMP '1969-12-31 23:59:59+00:00'",
    "k = greatest(1, 3, 2)": "k = 3",
    "k = coalesce(NULL, 2, k)": "k = 2",
    "k = CASE WHEN 1 > 2 THEN 5 WHEN 2 = 2 THEN 6 ELSE 7 END": "k = 6",
}


@pytest.mark.proves("V2")
@pytest.mark.parametrize("condition", FOLDED)
def test_a_constant_is_pushed_as_its_value(condition: str) -> None:
    assert pushed(condition) == FOLDED[condition]


NOT_FOLDED = {
    # Errors stay where they are: at most IS NOT NULL is pushed down.
    **dict.fromkeys(("k = 1 / 0", "k = 1 div 0", "k = 5 % 0", "k = 2147483647 + 1")),
    **dict.fromkeys(("k = -(-2147483648)", "k = abs(-2147483648)", "k = CAST(3e9 AS INT)")),
    **dict.fromkeys(("k = CAST('x' AS INT)", "k = CAST('2.5' AS INT)", "k = CAST(1e2 AS INT)")),
    # Spellings that Spark parses in one mode only, or in a special way.
    **dict.fromkeys(("k = '2.5'", "k = '+2'", "k = ' 2'", "k = '02'", "k = '1e1'", "k = ''")),
    **dict.fromkeys(("k IN ('1', '2.0')", "k IN ('1', 2.5)", "k NOT IN ('02')")),
    # The string column is converted, not the number compared with it.
    **dict.fromkeys(("s = 1", "s IN (1, 2)", "s > 1.5", "amt = '1.5'")),
    # Rounded values, and values that a float cannot represent.
    **dict.fromkeys(("amt = CAST(0.125 AS DECIMAL(3,2))", "amt = CAST('0.125' AS DECIMAL(3,2))")),
    **dict.fromkeys(("amt = CAST(1234 AS DECIMAL(3,0))", "g = CAST(0.1 AS FLOAT)")),
    **dict.fromkeys(("g < 16777217", "f = power(2.5, 2)", "f = power(2, -1)")),
    # Invalid or ambiguous dates.
    **dict.fromkeys(("d = make_date(2023, 2, 29)", "d = to_date('2024-02-30')")),
    **dict.fromkeys(("d = to_date('1.3.2024', 'd.M.yyyy')", "d = to_date('240301', 'yyMMdd')")),
    **dict.fromkeys(("d = add_months(DATE '9999-12-01', 1)", "d = next_day(d, 'MON')")),
    **dict.fromkeys(
        ("d IN ('2024-2-29')", "ts IN ('2024-02-29', TIMESTAMP '2024-03-01 00:00:00')")
    ),
    # Positions from the end.
    **dict.fromkeys(("s = substring('abc', -2)", "s = substring('abc', 0)")),
    **dict.fromkeys(("s = CAST(1.50 AS STRING)", "s = CAST(1e0 AS STRING)")),
    # Values may exceed the range of their type, or of the calendar.
    **dict.fromkeys(("k + 1 > 2", "-k > 1", "abs(k) = 1", "last_day(d) = '2024-02-29'")),
    **dict.fromkeys(("d + INTERVAL 1 DAY > '2024-03-01'", "CAST(f AS INT) = 1")),
}


@pytest.mark.proves("V2")
@pytest.mark.parametrize("condition", NOT_FOLDED)
def test_uncertain_conditions_are_not_pushed_down(condition: str) -> None:
    left = pushed(condition)
    assert left == "TRUE" or left.endswith(" IS NOT NULL"), left


CHOICES = {
    "if(k > 1, 'hi', 'lo') = 'hi'": "k > 1",
    # If the test is NULL, the other value is returned.
    "if(k > 1, 'hi', 'lo') = 'lo'": "k <= 1 OR k IS NULL",
    "if(k > 1 AND ok, 1, 0) = 0": "k <= 1 OR k IS NULL OR ok = FALSE OR ok IS NULL",
    "if(k > 1 OR ok, 1, 0) = 0": "(k <= 1 OR k IS NULL) AND (ok = FALSE OR ok IS NULL)",
    "if(NOT (k IN (1, 2)), 1, 0) = 0": "k IN (1, 2) OR k IS NULL",
    "if(k IN (1, NULL), 1, 0) = 0": "TRUE",
    "if(k = NULL, 1, 0) = 0": "TRUE",
    "if(s LIKE 'a%', 1, 0) = 0": "s IS NULL OR s NOT LIKE 'a%'",
    "if(k IS NULL, 1, 0) = 0": "k IS NOT NULL",
    "if(k IS NOT NULL, 1, 0) = 0": "k IS NULL",
    "if(ok <=> true, 1, 0) = 0": "ok <> TRUE OR ok IS NULL",
    "if(f > 1.5D, 1, 0) = 0": "f <= 1.5D OR f IS NULL",
    # Tests that cannot be analysed may have any value.
    "if(reverse(s) = 'a', 1, 0) = 0": "TRUE",
    "if(rand() > 0.5, 1, k) = 0": "k = 0",
    "if(reverse(s) = 'a' AND k = 1, 1, 0) = 0": "TRUE",
    "if(reverse(s) = 'a' OR k = 1, 1, 0) = 0": "k <> 1 OR k IS NULL",
    "NOT (if(k > 1, 'hi', 'lo') = 'hi')": "k <= 1 OR k IS NULL",
    "CASE WHEN k = 1 THEN 'a' WHEN k > 0 THEN 'b' END = 'b'": "(k <> 1 OR k IS NULL) AND k > 0",
    "CASE WHEN k = 1 THEN 'a' END IS NULL": "k <> 1 OR k IS NULL",
    "CASE WHEN k = 1 THEN s END <> 'a'": "k = 1 AND s <> 'a'",
    "CASE WHEN k = 1 THEN s END NOT IN ('a', NULL)": "FALSE",
    "CASE WHEN k <> 0 THEN 10 / k END > 3": "k <> 0",
    "CASE s WHEN 'a' THEN 1 WHEN 'b' THEN 2 ELSE 0 END IN (1, 2)": "s IN ('a', 'b')",
    "CASE WHEN ok THEN k > 1 ELSE s = 'a' END": (
        "(ok = FALSE OR ok IS NULL) AND s = 'a' OR k > 1 AND ok = TRUE"
    ),
    "coalesce(k, 0) > 1": "k > 1",
    "coalesce(k, 0) = 0": "k = 0 OR k IS NULL",
    "coalesce(k, sm, 5) = 5": "k = 5 OR k IS NULL AND sm = 5 OR k IS NULL AND sm IS NULL",
    "coalesce(reverse(s), s) = 'a'": "TRUE",
    "coalesce(ok, false)": "ok = TRUE",
    "NOT coalesce(ok, false)": "ok = FALSE OR ok IS NULL",
    "nullif(k, 0) = 1": "k = 1",
    "nullif(k, 0) IS NULL": "k = 0 OR k IS NULL",
    "nvl2(k, s, 'none') = 'a'": "k IS NOT NULL AND s = 'a'",
    # Values of several types are converted to a common one first.
    "coalesce(k, '1') = 1": "TRUE",
    "if(ok, d, ts) = '2024-02-29'": "TRUE",
    "if(ok, 1.5, k) > '1'": "TRUE",
    "coalesce(k, 1.5) > 1": "k > 1 OR k IS NULL",
    # Conditions as values.
    "(s = 'a') = true": "s = 'a'",
    "(s = 'a') = false": "s <> 'a'",
    "(s = 'a') <> (1 = 1)": "s <> 'a'",
    "(k > 1) IS NOT TRUE": "k <= 1 OR k IS NULL",
    "(k > 1) IS NOT FALSE": "k > 1 OR k IS NULL",
    "NOT ((k > 1) <=> true)": "k <= 1 OR k IS NULL",
    "(s = 'a') = ok": "ok IS NOT NULL",
    # Tuples: NULL equals NULL in them.
    "(k, s) = (1, 'a')": "k = 1 AND s = 'a'",
    "(k, s) IN ((1, 'a'), (2, NULL))": "k = 1 AND s = 'a' OR k = 2 AND s IS NULL",
    "(k, s) NOT IN ((1, 'a'))": "TRUE",
    "(k, s) <> (1, 'a')": "TRUE",
    "(k, reverse(s)) = (1, 'a')": "k = 1",
    "(k, f) = (1, 0.0D)": "k = 1",
    # Parts of strings.
    "startswith(s, 'a')": "s LIKE 'a%'",
    "contains(s, '50%')": r"s LIKE '%50\\%%'",
    "NOT endswith(s, '_x')": r"s NOT LIKE '%\\_x'",
    r"startswith(s, 'a\\b')": r"s LIKE 'a\\\\b%'",
    "startswith(s, '')": "s IS NOT NULL",
    "NOT startswith(s, '')": "FALSE",
    "startswith(s, s2)": "s IS NOT NULL AND s2 IS NOT NULL",
    "s LIKE ANY ('a%', '%b')": "s LIKE '%b' OR s LIKE 'a%'",
    "s NOT LIKE ALL ('a%', 'b%')": "s NOT LIKE 'a%' AND s NOT LIKE 'b%'",
    # Fields.
    "place.City = 'a' AND place.geo.LAT > 1.5": "place.city = 'a' AND place.geo.lat > 1.5D",
    "place['zip'] IN (1, 2)": "place.zip IN (1, 2)",
    "place.city IS NULL": "place.city IS NULL",
    "place.geo.since >= '2024-03-01'": "place.geo.since >= DATE '2024-03-01'",
    # A comparison that is not pushed down still needs values that are not NULL.
    "reverse(s) = 'a'": "s IS NOT NULL",
    "NOT (reverse(s) = 'a')": "s IS NOT NULL",
    "k % 2 = sm": "k IS NOT NULL AND sm IS NOT NULL",
    "concat_ws(',', s, s2) = 'a'": "TRUE",
    "reverse(s) <=> 'a'": "TRUE",
    "array(k) = array(1)": "TRUE",
}


@pytest.mark.proves("V2")
@pytest.mark.parametrize("condition", CHOICES)
def test_conditions_are_pushed_down_in_simplified_form(condition: str) -> None:
    assert pushed(condition) == CHOICES[condition]


@pytest.mark.proves("V2")
def test_decimals_rounded_by_a_conditional_expression_are_not_pushed_down() -> None:
    """The common type keeps all digits before the decimal point, and too few after it."""
    head = "CREATE TABLE t (k INT, a DECIMAL(30,2), b DECIMAL(37,20), c DECIMAL(20,10))"
    for choice, left in {
        "coalesce(a, b)": "TRUE",
        "CASE WHEN k = 1 THEN a ELSE b END": "TRUE",
        "coalesce(b, c)": "b = 0.3 OR b IS NULL AND c = 0.3",
    }.items():
        for test in ("= 0.3", "IN (0.3)"):
            query = f"CREATE VIEW q AS SELECT k FROM t WHERE {choice} {test};"
            text = f"{head} USING parquet LOCATION 'raw/t';\n--@ persist\n{query}\n"
            (need,) = needs_of(text, ("t",)).values()
            assert p.as_text(need.predicate) == left, choice


RULES: list[tuple[str, Callable[..., Any], str, str]] = [
    ("if(k > 1, 'hi', 'lo') = 'lo'", conditionals.untrue, "*nulls", "*nulls[:0]"),
    ("coalesce(k, '1') = 1", conditionals.have_one_type, "if len(kinds) < 2:", "if kinds:"),
    ("if(reverse(s) = 'a' AND k = 1, 1, 0) = 0", conditionals.untrue, 'case Call("and", args):\n            return p.some', 'case Call("and", args):\n            return p.every'),
    ("reverse(s) <=> 'a'", conditionals.not_null, "case Call(op, args) if op in _STRICT_TESTS:", "case Call(op, args):"),
    ("concat_ws(',', s, s2) = 'a'", conditionals.not_null, "this.op in _STRICT", "this.op"),
    ("(k, s) <> (1, 'a')", terms.TermReader._composed, 'if op == "=" and not negate:', "if True:"),
    ("contains(s, '50%')", terms.TermReader._part, r"[%_\\]", r"[_\\]"),
    ("k > 8 / 2", bounds._whole, "floor(number) + 1 if op", "floor(number) if op"),
    ("k = -7 div 2", constants._of_integers, "abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)", "x // y"),
    ("amt >= 0.06 - 0.01", constants._decimal, "whole + scale > _MOST_DIGITS", "scale"),
]  # fmt: skip
"""A condition, the function that implements its rule, a part of its code, and a replacement."""


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r[0])
def test_a_condition_is_pushed_down_differently_without_its_rule(
    rule: tuple[str, Callable[..., Any], str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    condition, function, text, instead = rule
    monkeypatch.setattr(function, "__code__", without(function, text, instead))
    assert pushed(condition) != {**FOLDED, **CHOICES}[condition]


def test_conditions_of_real_projects_can_be_read_back() -> None:
    for condition in CONDITIONS:
        pushed(condition)
