"""Requests of the API: their parameters and bodies, read and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from starlette.responses import Response

from persist_assets.core.wants import (
    WantState,
)
from persist_assets.wants.requests import YEARS
from persist_assets.web.access import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request as HttpRequest

    from persist_assets.web.access import Caller
    from persist_assets.web.graph import Graph


MOST = 1000
"""So many rows are in one answer at most."""

ALL = "*"
"""The events of this environment are those of all."""

_LONGEST_TEXT = 2000
MOST_VALUES = 100
_MOST_STARS = 10
_LARGEST = 2**53
Kind = Literal["text", "texts", "pattern", "patterns", "whole", "flag", "instant", "state"]

_TEXT = {
    "type": "string",
    "minLength": 1,
    "maxLength": _LONGEST_TEXT,
    "pattern": r"^[^\u0000-\u0008\u000b-\u001f]*$",
}

SCHEMAS: Mapping[Kind, Mapping[str, Any]] = {
    "text": _TEXT,
    "texts": {"type": "array", "items": _TEXT, "maxItems": MOST_VALUES},
    "pattern": _TEXT,
    "patterns": {"type": "array", "items": _TEXT, "maxItems": MOST_VALUES},
    "whole": {"type": "integer", "minimum": 0, "maximum": _LARGEST},
    "flag": {"type": "boolean"},
    "instant": {"type": "string", "format": "date-time"},
    "state": {
        "type": "array",
        "items": {"enum": [*get_args(WantState)]},
        "maxItems": MOST_VALUES,
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


LIMIT = Param("limit", "whole", f"The maximum number of results, at most {MOST}.", most=MOST)
NOBODY: Any = None


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
            wrong.append((name[:100], "unknown parameter"))
        elif param.kind not in ("texts", "patterns", "state") and len(values) > 1:
            wrong.append((name, "it is given more than once"))
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
        raise Refused(415, "no-json", "the body must be JSON: Content-Type: application/json")
    try:
        said = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        raise Refused(400, "no-json", "the body is not JSON") from None
    if not isinstance(said, dict):
        raise Refused(400, "no-json", "the body is not a JSON object")
    known = {p.name: p for p in endpoint.body}
    wrong: list[tuple[str, str]] = []
    given: dict[str, Any] = {}
    for name, value in said.items():
        if name in known:
            if value is not None:
                _take(known[name], value, given, wrong)
        elif name not in endpoint.ignored:
            wrong.append((str(name)[:100], "unknown key"))
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
                why = f"must be an integer from 0 to {most}"
            elif param is LIMIT and value == 0:
                why = "must be at least 1"
        case "flag":
            why = None if isinstance(value, bool) else "must be true or false"
        case "instant":
            value, why = _instant(value)
        case "text" | "pattern":
            why = _text_problem(value, param.most or _LONGEST_TEXT)
        case "texts" | "patterns" | "state":
            if not isinstance(value, list) or len(value) > MOST_VALUES:
                why = f"must be a list of at most {MOST_VALUES} strings"
            else:
                why = next((w for v in value if (w := _text_problem(v, _LONGEST_TEXT))), None)
    if why is None and param.kind in ("pattern", "patterns"):
        patterns: Any = [value] if param.kind == "pattern" else value
        if any(p.replace("**", "*").count("*") > _MOST_STARS for p in patterns):
            why = f"a pattern must have at most {_MOST_STARS} stars"
    if why is None and param.kind == "state":
        states: Any = value
        unknown = [s for s in states if s not in get_args(WantState)]
        why = f"known states: {', '.join(get_args(WantState))}" if unknown else None
    if why is None:
        given[param.name] = value
    else:
        wrong.append((param.name, why))


def _text_problem(value: object, longest: int) -> str | None:
    if not isinstance(value, str):
        return "must be a string"
    if not value:
        return "must not be empty"
    if len(value) > longest:
        return f"must have at most {longest} characters"
    if any((c < " " and c not in "\n\t") or "\ud800" <= c <= "\udfff" for c in value):
        return "has invalid characters"
    return None


def _instant(value: object) -> tuple[datetime | None, str | None]:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        if at is not None and at.tzinfo is not None and YEARS[0] <= at.year <= YEARS[1]:
            return at.astimezone(UTC), None
    except (ValueError, OverflowError):
        pass
    return None, "must be a timestamp with a time zone, such as 2024-01-31T06:00:00Z"
