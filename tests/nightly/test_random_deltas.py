"""Random queries that are maintained by deltas on Spark, and random histories of their tables.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from conftest import SPARK_TOML
from delta_queries import COLUMNS, RAW, DeltaWriter
from deltas import Tables
from histories import Zygote
from maintained import WITHOUT_COST, methods, put_rows
from strategies import BY_DELTAS, Tally, explore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.building.builder import Builder

BUDGET_S = float(os.environ.get("PERSIST_NIGHTLY_S", "600"))
SEED = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6)))
AT_ONCE = 12
"""Queries of one project."""
SIMPLE = 2
"""Those of them that only get rows if their tables do, and as many that are merged by groups."""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("strategies")
    yield made
    made.close()


@pytest.mark.proves("T8")
def test_random_queries_are_incrementally_maintained_on_spark(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    print(f"\nmaintained queries from seed {SEED}")
    tally, began, n = Counter[str](), time.monotonic(), 0
    while n < 120 or time.monotonic() < began + BUDGET_S:
        rng = random.Random(f"{SEED}:{n}")
        texts = [write_simple(rng, grouped=k >= SIMPLE) for k in range(2 * SIMPLE)]
        texts += [DeltaWriter(rng).statement() for _ in range(AT_ONCE - 2 * SIMPLE)]
        queries = {f"v{n + k}": text for k, text in enumerate(texts)}
        views = (f"{WITHOUT_COST}CREATE VIEW {name} AS {q};\n" for name, q in queries.items())
        root = make_project({"m.sql": RAW + "".join(views)}, name=f"p{n}")
        tables = Tables(COLUMNS)
        tables.fill(rng, 12)
        for table in COLUMNS:
            put_rows(root / "raw" / table, COLUMNS[table], tables.new[table])
        refused = set[str]()
        for number in range(4):
            if number:
                change(rng, tables, root)
            by_method = methods(enter(root), f"seed {SEED}, {n}, change {number}", refused)
            tally.update(by_method.values() if number else ())
        tally["refused"] += len(refused)
        n += AT_ONCE
    print(f"{n} queries, {dict(tally)} in {time.monotonic() - began:.0f} s")
    assert all(tally[method] > n / 8 for method in ("append", "keys", "merge"))
    assert tally["refused"] < n / 4


def write_simple(rng: random.Random, *, grouped: bool) -> str:
    """Return a query of filters, projections, inner joins and perhaps groups.

    Few queries are so simple by chance.
    """
    while True:
        text, _ = DeltaWriter(rng).query(0)
        is_simple = not re.search(r"\(SELECT|OVER|DISTINCT|LEFT|RIGHT|FULL", text)
        if is_simple and ("GROUP BY" in text) == grouped:
            return text


def change(rng: random.Random, tables: Tables, root: Path) -> None:
    """Change some tables at random."""
    chosen = [t for t in COLUMNS if rng.random() < 0.6] or [*COLUMNS]
    grows = rng.random() < 0.5
    tables.change(rng, chosen, grows=grows)
    for table in chosen:
        rows = tables.new[table]
        rows = rows[len(tables.old[table]) :] if grows else rows
        put_rows(root / "raw" / table, COLUMNS[table], rows, grows=grows)


@pytest.mark.proves("T8")
@pytest.mark.parametrize("kind", BY_DELTAS)
def test_tables_maintained_by_deltas_survive_random_histories(
    spark: Any, zygote: Zygote, kind: str
) -> None:
    print(f"\nhistories of `{kind}` from seed {SEED}")
    tally, began, n = Tally(), time.monotonic(), 0
    while n < 35 or time.monotonic() < began + BUDGET_S / len(BY_DELTAS):
        tally += explore(5, spark, zygote, SPARK_TOML, seed=SEED, steps=6, first=n, only=kind)
        n += 5
    print(f"{tally}\nin {time.monotonic() - began:.0f} s")
    assert tally.builds["keys"] + tally.builds["merge"] > 5
    assert tally.killed.total() > 5
