"""The first page: what is late, failed, stale and being built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.errors import PersistError
from persist_assets.web.dashboard.runs import group_runs
from persist_assets.web.dashboard.status import STATES, Facts, describe

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.plans import Plan
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.wants import Miss, Want
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.dashboard.status import SourceStatus
    from persist_assets.web.graph import Graph, Planned

_SHOWN = 20
_LATE = 500
_RECENT = 200


async def show_overview(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what needs attention in the environment."""
    graph = frame.graph
    statuses, planned, wrong = await read_statuses(graph)
    environment = graph.settings.environment

    def look() -> tuple[list[Miss], list[Want], list[str], list[Build], int]:
        ledger = graph.ledger
        misses = ledger.wants.fetch_misses(environment, only_open=True, limit=_SHOWN)
        late = ledger.wants.fetch_late(environment, graph.clock(), limit=_SHOWN)
        builds = ledger.builds.fetch(environment=environment, limit=_RECENT)
        return misses, late, find_problems(graph), builds, ledger.events.position()

    misses, late, problems, builds, position = await graph.read(look)
    of_state = {state: [s for s in statuses if state in s.states] for state in STATES}
    costs = await graph.read(
        lambda: graph.ledger.builds.fetch_costs_of_sources(
            [s.source.source_id for s in of_state["building"]]
        )
    )
    return frame.page(
        request,
        caller,
        "overview.html",
        "Overview",
        of_state=of_state,
        expected={source_id: cost[0].seconds for source_id, cost in costs.items() if cost},
        misses=misses,
        late=late,
        problems=[*problems, *([wrong] if wrong else [])],
        errors=len(planned.project.errors) if planned else 0,
        planned_at=planned.at if planned else None,
        runs=group_runs(builds)[:5],
        n_shown=_SHOWN,
        position=position,
    )


async def read_statuses(graph: Graph) -> tuple[list[SourceStatus], Planned | None, str]:
    """Return the states of all persisted sources, and the plan that they follow from.

    Returns
    -------
    statuses, planned, wrong
        `wrong` says why there is no plan; empty: there is one, or planning takes long.
    """
    planned, wrong = None, ""
    try:
        planned = await graph.recent_plan()
    except PersistError as error:
        wrong = f"Which sources are stale is unknown: {error.message.splitlines()[0]}"
    project = planned.project if planned is not None else await graph.project()
    if project is None:
        return [], planned, wrong or "The sources are being compiled."
    plan = planned.plan if planned is not None else None
    statuses = await graph.read(lambda: find_statuses(graph, project, plan))
    return statuses, planned, wrong


def find_statuses(graph: Graph, project: Project, plan: Plan | None) -> list[SourceStatus]:
    """Return the states of all persisted sources; this takes some queries of the ledger."""
    settings, ledger, now = graph.settings, graph.ledger, graph.clock()
    environment = settings.environment
    misses = ledger.wants.fetch_misses(environment, only_open=True, limit=_LATE)
    late = ledger.wants.fetch_late(environment, now, limit=_LATE)
    deadlines = [(m.partition_ref, m.deadline) for m in misses]
    deadlines += [(w.partition_ref, w.deadline) for w in late if w.deadline is not None]
    late_s: dict[str, float] = {}
    for ref, deadline in deadlines:
        named = project.find_named(ref)
        if named is not None:
            key, seconds = named[0].key, (now - deadline).total_seconds()
            late_s[key] = max(seconds, late_s.get(key, 0.0))
    facts = Facts(
        now,
        ledger.manifests.fetch(*settings.environments),
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
