"""Computing all rows, and writing them as a table of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from persist_assets.building.stages import Computed
from persist_assets.building.strategies.strategy import Scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class Whole:
    """All rows are computed."""

    name: ClassVar[str] = "whole"

    def scope(self, task: Task) -> Scope:
        """Return all rows."""
        return Scope()

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed:
        """Write all rows."""
        return write_table(task, task.reader.merged(task.source, frame))


def write_table(
    task: Task, rows: DataFrame, bounds: Sequence[str] = (), *, few: bool = False
) -> Computed:
    """Write rows as the files of a whole table.

    Parameters
    ----------
    bounds
        Where files of a partitioned table begin; see `Engine.write`.
    few
        The rows follow from few rows; see there.
    """
    staged, measured = task.reader.engine.write(
        rows,
        task.started.table,
        task.build_uid,
        task.checks,
        task.time_column,
        task.source.name,
        clustered=_is_clustered(task.source),
        bounds=bounds,
        few=few,
    )
    return Computed(staged.columns, measured, staged, bytes=staged.bytes)


def _is_clustered(source: Source) -> bool:
    """Whether a table is written in the order of its time column.

    It is if later builds replace rows by time: then each file has other times, and few files
    change. Tables to which rows are only added keep the order in which the rows came.
    """
    annotation = source.annotation
    if not annotation.is_incremental or annotation.time_column is None:
        return False
    return annotation.merge is not None or not (source.growth and source.growth.sums)
