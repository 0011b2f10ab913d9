"""Spark reads the files that are named: none left out, and each row as its table has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.core.dialect import char_size, quote
from persist_assets.core.errors import StorageError
from persist_assets.storage.types import CHAR_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame

    from persist_assets.core.model.columns import Column

_LOADING = 4
"""So many threads load groups of files."""
AS_NAMED: Mapping[str, str] = MappingProxyType(
    {
        "ignoredPathSegmentRegex": "(?!)",  # else names that begin with _ or . are left out
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }
)
"""Options with which Spark reads the files that are named, whatever the session's settings are."""


def check_rows(scan: DataFrame, promised: Mapping[str, int], table: str) -> None:
    """Raise where Spark does not read the rows that a table's log says its files have.

    Spark leaves out files for many reasons, and says so of none. It counts rows by the footers of
    files: no column is read.

    Parameters
    ----------
    scan
        All rows of the files as Spark reads them, deleted ones among them; nothing done to them.
    promised
        How many rows each file has, by its place.
    table
        Which table it is, for the message.

    Raises
    ------
    StorageError
        Files or rows are missing, or there are more than the log says.
    """
    total = sum(promised.values())
    count = int(scan.selectExpr("count(1)").collect()[0][0])
    if count == total:
        return
    counts: dict[str, int] = {}
    for path, n in scan.groupBy("_metadata.file_path").count().collect():
        name = unquote(path).rpartition("/")[2]
        counts[name] = counts.get(name, 0) + n
    different = [
        f"{place} ({counts.get(name, 0):,} of {n:,} rows)"
        for place, n in promised.items()
        if counts.get(name := place.rpartition("/")[2], 0) != n
    ]
    raise StorageError(
        f"Spark reads {count:,} rows of {table}, but its log states {total:,}:"
        f" {', '.join(different[:3])}{', …' if len(different) > 3 else ''}",
        hint="a file was replaced, or Spark ignores its name: rewrite the table's files",
    )


def padded(frame: DataFrame, columns: Iterable[Column]) -> DataFrame:
    """Return rows whose columns of type CHAR(n) are as Spark's tables have them.

    Values are padded with spaces, and Spark pads what they are compared with.

    Parameters
    ----------
    columns
        As they are declared; the frame may have fewer.
    """
    sizes = {c.name.lower(): n for c in columns if (n := char_size(c.type))}
    if not sizes:
        return frame
    from pyspark.sql import functions as F

    padded_columns: list[Any] = []
    for name in frame.columns:
        column, n = quote(name), sizes.get(name.lower())
        if n is None:
            padded_columns.append(F.col(column))
            continue
        text = F.expr(f"IF(length({column}) < {n}, rpad({column}, {n}), {column})")
        padded_columns.append(text.alias(name, metadata={CHAR_TYPE: f"char({n})"}))
    return frame.select(*padded_columns)


def one_after_another(load: Callable[[Any], DataFrame], groups: Iterable[Any]) -> DataFrame:
    """Return the rows of what is loaded of each group, in their order.

    Spark looks at files and analyses what is loaded in the thread that asks, so several do; not of
    the first group, for which Spark may have to start, and that is for the caller's thread. Unions
    are made in pairs, and pairs of pairs: each is analysed with all that is in it.
    """
    first, *others = groups
    frames = [load(first)]
    if others:
        with ThreadPoolExecutor(_LOADING) as pool:
            frames += pool.map(load, others)
    while len(frames) > 1:
        pairs = [frames[n : n + 2] for n in range(0, len(frames), 2)]
        frames = [reduce(lambda some, more: some.union(more), pair) for pair in pairs]
    return frames[0]
