"""The routing of queries other than builds: to the copy of an external table, or to the table.

    rows needed ─► does the copy certainly hold them?  yes ─► the copy
                                                       no ──► the table, at the copy's version

A copy holds the rows that builds need. All other reads of external tables are routed here, so that
no answer lacks rows only because no build needs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

import persist_assets.analysis.predicates as p
from persist_assets.core.errors import NotHeldError
from persist_assets.external.coverage import short, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.project import Needed
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.external.ingestion import Ingestion

LASTING = timedelta(days=1)
"""The maximum time that a query that reads the clock runs, or waits to run."""


@dataclass(frozen=True, slots=True)
class Route:
    """The place from which to read the rows of an external table.

    Attributes
    ----------
    name
        The name of a view of these rows, unique to them.
    version
        The version of the external table.
    predicate
        The rows to read from the table itself, as SQL; None: all.
    columns
        The columns to read, sorted; all others are NULL.
    copy
        The copy to read; None: the table itself is read.
    """

    name: str
    version: str
    predicate: str | None
    columns: tuple[str, ...]
    copy: LocalCopy | None = None

    @property
    def origin(self) -> Literal["local", "forwarded"]:
        """The name of this route in the answer to a query."""
        return "forwarded" if self.copy is None else "local"


def find_route(
    ingestion: Ingestion,
    source: Source,
    needs: Iterable[Needed],
    copy: LocalCopy | None,
    *,
    local: bool = False,
) -> Route:
    """Return where to read the needed rows of an external table.

    Parameters
    ----------
    copy
        The copy; None: there is none.
    local
        Whether only the copy may be read.

    Raises
    ------
    NotHeldError
        The copy lacks some rows, and the table may not be read or no longer has them: a copy that
        follows a table from a version on cannot read earlier rows.
    StorageError
        The table cannot be reached.
    """
    needs = tuple(needs)
    first, last = ingestion.now, ingestion.now + LASTING
    zone = ingestion.settings.timezone
    predicates = [p.from_text(n.predicate) for n in needs]
    predicate = p.union(p.evaluated_within(a, first, last, zone) for a in predicates)
    columns = tuple(sorted({c for n in needs for c in n.columns}))
    if copy is not None and ingestion.covers(copy, predicate, columns):
        digest = _digest(ingestion, source, version_of(copy, copy.committed))
        name = f"{source.key}@{copy.version}-{digest}"
        return Route(name, copy.version, None, copy.columns, copy)
    external = source.external
    assert external is not None
    follows = not external.starts_anywhere
    if local or follows:
        raise NotHeldError(
            f"`{source.name}`: {lacking(copy, predicate, columns)}",
            hint="only its copy knows the changes since its start: build a table that reads it"
            if follows
            else "run without --local to read the table itself",
            location=source.location,
        )
    if copy is not None:
        version = copy.version
    else:
        with ingestion.connected(source) as connector:
            version = connector.pin(None)
    condition = p.as_condition(predicate)
    # Rows are counted by the first column if no column is needed.
    named = columns or (source.columns[0].name,)
    digest = _digest(ingestion, source, version, condition or "", named)
    return Route(f"{source.key}@{version}-{digest}", version, condition, named)


def lacking(copy: LocalCopy | None, predicate: Term, columns: Sequence[str]) -> str:
    """Return which rows and columns a copy lacks, in words."""
    if copy is None:
        return "it has no copy here"
    parts: list[str] = []
    more = [c for c in columns if c not in copy.columns]
    if more:
        parts.append(f"the column{'s' * (len(more) > 1)} {', '.join(more)}")
    covered = p.FALSE if copy.format != p.FORMAT else p.from_text(copy.predicate)
    if p.difference(predicate, covered) != p.FALSE:
        parts.append(f"rows: requested {p.as_text(predicate)}, held {p.as_text(covered)}")
    return f"the copy of version {short(copy.version)} may lack {' and '.join(parts)}"


def _digest(ingestion: Ingestion, source: Source, *parts: object) -> str:
    assert source.raw is not None
    place = ingestion.settings.resolve(source.raw.location or "")
    return sha256(repr((source.build_id, place, *parts)).encode()).hexdigest()[:12]
