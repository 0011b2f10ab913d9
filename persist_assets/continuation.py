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
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from persist_assets.audit import combined, of_snapshot
from persist_assets.dialect import quote
from persist_assets.errors import GoneError
from persist_assets.growth import column_type, span, time_type
from persist_assets.session import translated
from persist_assets.storage.raw import Pin
from persist_assets.storage.tables import find_table, live_files
from persist_assets.stores import spark_pattern
from persist_assets.watermarks import (
    ZONE_S,
    Value,
    from_spark,
    from_statistics,
    from_text,
    is_ordered,
    literal,
    spelled,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.audit import Measured
    from persist_assets.engine import Engine
    from persist_assets.model import (
        Check,
        CheckResult,
        Column,
        Increment,
        Project,
        Source,
        SourceID,
        Taken,
        Trace,
    )
    from persist_assets.storage.tables import Live, Staged

_MOST_PARTS = 32
"""From so many builds' files on, small ones are written together."""
_FEWEST_MERGED = 8
_MOST_SPANS = 16

Span = tuple[Value, Value]
"""A least and a greatest value."""


@dataclass(frozen=True, slots=True)
class Window:
    """Values of a time column: spans with their ends, which may be open above, and NULL or not.

    Attributes
    ----------
    leaves
        For tables that rows of the window follow from, which of their rows may matter, as SQL.
    """

    spans: tuple[tuple[Value, Value | None], ...]
    nulls: bool
    leaves: Mapping[SourceID, str] = field(default_factory=dict[str, str])


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
    kind = time_type(source, increment.base)
    assert kind is not None
    if increment.past:
        assert increment.base.watermark is not None
        seen = from_text(increment.base.watermark, kind)
        return None if seen is None else _past(seen, source.annotation.lookback_s)
    found: list[Span] = []
    nulls = False
    for trace in increment.traces:
        told = _touched(project, trace, increment, load)
        if told is None:
            return None
        spans, some = told
        nulls |= some
        leaf = column_type(project.by_id[trace.column.source_id].columns, trace.column.column)
        assert leaf is not None
        mapped = _mapped(engine, _merged(spans), leaf, trace.steps, kind)
        if mapped is None:
            return None
        found += mapped
    spans = _merged(found)
    return Window(spans, nulls, _mattering(project, source, spans, kind, nulls))


def _mattering(
    project: Project, source: Source, spans: Sequence[Span], kind: str, nulls: bool
) -> dict[SourceID, str]:
    """Return which rows of tables may matter for windows, with some that do not."""
    windows = next(iter(source.growth.columns), None) if source.growth else None
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
            if trace.steps:  # a day more on either side: clocks are put back
                days = 1 + sum(step.days for step in trace.steps)
                least = f"({least} - INTERVAL '1' DAY)"
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


def _touched(
    project: Project,
    trace: Trace,
    increment: Increment,
    load: Callable[[SourceID, tuple[str, ...]], DataFrame],
) -> tuple[list[Span], bool] | None:
    """Return the values that a column has in files that came or went, and whether NULL is one."""
    source_id, column = trace.column.source_id, trace.column.column
    kind = column_type(project.by_id[source_id].columns, column)
    assert kind is not None
    change = increment.changes[source_id]
    spans: list[Span] = []
    nulls, unknown = False, list[str]()
    for piece in (*change.lost, *change.added):
        told = span(piece, column, kind)
        if told is not None:
            low, high, some = told
            spans.append((low, high))
            nulls |= some
        elif piece in change.lost:
            return None
        else:
            unknown.append(piece.path)
    if unknown:
        name = quote(column)
        with translated(f"looking at what is new in `{project.by_id[source_id].name}`"):
            row = (
                load(source_id, tuple(unknown))
                .selectExpr(
                    f"{spelled(f'min({name})', kind)} AS low",
                    f"{spelled(f'max({name})', kind)} AS high",
                    f"count_if({name} IS NULL) AS nulls",
                )
                .collect()[0]
            )
        nulls |= row["nulls"] > 0
        if row["low"] is not None:
            low, high = from_spark(row["low"], kind), from_spark(row["high"], kind)
            if low is None or high is None:
                return None
            spans.append((low, high))
    return spans, nulls


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans that hold the same values and more, at most so many, in order."""
    merged: list[Span] = []
    for low, high in sorted(spans):  # pyright: ignore[reportArgumentType]
        if merged and low <= merged[-1][1]:  # pyright: ignore[reportOperatorIssue]
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))  # pyright: ignore[reportArgumentType]
        else:
            merged.append((low, high))
    if len(merged) > _MOST_SPANS:
        merged = [(merged[0][0], merged[-1][1])]
    return tuple(merged)


def _mapped(
    engine: Engine, spans: Sequence[Span], leaf: str, steps: Sequence[Taken], kind: str
) -> list[Span] | None:
    """Return where the steps of a trace lead the values of spans."""
    if not spans:
        return []
    wide = leaf in ("timestamp", "timestamp_ntz")
    zone = ZONE_S if steps and engine.session.conf.get("spark.sql.session.timeZone") != "UTC" else 0
    texts: list[str] = []
    for number, pair in enumerate(spans):
        for end, value in zip(("low", "high"), pair, strict=True):
            sql = literal(value, leaf)
            if wide:  # other writers keep times of statistics to the millisecond
                sign = "-" if end == "low" else "+"
                sql = f"({sql} {sign} INTERVAL '{zone}.001' SECOND)"
            for step in steps:
                sql = step.sql.format(sql)
            texts.append(f"{spelled(f'CAST({sql} AS {kind})', kind)} AS {end}{number}")
    with translated("looking for what has to be computed again"):
        row = engine.session.range(1).selectExpr(*texts).collect()[0]
    found: list[Span] = []
    for number in range(len(spans)):
        low, high = from_spark(row[f"low{number}"], kind), from_spark(row[f"high{number}"], kind)
        if low is None or high is None:
            return None
        found.append((low, high))
    return found


def _past(seen: Value, lookback_s: int) -> Window:
    """Return the values past a watermark, it itself, and those that may still arrive."""
    if isinstance(seen, datetime):
        seen -= timedelta(seconds=lookback_s)
    elif isinstance(seen, date):
        seen -= timedelta(days=-(-lookback_s // 86_400))
    return Window(((seen, None),), nulls=True)


def _meets(file: Live, column: str, kind: str, window: Window) -> bool:
    """Whether rows of a file may be in a window."""
    name = column.lower()
    if name not in file.nulls or name not in file.least or name not in file.greatest:
        return True
    low = from_statistics(file.least[name], kind)
    high = from_statistics(file.greatest[name], kind)
    if low is None or high is None or (window.nulls and file.nulls[name] > 0):
        return True
    return any(
        low <= last and first <= high  # pyright: ignore[reportOperatorIssue]
        if last is not None
        else first <= high  # pyright: ignore[reportOperatorIssue]
        for first, last in window.spans
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
    merged: Callable[[DataFrame], DataFrame],
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
    merged
        Returns of rows the one for each key, where the source has a merge key.
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
    key = source.annotation.merge.key if source.annotation.merge else ()
    split: _Split | None = None
    if window is not None:
        kind = time_type(source, base)
        assert kind is not None and time_column is not None
        condition = within(time_column, kind, window.spans, window.nulls)
        frame = frame.where(condition)
        if not key:
            touched |= {f.path for f in live.values() if _meets(f, time_column, kind, window)}
            split = _by_condition(condition)
    with ExitStack() as held:
        if key:
            held.callback(frame.persist().unpersist)
            touched |= _having(engine, root, live, frame, key, base.columns, source.name)
            split = _by_key(frame, key)
        files = tuple(f"{root}/{path}" for path in sorted(touched))
        beside = engine.read_files("parquet", Pin(None, files), base.columns, {})
        gone, rows = None, frame
        if split is not None:
            old, beside = split(beside)
            gone = engine.measure(old, on_rows, None, source.name)
            if key:
                rows = merged(frame.unionByName(old))
        staged, added = engine.write(
            rows, base.table, build_uid, on_rows, time_column, source.name, beside=beside
        )
    measured = combined(of_snapshot(base, tuple(before.values())), gone, added)
    kept = tuple(sorted(live.keys() - touched))
    files = tuple(f"{root}/{path}" for path in (*kept, *(f.path for f in staged.files)))
    rows = engine.read_files("parquet", Pin(None, files), base.columns, {})
    anew = [c for c in checks if not c.on_rows or not _is_known(c, before)]
    if anew:
        results = {r.name: r for r in (*measured.checks, *engine.audit(rows, anew, source.name))}
        measured = replace(measured, checks=tuple(results[c.name] for c in checks))
    if time_column is not None:
        replaced = window is not None or bool(key)
        kind = time_type(source, base)
        watermark = _watermark(base.watermark, added.watermark, replaced, kind)
        if watermark is None:
            watermark = engine.measure(rows, (), time_column, source.name).watermark
        measured = replace(measured, watermark=watermark)
    parts = {path.partition("/")[0] for path in kept}
    size = staged.bytes + sum(live[path].bytes for path in kept)
    return Continued(staged, measured, kept, tuple(sorted(parts)), size)


_Split = Callable[["DataFrame"], tuple["DataFrame", "DataFrame"]]
"""What tells rows that are replaced from those that stay."""


def _by_condition(condition: str) -> _Split:
    return lambda rows: (rows.where(condition), rows.where(f"NOT ({condition})"))


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
            span = Window(((ends[0], ends[1]),), found[f"nulls{n}"])
            maybe = {path for path in maybe if _meets(live[path], k, kind, span)}
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

    Those that stay are of `before` at most, and one is of it unless it was replaced.
    """
    if before is None or kind is None:
        return added if before is None and not replaced else None
    old = from_text(before, kind)
    new = from_text(added, kind) if added is not None else None
    if old is not None and new is not None and new >= old:  # pyright: ignore[reportOperatorIssue]
        return added
    return before if not replaced and old is not None else None
