"""Relations that a run computes once, and keeps in files until it ends.

Files, and not Spark's cache: a cached relation carries the plans of all that it was computed from,
which grow with every relation that reads another.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from persist_assets.core.model.deltas import NoRule
from persist_assets.core.object_stores import spark_uri
from persist_assets.engine.session import translated
from persist_assets.planning.deltas import unmaintainable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID

_MOST_READERS = 50
"""All columns of a table with more readers than this are held."""


class HeldRelations:
    """The relations that a run holds until it ends.

    Attributes
    ----------
    directory
        Returns the directory of the run's temporary files, as a location.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self.directory: Callable[[], str] | None = None
        self._frames: dict[str, DataFrame] = {}
        self._columns: dict[SourceID, tuple[tuple[int, str], ...]] = {}
        self._lock = threading.RLock()

    def hold(self, name: str, frame: DataFrame) -> DataFrame:
        """Return a frame of rows that were computed once.

        Raises
        ------
        PersistError
            Computing them failed.
        """
        with self._lock:
            if name not in self._frames:
                self._frames[name] = self.written(frame)
            return self._frames[name]

    def written(self, frame: DataFrame) -> DataFrame:
        """Compute the rows of a frame now, and return them as read from temporary files."""
        assert self.directory is not None, "only builds hold relations"
        place = spark_uri(f"{self.directory()}/held-{uuid.uuid4().hex}")
        with translated("computing what changed"):
            writer = frame.hint("rebalance").write
            writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(
                place
            )
            return frame.sparkSession.read.schema(frame.schema).parquet(place)

    def release(self) -> None:
        """Forget all relations; their files go with the run's temporary tables."""
        with self._lock:
            self._frames.clear()

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
