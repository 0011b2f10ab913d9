"""The analysis of how the rows of random queries grow is true for the rows of DuckDB.

What the analysis does not claim is false for nearly all queries that have rows.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import sqlglot
from conftest import compiled
from random_queries import TABLES, Writer
from sqlglot import exp

if TYPE_CHECKING:
    from persist_assets.core.model.columns import Growth

BUDGET_S = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))
RAW = "".join(
    f"CREATE TABLE {name} ({', '.join(f'{c} INT' for c in columns)})"
    f" USING parquet LOCATION 'raw/{name}';\n"
    for name, columns in TABLES.items()
)
_TRIALS, _TELLING = 30, 3
"""How often rows are drawn, and how many of these draws must be conclusive."""
Row = tuple[int | None, ...]
Tables = dict[str, list[Row]]


def growth_of(query: str, column: str) -> Growth | None:
    """Return what the analysis claims about a query and one of its columns."""
    text = f"{RAW}--@ persist refresh=incremental watermark={column}\nCREATE VIEW q AS {query};"
    project = compiled({"m.sql": text})
    source = project.by_id.get("q@sources/m.sql")
    return source.growth if source is not None and not source.volatile else None


def columns_of(query: str) -> tuple[str, ...]:
    source = compiled({"m.sql": f"{RAW}CREATE VIEW q AS {query};"}).by_id.get("q@sources/m.sql")
    return tuple(c.name for c in source.columns) if source else ()


def rows_of(draw: random.Random, n: int, table: str) -> list[Row]:
    values = (0, 1, 1, 2, 2, 3, 5, None)
    return [tuple(draw.choice(values) for _ in TABLES[table]) for _ in range(n)]


def run(connection: duckdb.DuckDBPyConnection, query: str, tables: Tables) -> Counter[Any]:
    for name, rows in tables.items():
        columns = ", ".join(f"{c} INT" for c in TABLES[name])
        connection.execute(f"CREATE OR REPLACE TABLE {name} ({columns})")
        if rows:
            marks = ", ".join("?" for _ in TABLES[name])
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    return Counter(connection.execute(query).fetchall())


def test_growth_claims_about_random_queries_hold() -> None:
    print(f"\nclaims of queries from seed {SEED}")
    began, told, number = time.monotonic(), Counter[str](), 0
    connection = duckdb.connect()
    while time.monotonic() < began + BUDGET_S:
        number += 1
        draw = random.Random(f"{SEED} {number}")
        query = Writer(draw).statement()
        try:
            translated = sqlglot.transpile(query, read="spark", write="duckdb")[0]
            names = columns_of(query)
            base = {name: rows_of(draw, 6, name) for name in TABLES}
            before = run(connection, translated, base)
        except (sqlglot.ParseError, duckdb.Error):
            told["not of DuckDB"] += 1
            continue
        told["queries"] += 1
        for position, column in enumerate(names):
            growth = growth_of(query, column)
            if growth is None:
                continue
            where = f"seed {SEED}, query {number}, {column}: {query}"
            if position == 0:
                for tables in growth.sums:
                    _check_sum(connection, draw, translated, base, before, tables, where)
                    told["sums"] += 1
            (windows,) = growth.columns
            for trace in windows.traces:
                if trace.column.source_id not in windows.loose:
                    assert not trace.steps
                    _check_window(
                        connection, draw, translated, base, before, position, windows, where
                    )
                    told["windows"] += 1
                    break
    print(f"{dict(told)} in {time.monotonic() - began:.0f} s")
    assert min(told["sums"], told["windows"]) > 0


def test_nearly_all_refused_growth_claims_have_a_counterexample() -> None:
    print(f"\nrefusals of queries from seed {SEED}")
    began, told, number = time.monotonic(), Counter[str](), 0
    connection, unfound = duckdb.connect(), list[str]()
    while time.monotonic() < began + BUDGET_S:
        number += 1
        draw = random.Random(f"{SEED} refused {number}")
        query = Writer(draw).statement()
        names = columns_of(query)
        growth = growth_of(query, names[0]) if names else None
        claimed = {_short(s) for tables in (growth.sums if growth else ()) for s in tables}
        read = {table.name for table in sqlglot.parse_one(query, read="spark").find_all(exp.Table)}
        for name in sorted(read.intersection(TABLES) - claimed):
            try:
                translated = sqlglot.transpile(query, read="spark", write="duckdb")[0]
                found = _find_other_sum(connection, draw, translated, name)
            except (sqlglot.ParseError, duckdb.Error):
                found = "not of DuckDB"
            told[found] += 1
            if found == "not found":
                unfound.append(f"{name} in query {number}: {query}")
    print(f"{dict(told)} in {time.monotonic() - began:.0f} s", *unfound, sep="\n")
    assert told["found"] > 10
    assert told["found"] >= 9 * told["not found"]


def _find_other_sum(
    connection: duckdb.DuckDBPyConnection, draw: random.Random, query: str, name: str
) -> str:
    """Look for rows whose addition does not add the rows of the query over them alone."""
    telling = 0
    for _ in range(_TRIALS):
        base = {table: rows_of(draw, draw.choice((0, 1, 3, 6, 10)), table) for table in TABLES}
        added = rows_of(draw, draw.choice((1, 2, 4)), name)
        before = run(connection, query, base)
        alone = run(connection, query, {**base, name: added})
        after = run(connection, query, {**base, name: base[name] + added})
        if after != before + alone:
            return "found"
        telling += bool(before and after != before)
    return "not found" if telling >= _TELLING else "of too few rows"


def _short(source_id: str) -> str:
    return source_id.partition("@")[0]


def _check_sum(
    connection: duckdb.DuckDBPyConnection,
    draw: random.Random,
    query: str,
    base: Tables,
    before: Counter[Any],
    tables: frozenset[str],
    where: str,
) -> None:
    """Check that rows added to tables add exactly the rows of the query over them."""
    added = {_short(s): rows_of(draw, draw.choice((0, 1, 3)), _short(s)) for s in tables}
    alone = run(connection, query, {**base, **added})
    after = run(connection, query, {n: rows + added.get(n, []) for n, rows in base.items()})
    assert after == before + alone, f"{where}\nadding {added} to {base}"


def _check_window(
    connection: duckdb.DuckDBPyConnection,
    draw: random.Random,
    query: str,
    base: Tables,
    before: Counter[Any],
    position: int,
    windows: Any,
    where: str,
) -> None:
    """Check that input changes of some values leave result rows of other values unchanged."""
    touched = draw.choice(((1,), (2, 3), (None,), (0, 5), (2, None)))
    changed: Tables = {}
    for name, rows in base.items():
        own = [t.column for t in windows.traces if _short(t.column.source_id) == name]
        if not own or any(_short(s) == name for s in windows.loose):
            changed[name] = rows
            continue
        places = [TABLES[name].index(c.column) for c in own]

        def inside(row: Row, places: list[int] = places) -> bool:
            """Return whether all values of a row that the window may come from are changed ones."""
            return all(row[p] in touched for p in places)

        fresh = [row for row in rows_of(draw, 8, name) if inside(row)]
        changed[name] = [r for r in rows if not inside(r) or draw.random() < 0.5] + fresh
    after = run(connection, query, changed)
    kept = {row: n for row, n in before.items() if row[position] not in touched}
    now = {row: n for row, n in after.items() if row[position] not in touched}
    assert now == kept, f"{where}\nvalues {touched} of {windows}: {base} became {changed}"
