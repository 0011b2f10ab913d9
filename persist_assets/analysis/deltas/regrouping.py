"""Joins of changed tables before joins with unchanged ones. Pure.

The change of a join has a term for each changed table, and each term joins the unchanged tables. If
the changed tables are one leaf, which joins them, the unchanged tables are joined once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Given, Subquery
from persist_assets.analysis.deltas.pushing import equal_columns, equalities, instances
from persist_assets.analysis.deltas.staging import outermost, windows_in_subqueries, with_inner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from persist_assets.analysis.algebra import Block, Expr
    from persist_assets.analysis.deltas.staging import Staged


def changed_first(query: Staged, block: Block, is_changed: Callable[..., bool]) -> Block:
    """Return a Block in which changed leaves that are joined with each other are one leaf.

    Parameters
    ----------
    is_changed
        Whether a leaf reads a table that changed.
    """
    plain = [c for c in block.conjuncts if not outermost([c], Subquery)]
    pairs = [*equalities(plain, query.types)]
    for joined in _joined({i for i, n in block.leaves if is_changed(n)}, pairs):
        if len(joined) == len(block.leaves) or windows_in_subqueries(block):
            continue
        keys = [a for a, b in pairs if instances(a) | instances(b) <= joined]
        if not _are_reduced(query, block, keys, is_changed):
            inside = [c for c in plain if instances(c) and instances(c) <= joined]
            block = with_inner(query, block, joined, inside)
    return block


def _joined(leaves: set[int], pairs: Sequence[tuple[Expr, Expr]]) -> list[set[int]]:
    """Return sets of several leaves that are joined with each other, directly or not."""
    sets: list[set[int]] = []
    for a, b in pairs:
        both = instances(a) | instances(b)
        if len(both) == 2 and both <= leaves:
            apart = [s for s in sets if s.isdisjoint(both)]
            sets = [*apart, both.union(*(s for s in sets if s not in apart))]
    return sets


def _are_reduced(
    query: Staged, block: Block, keys: Sequence[Expr], is_changed: Callable[..., bool]
) -> bool:
    """Whether a filter on an unchanged table rejects some of the join keys.

    Joins with this table then save more work: they reduce the keys to search (`Rules._reduced`).
    """
    equal = (r for key in keys for r in equal_columns(key, block.conjuncts, query.types))
    tables = {r.instance for r in equal}
    return any(
        isinstance(node, Given)
        and not is_changed(node)
        and any(instances(c) == {i} for c in block.conjuncts)
        for i, node in block.leaves
        if i in tables
    )
