"""The progress of one run: builds that have ended, builds under way, and the time left.

pool, builder ─► `Progress` ─► a terminal, lines, Dagster's log

Builds only leave notes here. Whoever shows them looks from a thread of its own (`state`, `ended`),
so that showing neither slows a build nor breaks it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from persist_assets.core.settings.durations import in_short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Cost
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.activity import Activity

    Costs = Mapping[SourceID, Sequence[Cost]]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a build.

    Attributes
    ----------
    key
        The source's key.
    method
        The method by which it computed rows, or found that none differ; None: it did neither.
    rows, written
        The rows of the table, and those that the build wrote.
    seconds
        How long it took.
    """

    key: str
    action: Literal["built", "reused", "failed"]
    seconds: float
    method: str | None = None
    rows: int | None = None
    written: int | None = None
    error: str | None = None

    @property
    def in_words(self) -> str:
        """The source, the method, the rows and the seconds.

        Examples
        --------
        >>> Ended("a", "built", 0.81, "merge", 365, 3).in_words
        'a (merge) 3 of 365 rows, 0.8 s'
        >>> Ended("a", "failed", 0.81, error="disk full").in_words
        'a: disk full'
        """
        if self.error is not None:
            return f"{self.key}: {self.error}"
        is_part = self.written is not None and self.method != "whole"
        part = f"{self.written:,} of " if is_part else ""
        method = f" ({self.method})" if self.method else ""
        rows = "1 row" if self.rows == 1 else f"{self.rows or 0:,} rows"
        return f"{self.key}{method} {part}{rows}, {in_short(self.seconds)}"


def ended_of(work: PendingBuild, seconds: float) -> Ended:
    """Return the end of a build whose rows are written; readers may not see them yet."""
    rows = work.measured or work.snapshot
    return Ended(
        work.source.key,
        work.build.action,
        seconds,
        work.maintenance if work.maintenance != "reuse" else None,
        rows.rows if rows else None,
        work.staged.rows if work.staged else None,
    )


@dataclass(frozen=True, slots=True)
class Begun:
    """A build under way.

    Attributes
    ----------
    since
        When it started, by a clock of seconds.
    method
        The method by which it computes rows; None: it does not compute any yet.
    expected_s
        The seconds that it is expected to take, by earlier builds; None: unknown.
    """

    source_id: SourceID
    key: str
    since: float
    method: str | None = None
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """The current activity of a run.

    Attributes
    ----------
    done, failed, waiting
        The numbers of sources.
    building
        The builds that compute rows, the oldest first.
    left_s
        The seconds until all is done, by earlier builds; None: nothing is known.
    is_more
        It takes longer than that: some sources have no earlier builds.
    """

    done: int
    failed: int
    waiting: int
    building: tuple[Begun, ...]
    left_s: float | None
    is_more: bool

    def in_words(self, activity: Activity | None) -> str:
        """Return it as one line, with what Spark does.

        Examples
        --------
        >>> State(3, 0, 7, (Begun("a", "a", 0),), 200, False).in_words(None)
        '3 done, 1 building, 7 waiting, about 3 min 20 s left'
        """
        if not self.done + self.failed + self.waiting + len(self.building):
            return "starting"
        parts = [f"{self.done} done", f"{len(self.building)} building", f"{self.waiting} waiting"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if activity is not None and activity.stages:
            stages = f"{activity.stages} stage{'s' if activity.stages > 1 else ''}"
            parts.append(f"Spark: {stages}, {activity.tasks_done} of {activity.tasks} tasks")
        if self.left_s is not None:
            parts.append(f"{'more than' if self.is_more else 'about'} {in_short(self.left_s)} left")
        if activity is not None and activity.ui is not None:
            parts.append(activity.ui)
        return ", ".join(parts)


class Progress:
    """The builds of one run. All methods may be called from any thread.

    Parameters
    ----------
    clock
        Returns seconds.

    Attributes
    ----------
    activity
        Returns what is computed at the moment, if that is known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.activity: Callable[[], Activity | None] = lambda: None
        self._lock = threading.Lock()
        self._at_once = 1
        self._upstreams: dict[SourceID, Collection[SourceID]] = {}
        self._up_to_date: Collection[SourceID] = ()
        self._fetch_costs: Callable[[], Costs] = dict
        self._costs: Costs | None = None
        self._begun: dict[SourceID, Begun] = {}
        self._ended: dict[SourceID, Ended] = {}
        self._news: list[Begun | Ended] = []

    # ------------------------------------------------------------------------- what builds note

    def expect(
        self,
        upstreams: Mapping[SourceID, Collection[SourceID]],
        up_to_date: Collection[SourceID],
        at_once: int,
        fetch_costs: Callable[[], Costs],
    ) -> None:
        """Record the builds that the run will make.

        Parameters
        ----------
        upstreams
            For each source, in dependency order, those of the run that it waits for.
        up_to_date
            Sources of which no rows will be computed.
        at_once
            How many sources are built at once.
        fetch_costs
            Returns what earlier builds of the sources took, the latest first. It is called once,
            by the first who looks.
        """
        with self._lock:
            self._upstreams |= upstreams
            self._up_to_date, self._at_once, self._fetch_costs = up_to_date, at_once, fetch_costs

    @contextmanager
    def noted(self, source: Source) -> Generator[None]:
        """Note that the build of a source begins, and whether the block fails."""
        with self._lock:
            self._ended.pop(source.source_id, None)
            self._upstreams.setdefault(source.source_id, ())
            self._begun[source.source_id] = Begun(source.source_id, source.key, self.clock())
        with self.noted_failure(source):
            yield

    @contextmanager
    def noted_failure(self, source: Source) -> Generator[None]:
        """Record a failure of the block, which continues a build."""
        try:
            yield
        except BaseException as error:
            text = str(error) if isinstance(error, Exception) else "interrupted"
            with self._lock:
                begun = self._begun.pop(source.source_id, None)
                seconds = self.clock() - begun.since if begun else 0.0
                ended = Ended(source.key, "failed", seconds, error=text or type(error).__name__)
                self._add(source.source_id, ended)
            raise

    def compute(self, source: Source, step: Step) -> None:
        """Record the method of a build that computes rows; other builds need not compute any."""
        with self._lock:
            begun = self._begun.get(source.source_id)
            if begun is not None:
                begun = replace(begun, method=step.maintenance)
                self._begun[source.source_id] = begun
                self._news.append(begun)

    def end(self, work: PendingBuild) -> None:
        """Note that a build has ended: the other builds of the run can read its table."""
        with self._lock:
            begun = self._begun.pop(work.source.source_id)
            self._add(work.source.source_id, ended_of(work, self.clock() - begun.since))

    def _add(self, source_id: SourceID, ended: Ended) -> None:
        self._ended[source_id] = ended
        self._news.append(ended)

    # -------------------------------------------------------------------------- what others see

    def news(self) -> list[Begun | Ended]:
        """Return what has happened since the last call, in its order."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def state(self) -> State:
        """Return what the run is doing at the moment.

        Raises
        ------
        PersistError
            The costs of earlier builds cannot be read.
        """
        if self._costs is None and self._upstreams:
            self._costs = {}  # one attempt
            self._costs = self._fetch_costs()
        with self._lock:
            n_failed = sum(ended.action == "failed" for ended in self._ended.values())
            begun = sorted(self._begun.values(), key=lambda b: b.since)
            building = tuple(
                replace(b, expected_s=self._expected_s(b.source_id)) for b in begun if b.method
            )
            left_s, is_more = self._left()
            return State(
                len(self._ended) - n_failed,
                n_failed,
                len(self._upstreams) - len(self._ended) - len(building),
                building,
                left_s,
                is_more,
            )

    def _expected_s(self, source_id: SourceID) -> float | None:
        """Return the seconds that a build will take, by the latest one of the same method."""
        begun = self._begun.get(source_id)
        method = begun and begun.method
        if method is None and source_id in self._up_to_date:
            return 0.0
        costs = (self._costs or {}).get(source_id, ())
        alike = [cost.seconds for cost in costs if method in (None, cost.maintenance)]
        return alike[0] if alike else None

    def _left(self) -> tuple[float | None, bool]:
        """Return the seconds left, and whether it is more because sources have no earlier builds.

        A run takes as long as its longest chain of sources, or as all work takes if as much as
        possible is done at once.
        """
        now = self.clock()
        ends: dict[SourceID, float] = {}
        total, n_known, is_more = 0.0, 0, False
        for source_id, upstreams in self._upstreams.items():
            if source_id in self._ended:
                continue
            begun, expected_s = self._begun.get(source_id), self._expected_s(source_id)
            n_known += expected_s is not None
            rest_s = (expected_s or 0.0) - (now - begun.since if begun else 0.0)
            is_more |= expected_s is None or rest_s < 0
            total += max(rest_s, 0.0)
            ends[source_id] = max(rest_s, 0.0) + max(
                (ends.get(upstream, 0.0) for upstream in upstreams), default=0.0
            )
        if not n_known:
            return None, False
        return max(max(ends.values()), total / self._at_once), is_more


_WATCHED: ContextVar[Progress | None] = ContextVar("watched", default=None)


@contextmanager
def watched(progress: Progress) -> Generator[None]:
    """Record the progress of builders that this thread creates within the block."""
    token = _WATCHED.set(progress)
    try:
        yield
    finally:
        _WATCHED.reset(token)


def new_progress() -> Progress:
    """Return the progress that the surrounding block watches, or a new one."""
    return _WATCHED.get() or Progress()
