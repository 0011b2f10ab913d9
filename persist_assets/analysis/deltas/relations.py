"""The relations that statements on deltas read: tables in two versions, and held relations. Pure.

A restriction of a table that changed reads a probe: its rows with some keys. The table is read once
for both versions. Keys that come from changed rows are united, so that a query has one probe for
each table and column; those with the same keys serve all queries of a run.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Block, Given, Outer, Ref, Subquery, walk
from persist_assets.analysis.deltas.exactness import check_exact
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.analysis.deltas.pushing import equalities
from persist_assets.analysis.deltas.staging import outermost
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import (
    ROW_WEIGHT,
    WEIGHT,
    NoRule,
    Probe,
    probe_name,
    relation_name,
)
from persist_assets.core.spark_types import is_loose

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.deltas.pushing import Restriction
    from persist_assets.analysis.types import Types
    from persist_assets.core.model.queries import SourceID

    Restricted = Mapping[int, Sequence[Restriction]]

OLD, NEW = "old", "new"
VERSIONS = ((NEW, 1), (OLD, -1))
"""The versions of rows that are computed again, with their weights."""


_INSTANCE = re.compile(
    r"""'[^']*'|"[^"]*"|`(?:[^`]|``)*`|\b(?P<kind>[lr])(?P<number>\d+)(?P<column>_\d+)?\b(?!\()"""
)
"""An instance in a statement, or a text or name in which there may be none."""

Column = tuple["SourceID", int]
"""A column of a table, by its number."""


class Relations:
    """The relations that the rules of one query read: tables, and relations that are held.

    Parameters
    ----------
    changed
        The tables that changed.
    grown
        Those of them that only got rows.
    classes
        For columns of tables that the query equates, the columns equated with each other.

    Attributes
    ----------
    held
        Relations to compute first, by name, each after those that it reads.
    probes
        Rows of changed tables by keys, by digest.
    changed_values
        See `Program`.
    """

    def __init__(
        self,
        changed: frozenset[SourceID],
        grown: frozenset[SourceID],
        classes: Mapping[Column, frozenset[Column]],
    ) -> None:
        self.changed, self.grown, self._classes = changed, grown, classes
        self.held: dict[str, str] = {}
        self.probes: dict[str, Probe] = {}
        self.changed_values: list[str] = []
        self._origins: dict[str, frozenset[Column]] = {}
        self._reads: dict[int, frozenset[str]] = {}
        self._keep_alive: list[object] = []  # keeps alive the objects whose ids are keys

    def hold(self, kind: str, sql: str) -> str:
        """Return the name of a relation that is computed once and held."""
        sql = _renumbered(sql)
        name = f"{kind}:{sha256(sql.encode()).hexdigest()[:16]}"
        self.held.setdefault(name, sql)
        return name

    def hold_keys(self, sql: str, origins: Iterable[Column | None]) -> str:
        """Return the name of a relation of keys.

        Parameters
        ----------
        origins
            Columns of changed tables that have all of the keys in their changes, if there is one
            column of keys; None: some keys are from elsewhere.
        """
        name, columns = self.hold("keys", sql), [*origins]
        if columns and None not in columns:
            self._origins[name] = frozenset(c for c in columns if c is not None)
        return name

    def expect_same(self, subquery: Subquery, types: Types) -> None:
        """Let the rules assume that a subquery has the same value for all rows as before.

        Raises
        ------
        NoRule
            Its value depends on the order of rows, or cannot be compared.
        """
        check_exact(subquery.block, types, compared=True)
        is_scalar = subquery.kind == "scalar"
        kind = types.of(subquery.block.columns[0].expr) if is_scalar else "boolean"
        if kind is not None and re.search(r"\b(map|variant)\b", kind.lower()):
            raise NoRule(f"of a subquery of the type {kind.upper()}", subquery.place, subquery)
        new, old = (self.printer(version).expr(subquery) for version in (NEW, OLD))
        same = f"{new} <=> {old}"
        if is_loose(kind):  # 0.0 equals -0.0
            same += f" AND CAST({new} AS STRING) <=> CAST({old} AS STRING)"
        changed = self.hold("value", f"SELECT 1 AS c0 WHERE NOT ({same})")
        if changed not in self.changed_values:
            self.changed_values.append(changed)

    def is_changed(self, *things: object) -> bool:
        """Whether relations or expressions read a table that changed."""
        return any(not self._read_by(thing).isdisjoint(self.changed) for thing in things)

    def has_changed_subquery(self, exprs: Iterable[Expr]) -> bool:
        """Whether expressions have subqueries that read a table that changed."""
        return self.is_changed(*(s.block for s in outermost(exprs, Subquery)))

    def _read_by(self, thing: object) -> frozenset[str]:
        reads = self._reads.get(id(thing))
        if reads is None:
            reads = frozenset(g.rows for g in walk(thing) if isinstance(g, Given))
            self._reads[id(thing)] = reads
            self._keep_alive.append(thing)
        return reads

    def printer(
        self,
        version: str,
        restricted: Restricted | None = None,
        subqueries: Mapping[int, Printer] | None = None,
    ) -> Printer:
        """Return a printer of relations as they were or as they are.

        Parameters
        ----------
        restricted
            The keys to which tables may be restricted, by instance.
        subqueries
            The printers of some subqueries, by `id`.
        """

        def table(node: Given, instance: int, columns: Sequence[int]) -> str:
            return self._table(node, version, columns, (restricted or {}).get(instance, ()))

        return Printer(table, subqueries or {})

    def delta(self, node: Given) -> str:
        """Return the SELECT of the changed rows of a table."""
        return _delta(node.rows)

    def _table(
        self, node: Given, version: str, columns: Sequence[int], restricted: Sequence[Restriction]
    ) -> str:
        """Return the SELECT of a table: of all rows, or at least of those with some keys."""
        if node.rows not in self.changed:
            text = f"SELECT {_items(node, columns)} FROM {quote(relation_name('now', node.rows))}"
            return f"{text} AS t{_semi_join(node, restricted[0])}" if restricted else text
        if not restricted:
            return f"SELECT {_items(node, columns)} FROM {quote(relation_name(version, node.rows))}"
        names = ", ".join(f"c{k}" for k in columns) or "1 AS one"
        return self.probed(node, version, restricted[0], names)

    def probed(
        self, node: Given, version: str, restriction: Restriction, columns: str = "*"
    ) -> str:
        """Return the SELECT of the rows of a changed table that have some keys."""
        name = probe_name(version, self._probe(node, restriction))
        return f"SELECT {columns} FROM {quote(name)}"

    def _probe(self, node: Given, restriction: Restriction) -> str:
        """Return the digest of the probe of the rows of a table that have some keys.

        If the query equates the column with those that the keys come from, the probe has all values
        of these columns in changed rows. So all terms and other queries can read it.
        """
        keys, numbers = restriction.keys, restriction.numbers
        columns = tuple((c, node.columns[c]) for c in restriction.columns)
        origins = self._origins.get(keys, frozenset()) if len(numbers) == 1 else frozenset()
        same = self._classes.get((node.rows, restriction.columns[0]), frozenset())
        if origins and origins <= same:
            digest = sha256(repr((node.rows, columns)).encode()).hexdigest()[:16]
            keys = f"keys:{digest}"
            known = self.probes.get(digest)
            united = tuple(sorted(origins.union(known.origins if known else ())))
            self.held[keys] = " UNION ".join(map(_changed_values, united))
            self.probes[digest] = Probe(node.rows, columns, keys, united)
            return digest
        if numbers != tuple(range(len(numbers))):
            items = ", ".join(f"c{n} AS c{k}" for k, n in enumerate(numbers))
            keys = self.hold("keys", f"SELECT {items} FROM {quote(keys)}")
        digest = sha256(repr((node.rows, columns, keys)).encode()).hexdigest()[:16]
        self.probes[digest] = Probe(node.rows, columns, keys)
        return digest


def _renumbered(sql: str) -> str:
    """Return a statement whose instances are numbered in its order.

    Equal parts of a query have instances of other numbers, and are computed once. The fields of a
    type could have the names of instances.
    """
    if "struct<" in sql.lower():
        return sql
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        if match["number"] is None:
            return match[0]
        number = numbers.setdefault(match["number"], len(numbers) + 1)
        return f"{match['kind']}{number}{match['column'] or ''}"

    return _INSTANCE.sub(numbered, sql)


def _changed_values(column: Column) -> str:
    table, number = column
    return f"SELECT DISTINCT c{number} AS c0 FROM ({_delta(table)})"


def _delta(table: SourceID) -> str:
    return f"SELECT *, {ROW_WEIGHT} AS {WEIGHT} FROM {quote(relation_name('delta', table))}"


def equated_columns(block: Block, types: Types) -> dict[Column, frozenset[Column]]:
    """Return the columns of tables that a query equates with each other, anywhere in it."""
    tables: dict[int, str] = {}
    pairs: list[tuple[Expr, Expr]] = []
    for thing in walk(block):
        if isinstance(thing, Block):
            tables |= {i: n.rows for i, n in thing.leaves if isinstance(n, Given)}
            pairs += equalities(thing.conjuncts, types)
        elif isinstance(thing, Outer):
            pairs += equalities(thing.on, types)
    classes: dict[Column, frozenset[Column]] = {}
    for a, b in pairs:
        if not (isinstance(a, Ref) and isinstance(b, Ref)):
            continue
        if a.instance in tables and b.instance in tables:
            columns = (tables[a.instance], a.column), (tables[b.instance], b.column)
            joint = frozenset(columns).union(*(classes.get(c, frozenset((c,))) for c in columns))
            classes |= dict.fromkeys(joint, joint)
    return classes


def _semi_join(node: Given, restriction: Restriction) -> str:
    sides = [
        (f"t.{quote(node.columns[c])}", f"c{n}")
        for c, n in zip(restriction.columns, restriction.numbers, strict=True)
    ]
    if restriction.is_joined:
        same = " AND ".join(f"{a} = j.{b}" for a, b in sides)
        return f" LEFT SEMI JOIN ({restriction.keys}) AS j ON {same}"
    same = " AND ".join(f"{a} <=> k.{b}" for a, b in sides)
    return f" LEFT SEMI JOIN {quote(restriction.keys)} AS k ON {same}"


def _items(node: Given, columns: Iterable[int]) -> str:
    return ", ".join(f"{quote(node.columns[k])} AS c{k}" for k in columns) or "1 AS one"


def union(texts: Iterable[str]) -> str:
    """Return the UNION ALL of SELECTs."""
    texts = [*texts]
    return texts[0] if len(texts) == 1 else " UNION ALL ".join(f"({t})" for t in texts)


def having(
    rows: str,
    columns: Iterable[int],
    keys: str,
    numbers: Iterable[int],
    weight: int | None = None,
) -> str:
    """Return the rows of a relation that have some keys, with a weight."""
    items = [f"t.c{k}" for k in columns]
    items += [f"{weight} AS {WEIGHT}"] if weight is not None else []
    same = " AND ".join(f"t.c{k} <=> k.c{n}" for n, k in enumerate(numbers))
    items = items or ["1 AS one"]
    text = f"SELECT {', '.join(items)} FROM ({rows}) AS t"
    return f"{text} LEFT SEMI JOIN {quote(keys)} AS k ON {same}"
