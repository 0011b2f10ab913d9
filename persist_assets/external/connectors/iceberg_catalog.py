"""Catalogs of Iceberg tables, REST and AWS Glue: which metadata file of a table is the newest.

`pyiceberg` asks the catalog, and only that. Files are read with the table's own access, so that a
catalog decides neither which code reads them nor with which keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import StorageError
from persist_assets.core.object_stores import CONNECT_S
from persist_assets.core.trust import permit
from persist_assets.external.connectors.reading import first_line
from persist_assets.storage.waiting import patience_now

if TYPE_CHECKING:
    from collections.abc import Mapping

URI, TABLE, REGION = "rest.uri", "table_name", "glue.region"
_REST, _GLUE = "rest.", "glue."
_ANSWERED = frozenset(("uri", "prefix", "namespace-separator"))
"""The properties that the configuration of a REST catalog may set."""
_REFUSALS = (
    "AccessDenied",
    "UnrecognizedClient",
    "InvalidSignature",
    "ExpiredToken",
    "InvalidClient",
)
"""The beginnings of Glue's error codes if it refuses the keys, or a request with them."""


def newest_metadata(storage: Mapping[str, str], io: Any) -> str:
    """Return the location of the newest metadata file of a table in a catalog.

    Parameters
    ----------
    storage
        The options of the catalog and of stores, with references resolved.
    io
        The table's access to files.

    Raises
    ------
    StorageError
        The catalog does not know the table, refuses, or answers something else.
    OSError
        It cannot be reached.
    UntrustedError
        It names another server that must not be reached; see `trust.permit`.
    """
    return _rest_metadata(storage) if URI in storage else _glue_metadata(storage, io)


def _rest_metadata(storage: Mapping[str, str]) -> str:
    from pydantic import ValidationError
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.exceptions import (
        ForbiddenError,
        NoSuchTableError,
        OAuthError,
        RESTError,
        UnauthorizedError,
    )

    class Catalog(RestCatalog):
        """A catalog whose responses cannot choose code, keys, or an untrusted server."""

        def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
            return None

        def _fetch_config(self) -> None:
            declared = dict(self.properties)
            super()._fetch_config()
            answered = {n: v for n, v in self.properties.items() if n in _ANSWERED}
            if not all(isinstance(value, str) for value in (self.uri, *answered.values())):
                raise ValueError("its configuration has values that are not strings")
            permit(self.uri)
            self.properties = {**declared, **answered}

        def _create_legacy_oauth2_auth_manager(self, session: Any) -> Any:
            session.max_redirects = 0  # a redirect would send the credentials elsewhere
            return super()._create_legacy_oauth2_auth_manager(session)

    uri, table = storage[URI], storage[TABLE]
    options = {
        name.removeprefix(_REST): value for name, value in storage.items() if name.startswith(_REST)
    }
    try:
        catalog: Any = Catalog("persist", **options)
        place: str | None = catalog.load_table(table).metadata_location
    except NoSuchTableError as error:
        raise StorageError(
            f"the catalog at {uri} has no table `{table}`",
            hint="check table_name, and rest.warehouse",
        ) from error
    except (ForbiddenError, OAuthError, UnauthorizedError) as error:
        raise StorageError(
            f"the catalog at {uri} refuses `{table}`: {first_line(error)}",
            hint="check rest.token, or rest.credential and rest.scope, and what they may read",
        ) from error
    except (RESTError, TypeError, ValidationError, ValueError) as error:
        raise StorageError(
            f"the catalog at {uri} does not answer as one of Iceberg: {first_line(error)}",
            hint="check rest.uri, rest.warehouse and the credentials",
        ) from error
    if not place:
        raise StorageError(f"the catalog at {uri} names no metadata file of `{table}`")
    return place


def _glue_metadata(storage: Mapping[str, str], io: Any) -> str:
    try:
        from botocore import exceptions as aws
    except ImportError as error:
        raise StorageError(
            "finding Iceberg tables in Glue requires boto3",
            hint="pip install 'persist-assets[glue]'",
        ) from error
    from pyiceberg.exceptions import (
        NoSuchIcebergTableError,
        NoSuchPropertyException,
        NoSuchTableError,
    )

    glue, table = f"Glue in {storage[REGION]}", storage[TABLE]
    try:
        place: str = _glue_catalog(storage, io).load_table(table).metadata_location
        return place
    except (NoSuchIcebergTableError, NoSuchPropertyException) as error:
        raise StorageError(
            f"`{table}` of {glue} is not an Iceberg table: {first_line(error)}",
            hint="declare a Delta table, or files, by their location",
        ) from error
    except NoSuchTableError as error:
        raise StorageError(
            f"{glue} has no table `{table}`", hint="check table_name, glue.region and glue.id"
        ) from error
    except (aws.ConnectionError, aws.HTTPClientError) as error:
        raise StorageError(
            f"{glue} cannot be reached: {first_line(error)}",
            hint="check glue.region, glue.endpoint and the network",
        ) from error
    except aws.ClientError as error:
        answer: Any = error.response
        is_forbidden = answer["ResponseMetadata"].get("HTTPStatusCode") in (401, 403)
        hint = "check glue.region and glue.id"
        if is_forbidden or str(answer["Error"].get("Code")).startswith(_REFUSALS):
            hint = f"{_KEYS}; they need the permission glue:GetTable"
        raise StorageError(f"{glue} refuses `{table}`: {first_line(error)}", hint=hint) from error
    except aws.BotoCoreError as error:
        raise StorageError(
            f"{glue} cannot be asked for `{table}`: {first_line(error)}", hint=_KEYS
        ) from error


def _glue_catalog(storage: Mapping[str, str], io: Any) -> Any:
    """Return the catalog of Glue, whose tables are read with the table's own access."""
    from botocore.config import Config
    from botocore.session import Session
    from pyiceberg.catalog.glue import GlueCatalog

    class Catalog(GlueCatalog):
        """A catalog whose answers choose neither the code that reads files nor its keys."""

        def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
            return io

    answer_s = patience_now().answer_s
    session = Session()
    limits = Config(connect_timeout=min(CONNECT_S, answer_s), read_timeout=answer_s)
    session.set_default_client_config(limits)
    options: dict[str, Any] = {n: v for n, v in storage.items() if n.startswith(_GLUE)}
    options |= {"glue.max-retries": _RETRIES, "botocore_session": session}
    return Catalog("persist", **options)


_RETRIES = 2
_KEYS = (
    "check glue.profile-name, or glue.access-key-id, glue.secret-access-key and glue.session-token;"
    " without them AWS_PROFILE, AWS_ACCESS_KEY_ID and the other sources of AWS's libraries count"
)
