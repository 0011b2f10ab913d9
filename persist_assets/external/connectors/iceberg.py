"""Iceberg tables that others write: `pyiceberg` reads the metadata, Spark the files.

The invariant: the rows are those of the snapshot, or an error says why they cannot be read.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote
from persist_assets.core.errors import ColumnsError, GoneError, StorageError
from persist_assets.core.settings.spark import FIELD_IDS
from persist_assets.external.connectors.file_connector import (
    FileConnector,
    Unfollowable,
    read_cost,
    unfollowable_if_gone,
)
from persist_assets.external.connectors.iceberg_metadata import (
    NO_SNAPSHOT,
    OF_ICEBERG,
    ancestry,
    file_place,
    head,
    keeps_rows,
    open_table,
    parse_version,
    table_uuid,
    version_name,
)
from persist_assets.external.connectors.iceberg_schema import (
    FIELD_ID,
    bound,
    by_id,
    python_value,
    select_text,
    spark_field,
    unsupported,
)
from persist_assets.external.connectors.protocol import (
    CHANGE,
    INSERT,
    VERSION,
    Capabilities,
    Changes,
    Pruned,
)
from persist_assets.external.connectors.pruning import Span, exactly, may_match, span
from persist_assets.external.connectors.reading import (
    FILE,
    ROW,
    FileNames,
    check_columns,
    conditions_of,
    earlier_columns,
    small_frame,
)
from persist_assets.storage.files import unreachable
from persist_assets.storage.types import type_of_json
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

_BROKEN = (
    *(NotImplementedError, ValueError, EOFError, LookupError, TypeError, AssertionError),
    *(OSError, struct.error),
)
"""The errors that pyiceberg raises for metadata that cannot be read."""


class IcebergConnector(FileConnector):
    """An Iceberg table; see `FileConnector` for the parameters.

    The location may also be a metadata file. The time zone does not matter.
    """

    format, prefix = "Iceberg", OF_ICEBERG
    capabilities = Capabilities(
        filters="files, by partition values and statistics; then rows",
        columns="only needed columns of files are read",
        versions="all snapshots that have not expired",
        changes="appended files; deleted and replaced rows are read again in full",
        keeps_versions=True,
    )

    # --------------------------------------------------------------------------------- versions

    def pin(self, copy_version: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""
        external = self.external
        if external.mode == "snapshot" and copy_version is not None:
            return copy_version
        table = self._open()
        end = external.end_version
        if copy_version is not None and end is not None and _is_of(copy_version, table, end):
            return copy_version  # the snapshot may have expired
        if external.mode == "snapshot":
            number = self._at_start(table)
        else:
            number = head(table)
            if end is not None:
                if end not in ancestry(table, number):
                    raise self._gone(end)
                number = end
            start = self._at_start(table) if self._has_start and copy_version is None else number
            if start != number and start not in ancestry(table, number):
                raise StorageError(
                    f"snapshot {number} of {self.label} does not follow"
                    f" from the start snapshot {start}"
                )
        version = version_name(table, number)
        self._check(table, version)
        return version

    def _start_version(self) -> str:
        table = self._open()
        return version_name(table, self._at_start(table))

    def _at_start(self, table: Any) -> int:
        external = self.external
        if external.datetime is not None:
            milliseconds = int(datetime.fromisoformat(external.datetime).timestamp() * 1000)
            snapshot = table.snapshot_as_of_timestamp(milliseconds)
            if snapshot is None:
                raise GoneError(f"{self.label} lacks a snapshot of {external.datetime}")
            return int(snapshot.snapshot_id)
        if external.version is None:
            return head(table)
        if table.snapshot_by_id(external.version) is None:
            raise self._gone(external.version)
        return external.version

    def _gone(self, number: int) -> GoneError:
        return GoneError(
            f"snapshot {number} of {self.label} is missing",
            hint="it may have expired; the current table can be read again in full",
        )

    def _open(self) -> Any:
        # An environment may place the table elsewhere than in the catalog.
        in_catalog = self.location == self.external.catalog_place
        return open_table(self.location, self._access, in_catalog=in_catalog)

    def _load(self, version: str) -> Any:
        table = self._open()
        number, table_id, _ = parse_version(version)
        if table_id != table_uuid(table):
            raise self._replaced()
        if number != NO_SNAPSHOT and table.snapshot_by_id(number) is None:
            raise self._gone(number)
        try:
            self._check(table, version)
        except ColumnsError as error:
            is_last = number == self.external.end_version
            is_newest = version == version_name(table, head(table))
            if self.external.mode == "snapshot" or is_last or is_newest:
                raise
            raise earlier_columns(number, error) from error
        return table

    # ---------------------------------------------------------------------------------- columns

    def _schema(self, table: Any, version: str) -> Any:
        number, _, schema_id = parse_version(version)
        snapshot = table.snapshot_by_id(number)
        if schema_id is None and snapshot is not None:
            schema_id = snapshot.schema_id
        if schema_id is None:
            return table.schema()
        schema = table.schemas().get(schema_id)
        if schema is None:
            raise GoneError(
                f"schema {schema_id} of {self.label} is missing",
                hint="the current table can be read again in full",
            )
        return schema

    def _check(self, table: Any, version: str) -> None:
        """Raise if columns cannot be read correctly, or differ from the declaration."""
        columns = [(f["name"], type_of_json(f["type"])) for f in self._fields(table, version)]
        check_columns(self.columns, columns, self.label)

    def _fields(self, table: Any, version: str) -> list[dict[str, Any]]:
        """Return the fields of a version, in Spark's JSON with their ids.

        Raises
        ------
        StorageError
            One cannot be read correctly.
        """
        fields = [spark_field(f, self.label) for f in self._schema(table, version).fields]
        names = {f["name"].lower() for f in fields}
        lacking = {c.name.lower() for c in self.columns} - names
        if lacking and self.external.mode != "snapshot":  # NULL in rows from before they were added
            ids = {f["metadata"][FIELD_ID] for f in fields}
            later = [f for f in table.schema().fields if f.name.lower() in lacking]
            fields += [spark_field(f, self.label) for f in later if f.field_id not in ids]
        return fields

    def _declared(self, table: Any, version: str) -> dict[str, dict[str, Any]]:
        """Return the declared fields of a version by their names in lower case."""
        names = {c.name.lower() for c in self.columns}
        fields = {f["name"].lower(): f for f in self._fields(table, version)}
        return {name: f for name, f in fields.items() if name in names or not names}

    # ------------------------------------------------------------------------------------ files

    def _tasks(self, table: Any, number: int) -> list[Any]:
        """Return a snapshot's data files with their delete files."""
        if number == NO_SNAPSHOT:
            return []
        try:
            scan = table.scan(snapshot_id=number)
            tasks: list[Any] = ask(self.location, lambda: list(scan.plan_files()))
        except FileNotFoundError as error:
            raise self._gone(number) from error
        except _BROKEN as error:
            if "equality" in str(error):
                raise unsupported(self.label, "equality deletes") from error
            for _ in self._entries(table, table.snapshot_by_id(number)):
                pass  # if a manifest is broken, this raises with its name
            raise StorageError(f"cannot read {self.label}: {str(error)[:300]}") from error
        for task in tasks:
            for file in (task.file, *task.delete_files):
                self._check_file(file)
        return tasks

    def _check_file(self, file: Any) -> None:
        form = getattr(file.file_format, "value", str(file.file_format)).upper()
        if form == "PUFFIN":
            raise unsupported(self.label, "deletion vectors")
        if form != "PARQUET":
            raise unsupported(self.label, f"files of {form}")
        if file.key_metadata:
            raise unsupported(self.label, "encryption")

    def _partition(self, table: Any, file: Any) -> dict[int, Any]:
        """Return the partition values of a file that are values of a column, by column id.

        Files added by other engines may lack these columns.
        """
        from pyiceberg.transforms import IdentityTransform

        spec = table.specs()[file.spec_id]
        return {
            field.source_id: file.partition[n]
            for n, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
        }

    def _spans(self, table: Any, file: Any, fields: Sequence[dict[str, Any]]) -> dict[str, Span]:
        """Return the values that the columns of a file may have, by lower-case name."""
        spans: dict[str, Span] = {}
        partition = self._partition(table, file)
        for field in fields:
            name, kind = field["name"].lower(), type_of_json(field["type"])
            if not isinstance(field["type"], str) or kind == "binary" or name in self._chars:
                continue
            number = field["metadata"][FIELD_ID]
            if number in partition:  # the file may lack the column, so its statistics do not count
                value = python_value(kind, partition[number])
                is_exact = value is not None or partition[number] is None
                spans[name] = exactly(kind, value) if is_exact else Span(kind)
                continue
            least = bound(kind, (file.lower_bounds or {}).get(number))
            greatest = bound(kind, (file.upper_bounds or {}).get(number))
            nulls = (file.null_value_counts or {}).get(number)
            spans[name] = span(kind, least, greatest, nulls, file.record_count)
        return spans

    def _matching_tasks(
        self, table: Any, version: str, conditions: Sequence[str]
    ) -> tuple[list[Any], int]:
        """Return the tasks whose files may have matching rows, and the number of all tasks."""
        tasks = self._tasks(table, parse_version(version).snapshot)
        fields = self._fields(table, version)
        return [t for t in tasks if self._may_fit(table, t.file, fields, conditions)], len(tasks)

    def _may_fit(
        self,
        table: Any,
        file: Any,
        fields: Sequence[dict[str, Any]],
        conditions: Sequence[str],
    ) -> bool:
        spans = self._spans(table, file, fields)
        return all(may_match(c, spans) for c in conditions)

    def _check_exist(self, table: Any, files: Sequence[Any]) -> None:
        """Raise if files are gone or lack ids. Sizes are unchecked: metadata may be wrong."""
        from pyiceberg.manifest import DataFileContent

        is_mapped = "schema.name-mapping.default" in table.metadata.properties

        def check(file: Any) -> None:
            data = table.io.new_input(file.file_path)
            if not data.exists():
                raise GoneError(
                    f"{file.file_path}, a file of the Iceberg table, is gone",
                    hint="its snapshot may have expired: read the newest one in full",
                )
            is_data = file.content == DataFileContent.DATA
            if is_mapped and is_data and not _has_ids(data):
                raise unsupported(self.label, "files whose columns have no IDs")

        with ThreadPoolExecutor(max_workers=16) as pool:
            list(pool.map(check, files))

    def _check_rows(self, table: Any, files: Sequence[Any]) -> None:
        """Raise if Spark does not read all rows of some files; see `check_rows`."""
        self._check_row_counts({file_place(table, f.file_path): int(f.record_count) for f in files})

    def absent(self, columns: Sequence[str], predicate: str | None, version: str) -> frozenset[str]:
        """Return the columns that no matching file has; see `protocol.Connector`."""
        table = self._load(version)
        conditions = conditions_of(self.external, predicate, start=True)
        tasks, _ = self._matching_tasks(table, version, conditions)
        ids = {f["name"].lower(): f["metadata"][FIELD_ID] for f in self._fields(table, version)}
        stored = {number for task in tasks for number in self._partition(table, task.file)}
        with ThreadPoolExecutor(max_workers=16) as pool:
            places = [table.io.new_input(task.file.file_path) for task in tasks]
            stored = stored.union(*pool.map(_column_ids, places))
        return frozenset(c for c in columns if ids[c.lower()] not in stored)

    # ---------------------------------------------------------------------------------- reading

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return the cost of reading a version for a predicate; see `protocol.Connector`."""
        conditions = conditions_of(self.external, predicate, start=True)
        tasks, n_tasks = self._matching_tasks(self._load(version), version, conditions)
        return _cost([task.file for task in tasks], n_tasks)

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
        tasks, _ = self._matching_tasks(table, version, conditions)
        files = [task.file for task in tasks]
        deletes = {d.file_path: d for task in tasks for d in task.delete_files}
        self._check_exist(table, [*files, *deletes.values()])
        self._check_rows(table, [*files, *deletes.values()])
        fields = self._fields(table, version)
        frame = self._read(table, files, sorted(deletes), fields, conditions)
        return frame.select(*map(quote, columns))

    def _read(
        self,
        table: Any,
        files: Sequence[Any],
        deletes: Sequence[str],
        fields: Sequence[dict[str, Any]],
        conditions: Sequence[str],
    ) -> DataFrame:
        """Return the matching rows of files.

        Parameters
        ----------
        deletes
            The paths of position delete files. Rows that they name are left out.
        """
        from pyspark.sql.types import StructType

        session = self._session()
        if not files:
            whole = [f"{quote(f['name'])} {type_of_json(f['type'])}" for f in fields]
            return session.createDataFrame([], ", ".join(whole))
        session.conf.set(FIELD_IDS, "true")  # not reset: Spark reads the rows later
        schema = StructType.fromJson({"type": "struct", "fields": [by_id(f) for f in fields]})
        paths = [f.file_path for f in files]
        places = [file_place(table, path) for path in paths]
        names = FileNames(places)
        frame = self._parquet(places, schema)
        partitions = [self._partition(table, file) for file in files]
        texts = [*map(select_text, fields)]
        if deletes or any(partitions):
            texts += [names.text, f"_metadata.row_index AS {ROW}"]
            frame = names.checked(frame.selectExpr(*texts), self.label)
        else:
            frame = frame.selectExpr(*texts)
        if deletes:
            positions = self._parquet(file_place(table, path) for path in deletes)
            pairs = [(path, names[place]) for path, place in zip(paths, places, strict=True)]
            names_of_paths = small_frame(session, pairs, f"file_path string, {FILE} string")
            gone = positions.join(names_of_paths, "file_path")
            gone = gone.selectExpr(FILE, f"bigint(pos) AS {ROW}")
            frame = frame.join(gone, [FILE, ROW], "left_anti")
        if any(partitions):
            frame = self._with_partitions(frame, [names[p] for p in places], partitions, fields)
        return self._fitting(frame.select(*(quote(f["name"]) for f in fields)), conditions)

    def _with_partitions(
        self,
        frame: DataFrame,
        names: Sequence[str],
        partitions: Sequence[Mapping[int, Any]],
        fields: Sequence[dict[str, Any]],
    ) -> DataFrame:
        """Fill in partition values if files lack their columns.

        Parameters
        ----------
        names
            What the column `FILE` has for each file.
        """
        numbers = {number for values in partitions for number in values}
        keys = {n: f for f in fields if (n := f["metadata"][FIELD_ID]) in numbers}
        rows = [
            (name, *(self._text(f, values.get(n)) for n, f in keys.items()))
            for name, values in zip(names, partitions, strict=True)
        ]
        columns = {f"_persist_value_{n}": f for n, f in keys.items()}
        kinds = ", ".join(f"{column} string" for column in (FILE, *columns))
        frame = frame.join(small_frame(self._session(), rows, kinds), FILE)
        filled = {
            field["name"]: f"coalesce({quote(field['name'])}, CAST({column} AS"
            f" {type_of_json(field['type'])})) AS {quote(field['name'])}"
            for column, field in columns.items()
        }
        return frame.selectExpr(*(filled.get(f["name"], quote(f["name"])) for f in fields))

    def _text(self, field: Mapping[str, Any], value: Any) -> str | None:
        """Return a partition value as Spark reads it from text."""
        if value is None:
            return None
        kind = type_of_json(field["type"])
        if isinstance(value, bytes):
            raise unsupported(self.label, f"partitions by `{field['name']}`, which is {kind}")
        plain = python_value(kind, value)
        if plain is None:
            feature = f"a partition by `{field['name']}` with a year outside 1 to 9999"
            raise unsupported(self.label, feature)
        return str(plain)

    # ---------------------------------------------------------------------------------- changes

    def _changes(
        self, since: str, until: str, conditions: Sequence[str], columns: Sequence[str]
    ) -> Changes:
        """Return the rows that appends added; see `FileConnector`.

        Rows are only added, so all of them have the version 1.
        """
        if parse_version(since).table_id != parse_version(until).table_id:
            raise Unfollowable("the table was replaced by another one")
        table = self._load(until)
        snapshots = self._snapshots_between(table, since, until)
        fields = self._fields(table, until)
        files = self._appended_files(table, snapshots)
        matching = [f for f in files if self._may_fit(table, f, fields, conditions)]
        if not matching:
            return Changes()
        with unfollowable_if_gone():
            self._check_exist(table, matching)

        def load() -> DataFrame:
            self._check_rows(table, matching)
            frame = self._read(table, matching, (), fields, conditions)
            change = (f"'{INSERT}' AS {CHANGE}", f"bigint(1) AS {VERSION}")
            return frame.selectExpr(*map(quote, columns), *change)

        return Changes(load, only_came=True, read=_cost(matching, len(files)))

    def _snapshots_between(self, table: Any, since: str, until: str) -> list[int]:
        """Return the snapshots after a version, oldest first, if the columns stayed the same."""
        first, last = parse_version(since).snapshot, parse_version(until).snapshot
        line = ancestry(table, last)
        if first == NO_SNAPSHOT:  # a table without rows may have had any columns
            oldest = table.snapshot_by_id(line[-1]) if line else None
            if oldest is not None and oldest.parent_snapshot_id is not None:
                raise Unfollowable("its first snapshots expired")
            return line[::-1]
        if first not in line:
            raise Unfollowable(f"snapshot {last} does not follow from {first}, or {first} expired")
        with unfollowable_if_gone():
            fields = self._declared(table, since)
        if fields != self._declared(table, until):
            raise Unfollowable(f"its columns changed after snapshot {first}")
        return line[: line.index(first)][::-1]

    def _appended_files(self, table: Any, snapshots: Sequence[int]) -> list[Any]:
        """Return the data files that snapshots append; snapshots may also rewrite files.

        Raises
        ------
        StorageError
            A snapshot changes or deletes rows of a table that is declared append_only.
        Unfollowable
            A snapshot changes or deletes rows of another table, or its files are gone.
        """
        files: list[Any] = []
        for number in snapshots:
            snapshot = table.snapshot_by_id(number)
            operation = snapshot.summary.operation.value if snapshot.summary else "overwrite"
            if operation == "append":
                with unfollowable_if_gone():
                    files += self._added_by(table, snapshot)
            elif operation != "replace" and self.external.append_only:
                raise self._not_append_only(f" by snapshot {number}")
            elif operation != "replace":
                raise Unfollowable(f"snapshot {number} is not an append: {operation}")
        return files

    def _may_be_same(self, since: str, until: str) -> bool:
        table = self._load(until)
        first, last = parse_version(since).snapshot, parse_version(until).snapshot
        line = ancestry(table, last)
        if first != last and first not in line:
            return False
        later = [] if first == last else line[: line.index(first)]
        return all(keeps_rows(table.snapshot_by_id(n)) for n in later)

    def _entries(self, table: Any, snapshot: Any) -> Iterator[tuple[Any, list[Any]]]:
        """Yield the manifests of a snapshot with their entries.

        Raises
        ------
        GoneError
            One is gone.
        StorageError
            One cannot be read.
        """
        path = str(snapshot.manifest_list)
        try:
            for manifest in snapshot.manifests(table.io):
                path = manifest.manifest_path
                yield manifest, manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        except FileNotFoundError as error:
            raise GoneError(f"{path} of {self.label} is gone") from error
        except _BROKEN as error:
            failed = f"{path} of {self.label} cannot be read"
            raise unreachable(self.location, error, failed) from error

    def _added_by(self, table: Any, snapshot: Any) -> list[Any]:
        """Return the data files that a snapshot added."""
        from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

        files: list[Any] = []
        for manifest, entries in self._entries(table, snapshot):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in entries:
                if entry.status == ManifestEntryStatus.EXISTING:
                    continue
                is_row = entry.data_file.content == DataFileContent.DATA
                if entry.status != ManifestEntryStatus.ADDED or not is_row:
                    raise unsupported(self.label, "an append that deletes")
                self._check_file(entry.data_file)
                files.append(entry.data_file)
        return files


def _is_of(version: str, table: Any, number: int) -> bool:
    """Whether a version is of this snapshot, and belongs to the table that exists now."""
    return parse_version(version)[:2] == (number, table_uuid(table))


def _cost(files: Sequence[Any], n_files: int) -> Pruned:
    rows, sizes = [f.record_count for f in files], (f.file_size_in_bytes for f in files)
    return read_cost(rows, sizes, n_files)


def _has_ids(file: Any) -> bool:
    """Whether the columns of a Parquet file have ids."""
    return None not in _column_ids(file)


def _column_ids(file: Any) -> set[int | None]:
    """Return the ids of the columns of a Parquet file; None for one that has none.

    Raises
    ------
    GoneError
        The file is gone.
    StorageError
        It is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as stream:
            schema = pq.read_schema(stream)
    except FileNotFoundError as error:
        raise GoneError(f"{file.location}, a file of the Iceberg table, is gone") from error
    except pa.ArrowInvalid as error:
        raise StorageError(f"cannot read {file.location}: {error}") from error
    ids = [(field.metadata or {}).get(b"PARQUET:field_id") for field in schema]
    return {None if number is None else int(number) for number in ids}
