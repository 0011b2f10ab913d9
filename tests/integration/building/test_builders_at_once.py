"""Two builders in two processes that share a ledger, in each supported database."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import hammer
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
--@ check { not_null=[a] }
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
"""
BUILDS = """
import sys
from pathlib import Path
from persist_assets.building.builder import Builder
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.compiler.load import load_project
from persist_assets.engine.session import create_session
from persist_assets.core.settings.load import load_settings

settings = load_settings(Path(sys.argv[1]))
project, ledger = load_project(settings), Ledger(settings.ledger)
engine = SparkEngine(settings, lambda: create_session(settings))
builder = Builder(settings, project, ledger, engine)
print("ready", flush=True)
sys.stdin.readline()
print(builder.build(project.by_id["p@sources/m.sql"]).action, flush=True)
ledger.close()
"""


@pytest.mark.slow
@pytest.mark.proves("M14")
def test_two_concurrent_processes_build_a_source_once_and_the_second_reuses_the_table(
    ledger_url: str, make_project: Callable[..., Path]
) -> None:
    root = make_project({"m.sql": SOURCES}, f'ledger = "{ledger_url}"\n')
    (root / "raw" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int64())}), root / "raw" / "t" / "p.parquet")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDS, str(root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    hammer.wait_until_ready(running)
    hammer.go(running)
    said = [process.communicate(timeout=180) for process in running]
    assert [p.returncode for p in running] == [0, 0], said
    assert sorted(out.strip() for out, _ in said) == ["built", "reused"]
    with closing(Ledger(ledger_url)) as ledger:
        later, first = ledger.builds.fetch()
        assert {first.action, later.action} == {"built", "reused"}
        assert first.snapshot == later.snapshot
        assert first.snapshot is not None
        assert (first.snapshot.version, first.snapshot.rows) == (0, 2)
        # The second one started only after the first had published.
        ends = {e.data["build_uid"]: e.idx for e in ledger.events.fetch() if "succ" in e.kind}
        begins = {e.data["build_uid"]: e.idx for e in ledger.events.fetch() if "start" in e.kind}
        assert begins[later.build_uid] > ends[first.build_uid]
