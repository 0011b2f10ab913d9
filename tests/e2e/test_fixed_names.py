"""Readers poll a fixed table name while the table is built, promoted and rolled back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hive import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOVES = 200 if os.environ.get("PERSIST_TEST_BY_NIGHT") else 15
SETTINGS = """
[env.dev]
[env.prod.publish]
path = "lake"
catalog = "lake"
"""
SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
-- All numbers.
--@ persist
CREATE VIEW p (a COMMENT 'A number.') AS SELECT a FROM t;
"""
SCRIPT = """
import json, random, sys, threading
from pathlib import Path
import duckdb, polars, pyarrow as pa, pyarrow.parquet as pq
from deltalake import DeltaTable
from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.environments import promote, roll_back, steps_of

root, n_moves = Path(sys.argv[1]), int(sys.argv[2])
place = str(root / "lake" / "m" / "p")

def run(environment):
    settings = load_settings(root, environment=environment)
    engine = SparkEngine(settings, lambda: create_session(settings))
    return Builder(settings, require(load_project(settings)), Ledger(settings.ledger), engine)

prod = run("prod")
spark = prod.engine.session
spark.sql("CREATE DATABASE lake")
(source,) = prod.project.persisted
prod.build(source)
described = {r.col_name: r.data_type for r in spark.sql("DESCRIBE EXTENDED lake.p").collect()}

def by_duckdb():
    table = DeltaTable(place).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        return [a for (a,) in connection.register("d", table).sql("SELECT a FROM d").fetchall()]

READERS = {
    "delta-rs": lambda: DeltaTable(place).to_pyarrow_table()["a"].to_pylist(),
    "polars": lambda: polars.scan_delta(place).collect()["a"].to_list(),
    "duckdb": by_duckdb,
    "spark": lambda: [row.a for row in spark.sql("SELECT a FROM lake.p").collect()],
}
published, wrong, reads, done = {(0,)}, [], dict.fromkeys(READERS, 0), threading.Event()

def loop(name):
    while not done.is_set():
        try:
            rows = tuple(sorted(READERS[name]()))
        except Exception as error:
            rows = f"{type(error).__name__}: {str(error)[:600]}"
        reads[name] += 1
        if rows not in published:
            wrong.append([name, rows])
        done.wait(0.05)  # for what the others compute

threads = [threading.Thread(target=loop, args=(name,)) for name in READERS]
for thread in threads:
    thread.start()
chance, moves = random.Random(20261126), {"build": 0, "promote": 0, "rollback": 0}
try:
    for n in range(n_moves):
        if chance.random() < 0.3 and len(steps_of(prod.ledger.manifests.fetch_history("prod"))) > 1:
            roll_back(prod.settings, prod.ledger, builder=prod)
            moves["rollback"] += 1
            continue
        rows = sorted(chance.sample(range(1000), chance.randint(1, 4)))
        published.add(tuple(rows))
        pq.write_table(pa.table({"a": pa.array(rows, pa.int64())}), root / "raw/t/part-0.parquet")
        builder = run(chance.choice(["dev", "prod"]))
        builder.build(source)
        if builder.settings.environment == "dev":
            promote(builder, "prod", [source.source_id])
            moves["promote"] += 1
        else:
            moves["build"] += 1
        last = READERS["delta-rs"]()
finally:
    done.set()
    for thread in threads:
        thread.join()
same = all(sorted(read()) == sorted(READERS["polars"]()) for read in READERS.values())
print(json.dumps({"moves": moves, "reads": reads, "wrong": wrong, "same": same, "comment": described["Comment"]}))
"""


@pytest.mark.slow
@pytest.mark.proves("X6")
def test_readers_see_only_rows_of_published_versions(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_project({"m.sql": SOURCES}, SETTINGS)
    outcome = run_script(SCRIPT, root, tmp_path, [0], str(MOVES))
    print(outcome)
    assert outcome["wrong"] == []
    assert outcome["same"]
    assert sum(outcome["moves"].values()) == MOVES
    assert min(outcome["moves"].values()) > 0
    assert min(outcome["reads"].values()) > MOVES // 5
    assert outcome["comment"] == "All numbers."
