"""The columns of a Delta table: their types, and their names in files and statistics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import quote, unpruned
from persist_assets.core.errors import StorageError
from persist_assets.storage.types import type_of_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MAPPING = "delta.columnMapping.mode"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


@dataclass(frozen=True, slots=True)
class DeltaField:
    """A column of the table.

    Attributes
    ----------
    physical
        Its name in files and their statistics.
    json
        Its type in Delta's JSON form.
    """

    name: str
    type: str
    physical: str
    json: Any


def fields_of(table: Any) -> list[DeltaField]:
    """Return the columns of a `DeltaTable`."""
    return parse_fields(table.schema().to_json(), table.metadata().configuration)


def parse_fields(schema: str, configuration: Mapping[str, str]) -> list[DeltaField]:
    """Return the columns of a schema in the JSON form of the log."""

    def unmapped(node: dict[str, Any]) -> dict[str, Any]:
        node.pop(_PHYSICAL_NAME, None)  # a leftover: readers ignore it without the mapping
        return node

    is_mapped = configuration.get(MAPPING, "none") != "none"
    struct = json.loads(schema, object_hook=None if is_mapped else unmapped)
    return [
        DeltaField(f["name"], type_of_json(f["type"]), _physical_name(f), f["type"])
        for f in struct["fields"]
    ]


def field_set(fields: Iterable[DeltaField]) -> frozenset[tuple[str, str, str]]:
    """Return columns in a form that can be compared between schemas."""
    return frozenset((f.name, f.physical, f.type) for f in fields)


def timestamp_keys(table: Any) -> list[DeltaField]:
    """Return the partition columns of type TIMESTAMP."""
    partition_columns = table.metadata().partition_columns
    return [f for f in fields_of(table) if f.name in partition_columns and f.type == "timestamp"]


def mentioned_fields(conditions: Sequence[str], fields: Sequence[DeltaField]) -> list[DeltaField]:
    """Return the columns that conditions may mention; their text has no other names of columns."""
    text = " ".join(conditions).lower()
    return [f for f in fields if f.name.lower().replace("`", "``") in text]


def select_text(field: DeltaField) -> str:
    """Return the SQL that selects a column of files under its logical name and type."""
    column = unpruned(quote(field.physical), field.type)
    if field.physical != field.name or type_of_json(_physical_type(field.json)) != field.type:
        column = f"CAST({column} AS {field.type})"
    return f"{column} AS {quote(field.name)}"


def physical_field(field: DeltaField) -> dict[str, Any]:
    """Return a column in JSON with the names that files use, nested fields included."""
    return json_field(field.physical, _physical_type(field.json))


def json_field(name: str, kind: Any) -> dict[str, Any]:
    """Return a nullable field of a schema in JSON."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _physical_name(field: Mapping[str, Any]) -> str:
    return (field.get("metadata") or {}).get(_PHYSICAL_NAME, field["name"])


def _physical_type(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            nested = kind["fields"]
            fields = [json_field(_physical_name(f), _physical_type(f["type"])) for f in nested]
            return {"type": "struct", "fields": fields}
        case "array":
            inner = _physical_type(kind["elementType"])
            return {"type": "array", "elementType": inner, "containsNull": True}
        case _:
            key, value = _physical_type(kind["keyType"]), _physical_type(kind["valueType"])
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def partition_text(value: Any) -> str | None:
    """Return a partition value as Delta writes it.

    Raises
    ------
    StorageError
        It is binary.
    """
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case datetime():  # of type TIMESTAMP_NTZ, so it has no zone
            return value.isoformat(sep=" ")
        case bytes():
            raise StorageError("partitions by binary columns are not supported")
        case _:
            return str(value)
