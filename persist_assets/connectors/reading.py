"""What all connectors need: tables as declared, files told apart, and no row left out for NaN."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.dialect import char_size, quote
from persist_assets.errors import StorageError, did_you_mean
from persist_assets.storage.types import CHAR_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.model import Column, External

FILE, ROW = "_persist_file", "_persist_row"
"""The columns that say from which file a row is, and its number there."""

AS_NAMED: Mapping[str, str] = MappingProxyType(
    {
        "ignoredPathSegmentRegex": "(?!)",  # else names that begin with _ or . are left out
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }
)
"""Options with which Spark reads the files that are named, whatever the session's settings are."""

_LOADING = 4
"""So many threads load groups of files."""
_SAFE = re.compile(r"[A-Za-z0-9._=+-]+")
"""Names of files that Spark spells as the logs of tables do."""


def conditions_of(external: External, predicate: str | None, *, start: bool) -> list[str]:
    """Return what has to be true of rows: a predicate, and what a declaration filters by.

    Parameters
    ----------
    start
        Whether they are the rows that a copy starts with.

    Examples
    --------
    >>> from persist_assets.model import External
    >>> conditions_of(External("delta_table_input", filter="b"), "a", start=True)
    ['a', 'b']
    """
    said = (predicate, external.filter, external.snapshot_filter if start else None)
    return [text for text in said if text is not None]


def check_columns(declared: Iterable[Column], there: Sequence[tuple[str, str]], table: str) -> None:
    """Raise where a table is not as it is declared; it may have more columns.

    Parameters
    ----------
    there
        The names and types of its columns.
    table
        Which table it is, for the message.

    Raises
    ------
    StorageError
        Columns are not there or have other types: all of them are told. Or one name is there
        twice.
    """
    by_name = {name.lower(): kind for name, kind in there}
    if len(by_name) < len(there):
        raise StorageError(f"columns of {table} differ in case alone")
    columns = {c.name: c.type for c in declared}
    lacking = [c for c in columns if c.lower() not in by_name]
    others = [
        (c, by_name[c.lower()], kind)
        for c, kind in columns.items()
        if c not in lacking and kind is not None and _bare(kind) != _bare(by_name[c.lower()])
    ]
    if not lacking and not others:
        return
    said: list[str] = []
    hints: list[str] = []
    if lacking:
        named = ", ".join(f"`{c}`" for c in lacking)
        said.append(f"it has no column{'s' * (len(lacking) > 1)} {named}")
        spare = [name for name, _ in there if name.lower() not in {c.lower() for c in columns}]
        meant = [(c, did_you_mean(c, spare)) for c in lacking]
        hints += (f"for `{c}`, {hint}" for c, hint in meant if hint is not None)
        if any(hint is None for _, hint in meant):
            hints.append(f"it has: {', '.join(name for name, _ in there)}")
    if others:
        said += (
            f"`{c}` is {kind} there, and is declared as {wanted}" for c, kind, wanted in others
        )
        types = ", ".join(f"`{c}` as {kind}" for c, kind, _ in others)
        hints.append(f"declare {types}, and cast in a view")
    raise StorageError(
        f"{table} is not as it is declared: {'; '.join(said)}", hint="; ".join(hints)
    )


def _bare(kind: str) -> str:
    """Return a type without what tables do not keep: lengths of texts."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind.lower().replace(" ", ""))


def check_names(places: Iterable[str], table: str) -> None:
    """Raise where names do not tell files from each other.

    Parameters
    ----------
    table
        Which table it is, for the message.

    Raises
    ------
    StorageError
        Two have one name, or Spark spells one otherwise.
    """
    names = [place.rpartition("/")[2] for place in places]
    odd = next((n for n in names if not _SAFE.fullmatch(n)), None)
    if odd or len(set(names)) < len(names):
        what = f"a file named {odd}" if odd else "two files of one name"
        raise StorageError(f"{table} has {what}: not supported", hint="have its files rewritten")


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
    there: dict[str, int] = {}
    for path, n in scan.groupBy("_metadata.file_path").count().collect():
        name = unquote(path).rpartition("/")[2]
        there[name] = there.get(name, 0) + n
    different = [
        f"{place} ({there.get(name, 0):,} of {n:,} rows)"
        for place, n in promised.items()
        if there.get(name := place.rpartition("/")[2], 0) != n
    ]
    raise StorageError(
        f"Spark reads {count:,} rows of {table}, and its log says {total:,}:"
        f" {', '.join(different[:3])}{', …' if len(different) > 3 else ''}",
        hint="a file was replaced, or Spark ignores its name; have the table's files rewritten",
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

    found: list[Any] = []
    for name in frame.columns:
        column, n = quote(name), sizes.get(name.lower())
        if n is None:
            found.append(F.col(column))
            continue
        text = F.expr(f"IF(length({column}) < {n}, rpad({column}, {n}), {column})")
        found.append(text.alias(name, metadata={CHAR_TYPE: f"char({n})"}))
    return frame.select(*found)


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


def small_frame(session: SparkSession, rows: Sequence[Sequence[Any]], kinds: str) -> DataFrame:
    """Return rows as a frame that is part of its query: no job has to bring them.

    Parameters
    ----------
    kinds
        Names and types of the columns, as in a CREATE TABLE: string, int, bigint or boolean.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F

    named = [kind.split() for kind in kinds.split(", ")]
    fields = [(name, _ARROW[kind]) for name, kind in named]
    columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in fields]
    table = pa.table(dict(zip((n for n, _ in fields), columns, strict=True)), pa.schema(fields))
    return F.broadcast(session.createDataFrame(table))


_ARROW = {"string": "string", "int": "int32", "bigint": "int64", "boolean": "bool"}
