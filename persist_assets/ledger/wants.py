"""Wants: created, cancelled, satisfied, expired, and late.

Each transition is one transaction that appends events; the tables follow from these
(`projections.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, NotFoundError
from persist_assets.core.wants import (
    ACTIVE,
    UNDER_WAY,
    ActiveWant,
    Blame,
    Miss,
    Want,
    WantState,
    matcher,
)
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import Part, begins, like, repeated
from persist_assets.ledger.projections import want_of
from persist_assets.ledger.tables import build_requests, sla_misses, wants

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.wants import PartitionRef
    from persist_assets.ledger.log import EventLog

_READ_AT_ONCE = 500
_FEW = 5000
"""Up to this number of wants are read by partition and sorted, not read by state in order."""


class Wants(Part):
    """The transitions of wants, and their deadlines."""

    @repeated
    def create(self, new: Sequence[Want]) -> list[Want]:
        """Record wants, and return their current state. Existing IDs stay as they are.

        The ledger sets `created_at`.

        Raises
        ------
        ConflictError
            A want with the same ID asks for something else.
        """
        with self._write() as connection:
            create_wants(self._events, connection, new)
            recorded = select_wants(connection, wants.c.want_id.in_([w.want_id for w in new]))
            return [recorded[w.want_id] for w in new]

    @repeated
    def create_new(self, new: Sequence[Want]) -> list[Want]:
        """Record those wants whose IDs are new, and return them."""
        with self._write() as connection:
            recorded: dict[str, Want] = {}
            for part in in_parts([want.want_id for want in new]):
                recorded |= select_wants(connection, wants.c.want_id.in_(part))
            missing = [want for want in new if want.want_id not in recorded]
            create_wants(self._events, connection, missing)
            return missing

    @repeated
    def cancel(self, want_id: str, *, by: str, why: str | None = None) -> Want:
        """Cancel a want, and return its current state.

        Raises
        ------
        NotFoundError
            There is no such want.
        ConflictError
            It has ended.
        """
        with self._write() as connection:
            want = select_wants(connection, wants.c.want_id == want_id).get(want_id)
            if want is None:
                raise NotFoundError(f"unknown want `{want_id}`")
            if want.state not in ACTIVE:
                raise ConflictError(f"the want `{want_id}` is {want.state}")
            data = {"want_id": want_id, "partition_ref": want.partition_ref, "by": by, "why": why}
            self._events.append(
                connection, "want-cancelled", {**data, "environment": want.environment}
            )
            return select_wants(connection, wants.c.want_id == want_id)[want_id]

    @repeated
    def find(self, want_id: str) -> Want | None:
        """Return a want, or None if there is none of this ID."""
        with self._read() as connection:
            return select_wants(connection, wants.c.want_id == want_id).get(want_id)

    @repeated
    def find_last_end(self, prefix: str, *, until: datetime) -> datetime | None:
        """Return the latest time of the data of wants whose IDs have a prefix, or None.

        Parameters
        ----------
        until
            Later times are ignored: they are from a process whose clock was wrong.
        """
        query = sa.select(sa.func.max(wants.c.data_timestamp)).where(
            wants.c.want_id.startswith(prefix, autoescape=True), wants.c.data_timestamp <= until
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def fetch(
        self,
        environment: str,
        *,
        states: Collection[WantState] = (),
        refs: Collection[PartitionRef] = (),
        pattern: str | None = None,
        limit: int | None = None,
    ) -> list[Want]:
        """Return wants of an environment, the oldest first; with a limit, the newest ones.

        Parameters
        ----------
        states, refs
            Only wants of these; empty: all.
        pattern
            Only wants whose partitions match; see `matcher`.
        """
        in_environment = wants.c.environment == environment
        tests = [in_environment]
        chosen = dict.fromkeys(states or get_args(WantState))
        each: list[sa.ColumnElement[bool]] = [wants.c.state == state for state in chosen]
        if refs:  # few wants, which their own index finds
            tests.append(wants.c.partition_ref.in_([*refs]))
            each = [sa.true()]
        fits = None
        if pattern is not None:
            tests.append(wants.c.partition_ref.like(like(pattern), escape="\\"))
            fits = matcher(pattern)
        newest = wants.c.created_at.desc(), wants.c.want_id.desc()
        page: list[Want] = []
        with self._read() as connection:
            if pattern is not None and not refs and self._are_few(connection, pattern):
                # Their own index finds them; it has no environments.
                tests[0] = wants.c.environment.concat("") == environment
                tests.append(self._begins(pattern))
                each = [sa.true()]
            # Each state's newest are at an end of the index: no others are read or sorted.
            for test in each:
                query = sa.select(wants).where(*tests, test).order_by(*newest)
                query = query.limit(None if fits or refs else limit)
                query = query.execution_options(yield_per=_READ_AT_ONCE)
                with connection.execute(query) as rows:
                    fitting = (
                        row
                        for row in rows
                        if row.state in chosen and (fits is None or fits(row.partition_ref))
                    )
                    page += map(want_of, islice(fitting, limit))
        page.sort(key=lambda want: (want.created_at, want.want_id))
        return page if limit is None else page[-limit:]

    def _begins(self, pattern: str) -> sa.ColumnElement[bool]:
        """Return a test of partitions that an index answers; see `begins`."""
        return begins(wants.c.partition_ref, pattern, is_postgres=self.database.is_postgres)

    def _are_few(self, connection: Connection, pattern: str) -> bool:
        """Whether few wants of all environments are of partitions that begin as a pattern does."""
        if pattern.startswith("*"):
            return False
        those = sa.select(wants.c.partition_ref).where(self._begins(pattern)).limit(_FEW + 1)
        count = sa.select(sa.func.count()).select_from(those.subquery())
        return connection.execute(count).scalar_one() <= _FEW

    @repeated
    def fetch_active(self, environment: str, now: datetime | None = None) -> list[ActiveWant]:
        """Return the active wants, with the fields that `wants.evaluate` needs.

        Parameters
        ----------
        now
            Wants of annotations whose windows end later are left out: a process made them whose
            clock was wrong. None: return them, too.
        """
        query = sa.select(
            wants.c.want_id,
            wants.c.partition_ref,
            wants.c.state,
            wants.c.deadline,
            wants.c.expires_at,
            sa.cast(wants.c.external_dependencies, sa.Text),
            wants.c.failures,
            wants.c.batch,
            wants.c.retry_at,
            wants.c.request_id,
        ).where(wants.c.environment == environment, wants.c.state.in_(ACTIVE))
        if now is not None:
            is_scheduled = wants.c.want_id.like("%:%@%")
            query = query.where(sa.not_(sa.and_(is_scheduled, wants.c.data_timestamp > now)))
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [
            ActiveWant(i, ref, state, due, end, _needs(needs) if needs else (), n, batch, at, by)
            for i, ref, state, due, end, needs, n, batch, at, by in rows
        ]

    @repeated
    def fetch_waiting(self, environment: str, graph: str, *, limit: int) -> list[PartitionRef]:
        """Return the partitions of wants that need another graph, the oldest wants first.

        Parameters
        ----------
        limit
            How many wants to look at.
        """
        needs = sa.cast(wants.c.external_dependencies, sa.Text)
        query = (
            sa.select(wants.c.partition_ref)
            .where(
                wants.c.environment == environment,
                wants.c.state.in_(("waiting", "failing")),
                needs.contains(f'"{graph}:', autoescape=True),
            )
            .order_by(wants.c.created_at, wants.c.want_id)
            .limit(limit)
        )
        with self._read() as connection:
            return [*dict.fromkeys(connection.scalars(query))]

    @repeated
    def count_states(self, environment: str) -> dict[str, dict[str, int]]:
        """Return how many wants, requests and misses of an environment are in each state."""
        counts: dict[str, dict[str, int]] = {}
        with self._read() as connection:
            for name, table in (("wants", wants), ("requests", build_requests)):
                query = sa.select(table.c.state, sa.func.count()).group_by(table.c.state)
                rows = connection.execute(query.where(table.c.environment == environment))
                counts[name] = {state: n for state, n in rows}
            of = sla_misses.c.environment == environment
            for state, test in (
                ("open", sla_misses.c.delivered_at.is_(None)),
                ("delivered", sla_misses.c.delivered_at.is_not(None)),
            ):
                query = sa.select(sa.func.count()).select_from(sla_misses).where(of, test)
                counts.setdefault("misses", {})[state] = connection.execute(query).scalar_one()
        return counts

    @repeated
    def fetch_late(
        self, environment: str, now: datetime, *, limit: int | None = None
    ) -> list[Want]:
        """Return the active wants past their deadlines whose misses are not recorded."""
        test = sa.and_(
            wants.c.environment == environment,
            wants.c.state.in_(ACTIVE),
            wants.c.deadline < now,
            wants.c.want_id.not_in(sa.select(sla_misses.c.want_id)),
        )
        with self._read() as connection:
            return [*select_wants(connection, test, limit).values()]

    @repeated
    def fetch_deadlines(
        self, environment: str, *, want_ids: Collection[str] | None = None
    ) -> dict[PartitionRef, datetime]:
        """Return the earliest deadline of the active wants of each partition that has any.

        Parameters
        ----------
        want_ids
            Only of these; None: all.
        """
        query = (
            sa.select(wants.c.partition_ref, sa.func.min(wants.c.deadline))
            .where(
                wants.c.environment == environment,
                wants.c.state.in_(ACTIVE),
                wants.c.deadline.is_not(None),
            )
            .group_by(wants.c.partition_ref)
        )
        with self._read() as connection:
            if want_ids is None:
                return {ref: deadline for ref, deadline in connection.execute(query)}
            deadlines: dict[PartitionRef, datetime] = {}
            for part in in_parts([*want_ids]):
                for ref, at in connection.execute(query.where(wants.c.want_id.in_(part))):
                    deadlines[ref] = min(at, deadlines.get(ref, at))
            return deadlines

    def record_misses(self, missed: Iterable[tuple[Want, Blame]]) -> int:
        """Record missed deadlines and what each want waited for; return how many are new.

        Many misses take several transactions, so that others can write in between.
        """
        return sum(map(self._record_some_misses, in_parts([*missed])))

    @repeated
    def _record_some_misses(self, missed: Sequence[tuple[Want, Blame]]) -> int:
        each = {want.want_id: (want, blame) for want, blame in missed}
        query = sa.select(sla_misses.c.want_id).where(sla_misses.c.want_id.in_(each))
        with self._write() as connection:
            recorded = {*connection.scalars(query)}
            new = [
                _miss_data(want, blame)
                for want, blame in each.values()
                if want.want_id not in recorded and want.deadline is not None
            ]
            self._events.append_all(connection, [("sla-missed", data) for data in new])
            return len(new)

    @repeated
    def fetch_misses(
        self, environment: str, *, limit: int | None = None, only_open: bool = False
    ) -> list[Miss]:
        """Return missed deadlines, the latest first; `only_open`: of active wants only."""
        query = sa.select(sla_misses).where(sla_misses.c.environment == environment)
        if only_open:
            query = query.where(
                sla_misses.c.delivered_at.is_(None),
                sa.exists().where(
                    wants.c.want_id == sla_misses.c.want_id, wants.c.state.in_(ACTIVE)
                ),
            )
        query = query.order_by(sla_misses.c.deadline.desc(), sla_misses.c.want_id).limit(limit)
        with self._read() as connection:
            return [_miss_of(row) for row in connection.execute(query)]

    @repeated
    def find_miss(self, want_id: str) -> Miss | None:
        """Return the missed deadline of a want, or None."""
        query = sa.select(sla_misses).where(sla_misses.c.want_id == want_id)
        with self._read() as connection:
            row = connection.execute(query).first()
        return _miss_of(row) if row is not None else None


def _miss_of(row: Row[Any]) -> Miss:
    return Miss(
        row.want_id, row.partition_ref, row.deadline, row.missed_at, row.delivered_at, row.blame
    )


def create_wants(event_log: EventLog, connection: Connection, created: Iterable[Want]) -> None:
    """Record wants that are not recorded yet, each ID once."""
    for part in in_parts([*created]):
        recorded = select_wants(connection, wants.c.want_id.in_([want.want_id for want in part]))
        new: list[Want] = []
        for want in part:
            existing = recorded.get(want.want_id)
            if existing is None:
                recorded[want.want_id] = want
                new.append(want)
            elif _content(existing) != _content(want):
                raise ConflictError(
                    f"the want `{want.want_id}` already exists with different content",
                    hint="use another ID, or cancel it",
                )
        event_log.append_all(connection, [("want-created", _want_data(want)) for want in new])


def end_wants(
    event_log: EventLog,
    connection: Connection,
    kind: str,
    ended: Iterable[Want | Row[Any]],
    **more: Any,
) -> None:
    """Record the end of wants, and the delays of those that had missed their deadlines.

    A deadline can pass between two evaluations, so a miss may be new when the want ends.
    """
    for part in in_parts([*ended]):
        missed: dict[str, datetime] = {}
        if kind in ("want-satisfied", "want-expired"):
            _record_unnoticed(event_log, connection, part)
        if kind == "want-satisfied":
            query = sa.select(sla_misses.c.want_id, sla_misses.c.deadline).where(
                sla_misses.c.want_id.in_([want.want_id for want in part]),
                sla_misses.c.delivered_at.is_(None),
            )
            missed = {row.want_id: row.deadline for row in connection.execute(query)}
        ends: list[tuple[str, dict[str, Any]]] = []
        recovered: list[tuple[str, dict[str, Any]]] = []
        for want in part:
            data = {
                "want_id": want.want_id,
                "partition_ref": want.partition_ref,
                "environment": want.environment,
            }
            ends.append((kind, {**data, **more}))
            if want.want_id in missed:
                late = (event_log.clock() - missed[want.want_id]).total_seconds()
                recovered.append(("sla-recovered", {**data, "late_seconds": late}))
        event_log.append_all(connection, [*ends, *recovered])


def _record_unnoticed(
    event_log: EventLog, connection: Connection, ended: Sequence[Want | Row[Any]]
) -> None:
    """Record unrecorded misses of wants that end after their deadlines."""
    now = event_log.clock()
    late = [want for want in ended if want.deadline is not None and want.deadline < now]
    if not late:
        return
    these = sla_misses.c.want_id.in_([want.want_id for want in late])
    recorded = {*connection.scalars(sa.select(sla_misses.c.want_id).where(these))}
    new = [
        _miss_data(want, Blame(want.partition_ref, "", want.created_at, "running"))
        for want in late
        if want.want_id not in recorded
    ]
    event_log.append_all(connection, [("sla-missed", data) for data in new])


def _miss_data(want: Want | Row[Any], blame: Blame) -> dict[str, Any]:
    return {
        "want_id": want.want_id,
        "partition_ref": want.partition_ref,
        "environment": want.environment,
        "deadline": want.deadline.isoformat() if want.deadline is not None else None,
        "blame": {**asdict(blame), "since": blame.since.isoformat()},
    }


def satisfy_wants(event_log: EventLog, connection: Connection, request_id: str) -> None:
    """Record that the wants of a request, or of a build, are satisfied."""
    test = sa.and_(wants.c.request_id == request_id, wants.c.state.in_(UNDER_WAY))
    end_wants(event_log, connection, "want-satisfied", select_wants(connection, test).values())


def give_up_wants(event_log: EventLog, connection: Connection, build_uid: str, error: str) -> None:
    """Cancel the wants that a failed build made for itself."""
    test = sa.and_(wants.c.request_id == build_uid, wants.c.state == "building")
    why = (error.replace("\0", "").splitlines() or [""])[0]
    ended = select_wants(connection, test).values()
    end_wants(event_log, connection, "want-cancelled", ended, by="the build", why=why)


@lru_cache(maxsize=4096)
def _needs(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _content(want: Want) -> tuple[Any, ...]:
    """Return the content of a want: a second want of the same ID must be equal."""
    return (
        want.partition_ref,
        want.environment,
        want.data_timestamp,
        want.ttl_s,
        want.sla_s,
        want.external_dependencies,
    )


def _want_data(want: Want) -> dict[str, Any]:
    return {
        "want_id": want.want_id,
        "partition_ref": want.partition_ref,
        "environment": want.environment,
        "data_timestamp": want.data_timestamp.isoformat() if want.data_timestamp else None,
        "ttl_seconds": want.ttl_s,
        "sla_seconds": want.sla_s,
        "external_dependencies": [*want.external_dependencies],
        "source": dict(want.source),
        "comment": want.comment,
        "parent": want.parent,
        "state": want.state,
        "request_id": want.request_id,
    }


def select_wants(
    connection: Connection, test: sa.ColumnElement[bool], limit: int | None = None
) -> dict[str, Want]:
    """Return the wants that pass a test by ID, the oldest first."""
    query = sa.select(wants).where(test).order_by(wants.c.created_at, wants.c.want_id)
    query = query.limit(limit)
    return {row.want_id: want_of(row) for row in connection.execute(query)}
