"""Attribution of Spark's jobs: groups, descriptions and tags, in Spark's UI and in its event log.

They belong to a thread, so concurrent builds in one session have their own.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_GROUP, _DESCRIPTION, _CANCEL = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
)


@dataclass(frozen=True, slots=True)
class Attribution:
    """The build that Spark computes.

    Attributes
    ----------
    source
        The asset key, with slashes.
    partitions
        The partitions in words; empty: the source has none.
    build_uid, build_id
        The attempt, and the meaning that it computes.
    run_id
        The run of Dagster; empty: it is in none.
    """

    source: str
    partitions: str
    build_uid: str
    build_id: str
    run_id: str
    environment: str

    @property
    def group(self) -> str:
        """The ID of the job group: that of the build."""
        return f"persist-{self.build_uid}"

    @property
    def description(self) -> str:
        """A readable description of the build."""
        of = f"{self.source} {self.partitions}" if self.partitions else self.source
        run = f", run {self.run_id}" if self.run_id else ""
        return f"{of} in {self.environment} (build {self.build_id[:12]}{run})"

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the jobs, for programs that read the event log."""
        tags = {
            "source": self.source,
            "partitions": self.partitions,
            "build": self.build_uid,
            "build_id": self.build_id,
            "run": self.run_id,
            "environment": self.environment,
        }
        # Spark separates tags by commas.
        return tuple(f"persist.{k}={v.replace(',', '_')}" for k, v in tags.items() if v)


@contextmanager
def attributed(session: SparkSession, to: Attribution) -> Generator[None]:
    """Attribute this thread's computations in the block to a build.

    If the block is interrupted, Spark's jobs of the build end.
    """
    from pyspark.sql.session import SparkSession  # the session of a server is of another class

    tags = [*to.tags]
    if not isinstance(session, SparkSession):  # pyright: ignore[reportUnnecessaryIsInstance]
        with _tagged(session, tags):
            yield
        return
    context = session.sparkContext
    keys = (_GROUP, _DESCRIPTION, _CANCEL)
    before: dict[str, Any] = {key: context.getLocalProperty(key) for key in keys}
    context.setJobGroup(to.group, to.description, interruptOnCancel=True)
    with _tagged(context, tags):
        try:
            yield
        finally:
            for key, value in before.items():
                context.setLocalProperty(key, value)


@contextmanager
def _tagged(spark: Any, tags: list[str]) -> Generator[None]:
    """Add tags to the jobs of a context, or of the session of a server."""
    is_context = hasattr(spark, "addJobTag")
    add, remove = (
        (spark.addJobTag, spark.removeJobTag) if is_context else (spark.addTag, spark.removeTag)
    )
    cancel = spark.cancelJobsWithTag if is_context else spark.interruptTag
    for tag in tags:
        add(tag)
    try:
        yield
    except Exception:
        raise
    except BaseException:
        log.debug("action=cancel tag=%s", tags[0])
        build = next(tag for tag in tags if tag.startswith("persist.build="))
        with suppress(Exception):  # a session that is gone computes nothing
            cancel(build)
        raise
    finally:
        with suppress(Exception):
            for tag in tags:
                remove(tag)
