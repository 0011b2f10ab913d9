"""Random queries over the tables of `tests/nightly/soundness.py`, and small changes of them."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

TABLES = {"w": ("a", "k", "z"), "u": ("a", "k"), "t": ("a", "k")}
UNNAMED = (
    "{0}::STRING", "{0}::INT", "string({0})", "int({0})", "CAST({0} AS BIGINT)", "try_cast({0} AS INT)",
    "bigint(int({0}))", "{0}", "'{1}'", "'{1}'", "array(named_struct('{1}', {0}))[0].{1}",
    "named_struct('{1}', {0}).{1}", "named_struct('{1}', {0}).{1}::INT",
)  # fmt: skip
"""Columns without an alias, of a column and of a name that they have, or do not have."""
NAMELESS = (
    "CAST(int({0}) AS STRING)", "{1}", "({1})", "NULL", "TRUE", "7", "array({0})[0]", "-{0}", "{0} + 1",
    "coalesce({0}, {0})", "upper('{1}')", "DATE '2024-01-01'", "date('{1}')", "{0} = 1", "string({0} + 1)",
)  # fmt: skip
"""The like, that have other names."""
FIELDS = (
    "{}.s.x",
    "({}.s).x",
    "{}.s.x::STRING",
    "string({}.s.x)",
    "{}.s['x']",
    "{}.m.x",
    "{}.m['x']",
)
"""The like, of the table `t`: some are called `x`."""
Names = Mapping[str, Sequence[str]]
"""Aliases in sight, and the columns of each."""


class Writer:
    """Writes one query; all its decisions are drawn from one generator."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.n = 0
        self.ctes: dict[str, Sequence[str]] = {}

    def one_of(self, *choices: Any) -> Any:
        return self.draw.choice(choices)

    def alias(self, letter: str) -> str:
        self.n += 1
        return f"{letter}{self.n}"

    def column(self, names: Names) -> str:
        alias = self.draw.choice(list(names))
        return f"{alias}.{self.draw.choice(names[alias])}"

    def condition(self, names: Names, depth: int) -> str:
        chance = self.draw.random()
        column = self.column(names)
        if chance < 0.45:
            return f"{column} {self.one_of('=', '=', '<=>', '<', '<=', '<>')} {self.column(names)}"
        if chance < 0.6:
            return (
                f"{column} {self.one_of('=', '>', 'IS NOT DISTINCT FROM')} {self.one_of(1, 2, 5)}"
            )
        if chance < 0.68:
            return f"{column} IS {self.one_of('', 'NOT ')}NULL"
        if chance < 0.76:
            return f"({self.condition(names, depth)} OR {self.condition(names, depth)})"
        if chance < 0.8:
            return f"NOT ({self.condition(names, depth)})"
        if depth > 0 and self.draw.random() < 0.45:
            return self.implicit(names)
        if depth == 0:
            return f"{column} IN (1, {self.one_of('2', '3', 'NULL')})"
        table, alias, negated = self.one_of(*TABLES), self.alias("s"), self.one_of("", "NOT ")
        inner = self.condition({**names, alias: TABLES[table]}, depth - 1)
        if chance < 0.9:
            return f"{negated}EXISTS (SELECT 1 FROM {table} {alias} WHERE {inner})"
        what = self.draw.choice(TABLES[table])
        return f"{column} {negated}IN (SELECT {alias}.{what} FROM {table} {alias} WHERE {inner})"

    def conditions(self, names: Names, depth: int) -> str:
        return " AND ".join(self.condition(names, depth) for _ in range(self.one_of(1, 1, 2)))

    def statement(self) -> str:
        """Return a query, perhaps with common table expressions that it may read several times."""
        texts: dict[str, str] = {}
        for i in range(self.one_of(0, 0, 1, 2)):
            plain = self.draw.random() < 0.75
            texts[f"q{i}"], columns = self.query(self.one_of(0, 1)) if plain else self.unnamed()
            self.ctes[f"q{i}"] = columns
        query, _ = self.query(self.one_of(0, 1, 1, 2))
        defined = ""
        for name, text in reversed(texts.items()):  # one that is not read says nothing
            if f" {name} " in f"{defined}{query}":
                defined = f"{name} AS ({text}){', ' if defined else ''}{defined}"
        return f"WITH {defined} {query}" if defined else query

    def unnamed(self) -> tuple[str, Sequence[str]]:
        """Return a query that gives its columns no aliases, and names that they may have."""
        table, alias = self.one_of(*TABLES), self.alias("s")
        columns = TABLES[table]
        shown: list[str] = []
        names: list[str] = []
        for _ in range(self.one_of(1, 1, 2)):
            column = self.one_of(*columns)
            operand = self.one_of(f"{alias}.{column}", column)
            chance = self.draw.random()
            if table == "t" and chance < 0.25:
                shown.append(self.one_of(*FIELDS).format(alias))
                names.append("x")
            elif chance < 0.4:
                shown.append(self.one_of(*NAMELESS).format(operand, column))
            else:
                shown.append(self.one_of(*UNNAMED).format(operand, column))
                names.append(column)
        text = f"SELECT {', '.join(shown)} FROM {table} {alias}"
        if self.draw.random() < 0.3:
            text += f" WHERE {alias}.{self.draw.choice(columns)} > 1"
        if self.draw.random() < 0.35:
            order = self.one_of("{1}", "{1}", "{0}.{1}", "string({1})", "-{1}", "1")
            by = order.format(alias, self.one_of("a", "k", self.draw.choice(columns)))
            text += f" {self.one_of('ORDER', 'ORDER', 'SORT')} BY {by}{self.one_of('', ' DESC')}"
            text += f" LIMIT {self.one_of(1, 2, 3)}"
        return text, tuple(dict.fromkeys(names)) or columns[:1]

    def bare(self, names: Names) -> str:
        """Return a condition over names without qualifiers and fields, in whatever is in sight."""
        name = self.one_of(
            "a", "k", "x", "z", "e", "code", "`7`", "`true`", "`NULL`", self.column(names)
        )
        other = self.one_of("'1'", "2", "'10'", "'a'", "1", self.column(names))
        return f"{name} {self.one_of('=', '=', '<=>', '>', '<>')} {other}"

    def implicit(self, names: Names) -> str:
        """Return a condition with a query whose columns have no aliases."""
        text, columns = self.unnamed()
        alias = self.alias("r")
        relation = f"({text}) {alias}"
        if self.draw.random() < 0.35:
            join = self.one_of(
                "NATURAL JOIN {}", "NATURAL LEFT JOIN {}", "JOIN {} USING (a)", "JOIN {} USING (k)"
            )
            relation += " " + join.format(f"{self.one_of(*TABLES)} {self.alias('r')}")
        inner = self.bare({**names, alias: columns})
        if self.draw.random() < 0.3:
            inner += f" AND {self.bare({**names, alias: columns})}"
        return f"{self.one_of('', '', 'NOT ')}EXISTS (SELECT 1 FROM {relation} WHERE {inner})"

    def relation(self, depth: int) -> tuple[str, Sequence[str]]:
        if self.draw.random() < 0.12:
            text, columns = self.unnamed()
            return f"({text})", columns
        if self.ctes and self.draw.random() < 0.6:
            return self.draw.choice([*self.ctes.items()])
        if depth == 0 or self.draw.random() < 0.5:
            table = self.one_of(*TABLES)
            return table, TABLES[table]
        if self.draw.random() < 0.15:
            return f"({self.recursive()})", ("a", "k")
        text, columns = self.query(depth - 1)
        return f"({text})", columns

    def recursive(self) -> str:
        """Return a query that computes rows from its own rows."""
        own, alias, table = self.alias("r"), self.alias("s"), self.one_of(*TABLES)
        names = {own: ("a", "k"), alias: ("a", "k")}
        start = f"SELECT a, k FROM {self.one_of(*TABLES)}"
        kind = self.one_of("", "", "LEFT ")
        step = f"SELECT {own}.a + 1, {self.column(names)} FROM {own} {kind}JOIN {table} {alias}"
        step += f" ON {self.condition(names, 0)} WHERE {own}.a < {self.one_of(2, 3)}"
        return f"WITH RECURSIVE {own}(a, k) AS ({start} UNION ALL {step}) SELECT a, k FROM {own}"

    def lateral(self, names: Names) -> str:
        """Return a query that refers to the tables beside it."""
        table, alias = self.one_of(*TABLES), self.alias("s")
        key, what = self.draw.choice(TABLES[table]), self.draw.choice(TABLES[table])
        rest = f"FROM {table} {alias} WHERE {alias}.{key} = {self.column(names)}"
        if self.draw.random() < 0.4:
            by = ", ".join(f"{alias}.{c}" for c in (what, *TABLES[table]))
            return f"SELECT {alias}.{what} AS e {rest} ORDER BY {by} LIMIT {self.one_of(1, 2)}"
        call = self.one_of("max", "count", "sum")
        return f"SELECT {call}({alias}.{what}) AS e {rest}{self.one_of('', f' GROUP BY {alias}.{key}')}"

    def relations(self, depth: int) -> tuple[str, dict[str, Sequence[str]]]:
        """Return what stands after FROM, and what it brings in sight."""
        names: dict[str, Sequence[str]] = {}
        text = ""
        for i in range(self.one_of(1, 2, 2, 3)):
            relation, columns = self.relation(depth)
            alias = self.alias("r")
            if i == 0:
                text, names = f"{relation} {alias}", {alias: columns}
                continue
            kind = self.one_of(
                "", "", "LEFT ", "RIGHT ", "FULL ", "CROSS ", "LEFT SEMI ", "LEFT ANTI "
            )
            if kind in ("", "LEFT ", "FULL ") and self.draw.random() < 0.15:
                text += self.one_of(
                    f" NATURAL {kind}JOIN {relation} {alias}",
                    f" {kind}JOIN {relation} {alias} USING (a)",
                )
                names[alias] = columns
                continue
            text += f" {kind}JOIN {relation} {alias}"
            if kind != "CROSS ":
                text += f" ON {self.conditions({**names, alias: columns}, 0)}"
            if kind not in ("LEFT SEMI ", "LEFT ANTI "):
                names[alias] = columns
        if self.draw.random() < 0.12:
            alias, outer = self.alias("r"), self.one_of("", "OUTER ")
            array = f"array({self.column(names)}, {self.column(names)})"
            text += f" LATERAL VIEW {outer}explode({array}) {alias} AS e"
            names[alias] = ("e",)
        if self.draw.random() < 0.1 and "LATERAL VIEW" not in text:
            alias, kind = self.alias("r"), self.one_of("JOIN", "LEFT JOIN")
            text += f" {kind} LATERAL ({self.lateral(names)}) {alias}"
            names[alias] = ("e",)
        return text, names

    def expression(self, names: Names) -> str:
        chance = self.draw.random()
        column = self.column(names)
        if chance < 0.7:
            return column
        if chance < 0.8:
            return f"coalesce({column}, {self.column(names)})"
        if chance < 0.87:
            return f"{column} {self.one_of('+', '-', '*')} {self.column(names)}"
        if chance < 0.93:
            table, alias = self.one_of(*TABLES), self.alias("s")
            what, key = self.draw.choice(TABLES[table]), self.draw.choice(TABLES[table])
            call = f"{self.one_of('max', 'count', 'sum')}({alias}.{what})"
            return f"(SELECT {call} FROM {table} {alias} WHERE {alias}.{key} = {column})"
        return str(self.one_of(1, 2))

    def grouped(self, names: Names, outs: Sequence[str], rest: str) -> str:
        keys = [self.column(names) for _ in outs]
        by = self.one_of("{}", "{}", "ROLLUP({})", "CUBE({})", "GROUPING SETS(({}), ())")
        call = self.one_of("sum({})", "max({})", "count({})", "count(DISTINCT {})", "avg({})")
        shown = ", ".join(f"{k} AS {o}" for k, o in zip(keys, outs, strict=True))
        having = ""
        if self.draw.random() < 0.3:
            column = self.column(names)
            having = f" HAVING {self.one_of('count(*) > 1', f'max({column}) > 1', f'sum({column}) IS NOT NULL')}"
        grouping = by.format(", ".join(dict.fromkeys(keys)))
        value = call.format(self.column(names))
        return f"SELECT {shown}, {value} AS g {rest} GROUP BY {grouping}{having}"

    def windowed(self, names: Names, outs: Sequence[str], rest: str) -> str:
        call = self.one_of(
            "sum({0}) OVER (PARTITION BY {1})",
            "count({0}) OVER (PARTITION BY {1} ORDER BY {2})",
            "rank() OVER (PARTITION BY {1} ORDER BY {2} {3})",
            "max({0}) OVER (ORDER BY {2} {3})",
            "dense_rank() OVER (ORDER BY {2})",
            "min({0}) FILTER (WHERE {1} > 1) OVER (PARTITION BY {2})",
        )
        three = [self.column(names) for _ in range(3)]
        value = call.format(*three, self.one_of("", "DESC", "NULLS LAST"))
        shown = ", ".join(f"{self.column(names)} AS {o}" for o in outs)
        return f"SELECT {shown}, {value} AS g {rest}"

    def query(self, depth: int) -> tuple[str, Sequence[str]]:
        """Return a query and the names of its columns."""
        text, names = self.relations(depth)
        rest = f"FROM {text}"
        if self.draw.random() < 0.5:
            rest += f" WHERE {self.conditions(names, 1)}"
        outs = [f"c{i}" for i in range(self.one_of(1, 2, 2))]
        chance = self.draw.random()
        if chance < 0.4:
            make = self.grouped if chance < 0.2 else self.windowed
            query, outs = make(names, outs, rest), [*outs, "g"]
        else:
            shown = ", ".join(f"{self.expression(names)} AS {o}" for o in outs)
            query = f"SELECT {self.one_of('', '', 'DISTINCT ')}{shown} {rest}"
            if self.draw.random() < 0.12:
                by = self.one_of(", ".join(outs), ", ".join(outs), self.column(names), "a, k")
                query += f" ORDER BY {by} LIMIT {self.one_of(1, 2, 3)}"
        if depth > 0 and self.draw.random() < 0.2:
            text, names = self.relations(0)
            kind = self.one_of("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL")
            shown = ", ".join(self.column(names) for _ in outs)
            query = f"({query}) {kind} SELECT {shown} FROM {text}"
        return query, outs


_WORDS = {
    "UNION ALL": "UNION", "UNION": "UNION ALL", "ROLLUP": "CUBE", "CUBE": "ROLLUP", "<=>": "=",
    "<=": "<", "DISTINCT ": "", "NOT ": "", "OUTER ": "", "DESC": "", "NULLS LAST": "",
    "LEFT JOIN": "RIGHT JOIN", "RIGHT JOIN": "FULL JOIN", "FULL JOIN": "JOIN",
    "LEFT SEMI JOIN": "LEFT JOIN", "LEFT ANTI JOIN": "LEFT SEMI JOIN", "EXCEPT": "INTERSECT",
}  # fmt: skip


_SPELLINGS: tuple[tuple[str, Sequence[str]], ...] = (
    (r"(?<![.\w'])[rs]\d+\.([akzx])\b", (r"\1",)),  # without its qualifier
    (
        r"(?<![.\w'`])([akzx])(?![.\w'`])",
        (r"u.\1", r"r1.\1", r"s1.\1", r"`\1`", "a", "k", "z", "x"),
    ),
    (r"([\w.]+)::(\w+)", (r"CAST(\1 AS \2)", r"try_cast(\1 AS \2)", r"\2(\1)", r"(\1)::\2", r"\1")),
    (r"\b(string|int|bigint)\(([\w.]+)\)", (r"\2::\1", r"CAST(\2 AS \1)", r"bigint(\2)", r"\2")),
    (r"CAST\(([\w.]+) AS (\w+)\)", (r"\1::\2", r"\2(\1)", r"CAST(\1 AS SMALLINT)", r"\1")),
    (
        r"\b(STRING|INT|BIGINT)\b",
        ("STRING", "INT", "BIGINT", "LONG", "INTEGER", "VARCHAR(9)", "DOUBLE", "DECIMAL(9,0)"),
    ),
    (r"'(\w+)'", ("'a'", "'k'", "'z'", r"\1", "r'\\1'", '"\\1"', "'1'")),
    (
        r"(?<![\w'`.\[-])([127])(?![\w'`.-])",
        (r"\1L", r"\1.0", r"'\1'", r"int('\1')", r"(\1)", r"\1BD", r"0\1"),
    ),
    (
        r"\b(TRUE|NULL|DATE '2024-01-01')",
        ("true", "'true'", "NULL", "'NULL'", "CAST(NULL AS INT)", "date('2024-01-01')"),
    ),
    (r"(?<=[\])])\.([akzx])\b", (r".\1 AS \1", r".\1::INT")),
    (
        r"((?:\b[\w.]+::\w+)|(?:\b\w+\([\w.]+\))|'\w+')(?=(?:, .{1,40})? FROM)",
        (r"\1 AS a", r"\1 AS k", r"\1 AS zz"),
    ),
    (
        r"(?<=\w) FROM (\w+) (s\d+)",
        (r" AS a FROM \1 \2", r" AS x FROM \1 \2", r" AS zz FROM \1 \2"),
    ),
    (r"NATURAL ", ("",)),
    (r" USING \((\w)\)", (r" USING (k)", r" USING (a)", r" USING (z)")),
    (r"\b(?:ORDER|SORT) BY ", ("ORDER BY ", "SORT BY ", "ORDER BY -", "ORDER BY string(a), ")),
)
"""What may be spelled in other ways, and the ways: some have the same meaning."""


def respell(draw: random.Random, query: str) -> str:
    """Return a query in which one type, literal or name is spelled in another way."""
    found = [(m, ways) for pattern, ways in _SPELLINGS for m in re.finditer(pattern, query)]
    if not found:
        return query
    match, ways = draw.choice(found)
    return query[: match.start()] + match.expand(draw.choice(ways)) + query[match.end() :]


def mutate(draw: random.Random, query: str) -> str:
    """Return a query in which one thing is another, or the query itself."""
    if draw.random() < 0.45:
        return respell(draw, query)
    chance = draw.random()
    refs = list(re.finditer(r"\b[rs]\d+\.\w\b", query))
    if chance < 0.7 and len(refs) > 1:
        one, other = sorted(draw.sample(refs, 2), key=lambda m: m.start())
        back = one.group() if chance > 0.5 else other.group()
        head, between = query[: one.start()], query[one.end() : other.start()]
        return f"{head}{other.group()}{between}{back}{query[other.end() :]}"
    if chance < 0.8:
        aliases = list(dict.fromkeys(re.findall(r"\br\d+\b", query)))
        if len(aliases) < 2:
            return query
        a, b = draw.sample(aliases, 2)
        return re.sub(rf"\b({a}|{b})\.", lambda m: f"{b if m[1] == a else a}.", query)
    if chance < 0.9:
        word = draw.choice(list(_WORDS))
        places = [m.start() for m in re.finditer(re.escape(word), query)]
        if not places:
            return query
        at = draw.choice(places)
        return query[:at] + _WORDS[word] + query[at + len(word) :]
    return re.sub(r" ON (.*?) WHERE ", r" ON true WHERE \1 AND ", query, count=1)
