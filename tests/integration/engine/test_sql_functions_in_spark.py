"""Inlined functions return the same rows as Spark's own functions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.compiler.frontends.sql import parse_definitions, parse_query
from persist_assets.compiler.frontends.sql_inlining import define

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = """
(1, 1.5D, 'a', true, DATE '2024-01-31', TIMESTAMP '2024-02-29 10:00:00', ARRAY(1, 2), 10.25BD),
(2, -2.5D, '7', false, NULL, TIMESTAMP '1999-12-31 23:59:59', ARRAY(NULL, 5), -0.05BD),
(NULL, NULL, NULL, NULL, DATE '1970-01-01', NULL, NULL, NULL),
(-3, 0.0D, ' x ', true, DATE '2000-02-29', TIMESTAMP '2000-01-01 00:00:00', ARRAY(), 99.99BD)
"""
COLUMNS = "i, d, s, b, day, ts, xs, price"

FUNCTIONS = {
    # Parameters with the names of columns, of other parameters and of functions.
    "add1": ("(i INT) RETURNS INT RETURN i + 1", ("num",), "num"),
    "ratio": ("(d DOUBLE, i DOUBLE) RETURNS DOUBLE RETURN d / nullif(i, 0)", ("num", "num"), "num"),
    "label": (
        "(s STRING, b BOOLEAN) RETURNS STRING RETURN if(b, s || '!', s)",
        ("any", "bool"),
        "any",
    ),
    "cut": ("(d DECIMAL(12, 4)) RETURNS DECIMAL(12, 1) RETURN d * 2", ("num",), "num"),
    "whole": ("(x DOUBLE) RETURNS INT RETURN x", ("num",), "num"),
    "later_by": (
        "(x DATE, n INT DEFAULT 1) RETURNS DATE RETURN add_months(x, n)",
        ("date", "num"),
        "date",
    ),
    "older": ("(a TIMESTAMP, b DATE) RETURNS BOOLEAN RETURN a < b", ("date", "date"), "bool"),
    "size_of": ("(xs ARRAY<INT>) RETURNS INT RETURN size(filter(xs, e -> e > 1))", ("arr",), "num"),
    "shift": (
        "(xs ARRAY<DOUBLE>, by INT) RETURNS ARRAY<INT> RETURN transform(xs, e -> e + by)",
        ("arr", "num"),
        "arr",
    ),
    "either": (
        "(x STRING, y STRING DEFAULT 'none') RETURNS STRING RETURN CASE WHEN either.x IS NULL THEN y ELSE x END",
        ("any", "any"),
        "any",
    ),
    "nested": ("(x INT) RETURNS BIGINT RETURN add1(add1(x)) * add1(i => x)", ("num",), "num"),
    "same": ("(x STRUCT<a: INT, b: STRING>) RETURNS STRING RETURN x.a || x.b", ("struct",), "any"),
    "known": ("(x INT) RETURNS INT RETURN coalesce(x, least_known)", ("num",), "num"),
    "plain": ("(i INT, d DOUBLE) RETURN i * d + 1.5", ("num", "num"), "num"),
    "louder": ("(s STRING) RETURN upper(s) || '!'", ("any",), "any"),
    "four": ("() RETURN 4", (), "num"),
    "nothing": ("() RETURNS STRING RETURN NULL", (), "any"),
    "three": ("() RETURNS TINYINT RETURN 3", (), "num"),
}
"""By name: the rest of CREATE FUNCTION, and the kinds of the arguments and of the value."""

LEAVES = {
    "num": ("i", "d", "price", "1", "NULL", "2.75", "CAST(b AS INT)", "size(xs)", "least_known"),
    "bool": ("b", "i > 1", "NULL", "d IS NULL"),
    "any": ("s", "i", "d", "day", "'it''s'", "NULL", "b", "price"),
    "date": ("day", "ts", "DATE '2024-05-06'", "NULL", "'2023-01-02'"),
    "arr": ("xs", "array(i, 4)", "NULL", "array(1.5, 2.5)"),
    "struct": ("struct(i, s)", "named_struct('x', 1, 'y', s)", "NULL"),
}
DECLARE = "DECLARE OR REPLACE VARIABLE least_known INT DEFAULT '17'"


def calls(random: Random, kind: str, depth: int, *, outermost: bool = True) -> str:
    """Return an expression of a kind that calls functions."""
    # Spark itself does not support functions with lambdas inside or around other functions.
    fits = [n for n, (t, _, k) in FUNCTIONS.items() if k == kind and (outermost or "->" not in t)]
    if depth == 0 or not fits or random.random() < 0.2:
        return random.choice(LEAVES[kind])
    name = random.choice(fits)
    text, kinds, _ = FUNCTIONS[name]
    depth = 0 if "->" in text else depth - 1
    arguments = [calls(random, k, depth, outermost=False) for k in kinds]
    if "DEFAULT" in text and random.random() < 0.5:
        arguments.pop()
    return f"{name}({', '.join(arguments)})"


@pytest.fixture
def functions(spark: Any) -> Iterator[Any]:
    """Yield the session with the functions, the variable and the table."""
    spark.sql(DECLARE)
    for name, (text, _, _) in FUNCTIONS.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {name}{text}")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW calls AS SELECT * FROM VALUES {TABLE} AS t({COLUMNS})"
    )
    yield spark
    for name in FUNCTIONS:
        spark.sql(f"DROP TEMPORARY FUNCTION {name}")
    spark.sql("DROP TEMPORARY VARIABLE least_known")
    spark.sql("DROP VIEW calls")


@pytest.mark.slow
@pytest.mark.proves("W20")
def test_inlined_calls_return_the_same_rows_as_sparks_own_calls(functions: Any) -> None:
    texts = [f"CREATE FUNCTION {name}{text};" for name, (text, _, _) in FUNCTIONS.items()]
    known = define(parse_definitions("\n".join([*texts, DECLARE]), "sources/f.sql"))
    assert not known.problems
    random = Random(29)
    drawn = {
        calls(random, random.choice(["num", "bool", "any", "date", "arr"]), 3) for _ in range(90)
    }
    columns = sorted(c for c in drawn if any(f"{name}(" in c for name in FUNCTIONS))
    assert len(columns) > 40
    selected = ", ".join(f"{c} AS c{n}" for n, c in enumerate(columns))
    text = f"SELECT {selected} FROM calls ORDER BY i"
    inlined = parse_query(text, None, known).text
    assert not any(f"{name}(" in inlined for name in FUNCTIONS), inlined
    own, ours = functions.sql(text), functions.sql(inlined)
    types = [(f.name, f.dataType.simpleString()) for f in own.schema]
    assert [(f.name, f.dataType.simpleString()) for f in ours.schema] == types
    assert ours.collect() == own.collect()
