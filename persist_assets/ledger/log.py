"""The event log, the base of the whole ledger: a change appends its events in its transaction.

The invariant: positions have no gaps, and become visible in their order.
"""

from __future__ import annotations

import functools
import logging
import sys
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.model.snapshots import Event
from persist_assets.core.wants import matcher
from persist_assets.ledger.connection import Database
from persist_assets.ledger.migrations import VERSION, migrate, version_of
from persist_assets.ledger.projections import apply, rebuild
from persist_assets.ledger.tables import counters, events, ledger_version

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime
    from pathlib import Path
    from typing import Concatenate, ParamSpec, TypeVar

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.wants import PartitionRef

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")
    Owner = TypeVar("Owner", bound="EventLog | Part")

log = logging.getLogger(__name__)

KINDS: Mapping[str, str] = {
    "build-started": "a build of a source has started",
    "build-succeeded": "a build has published its snapshot, or has found the table up to date",
    "build-failed": "a build has failed, or its process is gone (`interrupted`)",
    "partition-available": "a partition can be read",
    "partition-failed": "a requested partition was not built",
    "partition-tainted": "a partition must not be read until it is built again",
    "want-created": "a want was created for a partition",
    "want-waits": "a build found that a wanted partition needs other partitions first",
    "want-satisfied": "a wanted partition is available",
    "want-expired": "the `ttl` of a want has passed",
    "want-cancelled": "a want was cancelled, or its build failed",
    "evaluation": "the wants were evaluated: what can be built now, and why",
    "build-requested": "an evaluation has requested builds of partitions",
    "build-request-started": "a run has taken a build request",
    "build-request-succeeded": "all partitions of a build request are published",
    "build-request-failed": "a build request has failed; `culprits` are the partitions at fault",
    "sla-missed": "a want has missed its deadline; `blame` says what it waits for",
    "sla-recovered": "a late partition is available now",
    "upstream-synced": "the events of another graph were read",
    "promoted": "an environment has taken over the snapshots of another one",
    "rolled-back": "a manifest was rolled back to an earlier state",
    "tables-taken-over": "after an upgrade, sources took over the tables of their unchanged texts",
    "imported": "a manifest file was imported, or a lost ledger restored",
    "entries-collected": "entries of sources that no longer exist were removed from a manifest",
    "environment-ended": "the environment of a pull request was ended, and its manifest deleted",
    "snapshots-collected": "snapshots that no reader can reach were released for `persist gc`",
    "external-synced": "a copy of an external table was updated",
    "external-forgotten": "a copy that no environment uses was deleted",
    "lease-broken": "the holder of a lease is gone, and another process has taken it",
    "logged-in": "a user logged in with a token, or a proxy named a user; `who`, `how`, `address`",
    "access-refused": "the service refused a request; `why`, `who`, `path`, `address`",
    "token-created": "a token was created; `name`, `role`, `by`",
    "token-revoked": "a token was revoked; `name`, `by`",
    "ledger-restored": "the ledger was restored from a backup; what happened after it is lost",
    "events-trimmed": "old events were archived and deleted, up to the position `upto`",
}
"""Every kind of event, with its meaning."""

NOTED = frozenset({"logged-in", "access-refused", "token-created", "token-revoked"})
"""The kinds of events about logins, refused access and tokens."""

UNPLANNED = NOTED | {
    *("want-created", "want-satisfied", "want-expired", "want-cancelled", "evaluation"),
    *("build-requested", "build-request-started", "sla-missed", "sla-recovered"),
}
"""The kinds of events that change no table, no build and no taint: plans stay as they are."""

_SCANNED = 20_000
"""The maximum number of events that one page of a search examines."""


def repeated(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result]:
    """Repeat a method if the database went away; the method must be one transaction.

    It is repeated as a whole, and only if its transaction was not committed.
    """

    @functools.wraps(method)
    def run(owner: Owner, *args: Arguments.args, **values: Arguments.kwargs) -> Result:
        return owner.database.repeat(lambda: method(owner, *args, **values))

    return run


@dataclass(frozen=True, slots=True)
class Mark:
    """The last event of a log at some time: what follows from the log is known up to here.

    Attributes
    ----------
    at
        When it was recorded, by which another log is recognised; None: there was none, or it was
        archived.
    """

    idx: int
    at: datetime | None


class EventLog:
    """The database of a ledger, and its events. Safe to share between threads.

    Parameters
    ----------
    url
        SQLAlchemy URL. A SQLite file is created with its directory.
    clock
        Returns the current time, with a time zone.

    Attributes
    ----------
    opened_version
        The version of the ledger when it was opened; 0 if it was new.
    backup
        The copy of the ledger's file that a migration made first, if it made one here.

    Raises
    ------
    LedgerError
        See `Ledger`.
    """

    def __init__(self, url: str, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.database = Database(url)
        self.backup: Path | None = None
        try:
            with self.database.read() as connection:
                self.opened_version = version_of(connection)
            if self.opened_version != VERSION:
                self._migrate()
        except BaseException:
            self.close()
            raise

    def _migrate(self) -> None:
        with self.database.write(migrating=True) as connection:
            version = version_of(connection)  # another process may have been first
            if 0 < version < VERSION:
                self.backup = self.database.back_up(connection, version)
            try:
                self.opened_version = migrate(connection)
            except BaseException:
                if self.backup is not None:  # nothing was changed
                    self.backup.unlink(missing_ok=True)
                raise
        if self.backup is not None:
            values = (self.database.shown, self.opened_version, VERSION, self.backup)
            log.warning("action=migrate ledger=%s from=%d to=%d backup=%s", *values)

    def close(self) -> None:
        """Close every connection."""
        self.database.close()

    def append(self, connection: Connection, kind: str, data: Mapping[str, Any]) -> int:
        """Append an event within a transaction; return its position."""
        (idx,) = self.append_all(connection, [(kind, data)])
        return idx

    def append_all(
        self, connection: Connection, entries: Collection[tuple[str, Mapping[str, Any]]]
    ) -> range:
        """Append events in order, each a kind and its data; return their positions."""
        n = len(entries)
        if not n:
            return range(0)
        last = connection.execute(
            counters.update()
            .where(counters.c.name == "events")
            .values(value=counters.c.value + n)
            .returning(counters.c.value)
        ).scalar_one()
        at, positions = self.clock(), range(last - n + 1, last + 1)
        new = [Event(idx, at, *entry) for idx, entry in zip(positions, entries, strict=True)]
        connection.execute(events.insert(), [_event_values(event) for event in new])
        apply(connection, new)
        return positions

    @repeated
    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """Record an event from which nothing follows, of a kind in `NOTED`."""
        assert kind in NOTED, kind
        with self.database.write() as connection:
            self.append(connection, kind, data)

    @repeated
    def position(self) -> int:
        """Return the position of the latest event, 0 before the first."""
        with self.database.read() as connection:
            query = sa.select(counters.c.value).where(counters.c.name == "events")
            return connection.execute(query).scalar_one()

    @repeated
    def mark(self, last: Mark | None, passive: Collection[str]) -> tuple[Mark, bool]:
        """Return the last event now, and whether only events of some kinds came after `last`.

        False if `last` is None or not of this log, or if very many events came.
        """
        with self.database.read() as connection:
            query = sa.select(counters.c.value).where(counters.c.name == "events")
            head = connection.execute(query).scalar_one()
            at = sa.select(events.c.at)
            mark = Mark(head, connection.scalar(at.where(events.c.idx == head)))
            if last is None or not 0 <= head - last.idx <= _SCANNED:
                return mark, False
            if last.idx == head:
                return mark, last == mark
            if last.idx and (
                last.at is None or last.at != connection.scalar(at.where(events.c.idx == last.idx))
            ):
                return mark, False
            others = sa.exists().where(events.c.idx > last.idx, events.c.kind.not_in([*passive]))
            return mark, not connection.scalar(sa.select(others))

    @repeated
    def log_id(self) -> str:
        """Return the identity of this log: a new log under the same URL has another one.

        It follows from when the ledger was created, so a copy of a ledger has the same one.
        """
        with self.database.read() as connection:
            return _log_id(connection)

    @repeated
    def trimmed_to(self) -> int:
        """Return the position up to which old events were archived and deleted; 0: none were.

        Of the events up to there, only those are left that `trims.py` keeps. A reader that has
        read a part of them has missed some, and has to start over.
        """
        with self.database.read() as connection:
            return trimmed_to(connection)

    @repeated
    def ends(self) -> tuple[str, int, int]:
        """Return `log_id`, `position` and `trimmed_to` at one instant."""
        with self.database.read() as connection:
            query = sa.select(counters.c.value).where(counters.c.name == "events")
            head = connection.execute(query).scalar_one()
            return _log_id(connection), head, trimmed_to(connection)

    @repeated
    def fetch(self, since: int = 0, *, limit: int = 1000) -> list[Event]:
        """Return the events after position `since`, in order, at most `limit`."""
        query = sa.select(events).where(events.c.idx > since).order_by(events.c.idx).limit(limit)
        with self.database.read() as connection:
            return [_event(row) for row in connection.execute(query)]

    @repeated
    def search(
        self,
        since: int = 0,
        *,
        limit: int = 1000,
        environment: str | None = None,
        kinds: Collection[str] = (),
        refs: Collection[PartitionRef] = (),
        patterns: Collection[str] = (),
        job_labels: Collection[str] = (),
        task_ids: Collection[str] = (),
        build_request_ids: Collection[str] = (),
    ) -> tuple[list[Event], int]:
        """Return events after a position, in order, and the position that the search reached.

        An event must pass every filter; `refs` and `patterns` are one filter. One page examines a
        limited number of events, so that it is quick whatever the filters: it may be short or empty
        although more events follow. The end is reached when the returned position is the log's.
        """
        test = events.c.idx > since
        if environment is not None:
            test = sa.and_(test, events.c.environment == environment)
        if kinds:
            test = sa.and_(test, events.c.kind.in_([*kinds]))
        if refs or patterns:
            places = [events.c.partition_ref.in_([*refs])] if refs else []
            places += [
                events.c.partition_ref.like(like(pattern), escape="\\") for pattern in patterns
            ]
            test = sa.and_(test, sa.or_(*places))
        for column, values in (
            (events.c.job_label, job_labels),
            (events.c.task_id, task_ids),
            (events.c.build_request_id, build_request_ids),
        ):
            if values:
                test = sa.and_(test, column.in_([*values]))
        fits = [matcher(pattern) for pattern in patterns]
        with self.database.read() as connection:
            head = connection.execute(
                sa.select(counters.c.value).where(counters.c.name == "events")
            ).scalar_one()
            last = min(head, _last_scanned(connection, since, max(_SCANNED, limit)))
            query = sa.select(events).where(test, events.c.idx <= last)
            rows = connection.execute(query.order_by(events.c.idx).limit(limit)).all()
        following = rows[-1].idx if len(rows) == limit else max(last, since)
        exact = {*refs}
        page = [
            Event(row.idx, row.at, row.kind, row.data)
            for row in rows
            if not fits or row.partition_ref in exact or any(fit(row.partition_ref) for fit in fits)
        ]
        return page, following

    @repeated
    def rebuild_projections(self) -> int:
        """Rebuild the projections from the events; return the number of events."""
        with self.database.write() as connection:
            return rebuild(connection)


TRIMMED = "trimmed"
"""The counter that holds the position up to which events were trimmed."""


def trimmed_to(connection: Connection) -> int:
    """Return the position up to which events were trimmed; 0: none were."""
    return connection.scalar(sa.select(counters.c.value).where(counters.c.name == TRIMMED)) or 0


def _log_id(connection: Connection) -> str:
    query = sa.select(ledger_version).order_by(ledger_version.c.version).limit(1)
    first = connection.execute(query).one()
    return sha256(f"{first.version} {first.migrated_at.isoformat()}".encode()).hexdigest()[:32]


def _last_scanned(connection: Connection, since: int, limit: int) -> int:
    """Return the position of the last of `limit` events after a position; most may be trimmed."""
    if since >= trimmed_to(connection):
        return since + limit
    query = sa.select(events.c.idx).where(events.c.idx > since).order_by(events.c.idx)
    return connection.scalar(query.offset(limit - 1).limit(1)) or sys.maxsize


class Part:
    """A part of the ledger: methods that each are one transaction."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self.database = events.database
        self._read, self._write = events.database.read, events.database.write

    def _clock(self) -> datetime:
        return self._events.clock()

    def _now(self, connection: Connection) -> datetime:
        """Return the current time by the clock that all users of the ledger share."""
        return self.database.now(connection, self._clock)


_FILTERS = ("environment", "partition_ref", "build_request_id")
"""The keys of an event's data that are also columns, to filter by."""


def _event_values(event: Event) -> dict[str, Any]:
    data = event.data
    return {
        "idx": event.idx,
        "at": event.at,
        "kind": event.kind,
        "data": data,
        **{name: data.get(name) for name in _FILTERS},
        "task_id": data.get("task_id") or data.get("build_uid"),
        "job_label": data.get("job_label") or data.get("source_id"),
    }


def _event(row: Row[Any]) -> Event:
    return Event(row.idx, row.at, row.kind, row.data)


def like(pattern: str) -> str:
    """Return a LIKE pattern that matches at least everything that `pattern` matches."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("**", "%").replace("*", "%")


def begins(
    column: sa.ColumnElement[str], pattern: str, *, is_postgres: bool
) -> sa.ColumnElement[bool]:
    """Return a test that an index answers: texts that begin as a pattern does before its stars.

    A few others may pass. PostgreSQL's order of texts is not that of their characters: its own
    indexes answer LIKE.
    """
    start = pattern.partition("*")[0]
    if is_postgres:
        return column.like(f"{like(start)}%", escape="\\")
    start = start.rstrip("\ud7ff\U0010ffff")  # the next character cannot be stored
    if not start:
        return sa.true()
    return sa.and_(column >= start, column < start[:-1] + chr(ord(start[-1]) + 1))
