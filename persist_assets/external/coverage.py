"""What copies of external tables hold, and what they lack."""

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
"""The directory of a warehouse that copies are in."""

AHEAD = timedelta(days=7)
"""How long what is held stays enough of rows that are needed once the clock has moved on."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is needed of an external table at an instant.

    Attributes
    ----------
    wanted
        The predicates that are needed, as programs have them, with what they are now.
    columns
        Those that are needed, sorted.
    """

    wanted: Mapping[str, Term]
    columns: tuple[str, ...]

    @property
    def predicate(self) -> Term:
        """The rows that are needed."""
        return p.union(self.wanted.values())


@dataclass(frozen=True, slots=True)
class Pending:
    """What bringing a copy up to date would do.

    Attributes
    ----------
    version
        That it would be brought to.
    missing
        The rows to be read of the version that is held, or of `version` where nothing is; FALSE:
        none.
    columns
        Those to be read.
    wanted
        The rows that are needed.
    is_new
        The table has a newer version than the copy, whose rows may be others.
    unheld
        Those to be read of which no column is held.
    """

    version: str
    missing: Term
    columns: tuple[str, ...]
    wanted: Term
    is_new: bool
    unheld: Term

    @property
    def is_nothing(self) -> bool:
        """Whether the copy is as it should be."""
        return self.missing == p.FALSE and not self.is_new


@dataclass(frozen=True, slots=True)
class Ahead:
    """What would be read to bring a copy up to date, as far as logs and metadata tell.

    Attributes
    ----------
    read
        The files.
    again
        Why all that is needed is read anew; None: it is not.
    most
        The most bytes that are read of one version; what changed is none of it.
    """

    read: Pruned
    again: str | None = None
    most: int = 0


@dataclass(frozen=True, slots=True)
class Brought:
    """What a run read of an external table to bring its copy up to date, and wrote to that.

    Attributes
    ----------
    rows
        How many the table handed over: those that are needed, or that came or went.
    bytes
        The sizes of the files that they are in, with all columns.
    rows_written, bytes_written
        What was written to the copy.
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
    """Return what tells the copy of an external table from others.

    Declarations that say the same of one place share a copy, whatever they are called, as long as
    conditions mean the same in their sessions.
    """
    raw = source.raw
    assert raw is not None
    assert raw.external is not None
    external, place = raw.external, settings.resolve(raw.location or "")
    said = (raw.format, raw.options, external.key, external.append_only, external.timestamp_column)
    columns = [(c.name, c.type) for c in source.columns]
    told = (said, place, columns, settings.connection)
    filters = external.filter or external.snapshot_filter
    if filters and any(char_size(c.type) for c in source.columns):
        told += ("filters pad CHAR",)  # earlier releases did not
    return sha256(repr(told).encode()).hexdigest()[:16]


def copy_root(settings: Settings, copy_id: str) -> str:
    """Return the directory of a copy's table."""
    return f"{settings.project_warehouse.rstrip('/')}/{COPIES}/{copy_id}"


def version_of(copy: LocalCopy, committed: int) -> str:
    """Return what a version of a copy is called among those that rows rest on."""
    return f"{OF_DELTA}{committed}:{copy.table_id}"


def why_pending(source: Source, held: LocalCopy | None, pending: Pending) -> str:
    """Return in words why a copy has to be brought up to date."""
    if held is None:
        return f"`{source.name}` has no copy yet"
    if held.format != p.FORMAT:
        return f"another release made the copy of `{source.name}`, so it is read again in full"
    told: list[str] = []
    if pending.is_new:
        now, then = short(pending.version), short(held.version)
        if now == then:  # it was made anew in its place
            now, then = pending.version, held.version
        told.append(f"`{source.name}` is at version {now}, its copy at {then}")
    more = [c for c in pending.columns if c not in held.columns]
    if more:
        told.append(f"more columns of `{source.name}` are needed: {', '.join(more)}")
    elif pending.missing != p.FALSE:
        told.append(f"more rows of `{source.name}` are needed")
    return "; ".join(told)


def needs_approval(settings: Settings, size: int) -> bool:
    """Whether so many bytes of a version may not be read unless somebody says so."""
    return 0 < settings.approve_above < size


def short(version: str) -> str:
    """Return a version of an external table for people: without what tells the table from others.

    Examples
    --------
    >>> short("delta:7:9b1c"), short("7")
    ('7', '7')
    """
    parts = version.split(":")
    return parts[1] if len(parts) > 1 else version
