"""What of external tables is needed, what is held, and what the next build would read of them.

Looks at logs and metadata of tables; reads no rows and starts no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import persist_assets.meaning.predicates as p
from persist_assets.connectors.protocol import Pruned
from persist_assets.errors import StorageError
from persist_assets.ingestion import why_pending

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.ingestion import Ingestion, Pending
    from persist_assets.model import LocalCopy, Needed, Project, Source, SourceID


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
        What would be read for it besides what changed since the version that is held; None as
        before, and where the version that would be read is gone.
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
    why: str | None = None
    problem: StorageError | None = None


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
    pending = read = why = problem = None
    try:
        pending = ingestion.pending(source)
        read = _would_read(ingestion, source, held, pending)
    except StorageError as error:
        problem = error
    if pending is not None and not pending.is_nothing and (held or needs):
        why = why_pending(source, held, pending)
    return Holding(
        source,
        p.as_text(predicate) if wanted else None,
        tuple(sorted({c for _, columns in wanted for c in columns})),
        needs,
        held,
        pending,
        read,
        why,
        problem,
    )


def _would_read(
    ingestion: Ingestion, source: Source, held: LocalCopy | None, pending: Pending
) -> Pruned:
    if pending.missing == p.FALSE:
        return Pruned(0, 0, 0, 0)
    connector = ingestion.connector(source)
    fits = held is not None and held.format == p.FORMAT
    version = held.version if held is not None and fits else connector.start() or pending.version
    return connector.prune(p.as_condition(pending.missing), version)
