"""Build requests: the decisions of evaluations to build partitions, and their outcomes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, NotFoundError
from persist_assets.core.wants import ACTIVE, UNDER_WAY, Request, split_graph
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import availability, build_requests, events, wants
from persist_assets.ledger.wants import create_wants, end_wants, satisfy_wants, select_wants

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.wants import Evaluation, PartitionRef, RequestState, Want
    from persist_assets.ledger.log import EventLog


_INVALIDATING = ("partition-tainted", "rolled-back", "promoted", "imported")
"""Events after which a table that was up to date may no longer be."""


class Requests(Part):
    """The transitions of build requests."""

    def record_evaluation(
        self,
        environment: str,
        trigger: str,
        evaluation: Evaluation,
        *,
        since: int | None = None,
        environments: Sequence[str] = (),
    ) -> Request | None:
        """Record the decisions about wants, and return the new build request, if there is one.

        Wants whose state has changed meanwhile are left out. Many ended wants take several
        transactions, so that others can write in between.

        Parameters
        ----------
        since
            The last event before it was looked what is up to date. If rows were tainted or tables
            replaced by others since, no want is satisfied: the next evaluation looks again. None:
            do not check.
        environments
            The environment, and those that it reads.
        """
        changed = None
        if since is not None:
            changed = sa.exists().where(
                events.c.idx > since,
                events.c.kind.in_(_INVALIDATING),
                events.c.environment.in_(environments or (environment,)),
            )
        for want_ids in in_parts(evaluation.satisfied):
            self._record_ended("want-satisfied", want_ids, unless=changed)
        for want_ids in in_parts(evaluation.expired):
            self._record_ended("want-expired", want_ids)
        return self._record_decided(environment, trigger, evaluation)

    @repeated
    def _record_ended(
        self, kind: str, want_ids: Sequence[str], *, unless: sa.ColumnElement[bool] | None = None
    ) -> None:
        with self._write() as connection:
            if unless is None or not connection.scalar(sa.select(unless)):
                end_wants(self._events, connection, kind, _active(connection, want_ids).values())

    @repeated
    def _record_decided(
        self, environment: str, trigger: str, evaluation: Evaluation
    ) -> Request | None:
        with self._write() as connection:
            active: dict[str, Any] = {}
            for want_ids in in_parts(evaluation.want_ids):
                active |= _active(connection, want_ids)
            building = [
                active[i]
                for i in evaluation.want_ids
                if i in active and active[i].state not in UNDER_WAY
            ]
            refs = tuple(dict.fromkeys(want.partition_ref for want in building))
            request_id = uuid.uuid4().hex if refs else None
            self._events.append(
                connection,
                "evaluation",
                {
                    "environment": environment,
                    "trigger": trigger,
                    "build_request_id": request_id,
                    "reason": evaluation.reason,
                    "blocked": len(evaluation.blocked),
                },
            )
            if request_id is None:
                return None
            data = {
                "environment": environment,
                "build_request_id": request_id,
                "partitions": refs,
                "want_ids": [want.want_id for want in building],
                "reason": evaluation.reason,
                "trigger": trigger,
            }
            self._events.append(connection, "build-requested", data)
            return _get(connection, request_id)

    @repeated
    def find(self, request_id: str) -> Request | None:
        """Return a build request, or None if there is none."""
        with self._read() as connection:
            return _find(connection, request_id)

    @repeated
    def fetch(
        self, environment: str, *, is_open: bool = False, limit: int | None = None
    ) -> list[Request]:
        """Return an environment's build requests, newest first; `is_open`: only open ones."""
        test = build_requests.c.environment == environment
        if is_open:
            test = sa.and_(test, build_requests.c.state.in_(("requested", "started")))
        with self._read() as connection:
            return _select_requests(connection, test, limit)

    @repeated
    def fetch_open(self, environment: str) -> list[tuple[str, RequestState, datetime]]:
        """Return id, state and time of the requests that have not ended, the oldest first."""
        columns = build_requests.c.request_id, build_requests.c.state, build_requests.c.requested_at
        query = sa.select(*columns).where(
            build_requests.c.environment == environment,
            build_requests.c.state.in_(("requested", "started")),
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(build_requests.c.requested_at)).all()
        return [(request_id, state, at) for request_id, state, at in rows]

    @repeated
    def start(self, request_id: str, run_id: str | None) -> Request:
        """Record that a process has taken a request.

        Raises
        ------
        NotFoundError
            There is no such request.
        ConflictError
            It has ended, or another process has taken it.
        """
        with self._write() as connection:
            request = _find(connection, request_id)
            if request is None:
                raise NotFoundError(f"unknown build request `{request_id}`")
            if request.state != "requested":
                raise ConflictError(f"the build request `{request_id}` is already taken")
            data = {"build_request_id": request_id, "environment": request.environment}
            self._events.append(connection, "build-request-started", {**data, "run_id": run_id})
            return _get(connection, request_id)

    @repeated
    def check_upstreams(self, request_id: str) -> None:
        """Check that other graphs still have what the wants of a request need.

        Raises
        ------
        ConflictError
            A needed partition was tainted or removed.
        """
        with self._read() as connection:
            _check_upstreams(connection, _get(connection, request_id))

    @repeated
    def fail(
        self,
        request_id: str,
        error: str,
        culprits: Collection[PartitionRef] = (),
        *,
        waits_for: Sequence[PartitionRef] = (),
        children: Sequence[Want] = (),
    ) -> None:
        """Record that a request failed, unless it has ended.

        Parameters
        ----------
        culprits
            The requested partitions that caused the failure; empty if unknown.
        waits_for, children
            The partitions that the culprits turned out to need, and new wants for them.
        """
        with self._write() as connection:
            request = _find(connection, request_id)
            if request is None or request.state in ("succeeded", "failed"):
                return
            data = {"build_request_id": request_id, "environment": request.environment}
            reason = {"error": error.replace("\0", ""), "culprits": sorted(culprits)}
            self._events.append(connection, "build-request-failed", {**data, **reason})
            failed = [{**data, "partition_ref": ref} for ref in sorted(culprits)]
            self._events.append_all(connection, [("partition-failed", values) for values in failed])
            create_wants(self._events, connection, children)
            if waits_for:
                asking = wants.c.request_id == request_id
                missing = {**data, "missing": [*waits_for]}
                waiting = [
                    {**missing, "want_id": want.want_id, "partition_ref": want.partition_ref}
                    for want in select_wants(connection, asking).values()
                    if want.partition_ref in culprits
                ]
                self._events.append_all(connection, [("want-waits", values) for values in waiting])


def succeed_request(event_log: EventLog, connection: Connection, request_id: str) -> None:
    """Record that a request succeeded, within the transaction that publishes its builds."""
    request = _get(connection, request_id)
    _check_upstreams(connection, request)
    data = {"build_request_id": request_id, "environment": request.environment}
    event_log.append(connection, "build-request-succeeded", data)
    satisfy_wants(event_log, connection, request_id)


def _check_upstreams(connection: Connection, request: Request) -> None:
    """Raise ConflictError if another graph lacks a partition that the wants of a request need."""
    test = sa.and_(wants.c.request_id == request.request_id, wants.c.state.in_(UNDER_WAY))
    asking = select_wants(connection, test).values()
    names: dict[str, set[str]] = {}
    for graph, name in (split_graph(d) for w in asking for d in w.external_dependencies):
        names.setdefault(graph, set()).add(name)
    for graph, needed in names.items():
        query = sa.select(availability.c.partition_ref).where(
            availability.c.environment == request.environment,
            availability.c.graph == graph,
            availability.c.state == "available",
        )
        for part in in_parts(sorted(needed)):
            present = connection.scalars(query.where(availability.c.partition_ref.in_(part)))
            if missing := sorted({*part}.difference(present)):
                message = f"{graph}:{missing[0]} is no longer available"
                raise ConflictError(message, hint="it is built when it is available")


def _find(connection: Connection, request_id: str) -> Request | None:
    requests = _select_requests(connection, build_requests.c.request_id == request_id)
    return requests[0] if requests else None


def _get(connection: Connection, request_id: str) -> Request:
    (request,) = _select_requests(connection, build_requests.c.request_id == request_id)
    return request


def _select_requests(
    connection: Connection, test: sa.ColumnElement[bool], limit: int | None = None
) -> list[Request]:
    query = sa.select(build_requests).where(test)
    query = query.order_by(build_requests.c.requested_at.desc()).limit(limit)
    return [_request(row) for row in connection.execute(query)]


def _request(row: Row[Any]) -> Request:
    return Request(
        row.request_id,
        row.environment,
        tuple(row.partitions),
        tuple(row.want_ids),
        row.reason,
        row.trigger,
        row.state,
        row.requested_at,
        row.started_at,
        row.ended_at,
        row.run_id,
        row.error,
        tuple(row.culprits or ()),
    )


def _active(connection: Connection, want_ids: Sequence[str]) -> dict[str, Any]:
    """Return the wants of `want_ids` that are still active, the oldest first."""
    of = wants.c
    columns = of.want_id, of.partition_ref, of.environment, of.state, of.deadline, of.created_at
    these = sa.and_(wants.c.want_id.in_(want_ids), wants.c.state.in_(ACTIVE))
    query = sa.select(*columns).where(these).order_by(wants.c.created_at, wants.c.want_id)
    return {row.want_id: row for row in connection.execute(query)}
