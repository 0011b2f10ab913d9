"""Wants of two graphs that wait for each other.

    our wants of `a` lack U:b ─► ask U what `b` waits for ─► its wants of `b` lack ours:a

Graphs know each other by names of their own. So U reports which log and environment it reads under
each name, and a cycle is reported only if they are ours. A partition waits for what *every* want of
it lacks: a partition that another want can satisfy is in no cycle. Longer cycles are not detected.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from persist_assets.core.wants import ACTIVE, split_graph
from persist_assets.wants.http import NoAnswer, ask, token_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.settings.values import Settings, Upstream
    from persist_assets.core.wants import PartitionRef
    from persist_assets.ledger.ledger import Ledger

Cycle = tuple[str, str, str]
"""A partition of ours, the one that it waits for, and ours again, by the other graph's name."""
_MOST = 20
"""The maximum number of partitions to examine, of wants of each, and of needs of each want."""
_WITHIN_S = 5.0
_LEAST_S = 0.05
_SHOWN = 3
_LONGEST_REF = 2_000


def find_cycles(
    ledger: Ledger,
    settings: Settings,
    upstream: Upstream,
    *,
    environ: Mapping[str, str] = os.environ,
) -> list[Cycle]:
    """Return the cycles between this graph and another one, oldest wants first.

    Empty if the other graph is not one of our services, or does not answer in time.
    """
    if upstream.dagster:
        return []
    environment, until = settings.environment, time.monotonic() + _WITHIN_S
    answers: dict[PartitionRef, list[PartitionRef]] = {}
    cycles: list[Cycle] = []
    for ref in ledger.wants.fetch_waiting(environment, upstream.name, limit=_MOST):
        for needed in find_missing(ledger, environment, ref):
            graph, name = split_graph(needed)
            if graph != upstream.name:
                continue
            if name not in answers:
                answers[name] = _ask(ledger, settings, upstream, name, until, environ)
            back = next((r for r in answers[name] if split_graph(r)[1] == ref), None)
            if back is not None:
                cycles.append((ref, needed, back))
    return cycles


def describe_cycles(cycles: Sequence[Cycle]) -> str | None:
    """Return a message that names cycles; None if there are none."""
    shown = sorted(" → ".join(cycle) for cycle in cycles)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"wants wait for each other: {'; '.join(shown[:_SHOWN])}{more}" if shown else None


def find_missing(ledger: Ledger, environment: str, ref: PartitionRef) -> list[PartitionRef]:
    """Return the partitions that a partition waits for: those that every active want of it lacks.

    Empty if the partition is available, or has more wants than are examined.
    """
    if ledger.partitions.fetch_available(environment, refs=[ref]):
        return []  # its readers learn that soon
    wants = ledger.wants.fetch(environment, states=ACTIVE, refs=[ref], limit=_MOST + 1)
    if not wants or len(wants) > _MOST:
        return []
    needs = [want.external_dependencies[:_MOST] for want in wants]
    return [
        needed
        for needed in needs[0]
        if all(needed in refs for refs in needs) and not _is_available(ledger, environment, needed)
    ]


def waits_document(ledger: Ledger, settings: Settings, ref: PartitionRef) -> dict[str, Any]:
    """Return the partitions that a partition waits for as JSON, with the logs of their graphs."""
    environment = settings.environment
    missing = find_missing(ledger, environment, ref)
    names = {split_graph(needed)[0] for needed in missing}
    return {
        "partition_ref": ref,
        "waits_for": missing,
        "graphs": [
            {
                "name": upstream.name,
                "log_id": cursor.get("log_id"),
                "environment": upstream.environment or cursor.get("environment"),
            }
            for upstream in settings.upstreams
            if upstream.name in names
            for cursor in (_cursor(ledger, environment, upstream.name),)
        ],
    }


def _is_available(ledger: Ledger, environment: str, needed: PartitionRef) -> bool:
    graph, name = split_graph(needed)
    return bool(ledger.partitions.fetch_available(environment, graph, refs=[name]))


def _cursor(ledger: Ledger, environment: str, graph: str) -> dict[str, Any]:
    """Return the position up to which another graph was read; empty if it never was."""
    try:
        cursor = json.loads(ledger.upstreams.find_cursor(environment, graph) or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", cursor) if isinstance(cursor, dict) else {}


def _ask(
    ledger: Ledger,
    settings: Settings,
    upstream: Upstream,
    name: PartitionRef,
    until: float,
    environ: Mapping[str, str],
) -> list[PartitionRef]:
    """Return our partitions that another graph's partition waits for, as that graph calls them."""
    left_s = until - time.monotonic()
    if left_s < _LEAST_S:
        return []
    parameters = {"partition_ref": name}
    if upstream.environment is not None:
        parameters["environment"] = upstream.environment
    url = f"{upstream.url}/api/v1/waits?{urlencode(parameters)}"
    try:
        status, answer = ask(url, token_of(upstream, environ), within_s=left_s)
    except NoAnswer:
        return []
    if status != 200 or not isinstance(answer, dict):
        return []
    document = cast("dict[str, Any]", answer)
    names = {
        graph.get("name")
        for graph in _objects(document.get("graphs"))
        if graph.get("log_id") == ledger.events.log_id()
        and graph.get("environment") == settings.environment
        and isinstance(graph.get("name"), str)
    }
    refs = document.get("waits_for")
    return [
        ref
        for ref in (cast("list[Any]", refs) if isinstance(refs, list) else ())
        if isinstance(ref, str)
        and len(ref) <= _LONGEST_REF
        and ref.isprintable()
        and split_graph(ref)[0] in names
    ]


def _objects(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]
