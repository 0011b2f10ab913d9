"""Temporary tables: sources with `materialized=temporary`, computed once per run and then deleted.

They lie below the warehouse in a directory of the run, under a lease that the run holds: the
garbage collector deletes directories whose run is gone.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

from persist_assets.building.set_checks import bound, check_columns, check_results, failure
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.planning.inputs import inputs
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.files import delete_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import AsOf
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.world import World

TEMPORARY = ".temporary"
"""The directory of a warehouse with the temporary tables of runs, by ledger and lease."""


def temporary_lease(token: str) -> str:
    """Return the name of the lease that a run holds while it needs its temporary tables."""
    return f"temporary {token}"


class TemporaryTables:
    """The temporary tables of one run.

    Parameters
    ----------
    holder
        The holder's name in the lease.
    """

    def __init__(self, reader: Reader, holder: str) -> None:
        self._reader, self._holder = reader, holder
        self._lock = threading.Lock()
        self._locks: dict[SourceID, threading.Lock] = {}
        self._tables: dict[SourceID, Snapshot] = {}
        self._used: dict[str, frozenset[str]] = {}
        self._root: str | None = None
        self._closing = ExitStack()

    def compute(
        self, bindings: Sequence[SourceID], world: World, *, checked: bool = False
    ) -> dict[SourceID, Snapshot]:
        """Return the temporary tables that a query reads; compute those that are not there yet.

        Parameters
        ----------
        checked
            Only those with blocking checks.

        Raises
        ------
        CheckFailedError
            The rows of a table failed a blocking check.
        """
        project = self._reader.project
        tables: dict[SourceID, Snapshot] = {}
        reached = project.reach(bindings, lambda s: s.persisted and world.readable(s) is not None)
        for source in reached:
            if not source.temporary or (checked and not any(c.blocking for c in source.checks)):
                continue
            rests_on = inputs(project, source, world)
            with self._lock:
                lock = self._locks.setdefault(source.source_id, threading.Lock())
            with lock:
                table = self._tables.get(source.source_id)
                if table is None or table.inputs != rests_on:
                    table = self._compute(source, world, tables, rests_on or ())
                    self._tables[source.source_id] = table
            tables[source.source_id] = table
        return tables

    def used(self, read: Mapping[SourceID, Snapshot]) -> frozenset[str]:
        """Return the snapshots that rows are computed from, including those below temporary tables.

        Parameters
        ----------
        read
            The snapshots that the query reads.
        """
        uids = {s.build_uid for s in read.values()}
        return frozenset(uids.union(*(self._used.get(uid, ()) for uid in uids)))

    def close(self) -> None:
        """Delete the tables, and give the lease back."""
        self._closing.close()
        self._tables, self._root = {}, None

    def _compute(
        self, source: Source, world: World, tables: Mapping[SourceID, Snapshot], rests_on: AsOf
    ) -> Snapshot:
        reader = self._reader
        below = reader.reading(source.bindings, world.manifest, tables, world.expired)
        # Copies of external tables may lack rows that its checks need.
        read = reader.routed([source.source_id], below) if source.checks else below
        frame = reader.compute(source, read)
        build_uid = uuid.uuid4().hex
        self._used[build_uid] = self.used(below)
        table = f"{self._directory()}/{source.name}-{build_uid[:12]}"
        checks = bound(source.checks, reader.observer.clock())
        columns = reader.engine.columns(frame, source.name)
        check_columns(source, checks, columns, None)
        alone = [c for c in checks if c.alone]
        staged, measured = reader.engine.write(frame, table, build_uid, alone, None, source.name)
        results = check_results(
            reader,
            source,
            checks,
            measured.checks,
            lambda: reader.staged_rows(staged),
            world.manifest,
        )
        if any(not r.passed and r.blocking for r in results):
            raise failure(source, results)
        reader.check_unchanged(reader.leaves(source.bindings, read))
        version = commit(staged, build_id=source.build_id, pinned=None)
        return Snapshot(
            build_uid=build_uid,
            source_id=source.source_id,
            build_id=source.build_id,
            table=table,
            version=version,
            as_of=(),
            content=measured.content,
            rows=measured.rows,
            bytes=staged.bytes,
            built_at=reader.observer.clock(),
            columns=staged.columns,
            inputs=rests_on,
        )

    def location(self) -> str:
        """Return the location of the run's directory, which its lease protects."""
        return self._reader.settings.table_root(self._directory())

    def _directory(self) -> str:
        """Return the run's directory, which its lease protects."""
        reader = self._reader
        with self._lock:
            if self._root is None:
                token = uuid.uuid4().hex
                lease = reader.ledger.leases.hold(temporary_lease(token), self._holder)
                self._closing.enter_context(lease)
                name = f"{TEMPORARY}/{reader.ledger.events.log_id()}/{token}"
                root = reader.settings.table_name(name)
                self._closing.callback(delete_directory, reader.settings.table_root(root))
                self._root = root
            return self._root
