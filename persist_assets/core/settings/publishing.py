"""The places where an environment publishes its tables under fixed names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import SettingsError
from persist_assets.core.object_stores import unfit_for_tables, unknown_scheme
from persist_assets.core.settings.checks import check_keys
from persist_assets.core.settings.keys import PUBLISH_KEYS
from persist_assets.core.settings.places import at
from persist_assets.core.settings.values import Publish, resolve_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from persist_assets.core.errors import Location

_CATALOG = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")


def read_publish(
    root: Path,
    section: str,
    environment: Mapping[str, Any],
    warehouse: str,
    reads: Sequence[str],
) -> Publish | None:
    """Return how an environment publishes its tables; None: it does not.

    Parameters
    ----------
    section
        The name of the environment in `persist.toml`.
    environment
        Its table there.
    reads
        The environments that it reads.

    Raises
    ------
    SettingsError
        A key or a place is unfit.
    """
    entry: dict[str, Any] = environment.get("publish", {})
    if not entry:
        return None
    path = ("env", section, "publish")
    check_keys(entry, PUBLISH_KEYS, *path)
    if section.endswith("*") or reads:
        other = "environments of a pattern" if section.endswith("*") else "it reads another one"
        raise SettingsError(
            f'`[env."{section}".publish]`: {other}, so its tables have no fixed names',
            hint="publish the environment that is read",
            location=at(*path),
        )
    place, catalog = str(entry.get("path", "")), str(entry.get("catalog", ""))
    if not place and not catalog:
        hint = 'path = "s3://bucket/prod", or catalog = "analytics"'
        raise SettingsError(
            f"`[env.{section}.publish]` needs `path` or `catalog`", hint=hint, location=at(*path)
        )
    if catalog and not _CATALOG.fullmatch(catalog):
        raise SettingsError(
            f"`[env.{section}.publish] catalog`: invalid name `{catalog}`",
            hint="letters, digits and underscores, separated by dots: unity.analytics",
            location=at(*path, "catalog"),
        )
    if place:
        place = resolve_path(root, place).rstrip("/")
        _check_place(section, place, warehouse)
    select: list[Any] = entry.get("select", [])
    if not all(isinstance(p, str) and p.strip() for p in select):
        raise SettingsError(
            f"`[env.{section}.publish] select` must be a list of selections, got {select!r}",
            hint='for example, select = ["marts/*", "tag:public"]',
            location=at(*path, "select"),
        )
    return Publish(place, catalog, tuple(select))


def _check_place(section: str, place: str, warehouse: str) -> None:
    """Refuse a directory in which tables cannot be published."""
    wrong, unfit = unknown_scheme(place), unfit_for_tables(place)
    if unfit:
        wrong = f"it cannot be {place}: delta-rs misreads `{unfit}`", "use another"
    inner, outer = f"{place}/", f"{warehouse.rstrip('/')}/"
    if inner.startswith(outer) or outer.startswith(inner):
        wrong = f"{place} overlaps the warehouse {warehouse}", "use another directory"
    if wrong:
        message = f"`[env.{section}.publish] path`: {wrong[0]}"
        raise SettingsError(message, hint=wrong[1], location=at("env", section, "publish", "path"))


def check_apart(entries: Mapping[str, Any], root: Path) -> None:
    """Refuse environments that would show their rows under the same names.

    Parameters
    ----------
    entries
        All entries of `persist.toml`.

    Raises
    ------
    SettingsError
        Two environments publish into one directory, or have views of the same names.
    """
    environments: dict[str, Any] = entries.get("env", {})
    default = entries.get("environment", "dev")
    shared_spark: dict[str, Any] = entries.get("spark", {})
    owners: dict[tuple[str, object], str] = {}
    for name in sorted({default, *environments}):
        if name.endswith("*"):
            continue
        own: dict[str, Any] = environments.get(name, {})
        publish: dict[str, Any] = own.get("publish", {})
        views, catalog = own.get("views", entries.get("views", "")), publish.get("catalog", "")
        # Other settings may connect the session to another catalog.
        spark = sorted({**shared_spark, **own.get("spark", {})}.items(), key=str)
        names = f"{catalog}.{{name}}" if catalog else str(views)
        place = at("env", name, "publish", "catalog") if catalog else at("env", name, "views")
        if not catalog and "views" not in own:
            place = at("views")
        if names:
            _take(owners, (names.lower(), repr(spark)), name, f"views called {names}", place)
        if publish.get("path"):
            path = resolve_path(root, str(publish["path"])).rstrip("/")
            place = at("env", name, "publish", "path")
            _take(owners, (path, None), name, f"tables in {path}", place)


def _take(
    owners: dict[tuple[str, object], str],
    names: tuple[str, object],
    environment: str,
    shown: str,
    place: Location,
) -> None:
    other = owners.setdefault(names, environment)
    if other != environment:
        raise SettingsError(
            f"`{other}` and `{environment}` would both publish {shown}: readers would get the rows"
            " of whichever was built last",
            hint="give each environment names of its own",
            location=place,
        )
