"""Raw tables: which columns they have, and which version of their data there is now.

No Spark and no JVM. The invariant: a `Pin` names the very files that are read, and two pins of
one raw table have the same version if and only if they hold the same data.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from persist_assets.errors import StorageError
from persist_assets.model import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from persist_assets.model import RawTable

FILE_FORMATS = ("parquet", "orc", "csv", "json", "text")
"""Formats of plain files, listed and pinned by name, size and time of change."""

SECRETS = re.compile(r"password|token|secret|access_?key|account_?key|user|credential", re.I)
"""Options whose names match say who reads, not what is read: they enter no digest and no log."""

_READABLE_FEATURES = frozenset(("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"))
"""Features of Delta tables under which their Parquet files alone are their rows."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a raw table's data.

    Attributes
    ----------
    version
        None when the data cannot be versioned (``jdbc``): every build may see other rows.
    files
        What to read, or None when it is not files.
    base
        The directory whose sub-directories are partition columns, if any.
    """

    version: str | None
    files: tuple[str, ...] | None = None
    base: str | None = None


def public_options(raw: RawTable) -> tuple[tuple[str, str], ...]:
    """Return the options of a raw table that say what is read, without those that are secret."""
    return tuple((k, v) for k, v in raw.options if not SECRETS.search(k))


def pin_raw(raw: RawTable, location: str) -> Pin:
    """Return the present version of a raw table.

    Parameters
    ----------
    location
        Absolute path or URI.

    Raises
    ------
    StorageError
        There is no data, or it cannot be read correctly.
    """
    if raw.format == "delta":
        return _pin_delta(location)
    if raw.format not in FILE_FORMATS:
        return Pin(None)
    found = sorted(_listing(location))
    if not found:
        raise StorageError(
            f"there is no data at {location}", hint="check the LOCATION of the table"
        )
    base = location if not _is_file(location) else os.path.dirname(location)
    told = [(name.removeprefix(base), size, changed) for name, size, changed in found]
    told_digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return Pin(f"files:{told_digest[:32]}", tuple(name for name, _, _ in found), base)


def find_columns(raw: RawTable, location: str) -> tuple[Column, ...]:
    """Return the columns of a raw table that declares none, from the data's own metadata.

    Raises
    ------
    StorageError
        There is no data, or its format does not tell.
    """
    if raw.format == "delta":
        schema = json.loads(_open_delta(location).schema().to_json())
        return columns_of_struct(schema)
    if raw.format != "parquet":
        raise StorageError(
            f"the columns of {raw.format} data have to be declared",
            hint="CREATE TABLE name (column type, …) USING …",
        )
    pin = pin_raw(raw, location)
    assert pin.files
    return (*_parquet_columns(pin.files[0]), *_partition_columns(pin.files, pin.base or ""))


def missing_columns(pin: Pin, raw: RawTable, columns: Sequence[Column]) -> list[str]:
    """Return the declared columns that the data does not have; Spark would read NULLs."""
    if raw.format not in ("parquet", "delta") or not pin.files:
        return []
    there = {c.name.lower() for c in _parquet_columns(pin.files[0])}
    there |= {c.name.lower() for c in _partition_columns(pin.files, pin.base or "")}
    return [c.name for c in columns if c.name.lower() not in there]


# ---------------------------------------------------------------------------------------- listing


def _listing(location: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, bytes and time of change (ns) of every data file at or below a location."""
    if urlsplit(location).scheme in ("", "file"):
        yield from _local_listing(location)
        return
    from pyarrow import fs

    system, path = _filesystem(location)
    info = system.get_file_info(path)
    infos = [info] if info.is_file else system.get_file_info(fs.FileSelector(path, True, True))
    prefix = (
        location.removesuffix(path)
        if location.endswith(path)
        else f"{urlsplit(location).scheme}://"
    )
    for entry in infos:
        below = entry.path.removeprefix(path)
        if entry.is_file and not any(_hidden(part) for part in below.split("/") if part):
            yield f"{prefix}{entry.path}", int(entry.size or 0), int(entry.mtime_ns or 0)


def _local_listing(location: str) -> Iterator[tuple[str, int, int]]:
    try:
        stat = os.stat(location)
        if not os.path.isdir(location):
            yield location, stat.st_size, stat.st_mtime_ns
            return
        with os.scandir(location) as entries:
            for entry in entries:
                if _hidden(entry.name):
                    continue
                if entry.is_dir():
                    yield from _local_listing(entry.path)
                else:
                    stat = entry.stat()
                    yield entry.path, stat.st_size, stat.st_mtime_ns
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{location} cannot be read: {error.strerror}") from error


def _hidden(name: str) -> bool:
    """Whether Spark ignores a file or directory of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_file(location: str) -> bool:
    if urlsplit(location).scheme in ("", "file"):
        return os.path.isfile(location)
    system, path = _filesystem(location)
    return bool(system.get_file_info(path).is_file)


def _filesystem(uri: str) -> tuple[Any, str]:
    from pyarrow import ArrowException, fs

    try:
        return fs.FileSystem.from_uri(uri)
    except (ArrowException, OSError) as error:
        raise StorageError(f"{uri} cannot be reached: {error}") from error


# ------------------------------------------------------------------------------------------ delta


def _open_delta(location: str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(location)
    except TableNotFoundError as error:
        raise StorageError(
            f"there is no Delta table at {location}", hint="check the LOCATION of the table"
        ) from error
    except (DeltaError, OSError) as error:
        raise StorageError(f"the Delta table at {location} cannot be opened: {error}") from error


def _pin_delta(location: str) -> Pin:
    table = _open_delta(location)
    metadata = table.metadata()
    protocol = table.protocol()
    features: list[str] = list(protocol.reader_features or ())
    unknown = set(features) - _READABLE_FEATURES
    if metadata.configuration.get("delta.columnMapping.mode", "none") == "none":
        unknown.discard("columnMapping")
    else:
        unknown.add("columnMapping")
    if "deletionVectors" in unknown and not _has_deletion_vectors(table):
        unknown.discard("deletionVectors")
    if unknown:
        raise StorageError(
            f"the Delta table at {location} uses {', '.join(sorted(unknown))}: not supported",
            hint="its Parquet files alone would be wrong rows; write it without this feature",
        )
    files = tuple(sorted(_plain_path(uri) for uri in table.file_uris()))
    if metadata.partition_columns:
        _refuse_unusual_partitions(table, location)
    return Pin(f"delta:{table.version()}:{metadata.id}", files, location)


def _has_deletion_vectors(table: Any) -> bool:
    import pyarrow as pa

    return pa.table(table.deletion_vectors()).num_rows > 0


def _plain_path(uri: str) -> str:
    return unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


def _refuse_unusual_partitions(table: Any, location: str) -> None:
    """Refuse a table whose directories do not spell its partition values, as Spark reads them."""
    import pyarrow as pa

    for action in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        spelled = dict(p.split("=", 1) for p in action["path"].split("/")[:-1] if "=" in p)
        values = action.get("partition") or action.get("partition_values") or {}
        for name, value in values.items():
            written = "__HIVE_DEFAULT_PARTITION__" if value is None else str(value)
            written = written.lower() if isinstance(value, bool) else written
            if unquote(unquote(spelled.get(name, ""))) != written:
                raise StorageError(
                    f"directories of the Delta table at {location} do not spell {name}'s values",
                    hint="only the usual layout, name=value, can be read",
                )


# ------------------------------------------------------------------------------------------ types


def columns_of_struct(struct: dict[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a struct type in Spark's and Delta's JSON form."""
    return tuple(
        Column(f["name"], type_of_json(f["type"]), (f.get("metadata") or {}).get("comment"))
        for f in struct["fields"]
    )


_JSON_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def type_of_json(kind: Any) -> str:
    """Return Spark's name of a type in Spark's and Delta's JSON form.

    Examples
    --------
    >>> type_of_json({"type": "array", "elementType": "long", "containsNull": True})
    'array<bigint>'
    """
    if isinstance(kind, str):
        return _JSON_NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{type_of_json(kind['elementType'])}>"
        case "map":
            return f"map<{type_of_json(kind['keyType'])},{type_of_json(kind['valueType'])}>"
        case _:
            fields = (f"{f['name']}:{type_of_json(f['type'])}" for f in kind["fields"])
            return f"struct<{','.join(fields)}>"


def _parquet_columns(path: str) -> tuple[Column, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if urlsplit(path).scheme:
            system, inner = _filesystem(path)
            schema = pq.read_schema(inner, filesystem=system)
        else:
            schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"{path} is not Parquet: {error}") from error
    by_spark = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    if by_spark:
        return columns_of_struct(json.loads(by_spark))
    return tuple(Column(f.name, _type_of_arrow(f.type, f"{path}: column {f.name}")) for f in schema)


def _type_of_arrow(kind: Any, what: str) -> str:
    from pyarrow import types

    simple = {
        types.is_boolean: "boolean",
        types.is_int8: "tinyint",
        types.is_int16: "smallint",
        types.is_int32: "int",
        types.is_int64: "bigint",
        types.is_uint8: "smallint",
        types.is_uint16: "int",
        types.is_uint32: "bigint",
        types.is_uint64: "decimal(20,0)",
        types.is_float32: "float",
        types.is_float64: "double",
        types.is_string: "string",
        types.is_large_string: "string",
        types.is_string_view: "string",
        types.is_binary: "binary",
        types.is_large_binary: "binary",
        types.is_fixed_size_binary: "binary",
        types.is_date32: "date",
    }
    for test, name in simple.items():
        if test(kind):
            return name
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_timestamp(kind) and kind.unit != "ns":
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_dictionary(kind):
        return _type_of_arrow(kind.value_type, what)
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{_type_of_arrow(kind.value_type, what)}>"
    if types.is_map(kind):
        return f"map<{_type_of_arrow(kind.key_type, what)},{_type_of_arrow(kind.item_type, what)}>"
    if types.is_struct(kind):
        fields = (f"{f.name}:{_type_of_arrow(f.type, what)}" for f in kind)
        return f"struct<{','.join(fields)}>"
    raise StorageError(f"{what} has the type {kind}, which Spark does not read")


def _partition_columns(files: Sequence[str], base: str) -> tuple[Column, ...]:
    """Return the columns that directories named ``name=value`` stand for, typed as Spark does."""
    values: dict[str, set[str]] = {}
    for path in files:
        for part in path.removeprefix(base).split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals:
                values.setdefault(name, set()).add(unquote(value))
    return tuple(Column(name, _partition_type(seen)) for name, seen in values.items())


def _partition_type(values: set[str]) -> str:
    known = values - {"__HIVE_DEFAULT_PARTITION__"}
    if known and all(re.fullmatch(r"-?\d{1,18}", v) for v in known):
        return "int" if all(abs(int(v)) < 2**31 for v in known) else "bigint"
    if known and all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", v) for v in known):
        return "date"
    return "string"
