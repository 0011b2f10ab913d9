"""Events about builds for Dagster: versions, input versions and check results.

Steps report most of them through Dagster itself. A step that builds a whole request reports them
here, in the same words.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.observe import Observer
from persist_assets.building.pins import Looked
from persist_assets.building.stages import PendingBuild
from persist_assets.compiler.frontends.annotation_values import numbered
from persist_assets.core.model.checks import Check, CheckResult
from persist_assets.core.model.project import Project
from persist_assets.core.model.sources import Source
from persist_assets.plugin.external import brought_metadata, looked_metadata
from persist_assets.plugin.io_manager import output_metadata
from persist_assets.plugin.partitions import FIRST, PARTITION, partition_tags
from persist_assets.plugin.runtime import ENVIRONMENT_TAG, Runtime

CODE_VERSION = "dagster/code_version"
DATA_VERSION = "dagster/data_version"
_IS_OURS = "dagster/data_version_is_user_provided"
_INPUT, _POINTER = "dagster/input_data_version", "dagster/input_event_pointer"
_UNTOLD, _NOWHERE = "INITIAL", "NULL"
"""Dagster's version, and its pointer to an event, for assets that have reported none."""


# ---------------------------------------------------------------------------------------- versions


def code_version(runtime: Runtime, work: PendingBuild) -> str:
    """Return the code version of a build.

    Dagster knows an asset by its last materialization, in whichever environment that was. A
    materialization in another environment than the code location's must not count for the latter,
    even if both run the same code. So its code version names the environment, and Dagster shows
    the asset as out of date.
    """
    environment = work.build.environment
    is_default = environment == runtime.settings.environment
    return work.source.build_id if is_default else f"{work.source.build_id}@{environment}"


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
            CODE_VERSION: code_version(runtime, work),
            DATA_VERSION: data_version(work),
            _IS_OURS: "true",
        }
        for dep in runtime.deps[work.source.source_id]:
            name = dep.to_user_string()
            last = latest.get(name, LastEvent())
            tags |= {f"{_INPUT}/{name}": last.version, f"{_POINTER}/{name}": last.pointer}
        partition = work.source.annotation.partition
        if partition is None:
            yield dg.AssetMaterialization(key, metadata=metadata, tags=tags)
        else:
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
    instance: dg.DagsterInstance, run: dg.DagsterRun, work: PendingBuild
) -> Iterator[dg.AssetMaterialization]:
    """Yield events for the partitions that a step computed, in a run without partitions.

    They have the tags of the step's own materialization, which is the run's last one of the asset.
    Without these, Dagster would count the partitions as fresh whatever changes.
    """
    partition, key = work.source.annotation.partition, dg.AssetKey(work.source.asset_key)
    if partition is None or not work.step.keys or not {PARTITION, FIRST}.isdisjoint(run.tags):
        return
    latest = instance.fetch_materializations(key, limit=10).records
    records = (r for r in latest if r.run_id == run.run_id)
    tags = next((r.event_log_entry.tags or {} for r in records), None)
    if tags is None:  # other runs have materialized it often since
        return
    for part in work.step.keys:
        part_tags = {**tags, **partition_tags(partition, part)}
        yield dg.AssetMaterialization(key, partition=part, tags=part_tags)


def report_raw_versions(
    instance: dg.DagsterInstance, observer: Observer, maker: object, *, all_kinds: bool = True
) -> None:
    """Report the versions of the raw tables that a run reads to Dagster, if they are new to it.

    They are reported as materializations: for external assets, Dagster accepts no other event as
    their data version. This has to happen before the first step begins, which looks them up. For
    an external table, it is the table's own version, whatever is held of it.

    If another code location materializes the asset of a raw table, that is the asset's version: a
    report of ours would be taken for the asset's last materialization.

    Parameters
    ----------
    maker
        Who reports; see `maker_of`.
    all_kinds
        Report all raw tables, not only external tables.
    """
    is_made_elsewhere = cache(lambda run_id: _is_made_elsewhere(instance, run_id, maker))
    for source in observer.project.sources:
        if source.raw is None or source.source_id in observer.pins.fed:
            continue
        if source.external is None and not all_kinds:
            continue
        looked = observer.pins.look(source) if source.external is not None else None
        version = looked.newest if looked else observer.pins.find_version(source)
        key = dg.AssetKey(source.asset_key)
        records = instance.fetch_materializations(key, limit=1).records
        event = records[0].asset_materialization if records else None
        reported = ((event and event.tags) or {}).get(DATA_VERSION)
        if records and is_made_elsewhere(records[0].run_id):
            continue
        if version is not None and (
            reported is None or not observer.pins.is_same(source, reported, version)
        ):
            tags = {DATA_VERSION: version, ENVIRONMENT_TAG: observer.settings.environment}
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
