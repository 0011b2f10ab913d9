"""The sensor that starts runs of stale sources, as determined by our plan."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, tzinfo
from hashlib import sha256
from typing import TYPE_CHECKING

import dagster as dg

from persist_assets.core.errors import PersistError
from persist_assets.core.model.plans import Plan, ReasonCode, Step
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import BuildID, SourceID
from persist_assets.core.model.snapshots import AsOf, RawVersion, Snapshot
from persist_assets.core.partitions import corners
from persist_assets.planning.promotion import is_due
from persist_assets.planning.world import CLOCK
from persist_assets.plugin.events import report_raw_versions
from persist_assets.plugin.partitions import FIRST, LAST
from persist_assets.plugin.runtime import Runtime

if TYPE_CHECKING:
    from persist_assets.core.model.annotations import Partitioning

_CLOCK_REASONS: frozenset[ReasonCode] = frozenset(
    ("clock", "upstream", "whole", "increment", "history")
)
"""Reasons of a step that may be due to the passing of time alone."""


def stale_sensor(runtime: Runtime, name: str) -> dg.SensorDefinition:
    """Return a sensor that requests a run of every source, or partition, that is stale.

    It finds them by a plan: of partitions, only those whose rows a change of the data can reach. It
    requests one run for each state of sources and data, so that a failed run is not repeated before
    something has changed; for sources that read the clock, one a day. It reports the versions of
    external tables to Dagster. It is off by default.
    """

    def evaluate(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        try:
            observer = runtime.observer()
            planned = observer.plan([s.source_id for s in runtime.project.persisted])
            origin = context.code_location_origin
            maker = origin.location_name if origin else None
            report_raw_versions(context.instance, observer, maker, all_kinds=False)
            manifest = observer.manifest()
            planned = without_clocks(planned, manifest, runtime.settings.timezone)
        except PersistError as error:
            yield dg.SkipReason(str(error))
            return
        requests = [*run_requests(runtime.project, planned, observer.keys(), manifest)]
        if not requests:
            yield dg.SkipReason("everything is up to date")
        yield from requests

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        asset_selection=[dg.AssetKey(s.asset_key) for s in runtime.project.persisted],
        minimum_interval_seconds=30,
        description="Start runs for the sources that `persist plan` shows as stale.",
    )


def without_clocks(planned: Plan, manifest: Mapping[BuildID, Snapshot], timezone: tzinfo) -> Plan:
    """Return a plan without the steps that only the clock makes due and that were built today.

    The clock's instants in `as_of` of the remaining steps are truncated to days.
    """
    steps: list[Step] = []
    for step in planned.steps:
        as_of = _by_day(step.as_of, timezone)
        snapshot = manifest.get(step.build_id)
        codes = {r.code for r in step.reasons}
        passing = (
            step.action == "build" and step.keys is None and "clock" in codes <= _CLOCK_REASONS
        )
        today = snapshot is not None and {*_by_day(snapshot.as_of, timezone)} == {*as_of}
        if not (passing and today):
            steps.append(replace(step, as_of=as_of))
    return replace(planned, steps=tuple(steps))


def _by_day(as_of: AsOf, timezone: tzinfo) -> AsOf:
    return tuple(
        RawVersion(v.raw, _day_of(v.version, timezone)) if v.raw == CLOCK else v for v in as_of
    )


def _day_of(version: str, timezone: tzinfo) -> str:
    at = datetime.fromisoformat(version)
    return (at if at.tzinfo is None else at.astimezone(timezone)).date().isoformat()


def run_requests(
    project: Project,
    planned: Plan,
    order: Mapping[SourceID, tuple[str, ...]],
    manifest: Mapping[BuildID, Snapshot],
) -> Iterator[dg.RunRequest]:
    """Yield a run for each group of steps of a plan that one run can build.

    A Dagster run has one kind of partitions. A source that reads one of another group waits until
    that is built.
    """
    groups: dict[Partitioning | None, list[Step]] = {}
    for step in planned.steps:
        if is_due(step, manifest):
            partition = project.by_id[step.source_id].annotation.partition
            groups.setdefault(partition, []).append(step)
    building = {step.source_id for steps in groups.values() for step in steps}
    for partition, steps in groups.items():
        source_ids, waiting = {step.source_id for step in steps}, set[SourceID]()
        for step in steps:
            inputs = {s.source_id for s in project.inputs(project.by_id[step.source_id])}
            if inputs & (building - source_ids) or inputs & waiting:
                waiting.add(step.source_id)
        ready = [step for step in steps if step.source_id not in waiting]
        # Another environment's table, which has all partitions, comes with all of them.
        built_keys = {
            s.source_id: (s.keys if s.action == "build" else order.get(s.source_id)) or ()
            for s in ready
        }
        if not ready or (partition is not None and not any(built_keys.values())):
            continue
        # Published snapshots are part of the key, because data may return to an earlier state.
        snapshots = (manifest.get(s.build_id) for s in ready)
        published = [snapshot and (snapshot.build_uid, snapshot.version) for snapshot in snapshots]
        state = [(s.source_id, s.build_id, s.as_of, s.keys) for s in ready], published
        tags: dict[str, str] = {}
        if partition is not None:
            keys = [key for some in built_keys.values() for key in some]
            first, last = corners(partition, order[ready[0].source_id], keys)
            tags = {FIRST: first, LAST: last}
        yield dg.RunRequest(
            run_key=sha256(repr(state).encode()).hexdigest()[:32],
            asset_selection=[dg.AssetKey(project.by_id[s.source_id].asset_key) for s in ready],
            tags=tags,
        )
