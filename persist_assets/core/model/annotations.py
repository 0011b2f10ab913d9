"""What annotations say of a source."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from persist_assets.core.errors import Location
    from persist_assets.core.model.checks import Check


class Kind(StrEnum):
    """What a declaration declares."""

    QUERY = "query"
    RAW = "raw"
    EXTERNAL = "external"


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
