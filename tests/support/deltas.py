"""Queries maintained by their deltas in DuckDB, and compared with a computation from scratch.

Tables have random rows, with duplicates and NULLs, and change at random: rows come, go, or get other
values, and files are written again with rows that stay. A program of `analysis.deltas` gives the
table's new rows; the query's own text, which the program never runs, gives those that it must have.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import sqlglot
from conftest import compilation_of
from duckdb_engine import _translated

from persist_assets.analysis.algebra import Given, walk
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.analysis.deltas.program import change_of
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import ROW_WEIGHT, Program, relation_name

if TYPE_CHECKING:
    import random
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from persist_assets.analysis.deltas.staging import Staged

Rows = list[tuple[Any, ...]]
Bag = Counter[tuple[Any, ...]]
Columns = dict[str, dict[str, str]]
"""By table, the names and Spark types of its columns."""

as_duckdb = cache(_translated)


class NotComparable(Exception):
    """DuckDB cannot run a statement."""


@dataclass(slots=True)
class Tables:
    """Two versions of raw tables."""

    columns: Columns
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
        for table in sorted(tables):
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """A change that a program followed.

    Attributes
    ----------
    method
        How: ``none``, ``append``, ``keys`` or ``rows``.
    differs
        Rows of the query changed.
    """

    method: str
    differs: bool


class Maintained:
    """One query over raw tables, whose rows are maintained in DuckDB.

    Attributes
    ----------
    rows
        The rows of its table.
    """

    def __init__(self, raw: str, query: str, columns: Columns) -> None:
        self.query, self.tables = query, Tables(columns)
        self.compilation = compilation_of({"raw.sql": raw, "q.sql": f"CREATE VIEW q AS {query}"})
        assert not self.compilation.project.errors, self.compilation.project.errors
        self.definition: Staged = self.compilation.definition("q@sources/q.sql")
        self.ids = {g.rows for g in walk(self.definition.block) if isinstance(g, Given)}
        self.database = duckdb.connect(config={"threads": 1})
        self.database.execute("SET TimeZone = 'UTC'; PRAGMA disable_optimizer")
        self.rows: Bag = Counter()

    @property
    def reads(self) -> list[str]:
        """The tables that the query reads."""
        return sorted(i.partition("@")[0] for i in self.ids)

    def program(self, changed: Iterable[str], *, grows: bool = False) -> Program | None:
        """Return the program for a change of some tables."""
        ids = frozenset(i for i in self.ids if i.partition("@")[0] in {*changed})
        return change_of(self.definition, ids, ids if grows else frozenset())

    def fill(self, rng: random.Random, n: int) -> None:
        """Give the tables rows, and compute the query from them."""
        self.tables.fill(rng, n)
        for table, columns in self.tables.columns.items():
            self._load_rows(table, columns, self.tables.new[table])
        self.rows = self.scratch()

    def follow(self, rng: random.Random, changed: Sequence[str], *, grows: bool = False) -> Outcome:
        """Change some tables, and bring the rows up to date with a program.

        Fails if they are then not what the query gives from scratch.

        Raises
        ------
        NoRule
            There is no program.
        NotComparable
            DuckDB cannot run the program.
        """
        program, before = self.program(changed, grows=grows), self.rows
        self.tables.change(rng, changed, grows=grows)
        self._load(rng, changed, program, grows=grows)
        try:
            self.rows = self.applied(program)
            expected = self.scratch()
            assert self.rows == expected, (
                f"{self.rows - expected} more, {expected - self.rows} less"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explained(changed, program)}") from None
        method = "none" if program is None else "keys" if program.keys else "rows"
        if program is not None and program.only_adds:
            method = "append"
        return Outcome(method, before != self.rows)

    def _load(
        self, rng: random.Random, changed: Sequence[str], program: Program | None, *, grows: bool
    ) -> None:
        """Load the relations that programs read, as `building/changed_tables.py` does."""
        for source_id in sorted(self.ids):
            table = source_id.partition("@")[0]
            columns = self.tables.columns[table]
            if table not in changed:
                self._view(relation_name("now", source_id), f"FROM {_name(table)}")
                continue
            before, after = self.tables.old[table], self.tables.new[table]
            came, went = _minus(after, before), _minus(before, after)
            kept = _minus(before, went)
            if not grows:  # rows that files had beside those that went were written again
                again = [row for row in kept if rng.random() < 0.2]
                kept = _minus(kept, again)
                came, went = [*came, *again], [*again, *went]
            names = {v: relation_name(v, source_id) for v in ("kept", "lost", "gained")}
            for version, rows in (("kept", kept), ("lost", went), ("gained", came)):
                self._load_rows(names[version], columns, rows)
            old, new = (
                f"FROM {_name(names['kept'])} UNION ALL FROM {_name(names[version])}"
                for version in ("lost", "gained")
            )
            self._view(table, new)
            self._view(relation_name("new", source_id), new)
            self._view(relation_name("old", source_id), old)
            used = program.columns[source_id] if program is not None else tuple(columns)
            delta = _delta(names["gained"], None if grows else names["lost"], used)
            self._view(relation_name("delta", source_id), delta)

    def _view(self, name: str, sql: str) -> None:
        self.database.execute(f"CREATE OR REPLACE VIEW {_name(name)} AS {sql}")

    def _load_rows(self, name: str, columns: Mapping[str, str], rows: Rows) -> None:
        items = ", ".join(
            f"v{k}::{_duckdb_kind(kind)} AS {_name(column)}"
            for k, (column, kind) in enumerate(columns.items())
        )
        names = ", ".join(f"v{k}" for k in range(len(columns)))
        lines = [*map(_literal, rows)] or [_literal((None,) * len(columns))]
        rest = "" if rows else " WHERE false"
        self._view(name, f"SELECT {items} FROM (VALUES {', '.join(lines)}) AS v({names}){rest}")

    def rows_of(self, sql: str) -> Bag:
        """Return the rows of a Spark query.

        Raises
        ------
        NotComparable
            DuckDB cannot run it.
        """
        with _comparable(sql):
            rows = self.database.execute(as_duckdb(sql)).fetchall()
        return Counter(_plain(row) for row in rows)

    def scratch(self) -> Bag:
        """Return the rows of the query's own text."""
        return self.rows_of(self.query)

    def printed(self) -> Bag:
        """Return the rows of the query as it is printed."""

        def table(node: Given, _: int, columns: Sequence[int]) -> str:
            items = ", ".join(f"{quote(node.columns[k])} AS c{k}" for k in columns) or "1 AS one"
            return f"SELECT {items} FROM {quote(node.rows.partition('@')[0])}"

        return self.rows_of(Printer(table).block(self.definition.block))

    def applied(self, program: Program | None) -> Bag:
        """Return the rows that a program makes of the present ones."""
        if program is None:
            return self.rows
        for name, sql in program.held.items():
            with _comparable(sql):
                self.database.execute(f"CREATE OR REPLACE TABLE {_name(name)} AS {as_duckdb(sql)}")
        rows = self.rows_of(program.rows)
        if program.keys is not None:
            keys = set(self.rows_of(f"SELECT * FROM {quote(program.keys)}"))
            numbers = program.key_columns
            stay = {r: n for r, n in self.rows.items() if tuple(r[k] for k in numbers) not in keys}
            return Counter(stay) + rows
        after = Counter(self.rows)
        for row, n in rows.items():
            assert not program.only_adds or row[-1] >= 0, f"{row} goes"
            after[row[:-1]] += row[-1] * n
        assert all(n >= 0 for n in after.values()), f"rows that are not there go: {after}"
        return +after

    def _explained(self, changed: Sequence[str], program: Program | None) -> str:
        tables = [f"{t}: {self.tables.old[t]} to {self.tables.new[t]}" for t in self.reads]
        held = [f"{n}: {sql}" for n, sql in program.held.items()] if program else ["no program"]
        held += [program.rows, f"keys {program.keys} {program.key_columns}"] if program else []
        return "\n".join((self.query, f"changed: {changed}", *tables, *held))


@contextmanager
def _comparable(sql: str) -> Generator[None]:
    """Turn every failure of DuckDB, or of the translation for it, into `NotComparable`."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise NotComparable(f"{error}: {sql}") from error


def _delta(gained: str, lost: str | None, columns: Sequence[str]) -> str:
    """Return the changed rows of a table, as far as a query reads its columns."""
    items = "".join(f"{_name(c)}, " for c in columns)
    came = f"SELECT {items}1 AS {ROW_WEIGHT} FROM {_name(gained)}"
    if lost is None:
        return came
    went = f"SELECT {items}-1 AS {ROW_WEIGHT} FROM {_name(lost)}"
    keys = ", ".join(map(_name, columns))
    return (
        f"SELECT {items}sum({ROW_WEIGHT}) AS {ROW_WEIGHT} FROM ({came} UNION ALL {went})"
        f"{f' GROUP BY {keys}' if keys else ''} HAVING sum({ROW_WEIGHT}) <> 0"
    )


def _minus(rows: Rows, others: Rows) -> Rows:
    left = Counter(map(repr, others))
    stay: Rows = []
    for row in rows:
        if left[repr(row)]:
            left[repr(row)] -= 1
        else:
            stay.append(row)
    return stay


@cache
def _duckdb_kind(kind: str) -> str:
    return sqlglot.exp.DataType.build(kind, dialect="spark").sql("duckdb")


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case tuple():
            return f"({', '.join(map(_literal, value))})"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case str():
            return f"'{value}'"
        case _:
            return str(value)


def _name(name: str) -> str:
    return f'"{name}"'


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(sorted(map(repr, v)))
        if isinstance(v, list)
        else repr(v)
        if isinstance(v, dict)
        else v
        for v in row
    )
