"""Connectors to external tables. A new kind of source is a new row of `CONNECTORS`.

A connector names the current version, selects the files that a predicate needs, and returns rows
and changes as Spark frames, distributed over the executors. It stores nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from persist_assets.external.connectors.access import follow_references
from persist_assets.external.connectors.delta import DeltaConnector
from persist_assets.external.connectors.directory import directory_connector
from persist_assets.external.connectors.iceberg import IcebergConnector
from persist_assets.external.connectors.postgres import PostgresConnector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from pyspark.sql import SparkSession

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import RawTable
    from persist_assets.external.connectors.protocol import Connector

CONNECTORS: Mapping[str, Callable[..., Connector]] = {
    "delta_table_input": DeltaConnector,
    "iceberg_input": IcebergConnector,
    "postgres_input": PostgresConnector,
    "directory_input": directory_connector,
}
"""The constructors of connectors, by the name of a transport."""


def connect(
    raw: RawTable,
    location: str,
    columns: Sequence[Column],
    session: Callable[[], SparkSession],
    timezone: ZoneInfo,
    environ: Mapping[str, str] = os.environ,
) -> Connector:
    """Return the connector of an external table.

    Parameters
    ----------
    location
        Absolute path or URI.
    columns
        The declared columns.
    session
        Returns the Spark session; called when rows are read.
    timezone
        The session's time zone.
    environ
        The environment variables that secrets refer to.

    Raises
    ------
    StorageError
        A referenced variable is not set.
    """
    assert raw.external is not None
    access = follow_references(raw.external, environ)
    make = CONNECTORS[raw.external.connector]
    return make(raw.external, location, columns, access, session, timezone)
