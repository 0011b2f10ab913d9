"""The data files of a Delta table: those that a predicate needs, and their deleted rows."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import char_size
from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.plans import Piece
from persist_assets.external.connectors.delta_schema import (
    fields_of,
    mentioned_fields,
    partition_text,
    timestamp_keys,
)
from persist_assets.external.connectors.pruning import (
    Span,
    exactly,
    may_match,
    moment_as_written,
    span,
)
from persist_assets.planning.increments import in_order
from persist_assets.storage.delta_features import deletion_vectors
from persist_assets.storage.delta_tables import file_actions, file_statistics
from persist_assets.storage.files import reached, stored_rows, stored_schema
from persist_assets.storage.raw import file_location

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from persist_assets.core.model.columns import Column
    from persist_assets.external.connectors.delta_log import DeltaLog
    from persist_assets.external.connectors.delta_schema import DeltaField


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A file of a version, or of a commit.

    Attributes
    ----------
    rows
        How many rows are read from it; None: the log does not say.
    partition
        Its partition values by logical names, as Delta writes them.
    spans
        The values that its columns may have, by lower-case name.
    only
        The numbers of the rows to read; None: all.
    skipped
        The numbers of the rows not to read.
    stored
        How many rows it has, deleted ones included.
    change
        Whether its rows were added or removed; empty for the files of a version.
    version
        The version of its commit.
    """

    location: str
    bytes: int
    rows: int | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span])
    only: frozenset[int] | None = None
    skipped: frozenset[int] = frozenset()
    stored: int | None = None
    change: str = ""
    version: int = -1


class DeltaFiles:
    """The files of a table's versions.

    Parameters
    ----------
    columns
        The declared columns.
    timezone
        The session's time zone, in which timestamps of partitions without a zone are read.
    """

    def __init__(self, log: DeltaLog, columns: Sequence[Column], timezone: ZoneInfo) -> None:
        self._log, self._location, self._timezone = log, log.location, timezone
        self._chars = frozenset(c.name.lower() for c in columns if char_size(c.type))

    def select(self, table: Any, conditions: Sequence[str]) -> tuple[list[DeltaFile], int]:
        """Return the files of a version that may have matching rows, and the number of all files.

        Raises
        ------
        StorageError
            The deletion vectors name files that the log does not have.
        """
        files = self.list_files(table, conditions)
        matching = [f for f in files if all(may_match(c, f.spans) for c in conditions)]
        deleted = self.deleted_rows(table, {f.location for f in matching})
        if not deleted.keys() <= {f.location for f in files}:
            raise self.unknown_names()
        selected: list[DeltaFile] = []
        for file in matching:
            skipped = deleted.get(file.location) or frozenset()
            rows = None if file.rows is None else file.rows - len(skipped)
            selected.append(replace(file, rows=rows, skipped=skipped))
        return selected, len(files)

    def list_files(self, table: Any, conditions: Sequence[str]) -> list[DeltaFile]:
        """Return all files, with spans of the columns that conditions mention.

        Deletion vectors are ignored.
        """
        actions = file_actions(table)
        if not actions.num_rows:
            return []
        fields, keys = fields_of(table), table.metadata().partition_columns
        kinds = {f.name: f.type for f in fields}
        sizes = file_statistics(actions, "size_bytes")
        counts = file_statistics(actions, "num_records")
        timestamps = {f.name: f.physical for f in timestamp_keys(table)}
        texts = self._log.partition_texts(table)
        values = {name: self._values(actions, name) for name in keys if name not in timestamps}
        measured = [
            f
            for f in mentioned_fields(conditions, fields)
            if f.name not in keys and "." not in f.physical and isinstance(f.json, str)
            if f.name.lower() not in self._chars
        ]
        statistics = {f: _statistics(actions, f) for f in measured}
        files: list[DeltaFile] = []
        for n, path in enumerate(actions["path"].to_pylist()):
            partition = {name: partition_text(value[n]) for name, value in values.items()}
            spans = {
                name.lower(): exactly(kinds[name], value[n])
                for name, value in values.items()
                if name.lower() not in self._chars
            }
            for name, physical in timestamps.items():
                partition[name] = text = texts[path][physical] or None
                spans[name.lower()] = moment_as_written(text, self._timezone)
            rows = counts[n]
            for f, (least, greatest, nulls) in statistics.items():
                spans[f.name.lower()] = span(f.type, least[n], greatest[n], nulls[n], rows)
            location = file_location(path, self._location)
            files.append(DeltaFile(location, sizes[n], rows, partition, spans, stored=rows))
        return files

    def in_order(
        self, files: Iterable[DeltaFile], table: Any, column: str | None
    ) -> list[list[DeltaFile]]:
        """Return the files in groups ordered by a column; empty if statistics show no order."""
        by_place = {file.location: file for file in files}
        key = next((f for f in fields_of(table) if f.name == column), None)
        if key is None:
            return []
        actions, name = file_actions(table), key.physical
        bounds = zip(actions["path"].to_pylist(), *_statistics(actions, key), strict=True)
        pieces = [
            Piece(place, {name.lower(): (least, greatest, nulls != 0)}, by_place[place].bytes)
            for path, least, greatest, nulls in bounds
            if (place := file_location(path, self._location)) in by_place
        ]
        groups = in_order(pieces, name, key.type)
        return [[by_place[place] for place in group] for group in groups]

    def _values(self, actions: Any, name: str) -> list[Any]:
        """Return the values of a partition column by file."""
        try:
            return actions[f"partition.{name}"].to_pylist()
        except (ValueError, OverflowError) as error:
            raise StorageError(
                f"values of `{name}` in the Delta table at {self._location} have years that"
                " are out of range",
                hint="partition dates must be in the years 1 to 9999",
            ) from error

    # ----------------------------------------------------------------------------- deleted rows

    def deleted_rows(self, table: Any, places: Collection[str]) -> dict[str, frozenset[int] | None]:
        """Return the row numbers that a version's deletion vectors delete, by file.

        Files that are not at `places` have None instead: they may have very many.
        """
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return {}
        deleted: dict[str, frozenset[int] | None] = {}
        for batch in deletion_vectors(table, self._location):
            for path, vector in zip(*batch.columns, strict=True):
                place = file_location(path.as_py(), self._location)
                deleted[place] = _deleted_numbers(vector.values) if place in places else None
        return deleted

    def unknown_names(self) -> StorageError:
        """Return the error for deletion vectors that name files differently than the log does."""
        return StorageError(
            f"the deletion vectors of the Delta table at {self._location} name its files"
            " differently",
            hint="rewrite its files without them: REORG TABLE … APPLY (PURGE)",
        )

    # ----------------------------------------------------------------------------------- checks

    def check_exist(self, files: Iterable[DeltaFile]) -> None:
        """Raise if files are gone, or their sizes differ from the log.

        Raises
        ------
        GoneError
            A file is gone.
        StorageError
            A file has another size.
        """
        from pyarrow import fs

        below = f"{self._location}/"
        # A shallow clone has files elsewhere. Spark reports those that are missing.
        inside = [f for f in files if f.location.startswith(below)]
        if not inside:
            return
        with self._log.file_system() as (system, root):
            infos = system.get_file_info([root + f.location.removeprefix(below) for f in inside])
        for file, info in zip(inside, infos, strict=True):
            if info.type != fs.FileType.File:
                raise GoneError(
                    f"{file.location}, a file of the Delta table, is gone",
                    hint="it may have been vacuumed: read the newest version in full",
                )
            if file.bytes and info.size != file.bytes:
                raise StorageError(
                    f"{file.location} has {info.size} bytes, not {file.bytes}: it is broken"
                )

    def count_rows(self, place: str) -> int:
        """Return the number of rows in a file according to its own footer."""
        with self._reached(place) as (system, path):
            return stored_rows(system, path)

    def stored_names(self, file: DeltaFile) -> frozenset[str]:
        """Return the columns that a file has according to its footer, in lower case."""
        with self._reached(file.location) as (system, path):
            return frozenset(name.lower() for name in stored_schema(system, path).names)

    @contextmanager
    def _reached(self, place: str) -> Generator[tuple[Any, str]]:
        below = f"{self._location}/"
        if not place.startswith(below):  # a file of a shallow clone
            with reached(place) as (system, path):
                yield system, path
        else:
            with self._log.file_system() as (system, root):
                yield system, root + place.removeprefix(below)


def _deleted_numbers(vector: Any) -> frozenset[int]:
    """Return the numbers of the rows for which a deletion vector's mask is false."""
    mask = vector.to_numpy(zero_copy_only=False).astype(bool)
    return frozenset((~mask).nonzero()[0].tolist())


def _statistics(actions: Any, column: DeltaField) -> list[list[Any]]:
    """Return a column's least values, greatest values and numbers of NULLs, by file."""
    names = (f"{kind}.{column.physical}" for kind in ("min", "max", "null_count"))
    return [file_statistics(actions, name) for name in names]
