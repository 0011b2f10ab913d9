"""The log of events, as a page and as a stream."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from persist_assets.core.errors import PersistError
from persist_assets.operations.documents.events import EventDocument
from persist_assets.storage.raw import public
from persist_assets.web.access import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.snapshots import Event
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame

_SHOWN = 100
_LOOKED_AT = (_SHOWN, 20 * _SHOWN, 200 * _SHOWN)
_MOST_STREAMS = 100
_HEARTBEAT_S = 15.0


async def show_events(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the latest events; new ones are added as they occur."""
    graph = frame.graph

    def look() -> tuple[list[dict[str, Any]], int]:
        log, environment = graph.ledger.events, graph.settings.environment
        position = log.position()
        events: list[Event] = []
        for n in _LOOKED_AT:  # another environment may have had all of the latest events
            events, _ = log.search(max(position - n, 0), limit=n, environment=environment)
            if len(events) >= _SHOWN or n >= position:
                break
        events = [e for e in events if e.idx <= position][-_SHOWN:]
        return [EventDocument.of(event).as_json() for event in events[::-1]], position

    events, position = await graph.read(look)
    return frame.page(request, caller, "events.html", "Events", events=events, position=position)


class EventStreams:
    """Streams of events to pages, of which there may be a limited number."""

    def __init__(self) -> None:
        self._open = 0

    async def stream(self, frame: Frame, request: Request, caller: Caller) -> Response:
        """Stream events as they occur, as server-sent events."""
        graph = frame.graph
        text = request.headers.get("last-event-id") or request.query_params.get("since", "")
        position = await graph.read(graph.ledger.events.position)
        since = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else position
        if self._open >= _MOST_STREAMS:
            raise Refused(503, "busy", "too many pages wait for events", "close some of them")
        return StreamingResponse(
            self._events(frame, min(since, position), request),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def _events(self, frame: Frame, since: int, request: Request) -> AsyncGenerator[str]:
        graph = frame.graph
        self._open += 1
        try:
            yield "retry: 2000\n\n"
            while not graph.stopping and frame.access.of_page(request) is not None:

                def look(since: int = since) -> tuple[list[Any], int]:
                    return graph.ledger.events.search(
                        since, limit=_SHOWN, environment=graph.settings.environment
                    )

                events, since = await graph.read(look)
                for event in events:
                    document = public(EventDocument.of(event).as_json())
                    yield f"id: {event.idx}\ndata: {json.dumps(document)}\n\n"
                if not events and not await graph.moved(since, _HEARTBEAT_S):
                    yield ": still there\n\n"
        except (PersistError, asyncio.CancelledError):
            return  # the page asks again
        finally:
            self._open -= 1
