"""What rows of snapshots shall not be used, in a ledger: whoever has these rows knows of it.

A mark is of the rows, not of the name or the meaning by which they are read: it comes back with
them, goes on with builds that keep them, and ends with those that do not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import EventLog, repeated
from persist_assets.ledger.tables import taints

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sqlalchemy.engine import Connection

    from persist_assets.model import BuildID
    from persist_assets.wants import PartitionRef


@dataclass(frozen=True, slots=True)
class Tainted:
    """A partition, or a table without any, of which what there is shall not be used.

    Attributes
    ----------
    snapshot_uid
        The snapshot whose rows these are; None: there are none.
    key
        The partition; of a table without any, empty.
    """

    partition_ref: PartitionRef
    build_id: BuildID
    snapshot_uid: str | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a build keeps of the rows of a snapshot: all but those of the partitions it computes."""

    snapshot_uid: str
    but: Collection[str] = ()


class TaintLog(EventLog):
    """What of a ledger is about rows that shall not be used."""

    @repeated
    def taint(self, environment: str, tainted: Collection[Tainted], *, by: str) -> None:
        """Record that readers of an environment shall not use what there is of partitions."""
        said = {"environment": environment, "by": by}
        told = [("partition-tainted", {**said, **asdict(one)}) for one in tainted]
        marks = [(environment, t.snapshot_uid, t.key) for t in tainted if t.snapshot_uid]
        with self._write() as connection:
            self._append_all(connection, told)
            _mark(connection, marks)

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

    def _keep_taints(self, connection: Connection, build_uid: str, kept: Kept) -> None:
        """Let what is tainted of the rows that a build keeps be so in its own snapshot."""
        there = _marks(connection, taints.c.snapshot_uid == kept.snapshot_uid)
        _mark(connection, [(e, build_uid, key) for e, _, key in there if key not in kept.but])

    def _bring_taints(
        self,
        connection: Connection,
        environment: str,
        snapshot_uids: Iterable[str],
        sources: Collection[str],
    ) -> None:
        """Let what of snapshots is tainted in others be so in an environment that gets them."""
        said = taints.c.environment.in_(sources)
        for some in in_parts([*snapshot_uids]):
            there = _marks(connection, sa.and_(said, taints.c.snapshot_uid.in_(some)))
            _mark(connection, [(environment, uid, key) for _, uid, key in there])


_Mark = tuple[str, str, str]
"""Where it is said, of which snapshot, and of which partition."""


def _marks(connection: Connection, test: sa.ColumnElement[bool]) -> list[_Mark]:
    return [(e, uid, key) for e, uid, key in connection.execute(sa.select(taints).where(test))]


def _mark(connection: Connection, marks: Collection[_Mark]) -> None:
    """Record marks that are not there yet."""
    for some in in_parts(sorted({uid for _, uid, _ in marks})):
        known = {*_marks(connection, taints.c.snapshot_uid.in_(some))}
        new = sorted({m for m in marks if m[1] in some} - known)
        if new:
            columns = taints.columns.keys()
            connection.execute(taints.insert(), [dict(zip(columns, m, strict=True)) for m in new])
