"""Processes that hammer one ledger, and what must be true of it afterwards.

A process builds what all others build too, each in an order of its own, rebuilds what others
rebuild, promotes, rolls back, and counts in a file that only leases protect. All that it did it
counts. As a script: `python hammer.py sqlite|postgres SECONDS` measures, and prints JSON.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from persist_assets.core.errors import ConflictError
from persist_assets.core.model.snapshots import Build, Event, ManifestChange, Snapshot
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.connection import Database
from persist_assets.ledger.leases import Lease
from persist_assets.ledger.ledger import Ledger

AT_ONCE = 8
N_HOT = 32
"""How many sources are built again and again."""
BLOCK = 32
"""How many sources each process builds in an order of its own, before the next ones."""
FAILING = 8
"""Of so many sources the first build of one fails."""
TALLY = "tally"


@dataclass(frozen=True)
class Outcome:
    """What processes say they did, and what a reader saw meanwhile."""

    done: Counter[str]
    followed: list[Event]
    seconds: float

    @property
    def n_transactions(self) -> int:
        """How many transactions wrote: taking a lease and giving it back are one each."""
        leased = ("built", "reused", "failed", "rebuilt", "tallied")
        return len(self.followed) + 2 * sum(self.done[kind] for kind in leased)


class Worker:
    """One of the processes."""

    def __init__(self, url: str, number: int, directory: Path) -> None:
        self.ledger, self.number, self.directory = Ledger(url), number, directory
        self.chance = random.Random(number)
        self.done: Counter[str] = Counter()
        self.todo: list[int] = []
        self.n_blocks = 0
        self.known: deque[str] = deque(maxlen=20)

    def work(self, seconds: float) -> None:
        """Do things at random, for so long."""
        acts = (self.build, self.rebuild, self.promote, self.roll_back, self.tally)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.chance.choices(acts, (6, 2, 1, 1, 1))[0]()

    def build(self) -> None:
        """Build a source, unless another one has: all build all, in blocks, each in its order."""
        if not self.todo:
            first = self.n_blocks * BLOCK
            self.todo = self.chance.sample(range(first, first + BLOCK), BLOCK)
            self.n_blocks += 1
        number = self.todo.pop()
        build_id = f"{number:064x}"
        with self.ledger.leases.hold(f"build {build_id}", f"worker {self.number}") as lease:
            present = self.ledger.manifests.find_snapshot("dev", build_id)
            fails = number % FAILING == 0 and not self.ledger.builds.fetch(source_id=build_id)
            if present is not None:
                self.record(build_id, "reused", lease, present)
            else:
                self.record(build_id, "failed" if fails else "built", lease)

    def rebuild(self) -> None:
        """Make the next version of a table that others write too."""
        build_id = f"{self.chance.randrange(N_HOT):f>64x}"
        with self.ledger.leases.hold(f"build {build_id}", f"worker {self.number}") as lease:
            self.record(build_id, "rebuilt", lease)

    def record(
        self, build_id: str, outcome: str, lease: Lease, present: Snapshot | None = None
    ) -> None:
        """Record a build, the lease of which is held."""
        action = "reused" if present is not None else "built"
        now, uid, table = datetime.now(UTC), uuid.uuid4().hex, f"table-{build_id}"
        build = Build(uid, build_id, build_id, "def", "dev", None, "started", action, now)
        self.ledger.builds.record_started(build, table)
        self.done[outcome] += 1
        if outcome == "failed":
            self.ledger.builds.record_failed(build, "it was to fail")
            return
        if present is None:
            pinned = self.ledger.builds.find_pinned_version(table)
            version = 0 if pinned is None else pinned + 1
            present = Snapshot(
                uid, build.source_id, build_id, table, version, (), "c", version, 1, now
            )
        self.ledger.builds.publish(Publication(build, present, [], leases=[lease]))
        self.known.append(build_id)

    def promote(self) -> None:
        """Let prod have some of what dev has."""
        chosen = self.chance.sample(sorted({*self.known}), min(3, len({*self.known})))
        found = {b: self.ledger.manifests.find_snapshot("dev", b) for b in chosen}
        snapshots = {b: s for b, s in found.items() if s is not None}
        if snapshots:
            try:
                self.ledger.manifests.promote(("dev",), "prod", snapshots)
                self.done["promoted"] += 1
            except ConflictError:
                self.done["refused"] += 1

    def roll_back(self) -> None:
        """Put prod back by some changes."""
        history = self.ledger.manifests.fetch_history("prod", limit=5)
        if len(history) > 1:
            to = self.chance.choice(history[1:]).change_id
            try:
                self.ledger.manifests.roll_back("prod", to, expected=history[0].change_id)
                self.done["rolled back"] += 1
            except ConflictError:
                self.done["refused"] += 1

    def tally(self) -> None:
        """Count in a file, in two steps."""
        with self.ledger.leases.hold(TALLY, f"worker {self.number}"):
            path = self.directory / TALLY
            counted = int(path.read_text()) if path.exists() else 0
            path.write_text(str(counted + 1))
            self.done["tallied"] += 1


def start(*arguments: object, n: int = AT_ONCE) -> list[subprocess.Popen[str]]:
    """Start processes of this script, which all wait for `go`."""
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, *(str(a) for a in arguments)]
    running = [
        subprocess.Popen([*command, str(i)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for i in range(n)
    ]
    wait_until_ready(running)
    return running


def wait_until_ready(running: list[subprocess.Popen[str]]) -> None:
    """Wait until each process has printed that it is ready."""
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()


def go(running: list[subprocess.Popen[str]]) -> None:
    """Let processes begin, all at once."""
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def finish(running: list[subprocess.Popen[str]], seconds: float) -> list[dict[str, int]]:
    """Return what processes say in the end, which must come in time."""
    until = time.monotonic() + seconds
    said = [p.communicate(timeout=max(1.0, until - time.monotonic())) for p in running]
    assert all(p.returncode == 0 for p in running), "\n".join(err for _, err in said)
    return [json.loads(out) for out, _ in said]


def hammer(url: str, directory: Path, seconds: float) -> Outcome:
    """Let eight processes work on a ledger, and follow its events meanwhile."""
    ledger = Ledger(url)
    running = start("work", url, directory, seconds)
    began = time.monotonic()
    go(running)
    followed: list[Event] = []
    pause = threading.Event()
    while any(p.poll() is None for p in running):
        assert time.monotonic() < began + seconds + 60, "they do not end: a deadlock?"
        followed += ledger.events.fetch(followed[-1].idx if followed else 0, limit=10_000)
        pause.wait(0.1)
    taken = time.monotonic() - began
    done = sum((Counter(d) for d in finish(running, 10)), Counter[str]())
    followed += ledger.events.fetch(followed[-1].idx if followed else 0, limit=10_000)
    ledger.close()
    return Outcome(done, followed, taken)


def check(url: str, directory: Path, outcome: Outcome) -> None:
    """Assert that nothing was lost, nothing done twice, and that the log tells it as it was."""
    ledger, done = Ledger(url), outcome.done
    n = ledger.events.position()
    events = [e for since in range(0, n, 1000) for e in ledger.events.fetch(since)]
    assert [e.idx for e in events] == list(range(1, n + 1))
    assert outcome.followed == events, "a reader saw them in another order, or not all"
    assert [e.at for e in events] == sorted(e.at for e in events)
    n_started = done["built"] + done["reused"] + done["failed"] + done["rebuilt"]
    assert Counter(e.kind for e in events) == +Counter(
        {
            "build-started": n_started,
            "build-succeeded": n_started - done["failed"],
            "build-failed": done["failed"],
            "promoted": done["promoted"],
            "rolled-back": done["rolled back"],
        }
    )
    builds = ledger.builds.fetch()
    assert len(builds) == n_started
    made: dict[str, list[int]] = {}
    for build in builds:
        if build.state == "succeeded" and build.action == "built":
            assert build.snapshot is not None
            made.setdefault(build.build_id, []).append(build.snapshot.version)
    for build_id, versions in made.items():
        assert sorted(versions) == list(range(len(versions))), "an update was lost"
        assert build_id.startswith("f") or len(versions) == 1, "it was built twice"
    assert sum(len(v) for v in made.values()) == done["built"] + done["rebuilt"]
    assert int((directory / TALLY).read_text()) == done["tallied"]
    replay(ledger, events)
    ledger.close()


def replay(ledger: Ledger, events: list[Event]) -> None:
    """Assert that the changes, one after the other, lead to the manifests that are there."""
    told = {e.idx: e for e in events}
    environments = sorted({e.data["environment"] for e in events})
    changes = [c for e in environments for c in ledger.manifests.fetch_history(e)]
    state: dict[str, dict[str, Snapshot]] = {e: {} for e in environments}
    kept: dict[tuple[str, int], dict[str, Snapshot]] = {(e, 0): {} for e in environments}
    for change in sorted(changes, key=lambda c: c.change_id):
        here = _replayed(change, state)
        if change.kind == "promote":
            there = state[told[change.change_id].data["from"]]
            for move in change.moves:
                assert move.after == there[move.build_id], "not what it was promoted from"
        if change.kind == "rollback":
            to = told[change.change_id].data["to"]
            assert here == kept[change.environment, to], "it was not put back to what it was"
        if change.environment == "prod":
            kept[change.environment, change.change_id] = dict(here)
    for environment, snapshots in state.items():
        assert ledger.manifests.fetch(environment) == snapshots


def _replayed(change: ManifestChange, state: dict[str, dict[str, Snapshot]]) -> dict[str, Snapshot]:
    here = state[change.environment]
    for move in change.moves:
        assert here.pop(move.build_id, None) == move.before, "a change knew another state"
        if move.after is not None:
            here[move.build_id] = move.after
    return here


# -------------------------------------------------------------------------------------- as a script


def bare(url: str, seconds: float) -> int:
    """Return how many times a counter was raised and a row added, in one transaction each."""
    database, n = Database(url), 0
    engine, until = database.engine, time.monotonic() + seconds
    connection = engine.raw_connection()
    cursor = connection.cursor()
    begin = "BEGIN" if database.is_postgres else "BEGIN IMMEDIATE"
    if database.is_postgres:
        connection.dbapi_connection.autocommit = True  # type: ignore[union-attr]
    while time.monotonic() < until:
        cursor.execute(begin)
        cursor.execute("UPDATE bare_counter SET value = value + 1 RETURNING value")
        cursor.execute(f"INSERT INTO bare_events VALUES ({cursor.fetchone()[0]}, '{'x' * 200}')")
        cursor.execute("COMMIT")
        n += 1
    connection.close()
    database.close()
    return n


def measured(kind: str, seconds: float) -> dict[str, float]:
    """Return events and transactions of a second, and those of bare transactions."""
    with tempfile.TemporaryDirectory() as temporary:
        directory, server = Path(temporary), None
        url = floor = f"sqlite:///{directory}/ledger.db"
        if kind == "postgres":
            from postgres import Postgres

            server = Postgres()
            url, floor = server.schema("ledger"), server.schema("floor")
        else:
            floor = f"sqlite:///{directory}/floor.db"
        try:
            outcome = hammer(url, directory, seconds)
            check(url, directory, outcome)
            database = Database(floor)
            with database.engine.begin() as connection:
                connection.exec_driver_sql("CREATE TABLE bare_counter (value BIGINT)")
                connection.exec_driver_sql("CREATE TABLE bare_events (idx BIGINT, data TEXT)")
                connection.exec_driver_sql("INSERT INTO bare_counter VALUES (0)")
            database.close()
            running = start("bare", floor, directory, min(seconds, 10))
            go(running)
            n_bare = sum(said["n"] for said in finish(running, seconds + 60))
        finally:
            if server is not None:
                server.close()
    return {
        "events": len(outcome.followed) / outcome.seconds,
        "transactions": outcome.n_transactions / outcome.seconds,
        "bare": n_bare / min(seconds, 10),
        **outcome.done,
    }


def main() -> None:
    """Be one of the processes, or measure."""
    if len(sys.argv) == 3:
        print(json.dumps(measured(sys.argv[1], float(sys.argv[2]))))
        return
    what, url, directory, seconds, number = sys.argv[1:]
    worker = Worker(url, int(number), Path(directory)) if what == "work" else None
    print("ready", flush=True)
    sys.stdin.readline()
    if worker is None:
        print(json.dumps({"n": bare(url, float(seconds))}))
    else:
        worker.work(float(seconds))
        worker.ledger.close()
        print(json.dumps(worker.done))


if __name__ == "__main__":
    main()
