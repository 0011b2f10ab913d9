"""The files of a table that can have rows with some keys, by the statistics in its log.

    keys of a change ───────────────┐
    statistics of the table's files ─┴─► the files to search

Rows often lie in the order of a key: numbers and days grow. Then a search for the keys of a change
reads few files of a large table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from persist_assets.analysis.functions import INTEGRAL
from persist_assets.planning.increments import column_type, span
from persist_assets.storage.changes import delta_pieces, is_early

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from persist_assets.building.reader import Reader
    from persist_assets.core.model.plans import Piece
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span

_KINDS = ("date", *INTEGRAL)
"""The types whose statistics are exact."""
_MOST_OVERLAP = 0.5
"""Files are not in the order of a column if each has, on average, more of its values than this."""


def pieces_of(
    reader: Reader, source: Source, snapshot: Snapshot | None, column: str
) -> tuple[Piece, ...] | None:
    """Return the files of a table that a build reads, with the statistics of a column.

    Parameters
    ----------
    snapshot
        The version of the source's table; None: it is a raw table.

    Returns
    -------
    tuple
        None if the table has no statistics.
    """
    if snapshot is not None:
        if snapshot.view is not None:
            return None
        root = reader.settings.table_root(snapshot.table)
        return delta_pieces(root, snapshot.version, column)
    root, form = reader.pins.place(source)
    pin = reader.pins.pin(source)
    if form != "delta" or pin.by_log or pin.version is None:
        return None
    # The version of a copy of an external table has no commit of its own.
    number = int(pin.version.split(":")[1]) if pin.commit is None else pin.commit
    return delta_pieces(root, number, column)


def spans_by_file(
    reader: Reader, source: Source, snapshot: Snapshot | None, column: str
) -> dict[str, Span]:
    """Return the span of an integer or date column in each file of a table, by path.

    Returns
    -------
    dict
        Without files whose statistics are uncertain, or have early dates, which Spark may shift.
        Empty if the rows are not in the order of the column.
    """
    kind = column_type(snapshot.columns if snapshot else source.columns, column)
    if kind not in _KINDS:
        return {}
    pieces = pieces_of(reader, source, snapshot, column) or ()
    spans = {p.path: s[:2] for p in pieces if (s := span(p, column, kind)) is not None}
    spans = {path: s for path, s in spans.items() if not is_early(s[0])}
    return spans if len(spans) > 1 and are_apart(spans.values()) else {}


def are_apart(spans: Iterable[Span]) -> bool:
    """Whether spans are, on average, much shorter than the span of all values."""
    lengths = [_length(low, high) for low, high in spans]
    whole = _length(min(low for low, _ in spans), max(high for _, high in spans))
    return sum(lengths) <= _MOST_OVERLAP * whole * len(lengths)


def _length(low: Any, high: Any) -> int:
    distance = high - low
    return distance if isinstance(distance, int) else distance.days


def files_with(
    files: Iterable[str], spans: Mapping[str, Span], has_key: Callable[[Span], bool]
) -> tuple[str, ...]:
    """Return the files that can have rows with some keys, and those without a span.

    Parameters
    ----------
    spans
        The spans of the key's column in files.
    has_key
        Tests whether a span has a key.
    """
    return tuple(f for f in files if f not in spans or has_key(spans[f]))
