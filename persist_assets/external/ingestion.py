"""Copies of external tables: the rows that programs need, kept up to date.

    needs of all environments ─► rows held ⊇ rows needed
    grow     add missing rows and columns, at the copy's version
    follow   apply the changes since then to the copy's rows
        retire   delete rows that are no longer needed, in batches

Each step is one commit to the copy's own Delta table, which the ledger then records. If a process
dies in between, the next sync undoes the commit. The invariant: a copy holds exactly the rows of
its predicate, at its version, with the needed columns.
"""

from __future__ import annotations

import logging
import os
import socket
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.core.errors import (
    BuildError,
    ColumnsError,
    EarlierColumnsError,
    GoneError,
    StorageError,
)
from persist_assets.core.tracing import spanned
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
    find_copy_ids,
    growth_of,
    version_of,
    widened,
)
from persist_assets.external.sync import Run, Sync, alternatives, changes_between, unfollowed
from persist_assets.storage.delta_tables import file_sizes, find_table
from persist_assets.storage.files import delete_directory
from persist_assets.storage.raw import Pin, file_location

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from datetime import datetime

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.external.connectors.protocol import Connector
    from persist_assets.ledger.copies import Need
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)

STAGED = ".fetched"
"""The suffix that turns a copy's directory into that of its fetched rows."""
_OTHER_COLUMNS = "its columns changed"
"""Why an earlier version without the declared columns is not read."""


class Ingestion:
    """Brings copies of a project's external tables up to date, and reads them.

    Parameters
    ----------
    now
        The time of the run, aware; predicates that read the clock are evaluated at it.
    engine
        Reads and writes rows; None: only metadata is read.
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
        """The amounts read and written so far, by copy."""

    @contextmanager
    def connected(self, source: Source) -> Generator[Connector]:
        """Yield the connector of an external table, and close it."""
        with closing(self.connector(source)) as connector:
            yield connector

    def connector(self, source: Source) -> Connector:
        """Return the connector of an external table; who uses it closes it."""
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

    def copy_id(self, source: Source) -> str:
        """Return the id of the copy of an external table; a run stays with it."""
        return self._copy_ids.get(source.source_id) or copy_id(self.settings, source)

    @cached_property
    def _copy_ids(self) -> dict[SourceID, str]:
        return find_copy_ids(self.settings, self.project.sources, self.ledger.copies)

    def root(self, copy_id: str) -> str:
        """Return the directory of a copy's table."""
        return copy_root(self.settings, copy_id)

    def find(self, source: Source) -> LocalCopy | None:
        """Return the copy of an external table; None: there is none."""
        copy = self.ledger.copies.find(self.copy_id(source))
        assert source.external is not None
        if copy is None or copy.format == p.FORMAT or source.external.starts_anywhere:
            return copy
        # Its rows cannot be read again, and such copies have no predicate besides TRUE.
        return replace(copy, format=p.FORMAT, predicate=p.as_text(p.TRUE))

    def pin(self, copy: LocalCopy) -> Pin:
        """Return the files of a copy.

        Raises
        ------
        StorageError
            Its table is gone.
        """
        root = self.root(copy.copy_id)
        table = find_table(root, copy.committed)
        if table is None:
            raise StorageError(
                f"the copy of an external table is gone from {root}",
                hint="fetch it again: persist external sync --again",
            )
        sizes = file_sizes(table)
        files = sorted(file_location(path, root) for path in sizes)
        size = sum(sizes.values())
        return Pin(version_of(copy, copy.committed), tuple(files), root, bytes=size)

    # ------------------------------------------------------------------------------------- needs

    def needs(self, source: Source) -> set[tuple[str, tuple[str, ...]]]:
        """Return the predicates and columns of an external table that this program needs."""
        sharing = {s.source_id: s for s in self._sharing(source)}
        needed: set[tuple[str, tuple[str, ...]]] = set()
        for need in self.project.needs:
            table = sharing.get(need.table)
            if table is None or table.external is None:
                continue
            external, every = table.external, tuple(sorted(c.name for c in table.columns))
            whole = not external.starts_anywhere  # rows left out now cannot be read later
            columns = {*need.columns, *external.key}
            if external.timestamp_column is not None:
                columns.add(external.timestamp_column)
            # Without a column, changes could not be applied.
            columns = columns or {c.name for c in table.columns[:1]}
            named = every if whole or not external.skip_unused_columns else tuple(sorted(columns))
            needed.add((p.as_text(p.TRUE) if whole else need.predicate, named))
        return needed

    def _sharing(self, source: Source) -> list[Source]:
        """Return the external tables of the project that use one copy."""
        key = self.copy_id(source)
        return [s for s in self.project.sources if s.external and self.copy_id(s) == key]

    def coverage(self, needs: Iterable[tuple[str, tuple[str, ...]]]) -> Coverage:
        """Return the rows and columns that needs stand for now."""
        pairs = [*needs]
        return Coverage(
            {text: self.closed(p.from_text(text)) for text, _ in pairs},
            tuple(sorted({c for _, columns in pairs for c in columns})),
        )

    def closed(self, term: Term) -> Term:
        """Return a clock-free predicate that includes all rows of `term` until `AHEAD` from now."""
        return p.evaluated_within(term, self.now, self.now + AHEAD, self.settings.timezone)

    def covers(self, copy: LocalCopy, predicate: Term, columns: Iterable[str]) -> bool:
        """Whether a copy certainly holds these rows and columns."""
        if copy.format != p.FORMAT or not {*columns} <= {*copy.columns}:
            return False
        return p.implies(p.from_text(copy.predicate), predicate)

    def pending(self, source: Source) -> Pending:
        """Return the work that would bring the copy of an external table up to date. Reads no rows.

        Raises
        ------
        StorageError
            The table cannot be reached or read.
        """
        copy = self.find(source)
        coverage = self._coverage(source, self.needs(source))
        wide, connector, head = self._reached(source, copy, coverage)
        with closing(connector):
            coverage = coverage.within(wide)
            if copy is not None and _has_other_columns(copy, wide):
                return replace(self._pending(None, coverage, head), is_new=True)
            pending = self._pending(copy, coverage, head)
            if copy is None or not pending.is_new or copy.format != p.FORMAT:
                return pending
            return replace(pending, is_new=not connector.is_same(copy.version, head))

    def _reached(
        self,
        source: Source,
        copy: LocalCopy | None,
        coverage: Coverage,
        *,
        anew: bool = False,
    ) -> tuple[Source, Connector, str]:
        """Return an external table with all columns of its copy, its connector, and its version.

        If a column that only other declarations have is gone from the table, it is left out. The
        version has all declared columns; after that, only those that are read have to be there.

        Parameters
        ----------
        anew
            Whether the version does not depend on the copy's.
        """
        since = None if anew or copy is None else copy.version
        held = copy.columns if copy is not None else ()
        wide = widened(source, copy, self._sharing(source), (*coverage.columns, *held))
        for table in (source,) if wide is source else (wide, source):
            connector = self.connector(table)
            try:
                version = connector.pin(since)
            except BaseException as error:
                connector.close()
                if table is source or not isinstance(error, ColumnsError):
                    raise
            else:
                needed = coverage.within(table)
                names = {*needed.columns, *held}
                _restrict(connector, table, copy, names, needed.terms.values())
                return table, connector, version
        raise AssertionError

    def is_same(self, source: Source, since: str, until: str) -> bool:
        """Whether a version of an external table certainly has the rows of an earlier one."""
        with self.connected(source) as connector:
            return connector.is_same(since, until)

    def _coverage(self, source: Source, own_needs: Iterable[Need]) -> Coverage:
        """Return the needs of all environments, with those of this one replaced by `own_needs`."""
        by_environment = self.ledger.copies.fetch_needs(self.copy_id(source))
        by_environment[self.settings.environment] = p.FORMAT, tuple(own_needs)
        # This release cannot read needs in another format, so they count as all rows.
        return self.coverage(
            (text if version == p.FORMAT else p.as_text(p.TRUE), columns)
            for version, needs in by_environment.values()
            for text, columns in needs
        )

    def _pending(self, copy: LocalCopy | None, coverage: Coverage, head: str) -> Pending:
        if copy is None or copy.format != p.FORMAT:
            needed = coverage.predicate
            return Pending(head, needed, coverage.columns, needed, copy is None, needed)
        columns = tuple(sorted({*copy.columns, *coverage.columns}))
        has = p.from_text(copy.predicate)
        # Alternatives that the copy covers need no read.
        more = p.some(w for w in alternatives(coverage.predicate) if not p.implies(has, w))
        missing = unheld = p.difference(more, has)
        if len(columns) > len(copy.columns):
            missing = p.union((has, coverage.predicate))
        return Pending(head, missing, columns, coverage.predicate, head != copy.version, unheld)

    def ahead(self, source: Source, copy: LocalCopy | None, pending: Pending) -> Ahead:
        """Return the reads that would bring a copy up to date. Reads no rows, starts no Spark.

        Raises
        ------
        GoneError
            Rows are missing, and the version to read them from is gone.
        StorageError
            The table cannot be read or followed.
        """
        is_first = (
            copy is None
            or copy.format != p.FORMAT
            or not {*copy.columns} <= {*pending.columns}  # a column is gone
        )
        if pending.missing == p.FALSE and (is_first or not pending.is_new):
            return Ahead(Pruned())
        source = widened(source, copy, self._sharing(source), pending.columns)
        with self.connected(source) as connector:
            _restrict(connector, source, copy, pending.columns, [pending.needed])
            return self._ahead(source, copy, pending, connector, is_first=is_first)

    def _ahead(
        self,
        source: Source,
        copy: LocalCopy | None,
        pending: Pending,
        connector: Connector,
        *,
        is_first: bool,
    ) -> Ahead:
        """Return the reads that `ahead` asks for; there are some."""
        external = source.external
        assert external is not None
        if copy is None or is_first:
            since, predicate = connector.start() or pending.version, pending.needed
        else:
            # A version with the same rows is followed first; then rows of it are added.
            since = copy.version if pending.is_new else pending.version
            predicate = p.from_text(copy.predicate)
            if pending.missing != p.FALSE:
                predicate = p.union((predicate, pending.needed))
        read, reason, why = Pruned(), None, None
        if pending.missing != p.FALSE and not (is_first and external.mode == "follow"):
            missing = pending.missing
            try:
                if copy is not None and not is_first:
                    growth = growth_of(connector, source, copy, pending, since)
                    missing, reason = growth.missing, growth.full_read_reason
                if missing != p.FALSE:
                    read += connector.prune(p.as_condition(missing), since)
            except EarlierColumnsError:
                if is_first or since == pending.version:
                    raise
                why = _OTHER_COLUMNS
        most = read.bytes
        if since == pending.version:
            return Ahead(read, reason, most)
        if why is None:
            scope = p.as_text(predicate), pending.columns
            changes = changes_between(connector, source, since, pending.version, *scope)
            if changes.full_read_reason is None:
                return Ahead(read + changes.read, reason, most)
            why = changes.full_read_reason
        if not external.starts_anywhere:
            raise unfollowed(source, pending.version, why)
        whole = connector.prune(p.as_condition(pending.needed), pending.version)
        return Ahead(read + whole, why, max(most, whole.bytes))

    # -------------------------------------------------------------------------------------- sync

    @spanned("sync")
    def sync(
        self, source: Source, *, from_scratch: bool = False, approved: bool = False
    ) -> LocalCopy:
        """Bring the copy of an external table up to date, and return it.

        Parameters
        ----------
        from_scratch
            Read all rows again, whatever the copy holds.
        approved
            Read as much as necessary, even above `settings.approve_above`.

        Raises
        ------
        StorageError
            The table cannot be read, or breaks its primary key. The copy stays as it was.
        GoneError
            The copy's version is gone, and more rows of it are needed.
        UnapprovedError
            More would be read than is approved. The copy stays as it was.
        """
        key, external = self.copy_id(source), source.external
        assert external is not None
        holder = f"a build on {socket.gethostname()}, process {os.getpid()}"
        with self.ledger.leases.hold(f"copy {key}", holder), ExitStack() as closing_all:
            needs, environment = self.needs(source), self.settings.environment
            copy = self.find(source)
            coverage = self._coverage(source, needs)
            wide, connector, head = self._reached(source, copy, coverage, anew=from_scratch)
            closing_all.enter_context(closing(connector))
            if not connector.capabilities.keeps_versions:
                connector.staging = closing_all.enter_context(self._staging(key))
            coverage = coverage.within(wide)
            run = Run(self.settings, self.ledger, self.engine, self.now, self.brought)
            task = Sync(run, wide, connector, key, coverage, approved=approved)
            is_unfit = copy is not None and (
                copy.format != p.FORMAT or _has_other_columns(copy, wide)
            )
            if not external.starts_anywhere:  # or a collection may delete it before it is followed
                self.ledger.copies.record_needs(key, environment, needs)
            if is_unfit and not external.starts_anywhere and not from_scratch:
                raise unfollowed(source, head, _OTHER_COLUMNS)
            if copy is None or from_scratch or is_unfit:
                copy = task.begin(copy, None if from_scratch else connector.start(), head)
            else:
                # The files of an earlier version with the same rows may be gone.
                if head != copy.version and connector.is_same(copy.version, head):
                    copy = task.follow(copy, head)
                copy = self._grow(task, copy, self._pending(copy, coverage, head), head)
            if head != copy.version:
                copy = task.follow(copy, head)
            copy = task.retire(task.described(copy))
            # All environments share the copy, so needs that cannot be met must not be recorded.
            self.ledger.copies.record_needs(key, environment, needs)
            return copy

    def _grow(self, task: Sync, copy: LocalCopy, pending: Pending, head: str) -> LocalCopy:
        """Add what a copy lacks; the table is read again if the version no longer has it.

        That is so if its columns are not those of the newest version, or if a table that keeps no
        versions changed.
        """
        connector, external = task.connector, task.external
        try:
            return task.grow(copy, pending)
        except EarlierColumnsError:
            if head == copy.version:
                raise
            return task.read_in_full(copy, head, _OTHER_COLUMNS)
        except GoneError as error:
            if connector.capabilities.keeps_versions or external.mode == "snapshot":
                raise
            if head == copy.version:
                raise
            return task.read_in_full(copy, head, f"more of it is needed, and {error.message}")

    @contextmanager
    def _staging(self, key: str) -> Generator[str]:
        """Yield a directory for rows of a table until its copy is up to date.

        The lease of the copy protects it, so whatever is there was left by a sync that died.
        """
        directory = f"{self.root(key)}{STAGED}"
        delete_directory(directory)
        try:
            yield directory
        finally:
            delete_directory(directory)


def _restrict(
    connector: Connector,
    source: Source,
    copy: LocalCopy | None,
    names: Iterable[str],
    terms: Iterable[Term],
) -> None:
    """Make a connector ignore declared columns that no read of rows concerns.

    Parameters
    ----------
    names
        The columns that are read.
    terms
        The conditions for the rows that are read, besides those of the copy and the declaration.
    """
    external = source.external
    assert external is not None
    if not connector.capabilities.keeps_versions:
        return  # all its columns are read from the newest version
    conditions = [*terms]
    if copy is not None and copy.format == p.FORMAT:
        conditions.append(p.from_text(copy.predicate))
    lower = {name.lower() for name in names}
    lower |= {v.words[0].lower() for term in conditions for v in p.variables(term)}
    filters = " ".join(filter(None, (external.filter, external.snapshot_filter))).lower()
    concerned = [
        c
        for c in connector.columns
        if c.name.lower() in lower or c.name.lower().replace("`", "``") in filters
    ]
    connector.columns = concerned or connector.columns


def _has_other_columns(copy: LocalCopy, source: Source) -> bool:
    """Whether a copy has columns that an external table does not have."""
    return not {*copy.columns} <= {c.name for c in source.columns}
