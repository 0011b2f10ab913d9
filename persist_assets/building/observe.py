"""Observation of the world before a run computes anything, and the plans made from it.

    ledger (manifest, history, taints) ─┐
    raw and external tables (pins)      ├─► observe ─► World ─► plan ─► Plan
    tables in the warehouse             ┘

Nothing here starts an engine or reads rows. A plan is a pure function of the `World`: see
`planning.planner`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import islice
from typing import TYPE_CHECKING

from persist_assets.building.pins import Pins, find_shared
from persist_assets.core.errors import SettingsError
from persist_assets.core.model.plans import Change, Volume
from persist_assets.core.model.snapshots import RawVersion, Snapshot
from persist_assets.core.partitions import boxes, expand, keys_of, reached
from persist_assets.core.partitions import keys as partition_keys
from persist_assets.core.time_values import TIMES, is_ordered, parsed
from persist_assets.core.tracing import span
from persist_assets.external.ingestion import Ingestion
from persist_assets.planning.changed_checks import changed_checks
from persist_assets.planning.costs import Experience, asks_experience, experience_of
from persist_assets.planning.deltas import unmaintainable
from persist_assets.planning.increments import merged_spans, parted_by, time_type
from persist_assets.planning.inputs import beneath, content_version, inputs, rests_alike
from persist_assets.planning.planner import plan
from persist_assets.planning.redrawn import Redrawn
from persist_assets.planning.takeovers import find_takeovers
from persist_assets.planning.world import World, is_history
from persist_assets.storage.changes import (
    change_of_copy,
    delta_change,
    listings_of,
    raw_change,
)
from persist_assets.storage.delta_tables import has_snapshot, is_own_version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.annotations import Fallback
    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, Build, Cost
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.time_values import Span
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.ledger.taints import Kept
    from persist_assets.planning.changed_checks import ChangedCheck

HasSnapshot = Callable[[str, Snapshot], bool]
"""Whether the table at a path has a snapshot: `has_snapshot`, or the more expensive `is_whole`."""

_MOST_TABLES = 200
"""The maximum number of tables whose builds say what others take."""
_MOST_AGES = 64
"""The maximum number of groups of partitions to look up changes for since they were built."""


_CLOCKS_DIFFER_S = 300
"""By how many seconds the clocks of machines may differ."""
_FEW = 8
"""Up to this number of sources are looked up one by one, not with the whole project."""


@dataclass(frozen=True, slots=True)
class Unpublished:
    """A finished build that only later builds of the same run read.

    Attributes
    ----------
    kept_rows
        The rows of another snapshot that it kept.
    """

    snapshot: Snapshot
    kept_rows: Kept | None


class Observer:
    """Observes the world for one run of one project in one environment.

    Raw tables keep the versions they had when the run first read them (`Pins`). The ledger and the
    warehouse are read on each call.

    Parameters
    ----------
    fed
        Raw tables that assets of the same run may write.
    fallback
        What readers get of tables older than their freshness window, instead of what each source
        says.
    clock
        Returns the present instant, aware.
    engine
        Computes rows of external tables. Reading and building need it, observing does not: None.

    Attributes
    ----------
    started_at
        When the run started: the instant of everything in it that reads the clock.
    unpublished
        By source, the finished builds of this run that are not published yet.
    lock
        Guards what builds of the run share.
    takes_over
        Whether a build of the run still has to look for tables to take over.
    """

    def __init__(
        self,
        settings: Settings,
        project: Project,
        ledger: Ledger,
        *,
        fed: Iterable[SourceID] = (),
        fallback: Fallback | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        engine: Engine | None = None,
    ) -> None:
        self.settings, self.project, self.ledger = settings, project, ledger
        self.fallback: Fallback | None = fallback
        self.clock = clock
        shared = find_shared(settings)
        self.started_at = clock() if shared is None else shared.started_at
        self.ingestion = Ingestion(settings, project, ledger, self.started_at, engine)
        self.pins = Pins(self.ingestion, fed, self.started_at)
        self._unpublished: dict[SourceID, Unpublished] = {}
        self._taken: set[str] = set()
        self._takeovers: dict[object, dict[BuildID, list[Snapshot]]] = {}
        self.takes_over = True
        self._raw_changes: dict[tuple[str, str, str, int | None], Change | None] = {}
        self.lock = threading.RLock()

    # ------------------------------------------------------------------------------------ plans

    def plan(
        self,
        selected: Iterable[SourceID],
        *,
        force: bool = False,
        partition_keys: Mapping[SourceID, Collection[str]] | None = None,
        recompute_spans: Mapping[SourceID, Span] | None = None,
        exists: HasSnapshot = has_snapshot,
    ) -> Plan:
        """Return what building `selected` would do.

        Parameters
        ----------
        force
            Build sources that are up to date, too.
        partition_keys
            The partitions to build, of sources that do not build all of theirs.
        recompute_spans
            The values of time columns whose rows are computed again; see `span`.
        exists
            Whether the table of a snapshot exists.
        """
        names = [*selected]
        with span("plan", environment=self.settings.environment, sources=len(names)):
            world = self.observe((self.project.by_id[s] for s in names), exists)
            planned = plan(
                self.project,
                names,
                world,
                force=force,
                partition_keys=partition_keys,
                spans=recompute_spans,
            )
        self.project.remember()
        return planned

    def find_maintained(self, source_ids: Iterable[SourceID]) -> frozenset[SourceID]:
        """Return the given sources that this process maintains by the changes of their inputs.

        Other processes of a run share no relations with this one.
        """
        if self.pins.has_other_processes:
            return frozenset()
        steps = self.plan(source_ids).steps
        return frozenset(s.source_id for s in steps if s.increment and s.increment.program)

    def observe(self, sources: Iterable[Source], exists: HasSnapshot = has_snapshot) -> World:
        """Return everything that a plan of `sources` depends on.

        Parameters
        ----------
        exists
            Whether the table of a snapshot exists.
        """
        published = self.published()
        manifest = self._with_unpublished(published)
        sources = tuple(sources)
        reached = self.project.reach((s.source_id for s in sources), lambda _: False)
        raws = [s for s in reached if s.raw is not None]
        versions = {s.source_id: v for s in raws if (v := self.pins.find_version(s)) is not None}
        world = World(
            environment=self.settings.environment,
            manifest=manifest,
            versions=versions,
            day=self.started_at.astimezone(self.settings.timezone).date().isoformat(),
            instant=self.started_at.isoformat(),
            history=self._history(sources),
            missing=[
                source.build_id
                for source in sources
                if (snapshot := manifest.get(source.build_id))
                and not self.is_readable(snapshot, exists)
            ],
            absent=dict(self.pins.absent),
            elsewhere=self._elsewhere(sources, manifest, exists),
            expired={
                source.source_id: self.fallback or source.annotation.freshness.fallback
                for source in (*sources, *reached)
                if source.annotation.freshness
                and (snapshot := manifest.get(source.build_id))
                and self.is_expired(source, snapshot)
            },
            foreign=self.ledger.manifests.fetch_foreign(self.settings.environment),
            keys=self.keys(),
            zone=self.settings.timezone.key,
            tainted=self.tainted(manifest),
            seen=self.pins.seen(),
            behind=self.pins.pending(),
            taken=frozenset(self._taken),
        )
        world = replace(
            world,
            aged=self._aged(sources, world),
            latest=self._latest(sources, manifest, exists),
        )
        changes, redrawn = self._changes(sources, world, published), self._redrawn(sources, world)
        world = replace(world, changes=changes, redrawn=redrawn)
        costs, sizes = self._costs(sources, world), self._sizes(reached, world)
        return replace(world, costs=costs, experience=self._experience(costs), sizes=sizes)

    def keys(self) -> dict[SourceID, tuple[str, ...]]:
        """Return the partitions that every partitioned source has, in order."""
        return keys_of(self.project, self.started_at)

    def inputs(self, source: Source) -> AsOf:
        """Return the direct inputs from which rows of a source would be computed now."""
        return inputs(self.project, source, self.observe([source])) or ()

    def changed_checks(self, planned: Plan) -> dict[SourceID, tuple[ChangedCheck, ...]]:
        """Return the changed checks of each step's source, if it was built before."""
        last = self.ledger.builds.fetch_last_checks(*self.settings.environments)
        sources = (self.project.by_id[step.source_id] for step in planned.steps)
        return {
            s.source_id: changed_checks(self.project, s, last[s.source_id])
            for s in sources
            if s.source_id in last
        }

    # ----------------------------------------------------------------------------- spans of time

    def span(self, source: Source, low: str, high: str) -> Span:
        """Return the values of a source's time column from one text to another, both included.

        A day stands for all times of it.

        Raises
        ------
        SettingsError
            A text is not of the column's type, the first comes after the second, or the source is
            not incremental.
        """
        column, snapshot = source.annotation.time_column, self.manifest().get(source.build_id)
        partition = source.annotation.partition
        timed = partition.time if partition else source.annotation.is_incremental
        if not timed or column is None:
            raise SettingsError(
                f"`{source.name}` has no windows to recompute",
                hint="this requires refresh=incremental with a watermark, or partitions",
                location=source.location,
            )
        kind = time_type(source, snapshot)
        if kind is None or not is_ordered(kind):
            raise SettingsError(
                f"the type of `{column}` is unknown until `{source.name}` is built",
                hint=f"build it first: persist build {source.key}",
            )
        ends = (
            parsed(low, kind, self.settings.timezone),
            parsed(high, kind, self.settings.timezone, end=True),
        )
        for text, value in zip((low, high), ends, strict=True):
            if value is None:
                raise SettingsError(
                    f"`{text}` is not a valid {kind}, the type of `{column}`",
                    hint="for example, 2024-01-31 or 2024-01-31T12:00" if kind in TIMES else None,
                )
        if ends[0] > ends[1]:  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
            raise SettingsError(f"`{low}` comes after `{high}`", hint="put the earlier one first")
        return ends  # pyright: ignore[reportReturnType]

    def keys_between(self, source: Source, low: str, high: str) -> frozenset[str]:
        """Return the partitions that may have rows with times between two texts; see `span`."""
        snapshot = self.manifest().get(source.build_id)
        partition, columns = source.annotation.partition, parted_by(source, snapshot)
        assert partition is not None
        order = self.keys()[source.source_id]
        return reached(partition, columns[0][1], order, [self.span(source, low, high)])

    # ----------------------------------------------------------------------------- what is built

    def manifest(self) -> dict[BuildID, Snapshot]:
        """Return the snapshots that builds of this run read: published, or finished by it."""
        return self._with_unpublished(self.published())

    def _with_unpublished(self, manifest: Mapping[BuildID, Snapshot]) -> dict[BuildID, Snapshot]:
        with self.lock:
            unpublished = [(s, u.snapshot) for s, u in self._unpublished.items()]
        own = {self.project.by_id[s].build_id: snapshot for s, snapshot in unpublished}
        return {**manifest, **own}

    def published(self) -> dict[BuildID, Snapshot]:
        """Return the snapshots that readers get, after an upgrade also under their new BuildIDs."""
        manifest = self.ledger.manifests.fetch(*self.settings.environments)
        return manifest | {
            build_id: snapshots[0]
            for build_id, snapshots in self._taken_over(manifest.values(), manifest).items()
        }

    def _taken_over(
        self, snapshots: Iterable[Snapshot], present: Iterable[BuildID]
    ) -> dict[BuildID, list[Snapshot]]:
        """Return the snapshots that sources take over; see `planning.takeovers`."""
        snapshots, present = [*snapshots], frozenset(present)
        key = frozenset((s.build_id, s.build_uid, s.known_at) for s in snapshots), present
        with self.lock:
            if key not in self._takeovers:
                self._takeovers = {key: find_takeovers(self.project, snapshots, present)}
            taken = self._takeovers[key]
            self._taken.update(s.build_uid for some in taken.values() for s in some)
        return taken

    def hold(self, source_id: SourceID, build: Unpublished) -> None:
        """Let builds of this run read a finished build before it is published."""
        with self.lock:
            self._unpublished[source_id] = build

    def release(self, source_id: SourceID) -> None:
        """Forget a finished build: it is published, or never will be."""
        with self.lock:
            self._unpublished.pop(source_id, None)

    def marks(self) -> dict[str, frozenset[str]]:
        """Return the tainted partitions by snapshot, including this run's unpublished builds."""
        marks = self.ledger.taints.fetch(*self.settings.environments)
        with self.lock:
            unpublished = [*self._unpublished.values()]
        for build in unpublished:
            uid, kept_rows = build.snapshot.build_uid, build.kept_rows
            if kept_rows and (left := kept_rows.tainted(marks.get(kept_rows.snapshot_uid, ()))):
                marks[uid] = marks.get(uid, frozenset()) | left
        return marks

    def tainted(self, manifest: Mapping[BuildID, Snapshot]) -> dict[SourceID, frozenset[str]]:
        """Return the sources with tainted tables, and their tainted partitions."""
        marks = self.marks()
        tainted: dict[SourceID, frozenset[str]] = {}
        for build_id, snapshot in manifest.items():
            if (keys := marks.get(snapshot.build_uid)) is None:
                continue
            for source in self.project.by_build_id.get(build_id, ()):
                partition = source.annotation.partition
                if "" in keys and partition is not None:  # the whole table
                    keys = frozenset(partition_keys(partition, self.started_at))
                tainted[source.source_id] = keys - {""}
        return tainted

    def find_written(self, build_uid: str) -> Snapshot | None:
        """Return the snapshot that a build wrote; None: it was collected."""
        with self.lock:
            snapshots = [u.snapshot for u in self._unpublished.values()]
        unpublished = (s for s in snapshots if s.build_uid == build_uid)
        return next(unpublished, None) or self.ledger.builds.find_written(build_uid)

    def is_readable(self, snapshot: Snapshot, exists: HasSnapshot = has_snapshot) -> bool:
        """Whether the table of a snapshot exists; for a view, everything that it reads."""
        if snapshot.view is None:
            return exists(self.settings.table_root(snapshot.table), snapshot)
        raws = (s for s in self.project.sources if s.raw)
        versions = {s.build_id: self.pins.find_version(s) for s in raws}
        return all(
            versions.get(leaf.raw) == leaf.version
            if isinstance(leaf, RawVersion)
            else leaf is not None and exists(self.settings.table_root(leaf.table), leaf)
            for leaf in beneath(self.find_written, snapshot)
        )

    def is_expired(self, source: Source, snapshot: Snapshot) -> bool:
        """Whether a table is older than its source's freshness window.

        Its age is that of its oldest input, as far as that is known. If that is in the future, a
        clock was wrong, and the age is unknown.
        """
        freshness = source.annotation.freshness
        age_s = (self.clock() - snapshot.known_at).total_seconds()
        return freshness is not None and not -_CLOCKS_DIFFER_S <= age_s <= freshness.window_s

    def _history(self, sources: Sequence[Source]) -> dict[SourceID, Build]:
        """Return the last build of each source; if it was never built here, that of a parent."""
        fetch, environment = self.ledger.builds.fetch_last, self.settings.environment
        if len(sources) <= _FEW:
            history: dict[SourceID, Build] = {}
            for source in sources:
                history |= fetch(environment, source_id=source.source_id)
        else:
            history = fetch(environment)
        if any(s.source_id not in history for s in sources):
            history = self.ledger.builds.fetch_current(*self.settings.environments) | history
        return history

    def _elsewhere(
        self,
        sources: Sequence[Source],
        manifest: Mapping[BuildID, Snapshot],
        exists: HasSnapshot,
    ) -> dict[BuildID, list[Snapshot]]:
        """Return the tables of sources in other environments that exist and are not tainted."""
        everywhere = self.ledger.manifests.fetch_elsewhere(*self.settings.environments)
        others = (snapshot for some in everywhere.values() for snapshot in some)
        everywhere |= self._taken_over(others, {*manifest, *everywhere})
        tainted = self.ledger.taints.fetch() if everywhere else {}
        return {
            source.build_id: [
                snapshot
                for snapshot in everywhere.get(source.build_id, ())
                if snapshot != manifest.get(source.build_id)
                and snapshot.build_uid not in tainted
                and self.is_readable(snapshot, exists)
            ]
            for source in sources
        }

    def latest(self, source: Source) -> Snapshot | None:
        """Return the snapshot that a source continues even if its meaning changed."""
        return self._latest([source], self.published()).get(source.source_id)

    def _latest(
        self,
        sources: Iterable[Source],
        manifest: Mapping[BuildID, Snapshot],
        exists: HasSnapshot = has_snapshot,
    ) -> dict[SourceID, Snapshot]:
        """Return the snapshots that sources continue even if their meaning changed.

        Histories also continue snapshots of environments that are read; other sources do not.
        """
        latest: dict[SourceID, Snapshot] = {}
        continuing = [s for s in sources if s.keeps_history or s.annotation.goes_on]
        environment = self.settings.environment
        current = self.ledger.builds.fetch_current(environment) if continuing else {}
        read = self.ledger.builds.fetch_current(*self.settings.environments) if continuing else {}
        tainted = self.marks() if continuing else {}
        for source in continuing:
            builds = current if not source.keeps_history else read
            last = builds.get(source.source_id)
            build_id = last.build_id if last else source.build_id
            snapshot = self.ledger.manifests.find_snapshot(environment, build_id)
            if source.keeps_history:
                # Another source of the same meaning may have continued what both have.
                shared = self.ledger.manifests.find_snapshot(environment, source.build_id)
                own_ones = [s for s in (snapshot, shared) if s and is_history(s)]
                read_ones = [s for s in (manifest.get(build_id),) if s and is_history(s)]
                snapshot = max(own_ones or read_ones, key=lambda s: s.built_at, default=None)
            elif snapshot is not None and (
                snapshot.view
                or snapshot.build_uid in tainted
                or not self.is_readable(snapshot, exists)
            ):
                continue
            if snapshot is not None:
                latest[source.source_id] = self._with_present_name(source, snapshot, manifest)
        return latest

    def _with_present_name(
        self, source: Source, snapshot: Snapshot, manifest: Mapping[BuildID, Snapshot]
    ) -> Snapshot:
        """Return a snapshot that a source continues, under its present BuildID if it has its text.

        A process of a former release may have continued a history that was taken over before.
        """
        present = manifest.get(source.build_id)
        if present is not None and present.build_uid == snapshot.build_uid:
            return present
        taken = find_takeovers(self.project, [snapshot], ()) if source.keeps_history else {}
        return next(iter(taken.get(source.build_id, ())), snapshot)

    # ----------------------------------------------------------------------------- what changed

    @cached_property
    def listings(self) -> str:
        """The directory with the listings of raw data that builds of this ledger keep."""
        return listings_of(self.settings.warehouse, self.ledger.events.log_id())

    def _changes(
        self, sources: Iterable[Source], world: World, settled: Mapping[BuildID, Snapshot]
    ) -> dict[SourceID, dict[SourceID, Change | None]]:
        """Return the changes of the tables read by sources whose tables can be continued.

        These are the environment's own tables, and those that it reads of other environments.

        Parameters
        ----------
        settled
            The snapshots that readers get.
        """
        changes: dict[SourceID, dict[SourceID, Change | None]] = {}
        raws = self._raws_by_build_id()
        for source in sources:
            annotation = source.annotation
            by_delta = not annotation.is_incremental and unmaintainable(source) is None
            if not (annotation.is_incremental or by_delta) or source.build_id in world.missing:
                continue
            sharing = (s.annotation for s in self.project.by_build_id[source.build_id])
            if len({(a.is_incremental, a.time_column, a.by) for a in sharing}) > 1:
                continue  # the table is kept in two ways
            snapshot = settled.get(source.build_id)
            published = world.manifest.get(source.build_id)
            if snapshot is None and published is None and annotation.goes_on:
                snapshot = published = world.latest.get(source.source_id)
            if snapshot is None or snapshot != published or snapshot.view is not None:
                continue
            if snapshot.time_column != annotation.time_column:
                continue
            if by_delta and not self._is_stale(source, snapshot, world, raws):
                continue
            reads = {s.source_id for s in self.project.inputs(source)}
            reads |= source.growth.reads if source.growth else frozenset[str]()
            changes[source.source_id] = {
                s: self._change(s, snapshot.as_of, world, snapshot.inputs) for s in sorted(reads)
            }
        return changes

    def _raws_by_build_id(self) -> dict[BuildID, Source]:
        return {s.build_id: s for s in self.project.sources if s.raw is not None}

    def _is_stale(
        self, source: Source, snapshot: Snapshot, world: World, raws: Mapping[BuildID, Source]
    ) -> bool:
        """Whether a table that a source's rows follow from may have changed since a snapshot."""
        for version in snapshot.as_of:
            raw = raws.get(version.raw)
            if raw is None or world.version(source.source_id, raw) != version.version:
                return True
        contents = {v.version for v in snapshot.inputs}
        tables = ((s, world.readable(s)) for s in self.project.inputs(source) if s.raw is None)
        return any(t is None or content_version(s, t) not in contents for s, t in tables)

    def _costs(self, sources: Iterable[Source], world: World) -> dict[BuildID, Sequence[Cost]]:
        """Return the costs of earlier builds of tables that may be continued."""
        continued = {s.build_id: s.source_id for s in sources if s.source_id in world.changes}
        costs = self.ledger.builds.fetch_costs_of(continued) if continued else {}
        # A table that was taken over was built under another BuildID.
        others = {s: b for b, s in continued.items() if b not in costs}
        former = self.ledger.builds.fetch_costs_of_sources(others) if others else {}
        return costs | {others[s]: some for s, some in former.items()}

    def _experience(self, costs: dict[BuildID, Sequence[Cost]]) -> Experience:
        """Return what builds of other tables say, if a table with some costs depends on it."""
        if not any(map(asks_experience, costs.values())):
            return Experience()
        tables = (s.build_id for s in self.project.persisted if unmaintainable(s) is None)
        others = {*islice(tables, _MOST_TABLES)} - costs.keys()
        known = self.ledger.builds.fetch_costs_of(others) if others else {}
        return experience_of((costs | known).values())

    def _sizes(self, sources: Iterable[Source], world: World) -> dict[SourceID, Volume]:
        """Return the sizes of raw tables and of built tables."""
        sizes: dict[SourceID, Volume] = {}
        for source in sources:
            table = world.readable(source) if source.persisted else None
            if table is not None and table.view is None:
                sizes[source.source_id] = Volume(table.rows, table.bytes)
            elif source.raw is not None and source.source_id in world.versions:
                pin = self.pins.pin(source)
                sizes[source.source_id] = Volume(pin.n_rows, pin.bytes)
        return sizes

    def _aged(
        self, sources: Iterable[Source], world: World
    ) -> dict[tuple[SourceID, AsOf, AsOf], dict[SourceID, Change | None]]:
        """Return the changes of the tables that partitions follow from, since they were built."""
        changes: dict[tuple[SourceID, AsOf, AsOf], dict[SourceID, Change | None]] = {}
        for source in sources:
            if source.annotation.partition is None or source.growth is None:
                continue
            snapshot = world.manifest.get(source.build_id)
            for table in (snapshot, *world.elsewhere.get(source.build_id, ())):
                for group in table.partitions.filled if table and table.partitions else ():
                    age = (source.source_id, group.as_of, group.inputs)
                    if age not in changes and len(changes) < _MOST_AGES:
                        changes[age] = {
                            s: self._change(s, group.as_of, world, group.inputs)
                            for s in sorted(source.growth.reads)
                        }
        return changes

    def _redrawn(
        self, sources: Iterable[Source], world: World
    ) -> dict[tuple[SourceID, AsOf, AsOf], frozenset[BuildID]]:
        """Return the tables computed again since, for all rows of incremental sources."""
        rows = [
            (source.source_id, table.as_of, table.inputs)
            for source in sources
            if source.growth is not None and source.annotation.partition is None
            if (table := world.manifest.get(source.build_id)) is not None
        ]
        if not rows and not world.aged:
            return {}
        redrawn = Redrawn(self.project, world, self.marks(), cache(self._snapshots_of))
        return {
            (source_id, as_of, row_inputs): redrawn.of(
                self.project.by_id[source_id], as_of, row_inputs
            )
            for source_id, as_of, row_inputs in (*rows, *world.aged)
        }

    def _snapshots_of(self, build_id: BuildID) -> list[Snapshot]:
        """Return the snapshots of all builds of a BuildID, the latest first."""
        builds = self.ledger.builds.fetch_succeeded(build_id)
        return [b.snapshot for b in builds if b.snapshot is not None]

    def _change(
        self, source_id: SourceID, as_of: AsOf, world: World, computed_from: AsOf = ()
    ) -> Change | None:
        """Return the change of a table since rows of an as_of were computed from it.

        Parameters
        ----------
        computed_from
            The direct inputs of these rows, as far as they are known.
        """
        source = self.project.by_id.get(source_id)
        if source is None:
            return None
        if source.raw is None:
            return self._change_of_table(source, as_of, world, computed_from)
        if self.pins.find_version(source) is None:
            return None
        then = [v.version for v in as_of if v.raw == source.build_id]
        if len(then) != 1:
            return None
        place, form = self.pins.place(source)
        pin = self.pins.pin(source)
        key = (place, then[0], pin.version or "", pin.commit)
        if key not in self._raw_changes:
            self._raw_changes[key] = raw_change(self.listings, place, then[0], pin, form)
        return self._raw_changes[key]

    def _change_of_table(
        self, source: Source, as_of: AsOf, world: World, computed_from: AsOf
    ) -> Change | None:
        """Return the change of a persisted source's table.

        Its former rows are those of any snapshot that depends on the same data and, if the content
        is known, has the same content.
        """
        rows = {v.version for v in computed_from if v.raw == source.build_id}

        def is_then(snapshot: Snapshot) -> bool:
            same = not rows or content_version(source, snapshot) in rows
            return same and rests_alike(snapshot, as_of)

        now = world.readable(source)
        if now is None or now.view is not None:
            return None
        if is_then(now):
            return Change()
        snapshots = [s for s in self._snapshots_of(source.build_id) if not s.view]
        # Of another environment's table, this one's may have copies of files.
        for then in sorted(snapshots, key=lambda s: s.table != now.table):
            former, root = map(self.settings.table_root, (then.table, now.table))
            if is_then(then) and is_own_version(former, then):
                if source.function is not None and then.columns != now.columns:
                    return None  # nobody knows the columns of a function in advance
                if former == root:
                    change = delta_change(root, then.version, now.version)
                else:
                    change = change_of_copy(former, then.version, root, now.version)
                return change and self._within(source, then, now, change, world)
        return None

    def _within(
        self, source: Source, then: Snapshot, now: Snapshot, change: Change, world: World
    ) -> Change:
        """Return a change of a partitioned table, limited to the partitions built since."""
        partition, columns = source.annotation.partition, parted_by(source, now)
        if partition is None or not columns or not (change.added or change.lost):
            return change
        order, built = world.keys[source.source_id], set[str]()
        step: Snapshot | None = now
        while step is not None and step.build_uid != then.build_uid:
            if step.partitions is None or step.partitions.base is None:
                return change
            built.update(expand(order, step.partitions.built))
            step = self.find_written(step.partitions.base)
        if step is None:
            return change
        spans = boxes(partition, [kind for _, kind in columns], built, order)
        within = {columns[0][0].lower(): merged_spans(box[0] for box in spans)}
        return replace(change, within=within)
