"""Access to the service: roles, and the proxy that identifies users."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.checks import check_keys
from persist_assets.core.settings.keys import ROLE_KEYS, SERVICE_KEYS
from persist_assets.core.settings.places import at

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILT_IN = ("read", "write")
"""The roles that need no declaration: `write` may do everything."""
EVERYBODY = "*"
"""Stands for the groups of all users."""


@dataclass(frozen=True, slots=True)
class Role:
    """The permissions of a role; every holder may read everything.

    Attributes
    ----------
    groups
        The groups of the identity provider whose members have it.
    build
        Selections of the sources that they may want, build and taint.
    promote
        The environments that they may promote into and roll back.
    admin
        They may do everything.
    """

    name: str
    groups: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    promote: tuple[str, ...] = ()
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """The identification of callers behind a proxy.

    Attributes
    ----------
    user_header, groups_header
        The headers in which a proxy names the user and the user's groups; empty: it names none.
    proxies
        The addresses or networks of the proxies that are believed.
    """

    user_header: str = ""
    groups_header: str = ""
    proxies: tuple[str, ...] = ()


NOBODY = Service()
"""No proxy identifies users."""
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


def read_access(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings `service` and `roles`, from all entries of the file.

    Raises
    ------
    SettingsError
        See `read_service` and `read_roles`.
    """
    service, roles = entries.get("service", {}), entries.get("roles", {})
    return {"service": read_service(service), "roles": read_roles(roles)}


def read_service(entries: Mapping[str, Any]) -> Service:
    """Return the settings of `[service]`.

    Raises
    ------
    SettingsError
        A key is unknown, a header or an address is invalid, or a header is named but no proxy.
    """
    check_keys(entries, SERVICE_KEYS, "service")
    for name in ("user_header", "groups_header"):
        if name in entries and not _HEADER.fullmatch(entries[name]):
            raise SettingsError(
                f"`[service] {name}`: `{entries[name]}` is not the name of a header",
                hint=f'for example, {name} = "X-Forwarded-User"',
                location=at("service", name),
            )
    proxies = _texts(entries.get("proxies", []), "service", "proxies")
    for proxy in proxies:
        check_proxy(proxy, at("service", "proxies"), "[service] proxies")
    if "user_header" in entries and not proxies:
        raise SettingsError(
            "`[service] user_header` needs the addresses of the proxies that may send it",
            hint='for example, proxies = ["10.0.0.7"]',
            location=at("service", "user_header"),
        )
    if "groups_header" in entries and "user_header" not in entries:
        raise SettingsError(
            "`[service] groups_header` needs a `user_header`",
            location=at("service", "groups_header"),
        )
    headers = entries.get("user_header", ""), entries.get("groups_header", "")
    return Service(*headers, proxies)


def check_proxy(proxy: str, location: Any, name: str) -> None:
    """Check that a proxy is an address or a network.

    Raises
    ------
    SettingsError
        It is neither, or it is everybody.
    """
    try:
        network = ipaddress.ip_network(proxy)
    except ValueError as error:
        raise SettingsError(
            f"`{name} {proxy}`: {error}",
            hint="for example, 127.0.0.1 or 10.0.0.0/8",
            location=location,
        ) from error
    if network.prefixlen == 0:
        raise SettingsError(
            f"`{name} {proxy}` matches every address, so any client could claim to be any user",
            hint="name the proxy",
            location=location,
        )


def read_roles(entries: Mapping[str, Any]) -> tuple[Role, ...]:
    """Return the roles of `[roles.NAME]`.

    Raises
    ------
    SettingsError
        A name or a value is invalid, or a key is unknown.
    """
    roles: list[Role] = []
    for name, values in entries.items():
        path = ("roles", name)
        if not isinstance(values, dict):
            message = f"`roles.{name}` must be a table"
            raise SettingsError(message, hint=f"[roles.{name}]", location=at(*path))
        keys = cast("dict[str, Any]", values)
        if name in BUILT_IN or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise SettingsError(
                f"invalid role name `{name}`",
                hint="use letters, digits, dashes and underscores; `read` and `write` are built in",
                location=at(*path),
            )
        check_keys(keys, ROLE_KEYS, *path)
        lists = (_texts(keys.get(k, []), *path, k) for k in ("groups", "build", "promote"))
        roles.append(Role(name, *lists, admin=keys.get("admin", False)))
    return tuple(roles)


def _texts(values: list[Any], *path: str) -> tuple[str, ...]:
    if not all(isinstance(v, str) and v.strip() for v in values):
        message = f"`{'.'.join(path)}` must be a list of strings, got {values!r}"
        raise SettingsError(message, location=at(*path))
    return tuple(values)
