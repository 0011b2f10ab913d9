"""The rules: the change of each node of a query, as Spark SQL over its changed tables. Pure.

    node                     its change
    ------------------------ --------------------------------------------------------------
    filter, projection,      the same over the change
    explode
    inner join               for each changed leaf: its change, joined with the leaves before
                             it as they are now and those after it as they were
    EXISTS, IN, scalar       the rows whose correlation key is touched, tested before and now,
    subquery                 and the changed rows, tested now
    EXISTS and scalar        none: if its value changed, a build computes all rows
    subquery without
    references to the rows
    UNION ALL                the changes of the branches
    GROUP BY, DISTINCT       the groups of touched keys, as they were and as they are
    window function          the partitions of touched keys, as they were and as they are
    left outer join          the changed rows of the left side, joined now; the rows whose key
                             is touched on the right side, joined before and now
    full outer join,         the rows with touched keys, as they were and as they are
    EXCEPT, INTERSECT

A changed row has a weight: +1 for each such row that came, -1 for each that went.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Given,
    Limit,
    Out,
    Outer,
    Ref,
    SetOperation,
    Subquery,
    parts,
    walk,
)
from persist_assets.analysis.deltas.places import located
from persist_assets.analysis.deltas.printing import Part, refs_in, used_columns
from persist_assets.analysis.deltas.pushing import (
    Restriction,
    are_of_one_type,
    correlated,
    equal_columns,
    equalities,
    instances,
    is_value,
    restrictions,
)
from persist_assets.analysis.deltas.regrouping import changed_first
from persist_assets.analysis.deltas.relations import NEW, OLD, VERSIONS, Relations, having, union
from persist_assets.analysis.deltas.staging import grouped_by_each_set, outermost, windows_in
from persist_assets.analysis.free import Free
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import WEIGHT, NoRule
from persist_assets.core.spark_types import is_loose

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.deltas.relations import Column, Restricted
    from persist_assets.analysis.deltas.staging import Staged


@dataclass(frozen=True, slots=True)
class _Search:
    """The rows that a subquery finds by keys.

    Attributes
    ----------
    rows
        The rows, without the conditions on rows around the subquery.
    pairs
        Pairs of expressions over them and over the rows around, which are equal.
    is_value
        Its result may also be NULL, which is not FALSE: `NOT IN`.
    """

    rows: Block
    pairs: Sequence[tuple[Expr, Expr]]
    is_value: bool


@dataclass(slots=True)
class Rules:
    """Derives the change of one query.

    Attributes
    ----------
    only_adds
        No rule so far can remove rows.
    """

    query: Staged
    relations: Relations
    only_adds: bool = True
    _free: Free = field(default_factory=Free)

    def block(self, block: Block, columns: Sequence[Expr] | None = None) -> list[str]:
        """Return SELECTs whose union is the change of a Block; none if it does not change.

        Parameters
        ----------
        columns
            Expressions to select instead of the Block's columns.

        Raises
        ------
        NoRule
            The change cannot be computed.
        """
        shown = [o.expr for o in block.columns] if columns is None else [*columns]
        if not self.relations.is_changed(block, *shown):
            return []
        if windows_in(shown):
            return self._windows(block, shown)
        return [*self._retested(block, shown), *self._joined(block, shown)]

    def touched(self, block: Block, exprs: Sequence[Expr], *, net: bool = False) -> str | None:
        """Return the relation with the values that expressions have in changed rows of a Block.

        A row changes with the Block's columns too: windows and subqueries in them get other values
        although the row stays in its tables.

        Parameters
        ----------
        net
            Only values that more or fewer rows have than before: the Block's columns do not matter.
        """
        if net and not any(is_loose(self.query.types.of(e)) for e in exprs):
            terms = self.block(replace(block, columns=()), exprs)
            origins = self._origins(block, exprs[0]) if len(exprs) == 1 else ()
            return self._net(union(terms), len(exprs), origins) if terms else None
        beside = [o.expr for o in block.columns if self._can_differ_alone(o.expr)]
        origins = self._origins(block, exprs[0]) if len(exprs) == 1 and not beside else ()
        own = None if beside else _columns_of_one_table(block, exprs)
        if own is not None:
            table, columns = own
            delta = self.node(table)
            return delta and self._distinct(delta, columns, origins)
        terms = self.block(replace(block, columns=()), [*exprs, *beside])
        return self._distinct(union(terms), range(len(exprs)), origins) if terms else None

    def _can_differ_alone(self, expr: Expr) -> bool:
        """Whether the value of an expression can change in a row whose columns do not."""
        return bool(windows_in([expr])) or self.relations.has_changed_subquery([expr])

    def _distinct(
        self, rows: str, numbers: Iterable[int], origins: Iterable[Column | None] = ()
    ) -> str:
        items = ", ".join(f"c{n} AS c{k}" for k, n in enumerate(numbers))
        return self.relations.hold_keys(f"SELECT DISTINCT {items} FROM ({rows})", origins)

    def _net(self, rows: str, n: int, origins: Iterable[Column | None]) -> str:
        """Return the relation with the rows of a change whose weights do not add up to zero."""
        names = ", ".join(f"c{k}" for k in range(n))
        text = f"SELECT {names} FROM ({rows}) GROUP BY {names} HAVING sum({WEIGHT}) <> 0"
        return self.relations.hold_keys(text, origins)

    def _origins(self, block: Block, expr: Expr) -> Iterator[Column | None]:
        """Yield, for each change of a Block, a column of a table whose changes have all values.

        The values are those of an expression in changed rows of the Block.
        """
        if self.relations.has_changed_subquery(block.conjuncts):
            yield None
        columns = {r.instance: r for r in equal_columns(expr, block.conjuncts, self.query.types)}
        for instance, node in block.leaves:
            if self.relations.is_changed(node):
                ref = columns.get(instance)
                if ref is not None and isinstance(node, Given):
                    yield node.rows, ref.column
                else:
                    yield None

    def keys_of(self, part: Subquery | Outer, around: Block | None = None) -> list[Expr]:
        """Return the expressions by which rows find those of a subquery, or of a join's right side.

        Parameters
        ----------
        around
            The Block with the subquery.

        Raises
        ------
        NoRule
            A subquery has none.
        """
        if isinstance(part, Outer):
            return [a for a, _ in self._pairs(part)]
        assert around is not None
        return [outer for _, outer in self._keyed(around, part).pairs]

    def has_one_value(self, subquery: Subquery) -> bool:
        """Whether a subquery has one value for all rows."""
        return subquery.kind in ("scalar", "exists") and not self._free.of(subquery.block)

    def _restricted(
        self, block: Block, exprs: Sequence[Expr], keys: str
    ) -> dict[int, list[Restriction]]:
        return restrictions(block, dict(enumerate(exprs)), keys, self.query.types)

    # ------------------------------------------------------------------------------------- joins

    def _joined(self, block: Block, shown: Sequence[Expr]) -> list[str]:
        """Return the terms of a join: one for each leaf that changed."""
        whole = replace(block, columns=_outs(shown))
        block = changed_first(self.query, whole, self.relations.is_changed)
        shown = [o.expr for o in block.columns]
        terms: list[str] = []
        changed = [(i, n) for i, n in block.leaves if self.relations.is_changed(n)]
        for place, (instance, node) in enumerate(changed):
            delta = self.node(node)
            if delta is None:
                continue
            used = used_columns([*block.conjuncts, *shown, *(n for _, n in block.leaves)])
            restricted = self._by_leaf(block, shown, instance, delta)
            versions = {i: NEW if n < place else OLD for n, (i, _) in enumerate(changed)}
            self._by_join(block, instance, delta, versions, restricted)
            replaced = {instance: Part(delta, weighted=True)}
            for i, other in changed:
                if i != instance:
                    printer = self.relations.printer(versions[i], restricted)
                    replaced[i] = Part(printer.node(other, i, sorted(used.get(i, ()))))
            new = self.relations.printer(NEW, restricted)
            terms.append(new.block(block, replaced, shown))
        return terms

    def _by_leaf(
        self, block: Block, shown: Sequence[Expr], instance: int, delta: str
    ) -> dict[int, list[Restriction]]:
        """Return the restrictions of other leaves and of subqueries by one leaf that changed."""
        restricted: dict[int, list[Restriction]] = {}
        types = self.query.types

        leaf = dict(block.leaves)[instance]
        # The join rejects rows with keys that a condition excludes. If it has a subquery, it does
        # not: the keys restrict the subquery too, so NOT EXISTS is true for other keys.
        plain = tuple(c for c in block.conjuncts if not outermost([c], Subquery))
        filtered = replace(block, conjuncts=plain)

        def keys_of(ref: Ref) -> str:
            origin = (leaf.rows, ref.column) if isinstance(leaf, Given) else None
            keys = self._distinct(delta, [ref.column], [origin])
            return self._reduced(filtered, [ref], keys)

        equated: list[Expr] = [a for a, _ in equalities(block.conjuncts, types)]
        for subquery in outermost([*block.conjuncts, *shown], Subquery):
            equated += [outer for _, _, outer in correlated(subquery, block, types)]
        refs = dict.fromkeys(e for e in equated if isinstance(e, Ref) and e.instance == instance)
        whole = replace(block, columns=_outs(shown))
        for ref in refs:
            by_ref = restrictions(whole, {0: ref}, keys_of(ref), types, skipped=instance)
            _extend(restricted, by_ref)
        return restricted

    def _by_join(
        self,
        block: Block,
        instance: int,
        delta: str,
        versions: Mapping[int, str],
        restricted: dict[int, list[Restriction]],
    ) -> None:
        """Restrict unchanged tables to the rows that they are joined with.

        Spark does not know how few rows a join has. Without this, it sorts the whole table.

        Parameters
        ----------
        instance, delta
            The leaf that changed, and its change.
        versions
            The versions of the leaves that changed.
        restricted
            The restrictions of all leaves.
        """
        leaves = dict(block.leaves)
        few = {instance: delta}
        for i, version in versions.items():
            node = leaves[i]
            if i != instance and isinstance(node, Given) and i in restricted:
                few[i] = self.relations.probed(node, version, restricted[i][0])
        refs = [
            (a, b)
            for a, b in equalities(block.conjuncts, self.query.types)
            if isinstance(a, Ref) and isinstance(b, Ref) and b.instance in few
        ]
        for i, node in block.leaves:
            if not isinstance(node, Given) or self.relations.is_changed(node):
                continue
            restricted.pop(i, None)
            for other, rows in few.items():
                sides = {
                    a.column: b.column for a, b in refs if (a.instance, b.instance) == (i, other)
                }
                if sides:
                    one = Restriction((*sides,), rows, (*sides.values(),), is_joined=True)
                    restricted[i] = [one]
                    break

    # --------------------------------------------------------------------------------- subqueries

    def _retested(self, block: Block, shown: Sequence[Expr]) -> list[str]:
        """Return the rows for which subqueries are something else than before, one by one.

        The leaves of the Block are as they were; the subqueries before one are as they are.
        """
        relations, block = self.relations, replace(block, columns=_outs(shown))
        tests = outermost([*block.conjuncts, *shown], Subquery)
        changed = [s for s in tests if relations.is_changed(s.block)]
        versions = {id(s): OLD for s in changed}
        texts: list[str] = []
        for subquery in changed:
            if self.has_one_value(subquery):
                relations.expect_same(subquery, self.query.types)
                versions[id(subquery)] = NEW
                continue
            self.only_adds = False
            search = self._keyed(block, subquery)
            own, outer = [a for a, _ in search.pairs], [b for _, b in search.pairs]
            keys = self.touched(search.rows, own, net=_asks_for_keys(subquery, search))
            if keys is not None:
                reduce = self._with_nulls if search.is_value else self._reduced
                keys = reduce(block, outer, keys)
                whole = replace(block, columns=_outs([*shown, *outer]))
                restricted = self._restricted(whole, outer, keys)
                n = len(shown)
                for version, weight in VERSIONS:
                    now = {**versions, id(subquery): version}
                    printers = {s: relations.printer(v, restricted) for s, v in now.items()}
                    printer = relations.printer(OLD, restricted, printers)
                    rows = printer.block(block, columns=[*shown, *outer])
                    texts.append(having(rows, range(n), keys, range(n, n + len(outer)), weight))
            versions[id(subquery)] = NEW
        return texts

    def _reduced(self, block: Block, exprs: Sequence[Expr], keys: str) -> str:
        """Return the keys that a Block can have, as far as conditions on unchanged tables tell.

        Parameters
        ----------
        exprs
            The expressions of the Block that have the keys' values.
        """
        refs: dict[int, dict[int, Ref]] = {}
        for number, expr in enumerate(exprs):
            for ref in equal_columns(expr, block.conjuncts, self.query.types):
                refs.setdefault(ref.instance, {})[number] = ref
        names = ", ".join(f"k.c{n}" for n in range(len(exprs)))
        equal = "<=>" if "<=>" in self.query.calls.ops else "="  # which never holds for NULL
        for instance, node in block.leaves:
            columns = refs.get(instance)
            if not columns or not isinstance(node, Given) or self.relations.is_changed(node):
                continue
            filters = tuple(
                c
                for c in block.conjuncts
                if self._free.of(c) == frozenset((instance,)) and not self.relations.is_changed(c)
            )
            if filters:
                one = Block(((instance, node),), filters, _outs(columns.values()))
                restricted = restrictions(one, columns, keys, self.query.types)
                rows = self.relations.printer(NEW, restricted).block(one)
                same = " AND ".join(f"k.c{n} {equal} t.c{k}" for k, n in enumerate(columns))
                text = f"SELECT {names} FROM {quote(keys)} AS k LEFT SEMI JOIN ({rows}) AS t"
                keys = self.relations.hold("keys", f"{text} ON {same}")
        return keys

    def _with_nulls(self, block: Block, exprs: Sequence[Expr], keys: str) -> str:
        """Return the keys of rows for which IN has another value, which may be NULL.

        NULL is a key too, because IN is NULL for it if the subquery has rows. If a NULL came to the
        subquery, or went, all rows have other values.
        """
        relations, (expr,) = self.relations, exprs
        null = relations.hold("guard", f"SELECT 1 AS c0 FROM {quote(keys)} WHERE c0 IS NULL")
        tests = tuple(c for c in block.conjuncts if not outermost([c], Subquery))
        rows = relations.printer(OLD).block(replace(block, conjuncts=tests), columns=[expr])
        every = f"SELECT t.c0 FROM ({rows}) AS t LEFT SEMI JOIN {quote(null)} AS k ON TRUE"
        nulls = f"SELECT nullif(c0, c0) AS c0 FROM {quote(keys)}"
        return relations.hold("keys", f"SELECT c0 FROM {quote(keys)} UNION {nulls} UNION {every}")

    @located
    def _keyed(self, block: Block, subquery: Subquery) -> _Search:
        """Return how a subquery of a Block finds rows by keys.

        Raises
        ------
        NoRule
            A changed row may matter to rows that have other keys.
        """
        around = {i for i, _ in block.leaves}
        pairs = [*correlated(subquery, block, self.query.types)]
        has_value = subquery.kind == "in" and not pairs and is_value(subquery, block)
        if has_value:
            pairs = [self._value_pair(subquery)]
        blocks = [*dict.fromkeys(inner for inner, _, _ in pairs)]
        referring = [
            b
            for b in walk(subquery.block)
            if isinstance(b, Block)
            and any(not instances(c).isdisjoint(around) for c in b.conjuncts)
        ]
        if not blocks:
            raise NoRule("of a subquery without an equality with the outer query")
        if len({*blocks, *referring}) > 1:
            raise NoRule("of a subquery with conditions on the outer query in several places")
        (inner,) = blocks
        rest = tuple(c for c in inner.conjuncts if instances(c).isdisjoint(around))
        dropped = [c for c in inner.conjuncts if c not in rest]
        nested = outermost([*dropped, *(o.expr for o in inner.columns)], Subquery)
        beside = [s for s in nested if self.relations.is_changed(s.block)]
        rows = replace(inner, conjuncts=rest, columns=_outs(beside))
        elsewhere = _beside(subquery.block, inner)
        changed = self.relations.changed
        if self._free.of(rows) or any(
            isinstance(t, Given) and t.rows in changed for t in elsewhere
        ):
            raise NoRule("of a subquery that reads changed rows beside those that it finds by keys")
        both = [(own, outer) for _, own, outer in pairs]
        return _Search(rows, both, has_value)

    def _value_pair(self, subquery: Subquery) -> tuple[Block, Expr, Expr]:
        """Return the pair of expressions that decides the value of an IN, as `correlated` does."""
        block, args = subquery.block, subquery.args
        if (
            len(args) == 1
            and not self._free.of(block)
            and are_of_one_type(block.columns[0].expr, args[0], self.query.types)
        ):
            return block, block.columns[0].expr, args[0]
        raise NoRule(
            "of a NOT IN, or IN as a value, that is correlated or has several columns or types"
        )

    # ------------------------------------------------------------------------------------- leaves

    def node(self, node: Node) -> str | None:
        """Return the SELECT of the change of a leaf, or None if it does not change."""
        if not self.relations.is_changed(node):
            return None
        if isinstance(node, Given):
            self.only_adds &= node.rows in self.relations.grown
            return self.relations.delta(node)
        terms = self._node(node)
        if not terms:
            return None
        return f"SELECT * FROM {quote(self.relations.hold('change', union(terms)))}"

    @located
    def _node(self, node: Node) -> list[str]:
        match node:
            case Derived(block):
                return self.block(block)
            case Aggregate(sets=None):
                return self._groups(node)
            case Aggregate():
                return self._set_operation(grouped_by_each_set(self.query, node))
            case Outer("left"):
                return self._left(node)
            case Outer():
                return self._full(node)
            case SetOperation():
                return self._set_operation(node)
            case Limit():
                raise NoRule("of a LIMIT")
            case _:
                raise NoRule("a part of the query cannot be analyzed")

    def _windows(self, block: Block, shown: Sequence[Expr]) -> list[str]:
        """Return the change of a Block with windows: its partitions with touched keys."""
        if self.relations.has_changed_subquery(shown):  # staged queries have none here
            raise NoRule("a part of the query cannot be analyzed")
        self.only_adds = False
        partition = common_partition(shown)
        keys = self.touched(replace(block, columns=()), partition)
        if keys is None:
            return []
        restricted = self._restricted(replace(block, columns=_outs(shown)), partition, keys)
        n, columns = len(shown), [*shown, *partition]
        return [
            having(
                self.relations.printer(version, restricted).block(block, columns=columns),
                range(n),
                keys,
                range(n, len(columns)),
                weight,
            )
            for version, weight in VERSIONS
        ]

    def _groups(self, node: Aggregate) -> list[str]:
        self.only_adds = False
        n_keys = len(node.keys)
        if not node.keys:
            raise NoRule("of an aggregate over all rows")
        keys = self.touched(node.rows, node.keys, net=not node.aggregates)
        if keys is None:
            return []
        restricted = self._restricted(node.rows, node.keys, keys)
        n = n_keys + len(node.aggregates)
        return [
            having(
                self.relations.printer(version, restricted).aggregate(node),
                range(n),
                keys,
                range(n_keys),
                weight,
            )
            for version, weight in VERSIONS
        ]

    def _set_operation(self, node: SetOperation) -> list[str]:
        n = len(node.branches[0].columns)
        names = ", ".join(f"c{k}" for k in range(n))
        changes = [self.block(b) for b in node.branches]
        if not any(changes):
            return []
        # The branches that do not change give the columns their types.
        new = self.relations.printer(NEW)
        texts: list[str] = []
        for branch, terms in zip(node.branches, changes, strict=True):
            types = f"SELECT {names}, 0 AS {WEIGHT} FROM ({new.block(branch)}) LIMIT 0"
            texts += terms or [types]
        if node.kind == "union all":
            return [union(texts)]
        self.only_adds = False
        keys = self._distinct(union(texts), range(n))
        restricted: dict[int, list[Restriction]] = {}
        for branch in node.branches:
            _extend(restricted, self._restricted(branch, [o.expr for o in branch.columns], keys))
        return [
            having(
                self.relations.printer(version, restricted).node(node, 0, ()),
                range(n),
                keys,
                range(n),
                weight,
            )
            for version, weight in VERSIONS
        ]

    # -------------------------------------------------------------------------------- outer joins

    def _left(self, node: Outer) -> list[str]:
        """Return the change of a left outer join."""
        texts: list[str] = []
        pairs = self._pairs(node)
        exposed = _exposed(node, node.left)
        changes = self.block(exposed)
        if changes:
            delta = f"SELECT * FROM {quote(self.relations.hold('change', union(changes)))}"
            restricted: dict[int, list[Restriction]] = {}
            numbers = {o.expr: k for k, o in enumerate(exposed.columns)}
            for a, b in pairs:
                if a in numbers:
                    keys = self._distinct(delta, [numbers[a]])
                    _extend(restricted, self._restricted(node.right, [b], keys))
            side = _named(node, node.left, delta, WEIGHT)
            new = self.relations.printer(NEW, restricted)
            texts.append(new.outer(node, left=side, weight=f"a.{WEIGHT} AS {WEIGHT}"))
        if self.relations.is_changed(node.right):
            self.only_adds = False
            if not pairs:
                raise NoRule("of an outer join without an equality between its sides")
            keys = self.touched(node.right, [b for _, b in pairs])
            if keys is not None:
                texts += self._rejoined(node, pairs, keys)
        return texts

    def _rejoined(self, node: Outer, pairs: Sequence[tuple[Expr, Expr]], keys: str) -> list[str]:
        """Return the rows of the left side as it was that have keys, joined before and now."""
        restricted = self._restricted(node.left, [a for a, _ in pairs], keys)
        _extend(restricted, self._restricted(node.right, [b for _, b in pairs], keys))
        side = self._with_keys(node, node.left, [a for a, _ in pairs], keys, OLD, restricted)
        return [
            self.relations.printer(version, restricted).outer(
                node, left=side, weight=f"{weight} AS {WEIGHT}"
            )
            for version, weight in VERSIONS
        ]

    def _full(self, node: Outer) -> list[str]:
        """Return the change of a full outer join: its rows with touched keys."""
        self.only_adds = False
        pairs = self._pairs(node)
        if not pairs:
            raise NoRule("of an outer join without an equality between its sides")
        sides = ((node.left, [a for a, _ in pairs]), (node.right, [b for _, b in pairs]))
        touched = [keys for side, exprs in sides if (keys := self.touched(side, exprs))]
        if not touched:
            return []
        keys = self._distinct(
            union(f"SELECT * FROM {quote(one)}" for one in touched), range(len(pairs))
        )
        restricted: dict[int, list[Restriction]] = {}
        for side, exprs in sides:
            _extend(restricted, self._restricted(side, exprs, keys))
        return [
            self.relations.printer(version, restricted).outer(
                node,
                *(self._with_keys(node, s, e, keys, version, restricted) for s, e in sides),
                weight=f"{weight} AS {WEIGHT}",
            )
            for version, weight in VERSIONS
        ]

    def _pairs(self, node: Outer) -> list[tuple[Expr, Expr]]:
        """Return the pairs of expressions of the left and the right side that ON equates."""
        left, right = ({i for i, _ in side.leaves} for side in (node.left, node.right))
        return [
            (a, b)
            for a, b in equalities(node.on, self.query.types, null_safe=True)
            if instances(a) and instances(b) and instances(a) <= left and instances(b) <= right
        ]

    def _with_keys(
        self,
        node: Outer,
        side: Block,
        exprs: Sequence[Expr],
        keys: str,
        version: str,
        restricted: Restricted,
    ) -> str:
        """Return the rows of one side of an outer join that have keys."""
        columns = [*(o.expr for o in _exposed(node, side).columns), *exprs]
        n = len(columns) - len(exprs)
        rows = self.relations.printer(version, restricted).block(side, columns=columns)
        return _named(node, side, having(rows, range(n), keys, range(n, len(columns))))


def _exposed(node: Outer, side: Block) -> Block:
    """Return one side of an outer join, with the columns that its ON uses beside its own."""
    exprs = [*(o.expr for o in side.columns), *refs_in(node.on, side)]
    return replace(side, columns=_outs(exprs))


def _named(node: Outer, side: Block, rows: str, *more: str) -> str:
    """Return rows of `_exposed` with the names that `Printer.outer` expects."""
    n = len(side.columns)
    items = [f"c{k}" for k in range(n)]
    refs = refs_in(node.on, side)
    items += [f"c{n + k} AS r{ref.instance}_{ref.column}" for k, ref in enumerate(refs)]
    return f"SELECT {', '.join((*items, *more)) or '1 AS one'} FROM ({rows})"


def _beside(whole: Block, inner: Block) -> Iterator[object]:
    """Yield everything in a Block that is not in another Block within it."""
    stack: list[object] = [whole]
    while stack:
        this = stack.pop()
        if this is not inner:
            yield this
            stack += parts(this)


def _asks_for_keys(subquery: Subquery, search: _Search) -> bool:
    """Whether a subquery only asks whether there are rows with its keys."""
    block, rows = subquery.block, search.rows
    if subquery.kind == "scalar" or rows.leaves is not block.leaves or rows.columns:
        return False
    tests = [c for c in block.conjuncts if c not in rows.conjuncts]
    equated = {frozenset(pair) for pair in search.pairs}
    if subquery.kind == "in" and any(
        frozenset((out.expr, arg)) not in equated
        for out, arg in zip(block.columns, subquery.args, strict=True)
    ):
        return False
    return all(isinstance(c, Call) and c.op == "=" and frozenset(c.args) in equated for c in tests)


def _columns_of_one_table(block: Block, exprs: Sequence[Expr]) -> tuple[Given, list[int]] | None:
    """Return the table and the columns that expressions are, if a Block has all rows of a table."""
    if block.conjuncts or len(block.leaves) != 1:
        return None
    instance, node = block.leaves[0]
    columns = [e.column for e in exprs if isinstance(e, Ref) and e.instance == instance]
    return (node, columns) if isinstance(node, Given) and len(columns) == len(exprs) else None


def common_partition(exprs: Iterable[Expr]) -> list[Expr]:
    """Return the expressions by which all windows in some expressions are partitioned.

    Raises
    ------
    NoRule
        There are none.
    """
    windows = windows_in(exprs)
    common = [e for e in windows[0].partition if all(e in w.partition for w in windows)]
    if not common:
        reason = "of a window without a PARTITION BY that all windows share"
        raise NoRule(reason, windows[0].place, windows[0])
    return common


def _extend(
    restricted: dict[int, list[Restriction]], more: Mapping[int, Sequence[Restriction]]
) -> None:
    for instance, some in more.items():
        restricted.setdefault(instance, []).extend(some)


def _outs(exprs: Iterable[Expr]) -> tuple[Out, ...]:
    return tuple(Out("", "", e) for e in exprs)
