"""`/api/v1`: one table of endpoints, by which requests are checked, answered and described.

The invariant: what an endpoint is given has been checked against its row of `ENDPOINTS`, all of it,
and the description that others generate clients from is made of the same rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from persist_assets.building.documents import plan_document
from persist_assets.core.errors import (
    ConflictError,
    LedgerUnreachableError,
    NotFoundError,
    PersistError,
    SettingsError,
    SourcesError,
    StorageError,
)
from persist_assets.core.wants import (
    ACTIVE,
    Want,
    availability_document,
    evaluation_document,
    event_document,
    miss_document,
    request_document,
    want_document,
)
from persist_assets.external.status import find_holdings
from persist_assets.ledger.manifest_file import fetch_document
from persist_assets.wants.cycles import waits_document
from persist_assets.wants.requests import LONGEST_S, record_late
from persist_assets.web import documents
from persist_assets.web.access import Refused
from persist_assets.web.metrics import show_metrics
from persist_assets.web.requests import (
    ALL,
    LIMIT,
    MOST,
    NOBODY,
    SCHEMAS,
    Answer,
    Endpoint,
    Param,
    parse_body,
    parse_query,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request as HttpRequest

    from persist_assets.core.model.snapshots import Event
    from persist_assets.core.wants import Request
    from persist_assets.web.access import Access, Caller
    from persist_assets.web.graph import Graph

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
LONGEST_WAIT_S = 30
MOST_WAITING = 1000
"""So many requests wait for events at most."""

STATUS: Sequence[tuple[type[PersistError], int, str]] = (
    (NotFoundError, 404, "not-found"),
    (ConflictError, 409, "conflict"),
    (SettingsError, 422, "invalid"),
    (SourcesError, 503, "sources"),
    (LedgerUnreachableError, 503, "ledger-unreachable"),
    (StorageError, 503, "storage"),
    (PersistError, 500, "failed"),
)
"""What is answered for each class of error; the first that fits."""


# ------------------------------------------------------------------------------------------ events


async def list_events(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the events after a position that filters let through, waiting for the first."""
    since = given.get("since_idx", given.get("since", 0))
    if {"since_idx", "since"} <= given.keys():
        raise Refused(422, "invalid", "`since` and `since_idx` mean the same: use only one of them")
    limit = given.get("limit", MOST)
    environment = given.get("environment", graph.settings.environment)
    filters: dict[str, Any] = {
        "environment": None if environment == ALL else environment,
        "refs": given.get("partition_refs", ()),
        "patterns": given.get("patterns", ()),
        "kinds": given.get("kinds", ()),
        "job_labels": given.get("job_labels", ()),
        "task_ids": given.get("task_ids", ()),
        "build_request_ids": given.get("build_request_ids", ()),
    }
    log_id, head = await graph.read(
        lambda: (graph.ledger.events.log_id(), graph.ledger.events.position())
    )
    whose = given.get("log_id", log_id)
    if since > head or whose != log_id:
        detail = (
            "the cursor belongs to another log"
            if whose != log_id
            else f"the cursor {since} is beyond the end of the log, {head}"
        )
        raise Refused(
            409,
            "history-reset",
            f"{detail}: its history was reset",
            "read from the beginning, since_idx=0",
            more={"head": head, "log_id": log_id},
        )
    clock = asyncio.get_running_loop().time
    deadline = clock() + given.get("wait", 0)
    while True:

        def look(since: int = since) -> tuple[list[Event], int]:
            return graph.ledger.events.search(since, limit=limit, **filters)

        found, since = await graph.read(look)
        head = max(head, since)
        if found or graph.stopping:
            break
        if since >= head:  # else a page that held nothing, and there is more
            left = deadline - clock()
            if left <= 0:
                break
            if graph.waiting >= MOST_WAITING:
                raise Refused(503, "busy", "too many clients wait for events", "try again later")
            await graph.moved(since, left)
            head = max(head, await graph.read(graph.ledger.events.position))
        elif clock() >= deadline:
            break  # `next_idx` is not yet the end: the client goes on from there
    return {
        "events": [event_document(e.idx, e.at, e.kind, e.data) for e in found],
        "next_idx": since,
        "head": head,
        "log_id": log_id,
        "environment": graph.settings.environment,
    }


# ------------------------------------------------------------------------------------------- wants


async def list_wants(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the wants there are, the oldest first."""
    states = tuple(given.get("states") or (() if given.get("all") else ACTIVE))

    def act() -> tuple[list[Want], list[str]]:
        found = graph.ledger.wants.fetch(
            graph.settings.environment,
            states=states,
            refs=given.get("partition_refs", ()),
            pattern=given.get("pattern"),
            limit=given.get("limit", MOST),
        )
        return found, graph.find_problems()

    found, warnings = await graph.read(act)
    return {"wants": [want_document(want) for want in found], "warnings": warnings}


async def create_want(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Record a want."""
    want, warnings, made = await graph.create(
        Want(
            given.get("want_id") or uuid.uuid4().hex,
            given["partition_ref"],
            graph.settings.environment,
            graph.clock(),
            data_timestamp=given.get("data_timestamp"),
            ttl_s=given.get("ttl_seconds"),
            sla_s=given.get("sla_seconds"),
            external_dependencies=tuple(given.get("external_dependencies") or ()),
            source={"type": "api", "client": caller.name},
            comment=given.get("comment"),
        )
    )
    told = {**want_document(want), "warnings": [*warnings]}
    return answer(told, 201 if made else 200)


async def show_want(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer everything about a want."""
    return want_document(await graph.read(lambda: find_want(graph, given["want_id"])))


async def cancel_want(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Take a want back."""
    return want_document(await cancel(graph, caller, given["want_id"], given.get("why")))


async def cancel(graph: Graph, caller: Caller, want_id: str, why: str | None) -> Want:
    """Record that nobody wants something any more, and return the want as it is now.

    Raises
    ------
    NotFoundError
        There is no such want in the environment.
    ConflictError
        It has ended.
    """

    def act() -> Want:
        find_want(graph, want_id)
        return graph.ledger.wants.cancel(want_id, by=caller.name, why=why)

    return await graph.read(act)


def find_want(graph: Graph, want_id: str) -> Want:
    """Return a want of the environment.

    Raises
    ------
    NotFoundError
        There is none of this id.
    """
    found = graph.ledger.wants.find(want_id)
    if found is None or found.environment != graph.settings.environment:
        raise NotFoundError(f"unknown want `{want_id}`", hint=f"GET {PREFIX}/wants?all=true")
    return found


async def evaluate(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Decide what can be built now, and make one request of it."""
    found, request = await graph.evaluate("manual", force=given.get("force", False))
    return evaluation_document(found, request)


async def show_waits(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what a wanted partition waits for."""
    ref, settings = given["partition_ref"], graph.settings
    if given.get("environment", settings.environment) != settings.environment:
        return {"partition_ref": ref, "waits_for": [], "graphs": []}
    return await graph.read(lambda: waits_document(graph.ledger, settings, ref))


# ----------------------------------------------------------------------------------- what there is


async def list_partitions(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what is known of partitions, in the order of their references."""
    limit = given.get("limit", MOST)
    found = await graph.read(
        lambda: graph.ledger.partitions.fetch(
            graph.settings.environment,
            given.get("graph", ""),
            after=given.get("after", ""),
            pattern=given.get("pattern"),
            limit=limit,
        )
    )
    last = found[-1].partition_ref if len(found) == limit else None
    return {"partitions": [availability_document(p) for p in found], "next_after": last}


async def list_requests(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the build requests, the newest first."""

    def act() -> tuple[list[Request], list[str]]:
        found = graph.ledger.requests.fetch(
            graph.settings.environment,
            is_open=given.get("open", False),
            limit=given.get("limit", 100),
        )
        return found, graph.find_problems()

    found, warnings = await graph.read(act)
    return {"requests": [request_document(r) for r in found], "warnings": warnings}


async def list_misses(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer which deadlines were missed, the latest first."""

    def act() -> list[dict[str, Any]]:
        record_late(graph.observer())
        found = graph.ledger.wants.fetch_misses(
            graph.settings.environment, limit=given.get("limit", MOST)
        )
        return [miss_document(miss, graph.clock()) for miss in found]

    return {"misses": await graph.glance(act)}


async def show_plan(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what a build of everything would do now."""

    def act() -> dict[str, Any]:
        observer = graph.observer()
        chosen = [s.source_id for s in observer.project.persisted]
        holdings = find_holdings(observer.ingestion, chosen)
        return plan_document(observer.project, observer.plan(chosen), holdings)

    return await graph.plan(act)


async def show_manifest(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the environment's manifest, as Malloy writes it."""
    return await graph.read(lambda: fetch_document(graph.settings, graph.ledger))


# -------------------------------------------------------------------------------------- operations


async def show_health(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer whether the ledger does."""
    try:
        async with asyncio.timeout(5):
            await graph.read(graph.ledger.events.position)
    except (TimeoutError, PersistError):
        raise Refused(503, "ledger-unreachable", "the ledger does not respond") from None
    return {"status": "ok"}


async def show_description(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what all this is."""
    return description()


# ----------------------------------------------------------------------------------- the table

_ID = Param("want_id", "text", "The ID of a want.", required=True)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        f"{PREFIX}/events",
        "read",
        "Events in order. Continue from `next_idx`; a page may be empty without being the last.",
        list_events,
        documents.EVENTS,
        (
            Param(
                "since_idx",
                "whole",
                "Only events after this position; 0, the default, starts at the beginning.",
            ),
            Param("since", "whole", "An alias of `since_idx`."),
            Param("log_id", "text", "The log of the position, as returned by an earlier response."),
            Param("environment", "text", "The environment; default: the served one; `*`: all."),
            Param(
                "partition_refs", "texts", "Only of these partitions, or those matching `patterns`."
            ),
            Param("patterns", "patterns", "`*` matches within one segment, `**` matches anything."),
            Param("job_labels", "texts", "Only of these sources, by SourceID."),
            Param("task_ids", "texts", "Only of these builds."),
            Param("build_request_ids", "texts", "Only of these build requests."),
            Param("kinds", "texts", "Only of these kinds."),
            LIMIT,
            Param("wait", "whole", "Seconds to wait for the first event.", most=LONGEST_WAIT_S),
        ),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/wants",
        "read",
        "Wants, oldest first; with a limit, the newest ones.",
        list_wants,
        documents.WANTS,
        (
            Param("states", "state", "Only in these states; default: those that have not ended."),
            Param("all", "flag", "In all states."),
            Param("partition_refs", "texts", "Only of these partitions."),
            Param("pattern", "pattern", "Only of matching partitions."),
            LIMIT,
        ),
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/wants",
        "write",
        "Request a partition. Repeating a `want_id` returns the same want.",
        create_want,
        documents.MADE,
        body=(
            Param("partition_ref", "text", "An asset key, `/` and a partition key.", True),
            Param("want_id", "text", "Its ID; default: a new one.", most=255),
            Param("data_timestamp", "instant", "The time that its data represents."),
            Param(
                "ttl_seconds",
                "whole",
                "Seconds after its creation when it expires.",
                most=LONGEST_S,
            ),
            Param(
                "sla_seconds",
                "whole",
                "Seconds after `data_timestamp`, or its creation, when it is late.",
                most=LONGEST_S,
            ),
            Param(
                "external_dependencies", "texts", "Partitions of other graphs that it depends on."
            ),
            Param("comment", "text", "Why it is wanted."),
        ),
        ignored=("created_at", "source"),
        statuses=(201, 200),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/wants/{{want_id}}",
        "read",
        "Details of a want.",
        show_want,
        documents.WANT,
        (_ID,),
    ),
    Endpoint(
        "DELETE",
        f"{PREFIX}/wants/{{want_id}}",
        "write",
        "Cancel a want; a build in progress is finished.",
        cancel_want,
        documents.WANT,
        (_ID, Param("why", "text", "Kept in the history.")),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/waits",
        "read",
        "What a wanted partition waits for: what every want of it lacks.",
        show_waits,
        documents.WAITS,
        (
            Param("partition_ref", "text", "A partition of this graph.", True),
            Param("environment", "text", "Empty where the service serves another one."),
        ),
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/evaluate",
        "write",
        "Decide what can be built now and create one build request for it.",
        evaluate,
        documents.EVALUATION,
        body=(Param("force", "flag", "Retry failures immediately."),),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/partitions",
        "read",
        "Available, failed and tainted partitions. Continue with `after=next_after`.",
        list_partitions,
        documents.PARTITIONS,
        (
            Param("graph", "text", "Partitions of another graph; default: this one."),
            Param("after", "text", "Only partitions after this reference."),
            Param("pattern", "pattern", "Only matching partitions."),
            LIMIT,
        ),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/requests",
        "read",
        "Build requests, newest first.",
        list_requests,
        documents.REQUESTS,
        (Param("open", "flag", "Only those that have not ended."), LIMIT),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/sla",
        "read",
        "Missed deadlines, their causes and delays.",
        list_misses,
        documents.MISSES,
        (LIMIT,),
    ),
    Endpoint(
        "GET", f"{PREFIX}/plan", "read", "What a build would do now.", show_plan, documents.PLAN
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/manifest",
        "read",
        "The manifest in Malloy's format.",
        show_manifest,
        documents.ANY,
    ),
    Endpoint(
        "GET", f"{PREFIX}/openapi.json", None, "This description.", show_description, documents.ANY
    ),
    Endpoint("GET", "/metrics", "read", "Metrics for Prometheus.", show_metrics, None),
    Endpoint("GET", "/health", None, "Whether the service works.", show_health, documents.HEALTH),
)


def description() -> dict[str, Any]:
    """Return what the endpoints are, as OpenAPI has it."""
    paths: dict[str, dict[str, Any]] = {}
    refused = {"$ref": "#/components/responses/problem"}
    for endpoint in ENDPOINTS:
        content = (
            {"text/plain": {"schema": {"type": "string"}}}
            if endpoint.told is None
            else {"application/json": {"schema": endpoint.told}}
        )
        told: dict[str, Any] = {
            "summary": endpoint.about,
            "operationId": endpoint.act.__name__,
            "parameters": [
                {
                    "name": p.name,
                    "in": "path" if f"{{{p.name}}}" in endpoint.path else "query",
                    "description": p.about,
                    "required": p.required,
                    "schema": _schema(p),
                }
                for p in endpoint.params
            ],
            "responses": {
                **{str(s): {"description": "Done.", "content": content} for s in endpoint.statuses},
                "default": refused,
            },
            "security": [{"bearer": []}] if endpoint.right else [],
        }
        if endpoint.body is not None:
            schema = {
                "type": "object",
                "properties": {
                    **{name: {"description": "Ignored."} for name in endpoint.ignored},
                    **{p.name: {**_in_body(p), "description": p.about} for p in endpoint.body},
                },
                "required": [p.name for p in endpoint.body if p.required],
                "additionalProperties": False,
            }
            told["requestBody"] = {
                "content": {"application/json": {"schema": schema}},
                "required": bool(schema["required"]),
            }
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = told
    return {
        "openapi": "3.1.0",
        "info": {"title": "persist", "version": "1"},
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "problem": {
                    "description": "What is wrong (RFC 9457).",
                    "content": {"application/problem+json": {"schema": documents.PROBLEM}},
                }
            },
        },
    }


def _in_body(param: Param) -> dict[str, Any]:
    """Return the schema of a key, which may be null where it may be left out."""
    return _schema(param) if param.required else documents.maybe(_schema(param))


def _schema(param: Param) -> dict[str, Any]:
    schema = dict(SCHEMAS[param.kind])
    if param is LIMIT:
        schema["minimum"] = 1
    if param.most is not None:
        schema["maximum" if param.kind == "whole" else "maxLength"] = param.most
    return schema


# ---------------------------------------------------------------------------------- at the edge


def answer(document: object, status: int = 200) -> Response:
    """Return a document as JSON."""
    text = json.dumps(document, default=str)
    return Response(text, status, media_type="application/json")


def refusal(error: PersistError) -> Refused:
    """Return what is answered for an error."""
    _, status, code = next(row for row in STATUS if isinstance(error, row[0]))
    problems = [
        (str(p.location), p.message)
        for p in (error.problems if isinstance(error, SourcesError) else ())
    ]
    return Refused(status, code, error.message.splitlines()[0], error.hint, problems=problems)


def routes(graph: Graph, access: Access) -> list[Route]:
    """Return the table as the routes of an application."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in ENDPOINTS:
        found.setdefault(endpoint.path, []).append(endpoint)
    return [
        Route(
            path.replace("{want_id}", "{want_id:path}"),
            _serve(graph, access, {e.method: e for e in some}),
            methods=[e.method for e in some],
        )
        for path, some in found.items()
    ]


def _serve(
    graph: Graph, access: Access, endpoints: Mapping[str, Endpoint]
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def serve(request: HttpRequest) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = endpoints[method]
        caller = access.of_headers(request.headers)
        if endpoint.right is not None:
            if caller is None:
                raise Refused(401, "unauthorised", "a valid token is required")
            if not caller.may(endpoint.right):
                raise Refused(403, "forbidden", f"the token `{caller.name}` is read-only")
        given = parse_query(endpoint, request)
        if endpoint.body is not None:
            given |= await parse_body(endpoint, request)
        done = await endpoint.act(graph, caller or NOBODY, given)
        return done if isinstance(done, Response) else answer(done, endpoint.statuses[0])

    return serve
