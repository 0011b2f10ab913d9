"""Iceberg tables of others: `pyiceberg` reads their metadata, Spark the files that are left.

Columns are found in files by their ids, so renamed and moved ones are what they were. A table is
found by its metadata file, no catalog is asked. The invariant: rows are those of the snapshot, or
an error names what keeps them from being read.
"""

from __future__ import annotations

import re
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import char_size, quote, unpruned
from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.object_stores import CONNECT_S, scheme_of, spark_pattern
from persist_assets.core.settings.spark import FIELD_IDS
from persist_assets.engine.named_files import AS_NAMED, check_rows, padded
from persist_assets.external.connectors.access import iceberg_access, spark_access
from persist_assets.external.connectors.protocol import CHANGE, INSERT, VERSION, Changes, Pruned
from persist_assets.external.connectors.pruning import Span, exactly, may_match, span
from persist_assets.external.connectors.reading import (
    FILE,
    ROW,
    check_columns,
    check_names,
    conditions_of,
    small_frame,
)
from persist_assets.storage.files import permit_store, unreachable
from persist_assets.storage.types import type_of_json
from persist_assets.storage.waiting import ask, patience_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import External

OF_ICEBERG = "iceberg:"
"""What versions begin with. Behind it: the number of a snapshot, the table's id, and of which
schema its columns are where that is not the snapshot's own, as columns change without one."""
_EMPTY = -1
"""The snapshot of a table that has none yet."""
_BROKEN = (
    *(NotImplementedError, ValueError, EOFError, LookupError, TypeError, AssertionError),
    *(OSError, struct.error),
)
"""What pyiceberg raises of metadata that cannot be read."""
_METADATA = ".metadata.json"
_FIELD_ID = "parquet.field.id"

_TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
"""Spark's names, in JSON, of types that are read alike."""

_DAY_ONE = date(1970, 1, 1)


class IcebergConnector:
    """An Iceberg table, as `protocol.Connector` says.

    Parameters
    ----------
    external
        What is declared of it.
    location
        Its directory, or a metadata file.
    columns
        As they are declared.
    access
        The storage options, with references followed.
    session
        Returns the Spark session; called when rows are read.
    _timezone
        The session's: nothing of Iceberg depends on it.
    """

    def __init__(
        self,
        external: External,
        location: str,
        columns: Sequence[Column],
        access: Mapping[str, str],
        session: Callable[[], SparkSession],
        _timezone: ZoneInfo,
    ) -> None:
        self.external, self.location, self.columns = external, location.rstrip("/"), columns
        self._access, self._session = access, session
        self._checked: set[str] = set()
        """The files of which Spark reads all rows (`_check_rows`)."""

    # ------------------------------------------------------------------------------- versions

    def pin(self, held: str | None = None) -> str:
        """Return the version to bring a copy to; see `protocol.Connector`."""
        external = self.external
        if external.mode == "snapshot" and held is not None:
            return held
        table = self._open()
        end = external.end_version
        if held is not None and end is not None and _parts(held)[:2] == (end, _uuid(table)):
            return held  # it may expire, and be in no line any more
        if external.mode == "snapshot":
            number = self._at_start(table)
        else:
            number = _head(table)
            if end is not None and end in _line(table, number):
                number = end
            starts = external.version is not None or external.datetime is not None
            start = self._at_start(table) if starts and held is None else number
            if start != number and start not in _line(table, number):
                raise StorageError(
                    f"snapshot {number} of the Iceberg table at {self.location} does not follow"
                    f" from the start snapshot {start}"
                )
        version = self._name(table, number)
        self._check(table, version)
        return version

    def start(self) -> str | None:
        """Return where a copy begins; see `protocol.Connector`."""
        if self.external.version is None and self.external.datetime is None:
            return None
        table = self._open()
        return self._name(table, self._at_start(table))

    def _at_start(self, table: Any) -> int:
        external = self.external
        if external.datetime is not None:
            at = int(datetime.fromisoformat(external.datetime).timestamp() * 1000)
            found = table.snapshot_as_of_timestamp(at)
            if found is None:
                raise GoneError(
                    f"the Iceberg table at {self.location} lacks a snapshot of {external.datetime}"
                )
            return int(found.snapshot_id)
        if external.version is None:
            return _head(table)
        if table.snapshot_by_id(external.version) is None:
            raise self._gone(external.version)
        return external.version

    def _gone(self, number: int) -> GoneError:
        return GoneError(
            f"snapshot {number} of the Iceberg table at {self.location} is missing",
            hint="it may have expired; the current table can be read again in full",
        )

    def _name(self, table: Any, number: int) -> str:
        snapshot, current = table.snapshot_by_id(number), table.metadata.current_schema_id
        own = snapshot.schema_id if snapshot is not None else None
        name = f"{OF_ICEBERG}{number}:{_uuid(table)}"
        is_own = own == current or (own is not None and number != _head(table))
        return name if is_own else f"{name}:{current}"

    def _load(self, version: str) -> tuple[Any, int]:
        table = self._open()
        number, of_table, _ = _parts(version)
        if of_table != _uuid(table):
            raise GoneError(
                f"the Iceberg table at {self.location} was replaced after it was pinned",
                hint="read the new table again in full",
            )
        if number != _EMPTY and table.snapshot_by_id(number) is None:
            raise self._gone(number)
        self._check(table, version)
        return table, number

    # ------------------------------------------------------------------------------- metadata

    def _open(self) -> Any:
        """Return the `pyiceberg.table.StaticTable` there is now."""
        try:
            from pyiceberg.catalog.noop import NoopCatalog
            from pyiceberg.exceptions import ValidationError
            from pyiceberg.io.pyarrow import PyArrowFileIO
            from pyiceberg.serializers import FromInputFile
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise StorageError(
                "reading Iceberg tables requires pyiceberg",
                hint="pip install 'persist-assets[iceberg]'",
            ) from error

        class Permitted(PyArrowFileIO):
            """Reaches only what `trust.permit` lets it."""

            def new_input(self, location: str) -> Any:
                permit_store(location)
                return super().new_input(location)

        answer_s = patience_now().answer_s
        access = {
            "s3.connect-timeout": str(min(CONNECT_S, answer_s)),
            "s3.request-timeout": str(answer_s),
            **iceberg_access(self._access),
        }
        io = Permitted(access)

        def read() -> tuple[str, Any]:
            place = self._metadata(io)
            return place, FromInputFile.table_metadata(io.new_input(place))

        try:
            place, metadata = ask(self.location, read, bounded=True)
        except FileNotFoundError as error:
            raise StorageError(
                f"there is no Iceberg table at {self.location}", hint="check its uri"
            ) from error
        except (OSError, ValueError, ValidationError) as error:
            failed = f"cannot open the Iceberg table at {self.location}"
            raise unreachable(self.location, error, failed) from error
        root = place.rpartition("/metadata/")[0]
        moved = "" if _is_absolute(metadata.location) else metadata.location.rstrip("/")

        class Files(Permitted):
            """Finds the files of a table whose metadata names them from nowhere in particular."""

            def new_input(self, location: str) -> Any:
                return super().new_input(_placed(location, moved, root))

        io = Files(access)
        return StaticTable(("static-table", place), metadata, place, io, NoopCatalog("static"))

    def _metadata(self, io: Any) -> str:
        """Return where the metadata file is: what is named, or what the directory hints at."""
        if self.location.endswith((_METADATA, ".metadata.json.gz")):
            return self.location
        directory = f"{self.location}/metadata"
        try:
            with io.new_input(f"{directory}/version-hint.text").open() as stream:
                hint = stream.read().decode().strip()
        except FileNotFoundError as error:
            message = f"the newest metadata file at {self.location} is unknown"
            hint = "name it with metadata_location"
            raise StorageError(message, hint=hint) from error
        if not re.fullmatch(r"\d+", hint):
            return f"{directory}/{hint}{_METADATA}"
        newest = int(hint)
        # The hint is written behind the file, so a later one may be there.
        while io.new_input(f"{directory}/v{newest + 1}{_METADATA}").exists():
            newest += 1
        return f"{directory}/v{newest}{_METADATA}"

    def _schema(self, table: Any, version: str) -> Any:
        number, _, schema = _parts(version)
        snapshot = table.snapshot_by_id(number)
        if schema is None and snapshot is not None:
            schema = snapshot.schema_id
        if schema is None:
            return table.schema()
        found = table.schemas().get(schema)
        if found is None:
            raise GoneError(
                f"schema {schema} of the Iceberg table at {self.location} is missing",
                hint="the current table can be read again in full",
            )
        return found

    def _check(self, table: Any, version: str) -> None:
        """Raise where columns cannot be read correctly, or are not as they are declared."""
        there = [(f["name"], type_of_json(f["type"])) for f in self._fields(table, version)]
        check_columns(self.columns, there, f"the Iceberg table at {self.location}")

    def _fields(self, table: Any, version: str) -> list[dict[str, Any]]:
        """Return the fields of a version, in Spark's JSON with their ids.

        Raises
        ------
        StorageError
            One cannot be read correctly.
        """
        return [self._field(f) for f in self._schema(table, version).fields]

    def _declared(self, table: Any, version: str) -> dict[str, dict[str, Any]]:
        """Return the fields of a version that are declared, by their names in lower case."""
        named = {c.name.lower() for c in self.columns}
        fields = {f["name"].lower(): f for f in self._fields(table, version)}
        return {name: f for name, f in fields.items() if name in named or not named}

    def _field(self, field: Any) -> dict[str, Any]:
        if getattr(field, "initial_default", None) is not None:
            raise self._unreadable(f"a default for rows before column `{field.name}`")
        return {
            "name": field.name,
            "type": self._type(field.field_type, field.name),
            "nullable": True,
            "metadata": {_FIELD_ID: field.field_id},
        }

    def _type(self, kind: Any, name: str) -> Any:
        from pyiceberg import types

        match kind:
            case types.StructType():
                return {"type": "struct", "fields": [self._field(f) for f in kind.fields]}
            case types.ListType():
                inner = self._type(kind.element_type, name)
                return {"type": "array", "elementType": inner, "containsNull": True}
            case types.MapType():
                return {
                    "type": "map",
                    "keyType": self._type(kind.key_type, name),
                    "valueType": self._type(kind.value_type, name),
                    "valueContainsNull": True,
                }
            case types.DecimalType():
                return f"decimal({kind.precision},{kind.scale})"
            case _:
                found = _TYPES.get(str(kind))
                if found is None:
                    raise self._unreadable(f"the type {kind} of column `{name}`")
                return found

    def _unreadable(self, what: str) -> StorageError:
        return StorageError(
            f"the Iceberg table at {self.location} uses {what}: not supported",
            hint="its rows would be wrong: write it without",
        )

    # ---------------------------------------------------------------------------------- files

    def _tasks(self, table: Any, number: int) -> list[Any]:
        """Return a snapshot's data files, with the delete files that belong to them."""
        if number == _EMPTY:
            return []
        try:
            scan = table.scan(snapshot_id=number)
            tasks: list[Any] = ask(self.location, lambda: list(scan.plan_files()))
        except FileNotFoundError as error:
            raise self._gone(number) from error
        except _BROKEN as error:
            if "equality" in str(error):
                raise self._unreadable("equality deletes") from error
            for _ in self._entries(table, table.snapshot_by_id(number)):
                pass  # which names the file, if one is broken
            raise StorageError(
                f"cannot read the Iceberg table at {self.location}: {str(error)[:300]}"
            ) from error
        for task in tasks:
            for file in (task.file, *task.delete_files):
                self._check_file(file)
        return tasks

    def _check_file(self, file: Any) -> None:
        form = getattr(file.file_format, "value", str(file.file_format)).upper()
        if form == "PUFFIN":
            raise self._unreadable("deletion vectors")
        if form != "PARQUET":
            raise self._unreadable(f"files of {form}")
        if file.key_metadata:
            raise self._unreadable("encryption")

    def _place(self, table: Any, path: str) -> str:
        """Return where a file is that metadata names."""
        moved = "" if _is_absolute(table.metadata.location) else table.metadata.location.rstrip("/")
        placed = _placed(path, moved, table.metadata_location.rpartition("/metadata/")[0])
        if placed.startswith("file:"):
            return re.sub(r"^file:(//[^/]*)?", "", placed)
        return re.sub(r"^s3[an]://", "s3://", placed)

    def _parted(self, table: Any, file: Any) -> dict[int, Any]:
        """Return the values of a file's partition that columns have in it, by their ids.

        Files that others added do not have these columns.
        """
        from pyiceberg.transforms import IdentityTransform

        spec = table.specs()[file.spec_id]
        return {
            field.source_id: file.partition[n]
            for n, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
        }

    def _spans(self, table: Any, file: Any, fields: Sequence[dict[str, Any]]) -> dict[str, Span]:
        spans: dict[str, Span] = {}
        parted = self._parted(table, file)
        chars = {c.name.lower() for c in self.columns if char_size(c.type)}
        for field in fields:
            kind = type_of_json(field["type"])
            if not isinstance(field["type"], str) or kind == "binary":
                continue
            if field["name"].lower() in chars:  # values in files are not padded
                continue
            number = field["metadata"][_FIELD_ID]
            if number in parted:  # and statistics may be of a column that is not in the file
                value = _plain(kind, parted[number])
                is_known = value is not None or parted[number] is None
                spans[field["name"].lower()] = exactly(kind, value) if is_known else Span(kind)
                continue
            least = _value(kind, (file.lower_bounds or {}).get(number))
            greatest = _value(kind, (file.upper_bounds or {}).get(number))
            nulls = (file.null_value_counts or {}).get(number)
            spans[field["name"].lower()] = span(kind, least, greatest, nulls, file.record_count)
        return spans

    def _may_fit(
        self,
        table: Any,
        file: Any,
        fields: Sequence[dict[str, Any]],
        conditions: Sequence[str],
    ) -> bool:
        spans = self._spans(table, file, fields)
        return all(may_match(c, spans) for c in conditions)

    # -------------------------------------------------------------------------------- reading

    def prune(self, predicate: str | None, version: str) -> Pruned:
        """Return what reading a version for a predicate costs; see `protocol.Connector`."""
        table, number = self._load(version)
        tasks = self._tasks(table, number)
        fields = self._fields(table, version)
        conditions = conditions_of(self.external, predicate, start=True)
        kept = [t.file for t in tasks if self._may_fit(table, t.file, fields, conditions)]
        return _cost(kept, len(tasks))

    def snapshot(
        self,
        predicate: str | None,
        columns: Sequence[str],
        version: str,
        *,
        order: str | None = None,
    ) -> DataFrame:
        """Return rows of a version; see `protocol.Connector`."""
        table, number = self._load(version)
        fields = self._fields(table, version)
        conditions = conditions_of(self.external, predicate, start=True)
        tasks = self._tasks(table, number)
        kept = [t for t in tasks if self._may_fit(table, t.file, fields, conditions)]
        deletes = {d.file_path: d for t in kept for d in t.delete_files}
        self._check_there(table, [*(t.file for t in kept), *deletes.values()])
        self._check_rows(table, [*(t.file for t in kept), *deletes.values()])
        frame = self._read(table, [t.file for t in kept], sorted(deletes), fields, conditions)
        return frame.select(*(quote(c) for c in columns))

    def _check_there(self, table: Any, files: Sequence[Any]) -> None:
        """Raise where files are gone or lack ids; their sizes are not always what is said."""
        from pyiceberg.manifest import DataFileContent

        is_mapped = "schema.name-mapping.default" in table.metadata.properties

        def look(file: Any) -> None:
            found = table.io.new_input(file.file_path)
            if not found.exists():
                raise GoneError(
                    f"{file.file_path}, a file of the Iceberg table, is gone",
                    hint="its snapshot may have expired: read the newest one in full",
                )
            is_data = file.content == DataFileContent.DATA
            if is_mapped and is_data and not _has_ids(found):
                raise self._unreadable("files whose columns have no IDs")

        with ThreadPoolExecutor(max_workers=16) as pool:
            list(pool.map(look, files))

    def _check_rows(self, table: Any, files: Sequence[Any]) -> None:
        """Raise where Spark does not read all rows of files; see `check_rows`."""
        promised = {self._place(table, f.file_path): int(f.record_count) for f in files}
        promised = {place: n for place, n in promised.items() if place not in self._checked}
        if not promised:
            return
        reader = self._session().read.options(**AS_NAMED).options(**spark_access(self._access))
        scan = reader.schema("_ int").parquet(*map(spark_pattern, promised))
        check_rows(scan, promised, f"the Iceberg table at {self.location}")
        self._checked |= promised.keys()

    def _read(
        self,
        table: Any,
        files: Sequence[Any],
        deletes: Sequence[str],
        fields: Sequence[dict[str, Any]],
        conditions: Sequence[str],
    ) -> DataFrame:
        """Return the rows of files that fit conditions, without those that were deleted."""
        from pyspark.sql.types import StructType

        session = self._session()
        if not files:
            whole = [f"{quote(f['name'])} {type_of_json(f['type'])}" for f in fields]
            return session.createDataFrame([], ", ".join(whole))
        session.conf.set(FIELD_IDS, "true")  # for good: what is read is read later
        schema = StructType.fromJson({"type": "struct", "fields": [_by_id(f) for f in fields]})
        paths = [f.file_path for f in files]
        places = [self._place(table, path) for path in paths]
        reader = session.read.options(**AS_NAMED).options(**spark_access(self._access))
        frame = reader.schema(schema).parquet(*map(spark_pattern, places))
        parted = [self._parted(table, file) for file in files]
        texts = [*map(_stored, fields)]
        if deletes or any(parted):
            check_names(places, f"the Iceberg table at {self.location}")
            texts += [f"_metadata.file_name AS {FILE}", f"_metadata.row_index AS {ROW}"]
        frame = frame.selectExpr(*texts)
        if deletes:
            reader = session.read.options(**AS_NAMED).options(**spark_access(self._access))
            positions = reader.parquet(
                *(spark_pattern(self._place(table, path)) for path in deletes)
            )
            named_so = [(path, path.rpartition("/")[2]) for path in paths]
            told = small_frame(session, named_so, f"file_path string, {FILE} string")
            gone = positions.join(told, "file_path").selectExpr(FILE, f"bigint(pos) AS {ROW}")
            frame = frame.join(gone, [FILE, ROW], "left_anti")
        if any(parted):
            frame = self._with_partitions(frame, paths, parted, fields)
        frame = padded(frame.select(*(quote(f["name"]) for f in fields)), self.columns)
        return reduce(lambda found, text: found.where(text), conditions, frame)

    def _with_partitions(
        self,
        frame: DataFrame,
        paths: Sequence[str],
        parted: Sequence[Mapping[int, Any]],
        fields: Sequence[dict[str, Any]],
    ) -> DataFrame:
        """Put the values of partitions where files do not have their columns."""
        numbers = sorted({number for values in parted for number in values})
        by_number = {f["metadata"][_FIELD_ID]: f for f in fields}
        by_number = {n: by_number[n] for n in numbers if n in by_number}
        rows = [
            (path.rpartition("/")[2], *(self._text(f, values.get(n)) for n, f in by_number.items()))
            for path, values in zip(paths, parted, strict=True)
        ]
        keys = [f"_persist_value_{n}" for n in by_number]
        kinds = ", ".join(f"{key} string" for key in (FILE, *keys))
        frame = frame.join(small_frame(self._session(), rows, kinds), FILE)
        filled = {
            field["name"]: f"coalesce({quote(field['name'])}, CAST({key} AS"
            f" {type_of_json(field['type'])})) AS {quote(field['name'])}"
            for key, field in zip(keys, by_number.values(), strict=True)
        }
        return frame.selectExpr(*(filled.get(f["name"], quote(f["name"])) for f in fields))

    def _text(self, field: Mapping[str, Any], value: Any) -> str | None:
        """Return the value of a partition as Spark reads it from text."""
        if value is None:
            return None
        kind = type_of_json(field["type"])
        if isinstance(value, bytes):
            raise self._unreadable(f"partitions by `{field['name']}`, which is {kind}")
        plain = _plain(kind, value)
        if plain is None:
            raise self._unreadable(
                f"a partition by `{field['name']}` with a year outside 1 to 9999"
            )
        return str(plain)

    # ------------------------------------------------------------------------------- changes

    def changes(
        self, since: str, until: str, predicate: str | None, columns: Sequence[str]
    ) -> Changes:
        """Return what became of rows between two versions; see `protocol.Connector`.

        Only appends are followed, and what rewrites files without changing rows. All of them
        have the version 1: rows only came.
        """
        if since == until:
            return Changes()
        first, of_table, _ = _parts(since)
        if of_table != _parts(until)[1]:
            return Changes(again="the table was replaced by another one")
        table, last = self._load(until)
        line = _line(table, last)
        if first != _EMPTY and first not in line:
            return Changes(
                again=f"snapshot {last} does not follow from {first}, or {first} expired"
            )
        oldest = table.snapshot_by_id(line[-1]) if line else None
        if first == _EMPTY and oldest is not None and oldest.parent_snapshot_id is not None:
            return Changes(again="its first snapshots expired")
        if first != _EMPTY:  # of no rows it is no matter what their columns were
            try:
                before = self._declared(table, since)
            except GoneError as error:
                return Changes(again=error.message)
            if before != self._declared(table, until):
                return Changes(again=f"its columns changed after snapshot {first}")
        fields = self._fields(table, until)
        new = line[: line.index(first)] if first in line else line
        files: list[Any] = []
        for number in reversed(new):
            snapshot = table.snapshot_by_id(number)
            operation = snapshot.summary.operation.value if snapshot.summary else "overwrite"
            if operation == "append":
                try:
                    files += self._appended(table, snapshot)
                except GoneError as error:
                    return Changes(again=error.message)
            elif operation != "replace" and self.external.append_only:
                raise StorageError(
                    f"rows of the Iceberg table at {self.location} were changed or deleted by"
                    f" snapshot {number}, but it is declared append_only",
                    hint="remove 'append_only' from its declaration",
                )
            elif operation != "replace":
                return Changes(again=f"snapshot {number} is not an append: {operation}")
        conditions = conditions_of(self.external, predicate, start=False)
        kept = [f for f in files if self._may_fit(table, f, fields, conditions)]
        if not kept:
            return Changes()
        try:
            self._check_there(table, kept)
        except GoneError as error:
            return Changes(again=error.message)

        def load() -> DataFrame:
            self._check_rows(table, kept)
            frame = self._read(table, kept, (), fields, conditions)
            told = (f"'{INSERT}' AS {CHANGE}", f"bigint(1) AS {VERSION}")
            return frame.selectExpr(*(quote(c) for c in columns), *told)

        return Changes(load, only_came=True, read=_cost(kept, len(files)))

    def is_same(self, since: str, until: str) -> bool:
        """Whether no row came or went between two versions; see `protocol.Connector`."""
        if since == until or not since.startswith(OF_ICEBERG):
            return since == until
        try:
            table, last = self._load(until)
            line, (first, *_) = _line(table, last), _parts(since)
            if first != last and first not in line:
                return False
            later = [] if first == last else line[: line.index(first)]
            if not all(_is_quiet(table.snapshot_by_id(n)) for n in later):
                return False
            found = self.changes(since, until, None, [c.name for c in self.columns])
        except StorageError:
            return False
        return found.again is None and found.load is None

    def _entries(self, table: Any, snapshot: Any) -> Iterator[tuple[Any, list[Any]]]:
        """Yield the manifests of a snapshot with what is in them.

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
            raise GoneError(f"{path} of the Iceberg table at {self.location} is gone") from error
        except _BROKEN as error:
            failed = f"{path} of the Iceberg table at {self.location} cannot be read"
            raise unreachable(self.location, error, failed) from error

    def _appended(self, table: Any, snapshot: Any) -> list[Any]:
        """Return the data files that a snapshot added."""
        from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

        found: list[Any] = []
        for manifest, entries in self._entries(table, snapshot):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in entries:
                if entry.status == ManifestEntryStatus.EXISTING:
                    continue
                is_row = entry.data_file.content == DataFileContent.DATA
                if entry.status != ManifestEntryStatus.ADDED or not is_row:
                    raise self._unreadable("an append that deletes")
                self._check_file(entry.data_file)
                found.append(entry.data_file)
        return found


def _cost(files: Sequence[Any], of: int) -> Pruned:
    """Return what reading some data files costs, of so many."""
    rows, sizes = (f.record_count for f in files), (f.file_size_in_bytes for f in files)
    return Pruned(len(files), of, sum(rows), sum(sizes))


def _parts(version: str) -> tuple[int, str, int | None]:
    """Return the snapshot of a version, the table's id, and the schema if it is not its own.

    Examples
    --------
    >>> _parts("iceberg:5:1f-2e"), _parts("iceberg:5:1f-2e:3")
    ((5, '1f-2e', None), (5, '1f-2e', 3))
    """
    number, of_table, *schema = version.removeprefix(OF_ICEBERG).split(":")
    return int(number), of_table, int(schema[0]) if schema else None


def _uuid(table: Any) -> str:
    return str(table.metadata.table_uuid)


def _is_quiet(snapshot: Any) -> bool:
    """Whether a snapshot says that it writes files anew, or adds none."""
    summary = snapshot.summary
    if summary is None:
        return False
    no_files = summary.additional_properties.get("added-data-files", "0") == "0"
    operation = summary.operation.value
    return operation == "replace" or (operation == "append" and no_files)


def _head(table: Any) -> int:
    current = table.metadata.current_snapshot_id
    return _EMPTY if current is None else int(current)


def _line(table: Any, number: int) -> list[int]:
    """Return the snapshots from which one follows, itself first, as far as they are there."""
    line: list[int] = []
    snapshot = table.snapshot_by_id(number)
    while snapshot is not None:
        line.append(int(snapshot.snapshot_id))
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return line


def _by_id(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field named by its id: Spark mixes up what files call otherwise."""
    name = f"_persist_{field['metadata'][_FIELD_ID]}"
    return {**field, "name": name, "type": _inside_by_id(field["type"])}


def _inside_by_id(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": [_by_id(f) for f in kind["fields"]]}
    inside = ("elementType", "keyType", "valueType")
    return {k: _inside_by_id(v) if k in inside else v for k, v in kind.items()}


def _stored(field: Mapping[str, Any]) -> str:
    """Return a column of files under its name, in SQL."""
    found, kind = _by_id(field), type_of_json(field["type"])
    column = unpruned(quote(found["name"]), kind)
    if found["type"] != field["type"]:
        column = f"CAST({column} AS {kind})"
    return f"{column} AS {quote(field['name'])}"


def _has_ids(found: Any) -> bool:
    """Whether the columns of a Parquet file have ids."""
    import pyarrow.parquet as pq

    with found.open() as stream:
        schema = pq.read_schema(stream)
    return all(b"PARQUET:field_id" in (field.metadata or {}) for field in schema)


def _is_absolute(location: str) -> bool:
    return bool(scheme_of(location)) or location.startswith("/")


def _placed(path: str, moved: str, root: str) -> str:
    """Return where a file is: below `root`, where metadata counts from `moved`."""
    return root + path.removeprefix(moved) if moved and path.startswith(f"{moved}/") else path


def _value(kind: str, written: bytes | None) -> Any:
    """Return a bound as `pruning` compares it; None where it is not known."""
    if written is None:
        return None
    from pyiceberg import types
    from pyiceberg.conversions import from_bytes

    primitives: Mapping[str, Any] = {
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "float": types.FloatType(),
        "double": types.DoubleType(),
        "date": types.DateType(),
        "timestamp": types.TimestamptzType(),
        "string": types.StringType(),
    }
    primitive = primitives.get(kind)
    if primitive is None or (kind == "bigint" and len(written) != 8):
        return None  # a column that became wider has bounds of what it was
    try:
        return _plain(kind, from_bytes(primitive, written))
    except (ValueError, struct.error):
        return None


def _plain(kind: str, value: Any) -> Any:
    """Return a value of metadata as Python has it; None where Python has no such year."""
    try:
        if kind == "date" and isinstance(value, int):
            return _DAY_ONE + timedelta(days=value)
        if kind.startswith("timestamp") and isinstance(value, int):
            zone = UTC if kind == "timestamp" else None
            return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
    except OverflowError:
        return None
    return value
