"""The relations that statements on deltas read: tables in two versions, and held relations. Pure.

A restriction of a table that changed reads a held relation, its probe: the rows of the files that
the table kept which have some keys. It is computed once for both versions.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Given, walk
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import ROW_WEIGHT, WEIGHT, relation_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.deltas.pushing import Restriction
    from persist_assets.core.model.queries import SourceID

    Restricted = Mapping[int, Sequence[Restriction]]

OLD, NEW = "old", "new"
VERSIONS = ((NEW, 1), (OLD, -1))
"""The versions of rows that are computed again, with their weights."""


class Relations:
    """The relations that the rules of one query read: tables, and relations that are held.

    Parameters
    ----------
    changed
        The tables that changed.
    grown
        Those of them that only got rows.
    columns
        By table, the numbers of the columns that the query uses.

    Attributes
    ----------
    held
        Relations to compute first, by name, each after those that it reads.
    """

    def __init__(
        self,
        changed: frozenset[SourceID],
        grown: frozenset[SourceID],
        columns: Mapping[SourceID, Sequence[int]],
    ) -> None:
        self.changed, self.grown, self.columns = changed, grown, columns
        self.held: dict[str, str] = {}
        self._reads: dict[int, frozenset[str]] = {}
        self._keep_alive: list[object] = []  # keeps alive the objects whose ids are keys

    def hold(self, kind: str, sql: str) -> str:
        """Return the name of a relation that is computed once and held."""
        name = f"{kind}:{sha256(sql.encode()).hexdigest()[:16]}"
        self.held.setdefault(name, sql)
        return name

    def is_changed(self, *things: object) -> bool:
        """Whether relations or expressions read a table that changed."""
        return any(not self._read_by(thing).isdisjoint(self.changed) for thing in things)

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
        name = relation_name("delta", node.rows)
        items = _items(node, self.columns[node.rows])
        return f"SELECT {items}, {ROW_WEIGHT} AS {WEIGHT} FROM {quote(name)}"

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
        text = f"SELECT {names} FROM {quote(self._probe(node, restricted[0]))}"
        if version == OLD and node.rows in self.grown:
            return text
        own = relation_name("lost" if version == OLD else "gained", node.rows)
        return f"{text} UNION ALL SELECT {_items(node, columns)} FROM {quote(own)}"

    def _probe(self, node: Given, restriction: Restriction) -> str:
        """Return the relation with the rows of a table that it kept and that have some keys."""
        items = _items(node, self.columns[node.rows])
        kept = quote(relation_name("kept", node.rows))
        text = f"SELECT {items} FROM {kept} AS t{_semi_join(node, restriction)}"
        return self.hold("probe", text)


def _semi_join(node: Given, restriction: Restriction) -> str:
    same = " AND ".join(
        f"t.{quote(node.columns[c])} <=> k.c{n}"
        for c, n in zip(restriction.columns, restriction.numbers, strict=True)
    )
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
