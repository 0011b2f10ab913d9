"""Spark's names for column types, from Spark's and Delta's JSON and from Arrow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from persist_assets.core.dialect import char_size
from persist_assets.core.errors import BuildError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.spark_types import field_name

if TYPE_CHECKING:
    from collections.abc import Mapping


CHAR_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a column's metadata by which Spark and Delta mark strings of type CHAR(n)."""


def columns_of_struct(struct: dict[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a struct type in Spark's and Delta's JSON form."""
    return tuple(
        Column(f["name"], _type_of_field(f), (f.get("metadata") or {}).get("comment"))
        for f in struct["fields"]
    )


def _type_of_field(field: Mapping[str, Any]) -> str:
    kind: str | None = (field.get("metadata") or {}).get(CHAR_TYPE)
    is_char = kind is not None and field["type"] == "string" and char_size(kind) is not None
    return kind if kind is not None and is_char else type_of_json(field["type"])


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
            fields = (f"{field_name(f['name'])}:{type_of_json(f['type'])}" for f in kind["fields"])
            return f"struct<{','.join(fields)}>"


def type_of_arrow(kind: Any, subject: str) -> str:
    """Return Spark's name of an Arrow type.

    Raises
    ------
    StorageError
        Spark cannot read it; `subject` names what has the type.
    """
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
        return type_of_arrow(kind.value_type, subject)
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{type_of_arrow(kind.value_type, subject)}>"
    if types.is_map(kind):
        return (
            f"map<{type_of_arrow(kind.key_type, subject)},{type_of_arrow(kind.item_type, subject)}>"
        )
    if types.is_struct(kind):
        fields = (f"{field_name(f.name)}:{type_of_arrow(f.type, subject)}" for f in kind)
        return f"struct<{','.join(fields)}>"
    raise StorageError(f"{subject} has the type {kind}, which Spark cannot read")


_REFUSED = ("void", "variant", "time", "interval", "calendarinterval", "geometry", "geography")
_COLLATIONS = "__COLLATIONS"
"""The key of string collations in a column's metadata."""


def delta_schema(struct: Mapping[str, Any]) -> str:
    """Return Delta's schema for a Spark schema, both JSON: everything nullable, no metadata.

    Strings of type CHAR(n) keep their type.

    Raises
    ------
    BuildError
        A column has a type that Delta tables do not support.
    """
    for field in struct["fields"]:
        refused = _find_refused(field["type"])
        if _COLLATIONS in (field.get("metadata") or {}):
            refused = "string with a collation"
        if refused:
            hint = "cast it" if refused != "void" else "cast NULL to a type: CAST(NULL AS …)"
            message = f"column `{field['name']}` has the type {refused}, which tables cannot store"
            raise BuildError(message, hint=hint)
    schema = _nullable(struct)
    for field, plain in zip(struct["fields"], schema["fields"], strict=True):
        char_type = (field.get("metadata") or {}).get(CHAR_TYPE)
        if field["type"] == "string" and char_size(char_type):
            plain["metadata"] = {CHAR_TYPE: char_type}
    return json.dumps(schema)


def _find_refused(kind: Any) -> str | None:
    if isinstance(kind, str):
        refused = kind.split("(")[0].split(" ")[0] in _REFUSED or " collate " in kind.lower()
        return kind if refused else None
    inner = [kind.get("elementType"), kind.get("keyType"), kind.get("valueType")]
    inner += [f["type"] for f in kind.get("fields", ())]
    return next((r for k in inner if k is not None and (r := _find_refused(k))), None)


def _nullable(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = [
                {"name": f["name"], "type": _nullable(f["type"]), "nullable": True, "metadata": {}}
                for f in kind["fields"]
            ]
            return {"type": "struct", "fields": fields}
        case "array":
            return {
                "type": "array",
                "elementType": _nullable(kind["elementType"]),
                "containsNull": True,
            }
        case _:
            return {
                "type": "map",
                "keyType": _nullable(kind["keyType"]),
                "valueType": _nullable(kind["valueType"]),
                "valueContainsNull": True,
            }
