"""Pages: wants, deadlines, partitions, events and environments, for people with a browser.

The invariant: everything works without JavaScript, which only keeps pages up to date; and a table
beside each picture shows the same facts.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl, quote

from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from persist_assets._paths import WEB
from persist_assets.core.errors import PersistError
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.wants import ACTIVE, Want, WantState, ref_of
from persist_assets.operations.documents.events import EventDocument
from persist_assets.operations.documents.wants import MissDocument, WantDocument
from persist_assets.wants.requests import YEARS, record_late, warn_unknown
from persist_assets.web import api
from persist_assets.web.access import SESSION, SESSION_S, Caller, Refused
from persist_assets.web.layout import templates

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from persist_assets.web.access import Access
    from persist_assets.web.graph import Graph

_SHOWN = 200
_ON_TIMELINE = 40
_CELLS = 62
_SOURCES = 100
_MOST_STREAMS = 100
_HEARTBEAT_S = 15.0
_PAGES = (
    ("/", "Wants"),
    ("/timeline", "Timeline"),
    ("/sla", "Missed deadlines"),
    ("/partitions", "Partitions"),
    ("/events", "Events"),
    ("/environments", "Environments"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A want on the timeline; positions are in pixels."""

    want: Mapping[str, Any]
    y: int
    begin: float
    end: float
    deadline: float
    state: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Wants with deadlines, between two instants."""

    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]
    now: float
    height: int


def draw_timeline(
    wants: Sequence[Want], now: datetime, *, left: int = 230, width: int = 680
) -> Any:
    """Return the timeline of the wants with deadlines; None if there are none.

    It shows when each want begins, is due and is delivered. From its deadline on, a want is
    ``late``, even after it is delivered.
    """
    due = [w for w in wants if w.deadline is not None]
    due = sorted(due, key=lambda w: w.deadline or now)[-_ON_TIMELINE:]
    if not due:
        return None
    ends = [w.ended_at or now for w in due]
    instants = [*(w.created_at for w in due), *(w.deadline or now for w in due), *ends, now]
    first, last = min(instants), max(instants)
    span = max((last - first).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return round(left + (at - first).total_seconds() / span * width, 1)

    bars = list[Bar]()
    for n, (want, end) in enumerate(zip(due, ends, strict=True)):
        assert want.deadline is not None
        state = want.state if want.state in ("cancelled", "expired") else "open"
        if want.state == "satisfied":
            state = "delivered"
        if end > want.deadline and want.state not in ("cancelled", "expired"):
            state = f"late {state}"
        bars.append(
            Bar(
                WantDocument.model_validate(want).as_json(),
                40 + 22 * n,
                x(want.created_at),
                max(x(end), x(want.created_at) + 3),
                x(want.deadline),
                state,
            )
        )
    marks = [first + timedelta(seconds=span * n / 4) for n in range(5)]
    ticks = tuple((x(at), at.astimezone(UTC).strftime("%m-%d %H:%M")) for at in marks)
    return Timeline(tuple(bars), ticks, x(now), 50 + 22 * len(bars))


def pages(graph: Graph, access: Access) -> list[BaseRoute]:
    """Return the pages as the routes of an application."""
    handlers = _Pages(graph, access)
    get: Sequence[tuple[str, Callable[[Request, Caller], Awaitable[Response]]]] = (
        ("/", handlers.wants),
        ("/timeline", handlers.timeline),
        ("/sla", handlers.misses),
        ("/partitions", handlers.partitions),
        ("/events", handlers.events),
        ("/environments", handlers.environments),
        ("/stream", handlers.stream),
    )
    post: Sequence[tuple[str, Callable[[Request, Caller, Mapping[str, str]], Awaitable[Response]]]]
    post = (
        ("/wants", handlers.create),
        ("/wants/cancel", handlers.cancel),
        ("/evaluate", handlers.evaluate),
        ("/logout", handlers.logout),
    )
    return [
        *(Route(path, handlers.shown(act), methods=["GET"]) for path, act in get),
        *(Route(path, handlers.changed(act), methods=["POST"]) for path, act in post),
        Route("/login", handlers.login, methods=["GET", "POST"]),
        Mount("/static", StaticFiles(directory=WEB / "static")),
    ]


class _Pages:
    """The content of each page, and the actions of its forms."""

    def __init__(self, graph: Graph, access: Access) -> None:
        self._graph, self._access = graph, access
        self._streams = 0
        self._templates = templates()

    # --------------------------------------------------------------------------- who may see

    def shown(
        self, act: Callable[[Request, Caller], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap a page so that only callers who have logged in see it."""

        async def serve(request: Request) -> Response:
            caller = self._access.of_cookie(request.cookies.get(SESSION))
            if caller is None:
                path = request.url.path
                return RedirectResponse(f"/login?next={quote(path)}", 303)
            return await act(request, caller)

        return serve

    def changed(
        self, act: Callable[[Request, Caller, Mapping[str, str]], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an action so that only our own forms, sent by permitted callers, trigger it."""

        async def serve(request: Request) -> Response:
            cookie = request.cookies.get(SESSION)
            caller = self._access.of_cookie(cookie)
            if caller is None:
                return RedirectResponse("/login", 303)
            form = await _form(request)
            if not self._access.is_form_token(cookie, form.get("form_token", "")):
                raise Refused(403, "cross-site", "invalid form token")
            if not caller.may("write") and request.url.path != "/logout":
                raise Refused(403, "forbidden", f"the token `{caller.name}` is read-only")
            return await act(request, caller, form)

        return serve

    async def login(self, request: Request) -> Response:
        """Show the login form, or start a session for a token."""
        if self._access.is_open:
            return RedirectResponse("/", 303)
        if request.method == "GET":
            return self._page(request, None, "login.html", "Log in", wrong=None)
        caller = self._access.of_token((await _form(request)).get("token", "").strip())
        if caller is None:
            wrong = "Unknown token."
            return self._page(request, None, "login.html", "Log in", 401, wrong=wrong)
        following = request.query_params.get("next", "/")
        page = following if following in {path for path, _ in _PAGES} else "/"
        answer = RedirectResponse(page, 303)
        answer.set_cookie(
            SESSION,
            self._access.begin(caller),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=self._access.is_secure(request.url.scheme, request.headers),
        )
        return answer

    async def logout(self, request: Request, caller: Caller, form: Mapping[str, str]) -> Response:
        """End the session, here and in the browser."""
        self._access.end(request.cookies.get(SESSION))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(SESSION)
        return answer

    # --------------------------------------------------------------------------------- pages

    async def wants(self, request: Request, caller: Caller) -> Response:
        """Show the wants, with forms to filter, add and cancel them."""
        return await self._wants(request, caller)

    async def _wants(
        self,
        request: Request,
        caller: Caller,
        status: int = 200,
        *,
        wrong: str | None = None,
        form: Mapping[str, str] | None = None,
    ) -> Response:
        state = request.query_params.get("state", "active")
        pattern = request.query_params.get("pattern", "").strip()[:500]
        notice: str | None = None
        states = (state,) if state in get_args(WantState) else ()
        if pattern and (pattern.count("*") > 10 or "\0" in pattern):
            pattern, wrong = "", "A pattern must have at most ten stars."

        def look() -> tuple[list[Want], int, list[str]]:
            environment, ledger = self._graph.settings.environment, self._graph.ledger
            wants = ledger.wants.fetch(
                environment,
                states=ACTIVE if state == "active" else states,  # pyright: ignore[reportArgumentType]
                pattern=pattern or None,
                limit=_SHOWN,
            )
            problems = [
                f"The graph {upstream.name}: {problem}"
                for upstream in self._graph.settings.upstreams
                if (problem := ledger.upstreams.find_problem(environment, upstream.name))
            ]
            problems += self._graph.find_problems()
            return wants[::-1], ledger.events.position(), problems

        wants, position, problems = await self._graph.read(look)
        want_id = request.query_params.get("made", "")[:255]
        if want_id and "\0" not in want_id:
            want = await self._graph.read(lambda: self._graph.ledger.wants.find(want_id))
            if want is not None:
                needs = want.external_dependencies
                warnings = warn_unknown(self._graph.settings, needs)
                notice = " ".join((f"{want.partition_ref} is {want.state}.", *warnings))
        keys = await self._graph.glance(self._keys)
        return self._page(
            request,
            caller,
            "wants.html",
            "Wants",
            status,
            wants=[WantDocument.model_validate(w).as_json() for w in wants],
            state=state,
            states=("active", "all", *get_args(WantState)),
            pattern=pattern,
            notice=notice,
            wrong=wrong,
            form={**_FORM, **(form or {})},
            keys=keys,
            position=position,
            problems=problems,
            active=ACTIVE,
        )

    def _keys(self) -> list[str]:
        """Return suggested partitions: sources, and the newest partition of each."""
        try:
            observer = self._graph.observer()
        except PersistError:
            return []
        order, refs = observer.keys(), list[str]()
        for source in observer.project.persisted[:_SOURCES]:
            keys = order.get(source.source_id)
            refs.append(ref_of(source.key, keys[-1] if keys else None))
        return refs

    async def create(self, request: Request, caller: Caller, form: Mapping[str, str]) -> Response:
        """Record a want from a form."""
        wrong: list[str] = []

        def seconds(name: str) -> int | None:
            text = form.get(name, "").strip()
            duration = parse_duration(text[:100]) if text else None
            if text and duration is None:
                wrong.append(f"{name}: “{text[:50]}” is not a duration; for example, 9h.")
            return duration

        ttl_s, sla_s = seconds("ttl"), seconds("sla")
        at, text = None, form.get("data_timestamp", "").strip()
        if text:
            try:
                at = datetime.fromisoformat(text)
                at = at if at.tzinfo else at.replace(tzinfo=self._graph.settings.timezone)
                at = at.astimezone(UTC)
                if not YEARS[0] <= at.year <= YEARS[1]:
                    raise ValueError
            except (ValueError, OverflowError):
                wrong.append("The time of its data is invalid; for example, 2024-01-31T06:00.")
        ref, comment = form.get("partition_ref", "").strip(), form.get("comment", "").strip()
        if not ref:
            wrong.append("Enter a partition.")
        needs = form.get("needs", "")
        if max(map(len, (ref, comment, needs))) > 2000 or "\0" in ref + comment + needs:
            wrong.append("A text is invalid or too long.")
        if not wrong:
            want = Want(
                uuid.uuid4().hex,
                ref,
                self._graph.settings.environment,
                self._graph.clock(),
                data_timestamp=at,
                ttl_s=ttl_s,
                sla_s=sla_s,
                external_dependencies=tuple(needs.split()),
                source={"type": "dashboard", "client": caller.name},
                comment=comment or None,
            )
            try:
                recorded, *_ = await self._graph.create(want)
                return RedirectResponse(f"/?made={quote(recorded.want_id)}", 303)
            except PersistError as error:
                message = error.message.splitlines()[0]
                wrong.append(f"{message}{f': {error.hint}' if error.hint else ''}")
        return await self._wants(request, caller, 422, wrong=" ".join(wrong), form=form)

    async def cancel(self, request: Request, caller: Caller, form: Mapping[str, str]) -> Response:
        """Cancel a want."""
        try:
            want_id = form.get("want_id", "")[:255].replace("\0", "")
            await api.cancel(self._graph, caller, want_id, "in the dashboard")
        except PersistError as error:
            return await self._wants(request, caller, 409, wrong=error.message)
        return RedirectResponse(f"/?made={quote(want_id)}", 303)

    async def evaluate(self, request: Request, caller: Caller, form: Mapping[str, str]) -> Response:
        """Decide what can be built now."""
        try:
            await self._graph.evaluate("manual", force=form.get("force") == "yes")
        except PersistError as error:
            message = error.message.splitlines()[0]
            return await self._wants(request, caller, 503, wrong=message)
        return RedirectResponse("/", 303)

    async def timeline(self, request: Request, caller: Caller) -> Response:
        """Show when wants were due, and when they were delivered."""
        wants = await self._graph.read(
            lambda: self._graph.ledger.wants.fetch(self._graph.settings.environment, limit=_SHOWN)
        )
        picture = draw_timeline(wants, self._graph.clock())
        return self._page(request, caller, "timeline.html", "Timeline", picture=picture)

    async def misses(self, request: Request, caller: Caller) -> Response:
        """Show missed deadlines and their causes."""

        def act() -> list[dict[str, Any]]:
            record_late(self._graph.observer())
            misses = self._graph.ledger.wants.fetch_misses(
                self._graph.settings.environment, limit=_SHOWN
            )
            return [MissDocument.of(miss, self._graph.clock()).as_json() for miss in misses]

        misses = await self._graph.glance(act)
        return self._page(request, caller, "sla.html", "Missed deadlines", misses=misses)

    async def partitions(self, request: Request, caller: Caller) -> Response:
        """Show the partitions and their states, including missing ones."""

        def act() -> list[tuple[str, list[tuple[str, str]], int]]:
            observer, ledger = self._graph.observer(), self._graph.ledger
            environment, order = self._graph.settings.environment, observer.keys()
            rows: list[tuple[str, list[tuple[str, str]], int]] = []
            for source in observer.project.persisted[:_SOURCES]:
                keys: Sequence[str | None] = order.get(source.source_id, (None,))
                cells = {ref_of(source.key, key): key or "all" for key in keys[-_CELLS:]}
                recorded, requested = ledger.partitions.fetch_states(environment, [*cells])
                states = {**dict.fromkeys(cells, "missing"), **recorded, **requested}
                states |= {ref: state for ref, state in recorded.items() if state == "available"}
                shown = [(name, states[ref]) for ref, name in cells.items()]
                rows.append((source.key, shown, len(keys)))
            return rows

        rows = await self._graph.glance(act)
        return self._page(request, caller, "partitions.html", "Partitions", sources=rows)

    async def events(self, request: Request, caller: Caller) -> Response:
        """Show the latest events; new ones are added as they occur."""

        def look() -> tuple[list[dict[str, Any]], int]:
            position = self._graph.ledger.events.position()
            events, _ = self._graph.ledger.events.search(
                max(position - 100, 0), limit=100, environment=self._graph.settings.environment
            )
            documents = [EventDocument.of(event).as_json() for event in events]
            return documents[::-1], events[-1].idx if events else position

        events, position = await self._graph.read(look)
        return self._page(
            request, caller, "events.html", "Events", events=events, position=position
        )

    async def environments(self, request: Request, caller: Caller) -> Response:
        """Show the environments, the tables that their readers see, and their latest changes."""
        settings, ledger = self._graph.settings, self._graph.ledger

        def look() -> list[dict[str, Any]]:
            names = {
                settings.environment,
                *settings.declared,
                *ledger.manifests.fetch_environments(),
            }
            return [
                {
                    "name": name,
                    "entries": sorted(
                        ledger.manifests.fetch(name).values(), key=lambda s: s.source_id
                    ),
                    "history": ledger.manifests.fetch_history(name, limit=5),
                }
                for name in sorted(names)
            ]

        environments = await self._graph.read(look)
        return self._page(
            request, caller, "environments.html", "Environments", environments=environments
        )

    # -------------------------------------------------------------------------------- events

    async def stream(self, request: Request, caller: Caller) -> Response:
        """Stream events as they occur, as server-sent events."""
        text = request.headers.get("last-event-id") or request.query_params.get("since", "")
        position = await self._graph.read(self._graph.ledger.events.position)
        since = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else position
        if self._streams >= _MOST_STREAMS:
            raise Refused(503, "busy", "too many pages wait for events", "close some of them")
        return StreamingResponse(
            self._event_stream(min(since, position)),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def _event_stream(self, since: int) -> AsyncGenerator[str]:
        graph = self._graph
        self._streams += 1
        try:
            yield "retry: 2000\n\n"
            while not graph.stopping:

                def look(since: int = since) -> tuple[list[Any], int]:
                    return graph.ledger.events.search(
                        since, limit=100, environment=graph.settings.environment
                    )

                events, since = await graph.read(look)
                for event in events:
                    document = EventDocument.of(event).as_json()
                    yield f"id: {event.idx}\ndata: {json.dumps(document)}\n\n"
                if not events and not await graph.moved(since, _HEARTBEAT_S):
                    yield ": still there\n\n"
        except (PersistError, asyncio.CancelledError):
            return  # the page asks again
        finally:
            self._streams -= 1

    # ------------------------------------------------------------------------------- showing

    def _page(
        self,
        request: Request,
        caller: Caller | None,
        template: str,
        title: str,
        status: int = 200,
        **values: Any,
    ) -> Response:
        text = self._templates.get_template(template).render(
            title=title,
            environment=self._graph.settings.environment,
            pages=_PAGES,
            here=request.url.path if request.method == "GET" else "/",
            caller=caller,
            may_write=bool(caller and caller.may("write")),
            is_open=self._access.is_open,
            form_token=self._access.form_token(request.cookies.get(SESSION)),
            **values,
        )
        return HTMLResponse(text, status)


_FORM = {
    "partition_ref": "",
    "sla": "5m",
    "ttl": "30m",
    "data_timestamp": "",
    "needs": "",
    "comment": "",
}


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; of repeated names, the last one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "no-form", "this must be sent by a form of the dashboard")
    text = (await request.body()).decode(errors="replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise Refused(400, "no-form", "the form has too many fields") from None
