"""Relations that a run computes once, and keeps in files until it ends.

Files, and not Spark's cache: a cached relation carries the plans of all that it was computed from,
which grow with every relation that reads another.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.core.model.deltas import ROW_WEIGHT, NoRule
from persist_assets.core.object_stores import spark_uri
from persist_assets.engine.session import translated
from persist_assets.planning.deltas import unmaintainable
from persist_assets.storage.files import list_files, reached
from persist_assets.storage.raw import stored_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.deltas import Merging, Program
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source

_MUCH_BYTES = 16 * 2**20
_MOST_KEY_BYTES = 2**20
"""Keys larger than this are not compared with others."""
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
        self._by_content: dict[str, str] = {}
        self._of_probes: dict[tuple[frozenset[SourceID], ...], dict[str, dict[int, str]]] = {}
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
                rows = frame.hint("rebalance") if name.startswith("probe~") else frame
                self._frames[name] = _written(rows, self._places[name])
            return self._frames[name]

    def holds(self, name: str) -> bool:
        """Whether a relation is held."""
        with self._lock:
            return name in self._places

    def written(self, frame: DataFrame) -> tuple[DataFrame, int]:
        """Compute the rows of a frame now, in temporary files; return them and their number."""
        place = self._place()
        return _written(frame, place), _n_rows(place)

    def n_rows(self, name: str) -> int:
        """Return the number of rows of a relation that is held."""
        return _n_rows(self._places[name])

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

    def first_equal(self, name: str) -> str:
        """Return the first held relation with the same rows, which may be this one.

        Sources ask for the keys that one change touches in different words. What is computed from
        equal keys is computed once.
        """
        rows = self._read(name)
        if rows.nbytes > _MOST_KEY_BYTES:
            return name
        content = sorted(map(repr, zip(*(c.to_pylist() for c in rows.columns), strict=True)))
        digest = sha256(repr((str(rows.schema), content)).encode()).hexdigest()
        with self._lock:
            return self._by_content.setdefault(digest, name)

    def total(self, name: str) -> int:
        """Return the sum of the weights of changed rows that are held."""
        return sum(self._read(name, [ROW_WEIGHT])[ROW_WEIGHT].to_pylist())

    def _read(self, name: str, columns: Sequence[str] | None = None) -> Any:
        from pyarrow import concat_tables
        from pyarrow.parquet import ParquetFile

        tables: list[Any] = []
        for file in list_files(self._places[name]):
            if file.name.endswith(".parquet"):
                with (
                    reached(file.location) as (system, path),
                    system.open_input_file(path) as opened,
                ):
                    tables.append(ParquetFile(opened).read(columns and [*columns]))
        return concat_tables(tables)

    def release(self) -> None:
        """Forget all relations; their files go with the run's temporary tables."""
        with self._lock:
            self._frames.clear()
            self._places.clear()
            self._by_content.clear()
            self._of_probes.clear()

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
        used: dict[int, str] = {}
        for reader in self._readers(frozenset((table,))):
            try:
                used |= dict(project.uses(reader.source_id).get(table, ()))
            except NoRule:
                continue  # it is computed as a whole
        return used or every

    def columns_of_probe(
        self,
        digest: str,
        own: Iterable[tuple[int, str]],
        changed: frozenset[SourceID],
        grown: frozenset[SourceID],
    ) -> tuple[tuple[int, str], ...]:
        """Return the numbers and names of the columns that all programs with a probe use.

        Parameters
        ----------
        own
            Those that one of the programs uses.
        changed, grown
            The tables that changed, and those of them that only got rows.
        """
        with self._lock:
            if (changed, grown) not in self._of_probes:
                self._of_probes[changed, grown] = self._probed(changed, grown)
            known = self._of_probes[changed, grown].get(digest, {})
        return tuple(sorted((known | dict(own)).items()))

    def _probed(
        self, changed: frozenset[SourceID], grown: frozenset[SourceID]
    ) -> dict[str, dict[int, str]]:
        project = self._project
        used: dict[str, dict[int, str]] = {}
        for reader in self._readers(changed):
            own = changed & {i.source_id for i in project.inputs(reader)}
            program: Program | Merging | None = None
            for derive in (project.merging, project.program):
                with suppress(NoRule):
                    program = derive(reader.source_id, own, grown & own)
                    break
            if program is not None:
                for digest, probe in program.probes.items():
                    used.setdefault(digest, {}).update(program.columns[probe.table])
        return used

    def _readers(self, tables: frozenset[SourceID]) -> list[Source]:
        """Return the sources that can be maintained and read some tables; none if they are many."""
        project = self._project
        readers = [
            s
            for s in project.persisted
            if unmaintainable(s) is None
            and not tables.isdisjoint(i.source_id for i in project.inputs(s))
        ]
        return readers if len(readers) <= _MOST_READERS else []


def _written(frame: DataFrame, place: str) -> DataFrame:
    """Write rows to a place now, and return them as read from there."""
    with translated("computing what changed"):
        writer = frame.write
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.parquet(spark_uri(place))
        rows = frame.sparkSession.read.schema(frame.schema).parquet(spark_uri(place))
        # Spark plans nothing for what is joined with no rows, if it knows that there are none.
        return rows if _n_rows(place) else rows.limit(0)


def _n_rows(place: str) -> int:
    """Return how many rows the files of a directory have."""
    n_rows = 0
    for file in list_files(place):
        if file.name.endswith(".parquet"):
            with reached(file.location) as (system, path):
                n_rows += stored_rows(system, path)
    return n_rows
