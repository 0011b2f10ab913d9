"""Sources and their declarations."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from persist_assets.core.model.annotations import Annotation, Kind
from persist_assets.core.model.columns import SHORT, Column, ColumnEdge, Growth, Parts, Windows

if TYPE_CHECKING:
    from persist_assets.core.errors import Location
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.queries import BuildID, Function, Query, SourceID


FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")
"""Formats of plain files, listed and pinned by name, size and time of change."""
CATALOG = "catalog"
"""The format of a table that the catalog of the Spark session names."""
FORMATS = ("delta", *FILE_FORMATS, "xml", "jdbc", "binaryfile", CATALOG)
"""Formats of raw tables that need no library besides Spark and this package."""

ReadMode = Literal["snapshot", "follow", "snapshot_and_follow"]


@dataclass(frozen=True, slots=True)
class External:
    """The declaration of an external table, except its location.

    It contains no secrets, only references to them (``${env:NAME}``), which are resolved when the
    table is read.

    Attributes
    ----------
    connector
        The name of its transport, a row of `connectors.CONNECTORS`.
    key
        The columns of its primary key, as declared; empty: it has none.
    mode
        The rows at one version (snapshot), the changes since a version (follow), or both.
    version
        Its start: a version of Delta, or a snapshot of Iceberg. None: the newest.
    datetime
        Its start as an instant at which the version was the newest, ISO 8601. Never both.
    end_version
        The last version that is followed.
    filter
        A condition; rows for which it is not true are ignored.
    snapshot_filter
        Such a condition for the rows at the start only.
    timestamp_column
        A column that is always fetched with the needed ones; the order of rows does not matter.
    skip_unused_columns
        Whether unused columns are not fetched.
    append_only
        Whether the declaration promises that no row is ever changed or deleted.
    cursor
        A column of a database's table whose values only grow with new rows; None: it has none.
    reading
        For a directory of files, the `format` of the files and the options of the format: sorted
        pairs with lower-case names. Otherwise empty.
    labels, start_after
        Its labels among connectors, and the labels after which it starts.
    storage
        The options of its store: sorted pairs with lower-case names.
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
    cursor: str | None = None
    reading: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()
    start_after: tuple[str, ...] = ()
    storage: tuple[tuple[str, str], ...] = ()

    @property
    def starts_anywhere(self) -> bool:
        """Whether a version alone decides its rows, regardless of where it was started."""
        return self.mode != "follow" and self.snapshot_filter is None

    @property
    def catalog_place(self) -> str | None:
        """The catalog and the table that it finds, in one text; None: there is no catalog."""
        storage = dict(self.storage)
        region, table = storage.get("glue.region"), storage.get("table_name")
        servers = (storage[name] for name in _CATALOG_SERVERS if name in storage)
        server = next(servers, None if region is None else f"glue://{region}")
        return f"{server.rstrip('/')}#{table}" if server is not None and table is not None else None


_CATALOG_SERVERS = ("rest.uri", "glue.endpoint", "unity_workspace_url")
"""The options that name the servers of catalogs."""


@dataclass(frozen=True, slots=True)
class RawTable:
    """The location and format of data outside the project.

    Attributes
    ----------
    format
        Lower case: ``parquet``, ``delta``, ``csv``, ….
    location
        The path or URI as written; a relative path starts at the project root. None for data that
        only options describe (``jdbc``, ``catalog``).
    options
        Sorted pairs with lower-case names. For an external table, the options that decide its rows.
    external
        The rest of the declaration, if it is an external table.
    """

    format: str
    location: str | None
    options: tuple[tuple[str, str], ...] = ()
    external: External | None = None


_NO_ANNOTATION = Annotation()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A definition in a file, before names are resolved.

    A declaration with neither a query nor a raw table could not be parsed. The problem has been
    reported, and the declaration only represents its name.

    Attributes
    ----------
    function
        The function that computes the rows of a Python source. Its query is the function's text,
        and names the inputs of the function. With a raw table, the function loads that data.
    wrapper
        The function in Python that does nothing but return the result of the query.
    columns
        The declared columns; a query's columns have the types that its language gives them.
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
    wrapper: Function | None = None

    @property
    def is_persistent(self) -> bool:
        """Whether it is annotated ``persist``, or is persistent by default and not annotated."""
        persist = self.annotation.persist
        return self.materialized if persist is None else persist

    @property
    def temporary(self) -> bool:
        """Whether it is a temporary table of every run that needs its rows."""
        return self.is_persistent and self.annotation.strategy == "temporary"

    @property
    def persisted(self) -> bool:
        """Whether it has a permanent table or stored query."""
        return self.is_persistent and not self.temporary


@dataclass(frozen=True, slots=True)
class Read:
    """The meaning of a source that a build read: a leaf, or a source expanded on the way to it."""

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
        The path below the sources directory without its suffix, then the name; only the path if the
        layout is `model-per-file` and the file has the name of the source.
    full_key
        The path and the name, if that is not the asset key. It means the source, too.
    persisted
        It has a table and is an asset.
    build_id
        SHA-256 hex of connection and meaning; for a raw table, of the location of its data.
    definition
        SHA-256 hex of this source's own definition, regardless of its upstreams.
    columns
        The columns, in order.
    bindings
        The SourceID of each reference of the query, in order.
    lineage
        The columns from which its columns are computed.
    volatile
        It is nondeterministic: another build on the same data has other rows.
    reads_clock
        Its rows depend on the ``day`` or the ``instant`` at which they are computed.
    notes
        Sentences for readers of a plan.
    marks
        The digests of its meaning's parts (`shortened`); see `digests`.
    temporary
        It is not an asset: a run computes it once for all sources of the run that read it.
    malloy_ids
        The BuildIDs by which Malloy's own tools look for its table, its builder's first.
    growth
        For incremental sources, how its rows depend on its inputs; its only column is the
        watermark's.
    function
        The function that computes its rows, if it is not a query; see `Declaration`.
    wrapper
        The function in Python that does nothing but return the result of its query.
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
    wrapper: Function | None = None
    full_key: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the source."""
        if self.raw is None:
            return Kind.QUERY
        return Kind.RAW if self.raw.external is None else Kind.EXTERNAL

    @property
    def external(self) -> External | None:
        """The declaration of the external table, if it is one."""
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
        """The inputs that decide windows of the first column: of partitions, or of time."""
        return next(iter(self.growth.columns), None) if self.growth else None

    @property
    def keeps_history(self) -> bool:
        """Whether its rows depend on all its earlier builds, so that they cannot be recomputed."""
        return self.annotation.refresh == "snapshot"

    @property
    def varies(self) -> bool:
        """Whether another build on the same data may have other rows."""
        return self.volatile or self.keeps_history

    @property
    def computed(self) -> tuple[Column, ...]:
        """The columns of its query: those of its table, without the columns of a history."""
        return self.columns[:-2] if self.keeps_history else self.columns

    @property
    def known_columns(self) -> tuple[Column, ...]:
        """The columns of its rows; for a function, those that its contract promises.

        Empty if they are known only once it has been computed.
        """
        promised = self.annotation.contract
        if self.columns or promised is None:
            return self.columns
        kinds = (str(kind) or None for kind in promised.values)
        return tuple(Column(n, kind) for n, kind in zip(promised.columns, kinds, strict=True))

    @property
    def promised_names(self) -> frozenset[str] | None:
        """The names of a function's columns, in lower case, by the contract of its table."""
        if self.function is None or not self.persisted:
            return None
        return frozenset(c.name.lower() for c in self.known_columns) or None

    @property
    def kinds(self) -> frozenset[str]:
        """Its kinds, as shown in Dagster."""
        return frozenset({self.raw.format} if self.raw is not None else {"spark", self.language})

    @property
    def is_leaf(self) -> bool:
        """Whether its readers read stored data: its table, or raw data."""
        return self.persisted or self.raw is not None

    @property
    def is_inline(self) -> bool:
        """Whether it has no rows of its own: what reads it computes its query."""
        return not self.is_leaf and not self.temporary

    @property
    def is_read_as_it_is(self) -> bool:
        """Whether it cannot be inlined into a query: raw data, or the result of a function."""
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
    def checks_for_readers(self) -> tuple[Check, ...]:
        """The checks of a source without rows of its own, as builds that read it record them."""
        return tuple(replace(c, name=f"{self.key}:{c.name}", view=self.key) for c in self.checks)

    @property
    def compared(self) -> tuple[SourceID, ...]:
        """The other sources that its checks look at, each once."""
        others = (c.against.source_id for c in self.checks if c.against is not None)
        return tuple(dict.fromkeys(s for s in others if s != self.source_id))

    @property
    def digests(self) -> Parts:
        """The digests of its meaning's parts."""
        marks = (self.marks[at : at + SHORT] for at in range(0, len(self.marks), SHORT))
        return Parts(
            next(marks, ""), tuple(zip((c.name for c in self.columns), marks, strict=True))
        )

    @property
    def group(self) -> str:
        """The annotated group, else one derived from the path of its file.

        A source whose key has one part only is in Dagster's group ``default``.
        """
        plain = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(self.asset_key[:-1]))
        return self.annotation.group or plain or "default"
