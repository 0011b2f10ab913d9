"""Locations of data, and the options with which delta-rs and Spark reach their stores. Pure.

A location is an absolute local path or a URI, and never quoted: ``%20`` in it is three characters.
The invariant: all libraries (delta-rs, pyarrow in `storage/files.py`, Spark) get a location from a
function of this module or of `storage/files.py`, based on one `Store`, so that all of them reach
the same place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from persist_assets.core.errors import SettingsError, StorageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMES: Mapping[str, str] = {
    "s3": "s3a",
    "s3a": "s3a",
    "gs": "gs",
    "abfss": "abfss",
    "abfs": "abfs",
    "hdfs": "hdfs",
}
"""The schemes of remote locations, with Spark's names."""

ICEBERG_SCHEMES = ("oss", "viewfs", "wasb", "wasbs")
"""The schemes allowed only for tables whose metadata `pyiceberg` reads."""

SPARK_PACKAGES: Mapping[str, str] = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "abfs": "org.apache.hadoop:hadoop-azure",
}
"""The libraries that Spark's distribution lacks to reach them."""

CONNECT_S = 5
"""The time limit for a connection to a store, in seconds."""
_EXPIRED = (
    r"ExpiredToken|EXPIRED_TOKEN|TokenRefreshRequired|RequestExpired|ExpiredAuthenticationToken"
    r"|(?i:(?:token|credentials?)\b[^.;\n]{0,60}\bexpired\b)"
)
_DENIED = (
    r"AccessDenied|ACCESS_DENIED|Forbidden|InvalidAccessKeyId|INVALID_ACCESS_KEY|Signature"
    r"|SIGNATURE|Unauthorized|InvalidToken|InvalidClientTokenId|credential|Credential"
    r"|(?:[Ss]tatus|[Cc]ode)\W*40[13]\b|169\.254\.169\.254"
)
_THROTTLED = re.compile(
    r"\bSlowDown\b|\bSLOW_DOWN\b|TooManyRequests|ServerBusy|RequestLimitExceeded|rateLimitExceeded"
    r"|\b(?:Request)?Throttl(?:ing|ed)(?:Exception)?\b|THROTTL|Please reduce your request rate"
    r"|(?:[Ss]tatus|[Cc]ode)(?: [Cc]ode)?:? ?(?:429|503)\b"
)
_OF_STORES = re.compile(r"s3a|awssdk|amazonaws|azurebfs|abfs|azure\.storage|gs://|googleapis|gcsio")
_FULL = re.compile(
    r"No space left on device|[Dd]isk quota exceeded|database or disk is full"
    r"|\(os error (?:28|122)\)|\[Errno (?:28|122)\]"
)
_HINTS = {
    r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist": "create the bucket, or use another",
    _EXPIRED: "the credentials have expired: get new ones, for S3 AWS_ACCESS_KEY_ID,"
    " AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, then try again",
    _DENIED: "check the credentials, for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and"
    " their permissions",
    _THROTTLED.pattern: "the store limits the request rate: build fewer sources at once"
    " (`parallel`), or wait longer (`store_retry`)",
    r"tcp connect|[Tt]imeout|timed out|Could not connect|dns error|resolve host|NETWORK_CONNECTION"
    r"|error sending request": 'check the endpoint: [store."s3://BUCKET"] or AWS_ENDPOINT_URL',
}
"""Hints for messages of stores; the first match counts."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_REGION = re.compile(r"[A-Za-z0-9_-]+")
"""One label of a host name, because libraries put regions into host names."""
_ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?(?:/[^\s?#\\]*)?", re.ASCII)
"""URLs whose host all libraries parse alike."""
_NOT_IN_TABLES = re.compile(r"[\[\]\\]|%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class Patience:
    """The time limits for stores, in seconds.

    Attributes
    ----------
    answer_s
        The time limit for the answer to one request.
    retry_s
        The time limit for repeating requests that a store throttles.
    """

    answer_s: int = 60
    retry_s: int = 300


PATIENCE = Patience()
"""The default patience."""


@dataclass(frozen=True, slots=True)
class Store:
    """The access to a bucket of an S3-compatible store; credentials come from the environment.

    Attributes
    ----------
    bucket
        Empty: any bucket without an entry of its own.
    endpoint
        The URL of the server, None for Amazon's.
    region
        None: the default of the libraries.
    """

    bucket: str
    endpoint: str | None = None
    region: str | None = None

    @property
    def allows_http(self) -> bool:
        """Whether requests are not encrypted."""
        return (self.endpoint or "").startswith("http://")


# -------------------------------------------------------------------------------------- locations


def scheme_of(location: str) -> str:
    """Return the scheme of a location in lower case; empty for a path.

    Examples
    --------
    >>> scheme_of("S3://lake/x"), scheme_of("/data/a:b"), scheme_of("a:b/c")
    ('s3', '', '')
    """
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def is_local(location: str) -> bool:
    """Whether a location is a path on this machine."""
    return not scheme_of(location)


def unknown_scheme(location: str, more: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return the error and hint for a location with an unknown scheme, or None.

    Parameters
    ----------
    more
        Schemes that are allowed in addition to the usual ones.
    """
    scheme, known = scheme_of(location), ["file", *SCHEMES, *more]
    if not scheme or scheme in known:
        return None
    close = did_you_mean(scheme, known)
    supported = f"a path, or one of {', '.join(f'{k}://' for k in known)}"
    hint = f"{close} Supported: {supported}" if close else supported
    return f"{location}: the URL scheme `{scheme}://` is not supported", hint


def unfit_for_tables(location: str) -> str | None:
    """Return the part of a location with which delta-rs cannot have a table there, or None."""
    match = _NOT_IN_TABLES.search(location)
    return match[0] if match else None


# ----------------------------------------------------------------------------------- descriptions


def unfit_region(region: str) -> tuple[str, str] | None:
    """Return the error and hint for an invalid region, or None.

    Examples
    --------
    >>> unfit_region("eu-central-1"), unfit_region("evil.example/x")[0]
    (None, 'the region `evil.example/x` is invalid')
    """
    if _REGION.fullmatch(region):
        return None
    return f"the region `{region}` is invalid", "for example, eu-central-1"


def unfit_endpoint(endpoint: str) -> tuple[str, str] | None:
    """Return the error and hint for an invalid endpoint of a store, or None.

    Examples
    --------
    >>> unfit_endpoint("https://minio:9000"), unfit_endpoint("minio:9000")[0]
    (None, 'the store endpoint `minio:9000` is not a URL')
    """
    if _ENDPOINT.fullmatch(endpoint):
        return None
    hint = "for example, https://minio.example.com:9000"
    return f"the store endpoint `{endpoint}` is not a URL", hint


def read_stores(
    entries: Mapping[str, Mapping[str, str]], environ: Mapping[str, str]
) -> tuple[Store, ...]:
    """Return the stores that `[store]` describes, sorted.

    Parameters
    ----------
    entries
        The tables of settings by ``s3://BUCKET``.
    environ
        The environment variables, with the defaults for all buckets.

    Raises
    ------
    SettingsError
        A key is not a bucket, an endpoint is not a URL, or a region is invalid.
    """
    other = any_store(environ)
    stores: list[Store] = []
    for location, entry in entries.items():
        parts = urlsplit(location)
        if SCHEMES.get(scheme_of(location)) != "s3a" or not parts.netloc or parts.path.strip("/"):
            raise SettingsError(
                f'`[store."{location}"]` is not a bucket of an S3-compatible store',
                hint='[store."s3://BUCKET"]; other stores need only environment variables',
            )
        endpoint = entry.get("endpoint", other.endpoint)
        stores.append(Store(parts.netloc, endpoint, entry.get("region", other.region)))
    for store in (*stores, other):
        wrong = (unfit_endpoint(store.endpoint) if store.endpoint else None) or (
            unfit_region(store.region) if store.region else None
        )
        if wrong:
            raise SettingsError(wrong[0], hint=wrong[1])
    return tuple(sorted(stores, key=lambda s: s.bucket))


def any_store(environ: Mapping[str, str]) -> Store:
    """Return the store of buckets without an entry, from the standard variables for S3."""

    def first(*names: str) -> str | None:
        return next((environ[n] for n in names if environ.get(n)), None)

    return Store(
        "",
        first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        first("AWS_REGION", "AWS_DEFAULT_REGION"),
    )


def bucket_of(location: str) -> str | None:
    """Return the bucket of a location in an S3-compatible store; None if it is elsewhere."""
    return urlsplit(location).netloc if SCHEMES.get(scheme_of(location)) == "s3a" else None


# ---------------------------------------------------------------------------------- what they say


def is_throttled(message: str) -> bool:
    """Whether a message means that a store throttles requests.

    Examples
    --------
    >>> is_throttled("HTTP status 503"), is_throttled("key 503 not found")
    (True, False)
    """
    return _THROTTLED.search(message) is not None


def is_expired(message: str) -> bool:
    """Whether a message means that credentials have expired.

    Examples
    --------
    >>> is_expired("The provided token has expired."), is_expired("the lease has expired")
    (True, False)
    """
    return re.search(_EXPIRED, message) is not None


def is_of_store(message: str) -> bool:
    """Whether a message of Spark comes from the libraries that access stores."""
    return _OF_STORES.search(message) is not None


def is_full(message: str) -> bool:
    """Whether a message means that a disk, or its quota, is full.

    Examples
    --------
    >>> is_full("[Errno 28] No space left on device"), is_full("the table is full")
    (True, False)
    """
    return _FULL.search(message) is not None


def full_disk(directory: object, failed: str) -> StorageError:
    """Return the error to raise if the disk of a directory is full.

    Parameters
    ----------
    failed
        The sentence that says what failed.
    """
    hint = "free some space and try again; earlier builds are not lost"
    return StorageError(f"the disk of {directory} is full: {failed}", hint=hint)


def hint_about(message: str) -> str | None:
    """Return the hint for a message of a store, or of a library that reaches it; None: unknown."""
    return next((h for pattern, h in _HINTS.items() if re.search(pattern, message)), None)


# ------------------------------------------------------------------------------------ settings


def delta_uri(location: str) -> str:
    """Return a location for delta-rs: quoted if it is a URI."""
    if is_local(location):
        return location
    start = location.index("://") + 3
    return location[:start] + quote(location[start:], safe="/@:~")


def delta_options(location: str, store: Store | None, patience: Patience) -> dict[str, str] | None:
    """Return the `storage_options` with which delta-rs reaches a location."""
    if is_local(location):
        return None
    answer_s = patience.answer_s
    options = {
        "connect_timeout": f"{min(CONNECT_S, answer_s)}s",
        "timeout": f"{answer_s}s",
        "max_retries": "3",
        "retry_timeout": f"{answer_s}s",
    }
    if store is not None:
        if store.endpoint:
            options["AWS_ENDPOINT_URL"] = store.endpoint
        if store.region or store.endpoint:
            options["AWS_REGION"] = store.region or "us-east-1"
        options["AWS_ALLOW_HTTP"] = str(store.allows_http).lower()
        options["AWS_CONDITIONAL_PUT"] = "etag"
    return options


def spark_uri(location: str) -> str:
    """Return a location for Spark, which has another scheme for S3, and a default for paths.

    Examples
    --------
    >>> spark_uri("s3://lake/x"), spark_uri("/data/x y")
    ('s3a://lake/x', 'file:///data/x y')
    """
    scheme = scheme_of(location)
    if not scheme:
        return f"file://{location}"
    return SCHEMES.get(scheme, scheme) + location[len(scheme) :]


def spark_pattern(location: str) -> str:
    """Return a location for Spark to read, with the special characters of patterns escaped."""
    return re.sub(r"([{}\[\]*?\\])", r"\\\1", spark_uri(location))


def spark_settings(stores: Iterable[Store]) -> dict[str, str]:
    """Return the settings with which Spark reaches stores; Spark finds credentials by itself."""
    settings: dict[str, str] = {}
    for store in stores:
        prefix = "spark.hadoop.fs.s3a." + (f"bucket.{store.bucket}." if store.bucket else "")
        if store.endpoint:
            settings[f"{prefix}endpoint"] = store.endpoint
            settings[f"{prefix}path.style.access"] = "true"
            settings[f"{prefix}connection.ssl.enabled"] = str(not store.allows_http).lower()
        if store.region or store.endpoint:
            settings[f"{prefix}endpoint.region"] = store.region or "us-east-1"
    return settings
