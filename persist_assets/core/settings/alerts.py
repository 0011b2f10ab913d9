"""The channels that settings name for alerts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast, get_args

from persist_assets.core.errors import SettingsError, did_you_mean
from persist_assets.core.settings.checks import check_keys
from persist_assets.core.settings.keys import ALERT_KEYS
from persist_assets.core.settings.places import at
from persist_assets.core.settings.upstreams import http_url
from persist_assets.core.settings.values import AlertKind, Channel

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
"""The kinds of alerts."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_channels(entries: Mapping[str, Any]) -> tuple[Channel, ...]:
    """Return the channels of `[alerts.NAME]`, in the order of their names.

    Raises
    ------
    SettingsError
        A channel has an invalid name or key. The message has no value of `url_env` or `secret_env`,
        in case the secret itself was written there.
    """
    channels: list[Channel] = []
    for name, entry in sorted(entries.items()):
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"invalid channel name `{name}`",
                hint="at most 64 letters, digits, underscores and dashes",
                location=at("alerts", name),
            )
        if not isinstance(entry, dict):
            raise SettingsError(f"`alerts.{name}` must be a table", location=at("alerts", name))
        channels.append(_channel(name, cast("dict[str, Any]", entry)))
    return tuple(channels)


def _channel(name: str, keys: dict[str, Any]) -> Channel:
    check_keys(keys, ALERT_KEYS, "alerts", name)
    where = f"[alerts.{name}]"
    if ("url_env" in keys) is ("webhook" in keys):
        raise SettingsError(
            f"`{where}` needs either `url_env` or `webhook`",
            hint='for example, url_env = "PERSIST_SECRET_SLACK", a variable with an Apprise URL',
            location=at("alerts", name),
        )
    if ("webhook" in keys) is not ("secret_env" in keys):
        raise SettingsError(
            f"`{where}` needs both `webhook` and `secret_env`, the secret that signs messages",
            hint='for example, secret_env = "PERSIST_SECRET_WEBHOOK"',
            location=at("alerts", name),
        )
    for key in ("url_env", "secret_env"):
        if key in keys and not _VARIABLE.fullmatch(keys[key]):
            raise SettingsError(
                f"`{where} {key}` must be the name of an environment variable, not its value",
                hint=f'for example, {key} = "PERSIST_SECRET_{name.upper().replace("-", "_")}"',
                location=at("alerts", name, key),
            )
    for kind in (kinds := _strings(name, keys, "kinds", KINDS)):
        if kind not in KINDS:
            raise SettingsError(
                f"`{where} kinds`: unknown kind `{kind}`",
                hint=did_you_mean(kind, KINDS) or f"known kinds: {', '.join(KINDS)}",
                location=at("alerts", name, "kinds"),
            )
    select = _strings(name, keys, "select", ())
    if any("state:" in pattern for pattern in select):
        raise SettingsError(
            f"`{where} select` cannot use `state:`",
            hint="states change with each plan: select by names, tags, groups or paths",
            location=at("alerts", name, "select"),
        )
    return Channel(
        name,
        url_env=keys.get("url_env"),
        webhook=http_url(keys["webhook"], "alerts", name, "webhook") if "webhook" in keys else None,
        secret_env=keys.get("secret_env"),
        kinds=cast("tuple[AlertKind, ...]", kinds),
        select=select,
        environments=_strings(name, keys, "environments", ()),
    )


def _strings(
    name: str, keys: Mapping[str, Any], key: str, default: tuple[str, ...]
) -> tuple[str, ...]:
    values: list[Any] = keys.get(key, [*default])
    if (key in keys and not values) or not all(isinstance(v, str) and v for v in values):
        message = f"`[alerts.{name}] {key}` must be a list of strings"
        raise SettingsError(message, location=at("alerts", name, key))
    return tuple(values)
