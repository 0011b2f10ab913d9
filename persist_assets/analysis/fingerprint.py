"""Digests of meaning: a fold over the algebra. Pure.

The invariant: **equal digests ⇒ equal rows, column names and types on the same data.** In doubt,
digests differ, which costs a rebuild but never gives a wrong table.

A relation has one *rows* digest (its set of base tuples) and one digest for each column (its
function of a base tuple), so that a reader depends on the rows and on the columns it uses, and on
nothing else. Inside a Block, instances are distinguished by labels derived from their content, not
from their names:

- the only leaf of a Block has the empty label, so that filters and projections do not change the
  digests of columns;
- otherwise the label is the leaf's rows digest; equal labels are refined by the conjuncts they
  occur in, and remaining ties are numbered in written order, which is always sound because the
  labelled structure itself is digested;
- on entering a nested relation, the labels of all outer instances get one more ``^`` (their De
  Bruijn level), so that inner and outer instances never share one.

The split into rows and columns follows Merkle's trees and Buneman et al.'s where-provenance; labels
are colour refinement as in Weisfeiler & Leman's graph canonisation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Calls,
    Derived,
    Expr,
    Generate,
    Given,
    Lateral,
    Limit,
    Node,
    Opaque,
    Outer,
    Recursive,
    Ref,
    SetOperation,
    Sort,
    Subquery,
    Values,
    Window,
    innermost_first,
    walk,
)
from persist_assets.analysis.free import Free
from persist_assets.analysis.functions import (
    COMMUTATIVE,
    INTEGRAL,
    ORDER_SENSITIVE,
    TIE_SENSITIVE,
    VOLATILE,
)
from persist_assets.analysis.named_literals import (
    SENSITIVE,
    InTermsOf,
    is_literal,
    type_behind_name,
)
from persist_assets.core.digests import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.types import Types


# --------------------------------------------------------------------------------------- the fold


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of a relation: of its rows, of each column, of its order."""

    rows: str
    columns: tuple[str, ...]
    order: str | None = None


Instances = dict[int, tuple[str, tuple[str, ...]]]
"""For each visible instance, its label and the digests of its leaf's columns."""


@dataclass(slots=True)
class Scope:
    """A Block whose instances have labels.

    Attributes
    ----------
    instances
        Instances of the Block and of the enclosing ones.
    """

    fold: Fold
    instances: Instances
    rows: str = ""
    order: str | None = None
    done: dict[int, str] = field(default_factory=dict)

    def expr(self, expr: Expr) -> str:
        """Return the digest of an expression over the instances of this scope."""
        done = self.done
        expr_digest = done.get(id(expr))
        if expr_digest is not None:
            return expr_digest
        stack = [expr]  # calls within calls are not recursive: a sum may have a thousand terms
        while stack:
            this = stack[-1]
            if isinstance(this, Call):
                missing = [a for a in this.args if id(a) not in done]
                if missing:
                    stack += missing
                    continue
            done[id(this)] = self._expr(this)
            stack.pop()
        return done[id(expr)]

    def exprs(self, exprs: Iterable[Expr]) -> list[str]:
        """Return the digests of expressions, in order."""
        return [self.expr(e) for e in exprs]

    def _expr(self, expr: Expr) -> str:
        match expr:
            case Ref(instance, column):
                label, columns = self.instances[instance]
                return digest("at", label, columns[column]) if label else columns[column]
            case Call():
                op, args, words = _filtered(expr, self.fold.types)
                made = self._operands(op, args)
                if op in ("and", "or"):
                    made = sorted(set(made))
                elif op in COMMUTATIVE:
                    made.sort()
                elif op == "in":
                    made = [made[0], *sorted(set(made[1:]))]
                made_digest = digest(op, made, words)
                if is_literal(expr):
                    self.fold.literals[made_digest] = expr
                return made_digest
            case Subquery(kind, block, args):
                inner = self.fold.inner(block, self.instances)
                columns = () if kind == "exists" else inner.columns
                return digest("subquery", kind, inner.rows, columns, self.exprs(args))
            case Window():
                return self._window(expr)

    def _operands(self, op: str, args: Sequence[Expr]) -> list[str]:
        """Return the digests of operands, with the types of literals that are columns of leaves."""
        made = [self.done[id(a)] for a in args]
        for i, arg in enumerate(args if op in SENSITIVE and self.fold.literals else ()):
            literal = self.fold.literals.get(made[i]) if isinstance(arg, Ref) else None
            if literal is not None:
                others = [*args[:i], *args[i + 1 :]]
                if kind := type_behind_name(op, literal, others, self.fold.types):
                    made[i] = digest("cast", [made[i]], (kind,))
        return made

    def _window(self, expr: Window) -> str:
        rows = self.fold.scope(expr.rows, self.instances, _over(expr))
        mapping = sorted((rows.instances[a][0], self.instances[b][0]) for a, b in expr.mapping)
        function = expr.function.op if isinstance(expr.function, Call) else ""
        # A frame counted in rows separates rows that tie.
        order_matters = (
            "rows" in expr.frame[:1] or function in TIE_SENSITIVE or function in ORDER_SENSITIVE
        )
        return digest(
            "window",
            rows.expr(expr.function),
            sorted(set(rows.exprs(expr.partition))),
            [(rows.expr(s.by), s.descending, s.nulls_first) for s in expr.order],
            [f if isinstance(f, str) else ("expr", rows.expr(f)) for f in expr.frame],
            rows.rows,
            mapping,
            rows.order if order_matters else None,
        )


class Fold:
    """Digester of blocks; it remembers every relation that refers to nothing outside itself.

    Parameters
    ----------
    types
        Types of the expressions in them. Without these, some equal relations have other digests.
    """

    def __init__(self, types: Types | None = None) -> None:
        self.types = types
        self.literals: dict[str, Call] = {}
        """Literals by their digests."""
        self._drawn: dict[int, tuple[object, bool]] = {}  # by id, if anything is nondeterministic
        self._tests: dict[int, tuple[Subquery, Subquery]] = {}  # by id of the first
        self._nodes: dict[int, Digests] = {}
        self._scopes: dict[int, Scope] = {}
        self._inner: dict[tuple[int, tuple[tuple[int, object], ...]], Digests] = {}
        self._free = Free()

    def relation(self, block: Block) -> Digests:
        """Return the digests of a top-level Block.

        Closed parts are digested first, from the inside out, so that only correlated ones are
        digested recursively: a long chain of CTEs does not recurse deeply.
        """
        self._learn_drawn(block)
        for thing in self._free.learn(block):
            self._digest_closed(thing)
        return self.inner(block, {})

    def _digest_closed(self, thing: object) -> None:
        """Digest and remember a relation or a window that refers to nothing outside itself."""
        match thing:
            case Window(rows=rows):
                over = _over(thing)
                if self._closed(rows, over):
                    scope = self.scope(rows, {}, over)
                    scope.exprs(e.by if isinstance(e, Sort) else e for e in over)
            case Block():
                if not self.free(thing):
                    self.scope(thing, {})
            case Derived() | Outer() | Lateral() | Aggregate() | SetOperation() | Recursive():
                if not self.free(thing):
                    self.node(thing, {})
            case Limit():
                if not self.free(thing):
                    self.node(thing, {})
            case _:
                pass

    def _learn_drawn(self, block: Block) -> None:
        """Remember which parts may differ each time they are computed, if any."""
        if any(map(_draws, walk(block))):
            for thing, below in innermost_first(block, self._drawn):
                drawn_below = any(self._drawn[id(part)][1] for part in below)
                self._drawn[id(thing)] = thing, _draws(thing) or drawn_below

    def _is_drawn(self, thing: object) -> bool:
        if id(thing) in self._drawn:
            return self._drawn[id(thing)][1]
        return any(map(_draws, walk(thing)))  # it was rewritten since

    def _drawn_columns(self, node: Node, columns: Sequence[str]) -> tuple[str, ...]:
        match node:
            case Derived(volatile=True):
                return drawn(columns, [True] * len(columns))
            case Derived(block) | Limit(block):
                return drawn(columns, [self._is_drawn(o.expr) for o in block.columns])
            case _:  # it has digests of its own for its columns
                return _numbered_draws(columns)

    def literals_in(self, columns: Sequence[str]) -> tuple[tuple[int, Call], ...]:
        """Return the columns that are literals, by their digests, each with its number."""
        known = enumerate(map(self.literals.get, columns))
        return tuple((i, literal) for i, literal in known if literal is not None)

    def inner(self, block: Block, outer: Instances) -> Digests:
        """Return the digests of a nested Block.

        They depend only on the outer instances that the Block refers to. Equal ones are digested
        once, because a chain of correlated queries contains the same ones many times.
        """
        key = id(block), tuple((i, outer[i]) for i in sorted(self.free(block)))
        digests = self._inner.get(key)
        if digests is None:
            scope = self.scope(block, outer)
            columns = tuple(scope.exprs(o.expr for o in block.columns))
            digests = self._inner[key] = Digests(scope.rows, columns, scope.order)
        return digests

    def _closed(self, block: Block, over: Sequence[object]) -> bool:
        if self.free(block):
            return False
        own_instances = {i for i, _ in block.leaves} if over else ()
        return all(self.free(e).issubset(own_instances) for e in over)

    def scope(self, block: Block, outer: Instances, over: Sequence[object] = ()) -> Scope:
        """Label the instances of a Block and digest its rows.

        Parameters
        ----------
        over
            Expressions that are computed in this scope but are not part of the Block. If they refer
            to outer instances, the scope is not reused, because their labels are valid here only.
        """
        closed = self._closed(block, over)
        known_scope = self._scopes.get(id(block)) if closed else None
        if known_scope is not None:
            return known_scope
        around: Instances = {i: (f"^{label}", columns) for i, (label, columns) in outer.items()}
        leaves = {i: self.node(n, around) for i, n in block.leaves if not isinstance(n, Generate)}
        generates = {i: n for i, n in block.leaves if isinstance(n, Generate)}
        scope = Scope(self, around)
        if len(block.leaves) == 1 and not generates:
            ((instance, leaf),) = leaves.items()
            scope.instances = around | {instance: ("", leaf.columns)}
            conditions = sorted(set(scope.exprs(map(self._condition, block.conjuncts))))
            scope.rows = digest("filter", leaf.rows, conditions) if conditions else leaf.rows
            scope.order = leaf.order
        else:
            labels = self._labels(block, leaves, generates, around)
            scope.instances = labels
            joined = sorted(labels[i][0] for i, _ in block.leaves)
            # Tied labels do not identify the argument of each generator.
            calls = sorted((n.outer, labels[i][1]) for i, n in generates.items())
            conjunct_digests = sorted(set(scope.exprs(map(self._condition, block.conjuncts))))
            scope.rows = digest("join", joined, conjunct_digests, *([calls] if calls else ()))
            by_label = sorted(leaves, key=lambda i: labels[i][0])
            scope.order = _combined(leaves[i].order for i in by_label)
        if block.order:
            keys = [(scope.expr(s.by), s.descending, s.nulls_first) for s in block.order]
            scope.order = digest("order", keys)
        if closed:
            self._scopes[id(block)] = scope
        return scope

    def _condition(self, condition: Expr) -> Expr:
        """Return EXISTS for an IN that filters rows: there, NULL is FALSE.

        Both sides must have one type, because IN and `=` convert values differently.
        """
        if not isinstance(condition, Subquery) or condition.kind != "in" or self.types is None:
            return condition
        known = self._tests.get(id(condition))
        if known is not None:
            return known[1]
        test, block = condition, condition.block
        (needle, *more), (out, *_) = condition.args, block.columns
        kind = self.types.of(needle)
        one_type = not more and kind in _COMPARED_BY_VALUE and kind == out.type
        if one_type and _is_plain(needle) and _is_plain(out.expr):
            equal = Call("=", (needle, out.expr))
            inner = replace(block, conjuncts=(*block.conjuncts, equal), order=())
            test = Subquery("exists", inner)
        self._tests[id(condition)] = condition, test
        return test

    # -------------------------------------------------------------------------------- labels

    def _labels(
        self,
        block: Block,
        leaves: Mapping[int, Digests],
        generates: Mapping[int, Generate],
        around: Instances,
    ) -> Instances:
        """Return the instances of a Block of several leaves with unique labels."""
        order = [i for i, _ in block.leaves]
        labels = {i: leaf.rows for i, leaf in leaves.items()}
        columns = {i: leaf.columns for i, leaf in leaves.items()}

        def instances() -> Instances:
            return around | {i: (labels[i], columns[i]) for i in labels}

        def generate() -> None:
            # A generator's label follows from the labels of its arguments; written order is a
            # dependency order.
            for i in order:
                if i in generates:
                    node = generates[i]
                    call = Scope(self, instances()).expr(node.call)
                    labels[i] = digest("generate", call, node.outer)
                    columns[i] = _numbered("generated", call, node.n_columns)

        generate()
        calls = {i: g.call for i, g in generates.items()}
        mentions: dict[int, list[Expr]] = {i: [calls[i]] if i in calls else [] for i in order}
        for expr in (*block.conjuncts, *calls.values()):
            for i in self.free(expr) & mentions.keys():
                mentions[i].append(expr)
        for _ in range(3):
            tied = [i for same in _groups(labels, order) if len(same) > 1 for i in same]
            if not tied:
                break
            others = instances()
            refined: dict[int, str] = {}
            for i in tied:
                scope = Scope(self, others | {i: (f"@{labels[i]}", columns[i])})
                refined[i] = digest("refined", labels[i], sorted(scope.exprs(mentions[i])))
            labels.update(refined)
        for same in _groups(labels, order):
            if len(same) > 1:
                labels.update({i: f"{labels[i]}#{number}" for number, i in enumerate(same)})
        final = dict(around)
        for i in order:  # columns of generators, in terms of the final labels
            if i in generates:
                node = generates[i]
                call = Scope(self, final).expr(node.call)
                columns[i] = _numbered("generated", call, node.n_columns)
            final[i] = (labels[i], columns[i])
        return final

    def free(self, thing: object) -> frozenset[int]:
        """Return the instances that something refers to but does not bind."""
        return self._free.of(thing)

    # --------------------------------------------------------------------------------- nodes

    def node(self, node: Node, around: Instances) -> Digests:
        """Return the digests of a leaf."""
        digests = self._nodes.get(id(node))
        if digests is None:
            digests = self._node(node, around)
            if self._drawn and not isinstance(node, Given) and self._is_drawn(node):
                digests = replace(digests, columns=self._drawn_columns(node, digests.columns))
            if not self.free(node):
                self._nodes[id(node)] = digests
        return digests

    def _node(self, node: Node, around: Instances) -> Digests:
        match node:
            case Given(rows, columns, order):
                self.literals.update((columns[i], literal) for i, literal in node.literals)
                return Digests(rows, columns, order)
            case Derived(block):
                return self.inner(block, around)
            case Outer(kind, left, right, on):
                chain = _chain(node)
                if len(chain) > 1:
                    return self._outer_joins(chain, around)
                return self._outer(kind, left, right, on, around)
            case Lateral():
                return self._lateral(node, around)
            case Recursive(start, step, words):
                both = [self.inner(block, around) for block in (start, step)]
                whole = digest("recursive", [(d.rows, d.columns) for d in both], words)
                return Digests(whole, _numbered("recursive", whole, len(start.columns)))
            case Aggregate(rows, keys, aggregates, sets):
                return self._aggregate(rows, keys, aggregates, sets, around)
            case SetOperation(kind, branches):
                # The first branch names the fields of structs, and makes texts CHAR(n) or not.
                kinds = [o.type for b in branches for o in b.columns]
                movable = not any(k is None or _OF_FIRST_BRANCH.search(k) for k in kinds)
                digests = [self.inner(b, around) for b in branches]
                return self._set_operation(kind, digests, movable)
            case Limit(block, count, offset, _):
                digests = self.inner(block, around)
                scope = Scope(self, around)
                numbers = [scope.expr(e) if e else None for e in (count, offset)]
                return Digests(
                    digest("limit", digests.rows, numbers, digests.order),
                    digests.columns,
                    digests.order,
                )
            case Values(rows):
                scope = Scope(self, around)
                written = digest("values", [scope.exprs(row) for row in rows])
                return Digests(written, _numbered("value", written, len(rows[0])))
            case Opaque(text, reads, n_columns):
                everything = [(r.rows, r.columns, r.order) for r in reads]
                whole = digest("opaque", text, everything)
                return Digests(whole, _numbered("opaque", whole, n_columns))
            case Generate():
                raise AssertionError("a generator is digested within its Block")

    def _outer_joins(self, chain: Sequence[Outer], around: Instances) -> Digests:
        """Return the digests of LEFT JOINs one after another, innermost first.

        A right side is identified by its rows and its conditions, which name the sides that they
        are about. So the order does not count, except where one is joined to another.
        """
        first, calls = chain[0], Calls()
        core = self.scope(first.left, around)
        deeper = {i: (f"^{label}", columns) for i, (label, columns) in around.items()}
        joined = Scope(self, dict(deeper))
        for i, _ in first.left.leaves:
            label, columns = core.instances[i]
            joined.instances[i] = (f"L{label}", columns)
        exprs: list[Expr] = [o.expr for o in first.left.columns]
        orders: dict[str, str | None] = {}
        for number, node in enumerate(chain, 1):
            on = node.on
            if node is not first:
                ((below, _),) = node.left.leaves
                rewrite = InTermsOf(calls, {below: exprs}, self.types)
                inside = [o.expr for o in node.left.columns]
                exprs = [
                    # A window sees all rows of the join below, so they are part of its digest.
                    calls.ref(-2 * number - 1, i) if _has_window(e) else rewrite.expr(e)
                    for i, e in enumerate(inside)
                ]
                if any(map(_has_window, inside)):
                    digests = self.scope(node.left, around).exprs(inside)
                    joined.instances[-2 * number - 1] = ("W", tuple(digests))
                on = rewrite.exprs(on)
            right = self.scope(node.right, around)
            sides = Scope(self, dict(joined.instances))
            for i, _ in node.right.leaves:
                label, columns = right.instances[i]
                sides.instances[i] = (f"R{label}", columns)
            label = digest("right side", right.rows, sorted(set(sides.exprs(on))))
            label = f"{label}#{n}" if (n := sum(k.startswith(label) for k in orders)) else label
            orders[label] = right.order
            columns = tuple(right.exprs(o.expr for o in node.right.columns))
            joined.instances[-2 * number] = (f"S{label}", columns)
            exprs += [calls.ref(-2 * number, i) for i in range(len(columns))]
        rows = digest("outer joins", core.rows, sorted(orders))
        order = _combined([core.order, *(orders[label] for label in sorted(orders))])
        shown = tuple(digest("side", "of several", joined.expr(e)) for e in exprs)
        return Digests(rows, shown, order)

    def _outer(
        self, kind: str, left: Block, right: Block, on: Sequence[Expr], around: Instances
    ) -> Digests:
        scopes = [self.scope(left, around), self.scope(right, around)]
        deeper = {i: (f"^{label}", columns) for i, (label, columns) in around.items()}
        both: Instances = dict(deeper)
        for side, block, scope in zip("LR", (left, right), scopes, strict=True):
            for i, _ in block.leaves:
                label, columns = scope.instances[i]
                both[i] = (f"{side}{label}", columns)
        conditions = sorted(set(Scope(self, both).exprs(on)))
        order = _combined(s.order for s in scopes)
        # Columns of a nullable side differ from those of the side itself, constants included, and
        # the two sides differ even where they are the same relation.
        columns = [
            digest("side", side, scope.expr(out.expr))
            for side, block, scope in zip("LR", (left, right), scopes, strict=True)
            for out in block.columns
        ]
        rows = digest("outer", kind, [s.rows for s in scopes], conditions)
        return Digests(rows, tuple(columns), order)

    def _lateral(self, node: Lateral, around: Instances) -> Digests:
        """Return the digests of rows with those that a query computes for each of them."""
        left = self.scope(node.left, around)
        right = self.scope(node.right, left.instances)
        both = {i: (f"^{label}", columns) for i, (label, columns) in around.items()}
        for side, block, scope in (("L", node.left, left), ("R", node.right, right)):
            for i, _ in block.leaves:
                label, columns = scope.instances[i]
                both[i] = (f"{side}{label}", columns)
        conditions = sorted(set(Scope(self, both).exprs(node.on)))
        rows = digest("lateral", node.kind, left.rows, right.rows, right.order, conditions)
        columns = [
            digest("side", side, scope.expr(out.expr))
            for side, block, scope in (("L", node.left, left), ("R", node.right, right))
            for out in block.columns
        ]
        return Digests(rows, tuple(columns), left.order)

    def _aggregate(
        self,
        rows: Block,
        keys: Sequence[Expr],
        aggregates: Sequence[Expr],
        sets: Sequence[frozenset[int]] | None,
        around: Instances,
    ) -> Digests:
        scope = self.scope(rows, around, (*keys, *aggregates))
        key_digests = scope.exprs(keys)
        grouping: object = "all rows" if not keys else "keys"
        named: dict[Expr, str] = {}
        if sets is not None:
            if len(set(key_digests)) < len(keys):
                # Equal expressions, but one key may be NULL where the other is not.
                key_digests = [digest("key", k, i) for i, k in enumerate(key_digests)]
                named = dict(zip(keys, key_digests, strict=True))
            grouping = sorted(sorted(key_digests[k] for k in one) for one in sets)
        whole = digest("aggregate", scope.rows, sorted(set(key_digests)), grouping)
        columns = [digest("key", k) for k in key_digests]
        for call in aggregates:
            ordered = isinstance(call, Call) and call.op in ORDER_SENSITIVE
            call_digest = scope.expr(call)
            if named and isinstance(call, Call) and call.op in ("grouping", "grouping_id"):
                call_digest = digest(call_digest, [named.get(a) for a in call.args])
            columns.append(
                digest("aggregated", call_digest, whole, scope.order if ordered else None)
            )
        return Digests(whole, tuple(columns), scope.order)

    @staticmethod
    def _set_operation(kind: str, branches: list[Digests], movable: bool) -> Digests:
        if kind != "union all":
            whole = digest(kind, [(b.rows, b.columns) for b in branches])
            order = _combined(b.order for b in branches)
            return Digests(whole, _numbered("set", whole, len(branches[0].columns)), order)
        # If rows have an order at all, it is that of the branches as written.
        order = digest("branches", [(b.rows, b.columns, b.order) for b in branches])
        if movable:
            branches = sorted(branches, key=lambda b: b.rows)  # stable: ties as written
        n = len(branches[0].columns)
        columns = tuple(digest("union", [b.columns[i] for b in branches]) for i in range(n))
        return Digests(digest(kind, [b.rows for b in branches]), columns, order)


_MAX_CHAIN = 32
"""The maximum number of LEFT JOINs whose order does not count; each join reads the chain again."""


def _chain(node: Outer) -> Sequence[Outer]:
    """Return a LEFT JOIN and those on its left side, innermost first."""
    chain, instances = [node], {i for i, _ in (*node.left.leaves, *node.right.leaves)}
    while chain[-1].kind == "left" and len(chain) < _MAX_CHAIN:
        left = chain[-1].left
        below = left.leaves[0][1] if len(left.leaves) == 1 else None
        if not isinstance(below, Outer) or below.kind != "left" or left.conjuncts or left.order:
            break
        own = [i for i, _ in (*below.left.leaves, *below.right.leaves)]
        if not instances.isdisjoint(own) or _has_window(*chain[-1].on):
            break
        instances.update(own)
        chain.append(below)
    return chain[::-1]


def _has_window(*exprs: Expr) -> bool:
    return any(isinstance(e, Window) for e in walk(*exprs))


_COMPARED_BY_VALUE = frozenset((*INTEGRAL, "string", "date", "timestamp", "boolean"))


def _is_plain(expr: Expr) -> bool:
    """Whether an expression is computed from columns of one row, the same each time."""
    return all(
        isinstance(e, Ref) or (isinstance(e, Call) and e.op not in VOLATILE) for e in walk(expr)
    )


_IGNORE_NULLS = frozenset("avg bool_and bool_or count max min sum".split())


def _filtered(call: Call, types: Types | None) -> tuple[str, tuple[Expr, ...], tuple[str, ...]]:
    """Return the parts of a call; an aggregate over CASE WHEN … THEN … END has a FILTER instead.

    Only for columns and literals: computing these for the other rows cannot fail.
    """
    op, args, words = call.op, call.args, call.words
    if op == "count_if" and not words:
        return "count", args, ("filter",)
    match args:
        case (Call("case", (test, value), ()),) if op in _IGNORE_NULLS and not words:
            if isinstance(value, Ref) and not _is_converted(op, value, types):
                return op, (value, test), ("filter",)
            if isinstance(value, Call) and value.op in ("number", "string", "boolean"):
                return op, (test,) if op == "count" else (value, test), ("filter",)
        case _:
            pass
    return op, args, words


def _is_converted(op: str, value: Expr, types: Types | None) -> bool:
    """Whether Spark may convert what it sums; a text can fail to be a number."""
    kind = None if types is None else types.of(value)
    return op in ("sum", "avg") and not (kind or "").startswith(_NUMBERS)


_NUMBERS = (*INTEGRAL, "float", "double", "decimal")


def _combined(orders: Iterable[str | None]) -> str | None:
    """Return the order of a combination of relations; None if none of them has one."""
    known_orders = [order for order in orders if order is not None]
    return digest("orders", known_orders) if known_orders else None


def _over(window: Window) -> list[Expr | Sort]:
    """Return the expressions that a window computes over its rows."""
    frame = [f for f in window.frame if not isinstance(f, str)]
    return [window.function, *window.partition, *window.order, *frame]


def _groups(labels: Mapping[int, str], order: Sequence[int]) -> list[list[int]]:
    """Group instances by label, in written order."""
    groups: dict[str, list[int]] = {}
    for i in order:
        groups.setdefault(labels[i], []).append(i)
    return list(groups.values())


_OF_FIRST_BRANCH = re.compile(r"\b(?:struct<|char\()")
"""Types for which a set operation takes names of fields, or padding, from its first branch."""


def _draws(thing: object) -> bool:
    if isinstance(thing, Given | Derived):
        return thing.volatile
    return isinstance(thing, Call) and thing.op in VOLATILE


def drawn(columns: Sequence[str], draws: Sequence[bool]) -> tuple[str, ...]:
    """Return the digests of the columns of nondeterministic rows.

    Reading one nondeterministic result twice is not computing it twice, and two results that are
    computed alike are two.

    Parameters
    ----------
    columns
        The digests of the expressions that compute them.
    draws
        Whether each one is nondeterministic.
    """
    pairs = [*zip(columns, draws, strict=True)]
    own = iter(_numbered_draws([digest("drawn", c) for c, draw in pairs if draw]))
    return tuple(next(own) if draw else c for c, draw in pairs)


def _numbered_draws(columns: Sequence[str]) -> tuple[str, ...]:
    """Return digests that are different for columns of one digest."""
    counts: dict[str, int] = {}
    made: list[str] = []
    for column in columns:
        number = counts[column] = counts.get(column, -1) + 1
        made.append(digest("drawn", column, number) if number else column)
    return tuple(made)


def _numbered(kind: str, whole: str, n: int) -> tuple[str, ...]:
    return tuple(digest(kind, whole, i) for i in range(n))
