"""The addresses of all pages and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from persist_assets._paths import DASHBOARD, VENDORED
from persist_assets.web.dashboard import (
    actions,
    environments,
    events,
    overview,
    partitions,
    runs,
    session,
    sources,
    wants,
)
from persist_assets.web.dashboard.frame import Frame
from persist_assets.web.layout import read_present, style

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from persist_assets.web.access import Access, Caller, Right
    from persist_assets.web.graph import Graph

    Page = Callable[[Frame, Request, Caller], Awaitable[Response]]
    Action = Callable[[Frame, Request, Caller, Mapping[str, str]], Awaitable[Response]]

_CHARTS = VENDORED / "uPlot.iife.min.js"
"""The library that draws charts; without it, there are none."""


def pages(graph: Graph, access: Access) -> list[BaseRoute]:
    """Return the pages as the routes of an application."""
    frame = Frame(graph, access)
    get: Sequence[tuple[str, Page]] = (
        ("/", overview.show_overview),
        ("/sources", sources.show_sources),
        ("/sources/{key:path}", sources.show_source),
        ("/runs", runs.show_runs),
        ("/runs/{run_id:path}", runs.show_run),
        ("/wants", wants.show_wants),
        ("/wants/{want_id:path}", wants.show_want),
        ("/timeline", wants.show_timeline),
        ("/sla", wants.show_misses),
        ("/partitions", partitions.show_partitions),
        ("/partitions/{ref:path}", partitions.show_partition),
        ("/environments", environments.show_environments),
        ("/environments/{name}", environments.show_environment),
        ("/events", events.show_events),
        ("/stream", events.EventStreams().stream),
        ("/taint", actions.confirm_taint),
        ("/retry", actions.confirm_retry),
        ("/promote", actions.confirm_promotion),
        ("/rollback", actions.confirm_rollback),
    )
    post: Sequence[tuple[str, Action, Right]] = (
        ("/wants", wants.create_want, "build"),
        ("/wants/cancel", wants.cancel_want, "build"),
        ("/evaluate", wants.evaluate, "write"),
        ("/taint", actions.do_taint, "build"),
        ("/retry", actions.do_retry, "build"),
        ("/promote", actions.do_promotion, "promote"),
        ("/rollback", actions.do_rollback, "promote"),
    )

    async def login(request: Request) -> Response:
        return await session.log_in(frame, request)

    return [
        *(Route(path, frame.shown(act), methods=["GET"]) for path, act in get),
        *(Route(path, frame.changed(act, right), methods=["POST"]) for path, act, right in post),
        Route("/logout", frame.changed(session.log_out, "read"), methods=["POST"]),
        Route("/login", login, methods=["GET", "POST"]),
        Route("/static/style.css", _constant(style(), "text/css")),
        Route("/static/charts.js", _constant(read_present((_CHARTS,)), "text/javascript")),
        Mount("/static", StaticFiles(directory=DASHBOARD / "static")),
    ]


def _constant(text: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers each request with the same text."""

    async def serve(request: Request) -> Response:
        return Response(text, media_type=media_type)

    return serve
