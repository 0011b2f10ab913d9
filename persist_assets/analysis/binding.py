"""State of binding one source's query: leaves, types and problems so far.

Functions that bind take it as their first parameter. The invariant: an instance number is used for
one leaf only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.algebra import (
    Block,
    Call,
    Calls,
    Expr,
    Generate,
    Given,
    Limit,
    Node,
    Out,
    Rebuild,
    Window,
    parts,
    walk,
)
from persist_assets.analysis.free import Free
from persist_assets.analysis.functions import VOLATILE
from persist_assets.analysis.memberships import Memberships
from persist_assets.analysis.scope import Unanalysable
from persist_assets.analysis.syntax import first_place
from persist_assets.analysis.types import Types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from persist_assets.analysis.scope import Around
    from persist_assets.core.errors import Location, Problem
    from persist_assets.core.model.columns import ColumnRef

MAX_LEAVES = 16
"""A subquery is merged into its reader while the reader has no more leaves than this; beyond, it
stays a leaf, which keeps chains of self-joins from growing without bound."""

MAX_SIZE = 200
"""A subquery is merged into its reader while its conjuncts, and each of its columns, consist of no
more expressions than this; beyond, it stays a leaf, which keeps chains of sources and CTEs from
copying more and more."""

MAX_DEPTH = 120
"""Expressions and queries nested more deeply than this are not analysed.

Binding recurses over the text of a query with at most six calls per level, and Python allows a
thousand, some of which the caller has used. Chains of operators, UNIONs and CTEs do not count as
nesting."""


@dataclass(frozen=True, slots=True)
class Face:
    """The view of a source that its readers get.

    Attributes
    ----------
    block
        A Block whose leaves are `Given`: readers see through its filters, projections and joins
        only. None when there is nothing to see through.
    given
        The same relation as one leaf.
    names
        Names of the columns, or None when they are not known.
    types
        Types of the columns of all leaves of the block, where they are needed.
    collated
        A column of unknown type may be a text with a collation.
    is_ordered
        `names` have the order of the columns.
    """

    block: Block | None
    given: Given
    names: tuple[str, ...] | None
    types: Types | None = None
    collated: bool = False
    is_ordered: bool = True

    @property
    def ordered_names(self) -> tuple[str, ...] | None:
        """The names of the columns in their order, or None when that is not known."""
        return self.names if self.is_ordered else None


@dataclass(slots=True)
class Binding:
    """The binding of one source's query.

    Attributes
    ----------
    query
        Binds a query within a query: `binder.bind`. The modules that `binder` imports call it
        through this field.
    path
        Path of the file, for locations.
    upstream
        For each reference of the query, the face of the source that it names.
    reference
        The key in a table's `meta` that holds the number of its reference.
    calls
        Factory of expressions.
    problems
        Definite errors in the query.
    instances
        Unused instance numbers.
    types
        Types of the columns of all leaves.
    free
        Finds the instances that an expression or relation refers to.
    memberships
        Finds the columns computed by IN.
    only_given
        All leaves so far are known by their digests.
    windowed, limited
        The query has a window, or a LIMIT.
    computes_in
        A column of the query, or of an upstream that is not a table, may be computed by IN.
    inlines_lots
        An upstream that is not a table is nondeterministic.
    any_condition
        In WHERE and ON, a function that is not one of Spark's own counts as a function of one row,
        the only kind allowed there. This is enough to analyse the conditions beside it, but not to
        define the meaning of a query.
    depth
        Current nesting depth in the text.
    recursions
        The number of recursive CTEs in whose steps the query that is being bound lies.
    locate
        Returns the place of a part of the tree, for messages; None: no places are recorded.
    entered
        The part of the tree that is being bound.
    bounded
        The parameters of the query, each with the expression that it is compared with.
    origins
        For columns of upstreams, the columns that their values come from.
    """

    query: Callable[[Binding, Any, Around], Block]
    path: str
    upstream: Sequence[Face]
    reference: str
    inlines_lots: bool = False
    any_condition: bool = False
    locate: Callable[[Any], Location] | None = None
    entered: Any = None
    calls: Calls = field(default_factory=Calls)
    problems: list[Problem] = field(default_factory=list)
    instances: Iterator[int] = field(default_factory=lambda: count(1))
    types: Types = field(default_factory=Types)
    origins: dict[Expr, frozenset[ColumnRef]] = field(default_factory=dict)
    free: Free = field(default_factory=Free)
    memberships: Memberships = field(default_factory=Memberships)
    depth: int = 0
    recursions: int = 0
    bounded: list[tuple[Any, Expr]] = field(default_factory=list[tuple[Any, "Expr"]])
    only_given: bool = True
    windowed: bool = False
    limited: bool = False
    computes_in: bool = False

    def __post_init__(self) -> None:
        faces = self.upstream
        kinds = (kind for face in faces for kind in face.given.types if kind)
        self.types.collated |= any("collate" in kind for kind in kinds)
        self.types.collated |= any(face.collated for face in faces)
        self.computes_in = any(face.given.memberships for face in faces)

    def enter(self, node: Any) -> None:
        """Go one level down in the text; the caller lowers `depth` when it leaves.

        Raises
        ------
        Unanalysable
            The nesting is too deep.
        """
        self.depth += 1
        self.entered = node
        if self.depth > MAX_DEPTH:
            raise Unanalysable(f"because it is nested more than {MAX_DEPTH} levels deep")

    def place(self, node: Any) -> Location:
        """Return the location of the first token in `node` that has one."""
        return first_place(self.path, node.walk())

    def mark(self, node: Any) -> Location | None:
        """Return the place of a part of the tree, if places are recorded."""
        return self.locate(node) if self.locate is not None and node is not None else None

    def leaf(self, node: Node, columns: Iterable[Out]) -> Block:
        """Return a Block of one leaf that passes on all its columns."""
        columns = tuple(columns)
        instance = next(self.instances)
        self.only_given &= isinstance(node, Given)
        self.limited |= isinstance(node, Limit)
        self.types.leaves[instance] = tuple(o.type for o in columns)
        outs = [o.of(self.calls.ref(instance, i)) for i, o in enumerate(columns)]
        return Block(((instance, node),), (), tuple(outs))

    def copy_for_reuse(self, block: Block) -> Block:
        """Return a copy for one more use, whose own instances are used nowhere else.

        Parts that refer to none of them are shared; otherwise a chain of CTEs that each read the
        previous one twice would double in every step.
        """
        moved = {instance: next(self.instances) for instance, _ in block.leaves}
        for instance, new in moved.items():
            self.types.leaves[new] = self.types.leaves.get(instance, ())

        def shared(thing: Any) -> Any:
            if self.free.of(thing).isdisjoint(moved):
                return thing
            if isinstance(thing, Window):
                own_instances = {i for i, _ in thing.mapping}
                beyond = frozenset[int]().union(*map(self.free.of, parts(thing))) - own_instances
                if beyond.isdisjoint(moved):  # its rows are unchanged
                    mapping = tuple((i, moved.get(now, now)) for i, now in thing.mapping)
                    return replace(thing, mapping=mapping)
            return None

        rebuild = Rebuild(self.calls, instances=moved, replace=shared, node=shared)
        return self.with_origins(rebuild, rebuild.block(block))

    def is_large(self, block: Block, *, closed: bool = False) -> bool:
        """Whether copying a block costs more than merging it saves.

        Parameters
        ----------
        closed
            Whether parts that refer to nothing outside themselves are copied too, as for other
            sources, rather than shared.
        """
        return self._exceeds(block.conjuncts, closed) or any(
            self._exceeds((o.expr,), closed) for o in block.columns
        )

    def _exceeds(self, exprs: Iterable[Expr], closed: bool) -> bool:
        seen, n = set[int](), 0
        stack: list[object] = [*exprs]
        while stack:
            thing = stack.pop()
            if id(thing) not in seen:
                seen.add(id(thing))
                n += not isinstance(thing, Given)  # equal ones: one object or many
                if n > MAX_SIZE:
                    return True
                if closed or isinstance(thing, Call) or self.free.of(thing):
                    stack += parts(thing)
        return False

    def fresh(self, block: Block, types: Types | None = None) -> Block:
        """Return a copy whose instances, at every depth, are used nowhere else.

        All calls are created here, also unchanged ones: the block may come from another binding,
        where equal calls are one object or several, depending on what was remembered.
        """
        moved: dict[int, int] = {}

        def move(inner: Block) -> None:
            for instance, node in inner.leaves:
                if instance not in moved:
                    moved[instance] = next(self.instances)
                    # Instance numbers of another binding mean nothing here.
                    has_types = isinstance(node, Given | Generate)
                    kinds = node.types if has_types else ()
                    if types is not None:
                        kinds = types.leaves.get(instance, kinds)
                    self.types.leaves[moved[instance]] = kinds

        def ours(expr: Expr) -> Expr | None:
            if isinstance(expr, Call) and not expr.args:
                return self.calls.call(expr.op, (), expr.words)
            return None

        rebuild = Rebuild(self.calls, instances=moved, enter=move, replace=ours)
        return self.with_origins(rebuild, rebuild.block(block))

    def with_origins(self, rebuild: Rebuild, copy: Block) -> Block:
        """Record the origins of rewritten columns, and return the Block that has them."""
        for expr, origins in [*self.origins.items()]:
            if id(expr) in rebuild.done:
                self.origins[rebuild.expr(expr)] = origins
        return copy

    def of_face(self, face: Face) -> Block:
        """Return a Block of fresh instances for one use of another source."""
        assert face.names is not None
        if face.block is None:
            none = Call("none")
            columns = [
                Out(n, n, none, t) for n, t in zip(face.names, face.given.types, strict=True)
            ]
            return self.leaf(face.given, columns)
        return self.fresh(face.block, face.types)

    def is_volatile(self, *things: object) -> bool:
        """Whether anything in or below `things` may differ each time it is computed."""
        if self.calls.ops.isdisjoint(VOLATILE) and not self.inlines_lots:
            return False
        return any(
            t.volatile if isinstance(t, Given) else isinstance(t, Call) and t.op in VOLATILE
            for t in walk(*things)
        )
