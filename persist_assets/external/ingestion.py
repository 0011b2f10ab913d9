"""Copies of external tables: what programs need of them, held here and kept as the tables change.

    needs of all environments ─► what is held ⊇ what is needed
        grow     rows and columns that are needed and not held, at the version that is held
        follow   what became since of the rows that are held
        retire   rows that nobody needs any more, in batches

Each step is one commit to the copy's own Delta table, which the ledger then records with what the
copy holds: a process that dies in between leaves a commit that the next one undoes. The invariant:
a copy holds exactly the rows of its predicate, at its version, and of these the needed columns.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.core.errors import BuildError, StorageError, UnapprovedError
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.protocol import Pruned
from persist_assets.external.coverage import (
    AHEAD,
    Ahead,
    Brought,
    Coverage,
    Pending,
    copy_id,
    copy_root,
    version_of,
)
from persist_assets.external.sync import Run, Sync, alternatives, changes_between, unfollowed
from persist_assets.storage.delta_tables import file_sizes, find_table
from persist_assets.storage.raw import Pin, file_location

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.external.connectors.protocol import Connector
    from persist_assets.ledger.copies import Wanted
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)


class Ingestion:
    """Brings copies of a project's external tables up to date, and reads them.

    Parameters
    ----------
    now
        What the clock says to all that is read in a run, aware.
    engine
        Reads and writes rows; None: this only looks at what there is.
    """

    def __init__(
        self,
        settings: Settings,
        project: Project,
        ledger: Ledger,
        now: datetime,
        engine: Engine | None = None,
    ) -> None:
        self.settings, self.project, self.ledger = settings, project, ledger
        self.now = now
        self._engine = engine
        self.brought: dict[str, Brought] = {}
        """By copy, what was read and written for it so far."""

    def connector(self, source: Source) -> Connector:
        """Return how an external table is reached."""
        assert source.raw is not None
        place = self.settings.resolve(source.raw.location or "")
        zone = self.settings.timezone
        return connect(source.raw, place, source.columns, lambda: self.engine.session, zone)

    @property
    def engine(self) -> Engine:
        """The engine.

        Raises
        ------
        BuildError
            There is none: see `Ingestion`.
        """
        if self._engine is None:
            raise BuildError("only builds read rows of external tables")
        return self._engine

    def root(self, copy_id: str) -> str:
        """Return the directory of a copy's table."""
        return copy_root(self.settings, copy_id)

    def find(self, source: Source) -> LocalCopy | None:
        """Return what is held of an external table, None where nothing is."""
        return self.ledger.find_copy(copy_id(self.settings, source))

    def pin(self, copy: LocalCopy) -> Pin:
        """Return the files of a copy."""
        root = self.root(copy.copy_id)
        table = find_table(root, copy.committed)
        if table is None:
            raise StorageError(
                f"the copy of an external table is gone from {root}",
                hint="fetch it again: persist external sync --again",
            )
        files = sorted(file_location(path, root) for path in file_sizes(table))
        return Pin(version_of(copy, copy.committed), tuple(files), root)

    # ---------------------------------------------------------------------------- what is needed

    def needs(self, source: Source) -> set[tuple[str, tuple[str, ...]]]:
        """Return which predicates and columns this program needs of an external table."""
        own = copy_id(self.settings, source)
        sharing = {
            s.source_id: s.external
            for s in self.project.sources
            if s.external and copy_id(self.settings, s) == own
        }
        every = tuple(sorted(c.name for c in source.columns))
        found: set[tuple[str, tuple[str, ...]]] = set()
        for need in self.project.needs:
            external = sharing.get(need.table)
            if external is None:
                continue
            whole = not external.starts_anywhere  # else it cannot be brought later
            columns = {*need.columns, *external.key}
            if external.timestamp_column is not None:
                columns.add(external.timestamp_column)
            named = every if whole or not external.skip_unused_columns else tuple(sorted(columns))
            found.add((p.as_text(p.TRUE) if whole else need.predicate, named))
        return found

    def coverage(self, needs: Iterable[tuple[str, tuple[str, ...]]]) -> Coverage:
        """Return what is needed now, of what programs say."""
        given = [*needs]
        return Coverage(
            {text: self.closed(p.from_text(text)) for text, _ in given},
            tuple(sorted({c for _, columns in given for c in columns})),
        )

    def closed(self, term: Term) -> Term:
        """Return a predicate without a clock that holds all rows of another, for a while."""
        return p.evaluated_within(term, self.now, self.now + AHEAD, self.settings.timezone)

    def covers(self, copy: LocalCopy, predicate: Term, columns: Iterable[str]) -> bool:
        """Whether a copy certainly holds what is needed."""
        if copy.format != p.FORMAT or not {*columns} <= {*copy.columns}:
            return False
        return p.implies(p.from_text(copy.predicate), predicate)

    def pending(self, source: Source) -> Pending:
        """Return what bringing the copy of an external table up to date would do. Reads no rows.

        Raises
        ------
        StorageError
            The table cannot be reached, or not be read.
        """
        held, connector = self.find(source), self.connector(source)
        head = connector.pin(held.version if held else None)
        found = self._pending(held, self._wanted(source, self.needs(source)), head)
        if held is None or not found.is_new or held.format != p.FORMAT:
            return found
        return replace(found, is_new=not connector.is_same(held.version, head))

    def is_same(self, source: Source, since: str, until: str) -> bool:
        """Whether a version of an external table certainly has the rows of an earlier one."""
        return self.connector(source).is_same(since, until)

    def _wanted(self, source: Source, own: Iterable[Wanted]) -> Coverage:
        """Return what all environments need of an external table, this one what is given."""
        told = self.ledger.fetch_needs(copy_id(self.settings, source))
        told[self.settings.environment] = p.FORMAT, tuple(own)
        # What another release says in its own words may be all rows.
        return self.coverage(
            (text if version == p.FORMAT else p.as_text(p.TRUE), columns)
            for version, needs in told.values()
            for text, columns in needs
        )

    def _pending(self, held: LocalCopy | None, wanted: Coverage, head: str) -> Pending:
        if held is None or held.format != p.FORMAT:
            needed = wanted.predicate
            return Pending(head, needed, wanted.columns, needed, held is None, needed)
        columns = tuple(sorted({*held.columns, *wanted.columns}))
        has = p.from_text(held.predicate)
        # Alternatives that are held need no file to be looked at.
        more = p.some(w for w in alternatives(wanted.predicate) if not p.implies(has, w))
        missing = unheld = p.difference(more, has)
        if len(columns) > len(held.columns):
            missing = p.union((has, wanted.predicate))
        return Pending(head, missing, columns, wanted.predicate, head != held.version, unheld)

    def ahead(self, source: Source, held: LocalCopy | None, pending: Pending) -> Ahead:
        """Return what would be read to bring a copy up to date. Reads no rows, starts no Spark.

        Raises
        ------
        GoneError
            The version that rows are missing of is gone.
        StorageError
            The table cannot be read, or not be followed.
        """
        is_first = held is None or held.format != p.FORMAT
        if pending.missing == p.FALSE and (is_first or not pending.is_new):
            return Ahead(Pruned())
        connector, external = self.connector(source), source.external
        assert external is not None
        if held is None or is_first:
            since, predicate = connector.start() or pending.version, pending.wanted
        else:
            # What has the same rows is followed before more is read of it.
            since = held.version if pending.is_new else pending.version
            predicate = p.from_text(held.predicate)
            if pending.missing != p.FALSE:
                predicate = p.union((predicate, pending.wanted))
        read = Pruned()
        if pending.missing != p.FALSE and not (is_first and external.mode == "follow"):
            read += connector.prune(p.as_condition(pending.missing), since)
        most = read.bytes
        if since == pending.version:
            return Ahead(read, None, most)
        wanted = p.as_text(predicate), pending.columns
        found = changes_between(connector, source, since, pending.version, *wanted)
        if found.again is None:
            return Ahead(read + found.read, None, most)
        if not external.starts_anywhere:
            raise unfollowed(source, pending.version, found.again)
        whole = connector.prune(p.as_condition(pending.wanted), pending.version)
        return Ahead(read + whole, found.again, max(most, whole.bytes))

    # ---------------------------------------------------------------------------------- bringing

    def sync(self, source: Source, *, again: bool = False, approved: bool = False) -> LocalCopy:
        """Bring the copy of an external table up to date, and return what it holds then.

        Parameters
        ----------
        again
            Read all of it anew.
        approved
            However much that takes to read (`settings.approve_above`).

        Raises
        ------
        StorageError
            The table cannot be read, or breaks its primary key. What was held is held.
        GoneError
            The version that is held is gone, and rows of it are needed.
        UnapprovedError
            More would be read of a version than may be. What was held is held.
        """
        own, external = copy_id(self.settings, source), source.external
        assert external is not None
        holder = f"a build on {socket.gethostname()}, process {os.getpid()}"
        with self.ledger.lease(f"copy {own}", holder):
            needs, environment = self.needs(source), self.settings.environment
            version, needed = self.ledger.fetch_needs(own).get(environment, (p.FORMAT, ()))
            self.ledger.record_needs(own, environment, needs)
            wanted = self._wanted(source, needs)
            held = self.ledger.find_copy(own)
            connector = self.connector(source)
            head = connector.pin(None if again or held is None else held.version)
            run = Run(self.settings, self.ledger, self.engine, self.now, self.brought)
            task = Sync(run, source, connector, own, wanted, approved=approved)
            try:
                if held is None or again or held.format != p.FORMAT:
                    held = task.begin(held, None if again else connector.start(), head)
                else:
                    # Of an earlier version with the same rows the files may be gone.
                    if head != held.version and connector.is_same(held.version, head):
                        held = task.follow(held, head)
                    held = task.grow(held, self._pending(held, wanted, head))
                if head != held.version:
                    held = task.follow(held, head)
            except UnapprovedError:
                # Else it would be asked of all other environments too.
                if version == p.FORMAT:
                    self.ledger.record_needs(own, environment, needed)
                raise
            return task.retire(held)
