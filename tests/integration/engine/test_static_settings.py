"""The settings that a Spark session cannot change, according to Spark itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.core.settings.spark import SPARK_FIXED, SPARK_LOCAL
from persist_assets.engine.server import _STATIC_SQL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_shared_server_gets_every_setting_that_its_sessions_cannot_change(
    spark: SparkSession,
) -> None:
    jvm: Any = spark._jvm  # pyright: ignore[reportAttributeAccessIssue]
    names = jvm.org.apache.spark.sql.internal
    getattr(getattr(names, "StaticSQLConf$"), "MODULE$")  # declares the settings
    conf = getattr(getattr(names, "SQLConf$"), "MODULE$")
    known = [entry.key() for entry in conf.getConfigEntries().toArray()]
    static = {key for key in known if conf.isStaticConfigKey(key) and key.startswith("spark.sql.")}
    assert len(static) > 30
    assert {key for key in static if not key.startswith(_STATIC_SQL)} == set()

    assert "spark.sql.codegen.cache.maxEntries" in static & {*SPARK_FIXED, *SPARK_LOCAL}
