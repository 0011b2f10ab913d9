"""The program that maintains the table of a query: by keys, or row by row. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Block, Given, walk
from persist_assets.analysis.deltas.exactness import check_exact
from persist_assets.analysis.deltas.first_rows import first_rows_of
from persist_assets.analysis.deltas.keys import keys_of
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
from persist_assets.analysis.deltas.rules import Rules
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import WEIGHT, Merging, Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.analysis.deltas.keys import Keyed
    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.core.model.queries import SourceID


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
    first = first_rows_of(query)
    if first is not None:
        query = first.below
    relations = Relations(changed, grown, equated_columns(query.block, query.types))
    rules = Rules(query, relations)
    if not relations.is_changed(query.block):
        return None
    if first is not None:
        check_exact(query.block, query.types)
    elif (keyed := keys_of(query, relations)) is not None:
        return _by_keys(query, relations, rules, keyed)
    terms = rules.block(query.block)
    if not terms:
        return _unchanged(query, relations)
    if first is not None:
        return _program(query, relations, first.change(union(terms)))
    return _program(query, relations, union(terms), only_adds=rules.only_adds)


def _unchanged(query: Staged, relations: Relations) -> Program | None:
    """Return the program of a query whose rows do not change; None if that is certain."""
    if not relations.changed_values:
        return None
    items = "".join(f"c{k}, " for k in range(len(query.block.columns)))
    rows = relations.printer(NEW).block(query.block)
    text = f"SELECT {items}0 AS {WEIGHT} FROM ({rows}) LIMIT 0"
    return _program(query, relations, text, only_adds=True)


def _program(
    query: Staged,
    relations: Relations,
    text: str,
    keys: str | None = None,
    numbers: Sequence[int] = (),
    *,
    only_adds: bool = False,
) -> Program:
    values = tuple(relations.changed_values)
    return Program(
        held=_needed(relations, text, keys or "", *values),
        rows=text,
        columns=used_of_tables(query.block),
        probes=relations.probes,
        keys=keys,
        key_columns=tuple(numbers),
        only_adds=only_adds,
        changed_values=values,
    )


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


def _by_keys(query: Staged, relations: Relations, rules: Rules, keyed: Keyed) -> Program | None:
    """Return the program that computes the rows with touched keys again."""
    keys = rules.touched(keyed.rows, keyed.exprs)
    if keys is None:
        return _unchanged(query, relations)
    columns, numbers = query.block.columns, keyed.numbers
    by_number = {k: columns[n].expr for k, n in enumerate(numbers)}
    restricted = restrictions(query.block, by_number, keys, query.types)
    text = relations.printer(NEW, restricted).block(query.block)
    text = having(text, range(len(columns)), keys, numbers)
    return _program(query, relations, text, keys, numbers)


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
