"""Frames of few rows, planned once by a copy of the session without adaptive execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.core.settings.load import load_settings
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
