"""Followers of the log of events: in order, without a gap, with the rows of all that was built."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import httpx
from deltalake import DeltaTable
from soak.readers import digest_of

from persist_assets.core.errors import PersistError
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from datetime import datetime

    from soak.world import Deployment, World


class Follower:
    """Reads the log of a deployment all the time, in a thread.

    Attributes
    ----------
    digests
        Of each source the digests of the rows of all snapshots that were ever published.
    lost
        Snapshots that were gone before their rows could be read, by source.
    """

    def __init__(self, world: World, deployment: Deployment) -> None:
        self.world, self.deployment = world, deployment
        ledger = Ledger(deployment.ledger_url)
        # Events before that are years old, for trims: those of an old ledger.
        self.began = self.position = ledger.events.position()
        ledger.close()
        self.last_at: datetime | None = None
        self.digests: dict[str, set[str]] = {}
        self.lost: dict[str, int] = {}
        self.problem = ""
        self.n_events = self.n_pages = self.n_errors = self.n_restarts = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._run, self._ask)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        ledger: Ledger | None = None
        while True:
            is_last = self._over.is_set()
            try:
                ledger = ledger or Ledger(self.deployment.ledger_url)
                while self._read(ledger):
                    pass
            except PersistError as error:  # the database is away
                self.n_errors += 1
                self.problem = str(error)
                if is_last:
                    self.world.violate(f"the log of {self.deployment.name} cannot be read: {error}")
            if is_last:
                break
            self._over.wait(0.5)
        if ledger is not None:
            ledger.close()

    def _read(self, ledger: Ledger) -> bool:
        """Read one page, and return whether there may be more."""
        page = ledger.events.fetch(self.position)
        for event in page:
            name = self.deployment.name
            # A follower is never so far behind that a trim overtakes it.
            if event.idx != self.position + 1:
                self.world.violate(f"{name}: event {event.idx} follows {self.position}")
            if self.last_at is not None and event.at < self.last_at:
                self.world.violate(f"{name}: event {event.idx} is older than the one before it")
            self.position, self.last_at = event.idx, event.at
            self.n_events += 1
            if event.kind == "build-succeeded" and "build_uid" in event.data:
                self._look(ledger, event.data["build_uid"])
        return bool(page)

    def _look(self, ledger: Ledger, build_uid: str) -> None:
        (build,) = ledger.builds.fetch(build_uid=build_uid)
        if build.snapshot is None:
            return
        name = build.source_id.partition("@")[0]
        root = self.deployment.settings().table_root(build.snapshot.table)
        try:
            table = DeltaTable(root, version=build.snapshot.version).to_pyarrow_table()
        except Exception:  # collected meanwhile
            self.lost[name] = self.lost.get(name, 0) + 1
            return
        self.digests.setdefault(name, set()).add(digest_of(table.to_pylist()))

    def _ask(self) -> None:
        """Read the same log by the service, whoever kills it."""
        base, since, log = f"http://127.0.0.1:{self.deployment.port}", self.began, ""
        with httpx.Client(base_url=base, trust_env=False, timeout=20) as client:
            while not self._over.is_set():
                query: dict[str, Any] = {"since_idx": since, "environment": "*", "wait": 2}
                if log:
                    query["log_id"] = log
                try:
                    answer = client.get("/api/v1/events", params=query)
                except httpx.HTTPError:
                    self._over.wait(0.5)
                    continue
                if answer.status_code == 409:
                    trimmed = answer.json().get("trimmed_to", 0)
                    if answer.json().get("log_id") != log or trimmed <= since:
                        self._say(f"lost the log after {since}: {answer.text}")
                        return
                    since, self.n_restarts = trimmed, self.n_restarts + 1
                    continue
                if answer.status_code != 200:
                    self._over.wait(0.5)
                    continue
                page = answer.json()
                numbers = [event["idx"] for event in page["events"]]
                if numbers != [*range(since + 1, since + 1 + len(numbers))]:
                    self._say(f"sent {numbers[:5]}… after {since}")
                log, since, self.n_pages = page["log_id"], page["next_idx"], self.n_pages + 1

    def _say(self, what: str) -> None:
        self.world.violate(f"the service of {self.deployment.name} {what}")
