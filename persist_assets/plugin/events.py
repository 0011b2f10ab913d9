"""What Dagster is told of builds: versions, what they follow from, and what came of checks.

Runs of steps tell most of it through Dagster itself; what builds a whole request in one step tells
it here, and in the same words.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.observe import Observer
from persist_assets.building.pins import Looked
from persist_assets.building.stages import PendingBuild
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.model.sources import Source
from persist_assets.plugin.external import brought_metadata, looked_metadata
from persist_assets.plugin.io_manager import output_metadata
from persist_assets.plugin.partitions import partition_tags
from persist_assets.plugin.runtime import ENVIRONMENT_TAG, Runtime

CODE_VERSION = "dagster/code_version"
DATA_VERSION = "dagster/data_version"
_IS_OURS = "dagster/data_version_is_user_provided"
_INPUT, _POINTER = "dagster/input_data_version", "dagster/input_event_pointer"
_UNTOLD, _NOWHERE = "INITIAL", "NULL"
"""What Dagster says for the version, and for the event, of what never told one."""


# ---------------------------------------------------------------------------------------- versions


def code_version(runtime: Runtime, work: PendingBuild) -> str:
    """Return the version of the code that a build is of.

    What Dagster knows of an asset is what its last materialization says, in whichever environment
    that was. One in another environment than the code location's must not pass for one in it,
    though both may mean the same: its code version names the environment, so that Dagster shows
    the asset as out of date.
    """
    environment = work.build.environment
    is_default = environment == runtime.settings.environment
    return work.source.build_id if is_default else f"{work.source.build_id}@{environment}"


def data_version(work: PendingBuild) -> str:
    """Return the digest of what a build has computed, or found."""
    rows = work.measured or work.snapshot
    assert rows is not None
    return rows.content


@dataclass(frozen=True, slots=True)
class Seen:
    """What Dagster has been told last of an asset: where that is in its log, and the version."""

    pointer: str = _NOWHERE
    version: str = _UNTOLD


def fetch_seen(instance: dg.DagsterInstance, keys: Collection[dg.AssetKey]) -> dict[str, Seen]:
    """Return what Dagster has been told last of some assets, by their keys as texts."""
    seen: dict[str, Seen] = {}
    for key in keys:
        records = instance.fetch_materializations(key, limit=1).records
        records = records or instance.fetch_observations(key, limit=1).records
        seen[key.to_user_string()] = (
            Seen(
                str(records[0].storage_id),
                (records[0].event_log_entry.tags or {}).get(DATA_VERSION, _UNTOLD),
            )
            if records
            else Seen()
        )
    return seen


def told_of(
    runtime: Runtime,
    builder: Builder,
    works: Sequence[PendingBuild],
    instance: dg.DagsterInstance,
    seen: Mapping[str, Seen],
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation | dg.AssetObservation]:
    """Yield what Dagster is to be told of builds that are published, in the order of the graph.

    Of partitioned sources that is which partitions were computed. Each event has to be in Dagster's
    log before the next one is asked for: later ones point to it.

    Parameters
    ----------
    seen
        What Dagster had been told of their inputs before they began: what came in between is not
        what they were computed from.
    """
    latest = {**seen}
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
            last = latest.get(name, Seen())
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
        for told in told_of_checks(work.source, work.checks, work.build.environment):
            yield dg.AssetCheckEvaluation(**told)
        latest |= fetch_seen(instance, [key])
    found = (told for work in works for told in copies_told(builder.observer, work.source))
    yield from {told.asset_key: told for told in found}.values()


def report_raw_versions(
    instance: dg.DagsterInstance, observer: Observer, *, all_kinds: bool = True
) -> None:
    """Tell Dagster the versions of the raw tables that a run reads, where they are news to it.

    They are reported as materializations: of external assets Dagster takes no other event as
    their data version. It has to happen before the first step begins, which looks them up. Of an
    external table that is its own version, whatever is held of it.

    Parameters
    ----------
    all_kinds
        Of all raw tables, and not of external tables alone.
    """
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
        if version is not None and (
            reported is None or not observer.pins.is_same(source, reported, version)
        ):
            tags = {DATA_VERSION: version, ENVIRONMENT_TAG: observer.settings.environment}
            metadata = looked_metadata(looked) if looked else None
            event = dg.AssetMaterialization(key, tags=tags, metadata=metadata)
            instance.report_runless_asset_event(event)


def copies_told(observer: Observer, source: Source) -> Iterator[dg.AssetObservation]:
    """Yield what a run holds of the external tables that a source is computed from.

    It says no data version: what there is of a table was reported before the run began.
    """
    for table, copy in observer.pins.copies(source):
        tags = {ENVIRONMENT_TAG: observer.settings.environment}
        metadata = looked_metadata(Looked(copy.version, copy)) | brought_metadata(observer, copy)
        yield dg.AssetObservation(dg.AssetKey(table.asset_key), metadata=metadata, tags=tags)


# ------------------------------------------------------------------------------------------ checks


def told_of_checks(
    source: Source, results: Sequence[CheckResult], environment: str
) -> Iterator[dict[str, Any]]:
    """Yield what Dagster is told of each of a source's own checks, as arguments of its events.

    Not of the checks of others that share its table.
    """
    names = {c.name for c in source.checks}
    for result in results:
        if result.name in names:
            severity = dg.AssetCheckSeverity
            yield {
                "asset_key": dg.AssetKey(source.asset_key),
                "check_name": result.name,
                "passed": result.passed,
                "severity": severity.ERROR if result.blocking else severity.WARN,
                "description": None if result.passed else result.in_words,
                "metadata": _metadata(result, environment),
            }


def _metadata(result: CheckResult, environment: str) -> dict[str, Any]:
    return {
        "failed_rows": result.failed_rows,
        "check": result.definition,
        "environment": environment,
        **({"found": result.found} if result.found else {}),
        **({"sample": _table_of(result.sample)} if result.sample else {}),
        **(_partitions_of(result) if result.partitions else {}),
    }


_MOST_PARTITIONS = 100
"""An event tells of so many partitions in which a check fails."""


def _partitions_of(result: CheckResult) -> dict[str, Any]:
    """Return metadata that says in which partitions a check fails.

    Dagster's own results of checks for each partition are a preview, and one of a run over a range
    of partitions is of none of them (dagster 1.13.27). See docs/architecture/dagster.md.
    """
    partitions = [
        {"partition": p.key, **({"found": p.found} if p.found else {"failed_rows": p.failed_rows})}
        for p in result.partitions[:_MOST_PARTITIONS]
    ]
    return {"failed_partitions": len(result.partitions), "partitions": partitions}


def _table_of(rows: Sequence[str]) -> dg.MetadataValue[Any]:
    """Return rows in JSON as a table in Markdown."""
    values: list[dict[str, Any]] = [json.loads(row) for row in rows]
    lines = ["| " + " | ".join(map(_cell, values[0])) + " |", "| --- " * len(values[0]) + "|"]
    lines += ("| " + " | ".join(map(_cell, row.values())) + " |" for row in values)
    return dg.MetadataValue.md("\n".join(lines))


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(text.split()))
