"""Runs, and the results of checks over time: queries of builds that read only what pages show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.processes import has_ended
from persist_assets.ledger.rows import check_result_of
from persist_assets.ledger.tables import IS_UNDER_WAY, builds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.queries import SourceID

NAMED = 3
"""The maximum number of sources named for a run."""


@dataclass(frozen=True, slots=True)
class Run:
    """The builds of one run in an environment, counted.

    Attributes
    ----------
    name
        The run's ID; for a build that belongs to no run, the uid of the build.
    finished_at
        The end of the last build that has ended; None: a build is under way.
    counts
        The number of builds by outcome: built, reused, failed or started. Builds whose processes
        have ended count as failed.
    sources
        The sources of the first three builds.
    """

    name: str
    started_at: datetime
    finished_at: datetime | None
    counts: Mapping[str, int]
    sources: tuple[SourceID, ...]

    @property
    def seconds(self) -> float | None:
        """The time from the start of the first build to the end of the last one."""
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None


_NAME = sa.func.coalesce(builds.c.run_id, builds.c.build_uid)


class Runs(Part):
    """Queries of many builds at once."""

    @repeated
    def fetch_starts(
        self, environment: str, *, before: tuple[datetime, str] | None = None, limit: int = 50
    ) -> dict[str, datetime]:
        """Return the names of the runs of an environment, the latest first, and their starts.

        This looks at the index of all builds. Only starts of builds change it.

        Parameters
        ----------
        before
            The start and the name of a run: only the runs that follow it in this order.
        """
        here = builds.c.environment == environment
        first = sa.func.min(builds.c.started_at)
        query = sa.select(_NAME.label("name"), first.label("first")).where(here).group_by(_NAME)
        if before is not None:
            at, name = before
            query = query.having(sa.or_(first < at, sa.and_(first == at, name < _NAME)))
        query = query.order_by(first.desc(), _NAME).limit(limit)
        with self._read() as connection:
            return {row.name: row.first for row in connection.execute(query)}

    def fetch(
        self,
        environment: str,
        *,
        before: tuple[datetime, str] | None = None,
        limit: int = 50,
        starts: Mapping[str, datetime] | None = None,
    ) -> list[Run]:
        """Return the runs of an environment, the latest first, each with all of its builds.

        Parameters
        ----------
        before
            See `fetch_starts`.
        starts
            Only these runs, as `fetch_starts` returns them.
        """
        if starts is None:
            starts = self.fetch_starts(environment, before=before, limit=limit)
        return self._count(environment, starts)

    @repeated
    def _count(self, environment: str, starts: Mapping[str, datetime]) -> list[Run]:
        with self._read() as connection:
            these = _named(environment, starts)
            outcome = sa.case(
                (builds.c.state == "succeeded", builds.c.action), else_=builds.c.state
            )
            counted = sa.select(
                _NAME.label("name"),
                outcome.label("outcome"),
                sa.func.count().label("n"),
                sa.func.max(builds.c.finished_at).label("last"),
            )
            counted = counted.where(these).group_by(_NAME, outcome)
            groups = connection.execute(counted).all()
            going = sa.select(_NAME.label("name"), builds.c.process)
            going = going.where(these, IS_UNDER_WAY)
            dead = Counter(r.name for r in connection.execute(going) if has_ended(r.process))
            order = builds.c.started_at, builds.c.build_uid
            place = sa.func.row_number().over(partition_by=_NAME, order_by=order).label("place")
            numbered = sa.select(_NAME.label("name"), builds.c.source_id, place)
            numbered = numbered.where(these).subquery()
            early = sa.select(numbered).where(numbered.c.place <= NAMED)
            named = connection.execute(early.order_by(numbered.c.place)).all()
        runs: list[Run] = []
        for name, started_at in starts.items():
            of = [row for row in groups if row.name == name]
            counts = Counter({row.outcome: row.n for row in of})
            counts += Counter({"failed": dead[name]})
            counts -= Counter({"started": dead[name]})
            ends = [row.last for row in of if row.last is not None]
            end = None if counts["started"] else max(ends, default=started_at)
            sources = tuple(row.source_id for row in named if row.name == name)
            runs.append(Run(name, started_at, end, counts, sources))
        return runs

    @repeated
    def fetch_dead(self, environment: str) -> set[str]:
        """Return the uids of the builds that can never end, because their processes have.

        The next build of the same table records them as failed.
        """
        query = sa.select(builds.c.build_uid, builds.c.process).where(
            builds.c.environment == environment, IS_UNDER_WAY
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        return {row.build_uid for row in rows if has_ended(row.process)}

    @repeated
    def fetch_checks(
        self, source_id: SourceID, build_uids: Collection[str]
    ) -> dict[str, list[CheckResult]]:
        """Return the latest result of each check of the rows that builds of a source wrote.

        Builds that reuse the rows may have added new checks.
        """
        query = (
            sa.select(builds.c.build_uid, builds.c.snapshot_uid, builds.c.checks)
            .where(builds.c.source_id == source_id, builds.c.state != "started")
            .order_by(builds.c.started_at, builds.c.build_uid)
        )
        results: dict[str, dict[str, CheckResult]] = {uid: {} for uid in build_uids}
        with self._read() as connection:
            for uid, snapshot_uid, checks in connection.execute(query):
                of = results.get(uid, results.get(snapshot_uid))
                if of is not None:
                    of |= {r.name: r for r in map(check_result_of, checks or ())}
        return {uid: [*of.values()] for uid, of in results.items()}


def _named(environment: str, names: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the test for the builds of runs; the index of runs finds both kinds."""
    here = builds.c.environment == environment
    alone = sa.and_(here, builds.c.run_id.is_(None), builds.c.build_uid.in_(names))
    return sa.or_(sa.and_(here, builds.c.run_id.in_(names)), alone)
