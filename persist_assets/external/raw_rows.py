"""Rows of raw Delta tables whose log deletes rows of files, or renames their columns.

The connector of external tables reads them; nothing is copied. Their changes are unknown, so what
reads them is computed as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.sources import External
from persist_assets.engine.named_files import padded
from persist_assets.external.connectors.delta import DeltaConnector
from persist_assets.external.connectors.delta_log import table_id_of
from persist_assets.storage.raw import OF_DELTA

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.storage.raw import Pin


def rows_by_log(
    settings: Settings, source: Source, pin: Pin, session: Callable[[], SparkSession]
) -> DataFrame:
    """Return the rows of a raw Delta table at a pinned version, as its log tells them.

    Parameters
    ----------
    pin
        One with `by_log`.
    session
        Returns the Spark session.

    Raises
    ------
    GoneError
        A file of the version is gone.
    StorageError
        The table was replaced, lacks declared columns, or has ones of other types.
    """
    assert source.raw is not None and pin.version is not None
    connector = DeltaConnector(
        External("delta_table_input"),
        settings.resolve(source.raw.location or ""),
        source.columns,
        {},
        session,
        settings.timezone,
    )
    version = f"{OF_DELTA}{pin.commit}:{table_id_of(pin.version)}"
    columns = [c.name for c in source.columns]
    return padded(connector.snapshot(None, columns, version), source.columns)
