"""Random conditions made of those of real projects, and whether what is pushed holds for their rows."""

from __future__ import annotations

import random
from zoneinfo import ZoneInfo

from pushed_views import CONDITIONS, REAL
from pushing import NOWS, ZONES, OnSpark, at, declared, needs_of

import persist_assets.analysis.predicates as p

LEAVES = [c for c in CONDITIONS if "SELECT" not in c and "+ 1 =" not in c]
_VALUES = {
    "INT": ["k", "k", "sm", "1", "2", "0", "NULL", "place.zip", "1 + 1"],
    "STRING": ["s", "s", "s2", "'a'", "'ab'", "''", "NULL", "place.city", "concat('a', 'b')"],
    "DATE": ["d", "day", "DATE '2024-02-29'", "CAST(ts AS DATE)", "NULL", "make_date(2024, 3, 1)"],
    "DOUBLE": ["f", "1.5D", "-0.0D", "0.0D", "double('NaN')", "NULL", "place.geo.lat"],
    "DECIMAL": ["amt", "1.50", "0.06 - 0.01", "NULL", "CAST(2 AS DECIMAL(10,2))"],
}
_CONSTANTS = {
    "INT": ["1", "2", "0", "'1'", "1.5", "3 - 1"],
    "STRING": ["'a'", "'ab'", "''", "lower('A')"],
    "DATE": ["DATE '2024-02-29'", "'2024-03-01'", "TIMESTAMP '2024-02-29 12:00:00'"],
    "DOUBLE": ["1.5D", "0.0D", "0", "1.5", "double('NaN')"],
    "DECIMAL": ["1.5", "0.05", "2", "0.06 - 0.01"],
}


def condition(draw: random.Random, depth: int = 3) -> str:
    """Return a condition on columns of `t`."""
    roll = draw.random()
    if depth == 0 or roll < 0.2:
        return draw.choice(LEAVES)
    if roll < 0.45:
        return compared_choice(draw, depth)
    a, b, c = (f"({condition(draw, depth - 1)})" for _ in range(3))
    return draw.choice(
        (
            f"{a} AND {b}",
            f"{a} OR {b}",
            f"NOT {a}",
            f"CASE WHEN {a} THEN {b} ELSE {c} END",
            f"CASE WHEN {a} THEN {b} END",
            f"if({a}, {b}, {c})",
            f"coalesce({a}, {draw.choice(('true', 'false'))})",
            f"{a} = {draw.choice(('true', 'false'))}",
            f"{a} <> {draw.choice(('true', 'false'))}",
            f"{a} IS {draw.choice(('', 'NOT '))}{draw.choice(('TRUE', 'FALSE'))}",
            f"{a} <=> {draw.choice(('true', 'false'))}",
            f"NOT ({a} <=> {draw.choice(('true', 'false'))})",
            f"{a} IS {draw.choice(('', 'NOT '))}NULL",
        )
    )


def compared_choice(draw: random.Random, depth: int) -> str:
    """Return a condition on a CASE, `coalesce`, `nullif` or `nvl2`."""
    kind = draw.choice(list(_VALUES))
    one, two, three = draw.choices(_VALUES[kind], k=3)
    a, b = (f"({condition(draw, depth - 1)})" for _ in range(2))
    column = _VALUES[kind][0]
    value = draw.choice(
        (
            f"CASE WHEN {a} THEN {one} WHEN {b} THEN {two} ELSE {three} END",
            f"CASE WHEN {a} THEN {one} WHEN {b} THEN {two} END",
            f"if({a}, {one}, {two})",
            f"coalesce({column}, {one}, {two})",
            f"coalesce({one}, {column}, {two})",
            f"nullif({column}, {draw.choice(_CONSTANTS[kind][:2])})",
            f"nvl2({one}, {column}, {three})",
        )
    )
    op, constant = draw.choice(("=", "<>", "<", ">=", "=")), draw.choice(_CONSTANTS[kind])
    choices = ", ".join(draw.choices(_CONSTANTS[kind][:2], k=2))
    test = draw.choice(
        (
            f"{value} {op} {constant}",
            f"{value} {op} {constant}",
            f"{constant} {op} {value}",
            f"{value} IN ({choices})",
            f"{value} NOT IN ({choices})",
            f"{value} IS {draw.choice(('', 'NOT '))}NULL",
        )
    )
    return f"NOT ({test})" if draw.random() < 0.2 else test


def hunt_conditions(engine: OnSpark, seed: int, n: int) -> dict[str, int]:
    """Assert that what is pushed holds for all rows for which random conditions are TRUE.

    Returns
    -------
    How many conditions there are, how many have rows, and for how many fewer than all rows are
    needed.
    """
    draw = random.Random(f"conditions {seed}")
    engine.fill(REAL, draw, 150)
    conditions = [condition(draw) for _ in range(n)]
    text = declared(REAL) + "".join(
        f"--@ persist\nCREATE VIEW q{i} AS SELECT id FROM t WHERE {c};\n"
        for i, c in enumerate(conditions)
    )
    needs = needs_of(text)
    counts = {"conditions": n, "with rows": 0, "narrowed": 0}
    for start in range(0, n, 25):
        now, zone = draw.choice(NOWS), draw.choice(ZONES)
        tests: list[str] = []
        for i in range(start, min(start + 25, n)):
            term = needs[f"q{i}", "t"].predicate
            assert p.from_text(p.as_text(term)) == term
            pushed = p.as_text(p.evaluated(term, now, ZoneInfo(zone)))
            holds = f"coalesce(({at(conditions[i], now, zone)}), false)"
            tests += [
                f"count_if({holds} AND NOT coalesce(({pushed}), false))",
                f"count_if({holds})",
            ]
            tests.append(f"count_if(NOT coalesce(({pushed}), false))")
        (found,) = engine.rows(f"SELECT {', '.join(tests)} FROM base_t", zone)
        for i in range(start, min(start + 25, n)):
            missing, rows, fewer = found[3 * (i - start) : 3 * (i - start) + 3]
            pushed = p.as_text(needs[f"q{i}", "t"].predicate)
            assert not missing, f"seed {seed}, {zone}, {now}: {conditions[i]}\npushed: {pushed}"
            counts["with rows"] += rows > 0
            counts["narrowed"] += fewer > 0
    return counts
