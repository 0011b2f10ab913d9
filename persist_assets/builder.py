"""The loop: plan → builds in order → publication. Serves Dagster, the CLI and tests alike.

One build of one source, all under a lease on its BuildID:

    plan again ─► write files ─► measure and check ─► commit to Delta ─► publish in the ledger
                                                                       └► export the manifest

Until the last step readers see what they saw before. A process that dies anywhere leaves at
worst files that no version holds, or a version that no manifest names; the next build of the
source takes the lease over, puts the table right and starts again.

A build may stop before its publication and be parked, without its lease, until its turn comes
(`park`, `resume`): builds of the same run read it already, nobody else does.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from persist_assets.compare import what_it_reads
from persist_assets.errors import (
    BuildError,
    CheckFailedError,
    ConflictError,
    PersistError,
    StaleError,
    StorageError,
    StrictError,
)
from persist_assets.manifest import export_manifest
from persist_assets.meaning.functions import CLOCK, SPECIAL_DATETIMES
from persist_assets.model import Build, CheckResult, Snapshot
from persist_assets.planner import UNVERSIONED, WHEN_OLD, World, drawn, inputs, plan, unchecked
from persist_assets.session import translated
from persist_assets.storage.files import delete_directory
from persist_assets.storage.raw import pin_raw
from persist_assets.storage.tables import (
    commit,
    find_table,
    has_snapshot,
    is_whole,
)
from persist_assets.substitution import substitute

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    from persist_assets.engine import Engine, Measured
    from persist_assets.ledger.store import Lease, Ledger
    from persist_assets.model import (
        AsOf,
        BuildID,
        Check,
        Fallback,
        Plan,
        Project,
        Query,
        Source,
        SourceID,
        Step,
    )
    from persist_assets.settings import Settings
    from persist_assets.storage.raw import Pin
    from persist_assets.storage.tables import Staged
    from persist_assets.substitution import Statement

log = logging.getLogger(__name__)

HasSnapshot = Callable[[str, Snapshot], bool]


@dataclass(slots=True)
class Work:
    """A build under way, up to and excluding its publication.

    Attributes
    ----------
    snapshot
        What will be published: of a reused table at once, of a built one after its commit.
    checks
        What came of the checks; none that blocks has failed.
    inputs
        What the rows are computed from directly.
    current_at
        When all that was last known to be current.
    inherited
        Readers see it already, in an environment that theirs reads.
    state
        ``parked``: it waits for its publication, and the lease is given back.
    """

    source: Source
    step: Step
    build: Build
    lease: Lease
    table: str
    checks: tuple[CheckResult, ...] = ()
    inputs: AsOf = ()
    current_at: datetime | None = None
    snapshot: Snapshot | None = None
    inherited: bool = False
    staged: Staged | None = None
    measured: Measured | None = None
    state: Literal["open", "parked", "published"] = "open"


class Builder:
    """Plans, builds and reads the sources of one project in one environment during one run.

    All raw tables are read at the versions they had when the builder first looked, so that
    everything it builds rests on the same data.

    Parameters
    ----------
    run_id
        The run that builds are recorded under.
    fed
        Raw tables that assets of the same run may write: they are looked at when first read.
    fallback
        What readers get of every table that is older than it may be, instead of what its source
        says.
    clock
        Returns the present instant, aware.

    Attributes
    ----------
    over
        Set when the run has ended: what still waits for a lease gives up.
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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings, self.project, self.ledger, self.engine = settings, project, ledger, engine
        self.run_id = run_id
        self.fed = frozenset(fed)
        self.fallback: Fallback | None = fallback
        self.clock = clock
        self.started_at = clock()
        self._pins: dict[SourceID, Pin] = {}
        self._absent: dict[SourceID, str] = {}
        self._parked: dict[SourceID, Work] = {}
        self.over = threading.Event()
        self._lock = threading.RLock()

    # ------------------------------------------------------------------------------- reading

    def pin(self, source: Source) -> Pin:
        """Return the version of a raw table that this run reads.

        Raises
        ------
        StorageError
            There is no data.
        """
        assert source.raw is not None
        with self._lock:
            if source.source_id not in self._pins:
                for other in self.project.sources:
                    if other.raw is not None and other.source_id not in self.fed:
                        self._look(other, required=other is source)
                if source.source_id in self.fed:
                    self._look(source, required=True)
            return self._pins[source.source_id]

    def find_version(self, source: Source) -> str | None:
        """Return the version of a raw table that this run reads, None where there is no data."""
        try:
            return self.pin(source).version
        except StorageError:
            return None

    def _look(self, source: Source, *, required: bool) -> None:
        if source.source_id in self._pins or source.raw is None:
            return
        try:
            pin = pin_raw(source.raw, self.settings.resolve(source.raw.location or ""))
        except StorageError as error:
            self._absent[source.source_id] = error.message
            if required:
                raise StorageError(
                    f"`{source.name}`: {error.message}", hint=error.hint, location=source.location
                ) from error
            return
        if pin.version is None:
            pin = replace(pin, version=f"{UNVERSIONED}{self.started_at.isoformat()}")
        self._pins[source.source_id] = pin

    def world(self, sources: Iterable[Source], there: HasSnapshot = has_snapshot) -> World:
        """Return all that a plan of `sources` has to know; `there` says which tables are."""
        manifest = self.manifest()
        sources = tuple(sources)
        reached = self.project.reach((s.source_id for s in sources), lambda _: False)
        raws = [s for s in reached if s.raw is not None]
        versions = {s.source_id: v for s in raws if (v := self.find_version(s)) is not None}
        return World(
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
                and not there(self.settings.table_root(snapshot.table), snapshot)
            ],
            absent=dict(self._absent),
            elsewhere=self._elsewhere(sources, manifest, there),
            expired={
                source.source_id: self.fallback or source.annotation.freshness.fallback
                for source in (*sources, *reached)
                if source.annotation.freshness
                and (snapshot := manifest.get(source.build_id))
                and self.is_expired(source, snapshot)
            },
        )

    def is_expired(self, source: Source, snapshot: Snapshot) -> bool:
        """Whether a table is older than its source's freshness window lets it be.

        Its age is that of the oldest of all that it rests on, as far as is known.
        """
        freshness = source.annotation.freshness
        age = self.clock() - snapshot.known_at
        return freshness is not None and age.total_seconds() > freshness.window_s

    def _readable(self, source: Source, snapshot: Snapshot) -> Snapshot | None:
        """Return what is read of a source, None where its query is computed instead.

        Raises
        ------
        StaleError
            It is older than it may be, and its source says that it must not be read then.
        """
        if not self.is_expired(source, snapshot):
            return snapshot
        assert source.annotation.freshness is not None
        fallback = self.fallback or source.annotation.freshness.fallback
        known = snapshot.known_at.isoformat(timespec="seconds")
        told = f"the table of `{source.name}` is older than it may be: it is what was so at {known}"
        if fallback == "fail":
            raise StaleError(
                told, hint=f"build it: persist build {source.key}", location=source.location
            )
        log.warning("%s; %s", told, WHEN_OLD[fallback])
        return snapshot if fallback == "stale_ok" else None

    def _history(self, sources: Iterable[Source]) -> dict[SourceID, Build]:
        """Return the last build of every source; of one never built here, what is read of it."""
        history = self.ledger.fetch_last_builds(self.settings.environment)
        if any(s.source_id not in history for s in sources):
            history = self.ledger.fetch_current(*self.settings.environments) | history
        return history

    def _elsewhere(
        self,
        sources: Sequence[Source],
        manifest: Mapping[BuildID, Snapshot],
        there: HasSnapshot,
    ) -> dict[BuildID, list[Snapshot]]:
        """Return what other environments have of sources, where its table is there."""
        everywhere = self.ledger.fetch_elsewhere(*self.settings.environments)
        return {
            source.build_id: [
                snapshot
                for snapshot in everywhere.get(source.build_id, ())
                if snapshot != manifest.get(source.build_id)
                and there(self.settings.table_root(snapshot.table), snapshot)
            ]
            for source in sources
        }

    def manifest(self) -> dict[BuildID, Snapshot]:
        """Return what builds of this run read: what the environment does, and what is parked."""
        manifest = self.ledger.fetch_manifest(*self.settings.environments)
        with self._lock:
            parked = {w.source.build_id: w.snapshot for w in self._parked.values() if w.snapshot}
        return manifest | parked

    def plan(self, selected: Iterable[SourceID], *, force: bool = False) -> Plan:
        """Return what building `selected` would do."""
        chosen = [self.project.by_id[s] for s in selected]
        return plan(self.project, [s.source_id for s in chosen], self.world(chosen), force=force)

    def statement(
        self, query: Query, bindings: Sequence[SourceID], manifest: Mapping[BuildID, Snapshot]
    ) -> tuple[Statement, dict[SourceID, Snapshot]]:
        """Return a query as a statement over what is built, and the snapshots it reads.

        Raises
        ------
        StrictError
            Strict mode is on, and not all that is persisted and read is built: lists it all.
        StaleError
            A table is older than it may be.
        """
        known: dict[SourceID, Snapshot | None] = {}

        def built(source: Source) -> Snapshot | None:
            if source.source_id not in known:
                snapshot = manifest.get(source.build_id) if source.persisted else None
                known[source.source_id] = snapshot and self._readable(source, snapshot)
            return known[source.source_id]

        reached = self.project.reach(bindings, lambda s: s.raw is not None or built(s) is not None)
        views: dict[SourceID, str] = {}
        read: dict[SourceID, Snapshot] = {}
        missing: list[Source] = []
        for source in reached:
            if source.raw is not None:
                views[source.source_id] = f"{source.key}@{self.pin(source).version}"
            elif (snapshot := built(source)) is not None:
                views[source.source_id] = f"{snapshot.table}@v{snapshot.version}"
                read[source.source_id] = snapshot
            elif source.persisted:
                missing.append(source)
        if missing and self.settings.strict:
            names = ", ".join(sorted(s.key for s in missing))
            raise StrictError(
                f"not built in `{self.settings.environment}`: {names}",
                hint="strict mode reads persisted sources from their tables only: build them first",
            )
        return substitute(self.project, query, bindings, views), read

    def load(
        self, statement: Statement, read: Mapping[SourceID, Snapshot], columns: Sequence[Any] = ()
    ) -> DataFrame:
        """Return the rows of a statement, not yet computed."""
        for source_id, view in statement.views.items():
            source = self.project.by_id[source_id]
            snapshot = read.get(source_id)
            if snapshot is not None:
                self.engine.view(view, lambda s=snapshot: self.engine.load_snapshot(s))
            else:
                pin = self.pin(source)
                self.engine.view(view, lambda s=source, p=pin: self.engine.load_raw(s, p))
        return self.engine.run(statement, columns)

    def read(self, source: Source) -> DataFrame:
        """Return the rows that readers of a source see now: from its table, or computed."""
        if source.query is None:
            return self.engine.load_raw(source, self.pin(source))
        manifest = self.ledger.fetch_manifest(*self.settings.environments)
        snapshot = manifest.get(source.build_id) if source.persisted else None
        if snapshot is not None and (snapshot := self._readable(source, snapshot)) is not None:
            return self.engine.load_snapshot(snapshot)
        statement, read = self.statement(source.query, source.bindings, manifest)
        return self.load(statement, read, source.columns)

    # ------------------------------------------------------------------------------ building

    def build(self, source: Source, *, force: bool = False) -> Build:
        """Build a source, or reuse its table, and let readers see it.

        Raises
        ------
        PersistError
            It failed; readers see what they saw before.
        """
        with self.work(source, force=force) as work:
            self.publish(work)
            return work.build

    @contextmanager
    def work(self, source: Source, *, force: bool = False) -> Generator[Work]:
        """Do everything up to publication, which is the block's business: see `publish`.

        Raises
        ------
        CheckFailedError
            Its rows failed a blocking check.
        PersistError
            Something else failed; it is recorded.
        """
        with self._leased(source) as lease:
            world = self.world([source], is_whole)
            for upstream in self.project.inputs(source):
                if upstream.raw is not None:
                    self.pin(upstream)
            (step,) = plan(self.project, [source.source_id], world, force=force).steps
            present = step.snapshot
            table = present.table if present else self._table(source)
            self._tidy(table)
            build = Build(
                build_uid=uuid.uuid4().hex,
                source_id=source.source_id,
                build_id=source.build_id,
                definition=source.definition,
                environment=self.settings.environment,
                run_id=self.run_id,
                state="started",
                action="built" if step.action == "build" else "reused",
                started_at=self.clock(),
                digests=source.digests,
                reads=what_it_reads(self.project, source),
            )
            self.ledger.record_started(build, table)
            work = Work(source, step, build, lease, table)
            work.inputs = inputs(self.project, source, world) or ()
            with self._recorded(work):
                if present is not None:
                    # What it rests on may be newer, with the same rows (`planner.inputs`).
                    current_at = self._current_at(source, world, present)
                    self._reuse(work, replace(present, as_of=step.as_of, current_at=current_at))
                    work.inherited = self._is_inherited(work)
                else:
                    work.current_at = self._current_at(source, world)
                    self._compute(work, world)
                if any(not r.passed and r.blocking for r in work.checks):
                    raise _checks_failed(source, work.checks)
                yield work

    def _current_at(
        self, source: Source, world: World, present: Snapshot | None = None
    ) -> datetime:
        """Return when all that a build of a source reads was last known to be current.

        Parameters
        ----------
        present
            The snapshot that is reused: of data that does not tell whether it changed it holds
            what was so when it was read.
        """
        if present and any(v.version.startswith(UNVERSIONED) for v in present.as_of):
            return present.known_at
        tables = (world.readable(s) for s in self.project.inputs(source) if s.persisted)
        return min((self.started_at, *(t.known_at for t in tables if t)))

    def _table(self, source: Source) -> str:
        """Return the table that a build of `source` writes: none that others read.

        That is the one it wrote last in this environment, unless another one has taken it over.
        """
        name, others = self.settings.table_name(source.table), set[str]()
        own = self.ledger.find_snapshot(self.settings.environment, source.build_id)
        for environment, table in self.ledger.fetch_tables(source.build_id):
            if environment != self.settings.environment:
                others.add(table)
        tried = [*([own.table] if own else []), name, f"{name}-{self.settings.environment}"]
        free = (t for t in tried if t not in others)
        return next(free, f"{name}-{uuid.uuid4().hex[:8]}")

    def _is_inherited(self, work: Work) -> bool:
        """Whether readers of the environment see a snapshot already, in one that it reads."""
        environment, build_id = self.settings.environment, work.source.build_id
        own = self.ledger.find_snapshot(environment, build_id)
        seen = self.ledger.find_snapshot(environment, build_id, reads=self.settings.reads)
        return own != work.snapshot == seen

    def _leased(self, source: Source) -> AbstractContextManager[Lease]:
        holder = f"{self.run_id or 'a build'} on {socket.gethostname()}, process {os.getpid()}"
        return self.ledger.lease(f"build {source.build_id}", holder, over=self.over)

    @contextmanager
    def _recorded(self, work: Work) -> Generator[None]:
        """Record a build as failed, and remove its files, if the block does not publish it."""
        try:
            yield
            if work.state == "open":
                raise BuildError(f"`{work.source.name}` was built and not published")
        except BaseException as error:
            if isinstance(error, PersistError) and error.location is None:
                error.location = work.source.location
            if work.state == "open":
                told = str(error) if isinstance(error, Exception) else "interrupted"
                self.ledger.record_failed(work.build, told or type(error).__name__)
                root = self.settings.table_root(work.table)
                self._discard_uncommitted(root, work.build.build_uid)
            raise

    def park(self, source: Source, *, force: bool = False) -> Work:
        """Do everything up to publication, for `resume`; builds of this run see it at once.

        Raises
        ------
        PersistError
            It failed; that is recorded.
        """
        with self.work(source, force=force) as work:
            self._commit(work)
            work.state = "parked"
            with self._lock:
                self._parked[source.source_id] = work
        return work

    @contextmanager
    def resume(self, work: Work, *, force: bool = False) -> Generator[Work]:
        """Go on with a parked build: its publication is the block's business, as with `work`.

        Where somebody else has built it, or what it reads, meanwhile, it is built anew.

        Raises
        ------
        PersistError
            Something failed; it is recorded.
        """
        assert work.snapshot is not None
        with self._leased(work.source) as lease:
            usable = (
                self.ledger.is_under_way(work.build)
                and self._inputs(work.source) == work.inputs
                and is_whole(self.settings.table_root(work.table), work.snapshot)
            )
            try:
                if usable:
                    work.lease, work.state = lease, "open"
                    with self._recorded(work):
                        yield work
            finally:
                with self._lock:
                    del self._parked[work.source.source_id]
        if not usable:
            with self.work(work.source, force=force) as anew:
                yield anew

    def _inputs(self, source: Source) -> AsOf:
        return inputs(self.project, source, self.world([source])) or ()

    def abandon(self) -> None:
        """Record that what is parked will not be published."""
        with self._lock:
            parked, self._parked = self._parked, {}
        for work in parked.values():
            self.ledger.record_failed(work.build, "its run ended before its turn came")

    def _tidy(self, table: str) -> None:
        """Remove what dead builds of a table left behind."""
        with self._lock:
            alive = [w.build.build_uid for w in self._parked.values()]
        for build_uid in self.ledger.record_interrupted(table, alive=alive):
            log.info("action=tidy table=%s build=%s", table, build_uid)
            self._discard_uncommitted(self.settings.table_root(table), build_uid)

    def _discard_uncommitted(self, root: str, build_uid: str) -> None:
        """Delete the files of a build, unless a version of its table holds them."""
        delta = find_table(root)
        commits = delta.history() if delta is not None else []
        if not any(entry.get("persist.build") == build_uid for entry in commits):
            delete_directory(f"{root}/{build_uid}")

    def _reuse(self, work: Work, present: Snapshot) -> None:
        work.snapshot = present
        before = {c.name: c for c in self.ledger.fetch_checks(present.build_uid)}
        wanted = self._checks(work.source)
        known = all(c.name in before and before[c.name].definition == c.definition for c in wanted)
        if known and not any(_asks_the_clock(c) for c in wanted):
            work.checks = tuple(replace(before[c.name], blocking=c.blocking) for c in wanted)
        else:
            work.checks = self.engine.audit(present, wanted)

    def _checks(self, source: Source) -> tuple[Check, ...]:
        """Return the checks of a source, and those that guard its table for others it is of."""
        own = {c.definition for c in source.checks if c.blocking}
        sharing = (s for s in self.project.by_build_id[source.build_id] if s is not source)
        others = [
            replace(c, name=f"{other.key}:{c.name}")
            for other in sharing
            for c in other.checks
            if c.blocking and c.definition not in own
        ]
        return (*source.checks, *others)

    def _compute(self, work: Work, world: World) -> None:
        source, manifest = work.source, world.manifest
        assert source.query is not None
        guarded = unchecked(self.project, source, world)
        if guarded:
            names = ", ".join(f"`{s.key}`" for s in guarded)
            raise BuildError(
                f"`{source.name}` reads {names}, which is not built: its checks have not passed",
                hint=f"build what it reads too: persist build +{source.key}",
            )
        statement, read = self.statement(source.query, source.bindings, manifest)
        frame = self.load(statement, read, source.columns)
        same = (source, *self.project.by_build_id[source.build_id])
        work.staged, work.measured = self.engine.write(
            frame,
            work.table,
            work.build.build_uid,
            self._checks(source),
            next((s.annotation.time_column for s in same if s.annotation.time_column), None),
            source.name,
        )
        work.checks = work.measured.checks
        self._check_pins(statement.views)

    def _check_pins(self, leaves: Iterable[SourceID]) -> None:
        """Refuse rows that were computed while the files under them changed."""
        for source_id in leaves:
            source = self.project.by_id[source_id]
            if source.raw is None or source.raw.format == "delta" or self.pin(source).files is None:
                continue
            now = pin_raw(source.raw, self.settings.resolve(source.raw.location or ""))
            if now.version != self.pin(source).version:
                raise ConflictError(
                    f"the data of `{source.name}` changed while it was being read",
                    hint="run it again",
                )

    def publish(self, work: Work) -> Snapshot:
        """Commit what was written, if anything, and let readers see it.

        Raises
        ------
        ConflictError
            The lease was lost, or somebody else wrote to the table; nothing was published.
        """
        self._commit(work)
        assert work.snapshot is not None
        self.ledger.publish(
            work.build, work.snapshot, work.checks, lease=work.lease, moves=not work.inherited
        )
        work.state = "published"
        work.build = replace(
            work.build, state="succeeded", finished_at=self.clock(), snapshot=work.snapshot
        )
        export_manifest(self.settings, self.ledger)
        return work.snapshot

    def _commit(self, work: Work) -> None:
        """Make what was written a version of its table, once."""
        if work.snapshot is None and work.staged is not None and work.measured is not None:
            pinned = self.ledger.find_pinned_version(work.table)
            version = commit(work.staged, build_id=work.source.build_id, pinned=pinned)
            work.snapshot = Snapshot(
                build_uid=work.build.build_uid,
                source_id=work.source.source_id,
                build_id=work.source.build_id,
                table=work.table,
                version=version,
                as_of=drawn(work.step.as_of, work.source, work.build.build_uid),
                content=work.measured.content,
                rows=work.measured.rows,
                bytes=work.staged.bytes,
                built_at=self.clock(),
                columns=work.staged.columns,
                watermark=work.measured.watermark,
                inputs=work.inputs,
                current_at=work.current_at,
            )

    def write_frame(self, frame: DataFrame, root: str, name: str) -> tuple[Staged, int]:
        """Replace the content of a table that is no source's by rows; return its new version.

        Parameters
        ----------
        name
            Of what computes the rows, for messages.

        Raises
        ------
        PersistError
            It failed; the table is as it was.
        """
        uid = uuid.uuid4().hex
        with self.ledger.lease(f"table {root}", name), translated(f"computing {name}"):
            try:
                staged = self.engine.write_files(frame, root, uid)
                return staged, commit(staged, build_id="", pinned=None)
            except BaseException:
                self._discard_uncommitted(root, uid)
                raise


def _asks_the_clock(check: Check) -> bool:
    """Whether a check may have another answer later, on the same rows."""
    words = re.findall(r"\w+", (check.expression or "").lower())
    return not CLOCK.union(SPECIAL_DATETIMES).isdisjoint(words)


def _checks_failed(source: Source, results: Sequence[CheckResult]) -> CheckFailedError:
    failed = [r for r in results if not r.passed and r.blocking]
    said = ", ".join(f"{r.name} ({r.failed_rows} rows)" for r in failed)
    message = f"`{source.name}` failed {said}; it was not published"
    return CheckFailedError(message, results=results, location=source.location)
