"""Builds, snapshots, copies, and how manifests change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from persist_assets.core.model.columns import Column, Parts
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Read


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
        snapshot = self.after or self.before
        assert snapshot is not None
        return snapshot.source_id


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
