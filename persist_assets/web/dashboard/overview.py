"""The first page: what is late, failed, stale and being built."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from persist_assets.web.dashboard.status import STATES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.graph import Graph

_SHOWN = 20
_RUNS = 5


async def show_overview(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show what needs attention in the environment."""
    graph = frame.graph
    environment = graph.settings.environment
    standings = await frame.standings.read()
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
            "runs": ledger.runs.fetch(
                environment, starts=dict(islice(frame.latest_runs().items(), _RUNS))
            ),
            "expected": {source_id: cost[0].seconds for source_id, cost in costs.items() if cost},
        }

    values = await graph.shared("overview", lambda: graph.read(look))
    return frame.page(
        request,
        caller,
        "overview.html",
        "Overview",
        of_state=of_state,
        errors=len(standings.project.errors) if standings.project else 0,
        planned_at=standings.planned.at if standings.planned else None,
        n_shown=_SHOWN,
        position=standings.position,
        **values,
    )


def find_problems(graph: Graph) -> list[str]:
    """Return problems of wants, apart from those of single builds; call it in a thread."""
    environment = graph.settings.environment
    problems = [
        f"The graph {upstream.name}: {problem}"
        for upstream in graph.settings.upstreams
        if (problem := graph.ledger.upstreams.find_problem(environment, upstream.name))
    ]
    return problems + graph.find_problems()
