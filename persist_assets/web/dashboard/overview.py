"""The first page: what is late, failed, stale and being built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import LedgerError, PersistError
from persist_assets.planning.takeovers import with_takeovers
from persist_assets.web.dashboard.status import STATES, Facts, describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.dashboard.status import SourceStatus
    from persist_assets.web.graph import Graph, Planned

_SHOWN = 20
_RUNS = 5


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
    """

    statuses: Sequence[SourceStatus]
    project: Project | None
    planned: Planned | None
    wrong: str

    @property
    def old_plan_at(self) -> datetime | None:
        """When the plan was made, if that is not just now."""
        return self.planned.at if self.planned is not None and self.planned.is_old else None


async def show_overview(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what needs attention in the environment."""
    graph = frame.graph
    environment = graph.settings.environment
    position = await graph.read(graph.ledger.events.position)
    standings = await read_statuses(graph)
    of_state = {state: [s for s in standings.statuses if state in s.states] for state in STATES}

    def look() -> dict[str, Any]:
        ledger = graph.ledger
        costs = ledger.builds.fetch_costs_of_sources(
            [s.source.source_id for s in of_state["building"]]
        )
        problems = find_problems(graph)
        return {
            "misses": ledger.wants.fetch_misses(environment, only_open=True, limit=_SHOWN),
            "late": ledger.wants.fetch_late(environment, graph.clock(), limit=_SHOWN),
            "problems": [*problems, *([standings.wrong] if standings.wrong else [])],
            "runs": ledger.runs.fetch(environment, limit=_RUNS),
            "expected": {source_id: cost[0].seconds for source_id, cost in costs.items() if cost},
        }

    values = await graph.read(look)
    return frame.page(
        request,
        caller,
        "overview.html",
        "Overview",
        of_state=of_state,
        errors=len(standings.project.errors) if standings.project else 0,
        planned_at=standings.planned.at if standings.planned else None,
        n_shown=_SHOWN,
        position=position,
        **values,
    )


async def read_statuses(graph: Graph) -> Standings:
    """Return the states of all persisted sources."""
    planned, wrong = None, ""
    try:
        planned = await graph.recent_plan()
    except LedgerError:
        raise
    except PersistError as error:
        wrong = f"Which sources are stale is unknown: {error.message.splitlines()[0]}"
    project = planned.project if planned is not None else await graph.project()
    if project is None:
        return Standings([], None, planned, wrong or "The sources are being compiled.")
    plan = planned.plan if planned is not None else None
    statuses = await graph.read(lambda: find_statuses(graph, project, plan))
    return Standings(statuses, project, planned, wrong)


def find_statuses(graph: Graph, project: Project, plan: Plan | None) -> list[SourceStatus]:
    """Return the states of all persisted sources; this takes some queries of the ledger."""
    settings, ledger, now = graph.settings, graph.ledger, graph.clock()
    environment = settings.environment
    late_s: dict[str, float] = {}
    for ref, deadline in ledger.wants.fetch_overdue(environment, now).items():
        named = project.find_named(ref)
        if named is not None:
            key, seconds = named[0].key, (now - deadline).total_seconds()
            late_s[key] = max(seconds, late_s.get(key, 0.0))
    facts = Facts(
        now,
        with_takeovers(project, ledger.manifests.fetch(*settings.environments)),
        ledger.builds.fetch_last(environment),
        {
            build.source_id: build
            for build, _, has_ended in ledger.builds.fetch_under_way()
            if build.environment == environment and not has_ended
        },
        ledger.taints.fetch(*settings.environments),
        late_s,
        {s.source_id: s for s in plan.steps} if plan is not None else None,
    )
    return describe(project.persisted, facts)


def find_problems(graph: Graph) -> list[str]:
    """Return what keeps wants from being met, apart from single builds; call it in a thread."""
    environment = graph.settings.environment
    problems = [
        f"The graph {upstream.name}: {problem}"
        for upstream in graph.settings.upstreams
        if (problem := graph.ledger.upstreams.find_problem(environment, upstream.name))
    ]
    return problems + graph.find_problems()
