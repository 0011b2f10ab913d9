"""Partitions in Dagster: definitions, mappings between assets, and the partitions of a run."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence

import dagster as dg

from persist_assets.core.model.annotations import Cadence, Dimension, Partitioning
from persist_assets.core.model.queries import SourceID
from persist_assets.core.model.sources import Source
from persist_assets.core.partitions import expand, limits, runs, split
from persist_assets.core.time_values import cut_to
from persist_assets.planning.increments import parted_by, steps_to, trace_to_partitions
from persist_assets.plugin import beta

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
    """Return Dagster's definition of a partitioning; it has our keys."""
    definitions = {d.column: _definition(partitioning, d) for d in partitioning.dimensions}
    return (
        dg.MultiPartitionsDefinition(definitions)
        if len(definitions) > 1
        else next(iter(definitions.values()))
    )


def partition_tags(partitioning: Partitioning, key: str) -> dict[str, str]:
    """Return the tags of Dagster's events about a partition; one for each of several columns."""
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


def dependency(source: Source, upstream: Source, zone: str) -> dg.AssetDep:
    """Return a dependency with its mapping from partitions of a source to those of `upstream`.

    Parameters
    ----------
    zone
        The session's time zone.
    """
    mapping: dg.PartitionMapping | None = None
    if upstream.persisted and upstream.annotation.partition is not None:
        mapping = _mapping(source, upstream, zone) or dg.AllPartitionMapping()
    return dg.AssetDep(dg.AssetKey(upstream.asset_key), partition_mapping=mapping)


_UNITS: Mapping[Cadence, Collection[str]] = {
    "hourly": ("second", "minute", "hour"),
    "daily": ("second", "minute", "hour", "day"),
    "weekly": ("second", "minute", "hour", "day", "week"),
    "monthly": ("second", "minute", "hour", "day", "month"),
}
"""Units to which times can be truncated without leaving their window."""
_NEAR: Mapping[Cadence, int] = {"hourly": 72, "daily": 3, "weekly": 2, "monthly": 2}
"""By how many windows time zones and clock changes can move a time, apart from truncation; plans
look at as many.
"""


def _mapping(source: Source, upstream: Source, zone: str) -> dg.PartitionMapping | None:
    """Return how partitions depend on those of an input, where plans know (`needed`).

    None means that they may depend on all of them. A mapping never leaves out a partition that
    plans would consider.
    """
    ours, theirs = source.annotation.partition, upstream.annotation.partition
    trace = trace_to_partitions(source, upstream)
    if ours is None or theirs is None or trace is None:
        return None
    parted_here, parted = parted_by(source), parted_by(upstream)
    if len(parted_here) != 1 or len(parted) != 1:
        return None
    every = ours.dimensions[0].every
    if every is None and theirs.time is None:  # values that are not times are not changed
        values = {*ours.dimensions[0].values} & {*theirs.dimensions[0].values}
        return dg.StaticPartitionMapping({str(value): str(value) for value in values})
    if every is None or theirs.time is None:
        return None
    (_, kind), (_, leaf) = parted_here[0], parted[0]
    steps = steps_to(trace, leaf, kind)
    units = {unit for step in steps if (unit := cut_to(step))}
    if ours.timezone != theirs.timezone or not units.issubset(_UNITS[every]):
        return None
    dates = leaf != "timestamp" and kind != "timestamp"
    same = not steps or (dates and (leaf == "date" or zone == "UTC"))
    same = same or zone == ours.timezone == "UTC"
    near = 0 if same else _NEAR[every]
    with beta():  # a missing window of the input does not mean missing data
        return dg.TimeWindowPartitionMapping(
            -near, near, allow_nonexistent_upstream_partitions=True
        )


def requested_partitions(
    run: dg.DagsterRun, sources: Iterable[Source], order: Mapping[SourceID, Sequence[str]]
) -> dict[SourceID, Collection[str]]:
    """Return the partitions of a run by SourceID; a source that is not listed has all of them.

    Parameters
    ----------
    order
        All partitions of each source, in order.
    """
    tag = run.tags.get(PARTITIONS_TAG)
    if tag is not None:
        spans: dict[str, list[tuple[str, str]]] = json.loads(tag)
        return {s: expand(order[s], tuple(some)) for s, some in spans.items() if s in order}
    first = run.tags.get(FIRST, run.tags.get(PARTITION))
    if first is None:
        return {}
    between = dg.PartitionKeyRange(first, run.tags.get(LAST, first))
    return {
        source.source_id: partitions_definition(partition).get_partition_keys_in_range(between)
        for source in sources
        if (partition := source.annotation.partition) is not None
    }


def partitions_tag(
    partition_keys: Mapping[SourceID, Collection[str]], order: Mapping[SourceID, Sequence[str]]
) -> dict[str, str]:
    """Return the tag of a run of some partitions."""
    spans = {s: runs(order[s], keys) for s, keys in partition_keys.items()}
    return {PARTITIONS_TAG: json.dumps(spans)} if spans else {}
