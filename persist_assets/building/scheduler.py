"""Builds the sources of a run ahead of their steps, several at once, in one Spark session.

A source starts as soon as everything that it reads is built. Its result is parked (`Builder.park`)
until its own step asks for it, so that each step keeps its own failure, retries and publication.
Failures wait for their step too.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from persist_assets.core.errors import PersistError
from persist_assets.external.status import externals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping

    from persist_assets.building.builder import Builder
    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source

MOST = 16
"""The default maximum number of sources built at once."""
_INSIST_S = 0.5
"""The interval between attempts to end running builds, in seconds."""
_PATIENCE_S = 10.0
"""The maximum time for builds to end when their run ends, in seconds."""


class _Threads:
    """Threads that build sources; unlike those of an executor, they do not keep the process alive.

    A function that hangs cannot be stopped from outside, only abandoned.
    """

    def __init__(self, size: int) -> None:
        self._calls: SimpleQueue[tuple[Future[PendingBuild], Callable[[], PendingBuild]] | None] = (
            SimpleQueue()
        )
        self._unfinished: set[Future[PendingBuild]] = set()
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"build_{n}") for n in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], PendingBuild]) -> Future[PendingBuild]:
        """Call a function as soon as a thread is free."""
        future: Future[PendingBuild] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        self._calls.put((future, call))
        return future

    def _run(self) -> None:
        while (task := self._calls.get()) is not None:
            future, call = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del task, future, call  # not kept while it waits for the next one

    def close(self) -> list[Future[PendingBuild]]:
        """End idle threads, cancel builds that have not started, and return the running ones."""
        for _ in self._threads:
            self._calls.put(None)
        return [future for future in tuple(self._unfinished) if not future.cancel()]

    def join(self) -> None:
        """Wait until all threads have ended; all calls have."""
        for thread in self._threads:
            thread.join()


class Pool:
    """The sources of one run, in the order in which they become ready.

    Parameters
    ----------
    sources
        What the run builds.
    forced
        Those that are built even if they are up to date.
    partition_keys
        The partitions to build, of sources that do not build all of theirs.
    recompute_spans
        The values of time columns whose rows are computed again; see `Builder.build`.
    late
        Sources that start only with their step, because they wait for more than sources.
    """

    def __init__(
        self,
        builder: Builder,
        sources: Iterable[Source],
        *,
        forced: Collection[SourceID] = (),
        partition_keys: Mapping[SourceID, Collection[str]] | None = None,
        recompute_spans: Mapping[SourceID, tuple[str, str]] | None = None,
        late: Collection[SourceID] = (),
    ) -> None:
        self._builder, self._forced, self._late = builder, forced, late
        self._partition_keys, self._recompute_spans = partition_keys or {}, recompute_spans or {}
        self._lock = threading.Lock()
        self._begun: dict[SourceID, Future[PendingBuild]] = {}
        self._in_steps: set[SourceID] = set()
        self._readers: dict[SourceID, list[SourceID]] = {}
        self._missing: dict[SourceID, set[SourceID]] = {}
        self._order({s.source_id for s in sources})
        self._upstreams = {s: tuple(missing) for s, missing in self._missing.items()}
        builder.progress.activity = builder.engine.activity
        size = self._size()
        self._threads = _Threads(size) if size > 1 else None
        with self._lock:
            for source_id, missing in self._missing.items():
                if not missing:
                    self._begin(source_id)

    def _order(self, chosen: set[SourceID]) -> None:
        """Record what every source waits for: the inputs, however far up, of it and its checks.

        They include tables that assets of the run may write; only steps wait for those.
        """
        above: dict[SourceID, set[SourceID]] = {}
        for source in self._builder.project.sources:
            upstreams: set[SourceID] = set()
            for upstream in (*source.bindings, *source.compared):
                whole = upstream in chosen or upstream in self._builder.observer.pins.fed
                upstreams |= {upstream} if whole else above[upstream]
            above[source.source_id] = upstreams
            if source.source_id in chosen:
                self._missing[source.source_id] = set(upstreams)
                for upstream in upstreams:
                    self._readers.setdefault(upstream, []).append(source.source_id)

    def _size(self) -> int:
        """Return how many to build at once; Spark is started only if there is something to build.

        It is started here, in the thread of the first step, where an interrupt finds it.
        """
        builder = self._builder
        for table in externals(builder.project, self._missing):
            with suppress(PersistError):  # it is told where a source that needs it is built
                builder.observer.pins.sync([table.source_id])
        parallel = builder.settings.parallel
        if parallel == 1 or len(self._missing) < 2:
            self._expect((), 1)
            return 1
        steps = builder.plan(self._missing, partition_keys=self._partition_keys).steps
        reused = [s.source_id for s in steps if s.action == "reuse"]
        is_all = not (self._forced or self._recompute_spans) and len(reused) == len(steps)
        size = 1 if is_all else parallel or min(builder.engine.parallelism(), MOST)
        self._expect({*reused} - {*self._forced} - self._recompute_spans.keys(), size)
        return size

    def _expect(self, up_to_date: Collection[SourceID], size: int) -> None:
        """Record the sources of the run, and how to fetch the costs of their earlier builds."""
        fetch = partial(self._builder.ledger.builds.fetch_costs_of_sources, [*self._upstreams])
        self._builder.progress.expect(self._upstreams, up_to_date, size, fetch)

    def _begin(self, source_id: SourceID) -> None:
        """Start a source that waits for nothing any more. The lock is held."""
        if self._threads is not None and not self._is_for_step(source_id):
            self._begun[source_id] = self._threads.submit(partial(self._park, source_id))

    def _is_for_step(self, source_id: SourceID) -> bool:
        """Whether only the step of a source may build it, or its step does so already."""
        return source_id in self._late or source_id in self._in_steps

    def _take(self, source_id: SourceID) -> Future[PendingBuild] | None:
        """Return the build of a source that has started; None: its step has to build it.

        Dagster ignores dependencies through sources that are not selected, so it may call the step
        of a source before the steps of its ancestors. Ancestors are built first here too, except
        those that wait for their own steps.
        """
        with self._lock:
            above = self._unfinished(source_id)
        if self._threads is None:
            for ancestor in above:
                ready = not self._missing[ancestor] and ancestor not in self._begun
                if ready and not self._is_for_step(ancestor):
                    self._begun[ancestor] = self._attempt(ancestor)
        while True:
            with self._lock:
                if source_id in self._begun:
                    return self._begun.pop(source_id)
                futures = (self._begun.get(ancestor) for ancestor in above)
                running = [future for future in futures if future and not future.done()]
                if not running:
                    self._in_steps.add(source_id)
                    return None
            wait(running, return_when=FIRST_COMPLETED)

    def _unfinished(self, source_id: SourceID) -> list[SourceID]:
        """Return the ancestors of a source that are not built yet, in dependency order."""
        unfinished: set[SourceID] = set()
        stack = [*self._missing.get(source_id, ())]
        while stack:
            ancestor = stack.pop()
            if ancestor not in unfinished:
                unfinished.add(ancestor)
                stack += self._missing.get(ancestor, ())
        return [s for s in self._missing if s in unfinished]

    def _attempt(self, source_id: SourceID) -> Future[PendingBuild]:
        """Build a source in this thread; its step gets the result, or the error."""
        future: Future[PendingBuild] = Future()
        try:
            future.set_result(self._park(source_id))
        except Exception as error:
            future.set_exception(error)
        return future

    def _park(self, source_id: SourceID) -> PendingBuild:
        builder = self._builder
        source = builder.project.by_id[source_id]
        force, keys = source_id in self._forced, self._partition_keys.get(source_id)
        with builder.progress.noted(source):
            work = builder.park(
                source, force=force, keys=keys, recompute_span=self._recompute_spans.get(source_id)
            )
        builder.progress.end(work)
        self._done(source_id)
        return work

    def _done(self, source_id: SourceID) -> None:
        """Start the readers of a source that wait for nothing else."""
        with self._lock:
            for reader in self._readers.pop(source_id, ()):
                self._missing[reader].discard(source_id)
                if not self._missing[reader]:
                    self._begin(reader)

    def park(self, source: Source) -> PendingBuild:
        """Do everything up to the publication of a source, or wait for it, and leave it parked.

        Raises
        ------
        PersistError
            It failed; that is recorded.
        """
        begun = self._take(source.source_id)
        return self._park(source.source_id) if begun is None else begun.result()

    @contextmanager
    def work(self, source: Source, *, force: bool = False) -> Generator[PendingBuild]:
        """Do everything up to the publication of a source, or wait for it: see `Builder.work`.

        Raises
        ------
        PersistError
            It failed; that is recorded.
        """
        keys, recompute_span = (
            self._partition_keys.get(source.source_id),
            self._recompute_spans.get(source.source_id),
        )
        begun, progress = self._take(source.source_id), self._builder.progress
        if begun is not None:
            parked = begun.result()
            with (
                progress.noted_failure(source),
                self._builder.resume(
                    parked, force=force, keys=keys, recompute_span=recompute_span
                ) as work,
            ):
                yield work
        else:
            with (
                progress.noted(source),
                self._builder.work(
                    source, force=force, keys=keys, recompute_span=recompute_span
                ) as work,
            ):
                yield work
            progress.end(work)
            self._done(source.source_id)

    def close(self) -> None:
        """End running builds, and discard results that are no longer needed.

        A function that does not end within ten seconds is abandoned: its build is recorded as
        failed, and its lease is released.
        """
        try:
            if self._threads is not None:
                self._end(self._threads)
        finally:
            self._builder.abandon()

    def _end(self, threads: _Threads) -> None:
        with self._lock:
            self._threads = None
            going = threads.close()
        self._builder.over.set()
        deadline = time.monotonic() + _PATIENCE_S
        try:
            while wait(going, timeout=_INSIST_S).not_done and time.monotonic() < deadline:
                self._builder.engine.interrupt()
        finally:
            if all(begun.done() for begun in going):
                threads.join()
            else:
                self._builder.leave_behind()
