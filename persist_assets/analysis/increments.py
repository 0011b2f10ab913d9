"""Growth of a query's rows with the tables it reads: a fold over the algebra. Pure.

It proves, for a query Q over tables L, M, …, when only part of Q has to be computed again:

- **sums**: sets S of tables such that the rows of Q are the previous ones plus those of Q over the
  rows *added* to the tables of S, if all other tables are unchanged (Q is additive in S);
- **windows**: for a column t of Q, columns of tables such that the rows of Q with t in any set W
  are those of Q over the rows of these tables whose columns are in W too. Between the column of a
  table and t there may be monotone steps, such as truncating a time to its day. A table without
  such a column is *loose*: it must be unchanged.

Tables are persisted sources and raw tables; sources in between are dissolved. The invariant:
nothing is claimed without proof; otherwise everything is computed again.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Expr,
    Given,
    Lateral,
    Node,
    Opaque,
    Outer,
    Ref,
    SetOperation,
    Subquery,
    Window,
    innermost_first,
    walk,
)
from persist_assets.core.model.columns import Growth, MonotoneStep, Trace, Windows
from persist_assets.core.time_values import DATE_UNITS, TIMES, UNIT_DAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.types import Types
    from persist_assets.core.model.queries import SourceID

Form = tuple[Ref, tuple[MonotoneStep, ...]]
"""A column of a leaf, and the monotone steps from it to an expression."""

_MAX_DEPTH = 60
_MOST_SUMS = 16
"""At most so many sets of tables are considered; the others are not claimed."""

_TO_DAY = MonotoneStep("cast", "date", 1)
_NOTHING: frozenset[str] = frozenset()


def _step(call: Call, types: Types) -> tuple[Expr, MonotoneStep] | None:
    """Return the operand of a call that is monotone in it, and the monotone function."""
    match call:
        case Call("cast", (arg,), (("date" | "timestamp" | "timestamp_ntz") as kind,)):
            step = MonotoneStep("cast", kind, 1)
        case Call("to_date", (arg,), ()):
            step = MonotoneStep("cast", "date", 1)
        case Call("date_trunc", (Call("string", (), (unit,)), arg)) if unit.lower() in UNIT_DAYS:
            step = MonotoneStep("date_trunc", unit.lower(), UNIT_DAYS[unit.lower()])
        case Call("trunc", (arg, Call("string", (), (unit,)))) if unit.lower() in DATE_UNITS:
            step = MonotoneStep("trunc", unit.lower(), UNIT_DAYS[unit.lower()])
        case Call("year", (arg,)):
            step = MonotoneStep("year", "", -1)
        case _:
            return None
    return (arg, step) if types.of(arg) in TIMES else None


class Increments:
    """Finder of growth in a query; it remembers its findings.

    Parameters
    ----------
    types
        Types of the query's expressions.
    followed
        Whether growth is needed; otherwise nothing is computed.
    """

    def __init__(self, types: Types, *, followed: bool = True) -> None:
        self._types, self._followed = types, followed
        self._reads: dict[int, frozenset[SourceID]] = {}
        self._sums: dict[int, tuple[frozenset[SourceID], ...]] = {}
        self._special: dict[int, tuple[Subquery | Window, ...]] = {}
        self._node_windows: dict[tuple[int, int], Windows] = {}
        self._depths: dict[int, int] = {}
        self._keep_alive: list[object] = []  # keeps alive the objects whose ids are keys

    def growth(self, block: Block) -> Growth | None:
        """Return the growth of a Block's rows, and of each of its columns."""
        if not self._followed:
            return None
        if self._is_deep(block):
            return self.nothing(block)
        columns = tuple(self._column(block, o.expr) for o in block.columns)
        return Growth(self._read_by(block), self._block_sums(block), columns)

    def nothing(self, block: Block) -> Growth | None:
        """Return a growth that only lists the tables that a Block reads."""
        if not self._followed:
            return None
        return unknown(self._read_by(block), len(block.columns))

    def of_node(self, node: Node, n_columns: int) -> Growth | None:
        """Return the growth of a node."""
        if not self._followed:
            return None
        if self._is_deep(node):
            return unknown(self._node_reads(node), n_columns)
        columns = tuple(self._windows(node, k) for k in range(n_columns))
        return Growth(self._node_reads(node), self._node_sums(node), columns)

    def _is_deep(self, thing: object) -> bool:
        """Whether the nesting is too deep for any claim, because this module recurses."""
        for this, below in innermost_first(thing, self._depths):
            depth = max((self._depths[id(p)] for p in below), default=0)
            nested = not isinstance(this, Call | Ref)
            self._depths[id(this)] = depth + nested
            self._keep_alive.append(this)
        return self._depths[id(thing)] > _MAX_DEPTH

    # -------------------------------------------------------------------------------------- reads

    def _node_reads(self, node: Node) -> frozenset[SourceID]:
        reads = self._reads.get(id(node))
        if reads is None:
            reads = self._reads[id(node)] = self._read_by(node)
            self._keep_alive.append(node)
        return reads

    def _read_by(self, *things: object) -> frozenset[SourceID]:
        reads: list[frozenset[SourceID]] = []
        for thing in walk(*things):
            if isinstance(thing, Given):
                reads.append(given_growth(thing).reads)
            elif isinstance(thing, Opaque):
                reads += (given_growth(g).reads for g in thing.reads)
        return _NOTHING.union(*reads)

    def _specials(self, block: Block) -> tuple[Subquery | Window, ...]:
        """Return the subqueries and windows of a Block: they depend on other rows too."""
        specials = self._special.get(id(block))
        if specials is None:
            specials = _specials_in((*block.conjuncts, *(o.expr for o in block.columns)))
            self._special[id(block)] = specials
            self._keep_alive.append(block)
        return specials

    # --------------------------------------------------------------------------------------- sums

    def _block_sums(self, block: Block) -> tuple[frozenset[SourceID], ...]:
        beside = self._read_by(*self._specials(block))
        sums: dict[frozenset[SourceID], None] = {}
        for instance, node in block.leaves:
            others = [n for i, n in block.leaves if i != instance]
            rest = beside.union(*map(self._node_reads, others))
            for one in self._node_sums(node):
                if one.isdisjoint(rest):
                    sums[one] = None
        return tuple(sums)[:_MOST_SUMS]

    def _node_sums(self, node: Node) -> tuple[frozenset[SourceID], ...]:
        sums = self._sums.get(id(node))
        if sums is None:
            sums = self._sums[id(node)] = self._summed(node)
            self._keep_alive.append(node)
        return sums

    def _summed(self, node: Node) -> tuple[frozenset[SourceID], ...]:
        match node:
            case Given():
                return given_growth(node).sums
            case Derived(block, False):
                return self._block_sums(block)
            case Outer("left", left, right, on) | Lateral(_, left, right, on):
                rest = self._read_by(right, *on)
                return tuple(s for s in self._block_sums(left) if s.isdisjoint(rest))
            case SetOperation("union all", branches):
                every = [self._block_sums(b) for b in branches]
                reads = [self._read_by(b) for b in branches]
                sums: dict[frozenset[SourceID], None] = {}
                for chosen in product(*every):
                    whole = _NOTHING.union(*chosen)
                    if all(
                        whole & r == branch_sum for r, branch_sum in zip(reads, chosen, strict=True)
                    ):
                        sums[whole] = None
                    if len(sums) == _MOST_SUMS:
                        break
                return tuple(sums)
            case _:
                return ()

    # ------------------------------------------------------------------------------------ windows

    def _form(self, expr: Expr) -> Form | None:
        """Return the leaf column that an expression is a monotone function of."""
        steps: list[MonotoneStep] = []
        while isinstance(expr, Call):
            step = _step(expr, self._types)
            if step is None:
                return None
            expr, monotone_step = step
            steps.append(monotone_step)
        if not isinstance(expr, Ref) or "collate" in (self._types.of(expr) or ""):
            return None  # equal texts of a collation may differ
        return expr, tuple(reversed(steps))

    def _equal(self, start: Iterable[Form], conjuncts: Iterable[Expr]) -> set[Form]:
        """Return the forms that equal one of `start` wherever `conjuncts` hold."""
        pairs: list[tuple[Form, Form]] = []
        for test in conjuncts:
            match test:
                case Call("=", (a, b)) if self._types.of(a) and self._types.of(a) == (
                    self._types.of(b)
                ):
                    one, other = self._form(a), self._form(b)
                    if one and other:
                        pairs += ((one, other), (other, one))
                case _:
                    pass
        forms, todo = set[Form](), [*start]
        while todo:
            ref, steps = form = todo.pop()
            if form in forms:
                continue
            forms.add(form)
            for (left, first), (right, then) in pairs:
                if left is ref and steps[: len(first)] == first:
                    todo.append((right, (*then, *steps[len(first) :])))
        return forms

    def _column(self, block: Block, expr: Expr) -> Windows:
        """Return the windows of the rows of a Block in which an expression has a value of W."""
        form = self._form(expr)
        forms = self._equal([form] if form else (), block.conjuncts)
        return self._covered(block, forms)

    def _covered(self, block: Block, forms: set[Form]) -> Windows:
        traces, loose = set[Trace](), set[str]()
        traced: dict[int, tuple[int, tuple[MonotoneStep, ...]]] = {}
        for instance, node in block.leaves:
            leaf_forms = [(ref.column, steps) for ref, steps in forms if ref.instance == instance]
            if not leaf_forms:
                loose |= self._node_reads(node)
                continue
            # All of them hold; the one with the fewest loose tables is the strongest.
            candidates = [(self._windows(node, c), c, steps) for c, steps in sorted(leaf_forms)]
            windows, column, steps = min(candidates, key=lambda one: len(one[0].loose))
            traced[instance] = column, steps
            traces |= {Trace(t.column, (*t.steps, *steps)) for t in windows.traces}
            loose |= windows.loose
        for thing in self._specials(block):
            if isinstance(thing, Subquery) or not self._within(thing, traced):
                loose |= self._read_by(thing)
        return Windows(tuple(sorted(traces)), frozenset(loose))

    # --------------------------------------------------------------------------------- parameters

    def keeps(self, block: Block, growth: Growth) -> bool:
        """Whether conditions by parameters keep all rows of windows of the one column of `growth`.

        This holds if they compare expressions equal to that column, or to its day, over tables in
        which only these rows matter. A time is compared with a day as the day's midnight.
        """
        windows = growth.columns[0]
        for this in walk(block):
            if not isinstance(this, Block):
                continue
            for test in this.conjuncts:
                match test:
                    case Call("<" | "<=", (Call("parameter"), other)):
                        pass
                    case Call("<" | "<=", (other, Call("parameter"))):
                        pass
                    case _:
                        continue
                traces = self._values(this, other) if windows.traces else None
                if traces is None:
                    return False
                days = {Trace(t.column, (*t.steps, _TO_DAY)) for t in traces}
                if not (traces <= {*windows.traces} or days <= {*windows.traces}):
                    return False
                if any(trace.column.source_id in windows.loose for trace in traces):
                    return False
        return True

    def _values(self, block: Block, expr: Expr) -> frozenset[Trace] | None:
        """Return traces of which an expression always equals one; None if there are none."""
        form = self._form(expr)
        node = dict(block.leaves).get(form[0].instance) if form else None
        if form is None or node is None:
            return None
        ref, steps = form
        traces: frozenset[Trace] | None = None
        match node:
            case Given():
                windows = given_growth(node).columns[ref.column]
                traces = None if windows.loose else frozenset(windows.traces)
            case Derived(below, False) | Outer("left", below) if ref.column < len(below.columns):
                traces = self._values(below, below.columns[ref.column].expr)
            case Aggregate(rows, keys, _, sets) if ref.column < len(keys) and (
                sets is None or all(ref.column in one for one in sets)
            ):
                traces = self._values(rows, keys[ref.column])
            case SetOperation(_, branches):
                each = [self._values(b, b.columns[ref.column].expr) for b in branches]
                branch_traces = [one for one in each if one]
                traces = (
                    frozenset[Trace]().union(*branch_traces)
                    if len(branch_traces) == len(each)
                    else None
                )
            case _:
                pass
        if not traces:
            return None
        return frozenset(Trace(t.column, (*t.steps, *steps)) for t in traces)

    def _within(
        self, window: Window, traced: Mapping[int, tuple[int, tuple[MonotoneStep, ...]]]
    ) -> bool:
        """Whether all rows of a window's partition share one value of the traced columns.

        Only conditions on all these rows count, not conditions on the result of the window.

        Parameters
        ----------
        traced
            The traced column of each instance, and the steps from it.
        """
        inner = [window.function, *window.partition, *window.order, *window.rows.conjuncts]
        if any(isinstance(t, Subquery | Window) for t in walk(*inner)):
            return False
        mapping = dict(window.mapping)
        traced_inside = {i: traced[i] for i in mapping.values() if i in traced}
        for expr in window.partition:
            form = self._form(expr)
            same = self._equal([form] if form else (), window.rows.conjuncts)
            partition_forms = {
                (mapping.get(ref.instance), ref.column, steps) for ref, steps in same
            }
            if traced_inside and all(
                any(
                    (i, c) == (of, column) and steps[: len(s)] == s
                    for of, column, s in partition_forms
                )
                for i, (c, steps) in traced_inside.items()
            ):
                return True
        return False

    def _windows(self, node: Node, column: int) -> Windows:
        windows = self._node_windows.get((id(node), column))
        if windows is None:
            windows = self._node_windows[id(node), column] = self._windowed(node, column)
            self._keep_alive.append(node)
        return windows

    def _windowed(self, node: Node, column: int) -> Windows:
        match node:
            case Given():
                return given_growth(node).columns[column]
            case Derived(block, False):
                return self._column(block, block.columns[column].expr)
            case Outer("left", left, right, on) if column < len(left.columns):
                return self._preserved(left, right, on, column)
            case Aggregate(rows, keys, aggregates, sets) if column < len(keys) and (
                sets is None or all(column in one for one in sets)
            ):
                windows = self._column(rows, keys[column])
                beside = self._read_by(*_specials_in((*keys, *aggregates)))
                return Windows(windows.traces, windows.loose | beside)
            case SetOperation(_, branches):
                if len({b.columns[column].type for b in branches} | {None}) != 2:
                    return Windows((), self._node_reads(node))
                parts = [self._column(b, b.columns[column].expr) for b in branches]
                traces = {t for p in parts for t in p.traces}
                return Windows(tuple(sorted(traces)), _NOTHING.union(*(p.loose for p in parts)))
            case _:
                return Windows((), self._node_reads(node))

    def _preserved(self, left: Block, right: Block, on: Sequence[Expr], column: int) -> Windows:
        form = self._form(left.columns[column].expr)
        first = self._equal([form] if form else (), left.conjuncts)
        # ON holds for the joined rows of the right side, not for the left side.
        right_of = {i for i, _ in right.leaves}
        joined = {f for f in self._equal(first, on) if f[0].instance in right_of}
        second = self._equal(joined, right.conjuncts)
        a, b = self._covered(left, first), self._covered(right, second)
        traces = {*a.traces, *b.traces}
        loose = a.loose | b.loose
        loose |= self._read_by(*_specials_in(on))
        return Windows(tuple(sorted(traces)), loose)


def unknown(reads: frozenset[SourceID], n_columns: int) -> Growth:
    """Return a growth of which only the tables read are known."""
    return Growth(reads, (), (Windows((), reads),) * n_columns)


def given_growth(node: Given) -> Growth:
    """Return the growth of a relation that is known by its digests only.

    The rows of a table follow from themselves, unchanged.
    """
    if node.growth is not None:
        return node.growth
    own_column = next((next(iter(o)) for o in node.origins if len(o) == 1), None)
    if own_column is None or any(len(o) != 1 for o in node.origins):
        return unknown(frozenset(("?",)), len(node.columns))
    reads = frozenset((own_column.source_id,))
    columns = tuple(Windows((Trace(next(iter(o)), ()),), _NOTHING) for o in node.origins)
    return Growth(reads, (reads,), columns)


def _specials_in(exprs: Iterable[Expr]) -> tuple[Subquery | Window, ...]:
    """Return the outermost subqueries and windows in expressions."""
    seen, stack = set[int](), [*exprs]
    specials: list[Subquery | Window] = []
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        if isinstance(this, Call):
            stack += this.args
        elif not isinstance(this, Ref):
            specials.append(this)
    return tuple(specials)
