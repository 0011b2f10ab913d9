"""Column lineage: the columns that the values of a query's columns come from. Pure.

A fold over the algebra. Origins are columns of persisted sources and raw tables; sources in between
are dissolved.
"""

from __future__ import annotations

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
    Node,
    Opaque,
    Outer,
    Recursive,
    Ref,
    SetOperation,
    Subquery,
    Values,
    Window,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.columns import ColumnRef

Origins = frozenset["ColumnRef"]
_NONE: Origins = frozenset()


class Lineage:
    """Finder of origins; it remembers them.

    Parameters
    ----------
    origins
        Expressions of known origins: the columns of persisted sources and raw tables.
    """

    def __init__(self, origins: Mapping[Expr, Origins]) -> None:
        self._origins = dict(origins)
        self._leaves: dict[int, Node] = {}

    def columns(self, block: Block) -> tuple[Origins, ...]:
        """Return the origins of the value of each column of `block`, in order."""
        return tuple(self._of(e) for e in self._values(block))

    def _of(self, expr: Expr) -> Origins:
        known_origins = self._origins
        stack = [expr]  # not recursive: the algebra is as deep as its chain of CTEs
        while stack:
            this = stack[-1]
            if this in known_origins:
                stack.pop()
                continue
            direct_origins, comes_from = self._step(this)
            unknown = [e for e in comes_from if e not in known_origins]
            if unknown:
                stack += unknown
            else:
                known_origins[this] = direct_origins.union(*(known_origins[e] for e in comes_from))
                stack.pop()
        return known_origins[expr]

    def _values(self, block: Block) -> list[Expr]:
        self._leaves.update(block.leaves)
        return [o.expr for o in block.columns]

    def _step(self, expr: Expr) -> tuple[Origins, Sequence[Expr]]:
        """Return the direct origins, and the expressions that the other origins come from."""
        match expr:
            case Ref(instance, column):
                return self._column(self._leaves[instance], column)
            case Subquery(kind, block, args):
                return _NONE, (*(self._values(block) if kind != "exists" else ()), *args)
            case Window(function, partition, order, _, rows, _):
                self._leaves.update(rows.leaves)
                return _NONE, (function, *partition, *(s.by for s in order))
            case Call(_, args, _):
                return _NONE, args

    def _column(self, node: Node, column: int) -> tuple[Origins, Sequence[Expr]]:
        match node:
            case Given():
                return node.origins[column], ()
            case Derived(block, _) | Limit(block, _, _, _):
                return _NONE, (self._values(block)[column],)
            case Outer(_, left, right, _) | Lateral(_, left, right, _):
                return _NONE, ((*self._values(left), *self._values(right))[column],)
            case Aggregate(rows, keys, aggregates, _):
                self._leaves.update(rows.leaves)
                return _NONE, ((*keys, *aggregates)[column],)
            case SetOperation(_, branches):
                return _NONE, [self._values(b)[column] for b in branches]
            case Recursive(start, step, _):
                # A step may move values from column to column.
                return _NONE, [*self._values(start), *self._values(step)]
            case Generate(call, _, _):
                return _NONE, call.args
            case Opaque(_, reads, _):
                return _NONE.union(*(o for r in reads for o in r.origins)), ()
            case Values():
                return _NONE, ()
