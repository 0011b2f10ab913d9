"""The recorded names of columns without an alias match those of the installed Spark."""

from __future__ import annotations

from typing import Any

import pytest
from implicit import names, recorded


@pytest.mark.slow
@pytest.mark.proves("S1")
def test_recorded_names_of_columns_without_an_alias_match_spark(spark: Any) -> None:
    record = recorded()
    assert {e: found and found[0] for e, found in names(spark, list(record))} == record
