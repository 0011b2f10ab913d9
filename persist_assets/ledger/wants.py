"""The wants of a ledger: every transition of wants, build requests and deadlines is a method here.

Each is one transaction that appends events; the tables follow from these (`projections.py`).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, NotFoundError
from persist_assets.core.model.snapshots import Event
from persist_assets.core.wants import (
    ACTIVE,
    UNDER_WAY,
    ActiveWant,
    Availability,
    Blame,
    Miss,
    Request,
    Want,
    WantState,
    matcher,
)
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import EventLog, repeated
from persist_assets.ledger.projections import rebuild, want_of
from persist_assets.ledger.tables import (
    availability,
    build_requests,
    counters,
    events,
    sla_misses,
    upstreams,
    wants,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.wants import Evaluation, PartitionRef, RequestState

_READ_AT_ONCE = 500
_SCANNED = 20_000
"""So many events are looked at for one page at most."""


class WantLog(EventLog):
    """What of a ledger is about wants."""

    # --------------------------------------------------------------------------------- wants

    @repeated
    def create_wants(self, given: Sequence[Want]) -> list[Want]:
        """Record wants, and return them as they are now; those whose ids are there stay so.

        Their `created_at` is the ledger's.

        Raises
        ------
        ConflictError
            A want of this id asks for something else.
        """
        with self._write() as connection:
            self._create(connection, given)
            found = _wants(connection, wants.c.want_id.in_([w.want_id for w in given]))
            return [found[w.want_id] for w in given]

    def _create(self, connection: Connection, given: Iterable[Want]) -> None:
        """Record wants that are not there, each id once."""
        for some in in_parts([*given]):
            known = _wants(connection, wants.c.want_id.in_([want.want_id for want in some]))
            new: list[Want] = []
            for want in some:
                there = known.get(want.want_id)
                if there is None:
                    known[want.want_id] = want
                    new.append(want)
                elif _asked(there) != _asked(want):
                    raise ConflictError(
                        f"the want `{want.want_id}` already exists with different content",
                        hint="use another ID, or cancel it",
                    )
            self._append_all(connection, [("want-created", _want_data(want)) for want in new])

    @repeated
    def cancel_want(self, want_id: str, *, by: str, why: str | None = None) -> Want:
        """Record that nobody wants something any more, and return the want as it is now.

        Raises
        ------
        NotFoundError
            There is no such want.
        ConflictError
            It has ended.
        """
        with self._write() as connection:
            want = _wants(connection, wants.c.want_id == want_id).get(want_id)
            if want is None:
                raise NotFoundError(f"unknown want `{want_id}`")
            if want.state not in ACTIVE:
                raise ConflictError(f"the want `{want_id}` is {want.state}")
            data = {"want_id": want_id, "partition_ref": want.partition_ref, "by": by, "why": why}
            self._append(connection, "want-cancelled", {**data, "environment": want.environment})
            return _wants(connection, wants.c.want_id == want_id)[want_id]

    @repeated
    def find_want(self, want_id: str) -> Want | None:
        """Return a want, None where there is none of this id."""
        with self._read() as connection:
            return _wants(connection, wants.c.want_id == want_id).get(want_id)

    @repeated
    def fetch_wants(
        self,
        environment: str,
        *,
        states: Collection[WantState] = (),
        refs: Collection[PartitionRef] = (),
        pattern: str | None = None,
        limit: int | None = None,
    ) -> list[Want]:
        """Return wants of an environment, the oldest first; of those of a limit the newest.

        Parameters
        ----------
        states, refs
            Of these alone; empty: of all.
        pattern
            What their partitions' references match; see `matcher`.
        """
        tests = [wants.c.environment == environment]
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
        found: list[Want] = []
        with self._read() as connection:
            # Each state's newest are at an end of the index: no others are read or sorted.
            for test in each:
                query = sa.select(wants).where(*tests, test).order_by(*newest)
                query = query.limit(None if fits or refs else limit)
                query = query.execution_options(yield_per=_READ_AT_ONCE)
                with connection.execute(query) as rows:
                    some = (
                        row
                        for row in rows
                        if row.state in chosen and (fits is None or fits(row.partition_ref))
                    )
                    found += map(want_of, islice(some, limit))
        found.sort(key=lambda want: (want.created_at, want.want_id))
        return found if limit is None else found[-limit:]

    @repeated
    def fetch_active(self, environment: str) -> list[ActiveWant]:
        """Return the wants that may still be satisfied, as far as `wants.evaluate` asks."""
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
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [
            ActiveWant(i, ref, state, due, end, _needs(needs) if needs else (), n, some, at, by)
            for i, ref, state, due, end, needs, n, some, at, by in rows
        ]

    @repeated
    def fetch_waiting(self, environment: str, graph: str, *, limit: int) -> list[PartitionRef]:
        """Return what is wanted and needs something of another graph, the oldest wants first.

        Parameters
        ----------
        limit
            So many wants are looked at.
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

    # ---------------------------------------------------------------------------- evaluation

    def record_evaluation(
        self, environment: str, trigger: str, evaluation: Evaluation
    ) -> Request | None:
        """Record what was decided about wants, and return the request that was made, if any.

        Wants of which something else became meanwhile are left out. Where many have ended, that
        is several transactions, so that others can write in between.
        """
        for some in in_parts(evaluation.satisfied):
            self._record_ended("want-satisfied", some)
        for some in in_parts(evaluation.expired):
            self._record_ended("want-expired", some)
        return self._record_decided(environment, trigger, evaluation)

    @repeated
    def _record_ended(self, kind: str, want_ids: Sequence[str]) -> None:
        with self._write() as connection:
            self._end(connection, kind, _states(connection, want_ids).values())

    @repeated
    def _record_decided(
        self, environment: str, trigger: str, evaluation: Evaluation
    ) -> Request | None:
        with self._write() as connection:
            active: dict[str, Any] = {}
            for some in in_parts(evaluation.want_ids):
                active |= _states(connection, some)
            building = [
                active[i]
                for i in evaluation.want_ids
                if i in active and active[i].state not in UNDER_WAY
            ]
            refs = tuple(dict.fromkeys(want.partition_ref for want in building))
            request_id = uuid.uuid4().hex if refs else None
            self._append(
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
            self._append(connection, "build-requested", data)
            return _requests(connection, build_requests.c.request_id == request_id)[0]

    def _end(
        self, connection: Connection, kind: str, ended: Iterable[Want | Row[Any]], **more: Any
    ) -> None:
        """Record what has become of wants, and which deadline it was late for."""
        for some in in_parts([*ended]):
            missed: dict[str, datetime] = {}
            if kind == "want-satisfied":
                query = sa.select(sla_misses.c.want_id, sla_misses.c.deadline).where(
                    sla_misses.c.want_id.in_([want.want_id for want in some]),
                    sla_misses.c.delivered_at.is_(None),
                )
                missed = {row.want_id: row.deadline for row in connection.execute(query)}
            told: list[tuple[str, dict[str, Any]]] = []
            recovered: list[tuple[str, dict[str, Any]]] = []
            for want in some:
                data = {
                    "want_id": want.want_id,
                    "partition_ref": want.partition_ref,
                    "environment": want.environment,
                }
                told.append((kind, {**data, **more}))
                if want.want_id in missed:
                    late = (self._clock() - missed[want.want_id]).total_seconds()
                    recovered.append(("sla-recovered", {**data, "late_seconds": late}))
            self._append_all(connection, [*told, *recovered])

    @repeated
    def find_request(self, request_id: str) -> Request | None:
        """Return a build request, None where there is none."""
        with self._read() as connection:
            found = _requests(connection, build_requests.c.request_id == request_id)
            return found[0] if found else None

    @repeated
    def fetch_requests(
        self, environment: str, *, is_open: bool = False, limit: int | None = None
    ) -> list[Request]:
        """Return the build requests of an environment, the newest first; `is_open`: no others."""
        test = build_requests.c.environment == environment
        if is_open:
            test = sa.and_(test, build_requests.c.state.in_(("requested", "started")))
        with self._read() as connection:
            return _requests(connection, test, limit)

    @repeated
    def fetch_open_requests(self, environment: str) -> list[tuple[str, RequestState, datetime]]:
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
    def start_request(self, request_id: str, run_id: str | None) -> Request:
        """Record that somebody has begun to build what was asked for.

        Raises
        ------
        NotFoundError
            There is no such request.
        ConflictError
            It has ended, or was begun by somebody else.
        """
        with self._write() as connection:
            found = _requests(connection, build_requests.c.request_id == request_id)
            if not found:
                raise NotFoundError(f"unknown build request `{request_id}`")
            if found[0].state != "requested":
                raise ConflictError(f"the build request `{request_id}` is already taken")
            data = {"build_request_id": request_id, "environment": found[0].environment}
            self._append(connection, "build-request-started", {**data, "run_id": run_id})
            return _requests(connection, build_requests.c.request_id == request_id)[0]

    @repeated
    def fail_request(
        self,
        request_id: str,
        error: str,
        culprits: Collection[PartitionRef] = (),
        *,
        waits_for: Sequence[PartitionRef] = (),
        children: Sequence[Want] = (),
    ) -> None:
        """Record that what was asked for was not built, unless its end is recorded already.

        Parameters
        ----------
        culprits
            The wanted partitions whose fault it is; empty: nobody knows.
        waits_for, children
            What these wait for, as was found, and the wants of it.
        """
        with self._write() as connection:
            found = _requests(connection, build_requests.c.request_id == request_id)
            if not found or found[0].state in ("succeeded", "failed"):
                return
            environment = found[0].environment
            data = {"build_request_id": request_id, "environment": environment}
            told = {"error": error.replace("\0", ""), "culprits": sorted(culprits)}
            self._append(connection, "build-request-failed", {**data, **told})
            failed = [{**data, "partition_ref": ref} for ref in sorted(culprits)]
            self._append_all(connection, [("partition-failed", one) for one in failed])
            self._create(connection, children)
            if waits_for:
                missing = {**data, "missing": [*waits_for]}
                waiting = [
                    {**missing, "want_id": want.want_id, "partition_ref": want.partition_ref}
                    for want in _wants(connection, wants.c.request_id == request_id).values()
                    if want.partition_ref in culprits
                ]
                self._append_all(connection, [("want-waits", one) for one in waiting])

    def _succeed(self, connection: Connection, request_id: str) -> None:
        """Record that everything asked for is there, within the transaction that publishes it."""
        (request,) = _requests(connection, build_requests.c.request_id == request_id)
        data = {"build_request_id": request_id, "environment": request.environment}
        self._append(connection, "build-request-succeeded", data)
        self._satisfy(connection, request_id)

    def _satisfy(self, connection: Connection, request_id: str) -> None:
        """Record that there is what the wants asked for that a request, or a build, is of."""
        test = sa.and_(wants.c.request_id == request_id, wants.c.state.in_(UNDER_WAY))
        self._end(connection, "want-satisfied", _wants(connection, test).values())

    def _give_up(self, connection: Connection, build_uid: str, error: str) -> None:
        """Record that nothing came of the wants of a build that nobody else has asked for."""
        test = sa.and_(wants.c.request_id == build_uid, wants.c.state == "building")
        why = (error.replace("\0", "").splitlines() or [""])[0]
        given_up = _wants(connection, test).values()
        self._end(connection, "want-cancelled", given_up, by="the build", why=why)

    # ---------------------------------------------------------------------------- partitions

    @repeated
    def fetch_available(
        self, environment: str, graph: str = "", *, refs: Collection[PartitionRef] | None = None
    ) -> dict[PartitionRef, datetime]:
        """Return since when the partitions of a graph are available that are; `refs`: of these."""
        query = sa.select(availability.c.partition_ref, availability.c.at).where(
            availability.c.graph == graph,
            availability.c.environment == environment,
            availability.c.state == "available",
        )
        with self._read() as connection:
            if refs is None:
                return {ref: at for ref, at in connection.execute(query)}
            found: dict[PartitionRef, datetime] = {}
            for some in in_parts([*refs]):
                these = query.where(availability.c.partition_ref.in_(some))
                found |= {ref: at for ref, at in connection.execute(these)}
            return found

    @repeated
    def fetch_states(
        self, environment: str, refs: Collection[PartitionRef]
    ) -> tuple[dict[PartitionRef, str], dict[PartitionRef, str]]:
        """Return what is known of partitions of this graph, and the states of their active wants.

        Of several wants of a partition the one that is built, or will be first, counts.
        """
        there: dict[PartitionRef, str] = {}
        wanted: dict[PartitionRef, str] = {}
        with self._read() as connection:
            for some in in_parts([*refs]):
                query = sa.select(availability.c.partition_ref, availability.c.state).where(
                    availability.c.graph == "",
                    availability.c.environment == environment,
                    availability.c.partition_ref.in_(some),
                )
                there |= {ref: state for ref, state in connection.execute(query)}
                query = sa.select(wants.c.partition_ref, wants.c.state, wants.c.environment)
                found = {
                    (row.partition_ref, row.state)
                    for row in connection.execute(
                        query.distinct().where(wants.c.partition_ref.in_(some))
                    )
                    if row.environment == environment
                }
                for state in ("waiting", "failing", *UNDER_WAY):
                    wanted |= {ref: state for ref, own in found if own == state}
        return there, wanted

    @repeated
    def fetch_availability(
        self,
        environment: str,
        graph: str = "",
        *,
        after: PartitionRef = "",
        pattern: str | None = None,
        limit: int = 1000,
    ) -> list[Availability]:
        """Return what is known of partitions, in the order of their references.

        Parameters
        ----------
        graph
            Empty: that of the ledger.
        after
            Of those that come after this reference.
        pattern
            What references match; see `matcher`.
        """
        ref = availability.c.partition_ref
        query = sa.select(availability).where(
            availability.c.environment == environment, availability.c.graph == graph
        )
        if after:
            query = query.where(ref > after)
        if pattern is not None:
            query = query.where(ref.like(like(pattern), escape="\\"))
        fits = matcher(pattern or "**")
        found: list[Availability] = []
        with self._read() as connection:
            for row in connection.execute(query.order_by(ref)):
                if len(found) == limit:
                    break
                if fits(row.partition_ref):
                    found.append(
                        Availability(
                            row.partition_ref, row.graph, row.state, row.at, row.idx, row.build_uid
                        )
                    )
        return found

    @repeated
    def count_states(self, environment: str) -> dict[str, dict[str, int]]:
        """Return how many wants, requests and misses of an environment are in each state."""
        told: dict[str, dict[str, int]] = {}
        with self._read() as connection:
            for name, table in (("wants", wants), ("requests", build_requests)):
                query = sa.select(table.c.state, sa.func.count()).group_by(table.c.state)
                rows = connection.execute(query.where(table.c.environment == environment))
                told[name] = {state: n for state, n in rows}
            of = sla_misses.c.environment == environment
            for state, test in (
                ("open", sla_misses.c.delivered_at.is_(None)),
                ("delivered", sla_misses.c.delivered_at.is_not(None)),
            ):
                query = sa.select(sa.func.count()).select_from(sla_misses).where(of, test)
                told.setdefault("misses", {})[state] = connection.execute(query).scalar_one()
        return told

    @repeated
    def find_available_build(self, environment: str, ref: PartitionRef) -> str | None:
        """Return the build that a partition of this graph is of, None where it is not available."""
        query = sa.select(availability.c.build_uid).where(
            availability.c.graph == "",
            availability.c.environment == environment,
            availability.c.partition_ref == ref,
            availability.c.state == "available",
        )
        with self._read() as connection:
            return connection.scalar(query)

    # ----------------------------------------------------------------------------- deadlines

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
            return [*_wants(connection, test, limit).values()]

    def record_misses(self, missed: Iterable[tuple[Want, Blame]]) -> int:
        """Record that wants missed their deadlines, and what they waited for; return how many.

        Many are several transactions, so that others can write in between.
        """
        return sum(map(self._record_some_misses, in_parts([*missed])))

    @repeated
    def _record_some_misses(self, missed: Sequence[tuple[Want, Blame]]) -> int:
        each = {want.want_id: (want, blame) for want, blame in missed}
        query = sa.select(sla_misses.c.want_id).where(sla_misses.c.want_id.in_(each))
        with self._write() as connection:
            known = {*connection.scalars(query)}
            new = [
                {
                    "want_id": want.want_id,
                    "partition_ref": want.partition_ref,
                    "environment": want.environment,
                    "deadline": want.deadline.isoformat(),
                    "blame": {**asdict(blame), "since": blame.since.isoformat()},
                }
                for want, blame in each.values()
                if want.want_id not in known and want.deadline is not None
            ]
            self._append_all(connection, [("sla-missed", data) for data in new])
            return len(new)

    @repeated
    def fetch_misses(
        self, environment: str, *, limit: int | None = None, only_open: bool = False
    ) -> list[Miss]:
        """Return the deadlines that were missed, the latest first; `only_open`: not met since."""
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
            return [
                Miss(
                    row.want_id,
                    row.partition_ref,
                    row.deadline,
                    row.missed_at,
                    row.delivered_at,
                    row.blame,
                )
                for row in connection.execute(query)
            ]

    # ---------------------------------------------------------------------------- other graphs

    @repeated
    def fetch_cursor(self, environment: str, graph: str) -> str | None:
        """Return up to where the events of another graph were read, None before the first time."""
        query = sa.select(upstreams.c.cursor).where(
            upstreams.c.graph == graph, upstreams.c.environment == environment
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def find_upstream_problem(self, environment: str, graph: str) -> str | None:
        """Return what was wrong with another graph when it was read last, None if nothing was."""
        query = sa.select(upstreams.c.problem).where(
            upstreams.c.graph == graph, upstreams.c.environment == environment
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def find_last_want_id(self, beginning: str) -> str | None:
        """Return the greatest id of a want that begins so, None where none does."""
        query = sa.select(sa.func.max(wants.c.want_id)).where(
            wants.c.want_id.startswith(beginning, autoescape=True)
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def record_synced(
        self,
        environment: str,
        graph: str,
        cursor: str,
        partitions: Sequence[Mapping[str, Any]] = (),
        *,
        expected: str | None,
        problem: str | None = None,
    ) -> bool:
        """Record what another graph has told since it was read last; return whether that was new.

        Parameters
        ----------
        cursor
            Up to where it was read.
        partitions
            Of each the reference, and whether it is ``available``, ``failed`` or ``tainted``.
        expected
            Up to where it was read before. Where somebody else has read on since, nothing is
            recorded: they have done it.
        """
        with self._write() as connection:
            query = sa.select(upstreams.c.cursor).where(
                upstreams.c.graph == graph, upstreams.c.environment == environment
            )
            if connection.scalar(query) != expected:
                return False
            data = {"environment": environment, "graph": graph, "cursor": cursor}
            told = {"partitions": [dict(p) for p in partitions], "problem": problem}
            self._append(connection, "upstream-synced", {**data, **told})
            return True

    # -------------------------------------------------------------------------------- events

    @repeated
    def list_events(
        self,
        since: int = 0,
        *,
        limit: int = 1000,
        environment: str | None = None,
        kinds: Collection[str] = (),
        refs: Collection[PartitionRef] = (),
        patterns: Collection[str] = (),
        job_labels: Collection[str] = (),
        task_ids: Collection[str] = (),
        build_request_ids: Collection[str] = (),
    ) -> tuple[list[Event], int]:
        """Return events after a position, in order, and the position up to which was looked.

        Of the filters that are given each has to hold; `refs` and `patterns` are one. So many
        events are looked at that a page takes no long time, whatever it filters: a page may be
        short, or empty, and more be there; it is the end where the position is the log's.
        """
        test = events.c.idx > since
        if environment is not None:
            test = sa.and_(test, events.c.environment == environment)
        if kinds:
            test = sa.and_(test, events.c.kind.in_([*kinds]))
        if refs or patterns:
            wanted = [events.c.partition_ref.in_([*refs])] if refs else []
            wanted += [
                events.c.partition_ref.like(like(pattern), escape="\\") for pattern in patterns
            ]
            test = sa.and_(test, sa.or_(*wanted))
        for column, values in (
            (events.c.job_label, job_labels),
            (events.c.task_id, task_ids),
            (events.c.build_request_id, build_request_ids),
        ):
            if values:
                test = sa.and_(test, column.in_([*values]))
        fits = [matcher(pattern) for pattern in patterns]
        with self._read() as connection:
            head = connection.execute(
                sa.select(counters.c.value).where(counters.c.name == "events")
            ).scalar_one()
            last = min(head, since + max(_SCANNED, limit))
            query = sa.select(events).where(test, events.c.idx <= last)
            rows = connection.execute(query.order_by(events.c.idx).limit(limit)).all()
        following = rows[-1].idx if len(rows) == limit else max(last, since)
        known = {*refs}
        found = [
            Event(row.idx, row.at, row.kind, row.data)
            for row in rows
            if not fits or row.partition_ref in known or any(fit(row.partition_ref) for fit in fits)
        ]
        return found, following

    @repeated
    def rebuild_projections(self) -> int:
        """Make the tables that follow from events anew of them; return how many these are."""
        with self._write() as connection:
            return rebuild(connection)


@lru_cache(maxsize=4096)
def _needs(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def like(pattern: str) -> str:
    """Return what LIKE matches wherever a pattern does."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("**", "%").replace("*", "%")


def _asked(want: Want) -> tuple[Any, ...]:
    """Return what a want asks for, which makes it the same if it is given again."""
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


def _wants(
    connection: Connection, test: sa.ColumnElement[bool], limit: int | None = None
) -> dict[str, Want]:
    query = sa.select(wants).where(test).order_by(wants.c.created_at, wants.c.want_id)
    query = query.limit(limit)
    return {row.want_id: want_of(row) for row in connection.execute(query)}


def _states(connection: Connection, want_ids: Sequence[str]) -> dict[str, Any]:
    """Return the states of those wants that may still be satisfied, in the order they were made."""
    columns = wants.c.want_id, wants.c.partition_ref, wants.c.environment, wants.c.state
    these = sa.and_(wants.c.want_id.in_(want_ids), wants.c.state.in_(ACTIVE))
    query = sa.select(*columns).where(these).order_by(wants.c.created_at, wants.c.want_id)
    return {row.want_id: row for row in connection.execute(query)}


def _requests(
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
