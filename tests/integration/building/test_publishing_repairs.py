"""Published tables survive crashes, other writers and foreign files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.duckdb_engine import MakeEngine, engine_of
from test_publishing import SETTINGS, SOURCES, build_all, edit, invoked, rows_of, write

from persist_assets.building.publishing import publish, publisher_of
from persist_assets.core.errors import ConflictError, PersistError, SettingsError, StorageError
from persist_assets.ledger.published import REMOVING
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.gc import collect
from persist_assets.storage.delta_commit import commit, find_staged
from persist_assets.storage.published_tables import (
    PUBLISHER,
    Description,
    describe,
    open_published,
    publish_version,
    tidy_published,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from persist_assets.building.builder import Builder
    from persist_assets.storage.delta_commit import Staged

US = {PUBLISHER: "us"}
SILENT = Description(None, {}, ())


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES}, SETTINGS)
    write(made, [1, 2])
    return made


def stage(root: str, uid: str, files: Sequence[Sequence[int]], column: str = "a") -> Staged:
    directory = Path(root, uid)
    directory.mkdir(parents=True)
    for n, values in enumerate(files):
        rows = pa.table({column: pa.array(values, pa.int64())})
        pq.write_table(rows, directory / f"part-{n}.parquet")
    field = {"name": column, "type": "long", "nullable": True, "metadata": {}}
    return find_staged(root, uid, json.dumps({"type": "struct", "fields": [field]}))


def values_at(place: str, column: str = "a") -> list[int]:
    return sorted(DeltaTable(place).to_pyarrow_table()[column].to_pylist())


def actions(root: Path, *options: str) -> dict[str, str]:
    shown = json.loads(invoked(root, "publish", "--json", *options).stdout)["tables"]
    assert not [t["reason"] for t in shown if t["action"] == "failed"]
    return {t["source_id"].partition("@")[0]: t["action"] for t in shown}


# ------------------------------------------------------------------------------------ one table


@pytest.mark.proves("X4")
def test_an_empty_published_table_accepts_new_columns(tmp_path: Path) -> None:
    root, place = str(tmp_path / "wh"), str(tmp_path / "lake")
    commit(stage(root, "1" * 32, []), build_id="b", pinned=None)
    commit(stage(root, "2" * 32, [], "b"), build_id="b", pinned=0)
    publish_version(place, None, (root, 0), US, SILENT)
    publish_version(place, open_published(place, "us"), (root, 1), US, SILENT)
    assert DeltaTable(place).to_pyarrow_table().column_names == ["b"]


@pytest.mark.proves("X5")
def test_publishing_rejects_a_table_that_others_partitioned(tmp_path: Path) -> None:
    """The rows of files without partition values would have NULL in the column."""
    root, place = str(tmp_path / "wh"), str(tmp_path / "lake")
    commit(stage(root, "1" * 32, [[1]]), build_id="b", pinned=None)
    publish_version(place, None, (root, 0), US, SILENT)
    describe(place, open_published(place, "us"), "us", SILENT)
    write_deltalake(
        place,
        pa.table({"a": [7], "b": [8]}),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["a"],
    )
    with pytest.raises(ConflictError, match="partitioned"):
        publish_version(place, open_published(place, "us"), (root, 0), US, SILENT)
    assert values_at(place) == [7]


@pytest.mark.proves("X5")
def test_a_failed_write_is_not_reported_as_a_conflict(tmp_path: Path) -> None:
    root, place = str(tmp_path / "wh"), str(tmp_path / "lake")
    commit(stage(root, "1" * 32, [[1]]), build_id="b", pinned=None)
    commit(stage(root, "2" * 32, [[2]]), build_id="b", pinned=0)
    publish_version(place, None, (root, 0), US, SILENT)
    DeltaTable(place).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(StorageError, match="append-only"):
        publish_version(place, open_published(place, "us"), (root, 1), US, SILENT)
    assert {p.name for p in Path(place).iterdir() if p.name != "_delta_log"} == {
        Path(uri).parent.name for uri in DeltaTable(place).file_uris()
    }, "what it linked is deleted"


@pytest.mark.proves("X5")
def test_a_publication_with_a_missing_file_leaves_no_files(tmp_path: Path) -> None:
    root, place = str(tmp_path / "wh"), tmp_path / "lake"
    commit(stage(root, "1" * 32, [[1], [2]]), build_id="b", pinned=None)
    Path(root, "1" * 32, "part-1.parquet").unlink()
    with pytest.raises(StorageError, match="part-1"):
        publish_version(str(place), None, (root, 0), US, SILENT)
    assert not [*place.iterdir()]


@pytest.mark.proves("X4")
def test_long_descriptions_are_truncated(tmp_path: Path) -> None:
    """delta-rs accepts longer ones for a new table, but then refuses to change them."""
    root, place = str(tmp_path / "wh"), str(tmp_path / "lake")
    commit(stage(root, "1" * 32, [[1]]), build_id="b", pinned=None)
    publish_version(place, None, (root, 0), US, SILENT)
    long = Description("é" * 5000, {"a": "x" * 5000}, ())
    assert describe(place, open_published(place, "us"), "us", long)
    assert not describe(place, open_published(place, "us"), "us", long)
    assert len(DeltaTable(place).metadata().description or "") == 4000


@pytest.mark.proves("X5")
def test_publishing_rejects_a_directory_with_foreign_files(tmp_path: Path) -> None:
    root, place = str(tmp_path / "wh"), tmp_path / "raw"
    commit(stage(root, "1" * 32, [[1]]), build_id="b", pinned=None)
    place.mkdir()
    (place / "part-0.parquet").write_bytes(b"raw data")
    with pytest.raises(ConflictError, match="not a file of a published table"):
        publish_version(str(place), None, (root, 0), US, SILENT)
    assert {p.name for p in place.iterdir()} == {"part-0.parquet"}
    (place / "part-0.parquet").unlink()
    # Left by a publication that died before its first commit.
    (place / ("f" * 32)).mkdir()
    (place / ("f" * 32) / "part-0.parquet").write_bytes(b"")
    (place / "_delta_log").mkdir()
    (place / "_delta_log" / "_commit_1.json.tmp").write_bytes(b"")
    publish_version(str(place), None, (root, 0), US, SILENT)
    assert values_at(str(place)) == [1]


@pytest.mark.proves("X5")
def test_all_unused_files_of_a_publication_are_deleted_in_one_pass(tmp_path: Path) -> None:
    """Deleting the first one changes the time of its directory."""
    root, place = str(tmp_path / "wh"), tmp_path / "lake"
    commit(stage(root, "1" * 32, [[1], [2], [3]]), build_id="b", pinned=None)
    commit(stage(root, "2" * 32, [[4]]), build_id="b", pinned=0)
    for version in (0, 1):
        table = open_published(str(place), "us")
        publish_version(str(place), table, (root, version), US, SILENT)
    strange = place / "notes" / "readme.parquet"
    strange.parent.mkdir()
    strange.write_bytes(b"not ours")
    early = (datetime.now() - timedelta(days=2)).timestamp()
    for directory in (place, *place.iterdir()):
        os.utime(directory, (early, early))
    os.utime(strange, (early, early))
    table = open_published(str(place), "us")
    assert tidy_published(str(place), table, 0, datetime.now(UTC)) > 0
    names = {p.relative_to(place).parts[0] for p in place.rglob("*.parquet")}
    live = {Path(uri).parent.name for uri in DeltaTable(str(place)).file_uris()}
    assert names == live | {"notes"}


# ------------------------------------------------------------------------------------- crashes

KILLED = """
import os, sys
from pathlib import Path
import persist_assets.building.publishing as publishing
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

original = getattr(publishing, sys.argv[2])

def die(place, *args, **more):
    if place.endswith("m/p"):  # other tables are published at the same time
        os._exit(9)
    return original(place, *args, **more)

settings = load_settings(Path(sys.argv[1]), environment="prod")
setattr(publishing, sys.argv[2], die)
publishing.publish(settings, Ledger(settings.ledger), require(load_project(settings)))
"""


def killed(root: Path, at: str) -> None:
    """Publish in a process that dies just before it calls a function for the table `p`."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), at],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == 9, done.stderr.decode()


@pytest.mark.slow
@pytest.mark.proves("X5")
@pytest.mark.parametrize("at", ["publish_version", "describe"])
def test_a_rollback_after_a_killed_publication_restores_earlier_rows(
    root: Path, enter: Callable[..., Builder], at: str
) -> None:
    """The ledger must not believe that the table has the rows from before the publication."""
    build_all(enter(root, "prod"))
    write(root, [3])
    toml = root / "persist.toml"
    publishing = toml.read_text()
    toml.write_text(publishing.replace("[env.prod.publish]\npath", "[env.prod]\n#"))
    build_all(enter(root, "prod"))
    toml.write_text(publishing)
    assert rows_of(root) == [1, 2]
    killed(root, at)
    assert rows_of(root) == ([1, 2] if at == "publish_version" else [3])
    prod = enter(root, "prod")
    _release(prod)
    roll_back(prod.settings, prod.ledger)
    assert rows_of(root) == [1, 2]


@pytest.mark.slow
@pytest.mark.proves("X5")
def test_publish_completes_a_killed_removal(root: Path, enter: Callable[..., Builder]) -> None:
    prod = build_all(enter(root, "prod"))
    toml = root / "persist.toml"
    publishing = toml.read_text()
    toml.write_text(publishing.replace("[env.prod.publish]\npath", "[env.prod]\n#"))
    plain = enter(root, "prod")
    roll_back(plain.settings, plain.ledger)
    toml.write_text(publishing)
    killed(root, "delete_directory")
    recorded = prod.ledger.published.fetch("prod").values()
    place = root / "lake" / "m" / "p"
    assert str(place) in {table.place for table in recorded if table.described == REMOVING}
    (place / "_delta_log" / "00000000000000000000.json").unlink()  # part of it was deleted
    _release(prod)
    outcomes = publish(prod.settings, prod.ledger, prod.project)
    assert not [o.reason for o in outcomes if o.action == "failed"]
    assert not [*(root / "lake").rglob("*.parquet")]
    assert prod.ledger.published.fetch("prod") == {}
    build_all(enter(root, "prod"))
    assert rows_of(root) == [1, 2]


def _release(builder: Builder) -> None:
    """Release the leases of dead processes, like `doctor --fix`."""
    for lease, is_gone, _ in builder.ledger.leases.fetch():
        if is_gone:
            builder.ledger.leases.release(lease)


# -------------------------------------------------------------------- projects and environments


@pytest.mark.proves("X5")
def test_publish_restores_deleted_tables_and_files(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    place = root / "lake" / "m" / "p"
    shutil.rmtree(place)
    assert actions(root) == {"p": "published", "q": "current"}
    assert rows_of(root) == [1, 2]
    (file,) = (place / uri for uri in DeltaTable(str(place)).file_uris())
    file.unlink()
    assert actions(root) == {"p": "published", "q": "current"}
    assert rows_of(root) == [1, 2]
    write_deltalake(str(place), DeltaTable(str(place)).to_pyarrow_table(), mode="append")
    assert rows_of(root) == [1, 1, 2, 2]
    assert actions(root) == {"p": "published", "q": "current"}
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X5")
def test_a_rollback_removes_the_record_of_a_missing_table(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    shutil.rmtree(root / "lake")
    roll_back(prod.settings, prod.ledger)
    assert prod.ledger.published.fetch("prod") == {}


@pytest.mark.proves("X4")
def test_nested_published_tables_are_rejected(root: Path, enter: Callable[..., Builder]) -> None:
    edit(root, "group=marts name=totals", 'name="m.p.totals"')
    builder = enter(root, "prod")
    with pytest.raises(SettingsError, match="inside the table of `m/p`"):
        builder.build(builder.project.persisted[0])


@pytest.mark.proves("X5")
def test_a_table_with_another_one_in_its_directory_is_not_deleted(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    inner = root / "lake" / "m" / "p" / "theirs"
    write_deltalake(str(inner), pa.table({"a": [9]}))
    with pytest.raises(StorageError, match="another table is at"):
        roll_back(prod.settings, prod.ledger)
    assert values_at(str(inner)) == [9]
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X5")
def test_a_published_table_is_removed_when_its_source_becomes_a_view(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build_all(enter(root, "prod"))
    edit(root, "--@ persist group=marts name", "--@ persist materialized=view group=marts name")
    write(root, [5])
    build_all(enter(root, "prod"))
    assert rows_of(root) == [5]
    assert not (root / "lake" / "marts" / "totals").exists()


@pytest.mark.slow
@pytest.mark.proves("X4")
def test_promoting_one_source_publishes_all_sources_with_its_build_id(
    root: Path, enter: Callable[..., Builder]
) -> None:
    same = "--@ persist\nCREATE VIEW {} AS SELECT a FROM t;\n"
    (root / "sources" / "n.sql").write_text(same.format("x") + same.format("y"))
    prod = build_all(enter(root, "prod"))
    assert prod.project.by_id["x@sources/n.sql"].build_id == (
        prod.project.by_id["y@sources/n.sql"].build_id
    )
    write(root, [7])
    dev = build_all(enter(root, "dev"))
    promote(dev.observer, "prod", ["x@sources/n.sql"])
    assert rows_of(root, "n/x") == rows_of(root, "n/y") == [7]


@pytest.mark.proves("X5")
def test_a_rollback_reports_tables_of_sources_with_errors(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    write(root, [3])
    build_all(enter(root, "prod"))
    text = (root / "sources" / "m.sql").read_text()
    edit(root, "SELECT a, b, a + b", "SELECT a, b, a + absent")
    with pytest.raises(StorageError, match=r"still has earlier rows.*its source has errors"):
        roll_back(prod.settings, prod.ledger)
    (root / "sources" / "m.sql").write_text(text)
    assert actions(root) == {"p": "published", "q": "published"}
    assert rows_of(root) == [1, 2]


@pytest.mark.proves("X5")
def test_an_invalid_publish_selection_fails_builds_promotions_and_rollbacks(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    history = prod.ledger.manifests.fetch_history("prod")
    toml = root / "persist.toml"
    toml.write_text(toml.read_text().replace('path = "lake"', 'path = "lake"\nselect = ["absent"]'))
    prod = enter(root, "prod")
    with pytest.raises(PersistError, match="unknown source `absent`"):
        roll_back(prod.settings, prod.ledger)
    write(root, [3])
    with pytest.raises(PersistError, match="unknown source `absent`"):
        prod.build(prod.project.persisted[0])
    dev = build_all(enter(root, "dev"))
    with pytest.raises(PersistError, match="unknown source `absent`"):
        promote(dev.observer, "prod", [s.source_id for s in dev.project.persisted])
    assert prod.ledger.manifests.fetch_history("prod") == history


@pytest.mark.proves("X5")
def test_a_broken_table_does_not_stop_garbage_collection(
    root: Path, enter: Callable[..., Builder], caplog: pytest.LogCaptureFixture
) -> None:
    build_all(enter(root, "prod"))
    write(root, [3])
    prod = build_all(enter(root, "prod"))
    log = root / "lake" / "m" / "p" / "_delta_log"
    for file in log.iterdir():
        file.write_text("broken")
    later = datetime.now(UTC) + timedelta(days=30)
    settings = replace(prod.settings, keep_s=0)
    collected = collect(settings, prod.project, prod.ledger, clock=lambda: later)
    assert str(root / "lake" / "marts" / "totals") in {c.table for c in collected}
    assert "lake/m/p skipped" in caplog.text


@pytest.mark.slow
@pytest.mark.proves("X5")
def test_tables_of_a_lost_ledger_can_be_taken_over(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = build_all(enter(root, "prod"))
    before = publisher_of(prod.settings, prod.ledger)
    shutil.rmtree(root / ".persist")
    prod = enter(root, "prod")
    assert publisher_of(prod.settings, prod.ledger) != before
    for source in prod.project.persisted:
        with pytest.raises(StorageError, match="persist publish --take-over"):
            prod.build(source)
    assert invoked(root, "publish").exit_code == 6
    assert actions(root, "--take-over") == {"p": "published", "q": "published"}
    write(root, [3])
    build_all(enter(root, "prod"))
    assert rows_of(root) == [3]


@pytest.mark.proves("X4")
def test_the_hint_names_an_environment_that_can_publish(root: Path) -> None:
    toml = root / "persist.toml"
    toml.write_text(toml.read_text().replace(SETTINGS, '[env.prod]\nreads = "dev"\n[env.dev]\n'))
    result = invoked(root, "publish")
    assert result.exit_code == 2
    assert "[env.dev.publish]" in result.stderr
