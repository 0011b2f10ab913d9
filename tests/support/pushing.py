"""What programs need of tables, and random programs to see whether they need any more.

A program is some views over tables, of which some are persisted. `check` computes each of these
twice, on DuckDB or on Spark: over whole tables, and over the rows and columns that the program is said
to need, with NULL in all others.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import duckdb
import sqlglot
from conftest import compilation_of

from persist_assets.analysis import predicates as p

if TYPE_CHECKING:
    from persist_assets.analysis.pushdown.needs import Need

PATH = "m.sql"


def needs_of(text: str, tables: Collection[str] = ("t", "u")) -> dict[tuple[str, str], Need]:
    """Return by names of reader and table what the sources of one file need."""
    compilation = compilation_of({PATH: text})
    errors = compilation.project.errors
    assert not errors, errors
    needs = compilation.needs([f"{name}@sources/{PATH}" for name in tables])
    return {(short(n.reader), short(n.table)): n for n in needs}


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rows and columns of a table that a whole program needs."""

    table: str
    predicate: str
    columns: tuple[str, ...]

    @property
    def term(self) -> p.Term:
        """The predicate, read from its text."""
        return p.from_text(self.predicate)


def cover(needs: Iterable[Need]) -> tuple[Coverage, ...]:
    """Return what all readers together need, for each table that is read, by its SourceID."""
    by_table: dict[str, list[Need]] = {}
    for need in needs:
        by_table.setdefault(need.table, []).append(need)
    return tuple(
        Coverage(
            table,
            p.as_text(p.union(n.predicate for n in by_table[table])),
            tuple(sorted({c for n in by_table[table] for c in n.columns})),
        )
        for table in sorted(by_table)
    )


def coverage_of(text: str, tables: Collection[str] = ("t", "u")) -> dict[str, Coverage]:
    """Return by table what all sources of one file need."""
    return {short(c.table): c for c in cover(needs_of(text, tables).values())}


def short(source_id: str) -> str:
    return source_id.partition("@")[0]


# ------------------------------------------------------------------------------- random programs

Tables = Mapping[str, Mapping[str, str]]
"""Columns of tables, with their types."""
TABLES: Tables = {
    "t": {"id": "BIGINT", "k": "INT", "s": "STRING", "ts": "TIMESTAMP", "d": "DATE",
          "amt": "DECIMAL(10,2)", "f": "DOUBLE", "ok": "BOOLEAN"},
    "u": {"id": "BIGINT", "k": "INT", "s": "STRING", "ts": "TIMESTAMP", "w": "INT"},
}  # fmt: skip


def declared(tables: Tables) -> str:
    """Return the statements that declare tables."""
    return "".join(
        f"CREATE TABLE {name} ({', '.join(f'{c} {k}' for c, k in columns.items())})"
        f" USING parquet LOCATION 'raw/{name}';\n"
        for name, columns in tables.items()
    )


RAW = declared(TABLES)
NOWS = [dt.datetime(2024, 8, 31, 10, tzinfo=dt.UTC), dt.datetime(2024, 3, 31, 3, 5, tzinfo=dt.UTC)]
ZONES = ["UTC", "America/New_York", "Asia/Kolkata"]
TEXTS = ["a", "ab", "b", "A", "", "it's", 'say "x"', "100%"]
VALUES: dict[str, list[Any]] = {
    "INT": [0, 1, 1, 2, 2, 3, 7, -1, None],
    "STRING": [*TEXTS, "back\\slash", None],
    "BOOLEAN": [True, False, None],
    "FLOAT": [0.5, 0.25, -0.0, float("nan"), None],
    "TIMESTAMP_NTZ": [dt.datetime(2024, 2, 29, 12), dt.datetime(2023, 12, 31, 23), *(dt.datetime(2018, 11, 4, h) for h in (0, 1)), None],
    "DOUBLE": [0.0, -0.0, 1.5, 2.0, float("nan"), float("inf"), -1.5, None],
    "DECIMAL(10,2)": [Decimal("1.50"), Decimal("0.00"), Decimal("2.25"), Decimal("-1.00"), None],
    "DATE": [dt.date(2024, 2, 29), dt.date(2024, 3, 1), dt.date(2024, 3, 10), dt.date(2023, 12, 31), dt.date(2024, 8, 1), None],
    "TIMESTAMP": [
        *(dt.datetime(2024, 2, 29, h, 30, tzinfo=dt.UTC) for h in (0, 4, 9, 23)),
        *(dt.datetime(2024, 3, 10, h, 30, tzinfo=dt.UTC) for h in (4, 6, 7)),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2023, 12, 31, 23, 59, 59, tzinfo=dt.UTC),
        dt.datetime(2024, 8, 30, 12, tzinfo=dt.UTC), dt.datetime(2024, 3, 1, tzinfo=dt.UTC), None,
    ],
}  # fmt: skip
Columns = Sequence[tuple[str, str]]
"""Names and types of a relation's columns."""


@dataclass
class Program:
    """Views in their order, and which of them are persisted."""

    views: list[tuple[str, str]] = field(default_factory=list)
    persisted: list[str] = field(default_factory=list)
    tables: Tables = field(default_factory=lambda: TABLES)

    @property
    def text(self) -> str:
        marks = {name: "--@ persist\n" for name in self.persisted}
        return declared(self.tables) + "".join(
            f"{marks.get(n, '')}CREATE VIEW {n} AS {q};\n" for n, q in self.views
        )


class Writer:
    """Writes random programs in Spark's SQL whose rows do not depend on the order of rows."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.n = draw, 0
        self.program = Program()

    def write(self) -> Program:
        """Return a program of one to three persisted views."""
        for _ in range(self.draw.choice((1, 1, 1, 2))):
            query, _ = self.relation(self.draw.choice((1, 1, 2, 3)))
            name = self.fresh("q")
            self.program.views.append((name, query))
            self.program.persisted.append(name)
        return self.program

    def fresh(self, prefix: str) -> str:
        self.n += 1
        return f"{prefix}{self.n}"

    def read(self, depth: int) -> tuple[str, Columns]:
        """Return an item of FROM without an alias: a table, a view or a query in parentheses."""
        if depth == 0 or self.draw.random() < 0.2:
            name = self.draw.choice(("t", "t", "u"))
            return name, [(c, k) for c, k in TABLES[name].items()]
        query, columns = self.relation(depth - 1)
        if self.draw.random() < 0.5:
            name = self.fresh("v")
            self.program.views.append((name, query))
            return name, columns
        return f"({query})", columns

    def relation(self, depth: int) -> tuple[str, Columns]:
        kinds = [self.plain, self.plain, self.joined, self.joined, self.union, self.grouped]
        kinds += [self.distinct, self.windowed, self.windowed, self.limited, self.tested, self.sets]
        kinds += [self.named, self.semi, self.qualified, self.filtered]
        kinds += [self.beside, self.recursive]
        return self.draw.choice(kinds)(depth)

    # ------------------------------------------------------------------------------- conditions

    def where(self, columns: Columns, word: str = "WHERE", chance: float = 0.75) -> str:
        if not columns or self.draw.random() > chance:
            return ""
        return f" {word} " + " AND ".join(
            self.condition(columns) for _ in range(self.draw.choice((1, 1, 2, 3)))
        )

    def condition(self, columns: Columns, depth: int = 1) -> str:
        roll = self.draw.random()
        if depth and roll < 0.25:
            word = self.draw.choice((" OR ", " OR ", " AND "))
            both = [self.condition(columns, depth - 1) for _ in range(2)]
            return f"({word.join(both)})"
        if depth and roll < 0.35:
            return f"NOT ({self.condition(columns, depth - 1)})"
        return self.atom(*self.draw.choice(list(columns)), columns)

    def atom(self, name: str, kind: str, columns: Columns) -> str:
        choose, op = self.draw.choice, self.draw.choice(("=", "<>", "<", "<=", ">", ">=", "="))
        if choose(range(5)) == 0:
            return f"{name} IS {choose(('', 'NOT '))}NULL"
        if kind in ("INT", "BIGINT"):
            a, b = choose((0, 1, 2, 3)), choose((1, 2, 3, 7))
            alike = [n for n, k in columns if k in ("INT", "BIGINT")]
            return choose((
                f"{name} {op} {a}", f"{name} {op} {a}", f"{name} IN ({a}, {b}, -1)",
                f"{name} NOT IN ({a}, {b})", f"{name} BETWEEN {min(a, b)} AND {max(a, b)}",
                f"{name} {op} {choose(alike)}", f"{name} + 1 {op} {b}", f"{name} IN ({a}, NULL)",
                f"coalesce({name}, 0) {op} {a}", f"{name} {op} 1.5", f"{name} <=> {a}",
                f"{name} = NULL",
            ))  # fmt: skip
        if kind == "STRING":
            a, b = (p.as_text(p.Term("string", (), (choose(TEXTS),))) for _ in range(2))
            return choose((
                f"{name} {op} {a}", f"{name} = {a}", f"{name} IN ({a}, {b})", f"{name} LIKE 'a%'",
                f"{name} NOT LIKE '%b'", f"lower({name}) {op} {a}", f"upper({name}) = 'A'",
                f"length({name}) {op} 2", f"reverse({name}) = 'a'", f"{name} NOT IN ({a}, {b})",
            ))  # fmt: skip
        if kind == "TIMESTAMP":
            n, unit = choose(((6, "MONTHS"), (7, "MONTHS"), (1, "DAY"), (12, "HOURS"), (1, "YEAR")))
            day = choose(("2024-02-29", "2024-03-01", "2024-03-10", "2024-01-01"))
            cut = choose(("day", "month", "year", "week", "hour", "quarter"))
            return choose((
                f"{name} {op} '{day}'", f"{name} {op} TIMESTAMP '{day} 02:30:00'",
                f"{name} {op} NOW() - INTERVAL {n} {unit}", f"{name} >= NOW() - INTERVAL {n} {unit}",
                f"date_trunc('{cut}', {name}) {op} TIMESTAMP '{day} 00:00:00'",
                f"CAST({name} AS DATE) {op} DATE '{day}'", f"year({name}) {op} 2024",
                f"CAST({name} AS DATE) {op} TODAY() - INTERVAL 6 MONTHS",
                f"date_trunc('{cut}', {name}) {op} NOW() - INTERVAL {n} {unit}",
                f"{name} BETWEEN NOW() - INTERVAL 1 YEAR AND NOW()",
            ))  # fmt: skip
        if kind == "DATE":
            day = choose(("2024-02-29", "2024-03-01", "2024-01-01"))
            return choose((
                f"{name} {op} DATE '{day}'", f"{name} {op} '{day}'", f"year({name}) {op} 2024",
                f"{name} {op} TODAY() - INTERVAL 6 MONTHS", f"{name} {op} TODAY() - INTERVAL 30 DAYS",
                f"{name} {op} TIMESTAMP '{day} 02:30:00'", f"{name} {op} NOW() - INTERVAL 6 MONTHS",
            ))  # fmt: skip
        if kind == "BOOLEAN":
            return choose((name, f"NOT {name}", f"{name} = TRUE", f"{name} IS NOT TRUE"))
        number = choose(("1.5", "0", "2.25", "-1.5"))
        return choose((f"{name} {op} {number}", f"{name} {op} {number}", f"abs({name}) {op} 1"))

    # -------------------------------------------------------------------------------- relations

    def outs(self, columns: Columns, alias: str = "") -> tuple[str, Columns]:
        """Return a select list of some columns under new names, and what it gives."""
        chosen = self.draw.sample(list(columns), self.draw.randint(1, len(columns)))
        made: list[str] = []
        given: list[tuple[str, str]] = []
        for name, kind in chosen:
            new = self.fresh("c")
            text = f"{alias}{name}"
            if kind == "TIMESTAMP" and self.draw.random() < 0.2:
                text = f"date_trunc('{self.draw.choice(('day', 'month'))}', {text})"
            elif kind == "TIMESTAMP" and self.draw.random() < 0.1:
                text, kind = f"CAST({text} AS DATE)", "DATE"
            elif kind == "INT" and self.draw.random() < 0.1:
                text = f"coalesce({text}, 1)"
            made.append(f"{text} AS {new}")
            given.append((new, kind))
        if self.draw.random() < 0.2:
            new = self.fresh("c")
            made.append(f"{self.draw.choice((1, 2))} AS {new}")
            given.append((new, "INT"))
        return ", ".join(made), given

    def plain(self, depth: int) -> tuple[str, Columns]:
        item, columns = self.read(depth)
        listed, given = self.outs(columns)
        return f"SELECT {listed} FROM {item}{self.alias(item)}{self.where(columns)}", given

    def alias(self, item: str) -> str:
        return f" {self.fresh('x')}" if item.startswith("(") else ""

    def joined(self, depth: int) -> tuple[str, Columns]:
        (one, a), (other, b) = self.read(depth), self.read(0 if depth < 2 else depth - 1)
        x, y = self.fresh("x"), self.fresh("x")
        left, right = ([(f"{n}.{c}", k) for c, k in cs] for n, cs in ((x, a), (y, b)))
        pairs = [(c, d) for c, k in left for d, m in right if k == m and k in ("INT", "STRING")]
        on = " = ".join(self.draw.choice(pairs)) if pairs else self.condition(right)
        word = self.draw.choice(("JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        if word != "FULL JOIN" or pairs:
            on += self.where([*left, *right], " AND", 0.5)
        else:
            word = "JOIN"
        listed, given = self.outs([*left, *right])
        side = self.draw.choice((left, right, [*left, *right]))
        where = self.where(side, chance=0.9)
        return f"SELECT {listed} FROM {one} {x} {word} {other} {y} ON {on}{where}", given

    def union(self, depth: int) -> tuple[str, Columns]:
        branches: list[str] = []
        for _ in range(2):
            item, columns = self.read(depth)
            ints = [c for c, k in columns if k == "INT"] or ["1"]
            texts = [c for c, k in columns if k == "STRING"] or ["'a'"]
            tag = self.draw.choice(("1", "2", self.draw.choice(ints)))
            listed = f"{self.draw.choice(ints)} AS k, {self.draw.choice(texts)} AS s, {tag} AS tag"
            branches.append(f"SELECT {listed} FROM {item}{self.alias(item)}{self.where(columns)}")
        word = self.draw.choice(
            (" UNION ALL ", " UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT ", " EXCEPT ALL ")
        )
        given = [("k", "INT"), ("s", "STRING"), ("tag", "INT")]
        return f"SELECT * FROM ({word.join(branches)}) {self.fresh('x')}{self.where(given)}", given

    def keys(self, columns: Columns) -> tuple[list[str], list[tuple[str, str]]]:
        fits = [(c, k) for c, k in columns if k != "DOUBLE"] or list(columns)
        chosen = self.draw.sample(fits, min(len(fits), self.draw.choice((1, 2, 2))))
        made: list[str] = []
        given: list[tuple[str, str]] = []
        for name, kind in chosen:
            cut = kind == "TIMESTAMP" and self.draw.random() < 0.5
            made.append(f"date_trunc('day', {name})" if cut else name)
            given.append((self.fresh("g"), kind))
        return made, given

    def grouped(self, depth: int) -> tuple[str, Columns]:
        item, columns = self.read(depth)
        keys, given = self.keys(columns)
        n, most = self.fresh("n"), self.fresh("n")
        name, kind = self.draw.choice(list(columns))
        listed = ", ".join(f"{k} AS {c}" for k, (c, _) in zip(keys, given, strict=True))
        listed += f", count(*) AS {n}, max({name}) AS {most}"
        inner = f"SELECT {listed} FROM {item}{self.alias(item)}{self.where(columns, chance=0.4)}"
        group = "" if self.draw.random() < 0.1 else f" GROUP BY {', '.join(keys)}"
        if not group:
            listed = f"SELECT count(*) AS {n}, max({name}) AS {most}"
            inner = f"{listed} FROM {item}{self.alias(item)}{self.where(columns, chance=0.4)}"
            given = []
        given = [*given, (n, "BIGINT"), (most, kind)]
        return f"SELECT * FROM ({inner}{group}) {self.fresh('x')}{self.where(given)}", given

    def sets(self, depth: int) -> tuple[str, Columns]:
        item, columns = self.read(depth)
        keys, given = self.keys(columns)
        n = self.fresh("n")
        listed = ", ".join(f"{k} AS {c}" for k, (c, _) in zip(keys, given, strict=True))
        where = self.where(columns, chance=0.4)
        inner = f"SELECT {listed}, count(*) AS {n} FROM {item}{self.alias(item)}{where}"
        form = self.draw.choice(("ROLLUP", "CUBE"))
        sets = f"{form} ({', '.join(keys)})"
        if len(keys) == 2 and self.draw.random() < 0.5:
            sets = f"GROUPING SETS (({keys[0]}, {keys[1]}), ({keys[0]}))"
        given = [*given, (n, "BIGINT")]
        query = f"{inner} GROUP BY {sets}"
        return f"SELECT * FROM ({query}) {self.fresh('x')}{self.where(given, chance=0.95)}", given

    def distinct(self, depth: int) -> tuple[str, Columns]:
        item, columns = self.read(depth)
        fits = [(c, k) for c, k in columns if k != "DOUBLE"] or list(columns)
        listed, given = self.outs(fits)
        inner = f"SELECT DISTINCT {listed} FROM {item}{self.alias(item)}{self.where(columns)}"
        return f"SELECT * FROM ({inner}) {self.fresh('x')}{self.where(given)}", given

    def windowed(self, depth: int) -> tuple[str, Columns]:
        item, columns = self.read(depth)
        by = [c for c, k in columns if k != "DOUBLE"] or [columns[0][0]]
        part = ", ".join(self.draw.sample(by, min(len(by), self.draw.choice((1, 1, 2)))))
        name, _ = self.draw.choice(list(columns))
        over = f"OVER (PARTITION BY {part})" if self.draw.random() < 0.85 else "OVER ()"
        n = self.fresh("n")
        call = self.draw.choice(("count(*)", f"count({name})"))
        if self.draw.random() < 0.3:
            ordered = self.draw.choice(by)
            call, over = "rank()", f"OVER (PARTITION BY {part} ORDER BY {ordered})"
        listed = ", ".join(c for c, _ in columns)
        where = self.where(columns, chance=0.4)
        inner = f"SELECT {listed}, {call} {over} AS {n} FROM {item}{self.alias(item)}{where}"
        given = [*columns, (n, "BIGINT")]
        outer = self.where(given, chance=0.9)
        chosen, made = self.outs(given)
        return f"SELECT {chosen} FROM ({inner}) {self.fresh('x')}{outer}", made

    def named(self, depth: int) -> tuple[str, Columns]:
        """A CTE that is read once or twice."""
        (one, columns), name = self.relation(max(depth - 1, 0)), self.fresh("w")
        x, y = self.fresh("x"), self.fresh("x")
        left, right = ([(f"{n}.{c}", k) for c, k in columns] for n in (x, y))
        listed, given = self.outs(left)
        item, where = f"{name} {x}", self.where(left)
        if self.draw.random() < 0.5:
            c, d = self.draw.choice(list(zip(left, right, strict=True)))
            word = self.draw.choice(("JOIN", "LEFT JOIN"))
            item += f" {word} {name} {y} ON {c[0]} = {d[0]}{self.where(right, ' AND', 0.7)}"
            where = self.where([*left, *right])
        return f"WITH {name} AS ({one}) SELECT {listed} FROM {item}{where}", given

    def semi(self, depth: int) -> tuple[str, Columns]:
        (one, a), (other, b) = self.read(depth), self.read(0)
        x, y = self.fresh("x"), self.fresh("x")
        left, right = ([(f"{n}.{c}", k) for c, k in cs] for n, cs in ((x, a), (y, b)))
        pairs = [(c, d) for c, k in left for d, m in right if k == m and k in ("INT", "STRING")]
        if not pairs:
            return self.plain(depth)
        on = " = ".join(self.draw.choice(pairs)) + self.where([*left, *right], " AND", 0.7)
        word = self.draw.choice(("SEMI", "ANTI"))
        listed, given = self.outs(left)
        text = f"SELECT {listed} FROM {one} {x} LEFT {word} JOIN {other} {y} ON {on}"
        return f"{text}{self.where(left, chance=0.5)}", given

    def beside(self, depth: int) -> tuple[str, Columns]:
        """Rows beside those that a query computes for each of them."""
        (one, a), (other, b) = self.read(depth), self.read(0)
        x, y, z = self.fresh("x"), self.fresh("x"), self.fresh("x")
        left, right = ([(f"{n}.{c}", k) for c, k in cs] for n, cs in ((x, a), (y, b)))
        pairs = [(c, d) for c, k in left for d, m in right if k == m and k in ("INT", "STRING")]
        if not pairs:
            return self.plain(depth)
        n = self.fresh("n")
        match = " = ".join(self.draw.choice(pairs)) + self.where([*left, *right], " AND", 0.5)
        call = self.draw.choice(("count(*)", f"max({y}.id)"))
        inner = f"SELECT {call} AS {n} FROM {other} {y} WHERE {match}"
        inner += self.draw.choice(("", f" GROUP BY {y}.k"))
        given = [*left, (f"{z}.{n}", "BIGINT")]
        listed, made = self.outs(given)
        word = self.draw.choice(("JOIN", "LEFT JOIN"))
        where = self.where(given, chance=0.9)
        return f"SELECT {listed} FROM {one} {x} {word} LATERAL ({inner}) {z} ON true{where}", made

    def recursive(self, depth: int) -> tuple[str, Columns]:
        """Rows that are computed from rows of the same query."""
        r, x = self.fresh("r"), self.fresh("x")
        (one, a), (other, b) = (self.draw.choice([*TABLES.items()]) for _ in range(2))
        start = f"SELECT id, k, 1 FROM {one}{self.where([*a.items()])}"
        right = [(f"{x}.{c}", k) for c, k in b.items()]
        key = self.draw.choice(("id", "k"))
        step = f"SELECT {x}.id, {x}.k, {r}.n + 1 FROM {r} JOIN {other} {x} ON {r}.{key} = {x}.k"
        step += f" WHERE {r}.n < 2{self.where(right, ' AND')}"
        given = [("id", "BIGINT"), ("k", "INT"), ("n", "INT")]
        listed, made = self.outs(given)
        query = f"WITH RECURSIVE {r}(id, k, n) AS ({start} UNION ALL {step})"
        return f"{query} SELECT {listed} FROM {r}{self.where(given)}", made

    def qualified(self, depth: int) -> tuple[str, Columns]:
        """Rows that a window with a frame, or an order, lets through."""
        name = self.draw.choice(("t", "u"))
        columns = list(TABLES[name].items())
        part = self.draw.choice(("k", "s", "k, s", "CAST(ts AS DATE)"))
        frame = self.draw.choice(
            (
                "",
                " RANGE BETWEEN 2 PRECEDING AND CURRENT ROW",
                " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
            )
        )
        call = self.draw.choice(("count(k)", "max(k)", "sum(id)", "min(s)"))
        over = f"{call} OVER (PARTITION BY {part} ORDER BY id{frame})"
        test = "= 'a'" if call == "min(s)" else f"> {self.draw.choice((1, 2, 3))}"
        listed, given = self.outs(columns)
        inner = f"SELECT * FROM {name}{self.where(columns, chance=0.4)} QUALIFY {over} {test}"
        return f"SELECT {listed} FROM ({inner}) {self.fresh('x')}{self.where(columns)}", given

    def filtered(self, depth: int) -> tuple[str, Columns]:
        item, columns = self.read(depth)
        keys, given = self.keys(columns)
        n, distinct = self.fresh("n"), self.fresh("n")
        name, _ = self.draw.choice(list(columns))
        listed = ", ".join(f"{k} AS {c}" for k, (c, _) in zip(keys, given, strict=True))
        listed += f", count(*) FILTER (WHERE {self.condition(columns)}) AS {n}"
        listed += f", count(DISTINCT {name}) AS {distinct}"
        inner = f"SELECT {listed} FROM {item}{self.alias(item)}{self.where(columns, chance=0.4)}"
        having = self.draw.choice(("", " HAVING count(*) > 1", f" HAVING max({name}) IS NOT NULL"))
        given = [*given, (n, "BIGINT"), (distinct, "BIGINT")]
        query = f"{inner} GROUP BY {', '.join(keys)}{having}"
        return f"SELECT * FROM ({query}) {self.fresh('x')}{self.where(given)}", given

    def limited(self, depth: int) -> tuple[str, Columns]:
        name = self.draw.choice(("t", "u"))
        columns = list(TABLES[name].items())
        where = self.where(columns, chance=0.5)
        inner = f"SELECT * FROM {name}{where} ORDER BY id LIMIT {self.draw.choice((2, 4))}"
        return f"SELECT * FROM ({inner}) {self.fresh('x')}{self.where(columns)}", columns

    def tested(self, depth: int) -> tuple[str, Columns]:
        (item, columns), (other, inner) = self.read(depth), self.read(0)
        x, y = self.fresh("x"), self.fresh("x")
        left, right = ([(f"{n}.{c}", k) for c, k in cs] for n, cs in ((x, columns), (y, inner)))
        pairs = [(c, d) for c, k in left for d, m in right if k == m and k in ("INT", "STRING")]
        if not pairs:
            return self.plain(depth)
        c, d = self.draw.choice(pairs)
        more = self.where(right, " AND", 0.7)
        negated = self.draw.choice(("", "NOT "))
        both = self.where(left, " AND", 0.3)
        test = self.draw.choice((
            f"{negated}EXISTS (SELECT 1 FROM {other} {y} WHERE {d} = {c}{more}{both})",
            f"{c} {negated}IN (SELECT {d} FROM {other} {y} WHERE {d} IS NOT NULL{more})",
            f"{c} {negated}IN (SELECT {d} FROM {other} {y} WHERE 1 = 1{more})",
            f"({c} IN (SELECT {d} FROM {other} {y} WHERE 1 = 1{more}) OR 1 = 2{both})",
            f"({c} IN (SELECT {d} FROM {other} {y} WHERE 1 = 1{more})) IS NULL",
            f"{c} = (SELECT max({d}) FROM {other} {y} WHERE 1 = 1{more})",
        ))  # fmt: skip
        listed, given = self.outs(left)
        tests = f"{test}{self.where([(c, dict(left)[c])], ' AND', 0.5)}"
        return (
            f"SELECT {listed} FROM {item} {x} WHERE {tests}{self.where(left, ' AND', 0.3)}",
            given,
        )


# ------------------------------------------------------------------------------------- clocks

CHANGING = [
    *("UTC", "America/New_York", "America/St_Johns", "Pacific/Chatham", "Australia/Lord_Howe"),
    *("America/Sao_Paulo", "America/Havana", "Pacific/Apia", "Africa/Cairo", "Asia/Kathmandu"),
]
"""Time zones whose clocks are moved by an hour, half of one or a day; at night, at midnight, never."""
_READ = ["NOW()", "CURRENT_DATE()", "CAST(NOW() AS TIMESTAMP_NTZ)", "CAST(NOW() AS DATE)"]
_FAR = ["6 MONTHS", "1 MONTHS", "12 MONTHS", "240 MONTHS", "1 DAYS", "30 DAYS", "25 HOURS"]
_AROUND = [
    *("{}", "CAST({} AS DATE)", "CAST({} AS TIMESTAMP)", "trunc({}, 'month')", "year({})"),
    "CAST(CAST({} AS TIMESTAMP_NTZ) AS TIMESTAMP)",
    *(f"date_trunc('{u}', CAST({{}} AS TIMESTAMP))" for u in ("hour", "day", "week", "month")),
]


def clock(draw: random.Random) -> str:
    """Return a value that reads the clock."""
    value, far = draw.choice(("NOW()", *_READ)), draw.choice((*_FAR, "90 MINUTES"))
    if draw.random() < 0.9 and ("DATE" not in value or far.endswith(("MONTHS", "DAYS"))):
        value = f"{value} {draw.choice('+-')} INTERVAL {far}"
    return draw.choice((*["{}"] * len(_AROUND), *_AROUND)).format(value)


def instant(draw: random.Random, zone: str) -> dt.datetime:
    """Return an instant of 2024 or near: at the end of a month, or about when clocks are moved."""
    turns = (*_turns(zone), *(dt.datetime(2024, m, 30, tzinfo=dt.UTC) for m in (3, 8, 12)))
    days = draw.choice((0, 0, 1, -1, 30, -31, 182, -183, 366))
    return draw.choice(turns) + dt.timedelta(days=days, minutes=draw.randrange(-240, 240))


@cache
def _turns(zone: str) -> list[dt.datetime]:
    """Return when clocks of a zone are moved in 2024."""
    hours = [dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=h) for h in range(8784)]
    shown = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    return [hour for hour, a, b in zip(hours[1:], shown, shown[1:], strict=False) if a != b]


def at(text: str, now: dt.datetime, zone: str) -> str:
    """Return Spark's SQL with a clock that stands still."""
    local = now.astimezone(ZoneInfo(zone))
    for clock_words, literal in (
        ("now|current_timestamp", f"TIMESTAMP '{now:%Y-%m-%d %H:%M:%S}+00:00'"),
        ("today|current_date", f"DATE '{local.date()}'"),
        ("localtimestamp", f"TIMESTAMP_NTZ '{local:%Y-%m-%d %H:%M:%S}'"),
    ):
        text = re.sub(rf"\b(?:{clock_words})\(\)", literal, text, flags=re.IGNORECASE)
    return text


# ------------------------------------------------------------------------------------- engines


class Refused(Exception):
    """An engine does not take a program."""


class OnDuckDB:
    """Tables `base_…` of random rows in DuckDB."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})

    def fill(self, tables: Tables, draw: random.Random, n: int) -> None:
        for table, columns in tables.items():
            kinds = ", ".join(f"{_quoted(c)} {_DUCK.get(k, k)}" for c, k in columns.items())
            self.connection.execute(f"CREATE OR REPLACE TABLE base_{table} ({kinds})")
            marks = ", ".join("?" for _ in columns)
            self.connection.executemany(
                f"INSERT INTO base_{table} VALUES ({marks})", rows_of(draw, columns, n)
            )

    def spelled(self, text: str) -> str:
        """Return Spark's SQL as this engine reads it."""
        return sqlglot.transpile(text, read="spark", write="duckdb")[0]

    def rows(self, text: str, zone: str) -> list[tuple[Any, ...]]:
        self.connection.execute(f"SET TimeZone = '{zone}'")
        try:
            return self.connection.execute(text).fetchall()
        except duckdb.Error as error:
            raise Refused(f"{error}\n{text}") from error


_DUCK = {"TIMESTAMP": "TIMESTAMPTZ", "STRING": "VARCHAR", "TIMESTAMP_NTZ": "TIMESTAMP"}


def _quoted(name: str) -> str:
    return f'"{name.strip("`")}"'


class OnSpark:
    """Tables `base_…` of random rows as views of a session."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def fill(self, tables: Tables, draw: random.Random, n: int) -> None:
        for table, columns in tables.items():
            kinds = ", ".join(f"{c} {k}" for c, k in columns.items())
            frame = self.session.createDataFrame(rows_of(draw, columns, n), kinds)
            frame.coalesce(1).createOrReplaceTempView(f"base_{table}")

    def spelled(self, text: str) -> str:
        return text

    def rows(self, text: str, zone: str) -> list[tuple[Any, ...]]:
        before = self.session.conf.get("spark.sql.session.timeZone")
        self.session.conf.set("spark.sql.session.timeZone", zone)
        try:
            return [tuple(row) for row in self.session.sql(text).collect()]
        finally:
            self.session.conf.set("spark.sql.session.timeZone", before)


def rows_of(draw: random.Random, columns: Mapping[str, str], n: int) -> list[tuple[Any, ...]]:
    kinds = list(columns.values())
    return [(i, *(draw.choice(VALUES[k]) for k in kinds[1:])) for i in range(n)]


def _counted(rows: Iterable[tuple[Any, ...]]) -> Counter[str]:
    """Return rows of which NaN is NaN and -0.0 is 0.0."""
    return Counter(repr(tuple(v + 0.0 if isinstance(v, float) else v for v in row)) for row in rows)


def check(
    engine: OnDuckDB | OnSpark, program: Program, now: dt.datetime, zone: str
) -> tuple[int, int, int]:
    """Assert that persisted views are the same over what the program needs.

    Returns
    -------
    How many rows the tables have that are read, how many are needed, and in how many of these
    tables not all rows are.
    """
    coverage = coverage_of(program.text.replace("TODAY()", "CURRENT_DATE()"), program.tables)
    whole = {t: f"SELECT * FROM base_{t}" for t in program.tables}
    part: dict[str, str] = {}
    sizes = [0, 0, 0]
    for table, columns in program.tables.items():
        one = coverage.get(table)
        if one is None:
            part[table] = f"SELECT * FROM base_{table} WHERE 1 = 0"
            continue
        predicate = p.as_text(p.evaluated(one.term, now, ZoneInfo(zone)))
        assert p.from_text(one.predicate) == one.term
        listed = ", ".join(
            c if c.strip("`") in one.columns else f"CAST(NULL AS {k}) AS {c}"
            for c, k in columns.items()
        )
        part[table] = engine.spelled(f"SELECT {listed} FROM base_{table} WHERE {predicate}")
        counts = (
            f"SELECT (SELECT count(*) FROM base_{table}), (SELECT count(*) FROM ({part[table]}))"
        )
        ((n, m),) = engine.rows(counts, zone)
        sizes = [sizes[0] + n, sizes[1] + m, sizes[2] + (one.predicate != "TRUE")]
    views = [f"{n} AS ({engine.spelled(at(query, now, zone))})" for n, query in program.views]
    tables = [[f"{name} AS ({query})" for name, query in one.items()] for one in (whole, part)]
    for name in program.persisted:
        expected, found = (
            _counted(engine.rows(f"WITH {', '.join([*one, *views])} SELECT * FROM {name}", zone))
            for one in tables
        )
        assert found == expected, (
            f"{zone} {now}\n{program.text}\n{coverage}\n{expected - found}\n{found - expected}"
        )
    return sizes[0], sizes[1], sizes[2]


def hunt(engine: OnDuckDB | OnSpark, seed: int, n: int) -> Counter[str]:
    """Check so many random programs that need less than all rows, and return what was seen.

    Those that an engine refuses, or that need all rows of what they read, are counted beside.
    """
    told: Counter[str] = Counter()
    for number in range(3 * n):
        draw = random.Random(f"{seed} {number}")
        if number % 25 == 0:
            engine.fill(TABLES, draw, 40)
        program = Writer(draw).write()
        try:
            rows, needed, narrowed = check(engine, program, draw.choice(NOWS), draw.choice(ZONES))
        except Refused:
            told["refused"] += 1
            continue
        except BaseException as error:
            error.add_note(f"program {number} from seed {seed}")
            raise
        if not narrowed:
            told["whole"] += 1
            continue
        told.update(programs=1, rows=rows, needed=needed)
        if told["programs"] == n:
            return told
    raise AssertionError(f"too few programs need less than all rows: {told}")
