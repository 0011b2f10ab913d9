"""Reading named files with Spark: all of them, with each row as its table has it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.core.dialect import char_size, quote
from persist_assets.core.errors import StorageError
from persist_assets.core.model.sources import CATALOG
from persist_assets.storage.types import CHAR_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.columns import Column

_LOADING = 4
"""The number of threads that load groups of files."""
_FEW_FILES = 64
"""The footers of at most as many files are read by one task."""
AS_NAMED: Mapping[str, str] = MappingProxyType(
    {
        "ignoredPathSegmentRegex": "(?!)",  # otherwise names that begin with _ or . are skipped
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }
)
"""Options with which Spark reads exactly the named files, whatever the session's settings are."""


def load_unpinned(
    session: SparkSession, form: str, options: Mapping[str, str], place: str | None
) -> DataFrame:
    """Return the rows of data without versions, as they are now.

    Parameters
    ----------
    form
        The format of the data; ``catalog``: a table that the session's catalog names.
    place
        The location as Spark spells it; None: options describe it.
    """
    if form != CATALOG:
        return session.read.options(**options).format(form).load(place)
    session.catalog.refreshTable(options["table"])  # the session may have an older list of files
    return session.table(options["table"])


def check_rows(scan: DataFrame, promised: Mapping[str, int], table: str) -> None:
    """Raise if Spark does not read the rows that a table's files have according to its log.

    Spark silently skips files for many reasons. Rows are counted by the footers of files: no column
    is read.

    Parameters
    ----------
    scan
        All rows of the files as Spark reads them, including deleted ones, without any operation.
    promised
        The number of rows in each file, by location.
    table
        The table's name, for the message.

    Raises
    ------
    StorageError
        Files or rows are missing, or there are more than the log says.
    """
    total = sum(promised.values())
    if len(promised) <= _FEW_FILES:
        scan = scan.coalesce(1)  # without an exchange, there is one job
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
    """Return rows with columns of type CHAR(n) as in Spark's tables.

    Values are padded with spaces, and Spark pads the values that they are compared with.

    Parameters
    ----------
    columns
        The declared columns; the frame may have fewer.
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
    """Return the rows of all groups, in the order of the groups.

    Spark lists files and analyses a frame in the calling thread, so several threads load groups.
    The first group is loaded in the caller's thread, where Spark may have to start. Unions are
    built as a balanced tree, because each is analysed with everything in it.
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
