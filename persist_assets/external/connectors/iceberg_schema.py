"""The columns of an Iceberg table as Spark types, and their values in its metadata.

Columns are found in files by their ids, so they may be renamed and moved.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote, unpruned
from persist_assets.core.errors import StorageError
from persist_assets.storage.types import type_of_json

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELD_ID = "parquet.field.id"

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
"""The Iceberg types that Spark reads with the same values, with their names in Spark's JSON."""

_DAY_ONE = date(1970, 1, 1)


def unsupported(label: str, feature: str) -> StorageError:
    """Return the error for a table with a feature that would make its rows wrong."""
    return StorageError(
        f"{label} uses {feature}: not supported",
        hint="its rows would be wrong: write it without",
    )


def spark_field(field: Any, label: str) -> dict[str, Any]:
    """Return a column in Spark's JSON with its id.

    Parameters
    ----------
    field
        The field of pyiceberg.
    label
        The name of the table in messages.

    Raises
    ------
    StorageError
        The column cannot be read correctly.
    """
    if getattr(field, "initial_default", None) is not None:
        raise unsupported(label, f"a default for rows before column `{field.name}`")
    return {
        "name": field.name,
        "type": _spark_type(field.field_type, field.name, label),
        "nullable": True,
        "metadata": {FIELD_ID: field.field_id},
    }


def _spark_type(kind: Any, name: str, label: str) -> Any:
    from pyiceberg import types

    match kind:
        case types.StructType():
            return {"type": "struct", "fields": [spark_field(f, label) for f in kind.fields]}
        case types.ListType():
            inner = _spark_type(kind.element_type, name, label)
            return {"type": "array", "elementType": inner, "containsNull": True}
        case types.MapType():
            return {
                "type": "map",
                "keyType": _spark_type(kind.key_type, name, label),
                "valueType": _spark_type(kind.value_type, name, label),
                "valueContainsNull": True,
            }
        case types.DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case _:
            if str(kind) not in _TYPES:
                raise unsupported(label, f"the type {kind} of column `{name}`")
            return _TYPES[str(kind)]


# ---------------------------------------------------------------------------------- names by id


def by_id(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field named by its id: Spark confuses columns whose names in files differ."""
    name = f"_persist_{field['metadata'][FIELD_ID]}"
    return {**field, "name": name, "type": _nested_by_id(field["type"])}


def _nested_by_id(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": [by_id(f) for f in kind["fields"]]}
    nested = ("elementType", "keyType", "valueType")
    return {k: _nested_by_id(v) if k in nested else v for k, v in kind.items()}


def select_text(field: Mapping[str, Any]) -> str:
    """Return the SQL that selects a column of files under its name."""
    renamed, kind = by_id(field), type_of_json(field["type"])
    column = unpruned(quote(renamed["name"]), kind)
    if renamed["type"] != field["type"]:
        column = f"CAST({column} AS {kind})"
    return f"{column} AS {quote(field['name'])}"


# ------------------------------------------------------------------------------ values in metadata


def bound(kind: str, encoded: bytes | None) -> Any:
    """Return a bound of a column as `pruning` compares it; None if it is unknown."""
    if encoded is None:
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
    if primitive is None or (kind == "bigint" and len(encoded) != 8):
        return None  # the bounds of a widened column have its former type
    try:
        return python_value(kind, from_bytes(primitive, encoded))
    except (ValueError, struct.error):
        return None


def python_value(kind: str, value: Any) -> Any:
    """Return a value of metadata as a Python value; None if Python has no such year.

    Examples
    --------
    >>> python_value("date", 19723), python_value("int", 7)
    (datetime.date(2024, 1, 1), 7)
    """
    try:
        if kind == "date" and isinstance(value, int):
            return _DAY_ONE + timedelta(days=value)
        if kind.startswith("timestamp") and isinstance(value, int):
            zone = UTC if kind == "timestamp" else None
            return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
    except OverflowError:
        return None
    return value
