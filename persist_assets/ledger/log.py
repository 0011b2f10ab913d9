"""The log that everything rests on: events, appended in the transactions whose facts they are.

The invariant: positions have no gaps, and become visible in their order.
"""

from __future__ import annotations

import functools
import logging
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.model.snapshots import Event
from persist_assets.ledger.connection import Database
from persist_assets.ledger.migrations import VERSION, migrate, version_of
from persist_assets.ledger.projections import apply
from persist_assets.ledger.tables import counters, events, ledger_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path
    from typing import Concatenate, ParamSpec, TypeVar

    from sqlalchemy.engine import Connection, Row

    Given = ParamSpec("Given")
    Result = TypeVar("Result")
    Log = TypeVar("Log", bound="EventLog")

log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


def repeated(
    method: Callable[Concatenate[Log, Given], Result],
) -> Callable[Concatenate[Log, Given], Result]:
    """Make a method, which is one transaction, one that survives when the database goes away.

    It is done again as a whole if it did not take place.
    """

    @functools.wraps(method)
    def run(ledger: Log, *args: Given.args, **values: Given.kwargs) -> Result:
        return ledger._database.repeat(lambda: method(ledger, *args, **values))  # pyright: ignore[reportPrivateUsage]

    return run


class EventLog:
    """A connection to a ledger, safe to share between threads.

    Parameters
    ----------
    url
        SQLAlchemy URL. A SQLite file is created with its directory.
    clock
        Returns the present instant, aware. On PostgreSQL leases go by the database's clock, so
        that those of several machines need not agree.

    Attributes
    ----------
    found
        The version of the ledger when it was opened; 0 if there was none.
    backup
        The file that the ledger was copied to before it was brought up to date, if it was here.

    Raises
    ------
    LedgerError
        It cannot be opened.
    LedgerTooNewError
        A newer release wrote it.
    LedgerUnreachableError
        Its database does not answer. An open one waits for its database to come back
        (`connection.RETRY_S`) before a method raises this.
    """

    def __init__(self, url: str, *, clock: Callable[[], datetime] = _now) -> None:
        self._clock = clock
        self._database = Database(url)
        self._read, self._write = self._database.read, self._database.write
        self.backup: Path | None = None
        try:
            with self._read() as connection:
                self.found = version_of(connection)
            if self.found != VERSION:
                with self._write(migrating=True) as connection:
                    before = version_of(connection)  # others may have been first
                    if 0 < before < VERSION:
                        self.backup = self._database.back_up(connection, before)
                    try:
                        self.found = migrate(connection)
                    except BaseException:
                        if self.backup is not None:  # nothing was changed
                            self.backup.unlink(missing_ok=True)
                        raise
            if self.backup is not None:
                told = (self._database.shown, self.found, VERSION, self.backup)
                log.warning("action=migrate ledger=%s from=%d to=%d backup=%s", *told)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give back every connection."""
        self._database.close()

    def _append(self, connection: Connection, kind: str, data: Mapping[str, Any]) -> int:
        """Append an event within a transaction; return its position."""
        (idx,) = self._append_all(connection, [(kind, data)])
        return idx

    def _append_all(
        self, connection: Connection, told: Collection[tuple[str, Mapping[str, Any]]]
    ) -> range:
        """Append events, each a kind and its data, in order; return their positions."""
        n = len(told)
        if not n:
            return range(0)
        last = connection.execute(
            counters.update()
            .where(counters.c.name == "events")
            .values(value=counters.c.value + n)
            .returning(counters.c.value)
        ).scalar_one()
        at, positions = self._clock(), range(last - n + 1, last + 1)
        new = [Event(idx, at, *one) for idx, one in zip(positions, told, strict=True)]
        connection.execute(events.insert(), [_event_values(event) for event in new])
        apply(connection, new)
        return positions

    @repeated
    def position(self) -> int:
        """Return the position of the latest event, 0 before the first."""
        with self._read() as connection:
            query = sa.select(counters.c.value).where(counters.c.name == "events")
            return connection.execute(query).scalar_one()

    @repeated
    def log_id(self) -> str:
        """Return what this log is told from any other by, one begun anew in its place included.

        It follows from when the ledger was made, so that a copy of a ledger has the same one.
        """
        query = sa.select(ledger_version).order_by(ledger_version.c.version).limit(1)
        with self._read() as connection:
            made = connection.execute(query).one()
        return sha256(f"{made.version} {made.migrated_at.isoformat()}".encode()).hexdigest()[:32]

    @repeated
    def fetch_events(self, since: int = 0, *, limit: int = 1000) -> list[Event]:
        """Return the events after position `since`, in order, at most `limit`."""
        query = sa.select(events).where(events.c.idx > since).order_by(events.c.idx).limit(limit)
        with self._read() as connection:
            return [_event(row) for row in connection.execute(query)]


_ASKED_FOR = ("environment", "partition_ref", "build_request_id")
"""What of an event's data stands beside it too, by which others ask for events."""


def _event_values(event: Event) -> dict[str, Any]:
    data = event.data
    return {
        "idx": event.idx,
        "at": event.at,
        "kind": event.kind,
        "data": data,
        **{name: data.get(name) for name in _ASKED_FOR},
        "task_id": data.get("task_id") or data.get("build_uid"),
        "job_label": data.get("job_label") or data.get("source_id"),
    }


def _event(row: Row[Any]) -> Event:
    return Event(row.idx, row.at, row.kind, row.data)
