"""Projections of events as tables: wants, build requests, partitions, deadlines, other graphs.

`apply` is the only writer of these tables. It is called with new events, within the transaction
that appends them, and with all events, in order, to rebuild the tables (`rebuild`): they hold
nothing that the events do not. A build of many partitions appends very many events at once;
successive events of one kind are applied together.

Before events are trimmed, the rows of the tables are recorded as a base (`trims.py`): a rebuild
begins with them, and applies the events that came after them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.model.snapshots import Event
from persist_assets.core.wants import ACTIVE, UNDER_WAY, Want, deadline, fewer, pause
from persist_assets.ledger.connection import AT_ONCE, in_parts
from persist_assets.ledger.tables import (
    Instant,
    availability,
    base_rows,
    build_requests,
    counters,
    events,
    sla_misses,
    upstreams,
    wants,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy.engine import Connection, Row

PROJECTIONS = (wants, build_requests, availability, sla_misses, upstreams)
_Change = Callable[["Connection", Sequence[Event]], None]
"""Applies events of one kind to the tables."""


def apply(connection: Connection, new_events: Iterable[Event]) -> None:
    """Apply events to the tables; most kinds change nothing here."""
    for kind, group in groupby(new_events, key=lambda event: event.kind):
        if (change := _CHANGES.get(kind)) is not None:
            change(connection, [*group])


def rebuild(connection: Connection) -> int:
    """Rebuild the tables from the base and the events after it; return the number of events."""
    for table in reversed(PROJECTIONS):
        connection.execute(table.delete())
    n, last = 0, _read_base(connection)
    while True:
        query = sa.select(events).where(events.c.idx > last).order_by(events.c.idx)
        rows = connection.execute(query.limit(AT_ONCE)).all()
        apply(connection, (Event(row.idx, row.at, row.kind, row.data) for row in rows))
        if not rows:
            return n
        n, last = n + len(rows), rows[-1].idx


BASE = "base"
"""The counter that names the position of the base."""


def read_tables(connection: Connection, size: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the rows of the tables in parts of at most `size`, as a base records them."""
    for table in PROJECTIONS:
        query = sa.select(table).order_by(*table.primary_key.columns)
        rows = connection.execution_options(yield_per=size).execute(query)
        for part in rows.mappings().partitions():
            yield table.name, [{k: _recorded(v) for k, v in row.items()} for row in part]


def _recorded(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _read_base(connection: Connection) -> int:
    """Put the rows of the base into the tables, and return its position; 0 if there is none."""
    query = sa.select(counters.c.value).where(counters.c.name == BASE)
    position: int = connection.scalar(query) or 0
    tables = {table.name: table for table in PROJECTIONS}
    this = base_rows.c.position == position
    for (part,) in connection.execute(sa.select(base_rows.c.part).where(this)).all():
        row = connection.execute(sa.select(base_rows).where(this, base_rows.c.part == part)).one()
        table = tables[row.table_name]
        instants = {c.name for c in table.columns if isinstance(c.type, Instant)}
        values = [{k: instant(v) if k in instants else v for k, v in r.items()} for r in row.rows]
        for some in in_parts(values):
            connection.execute(table.insert(), [*some])
    return position


def instant(text: str | None) -> datetime | None:
    """Return the instant in a text of an event."""
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _each(change: Callable[[Connection, datetime, int, Mapping[str, Any]], None]) -> _Change:
    """Return a change that applies one event after the other."""

    def changes(connection: Connection, new_events: Sequence[Event]) -> None:
        for event in new_events:
            change(connection, event.at, event.idx, event.data)

    return changes


def _want_created(connection: Connection, new_events: Sequence[Event]) -> None:
    connection.execute(wants.insert(), [_new_want(event.at, event.data) for event in new_events])


def _new_want(at: datetime, data: Mapping[str, Any]) -> dict[str, Any]:
    want = Want(
        data["want_id"],
        data["partition_ref"],
        data["environment"],
        at,
        data_timestamp=instant(data.get("data_timestamp")),
        ttl_s=data.get("ttl_seconds"),
        sla_s=data.get("sla_seconds"),
    )
    return {
        "want_id": want.want_id,
        "partition_ref": want.partition_ref,
        "environment": want.environment,
        "created_at": at,
        "data_timestamp": want.data_timestamp,
        "ttl_seconds": want.ttl_s,
        "sla_seconds": want.sla_s,
        "deadline": deadline(at, want.data_timestamp, want.sla_s),
        "expires_at": want.expires_at,
        "external_dependencies": data.get("external_dependencies") or None,
        "source": data["source"],
        "comment": data.get("comment"),
        "parent": data.get("parent"),
        "state": data.get("state", "waiting"),
        "request_id": data.get("request_id"),
        "failures": 0,
    }


def _want_waits(connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]) -> None:
    this = sa.and_(wants.c.want_id == data["want_id"], wants.c.state.in_(ACTIVE))
    needs = connection.scalar(sa.select(wants.c.external_dependencies).where(this))
    both = dict.fromkeys([*(needs or ()), *data["missing"]])
    values = {"external_dependencies": [*both], "state": "waiting", "failures": 0}
    connection.execute(wants.update().where(this).values(**values, retry_at=None))


def _want_ended(state: str) -> _Change:
    def change(connection: Connection, new_events: Sequence[Event]) -> None:
        for at, group in groupby(new_events, key=lambda event: event.at):
            values = {"state": state, "ended_at": at, "retry_at": None}
            _update(connection, (event.data["want_id"] for event in group), values)

    return change


def _requested(connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]) -> None:
    connection.execute(
        build_requests.insert().values(
            request_id=data["build_request_id"],
            environment=data["environment"],
            partitions=data["partitions"],
            want_ids=data["want_ids"],
            reason=data["reason"],
            trigger=data["trigger"],
            state="requested",
            requested_at=at,
        )
    )
    _update(
        connection,
        data["want_ids"],
        {"state": "requested", "request_id": data["build_request_id"]},
    )


def _request(connection: Connection, data: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    this = build_requests.c.request_id == data["build_request_id"]
    connection.execute(build_requests.update().where(this).values(**values))


def _request_started(
    connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]
) -> None:
    values = {"state": "started", "started_at": at, "run_id": data.get("run_id")}
    _request(connection, data, values)
    these = sa.and_(wants.c.request_id == data["build_request_id"], wants.c.state == "requested")
    connection.execute(wants.update().where(these).values(state="building"))


def _request_succeeded(
    connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]
) -> None:
    _request(connection, data, {"state": "succeeded", "ended_at": at})


def _request_failed(
    connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]
) -> None:
    """Put the wants of a failed request back to waiting, or to failing with a pause.

    The culprits' wants pause. If the culprits are unknown, all wants are suspected together. A
    request that was never started says nothing about its wants: they wait a minute, and are
    requested together again.
    """
    error, culprits = data.get("error"), data.get("culprits") or []
    this_request = build_requests.c.request_id == data["build_request_id"]
    former_state = connection.scalar(sa.select(build_requests.c.state).where(this_request))
    values = {"state": "failed", "ended_at": at, "error": error, "culprits": culprits or None}
    _request(connection, data, values)
    this = wants.c.request_id == data["build_request_id"]
    these = sa.and_(this, wants.c.state.in_(UNDER_WAY))
    if former_state == "requested" and not culprits:
        values = {"state": "waiting", "error": error, "retry_at": at + pause(1)}
        connection.execute(wants.update().where(these).values(**values))
        return
    rows = connection.execute(sa.select(wants).where(these)).all()
    if culprits:
        guilty = [row for row in rows if row.partition_ref in culprits]
        _update(
            connection,
            (row.want_id for row in rows if row.partition_ref not in culprits),
            {"state": "waiting", "batch": None, "retry_at": None},
        )
        for row in guilty:
            n = row.failures + 1
            values = {"state": "failing", "failures": n, "batch": None, "error": error}
            _update(connection, [row.want_id], {**values, "retry_at": at + pause(n)})
        return
    n_partitions = len({row.partition_ref for row in rows})
    suspected = any(row.batch is not None for row in rows)
    alone = suspected and n_partitions == 1
    for row in rows:
        values = {"state": "failing", "error": error, "batch": None}
        if alone:
            n = row.failures + 1
            values |= {"failures": n, "retry_at": at + pause(n)}
        else:
            values |= {"batch": fewer(n_partitions) if suspected else n_partitions}
            values |= {"retry_at": at + pause(1)}
        _update(connection, [row.want_id], values)


def _partition(state: str) -> _Change:
    def change(connection: Connection, new_events: Sequence[Event]) -> None:
        def place(event: Event) -> tuple[str, str]:
            return event.data.get("graph", ""), event.data["environment"]

        for where, group in groupby(new_events, key=place):
            for part in in_parts([*group]):
                _put(connection, where, state, part)

    return change


def _put(
    connection: Connection, where: tuple[str, str], state: str, events: Sequence[Event]
) -> None:
    """Record the states of partitions of a graph in an environment."""
    graph, environment = where
    these = sa.and_(availability.c.graph == graph, availability.c.environment == environment)
    refs = [event.data["partition_ref"] for event in events]
    query = sa.select(availability.c.partition_ref)
    recorded = {*connection.scalars(query.where(these, availability.c.partition_ref.in_(refs)))}
    if state == "failed":  # recorded states stay; otherwise the first event counts
        events = [e for e in reversed(events) if e.data["partition_ref"] not in recorded]
    rows = {
        event.data["partition_ref"]: {
            "state": state,
            "at": event.at,
            "idx": event.idx,
            "build_uid": event.data.get("build_uid"),
        }
        for event in events
    }
    old = [{"ref": ref, **row} for ref, row in rows.items() if ref in recorded]
    if old:
        this = sa.and_(these, availability.c.partition_ref == sa.bindparam("ref"))
        connection.execute(availability.update().where(this), old)
    key = {"graph": graph, "environment": environment}
    new = [{**key, "partition_ref": ref, **row} for ref, row in rows.items() if ref not in recorded]
    if new:
        connection.execute(availability.insert(), new)


def _sla_missed(connection: Connection, new_events: Sequence[Event]) -> None:
    rows = [
        {
            "want_id": event.data["want_id"],
            "partition_ref": event.data["partition_ref"],
            "environment": event.data["environment"],
            "deadline": instant(event.data["deadline"]),
            "missed_at": event.at,
            "blame": event.data["blame"],
        }
        for event in new_events
    ]
    connection.execute(sla_misses.insert(), rows)


def _sla_recovered(connection: Connection, new_events: Sequence[Event]) -> None:
    this = sla_misses.c.want_id == sa.bindparam("this")
    values = {"delivered_at": sa.bindparam("delivered")}
    rows = [{"this": event.data["want_id"], "delivered": event.at} for event in new_events]
    connection.execute(sla_misses.update().where(this).values(**values), rows)


def _upstream(connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]) -> None:
    """Record the position up to which another graph was read, and the states of its partitions."""
    place = {"graph": data["graph"], "environment": data["environment"]}
    for state, group in groupby(
        data.get("partitions", ()), key=lambda partition: partition["state"]
    ):
        _partition(state)(
            connection, [Event(idx, at, "", {**partition, **place}) for partition in group]
        )
    this = sa.and_(
        upstreams.c.graph == data["graph"], upstreams.c.environment == data["environment"]
    )
    values = {"cursor": data["cursor"], "at": at, "problem": data.get("problem")}
    if not connection.execute(upstreams.update().where(this).values(**values)).rowcount:
        key = {"graph": data["graph"], "environment": data["environment"]}
        connection.execute(upstreams.insert().values(**key, **values))


def _ended(connection: Connection, at: datetime, idx: int, data: Mapping[str, Any]) -> None:
    own = sa.and_(availability.c.environment == data["environment"], availability.c.graph == "")
    connection.execute(availability.delete().where(own))


_CHANGES: Mapping[str, _Change] = {
    "want-created": _want_created,
    "want-waits": _each(_want_waits),
    "want-cancelled": _want_ended("cancelled"),
    "want-expired": _want_ended("expired"),
    "want-satisfied": _want_ended("satisfied"),
    "build-requested": _each(_requested),
    "build-request-started": _each(_request_started),
    "build-request-succeeded": _each(_request_succeeded),
    "build-request-failed": _each(_request_failed),
    "partition-available": _partition("available"),
    "partition-failed": _partition("failed"),
    "partition-tainted": _partition("tainted"),
    "sla-missed": _sla_missed,
    "sla-recovered": _sla_recovered,
    "upstream-synced": _each(_upstream),
    "environment-ended": _each(_ended),
}


def _update(connection: Connection, want_ids: Iterable[str], values: Mapping[str, Any]) -> None:
    """Change wants that have not ended."""
    for ids in in_parts([*want_ids]):
        these = sa.and_(wants.c.want_id.in_(ids), wants.c.state.in_(ACTIVE))
        connection.execute(wants.update().where(these).values(**values))


def want_of(row: Row[Any]) -> Want:
    """Return the want in a row of `wants`."""
    (
        want_id, ref, environment, created_at, data_timestamp, ttl, sla, _, _, needs, source,
        comment, parent, state, failures, batch, retry_at, error, request_id, ended_at,
    ) = tuple(row)  # fmt: skip
    return Want(
        want_id,
        ref,
        environment,
        created_at,
        data_timestamp,
        ttl,
        sla,
        tuple(needs or ()),
        source,
        comment,
        parent,
        state,
        failures,
        batch,
        retry_at,
        error,
        request_id,
        ended_at,
    )
