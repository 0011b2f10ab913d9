"""Settings of the Spark session: which of them are ours, and which can change rows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets._paths import FAIR_SCHEDULER
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.checks import check_keys
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.settings.keys import SPARK_KEYS
from persist_assets.core.settings.places import at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


TIMEZONE = "spark.sql.session.timeZone"

SPARK_FIXED: Mapping[str, str] = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
}
"""Settings of every session unless the project says otherwise. INT96 timestamps have no
statistics; ANSI mode makes wrong data an error instead of a wrong number."""

SPARK_DEFAULTS: Mapping[str, str] = {
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.execution.pythonUDTF.arrow.enabled": "true",
}
"""Defaults of the newest supported Spark that change rows and differ in an older one.

Each session has these values unless the project says otherwise, so BuildIDs do not hold them. Spark
4.1 converts the results of Python functions in another way.
"""

SPARK_LOCAL: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.app.name": "persist_assets",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.scheduler.mode": "FAIR",
    # Maintaining some tables runs more kinds of stages than the 100 whose code Spark keeps.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Rows that are laid out by partitions go to few files: sorted first they take less to write
    # than into as many streams at once.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    "spark.scheduler.allocation.file": str(FAIR_SCHEDULER),
}
"""Defaults that change no result."""

SPARK_LOOPBACK: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Without a cluster only this machine has to reach the driver."""

_WITH_FUNCTIONS = re.compile(
    r"spark\.(remote|plugins|jars.*|driver\.extraClassPath"
    r"|sql\.(extensions|catalogImplementation|catalog\..*|hive\..*))"
)
"""Settings that may give the session functions besides Spark's own."""


def may_add_functions(
    settings: Iterable[tuple[str, str]], environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether a session with some settings may have functions besides Spark's own.

    Spark also takes settings from a file and from a variable.
    """
    place = environ.get("SPARK_CONF_DIR") or f"{environ.get('SPARK_HOME', '')}/conf"
    if environ.get("PYSPARK_SUBMIT_ARGS") or Path(place, "spark-defaults.conf").exists():
        return True
    is_local = {"spark.remote": "local", "spark.sql.catalogImplementation": "in-memory"}
    return any(
        _WITH_FUNCTIONS.fullmatch(key) and not value.startswith(is_local.get(key, "\0"))
        for key, value in settings
    )


_HARMLESS = (
    "spark.sql.adaptive.",
    "spark.sql.artifact.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.avro.compression.",
    "spark.sql.avro.deflate.",
    "spark.sql.avro.xz.",
    "spark.sql.avro.zstandard.",
    "spark.sql.broadcastTimeout",
    "spark.sql.bucketing.",
    "spark.sql.cache.",
    "spark.sql.catalog.",
    "spark.sql.catalogImplementation",
    "spark.sql.cbo.",
    "spark.sql.classic.",
    "spark.sql.cli.",
    "spark.sql.codegen.",
    "spark.sql.connect.",
    "spark.sql.debug.",
    "spark.sql.defaultCacheStorageLevel",
    "spark.sql.defaultCatalog",
    "spark.sql.emr.",
    "spark.sql.error.",
    "spark.sql.event.",
    "spark.sql.execution.arrow.compression.",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.pyspark.selfDestruct.",
    "spark.sql.execution.interruptOnCancel",
    "spark.sql.execution.pandas.udf.",
    "spark.sql.execution.pyspark.udf.",
    "spark.sql.execution.python.udf.",
    "spark.sql.execution.topKSortFallbackThreshold",
    "spark.sql.extendedExplainProviders",
    "spark.sql.extensions",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.maxRecordsPerFile",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.hive.filesourcePartitionFileCacheSize",
    "spark.sql.hive.manageFilesourcePartitions",
    "spark.sql.hive.metastore.",
    "spark.sql.hive.metastorePartitionPruning",
    "spark.sql.hive.metastorePartitionPruningFallbackOnException",
    "spark.sql.hive.metastorePartitionPruningFastFallback",
    "spark.sql.hive.thriftServer.",
    "spark.sql.hive.version",
    "spark.sql.inMemoryColumnarStorage.",
    "spark.sql.join.preferSortMergeJoin",
    "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.legacy.createHiveTableByDefault",
    "spark.sql.maven.",
    "spark.sql.maxBroadcastTableSize",
    "spark.sql.maxMetadataStringLength",
    "spark.sql.maxPlanStringLength",
    "spark.sql.maxSinglePartitionBytes",
    "spark.sql.metadataCacheTTLSeconds",
    "spark.sql.optimizer.dynamicPartitionPruning.",
    "spark.sql.optimizer.runtime.",
    "spark.sql.optimizer.runtimeFilter.",
    "spark.sql.orc.columnarReaderBatchSize",
    "spark.sql.orc.columnarWriterBatchSize",
    "spark.sql.orc.compression.",
    "spark.sql.parquet.columnarReaderBatchSize",
    "spark.sql.parquet.compression.",
    "spark.sql.parquet.fs.optimized.committer.",
    "spark.sql.parquet.output.committer.",
    "spark.sql.pyspark.dataSource.profiler",
    "spark.sql.pyspark.jvmStacktrace.",
    "spark.sql.pyspark.plotting.",
    "spark.sql.pyspark.udf.profiler",
    "spark.sql.pyspark.worker.",
    "spark.sql.queryExecutionListeners",
    "spark.sql.redaction.",
    "spark.sql.repl.",
    "spark.sql.session.localRelationCacheThreshold",
    "spark.sql.session.localRelationChunkSizeBytes",
    "spark.sql.session.localRelationChunkSizeRows",
    "spark.sql.shuffle.",
    "spark.sql.shuffleDependency.",
    "spark.sql.shuffledHashJoinFactor",
    "spark.sql.sources.bucketing.",
    "spark.sql.sources.commitProtocolClass",
    "spark.sql.sources.default",
    "spark.sql.sources.parallelPartitionDiscovery.",
    "spark.sql.sources.partitionOverwriteMode",
    "spark.sql.sources.v2.bucketing.",
    "spark.sql.stackTracesInDataFrameContext",
    "spark.sql.statistics.",
    "spark.sql.streaming.",
    "spark.sql.thriftServer.",
    "spark.sql.thriftserver.",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
)
"""Settings of `spark.sql.` that cannot change which rows a query has: names, and with a dot at the
end all names that begin so. Any other of `spark.sql.` can change rows."""

NEVER_COUNTED = (
    "spark.app.",
    "spark.connect.",
    "spark.driver.",
    "spark.dynamicAllocation.",
    "spark.eventLog.",
    "spark.executor.",
    "spark.hadoop.",
    "spark.jars",
    "spark.kryo",
    "spark.local.dir",
    "spark.log.",
    "spark.master",
    "spark.memory.",
    "spark.network.",
    "spark.pyspark.",
    "spark.remote",
    "spark.rpc.",
    "spark.scheduler.",
    "spark.shuffle.",
    "spark.speculation",
    "spark.sql.adaptive.",
    "spark.sql.artifact.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.catalogImplementation",
    "spark.sql.codegen.cache.maxEntries",
    "spark.sql.codegen.useIdInClassName",
    "spark.sql.codegen.wholeStage.union.enabled",
    "spark.sql.execution.arrow.",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.parquet.compression.",
    "spark.sql.shuffle.partitions",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
    "spark.submit.",
    "spark.task.",
    "spark.ui.",
)
"""The beginnings of settings that were never part of BuildIDs, not even when any setting counted
that was not in this list. It tells which settings old BuildIDs may hold, so do not extend it."""

REFUSED: Mapping[str, str] = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.preserveCharVarcharTypeInfo": "false",
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.legacy.bangEqualsNot": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.groupingIdWithAppendedUserGroupBy": "false",
    "spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings that change what a query says. It is analysed as Spark reads it by default."""

LEGACY_WRITES = (
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.sql.parquet.int96RebaseModeInWrite",
)
"""Settings that can make Spark write early dates in its old calendar, as it alone reads them."""

_NO_TYPES = (
    TIMEZONE,
    "spark.sql.avro.",
    "spark.sql.csv.",
    "spark.sql.files.",
    "spark.sql.json.",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.optimizer.",
    "spark.sql.orc.",
    "spark.sql.parquet.",
    "spark.sql.sources.",
)
"""Settings, and beginnings of settings, that can change rows but no type of an expression."""


def has_usual_types(changing: Iterable[tuple[str, str]]) -> bool:
    """Whether expressions have Spark's usual types in a session whose rows these settings change.

    Examples
    --------
    >>> has_usual_types([("spark.sql.ansi.enabled", "true"), ("spark.sql.orc.impl", "hive")])
    True
    >>> has_usual_types([("spark.sql.decimalOperations.allowPrecisionLoss", "false")])
    False
    """
    usual = {**SPARK_FIXED, **SPARK_DEFAULTS}
    return all(
        usual.get(key) == value or not key.startswith("spark.sql.") or key.startswith(_NO_TYPES)
        for key, value in changing
    )


FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"
"""The setting that finds columns by ids if a schema has ids: only Iceberg schemas have them."""


def is_harmless(key: str, declared: Iterable[str] = ()) -> bool:
    """Return whether a Spark setting cannot change which rows a query has.

    Parameters
    ----------
    declared
        More harmless settings: names, and beginnings of names that end in a dot.

    Examples
    --------
    >>> is_harmless("spark.kubernetes.container.image"), is_harmless("spark.sql.extensions")
    (True, True)
    >>> is_harmless("spark.sql.ansi.enabled"), is_harmless("spark.sql.my.x", ["spark.sql.my."])
    (False, True)
    """
    if not key.startswith("spark.sql."):
        return True
    return any(key == h or (h[-1] == "." and key.startswith(h)) for h in (*_HARMLESS, *declared))


def spark_keys(spark: dict[str, Any]) -> dict[str, Any]:
    """Remove the keys that are not Spark settings from `[spark]`; return them, with defaults."""
    values: dict[str, Any] = {
        "shared": False,
        "shared_port": 0,
        "shared_idle": "30m",
        "harmless": [],
        "build_ids": {},
    }
    own_keys = ("shared", "harmless", "build_ids")
    keys = [k for k in spark if k.removeprefix("spark.").startswith(own_keys)]
    entries = {k.removeprefix("spark."): spark.pop(k) for k in keys}
    check_keys(entries, SPARK_KEYS, "spark")
    values |= entries
    values["harmless"] = _declared_harmless(values["harmless"])
    values["build_ids"] = _fixed(values["build_ids"], values["harmless"])
    if values["shared"] and ("remote" in spark or "spark.remote" in spark):
        raise SettingsError(
            "`[spark] shared` and `spark.remote` cannot be combined",
            hint="remove one of them",
            location=at("spark", "shared"),
        )
    if not 0 <= values["shared_port"] < 65_536:
        message = f"`[spark] shared_port` = {values['shared_port']} is not a port"
        hint = "0 picks any free port"
        raise SettingsError(message, hint=hint, location=at("spark", "shared_port"))
    idle = values.pop("shared_idle")
    values["shared_idle_s"] = parse_duration(idle)
    if values["shared_idle_s"] is None:
        message = f"`[spark] shared_idle`: `{idle}` is not a duration"
        hint = 'for example, "30m"'
        raise SettingsError(message, hint=hint, location=at("spark", "shared_idle"))
    return values


def _declared_harmless(names: list[Any]) -> tuple[str, ...]:
    """Return the settings that a project declares harmless, with ``.`` for ``.*`` at the end."""
    prefixes: list[str] = []
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"spark\.sql\.[\w.-]+(\.\*)?", name):
            raise SettingsError(
                f"`[spark] harmless`: {name!r} is not the name of a Spark SQL setting",
                hint='harmless = ["spark.sql.NAME", "spark.sql.PREFIX.*"]; settings outside '
                "`spark.sql.` are harmless anyway",
                location=at("spark", "harmless"),
            )
        name = name.removesuffix("*")
        row_settings = (*SPARK_FIXED, TIMEZONE, *REFUSED)
        changing = next((k for k in row_settings if is_harmless(k, (name,))), None)
        if changing:
            raise SettingsError(
                f"`[spark] harmless`: `{changing}` can change rows",
                hint="list only settings that cannot change the rows of any query",
                location=at("spark", "harmless"),
            )
        prefixes.append(name)
    return tuple(prefixes)


def _fixed(values: dict[str, Any], harmless: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the values of harmless settings that BuildIDs hold."""
    pairs = flat_spark(values)
    changing = next((key for key in pairs if not is_harmless(key, harmless)), None)
    if changing:
        raise SettingsError(
            f"`[spark.build_ids] {changing}` can change rows",
            hint="BuildIDs use the value that `[spark]` gives the session: remove it here",
            location=at("spark", "build_ids", changing),
        )
    return tuple(sorted(pairs.items()))


def flat_spark(entries: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return Spark settings with dotted keys, whether quoted ("spark.master") or nested."""
    flat: dict[str, str] = {}
    for key, value in entries.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flat_spark(value, f"{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, str | int | float):
            full = name if name.startswith("spark.") else f"spark.{name}"
            flat[full] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            message = f'`[spark] "{name}"` must be a string or number'
            raise SettingsError(message, location=at("spark", name))
    return flat
