"""Search for needs, from the top of a query down to the tables it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from persist_assets.analysis.predicates.terms import TRUE, Term
from persist_assets.analysis.pushdown.bounds import with_bounds
from persist_assets.analysis.pushdown.equalities import (
    atoms_of,
    columns_used,
    equal_columns,
    instances_of,
    numbered,
    rejects_nulls,
    through,
)
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
        Conditions besides its conjuncts that hold for the rows that matter, in terms of its leaves.
    used
        The expressions that are needed, besides its conjuncts and its order.
    """

    reader: TermReader
    block: Block
    extra: tuple[Term, ...]
    used: tuple[Expr, ...]
    kept: frozenset[Kept]


@dataclass(slots=True)
class _Demand:
    """The demand on a node: conditions and columns, by column numbers of the node."""

    conditions: tuple[Term, ...]
    columns: frozenset[int]
    kept: frozenset[Kept]


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
        conditions = p.conjuncts(p.every(extra))
        used = tuple({id(e): e for e in used}.values())
        ways = self._ways.setdefault(id(block), set())
        key = (conditions, frozenset(map(id, used)), reasons)
        if key in ways:
            return
        if len(ways) >= _MOST_WAYS:
            conditions, used = (), (*(o.expr for o in block.columns), *used)
            reasons = frozenset((Kept("too many ways", "it is read in too many different ways"),))
            key = (conditions, frozenset(map(id, used)), reasons)
            if key in ways:
                return
        ways.add(key)
        self._stack.append(_Visit(reader, block, conditions, used, reasons))

    # ------------------------------------------------------------------------------------- blocks

    def _block(self, visit: _Visit) -> None:
        reader, block = visit.reader, visit.block
        leaves = dict(block.leaves)
        exprs = [*visit.used, *block.conjuncts, *(s.by for s in block.order)]
        free = reader.relation.free
        lateral = [n for _, n in block.leaves if not free.of(n).isdisjoint(leaves)]
        columns = columns_used([*exprs, *lateral], visit.extra)
        windows = [
            (window, now)
            for window, now in self._windows_in([*exprs, *lateral])
            if not leaves.keys().isdisjoint(now.values())
        ]
        pushed: dict[int, list[Term]] = {i: [] for i in leaves}
        reasons: dict[int, set[Kept]] = {i: set(visit.kept) for i in leaves}

        read_conditions = [reader.condition(c) for c in block.conjuncts]
        equal = equal_columns([*(term for term, _ in read_conditions), *visit.extra])

        def push(term: Term) -> None:
            for instance in leaves:
                keep = through(equal, lambda ref, number=str(instance): ref.words[0] == number)
                weakened = p.weakened(term, keep)
                if weakened == TRUE:
                    continue
                blind = [w for w, now in windows if not _sees(reader, w, now, instance, weakened)]
                if blind:
                    words = (
                        f"{reader.describe_term(weakened)}:"
                        f" {reader.describe(blind[0])} also needs other rows"
                    )
                    reasons[instance].add(Kept("window", words))
                else:
                    pushed[instance].append(weakened)

        for term, lost in read_conditions:
            push(term)
            for about, why in lost:
                for instance in about & leaves.keys():
                    reasons[instance].add(why)
            for atom in atoms_of(term):
                about = instances_of(atom)
                if len(about) > 1:
                    why = Kept(
                        "two tables", f"{reader.describe_term(atom)}: it compares several tables"
                    )
                    for instance in about & leaves.keys():
                        reasons[instance].add(why)
        for term in visit.extra:
            push(term)
        for instance, node in block.leaves:
            conditions = tuple(numbered(term) for term in pushed[instance])
            numbers = frozenset(columns.get(instance, ()))
            self._node(reader, node, _Demand(conditions, numbers, frozenset(reasons[instance])))
        self._subqueries(reader, exprs)

    def _subqueries(self, reader: TermReader, exprs: Iterable[object]) -> None:
        """Visit the queries in expressions, each independently."""
        seen: set[int] = set()
        stack: list[object] = [*exprs]
        while stack:
            thing = stack.pop()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            match thing:
                case Subquery(kind, block, args):
                    used = () if kind == "exists" else [o.expr for o in block.columns]
                    self._visit(reader, block, (), used, frozenset())
                    stack += args
                case Window(function, partition, order, frame, rows, _):
                    bounds = [f for f in frame if not isinstance(f, str)]
                    stack += [function, *partition, *order, *bounds, *rows.conjuncts]
                case Call(_, args):
                    stack += args
                case Sort(by, _, _):
                    stack.append(by)
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
            self._under(reader, relation.block, columns, demand, ())
        elif source_id in self.tables:
            names = [next(iter(o)).column for o in node.origins]

            def name(term: Term) -> Term:
                return p.column(names[int(term.words[0])])

            predicate = with_bounds(p.without_implied(p.every(demand.conditions)))
            renamed = p.rebuilt(predicate, name)
            assert renamed is not None
            columns = sorted_names(names[i] for i in demand.columns)
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
                pushed += [p.weakened(term, keep) for term in (*tests, *below[1 - side])]
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
        kept = [c for c in demand.conditions if any(int(v.words[0]) >= n for v in p.variables(c))]
        why = "a LATERAL query applies first"
        rest = _without(reader, every, replace(demand, conditions=tuple(kept)), "lateral", why)
        right = [o.expr for o in node.right.columns]
        self._visit(reader, node.right, (), [*right, *node.on], rest.kept)
        self._subqueries(reader, node.on)

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
            why = f"it applies to the rows of {kind.upper()}"
            exprs = [o.expr for o in branches[0].columns]
            demand = _without(reader, exprs, demand, "set operation", why)
            columns = frozenset(range(len(exprs)))
            demand = replace(demand, columns=columns)
        for branch in branches:
            self._under(reader, branch, [o.expr for o in branch.columns], demand, ())


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
