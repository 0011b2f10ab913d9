"""Queries for the costs of builds in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa

from persist_assets.ledger.collection import INTERRUPTED
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.tables import builds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from persist_assets.core.model.queries import SourceID


@dataclass(frozen=True, slots=True)
class Work:
    """A build that has ended.

    Attributes
    ----------
    run
        Its run; the uid of the build if it belongs to none.
    ended_at
        When its rows were written and checked, or when it failed; None: not known, because its
        process was gone.
    bytes
        The bytes that it wrote; None: not recorded.
    """

    source_id: SourceID
    run: str
    outcome: Literal["built", "reused", "failed"]
    started_at: datetime
    ended_at: datetime | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """A table that a build of an environment wrote, and which a source had from then on.

    Attributes
    ----------
    collected_at
        Since when it cannot be read any more; None: it can be read.
    """

    source_id: SourceID
    snapshot_uid: str
    since: datetime
    bytes: int
    collected_at: datetime | None


class Costs(Part):
    """Queries about the cost of builds and of what they wrote."""

    @repeated
    def fetch_work(self, environment: str, since: datetime, until: datetime) -> list[Work]:
        """Return the ended builds of the runs that started builds in a span of time, in order.

        Builds at the same time share the cost of their run, whenever they started.

        Parameters
        ----------
        since, until
            The span: `until` is not in it.
        """
        b = builds.c
        started = sa.and_(b.environment == environment, b.started_at >= since, b.started_at < until)
        runs = sa.select(b.run_id).where(started, b.run_id.is_not(None))
        query = sa.select(
            b.source_id,
            sa.func.coalesce(b.run_id, b.build_uid).label("run"),
            b.state,
            b.action,
            b.started_at,
            b.finished_at,
            b.computed_seconds,
            b.written_bytes,
            b.error,
        ).where(
            b.environment == environment,
            b.state != "started",
            sa.or_(started, b.run_id.in_(runs)),
        )
        with self._read() as connection:
            rows = connection.execute(query.order_by(b.started_at, b.build_uid)).all()
        work: list[Work] = []
        for row in rows:
            outcome = row.action if row.state == "succeeded" else "failed"
            ended_at = row.finished_at if row.error != INTERRUPTED else None
            if row.computed_seconds is not None:  # it may have been published much later
                ended_at = row.started_at + timedelta(seconds=row.computed_seconds)
            work.append(
                Work(row.source_id, row.run, outcome, row.started_at, ended_at, row.written_bytes)
            )
        return work

    @repeated
    def count_times(
        self, environment: str, bounds: Sequence[float]
    ) -> dict[str, tuple[list[int], float]]:
        """Return how many builds that computed rows took how long, by method, and their seconds.

        Parameters
        ----------
        bounds
            Upper bounds in seconds, ascending. Each count is of the builds up to its bound and
            above the previous one; one more is of those above all.
        """
        seconds = builds.c.computed_seconds
        upto = [sa.func.sum(sa.case((seconds <= b, 1), else_=0)).label(f"n{b}") for b in bounds]
        query = (
            sa.select(builds.c.maintenance, sa.func.count(), sa.func.sum(seconds), *upto)
            .where(
                builds.c.environment == environment,
                builds.c.state == "succeeded",
                builds.c.maintenance.is_not(None),
                seconds.is_not(None),
            )
            .group_by(builds.c.maintenance)
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        times: dict[str, tuple[list[int], float]] = {}
        for row in rows:
            method, n, total, *counts = tuple(row)
            times[method] = [b - a for a, b in pairwise((0, *counts, n))], float(total)
        return times

    @repeated
    def fetch_stored(self, environment: str, until: datetime) -> list[Stored]:
        """Return the tables that builds of an environment wrote and sources had, in order.

        Tables of other environments that it reuses are not among them.
        """
        writer = builds.alias("writer")
        query = (
            sa.select(
                builds.c.source_id,
                builds.c.snapshot_uid,
                builds.c.finished_at,
                writer.c.bytes,
                writer.c.environment,
                writer.c.collected_at,
            )
            .join(writer, writer.c.build_uid == builds.c.snapshot_uid)
            .where(
                builds.c.environment == environment,
                builds.c.state == "succeeded",
                builds.c.finished_at < until,
            )
            .order_by(builds.c.finished_at, builds.c.build_uid)
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [
            Stored(
                row.source_id,
                row.snapshot_uid,
                row.finished_at,
                row.bytes if row.environment == environment else 0,
                row.collected_at,
            )
            for row in rows
        ]
