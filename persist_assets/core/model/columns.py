"""Columns: their types, and what they follow from."""

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
        Spark's name of the type (``decimal(10,2)``, ``struct<a:int>``), or None where it is not
        known before the query has run.
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
class Taken:
    """A monotone function of dates and times.

    Attributes
    ----------
    function
        ``cast``, ``date_trunc``, ``trunc`` or ``year``.
    unit
        The type that is cast to, or what is cut down to.
    days
        At most how many days earlier what comes of it may be; -1: that is not known.
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
        The function: what is done to the column's value, one after another.
    """

    column: ColumnRef
    steps: tuple[Taken, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """What the rows follow from in which a column has a value of some set.

    Attributes
    ----------
    traces
        Only rows of these tables matter whose columns lead to values of that set.
    loose
        The tables of which any row may matter.
    """

    traces: tuple[Trace, ...]
    loose: frozenset[SourceID]


@dataclass(frozen=True, slots=True)
class Growth:
    """How the rows of a relation follow those of the tables it reads (`meaning/increments.py`).

    Attributes
    ----------
    reads
        All these tables.
    sums
        Sets of them: what is added to the tables of one, the others being as they were, adds the
        relation's own rows over what is added, and changes no other row.
    columns
        For each column.
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
        A column of a persisted source or raw table: what lies between is dissolved.
    column
        The name of the column computed from it.
    """

    upstream: ColumnRef
    column: str


@dataclass(frozen=True, slots=True)
class Parts:
    """What a source means, in parts that can be compared; BuildIDs alone decide what is built.

    Attributes
    ----------
    rows
        Short digest of which rows there are, whatever columns they have.
    columns
        For each column, in order, its name and a short digest of what it is of those rows.
    """

    rows: str
    columns: tuple[tuple[str, str], ...] = ()


SHORT = 16
"""How many characters of a digest are kept where it only tells what changed."""


def shortened(rows: str, columns: Iterable[str]) -> str:
    """Return the beginnings of digests in one text: of the rows, then of each column."""
    return "".join(d[:SHORT] for d in (rows, *columns))
