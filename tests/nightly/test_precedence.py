"""Operators have the precedence of Spark's parser, or the query is treated as a whole."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from conftest import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "CREATE TABLE t (p INT, q INT, r INT, s INT) USING parquet LOCATION 't';"
OPERATORS = [
    *"+ - * / % DIV || & | ^ << >> >>> = == < <= > >= <> != <=> AND OR LIKE ILIKE RLIKE".split(),
    "IS DISTINCT FROM",
    "IS NOT DISTINCT FROM",
    "NOT LIKE",
]
BEFORE = ["-", "+", "~", "NOT ", "! "]
AFTER = [
    " IS NULL", " IS NOT NULL", " IN (p, q)", " NOT IN (p)", " BETWEEN p AND q",
    " NOT BETWEEN p AND q", "::string", "[p]", " IS TRUE", " IS NOT FALSE", " IS UNKNOWN",
    " COLLATE UTF8_BINARY", ".fld", " IN (SELECT p FROM t)",
]  # fmt: skip


def readings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield expressions without parentheses, and the possible ways to parse them."""
    for one in OPERATORS:
        for two in OPERATORS:
            yield f"p {one} q {two} r", (f"(p {one} q) {two} r", f"p {one} (q {two} r)")
        for sign in BEFORE:
            yield f"{sign}p {one} q", (f"({sign}p) {one} q", f"{sign}(p {one} q)")
            yield f"p {one} {sign}q", (f"p {one} ({sign}q)",)
            flat = f"p {one} {sign}q + r"
            yield (
                flat,
                (f"p {one} ({sign}q) + r", f"(p {one} {sign}q) + r", f"p {one} ({sign}q + r)"),
            )
        for test in AFTER:
            yield f"p {one} q{test}", (f"(p {one} q){test}", f"p {one} (q{test})")
            yield (
                f"p{test} {one} q",
                (f"(p{test}) {one} q", f"p{test.removesuffix('q')}(q {one} q)"),
            )
            yield f"1 {one} 2{test}", (f"(1 {one} 2){test}", f"1 {one} (2{test})")
        yield (
            f"p BETWEEN q AND r {one} s",
            (f"(p BETWEEN q AND r) {one} s", f"p BETWEEN q AND (r {one} s)"),
        )
        yield f"p BETWEEN q {one} r AND s", (f"p BETWEEN (q {one} r) AND s",)
        yield f"INTERVAL 1 DAY {one} q", (f"(INTERVAL 1 DAY) {one} q",)
        yield (
            f"transform(s, x -> p {one} q)",
            (f"transform(s, x -> (p {one} q))", f"transform(s, (x -> p) {one} q)"),
        )
        yield f"p LIKE q ESCAPE '!' {one} r", (f"(p LIKE q ESCAPE '!') {one} r",)
        yield f"-1 {one} 2", (f"(-1) {one} 2", f"-(1 {one} 2)")
    for test in AFTER:
        for sign in BEFORE:
            yield f"{sign}p{test}", (f"({sign}p){test}", f"{sign}(p{test})")
        for then in AFTER:
            yield f"p{test}{then}", (f"(p{test}){then}",)
        yield f"-1{test}", (f"(-1){test}", f"-(1{test})")
    for one in BEFORE:
        for two in BEFORE:
            yield f"{one}{two}p", (f"{one}({two}p)",)


def build_id(expression: str) -> str | None:
    """Return the BuildID of an expression that is analysed, else None."""
    made = compiled({"q.sql": f"{TABLE} CREATE VIEW q AS SELECT {expression} AS x FROM t"})
    if made.errors:
        return None
    source = made.by_id["q@sources/q.sql"]
    return None if any("as a whole" in note for note in source.notes) else source.build_id


@pytest.mark.proves("V50")
def test_analysed_expressions_have_sparks_operator_precedence(spark: Any) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()

    def as_spark(expression: str) -> str | None:
        try:
            return re.sub(r"#\d+", "", parser.parseExpression(expression).toString())
        except Exception:
            return None

    n_flat, n_analysed, wrong = 0, 0, list[str]()
    for flat, bracketed in dict(readings()).items():
        said = as_spark(flat)
        if said is None:
            continue
        n_flat += 1
        ours = build_id(flat)
        if ours is None:
            continue
        n_analysed += 1
        for other in bracketed:
            theirs = as_spark(other)
            if other.startswith("+(") or _chain(flat):
                continue  # a unary plus and these parentheses have no effect
            if theirs not in (None, said) and build_id(other) == ours:
                wrong.append(f"{flat} is read as {other}, and by Spark as {said}")
    print(f"{n_flat} expressions that Spark reads, {n_analysed} of them analysed")
    assert not wrong, f"{len(wrong)} of {n_analysed}:\n" + "\n".join(wrong)
    assert n_analysed > 1000


def _chain(expression: str) -> bool:
    """Return whether it is a chain of ANDs or of ORs, where parentheses have no effect."""
    return re.fullmatch(r"p (AND|OR) q \1 r", expression) is not None
