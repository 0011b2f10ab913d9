"""Constant expressions that are evaluated for pushdown have the values that Spark computes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from conftest import drawn_seed
from pushed_views import REAL
from pushing import OnSpark, declared, needs_of

import persist_assets.analysis.predicates as p

COLUMNS = {
    **{"INT": "k", "DECIMAL": "amt", "DOUBLE": "f", "FLOAT": "g", "STRING": "s", "DATE": "d"},
    **{"TIMESTAMP": "ts", "BINARY": "b"},
}


def constant(draw: Random, kind: str, depth: int = 2) -> str:
    """Return a random expression of literals."""
    if depth == 0:
        return draw.choice(_LITERALS[kind])

    def of(other: str) -> str:
        return constant(draw, other, depth - 1)

    match kind:
        case "INT":
            op = draw.choice(("+", "-", "*", "%", "div"))
            forms = [f"({of('INT')} {op} {of('INT')})", f"-({of('INT')})", f"abs({of('INT')})"]
            forms += [f"length({of('STRING')})", f"CAST({of('DECIMAL')} AS INT)"]
            forms += [f"greatest({of('INT')}, {of('INT')})", f"if({of('INT')} > 1, 1, {of('INT')})"]
        case "DECIMAL":
            op = draw.choice(("+", "-", "*"))
            forms = [f"({of('DECIMAL')} {op} {of('DECIMAL')})", f"-({of('DECIMAL')})"]
            forms += [
                f"({of('DECIMAL')} {op} {of('INT')})",
                f"CAST({of('DECIMAL')} AS DECIMAL(9,3))",
            ]
            forms += [f"CAST({of('INT')} AS DECIMAL(9,1))", "CAST('-12.340' AS DECIMAL(6,3))"]
        case "DOUBLE":
            op = draw.choice(("+", "-", "*", "/"))
            forms = [f"({of('DOUBLE')} {op} {of('DOUBLE')})", f"({of('INT')} / {of('INT')})"]
            forms += [f"CAST({of('DECIMAL')} AS DOUBLE)", "power(3, 4)", "CAST('0.1' AS DOUBLE)"]
        case "STRING":
            forms = [f"concat({of('STRING')}, {of('STRING')})", f"{of('STRING')} || 'x'"]
            forms += [f"upper({of('STRING')})", f"trim({of('STRING')})", f"left({of('STRING')}, 2)"]
            forms += [f"substring({of('STRING')}, 2, 1)", f"right({of('STRING')}, 2)"]
            forms += [f"CAST({of('INT')} AS STRING)", f"CAST({of('DATE')} AS STRING)"]
        case "DATE":
            forms = [f"last_day({of('DATE')})", f"date_add({of('DATE')}, {of('INT')} % 99)"]
            forms += [
                f"add_months({of('DATE')}, {of('INT')} % 99)",
                f"next_day({of('DATE')}, 'TU')",
            ]
            forms += ["make_date(2023, 2, 28)", "to_date('02/29/2024', 'MM/dd/yyyy')"]
            forms += ["date_from_unix_date(-1)", f"date_sub('2024-03-01', {of('INT')} % 9)"]
        case _:
            return draw.choice(_LITERALS[kind])
    return draw.choice(forms)


_LITERALS = {
    "INT": ["0", "1", "-7", "2", "2147483647", "12", "3S"],
    "DECIMAL": ["0.06", "1.50", "-0.5", "10.00", "123456789.123456789", "2.5"],
    "DOUBLE": ["0.1D", "1e3", "-2.5D", "0D", "3e-2"],
    "FLOAT": ["CAST(0.5 AS FLOAT)", "CAST(-1.25 AS FLOAT)", "CAST(3 AS FLOAT)"],
    "STRING": ["''", "'a'", "' Ab '", "'it''s'", "'100%'"],
    "DATE": ["DATE '2024-02-29'", "DATE '2023-12-31'", "'2024-03-10'"],
    "TIMESTAMP": [
        *("make_timestamp(2024, 3, 10, 2, 30, 0)", "timestamp_seconds(1709251201)"),
        *("to_timestamp('2018-11-04 00:30:00')", "CAST('2024-03-10 02:30:00' AS TIMESTAMP)"),
    ],
    "BINARY": ["X'00'", "X''", "x'0aFF'"],
}


@pytest.mark.slow
@pytest.mark.proves("V2")
def test_constants_have_the_values_that_spark_computes(spark: Any) -> None:
    draw, engine = Random(f"constants {drawn_seed()}"), OnSpark(spark)
    tests: list[tuple[str, str]] = []
    for kind, column in COLUMNS.items():
        for _ in range(40 if kind not in ("FLOAT", "TIMESTAMP", "BINARY") else 6):
            tests.append((column, constant(draw, kind)))
    text = declared(REAL) + "".join(
        f"--@ persist\nCREATE VIEW q{i} AS SELECT id FROM t WHERE {column} = {value};\n"
        for i, (column, value) in enumerate(tests)
    )
    needs = needs_of(text)
    for zone in ("America/New_York", "America/Sao_Paulo", "UTC"):
        equal: dict[str, str] = {}
        for i, (_, value) in enumerate(tests):
            term = needs[f"q{i}", "t"].predicate
            first = next((t for t in p.conjuncts(term) if t.op == "="), None)
            if first is not None and first.args[1].op in p.LITERALS:
                equal[value] = f"{value} = {p.as_text(first.args[1])}"
        assert len(equal) > 100, len(equal)
        (answers,) = engine.rows(f"SELECT {', '.join(equal.values())}", zone)
        wrong = [test for test, same in zip(equal.values(), answers, strict=True) if not same]
        assert not wrong, f"{zone}: {wrong}"
