"""Random queries that deltas should maintain: of every kind of node, mostly with keys.

Their results are determined: windows are ordered by values of which it does not matter who is first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from random_queries import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltas import Columns
    from random_queries import Names

RAW = """
CREATE TABLE w (a INT, k INT, z BIGINT) USING delta LOCATION 'raw/w';
CREATE TABLE u (a INT, k INT, n DECIMAL(5,2)) USING delta LOCATION 'raw/u';
CREATE TABLE t (a INT, k INT, arr ARRAY<INT>) USING delta LOCATION 'raw/t';
"""
COLUMNS: Columns = {
    "w": {"a": "INT", "k": "INT", "z": "BIGINT"},
    "u": {"a": "INT", "k": "INT", "n": "DECIMAL(5,2)"},
    "t": {"a": "INT", "k": "INT", "arr": "ARRAY<INT>"},
}
TABLES = {"w": ("a", "k", "z"), "u": ("a", "k", "n"), "t": ("a", "k")}

_WINDOWS = (
    "sum({0}) OVER (PARTITION BY {1})",
    "count(*) OVER (PARTITION BY {1})",
    "count({0}) OVER (PARTITION BY {1} ORDER BY {2})",
    "rank() OVER (PARTITION BY {1} ORDER BY {2} DESC)",
    "dense_rank() OVER (PARTITION BY {1} ORDER BY {2}, {0} NULLS LAST)",
    "max({0}) OVER (PARTITION BY {1} ORDER BY {2})",
    "min({0}) OVER (PARTITION BY {1}, {2})",
    "avg({0}) OVER (PARTITION BY {1})",
)


class DeltaWriter(Writer):
    """Writes one query; all its decisions are drawn from one generator."""

    def statement(self) -> str:
        """Return a query, perhaps with common table expressions that it may read several times."""
        texts: dict[str, str] = {}
        for i in range(self.one_of(0, 0, 0, 1, 2)):
            texts[f"q{i}"], columns = self.query(self.one_of(0, 1))
            self.ctes[f"q{i}"] = columns
        query, outs = self.query(self.one_of(0, 1, 1, 2))
        if self.draw.random() < 0.12:
            ways = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST")
            order = [f"{o}{self.one_of(*ways)}" for o in self.draw.sample(outs, len(outs))]
            query += f" ORDER BY {', '.join(order)} LIMIT {self.one_of(1, 2, 3, 5)}"
        defined = ""
        for name, text in reversed(texts.items()):
            if f" {name} " in f"{defined}{query}":
                defined = f"{name} AS ({text}){', ' if defined else ''}{defined}"
        return f"WITH {defined} {query}" if defined else query

    def query(self, depth: int) -> tuple[str, Sequence[str]]:
        """Return a query and the names of its columns."""
        text, names = self.relations(depth)
        rest = f"FROM {text}"
        if self.draw.random() < 0.5:
            rest += f" WHERE {self.conditions(names, 1)}"
        outs = [f"c{i}" for i in range(self.one_of(1, 2, 2, 3))]
        chance = self.draw.random()
        if chance < 0.25:
            query, outs = self.grouped(names, outs, rest), [*outs, "g"]
        elif chance < 0.45:
            query, outs = self.windowed(names, outs, rest), [*outs, "g"]
        else:
            shown = ", ".join(f"{self.expression(names)} AS {o}" for o in outs)
            query = f"SELECT {self.one_of('', '', '', 'DISTINCT ')}{shown} {rest}"
            if self.draw.random() < 0.15:
                window = self.window(names, "rank() OVER (PARTITION BY {1} ORDER BY {2})")
                query += f" QUALIFY {window} {self.one_of('=', '<=')} {self.one_of(1, 2)}"
        if depth > 0 and self.draw.random() < 0.25:
            text, names = self.relations(0)
            kind = self.one_of(
                *("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
            )
            shown = ", ".join(self.column(names) for _ in outs)
            query = f"({query}) {kind} SELECT {shown} FROM {text}"
        return query, outs

    def column(self, names: Names) -> str:
        """Return a column, mostly one that is likely to be an INT: others are no keys of it."""
        columns = [f"{alias}.{c}" for alias, columns in names.items() for c in columns]
        integers = [c for c in columns if c[-2:] in (".a", ".k", "c0", "c1", ".e", ".g")]
        return self.draw.choice(integers if integers and self.draw.random() < 0.8 else columns)

    # ----------------------------------------------------------------------------------- relations

    def relation(self, depth: int) -> tuple[str, Sequence[str]]:
        if self.ctes and self.draw.random() < 0.6:
            return self.draw.choice([*self.ctes.items()])
        if self.draw.random() < 0.15:
            return self.with_value()
        if self.draw.random() < 0.04:
            return self.latest()
        if depth == 0 or self.draw.random() < 0.5:
            table = self.one_of(*TABLES)
            return table, TABLES[table]
        text, columns = self.query(depth - 1)
        return f"({text})", columns

    def latest(self) -> tuple[str, Sequence[str]]:
        """Return one row of each key of a table. Which one is certain; the analysis does not know.

        Rows that tie are equal.
        """
        table, key = self.one_of(*TABLES), self.one_of("a", "k", "k")
        columns = TABLES[table]
        order = ", ".join(f"{c} {self.one_of('', 'DESC ')}NULLS LAST" for c in columns if c != key)
        number = f"row_number() OVER (PARTITION BY {key} ORDER BY {order})"
        more = self.one_of("", "", f" WHERE {columns[-1]} > 1", f" AND {columns[-1]} > 1")
        before, after = (more, "") if "WHERE" in more else ("", more)
        shown = ", ".join(columns)
        return f"(SELECT {shown} FROM {table}{before} QUALIFY {number} = 1{after})", columns

    def with_value(self) -> tuple[str, Sequence[str]]:
        """Return rows of a table with the value of a window or of a subquery beside them."""
        table, alias = self.one_of(*TABLES), self.alias("r")
        names = {alias: TABLES[table]}
        value = self.one_of(
            self.window(names, self.one_of(*_WINDOWS)),
            self.window(names, self.one_of(*_WINDOWS)),
            self.scalar(names),
            self.test(names),
        )
        shown = f"{self.column(names)} AS c0, {self.column(names)} AS c1, {value} AS g"
        return f"(SELECT {shown} FROM {table} {alias})", ("c0", "c1", "g")

    def relations(self, depth: int) -> tuple[str, dict[str, Sequence[str]]]:
        """Return the text after FROM, and the aliases in sight."""
        names: dict[str, Sequence[str]] = {}
        text = ""
        for i in range(self.one_of(1, 1, 2, 2, 3, 4)):
            relation, columns = self.relation(depth)
            alias = self.alias("r")
            if i == 0:
                text, names = f"{relation} {alias}", {alias: columns}
                continue
            kind = self.one_of(
                *("", "", "", "LEFT ", "LEFT ", "RIGHT ", "FULL ", "LEFT SEMI ", "LEFT ANTI ")
            )
            on = self.equality(names, alias, columns)
            if self.draw.random() < 0.25:
                on += f" AND {self.condition({**names, alias: columns}, self.one_of(0, 0, 1))}"
            text += f" {kind}JOIN {relation} {alias} ON {on}"
            if kind not in ("LEFT SEMI ", "LEFT ANTI "):
                names[alias] = columns
        if self.draw.random() < 0.12:
            alias, outer = self.alias("r"), self.one_of("", "OUTER ")
            array = f"array({self.column(names)}, {self.column(names)})"
            text += f" LATERAL VIEW {outer}explode({array}) {alias} AS e"
            names[alias] = ("e",)
        return text, names

    def equality(self, names: Names, alias: str, columns: Sequence[str]) -> str:
        """Return a condition that a column of a relation equals one of those before it."""
        sign = "<=>" if self.draw.random() < 0.06 else "="
        return f"{self.column(names)} {sign} {self.column({alias: columns})}"

    # ----------------------------------------------------------------------------------- conditions

    def condition(self, names: Names, depth: int) -> str:
        chance = self.draw.random()
        column = self.column(names)
        if chance < 0.2:
            return f"{column} {self.one_of('=', '<=>', '<', '<>')} {self.column(names)}"
        if chance < 0.4:
            return f"{column} {self.one_of('=', '>', '<=')} {self.one_of(1, 2, 3)}"
        if chance < 0.46:
            return f"{column} IS {self.one_of('', 'NOT ')}NULL"
        if chance < 0.54:
            return f"({self.condition(names, depth)} OR {self.condition(names, depth)})"
        if chance < 0.58:
            return f"NOT ({self.condition(names, depth)})"
        if depth <= 0:
            return f"{column} IN (1, {self.one_of('2', '3', 'NULL')})"
        if chance < 0.84:
            if self.draw.random() < 0.15:  # one result for all rows
                table, alias = self.one_of(*TABLES), self.alias("s")
                text = f"FROM {table} {alias} WHERE {self.condition({alias: TABLES[table]}, 0)}"
            else:
                text, _ = self.correlated(names, depth)
            return f"{self.one_of('', 'NOT ')}EXISTS (SELECT 1 {text})"
        if chance < 0.93:
            table, alias = self.one_of(*TABLES), self.alias("s")
            inner = self.condition({**names, alias: TABLES[table]}, 0)
            negated = "NOT " if self.draw.random() < 0.4 else ""
            what = self.member(names, alias, TABLES[table])
            return f"{column} {negated}IN (SELECT {what} FROM {table} {alias} WHERE {inner})"
        return f"{column} {self.one_of('<', '=', '>=')} {self.scalar(names)}"

    def test(self, names: Names) -> str:
        """Return a value that depends on an IN, which may be NULL."""
        table, alias = self.one_of(*TABLES), self.alias("s")
        what = f"{alias}.{self.draw.choice(TABLES[table])}"
        text = f"{self.column(names)} IN (SELECT {what} FROM {table} {alias})"
        return f"CASE WHEN {text} THEN 1 ELSE 0 END"

    def member(self, names: Names, alias: str, columns: Sequence[str]) -> str:
        """Return the value that the query of an IN shows for each row."""
        chance = self.draw.random()
        if chance < 0.1:  # no column of its table
            return self.one_of("1", "2", "NULL")
        if chance < 0.2:
            return self.column(names)
        return f"{alias}.{self.draw.choice(columns)}"

    def correlated(self, names: Names, depth: int) -> tuple[str, str]:
        """Return the FROM and WHERE of a correlated subquery, and the alias of its table."""
        table, alias = self.one_of(*TABLES), self.alias("s")
        text = f"FROM {table} {alias} WHERE {self.equality(names, alias, TABLES[table])}"
        if self.draw.random() < 0.4:
            # Spark looks only one level further out.
            scope = names if self.draw.random() < 0.3 and depth <= 1 else {}
            text += f" AND {self.condition({**scope, alias: TABLES[table]}, depth - 1)}"
        if depth > 0 and self.draw.random() < 0.2:
            value = self.scalar({alias: TABLES[table]})
            text += f" AND {value} {self.one_of('=', '<', '>=')} {self.column(names)}"
        return text, f"{alias}.{self.draw.choice(TABLES[table])}"

    def scalar(self, names: Names) -> str:
        """Return a scalar subquery, mostly a correlated one."""
        chance = self.draw.random()
        if chance < 0.15:
            return self.called(names)
        if chance < 0.3:
            table, alias = self.one_of(*TABLES), self.alias("s")
            own = {alias: TABLES[table]}
            text = f"{self.one_of('max', 'min', 'sum')}({self.column(own)}) FROM {table} {alias}"
            where = f" WHERE {self.condition(own, 0)}" if self.draw.random() < 0.4 else ""
            return f"(SELECT {text}{where})"
        text, column = self.correlated({n: c for n, c in names.items()}, 0)
        return f"(SELECT {self.one_of('max', 'count', 'sum')}({column}) {text})"

    def called(self, names: Names) -> str:
        """Return a call of a function with a query, as it is inlined."""
        alias = self.alias("f")
        text, column = self.correlated({alias: ("k",)}, 0)
        value = f"(SELECT {self.one_of('max', 'count', 'sum')}({column}) {text})"
        row = f"(SELECT {self.column(names)} AS c0) AS {alias}(k)"
        return f"(SELECT coalesce({value}, {alias}.k) FROM {row})"

    # ---------------------------------------------------------------------------------- expressions

    def expression(self, names: Names) -> str:
        chance = self.draw.random()
        column = self.column(names)
        if chance < 0.75:
            return column
        if chance < 0.83:
            return f"coalesce({column}, {self.column(names)})"
        if chance < 0.9:
            return f"{column} {self.one_of('+', '-')} {self.column(names)}"
        if chance < 0.97:
            return self.scalar(names)
        return str(self.one_of(1, 2))

    def grouped(self, names: Names, outs: Sequence[str], rest: str) -> str:
        keys = [self.column(names) for _ in outs]
        distinct = [*dict.fromkeys(keys)]
        by = ", ".join(distinct)
        if len(distinct) > 1 and self.draw.random() < 0.2:
            by = f"GROUPING SETS (({by}), ({distinct[0]}))"
        call = self.one_of(
            *("sum({})", "max({})", "min({})", "count({})", "count(DISTINCT {})", "count(*)"),
            "avg({})",
            *("sum({}) FILTER (WHERE {} > 1)",),
        )
        shown = ", ".join(f"{k} AS {o}" for k, o in zip(keys, outs, strict=True))
        having = ""
        if self.draw.random() < 0.3:
            column = self.column(names)
            tests = "count(*) > 1", f"max({column}) > 1", f"sum({column}) IS NOT NULL"
            having = f" HAVING {self.one_of(*tests)}"
        operand = self.scalar(names) if self.draw.random() < 0.1 else self.column(names)
        value = call.format(operand, self.column(names))
        if self.draw.random() < 0.15:  # a key is not shown
            shown = ", ".join([f"1 AS {outs[0]}", *shown.split(", ")[1:]])
        return f"SELECT {shown}, {value} AS g {rest} GROUP BY {by}{having}"

    def window(self, names: Names, form: str) -> str:
        return form.format(*(self.column(names) for _ in range(3)))

    def windowed(self, names: Names, outs: Sequence[str], rest: str) -> str:
        columns = [self.column(names) for _ in outs]
        form, first, last = self.one_of(*_WINDOWS), self.column(names), self.column(names)
        partition = self.draw.choice([*columns, self.column(names)])
        if self.draw.random() < 0.15:
            columns = [*columns[:-1], self.scalar(names)]
        shown = ", ".join(f"{c} AS {o}" for c, o in zip(columns, outs, strict=True))
        return f"SELECT {shown}, {form.format(first, partition, last)} AS g {rest}"
