"""Relational algebra: what a query is, with names, aliases and spelling gone. Pure.

The invariant everything rests on: **a relation is a multiset of base tuples**. A base tuple of
a `Block` is one row from each of its leaves; its conjuncts decide which base tuples there are,
its columns are functions of a base tuple. Filter, projection and inner join need no nodes of
their own: they flatten into Blocks, and so subqueries, CTEs and sources that are not persisted
disappear by substitution.

    Expr   Ref | Call | Subquery | Window
    Node   Given | Derived | Outer | Aggregate | SetOperation | Limit | Generate | Values | Opaque

A leaf of a Block is a Node with an instance number. A `Ref` names an instance and one of its
columns; a Ref to an instance that no enclosing Block binds is correlated. Expressions are
shared (`Calls`), so structurally equal ones are one object.

The construction follows Abiteboul, Hull & Vianu's conjunctive queries extended by the nodes
above; the windows' snapshots and the instance labels (`fingerprint.py`) are our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.functions import COMMUTATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from persist_assets.core.model.columns import ColumnRef, Growth

# ------------------------------------------------------------------------------------ expressions


@dataclass(frozen=True, slots=True, eq=False)
class Ref:
    """Column number `column` of leaf `instance`."""

    instance: int
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An operator or function applied to expressions.

    Attributes
    ----------
    op
        Lower case; literals are ``number`` and ``string`` with their text in `words`.
    words
        What is not an expression: texts of literals, types, flags, names of fields.
    """

    op: str
    args: tuple[Expr, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Subquery:
    """A query used as a value (``scalar``), as a test (``exists``), or in ``in`` for `args`."""

    kind: str
    block: Block
    args: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A function over the rows around one row.

    Attributes
    ----------
    function, partition, order
        In terms of the instances of `rows`.
    rows
        The leaves and conjuncts at the point where the window is computed: filters that come
        later do not change it.
    mapping
        For each instance of `rows`, the instance of the enclosing Block that it is now.
    """

    function: Expr
    partition: tuple[Expr, ...]
    order: tuple[Sort, ...]
    frame: tuple[Expr | str, ...]
    rows: Block
    mapping: tuple[tuple[int, int], ...]


Expr = Ref | Call | Subquery | Window


@dataclass(frozen=True, slots=True, eq=False)
class Sort:
    """One key of an order."""

    by: Expr
    descending: bool
    nulls_first: bool


# -------------------------------------------------------------------------------------- relations


@dataclass(frozen=True, slots=True, eq=False)
class Out:
    """An output column of a Block.

    Attributes
    ----------
    name
        As it is published: an alias as written, else the name of the column it passes on.
    written
        As Spark itself names it where the block is read inline: a column's name in the case in
        which the query spells it. Differs from `name` in case only.
    type
        Spark's type where it is certain, else None.
    """

    name: str
    written: str
    expr: Expr
    type: str | None = None

    def of(self, expr: Expr) -> Out:
        """Return the column of the same name and type that is computed as `expr` says."""
        return Out(self.name, self.written, expr, self.type)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Leaves, the conjuncts that hold for their combinations, and columns computed from them.

    Attributes
    ----------
    order
        Of the rows, as far as the query asks for one.
    """

    leaves: tuple[tuple[int, Node], ...] = ()
    conjuncts: tuple[Expr, ...] = ()
    columns: tuple[Out, ...] = ()
    order: tuple[Sort, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A relation known by its digests: a raw table, or another source.

    Attributes
    ----------
    rows, columns, order
        Digests: of which rows there are, of each column, of their order (or None).
    origins
        For each column, the columns of persisted sources and raw tables its value comes from.
    types
        Spark's types of the columns, None where not certain.
    volatile
        It stands for what draws lots and is no table.
    growth
        How its rows follow; None of a table, whose own rows they are.
    """

    rows: str
    columns: tuple[str, ...]
    order: str | None = None
    origins: tuple[frozenset[ColumnRef], ...] = ()
    types: tuple[str | None, ...] = ()
    volatile: bool = False
    growth: Growth | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """A Block that is not merged into the one that reads it: it draws lots, or is large."""

    block: Block
    volatile: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """``left`` or ``full`` outer join. Columns: those of `left`, then those of `right`."""

    kind: str
    left: Block
    right: Block
    on: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Groups of the rows of `rows`. Columns: the keys, then the aggregates.

    Attributes
    ----------
    sets
        Grouping sets as sets of key numbers, or None for plain grouping. No keys and no sets:
        one group, even of no rows.
    """

    rows: Block
    keys: tuple[Expr, ...]
    aggregates: tuple[Expr, ...]
    sets: tuple[frozenset[int], ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SetOperation:
    """``union all``, or ``except``/``intersect`` with or without ``all``."""

    kind: str
    branches: tuple[Block, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """Some rows of a Block, the first in its order.

    Attributes
    ----------
    ordered
        The query itself says in which order; else it draws lots.
    """

    block: Block
    count: Expr | None
    offset: Expr | None
    ordered: bool


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """Rows made from each combination of the leaves its call refers to (explode, …)."""

    call: Call
    outer: bool
    types: tuple[str | None, ...]

    @property
    def n_columns(self) -> int:
        """How many columns it makes."""
        return len(self.types)


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Rows written out."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """What cannot be analysed: its text, and everything of everything it reads."""

    text: tuple[str, ...]
    reads: tuple[Given, ...]
    n_columns: int


Node = Given | Derived | Outer | Aggregate | SetOperation | Limit | Generate | Values | Opaque


# ----------------------------------------------------------------------------------- construction


@dataclass(slots=True)
class Calls:
    """Makes expressions in canonical form; equal ones are the same object.

    Only equivalences that hold exactly in Spark, NULL, NaN and types included, are applied.

    Attributes
    ----------
    ops
        The operators and functions of all calls that were made.
    """

    ops: set[str] = field(default_factory=set[str])
    _refs: dict[tuple[int, int], Ref] = field(default_factory=dict[tuple[int, int], Ref])
    _calls: dict[tuple[object, ...], Call] = field(default_factory=dict[tuple[object, ...], "Call"])

    def ref(self, instance: int, column: int) -> Ref:
        """Return the one Ref for a column of an instance."""
        key = (instance, column)
        ref = self._refs.get(key)
        if ref is None:
            ref = self._refs[key] = Ref(instance, column)
        return ref

    def call(self, op: str, args: Iterable[Expr] = (), words: Iterable[str] = ()) -> Call:
        """Return the one Call of this shape, canonical."""
        args, words = tuple(args), tuple(words)
        match op, args:
            case ">", (a, b):
                op, args = "<", (b, a)
            case ">=", (a, b):
                op, args = "<=", (b, a)
            case "not", (Call(op="not", args=(inner,)),) if isinstance(inner, Call) and _is_test(
                inner
            ):
                return inner
            case "not", (Call(op=("=" | "<" | "<=") as compared, args=(a, b)),):
                op = {"=": "<>", "<": "<=", "<=": "<"}[compared]
                args = (a, b) if compared == "=" else (b, a)
            case (("and" | "or"), _):
                args = tuple(dict.fromkeys(_flat(op, args)))
                if len(args) == 1 and isinstance(args[0], Call):
                    return args[0]
            case "if", (condition, then, otherwise):
                op, args, words = "case", (condition, then, otherwise), ("else",)
            case _:
                pass
        key = (op, args, words)
        call = self._calls.get(key)
        if call is None and op in COMMUTATIVE and len(args) == 2:
            call = self._calls.get((op, args[::-1], words))
        if call is None:
            call = self._calls[key] = Call(op, args, words)
            self.ops.add(op)
        return call


def _is_test(expr: Call) -> bool:
    return expr.op in {"=", "<>", "<", "<=", "<=>", "and", "or", "not", "is null", "in"}


def _flat(op: str, args: Iterable[Expr]) -> Iterator[Expr]:
    for arg in args:
        if isinstance(arg, Call) and arg.op == op:
            yield from arg.args
        else:
            yield arg


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """Return the parts of a condition that all have to hold."""
    if isinstance(expr, Call) and expr.op == "and":
        return expr.args
    if isinstance(expr, Call) and expr.op == "boolean" and expr.words == ("true",):
        return ()
    return (expr,)


# -------------------------------------------------------------------------------------- traversal


class Rebuild:
    """Rewrites expressions and all that is below them, sharing what it made.

    What stays as it is stays the same object.

    Parameters
    ----------
    calls
        Where new expressions are made.
    replace
        Called for every expression before its parts are looked at; what it returns stands in
        its place, None means go on below.
    instances
        What an instance is called afterwards.
    enter
        Called for every Block before its parts are looked at.
    node
        Called for every node below; what it returns stands in its place, None: go on below.
    """

    def __init__(
        self,
        calls: Calls,
        *,
        replace: Callable[[Expr], Expr | None] | None = None,
        instances: Mapping[int, int] | None = None,
        node: Callable[[Node], Node | None] | None = None,
        enter: Callable[[Block], None] | None = None,
    ) -> None:
        self.calls, self.replace, self.replace_node, self.enter = calls, replace, node, enter
        self.instances = {} if instances is None else instances
        self.done: dict[int, Any] = {}
        self.kept: list[object] = []  # what `done` knows by id must not be freed

    def instance(self, instance: int) -> int:
        """Return what `instance` is called afterwards."""
        return self.instances.get(instance, instance)

    def expr(self, expr: Expr) -> Expr:
        """Return `expr` rewritten."""
        return self._rewritten(expr)

    def exprs(self, exprs: Iterable[Expr]) -> tuple[Expr, ...]:
        """Return expressions rewritten."""
        return tuple(self._rewritten(e) for e in exprs)

    def sorts(self, order: Iterable[Sort]) -> tuple[Sort, ...]:
        """Return an order rewritten."""
        return tuple(self._rewritten(s) for s in order)

    def block(self, block: Block) -> Block:
        """Return `block` rewritten."""
        return self._rewritten(block)

    def node(self, node: Node) -> Node:
        """Return `node` rewritten."""
        return self._rewritten(node)

    def _rewritten(self, start: Any) -> Any:
        # Not recursive: algebra is as deep as its chain of sources and CTEs is long.
        done = self.done
        if id(start) in done:
            return done[id(start)]
        stack: list[tuple[object, bool]] = [(start, False)]
        while stack:
            thing, parts_done = stack.pop()
            if id(thing) in done:
                continue
            rewritten: object = None
            if parts_done:
                rewritten = self._made(thing)
            elif self.replace is not None and isinstance(thing, Expr):
                rewritten = self.replace(thing)
            elif self.replace_node is not None and isinstance(thing, Node):
                rewritten = self.replace_node(thing)
            if rewritten is None and isinstance(thing, Ref):
                rewritten = self.calls.ref(self.instance(thing.instance), thing.column)
            elif rewritten is None:
                if self.enter is not None and isinstance(thing, Block):
                    self.enter(thing)
                below = [(p, False) for p in parts(thing) if id(p) not in done]
                if below:
                    stack.append((thing, True))
                    below.reverse()
                    stack += below
                    continue
                rewritten = self._made(thing)
            done[id(thing)] = rewritten
            self.kept.append(thing)
        return done[id(start)]

    def _made(self, thing: object) -> object:
        """Return something made anew of its parts, which have been rewritten."""
        done = self.done
        match thing:  # the frequent first
            case Call(op, args, words):
                new = tuple([done[id(a)] for a in args])
                return thing if new == args else self.calls.call(op, new, words)
            case Given() | Opaque():
                return thing
            case _:
                return self._relation_made(thing)

    def _relation_made(self, thing: object) -> object:
        done = self.done
        if not self._renames(thing) and all(done[id(p)] is p for p in parts(thing)):
            return thing  # what many read stays one object

        def of(part: object) -> Any:
            return done[id(part)]

        match thing:
            case Subquery(kind, block, args):
                return Subquery(kind, of(block), tuple(map(of, args)))
            case Window(function, partition, order, frame, rows, mapping):
                return Window(
                    of(function),
                    tuple(map(of, partition)),
                    tuple(map(of, order)),
                    tuple(f if isinstance(f, str) else of(f) for f in frame),
                    of(rows),
                    tuple((self.instance(own), self.instance(now)) for own, now in mapping),
                )
            case Sort(by, descending, nulls_first):
                return Sort(of(by), descending, nulls_first)
            case Block(leaves, conditions, columns, order):
                return Block(
                    tuple((self.instance(i), of(n)) for i, n in leaves),
                    tuple(map(of, conditions)),
                    tuple([o.of(done[id(o.expr)]) for o in columns]),
                    tuple(map(of, order)),
                )
            case Derived(block, volatile):
                return Derived(of(block), volatile)
            case Outer(kind, left, right, on):
                return Outer(kind, of(left), of(right), tuple(map(of, on)))
            case Aggregate(rows, keys, aggregates, sets):
                return Aggregate(of(rows), tuple(map(of, keys)), tuple(map(of, aggregates)), sets)
            case SetOperation(kind, branches):
                return SetOperation(kind, tuple(map(of, branches)))
            case Limit(block, n, skipped, ordered):
                numbers = (of(n) if n else None, of(skipped) if skipped else None)
                return Limit(of(block), *numbers, ordered)
            case Generate(call, outer, types):
                return Generate(of(call), outer, types)
            case Values(rows):
                return Values(tuple(tuple(map(of, row)) for row in rows))
            case _:
                raise AssertionError(thing)

    def _renames(self, thing: object) -> bool:
        match thing:
            case Block(leaves, _, _, _):
                return any(self.instance(i) != i for i, _ in leaves)
            case Window(mapping=mapping):
                return any(self.instance(i) != i for pair in mapping for i in pair)
            case _:
                return False


class Free:
    """Knows which instances things refer to and do not bind; remembers all it was asked."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[int]] = {}
        self._alone: dict[int, frozenset[int]] = {}  # what is free in any column of an instance
        self._kept: list[object] = []  # what is known by id must not be freed

    def of(self, thing: object) -> frozenset[int]:
        """Return the instances that something refers to but does not bind."""
        instances = self._known.get(id(thing))
        if instances is None:
            self.learn(thing)
            instances = self._known[id(thing)]
        return instances

    def learn(self, thing: object) -> list[object]:
        """Learn what is free in a thing and in all that is below it.

        Returns what is no plain expression and was not known before, innermost first.
        """
        known, new_things = self._known, list[object]()
        for this, below in innermost_first(thing, known):
            instances = _union([known[id(p)] for p in below])
            if isinstance(this, Ref):
                instances = self._alone.setdefault(this.instance, frozenset((this.instance,)))
            elif not isinstance(this, Call):
                instances = _unbound(this, instances)
                new_things.append(this)
            known[id(this)] = instances
            self._kept.append(this)
        return new_things


_NOTHING: frozenset[int] = frozenset()


def _union(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    """Return the union of sets, most of which are one and the same object."""
    union = _NOTHING
    for one in sets:
        if one is not union and one:
            union = union | one if union else one
    return union


def _unbound(thing: object, instances: frozenset[int]) -> frozenset[int]:
    """Return what `thing` refers to and does not bind, if its parts refer to `instances`."""
    match thing:
        case Block(leaves, _, _, _):
            return instances - {i for i, _ in leaves}
        case Window(mapping=mapping):
            return (instances - {inner for inner, _ in mapping}) | {now for _, now in mapping}
        case Aggregate(rows=rows):
            return instances - {i for i, _ in rows.leaves}
        case Outer(_, left, right, _):
            return instances - {i for side in (left, right) for i, _ in side.leaves}
        case _:
            return instances


def walk(*things: object) -> Iterator[object]:
    """Yield blocks, nodes and expressions with all that is in and below them, each once."""
    seen: set[int] = set()
    stack = [*things]
    while stack:
        thing = stack.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            stack += parts(thing)


def innermost_first(
    thing: object, seen: Container[int]
) -> Iterator[tuple[object, Sequence[object]]]:
    """Yield a thing and all that is below it, each after its parts and together with them.

    Not recursive: algebra is as deep as its chain of sources and CTEs is long.

    Parameters
    ----------
    seen
        Things, by their ids, that are passed over; what is yielded is to be added to it.
    """
    stack: list[tuple[object, list[object] | None]] = [(thing, None)]
    while stack:
        this, below = stack.pop()
        if id(this) in seen:
            continue
        if below is None:
            below = parts(this)
            missing = [(p, None) for p in below if id(p) not in seen]
            if missing:
                stack.append((this, below))
                stack += missing
                continue
        yield this, below


def parts(thing: object) -> list[object]:
    """Return the expressions, nodes and blocks right below an expression, node or block."""
    match thing:  # the frequent first
        case Call(_, args, _):
            return [*args]
        case Ref() | Given():
            return []
        case Subquery(_, block, args):
            return [block, *args]
        case Window(function, partition, order, frame, rows, _):
            # The rows first: they bind what the others refer to.
            bounds = [f for f in frame if not isinstance(f, str)]
            return [rows, function, *partition, *order, *bounds]
        case Sort(by, _, _):
            return [by]
        case Block(leaves, conditions, columns, order):
            return [*[n for _, n in leaves], *conditions, *[o.expr for o in columns], *order]
        case Derived(block, _):
            return [block]
        case Outer(_, left, right, on):
            return [left, right, *on]
        case Aggregate(rows, keys, aggregates, _):
            return [rows, *keys, *aggregates]
        case SetOperation(_, branches):
            return [*branches]
        case Limit(block, count, offset, _):
            return [block, *(e for e in (count, offset) if e)]
        case Generate(call, _, _):
            return [call]
        case Values(rows):
            return [e for row in rows for e in row]
        case _:
            return []
