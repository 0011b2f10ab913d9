"""Messages → channels: through Apprise, or as signed webhooks.

The invariant: no secret gets into an error, a log or the ledger. Reasons for failures are ours, and
name variables only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
from typing import TYPE_CHECKING

from persist_assets.core.errors import PersistError, SettingsError
from persist_assets.core.settings.user import secret_of
from persist_assets.operations.alerting.messages import digest_of
from persist_assets.wants.http import NoAnswer, ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from persist_assets.core.settings.values import Channel
    from persist_assets.operations.alerting.messages import Note

_WITHIN_S = 10.0
_INCIDENTS = ("pagerduty",)
"""The schemes of services that keep an incident for each alert."""


class NotSent(Exception):
    """A message could not be sent; the text says why, and has no secret."""


def send(
    channel: Channel, notes: Sequence[Note], environ: Mapping[str, str], now: datetime
) -> tuple[int, str | None]:
    """Send messages, in order; return how many were sent, and why the next one was not.

    A chat or mailbox gets one message for all; webhooks and services with incidents get one each.
    """
    n = 0
    try:
        url = "" if channel.webhook else _secret(channel.url_env or "", environ)
        if not channel.webhook and url.split(":")[0].lower() not in _INCIDENTS:
            title, text = digest_of(notes)
            _notify(channel, url, title, text, is_good=all(note.is_recovery for note in notes))
            return len(notes), None
        for note in notes:
            if channel.webhook is not None:
                _post(channel, note, environ, now)
            else:
                incident = _incident(url, note)
                _notify(channel, incident, note.title, note.text, is_good=note.is_recovery)
            n += 1
    except NotSent as error:
        return n, str(error)
    return n, None


def _secret(name: str, environ: Mapping[str, str]) -> str:
    try:
        value = secret_of(name, environ)
    except SettingsError as error:
        raise NotSent(f"{error.message}: {error.hint}") from None
    if value is None:
        raise NotSent(f"the environment variable {name} is not set")
    return value


def _incident(url: str, note: Note) -> str:
    """Return the URL for an incident of an alert, which its recovery resolves."""
    return f"{url}{'&' if '?' in url else '?'}action=map&dedup={note.alert_id}"


# ------------------------------------------------------------------------------------------ Apprise


def _notify(channel: Channel, url: str, title: str, text: str, *, is_good: bool) -> None:
    try:
        import apprise
    except ImportError as error:
        hint = "pip install persist-assets[alerts]"
        raise NotSent(f"Apprise is not installed: {hint}") from error
    logger = logging.getLogger("apprise")
    # The logs of Apprise may contain parts of URLs; only the status is taken from its messages.
    heard = _Heard()
    propagated = logger.propagate
    logger.propagate = False
    logger.addHandler(heard)
    try:
        service = apprise.Apprise()
        if not service.add(url):
            raise NotSent(f"{channel.url_env} is not a URL that Apprise supports")
        kind = apprise.NotifyType.SUCCESS if is_good else apprise.NotifyType.FAILURE
        if not service.notify(body=text, title=title, notify_type=kind):
            status = f" with {heard.status}" if heard.status else ""
            raise NotSent(f"the service at {channel.url_env} did not accept the message{status}")
    except NotSent:
        raise
    except Exception as error:  # of a plugin: its message may hold the URL
        raise NotSent(f"sending to {channel.url_env} failed: {type(error).__name__}") from None
    finally:
        logger.removeHandler(heard)
        logger.propagate = propagated


class _Heard(logging.Handler):
    """Keeps the status of a refusal, and nothing else."""

    status = ""

    def emit(self, record: logging.LogRecord) -> None:
        match = re.search(r"\berror=(\d{3})\b", record.getMessage())
        if match:
            self.status = match[1]


# ----------------------------------------------------------------------------------------- webhooks


def _post(channel: Channel, note: Note, environ: Mapping[str, str], now: datetime) -> None:
    assert channel.webhook is not None
    secret = _secret(channel.secret_env or "", environ)
    body = json.dumps(note.document, ensure_ascii=False).encode()
    try:
        headers = sign(secret, note.note_id, now, body)
    except ValueError:
        message = f"{channel.secret_env} begins with `whsec_`, and the rest is not base64"
        raise NotSent(message) from None
    try:
        status, _ = ask(channel.webhook, None, body, within_s=_WITHIN_S, headers=headers)
    except NoAnswer as error:
        raise NotSent(str(error)) from error
    except PersistError as error:
        raise NotSent(error.message) from error
    if not 200 <= status < 300:
        raise NotSent(f"it responded with {status}")


def sign(secret: str, note_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that sign a body, as Standard Webhooks describes it.

    The signature is HMAC-SHA256 of the ID, the time in seconds and the body, with dots between
    them: https://github.com/standard-webhooks/standard-webhooks

    Parameters
    ----------
    secret
        ``whsec_`` and the key in base64; otherwise its own bytes are the key.

    Raises
    ------
    ValueError
        It begins with ``whsec_``, and the rest is not base64.
    """
    if secret.startswith("whsec_"):
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    else:
        key = secret.encode()
    seconds = int(at.timestamp())
    content = f"{note_id}.{seconds}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": note_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": f"v1,{signature}",
    }
