"""The list of Spark's functions is that of the Spark in use."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from conftest import ROOT


@pytest.mark.slow
@pytest.mark.proves("S25")
def test_the_list_of_functions_is_current(spark: Any) -> None:
    path = ROOT / "scripts" / "spark_functions.py"
    spec = importlib.util.spec_from_file_location("spark_functions", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.text_of(spark) == script.FILE.read_text(), (
        "run .venv/bin/python scripts/spark_functions.py"
    )
