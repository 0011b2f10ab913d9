"""Requests of the API: one model for the parameters or the body of each endpoint.

The docstrings of fields are their descriptions in OpenAPI.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from persist_assets.core.wants import WantState
from persist_assets.wants.requests import LONGEST_S, YEARS
from persist_assets.web.access import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request as HttpRequest

MOST = 1000
"""The maximum number of results in one answer."""
ALL = "*"
"""Stands for all environments."""
LONGEST_WAIT_S = 30
_LONGEST_TEXT = 2000
_MOST_VALUES = 100
_MOST_STARS = 10
_SHOWN = 50
"""The maximum number of problems listed."""
_WORDS = {
    "extra_forbidden": "unknown name",
    "missing": "it is missing",
    "string_pattern_mismatch": "has invalid characters",
    "string_unicode": "has invalid characters",
}
"""Our messages in place of pydantic's, by type of error."""


def _few_stars(pattern: str) -> str:
    if pattern.replace("**", "*").count("*") > _MOST_STARS:
        raise PydanticCustomError(
            "stars", "a pattern must have at most {most} stars", {"most": _MOST_STARS}
        )
    return pattern


def _whole(value: object) -> object:
    """Convert an integer in a query; leave anything else to pydantic, which refuses it."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18:
        return int(value)
    return value


def _flag(value: object) -> object:
    """Convert a flag in a query; a name without a value sets it."""
    flags = {"true": True, "1": True, "": True, "false": False, "0": False}
    return flags.get(value, value) if isinstance(value, str) else value


def _instant(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        if at is not None and at.tzinfo is not None and YEARS[0] <= at.year <= YEARS[1]:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise PydanticCustomError(
        "instant", "must be a timestamp with a time zone, such as 2024-01-31T06:00:00Z"
    )


Text = Annotated[
    str,
    Field(min_length=1, max_length=_LONGEST_TEXT, pattern=r"^[^\u0000-\u0008\u000b-\u001f]*$"),
]
Texts = Annotated[list[Text], Field(max_length=_MOST_VALUES)]
Pattern = Annotated[Text, AfterValidator(_few_stars)]
Patterns = Annotated[list[Pattern], Field(max_length=_MOST_VALUES)]
States = Annotated[list[WantState], Field(max_length=_MOST_VALUES)]
Position = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_whole)]
Wait = Annotated[int, Field(ge=0, le=LONGEST_WAIT_S), BeforeValidator(_whole)]
Limit = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(_whole)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Instant = Annotated[datetime, BeforeValidator(_instant)]
Seconds = Annotated[int, Field(ge=0, le=LONGEST_S)]
Absent = SkipJsonSchema[None]
"""The absence of a value in a query, which cannot contain null."""


class Input(BaseModel):
    """The permitted values of a request; anything else is refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class Nothing(Input):
    """An endpoint without parameters."""


class EventsQuery(Input):
    """Which events are returned, and from which position."""

    since_idx: Position = 0
    """Only events after this position; 0, the default, starts at the beginning."""
    since: Position = 0
    """An alias of `since_idx`."""
    log_id: Text | Absent = None
    """The log of the position, as returned by an earlier response."""
    trimmed_to: Position | Absent = None
    """Up to where the log was trimmed when the reader began, as returned by an earlier response."""
    environment: Text | Absent = None
    """The environment; default: the served one; `*`: all."""
    partition_refs: Texts = []
    """Only of these partitions, or those matching `patterns`."""
    patterns: Patterns = []
    """`*` matches within one segment, `**` matches anything."""
    job_labels: Texts = []
    """Only of these sources, by SourceID."""
    task_ids: Texts = []
    """Only of these builds."""
    build_request_ids: Texts = []
    """Only of these build requests."""
    kinds: Texts = []
    """Only of these kinds."""
    limit: Limit = MOST
    """The maximum number of results."""
    wait: Wait = 0
    """Seconds to wait for the first event."""


class WantsQuery(Input):
    """Which wants."""

    states: States = []
    """Only in these states; default: those that have not ended."""
    all: Flag = False
    """In all states."""
    partition_refs: Texts = []
    """Only of these partitions."""
    pattern: Pattern | Absent = None
    """Only of matching partitions."""
    limit: Limit = MOST
    """The maximum number of results."""


class WantBody(Input):
    """A want to be created."""

    partition_ref: Text
    """An asset key, `/` and a partition key."""
    want_id: Annotated[Text, Field(max_length=255)] | None = None
    """Its ID; default: a new one."""
    data_timestamp: Instant | None = None
    """The time that its data represents."""
    ttl_seconds: Seconds | None = None
    """Seconds after its creation when it expires."""
    sla_seconds: Seconds | None = None
    """Seconds after `data_timestamp`, or its creation, when it is late."""
    external_dependencies: Texts | None = None
    """Partitions of other graphs that it depends on."""
    comment: Text | None = None
    """Why it is wanted."""
    created_at: Any = None
    """Ignored."""
    source: Any = None
    """Ignored."""


class WantPath(Input):
    """One want."""

    want_id: Text
    """The ID of a want."""


class CancelQuery(WantPath):
    """One want, to be cancelled."""

    why: Text | Absent = None
    """Kept in the history."""


class WaitsQuery(Input):
    """A partition that waits."""

    partition_ref: Text
    """A partition of this graph."""
    environment: Text | Absent = None
    """Empty where the service serves another one."""


class EvaluateBody(Input):
    """How to evaluate."""

    force: bool | None = None
    """Retry failures immediately."""


class PartitionsQuery(Input):
    """Which partitions."""

    graph: Text | Absent = None
    """Partitions of another graph; default: this one."""
    after: Text | Absent = None
    """Only partitions after this reference."""
    pattern: Pattern | Absent = None
    """Only matching partitions."""
    limit: Limit = MOST
    """The maximum number of results."""


class RequestsQuery(Input):
    """Which build requests."""

    open: Flag = False
    """Only those that have not ended."""
    limit: Limit = 100
    """The maximum number of results."""


class MissesQuery(Input):
    """How many missed deadlines."""

    limit: Limit = MOST
    """The maximum number of results."""


Parsed = TypeVar("Parsed", bound=Input)


def parse_query(model: type[Parsed], request: HttpRequest) -> Parsed:
    """Return the parameters of a request's path and query.

    Raises
    ------
    Refused
        Some of them are invalid; the refusal lists all of these.
    """
    texts: dict[str, list[str]] = {k: [str(v)] for k, v in request.path_params.items()}
    for name, value in request.query_params.multi_items():
        texts.setdefault(name, []).append(value)
    lists = {n for n, field in model.model_fields.items() if get_origin(field.annotation) is list}
    repeated = {n for n, values in texts.items() if n not in lists and len(values) > 1}
    values = {n: values if n in lists else values[0] for n, values in texts.items()}
    return _validate(model, values, dict.fromkeys(sorted(repeated), "it occurs more than once"))


async def parse_body(model: type[Parsed], request: HttpRequest) -> Parsed:
    """Return a request's JSON document.

    Raises
    ------
    Refused
        There is none, or some of its keys are invalid; the refusal lists all of these.
    """
    text = await request.body()
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_required = any(field.is_required() for field in model.model_fields.values())
    if (text or has_required) and media != "application/json":
        raise Refused(415, "no-json", "the body must be JSON: Content-Type: application/json")
    try:
        document = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "no-json", "the body is not JSON") from None
    if not isinstance(document, dict):
        raise Refused(400, "no-json", "the body is not a JSON object")
    return _validate(model, document, {})


def _validate(
    model: type[Parsed], values: Mapping[str, object], problems: dict[str, str]
) -> Parsed:
    """Return the model of some values; refuse them if there are `problems` or further ones."""
    parsed: Parsed | None = None
    try:
        parsed = model.model_validate(values)
    except ValidationError as error:
        for row in error.errors(include_url=False, include_context=False, include_input=False):
            # A key that is not valid Unicode has no location.
            name = str(next(iter(row["loc"]), "body"))[:100]
            problems.setdefault(name, _WORDS.get(row["type"], row["msg"]))
    if parsed is None or problems:
        rows = [*problems.items()]
        detail = "; ".join(f"{name}: {why}" for name, why in rows[:5])
        raise Refused(422, "invalid", detail, problems=rows[:_SHOWN])
    return parsed
