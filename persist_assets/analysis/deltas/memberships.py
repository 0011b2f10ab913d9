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

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Generate,
    Outer,
    Subquery,
    Values,
    parts,
    walk,
)
from persist_assets.analysis.free import Free
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def _exprs_of(this: object, free: Free) -> tuple[list[Expr], list[Expr]]:
    """Return the values and the conditions of a node or Block, without NOT IN in its filters."""
    match this:
        case Block(leaves, conjuncts, columns, order):
            values = [*(o.expr for o in columns), *(s.by for s in order)]
            values += [n.call for _, n in leaves if isinstance(n, Generate)]
            conditions: list[Expr] = []
            for condition in conjuncts:
                if not _negates(condition):
                    is_of_one = len(free.of(condition)) <= 1
                    conditions += _operands(condition) if is_of_one else (condition,)
            return values, conditions
        case Aggregate(_, keys, aggregates):
            return [*keys, *aggregates], []
        case Outer(_, _, _, on):
            return [], [*on]
        case Values(rows):
            return [e for row in rows for e in row], []
        case _:
            return [], []


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


def by_value(values: Iterable[Expr], conditions: Iterable[Expr]) -> Iterator[Subquery]:
    """Yield the INs in expressions whose NULL differs from FALSE, but not those in their queries.

    NULL counts as FALSE in conditions, through AND, OR and the conditions of CASE.
    """
    stack: list[tuple[object, bool]] = [*((e, False) for e in values)]
    stack += ((e, True) for e in conditions)
    seen: set[tuple[int, bool]] = set()
    while stack:
        this, is_condition = stack.pop()
        if (id(this), is_condition) in seen:
            continue
        seen.add((id(this), is_condition))
        match this:
            case Subquery(kind, _, args):
                if kind == "in" and not is_condition:
                    yield this
                stack += ((a, False) for a in args)
            case Call("and" | "or", args):
                stack += ((a, is_condition) for a in args)
            case Call("case", args):
                n_pairs = len(args) // 2 * 2
                stack += ((a, n % 2 == 0 and n < n_pairs) for n, a in enumerate(args))
            case _:
                stack += ((p, False) for p in parts(this) if not isinstance(p, Block))
