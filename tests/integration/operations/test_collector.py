"""Garbage collection: which tables, versions and files it deletes, and which it never deletes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import ConflictError
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.gc import Collected, collect
from persist_assets.storage.delta_tables import find_table, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.model.sources import Source

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
"""
LATER = timedelta(days=8)
"""Longer than what is kept."""


def write(root: Path, values: list[int]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    write(made, [1, 2])
    return made


class Run:
    """A run of a project with its own clock."""

    def __init__(self, root: Path, make_engine: MakeEngine, environment: str = "dev") -> None:
        settings = load_settings(root, environment=environment)
        self.now = datetime.now(UTC)
        ledger = Ledger(settings.ledger, clock=lambda: self.now)
        project = require(load_project(settings))
        self.builder = Builder(settings, project, ledger, make_engine(settings))

    def source(self, name: str = "p") -> Source:
        return self.builder.project.by_id[f"{name}@sources/m.sql"]

    def build(self, name: str = "p") -> Build:
        return self.builder.build(self.source(name))

    def rows(self, name: str = "p") -> list[int]:
        return sorted(row[0] for row in self.builder.read(self.source(name)).collect())

    def collect(self, later: timedelta = LATER, **options: bool) -> list[Collected]:
        before, self.now = self.now, self.now + later
        b = self.builder
        found = collect(b.settings, b.project, b.ledger, clock=lambda: self.now, **options)
        self.now = before
        return found

    def written(self) -> set[str]:
        """Return the builds that have files, of all tables."""
        return {p.parent.name for p in self.builder.settings.root.rglob("warehouse/*/*/*.parquet")}


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def run(root: Path, make_engine: MakeEngine) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def start(environment: str = "dev") -> Run:
        made.append(Run(root, make_engine, environment))
        return made[-1]

    yield start
    for one in made:
        one.builder.ledger.close()


def edit(root: Path, before: str, after: str) -> None:
    path = root / "sources" / "m.sql"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def uid(build: Build) -> str:
    assert build.snapshot
    return build.snapshot.build_uid


def test_a_version_is_deleted_once_it_is_older_than_the_retention_period(
    root: Path, run: Callable[..., Run]
) -> None:
    first = run().build()
    write(root, [1, 2, 3])
    now = run()
    second = now.build()
    assert now.collect(timedelta(days=6)) == []
    (told,) = now.collect(dry_run=True)
    assert (told.table, told.versions) == (now.source().table, (0,))
    files = [*(root / ".persist/warehouse").rglob(f"{uid(first)}/*")]
    assert told.bytes == sum(f.stat().st_size for f in files) > 0
    assert now.written() == {uid(first), uid(second)}, "a dry run changed something"
    assert now.builder.ledger.builds.find_written(uid(first))
    assert now.collect() == [told]
    assert now.written() == {uid(second)}
    assert now.rows() == [2, 3, 4]
    assert now.collect() == []
    with pytest.raises(ConflictError, match="is gone"):
        roll_back(now.builder.settings, now.builder.ledger)
    write(root, [5])
    assert run().build().action == "built"
    assert run().rows() == [6]


def test_the_table_of_an_outdated_build_id_is_deleted(root: Path, run: Callable[..., Run]) -> None:
    old = run().source().table
    run().build()
    edit(root, "a + 1", "a + 2")
    now = run()
    now.build()
    assert now.collect(timedelta(days=6)) == []
    assert [c.table for c in now.collect()] == [old]
    assert not (root / ".persist/warehouse" / old).exists()
    assert [p.parent.name for p in (root / ".persist/warehouse").glob("*/_delta_log")] == [
        now.source().table
    ]
    manifest = now.builder.ledger.manifests.fetch("dev")
    assert set(manifest) == {now.source().build_id}
    edit(root, "a + 2", "a + 1")
    again = run()
    assert again.build().action == "built"
    assert again.rows() == [2, 3]


def test_tables_of_removed_sources_are_deleted_only_on_request(
    root: Path, run: Callable[..., Run]
) -> None:
    run().build()
    other = run("prod")
    other.build()
    kept = uid(other.build())
    edit(root, "--@ persist\nCREATE VIEW p AS SELECT a + 1 AS a FROM t;", "")
    now = run()
    assert now.collect() == []
    assert len(now.builder.ledger.manifests.fetch("dev")) == 1, "who knows what others define"
    assert now.collect(removed=True) == [], "production still names the table"
    assert now.builder.ledger.manifests.fetch("dev") == {}
    assert now.written() == {kept}


def test_a_table_stays_until_its_edited_query_is_built(root: Path, run: Callable[..., Run]) -> None:
    first = run("prod").build()
    edit(root, "a + 1", "a + 2")
    now = run("prod")
    assert now.collect() == []
    assert now.written() == {uid(first)}, "the edit is not built there yet"
    assert len(now.builder.ledger.manifests.fetch("prod")) == 1


def test_tables_in_other_environments_stay(root: Path, run: Callable[..., Run]) -> None:
    first = run()
    first.build()
    promote(first.builder, "prod", [first.source().source_id])
    write(root, [7])
    second = run()
    second.build()
    second.collect()
    assert run("prod").rows() == [2, 3]
    assert run().rows() == [8]


def test_gc_after_a_rollback_deletes_the_newest_version_and_the_table_is_valid(
    root: Path, run: Callable[..., Run]
) -> None:
    first = run().build()
    write(root, [7])
    now = run()
    now.build()
    roll_back(now.builder.settings, now.builder.ledger)
    (gone,) = now.collect()
    assert gone.versions == (1,)
    assert now.written() == {uid(first)}
    assert first.snapshot
    table = find_table(now.builder.settings.table_root(first.snapshot.table))
    assert sorted(table.to_pyarrow_table()["a"].to_pylist()) == [2, 3], "for who asks nobody"
    assert run().build().action == "built"
    assert run().rows() == [8]


def test_tables_of_running_and_parked_builds_stay(root: Path, run: Callable[..., Run]) -> None:
    run().build()
    write(root, [7])
    now = run()
    with now.builder.work(now.source()) as work:
        assert now.collect(timedelta(hours=12)) == []
        now.builder.publish(work)
    write(root, [8])
    later = run()
    parked = later.builder.park(later.source())
    later.collect(timedelta(hours=12))
    assert is_whole(later.builder.settings.table_root(parked.table), parked.snapshot)  # pyright: ignore[reportArgumentType]
    with later.builder.resume(parked) as work:
        later.builder.publish(work)
    assert run().rows() == [9]


def test_files_of_dead_builds_are_deleted_and_foreign_files_are_not(
    root: Path, run: Callable[..., Run]
) -> None:
    now = run()
    now.build()
    table = root / ".persist/warehouse" / now.source().table
    # A process that dies after writing files and before publishing them.
    dead = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys; from datetime import datetime, UTC\n"
            "from persist_assets.ledger.ledger import Ledger\n"
            "from persist_assets.core.model.snapshots import Build\n"
            "url, build_id, table = sys.argv[1:]\n"
            "build = Build('d' * 32, 'p@sources/m.sql', build_id, '', 'dev', None, 'started',"
            " 'built', datetime.now(UTC))\n"
            "Ledger(url).builds.record_started(build, table)\n"
            "os.kill(os.getpid(), 9)",
            now.builder.settings.ledger,
            now.source().build_id,
            now.source().table,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert dead.returncode == -9
    whole = next(table.glob("*/*.parquet"))
    for name in ("d" * 32, "e" * 32):
        (table / name).mkdir()
        shutil.copy(whole, table / name / "part-0.parquet")
    (told,) = now.collect(timedelta(0))
    assert (told.table, told.versions, told.bytes) == (
        now.source().table,
        (),
        whole.stat().st_size,
    )
    assert not (table / ("d" * 32)).exists()
    assert (table / ("e" * 32)).exists(), "whatever it is, it is none of ours"
    (last,) = [b for b in now.builder.ledger.builds.fetch() if b.build_uid == "d" * 32]
    assert (last.state, last.error) == ("failed", "interrupted")


def test_builds_that_died_before_writing_fail_and_their_leases_are_released(
    root: Path, run: Callable[..., Run]
) -> None:
    now = run()
    now.build()
    ledger = now.builder.ledger
    script = f"""
import os
from datetime import UTC, datetime
from persist_assets.core.model.snapshots import Build
from persist_assets.ledger.ledger import Ledger
ledger = Ledger({now.builder.settings.ledger!r})
held = [ledger.leases.hold(f"build {{name}}", "a run") for name in ("former", "other")]
for lease in held:
    lease.__enter__()
at = datetime.now(UTC)
build = Build("d", "p@sources/m.sql", "former", "", "dev", None, "started", "built", at)
ledger.builds.record_started(build, "p-former")
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    living = replace(now.build(), build_uid="e", build_id="living", state="started", snapshot=None)
    ledger.builds.record_started(living, "p-living")
    with ledger.leases.hold("build living", "we"):
        assert now.collect(timedelta(0), dry_run=True) == []
        assert len(ledger.leases.fetch()) == 3
        assert now.collect(timedelta(0)) == []
        assert [lease.name for lease, *_ in ledger.leases.fetch()] == ["build living"]
    states = {b.build_uid: (b.state, b.error) for b in ledger.builds.fetch()}
    assert states["d"] == ("failed", "interrupted")
    assert states["e"] == ("started", None)


def test_a_table_that_is_being_built_is_collected_the_next_time(
    root: Path, run: Callable[..., Run]
) -> None:
    settings = root / "persist.toml"
    settings.write_text('keep = "10 s"\n' + settings.read_text())
    soon = timedelta(seconds=30)  # before the lease expires
    first = run().build()
    write(root, [7])
    now = run()
    second = now.build()
    with now.builder.ledger.leases.hold(f"build {now.source().build_id}", "somebody"):
        assert now.collect(soon) == []
        assert now.written() == {uid(first), uid(second)}
        with pytest.raises(ConflictError, match="was collected"):
            roll_back(now.builder.settings, now.builder.ledger)
    assert [c.versions for c in now.collect(soon)] == [(0,)]
    assert now.written() == {uid(second)}


@pytest.mark.parametrize("known", ["by its code", "by its build"])
def test_a_shared_table_stays_until_all_of_its_sources_have_another_one(
    root: Path, run: Callable[..., Run], known: str
) -> None:
    twin = "--@ persist\nCREATE VIEW twin AS SELECT x.a + 1 AS a FROM t AS x;\n"
    (root / "sources" / "m.sql").write_text(SOURCES + twin)
    first = run()
    if known == "by its build":
        first.build("twin")
    first.build("p")  # so the manifest entry refers to this build
    promote(first.builder, "prod", [first.source(n).source_id for n in ("p", "twin")])
    edit(root, "SELECT a + 1", "SELECT a + 2")
    second = run()
    second.build("p")
    promote(second.builder, "prod", [second.source("p").source_id])
    if known == "by its build":
        edit(root, "x.a + 1", "x.a + 3")
    run().collect()
    assert first.source("twin").build_id in first.builder.ledger.manifests.fetch("prod")


def test_the_table_restored_by_a_rollback_stays(root: Path, run: Callable[..., Run]) -> None:
    first = run("prod")
    first.build()
    edit(root, "a + 1", "a + 2")
    second = run("prod")
    second.build()
    roll_back(second.builder.settings, second.builder.ledger)
    run("dev").collect()
    assert first.rows() == [2, 3]
    assert [*first.builder.ledger.manifests.fetch("prod")] == [first.source().build_id]


def test_the_table_of_a_reverted_edit_stays_without_another_build(
    root: Path, run: Callable[..., Run]
) -> None:
    kept = uid(run().build())
    edit(root, "a + 1", "a + 2")
    last = uid(run().build())
    edit(root, "a + 2", "a + 1")
    run().collect()
    assert run().written() == {kept, last}, "readers of the environment read the last one"
    assert run().rows() == [2, 3]


def test_a_parked_table_stays_although_another_run_builds_the_same_source(
    root: Path, run: Callable[..., Run]
) -> None:
    first, other = run(), run("prod")
    parked = first.builder.park(first.source())
    other.build()
    other.collect(timedelta(hours=12))
    root_of = first.builder.settings.table_root(parked.table)
    assert parked.snapshot
    assert is_whole(root_of, parked.snapshot), "sources of its run read it"
    with first.builder.resume(parked) as work:
        first.builder.publish(work)
    first.collect(timedelta(days=2))
    assert not is_whole(root_of, parked.snapshot)
    assert first.rows() == [2, 3]


def test_a_run_reads_a_table_that_was_deleted_and_rebuilt_meanwhile(
    root: Path, run: Callable[..., Run]
) -> None:
    reader = "--@ persist\nCREATE VIEW q AS SELECT max(a) AS a FROM p;\n"
    (root / "sources" / "m.sql").write_text(SOURCES + reader)
    lasting = run()
    lasting.build("p")
    lasting.build("q")
    edit(root, "a + 1", "a + 2")
    now = run()
    now.build("p")
    now.build("q")
    assert len(now.collect()) == 2
    edit(root, "a + 2", "a + 1")
    again = run().build("p")
    assert again.snapshot
    assert (again.action, again.snapshot.version) == ("built", 0)
    assert lasting.build("q").action == "built"
    assert lasting.rows("q") == [3]


@pytest.mark.proves("S10")
def test_only_files_of_this_ledger_are_deleted_and_links_are_not_followed(
    root: Path, run: Callable[..., Run], tmp_path: Path
) -> None:
    now = run()
    first = now.build()
    write(root, [5])
    run().build()
    warehouse, table = root / ".persist/warehouse", root / ".persist/warehouse" / now.source().table
    outside = tmp_path / "outside"

    def put(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("somebody else's")
        os.utime(path, (0, 0))
        return path

    log_id = now.builder.ledger.events.log_id()
    own = put(warehouse / ".listings" / log_id / f"{'1' * 32}.json")
    # Files of another ledger, of a user, and of earlier releases.
    theirs = [
        put(place / name)
        for place in (outside, *(warehouse / d for d in (".temporary", ".listings")))
        for name in (
            f"{'1' * 32}.json",
            "notes.txt",
            f"{'2' * 32}/notes.txt",
            f"{'3' * 32}/{'4' * 32}/x",
        )
    ]
    theirs += [put(warehouse / ".listings" / log_id / name) for name in ("notes.json", "notes.txt")]
    theirs += [put(table / "_delta_log" / "notes.txt"), put(table / "notes" / "notes.txt")]
    links = [
        warehouse / ".listings" / log_id / f"{'5' * 32}",
        warehouse / ".temporary" / log_id,
        table / ("6" * 32),
        table / uid(first) / "link",
    ]
    for link in links[:-1]:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside, target_is_directory=True)
    links[-1].symlink_to(outside / "notes.txt")
    told = now.collect()
    assert [(c.table, c.versions) for c in told] == [(now.source().table, (0,))]
    assert not own.exists() and not (table / uid(first)).exists()
    assert [path for path in theirs if not path.exists()] == []
    assert all(link.is_symlink() for link in links[:-1])


@pytest.mark.proves("S10")
@pytest.mark.parametrize("place", ["table", "log", "build"])
def test_files_behind_a_symlink_are_not_deleted(
    root: Path, run: Callable[..., Run], tmp_path: Path, place: str
) -> None:
    now = run()
    build = now.build()
    edit(root, "a + 1", "a + 2")
    run().build()  # the first table is outdated
    table = root / ".persist/warehouse" / now.source().table
    linked = {"table": table, "log": table / "_delta_log", "build": table / uid(build)}[place]
    moved = tmp_path / "elsewhere"
    linked.rename(moved)
    linked.symlink_to(moved, target_is_directory=True)
    before = sorted(p for p in moved.rglob("*") if p.is_file())
    later = run()
    later.collect()
    assert linked.is_symlink()
    assert sorted(p for p in moved.rglob("*") if p.is_file()) == before
