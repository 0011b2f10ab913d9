"""An empty ledger next to tables or exported manifests is reported and restored, without Spark."""

from __future__ import annotations

import json
import shutil
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.compiler.load import load_project, require
from persist_assets.core.model.snapshots import Build, RawVersion, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.manifest_file import export_manifest
from persist_assets.operations.doctor import Report, examine
from persist_assets.operations.gc import collect
from persist_assets.operations.recovery import find_lost, open_ledger
from persist_assets.storage.delta_commit import commit, find_staged
from persist_assets.storage.raw import pin_raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT a + 2 AS a FROM t;
"""
SCHEMA = {"name": "a", "type": "long", "nullable": True, "metadata": {}}


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project({"m.sql": SOURCES}, '[env.dev]\nreads = "prod"\n[env.prod]\n')
    (root / "raw").mkdir()
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), root / "raw" / "0.parquet")
    return root


def entered(root: Path, environment: str = "prod") -> tuple[Settings, Project]:
    settings = load_settings(root, environment=environment)
    return settings, require(load_project(settings))


def build(root: Path, *names: str) -> None:
    """Publish tables of sources in `prod`, as builds do."""
    settings, project = entered(root)
    ledger, now = Ledger(settings.ledger), datetime.now(UTC)
    for source in (s for s in project.persisted if s.name in names):
        uid, table = uuid.uuid4().hex, settings.table_name(source.table)
        path = Path(settings.table_root(table)) / uid
        path.mkdir(parents=True)
        pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), path / "0.parquet")
        schema = json.dumps({"type": "struct", "fields": [SCHEMA]})
        staged = find_staged(str(path.parent), uid, schema)
        version = commit(staged, build_id=source.build_id, pinned=None)
        (raw,) = project.inputs(source)
        assert raw.raw is not None
        as_of = (RawVersion(raw.build_id, pin_raw(raw.raw, str(root / "raw")).version or ""),)
        started = Build(
            uid, source.source_id, source.build_id, "d", "prod", "run", "started", "built", now
        )
        snapshot = Snapshot(
            uid,
            source.source_id,
            source.build_id,
            table,
            version,
            as_of,
            "1:a",
            staged.rows,
            staged.bytes,
            now,
            staged.columns,
            inputs=as_of,
        )
        ledger.builds.record_started(started, table)
        ledger.builds.publish(Publication(started, snapshot, ()))
    export_manifest(settings, ledger)
    ledger.close()


def manifest(root: Path, environment: str = "prod") -> dict[str, Snapshot]:
    ledger = Ledger(load_settings(root).ledger)
    try:
        return ledger.manifests.fetch(environment)
    finally:
        ledger.close()


def lose(root: Path) -> None:
    """Delete the ledger of a project."""
    for file in (root / ".persist").glob("ledger.db*"):
        file.unlink()


def exported(root: Path) -> dict[str, Any]:
    files = sorted((root / ".persist" / "manifests").glob("*.json"))
    return {file.name: json.loads(file.read_text()) for file in files}


def findings_of(report: Report) -> set[tuple[str, str, str | None]]:
    return {(f.code, f.severity, f.environment) for f in report.findings}


@pytest.mark.proves("S26")
def test_a_lost_ledger_is_reported_and_restored(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings, project = entered(root)
    assert find_lost(settings, None) is None, "a new project"
    build(root, "p", "q")
    before, written = manifest(root), exported(root)
    assert [len(document["entries"]) for document in written.values()] == [2, 2]
    ledger = open_ledger(settings)
    assert find_lost(settings, ledger) is None
    ledger.close()
    lose(root)
    lost = {(f.code, f.severity, f.environment) for f in examine(root).findings}
    assert {("ledger-lost", "error", e) for e in ("dev", "prod")} <= lost
    ledger = open_ledger(settings)
    assert "exported manifest lists 2 and the warehouse has 2 tables" in caplog.text
    # Garbage collection does not overwrite a manifest by one with fewer entries.
    collect(settings, project, ledger)
    assert exported(root) == written
    assert "was not overwritten" in caplog.text
    ledger.close()
    report = examine(root, fix=True)
    assert report.well, report.findings
    assert (manifest(root), manifest(root, "dev")) == (before, {})
    assert exported(root) == written
    assert not {f for f in findings_of(examine(root)) if f[1] != "note"}


@pytest.mark.proves("S26")
def test_only_entries_with_an_existing_table_are_restored(root: Path) -> None:
    build(root, "p", "q")
    before = manifest(root)
    gone = next(s for s in before.values() if s.source_id.startswith("p@"))
    shutil.rmtree(load_settings(root, environment="prod").table_root(gone.table))
    lose(root)
    report = examine(root, fix=True)
    (refused,) = (f for f in report.findings if f.environment == "prod" and f.severity != "note")
    assert (refused.code, refused.source_id) == ("ledger-lost", gone.source_id)
    assert manifest(root) == {b: s for b, s in before.items() if s != gone}


@pytest.mark.proves("S26")
def test_the_manifest_of_a_lost_ledger_is_preserved_next_to_the_new_one(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(root, "p", "q")
    before = exported(root)
    lose(root)
    build(root, "p")
    after = exported(root)
    assert len(after["prod.json"]["entries"]) == 1
    (copy,) = (name for name in after if name.startswith("prod.before-"))
    assert after[copy] == before["prod.json"]
    assert copy in caplog.text
    # Tables that no manifest names are reported, and nothing is restored.
    lose(root)
    shutil.rmtree(root / ".persist" / "manifests")
    assert ("ledger-lost", "error", "prod") in findings_of(examine(root))
    report = examine(root, fix=True)
    assert ("ledger-lost", "note", "prod") in findings_of(report)
    assert "unknown-table" in {f.code for f in report.findings}
    assert manifest(root) == {}


@pytest.mark.proves("S26")
def test_a_corrupt_ledger_is_not_reported_as_lost(root: Path) -> None:
    build(root, "p")
    before = exported(root)
    lose(root)
    (root / ".persist" / "ledger.db").write_text("no database " * 100)
    for fix in (False, True):
        codes = {f.code for f in examine(root, fix=fix).findings}
        assert "ledger" in codes
        assert "ledger-lost" not in codes
    assert exported(root) == before


@pytest.mark.proves("S26")
def test_an_unresponsive_ledger_is_not_reported_as_lost(root: Path) -> None:
    build(root, "p")
    before = exported(root)
    with socket.socket() as nobody:  # no one listens at its port
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://u:p@127.0.0.1:{nobody.getsockname()[1]}/x"
        settings = root / "persist.toml"
        settings.write_text(f'ledger = "{url}"\n' + settings.read_text())
        for fix in (False, True):
            codes = {f.code for f in examine(root, fix=fix).findings}
            assert "ledger" in codes
            assert "ledger-lost" not in codes
    assert exported(root) == before
