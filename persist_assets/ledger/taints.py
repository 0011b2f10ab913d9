"""What rows of snapshots shall not be used, in a ledger: whoever has these rows knows of it.

A mark is of the rows, not of the name or the meaning by which they are read: it comes back with
them, goes on with builds that keep them, and ends with those that do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import EventLog, repeated
from persist_assets.ledger.tables import taints

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy.engine import Connection

    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.wants import PartitionRef


@dataclass(frozen=True, slots=True)
class Taint:
    """What is said to be tainted.

    Attributes
    ----------
    refs
        The partitions of which what there is shall not be used, each with what it means.
    marks
        By the uids of snapshots which of their partitions are; an empty key stands for all rows.
    """

    refs: Mapping[PartitionRef, BuildID]
    marks: Mapping[str, Collection[str]] = field(default_factory=dict[str, "Collection[str]"])


@dataclass(frozen=True, slots=True)
class Kept:
    """What a build keeps of the rows of a snapshot.

    Attributes
    ----------
    keys
        The partitions whose rows stay; of a table without any an empty key.
    own
        Whether the environment reads it itself; else it is another one's.
    """

    snapshot_uid: str
    keys: Collection[str]
    own: bool = True

    def tainted(self, marks: Collection[str]) -> frozenset[str]:
        """Return what stays tainted, of what is tainted of the snapshot."""
        return frozenset(self.keys if "" in marks else {*self.keys}.intersection(marks))


class TaintLog(EventLog):
    """What of a ledger is about rows that shall not be used."""

    @repeated
    def fetch_tainted(self, *environments: str) -> dict[str, frozenset[str]]:
        """Return what of snapshots shall not be used, as it was said in environments, or in any.

        Returns
        -------
        Mapping[str, frozenset[str]]
            By the uids of snapshots their partitions; of tables without any an empty key.
        """
        query = sa.select(taints.c.snapshot_uid, taints.c.partition_key)
        if environments:
            query = query.where(taints.c.environment.in_(environments))
        found: dict[str, set[str]] = {}
        with self._read() as connection:
            for uid, key in connection.execute(query):
                found.setdefault(uid, set()).add(key)
        return {uid: frozenset(keys) for uid, keys in found.items()}

    def _taint(self, connection: Connection, environment: str, taint: Taint, *, by: str) -> None:
        """Record that readers of an environment shall not use some rows."""
        said = {"environment": environment, "by": by}
        told = [{**said, "partition_ref": ref, "build_id": b} for ref, b in taint.refs.items()]
        self._append_all(connection, [("partition-tainted", one) for one in told])
        _mark(connection, [(environment, u, k) for u, keys in taint.marks.items() for k in keys])

    def _keep_taints(
        self, connection: Connection, environment: str, build_uid: str, kept: Kept
    ) -> None:
        """Let what is tainted of the rows that a build keeps be so in its own snapshot."""
        marks: dict[str, set[str]] = {}
        for said_in, _, key in _marks(connection, [kept.snapshot_uid]):
            marks.setdefault(said_in if kept.own else environment, set()).add(key)
        left = [(where, key) for where, keys in marks.items() for key in kept.tainted(keys)]
        _mark(connection, [(where, build_uid, key) for where, key in left])

    def _bring_taints(
        self,
        connection: Connection,
        environment: str,
        snapshot_uids: Iterable[str],
        sources: Collection[str] = (),
    ) -> None:
        """Let what of snapshots is tainted in others be so in an environment that gets them.

        Parameters
        ----------
        sources
            The others; none: all.
        """
        there = _marks(connection, snapshot_uids, sources)
        _mark(connection, [(environment, uid, key) for _, uid, key in there])

    def _refuse_tainted(
        self,
        connection: Connection,
        name: str,
        snapshot_uids: Iterable[str],
        environments: Collection[str] = (),
    ) -> None:
        """Refuse rows that come from what is tainted by now, in environments, or in any.

        Raises
        ------
        ConflictError
            They do.
        """
        if _marks(connection, snapshot_uids, environments):
            raise ConflictError(f"an input of `{name}` was tainted meanwhile", hint="build again")


_Mark = tuple[str, str, str]
"""Where it is said, of which snapshot, and of which partition."""


def _marks(
    connection: Connection, snapshot_uids: Iterable[str], environments: Collection[str] = ()
) -> set[_Mark]:
    """Return the marks of snapshots, those that were said in environments, or all."""
    query, found = sa.select(taints), set[_Mark]()
    if environments:
        query = query.where(taints.c.environment.in_(environments))
    for some in in_parts([*snapshot_uids]):
        rows = connection.execute(query.where(taints.c.snapshot_uid.in_(some)))
        found |= {(where, uid, key) for where, uid, key in rows}
    return found


def _mark(connection: Connection, marks: Collection[_Mark]) -> None:
    """Record marks that are not there yet."""
    new = sorted({*marks} - _marks(connection, {uid for _, uid, _ in marks}))
    for some in in_parts(new):
        columns = taints.columns.keys()
        connection.execute(taints.insert(), [dict(zip(columns, m, strict=True)) for m in some])
