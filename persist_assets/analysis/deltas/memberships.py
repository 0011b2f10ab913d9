"""The forms of IN whose values do not depend on how Spark plans a query. Pure.

In Spark, an `a IN (SELECT b …)` that is not a condition is FALSE instead of NULL, and so is an
`a NOT IN (SELECT b …)`. But if another part of the plan negates the value of the IN, the result is
TRUE. So a program could compute other rows than the query. For a filter of one table, Spark always
plans IN and NOT together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Generate,
    Outer,
    Subquery,
    Values,
    Window,
    parts,
    walk,
)
from persist_assets.analysis.free import Free
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from persist_assets.analysis.algebra import Expr


def check_memberships(query: Block) -> None:
    """Check each IN and NOT IN of a query.

    Raises
    ------
    NoRule
        The result of a NOT IN may depend on the plan, or a subquery computes the value before an
        IN.
    """
    for this in walk(query):
        if isinstance(this, Subquery) and any(isinstance(p, Subquery) for p in walk(*this.args)):
            raise NoRule("of a subquery in the value before IN", this.place, this)
        for subquery in _negated(_exprs_outside_filters(this)):
            raise NoRule("of NOT IN outside of a filter of one table", subquery.place, subquery)


def _exprs_outside_filters(this: object) -> Iterator[Expr]:
    """Yield the expressions of a node or Block, but for the filters of one table."""
    match this:
        case Block(leaves, conjuncts, columns, order):
            yield from (o.expr for o in columns)
            yield from (s.by for s in order)
            yield from (n.call for _, n in leaves if isinstance(n, Generate))
            for condition in conjuncts:
                if not _negates(condition):
                    yield from _operands(condition) if _is_of_one(condition) else (condition,)
        case Aggregate(_, keys, aggregates):
            yield from (*keys, *aggregates)
        case Outer(_, _, _, on):
            yield from on
        case Values(rows):
            yield from (e for row in rows for e in row)
        case _:
            pass


def _is_of_one(condition: Expr) -> bool:
    return len(Free().of(condition)) <= 1


def _operands(condition: Expr) -> Iterator[Expr]:
    """Yield what AND and OR combine in a condition, but for NOT IN."""
    if isinstance(condition, Call) and condition.op in ("and", "or"):
        for operand in condition.args:
            yield from _operands(operand)
    elif not _negates(condition):
        yield condition


def _negates(expr: Expr) -> bool:
    """Whether an expression is a NOT IN."""
    match expr:
        case Call("not", (Subquery("in"),)):
            return True
        case _:
            return False


def _negated(exprs: Iterable[Expr]) -> Iterator[Subquery]:
    """Yield the queries of NOT IN in expressions, but not those in queries."""
    seen, stack = set[int](), list[object](exprs)
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        match this:
            case Call("not", (Subquery("in") as subquery,)):
                yield subquery
            case Subquery(_, _, args):
                stack += args
            case Window():
                stack += (p for p in parts(this) if not isinstance(p, Block))
            case _:
                stack += parts(this)
