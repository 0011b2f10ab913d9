"""Incremental computation of a source after changes of the tables it reads. Pure.

    growth of its rows (`analysis/increments.py`) ┐
    changes of the tables (`storage/changes.py`)  ┴─► Increment, or why everything is computed

If the changed tables only grew and the source is additive in them, rows are only added. Otherwise
windows of its time column are computed again, if its rows in them follow from windows of the
tables. The invariant: either way, the resulting table equals one computed in full.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from persist_assets.core.model.columns import MonotoneStep, Trace
from persist_assets.core.model.plans import Increment
from persist_assets.core.time_values import (
    TIMES,
    Span,
    Value,
    earlier,
    from_statistics,
    from_text,
    is_ordered,
    lead,
    overlap,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.plans import Change, Piece
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Touched = tuple[tuple[Span, ...], bool]
"""The possible values of a column, and whether NULL is one."""
_MOST_SPANS = 16
_GROUP_BYTES = 3 * 2**20
_NO_SUM = "rows added upstream may change its existing rows"
_MOST_GROUPS = 80
"""Spark plans each group separately; a later replacement covers the rows of one or two groups."""


def grow(
    project: Project,
    source: Source,
    base: Snapshot,
    changes: Mapping[SourceID, Change | None],
    spans: tuple[Span, ...] = (),
    zone: str = "UTC",
) -> Increment | str:
    """Return the increment by which a build continues a snapshot, or why it cannot.

    Parameters
    ----------
    base
        A snapshot of the same BuildID.
    changes
        For each table that the source reads, its change since then.
    spans
        Additional spans of the time column to compute again.
    zone
        The session's time zone.
    """
    certain = {s: change for s, change in changes.items() if change is not None}
    changed = {s: change for s, change in certain.items() if change.added or change.lost}
    shrunk = {s for s, change in changed.items() if change.lost}
    outcome = obstacle(source)
    if outcome is None and len(certain) < len(changes):
        outcome = f"the changes in {_names(project, changes.keys() - certain.keys())} are unknown"
    if outcome is None:
        outcome = None if shrunk or spans else _sum(source, base, certain)
    if spans and not changed and len(certain) == len(changes) and source.annotation.merge is None:
        return Increment(base, spans=spans)
    if outcome is None and source.annotation.merge is None:
        outcome = _windows(project, source, base, changed)
        outcome = replace(outcome, spans=spans) if outcome else None
    if outcome is None:
        reason = (
            "rows of {} changed or were removed"
            if shrunk
            else "its rows do not follow from those of {}"
        )
        outcome = reason.format(_names(project, shrunk or changed))
    assumed = source.annotation.assume is not None and base.watermark is not None
    if isinstance(outcome, str) and assumed and is_ordered(time_type(source, base)):
        if not shrunk:
            late = _late(project, source, base, changed, zone)
            return Increment(base, past=True, spans=spans, late=late)
        outcome = f"rows of {_names(project, shrunk)} changed or were removed"
    return outcome


def _late(
    project: Project, source: Source, base: Snapshot, changed: Mapping[SourceID, Change], zone: str
) -> tuple[str, ...]:
    """Return the tables with new files that have times before the watermark and its lookback.

    The files' statistics show this if the time column is one of their columns or follows from them.
    """
    name, kind = (source.annotation.time_column or "").lower(), time_type(source, base) or ""
    watermark = from_text(base.watermark or "", kind)
    if watermark is None:
        return ()
    first, late = earlier(watermark, source.annotation.lookback_s), set[str]()
    origins = [e.upstream for e in source.lineage if e.column.lower() == name]
    for source_id, change in changed.items():
        columns = [o.column for o in origins if o.source_id == source_id] or [name]
        for column in columns:
            leaf = column_type(project.by_id[source_id].columns, column) or ""
            steps = (MonotoneStep("cast", kind, 0),) if leaf != kind and kind in TIMES else ()
            piece_spans = (span(piece, column, leaf) for piece in change.added) if leaf else ()
            led = (
                lead(t[:2], leaf, steps, zone) for t in piece_spans if t and (steps or leaf == kind)
            )
            if any(low is not None and low[0] < first for low in led):  # pyright: ignore[reportOperatorIssue]
                late.add(project.by_id[source_id].name)
    return tuple(sorted(late))


def _names(project: Project, sources: Iterable[SourceID]) -> str:
    return ", ".join(sorted(project.by_id[s].name for s in sources))


def _sum(source: Source, base: Snapshot, changes: Mapping[SourceID, Change]) -> Increment | None:
    """Return the increment that only adds rows, if the source is additive in the changed tables."""
    changed = {s for s, change in changes.items() if change.added}
    for tables in source.growth.sums if source.growth else ():
        if tables.issuperset(changed):
            added = {s: tuple(p.path for p in changes[s].added) for s in tables}
            return Increment(base, added=added)
    return None


def _windows(
    project: Project, source: Source, base: Snapshot, changed: Mapping[SourceID, Change]
) -> Increment | None:
    """Return the increment that recomputes windows, if all changes are known to lie in windows."""
    traces = _traces(project, source, changed.keys())
    for trace in traces or ():
        kind = column_type(project.by_id[trace.column.source_id].columns, trace.column.column)
        change, name = changed[trace.column.source_id], trace.column.column
        lost = () if name.lower() in change.within else change.lost
        if any(span(p, name, kind or "") is None for p in lost):
            return None
    return None if traces is None else Increment(base, changes=changed, traces=traces)


def _traces(
    project: Project, source: Source, changed: Collection[SourceID]
) -> tuple[Trace, ...] | None:
    """Return the traces from tables to the time column; None: its windows do not follow them."""
    windows = source.windows
    if windows is None or windows.loose & {*changed} or not is_ordered(time_type(source)):
        return None
    traces = tuple(t for t in windows.traces if t.column.source_id in changed)
    if {t.column.source_id for t in traces} != {*changed}:
        return None
    columns = ((project.by_id[t.column.source_id].columns, t.column.column) for t in traces)
    return traces if all(is_ordered(column_type(*column)) for column in columns) else None


def expected_method(
    project: Project, source: Source, table: SourceID, *, grows: bool
) -> Literal["append", "windows"] | None:
    """Return how an incremental build follows a change of one table, without knowing the change.

    None: it does not add rows, and its windows of time do not follow from those of the table.

    Parameters
    ----------
    grows
        Rows are only added.
    """
    if obstacle(source) is not None or source.growth is None:
        return None
    if grows and any(table in tables for tables in source.growth.sums):
        return "append"
    if source.annotation.merge is not None:
        return None
    return "windows" if _traces(project, source, (table,)) is not None else None


def may_keep_states(project: Project, source: Source) -> bool:
    """Whether the table of a source may keep states of its aggregates.

    A table that grows, or whose windows of time are computed again, has no use for them.
    """
    annotation = source.annotation
    return not (annotation.is_incremental and annotation.time_column) or not any(
        expected_method(project, source, table.source_id, grows=grows)
        for table in project.inputs(source)
        for grows in (True, False)
    )


def touched(
    project: Project,
    traces: Iterable[Trace],
    changes: Mapping[SourceID, Change],
    kind: str,
    zone: str,
    look: Callable[[Trace, tuple[str, ...]], Touched | None] = lambda *_: None,
) -> Touched | None:
    """Return the values to which traces lead from changed rows; None if that is not known.

    Parameters
    ----------
    traces
        Traces from columns of the tables to one of type `kind`.
    zone
        The session's time zone.
    look
        Returns the values of a trace's column in files without usable statistics.
    """
    result_spans: list[Span] = []
    nulls = False
    for trace in traces:
        column_values = _values(project, trace, changes[trace.column.source_id], look)
        if column_values is None:
            return None
        spans, some = column_values
        nulls |= some
        leaf = column_type(project.by_id[trace.column.source_id].columns, trace.column.column)
        steps = steps_to(trace, leaf, kind)
        exact = trace.column.column.lower() in changes[trace.column.source_id].within
        for values in merged_spans(spans):
            led = lead(values, leaf or "", steps, zone, exact=exact)
            if led is None:
                return None
            result_spans.append(led)
    return merged_spans(result_spans), nulls


def _values(
    project: Project,
    trace: Trace,
    change: Change,
    look: Callable[[Trace, tuple[str, ...]], Touched | None],
) -> Touched | None:
    """Return the values of a column in added and removed rows."""
    source_id, column = trace.column.source_id, trace.column.column
    if column.lower() in change.within:
        return change.within[column.lower()], False
    kind = column_type(project.by_id[source_id].columns, column)
    spans: list[Span] = []
    nulls, unknown = False, list[str]()
    for piece in (*change.lost, *change.added):
        statistics = span(piece, column, kind or "")
        if statistics is not None:
            spans.append(statistics[:2])
            nulls |= statistics[2]
        elif piece in change.lost:
            return None
        else:
            unknown.append(piece.path)
    if unknown:
        file_values = look(trace, tuple(unknown))
        if file_values is None:
            return None
        spans += file_values[0]
        nulls |= file_values[1]
    return tuple(spans), nulls


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return at most `_MOST_SPANS` spans, in order, that cover the given ones."""
    merged: list[Span] = []
    for low, high in sorted(spans):  # pyright: ignore[reportArgumentType]
        if merged and low <= merged[-1][1]:  # pyright: ignore[reportOperatorIssue]
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))  # pyright: ignore[reportArgumentType]
        else:
            merged.append((low, high))
    if len(merged) > _MOST_SPANS:
        merged = [(merged[0][0], merged[-1][1])]
    return tuple(merged)


def meeting(
    pieces: Iterable[Piece],
    trace: Trace,
    leaf: str | None,
    kind: str,
    zone: str,
    spans: Iterable[tuple[Value, Value | None]],
    *,
    nulls: bool,
) -> tuple[Piece, ...]:
    """Return the files that may have rows which a trace leads to values of the spans.

    Parameters
    ----------
    leaf, kind
        The types of the trace's column and of its target.
    nulls
        Whether NULL counts as such a value.
    """
    matches: list[Piece] = []
    targets, steps = [*spans], steps_to(trace, leaf, kind)
    for piece in pieces:
        statistics = span(piece, trace.column.column, leaf or "")
        led = lead(statistics[:2], leaf or "", steps, zone) if statistics else None
        if (
            statistics is None
            or led is None
            or (nulls and statistics[2])
            or any(overlap(led, one) for one in targets)
        ):
            matches.append(piece)
    return tuple(matches)


def steps_to(trace: Trace, leaf: str | None, kind: str) -> tuple[MonotoneStep, ...]:
    """Return the steps of a trace, with a final cast to the type of its target if needed."""
    if kind in TIMES and leaf != kind:
        return (*trace.steps, MonotoneStep("cast", kind, 0))
    return trace.steps


def in_order(pieces: Iterable[Piece], column: str, kind: str | None) -> tuple[tuple[str, ...], ...]:
    """Return files in groups that follow one another in the values of a column, each large enough.

    Empty if more than a tenth of the files overlap, or if the values in some are not known.
    """
    pairs = [(span(piece, column, kind or ""), piece) for piece in pieces]
    spans = sorted(
        ((s[0], s[1], p) for s, p in pairs if s is not None),
        key=lambda s: s[:2],  # pyright: ignore[reportArgumentType]
    )
    if len(spans) < len(pairs):
        return ()
    overlaps = sum(
        after[0] < before[1]  # pyright: ignore[reportOperatorIssue]
        for before, after in pairwise(spans)
    )
    if overlaps * 10 > len(spans):
        return ()
    least = max(_GROUP_BYTES, sum(p.bytes for *_, p in spans) // _MOST_GROUPS)
    groups: list[list[str]] = []
    size = least
    for *_, piece in spans:
        if size >= least:
            groups.append([])
            size = 0
        groups[-1].append(piece.path)
        size += piece.bytes
    return tuple(map(tuple, groups)) if len(groups) > 1 else ()


def parted_by(source: Source, base: Snapshot | None = None) -> tuple[tuple[str, str], ...]:
    """Return the columns by whose values parts of a table are recomputed, with their types.

    These are the columns of its partitions, else its time column; empty if a type is not certain.
    """
    partition = source.annotation.partition
    names = (
        [d.column for d in partition.dimensions]
        if partition
        else [source.annotation.time_column or ""]
    )
    kinds = [_type_of(source, name, base) for name in names]
    return tuple(zip(names, kinds, strict=True)) if all(kinds) else ()  # pyright: ignore[reportReturnType]


def trace_to_partitions(source: Source, upstream: Source) -> Trace | None:
    """Return the trace from a partitioned table to the windows of a source that reads it.

    None if the source's rows may follow from any rows of the table.
    """
    windows, parted = source.windows, parted_by(upstream)
    if windows is None or not parted or upstream.source_id in windows.loose:
        return None
    name = parted[0][0].lower()
    return next(
        (
            t
            for t in windows.traces
            if t.column.source_id == upstream.source_id and t.column.column.lower() == name
        ),
        None,
    )


def span(piece: Piece, column: str, kind: str) -> tuple[Value, Value, bool] | None:
    """Return the least and greatest value of a column in a file, and whether it has NULLs.

    None if they are not certain.
    """
    statistics = piece.spans.get(column.lower())
    if statistics is None:
        return None
    low, high = from_statistics(statistics[0], kind), from_statistics(statistics[1], kind)
    return None if low is None or high is None else (low, high, statistics[2])


def obstacle(source: Source) -> str | None:
    """Return why a source can never be built incrementally; None: it depends."""
    growth = source.growth
    if growth is None:
        return "it is always computed in full"
    if source.volatile:
        return "it is nondeterministic"
    if source.reads_clock:
        return "it depends on the current time"
    windows = source.windows
    if source.annotation.merge is not None and not growth.sums:
        return f"{_NO_SUM}, and only added rows can be merged"
    if growth.sums:
        return None
    if windows is not None and not growth.reads <= windows.loose:
        column = source.annotation.time_column
        if column and source.function is None and time_type(source) is None:
            return (
                f"the type of `{column}` is uncertain until it is computed, so its windows are"
                " unknown; cast it: CAST(… AS timestamp)"
            )
        return None
    if windows is None:
        return f"{_NO_SUM}, and it has no watermark"
    if source.function is not None and not source.annotation.time_column:
        return "it is a Python function without `by` and without a watermark"
    return (
        f"its rows at a given time do not depend on `{source.annotation.time_column}` alone in the"
        " tables it reads"
    )


def always_whole(source: Source, why: str) -> str:
    """Return the warning about a source that is annotated as incremental and can never be so."""
    if source.annotation.is_strict:
        return (
            f"with refresh=strict, only the first build of `{source.name}` and builds with"
            f" --full-refresh succeed: {why}"
        )
    return f"every build of `{source.name}` computes all rows: {why}"


def mismatch(before: Iterable[Column], now: Iterable[Column], *, grows: bool = False) -> str | None:
    """Return why rows with some columns cannot be combined with rows of others, None if they can.

    Parameters
    ----------
    grows
        New columns are allowed: earlier rows have NULL there.
    """
    kinds = {c.name.lower(): c for c in now}
    differences = [
        f"`{c.name}` was {c.type} and is {other.type}"
        for c in before
        if (other := kinds.get(c.name.lower())) and None not in (c.type, other.type)
        if _stored(c) != _stored(other)
    ]
    had = {c.name.lower() for c in before}
    differences += [f"`{c.name}` is gone" for c in before if c.name.lower() not in kinds]
    differences += [f"`{c.name}` is new" for c in now if c.name.lower() not in had and not grows]
    return "; ".join(differences) or None


def _stored(column: Column) -> str:
    """Return the type of a column in a table: CHAR and VARCHAR are strings there."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", (column.type or "").lower())


def time_type(source: Source, base: Snapshot | None = None) -> str | None:
    """Return the Spark type of the time column of a source, None if it is not certain.

    For a function, only a snapshot shows it.
    """
    return _type_of(source, source.annotation.time_column or "", base)


def _type_of(source: Source, name: str, base: Snapshot | None) -> str | None:
    kind = column_type(source.columns, name)
    if kind is None and source.function is not None and base is not None:
        return column_type(base.columns, name)
    return kind


def column_type(columns: Iterable[Column], name: str) -> str | None:
    """Return the Spark type of a column by name, None if it is not certain."""
    return next((c.type for c in columns if c.name.lower() == name.lower()), None)
