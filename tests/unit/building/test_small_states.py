"""States of aggregates that are merged in memory, without Spark."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_assets.building.small_states import is_small, merged_here
from persist_assets.storage.arrow_rows import read_rows, write_rows

if TYPE_CHECKING:
    from pathlib import Path

KEY = st.tuples(st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "", "a"]))
STATE = st.dictionaries(KEY, st.integers(1, 9), max_size=6)
SCHEMA = pa.schema([("k0", pa.int32()), ("k1", pa.string()), ("n", pa.int64())])


def state(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = [*zip(*rows, strict=True)] or [()] * len(schema)
    return pa.table([*map(list, columns)], schema=schema)


def merged(place: Path, former: pa.Table, changed: pa.Table, n_keys: int) -> Any:
    write_rows(former, f"{place}/former")
    write_rows(changed, f"{place}/changed")
    return merged_here(read_rows(f"{place}/former"), read_rows(f"{place}/changed"), n_keys)


@settings(deadline=None)  # the first example imports a library
@given(former=STATE, changed=st.dictionaries(KEY, st.integers(0, 9), max_size=6))
def test_changed_groups_replace_previous_groups(
    tmp_path_factory: pytest.TempPathFactory,
    former: dict[tuple[Any, ...], int],
    changed: dict[tuple[Any, ...], int],
) -> None:
    tables = (state([(*key, n) for key, n in rows.items()]) for rows in (former, changed))
    now = merged(tmp_path_factory.mktemp("states"), *tables, 2)
    expected = {key: n for key, n in (former | changed).items() if n > 0}
    rows = [tuple(row.values()) for row in now.to_pylist()]
    assert sorted(map(repr, rows)) == sorted(repr((*key, n)) for key, n in expected.items())


def test_a_merged_state_keeps_its_types_and_sparks_metadata(tmp_path: Path) -> None:
    kinds = [("k0", pa.decimal128(9, 2)), ("k1", pa.date32()), ("p0", pa.float64()), ("n", "int64")]
    schema = pa.schema(kinds, metadata={"org.apache.spark.version": "4"})
    former = state([(Decimal("1.50"), date(2024, 1, 1), float("nan"), 2)], schema)
    changed = state([(Decimal("1.50"), date(2024, 1, 2), -0.0, 1)], schema.remove_metadata())
    now = merged(tmp_path, former, changed, 2)
    write_rows(now, f"{tmp_path}/now")
    assert len(read_rows(f"{tmp_path}/now")) == 2
    assert read_rows(f"{tmp_path}/now").schema.metadata == schema.metadata


def test_large_or_incomparable_states_are_left_to_spark(tmp_path: Path) -> None:
    assert is_small(100, ["int", "string", "decimal(9,2)", "date", "boolean"])
    for kind in ("double", "timestamp", "string collate UNICODE_CI", "struct<a:int>"):
        assert not is_small(100, ["int", kind]), kind
    assert not is_small(1_000_000, ["int"])
    other = SCHEMA.set(0, pa.field("k0", pa.int64()))
    assert merged(tmp_path, state([(1, "a", 1)]), state([(1, "a", 2)], other), 2) is None


def test_dates_outside_pythons_range_are_left_to_spark(tmp_path: Path) -> None:
    far = pa.array([10_000_000], pa.int32()).cast(pa.date32())
    table = pa.table([far, pa.array([1], pa.int64())], names=["k0", "n"])
    assert merged(tmp_path, table, table, 1) is None
