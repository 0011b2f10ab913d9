"""A PostgreSQL server that is killed, is down for a while, or disconnects during a commit."""

from __future__ import annotations

import ast
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from conftest import ROOT, wait_for
from test_ledger import a_build, a_snapshot, publish

from persist_assets.core.errors import ConflictError, LedgerError, LedgerUnreachableError
from persist_assets.ledger import connection
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.tables import leases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postgres import Postgres


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Iterator[Postgres]:
    """Yield a server for these tests only, which may kill it."""
    own = type(postgres)()
    yield own
    own.close()


@pytest.fixture
def url(server: Postgres) -> str:
    """Return the URL of an empty schema, with a password that the server does not check."""
    made = server.schema(f"ledger_{uuid.uuid4().hex}")
    return made.replace("postgres@", "postgres:secret@")


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with closing(Ledger(url)) as made:
        yield made


@pytest.fixture
def restarting(server: Postgres, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], None]]:
    """Return a function that kills the server; it restarts as soon as a client retries."""
    threads: list[threading.Thread] = []

    def restart() -> None:
        wait_for(lambda: "action=retry" in caplog.text)
        server.start()

    def kill() -> None:
        server.kill()
        threads.append(threading.Thread(target=restart))
        threads[-1].start()

    yield kill
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_a_database_outage_is_reported_promptly_and_the_ledger_works_afterwards(
    ledger: Ledger, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = publish(ledger, a_build("1"))
    monkeypatch.setattr(connection, "RETRY_S", 1.0)
    server.kill()
    for act in (lambda: ledger.manifests.fetch("dev"), lambda: publish(ledger, a_build("2"))):
        began = time.monotonic()
        with pytest.raises(LedgerUnreachableError, match=r"postgres:\*\*\*@.* not answer") as error:
            act()
        assert time.monotonic() - began < 10
        assert "check that the database is up" in (error.value.hint or "")
        assert "secret" not in str(error.value)
    server.start()
    assert ledger.manifests.fetch("dev") == {"build-a": snapshot}
    publish(ledger, a_build("2"), 1)
    assert [e.idx for e in ledger.events.fetch()] == [1, 2, 3, 4]


def test_a_write_during_an_outage_is_done_once_after_the_restart(
    ledger: Ledger, restarting: Callable[[], None]
) -> None:
    ledger.events.position()
    restarting()
    ledger.builds.record_started(a_build("1"), "t")
    assert [e.kind for e in ledger.events.fetch()] == ["build-started"]


AT_ONCE = {
    "Leases._heartbeat": "heartbeats repeat anyway",
    "EventLog.__init__": "opening",
    "EventLog._migrate": "opening",
    "find_loss": "`persist ledger restore`",
    "prepare": "`persist ledger restore`",
    "copy_rows": "`persist ledger copy` and backups",
    "replace_rows": "`persist ledger restore`",
    "Trims.record_base": "`persist ledger trim`; the next one completes it",
    "Trims._delete_bases": "`persist ledger trim`; the next one completes it",
}
"""The functions whose transactions are not repeated, each with its purpose."""
_OPENING = {"read", "write", "_read", "_write"}


class Transactions(ast.NodeVisitor):
    """The functions of a module that open transactions, each with its decorators."""

    def __init__(self, path: Path) -> None:
        self.opening: dict[str, set[str]] = {}
        self._around: list[ast.ClassDef | ast.FunctionDef] = []
        self.visit(ast.parse(path.read_text()))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._around.append(node)
        self.generic_visit(node)
        self._around.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._around.append(node)
        self.generic_visit(node)
        self._around.pop()

    def visit_Call(self, node: ast.Call) -> None:
        # Transactions have no positional arguments; reads and writes of files have some.
        opens = isinstance(node.func, ast.Attribute) and node.func.attr in _OPENING
        if opens and not node.args:
            name = ".".join(around.name for around in self._around)
            decorators = self._around[-1].decorator_list
            self.opening[name] = {ast.unparse(decorator) for decorator in decorators}
        self.generic_visit(node)


def test_every_transaction_is_retried_after_a_lost_connection() -> None:
    opening: dict[str, set[str]] = {}
    for path in (ROOT / "persist_assets" / "ledger").glob("*.py"):
        of_file = Transactions(path).opening
        assert of_file.keys().isdisjoint(opening)
        opening |= of_file
    at_once = {name for name, decorators in opening.items() if "repeated" not in decorators}
    assert at_once == AT_ONCE.keys(), "without @repeated"
    assert len(opening) - len(at_once) > 100


RECORDS = """
import sys
from datetime import UTC, datetime
from persist_assets.ledger.ledger import Ledger
from persist_assets.core.model.snapshots import Build
ledger, n = Ledger(sys.argv[1]), 0
print("ready", flush=True)
while not ledger.manifests.fetch_environments():  # until there is one
    uid = f"{sys.argv[2]}-{n}"
    build = Build(uid, "a@s", "b", "d", "dev", None, "started", "built", datetime.now(UTC))
    ledger.builds.record_started(build, "t")
    n += 1
print(n)
ledger.close()
"""


@pytest.mark.slow
def test_killing_the_database_under_load_loses_and_repeats_no_writes(
    ledger: Ledger, server: Postgres, url: str
) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RECORDS, url, str(n)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for _ in range(3):
        before = ledger.events.position()
        wait_for(lambda before=before: ledger.events.position() > before + 50)
        server.kill()
        server.start()
    publish(ledger, a_build("1"))
    said = [process.communicate(timeout=60) for process in running]
    assert [p.returncode for p in running] == [0] * 4, said
    n = sum(int(out) for out, _ in said)
    events = ledger.events.fetch(limit=n + 100)
    assert [e.idx for e in events] == list(range(1, n + 3))
    assert len({e.data["build_uid"] for e in events}) == n + 1
    assert len(ledger.builds.fetch()) == n + 1


def in_a_thread(act: Callable[[], object]) -> None:
    """Do what another process might do while this thread writes to the ledger."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(act).result()


def test_a_lost_write_is_not_mistaken_for_a_later_write_of_another_process(
    ledger: Ledger, server: Postgres, url: str
) -> None:
    """After a crash, PostgreSQL reuses the IDs of lost transactions."""
    crashes = [1]

    @sa.event.listens_for(ledger.events.database.engine, "commit")
    def crash(_: sa.Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        if crashes and crashes.pop():
            server.kill()
            server.start()
            in_a_thread(others)

    def others() -> None:
        with closing(Ledger(url)) as other:
            for n in range(3):
                other.builds.record_started(a_build(str(n)), "t")

    ledger.builds.record_started(a_build("9"), "t")
    assert [b.build_uid for b in ledger.builds.fetch(limit=9)].count("9") == 1
    assert [e.idx for e in ledger.events.fetch()] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_lease_survives_an_outage_shorter_than_its_expiry(
    ledger: Ledger,
    server: Postgres,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("persist_assets.ledger.leases.LEASE_S", 4.0)
    build, expiry = a_build("1"), sa.select(leases.c.expires_at)

    def expires_at() -> object:
        with ledger.events.database.read() as reading:
            return reading.scalar(expiry)

    with caplog.at_level(logging.WARNING), ledger.leases.hold("x", "first") as lease:
        ledger.builds.record_started(build, "t")
        before = expires_at()
        server.kill()
        wait_for(lambda: "action=heartbeat" in caplog.text)
        server.start()
        wait_for(lambda: expires_at() != before)
        with (
            closing(Ledger(url)) as other,
            pytest.raises(ConflictError, match="held by first"),
            other.leases.hold("x", "second", wait_s=0.1),
        ):
            pass
        ledger.builds.publish(Publication(build, a_snapshot(build), [], leases=[lease]))
    assert expires_at() is None


# -------------------------------------------------------------------- disconnects during a commit


class Between:
    """A proxy of the server that can cut a connection during a commit."""

    def __init__(self, server: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="persist-between-", dir="/tmp"))
        self.cut: str | None = None
        self.closed = False
        self._server = server
        self._made: list[socket.socket | threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.root / ".s.PGSQL.5432"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            if self.closed:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server / ".s.PGSQL.5432"))
            lost = threading.Event()
            self._made += [client, server]
            for way in (self._ask, self._answer):
                self._made.append(threading.Thread(target=way, args=(client, server, lost)))
                self._made[-1].start()

    def _ask(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        while True:
            asked = _received(client)
            cut = self.cut if asked.endswith(b"COMMIT\0") else None
            if cut is not None:
                self.cut = None
                lost.set()
                self.closed = cut == "for long"
            if not asked or cut == "before" or not _sent(server, asked):
                break
        _end(client, server)

    def _answer(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        while True:
            answer = _received(server)
            if not answer or lost.is_set() or not _sent(client, answer):
                break
        _end(client, server)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        _end(*(m for m in self._made if isinstance(m, socket.socket)))
        for made in reversed(self._made):  # threads before their sockets
            made.join() if isinstance(made, threading.Thread) else made.close()
        shutil.rmtree(self.root)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""


def _sent(end: socket.socket, data: bytes) -> bool:
    """Send data, and return whether it was sent; the other thread may have ended the connection."""
    try:
        end.sendall(data)
    except OSError:
        return False
    return True


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def between(server: Postgres) -> Iterator[Between]:
    made = Between(server.root)
    yield made
    made.close()


@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_unacknowledged_commit_is_retried_only_if_it_did_not_happen(
    cut: str, between: Between, url: str, server: Postgres
) -> None:
    through = url.replace(str(server.root), str(between.root))
    with closing(Ledger(through)) as ledger:
        publish(ledger, a_build("1"))
        between.cut = cut
        ledger.builds.record_started(a_build("2"), "t")  # a repetition would be refused
        assert between.cut is None
        build = a_build("3")
        ledger.builds.record_started(build, "t")
        between.cut = cut
        ledger.builds.publish(Publication(build, a_snapshot(build), []))
        assert between.cut is None
        changes = ledger.manifests.fetch_history("dev")
        events = ledger.events.fetch()
    assert [c.change_id for c in changes] == [5, 2]
    assert [(e.idx, e.data["build_uid"]) for e in events] == [
        (1, "1"),
        (2, "1"),
        (3, "2"),
        (4, "3"),
        (5, "3"),
    ]


def test_a_commit_with_unknown_outcome_is_reported_and_not_retried(
    between: Between, url: str, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY_S", 0.5)
    through = url.replace(str(server.root), str(between.root))
    with closing(Ledger(through)) as ledger:
        between.cut = "for long"
        with pytest.raises(LedgerError, match="was lost during a write") as error:
            ledger.builds.record_started(a_build("1"), "t")
        assert not isinstance(error.value, LedgerUnreachableError)
        assert "may or may not be recorded" in (error.value.hint or "")
        between.closed = False
        assert [e.idx for e in ledger.events.fetch()] == [1]


def test_a_suspended_writer_does_not_block_other_writers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_BUSY_MS", 2000)
    with ExitStack() as stack:
        suspended, other = (stack.enter_context(closing(Ledger(url))) for _ in range(2))
        with pytest.raises(LedgerUnreachableError), suspended.events.database.write() as writing:
            suspended.events.append(writing, "half", {})
            in_a_thread(lambda: other.builds.record_started(a_build("1"), "t"))
            suspended.events.append(writing, "done", {})
        assert [e.kind for e in other.events.fetch()] == ["build-started"]
