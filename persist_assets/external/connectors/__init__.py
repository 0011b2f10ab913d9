"""External tables, as they are reached: a row of `CONNECTORS` is a new kind of source.

A connector says which version there is, which files a predicate leaves, and brings rows and changes
as frames of Spark, spread over its executors. It keeps nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from persist_assets.external.connectors.access import follow_references
from persist_assets.external.connectors.delta import DeltaConnector
from persist_assets.external.connectors.iceberg import IcebergConnector

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
}
"""By the name of a transport, what makes the connector of a table."""


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
        As they are declared.
    session
        Called when rows are read.
    timezone
        The session's.
    environ
        What secrets are references to.

    Raises
    ------
    StorageError
        A variable that is referred to is not set.
    """
    assert raw.external is not None
    access = follow_references(raw.external, environ)
    make = CONNECTORS[raw.external.connector]
    return make(raw.external, location, columns, access, session, timezone)
