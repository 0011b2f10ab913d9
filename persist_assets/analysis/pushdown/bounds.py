"""Bounds of columns that follow from functions of them."""

from __future__ import annotations

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
    """Return a predicate together with bounds of columns that follow from its comparisons.

    Files have statistics of columns, not of functions of them: ``date_trunc('day', ts) >= x`` says
    ``ts >= x`` too.
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
    """Yield what follows for columns from the comparison of a function of them with a limit."""
    if p.varies(limit):
        return
    match value:
        case Term("cast", (inner,), (kind,)) if (was := kind_of(inner)) in TIMES:
            if kind != "date" and was == "date":
                yield from _each_way(op, inner, p.cast(limit, "date"))
            elif kind == "date" and was != "date":
                yield from _cut_down(op, inner, limit, was, "day")
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


def _each_way(op: str, inner: Term, limit: Term) -> Iterator[Term]:
    """Yield bounds of a date of which is known how its midnight compares with an instant of a day.

    A day less: of a day that a time zone left out, midnight is that of the next. A day more, where
    the next may have begun already when a clock was put back.
    """
    before, after = p.shifted_date(limit, -1), p.shifted_date(limit, 0 if p.is_calm(limit) else 1)
    if op in (">=", ">", "=") and before is not None:
        yield p.compared(">=", inner, before)
    if op in ("<=", "<", "=") and after is not None:
        yield p.compared("<=", inner, after)


def _cut_down(op: str, inner: Term, limit: Term, kind: str, unit: str) -> Iterator[Term]:
    """Yield bounds of a time of which is known how it compares when it is cut down to a unit."""
    limit = p.cast(limit, kind) if kind_of(limit) != kind else limit
    fine = unit in ("hour", "minute", "second")
    if op in (">=", ">", "="):
        # Where a clock skips half of an hour, what is cut down to hours is later than it was.
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
    """Return a bound that is so much farther, if clocks may have been moved past midnight then."""
    sure = kind != "timestamp" or p.is_calm(limit)
    return limit if sure else p.shifted(limit, days, "day")
