"""Delta tables of others: `deltalake` reads their log, Spark the files that are left.

What the log says of a file (partition values, deleted rows, version) is put beside the rows by the
name of the file. The invariant: rows are those of the version, or an error names what keeps them
from being read; Parquet files alone are never trusted where the table says more.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import char_size, quote, unpruned
from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.plans import Piece
from persist_assets.core.object_stores import is_local, spark_pattern
from persist_assets.engine.named_files import AS_NAMED, check_rows, one_after_another, padded
from persist_assets.external.connectors.access import delta_access, spark_access
from persist_assets.external.connectors.protocol import (
    CHANGE,
    DELETE,
    INSERT,
    VERSION,
    Changes,
    Pruned,
)
from persist_assets.external.connectors.pruning import (
    Span,
    exactly,
    has_zone,
    may_match,
    moment_as_written,
    span,
)
from persist_assets.external.connectors.reading import (
    FILE,
    ROW,
    check_columns,
    check_names,
    conditions_of,
    small_frame,
)
from persist_assets.planning.increments import in_order
from persist_assets.storage.commits import MOST_COMMITS, commit_file, moves, parse_commit
from persist_assets.storage.delta_tables import told_by_files
from persist_assets.storage.files import delta_place, reached, unreachable
from persist_assets.storage.raw import (
    OF_DELTA,
    check_commits,
    deletion_vectors,
    file_location,
    is_hidden_file,
    open_delta,
    partition_texts,
    stored_rows,
)
from persist_assets.storage.types import type_of_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import External
    from persist_assets.storage.commits import Actions

_READABLE = frozenset(
    ("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors", "columnMapping")
)
"""Features of tables that are read correctly here."""

_MOST_DELETED = 1_000_000
"""Of so many deleted rows the numbers are sent to Spark."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a version, or of a commit.

    Attributes
    ----------
    partition
        Its partition values by logical names, as Delta writes them.
    spans
        What its columns may be, by names in lower case.
    only
        The rows of it that are meant, by their numbers; None: all.
    but
        The rows of it that are not.
    stored
        How many rows it has, deleted ones among them.
    """

    location: str
    bytes: int
    rows: int | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span])
    only: frozenset[int] | None = None
    but: frozenset[int] = frozenset()
    stored: int | None = None
    change: str = ""
    version: int = -1

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.location.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class _Field:
    """A column of the table: its name, type, and what files and their statistics call it."""

    name: str
    type: str
    physical: str
    json: Any


class _Again(Exception):
    """What became of rows cannot be told from the log."""


class DeltaConnector:
    """A Delta table, as `protocol.Connector` says.

    Parameters
    ----------
    external
        What is declared of it.
    location
        Absolute path or URI.
    columns
        As they are declared.
    access
        The storage options, with references followed.
    session
        Returns the Spark session; called when rows are read.
    timezone
        The session's. Moments of partitions that are written without a zone are of it.
    """

    def __init__(
        self,
        external: External,
        location: str,
        columns: Sequence[Column],
        access: Mapping[str, str],
        session: Callable[[], SparkSession],
        timezone: ZoneInfo,
    ) -> None:
        self.external, self.location, self.columns = external, location.rstrip("/"), columns
        self._access, self._session, self._timezone = access, session, timezone
        self._checked: set[str] = set()
        """The files of which Spark reads all rows (`_check_rows`)."""
        self._pinned: Any = None
        """The table at the version that was pinned last; a long log takes long to read."""

    # ------------------------------------------------------------------------------- versions

    def pin(self, held: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""
        external = self.external
        if external.mode == "snapshot" and held is not None and not self._is_misread(held):
            return held
        if external.mode == "snapshot":
            table = self._at_start()
        else:
            table = self._open()
            end = external.end_version
            if end is not None and table.version() > end:
                misread = held is not None and self._is_misread(held)
                if held is not None and not misread and self._is_of(held, table, end):
                    return held  # its log may be gone by now
                table = self._open(end)
            starts = held is None and (external.version or external.datetime)
            start = self._at_start().version() if starts else 0
            if table.version() < start:
                raise StorageError(
                    f"the Delta table at {self.location} is at version {table.version()},"
                    f" which is before the start version {start}"
                )
        self._check(table)
        with self._reached() as (system, root):
            check_commits(table, self.location, system, root)
        self._pinned = table
        return self._named(table)

    def start(self) -> str | None:
        """Return where a copy begins; see `protocol.Connector`."""
        if self.external.version is None and self.external.datetime is None:
            return None
        return self._named(self._at_start())

    def _at_start(self) -> Any:
        if self.external.datetime is None:
            return self._open(self.external.version)
        from deltalake.exceptions import DeltaError

        at = datetime.fromisoformat(self.external.datetime)
        gone = GoneError(
            f"the Delta table at {self.location} has no version as of {self.external.datetime}",
            hint="its log starts later",
        )
        table = self._open()
        if table.metadata().configuration.get(_IN_COMMITS, "false").lower() == "true":
            raise StorageError(
                f"the Delta table at {self.location} uses inCommitTimestamp, so `datetime`"
                " cannot find a version",
                hint="set `version` to the version to start from",
            )
        try:
            table.load_as_version(at)
        except (DeltaError, OSError, ValueError) as error:
            raise gone from error
        with self._reached() as (system, root):
            (commit,) = system.get_file_info([f"{root}{commit_file(table.version())}"])
        # To delta-rs the first version is also that of all times before it.
        if commit.mtime is None or commit.mtime > at:
            raise gone
        return table

    def _open(self, version: int | None = None) -> Any:
        return open_delta(self.location, version, delta_access(self._access))

    def _name(self, table: Any) -> str:
        """Return what tells a version from all others, also from those of a log put back."""
        name = f"{OF_DELTA}{table.version()}:{table.metadata().id}"
        written = self._written_by(table.version())
        return name if written is None else f"{name}:{sha256(written).hexdigest()[:12]}"

    def _named(self, table: Any) -> str:
        """Return the name of a version, and how it is read (`_manner`)."""
        name, manner = self._name(table), self._manner(table)
        return ":".join([*name.split(":"), ""][:4]) + manner if manner else name

    def _manner(self, table: Any) -> str:
        """Return what decides the rows of a version beside its log; empty if nothing does.

        Earlier releases lost the rows of hidden files, and read moments of partitions as those of
        UTC if they are written without a zone.
        """
        import pyarrow as pa

        paths: list[str] = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
        manner = _WITH_HIDDEN if any(map(is_hidden_file, paths)) else ""
        if self._timezone.key in _UTC:
            return manner
        moments = _moments(_fields(table), table)
        texts = (value[f.physical] for value in self._texts(table).values() for f in moments)
        if any(text and not has_zone(text) for text in texts):
            manner += f":moments of {self._timezone.key}"
        return manner

    def _is_misread(self, version: str) -> bool:
        """Whether a version was read otherwise than it would be now, as far as can be told."""
        try:
            return self._manner(self._open(self._number(version))) != _manner_of(version)
        except StorageError:
            return False

    def _texts(self, table: Any) -> Mapping[str, Mapping[str, str | None]]:
        """Return the partition values of files as the log writes them, by path.

        They are read where a partition column is a moment, else there are none.
        """
        if not _moments(_fields(table), table):
            return {}
        with self._reached() as (system, root):
            return partition_texts(table, self.location, system, root)

    def _is_of(self, version: str, table: Any, number: int) -> bool:
        """Whether a version is of that number, and of the table that is there now."""
        return version.split(":")[1:3] == [str(number), str(table.metadata().id)]

    def _number(self, version: str) -> int:
        return int(version.removeprefix(OF_DELTA).partition(":")[0])

    def _load(self, version: str) -> Any:
        number, table = self._number(version), self._pinned
        if table is None or table.version() != number:
            table = self._open(number)
        if not _same(self._name(table), version):
            raise GoneError(
                f"the Delta table at {self.location} was replaced after it was pinned",
                hint="read the new table again in full",
            )
        self._check(table)
        return table

    # --------------------------------------------------------------------------------- checks

    def _check(self, table: Any) -> None:
        """Raise where the table cannot be read correctly, or is not as it is declared."""
        features: list[str] = list(table.protocol().reader_features or ())
        unknown = set(features) - _READABLE
        mode = table.metadata().configuration.get(_MAPPING, "none")
        if mode not in ("none", "name"):
            unknown.add(f"columnMapping by {mode}")
        if unknown:
            raise StorageError(
                f"the Delta table at {self.location} uses {', '.join(sorted(unknown))}:"
                " not supported",
                hint="its rows would be wrong: write it without this feature",
            )
        there = [(f.name, f.type) for f in _fields(table)]
        check_columns(self.columns, there, f"the Delta table at {self.location}")

    # ---------------------------------------------------------------------------------- files

    def _pruned(self, table: Any, conditions: Sequence[str]) -> tuple[list[_File], int]:
        """Return the files of a version in which rows may fit, and how many there are in all."""
        listed = self._listed(table, conditions)
        fit = [f for f in listed if all(may_match(c, f.spans) for c in conditions)]
        named = self._deleted(table, {f.location for f in fit})
        if not named.keys() <= {f.location for f in listed}:
            raise self._unnamed()
        kept: list[_File] = []
        for file in fit:
            but = named.get(file.location) or frozenset()
            rows = None if file.rows is None else file.rows - len(but)
            kept.append(replace(file, rows=rows, but=but))
        return kept, len(listed)

    def _listed(self, table: Any, conditions: Sequence[str]) -> list[_File]:
        """Return files without regard to rows of them that are deleted."""
        import pyarrow as pa

        parted = table.metadata().partition_columns
        # Values in files are not padded, and so tell nothing of what is compared.
        chars = {c.name.lower() for c in self.columns if char_size(c.type)}
        looked_at = [
            f
            for f in _named_in(conditions, _fields(table))
            if f.name not in parted and "." not in f.physical and isinstance(f.json, str)
            if f.name.lower() not in chars
        ]
        found = pa.table(table.get_add_actions(flatten=True))
        if not found.num_rows:
            return []
        sizes, counts = told_by_files(found, "size_bytes"), told_by_files(found, "num_records")
        kinds = {f.name: f.type for f in _fields(table)}
        moments, texts = (
            {f.name: f.physical for f in _moments(_fields(table), table)},
            self._texts(table),
        )
        values = {name: self._values(found, name) for name in parted if name not in moments}
        told = {f: _statistics(found, f) for f in looked_at}
        files: list[_File] = []
        for n, path in enumerate(found["path"].to_pylist()):
            location, rows = file_location(path, self.location), counts[n]
            partition = {name: _written(value[n]) for name, value in values.items()}
            spans = {
                name.lower(): exactly(kinds[name], value[n])
                for name, value in values.items()
                if name.lower() not in chars
            }
            for name, physical in moments.items():
                partition[name] = text = texts[path][physical] or None
                spans[name.lower()] = moment_as_written(text, self._timezone)
            for one, (least, greatest, nulls) in told.items():
                spans[one.name.lower()] = span(one.type, least[n], greatest[n], nulls[n], rows)
            files.append(_File(location, sizes[n], rows, partition, spans, stored=rows))
        return files

    def _values(self, found: Any, name: str) -> list[Any]:
        """Return the values of a partition column by file."""
        try:
            return found[f"partition.{name}"].to_pylist()
        except (ValueError, OverflowError) as error:
            raise StorageError(
                f"values of `{name}` in the Delta table at {self.location} have years that"
                " are out of range",
                hint="partition dates must be in the years 1 to 9999",
            ) from error

    def _unnamed(self) -> StorageError:
        return StorageError(
            f"the deletion vectors of the Delta table at {self.location} name its files"
            " differently",
            hint="rewrite its files without them: REORG TABLE … APPLY (PURGE)",
        )

    def _deleted(self, table: Any, wanted: Collection[str]) -> dict[str, frozenset[int] | None]:
        """Return by file which rows a version's deletion vectors delete.

        Of files that are not wanted it is None: their rows may be many.
        """
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return {}
        found: dict[str, frozenset[int] | None] = {}
        for batch in deletion_vectors(table, self.location):
            for path, vector in zip(*batch.columns, strict=True):
                place = file_location(path.as_py(), self.location)
                found[place] = _numbers(vector.values) if place in wanted else None
        return found

    @contextmanager
    def _reached(self) -> Generator[tuple[Any, str]]:
        """Yield a file system, and what is before the paths of the table's files there."""
        if not self._access:
            with reached(self.location) as (system, root):
                yield system, root.rstrip("/") + "/"
            return
        from deltalake.exceptions import DeltaError
        from deltalake.fs import DeltaStorageHandler
        from pyarrow import fs

        from persist_assets.storage.patient import patient

        uri, options = delta_place(self.location)
        options = {**(options or {}), **delta_access(self._access)}
        try:
            system = fs.PyFileSystem(DeltaStorageHandler(uri, options))
            yield system if is_local(self.location) else patient(system, self.location), ""
        except (DeltaError, OSError) as error:
            raise unreachable(self.location, error) from error

    def _check_there(self, files: Iterable[_File]) -> None:
        """Raise where files are gone or have another size than the log says."""
        from pyarrow import fs

        below = f"{self.location}/"
        # What a shallow clone has elsewhere, Spark looks for.
        own = [f for f in files if f.location.startswith(below)]
        if not own:
            return
        with self._reached() as (system, root):
            told = system.get_file_info([root + f.location.removeprefix(below) for f in own])
        for file, found in zip(own, told, strict=True):
            if found.type != fs.FileType.File:
                raise GoneError(
                    f"{file.location}, a file of the Delta table, is gone",
                    hint="it may have been vacuumed: read the newest version in full",
                )
            if file.bytes and found.size != file.bytes:
                raise StorageError(
                    f"{file.location} has {found.size} bytes, not {file.bytes}: it is broken"
                )

    def _check_rows(self, files: Iterable[_File]) -> None:
        """Raise where Spark does not read all rows of files; see `check_rows`.

        A file never changes, so that it is looked at once.
        """
        stored = {f.location: f.stored for f in files if f.location not in self._checked}
        if not stored:
            return
        uncounted = [place for place, rows in stored.items() if rows is None]
        promised = {place: rows for place, rows in stored.items() if rows is not None}
        if uncounted:
            with ThreadPoolExecutor(16) as pool:
                promised |= zip(uncounted, pool.map(self._stored_rows, uncounted), strict=True)
        access = spark_access(self._access)
        reader = self._session().read.options(**AS_NAMED).options(**access).schema("_ int")
        scan = reader.parquet(*map(spark_pattern, promised))
        check_rows(scan, promised, f"the Delta table at {self.location}")
        self._checked |= promised.keys()

    def _stored_rows(self, place: str) -> int:
        """Return how many rows a file has of which the log does not say it."""
        below = f"{self.location}/"
        if not place.startswith(below):  # of a shallow clone
            with reached(place) as (system, path):
                return stored_rows(system, path)
        with self._reached() as (system, root):
            return stored_rows(system, root + place.removeprefix(below))

    # -------------------------------------------------------------------------------- reading

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return what reading a version for a predicate costs; see `protocol.Connector`."""
        kept, of = self._pruned(
            self._load(version), conditions_of(self.external, predicate, start=True)
        )
        return _cost(kept, of)

    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return rows of a version; see `protocol.Connector`."""
        table = self._load(version)
        conditions = conditions_of(self.external, predicate, start=True)
        kept, _ = self._pruned(table, conditions)
        self._check_there(kept)
        self._check_rows(kept)
        groups = self._in_order(kept, table, order) or [kept]
        return one_after_another(lambda g: self._read(g, table, conditions, columns), groups)

    def _in_order(
        self, files: Iterable[_File], table: Any, column: str | None
    ) -> list[list[_File]]:
        """Return files in groups that follow one another in a column; see `increments.in_order`."""
        import pyarrow as pa

        by_place = {file.location: file for file in files}
        field = next((f for f in _fields(table) if f.name == column), None)
        if field is None:
            return []
        found, name = pa.table(table.get_add_actions(flatten=True)), field.physical
        told = zip(found["path"].to_pylist(), *_statistics(found, field), strict=True)
        pieces = [
            Piece(place, {name.lower(): (least, greatest, nulls != 0)}, by_place[place].bytes)
            for path, least, greatest, nulls in told
            if (place := file_location(path, self.location)) in by_place
        ]
        groups = in_order(pieces, name, field.type)
        return [[by_place[place] for place in group] for group in groups]

    def _read(
        self,
        files: Sequence[_File],
        table: Any,
        conditions: Sequence[str],
        columns: Sequence[str],
    ) -> DataFrame:
        """Return columns of the rows of files that fit conditions, and what became of them."""
        from pyspark.sql.types import StructType

        session = self._session()
        fields = _fields(table)
        if not files:
            whole = ", ".join(f"{quote(f.name)} {f.type}" for f in fields)
            return session.createDataFrame([], whole).select(*map(quote, columns))
        keys = table.metadata().partition_columns
        asked = {c.lower() for c in columns}
        looked_at = [f for f in _named_in(conditions, fields) if f.name.lower() not in asked]
        needed = [f for f in fields if f.name.lower() in asked] + looked_at
        parted = [f for f in needed if f.name in keys]
        stored = [f for f in needed if f not in parted]
        kinds = [_json_field(f.physical, _physical(f.json)) for f in stored]
        texts = [*map(_stored, stored)]
        if any(f.change == _RECORDED for f in files):
            kinds.append(_json_field(_CHANGE_TYPE, "string"))
            texts.append(_CHANGE_TYPE)
        schema = StructType.fromJson({"type": "struct", "fields": kinds})
        access = spark_access(self._access)
        reader = session.read.options(**AS_NAMED).options(**access).schema(schema)
        places = dict.fromkeys(f.location for f in files)
        frame = reader.parquet(*map(spark_pattern, places))
        told = [CHANGE, VERSION] if files[0].change else []
        if parted or told or any(f.but for f in files):
            check_names(places, f"the Delta table at {self.location}")
            frame = self._tell(frame, texts, files, parted)
        else:
            frame = frame.selectExpr(*texts)
        frame = padded(frame, self.columns)
        frame = reduce(lambda found, text: found.where(text), conditions, frame)
        return frame.selectExpr(*map(quote, columns), *told)

    def _tell(
        self,
        frame: DataFrame,
        texts: Sequence[str],
        files: Sequence[_File],
        parted: Sequence[_Field],
    ) -> DataFrame:
        """Put beside rows what the log says of their file, and leave out rows that are not meant.

        A file that came and went is there twice, and so are its rows.
        """
        session = self._session()
        names = [p.name for p in parted]
        keys = [f"_persist_{n}" for n in range(len(parted))]
        kinds = [f"{FILE} string", "_persist_n int", "_persist_only boolean"]
        kinds += [f"{_BECAME} string", f"{VERSION} bigint", *(f"{k} string" for k in keys)]
        rows = [
            (f.name, n, f.only is not None, f.change, f.version, *(f.partition[k] for k in names))
            for n, f in enumerate(files)
        ]
        marked = [
            (n, row, True)
            for n, f in enumerate(files)
            for row in (f.but if f.only is None else f.only)
        ]
        if len(marked) > _MOST_DELETED:
            raise StorageError(
                f"the Delta table at {self.location} has {len(marked):,} rows in deletion vectors"
                f" of the files to read: more than {_MOST_DELETED:,} are not supported",
                hint="REORG TABLE … APPLY (PURGE) rewrites its files without them",
            )
        where = [f"_metadata.file_name AS {FILE}", f"_metadata.row_index AS {ROW}"]
        frame = frame.selectExpr(*texts, *where[: 2 if marked else 1])
        frame = frame.join(small_frame(session, rows, ", ".join(kinds)), FILE)
        if marked:
            numbers = small_frame(
                session, marked, f"_persist_n int, {ROW} bigint, _persist_marked boolean"
            )
            frame = frame.join(numbers, ["_persist_n", ROW], "left")
            frame = frame.where("coalesce(_persist_marked, false) = _persist_only")
        values = [
            f"CAST({k} AS {p.type}) AS {quote(p.name)}" for k, p in zip(keys, parted, strict=True)
        ]
        became = _BECAME
        if _CHANGE_TYPE in texts:
            came = f"{_CHANGE_TYPE} IN ('insert', 'update_postimage')"
            became = f"CASE WHEN {_BECAME} <> '{_RECORDED}' THEN {_BECAME}"
            became += f" WHEN {came} THEN '{INSERT}' ELSE '{DELETE}' END"
        return frame.selectExpr("*", *values, f"{became} AS {CHANGE}")

    # ------------------------------------------------------------------------------- changes

    def changes(
        self, since: str, until: str, predicate: str | None, columns: Sequence[str]
    ) -> Changes:
        """Return what became of rows between two versions; see `protocol.Connector`."""
        if since == until:
            return Changes()
        first, last = self._number(since), self._number(until)
        if since.split(":")[2] != until.split(":")[2]:
            return Changes(again="the table was replaced by another one")
        if first > last:
            return Changes(again=f"it went back from version {first} to {last}")
        table = self._load(until)
        conditions = conditions_of(self.external, predicate, start=False)
        try:
            whole, recorded = self._commits(since, last, table, columns, conditions)
        except _Again as reason:
            return Changes(again=str(reason))
        if self.external.append_only and any(f.change == DELETE for f in whole):
            raise self._not_kept()
        of = len(whole) + len(recorded)
        fit = [f for f in whole if all(may_match(c, f.spans) for c in conditions)]
        files = [*fit, *recorded]
        try:
            self._check_there(files)
        except GoneError as error:
            return Changes(again=error.message)
        if not files:
            return Changes()

        def load() -> DataFrame:
            self._check_rows(files)
            frame = self._read(files, table, conditions, columns)
            deletes = recorded and self.external.append_only
            if deletes and frame.where(f"{CHANGE} = '{DELETE}'").take(1):
                raise self._not_kept()
            return frame

        only_came = all(f.change == INSERT for f in files)
        return Changes(load, only_came=only_came, read=_cost(files, of))

    def is_same(self, since: str, until: str) -> bool:
        """Whether no row came or went between two versions; see `protocol.Connector`."""
        if since == until or not since.startswith(OF_DELTA):
            return since == until
        first, last = self._number(since), self._number(until)
        if not first < last <= first + MOST_COMMITS:
            return False
        try:  # the last first: mostly that changes rows
            if any(moves(self._commit(version)) for version in range(last, first, -1)):
                return False
            found = self.changes(since, until, None, [c.name for c in self.columns])
        except (StorageError, _Again):
            return False
        return found.again is None and found.load is None

    def _not_kept(self) -> StorageError:
        return StorageError(
            f"rows of the Delta table at {self.location} were changed or deleted,"
            " but it is declared append_only",
            hint="remove 'append_only' from its declaration",
        )

    def _commits(
        self,
        since: str,
        last: int,
        table: Any,
        columns: Sequence[str],
        conditions: Sequence[str],
    ) -> tuple[list[_File], list[_File]]:
        """Return the files that came and went, and those in which changes are recorded.

        A commit that records its changes says all of them so; else they are its files. Columns
        may come: rows before have NULL there. What does not make the later files of the earlier
        is not trusted.
        """
        whole: list[_File] = []
        recorded: list[_File] = []
        fields, first = _fields(table), self._number(since)
        parted = table.metadata().partition_columns
        try:
            start = self._open(first)
        except GoneError as error:
            raise _Again(error.message) from error
        if not _same(self._name(start), since):
            raise _Again(f"it was restored to before version {first} and then written to")
        if any(since.split(":")[3:4]) and self._written_by(first) is None:
            raise _Again(f"its log no longer has version {first}")
        if self._manner(start) != _manner_of(since):
            raise _Again(
                "an earlier release did not read its hidden files"
                if _WITH_HIDDEN in self._manner(start) and _WITH_HIDDEN not in since
                else "moments of its partitions were read in another time zone"
            )
        had = _fields(start)
        held = {f.name.lower() for f in had}
        if not _schema(had) <= _schema(fields) or not held.issuperset(c.lower() for c in columns):
            raise _Again(f"its columns changed after version {first}")
        keys = {f.physical: f for f in fields if f.name in parted}
        begin, end = ({f.location: f for f in self._listed(t, conditions)} for t in (start, table))
        there, stored = set(begin), {f.location: f.stored for f in (begin | end).values()}
        for version in range(first + 1, last + 1):
            actions = self._commit(version)
            for add in actions.get("add", ()):
                place = file_location(add["path"], self.location)
                stored[place] = _promised(add) if stored.get(place) is None else stored[place]
            for action in actions.get("metaData", ()):
                configuration = action.get("configuration") or {}
                found = _schema(_fields_of(action["schemaString"], configuration))
                if action["id"] != table.metadata().id:
                    raise _Again(f"it was replaced in version {version}")
                fits = _schema(had) <= found <= _schema(fields)
                if not fits or action.get("partitionColumns", []) != parted:
                    raise _Again(f"its columns changed in version {version}")
            self._check_unchanged(there, stored, actions, version)
            there = self._followed(there, actions, version)
            if "cdc" in actions:
                recorded += (self._file(a, keys, version, _RECORDED) for a in actions["cdc"])
            else:
                whole += self._moved(actions, keys, version)
        if there != end.keys():
            raise _Again(f"its log after version {first} does not add up to version {last}")
        told = begin | end
        return [_as_told(f, told.get(f.location)) for f in whole], recorded

    def _check_unchanged(
        self,
        there: Collection[str],
        stored: Mapping[str, int | None],
        actions: Mapping[str, list[Any]],
        version: int,
    ) -> None:
        """Raise where a commit says that no row changed, and leaves another number of them.

        Parameters
        ----------
        there
            The files before it.
        stored
            How many rows files have, as far as the log says.
        """
        came, went = (
            {
                file_location(a["path"], self.location): a
                for a in actions.get(kind, ())
                if not a.get("dataChange", True)
            }
            for kind in ("add", "remove")
        )
        came = {f: a for f, a in came.items() if f not in there or f in went}
        went = {f: a for f, a in went.items() if f in there}
        n_more = 0
        try:
            for files, sign in ((came, 1), (went, -1)):
                for place, action in files.items():
                    rows = stored.get(place)
                    rows = self._stored_rows(place) if rows is None else rows
                    n_more += sign * (rows - (action.get(_VECTOR) or {}).get("cardinality", 0))
        except (StorageError, OSError) as error:
            raise _Again(
                f"version {version} states that no row changed, but its rows cannot be counted:"
                f" {error}"
            ) from error
        if n_more:
            raise _Again(
                f"version {version} states that no row changed, but leaves"
                f" {abs(n_more)} {'more' if n_more > 0 else 'fewer'}"
            )

    def _followed(
        self, there: set[str], actions: Mapping[str, list[Any]], version: int
    ) -> set[str]:
        """Return the files that are there after a commit.

        One that comes again or goes again changes no row, although the log says so.
        """
        came, went = (
            {file_location(a["path"], self.location): a.get("dataChange", True) for a in found}
            for found in (actions.get("add", ()), actions.get("remove", ()))
        )
        again = [f for f in came if f in there and f not in went and came[f]]
        again += [f for f in went if f not in there and went[f]]
        if again:
            raise _Again(f"version {version} adds or removes a file twice")
        return (there - went.keys()) | came.keys()

    def _moved(
        self, actions: Mapping[str, list[Any]], keys: Mapping[str, _Field], version: int
    ) -> Iterable[_File]:
        adds = [a for a in actions.get("add", ()) if a.get("dataChange", True)]
        removes = [a for a in actions.get("remove", ()) if a.get("dataChange", True)]
        deletes = any(a.get(_VECTOR) for a in (*adds, *removes))
        before: dict[str, frozenset[int] | None] = {}
        after: dict[str, frozenset[int] | None] = {}
        if deletes:
            wanted = {file_location(a["path"], self.location) for a in (*adds, *removes)}
            try:
                before = self._deleted(self._open(version - 1), wanted)
                after = self._deleted(self._open(version), wanted)
            except GoneError as error:
                raise _Again(error.message) from error
        came = {f.location: f for f in (self._file(a, keys, version, INSERT) for a in adds)}
        went = {f.location: f for f in (self._file(a, keys, version, DELETE) for a in removes)}
        for moved, vectors in ((adds, after), (removes, before)):
            named = {file_location(a["path"], self.location) for a in moved if a.get(_VECTOR)}
            if not named <= vectors.keys():
                raise self._unnamed()
        nothing: frozenset[int] = frozenset()
        for files, gone, others, gone_there in (
            (went, before, came, after),
            (came, after, went, before),
        ):
            for place, file in files.items():
                rows = gone.get(place) or nothing
                if place not in others:
                    yield replace(file, but=rows)
                elif only := (gone_there.get(place) or nothing) - rows:
                    yield replace(file, only=only)  # the same file with other rows deleted

    def _file(
        self, action: Mapping[str, Any], keys: Mapping[str, _Field], version: int, change: str
    ) -> _File:
        values: Mapping[str, str | None] = action.get("partitionValues") or {}
        if values.keys() != keys.keys():
            raise _Again(f"version {version} lacks the partitions of its files")
        partition = {keys[k].name: v or None for k, v in values.items()}
        location = file_location(action["path"], self.location)
        size = action.get("size") or 0
        return _File(location, size, partition=partition, change=change, version=version)

    def _written_by(self, version: int) -> bytes | None:
        """Return what the log has of a commit, None where that is gone."""
        try:
            with (
                self._reached() as (system, root),
                system.open_input_stream(f"{root}{commit_file(version)}") as stream,
            ):
                written: bytes = stream.read()
                return written
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return None

    def _commit(self, version: int) -> Actions:
        """Return the actions of a commit by their kind."""
        written = self._written_by(version)
        if written is None:
            raise _Again(f"its log no longer has version {version}")
        return parse_commit(written, version, self.location)


def _promised(add: Mapping[str, Any]) -> int | None:
    """Return how many rows a file has, as the action that adds it says."""
    try:
        rows = json.loads(add.get("stats") or "{}").get("numRecords")
    except (AttributeError, ValueError):
        return None
    return rows if isinstance(rows, int) else None


def _as_told(file: _File, told: _File | None) -> _File:
    """Return a file that came or went with what a version that has it says of its rows."""
    if told is None:
        return file
    whole = None if told.rows is None else told.rows - len(file.but)
    rows = whole if file.only is None else len(file.only)
    return replace(file, spans=told.spans, rows=rows, stored=told.stored)


def _numbers(vector: Any) -> frozenset[int]:
    """Return the numbers of the rows that a deletion vector does not keep."""
    kept = vector.to_numpy(zero_copy_only=False).astype(bool)
    return frozenset((~kept).nonzero()[0].tolist())


def _cost(files: Sequence[_File], of: int) -> Pruned:
    """Return what reading some files costs, of so many."""
    rows = [f.rows for f in files]
    known = sum(r for r in rows if r is not None) if None not in rows else None
    return Pruned(len(files), of, known, sum(f.bytes for f in files))


def _statistics(actions: Any, one: _Field) -> list[list[Any]]:
    """Return the least values of a column by files, the greatest, and how many are NULL."""
    return [told_by_files(actions, f"{w}.{one.physical}") for w in ("min", "max", "null_count")]


def _same(name: str, version: str) -> bool:
    """Whether two names are of one version; commits that are gone tell nothing."""
    parts = zip(name.split(":")[:4], version.split(":")[:4], strict=False)
    return all(one == other for one, other in parts if one and other)


_WITH_HIDDEN = ":hidden files"
"""What names of versions tell that have files whose names begin with _ or a dot."""
_UTC = frozenset(("UTC", "Etc/UTC", "GMT", "Etc/GMT"))


def _manner_of(version: str) -> str:
    """Return how a version was read, after its name; see `DeltaConnector._manner`."""
    return "".join(f":{part}" for part in version.split(":")[4:])


def _moments(fields: Sequence[_Field], table: Any) -> list[_Field]:
    """Return the partition columns that are moments (`TIMESTAMP`)."""
    parted = table.metadata().partition_columns
    return [f for f in fields if f.name in parted and f.type == "timestamp"]


_BECAME, _RECORDED = "_persist_became", "recorded"
_CHANGE_TYPE, _VECTOR = "_change_type", "deletionVector"
_IN_COMMITS = "delta.enableInCommitTimestamps"


def _stored(one: _Field) -> str:
    """Return a column of files under its name, in SQL."""
    column = unpruned(quote(one.physical), one.type)
    if one.physical != one.name or type_of_json(_physical(one.json)) != one.type:
        column = f"CAST({column} AS {one.type})"
    return f"{column} AS {quote(one.name)}"


def _named_in(conditions: Sequence[str], fields: Sequence[_Field]) -> list[_Field]:
    """Return the columns that conditions may speak of: others are not in their text."""
    text = " ".join(conditions).lower()
    return [f for f in fields if f.name.lower().replace("`", "``") in text]


# ---------------------------------------------------------------------------------------- columns


def _fields(table: Any) -> list[_Field]:
    return _fields_of(table.schema().to_json(), table.metadata().configuration)


def _fields_of(schema: str, configuration: Mapping[str, str]) -> list[_Field]:
    def unmapped(found: dict[str, Any]) -> dict[str, Any]:
        found.pop(_PHYSICAL_NAME, None)  # left over: nobody looks at it
        return found

    is_mapped = configuration.get(_MAPPING, "none") != "none"
    struct = json.loads(schema, object_hook=None if is_mapped else unmapped)
    return [
        _Field(f["name"], type_of_json(f["type"]), _physical_name(f), f["type"])
        for f in struct["fields"]
    ]


def _schema(fields: Iterable[_Field]) -> frozenset[tuple[str, str, str]]:
    return frozenset((f.name, f.physical, f.type) for f in fields)


_MAPPING, _PHYSICAL_NAME = "delta.columnMapping.mode", "delta.columnMapping.physicalName"


def _physical_name(one: Mapping[str, Any]) -> str:
    return (one.get("metadata") or {}).get(_PHYSICAL_NAME, one["name"])


def _json_field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _physical(kind: Any) -> Any:
    """Return a type in Delta's JSON form with the names that files have for fields."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = [_json_field(_physical_name(f), _physical(f["type"])) for f in kind["fields"]]
            return {"type": "struct", "fields": fields}
        case "array":
            inner = _physical(kind["elementType"])
            return {"type": "array", "elementType": inner, "containsNull": True}
        case _:
            key, value = _physical(kind["keyType"]), _physical(kind["valueType"])
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def _written(value: Any) -> str | None:
    """Return a partition value as Delta writes it."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime():  # without a zone by its type, TIMESTAMP_NTZ
            return value.isoformat(sep=" ")
        case bytes():
            raise StorageError("partitions by binary columns are not supported")
        case _:
            return str(value)
