"""Groups over a LEFT JOIN whose aggregates read only the right side. Pure.

    L LEFT JOIN R  →  L JOIN R  UNION ALL  L with NULLs for R

A row without a match gets NULLs, which add nothing to count(x), sum(x), avg(x), min(x) and max(x).
So each row of L can have them, beside its matches: groups and values stay the same. A change of R
is then joined with L, and nothing else is read to learn which rows have other matches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Limit,
    Out,
    Outer,
    Rebuild,
    Ref,
    SetOperation,
    Subquery,
    Window,
    columns_of,
    walk,
)
from persist_assets.analysis.deltas.staging import copy_of
from persist_assets.analysis.free import Free
from persist_assets.analysis.named_literals import InTermsOf

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.deltas.staging import Staged

_IGNORE_NULLS = frozenset(("count", "sum", "avg", "min", "max"))
_NULL_OF_NULL = frozenset(("+", "-", "*", "/", "cast"))
"""Functions that are NULL if an argument is."""


def split(query: Staged) -> Staged:
    """Return a query in which some groups over a LEFT JOIN are groups over a UNION ALL."""

    def node(this: Node) -> Node | None:
        if not isinstance(this, Aggregate) or not _can_be_split(this):
            return None
        return _split(query, replace(this, rows=rebuild.block(this.rows)))

    rebuild = Rebuild(query.calls, node=node)
    return replace(query, block=rebuild.block(query.block))


def joined_rows(node: Aggregate) -> Block | None:
    """Return the rows with a match, if an aggregate is over such a UNION ALL."""
    match node.rows.leaves:
        case ((_, SetOperation("union all", (joined, alone))),):
            values = [o.expr for o in alone.columns[len(node.keys) :]]
            return joined if values and all(map(_is_null_literal, values)) else None
        case _:
            return None


def _is_null_literal(expr: Expr) -> bool:
    match expr:
        case Call("cast", (Call("null"),)):
            return True
        case _:
            return False


def _can_be_split(node: Aggregate) -> bool:
    match node.rows.leaves:
        case ((instance, Outer("left") as join),) if node.sets is None:
            pass
        case _:
            return False
    left = {(instance, n) for n in range(len(join.left.columns))}
    by_left = all(columns_of(e) <= left for e in (*node.keys, *node.rows.conjuncts))
    return (
        by_left
        and all(_ignores(call, left) for call in node.aggregates)
        and not any(isinstance(t, Subquery | Window | Limit) for t in walk(node))
        and not any(isinstance(t, Derived) and t.volatile for t in walk(node))
        and not Free().of(node)
    )


def _ignores(call: Expr, left: Collection[tuple[int, int]]) -> bool:
    """Whether an aggregate has the same value with another row of NULLs for the right side."""
    match call:
        case Call(op, (arg,), ()) if op in _IGNORE_NULLS:
            return _is_null(arg, left)
        case _:
            return False


def _is_null(expr: Expr, left: Collection[tuple[int, int]]) -> bool:
    """Whether an expression is NULL for a row without a match."""
    match expr:
        case Ref(instance, column):
            return (instance, column) not in left
        case Call(op, args) if op in _NULL_OF_NULL:
            return any(_is_null(a, left) for a in args)
        case _:
            return False


def _split(query: Staged, node: Aggregate) -> Node:
    calls, types = query.calls, query.types
    operands = [a for c in node.aggregates if isinstance(c, Call) for a in c.args]
    kinds = [types.of(operand) for operand in operands]
    if None in kinds:
        return node
    alone = copy_of(query, node)
    nulls = [calls.call("cast", (calls.call("null"),), (kind or "",)) for kind in kinds]
    branches = (
        _rows(query, node.rows, node.keys, operands, matched=True),
        _rows(query, alone.rows, alone.keys, nulls, matched=False),
    )
    both = SetOperation("union all", branches)
    instance, refs = query.leaf(both, branches[0].columns)
    exprs = [o.expr for o in refs]
    n_keys = len(node.keys)
    aggregates = tuple(
        calls.call(call.op, (value,))
        for call, value in zip(node.aggregates, exprs[n_keys:], strict=True)
        if isinstance(call, Call)
    )
    return replace(
        node,
        rows=Block(((instance, both),)),
        keys=tuple(exprs[:n_keys]),
        aggregates=aggregates,
    )


def _rows(
    query: Staged, rows: Block, keys: Iterable[Expr], values: Iterable[Expr], *, matched: bool
) -> Block:
    """Return the keys and values of the rows of one side of a LEFT JOIN, or of an inner join."""
    ((instance, join),) = rows.leaves
    assert isinstance(join, Outer)
    columns = [o.expr for o in (*join.left.columns, *join.right.columns)]
    within = InTermsOf(query.calls, {instance: columns}, query.types)
    leaves, conjuncts = join.left.leaves, join.left.conjuncts
    if matched:
        leaves += join.right.leaves
        conjuncts += (*join.right.conjuncts, *join.on)
    exprs = within.exprs((*keys, *values))
    block = Block(
        leaves,
        (*conjuncts, *within.exprs(rows.conjuncts)),
        tuple(Out("", "", e, query.types.of(e)) for e in exprs),
        place=join.place,
    )
    return _with_fewer_joins(query, block, matched=matched)


def _with_fewer_joins(query: Staged, block: Block, *, matched: bool) -> Block:
    """Return a Block in which some LEFT JOINs are inner ones, or their left sides.

    A join is an inner one if a condition rejects NULLs of its right side. How often a row without a
    match comes does not matter, so it needs no right side that is not read.
    """
    for n, (instance, node) in enumerate(block.leaves):
        if not isinstance(node, Outer) or node.kind != "left":
            continue
        columns = [o.expr for o in (*node.left.columns, *node.right.columns)]
        right = {(instance, k) for k in range(len(node.left.columns), len(columns))}
        is_inner = any(_rejects(c, right) for c in block.conjuncts)
        read = {
            r for e in (*block.conjuncts, *(o.expr for o in block.columns)) for r in columns_of(e)
        }
        if not is_inner and (matched or not read.isdisjoint(right)):
            continue
        sides = [node.left, node.right] if is_inner else [node.left]
        within = InTermsOf(query.calls, {instance: columns}, query.types)
        inside = [leaf for side in sides for leaf in side.leaves]
        conditions = [c for side in sides for c in side.conjuncts]
        dissolved = Block(
            (*block.leaves[:n], *inside, *block.leaves[n + 1 :]),
            (*conditions, *(node.on if is_inner else ()), *within.exprs(block.conjuncts)),
            tuple(o.of(within.expr(o.expr)) for o in block.columns),
            place=block.place,
        )
        return _with_fewer_joins(query, dissolved, matched=matched)
    return block


def _rejects(condition: Expr, columns: Collection[tuple[int, int]]) -> bool:
    """Whether a condition is not true if some columns are NULL."""
    match condition:
        case Call("=" | "<>" | "<" | "<=", (one, other)):
            sides = (one, other)
            return any(isinstance(e, Ref) and (e.instance, e.column) in columns for e in sides)
        case _:
            return False
