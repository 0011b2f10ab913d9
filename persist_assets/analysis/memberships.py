"""Columns computed by IN, whose values can depend on how Spark plans their readers. Pure.

In Spark 4.3, `k IN (SELECT …)` that is not a condition is FALSE instead of NULL. If the optimizer
moves a NOT from a reader into the subquery that computes the column, `NOT i` is FALSE there too;
otherwise it is TRUE (SPARK-58442). Spark moves it only if nothing else reads the column.
So a query that reads such a column other than as a condition has no meaning of its own, unless the
column lies in a table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Expr,
    Generate,
    Given,
    Lateral,
    Limit,
    Outer,
    Recursive,
    Ref,
    SetOperation,
    Subquery,
    Values,
    innermost_first,
    parts,
    walk,
)
from persist_assets.analysis.types import INLINED, STORED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from persist_assets.analysis.algebra import Calls, Node


class Memberships:
    """Finder of the columns whose values depend on that of an IN; it remembers answers."""

    def __init__(self) -> None:
        self._columns: dict[int, frozenset[int]] = {}
        self._keep_alive: list[object] = []  # keeps alive the objects whose ids are keys

    def of(self, relation: Block | Node) -> frozenset[int]:
        """Return the numbers of such columns of a Block or node."""
        known = self._columns
        for this, _ in innermost_first(relation, known):
            known[id(this)] = self._of(this)
            self._keep_alive.append(this)
        return known[id(relation)]

    def _of(self, this: object) -> frozenset[int]:
        match this:
            case Given(memberships=columns):
                return columns
            case Block(leaves, _, columns):
                return self._numbers((o.expr for o in columns), dict(leaves))
            case Aggregate(rows, keys, aggregates):
                return self._numbers((*keys, *aggregates), dict(rows.leaves))
            case Derived(block) | Limit(block):
                return self.of(block)
            case SetOperation(_, branches):
                return frozenset[int]().union(*map(self.of, branches))
            case Recursive(start, step):
                return self.of(start) | self.of(step)
            case Outer(_, left, right) | Lateral(_, left, right):
                n = len(left.columns)
                return self.of(left) | {n + column for column in self.of(right)}
            case _:
                return frozenset()

    def _numbers(self, exprs: Iterable[Expr], leaves: Mapping[int, Node]) -> frozenset[int]:
        return frozenset(n for n, e in enumerate(exprs) if self._has(e, leaves))

    def _has(self, expr: Expr, leaves: Mapping[int, Node]) -> bool:
        match expr:
            case Ref(instance, column):
                return instance in leaves and column in self.of(leaves[instance])
            case Call(op=op) if op == INLINED:
                return True
            case _:
                return any(True for _ in by_value([expr], []))

    def marked(self, calls: Calls, op: str, expr: Expr, leaves: Mapping[int, Node]) -> Expr:
        """Return an expression over some leaves, within `op` if its value depends on that of an IN.

        Parameters
        ----------
        op
            `INLINED`: the expression is a column of a subquery, CTE or view. `STORED`: it is the
            column of a table, whose values do not depend on the plan of a reader.
        """
        is_marked = isinstance(expr, Call) and expr.op == op
        return calls.call(op, (expr,)) if not is_marked and self._has(expr, leaves) else expr

    def with_marks(self, calls: Calls, op: str, block: Block) -> Block:
        """Return a Block with `op` around each column whose value depends on that of an IN."""
        leaves = dict(block.leaves)
        columns = tuple(o.of(self.marked(calls, op, o.expr, leaves)) for o in block.columns)
        return replace(block, columns=columns)

    def depend_on_plan(self, query: Block) -> bool:
        """Whether a query uses such a column other than as a condition or as a column of its own.

        Expressions over columns of leaves, and those in `INLINED`, are uses.
        """
        blocks = [this for this in walk(query) if isinstance(this, Block)]
        nodes = {instance: node for block in blocks for instance, node in block.leaves}
        for this in walk(query):
            values, conditions = values_and_conditions(this)
            own = (e for e in map(unmarked, values) if not isinstance(e, Ref))
            if any(self._is_unsure(e, test, nodes) for e, test in uses(own, conditions)):
                return True
        return False

    def _is_unsure(self, expr: Expr, is_condition: bool, nodes: Mapping[int, Node]) -> bool:
        match expr:
            case Ref():
                return not is_condition and self._has(expr, nodes)
            case Call(op, (Ref() | Subquery() | Call("not", (Subquery(),)),)) if op == INLINED:
                return not is_condition
            case _:
                return unmarked(expr) is not expr


def unmarked(expr: Expr) -> Expr:
    """Return an expression without an `INLINED` around it."""
    return expr.args[0] if isinstance(expr, Call) and expr.op == INLINED else expr


def values_and_conditions(this: object) -> tuple[Sequence[Expr], Sequence[Expr]]:
    """Return the values and the conditions directly in a node or Block."""
    match this:
        case Block(leaves, conjuncts, columns, order):
            values = [*(o.expr for o in columns), *(s.by for s in order)]
            return [*values, *(n.call for _, n in leaves if isinstance(n, Generate))], conjuncts
        case Aggregate(_, keys, aggregates):
            return [*keys, *aggregates], []
        case Outer(_, _, _, on) | Lateral(_, _, _, on):
            return [], on
        case Values(rows):
            return [e for row in rows for e in row], []
        case _:
            return [], []


def by_value(values: Iterable[Expr], conditions: Iterable[Expr]) -> Iterator[Subquery]:
    """Yield the INs in expressions whose NULL differs from FALSE, but not those in their queries.

    NULL counts as FALSE in conditions, through AND, OR and the conditions of CASE.
    """
    for expr, is_condition in uses(values, conditions):
        if isinstance(expr, Subquery) and expr.kind == "in" and not is_condition:
            yield expr


def uses(values: Iterable[Expr], conditions: Iterable[Expr]) -> Iterator[tuple[Expr, bool]]:
    """Yield the expressions in others, but not those in their queries, and which are conditions."""
    stack: list[tuple[object, bool]] = [*((e, False) for e in values)]
    stack += ((e, True) for e in conditions)
    seen: set[tuple[int, bool]] = set()
    while stack:
        this, is_condition = stack.pop()
        if (id(this), is_condition) in seen:
            continue
        seen.add((id(this), is_condition))
        if isinstance(this, Expr):
            yield this, is_condition
        match this:
            case Call(op=op) if op == STORED:
                pass
            case Call(op, args) if op in ("and", "or", INLINED):
                stack += ((a, is_condition) for a in args)
            case Call("case", args):
                n_pairs = len(args) // 2 * 2
                stack += ((a, n % 2 == 0 and n < n_pairs) for n, a in enumerate(args))
            case _:
                stack += ((p, False) for p in parts(this) if not isinstance(p, Block))
