"""Partitions as Dagster's: definitions, mappings between assets, and which a run is of."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

import dagster as dg

from persist_assets.growth import trace_to_partitions
from persist_assets.model import Dimension, Partitioning, Source, SourceID
from persist_assets.partitions import expand, limits, runs, split

PARTITIONS_TAG = "persist/partitions"
"""A run with this tag builds these partitions: JSON, runs of keys by SourceID."""
PARTITION = "dagster/partition"
FIRST, LAST = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_LENGTHS = {
    "hourly": dg.HourlyPartitionsDefinition,
    "daily": dg.DailyPartitionsDefinition,
    "monthly": dg.MonthlyPartitionsDefinition,
}


def partitions_definition(partitioning: Partitioning) -> dg.PartitionsDefinition:
    """Return what Dagster calls a partitioning; its keys are ours."""
    found = {d.column: _definition(partitioning, d) for d in partitioning.dimensions}
    return dg.MultiPartitionsDefinition(found) if len(found) > 1 else next(iter(found.values()))


def partition_tags(partitioning: Partitioning, key: str) -> dict[str, str]:
    """Return how Dagster tags what it is told of a partition: of several columns, with each."""
    if len(partitioning.dimensions) == 1:
        return {}
    columns = (f"{PARTITION}/{d.column}" for d in partitioning.dimensions)
    return dict(zip(columns, split(partitioning, key), strict=True))


def _definition(partitioning: Partitioning, dimension: Dimension) -> dg.PartitionsDefinition:
    if dimension.every is None:
        return dg.StaticPartitionsDefinition([str(value) for value in dimension.values])
    first, last = limits(partitioning)
    zone = partitioning.timezone
    if dimension.every == "weekly":
        return dg.WeeklyPartitionsDefinition(first, end_date=last, timezone=zone, day_offset=1)
    return _LENGTHS[dimension.every](first, end_date=last, timezone=zone)


def backfill_policy(source: Source) -> dg.BackfillPolicy | None:
    """Return whether a backfill of a source is one run or many."""
    if source.annotation.partition is None:
        return None
    if source.annotation.backfill == "multi_run":
        return dg.BackfillPolicy.multi_run()
    return dg.BackfillPolicy.single_run()


def dependency(source: Source, upstream: Source) -> dg.AssetDep:
    """Return a dependency, with which partitions of it those of a source follow from."""
    mapping: dg.PartitionMapping | None = None
    if upstream.persisted and upstream.annotation.partition is not None:
        mapping = dg.AllPartitionMapping()
        if source.annotation.partition is not None and _follows(source, upstream):
            mapping = dg.TimeWindowPartitionMapping()
    return dg.AssetDep(dg.AssetKey(upstream.asset_key), partition_mapping=mapping)


def _follows(source: Source, upstream: Source) -> bool:
    """Whether windows of a source provably follow from the same windows of what it reads."""
    ours, theirs = source.annotation.partition, upstream.annotation.partition
    if not (ours and theirs and ours.time and theirs.time):
        return False
    if len(ours.dimensions) > 1 or len(theirs.dimensions) > 1:
        return False
    return trace_to_partitions(source, upstream) is not None


def asked_by(
    run: dg.DagsterRun, sources: Iterable[Source], order: Mapping[SourceID, Sequence[str]]
) -> dict[SourceID, Collection[str]]:
    """Return which partitions a run is of, by SourceID; sources that are not there: all.

    Parameters
    ----------
    order
        The partitions there are.
    """
    said = run.tags.get(PARTITIONS_TAG)
    if said is not None:
        told: dict[str, list[tuple[str, str]]] = json.loads(said)
        return {s: expand(order[s], tuple(some)) for s, some in told.items() if s in order}
    first = run.tags.get(FIRST, run.tags.get(PARTITION))
    if first is None:
        return {}
    between = dg.PartitionKeyRange(first, run.tags.get(LAST, first))
    return {
        source.source_id: partitions_definition(partition).get_partition_keys_in_range(between)
        for source in sources
        if (partition := source.annotation.partition) is not None
    }


def asked_tag(
    asked: Mapping[SourceID, Collection[str]], order: Mapping[SourceID, Sequence[str]]
) -> dict[str, str]:
    """Return the tag of a run of some partitions."""
    told = {s: runs(order[s], some) for s, some in asked.items()}
    return {PARTITIONS_TAG: json.dumps(told)} if told else {}
