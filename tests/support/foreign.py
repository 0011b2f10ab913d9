"""External tables as tests reach them, and what others read of them."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa

from persist_assets.core.model.sources import External, RawTable
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.protocol import CHANGE, INSERT, VERSION, Connector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from persist_assets.core.model.columns import Column

UTC = ZoneInfo("UTC")
Bag = Counter[tuple[Any, ...]]


def delta_connector(
    spark: Any, root: Path, columns: Sequence[Column] = (), zone: ZoneInfo = UTC, **options: Any
) -> Connector:
    """Return the connector of a Delta table, for a session in a time zone."""
    external = External("delta_table_input", **options)
    return connect(
        RawTable("delta", str(root), (), external), str(root), columns, lambda: spark, zone
    )


def bag(rows: Any) -> Bag:
    """Return how often there is each row."""
    return Counter(tuple(row) for row in rows)


def applied(before: Bag, rows: Sequence[Any]) -> Bag:
    """Return a bag after changes, which take nothing away that is not there."""
    found = Counter(before)
    for row in sorted(rows, key=lambda r: (r[VERSION], r[CHANGE])):  # delete before insert
        values = tuple(row)[:-2]
        assert row[CHANGE] == INSERT or found[values] > 0
        found[values] += 1 if row[CHANGE] == INSERT else -1
    return +found


def by_delta(root: Path, version: int, columns: Sequence[str], where: str = "true") -> Bag:
    """Return the rows that delta-rs itself reads."""
    names = ", ".join(f'"{c}"' for c in columns)
    reader = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root, version=version))
    found = pa.table(reader.execute(f"SELECT {names} FROM t WHERE {where}"))
    return bag(map(_local, row.values()) for row in found.to_pylist())


def _local(value: Any) -> Any:
    """Return an instant as Spark hands it to Python."""
    is_instant = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone().replace(tzinfo=None) if is_instant else value
