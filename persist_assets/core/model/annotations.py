"""The annotations of sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from persist_assets.core.settings.keys import SETTINGS_FILE

if TYPE_CHECKING:
    from persist_assets.core.errors import Location
    from persist_assets.core.model.checks import Check


class Kind(StrEnum):
    """The kinds of declarations."""

    QUERY = "query"
    RAW = "raw"
    EXTERNAL = "external"


SchemaChange = Literal["fail", "append", "sync"]
"""The handling of rows whose columns differ from those of the published table: fail, publish them
if columns were only added, or publish them always."""

Fallback = Literal["live", "stale_ok", "fail"]
"""The result of reads past a table's freshness window: its query inline, the table, an error."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """The age limits of a source's table.

    Attributes
    ----------
    window_s
        Older than this many seconds is a failure.
    warn_s
        Older than this many seconds is a warning, or None.
    fallback
        What readers get when the table is older than its window.
    """

    window_s: int
    warn_s: int | None = None
    fallback: Fallback = "stale_ok"


Strategy = Literal["table", "temporary", "view"]
"""The materialization of a source: a table, a temporary table of the run, or a view."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merging by key: the table has the latest row of each key, by its time column.

    Attributes
    ----------
    key
        The key columns; NULL is a value like any other.
    on_tie
        The handling of several different latest rows of a key: ``fail``, or take the ``greatest``,
        comparing columns in order.
    """

    key: tuple[str, ...]
    on_tie: Literal["fail", "greatest"] = "fail"


Cadence = Literal["hourly", "daily", "weekly", "monthly"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A column by whose values the rows of a table are partitioned.

    Attributes
    ----------
    every
        The length of the windows of a time column; None: each value is a partition.
    values
        The listed values, if any.
    """

    column: str
    every: Cadence | None = None
    values: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The partitioning of a table. Rows in no partition are not in the table.

    Attributes
    ----------
    dimensions
        One or two dimensions; a time dimension comes first.
    start, end
        The bounds of the time windows, in ISO 8601 and local time; the end is exclusive, None means
        no end.
    timezone
        The time zone in which windows start, for columns that hold instants.
    """

    dimensions: tuple[Dimension, ...]
    start: str | None = None
    end: str | None = None
    timezone: str = "UTC"

    @property
    def time(self) -> Dimension | None:
        """The time dimension, if there is one."""
        return self.dimensions[0] if self.dimensions[0].every else None


Refresh = Literal["auto", "incremental", "whole", "snapshot"]
"""The rows that a build computes: those that persist chooses, the changed rows, all rows, or new
versions beside the old ones."""

VALID_FROM, VALID_TO = "valid_from", "valid_to"
"""The additional columns of a history: the start and the end of a version."""


@dataclass(frozen=True, slots=True)
class Validity:
    """The settings of a history: a slowly changing dimension of type 2 (SCD2).

    Attributes
    ----------
    key
        The columns that identify an entity; NULL is a value like any other.
    watch
        The columns whose changes start a new version; others change the current one. Empty: all.
    hard_deletes
        The handling of a current version whose key is gone: it is closed, or stays.
    """

    key: tuple[str, ...]
    watch: tuple[str, ...] = ()
    hard_deletes: Literal["close", "ignore"] = "close"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schedule of recurring wants for a source.

    Attributes
    ----------
    every
        The period of the wants.
    sla_s, ttl_s
        The seconds after the end of a period until a want is late, and after its creation until it
        expires; None: never.
    needs
        References to other graphs, to which the partition's key is appended.
    """

    every: Cadence
    sla_s: int | None = None
    ttl_s: int | None = None
    needs: tuple[str, ...] = ()


Backoff = Literal["linear", "exponential"]
Jitter = Literal["full", "plus_minus"]
"""The growth of the delay before a retry, and its randomization."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Dagster's retries of a failed step.

    Attributes
    ----------
    max
        The number of attempts after the first.
    delay_s
        The seconds before each; None: no delay.
    """

    max: int
    delay_s: int | None = None
    backoff: Backoff | None = None
    jitter: Jitter | None = None


K8S_TAG = "dagster-k8s/config"
"""The tag in which dagster-k8s finds the Kubernetes configuration of an op."""
K8S_PARTS = (
    *("container_config", "pod_spec_config", "pod_template_spec_metadata"),
    *("job_config", "job_metadata", "job_spec_config"),
    "merge_behavior",
)
"""The parts of that configuration; a test compares them with the library's."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """The validated annotations of a definition.

    Attributes
    ----------
    persist
        True or False if written, else None.
    name
        The table's name, if it differs from the source's.
    strategy
        How the source is materialized.
    time_column
        The column whose greatest value is recorded as the watermark of every snapshot.
    refresh
        What a build computes.
    is_strict
        ``refresh=strict``: like ``incremental``, but a build that would compute all rows of a
        published table fails.
    lookback_s
        How many seconds late rows may arrive, if nothing else determines it.
    assume
        ``exact``: the user states that only rows past the watermark are new.
    merge
        The merging by key, or None.
    by
        The key columns of a Python function: the user asserts that the rows of a key follow only
        from the rows with this key in its inputs. Empty: the user asserts nothing.
    partition
        The partitioning, or None.
    backfill
        Whether one run builds all requested partitions, or each partition has its own run.
    on_schema_change
        The handling of rows whose columns differ from those of the published table.
    key, watch, hard_deletes
        The settings of a history; see `Validity`.
    on_change
        Whether a table is continued or recomputed when the meaning of its source changes.
    automation
        When Dagster builds the source by itself: ``eager``, ``missing`` or a cron schedule; None:
        never.
    want
        The schedule of recurring wants, or None.
    retries
        How Dagster tries a failed step again; None: as the deployment says.
    pool
        The pool of Dagster that limits how many such steps run at once, or None.
    op_tags
        Tags of the op, as sorted pairs.
    k8s
        The Kubernetes configuration of the step (`K8S_TAG`) as JSON, or None.
    tags
        Sorted pairs; a bare tag has the value ``""``.
    keys
        The keys that are written, with their locations; those of defaults are in `persist.toml`.
    removed
        The keys that ``-key`` removes, for which there are no defaults.
    """

    persist: bool | None = None
    name: str | None = None
    strategy: Strategy = "table"
    time_column: str | None = None
    refresh: Refresh = "auto"
    is_strict: bool = False
    lookback_s: int = 0
    assume: Literal["exact"] | None = None
    merge: Merge | None = None
    by: tuple[str, ...] = ()
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
    retries: Retries | None = None
    pool: str | None = None
    op_tags: tuple[tuple[str, str], ...] = ()
    k8s: str | None = None
    checks: tuple[Check, ...] = ()
    keys: tuple[tuple[str, Location], ...] = field(default=(), compare=False)
    removed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def defaults(self) -> dict[str, str]:
        """The places in `persist.toml` of keys that the source's file does not have."""
        return {key: str(at) for key, at in self.keys if at.path == SETTINGS_FILE}

    @property
    def refresh_value(self) -> str:
        """The value of the key ``refresh``."""
        return "strict" if self.is_strict else self.refresh

    @property
    def is_incremental(self) -> bool:
        """Whether builds compute only rows that can differ, where they can."""
        return self.refresh == "incremental"

    @property
    def validity(self) -> Validity | None:
        """The settings of the history, None if the source keeps none."""
        if self.refresh != "snapshot":
            return None
        return Validity(self.key, self.watch, self.hard_deletes)

    @property
    def trusted_lookback_s(self) -> int | None:
        """The lookback that decides which late rows the table gets; None if it does not matter.

        Proven increments include rows however late they are. ``assume=exact`` applies where nothing
        is proven, so it relies on the lookback too, even on its absence.
        """
        return self.lookback_s if self.assume is not None else None

    @property
    def contract(self) -> Check | None:
        """The check that names all columns of its table; None for a history, which adds columns."""
        if self.refresh == "snapshot":
            return None
        return next((c for c in self.checks if c.kind == "columns" and not c.others), None)

    @property
    def goes_on(self) -> bool:
        """Whether a table is continued when its source's meaning changes; default for histories."""
        if self.refresh == "snapshot":
            return self.on_change != "rebuild"
        return self.on_change == "continue"
