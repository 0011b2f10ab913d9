"""Random pipes: the nested queries that the analysis reads have the same columns and rows on Spark.

`PERSIST_NIGHTLY_S` sets the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.dialect import faithful, tokenize
from persist_assets.core.pipes import without_pipes

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLES = {
    "t": "(1, 1, 10), (1, 2, 20), (2, 1, NULL), (NULL, 3, 30), (2, 1, 10)",
    "u": "(1, 5, 1), (3, NULL, 2), (2, 2, 10), (2, 2, 10)",
}
NAMES = ("a", "k", "z")
FEWEST_COMPARED = 0.1
"""The smallest share of pipes that must be compared, so that the test is meaningful."""


def term(draw: random.Random) -> str:
    name = draw.choice(NAMES)
    qualifier = draw.choice(("", "", "", "", "t.", "u.", "x.", "date."))
    return f"{qualifier}{name}"


def value(draw: random.Random) -> str:
    return draw.choice((term(draw), f"{term(draw)} + 1", f"{term(draw)} * {term(draw)}", "7"))


def condition(draw: random.Random) -> str:
    return draw.choice(
        (
            f"{term(draw)} > 1",
            f"{term(draw)} = 2 OR {term(draw)} IS NULL",
            f"{term(draw)} IN (FROM u |> WHERE {term(draw)} > 1 |> SELECT a)",
            f"EXISTS (FROM u AS x |> EXTEND a + 1 AS y |> WHERE y = {term(draw)})",
        )
    )


def named(draw: random.Random, values: Sequence[str]) -> str:
    return ", ".join(f"{one} AS {draw.choice(NAMES)}" for one in values)


def step(draw: random.Random) -> str:
    """Return a random step; many refer to columns that do not exist."""
    kind = draw.randrange(13)
    match kind:
        case 0 | 1:
            return f"WHERE {condition(draw)}"
        case 2:
            return f"SELECT {named(draw, [value(draw) for _ in range(draw.randint(1, 3))])}"
        case 3:
            return f"SELECT {draw.choice(('*', 't.*', 'a, k', 'k, a AS z', 'DISTINCT a'))}"
        case 4:
            return f"EXTEND {value(draw)} AS {draw.choice((*NAMES, 'y'))}"
        case 5:
            return f"DROP {draw.choice(NAMES)}"
        case 6:
            return f"AS {draw.choice(('t', 'u', 'x', 'date'))}"
        case 7:
            kind = draw.choice(("JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "FULL JOIN"))
            on = draw.choice(
                ("USING (a)", "ON t.a = u.a", "ON t.k = u.a AND u.z > 1", "ON x.a = u.k")
            )
            return f"{kind} u {on}"
        case 8:
            calls = draw.choice(
                (f"sum({term(draw)}) AS z", "count(*) AS a", "max(k) AS k, min(a) AS a")
            )
            keys = draw.choice(
                (
                    "",
                    " GROUP BY a",
                    f" GROUP BY {term(draw)}",
                    " GROUP BY a + 1 AS k, z",
                    " GROUP BY (1)",
                    f" GROUP BY 2, {term(draw)}",
                    " GROUP BY z + 1 AS y, 1",
                )
            )
            return f"AGGREGATE {calls}{keys}"
        case 9:
            return f"ORDER BY {term(draw)}"
        case 10:
            return "ORDER BY a, k, z |> LIMIT 2"
        case 11:
            other = draw.choice(("TABLE u", "SELECT * FROM t", "FROM u"))
            return f"{draw.choice(('UNION ALL', 'UNION', 'EXCEPT', 'INTERSECT ALL'))} {other}"
        case _:
            return f"SELECT a, sum(z) OVER w AS z, {term(draw)} AS k WINDOW w AS (PARTITION BY a)"


def pipe(draw: random.Random) -> str:
    base = draw.choice(
        ("FROM t", "TABLE t", "FROM t AS x", "FROM t JOIN u ON t.a = u.a", "FROM t, u AS x",
         "SELECT a, k FROM t WHERE z > 1", "SELECT * FROM u", "FROM (FROM t |> DROP k) AS x",
         "FROM t LATERAL VIEW explode(array(1, 2)) x AS y", "FROM t AS date")
    )  # fmt: skip
    return " |> ".join((base, *(step(draw) for _ in range(draw.randint(1, 4)))))


def nested(spark: Any, text: str) -> str | None:
    """Return the text of the nested queries, or None if they are not certain to mean the same.

    A number of a column is the name of that column.
    """
    tokens, is_certain = without_pipes(faithful(tokenize(text), text))
    words: list[str] = []
    for token in tokens if is_certain else ():
        words.append(token.text.replace("ƒ", ""))
        if token.text != words[-1] and words[-1].isdecimal():
            before = answer(spark, text[: text.rindex("|> AGGREGATE", 0, token.start)])
            names = [name.lower() for name in before[0]] if before else []
            position = int(words[-1]) - 1
            if position >= len(names) or names.count(names[position]) > 1:
                return None
            words[-1] = f"`{names[position]}`"
    return " ".join(words) if is_certain else None


def answer(spark: Any, text: str) -> tuple[list[str], list[str]] | None:
    """Return the names of columns and the rows in order, or None if Spark refuses the text."""
    from pyspark.errors import PySparkException

    try:
        frame = spark.sql(text)
        return frame.columns, sorted(repr(tuple(row)) for row in frame.collect())
    except PySparkException:
        return None


@pytest.mark.proves("V4")
def test_pipes_and_their_nested_queries_have_the_same_rows_on_spark(spark: Any) -> None:
    seconds = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", "0"))
    for name, rows in TABLES.items():
        frame = spark.sql(f"SELECT * FROM VALUES {rows} AS {name}({', '.join(NAMES)})")
        frame.coalesce(1).createOrReplaceTempView(name)
    n = n_run = 0
    wrong: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = pipe(random.Random(seed + n))
        n += 1
        query = nested(spark, text)
        expected = answer(spark, text) if query is not None else None
        if query is None or expected is None:
            continue
        n_run += 1
        if answer(spark, query) != expected:
            wrong.append(f"{text}\n    {query}\n    {expected}\n    {answer(spark, query)}")
    print(f"{n} pipes, {n_run} compared, {len(wrong)} wrong")
    assert not wrong, "\n".join(wrong[:10])
    assert n_run > n * FEWEST_COMPARED
