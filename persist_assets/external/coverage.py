"""The rows and columns that copies of external tables hold, and those that they lack."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.core.dialect import char_size
from persist_assets.core.model.columns import Column
from persist_assets.storage.raw import OF_DELTA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.core.model.sources import External, Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.external.connectors.protocol import Connector, Pruned
    from persist_assets.ledger.copies import Copies


COPIES = ".external"
"""The directory of a warehouse that holds the copies."""

AHEAD = timedelta(days=7)
"""The time for which a copy stays sufficient for needs that move with the clock."""


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

    def within(self, source: Source) -> Coverage:
        """Return the needed columns among those that an external table has.

        Columns that only another environment declares are fetched by that one, and so are the rows
        for conditions on them.
        """
        names = {c.name for c in source.columns}
        columns = tuple(c for c in self.columns if c in names)
        lower = {name.lower() for name in names}
        terms = {
            text: term
            for text, term in self.terms.items()
            if all(v.words[0].lower() in lower for v in p.variables(term))
        }
        return replace(self, terms=terms, columns=columns)


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
    """The amount of an external table that a run read, and the amount written to its copy.

    Attributes
    ----------
    rows
        The number of rows read: rows that are needed, or that were added or removed.
    bytes
        The bytes that were received, or that Spark read of files. Where Spark does not say it, or
        reads the copy with them: the total size of their files, all columns included.
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
    external, declaration, place = _declared(settings, source)
    columns = [(c.name, c.type) for c in source.columns]
    identity = (declaration, place, columns, settings.connection)
    filters = external.filter or external.snapshot_filter
    if filters and any(char_size(c.type) for c in source.columns):
        identity += ("filters pad CHAR",)  # earlier releases did not
    return sha256(repr(identity).encode()).hexdigest()[:16]


def copy_family(settings: Settings, source: Source) -> str | None:
    """Return a key that is equal for declarations that can share a copy, whatever their columns.

    None: no other declaration can. The copy's rows depend on when it was begun, so columns could
    not be added to them; or they are records of CSV files, whose values and validity depend on all
    declared columns and their order.
    """
    external, declaration, place = _declared(settings, source)
    if not external.starts_anywhere or dict(external.reading).get("format") == "csv":
        return None
    identity = ("family", declaration, place, settings.connection)
    return sha256(repr(identity).encode()).hexdigest()[:16]


def _declared(settings: Settings, source: Source) -> tuple[External, tuple[object, ...], str]:
    """Return the declaration of a table, the parts of it that copies depend on, and its place."""
    raw = source.raw
    assert raw is not None
    assert raw.external is not None
    external = raw.external
    parts = (raw.format, raw.options, external.key, external.append_only, external.timestamp_column)
    return external, parts, settings.resolve(raw.location or "")


def find_copy_ids(
    settings: Settings, sources: Iterable[Source], copies: Copies
) -> dict[SourceID, str]:
    """Return the ids of the copies that the external tables of a project use, or would begin.

    A declaration with more or fewer columns than the one that began a copy goes on with it, unless
    a column has another type or spelling there. Declarations of one project that can share a copy
    do.
    """
    ids: dict[SourceID, str] = {}
    families: dict[str, list[Source]] = {}
    for source in sources:
        if source.external is not None:
            family = copy_family(settings, source)
            ids[source.source_id] = copy_id(settings, source)
            if family is not None:
                families.setdefault(family, []).append(source)
    for family, members in families.items():
        candidates = copies.fetch_family([ids[s.source_id] for s in members], family)
        for group in _alike(members):
            own = {ids[s.source_id] for s in group}
            named = [c.copy_id for c in candidates if c.copy_id in own]
            columns = {c.name.lower(): (c.name, c.type) for s in group for c in s.columns}
            named += [c.copy_id for c in candidates if c.stored and _agree(columns, c.stored)]
            ids |= dict.fromkeys((s.source_id for s in group), [*named, min(own)][0])
    return ids


def _alike(sources: Iterable[Source]) -> list[list[Source]]:
    """Return groups of declarations in which a column has one type and one spelling."""
    groups: list[tuple[dict[str, tuple[str, str | None]], list[Source]]] = []
    for source in sources:
        pairs = [(c.name, c.type) for c in source.columns]
        group = next((g for g in groups if _agree(g[0], pairs)), None)
        if group is None:
            groups.append(group := ({}, []))
        group[0].update((pair[0].lower(), pair) for pair in pairs)
        group[1].append(source)
    return [members for _, members in groups]


def _agree(
    columns: Mapping[str, tuple[str, str | None]], pairs: Iterable[tuple[str, str | None]]
) -> bool:
    return all(columns.get(pair[0].lower(), pair) == pair for pair in pairs)


def widened(
    source: Source, copy: LocalCopy | None, sharing: Iterable[Source], names: Iterable[str]
) -> Source:
    """Return an external table with additional columns of other declarations."""
    columns = {c.name.lower(): c for c in source.columns}
    for other in sharing:
        columns = {c.name.lower(): c for c in other.columns} | columns
    if copy is not None:
        columns = {name.lower(): Column(name, kind) for name, kind in copy.stored or ()} | columns
    own, needed = {c.name.lower() for c in source.columns}, {name.lower() for name in names}
    more = [c for name, c in columns.items() if name in needed and name not in own]
    return replace(source, columns=(*source.columns, *more)) if more else source


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


NO_KEY = "it has no primary key, so columns cannot be read alone"


@dataclass(frozen=True, slots=True)
class Growth:
    """The reads that give a copy the rows and columns that it lacks.

    Attributes
    ----------
    absent
        The lacking columns that are NULL in all rows of the copy: its files have none of them.
    columns
        The lacking columns that are read for the rows that the copy has.
    missing
        The rows that are read.
    full_read_reason
        Why rows that the copy has are read again with all columns; None: they are not.
    """

    absent: frozenset[str]
    columns: tuple[str, ...]
    missing: Term
    full_read_reason: str | None


def growth_of(
    connector: Connector, source: Source, copy: LocalCopy, pending: Pending, version: str
) -> Growth:
    """Return the files to read of a version that has the copy's rows. Reads no rows."""
    lacking = [c for c in pending.columns if c not in copy.columns]
    absent: frozenset[str] = frozenset()
    if lacking:
        held = p.as_condition(p.from_text(copy.predicate))
        absent = connector.absent(lacking, held, version)
    columns = tuple(c for c in lacking if c not in absent)
    missing = pending.missing if columns else pending.unheld
    assert source.external is not None
    key = source.external.key
    can_join = bool(key) and {*key} <= {*copy.columns}
    return Growth(absent, columns, missing, NO_KEY if columns and not can_join else None)


def needs_approval(settings: Settings, size: int) -> bool:
    """Whether reading this many bytes of a version needs approval."""
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
