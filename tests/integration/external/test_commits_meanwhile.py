"""Other writers commit to an external table after a build chose its version, before it reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT, wait_for
from deltalake import DeltaTable
from icebergs import need_iceberg
from test_ingestion import build, sync_events

from persist_assets.building.builder import Builder
from persist_assets.core.errors import GoneError
from persist_assets.engine.spark import SparkEngine
from persist_assets.external.connectors import CONNECTORS
from persist_assets.external.connectors.delta import DeltaConnector
from persist_assets.external.connectors.iceberg import IcebergConnector

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.snapshots import LocalCopy

Make = Callable[..., Builder]
COMMITS = """
import random, sys, threading
from pathlib import Path
import deltalake, pyarrow as pa
from icebergs import Written

kind, root = sys.argv[1:]
schema = pa.schema([("id", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
berg = Written(Path(root), schema) if kind == "iceberg" else None
ids = iter(range(10**9))


def rows(n):
    return pa.Table.from_pylist([{"id": i, "k": "ab"[i % 2], "n": 0} for i, _ in zip(ids, range(n))], schema)


def commit(what):
    if berg is not None:
        if what == "append":
            berg.put(rows(4))
        elif what == "delete":
            berg.delete([0, 1])
        else:
            some = pa.Table.from_pylist([{"id": i, "k": "b", "n": 1} for i in (2, 3)], schema)
            berg.replace([2, 3], some)
        return
    if what == "append":
        said = {"delta.enableChangeDataFeed": str(kind == "feed").lower()}
        deltalake.write_deltalake(root, rows(4), mode="append", configuration=said)
        return
    table = deltalake.DeltaTable(root)
    if what == "update":
        table.update(updates={"n": "n + 1", "k": "'b'"}, predicate="id IN (2, 3)")
    elif what == "delete":
        table.delete("id IN (0, 1)")
    elif what == "vacuum":
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    else:
        table.update(updates={"n": "n + 1"}, predicate=f"id % 7 = {random.randrange(7)}")


def storm(stop):
    while not stop.is_set():
        commit(random.choice(["append", "delete", "other"]))


commit("append")
for line in sys.stdin:
    if line.strip() == "storm":
        stop = threading.Event()
        thread = threading.Thread(target=storm, args=[stop], daemon=True)
        thread.start()
    elif line.strip() == "calm":
        stop.set()
        thread.join()
    else:
        commit(line.strip())
    print("done", flush=True)
"""
COLUMNS = "id bigint, k string, n bigint"
VIEWS = """
create materialized view v as select id, n from events where k = 'a';
create materialized view c as select k, count(*) as rows, sum(n) as n from events
where k in ('a', 'b') group by k;
"""
MORE = "create materialized view w as select id from events where k = 'b';"


HELPERS = ROOT, ROOT / "tests", ROOT / "tests" / "support"


class Others:
    """A process that commits to the table of a project on request."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root / "lake", kind
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMITS, kind, str(self.root)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, HELPERS))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, command: str) -> None:
        """Send a command, and wait until it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def rows(self, held: LocalCopy) -> list[dict[str, Any]]:
        """Return the rows of the copied version, read by another library."""
        number = int(held.version.split(":")[1])
        if self.kind != "iceberg":
            return DeltaTable(self.root, version=number).to_pyarrow_table().to_pylist()
        from pyiceberg.table import StaticTable

        directory = self.root / "n" / "t" / "metadata"
        hint = (directory / "version-hint.text").read_text()
        table = StaticTable.from_metadata(str(directory / f"{hint}.metadata.json"))
        return table.scan(snapshot_id=number).to_arrow().to_pylist()

    def has_passed(self, version: int) -> bool:
        """Return whether the Delta table has a newer version than the given one."""
        return self.head() > version

    def head(self) -> int:
        """Return the number of the newest version."""
        if self.kind != "iceberg":
            return DeltaTable(self.root).version()
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("c", uri=f"sqlite:///{self.root}/c.db")
        found = catalog.load_table("n.t").metadata.current_snapshot_id
        assert found is not None
        return found


@pytest.fixture
def others(make_project: Callable[..., Path]) -> Iterator[Callable[[str], tuple[Path, Others]]]:
    """Return a function that makes a project over a table to which a process commits."""
    started: list[Others] = []

    def start(kind: str) -> tuple[Path, Others]:
        if kind == "iceberg":
            need_iceberg()
        name, uri = ("iceberg", "lake/n/t") if kind == "iceberg" else ("delta_table", "lake")
        connector = f'[{{"transport": {{"name": "{name}_input", "config": {{"uri": "{uri}"}}}}}}]'
        table = f"create external table events ({COLUMNS}) with ('connectors' = '{connector}');"
        root = make_project({"m.sql": table + VIEWS})
        started.append(Others(root, kind))
        return root, started[-1]

    yield start
    for some in started:
        some.process.communicate()
        assert some.process.returncode == 0


def at_once(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Call `do` after connectors have pinned a version, before they read any file."""

    def late(of: type[Any]) -> type[Any]:
        class Late(of):
            def pin(self, held: str | None = None) -> str:
                version: str = super().pin(held)
                do()
                return version

        return Late

    patch.setitem(CONNECTORS, "delta_table_input", late(DeltaConnector))
    patch.setitem(CONNECTORS, "iceberg_input", late(IcebergConnector))


def meanwhile(spark: Any, do: Callable[[], None]) -> Callable[..., SparkEngine]:
    """Return a factory of engines that call `do` when they open their session for the first rows.

    By then, the files with the rows are known, but no row has been read.
    """

    def make(settings: Any) -> SparkEngine:
        def opened() -> Any:
            do()
            return spark

        return SparkEngine(settings, opened)

    return make


def check(builder: Builder, others: Others) -> int:
    """Check that all sources have the rows of the copied version, and return its number."""
    held = builder.observer.ingestion.find(builder.project.by_key["m", "events"])
    assert held is not None
    rows = others.rows(held)
    expected: dict[str, Counter[Any]] = {
        "v": Counter((r["id"], r["n"]) for r in rows if r["k"] == "a"),
        "w": Counter((r["id"],) for r in rows if r["k"] == "b"),
        "c": Counter(
            (k, sum(r["k"] == k for r in rows), sum(r["n"] for r in rows if r["k"] == k))
            for k in {r["k"] for r in rows}
        ),
    }
    for source in builder.project.persisted:
        found = Counter(tuple(r) for r in builder.read(source).collect())
        assert found == expected[source.name], (source.name, held.version)
    return int(held.version.split(":")[1])


@pytest.mark.slow
@pytest.mark.proves("F14", "F18", "F19", "F23")
@pytest.mark.parametrize("kind", ["delta", "feed", "iceberg"])
def test_commits_after_a_version_is_pinned_belong_to_the_next_build(
    others: Callable[[str], tuple[Path, Others]],
    enter: Make,
    monkeypatch: pytest.MonkeyPatch,
    spark: Any,
    kind: str,
) -> None:
    root, writer = others(kind)
    writer.say("append")
    seen: list[int] = []

    def built(named: Sequence[str], listed: Sequence[str]) -> int:
        """Build while others commit, and return the newest version before the build."""
        first = writer.head()

        def commit(commands: Sequence[str]) -> None:
            seen.append(writer.head())
            for one in commands:
                writer.say(one)
            assert writer.head() != seen[-1]

        with monkeypatch.context() as patch:
            at_once(patch, partial(commit, named))
            build(enter(root, engine=meanwhile(spark, partial(commit, listed))))
        assert len(seen) % 2 == 0
        return first

    # The first build fetches rows of one version for both views.
    first = built(["append", "update"], ["delete"])
    assert check(enter(root), writer) == first
    # The next build follows these commits, while others are made.
    first = built(["append"], ["append"])
    assert check(enter(root), writer) == first
    # A new view needs more rows of a version that is outdated, even more so when it is read.
    with (root / "sources" / "m.sql").open("a") as file:
        file.write(MORE)
    first = built(["update"], ["append"])
    assert check(enter(root), writer) == first
    builder = enter(root)
    build(builder)
    assert check(builder, writer) == writer.head()
    assert len({*seen}) == 6
    assert build(enter(root)) == {"v": "reuse", "c": "reuse", "w": "reuse"}


@pytest.mark.slow
@pytest.mark.proves("F18", "F19")
@pytest.mark.parametrize("kind", ["delta", "feed"])
def test_no_rows_are_lost_or_duplicated_during_continuous_commits(
    others: Callable[[str], tuple[Path, Others]], enter: Make, kind: str
) -> None:
    root, writer = others(kind)
    before = 0
    writer.say("storm")
    for number in range(3):
        if number == 1:
            with (root / "sources" / "m.sql").open("a") as file:
                file.write(MORE)
        wait_for(partial(writer.has_passed, before))
        build(builder := enter(root))
        before = check(builder, writer)
    writer.say("calm")
    build(builder := enter(root))
    assert check(builder, writer) == writer.head()


@pytest.mark.slow
@pytest.mark.proves("F26")
def test_a_build_publishes_nothing_if_files_vanish_before_the_read(
    others: Callable[[str], tuple[Path, Others]], enter: Make, spark: Any
) -> None:
    root, writer = others("delta")
    writer.say("append")
    with pytest.raises(GoneError, match=r"reading `events` failed: /\S+\.parquet is gone"):
        build(enter(root, engine=meanwhile(spark, lambda: writer.say("vacuum"))))
    builder = enter(root)
    assert builder.ledger.copies.fetch() == []
    assert sync_events(builder) == []
    build(builder)
    assert check(builder, writer) == writer.head()
    writer.say("update")
    with pytest.raises(GoneError, match=r"following `events` failed: /\S+\.parquet is gone"):
        build(enter(root, engine=meanwhile(spark, lambda: writer.say("vacuum"))))
    build(builder := enter(root))
    assert check(builder, writer) == writer.head()
    writer.say("update")
    reader = enter(root, engine=meanwhile(spark, lambda: writer.say("vacuum")))
    with pytest.raises(GoneError, match=r"than its copy holds, .* is gone"):
        reader.read(reader.project.by_key["m", "events"])
