"""Outer joins and subqueries with only the columns that are read. Pure.

A change of other columns of their tables does not reach the query then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Block, Derived, Outer, Rebuild, Ref, walk
from persist_assets.analysis.deltas.printing import used_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.analysis.algebra import Calls, Expr, Node, Out
    from persist_assets.analysis.types import Types


def narrowed(block: Block, calls: Calls, types: Types) -> Block:
    """Return a Block whose outer joins and subqueries have only columns that are read.

    Parameters
    ----------
    block
        A Block with unique instance numbers.
    calls, types
        The factory and the types of its expressions; those of changed leaves are replaced.
    """
    while True:
        read, columns = used_columns([block]), dict[int, list[int]]()
        wide: dict[int, int] = {}
        for inner in walk(block):
            for instance, node in inner.leaves if isinstance(inner, Block) else ():
                numbers = sorted(read.get(instance, ()))
                if len(numbers) < len(_columns(node)):
                    columns[instance], wide[id(node)] = numbers, instance
        if not columns:
            return block
        block = _with_columns(block, calls, wide, columns)
        for instance, numbers in columns.items():
            kinds = types.leaves[instance]
            types.leaves[instance] = tuple(kinds[n] for n in numbers)


def _columns(node: Node) -> tuple[Out, ...]:
    """Return the columns that a node can do without."""
    match node:
        case Outer(_, left, right):
            return (*left.columns, *right.columns)
        case Derived(block, volatile=False):
            return block.columns
        case _:
            return ()


def _with_columns(
    block: Block,
    calls: Calls,
    wide: Mapping[int, int],
    columns: Mapping[int, Sequence[int]],
) -> Block:
    """Return a Block of which some nodes have some of their columns.

    Parameters
    ----------
    wide
        The instance of each of these nodes, by its `id`.
    columns
        The numbers of their columns, by instance.
    """
    refs = {
        (instance, number): calls.ref(instance, place)
        for instance, numbers in columns.items()
        for place, number in enumerate(numbers)
    }

    def narrow(node: Node) -> Node | None:
        if id(node) not in wide:
            return None
        every, numbers = _columns(node), columns[wide[id(node)]]
        match node:
            case Outer(kind, left, right, on):
                n_left = len(left.columns)
                left = replace(left, columns=tuple(every[n] for n in numbers if n < n_left))
                right = replace(right, columns=tuple(every[n] for n in numbers if n >= n_left))
                return rebuild.node(Outer(kind, left, right, on))
            case Derived(inner):
                kept_columns = tuple(every[n] for n in numbers)
                return rebuild.node(Derived(replace(inner, columns=kept_columns)))
            case _:
                return None

    def renumber(expr: Expr) -> Expr | None:
        return refs.get((expr.instance, expr.column)) if isinstance(expr, Ref) else None

    rebuild = Rebuild(calls, replace=renumber, node=narrow)
    return rebuild.block(block)
