"""Ledgers of every version are migrated to the current one, on both databases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import hammer
import pytest
import sqlalchemy as sa
from conftest import ROOT
from test_ledger import DIGESTS, NOW, a_build, a_snapshot, publish

from persist_assets.core.errors import ConflictError, LedgerError, LedgerTooNewError
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.snapshots import Cost, Written
from persist_assets.ledger.connection import Database
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.migrations import MIGRATIONS, VERSION, version_of
from persist_assets.ledger.tables import build_requests, builds, events, ledger_version, wants

if TYPE_CHECKING:
    from postgres import Postgres

Open = Callable[..., Ledger]
VERSION_ONE = (ROOT / "tests" / "data" / "ledger_1.sql").read_text()


def make_old(url: str, version: int) -> None:
    """Make a ledger as it was at a version, with a build in it."""
    database = Database(url)
    with database.engine.connect() as connection:
        if database.is_postgres:
            connection.exec_driver_sql(f"SET TIME ZONE 'UTC'; {VERSION_ONE}")
        else:
            assert isinstance(connection.connection.dbapi_connection, sqlite3.Connection)
            script = VERSION_ONE.replace("TIMESTAMP WITH TIME ZONE", "DATETIME")
            connection.connection.dbapi_connection.executescript(script)
        for number in range(1, version):
            MIGRATIONS[number - 1](connection)
            values = {"version": number + 1, "migrated_at": NOW}
            connection.execute(ledger_version.insert().values(**values))
        connection.commit()
    database.close()


def described(ledger: Ledger) -> dict[str, object]:
    """Return the schema: columns with types, keys, constraints and indexes."""
    told: dict[str, object] = {}
    with ledger.events.database.read() as connection:
        inspector = sa.inspect(connection)
        columns, keys = inspector.get_multi_columns(), inspector.get_multi_pk_constraint()
        references, indexes = inspector.get_multi_foreign_keys(), inspector.get_multi_indexes()
        checks = inspector.get_multi_check_constraints()
        for table in sorted(inspector.get_table_names()):
            key = (None, table)
            told[table] = (
                {c["name"]: (_kind(connection, c["type"]), c["nullable"]) for c in columns[key]},
                keys[key]["constrained_columns"],
                sorted((k["constrained_columns"], k["referred_table"]) for k in references[key]),
                sorted(str(c["name"]) for c in checks[key]),
                sorted((str(i["name"]), i["column_names"]) for i in indexes[key]),
            )
        told["views"] = {
            view: inspector.get_view_definition(view) for view in inspector.get_view_names()
        }
    return told


def _kind(connection: sa.Connection, kind: sa.types.TypeEngine[object]) -> str:
    if connection.dialect.name == "sqlite" and isinstance(kind, sa.DateTime):
        return "an instant"  # SQLite treats all its type names alike
    return f"{kind!r}".replace("astext_type=Text()", "")


@pytest.fixture(scope="module")
def made_today(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> dict[str, object]:
    """By kind of database, the schema of a new ledger."""
    path = tmp_path_factory.mktemp("today") / "ledger.db"
    urls = {"sqlite": f"sqlite:///{path}", "postgres": postgres.schema("ledger_of_today")}
    described_by_kind = dict[str, object]()
    for kind, url in urls.items():
        with closing(Ledger(url)) as ledger:
            described_by_kind[kind] = described(ledger)
    return described_by_kind


@pytest.mark.proves("P33")
@pytest.mark.parametrize("version", range(1, VERSION))
def test_a_ledger_of_an_earlier_version_is_migrated_and_keeps_its_builds(
    version: int, open_ledger: Open, ledger_url: str, made_today: dict[str, object]
) -> None:
    make_old(ledger_url, version)
    again = open_ledger()
    assert again.events.opened_version == version
    kind = "sqlite" if ledger_url.startswith("sqlite") else "postgres"
    assert described(again) == made_today[kind]
    (build,) = again.builds.fetch()
    snapshot = a_snapshot(a_build("1"))
    assert (build.snapshot, build.digests, build.reads) == (snapshot, None, ())
    assert (build.maintenance, build.computed_s) == (None, None)
    assert again.builds.fetch_costs() == []
    assert again.manifests.fetch("dev") == {"build-a": snapshot}
    assert again.builds.fetch_checks("1") == [CheckResult("c", True, True, 0, "a not null")]
    assert build.started_at == NOW + timedelta(seconds=1)
    assert build.started_at.tzinfo is UTC
    at = datetime(2026, 1, 2, 3, 4, 7, 250_000, tzinfo=UTC)
    assert [(e.idx, e.data) for e in again.events.fetch()] == [
        (1, {"build_uid": "1"}),
        (2, {"build_uid": "1"}),
    ]
    assert again.events.fetch()[1].at == at
    assert again.manifests.fetch_malloy("dev") == {}
    second = replace(a_build("2"), digests=DIGESTS, written=Written(2, 20))
    second = second.computed_by("append", second.started_at + timedelta(seconds=1.5))
    newer = publish(again, second, 1, {"m": "build-a"})
    assert again.builds.fetch_costs(build_id="build-a") == [Cost("append", 1.5, 2, 20)]
    assert again.manifests.fetch_malloy("dev") == {"m": "build-a"}
    assert again.builds.fetch_current("dev")["a@s.sql"].digests == DIGESTS
    assert again.events.position() == 4
    (change,) = again.manifests.fetch_history("dev")
    assert [(m.before, m.after) for m in change.moves] == [(snapshot, newer)]
    assert open_ledger().events.opened_version == VERSION  # and once only
    with again.events.database.read() as connection:
        told = connection.scalars(sa.select(ledger_version.c.version).order_by("version")).all()
    assert told == list(range(1, VERSION + 1))


def test_migration_converts_taints_of_partitions_to_taints_of_builds(
    open_ledger: Open, ledger_url: str
) -> None:
    make_old(ledger_url, 11)
    database = Database(ledger_url)
    later = NOW + timedelta(days=1)
    with database.engine.connect() as connection:
        present = {c["name"] for c in sa.inspect(connection).get_columns("builds")}
        columns = [c for c in builds.c if c.name in present]
        own = connection.execute(sa.select(*columns)).mappings().one()
        kept = {"filled": [], "built": [["x", "x"]], "base": "1"}
        more = {"2": {"built_at": later + timedelta(1)}, "3": {"partitions": kept}}
        more["4"] = {"built_at": later + timedelta(1), "partitions": {**kept, "base": "3"}}
        for uid, values in more.items():  # the second one was rebuilt after the taint
            named = {"build_uid": uid, "snapshot_uid": uid}
            connection.execute(builds.insert().values(**{**own, **values, **named}))
        told = [
            ("partition-available", "s/a", "1"),
            ("partition-available", "s/same", "1"),
            ("partition-available", "s/gone", "0"),
            *(("partition-tainted", ref, None) for ref in ("s/a", "s/same", "s/gone", "s/never")),
        ]
        for idx, (kind, ref, build_uid) in enumerate(told, 10):
            event = {"idx": idx, "at": later, "kind": kind, "data": {}, "environment": "dev"}
            said = {"partition_ref": ref, "task_id": build_uid}
            connection.execute(events.insert().values(**event, **said))
        connection.commit()
    database.close()
    marks = {"1": {""}, "3": {""}, "4": {""}}
    assert open_ledger().taints.fetch("dev") == marks
    assert open_ledger().taints.fetch("prod") == {}


@pytest.mark.proves("S19")
def test_migration_resets_wants_of_unstarted_requests_to_requested(
    open_ledger: Open, ledger_url: str
) -> None:
    make_old(ledger_url, 12)
    database = Database(ledger_url)
    with database.engine.connect() as connection:
        own = {"environment": "dev", "reason": "", "trigger": "want", "requested_at": NOW}
        for state in ("requested", "started"):
            request = {"request_id": state, "partitions": ["m/a"], "want_ids": [state]}
            connection.execute(build_requests.insert().values(state=state, **request, **own))
            want = {"want_id": state, "partition_ref": "m/a", "created_at": NOW, "source": {}}
            request = {"environment": "dev", "failures": 0, "request_id": state}
            connection.execute(wants.insert().values(state="building", **want, **request))
        connection.commit()
    database.close()
    found = open_ledger().wants.fetch("dev", limit=10)
    assert [(w.want_id, w.state) for w in found] == [
        ("requested", "requested"),
        ("started", "building"),
    ]


def copies(url: str) -> list[Path]:
    """Return the files beside a ledger that do not belong to it."""
    path = Path(url.removeprefix("sqlite:///"))
    own = {path.name, f"{path.name}-wal", f"{path.name}-shm"}
    return sorted(p for p in path.parent.glob(f"{path.name}*") if p.name not in own)


@pytest.mark.proves("P33")
def test_a_ledger_file_is_backed_up_before_migration(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    make_old(url, 3)
    path.chmod(0o600)
    before = sqlite3.connect(path)
    before.execute("UPDATE builds SET run_id = 'in the log that SQLite has beside the file'")
    before.commit()
    was = list(before.iterdump())
    ledger = Ledger(url)
    before.close()
    assert ledger.events.backup == path.with_name("ledger.db.version-3")
    publish(ledger, a_build("2"), 1, {})
    ledger.close()
    assert copies(url) == [ledger.events.backup]
    assert ledger.events.backup.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(ledger.events.backup) as kept:
        assert list(kept.iterdump()) == was
    kept.close()
    again = Ledger(url)
    assert again.events.backup is None
    again.close()

    # A restored backup is backed up and migrated like any; no backup is overwritten.
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    ledger.events.backup.rename(path)
    first = Ledger(url)
    assert (first.events.backup, len(first.builds.fetch())) == (ledger.events.backup, 1)
    first.close()
    path.unlink()
    make_old(url, 3)
    second = Ledger(url)
    second.close()
    assert second.events.backup == path.with_name("ledger.db.version-3.2")
    assert copies(url) == [first.events.backup, second.events.backup]


@pytest.mark.proves("P33")
def test_a_ledger_that_cannot_be_backed_up_is_not_migrated(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    make_old(url, 3)
    (tmp_path / "ledger.db.version-3.part" / "in the way").mkdir(parents=True)
    with pytest.raises(LedgerError, match=r"cannot be copied to .*version-3 before") as refused:
        Ledger(url)
    assert "nothing was changed" in (refused.value.hint or "")
    database = Database(url)
    with database.read() as connection:
        assert version_of(connection) == 3
    database.close()


OPENS = """
import sys
from persist_assets.ledger.ledger import Ledger
print("ready", flush=True)
sys.stdin.readline()
print(Ledger(sys.argv[1]).events.opened_version)
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, 1])
def test_only_one_of_several_concurrent_processes_migrates_a_ledger(
    version: int, open_ledger: Open, ledger_url: str
) -> None:
    if version:
        make_old(ledger_url, version)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", OPENS, ledger_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    hammer.wait_until_ready(running)
    hammer.go(running)
    found = [int(process.communicate(timeout=60)[0]) for process in running]
    assert [p.returncode for p in running] == [0] * 4
    assert sorted(found) == [version, VERSION, VERSION, VERSION]
    with open_ledger().events.database.read() as connection:
        told = connection.scalars(sa.select(ledger_version.c.version).order_by("version")).all()
    assert told == ([VERSION] if version == 0 else list(range(1, VERSION + 1)))
    assert len(copies(ledger_url)) == (version == 1 and ledger_url.startswith("sqlite"))


def test_opening_waits_for_another_process_that_writes_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # blocks the switch to a write-ahead log
        with ThreadPoolExecutor(1) as threads:
            opening = threads.submit(Ledger, f"sqlite:///{path}")
            with pytest.raises(TimeoutError):
                opening.result(timeout=0.3)
            other.execute("COMMIT")
            ledger = opening.result(timeout=60)
    assert ledger.events.opened_version == 0
    ledger.close()


def test_an_interrupted_migration_is_rolled_back(
    open_ledger: Open, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old(ledger_url, 1)

    def interrupted(connection: sa.Connection) -> None:
        MIGRATIONS[0](connection)
        raise KeyboardInterrupt

    name = "persist_assets.ledger.migrations.MIGRATIONS"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(name, (interrupted, *MIGRATIONS[1:]))
        open_ledger()
    assert copies(ledger_url) == []
    assert open_ledger().events.opened_version == 1
    assert open_ledger().events.opened_version == VERSION


@pytest.mark.proves("P33")
def test_a_ledger_of_a_newer_release_is_rejected_unchanged(
    open_ledger: Open, ledger_url: str
) -> None:
    open_ledger()
    database = Database(ledger_url)
    with database.write() as connection:
        connection.execute(ledger_version.insert().values(version=99, migrated_at=NOW))
    with pytest.raises(
        LedgerTooNewError, match=f"version 99, but this release supports only up to {VERSION}"
    ):
        open_ledger()
    with database.read() as connection:
        assert version_of(connection) == 99
        assert connection.scalar(sa.select(sa.func.count()).select_from(ledger_version)) == 2
    database.close()


@pytest.mark.parametrize("table", [builds, events])
def test_a_database_with_foreign_tables_is_rejected_unchanged(
    table: sa.Table, open_ledger: Open, ledger_url: str
) -> None:
    database = Database(ledger_url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table.name} (theirs INTEGER)")
    with pytest.raises(
        ConflictError, match=f"has a table `{table.name}` that does not belong to a ledger"
    ):
        open_ledger()
    with database.read() as connection:
        assert sa.inspect(connection).get_table_names() == [table.name]
    database.close()
