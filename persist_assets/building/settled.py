"""Sources that a build would leave exactly as they are: a run needs no step for them.

    plan ─► reuse ─┬─► a build would record more than "still up to date" ─► step of the run
                   └─► it would not ─► settled: `confirm` records all of them in one transaction

The invariant: readers, the ledger and the tables under fixed names have after a run without settled
sources what they would have after a run with them, but for the records of builds that do nothing.
When unsure, a source is not settled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.building.catalog_views import shown_as
from persist_assets.building.checking import Checking
from persist_assets.building.publishing import export, publish
from persist_assets.building.start import current_at
from persist_assets.building.strategies.temporary import TemporaryTables
from persist_assets.building.takeovers import origin_of
from persist_assets.core.errors import PersistError
from persist_assets.core.wants import ref_of
from persist_assets.planning.diff import recorded_reads
from persist_assets.planning.inputs import inputs
from persist_assets.planning.planner import plan
from persist_assets.storage.delta_tables import is_whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from persist_assets.building.observe import Observer
    from persist_assets.building.reader import Reader
    from persist_assets.core.model.plans import Plan, Step
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.world import World


@dataclass(frozen=True, slots=True)
class Settled:
    """A source that needs no build.

    Attributes
    ----------
    snapshot
        The snapshot that its readers read, and continue to read.
    last
        Its last build, in this environment.
    current_at
        When all data below it was last known to be current, as a build that starts now finds it.
    """

    source: Source
    snapshot: Snapshot
    last: Build
    current_at: datetime


def find_settled(reader: Reader, sources: Collection[Source]) -> dict[SourceID, Settled]:
    """Return the given sources that a run of all of them would leave exactly as they are.

    Looking needs no Spark. A source above which something is built is not settled.

    Parameters
    ----------
    reader
        Its observer plans, and pins the versions of raw tables.
    """
    observer = reader.observer
    project, environment = observer.project, observer.settings.environment
    chosen = [s.source_id for s in sources]
    if project.malloy != observer.ledger.manifests.fetch_malloy(environment):
        return {}  # the first publication of the run records Malloy's BuildIDs
    world = observer.observe(sources, is_whole)
    planned = plan(project, chosen, world)
    late = _find_late(observer, chosen)
    steps, look = {s.source_id: s for s in planned.steps}, _Look(reader, world, planned)
    manifest = dict(world.manifest)
    confirmed = replace(world, manifest=manifest)
    settled: dict[SourceID, Settled] = {}
    moving: set[SourceID] = set()  # what a run may change, and everything below it
    for source in project.sources:
        step, above = steps.get(source.source_id), (*source.bindings, *source.compared)
        if source.external or not moving.isdisjoint(above):
            moving.add(source.source_id)
        elif step is not None:
            if source.source_id in late or not look.is_settled(source, step):
                moving.add(source.source_id)
                continue
            snapshot = world.manifest[source.build_id]
            known_at = current_at(observer, source, confirmed, step)
            last = world.history[source.source_id]
            settled[source.source_id] = Settled(source, snapshot, last, known_at)
            manifest[source.build_id] = replace(snapshot, current_at=known_at)
    return settled


def _find_late(observer: Observer, chosen: Collection[SourceID]) -> set[SourceID]:
    """Return the sources whose tables under fixed names a build would bring up to date."""
    settings, ledger, project = observer.settings, observer.ledger, observer.project
    try:
        outcomes = publish(settings, ledger, project, chosen, dry_run=True)
    except PersistError:  # the steps of the run report it
        return {*chosen}
    return {o.source_id for o in outcomes if o.action != "current"}


class _Look:
    """Looks at one source of a plan after the other."""

    def __init__(self, reader: Reader, world: World, planned: Plan) -> None:
        self._reader, self._world = reader, world
        observer = reader.observer
        self._checking = Checking(reader, TemporaryTables(reader, "a plan"))
        self._own = observer.ledger.manifests.fetch(observer.settings.environment)
        # The next build of a source tidies up after builds that never ended.
        self._under_way = {b.source_id for b, *_ in observer.ledger.builds.fetch_under_way()}
        self._other_checks = {s for s, some in observer.changed_checks(planned).items() if some}

    def is_settled(self, source: Source, step: Step) -> bool:
        """Whether a build of a source would change nothing and report nothing new."""
        project, settings = self._reader.project, self._reader.settings
        snapshot = self._world.manifest.get(source.build_id)
        return (
            snapshot is not None
            and step.maintenance == "reuse"
            and not step.reasons
            and step.snapshot == snapshot
            and step.as_of == snapshot.as_of
            and source.annotation.partition is None
            and not source.keeps_history
            and source.source_id not in self._under_way
            and source.source_id not in self._other_checks
            and not self._is_timed(source, snapshot)
            and self._is_recorded(source, self._world.history.get(source.source_id))
            and self._has_origin(source, step, snapshot)
            and shown_as(settings, source) is None
            and not project.checks_of_views(source)
            and not self._checking.has_new_guards(source, snapshot)
            and self._checking.has_passed(source, snapshot, self._world.manifest)
        )

    def _is_timed(self, source: Source, snapshot: Snapshot) -> bool:
        """Whether a freshness window requires the source to be confirmed as up to date.

        Dagster counts the time since the last step of a source with a freshness policy. A table of
        another environment gets older until this environment has one of its own.
        """
        annotation = source.annotation
        if annotation.freshness is not None or annotation.want is not None:
            return True
        return self._own.get(source.build_id) != snapshot and any(
            s.annotation.freshness is not None for s in self._reader.project.persisted
        )

    def _is_recorded(self, source: Source, last: Build | None) -> bool:
        """Whether the last build of a source in this environment used the current text."""
        return (
            last is not None
            and last.environment == self._world.environment
            and last.state == "succeeded"
            and last.build_id == source.build_id
            and last.definition == source.definition
            and last.digests == source.digests
            and last.reads == recorded_reads(self._reader.project, source)
            # An adopted table is announced by its first build.
            and self._reader.ledger.partitions.find_build(last.environment, source.key) is not None
        )

    def _has_origin(self, source: Source, step: Step, snapshot: Snapshot) -> bool:
        """Whether the rows are already recorded as coming from the current text."""
        project, world = self._reader.project, self._world
        rows = inputs(project, source, world) or ()
        return origin_of(project, source, world, step, rows) == snapshot.origin


def confirm(reader: Reader, settled: Iterable[Settled]) -> None:
    """Record that settled sources are up to date, and write the manifest's files if necessary.

    Raises
    ------
    PersistError
        The ledger or a file cannot be written.
    """
    observer = reader.observer
    environment = observer.settings.environment
    own = observer.ledger.manifests.fetch(environment)
    confirmed = [some for some in settled if own.get(some.source.build_id) == some.snapshot]
    observer.ledger.partitions.confirm(
        observer.settings.environments,
        {some.snapshot.build_uid: some.current_at for some in confirmed},
        {ref_of(some.source.key): some.last for some in confirmed},
    )
    export(observer.settings, observer.ledger)
