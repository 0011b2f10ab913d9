"""The partitions of other graphs: read from the last position in each log, and recorded.

    a graph's events, from the cursor ─► the states of partitions ─► one event of our ledger

The ledger stores the cursor, and moves it in the transaction that records the events before it,
and only from its last value. So nothing is missed or recorded twice, whichever process reads or is
killed. A graph whose history was reset is read from its beginning; until it names a partition
again, that partition counts as unavailable.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast
from urllib.parse import urlencode

from persist_assets.core.tracing import spanned
from persist_assets.core.wants import matcher
from persist_assets.wants.cycles import describe_cycles, find_cycles
from persist_assets.wants.http import NoAnswer, ask, object_of, reason_in, token_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from persist_assets.building.observe import Observer
    from persist_assets.core.settings.values import Upstream
    from persist_assets.core.wants import PartitionRef

State = Literal["available", "failed", "tainted"]

_KINDS: Mapping[str, State] = {
    "partition-available": "available",
    "partition-failed": "failed",
    "partition-tainted": "tainted",
}
_PAGE = 1_000
_MOST_PAGES = 100
"""The maximum number of pages read at a time; the next reading continues."""
_FAR = 10_000
"""A cursor that moved without news is stored only after this many events. Otherwise two graphs
that follow each other would make events for each other forever."""
_LONGEST_REF = 2_000


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of reading another graph.

    Attributes
    ----------
    graph
        Its name.
    available
        The partitions that became available.
    problem
        Why it could not be read, or not completely.
    """

    graph: str
    available: tuple[PartitionRef, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of another graph's events.

    Attributes
    ----------
    cursor
        The position of its end.
    states
        The states of partitions.
    moved
        Whether to store the cursor even if nothing else is new.
    reset
        Why the recorded states of all partitions `beneath` are void.
    """

    cursor: Mapping[str, Any]
    states: Mapping[PartitionRef, State]
    moved: bool
    reset: str | None = None
    beneath: PartitionRef = ""


def sync_all(observer: Observer, *, environ: Mapping[str, str] = os.environ) -> list[Synced]:
    """Read every other graph of the settings; problems of a graph are in its result."""
    return [sync(observer, u, environ=environ) for u in observer.settings.upstreams]


@spanned("sync")
def sync(
    observer: Observer, upstream: Upstream, *, environ: Mapping[str, str] = os.environ
) -> Synced:
    """Read the new events of another graph, and record them if there are any.

    Raises
    ------
    LedgerError
        Our ledger cannot be written.
    """
    ledger, environment = observer.ledger, observer.settings.environment
    name = upstream.name
    stored = ledger.upstreams.find_cursor(environment, name)
    recorded = ledger.upstreams.find_problem(environment, name)
    available: dict[PartitionRef, None] = {}
    problem: str | None = None

    def keep(page: _Page, problem: str | None) -> bool:
        nonlocal stored, recorded
        cursor = json.dumps(page.cursor, sort_keys=True)
        states = [{"partition_ref": ref, "state": state} for ref, state in page.states.items()]
        is_recorded = ledger.upstreams.record_synced(
            environment, name, cursor, states, expected=stored, problem=problem
        )
        stored, recorded = cursor, problem
        return is_recorded

    cursor = _cursor(stored)
    try:
        for page in _read(upstream, cursor, environ):
            cursor = page.cursor
            if page.reset is not None:
                problem = page.reset
                refs = ledger.partitions.fetch_available(environment, name)
                page = replace(page, states={r: "tainted" for r in refs if _is_in(r, page)})
            if page.reset or page.states or page.moved or stored is None:
                if not keep(page, problem if page.reset else recorded):
                    return Synced(name, tuple(available), problem)  # another process has read on
                available |= dict.fromkeys(r for r, s in page.states.items() if s == "available")
        cycles = find_cycles(ledger, observer.settings, upstream, environ=environ)
        problem = problem or describe_cycles(cycles)
    except NoAnswer as error:
        problem = str(error)
    if recorded != problem:
        keep(_Page(cursor, {}, moved=False), problem)
    return Synced(name, tuple(available), problem)


def _is_in(ref: PartitionRef, page: _Page) -> bool:
    """Whether a page resets the state of a partition."""
    return not page.beneath or f"{ref}/".startswith(f"{page.beneath}/")


def _cursor(text: str | None) -> dict[str, Any]:
    """Return a stored cursor; anything invalid counts as the beginning."""
    try:
        cursor = json.loads(text or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", cursor) if isinstance(cursor, dict) else {}


def _read(
    upstream: Upstream, cursor: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[_Page]:
    token = token_of(upstream, environ)
    return (_read_dagster if upstream.dagster else _read_service)(upstream, cursor, token)


def began_anew(text: str | None) -> bool:
    """Whether the history before a cursor was reset since it was first read."""
    return bool(_cursor(text).get("began_anew"))


# ----------------------------------------------------------------------------------- our service


def _read_service(
    upstream: Upstream, cursor: Mapping[str, Any], token: str | None
) -> Iterator[_Page]:
    """Yield the pages of a service's events after a cursor; see `persist serve`."""
    idx, log_id, trimmed = (cursor.get(name) for name in ("idx", "log_id", "trimmed_to"))
    at = idx if isinstance(idx, int) else 0
    last, fits = at, [matcher(p) for p in upstream.patterns]
    followed = _followed(upstream)
    for _ in range(_MOST_PAGES):
        status, page = _ask(upstream, at, log_id, trimmed, token)
        new_id = page.get("log_id")
        other = log_id is not None and new_id != log_id
        if status == 409 or other:
            if at == 0 and not other:
                raise NoAnswer("it refuses to return its history from the start")
            why = f"its history was reset: it had been read up to {at}"
            if not other and at < (_trimmed_in(page) or 0):
                why = f"its events after {at} were archived, or lost when its ledger was restored"
            at = last = 0
            log_id, trimmed = new_id, _trimmed_in(page)
            beginning = {"idx": 0, "log_id": log_id, "began_anew": True}
            cursor = beginning
            yield _Page(beginning, {}, moved=True, reset=why)
            continue
        served, why = page.get("environment"), _why_anew(upstream, cursor, page)
        if at and why is not None:
            at, last, trimmed, cursor = 0, 0, None, {"idx": 0, "log_id": log_id, **followed}
            yield _Page(cursor, {}, moved=True, reset=why)
            continue
        log_id, trimmed = new_id, trimmed if at else _trimmed_in(page)
        states, following, head = _events(page, at, upstream, fits)
        served_environment = {"environment": served} if isinstance(served, str) else {}
        begun = {"trimmed_to": trimmed} if trimmed else {}
        other = {"log_id": log_id, **served_environment, **begun, **followed}
        far = following - last >= _FAR or any(cursor.get(k) != v for k, v in other.items())
        moved = bool(states) or far
        cursor = {**cursor, "idx": following, **other}
        if moved:
            last = following
        ended = following == at or (head is not None and following >= head)
        at = following
        yield _Page(cursor, states, moved)
        if ended:
            return


def _followed(upstream: Upstream) -> dict[str, Any]:
    """Return what is followed of a graph, as a part of its cursor."""
    return {"followed": [*upstream.patterns, upstream.environment]}


def _why_anew(upstream: Upstream, cursor: Mapping[str, Any], page: Mapping[str, Any]) -> str | None:
    """Return why what was read up to a cursor is not what is followed now; None: it is."""
    followed = _followed(upstream)["followed"]
    if cursor.get("followed", followed) != followed:
        return "other partitions of it are followed now"
    served, former = page.get("environment"), cursor.get("environment")
    if upstream.environment is None and former and served not in (None, former):
        return f"it serves the environment {served} instead of {former}"
    return None


def _ask(
    upstream: Upstream, at: int, log_id: Any, trimmed: Any, token: str | None
) -> tuple[int, dict[str, Any]]:
    """Return the status of a service's response, 200 or 409, and its document."""
    parameters = {
        "since_idx": at,
        "limit": _PAGE,
        "patterns": upstream.patterns,
        "kinds": [*_KINDS],
        **({"environment": upstream.environment} if upstream.environment else {}),
        **({"log_id": log_id} if log_id else {}),
        **({"trimmed_to": trimmed} if trimmed else {}),
    }
    where = f"{upstream.url}/api/v1/events?{urlencode(parameters, doseq=True)}"
    status, answer = ask(where, token)
    if status not in (200, 409):
        raise NoAnswer(f"it responded with {status}{reason_in(answer)}")
    page = object_of(answer)
    if not isinstance(page.get("log_id"), str | None):
        raise NoAnswer("the `log_id` of its response is not a string")
    return status, page


def _events(
    page: Mapping[str, Any], since: int, upstream: Upstream, fits: list[Any]
) -> tuple[dict[PartitionRef, State], int, int | None]:
    """Return the states of partitions in a page, the position of its end, and the log's end."""
    events, following, head = page.get("events"), page.get("next_idx"), page.get("head")
    if not isinstance(events, list) or not _is_whole(following) or following < since:
        raise NoAnswer("its response is not a page of events")
    if head is not None and not _is_whole(head):
        raise NoAnswer("the `head` of its response is not a position")
    states: dict[PartitionRef, State] = {}
    at = since
    for event in cast("list[Any]", events):
        idx = event.get("idx") if isinstance(event, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not _is_whole(idx) or not at < idx <= following:
            raise NoAnswer(f"its response has events out of order after {since}")
        at = idx
        document = cast("dict[str, Any]", event)
        state, ref = _KINDS.get(str(document.get("kind"))), document.get("partition_ref")
        if state is None:
            continue
        if not isinstance(ref, str) or not 0 < len(ref) <= _LONGEST_REF or "\0" in ref:
            raise NoAnswer(f"its event {idx} does not name a partition")
        environment = upstream.environment
        if (environment is None or document.get("environment") == environment) and any(
            f(ref) for f in fits
        ):
            states.pop(ref, None)
            states[ref] = state
    return states, following, head


def _trimmed_in(page: Mapping[str, Any]) -> int | None:
    """Return up to where a log was trimmed when its reader began; None: it was not."""
    position = page.get("trimmed_to")
    return position if _is_whole(position) and position else None


def _is_whole(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 62


# --------------------------------------------------------------------------------- stock Dagster

_ASSETS = """
query($cursor: String, $limit: Int!) {
  assetsOrError(cursor: $cursor, limit: $limit) {
    __typename
    ... on PythonError { message }
    ... on AssetConnection {
      cursor
      nodes { key { path } latestMaterializationTimestamp }
    }
  }
}"""
_HISTORY = """
query($key: AssetKeyInput!, $cursor: String, $limit: Int!) {
  assetOrError(assetKey: $key) {
    __typename
    ... on Asset {
      assetEventHistory(limit: $limit, eventTypeSelectors: [MATERIALIZATION], cursor: $cursor) {
        cursor
        results { ... on MaterializationEvent { runId timestamp stepKey partition } }
      }
    }
  }
}"""


def _read_dagster(
    upstream: Upstream, cursor: Mapping[str, Any], token: str | None
) -> Iterator[_Page]:
    """Yield the materializations of a Dagster deployment, asset by asset.

    Dagster returns the history of an asset newest first. It is read back to the event that was the
    newest at the last reading; if that is gone, the history was reset.
    """
    flags = {**_followed(upstream), **({"began_anew": True} if cursor.get("began_anew") else {})}
    assets: dict[str, Any] = {**cursor.get("assets", {})}
    if assets and (why := _why_anew(upstream, cursor, {})) is not None:
        assets = {}
        yield _Page({**flags, "assets": {}}, {}, moved=True, reset=why)
    fits = [matcher(p) for p in upstream.patterns]
    every = _dagster_assets(upstream, token)
    latest = {ref: at for ref, at in every if _may_fit(upstream.patterns, ref)}
    states: dict[PartitionRef, State] = {}
    moved = "followed" not in cursor
    for ref in sorted(assets.keys() | latest.keys()):
        at, last = latest.get(ref), assets.get(ref)
        if at == (last and last["at"]):
            continue
        news, whole = list[Materialization](), True
        if ref in latest:
            news, whole = _dagster_history(upstream, token, ref, last and last["end"])
        moved = True
        if last is not None and whole:
            if states:
                yield _Page({**flags, "assets": {**assets}}, states, moved)
                states = {}
            assets.pop(ref)
            flags = {**flags, "began_anew": True}
            why = f"the history of {ref} was reset"
            yield _Page({**flags, "assets": {**assets}}, {}, moved=True, reset=why, beneath=ref)
        if news:
            assets[ref] = {"at": at, "end": news[0]}
        elif not whole:
            assets[ref] = {**assets[ref], "at": at}
        for *_, partition in reversed(news):
            name = ref if partition is None else f"{ref}/{partition}"
            if any(fit(name) for fit in fits):
                states[name] = "available"
        if len(states) >= _PAGE:
            yield _Page({**flags, "assets": {**assets}}, states, moved)
            states, moved = {}, False
    yield _Page({**flags, "assets": {**assets}}, states, moved)


def _may_fit(patterns: tuple[str, ...], ref: PartitionRef) -> bool:
    """Whether a pattern may match an asset, or a partition of it."""
    n = len(ref.split("/"))
    for pattern in patterns:
        parts = pattern.split("/")
        if "**" in pattern or (len(parts) >= n and matcher("/".join(parts[:n]))(ref)):
            return True
    return False


def _dagster_assets(
    upstream: Upstream, token: str | None
) -> Iterator[tuple[PartitionRef, float | None]]:
    """Yield all assets, and when each was last materialized."""
    after: str | None = None
    for _ in range(_MOST_PAGES):
        answer = _query(upstream, token, _ASSETS, {"cursor": after, "limit": _PAGE})
        page = object_of(answer.get("assetsOrError"))
        if page.get("__typename") != "AssetConnection":
            raise NoAnswer(f"it did not list its assets{reason_in(page)}")
        nodes = page.get("nodes")
        try:
            for node in cast("list[Any]", nodes):
                at = node["latestMaterializationTimestamp"]
                yield "/".join(node["key"]["path"]), None if at is None else float(at)
        except (TypeError, KeyError, ValueError):
            raise NoAnswer("its response is not a list of assets") from None
        following = page.get("cursor")
        if not nodes or not isinstance(following, str) or following == after:
            return
        after = following


Materialization = tuple[str, str, str | None, str | None]
"""A materialization: its run, its time, its step and its partition."""


def _dagster_history(
    upstream: Upstream, token: str | None, ref: PartitionRef, until: list[Any] | None
) -> tuple[list[Materialization], bool]:
    """Return an asset's materializations, the newest first, and whether they are complete.

    Parameters
    ----------
    until
        Return only those after this one, if it still exists.
    """
    materializations: list[Materialization] = []
    after: str | None = None
    for _ in range(_MOST_PAGES * _MOST_PAGES):
        variables = {"key": {"path": ref.split("/")}, "cursor": after, "limit": _PAGE}
        page = object_of(_query(upstream, token, _HISTORY, variables).get("assetOrError"))
        history = page.get("assetEventHistory")
        try:
            results, following = cast("Any", history)["results"], cast("Any", history)["cursor"]
            for event in results:
                materialization: Materialization = (
                    str(event["runId"]),
                    str(event["timestamp"]),
                    event["stepKey"],
                    event["partition"],
                )
                if until is not None and [*materialization] == until:
                    return materializations, False
                materializations.append(materialization)
        except (TypeError, KeyError):
            raise NoAnswer(f"its response is not a history of {ref}") from None
        if len(results) < _PAGE or following == after:
            return materializations, True
        after = following
    raise NoAnswer(f"the history of {ref} does not end")


def _query(
    upstream: Upstream, token: str | None, query: str, variables: Mapping[str, Any]
) -> dict[str, Any]:
    content = json.dumps({"query": query, "variables": variables}).encode()
    status, answer = ask(f"{upstream.url}/graphql", token, content)
    if status != 200:
        raise NoAnswer(f"it responded with {status}{reason_in(answer)}")
    document = object_of(answer)
    errors = document.get("errors")
    if errors:
        first = cast("list[Any]", errors)[0] if isinstance(errors, list) else errors
        raise NoAnswer(f"it did not answer the query{reason_in(first)}")
    return object_of(document.get("data"))
