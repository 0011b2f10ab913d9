"""Computing one source in a Spark session: load its inputs, run its query, audit its rows."""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from persist_assets.core.dialect import quote, unpruned
from persist_assets.core.errors import BuildError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.object_stores import spark_pattern, spark_uri
from persist_assets.core.raw_options import CORRUPT, PARSED, corrupt_column
from persist_assets.core.time_values import (
    EXACT,
    from_text,
    greatest,
    ledger_text,
    spelled,
    to_text,
)
from persist_assets.engine.activity import activity_of
from persist_assets.engine.attribution import attributed
from persist_assets.engine.few_rows import in_few_files, in_session, is_classic, twin_of
from persist_assets.engine.named_files import (
    AS_NAMED,
    check_rows,
    directories_to_cast,
    listed_by_driver,
    load_unpinned,
    padded,
    read_type,
    reading_options,
    schema_of,
    whole_records,
)
from persist_assets.engine.python_udfs import Udfs
from persist_assets.engine.row_metrics import (
    Measured,
    audit,
    columns_in,
    failing,
    measures,
    n_true,
    read_measures,
    type_in,
)
from persist_assets.engine.session import broken_file, open_session, translated, version_of
from persist_assets.engine.shared_warehouse import ensure_shared
from persist_assets.storage.delta_commit import find_staged
from persist_assets.storage.delta_tables import read_snapshot, read_version
from persist_assets.storage.files import reached, stored_rows
from persist_assets.storage.headers import grouped_by_columns, line_of
from persist_assets.storage.partition_texts import partition_names
from persist_assets.storage.raw import Pin
from persist_assets.storage.types import delta_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.queries import PythonUdf
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.activity import Activity
    from persist_assets.engine.attribution import Attribution
    from persist_assets.engine.protocol import Beside
    from persist_assets.planning.render import Statement
    from persist_assets.storage.delta_commit import Staged


_ROWS_OF_A_FILE = 250_000
"""The size of files in tables whose rows are replaced later, so that few files change."""
_BYTES_OF_A_FILE = 6 * 2**20
"""The target size of a file of such a table, as Spark estimates sizes."""
_LEAST_TASKS = "spark.sql.files.minPartitionNum"
_SHOWN: WeakKeyDictionary[SparkSession, Counter[str]] = WeakKeyDictionary()
"""The number of this process's engines that have a view in a session, by the view's name."""
_SHOWN_LOCK = threading.Lock()


class SparkEngine:
    """Computes sources in a Spark session.

    Parameters
    ----------
    session
        Returns the session; called when it is first needed.
    """

    def __init__(self, settings: Settings, session: Callable[[], SparkSession]) -> None:
        self.settings = settings
        self._get_session = session
        self._session: SparkSession | None = None
        self._twin: SparkSession | None = None
        self._udfs = Udfs(settings.root)
        self._views: set[str] = set()
        self._checked: set[str] = set()
        self._parsed: dict[str, tuple[str, str | None, tuple[Column, ...], Mapping[str, str]]] = {}
        self._lock = threading.Lock()
        self._views_lock = threading.RLock()  # a stored query reads others

    @property
    def session(self) -> SparkSession:
        """The Spark session, with the settings on which results depend (`open_session`)."""
        with self._lock:
            if self._session is None:
                self._session = open_session(self.settings, self._get_session)
            return self._session

    def define(self, functions: Iterable[PythonUdf]) -> None:
        """Register Python functions for statements and checks."""
        self._udfs.define(functions)

    def parallelism(self) -> int:
        """Return the number of tasks that Spark runs at once."""
        with translated("asking Spark for its size"):
            # The only way that works in both classic sessions and those of a server.
            plan: str = self.session.sql("EXPLAIN SELECT * FROM range(1)").collect()[0][0]
        match = re.search(r"splits=(\d+)", plan)
        return int(match[1]) if match else 1

    def version(self) -> str:
        """Return the version of the session's Spark: ``Spark 4.3.0``."""
        return f"Spark {version_of(self.session)}"

    def catalog(self) -> str:
        """Return the kind of the session's catalog: ``hive`` or ``in-memory``."""
        with translated("asking Spark for its catalog"):
            return str(self.session.conf.get("spark.sql.catalogImplementation", "in-memory"))

    def size(self, frame: DataFrame) -> int:
        """Return Spark's estimate of a frame's size in bytes, from the sizes of files."""
        explained = self.over(frame, lambda name: f"EXPLAIN COST SELECT * FROM {quote(name)}")
        with translated("asking Spark how much there is"):
            match = re.search(r"sizeInBytes=([\d.E+]+) (\w+)", explained.collect()[0][0])
        units = ("B", "KiB", "MiB", "GiB", "TiB")
        if match is None or match[2] not in units:
            return 0
        return int(float(match[1]) * 1024 ** units.index(match[2]))

    @contextmanager
    def undivided(self) -> Generator[None]:
        """Read each group of files (`Slice.groups`) in one task.

        Otherwise Spark divides every group among all processors, and each part becomes a file with
        rows of all times of the group. Groups larger than Spark's limit for a task are still
        divided. Other computations of the session may be divided less meanwhile.
        """
        with translated("preparing the Spark session"):
            free = self.session.conf.get(_LEAST_TASKS, None) is None  # nobody has set a value
            if free:
                self.session.conf.set(_LEAST_TASKS, "1")
        try:
            yield
        finally:
            if free:
                with suppress(Exception):  # a session that is gone computes nothing
                    self.session.conf.unset(_LEAST_TASKS)

    def interrupt(self) -> None:
        """Cancel all computations of the session, of any thread."""
        for session in filter(None, (self._session, self._twin)):
            with suppress(Exception):  # a session that is gone computes nothing
                session.interruptAll()

    def attributed(self, to: Attribution) -> AbstractContextManager[None]:
        """Attribute this thread's computations to a build; cancel them if it is interrupted."""
        ensure_shared(self.session, self.settings)
        return attributed(self.session, to)

    def activity(self) -> Activity | None:
        """Return Spark's current activity; None if it has not started, or is a server."""
        return activity_of(self._session) if self._session is not None else None

    def for_few_rows(self, frame: DataFrame) -> DataFrame:
        """Return the same rows, which are computed faster if they follow from few rows."""
        if not is_classic(frame):
            return frame
        session = self.session
        with self._lock, translated("preparing the Spark session"):
            if self._twin is None:
                self._twin = twin_of(session)
            return in_session(frame, self._twin)

    def _for_few_rows(self, beside: Beside | None) -> Beside | None:
        return beside and replace(beside, rows=self.for_few_rows(beside.rows))

    # ---------------------------------------------------------------------------------- LOAD

    def load_raw(self, source: Source, pin: Pin) -> DataFrame:
        """Return the rows of a raw table at a version; columns that a file lacks are NULL."""
        raw = source.raw
        assert raw is not None
        options = dict(raw.options)
        if pin.files is not None:
            form = "parquet" if raw.format == "delta" else raw.format
            self.check_rows(source.name, pin)
            if form in PARSED:
                return self._read_parsed(source, form, pin, options)
            return self.read_files(form, pin, source.columns, options)
        place = raw.location and spark_uri(self.settings.resolve(raw.location))
        frame = load_unpinned(self.session, raw.format, options, place, source.columns)
        cast = "CAST({0} AS {1}) AS {0}".format
        named = [cast(quote(c.name), read_type(c.type)) for c in source.columns]
        return padded(frame.selectExpr(*named), source.columns) if named else frame

    def check_rows(self, name: str, pin: Pin) -> None:
        """Check once for each file that Spark reads the rows promised by the table's log.

        Raises
        ------
        StorageError
            It does not, or a file without a promised number of rows cannot be read.
        """
        # Files that OPTIMIZE has removed since are checked by their footers.
        files = [f for f in pin.files or () if pin.rows and f not in self._checked]
        if not files:
            return
        promised: dict[str, int] = {}
        for file in files:
            rows = pin.rows.get(file)
            if rows is None:
                with reached(file) as (system, path):
                    rows = stored_rows(system, path)
            promised[file] = rows
        with translated(f"reading `{name}`"):
            reader = self.session.read.options(**AS_NAMED).schema("_ int")
            with listed_by_driver(self.session, files):
                scan = reader.parquet(*map(spark_pattern, files))
            check_rows(scan, promised, f"`{name}`")
        self._checked |= promised.keys()

    def read_files(
        self,
        form: str,
        pin: Pin,
        columns: Sequence[Column],
        options: Mapping[str, str],
        *,
        file: str | None = None,
        stored: Sequence[Column] | None = None,
    ) -> DataFrame:
        """Return the rows of pinned files.

        Parameters
        ----------
        file
            The name of a column with each row's file; None: no such column.
        stored
            The columns of the files, by position; None: the columns that are read.
        """
        present = columns if stored is None else stored
        if not pin.files:
            file_column = f", {quote(file)} string" if file is not None else ""
            return self.session.createDataFrame([], schema_of(present) + file_column)
        texts = directories_to_cast(self.session, pin.files, pin.base, columns)
        schema = schema_of(
            replace(c, type="string") if c.name.lower() in texts else c for c in present
        )
        # The table's own statements about its files take precedence.
        reader = self.session.read.options(**AS_NAMED).options(**options)
        reader = reader.schema(schema).format(form)
        if pin.base:
            reader = reader.option("basePath", spark_uri(pin.base))
        # Directories named like undeclared partitions would become columns.
        with listed_by_driver(self.session, pin.files):
            frame = reader.load([spark_pattern(path) for path in pin.files])
        if form in PARSED:
            frame = whole_records(frame, columns, partition_names(pin.files, pin.base))
        names = [
            f"CAST({quote(c.name)} AS {c.type}) AS {quote(c.name)}"
            if c.name.lower() in texts
            else f"{unpruned(quote(c.name), read_type(c.type))} AS {quote(c.name)}"
            for c in columns
        ]
        if file is not None:
            names.append(f"_metadata.file_path AS {quote(file)}")
        return padded(frame.selectExpr(*names), columns)

    def _read_parsed(
        self, source: Source, form: str, pin: Pin, options: Mapping[str, str]
    ) -> DataFrame:
        """Return the rows of text files: columns by the header's names, bad records as declared.

        Raises
        ------
        StorageError
            A header lacks declared columns, or is not declared as one.
        """
        columns, files = source.columns, pin.files or ()
        options = {**options, **reading_options(form, options, columns)}
        parted = {*partition_names(files, pin.base), corrupt_column(options).lower()}
        groups: dict[tuple[Column, ...], list[str]] = {columns: [*files]}
        if form == "csv":
            try:
                groups = grouped_by_columns(files, options, columns, parted, f"`{source.name}`")
            except StorageError as error:
                error.location = error.location or source.location
                raise
        for stored, group in groups.items():
            self._parsed |= dict.fromkeys(group, (form, pin.base, stored, options))
        frames = [
            self.read_files(form, replace(pin, files=tuple(group)), columns, options, stored=stored)
            for stored, group in groups.items()
        ]
        empty = Pin(None, ())
        return (
            reduce(lambda some, more: some.union(more), frames)
            if frames
            else self.read_files(form, empty, columns, {})
        )

    @contextmanager
    def _naming_bad_records(self) -> Generator[None]:
        """Name the file and line of a malformed record in errors of the block."""
        try:
            yield
        except StorageError as error:
            file = broken_file(error.__cause__)
            place = next((f for f in self._parsed if file and spark_uri(f).endswith(file)), None)
            record = None if place is None else self._bad_record(place)
            if place is None or record is None:
                raise
            line = line_of(place, record, self._parsed[place][3])
            at = place if line is None else f"{place}:{line}"
            raise StorageError(
                f"{at} does not match its declaration: {record.strip()[:200]}",
                hint="fix it, or keep such records: declare a column `_corrupt_record STRING`",
            ) from error

    def _bad_record(self, file: str) -> str | None:
        """Return the text of a malformed record of a file; None if there is none."""
        form, base, stored, options = self._parsed[file]
        bad = Column("_persist_bad_record", "string")
        options = {**options, "mode": "PERMISSIVE", CORRUPT: bad.name}
        columns = (*stored, bad)
        frame = self.read_files(form, Pin(None, (file,), base), columns, options, stored=columns)
        with suppress(Exception):  # the first error is sufficient
            for row in frame.where(f"{bad.name} IS NOT NULL").limit(1).collect():
                return str(row[bad.name])
        return None

    def load_snapshot(self, snapshot: Snapshot) -> DataFrame:
        """Return the rows of a snapshot.

        Raises
        ------
        StorageError
            Its files are gone.
        """
        version = read_snapshot(self.settings.table_root(snapshot.table), snapshot)
        return self.read_files("parquet", Pin(None, version.files), version.columns, {})

    def load_table(self, root: str, version: int) -> DataFrame:
        """Return the rows of one version of a table of ours, of any build.

        Raises
        ------
        StorageError
            Its files are gone.
        """
        table_version = read_version(root, version)
        return self.read_files("parquet", Pin(None, table_version.files), table_version.columns, {})

    def view(self, name: str, load: Callable[[], DataFrame]) -> str:
        """Return `name`, a view of the frame that `load` returns; `load` is called once.

        A name identifies its content for all users of the session, so a view never has to change.
        """
        with self._views_lock:
            if name not in self._views:
                session = self.session
                with _SHOWN_LOCK:
                    _SHOWN.setdefault(session, Counter())[name] += 1
                self._views.add(name)
                try:
                    with translated(f"reading {name}"):
                        load().createOrReplaceTempView(quote(name))
                except BaseException:
                    self._forget(name)
                    raise
        return name

    def forget(self) -> None:
        """Drop the views of this engine; it creates them again on demand.

        Views that other engines of this process use stay in the session. Each view holds a plan
        with a list of files there, and new data needs new views.
        """
        with self._views_lock:
            for name in [*self._views]:
                self._forget(name)
            self._checked.clear()
            self._parsed.clear()

    def _forget(self, name: str) -> None:
        self._views.discard(name)
        with _SHOWN_LOCK:
            shown = _SHOWN[self.session]
            shown[name] -= 1
            if not shown[name]:
                del shown[name]
                with suppress(Exception):  # a session that is gone has none
                    self.session.catalog.dropTempView(name)

    # ----------------------------------------------------------------------------------- RUN

    def run(self, statement: Statement, columns: Sequence[Column] = ()) -> DataFrame:
        """Return the lazy rows of a statement.

        Parameters
        ----------
        columns
            The names that the result must have, in order; empty: its own names.
        """
        self._udfs.register(self.session, statement.sql)
        with translated("the query"):
            frame = self.session.sql(statement.sql)
            names = frame.columns  # with Spark Connect this calls the server, and may fail
        if columns and names != [c.name for c in columns]:
            if [c.lower() for c in names] != [c.name.lower() for c in columns]:
                raise BuildError(
                    f"Spark names the columns {', '.join(names)}, but "
                    f"persist expected {', '.join(c.name for c in columns)}",
                    hint="this is a bug in persist_assets: please report the query",
                )
            frame = frame.toDF(*(c.name for c in columns))
        return frame

    def over(self, frame: DataFrame, query: Callable[[str], str]) -> DataFrame:
        """Return the lazy rows of a query over the rows of a frame.

        Parameters
        ----------
        query
            Returns the query for the name that the frame has in it.
        """
        name = f"rows-{uuid.uuid4().hex}"
        text = query(name).replace("{", "{{").replace("}", "}}")
        with translated("the query"):  # a server would look up a view of ours only later
            return self.session.sql(text.replace(quote(name), "{rows}"), rows=frame)

    def collect(self, frame: DataFrame, n: int) -> list[Any]:
        """Return the first rows of a frame, at most `n`."""
        with self._naming_bad_records(), translated("the query"):
            return frame.limit(n).collect()

    # --------------------------------------------------------------------------------- AUDIT

    def write(
        self,
        frame: DataFrame,
        table: str,
        build_uid: str,
        checks: Sequence[Check],
        time_column: str | None,
        name: str,
        *,
        beside: Beside | None = None,
        clustered: bool = False,
        bounds: Sequence[str] = (),
        few: bool = False,
    ) -> tuple[Staged, Measured]:
        """Write rows as files of a table, measured and checked in the same pass; commit nothing.

        Parameters
        ----------
        name
            The source that computes the rows, for messages.
        beside
            Rows that are written too, but neither measured nor checked, except that they count for
            the watermark. The removed ones among them are measured (`Measured.gone`).
        clustered
            Files have separate ranges of the time column.
        bounds
            Conditions, each true for fewer rows than the previous one. Each file has the rows
            between two of them. Empty: files have no bounds.
        few
            The rows follow from few rows, and are planned for few.

        Raises
        ------
        BuildError
            Computing the rows failed, or a table cannot have one of their types.
        StorageError
            They cannot be written.
        """
        if few:
            frame, beside = self.for_few_rows(frame), self._for_few_rows(beside)
        naming = self._naming_bad_records()
        with naming, ExitStack() as stack, translated(f"computing `{name}`"):
            if bounds:
                frame = self._split_at(frame, bounds)
            elif clustered and time_column:
                # Spark computes the rows a second time to find bounds.
                stack.callback(frame.persist().unpersist)
                n_files = max(1, round(frame.count() / _ROWS_OF_A_FILE))
                frame = frame.repartitionByRange(n_files, quote(time_column))
            kind = type_in(frame, time_column) if time_column else ""
            # The statistics of files with only these rows show the latest value, at no cost.
            by_files = beside is None and kind in EXACT
            watched, measure = self._watched(frame, checks, None if by_files else time_column)
            stay, stayed = None, None
            if beside is not None:
                stay, stayed = self._staying(beside, checks, time_column)
                watched = watched.unionByName(stay)
            watched = in_few_files(watched) if few else watched
            staged = self.write_files(watched, self.settings.table_root(table), build_uid)
            measured = measure()
            n_rows = measured.rows
            if stayed is not None:
                n, watermark, gone = stayed()
                n_rows += n
                try:
                    latest = greatest((measured.watermark, watermark), kind)
                except ValueError:
                    assert time_column is not None
                    written = self.session.read.parquet(_pattern(staged))
                    latest = self.greatest(written, time_column, name)
                measured = replace(measured, watermark=latest, gone=gone)
            elif by_files and time_column:
                latest, timeless = self._latest(staged, time_column, kind)
                measured = replace(measured, watermark=latest, timeless=timeless)
        if staged.rows != n_rows:
            raise StorageError(
                f"Spark wrote {staged.rows} rows of `{name}` but counted {n_rows}",
                hint="try again",
            )
        if rest := [c for c in checks if not c.in_pass]:
            with translated(f"checking `{name}`"):
                rows = self.session.read.parquet(_pattern(staged))
                measured = replace(measured, checks=(*measured.checks, *audit(rows, rest)))
        return staged, measured

    def _split_at(self, frame: DataFrame, bounds: Sequence[str]) -> DataFrame:
        """Return rows with a partition for each file between some of the bounds."""
        from pyspark.sql import functions as F

        n = min(len(bounds) + 1, max(1, round(self.size(frame) / _BYTES_OF_A_FILE)))
        chosen = [bounds[k * len(bounds) // n] for k in range(1, n)]
        return frame.repartitionById(n, F.expr(n_true(chosen))) if chosen else frame

    def measure(
        self, frame: DataFrame, checks: Sequence[Check], time_column: str | None, name: str
    ) -> Measured:
        """Measure and check rows as `write` does, and write nothing.

        Raises
        ------
        BuildError
            Computing the rows failed.
        """
        with translated(f"computing `{name}`"):
            watched, measure = self._watched(frame, checks, time_column)
            watched.write.format("noop").mode("overwrite").save()
            measured = measure()
            rest = audit(frame, [c for c in checks if not c.in_pass])
        return replace(measured, checks=(*measured.checks, *rest))

    def _watched(
        self, frame: DataFrame, checks: Sequence[Check], time_column: str | None
    ) -> tuple[DataFrame, Callable[[], Measured]]:
        """Return rows that are measured while they are computed, and a function for the metrics."""
        from pyspark.sql import Observation

        self._udfs.register(frame.sparkSession, *(c.expression for c in checks))
        observation = Observation()
        kind = type_in(frame, time_column) if time_column else None
        watched = frame.observe(observation, *measures(frame, checks, time_column, kind))
        return watched, lambda: read_measures(observation.get, checks, kind)

    def _latest(self, staged: Staged, column: str, kind: str) -> tuple[str | None, int]:
        """Return the greatest value of a column in files, as text, and the number of NULLs."""
        latest = staged.greatest(column)
        if latest is not None:
            last, timeless = latest
            value = None if last is None else from_text(str(last), kind)
            if (value is None) == (last is None):
                return None if value is None else to_text(value), timeless
        rows = self.session.read.parquet(_pattern(staged)).select(quote(column))
        measured = self.measure(rows, (), column, column)
        return measured.watermark, measured.timeless

    def _staying(
        self, beside: Beside, checks: Sequence[Check], time_column: str | None
    ) -> tuple[DataFrame, Callable[[], tuple[int, str | None, Measured | None]]]:
        """Return the rows that stay, and a function to call when they are written.

        It returns their number, their watermark, and the metrics of the removed rows.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        rows, lost, stayed = beside.rows, Observation(), Observation()
        selected = [*map(quote, beside.columns or rows.columns)]
        if beside.gone is not None:
            of_gone = measures(rows.select(selected), checks, None, None, beside.gone)
            rows = rows.observe(lost, *of_gone)
            rows = rows.where(f"NOT ({beside.gone})").select(selected)
        kind = type_in(rows, time_column) if time_column else None
        aggregates = [F.count(F.lit(1)).alias("n")]
        if time_column and kind:
            aggregates.append(F.expr(f"{spelled(f'max({quote(time_column)})', kind)} AS last"))
        rows = rows.observe(stayed, *aggregates)

        def measured() -> tuple[int, str | None, Measured | None]:
            value_of = stayed.get
            gone = None if beside.gone is None else read_measures(lost.get, checks)
            return value_of["n"], ledger_text(value_of.get("last"), kind), gone

        return rows, measured

    def greatest(self, frame: DataFrame, column: str, name: str) -> str | None:
        """Return the greatest value of a column as text, None if all are NULL.

        Raises
        ------
        BuildError
            Computing the rows failed.
        """
        kind = type_in(frame, column)
        with translated(f"computing `{name}`"):
            last = f"{spelled(f'max({quote(column)})', kind)} AS last"
            return ledger_text(frame.selectExpr(last).collect()[0]["last"], kind)

    def write_files(
        self, frame: DataFrame, root: str, build_uid: str, *, most_rows: int = 0
    ) -> Staged:
        """Write rows as files of a table, without measuring them.

        Parameters
        ----------
        most_rows
            The maximum number of rows of a file; 0: no limit.
        """
        ensure_shared(self.session, self.settings)
        no_marker = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
        writer = frame.write.options(maxRecordsPerFile=str(most_rows), **no_marker)
        writer.parquet(spark_uri(f"{root}/{build_uid}"))
        return find_staged(root, build_uid, delta_schema(frame.schema.jsonValue()))

    def columns(self, frame: DataFrame, name: str) -> tuple[Column, ...]:
        """Return the columns of lazy rows.

        Raises
        ------
        BuildError
            Spark cannot analyse the query.
        """
        with translated(f"computing `{name}`"):
            return tuple(columns_in(frame))

    def failing(self, frame: DataFrame, check: Check) -> DataFrame | None:
        """Return the rows that fail a check, or their keys; None if no single row can fail it."""
        self._udfs.register(frame.sparkSession, check.expression)
        return failing(frame, check)

    def unmatched(self, frame: DataFrame, column: str, others: DataFrame, other: str) -> DataFrame:
        """Return the rows whose value in a column is not NULL and missing in another frame."""
        from pyspark.sql import functions as F

        keys = others.selectExpr(f"{quote(other)} AS `persist.known`").distinct()
        rows = frame.where(f"{quote(column)} IS NOT NULL")
        return rows.join(keys, F.expr(f"{quote(column)} = `persist.known`"), "left_anti")

    def sample(self, frame: DataFrame, columns: Sequence[str], n: int) -> list[str]:
        """Return some columns of the first rows as JSON, at most `n`."""
        from pyspark.sql import functions as F

        row = F.to_json(F.struct(*map(quote, columns)), {"ignoreNullFields": "false"})
        return [r[0] for r in frame.limit(n).select(row).collect()]

    def audit(
        self, frame: DataFrame, checks: Sequence[Check], name: str
    ) -> tuple[CheckResult, ...]:
        """Check existing rows."""
        self._udfs.register(frame.sparkSession, *(c.expression for c in checks))
        with translated(f"checking {name}"):
            return audit(frame, checks)


def _pattern(staged: Staged) -> str:
    """Return the pattern by which Spark reads the files of a build."""
    return spark_pattern(f"{staged.root}/{staged.build_uid}")
