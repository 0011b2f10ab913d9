"""Pairs of values as Spark compares them, in their common type. Pure.

The invariant: the comparison of the pair has the result of Spark's comparison, in every mode, and
cannot raise an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.analysis.predicates.terms import Term
from persist_assets.analysis.pushdown.constants import Typed, cast_literal
from persist_assets.analysis.pushdown.equalities import is_decimal
from persist_assets.core.dialect import char_size
from persist_assets.core.time_values import TIMES

if TYPE_CHECKING:
    from collections.abc import Collection


def _digits(kind: str) -> tuple[int, int]:
    """Return how many digits a number has before and after its point."""
    if kind in INTEGRAL:
        return (3, 5, 10, 20)[INTEGRAL.index(kind)], 0
    digits, scale = map(int, kind[8:-1].split(","))
    return digits - scale, scale


def keep_their_values(kinds: Collection[str]) -> bool:
    """Whether values keep their values in the common type in which Spark compares them."""
    digits = [_digits(k) for k in kinds if is_decimal(k) or k in INTEGRAL]
    if len(digits) < len(kinds):
        return True  # beside a float or double, all are
    return max(whole for whole, _ in digits) + max(part for _, part in digits) <= 38


def padded(one: Typed, other: Typed) -> Typed:
    """Return a value as Spark compares it for equality with another, if one is CHAR(n).

    All values of the column have n characters, and so do the literals that it is compared with.
    """
    (term, kind), (_, other_kind) = one, other
    n = char_size(kind)
    if n is not None and other[0].op == "string" and term.op == "ref":
        return Term("ref", (), (*term.words[:2], "string")), "string"
    n = char_size(other_kind)
    if n is not None and term.op == "string" and other[0].op == "ref":
        text = term.words[0]
        text = text if text[n:].strip(" ") else text[:n].ljust(n)
        return Term("string", (), (text,)), kind
    return one


def alike(a: Typed, b: Typed) -> tuple[Term, Term] | None:
    """Return two values in Spark's common type for comparing them; None: it may fail."""
    (one, kind), (other, also) = a, b
    if kind == also and (kind in TIMES or kind in ("string", "boolean", "double", "binary")):
        return one, other
    if kind == also == "float":
        both = [t if t.op in p.LITERALS else p.cast(t, "double") for t in (one, other)]
        return both[0], both[1]
    exact = [is_decimal(k) or k in INTEGRAL for k in (kind, also)]
    if all(exact):
        (whole, part), (whole_too, part_too) = _digits(kind), _digits(also)
        return (one, other) if max(whole, whole_too) + max(part, part_too) <= 38 else None
    if "string" in (kind, also):
        return _of_text(a, b)
    if kind in TIMES and also in TIMES:
        common = "timestamp" if "timestamp" in (kind, also) else "timestamp_ntz"
        return _as_time(one, kind, common), _as_time(other, also, common)
    if "float" in (kind, also) and {kind, also} & {*INTEGRAL}:
        whole = one if also == "float" else other
        if whole.op != "integer" or abs(int(whole.words[0])) > 2**24:
            return None  # a float is not compared as a double with an integer in every mode
        both = [
            p.as_double(t.words[0]) if t is whole else p.cast(t, "double") for t in (one, other)
        ]
        return both[0], both[1]
    doubles = [_as_double(t, k, with_) for (t, k), with_ in ((a, also), (b, kind))]
    return (doubles[0], doubles[1]) if doubles[0] and doubles[1] else None


def _of_text(a: Typed, b: Typed) -> tuple[Term, Term] | None:
    """Return a time or a number, and a text literal, as two times or numbers."""
    (one, kind), (other, also) = a, b
    if kind == "string":
        swapped = _of_text(b, a) if also != "string" else None
        return (swapped[1], swapped[0]) if swapped else None
    if other.op != "string" or also != "string":
        return None
    if kind in TIMES:
        made = p.time_literal(other.words[0], kind)
        return (one, made) if made is not None else None
    wide = {"double": "double", "float": "double", **dict.fromkeys(INTEGRAL, "bigint")}.get(kind)
    number = cast_literal(other, "string", wide) if wide else None
    if number is None:
        return None
    return (p.cast(one, "double") if kind == "float" else one), number[0]


def _as_double(term: Term, kind: str, beside: str) -> Term | None:
    """Return a number as the DOUBLE that Spark uses to compare it with another."""
    if kind == "double":
        return term
    if term.op in ("integer", "decimal") and beside in ("double", "float"):
        return p.as_double(term.words[0])
    if beside == "double" and kind in (*INTEGRAL, "float"):
        return p.cast(term, "double")
    if kind == "float" and is_decimal(beside):
        return p.cast(term, "double")
    return None


def _as_time(term: Term, kind: str, target: str) -> Term:
    return term if kind == target else p.cast(term, target)
