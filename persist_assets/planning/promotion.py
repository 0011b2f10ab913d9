"""Promotion from one environment to another: what is promoted, what is refused, and why. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.core.model.snapshots import RawVersion
from persist_assets.core.partitions import expand, filled_keys, keys, keys_of
from persist_assets.core.wants import ref_of
from persist_assets.planning.inputs import content_version, other_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from persist_assets.core.model.plans import Plan, Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.wants import PartitionRef


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a source is not promoted."""

    source_id: SourceID
    reason: str


@dataclass(frozen=True, slots=True)
class Promotion:
    """The effect of a promotion; if anything is refused, nothing is done.

    Attributes
    ----------
    snapshots
        The snapshots that are new to the target's readers, by BuildID.
    replaced
        The target's own snapshots that they replace.
    sources
        Their sources, in dependency order.
    unchanged
        The BuildIDs that are promoted, and whose snapshots the target has.
    """

    snapshots: Mapping[BuildID, Snapshot]
    sources: tuple[Source, ...]
    refused: tuple[Refusal, ...]
    replaced: Mapping[BuildID, Snapshot] = field(default_factory=dict["BuildID", "Snapshot"])
    unchanged: frozenset[BuildID] = frozenset()

    @property
    def digest(self) -> str:
        """A text that differs between promotions that publish or replace different snapshots."""
        both = (self.snapshots, self.replaced)
        moved = [sorted((b, s.build_uid) for b, s in some.items()) for some in both]
        return hashlib.sha256(repr(moved).encode()).hexdigest()


def decide(
    project: Project,
    target: Project,
    planned: Plan,
    source_manifest: Mapping[BuildID, Snapshot],
    target_manifest: Mapping[BuildID, Snapshot],
    target_reads: Mapping[BuildID, Snapshot],
    passed: Mapping[BuildID, Collection[str]],
    *,
    allow_stale: bool = False,
) -> Promotion:
    """Return the effect of promoting the sources of a plan.

    Parameters
    ----------
    project, target
        The sources as they are in the environment promoted from, and in the target.
    planned
        The plan of a build of the promoted sources in the environment promoted from.
    source_manifest, target_reads
        The snapshots that readers of the two environments read.
    target_manifest
        The target's own snapshots.
    passed
        The definitions of the checks that each snapshot has passed.
    allow_stale
        Promote even what is stale or inconsistent with its inputs.
    """
    snapshots: dict[BuildID, Snapshot] = {}
    sources: list[Source] = []
    unchanged: set[BuildID] = set()
    refused: list[Refusal] = []
    for step in planned.steps:
        source = project.by_id[step.source_id]
        other = target.by_id.get(step.source_id)
        snapshot = source_manifest.get(source.build_id)
        if other is None or other.build_id != source.build_id:
            reason = "it differs there: other raw data or Spark settings"
        elif snapshot is None:
            reason = f"it is not built in {planned.environment}"
        elif step.action == "build" and not allow_stale:
            reason = "; ".join(r.message for r in step.reasons)
        elif is_elsewhere(step, source_manifest) and not allow_stale:
            reason = f"it is out of date in {planned.environment}: build it there"
        elif missing := [
            c.definition
            for p in (project, target)  # variables of an environment may stand in checks
            for s in p.by_build_id[source.build_id]
            for c in (*s.checks, *p.guards(s), *p.checks_of_views(s))
            if c.blocking and c.definition not in passed.get(source.build_id, ())
        ]:
            reason = f"its table has not passed these checks: {', '.join(dict.fromkeys(missing))}"
        else:
            if snapshot != target_manifest.get(source.build_id):
                snapshots[source.build_id] = snapshot
                sources.append(source)
            else:
                unchanged.add(source.build_id)
            continue
        refused.append(Refusal(source.source_id, reason))
    if not allow_stale:
        after = {**target_reads, **snapshots}
        refused += _inconsistent(project, sources, after)
    replaced = {b: target_manifest[b] for b in snapshots if b in target_manifest}
    return Promotion(snapshots, tuple(sources), tuple(refused), replaced, frozenset(unchanged))


def is_due(step: Step, manifest: Mapping[BuildID, Snapshot]) -> bool:
    """Whether a build would give readers something else than they get now."""
    return step.action == "build" or is_elsewhere(step, manifest)


def is_elsewhere(step: Step, manifest: Mapping[BuildID, Snapshot]) -> bool:
    """Whether a build would reuse another environment's snapshot, which readers do not get yet."""
    return step.snapshot is not None and not is_read(step.build_id, step.snapshot, manifest)


def is_read(build_id: BuildID, snapshot: Snapshot, manifest: Mapping[BuildID, Snapshot]) -> bool:
    """Whether readers of a BuildID get a snapshot, and not one that only others read."""
    present = manifest.get(build_id)
    return present is not None and present.build_uid == snapshot.build_uid


def _inconsistent(
    project: Project, sources: Iterable[Source], after: Mapping[BuildID, Snapshot]
) -> Iterable[Refusal]:
    """Yield the sources whose rows would be from other data there than their inputs."""
    for source in sources:
        snapshot = after[source.build_id]
        own_versions = set(snapshot.as_of)
        groups = snapshot.partitions.filled if snapshot.partitions else ()
        former_inputs = {*snapshot.inputs, *(v for group in groups for v in group.inputs)}
        for upstream in project.inputs(source):
            beneath = after.get(upstream.build_id)
            if beneath is None:
                continue
            if other := _other_data(own_versions, beneath.as_of):
                yield Refusal(
                    source.source_id,
                    f"it was built from different data than {upstream.key} has there ({other})",
                )
                break
            target_version = (RawVersion(upstream.build_id, content_version(upstream, beneath)),)
            if other_rows(former_inputs, target_version):
                message = f"it was built from different rows of {upstream.key} than those there"
                yield Refusal(source.source_id, message)
                break


def _other_data(versions: Collection[RawVersion], beneath: Iterable[RawVersion]) -> str | None:
    raws = {v.raw for v in versions}
    return next((v.version for v in beneath if v.raw in raws and v not in versions), None)


def shown_partitions(
    project: Project,
    snapshots: Iterable[Snapshot],
    before: Mapping[BuildID, Snapshot],
    now: datetime,
) -> dict[PartitionRef, BuildID | None]:
    """Return the partitions that snapshots bring to readers, and the tables without partitions.

    Each has the BuildID of its table; partitions that readers no longer get have None.

    Parameters
    ----------
    before
        The snapshots that readers got. Partitions that these have from the same data are left out.
    """
    pairs = [(former, s) for s in snapshots if (former := before.get(s.build_id))]
    refs: dict[PartitionRef, BuildID | None] = dict.fromkeys(lost_partitions(project, pairs, now))
    order = keys_of(project, now)
    for snapshot in snapshots:
        former = before.get(snapshot.build_id)
        former_groups = former.partitions.filled if former and former.partitions else ()
        for source in project.by_build_id.get(snapshot.build_id, ()):
            if snapshot.partitions is None:
                refs[ref_of(source.key)] = snapshot.build_id
                continue
            known = order[source.source_id]
            same = {
                (key, group.as_of, group.inputs)
                for group in former_groups
                for key in expand(known, group.runs)
            }
            for group in snapshot.partitions.filled:
                for key in expand(known, group.runs):
                    if (key, group.as_of, group.inputs) not in same:
                        refs[ref_of(source.key, key)] = snapshot.build_id
    return refs


def lost_partitions(
    project: Project, changes: Iterable[tuple[Snapshot, Snapshot]], now: datetime
) -> list[PartitionRef]:
    """Return the partitions that readers no longer get if snapshots replace others.

    Parameters
    ----------
    changes
        The snapshots of single BuildIDs that readers got, each with the one that they get now.
    """
    refs: list[PartitionRef] = []
    for former, snapshot in changes:
        if former.partitions is None or snapshot.partitions is None:
            continue
        for source in project.by_build_id.get(snapshot.build_id, ()):
            partition = source.annotation.partition
            order = keys(partition, now) if partition is not None else ()
            present = filled_keys(order, snapshot.partitions.filled)
            lost = filled_keys(order, former.partitions.filled) - present
            refs += (ref_of(source.key, key) for key in order if key in lost)
    return refs
