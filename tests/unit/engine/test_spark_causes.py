"""Messages name the cause that Spark gives, and not the call that failed."""

from __future__ import annotations

import pytest

from persist_assets.engine.session import spark_cause

CAUSES = {
    "An error occurred while calling o19.parquet.\n: java.util.NoSuchElementException: key not found:"
    " c1#2\n\tat scala.collection.MapOps.default(Map.scala:289)": (
        "java.util.NoSuchElementException: key not found: c1#2"
    ),
    "An error occurred while calling o19.parquet.": "An error occurred while calling o19.parquet.",
    "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat java.base/x": (
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    ),
    "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n"
    "Caused by: org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero": (
        "[DIVIDE_BY_ZERO] Division by zero"
    ),
    "An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException:"
    " [STAGE_MATERIALIZATION_MULTIPLE_FAILURES] Multiple failures (2) in stage materialization: \n"
    "  1. SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n"
    "  2. SparkException: [INTERNAL_ERROR] Other. SQLSTATE: XX000 SQLSTATE: XX000\n\tat java": (
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    ),
    "org.apache.spark.SparkException: [STAGE_MATERIALIZATION_MULTIPLE_FAILURES] Multiple failures\n"
    "  1. OutOfMemoryError: Java heap space\n  2. OutOfMemoryError: Java heap space": (
        "1. OutOfMemoryError: Java heap space"
    ),
    "[TABLE_NOT_FOUND] No table x.; line 1 pos 14": "[TABLE_NOT_FOUND] No table x.",
    "": "RuntimeError",
}
"""The text of an error, and its cause."""


@pytest.mark.parametrize("text", CAUSES)
def test_the_cause_of_an_error_of_spark_is_its_message(text: str) -> None:
    assert spark_cause(RuntimeError(text)) == CAUSES[text]
