"""`/api/v1`: one table of endpoints, by which requests are checked, answered and described.

The invariant: what an endpoint is given has been checked against its row of `ENDPOINTS`, all of it,
and the description that others generate clients from is made of the same rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from starlette.responses import PlainTextResponse, Response
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
from persist_assets.core.wants import (
    ACTIVE,
    Want,
    WantState,
    availability_document,
    evaluation_document,
    event_document,
    miss_document,
    request_document,
    want_document,
)
from persist_assets.ledger.manifest_file import fetch_document
from persist_assets.wants.cycles import WITHIN_S, Search
from persist_assets.wants.requests import LONGEST_S, YEARS, record_late
from persist_assets.web import documents
from persist_assets.web.access import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from starlette.requests import Request as HttpRequest

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import Event
    from persist_assets.core.wants import Request
    from persist_assets.web.access import Access, Caller
    from persist_assets.web.graph import Graph

log = logging.getLogger(__name__)

PREFIX = "/api/v1"
LONGEST_WAIT_S = 30
MOST_WAITING = 1000
"""So many requests wait for events at most."""
MOST = 1000
"""So many rows are in one answer at most."""
ALL = "*"
"""The events of this environment are those of all."""
_LONGEST_TEXT = 2000
_MOST_VALUES = 100
_MOST_STARS = 10
_MOST_MS = 10_000
_LARGEST = 2**53

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

Kind = Literal["text", "texts", "pattern", "patterns", "whole", "flag", "instant", "state"]
_TEXT = {
    "type": "string",
    "minLength": 1,
    "maxLength": _LONGEST_TEXT,
    "pattern": r"^[^\u0000-\u0008\u000b-\u001f]*$",
}
_SCHEMAS: Mapping[Kind, Mapping[str, Any]] = {
    "text": _TEXT,
    "texts": {"type": "array", "items": _TEXT, "maxItems": _MOST_VALUES},
    "pattern": _TEXT,
    "patterns": {"type": "array", "items": _TEXT, "maxItems": _MOST_VALUES},
    "whole": {"type": "integer", "minimum": 0, "maximum": _LARGEST},
    "flag": {"type": "boolean"},
    "instant": {"type": "string", "format": "date-time"},
    "state": {
        "type": "array",
        "items": {"enum": [*get_args(WantState)]},
        "maxItems": _MOST_VALUES,
    },
}


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a query, or a key of a body: what it may be, and what it is for."""

    name: str
    kind: Kind
    about: str
    required: bool = False
    most: int | None = None


Answer = dict[str, Any] | Response


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is answered at a path for a method.

    Attributes
    ----------
    right
        Who may ask; None: everybody.
    told
        What is answered, as JSON Schema; None: plain text.
    params, body
        What may be given; anything else is refused.
    ignored
        Keys of the body that may be there and mean nothing.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    right: Literal["read", "write"] | None
    about: str
    act: Callable[[Graph, Caller, Mapping[str, Any]], Awaitable[Answer]]
    told: Mapping[str, Any] | None
    params: tuple[Param, ...] = ()
    body: tuple[Param, ...] | None = None
    ignored: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)


# ------------------------------------------------------------------------------------------ events


async def list_events(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the events after a position that filters let through, waiting for the first."""
    since = given.get("since_idx", given.get("since", 0))
    if {"since_idx", "since"} <= given.keys():
        raise Refused(422, "invalid", "`since` and `since_idx` are the same: give one of them")
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
    log_id, head = await graph.read(lambda: (graph.ledger.log_id(), graph.ledger.position()))
    whose = given.get("log_id", log_id)
    if since > head or whose != log_id:
        detail = (
            "this log is another one than that of the cursor"
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
            return graph.ledger.list_events(since, limit=limit, **filters)

        found, since = await graph.read(look)
        head = max(head, since)
        if found or graph.stopping:
            break
        if since >= head:  # else a page that held nothing, and there is more
            left = deadline - clock()
            if left <= 0:
                break
            if graph.waiting >= MOST_WAITING:
                raise Refused(503, "busy", "too many clients wait for events", "ask again later")
            await graph.moved(since, left)
            head = max(head, await graph.read(graph.ledger.position))
        elif clock() >= deadline:
            break  # `next_idx` is not yet the end: the client goes on from there
    return {
        "events": [event_document(e.idx, e.at, e.kind, e.data) for e in found],
        "next_idx": since,
        "head": head,
        "log_id": log_id,
    }


# ------------------------------------------------------------------------------------------- wants


async def list_wants(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the wants there are, the oldest first."""
    states = tuple(given.get("states") or (() if given.get("all") else ACTIVE))

    def act() -> tuple[list[Want], list[str]]:
        found = graph.ledger.fetch_wants(
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
        return graph.ledger.cancel_want(want_id, by=caller.name, why=why)

    return await graph.read(act)


def find_want(graph: Graph, want_id: str) -> Want:
    """Return a want of the environment.

    Raises
    ------
    NotFoundError
        There is none of this id.
    """
    found = graph.ledger.find_want(want_id)
    if found is None or found.environment != graph.settings.environment:
        raise NotFoundError(f"there is no want `{want_id}`", hint=f"GET {PREFIX}/wants?all=true")
    return found


async def evaluate(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Decide what can be built now, and make one request of it."""
    found, request = await graph.evaluate("manual", force=given.get("force", False))
    return evaluation_document(found, request)


async def show_waits(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what a wanted partition waits for, and whether that waits for it."""
    ref, settings = given["partition_ref"], graph.settings
    within_s = given.get("within_ms", WITHIN_S * 1000) / 1000
    search = Search(graph.ledger, settings, time.monotonic() + within_s, os.environ)

    def act() -> dict[str, Any]:
        wants = graph.ledger.fetch_wants(
            settings.environment, states=ACTIVE, refs=[ref], limit=_MOST_VALUES
        )
        missing = dict.fromkeys(needed for want in wants for needed in search.find_missing(want))
        is_meant = given.get("environment", settings.environment) == settings.environment
        way = search.find_way(ref, tuple(given.get("via", ()))) if is_meant else None
        circle = None if way is None else [*way]
        return {"partition_ref": ref, "waits_for": [*missing], "circle": circle}

    return await graph.ask(act)


# ----------------------------------------------------------------------------------- what there is


async def list_partitions(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what is known of partitions, in the order of their references."""
    limit = given.get("limit", MOST)
    found = await graph.read(
        lambda: graph.ledger.fetch_availability(
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
        found = graph.ledger.fetch_requests(
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
        record_late(graph.builder())
        found = graph.ledger.fetch_misses(
            graph.settings.environment, limit=given.get("limit", MOST)
        )
        return [miss_document(miss, graph.clock()) for miss in found]

    return {"misses": await graph.glance(act)}


async def show_plan(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what a build of everything would do now."""

    def act() -> dict[str, Any]:
        builder = graph.builder()
        planned = builder.plan([s.source_id for s in builder.project.persisted])
        return {
            "environment": planned.environment,
            "steps": [
                {
                    "source_id": step.source_id,
                    "asset_key": builder.project.by_id[step.source_id].key,
                    "action": step.action,
                    "build_id": step.build_id,
                    "reasons": [
                        {"code": r.code, "message": r.message, "source_id": r.source_id}
                        for r in step.reasons
                    ],
                }
                for step in planned.steps
            ],
        }

    return await graph.plan(act)


async def show_manifest(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer the environment's manifest, as Malloy writes it."""
    return await graph.read(lambda: fetch_document(graph.settings, graph.ledger))


# -------------------------------------------------------------------------------------- operations


async def show_health(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer whether the ledger does."""
    try:
        async with asyncio.timeout(5):
            await graph.read(graph.ledger.position)
    except (TimeoutError, PersistError):
        raise Refused(503, "ledger-unreachable", "the ledger does not answer") from None
    return {"status": "ok"}


async def show_metrics(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer how much there is of everything, as Prometheus reads it."""
    environment = graph.settings.environment
    counts, position = await graph.read(
        lambda: (graph.ledger.count_states(environment), graph.ledger.position())
    )
    label = json.dumps(environment)
    lines: list[str] = []

    def tell(name: str, kind: str, about: str, values: Mapping[str, float]) -> None:
        lines.extend((f"# HELP persist_{name} {about}", f"# TYPE persist_{name} {kind}"))
        for labels, value in values.items():
            lines.append(f"persist_{name}{{environment={label}{labels}}} {value:.15g}")

    for what, about in (
        ("wants", "Wants by state."),
        ("requests", "Build requests by state."),
        ("misses", "Deadlines that were missed, by whether what was wanted came later."),
    ):
        by_state = {f',state="{state}"': n for state, n in sorted(counts[what].items())}
        tell(what, "gauge", about, by_state)
    tell("events_total", "counter", "Events in the log.", {"": position})
    tell("waiting", "gauge", "Clients that wait for events.", {"": graph.waiting})
    project = await graph.project()
    if project is not None:
        for name, about, values in await graph.read(lambda: _of_sources(graph, project)):
            tell(name, "gauge", about, values)
    seconds = "evaluation_seconds"
    lines += [f"# HELP persist_{seconds} Evaluations of wants by this process, and their time."]
    lines += [f"# TYPE persist_{seconds} summary"]
    lines += [f"persist_{seconds}_sum{{environment={label}}} {graph.evaluation_s:.6f}"]
    lines += [f"persist_{seconds}_count{{environment={label}}} {graph.evaluations}"]
    return PlainTextResponse(
        "\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8"
    )


def _of_sources(graph: Graph, project: Project) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    """Yield the gauges of persisted sources: names, what they are about, values by labels.

    Of those of the project alone: what was once built under other names has none.
    """
    settings, ledger, now = graph.settings, graph.ledger, graph.clock()
    attempts = ledger.fetch_attempts(settings.environment)
    manifest = ledger.fetch_manifest(*settings.environments)
    marks = ledger.fetch_tainted(*settings.environments)
    success, failed, rows, age, late, spoilt = (dict[str, float]() for _ in range(6))
    for source in project.persisted:
        label = f",source={json.dumps(source.key, ensure_ascii=False)}"
        ended = attempts.get(source.source_id, {})
        if "succeeded" in ended:
            success[label] = ended["succeeded"][1].timestamp()
        failed[label] = ended["failed"][0] if "failed" in ended else 0
        snapshot = manifest.get(source.build_id)
        spoilt[label] = len(marks.get(snapshot.build_uid, ())) if snapshot else 0
        if snapshot is not None:
            rows[label] = snapshot.rows
            age[label] = (now - snapshot.known_at).total_seconds()
            if source.annotation.freshness is not None:
                late[label] = max(0.0, age[label] - source.annotation.freshness.window_s)
    yield (
        "source_last_success_timestamp_seconds",
        "When a build of a source last succeeded, or found it up to date.",
        success,
    )
    yield "source_failed_builds", "Builds of a source that failed, as far as is recorded.", failed
    yield "source_rows", "Rows of the table of a source.", rows
    yield "source_age_seconds", "Since when a table is not known to be of the present.", age
    yield "source_late_seconds", "By how much a table is older than its freshness window.", late
    yield "source_tainted", "Tainted partitions of a source; 1 where all of it is.", spoilt


async def show_description(graph: Graph, caller: Caller, given: Mapping[str, Any]) -> Answer:
    """Answer what all this is."""
    return description()


# ----------------------------------------------------------------------------------- the table

_LIMIT = Param("limit", "whole", f"At most so many, {MOST} at most.", most=MOST)
_ID = Param("want_id", "text", "The id of a want.", required=True)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        f"{PREFIX}/events",
        "read",
        "What has happened, in order. Go on from `next_idx`; a page may be empty and not the last.",
        list_events,
        documents.EVENTS,
        (
            Param("since_idx", "whole", "After this position; 0, the default: from the beginning."),
            Param("since", "whole", "The same."),
            Param("log_id", "text", "The log that the position is of, as an answer told it."),
            Param("environment", "text", "Of this one; without: of the served one; `*`: of all."),
            Param("partition_refs", "texts", "Of these partitions, or those of `patterns`."),
            Param("patterns", "patterns", "`*` is anything in one segment, `**` anything."),
            Param("job_labels", "texts", "Of these sources, by SourceID."),
            Param("task_ids", "texts", "Of these builds."),
            Param("build_request_ids", "texts", "Of these build requests."),
            Param("kinds", "texts", "Of these kinds."),
            _LIMIT,
            Param("wait", "whole", "Seconds to wait for the first event.", most=LONGEST_WAIT_S),
        ),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/wants",
        "read",
        "Wants, the oldest first; of a limit the newest.",
        list_wants,
        documents.WANTS,
        (
            Param("states", "state", "In these states; without: those not ended."),
            Param("all", "flag", "In all states."),
            Param("partition_refs", "texts", "Of these partitions."),
            Param("pattern", "pattern", "Of partitions that match."),
            _LIMIT,
        ),
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/wants",
        "write",
        "Ask for a partition. The same `want_id` again is the same want.",
        create_want,
        documents.MADE,
        body=(
            Param("partition_ref", "text", "An asset key, `/`, and a partition's key.", True),
            Param("want_id", "text", "Its id; without, one is made.", most=255),
            Param("data_timestamp", "instant", "The time its data stands for."),
            Param("ttl_seconds", "whole", "After its creation it is given up.", most=LONGEST_S),
            Param(
                "sla_seconds",
                "whole",
                "After `data_timestamp`, or its creation, it is late.",
                most=LONGEST_S,
            ),
            Param("external_dependencies", "texts", "What of other graphs has to be there."),
            Param("comment", "text", "Why it is wanted."),
        ),
        ignored=("created_at", "source"),
        statuses=(201, 200),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/wants/{{want_id}}",
        "read",
        "Everything about a want.",
        show_want,
        documents.WANT,
        (_ID,),
    ),
    Endpoint(
        "DELETE",
        f"{PREFIX}/wants/{{want_id}}",
        "write",
        "Take a want back; what it is built for already is finished.",
        cancel_want,
        documents.WANT,
        (_ID, Param("why", "text", "Kept in the history.")),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/waits",
        "read",
        "What a wanted partition waits for; and the way back, where that waits for it in the end.",
        show_waits,
        documents.WAITS,
        (
            Param("partition_ref", "text", "Of this graph.", True),
            Param("via", "texts", "What the way has passed before: places, as graphs tell them."),
            Param("environment", "text", "A circle counts only of this one."),
            Param("within_ms", "whole", "No longer is looked for a circle.", most=_MOST_MS),
        ),
    ),
    Endpoint(
        "POST",
        f"{PREFIX}/evaluate",
        "write",
        "Decide what can be built now, and make one build request of it.",
        evaluate,
        documents.EVALUATION,
        body=(Param("force", "flag", "Try again at once what has failed."),),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/partitions",
        "read",
        "Which partitions are available, failed or tainted. Go on with `after=next_after`.",
        list_partitions,
        documents.PARTITIONS,
        (
            Param("graph", "text", "Those of another graph; without, of this one."),
            Param("after", "text", "Those after this reference."),
            Param("pattern", "pattern", "Those that match."),
            _LIMIT,
        ),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/requests",
        "read",
        "Build requests, the newest first.",
        list_requests,
        documents.REQUESTS,
        (Param("open", "flag", "Those alone that have not ended."), _LIMIT),
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/sla",
        "read",
        "Deadlines that were missed, by whose fault, and how late it came.",
        list_misses,
        documents.MISSES,
        (_LIMIT,),
    ),
    Endpoint(
        "GET", f"{PREFIX}/plan", "read", "What a build would do now.", show_plan, documents.PLAN
    ),
    Endpoint(
        "GET",
        f"{PREFIX}/manifest",
        "read",
        "The manifest as Malloy has it.",
        show_manifest,
        documents.ANY,
    ),
    Endpoint(
        "GET", f"{PREFIX}/openapi.json", None, "This description.", show_description, documents.ANY
    ),
    Endpoint("GET", "/metrics", "read", "Counts, as Prometheus reads them.", show_metrics, None),
    Endpoint("GET", "/health", None, "Whether it works.", show_health, documents.HEALTH),
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
    schema = dict(_SCHEMAS[param.kind])
    if param is _LIMIT:
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
                raise Refused(401, "unauthorised", "this takes a token that is known here")
            if not caller.may(endpoint.right):
                raise Refused(403, "forbidden", f"the token `{caller.name}` may only read")
        given = parse_query(endpoint, request)
        if endpoint.body is not None:
            given |= await parse_body(endpoint, request)
        done = await endpoint.act(graph, caller or _NOBODY, given)
        return done if isinstance(done, Response) else answer(done, endpoint.statuses[0])

    return serve


_NOBODY: Any = None


def parse_query(endpoint: Endpoint, request: HttpRequest) -> dict[str, Any]:
    """Return the parameters of a request, checked.

    Raises
    ------
    Refused
        Something is wrong with them: all of it.
    """
    known = {p.name: p for p in endpoint.params}
    said: dict[str, list[str]] = {k: [str(v)] for k, v in request.path_params.items()}
    for name, value in request.query_params.multi_items():
        said.setdefault(name, []).append(value)
    wrong: list[tuple[str, str]] = []
    given: dict[str, Any] = {}
    for name, values in said.items():
        param = known.get(name)
        if param is None:
            wrong.append((name[:100], "there is no such parameter"))
        elif param.kind not in ("texts", "patterns", "state") and len(values) > 1:
            wrong.append((name, "it is there more than once"))
        else:
            whole = param.kind in ("texts", "patterns", "state")
            _take(param, values if whole else _read(param, values[0]), given, wrong)
    _require(endpoint.params, given, wrong)
    return given


def _read(param: Param, text: str) -> object:
    """Return what the text of a query stands for; what stands for nothing is left as it is."""
    if param.kind == "whole" and text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    if param.kind == "flag" and text in ("true", "false", "1", "0", ""):
        return text in ("true", "1", "")
    return text


async def parse_body(endpoint: Endpoint, request: HttpRequest) -> dict[str, Any]:
    """Return the keys of a request's JSON document, checked.

    Raises
    ------
    Refused
        It is none, or something is wrong with it: all of it.
    """
    assert endpoint.body is not None
    text = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (text or any(p.required for p in endpoint.body)) and kind != "application/json":
        raise Refused(415, "no-json", "a body is JSON: Content-Type: application/json")
    try:
        said = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "no-json", "the body is no JSON") from None
    if not isinstance(said, dict):
        raise Refused(400, "no-json", "the body is no JSON object")
    known = {p.name: p for p in endpoint.body}
    wrong: list[tuple[str, str]] = []
    given: dict[str, Any] = {}
    for name, value in said.items():
        if name in known:
            if value is not None:
                _take(known[name], value, given, wrong)
        elif name not in endpoint.ignored:
            wrong.append((str(name)[:100], "there is no such key"))
    _require(endpoint.body, given, wrong)
    return given


def _require(
    params: Sequence[Param], given: Mapping[str, Any], wrong: list[tuple[str, str]]
) -> None:
    said = {name for name, _ in wrong}
    wrong += [
        (p.name, "it is missing")
        for p in params
        if p.required and p.name not in given and p.name not in said
    ]
    if wrong:
        detail = "; ".join(f"{name}: {why}" for name, why in wrong[:5])
        raise Refused(422, "invalid", detail, problems=wrong[:50])


def _take(param: Param, value: object, given: dict[str, Any], wrong: list[tuple[str, str]]) -> None:
    """Put a value among those that are given, or why it cannot be among what is wrong."""
    why: str | None = None
    match param.kind:
        case "whole":
            most = _LARGEST if param.most is None else param.most
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                why = f"it is no whole number from 0 to {most}"
            elif param is _LIMIT and value == 0:
                why = "it is at least 1"
        case "flag":
            why = None if isinstance(value, bool) else "it is neither true nor false"
        case "instant":
            value, why = _instant(value)
        case "text" | "pattern":
            why = _text_problem(value, param.most or _LONGEST_TEXT)
        case "texts" | "patterns" | "state":
            if not isinstance(value, list) or len(value) > _MOST_VALUES:
                why = f"it is no list of at most {_MOST_VALUES} texts"
            else:
                why = next((w for v in value if (w := _text_problem(v, _LONGEST_TEXT))), None)
    if why is None and param.kind in ("pattern", "patterns"):
        patterns: Any = [value] if param.kind == "pattern" else value
        if any(p.replace("**", "*").count("*") > _MOST_STARS for p in patterns):
            why = f"a pattern has {_MOST_STARS} stars at most"
    if why is None and param.kind == "state":
        states: Any = value
        unknown = [s for s in states if s not in get_args(WantState)]
        why = f"the states are {', '.join(get_args(WantState))}" if unknown else None
    if why is None:
        given[param.name] = value
    else:
        wrong.append((param.name, why))


def _text_problem(value: object, longest: int) -> str | None:
    if not isinstance(value, str):
        return "it is no text"
    if not value:
        return "it is empty"
    if len(value) > longest:
        return f"it has more than {longest} characters"
    if any((c < " " and c not in "\n\t") or "\ud800" <= c <= "\udfff" for c in value):
        return "it has characters that no text has"
    return None


def _instant(value: object) -> tuple[datetime | None, str | None]:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        if at is not None and at.tzinfo is not None and YEARS[0] <= at.year <= YEARS[1]:
            return at.astimezone(UTC), None
    except (ValueError, OverflowError):
        pass
    return None, "it is no time with its zone, as 2024-01-31T06:00:00Z"
