"""The other graphs that settings name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.checks import check_keys, section_of
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.settings.keys import SLA_KEYS, UPSTREAM_KEYS
from persist_assets.core.settings.places import at
from persist_assets.core.settings.values import Upstream

if TYPE_CHECKING:
    from collections.abc import Mapping


_GRAPH = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_upstreams(entries: Mapping[str, Any]) -> tuple[Upstream, ...]:
    """Return the other graphs that are described."""
    upstreams: list[Upstream] = []
    for name, entry in sorted(entries.items()):
        where = f"[upstream.{name}] "
        if not _GRAPH.fullmatch(name):
            raise SettingsError(
                f"invalid upstream name `{name}`",
                hint="at most 64 letters, digits, underscores and dashes",
                location=at("upstream", name),
            )
        if not isinstance(entry, dict):
            message = f"`upstream.{name}` must be a table"
            raise SettingsError(message, location=at("upstream", name))
        keys: dict[str, Any] = {**entry}
        check_keys(keys, UPSTREAM_KEYS, "upstream", name)
        if ("url" in keys) is ("dagster" in keys):
            raise SettingsError(
                f"`{where.strip()}` needs either `url` or `dagster`",
                hint='for example, url = "http://127.0.0.1:8080", the address of persist serve',
                location=at("upstream", name),
            )
        kind = "dagster" if "dagster" in keys else "url"
        patterns: list[Any] = keys.get("patterns", ["**"])
        if not patterns or not all(isinstance(p, str) and p for p in patterns):
            raise SettingsError(
                f"`{where}patterns` must be a list of strings",
                hint='patterns = ["data/users/*"]',
                location=at("upstream", name, "patterns"),
            )
        upstreams.append(
            Upstream(
                name,
                http_url(keys[kind], "upstream", name, kind).rstrip("/"),
                tuple(patterns),
                keys.get("token_env"),
                keys.get("environment"),
                kind == "dagster",
                _silent_after(name, keys),
            )
        )
    return tuple(upstreams)


def _silent_after(name: str, keys: Mapping[str, Any]) -> int | None:
    text = keys.get("silent_after")
    seconds = None if text is None else parse_duration(text)
    if text is not None and seconds is None:
        raise SettingsError(
            f"`[upstream.{name}] silent_after`: `{text}` is not a duration",
            hint='for example, "26h"',
            location=at("upstream", name, "silent_after"),
        )
    return seconds


def read_webhook(entries: Mapping[str, Any]) -> str:
    """Return the URL to which late wants are reported; empty if there is none."""
    check_keys(entries, SLA_KEYS, "sla")
    return http_url(entries["webhook"], "sla", "webhook") if "webhook" in entries else ""


def http_url(url: str, *path: str) -> str:
    """Return an HTTP URL; refuse an invalid one, or one with a password."""
    key = f"{section_of(path[:-1])}{path[-1]}"
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise SettingsError(f"`{key}`: `{url}` is not a URL", location=at(*path)) from None
    if not fits or any(c.isspace() for c in url):
        raise SettingsError(
            f"`{key}`: `{url}` is not an HTTP URL",
            hint="it must start with http:// or https://",
            location=at(*path),
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"`{key}` contains a password",
            hint="use token_env to name an environment variable that holds a token",
            location=at(*path),
        )
    return url
