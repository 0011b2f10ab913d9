"""Windows: rows of a table by values of some columns, and the input rows that they follow from.

    changes ─► spans of the time column ─► Window ─► conditions on the tables that are read

Nothing here decides that computing only a window is right: `planning.increments` did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.core.dialect import quote
from persist_assets.core.time_values import (
    Span,
    Value,
    earlier,
    from_spark,
    from_text,
    is_ordered,
    literal,
    spelled,
    within,
)
from persist_assets.engine.session import translated
from persist_assets.planning.increments import (
    Touched,
    column_type,
    merged_spans,
    parted_by,
    time_type,
    touched,
)
from persist_assets.storage.delta_tables import nulls_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.columns import Trace
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.protocol import Engine
    from persist_assets.engine.python_functions import Since
    from persist_assets.storage.delta_tables import Live


@dataclass(frozen=True, slots=True)
class Window:
    """Rows by their values of some columns.

    Attributes
    ----------
    columns
        Their names and Spark types.
    boxes
        Each has a span for every column, with its ends, which may be open above.
    nulls
        Whether NULL in the first column counts as in.
    leaves
        For input tables, the SQL condition of the rows that the window's rows follow from.
    """

    columns: tuple[tuple[str, str], ...]
    boxes: tuple[tuple[tuple[Value, Value | None], ...], ...]
    nulls: bool = False
    leaves: Mapping[SourceID, str] = field(default_factory=dict[str, str])

    @property
    def condition(self) -> str:
        """The SQL condition for rows in the window. It is never NULL."""
        tests = [f"{quote(self.columns[0][0])} IS NULL"] if self.nulls else []
        for box in self.boxes:
            sides = zip(self.columns, box, strict=True)
            tests.append(" AND ".join(within(name, kind, *span) for (name, kind), span in sides))
        return "(" + (" OR ".join(f"({test})" for test in tests) or "false") + ")"


def find_window(
    engine: Engine,
    project: Project,
    source: Source,
    increment: Increment,
    load: Callable[[SourceID, tuple[str, ...]], DataFrame],
) -> Window | None:
    """Return the values of the time column of rows that may have changed.

    None if they are unknown.

    Parameters
    ----------
    load
        Returns the rows of some files of an input.
    """
    columns = parted_by(source, increment.base)
    assert columns
    if increment.past:
        assert increment.base.watermark is not None
        watermark = from_text(increment.base.watermark, columns[0][1])
        if watermark is None or (
            _is_bounded(source) and _has_timeless(engine, source, increment.base)
        ):
            return None
        past = _past(watermark, source.annotation.lookback_s)
        return Window(columns, (*past, *((span,) for span in increment.spans)), nulls=True)
    zone = engine.settings.timezone.key
    touched_spans = touched(
        project, increment.traces, increment.changes, columns[0][1], zone, _looker(project, load)
    )
    if touched_spans is None:
        return None
    spans = merged_spans([*touched_spans[0], *increment.spans])
    return window_of(
        project, source, columns, [(span,) for span in spans], zone, nulls=touched_spans[1]
    )


def window_of(
    project: Project,
    source: Source,
    columns: tuple[tuple[str, str], ...],
    boxes: Sequence[tuple[Span, ...]],
    zone: str,
    *,
    nulls: bool = False,
) -> Window:
    """Return a window with the conditions on its input tables."""
    spans = merged_spans(box[0] for box in boxes)
    leaves = _mattering(project, source, spans, columns[0][1], zone, nulls)
    return Window(columns, tuple(boxes), nulls, leaves)


def since_of(source: Source, increment: Increment | None, window: Window | None) -> Since | None:
    """Return the lower bound of a window for a query that uses it; None: the query gets all rows.

    A query gets it if the user states that rows do not depend on earlier ones.
    """
    if increment is None or window is None or not window.boxes:
        return None
    trusted = increment.past if source.function is None else source.annotation.assume is not None
    if not trusted:  # windows are known to follow, whatever the query says
        return None
    low = min(box[0][0] for box in window.boxes)  # pyright: ignore[reportArgumentType]
    return low, time_type(source, increment.base) or ""


def _mattering(
    project: Project, source: Source, spans: Sequence[Span], kind: str, zone: str, nulls: bool
) -> dict[SourceID, str]:
    """Return SQL conditions, by input table, that hold at least for the rows that windows need."""
    windows = source.windows
    tests: dict[SourceID, list[str]] = {}
    unbounded = {*windows.loose} if windows else set[str]()
    for trace in windows.traces if windows else ():
        source_id, column = trace.column.source_id, trace.column.column
        leaf = column_type(project.by_id[source_id].columns, column) or ""
        is_bounded = all(step.days >= 0 for step in trace.steps)
        if not is_bounded or not spans or not is_ordered(leaf):
            unbounded.add(source_id)
            continue
        for low, high in spans:
            least, most = (f"CAST({literal(v, kind)} AS {leaf})" for v in (low, high))
            days = sum(step.days for step in trace.steps)
            if trace.steps and zone != "UTC":  # a day more on either side: clocks are put back
                least, days = f"({least} - INTERVAL '1' DAY)", days + 1
            if days:
                most = f"({most} + INTERVAL '{days}' DAY)"
            tests.setdefault(source_id, []).append(
                f"({quote(column)} >= {least} AND {quote(column)} <= {most})"
            )
        if nulls:
            tests.setdefault(source_id, []).append(f"{quote(column)} IS NULL")
    return {s: " OR ".join(some) for s, some in tests.items() if s not in unbounded}


def _looker(
    project: Project, load: Callable[[SourceID, tuple[str, ...]], DataFrame]
) -> Callable[[Trace, tuple[str, ...]], Touched | None]:
    """Return a function that reads the values of a column from files."""

    def look(trace: Trace, files: tuple[str, ...]) -> Touched | None:
        leaf, name = project.by_id[trace.column.source_id], quote(trace.column.column)
        kind = column_type(leaf.columns, trace.column.column)
        assert kind is not None
        with translated(f"reading the new rows of `{leaf.name}`"):
            row = (
                load(leaf.source_id, files)
                .selectExpr(
                    f"{spelled(f'min({name})', kind)} AS low",
                    f"{spelled(f'max({name})', kind)} AS high",
                    f"count_if({name} IS NULL) AS nulls",
                )
                .collect()[0]
            )
        if row["low"] is None:
            return (), row["nulls"] > 0
        low, high = from_spark(row["low"], kind), from_spark(row["high"], kind)
        return None if low is None or high is None else (((low, high),), row["nulls"] > 0)

    return look


def _is_bounded(source: Source) -> bool:
    """Whether a query limits its own rows by a parameter."""
    return source.query is not None and bool(source.query.bounds)


def _has_timeless(engine: Engine, source: Source, base: Snapshot) -> bool:
    """Whether a table may have rows without a time, which may depend on rows of any time."""
    root, column = engine.settings.table_root(base.table), source.annotation.time_column or ""
    return nulls_in(root, base.version, column) != 0


def _past(watermark: Value, lookback_s: int) -> tuple[tuple[tuple[Value, None]]]:
    """Return the box of values from a watermark on, and of late values that may still arrive."""
    return (((earlier(watermark, lookback_s), None),),)


def meets(file: Live, window: Window) -> bool:
    """Whether a file may have rows of a window."""
    if window.nulls and file.nulls.get(window.columns[0][0].lower(), 1) > 0:
        return True
    return any(
        all(
            file.may_have(name, kind, span)
            for (name, kind), span in zip(window.columns, box, strict=True)
        )
        for box in window.boxes
    )
