"""The stored list of Spark's functions matches the Spark in use."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from conftest import ROOT

from persist_assets.analysis.functions import functions_of
from persist_assets.core.spark_versions import spark_in_use


@pytest.mark.slow
@pytest.mark.proves("S25")
def test_the_list_of_functions_matches_the_spark_in_use(spark: Any) -> None:
    path = ROOT / "scripts" / "spark_functions.py"
    spec = importlib.util.spec_from_file_location("spark_functions", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    known = functions_of(spark_in_use(), script.FILE.read_text())
    assert script.read(spark) == known, "run .venv/bin/python scripts/spark_functions.py"
