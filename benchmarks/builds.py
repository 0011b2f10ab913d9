"""Measure what building costs beside the same queries written by bare Spark.

Seconds on the wall, in one warm session, in turns: bare Spark, our builds one after the other, and
our builds as a run makes them (`parallel`). And what a small source costs that Dagster builds in a
process of its own, beside a trivial asset.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.building.builder import Builder
from persist_assets.building.scheduler import Pool
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.planning.render import substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings

QUERIES = Path(__file__).parent.parent / "tests" / "queries"


def bare(spark: Any, project: Project, settings: Settings, out: Path) -> None:
    """Write every persisted source's query as Parquet and nothing else."""
    views: dict[str, str] = {}
    for source in project.sources:
        name = f"bare_{source.name}"
        if source.raw is not None:
            read = spark.read.parquet(settings.resolve(source.raw.location or ""))
            read.createOrReplaceTempView(name)
        elif source.persisted and source.query is not None:
            statement = substitute(project, source.query, source.bindings, views)
            spark.sql(statement.sql).write.parquet(str(out / source.name))
            spark.read.parquet(str(out / source.name)).createOrReplaceTempView(name)
        else:
            continue
        views[source.source_id] = name


def ours(spark: Any, project: Project, settings: Settings) -> None:
    """Build every persisted source, checked, committed and published."""
    ledger = Ledger(settings.ledger)
    builder = Builder(settings, project, ledger, SparkEngine(settings, lambda: spark))
    pool = Pool(builder, project.persisted)
    try:
        for source in project.persisted:
            with pool.work(source) as work:
                builder.publish(work)
                assert work.build.action == "built"
    finally:
        pool.close()
        ledger.close()


def measure(root: Path, times: int) -> dict[str, float]:
    """Return the median seconds of each way to build a project's sources."""
    # A later session of this process has the memory of the first one.
    settings = load_settings(root)
    settings = replace(settings, spark=(*settings.spark, ("spark.driver.memory", "6g")))
    project = require(load_project(settings))
    spark = create_session(settings)

    def state(turn: str, parallel: int) -> Settings:
        ledger = f"sqlite:///{root}/{turn}.db"
        return replace(settings, warehouse=f"{root}/w/{turn}", ledger=ledger, parallel=parallel)

    ways: Mapping[str, Callable[[str], None]] = {
        "bare": lambda turn: bare(spark, project, settings, root / "w" / turn),
        "one by one": lambda turn: ours(spark, project, state(turn, 1)),
        "at once": lambda turn: ours(spark, project, state(turn, 0)),
    }
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(times + 1):  # the first warms up
        for way, build in ways.items():
            started = time.perf_counter()
            build(f"{way} {turn}".replace(" ", "_"))
            if turn:
                taken[way].append(time.perf_counter() - started)
            shutil.rmtree(root / "w")
    spark.stop()
    return {way: statistics.median(seconds) for way, seconds in taken.items()}


def tpch(out: Path, scale: str, queries: int) -> Path:
    """Make a project of TPC-H's first queries, each a persisted source, with data of a scale."""
    (out / "sources").mkdir(parents=True)
    tool = Path(sys.executable).parent / "tpchgen-cli"
    command = [str(tool), "parquet", "-s", scale, "--output-dir", str(out / "raw")]
    subprocess.run(command, check=True, capture_output=True)
    (out / "persist.toml").touch()
    tables = (QUERIES / "tpch_tables.sql").read_text()
    for table in (out / "raw").glob("*.parquet"):
        tables = tables.replace(f"LOCATION '{table.stem}'", f"LOCATION 'raw/{table.name}'")
    (out / "sources" / "raw.sql").write_text(tables)
    blocks = (QUERIES / "tpch.sql").read_text().split("-- # ")[1 : queries + 1]
    views = [
        f"--@ persist\nCREATE VIEW {title.split()[0]} AS\n{query.strip()};\n"
        for title, query in (block.split("\n", 1) for block in blocks)
    ]
    (out / "sources" / "queries.sql").write_text("\n".join(views))
    return out


SMALL = """
CREATE TABLE t (entity_id BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW small AS SELECT entity_id, count(*) AS n FROM t GROUP BY entity_id;
"""
ONE_TRIVIAL = """
import dagster as dg

@dg.asset
def trivial(): ...

defs = dg.Definitions(assets=[trivial], executor=dg.in_process_executor)
"""
OURS = "from persist_assets import load_sources\n\ndefs = load_sources('sources')\n"


def launched(root: Path, times: int) -> tuple[float, float]:
    """Return the median seconds in which a process materializes a trivial asset, and a source.

    The source is forced, and built in the shared Spark server, which runs.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "sources").mkdir(parents=True)
    (root / "raw" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"entity_id": pa.array([1, 1, 2])}), root / "raw" / "t" / "p.parquet")
    (root / "persist.toml").write_text("[spark]\nshared = true\n")
    (root / "sources" / "m.sql").write_text(SMALL)
    (root / "definitions.py").write_text(OURS)
    (root / "trivial.py").write_text(ONE_TRIVIAL)
    dagster = str(Path(sys.executable).parent / "dagster")
    forced = '{"ops": {"m__small": {"config": {"force": true}}}}'
    materialize = [dagster, "asset", "materialize", "--select"]
    commands = {
        "trivial": [*materialize, "trivial", "-f", "trivial.py"],
        "small": [*materialize, "m/small", "-f", "definitions.py", "--config-json", forced],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    home = {**os.environ, "DAGSTER_HOME": str(root), "PERSIST_SPARK_HOME": str(root / "servers")}
    persist = str(Path(sys.executable).parent / "persist")
    subprocess.run([persist, "spark", "start"], cwd=root, env=home, check=True, capture_output=True)
    try:
        for turn in range(times + 1):  # the first warms up
            for name, command in commands.items():
                started = time.perf_counter()
                subprocess.run(command, cwd=root, env=home, check=True, capture_output=True)
                if turn:
                    taken[name].append(time.perf_counter() - started)
    finally:
        stop = [persist, "spark", "stop"]
        subprocess.run(stop, cwd=root, env=home, check=False, capture_output=True)
    ledger = Ledger(load_settings(root).ledger)
    assert [b.action for b in ledger.builds.fetch()] == ["built"] * (times + 1)
    ledger.close()
    return statistics.median(taken["trivial"]), statistics.median(taken["small"])
