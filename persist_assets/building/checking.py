"""The checks of one build, and their results for written or reused rows."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.building.partition_checks import Parted
from persist_assets.building.set_checks import (
    bound,
    check_columns,
    check_results,
    reads_clock,
    reused_results,
)
from persist_assets.building.view_checks import ViewChecks
from persist_assets.core.errors import PersistError
from persist_assets.core.model.checks import CheckResult
from persist_assets.core.partitions import filled_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.reader import Reader
    from persist_assets.building.stages import Computed, PendingBuild
    from persist_assets.building.strategies.temporary import TemporaryTables
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import Partitions, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.world import World

log = logging.getLogger(__name__)


class Checking:
    """Runs the checks of builds.

    Parameters
    ----------
    changing
        Tables may get other columns, whatever ``on_schema_change`` says.
    temporary
        The temporary tables that views may read.
    """

    def __init__(
        self, reader: Reader, temporary: TemporaryTables, *, changing: bool = False
    ) -> None:
        self.reader, self.changing = reader, changing
        self._views = ViewChecks(reader, temporary)
        self.settings, self.project = reader.settings, reader.project
        self.ledger, self.engine = reader.ledger, reader.engine

    def checks_of(self, source: Source) -> tuple[Check, ...]:
        """Return the checks of a source, and blocking ones of other sources with its table."""
        definitions = {c.definition for c in source.checks if c.blocking}
        sharing = (s for s in self.project.by_build_id[source.build_id] if s is not source)
        others = [
            replace(c, name=f"{other.key}:{c.name}", keep_failures=0)
            for other in sharing
            for c in other.checks
            if c.blocking and c.definition not in definitions
        ]
        return bound((*source.checks, *others), self.reader.observer.clock())

    def check_columns(
        self, source: Source, checks: Sequence[Check], columns: Sequence[Column]
    ) -> None:
        """Raise if columns differ from those promised or published; see `set_checks`."""
        check_columns(source, checks, columns, self._published(source))

    def check_views(self, source: Source, world: World) -> tuple[CheckResult, ...]:
        """Return the results of the checks of the views that a build reads; see `ViewChecks`."""
        return self._views.check(source, world, {})

    def ask(
        self,
        work: PendingBuild,
        computed: Computed,
        world: World,
        checks: Sequence[Check],
        frame: DataFrame,
    ) -> tuple[CheckResult, ...]:
        """Return the results of all checks of rows that are written.

        Parameters
        ----------
        frame
            The rows of a view, which are not written.
        """
        source, staged = work.source, computed.staged

        def written() -> DataFrame:
            return self.reader.staged_rows(staged) if staged else frame

        def every() -> DataFrame:
            return self.reader.staged_rows(staged, computed.kept_files) if staged else frame

        results = check_results(
            self.reader,
            source,
            checks,
            computed.measured.checks,
            every,
            world.manifest,
            self._parted(work, world, work.step.partitions, written),
        )
        guards = _passed(self.project.guards(source))
        return (*results, *guards, *self.check_views(source, world))

    def recheck(
        self, work: PendingBuild, present: Snapshot, world: World
    ) -> tuple[CheckResult, ...]:
        """Return the results for an existing table; run the checks whose results may have changed.

        Raises
        ------
        CheckFailedError, BuildError
            Its columns differ from those promised or published.
        """
        source, reader = work.source, self.reader
        before = {c.name: c for c in self.ledger.builds.fetch_checks(present.build_uid)}
        checks = self.checks_of(source)
        columns = present.columns or self.engine.columns(
            reader.load_snapshot(present), present.table
        )
        self.check_columns(source, checks, columns)
        results = self._reused(source, checks, before, world.manifest)
        if results is None:
            rows = reader.load_snapshot(present)
            alone = self.engine.audit(rows, [c for c in checks if c.alone], present.table)
            parted = self._parted(work, world, present.partitions, lambda: rows)
            results = check_results(
                reader, source, checks, alone, lambda: rows, world.manifest, parted
            )
        guards = _passed(self.project.guards(source))
        return (*results, *guards, *self._views.check(source, world, before))

    def has_passed(
        self, source: Source, present: Snapshot, manifest: Mapping[BuildID, Snapshot]
    ) -> bool:
        """Whether an existing table has passed all checks of its source, and they need not run."""
        checks = self.checks_of(source)
        results = self.ledger.builds.fetch_checks(present.build_uid) if checks else ()
        before = {r.name: r for r in results}
        try:
            self.check_columns(source, checks, present.columns)
            results = self._reused(source, checks, before, manifest)
        except PersistError:
            return False  # the build reports it
        return results is not None and all(r.passed and r == before[r.name] for r in results)

    def _reused(
        self,
        source: Source,
        checks: Sequence[Check],
        before: Mapping[str, CheckResult],
        manifest: Mapping[BuildID, Snapshot],
    ) -> tuple[CheckResult, ...] | None:
        """Return the results of checks that ran on the same rows; None: they have to run again."""
        if any(reads_clock(c) for c in checks):
            return None
        return reused_results(self.reader, source, checks, before, manifest)

    def has_new_guards(self, source: Source, present: Snapshot) -> bool:
        """Whether checks of temporary tables below a table did not run when it was built."""
        guards = self.project.guards(source)
        if not guards:
            return False
        before = {c.name: c for c in self.ledger.builds.fetch_checks(present.build_uid)}
        return any(
            c.name not in before or before[c.name].definition != c.definition for c in guards
        )

    def _published(self, source: Source) -> Snapshot | None:
        """Return the snapshot that readers of a source get now, of whatever BuildID."""
        if source.annotation.on_schema_change == "sync" or self.changing:
            return None
        current = self.ledger.builds.fetch_current(
            *self.settings.environments, source_id=source.source_id
        )
        build = current.get(source.source_id)
        return build.snapshot if build else None

    def _parted(
        self,
        work: PendingBuild,
        world: World,
        partitions: Partitions | None,
        load: Callable[[], DataFrame],
    ) -> Parted | None:
        """Return the partitions whose rows a build checks; None of an unpartitioned source.

        Parameters
        ----------
        partitions
            The partitions of its table.
        load
            Returns the rows of the partitions that are computed; for a reused table, all rows.
        """
        source, base, keys = work.source, work.step.base, work.step.keys
        partition = source.annotation.partition
        if partition is None or partitions is None:
            return None
        order = world.keys[source.source_id]
        filled = filled_keys(order, partitions.filled)
        before: dict[str, CheckResult] = {}
        if work.snapshot is None and base is not None:
            before = {c.name: c for c in self.ledger.builds.fetch_checks(base.build_uid)}
        every = tuple(key for key in order if key in filled)
        computed = every if base is None or work.snapshot is not None else keys or ()
        return Parted(partition, every, computed, before, load, self.settings.timezone.key)


def _passed(checks: Iterable[Check]) -> tuple[CheckResult, ...]:
    return tuple(CheckResult(c.name, True, c.blocking, 0, c.definition) for c in checks)
