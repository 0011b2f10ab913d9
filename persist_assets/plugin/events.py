"""Events about builds for Dagster: versions, input versions and check results.

Steps report most of them through Dagster itself. A step that builds a whole request reports them
here, in the same words.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.observe import Observer
from persist_assets.building.pins import Looked
from persist_assets.building.stages import PendingBuild
from persist_assets.compiler.frontends.annotation_values import numbered
from persist_assets.core.errors import PersistError
from persist_assets.core.model.checks import Check, CheckResult
from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source
from persist_assets.core.partitions import expand
from persist_assets.plugin.external import brought_metadata, looked_metadata
from persist_assets.plugin.io_manager import output_metadata
from persist_assets.plugin.partitions import (
    FIRST,
    PARTITION,
    partition_tags,
    requested_partitions,
)
from persist_assets.plugin.runtime import ENVIRONMENT_TAG, Runtime

CODE_VERSION = "dagster/code_version"
DATA_VERSION = "dagster/data_version"
_IS_OURS = "dagster/data_version_is_user_provided"
_INPUT, _POINTER = "dagster/input_data_version", "dagster/input_event_pointer"
_UNTOLD, _NOWHERE = "INITIAL", "NULL"
"""Dagster's version, and its pointer to an event, for assets that have reported none."""
_LOOKED_AT = "persist/looked-at"
"""The tag of a raw table's version with the time at which its run started, in seconds."""
_MOST_REPORTED = 500
"""A build reports at most this many partitions that it left alone."""


# ---------------------------------------------------------------------------------------- versions


def code_version(build_id: str, environment: str, default: str) -> str:
    """Return the code version of a build in an environment.

    Dagster knows an asset by its last materialization, in whichever environment that was. A
    materialization in another environment than the code location's must not count for the latter,
    even if both run the same code. So its code version names the environment, and Dagster shows
    the asset as out of date.

    Parameters
    ----------
    default
        The environment of the code location; of a run from our command line, that of a code
        location started beside it.
    """
    return build_id if environment == default else f"{build_id}@{environment}"


def data_version(work: PendingBuild) -> str:
    """Return the digest of the rows that a build computed or reused."""
    rows = work.measured or work.snapshot
    assert rows is not None
    return rows.content


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The last event about an asset in Dagster's log: its position and the data version."""

    pointer: str = _NOWHERE
    version: str = _UNTOLD


def fetch_last_events(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetKey]
) -> dict[str, LastEvent]:
    """Return Dagster's last events about some assets, by the assets' keys as strings."""
    last_events: dict[str, LastEvent] = {}
    for key in keys:
        records = instance.fetch_materializations(key, limit=1).records
        records = records or instance.fetch_observations(key, limit=1).records
        last_events[key.to_user_string()] = (
            LastEvent(
                str(records[0].storage_id),
                (records[0].event_log_entry.tags or {}).get(DATA_VERSION, _UNTOLD),
            )
            if records
            else LastEvent()
        )
    return last_events


def build_events(
    runtime: Runtime,
    builder: Builder,
    works: Sequence[PendingBuild],
    instance: dg.DagsterInstance,
    last_events: Mapping[str, LastEvent],
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.AssetObservation]:
    """Yield Dagster's events for published builds, in the order of the graph.

    A partitioned source has one materialization for each partition computed. Each event has to be
    in Dagster's log before the next one is requested: later ones point to it.

    Parameters
    ----------
    last_events
        The last events about their inputs before the builds began. Later events are about data that
        the builds did not read.
    """
    latest = {**last_events}
    order = {s.source_id: n for n, s in enumerate(builder.project.persisted)}
    for work in sorted(works, key=lambda w: order[w.source.source_id]):
        assert work.snapshot is not None
        key = dg.AssetKey(work.source.asset_key)
        metadata = output_metadata(builder, work, work.snapshot)
        tags = {
            ENVIRONMENT_TAG: work.build.environment,
            CODE_VERSION: code_version(
                work.source.build_id, work.build.environment, runtime.settings.environment
            ),
            DATA_VERSION: data_version(work),
            _IS_OURS: "true",
        }
        for dep in runtime.deps[work.source.source_id]:
            name = dep.to_user_string()
            last = latest.get(name, LastEvent())
            tags |= _input_tags(name, last)
        tags |= raw_inputs(runtime, builder.observer, instance, work.source)
        partition = work.source.annotation.partition
        if partition is None:
            yield dg.AssetMaterialization(key, metadata=metadata, tags=tags)
        else:
            yield from _unchanged(instance, builder.observer, work, tags)
            for part in work.step.keys or ():
                part_tags = {**tags, **partition_tags(partition, part)}
                yield dg.AssetMaterialization(
                    key, partition=part, metadata=metadata, tags=part_tags
                )
        for arguments in check_events(builder, work.source, work.checks):
            yield dg.AssetCheckEvaluation(**arguments)
        latest |= fetch_last_events(instance, [key])
    observations = (o for work in works for o in copy_observations(builder.observer, work.source))
    yield from {o.asset_key: o for o in observations}.values()


def partition_events(
    instance: dg.DagsterInstance, observer: Observer, run: dg.DagsterRun, work: PendingBuild
) -> Iterator[dg.AssetMaterialization]:
    """Yield events for the partitions that a step computed, in a run without partitions.

    They have the tags of the step's own materialization, which is the run's last one of the asset.
    Without these, Dagster would count the partitions as fresh whatever changes. The partitions that
    the step left alone come first; a run with partitions reports them outside of the run.
    """
    partition, key = work.source.annotation.partition, dg.AssetKey(work.source.asset_key)
    if partition is None:
        return
    latest = instance.fetch_materializations(key, limit=10).records
    records = (r for r in latest if r.run_id == run.run_id)
    tags = next((r.event_log_entry.tags or {} for r in records), None)
    if tags is None:  # other runs have materialized it often since
        return
    if not {PARTITION, FIRST}.isdisjoint(run.tags):
        reported = requested_partitions(run, [work.source], {}).get(work.source.source_id, ())
        for event in [*_unchanged(instance, observer, work, tags, reported)]:
            instance.report_runless_asset_event(event)
        return
    yield from _unchanged(instance, observer, work, tags)
    for part in work.step.keys or ():
        part_tags = {**tags, **partition_tags(partition, part)}
        yield dg.AssetMaterialization(key, partition=part, tags=part_tags)


def _unchanged(
    instance: dg.DagsterInstance,
    observer: Observer,
    work: PendingBuild,
    tags: Mapping[str, str],
    reported: Collection[str] = (),
) -> Iterator[dg.AssetMaterialization]:
    """Yield events for partitions that a build left alone, because their rows cannot differ.

    The newer data of an input would otherwise make them stale for ever. Their own data version
    stays, so nothing that reads them becomes stale. Of many partitions, the last ones are reported.

    Parameters
    ----------
    tags
        The tags of the build's materialization.
    reported
        Partitions that are reported otherwise.
    """
    source, partition = work.source, work.source.annotation.partition
    assert partition is not None
    left = _current_keys(observer, work)
    others = {*(work.step.keys or ()), *reported}
    keys = [key for key in left if key not in others][-_MOST_REPORTED:]
    if not keys:
        return
    asset_key = dg.AssetKey(source.asset_key)
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    ids = instance.get_latest_storage_id_by_partition(asset_key, kind, {*keys})
    chosen = dg.AssetRecordsFilter(asset_key, storage_ids=[*ids.values()])
    records = instance.fetch_materializations(chosen, limit=len(ids)).records if ids else ()
    tags_by_key = {r.partition_key: r.event_log_entry.tags or {} for r in records}
    # Dagster compares partitions of partitioned inputs with their own events.
    by_key = observer.project.by_key
    parted = {
        _input_name(dg.AssetKey(key))
        for key, other in by_key.items()
        if other.annotation.partition is not None
    }
    compared = {CODE_VERSION, ENVIRONMENT_TAG, *(t for t in tags if t.startswith(f"{_INPUT}/"))}
    for key in keys:
        before = tags_by_key.get(key)
        if before is None or all(before.get(t) == tags.get(t) for t in compared - parted):
            continue
        part_tags = {**tags, **partition_tags(partition, key)}
        if before.get(ENVIRONMENT_TAG) == tags.get(ENVIRONMENT_TAG) and DATA_VERSION in before:
            part_tags[DATA_VERSION] = before[DATA_VERSION]
        yield dg.AssetMaterialization(asset_key, partition=key, tags=part_tags)


def _current_keys(observer: Observer, work: PendingBuild) -> Sequence[str]:
    """Return the partitions that a build records as those of the present data, in order."""
    step = work.step
    groups = step.partitions.filled if step.partitions else ()
    table = step.snapshot.partitions if step.snapshot else None
    if not groups or (not step.keys and table is not None and table.filled == groups):
        return ()  # it records nothing new
    return expand(observer.keys()[work.source.source_id], groups[0].runs)


def _input_name(key: dg.AssetKey) -> str:
    """Return the tag with the data version of an input."""
    return f"{_INPUT}/{key.to_user_string()}"


def _input_tags(name: str, event: LastEvent) -> dict[str, str]:
    """Return the tags of a materialization that name the event of an input."""
    return {f"{_INPUT}/{name}": event.version, f"{_POINTER}/{name}": event.pointer}


_FEW = 20
"""The number of events among which the one about the version that a run reads is looked for."""


def raw_inputs(
    runtime: Runtime, observer: Observer, instance: dg.DagsterInstance, source: Source
) -> dict[str, str]:
    """Return the tags of a materialization for the raw tables that its run read.

    A run reads each table at the version that was current when the run started. Without these
    tags, Dagster would name the version that was reported last, and another run may have reported
    newer data since. Tables that other code locations materialize have no version of ours.
    """
    tags: dict[str, str] = {}
    for key in runtime.deps[source.source_id]:
        table = observer.project.by_key.get(tuple(key.path))
        if table is None or table.raw is None or table.source_id in observer.pins.fed:
            continue
        version, _ = _version_read(observer, table)
        records = instance.fetch_materializations(key, limit=_FEW).records
        if version is None or not records or records[0].run_id:
            continue
        events = [
            LastEvent(str(r.storage_id), (r.event_log_entry.tags or {}).get(DATA_VERSION, _UNTOLD))
            for r in records
        ]
        event, last = next((e for e in events if e.version == version), None), events[0]
        with suppress(PersistError):  # an external table may be out of reach by now
            is_known = event is not None or last.version == _UNTOLD
            if not is_known and observer.pins.is_same(table, last.version, version):
                event = last
        tags |= _input_tags(key.to_user_string(), event or LastEvent(version=version))
    return tags


def _version_read(observer: Observer, source: Source) -> tuple[str | None, Looked | None]:
    """Return the version of a raw table that a run reads; for an external one, how it was found."""
    looked = observer.pins.look(source) if source.external is not None else None
    return (looked.newest if looked else observer.pins.find_version(source)), looked


def report_raw_versions(
    instance: dg.DagsterInstance, observer: Observer, maker: object, *, all_kinds: bool = True
) -> None:
    """Report the versions of the raw tables that a run reads to Dagster, if they are new to it.

    They are reported as materializations: for external assets, Dagster accepts no other event as
    their data version. This has to happen before the first step begins, which looks them up. For
    an external table, it is the table's own version, whatever is held of it.

    If another code location materializes the asset of a raw table, that is the asset's version: a
    report of ours would be taken for the asset's last materialization.

    Another process of the run may have reported its versions before, and a run that started later
    may have reported newer ones. Neither is followed by a version of this run.

    Parameters
    ----------
    maker
        Who reports; see `maker_of`.
    all_kinds
        Report all raw tables, not only external tables.
    """
    is_made_elsewhere = cache(lambda run_id: _is_made_elsewhere(instance, run_id, maker))
    looked_at = f"{observer.started_at.timestamp():.6f}"
    for source in observer.project.sources:
        if source.raw is None or source.source_id in observer.pins.fed:
            continue
        if source.external is None and not all_kinds:
            continue
        version, looked = _version_read(observer, source)
        key = dg.AssetKey(source.asset_key)
        records = instance.fetch_materializations(key, limit=1).records
        event = records[0].asset_materialization if records else None
        last = (event and event.tags) or {}
        reported = last.get(DATA_VERSION)
        if records and is_made_elsewhere(records[0].run_id):
            continue
        if float(last.get(_LOOKED_AT, 0)) >= float(looked_at):
            continue
        if version is not None and (
            reported is None or not observer.pins.is_same(source, reported, version)
        ):
            tags = {
                DATA_VERSION: version,
                ENVIRONMENT_TAG: observer.settings.environment,
                _LOOKED_AT: looked_at,
            }
            metadata = looked_metadata(looked) if looked else None
            event = dg.AssetMaterialization(key, tags=tags, metadata=metadata)
            instance.report_runless_asset_event(event)


def maker_of(run: dg.DagsterRun | None) -> object:
    """Return the owner of a run's assets: the name of a code location, or the place of code."""
    origin = run.remote_job_origin if run else None
    return origin.location_name if origin else run and run.job_code_origin


def _is_made_elsewhere(instance: dg.DagsterInstance, run_id: str, maker: object) -> bool:
    """Whether a run of another code location made a materialization; reports belong to no run."""
    run = instance.get_run_by_id(run_id) if run_id else None
    return run is not None and maker_of(run) != maker


def copy_observations(observer: Observer, source: Source) -> Iterator[dg.AssetObservation]:
    """Yield observations of the copies of the external tables that a source is computed from.

    They have no data version: the tables' versions were reported before the run began.
    """
    for table, copy in observer.pins.copies(source):
        tags = {ENVIRONMENT_TAG: observer.settings.environment}
        metadata = looked_metadata(Looked(copy.version, copy)) | brought_metadata(observer, copy)
        yield dg.AssetObservation(dg.AssetKey(table.asset_key), metadata=metadata, tags=tags)


# ------------------------------------------------------------------------------------------ checks


def checks_in_dagster(project: Project, source: Source) -> dict[str, Check]:
    """Return the checks of a source's asset, by their names in Dagster.

    A check of a view, which is no asset, belongs to each asset that is computed from the view:
    ``staging__orders__not_null_id``.
    """
    checks = {c.name: c for c in source.checks}
    for check in project.checks_of_views(source):
        plain = "__".join(re.split(r"[/:]", check.name))
        names = numbered(re.sub(r"\W", "_", plain, flags=re.ASCII))
        checks[next(name for name in names if name not in checks)] = check
    return checks


def check_events(
    builder: Builder, source: Source, results: Sequence[CheckResult]
) -> Iterator[dict[str, Any]]:
    """Yield Dagster's results of the checks of a source's asset, as arguments of its events.

    Checks of other sources that share its table are left out.
    """
    # The run may be of another environment than the definitions, where the source has other code.
    run_source = builder.project.by_id[source.source_id]
    names = {c.name: name for name, c in checks_in_dagster(builder.project, run_source).items()}
    for result in results:
        if result.name in names:
            severity = dg.AssetCheckSeverity
            yield {
                "asset_key": dg.AssetKey(source.asset_key),
                "check_name": names[result.name],
                "passed": result.passed,
                "severity": severity.ERROR if result.blocking else severity.WARN,
                "description": None if result.passed else result.in_words,
                "metadata": _metadata(result, builder.settings.environment),
            }


def _metadata(result: CheckResult, environment: str) -> dict[str, Any]:
    return {
        "failed_rows": result.failed_rows,
        "check": result.definition,
        "environment": environment,
        **({"found": result.found} if result.found else {}),
        **({"sample": _table_of(result.sample)} if result.sample else {}),
        **_kept_rows(result),
        **(_partitions_of(result) if result.partitions else {}),
    }


def _kept_rows(result: CheckResult) -> dict[str, Any]:
    """Return metadata that names the table with the failing rows."""
    if result.kept_in is None:
        return {}
    return {
        "failing_rows": dg.MetadataValue.path(result.kept_in),
        "failing_rows_kept": result.kept_rows,
    }


_MOST_PARTITIONS = 100
"""An event lists at most this many partitions in which a check fails."""


def _partitions_of(result: CheckResult) -> dict[str, Any]:
    """Return metadata that lists the partitions in which a check fails.

    Dagster's own check results for partitions are a preview, and a run over a range of partitions
    records them for none of its partitions (dagster 1.13.27). See docs/architecture/dagster.md.
    """
    partitions = [
        {"partition": p.key, **({"found": p.found} if p.found else {"failed_rows": p.failed_rows})}
        for p in result.partitions[:_MOST_PARTITIONS]
    ]
    return {"failed_partitions": len(result.partitions), "partitions": partitions}


def _table_of(rows: Sequence[str]) -> dg.MetadataValue[Any]:
    """Return JSON rows as a Markdown table."""
    values: list[dict[str, Any]] = [json.loads(row) for row in rows]
    lines = ["| " + " | ".join(map(_cell, values[0])) + " |", "| --- " * len(values[0]) + "|"]
    lines += ("| " + " | ".join(map(_cell, row.values())) + " |" for row in values)
    return dg.MetadataValue.md("\n".join(lines))


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(text.split()))
