"""Search for needs, from the top of a query down to the tables it reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
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
    parts,
    walk,
)
from persist_assets.analysis.predicates.terms import FALSE, TRUE, Term
from persist_assets.analysis.pushdown.bounds import with_bounds
from persist_assets.analysis.pushdown.equalities import (
    atoms_of,
    columns_used,
    equal_columns,
    instances_of,
    is_same_if_equal,
    numbered,
    rejects_nulls,
    through,
)
from persist_assets.analysis.pushdown.facts import Facts
from persist_assets.analysis.pushdown.needs import Disjunct, Need, sorted_names
from persist_assets.analysis.pushdown.relation import Kept, Relation
from persist_assets.analysis.pushdown.terms import TermReader

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Iterable,
        Mapping,
        Sequence,
    )

    from persist_assets.core.model.queries import SourceID


_MOST_WAYS = 32
"""A block reached in more ways than this is treated as if all of it were needed."""


@dataclass(slots=True)
class _Visit:
    """A Block to visit.

    Attributes
    ----------
    extra
        Conditions besides its conjuncts that hold for the rows that matter, in terms of its leaves;
        FALSE: no row matters.
    facts
        Conditions on leaves of enclosing Blocks that hold wherever it matters.
    used
        The expressions that are needed, besides its conjuncts and its order.
    """

    reader: TermReader
    block: Block
    extra: tuple[Term, ...]
    used: tuple[Expr, ...]
    kept: frozenset[Kept]
    facts: tuple[Term, ...] = ()


@dataclass(slots=True)
class _Demand:
    """The demand on a node: conditions and columns, by column numbers of the node."""

    conditions: tuple[Term, ...]
    columns: frozenset[int]
    kept: frozenset[Kept]


@dataclass(slots=True)
class _Below:
    """The conditions on the leaves of a Block, and why others are not pushed to them."""

    reader: TermReader
    windows: Sequence[tuple[Window, Mapping[int, int]]]
    equal: Mapping[Term, frozenset[Term]]
    pushed: dict[int, list[Term]] = field(default_factory=dict[int, list[Term]])
    reasons: dict[int, set[Kept]] = field(default_factory=dict[int, set[Kept]])

    def push(self, term: Term, *, but: int | None = None, is_fact: bool = False) -> None:
        """Push a condition to all leaves, as far as it is about them or about equal columns.

        Parameters
        ----------
        but
            The leaf that it is a fact about.
        is_fact
            It is not a condition of the query: if it is not pushed, no reason is recorded.
        """
        for instance, pushed in self.pushed.items():
            if instance == but:
                continue
            keep = through(self.equal, lambda ref, number=str(instance): ref.words[0] == number)
            weakened = p.weakened(term, keep)
            if weakened == TRUE:
                continue
            seen = (_sees(self.reader, w, now, instance, weakened) for w, now in self.windows)
            blind = next((n for n, sees in enumerate(seen) if not sees), None)
            if blind is None:
                pushed.append(weakened)
            elif not is_fact:
                window = self.reader.describe(self.windows[blind][0])
                words = f"{self.reader.describe_term(weakened)}: {window} also needs other rows"
                self.reasons[instance].add(Kept("window", words))

    def explain(self, term: Term, lost: Iterable[tuple[frozenset[int], Kept]]) -> None:
        """Add the reasons why parts of a condition are not pushed."""
        reasons = [*lost]
        for atom in atoms_of(term):
            about = frozenset(instances_of(atom))
            if len(about) > 1:
                words = f"{self.reader.describe_term(atom)}: it compares several tables"
                reasons.append((about, Kept("two tables", words)))
        for about, why in reasons:
            for instance in about & self.reasons.keys():
                self.reasons[instance].add(why)


def find_needs(
    reader: SourceID, relations: Mapping[SourceID, Relation], tables: Container[SourceID]
) -> tuple[Need, ...]:
    """Return the needs of a source or a query for the given tables.

    Parameters
    ----------
    reader
        A key of `relations`.
    relations
        The reader's relation, and those of all sources that are not persisted; the search ends at
        leaves without one.
    tables
        The tables to find needs for.
    """
    search = _Search(relations, tables)
    search.run(reader)
    return tuple(
        Need(reader, table, _merged(reader, search.disjuncts[table]))
        for table in sorted(search.disjuncts)
    )


def _of_matches(reader: TermReader, test: Subquery, facts: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return conditions on the rows of ``a IN (SELECT b …)`` that can match an outer row.

    Parameters
    ----------
    facts
        Conditions that hold for all outer rows for which the test matters.
    """
    equal = equal_columns([*reader.equalities(test), *facts])
    own = {str(i) for i, _ in test.block.leaves}
    keep = through(equal, lambda ref: ref.words[0] in own)
    return p.conjuncts(p.every(p.weakened(fact, keep) for fact in facts))


def _merged(reader: SourceID, disjuncts: Iterable[Disjunct]) -> tuple[Disjunct, ...]:
    """Return distinct disjuncts, with the kept conditions of equal ones combined."""
    by: dict[tuple[Term, tuple[str, ...]], set[Kept]] = {}
    for one in disjuncts:
        by.setdefault((one.predicate, one.columns), set()).update(one.kept)
    whole = Kept("all rows", f"no condition here: {reader} reads all rows")
    merged = [
        Disjunct(term, columns, tuple(sorted(reasons | ({whole} if term == TRUE else set()))))
        for (term, columns), reasons in by.items()
    ]
    return tuple(sorted(merged, key=lambda d: (p.as_text(d.predicate), d.columns)))


class _Search:
    """Search below one reader; not recursive, because sources and CTEs may be long chains."""

    def __init__(self, relations: Mapping[SourceID, Relation], tables: Container[SourceID]) -> None:
        self.relations, self.tables = relations, tables
        self.disjuncts: dict[SourceID, list[Disjunct]] = {}
        self._readers: dict[SourceID, TermReader] = {}
        self._stack: list[_Visit] = []
        self._ways: dict[int, set[Any]] = {}
        self._windows: dict[int, list[tuple[Window, Mapping[int, int]]]] = {}
        self._facts = Facts(self._reader, relations)
        self._around: tuple[Term, ...] = ()  # facts around the Blocks that are visited next

    def run(self, reader: SourceID) -> None:
        """Visit everything below a reader."""
        block = self.relations[reader].block
        used = tuple(o.expr for o in block.columns)
        self._visit(self._reader(reader), block, (), used, frozenset())
        while self._stack:
            self._block(self._stack.pop())

    def _reader(self, source_id: SourceID) -> TermReader:
        if source_id not in self._readers:
            self._readers[source_id] = TermReader(self.relations[source_id])
        return self._readers[source_id]

    def _visit(
        self,
        reader: TermReader,
        block: Block,
        extra: Iterable[Term],
        used: Iterable[Expr],
        reasons: frozenset[Kept],
    ) -> None:
        conditions = p.conjuncts(p.consistent(p.every(extra)))
        facts = self._facts_about(reader, block)
        if FALSE in conditions:
            conditions, used, facts, reasons = (FALSE,), (), (), frozenset()
        used = tuple({id(e): e for e in used}.values())
        ways = self._ways.setdefault(id(block), set())
        key = (conditions, frozenset(map(id, used)), reasons, facts)
        if key in ways:
            return
        if len(ways) >= _MOST_WAYS and conditions != (FALSE,):
            conditions, facts, used = (), (), (*(o.expr for o in block.columns), *used)
            reasons = frozenset((Kept("too many ways", "it is read in too many different ways"),))
            key = (conditions, frozenset(map(id, used)), reasons, facts)
            if key in ways:
                return
        ways.add(key)
        self._stack.append(_Visit(reader, block, conditions, used, reasons, facts))

    def _facts_about(self, reader: TermReader, block: Block) -> tuple[Term, ...]:
        """Return the facts around a Block about the leaves that it refers to."""
        if not self._around:
            return ()
        free = {str(i) for i in reader.relation.free.of(block)}
        keep = through(equal_columns(self._around), lambda ref: ref.words[0] in free)
        facts = (p.weakened(fact, keep) for fact in self._around)
        return p.conjuncts(p.consistent(p.every(facts))) if free else ()

    # ------------------------------------------------------------------------------------- blocks

    def _block(self, visit: _Visit) -> None:
        reader, block = visit.reader, visit.block
        self._around = visit.facts
        read_conditions = [reader.condition(c) for c in block.conjuncts]
        facts = {i: self._facts.of_leaf(reader, i, node) for i, node in block.leaves}
        here = [*(term for term, _ in read_conditions), *visit.extra]
        here += (fact for some in facts.values() for fact in some)
        if p.consistent(p.every(here)) == FALSE:
            self._nothing(reader, block)
            return
        leaves = dict(block.leaves)
        others = [*visit.used, *(s.by for s in block.order)]
        exprs = [*others, *block.conjuncts]
        free = reader.relation.free
        lateral = [n for _, n in block.leaves if not free.of(n).isdisjoint(leaves)]
        columns = columns_used([*exprs, *lateral], visit.extra)
        windows = [
            (window, now)
            for window, now in self._windows_in([*exprs, *lateral])
            if not leaves.keys().isdisjoint(now.values())
        ]
        below = _Below(reader, windows, equal_columns([*here, *visit.facts]))
        for instance in leaves:
            below.pushed[instance], below.reasons[instance] = [], set(visit.kept)
        for term, lost in read_conditions:
            below.push(term)
            below.explain(term, lost)
        for term in visit.extra:
            below.push(term)
        for instance, some in facts.items():
            for fact in some:
                below.push(fact, but=instance, is_fact=True)
        for fact in visit.facts:
            below.push(fact, is_fact=True)
        for instance, node in block.leaves:
            conditions = tuple(numbered(term) for term in below.pushed[instance])
            numbers = frozenset(columns.get(instance, ()))
            reasons = frozenset(below.reasons[instance])
            self._node(reader, node, _Demand(conditions, numbers, reasons))
        hold = (*here, *visit.facts)
        self._subqueries(reader, others, facts=hold, filters=block.conjuncts)

    def _nothing(self, reader: TermReader, block: Block) -> None:
        """Continue below a Block whose rows do not matter."""
        for _, node in block.leaves:
            self._node(reader, node, _Demand((FALSE,), frozenset(), frozenset()))
        exprs = [*block.conjuncts, *(o.expr for o in block.columns), *(s.by for s in block.order)]
        self._subqueries(reader, exprs, (FALSE,))

    def _subqueries(
        self,
        reader: TermReader,
        exprs: Iterable[object],
        extra: tuple[Term, ...] = (),
        facts: tuple[Term, ...] = (),
        filters: Iterable[object] = (),
    ) -> None:
        """Visit the queries in expressions, each independently.

        Parameters
        ----------
        extra
            Conditions on their rows.
        facts
            Conditions that hold for all rows for which the expressions matter. A window computes
            its own for more rows.
        filters
            More expressions: only rows for which they are true matter, so FALSE and NULL are alike.
        """
        seen: set[tuple[int, tuple[Term, ...], bool]] = set()
        stack = [(e, facts, False) for e in exprs] + [(e, facts, True) for e in filters]
        around = self._around
        while stack:
            thing, hold, is_filter = stack.pop()
            if (id(thing), hold, is_filter) in seen:
                continue
            seen.add((id(thing), hold, is_filter))
            match thing:
                case Subquery(kind, block, args):
                    used = () if kind == "exists" else [o.expr for o in block.columns]
                    matches = _of_matches(reader, thing, hold) if is_filter and kind == "in" else ()
                    self._around = hold
                    self._visit(reader, block, (*extra, *matches), used, frozenset())
                    self._around = around
                    stack += ((arg, hold, False) for arg in args)
                case Window(function, partition, order, frame, rows, _):
                    bounds = [f for f in frame if not isinstance(f, str)]
                    inside = [function, *partition, *order, *bounds, *rows.conjuncts]
                    stack += ((each, (), False) for each in inside)
                case Call(op, args):
                    stack += ((arg, hold, is_filter and op in ("and", "or")) for arg in args)
                case Sort(by, _, _):
                    stack.append((by, hold, False))
                case _:
                    pass

    def _windows_in(self, things: Iterable[object]) -> list[tuple[Window, Mapping[int, int]]]:
        """Return windows in and below things, with the outer instances of their own instances."""
        windows: list[tuple[Window, Mapping[int, int]]] = []
        seen: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        stack: list[tuple[object, Mapping[int, int]]] = [(t, {}) for t in things]
        while stack:
            thing, now = stack.pop()
            key = (id(thing), tuple(sorted(now.items())))
            if key in seen:
                continue
            seen.add(key)
            if isinstance(thing, Window):
                inner = {
                    inner_instance: now.get(outer_instance, outer_instance)
                    for inner_instance, outer_instance in thing.mapping
                }
                windows.append((thing, inner))
                bounds = [f for f in thing.frame if not isinstance(f, str)]
                within = [thing.function, *thing.partition, *thing.order, *bounds]
                stack += [(t, inner) for t in (*within, *thing.rows.conjuncts)]
            else:
                stack += [(t, now) for t in parts(thing)]
        return windows

    # -------------------------------------------------------------------------------------- nodes

    def _node(self, reader: TermReader, node: Node, demand: _Demand) -> None:
        is_drawn = isinstance(node, Derived) and node.volatile
        if FALSE in demand.conditions and not isinstance(node, Given | Opaque) and not is_drawn:
            for part in parts(node):
                if isinstance(part, Block):
                    self._visit(reader, part, (FALSE,), (), frozenset())
                else:
                    self._subqueries(reader, [part], (FALSE,))
            return
        match node:
            case Given():
                self._given(node, demand)
            case Derived(block, volatile):
                columns = [o.expr for o in block.columns]
                if volatile:
                    why = "it depends on nondeterministic rows"
                    demand = _without(reader, columns, demand, "draws lots", why)
                self._under(reader, block, columns, demand, ())
            case Outer():
                self._outer(reader, node, demand)
            case Lateral():
                self._lateral(reader, node, demand)
            case Recursive(start, step, _):
                columns = [o.expr for o in start.columns]
                why = "the rows of later steps follow from all rows"
                demand = _without(reader, columns, demand, "recursion", why)
                for block in (start, step):
                    self._visit(reader, block, (), [o.expr for o in block.columns], demand.kept)
            case Aggregate():
                self._aggregate(reader, node, demand)
            case SetOperation(kind, branches):
                self._set_operation(reader, kind, branches, demand)
            case Limit(block, count, offset, _):
                columns = [o.expr for o in block.columns]
                why = "a LIMIT applies first"
                demand = _without(reader, columns, demand, "limit above", why)
                self._under(reader, block, columns, demand, ())
                self._subqueries(reader, [e for e in (count, offset) if e])
            case Generate(call, _, _):
                self._subqueries(reader, [call])
            case Values(rows):
                self._subqueries(reader, [e for row in rows for e in row])
            case Opaque(_, reads, _):
                because = reader.relation.whole or "it is not analyzed"
                code = "UDF" if "not one of Spark's own" in because else "not analysed"
                why = demand.kept | {Kept(code, because)}
                for leaf in reads:
                    everything = frozenset(range(len(leaf.columns)))
                    self._given(leaf, _Demand((), everything, why))

    def _given(self, node: Given, demand: _Demand) -> None:
        source_id = node.rows
        if source_id in self.relations:
            reader = self._reader(source_id)
            relation = reader.relation
            columns = [o.expr for o in relation.block.columns]
            if not columns:  # those of a function are known when it is computed
                demand = _Demand((), frozenset(), demand.kept)
            elif relation.volatile:
                why = "it depends on nondeterministic rows"
                demand = _without(reader, columns, demand, "draws lots", why)
            around, self._around = self._around, ()  # other instances have these numbers there
            self._under(reader, relation.block, columns, demand, ())
            self._around = around
        elif source_id in self.tables:
            names = [next(iter(o)).column for o in node.origins]

            def name(term: Term) -> Term:
                return p.column(names[int(term.words[0])])

            every = p.consistent(p.without_implied(p.every(demand.conditions)))
            predicate = with_bounds(every)
            renamed = p.rebuilt(predicate, name)
            assert renamed is not None
            columns = sorted_names(names[i] for i in demand.columns if predicate != FALSE)
            disjuncts = self.disjuncts.setdefault(source_id, [])
            disjuncts.append(Disjunct(renamed, columns, tuple(sorted(demand.kept))))

    def _under(
        self,
        reader: TermReader,
        block: Block,
        columns: Sequence[Expr],
        demand: _Demand,
        used: Sequence[Expr],
    ) -> None:
        """Continue below a node whose columns are expressions over the leaves of a Block."""
        reasons = set(demand.kept)
        extra = [_rewritten_below(reader, c, columns, reasons) for c in demand.conditions]
        used = [*used, *(columns[i] for i in sorted(demand.columns))]
        self._visit(reader, block, extra, used, frozenset(reasons))

    def _outer(self, reader: TermReader, node: Outer, demand: _Demand) -> None:
        """Continue on both sides of an outer join.

        A side may lose rows if none of them is needed alone, and if no row of the other side is
        needed that has no match without them. Rows of a side without a match are not needed if a
        condition rejects the NULLs of the other side.
        """
        n, sides = len(node.left.columns), (node.left, node.right)
        every = [o.expr for side in sides for o in side.columns]
        numbers = [{str(i) for i in range(n)}, {str(i) for i in range(n, len(every))}]
        inside = [{i for i, _ in side.leaves} for side in sides]
        about = [[p.weakened(c, _about(side)) for c in demand.conditions] for side in numbers]
        alone = [not any(map(rejects_nulls, other)) for other in reversed(about)]
        alone[1] &= node.kind != "left"
        reasons = [set(demand.kept), set(demand.kept)]
        tests = self._read_on(reader, node, alone, inside, reasons)
        equal = equal_columns(tests)
        below = [
            [_rewritten_below(reader, c, every, reasons[side]) for c in about[side]]
            for side in (0, 1)
        ]
        for side, block in enumerate(sides):
            pushed = [] if alone[1 - side] else [*below[side]]
            if not alone[side]:
                keep = through(equal, lambda ref, here=inside[side]: int(ref.words[0]) in here)
                others = self._facts.of_block(reader, sides[1 - side])
                pushed += [p.weakened(term, keep) for term in (*tests, *below[1 - side], *others)]
            for condition in demand.conditions if alone[1 - side] else ():
                if numbers[side].isdisjoint(v.words[0] for v in p.variables(condition)):
                    continue
                words = _spelled(reader, condition, every)
                reasons[side].add(
                    Kept("null side", f"{words}: it also holds for rows without a match")
                    if node.kind == "left"
                    else Kept("full join", f"{words}: above a FULL JOIN")
                )
            columns = [every[i] for i in sorted(demand.columns) if str(i) in numbers[side]]
            self._visit(reader, block, pushed, [*columns, *node.on], frozenset(reasons[side]))

    def _lateral(self, reader: TermReader, node: Lateral, demand: _Demand) -> None:
        """Continue on the left side with the conditions on it: each of its rows is joined alone."""
        n = len(node.left.columns)
        every = [o.expr for side in (node.left, node.right) for o in side.columns]
        reasons = set(demand.kept)
        about = _about({str(i) for i in range(n)})
        conditions = [p.weakened(c, about) for c in demand.conditions]
        pushed = [_rewritten_below(reader, c, every, reasons) for c in conditions]
        inside = {i for i, _ in node.left.leaves}
        used = [every[i] for i in sorted(demand.columns) if i < n]
        below = walk(node.right, *node.on)
        used += [e for e in below if isinstance(e, Ref) and e.instance in inside]
        self._visit(reader, node.left, pushed, used, frozenset(reasons))
        of_right = tuple(
            c for c in demand.conditions if any(int(v.words[0]) >= n for v in p.variables(c))
        )
        why = "a LATERAL query applies first"
        rest = _without(reader, every, replace(demand, conditions=of_right), "lateral", why)
        right = [o.expr for o in node.right.columns]
        around = self._around
        self._around = (*around, *self._facts.of_block(reader, node.left), *pushed)
        self._visit(reader, node.right, (), [*right, *node.on], rest.kept)
        self._around = around

    def _read_on(
        self,
        reader: TermReader,
        node: Outer,
        alone: Sequence[bool],
        inside: Sequence[set[int]],
        reasons: Sequence[set[Kept]],
    ) -> list[Term]:
        """Return the conditions of ON, and add the reasons why a side does not get them."""
        tests: list[Term] = []
        for test in node.on:
            reader.lost.clear()
            tests.append(reader.predicate(test))
            code = "null side" if node.kind == "left" else "full join"
            words = f"{reader.describe(test)}: rows that do not match ON are kept"
            for side in (0, 1):
                if not alone[side]:
                    reasons[side].update(why for about, why in reader.lost if about & inside[side])
                elif node.kind != "left" or instances_of(tests[-1]) & inside[side]:
                    reasons[side].add(Kept(code, words))
        return tests

    def _aggregate(self, reader: TermReader, node: Aggregate, demand: _Demand) -> None:
        n = len(node.keys)
        fixed = {k for k in range(n) if node.sets is None or all(k in one for one in node.sets)}
        reasons, conditions = set(demand.kept), list[Term]()
        every = [*node.keys, *node.aggregates]
        for condition in demand.conditions:
            about = {int(v.words[0]) for v in p.variables(condition)}
            conditions.append(p.weakened(condition, _about(set(map(str, fixed)))))
            if not about <= fixed:
                of_keys = any(k < n for k in about - fixed)
                code = "grouping set" if of_keys else "aggregate"
                words = "a key that is missing in some grouping sets" if of_keys else "an aggregate"
                reasons.add(
                    Kept(code, f"{_spelled(reader, condition, every)}: it refers to {words}")
                )
        below = _Demand(
            tuple(conditions), frozenset(i for i in demand.columns if i >= n), frozenset(reasons)
        )
        self._under(reader, node.rows, every, below, node.keys)

    def _set_operation(
        self, reader: TermReader, kind: str, branches: Sequence[Block], demand: _Demand
    ) -> None:
        if kind != "union all":
            # A condition must not tell values apart that the operation takes for equal.
            exprs = [o.expr for o in branches[0].columns]
            conditions = tuple(p.weakened(c, _of_values) for c in demand.conditions)
            lost = tuple(c for c, w in zip(demand.conditions, conditions, strict=True) if w != c)
            why = f"{kind.upper()} takes values for equal that differ"
            rest = _without(reader, exprs, replace(demand, conditions=lost), "set operation", why)
            demand = _Demand(conditions, frozenset(range(len(exprs))), rest.kept)
        for branch in branches:
            self._under(reader, branch, [o.expr for o in branch.columns], demand, ())


def _of_values(atom: Term) -> Term:
    """Return an atom on columns whose equal values cannot be told apart, else TRUE."""
    kinds = {v.words[1] for v in p.variables(atom)}
    return atom if all(map(is_same_if_equal, kinds)) else TRUE


def _without(
    reader: TermReader, columns: Sequence[Expr], demand: _Demand, code: str, why: str
) -> _Demand:
    """Return a demand without its conditions, which are kept."""
    reasons = {Kept(code, f"{_spelled(reader, c, columns)}: {why}") for c in demand.conditions}
    return _Demand((), demand.columns, demand.kept | reasons)


def _about(instances: set[str]) -> Callable[[Term], Term]:
    """Return a function that keeps atoms on the given columns or instances only."""

    def keep(atom: Term) -> Term:
        columns = {v.words[0] for v in p.variables(atom)}
        return atom if columns and columns <= instances else TRUE

    return keep


def _rewritten_below(
    reader: TermReader, condition: Term, columns: Sequence[Expr], reasons: set[Kept]
) -> Term:
    """Return a condition on columns as a condition on the leaves they are computed from."""

    def inside(out: Term) -> Term | None:
        value = reader.value(columns[int(out.words[0])])
        if isinstance(value, Kept):
            reasons.add(
                replace(
                    value, words=f"{reader.describe(columns[int(out.words[0])])}: {value.words}"
                )
            )
            return None
        return value[0] if value[1] == out.words[1] else None

    def keep(atom: Term) -> Term:
        rewritten = p.rebuilt(atom, inside)
        return TRUE if rewritten is None else rewritten

    return p.weakened(condition, keep)


def _spelled(reader: TermReader, condition: Term, columns: Sequence[Expr]) -> str:
    def name(out: Term) -> Term:
        return p.column(reader.describe(columns[int(out.words[0])]))

    renamed = p.rebuilt(condition, name)
    return p.as_text(renamed).replace("`", "") if renamed is not None else "…"


def _sees(
    reader: TermReader, window: Window, now: Mapping[int, int], instance: int, condition: Term
) -> bool:
    """Whether a window is unchanged without the rows of a leaf that a condition excludes.

    This holds if the window saw the condition, or if the condition is constant within its
    partitions.
    """
    if instance not in now.values():
        return True

    def here(ref: Term) -> Term:
        return Term("ref", (), (str(now.get(int(ref.words[0]), -1)), *ref.words[1:]))

    def moved(term: Term) -> Term:
        rewritten = p.rebuilt(term, here)
        assert rewritten is not None
        return rewritten

    lost = [*reader.lost]
    seen = [
        p.weakened(moved(reader.predicate(c)), _about({str(instance)}))
        for c in window.rows.conjuncts
    ]
    reader.lost[:] = lost
    if condition in seen:
        return True
    partition_values = [reader.value(e) for e in window.partition]
    partition = {moved(v[0]) for v in partition_values if not isinstance(v, Kept)}

    def covered(term: Term) -> bool:
        return term in partition or (term.op not in p.VARIABLES and all(map(covered, term.args)))

    return covered(condition)
