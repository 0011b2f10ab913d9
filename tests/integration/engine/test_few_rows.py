"""Frames of few rows, planned once by a copy of the session without adaptive execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.settings.load import load_settings
from persist_assets.engine.few_rows import (
    MOST_COLLECTED_ROWS,
    collected,
    in_memory,
    in_session,
    twin_of,
)
from persist_assets.engine.spark import SparkEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_small_frames_use_a_session_with_equal_settings_but_no_adaptive_plans(
    spark: Any, make_project: Callable[..., Path]
) -> None:
    engine = SparkEngine(load_settings(make_project({})), lambda: spark)
    session: Any = engine.session
    frame = session.sql("SELECT id % 3 AS k, count(*) AS n FROM range(10) GROUP BY 1")
    few: Any = engine.for_few_rows(frame)
    assert sorted(few.collect()) == sorted(frame.collect()) == [(0, 4), (1, 3), (2, 3)]
    assert few.schema == frame.schema
    plans = [one._jdf.queryExecution().executedPlan().toString() for one in (frame, few)]
    assert ["AdaptiveSparkPlan" in plan for plan in plans] == [True, False]
    twin = few.sparkSession
    for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled"):
        assert twin.conf.get(key) == session.conf.get(key)
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"
    assert engine.for_few_rows(frame).sparkSession is twin


EXACT = """
SELECT CAST(i AS TINYINT) AS a, CAST(i AS SMALLINT) AS b, CAST(i AS INT) AS c, i AS d,
  i > 0 AS e, CAST(i AS DECIMAL(38, 18)) / 3 AS f, CAST(i AS DECIMAL(5, 2)) AS g, x, CAST(x AS
  FLOAT) AS y, s, CAST(s AS BINARY) AS t, day, at, CAST(at AS TIMESTAMP_NTZ) AS l
FROM VALUES
  (1L, double('NaN'), 'é', DATE '0001-01-01', TIMESTAMP '0001-01-01 00:00:00'),
  (-1L, -0.0D, '', DATE '9999-12-31', TIMESTAMP '1883-11-18 12:03:57.999999'),
  (0L, 0.0D, string(X'ff00'), DATE '1582-10-10', TIMESTAMP '9999-12-31 23:59:59.999999'),
  (NULL, NULL, NULL, NULL, NULL) AS v(i, x, s, day, at)
"""
AS_TEXT = (
    "SELECT struct(a, b, c, d, e, f, g, x, y, day, at, l)::STRING, hex(s), hex(t),"
    " unix_micros(at) FROM {rows} ORDER BY d"
)


@pytest.mark.proves("T8", "T18")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_rows_in_memory_are_the_rows_that_were_computed(spark: Any, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    frame = session.sql(EXACT)
    table = collected(frame)
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert all(field.nullable for field in collected(session.range(3)).schema)
    rows = in_memory(table, session, frame.schema)
    assert rows is not None
    assert not rows.inputFiles()
    assert rows.rdd.getNumPartitions() == 1
    assert [(f.name, f.dataType) for f in rows.schema] == [
        (f.name, f.dataType) for f in frame.schema
    ]
    texts = [session.sql(AS_TEXT, rows=r).collect() for r in (rows, frame)]
    assert texts[0] == texts[1]
    assert "NaN" in str(texts) and "-0.0" in str(texts)


def test_many_rows_and_other_types_are_not_computed_in_memory(spark: Any) -> None:
    session = spark.newSession()
    for other in ("array(1)", "INTERVAL '1' DAY", "'a' COLLATE UTF8_LCASE", "NULL", "struct(1)"):
        frame = session.sql(f"SELECT 1 AS k, {other} AS o")
        assert collected(frame) is None
        assert in_memory(session.sql("SELECT 1 AS k").toArrow(), session, frame.schema) is None
    assert collected(session.range(MOST_COLLECTED_ROWS + 1)) is None
    for n in (10_000, 10_001):
        frame = session.range(n)
        table = collected(frame)
        assert table.num_rows == n
        rows = in_memory(table, session, frame.schema)
        assert (rows is not None) == (n == 10_000)
    wide = session.sql("SELECT repeat('x', 300000) AS s")
    assert in_memory(collected(wide), session, wide.schema) is None


@pytest.mark.proves("T18")
def test_code_for_a_union_of_few_rows_is_generated_once(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    session.conf.set("spark.sql.optimizer.excludedRules", "other.Rule")
    twin = twin_of(session)
    assert twin.conf.get("spark.sql.optimizer.excludedRules").startswith("other.Rule,")
    compiled = session._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME
    part = "SELECT explode(sequence(1L, id + {})) AS k FROM range(2)"  # of any number of rows
    union = f"{part.format(1)} UNION ALL {part.format(2)}"

    def collect() -> int:
        before = compiled().getCount()
        rows = collected(in_session(session.sql(union), twin))
        assert sorted(rows["k"].to_pylist()) == [1, 1, 1, 1, 2, 2, 2, 3]
        return compiled().getCount() - before

    assert collect() > 0
    assert collect() == 0
