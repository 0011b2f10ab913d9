"""Partitions that a selection needs besides itself, and partitions that it affects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.errors import NotFoundError
from persist_assets.core.model.plans import Change, Piece, Step
from persist_assets.core.partitions import (
    between,
    boxes,
    filled_keys,
    reached,
    side,
    split,
)
from persist_assets.core.time_values import overlaps_any
from persist_assets.planning.increments import (
    merged_spans,
    parted_by,
    touched,
    trace_to_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span
    from persist_assets.planning.world import World


def needed(
    project: Project,
    source: Source,
    upstream: Source,
    keys: Collection[str] | None,
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> tuple[str, ...]:
    """Return the partitions of an input that given partitions of a source follow from.

    Parameters
    ----------
    keys
        The partitions of `source`; None: it has none, or all of them are meant.
    order, zone
        All partitions in order, by source, and the session's time zone.
    """
    every = (*order[upstream.source_id],)
    partition, columns = source.annotation.partition, parted_by(source)
    theirs, parted = upstream.annotation.partition, parted_by(upstream)
    trace = trace_to_partitions(source, upstream)
    if keys is None or partition is None or trace is None or not columns:
        return every
    assert theirs is not None
    name, kind = trace.column.column.lower(), columns[0][1]
    target_boxes = boxes(partition, [k for _, k in columns], keys, order[source.source_id])
    is_wanted = overlaps_any(box[0] for box in target_boxes)
    need_by_part: dict[str, bool] = {}
    for key in every:
        part = split(theirs, key)[0]
        if part not in need_by_part:
            part_span = side(theirs, theirs.dimensions[0], part, parted[0][1])
            change = {upstream.source_id: Change((Piece(""),), within={name: (part_span,)})}
            led = touched(project, [trace], change, kind, zone)
            need_by_part[part] = led is None or any(map(is_wanted, led[0]))
    return tuple(key for key in every if need_by_part[split(theirs, key)[0]])


def reached_by(
    project: Project,
    source: Source,
    upstream: Source,
    keys: Collection[str],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> Collection[str]:
    """Return the partitions of a source whose rows may follow from given partitions of an input.

    Parameters
    ----------
    keys
        The partitions of `upstream`, if it has some.
    order, zone
        All partitions in order, by source, and the session's time zone.
    """
    theirs, parted = upstream.annotation.partition, parted_by(upstream)
    if theirs is None or not parted:
        return order.get(source.source_id, ())
    upstream_boxes = boxes(theirs, [kind for _, kind in parted], keys, order[upstream.source_id])
    return reached_within(
        project, source, upstream, [box[0] for box in upstream_boxes], order, zone
    )


def reached_within(
    project: Project,
    source: Source,
    upstream: Source,
    spans: Iterable[Span],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> Collection[str]:
    """Return the partitions of a source whose rows may follow from windows of an input.

    Parameters
    ----------
    spans
        Spans of the time column of `upstream`, or of its partition column.
    order, zone
        As for `reached_by`.
    """
    every = order.get(source.source_id, ())
    partition, columns = source.annotation.partition, parted_by(source)
    trace = trace_to_partitions(source, upstream)
    if partition is None or trace is None or not columns:
        return every
    within = {trace.column.column.lower(): merged_spans(spans)}
    change = {upstream.source_id: Change((Piece(""),), within=within)}
    led = touched(project, [trace], change, columns[0][1], zone)
    return every if led is None else reached(partition, columns[0][1], every, led[0])


def lacking(
    project: Project,
    source: Source,
    world: World,
    keys: Collection[str] | None,
    coming: Mapping[SourceID, Step] | None = None,
) -> dict[SourceID, tuple[str, ...]]:
    """Return the partitions that a build would read and that are missing, by source.

    Parameters
    ----------
    keys
        The partitions that it would compute.
    """
    missing_keys: dict[SourceID, tuple[str, ...]] = {}
    for upstream in project.inputs(source):
        if upstream.annotation.partition is None or not upstream.persisted:
            continue
        order, built_keys = world.keys[upstream.source_id], set[str]()
        step = (coming or {}).get(upstream.source_id)
        tainted = world.tainted.get(upstream.source_id)
        if tainted is None:
            table = world.readable(upstream)
        else:  # the untainted partitions of a table are usable
            table = world.manifest.get(upstream.build_id)
        for partitions in (step and step.partitions, table and table.partitions):
            if partitions:
                built_keys |= filled_keys(order, partitions.filled)
        built_keys -= (tainted or frozenset()).difference(step.keys or () if step else ())
        if len(built_keys) < len(order):
            needed_keys = needed(project, source, upstream, keys, world.keys, world.zone)
            missing = tuple(key for key in needed_keys if key not in built_keys)
            if missing:
                missing_keys[upstream.source_id] = missing
    return missing_keys


def with_needed(
    project: Project,
    selected: Collection[SourceID],
    partition_keys: Mapping[SourceID, Collection[str]],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
) -> dict[SourceID, tuple[str, ...]]:
    """Return the requested partitions of selected sources, and those that they are computed from.

    Parameters
    ----------
    order, zone
        All partitions in order, by source, and the session's time zone.
    """
    needed_keys: dict[SourceID, tuple[str, ...]] = {}
    by_readers: dict[SourceID, set[str]] = {}
    for source in reversed(project.persisted):  # its readers come first
        keys_in_order = order.get(source.source_id)
        if source.source_id not in selected or keys_in_order is None:
            continue
        keys = {*partition_keys.get(source.source_id, ())} | by_readers.get(source.source_id, set())
        if not keys:
            continue
        these = needed_keys[source.source_id] = tuple(key for key in keys_in_order if key in keys)
        for upstream in project.inputs(source):
            if upstream.source_id in selected and upstream.source_id in order:
                theirs = needed(project, source, upstream, these, order, zone)
                by_readers.setdefault(upstream.source_id, set()).update(theirs)
    return needed_keys


def partitions_in_range(
    project: Project,
    selected: Iterable[SourceID],
    order: Mapping[SourceID, Sequence[str]],
    zone: str,
    first: str,
    last: str,
) -> dict[SourceID, tuple[str, ...]]:
    """Return the partitions of selected sources that a range of keys selects.

    These are the partitions in the range, of sources that have them, and the partitions of selected
    sources that they follow from.

    Parameters
    ----------
    order, zone
        All partitions in order, by source, and the session's time zone.

    Raises
    ------
    NotFoundError
        A selected source has no such partitions, and no selected source reads it.
    """
    chosen = {*selected}
    range_keys: dict[SourceID, tuple[str, ...]] = {}
    unknown: dict[SourceID, NotFoundError] = {}
    for source in project.persisted:
        if source.source_id in chosen and source.source_id in order:
            try:
                range_keys[source.source_id] = between(
                    source.name, order[source.source_id], first, last
                )
            except NotFoundError as error:
                unknown[source.source_id] = error
    keys = with_needed(project, chosen, range_keys, order, zone)
    for source_id, error in unknown.items():
        if source_id not in keys:
            raise error
    if not keys:
        raise NotFoundError(
            f"no selected source has a partition `{first}`",
            hint="none of them has partitions: select a source with partition=…",
        )
    return keys
