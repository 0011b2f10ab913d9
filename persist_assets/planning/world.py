"""Observed facts on which a plan is based."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.core.model.annotations import VALID_FROM, VALID_TO, Fallback
from persist_assets.core.model.snapshots import (
    AsOf,
    Build,
    Snapshot,
)
from persist_assets.planning.costs import Experience

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from persist_assets.core.model.plans import Change, Volume
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Cost
    from persist_assets.core.model.sources import Source


CLOCK = "clock"
"""The name of the clock in an as_of, for sources that read it."""

DRAW = "draw:"
"""Prefix of the names of draws in an as_of: they record which build of a nondeterministic source
its readers depend on."""

PARTITIONS = "partitions:"
"""Prefix of the names of partitioned tables in an as_of: they record the partitions, and their
data."""

OLDER = "older:"
"""Prefix of the names of older code in an as_of: they record the build whose table a source
continued when its meaning changed, so that some rows are of older code."""

NO_DATA = "no data"
"""The version of a raw table without data."""

UNVERSIONED = "unversioned:"
"""Prefix of the generated versions of data without versions."""


@dataclass(frozen=True, slots=True)
class World:
    """The facts that a plan depends on.

    Attributes
    ----------
    manifest
        The snapshots that the environment's readers read.
    elsewhere
        Snapshots of the same BuildIDs that readers of other environments read; their tables exist.
    versions
        The present version of every raw table that the plan may need, by SourceID; one generated
        for this run (`unversioned`) for data without versions.
    absent
        The problem with the data of each raw table without a version.
    day, instant
        The clock, for sources that read it.
    history
        The latest finished build of every source.
    missing
        BuildIDs whose table is in the manifest but does not exist.
    expired
        The sources whose table in the manifest is past its freshness window, and what readers do
        then.
    changes
        For sources whose table can be continued, the change until now of each table that their rows
        follow from.
    foreign
        The tables that manifests of other environments name: no build here writes to them.
    keys
        All partitions of every partitioned source, in order.
    aged
        The same changes for partitioned sources, by the as_of and the inputs of some of their
        partitions.
    redrawn
        For the same sources, the BuildIDs of the tables that have been computed again since and may
        have other rows from the same data; see `planning.redrawn`.
    zone
        The session's time zone.
    latest
        For sources that keep a history, or continue when their meaning changes, the last snapshot
        that readers got, whatever it meant.
    tainted
        The sources with a tainted table, and the tainted partitions of those with partitions.
    seen
        For readers of external tables, by table: the version since which the part that they read is
        unchanged; it replaces the present version.
    behind
        Why copies of external tables must be brought up to date, in words.
    costs
        For BuildIDs whose tables can be maintained, what their builds took, the latest first.
    experience
        What the builds of all maintained tables say about others, if a decision depends on it.
    sizes
        The sizes of raw tables and of tables in the manifest, as far as they are known.
    taken
        The UIDs of snapshots that are taken over under other BuildIDs; see `planning.takeovers`.
    """

    environment: str
    manifest: Mapping[BuildID, Snapshot]
    versions: Mapping[SourceID, str]
    day: str
    instant: str
    history: Mapping[SourceID, Build]
    missing: Collection[BuildID] = ()
    absent: Mapping[SourceID, str] = field(default_factory=dict[str, str])
    elsewhere: Mapping[BuildID, Collection[Snapshot]] = field(
        default_factory=dict[str, "tuple[Snapshot, ...]"]
    )
    expired: Mapping[SourceID, Fallback] = field(default_factory=dict[str, "Fallback"])
    changes: Mapping[SourceID, Mapping[SourceID, Change | None]] = field(
        default_factory=dict[str, "Mapping[SourceID, Change | None]"]
    )
    foreign: Collection[str] = ()
    keys: Mapping[SourceID, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    aged: Mapping[tuple[SourceID, AsOf, AsOf], Mapping[SourceID, Change | None]] = field(
        default_factory=dict["tuple[SourceID, AsOf, AsOf]", "Mapping[SourceID, Change | None]"]
    )
    redrawn: Mapping[tuple[SourceID, AsOf, AsOf], frozenset[BuildID]] = field(
        default_factory=dict["tuple[SourceID, AsOf, AsOf]", "frozenset[BuildID]"]
    )
    zone: str = "UTC"
    latest: Mapping[SourceID, Snapshot] = field(default_factory=dict[str, Snapshot])
    tainted: Mapping[SourceID, frozenset[str]] = field(default_factory=dict[str, "frozenset[str]"])
    seen: Mapping[SourceID, Mapping[SourceID, str]] = field(
        default_factory=dict[str, "Mapping[SourceID, str]"]
    )
    behind: Mapping[SourceID, str] = field(default_factory=dict[str, str])
    costs: Mapping[BuildID, Sequence[Cost]] = field(default_factory=dict[str, "Sequence[Cost]"])
    experience: Experience = field(default_factory=Experience)
    sizes: Mapping[SourceID, Volume] = field(default_factory=dict[str, "Volume"])
    taken: Collection[str] = ()

    def version(self, reader: SourceID, upstream: Source) -> str:
        """Return the version of a raw table that a source would be computed from."""
        read_version = self.seen.get(reader, {}).get(upstream.source_id)
        return read_version or self.versions.get(upstream.source_id, NO_DATA)

    def readable(self, source: Source) -> Snapshot | None:
        """Return the snapshot that readers of a source read; None if they compute its query."""
        live = self.expired.get(source.source_id) == "live"
        usable = not live and source.source_id not in self.tainted
        return self.manifest.get(source.build_id) if usable else None


def older_code(snapshot: Snapshot) -> str | None:
    """Return the build that a snapshot's rows of older code come from, or None."""
    mark = OLDER + snapshot.build_id
    return next((v.version for v in snapshot.as_of if v.raw == mark), None)


def is_history(snapshot: Snapshot) -> bool:
    """Whether a snapshot was built as a history."""
    times = [(c.name, c.type) for c in snapshot.columns[-2:]]
    draws = any(v.raw == DRAW + snapshot.build_id for v in snapshot.as_of)
    return draws and times == [(VALID_FROM, "timestamp"), (VALID_TO, "timestamp")]
