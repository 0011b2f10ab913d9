"""What all connectors need of Spark: rows with their files' names, and no row left out for NaN."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persist_assets.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

FILE, ROW = "_persist_file", "_persist_row"
"""The columns that say from which file a row is, and its number there."""

_SAFE = re.compile(r"[A-Za-z0-9._=+-]+")
"""Names of files that Spark spells as the logs of tables do."""


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


def unpruned(column: str, kind: str) -> str:
    """Return a column of files, in SQL, of which Spark leaves no row group out for its NaN.

    Statistics that others write leave NaN out, and Spark leaves a row group out by them although
    NaN is greater than all numbers to it. It does not look behind a function.

    Examples
    --------
    >>> unpruned("`x`", "double"), unpruned("`s`", "struct<y:double>"), unpruned("`i`", "int")
    ('nanvl(`x`, `x`)', 'element_at(array(`s`), 1)', '`i`')
    """
    if kind in ("float", "double"):
        return f"nanvl({column}, {column})"
    if kind.startswith("struct") and re.search(r":(float|double)\b", kind):
        return f"element_at(array({column}), 1)"
    return column


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
