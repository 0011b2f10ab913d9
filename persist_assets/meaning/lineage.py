"""Which columns the values of a query's columns come from: a fold over the algebra. Pure.

Origins are columns of persisted sources and raw tables; what lies between is dissolved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.meaning.algebra import (
    Aggregate,
    Block,
    Derived,
    Expr,
    Generate,
    Given,
    Limit,
    Node,
    Opaque,
    Outer,
    Ref,
    SetOperation,
    Subquery,
    Values,
    Window,
    parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.model import ColumnRef

Origins = frozenset["ColumnRef"]
_NONE: Origins = frozenset()


class Lineage:
    """Finds origins; remembers what it found.

    Parameters
    ----------
    known
        Expressions whose origins are known: the columns of persisted sources and raw tables.
    """

    def __init__(self, known: Mapping[Expr, Origins]) -> None:
        self._exprs = dict(known)
        self._leaves: dict[int, Node] = {}
        self._nodes: dict[int, tuple[Origins, ...]] = {}

    def columns(self, block: Block) -> tuple[Origins, ...]:
        """Return the origins of the value of each column of `block`, in order."""
        self._leaves.update(block.leaves)
        return tuple(self._of(o.expr) for o in block.columns)

    def of_node(self, node: Node) -> tuple[Origins, ...]:
        """Return the origins of the value of each column of `node`, in order."""
        found = self._nodes.get(id(node))
        if found is None:
            found = self._nodes[id(node)] = self._of_node(node)
        return found

    def _all(self, exprs: Iterable[Expr]) -> Origins:
        return _NONE.union(*(self._of(e) for e in exprs))

    def _of(self, expr: Expr) -> Origins:
        found = self._exprs.get(expr)
        if found is None:
            found = self._exprs[expr] = self._find(expr)
        return found

    def _find(self, expr: Expr) -> Origins:
        match expr:
            case Ref(instance, column):
                return self.of_node(self._leaves[instance])[column]
            case Subquery(kind, block, args):
                values = self.columns(block) if kind != "exists" else ()
                return _NONE.union(*values, self._all(args))
            case Window(function, partition, order, _, rows, _):
                self._leaves.update(rows.leaves)
                return self._all((function, *partition, *(s.by for s in order)))
            case _:
                return self._all(p for p in parts(expr))  # pyright: ignore[reportArgumentType]

    def _of_node(self, node: Node) -> tuple[Origins, ...]:
        match node:
            case Given():
                return node.origins
            case Derived(block, _) | Limit(block, _, _):
                return self.columns(block)
            case Outer(_, left, right, _):
                return (*self.columns(left), *self.columns(right))
            case Aggregate(rows, keys, aggregates, _):
                self._leaves.update(rows.leaves)
                return tuple(self._of(e) for e in (*keys, *aggregates))
            case SetOperation(_, branches):
                many = [self.columns(b) for b in branches]
                return tuple(_NONE.union(*same) for same in zip(*many, strict=True))
            case Generate(call, _, types):
                return (self._all(call.args),) * len(types)
            case Opaque(_, reads, n):
                return (_NONE.union(*(o for r in reads for o in r.origins)),) * n
            case Values(rows):
                return (_NONE,) * len(rows[0])
