"""Wants of graphs that wait for each other: the way from what is wanted back to itself.

    a want ─► what it lacks of another graph ─► the same question to that graph's service ─► …

Each graph knows its own wants alone, and calls others as its own settings do. So each looks at what
is wanted there, asks those that it follows itself, and tells the way that it found. Whether a way
has come back is told by logs, not by names: along goes which partition of which log it passed.

A partition is in a circle only if none of its wants can be met: each lacks something from which a
way leads back. Who does not answer, or not in time, ends the search; nothing is claimed of what
others than our services know alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from urllib.parse import urlencode

from persist_assets.core.wants import ACTIVE, Want, split_graph
from persist_assets.wants.http import NoAnswer, ask, token_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.settings.values import Settings, Upstream
    from persist_assets.core.wants import PartitionRef
    from persist_assets.ledger.ledger import Ledger

Way = tuple[str, ...]
"""References, each of which waits for the next one."""
HOPS = 8
"""A way passes so many partitions at most."""
WITHIN_S = 5.0
"""So long is looked for circles at once, in seconds."""
_MOST = 20
"""So many wants are looked at, of one partition too, and so much of what each lacks."""
_LEAST_S = 0.05
_SHOWN = 3
_LONGEST_REF = 2_000


def find_circles(
    ledger: Ledger,
    settings: Settings,
    upstream: Upstream,
    *,
    environ: Mapping[str, str] = os.environ,
) -> list[Way]:
    """Return how what is wanted here waits for another graph, and in the end for itself.

    The oldest wants are looked at, some of them, and none where the graph is no service of ours.
    """
    if upstream.dagster:
        return []
    search = Search(ledger, settings, time.monotonic() + WITHIN_S, environ)
    refs = ledger.fetch_waiting(settings.environment, upstream.name, limit=_MOST)
    ways = [way for ref in refs if (way := search.find_way(ref)) is not None]
    return [way for way in ways if split_graph(way[1])[0] == upstream.name]


def tell_circles(circles: Sequence[Way]) -> str | None:
    """Return in words which wants wait for each other, None where none do."""
    told = sorted(" → ".join(way) for way in circles)
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return f"wants wait for each other: {'; '.join(told[:_SHOWN])}{more}" if told else None


@dataclass(frozen=True, slots=True)
class Search:
    """A search for ways back, as far as one graph goes.

    Attributes
    ----------
    until
        When it ends, by `time.monotonic`.
    """

    ledger: Ledger
    settings: Settings
    until: float
    environ: Mapping[str, str]

    def find_way(self, ref: PartitionRef, via: tuple[str, ...] = ()) -> Way | None:
        """Return the way from a partition of this graph back to one that it has passed.

        Parameters
        ----------
        via
            The places that the way has passed before; see `place`.

        Returns
        -------
        way
            Begins with the partition; what is another graph's is called as the one before calls
            it. None where there is none, or none was found.
        """
        here = self.place(ref)
        if here in via:
            return (ref,)
        if len(via) >= HOPS or self._left_s() < _LEAST_S:
            return None
        environment, ways = self.settings.environment, list[Way]()
        if self.ledger.fetch_available(environment, refs=[ref]):
            return None  # who waits for it learns that soon
        wants = self.ledger.fetch_wants(environment, states=ACTIVE, refs=[ref], limit=_MOST + 1)
        if len(wants) > _MOST:
            return None  # it may come by one that was not looked at
        for want in wants:
            all_ways = (self._follow(needed, (*via, here)) for needed in self.find_missing(want))
            way = next((way for way in all_ways if way is not None), None)
            if way is None:
                return None  # it may come by this want
            ways.append(way)
        return (ref, *ways[0]) if ways else None

    def find_missing(self, want: Want) -> list[PartitionRef]:
        """Return what a want waits for, of this graph and of others."""
        missing: list[PartitionRef] = []
        for needed in want.external_dependencies[:_MOST]:
            graph, name = split_graph(needed)
            if not self.ledger.fetch_available(self.settings.environment, graph, refs=[name]):
                missing.append(needed)
        return missing

    def place(self, ref: PartitionRef) -> str:
        """Return what tells a partition of this graph from any other graph's."""
        told = f"{self.ledger.log_id()} {self.settings.environment} {ref}"
        return sha256(told.encode(errors="replace")).hexdigest()[:32]

    def _follow(self, needed: PartitionRef, via: tuple[str, ...]) -> Way | None:
        graph, name = split_graph(needed)
        if not graph:
            return self.find_way(name, via)
        upstream = next((u for u in self.settings.upstreams if u.name == graph), None)
        left_s = self._left_s()
        if upstream is None or upstream.dagster or left_s < _LEAST_S:
            return None
        asked: dict[str, Any] = {"partition_ref": name, "via": via}
        asked["within_ms"] = int(left_s * 900)  # what is left is for the way back
        if upstream.environment is not None:
            asked["environment"] = upstream.environment
        where = f"{upstream.url}/api/v1/waits?{urlencode(asked, doseq=True)}"
        try:
            status, answer = ask(where, token_of(upstream, self.environ), within_s=left_s)
        except NoAnswer:
            return None
        way = cast("dict[str, Any]", answer).get("circle") if isinstance(answer, dict) else None
        return (needed, *way[1:]) if status == 200 and _is_way(way, name) else None

    def _left_s(self) -> float:
        return self.until - time.monotonic()


def _is_way(way: Any, first: PartitionRef) -> TypeGuard[list[PartitionRef]]:
    """Whether what was answered is a way that begins where it was asked for."""
    return (
        isinstance(way, list)
        and 0 < len(cast("list[Any]", way)) <= HOPS + 1
        and way[0] == first
        and all(
            isinstance(ref, str) and len(ref) <= _LONGEST_REF and ref.isprintable()
            for ref in cast("list[Any]", way)
        )
    )
