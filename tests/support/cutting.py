"""Two graphs over a network that is cut, whose processes are killed: what one tells the other has.

    writer ─► ledger of one ◄─ persist serve ◄─ Network ◄─ followers ─► ledger of the other

As a script: `write LEDGER N SECONDS SEED` lets so many partitions become available meanwhile,
`follow ROOT` reads other graphs again and again, until it is killed.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.core.model.snapshots import Event
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Process = subprocess.Popen[str]

GRAPH, FOLLOWED = "there", "data/*"
PAUSE_S = 0.05
"""How long a follower rests between two looks: more often the service would not answer it."""
DYING_S = 0.05
"""So soon after an answer came through followers are killed."""
FATES = ("whole", "whole", "whole", "no request", "reset", "half", "stalled", "late")
"""What becomes of connections, dealt like cards; see `Network`."""


@dataclass(frozen=True)
class Outcome:
    """What was done to two graphs, and what became of it.

    Attributes
    ----------
    sent, received
        The partitions that became available in one, and those that the other recorded, in order.
    kills, cuts
        How often each kind of process was killed, and what became of connections.
    before
        How many were received before the network was whole again.
    catch_up_s
        How long the rest took.
    n_synced
        In how many events.
    problems
        What was recorded as wrong with the other graph, how often each.
    defects
        What went wrong by itself: processes that ended, and what they said.
    """

    sent: list[str]
    received: list[str]
    kills: Counter[str]
    cuts: Counter[str]
    before: int
    catch_up_s: float
    n_synced: int
    problems: Counter[str]
    defects: list[str]

    def __str__(self) -> str:
        """Tell the figures."""
        cuts = ", ".join(f"{n} {what}" for what, n in sorted(self.cuts.items()))
        kills = ", ".join(f"{n} of the {what}" for what, n in sorted(self.kills.items()))
        return (
            f"{len(self.received):,} of {len(self.sent):,} events received by {self.n_synced} "
            f"transactions, {self.before:,} of them before the network was whole, the rest "
            f"{self.catch_up_s:.1f} s later; kills: {kills}; connections: {cuts}; "
            f"{len(self.problems)} problems recorded {self.problems.total()} times"
        )


class Network:
    """A proxy on loopback that loses what goes through it.

    A connection is ``whole``; or its request is cut (``no request``), or its answer: ``reset``
    within it, ended within it as if that were all (``half``), ``stalled`` within it until the
    other side gives up or it is reset, or the rest of it comes ``late``. From time to time it
    refuses all.

    Parameters
    ----------
    stall_s
        How long an answer stalls on average, in seconds.

    Attributes
    ----------
    target
        The port of the service.
    answered
        Set when a whole answer has gone through: who asked is about to record it.
    has_cut
        Set when it has cut a connection.
    """

    def __init__(self, seed: str, stall_s: float) -> None:
        self.cuts, self.target = Counter[str](), 0
        self.answered, self.has_cut = threading.Event(), threading.Event()
        self._chance, self._stall_s = random.Random(seed), stall_s
        self._deck = [self._chance.choice(FATES[3:])]  # at least one is cut, however slow it is
        self._calm, self._lock = threading.Event(), threading.Lock()
        self._listening = self._listen(0)
        self.port = self._listening.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def refuse(self, seconds: float) -> None:
        """Refuse connections for so long, unless it calms down before."""
        with self._lock:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._accepting.join()
            self._listening.close()
        self.cuts["refused for a time"] += 1
        self._calm.wait(seconds)
        with self._lock:
            while True:  # somebody's connection may have the port for a moment
                with suppress(OSError):
                    self._listening = self._listen(self.port)
                    break
                threading.Event().wait(0.05)
            self._accepting = threading.Thread(target=self._accept, daemon=True)
            self._accepting.start()

    def calm(self) -> None:
        """Let everything through from now on."""
        self._calm.set()

    def close(self) -> None:
        """Listen no more."""
        self.calm()
        with self._lock, suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
            self._accepting.join()
            self._listening.close()

    def _listen(self, port: int) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", port))
            made.listen(64)
        except OSError:
            made.close()
            raise
        return made

    def _accept(self) -> None:
        listening = self._listening
        with suppress(OSError):  # it was shut down
            while True:
                client = listening.accept()[0]
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _deal(self) -> tuple[str, float, float]:
        """Return what becomes of a connection, after which part, and for how long."""
        with self._lock:
            if self._calm.is_set():
                return "whole", 1.0, 0.0
            if not self._deck:
                self._deck = self._chance.sample(FATES, len(FATES))
            part, pause = self._chance.random(), self._chance.expovariate(1 / self._stall_s)
            return self._deck.pop(), part, pause

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                if not (some := client.recv(65_536)):
                    return
                asked += some
            try:
                server = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                self._count("service gone")
                _reset(client)
                return
            fate, part, pause_s = self._deal()
            with server:
                if fate == "no request":
                    server.sendall(asked[: int(len(asked) * part)])
                    _reset(server)
                    _reset(client)
                else:
                    server.sendall(asked)
                    answer = b""
                    server.settimeout(60)
                    with suppress(OSError):  # it was killed: this is all there is
                        while some := server.recv(65_536):
                            answer += some
                    self._answer(client, answer, fate, int(len(answer) * part), pause_s)
                self._count(fate)

    def _answer(
        self, client: socket.socket, answer: bytes, fate: str, n: int, pause_s: float
    ) -> None:
        if fate == "whole":
            client.sendall(answer)
            self.answered.set()
            return
        client.sendall(answer[:n])
        if fate in ("stalled", "late"):
            self._calm.wait(pause_s)
        if fate == "late":
            client.sendall(answer[n:])
        elif fate != "half":
            _reset(client)

    def _count(self, what: str) -> None:
        with self._lock:
            self.cuts[what] += 1
        if what in FATES[3:]:
            self.has_cut.set()


def _reset(connection: socket.socket) -> None:
    """Let the other side hear that a connection is broken, instead of ended."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def cut_and_compare(
    sender: Path,
    receiver: Path,
    *,
    n_events: int,
    seconds: float,
    seed: int,
    life_s: float,
    n_followers: int = 1,
    catch_up_s: float = 60.0,
) -> Outcome:
    """Kill and cut for so long while one graph tells another of events, and say what came of it.

    Parameters
    ----------
    sender, receiver
        The roots of two projects; the second one is told of the first.
    seconds
        How long that lasts, from when everything runs.
    life_s
        How long a follower lives on average, and the network until it refuses all; the service,
        which takes longer to come back, lives twice as long. Half of `seconds` at most, so that
        each is killed.
    catch_up_s
        How long the rest may take when everything is whole again.
    """
    network, kills, defects = Network(f"{seed} network", life_s / 3), list[str](), list[str]()
    with (receiver / "persist.toml").open("a") as settings:
        settings.write(
            f'\n[upstream.{GRAPH}]\nurl = "http://127.0.0.1:{network.port}"\n'
            f'patterns = ["{FOLLOWED}"]\ntoken_env = "PERSIST_TOKEN_THERE"\n'
        )
    over, compared = threading.Event(), threading.Event()
    runs = threading.Barrier(2 + n_followers)

    def span(chance: random.Random, average_s: float = life_s) -> float:
        return min(0.1 + chance.expovariate(1 / average_s), seconds / 2)

    def live(
        what: str, name: str, start: Callable[[], AbstractContextManager[Process]], average_s: float
    ) -> None:
        """Run a process until it is killed, again and again."""
        chance, is_first = random.Random(f"{seed} {name}"), True
        while not compared.is_set():
            with start() as process:
                if is_first:
                    runs.wait(60)
                is_first = False
                is_over = over.wait(span(chance, average_s))
                if what == "follower":  # dies while it records, if it can be
                    network.answered.clear()
                    network.answered.wait(0.5)
                    threading.Event().wait(chance.uniform(0, DYING_S))
                is_over = is_over and compared.wait()
                if process.poll() is not None:
                    defects.append(f"a {what} ended by itself: {process.returncode}")
                elif not is_over:
                    kills.append(what)
                process.kill()
                process.wait()

    def cut() -> None:
        chance = random.Random(f"{seed} cuts")
        while not over.wait(span(chance)):
            network.refuse(span(chance, life_s / 3))

    def begin_service() -> AbstractContextManager[Process]:
        return _service(sender, network, defects)

    def begin_follower() -> AbstractContextManager[Process]:
        return _follower(receiver, defects)

    theirs, ours = (Ledger(load_settings(root).ledger) for root in (sender, receiver))
    with ThreadPoolExecutor(2 + n_followers) as pool:
        names = [f"follower {n}" for n in range(n_followers)]
        running = [pool.submit(live, "follower", name, begin_follower, life_s) for name in names]
        running.append(pool.submit(live, "service", "service", begin_service, life_s * 2))
        try:
            runs.wait(60)
            running.append(pool.submit(cut))
            url = load_settings(sender).ledger
            writer = _script("write", url, n_events, seconds, seed)
            over.wait(seconds)
            network.has_cut.wait(60)  # a slow machine may not have connected yet
            before = len(_received(ours))
            over.set()
            network.calm()
            said = writer.communicate(timeout=60)[1]
            assert writer.returncode == 0, said
            began = time.monotonic()
            while len(_received(ours)) < n_events and time.monotonic() - began < catch_up_s:
                compared.wait(0.05)
            took = time.monotonic() - began
        finally:
            over.set()
            compared.set()
            network.close()
        for one in running:
            one.result(60)
    sent = [e.data["partition_ref"] for e in _events(theirs, "partition-available")]
    synced = _events(ours, "upstream-synced")
    cursors = [json.loads(e.data["cursor"]).get("idx", 0) for e in synced]
    if cursors != sorted(cursors):
        defects.append(f"the cursor went back: {cursors}")
    problems = Counter(e.data["problem"] for e in synced if e.data["problem"])
    received = _received(ours)
    for ledger in (theirs, ours):
        ledger.close()
    return Outcome(
        [ref for ref in sent if ref.count("/") == 1],
        received,
        Counter(kills),
        network.cuts,
        before,
        took,
        len(synced),
        problems,
        defects,
    )


def check(outcome: Outcome, n_events: int) -> None:
    """Assert that everything was received once and in order, and that all of it was tried."""
    assert not outcome.defects, outcome.defects
    assert len(outcome.sent) == n_events
    lost = [*(Counter(outcome.sent) - Counter(outcome.received))]
    doubled = [*(Counter(outcome.received) - Counter(outcome.sent))]
    assert (lost, doubled) == ([], [])
    assert outcome.received == outcome.sent, "not in order"
    assert not [p for p in outcome.problems if "was reset" in p], outcome.problems
    assert set(outcome.kills) == {"service", "follower"}
    assert outcome.cuts["refused for a time"] and {*outcome.cuts} & {*FATES[3:]}, outcome.cuts


def _events(ledger: Ledger, kind: str) -> list[Event]:
    """Return all events of a kind, in order."""
    found, since = list[Event](), 0
    while True:
        some, following = ledger.events.search(since, kinds=[kind])
        found += some
        if following == since:
            return found
        since = following


def _received(ledger: Ledger) -> list[str]:
    """Return what became available elsewhere, each time that it was recorded."""
    return [
        told["partition_ref"]
        for event in _events(ledger, "upstream-synced")
        for told in event.data["partitions"]
        if told["state"] == "available"
    ]


@contextmanager
def _service(root: Path, network: Network, defects: list[str]) -> Iterator[Process]:
    from serving import TOKENS, serving

    with serving(root, env={"PERSIST_TOKENS": TOKENS}) as served:
        network.target = int(served.url.rpartition(":")[2])
        yield served.process
    said = (root / "serve.log").read_text()
    if "Traceback" in said:
        defects.append(said[-3000:])


@contextmanager
def _follower(root: Path, defects: list[str]) -> Iterator[Process]:
    process = _script("follow", root)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        said = process.communicate()[1]
        if "Traceback" in said:
            defects.append(said[-3000:])


def _script(*arguments: object) -> Process:
    from conftest import ROOT
    from serving import READ

    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
            "PERSIST_TOKEN_THERE": READ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write(url: str, n: int, seconds: float, seed: str) -> None:
    """Let so many partitions become available, and others that nobody follows."""
    ledger, chance, began, done = Ledger(url), random.Random(f"{seed} writer"), time.monotonic(), 0
    while done < n:
        due = min(n, int(n * (time.monotonic() - began) / seconds) + 1)
        while done < due:
            some = range(done, min(due, done + chance.randint(1, 40)))
            refs = [f"{FOLLOWED[:-1]}{number:06}" for number in some]
            refs.insert(chance.randrange(len(refs) + 1), f"other/things/{done}")
            with ledger.events.database.write() as connection:
                for ref in refs:
                    data = {"partition_ref": ref, "environment": "dev"}
                    ledger.events.append(connection, "partition-available", data)
            done = some.stop
        threading.Event().wait(0.01)
    ledger.close()


def follow(root: str) -> None:
    """Read other graphs until it is killed."""
    from persist_assets.building.observe import Observer
    from persist_assets.compiler.load import load_project, require
    from persist_assets.wants.upstreams import sync_all

    settings = load_settings(Path(root))
    project, ledger = require(load_project(settings)), Ledger(settings.ledger)
    observer = Observer(settings, project, ledger)
    print("ready", flush=True)
    while True:
        sync_all(observer)
        threading.Event().wait(PAUSE_S)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    else:
        follow(sys.argv[2])
