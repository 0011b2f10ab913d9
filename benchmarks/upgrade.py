"""Measure an upgrade: 1,000 tables taken over, none built, one edited source built.

    python benchmarks/upgrade.py [N] [PASSES]

It generates a project and publishes a small Delta table for each source through the ledger, without
Spark: an upgrade reads no rows. Then processes with another version of all digests (BuildIDs, that
is) plan, take over, build everything through `Builder` with an engine that refuses to compute, and
plan once more, with one source edited. The floor is the same without an upgrade: a plan and a run
of builds that find all tables up to date.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from run import generate

MEASURED = """
import json, sys, time
from pathlib import Path
from persist_assets.core import digests
digests.VERSION = sys.argv[2]
from persist_assets.building.builder import Builder
from persist_assets.building.takeovers import take_over
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger

def no_session():
    raise AssertionError("a build needs Spark")

def seconds(work):
    start = time.perf_counter()
    result = work()
    return round(time.perf_counter() - start, 3), result

settings = load_settings(Path(sys.argv[1]))
took = {}
took["load"], project = seconds(lambda: load_project(settings))
ledger = Ledger(settings.ledger)
def builder():
    return Builder(settings, project, ledger, SparkEngine(settings, no_session), run_id="upgrade")
ids = [s.source_id for s in project.persisted]
took["plan"], plan = seconds(lambda: builder().plan(ids))
took["plan_builds"] = [s.source_id for s in plan.steps if s.action == "build"]
took["plan_taken_over"] = sum(any(r.code == "taken-over" for r in s.reasons) for s in plan.steps)
if "build" in sys.argv:
    run = builder()
    took["take_over"], took["taken_over"] = seconds(lambda: take_over(run.observer, "upgrade"))
    took["plan_after"], plan = seconds(lambda: builder().plan(ids))
    took["builds_after"] = sum(s.action == "build" for s in plan.steps)
    chosen = project.persisted[:: max(1, len(ids) // 50)]
    took["reuse_10"], done = seconds(lambda: [run.build(s).action for s in chosen])
    took["actions"] = sorted({*done})
print(json.dumps(took))
"""
PUBLISH = """
import json, sys, time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from persist_assets.building.observe import Observer
from persist_assets.building.takeovers import origin_of
from persist_assets.compiler.load import load_project
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.planning.inputs import inputs, as_of
from persist_assets.planning.planner import plan
from persist_assets.planning.world import World
from persist_assets.storage.delta_commit import commit, find_staged
from persist_assets.storage.raw import pin_raw

settings = load_settings(Path(sys.argv[1]))
project, ledger = load_project(settings), Ledger(settings.ledger)
assert not project.errors, project.errors[:3]
versions = {s.source_id: pin_raw(s.raw, settings.resolve(s.raw.location or "")).version or ""
            for s in project.sources if s.raw is not None}
field = {"name": "a", "type": "long", "nullable": True, "metadata": {}}
schema = json.dumps({"type": "struct", "fields": [field]})
manifest = {}
for i, source in enumerate(project.persisted):
    uid, table = f"{i:032x}", settings.table_root(source.table)
    Path(table, uid).mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), f"{table}/{uid}/p.parquet")
    staged = find_staged(table, uid, schema)
    version = commit(staged, build_id=source.build_id, pinned=None)
    world = World("dev", manifest, versions, "", "", {})
    (step,) = plan(project, [source.source_id], world).steps
    read = inputs(project, source, world) or ()
    now = datetime.now(UTC)
    snapshot = Snapshot(
        uid, source.source_id, source.build_id, source.table, version,
        as_of(project, source, world), "c", 1, staged.bytes, now, source.columns, inputs=read,
        current_at=now, origin=origin_of(project, source, world, step, read))
    build = Build(uid, source.source_id, source.build_id, source.definition, "dev", "run",
                  "started", "built", now, digests=source.digests)
    ledger.builds.record_started(build, source.table)
    ledger.builds.publish(Publication(build, snapshot, []))
    manifest[source.build_id] = snapshot
ledger.close()
"""


def run(script: str, root: Path, *arguments: str) -> str:
    """Run a script in a process of its own; return what it prints last."""
    command = [sys.executable, "-c", script, str(root), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().rpartition("\n")[2]


def main(n: int, passes: int) -> None:
    """Print the measures of some passes, as JSON."""
    for _ in range(passes):
        root = Path(tempfile.mkdtemp())
        try:
            generate(root, n, rows=100)
            run(PUBLISH, root)
            for name, arguments in {
                "no upgrade": ("persist-1", "build"),
                "upgrade": ("another", "build"),
            }.items():
                print(name, run(MEASURED, root, *arguments), flush=True)
            path = max(p for p in (root / "sources").rglob("*.sql") if p.name != "raw.sql")
            text = path.read_text()
            position = text.upper().rindex("SELECT") + len("SELECT")
            path.write_text(f"{text[:position]} DISTINCT{text[position:]}")
            took = json.loads(run(MEASURED, root, "a third"))
            print("another upgrade, one source edited", json.dumps(took), flush=True)
        finally:
            shutil.rmtree(root)


if __name__ == "__main__":
    main(*map(int, (sys.argv[1:] + ["1000", "1"][len(sys.argv[1:]) :])[:2]))
