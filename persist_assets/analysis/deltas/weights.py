"""Rows with weights: equal ones are united, and their weights are added.

Spark's GROUP BY unites values that are equal and yet differ: the two zeros of floating point, and
strings that their collation takes for the same. Such values are told apart here by their texts,
because a query may do so too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.dialect import quote
from persist_assets.core.model.deltas import ROW_WEIGHT
from persist_assets.core.spark_types import is_loose

if TYPE_CHECKING:
    from collections.abc import Iterable

    Columns = Iterable[tuple[str, str | None]]


def netted(rows: str, columns: Columns) -> str:
    """Return the SELECT of the rows whose weights add up to another number than 0.

    Parameters
    ----------
    rows
        A SELECT of the columns and of `ROW_WEIGHT`.
    columns
        The name of each column, as SQL, and its type; None: unknown.
    """
    columns, weight = [*columns], quote(ROW_WEIGHT)
    items = "".join(f"first({c}) AS {c}, " if is_loose(k) else f"{c}, " for c, k in columns)
    keys = ", ".join((*(c for c, _ in columns), *texts_of(columns)))
    return (
        f"SELECT {items}sum({weight}) AS {weight} FROM ({rows})"
        f"{f' GROUP BY {keys}' if keys else ''} HAVING sum({weight}) <> 0"
    )


def texts_of(columns: Columns) -> list[str]:
    """Return SQL expressions that distinguish values that are equal but not identical."""
    return [f"CAST({column} AS STRING)" for column, kind in columns if is_loose(kind)]
