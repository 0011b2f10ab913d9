"""The forms of IN whose values do not depend on how Spark plans a query. Pure.

In Spark, an `a IN (SELECT b …)` that is not a condition is FALSE instead of NULL, and so is an
`a NOT IN (SELECT b …)`. But if another part of the plan negates the value of the IN, the result is
TRUE. So a program could compute other rows than the query. It does not

- where NULL counts as FALSE: in conditions, also in those of joins and of CASE;
- for a NOT IN in a filter of one table: Spark always plans both together;
- in the result: nothing reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Block, Call, Subquery, walk
from persist_assets.analysis.free import Free
from persist_assets.analysis.memberships import by_value, values_and_conditions
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from persist_assets.analysis.algebra import Expr


def check_memberships(query: Block) -> None:
    """Check each IN of a query.

    Raises
    ------
    NoRule
        Its value may depend on the plan, or a subquery computes the value before it.
    """
    free = Free()
    shown = {id(o.expr) for o in query.columns if isinstance(o.expr, Subquery)}
    for this in walk(query):
        if isinstance(this, Subquery) and any(isinstance(p, Subquery) for p in walk(*this.args)):
            raise NoRule("of a subquery in the value before IN", this.place, this)
        values, conditions = _exprs_of(this, free)
        values = [e for e in values if this is not query or id(e) not in shown]
        for subquery in by_value(values, conditions):
            raise NoRule("of IN or NOT IN as a value", subquery.place, subquery)


def _exprs_of(this: object, free: Free) -> tuple[Sequence[Expr], Sequence[Expr]]:
    """Return the values and the conditions of a node or Block, without NOT IN in its filters."""
    values, conditions = values_and_conditions(this)
    if not isinstance(this, Block):
        return values, conditions
    tests: list[Expr] = []
    for condition in conditions:
        if not _negates(condition):
            is_of_one = len(free.of(condition)) <= 1
            tests += _operands(condition) if is_of_one else (condition,)
    return values, tests


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
