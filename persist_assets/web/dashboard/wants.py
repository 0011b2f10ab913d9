"""Wants: the list with its forms, one of them, their timeline, and missed deadlines."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import quote

from starlette.responses import RedirectResponse

from persist_assets.core.errors import NotFoundError, PersistError
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.wants import ACTIVE, Want, WantState, ref_of
from persist_assets.operations.documents.wants import MissDocument, WantDocument
from persist_assets.wants.cycles import waits_document
from persist_assets.wants.requests import YEARS, record_late, warn_unknown
from persist_assets.web import api
from persist_assets.web.dashboard.overview import find_problems
from persist_assets.web.dashboard.timeline import draw_timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.graph import Graph

_SHOWN = 200
_SUGGESTED = 100
_HISTORY = 20_000
_LONGEST = 2000
_FORM = {
    "partition_ref": "",
    "sla": "5m",
    "ttl": "30m",
    "data_timestamp": "",
    "needs": "",
    "comment": "",
}


async def show_wants(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the wants, with forms to filter, add and cancel them."""
    return await _list_wants(frame, request, caller)


async def _list_wants(
    frame: Frame,
    request: Request,
    caller: Caller,
    status: int = 200,
    *,
    wrong: str | None = None,
    form: Mapping[str, str] | None = None,
) -> Response:
    graph = frame.graph
    state = request.query_params.get("state", "active")
    pattern = request.query_params.get("pattern", "").strip()[:500]
    notice: str | None = None
    states = (state,) if state in get_args(WantState) else ()
    if pattern and (pattern.count("*") > 10 or "\0" in pattern):
        pattern, wrong = "", "A pattern must have at most ten stars."

    def look() -> tuple[list[Want], int, list[str]]:
        environment, ledger = graph.settings.environment, graph.ledger
        position = ledger.events.position()
        wants = ledger.wants.fetch(
            environment,
            states=ACTIVE if state == "active" else states,  # pyright: ignore[reportArgumentType]
            pattern=pattern or None,
            limit=_SHOWN,
        )
        return wants[::-1], position, find_problems(graph)

    wants, position, problems = await graph.read(look)
    want_id = request.query_params.get("made", "")[:255]
    if want_id and "\0" not in want_id:
        want = await graph.read(lambda: graph.ledger.wants.find(want_id))
        if want is not None:
            warnings = warn_unknown(graph.settings, want.external_dependencies)
            notice = " ".join((f"{want.partition_ref} is {want.state}.", *warnings))
    return frame.page(
        request,
        caller,
        "wants.html",
        "Wants",
        status,
        wants=wants,
        is_cut=len(wants) == _SHOWN,
        state=state,
        states=("active", "all", *get_args(WantState)),
        pattern=pattern,
        notice=notice,
        wrong=wrong,
        form={**_FORM, **(form or {})},
        keys=await graph.glance(lambda: _suggest(graph)),
        position=position,
        problems=problems,
        active=ACTIVE,
    )


def _suggest(graph: Graph) -> list[str]:
    """Return suggested partitions: sources, and the newest partition of each."""
    try:
        observer = graph.observer()
    except PersistError:
        return []
    order, refs = observer.keys(), list[str]()
    for source in observer.project.persisted[:_SUGGESTED]:
        keys = order.get(source.source_id)
        refs.append(ref_of(source.key, keys[-1] if keys else None))
    return refs


async def create_want(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Record a want from a form."""
    graph = frame.graph
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
            at = at if at.tzinfo else at.replace(tzinfo=graph.settings.timezone)
            at = at.astimezone(UTC)
            if not YEARS[0] <= at.year <= YEARS[1]:
                raise ValueError
        except (ValueError, OverflowError):
            wrong.append("The time of its data is invalid; for example, 2024-01-31T06:00.")
    ref, comment = form.get("partition_ref", "").strip(), form.get("comment", "").strip()
    if not ref:
        wrong.append("Enter a partition.")
    needs = form.get("needs", "")
    if max(map(len, (ref, comment, needs))) > _LONGEST or "\0" in ref + comment + needs:
        wrong.append("A field is invalid or too long.")
    if not wrong:
        want = Want(
            uuid.uuid4().hex,
            ref,
            graph.settings.environment,
            graph.clock(),
            data_timestamp=at,
            ttl_s=ttl_s,
            sla_s=sla_s,
            external_dependencies=tuple(needs.split()),
            source={"type": "dashboard", "client": caller.name},
            comment=comment or None,
        )
        try:
            recorded, *_ = await graph.create(want, caller)
            return RedirectResponse(f"/wants?made={quote(recorded.want_id)}", 303)
        except PersistError as error:
            message = error.message.splitlines()[0]
            wrong.append(f"{message}{f': {error.hint}' if error.hint else ''}")
    return await _list_wants(frame, request, caller, 422, wrong=" ".join(wrong), form=form)


async def cancel_want(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Cancel a want."""
    want_id = form.get("want_id", "")[:255].replace("\0", "")
    try:
        await api.cancel(frame.graph, caller, want_id, "in the dashboard")
    except PersistError as error:
        return await _list_wants(frame, request, caller, 409, wrong=error.message)
    return RedirectResponse(f"/wants?made={quote(want_id)}", 303)


async def evaluate(
    frame: Frame, request: Request, caller: Caller, form: Mapping[str, str]
) -> Response:
    """Decide what can be built now."""
    try:
        await frame.graph.evaluate("manual", force=form.get("force") == "yes")
    except PersistError as error:
        message = error.message.splitlines()[0]
        return await _list_wants(frame, request, caller, 503, wrong=message)
    return RedirectResponse("/wants", 303)


async def show_want(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show everything about a want: what it waits for, what builds it, and its events."""
    graph, want_id = frame.graph, request.path_params["want_id"][:255]
    want = None
    if "\0" not in want_id:
        want = await graph.read(lambda: graph.ledger.wants.find(want_id))
    if want is None:
        raise NotFoundError(f"no want `{want_id[:100]}`", hint="“Wants” lists them")
    environment, ref = want.environment, want.partition_ref

    def look() -> dict[str, Any]:
        ledger = graph.ledger
        position = ledger.events.position()
        events, _ = ledger.events.search(
            max(position - _HISTORY, 0), environment=environment, refs=[ref]
        )
        miss = ledger.wants.find_miss(want.want_id)
        return {
            "waits": waits_document(ledger, graph.settings, ref)["waits_for"]
            if environment == graph.settings.environment
            else [],
            "build_request": ledger.requests.find(want.request_id) if want.request_id else None,
            "events": events[::-1],
            "miss": MissDocument.of(miss, graph.clock()).as_json() if miss else None,
            "position": position,
        }

    values = await graph.read(look)
    return frame.page(
        request,
        caller,
        "want.html",
        f"Want of {ref}",
        want=WantDocument.model_validate(want).as_json(),
        is_open_want=want.state in ACTIVE,
        elsewhere=None if environment == graph.settings.environment else environment,
        **values,
    )


async def show_timeline(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show when wants were due, and when they were delivered."""
    graph = frame.graph
    wants = await graph.read(
        lambda: graph.ledger.wants.fetch(graph.settings.environment, limit=_SHOWN)
    )
    picture = draw_timeline(wants, graph.clock())
    return frame.page(request, caller, "timeline.html", "Timeline", picture=picture)


async def show_misses(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show missed deadlines and their causes."""
    graph = frame.graph

    def act() -> list[dict[str, Any]]:
        record_late(graph.observer())
        misses = graph.ledger.wants.fetch_misses(graph.settings.environment, limit=_SHOWN)
        return [MissDocument.of(miss, graph.clock()).as_json() for miss in misses]

    misses = await graph.glance(act)
    return frame.page(request, caller, "sla.html", "Missed deadlines", misses=misses)
