"""`/api/v1`: one table of endpoints, which checks, answers and describes requests.

The invariant: a handler gets only what the model of its row in `ENDPOINTS` allows, and the OpenAPI
description is derived from the same models.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from starlette.responses import Response
from starlette.routing import Route

from persist_assets.core.errors import (
    ConflictError,
    LedgerUnreachableError,
    NotFoundError,
    PersistError,
    SettingsError,
    SourcesError,
    StorageError,
)
from persist_assets.core.wants import ACTIVE, Want
from persist_assets.external.status import find_holdings
from persist_assets.ledger.manifest_file import fetch_document
from persist_assets.operations.documents.events import EventDocument
from persist_assets.operations.documents.plans import PlanDocument
from persist_assets.operations.documents.wants import (
    EvaluationDocument,
    MissDocument,
    PartitionDocument,
    RequestDocument,
    WaitsDocument,
    WantDocument,
)
from persist_assets.storage.raw import public
from persist_assets.wants.cycles import waits_document
from persist_assets.wants.requests import record_late
from persist_assets.web.access import Refused
from persist_assets.web.documents import (
    CreatedWantDocument,
    EventsDocument,
    HealthDocument,
    MissesDocument,
    PartitionsDocument,
    ProblemDocument,
    RequestsDocument,
    WantsDocument,
)
from persist_assets.web.metrics import show_metrics
from persist_assets.web.requests import (
    ALL,
    CancelQuery,
    EvaluateBody,
    EventsQuery,
    Input,
    MissesQuery,
    Nothing,
    PartitionsQuery,
    RequestsQuery,
    WaitsQuery,
    WantBody,
    WantPath,
    WantsQuery,
    parse_body,
    parse_query,
)
from persist_assets.web.roles import forbidden, require_build

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema
    from starlette.requests import Request as HttpRequest

    from persist_assets.core.model.snapshots import Event
    from persist_assets.core.wants import Request
    from persist_assets.web.access import Access, Caller, Right
    from persist_assets.web.graph import Graph

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
MOST_WAITING = 1000
"""The maximum number of requests that wait for events."""

STATUS: Sequence[tuple[type[PersistError], int, str]] = (
    (NotFoundError, 404, "not-found"),
    (ConflictError, 409, "conflict"),
    (SettingsError, 422, "invalid"),
    (SourcesError, 503, "sources"),
    (LedgerUnreachableError, 503, "ledger-unreachable"),
    (StorageError, 503, "storage"),
    (PersistError, 500, "failed"),
)
"""The status and code of each class of error; the first match counts."""

Answer = BaseModel | dict[str, Any] | Response
_NOBODY: Any = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The answer at a path for a method.

    Attributes
    ----------
    right
        The right that callers need; None: everybody may ask.
    act
        The handler: it takes the graph, the caller, and the body if there is one, else the query.
    answer
        The model of the answer; `dict`: any JSON object; None: plain text.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    right: Right | None
    about: str
    act: Callable[[Graph, Caller, Any], Awaitable[Answer]]
    answer: type[BaseModel] | type[dict[str, Any]] | None
    query: type[Input] = Nothing
    body: type[Input] | None = None
    statuses: tuple[int, ...] = (200,)


# ------------------------------------------------------------------------------------------ events


async def list_events(graph: Graph, caller: Caller, query: EventsQuery) -> Answer:
    """Answer the events after a position that match all filters, waiting for the first."""
    if {"since_idx", "since"} <= query.model_fields_set:
        raise Refused(422, "invalid", "`since` and `since_idx` mean the same: use only one of them")
    since = query.since_idx or query.since
    environment = query.environment or graph.settings.environment
    log_id, head, trimmed = "", 0, 0

    def look(since: int) -> tuple[list[Event], int, int]:
        nonlocal log_id, head, trimmed
        if not log_id:
            log_id, head, trimmed = _check_cursor(graph, query, since)
        page = graph.ledger.events.search(
            since,
            limit=query.limit,
            environment=None if environment == ALL else environment,
            refs=query.partition_refs,
            patterns=query.patterns,
            kinds=query.kinds,
            job_labels=query.job_labels,
            task_ids=query.task_ids,
            build_request_ids=query.build_request_ids,
        )
        return *page, graph.ledger.events.trimmed_to()

    clock = asyncio.get_running_loop().time
    deadline = clock() + query.wait
    while True:
        begun = since
        events, since, now_trimmed = await graph.read(partial(look, since))
        if begun < now_trimmed != trimmed:  # while the events were read
            raise _over(_missed(begun, now_trimmed), head, log_id, now_trimmed)
        head = max(head, since)
        if events or graph.stopping:
            break
        if since >= head:  # otherwise the page was empty, and there are more events
            left_s = deadline - clock()
            if left_s <= 0:
                break
            if graph.waiting >= MOST_WAITING:
                raise Refused(503, "busy", "too many clients wait for events", "try again later")
            await graph.moved(since, left_s)
            head = max(head, await graph.read(graph.ledger.events.position))
        elif clock() >= deadline:
            break  # `next_idx` is not the end yet: the client continues from there
    return EventsDocument(
        events=[EventDocument.of(event) for event in events],
        next_idx=since,
        head=head,
        log_id=log_id,
        environment=graph.settings.environment,
        trimmed_to=trimmed,
    )


def _check_cursor(graph: Graph, query: EventsQuery, since: int) -> tuple[str, int, int]:
    """Return the log's identity, its end, and up to where it was trimmed.

    Raises
    ------
    Refused
        A reader with this cursor must start over: it has missed events, or read others.
    """
    log = graph.ledger.events
    log_id, head, trimmed = log.ends()
    problem = None
    if query.log_id not in (None, log_id):
        problem = "the cursor belongs to another log"
    elif since > head:
        problem = f"the cursor {since} is beyond the end of the log, {head}"
    elif 0 < since < trimmed and query.trimmed_to != trimmed:
        raise _over(_missed(since, trimmed), head, log_id, trimmed)
    if problem is not None:
        raise _over(f"{problem}: its history was reset", head, log_id, trimmed)
    return log_id, head, trimmed


def _missed(since: int, trimmed: int) -> str:
    return (
        f"events after the cursor {since}, up to {trimmed}, were archived and deleted, or the"
        " ledger was restored from a backup"
    )


def _over(problem: str, head: int, log_id: str, trimmed: int) -> Refused:
    """Return the answer to a reader who has to start over."""
    more = {"head": head, "log_id": log_id, "trimmed_to": trimmed}
    hint = "read from the beginning, since_idx=0"
    if trimmed:
        hint += f", and send trimmed_to={trimmed} with all further requests"
    return Refused(409, "history-reset", problem, hint, more=more)


# ------------------------------------------------------------------------------------------- wants


async def list_wants(graph: Graph, caller: Caller, query: WantsQuery) -> Answer:
    """Answer the wants, the oldest first."""

    def act() -> tuple[list[Want], list[str]]:
        wants = graph.ledger.wants.fetch(
            graph.settings.environment,
            states=tuple(query.states or (() if query.all else ACTIVE)),
            refs=query.partition_refs,
            pattern=query.pattern,
            limit=query.limit,
        )
        return wants, graph.find_problems()

    wants, warnings = await graph.read(act)
    return WantsDocument(
        wants=[WantDocument.model_validate(want) for want in wants], warnings=warnings
    )


async def create_want(graph: Graph, caller: Caller, body: WantBody) -> Answer:
    """Record a want."""
    want, warnings, is_new = await graph.create(
        Want(
            body.want_id or uuid.uuid4().hex,
            body.partition_ref,
            graph.settings.environment,
            graph.clock(),
            data_timestamp=body.data_timestamp,
            ttl_s=body.ttl_seconds,
            sla_s=body.sla_seconds,
            external_dependencies=tuple(body.external_dependencies or ()),
            source={"type": "api", "client": caller.name},
            comment=body.comment,
        ),
        caller,
    )
    document = CreatedWantDocument.of(want, warnings)
    return answer(document, 201 if is_new else 200)


async def show_want(graph: Graph, caller: Caller, query: WantPath) -> Answer:
    """Answer everything about a want."""
    want = await graph.read(lambda: find_want(graph, query.want_id))
    return WantDocument.model_validate(want)


async def cancel_want(graph: Graph, caller: Caller, query: CancelQuery) -> Answer:
    """Cancel a want."""
    return WantDocument.model_validate(await cancel(graph, caller, query.want_id, query.why))


async def cancel(graph: Graph, caller: Caller, want_id: str, why: str | None) -> Want:
    """Cancel a want, and return it as it is now.

    Raises
    ------
    NotFoundError
        There is no such want in the environment.
    ConflictError
        It has ended.
    """
    want = await graph.read(lambda: find_want(graph, want_id))
    await graph.glance(lambda: require_build(caller, graph.observer, want.partition_ref))

    def act() -> Want:
        return graph.ledger.wants.cancel(want_id, by=caller.name, why=why)

    return await graph.read(act)


def find_want(graph: Graph, want_id: str) -> Want:
    """Return a want of the environment.

    Raises
    ------
    NotFoundError
        There is no want with this ID.
    """
    want = graph.ledger.wants.find(want_id)
    if want is None or want.environment != graph.settings.environment:
        raise NotFoundError(f"unknown want `{want_id}`", hint=f"GET {PREFIX}/wants?all=true")
    return want


async def evaluate(graph: Graph, caller: Caller, body: EvaluateBody) -> Answer:
    """Decide what can be built now, and make one build request for it."""
    evaluation, request = await graph.evaluate("manual", force=body.force or False)
    return EvaluationDocument.of(evaluation, request)


async def show_waits(graph: Graph, caller: Caller, query: WaitsQuery) -> Answer:
    """Answer what a wanted partition waits for."""
    ref, settings = query.partition_ref, graph.settings
    if query.environment not in (None, settings.environment):
        return WaitsDocument(partition_ref=ref, waits_for=[], graphs=[])
    document = await graph.read(lambda: waits_document(graph.ledger, settings, ref))
    return WaitsDocument.model_validate(document)


# ------------------------------------------------------------------------------- state of the graph


async def list_partitions(graph: Graph, caller: Caller, query: PartitionsQuery) -> Answer:
    """Answer the available, failed and tainted partitions, in the order of their references."""
    entries = await graph.read(
        lambda: graph.ledger.partitions.fetch(
            graph.settings.environment,
            query.graph or "",
            after=query.after or "",
            pattern=query.pattern,
            limit=query.limit,
        )
    )
    return PartitionsDocument(
        partitions=[PartitionDocument.model_validate(entry) for entry in entries],
        next_after=entries[-1].partition_ref if len(entries) == query.limit else None,
    )


async def list_requests(graph: Graph, caller: Caller, query: RequestsQuery) -> Answer:
    """Answer the build requests, the newest first."""

    def act() -> tuple[list[Request], list[str]]:
        requests = graph.ledger.requests.fetch(
            graph.settings.environment, is_open=query.open, limit=query.limit
        )
        return requests, graph.find_problems()

    requests, warnings = await graph.read(act)
    return RequestsDocument(
        requests=[RequestDocument.model_validate(r) for r in requests], warnings=warnings
    )


async def list_misses(graph: Graph, caller: Caller, query: MissesQuery) -> Answer:
    """Answer the missed deadlines, the latest first."""

    def act() -> list[MissDocument]:
        record_late(graph.observer())
        misses = graph.ledger.wants.fetch_misses(graph.settings.environment, limit=query.limit)
        return [MissDocument.of(miss, graph.clock()) for miss in misses]

    return MissesDocument(misses=await graph.glance(act))


async def show_plan(graph: Graph, caller: Caller, query: Nothing) -> Answer:
    """Return the plan of a build of everything; concurrent clients share one plan."""

    def act() -> Response:
        observer = graph.observer()
        chosen = [s.source_id for s in observer.project.persisted]
        holdings = find_holdings(observer.ingestion, chosen)
        planned = observer.plan(chosen)
        checks = observer.changed_checks(planned)
        return answer(PlanDocument.of(observer.project, planned, holdings, checks))

    shown = await graph.shared("plan", lambda: graph.plan(act))
    return Response(shown.body, media_type=shown.media_type)


async def show_manifest(graph: Graph, caller: Caller, query: Nothing) -> Answer:
    """Answer the environment's manifest, in Malloy's format."""
    return await graph.read(lambda: fetch_document(graph.settings, graph.ledger))


# -------------------------------------------------------------------------------------- operations


async def show_health(graph: Graph, caller: Caller, query: Nothing) -> Answer:
    """Answer whether the ledger responds."""
    try:
        async with asyncio.timeout(5):
            await graph.read(graph.ledger.events.position)
    except (TimeoutError, PersistError):
        raise Refused(503, "ledger-unreachable", "the ledger does not respond") from None
    return HealthDocument(status="ok")


async def show_description(graph: Graph, caller: Caller, query: Nothing) -> Answer:
    """Answer the OpenAPI description."""
    return description()


# ----------------------------------------------------------------------------------- the table

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        f"{PREFIX}/events",
        "read",
        "Events in order. Continue from `next_idx`; a page may be empty without being the last.",
        list_events,
        EventsDocument,
        EventsQuery,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/wants",
        "read",
        "Wants, oldest first; with a limit, the newest ones.",
        list_wants,
        WantsDocument,
        WantsQuery,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/wants",
        "build",
        "Request a partition. Repeating a `want_id` returns the same want.",
        create_want,
        CreatedWantDocument,
        body=WantBody,
        statuses=(201, 200),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/wants/{{want_id}}",
        "read",
        "Details of a want.",
        show_want,
        WantDocument,
        WantPath,
    ),
    Endpoint(
        "DELETE",
        f"{PREFIX}/wants/{{want_id}}",
        "build",
        "Cancel a want; a build in progress is finished.",
        cancel_want,
        WantDocument,
        CancelQuery,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/waits",
        "read",
        "What a wanted partition waits for: what every want of it lacks.",
        show_waits,
        WaitsDocument,
        WaitsQuery,
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/evaluate",
        "write",
        "Decide what can be built now and create one build request for it.",
        evaluate,
        EvaluationDocument,
        body=EvaluateBody,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/partitions",
        "read",
        "Available, failed and tainted partitions. Continue with `after=next_after`.",
        list_partitions,
        PartitionsDocument,
        PartitionsQuery,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/requests",
        "read",
        "Build requests, newest first.",
        list_requests,
        RequestsDocument,
        RequestsQuery,
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/sla",
        "read",
        "Missed deadlines, their causes and delays.",
        list_misses,
        MissesDocument,
        MissesQuery,
    ),
    Endpoint(
        "GET", f"{PREFIX}/plan", "read", "What a build would do now.", show_plan, PlanDocument
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/manifest",
        "read",
        "The manifest in Malloy's format.",
        show_manifest,
        dict,
    ),
    Endpoint("GET", f"{PREFIX}/openapi.json", None, "This description.", show_description, dict),
    Endpoint("GET", "/metrics", "read", "Metrics for Prometheus.", show_metrics, None),
    Endpoint("GET", "/health", None, "Whether the service works.", show_health, HealthDocument),
)


class _Schemas(GenerateJsonSchema):
    """Schemas without field titles, and without defaults that mean no value."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        if not described.get("default"):
            described.pop("default", None)
        return described


def description() -> dict[str, Any]:
    """Return the OpenAPI description of all endpoints."""
    answers = {
        endpoint.answer
        for endpoint in ENDPOINTS
        if endpoint.answer is not None and issubclass(endpoint.answer, BaseModel)
    }
    models = sorted({*answers, ProblemDocument}, key=lambda model: model.__name__)
    refs, schemas = models_json_schema(
        [(model, "serialization") for model in models],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        content = {"text/plain": {"schema": {"type": "string"}}}
        if endpoint.answer is not None:
            schema = refs.get((endpoint.answer, "serialization"), {"type": "object"})  # pyright: ignore[reportArgumentType, reportCallIssue]
            content = {"application/json": {"schema": schema}}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = {
            "summary": endpoint.about,
            "operationId": endpoint.act.__name__,
            "parameters": _parameters(endpoint),
            "responses": {
                **{str(s): {"description": "Done.", "content": content} for s in endpoint.statuses},
                "default": {"$ref": "#/components/responses/problem"},
            },
            "security": [{"bearer": []}] if endpoint.right else [],
            **({"requestBody": _body(endpoint.body)} if endpoint.body else {}),
        }
    problem = {"schema": refs[ProblemDocument, "serialization"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "persist", "version": "1"},
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas["$defs"],
            "responses": {
                "problem": {
                    "description": "The problem (RFC 9457).",
                    "content": {"application/problem+json": problem},
                }
            },
        },
    }


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    schema = endpoint.query.model_json_schema(schema_generator=_Schemas)
    return [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in endpoint.path else "query",
            "description": field.pop("description"),
            "required": name in schema.get("required", ()),
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]


def _body(model: type[Input]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_Schemas)
    content = {"application/json": {"schema": schema}}
    return {"content": content, "required": "required" in schema}


# ---------------------------------------------------------------------------------- at the edge


def answer(document: BaseModel | dict[str, Any], status: int = 200) -> Response:
    """Return a document as JSON, without the secrets that errors and code may quote."""
    values = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
    return Response(json.dumps(public(values), default=str), status, media_type="application/json")


def refusal(error: PersistError) -> Refused:
    """Return the refusal for an error."""
    _, status, code = next(row for row in STATUS if isinstance(error, row[0]))
    problems = [
        (str(p.location), p.message)
        for p in (error.problems if isinstance(error, SourcesError) else ())
    ]
    return Refused(status, code, error.message.splitlines()[0], error.hint, problems=problems)


def routes(graph: Graph, access: Access) -> list[Route]:
    """Return the routes of the endpoints."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [
        Route(
            path.replace("{want_id}", "{want_id:path}"),
            _serve(graph, access, endpoints),
            methods=[*endpoints],
        )
        for path, endpoints in by_path.items()
    ]


def _serve(
    graph: Graph, access: Access, endpoints: Mapping[str, Endpoint]
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def serve(request: HttpRequest) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = endpoints[method]
        caller = access.of_scope(request.scope)
        if endpoint.right is not None:
            if caller is None:
                if "authorization" in request.headers:
                    access.refused(request.scope, "unknown or expired token")
                raise Refused(401, "unauthorised", "a valid token is required")
            if not caller.may(endpoint.right):
                access.refused(request.scope, f"no right to {endpoint.right}", caller.name)
                raise forbidden(caller, endpoint.right)
        values = parse_query(endpoint.query, request)
        if endpoint.body is not None:
            values = await parse_body(endpoint.body, request)
        try:
            document = await endpoint.act(graph, caller or _NOBODY, values)
        except Refused as refused:
            if refused.status == 403 and caller is not None:
                access.refused(request.scope, refused.detail, caller.name)
            raise
        if endpoint.right is not None and access.of_scope(request.scope) is None:
            raise Refused(401, "unauthorised", "the token was revoked, or has expired")
        if isinstance(document, Response):
            return document
        return answer(document, endpoint.statuses[0])

    return serve
