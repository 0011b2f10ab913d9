"""The progress of builds in Dagster's log."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from persist_assets.building.progress import Progress, ended_of
from persist_assets.building.stages import PendingBuild
from persist_assets.engine.activity import Activity

log = logging.getLogger(__name__)

EVERY_S = 10.0
"""The interval at which a step that waits for its build logs the run's activity, in seconds."""


@contextmanager
def logged(context: Any, progress: Progress) -> Generator[None]:
    """Log what a run is doing, in the log of a step, for as long as the block takes.

    Parameters
    ----------
    context
        The context of the step.
    """
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(EVERY_S):
            try:
                context.log.info(progress.state().in_words(progress.activity()))
            except Exception:
                log.debug(
                    "the progress of builds cannot be logged",
                    exc_info=True,
                    extra={"action": "progress"},
                )

    thread = threading.Thread(target=watch, daemon=True, name="progress in Dagster's log")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def built_in_words(work: PendingBuild, activity: Activity | None) -> str:
    """Return one log line with the method of a build and the reason for it."""
    ended = ended_of(work, work.build.computed_s or 0.0)
    text = f"{ended.action} {ended.in_words}: {work.why}"
    return f"{text}; Spark's UI: {activity.ui}" if activity and activity.ui else text
