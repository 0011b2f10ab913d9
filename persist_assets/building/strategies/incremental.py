"""Incremental builds: add rows to a table, or recompute a window of its time column.

The table is continued in place where it is the environment's own, else with copies of its files. A
build that continues a table of another meaning (`on_change=continue`: the code changed, the rows
stay) copies that table's rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from persist_assets.building.reader import Slice
from persist_assets.building.strategies.in_place import continue_table, in_own_table
from persist_assets.building.strategies.scd2 import columns_of
from persist_assets.building.strategies.slices import slices_of
from persist_assets.building.strategies.strategy import Scope
from persist_assets.building.strategies.whole import Whole, write_table
from persist_assets.building.strategies.windows import find_window, since_of
from persist_assets.core.errors import BuildError
from persist_assets.planning.increments import mismatch
from persist_assets.planning.maintenance import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.building.strategies.windows import Window
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Append:
    """Only the rows of new files are computed, and added."""

    increment: Increment
    name: ClassVar[str] = "append"

    def scope(self, task: Task) -> Scope:
        """Return the rows of new files."""
        slices = {s: Slice(files) for s, files in self.increment.added.items()}
        return Scope(slices=slices, reads_temporary=False)

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed:
        """Add the rows."""
        return continue_from(task, self.increment.base, None, frame)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The rows with some values of the time column are computed again."""

    increment: Increment
    name: ClassVar[str] = "window"

    def scope(self, task: Task) -> Scope:
        """Return the rows of the window; all rows if the time column does not determine it."""
        window = _find_window(task, self.increment)
        if window is None:
            return Scope(reads_temporary=False)
        since = since_of(task.source, self.increment, window)
        return Scope(window, slices_of(task, window), since, reads_temporary=False)

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot:
        """Replace the rows of the window."""
        if scope.window is None:
            return Whole().write(task, scope, frame, read)
        return continue_from(task, self.increment.base, scope.window, frame)


def continue_from(
    task: Task,
    base: Snapshot,
    window: Window | None,
    frame: DataFrame,
    bounds: Sequence[str] = (),
) -> Computed:
    """Write the rows of a base together with the computed ones.

    Parameters
    ----------
    window
        The rows of the base that are replaced; None: rows are only added.
    frame
        The rows computed, and maybe others outside the window.
    bounds
        The bounds of files of a partitioned table; see `Engine.write`.
    """
    source, reader = task.source, task.reader
    if task.started.keeps_files:
        key = source.annotation.merge.key if source.annotation.merge else ()

        def merged(rows: DataFrame, old: DataFrame) -> DataFrame:
            return reader.merged(source, rows.unionByName(old))

        return in_own_table(task, continue_table(task, base, window, frame, key, merged, bounds))
    check_fits(source, base, columns_of(frame))
    base_rows = reader.load_snapshot(base)
    if window is not None:
        frame = frame.where(window.condition)
        if source.annotation.merge is None:
            base_rows = base_rows.where(f"NOT ({window.condition})")
    return write_table(task, reader.merged(source, frame.unionByName(base_rows)), bounds)


def check_fits(source: Source, base: Snapshot, columns: Iterable[Column]) -> None:
    """Raise if columns differ from those of the table that a source continues.

    Raises
    ------
    BuildError
        They differ.
    """
    why = mismatch(base.columns, columns)
    if why is not None:
        raise BuildError(
            f"`{source.name}` cannot continue {base.table}: {why}",
            hint="compute it in full: --full-refresh, or remove on_change=continue",
            location=source.location,
        )


def _find_window(task: Task, increment: Increment) -> Window | None:
    """Return the values of the time column to recompute, None if they are unknown.

    Raises
    ------
    NotIncrementalError
        They are unknown, and ``refresh=strict`` forbids computing all rows.
    """
    source, reader = task.source, task.reader

    def load(source_id: SourceID, files: tuple[str, ...]) -> DataFrame:
        leaf = reader.project.by_id[source_id]
        table = task.world.readable(leaf) if leaf.raw is None else None
        return reader.load_slice(leaf, table, Slice(files))

    window = find_window(reader.engine, reader.project, source, increment, load)
    if increment.late and window is not None:
        log.warning(
            "`%s`: new files of %s contain times before the watermark %s and its lookback; rows"
            " that depend on them are not computed, because assume=exact rules them out;"
            " persist rerun computes it",
            source.key,
            ", ".join(increment.late),
            increment.base.watermark,
            extra={"action": "rows-left-out"},
        )
    if window is None:
        why = f"the windows of `{task.time_column}` in which rows can differ are unknown"
        if source.annotation.is_strict:
            raise refusal(source, why)
        log.warning(
            "`%s` is computed in full: %s", source.key, why, extra={"action": "compute-all"}
        )
    return window
