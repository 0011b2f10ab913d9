"""The ledger on a real database file, with real processes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from persist_assets.errors import ConflictError, LedgerError, LedgerTooNewError
from persist_assets.ledger import tables
from persist_assets.ledger.migrations import VERSION, version_of
from persist_assets.ledger.store import Ledger
from persist_assets.model import Build, CheckResult, Column, Parts, RawVersion, Read, Snapshot

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def a_build(uid: str, name: str = "a", run: str = "run") -> Build:
    started = NOW + timedelta(seconds=int(uid))
    return Build(
        uid, f"{name}@s.sql", f"build-{name}", "def", "dev", run, "started", "built", started
    )


def a_snapshot(build: Build, version: int = 0) -> Snapshot:
    return Snapshot(
        build.build_uid,
        build.source_id,
        build.build_id,
        f"table-{build.build_id}",
        version,
        (RawVersion("raw", "files:1"),),
        "3:aa:bb:cc",
        3,
        300,
        NOW,
        (Column("a", "int"),),
        "2013-01-01",
    )


def publish(ledger: Ledger, build: Build, version: int = 0) -> Snapshot:
    snapshot = a_snapshot(build, version)
    ledger.record_started(build, snapshot.table)
    ledger.publish(build, snapshot, [CheckResult("c", True, True, 0, "a not null")])
    return snapshot


def test_what_is_published_is_what_readers_read(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    build = a_build("1")
    snapshot = publish(ledger, build)
    assert Ledger(url(tmp_path)).fetch_manifest("dev") == {build.build_id: snapshot}
    assert ledger.find_snapshot("dev", build.build_id) == snapshot
    assert ledger.find_snapshot("prod", build.build_id) is None
    assert ledger.fetch_checks("1") == [CheckResult("c", True, True, 0, "a not null")]
    assert ledger.find_pinned_version(snapshot.table) == 0
    assert ledger.fetch_builds(run_id="run")[0].snapshot == snapshot


def test_a_newer_publication_replaces_the_older_one(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    publish(ledger, a_build("1"))
    later = publish(ledger, a_build("2"), version=1)
    assert ledger.fetch_manifest("dev") == {"build-a": later}
    assert len(ledger.fetch_builds(source_id="a@s.sql")) == 2


def test_a_failed_build_changes_nothing_for_readers(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    snapshot = publish(ledger, a_build("1"))
    failing = a_build("2")
    ledger.record_started(failing, snapshot.table)
    ledger.record_failed(failing, "no")
    assert ledger.fetch_manifest("dev") == {"build-a": snapshot}
    assert ledger.fetch_last_builds("dev")["a@s.sql"].error == "no"


def test_every_change_is_an_event_and_positions_have_no_gap(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    publish(ledger, a_build("1"))
    failing = a_build("2", "b")
    ledger.record_started(failing, "t")
    ledger.record_failed(failing, "no")
    events = ledger.fetch_events()
    assert [e.idx for e in events] == [1, 2, 3, 4]
    assert [e.kind for e in events] == [
        "build-started",
        "build-succeeded",
        "build-started",
        "build-failed",
    ]
    assert ledger.fetch_events(since=2, limit=1)[0].idx == 3
    assert events[1].data["table"] == "table-build-a"


def test_a_build_without_a_snapshot_cannot_have_succeeded(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    ledger.record_started(a_build("1"), "t")
    with (
        pytest.raises(sa.exc.IntegrityError, match="ck_builds_snapshot"),
        ledger._write() as connection,
    ):
        connection.exec_driver_sql("UPDATE builds SET state = 'succeeded'")


# ------------------------------------------------------------------------------------------ leases


def test_a_lease_has_one_holder_and_the_next_waits(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.wait()
        with Ledger(url(tmp_path)).lease("x", "second"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with ledger.lease("x", "first"):
        entered.set()
        with (
            pytest.raises(ConflictError, match="x is held by first"),
            ledger.lease("x", "third", wait_s=0.2),
        ):
            pass
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_an_expired_lease_is_taken_over_and_its_holder_cannot_publish(tmp_path: Path) -> None:
    clock = [NOW]
    ledger = Ledger(url(tmp_path), clock=lambda: clock[0])
    build = a_build("1")
    snapshot = a_snapshot(build)
    ledger.record_started(build, snapshot.table)
    with ledger.lease("x", "slow") as lost:
        clock[0] += timedelta(hours=1)
        with ledger.lease("x", "quick"), pytest.raises(ConflictError, match="lease on x was lost"):
            ledger.publish(build, snapshot, [], lease=lost)
    assert ledger.fetch_manifest("dev") == {}
    assert "lease-broken" in [e.kind for e in ledger.fetch_events()]


def test_the_lease_of_a_dead_process_is_taken_over_at_once(tmp_path: Path) -> None:
    script = (
        "import os, sys; from persist_assets.ledger.store import Ledger\n"
        "with Ledger(sys.argv[1]).lease('x', 'dead'): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, url(tmp_path)], check=False)
    assert done.returncode == -9
    with Ledger(url(tmp_path)).lease("x", "next", wait_s=1):
        pass


@pytest.mark.proves("P11")
def test_eight_processes_lose_no_event(tmp_path: Path) -> None:
    script = """
import sys
from persist_assets.ledger.store import Ledger
from datetime import UTC, datetime
from persist_assets.model import Build
ledger = Ledger(sys.argv[1])
for n in range(20):
    uid = f"{sys.argv[2]}-{n}"
    build = Build(uid, "a@s", "b", "d", "dev", None, "started", "built", datetime.now(UTC))
    ledger.record_started(build, "t")
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script, url(tmp_path), str(n)]) for n in range(8)
    ]
    assert [p.wait() for p in running] == [0] * 8
    ledger = Ledger(url(tmp_path))
    assert [e.idx for e in ledger.fetch_events()] == list(range(1, 161))
    assert len(ledger.fetch_builds()) == 160


# ---------------------------------------------------------------------------------- what is there


DIGESTS = Parts("r", (("a", "1"), ("b", "2")))
READS = (Read("t@s.sql", "def", Parts("t")), Read("v@s.sql", "def", DIGESTS))


def test_a_build_tells_what_it_and_what_it_read_meant(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    publish(ledger, replace(a_build("1"), digests=DIGESTS, reads=READS))
    (build,) = Ledger(url(tmp_path)).fetch_builds()
    assert (build.digests, build.reads) == (DIGESTS, READS)


def test_an_environment_tells_the_last_build_of_every_source(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    publish(ledger, a_build("1"))
    publish(ledger, replace(a_build("2"), build_id="other"))
    publish(ledger, replace(a_build("3", "c"), build_id="build-b"))
    publish(ledger, replace(a_build("4", "b"), environment="prod"))
    failing = a_build("5", "c")
    ledger.record_started(failing, "t")
    ledger.record_failed(failing, "no")
    assert ledger.fetch_environments() == ["dev", "prod"]
    current = ledger.fetch_current("dev")
    assert {s: b.build_id for s, b in current.items()} == {"a@s.sql": "other", "c@s.sql": "build-b"}
    publish(ledger, a_build("6"))  # and back again
    assert ledger.fetch_current("dev")["a@s.sql"].build_id == "build-a"
    assert ledger.fetch_current("stage") == {}


def test_sources_that_share_a_table_are_both_told(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    publish(ledger, replace(a_build("1"), build_id="same"))
    publish(ledger, replace(a_build("2", "b"), build_id="same"))
    assert sorted(ledger.fetch_current("dev")) == ["a@s.sql", "b@s.sql"]


def test_a_build_is_found_by_the_beginning_of_its_build_id(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    for uid, build_id in (("1", "abc1"), ("2", "abc2")):
        publish(ledger, replace(a_build(uid), build_id=build_id))
    assert ledger.find_build("abc2") == ledger.fetch_builds(limit=1)[0]
    assert ledger.find_build("b") is None
    assert ledger.find_build("%") is None
    with pytest.raises(ConflictError, match="several BuildIDs begin with abc"):
        ledger.find_build("abc")


SINCE_VERSION_4 = ("process", "current_at", '"view"', "collected_at")


def test_a_ledger_of_version_three_keeps_its_history_and_may_collect(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    old, new = publish(ledger, a_build("1")), publish(ledger, a_build("2"), 1)
    before = ledger.fetch_history("dev")
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("PRAGMA writable_schema = ON")
        kinds = "('build', 'promote', 'rollback', 'collect')"
        changed = connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ?, ?)"
            " WHERE name = 'manifest_changes' AND sql LIKE '%collect%'",
            (kinds, "('build', 'promote', 'rollback')"),
        )
        assert changed.rowcount == 1
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        for column in SINCE_VERSION_4:
            connection.execute(f"ALTER TABLE builds DROP COLUMN {column}")
        connection.execute("UPDATE ledger_version SET version = 3")
    again = Ledger(url(tmp_path))
    assert again.fetch_history("dev") == before
    future = datetime.now(UTC) + timedelta(days=1)
    (holding,) = again.collect(future, ("dev", ()))
    assert (holding.kept, holding.gone) == ({}, {old.build_uid: 0, new.build_uid: 1})
    assert again.fetch_manifest("dev") == {}
    assert [c.kind for c in again.fetch_history("dev")] == ["collect", "build", "build"]
    with pytest.raises(sqlite3.IntegrityError), sqlite3.connect(tmp_path / "ledger.db") as raw:
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("INSERT INTO manifest_moves VALUES (99, 'b', NULL, NULL)")


def test_a_ledger_of_version_one_becomes_one_of_today_and_keeps_its_builds(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    snapshot = publish(ledger, a_build("1"))
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        for column in ("digests", "inputs", *SINCE_VERSION_4):
            connection.execute(f"ALTER TABLE builds DROP COLUMN {column}")
        connection.execute("DROP TABLE manifest_moves")
        connection.execute("DROP TABLE manifest_changes")
        connection.execute("DELETE FROM ledger_version")
        connection.execute("INSERT INTO ledger_version VALUES (1, '2026-01-01 00:00:00')")
    again = Ledger(url(tmp_path))
    (build,) = again.fetch_builds()
    assert (build.snapshot, build.digests, build.reads) == (snapshot, None, ())
    newer = publish(again, replace(a_build("2"), digests=DIGESTS), 1)
    assert again.fetch_current("dev")["a@s.sql"].digests == DIGESTS
    (change,) = again.fetch_history("dev")
    assert [(m.before, m.after) for m in change.moves] == [(snapshot, newer)]
    with again._read() as connection:
        assert version_of(connection) == VERSION
        columns = [c["name"] for c in sa.inspect(connection).get_columns("builds")]
        made = {t: sa.inspect(connection).get_columns(t) for t in tables.metadata.tables}
    assert columns == [c.name for c in tables.builds.columns]
    for name, table in tables.metadata.tables.items():
        assert {c["name"] for c in made[name]} == {c.name for c in table.columns}
    Ledger(url(tmp_path)).close()  # and once only


# --------------------------------------------------------------------------------------- bad input


def test_a_ledger_of_a_newer_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    Ledger(url(tmp_path)).close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("INSERT INTO ledger_version VALUES (99, '2030-01-01 00:00:00')")
    before = (tmp_path / "ledger.db").read_bytes()
    with pytest.raises(LedgerTooNewError, match=f"version 99, this release knows up to {VERSION}"):
        Ledger(url(tmp_path))
    assert (tmp_path / "ledger.db").read_bytes() == before


def test_a_corrupt_ledger_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(LedgerError, match="not a database") as error:
        Ledger(url(tmp_path))
    assert "no table is lost" in (error.value.hint or "")
    assert (tmp_path / "ledger.db").read_bytes().startswith(b"this is no database")


@pytest.mark.parametrize(
    "given", ["nonsense://x", "postgresql+psycopg2://h/x", "sqlite:////proc/none/ledger.db"]
)
def test_a_ledger_that_cannot_be_opened(given: str) -> None:
    with pytest.raises(LedgerError):
        Ledger(given)


def test_a_read_only_ledger_is_told(tmp_path: Path) -> None:
    """SQLite's own switch, because the superuser may write files that say they are read-only."""
    ledger = Ledger(url(tmp_path))
    publish(ledger, a_build("1"))
    sa.event.listen(
        ledger._engine, "connect", lambda c, _: c.execute("PRAGMA query_only = 1").close()
    )
    ledger._engine.dispose()
    with pytest.raises(LedgerError, match="readonly"):
        ledger.record_started(a_build("2"), "t")
    assert ledger.find_snapshot("dev", "build-a") is not None


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    ledger = Ledger(url(tmp_path))
    publish(ledger, a_build("1"))
    with ledger._read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

    @sa.event.listens_for(ledger._engine, "connect")
    def small(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    ledger._engine.dispose()
    with pytest.raises(LedgerError, match="is full") as error:
        for n in range(2, 2000):
            ledger.record_started(replace(a_build(str(n)), run_id="x" * 60), "t" * 4000)
    assert "free some space" in (error.value.hint or "")
    assert Ledger(url(tmp_path)).find_snapshot("dev", "build-a") is not None
