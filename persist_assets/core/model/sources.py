"""Sources, and what they are declared as."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from persist_assets.core.model.annotations import Annotation, Kind
from persist_assets.core.model.columns import SHORT, Column, ColumnEdge, Growth, Parts, Windows

if TYPE_CHECKING:
    from persist_assets.core.errors import Location
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.queries import BuildID, Function, Query, SourceID


FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")
"""Formats of plain files, listed and pinned by name, size and time of change."""

ReadMode = Literal["snapshot", "follow", "snapshot_and_follow"]


@dataclass(frozen=True, slots=True)
class External:
    """What a declaration says of an external table, beside where it is.

    It holds no secret: of those it has references (``${env:NAME}``), which are resolved when the
    table is read.

    Attributes
    ----------
    connector
        The name of its transport, a row of `connectors.CONNECTORS`.
    key
        The columns of its primary key, as declared; empty: it has none.
    mode
        Rows at one version, changes from one on, or both.
    version
        Where it starts: a version of Delta, a snapshot of Iceberg. None: the newest.
    datetime
        The same, as the instant at which it was the newest; ISO 8601. Never both.
    end_version
        The last one that is followed.
    filter
        Rows for which this is not true are not there.
    snapshot_filter
        The same, of the rows at the start alone.
    timestamp_column
        It is brought with the columns that are needed. In which order rows come is no matter.
    skip_unused_columns
        Whether columns that nobody reads stay where they are.
    append_only
        Whether it is promised that no row is ever changed or deleted.
    labels, start_after
        What it is called among connectors, and after which of them it starts.
    storage
        Sorted pairs, names lower case: how its store is reached.
    """

    connector: str
    key: tuple[str, ...] = ()
    mode: ReadMode = "snapshot_and_follow"
    version: int | None = None
    datetime: str | None = None
    end_version: int | None = None
    filter: str | None = None
    snapshot_filter: str | None = None
    timestamp_column: str | None = None
    skip_unused_columns: bool = True
    append_only: bool = False
    labels: tuple[str, ...] = ()
    start_after: tuple[str, ...] = ()
    storage: tuple[tuple[str, str], ...] = ()

    @property
    def starts_anywhere(self) -> bool:
        """Whether its rows follow from a version alone, and not from where it was started."""
        return self.mode != "follow" and self.snapshot_filter is None


@dataclass(frozen=True, slots=True)
class RawTable:
    """Where and how data lives that exists outside the project.

    Attributes
    ----------
    format
        Lower case: ``parquet``, ``delta``, ``csv``, ….
    location
        Path or URI as written; a relative path counts from the project root. None for data that
        only options describe (``jdbc``).
    options
        Sorted pairs, names lower case. Of an external table: what decides which rows it has.
    external
        What else is said of it, if it is an external table.
    """

    format: str
    location: str | None
    options: tuple[tuple[str, str], ...] = ()
    external: External | None = None


_NO_ANNOTATION = Annotation()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A definition in a file, before names mean anything.

    One with neither a query nor a raw table could not be understood, which is a problem
    already reported; it stands for its name.

    Attributes
    ----------
    function
        What computes the rows, of a source of Python: its query is the function's text, and names
        what the function reads. With a raw table, it is that data which the function brings.
    columns
        As far as they are declared; the types of a query's are what its language takes them for.
    malloy_ids
        The BuildIDs by which Malloy's own tools look for its table, its builder's first.
    """

    name: str
    language: str
    location: Location
    annotation: Annotation = _NO_ANNOTATION
    description: str | None = None
    materialized: bool = False
    query: Query | None = None
    raw: RawTable | None = None
    columns: tuple[Column, ...] = ()
    malloy_ids: tuple[BuildID, ...] = ()
    function: Function | None = None

    @property
    def kept(self) -> bool:
        """Whether it is annotated ``persist``, or says so itself without being contradicted."""
        persist = self.annotation.persist
        return self.materialized if persist is None else persist

    @property
    def temporary(self) -> bool:
        """Whether every run that needs its rows keeps them for as long as it lasts."""
        return self.kept and self.annotation.strategy == "temporary"

    @property
    def persisted(self) -> bool:
        """Whether it has a table, or a stored query, that stays."""
        return self.kept and not self.temporary


@dataclass(frozen=True, slots=True)
class Read:
    """What a build knew of a source it read: of a leaf, or of one dissolved on the way to it."""

    source_id: SourceID
    definition: str
    digests: Parts


@dataclass(frozen=True, slots=True)
class Source:
    """A compiled source.

    Attributes
    ----------
    source_id
        ``name@path``, path relative to the project root.
    asset_key
        Path below the sources directory without its suffix, then the name.
    persisted
        It has a table and is an asset.
    build_id
        SHA-256 hex of connection and meaning; for a raw table, of where its data is.
    definition
        SHA-256 hex of what this source says itself, whatever its upstreams mean.
    columns
        In order.
    bindings
        The SourceID that each reference of the query means, in order.
    lineage
        Which columns its columns are computed from.
    volatile
        Another build on the same data has other rows: it draws lots.
    reads_clock
        Its rows depend on the ``day`` or the ``instant`` at which they are computed.
    notes
        What readers of a plan should know, one sentence each.
    marks
        What it means, in parts (`shortened`); see `digests`.
    temporary
        It is no asset: a run computes it once for all of its sources that read it.
    malloy_ids
        The BuildIDs by which Malloy's own tools look for its table, its builder's first.
    growth
        Of what is built incrementally: how its rows follow; its one column is the watermark's.
    function
        What computes its rows, if that is no query: see `Declaration`.
    """

    source_id: SourceID
    asset_key: tuple[str, ...]
    language: str
    location: Location
    annotation: Annotation
    persisted: bool
    build_id: BuildID
    definition: str
    description: str | None = None
    columns: tuple[Column, ...] = ()
    query: Query | None = None
    raw: RawTable | None = None
    bindings: tuple[SourceID, ...] = ()
    lineage: tuple[ColumnEdge, ...] = ()
    volatile: bool = False
    reads_clock: Literal["day", "instant"] | None = None
    notes: tuple[str, ...] = ()
    marks: str = ""
    temporary: bool = False
    malloy_ids: tuple[BuildID, ...] = ()
    growth: Growth | None = None
    function: Function | None = None

    @property
    def kind(self) -> Kind:
        """What sort of source it is."""
        if self.raw is None:
            return Kind.QUERY
        return Kind.RAW if self.raw.external is None else Kind.EXTERNAL

    @property
    def external(self) -> External | None:
        """What is said of it, if it is an external table."""
        return self.raw.external if self.raw else None

    @property
    def name(self) -> str:
        """The last part of the asset key."""
        return self.asset_key[-1]

    @property
    def key(self) -> str:
        """The asset key in one string: ``flights/daily_delays``."""
        return "/".join(self.asset_key)

    @property
    def windows(self) -> Windows | None:
        """What rows follow from that are together by what comes first: partitions, or time."""
        return next(iter(self.growth.columns), None) if self.growth else None

    @property
    def keeps_history(self) -> bool:
        """Whether its rows follow from all its builds so far: nothing can compute them again."""
        return self.annotation.refresh == "snapshot"

    @property
    def varies(self) -> bool:
        """Whether another build on the same data may have other rows: readers rest on the build."""
        return self.volatile or self.keeps_history

    @property
    def computed(self) -> tuple[Column, ...]:
        """The columns of its query: those of its table but for what a history adds."""
        return self.columns[:-2] if self.keeps_history else self.columns

    @property
    def kinds(self) -> frozenset[str]:
        """What Dagster shows it to be made of."""
        return frozenset({self.raw.format} if self.raw is not None else {"spark", self.language})

    @property
    def is_leaf(self) -> bool:
        """Whether its readers read data as it stands: from its table, or raw."""
        return self.persisted or self.raw is not None

    @property
    def is_read_as_it_is(self) -> bool:
        """Whether no query can hold it: raw data, or what a function returns."""
        return self.raw is not None or self.function is not None

    @property
    def reads(self) -> tuple[SourceID, ...]:
        """The SourceIDs that the query names, each once, in the order of the text."""
        return tuple(dict.fromkeys(self.bindings))

    @property
    def table(self) -> str:
        """The name of the directory of its table: readable, and one per BuildID."""
        return f"{self.annotation.name or self.name}-{self.build_id[:12]}"

    @property
    def checks(self) -> tuple[Check, ...]:
        """The assertions about its rows."""
        return self.annotation.checks

    @property
    def compared(self) -> tuple[SourceID, ...]:
        """The other sources that its checks look at, each once."""
        others = (c.against.source_id for c in self.checks if c.against is not None)
        return tuple(dict.fromkeys(s for s in others if s != self.source_id))

    @property
    def digests(self) -> Parts:
        """What it means, in parts."""
        marks = (self.marks[at : at + SHORT] for at in range(0, len(self.marks), SHORT))
        return Parts(
            next(marks, ""), tuple(zip((c.name for c in self.columns), marks, strict=True))
        )

    @property
    def group(self) -> str:
        """The annotated group, else the name of its file with its folders, in plain letters."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(self.asset_key[:-1]))
        return self.annotation.group or plain
