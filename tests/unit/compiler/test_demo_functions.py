"""A source of the demo is a Python function, which can be tested without Spark."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import narwhals as nw
import pandas as pd
import polars as pl
import pytest
from conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

DAYS = {
    "flight_date": ["2013-01-01", "2013-01-02", "2013-01-01", "2013-01-01"],
    "origin": ["JFK", "JFK", "JFK", "EWR"],
    "hour": [8, 8, 9, 8],
    "n_flights": [10, 30, 5, 4],
    "delay": [100, 20, -5, 8],
}


def imported(name: str) -> ModuleType:
    path = ROOT / "examples" / "flights" / "sources" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"demo_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.proves("P27")
@pytest.mark.parametrize(
    "frame",
    [pl.LazyFrame, pd.DataFrame],
    ids=["polars", "pandas"],
)
def test_a_narwhals_function_has_the_same_rows_on_any_frame(frame: Callable[[Any], Any]) -> None:
    found = imported("hours").rush_hours(nw.from_native(frame(DAYS)).lazy()).collect()
    assert sorted(found.rows()) == [
        ("EWR", 8, 4, 2.0),
        ("JFK", 8, 40, 3.0),
        ("JFK", 9, 5, -1.0),
    ]
