"""The ledger on real SQLite and PostgreSQL databases, with real processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, LedgerError
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.columns import Column, Parts
from persist_assets.core.model.snapshots import (
    Build,
    Cost,
    Effort,
    Leaf,
    RawVersion,
    Snapshot,
    View,
    Written,
)
from persist_assets.core.model.sources import Read
from persist_assets.ledger import leases, tables
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.collection import INTERRUPTED
from persist_assets.ledger.leases import LEASE_S
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.taints import Taint

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path


Open = Callable[..., Ledger]
on_sqlite = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


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


def publish(
    ledger: Ledger, build: Build, version: int = 0, malloy: Mapping[str, str] | None = None
) -> Snapshot:
    snapshot = a_snapshot(build, version)
    ledger.builds.record_started(build, snapshot.table)
    checks = [CheckResult("c", True, True, 0, "a not null")]
    ledger.builds.publish(Publication(build, snapshot, checks), malloy=malloy)
    return snapshot


def test_readers_get_the_published_snapshot(open_ledger: Open) -> None:
    ledger = open_ledger()
    build = a_build("1")
    snapshot = publish(ledger, build)
    assert open_ledger().manifests.fetch("dev") == {build.build_id: snapshot}
    assert ledger.manifests.find_snapshot("dev", build.build_id) == snapshot
    assert ledger.manifests.find_snapshot("prod", build.build_id) is None
    assert ledger.builds.fetch_checks("1") == [CheckResult("c", True, True, 0, "a not null")]
    assert ledger.builds.find_pinned_version(snapshot.table) == 0
    assert ledger.builds.fetch(run_id="run")[0].snapshot == snapshot


def test_a_newer_publication_replaces_the_older_one(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    later = publish(ledger, a_build("2"), version=1)
    assert ledger.manifests.fetch("dev") == {"build-a": later}
    assert len(ledger.builds.fetch(source_id="a@s.sql")) == 2


def test_a_cached_manifest_is_always_current(open_ledger: Open) -> None:
    reader, writer = open_ledger(), open_ledger()
    chains = (("dev",), ("prod",), ("prod", "dev"))
    statements: list[str] = []
    sa.event.listen(
        reader.manifests.database.engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )

    def fetch() -> list[dict[str, Snapshot]]:
        fetched = [reader.manifests.fetch(*chain) for chain in chains]
        assert fetched == [open_ledger().manifests.fetch(*chain) for chain in chains]
        statements.clear()
        assert [reader.manifests.fetch(*chain) for chain in chains] == fetched
        assert not [s for s in statements if "builds.inputs" in s], "rows are read once more"
        return fetched

    assert fetch() == [{}, {}, {}]
    first, other = publish(writer, a_build("1")), publish(writer, a_build("2", "b"))
    assert fetch()[0] == {"build-a": first, "build-b": other}
    writer.manifests.promote(("dev",), "prod", writer.manifests.fetch("dev"))
    newer = publish(writer, a_build("3"), version=1)
    assert fetch()[1:] == [
        {"build-a": first, "build-b": other},
        {"build-a": newer, "build-b": other},
    ]
    # The table is found to be up to date: its snapshot differs only in `current_at`.
    reused = replace(a_build("4", "b"), action="reused")
    current = replace(other, current_at=NOW + timedelta(days=1))
    writer.builds.record_started(reused, other.table)
    writer.builds.publish(Publication(reused, current, []))
    assert fetch()[0] == {"build-a": newer, "build-b": current}
    last = writer.manifests.fetch_history("dev")[0].change_id
    before = writer.manifests.fetch_history("dev")[2].change_id
    writer.manifests.roll_back("dev", before, expected=last)
    assert fetch()[0] == {"build-a": first, "build-b": other}


@pytest.mark.proves("T6", "T12")
def test_costs_are_those_of_builds_that_computed_rows_latest_first(
    open_ledger: Open,
) -> None:
    ledger = open_ledger()

    def computed(uid: str, method: str, name: str = "a") -> Build:
        build = replace(a_build(uid, name), written=Written(int(uid), 10 * int(uid)))
        build = build.computed_by(method, build.started_at + timedelta(seconds=int(uid) / 2))
        return replace(build, effort=None if method == "whole" else Effort(int(uid)))

    for build in (computed("1", "whole"), computed("2", "append"), computed("3", "keys", "b")):
        publish(ledger, build)
    publish(ledger, replace(a_build("4"), action="reused"))
    failing = computed("5", "append")
    ledger.builds.record_started(failing, "table")
    ledger.builds.record_failed(failing, "no")
    costs = [Cost("append", 1.0, 2, 20), Cost("whole", 0.5, 1, 10)]
    assert ledger.builds.fetch_costs(source_id="a@s.sql") == costs
    assert ledger.builds.fetch_costs(build_id="build-a", limit=1) == costs[:1]
    assert ledger.builds.fetch_costs() == [Cost("keys", 1.5, 3, 30), *costs]
    methods = {"1": ("whole", None), "2": ("append", Effort(2)), "3": ("keys", Effort(3))}
    assert ledger.builds.fetch_methods([*"12345"]) == methods
    assert ledger.builds.fetch(build_uid="3")[0].effort == Effort(3)
    assert ledger.builds.fetch(build_uid="1")[0].effort is None

    for build in (computed("6", "append"), computed("7", "append")):
        effort = Effort(seconds_by_size=int(build.build_uid) / 4, seconds_shared=0.5)
        publish(ledger, replace(build, effort=effort))
    assert ledger.builds.fetch_costs_of(["build-a", "build-b", "build-c"]) == {
        "build-a": [
            Cost("append", 3.0, 7, 70, by_size_s=1.75),
            Cost("append", 2.5, 6, 60, by_size_s=1.5),
            Cost("whole", 0.5, 1, 10),
        ],
        "build-b": [Cost("keys", 1.5, 3, 30)],
    }


def test_a_failed_build_changes_nothing_for_readers(open_ledger: Open) -> None:
    ledger = open_ledger()
    snapshot = publish(ledger, a_build("1"))
    failing = a_build("2")
    ledger.builds.record_started(failing, snapshot.table)
    ledger.builds.record_failed(failing, "no")
    assert ledger.manifests.fetch("dev") == {"build-a": snapshot}
    assert ledger.builds.fetch_last("dev")["a@s.sql"].error == "no"


def test_a_succeeded_build_cannot_be_recorded_as_failed(open_ledger: Open) -> None:
    ledger = open_ledger()
    build = a_build("1")
    publish(ledger, build)
    ledger.builds.record_failed(build, "interrupted after it was published")
    assert [e.kind for e in ledger.events.fetch()] == ["build-started", "build-succeeded"]
    assert ledger.builds.fetch()[0].state == "succeeded"


def test_every_change_is_an_event_and_positions_have_no_gap(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    failing = a_build("2", "b")
    ledger.builds.record_started(failing, "t")
    ledger.builds.record_failed(failing, "no")
    events = ledger.events.fetch()
    assert [e.idx for e in events] == [1, 2, 3, 4]
    assert [e.kind for e in events] == [
        "build-started",
        "build-succeeded",
        "build-started",
        "build-failed",
    ]
    assert ledger.events.fetch(since=2, limit=1)[0].idx == 3
    assert events[1].data["table"] == "table-build-a"


@pytest.mark.proves("M15")
def test_the_last_published_mapping_of_malloy_build_ids_applies(open_ledger: Open) -> None:
    ledger = open_ledger()
    assert ledger.manifests.fetch_malloy("dev") == {}
    publish(ledger, a_build("1"), malloy={"m": "build-a", "n": "build-b"})
    publish(ledger, a_build("2"))
    assert ledger.manifests.fetch_malloy("dev") == {"m": "build-a", "n": "build-b"}, (
        "nothing was said"
    )
    publish(ledger, a_build("3", "c"), malloy={"m": "build-c", "o": "build-c"})
    assert open_ledger().manifests.fetch_malloy("dev") == {"m": "build-c", "o": "build-c"}
    assert ledger.manifests.fetch_malloy("prod") == {}
    publish(ledger, a_build("4"), malloy={})
    assert ledger.manifests.fetch_malloy("dev") == {}
    with pytest.raises(ConflictError):  # a rejected publication maps nothing
        with ledger.leases.hold("lost", "x") as lost:
            pass
        build = a_build("5")
        ledger.builds.record_started(build, "t")
        ledger.builds.publish(
            Publication(build, a_snapshot(build), [], leases=[lost]), malloy={"m": "build-a"}
        )
    assert ledger.manifests.fetch_malloy("dev") == {}


def test_a_rollback_restores_the_mapping_of_malloy_build_ids(open_ledger: Open) -> None:
    ledger = open_ledger()
    said = [{"m": "build-a"}, {"m": "build-b"}, {"m": "build-a", "n": "build-a"}]
    changes: list[int] = []
    for n, malloy in enumerate(said):
        publish(ledger, a_build(str(n + 1), "ab"[n % 2]), malloy=malloy)
        changes.append(ledger.manifests.fetch_history("dev")[0].change_id)
    at = changes[-1]
    for to in (changes[1], changes[0], 0, changes[2], changes[1]):
        at = ledger.manifests.roll_back("dev", to, expected=at)
        assert ledger.manifests.fetch_malloy("dev") == (said[changes.index(to)] if to else {})
    publish(ledger, a_build("4"), malloy={})
    ledger.manifests.roll_back(
        "dev", at, expected=ledger.manifests.fetch_history("dev")[0].change_id
    )
    assert ledger.manifests.fetch_malloy("dev") == said[1], "to a rollback"


def test_a_promotion_maps_malloy_build_ids_and_an_import_adds_only_missing_ones(
    open_ledger: Open,
) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"), malloy={"m": "build-a"})
    ledger.manifests.promote(
        ("dev",), "prod", ledger.manifests.fetch("dev"), malloy={"n": "build-a"}
    )
    assert ledger.manifests.fetch_malloy("prod") == {"n": "build-a"}
    known = ledger.builds.fetch()
    ledger.manifests.adopt("prod", known, malloy={"m": "build-a", "n": "build-z"}, why="x")
    assert ledger.manifests.fetch_malloy("prod") == {"m": "build-a", "n": "build-a"}
    assert ledger.manifests.fetch_malloy("dev") == {"m": "build-a"}


def test_a_malloy_build_id_maps_to_one_build_id_at_a_time(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"), malloy={"m": "build-a"})
    row = {"environment": "dev", "malloy_id": "m", "build_id": "build-b", "since": 99}
    with pytest.raises(sa.exc.IntegrityError), ledger.events.database.write() as connection:
        connection.execute(tables.malloy_entries.insert().values(**row))
    assert ledger.manifests.fetch_malloy("dev") == {"m": "build-a"}


def test_unreachable_snapshots_are_collected_and_never_published_again(open_ledger: Open) -> None:
    ledger = open_ledger()
    old = publish(ledger, a_build("1"))
    view = View(
        "SELECT 1", (Leaf("x", build_uid=old.build_uid), Leaf("r", None, RawVersion("r", "1")))
    )
    reader = a_build("3", "b")
    ledger.builds.record_started(reader, "v")
    shown = replace(a_snapshot(reader), table="v", view=view)
    ledger.builds.publish(Publication(reader, shown, []))
    new = publish(ledger, a_build("2"), version=1)
    assert ledger.manifests.fetch("dev")["build-b"].view == view
    future, defined = datetime.now(UTC) + timedelta(days=1), {"build-a": ["a@s.sql"]}
    before = ledger.events.fetch()

    def held(removed: bool, **options: bool) -> dict[str, Any]:
        found = ledger.builds.collect(future, "dev", defined, removed=removed, **options)
        return {h.table: (h.readable, h.gone) for h in found}

    kept = {new.build_uid: 1, old.build_uid: 0}
    assert held(False)[new.table] == (kept, {}), "a view reads it"
    assert held(True, dry_run=True)[new.table] == ({new.build_uid: 1}, {old.build_uid: 0})
    assert ledger.events.fetch() == before
    assert held(True)[new.table] == ({new.build_uid: 1}, {old.build_uid: 0})
    assert set(ledger.manifests.fetch("dev")) == {"build-a"}
    assert ledger.manifests.fetch_history("dev", limit=1)[0].kind == "collect"
    assert (
        ledger.builds.find_written(old.build_uid),
        ledger.builds.find_written(new.build_uid),
    ) == (None, new)
    assert ledger.builds.fetch_holding(new.table).gone == {old.build_uid: 0}
    # A taint follows rows through tables that are gone.
    snapshots = list[Snapshot]()
    ledger.taints.preview(["dev"], lambda _, some: snapshots.extend(some) or Taint({}))
    assert {s.build_uid for s in snapshots} == {"1", "2", "3"}
    last = ledger.manifests.fetch_history("dev", limit=1)[0].change_id
    with pytest.raises(ConflictError, match="was collected"):
        ledger.manifests.roll_back("dev", 2, expected=last)
    again = replace(a_build("4"), action="reused")
    ledger.builds.record_started(again, old.table)
    with pytest.raises(ConflictError, match="was collected"):
        ledger.builds.publish(Publication(again, old, []))
    assert ledger.builds.find_pinned_version(new.table) == 1


def test_a_build_that_was_recorded_as_interrupted_publishes_nothing(open_ledger: Open) -> None:
    ledger = open_ledger()
    build = a_build("1")
    ledger.builds.record_started(build, "t")
    assert ledger.builds.record_interrupted("t") == [build.build_uid]
    with pytest.raises(ConflictError, match="interrupted meanwhile"):
        ledger.builds.publish(Publication(build, a_snapshot(build), []))
    assert ledger.manifests.fetch("dev") == {}


def test_a_published_build_holds_its_table_whatever_it_was_recorded_as(open_ledger: Open) -> None:
    ledger = open_ledger()
    snapshot = publish(ledger, a_build("1"))
    # A process of a former release may publish what another one has recorded as interrupted.
    with ledger.events.database.write() as connection:
        connection.execute(tables.builds.update().values(error=INTERRUPTED))
    (held,) = ledger.builds.collect(datetime.now(UTC), "dev", {}, removed=False)
    assert (held.readable, held.started) == ({snapshot.build_uid: snapshot.version}, ())


def a_view(build: Build, *leaves: str) -> Snapshot:
    stored = View("SELECT 1", tuple(Leaf(f"t@{uid}", uid) for uid in leaves))
    return replace(a_snapshot(build), table="view", view=stored)


def test_collect_keeps_tables_of_a_view_that_another_build_published(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    # Two sources share a BuildID: one reuses what the other one computed and never published.
    first, second = a_build("2", "v"), a_build("3", "v")
    stored = a_view(first, "1")
    for build in (first, second):
        ledger.builds.record_started(build, stored.table)
    ledger.builds.publish(Publication(second, stored, []))
    ledger.builds.record_failed(first, "its run ended before it started")
    publish(ledger, a_build("4"), version=1)
    future = datetime.now(UTC) + timedelta(days=1)
    ledger.builds.collect(future, "dev", {"build-a": ["a@s.sql"], "build-v": ["v@s.sql"]})
    assert ledger.manifests.fetch("dev")["build-v"] == stored
    assert ledger.builds.find_written("1"), "the view cannot be read any more"


def test_a_view_of_a_table_collected_meanwhile_is_not_published(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    view = a_build("2", "v")
    ledger.builds.record_started(view, "view")
    publish(ledger, a_build("3"), version=1)
    ledger.builds.collect(datetime.now(UTC) + timedelta(days=1), "dev", {"build-a": ["a@s.sql"]})
    with pytest.raises(ConflictError, match="was collected"):
        ledger.builds.publish(Publication(view, a_view(view, "1"), []))
    assert set(ledger.manifests.fetch("dev")) == {"build-a"}
    ledger.builds.publish(Publication(view, a_view(view, "3"), []))


def test_a_read_transaction_sees_a_consistent_state(open_ledger: Open) -> None:
    ledger, other = open_ledger(), open_ledger()
    publish(ledger, a_build("1"))
    n_events = sa.select(sa.func.count()).select_from(tables.events)
    with ledger.events.database.read() as connection:
        assert connection.scalar(n_events) == 2
        publish(other, a_build("2"), version=1)
        assert connection.scalar(n_events) == 2
    with ledger.events.database.read() as connection:
        assert connection.scalar(n_events) == 4


def test_concurrent_write_transactions_are_serialized(open_ledger: Open) -> None:
    ledger, other = open_ledger(), open_ledger()
    order: list[str] = []

    def write() -> None:
        other.builds.record_started(a_build("1"), "t")
        order.append("other")

    with ledger.events.database.write() as connection:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        ledger.events.append(connection, "first", {})
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
    assert [e.kind for e in ledger.events.fetch()] == ["first", "build-started"]


def test_the_database_rejects_a_succeeded_build_without_a_snapshot(open_ledger: Open) -> None:
    ledger = open_ledger()
    ledger.builds.record_started(a_build("1"), "t")
    with (
        pytest.raises(sa.exc.IntegrityError, match="ck_builds_snapshot"),
        ledger.events.database.write() as connection,
    ):
        connection.exec_driver_sql("UPDATE builds SET state = 'succeeded'")


# ------------------------------------------------------------------------------------------ leases


def test_a_lease_has_one_holder_and_the_next_waits(open_ledger: Open) -> None:
    ledger = open_ledger()
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.wait()
        with open_ledger().leases.hold("x", "second"):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with ledger.leases.hold("x", "first"):
        entered.set()
        with (
            pytest.raises(ConflictError, match="x is held by first"),
            ledger.leases.hold("x", "third", wait_s=0.2),
        ):
            pass
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def age_leases(ledger: Ledger, seconds: float) -> None:
    """Make leases look as if they were renewed earlier."""
    leases = tables.leases
    with ledger.events.database.write() as connection:
        for name, expires_at in connection.execute(sa.select(leases.c.name, leases.c.expires_at)):
            earlier = expires_at - timedelta(seconds=seconds)
            this = leases.update().where(leases.c.name == name)
            connection.execute(this.values(expires_at=earlier))


def test_an_expired_lease_is_taken_over_and_its_holder_cannot_publish(open_ledger: Open) -> None:
    ledger = open_ledger()
    build = a_build("1")
    snapshot = a_snapshot(build)
    ledger.builds.record_started(build, snapshot.table)
    with ledger.leases.hold("x", "slow") as lost:
        age_leases(ledger, LEASE_S + 1)
        with (
            ledger.leases.hold("w", "slow") as held,
            ledger.leases.hold("x", "quick"),
            pytest.raises(ConflictError, match="lease on x was lost"),
        ):
            ledger.builds.publish(Publication(build, snapshot, [], leases=[held, lost]))
    assert ledger.manifests.fetch("dev") == {}
    assert "lease-broken" in [e.kind for e in ledger.events.fetch()]


def test_the_lease_of_a_dead_process_is_taken_over_at_once(
    open_ledger: Open, ledger_url: str
) -> None:
    script = (
        "import os, sys; from persist_assets.ledger.ledger import Ledger\n"
        "with Ledger(sys.argv[1]).leases.hold('x', 'dead'): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, ledger_url], check=False)
    assert done.returncode == -9
    with open_ledger().leases.hold("x", "next", wait_s=1):
        pass


def test_an_abandoned_lease_is_released_if_its_heartbeat_garbage_collects_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_S", 0.2)
    abandoned: list[Any] = []
    collected = threading.Event()

    def clock() -> datetime:
        if threading.current_thread().name == "lease x" and abandoned:
            abandoned.pop().gen.close()
            collected.set()
        return datetime.now(UTC)

    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", clock=clock)
    holding = ledger.leases.hold("x", "a holder that nobody ends")
    holding.__enter__()
    abandoned.append(holding)
    (beat,) = (t for t in threading.enumerate() if t.name == "lease x")
    assert collected.wait(10)
    beat.join(10)
    assert ledger.leases.fetch() == []
    ledger.close()


def test_an_abandoned_lease_is_released_after_the_write_that_garbage_collects_it(
    open_ledger: Open,
) -> None:
    ledger, holder = open_ledger(), open_ledger()
    holding: Any = holder.leases.hold("x", "a holder that nobody ends")
    holding.__enter__()
    (beat,) = (t for t in threading.enumerate() if t.name == "lease x")
    with ledger.events.database.write():
        holding.gen.close()  # waits for nothing
        assert len(ledger.leases.fetch()) == 1
    beat.join(10)
    assert ledger.leases.fetch() == []


def test_a_thread_cannot_write_within_its_own_write(open_ledger: Open) -> None:
    ledger, other = open_ledger(), open_ledger()
    with (
        ledger.events.database.write(),
        pytest.raises(LedgerError, match="already writing to the ledger"),
        other.events.database.write(),
    ):
        pass
    with other.events.database.write():
        pass


DIES_ELSEWHERE = """
import os, sys
from persist_assets.ledger import leases, processes
from persist_assets.ledger.ledger import Ledger
leases.THIS_MACHINE = processes.THIS_MACHINE = sys.argv[2]
with Ledger(sys.argv[1]).leases.hold("x", "dead"):
    os.kill(os.getpid(), 9)
"""


def test_the_lease_of_a_dead_process_of_another_machine_is_taken_over_when_it_expires(
    open_ledger: Open, ledger_url: str
) -> None:
    command = [sys.executable, "-c", DIES_ELSEWHERE, ledger_url, "another host"]
    assert subprocess.run(command, check=False).returncode == -9
    ledger = open_ledger()
    with (
        pytest.raises(ConflictError, match="held by dead"),
        ledger.leases.hold("x", "next", wait_s=0.2),
    ):
        pass
    age_leases(ledger, LEASE_S - 10)
    with (
        pytest.raises(ConflictError, match="held by dead"),
        ledger.leases.hold("x", "next", wait_s=0.2),
    ):
        pass
    age_leases(ledger, 11)
    with ledger.leases.hold("x", "next", wait_s=1):
        pass


@pytest.mark.parametrize("ledger_url", ["postgres"], indirect=True)
def test_machines_with_wrong_clocks_agree_on_lease_expiry(open_ledger: Open) -> None:
    ledger, late = open_ledger(), NOW + timedelta(days=10000)
    fast = open_ledger(clock=lambda: late + timedelta(seconds=time.monotonic()))
    with (
        ledger.leases.hold("x", "first"),
        pytest.raises(ConflictError, match="held by first"),
        fast.leases.hold("x", "second", wait_s=0.2),
    ):
        pass


@pytest.mark.slow
@pytest.mark.proves("P11")
def test_eight_concurrent_processes_lose_no_events(open_ledger: Open, ledger_url: str) -> None:
    script = """
import sys
from persist_assets.ledger.ledger import Ledger
from datetime import UTC, datetime
from persist_assets.core.model.snapshots import Build
ledger = Ledger(sys.argv[1])
for n in range(20):
    uid = f"{sys.argv[2]}-{n}"
    build = Build(uid, "a@s", "b", "d", "dev", None, "started", "built", datetime.now(UTC))
    ledger.builds.record_started(build, "t")
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script, ledger_url, str(n)]) for n in range(8)
    ]
    assert [p.wait() for p in running] == [0] * 8
    ledger = open_ledger()
    assert [e.idx for e in ledger.events.fetch()] == list(range(1, 161))
    assert len(ledger.builds.fetch()) == 160


# --------------------------------------------------------------------------------- current builds


DIGESTS = Parts("r", (("a", "1"), ("b", "2")))
READS = (Read("t@s.sql", "def", Parts("t")), Read("v@s.sql", "def", DIGESTS))


def test_a_build_records_the_digests_of_its_query_and_its_inputs(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, replace(a_build("1"), digests=DIGESTS, reads=READS))
    (build,) = open_ledger().builds.fetch()
    assert (build.digests, build.reads) == (DIGESTS, READS)


def test_fetch_current_returns_the_last_successful_build_per_source(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    publish(ledger, replace(a_build("2"), build_id="other"))
    publish(ledger, replace(a_build("3", "c"), build_id="build-b"))
    publish(ledger, replace(a_build("4", "b"), environment="prod"))
    failing = a_build("5", "c")
    ledger.builds.record_started(failing, "t")
    ledger.builds.record_failed(failing, "no")
    assert ledger.manifests.fetch_environments() == ["dev", "prod"]
    current = ledger.builds.fetch_current("dev")
    assert {s: b.build_id for s, b in current.items()} == {"a@s.sql": "other", "c@s.sql": "build-b"}
    publish(ledger, a_build("6"))  # the first BuildID again
    assert ledger.builds.fetch_current("dev")["a@s.sql"].build_id == "build-a"
    assert ledger.builds.fetch_current("stage") == {}


def test_sources_that_share_a_table_are_both_returned(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, replace(a_build("1"), build_id="same"))
    publish(ledger, replace(a_build("2", "b"), build_id="same"))
    assert sorted(ledger.builds.fetch_current("dev")) == ["a@s.sql", "b@s.sql"]


def test_a_build_is_found_by_a_prefix_of_its_build_id(open_ledger: Open) -> None:
    ledger = open_ledger()
    for uid, build_id in (("1", "abc1"), ("2", "abc2")):
        publish(ledger, replace(a_build(uid), build_id=build_id))
    assert ledger.builds.find("abc2") == ledger.builds.fetch(limit=1)[0]
    assert ledger.builds.find("b") is None
    assert ledger.builds.find("%") is None
    with pytest.raises(ConflictError, match="several BuildIDs start with abc"):
        ledger.builds.find("abc")


# --------------------------------------------------------------------------------------- bad input


@on_sqlite
def test_a_corrupt_ledger_is_reported_and_not_changed(open_ledger: Open, tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(LedgerError, match="not a database") as error:
        open_ledger()
    assert "no table is lost" in (error.value.hint or "")
    assert (tmp_path / "ledger.db").read_bytes().startswith(b"this is no database")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense://x", "unknown driver `nonsense`"),
        ("mysql://u:secret@h/x", r"unsupported ledger `mysql://u:\*\*\*@h/x`"),
        ("postgresql+psycopg2://u:secret@h/x", r"unknown driver `postgresql\+psycopg2`"),
        (
            "postgresql://u:secret@h:port/x",
            r"`postgresql://u:\*\*\*@h:port/x` is not a database URL",
        ),
        ("sqlite:////proc/none/ledger.db", "cannot create the ledger"),
        (
            "postgresql://u:secret@127.0.0.1:1/x",
            r"postgresql://u:\*\*\*@127.0.0.1:1/x does not answer",
        ),
        (
            "postgresql://127.0.0.1:1/x?password=secret",
            "postgresql://127.0.0.1:1/x does not answer",
        ),
    ],
)
def test_an_unusable_ledger_is_reported_without_its_password(url: str, message: str) -> None:
    with pytest.raises(LedgerError, match=message) as error:
        Ledger(url)
    assert "secret" not in str(error.value)


def test_a_missing_postgresql_driver_is_reported_with_an_install_hint() -> None:
    script = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from persist_assets.ledger.ledger import Ledger; Ledger('postgresql://u:secret@h/x')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert "hint: pip install persist-assets[postgres]" in done.stderr
    assert "LedgerError: the ledger postgresql://u:***@h/x needs a PostgreSQL driver" in done.stderr


@on_sqlite
def test_a_read_only_ledger_is_reported(open_ledger: Open) -> None:
    """It uses SQLite's own switch, because the superuser can write to read-only files."""
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    sa.event.listen(
        ledger.events.database.engine,
        "connect",
        lambda c, _: c.execute("PRAGMA query_only = 1").close(),
    )
    ledger.events.database.engine.dispose()
    with pytest.raises(LedgerError, match="readonly"):
        ledger.builds.record_started(a_build("2"), "t")
    assert ledger.manifests.find_snapshot("dev", "build-a") is not None


@on_sqlite
def test_a_full_disk_is_reported_and_loses_no_published_snapshot(open_ledger: Open) -> None:
    ledger = open_ledger()
    publish(ledger, a_build("1"))
    with ledger.events.database.read() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

    @sa.event.listens_for(ledger.events.database.engine, "connect")
    def small(connection: sqlite3.Connection, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    ledger.events.database.engine.dispose()
    with pytest.raises(LedgerError, match="is full") as error:
        for n in range(2, 2000):
            ledger.builds.record_started(replace(a_build(str(n)), run_id="x" * 60), "t" * 4000)
    assert "free some space" in (error.value.hint or "")
    assert open_ledger().manifests.find_snapshot("dev", "build-a") is not None


@pytest.mark.proves("S7")
def test_a_new_ledger_file_is_private(tmp_path: Path) -> None:
    file = tmp_path / ".persist" / "ledger.db"
    ledger = Ledger(f"sqlite:///{file}")
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in file.parent.glob("ledger.db*")} == {0o600}
    ledger.close()
    file.chmod(0o660)
    Ledger(f"sqlite:///{file}").close()
    assert file.stat().st_mode & 0o777 == 0o660, "who opened it is not overruled"
