"""Builds the sources of a run before their turn, several at once, in one Spark session.

A source is begun as soon as everything that it reads of the run is there. What comes of it is
parked (`Builder.park`) until its own step asks for it, so that every step keeps its own failure,
its retries and its publication. Failures wait for their step too.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from persist_assets.errors import PersistError
from persist_assets.holdings import externals

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping
    from concurrent.futures import Future

    from persist_assets.builder import Builder, Work
    from persist_assets.model import Source, SourceID

MOST = 16
"""How many sources are built at once at most, unless a setting says otherwise."""
_INSIST_S = 0.5
"""How often what is under way is told to end, in seconds."""


class Pool:
    """The sources of one run, in the order in which they become ready.

    Parameters
    ----------
    sources
        What the run builds.
    forced
        Which of them are built even if they are up to date.
    asked
        Which partitions are wanted, of sources of which not all are.
    again
        Between which values of their time columns rows are computed again; see `Builder.build`.
    late
        Which of them may begin only when their step does: they wait for more than sources.
    """

    def __init__(
        self,
        builder: Builder,
        sources: Iterable[Source],
        *,
        forced: Collection[SourceID] = (),
        asked: Mapping[SourceID, Collection[str]] | None = None,
        again: Mapping[SourceID, tuple[str, str]] | None = None,
        late: Collection[SourceID] = (),
    ) -> None:
        self._builder, self._forced, self._late = builder, forced, late
        self._asked, self._again = asked or {}, again or {}
        self._lock = threading.Lock()
        self._begun: dict[SourceID, Future[Work]] = {}
        self._readers: dict[SourceID, list[SourceID]] = {}
        self._missing: dict[SourceID, set[SourceID]] = {}
        self._order({s.source_id for s in sources})
        size = self._size()
        self._threads = ThreadPoolExecutor(size, "build") if size > 1 else None
        with self._lock:
            for source_id, missing in self._missing.items():
                if not missing:
                    self._begin(source_id)

    def _order(self, chosen: set[SourceID]) -> None:
        """Note for every source what it waits for: what it and its checks read of the run.

        However far up.
        Tables that assets of the run may write are among that, and only steps wait for them.
        """
        above: dict[SourceID, set[SourceID]] = {}
        for source in self._builder.project.sources:
            found: set[SourceID] = set()
            for upstream in (*source.bindings, *source.compared):
                whole = upstream in chosen or upstream in self._builder.fed
                found |= {upstream} if whole else above[upstream]
            above[source.source_id] = found
            if source.source_id in chosen:
                self._missing[source.source_id] = set(found)
                for upstream in found:
                    self._readers.setdefault(upstream, []).append(source.source_id)

    def _size(self) -> int:
        """Return how many to build at once; Spark is started only if there is something to build.

        It is started here, in the thread of the first step, where an interrupt finds it.
        """
        builder = self._builder
        for table in externals(builder.project, self._missing):
            with suppress(PersistError):  # it is told where a source that needs it is built
                builder.sync([table.source_id])
        wanted = builder.settings.parallel
        if wanted == 1 or len(self._missing) < 2:
            return 1
        steps = builder.plan(self._missing, asked=self._asked).steps
        if not (self._forced or self._again) and not any(s.action == "build" for s in steps):
            return 1
        return wanted or min(builder.engine.parallelism(), MOST)

    def _begin(self, source_id: SourceID) -> None:
        """Begin a source that waits for nothing any more. The lock is held."""
        if self._threads is not None and source_id not in self._late:
            self._begun[source_id] = self._threads.submit(self._park, source_id)

    def _park(self, source_id: SourceID) -> Work:
        builder = self._builder
        source = builder.project.by_id[source_id]
        force, keys = source_id in self._forced, self._asked.get(source_id)
        work = builder.park(source, force=force, keys=keys, again=self._again.get(source_id))
        self._done(source_id)
        return work

    def _done(self, source_id: SourceID) -> None:
        """Begin the readers of a source that wait for nothing else."""
        with self._lock:
            for reader in self._readers.pop(source_id, ()):
                self._missing[reader].discard(source_id)
                if not self._missing[reader]:
                    self._begin(reader)

    def park(self, source: Source) -> Work:
        """Do everything up to the publication of a source, or wait for it, and leave it parked.

        Raises
        ------
        PersistError
            It failed; that is recorded.
        """
        with self._lock:
            begun = self._begun.pop(source.source_id, None)
        return self._park(source.source_id) if begun is None else begun.result()

    @contextmanager
    def work(self, source: Source, *, force: bool = False) -> Generator[Work]:
        """Do everything up to the publication of a source, or wait for it: see `Builder.work`.

        Raises
        ------
        PersistError
            It failed; that is recorded.
        """
        keys, again = self._asked.get(source.source_id), self._again.get(source.source_id)
        with self._lock:
            begun = self._begun.pop(source.source_id, None)
        if begun is not None:
            with self._builder.resume(begun.result(), force=force, keys=keys, again=again) as work:
                yield work
        else:
            with self._builder.work(source, force=force, keys=keys, again=again) as work:
                yield work
            self._done(source.source_id)

    def close(self) -> None:
        """End what is under way, and forget what nobody asked for."""
        if self._threads is not None:
            with self._lock:
                self._threads.shutdown(wait=False, cancel_futures=True)
                self._threads = None
                going = [begun for begun in self._begun.values() if not begun.cancelled()]
            self._builder.over.set()
            while wait(going, timeout=_INSIST_S).not_done:
                self._builder.engine.interrupt()
        self._builder.abandon()
