"""Catalog views, for readers without persist: they need a catalog, so a separate Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hive import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist name=numbers
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist name="lake.twice" materialized=view
CREATE VIEW q AS SELECT a * 2 AS Twice FROM p;
--@ persist
CREATE VIEW nameless AS SELECT 1 AS one;
"""
SCRIPT = """
import json, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from persist_assets.building.builder import Builder
from persist_assets.engine.spark import SparkEngine
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.manifest_imports import import_manifest
from persist_assets.ledger.ledger import Ledger
from persist_assets.compiler.load import load_project, require
from persist_assets.engine.session import create_session
from persist_assets.core.settings.load import load_settings

root = Path(sys.argv[1])

def run(environment="dev"):
    settings = load_settings(root, environment=environment)
    engine = SparkEngine(settings, lambda: create_session(settings))
    project = require(load_project(settings))
    return Builder(settings, project, Ledger(settings.ledger), engine)

def build(builder):
    for source in builder.project.persisted:
        builder.build(source)

def seen(builder, name):
    frame = builder.engine.session.sql(f"SELECT * FROM {name}")
    return [frame.columns, sorted(row[0] for row in frame.collect())]

said = []
dev = run()
spark = dev.engine.session
spark.sql("CREATE DATABASE lake")
build(dev)
said += [seen(dev, "numbers__dev"), seen(dev, "lake.twice__dev")]
ids = [s.source_id for s in dev.project.persisted]
promote(dev, "prod", ids)
said += [seen(dev, "numbers"), seen(dev, "lake.twice")]
pq.write_table(pa.table({"a": pa.array([], pa.int64())}), root / "raw/t/part-0.parquet")
build(run())
said += [seen(dev, "numbers__dev"), seen(dev, "lake.twice__dev"), seen(dev, "numbers")]
promote(run(), "prod", ids)
said += [seen(dev, "numbers")]
prod = run("prod")
roll_back(prod.settings, prod.ledger, builder=prod)
said += [seen(dev, "numbers"), seen(dev, "lake.twice")]
roll_back(prod.settings, prod.ledger, builder=prod)  # further back, to nothing
names = {row.viewName for row in spark.sql("SHOW VIEWS").collect() if not row.isTemporary}
import_manifest(prod.settings, prod.ledger, dev.settings.manifest_path, builder=prod)
said += [seen(dev, "numbers")]
print(json.dumps([said, sorted(names)]))
"""
OTHERS = """
def shown():
    message = ""
    try:
        promote(run(), "prod", ids)
    except StorageError as error:
        message = error.message
    return [message, seen(dev, "numbers")]

from persist_assets.core.errors import StorageError
dev = run()
spark = dev.engine.session
spark.sql("CREATE DATABASE lake")
build(dev)
ids = [s.source_id for s in dev.project.persisted]
spark.sql("CREATE VIEW numbers AS SELECT 7 AS theirs")
states = [shown()]
prod = run("prod")
roll_back(prod.settings, prod.ledger, builder=prod)
states += [seen(dev, "numbers")]
spark.sql("DROP VIEW numbers")
states += [shown()]
spark.sql("ALTER VIEW numbers UNSET TBLPROPERTIES ('persist.publisher')")  # of an earlier release
states += [shown()]
spark.sql("ALTER VIEW numbers SET TBLPROPERTIES ('persist.publisher' = 'log/prod')")
states += [shown()]
print(json.dumps(states))
"""


@pytest.mark.slow
@pytest.mark.proves("M11")
def test_catalog_views_have_the_rows_of_their_environment(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    settings = '[env.dev]\nviews = "{name}__dev"\n[env.prod]\nviews = "{name}"\n'
    root = make_project({"m.sql": SOURCES}, settings)
    outcome = run_script(SCRIPT, root, tmp_path, [1, 2])
    rows, names = outcome
    numbers, twice = [["a"], [2, 3]], [["Twice"], [4, 6]]
    assert rows == [
        *(numbers, twice),
        *(numbers, twice),
        *([["a"], []], [["Twice"], []], numbers),
        [["a"], []],
        *(numbers, twice),
        [["a"], []],
    ]
    assert names == ["numbers__dev"], "production is back where nothing was promoted"


@pytest.mark.slow
@pytest.mark.proves("X5")
def test_views_of_other_publishers_are_neither_changed_nor_dropped(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    settings = '[env.dev]\n[env.prod]\nviews = "{name}"\n'
    root = make_project({"m.sql": SOURCES}, settings)
    outcome = run_script(SCRIPT.partition("said = []")[0] + OTHERS, root, tmp_path, [1, 2])
    theirs, numbers = [["theirs"], [7]], [["a"], [2, 3]]
    refused = "the view `numbers` has another publisher, so it was not changed"
    assert outcome == [
        *([refused, theirs], theirs),
        *(["", numbers], ["", numbers]),
        [refused, numbers],
    ]


BACK_AND_FORTH = """
said = []
path = root / "sources/m.sql"
text = path.read_text()
build(run("prod"))
path.write_text(text.replace("a + 1", "a + 100"))
edited = run()
build(edited)
said += [seen(edited, "numbers__dev")]
path.write_text(text)
back = run()
build(back)
source = next(s for s in back.project.persisted if s.name == "p")
said += [seen(back, "numbers__dev"), sorted(row[0] for row in back.read(source).collect())]

path.write_text(text + "--@ persist name=twin\\nCREATE VIEW p2 AS SELECT a + 1 AS a FROM t;\\n")
build(run())
pq.write_table(pa.table({"a": pa.array([5], pa.int64())}), root / "raw/t/part-0.parquet")
newer = run()
newer.build(next(s for s in newer.project.persisted if s.name == "p"))
said += [seen(newer, "numbers__dev"), seen(newer, "twin__dev")]
print(json.dumps(said))
"""


@pytest.mark.slow
def test_catalog_views_follow_reused_and_shared_tables(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    settings = '[env.dev]\nreads = "prod"\nviews = "{name}__dev"\n[env.prod]\n'
    root = make_project({"m.sql": SOURCES.replace('name="lake.twice"', "")}, settings)
    outcome = run_script(SCRIPT.partition("said = []")[0] + BACK_AND_FORTH, root, tmp_path, [1, 2])
    assert outcome[:3] == [[["a"], [101, 102]], [["a"], [2, 3]], [2, 3]]
    assert outcome[3:] == [[["a"], [6]]] * 2, "two sources of one meaning"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('views = "outside"\n', "`views`: `outside` gives all views the same name"),
        ('views = "{name}"\n', "the view `numbers` would end with the session"),
    ],
)
def test_settings_for_unusable_catalog_views_are_rejected(
    make_project: Callable[..., Path], settings: str, says: str
) -> None:
    root = make_project({"m.sql": SOURCES}, settings)
    (root / "raw/t").mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int64())}), root / "raw/t/part-0.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "persist_assets.cli", "build", "p", "--project", str(root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
