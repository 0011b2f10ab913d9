"""Restriction of relations to touched keys, pushed down to the tables. Pure.

The invariant: if some columns of a relation are restricted to keys, its rows with these keys are
right; other rows may be missing or wrong. Whoever restricts a relation filters its rows by the keys
too, unless a join with the keys does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Given,
    Outer,
    Ref,
    SetOperation,
    Subquery,
    walk,
)
from persist_assets.analysis.deltas.memberships import by_value
from persist_assets.analysis.deltas.printing import used_columns
from persist_assets.analysis.deltas.staging import outermost, windows_in
from persist_assets.analysis.functions import INTEGRAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.types import Types


@dataclass(frozen=True, slots=True)
class Restriction:
    """Only some rows of a table are needed: those with some keys.

    Attributes
    ----------
    columns
        The numbers of the table's columns.
    keys
        The name of the relation with the keys; with `is_joined`, a SELECT of its rows.
    numbers
        The numbers of its columns, one for each of `columns`.
    is_joined
        The table is joined with these rows, so the restriction only saves work.
    """

    columns: tuple[int, ...]
    keys: str
    numbers: tuple[int, ...]
    is_joined: bool = False


def restrictions(
    block: Block,
    exprs: Mapping[int, Expr],
    keys: str,
    types: Types,
    skipped: int | None = None,
) -> dict[int, list[Restriction]]:
    """Return the restrictions of tables that follow from keys of a Block's rows, by instance.

    Parameters
    ----------
    exprs
        Expressions over the Block's leaves, by the number of the column of `keys`.
    skipped
        A leaf that is not restricted, because the keys are its own.
    """
    pushing = _Pushing(types, keys)
    pushing.block(block, exprs, skipped)
    return pushing.restricted


def separating(block: Block, exprs: Mapping[int, Expr], types: Types) -> Mapping[int, set[int]]:
    """Return which keys separate the rows of the aggregates and windows of a query.

    A row of the query depends only on groups or partitions with the same values of these keys.

    Parameters
    ----------
    exprs
        The keys: expressions over the Block's leaves, by number.

    Returns
    -------
    Mapping[int, set[int]]
        Their numbers, by the `id` of the `Aggregate` or `Window`.
    """
    pushing = _Pushing(types)
    pushing.block(block, exprs)
    return pushing.separated


class _Pushing:
    """Follows keys of a query's rows down to the tables."""

    def __init__(self, types: Types, keys: str = "") -> None:
        self._types, self._keys = types, keys
        self.restricted: dict[int, list[Restriction]] = {}
        self.separated: dict[int, set[int]] = {}

    def block(self, block: Block, exprs: Mapping[int, Expr], skipped: int | None = None) -> None:
        windows = windows_in(o.expr for o in block.columns)
        for window in windows:
            exprs = {n: e for n, e in exprs.items() if e in window.partition}
        for window in windows:
            self.separated.setdefault(id(window), set()).update(exprs)
        by_leaf: dict[int, dict[int, int]] = {}
        for number, expr in exprs.items():
            for ref in equal_columns(expr, block.conjuncts, self._types):
                by_leaf.setdefault(ref.instance, {}).setdefault(ref.column, number)
        for instance, node in block.leaves:
            if instance != skipped and instance in by_leaf:
                self._node(node, instance, by_leaf[instance])
        for subquery in outermost([*block.conjuncts, *(o.expr for o in block.columns)], Subquery):
            self._subquery(subquery, block, exprs)

    def _subquery(self, subquery: Subquery, around: Block, exprs: Mapping[int, Expr]) -> None:
        """Restrict a subquery that finds rows by values that the keys restrict around it."""
        within: dict[Block, dict[int, Expr]] = {}
        for inner, own, outer in correlated(subquery, around, self._types):
            for number, expr in exprs.items():
                if outer is expr or outer in equal_columns(expr, around.conjuncts, self._types):
                    within.setdefault(inner, {}).setdefault(number, own)
        for inner, of_inner in within.items():
            self.block(inner, of_inner)

    def _node(self, node: Node, instance: int, columns: Mapping[int, int]) -> None:
        """Restrict a leaf whose columns have the values of columns of the keys."""
        match node:
            case Given():
                one = Restriction(tuple(columns), self._keys, tuple(columns.values()))
                self.restricted.setdefault(instance, []).append(one)
            case Derived(block):
                self.block(block, {n: block.columns[c].expr for c, n in columns.items()})
            case Aggregate(rows, grouped, _, sets):
                common = {*range(len(grouped))}.intersection(*(sets or ()))
                exprs = {n: grouped[c] for c, n in columns.items() if c in common}
                self.separated.setdefault(id(node), set()).update(exprs)
                self.block(rows, exprs)
            case Outer("left", left, right, on):
                n_left = len(left.columns)
                exprs = {n: left.columns[c].expr for c, n in columns.items() if c < n_left}
                self.block(left, exprs)
                self.block(right, other_side(exprs, left, right, on, self._types))
            case SetOperation(_, branches):
                for branch in branches:
                    exprs = {
                        n: branch.columns[c].expr
                        for c, n in columns.items()
                        if len({b.columns[c].type for b in branches} | {None}) == 2
                    }
                    self.block(branch, exprs)
            case _:
                pass


def other_side(
    exprs: Mapping[int, Expr], left: Block, right: Block, on: Iterable[Expr], types: Types
) -> dict[int, Expr]:
    """Return the expressions of one side that the ON of a join equates with those of the other."""
    here, there = ({i for i, _ in side.leaves} for side in (left, right))
    pairs = [
        (a, b)
        for a, b in equalities(on, types)
        if instances(a) <= here and instances(b) <= there and instances(b)
    ]
    return {n: b for n, e in exprs.items() for a, b in pairs if a is e}


def equalities(
    conjuncts: Iterable[Expr], types: Types, *, null_safe: bool = False
) -> Iterator[tuple[Expr, Expr]]:
    """Yield the pairs of expressions that conditions equate, both ways.

    Only of one type, or of integers: otherwise, several values can equal the same one.

    Parameters
    ----------
    null_safe
        Also those that both may be NULL (`<=>`).
    """
    ops = ("=", "<=>") if null_safe else ("=",)
    for test in conjuncts:
        if isinstance(test, Call) and test.op in ops:
            a, b = test.args
            if are_of_one_type(a, b, types):
                yield a, b
                yield b, a


def are_of_one_type(a: Expr, b: Expr, types: Types) -> bool:
    """Whether two expressions are equal only if they have the same value."""
    kind, other = types.of(a), types.of(b)
    return kind is not None and (kind == other or (kind in INTEGRAL and other in INTEGRAL))


def equal_columns(expr: Expr, conjuncts: Iterable[Expr], types: Types) -> list[Ref]:
    """Return the columns that equal an expression wherever conditions hold."""
    pairs = [*equalities(conjuncts, types)]
    reached: dict[Expr, None] = {}
    stack = [expr]
    while stack:
        this = stack.pop()
        if this not in reached:
            reached[this] = None
            stack += (b for a, b in pairs if a is this)
    return [e for e in reached if isinstance(e, Ref)]


def instances(expr: Expr) -> set[int]:
    """Return the instances that an expression refers to."""
    return {*used_columns([expr])}


def correlated(
    subquery: Subquery, around: Block, types: Types
) -> Iterator[tuple[Block, Expr, Expr]]:
    """Yield the equalities by which a subquery finds rows for a row of the Block around it.

    IN is an equality only where its NULL counts as FALSE: rows with other values or NULL decide
    which of both it is. If its sides have different types, several values can equal the same one:
    as numbers, `'1'` and `'01'` do.

    Yields
    ------
    tuple
        The Block of the rows, an expression over them, and one over the row around it.
    """
    outer = {i for i, _ in around.leaves}
    if subquery.kind == "in" and not is_value(subquery, around):
        for out, arg in zip(subquery.block.columns, subquery.args, strict=True):
            if are_of_one_type(out.expr, arg, types):
                yield subquery.block, out.expr, arg
    for block in walk(subquery.block):
        if isinstance(block, Block):
            own = {i for i, _ in block.leaves}
            for a, b in equalities(block.conjuncts, types, null_safe=True):
                if instances(a) and instances(b) and instances(a) <= own and instances(b) <= outer:
                    yield block, a, b


def is_value(subquery: Subquery, around: Block) -> bool:
    """Whether the rows of a Block can differ if a subquery in it is NULL instead of FALSE."""
    shown = [*(o.expr for o in around.columns), *(s.by for s in around.order)]
    return any(one is subquery for one in by_value(shown, around.conjuncts))
