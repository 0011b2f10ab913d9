"""Relational algebra: queries without names, aliases and spelling. Pure.

The central invariant: **a relation is a multiset of base tuples**. A base tuple of a `Block` is one
row from each of its leaves; its conjuncts decide which base tuples exist, and its columns are
functions of a base tuple. Filter, projection and inner join need no nodes of their own: they
flatten into Blocks, and so subqueries, CTEs and sources that are not persisted disappear by
substitution.

    Expr   Ref | Call | Subquery | Window
    Node   Given | Derived | Outer | Lateral | Aggregate | SetOperation | Recursive | Limit
           | Generate | Values | Opaque

A leaf of a Block is a Node with an instance number. A `Ref` names an instance and one of its
columns; a Ref to an instance that no enclosing Block binds is correlated. Expressions are
shared (`Calls`), so structurally equal ones are one object. Parts that messages name have a `place`
in their file, where `Binding.locate` is set; it is no part of the meaning.

The construction follows Abiteboul, Hull & Vianu's conjunctive queries extended by the nodes
above; the windows' snapshots and the instance labels (`fingerprint.py`) are our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.functions import COMMUTATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from persist_assets.core.errors import Location
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
        Everything that is not an expression: texts of literals, types, flags, names of fields.
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
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A function over the rows around one row.

    Attributes
    ----------
    function, partition, order
        Expressions over the instances of `rows`.
    rows
        The leaves and conjuncts at the point where the window is computed; later filters do not
        change it.
    mapping
        For each instance of `rows`, its instance in the enclosing Block.
    """

    function: Expr
    partition: tuple[Expr, ...]
    order: tuple[Sort, ...]
    frame: tuple[Expr | str, ...]
    rows: Block
    mapping: tuple[tuple[int, int], ...]
    place: Location | None = field(default=None, repr=False)


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
        The published name: an alias as written, else the name of the column it passes on.
    written
        Spark's own name for it where the block is read inline: the column's name in the case that
        the query uses. It differs from `name` in case only.
    type
        Spark's type where it is certain, else None.
    """

    name: str
    written: str
    expr: Expr
    type: str | None = None

    def of(self, expr: Expr) -> Out:
        """Return a column of the same name and type, computed by another expression."""
        return Out(self.name, self.written, expr, self.type)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Leaves, the conjuncts that hold for their combinations, and columns computed from them.

    Attributes
    ----------
    order
        The order of the rows, as far as the query requests one.
    """

    leaves: tuple[tuple[int, Node], ...] = ()
    conjuncts: tuple[Expr, ...] = ()
    columns: tuple[Out, ...] = ()
    order: tuple[Sort, ...] = ()
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A relation known by its digests: a raw table, or another source.

    Attributes
    ----------
    rows, columns, order
        Digests of the rows, of each column, and of the rows' order (or None).
    origins
        For each column, the columns of persisted sources and raw tables its value comes from.
    types
        Spark's types of the columns, None where not certain.
    volatile
        The relation is nondeterministic and not a table.
    growth
        How its rows follow from tables; None for a table, whose rows are its own.
    shape
        The outer join or the groups that it is, with leaves that are known by their digests; None
        if readers do not see it. It is no part of the meaning, as the digests have it.
    memberships
        Numbers of the columns computed by IN, if no table has them: see `memberships.py`.
    literals
        The columns that are literals, each with its number: see `named_literals.py`.
    """

    rows: str
    columns: tuple[str, ...]
    order: str | None = None
    origins: tuple[frozenset[ColumnRef], ...] = ()
    types: tuple[str | None, ...] = ()
    volatile: bool = False
    growth: Growth | None = None
    shape: Node | None = field(default=None, repr=False)
    memberships: frozenset[int] = frozenset()
    literals: tuple[tuple[int, Call], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """A Block that is not merged into its reader: it is nondeterministic, or large."""

    block: Block
    volatile: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """``left`` or ``full`` outer join. Columns: those of `left`, then those of `right`."""

    kind: str
    left: Block
    right: Block
    on: tuple[Expr, ...]
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Lateral:
    """Each row of `left` beside the rows of `right`, which refers to leaves of `left`.

    Columns: those of `left`, then those of `right`.

    Attributes
    ----------
    kind
        ``inner``, or ``left``, where rows of `left` remain for which there are none of `right`.
    """

    kind: str
    left: Block
    right: Block
    on: tuple[Expr, ...]
    place: Location | None = field(default=None, repr=False)


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
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SetOperation:
    """``union all``, or ``except``/``intersect`` with or without ``all``."""

    kind: str
    branches: tuple[Block, ...]
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Recursive:
    """The rows of `start`, those that `step` computes from them, from these, and so on.

    Attributes
    ----------
    step
        Its own rows are a `Given` in it, whose digests say in how many others it lies.
    words
        The limit of the number of steps, if there is one.
    """

    start: Block
    step: Block
    words: tuple[str, ...] = ()
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """Some rows of a Block, the first in its order.

    Attributes
    ----------
    ordered
        The query itself states the order; otherwise the choice of rows is nondeterministic.
    """

    block: Block
    count: Expr | None
    offset: Expr | None
    ordered: bool
    place: Location | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """Rows generated for each combination of the leaves its call refers to (explode, …)."""

    call: Call
    outer: bool
    types: tuple[str | None, ...]
    place: Location | None = field(default=None, repr=False)

    @property
    def n_columns(self) -> int:
        """Number of generated columns."""
        return len(self.types)


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Rows of expressions (VALUES)."""

    rows: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A query that cannot be analysed: its text, and all columns of everything it reads."""

    text: tuple[str, ...]
    reads: tuple[Given, ...]
    n_columns: int


Node = (
    Given
    | Derived
    | Outer
    | Lateral
    | Aggregate
    | SetOperation
    | Recursive
    | Limit
    | Generate
    | Values
    | Opaque
)


# ----------------------------------------------------------------------------------- construction


@dataclass(slots=True)
class Calls:
    """Factory of expressions in canonical form; equal ones are the same object.

    Only equivalences that hold exactly in Spark, NULL, NaN and types included, are applied.

    Attributes
    ----------
    ops
        The operators and functions of all calls created so far.
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
        """Return the one canonical Call of this shape."""
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
            case "not", (Call(op=("and" | "or") as joined, args=operands),):
                negated = [self.call("not", (operand,)) for operand in operands]
                return self.call("or" if joined == "and" else "and", negated)
            case (("and" | "or"), _):
                args = tuple(dict.fromkeys(_flat(op, args)))
                if len(args) == 1 and isinstance(args[0], Call):
                    return args[0]
            case _:
                pass
        if op == "case" and words and isinstance(args[-1], Call) and args[-1].op == "null":
            args, words = args[:-1], ()
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
    """Return the conjuncts of a condition that can be false."""
    every = expr.args if isinstance(expr, Call) and expr.op == "and" else (expr,)
    return tuple(e for e in every if not _is_true(e))


def _is_true(expr: Expr) -> bool:
    """Whether a condition is TRUE, or compares a literal with itself, as in ``1 = 1``."""
    match expr:
        case Call("boolean", (), ("true",)):
            return True
        case Call("=", (Call("number" | "string") as one, other)):
            return one is other
        case _:
            return False


# -------------------------------------------------------------------------------------- traversal


class Rebuild:
    """Rewriter of expressions and everything below them; it shares the rewritten parts.

    Unchanged parts stay the same objects.

    Parameters
    ----------
    calls
        Factory of the new expressions.
    replace
        Called for every expression before its parts. Its return value replaces the expression;
        None: the parts are rewritten.
    instances
        New numbers of instances.
    enter
        Called for every Block before its parts.
    node
        Called for every node below. Its return value replaces the node; None: the parts are
        rewritten.
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
        self.keep_alive: list[object] = []  # keeps alive the objects whose ids are keys of `done`

    def instance(self, instance: int) -> int:
        """Return the new number of an instance."""
        return self.instances.get(instance, instance)

    def expr(self, expr: Expr) -> Expr:
        """Return the rewritten expression."""
        return self._rewritten(expr)

    def exprs(self, exprs: Iterable[Expr]) -> tuple[Expr, ...]:
        """Return the rewritten expressions."""
        return tuple(self._rewritten(e) for e in exprs)

    def sorts(self, order: Iterable[Sort]) -> tuple[Sort, ...]:
        """Return the rewritten sort keys."""
        return tuple(self._rewritten(s) for s in order)

    def block(self, block: Block) -> Block:
        """Return the rewritten block."""
        return self._rewritten(block)

    def node(self, node: Node) -> Node:
        """Return the rewritten node."""
        return self._rewritten(node)

    def _rewritten(self, start: Any) -> Any:
        # Not recursive: the algebra is as deep as its chain of sources and CTEs is long.
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
                rewritten = self._rebuilt(thing)
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
                rewritten = self._rebuilt(thing)
            done[id(thing)] = rewritten
            self.keep_alive.append(thing)
        return done[id(start)]

    def _rebuilt(self, thing: object) -> object:
        """Return a copy of something with its rewritten parts."""
        done = self.done
        match thing:  # frequent cases first
            case Call(op, args, words):
                new = tuple([done[id(a)] for a in args])
                return thing if new == args else self.calls.call(op, new, words)
            case Given() | Opaque():
                return thing
            case _:
                return self._rebuilt_relation(thing)

    def _rebuilt_relation(self, thing: object) -> object:
        done = self.done
        if not self._renames(thing) and all(done[id(p)] is p for p in parts(thing)):
            return thing  # a shared part stays one object

        def of(part: object) -> Any:
            return done[id(part)]

        match thing:
            case Subquery(kind, block, args):
                return Subquery(kind, of(block), tuple(map(of, args)), thing.place)
            case Window(function, partition, order, frame, rows, mapping):
                return Window(
                    of(function),
                    tuple(map(of, partition)),
                    tuple(map(of, order)),
                    tuple(f if isinstance(f, str) else of(f) for f in frame),
                    of(rows),
                    tuple((self.instance(own), self.instance(now)) for own, now in mapping),
                    thing.place,
                )
            case Sort(by, descending, nulls_first):
                return Sort(of(by), descending, nulls_first)
            case Block(leaves, conditions, columns, order):
                return Block(
                    tuple((self.instance(i), of(n)) for i, n in leaves),
                    tuple(map(of, conditions)),
                    tuple([o.of(done[id(o.expr)]) for o in columns]),
                    tuple(map(of, order)),
                    thing.place,
                )
            case Derived(block, volatile):
                return Derived(of(block), volatile)
            case Outer(kind, left, right, on):
                return Outer(kind, of(left), of(right), tuple(map(of, on)), thing.place)
            case Lateral(kind, left, right, on):
                return Lateral(kind, of(left), of(right), tuple(map(of, on)), thing.place)
            case Recursive(start, step, words):
                return Recursive(of(start), of(step), words, thing.place)
            case Aggregate(rows, keys, aggregates, sets):
                exprs = tuple(map(of, keys)), tuple(map(of, aggregates))
                return Aggregate(of(rows), *exprs, sets, thing.place)
            case SetOperation(kind, branches):
                return SetOperation(kind, tuple(map(of, branches)), thing.place)
            case Limit(block, n, skipped, ordered):
                numbers = (of(n) if n else None, of(skipped) if skipped else None)
                return Limit(of(block), *numbers, ordered, thing.place)
            case Generate(call, outer, types):
                return Generate(of(call), outer, types, thing.place)
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


def columns_of(expr: Expr) -> set[tuple[int, int]]:
    """Return the instances and numbers of the columns that an expression reads."""
    return {(e.instance, e.column) for e in walk(expr) if isinstance(e, Ref)}


def bare_value(block: Block) -> Expr | None:
    """Return the expression of ``(SELECT expression)``, without FROM and WHERE, or None."""
    if block.leaves or block.conjuncts or len(block.columns) != 1:
        return None
    value = block.columns[0].expr
    return None if any(isinstance(e, Window) for e in walk(value)) else value


def walk(*things: object) -> Iterator[object]:
    """Yield blocks, nodes and expressions and everything below them, each once."""
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
    """Yield a thing and everything below it, each after its parts and together with them.

    Not recursive: the algebra is as deep as its chain of sources and CTEs is long.

    Parameters
    ----------
    seen
        Ids of things to skip; the caller adds every yielded thing.
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
    """Return the expressions, nodes and blocks directly below an expression, node or block."""
    match thing:  # frequent cases first
        case Call(_, args, _):
            return [*args]
        case Ref() | Given():
            return []
        case Subquery(_, block, args):
            return [block, *args]
        case Window(function, partition, order, frame, rows, _):
            # The rows come first: they bind the instances that the others refer to.
            bounds = [f for f in frame if not isinstance(f, str)]
            return [rows, function, *partition, *order, *bounds]
        case Sort(by, _, _):
            return [by]
        case Block(leaves, conditions, columns, order):
            return [*[n for _, n in leaves], *conditions, *[o.expr for o in columns], *order]
        case Derived(block, _):
            return [block]
        case Outer(_, left, right, on) | Lateral(_, left, right, on):
            return [left, right, *on]
        case Recursive(start, step, _):
            return [start, step]
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
