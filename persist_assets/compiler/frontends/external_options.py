"""The options of external tables' connectors: which there are, and which are secrets. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.core.object_stores import unfit_endpoint, unfit_region
from persist_assets.core.raw_options import OF_LISTINGS
from persist_assets.core.raw_options import OPTIONS as RAW_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.sources import External

FORMATS = {
    "delta_table_input": "delta",
    "iceberg_input": "iceberg",
    "postgres_input": "postgres",
    "directory_input": "directory",
}
"""The connectors of external tables, with the formats of their data."""

_PUSHDOWN, _FOLLOW = "predicate pushdown", "snapshot-and-follow"
LACKING: Mapping[str, tuple[str, ...]] = {
    "file_input": (_PUSHDOWN, _FOLLOW),
    "kafka_input": (_PUSHDOWN, _FOLLOW),
    "redpanda_input": (_PUSHDOWN, _FOLLOW),
    "url_input": (_PUSHDOWN, _FOLLOW),
    "http_input": (_PUSHDOWN, _FOLLOW),
    "adhoc_input": (_PUSHDOWN, _FOLLOW),
    "s3_input": (_PUSHDOWN, _FOLLOW),
    "pub_sub_input": (_PUSHDOWN, _FOLLOW),
    "nats_input": (_PUSHDOWN, _FOLLOW),
    "datagen": (_PUSHDOWN, _FOLLOW),
    "nexmark": (_PUSHDOWN, _FOLLOW),
    "clock": (_PUSHDOWN, _FOLLOW),
    "postgres_cdc_input": (_PUSHDOWN,),
}
"""Input connectors that are not supported here, with the reason."""

PROPERTIES = ("connectors", "materialized", "append_only", "skip_unused_columns")
CONNECTOR = ("name", "transport", "labels", "start_after")
TRANSPORT = ("name", "config")
MODES = ("snapshot", "follow", "snapshot_and_follow")

NOT_NEEDED: Mapping[str, str] = {
    "format": "the format follows from the data",
    "paused": "builds decide when to read data",
    "max_batch_size": "Spark decides how much to read at once",
    "max_queued_records": "Spark decides how much to read at once",
    "num_parsers": "Spark decides how many tasks to use",
    "max_concurrent_readers": "Spark decides how many tasks to use",
    "verbose": "use persist -v",
    "unity_allow_http_url": "the scheme of unity_workspace_url decides",
    "cdc_delete_filter": "mode cdc is not supported",
    "cdc_order_by": "mode cdc is not supported",
}
"""Options of Feldera that would have no effect here, with the reason."""

TRANSACTIONS = ("none", "snapshot", "catchup", "always")
"""Values of `transaction_mode`. Any of them changes nothing: every version is one transaction."""

_COMMON: Mapping[str, type] = {
    "mode": str,
    "filter": str,
    "timestamp_column": str,
    "skip_unused_columns": bool,
    "transaction_mode": str,
}
_VERSIONED: Mapping[str, type] = {
    "version": int,
    "snapshot_id": int,
    "datetime": str,
    "end_version": int,
    "snapshot_filter": str,
}
OPTIONS: Mapping[str, Mapping[str, type]] = {
    "delta": {
        "uri": str,
        **{k: v for k, v in _VERSIONED.items() if k != "snapshot_id"},
        **_COMMON,
    },
    "iceberg": {"uri": str, "metadata_location": str, **_VERSIONED, **_COMMON},
    "postgres": {"uri": str, "table": str, "cursor": str, **_COMMON},
    "directory": {"uri": str, "format": str, "options": dict, **_COMMON},
}
"""The options of connectors, by the format of their data, with their types."""

_INFERRING = ("inferSchema", "samplingRatio", "singleVariantColumn")
_OURS = ("columnPruning", "enforceSchema")
FILES: Mapping[str, tuple[str, ...]] = {
    form: tuple(o for o in RAW_OPTIONS[form] if o not in (*OF_LISTINGS, *_INFERRING, *_OURS))
    for form in ("parquet", "csv")
}
"""The formats of files in directories, with their options: those that say what rows files have.

The others choose files, infer columns, or would let bad records go unnoticed.
"""

PASSWORD = "password"
DATABASE_URL = re.compile(r"postgres(?:ql)?://[^#]*")

_S3 = ("access_key_id", "secret_access_key", "session_token", "region", "endpoint", "allow_http")
UNSIGNED = "aws_skip_signature"
STORAGE: Mapping[str, str] = {
    **{f"aws_{name}": f"aws_{name}" for name in _S3},
    "aws_default_region": "aws_region",
    "aws_endpoint_url": "aws_endpoint",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "s3.endpoint": "aws_endpoint",
    "aws_skip_signature": UNSIGNED,
    "s3.anonymous": UNSIGNED,
}
"""The accepted spellings of storage options, with their canonical names."""

OAUTH_SERVER = "rest.oauth2-server-uri"
CATALOGS: Mapping[str, tuple[str, ...]] = {
    "rest": (
        *("rest.uri", "rest.warehouse", "rest.prefix", "rest.scope", "rest.token"),
        *("rest.credential", OAUTH_SERVER),
    ),
    "glue": (
        *("glue.region", "glue.id", "glue.endpoint", "glue.profile-name", "glue.access-key-id"),
        *("glue.secret-access-key", "glue.session-token", "glue.warehouse"),
    ),
}
"""The types of catalogs of Iceberg tables, with their options."""

CATALOG = ("catalog_type", "table_name", *(name for names in CATALOGS.values() for name in names))
"""The options of catalogs of Iceberg tables."""

UNITY: Mapping[str, str] = {
    "unity_workspace_url": "unity_workspace_url",
    "databricks_workspace_url": "unity_workspace_url",
    "databricks_host": "unity_workspace_url",
    "unity_access_token": "unity_access_token",
    "databricks_access_token": "unity_access_token",
    "databricks_token": "unity_access_token",
}
"""The accepted spellings of Unity Catalog's options, with their canonical names."""

OF_ENVIRONMENT = re.compile(r"(azure|google|gcs|adls|fabric)[_.]")
OF_CATALOG = re.compile(r"(rest|glue)\.|catalog_type$|table_name$")

_SECRET = re.compile(
    r"password|passwd|secret|token|credential|access[_.-]?key|account[_.-]?key|private[_.-]?key"
    r"|api[_.-]?key|sas|bearer|signature",
    re.IGNORECASE,
)
"""Keys whose values must not be literal."""

REFERENCE = re.compile(r"\$\{env:([A-Za-z_]\w*)\}")
"""A reference to an environment variable, as in Feldera."""

ONE_VERSION = re.compile(r"(?:^|/)(?:v\d+|\d+-[^/]*)(?:\.gz)?\.metadata\.json(?:\.gz)?$")
"""Metadata files of Iceberg that are never rewritten: each describes one version of its table."""

LITERAL_SECRET = re.compile(
    r"://[^/@:]*:[^/@]*@|[?&](?:sig|sv|se|token|password|x-amz-\w+(?:-\w+)*)=", re.IGNORECASE
)
"""Credentials within a URI."""


def unfit_value(name: str, value: str) -> tuple[str, str] | None:
    """Return the error and hint for a storage option whose value is not a reference.

    Otherwise a region or an endpoint could lead to a host that the user did not approve.
    """
    check = {"aws_region": unfit_region, "aws_endpoint": unfit_endpoint}.get(name)
    if check is None and is_secret(name) and name not in _SPACED:
        check = _unfit_key
    return check(value) if check else None


_SPACED = (PASSWORD, "rest.credential")
"""Secrets that may contain blanks, and that no library puts into a header."""


def _unfit_key(value: str) -> tuple[str, str] | None:
    """Return the error and hint for a key or token that cannot stand in a header.

    Libraries would print it.
    """
    if re.fullmatch(r"[!-~]+", value):
        return None
    return "the key is invalid", "it must not contain blanks, line breaks or other than ASCII"


def is_secret(name: str) -> bool:
    """Whether an option with this name is a credential.

    Examples
    --------
    >>> is_secret("aws_secret_access_key"), is_secret("aws_region")
    (True, False)
    """
    return STORAGE.get(name.lower()) != UNSIGNED and _SECRET.search(name) is not None


_OF_TABLES = ("rest.warehouse", "rest.prefix", "glue.region", "glue.id")
"""The options of catalogs that decide which table a name means."""


def public_pairs(external: External) -> tuple[tuple[str, str], ...]:
    """Return the options that decide the rows of an external table, as sorted pairs, no secrets.

    Examples
    --------
    >>> from persist_assets.core.model.sources import External
    >>> public_pairs(External("delta_table_input", version=3))
    (('mode', 'snapshot_and_follow'), ('version', '3'))
    """
    options = {
        "mode": external.mode,
        "version": external.version,
        "datetime": external.datetime,
        "end_version": external.end_version,
        "filter": external.filter,
        "snapshot_filter": external.snapshot_filter,
        "cursor": external.cursor,
        # prefixed, because `mode` is an option of CSV too
        **{f"files.{name}": value for name, value in external.reading},
        "endpoint": dict(external.storage).get("aws_endpoint"),
        **{name: dict(external.storage).get(name) for name in _OF_TABLES},
    }
    return tuple(sorted((k, str(v)) for k, v in options.items() if v is not None))
