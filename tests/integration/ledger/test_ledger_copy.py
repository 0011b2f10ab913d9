"""A ledger is copied from one database to another, exactly, or not at all."""

from __future__ import annotations

import json
import os
import uuid
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from test_ledger import DIGESTS, READS, Open, a_build, age_leases, publish
from test_ledger_versions import make_old
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.core.errors import ConflictError, LedgerError, LedgerTooNewError, NotFoundError
from persist_assets.core.model.snapshots import LocalCopy
from persist_assets.core.wants import Blame, Evaluation, Want
from persist_assets.ledger import transfer
from persist_assets.ledger.alerts import Condition
from persist_assets.ledger.connection import Database
from persist_assets.ledger.leases import LEASE_S
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.migrations import VERSION
from persist_assets.ledger.tables import leases, ledger_version, metadata, published_tables, writers
from persist_assets.ledger.taints import Taint
from persist_assets.ledger.transfer import copy_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOWHERE = "sqlite:///nowhere.db"


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'target.db'}"
    return request.getfixturevalue("postgres").schema(f"target_{uuid.uuid4().hex}")


def fill(ledger: Ledger) -> None:
    """Record at least one row in every table."""
    publish(ledger, replace(a_build("1"), digests=DIGESTS, reads=READS), malloy={"m": "build-a"})
    publish(ledger, replace(a_build("2", "é\u2028"), run_id=None), 2**40)
    failing = a_build("3")
    ledger.builds.record_started(failing, "t")
    ledger.builds.record_failed(failing, "no\nno")
    ledger.builds.record_started(a_build("4"), "t")
    change = ledger.manifests.promote(("dev",), "prod", ledger.manifests.fetch("dev"))
    ledger.manifests.roll_back("prod", 0, expected=change)
    want = Want(
        "w", "a/b", "dev", datetime(2024, 1, 1, tzinfo=UTC), sla_s=0, source={"type": "cli"}
    )
    (want,) = ledger.wants.create([want])
    ledger.wants.record_misses([(want, Blame("a/b", "", want.created_at, "queued"))])
    ledger.requests.record_evaluation("dev", "want", Evaluation(("a/b",), ("w",)))
    ledger.taints.record(["dev"], lambda *_: Taint({"a/b": "b"}, {"uid": [""]}), by="somebody")
    ledger.upstreams.record_synced("dev", "users", "7", expected=None)
    ledger.copies.record_needs("c", "dev", [("TRUE", ("a", "b"))])
    copy = LocalCopy("c", "delta:7:t", "u", 3, "TRUE", 1, ("a", "b"), want.created_at, 1, 2**40)
    ledger.copies.record(
        replace(copy, seen={"TRUE": 3}), expected=None, changes={"why": "it is new"}
    )
    condition = Condition("failed", "a@s.sql", want.created_at, {"error": "é"})
    ledger.alerts.record("dev", [(condition, ["ops"])], {}, want.created_at)
    ledger.run_pins.record("run", {"a@s.sql": {"version": "delta:7:t", "commit": None}})
    with ledger.events.database.write() as connection:
        place = {"environment": "dev", "place": "/tables/a", "source_id": "a@s.sql"}
        values = {
            **place,
            "build_uid": "1",
            "version": 3,
            "described": "",
            "published_at": want.created_at,
        }
        connection.execute(published_tables.insert().values(**values))
        ledger.events.append(connection, "odd", {"a": [1.5, None, {"ü": True}]})
        connection.exec_driver_sql("UPDATE builds SET columns = '[ ]' WHERE build_uid = '4'")
    ledger.trims.record_base()
    with ledger.leases.hold("x", "dead"), ledger.events.database.read() as connection:
        row = connection.execute(sa.select(leases)).mappings().one()
    with ledger.events.database.write() as connection:
        connection.execute(leases.insert().values(**row))
    age_leases(ledger, LEASE_S + 1)


def contents(url: str) -> dict[str, list[Any]]:
    """Return every row of every table, JSON as text and nulls as nulls."""
    database = Database(url)
    with closing(database), database.read() as connection:
        return {
            table.name: sorted(
                map(tuple, connection.execute(sa.select(*_as_text(table)))), key=repr
            )
            for table in metadata.sorted_tables
            if table is not writers
        }


def _as_text(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    return [sa.cast(c, sa.Text) if isinstance(c.type, sa.JSON) else c for c in table.columns]


def test_a_copy_equals_its_original_row_by_row_and_continues_its_events(
    open_ledger: Open, ledger_url: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_AT_ONCE", 2)
    ledger = open_ledger()
    fill(ledger)
    told: dict[str, int] = {}
    copied = copy_ledger(ledger_url, target, tell=told.__setitem__)
    before = contents(ledger_url)
    assert contents(target) == before
    assert copied == told == {name: len(rows) for name, rows in before.items()}
    assert {*copied} == {*metadata.tables} - {"writers"}
    assert all(copied.values())
    with closing(Ledger(target)) as copy:
        assert copy.events.opened_version == VERSION
        assert copy.events.fetch() == ledger.events.fetch()
        assert copy.builds.fetch() == ledger.builds.fetch()
        assert copy.manifests.fetch("dev") == ledger.manifests.fetch("dev")
        assert copy.manifests.fetch_history("prod") == ledger.manifests.fetch_history("prod")
        position = copy.events.position()
        copy.builds.record_started(a_build("9"), "t")
        assert copy.events.position() == position + 1
    assert contents(ledger_url) == before


def test_a_copy_of_a_copy_equals_the_original(
    open_ledger: Open, ledger_url: str, target: str, tmp_path: Path
) -> None:
    fill(open_ledger())
    copy_ledger(ledger_url, target)
    back = f"sqlite:///{tmp_path / 'back.db'}"
    copy_ledger(target, back)
    assert contents(back) == contents(ledger_url)


def test_an_empty_ledger_may_be_the_target_of_a_copy(
    open_ledger: Open, ledger_url: str, target: str
) -> None:
    fill(open_ledger())
    Ledger(target).close()
    copy_ledger(ledger_url, target)
    assert contents(target) == contents(ledger_url)
    with pytest.raises(ConflictError, match=r"is not empty: \d+ rows in `\w+`"):
        copy_ledger(ledger_url, target)
    with pytest.raises(ConflictError, match="is not empty"):
        copy_ledger(ledger_url, ledger_url)
    assert contents(target) == contents(ledger_url)


def test_an_interrupted_copy_leaves_the_target_empty(
    open_ledger: Open, ledger_url: str, target: str
) -> None:
    fill(open_ledger())

    def tell(name: str, n: int) -> None:
        if name == "manifest_entries":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_ledger(ledger_url, target, tell=tell)
    database = Database(target)
    with closing(database), database.read() as connection:
        assert sa.inspect(connection).get_table_names() == []
    copy_ledger(ledger_url, target)


def test_a_ledger_with_active_leases_is_not_copied(
    open_ledger: Open, ledger_url: str, target: str
) -> None:
    ledger = open_ledger()
    with ledger.leases.hold("build x", "somebody"), pytest.raises(ConflictError) as error:
        copy_ledger(ledger_url, target)
    assert "build x is held by somebody" in error.value.message
    copy_ledger(ledger_url, target)


def test_only_a_ledger_of_this_version_is_copied(
    open_ledger: Open, ledger_url: str, target: str, tmp_path: Path
) -> None:
    make_old(ledger_url, 1)
    before = contents_of_version(ledger_url)
    with pytest.raises(LedgerError, match="has version 1") as error:
        copy_ledger(ledger_url, target)
    assert "persist ledger migrate" in (error.value.hint or "")
    assert contents_of_version(ledger_url) == before == [1]
    ledger = open_ledger()
    with ledger.events.database.write() as connection:
        connection.execute(
            ledger_version.insert().values(version=99, migrated_at=a_build("1").started_at)
        )
    with pytest.raises(LedgerTooNewError):
        copy_ledger(ledger_url, target)
    with pytest.raises(NotFoundError, match="there is no ledger"):
        copy_ledger(target.replace("target.db", "none.db"), f"sqlite:///{tmp_path / 'x.db'}")
    assert not (tmp_path / "none.db").exists()


def contents_of_version(url: str) -> list[int]:
    database = Database(url)
    with closing(database), database.read() as connection:
        return list(connection.scalars(sa.select(ledger_version.c.version)))


# --------------------------------------------------------------------------------- the command line


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that runs a command in a directory that is no project."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield lambda *a: CliRunner().invoke(app, a)
    os.chdir(before)


def test_the_copy_command_reports_the_copied_rows(
    open_ledger: Open, ledger_url: str, target: str, elsewhere: Callable[..., Any]
) -> None:
    fill(open_ledger())
    done = elsewhere("ledger", "copy", ledger_url, target, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["version"], told["tables"]["events"]) == (VERSION, 17)
    assert "events: 17 rows" in done.stderr
    again = elsewhere("ledger", "copy", ledger_url, target)
    assert again.exit_code == 4
    assert "is not empty" in again.stderr
    assert elsewhere("ledger", "copy", NOWHERE, target).exit_code == 4


def test_the_migrate_command_reports_both_versions(
    ledger_url: str, elsewhere: Callable[..., Any], tmp_path: Path
) -> None:
    make_old(ledger_url, 1)
    done = elsewhere("ledger", "migrate", ledger_url)
    assert done.exit_code == 0, done.stderr
    assert f"was migrated from version 1 to {VERSION}" in done.stdout
    assert ("a backup is at" in done.stdout) == ledger_url.startswith("sqlite")
    told = json.loads(elsewhere("ledger", "migrate", ledger_url, "--json").stdout)
    assert (told["from"], told["to"], told["backup"]) == (VERSION, VERSION, None)
    assert elsewhere("ledger", "migrate").exit_code == 2  # no project
    (tmp_path / "persist.toml").write_text("")
    made = elsewhere("ledger", "migrate")
    assert f".persist/ledger.db was created with version {VERSION}" in made.stdout
    away = elsewhere("ledger", "migrate", "postgresql://u:secret@127.0.0.1:1/x")
    assert away.exit_code == 5
    assert "u:***@127.0.0.1:1/x does not answer" in away.stderr
    assert "secret" not in away.stderr
