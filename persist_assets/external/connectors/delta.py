"""Delta tables that others write: `deltalake` reads the log, Spark the files that are needed.

Partition values, deleted rows and versions come from the log and are joined to the rows by the
name of their file. The invariant: the rows are those of the version, or an error says why they
cannot be read. Parquet files alone are never trusted where the log says more.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote
from persist_assets.core.errors import ColumnsError, StorageError
from persist_assets.engine.named_files import one_after_another
from persist_assets.external.connectors.access import options_of_store
from persist_assets.external.connectors.delta_changes import RECORDED, DeltaChanges
from persist_assets.external.connectors.delta_files import DeltaFiles
from persist_assets.external.connectors.delta_log import (
    DeltaLog,
    is_same_version,
    number_of,
    table_id_of,
)
from persist_assets.external.connectors.delta_schema import (
    MAPPING,
    fields_of,
    json_field,
    mentioned_fields,
    physical_field,
    select_text,
)
from persist_assets.external.connectors.file_connector import (
    FileConnector,
    Unfollowable,
    read_cost,
    unfollowable_if_gone,
)
from persist_assets.external.connectors.protocol import (
    CHANGE,
    DELETE,
    INSERT,
    VERSION,
    Capabilities,
    Changes,
    Pruned,
)
from persist_assets.external.connectors.pruning import may_match
from persist_assets.external.connectors.reading import (
    FILE,
    ROW,
    FileNames,
    check_columns,
    conditions_of,
    earlier_columns,
    small_frame,
)
from persist_assets.external.connectors.unity_catalog import Placed, place_in_unity
from persist_assets.storage.commits import MOST_COMMITS, moves
from persist_assets.storage.raw import OF_DELTA, check_commits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.external.connectors.delta_files import DeltaFile
    from persist_assets.external.connectors.delta_schema import DeltaField

_READABLE = frozenset(
    ("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors", "columnMapping")
)
"""The table features that this connector reads correctly."""

_MOST_DELETED = 1_000_000
"""The maximum number of deleted rows whose row numbers are sent to Spark."""

_LOGGED_CHANGE, _CHANGE_TYPE = "_persist_became", "_change_type"
"""The columns with a row's change according to the log, and according to a change data file."""


class DeltaConnector(FileConnector):
    """A Delta table; see `FileConnector` for the parameters."""

    format, prefix = "Delta", OF_DELTA
    capabilities = Capabilities(
        filters="files, by partition values and statistics; then rows",
        columns="only needed columns of files are read",
        versions="all whose log and files are there",
        changes="change data, or added and removed files",
        keeps_versions=True,
    )

    _pinned: Any = None
    """The table at the last pinned version, because reading a long log takes long."""

    @cached_property
    def _placed(self) -> Placed:
        """The location of the table, and access to its store."""
        # An environment may place the table elsewhere than in the catalog.
        if self.location == self.external.catalog_place:
            return place_in_unity(self._access)
        return Placed(self.location, options_of_store(self._access))

    @property
    def _store_access(self) -> Mapping[str, str]:
        return self._placed.access

    @cached_property
    def _log(self) -> DeltaLog:
        return DeltaLog(*self._placed, self._timezone)

    @cached_property
    def _files(self) -> DeltaFiles:
        return DeltaFiles(self._log, self.columns, self._timezone)

    # --------------------------------------------------------------------------------- versions

    def pin(self, copy_version: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""
        external, log = self.external, self._log
        if (
            external.mode == "snapshot"
            and copy_version is not None
            and not log.is_misread(copy_version)
        ):
            return copy_version
        if external.mode == "snapshot":
            table = self._at_start()
        else:
            table, end = log.open(), external.end_version
            if end is not None and table.version() > end:
                # The log of the end version may be gone by now.
                is_end = copy_version is not None and _is_of(copy_version, table, end)
                if copy_version is not None and is_end and not log.is_misread(copy_version):
                    return copy_version
                table = log.open(end)
            start = self._at_start().version() if copy_version is None and self._has_start else 0
            if table.version() < start:
                raise StorageError(
                    f"{self.label} is at version {table.version()},"
                    f" which is before the start version {start}"
                )
        self._check(table)
        with log.file_system() as (system, root):
            check_commits(table, log.location, system, root)
        self._pinned = table
        return log.full_name(table)

    def _start_version(self) -> str:
        return self._log.full_name(self._at_start())

    def _at_start(self) -> Any:
        external = self.external
        if external.datetime is None:
            return self._log.open(external.version)
        return self._log.open_as_of(external.datetime)

    def _load(self, version: str) -> Any:
        number, table = number_of(version), self._pinned
        if table is None or table.version() != number:
            table = self._log.open(number)
        if not is_same_version(self._log.name(table), version):
            raise self._replaced()
        try:
            self._check(table)
        except ColumnsError as error:
            if self.external.mode == "snapshot" or number == self._later().version():
                raise
            raise earlier_columns(number, error) from error
        return table

    # ----------------------------------------------------------------------------------- checks

    def _check(self, table: Any) -> None:
        """Raise if the table cannot be read correctly, or differs from its declaration."""
        features: list[str] = list(table.protocol().reader_features or ())
        unknown = set(features) - _READABLE
        mode = table.metadata().configuration.get(MAPPING, "none")
        if mode not in ("none", "name"):
            unknown.add(f"columnMapping by {mode}")
        if unknown:
            raise StorageError(
                f"{self.label} uses {', '.join(sorted(unknown))}: not supported",
                hint="its rows would be wrong: write it without this feature",
            )
        columns = [(f.name, f.type) for f in self._fields(table)]
        check_columns(self.columns, columns, self.label)

    def _fields(self, table: Any) -> list[DeltaField]:
        """Return the columns of a version, and declared ones that only later versions have.

        Earlier rows have NULL there.
        """
        fields, version = fields_of(table), int(table.version())
        names = {f.name.lower() for f in fields}
        lacking = {c.name.lower() for c in self.columns} - names
        if not lacking or self.external.mode == "snapshot":
            return fields
        later = self._later()
        if later.version() <= version or later.metadata().id != table.metadata().id:
            return fields
        physical = {f.physical.lower() for f in fields}  # a renamed column is not a new one
        more = [f for f in fields_of(later) if f.name.lower() in lacking]
        return fields + [f for f in more if f.physical.lower() not in physical]

    def _later(self) -> Any:
        """Return the newest version, or the last one that is followed."""
        if self._pinned is None:
            table, end = self._log.open(), self.external.end_version
            self._pinned = table if end is None or table.version() <= end else self._log.open(end)
        return self._pinned

    def absent(self, columns: Sequence[str], predicate: str | None, version: str) -> frozenset[str]:
        """Return the columns that no matching file has; see `protocol.Connector`."""
        table = self._load(version)
        keys = {k.lower() for k in table.metadata().partition_columns}
        fields = {f.name.lower(): f.physical.lower() for f in self._fields(table)}
        conditions = conditions_of(self.external, predicate, start=True)
        files, _ = self._files.select(table, conditions)
        self._files.check_exist(files)
        with ThreadPoolExecutor(16) as pool:
            names = frozenset[str]().union(*pool.map(self._files.stored_names, files))
        return frozenset(
            c for c in columns if c.lower() not in keys and fields[c.lower()] not in names
        )

    def _check_rows(self, files: Iterable[DeltaFile]) -> None:
        """Raise if Spark does not read all rows of some files; see `check_rows`."""
        n_rows = {f.location: f.stored for f in files if f.location not in self._checked}
        uncounted = [place for place, n in n_rows.items() if n is None]
        counted = {place: n for place, n in n_rows.items() if n is not None}
        if uncounted:
            with ThreadPoolExecutor(16) as pool:
                counts = pool.map(self._files.count_rows, uncounted)
                counted |= zip(uncounted, counts, strict=True)
        self._check_row_counts(counted)

    # ---------------------------------------------------------------------------------- reading

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return the cost of reading a version for a predicate; see `protocol.Connector`."""
        conditions = conditions_of(self.external, predicate, start=True)
        files, n_files = self._files.select(self._load(version), conditions)
        return _cost(files, n_files)

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
        files, _ = self._files.select(table, conditions)
        self._files.check_exist(files)
        self._check_rows(files)
        groups = self._files.in_order(files, table, order) or [files]
        return one_after_another(
            lambda group: self._read(group, table, conditions, columns), groups
        )

    def _read(
        self,
        files: Sequence[DeltaFile],
        table: Any,
        conditions: Sequence[str],
        columns: Sequence[str],
    ) -> DataFrame:
        """Return columns of the matching rows of files, with the changes for files of commits."""
        from pyspark.sql.types import StructType

        fields = self._fields(table)
        if not files:
            whole = ", ".join(f"{quote(f.name)} {f.type}" for f in fields)
            return self._session().createDataFrame([], whole).select(*map(quote, columns))
        names = {c.lower() for c in columns}
        compared = [f for f in mentioned_fields(conditions, fields) if f.name.lower() not in names]
        needed = [f for f in fields if f.name.lower() in names] + compared
        keys = [f for f in needed if f.name in table.metadata().partition_columns]
        stored = [f for f in needed if f not in keys]
        kinds, texts = [*map(physical_field, stored)], [*map(select_text, stored)]
        if any(f.change == RECORDED for f in files):
            kinds.append(json_field(_CHANGE_TYPE, "string"))
            texts.append(_CHANGE_TYPE)
        schema = StructType.fromJson({"type": "struct", "fields": kinds})
        places = dict.fromkeys(f.location for f in files)
        frame = self._parquet(places, schema)
        change_columns = [CHANGE, VERSION] if files[0].change else []
        if keys or change_columns or any(f.skipped for f in files):
            frame = self._with_log(frame, texts, files, keys, FileNames(places))
        else:
            frame = frame.selectExpr(*texts)
        return self._fitting(frame, conditions).selectExpr(*map(quote, columns), *change_columns)

    def _with_log(
        self,
        frame: DataFrame,
        texts: Sequence[str],
        files: Sequence[DeltaFile],
        keys: Sequence[DeltaField],
        names: FileNames,
    ) -> DataFrame:
        """Add the log's data about each row's file, and drop deleted rows.

        A file that was added and removed is in `files` twice, and its rows are returned twice.
        """
        texts_of_keys = [f"_persist_{n}" for n in range(len(keys))]
        kinds = [f"{FILE} string", "_persist_n int", "_persist_only boolean"]
        kinds += [f"{_LOGGED_CHANGE} string", f"{VERSION} bigint"]
        kinds += (f"{text} string" for text in texts_of_keys)
        rows = [
            (
                *(names[f.location], n, f.only is not None, f.change, f.version),
                *(f.partition[key.name] for key in keys),
            )
            for n, f in enumerate(files)
        ]
        marked = [
            (n, row, True)
            for n, f in enumerate(files)
            for row in (f.skipped if f.only is None else f.only)
        ]
        if len(marked) > _MOST_DELETED:
            raise StorageError(
                f"{self.label} has {len(marked):,} rows in deletion vectors"
                f" of the files to read: more than {_MOST_DELETED:,} are not supported",
                hint="REORG TABLE … APPLY (PURGE) rewrites its files without them",
            )
        session = self._session()
        where = [names.text, f"_metadata.row_index AS {ROW}"]
        frame = frame.selectExpr(*texts, *where[: 2 if marked else 1])
        frame = names.checked(frame, self.label)
        frame = frame.join(small_frame(session, rows, ", ".join(kinds)), FILE)
        if marked:
            numbers = small_frame(
                session, marked, f"_persist_n int, {ROW} bigint, _persist_marked boolean"
            )
            frame = frame.join(numbers, ["_persist_n", ROW], "left")
            frame = frame.where("coalesce(_persist_marked, false) = _persist_only")
        values = [
            f"CAST({text} AS {key.type}) AS {quote(key.name)}"
            for text, key in zip(texts_of_keys, keys, strict=True)
        ]
        change = _LOGGED_CHANGE
        if _CHANGE_TYPE in texts:
            came = f"{_CHANGE_TYPE} IN ('insert', 'update_postimage')"
            change = f"CASE WHEN {_LOGGED_CHANGE} <> '{RECORDED}' THEN {_LOGGED_CHANGE}"
            change += f" WHEN {came} THEN '{INSERT}' ELSE '{DELETE}' END"
        return frame.selectExpr("*", *values, f"{change} AS {CHANGE}")

    # ---------------------------------------------------------------------------------- changes

    def _changes(
        self, since: str, until: str, conditions: Sequence[str], columns: Sequence[str]
    ) -> Changes:
        first, last = number_of(since), number_of(until)
        if table_id_of(since) != table_id_of(until):
            raise Unfollowable("the table was replaced by another one")
        if first > last:
            raise Unfollowable(f"it went back from version {first} to {last}")
        table = self._load(until)
        changes = DeltaChanges(self._log, self._files, table)
        whole, recorded = changes.files_since(since, conditions)
        if self.external.append_only and any(f.change == DELETE for f in whole):
            raise self._not_append_only()
        files = [f for f in whole if all(may_match(c, f.spans) for c in conditions)]
        files += recorded
        with unfollowable_if_gone():
            self._files.check_exist(files)
        if not files:
            return Changes()

        def load() -> DataFrame:
            self._check_rows(files)
            frame = self._read(files, table, conditions, columns)
            may_delete = recorded and self.external.append_only
            if may_delete and frame.where(f"{CHANGE} = '{DELETE}'").take(1):
                raise self._not_append_only()
            return frame

        only_came = all(f.change == INSERT for f in files)
        return Changes(load, only_came=only_came, read=_cost(files, len(whole) + len(recorded)))

    def _may_be_same(self, since: str, until: str) -> bool:
        first, last = number_of(since), number_of(until)
        if not first < last <= first + MOST_COMMITS:
            return False
        # The newest first: it is the most likely to change rows.
        return not any(moves(self._log.commit(version)) for version in range(last, first, -1))


def _is_of(version: str, table: Any, number: int) -> bool:
    """Whether a version has this number, and belongs to the table that exists now."""
    return version.split(":")[1:3] == [str(number), str(table.metadata().id)]


def _cost(files: Sequence[DeltaFile], n_files: int) -> Pruned:
    return read_cost([f.rows for f in files], (f.bytes for f in files), n_files)
