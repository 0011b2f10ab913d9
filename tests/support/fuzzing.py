"""Requests made of the service's own description, and what has to be true of every answer.

Some fit what is described, some nearly do, some are anything. Whether one fits is asked of the
description too, so that it and what is answered cannot differ.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from serving import FUZZ, READ

from persist_assets.wants.requests import YEARS
from persist_assets.web.api import description

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

TOLD = description()
PROBLEM = TOLD["components"]["responses"]["problem"]["content"]["application/problem+json"]
REFS = ("m/total", "m/daily", "m/daily/2024-01-02", "m/daily/2024-02-30", "data/**")
LATE_REFUSALS = (401, 403, 404, 409)
"""What is answered to requests that fit: no right, no such thing, or another state of things."""

_dates = FormatChecker([])


@_dates.checks("date-time")
def _is_instant(value: object) -> bool:
    if not isinstance(value, str):
        return True
    try:
        at = datetime.fromisoformat(value)
        return (
            at.tzinfo is not None and YEARS[0] <= at.year <= YEARS[1] and bool(at.astimezone(UTC))
        )
    except (ValueError, OverflowError):
        return False


@dataclass(frozen=True)
class Asked:
    """A request, of the endpoint of a path and method that may be none."""

    method: str
    template: str
    path: str
    params: tuple[tuple[str, str], ...]
    fits: bool
    body: Any
    content: bytes | None
    token: str | None


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value is what a schema describes; texts that no UTF-8 has never are."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return Draft202012Validator(schema, format_checker=_dates).is_valid(value)


def check(value: Any, schema: Mapping[str, Any]) -> None:
    """Assert that a value is what a schema of the description describes."""
    schema = {**schema, "components": TOLD["components"]}
    Draft202012Validator(schema, format_checker=_dates).validate(value)


_texts = st.sampled_from(REFS) | st.text(
    st.characters(min_codepoint=32, codec="utf-8"), min_size=1, max_size=20
)
_instants = st.datetimes(datetime(1900, 1, 2), datetime(2999, 12, 30)).map(
    lambda at: f"{at.isoformat()}Z"
)
_odd = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=30)
    | st.floats().filter(lambda x: not x.is_integer())
    | st.sampled_from(["", "\0", "%", "1e9", "٣", "*" * 12, "x" * 2001, "true", "-1", 2**53, 2**53 + 1, 10**400, "2024-01-01", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-10:00", "\ud800", {}, [[]]])
    | st.lists(st.text(max_size=9), max_size=3)
)  # fmt: skip


def described(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a schema describes."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of([described(one) for one in schema["anyOf"]])
    match schema.get("type"):
        case "null":
            return st.none()
        case "string":
            return _instants if schema.get("format") == "date-time" else _texts
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            return st.sampled_from([low, high]) | st.integers(low, min(high, low + 100))
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(described(schema["items"]), max_size=3)
    return _odd


def _spelled(value: Any) -> list[str]:
    """Return how a query says a value."""
    if isinstance(value, list):
        return [text for one in value for text in _spelled(one)]
    text = json.dumps(value) if isinstance(value, bool | dict | None) else str(value)
    return [text.encode(errors="replace").decode()]


def body_of(content: bytes) -> Any:
    """Return the document of a body, one that fits nothing where it is none."""
    try:
        return json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return "\ud800"


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    """Return requests: to each endpoint, with tokens and without."""
    template = draw(st.sampled_from([*TOLD["paths"]]))
    rows = TOLD["paths"][template]
    method = draw(st.sampled_from([*map(str.upper, rows)] * 12 + ["PUT", "PATCH", "POST"]))
    row = rows.get(method.lower(), next(iter(rows.values())))
    is_odd = draw(st.booleans())
    path, pairs, all_fit = template, list[tuple[str, str]](), True
    given: dict[str, Any] = {}
    for param in row["parameters"]:
        name, schema = param["name"], param["schema"]
        if not param["required"] and draw(st.integers(0, 2)) != 0:
            continue
        value = draw(_odd if is_odd and draw(st.booleans()) else described(schema))
        if name == "wait":
            value = draw(st.sampled_from([0, 1, 31, "x"] if is_odd else [0, 1]))
        if param["in"] == "path":
            text = (_spelled(value) or ["x"])[0]
            if text in ("", ".", ".."):
                text = "x"
            path = path.replace(f"{{{name}}}", quote(text, safe=""))
            all_fit &= fits(text, schema)
        elif param["required"] or value != []:
            given[name] = value
            all_fit &= fits(value, schema)
            pairs += [(name, text) for text in _spelled(value)]
    if is_odd and draw(st.integers(0, 3)) == 0:
        pairs.append((draw(st.sampled_from(["x", "limit", "want_id"])), "1"))
        all_fit = False
    all_fit &= not {"since", "since_idx"} <= given.keys()
    body: Any = None
    content: bytes | None = None
    if "requestBody" in row and method.lower() in rows:
        schema = row["requestBody"]["content"]["application/json"]["schema"]
        body = {
            name: draw(_odd if is_odd and draw(st.integers(0, 3)) == 0 else described(of))
            for name, of in schema["properties"].items()
            if name in schema.get("required", ()) or draw(st.integers(0, 2)) == 0
        }
        if "external_dependencies" in body and not is_odd:
            body["external_dependencies"] = draw(st.none() | st.just(["users:data/users"]))
        if is_odd and draw(st.integers(0, 5)) == 0:
            body = draw(_odd)
        content = json.dumps(body).encode()
        if is_odd and draw(st.integers(0, 7)) == 0:
            content = draw(st.binary(max_size=20))
            body = body_of(content)
    token = draw(st.sampled_from([FUZZ] * 6 + [READ, None, "nobody-s-token-0123456789"]))
    return Asked(method, template, path, tuple(pairs), all_fit, body, content, token)


def judge(client: httpx.Client, request: Asked) -> int:
    """Send a request, assert what has to be true of its answer, and return the answer's status."""
    headers = {} if request.token is None else {"Authorization": f"Bearer {request.token}"}
    if request.content is not None:
        headers["Content-Type"] = "application/json"
    while True:
        answer = client.request(
            request.method,
            request.path,
            params=request.params,
            content=request.content,
            headers=headers,
        )
        if answer.status_code != 429:
            break
        threading.Event().wait(0.5)
    status, kind = answer.status_code, answer.headers["content-type"].partition(";")[0]
    assert status < 500, answer.text
    if status >= 400:
        assert kind == "application/problem+json"
        check(answer.json(), PROBLEM["schema"])
        assert answer.json()["status"] == status
    row = TOLD["paths"][request.template].get(request.method.lower())
    if row is None:
        assert status == 405
        return status
    if row["security"] and request.token not in (FUZZ, READ):
        assert status == 401
        return status
    may_fail = request.token == READ and (request.method != "GET")
    assert (status == 403) is may_fail, answer.text
    if may_fail:
        return status
    is_fit = request.fits
    if "requestBody" in row:
        schema = row["requestBody"]["content"]["application/json"]["schema"]
        is_body_fit = fits(request.body, schema)
        assert is_body_fit or status >= 400, answer.text
        is_fit &= is_body_fit and _names_graphs(request.body)
    if is_fit:
        assert status < 400 or status in LATE_REFUSALS, answer.text
    if status < 400:
        (content,) = row["responses"][str(status)]["content"].items()
        assert kind == content[0]
        if kind == "application/json":
            check(answer.json(), content[1]["schema"])
    return status


def _names_graphs(body: Mapping[str, Any]) -> bool:
    needs = body.get("external_dependencies") or []
    return all(":" in need.partition("/")[0].strip(":") for need in needs)
