"""Evaluation of the clock in predicates: at an instant, or over a span of time."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.predicates.terms import (
    CALM,
    DAY,
    FLIPPED,
    LITERALS,
    NEGATED,
    NOW,
    SECONDS,
    TODAY,
    TRUE,
    Term,
    Value,
    compared,
    every,
    made_of,
    varies,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo


def reads_clock(term: Term) -> bool:
    """Whether the meaning of a term depends on the current time."""
    return term in (NOW, TODAY) or any(reads_clock(a) for a in term.args)


def evaluated(term: Term, now: datetime, zone: tzinfo) -> Term:
    """Return a term as of one instant: without a clock, its times of day as instants.

    Calendar arithmetic is Spark's, which is Java's: a month before 31 August is 31 July, six months
    before it is 28 or 29 February; a day back is the same time on the day before, however many
    hours that had; a time that a clock change skipped is moved forward by the length of the gap; an
    ambiguous time has the offset of the original time, else it is the first one.

    Parameters
    ----------
    now
        Aware.
    zone
        The session's time zone.
    """
    if not varies(term) and term.op not in NEGATED and term.op != "is not true":
        return _evaluated_value(term, now, zone)
    args = [evaluated(a, now, zone) for a in term.args]
    return made_of(term.op, args, term.words) if args else term


def evaluated_within(term: Term, first: datetime, last: datetime, zone: tzinfo) -> Term:
    """Return a clock-free predicate that includes a predicate at every instant of a span.

    For every instant from `first` to `last`, it holds for each row for which the predicate
    `evaluated` at that instant holds, and for few others: each comparison with the clock is widened
    separately. If the two instants are equal, it is the predicate `evaluated` then.

    Parameters
    ----------
    first, last
        Aware, in this order.
    zone
        The session's time zone.

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> from persist_assets.analysis.predicates import as_text, from_text
    >>> aug, sep = datetime(2024, 8, 31, 10, tzinfo=UTC), datetime(2024, 9, 1, 10, tzinfo=UTC)
    >>> term = from_text("ts >= NOW() - INTERVAL 6 MONTHS AND ts < NOW()")
    >>> as_text(evaluated_within(term, aug, sep, UTC)).replace(":00:00+00:00", "h")
    "ts < TIMESTAMP '2024-09-01 10h' AND ts >= TIMESTAMP '2024-02-29 10h'"
    """
    if _in_order(first) == _in_order(last) or not reads_clock(term):
        return evaluated(term, first, zone)
    if term.op in ("and", "or"):
        return made_of(term.op, [evaluated_within(a, first, last, zone) for a in term.args])
    if term.op not in FLIPPED:
        return TRUE
    one, other = (_span_of(a, first, last, zone) for a in term.args)
    if one is None or other is None:
        return TRUE
    (low, high), (least, most) = one, other
    match term.op:
        case "<" | "<=":
            return compared(term.op, low, most)
        case ">" | ">=":
            return compared(term.op, high, least)
        case _ if low == high and least == most:
            return compared(term.op, low, least)
        case "=":
            return every((compared(">=", high, least), compared("<=", low, most)))
        case _:
            return TRUE


def _span_of(
    value: Term, first: datetime, last: datetime, zone: tzinfo
) -> tuple[Term, Term] | None:
    """Return the least and greatest value of a term in a span, without the clock."""
    if varies(value) or not reads_clock(value):
        same = evaluated(value, first, zone)
        return None if reads_clock(value) else (same, same)
    span = _span_at(value, first, last, zone)
    return None if span is None else (_literal_of(span[0]), _literal_of(span[1]))


def _evaluated_value(term: Term, now: datetime, zone: tzinfo) -> Term:
    if term.op in LITERALS - {"timestamp"}:
        return term
    value = _at(term, now, zone)
    return term if value is None else _literal_of(value)


def _literal_of(value: Value) -> Term:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return Term("ntz", (), (_formatted(value),))
        return Term("instant", (), (f"{_formatted(value.astimezone(UTC))}+00:00",))
    if isinstance(value, date):
        return Term("date", (), (value.isoformat(),))
    return Term("integer", (), (str(value),))


def _formatted(value: datetime) -> str:
    time_text = value.strftime("%H:%M:%S") + (f".{value.microsecond:06}".rstrip("0").rstrip("."))
    return f"{value.year:04}-{value.month:02}-{value.day:02} {time_text}"


def _at(term: Term, now: datetime, zone: tzinfo) -> Value | None:
    """Return the value of a term that is the same in all rows."""
    match term.op:
        case "now":
            return now.astimezone(zone)
        case "current_date":
            return now.astimezone(zone).date()
        case "date":
            return date.fromisoformat(term.words[0])
        case "timestamp":
            return _in_zone(datetime.fromisoformat(term.words[0]), zone)
        case "instant":
            return datetime.fromisoformat(term.words[0]).astimezone(zone)
        case "ntz":
            return datetime.fromisoformat(term.words[0])
        case _:
            inner = _at(term.args[0], now, zone) if term.args else None
            return None if inner is None else _applied_at(term, inner, zone)


def _applied_at(term: Term, inner: Value, zone: tzinfo) -> Value | None:
    """Return the value of a term with one operand, from the operand's value."""
    match term.op:
        case "cast":
            return _converted(inner, term.words[0], zone)
        case "shift" if isinstance(inner, date):
            return _shifted_value(inner, int(term.words[0]), term.words[1], zone)
        case "trunc" if isinstance(inner, date):
            return _first_day(inner, term.words[0].lower())
        case "date_trunc" if isinstance(inner, datetime):
            return _truncated(inner, term.words[0].lower(), zone)
        case ("year" | "month" | "hour" | "minute" | "second") as part:
            return getattr(inner, part, None)
        case "dayofmonth" if isinstance(inner, date):
            return inner.day
        case "quarter" if isinstance(inner, date):
            return (inner.month + 2) // 3
        case _:
            return None


_RISING = frozenset(("cast", "shift", "trunc", "date_trunc", "year"))
"""Functions that never decrease from day to day, nor within a day unless clocks change."""


def _span_at(
    term: Term, first: datetime, last: datetime, zone: tzinfo
) -> tuple[Value, Value] | None:
    """Return the least and greatest value of a term that reads the clock; None if not known.

    Within each day, the value is least when the day begins, and this minimum never decreases from
    day to day: not even at ends of months, where two days map to one. So it is enough to check both
    ends, the start of the day after the first, and the end of the day before the last. Around clock
    changes, values may be off by hours.
    """
    if term == NOW:
        return first.astimezone(zone), last.astimezone(zone)
    if term == TODAY:
        term = Term("cast", (NOW,), ("date",))
    inner = _span_at(term.args[0], first, last, zone)
    if inner is None:
        return None
    same = _in_order(inner[0]) == _in_order(inner[1])
    inside = [inner[0]] if same else [*inner, *_days_between(*inner, zone)]
    values = [value for v in inside if (value := _applied_at(term, v, zone)) is not None]
    if len(values) < len(inside) or not (same or term.op in _RISING):
        return None
    low, high = min(values, key=_in_order), max(values, key=_in_order)
    if same:
        return low, high
    if isinstance(low, datetime):
        certain = not any(_is_moved(v, zone) for v in (*inside, *values))
    else:
        certain = all(isinstance(v, date) and f"{v.year:04}" >= CALM for v in inside)
    if certain:
        return low, high
    if not isinstance(low, date) or not isinstance(high, date):
        return None
    return low - 2 * DAY, high + 2 * DAY


def _in_order(value: Value) -> Any:
    """Return a value that compares as an instant, independent of clock changes."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _days_between(low: Value, high: Value, zone: tzinfo) -> Iterator[datetime]:
    """Yield the start of the day after the first time, and the end of the day before the last."""
    if not isinstance(low, datetime) or not isinstance(high, datetime):
        return
    for day in (low.date() + DAY, high.date()):
        begins = datetime.combine(day, time())
        begins = begins if low.tzinfo is None else _in_zone(begins, zone)
        ended = _in_order(begins) - timedelta(microseconds=1)
        for one in (begins, ended if low.tzinfo is None else ended.astimezone(zone)):
            if _in_order(low) <= _in_order(one) <= _in_order(high):
                yield one


def _is_moved(value: Value, zone: tzinfo) -> bool:
    """Whether clocks change within a day of a time."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return False
    around = [_in_order(value) + n * DAY for n in (-1, 0, 1)]
    return len({one.astimezone(zone).utcoffset() for one in around}) > 1


def _in_zone(local: datetime, zone: tzinfo, offset: timedelta | None = None) -> datetime:
    """Return the instant of a local time, with the given offset if the time has it."""
    for fold in (0, 1):
        one = local.replace(tzinfo=zone, fold=fold)
        shown = one.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0)
        if one.utcoffset() == offset and shown == local:
            return one
    return local.replace(tzinfo=zone, fold=0).astimezone(UTC).astimezone(zone)


def _converted(value: date | int, kind: str, zone: tzinfo) -> date | None:
    if not isinstance(value, date) or kind == "double":
        return None
    if kind == "date":
        return value.date() if isinstance(value, datetime) else value
    local = value.replace(tzinfo=None) if isinstance(value, datetime) else None
    local = local or datetime.combine(value, time())
    if kind == "timestamp_ntz":
        return local
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    return _in_zone(local, zone)


def _months_later(value: date, months: int) -> date:
    index = value.year * 12 + value.month - 1 + months
    year, month = divmod(index, 12)
    following = date(year + (month == 11), (month + 1) % 12 + 1, 1)
    last = (following - timedelta(days=1)).day
    return value.replace(year=year, month=month + 1, day=min(value.day, last))


def _shifted_value(value: date, count: int, unit: str, zone: tzinfo) -> date:
    if not isinstance(value, datetime):
        return _months_later(value, count) if unit == "MONTHS" else value + timedelta(days=count)
    if unit == "MONTHS":
        days, rest = 0, timedelta()
    else:
        seconds = abs(count) * SECONDS[unit]
        sign = -1 if count < 0 else 1
        days, rest = sign * (seconds // 86_400), timedelta(seconds=sign * (seconds % 86_400))
    local = value.replace(tzinfo=None, fold=0)
    if unit == "MONTHS":
        local = _months_later(local, count)
    else:
        local += timedelta(days=days)
    assert isinstance(local, datetime)
    if value.tzinfo is None:
        return local + rest
    moved = _in_zone(local, zone, value.utcoffset())
    return (moved.astimezone(UTC) + rest).astimezone(zone)


def next_first(day: str, unit: str) -> str | None:
    """Return the first day of the unit after that of a day, or None for an unknown unit."""
    first = date.fromisoformat(day)
    if first.year > 9990:
        return None
    if unit not in ("day", "week"):
        months = {"month": 1, "quarter": 3, "year": 12}.get(unit)
        start = _first_day(first, unit)
        if months is None or start is None:
            return None
        return _months_later(start, months).isoformat()
    start = first if unit == "day" else _first_day(first, unit)
    return (start + timedelta(days=7 if unit == "week" else 1)).isoformat() if start else None


def _first_day(value: date, unit: str) -> date | None:
    day = value.date() if isinstance(value, datetime) else value
    match unit:
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return day.replace(month=1, day=1)
        case _:
            return None


def _truncated(value: datetime, unit: str, zone: tzinfo) -> datetime | None:
    finer = {"day": {"hour": 0, "minute": 0}, "hour": {"minute": 0}, "minute": {}, "second": {}}
    if unit not in finer:
        first = _first_day(value, unit)
        return None if first is None else _in_zone(datetime.combine(first, time()), zone)
    local = value.replace(tzinfo=None, fold=0, microsecond=0, **finer[unit])
    local = local if unit == "second" else local.replace(second=0)
    return _in_zone(local, zone, value.utcoffset())
