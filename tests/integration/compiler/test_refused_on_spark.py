"""Spark refuses what `check` refuses for certain, and accepts the lookalikes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.certain import ACCEPTED, COLUMNS, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def tables(spark: Any) -> Iterator[Any]:
    """Return the session, with the tables of the queries, empty."""
    for name, columns in COLUMNS.items():
        spark.createDataFrame([], columns).createOrReplaceTempView(name)
    yield spark
    for name in COLUMNS:
        spark.catalog.dropTempView(name)


@pytest.mark.slow
@pytest.mark.proves("W6")
def test_spark_and_check_refuse_the_same_queries(tables: Any) -> None:
    from pyspark.errors import AnalysisException

    accepted: list[str] = []
    for query, *_ in REFUSED:
        try:
            tables.sql(query)
        except AnalysisException:  # errors of its parser are too
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
