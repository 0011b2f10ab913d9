"""Queries maintained by their deltas in DuckDB, and compared with a computation from scratch.

Tables have random rows, with duplicates and NULLs, and change at random: rows come, go, or get other
values. A program of `analysis.deltas` gives the table's new rows, or states of its aggregates do; the
query's own text, which neither ever runs, gives those that it must have.
"""

from __future__ import annotations

import re
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

from persist_assets.analysis.algebra import Block, Given, walk
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.analysis.deltas.program import change_of, merging
from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import (
    FEW_LEFT,
    ROW_WEIGHT,
    TABLE,
    Merging,
    NoRule,
    Program,
    probe_name,
    relation_name,
    state_name,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from persist_assets.analysis.deltas.staging import Staged

Rows = list[tuple[Any, ...]]
Bag = Counter[tuple[Any, ...]]
Columns = dict[str, dict[str, str]]
"""By table, the names and Spark types of its columns."""

as_duckdb = cache(_translated)


class NotComparable(Exception):
    """DuckDB cannot run a statement."""


class Refused(Exception):
    """A build computes all rows: too few of the first ones are left, or a shared value changed."""


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
        How: ``none``, ``append``, ``keys`` or ``rows``; ``whole``: the program refused.
    differs
        Rows of the query changed.
    merged
        Its aggregates were merged with the change, too.
    """

    method: str
    differs: bool
    merged: bool = False


class Maintained:
    """One query over raw tables, whose rows are maintained in DuckDB.

    Attributes
    ----------
    rows
        The rows of its table.
    """

    def __init__(self, raw: str, query: str, columns: Columns) -> None:
        self.query, self.tables = query, Tables(columns)
        self._probed: set[str] = set()
        self.compilation = compilation_of({"raw.sql": raw, "q.sql": f"CREATE VIEW q AS {query}"})
        assert not self.compilation.project.errors, self.compilation.project.errors
        self.definition: Staged = self.compilation.definition("q@sources/q.sql")
        self.ids = {g.rows for g in walk(self.definition.block) if isinstance(g, Given)}
        blocks = [b for b in walk(self.definition.block) if isinstance(b, Block)]
        numbers = Counter(i for b in blocks for i, _ in b.leaves)
        assert {*numbers.values()} <= {1}, "several Blocks read one instance"
        self.database = _database().cursor()  # which has temporary tables of its own
        self.database.execute("SET TimeZone = 'UTC'; PRAGMA disable_optimizer; BEGIN")
        self.rows: Bag = Counter()
        self._has_states = self._nets = False
        self._views: dict[str, str] = {}
        self._created: set[str] = set()

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

    def fill(self, rng: random.Random, n: int) -> None:
        """Give the tables rows, and compute the query from them."""
        self.database.execute("COMMIT; BEGIN")
        self.tables.fill(rng, n)
        for table, columns in self.tables.columns.items():
            self._fill(f"filled:{table}", columns, self.tables.new[table])
            self._view(table, f"FROM {_name(f'filled:{table}')}")
        self.rows, self._has_states = self.scratch(), False

    def follow(
        self,
        rng: random.Random,
        changed: Sequence[str],
        *,
        grows: bool = False,
        merges: bool = False,
    ) -> Outcome:
        """Change some tables, and bring the rows up to date with a program.

        Fails if they are then not what the query gives from scratch.

        Parameters
        ----------
        merges
            Merge aggregates too, if possible.

        Raises
        ------
        NoRule
            There is neither a program, nor are aggregates merged.
        NotComparable
            DuckDB cannot run the program.
        """
        self.database.execute("COMMIT; BEGIN")
        states = self._merging(changed, grows=grows) if merges else None
        program, method = None, "merged"
        try:
            program, method = self.program(changed, grows=grows), "none"
        except NoRule:
            if states is None:
                raise
        if program is not None:
            method = "append" if program.only_adds else "keys" if program.keys else "rows"
        before = self.rows
        if states is not None and not self._has_states:
            self._begin(states)
        self.tables.change(rng, changed, grows=grows)
        self._nets = not self._nets  # builds net the changes of few rows
        self._load(changed, program or states)
        expected = self.scratch()
        self._has_states = states is not None
        try:
            if method != "merged":
                self._compare(changed, program, lambda: self.applied(program), expected)
        except Refused:
            method = "whole"
        try:
            if states is not None:
                self._compare(changed, states, lambda: self._merged(states), expected)
        except Refused:
            self._has_states, method = False, "whole" if method == "merged" else method
        self.rows = expected
        return Outcome(method, before != expected, states is not None)

    def _compare(
        self,
        changed: Sequence[str],
        program: Program | Merging | None,
        rows: Callable[[], Bag],
        expected: Bag,
    ) -> None:
        try:
            actual = rows()
            assert actual == expected, f"{actual - expected} more, {expected - actual} less"
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explained(changed, program)}") from None

    def _load(self, changed: Sequence[str], program: Program | Merging | None) -> None:
        """Load the relations that programs read, as `building/changed_tables.py` does."""
        self._probed.clear()
        for source_id in sorted(self.ids):
            table = source_id.partition("@")[0]
            columns = self.tables.columns[table]
            self._view(relation_name("now", source_id), f"FROM {_name(table)}")
            if table not in changed:
                continue
            before, after = self.tables.old[table], self.tables.new[table]
            for version, rows in (("old", before), ("new", after)):
                self._fill(relation_name(version, source_id), columns, rows)
            self._view(table, f"FROM {_name(relation_name('new', source_id))}")
            came, went = _minus(after, before), _minus(before, after)
            numbered = {f"c{n}": kind for n, kind in enumerate(columns.values())}
            weights = Counter[str]()
            by_text = {repr(row): row for row in (*came, *went)}
            weights.update(map(repr, came))
            weights.subtract(map(repr, went))
            weighted = [(*by_text[text], n) for text, n in weights.items() if n]
            changes = f"changes:{source_id}"
            self._fill(changes, {**numbered, ROW_WEIGHT: "BIGINT"}, weighted)
            used = program.columns[source_id] if program is not None else ()
            items = "".join(f"c{n}, " for n, _ in used)
            if self._nets:
                delta = (
                    f"SELECT {items}sum({ROW_WEIGHT})::BIGINT AS {ROW_WEIGHT} FROM {_name(changes)}"
                )
                delta += f" GROUP BY ALL HAVING sum({ROW_WEIGHT}) <> 0"
            else:
                delta = f"SELECT {items}{ROW_WEIGHT} FROM {_name(changes)}"
            self._view(relation_name("delta", source_id), delta)

    def _view(self, name: str, sql: str) -> None:
        if self._views.get(name) == sql:  # DuckDB reads the text of a view whenever it is used
            return
        self._views[name] = sql
        self.database.execute(f"CREATE OR REPLACE TEMP VIEW {_name(name)} AS {sql}")

    def _fill(self, name: str, columns: Mapping[str, str], rows: Rows) -> None:
        """Let a table have some rows, and no others."""
        if name not in self._created:
            self._created.add(name)
            items = ", ".join(f"{_name(c)} {_duckdb_kind(kind)}" for c, kind in columns.items())
            self.database.execute(f"CREATE TEMP TABLE {_name(name)} ({items})")
        sql = f"TRUNCATE {_name(name)}"
        if rows:
            sql += f"; INSERT INTO {_name(name)} VALUES {', '.join(map(_literal, rows))}"
        self.database.execute(sql)

    def _hold(self, name: str, sql: str) -> None:
        with _comparable(sql):
            self.database.execute(f"CREATE OR REPLACE TEMP TABLE {_name(name)} AS {as_duckdb(sql)}")

    def _prepare(self, program: Program | Merging, *texts: str) -> None:
        """Compute the relations that statements of a program read."""
        for name, sql in program.held.items():
            self._probe(program, sql)
            self._hold(name, sql)
        if any(self.rows_of(f"SELECT * FROM {quote(value)}") for value in program.changed_values):
            raise Refused
        for text in texts:
            self._probe(program, text)

    def _probe(self, program: Program | Merging, sql: str) -> None:
        """Compute the probes that a statement reads: rows of tables that have some keys."""
        for version, digest in re.findall(r"`(old|new) probe:(\w+)`", sql):
            name, probe = probe_name(version, digest), program.probes[digest]
            if name in self._probed:
                continue
            self._probed.add(name)
            same = " AND ".join(
                f"t.{_name(column)} IS NOT DISTINCT FROM k.c{n}"
                for n, (_, column) in enumerate(probe.columns)
            )
            columns = self.tables.columns[probe.table.partition("@")[0]]
            items = ", ".join(f"{_name(c)} AS c{n}" for n, c in enumerate(columns))
            table = _name(relation_name(version, probe.table))
            test = f"EXISTS (SELECT 1 FROM {_name(probe.keys)} k WHERE {same})"
            if self._nets:  # builds may read a probe with rows of other keys, too
                test = f"{test} OR hash(t, '{version}') % 3 = 0"
            self.database.execute(
                f"CREATE OR REPLACE TEMP TABLE {_name(name)} AS SELECT {items} FROM {table} t"
                f" WHERE {test}"
            )

    # --------------------------------------------------------------------------------- aggregates

    def _merging(self, changed: Sequence[str], *, grows: bool) -> Merging | None:
        try:
            return self.merging(changed, grows=grows)
        except NoRule:
            return None

    def _begin(self, program: Merging) -> None:
        """Compute the states from the tables as they are."""
        for source_id in self.ids:
            table = source_id.partition("@")[0]
            self._view(relation_name("now", source_id), f"FROM {_name(table)}")
        for number, state in enumerate(program.states):
            self._hold(state_name("state", number), state.initial)

    def _merged(self, program: Merging) -> Bag:
        """Return the query's rows, from its states before the change."""
        for number in range(len(program.states)):
            former = f"SELECT * FROM {quote(state_name('state', number))}"
            self._hold(state_name("former", number), former)
        self._prepare(program)
        for number, state in enumerate(program.states):
            if state.changed is None:
                continue
            former, new = (_name(state_name(v, number)) for v in ("former", "state"))
            self._probe(program, state.changed)
            self._hold("changed", state.changed)
            summed, changed = map(self.rows_of, (state.summed, "SELECT * FROM changed"))
            assert _without_nulls(summed) == _without_nulls(changed), "the sums differ"
            keys = [f"k{k}" for k in range(state.n_keys)]
            same = " AND ".join(f"s.{k} IS NOT DISTINCT FROM c.{k}" for k in keys) or "true"
            self.database.execute(
                f"CREATE OR REPLACE TEMP TABLE {new} AS SELECT * FROM {former} s"
                f" ANTI JOIN changed c ON {same} UNION ALL"
                f" SELECT * FROM changed{' WHERE n > 0' if keys else ''}"
            )
        rows = self.rows_of(program.rows)
        if program.key_columns and program.states[0].changed is not None:
            keys = ", ".join(f"k{k}" for k in range(program.states[0].n_keys))
            touched = {*self.rows_of(f"SELECT {keys} FROM changed")}
            before, after = (
                _outside(some, program.key_columns, touched) for some in (self.rows, rows)
            )
            assert before == after, f"rows of other keys than {touched} differ"
        return rows

    # ----------------------------------------------------------------------------------- programs

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
        if program.reads_table:
            self._fill_table()
        self._prepare(program, program.rows)
        self.database.execute("COMMIT; BEGIN")
        try:
            rows = self.rows_of(program.rows)
        except NotComparable as error:
            if FEW_LEFT in str(error.__cause__):
                self.database.execute("ROLLBACK; BEGIN")
                raise Refused from error
            raise
        if program.keys is not None:
            keys = set(self.rows_of(f"SELECT * FROM {quote(program.keys)}"))
            return _outside(self.rows, program.key_columns, keys) + rows
        after = Counter(self.rows)
        for row, n in rows.items():
            assert not program.only_adds or row[-1] >= 0, f"{row} goes"
            after[row[:-1]] += row[-1] * n
        assert all(n >= 0 for n in after.values()), f"rows that are not there go: {after}"
        return +after

    def _fill_table(self) -> None:
        """Let programs read the rows of the table."""
        columns = [f"c{n}" for n in range(len(self.definition.block.columns))]
        like = f"SELECT * FROM ({as_duckdb(self.query)}) AS t({', '.join(columns)}) LIMIT 0"
        self.database.execute(f"CREATE OR REPLACE TEMP TABLE {_name(TABLE)} AS {like}")
        marks = ", ".join("?" for _ in columns)
        if self.rows:
            insert = f"INSERT INTO {_name(TABLE)} VALUES ({marks})"
            self.database.executemany(insert, [*self.rows.elements()])

    def _explained(self, changed: Sequence[str], program: Program | Merging | None) -> str:
        tables = [f"{t}: {self.tables.old[t]} to {self.tables.new[t]}" for t in self.reads]
        held = [f"{n}: {sql}" for n, sql in program.held.items()] if program else ["no program"]
        match program:
            case Program(rows=rows, keys=keys, key_columns=numbers, probes=probes):
                held += [rows, f"keys {keys} {numbers}", f"{dict(probes)}"]
            case Merging(states=states, rows=rows):
                held += [f"{state}" for state in states] + [rows]
            case None:
                pass
        return "\n".join((self.query, f"changed: {changed}", *tables, *held))


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the database of the test process: opening one costs as much as thirty statements."""
    database = duckdb.connect(config={"threads": 1})
    database.execute("CREATE MACRO raise_error(x) AS error(x)")
    return database


def _outside(rows: Bag, numbers: Sequence[int], keys: Collection[tuple[Any, ...]]) -> Bag:
    """Return the rows whose values in some columns are none of some keys."""
    return Counter({r: n for r, n in rows.items() if tuple(r[k] for k in numbers) not in keys})


@contextmanager
def _comparable(sql: str) -> Generator[None]:
    """Turn every failure of DuckDB, or of the translation for it, into `NotComparable`."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise NotComparable(f"{error}: {sql}") from error


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


def _without_nulls(rows: Bag) -> list[str]:
    """Return rows in which a sum of nothing is 0."""
    return sorted(repr([0 if v is None or v == 0 else v for v in row]) for row in rows.elements())


def _plain(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(sorted(map(repr, v)))
        if isinstance(v, list)
        else repr(v)
        if isinstance(v, dict)
        else v
        for v in row
    )
