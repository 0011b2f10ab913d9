"""The status of external tables: needs, copies, and the reads of the next build.

It is computed from logs and metadata of tables: no rows are read, and no Spark is started.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.core.errors import StorageError
from persist_assets.external.coverage import Ahead, needs_approval, why_pending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.model.project import Needed, Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.external.connectors.protocol import Capabilities, Pruned
    from persist_assets.external.coverage import Pending
    from persist_assets.external.ingestion import Ingestion


@dataclass(frozen=True, slots=True)
class Holding:
    """An external table and its copy, as a program sees them.

    Attributes
    ----------
    predicate, columns
        The rows and columns that the program needs; the predicate may read the clock. None: no
        rows.
    needs
        The needs of each of its sources.
    held
        The copy; None: there is none.
    pending
        The work of the next sync; None if the table cannot be reached.
    read
        The cost of its reads; None if the table, or a version to read, cannot be reached.
    full_read_reason
        Why it would read a newer version in full; None: it would not.
    approval
        Whether it would read so much of one version that it needs approval.
    why
        The reason for its work, in words; None: there is no work.
    problem
        Why the table, or a version of it, cannot be reached.
    capabilities
        What its connector can do; None: its options cannot be read.
    """

    source: Source
    predicate: str | None
    columns: tuple[str, ...]
    needs: tuple[Needed, ...]
    held: LocalCopy | None
    pending: Pending | None = None
    read: Pruned | None = None
    full_read_reason: str | None = None
    approval: bool = False
    why: str | None = None
    problem: StorageError | None = None
    capabilities: Capabilities | None = None

    @property
    def missing(self) -> str | None:
        """The rows that the next build would read besides changes, as text; None: none."""
        pending = self.pending
        return p.as_text(pending.missing) if pending and pending.missing != p.FALSE else None

    @property
    def not_pushed(self) -> tuple[tuple[SourceID, str, str, str], ...]:
        """The conditions that limit no copy, each as reader, code, expression and reason."""
        return tuple(
            (need.reader, code, expression, reason)
            for need in self.needs
            for code, words in need.not_pushed
            for expression, _, reason in (words.rpartition(": "),)
        )


def externals(project: Project, start: Iterable[SourceID]) -> tuple[Source, ...]:
    """Return the external tables that sources read, directly or through other sources."""
    reached = project.reach(start, lambda _: False)
    return tuple(s for s in reached if s.external is not None)


def find_holding(ingestion: Ingestion, source: Source) -> Holding:
    """Return the needs and the copy of an external table, and the reads of the next sync."""
    needed = sorted(ingestion.needs(source))
    predicate = p.union(p.from_text(text) for text, _ in needed)
    copy = ingestion.find(source)
    needs = tuple(n for n in ingestion.project.needs if n.table == source.source_id)
    pending = why = problem = None
    ahead: Ahead | None = None
    try:
        pending = ingestion.pending(source)
        ahead = ingestion.ahead(source, copy, pending)
    except StorageError as error:
        problem = error
    if pending is not None and not pending.is_nothing and (copy or needs):
        why = why_pending(source, copy, pending)
        if ahead is not None and ahead.full_read_reason is not None:
            why += f"; it is read again in full: {ahead.full_read_reason}"
    capabilities = None
    with suppress(StorageError):
        capabilities = ingestion.connector(source).capabilities
    return Holding(
        source,
        p.as_text(predicate) if needed else None,
        tuple(sorted({c for _, columns in needed for c in columns})),
        needs,
        copy,
        pending,
        ahead and ahead.read,
        ahead and ahead.full_read_reason,
        ahead is not None and needs_approval(ingestion.settings, ahead.most),
        why,
        problem,
        capabilities,
    )


def find_holdings(ingestion: Ingestion, start: Iterable[SourceID]) -> list[Holding]:
    """Return the needs and the copies of the external tables that sources read."""
    return [find_holding(ingestion, table) for table in externals(ingestion.project, start)]
