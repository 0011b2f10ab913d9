"""The values that flow through the product: declarations, sources, projects, plans, snapshots.

All are frozen and hold tuples and names, never live objects, so that equal things are equal,
can be keys, and can be sent to another process. The words are those of `docs/architecture/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from persist_assets.core.errors import Location, Problem

Scalar = str | int | float | bool
SourceID = str
BuildID = str


class Kind(StrEnum):
    """What a declaration declares."""

    QUERY = "query"
    RAW = "raw"
    EXTERNAL = "external"


# ---------------------------------------------------------------------------------- annotations


CheckKind = Literal[
    "columns",
    "not_null",
    "unique",
    "accepted_values",
    "range",
    "relationship",
    "row_count",
    "freshness",
    "expr",
    "function",
]


@dataclass(frozen=True, slots=True)
class Check:
    """One assertion about the rows of a source.

    Attributes
    ----------
    kind
        Which assertion.
    name
        Unique within the source, letters, digits and underscores.
    columns
        For ``unique`` the key's columns, for ``columns`` all that are promised, else the one column
        that is looked at.
    values
        For ``accepted_values`` the values, for ``columns`` the types, empty where any will do, for
        ``relationship`` and ``function`` the name of the other, as written. NULL always passes.
    expression
        For ``expr``: a Spark SQL condition on one row. As in SQL's own CHECK, NULL passes.
    least, most
        For ``range`` and ``row_count``: the ends, which belong to it.
    age_s
        For ``freshness``: so many seconds old the greatest value may be.
    since
        For ``freshness``, when it is asked: the instant before which the greatest value is too old.
    others
        For ``columns``: there may be others too.
    against
        For ``relationship``: the column that has the values.
    function, wording
        For ``function``: what is called, and a digest of all its code.
    fickle
        It may have another answer later on the same rows: it looks at the clock, or draws lots.
    blocking
        A failure keeps the rows from being published.
    per_partition
        Each partition is judged for itself. Never said of what comes out the same without it.
    location
        Of the annotation.
    """

    kind: CheckKind
    name: str
    columns: tuple[str, ...] = ()
    values: tuple[Scalar, ...] = ()
    expression: str | None = None
    least: Scalar | None = None
    most: Scalar | None = None
    age_s: int = 0
    since: datetime | None = None
    others: bool = False
    against: ColumnRef | None = None
    function: Function | None = None
    wording: str = ""
    fickle: bool = False
    blocking: bool = True
    per_partition: bool = False
    location: Location | None = field(default=None, compare=False)

    @property
    def on_rows(self) -> bool:
        """Whether one row at a time tells: it needs no look at all rows together."""
        return self.kind in ("not_null", "accepted_values", "range", "expr")

    @property
    def in_pass(self) -> bool:
        """Whether an aggregate tells, so that it is computed while rows are written."""
        return self.on_rows or self.kind in ("row_count", "freshness")

    @property
    def alone(self) -> bool:
        """Whether the rows tell all together, without other tables and code of the project."""
        return self.kind not in ("relationship", "function") and not self.per_partition

    @property
    def definition(self) -> str:
        """What is checked, in words: equal for equal checks."""
        return f"{self._asserted}{' in each partition' if self.per_partition else ''}"

    @property
    def _asserted(self) -> str:
        match self.kind:
            case "expr":
                return f"{self.expression}"
            case "accepted_values":
                return f"{self.columns[0]} in {list(self.values)}"
            case "columns":
                named = zip(self.columns, self.values, strict=True)
                told = ", ".join(f"{name} {kind}".strip() for name, kind in named)
                return f"columns {told}{', and others' if self.others else ''}"
            case "range":
                return f"{self.columns[0]} {_between(self.least, self.most)}"
            case "row_count":
                return f"row count {_between(self.least, self.most)}"
            case "freshness":
                return f"greatest {self.columns[0]} at most {in_units(self.age_s)} old"
            case "relationship":
                other = self.against
                told = f"{other.source_id}.{other.column}" if other else f"{self.values[0]}"
                return f"{self.columns[0]} in {told}"
            case "function":
                return f"function {self.values[0]} ({self.wording[:12]})"
            case _:
                return f"{', '.join(self.columns)} {self.kind.replace('_', ' ')}"


def _between(least: Scalar | None, most: Scalar | None) -> str:
    if least is None or most is None:
        return f"at most {most}" if least is None else f"at least {least}"
    return f"between {least} and {most}"


def in_units(seconds: int) -> str:
    """Return a time in the largest unit that it is a whole number of.

    Examples
    --------
    >>> in_units(172_800), in_units(5_400)
    ('2 days', '90 minutes')
    """
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"


SchemaChange = Literal["fail", "append", "sync"]
"""What becomes of rows whose columns are others than those of the table that is published: nothing,
they are published if columns were only added, or always."""


Fallback = Literal["live", "stale_ok", "fail"]
"""What reads a table that is older than it may be: the query inline, it all the same, nothing."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old a source's table may get.

    Attributes
    ----------
    window_s
        Older than this many seconds is a failure.
    warn_s
        Older than this many seconds is a warning, or None.
    fallback
        What its readers get when it is older than its window.
    """

    window_s: int
    warn_s: int | None = None
    fallback: Fallback = "stale_ok"


Strategy = Literal["table", "temporary", "view"]
"""How a source's rows are kept: in a table, in one that goes with the run, not at all."""


@dataclass(frozen=True, slots=True)
class Merge:
    """How a table has one row for each key of the rows of its query: the last by its time column.

    Attributes
    ----------
    key
        Columns; NULL is a value like any other.
    on_tie
        What becomes of different rows of a key that are the last: ``fail``, or the ``greatest``
        of them is taken, its columns compared in their order.
    """

    key: tuple[str, ...]
    on_tie: Literal["fail", "greatest"] = "fail"


Cadence = Literal["hourly", "daily", "weekly", "monthly"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A column by whose values the rows of a table are parted.

    Attributes
    ----------
    every
        How long the windows of a time column are; None: each value is its own part.
    values
        The values, where they are listed.
    """

    column: str
    every: Cadence | None = None
    values: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the rows of a table are parted. Rows that are in no partition are not in the table.

    Attributes
    ----------
    dimensions
        One or two; one of times comes first.
    start, end
        Of the windows of time, in ISO 8601 and local time; the end is exclusive, None for never.
    timezone
        In which windows begin, for columns that hold instants.
    """

    dimensions: tuple[Dimension, ...]
    start: str | None = None
    end: str | None = None
    timezone: str = "UTC"

    @property
    def time(self) -> Dimension | None:
        """The dimension of times, if there is one."""
        return self.dimensions[0] if self.dimensions[0].every else None


Refresh = Literal["full", "incremental", "snapshot"]
"""What a build makes: all rows anew, those that are not what they were, or new versions of rows
beside the old ones."""

VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""The columns that a history has besides those of its query: from when until when a row was so."""


@dataclass(frozen=True, slots=True)
class Validity:
    """How a table keeps what the rows of its query were: slowly changing dimensions of type 2.

    Attributes
    ----------
    key
        Columns that tell rows of one thing from those of others; NULL is a value like any other.
    watch
        Only a change of these makes a new version, others go into the current one; empty: all.
    hard_deletes
        What becomes of a current version whose key is gone: it is closed, or stays.
    """

    key: tuple[str, ...]
    watch: tuple[str, ...] = ()
    hard_deletes: Literal["close", "ignore"] = "close"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How often a source is wanted by itself.

    Attributes
    ----------
    every
        For how long each want is.
    sla_s, ttl_s
        Seconds after the end of that time until it is late, and after the want until it is given
        up; None: never.
    needs
        References of other graphs, to which the key of the partition is added.
    """

    every: Cadence
    sla_s: int | None = None
    ttl_s: int | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Annotation:
    """What the annotation lines above a definition say, validated.

    Attributes
    ----------
    persist
        True or False if said, None if not.
    name
        The table's name, where it differs from the source's.
    strategy
        How the rows are kept.
    time_column
        The column whose greatest value is recorded as the watermark of every snapshot.
    refresh
        What a build computes.
    lookback_s
        Rows may arrive so many seconds after later ones, where nothing else tells.
    assume
        ``exact``: the user knows that only rows past the watermark are new.
    merge
        How the table has one row for each key, or None.
    partition
        How its rows are parted, or None.
    backfill
        Whether one run builds all partitions that are asked for, or each has its own.
    on_schema_change
        What becomes of rows that have other columns than the table that is published.
    key, watch, hard_deletes
        How versions are kept: see `Validity`.
    on_change
        Whether a table goes on when its source means something else, or is computed anew.
    automation
        When Dagster builds it by itself: ``eager``, ``missing`` or a schedule of cron's; None: it
        does not.
    want
        How often it is wanted by itself, or None.
    tags
        Sorted pairs; a bare tag has the value ``""``.
    keys
        The keys that were given, with their places.
    """

    persist: bool | None = None
    name: str | None = None
    strategy: Strategy = "table"
    time_column: str | None = None
    refresh: Refresh = "full"
    lookback_s: int = 0
    assume: Literal["exact"] | None = None
    merge: Merge | None = None
    partition: Partitioning | None = None
    backfill: Literal["single_run", "multi_run"] = "single_run"
    on_schema_change: SchemaChange = "sync"
    key: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()
    hard_deletes: Literal["close", "ignore"] = "close"
    on_change: Literal["rebuild", "continue"] | None = None
    owners: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    group: str | None = None
    freshness: Freshness | None = None
    automation: str | None = None
    want: Wanted | None = None
    checks: tuple[Check, ...] = ()
    keys: tuple[tuple[str, Location], ...] = field(default=(), compare=False)

    @property
    def validity(self) -> Validity | None:
        """How the table keeps what rows were, None where it does not."""
        if self.refresh != "snapshot":
            return None
        return Validity(self.key, self.watch, self.hard_deletes)

    @property
    def trusted_lookback_s(self) -> int | None:
        """The lookback that decides which late rows the table has; None where none does.

        What is proven to be new comes however late it is. Nothing is proven of all changes, so
        whoever says ``assume=exact`` trusts the lookback as well, also that there is none.
        """
        return self.lookback_s if self.assume is not None else None

    @property
    def goes_on(self) -> bool:
        """Whether a table goes on when its source means something else; histories do by default."""
        if self.refresh == "snapshot":
            return self.on_change != "rebuild"
        return self.on_change == "continue"


# --------------------------------------------------------------------------------- declarations


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source.

    Attributes
    ----------
    type
        Spark's name of the type (``decimal(10,2)``, ``struct<a:int>``), or None where it is not
        known before the query has run.
    """

    name: str
    type: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A place in a query's text that names another source.

    Attributes
    ----------
    parts
        The name as written, unquoted, its qualifiers first.
    start, end
        Offsets of the name in the query's text, end exclusive.
    alias_at
        Offset where `` AS name`` has to be inserted when the name is replaced; None when the
        query gives an alias itself.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    alias_at: int | None
    location: Location = field(compare=False)


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition of a query that compares something with a parameter.

    Attributes
    ----------
    name
        ``watermark``, ``partition_start`` or ``partition_end``.
    start, end
        Where the operator and the parameter stand in the text.
    leads
        The parameter stands before the operator.
    """

    name: str
    start: int
    end: int
    leads: bool
    location: Location = field(compare=False)


@dataclass(frozen=True, slots=True)
class Query:
    """The text of a query with the places where it names other sources.

    Attributes
    ----------
    text
        The user's own text, from its first to its last token.
    references
        In the order of the text.
    column_names
        New names for all output columns (``CREATE VIEW v (a, b) AS …``), or empty.
    wording
        Digest of the text without comments and white space, its references by number.
    lost
        What `tree` does not tell of the text, or None where it is to be trusted.
    bounds
        The conditions by parameters, in the order of the text.
    tree
        What the parser made of the text: the compiler's input, gone afterwards, and not there
        before where the query's meaning may be remembered.
    """

    text: str
    references: tuple[Reference, ...] = ()
    column_names: tuple[str, ...] = ()
    wording: str = ""
    lost: str | None = None
    bounds: tuple[Bound, ...] = ()
    tree: Any = field(default=None, compare=False, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function that gets its value from us.

    Attributes
    ----------
    kind
        ``frame`` for a Spark DataFrame, ``session`` for the Spark session; else the module of
        Narwhals whose LazyFrame it is.
    selects
        Texts in which every column of it stands that is looked at; None: it may be any.
    columns
        What it is given of its source, where `selects` tells; None: all.
    """

    name: str
    kind: str
    location: Location = field(compare=False)
    positional: bool = False
    selects: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function in a file of Python whose result is the rows of a source.

    Attributes
    ----------
    path
        Of its file.
    name
        By which its module knows it.
    parameters
        Those without a default, in order.
    modules
        Paths and texts of its file and of all of the project that it imports: what is run, whatever
        the files say by then.
    names, methods, calls
        What of others it uses: dotted names, methods of anything, functions in texts of SQL.
    """

    path: str
    name: str
    parameters: tuple[Parameter, ...]
    modules: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def frames(self) -> tuple[Parameter, ...]:
        """The parameters that are other sources, in the order of the query's references."""
        return tuple(p for p in self.parameters if p.kind != "session")


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
    annotation: Annotation = Annotation()
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
        said = self.annotation.persist
        return self.materialized if said is None else said

    @property
    def temporary(self) -> bool:
        """Whether every run that needs its rows keeps them for as long as it lasts."""
        return self.kept and self.annotation.strategy == "temporary"

    @property
    def persisted(self) -> bool:
        """Whether it has a table, or a stored query, that stays."""
        return self.kept and not self.temporary


# -------------------------------------------------------------------------------------- project


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of a source."""

    source_id: SourceID
    column: str


@dataclass(frozen=True, slots=True, order=True)
class Taken:
    """A monotone function of dates and times.

    Attributes
    ----------
    function
        ``cast``, ``date_trunc``, ``trunc`` or ``year``.
    unit
        The type that is cast to, or what is cut down to.
    days
        At most how many days earlier what comes of it may be; -1: that is not known.
    """

    function: str
    unit: str
    days: int


@dataclass(frozen=True, slots=True, order=True)
class Trace:
    """A column of a table that another column's value is a monotone function of.

    Attributes
    ----------
    steps
        The function: what is done to the column's value, one after another.
    """

    column: ColumnRef
    steps: tuple[Taken, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """What the rows follow from in which a column has a value of some set.

    Attributes
    ----------
    traces
        Only rows of these tables matter whose columns lead to values of that set.
    loose
        The tables of which any row may matter.
    """

    traces: tuple[Trace, ...]
    loose: frozenset[SourceID]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the rows of a relation follow those of the tables it reads (`meaning/increments.py`).

    Attributes
    ----------
    reads
        All these tables.
    sums
        Sets of them: what is added to the tables of one, the others being as they were, adds the
        relation's own rows over what is added, and changes no other row.
    columns
        For each column.
    """

    reads: frozenset[SourceID]
    sums: tuple[frozenset[SourceID], ...]
    columns: tuple[Windows, ...]


@dataclass(frozen=True, slots=True)
class ColumnEdge:
    """A column that another is computed from.

    Attributes
    ----------
    upstream
        A column of a persisted source or raw table: what lies between is dissolved.
    column
        The name of the column computed from it.
    """

    upstream: ColumnRef
    column: str


@dataclass(frozen=True, slots=True)
class Parts:
    """What a source means, in parts that can be compared; BuildIDs alone decide what is built.

    Attributes
    ----------
    rows
        Short digest of which rows there are, whatever columns they have.
    columns
        For each column, in order, its name and a short digest of what it is of those rows.
    """

    rows: str
    columns: tuple[tuple[str, str], ...] = ()


SHORT = 16
"""How many characters of a digest are kept where it only tells what changed."""


def shortened(rows: str, columns: Iterable[str]) -> str:
    """Return the beginnings of digests in one text: of the rows, then of each column."""
    return "".join(d[:SHORT] for d in (rows, *columns))


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


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query that a Malloy file gives a name, to be run when somebody asks."""

    name: str
    location: Location
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A source that is declared and could not be compiled: something in it, or below it, is wrong.

    Attributes
    ----------
    reads
        What of its references means something.
    """

    source_id: SourceID
    asset_key: tuple[str, ...]
    language: str
    location: Location
    description: str | None = None
    reads: tuple[SourceID, ...] = ()

    @property
    def key(self) -> str:
        """The asset key in one string."""
        return "/".join(self.asset_key)


def may_mean(key: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether a name in parts, or what qualifies one, may mean an asset key, or that of a file."""
    end = key[max(len(key) - len(parts), 0) :]
    return [k.lower() for k in end] == [part.lower() for part in parts]


@dataclass(frozen=True, slots=True)
class Needed:
    """What a persisted source, or a query, needs of an external table.

    Attributes
    ----------
    predicate
        Of the rows, canonical SQL; it may read the clock.
    columns
        Sorted.
    not_pushed
        The conditions that are not in the predicate, each with why.
    """

    reader: SourceID
    table: SourceID
    predicate: str
    columns: tuple[str, ...]
    not_pushed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Project:
    """Everything the sources directory defines.

    Attributes
    ----------
    sources
        Every source after all it reads.
    problems
        Sorted by location. A project that has errors among them holds only the sources that
        could be compiled.
    queries
        Of all Malloy files, in order of files and lines.
    broken
        The sources that could not, as far as their files tell of them, and those that may read
        one of these.
    unread
        Asset keys of files that cannot be read, without a name: they may define any.
    needs
        What the persisted sources need of external tables.
    needs_of
        Returns what all rows of any source need of them.
    """

    sources: tuple[Source, ...] = ()
    problems: tuple[Problem, ...] = ()
    queries: tuple[NamedQuery, ...] = ()
    broken: tuple[Broken, ...] = ()
    unread: tuple[tuple[str, ...], ...] = ()
    needs: tuple[Needed, ...] = ()
    needs_of: Callable[[SourceID], tuple[Needed, ...]] = field(
        default=lambda _: (), compare=False, repr=False
    )

    @cached_property
    def by_id(self) -> Mapping[SourceID, Source]:
        """The sources by SourceID."""
        return {s.source_id: s for s in self.sources}

    @cached_property
    def readers(self) -> Mapping[SourceID, tuple[SourceID, ...]]:
        """Which sources read a source directly."""
        readers: dict[SourceID, list[SourceID]] = {s.source_id: [] for s in self.sources}
        for source in self.sources:
            for upstream in source.reads:
                readers[upstream].append(source.source_id)
        return {k: tuple(v) for k, v in readers.items()}

    @property
    def persisted(self) -> tuple[Source, ...]:
        """The persisted sources, every one after all it reads."""
        return tuple(s for s in self.sources if s.persisted)

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that stop the project from loading."""
        return tuple(p for p in self.problems if p.severity == "error")

    @cached_property
    def by_key(self) -> Mapping[tuple[str, ...], Source]:
        """The sources by asset key."""
        return {s.asset_key: s for s in self.sources}

    @cached_property
    def by_build_id(self) -> Mapping[BuildID, tuple[Source, ...]]:
        """The persisted sources by BuildID: those of one meaning share one table."""
        found: dict[BuildID, list[Source]] = {}
        for source in self.persisted:
            found.setdefault(source.build_id, []).append(source)
        return {k: tuple(v) for k, v in found.items()}

    @cached_property
    def malloy(self) -> Mapping[BuildID, BuildID]:
        """What the BuildIDs mean by which Malloy's own tools look for tables.

        Not those that two sources of different meaning have: Malloy's know the tables they read
        by name only. Nor those of histories, of which Malloy knows one row of each key.
        """
        found: dict[BuildID, set[BuildID]] = {}
        for source in self.sources:
            for malloy_id in () if source.keeps_history else source.malloy_ids:
                found.setdefault(malloy_id, set()).add(source.build_id)
        return {m: next(iter(ours)) for m, ours in found.items() if len(ours) == 1}

    def find_named(self, ref: str) -> tuple[Source, str] | None:
        """Return the persisted source that a reference begins with, and what comes after it."""
        parts = tuple(ref.split("/"))
        for n in range(len(parts), 0, -1):
            source = self.by_key.get(parts[:n])
            if source is not None and source.persisted:
                return source, "/".join(parts[n:])
        return None

    def waits_for(self, source: Source) -> tuple[Source, ...]:
        """Return what a build of `source` reads, and what its checks do: see `inputs`."""
        looked = self.reach(source.compared, lambda s: s.is_leaf)
        found = {s.source_id: s for s in (*self.inputs(source), *looked) if s.is_leaf}
        return tuple(found.values())

    def guards(self, source: Source) -> tuple[Check, ...]:
        """Return the blocking checks of the temporary sources that a source is computed from."""
        reached = self.reach(source.bindings, lambda s: s.is_leaf)
        return tuple(
            replace(check, name=f"{s.key}:{check.name}")
            for s in reached
            if s.temporary
            for check in s.checks
            if check.blocking
        )

    def is_view(self, source: Source) -> bool:
        """Whether a persisted source is a stored query; not where a table of its is wanted too."""
        return all(s.annotation.strategy == "view" for s in self.by_build_id[source.build_id])

    @cached_property
    def _position(self) -> Mapping[SourceID, int]:
        return {s.source_id: n for n, s in enumerate(self.sources)}

    @cached_property
    def _inputs(self) -> dict[SourceID, tuple[Source, ...]]:
        return {}

    def reach(
        self, start: Iterable[SourceID], stop: Callable[[Source], bool]
    ) -> tuple[Source, ...]:
        """Return `start` and all that it reads, not looking beyond where `stop` is true.

        In dependency order.
        """
        found: set[SourceID] = set()
        stack = [*start]
        while stack:
            source_id = stack.pop()
            if source_id not in found:
                found.add(source_id)
                source = self.by_id[source_id]
                if not stop(source):
                    stack += source.bindings
        return tuple(self.by_id[s] for s in sorted(found, key=self._position.__getitem__))

    def inputs(self, source: Source) -> tuple[Source, ...]:
        """Return what a build of `source` reads: persisted sources and raw tables.

        Sources between them that are not persisted are dissolved. In dependency order.
        """
        known = self._inputs.get(source.source_id)
        if known is None:
            reached = self.reach(source.bindings, lambda s: s.is_leaf)
            known = tuple(s for s in reached if s.is_leaf)
            self._inputs[source.source_id] = known
        return known


# ------------------------------------------------------------------------------ builds and plans


@dataclass(frozen=True, slots=True, order=True)
class RawVersion:
    """A version of a raw table.

    Attributes
    ----------
    raw
        The BuildID of the raw table, which says where the data is.
    version
        Equal if and only if the data is the same (``delta:12:<table id>``, ``files:<digest>``).
    """

    raw: BuildID
    version: str


AsOf = tuple[RawVersion, ...]
"""The versions of all raw tables that rows rest on, sorted. Two versions of one raw table mean
that the rows mix them."""


def merge_as_of(parts: Iterable[Iterable[RawVersion]]) -> AsOf:
    """Return the versions that rows rest on which were computed from rows resting on `parts`."""
    return tuple(sorted({version for part in parts for version in part}))


def mixed(as_of: AsOf) -> tuple[BuildID, ...]:
    """Return the raw tables of which `as_of` holds more than one version."""
    raws = [v.raw for v in as_of]
    return tuple(sorted({raw for raw in raws if raws.count(raw) > 1}))


@dataclass(frozen=True, slots=True)
class FailedPartition:
    """A partition in which a check fails.

    Attributes
    ----------
    failed_rows
        How many of its rows fail; 0 where no single row does.
    found
        What there was, in words, where the number of rows does not tell.
    """

    key: str
    failed_rows: int = 0
    found: str | None = None


_SHOWN = 3
"""So many of the partitions in which a check fails are named in words."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check of one build.

    Attributes
    ----------
    failed_rows
        How many rows fail; 0 where no single row does.
    definition
        What was checked (`Check.definition`).
    found
        What there was, in words, where the number of rows does not tell.
    sample
        Some of the rows that fail, as JSON.
    basis
        What the answer rests on besides the rows: of a relationship what the other source was, of
        freshness the greatest value, in microseconds since 1970; of each partition, as JSON,
        where these are judged by the clock.
    partitions
        Of a partitioned source, all in which it fails, in order. Nothing where that cannot be told.
    """

    name: str
    passed: bool
    blocking: bool
    failed_rows: int
    definition: str
    found: str | None = None
    sample: tuple[str, ...] = ()
    basis: str | None = None
    partitions: tuple[FailedPartition, ...] = ()

    @property
    def in_words(self) -> str:
        """What there was, and in which partitions what fails.

        Examples
        --------
        >>> places = (FailedPartition("2024-01-03", 2), FailedPartition("2024-01-05", 1))
        >>> CheckResult("not_null_a", False, True, 3, "a not null", partitions=places).in_words
        '3 rows: 2 in 2024-01-03, 1 in 2024-01-05'
        """
        whole = self.found or f"{self.failed_rows} rows"
        if not self.partitions:
            return whole
        if len(self.partitions) == 1 and self.partitions[0].found is None:
            return f"{whole} in {self.partitions[0].key}"
        told = [f"{p.found or p.failed_rows} in {p.key}" for p in self.partitions[:_SHOWN]]
        more = len(self.partitions) - _SHOWN
        rest = f" and {more} more partition{'s' * (more != 1)}" if more > 0 else ""
        return f"{whole}: " * bool(self.failed_rows) + ", ".join(told) + rest


@dataclass(frozen=True, slots=True)
class Leaf:
    """Something that a stored query reads.

    Attributes
    ----------
    name
        What the query calls it.
    build_uid
        Of a snapshot, the build that wrote it; of a raw table None.
    raw
        Of a raw table, its version.
    columns
        Of a raw table those that it had: others may have come since, and the query's text, as
        ``*`` or ``NATURAL JOIN``, would mean them too. Empty where an earlier release stored it.
    """

    name: str
    build_uid: str | None = None
    raw: RawVersion | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A query that is stored instead of its rows, over what never changes.

    Attributes
    ----------
    sql
        Complete, Spark SQL.
    """

    sql: str
    leaves: tuple[Leaf, ...] = ()


Runs = tuple[tuple[str, str], ...]
"""Partition keys: each first and last of several that follow one another."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Partitions whose rows rest on the same data.

    Attributes
    ----------
    inputs
        What they were computed from directly, as of a snapshot; empty where that is not known.
    """

    runs: Runs
    as_of: AsOf
    inputs: AsOf = ()


@dataclass(frozen=True, slots=True)
class Partitions:
    """Which partitions a snapshot has.

    Attributes
    ----------
    filled
        Disjoint.
    built
        Those whose rows are not those of `base`.
    base
        The build that wrote the snapshot which it continues; None: it continues none.
    """

    filled: tuple[Filled, ...]
    built: Runs = ()
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable version of a table: what a build produces.

    Attributes
    ----------
    build_uid
        The build that wrote it.
    table
        The table's directory below the warehouse.
    version
        Of the Delta table.
    as_of
        The raw versions its rows rest on.
    content
        Digest of the rows, whatever their order; equal contents are interchangeable.
    watermark
        The greatest value of the time column, as text, or None.
    columns
        Names and Spark types as written.
    inputs
        What its rows were computed from directly: versions of raw tables, contents of tables.
    current_at
        When all that it rests on was last known to be current: its age counts from there.
    view
        What there is instead of a table, or None.
    parts
        The other builds whose files it has too, sorted.
    time_column
        The column that the watermark is of.
    partitions
        Which partitions it has; None: its source has none.
    """

    build_uid: str
    source_id: SourceID
    build_id: BuildID
    table: str
    version: int
    as_of: AsOf
    content: str
    rows: int
    bytes: int
    built_at: datetime
    columns: tuple[Column, ...] = ()
    watermark: str | None = None
    inputs: AsOf = ()
    current_at: datetime | None = field(default=None, compare=False)
    view: View | None = None
    parts: tuple[str, ...] = ()
    time_column: str | None = None
    partitions: Partitions | None = None

    @property
    def known_at(self) -> datetime:
        """When its rows were last known to be those of the present, as far as is recorded."""
        return self.current_at or self.built_at


BuildState = Literal["started", "succeeded", "failed"]


@dataclass(frozen=True, slots=True)
class Written:
    """How much a build wrote itself: the rest of its snapshot it found."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Build:
    """One recorded attempt to compute one source.

    Attributes
    ----------
    definition
        The source's own definition digest at the time.
    action
        ``built`` computed rows, ``reused`` found them.
    snapshot
        What readers get since it succeeded.
    digests
        What the source meant at the time, in parts; None of builds that did not record it.
    reads
        What it read meant at the time: leaves, and what was dissolved on the way to them.
    written
        None of builds that have not succeeded, or did not record it.
    """

    build_uid: str
    source_id: SourceID
    build_id: BuildID
    definition: str
    environment: str
    run_id: str | None
    state: BuildState
    action: Literal["built", "reused"]
    started_at: datetime
    finished_at: datetime | None = None
    error: str | None = None
    snapshot: Snapshot | None = None
    digests: Parts | None = None
    reads: tuple[Read, ...] = ()
    written: Written | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took, in seconds."""
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None


ReasonCode = Literal[
    "new",
    "same-rows",
    "unchecked",
    "no-data",
    "code",
    "upstream",
    "input",
    "unversioned",
    "strategy",
    "age",
    "clock",
    "mixed",
    "missing",
    "partition",
    "increment",
    "whole",
    "history",
    "older",
    "tainted",
    "forced",
    "failed",
]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step is in a plan.

    Attributes
    ----------
    source_id
        What caused it, if not the step's own source.
    """

    code: ReasonCode
    message: str
    source_id: SourceID | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A file that became part of a table, or is none any more.

    Attributes
    ----------
    path
        Absolute.
    spans
        By column, lower case, the least and the greatest value and whether there are NULLs;
        columns of which that is not certain are not there.
    bytes
        0 where it is not known.
    """

    path: str
    spans: Mapping[str, tuple[Any, Any, bool]] = field(
        default_factory=dict[str, tuple[Any, Any, bool]], hash=False
    )
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a table since rows were computed from it: files that came and went.

    Attributes
    ----------
    within
        By column, lower case, spans of values that all rows have which came or went, where that
        is known besides; in their order.
    """

    added: tuple[Piece, ...] = ()
    lost: tuple[Piece, ...] = ()
    within: Mapping[str, tuple[tuple[Any, Any], ...]] = field(
        default_factory=dict[str, "tuple[tuple[Any, Any], ...]"], hash=False
    )


@dataclass(frozen=True, slots=True)
class Increment:
    """How a build makes a snapshot of another one instead of computing all rows.

    Attributes
    ----------
    base
        What it starts from.
    added
        The files that are read of tables that only grew: the rows over them are added.
    changes
        Of tables that the rows of windows follow from: these windows are computed again. Empty
        where rows are only added.
    traces
        From columns of those tables to the time column.
    past
        The user says that only rows later than the base's watermark can be others.
    again
        Spans of the time column that are computed again whatever changed.
    late
        With `past`, the names of tables to which files came with times before that.
    """

    base: Snapshot
    added: Mapping[SourceID, tuple[str, ...]] = field(
        default_factory=dict[str, "tuple[str, ...]"], hash=False
    )
    changes: Mapping[SourceID, Change] = field(default_factory=dict[str, "Change"], hash=False)
    traces: tuple[Trace, ...] = ()
    past: bool = False
    again: tuple[tuple[Any, Any], ...] = ()
    late: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step will probably cost: what it cost the last time.

    Attributes
    ----------
    seconds
        None where the last build did not compute anything.
    """

    rows: int
    bytes: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Step:
    """One source in a plan.

    Attributes
    ----------
    as_of
        What its snapshot will rest on.
    snapshot
        What is reused.
    increment
        How it is built of what is there; None: all of it is computed.
    keys
        Of a partitioned source, the partitions that are computed, in order.
    base
        What has the other partitions.
    partitions
        Which partitions its snapshot will have.
    history
        The history that it goes on with; None: there is none, or it begins anew.
    """

    source_id: SourceID
    action: Literal["build", "reuse"]
    build_id: BuildID
    as_of: AsOf
    reasons: tuple[Reason, ...] = ()
    estimate: Estimate | None = None
    snapshot: Snapshot | None = None
    increment: Increment | None = None
    keys: tuple[str, ...] | None = None
    base: Snapshot | None = None
    partitions: Partitions | None = None
    history: Snapshot | None = None

    @property
    def goes_on_from(self) -> Snapshot | None:
        """What of its rows it keeps, in their table or in another one."""
        return self.increment.base if self.increment else self.history


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be built and what reused, every step after those it needs."""

    environment: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """What is held here of an external table: some rows of one of its versions, some columns.

    Attributes
    ----------
    copy_id
        Digest of where the table is and how it is read: declarations alike share a copy.
    version
        Of the external table.
    table_id
        Of the copy's own Delta table: another one, if the copy is made anew.
    committed
        The version of that table.
    predicate
        The rows of the external table that are held, exactly: canonical SQL without a clock.
    format
        The version of the language that it is written in.
    columns
        Those that are held, sorted; all others are NULL.
    as_of
        What the clock said when the predicate was written down.
    rows, bytes
        Of the copy.
    seen
        For every predicate that somebody needs, as it is written in the program, the version of
        the copy's table from which on its rows have been what they are.
    retired_at
        When rows that nobody needs any more were last given up.
    """

    copy_id: str
    version: str
    table_id: str
    committed: int
    predicate: str
    format: int
    columns: tuple[str, ...]
    as_of: datetime
    rows: int
    bytes: int
    seen: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    retired_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """What a change did to one manifest entry: the snapshots that readers got, None for none."""

    build_id: BuildID
    before: Snapshot | None
    after: Snapshot | None

    @property
    def source_id(self) -> SourceID:
        """The source whose build it was."""
        known = self.after or self.before
        assert known is not None
        return known.source_id


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """A change of an environment's manifest, all at once.

    Attributes
    ----------
    change_id
        The position of its event in the ledger's log.
    by
        Who asked for it.
    back_to
        Of a rollback, the change right after which the manifest is as it was; 0: before the first.
    undone
        Of a rollback that takes back single changes, these.
    """

    change_id: int
    environment: str
    at: datetime
    kind: Literal["build", "promote", "rollback", "collect"]
    by: str
    why: str | None
    run_id: str | None
    moves: tuple[Move, ...]
    back_to: int | None = None
    undone: tuple[int, ...] = ()

    @property
    def moved(self) -> frozenset[BuildID]:
        """The entries that got other rows: not those whose table was found to be up to date."""
        uids = {m.build_id: [s and s.build_uid for s in (m.before, m.after)] for m in self.moves}
        return frozenset(b for b, (before, after) in uids.items() if before != after)


@dataclass(frozen=True, slots=True)
class Holding:
    """What the ledger knows of a table's builds: which files may go, and which may not.

    Attributes
    ----------
    build_ids
        Of what is built into it: who has the leases of all of them has the table alone.
    kept
        The builds whose snapshots somebody may read, with their versions.
    gone
        The builds whose snapshots nobody may read any more, with their versions; those that
        failed have none.
    started
        The builds that have no end, or none that they recorded themselves, with the processes
        they are of (`host:pid`) and when they began.
    parts
        By build, the other builds whose files it has too.
    """

    table: str
    build_ids: tuple[BuildID, ...]
    kept: Mapping[str, int]
    gone: Mapping[str, int | None]
    started: tuple[tuple[str, str | None, datetime], ...]
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True)
class Event:
    """A past fact. `idx` is its gapless position in the ledger's log."""

    idx: int
    at: datetime
    kind: str
    data: Mapping[str, Any] = field(hash=False)
