"""Bounds on columns that follow from functions of them."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.predicates.terms import Term
from persist_assets.analysis.pushdown.terms import kind_of, to_kind
from persist_assets.core.time_values import TIMES

if TYPE_CHECKING:
    from collections.abc import (
        Iterator,
    )


def with_bounds(term: Term) -> Term:
    """Return a predicate together with the bounds on columns that its comparisons imply.

    Files have statistics of columns, not of functions of them: ``date_trunc('day', ts) >= x``
    implies ``ts >= x`` too.
    """
    predicates: dict[Term, None] = {}
    todo = [*p.conjuncts(term)]
    while todo:
        this = todo.pop()
        if this in predicates:
            continue
        predicates[this] = None
        if this.op in ("=", "<", "<=", ">", ">="):
            todo += bounds_of(this.op, *this.args)
    return p.every(predicates)


def bounds_of(op: str, value: Term, limit: Term) -> Iterator[Term]:
    """Yield the bounds on columns that follow from comparing a function of them with a limit."""
    if p.varies(limit):
        return
    match value:
        case Term("cast", (inner,), (kind,)) if (was := kind_of(inner)) in TIMES:
            if kind != "date" and was == "date":
                yield from _each_way(op, inner, p.cast(limit, "date"))
            elif kind == "date" and was != "date":
                yield from _cut_down(op, inner, limit, was, "day")
        case Term("cast", (inner,), ("double",)) if kind_of(inner) in _EXACT_AS_DOUBLE:
            yield from _whole(op, inner, limit)
        case Term("date_trunc", (inner,), (unit,)):
            yield from _cut_down(op, inner, limit, "timestamp", unit)
        case Term("trunc", (inner,), (unit,)):
            yield from _cut_down(op, inner, limit, "date", unit)
        case Term("year", (inner,)) if limit.op == "integer":
            year, kind = int(limit.words[0]), kind_of(inner)
            if 1 < year < 9998 and kind in TIMES:
                first, after = (to_kind(f"{y:04}-01-01", kind) for y in (year, year + 1))
                least = _beyond(after if op == ">" else first, kind, -1)
                most = _beyond(first if op == "<" else after, kind, 1)
                if op in (">=", ">", "=") and least is not None:
                    yield p.compared(">=", inner, least)
                if op in ("<=", "<", "=") and most is not None:
                    yield p.compared("<", inner, most)
        case _:
            return


_EXACT_AS_DOUBLE = ("tinyint", "smallint", "int")


def _whole(op: str, inner: Term, limit: Term) -> Iterator[Term]:
    """Yield bounds on an integer that is compared as a DOUBLE with a literal."""
    number = float(limit.words[0]) if limit.op == "double" else float("nan")
    if not abs(number) < 2**53:
        return
    if op in (">=", ">", "="):
        least = floor(number) + 1 if op == ">" else ceil(number)
        yield p.compared(">=", inner, Term("integer", (), (str(least),)))
    if op in ("<=", "<", "="):
        most = ceil(number) - 1 if op == "<" else floor(number)
        yield p.compared("<=", inner, Term("integer", (), (str(most),)))


def _each_way(op: str, inner: Term, limit: Term) -> Iterator[Term]:
    """Yield bounds on a date whose midnight compares with an instant of a known day.

    The lower bound is a day earlier: if a time zone skipped a day, its midnight is that of the
    next. The upper bound is a day later where the next day may have begun before the clock was put
    back.
    """
    before, after = p.shifted_date(limit, -1), p.shifted_date(limit, 0 if p.is_calm(limit) else 1)
    if op in (">=", ">", "=") and before is not None:
        yield p.compared(">=", inner, before)
    if op in ("<=", "<", "=") and after is not None:
        yield p.compared("<=", inner, after)


def _cut_down(op: str, inner: Term, limit: Term, kind: str, unit: str) -> Iterator[Term]:
    """Yield bounds on a time from a comparison of the time truncated to a unit."""
    limit = p.cast(limit, kind) if kind_of(limit) != kind else limit
    fine = unit in ("hour", "minute", "second")
    if op in (">=", ">", "="):
        # Where a clock skips half an hour, a time truncated to hours may be later than the time
        # itself.
        least = p.shifted(limit, -1, "day") if fine else _beyond(limit, kind, -1)
        if least is not None:
            yield p.compared(">" if op == ">" else ">=", inner, least)
    if op in ("<=", "<", "=") and limit.op in ("date", "timestamp", "ntz") and not fine:
        day, rest = limit.words[0][:10], limit.words[0][10:]
        following = p.next_first(day, unit) if rest in ("", " 00:00:00") else None
        most = _beyond(to_kind(following, kind), kind, 1) if following is not None else None
        if most is not None:
            yield p.compared("<", inner, most)


def _beyond(limit: Term, kind: str, days: int) -> Term | None:
    """Return a bound moved by some days if clocks may have crossed midnight backwards then."""
    sure = kind != "timestamp" or p.is_calm(limit)
    return limit if sure else p.shifted(limit, days, "day")
