"""The states of all sources, from records that are read again only after new events.

The invariant: every answer is of an instant after its client asked. Records are kept with the last
event that is known to change nothing of them; if any other event has come, they are read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.errors import LedgerError, PersistError
from persist_assets.ledger.log import UNPLANNED
from persist_assets.planning.takeovers import with_takeovers
from persist_assets.web.dashboard.status import Facts, describe
from persist_assets.web.sharing import Kept

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.ledger.log import Mark
    from persist_assets.web.dashboard.status import SourceStatus
    from persist_assets.web.graph import Graph, Planned

_ENDS = frozenset({"want-satisfied", "want-expired", "want-cancelled"})
_MOST_NEW = 1000
"""The maximum number of new wants that are added to known deadlines."""


@dataclass(frozen=True, slots=True)
class Standings:
    """The states of all persisted sources.

    Attributes
    ----------
    project
        The sources, as planned if there is a plan; None: none have been compiled.
    planned
        The plan that the states follow from, or None.
    wrong
        Why there is no plan; empty: there is one, or planning takes long.
    position
        The position of the log before all of this was read.
    """

    statuses: Sequence[SourceStatus]
    project: Project | None
    planned: Planned | None
    wrong: str
    position: int

    @property
    def old_plan_at(self) -> datetime | None:
        """The time when the plan was made, if it is old."""
        return self.planned.at if self.planned is not None and self.planned.is_old else None


@dataclass(frozen=True, slots=True)
class _Records:
    """The records that follow from builds, publications and taints."""

    manifest: Mapping[BuildID, Snapshot]
    last: Mapping[SourceID, Build]
    marks: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Deadlines:
    """By asset key, the earliest deadline of the active wants of a source."""

    mark: Mark
    project: Project
    earliest: Mapping[str, datetime]


class StandingsReader:
    """Reads the states of all persisted sources for any number of clients."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._records = Kept[_Records](graph.ledger.events, UNPLANNED)
        self._deadlines: _Deadlines | None = None

    async def read(self) -> Standings:
        """Return the states of all persisted sources.

        Raises
        ------
        LedgerError
            The ledger does not answer.
        """
        return await self._graph.shared("standings", self._read)

    async def _read(self) -> Standings:
        graph, planned, wrong = self._graph, None, ""
        position = await graph.read(graph.ledger.events.position)
        try:
            planned = await graph.recent_plan()
        except LedgerError:
            raise
        except PersistError as error:
            wrong = f"Cannot tell which sources are stale: {error.message.splitlines()[0]}"
        project = planned.project if planned is not None else await graph.project()
        if project is None:
            wrong = wrong or "The sources are being compiled."
            return Standings([], None, planned, wrong, position)
        plan = planned.plan if planned is not None else None
        statuses = await graph.read(lambda: self._find(project, plan))
        return Standings(statuses, project, planned, wrong, position)

    def _find(self, project: Project, plan: Plan | None) -> list[SourceStatus]:
        graph, now = self._graph, self._graph.clock()
        records = self._records.get(project, lambda: self._read_records(project))
        earliest = self._find_deadlines(project)
        late = {key: (now - at).total_seconds() for key, at in earliest.items() if at < now}
        facts = Facts(
            now,
            records.manifest,
            records.last,
            # Not kept: their processes may end without an event.
            {
                build.source_id: build
                for build, _, has_ended in graph.ledger.builds.fetch_under_way()
                if build.environment == graph.settings.environment and not has_ended
            },
            records.marks,
            late,
            {s.source_id: s for s in plan.steps} if plan is not None else None,
        )
        return describe(project.persisted, facts)

    def _read_records(self, project: Project) -> _Records:
        ledger, settings = self._graph.ledger, self._graph.settings
        return _Records(
            with_takeovers(project, ledger.manifests.fetch(*settings.environments)),
            ledger.builds.fetch_last(settings.environment),
            ledger.taints.fetch(*settings.environments),
        )

    def _find_deadlines(self, project: Project) -> Mapping[str, datetime]:
        last, ledger = self._deadlines, self._graph.ledger
        environment = self._graph.settings.environment
        mark, is_same = ledger.events.mark(last and last.mark, UNPLANNED - _ENDS)
        new: list[str] | None = None
        if last is not None and is_same and last.project is project:
            events, upto = ledger.events.search(
                last.mark.idx, limit=_MOST_NEW, environment=environment, kinds=["want-created"]
            )
            new = [event.data["want_id"] for event in events] if upto >= mark.idx else None
        earliest = dict(last.earliest) if last is not None and new is not None else {}
        if new is None or new:
            for ref, at in ledger.wants.fetch_deadlines(environment, want_ids=new).items():
                named = project.find_named(ref)
                if named is not None:
                    key = named[0].key
                    earliest[key] = min(at, earliest.get(key, at))
        self._deadlines = _Deadlines(mark, project, earliest)
        return earliest
