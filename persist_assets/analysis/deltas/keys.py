"""The keys of a query: a build recomputes all rows with touched values in these columns. Pure.

    changed rows ─► the values of the keys in them ─► all rows of the query with these values

Rows with other values stay. So a value that depends on the order of rows (`first(x)`, or which of
several rows is the latest) must affect only rows with one value of the keys. It must not decide
which values are touched either, so the search for these leaves out conditions on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Generate,
    Given,
    Outer,
    Ref,
    Subquery,
    Window,
    walk,
)
from persist_assets.analysis.deltas.exactness import Exactness, is_exact
from persist_assets.analysis.deltas.printing import used_columns
from persist_assets.analysis.deltas.pushing import separating
from persist_assets.analysis.deltas.rules import common_partition
from persist_assets.analysis.deltas.staging import outermost, own_exprs, windows_in
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.deltas.relations import Relations
    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.analysis.types import Types

_NESTED = ("array", "map", "struct", "variant")


@dataclass(frozen=True, slots=True)
class Keyed:
    """The dependency of a whole query's rows on keys of changed rows.

    Attributes
    ----------
    rows, exprs
        The rows that change, and expressions over them: their values are the keys.
    numbers
        The numbers of the query's columns with these values.
    complete
        Aggregates and windows that are computed from all rows of a key.
    """

    rows: Block
    exprs: Sequence[Expr]
    numbers: Sequence[int]
    complete: Sequence[object] = ()


def keys_of(query: Staged, relations: Relations) -> Keyed | None:
    """Return the keys of a query; None: its rows are replaced one by one.

    Raises
    ------
    NoRule
        Some of its values depend on the order of rows, and it has no keys.
    """
    exact = Exactness(query.types)
    keyed = _of_node(query.block, relations)
    if keyed is None and exact.of_query(query.block):
        return None
    refusal = keyed and _obstacle(query, keyed, relations)
    if keyed is not None and refusal is None:
        return keyed
    keyed = _of_columns(query, relations)
    other = keyed and _obstacle(query, keyed, relations)
    if keyed is not None and other is None:
        return keyed
    raise refusal or other or exact.refusal()


def _obstacle(query: Staged, keyed: Keyed, relations: Relations) -> NoRule | None:
    """Return why a query is not computed by some keys; None: it is."""
    exact = Exactness(query.types)
    exact.learn(keyed.rows)
    blocks = (one for one in walk(keyed.rows) if isinstance(one, Block))
    shown = (o.expr for block in blocks for o in block.columns)
    subqueries = (s for s in outermost(shown, Subquery) if relations.is_changed(s.block))
    if not (
        exact.of_rows(keyed.rows)
        and exact.of_exprs(keyed.exprs, compared=True)
        and all(_finds_exactly(s, exact) for s in subqueries)
    ):
        return exact.refusal()
    # Other keys keep values that were computed together with those of touched keys.
    others = Exactness(query.types, keyed.complete, rounds=True)
    return None if others.of_query(query.block) else others.refusal()


def _finds_exactly(subquery: Subquery, exact: Exactness) -> bool:
    """Whether it is certain for which rows around it a subquery finds other rows than before."""
    block = subquery.block
    of_block = exact.of_query if subquery.kind == "in" else exact.of_rows
    return of_block(block) and exact.of_exprs(subquery.args)


# --------------------------------------------------------------------- one aggregate or its windows


def _of_node(block: Block, relations: Relations) -> Keyed | None:
    """Return how a query's rows depend on its groups or partitions; None if they do not."""
    exprs = [o.expr for o in block.columns]
    if windows_in(exprs):
        if relations.has_changed_subquery(exprs):
            return None
        partition = [e for e in common_partition(exprs) if e in exprs]
        return _shown(block, block, partition, partition, windows_in(exprs))
    changed = [(i, n) for i, n in block.leaves if relations.is_changed(n)]
    if len(changed) != 1 or relations.has_changed_subquery([*block.conjuncts, *exprs]):
        return None
    ((instance, node),) = changed
    if isinstance(node, Aggregate) and node.sets is None and node.keys:
        refs = [(instance, k) for k in range(len(node.keys))]
        return _shown(block, node.rows, node.keys, refs, [node])
    if isinstance(node, Derived):
        inner = node.block
        computed = [o.expr for o in inner.columns]
        if windows_in(computed) and not relations.has_changed_subquery(computed):
            partition = [e for e in common_partition(computed) if e in computed]
            refs = [(instance, computed.index(e)) for e in partition]
            return _shown(block, inner, partition, refs, windows_in(computed))
    return None


def _shown(
    block: Block,
    rows: Block,
    keys: Sequence[Expr],
    refs: Sequence[Expr | tuple[int, int]],
    complete: Sequence[object],
) -> Keyed | None:
    """Return keys with the numbers of the columns that show them; None if one is not shown."""
    exprs = [o.expr for o in block.columns]
    places: list[int] = []
    for ref in refs:
        places += [
            n
            for n, e in enumerate(exprs)
            if e is ref or (isinstance(e, Ref) and (e.instance, e.column) == ref)
        ][:1]
    if not refs or len(places) < len(refs):
        return None
    return Keyed(replace(rows, columns=()), keys, places, complete)


# ------------------------------------------------------------------------------- any of its columns


def _of_columns(query: Staged, relations: Relations) -> Keyed | None:
    """Return the columns of tables, and keys of groups, that tell which rows of a query change.

    None: there are none that separate the values that depend on the order of rows.
    """
    block, types = query.block, query.types
    shown = [o.expr for o in block.columns]
    if relations.has_changed_subquery(shown):
        return None
    exact = Exactness(types)
    exact.learn(block)
    relaxed = _Relaxed(exact)
    try:
        rows = relaxed.block(block)
    except NoRule:
        return None
    leaves = dict(block.leaves)
    exprs = {
        n: e
        for n, e in enumerate(shown)
        if _is_column(e, leaves) and not relaxed.is_loose(e) and _has_order(e, types)
    }
    separated = separating(block, exprs, types)
    unsteady = [*_unsteady(block, types, exact)]
    numbers = [n for n in exprs if all(n in separated.get(id(one), ()) for one in unsteady)]
    return Keyed(rows, [shown[n] for n in numbers], numbers, unsteady) if numbers else None


def _is_column(expr: Expr, leaves: Mapping[int, Node]) -> bool:
    """Whether an expression is a column of a table, or the key of a group."""
    if not isinstance(expr, Ref):
        return False
    node, column = leaves.get(expr.instance), expr.column
    match node:
        case Given():
            return True
        case Aggregate(keys=keys):
            return column < len(keys)
        case Derived(block):
            return _is_column(block.columns[column].expr, dict(block.leaves))
        case Outer(_, left, right):
            side = dict((*left.leaves, *right.leaves))
            return _is_column((*left.columns, *right.columns)[column].expr, side)
        case _:
            return False


def _has_order(expr: Expr, types: Types) -> bool:
    return not (types.of(expr) or "").startswith(_NESTED)


def _unsteady(block: Block, types: Types, exact: Exactness) -> Iterator[Aggregate | Window]:
    """Yield the aggregates and windows whose values depend on the order of rows.

    Sums and averages of exact values are left out: their last digits may differ between rows.
    """
    for one in walk(block):
        match one:
            case Aggregate(_, keys, aggregates):
                inside = [*keys, *(a for c in aggregates if isinstance(c, Call) for a in c.args)]
                calls = aggregates
            case Window():
                inside, calls = own_exprs(one), (one,)
            case _:
                continue
        if not (exact.of_exprs(inside) and all(is_exact(c, types, rounds=True) for c in calls)):
            yield one


class _Relaxed:
    """Leaves out the conditions of a query on values that depend on the order of rows.

    It then has more rows. Where a LEFT JOIN finds more, columns that read its right side are
    *loose*: a row of the query may be without a counterpart that has the same values there.

    Raises
    ------
    NoRule
        By all methods: the rows of the result would not tell which rows of the query change.
    """

    def __init__(self, exact: Exactness) -> None:
        self._exact = exact
        self._loose: set[tuple[int, int]] = set()
        self._null: set[tuple[int, int]] = set()  # loose columns that are NULL in such a row

    def block(self, block: Block) -> Block:
        leaves = tuple((i, self._node(node, i)) for i, node in block.leaves)
        conjuncts = tuple(c for c in block.conjuncts if self._stays(c))
        are_same = all(new is old for (_, new), (_, old) in zip(leaves, block.leaves, strict=True))
        if are_same and conjuncts == block.conjuncts:
            return block
        if windows_in(o.expr for o in block.columns):  # they would be over other rows
            raise self._exact.refusal()
        return replace(block, leaves=leaves, conjuncts=conjuncts)

    def is_loose(self, expr: Expr) -> bool:
        """Whether an expression reads a loose column."""
        used = used_columns([expr])
        return any((i, column) in self._loose for i, columns in used.items() for column in columns)

    def _stays(self, condition: Expr) -> bool:
        """Whether a condition of a Block, or of a join, is not left out."""
        is_sure = not self.is_loose(condition) or self._rejects_null(condition)
        if is_sure and self._exact.of_exprs([condition]):
            return True
        if outermost([condition], Subquery) or len(used_columns([condition])) > 1:
            raise self._exact.refusal()
        return False

    def _rejects_null(self, condition: Expr) -> bool:
        """Whether a condition rejects all rows that are without a counterpart."""
        return (
            isinstance(condition, Call)
            and condition.op == "="
            and all(self._is_null(a) or not self.is_loose(a) for a in condition.args)
        )

    def _is_null(self, expr: Expr) -> bool:
        return isinstance(expr, Ref) and (expr.instance, expr.column) in self._null

    def _node(self, node: Node, instance: int) -> Node:
        match node:
            case Derived(inner, volatile):
                block = self._inner(inner)
                self._pass_on(block, instance)
                return node if block is inner else Derived(block, volatile)
            case Outer("left", left, right, on):
                outer, inner = self._inner(left), self._inner(right)
                self._pass_on(outer, instance)
                n_left = len(left.columns)
                stays = tuple(c for c in on if self._stays(c))
                # Without a counterpart on the left, a row has NULL here as well.
                if inner is not right or stays != on or any(map(self.is_loose, on)):
                    numbers = range(n_left, n_left + len(right.columns))
                    self._null |= {(instance, number) for number in numbers}
                    self._loose |= self._null
                if outer is left and inner is right and stays == on:
                    return node
                return Outer("left", outer, inner, stays, node.place)
            case Generate(call) if self.is_loose(call):
                raise self._exact.refusal()
            case _:
                return node

    def _inner(self, block: Block) -> Block:
        inner = self.block(block)
        if any(map(self.is_loose, outermost((o.expr for o in inner.columns), Subquery))):
            raise self._exact.refusal()
        return inner

    def _pass_on(self, block: Block, instance: int) -> None:
        """Make the columns of a leaf loose that read loose columns."""
        for number, out in enumerate(block.columns):
            if self.is_loose(out.expr):
                self._loose.add((instance, number))
            if self._is_null(out.expr):
                self._null.add((instance, number))
