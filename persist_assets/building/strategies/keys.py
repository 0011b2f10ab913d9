"""Rows of a table by their keys: the files that have them, and the rows that stay without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from persist_assets.building.strategies.windows import Window, meets
from persist_assets.core.dialect import quote
from persist_assets.core.object_stores import spark_pattern
from persist_assets.core.time_values import Value, from_spark, is_ordered, spelled
from persist_assets.engine.named_files import listed_by_driver
from persist_assets.engine.protocol import Beside
from persist_assets.engine.session import translated
from persist_assets.storage.arrow_rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.column import Column as SparkColumn

    from persist_assets.engine.protocol import Engine
    from persist_assets.storage.delta_tables import Live

_MARK = "persist.gone"
_Split = Callable[["DataFrame"], tuple["DataFrame", "DataFrame"]]
"""Divides rows into those that are replaced and those that stay."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of rows that a build replaces.

    Attributes
    ----------
    place
        The directory of the files with the keys, in their first columns; None: in no files.
    nullable
        The columns in which one of them may be NULL; None: any column.
    """

    rows: DataFrame
    place: str | None = None
    nullable: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class _Extent:
    """The values of a column: from the least to the greatest one, None if unknown, and NULL."""

    column: str
    kind: str
    low: Value | None
    high: Value | None
    has_nulls: bool


def _extents(
    frame: DataFrame, columns: Sequence[tuple[str, str]], name: str
) -> list[_Extent] | None:
    """Return the extents of columns; None: there are no rows."""
    texts = [
        text
        for n, (column, kind) in enumerate(columns)
        for text in (
            f"{spelled(f'min({quote(column)})', kind)} AS low{n}",
            f"{spelled(f'max({quote(column)})', kind)} AS high{n}",
            f"count_if({quote(column)} IS NULL) > 0 AS nulls{n}",
        )
    ]
    with translated(f"computing `{name}`"):
        values = frame.selectExpr("count(1) AS n", *texts).collect()[0]
    if not values["n"]:
        return None
    ends = [
        [from_spark(values[f"{end}{n}"] or "", kind) for end in ("low", "high")]
        for n, (_, kind) in enumerate(columns)
    ]
    return [
        _Extent(column, kind, ends[n][0], ends[n][1], values[f"nulls{n}"])
        for n, (column, kind) in enumerate(columns)
    ]


def _extents_here(
    place: str, key: Sequence[str], columns: Sequence[tuple[str, str]]
) -> list[_Extent] | None:
    """Return the extents of columns of keys in files; None: Spark has to find them."""
    from pyarrow import ArrowException
    from pyarrow.compute import call_function

    if any(kind.startswith("timestamp") for _, kind in columns):
        return None
    extents: list[_Extent] = []
    try:
        rows = read_rows(place)
        for column, kind in columns:
            values = rows.column([*key].index(column))
            ends = call_function("min_max", [values]).as_py()
            low, high = (
                None if ends[end] is None else from_spark(str(ends[end]), kind)
                for end in ("min", "max")
            )
            extents.append(_Extent(column, kind, low, high, values.null_count > 0))
    except (ArrowException, OverflowError, ValueError):
        return None
    return extents


def _within_extents(live: Mapping[str, Live], extents: Iterable[_Extent] | None) -> dict[str, Live]:
    """Return the files that may have rows with some keys, according to their statistics."""
    if extents is None:
        return {}
    maybe = {**live}
    for extent in extents:
        if extent.low is not None and extent.high is not None:
            box = ((extent.low, extent.high),)
            span = Window(((extent.column, extent.kind),), (box,), extent.has_nulls)
            maybe = {path: file for path, file in maybe.items() if meets(file, span)}
    return maybe


def files_having(
    engine: Engine,
    root: str,
    live: Mapping[str, Live],
    keys: Keys,
    columns: Sequence[tuple[str, str]],
    name: str,
) -> set[str]:
    """Return the files that have rows with some keys.

    A file is read if its statistics do not rule it out.

    Parameters
    ----------
    columns
        The key columns and their types in the table.
    """
    key = [column for column, _ in columns]
    ordered = [(column, kind) for column, kind in columns if is_ordered(kind)]
    extents = keys.place and _extents_here(keys.place, key, ordered)
    maybe = _within_extents(live, extents or _extents(keys.rows, ordered, name))
    if not maybe:
        return set()
    files = [f"{root}/{path}" for path in sorted(maybe)]
    with translated(f"reading the keys of `{name}`"):
        with listed_by_driver(engine.session, files):
            rows = engine.session.read.parquet(*map(spark_pattern, files))
        rows = rows.selectExpr(*map(quote, key), "_metadata.file_path AS `persist.file`")
        old, _ = split_by_key(keys, key)(rows)
        places = [row[0] for row in old.select("`persist.file`").distinct().collect()]
    return {"/".join(unquote(place).rsplit("/", 2)[1:]) for place in places}


def count_having(rows: DataFrame, keys: Keys, key: Sequence[str]) -> int:
    """Return how many rows have some keys."""
    with translated("counting the rows with changed keys"):
        return split_by_key(keys, key)(rows)[0].count()


def without_keys(rows: DataFrame, keys: Keys, key: Sequence[str]) -> Beside:
    """Return the rows that stay if those with some keys are removed."""
    from pyspark.sql import functions as F

    marked = keys.rows.selectExpr(*map(quote, key)).distinct().withColumn(_MARK, F.lit(True))
    joined = rows.alias("old").join(marked.alias("new"), _same_key(keys, key), "left")
    return Beside(
        joined.select("old.*", f"new.{quote(_MARK)}"),
        f"{quote(_MARK)} IS NOT NULL",
        (*rows.columns,),
    )


def split_by_key(keys: Keys, key: Sequence[str]) -> _Split:
    """Return a function that splits rows into those with one of some keys and the others."""
    new = keys.rows.selectExpr(*map(quote, key)).distinct().alias("new")
    same = _same_key(keys, key)

    def split(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        old = rows.alias("old")
        return old.join(new, same, "left_semi"), old.join(new, same, "left_anti")

    return split


def _same_key(keys: Keys, key: Sequence[str]) -> SparkColumn:
    """Return the condition that a row has a key, where NULL equals NULL.

    Spark joins by `=` several times as fast as by `<=>`.
    """
    from pyspark.sql import functions as F

    nullable = keys.nullable
    equal = ["<=>" if nullable is None or k in nullable else "=" for k in key]
    pairs = zip(key, equal, strict=True)
    return F.expr(" AND ".join(f"old.{quote(k)} {op} new.{quote(k)}" for k, op in pairs))
