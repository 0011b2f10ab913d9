"""Continuing a table in place: some files stay, the others are written again.

    the rows computed ────────────► files written ─┬─► one version of the table
    files that have none of them ─► kept as is ────┘
    metrics of the base − rows replaced + rows written ─► metrics of the whole

The invariant: the files kept and the files written are together the rows that computing everything
would give, and so are their metrics.

Files of another environment's table are not kept but copied: what happens to that table must not
harm this one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from persist_assets.building.set_checks import reads_clock
from persist_assets.building.stages import Computed
from persist_assets.building.strategies.keys import Keys, files_having, split_by_key, without_keys
from persist_assets.building.strategies.windows import Window, meets
from persist_assets.core.errors import GoneError
from persist_assets.core.time_values import (
    Value,
    from_statistics,
    from_text,
    greatest,
    overlap,
    to_text,
)
from persist_assets.engine.protocol import Beside
from persist_assets.engine.row_metrics import combined, of_snapshot
from persist_assets.planning.increments import time_type
from persist_assets.storage.delta_commit import with_copies
from persist_assets.storage.delta_tables import find_table, live_files
from persist_assets.storage.raw import Pin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.engine.protocol import Engine
    from persist_assets.engine.row_metrics import Measured
    from persist_assets.storage.delta_tables import Live

_MOST_PARTS = 32
"""The number of builds with files in a table from which small files are merged."""
_FEWEST_MERGED = 8
_CUT = timedelta(milliseconds=2)
"""The precision that statistics of times may lose."""
_FEW_BYTES = 64 * 2**20
"""Rewritten files of at most this many bytes have few rows."""


def continue_table(
    task: Task,
    base: Snapshot,
    window: Window | None,
    frame: DataFrame,
    key: Sequence[str],
    merged: Callable[[DataFrame, DataFrame], DataFrame] | None = None,
    bounds: Sequence[str] = (),
    *,
    replaced: Keys | None = None,
    few: bool = False,
) -> Computed:
    """Write the new files of a table that keeps some files of its base.

    Parameters
    ----------
    base
        The snapshot to continue.
    window
        The rows to replace; None: rows are only added.
    frame
        The rows computed: those added, or all rows of the window and maybe others.
    key
        Rows replace those with the same values in these columns; empty: they replace none.
    merged
        Returns the rows to write, from the rows computed and those with the same keys; None: the
        rows computed.
    bounds
        The bounds of files of a partitioned table; empty: rows arrive in order. See
        `Engine.write`.
    replaced
        The keys of the rows to replace; None: those of `frame`.
    few
        The rows computed follow from few rows; see `Engine.write`.

    Raises
    ------
    GoneError
        The base is gone.
    """
    engine, name, checks = task.reader.engine, task.source.name, task.checks
    root = engine.settings.table_root(base.table)
    live = _files_of(base, root)
    touched = _small(live)
    on_rows = [c for c in checks if c.on_rows]
    if window is not None:
        frame = frame.where(window.condition)
        if not key:
            touched |= {f.path for f in live.values() if meets(f, window)}
    with ExitStack() as stack:
        if key and replaced is None:
            stack.callback(frame.persist().unpersist)
        keys = replaced or Keys(frame)
        if key:
            columns = _with_types(key, base)
            touched |= files_having(engine, root, live, keys, columns, name)
        touched_rows = _read(engine, base, _within(root, sorted(touched)))
        rows, beside, old = _replacing(frame, touched_rows, window, keys, key, merged)
        gone = engine.measure(old, on_rows, None, name) if touched and old is not None else None
        staged, added = engine.write(
            rows,
            task.started.table,
            task.build_uid,
            on_rows,
            task.time_column,
            name,
            beside=beside if touched else None,
            bounds=bounds,
            few=few and sum(live[path].bytes for path in touched) <= _FEW_BYTES,
        )
    stay = {path: file for path, file in live.items() if path not in touched}
    every = (*_within(root, sorted(stay)), *_within(staged.root, (f.path for f in staged.files)))
    measured = _measured(task, base, gone or added.gone, added, every)
    if task.time_column is not None:
        latest = _find_watermark(task, base, window, bool(key), stay, added.watermark, every)
        measured = replace(measured, watermark=latest)
    return Computed(
        staged.columns,
        measured,
        staged,
        base=base,
        kept_files=tuple(sorted(stay)),
        parts=tuple(sorted({path.partition("/")[0] for path in stay})),
        bytes=staged.bytes + sum(file.bytes for file in stay.values()),
        n_rewritten=len(touched),
        n_kept=len(stay),
    )


def _with_types(key: Sequence[str], base: Snapshot) -> list[tuple[str, str]]:
    """Return the columns of a key with their types in a table."""
    types = {c.name.lower(): c.type or "" for c in base.columns}
    return [(column, types[column.lower()]) for column in key]


def _replacing(
    frame: DataFrame,
    stored: DataFrame,
    window: Window | None,
    keys: Keys,
    key: Sequence[str],
    merged: Callable[[DataFrame, DataFrame], DataFrame] | None,
) -> tuple[DataFrame, Beside, DataFrame | None]:
    """Return the rows to write, the stored rows beside them, and those to measure by themselves.

    The parameters are those of `continue_table`, and the rows of the files that are written again.
    """
    if not key:
        return frame, Beside(stored, window.condition if window else None), None
    if merged is None:
        return frame, without_keys(stored, keys, key), None
    old, others = split_by_key(keys, key)(stored)
    return merged(frame, old), Beside(others), old


def in_own_table(task: Task, computed: Computed) -> Computed:
    """Return the computed rows as a table of the environment's own.

    Files that stay in another environment's table are copied beside those written.

    Raises
    ------
    StorageError
        That failed.
    """
    base, staged = computed.base, computed.staged
    if base is None or staged is None or base.table == task.started.table:
        return computed
    root = task.reader.settings.table_root(base.table)
    live = _files_of(base, root)
    staged = with_copies(staged, root, [live[path] for path in computed.kept_files])
    return replace(computed, staged=staged, base=None, kept_files=(), parts=(), touched=None)


def _within(root: str, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{root}/{path}" for path in paths)


def _files_of(base: Snapshot, root: str) -> Mapping[str, Live]:
    """Return the files of a snapshot, by path.

    Raises
    ------
    GoneError
        The snapshot is gone.
    """
    table = find_table(root, base.version)
    if table is None:
        message = f"version {base.version} of the table {root} is gone"
        raise GoneError(message, hint="build it again")
    return live_files(table)


def _measured(
    task: Task, base: Snapshot, gone: Measured | None, added: Measured, every: Sequence[str]
) -> Measured:
    """Return the metrics and checks of the whole table.

    Checks that the metrics of the base do not answer read all rows.

    Parameters
    ----------
    gone, added
        The metrics of rows replaced, and of rows written.
    every
        All files that the table will have.
    """
    engine, checks = task.reader.engine, task.checks
    previous = {c.name: c for c in task.reader.ledger.builds.fetch_checks(base.build_uid)}
    measured = combined(of_snapshot(base, tuple(previous.values())), gone, added)
    unanswered = [c for c in checks if not c.on_rows or not _is_answered(c, previous)]
    if not unanswered:
        return measured
    answers = engine.audit(_read(engine, base, every), unanswered, task.source.name)
    results = {r.name: r for r in (*measured.checks, *answers)}
    return replace(measured, checks=tuple(results[c.name] for c in checks))


def _read(engine: Engine, base: Snapshot, files: Iterable[str]) -> DataFrame:
    """Return the rows of files that have the columns of a table."""
    return engine.read_files("parquet", Pin(None, tuple(files)), base.columns, {})


def _find_watermark(
    task: Task,
    base: Snapshot,
    window: Window | None,
    by_key: bool,
    stay: Mapping[str, Live],
    added: str | None,
    every: Iterable[str],
) -> str | None:
    """Return the watermark of the whole table.

    It follows from those of the base and the rows written, else from statistics of files, else from
    all rows.

    Parameters
    ----------
    window
        The rows replaced; None: rows were only added.
    by_key
        Whether rows with some keys were replaced instead.
    added
        The watermark of the rows written.
    every
        All files that the table will have.
    """
    engine, column = task.reader.engine, task.time_column or ""
    kind = time_type(task.source, base)
    replaced = by_key or _replaces(window, column, base.watermark, kind)
    watermark = _watermark(base.watermark, added, replaced, kind)
    if watermark is not None:
        return watermark

    def read(files: Sequence[Live]) -> str | None:
        root = engine.settings.table_root(base.table)
        rows = _read(engine, base, _within(root, (f.path for f in files)))
        return engine.greatest(rows, column, task.source.name)

    try:
        return last_of([stay[path] for path in sorted(stay)], added, column, kind, read)
    except ValueError:
        return engine.greatest(_read(engine, base, every), column, task.source.name)


def _small(live: Mapping[str, Live]) -> set[str]:
    """Return the files to merge because there are too many small ones."""
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


def _is_answered(check: Check, previous: Mapping[str, CheckResult]) -> bool:
    """Whether the previous results have the number of rows that failed each check."""
    if check.fickle or reads_clock(check):
        return False
    return check.name in previous and previous[check.name].definition == check.definition


def _watermark(base: str | None, added: str | None, replaced: bool, kind: str | None) -> str | None:
    """Return the greatest value of all rows; None if rows have to be read to find it.

    No row in files that stay is later than `base`, and some row has this value unless the row was
    replaced.
    """
    if base is None or kind is None:
        return added if base is None and not replaced else None
    old = from_text(base, kind)
    new = from_text(added, kind) if added is not None else None
    if old is not None and new is not None and new >= old:  # pyright: ignore[reportOperatorIssue]
        return added
    return base if not replaced and old is not None else None


def _replaces(window: Window | None, column: str, watermark: str | None, kind: str | None) -> bool:
    """Whether the rows replaced may include those with the greatest value of the time column."""
    if window is None:
        return False
    value = from_text(watermark, kind) if watermark is not None and kind is not None else None
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
    read: Callable[[Sequence[Live]], str | None],
) -> str | None:
    """Return the greatest value of a column in files and other rows, as text.

    Parameters
    ----------
    others
        The greatest value of the other rows.
    read
        Returns the greatest value of files whose statistics lack it. Statistics of times may be
        cut off.

    Raises
    ------
    ValueError
        The values cannot be compared here.
    """
    name = column.lower()
    measured: list[tuple[Value, Live]] = []
    unmeasured: list[Live] = []
    for file in files:
        value = from_statistics(file.greatest.get(name), kind or "")
        if value is None:
            unmeasured.append(file)
        else:
            measured.append((value, file))
    last = max((value for value, _ in measured), default=None)  # pyright: ignore[reportArgumentType]
    latest = others
    if isinstance(last, datetime):
        unmeasured += [f for value, f in measured if value > last - _CUT]  # pyright: ignore[reportOperatorIssue]
    elif last is not None:
        latest = greatest((others, to_text(last)), kind or "")
    return greatest((latest, read(unmeasured)), kind or "") if unmeasured else latest
