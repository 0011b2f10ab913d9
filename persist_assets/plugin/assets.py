"""`load_sources`: a directory of sources → `dagster.Definitions`."""

import gc
import inspect
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.scheduler import Pool
from persist_assets.building.stages import PendingBuild
from persist_assets.compiler.lasting import load_lasting
from persist_assets.compiler.load import nothing_collected, require, sound
from persist_assets.core.errors import CheckFailedError, PersistError, SettingsError, SourcesError
from persist_assets.core.logs import is_json, log_as_json
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.keys import KEEP_GOING, SETTINGS_FILE
from persist_assets.core.settings.load import load_settings
from persist_assets.plugin import beta
from persist_assets.plugin.alerts import alerts_sensors
from persist_assets.plugin.events import (
    CODE_VERSION,
    check_events,
    checks_in_dagster,
    code_version,
    copy_observations,
    data_version,
    maker_of,
    partition_events,
    raw_inputs,
    report_raw_versions,
)
from persist_assets.plugin.io_manager import PersistIOManager
from persist_assets.plugin.partitions import backfill_policy, requested_partitions
from persist_assets.plugin.progress import built_in_words, logged
from persist_assets.plugin.runtime import ENVIRONMENT_TAG, PYSPARK, Runtime
from persist_assets.plugin.sensors import stale_sensor
from persist_assets.plugin.steps import step_options, wrong_k8s
from persist_assets.plugin.translator import AssetTranslator, needed_elsewhere
from persist_assets.plugin.wants import (
    is_due,
    others,
    request_job,
    sla_check,
    wants_schedule,
    wants_sensor,
)

log = logging.getLogger(__name__)

IO_MANAGER = "persist_io_manager"
"""The key of the IO manager: ordinary assets that name it write tables of the warehouse."""
FORCE_TAG = "persist/force"
"""A run with this tag set to ``true`` builds even what is up to date; a JSON list of SourceIDs
limits that to those sources.
"""
AGAIN_TAG = "persist/again"
"""A run with this tag computes rows again: JSON, from and to by SourceID."""

_OF_COMMAND: ContextVar[str | None] = ContextVar("of_command", default=None)
"""The default environment, while sources are loaded for a run from our command line."""


@contextmanager
def of_command(default: str) -> Generator[None]:
    """Load sources, within the block, for a run from our command line.

    Their assets have no partitions in Dagster: in one run, Dagster gives all partitioned assets the
    same partitions. They learn from a tag which partitions to build (`PARTITIONS_TAG`), and report
    those that they built.

    Parameters
    ----------
    default
        The environment of code locations; see `code_version`. Empty: that of this process.
    """
    token = _OF_COMMAND.set(default)
    try:
        yield
    finally:
        _OF_COMMAND.reset(token)


def load_sources(
    path: str | Path,
    *,
    assets: Sequence[Any] = (),
    resources: Mapping[str, Any] | None = None,
    translator: type[AssetTranslator] = AssetTranslator,
    gc_cron: str = "0 3 * * *",
    keep_going: bool | None = None,
) -> dg.Definitions:
    """Return Dagster definitions with one asset for each persisted source below `path`.

    Loading compiles the sources. It starts no JVM and does not open the ledger.

    Parameters
    ----------
    path
        The sources directory; a relative path starts at the directory of the calling module.
    assets
        Ordinary assets of the same code location. An asset with the key of a raw table feeds it:
        it takes the place of the raw table, and the sources that read the table wait for it.
    resources
        Further resources; ``pyspark`` replaces the resource of the Spark session.
    translator
        Translates sources to asset specs.
    gc_cron
        The cron schedule of the job that deletes unneeded data (``persist gc``), in Dagster's time
        zone. The schedule is off by default.
    keep_going
        Leave out files that have errors, and everything that reads their sources, with a warning
        for each error, instead of raising. None: whether ``PERSIST_KEEP_GOING`` is ``true``.

    Raises
    ------
    SettingsError
        The directory does not exist, or `persist.toml` is invalid.
    SourcesError
        Sources have errors; the exception lists all of them.

    Examples
    --------
    A complete `definitions.py`::

        from persist_assets import load_sources

        defs = load_sources("sources")
    """
    directory = _directory(path)
    if is_json():
        log_as_json(sys.stderr)
    with nothing_collected():
        settings = load_settings(_root(directory)).with_sources(directory)
        project = load_lasting(settings)
        if keep_going if keep_going is not None else os.environ.get(KEEP_GOING) == "true":
            for problem in project.errors:
                log.warning("left out: %s", problem, extra={"action": "left-out"})
            project = sound(project)
        else:
            require(project)
        wrong = [*wrong_k8s(project)]
        if wrong:
            raise SourcesError(wrong)
        produced = {tuple(key.path) for asset in assets for key in _keys(asset)}
        fed = frozenset(s.source_id for s in project.sources if s.asset_key in produced)
        runtime = Runtime(settings, project, fed)
        elsewhere = others(runtime, {*produced, *project.by_key})
        definitions = [*_definitions(runtime, translator(settings, project), elsewhere)]
        build_request = request_job(runtime, _name_of("persist_request", runtime))
        scheduled = wants_schedule(
            runtime, _name_of("persist_scheduled_wants", runtime), build_request
        )
        loaded = dg.Definitions(
            assets=[*definitions, *elsewhere.values(), *assets],
            asset_checks=[sla_check(runtime, s) for s in project.persisted if is_due(s)],
            jobs=[build_request],
            schedules=[
                _gc_schedule(runtime, gc_cron),
                *((_trim_schedule(runtime),) if settings.retention.events_s else ()),
                *((scheduled,) if scheduled else ()),
            ],
            sensors=[
                stale_sensor(runtime, _name_of("persist_stale", runtime)),
                wants_sensor(runtime, _name_of("persist_wants", runtime), build_request),
                *alerts_sensors(runtime, _name_of("persist_alerts", runtime)),
            ],
            resources={
                PYSPARK: _pyspark(runtime),
                IO_MANAGER: _io_manager(runtime),
                **(resources or {}),
            },
            # One warm Spark session serves all steps of a run: see docs/architecture/dagster.md.
            executor=dg.in_process_executor,
        )
        _settle()
    return loaded


def _definitions(
    runtime: Runtime, translator: AssetTranslator, elsewhere: Mapping[dg.AssetKey, Any]
) -> Iterator[Any]:
    """Yield the assets of the project's sources, and record in `runtime` what they wait for."""
    for source in runtime.project.sources:
        if source.persisted:
            spec = translator.asset_spec(source)
            if _OF_COMMAND.get() is not None:
                deps = [d.asset_key for d in spec.deps]
                spec = spec.replace_attributes(partitions_def=None, deps=deps)
            read = {s.asset_key for s in runtime.project.waits_for(source)}
            waits = not read >= {tuple(d.asset_key.path) for d in spec.deps}
            if waits or source.annotation.pool is not None:  # the pool counts its step
                runtime.late.add(source.source_id)
            waits_for = {d.asset_key for d in spec.deps}
            if needed := {*needed_elsewhere(source)} & elsewhere.keys() - waits_for:
                spec = spec.merge_attributes(deps=sorted(needed))
            runtime.deps[source.source_id] = tuple(d.asset_key for d in spec.deps)
            yield _asset(runtime, source, spec)
        elif source.raw is not None and source.source_id not in runtime.fed:
            yield translator.asset_spec(source)


def _name_of(prefix: str, runtime: Runtime) -> str:
    """Return a name that ends with the project's prefix, so that projects can share a workspace."""
    return re.sub(r"\W", "_", "_".join((prefix, *runtime.settings.key_prefix)), flags=re.ASCII)


def _gc_schedule(runtime: Runtime, cron: str) -> dg.ScheduleDefinition:
    """Return a schedule that does what `persist gc` does."""
    name = _name_of("persist_gc", runtime)

    def gc_(context: dg.OpExecutionContext) -> None:
        try:
            collected = runtime.collect(context.run)
        except PersistError as error:
            raise dg.Failure(str(error)) from error
        for c in collected:
            versions = f" versions {', '.join(map(str, c.versions))}" if c.versions else ""
            context.log.info(f"deleted {c.table}{versions}: {c.bytes} bytes")
        context.add_output_metadata(
            {"tables": len(collected), "bytes": sum(c.bytes for c in collected)}
        )

    op = dg.op(name=f"{name}_op", description="Delete data that can no longer be read.")(gc_)
    graph = dg.GraphDefinition(name=name, node_defs=[op])
    job = graph.to_job(executor_def=dg.in_process_executor)
    return dg.ScheduleDefinition(name=name, job=job, cron_schedule=cron)


def _trim_schedule(runtime: Runtime) -> dg.ScheduleDefinition:
    """Return a schedule that trims the log once a day. It is on, since the settings request it."""
    name = _name_of("persist_trim", runtime)

    def trim(context: dg.OpExecutionContext) -> None:
        try:
            trimmed = runtime.trim()
        except PersistError as error:
            raise dg.Failure(str(error)) from error
        context.add_output_metadata(
            {"deleted": trimmed.deleted, "kept": trimmed.still_needed, "archive": trimmed.archive}
        )

    op = dg.op(name=f"{name}_op", description="Archive and delete old events of the log.")(trim)
    graph = dg.GraphDefinition(name=name, node_defs=[op])
    return dg.ScheduleDefinition(
        name=name,
        job=graph.to_job(executor_def=dg.in_process_executor),
        cron_schedule="0 4 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )


@cache
def _settle() -> None:
    """Exempt the first definitions of a process from garbage collection.

    They live as long as the process. Collecting through them again and again, and once more at the
    end, took Dagster longer than making them. Definitions that are loaded later may replace
    others, so they are collected as usual. `load_lasting` has collected what compiling left.
    """
    gc.freeze()


def _directory(path: str | Path) -> Path:
    directory = Path(path)
    if not directory.is_absolute():
        frame = inspect.currentframe()
        for _ in range(2):  # this function's frame, then that of load_sources
            frame = frame and frame.f_back
        caller = frame and frame.f_globals.get("__file__")
        directory = (Path(caller).parent if caller else Path.cwd()) / directory
    directory = directory.resolve()
    if not directory.is_dir():
        raise SettingsError(
            f"there is no directory {directory}", hint="pass the sources directory to load_sources"
        )
    return directory


def _root(directory: Path) -> Path:
    return next((d for d in directory.parents if (d / SETTINGS_FILE).is_file()), directory.parent)


def _keys(asset: Any) -> Iterator[dg.AssetKey]:
    if isinstance(asset, dg.AssetsDefinition):
        yield from asset.keys
    elif isinstance(asset, dg.AssetSpec):
        yield asset.key


class RunSpark:
    """The Spark session of a run, with its environment's settings; created at its first use.

    It is a session of the shared server if there is one, else that of `dagster_pyspark`.
    """

    def __init__(self, runtime: Runtime, run: dg.DagsterRun | None) -> None:
        self._runtime, self._run, self._lock = runtime, run, threading.Lock()
        self._session: Any = None

    @property
    def spark_session(self) -> Any:
        """The session, the same one each time.

        Raises
        ------
        PersistError
            There is no such environment, or the server does not start.
        """
        with self._lock:
            if self._session is None:
                settings = self._runtime.settings_of(self._run)
                from persist_assets.engine.session import create_session, is_remote

                if is_remote(settings):
                    self._session = create_session(settings)
                else:
                    # Imports pyspark; a process that only looks at assets need not wait for that.
                    from dagster_pyspark import LazyPySparkResource

                    resource = LazyPySparkResource(spark_config=dict(settings.spark))
                    self._session = resource.spark_session
            return self._session

    @property
    def spark_context(self) -> Any:
        """The session's context; a session of a server has none."""
        return self.spark_session.sparkContext

    def close(self) -> None:
        """End a session of a server."""
        from persist_assets.engine.session import is_remote

        if self._session is not None and is_remote(self._runtime.settings_of(self._run)):
            self._session.stop()


def _pyspark(runtime: Runtime) -> dg.ResourceDefinition:
    @dg.resource(description="The Spark session, created on first use.")
    def pyspark(context: dg.InitResourceContext) -> Iterator[Any]:
        spark = RunSpark(runtime, context.run)
        try:
            yield spark
        finally:
            spark.close()

    return pyspark


def _io_manager(runtime: Runtime) -> dg.IOManagerDefinition:
    @dg.io_manager(required_resource_keys={PYSPARK})
    def persist_io_manager(context: dg.InitResourceContext) -> Any:  # a generator, as for resources
        pyspark, run = getattr(context.resources, PYSPARK), context.run

        in_parts = run is not None and is_in_parts(context.instance, run)

        def builder() -> Builder:
            return runtime.builder(run, lambda: pyspark.spark_session, in_parts=in_parts)

        if run and context.instance:
            # Errors are reported by each step, which asks for the builder again.
            with suppress(PersistError):
                report_raw_versions(context.instance, builder().observer, maker_of(run))
        try:
            yield PersistIOManager(builder)
        finally:
            runtime.close(run.run_id if run else "")

    return persist_io_manager


def op_name(source: Source) -> str:
    """Return a name for a source's op: readable, ASCII and unique among sources.

    Examples
    --------
    The parts of a plain asset key are joined by two underscores: ``flights__daily_delays``. Such a
    name never has three underscores in a row; all other names have.
    """
    plain = "__".join(source.asset_key)
    if all(re.fullmatch(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*", part) for part in source.asset_key):
        return plain
    cleaned = re.sub(r"[^A-Za-z0-9_]", "_", plain)
    return f"{cleaned}___{sha256(source.key.encode()).hexdigest()[:8]}"


def _asset(runtime: Runtime, source: Source, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    """Return the asset of a source, with an op of its own.

    Its definition is made as `dagster.multi_asset` makes it, which takes four times as long, most
    of it to look for what the function's signature says. Thousands of sources are thousands of ops.
    """
    default = _OF_COMMAND.get() or runtime.settings.environment

    def build(context: Any, _inputs: Any) -> Iterator[Any]:
        run = context.run
        session = getattr(context.resources, PYSPARK)
        force = _is_forced(run, source)
        try:
            in_parts = not _is_here(context)
            builder = runtime.builder(run, lambda: session.spark_session, in_parts=in_parts)
        except PersistError as error:
            raise dg.Failure(str(error)) from error
        try:
            pool = runtime.pool(run.run_id, lambda: _pool(runtime, builder, context))
            with (
                logged(context, builder.progress),
                pool.work(builder.project.by_id[source.source_id], force=force) as work,
            ):
                context.log.info(built_in_words(work, builder.progress.activity()))
                yield from _results(builder, source, work.checks)
                for observation in copy_observations(builder.observer, work.source):
                    if runtime.is_first(run.run_id, observation.asset_key):
                        context.log_event(observation)
                inputs = raw_inputs(runtime, builder.observer, context.instance, work.source)
                yield _output(work, inputs, default)
                yield from partition_events(context.instance, builder.observer, run, work)
        except CheckFailedError as error:
            yield from _results(builder, source, error.results)
            raise dg.Failure(str(error), allow_retries=False) from error
        except PersistError as error:
            raise dg.Failure(str(error)) from error

    build.__annotations__.clear()  # Dagster would look them up
    checks = {
        check.get_python_identifier(): check
        for name, c in checks_in_dagster(runtime.project, source).items()
        for check in (
            dg.AssetCheckSpec(name, asset=spec.key, blocking=c.blocking, description=c.definition),
        )
    }
    table = dg.Out(io_manager_key=IO_MANAGER, is_required=False, code_version=spec.code_version)
    reads = {f"input_{i}": dep.asset_key for i, dep in enumerate(spec.deps)}
    op = dg.OpDefinition(
        compute_fn=build,
        name=op_name(source),
        ins={name: _input(name) for name in reads},
        outs={"table": table, **dict.fromkeys(checks, _CHECKED)},
        config_schema=_config_schema(),
        required_resource_keys={PYSPARK},
        **step_options(source.annotation),
    )
    return dg.AssetsDefinition(
        keys_by_input_name=reads,
        keys_by_output_name={"table": spec.key},
        node_def=op,
        backfill_policy=backfill_policy(source) if spec.partitions_def else None,
        check_specs_by_output_name=checks,
        specs=[spec],
    )


_CHECKED = dg.Out(dagster_type=None)


@cache
def _input(name: str) -> Any:
    """Return the definition of an input; ops with an input of this name share it."""
    return dg.In(dg.Nothing).to_definition(name)


@cache
def _config_schema() -> Any:
    """Return the schema of an op's config; all ops share one."""
    description = "Build even if the table is up to date."
    forced = dg.Field(bool, default_value=False, description=description)
    return dg.OpDefinition(lambda: None, "any", config_schema={"force": forced}).config_schema


def _pool(runtime: Runtime, builder: Builder, context: dg.AssetExecutionContext) -> Pool:
    """Return the pool of a run; it builds the run's sources if all steps run in this process."""
    steps = set(context.run.step_keys_to_execute or context.job_def.graph.node_names())
    chosen = [s for s in builder.project.persisted if op_name(s) in steps]
    sources = chosen if _is_here(context) else []
    forced = [s.source_id for s in sources if _is_forced(context.run, s)]
    parted = [s for s in chosen if s.annotation.partition]
    partition_keys = requested_partitions(context.run, parted, builder.observer.keys())
    windows = {s: (a, b) for s, (a, b) in json.loads(context.run.tags.get(AGAIN_TAG, "{}")).items()}
    return Pool(
        builder,
        sources,
        forced=forced,
        partition_keys=partition_keys,
        recompute_spans=windows,
        late=runtime.late,
    )


def _is_here(context: dg.AssetExecutionContext) -> bool:
    """Whether one process executes all steps of a run."""
    executor = context.job_def.executor_def.name
    return executor in (dg.in_process_executor.name, "execute_in_process_executor")


def is_in_parts(instance: dg.DagsterInstance | None, run: dg.DagsterRun) -> bool:
    """Whether the steps of a run are executed in processes of their own, as far as its log says.

    Executors that do so record that a step's process begins. Resources do not learn the executor.
    """
    if instance is None:
        return False
    kinds = {dg.DagsterEventType.STEP_WORKER_STARTING, dg.DagsterEventType.STEP_WORKER_STARTED}
    return bool(instance.get_records_for_run(run.run_id, of_type=kinds, limit=1).records)


def _is_forced(run: dg.DagsterRun, source: Source) -> bool:
    """Whether a run builds a source even if it is up to date."""
    ops: dict[str, Any] = dict(run.run_config).get("ops", {})  # pyright: ignore[reportAssignmentType]
    tag = run.tags.get(FORCE_TAG, "")
    named = tag.startswith("[") and source.source_id in json.loads(tag)
    config = ops.get(op_name(source), {}).get("config", {})
    return named or tag.lower() == "true" or bool(config.get("force", False))


def _results(
    builder: Builder, source: Source, results: Sequence[CheckResult]
) -> Iterator[dg.AssetCheckResult]:
    return (
        dg.AssetCheckResult(**arguments) for arguments in check_events(builder, source, results)
    )


def _output(work: PendingBuild, inputs: Mapping[str, str], default: str) -> dg.Output[PendingBuild]:
    """Return the output of a step, with the tags of its materialization; see `code_version`."""
    environment = work.build.environment
    tags = {ENVIRONMENT_TAG: environment, **inputs}
    if environment != default:
        tags[CODE_VERSION] = code_version(work.source.build_id, environment, default)
    with beta():
        version = dg.DataVersion(data_version(work))
        return dg.Output(work, output_name="table", data_version=version, tags=tags)
