"""Alerts in words, and as the JSON of webhooks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from persist_assets.core.settings.durations import in_short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.ledger.alerts import Alert, Message, Phase


@dataclass(frozen=True, slots=True)
class Note:
    """One notification for a channel.

    Attributes
    ----------
    note_id
        The same each time that the message is sent, so that receivers can drop duplicates.
    alert_id
        The same for the beginning and the end of an alert; it stays the ID of the incident.
    document
        Everything as JSON.
    """

    note_id: str
    alert_id: str
    is_recovery: bool
    title: str
    text: str
    document: dict[str, Any]


def note_of(message: Message) -> Note:
    """Return the title and the text of a message."""
    alert, phase = message.alert, message.phase
    at = alert.closed_at if phase == "recovered" and alert.closed_at else alert.opened_at
    title, text = describe(alert, phase)
    note_id = f"{alert.alert_id}-{phase}"
    document = {
        "id": note_id,
        "alert_id": alert.alert_id,
        "phase": phase,
        "kind": alert.condition.kind,
        "environment": alert.environment,
        "subject": alert.condition.subject,
        "since": alert.condition.since.isoformat(),
        "at": at.isoformat(),
        "title": title,
        "text": text,
        "details": dict(alert.condition.details),
    }
    return Note(note_id, alert.alert_id, phase == "recovered", title, text, document)


def trial_note(channel: str, environment: str, at: datetime) -> Note:
    """Return a message that only shows that a channel works."""
    title = f"[{environment}] test of the channel {channel}"
    text = "This is a test: nothing is wrong."
    note_id = f"test-{channel}-{at.timestamp():.6f}"
    document = {
        "id": note_id,
        "alert_id": note_id,
        "phase": "opened",
        "kind": "test",
        "environment": environment,
        "subject": channel,
        "since": at.isoformat(),
        "at": at.isoformat(),
        "title": title,
        "text": text,
        "details": {},
    }
    return Note(note_id, note_id, False, title, text, document)


def describe(alert: Alert, phase: Phase) -> tuple[str, str]:
    """Return the title and the text of a message about an alert."""
    condition, details = alert.condition, alert.condition.details
    name = details.get("partition_ref") or details.get("asset_key") or condition.subject
    since = f"{condition.since:%Y-%m-%d %H:%M} UTC"
    where = f"[{alert.environment}]"
    if phase == "recovered":
        over = {
            "deadline": f"{name} was delivered after its deadline",
            "failed": f"{name} was built again",
            "stale": f"{name} is fresh again",
            "silent": f"the graph {name} has new partitions again",
        }[condition.kind]
        closed_at = alert.closed_at or alert.opened_at
        lasted = in_short(max((closed_at - condition.since).total_seconds(), 0))
        return f"{where} recovered: {over}", f"It lasted {lasted}, since {since}."
    return {
        "deadline": _missed,
        "failed": _failed,
        "stale": _stale,
        "silent": _silent,
    }[condition.kind](where, name, since, details)


def _missed(where: str, name: str, since: str, details: Any) -> tuple[str, str]:
    blame = details.get("blame") or {}
    graph = f"{blame['graph']}:" if blame.get("graph") else ""
    waits = f"{graph}{blame.get('partition_ref') or name}"
    cause = blame.get("cause", "unknown")
    text = f"Its deadline was {since}. It waits for {waits} ({cause})."
    return f"{where} missed deadline: {name}", text


def _failed(where: str, name: str, since: str, details: Any) -> tuple[str, str]:
    partitions: list[str] = details.get("partitions") or []
    parts = [details["error"]] if details.get("error") else []
    if partitions:
        more = len(partitions) - 3
        listed = ", ".join(partitions[:3]) + (f" and {more} more" if more > 0 else "")
        parts.append(f"Failed partitions: {listed}.")
    parts.append(f"Since {since}. Readers keep the table that they had.")
    return f"{where} failed: {name}", "\n".join(parts)


def _stale(where: str, name: str, since: str, details: Any) -> tuple[str, str]:
    known = datetime.fromisoformat(details["known_at"])
    window = in_short(details["window_seconds"])
    text = f"It was last known to be current at {known:%Y-%m-%d %H:%M} UTC; its window is {window}."
    return f"{where} stale: {name}", text


def _silent(where: str, name: str, since: str, details: Any) -> tuple[str, str]:
    problem, last = details.get("problem"), details.get("last_news")
    if problem:
        return f"{where} silent: the graph {name}", f"It cannot be read since {since}: {problem}"
    news = f"Its last partition arrived at {last[:16].replace('T', ' ')} UTC." if last else ""
    text = (
        f"It has had no new partitions for longer than expected. {news or 'None has ever arrived.'}"
    )
    return f"{where} silent: the graph {name}", text


def digest_of(notes: Sequence[Note]) -> tuple[str, str]:
    """Return the title and the text of one message that says several things."""
    if len(notes) == 1:
        return notes[0].title, notes[0].text
    opened = sum(not note.is_recovery for note in notes)
    counts = [f"{opened} alert{'s' * (opened != 1)}"] if opened else []
    if over := len(notes) - opened:
        counts.append(f"{over} recovered")
    lines = [f"{note.title}\n  {note.text.replace(chr(10), chr(10) + '  ')}" for note in notes[:20]]
    if len(notes) > len(lines):
        lines.append(f"… and {len(notes) - len(lines)} more: persist alerts list")
    return ", ".join(counts), "\n".join(lines)
