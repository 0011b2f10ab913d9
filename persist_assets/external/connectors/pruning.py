"""Pruning of files that cannot have a row that matches a predicate. Pure.

A condition is evaluated on the values that its columns may have in a file. The invariant: a file is
left out only if none of its rows can make the condition true, whatever is unknown about it. Parts
of a condition that are not understood count as unknown. Statistics of floating-point columns ignore
NaN, which Spark orders after all numbers, so their greatest values are unknown here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.predicates.terms import FLIPPED, NEGATED
from persist_assets.analysis.syntax import given_args, misread
from persist_assets.core.dialect import parse, plain, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from zoneinfo import ZoneInfo

_EXACT_DIGITS, _MOST_DIGITS = 15, 20
_MILLISECOND = timedelta(milliseconds=1)
_CUT_OFF = "\ufffd"


@dataclass(frozen=True, slots=True)
class Span:
    """The values that a column may have in a file.

    Attributes
    ----------
    type
        The name of its Spark type.
    least, greatest
        The bounds; None: unknown.
    nulls
        Whether the column may have NULLs.
    values
        Whether the column may have values other than NULL.
    """

    type: str
    least: Any = None
    greatest: Any = None
    nulls: bool = True
    values: bool = True


def span(kind: str, least: Any, greatest: Any, n_nulls: int | None, n_rows: int | None) -> Span:
    """Return the values that a column may have in a file, according to its statistics.

    Some writers truncate timestamps to milliseconds, and round those before 1970 up or down. Old
    writers end truncated strings with a character that is not the greatest.
    """
    if isinstance(least, datetime):
        least = _moved(least, -_MILLISECOND)
    if isinstance(greatest, datetime):
        greatest = _moved(greatest, _MILLISECOND)
    if isinstance(greatest, str) and greatest.endswith(_CUT_OFF):
        greatest = None
    if kind in ("float", "double"):
        least, greatest = None if least != least else least, None
    digits = re.match(r"decimal\((\d+)", kind)
    if digits and int(digits[1]) > _EXACT_DIGITS:
        least = greatest = None  # they were converted through doubles
    n_nulls = n_nulls if n_rows is not None or n_nulls == 0 else None
    all_null = n_nulls is not None and n_nulls == n_rows
    return Span(kind, least, greatest, n_nulls != 0, not all_null)


def _moved(moment: datetime, by: timedelta) -> datetime | None:
    try:
        return moment + by
    except OverflowError:
        return None


def exactly(kind: str, value: Any) -> Span:
    """Return the span of a column that has one value, or NULL, in all rows of a file."""
    greatest = None if kind in ("float", "double") else value
    return Span(kind, value, greatest, value is None, value is not None)


def moment_as_written(text: str | None, timezone: ZoneInfo) -> Span:
    """Return the span of a timestamp column with one value in all rows, from its text.

    Parameters
    ----------
    text
        A text that Spark can cast; None: NULL.
    timezone
        The session's time zone, which applies to a text without a zone.

    Examples
    --------
    >>> from zoneinfo import ZoneInfo
    >>> moment_as_written("2024-06-01T10:00:00Z", ZoneInfo("Europe/Berlin")).least.hour
    10
    """
    if text is None:
        return exactly("timestamp", None)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return exactly("timestamp", moment.astimezone(UTC))
        moment = moment.replace(tzinfo=timezone).astimezone(UTC)
        return Span("timestamp", moment - _RULES, moment + _RULES, nulls=False)
    except (ValueError, OverflowError):
        return Span("timestamp", nulls=False)


def has_zone(text: str) -> bool:
    """Whether a text is a timestamp with a time zone that Python can parse."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def may_match(predicate: str, columns: Mapping[str, Span]) -> bool:
    """Whether a file may have a row that matches a predicate.

    Parameters
    ----------
    columns
        Spans by lower-case column name; other columns may have any values.

    Examples
    --------
    >>> columns = {"a": Span("int", 1, 5, nulls=False)}
    >>> may_match("a > 5", columns), may_match("a BETWEEN 5 AND 9", columns)
    (False, True)
    >>> may_match("a IS NULL", columns), may_match("NOT (a < 9 OR b = 1)", columns)
    (False, False)
    """
    tree = _understood(predicate)
    return tree is None or _may(tree, True, columns)


@lru_cache(maxsize=64)
def _understood(predicate: str) -> Any:
    """Return a condition as a tree; None: sqlglot and Spark read it differently."""
    tree = parse(predicate)
    misunderstood = tree is None or any(misread(node) for node in tree.walk())
    return None if misunderstood else tree


def _may(node: Any, outcome: bool, columns: Mapping[str, Span]) -> bool:
    """Whether a condition may be `outcome` (true or false, not NULL) for some row."""
    if not _OPERANDS.issuperset(given_args(node)):
        return True  # other arguments change the meaning: NOT LIKE is a LIKE with `negate`
    match node:
        case exp.Paren():
            return _may(node.this, outcome, columns)
        case exp.Not():
            return _may(node.this, not outcome, columns)
        case exp.And() | exp.Or():
            both = isinstance(node, exp.And) is outcome
            sides = (_may(side, outcome, columns) for side in (node.this, node.expression))
            return all(sides) if both else any(sides)
        case exp.Boolean():
            return bool(node.this) is outcome
        case exp.Null():
            return False
        case exp.Is() if isinstance(node.expression, exp.Null):
            column = _column(node.this, columns)
            return column is None or (column.nulls if outcome else column.values)
        case exp.In() if outcome and node.expressions:
            return any(_compared("=", node.this, e, columns) for e in node.expressions)
        case exp.Between() if outcome:
            low, high = node.args["low"], node.args["high"]
            return _compared(">=", node.this, low, columns) and _compared(
                "<=", node.this, high, columns
            )
        case exp.Like() if outcome:
            return _like(node, columns)
        case _:
            operator = _OPERATORS.get(type(node))
            if operator is None:
                return True
            operator = operator if outcome else NEGATED[operator]
            return _compared(operator, node.this, node.expression, columns)


_OPERANDS = frozenset(("this", "expression", "expressions", "low", "high"))
_OPERATORS: Mapping[type, str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def _compared(operator: str, left: Any, right: Any, columns: Mapping[str, Span]) -> bool:
    column, other = _column(left, columns), right
    if column is None:
        column, other, operator = _column(right, columns), left, FLIPPED[operator]
    if column is None:
        return True
    if isinstance(other, exp.Null) or not column.values:
        return False
    between = _literal(other, column.type)
    if between is None:
        return True
    low, high = between
    least, greatest = column.least, column.greatest
    try:
        match operator:
            case "=":
                return not (
                    (least is not None and high < least)
                    or (greatest is not None and low > greatest)
                )
            case "<>":
                # Strings and timestamps may be truncated, so equal bounds need not be equal values.
                fixed = column.type in (*_INTEGERS, "date") and low == high
                return not (fixed and least is not None and least == greatest == low)
            case "<":
                return least is None or least < high
            case "<=":
                return least is None or least <= high
            case ">":
                return greatest is None or greatest > low
            case _:
                return greatest is None or greatest >= low
    except TypeError:
        return True


def _like(node: Any, columns: Mapping[str, Span]) -> bool:
    column, pattern = _column(node.this, columns), node.expression
    if column is None or not isinstance(pattern, exp.Literal) or not pattern.is_string:
        return True
    if not column.values:
        return False
    start = pattern.name.split("%")[0].split("_")[0]
    if not start or column.type != "string" or _text(pattern.name) is None:
        return True
    below = isinstance(column.greatest, str) and column.greatest < start
    above = isinstance(column.least, str) and column.least[: len(start)] > start
    return not (below or above)


def _column(node: Any, columns: Mapping[str, Span]) -> Span | None:
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Column) or len(node.parts) != 1:
        return None
    return columns.get(plain(node.name).lower())


_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_Bounds = tuple[Any, Any]


def _literal(node: Any, kind: str) -> _Bounds | None:
    """Return the bounds of a literal, comparable with the statistics of a type, or None."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Cast):
        # DATE '2024-01-01' and the like: a date is compared with a timestamp as its midnight.
        written = node.this
        to = type_name(node.to)
        fit = {"date": ("date", "timestamp"), "timestamp": ("timestamp",)}.get(to or "", ())
        is_text = isinstance(written, exp.Literal) and written.is_string
        if not is_text or kind not in fit:
            return None
        if to == "date" and _date(written.name) is None:
            return None  # the cast truncates a timestamp to its date
        return _READERS[kind](written.name)
    negative = isinstance(node, exp.Neg)
    if negative:
        node = node.this
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return _READERS[kind](node.name) if not negative and kind in _READERS else None
    if kind not in (*_INTEGERS, "double") and not kind.startswith("decimal"):
        return None
    if kind != "double" and ("e" in node.name.lower() or len(node.name) > _MOST_DIGITS):
        return None  # both sides become doubles, or decimals with fewer places
    try:
        number = Decimal(node.name)
    except InvalidOperation:
        return None
    number = -number if negative else number
    # A number that is compared with a double becomes the nearest double.
    value = float(number) if kind == "double" else number
    return value, value


def _text(written: str) -> _Bounds | None:
    # With quotes or escapes, it may be the source of a string literal rather than its value.
    return None if re.search(r"[\\'\"ƒ]", written) else (written, written)


def _date(written: str) -> _Bounds | None:
    try:
        day = date.fromisoformat(written) if _DAY.fullmatch(written) else None
    except ValueError:
        return None
    return None if day is None else (day, day)


def _moment(written: str) -> _Bounds | None:
    try:
        moment = datetime.fromisoformat(written) if _MOMENT.fullmatch(written) else None
    except ValueError:
        return None
    if moment is None:
        return None
    if moment.tzinfo is not None:
        return moment, moment
    moment = moment.replace(tzinfo=UTC)
    try:
        return moment - _ZONES, moment + _ZONES
    except OverflowError:
        return None


_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_ZONES = timedelta(hours=16)
"""A bound on every zone's offset from UTC; texts without a zone are in the session's zone."""

_RULES = timedelta(days=1)
"""A bound on the difference between Java's and Python's rules of one zone."""

_READERS: Mapping[str, Callable[[str], _Bounds | None]] = {
    "string": _text,
    "date": _date,
    "timestamp": _moment,
}
