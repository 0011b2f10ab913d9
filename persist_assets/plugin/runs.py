"""Runs started from our own command line: they are Dagster runs and appear in its UI."""

import getpass
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg

from persist_assets.building.observe import Observer
from persist_assets.building.pins import reading_as
from persist_assets.building.progress import Progress, watched
from persist_assets.building.reader import Reader
from persist_assets.building.settled import Settled, confirm, find_settled
from persist_assets.compiler.load import load_project, require
from persist_assets.core import errors
from persist_assets.core.errors import PersistError, SettingsError, Terminated
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import SourceID
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.core.model.sources import Source
from persist_assets.core.settings.load import environments_of, find_root, load_settings
from persist_assets.core.settings.values import Settings
from persist_assets.operations.home import find_home, opened_alone, write_home
from persist_assets.operations.recovery import open_ledger
from persist_assets.planning.reach import reached_by, reached_within
from persist_assets.planning.selection import find_source
from persist_assets.plugin.assets import (
    AGAIN_TAG,
    FORCE_TAG,
    load_sources,
    of_command,
    op_name,
)
from persist_assets.plugin.events import (
    CODE_VERSION,
    DATA_VERSION,
    checks_in_dagster,
    code_version,
)
from persist_assets.plugin.partitions import partitions_tag
from persist_assets.plugin.runtime import ENVIRONMENT_TAG, ORIGIN_TAG

_FAILED = frozenset({"STEP_FAILURE", "PIPELINE_FAILURE", "PIPELINE_CANCELED"})


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The failure of a step of a run.

    Attributes
    ----------
    step
        The step's name in Dagster.
    source_id
        The source that it builds, if any.
    kind
        The class of our error that caused it; `BuildError` if the cause is not one of ours.
    """

    step: str
    source_id: SourceID | None
    message: str
    kind: type[PersistError]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run.

    Attributes
    ----------
    run_id
        None: there was nothing to run.
    settled
        The snapshots of sources that were left out, because nothing would change.
    """

    run_id: str | None
    success: bool
    failures: tuple[StepFailure, ...] = ()
    settled: Mapping[SourceID, Snapshot] = field(default_factory=dict[SourceID, Snapshot])


@contextmanager
def open_instance(settings: Settings) -> Generator[dg.DagsterInstance]:
    """Open Dagster's instance of a project, create it if necessary, and close it after the block.

    Raises
    ------
    SettingsError
        Its home cannot be created or opened.
    """
    home = write_home(find_home(settings))
    os.environ["DAGSTER_HOME"] = str(home)
    with opened_alone(home):
        instance = dg.DagsterInstance.get()  # this creates its databases
    with instance:
        yield instance


def load_definitions(root: str, sources: str) -> dg.Definitions:
    """Return the definitions of a project: its `definitions.py`, else its sources alone.

    Raises
    ------
    SettingsError
        `definitions.py` holds no `dagster.Definitions`.
    """
    path = Path(root, "definitions.py")
    if not path.is_file():
        return load_sources(Path(root, sources))
    spec = importlib.util.spec_from_file_location("definitions", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, root)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(root)
    definitions = [value for value in vars(module).values() if isinstance(value, dg.Definitions)]
    if len(definitions) != 1:
        raise SettingsError(f"{path} must define one dagster.Definitions, not {len(definitions)}")
    return definitions[0]


def project_job(root: str, sources: str, default: str = "") -> dg.JobDefinition:
    """Return a job of all assets of a project; Dagster calls this function by its name.

    Runs of earlier releases, which may be executed again, have no `default`; see `of_command`.
    """
    with of_command(default):
        definitions = load_definitions(root, sources)
    job = dg.define_asset_job("persist_build", selection=dg.AssetSelection.all())
    return dg.Definitions.merge(definitions, dg.Definitions(jobs=[job])).resolve_job_def(job.name)


def run_assets(
    settings: Settings,
    sources: Iterable[Source],
    *,
    force: bool,
    verbose: bool,
    more: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    reader: Reader | None = None,
) -> RunResult:
    """Build sources in one Dagster run in this process, and return when it has ended.

    Parameters
    ----------
    reader
        If there is one, sources that its observer finds settled are left out: see
        `building.settled`. The run reads raw tables at the versions that the observer looked at.
    more
        Further tags of the run.
    progress
        What its builds note their progress in, for others to look at.

    Raises
    ------
    SettingsError
        The project's `definitions.py` does not define the sources.
    Terminated
        It was ended by SIGTERM; the run is in Dagster's history as a failed one.
    KeyboardInterrupt
        It was interrupted; likewise.
    """
    sources = tuple(sources)
    settled: Mapping[SourceID, Snapshot] = {}
    with ExitStack() as stack:
        default = stack.enter_context(_loading_in(settings))
        open_once = cache(lambda: stack.enter_context(open_instance(settings)))
        if reader is not None:
            settled = _leave_out(open_once, reader, sources, default)
            sources = tuple(s for s in sources if s.source_id not in settled)
            if not sources:
                return RunResult(None, success=True, settled=settled)
        tags = {ENVIRONMENT_TAG: settings.environment, **({FORCE_TAG: "true"} if force else {})}
        tags[ORIGIN_TAG] = json.dumps({"user": _user(), "host": socket.gethostname()})
        tags |= more or {}
        stack.enter_context(watched(progress or Progress()))
        if reader is not None:
            stack.enter_context(reading_as(reader.pins.shared()))
        result = _execute(open_once(), settings, sources, tags, default, verbose=verbose)
        return replace(result, settled=settled)


@contextmanager
def _loading_in(settings: Settings) -> Generator[str]:
    """Load definitions in an environment, within the block, which gets the default one.

    The default environment is that of a code location that is started beside the command.
    """
    default = os.environ.get("PERSIST_ENV")
    os.environ["PERSIST_ENV"] = settings.environment
    try:
        yield default or environments_of(settings.root)[0]
    finally:
        if default is None:
            del os.environ["PERSIST_ENV"]
        else:
            os.environ["PERSIST_ENV"] = default


def _execute(
    instance: dg.DagsterInstance,
    settings: Settings,
    sources: Sequence[Source],
    tags: Mapping[str, str],
    default: str,
    *,
    verbose: bool,
) -> RunResult:
    """Build sources in one Dagster run; see `run_assets`."""
    job = dg.build_reconstructable_job(
        "persist_assets.plugin.runs",
        "project_job",
        reconstructable_kwargs={
            "root": str(settings.root),
            "sources": settings.sources,
            "default": default,
        },
    )
    level = "DEBUG" if verbose else "CRITICAL"
    with _insistent_interrupts() as signals:
        try:
            result = dg.execute_job(
                job,
                instance=instance,
                asset_selection=[dg.AssetKey(s.asset_key) for s in sources],
                tags=tags,
                run_config={"loggers": {"console": {"config": {"log_level": level}}}},
            )
        except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError) as error:
            raise _interrupt(signals) from error
        ends = [e for e in result.all_events if e.event_type_value in _FAILED]
        if any(_interrupted(e.event_specific_data) for e in ends):
            raise _interrupt(signals)
    names = {op_name(s): s.source_id for s in sources}
    failures = tuple(
        _failure(event.step_key, names.get(event.step_key), event.event_specific_data)
        for event in ends
        if event.step_key
    )
    return RunResult(result.run_id, result.success, failures)


def _leave_out(
    open_once: Callable[[], dg.DagsterInstance],
    reader: Reader,
    sources: Sequence[Source],
    default: str,
) -> dict[SourceID, Snapshot]:
    """Return the sources that a run need not build, and record that they are up to date."""
    settled = find_settled(reader, sources)
    if settled:
        environment = reader.settings.environment
        reported = _reported(open_once(), reader.project, environment, default, settled.values())
        # What is above a source of the run may change.
        moving = {s.source_id for s in sources} - reported
        for source in reader.project.sources:
            if not moving.isdisjoint((*source.bindings, *source.compared)):
                moving.add(source.source_id)
        settled = {s: some for s, some in settled.items() if s not in moving}
        confirm(reader, settled.values())
    return {s: some.snapshot for s, some in settled.items()}


def _reported(
    instance: dg.DagsterInstance,
    project: Project,
    environment: str,
    default: str,
    settled: Iterable[Settled],
) -> set[SourceID]:
    """Return the settled sources of which Dagster knows these rows, and that all checks passed."""
    by_key = {dg.AssetKey(s.source.asset_key): s for s in settled}
    reported: set[SourceID] = set()
    for record in instance.get_asset_records([*by_key]):
        some, last = by_key[record.asset_entry.asset_key], record.asset_entry.last_materialization
        materialization = last.asset_materialization if last else None
        tags = (materialization.tags if materialization else None) or {}
        if (tags.get(ENVIRONMENT_TAG), tags.get(CODE_VERSION), tags.get(DATA_VERSION)) == (
            environment,
            code_version(some.source.build_id, environment, default),
            some.snapshot.content,
        ):
            reported.add(some.source.source_id)
    reported -= {by_key[key].source.source_id for key in _timed(instance, [*by_key])}
    checks = {
        dg.AssetCheckKey(key, name): (some.source.source_id, check.definition)
        for key, some in by_key.items()
        for name, check in checks_in_dagster(project, some.source).items()
    }
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key([*checks])
    for key, (source_id, definition) in checks.items():
        if _evaluated(latest.get(key)) != (True, environment, definition):
            reported.discard(source_id)
    return reported


def _timed(instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> set[dg.AssetKey]:
    """Return the assets whose freshness Dagster's daemon judges, wherever the policy comes from.

    It counts the time since the last materialization, so these need a step.
    """
    states = instance.get_freshness_state_records(keys)
    return {key for key, state in states.items() if state.freshness_state.value != "NOT_APPLICABLE"}


def _evaluated(record: Any) -> tuple[bool, Any, Any] | None:
    """Return whether a check passed when it last ran, in which environment, and its definition."""
    event = record.event.dagster_event if record and record.event else None
    if event is None or not isinstance(event.event_specific_data, dg.AssetCheckEvaluation):
        return None
    evaluation = event.event_specific_data
    environment, check = (evaluation.metadata.get(name) for name in ("environment", "check"))
    return evaluation.passed, environment and environment.value, check and check.value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def rerun(
    source: str,
    minimum: str | date,
    maximum: str | date,
    *,
    project: str | Path = ".",
    environment: str | None = None,
    cascade: bool = False,
) -> RunResult:
    """Recompute the rows of a source whose watermark is between two values.

    It does the same as `persist rerun`.

    Parameters
    ----------
    source
        Its name, or its asset key.
    minimum, maximum
        Both inclusive. ISO 8601 strings, dates or datetimes; datetimes without a time zone are in
        the time zone of the settings. Values of other types are passed as strings.
    project
        The project root, or a directory in it.
    cascade
        Also build everything downstream.

    Raises
    ------
    TypeError
        A bound is neither a string nor a date.
    SettingsError
        The source has no such window, or a string is not a value of the column's type.
    NotFoundError
        The source does not exist.
    """
    for bound in (minimum, maximum):
        if not isinstance(bound, str | date):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{bound!r} is neither a string nor a date")
    low, high = (b if isinstance(b, str) else b.isoformat() for b in (minimum, maximum))
    settings = load_settings(find_root(Path(project)), environment=environment)
    compiled = require(load_project(settings))
    ledger = open_ledger(settings)
    try:
        observer = Observer(settings, compiled, ledger)
        rerun_source = find_source(compiled, source)
        return run_window(settings, observer, rerun_source, low, high, cascade=cascade)[0]
    finally:
        ledger.close()


def run_window(
    settings: Settings,
    observer: Observer,
    source: Source,
    low: str,
    high: str,
    *,
    cascade: bool = False,
    verbose: bool = False,
    progress: Progress | None = None,
) -> tuple[RunResult, tuple[Source, ...]]:
    """Recompute the rows of a source whose times are between two texts, in one Dagster run.

    Parameters
    ----------
    observer
        An observer of the same environment, for planning only.
    cascade
        Also build everything that reads the source: whole tables or, of partitioned ones, the
        partitions known to depend on the rows.
    progress
        See `run_assets`.

    Returns
    -------
    result, sources
        The outcome of the run, and the sources that it built.

    Raises
    ------
    SettingsError
        The source has no such window, or a text is not a value of its column's type.
    """
    span = observer.span(source, low, high)
    project = observer.project
    source_ids, sources = {source.source_id}, [source]
    partition_keys = dict[SourceID, Collection[str]]()
    if source.annotation.partition is not None:
        partition_keys[source.source_id] = observer.keys_between(source, low, high)
        keys = observer.keys()[source.source_id]
        if not partition_keys[source.source_id]:
            raise SettingsError(
                f"`{source.key}` has no partition from {low} to {high}",
                hint=f"known partitions: {keys[0]} to {keys[-1]}" if keys else "it has none",
            )
    order, zone = observer.keys(), observer.settings.timezone.key
    if cascade:
        for reader in project.persisted:
            inputs = {s.source_id for s in project.inputs(reader)}
            if inputs & source_ids and reader.source_id not in source_ids:
                source_ids.add(reader.source_id)
                sources.append(reader)
                if reader.annotation.partition is not None:
                    keys = set[str]()
                    for above in project.inputs(reader):
                        if above.source_id in partition_keys:
                            upstream_keys = partition_keys[above.source_id]
                            keys |= {
                                *reached_by(project, reader, above, upstream_keys, order, zone)
                            }
                        elif above is source:
                            keys |= {*reached_within(project, reader, above, [span], order, zone)}
                        elif above.source_id in source_ids:
                            keys |= {*order[reader.source_id]}
                    partition_keys[reader.source_id] = [
                        k for k in order[reader.source_id] if k in keys
                    ]
    forced = sorted({*partition_keys} | (source_ids - {source.source_id}))
    tags = {**partitions_tag(partition_keys, order), FORCE_TAG: json.dumps(forced)}
    if source.source_id not in partition_keys:
        tags[AGAIN_TAG] = json.dumps({source.source_id: [low, high]})
    result = run_assets(
        settings, sources, force=False, verbose=verbose, more=tags, progress=progress
    )
    return result, tuple(sources)


def _interrupt(signals: Collection[int]) -> KeyboardInterrupt:
    """Return the exception for an interrupted run: to Dagster, SIGTERM is an ordinary interrupt."""
    return Terminated() if signal.SIGTERM in signals else KeyboardInterrupt()


_PATIENCE_S = 5.0
"""The time that an interrupt has to end a run before it is sent again, in seconds."""


@contextmanager
def _insistent_interrupts() -> Generator[Collection[int]]:
    """Send an interrupt again, within the block, for as long as it has had no effect.

    Signal handlers belong to Dagster and Spark during a run, and an interrupt at a bad moment
    (between two steps, while a JVM starts) is lost. The block gets the set of signals received so
    far.
    """
    received: set[int] = set()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    ended = threading.Event()

    def watch() -> None:
        while signals := reader.recv(16):
            received.update(signals)
            while received & _INTERRUPTS and not ended.wait(_PATIENCE_S):
                os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=watch, daemon=True, name="interrupts")
    watcher.start()
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield received
    finally:
        ended.set()
        signal.set_wakeup_fd(previous)
        writer.close()
        watcher.join()
        reader.close()


_INTERRUPTS = frozenset((signal.SIGINT, signal.SIGTERM))


def _interrupted(data: Any) -> bool:
    error = getattr(data, "error", None)
    while error is not None:
        if error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt"):
            return True
        error = error.cause
    return False


def _failure(step: str, source_id: SourceID | None, data: Any) -> StepFailure:
    """Return why a step failed: the outermost of the error's causes that is one of ours."""
    error = getattr(data, "error", None)
    message = str(data if error is None else error.message).strip()
    while error is not None:
        kind = getattr(errors, error.cls_name or "", None)
        if isinstance(kind, type) and issubclass(kind, PersistError):
            return StepFailure(step, source_id, error.message.partition(": ")[2].strip(), kind)
        error = error.cause
    return StepFailure(step, source_id, message, errors.BuildError)
