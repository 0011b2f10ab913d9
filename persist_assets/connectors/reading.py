"""What all connectors need: tables as declared, files told apart, and no row left out for NaN."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING, Any

from persist_assets.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.model import Column, External

FILE, ROW = "_persist_file", "_persist_row"
"""The columns that say from which file a row is, and its number there."""

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
        A column is not there or has another type, or one name is there twice.
    """
    by_name = {name.lower(): (name, kind) for name, kind in there}
    if len(by_name) < len(there):
        raise StorageError(f"columns of {table} differ in case alone")
    for column in declared:
        name, kind = by_name.get(column.name.lower(), (None, ""))
        if name is None:
            raise StorageError(
                f"{table} has no column `{column.name}`",
                hint=f"it has: {', '.join(name for name, _ in there)}",
            )
        if column.type is not None and _bare(column.type) != _bare(kind):
            raise StorageError(
                f"column `{column.name}` of {table} is {kind}, and is declared as {column.type}",
                hint=f"declare it as {kind}, and cast it in a view",
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
