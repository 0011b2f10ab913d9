"""The HTTP client for other graphs and webhooks: JSON answers, or the reason for having none.

The invariant: whatever is at a URL, `ask` returns a complete answer of limited size or raises
`NoAnswer`; and a token is sent to its own host only.
"""

from __future__ import annotations

import json
import logging
import ssl
from functools import cache
from time import monotonic as _now
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.user import secret_of
from persist_assets.core.trust import permit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.settings.values import Upstream

TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20


class NoAnswer(Exception):
    """The other side does not answer, or its answer is malformed."""


def token_of(upstream: Upstream, environ: Mapping[str, str]) -> str | None:
    """Return the token for another graph; None if it needs none.

    Raises
    ------
    NoAnswer
        It needs one that is not set or must not be sent.
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
    """POST a JSON document to a URL; return why that failed, None if it did not."""
    try:
        status, answer = ask(url, None, json.dumps(document).encode())
    except NoAnswer as error:
        return str(error)
    return None if 200 <= status < 300 else f"it responded with {status}{reason_in(answer)}"


def ask(
    url: str,
    token: str | None,
    content: bytes | None = None,
    *,
    within_s: float = TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Return the status and the JSON of an answer; None if it is not JSON.

    Redirects are not followed: a token is meant for one host.

    Parameters
    ----------
    content
        A JSON document to POST; None: GET.
    headers
        More headers to send.

    Raises
    ------
    NoAnswer
        There is no answer in time, or it is too long.
    UntrustedError
        See `trust.permit`.
    """
    import httpx

    permit(url)
    sent = {"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})}
    if content is not None:
        sent["Content-Type"] = "application/json"
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    method, body, deadline = "GET" if content is None else "POST", bytearray(), _now() + within_s
    logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO it logs URLs, webhooks' too
    try:
        with (
            httpx.Client(
                verify=_trusted(), proxy=_proxy(url), trust_env=False, timeout=within_s
            ) as client,
            client.stream(method, url, content=content, headers=sent) as response,
        ):
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise NoAnswer("its response is too long")
                if _now() > deadline:
                    raise NoAnswer(f"its response took longer than {within_s:g} seconds")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, ImportError) as error:
        raise NoAnswer(f"it does not respond: {error or type(error).__name__}") from error
    try:
        return response.status_code, json.loads(body)
    except (ValueError, RecursionError):
        return response.status_code, None


@cache
def _trusted() -> ssl.SSLContext:
    """Return the certificate authorities of this machine, not httpx's own."""
    return ssl.create_default_context()


def _proxy(url: str) -> str | None:
    """Return the proxy for a URL according to ``http_proxy``, ``https_proxy`` and ``no_proxy``."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def object_of(answer: Any) -> dict[str, Any]:
    """Return an answer that is a JSON object.

    Raises
    ------
    NoAnswer
        It is not an object.
    """
    if not isinstance(answer, dict):
        raise NoAnswer("its response is unexpected")
    return cast("dict[str, Any]", answer)


def reason_in(answer: Any) -> str:
    """Return the reason that a refusal gives, after a colon; empty if it gives none."""
    if isinstance(answer, dict):
        document = cast("dict[str, Any]", answer)
        for key in ("detail", "message", "title"):
            if isinstance(text := document.get(key), str):
                return f": {text[:200]}"
    return ""
