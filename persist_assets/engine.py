"""The Spark session, and how one source is computed in it.

LOAD what is read, SUBSTITUTE it into the query, RUN, and AUDIT the rows while they are written.
Only what classic Spark and Spark Connect share is used: no SparkContext, no JVM objects.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.errors import (
    BuildError,
    JavaMissingError,
    PersistError,
    SettingsError,
    StorageError,
)
from persist_assets.model import CheckResult, Column, Kind
from persist_assets.settings import is_harmless
from persist_assets.storage.raw import FILE_FORMATS, Pin, missing_columns
from persist_assets.storage.tables import delta_schema, find_staged, read_version, root_of
from persist_assets.substitution import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.column import Column as SparkColumn

    from persist_assets.model import Check, Snapshot, Source
    from persist_assets.settings import Settings
    from persist_assets.storage.tables import Staged
    from persist_assets.substitution import Statement

log = logging.getLogger(__name__)

_JAVA_HINT = (
    "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to it"
)
_session_lock = threading.Lock()


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Raise unless there is a Java that Spark runs on.

    Raises
    ------
    JavaMissingError
        There is none, or it is older than 17.
    """
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, where there is no Java" if home else "there is no Java"
        raise JavaMissingError(f"Spark needs Java, and {where}", hint=_JAVA_HINT)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if match and int(match[1]) < 17:
        raise JavaMissingError(
            f"Spark needs Java 17 or 21, and {java} is Java {match[1]}", hint=_JAVA_HINT
        )


def create_session(settings: Settings) -> SparkSession:
    """Return a Spark session with the project's settings, an existing one if there is one.

    Raises
    ------
    JavaMissingError
        Spark runs on this machine and there is no Java for it.
    StorageError
        The session does not start.
    """
    config = dict(settings.spark)
    with _session_lock:
        if "spark.remote" not in config:
            check_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder
        for key, value in config.items():
            if not (key == "spark.master" and "spark.remote" in config):
                builder = builder.config(key, value)
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise StorageError(f"Spark does not start: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of rows while they were written.

    Attributes
    ----------
    content
        Digest of the rows, whatever their order.
    watermark
        The greatest value of the time column, as text, or None.
    """

    rows: int
    content: str
    watermark: str | None
    checks: tuple[CheckResult, ...]


class Engine:
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
        self._views: set[str] = set()
        self._lock = threading.Lock()

    @property
    def session(self) -> SparkSession:
        """The Spark session, with the settings on which results depend.

        Raises
        ------
        SettingsError
            It has a setting that changes results and that the project does not know of.
        """
        with self._lock:
            if self._session is None:
                session = self._get_session()
                _align(session, dict(self.settings.connection))
                self._session = session
            return self._session

    # ---------------------------------------------------------------------------------- LOAD

    def load_raw(self, source: Source, pin: Pin) -> DataFrame:
        """Return the rows of a raw table at a pinned version.

        Raises
        ------
        StorageError
            The data lacks a declared column.
        """
        raw = source.raw
        assert raw is not None
        lacking = missing_columns(pin, raw, source.columns)
        if lacking:
            raise StorageError(
                f"the data of `{source.name}` has no column `{lacking[0]}`",
                hint=f"it is declared at {source.location}",
                location=source.location,
            )
        options = dict(raw.options)
        reader = self.session.read.options(**options)
        if pin.files is not None:
            form = "parquet" if raw.format == "delta" else raw.format
            return self.read_files(form, pin, source.columns, options)
        place = self.settings.resolve(raw.location) if raw.location else None
        frame = reader.format(raw.format).load(place) if place else reader.format(raw.format).load()
        named = [f"CAST({quote(c.name)} AS {c.type}) AS {quote(c.name)}" for c in source.columns]
        return frame.selectExpr(*named) if named else frame

    def read_files(
        self, form: str, pin: Pin, columns: Sequence[Column], options: Mapping[str, str]
    ) -> DataFrame:
        """Return the rows of pinned files."""
        schema = ", ".join(f"{quote(c.name)} {_read_type(c.type)}" for c in columns)
        if not pin.files:
            return self.session.createDataFrame([], schema)
        reader = self.session.read.options(**options).schema(schema).format(form)
        if pin.base:
            reader = reader.option("basePath", pin.base)
        return reader.load(list(pin.files))

    def load_snapshot(self, snapshot: Snapshot) -> DataFrame:
        """Return the rows of a snapshot.

        Raises
        ------
        StorageError
            Its files are gone.
        """
        found = read_version(root_of(self.settings.warehouse, snapshot.table), snapshot.version)
        return self.read_files("parquet", Pin(None, found.files), found.columns, {})

    def view(self, name: str, load: Callable[[], DataFrame]) -> str:
        """Return `name`, which is a view of what `load` returns; it is called the first time.

        Names hold the version of what they show, so a view never has to change.
        """
        if name not in self._views:
            with translated(f"reading {name}"):
                load().createOrReplaceTempView(quote(name))
            self._views.add(name)
        return name

    # ----------------------------------------------------------------------------------- RUN

    def run(self, statement: Statement, columns: Sequence[Column] = ()) -> DataFrame:
        """Return the rows of a statement, not yet computed.

        Parameters
        ----------
        columns
            The names the result must have, in order; nothing: whatever it has.
        """
        with translated("the query"):
            frame = self.session.sql(statement.sql)
        if columns and frame.columns != [c.name for c in columns]:
            if [c.lower() for c in frame.columns] != [c.name.lower() for c in columns]:
                raise BuildError(
                    f"Spark names the columns {', '.join(frame.columns)}, "
                    f"we expected {', '.join(c.name for c in columns)}",
                    hint="this is a defect of persist_assets: please report the query",
                )
            frame = frame.toDF(*(c.name for c in columns))
        return frame

    def collect(self, frame: DataFrame, n: int) -> list[Any]:
        """Return the first rows of a frame, at most `n`."""
        with translated("the query"):
            return frame.limit(n).collect()

    # --------------------------------------------------------------------------------- AUDIT

    def write(
        self,
        frame: DataFrame,
        table: str,
        build_uid: str,
        checks: Sequence[Check],
        time_column: str | None,
    ) -> tuple[Staged, Measured]:
        """Write rows as files of a table, measured and checked in the same pass; commit nothing.

        Raises
        ------
        BuildError
            Computing the rows failed, or a type has no place in a table.
        StorageError
            They cannot be written.
        """
        from pyspark.sql import Observation

        root = root_of(self.settings.warehouse, table)
        observation = Observation()
        with translated(f"computing {table}"):
            watched = frame.observe(observation, *_measures(frame, checks, time_column))
            staged = self.write_files(watched, root, build_uid)
            seen = observation.get
        if staged.rows != seen["rows"]:
            raise StorageError(
                f"Spark wrote {staged.rows} rows of {table} and counted {seen['rows']}",
                hint="run it again",
            )
        results = [_row_check(c, seen) for c in checks if c.kind != "unique"]
        results += self._unique_checks(staged, checks)
        content = f"{seen['rows']}:{seen['x'] or 0:x}:{seen['high'] or 0:x}:{seen['low'] or 0:x}"
        watermark = seen["watermark"] if time_column else None
        return staged, Measured(staged.rows, content, watermark, tuple(results))

    def write_files(self, frame: DataFrame, root: str, build_uid: str) -> Staged:
        """Write rows as files of a table, and do nothing else."""
        schema = delta_schema(frame.schema.jsonValue())
        writer = frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        writer.parquet(f"{root}/{build_uid}")
        return find_staged(root, build_uid, schema)

    def audit(self, snapshot: Snapshot, checks: Sequence[Check]) -> tuple[CheckResult, ...]:
        """Check the rows of a snapshot that is there already."""
        frame = self.load_snapshot(snapshot)
        with translated(f"checking {snapshot.table}"):
            row_checks = [_failures(c).alias(c.name) for c in checks if c.kind != "unique"]
            seen = frame.agg(*row_checks).collect()[0].asDict() if row_checks else {}
            results = [_row_check(c, seen) for c in checks if c.kind != "unique"]
            results += [_unique_check(frame, c) for c in checks if c.kind == "unique"]
        return tuple(results)

    def _unique_checks(self, staged: Staged, checks: Sequence[Check]) -> Iterator[CheckResult]:
        unique = [c for c in checks if c.kind == "unique"]
        if unique:
            with translated(f"checking {staged.root}"):
                frame = self.session.read.parquet(f"{staged.root}/{staged.build_uid}")
                for check in unique:
                    yield _unique_check(frame, check)


# ------------------------------------------------------------------------------------ measurements


def _measures(
    frame: DataFrame, checks: Sequence[Check], time_column: str | None
) -> list[SparkColumn]:
    """Return the aggregates that are measured while rows are written."""
    from pyspark.sql import functions as F

    row = F.xxhash64(*(_hash(F.col(quote(f.name)), f.dataType) for f in frame.schema.fields))
    measures = [
        F.count(F.lit(1)).alias("rows"),
        # XOR forgets rows that occur an even number of times, the sums do not; their parts are
        # of 24 bits, so that they do not overflow.
        F.bit_xor(row).alias("x"),
        F.sum(F.shiftrightunsigned(row, 40)).alias("high"),
        F.sum(F.shiftrightunsigned(row, 16).bitwiseAND(F.lit(0xFFFFFF))).alias("low"),
        *(_failures(c).alias(c.name) for c in checks if c.kind != "unique"),
    ]
    if time_column:
        measures.append(F.max(F.col(quote(time_column))).cast("string").alias("watermark"))
    return measures


def _hash(value: SparkColumn, kind: Any) -> SparkColumn:
    """Return a hash of a value that tells apart what `xxhash64` alone does not.

    Spark skips NULLs, so that (1, NULL) and (NULL, 1) hash alike; it takes no maps, and the two
    zeros of floating point for one.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    match kind:
        case T.StructType():
            parts = [_hash(value.getField(f.name), f.dataType) for f in kind.fields]
            made = F.xxhash64(F.lit(len(parts)), *parts)
        case T.ArrayType():
            made = F.xxhash64(
                F.size(value), F.transform(value, lambda e: _hash(e, kind.elementType))
            )
        case T.MapType():
            entries = F.transform(
                F.map_entries(value),
                lambda e: F.xxhash64(
                    _hash(e["key"], kind.keyType), _hash(e["value"], kind.valueType)
                ),
            )
            made = F.xxhash64(F.size(value), F.array_sort(entries))
        case T.FloatType() | T.DoubleType():
            sign = F.when(value == 0, value.cast("string"))
            made = F.xxhash64(value, F.coalesce(sign, F.lit("")))
        case _:
            made = F.xxhash64(value)
    return F.when(value.isNull(), F.lit(0x5E_ED_0F_A_11)).otherwise(made)


def _failures(check: Check) -> SparkColumn:
    """Return how many rows fail a check on single rows."""
    from pyspark.sql import functions as F

    match check.kind:
        case "not_null":
            failed = F.col(quote(check.columns[0])).isNull()
        case "accepted_values":
            failed = ~F.col(quote(check.columns[0])).isin(list(check.values))
        case _:
            assert check.expression is not None
            failed = ~F.expr(f"({check.expression})")
    return F.count_if(F.coalesce(failed, F.lit(False)))


def _row_check(check: Check, seen: Mapping[str, Any]) -> CheckResult:
    n = int(seen[check.name] or 0)
    return CheckResult(check.name, n == 0, check.blocking, n, check.definition)


def _unique_check(frame: DataFrame, check: Check) -> CheckResult:
    """Count the rows that share a key with another row; keys that hold a NULL are not compared."""
    from pyspark.sql import functions as F

    keys = [F.col(quote(c)) for c in check.columns]
    known = frame
    for key in keys:
        known = known.where(key.isNotNull())
    # Keys that are equal for Spark but not to the eye (1.0 and 1) cannot be in one column.
    shared = known.groupBy(*keys).agg(F.count(F.lit(1)).alias("n")).where("n > 1")
    n = int(shared.agg(F.sum("n")).collect()[0][0] or 0)
    return CheckResult(check.name, n == 0, check.blocking, n, check.definition)


# ----------------------------------------------------------------------------------------- session


def _align(session: SparkSession, wanted: Mapping[str, str]) -> None:
    """Give a session the settings that change results, and refuse one that has others."""
    for key, value in wanted.items():
        if key.startswith("spark.") and session.conf.get(key, None) != value:
            try:
                session.conf.set(key, value)
            except Exception as error:
                message = (
                    f"the Spark session has {key} = {session.conf.get(key, None)}, not {value}"
                )
                raise SettingsError(message, hint="set it where the session is made") from error
    present: Mapping[str, str] = session.conf.getAll
    for key, value in present.items():
        if key.startswith("spark.sql.") and not is_harmless(key) and key not in wanted:
            raise SettingsError(
                f"the Spark session has {key} = {value}, which can change results",
                hint=f'put it into persist.toml, and so into BuildIDs: [spark] "{key}" = "{value}"',
            )


def _read_type(kind: str | None) -> str:
    """Return the type to read a column as; CHAR and VARCHAR are strings in files."""
    return re.sub(r"\b(?:var)?char\(\d+\)", "string", kind or "string")


_DISK_TROUBLE = re.compile(
    r"[^\n:]*(?:No space left|Read-only file system|Permission denied|AccessDenied|Mkdirs failed"
    r"|[Nn]ot a directory|File too large|Disk quota exceeded|Input/output error)[^\n]*"
)


class translated:
    """Turns what Spark raises within the block into errors of ours."""

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Translate."""
        if error is None or isinstance(error, PersistError) or not isinstance(error, Exception):
            return
        trouble = _DISK_TROUBLE.search(str(error))
        if trouble:
            message = f"{self.doing} failed: {trouble[0].strip()}"
            raise StorageError(message, hint="check the disk of the warehouse") from error
        raise BuildError(f"{self.doing} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the line of an error that says what happened: the innermost of Spark's causes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    conditions = [line for line in lines if re.search(r"\[[A-Z][A-Z_.0-9]+\]", line)]
    line = (conditions or lines or [type(error).__name__])[0]
    found = re.search(r"\[[A-Z][A-Z_.0-9]+\].*", line)
    return (found[0] if found else line)[:500]


__all__ = [
    "FILE_FORMATS",
    "Engine",
    "Kind",
    "Measured",
    "check_java",
    "create_session",
    "first_line",
]
