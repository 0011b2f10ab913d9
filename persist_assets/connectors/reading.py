"""What all connectors need of Spark: rows with their files' names, and no row left out for NaN."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column

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


def unpruned(column: Column, kind: str) -> Column:
    """Return a column of files, of which Spark leaves no row group out for its NaN.

    Statistics that others write leave NaN out, and Spark leaves a row group out by them although
    NaN is greater than all numbers to it. It does not look behind a function.
    """
    from pyspark.sql import functions as F

    if kind in ("float", "double"):
        return F.nanvl(column, column)
    if kind.startswith("struct") and re.search(r":(float|double)\b", kind):
        return F.element_at(F.array(column), 1)
    return column
