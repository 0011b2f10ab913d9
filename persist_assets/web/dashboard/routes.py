"""The addresses of all pages and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response
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
from persist_assets.web.layout import style

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from persist_assets.web.access import Access, Caller
    from persist_assets.web.graph import Graph

    Page = Callable[[Frame, Request, Caller], Awaitable[Response]]
    Action = Callable[[Frame, Request, Caller, Mapping[str, str]], Awaitable[Response]]

_CHARTS = "uPlot.iife.min.js"


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
    post: Sequence[tuple[str, Action]] = (
        ("/wants", wants.create_want),
        ("/wants/cancel", wants.cancel_want),
        ("/evaluate", wants.evaluate),
        ("/taint", actions.do_taint),
        ("/retry", actions.do_retry),
        ("/promote", actions.do_promotion),
        ("/rollback", actions.do_rollback),
    )

    async def login(request: Request) -> Response:
        return await session.log_in(frame, request)

    return [
        *(Route(path, frame.shown(act), methods=["GET"]) for path, act in get),
        *(Route(path, frame.changed(act), methods=["POST"]) for path, act in post),
        Route("/logout", frame.changed(session.log_out, "read"), methods=["POST"]),
        Route("/login", login, methods=["GET", "POST"]),
        Route("/static/style.css", _style),
        Route("/static/charts.js", _charts),
        Mount("/static", StaticFiles(directory=DASHBOARD / "static")),
    ]


def _style(request: Request) -> Response:
    return Response(style(), media_type="text/css")


def _charts(request: Request) -> Response:
    """Return the library that draws charts; nothing if it was not fetched."""
    path = VENDORED / _CHARTS
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return PlainTextResponse(text, media_type="text/javascript")
