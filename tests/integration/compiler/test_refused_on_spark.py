"""Spark rejects the queries that `check` rejects with certainty, and accepts the lookalikes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.certain import ACCEPTED, COLUMNS, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def tables(spark: Any) -> Iterator[Any]:
    """Return the session, with empty tables for the queries."""
    for name, columns in COLUMNS.items():
        spark.createDataFrame([], columns).createOrReplaceTempView(name)
    yield spark
    for name in COLUMNS:
        spark.catalog.dropTempView(name)


@pytest.mark.slow
@pytest.mark.proves("W6")
def test_spark_rejects_what_check_rejects_and_accepts_lookalikes(tables: Any) -> None:
    from pyspark.errors import AnalysisException

    accepted: list[str] = []
    for query, *_ in REFUSED:
        try:
            tables.sql(query)
        except AnalysisException:  # includes errors of its parser
            continue
        accepted.append(query)
    assert accepted == []
    refused: list[str] = []
    for query in ACCEPTED:
        try:
            tables.sql(query)
        except AnalysisException as error:
            refused.append(f"{query}: {error}")
    assert refused == []
