"""A trim archives and deletes old events of the ledger, and changes nothing else."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from conftest import ROOT
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_ledger import Open, a_build, a_snapshot
from test_ledger_copy import contents, fill

from persist_assets.core.errors import ConflictError, StorageError
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import ACTIVE, Blame, Evaluation, Want
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.tables import base_rows, events
from persist_assets.ledger.taints import Taint
from persist_assets.ledger.trims import LEASE
from persist_assets.operations import trimming
from persist_assets.operations.trimming import Trimmed, trim

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import Event
    from persist_assets.core.settings.values import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
OF_THE_LOG = {"events", "base_rows", "counters", "leases", "writers", "ledger_version"}
HOUR = 3600


class History:
    """Random transitions of a ledger, deterministic for a seed; each takes an hour."""

    def __init__(self, url: str, seed: int) -> None:
        self.random, self.hours, self.n = random.Random(seed), 0, 0
        self.ledger = Ledger(url, clock=self.now)
        self.going: list[Any] = []

    def now(self) -> datetime:
        return START + timedelta(hours=self.hours)

    def step(self) -> None:
        self.hours += 1
        self.n += 1
        acts = [self.build, self.build, self.start, self.want, self.want, self.decide, self.end]
        acts += [self.taint, self.promote, self.roll_back, self.sync, self.cancel, self.miss]
        act = self.random.choice(acts)
        with suppress(ConflictError):
            act()

    def _refs(self) -> list[str]:
        return [f"a/{self.random.randrange(4)}"]

    def build(self) -> None:
        self.start()
        build = self.going.pop()
        snapshot = a_snapshot(build, self.n)
        self.ledger.builds.publish(Publication(build, snapshot, [], refs=self._refs()))

    def start(self) -> None:
        build = a_build(str(self.n), self.random.choice("ab"), f"run{self.n}")
        own = Want(f"own{self.n}", *self._refs(), "dev", START, state="building", request_id=None)
        own = [] if self.random.random() < 0.5 else [own]
        self.ledger.builds.record_started(build, "t", wants=own)
        self.going.append(build)

    def end(self) -> None:
        if self.going:
            self.ledger.builds.record_failed(self.going.pop(0), "no")

    def want(self) -> None:
        self.ledger.wants.create([Want(f"w{self.n}", *self._refs(), "dev", START, sla_s=HOUR)])

    def cancel(self) -> None:
        wants = self.ledger.wants.fetch("dev", states=ACTIVE)
        if wants:
            self.ledger.wants.cancel(self.random.choice(wants).want_id, by="somebody")

    def miss(self) -> None:
        late = self.ledger.wants.fetch_late("dev", self.now())
        self.ledger.wants.record_misses([(w, Blame("a", "", START, "queued")) for w in late])

    def decide(self) -> None:
        """Request wanted partitions, or advance an open request."""
        wanted = [w for w in self.ledger.wants.fetch("dev", states=("waiting", "failing"))]
        open_requests = self.ledger.requests.fetch("dev", is_open=True)
        if wanted and (not open_requests or self.random.random() < 0.5):
            chosen = self.random.sample(wanted, min(len(wanted), 3))
            refs = tuple(dict.fromkeys(w.partition_ref for w in chosen))
            decided = Evaluation(refs, tuple(w.want_id for w in chosen))
            self.ledger.requests.record_evaluation("dev", "want", decided)
        elif open_requests:
            request = self.random.choice(open_requests)
            if request.state == "requested":
                self.ledger.requests.start(request.request_id, f"run{self.n}")
            elif self.random.random() < 0.5:
                culprits = self.random.sample(request.partitions, self.random.randrange(2))
                self.ledger.requests.fail(request.request_id, "no", culprits)
            else:
                self.ledger.builds.publish_together([], request_id=request.request_id)

    def taint(self) -> None:
        current = self.ledger.manifests.fetch("dev")
        if current:
            snapshot = current[self.random.choice(sorted(current))]
            taint = Taint({self._refs()[0]: snapshot.build_id}, {snapshot.build_uid: [""]})
            self.ledger.taints.record(["dev"], lambda *_: taint, by="somebody")

    def promote(self) -> None:
        current = self.ledger.manifests.fetch("dev")
        self.ledger.manifests.promote(("dev",), "prod", current)

    def roll_back(self) -> None:
        environment = self.random.choice(("dev", "prod"))
        changes = self.ledger.manifests.fetch_history(environment)
        if len(changes) > 1:
            to = self.random.choice(changes[1:]).change_id  # however long ago
            self.ledger.manifests.roll_back(environment, to, expected=changes[0].change_id)

    def sync(self) -> None:
        cursor = self.ledger.upstreams.find_cursor("dev", "users")
        state = self.random.choice(("available", "failed", "tainted"))
        states = [{"partition_ref": ref, "state": state} for ref in self._refs()]
        self.ledger.upstreams.record_synced("dev", "users", str(self.n), states, expected=cursor)


def folded(log: list[Event]) -> dict[tuple[str, str], str]:
    """Return the states of partitions that follow from reading the whole log."""
    states: dict[tuple[str, str], str] = {}
    for event in log:
        name, _, state = event.kind.partition("-")
        if name == "partition":
            place = event.data["environment"], event.data["partition_ref"]
            if state != "failed" or place not in states:
                states[place] = state
    return states


def everything(ledger: Ledger) -> list[Event]:
    return ledger.events.fetch(0, limit=10**6)


def of_the_project(directory: Path) -> Settings:
    directory.mkdir(parents=True, exist_ok=True)
    return load_settings(directory, environ={})


def state(url: str) -> dict[str, list[Any]]:
    return {name: rows for name, rows in contents(url).items() if name not in OF_THE_LOG}


def archived(trimmed: Trimmed) -> list[int]:
    files = sorted(Path(trimmed.archive).glob("*.parquet"))
    return sorted(i for f in files for i in pq.read_table(f)["idx"].to_pylist())


def check_random_history(url: str, twin: str, directory: Path, seed: int, parts: list[int]) -> None:
    """Apply the same transitions to two ledgers, trim one of them, and compare them."""
    projects = of_the_project(directory)
    one, other = History(url, seed), History(twin, seed)
    draw = random.Random(seed)
    for n_steps in parts:
        for history in (one, other):
            uuids = random.Random(seed + history.n)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(uuid, "uuid4", lambda r=uuids: uuid.UUID(int=r.getrandbits(128)))
                for _ in range(n_steps):
                    history.step()
        before, log = state(url), everything(one.ledger)
        older_s = draw.randrange(one.hours + 1) * HOUR
        trimmed = trim(projects, one.ledger, older_s, clock=one.now)
        if trimmed.deleted:
            other.ledger.trims.record_end(trimmed.upto, trimmed.deleted, "nowhere")
        left = {e.idx for e in everything(one.ledger)}
        gone = [e for e in log if e.idx not in left]
        assert len(gone) == trimmed.deleted
        assert all(e.at < one.now() - timedelta(seconds=older_s) for e in gone)
        assert one.ledger.events.trimmed_to() >= max((e.idx for e in gone), default=0)
        assert {e.idx for e in gone} <= {*archived(trimmed)}
        assert state(url) == before
        assert folded(everything(one.ledger)) == folded(everything(other.ledger))
        one.ledger.events.rebuild_projections()
        assert state(url) == before
    assert state(url) == state(twin)
    assert one.ledger.manifests.fetch_history("prod") == other.ledger.manifests.fetch_history(
        "prod"
    )
    one.ledger.close()
    other.ledger.close()


@pytest.mark.proves("Z1")
@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32), parts=st.lists(st.integers(1, 40), min_size=1, max_size=3))
@pytest.mark.slow
def test_a_trimmed_ledger_behaves_like_one_that_was_never_trimmed(
    tmp_path: Path, seed: int, parts: list[int]
) -> None:
    directory = tmp_path / uuid.uuid4().hex
    directory.mkdir()
    urls = (f"sqlite:///{directory / name}.db" for name in ("one", "other"))
    check_random_history(*urls, directory, seed, parts)


@pytest.mark.proves("Z1")
def test_a_trim_changes_only_the_event_log_on_both_databases(
    ledger_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    twin = f"sqlite:///{tmp_path / 'twin.db'}"
    check_random_history(ledger_url, twin, tmp_path, 11, [60])
    ledger = Ledger(ledger_url)
    ledger.events.database.vacuum()
    ledger.close()


@pytest.mark.proves("Z1")
def test_an_archive_has_exactly_the_deleted_events(open_ledger: Open, tmp_path: Path) -> None:
    ledger = open_ledger(clock=lambda: START)
    fill(ledger)
    with ledger.events.database.read() as connection:
        query = sa.select(*(c for c in events.columns if c is not events.c.data))
        text = sa.cast(events.c.data, sa.Text).label("data")
        rows = {r.idx: dict(r._mapping) for r in connection.execute(query.add_columns(text))}
    later = START + timedelta(hours=2)
    project = of_the_project(tmp_path)
    only = trim(project, ledger, HOUR, clock=lambda: later, dry_run=True)
    assert (only.files, ledger.events.trimmed_to()) == ((), 0)
    trimmed = trim(project, ledger, HOUR, clock=lambda: later, archive=str(tmp_path / "old"))
    assert trimmed.deleted == only.deleted > 0 and trimmed.still_needed == only.still_needed > 0
    assert Path(trimmed.archive).parent == tmp_path / "old"
    (name,) = trimmed.files
    written = {r["idx"]: r for r in pq.read_table(Path(trimmed.archive, name)).to_pylist()}
    left = {e.idx for e in everything(ledger)}
    assert written == {idx: row for idx, row in rows.items() if idx not in left}
    (end,) = [e for e in everything(ledger) if e.kind == "events-trimmed"]
    assert end.data == {
        "upto": trimmed.upto,
        "archived": trimmed.deleted,
        "archive": str(tmp_path / "old"),
    }
    again = trim(project, ledger, HOUR, clock=lambda: later, archive=str(tmp_path / "old"))
    assert (again.deleted, again.files) == (0, ())


@pytest.mark.proves("Z1")
def test_events_of_unfinished_work_are_not_deleted(open_ledger: Open, tmp_path: Path) -> None:
    ledger = open_ledger(clock=lambda: START)
    fill(ledger)
    trim(of_the_project(tmp_path), ledger, HOUR, clock=lambda: START + timedelta(days=9))
    left = everything(ledger)
    kinds = [e.kind for e in left]
    assert {"want-created", "build-requested", "rolled-back", "promoted"} <= {*kinds}
    assert [e.data["build_uid"] for e in left if e.kind == "build-started"] == ["4"]
    assert "build-succeeded" not in kinds


@pytest.mark.proves("Z1")
def test_events_are_not_deleted_if_archiving_them_fails(
    open_ledger: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(clock=lambda: START)
    fill(ledger)
    log, project = everything(ledger), of_the_project(tmp_path)

    def later() -> datetime:
        return START + timedelta(days=9)

    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError):
        trim(project, ledger, HOUR, clock=later, archive=str(tmp_path / "file"))
    assert everything(ledger) == log

    def broken(directory: str, name: str, table: Any) -> None:
        original(directory, name, table.slice(1))

    original = trimming._write_file
    monkeypatch.setattr(trimming, "_write_file", broken)
    with pytest.raises(StorageError, match="does not have the rows that were written"):
        trim(project, ledger, HOUR, clock=later)
    assert everything(ledger) == log
    assert ledger.events.trimmed_to() == 0


@pytest.mark.proves("Z1")
def test_concurrent_trims_are_rejected(open_ledger: Open, tmp_path: Path) -> None:
    ledger = open_ledger()
    with ledger.leases.hold(LEASE, "somebody"), pytest.raises(ConflictError, match="somebody"):
        trim(of_the_project(tmp_path), ledger, HOUR)


_KILLED = """
import os, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger import trims
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations import trimming
url, root, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
trimming.AT_ONCE = 40
trims._DELETED_AT_ONCE = 15
ledger = Ledger(url, clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
with ledger.events.database.engine.connect() as connection:
    seen = []
def count(*_):
    seen.append(1)
    if len(seen) == n:
        os._exit(9)
from sqlalchemy import event
event.listen(ledger.events.database.engine, "commit", count)
later = datetime(2026, 6, 1, tzinfo=UTC)
trimming.trim(load_settings(Path(root), environ={}), ledger, 3600, clock=lambda: later)
"""


@pytest.mark.proves("Z1")
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 5, 9, 14])
def test_a_trim_that_is_killed_is_completed_by_the_next_one(n: int, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    history = History(url, 3)
    for _ in range(80):
        history.step()
    before, log, ledger = state(url), everything(history.ledger), history.ledger
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, url, str(tmp_path), str(n)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 9, done.stderr
    left = {e.idx for e in everything(ledger)}
    assert ledger.events.trimmed_to() >= max((e.idx for e in log if e.idx not in left), default=0)
    ledger.events.rebuild_projections()
    assert state(url) == before
    with ledger.events.database.write() as connection:  # the lease of the dead process
        connection.exec_driver_sql("DELETE FROM leases")
    later = datetime(2026, 6, 1, tzinfo=UTC)
    trimmed = trim(of_the_project(tmp_path), ledger, HOUR, clock=lambda: later)
    left = {e.idx for e in everything(ledger)}
    gone = [e.idx for e in log if e.idx not in left]
    assert archived(trimmed) == gone  # each event once
    assert state(url) == before
    with ledger.events.database.read() as connection:
        bases = connection.scalars(sa.select(base_rows.c.position).distinct()).all()
    assert len(bases) == 1
    ledger.close()


@pytest.mark.proves("Z1")
def test_builds_succeed_while_the_event_log_is_trimmed(
    open_ledger: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trimming, "AT_ONCE", 50)
    ledger = open_ledger(clock=lambda: START)
    fill(ledger)
    refs = [("partition-available", {"environment": "dev", "partition_ref": "b"})] * 500
    with ledger.events.database.write() as connection:
        ledger.events.append_all(connection, refs)
    seen: list[int] = []

    def build(done: int, last: int) -> None:
        builder = threading.Thread(target=publish_one, args=(open_ledger(), len(seen) + 100))
        builder.start()
        builder.join()
        seen.append(done)

    def publish_one(other: Ledger, number: int) -> None:
        one = a_build(str(number))
        other.builds.record_started(one, "t")
        other.builds.publish(Publication(one, a_snapshot(one, number), [], refs=["c"]))

    later = START + timedelta(hours=2)
    trimmed = trim(of_the_project(tmp_path), ledger, HOUR, clock=lambda: later, tell=build)
    assert trimmed.deleted > 450 and len(seen) > 9
    assert len(ledger.builds.fetch(run_id="run")) >= len(seen)
    before = ledger.partitions.fetch("dev")
    ledger.events.rebuild_projections()
    assert ledger.partitions.fetch("dev") == before
