"""Whether queries of equal BuildIDs have equal rows: data that is hard on them, and how to ask.

The raw tables hold NULL, NaN, -0.0, duplicates, empty strings and collections, and decimals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from conftest import compiled

from persist_assets.planning.render import substitute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.project import Project

RAW = """
CREATE TABLE t (a INT, b STRING, d DOUBLE, k INT, arr ARRAY<INT>, m MAP<STRING, INT>,
  s STRUCT<x: INT, Y: STRING>, dec DECIMAL(5,2), ts TIMESTAMP, f BOOLEAN, bin BINARY)
USING parquet LOCATION 't';
CREATE TABLE u (a INT, c DATE, k INT, b STRING, d DOUBLE, bg BIGINT, fl FLOAT) USING parquet LOCATION 'u';
CREATE TABLE w (a INT, k INT, z INT) USING parquet LOCATION 'w';
"""
_ROWS = {
    "t": """
  (1, 'a', 1.0D, 1, array(1, 2, NULL), map('x', 1), named_struct('x', 1, 'Y', 'p'), 1.10BD, TIMESTAMP'2024-03-31 01:30:00', true, X'41'),
  (2, 'A', -0.0D, 1, array(3), map('y', 2, 'z', NULL), named_struct('x', 2, 'Y', NULL), 2.25BD, TIMESTAMP'2024-01-01 00:00:00', false, X'42'),
  (2, '', 0.0D, 2, array(), map(), named_struct('x', NULL, 'Y', 'q'), NULL, NULL, NULL, X''),
  (NULL, NULL, double('NaN'), 3, NULL, NULL, NULL, 3.00BD, TIMESTAMP'1999-12-31 23:59:59', true, NULL),
  (3, 'b ', NULL, 5, array(5, 5), map('x', 3), named_struct('x', 3, 'Y', 'r'), -1.15BD, TIMESTAMP'2024-06-01 12:00:00', true, X'FF'),
  (3, 'b ', NULL, 5, array(5, 5), map('x', 3), named_struct('x', 3, 'Y', 'r'), -1.15BD, TIMESTAMP'2024-06-01 12:00:00', true, X'FF'),
  (7, '10', 2.5D, NULL, array(7, 6), map('w', 7), named_struct('x', 7, 'Y', 'z'), 9.99BD, TIMESTAMP'2020-02-29 00:00:00', false, X'00')""",
    "u": """
  (1, DATE'2024-01-01', 1, 'a', 1.5D, 10L, 0.1F),
  (2, DATE'2024-02-29', 2, 'B', double('NaN'), NULL, 0.2F),
  (NULL, NULL, 3, NULL, -0.0D, 5L, NULL),
  (3, DATE'1970-01-01', 5, '', 0.0D, 9007199254740993L, 16777217F),
  (3, DATE'1970-01-01', NULL, '', 0.0D, 3L, 3F)""",
    "w": "(1, 1, 100), (2, 1, 200), (3, NULL, 300), (NULL, 5, NULL), (3, 5, 300)",
}
_NAMES = {
    "t": "a, b, d, k, arr, m, s, dec, ts, f, bin",
    "u": "a, c, k, b, d, bg, fl",
    "w": "a, k, z",
}
VIEWS = {f"{name}@sources/raw.sql": f"raw_{name}" for name in _ROWS}


def make_views(spark: Any) -> None:
    """Make the raw tables as views of a session."""
    for name, rows in _ROWS.items():
        frame = spark.sql(f"SELECT * FROM VALUES {rows} AS {name}({_NAMES[name]})")
        if name == "t":
            frame = frame.withColumn("dec", frame["dec"].cast("decimal(5,2)"))
        frame.coalesce(1).createOrReplaceTempView(f"raw_{name}")


def project(query: str) -> Project:
    """Return a project of the raw tables and one query, `q`."""
    return compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS {query}"})


def build_id(made: Project) -> str | None:
    """Return the BuildID of the query, or None where it is refused."""
    return None if made.errors else made.by_id["q@sources/q.sql"].build_id


@dataclass(frozen=True, slots=True)
class Answer:
    """What Spark says: names and types of columns and sorted rows, or an error."""

    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[str, ...] = ()
    error: str | None = None


def _frame(spark: Any, made: Project, views: Mapping[str, str]) -> Any:
    source = made.by_id["q@sources/q.sql"]
    assert source.query is not None
    return spark.sql(substitute(made, source.query, source.bindings, views).sql)


def run(spark: Any, made: Project, views: Mapping[str, str] = VIEWS) -> Answer:
    """Return what Spark says of a project's query, as a build would run it."""
    source = made.by_id["q@sources/q.sql"]
    try:
        frame = _frame(spark, made, views)
        rows = tuple(sorted(repr(tuple(row)) for row in frame.collect()))
    except Exception as error:
        return Answer(error=str(error).strip().splitlines()[0])
    names = [column.name for column in source.columns] or frame.columns
    types = [kind for _, kind in frame.dtypes]
    return Answer(tuple(zip(names, types, strict=True)), rows)


class Compared:
    """One query, compared on Spark with others: by its plan where that is the same, else by rows.

    Attributes
    ----------
    by_plans, failed
        Whether Spark made one plan of the last two, or refused one of them.
    """

    def __init__(self, spark: Any, made: Project) -> None:
        self.spark, self.made = spark, made
        self.by_plans = self.failed = False

    @cached_property
    def answer(self) -> Answer:
        return run(self.spark, self.made)

    @cached_property
    def plan(self) -> Any:
        return self._plan(self.made)

    def _plan(self, made: Project) -> Any:
        try:
            frame = _frame(self.spark, made, VIEWS)
            types = [kind for _, kind in frame.dtypes]
            names = [column.name for column in made.by_id["q@sources/q.sql"].columns]
            return names, types, frame._jdf.queryExecution().optimizedPlan().canonicalized()
        except Exception:
            return None

    def difference(self, other: Project) -> str | None:
        """Return how the answer to a query of the same BuildID differs, or None."""
        plan = self._plan(other)
        self.by_plans = plan is not None and self.plan is not None and _alike(plan, self.plan)
        self.failed = False
        if self.by_plans:
            return None
        answers = self.answer, run(self.spark, other)
        self.failed = any(answer.error is not None for answer in answers)
        return difference(*answers)


def _alike(one: Any, other: Any) -> bool:
    return one[:2] == other[:2] and one[2].equals(other[2])


def difference(one: Answer, other: Answer) -> str | None:
    """Return how two answers differ, or None; an error says nothing of rows."""
    if one == other or one.error is not None or other.error is not None:
        return None
    if one.columns != other.columns:
        return f"columns {one.columns} and {other.columns}"
    return f"rows {one.rows[:5]} and {other.rows[:5]} (of {len(one.rows)} and {len(other.rows)})"
