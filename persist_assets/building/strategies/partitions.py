"""Partitioned builds: compute some partitions and keep the others."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from persist_assets.building.strategies.incremental import continue_from
from persist_assets.building.strategies.slices import ordered_slices, slices_of
from persist_assets.building.strategies.strategy import Scope
from persist_assets.building.strategies.whole import write_table
from persist_assets.building.strategies.windows import since_of, window_of
from persist_assets.core.dialect import quote
from persist_assets.core.errors import BuildError
from persist_assets.core.partitions import boxes, misfit, side, split
from persist_assets.core.time_values import literal
from persist_assets.planning.increments import column_type, parted_by
from persist_assets.storage.types import columns_of_struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.building.strategies.windows import Window
    from persist_assets.core.model.plans import Increment
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of the step are computed.

    Attributes
    ----------
    keys
        Their keys, in order.
    increment
        The table that has the other partitions, if it is continued in place.
    """

    keys: tuple[str, ...]
    increment: Increment | None = None
    name: ClassVar[str] = "partitions"

    def scope(self, task: Task) -> Scope:
        """Return the rows of the partitions; all rows where the partitions' types are unknown."""
        window = self._window(task, parted_by(task.source, task.step.base))
        slices = {} if window is None else slices_of(task, window)
        ordered = ordered_slices(task, slices) if len(self.keys) > 1 else {}
        since = since_of(task.source, self.increment, window)
        return Scope(
            window, slices | ordered, since, bool(ordered), reads_temporary=self.increment is None
        )

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed:
        """Write the partitions, and keep the others.

        Raises
        ------
        BuildError
            A column has a type that cannot be partitioned this way.
        """
        source, reader, window = task.source, task.reader, scope.window
        if window is None:  # a function, whose types only Spark knows
            columns = columns_of_struct(reader.merged(source, frame).schema.jsonValue())
            typed = replace(source, columns=columns)
            _check_types(typed)
            window = self._window(task, parted_by(typed))
        bounds = () if scope.is_ordered else self._bounds(task)
        with reader.engine.undivided() if scope.is_ordered else nullcontext():
            if window is not None and self.increment is not None:
                return continue_from(task, self.increment.base, window, frame, bounds)
            rows = reader.merged(source, frame)
            if window is not None:
                rows = rows.where(window.condition)
                if task.step.base is not None:
                    others = reader.load_snapshot(task.step.base)
                    rows = rows.unionByName(others.where(f"NOT ({window.condition})"))
            return write_table(task, rows, bounds)

    def _window(self, task: Task, columns: tuple[tuple[str, str], ...]) -> Window | None:
        """Return the rows of the partitions, None where the types of their columns are unknown."""
        source, reader = task.source, task.reader
        partition = source.annotation.partition
        if not columns or partition is None:
            return None
        order = task.world.keys[source.source_id]
        found_boxes = boxes(partition, [kind for _, kind in columns], self.keys, order)
        return window_of(reader.project, source, columns, found_boxes, reader.settings.timezone.key)

    def _bounds(self, task: Task) -> tuple[str, ...]:
        """Return the bounds of files: an SQL condition for each partition after the first."""
        partition = task.source.annotation.partition
        columns = parted_by(task.source, task.step.base)
        if partition is None or not columns:
            return ()
        name, kind = columns[0]
        firsts = dict.fromkeys(split(partition, key)[0] for key in self.keys)
        lows = [side(partition, partition.dimensions[0], part, kind)[0] for part in firsts]
        lows.sort()  # pyright: ignore[reportCallIssue, reportArgumentType]
        return tuple(f"{quote(name)} >= {literal(low, kind)}" for low in lows[1:])


def _check_types(source: Source) -> None:
    """Raise if a column has a type that cannot be partitioned this way.

    Raises
    ------
    BuildError
        A column has such a type.
    """
    partition = source.annotation.partition
    for dimension in partition.dimensions if partition else ():
        kind = column_type(source.columns, dimension.column)
        if kind is not None and (required := misfit(dimension, kind)):
            raise BuildError(
                f"`{dimension.column}` of `{source.name}` is {kind}:"
                f" its partitions need {required}",
                location=source.location,
            )
