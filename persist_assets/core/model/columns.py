"""Columns: their types, and the columns from which they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.model.queries import SourceID


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source.

    Attributes
    ----------
    type
        Spark's name of the type (``decimal(10,2)``, ``struct<a:int>``), or None if it is unknown
        before the query has run.
    """

    name: str
    type: str | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class ColumnRef:
    """A column of a source."""

    source_id: SourceID
    column: str


@dataclass(frozen=True, slots=True, order=True)
class MonotoneStep:
    """A monotone function of dates and times.

    Attributes
    ----------
    function
        ``cast``, ``date_trunc``, ``trunc`` or ``year``.
    unit
        The target type of a cast, or the unit of truncation.
    days
        The maximum number of days by which the result may be earlier; -1: unknown.
    """

    function: str
    unit: str
    days: int


@dataclass(frozen=True, slots=True, order=True)
class Trace:
    """A column of a table that another column's value is a monotone function of.

    Attributes
    ----------
    steps
        The functions applied to the column's value, in order.
    """

    column: ColumnRef
    steps: tuple[MonotoneStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """The input rows that decide the rows whose value in a column is in some set.

    Attributes
    ----------
    traces
        In the tables of these columns, only rows matter whose column leads to a value in the set.
    loose
        The tables of which any row may matter.
    """

    traces: tuple[Trace, ...]
    loose: frozenset[SourceID]


@dataclass(frozen=True, slots=True)
class Growth:
    """The dependency of a relation's rows on the tables it reads; see `analysis/increments.py`.

    Attributes
    ----------
    reads
        All tables that it reads.
    sums
        Sets of tables in which the relation is additive: rows added to the tables of one set, while
        the others stay the same, only add the relation's rows over them.
    columns
        For each column, the input rows that decide its windows.
    """

    reads: frozenset[SourceID]
    sums: tuple[frozenset[SourceID], ...]
    columns: tuple[Windows, ...]


@dataclass(frozen=True, slots=True)
class ColumnEdge:
    """A column that another is computed from.

    Attributes
    ----------
    upstream
        A column of a persisted source or raw table; sources in between are expanded.
    column
        The name of the column computed from it.
    """

    upstream: ColumnRef
    column: str


@dataclass(frozen=True, slots=True)
class Parts:
    """Digests of the parts of a source's meaning, for comparison; only BuildIDs decide builds.

    Attributes
    ----------
    rows
        A short digest of the set of rows, regardless of their columns.
    columns
        For each column, in order, its name and a short digest of its expression over the rows.
    """

    rows: str
    columns: tuple[tuple[str, str], ...] = ()


SHORT = 16
"""The length of digests that only show what changed."""


def shortened(rows: str, columns: Iterable[str]) -> str:
    """Return the prefixes of digests in one text: for the rows, then for each column."""
    return "".join(d[:SHORT] for d in (rows, *columns))
