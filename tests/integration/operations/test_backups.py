"""Backups of the ledger: made while builds run, and restored without outdated entries."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from test_ledger import Open, a_build, a_snapshot, publish
from test_ledger_copy import contents, fill
from test_lost_ledger import SCHEMA, build, entered

from persist_assets.core.errors import ConflictError, LedgerError, NotFoundError
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.core.settings.load import load_settings
from persist_assets.external.coverage import copy_root
from persist_assets.ledger.backups import back_up
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.published import REMOVING
from persist_assets.ledger.taints import Taint
from persist_assets.operations.gc import collect
from persist_assets.operations.restoring import restore
from persist_assets.storage.delta_commit import commit, find_staged

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.settings.values import Settings

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT a + 2 AS a FROM t;
"""


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    root = make_project({"m.sql": SOURCES}, '[env.dev]\nreads = "prod"\n[env.prod]\n')
    (root / "raw").mkdir()
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), root / "raw" / "0.parquet")
    return root


def using(root: Path, url: str) -> Settings:
    return replace(load_settings(root, environment="prod"), ledger=url)


def store(settings: Settings, ledger: Ledger, one: Build, base: Snapshot | None = None) -> Snapshot:
    """Publish a build with a real table; it adds a file to the table of `base`."""
    table = a_snapshot(one).table
    path = Path(settings.table_root(table)) / one.build_uid / "0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), path)
    schema = json.dumps({"type": "struct", "fields": [SCHEMA]})
    staged = find_staged(settings.table_root(table), one.build_uid, schema)
    parts = () if base is None else (base.build_uid,)
    version = commit(
        staged,
        build_id=one.build_id,
        pinned=None,
        base=base and base.version,
        kept_files=[f"{uid}/0.parquet" for uid in parts],
    )
    snapshot = replace(a_snapshot(one, version), bytes=staged.bytes, parts=parts)
    ledger.builds.record_started(one, table)
    ledger.builds.publish(Publication(one, snapshot, ()))
    return snapshot


def stored_copy(place: str, uid: str) -> str:
    """Create the table of a copy; return its ID."""
    path = Path(place, uid, "0.parquet")
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), path)
    schema = json.dumps({"type": "struct", "fields": [SCHEMA]})
    commit(find_staged(place, uid, schema), build_id="copy", pinned=None)
    return str(DeltaTable(place).metadata().id)


def files_of(root: Path) -> set[Path]:
    return {*(root / ".persist" / "warehouse").rglob("*.parquet")}


@pytest.mark.proves("Z2")
def test_a_backup_has_the_same_rows_as_the_ledger(
    open_ledger: Open, ledger_url: str, tmp_path: Path
) -> None:
    ledger, file = open_ledger(), tmp_path / "b" / "backup.db"
    fill(ledger)
    with ledger.leases.hold("build x", "somebody"):  # does not block a backup
        position = back_up(ledger_url, file)
    assert position == ledger.events.position()
    there, here = contents(f"sqlite:///{file}"), contents(ledger_url)
    there.pop("leases"), here.pop("leases")
    assert there == here
    assert sorted(p.name for p in file.parent.iterdir()) == ["backup.db"]
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConflictError, match="exists"):
        back_up(ledger_url, file)
    with pytest.raises(NotFoundError):
        back_up(f"sqlite:///{tmp_path / 'no.db'}", tmp_path / "c.db")
    assert not (tmp_path / "c.db").exists()


@pytest.mark.proves("Z2")
def test_a_backup_made_while_builds_run_is_consistent(
    open_ledger: Open, ledger_url: str, tmp_path: Path
) -> None:
    ledger, over = open_ledger(), threading.Event()

    def run() -> None:
        n = 0
        while not over.is_set():
            n += 1
            one = a_build(str(n))
            ledger.builds.record_started(one, "t")
            ledger.builds.publish(Publication(one, a_snapshot(one, n), [], refs=["a"]))

    builder = threading.Thread(target=run)
    builder.start()
    try:
        for n in range(5):
            file = tmp_path / f"{n}.db"
            position = back_up(ledger_url, file)
            copy = Ledger(f"sqlite:///{file}")
            log = copy.events.fetch(limit=10**6)
            assert [e.idx for e in log] == [*range(1, position + 1)]
            done = [e.data["build_uid"] for e in log if e.kind == "build-succeeded"]
            assert {b.build_uid for b in copy.builds.fetch() if b.state == "succeeded"} == {*done}
            copy.close()
    finally:
        over.set()
        builder.join()


@pytest.mark.proves("Z2")
def test_an_unsafe_restore_is_rejected_and_changes_nothing(
    open_ledger: Open, ledger_url: str, root: Path, tmp_path: Path
) -> None:
    ledger, file = open_ledger(), tmp_path / "backup.db"
    settings = using(root, ledger_url)
    publish(ledger, a_build("1"))
    back_up(ledger_url, file)
    with ledger.leases.hold("build x", "somebody"), pytest.raises(ConflictError, match="build x"):
        restore(settings, file)
    publish(ledger, a_build("2"), 1)
    before = contents(ledger_url)
    with pytest.raises(ConflictError) as raised:
        restore(settings, file)
    message = str(raised.value)
    assert "2 events are newer than the backup" in message
    assert "1 builds in `dev`" in message and "1 changes of the manifest in `dev`" in message
    assert contents(ledger_url) == before
    other = Ledger(f"sqlite:///{tmp_path / 'other.db'}")
    publish(other, a_build("7"))
    other.close()
    with pytest.raises(ConflictError, match="belongs to another ledger"):
        restore(settings, tmp_path / "other.db")
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(LedgerError, match="text is not a ledger backup"):
        restore(settings, tmp_path / "text", force=True)
    with pytest.raises(NotFoundError):
        restore(settings, tmp_path / "none")
    assert contents(ledger_url) == before


@pytest.mark.proves("Z2")
def test_a_restore_drops_missing_tables_and_preserves_newer_taints(
    open_ledger: Open, ledger_url: str, root: Path, tmp_path: Path
) -> None:
    ledger, file = open_ledger(), tmp_path / "backup.db"
    settings = using(root, ledger_url)
    for uid, name in (("1", "a"), ("2", "b"), ("3", "c")):
        store(settings, ledger, a_build(uid, name))
    ledger.builds.record_started(a_build("4", "d"), "table-build-d")  # runs during the backup
    back_up(ledger_url, file)
    four = a_build("4", "d")
    ledger.builds.publish(Publication(four, a_snapshot(four), []))
    taint = Taint({"a": "build-a"}, {"1": [""]})
    ledger.taints.record(["dev"], lambda *_: taint, by="somebody")
    with ledger.events.database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE builds SET collected_at = started_at WHERE build_uid = '2'"
        )
    (Path(settings.table_root("table-build-c")) / "3" / "0.parquet").unlink()
    position, log_id = ledger.events.position(), ledger.events.log_id()

    restored = restore(settings, file, force=True)
    assert restored.removed == 2
    now = open_ledger()
    assert now.manifests.fetch("dev").keys() == {"build-a"}  # b was collected, c is gone
    assert now.taints.fetch("dev") == {"1": frozenset([""])}
    assert now.builds.fetch(build_uid="4") == []  # unknown, so that its files stay
    assert now.events.log_id() == log_id
    after = now.events.fetch(limit=1000)
    assert min(e.idx for e in after if e.kind == "ledger-restored") > position
    assert now.events.trimmed_to() > position  # every reader must start over
    assert "partition-tainted" in [e.kind for e in after]
    assert restored.before is not None
    kept = Ledger(f"sqlite:///{restored.before}")
    assert kept.events.position() == position
    assert kept.manifests.fetch("dev").keys() == {f"build-{n}" for n in "abcd"}
    kept.close()
    publish(now, a_build("9"), 5)
    now.events.rebuild_projections()
    restore(settings, restored.before, force=True)  # undo the restore
    assert open_ledger().manifests.fetch("dev").keys() == {"build-a"}  # d has no file here


@pytest.mark.proves("Z2")
def test_a_restore_drops_a_table_that_lacks_files_of_an_earlier_build(
    root: Path, tmp_path: Path
) -> None:
    settings, file = using(root, f"sqlite:///{tmp_path / 'lost.db'}"), tmp_path / "backup.db"
    with closing(Ledger(settings.ledger)) as ledger:
        for n, name in enumerate("ab"):
            first = store(settings, ledger, a_build(f"{n}1", name))
            store(settings, ledger, a_build(f"{n}2", name), first)
        ledger.published.begin("dev", "lake/a", "a@s.sql", "token")
        ledger.published.record("lake/a", "token", "02", 7, "digest")
        ledger.published.begin("dev", "lake/b", "b@s.sql", REMOVING)
    back_up(settings.ledger, file)
    # Another ledger, which does not know the second build, collects the first one.
    (Path(settings.table_root("table-build-b")) / "11" / "0.parquet").unlink()
    settings = replace(settings, ledger=f"sqlite:///{tmp_path / 'new.db'}")
    assert restore(settings, file).removed == 1
    with closing(Ledger(settings.ledger)) as ledger:
        assert ledger.manifests.fetch("dev").keys() == {"build-a"}
        # Published tables may have rows of builds that the backup lacks.
        places = ledger.published.fetch("dev")
        assert {p: t.build_uid for p, t in places.items()} == {"lake/a": "", "lake/b": ""}
        assert places["lake/b"].described == REMOVING


@pytest.mark.proves("Z2")
def test_a_restore_drops_missing_and_replaced_copies_of_external_tables(
    root: Path, tmp_path: Path
) -> None:
    settings, file = using(root, f"sqlite:///{tmp_path / 'lost.db'}"), tmp_path / "backup.db"
    with closing(Ledger(settings.ledger)) as ledger:
        for name in ("whole", "made-anew", "replaced"):
            place = copy_root(settings, name)
            table_id = stored_copy(place, name)
            now = datetime(2026, 1, 2, tzinfo=UTC)
            copy = LocalCopy(name, "delta:7:t", table_id, 0, "TRUE", 1, ("a",), now, 1, 9)
            ledger.copies.record(copy, expected=None, changes={})
            if name == "made-anew":
                shutil.rmtree(place)
                stored_copy(place, "other")
    back_up(settings.ledger, file)
    (Path(copy_root(settings, "replaced")) / "replaced" / "0.parquet").unlink()
    settings = replace(settings, ledger=f"sqlite:///{tmp_path / 'new.db'}")
    restore(settings, file)
    with closing(Ledger(settings.ledger)) as ledger:
        assert [copy.copy_id for copy in ledger.copies.fetch()] == ["whole"]


@pytest.mark.proves("Z2")
def test_gc_after_a_restore_deletes_no_table_newer_than_the_backup(
    root: Path, tmp_path: Path
) -> None:
    build(root, "p")
    settings, project = entered(root)
    file = tmp_path / "backup.db"
    back_up(settings.ledger, file)
    build(root, "p", "q")
    before = files_of(root)
    restored = restore(settings, file, force=True)
    assert restored.loss.builds == {"prod": 2}
    with closing(Ledger(settings.ledger)) as ledger:
        assert len(ledger.manifests.fetch("prod")) == 1
        collect(replace(settings, keep_s=0), project, ledger, removed=True)
    assert files_of(root) == before
    assert restored.before is not None
    restore(settings, restored.before, force=True)  # it was the wrong backup
    with closing(Ledger(settings.ledger)) as ledger:
        assert len(ledger.manifests.fetch("prod")) == 2


@pytest.mark.proves("Z2")
def test_a_lost_ledger_is_restored_past_every_position_that_a_reader_may_have(
    root: Path, tmp_path: Path
) -> None:
    build(root, "p")
    settings, _ = entered(root)
    file = tmp_path / "backup.db"
    position = back_up(settings.ledger, file)
    path = Path(settings.ledger.removeprefix("sqlite:///"))
    for end in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
    restored = restore(settings, file)
    assert restored.before is None and restored.removed == 0
    with closing(Ledger(settings.ledger)) as ledger:
        assert ledger.events.position() > position + 10**8
        assert ledger.events.trimmed_to() == ledger.events.position()
        assert len(ledger.manifests.fetch("prod")) == 1
    with closing(sqlite3.connect(file)) as untouched:
        query = "SELECT value FROM counters WHERE name = 'events'"
        assert untouched.execute(query).fetchone() == (position,)
