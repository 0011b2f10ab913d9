"""Measure what building costs beside the same queries written by bare Spark, in a warm session."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run import generate

from persist_assets.builder import Builder
from persist_assets.engine import Engine
from persist_assets.ledger.store import Ledger
from persist_assets.model import Project
from persist_assets.project import load_project, require
from persist_assets.session import create_session
from persist_assets.settings import Settings, load_settings
from persist_assets.substitution import substitute


def bare(spark: Any, project: Project, settings: Settings, out: Path) -> float:
    """Write every persisted source's query as Parquet and nothing else; return the seconds."""
    started = time.perf_counter()
    views: dict[str, str] = {}
    for source in project.sources:
        name = f"bare_{source.name}"
        if source.raw is not None:
            spark.read.parquet(settings.resolve(source.raw.location or "")).createOrReplaceTempView(
                name
            )
        elif source.persisted and source.query is not None:
            statement = substitute(project, source.query, source.bindings, views)
            spark.sql(statement.sql).write.parquet(str(out / source.name))
            spark.read.parquet(str(out / source.name)).createOrReplaceTempView(name)
        else:
            continue
        views[source.source_id] = name
    return time.perf_counter() - started


def ours(spark: Any, project: Project, settings: Settings) -> float:
    """Build every persisted source, checked, committed and published; return the seconds."""
    ledger = Ledger(settings.ledger)
    builder = Builder(settings, project, ledger, Engine(settings, lambda: spark))
    started = time.perf_counter()
    for source in project.persisted:
        assert builder.build(source).action == "built"
    taken = time.perf_counter() - started
    ledger.close()
    return taken


def measure(n: int, rows: int, times: int) -> tuple[float, float]:
    """Return the median seconds of bare Spark and of ours for `n` sources over `rows` rows."""
    with tempfile.TemporaryDirectory() as temporary:
        root = generate(Path(temporary, "p"), n, rows)
        settings = load_settings(root)
        project = require(load_project(settings))
        spark = create_session(settings)
        theirs: list[float] = []
        mine: list[float] = []
        for turn in range(times + 1):  # the first warms up
            state = replace(
                settings,
                warehouse=f"{temporary}/w{turn}",
                ledger=f"sqlite:///{temporary}/l{turn}.db",
            )
            a = bare(spark, project, settings, Path(temporary, f"bare{turn}"))
            b = ours(spark, project, state)
            print(f"bare {a:.2f} s, ours {b:.2f} s, {b / a:.2f}×", flush=True)
            if turn:
                theirs.append(a)
                mine.append(b)
            shutil.rmtree(f"{temporary}/w{turn}")
        spark.stop()
        return statistics.median(theirs), statistics.median(mine)


if __name__ == "__main__":
    floor, taken = measure(20, int(sys.argv[1]) if len(sys.argv) > 1 else 200_000, 3)
    print(f"20 sources: bare {floor:.2f} s, ours {taken:.2f} s, {taken / floor:.2f}×")
