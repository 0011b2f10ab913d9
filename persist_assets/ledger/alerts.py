"""Alerts: problems, when they began, and the channels that were notified.

The invariant: of one thing there is one open alert, and each channel is told of its beginning and
of its end at most once, unless a process ends between sending a message and recording that.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import sqlalchemy as sa

from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import alert_messages, alerts, availability, builds, upstreams

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Row

    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.settings.values import AlertKind

Outcome = Literal["recovered", "ended"]
Phase = Literal["opened", "recovered"]
SENDING = timedelta(minutes=5)
"""The time that a process has to send a message before others try."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=30), timedelta(hours=1)
_MOST_ATTEMPTS = 30
"""After so many failed attempts, about a day, a message is abandoned."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A problem.

    Attributes
    ----------
    subject
        The ID of a want, the SourceID of a source, or the name of another graph.
    details
        More about it, as JSON.
    """

    kind: AlertKind
    subject: str
    since: datetime
    details: Mapping[str, Any] = field(hash=False)

    @property
    def key(self) -> tuple[AlertKind, str]:
        """The subject of the alert."""
        return self.kind, self.subject


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition that raises an alert.

    Attributes
    ----------
    closed_at, outcome
        None: it is open. ``ended``: there is nothing left to recover, and no message is sent.
    """

    alert_id: str
    environment: str
    condition: Condition
    opened_at: datetime
    closed_at: datetime | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message about an alert that is to be sent to a channel, or was.

    Attributes
    ----------
    error
        Why the last attempt failed.
    """

    alert: Alert
    phase: Phase
    channel: str
    state: Literal["due", "sent", "abandoned"]
    attempts: int
    due_at: datetime
    sent_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The failed last build of a source; `build_uid` is None for unbuilt partitions."""

    source_id: SourceID
    at: datetime
    build_uid: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Contact:
    """The state of another graph.

    Attributes
    ----------
    at
        When the last change was recorded.
    last_news
        When its last partition arrived; None: none ever has.
    """

    at: datetime
    problem: str | None
    last_news: datetime | None


class Alerts(Part):
    """Alerts and the messages about them, and what they follow from."""

    @repeated
    def fetch(
        self, environment: str, *, only_open: bool = False, limit: int | None = None
    ) -> list[Alert]:
        """Return alerts of an environment, the latest first."""
        query = sa.select(alerts).where(alerts.c.environment == environment)
        if only_open:
            query = query.where(alerts.c.closed_at.is_(None))
        query = query.order_by(alerts.c.opened_at.desc(), alerts.c.alert_id).limit(limit)
        with self._read() as connection:
            return [_alert_of(row) for row in connection.execute(query)]

    @repeated
    def fetch_messages(self, alert_ids: Collection[str]) -> list[Message]:
        """Return the messages about alerts."""
        query = _messages().where(alert_messages.c.alert_id.in_([*alert_ids]))
        with self._read() as connection:
            return [_message_of(row) for row in connection.execute(query)]

    @repeated
    def record(
        self,
        environment: str,
        opened: Sequence[tuple[Condition, Collection[str]]],
        closed: Mapping[str, Outcome],
        now: datetime,
    ) -> tuple[int, int]:
        """Open alerts, each for some channels, and close others; return how many of each.

        What another process has opened or closed meanwhile stays as it is. Channels that were told,
        or are to be told, that an alert is open are told that it has recovered.

        Parameters
        ----------
        closed
            The outcomes, by the IDs of alerts.
        """
        n_opened = n_closed = 0
        with self._write() as connection:
            here = sa.and_(alerts.c.environment == environment, alerts.c.closed_at.is_(None))
            query = sa.select(alerts.c.alert_id, alerts.c.kind, alerts.c.subject).where(here)
            present = {(row.kind, row.subject): row.alert_id for row in connection.execute(query)}
            for condition, channels in opened:
                if condition.key in present:
                    continue
                alert_id = uuid.uuid4().hex
                values = {"since": condition.since, "details": dict(condition.details)}
                row = {"alert_id": alert_id, "environment": environment, "opened_at": now}
                key = {"kind": condition.kind, "subject": condition.subject}
                connection.execute(alerts.insert().values(**row, **key, **values))
                _tell(connection, alert_id, "opened", channels, now)
                n_opened += 1
            for alert_id, outcome in closed.items():
                this = sa.and_(here, alerts.c.alert_id == alert_id)
                change = alerts.update().where(this).values(closed_at=now, outcome=outcome)
                if not connection.execute(change).rowcount:
                    continue
                n_closed += 1
                if outcome == "recovered":
                    query = sa.select(alert_messages.c.channel).where(
                        alert_messages.c.alert_id == alert_id,
                        alert_messages.c.state != "abandoned",
                    )
                    channels = connection.scalars(query).all()
                    _tell(connection, alert_id, "recovered", channels, now)
        return n_opened, n_closed

    @repeated
    def has_due(self, environment: str, now: datetime) -> bool:
        """Whether a message is to be sent now."""
        with self._read() as connection:
            return connection.execute(_due(environment, now).limit(1)).first() is not None

    @repeated
    def take_due(self, environment: str, now: datetime, *, limit: int = 100) -> list[Message]:
        """Return messages to send now, oldest alerts first; no other process gets them.

        Whoever takes them has `SENDING` to send them. The end of an alert follows its beginning.
        """
        with self._write() as connection:
            query = _due(environment, now).order_by(alerts.c.opened_at, alerts.c.alert_id)
            due = [_message_of(row) for row in connection.execute(query.limit(limit))]
            for message in due:
                connection.execute(
                    alert_messages.update()
                    .where(_is(message))
                    .values(due_at=now + SENDING, attempts=message.attempts + 1)
                )
        return due

    @repeated
    def record_sent(self, messages: Collection[Message], now: datetime) -> None:
        """Record that messages were sent."""
        with self._write() as connection:
            for message in messages:
                values = {"state": "sent", "sent_at": now, "error": None}
                connection.execute(alert_messages.update().where(_is(message)).values(**values))

    @repeated
    def record_unsent(self, messages: Collection[Message], error: str, now: datetime) -> None:
        """Record why messages could not be sent, and when the next attempt is due.

        The pauses double from half a minute to an hour.
        """
        with self._write() as connection:
            for message in messages:
                attempts = message.attempts + 1
                pause = min(_FIRST_PAUSE * 2 ** min(message.attempts, 10), _LONGEST_PAUSE)
                state = "abandoned" if attempts >= _MOST_ATTEMPTS else "due"
                values = {"state": state, "due_at": now + pause, "error": error}
                connection.execute(alert_messages.update().where(_is(message)).values(**values))

    # -------------------------------------------------------------------- what alerts follow from

    @repeated
    def fetch_failures(self, environment: str) -> list[Failure]:
        """Return the sources whose last build that ended has failed."""
        b = builds.c
        ended = sa.and_(b.environment == environment, b.state != "started")
        place = sa.func.row_number().over(
            partition_by=b.source_id, order_by=(b.started_at.desc(), b.build_uid.desc())
        )
        columns = b.source_id, b.build_uid, b.state, b.finished_at, b.error, place.label("place")
        numbered = sa.select(*columns).where(ended).subquery()
        query = sa.select(numbered).where(numbered.c.place == 1, numbered.c.state == "failed")
        with self._read() as connection:
            rows = connection.execute(query.order_by(numbered.c.source_id)).all()
        return [Failure(r.source_id, r.finished_at, r.build_uid, r.error) for r in rows]

    @repeated
    def fetch_failed_partitions(self, environment: str) -> dict[str, datetime]:
        """Return the partitions of this graph that failed when they were built last."""
        query = sa.select(availability.c.partition_ref, availability.c.at).where(
            availability.c.graph == "",
            availability.c.environment == environment,
            availability.c.state == "failed",
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(availability.c.partition_ref)).all()
        return {ref: at for ref, at in rows}

    @repeated
    def fetch_contacts(self, environment: str) -> dict[str, Contact]:
        """Return the state of other graphs, by name."""
        news = (
            sa.select(availability.c.graph, sa.func.max(availability.c.at).label("last"))
            .where(availability.c.environment == environment, availability.c.graph != "")
            .group_by(availability.c.graph)
        )
        query = sa.select(upstreams.c.graph, upstreams.c.at, upstreams.c.problem).where(
            upstreams.c.environment == environment
        )
        with self._read() as connection:
            last = {row.graph: row.last for row in connection.execute(news)}
            rows = connection.execute(query).all()
        return {row.graph: Contact(row.at, row.problem, last.get(row.graph)) for row in rows}


def _tell(
    connection: sa.Connection,
    alert_id: str,
    phase: Phase,
    channels: Collection[str],
    now: datetime,
) -> None:
    for channel in sorted({*channels}):
        row = {"alert_id": alert_id, "phase": phase, "channel": channel}
        state = {"state": "due", "attempts": 0, "due_at": now}
        connection.execute(alert_messages.insert().values(**row, **state))


def _messages() -> sa.Select[Any]:
    return sa.select(
        alerts,
        *(c for c in alert_messages.c if c.name != "alert_id"),
    ).join(alert_messages, alert_messages.c.alert_id == alerts.c.alert_id)


def _due(environment: str, now: datetime) -> sa.Select[Any]:
    earlier = alert_messages.alias("earlier")
    waits = sa.exists().where(
        alert_messages.c.phase == "recovered",
        earlier.c.alert_id == alert_messages.c.alert_id,
        earlier.c.channel == alert_messages.c.channel,
        earlier.c.phase == "opened",
        earlier.c.state == "due",
    )
    return _messages().where(
        alerts.c.environment == environment,
        alert_messages.c.state == "due",
        alert_messages.c.due_at <= now,
        sa.not_(waits),
    )


def _is(message: Message) -> sa.ColumnElement[bool]:
    return sa.and_(
        alert_messages.c.alert_id == message.alert.alert_id,
        alert_messages.c.phase == message.phase,
        alert_messages.c.channel == message.channel,
    )


def _alert_of(row: Row[Any]) -> Alert:
    condition = Condition(row.kind, row.subject, row.since, row.details)
    return Alert(
        row.alert_id, row.environment, condition, row.opened_at, row.closed_at, row.outcome
    )


def _message_of(row: Row[Any]) -> Message:
    return Message(
        _alert_of(row),
        row.phase,
        row.channel,
        row.state,
        row.attempts,
        row.due_at,
        row.sent_at,
        row.error,
    )
