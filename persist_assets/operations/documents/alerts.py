"""Alerts, and the messages about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from persist_assets.operations.documents.base import Count, Document, Instant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.ledger.alerts import Alert, Message


class MessageDocument(Document):
    """A message to a channel."""

    channel: str
    phase: Literal["opened", "recovered"]
    state: Literal["due", "sent", "abandoned"]
    attempts: Count
    due_at: Instant
    sent_at: Instant | None
    error: str | None


class AlertDocument(Document):
    """An alert: see `persist_assets.ledger.alerts.Alert`."""

    alert_id: str
    kind: str
    environment: str
    subject: str
    since: Instant
    opened_at: Instant
    closed_at: Instant | None
    outcome: Literal["recovered", "ended"] | None
    details: dict[str, Any]
    messages: list[MessageDocument]

    @classmethod
    def of(cls, alert: Alert, messages: Iterable[Message]) -> Self:
        """Return the document of an alert and the messages about it."""
        condition = alert.condition
        return cls(
            alert_id=alert.alert_id,
            kind=condition.kind,
            environment=alert.environment,
            subject=condition.subject,
            since=condition.since,
            opened_at=alert.opened_at,
            closed_at=alert.closed_at,
            outcome=alert.outcome,
            details=dict(condition.details),
            messages=[MessageDocument.model_validate(message) for message in messages],
        )
