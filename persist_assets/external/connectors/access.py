"""Access to the store of an external table. References are resolved here, and only here.

The resolved options go to delta-rs, pyarrow and the Spark reader of one frame, and are stored
nowhere.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.external_options import (
    OAUTH_SERVER,
    REFERENCE,
    UNSIGNED,
    unfit_value,
)
from persist_assets.core.errors import SettingsError, StorageError
from persist_assets.core.settings.user import secret_of
from persist_assets.core.trust import permit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from persist_assets.core.model.sources import External

_SERVERS = ("aws_endpoint", OAUTH_SERVER)
_SPARK: Mapping[str, str] = {
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
    "aws_region": "endpoint.region",
    "aws_endpoint": "endpoint",
}

_ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"

_ICEBERG: Mapping[str, str] = {
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_region": "s3.region",
    "aws_endpoint": "s3.endpoint",
}


def follow_references(external: External, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the storage options of a table with their references resolved.

    Raises
    ------
    StorageError
        A variable is not set, may not be sent, or holds an invalid region or endpoint; the message
        gives its name, but no value.
    UntrustedError
        See `trust.permit`.
    """
    access = {name: _follow(name, written, environ) for name, written in external.storage}
    for place in (*map(access.get, _SERVERS), external.catalog_place):
        if place is not None:
            permit(place)
    return access


def servers_of(external: External, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the servers that a table names besides its location, directly or by a variable.

    A variable that `follow_references` refuses names none.
    """
    written = dict(external.storage)
    for name in _SERVERS:
        with suppress(StorageError):
            if name in written:
                yield _follow(name, written[name], environ)


def _follow(name: str, written: str, environ: Mapping[str, str]) -> str:
    reference = REFERENCE.fullmatch(written)
    value = _value(name, reference[1], environ) if reference else written
    wrong = unfit_value(name, value)
    if wrong:
        where = f"the variable {reference[1]}, which `{name}` refers to," if reference else name
        raise StorageError(f"the value of {where} is invalid", hint=wrong[1])
    return value


def _value(name: str, variable: str, environ: Mapping[str, str]) -> str:
    try:
        value = secret_of(variable, environ)
    except SettingsError as error:
        raise StorageError(f"`{name}`: {error.message}", hint=error.hint) from error
    if value is None:
        raise StorageError(
            f"`{name}` refers to the variable {variable}, which is not set",
            hint=f"export {variable}=…",
        )
    return value


def options_of_store(access: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the store, without those of a catalog."""
    return {name: value for name, value in access.items() if name.startswith("aws_")}


def delta_access(access: Mapping[str, str]) -> dict[str, str]:
    """Return options in the form that delta-rs takes."""
    return {name.upper(): value for name, value in access.items()}


def iceberg_access(access: Mapping[str, str]) -> dict[str, str]:
    """Return options in the form that pyiceberg takes."""
    unsigned = {"s3.anonymous": "true"} if UNSIGNED in access else {}
    return {_ICEBERG[n]: v for n, v in access.items() if n in _ICEBERG} | unsigned


def spark_access(access: Mapping[str, str]) -> dict[str, str]:
    """Return the options of one Spark read; S3A prefers them to those of the session."""
    options = {f"fs.s3a.{_SPARK[n]}": v for n, v in access.items() if n in _SPARK}
    if UNSIGNED in access:
        options["fs.s3a.aws.credentials.provider"] = _ANONYMOUS
    if options:
        # Otherwise a connection that was opened with other keys might be used.
        options["fs.s3a.impl.disable.cache"] = "true"
    if "aws_endpoint" in access:
        options["fs.s3a.path.style.access"] = "true"
    return options
