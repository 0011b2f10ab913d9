"""Unity Catalog: where a Delta table is, and keys that may read it for a while.

`polars` asks the catalog. Not delta-rs, whose `uc://` asks for keys that may write, misses parts of
what Unity's own server answers, and tells nobody where the files are, which Spark reads. The
catalog decides neither which code reads the files nor which server of a store they are on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from persist_assets.compiler.frontends.external_options import UNSIGNED
from persist_assets.core.errors import StorageError
from persist_assets.core.object_stores import bucket_of
from persist_assets.core.trust import permit, place_of
from persist_assets.external.connectors.access import options_of_store
from persist_assets.external.connectors.reading import first_line
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

URL, TOKEN, TABLE = "unity_workspace_url", "unity_access_token", "table_name"
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_STATUS = re.compile(r"HTTP status \w+ error \((\d{3}) [^)]*\).*?response body: (.*)", re.DOTALL)
_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.)*)"')


class Placed(NamedTuple):
    """The location of a table, and access to it.

    Attributes
    ----------
    location
        An absolute path or URI.
    access
        The options of its store.
    """

    location: str
    access: Mapping[str, str]


def place_in_unity(storage: Mapping[str, str]) -> Placed:
    """Return where a Delta table of Unity Catalog is, with access to its files.

    The keys are the declared ones. If there are none, and the table is in an S3-compatible store,
    they are those that the catalog issues for reading this table, usually for an hour.

    Parameters
    ----------
    storage
        The options of the catalog and of stores, with references resolved.

    Raises
    ------
    StorageError
        The catalog does not know the table, refuses it, or cannot be reached; or the table is not
        in Delta's format.
    UntrustedError
        See `trust.permit`.
    """
    try:
        from polars import Catalog
    except ImportError as error:
        raise StorageError(
            "finding tables in Unity Catalog requires polars",
            hint="pip install 'persist-assets[unity]'",
        ) from error
    url, table = storage[URL], storage[TABLE]
    permit(url)
    catalog: Any = Catalog(url, bearer_token=storage.get(TOKEN), require_https=False)
    entry = _answer(url, table, lambda: catalog.get_table_info(*table.split(".")))
    location = _location_of(entry, url, table)
    access = options_of_store(storage)
    if bucket_of(location) is None or UNSIGNED in access or _KEYS[0] in access:
        return Placed(location, access)
    issued: Mapping[str, str] | None
    issued, _, _ = _answer(
        url, table, lambda: catalog._get_table_credentials(entry.table_id, write=False)
    )
    keys = {name: value for name, value in (issued or {}).items() if name in _KEYS}
    if not keys:
        raise StorageError(
            f"the catalog at {url} issues no keys for `{table}`", hint=f"name your own: {_KEYS[0]}"
        )
    return Placed(location, access | keys)


def _location_of(entry: Any, url: str, table: str) -> str:
    """Return where the files of a table are."""
    if entry.table_type not in ("MANAGED", "EXTERNAL") or not entry.storage_location:
        raise StorageError(
            f"`{table}` in the catalog at {url} is a {entry.table_type}, which has no files",
            hint="declare the tables that it reads, and write a view here",
        )
    if entry.data_source_format != "DELTA":
        raise StorageError(
            f"`{table}` in the catalog at {url} has the format {entry.data_source_format}",
            hint="`delta_table_input` reads DELTA; for ICEBERG use `iceberg_input` with"
            " catalog_type rest",
        )
    location = str(entry.storage_location).rstrip("/")
    return place_of(location) if location.startswith("file:") else location


def _answer(url: str, table: str, call: Callable[[], Any]) -> Any:
    """Return the answer of a catalog to a request.

    Raises
    ------
    StorageError
        It does not know the table, refuses it, or does not answer.
    """
    from polars.exceptions import PolarsError

    try:
        return ask(url, call, bounded=True)
    except PolarsError as error:
        text = str(error)
        failed = _STATUS.search(text)
        if failed is None:
            raise StorageError(
                f"the catalog at {url} does not answer as Unity Catalog: {first_line(error)}",
                hint="check unity_workspace_url and the network",
            ) from error
        body = _MESSAGE.search(failed[2])
        message = first_line(body[1] if body else failed[2])
        if failed[1] == "404":
            raise StorageError(
                f"the catalog at {url} has no table `{table}`: {message}", hint="check uri"
            ) from error
        hint = "check unity_workspace_url"
        if failed[1] in ("401", "403"):
            hint = "check unity_access_token: its user needs SELECT on the table, and on Databricks"
            hint += " EXTERNAL USE SCHEMA on its schema"
        raise StorageError(
            f"the catalog at {url} refuses `{table}`: {message}", hint=hint
        ) from error
