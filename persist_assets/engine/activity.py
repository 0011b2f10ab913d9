"""Spark's activity: current stages and tasks, and the bytes that jobs have read."""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Activity:
    """Spark's current activity, for all threads of this process.

    Attributes
    ----------
    stages
        The number of stages under way.
    tasks, tasks_done
        Their tasks, and how many of these have ended.
    ui
        The URL of Spark's UI; None: it is off.
    """

    stages: int
    tasks: int
    tasks_done: int
    ui: str | None = None


def activity_of(session: SparkSession) -> Activity | None:
    """Return the activity of a session's Spark; None if it runs in a server or does not respond."""
    from pyspark.sql.session import SparkSession  # the session of a server is of another class

    if not isinstance(session, SparkSession):  # pyright: ignore[reportUnnecessaryIsInstance]
        return None
    try:
        context = session.sparkContext
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]  # others have just ended
        return Activity(
            len(running),
            sum(stage.numTasks for stage in running),
            sum(stage.numCompletedTasks for stage in running),
            context.uiWebUrl,
        )
    except Exception:  # nothing depends on it
        log.debug(
            "cannot read the progress of Spark's jobs", exc_info=True, extra={"action": "progress"}
        )
        return None


_RETAINED_JOBS = 1_000
"""Spark's default for `spark.ui.retainedJobs`."""


@contextmanager
def counted_input(session: SparkSession) -> Generator[Callable[[], int | None]]:
    """Yield a function that returns how many bytes of files this thread's jobs in the block read.

    It returns None if the session belongs to a server, or Spark does not say, for example because
    it has forgotten jobs: it remembers only the last ones, of all threads.
    """
    from pyspark.sql.session import SparkSession  # the session of a server is of another class

    if not isinstance(session, SparkSession):  # pyright: ignore[reportUnnecessaryIsInstance]
        yield lambda: None
        return
    context, tag = session.sparkContext, f"persist.input={uuid.uuid4().hex}"
    n_before = _n_started(context)
    context.addJobTag(tag)
    try:
        yield lambda: _input_of(context, tag, n_before)
    finally:
        context.removeJobTag(tag)


def _n_started(context: Any) -> int | None:
    """Return the number of jobs that a session has started; None if unknown."""
    try:
        return int(context._jsc.sc().dagScheduler().numTotalJobs())
    except Exception:  # nothing depends on it
        log.debug("cannot count Spark's jobs", exc_info=True, extra={"action": "progress"})
        return None


def _input_of(context: Any, tag: str, n_before: int | None) -> int | None:
    """Return how many bytes of files the jobs with a tag read.

    Parameters
    ----------
    n_before
        The number of jobs of the session before the first of them.
    """
    n_started = _n_started(context)
    try:
        spark = context._jsc.sc()
        most = spark.conf().getInt("spark.ui.retainedJobs", _RETAINED_JOBS)
        # Spark forgets the jobs that ended first, up to a tenth of them at once.
        if n_before is None or n_started is None or n_started - n_before > most // 2:
            return None
        spark.listenerBus().waitUntilEmpty()  # which the numbers come through
        store, tracker = spark.statusStore(), spark.statusTracker()
        stages: set[int] = set()
        for job in tracker.getJobIdsForTag(tag):
            info = tracker.getJobInfo(job)
            if not info.isDefined():
                return None
            stages.update(info.get().stageIds())
        return sum(int(store.lastStageAttempt(stage).inputBytes()) for stage in stages)
    except Exception:  # nothing depends on it
        log.debug(
            "cannot read how many bytes Spark's jobs read",
            exc_info=True,
            extra={"action": "progress"},
        )
        return None
