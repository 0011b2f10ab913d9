"""Computing few rows: planned once, in no more tasks than run at once.

Adaptive execution runs a job for each exchange and plans again after each of them. For few rows
this takes longer than what better plans save, so they are computed in a twin of the session that
does without. A frame keeps its meaning there: the twin plans what the session has analyzed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MOST_FILES = 4
"""Few rows are written to at most so many files."""


def is_classic(frame: DataFrame) -> bool:
    """Whether a frame belongs to a session of this process, and not to one of a server."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    return isinstance(frame, ClassicFrame)


def twin_of(session: SparkSession) -> SparkSession:
    """Return a session for few rows with the settings of another."""
    cloned: Any = session
    twin = type(session)(session.sparkContext, cloned._jsparkSession.cloneSession())
    partitions = int(session.conf.get("spark.sql.shuffle.partitions") or "200")
    twin.conf.set("spark.sql.adaptive.enabled", "false")
    twin.conf.set("spark.sql.shuffle.partitions", str(min(partitions, at_once(session))))
    return twin


def in_few_files(frame: DataFrame) -> DataFrame:
    """Return rows in no more partitions than few rows need, if their session is classic."""
    is_spread = is_classic(frame) and at_once(frame.sparkSession) > _MOST_FILES
    return frame.repartition(_MOST_FILES) if is_spread else frame


def at_once(session: SparkSession) -> int:
    """Return the number of tasks that a classic session runs at once."""
    return session.sparkContext.defaultParallelism


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """Return a frame that another session plans and computes; both are of this process."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    analyzed: Any = frame
    other: Any = session
    dataset: Any = other._jvm.org.apache.spark.sql.classic.Dataset
    plan = analyzed._jdf.logicalPlan()
    return ClassicFrame(dataset.ofRows(other._jsparkSession, plan), session)
