"""Normal form: relations that are the same in Spark although they are written differently. Pure.

Digests are those of the normal form; everything else sees a query as it is written. The invariant:
**a relation and its normal form have the same rows, on all data, and fail on the same data.** The
rules, each of which has pairs in `tests/golden`:

- A LEFT JOIN is an inner join if a condition on its right side rejects the NULLs of rows without a
  match. Spark's optimizer replaces it under the same condition (`EliminateOuterJoin`).
- A LEFT JOIN filtered by IS NULL of a column that no match leaves NULL is an anti join.
- A condition on grouping keys is a condition on the rows. Equal keys must be indistinguishable, as
  Spark groups -0.0 with 0.0.
- ``count(*)`` of distinct values that are not NULL is ``count(DISTINCT …)``.

The order of LEFT JOINs is a matter of labels: see `fingerprint.py`. Leaves to which a window refers
are left alone, because a window sees the rows at its own place.

Galindo-Legaria and Rosenthal, "Outerjoin simplification and reordering for query optimization"
(TODS 1997), have the first two rules and the conditions under which they hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Expr,
    Given,
    Lateral,
    Node,
    Outer,
    Rebuild,
    Ref,
    Subquery,
    Window,
    columns_of,
    parts,
    walk,
)
from persist_assets.analysis.binding import MAX_LEAVES, MAX_SIZE
from persist_assets.analysis.functions import ORDER_SENSITIVE, TIME_WINDOWS, VOLATILE
from persist_assets.analysis.named_literals import InTermsOf
from persist_assets.analysis.pushdown.equalities import is_same_if_equal, rejects_nulls
from persist_assets.analysis.pushdown.relation import Relation
from persist_assets.analysis.pushdown.terms import TermReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from persist_assets.analysis.algebra import Calls
    from persist_assets.analysis.binding import Binding

Columns = dict[int, tuple[Expr, ...]]
"""For each leaf that was dissolved, the expressions that stand for its columns."""

Rejected = frozenset[tuple[int, int]]
"""Columns of leaves, by instance and number: rows in which all of them are NULL are not needed."""

_MAX_STEPS = 64
"""At most so many rules are applied to one Block."""


class Normal(Rebuild):
    """Rewriter of relations to their normal form; it shares the rewritten parts."""

    def __init__(self, binding: Binding) -> None:
        super().__init__(binding.calls)
        self._binding = binding
        relation = Relation(Block(), binding.types, {}, free=binding.free)
        self._reader = TermReader(relation)
        self._dissolved: dict[int, Columns] = {}  # by id of the Block as it was written
        self._fixed: set[int] = set()  # instances to which windows and LATERAL refer

    def normal(self, block: Block) -> Block:
        """Return the normal form of a whole query."""
        return self.block(block) if self._is_affected(block) else block

    def _is_affected(self, thing: object) -> bool:
        """Whether any rule may apply below; instances that others refer to are remembered."""
        affected = False
        for each in walk(thing):
            if isinstance(each, Window):
                self._fixed.update(i for pair in each.mapping for i in pair)
            if isinstance(each, Lateral):
                self._fixed.update(i for i, _ in each.left.leaves)
            affected |= isinstance(each, Outer | Aggregate) or _shape(each) is not None
        return affected

    def _rebuilt_relation(self, thing: object) -> object:
        new = super()._rebuilt_relation(thing)
        match thing, new:
            case Block(), Block():
                settled, columns = self._settled(new, ())
                if columns:
                    self._dissolved[id(thing)] = columns
                return settled
            case Aggregate(rows=rows), Aggregate():
                return self._counted(self._over(new, self._dissolved.get(id(rows), {})))
            case Outer(_, left, right), Outer():
                columns = {
                    **self._dissolved.get(id(left), {}),
                    **self._dissolved.get(id(right), {}),
                }
                return self._chained(replace(new, on=self._with(columns).exprs(new.on)))
            case _:
                return new

    def _with(self, columns: Mapping[int, Sequence[Expr]]) -> Rebuild:
        """Return a rewriter of expressions over leaves that were dissolved."""
        return InTermsOf(self.calls, columns, self._binding.types)

    def _over(self, node: Aggregate, columns: Columns) -> Aggregate:
        if not columns:
            return node
        over = self._with(columns)
        return replace(node, keys=over.exprs(node.keys), aggregates=over.exprs(node.aggregates))

    def _opened(self, node: Node) -> Node:
        """Return the normal form of the shape of a leaf, with its own instances."""
        shape = _shape(node)
        if shape is None:
            return node
        ((_, opened),) = self._binding.fresh(Block(((0, shape),))).leaves
        self._is_affected(opened)
        return self.node(opened)

    # ------------------------------------------------------------------------------------- blocks

    def _settled(self, block: Block, rejected: Iterable[Rejected]) -> tuple[Block, Columns]:
        """Apply rules to a Block as long as any applies.

        Parameters
        ----------
        rejected
            Columns that a condition above the Block rejects.
        """
        columns: Columns = {}
        demands = [*rejected]
        for _ in range(_MAX_STEPS):
            step = self._step(block, demands)
            if step is None:
                break
            block, dissolved = step
            if dissolved:
                rewrite = self._with(dissolved)
                columns = {i: rewrite.exprs(exprs) for i, exprs in columns.items()} | dissolved
                demands = [d for each in demands if (d := _restated(each, dissolved))]
        return block, columns

    def _step(self, block: Block, demands: Sequence[Rejected]) -> tuple[Block, Columns] | None:
        """Apply one rule to a Block, and return the columns of the leaf that it dissolved."""
        rejected: list[Rejected] | None = None
        for place, (instance, node) in enumerate(block.leaves):
            form = _shape(node) or node
            if instance in self._fixed:
                continue
            step = None
            if isinstance(form, Aggregate):
                step = self._filtered(block, place, form)
            elif isinstance(form, Outer) and form.kind == "left":
                if rejected is None:
                    rejected = [*demands, *self._rejected(block)]
                own = [r for r in rejected if all(i == instance for i, _ in r)]
                step = self._anti(block, place, form) or self._narrowed(block, place, form, own)
            if step is not None:
                return step
        return None

    def _rejected(self, block: Block) -> Iterator[Rejected]:
        """Yield the columns of which a condition rejects NULLs, if it is about one leaf."""
        for condition in block.conjuncts:
            if len(self._binding.free.of(condition)) == 1 and self._is_plain(condition):
                self._reader.lost.clear()
                if rejects_nulls(self._reader.predicate(condition)):
                    yield frozenset(columns_of(condition))

    def _is_plain(self, *exprs: Expr) -> bool:
        """Whether expressions are computed from one row, the same each time."""
        return not any(
            isinstance(e, Subquery | Window) or (isinstance(e, Call) and e.op in _NOT_OF_ONE_ROW)
            for e in walk(*exprs)
        )

    # -------------------------------------------------------------------------------- outer joins

    def _narrowed(
        self, block: Block, place: int, form: Outer, rejected: Sequence[Rejected]
    ) -> tuple[Block, Columns] | None:
        """Make an outer join, or one on its left side, an inner one if NULLs are rejected."""
        n = len(form.left.columns)
        if any(all(column >= n for _, column in r) for r in rejected):
            return self._inner(block, place)
        lefts = [r for r in rejected if all(column < n for _, column in r)]
        if not lefts or not any(isinstance(_shape(x) or x, Outer) for _, x in form.left.leaves):
            return None
        instance, node = block.leaves[place]
        opened = self._opened(node)
        assert isinstance(opened, Outer)
        exprs = {instance: tuple(o.expr for o in opened.left.columns)}
        left, columns = self._settled(
            opened.left, [r for each in lefts if (r := _restated(each, exprs))]
        )
        if left is opened.left:
            return None
        narrowed = replace(opened, left=left, on=self._with(columns).exprs(opened.on))
        return _with_leaf(block, place, self._chained(narrowed)), {}

    def _inner(self, block: Block, place: int) -> tuple[Block, Columns] | None:
        instance, node = block.leaves[place]
        outer = self._own(self._opened(node))
        if outer is None or outer.left.order or outer.right.order:
            return None
        left, right = outer.left, outer.right
        columns = {instance: tuple(o.expr for o in (*left.columns, *right.columns))}
        leaves = (*left.leaves, *right.leaves)
        added = (*left.conjuncts, *right.conjuncts, *outer.on)
        return self._merged(block, place, leaves, added, columns)

    def _anti(self, block: Block, place: int, form: Outer) -> tuple[Block, Columns] | None:
        """Make an outer join an anti join, if only rows without a match are needed."""
        instance, node = block.leaves[place]
        n = len(form.left.columns)
        tests = {
            test.args[0].column: test
            for test in block.conjuncts
            if isinstance(test, Call)
            and test.op == "is null"
            and isinstance(test.args[0], Ref)
            and test.args[0].instance == instance
            and test.args[0].column >= n
        }
        if not tests:
            return None
        outer = self._own(self._opened(node))
        if outer is None or outer.left.order:
            return None
        left, right = outer.left, outer.right
        conditions = (*right.conjuncts, *outer.on)
        matched = [c for c in tests if _is_compared(right.columns[c - n].expr, conditions)]
        kinds = [o.type for o in right.columns]
        if not matched or None in kinds:
            return None
        null = self.calls.call("null")
        nulls = tuple(self.calls.call("cast", (null,), (kind,)) for kind in kinds if kind)
        columns = {instance: (*(o.expr for o in left.columns), *nulls)}
        match = Subquery("exists", Block(right.leaves, conditions))
        others = tuple(c for c in block.conjuncts if c is not tests[matched[0]])
        block = replace(block, conjuncts=others)
        added = (*left.conjuncts, self.calls.call("not", (match,)))
        return self._merged(block, place, left.leaves, added, columns)

    def _own(self, node: Node) -> Outer | None:
        """Return a copy of an outer join whose leaves can be those of another Block."""
        assert isinstance(node, Outer)
        if self._binding.is_volatile(node):
            return None
        binding = self._binding
        leaves = [i for side in (node.left, node.right) for i, _ in side.leaves]
        if not self._fixed.isdisjoint(leaves):
            return None
        moved = {i: next(binding.instances) for i in leaves}
        for instance, new in moved.items():
            binding.types.leaves[new] = binding.types.leaves.get(instance, ())
        rebuild = Rebuild(self.calls, instances=moved)
        left, right = rebuild.block(node.left), rebuild.block(node.right)
        return replace(node, left=left, right=right, on=rebuild.exprs(node.on))

    def _merged(
        self,
        block: Block,
        place: int,
        leaves: Sequence[tuple[int, Node]],
        added: Sequence[Expr],
        columns: Columns,
    ) -> tuple[Block, Columns] | None:
        """Return a Block in which the leaves of one of its leaves replace that leaf."""
        if len(block.leaves) - 1 + len(leaves) > MAX_LEAVES:
            return None
        before, after = block.leaves[:place], block.leaves[place + 1 :]
        rest = self._with(columns).block(replace(block, leaves=(*before, *after)))
        own = (*rest.leaves[:place], *leaves, *rest.leaves[place:])
        conjuncts = tuple(dict.fromkeys((*rest.conjuncts, *added)))
        return replace(rest, leaves=own, conjuncts=conjuncts), columns

    def _chained(self, node: Outer) -> Outer:
        """Return an outer join that shows the one on its left side, whose order is free."""
        left = node.left
        if node.kind != "left" or not _is_bare(left):
            return node
        ((instance, leaf),) = left.leaves
        form = _shape(leaf)
        if not isinstance(form, Outer) or form.kind != "left":
            return node
        return replace(node, left=replace(left, leaves=((instance, self._opened(leaf)),)))

    # ------------------------------------------------------------------------------------- groups

    def _filtered(self, block: Block, place: int, form: Aggregate) -> tuple[Block, Columns] | None:
        """Filter the rows of groups by the conditions on their keys."""
        instance, node = block.leaves[place]
        n = len(form.keys)
        alone = frozenset((instance,))
        tests = [
            c
            for c in block.conjuncts
            if self._binding.free.of(c) == alone
            and all(column < n for _, column in columns_of(c))
            and self._is_plain(c)
        ]
        if not tests or form.sets is not None or _depends_on_order(form):
            return None
        grouped = self._opened(node)
        assert isinstance(grouped, Aggregate)
        if self._binding.is_volatile(grouped) or not self._is_plain(*grouped.keys):
            return None
        keys = grouped.keys
        sure = {c for c in range(n) if self._is_same_if_equal(keys[c])}
        tests = [c for c in tests if {column for _, column in columns_of(c)} <= sure]
        if not tests:
            return None
        added = self._with({instance: keys}).exprs(tests)
        conjuncts = tuple(dict.fromkeys((*grouped.rows.conjuncts, *added)))
        rows, columns = self._settled(replace(grouped.rows, conjuncts=conjuncts), ())
        node = self._counted(self._over(replace(grouped, rows=rows), columns))
        others = tuple(c for c in block.conjuncts if c not in tests)
        return _with_leaf(replace(block, conjuncts=others), place, node), {}

    def _is_same_if_equal(self, expr: Expr) -> bool:
        kind = self._binding.types.of(expr)
        return kind is not None and is_same_if_equal(kind)

    def _counted(self, node: Aggregate) -> Aggregate:
        """Return a count of distinct values as one call, over rows in which they may be NULL."""
        if node.keys or node.sets is not None or len(node.aggregates) != 1:
            return node
        (count,) = node.aggregates
        if not isinstance(count, Call) or count.op != "count":
            return node
        if not count.args and not count.words:
            return self._counted_groups(node)
        if count.words == ("distinct",) and len(count.args) == 1 and self._is_plain(*count.args):
            return self._without_null_test(node, count.args[0]) or node
        return node

    def _counted_groups(self, node: Aggregate) -> Aggregate:
        rows = node.rows
        if not _is_bare(rows) or rows.leaves[0][0] in self._fixed:
            return node
        leaf = rows.leaves[0][1]
        form = _shape(leaf) or leaf
        if not isinstance(form, Aggregate) or len(form.keys) != 1 or form.sets is not None:
            return node
        if form.aggregates:
            return node
        groups = self._opened(leaf)
        assert isinstance(groups, Aggregate)
        (key,) = groups.keys
        if not self._is_plain(key) or not self._is_same_if_equal(key):
            return node
        call = self.calls.call("count", (key,), ("distinct",))
        whole = replace(node, rows=groups.rows, aggregates=(call,))
        return self._without_null_test(whole, key) or node

    def _without_null_test(self, node: Aggregate, value: Expr) -> Aggregate | None:
        """Return a count without the condition that the counted value is not NULL."""
        rows = node.rows
        test = self.calls.call("not", (self.calls.call("is null", (value,)),))
        if test not in rows.conjuncts:
            return None
        others = tuple(c for c in rows.conjuncts if c is not test)
        return replace(node, rows=replace(rows, conjuncts=others))


_NOT_OF_ONE_ROW = VOLATILE | TIME_WINDOWS


def _shape(thing: object) -> Node | None:
    """Return the shape that readers see of a leaf that is known by its digests, or None."""
    return thing.shape if isinstance(thing, Given) else None


def _restated(rejected: Rejected, columns: Mapping[int, Sequence[Expr]]) -> Rejected | None:
    """Return rejected columns in terms of the leaves below; None if these compute something."""
    below: set[tuple[int, int]] = set()
    for instance, column in rejected:
        expr = columns[instance][column] if instance in columns else None
        if expr is None:
            below.add((instance, column))
        elif isinstance(expr, Ref):
            below.add((expr.instance, expr.column))
        else:
            return None
    return frozenset(below)


def _is_compared(expr: Expr, conditions: Iterable[Expr]) -> bool:
    """Whether a condition compares a column, so that it is not TRUE where that is NULL."""
    return isinstance(expr, Ref) and any(
        isinstance(c, Call) and c.op in ("=", "<>", "<", "<=") and expr in c.args
        for c in conditions
    )


def _is_bare(block: Block) -> bool:
    """Whether a Block has the rows of its one leaf."""
    return len(block.leaves) == 1 and not block.conjuncts and not block.order


def _with_leaf(block: Block, place: int, node: Node) -> Block:
    instance, _ = block.leaves[place]
    leaves = (*block.leaves[:place], (instance, node), *block.leaves[place + 1 :])
    return replace(block, leaves=leaves)


def _depends_on_order(node: Aggregate) -> bool:
    """Whether Spark computes the groups before it filters them, and may fail in one of them."""
    return any(isinstance(e, Call) and e.op in ORDER_SENSITIVE for e in walk(*node.aggregates))


def size_of(node: Node, *, deep: bool = True) -> int:
    """Return the number of parts of a node, up to a limit.

    Parameters
    ----------
    deep
        Whether the parts count that its leaves show.
    """
    n, seen = 0, set[int]()
    things: list[object] = [node]
    while things and n <= MAX_SIZE:
        thing = things.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            n += 1
            shape = _shape(thing) if deep else None
            things += parts(thing) if shape is None else [shape]
    return n


def bounded(calls: Calls, shape: Node) -> Node | None:
    """Return the shape that readers see of a leaf; if too large, without its leaves' shapes."""
    if size_of(shape) <= MAX_SIZE:
        return shape
    flat = Rebuild(calls, node=lambda n: replace(n, shape=None) if _shape(n) else None).node(shape)
    return flat if size_of(flat) <= MAX_SIZE else None
