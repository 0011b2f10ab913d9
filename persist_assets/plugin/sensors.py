"""The sensor that starts runs of what is out of date, as our plan knows it."""

from collections.abc import Iterator, Mapping
from hashlib import sha256

import dagster as dg

from persist_assets.errors import PersistError
from persist_assets.model import Partitioning, Plan, Project, SourceID, Step
from persist_assets.plugin.partitions import FIRST, LAST
from persist_assets.plugin.runtime import Runtime


def stale_sensor(runtime: Runtime, name: str) -> dg.SensorDefinition:
    """Return a sensor that asks for a run of every source, or partition, that is out of date.

    It knows what a plan does: of partitions, only those whose rows a change of the data can
    reach. It asks once for each state of sources and data, so that what fails is not started
    again before something has changed. It is off until somebody turns it on.
    """

    def evaluate(_: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        try:
            planned, order = runtime.plan()
        except PersistError as error:
            yield dg.SkipReason(str(error))
            return
        requests = [*run_requests(runtime.project, planned, order)]
        if not requests:
            yield dg.SkipReason("everything is up to date")
        yield from requests

    return dg.SensorDefinition(
        name=name,
        evaluation_fn=evaluate,
        asset_selection=[dg.AssetKey(s.asset_key) for s in runtime.project.persisted],
        minimum_interval_seconds=30,
        description="Start runs of what is out of date, as `persist plan` tells it.",
    )


def run_requests(
    project: Project, planned: Plan, order: Mapping[SourceID, tuple[str, ...]]
) -> Iterator[dg.RunRequest]:
    """Yield a run for each group of sources that one run can build, of what a plan builds.

    A run of Dagster's is of one kind of partitions. What reads something of another group waits
    until that is built.
    """
    groups: dict[Partitioning | None, list[Step]] = {}
    for step in planned.steps:
        if step.action == "build":
            partition = project.by_id[step.source_id].annotation.partition
            groups.setdefault(partition, []).append(step)
    building = {step.source_id for steps in groups.values() for step in steps}
    for partition, steps in groups.items():
        own, waiting = {step.source_id for step in steps}, set[SourceID]()
        for step in steps:
            inputs = {s.source_id for s in project.inputs(project.by_id[step.source_id])}
            if inputs & (building - own) or inputs & waiting:
                waiting.add(step.source_id)
        ready = [step for step in steps if step.source_id not in waiting]
        if not ready or (partition is not None and not any(step.keys for step in ready)):
            continue
        told = [(s.source_id, s.build_id, s.as_of, s.keys) for s in ready]
        tags: dict[str, str] = {}
        if partition is not None:
            places = [order[s.source_id].index(key) for s in ready for key in s.keys or ()]
            keys = order[ready[0].source_id]
            tags = {FIRST: keys[min(places)], LAST: keys[max(places)]}
        yield dg.RunRequest(
            run_key=sha256(repr(told).encode()).hexdigest()[:32],
            asset_selection=[dg.AssetKey(project.by_id[s.source_id].asset_key) for s in ready],
            tags=tags,
        )
