"""Reading named files with Spark: all of them, with each row as its table has it."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.core.dialect import char_size, quote
from persist_assets.core.errors import StorageError
from persist_assets.core.model.sources import CATALOG
from persist_assets.core.object_stores import scheme_of
from persist_assets.core.raw_options import CORRUPT, PARSED, corrupt_column, read_mode
from persist_assets.storage.partition_texts import (
    depends_on_clock,
    is_cast_by_spark,
    is_certain,
    misread,
    plain_type,
    texts_by_column,
    unescaped,
)
from persist_assets.storage.types import CHAR_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.columns import Column

_LOADING = 4
"""The number of threads that load groups of files."""
_FEW_FILES = 64
"""The footers of at most as many files are read by one task."""
_OF_BINARY_FILES = (
    ("path", "string"),
    ("modificationtime", "timestamp"),
    ("length", "bigint"),
    ("content", "binary"),
)
"""The columns of files in Spark's format `binaryFile`."""
AS_NAMED: Mapping[str, str] = MappingProxyType(
    {
        "ignoredPathSegmentRegex": "(?!)",  # otherwise names that begin with _ or . are skipped
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }
)
"""Options with which Spark reads exactly the named files, whatever the session's settings are."""

_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_FEWEST_LISTED = 32
"""Spark's default: a job lists more files than this."""
_listing = threading.Lock()


@contextmanager
def listed_by_driver(session: SparkSession, files: Collection[str]) -> Generator[None]:
    """Make the driver list files if all are local.

    Spark lists many files with a job that has a task for each of them. This pays off for object
    stores only.
    """
    # A server lists files itself, later: its sessions have no context.
    is_classic = hasattr(session, "sparkContext")
    if len(files) <= _FEWEST_LISTED or not is_classic or any(map(scheme_of, files)):
        yield
        return
    with _listing:
        former = session.conf.get(_THRESHOLD, None)
        session.conf.set(_THRESHOLD, str(len(files)))
        try:
            yield
        finally:
            if former is None:
                session.conf.unset(_THRESHOLD)
            else:
                session.conf.set(_THRESHOLD, former)


def load_unpinned(
    session: SparkSession,
    form: str,
    options: Mapping[str, str],
    place: str | None,
    columns: Sequence[Column],
) -> DataFrame:
    """Return the rows of data without versions, as they are now.

    Parameters
    ----------
    form
        The format of the data; ``catalog``: a table that the session's catalog names.
    place
        The location as Spark spells it; None: options describe it.
    columns
        The declared columns; the result may have others, with other types.
    """
    if form == CATALOG:
        session.catalog.refreshTable(options["table"])  # the session may have an older file list
        return session.table(options["table"])
    reader = session.read.format(form)
    if form in PARSED and columns:  # inferred types would change texts: 007 would become 7
        options = {**options, **reading_options(form, options, columns)}
        rows = reader.options(**options).schema(schema_of(columns)).load(place)
        return whole_records(rows, columns)
    if form == "binaryfile" and columns:
        own = {name for name, _ in _OF_BINARY_FILES}
        others = [c for c in columns if c.name.lower() not in own]  # of partition directories
        schema = ", ".join((*(f"{n} {t}" for n, t in _OF_BINARY_FILES), schema_of(others)))
        reader = reader.schema(schema.removesuffix(", "))
    return reader.options(**options).load(place)


def schema_of(columns: Iterable[Column]) -> str:
    """Return the schema with which Spark reads columns of files."""
    return ", ".join(f"{quote(c.name)} {read_type(c.type)}" for c in columns)


def read_type(kind: str | None) -> str:
    """Return the type to read a column as; CHAR and VARCHAR are strings in files."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind or "string")


def reading_options(
    form: str, options: Mapping[str, str], columns: Sequence[Column]
) -> dict[str, str]:
    """Return the options with which no malformed record of a text format goes unnoticed."""
    mode = {"mode": read_mode(options, columns), CORRUPT: corrupt_column(options)}
    if form != "csv":
        return mode
    # otherwise a record with too few or too many values may go unnoticed
    return {**mode, "columnPruning": "false", "enforceSchema": "true"}


def whole_records(
    frame: DataFrame, columns: Iterable[Column], outside: Collection[str] = ()
) -> DataFrame:
    """Return rows of a text format for which Spark parses all columns of all records.

    Spark converts only the columns that a query needs, and skips records by pushed conditions
    before it converts the others. Whether a record is malformed, and then dropped, stored or an
    error, would depend on the query. So a condition that is always true needs all columns, and all
    conditions are on expressions, which Spark does not push to formats.

    Parameters
    ----------
    columns
        The declared columns.
    outside
        The lower-case names of columns that are directories: conditions on them skip files.
    """
    inside = [quote(c.name) for c in columns if c.name.lower() not in outside]
    if not inside:
        return frame
    # Calls stay flat where sums of many columns nest deeply; one needs at least two terms.
    terms = (*(f"IF({name} IS NULL, 1, 2)" for name in inside), f"IF({inside[0]} IS NULL, 2, 1)")
    shown = (
        f"coalesce({name}, {name}) AS {name}" if name in inside else name
        for name in map(quote, frame.columns)
    )
    return frame.where(f"greatest({', '.join(terms)}) > 0").selectExpr(*shown)


def directories_to_cast(
    session: SparkSession, files: Sequence[str], base: str | None, columns: Iterable[Column]
) -> frozenset[str]:
    """Return the partition columns, in lower case, to read as strings and to CAST to their types.

    Other columns have texts that Spark's file sources certainly read as CAST does.

    Parameters
    ----------
    base
        The table's location; None: no directory is a column.

    Raises
    ------
    StorageError
        A text is no value of its column's type.
    """
    types = {c.name.lower(): c.type or "string" for c in columns}
    kinds = {name: plain_type(kind) for name, kind in types.items()}
    uncertain = {
        (name, text): file
        for (name, text), file in texts_by_column(files, base).items()
        if name in kinds and not is_certain(kinds[name], text)
    }
    for (name, text), file in uncertain.items():
        if depends_on_clock(kinds[name], text):
            raise misread(file, name, text, kinds[name])
    for name in {name for name, _ in uncertain}:
        texts = [(text, unescaped(text)) for n, text in uncertain if n == name]
        rows = session.createDataFrame(texts, "listed string, text string")
        wrong = rows.where(f"try_cast(text AS {types[name]}) IS NULL").limit(1).collect()
        if wrong:
            text = wrong[0]["listed"]
            raise misread(uncertain[name, text], name, text, kinds[name])
    return frozenset(name for name, _ in uncertain if not is_cast_by_spark(kinds[name]))


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
