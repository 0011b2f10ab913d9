"""The statistics of files tell which of them can have rows with some keys."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_assets.building.key_files import are_apart, files_with
from persist_assets.core.time_values import overlaps_any

_VALUES = st.lists(st.integers(-20, 20), min_size=1, max_size=6)


@pytest.mark.proves("T26")
@given(st.lists(_VALUES, max_size=8), st.sets(st.integers(-20, 20), max_size=8))
def test_no_file_with_a_key_is_left_out(rows: list[list[int]], keys: set[int]) -> None:
    files = {f"f{n}": values for n, values in enumerate(rows)}
    spans = {name: (min(values), max(values)) for name, values in files.items()}
    spans.pop("f3", None)  # it has no statistics
    having = files_with(files, spans, overlaps_any((key, key) for key in keys))
    assert {name for name, values in files.items() if keys.intersection(values)} <= {*having}
    for name in {*having} & spans.keys():
        low, high = spans[name]
        assert any(low <= key <= high for key in keys)
    assert "f3" not in files or "f3" in having


@pytest.mark.proves("T26")
def test_files_are_compared_with_keys_only_if_they_are_in_the_order_of_the_column() -> None:
    assert are_apart([(0, 9), (10, 19), (20, 29)])
    assert are_apart([(date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 2, 1), date(2024, 3, 1))])
    assert are_apart([(3, 3), (3, 3)])
    assert not are_apart([(0, 99), (1, 100), (2, 98)])
