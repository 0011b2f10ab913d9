"""Builds, snapshots, copies, and changes of manifests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
        The BuildID of the raw table, which identifies the location of the data.
    version
        Equal if and only if the data is the same (``delta:12:<table id>``, ``files:<digest>``).
    """

    raw: BuildID
    version: str


AsOf = tuple[RawVersion, ...]
"""The sorted versions of all raw tables that rows are computed from. Two versions of one raw table
mean that the rows mix them."""


def merge_as_of(parts: Iterable[Iterable[RawVersion]]) -> AsOf:
    """Return the as_of of rows that were computed from rows with these as_ofs."""
    return tuple(sorted({version for part in parts for version in part}))


def mixed(as_of: AsOf) -> tuple[BuildID, ...]:
    """Return the raw tables of which `as_of` has more than one version."""
    raws = [v.raw for v in as_of]
    return tuple(sorted({raw for raw in raws if raws.count(raw) > 1}))


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input of a stored query.

    Attributes
    ----------
    name
        Its name in the query.
    build_uid
        The build that wrote the snapshot; None for a raw table.
    raw
        The version of a raw table.
    columns
        The columns that a raw table had. It may have got others since, which ``*`` or ``NATURAL
        JOIN`` in the query's text would include. Empty if an earlier release stored it.
    """

    name: str
    build_uid: str | None = None
    raw: RawVersion | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A query that is stored instead of its rows; its inputs never change.

    Attributes
    ----------
    sql
        The complete query in Spark SQL.
    """

    sql: str
    leaves: tuple[Leaf, ...] = ()


Runs = tuple[tuple[str, str], ...]
"""Partition keys as ranges: the first and the last of consecutive keys."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Partitions whose rows are computed from the same data.

    Attributes
    ----------
    inputs
        Their direct inputs, as in a snapshot; empty if unknown.
    """

    runs: Runs
    as_of: AsOf
    inputs: AsOf = ()


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a snapshot.

    Attributes
    ----------
    filled
        Disjoint groups of partitions.
    built
        The partitions whose rows differ from those of `base`.
    base
        The build that wrote the continued snapshot; None: it continues none.
    """

    filled: tuple[Filled, ...]
    built: Runs = ()
    base: str | None = None


@dataclass(frozen=True, slots=True)
class KeptState:
    """Partial results of an aggregate, kept in the directory of the build that wrote them.

    Attributes
    ----------
    definition
        A digest of the statement that computes them.
    rows
        Their number.
    """

    definition: str
    rows: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The text that the rows of a snapshot were computed from.

    Attributes
    ----------
    text
        A digest of the tokens of its source and of everything beneath it (`compiler.texts`); empty
        if rows come from several texts.
    software
        The software by which this text has the snapshot's BuildID; see `compiler.software`.
    names
        The BuildIDs in the versions that the rows depend on, each with the text that it meant.
    """

    text: str
    software: str
    names: tuple[tuple[BuildID, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable version of a table: the result of a build.

    Attributes
    ----------
    build_uid
        The build that wrote it.
    table
        The table's directory below the warehouse.
    version
        The version of the Delta table.
    as_of
        The raw versions that its rows are computed from.
    content
        A digest of the rows that does not depend on their order; equal contents are
        interchangeable.
    watermark
        The greatest value of the time column, as text, or None.
    columns
        The columns, with Spark's types as written.
    inputs
        The direct inputs of its rows: versions of raw tables, contents of tables.
    current_at
        When all its data was last known to be current; its age counts from then.
    view
        The stored query that replaces the table, or None.
    parts
        The other builds whose files it has too, sorted.
    time_column
        The column of the watermark.
    partitions
        Its partitions; None: its source has none.
    states
        The states that lie beside its files, by which the next build maintains it.
    origin
        The text that all of its rows were computed from; None: a release that did not record it
        wrote it, or nobody knows.
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
    states: tuple[KeptState, ...] = ()
    origin: Origin | None = field(default=None, compare=False)

    @property
    def known_at(self) -> datetime:
        """When its rows were last known to be current, as far as is recorded."""
        return self.current_at or self.built_at


BuildState = Literal["started", "succeeded", "failed"]


@dataclass(frozen=True, slots=True)
class Written:
    """The amount that a build wrote itself; the rest of its snapshot existed before."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Effort:
    """The work of a build that updated a table without computing all rows, or tried to.

    Attributes
    ----------
    rows_changed
        The rows in added and removed files of the tables that it reads; None: unknown.
    keys_touched
        The keys whose rows it computed again; None: it followed changes in another way.
    files_rewritten, files_kept
        The files of the table that it replaced, and those that stayed; None: it wrote all of them.
    seconds_saved
        By how much it was faster than the last build that computed all rows, until the rows were
        written and checked. Negative if it was slower; None: unknown.
    seconds_by_size
        The seconds that it was expected to take by sizes alone; None: unknown.
    seconds_shared
        The seconds that it spent on rows that other sources use, too, less its share of the seconds
        that all builds of the run spent on these. Negative: others spent them. Zero in builds of
        versions that did not record it.
    seconds_lost
        The seconds of an attempt to update the table, after which the build computed all rows.
    seconds_owed
        The seconds of such attempts that full builds must make up for; see `costs.owed_after`.
    """

    rows_changed: int | None = None
    keys_touched: int | None = None
    files_rewritten: int | None = None
    files_kept: int | None = None
    seconds_saved: float | None = None
    seconds_by_size: float | None = None
    seconds_shared: float = 0.0
    seconds_lost: float = 0.0
    seconds_owed: float = 0.0

    @property
    def in_words(self) -> str:
        """Return the known facts in words.

        Examples
        --------
        >>> Effort(1200, 3, seconds_saved=61.02).in_words
        'rows in changed files: 1,200, keys touched: 3, seconds saved: 61.0'
        """
        titles = {
            "rows in changed files": self.rows_changed,
            "keys touched": self.keys_touched,
            "files rewritten": self.files_rewritten,
            "files kept": self.files_kept,
        }
        facts = [f"{title}: {n:,}" for title, n in titles.items() if n is not None]
        if self.seconds_saved is not None:
            facts.append(f"seconds saved: {self.seconds_saved:,.1f}")
        if self.seconds_lost:
            facts.append(f"seconds lost in an attempt to update it: {self.seconds_lost:,.1f}")
        return ", ".join(facts)


@dataclass(frozen=True, slots=True)
class Build:
    """One recorded attempt to compute one source.

    Attributes
    ----------
    definition
        The digest of the source's own definition at the time.
    action
        ``built`` computed rows, ``reused`` found them.
    snapshot
        The snapshot that readers get since it succeeded.
    digests
        The digests of the source's meaning at the time; None if not recorded.
    reads
        The meanings of what it read at the time: leaves, and sources expanded on the way to them.
    written
        None if the build has not succeeded, or did not record it.
    maintenance
        The method by which it computed rows, a `Maintenance`; None if it computed none, or did not
        record it.
    computed_s
        The seconds from its start until its rows were written and checked. It may have been
        published much later.
    effort
        None if it computed all rows or none without an attempt to compute fewer, or did not record
        it.
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
    maintenance: str | None = None
    computed_s: float | None = None
    effort: Effort | None = None

    def computed_by(self, maintenance: str, at: datetime) -> Build:
        """Return the build with the method by which it has computed rows until now."""
        seconds = (at - self.started_at).total_seconds()
        return replace(self, maintenance=maintenance, computed_s=seconds)

    @property
    def outcome(self) -> Literal["built", "reused", "failed", "started"]:
        """Return its outcome."""
        return self.action if self.state == "succeeded" else self.state

    @property
    def seconds(self) -> float | None:
        """Its duration in seconds."""
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a build that computed rows.

    Attributes
    ----------
    seconds
        From its start until its rows were written and checked, without a failed attempt to maintain
        the table; of work that it shares with other sources, its share.
    rows, bytes
        What it wrote itself.
    by_size_s
        The seconds that it was expected to take by sizes alone; None: unknown.
    owed_s
        See `Effort.seconds_owed`.
    """

    maintenance: str
    seconds: float
    rows: int
    bytes: int
    by_size_s: float | None = None
    owed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A local copy of an external table: some rows and columns of one of its versions.

    Attributes
    ----------
    copy_id
        A digest of the table's location and of how it is read; equal declarations share a copy.
    version
        The version of the external table.
    table_id
        The ID of the copy's own Delta table, which changes if the copy is created again.
    committed
        The version of the copy's own table.
    predicate
        Exactly the rows of the external table that the copy has: canonical SQL without a clock.
    format
        The version of the predicate's language.
    columns
        The columns that the copy has, sorted; all others are NULL.
    as_of
        The time of the clock in the predicate.
    rows, bytes
        The size of the copy.
    seen
        For every needed predicate, as written in the program, the version of the copy's table since
        which its rows have not changed.
    retired_at
        When rows that are no longer needed were last removed.
    family
        A digest as `copy_id` is, but without the table's columns: declarations of one family can
        share the copy. None: unknown, as an earlier release made it; only its own declaration uses
        it.
    stored
        The columns of the copy's own table with their types, held or not; None: unknown, and those
        of its declaration.
    rows_read, bytes_read
        How much the last sync read that read rows; None: an earlier release made the copy.
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
    family: str | None = None
    stored: tuple[tuple[str, str | None], ...] | None = None
    rows_read: int | None = None
    bytes_read: int | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """The change of one manifest entry: the snapshots before and after, None for none."""

    build_id: BuildID
    before: Snapshot | None
    after: Snapshot | None

    @property
    def source_id(self) -> SourceID:
        """The source of its build."""
        snapshot = self.after or self.before
        assert snapshot is not None
        return snapshot.source_id


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """An atomic change of an environment's manifest.

    Attributes
    ----------
    change_id
        The position of its event in the ledger's log.
    by
        The user or program that asked for it.
    back_to
        For a rollback, the change to whose state the manifest returns; 0: before the first.
    undone
        For a rollback of single changes, those changes.
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
        """The entries that got other rows, without those whose table was up to date."""
        uids = {m.build_id: [s and s.build_uid for s in (m.before, m.after)] for m in self.moves}
        return frozenset(b for b, (before, after) in uids.items() if before != after)


@dataclass(frozen=True, slots=True)
class Holding:
    """The builds of a table in the ledger: which files may be deleted, and which may not.

    Attributes
    ----------
    build_ids
        The BuildIDs built into it; the holder of the leases of all of them has the table alone.
    readable
        The builds whose snapshots may still be read, with their versions.
    gone
        The builds whose snapshots may no longer be read, with their versions; failed builds have
        none.
    started
        The builds without an end, or without one that they recorded themselves, with their process
        (`host:pid`) and start time.
    parts
        By build, the other builds whose files it has too.
    """

    table: str
    build_ids: tuple[BuildID, ...]
    readable: Mapping[str, int]
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
