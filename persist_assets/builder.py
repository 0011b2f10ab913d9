"""The loop: plan → builds in order → publication. Serves Dagster, the CLI and tests alike.

One build of one source, all under a lease on its BuildID:

    plan again ─► write files ─► measure and check ─► commit to Delta ─► publish in the ledger
                                                                       └► export the manifest

Until the last step readers see what they saw before. A process that dies anywhere leaves at
worst files that no version holds, or a version that no manifest names; the next build of the
source takes the lease over, puts the table right and starts again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from filelock import FileLock

from persist_assets.errors import (
    BuildError,
    CheckFailedError,
    ConflictError,
    StorageError,
    StrictError,
)
from persist_assets.ledger.store import export_manifest
from persist_assets.model import Build, CheckResult, Kind, Snapshot
from persist_assets.planner import UNVERSIONED, World, drawn, plan
from persist_assets.storage.raw import pin_raw
from persist_assets.storage.tables import (
    commit,
    discard,
    find_table,
    has_version,
    read_version,
    root_of,
)
from persist_assets.substitution import substitute

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.engine import Engine, Measured
    from persist_assets.ledger.store import Lease, Ledger
    from persist_assets.model import BuildID, Plan, Project, Query, Source, SourceID, Step
    from persist_assets.settings import Settings
    from persist_assets.storage.raw import Pin
    from persist_assets.storage.tables import Staged
    from persist_assets.substitution import Statement

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Work:
    """A build under way, up to and excluding its publication.

    Attributes
    ----------
    snapshot
        What will be published: of a reused table at once, of a built one after its commit.
    checks
        What came of the checks; none that blocks has failed.
    """

    source: Source
    step: Step
    build: Build
    lease: Lease
    table: str
    checks: tuple[CheckResult, ...] = ()
    snapshot: Snapshot | None = None
    staged: Staged | None = None
    measured: Measured | None = None
    published: bool = False


class ChecksFailed(CheckFailedError):
    """The rows of a build failed a blocking check; carries what came of every check."""

    def __init__(self, source: Source, results: Sequence[CheckResult]) -> None:
        failed = [r for r in results if not r.passed and r.blocking]
        said = ", ".join(f"{r.name} ({r.failed_rows} rows)" for r in failed)
        super().__init__(
            f"`{source.name}` failed {said}; it was not published", location=source.location
        )
        self.results = tuple(results)


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
    clock
        Returns the present instant, aware.
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
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings, self.project, self.ledger, self.engine = settings, project, ledger, engine
        self.run_id = run_id
        self.fed = frozenset(fed)
        self.clock = clock
        self.started_at = clock()
        self._pins: dict[SourceID, Pin] = {}
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
                    if other.kind is Kind.RAW and other.source_id not in self.fed:
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
            if required:
                raise StorageError(
                    f"`{source.name}`: {error.message}", hint=error.hint, location=source.location
                ) from error
            return
        if pin.version is None:
            pin = replace(pin, version=f"{UNVERSIONED}{self.started_at.isoformat()}")
        self._pins[source.source_id] = pin

    def world(self, sources: Iterable[Source], *, look_for_tables: bool = True) -> World:
        """Return all that a plan of `sources` has to know."""
        manifest = self.ledger.fetch_manifest(self.settings.environment)
        versions: dict[SourceID, str] = {}
        missing: set[BuildID] = set()
        stack = [*sources]
        seen: set[SourceID] = set()
        while stack:
            source = stack.pop()
            if source.source_id in seen:
                continue
            seen.add(source.source_id)
            if source.kind is Kind.RAW:
                versions[source.source_id] = self.pin(source).version or ""
                continue
            snapshot = manifest.get(source.build_id)
            if snapshot and look_for_tables:
                root = root_of(self.settings.warehouse, snapshot.table)
                if not has_version(root, snapshot.version):
                    missing.add(source.build_id)
            stack += self.project.inputs(source)
        day = self.started_at.astimezone(ZoneInfo(self.settings.timezone)).date().isoformat()
        return World(
            environment=self.settings.environment,
            manifest=manifest,
            versions=versions,
            day=day,
            instant=self.started_at.isoformat(),
            history=self.ledger.fetch_last_builds(self.settings.environment),
            missing=missing,
        )

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
        """
        views: dict[SourceID, str] = {}
        read: dict[SourceID, Snapshot] = {}
        missing: list[Source] = []
        stack = [*bindings]
        seen: set[SourceID] = set()
        while stack:
            source = self.project.by_id[stack.pop()]
            if source.source_id in seen:
                continue
            seen.add(source.source_id)
            snapshot = manifest.get(source.build_id) if source.persisted else None
            if source.kind is Kind.RAW:
                views[source.source_id] = f"{source.key}@{self.pin(source).version}"
            elif snapshot is not None:
                views[source.source_id] = f"{snapshot.table}@v{snapshot.version}"
                read[source.source_id] = snapshot
            else:
                if source.persisted:
                    missing.append(source)
                stack += source.bindings
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
        for source_id in statement.leaves:
            source = self.project.by_id[source_id]
            if source_id in read:
                snapshot = read[source_id]
                name = f"{snapshot.table}@v{snapshot.version}"
                self.engine.view(name, lambda s=snapshot: self.engine.load_snapshot(s))
            else:
                pin = self.pin(source)
                name = f"{source.key}@{pin.version}"
                self.engine.view(name, lambda s=source, p=pin: self.engine.load_raw(s, p))
        return self.engine.run(statement, columns)

    def read(self, source: Source) -> DataFrame:
        """Return the rows that readers of a source see now: from its table, or computed."""
        if source.kind is Kind.RAW:
            return self.engine.load_raw(source, self.pin(source))
        snapshot = self.ledger.find_snapshot(self.settings.environment, source.build_id)
        if snapshot is not None:
            return self.engine.load_snapshot(snapshot)
        assert source.query is not None
        manifest = self.ledger.fetch_manifest(self.settings.environment)
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
        ChecksFailed
            Its rows failed a blocking check.
        PersistError
            Something else failed; it is recorded.
        """
        holder = f"{self.run_id or 'a build'} on {socket.gethostname()}, process {os.getpid()}"
        with self.ledger.lease(f"build {source.build_id}", holder) as lease:
            step = plan(self.project, [source.source_id], self.world([source]), force=force).steps[
                0
            ]
            present = self.ledger.find_snapshot(self.settings.environment, source.build_id)
            table = present.table if present else source.table
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
            )
            self.ledger.record_started(build, table)
            work = Work(source, step, build, lease, table)
            try:
                if step.action == "reuse" and present is not None:
                    self._reuse(work, present)
                else:
                    self._compute(work)
                if any(not r.passed and r.blocking for r in work.checks):
                    raise ChecksFailed(source, work.checks)
                yield work
                if not work.published:
                    raise BuildError(f"`{source.name}` was built and not published")
            except BaseException as error:
                if not work.published:
                    self.ledger.record_failed(build, str(error) or type(error).__name__)
                    self._discard_uncommitted(table, build.build_uid)
                raise

    def _tidy(self, table: str) -> None:
        """Remove what dead builds of a table left behind."""
        for build_uid in self.ledger.record_interrupted(table):
            log.info("action=tidy table=%s build=%s", table, build_uid)
            self._discard_uncommitted(table, build_uid)

    def _discard_uncommitted(self, table: str, build_uid: str) -> None:
        """Delete the files of a build, unless a version of its table holds them."""
        root = root_of(self.settings.warehouse, table)
        delta = find_table(root)
        commits = delta.history() if delta is not None else []
        if not any(entry.get("persist.build") == build_uid for entry in commits):
            discard(root, build_uid)

    def _reuse(self, work: Work, present: Snapshot) -> None:
        read_version(root_of(self.settings.warehouse, present.table), present.version)
        work.snapshot = present
        before = {c.name: c for c in self.ledger.fetch_checks(present.build_uid)}
        wanted = work.source.annotation.checks
        if all(c.name in before and before[c.name].definition == c.definition for c in wanted):
            work.checks = tuple(replace(before[c.name], blocking=c.blocking) for c in wanted)
        else:
            work.checks = self.engine.audit(present, wanted)

    def _compute(self, work: Work) -> None:
        source = work.source
        assert source.query is not None
        manifest = self.ledger.fetch_manifest(self.settings.environment)
        statement, read = self.statement(source.query, source.bindings, manifest)
        frame = self.load(statement, read, source.columns)
        annotation = source.annotation
        work.staged, work.measured = self.engine.write(
            frame, work.table, work.build.build_uid, annotation.checks, annotation.time_column
        )
        work.checks = work.measured.checks
        self._check_pins(statement.leaves)

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
        if work.staged is not None and work.measured is not None:
            pinned = self.ledger.find_pinned_version(work.table)
            version = commit(work.staged, build_id=work.source.build_id, pinned=pinned)
            struct_columns = read_version(work.staged.root, version).columns
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
                columns=struct_columns,
                watermark=work.measured.watermark,
            )
        assert work.snapshot is not None
        environment = self.settings.environment
        self.ledger.publish(
            environment, [(work.build, work.snapshot, work.checks)], lease=work.lease
        )
        work.published = True
        work.build = replace(
            work.build, state="succeeded", finished_at=self.clock(), snapshot=work.snapshot
        )
        self.export_manifest()
        return work.snapshot

    # ------------------------------------------------------------------------------ manifest

    def manifest_entries(self) -> dict[BuildID, dict[str, Any]]:
        """Return the environment's manifest as Malloy writes it, with more that we know."""
        entries: dict[BuildID, dict[str, Any]] = {}
        for build_id, snapshot in self.ledger.fetch_manifest(self.settings.environment).items():
            root = root_of(self.settings.warehouse, snapshot.table)
            entries[build_id] = {
                "tableName": f"delta.`{root}@v{snapshot.version}`",
                "sourceId": snapshot.source_id,
                "path": root,
                "version": snapshot.version,
                "rows": snapshot.rows,
                "builtAt": snapshot.built_at.isoformat(),
            }
        return entries

    def export_manifest(self) -> None:
        """Write the environment's manifest to its file; the last state always wins."""
        path = self.settings.manifest_path
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # so that no older state is written after a newer one
            export_manifest(path, self.manifest_entries(), strict=self.settings.strict)


def snapshot_root(settings: Settings, snapshot: Snapshot) -> str:
    """Return the directory of a snapshot's table."""
    return root_of(settings.warehouse, snapshot.table)
