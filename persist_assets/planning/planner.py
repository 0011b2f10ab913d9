"""The plan: what to build, what to reuse, and why. Pure: all facts are arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.core.model.plans import Plan, Reason, Step
from persist_assets.planning.inputs import versions_of
from persist_assets.planning.partition_steps import partition_step
from persist_assets.planning.table_steps import table_step
from persist_assets.planning.volumes import to_read

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import AsOf
    from persist_assets.core.time_values import Span
    from persist_assets.planning.world import World


def plan(
    project: Project,
    selected: Iterable[SourceID],
    world: World,
    *,
    force: bool = False,
    partition_keys: Mapping[SourceID, Collection[str]] | None = None,
    spans: Mapping[SourceID, Span] | None = None,
) -> Plan:
    """Return a step for every selected persisted source, each after those it reads.

    Parameters
    ----------
    force
        Build sources even if they are up to date.
    partition_keys
        The partitions to build, for sources that are built in part.
    spans
        By source, the values of its time column whose rows are recomputed, whatever changed.
    """
    chosen = set(selected)
    coming: dict[SourceID, Step] = {}
    inline: dict[tuple[SourceID, SourceID], AsOf] = {}
    for source in project.persisted:
        source_id = source.source_id
        if source_id not in chosen:
            continue
        expected = versions_of(project, source, world, coming, inline)
        if source.annotation.partition is not None:
            keys = (partition_keys or {}).get(source_id)
            step = partition_step(project, source, world, coming, expected, keys, force=force)
        else:
            span = (spans or {}).get(source_id)
            chosen_spans = () if span is None else (span,)
            step = table_step(project, source, world, coming, expected, chosen_spans, force=force)
        step = _with_takeover(step, world)
        coming[source_id] = replace(step, reads=to_read(project, source, step, world))
    return Plan(world.environment, tuple(coming.values()))


TAKEN_OVER = Reason("taken-over", "same text, newer fingerprint: takes its table over")


def _with_takeover(step: Step, world: World) -> Step:
    """Return a step whose reasons say that it uses a table from before an upgrade."""
    used = step.snapshot or step.base or step.goes_on_from
    if used is None or used.build_uid not in world.taken:
        return step
    return replace(step, reasons=(TAKEN_OVER, *step.reasons))
