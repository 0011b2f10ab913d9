"""The options by which external tables are found in catalogs. Pure.

The invariant: an option that passes has an effect, identifies the table or is a reference to a
secret, and names no place with credentials in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from persist_assets.compiler.frontends.external_options import (
    CATALOG,
    CATALOGS,
    LITERAL_SECRET,
    OAUTH_SERVER,
    REFERENCE,
    UNITY,
    is_secret,
)
from persist_assets.core.errors import did_you_mean
from persist_assets.core.object_stores import unfit_endpoint, unfit_region

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNITY_SCHEME = "uc://"
UNUSED = ("catalog_type", "glue.warehouse")
"""Options that need not be passed on."""
_UNITY_URI = re.compile(rf"{UNITY_SCHEME}[\w-]+\.[\w-]+\.[\w-]+")
_NEEDED: Mapping[str, str] = {"rest": "rest.uri", "glue": "glue.region"}
_GLUE_KEYS = ("glue.access-key-id", "glue.secret-access-key")


class Wrong(NamedTuple):
    """A problem with an option.

    Attributes
    ----------
    code
        The kind of the problem.
    message, hint
        What is wrong, and what to write.
    key
        The option; None: it lacks.
    """

    code: str
    message: str
    hint: str | None = None
    key: str | None = None


def catalog_option(form: str, key: str) -> str | None:
    """Return the canonical name of an option of catalogs; None: it is another one.

    Examples
    --------
    >>> catalog_option("iceberg", "rest.uri"), catalog_option("delta", "databricks_host")
    ('rest.uri', 'unity_workspace_url')
    """
    if form == "delta":
        return UNITY.get(key.lower())
    return key if form == "iceberg" and key in CATALOG else None


def wrong_catalog_option(key: str, name: str, value: str, kind: str) -> Wrong | None:
    """Return what is wrong with an option of a catalog.

    Parameters
    ----------
    key, name
        The option as written, and its canonical name.
    kind
        The type of the catalog, as written.
    """
    owner = name.partition(".")[0]
    if name == "catalog_type" and value not in CATALOGS:
        hint = did_you_mean(value, CATALOGS) or f"known types: {', '.join(CATALOGS)}"
        return Wrong("option", f"catalogs of the type `{value}` are not supported", hint)
    if kind in CATALOGS and owner in CATALOGS and owner != kind:
        message = f"`{key}` has no effect on a catalog of the type `{kind}`"
        return Wrong("option", message, "remove it, or change catalog_type")
    if is_secret(name):
        if REFERENCE.fullmatch(value):
            return None
        variable = "PERSIST_SECRET_" + re.sub(r"\W", "_", name).upper()
        hint = f'use an environment variable: "{key}": "${{env:{variable}}}"'
        return Wrong("secret", f"`{key}` is a secret and must not be written here", hint)
    if "${" in value:
        message = f"`{key}` is part of what identifies the table, so it has to be written out"
        return Wrong("secret", message)
    return _misshapen(key, name, value, kind)


def _misshapen(key: str, name: str, value: str, kind: str) -> Wrong | None:
    if name in ("rest.uri", OAUTH_SERVER, "glue.endpoint", "unity_workspace_url"):
        if unfit_endpoint(value) or LITERAL_SECRET.search(value):
            message = f"`{key}` must be a URL without credentials"
            return Wrong("type", message, "for example, https://catalog.example.com")
    elif name == "glue.region":
        if wrong := unfit_region(value):
            return Wrong("type", *wrong)
    elif name == "table_name":
        parts = value.split(".")
        if not all(parts) or len(parts) < 2 or (kind == "glue" and len(parts) > 2):
            what = "database.table" if kind == "glue" else "namespace.table"
            return Wrong("type", f"`table_name` must be {what}")
    elif not value.strip():
        return Wrong("type", f"`{key}` must not be empty")
    return None


def problems_of_catalog(config: Mapping[str, object], uri: str) -> Iterator[Wrong]:
    """Yield what the declaration of an Iceberg table in a catalog lacks, or has too much.

    Parameters
    ----------
    uri
        The option that locates a table that is in no catalog.
    """
    needed = _NEEDED.get(str(config.get("catalog_type")))
    for key in ("catalog_type", needed, "table_name"):
        if key is not None and key not in config:
            yield Wrong("option", f"a catalog needs `{key}`")
    if uri in config:
        message = f"`{uri}` and a catalog both locate the data"
        yield Wrong("uri", message, "remove one of them", uri)
    present = [key for key in _GLUE_KEYS if key in config]
    if len(present) == 1:
        (lacking,) = {*_GLUE_KEYS} - {*present}
        yield Wrong("option", f"`{present[0]}` needs `{lacking}`", None, present[0])


def problems_of_unity(config: Mapping[str, object], place: str) -> Iterator[Wrong]:
    """Yield what is wrong with the location of a Delta table, or with Unity Catalog's options.

    Parameters
    ----------
    place
        The location as written.
    """
    options = {UNITY[key.lower()]: key for key in config if key.lower() in UNITY}
    if not place.startswith(UNITY_SCHEME):
        hint = "for a table in Unity Catalog, uri is uc://catalog.schema.table"
        for key in options.values():
            yield Wrong("option", f"`{key}` has no effect on a table that is elsewhere", hint, key)
        return
    if not _UNITY_URI.fullmatch(place):
        yield Wrong("uri", "`uri` must be uc://catalog.schema.table", None, "uri")
    if "unity_workspace_url" not in options:
        hint = 'for example, "unity_workspace_url": "https://example.cloud.databricks.com"'
        yield Wrong("option", "a table in Unity Catalog needs `unity_workspace_url`", hint)
