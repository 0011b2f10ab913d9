"""Others asked over HTTP: what they answer in JSON, or why they do not.

The invariant: whatever is at a URL, it answers something of a size that fits, whole, or `NoAnswer`
is raised; and a token goes to whom it is given to, nowhere else.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, cast

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.user import secret_of
from persist_assets.core.trust import permit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.settings.values import Upstream

TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20


class NoAnswer(Exception):
    """Another one does not answer, or not as it should."""


def token_of(upstream: Upstream, environ: Mapping[str, str]) -> str | None:
    """Return the token for another graph, None where it takes none.

    Raises
    ------
    NoAnswer
        It takes one, and there is none, or it may not be sent.
    """
    if upstream.token_env is None:
        return None
    try:
        token = secret_of(upstream.token_env, environ)
    except SettingsError as error:
        raise NoAnswer(f"{error.message}: {error.hint}") from error
    if token is None:
        raise NoAnswer(f"{upstream.token_env}, which holds the token for it, is not set")
    return token


def tell(url: str, document: Mapping[str, Any]) -> str | None:
    """Send a document in JSON to whoever is at a URL; return why that did not succeed, if so."""
    try:
        status, answer = ask(url, None, json.dumps(document).encode())
    except NoAnswer as error:
        return str(error)
    return None if 200 <= status < 300 else f"it responded with {status}{said_in(answer)}"


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: a token is for whom it is given to."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def ask(
    url: str, token: str | None, given: bytes | None = None, *, within_s: float = TIMEOUT_S
) -> tuple[int, Any]:
    """Return the status and the JSON of an answer, None where that is none.

    Parameters
    ----------
    given
        A document in JSON that is sent along.

    Raises
    ------
    NoAnswer
        Nobody answers, not in time, or too much.
    UntrustedError
        See `trust.permit`.
    """
    permit(url)
    asked = urllib.request.Request(url, given, {"Accept": "application/json"})
    if given is not None:
        asked.add_header("Content-Type", "application/json")
    if token is not None:
        asked.add_header("Authorization", f"Bearer {token}")
    deadline = time.monotonic() + within_s
    try:
        try:
            answer = urllib.request.build_opener(_Stay).open(asked, timeout=within_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            text = bytearray()
            while some := answer.read1(1 << 16):
                text += some
                if len(text) > _MOST_BYTES:
                    raise NoAnswer("its response is too long")
                if time.monotonic() > deadline:
                    raise NoAnswer(f"its response took longer than {within_s:g} seconds")
            status = answer.status or 0
            length = answer.headers.get("Content-Length", "")
            if length.isdecimal() and len(text) < int(length):
                raise NoAnswer("its response ended early")
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        text = str(reason) or type(reason).__name__
        raise NoAnswer(f"it does not respond: {text}") from error
    try:
        return status, json.loads(text)
    except (ValueError, RecursionError):
        return status, None


def object_of(answer: Any) -> dict[str, Any]:
    """Return an answer that is a JSON object.

    Raises
    ------
    NoAnswer
        It is none.
    """
    if not isinstance(answer, dict):
        raise NoAnswer("its response is unexpected")
    return cast("dict[str, Any]", answer)


def said_in(answer: Any) -> str:
    """Return why something was refused, as the answer says."""
    if isinstance(answer, dict):
        told = cast("dict[str, Any]", answer)
        for key in ("detail", "message", "title"):
            if isinstance(text := told.get(key), str):
                return f": {text[:200]}"
    return ""
