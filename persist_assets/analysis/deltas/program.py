"""The program that maintains the table of a query: by keys, or row by row. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Derived,
    Given,
    Ref,
    walk,
)
from persist_assets.analysis.deltas.exactness import Exactness
from persist_assets.analysis.deltas.merging import merging_of
from persist_assets.analysis.deltas.printing import used_columns
from persist_assets.analysis.deltas.pushing import restrictions
from persist_assets.analysis.deltas.relations import (
    NEW,
    Relations,
    equated_columns,
    having,
    union,
)
from persist_assets.analysis.deltas.rules import Rules, common_partition
from persist_assets.analysis.deltas.staging import windows_in
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import Merging, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.core.model.queries import SourceID


@dataclass(frozen=True, slots=True)
class _Keyed:
    """The dependency of a whole query's rows on keys of changed rows.

    Attributes
    ----------
    rows, exprs
        The rows that change, and expressions over them: their values are the keys.
    numbers
        The numbers of the query's columns with these values.
    complete
        Aggregates and windows that are computed from all rows of a key.
    """

    rows: Block
    exprs: Sequence[Expr]
    numbers: Sequence[int]
    complete: Sequence[object] = ()


def change_of(
    query: Staged, changed: frozenset[SourceID], grown: frozenset[SourceID] = frozenset()
) -> Program | None:
    """Return the change of a query's rows; None: its rows do not change.

    Parameters
    ----------
    query
        The query, whose tables are `Given` by SourceID, with the names of their columns.
    changed
        The tables that changed.
    grown
        Those of them that only got rows.

    Raises
    ------
    NoRule
        A node of the query has no rule.
    """
    relations = Relations(changed, grown, equated_columns(query.block, query.types))
    rules = Rules(query, relations)
    if not relations.is_changed(query.block):
        return None
    exact = Exactness(query.types)
    keyed = _keys_of(query.block, relations)
    if keyed is None and not exact.of_query(query.block):
        keyed = _columns_of_tables(query.block, relations)
        if keyed is None:
            raise exact.refusal()
    if keyed is not None:
        if not (exact.of_rows(keyed.rows) and exact.of_exprs(keyed.exprs)):
            raise exact.refusal()
        # Other keys keep values that were computed together with those of touched keys.
        others = Exactness(query.types, keyed.complete, rounds=True)
        if not others.of_query(query.block):
            raise others.refusal()
        return _by_keys(query, relations, rules, keyed)
    terms = rules.block(query.block)
    if not terms:
        return None
    return _program(query, relations, union(terms), only_adds=rules.only_adds)


def _program(
    query: Staged,
    relations: Relations,
    text: str,
    keys: str | None = None,
    numbers: Sequence[int] = (),
    *,
    only_adds: bool = False,
) -> Program:
    held, columns = _needed(relations, text, keys or ""), used_of_tables(query.block)
    return Program(held, text, columns, relations.probes, keys, tuple(numbers), only_adds)


def merging(
    query: Staged, changed: frozenset[SourceID], grown: frozenset[SourceID] = frozenset()
) -> Merging:
    """Return how the aggregates of a query are merged; see `merging_of`."""
    return merging_of(query, changed, grown, used_of_tables(query.block))


def used_of_tables(block: Block) -> dict[SourceID, tuple[tuple[int, str], ...]]:
    """Return the numbers and the names of the columns of each table that a query uses."""
    used = used_columns([block])
    columns: dict[SourceID, dict[int, str]] = {}
    for inner in walk(block):
        for instance, node in inner.leaves if isinstance(inner, Block) else ():
            if isinstance(node, Given):
                numbers = used.get(instance, ())
                columns.setdefault(node.rows, {}).update({n: node.columns[n] for n in numbers})
    return {s: tuple(sorted(some.items())) for s, some in columns.items()}


def _by_keys(query: Staged, relations: Relations, rules: Rules, keyed: _Keyed) -> Program | None:
    """Return the program that computes the rows with touched keys again."""
    keys = rules.touched(keyed.rows, keyed.exprs)
    if keys is None:
        return None
    columns, numbers = query.block.columns, keyed.numbers
    by_number = {k: columns[n].expr for k, n in enumerate(numbers)}
    restricted = restrictions(query.block, by_number, keys, query.types)
    text = relations.printer(NEW, restricted).block(query.block)
    text = having(text, range(len(columns)), keys, numbers)
    return _program(query, relations, text, keys, numbers)


def _columns_of_tables(block: Block, relations: Relations) -> _Keyed | None:
    """Return the columns of a whole query that are columns of tables or keys of groups as its keys.

    None: they do not tell which rows change.
    """
    leaves = dict(block.leaves)
    numbers: list[int] = []
    for number, out in enumerate(block.columns):
        ref = out.expr
        node = leaves.get(ref.instance) if isinstance(ref, Ref) else None
        match node:
            case Aggregate(keys=keys) if isinstance(ref, Ref) and ref.column < len(keys):
                numbers.append(number)
            case Derived(inner) if isinstance(ref, Ref):
                numbers += [number] if isinstance(inner.columns[ref.column].expr, Ref) else []
            case Given():
                numbers.append(number)
            case _:
                pass
    shown = [o.expr for o in block.columns]
    if not numbers or relations.has_changed_subquery(shown):
        return None
    return _Keyed(block, [shown[n] for n in numbers], numbers)


def _needed(relations: Relations, *texts: str) -> dict[str, str]:
    """Return the relations that texts read, directly or through each other, in order."""
    needed, stack, held = set[str](), [*texts], relations.held
    while stack:
        text = stack.pop()
        for digest, probe in relations.probes.items():
            if f" probe:{digest}`" in text:
                stack.append(probe.keys)
        for name in held:
            if name not in needed and (name == text or quote(name) in text):
                needed.add(name)
                stack.append(held[name])
    return {name: sql for name, sql in held.items() if name in needed}


def _keys_of(block: Block, relations: Relations) -> _Keyed | None:
    """Return how a query's rows depend on its groups or partitions; None if they do not."""
    exprs = [o.expr for o in block.columns]
    if windows_in(exprs):
        if relations.has_changed_subquery(exprs):
            return None
        partition = [e for e in common_partition(exprs) if e in exprs]
        return _shown(block, block, partition, partition, windows_in(exprs))
    changed = [(i, n) for i, n in block.leaves if relations.is_changed(n)]
    if len(changed) != 1 or relations.has_changed_subquery([*block.conjuncts, *exprs]):
        return None
    ((instance, node),) = changed
    if isinstance(node, Aggregate) and node.sets is None and node.keys:
        refs = [(instance, k) for k in range(len(node.keys))]
        return _shown(block, node.rows, node.keys, refs, [node])
    if isinstance(node, Derived):
        inner = node.block
        computed = [o.expr for o in inner.columns]
        if windows_in(computed) and not relations.has_changed_subquery(computed):
            partition = [e for e in common_partition(computed) if e in computed]
            refs = [(instance, computed.index(e)) for e in partition]
            return _shown(block, inner, partition, refs, windows_in(computed))
    return None


def _shown(
    block: Block,
    rows: Block,
    keys: Sequence[Expr],
    refs: Sequence[Expr | tuple[int, int]],
    complete: Sequence[object],
) -> _Keyed | None:
    """Return keys with the numbers of the columns that show them; None if one is not shown."""
    exprs = [o.expr for o in block.columns]
    places: list[int] = []
    for ref in refs:
        places += [
            n
            for n, e in enumerate(exprs)
            if e is ref or (isinstance(e, Ref) and (e.instance, e.column) == ref)
        ][:1]
    if not refs or len(places) < len(refs):
        return None
    return _Keyed(replace(rows, columns=()), keys, places, complete)
