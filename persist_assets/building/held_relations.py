"""Relations that a run computes once and holds in Spark's memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from persist_assets.core.model.deltas import NoRule
from persist_assets.planning.deltas import unmaintainable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID

_MOST_READERS = 50
"""All columns of a table with more readers than this are held."""


class HeldRelations:
    """The relations that a run holds in Spark's memory until it ends."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._frames: dict[str, DataFrame] = {}
        self._columns: dict[SourceID, tuple[tuple[int, str], ...]] = {}
        self._lock = threading.RLock()

    def hold(self, name: str, frame: DataFrame) -> DataFrame:
        """Return a frame whose rows are computed once."""
        with self._lock:
            if name not in self._frames:
                self._frames[name] = frame.persist()
            return self._frames[name]

    def release(self) -> None:
        """Give the memory back."""
        with self._lock:
            frames, self._frames = self._frames, {}
        for frame in frames.values():
            frame.unpersist()

    def columns_of(self, table: SourceID) -> tuple[tuple[int, str], ...]:
        """Return the numbers and names of the columns of a table that maintained sources use.

        What is held of a table serves all of them.
        """
        with self._lock:
            if table not in self._columns:
                self._columns[table] = tuple(sorted(self._used(table).items()))
            return self._columns[table]

    def _used(self, table: SourceID) -> dict[int, str]:
        project = self._project
        every = {n: c.name for n, c in enumerate(project.by_id[table].columns)}
        readers = [
            s
            for s in project.persisted
            if unmaintainable(s) is None and any(i.source_id == table for i in project.inputs(s))
        ]
        used: dict[int, str] = {}
        for reader in readers if len(readers) <= _MOST_READERS else ():
            try:
                used |= dict(project.uses(reader.source_id).get(table, ()))
            except NoRule:
                continue  # it is computed as a whole
        return used or every
