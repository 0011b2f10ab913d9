"""Raw tables: which columns they have, and which version of their data there is now.

No Spark and no JVM. The invariant: a `Pin` names the very files that are read, and two pins of
one raw table have the same version only if they hold the same data.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.errors import StorageError
from persist_assets.model import FILE_FORMATS, Column
from persist_assets.storage.files import list_files, reached
from persist_assets.storage.types import columns_of_struct, type_of_arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.model import RawTable

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
    found = [f for f in list_files(location) if not _is_hidden(f.location.removeprefix(location))]
    if not found:
        raise StorageError(
            f"there is no data at {location}", hint="check the LOCATION of the table"
        )
    single = found[0].location == location
    base = location.rpartition("/")[0] if single else location
    told = [(f.location.removeprefix(base), f.bytes, f.changed_ns, f.inode) for f in found]
    told_digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return Pin(f"files:{told_digest[:32]}", tuple(f.location for f in found), base)


def _is_hidden(below: str) -> bool:
    """Whether Spark ignores a file at this path below the table's location."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in below.split("/")
    )


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


# ---------------------------------------------------------------------------------------- columns


def _parquet_columns(path: str) -> tuple[Column, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reached(path) as (system, inner):
        try:
            schema = pq.read_schema(inner, filesystem=system)
        except pa.ArrowInvalid as error:
            raise StorageError(f"{path} is not Parquet: {error}") from error
    by_spark = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    if by_spark:
        return columns_of_struct(json.loads(by_spark))
    return tuple(Column(f.name, type_of_arrow(f.type, f"{path}: column {f.name}")) for f in schema)


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
