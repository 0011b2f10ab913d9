"""The ways to compute the rows of a build, and what they have in common.

A build calls its strategy twice: for the rows to read (`scope`), and to write the computed rows
(`write`). In between, the query runs over the rows in scope, the same way for all strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from persist_assets.building.held_relations import SharedWork

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.building.reader import Reader, Slice
    from persist_assets.building.stages import Computed, Started
    from persist_assets.building.strategies.windows import Window
    from persist_assets.core.model.checks import Check
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.engine.python_functions import Since
    from persist_assets.planning.world import World


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a strategy.

    Attributes
    ----------
    build_uid
        The build: the directory for its files.
    checks
        The checks of single rows, which run while the rows are written.
    time_column
        The column whose greatest value is the table's watermark, if it has one.
    shared
        Counts the relations that other sources use, too.
    """

    reader: Reader
    started: Started
    world: World
    build_uid: str
    checks: Sequence[Check]
    time_column: str | None
    shared: SharedWork = field(default_factory=SharedWork)

    @property
    def source(self) -> Source:
        """The source to compute."""
        return self.started.source

    @property
    def step(self) -> Step:
        """The step of the plan."""
        return self.started.step


@dataclass(frozen=True, slots=True)
class Scope:
    """The rows that a build computes, and those that it reads for them.

    Attributes
    ----------
    window
        The rows of its table to compute; None: all, or only added rows.
    slices
        The tables of which only some rows are read.
    since
        The lower bound of the computed window, for queries that use it.
    is_ordered
        The slices are read group by group, so that rows arrive in the order of the partitions.
    reads_temporary
        The run's temporary tables are read; else they are computed as part of the query.
    columns
        The columns of the rows, where the strategy computes them itself, without the query.
    """

    window: Window | None = None
    slices: Mapping[SourceID, Slice] = field(default_factory=dict["SourceID", "Slice"])
    since: Since | None = None
    is_ordered: bool = False
    reads_temporary: bool = True
    columns: tuple[Column, ...] = ()


class Strategy(Protocol):
    """A way to compute the rows of a build.

    Attributes
    ----------
    name
        Its name in `persist explain`.
    """

    name: ClassVar[str]

    def scope(self, task: Task) -> Scope:
        """Return which rows are computed, and which are read for them."""
        ...

    def write(
        self, task: Task, scope: Scope, frame: DataFrame, read: Mapping[SourceID, Snapshot]
    ) -> Computed | Snapshot:
        """Write the rows that were computed.

        Parameters
        ----------
        frame
            The rows of the source's query over the rows in scope. It is not computed, and must not
            be used, if the scope has columns.
        read
            The snapshots that the query reads.

        Returns
        -------
        Computed | Snapshot
            What was written; or a snapshot to reuse, if the rows equal those of its table.
        """
        ...
