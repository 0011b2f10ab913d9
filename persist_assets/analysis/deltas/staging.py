"""Blocks in a form that can be printed and differentiated, with unique instance numbers.

The algebra lets parts be shared, lets windows carry the rows over which they are computed, and has
grouping sets. Here every leaf occurs once, every window is computed over the rows of the Block that
has it as a column, and grouping sets are unions of groupings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Calls,
    Derived,
    Generate,
    Given,
    Lateral,
    Limit,
    Opaque,
    Out,
    Outer,
    Rebuild,
    Recursive,
    Ref,
    SetOperation,
    Sort,
    Subquery,
    Values,
    Window,
    parts,
    walk,
)
from persist_assets.analysis.deltas.memberships import check_memberships
from persist_assets.analysis.deltas.narrowing import narrowed
from persist_assets.analysis.deltas.places import located
from persist_assets.analysis.free import Free
from persist_assets.analysis.types import Types
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr, Node

_T = TypeVar("_T", Subquery, Window)

_MOST_PARTS = 20_000
"""A query with more parts than this, once shared ones are copied, has no delta."""


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A query in staged form.

    Attributes
    ----------
    block
        Its algebra. The rows of a `Window` are those of the Block that has it as a column.
    types
        The types of the columns of all leaves.
    calls
        The factory of its expressions.
    instances
        Unused instance numbers.
    """

    block: Block
    types: Types
    calls: Calls
    instances: count[int]

    def leaf(self, node: Node, columns: Iterable[Out]) -> tuple[int, tuple[Out, ...]]:
        """Return the number of a new leaf, and columns that pass on those of the leaf."""
        columns = tuple(columns)
        instance = next(self.instances)
        self.types.leaves[instance] = tuple(o.type for o in columns)
        return instance, tuple(o.of(self.calls.ref(instance, k)) for k, o in enumerate(columns))


def staged(block: Block, types: Types) -> Staged:
    """Return a query in staged form.

    Raises
    ------
    NoRule
        It is too large, a part of it is opaque, or its rows may depend on how Spark plans it.
    """
    if types.collated:
        # Of equal texts, a group has any one; keys of a change are compared by their values.
        raise NoRule("of collations")
    query = Staged(block, Types(), Calls(), count(1))
    copied = narrowed(_Copy(query, types).block(block, {}), query.calls, query.types)
    check_memberships(copied)
    return replace(query, block=_Stage(query).block(copied))


class _Copy:
    """Copies a query so that nothing is shared; windows refer to the instances around them."""

    def __init__(self, query: Staged, types: Types) -> None:
        self.query, self._types = query, types
        self._n_parts = 0

    def block(self, block: Block, around: Mapping[int, int]) -> Block:
        return self._block(block, around)[0]

    def _block(self, block: Block, around: Mapping[int, int]) -> tuple[Block, dict[int, int]]:
        here = dict(around)
        for instance, _ in block.leaves:
            here[instance] = next(self.query.instances)
            kinds = self._types.leaves.get(instance, ())
            self.query.types.leaves[here[instance]] = kinds
        leaves = tuple((here[i], self._node(node, here)) for i, node in block.leaves)
        exprs = _Exprs(self, here)
        return Block(
            leaves,
            tuple(map(exprs.of, block.conjuncts)),
            tuple(o.of(exprs.of(o.expr)) for o in block.columns),
            tuple(map(exprs.sort, block.order)),
            block.place,
        ), here

    def _node(self, node: Node, here: Mapping[int, int]) -> Node:
        exprs = _Exprs(self, here)
        match node:
            case Given():
                return replace(node)
            case Derived(block, volatile):
                return Derived(self.block(block, here), volatile)
            case Outer(kind, left, right, on):
                left, inside = self._block(left, here)
                right, both = self._block(right, inside)
                return Outer(kind, left, right, tuple(map(_Exprs(self, both).of, on)), node.place)
            case Aggregate(rows, keys, aggregates, sets):
                rows, inside = self._block(replace(rows, columns=()), here)
                within = _Exprs(self, inside)
                grouped = tuple(map(within.of, keys)), tuple(map(within.of, aggregates))
                return Aggregate(rows, *grouped, sets, node.place)
            case SetOperation(kind, branches):
                return SetOperation(kind, tuple(self.block(b, here) for b in branches), node.place)
            case Limit(block, n, offset, ordered):
                limits = [e and exprs.of(e) for e in (n, offset)]
                return Limit(self.block(block, here), limits[0], limits[1], ordered, node.place)
            case Generate(Call("variant_explode")):
                raise NoRule("of variant_explode", node.place, node)
            case Generate(call, outer, types):
                generated = exprs.of(call)
                assert isinstance(generated, Call)
                return Generate(generated, outer, types, node.place)
            case Values(rows):
                return Values(tuple(tuple(map(exprs.of, row)) for row in rows))
            case Lateral():
                raise NoRule("of a LATERAL query", node.place, node)
            case Recursive():
                raise NoRule("of WITH RECURSIVE", node.place, node)
            case Opaque():
                raise NoRule("a part of the query cannot be analyzed")

    def aggregate(self, node: Aggregate) -> Aggregate:
        """Return a copy of an aggregate that refers to nothing around it.

        Raises
        ------
        NoRule
            It refers to a query around it.
        """
        try:
            copy = self._node(node, {})
        except KeyError:
            raise NoRule("of grouping sets in a correlated subquery") from None
        assert isinstance(copy, Aggregate)
        return copy

    def spend(self) -> None:
        """Count one part.

        Raises
        ------
        NoRule
            There are too many.
        """
        self._n_parts += 1
        if self._n_parts > _MOST_PARTS:
            raise NoRule("the query is too large")


class _Exprs:
    """Copies expressions within one Block; equal ones stay one object."""

    def __init__(self, copy: _Copy, here: Mapping[int, int]) -> None:
        self._copy, self._here = copy, here
        self._done: dict[int, Expr] = {}

    def of(self, expr: Expr) -> Expr:
        done = self._done.get(id(expr))
        if done is None:
            self._copy.spend()
            done = self._done[id(expr)] = self._of(expr)
        return done

    def sort(self, sort: Sort) -> Sort:
        return Sort(self.of(sort.by), sort.descending, sort.nulls_first)

    def _of(self, expr: Expr) -> Expr:
        calls = self._copy.query.calls
        match expr:
            case Ref(instance, column):
                return calls.ref(self._here[instance], column)
            case Call(op, args, words):
                return calls.call(op, map(self.of, args), words)
            case Subquery(kind, block, args):
                if kind == "exists":
                    block = replace(block, columns=())
                copied = self._copy.block(block, self._here)
                return Subquery(kind, copied, tuple(map(self.of, args)), expr.place)
            case Window(function, partition, order, frame, rows, mapping):
                inside = {**self._here, **{own: self._here[now] for own, now in mapping}}
                # Subqueries among the conditions stay those of the Block.
                within = self if inside == self._here else _Exprs(self._copy, inside)
                return Window(
                    within.of(function),
                    tuple(map(within.of, partition)),
                    tuple(map(within.sort, order)),
                    tuple(f if isinstance(f, str) else within.of(f) for f in frame),
                    Block((), tuple(map(within.of, rows.conjuncts))),
                    tuple((self._here[now], self._here[now]) for _, now in mapping),
                    expr.place,
                )


class _Stage:
    """Puts windows into Blocks of their own."""

    def __init__(self, query: Staged) -> None:
        self._query = query

    def block(self, block: Block) -> Block:
        """Return a Block in which every window is computed over the rows of its own Block."""
        block = replace(block, leaves=tuple((i, self._node(n)) for i, n in block.leaves))
        leaves = {i for i, _ in block.leaves}
        while True:
            windows = windows_in([*_exprs_of(block), *_generating(block.leaves)])
            around = windows_in_subqueries(block)
            misplaced = [w for w in (*windows, *around) if not _is_over(w, block)]
            misplaced = [w for w in misplaced if not _instances(w).isdisjoint(leaves)]
            if misplaced:
                chosen = max(misplaced, key=_extent)
                inside, conditions = _instances(chosen), chosen.rows.conjuncts
                exposed = [w for w in (*windows, *around) if _is_within(w, inside, conditions)]
            else:
                own = [e for w in windows for e in own_exprs(w)]
                exposed = [*windows_in(own), *(w for w in around if _is_over(w, block))]
                exposed = exposed or self._apart(block, windows)
                inside, conditions = leaves, block.conjuncts
            if not exposed:
                return self._with_subqueries(block)
            block = with_inner(self._query, block, inside, conditions, exposed, self.block)
            leaves = {i for i, _ in block.leaves}

    def _apart(self, block: Block, windows: Sequence[Window]) -> Sequence[Expr]:
        """Return what a Block with windows has to compute below, to be without subqueries.

        These are the subqueries in its windows, or else the windows beside subqueries.
        """
        own = [e for w in windows for e in own_exprs(w)]
        leaves, free = {i for i, _ in block.leaves}, Free()
        within = [s for s in outermost(own, Subquery) if free.of(s) <= leaves]
        return within or (windows if outermost(_shown_by(block), Subquery) else ())

    def _with_subqueries(self, block: Block) -> Block:
        """Return a Block with the queries in its expressions staged."""
        subqueries = [s for s in outermost(_exprs_of(block), Subquery)]
        if not subqueries:
            return block
        new: dict[int, Expr] = {id(s): replace(s, block=self.block(s.block)) for s in subqueries}
        rebuild = Rebuild(self._query.calls, replace=lambda e: new.get(id(e)))
        return replace(
            block,
            conjuncts=rebuild.exprs(block.conjuncts),
            columns=tuple(o.of(rebuild.expr(o.expr)) for o in block.columns),
            order=rebuild.sorts(block.order),
        )

    def _under(self, block: Block, exprs: Sequence[Expr]) -> tuple[Block, tuple[Expr, ...]]:
        """Return a staged Block, and expressions over its rows instead of over those of the Block.

        Windows and subqueries in the expressions are columns of a Block below.
        """
        leaves, n = {i for i, _ in block.leaves}, len(block.columns)
        windows = [w for w in windows_in(exprs) if _instances(w) <= leaves]
        free = Free()
        subqueries = [s for s in outermost(exprs, Subquery) if free.of(s) <= leaves]
        moved: list[Expr] = [*windows, *subqueries]
        used: list[Expr] = [*_refs(exprs, leaves, moved), *moved]
        beside = (Out("", "", e, self._query.types.of(e)) for e in used)
        below = self.block(replace(block, columns=(*block.columns, *beside)))
        if moved:
            instance, outs = self._query.leaf(Derived(below), below.columns)
            below = Block(((instance, Derived(below)),), (), outs, place=below.place)
        new = {id(e): out.expr for e, out in zip(used, below.columns[n:], strict=True)}
        rebuild = Rebuild(self._query.calls, replace=lambda e: new.get(id(e)))
        return replace(below, columns=below.columns[:n]), rebuild.exprs(exprs)

    @located
    def _node(self, node: Node) -> Node:
        match node:
            case Derived(block, volatile):
                return Derived(self.block(block), volatile)
            case Outer(kind, left, right, on):
                left, on = self._under(left, on)
                right, on = self._under(right, on)
                if outermost(on, Subquery):
                    raise NoRule("of a subquery in ON that refers to both sides of an outer join")
                return Outer(kind, left, right, on)
            case Aggregate(rows):
                rows, exprs = self._under(rows, (*node.keys, *node.aggregates))
                if outermost(exprs, Subquery):
                    raise NoRule("of an aggregate of a subquery")
                n_keys = len(node.keys)
                return Aggregate(rows, exprs[:n_keys], exprs[n_keys:], node.sets)
            case SetOperation(kind, branches):
                return SetOperation(kind, tuple(map(self.block, branches)))
            case Limit(block=block):
                return replace(node, block=self.block(block))
            case _:
                return node


def with_inner(
    query: Staged,
    block: Block,
    inside: Collection[int],
    conditions: Sequence[Expr],
    exposed: Sequence[Expr] = (),
    stage: Callable[[Block], Block] = lambda inner: inner,
) -> Block:
    """Return a Block that reads some of its leaves through one new leaf, which joins them.

    Parameters
    ----------
    inside, conditions
        The leaves and conjuncts of the rows of the new leaf.
    exposed
        Windows and subqueries over these rows, which are columns of the new leaf.
    stage
        Puts the rows of the new leaf in staged form.

    Raises
    ------
    NoRule
        A window is over some of these rows, and others.
    """
    outer_conjuncts = [c for c in block.conjuncts if c not in {*conditions}]
    outer_leaves = [(i, n) for i, n in block.leaves if i not in inside]
    rest = [*outer_conjuncts, *(o.expr for o in block.columns), *_generating(outer_leaves)]
    rest += [s.by for s in block.order]
    exprs: list[Expr] = [*_refs(rest, inside, exposed), *exposed]
    columns = [Out("", "", e, query.types.of(e)) for e in exprs]
    leaves = tuple((i, n) for i, n in block.leaves if i in inside)
    inner = stage(Block(leaves, tuple(conditions), tuple(columns)))
    instance, outs = query.leaf(Derived(inner), columns)
    new = {id(e): out.expr for e, out in zip(exprs, outs, strict=True)}

    def stand_in(expr: Expr) -> Expr | None:
        if isinstance(expr, Window) and id(expr) not in new:
            return _moved(expr, inside, conditions, instance, rebuild)
        return new.get(id(expr))

    # A subquery that the new leaf also computes gets instances of its own.
    subqueries = outermost(rest, Subquery)
    shared = _bound_by(*subqueries) & _bound_by(inner) if subqueries else set[int]()
    instances = {i: next(query.instances) for i in sorted(shared)}
    query.types.leaves |= {own: query.types.leaves[i] for i, own in instances.items()}
    rebuild = Rebuild(query.calls, replace=stand_in, instances=instances)
    return Block(
        (
            (instance, Derived(inner)),
            *((i, rebuild.node(n) if isinstance(n, Generate) else n) for i, n in outer_leaves),
        ),
        rebuild.exprs(outer_conjuncts),
        tuple(o.of(rebuild.expr(o.expr)) for o in block.columns),
        rebuild.sorts(block.order),
        block.place,
    )


def _bound_by(*things: object) -> set[int]:
    """Return the instances of all leaves below some things."""
    return {i for b in walk(*things) if isinstance(b, Block) for i, _ in b.leaves}


def _moved(
    window: Window,
    inside: Collection[int],
    conditions: Sequence[Expr],
    instance: int,
    rebuild: Rebuild,
) -> Window:
    """Return a window that reads rows through a new leaf, which has applied some conditions."""
    instances = _instances(window)
    if instances.isdisjoint(inside):
        return window
    if not instances.issuperset(inside) or not {*conditions} <= {*window.rows.conjuncts}:
        raise NoRule("of windows over rows that overlap", window.place)
    conjuncts = rebuild.exprs(c for c in window.rows.conjuncts if c not in {*conditions})
    now = {instance} | (instances - {*inside})
    return Window(
        rebuild.expr(window.function),
        rebuild.exprs(window.partition),
        rebuild.sorts(window.order),
        tuple(f if isinstance(f, str) else rebuild.expr(f) for f in window.frame),
        Block((), conjuncts),
        tuple((i, i) for i in sorted(now)),
        window.place,
    )


def windows_in(exprs: Iterable[Expr]) -> list[Window]:
    """Return the outermost windows in expressions, each once; not those of subqueries."""
    return outermost(exprs, Window)


def outermost(exprs: Iterable[Expr], kind: type[_T]) -> list[_T]:
    """Return the outermost subqueries or windows in expressions, each once."""
    seen, stack = set[int](), [*exprs][::-1]
    found: list[_T] = []
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        if isinstance(this, kind):
            found.append(this)
        elif isinstance(this, Call):
            stack += this.args[::-1]
        elif isinstance(this, Window):
            stack += own_exprs(this)
        elif isinstance(this, Subquery):
            stack += this.args
    return found


def windows_in_subqueries(block: Block) -> list[Window]:
    """Return the windows over the rows of a Block that its subqueries refer to, each once."""
    leaves = {i for i, _ in block.leaves}
    below = (s.block for s in outermost(_exprs_of(block), Subquery))
    windows = [w for w in walk(*below) if isinstance(w, Window)]
    return [w for w in windows if _instances(w) <= leaves]


def own_exprs(window: Window) -> list[Expr]:
    """Return the expressions that a window computes over its rows."""
    frame = [f for f in window.frame if not isinstance(f, str)]
    return [window.function, *window.partition, *(s.by for s in window.order), *frame]


def _exprs_of(block: Block) -> list[Expr]:
    return [*block.conjuncts, *_shown_by(block)]


def _shown_by(block: Block) -> list[Expr]:
    return [*(o.expr for o in block.columns), *(s.by for s in block.order)]


def _generating(leaves: Iterable[tuple[int, Node]]) -> list[Expr]:
    return [n.call for _, n in leaves if isinstance(n, Generate)]


def _instances(window: Window) -> set[int]:
    return {now for _, now in window.mapping}


def _extent(window: Window) -> tuple[int, int]:
    return len(window.mapping), len(window.rows.conjuncts)


def _is_over(window: Window, block: Block) -> bool:
    """Whether a window is computed over exactly the rows of a Block."""
    return _instances(window) == {i for i, _ in block.leaves} and {*window.rows.conjuncts} == {
        *block.conjuncts
    }


def _is_within(window: Window, inside: Collection[int], conditions: Sequence[Expr]) -> bool:
    return _instances(window) <= {*inside} and {*window.rows.conjuncts} <= {*conditions}


def _refs(exprs: Iterable[Expr], inside: Collection[int], skipped: Sequence[Expr]) -> Iterable[Ref]:
    """Return the columns of some leaves that expressions use, but for those in some of them."""
    without = {id(e) for e in skipped}
    refs: dict[Ref, None] = {}
    seen, stack = set[int](), list[object](exprs)
    while stack:
        this = stack.pop()
        if id(this) in seen or id(this) in without:
            continue
        seen.add(id(this))
        if isinstance(this, Ref):
            if this.instance in inside:
                refs[this] = None
        else:
            stack += parts(this)
    return sorted(refs, key=lambda r: (r.instance, r.column))


def copy_of(query: Staged, node: Aggregate) -> Aggregate:
    """Return a copy of an aggregate with instances of its own.

    Raises
    ------
    NoRule
        It refers to a query around it, or is too large.
    """
    return _Copy(query, query.types).aggregate(node)


def grouped_by_each_set(query: Staged, node: Aggregate) -> SetOperation:
    """Return an aggregate with grouping sets as the union of one aggregate for each set.

    Raises
    ------
    NoRule
        The type of a key is uncertain.
    """
    calls, types = query.calls, query.types
    branches: list[Block] = []
    for grouping_set in node.sets or ():
        copy = copy_of(query, node)
        present = sorted(grouping_set)
        own = [c for c in copy.aggregates if not _names_set(c)]
        keys = tuple(copy.keys[k] for k in present)
        grouped = Aggregate(copy.rows, keys, tuple(own), place=node.place)
        if not keys and node.keys:  # Spark has no total of no rows beside other sets
            n_rows = calls.call("count")
            grouped = replace(grouped, aggregates=(*own, n_rows))
        exprs = (*grouped.keys, *grouped.aggregates)
        instance, outs = query.leaf(grouped, [Out("", "", e, types.of(e)) for e in exprs])
        passed = dict(zip(exprs, (o.expr for o in outs), strict=True))
        conjuncts: tuple[Expr, ...] = ()
        if len(grouped.aggregates) > len(own):
            zero = calls.call("number", (), ("0",))
            conjuncts = (calls.call("<", (zero, outs[-1].expr)),)
        columns: list[Expr] = []
        for k, key in enumerate(copy.keys):
            kind = types.of(key)
            if kind is None:
                raise NoRule("of grouping sets of a key whose type is uncertain")
            nothing = calls.call("cast", (calls.call("null"),), (kind,))
            columns.append(passed[key] if k in grouping_set else nothing)
        columns += [
            passed.get(c) or _number_of_set(calls, c, copy.keys, grouping_set)
            for c in copy.aggregates
        ]
        outs = tuple(Out("", "", e, types.of(e)) for e in columns)
        branches.append(Block(((instance, grouped),), conjuncts, outs))
    return SetOperation("union all", tuple(branches), node.place)


def _names_set(call: Expr) -> bool:
    return isinstance(call, Call) and call.op in ("grouping", "grouping_id")


def _number_of_set(
    calls: Calls, call: Expr, keys: Sequence[Expr], grouping_set: Collection[int]
) -> Expr:
    """Return the constant that `grouping` or `grouping_id` is in one grouping set."""
    assert isinstance(call, Call)
    absent = [keys.index(a) not in grouping_set for a in call.args]
    number = int("".join(str(int(a)) for a in absent) or "0", 2)
    kind = "tinyint" if call.op == "grouping" else "bigint"
    return calls.call("cast", (calls.call("number", (), (str(number),)),), (kind,))
