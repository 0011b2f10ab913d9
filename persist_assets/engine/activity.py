"""What Spark does at the moment: stages and tasks, and the address of its own pages about them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Activity:
    """What Spark does at the moment, for all threads of this process.

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
    """Return what a session's Spark does; None if it belongs to a server, or does not answer."""
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
    except Exception:  # nothing rests on it
        log.debug("Spark does not say what it does", exc_info=True, extra={"action": "progress"})
        return None
