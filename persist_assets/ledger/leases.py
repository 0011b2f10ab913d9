"""Leases: at most one process writes a table. Holders send heartbeats; a silent lease expires."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, LedgerError
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.processes import THIS_MACHINE, is_dead
from persist_assets.ledger.tables import leases

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection, Row

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""The lifetime of a lease without a heartbeat, in seconds."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write something, as long as its token is in the ledger."""

    name: str
    token: str
    holder: str


def require_leases(connection: Connection, held: Sequence[Lease]) -> None:
    """Raise ConflictError if a lease is lost, so that another process may write the table."""
    query = sa.select(leases.c.token).where(leases.c.token.in_([lease.token for lease in held]))
    present = {*connection.scalars(query)}
    if lost := [lease.name for lease in held if lease.token not in present]:
        raise ConflictError(
            f"the lease on {lost[0]} was lost during the build",
            hint="the build sent no heartbeat for too long; try again",
        )


class Leases(Part):
    """The right to write each table."""

    @contextmanager
    def hold(
        self,
        name: str,
        holder: str,
        *,
        wait_s: float = 3600.0,
        over: threading.Event | None = None,
    ) -> Generator[Lease]:
        """Hold the only lease of a name, with heartbeats, until the block ends.

        Parameters
        ----------
        holder
            The name of the holder, shown to processes that wait.
        wait_s
            How long to wait for another holder, in seconds.
        over
            Ends the wait once it is set.

        Raises
        ------
        ConflictError
            Another holder did not release it in time.
        """
        lease = Lease(name, uuid.uuid4().hex, holder)
        deadline = self._clock() + timedelta(seconds=wait_s)
        pause = 0.05
        over = over or threading.Event()
        while not self._take(lease):
            if over.is_set() or self._clock() >= deadline:
                raise ConflictError(
                    f"{name} is held by {self._holder(name)}", hint="wait, or stop it"
                )
            over.wait(pause)
            pause = min(pause * 1.5, 1.0)
        stop, abandoned = threading.Event(), threading.Event()
        arguments = lease, stop, abandoned
        beat = threading.Thread(
            target=self._heartbeat, args=arguments, daemon=True, name=f"lease {name}"
        )
        beat.start()
        try:
            yield lease
        except GeneratorExit:
            # An abandoned block ends wherever it is collected as garbage, even while this thread
            # writes to the ledger. Another thread can wait for the end of that.
            abandoned.set()
            raise
        finally:
            stop.set()
            if not abandoned.is_set():
                beat.join()
                self._give_back(lease)

    @repeated
    def release(self, lease: Lease) -> None:
        """Release a lease: its holder can publish nothing more."""
        with self._write() as connection:
            connection.execute(leases.delete().where(_mine(lease)))

    @repeated
    def is_held(self, name: str) -> bool:
        """Whether a live process holds the lease of a name."""
        with self._read() as connection:
            now = self._now(connection)
            row = connection.execute(sa.select(leases).where(leases.c.name == name)).one_or_none()
        return row is not None and is_live(row, now)

    @repeated
    def fetch(self) -> list[tuple[Lease, bool, bool]]:
        """Return every lease, whether its process is gone, and whether it has expired."""
        with self._read() as connection:
            now = self._now(connection)
            rows = connection.execute(sa.select(leases).order_by(leases.c.name)).all()
        return [
            (Lease(r.name, r.token, r.holder), is_dead(r.host, r.pid), r.expires_at <= now)
            for r in rows
        ]

    @repeated
    def _take(self, lease: Lease) -> bool:
        with self._write() as connection:
            now = self._now(connection)
            row = connection.execute(
                sa.select(leases).where(leases.c.name == lease.name)
            ).one_or_none()
            if row is not None:
                if is_live(row, now):
                    return False
                connection.execute(leases.delete().where(leases.c.name == lease.name))
                self._events.append(
                    connection, "lease-broken", {"name": lease.name, "holder": row.holder}
                )
            connection.execute(
                leases.insert().values(
                    name=lease.name,
                    token=lease.token,
                    holder=lease.holder,
                    host=THIS_MACHINE,
                    pid=os.getpid(),
                    acquired_at=now,
                    expires_at=now + timedelta(seconds=LEASE_S),
                )
            )
        return True

    def _give_back(self, lease: Lease) -> None:
        try:
            self.release(lease)
        except LedgerError as error:  # it expires
            log.warning("action=give-back lease=%s error=%s", lease.name, error.message)

    def _heartbeat(self, lease: Lease, stop: threading.Event, abandoned: threading.Event) -> None:
        pause = LEASE_S / 4
        while not stop.wait(pause):
            try:
                with self._write() as connection:
                    until = self._now(connection) + timedelta(seconds=LEASE_S)
                    connection.execute(leases.update().where(_mine(lease)).values(expires_at=until))
                pause = LEASE_S / 4
            except LedgerError as error:  # publication will notice if the lease is lost
                log.warning("action=heartbeat lease=%s error=%s", lease.name, error.message)
                pause = 1.0
        if abandoned.is_set():
            self._give_back(lease)

    @repeated
    def _holder(self, name: str) -> str:
        with self._read() as connection:
            return (
                connection.scalar(sa.select(leases.c.holder).where(leases.c.name == name))
                or "nobody"
            )


def _mine(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.name == lease.name, leases.c.token == lease.token)


def is_live(row: Row[Any], now: datetime) -> bool:
    """Whether the holder in a row of `leases` may still be at work."""
    return row.expires_at > now and not is_dead(row.host, row.pid)
