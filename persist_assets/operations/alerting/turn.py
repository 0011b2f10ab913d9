"""One turn of alerting: record current problems, and send the messages that are due.

Dagster's sensor, `persist serve --build` and `persist alerts send` call it. Turns of several
processes at once do no harm: the ledger opens an alert once and hands a message to one of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.errors import PersistError
from persist_assets.operations.alerting.channels import send
from persist_assets.operations.alerting.conditions import (
    find_conditions,
    find_outcome,
    source_of,
)
from persist_assets.operations.alerting.messages import note_of
from persist_assets.planning.selection import select
from persist_assets.wants.requests import record_late

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.building.observe import Observer
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.settings.values import Channel
    from persist_assets.ledger.alerts import Condition, Message, Outcome


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome of a turn.

    Attributes
    ----------
    opened, closed
        How many alerts began and ended.
    sent
        How many messages were sent.
    problems
        Why others were not, and what is wrong with selections.
    """

    opened: int
    closed: int
    sent: int
    problems: tuple[str, ...]


def take_turn(observer: Observer, *, environ: Mapping[str, str] = os.environ) -> Turn:
    """Record the problems of an environment, and send the messages that are due.

    A turn in which nothing changed and nothing is due writes nothing. A channel that fails is
    tried again in a later turn; the others get their messages.

    Raises
    ------
    LedgerError
        The ledger cannot be read or written.
    """
    problems: list[str] = []
    environment = observer.settings.environment
    channels = {c.name: c for c in observer.settings.channels if c.is_for(environment)}
    opened, closed = _record(observer, [*channels.values()], problems)
    sent = _send_due(observer, channels, environ, problems)
    return Turn(opened, closed, sent, tuple(problems))


def _record(
    observer: Observer, channels: Sequence[Channel], problems: list[str]
) -> tuple[int, int]:
    ledger, environment = observer.ledger, observer.settings.environment
    record_late(observer)
    conditions = {c.key: c for c in find_conditions(observer)}
    present = {a.condition.key: a for a in ledger.alerts.fetch(environment, only_open=True)}
    new = [c for key, c in conditions.items() if key not in present]
    over: dict[str, Outcome] = {
        alert.alert_id: find_outcome(observer, alert)
        for key, alert in present.items()
        if key not in conditions
    }
    if not new and not over:
        return 0, 0
    selected = {c.name: _selected(observer, c, problems) for c in channels if c.select}
    routed = [(c, _route(observer, c, channels, selected)) for c in new]
    return ledger.alerts.record(environment, routed, over, observer.clock())


def _selected(
    observer: Observer, channel: Channel, problems: list[str]
) -> frozenset[SourceID] | None:
    """Return the sources that a channel selects; None: all, also if its selection is wrong."""
    try:
        chosen = select(observer.project, channel.select, selectors=observer.settings.selectors)
    except PersistError as error:  # better too many alerts than none
        problems.append(f"[alerts.{channel.name}] select: {error.message}")
        return None
    return frozenset(chosen)


def _route(
    observer: Observer,
    condition: Condition,
    channels: Sequence[Channel],
    selected: Mapping[str, frozenset[SourceID] | None],
) -> list[str]:
    """Return the names of the channels that are notified of a condition."""
    source = source_of(observer, condition)
    names: list[str] = []
    for channel in channels:
        chosen = selected.get(channel.name)
        is_chosen = chosen is None or source is None or source.source_id in chosen
        if condition.kind in channel.kinds and is_chosen:
            names.append(channel.name)
    return names


def _send_due(
    observer: Observer,
    channels: Mapping[str, Channel],
    environ: Mapping[str, str],
    problems: list[str],
) -> int:
    ledger, environment = observer.ledger, observer.settings.environment
    n = 0
    while ledger.alerts.has_due(environment, observer.clock()):
        by_channel: dict[str, list[Message]] = {}
        for message in ledger.alerts.take_due(environment, observer.clock()):
            by_channel.setdefault(message.channel, []).append(message)
        for name, messages in by_channel.items():
            n += _send(observer, channels.get(name), name, messages, environ, problems)
    return n


def _send(
    observer: Observer,
    channel: Channel | None,
    name: str,
    messages: Sequence[Message],
    environ: Mapping[str, str],
    problems: list[str],
) -> int:
    """Send the messages of one channel and record the outcome; return how many were sent."""
    ledger, problem, sent = observer.ledger, None, 0
    if channel is None:
        problem = "persist.toml no longer has this channel"
    else:
        notes = [note_of(message) for message in messages]
        sent, problem = send(channel, notes, environ, observer.clock())
    if sent:
        ledger.alerts.record_sent(messages[:sent], observer.clock())
    if problem is not None:
        ledger.alerts.record_unsent(messages[sent:], problem, observer.clock())
        problems.append(f"[alerts.{name}] {problem}")
    return sent
