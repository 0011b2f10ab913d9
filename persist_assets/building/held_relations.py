"""Relations that a run computes once, and keeps in files until it ends.

Files, and not Spark's cache: a cached relation carries the plans of all that it was computed from,
which grow with every relation that reads another.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Any

from persist_assets.core.model.deltas import ROW_WEIGHT, NoRule
from persist_assets.core.object_stores import spark_uri
from persist_assets.engine.session import translated
from persist_assets.planning.deltas import unmaintainable
from persist_assets.storage.files import list_files, reached

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID

_MUCH_BYTES = 16 * 2**20
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
        self._places: dict[str, str] = {}
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
                self._places[name] = self._place()
                self._frames[name] = _written(frame, self._places[name])
            return self._frames[name]

    def written(self, frame: DataFrame) -> DataFrame:
        """Compute the rows of a frame now, and return them as read from temporary files."""
        return _written(frame, self._place())

    def _place(self) -> str:
        assert self.directory is not None, "only builds hold relations"
        return f"{self.directory()}/held-{uuid.uuid4().hex}"

    def differs(self, name: str, columns: Sequence[str]) -> bool:
        """Whether changed rows that are held differ in some columns, by their net weight.

        Many rows, or columns that cannot be compared here, count as different.
        """
        from pyarrow import ArrowException

        files = [f for f in list_files(self._places[name]) if f.name.endswith(".parquet")]
        if sum(f.bytes for f in files) > _MUCH_BYTES:
            return True
        try:
            rows = self._read(name, [*columns, ROW_WEIGHT])
            totals = rows.group_by([*columns]).aggregate([(ROW_WEIGHT, "sum")])
            return any(totals[f"{ROW_WEIGHT}_sum"].to_pylist())
        except ArrowException:
            return True

    def total(self, name: str) -> int:
        """Return the sum of the weights of changed rows that are held."""
        return sum(self._read(name, [ROW_WEIGHT])[ROW_WEIGHT].to_pylist())

    def _read(self, name: str, columns: Sequence[str]) -> Any:
        from pyarrow import concat_tables
        from pyarrow.parquet import ParquetFile

        tables: list[Any] = []
        for file in list_files(self._places[name]):
            if file.name.endswith(".parquet"):
                with (
                    reached(file.location) as (system, path),
                    system.open_input_file(path) as opened,
                ):
                    tables.append(ParquetFile(opened).read([*columns]))
        return concat_tables(tables)

    def release(self) -> None:
        """Forget all relations; their files go with the run's temporary tables."""
        with self._lock:
            self._frames.clear()
            self._places.clear()

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
        every = {n: c.name for n, c in enumerate(project.by_id[table].known_columns)}
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


def _written(frame: DataFrame, place: str) -> DataFrame:
    """Write rows to a place now, in few files, and return them as read from there."""
    with translated("computing what changed"):
        writer = frame.hint("rebalance").write
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.parquet(spark_uri(place))
        return frame.sparkSession.read.schema(frame.schema).parquet(spark_uri(place))
