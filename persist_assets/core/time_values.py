"""Values of time columns: typed, in their order, as text and as SQL. Pure.

A watermark is stored as text in the ledger and compared by its column's type: dates and numbers as
such, timestamps as instants in UTC regardless of the session's time zone, timestamps without a zone
as written, strings by code points.

Examples
--------
>>> value = from_spark("1735689600000000", "timestamp")
>>> to_text(value)
'2025-01-01T00:00:00Z'
>>> literal(value, "timestamp")
'timestamp_micros(1735689600000000)'
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from persist_assets.core.dialect import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from persist_assets.core.model.columns import MonotoneStep

Value = date | datetime | int | Decimal | str
Span = tuple[Value, Value]
"""The least and the greatest value."""

_UTC = ("UTC", "UCT", "Zulu", "Universal", "GMT")
UTC_NAMES = frozenset((*_UTC, *(f"Etc/{name}" for name in _UTC)))
"""The names of time zones that are always UTC."""
TIMES = ("date", "timestamp", "timestamp_ntz")
"""The types that support durations."""
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
EXACT = (*TIMES, *_INTEGERS)
"""The types for which statistics of files are exact."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)
_WIDEST = timedelta(days=1)
"""More than the clock of any time zone is ever put back."""
_UNITS = {
    **dict.fromkeys(("second", "minute", "hour", "day"), 1),
    "week": 7,
    "month": 31,
    "quarter": 92,
    "year": 366,
}
_SHORT_UNITS = {"dd": "day", "mon": "month", "mm": "month", "yyyy": "year", "yy": "year"}
UNIT_DAYS = _UNITS | {short: _UNITS[unit] for short, unit in _SHORT_UNITS.items()}
"""The units to which times are truncated, with their maximum length in days."""
DATE_UNITS = UNIT_DAYS.keys() - {"second", "minute", "hour", "day", "dd"}
"""The units to which dates are truncated."""


def is_ordered(kind: str | None) -> bool:
    """Whether Python orders values of a Spark type as Spark does."""
    return kind in ("date", "timestamp", "timestamp_ntz", "string", *_INTEGERS) or (
        kind is not None and kind.startswith("decimal(")
    )


def spelled(sql: str, kind: str) -> str:
    """Return an SQL expression for the text of a value, which `from_spark` reads."""
    value = f"unix_micros({sql})" if kind == "timestamp" else sql
    return f"CAST({value} AS STRING)"


def from_spark(text: str, kind: str) -> Value | None:
    """Return the value of a text by `spelled`; None if Python cannot represent it."""
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
    """Return the value of a text in the ledger (`to_text`)."""
    if kind != "timestamp":
        return from_spark(text, kind)
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    return value.astimezone(UTC) if value.tzinfo else None


def ledger_text(spelled: str | None, kind: str | None) -> str | None:
    """Return the ledger's text for a text by `spelled`; that text if Python cannot represent it."""
    value = None if spelled is None or kind is None else from_spark(spelled, kind)
    return spelled if value is None else to_text(value)


def greatest(texts: Iterable[str | None], kind: str) -> str | None:
    """Return the ledger text with the greatest value, None if all are None.

    Raises
    ------
    ValueError
        There are several, and Python cannot represent one of them.
    """
    candidates = {text for text in texts if text is not None}
    if len(candidates) < 2:
        return next(iter(candidates), None)
    values = {text: from_text(text, kind) for text in candidates}
    if None in values.values():
        raise ValueError(f"cannot compare values of type {kind}: {', '.join(sorted(candidates))}")
    return max(candidates, key=lambda text: values[text])  # pyright: ignore[reportArgumentType, reportCallIssue]


def parsed(text: str, kind: str, zone: ZoneInfo, *, end: bool = False) -> Value | None:
    """Return the value of a column for a user's text, or None.

    Parameters
    ----------
    zone
        The time zone of times without one.
    end
        A day means its last moment, not its first, if the column has times.
    """
    if kind not in ("timestamp", "timestamp_ntz"):
        return from_spark(text, kind)
    try:
        value = datetime.fromisoformat(text)
        if end and _is_day(text):
            value += timedelta(days=1) - _MICROSECOND
    except (ValueError, OverflowError):
        return None
    if kind == "timestamp":
        return (value if value.tzinfo else value.replace(tzinfo=zone)).astimezone(UTC)
    return None if value.tzinfo else value


def _is_day(text: str) -> bool:
    """Whether an ISO 8601 text has no time.

    Examples
    --------
    >>> _is_day("20130101"), _is_day("2013-01-01T00:00")
    (True, False)
    """
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def to_text(value: Value) -> str:
    """Return a value as text: times in ISO 8601, instants in UTC."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else str(value)


def literal(value: Value, kind: str) -> str:
    """Return a value as SQL that is independent of the session."""
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
    """Return the value in a file's statistics; None if it is missing or uncertain."""
    if kind == "timestamp" and isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC)
    if kind == "timestamp_ntz" and isinstance(value, datetime) and not value.tzinfo:
        return value
    if kind == "date" and isinstance(value, date) and not isinstance(value, datetime):
        return value
    if kind in _INTEGERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def lead(
    span: Span, leaf: str, steps: Sequence[MonotoneStep], zone: str, *, exact: bool = False
) -> Span | None:
    """Return the span of the results of steps for a column's values in a span.

    None if it is unknown, or beyond Python's dates.

    Parameters
    ----------
    leaf
        The column's type.
    zone
        The session's time zone.
    exact
        Whether the bounds are exact, and not from statistics of other programs.
    """
    if leaf in ("timestamp", "timestamp_ntz"):
        # Other writers truncate times in statistics to milliseconds; clocks are put back.
        wider = _WIDEST if steps and zone != "UTC" else timedelta()
        cut = timedelta() if exact else _MILLISECOND
        low, high = span
        if not isinstance(low, datetime) or not isinstance(high, datetime):
            return None
        early = low < _EPOCH.replace(tzinfo=low.tzinfo)
        try:
            span = (low - wider - cut * early, high + wider + cut)
        except OverflowError:
            return None
    low, high = (_after(value, steps, zone) for value in span)
    return None if low is None or high is None else (low, high)


def _after(value: Value | None, steps: Sequence[MonotoneStep], zone: str) -> Value | None:
    """Return the result of steps for a date or time, as in Spark."""
    try:
        for step in steps:
            if not isinstance(value, date):
                return None
            value = _step(value, step, ZoneInfo(zone))
    except (ValueError, OverflowError, ZoneInfoNotFoundError):
        return None
    return value


def _step(value: date, step: MonotoneStep, zone: ZoneInfo) -> Value | None:
    local = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    if local.tzinfo is not None:
        local = local.astimezone(zone).replace(tzinfo=None)
    unit = _SHORT_UNITS.get(step.unit, step.unit)
    match step.function, unit:
        case "cast", "date":
            return local.date()
        case "cast", "timestamp":
            at_once = isinstance(value, datetime) and value.tzinfo is not None
            return value if at_once else local.replace(tzinfo=zone).astimezone(UTC)
        case "cast", "timestamp_ntz":
            return local
        case "date_trunc", _:
            return _cut(local, unit).replace(tzinfo=zone).astimezone(UTC)
        case "trunc", _:
            return _cut(local, unit).date()
        case "year", _:
            return local.year
        case _:
            return None


def _cut(value: datetime, unit: str) -> datetime:
    """Return the start of the unit of time that contains a local time."""
    if unit == "second":
        return value.replace(microsecond=0)
    if unit == "minute":
        return value.replace(second=0, microsecond=0)
    if unit == "hour":
        return value.replace(minute=0, second=0, microsecond=0)
    day = value.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "week":
        return day - timedelta(days=day.weekday())
    month = {"day": None, "month": day.month, "quarter": (day.month - 1) // 3 * 3 + 1, "year": 1}
    return day if month[unit] is None else day.replace(month=month[unit] or 1, day=1)


def cut_to(step: MonotoneStep) -> str | None:
    """Return the unit of time to which a step truncates, None if it does not truncate."""
    cuts = step.function in ("date_trunc", "trunc")
    return _SHORT_UNITS.get(step.unit, step.unit) if cuts else None


def earlier(value: Value, seconds: int) -> Value:
    """Return a value minus a duration: whole days for dates; types without durations stay.

    None means before the year 1.

    Examples
    --------
    >>> earlier(date(2024, 1, 9), 90_000), earlier(7, 60), earlier(date(1, 1, 1), 60)
    (datetime.date(2024, 1, 7), 7, datetime.date(1, 1, 1))
    """
    try:
        if isinstance(value, datetime):
            return value - timedelta(seconds=seconds)
        if isinstance(value, date):
            return value - timedelta(days=-(-seconds // 86_400))
    except OverflowError:
        is_date = not isinstance(value, datetime)
        return date.min if is_date else datetime.min.replace(tzinfo=value.tzinfo)
    return value


def overlap(one: tuple[Value, Value | None], other: tuple[Value, Value | None]) -> bool:
    """Whether two spans share a value. Each may have no upper bound. Their types are the same."""
    (low, high), (least, most) = one, other
    return (most is None or low <= most) and (  # pyright: ignore[reportOperatorIssue]
        high is None or least <= high  # pyright: ignore[reportOperatorIssue]
    )


def overlaps_any(spans: Iterable[tuple[Value, Value | None]]) -> Callable[[Span], bool]:
    """Return a function that tests whether a span shares a value with any of `spans`.

    A test costs the logarithm of the number of spans. All values have one type.

    Examples
    --------
    >>> test = overlaps_any([(1, 3), (7, None)])
    >>> test((3, 4)), test((4, 6)), test((8, 9))
    (True, False, True)
    """
    ordered = sorted(spans, key=lambda span: span[0])  # pyright: ignore[reportArgumentType, reportCallIssue]
    lows = [low for low, _ in ordered]
    # The greatest value of a span and all earlier ones; None: no upper bound.
    reach: list[Value | None] = []
    for _, high in ordered:
        last = reach[-1] if reach else high
        open_above = high is None or last is None
        reach.append(None if open_above else max(last, high))  # pyright: ignore[reportArgumentType, reportCallIssue]

    def test(span: Span) -> bool:
        n = bisect_right(lows, span[1])  # pyright: ignore[reportArgumentType, reportCallIssue]
        return n > 0 and ((most := reach[n - 1]) is None or most >= span[0])  # pyright: ignore[reportOperatorIssue]

    return test


def within(column: str, kind: str, low: Value, high: Value | None) -> str:
    """Return the SQL condition that a column's value is in a span. It is never NULL.

    The bounds are included; there may be no upper bound.
    """
    name = quote(column)
    above = "" if high is None else f" AND {name} <= {literal(high, kind)}"
    return f"{name} IS NOT NULL AND {name} >= {literal(low, kind)}{above}"
