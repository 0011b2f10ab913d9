"""Taints: the rows of snapshots that readers must not use.

A mark belongs to the rows, not to the name or the meaning by which they are read. It comes back
with the rows, passes on to builds that keep them, and ends with builds that do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.rows import published, snapshot_of
from persist_assets.ledger.tables import builds, taints

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.wants import PartitionRef


@dataclass(frozen=True, slots=True)
class Taint:
    """Rows that readers must not use.

    Attributes
    ----------
    refs
        The tainted partitions, each with its BuildID.
    marks
        The tainted partition keys by snapshot; an empty key stands for all rows.
    """

    refs: Mapping[PartitionRef, BuildID]
    marks: Mapping[str, Collection[str]] = field(default_factory=dict[str, "Collection[str]"])


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of an earlier snapshot that a build keeps.

    Attributes
    ----------
    keys
        The partitions whose rows stay; an empty key for a table without partitions.
    own
        Whether the snapshot is one that the environment reads; otherwise another environment's.
    """

    snapshot_uid: str
    keys: Collection[str]
    own: bool = True

    def tainted(self, marks: Collection[str]) -> frozenset[str]:
        """Return the tainted partitions that stay, given the marks of the snapshot."""
        return frozenset(self.keys if "" in marks else {*self.keys}.intersection(marks))


class Taints(Part):
    """The rows that readers must not use."""

    @repeated
    def fetch(self, *environments: str) -> dict[str, frozenset[str]]:
        """Return the tainted partition keys by snapshot, as marked in some environments, or in any.

        Returns
        -------
        Mapping[str, frozenset[str]]
            Snapshot uid to partition keys; an empty key for tables without partitions.
        """
        query = sa.select(taints.c.snapshot_uid, taints.c.partition_key)
        if environments:
            query = query.where(taints.c.environment.in_(environments))
        marks: dict[str, set[str]] = {}
        with self._read() as connection:
            for uid, key in connection.execute(query):
                marks.setdefault(uid, set()).add(key)
        return {uid: frozenset(keys) for uid, keys in marks.items()}

    @repeated
    def preview(
        self,
        environments: Sequence[str],
        decide: Callable[[Mapping[BuildID, Snapshot], Collection[Snapshot]], Taint],
    ) -> Taint:
        """Return the rows that `record` would taint."""
        with self._read() as connection:
            return _decide(connection, environments, decide)

    @repeated
    def record(
        self,
        environments: Sequence[str],
        decide: Callable[[Mapping[BuildID, Snapshot], Collection[Snapshot]], Taint],
        *,
        by: str,
    ) -> Taint:
        """Taint rows for the readers of an environment; return the tainted rows.

        Parameters
        ----------
        environments
            The environment, and those that it reads.
        decide
            Chooses the rows, given the manifest of these environments and all snapshots ever.
        """
        with self._write() as connection:  # so that nothing is published meanwhile
            taint = _decide(connection, environments, decide)
            values = {"environment": environments[0], "by": by}
            tainted = [
                ("partition-tainted", {**values, "partition_ref": ref, "build_id": build_id})
                for ref, build_id in taint.refs.items()
            ]
            self._events.append_all(connection, tainted)
            marks = [(environments[0], u, k) for u, keys in taint.marks.items() for k in keys]
            _mark(connection, marks)
        return taint


def _decide(
    connection: Connection,
    environments: Sequence[str],
    decide: Callable[[Mapping[BuildID, Snapshot], Collection[Snapshot]], Taint],
) -> Taint:
    # Rows of tables that were collected may be in others.
    ever = sa.select(builds).where(builds.c.state == "succeeded")
    rows = connection.execute(published(*environments))
    manifest = {row.build_id: snapshot_of(row) for row in rows}
    return decide(manifest, [snapshot_of(row) for row in connection.execute(ever)])


def keep_taints(connection: Connection, environment: str, build_uid: str, kept_rows: Kept) -> None:
    """Copy the marks of the rows that a build keeps to its snapshot."""
    marks: dict[str, set[str]] = {}
    for marked_in, _, key in _marks(connection, [kept_rows.snapshot_uid]):
        marks.setdefault(marked_in if kept_rows.own else environment, set()).add(key)
    stay = [(where, key) for where, keys in marks.items() for key in kept_rows.tainted(keys)]
    _mark(connection, [(where, build_uid, key) for where, key in stay])


def bring_taints(
    connection: Connection,
    environment: str,
    snapshot_uids: Iterable[str],
    sources: Collection[str] = (),
) -> None:
    """Copy the marks of snapshots to an environment that takes them over.

    Parameters
    ----------
    sources
        The environments to copy marks from; empty: all.
    """
    marks = _marks(connection, snapshot_uids, sources)
    _mark(connection, [(environment, uid, key) for _, uid, key in marks])


def refuse_tainted(
    connection: Connection,
    name: str,
    snapshot_uids: Iterable[str],
    environments: Collection[str] = (),
) -> None:
    """Refuse to publish rows computed from snapshots that are tainted by now.

    Parameters
    ----------
    environments
        The environments whose marks count; empty: all.

    Raises
    ------
    ConflictError
        One of the snapshots is tainted.
    """
    if _marks(connection, snapshot_uids, environments):
        raise ConflictError(f"an input of `{name}` was tainted meanwhile", hint="build again")


def marked(
    connection: Connection, snapshot_uids: Iterable[str], environments: Collection[str]
) -> set[str]:
    """Return those of some snapshots that have tainted rows in one of some environments."""
    return {uid for _, uid, _ in _marks(connection, snapshot_uids, environments)}


def marked_keys(
    connection: Connection, snapshot_uids: Iterable[str], environments: Collection[str]
) -> dict[str, set[str]]:
    """Return the partition keys of the tainted rows of snapshots; an empty key for all rows."""
    keys: dict[str, set[str]] = {}
    for _, uid, key in _marks(connection, snapshot_uids, environments):
        keys.setdefault(uid, set()).add(key)
    return keys


_Mark = tuple[str, str, str]
"""Environment, snapshot uid and partition key."""


def _marks(
    connection: Connection, snapshot_uids: Iterable[str], environments: Collection[str] = ()
) -> set[_Mark]:
    """Return the marks of snapshots that were set in some environments, or all."""
    query, marks = sa.select(taints), set[_Mark]()
    if environments:
        query = query.where(taints.c.environment.in_(environments))
    for uids in in_parts([*snapshot_uids]):
        rows = connection.execute(query.where(taints.c.snapshot_uid.in_(uids)))
        marks |= {(where, uid, key) for where, uid, key in rows}
    return marks


def _mark(connection: Connection, marks: Collection[_Mark]) -> None:
    """Record the marks that are not recorded yet."""
    new = sorted({*marks} - _marks(connection, {uid for _, uid, _ in marks}))
    for part in in_parts(new):
        columns = taints.columns.keys()
        connection.execute(taints.insert(), [dict(zip(columns, m, strict=True)) for m in part])
