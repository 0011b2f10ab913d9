"""What is known of the world when a plan is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.core.model.annotations import VALID_FROM, VALID_TO, Fallback
from persist_assets.core.model.snapshots import (
    AsOf,
    Build,
    Snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from persist_assets.core.model.plans import Change
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source


CLOCK = "clock"
"""The name under which the clock stands in an as_of, for sources that read it."""

DRAW = "draw:"
"""What the names begin with under which draws stand in an as_of: which build of a source that
draws lots its readers rest on."""

PARTITIONS = "partitions:"
"""What the names begin with under which partitioned tables stand in an as_of: which partitions
there were, and of what."""

OLDER = "older:"
"""What the names begin with under which it stands in an as_of that some rows are of older code:
the build is named whose table a source went on from when it came to mean something else."""

NO_DATA = "no data"
"""The version of a raw table whose data is not there."""

UNVERSIONED = "unversioned:"
"""What the made-up versions of data without versions begin with."""


@dataclass(frozen=True, slots=True)
class World:
    """What a plan is made against.

    Attributes
    ----------
    manifest
        What the environment's readers read.
    elsewhere
        What readers of other environments read of the same BuildIDs; its tables are there.
    versions
        Of every raw table that the plan may need, its present version by SourceID; one made up
        for this run (`unversioned`) for data that has none.
    absent
        What is wrong with the data of the raw tables that have no version.
    day, instant
        What the clock says, for sources that read it.
    history
        The latest finished build of every source.
    missing
        BuildIDs whose table is in the manifest but not there.
    expired
        The sources whose table in the manifest is older than it may be, and what reads it then.
    changes
        For sources whose own table can be continued, what became until now of each table that
        their rows follow from.
    keys
        The partitions that there are of every partitioned source, in order.
    aged
        For partitioned sources and what some of their partitions rest on, and were computed from,
        the same.
    zone
        The session's time zone.
    latest
        For sources that keep a history, or go on when their meaning changes, what readers last
        got of them, whatever they meant then.
    tainted
        The sources of which there is what must not be used, and of those with partitions which.
    seen
        For readers of external tables, instead of their present versions, those since which what
        they see of them is as it is.
    behind
        Of the external tables whose copies have to be brought up to date, why, in words.
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
    keys: Mapping[SourceID, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    aged: Mapping[tuple[SourceID, AsOf, AsOf], Mapping[SourceID, Change | None]] = field(
        default_factory=dict["tuple[SourceID, AsOf, AsOf]", "Mapping[SourceID, Change | None]"]
    )
    zone: str = "UTC"
    latest: Mapping[SourceID, Snapshot] = field(default_factory=dict[str, Snapshot])
    tainted: Mapping[SourceID, frozenset[str]] = field(default_factory=dict[str, "frozenset[str]"])
    seen: Mapping[SourceID, Mapping[SourceID, str]] = field(
        default_factory=dict[str, "Mapping[SourceID, str]"]
    )
    behind: Mapping[SourceID, str] = field(default_factory=dict[str, str])

    def version(self, reader: SourceID, upstream: Source) -> str:
        """Return the version of a raw table that a source's rows would rest on."""
        read_version = self.seen.get(reader, {}).get(upstream.source_id)
        return read_version or self.versions.get(upstream.source_id, NO_DATA)

    def readable(self, source: Source) -> Snapshot | None:
        """Return what readers of a source read, None where its query is computed for them."""
        live = self.expired.get(source.source_id) == "live"
        usable = not live and source.source_id not in self.tainted
        return self.manifest.get(source.build_id) if usable else None


def older_code(snapshot: Snapshot) -> str | None:
    """Return the build whose table a snapshot has rows of that are of older code, or None."""
    mark = OLDER + snapshot.build_id
    return next((v.version for v in snapshot.as_of if v.raw == mark), None)


def is_history(snapshot: Snapshot) -> bool:
    """Whether a snapshot is one of a source that keeps a history, and did so then."""
    times = [(c.name, c.type) for c in snapshot.columns[-2:]]
    draws = any(v.raw == DRAW + snapshot.build_id for v in snapshot.as_of)
    return draws and times == [(VALID_FROM, "timestamp"), (VALID_TO, "timestamp")]
