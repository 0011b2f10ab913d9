"""The rows and columns that copies of external tables hold, and those that they lack."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.core.dialect import char_size
from persist_assets.storage.raw import OF_DELTA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.external.connectors.protocol import Pruned


COPIES = ".external"
"""The directory of a warehouse that holds the copies."""

AHEAD = timedelta(days=7)
"""How long a copy stays sufficient for needs that move with the clock."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The rows and columns of an external table that are needed at an instant.

    Attributes
    ----------
    terms
        The needed predicates, by text. The texts may read the clock; the terms do not.
    columns
        The needed columns, sorted.
    """

    terms: Mapping[str, Term]
    columns: tuple[str, ...]

    @property
    def predicate(self) -> Term:
        """The rows that are needed."""
        return p.union(self.terms.values())


@dataclass(frozen=True, slots=True)
class Pending:
    """The work that would bring a copy up to date.

    Attributes
    ----------
    version
        The version of the copy afterwards.
    missing
        The rows to read: at the copy's version, or at `version` if there is no copy; FALSE: none.
    columns
        The columns to read.
    needed
        The rows that are needed.
    is_new
        Whether the table has a newer version than the copy, whose rows may differ.
    unheld
        The missing rows of which the copy has no column.
    """

    version: str
    missing: Term
    columns: tuple[str, ...]
    needed: Term
    is_new: bool
    unheld: Term

    @property
    def is_nothing(self) -> bool:
        """Whether the copy is up to date."""
        return self.missing == p.FALSE and not self.is_new


@dataclass(frozen=True, slots=True)
class Ahead:
    """The reads that would bring a copy up to date, according to logs and metadata.

    Attributes
    ----------
    read
        The files.
    full_read_reason
        Why all needed rows would be read again; None: they would not.
    most
        The most bytes to read of one version, without changes between versions.
    """

    read: Pruned
    full_read_reason: str | None = None
    most: int = 0


@dataclass(frozen=True, slots=True)
class Brought:
    """How much of an external table a run read, and how much it wrote to its copy.

    Attributes
    ----------
    rows
        The number of rows read: rows that are needed, or that were added or removed.
    bytes
        The total size of their files, all columns included.
    rows_written, bytes_written
        How much was written to the copy.
    """

    rows: int = 0
    bytes: int = 0
    rows_written: int = 0
    bytes_written: int = 0

    def __add__(self, more: Brought) -> Brought:
        return Brought(
            self.rows + more.rows,
            self.bytes + more.bytes,
            self.rows_written + more.rows_written,
            self.bytes_written + more.bytes_written,
        )


def copy_id(settings: Settings, source: Source) -> str:
    """Return the id of the copy of an external table.

    Equal declarations of one place share a copy, whatever their names are, as long as conditions
    mean the same in their sessions.
    """
    raw = source.raw
    assert raw is not None
    assert raw.external is not None
    external, place = raw.external, settings.resolve(raw.location or "")
    declaration = (
        raw.format,
        raw.options,
        external.key,
        external.append_only,
        external.timestamp_column,
    )
    columns = [(c.name, c.type) for c in source.columns]
    identity = (declaration, place, columns, settings.connection)
    filters = external.filter or external.snapshot_filter
    if filters and any(char_size(c.type) for c in source.columns):
        identity += ("filters pad CHAR",)  # earlier releases did not
    return sha256(repr(identity).encode()).hexdigest()[:16]


def copy_root(settings: Settings, copy_id: str) -> str:
    """Return the directory of a copy's table."""
    return f"{settings.project_warehouse.rstrip('/')}/{COPIES}/{copy_id}"


def version_of(copy: LocalCopy, committed: int) -> str:
    """Return the name under which builds record a version of a copy as an input."""
    return f"{OF_DELTA}{committed}:{copy.table_id}"


def why_pending(source: Source, copy: LocalCopy | None, pending: Pending) -> str:
    """Return why a copy has to be brought up to date, in words."""
    if copy is None:
        return f"`{source.name}` has no copy yet"
    if copy.format != p.FORMAT:
        return f"another release made the copy of `{source.name}`, so it is read again in full"
    reasons: list[str] = []
    if pending.is_new:
        now, then = short(pending.version), short(copy.version)
        if now == then:  # another table with the same version number replaced it
            now, then = pending.version, copy.version
        reasons.append(f"`{source.name}` is at version {now}, its copy at {then}")
    more = [c for c in pending.columns if c not in copy.columns]
    if more:
        reasons.append(f"more columns of `{source.name}` are needed: {', '.join(more)}")
    elif pending.missing != p.FALSE:
        reasons.append(f"more rows of `{source.name}` are needed")
    return "; ".join(reasons)


def needs_approval(settings: Settings, size: int) -> bool:
    """Whether reading this many bytes of a version needs somebody's approval."""
    return 0 < settings.approve_above < size


def short(version: str) -> str:
    """Return a readable name of a version of an external table, without the table's id.

    Examples
    --------
    >>> short("delta:7:9b1c"), short("7")
    ('7', '7')
    """
    parts = version.split(":")
    return parts[1] if len(parts) > 1 else version
