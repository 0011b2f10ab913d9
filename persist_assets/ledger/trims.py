"""Trims: archived old events are deleted from the log.

The invariant: nothing but the log itself changes. First the rows of the projections are recorded
as a base, from which a rebuild begins. Then the events up to a position are deleted, except those
that something still follows from. Each transaction that deletes also records up to where, so that
a reader that has missed some gets an error. The next trim completes one that dies in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.wants import ACTIVE
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import TRIMMED, Part, repeated, trimmed_to
from persist_assets.ledger.projections import BASE, read_tables
from persist_assets.ledger.tables import (
    availability,
    base_rows,
    build_requests,
    builds,
    counters,
    events,
    wants,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection, Row

LEASE = "the trimming of events"
"""The name of the lease for trimming."""
_ROWS = 1000
"""The number of rows in a part of the base."""
_DELETED_AT_ONCE = 5000
"""The maximum number of events that a transaction deletes: others can write in between."""
_ALWAYS = frozenset(
    {
        "promoted",
        "rolled-back",
        "imported",
        "entries-collected",
        "environment-ended",
        "events-trimmed",
        "ledger-restored",
        "partition-tainted",
    }
)
"""The kinds of events that are never deleted: they are few, and record people's decisions."""


@dataclass(frozen=True, slots=True)
class Needed:
    """The uses of old events.

    Attributes
    ----------
    positions
        The events that say the present states of this graph's partitions: whoever reads the log
        from the beginning learns these states from them.
    tainted
        The partitions that were ever tainted, each with its environment: a rollback restores what
        their events said.
    want_refs
        The partitions of wants that have not ended.
    build_uids, request_ids
        The builds and requests that have not ended.
    """

    positions: frozenset[int]
    tainted: frozenset[tuple[str | None, str | None]]
    want_refs: frozenset[tuple[str | None, str | None]]
    build_uids: frozenset[str]
    request_ids: frozenset[str]

    def is_needed(self, row: Row[Any]) -> bool:
        """Whether an event is needed."""
        place = row.environment, row.partition_ref
        return (
            row.kind in _ALWAYS
            or row.idx in self.positions
            or (row.kind == "partition-available" and place in self.tainted)
            or (row.kind == "want-created" and place in self.want_refs)
            or row.task_id in self.build_uids
            or row.build_request_id in self.request_ids
        )


class Trims(Part):
    """The steps of a trim; the caller holds the lease `LEASE`."""

    @repeated
    def find_cut(self, before: datetime) -> int:
        """Return the position of the last event that is older than an instant, 0 if none is."""
        with self._read() as connection:
            query = sa.select(sa.func.min(events.c.idx), sa.func.max(events.c.idx))
            first, last = connection.execute(query).one()
            if first is None:
                return 0
            low, high = first - 1, last  # everything up to `low` is older, nothing after `high`
            while low < high:
                middle = (low + high + 1) // 2
                query = sa.select(events.c.idx, events.c.at).where(events.c.idx <= middle)
                row = connection.execute(query.order_by(events.c.idx.desc()).limit(1)).first()
                if row is None or row.at < before:
                    low = middle
                else:
                    high = row.idx - 1
            return low if low >= first else 0

    def record_base(self) -> int:
        """Record the rows of the projections, as a rebuild begins with them; return its position.

        Nobody waits for it: the rows are read in one transaction, and written in many.
        """
        with self._read() as connection:
            query = sa.select(counters.c.value).where(counters.c.name == "events")
            position = connection.execute(query).scalar_one()
            present = connection.scalar(sa.select(counters.c.value).where(counters.c.name == BASE))
            if present == position:
                return position
            self._delete_bases(base_rows.c.position != (present or 0))
            for part, (name, rows) in enumerate(read_tables(connection, _ROWS)):
                self._write_part(position, part, name, rows)
        self._finish_base(position)
        self._delete_bases(base_rows.c.position != position)
        return position

    @repeated
    def _write_part(self, position: int, part: int, name: str, rows: Sequence[Any]) -> None:
        with self._write() as connection:
            key = {"position": position, "part": part}
            connection.execute(base_rows.insert().values(**key, table_name=name, rows=[*rows]))

    @repeated
    def _finish_base(self, position: int) -> None:
        with self._write() as connection:
            set_counter(connection, BASE, position)

    def _delete_bases(self, test: sa.ColumnElement[bool]) -> None:
        query = sa.select(base_rows.c.position, base_rows.c.part).where(test)
        with self._read() as connection:
            keys = connection.execute(query).all()
        for part in in_parts(keys):
            self._delete_parts([{"this": p, "number": n} for p, n in part])

    @repeated
    def _delete_parts(self, keys: Sequence[dict[str, int]]) -> None:
        this = base_rows.c.position == sa.bindparam("this")
        with self._write() as connection:
            connection.execute(
                base_rows.delete().where(this, base_rows.c.part == sa.bindparam("number")), [*keys]
            )

    @repeated
    def fetch_needed(self, upto: int) -> Needed:
        """Return the uses of the events up to a position."""
        own = sa.select(availability.c.idx).where(
            availability.c.graph == "", availability.c.idx <= upto
        )
        tainted = sa.select(events.c.environment, events.c.partition_ref).where(
            events.c.kind == sa.literal_column("'partition-tainted'")  # as the index says it
        )
        want_refs = sa.select(wants.c.environment, wants.c.partition_ref)
        want_refs = want_refs.where(wants.c.state.in_(ACTIVE))
        going = sa.select(builds.c.build_uid).where(builds.c.state == "started")
        is_open = build_requests.c.state.in_(("requested", "started"))
        open_requests = sa.select(build_requests.c.request_id).where(is_open)
        with self._read() as connection:
            return Needed(
                frozenset(connection.scalars(own)),
                frozenset((e, ref) for e, ref in connection.execute(tainted.distinct())),
                frozenset((e, ref) for e, ref in connection.execute(want_refs.distinct())),
                frozenset(connection.scalars(going)),
                frozenset(connection.scalars(open_requests)),
            )

    @repeated
    def fetch_rows(self, after: int, upto: int, *, limit: int) -> Sequence[Row[Any]]:
        """Return events as rows, in order: their columns, and `data` as its text in JSON."""
        columns = [c for c in events.columns if c is not events.c.data]
        query = (
            sa.select(*columns, sa.cast(events.c.data, sa.Text).label("data"))
            .where(events.c.idx > after, events.c.idx <= upto)
            .order_by(events.c.idx)
            .limit(limit)
        )
        with self._read() as connection:
            return connection.execute(query).all()

    def delete(self, positions: Sequence[int], surviving: Iterable[int] = ()) -> None:
        """Delete events at positions, in order; the same transaction moves the trim position.

        Parameters
        ----------
        surviving
            The positions of the events among them that stay.
        """
        stay = sorted(surviving)
        for first in range(0, len(positions), _DELETED_AT_ONCE):
            part = positions[first : first + _DELETED_AT_ONCE]
            self._delete(part, [idx for idx in stay if part[0] < idx < part[-1]])

    @repeated
    def _delete(self, positions: Sequence[int], surviving: Collection[int]) -> None:
        ends = [positions[0] - 1, *surviving, positions[-1] + 1]
        runs = [{"low": a, "high": b} for a, b in pairwise(ends) if b - a > 1]
        this = sa.and_(events.c.idx > sa.bindparam("low"), events.c.idx < sa.bindparam("high"))
        with self._write() as connection:
            connection.execute(events.delete().where(this), runs)
            set_counter(connection, TRIMMED, max(positions[-1], trimmed_to(connection)))

    @repeated
    def record_end(self, upto: int, archived: int, archive: str) -> None:
        """Record that events were trimmed."""
        data = {"upto": upto, "archived": archived, "archive": archive}
        with self._write() as connection:
            self._events.append(connection, "events-trimmed", data)


def set_counter(connection: Connection, name: str, value: int) -> None:
    """Set a counter, which may not exist yet."""
    this = counters.c.name == name
    if not connection.execute(counters.update().where(this).values(value=value)).rowcount:
        connection.execute(counters.insert().values(name=name, value=value))
