"""Random projects of random queries: after each edit, tables have the rows that Spark computes.

Sources of random queries (`random_queries.Writer`), some of them persisted, are built. Then
queries and raw data change, and stale tables are rebuilt. Each table must then have the rows
that Spark computes for the same queries over the current data, without persist.

`PERSIST_NIGHTLY_S` is the duration in seconds, `PERSIST_NIGHTLY_SEED` the first seed; by default
it changes each day.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from random_queries import mutate
from soundness import RAW, make_views
from test_random_projects import Reader, Texts

from persist_assets.core.errors import SourcesError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from persist_assets.building.builder import Builder

TABLES = ("t", "u", "w")


def without_lots(text: str) -> str:
    """Return a query without LIMIT, which may choose any of several equal rows."""
    return re.sub(r" LIMIT \d+", "", text)


def written(draw: random.Random) -> Texts:
    """Return five to eight sources, each of which may read those before it."""
    texts: dict[str, str] = {}
    columns: dict[str, Any] = {}
    n = 0
    for name in (f"q{i}" for i in range(draw.choice((5, 6, 7, 8)))):
        reader = Reader(draw, dict(columns), n)
        text, columns[name] = reader.query(draw.choice((0, 1, 1, 2)))
        texts[name], n = without_lots(text), reader.n
    return {name: text for name, text in texts.items() if "rand()" not in text}


def write_raw(spark: Any, root: Path, draw: random.Random, name: str) -> None:
    """Write a raw table with some of its rows, and perhaps some of them twice."""
    rows = spark.table(f"raw_{name}")
    kept = rows.collect()
    kept = [row for row in kept if draw.random() < 0.8] + draw.choices(kept, k=draw.choice((0, 2)))
    frame = spark.createDataFrame(kept, rows.schema).coalesce(1)
    frame.write.mode("overwrite").parquet(str(root / name))


def write_sources(root: Path, texts: Texts, persisted: frozenset[str]) -> None:
    views = "".join(
        f"{'--@ persist' if n in persisted else ''}\nCREATE VIEW {n} AS {text.replace('@', '')};\n"
        for n, text in texts.items()
    )
    (root / "sources" / "m.sql").write_text(RAW + views)


def by_spark(spark: Any, root: Path, texts: Texts) -> dict[str, Counter[str]] | None:
    """Return the rows of each source as Spark alone computes them; None if a query fails."""
    try:
        for name in TABLES:
            spark.read.parquet(str(root / name)).createOrReplaceTempView(name)
        answers: dict[str, Counter[str]] = {}
        for name, text in texts.items():
            frame = spark.sql(text.replace("@", ""))
            frame.createOrReplaceTempView(name)
            answers[name] = Counter(repr(tuple(row)) for row in frame.collect())
        return answers
    except Exception:
        return None
    finally:
        for name in (*texts, *TABLES):
            spark.catalog.dropTempView(name)


def by_us(builder: Builder) -> dict[str, Counter[str]]:
    for source in builder.project.persisted:
        builder.build(source)
    return {
        s.name: Counter(repr(tuple(row)) for row in builder.read(s).collect())
        for s in builder.project.persisted
    }


def edited(draw: random.Random, texts: Texts) -> Mapping[str, str]:
    name = draw.choice([*texts])
    return {**texts, name: without_lots(mutate(draw, texts[name]))}


@pytest.mark.proves("S1")
def test_random_projects_have_the_rows_of_spark_after_each_edit(
    spark: Any,
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
) -> None:
    budget_s = float(os.environ.get("PERSIST_NIGHTLY_S", "120"))
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", date.today().toordinal() * 1000))
    make_views(spark)
    started, first = time.monotonic(), seed
    n_projects = n_steps = n_tables = n_refused = 0
    wrong: list[str] = []
    while time.monotonic() - started < budget_s:
        seed += 1
        draw = random.Random(seed)
        texts = written(draw)
        root = make_project({}, name=f"project{seed}")
        for name in TABLES:
            write_raw(spark, root, draw, name)
        persisted = frozenset(name for name in texts if draw.random() < 0.6)
        n_projects += 1
        for step in range(4):
            new = edited(draw, texts) if step and draw.random() < 0.7 else texts
            if step and draw.random() < 0.6:
                write_raw(spark, root, draw, draw.choice(TABLES))
            write_sources(root, new, persisted)
            said = by_spark(spark, root, new)
            if said is None:
                continue
            try:
                builder = enter(root, run_id=f"run{step}")
            except SourcesError:
                n_refused += 1  # an uncertain column name, for example
                continue
            texts, n_steps = new, n_steps + 1
            for name, rows in by_us(builder).items():
                n_tables += 1
                if rows != said[name]:
                    wrong.append(f"seed {seed}, step {step}: {name}: {texts[name]}")
                    print(wrong[-1], flush=True)
    print(
        f"\nseeds {first + 1} to {seed}: {n_projects} projects, {n_steps} steps, {n_tables} tables,"
        f" {n_refused} refused, {len(wrong)} wrong"
    )
    assert not wrong, "\n".join(wrong)
    assert n_tables
