"""Plans: their steps, with reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.columns import Trace
    from persist_assets.core.model.deltas import Merging, Program
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, Partitions, Snapshot


ReasonCode = Literal[
    "new",
    "taken-over",
    "upgrade",
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
    "strict",
    "history",
    "older",
    "tainted",
    "forced",
    "failed",
]

Maintenance = Literal[
    "reuse", "stamp", "append", "merge", "keys", "windows", "partitions", "history", "whole"
]
"""The method by which a build brings a table up to date.

``reuse``
    The table is up to date.
``stamp``
    The data is newer, but the rows are the same: only the versions it depends on are recorded.
``append``
    Rows are added.
``merge``
    Computed rows are merged with those of the same key.
``keys``
    The rows of keys that may differ are replaced.
``windows``
    The rows of windows of the time column are replaced.
``partitions``
    Some partitions are computed.
``history``
    Versions of rows begin, end or are corrected.
``whole``
    All rows are computed.
"""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a step is in a plan.

    Attributes
    ----------
    source_id
        The source that caused it, if not the step's own.
    """

    code: ReasonCode
    message: str
    source_id: SourceID | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A file that was added to a table, or removed from it.

    Attributes
    ----------
    path
        Its absolute path.
    spans
        By lower-case column name, the least and the greatest value and whether there are NULLs;
        columns without certain statistics are left out.
    bytes
        0 if unknown.
    rows
        None if unknown.
    """

    path: str
    spans: Mapping[str, tuple[Any, Any, bool]] = field(
        default_factory=dict[str, tuple[Any, Any, bool]], hash=False
    )
    bytes: int = 0
    rows: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Feed:
    """The change data feed of a Delta table between two versions.

    Attributes
    ----------
    recorded
        The files in which commits recorded the rows that changed.
    added, removed
        The files of other commits: all of their rows came or went.
    more
        By how many rows the table grew, according to its log; None if unknown.
    bytes
        The size of all these files.
    """

    recorded: tuple[str, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    more: int | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """The keys outside of which two versions of a table have the same rows.

    Attributes
    ----------
    columns
        The key columns, as the table names them.
    files
        For each build, Parquet files with the keys, in their first columns.
    more
        By how many rows the table grew, according to its log; None if unknown.
    """

    columns: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    more: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a table since rows were computed from it: files added and removed.

    Attributes
    ----------
    within
        By lower-case column name, ordered spans that contain the values of all changed rows, if
        they are known from elsewhere.
    total_bytes
        The size of the table now; 0 if unknown.
    feed
        The rows that changed as the table's change data feed has them; None: it has none.
    keys
        The keys of all rows that changed; None: not known.
    before
        The files that had the table's rows before, if rows were only added and some added files
        have been united with others since. Otherwise the files that stay have these rows.
    """

    added: tuple[Piece, ...] = ()
    lost: tuple[Piece, ...] = ()
    within: Mapping[str, tuple[tuple[Any, Any], ...]] = field(
        default_factory=dict[str, "tuple[tuple[Any, Any], ...]"], hash=False
    )
    total_bytes: int = field(default=0, compare=False)
    feed: Feed | None = None
    keys: TouchedKeys | None = None
    before: tuple[str, ...] = ()

    @property
    def changed_bytes(self) -> int:
        """The size of the files that have the rows that changed, and maybe others."""
        if self.feed is not None:
            return self.feed.bytes
        return sum(piece.bytes for piece in (*self.added, *self.lost))


@dataclass(frozen=True, slots=True)
class Volume:
    """Rows and bytes, as far as they are known without reading data."""

    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Estimates:
    """The expected seconds of both ways to bring a table up to date.

    Attributes
    ----------
    whole_s, delta_s
        To compute all rows, and to compute those that can differ.
    is_measured
        Whether a build of the same meaning computed all rows before.
    by_size_s
        What `delta_s` is by sizes alone; None: unknown.
    """

    whole_s: float
    delta_s: float
    is_measured: bool
    by_size_s: float | None = None

    @property
    def prefers_delta(self) -> bool:
        """Whether maintaining the table is expected to be cheaper."""
        return self.delta_s < self.whole_s


@dataclass(frozen=True, slots=True)
class Increment:
    """The continuation of a snapshot by a build that does not compute all rows.

    Attributes
    ----------
    base
        The snapshot to continue.
    foreign
        Another environment has the table of the base: the files that stay are copied from it.
    added
        By table that only grew, the added files; the rows computed from them are added.
    changes
        The changes of the tables on which windows depend; the affected windows are recomputed.
        Empty if rows are only added.
    traces
        From columns of those tables to the time column.
    past
        The user states that only rows later than the base's watermark can differ.
    spans
        Spans of the time column that are recomputed in any case.
    late
        With `past`, the names of tables that got files with earlier times.
    program
        The program that computes the changed rows from `changes`; None: another method does.
    expected
        With a program: the expected seconds with it and without it.
    """

    base: Snapshot
    added: Mapping[SourceID, tuple[str, ...]] = field(
        default_factory=dict[str, "tuple[str, ...]"], hash=False
    )
    changes: Mapping[SourceID, Change] = field(default_factory=dict[str, "Change"], hash=False)
    traces: tuple[Trace, ...] = ()
    past: bool = False
    spans: tuple[tuple[Any, Any], ...] = ()
    late: tuple[str, ...] = ()
    program: Program | Merging | None = None
    expected: Estimates | None = field(default=None, compare=False)
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected cost of a step: its cost the last time.

    Attributes
    ----------
    seconds
        None if the last build computed nothing.
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
        The raw versions that its snapshot will depend on.
    snapshot
        The snapshot to reuse.
    increment
        How an existing table is continued; None: all rows are computed.
    keys
        For a partitioned source, the partitions to compute, in order.
    base
        The snapshot with the other partitions.
    partitions
        The partitions that its snapshot will have.
    history
        The history that it continues; None: there is none, or it starts again.
    maintenance
        The method; ``whole`` also where it depends on builds that come before.
    why
        Why by this method; for ``whole``, why no cheaper one applies. One clause, without a period.
    expected
        The expected seconds of both ways, where they were compared.
    reads
        What a build will read, at most; None: only the build knows.
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
    maintenance: Maintenance = "whole"
    why: str = ""
    expected: Estimates | None = field(default=None, compare=False)
    reads: Volume | None = field(default=None, compare=False)

    @property
    def goes_on_from(self) -> Snapshot | None:
        """The snapshot whose rows it keeps, in the same table or in another one."""
        return self.increment.base if self.increment else self.history


@dataclass(frozen=True, slots=True)
class Plan:
    """The sources to build and to reuse; each step follows those that it needs."""

    environment: str
    steps: tuple[Step, ...]
