"""One build after the other: plan, compute, check, commit, publish. Serves Dagster, CLI and tests.

Every build of a source runs under a lease on its BuildID:

    observe and plan ─► compute by a strategy ─► check ─► commit to Delta ─► publish in the ledger
                                                                            └► export the manifest

Until the last step readers see what they saw before. A process that dies leaves behind at most
files that no version holds, or a version that no manifest names. The next build of the source takes
the lease over, tidies the table and starts again.

A build may stop before its publication and be parked, without its leases, until its turn comes
(`park`, `resume`): builds of the same run already read it, no other reader does.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from persist_assets.building.checking import Checking
from persist_assets.building.effort import effort_of
from persist_assets.building.exporting import Exports
from persist_assets.building.observe import Observer, Unpublished
from persist_assets.building.progress import new_progress
from persist_assets.building.publishing import announce, check_names
from persist_assets.building.reader import Reader
from persist_assets.building.set_checks import failure
from persist_assets.building.stages import Computed, PendingBuild, Started
from persist_assets.building.start import (
    check_started,
    is_inherited,
    is_unmoved,
    own_entry,
    plan_step,
    start,
    wants_of,
)
from persist_assets.building.strategies.choose import maintenance_of, strategy_of
from persist_assets.building.strategies.slices import without_shared
from persist_assets.building.strategies.strategy import Task
from persist_assets.building.strategies.temporary import TemporaryTables
from persist_assets.building.tables import Tables
from persist_assets.building.takeovers import in_turn, lease_names, take_over
from persist_assets.building.telling import during, publishing, tell_ended, tell_started
from persist_assets.core.errors import BuildError, ConflictError, PersistError, StorageError
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Build, Snapshot, Written
from persist_assets.engine.interrupts import delayed_interrupts
from persist_assets.engine.python_functions import place_of
from persist_assets.ledger.builds import Publication
from persist_assets.planning.deltas import unmaintainable
from persist_assets.planning.diff import recorded_reads
from persist_assets.planning.inputs import drawn
from persist_assets.storage.changes import keep_listing
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_tables import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.strategy import Scope
    from persist_assets.core.model.annotations import Fallback
    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.time_values import Span
    from persist_assets.core.wants import Request
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.leases import Lease
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.planning.world import World

log = logging.getLogger(__name__)


class Builder:
    """Builds the sources of one project in one environment during one run.

    Parameters
    ----------
    run_id
        The run that builds are recorded under.
    changing
        Tables may get other columns, whatever ``on_schema_change`` says.
    origin
        Who wants what is built, for the audit: a `wants.SourceType` under ``type``, and details.
    request
        The build request that all builds belong to; None: each build has a want of its own.
    fed, fallback, clock
        See `Observer`.
    local
        See `Reader`.

    Attributes
    ----------
    observer
        Observes the world for the run, and makes its plans.
    reader
        Reads rows for the run.
    tables
        The tables that it writes.
    progress
        The recorded progress of its builds.
    over
        Set when the run has ended: builds that still wait for a lease give up.
    """

    def __init__(
        self,
        settings: Settings,
        project: Project,
        ledger: Ledger,
        engine: Engine,
        *,
        run_id: str | None = None,
        fed: Iterable[SourceID] = (),
        fallback: Fallback | None = None,
        changing: bool = False,
        origin: Mapping[str, Any] | None = None,
        request: Request | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        local: bool = False,
    ) -> None:
        self.settings, self.project, self.ledger, self.engine = settings, project, ledger, engine
        self.observer = Observer(
            settings, project, ledger, fed=fed, fallback=fallback, clock=clock, engine=engine
        )
        self.reader = Reader(self.observer, engine, local=local)
        self.run_id, self.request, self.clock = run_id, request, clock
        self.origin = {"type": "api"} if origin is None else origin
        self.progress = new_progress()
        self._parked: dict[SourceID, PendingBuild] = {}
        self._open: dict[str, PendingBuild] = {}
        self._has_left = False
        self.tables = Tables(settings, project, ledger)
        self._exports = Exports(settings, ledger)
        self._temporary = TemporaryTables(self.reader, self._holder())
        self.reader.relations.directory = self._temporary.location
        self._checking = Checking(self.reader, self._temporary, changing=changing)
        self._lock, self.over = threading.RLock(), threading.Event()

    def anew(self, request: Request | None = None) -> Builder:
        """Return a builder that observes everything again, for a build request or for none."""
        return Builder(
            self.settings,
            self.project,
            self.ledger,
            self.engine,
            run_id=self.run_id,
            fed=self.observer.pins.fed,
            fallback=self.observer.fallback,
            changing=self._checking.changing,
            origin=self.origin,
            request=request,
            clock=self.clock,
            local=self.reader.local,
        )

    def plan(
        self,
        selected: Iterable[SourceID],
        *,
        force: bool = False,
        partition_keys: Mapping[SourceID, Collection[str]] | None = None,
        recompute_spans: Mapping[SourceID, Span] | None = None,
    ) -> Plan:
        """Return what building `selected` would do; see `Observer.plan`."""
        return self.observer.plan(
            selected, force=force, partition_keys=partition_keys, recompute_spans=recompute_spans
        )

    def read(self, source: Source) -> DataFrame:
        """Return the rows that readers of a source see now; see `Reader.read`."""
        return self.reader.read(source)

    # ------------------------------------------------------------------------------ one build

    def build(
        self,
        source: Source,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        recompute_span: tuple[str, str] | None = None,
    ) -> Build:
        """Build a source, or reuse its table, and let readers see it.

        Parameters
        ----------
        keys
            The partitions to build; None: all of them.
        recompute_span
            The first and the last value of the time column whose rows are computed again: ISO 8601
            for times, in the settings' time zone unless they have an offset.

        Raises
        ------
        PersistError
            The build failed; readers see the same rows as before.
        """
        with self.work(source, force=force, keys=keys, recompute_span=recompute_span) as work:
            self.publish(work)
            return work.build

    @contextmanager
    def work(
        self,
        source: Source,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        recompute_span: tuple[str, str] | None = None,
    ) -> Generator[PendingBuild]:
        """Do everything up to publication; the block has to publish the build (`publish`).

        Raises
        ------
        CheckFailedError
            The rows failed a blocking check.
        PersistError
            Something else failed; the failure is recorded.
        """
        check_names(self.settings, self.project, self.engine, source)
        self.observer.pins.sync([source.source_id])
        take_over(self.observer, self.run_id)
        with self._leased(source) as (held,):
            before = own_entry(self.observer, source)  # a later promotion must not be undone
            world = self.observer.observe([source], is_whole)
            step = plan_step(
                self.observer,
                self.tables,
                source,
                world,
                force=force,
                keys=keys,
                recompute_span=recompute_span,
            )
            started = start(self.observer, self.tables, source, step, world, before)
            work = PendingBuild(started, self._new_build(started), held)
            with during(work), self._recorded(work):
                self._record_started(work)
                if step.snapshot is not None:
                    self._reuse_present(work, step.snapshot, world)
                else:
                    with self.engine.attributed(work.attribution):
                        self._compute(work, world)
                if any(not r.passed and r.blocking for r in work.checks):
                    raise failure(source, work.checks)
                yield work

    def _new_build(self, started: Started) -> Build:
        return Build(
            build_uid=uuid.uuid4().hex,
            source_id=started.source.source_id,
            build_id=started.source.build_id,
            definition=started.source.definition,
            environment=self.settings.environment,
            run_id=self.run_id,
            state="started",
            action="built" if started.step.action == "build" else "reused",
            started_at=self.clock(),
            digests=started.source.digests,
            reads=recorded_reads(self.project, started.source),
        )

    def _record_started(self, work: PendingBuild) -> None:
        """Tidy the table up, and record that the build has started."""
        started, build = work.started, work.build
        with self._lock:
            alive = [w.build.build_uid for w in self._parked.values()]
        # After an upgrade, a build may reuse a table that another process still writes.
        if started.step.snapshot is None or started.table == started.source.table:
            self.tables.tidy(started.table, alive)
        self.ledger.builds.record_started(
            build,
            started.table,
            base=started.before if started.is_within else None,
            kept_rows=started.kept_rows,
            wants=() if self.request else wants_of(started, build, self.origin),
            request_id=self.request.request_id if self.request else None,
        )
        tell_started(self.observer, work)

    # ----------------------------------------------------------------------------- computing

    def _compute(self, work: PendingBuild, world: World) -> None:
        """Compute the rows by a strategy, write them, and answer their checks."""
        source, step, reader = work.source, work.step, self.reader
        self.progress.compute(source, step)
        check_started(self.observer, work.started, world, self.run_id)
        checks = self._checking.checks_of(source)
        task = Task(
            reader,
            work.started,
            world,
            work.build.build_uid,
            [c for c in checks if c.alone],
            self._time_column(source),
        )
        strategy = strategy_of(self.project, source, step)
        scope = strategy.scope(task)
        # An increment wants few of the temporary tables' rows: then these are only checked.
        temporary = self._temporary.compute(
            source.bindings, world, checked=not scope.reads_temporary
        )
        read = self._reading(task, scope, temporary if scope.reads_temporary else {})
        work.used = self._temporary.used(read)
        slices = without_shared(task, read, scope.slices)
        computes = not scope.columns
        frame: Any = reader.compute(source, read, slices, scope.since) if computes else None
        columns = scope.columns or self.engine.columns(frame, source.name)
        if source.keeps_history:
            columns = (*columns, *(Column(name, "timestamp") for name in (VALID_FROM, VALID_TO)))
        self._checking.check_columns(source, checks, columns)
        self._checking.check_views(source, world)
        computed = strategy.write(task, scope, frame, read)
        if isinstance(computed, Snapshot):
            build = replace(work.build, action="reused")
            if step.increment is not None and step.increment.program is not None:
                # Finding that no row differs takes time, which later plans expect again.
                build = build.computed_by(step.increment.program.method, self.clock())
                build = replace(build, effort=effort_of(task, build))
            if computed.table != work.started.table:
                work.taken = frozenset((computed.build_uid,))
            work.build = build
            self._reuse(work, computed, world)
        else:
            work.computed = computed
            self._warn_timeless(work, computed)
            work.checks = self._checking.ask(work, computed, world, checks, frame)
            method = computed.maintenance or maintenance_of(source, strategy, scope)
            build = work.build.computed_by(method, self.clock())
            work.build = replace(build, effort=effort_of(task, build, computed))
        leaves = reader.leaves(source.bindings, read)
        reader.check_unchanged(leaves)
        for other in source.compared:
            reader.check_unchanged(reader.leaves([other], reader.reading([other], world.manifest)))
        self._keep_listings(leaves)

    def _warn_timeless(self, work: PendingBuild, computed: Computed) -> None:
        """Warn of rows without a value in the time column."""
        if computed.measured.timeless:
            log.warning(
                "`%s`: %d computed rows have no `%s` and belong to no time window%s",
                work.source.key,
                computed.measured.timeless,
                self._time_column(work.source),
                "" if computed.measured.watermark else ", and there is no watermark",
                extra={"action": "rows-left-out"},
            )

    def _reading(
        self, task: Task, scope: Scope, temporary: Mapping[SourceID, Snapshot]
    ) -> dict[SourceID, Snapshot]:
        """Return the snapshots that a build reads."""
        source, world = task.source, task.world
        sliced = [s for s, part in scope.slices.items() if part.files is not None]
        tables = source.growth.reads if source.growth else ()
        manifest = self.reader.untainted(world)
        return self.reader.reading(
            source.bindings, manifest, temporary, world.expired, sliced, tables
        )

    def _keep_listings(self, leaves: Iterable[Source]) -> None:
        """Record the files of the raw tables that sources follow."""
        growths = [s.growth for s in self.project.sources if s.growth is not None]
        followed = {s for growth in growths for s in growth.reads}
        for source in self.project.persisted:
            if unmaintainable(source) is None:
                followed |= {s.source_id for s in self.project.inputs(source)}
        for source in leaves:
            if source.source_id in followed:
                keep_listing(self.observer.listings, self.observer.pins.pin(source))

    def _time_column(self, source: Source) -> str | None:
        """Return the column whose watermark the table of a source has."""
        same = (source, *self.project.by_build_id[source.build_id])
        return next((s.annotation.time_column for s in same if s.annotation.time_column), None)

    # -------------------------------------------------------------------------------- reusing

    def _reuse_present(self, work: PendingBuild, present: Snapshot, world: World) -> None:
        """Reuse the table that the plan found."""
        if present != world.manifest.get(work.source.build_id):
            work.taken = frozenset((present.build_uid,))
        elif present.partitions is None:
            work.used = frozenset((present.build_uid,))
        # Its data may be newer, with the same rows (`planning.inputs`).
        partitions, step = present.partitions, work.step
        if partitions is not None and step.partitions is not None:
            partitions = replace(partitions, filled=step.partitions.filled)
        now = {"current_at": work.started.current_at, "origin": work.started.origin}
        present = replace(present, as_of=step.as_of, partitions=partitions, **now)
        self._reuse(work, present, world)
        work.inherited = is_inherited(self.observer, work)

    def _reuse(self, work: PendingBuild, present: Snapshot, world: World) -> None:
        """Use an existing table as the result; run the checks whose results may have changed."""
        work.snapshot = present
        work.checks = self._checking.recheck(work, present, world)
        if self._checking.has_new_guards(work.source, present):
            self._temporary.compute(work.source.bindings, world, checked=True)

    # --------------------------------------------------------------------------------- parking

    def park(
        self,
        source: Source,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        recompute_span: tuple[str, str] | None = None,
    ) -> PendingBuild:
        """Do everything up to publication, for `resume`; builds of this run see it at once.

        Raises
        ------
        PersistError
            The build failed; the failure is recorded.
        """
        with self.work(source, force=force, keys=keys, recompute_span=recompute_span) as work:
            snapshot = self._commit(work)
            work.state = "parked"
            with self._lock:
                self._parked[source.source_id] = work
            self.observer.hold(source.source_id, Unpublished(snapshot, work.started.kept_rows))
        return work

    @contextmanager
    def resume(
        self,
        work: PendingBuild,
        *,
        force: bool = False,
        keys: Collection[str] | None = None,
        recompute_span: tuple[str, str] | None = None,
    ) -> Generator[PendingBuild]:
        """Continue a parked build; the block has to publish it, as with `work`.

        The source is built again if another run has built it or its inputs meanwhile.

        Raises
        ------
        PersistError
            The build failed; the failure is recorded.
        """
        with self._leased(work.source) as (held,):
            usable = self._is_usable(work)
            try:
                if usable:
                    work.leases, work.state = held, "open"
                    with self._recorded(work):
                        yield work
            finally:
                with self._lock:
                    del self._parked[work.source.source_id]
                self.observer.release(work.source.source_id)
        if not usable:
            with self.work(
                work.source, force=force, keys=keys, recompute_span=recompute_span
            ) as anew:
                yield anew

    def _is_usable(self, work: PendingBuild) -> bool:
        """Whether a build that starts now would equal a parked one, whose lease is held."""
        assert work.snapshot is not None
        return (
            self.ledger.builds.is_under_way(work.build)
            and self.observer.inputs(work.source) == work.started.inputs
            and (not work.source.keeps_history or self._is_last(work))
            and is_unmoved(self.observer, work)
            and self.observer.is_readable(work.snapshot, is_whole)
        )

    def _is_last(self, work: PendingBuild) -> bool:
        """Whether no other build has continued the history since this one started."""
        return work.started.latest == self.observer.latest(work.source)

    @delayed_interrupts()
    def abandon(self) -> None:
        """Record that parked builds will not be published."""
        with self._lock:
            parked, self._parked = self._parked, {}
        for source_id, work in parked.items():
            self.observer.release(source_id)
            why = "the run ended or was interrupted before it published these rows"
            self._record_failed(work, why)

    @delayed_interrupts()
    def leave_behind(self) -> None:
        """Record that builds under way have failed, and give their leases back.

        They hang, and their run has ended. If they go on, they publish nothing.
        """
        with self._lock:
            self._has_left = True
            works = [*self._open.values()]
        for work in works:
            log.warning("action=leave-behind source=%s", work.source.source_id)
            self._record_failed(work, "interrupted before it ended")
            for lease in work.leases:
                self.ledger.leases.release(lease)

    # ------------------------------------------------------------------------------ publishing

    def publish(self, work: PendingBuild) -> Snapshot:
        """Commit what was written, if anything, and let readers see it.

        Raises
        ------
        ConflictError
            The lease was lost, or another process wrote to the table, or to the history; nothing
            was published.
        """
        if work.source.keeps_history and not self._is_last(work):
            message = f"the history of `{work.source.name}` changed during the build"
            raise ConflictError(message, hint="try again")
        self._commit(work)
        publication = self._publication(work)
        with publishing([work]):
            self.ledger.builds.publish(publication, malloy=self.project.malloy)
        self._announce([work])
        return publication.snapshot

    def publish_parked(self, request: Request) -> list[PendingBuild]:
        """Publish everything parked for a request, in one transaction; return it.

        Raises
        ------
        ConflictError
            Somebody else has built something of it, or what it reads, meanwhile; nothing was
            published.
        """
        with self._lock:
            works = sorted(self._parked.values(), key=lambda w: w.source.build_id)
        with self._leased(*(work.source for work in works)) as held:
            for work, leases in zip(works, held, strict=True):
                if not self._is_usable(work):
                    raise ConflictError(
                        f"`{work.source.name}` changed during the build of other partitions",
                        hint="the next request builds it again",
                    )
                work.leases = leases
            publications = [self._publication(work) for work in works]
            with publishing(works):
                self.ledger.builds.publish_together(
                    publications, request_id=request.request_id, malloy=self.project.malloy
                )
            with self._lock:
                self._parked.clear()
            for work in works:
                self.observer.release(work.source.source_id)
        self._announce(works)
        return works

    def _commit(self, work: PendingBuild) -> Snapshot:
        """Make what was written a version of its table, once."""
        if self._has_left:
            raise BuildError(f"the run that builds `{work.source.name}` has ended")
        computed, staged = work.computed, work.staged
        written = Written(staged.rows, staged.bytes) if staged else Written(0, 0)
        work.build = replace(work.build, written=written)
        if work.snapshot is None:
            assert computed is not None
            version = 0
            if staged is not None:
                version = commit(
                    staged,
                    build_id=work.source.build_id,
                    pinned=self.ledger.builds.find_pinned_version(work.table),
                    base=computed.base.version if computed.base else None,
                    kept_files=computed.kept_files,
                    touched=computed.touched,
                    engine=self.engine.version(),
                )
            work.snapshot = self._snapshot(work, computed, version)
        return work.snapshot

    def _snapshot(self, work: PendingBuild, computed: Computed, version: int) -> Snapshot:
        """Return the snapshot of a version of a table."""
        source, measured = work.source, computed.measured
        return Snapshot(
            build_uid=work.build.build_uid,
            source_id=source.source_id,
            build_id=source.build_id,
            table=work.table,
            version=version,
            as_of=drawn(work.step.as_of, source, work.build.build_uid),
            content=measured.content,
            rows=measured.rows,
            bytes=computed.bytes,
            built_at=self.clock(),
            columns=computed.columns,
            watermark=measured.watermark,
            inputs=work.started.inputs,
            current_at=work.started.current_at,
            view=computed.view,
            parts=computed.parts,
            time_column=self._time_column(source),
            partitions=work.step.partitions,
            states=computed.states,
            origin=work.started.origin,
        )

    def _publication(self, work: PendingBuild) -> Publication:
        """Return the snapshot that readers will see after a committed build."""
        assert work.snapshot is not None
        # The other environment may have moved on since.
        inherited = work.inherited and is_inherited(self.observer, work)
        return Publication(
            work.build,
            work.snapshot,
            work.checks,
            work.leases,
            moves=not inherited,
            refs=work.started.refs,
            kept_refs=work.started.kept_refs,
            kept_rows=work.started.kept_rows,
            used=work.used,
            environments=self.settings.environments,
            taken=work.taken,
            asset_key=work.source.key,
            replaces=None if inherited else (work.started.before, work.snapshot),
        )

    def _announce(self, works: Iterable[PendingBuild]) -> None:
        """Export the manifest, and update published tables and catalog views."""
        sharing: list[SourceID] = []
        for work in works:
            work.state = "published"
            work.build = replace(
                work.build, state="succeeded", finished_at=self.clock(), snapshot=work.snapshot
            )
            tell_ended(self.observer, work)
            # Readers of all sources with this BuildID read it now.
            sharing += (s.source_id for s in self.project.by_build_id[work.source.build_id])
        self._exports.request()
        announce(self.settings, self.ledger, self.project, sharing, engine=self.engine)

    # ---------------------------------------------------------------------- leases and tidying

    @contextmanager
    def _leased(self, *sources: Source) -> Generator[list[tuple[Lease, ...]]]:
        """Hold the leases for builds of sources, each once; yield those of each source."""
        names = [lease_names(self.observer, source) for source in sources]
        with ExitStack() as stack:
            held = {
                name: stack.enter_context(
                    self.ledger.leases.hold(name, self._holder(), over=self.over)
                )
                for name in in_turn(names)
            }
            yield [tuple(held[name] for name in own) for own in names]

    def _holder(self) -> str:
        return f"{self.run_id or 'a build'} on {socket.gethostname()}, process {os.getpid()}"

    @delayed_interrupts()
    def _record_failed(self, work: PendingBuild, error: str, checks: Sequence[Any] = ()) -> None:
        request_id = self.request.request_id if self.request else None
        self.ledger.builds.record_failed(work.build, error, request_id=request_id, checks=checks)
        tell_ended(self.observer, work, error)

    @contextmanager
    def _recorded(self, work: PendingBuild) -> Generator[None]:
        """Record a build as failed and remove its files, unless the block publishes or parks it."""
        with self._lock:
            self._open[work.build.build_uid] = work
        try:
            yield
            if work.state == "open":
                raise BuildError(f"`{work.source.name}` was built but not published")
        except BaseException as error:
            if isinstance(error, PersistError) and error.location is None:
                error.location = place_of(error, self.settings.root) or work.source.location
            if work.state == "open":
                message = str(error) if isinstance(error, Exception) else "interrupted"
                checks = getattr(error, "results", ())  # of checks that failed
                self._record_failed(work, message or type(error).__name__, checks)
                with suppress(StorageError):  # otherwise the next build of the table does it
                    self.tables.discard(self.settings.table_root(work.table), work.build.build_uid)
            raise
        finally:
            with self._lock:
                self._open.pop(work.build.build_uid, None)

    def close(self) -> None:
        """Release everything that lasts only as long as the run."""
        self.reader.forget()
        self._temporary.close()
        self._exports.flush()
