"""Columns of PostgreSQL tables: their types in Spark, and the texts in which they are fetched.

The invariant: a value arrives as what it is, or reading fails. Types without an equal in Spark are
refused; values without one (infinite dates, NaN in `numeric`) fail where their text is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import ColumnsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: Mapping[str, str] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "name": "string",
    "uuid": "string",
    "json": "string",
    "jsonb": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}
"""The types of PostgreSQL's catalog that have an equal in Spark, apart from numeric and enums."""

_MOST_DIGITS = 38
IN_VIEW = "cast it in a view of the database, and name the view in `table`"

CURSORS = ("smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz")
"""The Spark types of columns that rows can be followed by."""


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    """A column of a table in PostgreSQL.

    Attributes
    ----------
    kind
        Its type in Spark; None: it has none.
    internal
        The name of its type in PostgreSQL's catalog; domains have that of what they are based on.
    shown
        The type as PostgreSQL writes it.
    is_plain
        Whether it is no text, or a text whose equal values are those with the same bytes, and which
        can be compared with any text: no collation and no list of values says otherwise.
    """

    name: str
    kind: str | None
    internal: str
    shown: str
    is_plain: bool = True


COLUMNS = """
WITH RECURSIVE types AS (
    SELECT oid AS start, oid, typtype, typbasetype, typtypmod, typname, typnamespace FROM pg_type
    WHERE oid IN (SELECT atttypid FROM pg_attribute WHERE attrelid = %(oid)s AND attnum > 0)
    UNION ALL
    SELECT d.start, t.oid, t.typtype, t.typbasetype,
           CASE WHEN d.typtypmod >= 0 THEN d.typtypmod ELSE t.typtypmod END,
           t.typname, t.typnamespace
    FROM types d JOIN pg_type t ON t.oid = d.typbasetype WHERE d.typtype = 'd'
)
SELECT a.attname, t.typname, t.typtype = 'e',
       t.typnamespace = 'pg_catalog'::regnamespace,
       CASE WHEN a.atttypmod >= 0 THEN a.atttypmod ELSE t.typtypmod END,
       format_type(a.atttypid, a.atttypmod), coalesce(c.collisdeterministic, true)
FROM pg_attribute a JOIN types t ON t.start = a.atttypid AND t.typtype <> 'd'
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
"""The query for the columns of a table, with the types that domains are based on."""

NUMBERS = """
SELECT attname, attnum, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %(oid)s AND attnum > 0 AND NOT attisdropped
"""
"""The query for the numbers of columns: one that is dropped and added again has another one."""

STORAGE = """
WITH RECURSIVE beneath AS (
    SELECT %(oid)s::oid AS oid
    UNION
    SELECT d.refobjid FROM beneath b
    JOIN pg_class c ON c.oid = b.oid AND c.relkind = 'v'
    JOIN pg_rewrite r ON r.ev_class = b.oid
    JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        AND d.refclassid = 'pg_class'::regclass
)
SELECT c.oid, c.relfilenode, CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END
FROM beneath JOIN pg_class c USING (oid) ORDER BY c.oid
"""
"""The query for the storage of a table, or of all tables that a view reads, and for their views."""


def column_of(row: tuple[Any, ...], declared: Mapping[str, str | None]) -> PostgresColumn:
    """Return a column from a row of `COLUMNS`.

    Parameters
    ----------
    declared
        The declared types by lower-case name: a `numeric` without a precision has the declared one.

    Examples
    --------
    >>> column_of(("n", "numeric", False, True, (10 << 16 | 2) + 4, "numeric(10,2)", True), {}).kind
    'decimal(10,2)'
    >>> column_of(("n", "mood", True, False, -1, "mood", True), {}).is_plain
    False
    >>> column_of(("n", "interval", False, True, -1, "interval", True), {}).kind is None
    True
    """
    name, internal, is_enum, is_builtin, modifier, shown, is_plain = row
    if is_enum:
        return PostgresColumn(name, "string", "enum", shown, is_plain=False)
    kind = _KINDS.get(internal) if is_builtin else None
    if is_builtin and internal == "numeric":
        kind = _decimal(modifier, declared.get(name.lower()))
    is_text = internal in ("text", "varchar") and is_plain
    return PostgresColumn(name, kind, internal, shown, is_plain=is_text or kind != "string")


def _decimal(modifier: int, declared: str | None) -> str | None:
    if modifier < 0:
        is_decimal = (declared or "").lower().startswith("decimal(")
        return (declared or "").lower().replace(" ", "") if is_decimal else None
    precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
    if precision > _MOST_DIGITS or scale > precision:  # a negative scale is above 1,000 here
        return None
    return f"decimal({precision},{scale})"


def check_types(columns: Mapping[str, PostgresColumn], names: list[str], table: str) -> None:
    """Raise if declared columns have types that Spark lacks.

    Parameters
    ----------
    columns
        The columns of the table, by lower-case name.
    names
        The declared columns.
    """
    unfit = [c for n in names if (c := columns.get(n.lower())) is not None and c.kind is None]
    if not unfit:
        return
    named = ", ".join(f"`{c.name}` is {c.shown}" for c in unfit)
    only_numeric = all(c.shown == "numeric" for c in unfit)
    hint = "declare it as DECIMAL(p, s), which all its values must fit" if only_numeric else IN_VIEW
    raise ColumnsError(f"columns of {table} have types that Spark lacks: {named}", hint=hint)


def fetched_text(column: PostgresColumn, name: str) -> str:
    """Return the SQL that fetches a column; `name` is its quoted name."""
    match column.internal:
        case "timestamptz":
            return f"{name} AT TIME ZONE 'UTC'"
        case "bytea":
            return f"encode({name}, 'hex')"
        case "enum" | "uuid" | "json" | "jsonb":
            return f"{name}::text"
        case _:
            return name


def spark_text(column: PostgresColumn, name: str) -> str:
    """Return the SQL that makes a value of a column from what was fetched as `name`."""
    return f"unhex({name})" if column.internal == "bytea" else name


def arrow_type(column: PostgresColumn) -> Any:
    """Return the Arrow type as which a column is fetched."""
    import pyarrow as pa

    kind = column.kind or ""
    if kind.startswith("decimal("):
        precision, scale = kind[len("decimal(") : -1].split(",")
        return pa.decimal128(int(precision), int(scale))
    return {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp_ntz": pa.timestamp("us"),
        "timestamp": pa.timestamp("us"),
    }.get(kind, pa.string())
