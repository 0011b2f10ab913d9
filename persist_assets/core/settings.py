"""`persist.toml` and the environment → one frozen `Settings`.

The invariant: everything that changes results is in `Settings.connection`, and nothing else is,
so that moving the project or tuning Spark rebuilds nothing.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from persist_assets._paths import FAIR_SCHEDULER
from persist_assets.core.errors import Location, SettingsError, did_you_mean
from persist_assets.core.object_stores import (
    ICEBERG_SCHEMES,
    PATIENCE,
    STORE_KEYS,
    Patience,
    Store,
    any_store,
    is_local,
    read_stores,
    scheme_of,
    spark_settings,
    unfit_for_tables,
    unknown_scheme,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SETTINGS_FILE = "persist.toml"
KEEP_GOING = "PERSIST_KEEP_GOING"
"""The environment variable that, when ``true``, lets what is right be built in spite of errors."""
CACHE = "PERSIST_CACHE"
"""The environment variable that names the user's cache directory (`user_cache`)."""
OUT_OF_PROJECT = "it leads out of the project"
"""The reason why a link among the sources is not followed."""
STATE = ".persist"
"""The directory in the project root of everything that no setting puts elsewhere."""

KEYS: Mapping[str, type] = {
    "sources": str,
    "key_prefix": str,
    "environment": str,
    "warehouse": str,
    "ledger": str,
    "timezone": str,
    "strict": bool,
    "parallel": int,
    "approve_above": int,
    "keep": str,
    "store_timeout": str,
    "store_retry": str,
    "views": str,
    "spark": dict,
    "malloy": dict,
    "store": dict,
    "upstream": dict,
    "sla": dict,
    "env": dict,
}
"""The keys of `persist.toml` and the kinds of their values."""

ENV_KEYS: Mapping[str, type] = {
    "reads": str,
    "raw": dict,
    "warehouse": str,
    "strict": bool,
    "parallel": int,
    "views": str,
    "spark": dict,
    "malloy": dict,
}
"""The keys of `[env.NAME]`; those that the project has too are said otherwise there."""

MALLOY_KEYS: Mapping[str, type] = {"connection": str, "givens": dict, "virtual": dict}
"""The keys of `[malloy]` and the kinds of their values."""

UPSTREAM_KEYS: Mapping[str, type] = {
    "url": str,
    "dagster": str,
    "patterns": list,
    "token_env": str,
    "environment": str,
}
"""The keys of `[upstream.NAME]` and the kinds of their values."""

SLA_KEYS: Mapping[str, type] = {"webhook": str}
"""The keys of `[sla]` and the kinds of their values."""

SPARK_KEYS: Mapping[str, type] = {
    "shared": bool,
    "shared_port": int,
    "shared_idle": str,
    "harmless": list,
    "build_ids": dict,
}
"""The keys of `[spark]` that are no settings of Spark, and the kinds of their values."""

TIMEZONE = "spark.sql.session.timeZone"

SPARK_FIXED: Mapping[str, str] = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
}
"""What every session is given unless the project says otherwise. INT96 timestamps have no
statistics; ANSI mode makes wrong data an error instead of a wrong number."""

SPARK_LOCAL: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.app.name": "persist_assets",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.scheduler.mode": "FAIR",
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
"""Without a cluster nobody but this machine has to reach the driver."""

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
    "spark.sql.execution.arrow.",
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

_NEVER_COUNTED = (
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


_REFUSED: Mapping[str, str] = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.legacy.bangEqualsNot": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.groupingIdWithAppendedUserGroupBy": "false",
    "spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "false",
    "spark.sql.legacy.setopsPrecedence.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings that change what a query says. It is analysed as Spark reads it by default."""


FIELD_IDS = "spark.sql.parquet.fieldId.read.enabled"
"""What finds columns by ids where a schema has ids, as only that of an Iceberg table does."""


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


@dataclass(frozen=True, slots=True)
class Malloy:
    """How Malloy files are compiled.

    Attributes
    ----------
    connection
        What they call the one connection there is: ``spark.table('flights')``.
    givens
        Values of givens; sorted pairs.
    virtual
        The tables that virtual sources stand for, by their names; sorted pairs.
    """

    connection: str
    givens: tuple[tuple[str, Given], ...]
    virtual: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Another graph whose partitions this one's wants may wait for.

    Attributes
    ----------
    name
        What references to its partitions begin with: ``users:data/users/2024-01-01``.
    url
        Where `persist serve` answers, or with `dagster` a Dagster webserver.
    patterns
        Which of its partitions are followed.
    token_env
        The environment variable that holds the token for it.
    environment
        Only what happened in this environment of it counts; None: in any.
    """

    name: str
    url: str
    patterns: tuple[str, ...]
    token_env: str | None = None
    environment: str | None = None
    dagster: bool = False


Given = str | int | float | bool | None | tuple["Given", ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a project is built.

    Attributes
    ----------
    root
        The project root: the directory of `persist.toml`. Absolute.
    sources
        The directory of the sources, relative to `root`, POSIX.
    key_prefix
        What asset keys begin with.
    declared
        The environments that `persist.toml` declares, sorted.
    reads
        The environments whose tables are read where this one has none, nearest first.
    raws
        Where raw tables are in this environment, by their names or asset keys; sorted pairs.
    warehouse
        Where tables of this environment are made: an absolute path or a URI.
    project_warehouse
        Where those of environments are made that do not say otherwise.
    ledger
        SQLAlchemy URL.
    strict
        Nothing may be read inline that is persisted: it has to be built.
    parallel
        How many sources a run builds at once; zero: as many as Spark runs tasks (`pool.MOST`).
    approve_above
        How many bytes of an external table's version a build reads at most by itself; zero: any.
    keep_s
        How many seconds what no manifest names any more can still be rolled back to.
    views
        How views are called by which others read sources that have a `name`, with ``{name}`` in
        it; empty: there are none.
    spark
        Settings of the Spark session, sorted pairs, defaults included.
    shared
        Sessions are those of the server that stays on this machine (`server.ensure_server`).
    shared_port
        The port it listens on, zero for any that is free.
    shared_idle_s
        After how many seconds without a client it ends.
    harmless
        Settings of Spark that the project declares harmless, as `is_harmless` takes them.
    build_ids
        Values of harmless settings that BuildIDs hold, whatever the session has; sorted pairs.
    malloy
        How Malloy files are compiled.
    stores
        The buckets that `persist.toml` describes, sorted.
    patience
        How long stores are waited for.
    upstreams
        Other graphs, by name.
    webhook
        Whom missed deadlines are told; empty: nobody.
    """

    root: Path
    sources: str
    key_prefix: tuple[str, ...]
    environment: str
    declared: tuple[str, ...]
    reads: tuple[str, ...]
    raws: tuple[tuple[str, str], ...]
    warehouse: str
    project_warehouse: str
    ledger: str
    strict: bool
    parallel: int
    approve_above: int
    keep_s: int
    views: str
    spark: tuple[tuple[str, str], ...]
    shared: bool
    shared_port: int
    shared_idle_s: int
    harmless: tuple[str, ...]
    build_ids: tuple[tuple[str, str], ...]
    malloy: Malloy
    stores: tuple[Store, ...]
    patience: Patience = PATIENCE
    upstreams: tuple[Upstream, ...] = ()
    webhook: str = ""

    @property
    def environments(self) -> tuple[str, ...]:
        """The environment and those that it reads, nearest first."""
        return (self.environment, *self.reads)

    @property
    def state_dir(self) -> Path:
        """Where everything is kept that no URL moves elsewhere."""
        return self.root / STATE

    @property
    def timezone(self) -> ZoneInfo:
        """The session's time zone."""
        return ZoneInfo(dict(self.spark)[TIMEZONE])

    @property
    def manifest_path(self) -> Path:
        """The file that the environment's manifest is exported to."""
        return self.state_dir / "manifests" / f"{self.environment}.json"

    @property
    def changing(self) -> tuple[tuple[str, str], ...]:
        """The settings of the session that can change rows: sorted pairs."""
        return tuple((k, v) for k, v in self.spark if not is_harmless(k, self.harmless))

    @property
    def connection(self) -> tuple[tuple[str, str], ...]:
        """The part of every BuildID that tells of the session: sorted pairs."""
        return tuple(sorted((("dialect", "spark"), *self.changing, *self.build_ids)))

    @property
    def formerly_counted(self) -> tuple[tuple[str, str], ...]:
        """The settings that BuildIDs do not hold and once may have held: sorted pairs.

        Older releases counted them, or the project did not declare them harmless.
        """
        kept = {*dict(self.connection)}
        return tuple(
            (k, v) for k, v in self.spark if k not in kept and not k.startswith(_NEVER_COUNTED)
        )

    def place(self, location: str) -> str:
        """Return a raw location in the form in which it is part of an identity.

        A relative location stays relative where the ledger belongs to this project alone, so
        that a moved checkout keeps its identities; in a shared ledger two projects may mean
        different data by the same relative path, so there it is made absolute.
        """
        if scheme_of(location) or Path(location).is_absolute() or self.owns_ledger:
            return location
        return (self.root / location).as_posix()

    def with_sources(self, directory: Path) -> Settings:
        """Return the settings with another sources directory, which is within the project."""
        return replace(self, sources=directory.relative_to(self.root).as_posix())

    @property
    def owns_ledger(self) -> bool:
        """Whether the ledger is a file within the project."""
        path = self.ledger.removeprefix("sqlite:///")
        return path != self.ledger and Path(path).is_relative_to(self.root)

    def table_name(self, name: str) -> str:
        """Return what a table that is made now is called in the ledger, and for `table_root`.

        Whoever has the ledger sees all of its tables: outside the project's warehouse, and in a
        ledger that projects with other warehouses may share, it is a location.
        """
        own = self.warehouse != self.project_warehouse or not self.owns_ledger
        return f"{self.warehouse.rstrip('/')}/{name}" if own else name

    def table_root(self, table: str) -> str:
        """Return the directory of a table, of whichever environment."""
        if "://" in table or table.startswith("/"):
            return table
        return f"{self.project_warehouse.rstrip('/')}/{table}"

    def read_text(self, path: str) -> str:
        """Return the text of a file, by its path relative to the root.

        Raises
        ------
        OSError
            It cannot be read, or a link or `..` leads out of the project.
        ValueError
            It is not UTF-8.
        """
        there = self.root / path
        if not there.resolve().is_relative_to(self.root):
            raise PermissionError(errno.EPERM, OUT_OF_PROJECT)
        return there.read_text(encoding="utf-8-sig")

    def resolve(self, location: str) -> str:
        """Return a location as an absolute path or, where it is not on this machine, a URI."""
        return _resolve(self.root, location)


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's own directory for files that can be made again, outside any project.

    Raises
    ------
    RuntimeError
        No variable names it, and the user has no home.
    """
    if chosen := environ.get(CACHE):
        return Path(chosen).absolute()
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "persist_assets"


SECRETS = ("PERSIST_TOKEN_", "PERSIST_SECRET_")
"""What the names of variables begin with whose values a project may send elsewhere."""
ALLOWED = "PERSIST_ALLOW_ENV"
"""The environment variable that lists more of them, commas between them."""


def secret_of(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable that a project names to send it; None if it is not set.

    A project may be a stranger's, or a branch that nobody has reviewed. So it may name only
    variables that are meant for it: by their names, or by the operator's list.

    Raises
    ------
    SettingsError
        It may not be named.
    """
    allowed = [n.strip() for n in environ.get(ALLOWED, "").split(",")]
    if not name.startswith(SECRETS) and name not in allowed:
        raise SettingsError(
            f"a project may not send the environment variable {name} elsewhere",
            hint=f"call it {SECRETS[0]}{name}, or allow it outside the project: "
            f"export {ALLOWED}={name}",
        )
    return environ.get(name) or None


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents, which only their owner may enter.

    A project's `.persist` among them gets a `.gitignore` of its own, so that nobody commits it.
    It becomes private at that moment; whoever opens it to others later is not overruled.

    Raises
    ------
    OSError
        One of them cannot be created.
    """
    places = (directory, *directory.parents)
    for path in reversed([p for p in places if not p.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)
    state = next((p for p in places if p.name == STATE), None)
    if state is not None:
        with suppress(OSError), (state / ".gitignore").open("x", encoding="utf-8") as file:
            file.write("*\n")
            state.chmod(0o700)


def find_root(start: Path) -> Path:
    """Return the nearest directory from `start` upwards that holds a `persist.toml`.

    Raises
    ------
    SettingsError
        There is none.
    """
    start = start.resolve()
    for directory in (start, *start.parents):
        if (directory / SETTINGS_FILE).is_file():
            return directory
    raise SettingsError(
        f"no {SETTINGS_FILE} in {start} or above it",
        hint=f"create an empty {SETTINGS_FILE} in the project root, or name it with --project",
    )


def load_settings(
    root: Path, *, environment: str | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read the settings of a project.

    Parameters
    ----------
    root
        The project root; `persist.toml` in it is optional.
    environment
        Overrides ``PERSIST_ENV``, which overrides the file.
    environ
        Environment variables.

    Raises
    ------
    SettingsError
        The file cannot be read, or holds an unknown key or a value of the wrong kind.
    """
    root = root.resolve()
    _check_links(root / STATE)
    given = _read(root / SETTINGS_FILE)
    name = environment or environ.get("PERSIST_ENV") or given.get("environment", "dev")
    _check_environment(name)
    environments: dict[str, Any] = given.get("env", {})
    _read_environments(environments)
    own: dict[str, Any] = environments.get(name, {})
    reads = _chain(name, environments, given.get("environment", "dev"))
    project_warehouse = _resolve(root, given.get("warehouse", f"{STATE}/warehouse"))
    spark_given: dict[str, Any] = {**given.get("spark", {}), **own.get("spark", {})}
    malloy = _malloy(given.get("malloy", {}), own.get("malloy", {}), name)
    given = {**given, **own}
    sources = Path(given.get("sources", "sources"))
    if sources.is_absolute() or not (root / sources).resolve().is_relative_to(root):
        raise SettingsError(
            f"the sources directory {sources} is outside the project {root}",
            hint="SourceIDs are paths within the project: move it, or move persist.toml up",
            location=Location(SETTINGS_FILE),
        )
    own_keys = _spark_keys(spark_given)
    stores = _stores(given.get("store", {}), environ)
    spark = {
        **SPARK_FIXED,
        **SPARK_LOCAL,
        **spark_settings((*stores, any_store(environ))),
        TIMEZONE: given.get("timezone", "UTC"),
        **_flat_spark(spark_given),
    }
    for key, default in _REFUSED.items():
        if spark.get(key, default).lower() != default.lower():
            message = f"`{key}` has to be {default}: queries are understood as it is by default"
            raise SettingsError(message, location=Location(SETTINGS_FILE))
    try:
        ZoneInfo(spark[TIMEZONE])
    except (KeyError, ValueError, OSError) as error:
        message = f"`{spark[TIMEZONE]}` is no time zone"
        hint = "name a region: Europe/Berlin, or UTC"
        raise SettingsError(message, hint=hint, location=Location(SETTINGS_FILE)) from error
    if spark["spark.master"].startswith("local") and "spark.remote" not in spark:
        spark = {**SPARK_LOOPBACK, **spark}
    warehouse = _resolve(root, given["warehouse"]) if "warehouse" in given else project_warehouse
    for place in (warehouse, project_warehouse):
        _check_warehouse(place)
    return Settings(
        root=root,
        sources=(root / sources).resolve().relative_to(root).as_posix(),
        key_prefix=_key_prefix(given.get("key_prefix", "")),
        environment=name,
        declared=tuple(sorted(environments)),
        reads=reads,
        raws=tuple(sorted(own.get("raw", {}).items())),
        warehouse=warehouse,
        project_warehouse=project_warehouse,
        ledger=_ledger_url(root, given.get("ledger", f"sqlite:///{STATE}/ledger.db")),
        strict=given.get("strict", False),
        parallel=_parallel(given.get("parallel", 0)),
        approve_above=_approve_above(given.get("approve_above", 0)),
        keep_s=_duration("keep", given, 7 * 86_400, "longer than the longest query takes"),
        views=_views(given.get("views", "")),
        spark=tuple(sorted(spark.items())),
        malloy=malloy,
        stores=stores,
        patience=Patience(
            _duration("store_timeout", given, PATIENCE.answer_s, "how long a store may not answer"),
            _duration("store_retry", given, PATIENCE.retry_s, "how long a store may throttle"),
        ),
        upstreams=_upstreams(given.get("upstream", {})),
        webhook=_webhook(given.get("sla", {})),
        **own_keys,
    )


_ENVIRONMENT = re.compile(r"[a-z][a-z0-9_-]{0,63}")
"""Names that no file system, database or Dagster takes for one another: they name files too."""


def environments_of(root: Path) -> tuple[str, ...]:
    """Return the environments that a project's `persist.toml` names, the default one first.

    Raises
    ------
    SettingsError
        The file cannot be read, or says of one what cannot be said.
    """
    given = _read(root / SETTINGS_FILE)
    environments: dict[str, Any] = given.get("env", {})
    _read_environments(environments)
    default = given.get("environment", "dev")
    return (default, *sorted(environments.keys() - {default}))


def _malloy(given: dict[str, Any], own: dict[str, Any], environment: str) -> Malloy:
    """Return what is said of Malloy, for the project and, key by key, for its environment."""
    for said, where in ((given, "[malloy] "), (own, f"[env.{environment}.malloy] ")):
        _check_keys(said, MALLOY_KEYS, where)
        for name, table in said.get("virtual", {}).items():
            if not isinstance(table, str):
                message = f"{where}`virtual.{name}` wants a name of a table, not {table!r}"
                raise SettingsError(message, location=Location(SETTINGS_FILE))
    givens = {**given.get("givens", {}), **own.get("givens", {})}
    virtual = {**given.get("virtual", {}), **own.get("virtual", {})}
    connection = own.get("connection", given.get("connection", "spark"))
    if not re.fullmatch(r"[^\W\d]\w*", connection):
        message = f"`{connection}` is not a name for a connection"
        raise SettingsError(message, location=Location(SETTINGS_FILE))
    pairs = tuple((name, _given(name, value)) for name, value in sorted(givens.items()))
    return Malloy(connection, pairs, tuple(sorted(virtual.items())))


def _given(name: str, value: Any) -> Given:
    """Return a value of TOML as it is said in JSON."""
    match value:
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case list():
            elements = cast("list[Any]", value)
            return tuple(_given(name, element) for element in elements)
        case str() | bool() | int() | float():
            return value
        case _:
            message = f"`[malloy.givens] {name}` wants a text, number, date, boolean or list"
            raise SettingsError(message, location=Location(SETTINGS_FILE))


def _stores(given: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Store, ...]:
    for location, said in given.items():
        if not isinstance(said, dict):
            message, hint = f"`store.{location}` wants a table", '[store."s3://BUCKET"]'
            raise SettingsError(message, hint=hint, location=Location(SETTINGS_FILE))
        _check_keys({**said}, STORE_KEYS, f'[store."{location}"] ')
    try:
        return read_stores(given, environ)
    except SettingsError as error:
        error.location = Location(SETTINGS_FILE)
        raise


def _check_warehouse(location: str) -> None:
    """Refuse a warehouse in which no table can be made."""
    wrong, unfit = unknown_scheme(location), unfit_for_tables(location)
    if unfit:
        wrong = f"the warehouse cannot be {location}: delta-rs misreads `{unfit}`", "name another"
    if wrong:
        raise SettingsError(wrong[0], hint=wrong[1], location=Location(SETTINGS_FILE))


def _check_links(state: Path) -> None:
    """Refuse links in `.persist`: files of somebody else would be written through them."""
    places = (state, *(p for d in (state, state / "manifests") if d.is_dir() for p in d.iterdir()))
    link = next((p for p in places if p.is_symlink()), None)
    if link is not None:
        raise SettingsError(
            f"{link.relative_to(state.parent)} is a symbolic link: nothing is written through it",
            hint="remove it; `warehouse` and `ledger` in persist.toml name other places",
        )


def _check_environment(name: str) -> None:
    if not _ENVIRONMENT.fullmatch(name):
        hint = "small letters (a to z), digits, underscores and dashes, at most 64"
        raise SettingsError(f"`{name}` is not a name for an environment", hint=hint)


def _key_prefix(given: str) -> tuple[str, ...]:
    parts = tuple(given.split("/")) if given else ()
    if not all(re.fullmatch(r"[A-Za-z0-9_]+", part) for part in parts):
        message = f"`key_prefix`: `{given}` is no beginning of asset keys"
        hint = "letters, digits and underscores, in parts with / between them"
        raise SettingsError(message, hint=hint, location=Location(SETTINGS_FILE))
    return parts


def _read_environments(environments: Mapping[str, Any]) -> None:
    """Refuse what cannot be said of an environment."""
    for name, said in environments.items():
        _check_environment(name)
        if not isinstance(said, dict):
            raise SettingsError(f"`env.{name}` wants a table", location=Location(SETTINGS_FILE))
        keys: dict[str, Any] = {**said}
        _check_keys(keys, ENV_KEYS, f"[env.{name}] ")
        raws: dict[str, Any] = keys.get("raw", {})
        for raw, place in raws.items():
            if not isinstance(place, str):
                message = f"`[env.{name}.raw] {raw}` wants a location, not {place!r}"
                raise SettingsError(message, location=Location(SETTINGS_FILE))
            if wrong := unknown_scheme(place, ICEBERG_SCHEMES):
                message = f"`[env.{name}.raw] {raw}`: {wrong[0]}"
                raise SettingsError(message, hint=wrong[1], location=Location(SETTINGS_FILE))


def _chain(name: str, environments: Mapping[str, Any], default: str) -> tuple[str, ...]:
    """Return the environments whose tables are read in one, nearest first.

    Where `persist.toml` declares environments, those and the default one are all there are.
    """
    known = {default, *environments}
    chain: list[str] = []
    following: str | None = name
    while following is not None:
        if environments and following not in known:
            what = f"`[env.{chain[-1]}] reads` names" if chain else "there is no environment"
            raise SettingsError(
                f"{what} `{following}`" + (", which is not declared" if chain else ""),
                hint=did_you_mean(following, known) or f"there are: {', '.join(sorted(known))}",
                location=Location(SETTINGS_FILE),
            )
        if following in chain:
            raise SettingsError(
                f"environments read each other in a circle: {' → '.join([*chain, following])}",
                hint="take `reads` out of one of them",
                location=Location(SETTINGS_FILE),
            )
        chain.append(following)
        following = environments.get(following, {}).get("reads")
    return tuple(chain[1:])


_GRAPH = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _upstreams(given: Mapping[str, Any]) -> tuple[Upstream, ...]:
    """Return the other graphs that are described."""
    found: list[Upstream] = []
    for name, said in sorted(given.items()):
        where = f"[upstream.{name}] "
        if not _GRAPH.fullmatch(name):
            raise SettingsError(
                f"`{name}` is not a name for an upstream",
                hint="letters, digits, underscores and dashes, at most 64",
                location=Location(SETTINGS_FILE),
            )
        if not isinstance(said, dict):
            message = f"`upstream.{name}` wants a table"
            raise SettingsError(message, location=Location(SETTINGS_FILE))
        keys: dict[str, Any] = {**said}
        _check_keys(keys, UPSTREAM_KEYS, where)
        if ("url" in keys) is ("dagster" in keys):
            raise SettingsError(
                f"`{where.strip()}` wants a `url`, or `dagster` with one",
                hint='url = "http://127.0.0.1:8080", of persist serve',
                location=Location(SETTINGS_FILE),
            )
        kind = "dagster" if "dagster" in keys else "url"
        patterns: list[Any] = keys.get("patterns", ["**"])
        if not patterns or not all(isinstance(p, str) and p for p in patterns):
            raise SettingsError(
                f"`{where}patterns` wants texts",
                hint='patterns = ["data/users/*"]',
                location=Location(SETTINGS_FILE),
            )
        found.append(
            Upstream(
                name,
                _http_url(f"{where}{kind}", keys[kind]).rstrip("/"),
                tuple(patterns),
                keys.get("token_env"),
                keys.get("environment"),
                kind == "dagster",
            )
        )
    return tuple(found)


def _webhook(given: Mapping[str, Any]) -> str:
    _check_keys(given, SLA_KEYS, "[sla] ")
    return _http_url("[sla] webhook", given["webhook"]) if "webhook" in given else ""


def _http_url(what: str, url: str) -> str:
    """Return a URL of the web, refused if it is none or holds a password."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise SettingsError(
            f"`{what}`: `{url}` is no URL", location=Location(SETTINGS_FILE)
        ) from None
    if not fits or any(c.isspace() for c in url):
        raise SettingsError(
            f"`{what}`: `{url}` is no URL of the web",
            hint="it begins with http:// or https://",
            location=Location(SETTINGS_FILE),
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"`{what}` holds a password",
            hint="name the environment variable of a token: token_env",
            location=Location(SETTINGS_FILE),
        )
    return url


def _number(key: str, given: int, of: str, hint: str) -> int:
    if given < 0:
        message = f"`{key}` = {given} is no number of {of}"
        raise SettingsError(message, hint=hint, location=Location(SETTINGS_FILE))
    return given


def _parallel(given: int) -> int:
    hint = "1 builds one after the other, 0 as many at once as Spark runs tasks"
    return _number("parallel", given, "sources", hint)


def _approve_above(given: int) -> int:
    return _number("approve_above", given, "bytes", "0 lets builds read any number of bytes")


def _duration(key: str, given: Mapping[str, Any], default: int, meaning: str) -> int:
    """Return the seconds that a key names."""
    if key not in given:
        return default
    seconds = parse_duration(given[key])
    if seconds is None:
        raise SettingsError(
            f"`{key}`: `{given[key]}` is not a duration",
            hint=f'for example "{_EXAMPLES[key]}"; {meaning}',
            location=Location(SETTINGS_FILE),
        )
    return seconds


_EXAMPLES = {"keep": "7 days", "store_timeout": "60s", "store_retry": "5m"}


def _views(given: str) -> str:
    if given and "{name}" not in given:
        raise SettingsError(
            f"`views`: `{given}` calls all views alike",
            hint='put {name} in it: views = "{name}", or "{name}__dev"',
            location=Location(SETTINGS_FILE),
        )
    return given


def _spark_keys(spark: dict[str, Any]) -> dict[str, Any]:
    """Take the keys out of `[spark]` that are no settings of Spark; return them, with defaults."""
    found: dict[str, Any] = {
        "shared": False,
        "shared_port": 0,
        "shared_idle": "30m",
        "harmless": [],
        "build_ids": {},
    }
    own = ("shared", "harmless", "build_ids")
    keys = [k for k in spark if k.removeprefix("spark.").startswith(own)]
    given = {k.removeprefix("spark."): spark.pop(k) for k in keys}
    _check_keys(given, SPARK_KEYS, "[spark] ")
    found |= given
    found["harmless"] = _declared_harmless(found["harmless"])
    found["build_ids"] = _fixed(found["build_ids"], found["harmless"])
    if found["shared"] and ("remote" in spark or "spark.remote" in spark):
        raise SettingsError(
            "`[spark] shared` and `spark.remote` are two servers",
            hint="leave one of them out",
            location=Location(SETTINGS_FILE),
        )
    if not 0 <= found["shared_port"] < 65_536:
        message = f"`[spark] shared_port` = {found['shared_port']} is not a port"
        hint = "0 takes any that is free"
        raise SettingsError(message, hint=hint, location=Location(SETTINGS_FILE))
    idle = found.pop("shared_idle")
    found["shared_idle_s"] = parse_duration(idle)
    if found["shared_idle_s"] is None:
        message = f"`[spark] shared_idle`: `{idle}` is not a duration"
        hint = 'for example "30m"'
        raise SettingsError(message, hint=hint, location=Location(SETTINGS_FILE))
    return found


def _declared_harmless(names: list[Any]) -> tuple[str, ...]:
    """Return the settings that a project declares harmless, with ``.`` for ``.*`` at the end."""
    found: list[str] = []
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"spark\.sql\.[\w.-]+(\.\*)?", name):
            raise SettingsError(
                f"`[spark] harmless`: {name!r} is not the name of a setting of Spark SQL",
                hint='harmless = ["spark.sql.NAME", "spark.sql.PREFIX.*"]; settings outside of '
                "`spark.sql.` are harmless anyway",
                location=Location(SETTINGS_FILE),
            )
        name = name.removesuffix("*")
        known = (*SPARK_FIXED, TIMEZONE, *_REFUSED)
        changing = next((k for k in known if is_harmless(k, (name,))), None)
        if changing:
            raise SettingsError(
                f"`[spark] harmless`: `{changing}` changes rows",
                hint="name only settings that cannot change the rows of any query",
                location=Location(SETTINGS_FILE),
            )
        found.append(name)
    return tuple(found)


def _fixed(values: dict[str, Any], harmless: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the values of harmless settings that BuildIDs hold."""
    pairs = _flat_spark(values)
    changing = next((key for key in pairs if not is_harmless(key, harmless)), None)
    if changing:
        raise SettingsError(
            f"`[spark.build_ids] {changing}` can change rows",
            hint="BuildIDs hold the value that `[spark]` gives the session: leave it out here",
            location=Location(SETTINGS_FILE),
        )
    return tuple(sorted(pairs.items()))


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS = {
    unit: seconds
    for seconds, units in (
        (1, "s sec secs second seconds"),
        (60, "m min mins minute minutes"),
        (3600, "h hour hours"),
        (86_400, "d day days"),
        (604_800, "w week weeks"),
    )
    for unit in units.split()
}


def parse_duration(text: str) -> int | None:
    """Return the seconds that `text` names (``24h``, ``90 min``, ``1 day 6h``), or None.

    Examples
    --------
    >>> parse_duration("1 day 6h")
    108000
    >>> parse_duration("soon") is None
    True
    """
    parts = _DURATION.findall(text.lower())
    rest = _DURATION.sub("", text.lower()).strip()
    if not parts or rest or any(unit not in _UNITS for _, unit in parts):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return round(seconds) or None if isfinite(seconds) else None


def _resolve(root: Path, location: str) -> str:
    if scheme_of(location) == "file":
        location = unquote(re.sub(r"^(?i:file):(//[^/]*)?", "", location))
    return str((root / location).resolve()) if is_local(location) else location


def _read(path: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"this is not TOML: {error}", location=Location(SETTINGS_FILE)
        ) from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    _check_keys(given, KEYS)
    return given


def _check_keys(given: Mapping[str, Any], known: Mapping[str, type], section: str = "") -> None:
    """Refuse keys that are unknown and values of the wrong kind."""
    for key, value in given.items():
        if key not in known:
            raise SettingsError(
                f"unknown key `{section}{key}`",
                hint=did_you_mean(key, known) or f"known keys: {', '.join(known)}",
                location=Location(SETTINGS_FILE),
            )
        if type(value) is not known[key]:
            raise SettingsError(
                f"`{section}{key}` wants a {_KIND_NAMES[known[key]]}, not {value!r}",
                location=Location(SETTINGS_FILE),
            )


_KIND_NAMES = {str: "text", bool: "true or false", int: "whole number", dict: "table", list: "list"}


def _flat_spark(given: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return Spark settings with dotted keys, whether quoted ("spark.master") or nested."""
    flat: dict[str, str] = {}
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _flat_spark(value, f"{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(value, str | int | float):
            full = name if name.startswith("spark.") else f"spark.{name}"
            flat[full] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            message = f'`[spark] "{name}"` wants a text or number'
            raise SettingsError(message, location=Location(SETTINGS_FILE))
    return flat


def _ledger_url(root: Path, url: str) -> str:
    """Return the ledger's URL, a relative SQLite path made absolute."""
    path = url.removeprefix("sqlite:///")
    if "://" not in url:
        raise SettingsError(
            f"`ledger` is not a database URL: {url}",
            hint='for example "sqlite:///.persist/ledger.db"',
            location=Location(SETTINGS_FILE),
        )
    if path == url and not url.startswith("sqlite"):
        return url
    if path == url or not path or path.startswith((":memory:", "file:")) or "?" in path:
        raise SettingsError(
            f"`ledger` wants a plain path of a SQLite file: {url}",
            hint='for example "sqlite:///.persist/ledger.db"',
            location=Location(SETTINGS_FILE),
        )
    return f"sqlite:///{(root / path).resolve()}"
