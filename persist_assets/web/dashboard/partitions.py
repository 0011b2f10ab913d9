"""Partitions: the newest of each source, the grid of one source, and a single partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from persist_assets.core.partitions import filled_keys
from persist_assets.core.wants import ref_of
from persist_assets.wants.requests import resolve
from persist_assets.web.dashboard.frame import Paged
from persist_assets.web.dashboard.runs import without_dead

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.web.access import Caller
    from persist_assets.web.dashboard.frame import Frame
    from persist_assets.web.graph import Graph

_CELLS = 62
_SOURCES = 20
_IN_GRID = 366
_BUILDS = 200
_SHOWN = 20


Places = Mapping[str, "str | None"]
"""Partition keys by reference; None: a whole source."""


def find_states(
    graph: Graph, places: Places, order: Sequence[str], snapshot: Snapshot | None
) -> dict[str, str]:
    """Return the state of each partition: ``missing`` if nothing is recorded.

    A partition that is available stays so while it is built again. It is ``stale`` if only an
    earlier definition of the source built it.

    Parameters
    ----------
    order
        All partition keys of the source, in order.
    snapshot
        What readers get of the source's current definition.
    """
    refs = [*places]
    recorded, requested = graph.ledger.partitions.fetch_states(graph.settings.environment, refs)
    for parent in graph.settings.environments[1:]:  # whose tables are read, too
        missing = [ref for ref in refs if ref not in recorded]
        recorded = graph.ledger.partitions.fetch_states(parent, missing)[0] | recorded
    states = {**dict.fromkeys(refs, "missing"), **recorded, **requested}
    earlier = find_earlier(places, order, snapshot)
    available = [ref for ref, state in recorded.items() if state == "available"]
    return states | {ref: _available(ref in earlier, requested.get(ref)) for ref in available}


def _available(is_of_earlier: bool, requested: str | None) -> str:
    return requested or "stale" if is_of_earlier else "available"


def find_earlier(places: Places, order: Sequence[str], snapshot: Snapshot | None) -> set[str]:
    """Return the partitions, or whole sources, that the current definition has not built."""
    if snapshot is None or snapshot.partitions is None:
        return {*places} if snapshot is None else set()
    filled = filled_keys(order, snapshot.partitions.filled)
    return {ref for ref, key in places.items() if key is not None and key not in filled}


async def show_partitions(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the newest partitions of all sources and their states, including missing ones."""
    graph = frame.graph

    def act() -> tuple[Paged, list[tuple[str, list[tuple[str, str, str]], int]]]:
        observer = graph.observer()
        order, manifest = observer.keys(), observer.manifest()
        paged = Paged.of(observer.project.persisted, request, _SOURCES)
        rows: list[tuple[str, list[tuple[str, str, str]], int]] = []
        for source in paged.items:
            keys: Sequence[str | None] = order.get(source.source_id, (None,))
            cells = {ref_of(source.key, key): key for key in keys[-_CELLS:]}
            every = order.get(source.source_id, ())
            states = find_states(graph, cells, every, manifest.get(source.build_id))
            shown = [(ref, key or "all", states[ref]) for ref, key in cells.items()]
            rows.append((source.key, shown, len(keys)))
        return paged, rows

    paged, rows = await graph.glance(act)
    return frame.page(request, caller, "partitions.html", "Partitions", sources=rows, paged=paged)


async def show_partition(frame: Frame, request: Request, caller: Caller) -> Response:
    """Show the grid of a partitioned source, or everything about one partition."""
    graph, ref = frame.graph, request.path_params["ref"]

    def act() -> tuple[str, dict[str, Any]]:
        observer = graph.observer()
        place = resolve(observer, ref)
        keys = observer.keys().get(place.source.source_id)
        snapshot = observer.manifest().get(place.source.build_id)
        if place.key is None and keys is not None:
            return "grid.html", _grid(graph, request, place.source, keys, snapshot)
        return "partition.html", _partition(graph, place.source, place.key, keys or (), snapshot)

    template, values = await graph.glance(act)
    title = values["ref"]
    return frame.page(request, caller, template, title, **values)


def _grid(
    graph: Graph, request: Request, source: Source, keys: Sequence[str], snapshot: Snapshot | None
) -> dict[str, Any]:
    newest_first = Paged.of(keys[::-1], request, _IN_GRID)
    cells = {ref_of(source.key, key): key for key in newest_first.items[::-1]}
    states = find_states(graph, cells, keys, snapshot)
    return {
        "ref": source.key,
        "paged": newest_first,
        "rows": in_rows([(ref, key, states[ref]) for ref, key in cells.items()]),
    }


def in_rows(
    cells: Iterable[tuple[str, str, str]],
) -> Mapping[str, list[tuple[str, str, str]]]:
    """Return cells by what their keys begin with, in order.

    Examples
    --------
    >>> in_rows([("d/2024-01-31", "2024-01-31", "missing"), ("d/x", "x", "failed")])
    {'2024-01': [('d/2024-01-31', '2024-01-31', 'missing')], '': [('d/x', 'x', 'failed')]}
    """
    rows: dict[str, list[tuple[str, str, str]]] = {}
    for ref, key, state in cells:
        rows.setdefault(key.rpartition("-")[0], []).append((ref, key, state))
    return rows


def _partition(
    graph: Graph, source: Source, key: str | None, keys: Sequence[str], snapshot: Snapshot | None
) -> dict[str, Any]:
    ledger, environment = graph.ledger, graph.settings.environment
    ref = ref_of(source.key, key)
    builds = without_dead(
        ledger.builds.fetch(source_id=source.source_id, environment=environment, limit=_BUILDS),
        ledger.runs.fetch_dead(environment),
    )
    wants = ledger.wants.fetch(environment, refs=[ref], limit=_SHOWN)
    return {
        "ref": ref,
        "key": source.key,
        "state": find_states(graph, {ref: key}, keys, snapshot)[ref],
        "builds": [b for b in builds if key is None or has_built(b, key, keys)][:_SHOWN],
        "n_builds": len(builds),
        "wants": wants[::-1],
    }


def has_built(build: Build, key: str, keys: Sequence[str]) -> bool:
    """Whether a build computed the rows of a partition; failed builds do not record which.

    Parameters
    ----------
    keys
        All partitions of the source, in order.
    """
    partitions = build.snapshot.partitions if build.snapshot else None
    if partitions is None or build.action != "built":
        return False
    place = {k: n for n, k in enumerate(keys)}
    return any(
        place[first] <= place.get(key, -1) <= place[last]
        for first, last in partitions.built
        if first in place and last in place
    )
