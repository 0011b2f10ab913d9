"""Values of time columns: typed, in their order, as text and as SQL. Pure.

A watermark is kept as text in the ledger and compared as what its column's type makes of it: dates
and numbers as such, timestamps as instants in UTC whatever the session's time zone, timestamps
without a zone as they are written, texts by their code points.

Examples
--------
>>> value = from_spark("1735689600000000", "timestamp")
>>> to_text(value)
'2025-01-01T00:00:00Z'
>>> literal(value, "timestamp")
'timestamp_micros(1735689600000000)'
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from persist_assets.dialect import quote

Value = date | datetime | int | Decimal | str

TIMES = ("date", "timestamp", "timestamp_ntz")
"""The types of which a duration makes sense."""
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
ZONE_S = 86_400
"""More than any time zone's clock is ever put back, in seconds."""


def is_ordered(kind: str | None) -> bool:
    """Whether values of a Spark type have an order that we know as Spark does."""
    return kind in ("date", "timestamp", "timestamp_ntz", "string", *_INTEGERS) or (
        kind is not None and kind.startswith("decimal(")
    )


def spelled(sql: str, kind: str) -> str:
    """Return SQL for the text of an expression that `from_spark` reads."""
    value = f"unix_micros({sql})" if kind == "timestamp" else sql
    return f"CAST({value} AS STRING)"


def from_spark(text: str, kind: str) -> Value | None:
    """Return the value that Spark spells so (`spelled`); None where Python has no such value."""
    try:
        if kind == "date":
            return date.fromisoformat(text)
        if kind == "timestamp":
            return _EPOCH + int(text) * _MICROSECOND
        if kind == "timestamp_ntz":
            return datetime.fromisoformat(text)
        if kind in _INTEGERS:
            return int(text)
        if kind.startswith("decimal("):
            return Decimal(text)
    except (ValueError, OverflowError, InvalidOperation):
        return None
    return text if kind == "string" else None


def from_text(text: str, kind: str) -> Value | None:
    """Return the value of a text as the ledger has it (`to_text`)."""
    if kind != "timestamp":
        return from_spark(text, kind)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    return value.astimezone(UTC) if value.tzinfo else None


def to_text(value: Value) -> str:
    """Return a value as text: times in ISO 8601, instants in UTC."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def literal(value: Value, kind: str) -> str:
    """Return a value as SQL that means it in any session."""
    if kind == "timestamp":
        assert isinstance(value, datetime)
        return f"timestamp_micros({(value - _EPOCH) // _MICROSECOND})"
    if kind == "timestamp_ntz":
        assert isinstance(value, datetime)
        return f"TIMESTAMP_NTZ'{value.isoformat(sep=' ')}'"
    if kind == "date":
        return f"DATE'{to_text(value)}'"
    if kind == "string":
        escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return f"CAST('{value}' AS {kind})"


def from_statistics(value: Any, kind: str) -> Value | None:
    """Return the value of a file's statistics; None where it has none that is certain."""
    if kind == "timestamp" and isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    if kind == "timestamp_ntz" and isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if kind == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return value
    if kind in _INTEGERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def within(
    column: str, kind: str, spans: tuple[tuple[Value, Value | None], ...], nulls: bool
) -> str:
    """Return the SQL condition that a column's value is in one of several spans.

    Their ends count, and may be open above. Never NULL itself.

    Parameters
    ----------
    nulls
        Whether NULL counts as in.
    """
    name = quote(column)
    tests = [f"{name} IS NULL"] if nulls else []
    for low, high in spans:
        above = "" if high is None else f" AND {name} <= {literal(high, kind)}"
        tests.append(f"{name} IS NOT NULL AND {name} >= {literal(low, kind)}{above}")
    return "(" + (" OR ".join(f"({test})" for test in tests) or "false") + ")"
