"""What other graphs have: read from where each was left, and recorded.

    a graph's events, from the cursor ─► what they say of partitions ─► one event of our ledger

The cursor is in the ledger and moves in the transaction that records what was read up to it, and
only from where it was: nothing is missed or recorded twice, whoever reads and whatever is killed.
A graph whose history began anew is read from its beginning; until it tells of a partition again,
that counts as not there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, cast
from urllib.parse import urlencode

from persist_assets.core.wants import matcher
from persist_assets.wants.cycles import describe_cycles, find_cycles
from persist_assets.wants.http import NoAnswer, ask, object_of, said_in, token_of

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
"""So many pages are read at once; the next time goes on."""
_FAR = 10_000
"""A cursor that moved without news is kept once it is so far on: of two graphs that follow each
other, each would else be news for the other."""
_LONGEST_REF = 2_000


@dataclass(frozen=True, slots=True)
class Synced:
    """What came of reading another graph.

    Attributes
    ----------
    graph
        Its name.
    available
        What became available.
    problem
        What is wrong with it.
    """

    graph: str
    available: tuple[PartitionRef, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    """What was read at once.

    Attributes
    ----------
    cursor
        Up to where it goes.
    told
        How partitions are by now.
    moved
        The cursor is to be kept, even if nothing else is new.
    reset
        Why what was known before is not so any more, of all partitions that are `beneath`.
    """

    cursor: Mapping[str, Any]
    told: Mapping[PartitionRef, State]
    moved: bool
    reset: str | None = None
    beneath: PartitionRef = ""


def sync_all(observer: Observer, *, environ: Mapping[str, str] = os.environ) -> list[Synced]:
    """Read every other graph of the settings; never raises for what one of them does."""
    return [sync(observer, u, environ=environ) for u in observer.settings.upstreams]


def sync(
    observer: Observer, upstream: Upstream, *, environ: Mapping[str, str] = os.environ
) -> Synced:
    """Read what another graph has told since it was read last, and record it.

    Where nothing is new nothing is recorded.

    Raises
    ------
    LedgerError
        Ours cannot be written.
    """
    ledger, environment = observer.ledger, observer.settings.environment
    name = upstream.name
    kept = ledger.upstreams.find_cursor(environment, name)
    known = ledger.upstreams.find_problem(environment, name)
    available: dict[PartitionRef, None] = {}
    problem: str | None = None

    def keep(page: _Page, problem: str | None) -> bool:
        nonlocal kept, known
        cursor = json.dumps(page.cursor, sort_keys=True)
        told = [{"partition_ref": ref, "state": state} for ref, state in page.told.items()]
        fits = ledger.upstreams.record_synced(
            environment, name, cursor, told, expected=kept, problem=problem
        )
        kept, known = cursor, problem
        return fits

    cursor = _cursor(kept)
    try:
        for page in _read(upstream, cursor, environ):
            cursor = page.cursor
            if page.reset is not None:
                problem = page.reset
                known_there = ledger.partitions.fetch_available(environment, name)
                page = replace(page, told={r: "tainted" for r in known_there if _is_in(r, page)})
            if page.reset or page.told or page.moved or kept is None:
                if not keep(page, problem if page.reset else known):
                    return Synced(name, tuple(available), problem)  # somebody else has read on
                available |= dict.fromkeys(r for r, s in page.told.items() if s == "available")
        cycles = find_cycles(ledger, observer.settings, upstream, environ=environ)
        problem = problem or describe_cycles(cycles)
    except NoAnswer as error:
        problem = str(error)
    if known != problem:
        keep(_Page(cursor, {}, moved=False), problem)
    return Synced(name, tuple(available), problem)


def _is_in(ref: PartitionRef, page: _Page) -> bool:
    """Whether a partition is of those that a page says are not known any more."""
    return not page.beneath or f"{ref}/".startswith(f"{page.beneath}/")


def _cursor(kept: str | None) -> dict[str, Any]:
    """Return a cursor that was kept; whatever is no cursor is the beginning."""
    try:
        found = json.loads(kept or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _read(
    upstream: Upstream, cursor: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[_Page]:
    token = token_of(upstream, environ)
    return (_read_dagster if upstream.dagster else _read_service)(upstream, cursor, token)


def began_anew(kept: str | None) -> bool:
    """Whether the history up to a cursor began anew since it was first read."""
    return bool(_cursor(kept).get("began_anew"))


# ----------------------------------------------------------------------------------- our service


def _read_service(
    upstream: Upstream, cursor: Mapping[str, Any], token: str | None
) -> Iterator[_Page]:
    """Yield the pages of a graph's events, after a cursor; see `persist serve`."""
    idx, log_id = cursor.get("idx"), cursor.get("log_id")
    at = idx if isinstance(idx, int) else 0
    last, fits = at, [matcher(p) for p in upstream.patterns]
    for _ in range(_MOST_PAGES):
        asked = {
            "since_idx": at,
            "limit": _PAGE,
            "patterns": upstream.patterns,
            "kinds": [*_KINDS],
            **({"environment": upstream.environment} if upstream.environment else {}),
            **({"log_id": log_id} if log_id else {}),
        }
        where = f"{upstream.url}/api/v1/events?{urlencode(asked, doseq=True)}"
        status, answer = ask(where, token)
        if status not in (200, 409):
            raise NoAnswer(f"it responded with {status}{said_in(answer)}")
        page = object_of(answer)
        new_id = page.get("log_id")
        if new_id is not None and not isinstance(new_id, str):
            raise NoAnswer("the `log_id` of its response is not a string")
        other = log_id is not None and new_id != log_id
        if status == 409 or other:
            if at == 0 and not other:
                raise NoAnswer("it refuses to return its history from the start")
            why = f"its history was reset: it had been read up to {at}"
            at = last = 0
            log_id = new_id
            begun = {"idx": 0, "log_id": log_id, "began_anew": True}
            cursor = begun
            yield _Page(begun, {}, moved=True, reset=why)
            continue
        log_id = new_id
        told, following, head = _events(page, at, upstream, fits)
        served = page.get("environment")
        whose = {"environment": served} if isinstance(served, str) else {}
        other = {"log_id": log_id, **whose}
        far = following - last >= _FAR or any(cursor.get(k) != v for k, v in other.items())
        moved = bool(told) or far
        cursor = {**cursor, "idx": following, **other}
        if moved:
            last = following
        ended = following == at or (head is not None and following >= head)
        at = following
        yield _Page(cursor, told, moved)
        if ended:
            return


def _events(
    page: Mapping[str, Any], since: int, upstream: Upstream, fits: list[Any]
) -> tuple[dict[PartitionRef, State], int, int | None]:
    """Return what a page says of partitions, up to where it goes, and where the log ends."""
    events, following, head = page.get("events"), page.get("next_idx"), page.get("head")
    if not isinstance(events, list) or not _is_whole(following) or following < since:
        raise NoAnswer("its response is not a page of events")
    if head is not None and not _is_whole(head):
        raise NoAnswer("the `head` of its response is not a position")
    told: dict[PartitionRef, State] = {}
    at = since
    for event in cast("list[Any]", events):
        idx = event.get("idx") if isinstance(event, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if not _is_whole(idx) or not at < idx <= following:
            raise NoAnswer(f"its response has events out of order after {since}")
        at = idx
        said = cast("dict[str, Any]", event)
        state, ref = _KINDS.get(str(said.get("kind"))), said.get("partition_ref")
        if state is None:
            continue
        if not isinstance(ref, str) or not 0 < len(ref) <= _LONGEST_REF or "\0" in ref:
            raise NoAnswer(f"its event {idx} does not name a partition")
        whose = upstream.environment
        if (whose is None or said.get("environment") == whose) and any(f(ref) for f in fits):
            told.pop(ref, None)
            told[ref] = state
    return told, following, head


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
    """Yield what was materialized in a Dagster deployment, asset by asset.

    Dagster tells the history of an asset from its end. It is followed back to what was the end
    when it was read last; where that is not there any more, the history began anew.
    """
    known: dict[str, Any] = {**cursor.get("assets", {})}
    begun = {"began_anew": True} if cursor.get("began_anew") else {}
    fits = [matcher(p) for p in upstream.patterns]
    every = _dagster_assets(upstream, token)
    there = {ref: at for ref, at in every if _may_fit(upstream.patterns, ref)}
    told: dict[PartitionRef, State] = {}
    moved = False
    for ref in sorted(known.keys() | there.keys()):
        at, last = there.get(ref), known.get(ref)
        if at == (last and last["at"]):
            continue
        found, whole = list[Told](), True
        if ref in there:
            found, whole = _dagster_history(upstream, token, ref, last and last["end"])
        moved = True
        if last is not None and whole:
            if told:
                yield _Page({**begun, "assets": {**known}}, told, moved)
                told = {}
            known.pop(ref)
            begun = {"began_anew": True}
            why = f"the history of {ref} was reset"
            yield _Page({**begun, "assets": {**known}}, {}, moved=True, reset=why, beneath=ref)
        if found:
            known[ref] = {"at": at, "end": found[0]}
        elif not whole:
            known[ref] = {**known[ref], "at": at}
        for *_, partition in reversed(found):
            name = ref if partition is None else f"{ref}/{partition}"
            if any(fit(name) for fit in fits):
                told[name] = "available"
        if len(told) >= _PAGE:
            yield _Page({**begun, "assets": {**known}}, told, moved)
            told, moved = {}, False
    yield _Page({**begun, "assets": {**known}}, told, moved)


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
    """Yield the assets there are, and when each was materialized last."""
    after: str | None = None
    for _ in range(_MOST_PAGES):
        answer = _query(upstream, token, _ASSETS, {"cursor": after, "limit": _PAGE})
        page = object_of(answer.get("assetsOrError"))
        if page.get("__typename") != "AssetConnection":
            raise NoAnswer(f"it did not list its assets{said_in(page)}")
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


Told = tuple[str, str, str | None, str | None]
"""A materialization: its run, its time, its step and its partition."""


def _dagster_history(
    upstream: Upstream, token: str | None, ref: PartitionRef, until: list[Any] | None
) -> tuple[list[Told], bool]:
    """Return an asset's materializations, the newest first, and whether these are all of them.

    Parameters
    ----------
    until
        Only those after this one, if it is there.
    """
    found: list[Told] = []
    after: str | None = None
    for _ in range(_MOST_PAGES * _MOST_PAGES):
        asked = {"key": {"path": ref.split("/")}, "cursor": after, "limit": _PAGE}
        page = object_of(_query(upstream, token, _HISTORY, asked).get("assetOrError"))
        history = page.get("assetEventHistory")
        try:
            results, following = cast("Any", history)["results"], cast("Any", history)["cursor"]
            for event in results:
                told: Told = (
                    str(event["runId"]),
                    str(event["timestamp"]),
                    event["stepKey"],
                    event["partition"],
                )
                if until is not None and [*told] == until:
                    return found, False
                found.append(told)
        except (TypeError, KeyError):
            raise NoAnswer(f"its response is not a history of {ref}") from None
        if len(results) < _PAGE or following == after:
            return found, True
        after = following
    raise NoAnswer(f"the history of {ref} does not end")


def _query(
    upstream: Upstream, token: str | None, query: str, variables: Mapping[str, Any]
) -> dict[str, Any]:
    given = json.dumps({"query": query, "variables": variables}).encode()
    status, answer = ask(f"{upstream.url}/graphql", token, given)
    if status != 200:
        raise NoAnswer(f"it responded with {status}{said_in(answer)}")
    found = object_of(answer)
    errors = found.get("errors")
    if errors:
        first = cast("list[Any]", errors)[0] if isinstance(errors, list) else errors
        raise NoAnswer(f"it did not answer the query{said_in(first)}")
    return object_of(found.get("data"))
