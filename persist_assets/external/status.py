"""What of external tables is needed, what is held, and what the next build would read of them.

Looks at logs and metadata of tables; reads no rows and starts no Spark.
"""

from __future__ import annotations

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
    from persist_assets.external.connectors.protocol import Pruned
    from persist_assets.external.coverage import Pending
    from persist_assets.external.ingestion import Ingestion


@dataclass(frozen=True, slots=True)
class Holding:
    """An external table and its copy, as they are to a program.

    Attributes
    ----------
    predicate, columns
        What the program needs; the predicate may read the clock. None, where nothing is needed.
    needs
        What each of its sources does.
    held
        None where there is no copy.
    pending
        What bringing the copy up to date would do; None where the table cannot be reached.
    read
        What would be read for it; None as before, and where a version that would be read is gone.
    again
        Why a newer version is read anew as a whole; None: it is not.
    approval
        Whether that is so much of a version that somebody has to approve it.
    why
        In words, if there is something to do.
    problem
        Why the table, or a version of it, cannot be reached.
    """

    source: Source
    predicate: str | None
    columns: tuple[str, ...]
    needs: tuple[Needed, ...]
    held: LocalCopy | None
    pending: Pending | None = None
    read: Pruned | None = None
    again: str | None = None
    approval: bool = False
    why: str | None = None
    problem: StorageError | None = None

    @property
    def missing(self) -> str | None:
        """The rows that the next build would read besides changes, as text; None: none."""
        pending = self.pending
        return p.as_text(pending.missing) if pending and pending.missing != p.FALSE else None

    @property
    def not_pushed(self) -> tuple[tuple[SourceID, str, str, str], ...]:
        """The conditions that limit no copy: reader, code, expression and reason of each."""
        return tuple(
            (need.reader, code, expression, reason)
            for need in self.needs
            for code, words in need.not_pushed
            for expression, _, reason in (words.rpartition(": "),)
        )


def externals(project: Project, start: Iterable[SourceID]) -> tuple[Source, ...]:
    """Return the external tables that sources follow from, however far down."""
    reached = project.reach(start, lambda _: False)
    return tuple(s for s in reached if s.external is not None)


def find_holding(ingestion: Ingestion, source: Source) -> Holding:
    """Return what is needed and held of an external table, and what the next build would read."""
    wanted = sorted(ingestion.needs(source))
    predicate = p.union(p.from_text(text) for text, _ in wanted)
    held = ingestion.find(source)
    needs = tuple(n for n in ingestion.project.needs if n.table == source.source_id)
    pending = why = problem = None
    ahead: Ahead | None = None
    try:
        pending = ingestion.pending(source)
        ahead = ingestion.ahead(source, held, pending)
    except StorageError as error:
        problem = error
    if pending is not None and not pending.is_nothing and (held or needs):
        why = why_pending(source, held, pending)
        if ahead is not None and ahead.again is not None:
            why += f"; it is read again in full: {ahead.again}"
    return Holding(
        source,
        p.as_text(predicate) if wanted else None,
        tuple(sorted({c for _, columns in wanted for c in columns})),
        needs,
        held,
        pending,
        ahead and ahead.read,
        ahead and ahead.again,
        ahead is not None and needs_approval(ingestion.settings, ahead.most),
        why,
        problem,
    )


def find_holdings(ingestion: Ingestion, start: Iterable[SourceID]) -> list[Holding]:
    """Return what is needed and held of the external tables that sources follow from."""
    return [find_holding(ingestion, table) for table in externals(ingestion.project, start)]
