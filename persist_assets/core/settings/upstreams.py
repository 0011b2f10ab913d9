"""The other graphs that settings name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from persist_assets.core.errors import Location, SettingsError
from persist_assets.core.settings.keys import SETTINGS_FILE, SLA_KEYS, UPSTREAM_KEYS, check_keys
from persist_assets.core.settings.values import Upstream

if TYPE_CHECKING:
    from collections.abc import Mapping


_GRAPH = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_upstreams(given: Mapping[str, Any]) -> tuple[Upstream, ...]:
    """Return the other graphs that are described."""
    found: list[Upstream] = []
    for name, said in sorted(given.items()):
        where = f"[upstream.{name}] "
        if not _GRAPH.fullmatch(name):
            raise SettingsError(
                f"`{name}` is not a name for an upstream",
                hint="letters, digits, underscores and dashes, at most 64",
                location=Location(SETTINGS_FILE),
            )
        if not isinstance(said, dict):
            message = f"`upstream.{name}` wants a table"
            raise SettingsError(message, location=Location(SETTINGS_FILE))
        keys: dict[str, Any] = {**said}
        check_keys(keys, UPSTREAM_KEYS, where)
        if ("url" in keys) is ("dagster" in keys):
            raise SettingsError(
                f"`{where.strip()}` wants a `url`, or `dagster` with one",
                hint='url = "http://127.0.0.1:8080", of persist serve',
                location=Location(SETTINGS_FILE),
            )
        kind = "dagster" if "dagster" in keys else "url"
        patterns: list[Any] = keys.get("patterns", ["**"])
        if not patterns or not all(isinstance(p, str) and p for p in patterns):
            raise SettingsError(
                f"`{where}patterns` wants texts",
                hint='patterns = ["data/users/*"]',
                location=Location(SETTINGS_FILE),
            )
        found.append(
            Upstream(
                name,
                _http_url(f"{where}{kind}", keys[kind]).rstrip("/"),
                tuple(patterns),
                keys.get("token_env"),
                keys.get("environment"),
                kind == "dagster",
            )
        )
    return tuple(found)


def read_webhook(given: Mapping[str, Any]) -> str:
    """Return the URL that late wants are reported to; empty where there is none."""
    check_keys(given, SLA_KEYS, "[sla] ")
    return _http_url("[sla] webhook", given["webhook"]) if "webhook" in given else ""


def _http_url(what: str, url: str) -> str:
    """Return a URL of the web, refused if it is none or holds a password."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise SettingsError(
            f"`{what}`: `{url}` is no URL", location=Location(SETTINGS_FILE)
        ) from None
    if not fits or any(c.isspace() for c in url):
        raise SettingsError(
            f"`{what}`: `{url}` is no URL of the web",
            hint="it begins with http:// or https://",
            location=Location(SETTINGS_FILE),
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"`{what}` holds a password",
            hint="name the environment variable of a token: token_env",
            location=Location(SETTINGS_FILE),
        )
    return url
