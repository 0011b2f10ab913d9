"""Digests of few rows depend on their values, and on nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from persist_assets.storage.arrow_rows import digest_of

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int64(), [3, None, 1]),
    "strings": (pa.string(), ["", None, "é"]),
    "bytes": (pa.binary(), [b"", None, b"\xff"]),
    "booleans": (pa.bool_(), [True, None, False]),
    "decimals": (pa.decimal128(38, 18), [Decimal(1), None, Decimal(-2)]),
    "days after those that Python has": (pa.date32(), [2_932_900, None, -1_000_000]),
    "moments before those that Python has": (pa.timestamp("us", "UTC"), [-(10**17), None, 5]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.proves("T18")
def test_digests_do_not_depend_on_the_order_of_rows_or_on_files(name: str) -> None:
    kind, values = COLUMNS[name]
    rows = pa.table({"a": pa.array(values, kind), "b": pa.array(range(3), pa.int32())})
    others = pa.concat_tables([rows.slice(2), rows.slice(0, 2)]).replace_schema_metadata({"k": "v"})
    required = pa.schema([rows.schema.field("a"), pa.field("b", pa.int32(), nullable=False)])
    digests = {digest_of(t) for t in (rows, others, rows.cast(required))}
    assert len(digests) == 1
    fewer, renamed = rows.slice(1), rows.rename_columns(["a", "c"])
    swapped = rows.set_column(1, "b", pa.array([1, 0, 2], pa.int32()))
    wider = rows.cast(pa.schema([rows.schema.field("a"), ("b", pa.int64())]))
    assert not digests & {digest_of(t) for t in (fewer, renamed, swapped, wider)}
