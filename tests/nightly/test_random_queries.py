"""Random queries and small changes of them: where BuildIDs are equal, so are rows on Spark.

`PERSIST_NIGHTLY_S` is for how long (seconds), `PERSIST_NIGHTLY_SEED` where to begin.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from soundness import build_id, difference, make_views, project, run

TABLES = {"w": ("a", "k", "z"), "u": ("a", "k"), "t": ("a", "k")}
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
            texts[f"q{i}"], columns = self.query(self.one_of(0, 1))
            self.ctes[f"q{i}"] = columns
        query, _ = self.query(self.one_of(0, 1, 1, 2))
        defined = ""
        for name, text in reversed(texts.items()):  # one that is not read says nothing
            if f" {name} " in f"{defined}{query}":
                defined = f"{name} AS ({text}){', ' if defined else ''}{defined}"
        return f"WITH {defined} {query}" if defined else query

    def relation(self, depth: int) -> tuple[str, Sequence[str]]:
        if self.ctes and self.draw.random() < 0.6:
            return self.draw.choice([*self.ctes.items()])
        if depth == 0 or self.draw.random() < 0.5:
            table = self.one_of(*TABLES)
            return table, TABLES[table]
        text, columns = self.query(depth - 1)
        return f"({text})", columns

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
                query += f" ORDER BY {', '.join(outs)} LIMIT {self.one_of(1, 2, 3)}"
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


def mutate(draw: random.Random, query: str) -> str:
    """Return a query in which one thing is another, or the query itself."""
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


def test_random_queries_of_equal_build_ids_have_equal_rows(spark: Any) -> None:
    make_views(spark)
    budget_s = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", "1"))
    started = time.monotonic()
    n_queries = n_mutants = n_equal = n_errors = 0
    wrong: list[str] = []
    while time.monotonic() - started < budget_s:
        draw = random.Random(seed)
        seed += 1
        query = Writer(draw).statement()
        made = project(query)
        ours = build_id(made)
        if ours is None or made.by_id["q@sources/q.sql"].notes:
            continue
        n_queries += 1
        for _ in range(12):
            other = mutate(draw, query)
            if draw.random() < 0.3:
                other = mutate(draw, other)
            if other == query:
                continue
            n_mutants += 1
            changed = project(other)
            if build_id(changed) != ours:
                continue
            n_equal += 1
            answers = run(spark, made), run(spark, changed)
            n_errors += any(a.error is not None for a in answers)
            if said := difference(*answers):
                wrong.append(f"seed {seed - 1}: {said}\n{query}\n{other}")
            break
    print(
        f"\n{n_queries} queries, {n_mutants} mutants, {n_equal} pairs of equal BuildIDs, "
        f"{n_errors} of them not comparable, {len(wrong)} of other rows"
    )
    assert not wrong, "\n".join(wrong)
    assert n_equal > budget_s / 10
