"""Relations that a run computes once, and keeps in files until it ends.

Files, and not Spark's cache: a cached relation carries the plans of all that it was computed from,
which grow with every relation that reads another.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import BuildError
from persist_assets.core.model.deltas import ROW_WEIGHT, NoRule
from persist_assets.core.object_stores import spark_uri
from persist_assets.core.time_values import overlaps_any
from persist_assets.engine.few_rows import compares_as_spark, rows_of
from persist_assets.engine.session import translated
from persist_assets.planning.deltas import unmaintainable
from persist_assets.storage.arrow_rows import digest_of, read_rows, with_spark_schema, write_rows
from persist_assets.storage.files import list_files, rows_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.model.deltas import Merging, Program
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source
    from persist_assets.core.time_values import Span

    _Place = tuple[str, tuple[tuple[int, str], ...]]
    """A version of a table, and the columns whose values a search compares with keys."""
    _ByProbe = dict[str, list[Program | Merging]]
    _Planned = Callable[[DataFrame], DataFrame]

_MUCH_BYTES = 16 * 2**20
"""Changed rows in more bytes of files are not read into memory."""
_FEW_ROWS = 50_000
"""Relations with at most as many rows are read by one task."""
_MOST_KEY_BYTES = 2**24
"""Keys larger than this are not compared with others."""
_MOST_VALUES = 200_000
"""More keys are not compared with the statistics of files."""
_MOST_READERS = 50
"""All columns of a table with more readers than this are held."""


@dataclass(frozen=True, slots=True)
class Written:
    """Rows in temporary files.

    Attributes
    ----------
    rows
        The rows, as read from there.
    place
        The directory.
    nullable
        The columns that may have a NULL.
    """

    rows: DataFrame
    n_rows: int
    place: str
    nullable: frozenset[str]

    def equal(self, column: str) -> str:
        """Return the operator that compares a column with others, where NULL equals NULL.

        Spark joins by `=` several times as fast as by `<=>`.
        """
        return "<=>" if column in self.nullable else "="


@dataclass(frozen=True, slots=True)
class Net:
    """Changed rows in some of their columns.

    Attributes
    ----------
    differs
        Some rows differ in these columns.
    rows
        The rows that differ in them; None: all rows do, or there are too many to compare.
    """

    differs: bool = True
    rows: Written | None = None


@dataclass(frozen=True, slots=True)
class _Probe:
    """Held rows of a version of a table: those with some keys.

    Attributes
    ----------
    columns
        The numbers of their columns.
    keys, rows
        The names of the relations.
    """

    columns: frozenset[int]
    keys: str
    rows: str


class SharedWork:
    """The share of one build in relations that several builds of its run use.

    The first source of a run that needs a relation computes it. Without this share, its cost would
    make its maintenance seem expensive, and that of the other sources cheap.

    Attributes
    ----------
    seconds
        The seconds that it spent for others, less its share of the seconds that others spent.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counted: set[str] = set()

    def count(self, name: str, spent: float, seconds: float, n_users: int) -> None:
        """Count a relation that a number of sources use, once.

        Parameters
        ----------
        spent
            How many seconds this build spent computing it, or waiting until it was computed.
        seconds
            How many seconds it took to compute it.
        """
        if n_users > 1 and name not in self._counted:
            self._counted.add(name)
            self.seconds += spent - seconds / n_users


class HeldRelations:
    """The relations that a run holds until it ends.

    Parameters
    ----------
    find_maintained
        Returns those of some sources that the run maintains, by its plan.

    Attributes
    ----------
    directory
        Returns the directory of the run's temporary files, as a location.
    """

    def __init__(
        self,
        project: Project,
        find_maintained: Callable[[Collection[SourceID]], Collection[SourceID]],
    ) -> None:
        self._project, self._find_maintained = project, find_maintained
        self._is_maintained: dict[SourceID, bool] = {}
        self.directory: Callable[[], str] | None = None
        self._held: dict[str, Written] = {}
        self._files: dict[str, frozenset[str]] = {}
        self._seconds: dict[str, float] = {}
        self._by_content: dict[str, str] = {}
        self._firsts: dict[str, str] = {}
        self._probes: dict[_Place, list[_Probe]] = {}
        self._nets: dict[tuple[str, tuple[str, ...]], Net] = {}
        self._of_probes: dict[tuple[frozenset[SourceID], ...], _ByProbe] = {}
        self._columns: dict[SourceID, tuple[tuple[int, str], ...]] = {}
        self._n_users: dict[SourceID, int] = {}
        self._tests: dict[tuple[str, str], Callable[[Span], bool] | None] = {}
        self._spans: dict[tuple[str, str], dict[str, Span]] = {}
        self._lock = threading.RLock()

    def hold(
        self,
        name: str,
        frame: DataFrame,
        planned: _Planned | None = None,
        here: Callable[[], Any] | None = None,
    ) -> DataFrame:
        """Return a frame of rows that were computed once.

        Parameters
        ----------
        planned
            Returns the same rows in the session that computes them, if it is another one.
        here
            Returns the same rows as an Arrow table, or None: Spark has to compute them.

        Raises
        ------
        PersistError
            Computing them failed.
        """
        with self._lock:
            if name not in self._held:
                began = time.monotonic()
                self._held[name] = self.written(frame, planned, here)
                self._seconds[name] = time.monotonic() - began
            return self._held[name].rows

    def files_of(self, name: str, find: Callable[[], frozenset[str]]) -> frozenset[str]:
        """Return the files that some rows are in, which are found once."""
        with self._lock:
            if name not in self._files:
                began = time.monotonic()
                self._files[name] = find()
                self._seconds[name] = time.monotonic() - began
            return self._files[name]

    def seconds(self, name: str) -> float:
        """Return how long it took to compute a relation that is held, or to find files."""
        with self._lock:
            return self._seconds[name]

    def holds(self, name: str) -> bool:
        """Whether a relation is held."""
        with self._lock:
            return name in self._held

    def holds_few(self, name: str) -> bool:
        """Whether a relation is held that has few rows."""
        with self._lock:
            return name in self._held and self._held[name].n_rows <= _FEW_ROWS

    def written(
        self,
        frame: DataFrame,
        planned: _Planned | None = None,
        here: Callable[[], Any] | None = None,
    ) -> Written:
        """Compute the rows of a frame now, in temporary files; see `hold`."""
        table = here() if here else None
        if table is not None:
            return self.written_table(table, frame)
        place = self._place()
        with translated("computing what changed"):
            writer = (planned(frame) if planned else frame).write
            writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            writer.parquet(spark_uri(place))
        return _read(place, frame)

    def written_table(self, table: Any, like: DataFrame) -> Written:
        """Write an Arrow table, with the types of a frame, to temporary files."""
        place = self._place()
        write_rows(with_spark_schema(table, like.schema.json()), place)
        return _read(place, like, table)

    def get(self, name: str) -> Written:
        """Return a held relation.

        Raises
        ------
        BuildError
            Another run, which has ended, held it.
        """
        with self._lock:
            if name not in self._held:
                raise BuildError(f"`{name}` belongs to another run")
            return self._held[name]

    def n_rows(self, name: str) -> int:
        """Return the number of rows of a relation that is held."""
        return self.get(name).n_rows

    def _place(self) -> str:
        assert self.directory is not None, "only builds hold relations"
        return f"{self.directory()}/held-{uuid.uuid4().hex}"

    def equal(self, name: str, column: str) -> str:
        """Return the operator that compares a column of a held relation; see `Written.equal`."""
        return self.get(name).equal(column)

    def net(self, name: str, columns: Sequence[str]) -> Net:
        """Return held changed rows in some of their columns, net of each other.

        Rows whose other columns changed cancel each other out.
        """
        with self._lock:
            if (name, (*columns,)) not in self._nets:
                self._nets[name, (*columns,)] = self._find_net(self.get(name), columns)
            return self._nets[name, (*columns,)]

    def _find_net(self, changes: Written, columns: Sequence[str]) -> Net:
        from pyarrow import ArrowException
        from pyarrow.compute import field as column

        if not _is_little(changes):
            return Net()
        try:
            rows = read_rows(changes.place, [*columns, ROW_WEIGHT])
            totals = rows.group_by([*columns], use_threads=False).aggregate([(ROW_WEIGHT, "sum")])
        except ArrowException:
            return Net()
        weight = f"{ROW_WEIGHT}_sum"
        totals = totals.select([*columns, weight]).filter(column(weight) != 0)
        if (
            not totals.num_rows
            or totals.num_rows == changes.n_rows
            or not compares_as_spark(changes.rows.schema[name] for name in columns)
        ):
            return Net(bool(totals.num_rows))
        like = changes.rows.select(*columns, ROW_WEIGHT)
        return Net(rows=self.written_table(totals.rename_columns([*columns, ROW_WEIGHT]), like))

    def values(self, columns: Sequence[tuple[Written, str]]) -> Any:
        """Return the values of columns of held rows, once each, as an Arrow table.

        None: there are too many, or Spark has to compare them.
        """
        from pyarrow import ArrowException, concat_tables

        are_little = all(_is_little(rows) for rows, _ in columns)
        if not are_little or not compares_as_spark(rows.rows.schema[c] for rows, c in columns):
            return None
        try:
            tables = [read_rows(rows.place, [c]).rename_columns(["c0"]) for rows, c in columns]
            return concat_tables(tables).group_by("c0", use_threads=False).aggregate([])
        except ArrowException:
            return None

    def first_equal(self, name: str) -> str:
        """Return the first held relation with the same rows, which may be this one.

        Sources request the keys that one change touches by different statements. Relations that
        follow from equal keys are computed once.
        """
        with self._lock:
            if name not in self._firsts:
                digest = self._content(name)
                self._firsts[name] = self._by_content.setdefault(digest, name) if digest else name
            return self._firsts[name]

    def _content(self, name: str) -> str | None:
        """Return a digest of the keys of a held relation; None: they cannot be compared."""
        rows = self._keys_here(name)
        return None if rows is None else digest_of(rows)

    def _keys_here(self, name: str) -> Any:
        """Return the keys of a held relation; None: too many, or Spark has to compare them."""
        keys = self.get(name)
        if not compares_as_spark(keys.rows.schema.fields):
            return None
        rows = read_rows(keys.place)
        return rows if rows.nbytes <= _MOST_KEY_BYTES else None

    def finds_keys(self, name: str, column: str) -> Callable[[Span], bool] | None:
        """Return a function that tests whether a span has a value of a column of held keys.

        None: there are too many, one is NULL, or they are neither integers nor dates.
        """
        with self._lock:
            if (name, column) not in self._tests:
                self._tests[name, column] = self._test_of_keys(name, column)
            return self._tests[name, column]

    def _test_of_keys(self, name: str, column: str) -> Callable[[Span], bool] | None:
        rows = self._keys_here(name)
        if rows is None or rows.num_rows > _MOST_VALUES or rows[column].null_count:
            return None
        try:
            values: list[Any] = rows[column].unique().to_pylist()
        except (OverflowError, ValueError):  # Python has no dates after the year 9999
            return None
        if not all(type(v) in (int, date) for v in values):
            return None
        return overlaps_any((value, value) for value in values)

    def spans_in_files(
        self, table: str, column: str, find: Callable[[], dict[str, Span]]
    ) -> dict[str, Span]:
        """Return the spans of a column in the files of a version of a table, found once."""
        with self._lock:
            if (table, column) not in self._spans:
                self._spans[table, column] = find()
            return self._spans[table, column]

    def add_probe(self, place: _Place, columns: frozenset[int], keys: str, rows: str) -> None:
        """Record that the rows of a table that have some keys are held."""
        with self._lock:
            probe, known = _Probe(columns, keys, rows), self._probes.setdefault(place, [])
            if probe not in known:
                known.append(probe)

    def find_probe(self, place: _Place, columns: frozenset[int], keys: str) -> str | None:
        """Return held rows of a table that have at least some keys and columns."""
        with self._lock:
            for probe in self._probes.get(place, ()):
                if columns <= probe.columns and self._has_keys(probe.keys, keys, len(place[1])):
                    return probe.rows
        return None

    def _has_keys(self, name: str, others: str, n_columns: int) -> bool:
        """Whether a held relation has all keys of another one, in their first columns."""
        if name == others:
            return True
        rows, fewer = self._keys_here(name), self._keys_here(others)
        if rows is None or fewer is None:
            return False
        columns = [f"c{n}" for n in range(n_columns)]
        rows, fewer = rows.select(columns), fewer.select(columns)
        if rows.schema.types != fewer.schema.types:
            return False
        return not fewer.join(rows, columns, join_type="left anti").num_rows

    def total(self, name: str) -> int:
        """Return the sum of the weights of changed rows that are held."""
        return sum(read_rows(self.get(name).place, [ROW_WEIGHT])[ROW_WEIGHT].to_pylist())

    def release(self) -> None:
        """Forget all relations; their files go with the run's temporary tables."""
        with self._lock:
            self._held.clear()
            self._files.clear()
            self._seconds.clear()
            self._by_content.clear()
            self._firsts.clear()
            self._nets.clear()
            self._probes.clear()
            self._of_probes.clear()
            self._tests.clear()
            self._spans.clear()

    def columns_of(self, table: SourceID) -> tuple[tuple[int, str], ...]:
        """Return the numbers and names of the columns of a table that maintained sources use.

        The held rows of a table serve all of them.
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

    def n_users_of(self, table: SourceID) -> int:
        """Return how many sources use the changed rows of a table."""
        with self._lock:
            if table not in self._n_users:
                self._n_users[table] = len(self._maintained(frozenset((table,)))) or 1
            return self._n_users[table]

    def programs_with(
        self, digest: str, changed: frozenset[SourceID], grown: frozenset[SourceID]
    ) -> list[Program | Merging]:
        """Return the programs, of sources that the run maintains, that have a probe.

        Parameters
        ----------
        changed, grown
            The tables that changed, and those of them that only got rows.
        """
        with self._lock:
            if (changed, grown) not in self._of_probes:
                self._of_probes[changed, grown] = self._by_probe(changed, grown)
            return self._of_probes[changed, grown].get(digest, [])

    def _by_probe(self, changed: frozenset[SourceID], grown: frozenset[SourceID]) -> _ByProbe:
        project = self._project
        programs: _ByProbe = {}
        for reader in self._maintained(changed):
            own = changed & {i.source_id for i in project.inputs(reader)}
            program: Program | Merging | None = None
            for derive in (project.merging, project.program):
                with suppress(NoRule):
                    program = derive(reader.source_id, own, grown & own)
                    break
            if program is not None:
                for digest in program.probes:
                    programs.setdefault(digest, []).append(program)
        return programs

    def _maintained(self, tables: frozenset[SourceID]) -> list[Source]:
        """Return the sources that read some tables and that the run maintains."""
        readers = self._readers(tables)
        unknown = {s.source_id for s in readers} - self._is_maintained.keys()
        if unknown:
            # One that was built before its relations were asked for shares none of them.
            maintained = self._find_maintained(unknown)
            self._is_maintained |= {s: s in maintained for s in unknown}
        return [s for s in readers if self._is_maintained[s.source_id]]

    def _readers(self, tables: frozenset[SourceID]) -> list[Source]:
        """Return the sources that can be maintained and read some tables; none if too many do."""
        project = self._project
        readers = [
            s
            for s in project.persisted
            if unmaintainable(s) is None
            and not tables.isdisjoint(i.source_id for i in project.inputs(s))
        ]
        return readers if len(readers) <= _MOST_READERS else []


def _read(place: str, like: DataFrame, table: Any = None) -> Written:
    """Return rows in files, which have the types of a frame; `table` may have them, too."""
    n_rows, nullable = rows_in(place)
    with translated("computing what changed"):
        rows = rows_of(place, n_rows, like.sparkSession, like.schema, table)
    # Spark plans nothing for what is joined with no rows, if it knows that there are none.
    if n_rows <= _FEW_ROWS:
        # One partition needs no exchange, and each exchange takes a job.
        rows = rows.coalesce(1) if n_rows else rows.limit(0)
    return Written(rows, n_rows, place, nullable)


def _is_little(rows: Written) -> bool:
    """Whether held rows are so few bytes that they are computed with in memory."""
    files = (f for f in list_files(rows.place) if f.name.endswith(".parquet"))
    return sum(f.bytes for f in files) <= _MUCH_BYTES
