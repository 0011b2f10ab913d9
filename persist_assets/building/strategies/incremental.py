"""A build that continues a table: rows are added to it, or windows of it computed again.

    what was added, or the windows ─► rows computed ─┬─► files written, the others kept as they are
    rows of the windows as they were, and how        │
    they measured ───────────────────────────────────┴─► what all rows measure together

Nothing here decides that this is right: `growth.grow` did. The invariant: the files kept and the
files written together are the rows that computing everything would give.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from persist_assets.core.dialect import quote
from persist_assets.core.errors import GoneError
from persist_assets.core.object_stores import spark_pattern
from persist_assets.core.time_values import (
    Span,
    Value,
    earlier,
    from_spark,
    from_statistics,
    from_text,
    greatest,
    is_ordered,
    literal,
    overlap,
    spelled,
    to_text,
    within,
)
from persist_assets.engine.row_metrics import combined, of_snapshot
from persist_assets.engine.session import translated
from persist_assets.engine.spark import Beside
from persist_assets.planning.increments import (
    Touched,
    column_type,
    merged_spans,
    parted_by,
    time_type,
    touched,
)
from persist_assets.storage.delta_tables import find_table, live_files, nulls_in
from persist_assets.storage.raw import Pin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.columns import Column, Trace
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.row_metrics import Measured
    from persist_assets.engine.spark import Engine
    from persist_assets.storage.delta_commit import Staged
    from persist_assets.storage.delta_tables import Live

_MOST_PARTS = 32
"""From so many builds' files on, small ones are written together."""
_FEWEST_MERGED = 8
_CUT = timedelta(milliseconds=2)
"""By how much less a file's greatest time may be than another's that holds no later one."""


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
        For tables that rows of the window follow from, which of their rows may matter, as SQL.
    """

    columns: tuple[tuple[str, str], ...]
    boxes: tuple[tuple[tuple[Value, Value | None], ...], ...]
    nulls: bool = False
    leaves: Mapping[SourceID, str] = field(default_factory=dict[str, str])

    @property
    def condition(self) -> str:
        """The SQL condition that a row is in it. Never NULL itself."""
        tests = [f"{quote(self.columns[0][0])} IS NULL"] if self.nulls else []
        for box in self.boxes:
            sides = zip(self.columns, box, strict=True)
            tests.append(" AND ".join(within(name, kind, *span) for (name, kind), span in sides))
        return "(" + (" OR ".join(f"({test})" for test in tests) or "false") + ")"


@dataclass(frozen=True, slots=True)
class Continued:
    """A table as it will be.

    Attributes
    ----------
    kept
        The paths of the files of its base that stay.
    parts
        The builds that these are of.
    bytes
        Of all its files.
    """

    staged: Staged
    measured: Measured
    kept: tuple[str, ...]
    parts: tuple[str, ...]
    bytes: int


def find_window(
    engine: Engine,
    project: Project,
    source: Source,
    increment: Increment,
    load: Callable[[SourceID, tuple[str, ...]], DataFrame],
) -> Window | None:
    """Return which values of the time column rows may have that are not what they were.

    None where that cannot be told.

    Parameters
    ----------
    load
        Returns the rows of some files of what is read.
    """
    columns = parted_by(source, increment.base)
    assert columns
    if increment.past:
        assert increment.base.watermark is not None
        seen = from_text(increment.base.watermark, columns[0][1])
        if seen is None or (_is_bounded(source) and _has_timeless(engine, source, increment.base)):
            return None
        past = _past(seen, source.annotation.lookback_s)
        return Window(columns, (*past, *((span,) for span in increment.again)), nulls=True)
    zone = engine.settings.timezone.key
    told = touched(
        project, increment.traces, increment.changes, columns[0][1], zone, _looker(project, load)
    )
    if told is None:
        return None
    spans = merged_spans([*told[0], *increment.again])
    return window_of(project, source, columns, [(span,) for span in spans], zone, nulls=told[1])


def window_of(
    project: Project,
    source: Source,
    columns: tuple[tuple[str, str], ...],
    boxes: Sequence[tuple[Span, ...]],
    zone: str,
    *,
    nulls: bool = False,
) -> Window:
    """Return a window, and which rows of tables may matter for it."""
    spans = merged_spans(box[0] for box in boxes)
    leaves = _mattering(project, source, spans, columns[0][1], zone, nulls)
    return Window(columns, tuple(boxes), nulls, leaves)


def _mattering(
    project: Project, source: Source, spans: Sequence[Span], kind: str, zone: str, nulls: bool
) -> dict[SourceID, str]:
    """Return which rows of tables may matter for windows, with some that do not."""
    windows = source.windows
    tests: dict[SourceID, list[str]] = {}
    unbounded = {*windows.loose} if windows else set[str]()
    for trace in windows.traces if windows else ():
        source_id, column = trace.column.source_id, trace.column.column
        leaf = column_type(project.by_id[source_id].columns, column) or ""
        known = all(step.days >= 0 for step in trace.steps)
        if not known or not spans or not is_ordered(leaf):
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


def is_clustered(source: Source) -> bool:
    """Whether a table is written in the order of its time column, so that its files differ in it.

    So it is where later builds replace some of its rows. Where rows are only added, they are in
    the order in which they came.
    """
    annotation = source.annotation
    if annotation.refresh != "incremental" or annotation.time_column is None:
        return False
    return annotation.merge is not None or not (source.growth and source.growth.sums)


def _looker(
    project: Project, load: Callable[[SourceID, tuple[str, ...]], DataFrame]
) -> Callable[[Trace, tuple[str, ...]], Touched | None]:
    """Return what looks into files for the values of a column."""

    def look(trace: Trace, files: tuple[str, ...]) -> Touched | None:
        leaf, name = project.by_id[trace.column.source_id], quote(trace.column.column)
        kind = column_type(leaf.columns, trace.column.column)
        assert kind is not None
        with translated(f"looking at what is new in `{leaf.name}`"):
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
    """Whether a query computes less where less is wanted, because it says so."""
    return source.query is not None and bool(source.query.bounds)


def _has_timeless(engine: Engine, source: Source, base: Snapshot) -> bool:
    """Whether a table may have rows without a time, which follow from rows of any."""
    root, column = engine.settings.table_root(base.table), source.annotation.time_column or ""
    return nulls_in(root, base.version, column) != 0


def _past(seen: Value, lookback_s: int) -> tuple[tuple[tuple[Value, None]]]:
    """Return the box of values past a watermark, it itself, and those that may still arrive."""
    return (((earlier(seen, lookback_s), None),),)


def _meets(file: Live, window: Window) -> bool:
    """Whether rows of a file may be in a window."""
    if window.nulls and file.nulls.get(window.columns[0][0].lower(), 1) > 0:
        return True
    return any(
        all(
            file.may_have(name, kind, span)
            for (name, kind), span in zip(window.columns, box, strict=True)
        )
        for box in window.boxes
    )


def _small(live: Mapping[str, Live]) -> set[str]:
    """Return the files that are written again because there are too many small ones."""
    sizes: dict[str, int] = {}
    for file in live.values():
        part = file.path.partition("/")[0]
        sizes[part] = sizes.get(part, 0) + file.bytes
    if len(sizes) < _MOST_PARTS:
        return set()
    chosen, total = set[str](), 0
    for part, size in sorted(sizes.items(), key=lambda item: item[1]):
        if len(chosen) >= _FEWEST_MERGED and size > total:
            break
        chosen.add(part)
        total += size
    return {path for path in live if path.partition("/")[0] in chosen}


def continue_table(
    engine: Engine,
    source: Source,
    increment: Increment,
    window: Window | None,
    frame: DataFrame,
    build_uid: str,
    checks: Sequence[Check],
    before: Mapping[str, CheckResult],
    key: Sequence[str],
    merged: Callable[[DataFrame, DataFrame], DataFrame],
    bounds: Sequence[str] = (),
) -> Continued:
    """Write the files that a table has besides those that it keeps of its base.

    Parameters
    ----------
    window
        What is computed again; None: rows are only added.
    frame
        The rows computed: those added, or all of the window's and maybe others.
    before
        What came of the base's checks, by name.
    key
        Rows take the place of those that have the same values of these columns; empty: of none.
    merged
        Returns what is written of rows that are computed, and of those that have a key of theirs.
    bounds
        Where files of a partitioned table begin; none: its rows come in order. See `Engine.write`.
    """
    base, time_column = increment.base, source.annotation.time_column
    root = engine.settings.table_root(base.table)
    table = find_table(root, base.version)
    if table is None:
        raise GoneError(
            f"version {base.version} of the table {root} is gone", hint="build it again"
        )
    live = live_files(table)
    touched = _small(live)
    on_rows = [c for c in checks if c.on_rows]
    if window is not None:
        frame = frame.where(window.condition)
        if not key:
            touched |= {f.path for f in live.values() if _meets(f, window)}
    with ExitStack() as held:
        if key:
            held.callback(frame.persist().unpersist)
            touched |= _having(engine, root, live, frame, key, base.columns, source.name)
        files = tuple(f"{root}/{path}" for path in sorted(touched))
        there = engine.read_files("parquet", Pin(None, files), base.columns, {})
        gone, rows = None, frame
        beside = Beside(there, window.condition if window and not key else None)
        if key:
            old, others = _by_key(frame, key)(there)
            gone = engine.measure(old, on_rows, None, source.name) if touched else None
            rows, beside = merged(frame, old), Beside(others)
        staged, added = engine.write(
            rows,
            base.table,
            build_uid,
            on_rows,
            time_column,
            source.name,
            beside=beside if touched else None,
            bounds=bounds,
        )
    gone = gone or added.gone
    measured = combined(of_snapshot(base, tuple(before.values())), gone, added)
    kept = tuple(sorted(live.keys() - touched))

    def read(paths: Iterable[str]) -> DataFrame:
        """Return the rows of files that the table will have."""
        files = tuple(f"{root}/{path}" for path in paths)
        return engine.read_files("parquet", Pin(None, files), base.columns, {})

    def whole() -> DataFrame:
        return read((*kept, *(f.path for f in staged.files)))

    anew = [c for c in checks if not c.on_rows or not _is_known(c, before)]
    if anew:
        results = {r.name: r for r in (*measured.checks, *engine.audit(whole(), anew, source.name))}
        measured = replace(measured, checks=tuple(results[c.name] for c in checks))
    if time_column is not None:
        kind = time_type(source, base)
        replaced = bool(key) or _replaces(window, time_column, base.watermark, kind)
        watermark = _watermark(base.watermark, added.watermark, replaced, kind)
        if watermark is None:

            def ask(files: Sequence[Live]) -> str | None:
                return engine.greatest(read(f.path for f in files), time_column, source.name)

            stay = [live[path] for path in kept]
            try:
                watermark = last_of(stay, added.watermark, time_column, kind, ask)
            except ValueError:
                watermark = engine.greatest(whole(), time_column, source.name)
        measured = replace(measured, watermark=watermark)
    parts = {path.partition("/")[0] for path in kept}
    size = staged.bytes + sum(live[path].bytes for path in kept)
    return Continued(staged, measured, kept, tuple(sorted(parts)), size)


_Split = Callable[["DataFrame"], tuple["DataFrame", "DataFrame"]]
"""What tells rows that are replaced from those that stay."""


def _by_key(frame: DataFrame, key: Sequence[str]) -> _Split:
    """Return what tells rows that have a key of `frame` from the others."""
    from pyspark.sql import functions as F

    keys = frame.selectExpr(*map(quote, key)).distinct().alias("new")
    same = F.expr(" AND ".join(f"old.{quote(k)} <=> new.{quote(k)}" for k in key))

    def split(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        old = rows.alias("old")
        return old.join(keys, same, "left_semi"), old.join(keys, same, "left_anti")

    return split


def _having(
    engine: Engine,
    root: str,
    live: Mapping[str, Live],
    frame: DataFrame,
    key: Sequence[str],
    columns: Sequence[Column],
    name: str,
) -> set[str]:
    """Return the files that have rows of a key that `frame` has too.

    Those whose statistics cannot tell are looked into.
    """
    kinds = {c.name.lower(): c.type or "" for c in columns}
    told = [k for k in key if is_ordered(kinds[k.lower()])]
    asked = [
        text
        for n, k in enumerate(told)
        for text in (
            f"{spelled(f'min({quote(k)})', kinds[k.lower()])} AS low{n}",
            f"{spelled(f'max({quote(k)})', kinds[k.lower()])} AS high{n}",
            f"count_if({quote(k)} IS NULL) > 0 AS nulls{n}",
        )
    ]
    with translated(f"computing `{name}`"):
        found = frame.selectExpr("count(1) AS n", *asked).collect()[0]
    if not found["n"]:
        return set()
    maybe = {*live}
    for n, k in enumerate(told):
        kind = kinds[k.lower()]
        ends = [from_spark(found[f"{end}{n}"] or "", kind) for end in ("low", "high")]
        if ends[0] is not None and ends[1] is not None:
            span = Window(((k, kind),), (((ends[0], ends[1]),),), found[f"nulls{n}"])
            maybe = {path for path in maybe if _meets(live[path], span)}
    if not maybe:
        return set()
    files = tuple(f"{root}/{path}" for path in sorted(maybe))
    with translated(f"looking for the keys of `{name}`"):
        there = engine.session.read.parquet(*map(spark_pattern, files))
        rows = there.selectExpr(*map(quote, key), "_metadata.file_path AS `persist.file`")
        old, _ = _by_key(frame, key)(rows)
        places = [row[0] for row in old.select("`persist.file`").distinct().collect()]
    return {"/".join(unquote(place).rsplit("/", 2)[1:]) for place in places}


def _is_known(check: Check, before: Mapping[str, CheckResult]) -> bool:
    """Whether it is known how many rows failed a check before."""
    return check.name in before and before[check.name].definition == check.definition


def _watermark(
    before: str | None, added: str | None, replaced: bool, kind: str | None
) -> str | None:
    """Return the greatest value of all rows, None where the rows have to be asked.

    Those in files that stay are of `before` at most, and some row is of it unless it was replaced.
    """
    if before is None or kind is None:
        return added if before is None and not replaced else None
    old = from_text(before, kind)
    new = from_text(added, kind) if added is not None else None
    if old is not None and new is not None and new >= old:  # pyright: ignore[reportOperatorIssue]
        return added
    return before if not replaced and old is not None else None


def _replaces(window: Window | None, column: str, before: str | None, kind: str | None) -> bool:
    """Whether rows that had the greatest value of the time column may be among those replaced."""
    if window is None:
        return False
    value = from_text(before, kind) if before is not None and kind is not None else None
    names = [(name.lower(), of) for name, of in window.columns]
    if value is None or (column.lower(), kind) not in names:
        return True
    place = names.index((column.lower(), kind or ""))
    return any(overlap((value, value), box[place]) for box in window.boxes)


def last_of(
    files: Iterable[Live],
    others: str | None,
    column: str,
    kind: str | None,
    ask: Callable[[Sequence[Live]], str | None],
) -> str | None:
    """Return the greatest value of a column, as text: of files, and what it is of other rows.

    Parameters
    ----------
    ask
        Returns it of files whose statistics do not tell. Those of times may be cut off.

    Raises
    ------
    ValueError
        Which is the greatest cannot be told here.
    """
    name = column.lower()
    known: list[tuple[Value, Live]] = []
    unknown: list[Live] = []
    for file in files:
        value = from_statistics(file.greatest.get(name), kind or "")
        if value is None:
            unknown.append(file)
        else:
            known.append((value, file))
    last = max((value for value, _ in known), default=None)  # pyright: ignore[reportArgumentType]
    found = others
    if isinstance(last, datetime):
        unknown += [f for value, f in known if value > last - _CUT]  # pyright: ignore[reportOperatorIssue]
    elif last is not None:
        found = greatest((others, to_text(last)), kind or "")
    return greatest((found, ask(unknown)), kind or "") if unknown else found
