"""Computing few rows: planned once, in no more tasks than run at once, and without files.

Adaptive execution runs a job for each exchange and plans again after each of them. For few rows
this takes longer than what better plans save, so they are computed in a twin of the session that
does without. A frame keeps its meaning there: the twin plans what the session has analyzed.

To write a file for few rows takes Spark longer than to compute them. Reading one takes as long as
a small join. So few rows are collected, and frames have them in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.core.object_stores import spark_pattern
from persist_assets.storage.arrow_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType


_MOST_FILES = 4
"""Few rows are written to at most so many files."""
MOST_COLLECTED_ROWS = 50_000
"""More rows are written by Spark."""
_MOST_ROWS_IN_MEMORY = 10_000
_MOST_BYTES = 2**18
"""More rows are read from files: those in memory are sent with each task that reads them."""
_LIMITS = "org.apache.spark.sql.catalyst.optimizer.LimitPushDown"
"""A limit pushed below a union has other generated code each time, which the JVM compiles again."""
_COMPARED = frozenset(
    "bigint binary boolean date int smallint string timestamp timestamp_ntz tinyint".split()
)
"""Types besides decimals whose values Arrow has and compares as Spark does."""
_EXACT = _COMPARED | {"double", "float"}
"""Types besides decimals whose values Arrow has as Spark has them."""


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
    excluded = session.conf.get("spark.sql.optimizer.excludedRules", "")
    twin.conf.set("spark.sql.optimizer.excludedRules", ",".join(filter(None, (excluded, _LIMITS))))
    return twin


def in_few_files(frame: DataFrame) -> DataFrame:
    """Return rows in no more partitions than few rows need, if their session is classic."""
    is_spread = is_classic(frame) and at_once(frame.sparkSession) > _MOST_FILES
    return frame.repartition(_MOST_FILES) if is_spread else frame


def collected(frame: DataFrame) -> Any:
    """Return the rows of a frame, computed now, as an Arrow table.

    None: there are more than `MOST_COLLECTED_ROWS`, or Arrow lacks their types.
    """
    if not is_classic(frame) or not _has_only(frame.schema.fields, _EXACT):
        return None
    table = frame.limit(MOST_COLLECTED_ROWS + 1).toArrow()
    return _normalized(table) if table.num_rows <= MOST_COLLECTED_ROWS else None


def _normalized(table: Any) -> Any:
    """Return an Arrow table whose types do not depend on how its rows were computed.

    All columns can be NULL, and timestamps have the time zone of Spark's files.
    """
    from pyarrow import schema, timestamp, types

    utc = timestamp("us", "UTC")
    fields = (
        f.with_type(utc) if types.is_timestamp(f.type) and f.type.tz else f for f in table.schema
    )
    return table.cast(schema(f.with_nullable(True) for f in fields))


def in_memory(table: Any, session: SparkSession, schema: StructType) -> DataFrame | None:
    """Return the rows of an Arrow table as a frame of one partition that reads no files.

    None: they are too large for that, or Arrow lacks their types.

    Parameters
    ----------
    schema
        Spark's types of the rows.
    """
    from pyspark.sql.session import SparkSession as ClassicSession
    from pyspark.sql.types import StructField, StructType

    is_little = table.num_rows <= _MOST_ROWS_IN_MEMORY and table.nbytes <= _MOST_BYTES
    any_session: Any = session
    if (
        not is_little
        or not _has_only(schema.fields, _EXACT)
        or not isinstance(any_session, ClassicSession)
    ):
        return None
    fields = [StructField(f.name, f.dataType, True, f.metadata) for f in schema.fields]
    return session.createDataFrame(table, StructType(fields)).coalesce(1)


def rows_of(
    place: str, n_rows: int, session: SparkSession, schema: StructType, table: Any = None
) -> DataFrame:
    """Return the rows of the Parquet files in a directory, from memory if they are few.

    Parameters
    ----------
    n_rows
        How many there are.
    schema
        Spark's types of the rows.
    table
        The rows as an Arrow table, if they have been read.
    """
    if n_rows <= _MOST_ROWS_IN_MEMORY:
        rows = in_memory(read_rows(place) if table is None else table, session, schema)
        if rows is not None:
            return rows
    return session.read.schema(schema).parquet(spark_pattern(place))


def compares_as_spark(fields: Iterable[StructField]) -> bool:
    """Whether Arrow distinguishes values of these columns as Spark does."""
    return _has_only(fields, _COMPARED)


def _has_only(fields: Iterable[StructField], types: frozenset[str]) -> bool:
    """Whether there are columns, and all are decimals or have one of some types."""
    names = [field.dataType.simpleString() for field in fields]
    return bool(names) and all(name in types or name.startswith("decimal(") for name in names)


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
