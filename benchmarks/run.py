"""Measure what is promised about speed and reuse, and write docs/benchmarks.md.

Whole processes, in CPU seconds (user and system, children included), medians of several runs;
next to each figure the floor or peer that it is compared with, measured in the same run. What Spark
does is measured in seconds on the wall (`builds.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import builds
import sqlglot
from pages import replace_figures
from sqlglot import exp

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
KINDS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
KEYS = {"entity_id", "region_id", "ds", "status", "bucket"}


def cpu(command: list[str], cwd: Path, times: int, before: Any = None) -> float:
    """Return the median CPU seconds of a process."""
    taken: list[float] = []
    for _ in range(times):
        if before:
            before()
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, env=_environment(cwd)
        )
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
    return statistics.median(taken)


def _environment(cwd: Path) -> dict[str, str]:
    (cwd / ".home").mkdir(exist_ok=True)
    return {**os.environ, "DAGSTER_HOME": str(cwd / ".home"), "PYTHONWARNINGS": "ignore"}


def generate(out: Path, n: int, rows: int = 0) -> Path:
    """Make a project of `n` sources."""
    script = str(ROOT / "benchmarks" / "gen_project.py")
    arguments = ["--n", str(n), "--format", "persist", "--out", str(out), "--rows", str(rows)]
    subprocess.run([sys.executable, script, *arguments], check=True, stdout=subprocess.DEVNULL)
    (out / "definitions.py").write_text(
        "from persist_assets import load_sources\n\ndefs = load_sources('sources')\n"
    )
    return out


FLOOR = """
import sys, sqlglot
from pathlib import Path
from sqlglot.optimizer.qualify import qualify
for path in sorted(Path(sys.argv[1]).rglob("*.sql")):
    for tree in sqlglot.parse(path.read_text(), read="spark"):
        if tree is not None and isinstance(tree.expression, sqlglot.exp.Query):
            qualify(tree.expression, dialect="spark", validate_qualify_columns=False)
"""

# A tree, not a chain: for some hash seeds Dagster recurses along a chain, too deep for Python.
TRIVIAL = """
import dagster as dg

def make(i):
    @dg.asset(name=f"a{i}", deps=[f"a{(i - 1) // 2}"] if i else [])
    def asset(): ...
    return asset

defs = dg.Definitions(assets=[make(i) for i in range(%d)])
"""


def pretend_built(root: Path) -> None:
    """Write a table and a publication for every persisted source, without computing its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from persist_assets.compiler.load import load_project
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.settings.load import load_settings
    from persist_assets.ledger.builds import Publication
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.planning.inputs import as_of
    from persist_assets.planning.world import World
    from persist_assets.storage.delta_commit import commit, find_staged
    from persist_assets.storage.raw import pin_raw

    settings = load_settings(root)
    project, ledger = load_project(settings), Ledger(settings.ledger)
    versions = {
        s.source_id: pin_raw(s.raw, settings.resolve(s.raw.location or "")).version or ""
        for s in project.sources
        if s.raw is not None
    }
    now = datetime.now(UTC)
    field = {"name": "a", "type": "long", "nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    manifest: dict[str, Snapshot] = {}
    for i, source in enumerate(project.persisted):
        uid, table = f"{i:032x}", settings.table_root(source.table)
        Path(table, uid).mkdir(parents=True)
        pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), f"{table}/{uid}/p.parquet")
        staged = find_staged(table, uid, schema)
        version = commit(staged, build_id=source.build_id, pinned=None)
        world = World("dev", manifest, versions, "", "", {})
        snapshot = Snapshot(
            uid, source.source_id, source.build_id, source.table, version,
            as_of(project, source, world), "c", 1, staged.bytes, now,
        )  # fmt: skip
        build = Build(
            uid, source.source_id, source.build_id, source.definition, "dev", "run", "started",
            "built", now,
        )  # fmt: skip
        ledger.builds.record_started(build, source.table)
        ledger.builds.publish(Publication(build, snapshot, []))
        manifest[source.build_id] = snapshot
    ledger.close()


def changed_column(text: str, pick: random.Random, measures: bool) -> tuple[str, str] | None:
    """Return a source's text with one column's expression changed, and the column; or None."""
    at = re.search(r"(?i)\bAS\s+(?=SELECT|WITH)", text)
    if at is None:
        return None
    query = text[at.end() :].rstrip().rstrip(";")
    tree: Any = sqlglot.parse_one(query, read="spark")
    while isinstance(tree, exp.SetOperation):
        tree = tree.this
    items = [
        i
        for i, item in enumerate(tree.expressions)
        if not isinstance(item, exp.Star)
        and not (measures and item.alias_or_name in KEYS)
        and not item.find(exp.Window)
    ]
    if not items:
        return None
    i = pick.choice(items)
    item = tree.expressions[i]
    inner = item.this if isinstance(item, exp.Alias) else item
    changed = exp.alias_(
        exp.Coalesce(this=inner.copy(), expressions=[inner.copy()]), item.alias_or_name
    )
    tree.expressions[i].replace(changed)
    return text[: at.end()] + tree.root().sql("spark") + ";\n", item.alias_or_name


def rebuilt(root: Path, changes: int, *, measures: bool) -> float:
    """Return the share of sources rebuilt after changes of a column, of those that read by table.

    The changed source counts too; `changes` random changes together.
    """
    from persist_assets.compiler.load import load_project
    from persist_assets.core.settings.load import load_settings

    settings, pick = load_settings(root), random.Random(0)
    project = load_project(settings)
    before = {s.source_id: s.build_id for s in project.persisted}
    paths = sorted(p for p in (root / "sources").rglob("*.sql") if p.name != "raw.sql")
    rebuilt_by_column, rebuilt_by_table, made_changes = 0, 0, 0
    while made_changes < changes:
        path = pick.choice(paths)
        text = path.read_text()
        made = changed_column(text, pick, measures)
        if made is None:
            continue
        try:
            path.write_text(made[0])
            after = {s.source_id: s.build_id for s in load_project(settings).persisted}
        finally:
            path.write_text(text)
        source = next(
            s for s in project.persisted if s.location.path == path.relative_to(root).as_posix()
        )
        reached, stack = {source.source_id}, [source.source_id]
        while stack:
            for reader in project.readers[stack.pop()]:
                if reader not in reached:
                    reached.add(reader)
                    stack.append(reader)
        differing = {s for s, build_id in after.items() if before[s] != build_id}
        assert differing <= reached, differing - reached
        if source.source_id in differing:  # the change may have been none
            made_changes += 1
            rebuilt_by_column += len(differing)
            rebuilt_by_table += len(reached)
    return rebuilt_by_column / rebuilt_by_table


def hammered(kind: str, seconds: int) -> tuple[str, str, str, str]:
    """Let eight processes work on one ledger, and return the row that tells of it.

    What they do is checked as in the tests: nothing lost, nothing done twice.
    """
    script = [sys.executable, str(ROOT / "tests" / "support" / "hammer.py"), kind, str(seconds)]
    done = subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True)
    said = json.loads(done.stdout)
    return (
        f"8 processes at one {KINDS[kind]} ledger for {seconds} s: builds, promotions, rollbacks,"
        " leases",
        f"a counter and a row in each transaction: {said['bare']:.0f} events/s",
        f"{said['events']:.0f} events/s in {said['transactions']:.0f} transactions/s",
        "none lost",
    )


def rows_of(script: str, *arguments: str) -> list[tuple[str, str, str, str]]:
    """Return what another benchmark prints: a row in JSON on each line."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


SMALL = {
    "sources": 50,
    "times": 1,
    "changes": 2,
    "large": 100,
    "loaded": 100,
    "built": 2,
    "rows": 1_000,
    "queries": 1,
    "scale": "0.01",
    "year": 4_000,
    "maintained": "4",
    "events": 5_000,
    "shapes": "facts_left,key_totals,upsert",
    "seconds": 2,
    "wants": 2_000,
}
"""Sizes that show in minutes that every benchmark runs; their figures mean nothing."""


def _sizes() -> argparse.Namespace:
    """Return how large each benchmark is, from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=1_000, help="of the generated project")
    parser.add_argument("--times", type=int, default=3, help="runs to take the median of")
    parser.add_argument("--changes", type=int, default=200, help="changed columns")
    parser.add_argument("--large", type=int, default=10_000, help="sources of the large project")
    parser.add_argument("--loaded", type=int, default=5_000, help="sources loaded into Dagster")
    parser.add_argument("--built", type=int, default=20, help="sources built beside bare Spark")
    parser.add_argument("--rows", type=int, default=200_000, help="of each raw table built on")
    parser.add_argument("--queries", type=int, default=22, help="of TPC-H")
    parser.add_argument("--scale", default="1", help="of TPC-H's data")
    parser.add_argument("--year", type=int, default=10_000_000, help="rows that parts are of")
    parser.add_argument("--maintained", default="", help="queries of TPC-H: 1,3; '': all")
    parser.add_argument("--events", type=int, default=1_000_000, help="rows that shapes are over")
    parser.add_argument("--shapes", default="", help="names and groups; '': all")
    parser.add_argument("--seconds", type=int, default=30, help="of work on each ledger")
    parser.add_argument("--wants", type=int, default=100_000, help="and ten times as many events")
    parser.add_argument(
        "--small", action="store_true", help="run all in minutes, and write no page"
    )
    sizes = parser.parse_args()
    if sizes.small:
        vars(sizes).update(SMALL)
    return sizes


def _maintained(sizes: argparse.Namespace) -> dict[str, list[str]]:
    """Return the options of the benchmarks that keep tables up to date, by script."""
    tpch = ["--scale", sizes.scale, "--queries", sizes.maintained]
    shapes = ["--rows", str(sizes.events), "--shapes", sizes.shapes]
    small = ["--rounds", "1", "--warm", "0"] if sizes.small else []
    return {"maintenance.py": tpch + small, "shapes.py": shapes}


def main() -> None:
    """Measure, print, and write the table."""
    sizes = _sizes()
    rows: list[tuple[str, str, str, str]] = []

    def tell(what: str, floor: str, ours: str, target: str) -> None:
        rows.append((what, floor, ours, target))
        print(f"{what}: {ours} (wanted {target}; {floor})", flush=True)

    # A Spark server that stops may take its lock, in a directory of its own, while this one goes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        root = generate(Path(temporary, "p"), sizes.sources, rows=100)
        persist, dagster = str(BIN / "persist"), str(BIN / "dagster")

        def forget() -> None:
            shutil.rmtree(root / ".persist", ignore_errors=True)

        floor = cpu([sys.executable, "-c", FLOOR, str(root / "sources")], root, sizes.times)
        cold = cpu([persist, "check"], root, sizes.times, forget)
        parsed = f"sqlglot's parse and qualify alone: {floor:.2f}"
        tell(f"`persist check`, {sizes.sources:,} sources, cold", parsed, f"{cold:.2f}", "≤ 3.0")
        warm = cpu([persist, "check"], root, sizes.times)
        tell("the same, warm", "", f"{warm:.2f}", "≤ 0.9")
        pretend_built(root)
        planned = cpu([persist, "plan"], root, sizes.times)
        tell(
            f"`persist plan`, {sizes.sources:,} built, nothing changed",
            "",
            f"{planned:.2f}",
            "≤ 1.2",
        )
        validate = [dagster, "definitions", "validate", "-f", "definitions.py"]
        ours = cpu(validate, root, sizes.times)
        trivial = Path(temporary, "trivial")
        trivial.mkdir()
        (trivial / "definitions.py").write_text(TRIVIAL % sizes.sources)
        theirs = cpu(validate, trivial, sizes.times)
        tell(
            f"`dagster definitions validate`, {sizes.sources:,} sources, warm",
            f"as many trivial assets: {theirs:.2f}",
            f"{ours:.2f} ({ours / theirs:.2f}×)",
            "≤ 1.3×",
        )
        for measures, wanted in ((False, "≤ 0.50"), (True, "≤ 0.40")):
            share = rebuilt(root, sizes.changes, measures=measures)
            what = "measures" if measures else "any column"
            tell(
                f"sources rebuilt after a changed column, {what}, {sizes.changes} changes, sums",
                "by table: 1.00",
                f"{share:.2f}",
                wanted,
            )
        if sizes.large:
            large = generate(Path(temporary, "large"), sizes.large)
            taken = cpu([persist, "check"], large, 1)
            ratio = (taken / sizes.large) / (cold / sizes.sources)
            what = f"`persist check`, {sizes.large:,} sources, cold, cost of one"
            tell(what, f"against {sizes.sources:,}", f"{taken:.1f} s, {ratio:.2f}×", "≤ 1.3×")
        spark = [
            (
                f"{sizes.built} sources",
                generate(Path(temporary, "built"), sizes.built, sizes.rows),
                "≤ 1.15×",
            ),
            (
                f"TPC-H scale {sizes.scale}, {sizes.queries} queries as sources",
                builds.tpch(Path(temporary, "tpch"), sizes.scale, sizes.queries),
                "≤ 1.05×",
            ),
        ]
        for what, made, wanted in spark:
            seconds = builds.measure(made, sizes.times)
            bare = seconds.pop("bare")
            tell(
                f"{what}, built in one warm session, s on the wall",
                f"the same queries written by bare Spark: {bare:.1f}",
                ", ".join(f"{way} {s:.1f} ({s / bare:.2f}×)" for way, s in seconds.items()),
                wanted,
            )
        trivial_s, small_s = builds.launched(Path(temporary, "launched"), sizes.times)
        tell(
            "a small source, `dagster asset materialize`, warm Spark, s on the wall",
            f"a trivial asset: {trivial_s:.1f}",
            f"{small_s:.1f} (+{small_s - trivial_s:.1f})",
            "≤ +3",
        )
        for script in ("increments.py", "external.py"):
            for row in rows_of(script, str(Path(temporary, script)), str(sizes.year)):
                tell(*row)
        for script, options in _maintained(sizes).items():
            for row in rows_of(script, *options):
                tell(*row)
    for row in rows_of("loading.py", str(sizes.loaded)):
        tell(*row)
    for kind in KINDS:
        tell(*hammered(kind, sizes.seconds))
        for row in rows_of("wants.py", kind, str(sizes.wants)):
            tell(*row)
    if sizes.small:
        print("all benchmarks ran; figures of this size mean nothing")
        return
    lines = [
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, sqlglot {version('sqlglot')}.",
        "",
        "| benchmark | baseline | persist | target |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    replace_figures(ROOT / "docs" / "benchmarks.md", "\n".join(lines))


if __name__ == "__main__":
    main()
