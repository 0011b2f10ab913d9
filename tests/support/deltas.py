"""Queries maintained by their deltas in DuckDB, and compared with a computation from scratch.

Tables have random rows, with duplicates and NULLs, and change at random: rows come, go, or get other
values. A program of `analysis.deltas` gives the table's new rows; the query's own text, which the
program never runs, gives those that it must have.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import sqlglot
from conftest import compilation_of
from duckdb_engine import _translated

from persist_assets.analysis.algebra import Given, walk
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.analysis.deltas.program import change_of, merging
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import (
    ROW_WEIGHT,
    Merging,
    Program,
    probe_name,
    relation_name,
    state_name,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from persist_assets.analysis.deltas.staging import Staged

Rows = list[tuple[Any, ...]]


class NotComparable(Exception):
    """DuckDB cannot run a statement."""


@dataclass(slots=True)
class Tables:
    """Two versions of raw tables in DuckDB.

    Attributes
    ----------
    columns
        By table, the names and Spark types of its columns.
    """

    columns: Mapping[str, Mapping[str, str]]
    old: dict[str, Rows] = field(default_factory=dict)
    new: dict[str, Rows] = field(default_factory=dict)

    def fill(self, rng: random.Random, n: int) -> None:
        """Give each table up to `n` random rows."""
        for table, columns in self.columns.items():
            size = rng.randrange(n + 1)
            self.old[table] = [_row(rng, columns) for _ in range(size)]
            self.new[table] = [*self.old[table]]

    def change(self, rng: random.Random, tables: Iterable[str], *, grows: bool = False) -> None:
        """Change some tables at random.

        Parameters
        ----------
        grows
            Rows only come.
        """
        self.old = self.new
        self.new = {t: [*rows] for t, rows in self.old.items()}
        for table in tables:
            rows, columns = self.new[table], self.columns[table]
            for _ in range(rng.randrange(4) if not grows else 0):
                if rows and rng.random() < 0.5:
                    rows.pop(rng.randrange(len(rows)))
                elif rows:
                    at = rng.randrange(len(rows))
                    changed = [*rows[at]]
                    column = rng.randrange(len(changed))
                    changed[column] = _row(rng, columns)[column]
                    rows[at] = tuple(changed)
            for _ in range(rng.randrange(4)):
                rows.append(
                    _row(rng, columns) if rng.random() < 0.7 or not rows else rng.choice(rows)
                )


def _row(rng: random.Random, columns: Mapping[str, str]) -> tuple[Any, ...]:
    return tuple(_value(rng, kind.upper()) for kind in columns.values())


def _value(rng: random.Random, kind: str) -> Any:
    if rng.random() < 0.12:
        return None
    if kind.startswith("DECIMAL"):
        return f"{rng.randrange(4)}.{rng.choice((0, 5))}"
    if kind.startswith("ARRAY<"):
        return [_value(rng, kind[6:-1]) for _ in range(rng.randrange(3))]
    if kind.startswith("MAP<"):
        return None
    match kind:
        case "STRING":
            return rng.choice(("a", "b", "x", "y", "ab"))
        case "DATE":
            return f"2024-01-0{rng.randrange(1, 5)}"
        case "TIMESTAMP":
            return f"2024-01-0{rng.randrange(1, 4)} 0{rng.randrange(4)}:00:00"
        case "BOOLEAN":
            return rng.random() < 0.5
        case "DOUBLE":
            return rng.randrange(4) / 2
        case _:
            return rng.randrange(5)


class Maintained:
    """One query over raw tables, whose rows are maintained in DuckDB."""

    def __init__(self, raw: str, query: str, tables: Tables) -> None:
        self.query, self.tables = query, tables
        self._probed: set[str] = set()
        self.compilation = compilation_of({"raw.sql": raw, "q.sql": f"CREATE VIEW q AS {query}"})
        self.definition: Staged = self.compilation.definition("q@sources/q.sql")
        self.ids = {g.rows for g in walk(self.definition.block) if isinstance(g, Given)}
        self.database = duckdb.connect(config={"threads": 1})
        self.database.execute("SET TimeZone = 'UTC'")
        self.database.execute("CREATE MACRO raise_error(x) AS error(x)")

    @property
    def reads(self) -> list[str]:
        """The tables that the query reads."""
        return sorted(i.partition("@")[0] for i in self.ids)

    def program(self, changed: Iterable[str], *, grows: bool = False) -> Program | None:
        """Return the program for a change of some tables."""
        ids = frozenset(i for i in self.ids if i.partition("@")[0] in {*changed})
        return change_of(self.definition, ids, ids if grows else frozenset())

    def merging(self, changed: Iterable[str], *, grows: bool = False) -> Merging:
        """Return how the query's aggregates are merged with a change of some tables."""
        ids = frozenset(i for i in self.ids if i.partition("@")[0] in {*changed})
        return merging(self.definition, ids, ids if grows else frozenset())

    def merge(self, changed: Iterable[str], *, grows: bool = False) -> Counter[Any]:
        """Return the query's rows after a change, from states before it."""
        before = self.merging(())
        for source_id in self.ids:
            table = source_id.partition("@")[0]
            self._create(
                relation_name("now", source_id), self.tables.columns[table], self.tables.old[table]
            )
        for number, state in enumerate(before.states):
            self._show(state_name("former", number), state.initial)
        self.load(changed)
        program = self.merging(changed, grows=grows)
        self._hold(program)
        for number, state in enumerate(program.states):
            former, new = (f'"{state_name(v, number)}"' for v in ("former", "state"))
            if state.changed is None:
                self.database.execute(f"CREATE OR REPLACE TABLE {new} AS FROM {former}")
                continue
            self._probe(program, state.changed)
            self._show("changed", state.changed)
            keys = [f"k{k}" for k in range(state.n_keys)]
            same = " AND ".join(f"s.{k} IS NOT DISTINCT FROM c.{k}" for k in keys) or "true"
            stay = "WHERE n > 0" if keys else ""
            self.database.execute(
                f"CREATE OR REPLACE TABLE {new} AS SELECT * FROM {former} s"
                f" ANTI JOIN changed c ON {same} UNION ALL SELECT * FROM changed {stay}"
            )
        return self.rows_of(program.rows)

    def _show(self, name: str, sql: str) -> None:
        with _comparable(sql):
            self.database.execute(f'CREATE OR REPLACE TABLE "{name}" AS {_translated(sql)}')

    def load(self, changed: Iterable[str]) -> None:
        """Load the versions of all tables under the names that programs and queries use."""
        self._probed.clear()
        for source_id in sorted(self.ids):
            table = source_id.partition("@")[0]
            columns = self.tables.columns[table]
            before, after = self.tables.old[table], self.tables.new[table]
            self._create(table, columns, after)
            self._create(f"old {table}", columns, before)
            if table not in {*changed}:
                self._create(relation_name("now", source_id), columns, after)
                continue
            came, went = _minus(after, before), _minus(before, after)
            for version, rows in (("old", before), ("new", after)):
                self._create(relation_name(version, source_id), columns, rows)
            weighted = [(*r, 1) for r in came] + [(*r, -1) for r in went]
            numbered = {f"c{n}": kind for n, kind in enumerate(columns.values())}
            for version in ("delta", "changes"):
                self._create(
                    relation_name(version, source_id), {**numbered, ROW_WEIGHT: "BIGINT"}, weighted
                )

    def _hold(self, program: Program | Merging) -> None:
        """Compute the relations that the statements of a program read."""
        for name, sql in program.held.items():
            self._probe(program, sql)
            self._show(name, sql)

    def _probe(self, program: Program | Merging, sql: str) -> None:
        """Compute the probes that a statement reads: rows of tables that have some keys."""
        for version, digest in re.findall(r"`(old|new) probe:(\w+)`", sql):
            name, probe = probe_name(version, digest), program.probes[digest]
            if name in self._probed:
                continue
            self._probed.add(name)
            same = " AND ".join(
                f't."{column}" IS NOT DISTINCT FROM k.c{n}'
                for n, (_, column) in enumerate(probe.columns)
            )
            columns = self.tables.columns[probe.table.partition("@")[0]]
            items = ", ".join(f'"{c}" AS c{n}' for n, c in enumerate(columns))
            self.database.execute(
                f'CREATE OR REPLACE TABLE "{name}" AS SELECT {items}'
                f' FROM "{relation_name(version, probe.table)}" t SEMI JOIN "{probe.keys}" k'
                f" ON {same}"
            )

    def _create(self, name: str, columns: Mapping[str, str], rows: Rows) -> None:
        kinds = ", ".join(f'"{c}" {_duckdb_kind(k)}' for c, k in columns.items())
        self.database.execute(f'CREATE OR REPLACE TABLE "{name}" ({kinds})')
        if rows:
            marks = ", ".join("?" * len(columns))
            self.database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)

    def rows_of(self, sql: str) -> Counter[tuple[Any, ...]]:
        """Return the rows of a Spark query.

        Raises
        ------
        NotComparable
            DuckDB cannot run it.
        """
        with _comparable(sql):
            found = self.database.execute(_translated(sql)).fetchall()
        return Counter(_plain(row) for row in found)

    def scratch(self, *, old: bool = False) -> Counter[tuple[Any, ...]]:
        """Return the rows of the query's own text, now or before the change."""
        text = self.query
        if old:
            names = "|".join(self.tables.columns)
            text = re.sub(rf"(?<![\w.`'])({names})\b(?=\s*(?:[,)]|$|\w|JOIN))", r"\1", text)
            for table in self.reads:
                self.database.execute(f'CREATE OR REPLACE TABLE "{table}" AS FROM "old {table}"')
            rows = self.rows_of(text)
            for source_id in self.ids:
                table = source_id.partition("@")[0]
                self._create(table, self.tables.columns[table], self.tables.new[table])
            return rows
        return self.rows_of(text)

    def printed(self) -> Counter[tuple[Any, ...]]:
        """Return the rows of the query as it is printed, now."""

        def table(node: Given, _: int, columns: Sequence[int]) -> str:
            items = ", ".join(f"{quote(node.columns[k])} AS c{k}" for k in columns) or "1 AS one"
            return f"SELECT {items} FROM {quote(node.rows.partition('@')[0])}"

        return self.rows_of(Printer(table).block(self.definition.block))

    def apply(self, before: Counter[tuple[Any, ...]], program: Program | None) -> Counter[Any]:
        """Return the rows that a program makes of those before a change."""
        if program is None:
            return before
        self._hold(program)
        self._probe(program, program.rows)
        rows = self.rows_of(program.rows)
        if program.keys is not None:
            keys = set(self.rows_of(f"SELECT * FROM {quote(program.keys)}"))
            stay = Counter(
                {
                    row: n
                    for row, n in before.items()
                    if tuple(row[k] for k in program.key_columns) not in keys
                }
            )
            return stay + rows
        after = Counter(before)
        for row, n in rows.items():
            assert not program.only_adds or row[-1] >= 0
            after[row[:-1]] += row[-1] * n
        assert all(n >= 0 for n in after.values()), f"rows that are not there go: {after}"
        return +after


@contextmanager
def _comparable(sql: str) -> Generator[None]:
    """Turn every failure of DuckDB, or of the translation for it, into `NotComparable`."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise NotComparable(f"{error}: {sql}") from error


def _minus(rows: Rows, others: Rows) -> Rows:
    left = Counter(map(repr, others))
    kept: Rows = []
    for row in rows:
        if left[repr(row)]:
            left[repr(row)] -= 1
        else:
            kept.append(row)
    return kept


def _duckdb_kind(kind: str) -> str:
    return sqlglot.exp.DataType.build(kind, dialect="spark").sql("duckdb")


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(sorted(map(repr, v)))
        if isinstance(v, list)
        else repr(v)
        if isinstance(v, dict)
        else v
        for v in row
    )
