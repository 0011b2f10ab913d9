"""Constants: calls of functions of literals, computed as Spark computes them. Pure.

Folding only serves pushdown: texts, digests and BuildIDs of queries do not change. The invariant:
the value is exactly Spark's, in every time zone; None if it is not certain, if it depends on a
setting, or if Spark raises an error.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, localcontext
from math import isfinite
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.analysis.predicates.terms import Term
from persist_assets.analysis.pushdown.equalities import is_decimal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Typed = tuple[Term, str]
"""A value, and its Spark type."""

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_MOST_DIGITS, _WIDE = 38, 100
_MOST_TEXT = 1000


def constant(op: str, words: Sequence[str], typed: Sequence[Typed]) -> Typed | None:
    """Return the value of a call of literals, or None.

    Parameters
    ----------
    op, words
        As in the algebra's `Call`.
    typed
        Its operands, which are literals.

    Examples
    --------
    >>> cents = [(Term("decimal", (), (text,)), "decimal(2,2)") for text in ("0.06", "0.01")]
    >>> constant("-", (), cents)
    (Term(op='decimal', args=(), words=('0.05',)), 'decimal(3,2)')
    """
    # Modules of the project may have changed the current context.
    with localcontext(Context(prec=_WIDE)):
        try:
            return _constant(op, words, typed)
        except (ValueError, OverflowError):
            return None


def _constant(op: str, words: Sequence[str], typed: Sequence[Typed]) -> Typed | None:
    if op in ("cast", "try_cast"):
        return cast_literal(*typed[0], words[0])
    if op.startswith("sqlglot."):
        return _worded(op, words, typed)
    if words:
        return None
    if op in _ARITHMETIC and len(typed) == 2:
        return _computed(op, *typed)
    if op in ("negative", "abs") and len(typed) == 1:
        return _signed(op, *typed[0])
    if op in ("greatest", "least"):
        return _extreme(op, typed)
    function = _FUNCTIONS.get(op)
    return function(typed) if function is not None else None


# ---------------------------------------------------------------------------------------- numbers


def integer(value: int, kind: str) -> Typed | None:
    """Return a literal of an integral type, or None if the type has no such value."""
    most = 2 ** (_BITS[kind] - 1)
    return (Term("integer", (), (str(value),)), kind) if -most <= value < most else None


def _decimal(value: Decimal, whole: int, scale: int) -> Typed | None:
    """Return a literal of a decimal with so many digits before and after its point."""
    if whole + scale > _MOST_DIGITS or value != round(value, scale):
        return None
    if value and value.adjusted() >= whole:
        return None
    text = format(value.quantize(Decimal(1).scaleb(-scale)), "f")
    literal = Term("decimal" if scale else "integer", (), (text,))
    if not scale and not -(2**63) <= int(value) < 2**63:
        return None
    return literal, f"decimal({max(whole + scale, 1)},{scale})"


def _double(value: float) -> Typed | None:
    return (p.as_double(repr(value)), "double") if isfinite(value) else None


def _exact(term: Term, kind: str) -> tuple[Decimal, int, int] | None:
    """Return the value of an exact number and its digits before and after the point."""
    if term.op not in ("integer", "decimal"):
        return None
    if is_decimal(kind):
        digits, scale = map(int, kind[8:-1].split(","))
        return Decimal(term.words[0]), digits - scale, scale
    return (Decimal(term.words[0]), _DIGITS[kind], 0) if kind in INTEGRAL else None


_ARITHMETIC = frozenset(("+", "-", "*", "/", "div", "mod", "%"))


def _computed(op: str, a: Typed, b: Typed) -> Typed | None:
    """Return the result of arithmetic on two numbers."""
    if a[1] == b[1] == "double":
        return _of_doubles(op, float(a[0].words[0]), float(b[0].words[0]))
    if "double" in (a[1], b[1]):
        both = [cast_literal(*one, "double") for one in (a, b)]
        return _computed(op, both[0], both[1]) if both[0] and both[1] else None
    if a[1] in INTEGRAL and b[1] in INTEGRAL:
        return _of_integers(op, a, b)
    one, other = _exact(*a), _exact(*b)
    if one is None or other is None:
        return None
    (x, whole, scale), (y, whole_too, scale_too) = one, other
    if op in ("+", "-"):
        value = x + y if op == "+" else x - y
        return _decimal(value, max(whole, whole_too) + 1, max(scale, scale_too))
    if op == "*":
        return _decimal(x * y, whole + whole_too + 1, scale + scale_too)
    return None


def _of_integers(op: str, a: Typed, b: Typed) -> Typed | None:
    x, y = int(a[0].words[0]), int(b[0].words[0])
    kind = max(a[1], b[1], key=INTEGRAL.index)
    match op:
        case "+":
            return integer(x + y, kind)
        case "-":
            return integer(x - y, kind)
        case "*":
            return integer(x * y, kind)
        case "/" if y:
            return _double(float(x) / float(y))
        case "div" if y:
            return integer(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), "bigint")
        case "mod" | "%" if y:
            return integer(abs(x) % abs(y) * (-1 if x < 0 else 1), kind)
        case _:
            return None


def _of_doubles(op: str, x: float, y: float) -> Typed | None:
    match op:
        case "+":
            return _double(x + y)
        case "-":
            return _double(x - y)
        case "*":
            return _double(x * y)
        case "/" if y:
            return _double(x / y)
        case _:
            return None


def _signed(op: str, term: Term, kind: str) -> Typed | None:
    if term.op == "double":
        value = float(term.words[0])
        return _double(abs(value) if op == "abs" else -value) if kind == "double" else None
    if kind in INTEGRAL:
        value = int(term.words[0])
        return integer(abs(value) if op == "abs" else -value, kind)
    number = _exact(term, kind)
    if number is None:
        return None
    value, whole, scale = number
    return _decimal(abs(value) if op == "abs" else -value, whole, scale)


def _extreme(op: str, typed: Sequence[Typed]) -> Typed | None:
    """Return the greatest or the least of exact numbers, days or texts of one type."""
    ops, kinds = {t.op for t, _ in typed}, {k for _, k in typed}
    if len(typed) < 2 or len(ops) > 1 or len(kinds) > 1:
        return None
    if not ops <= {"integer", "decimal", "date", "string", "instant"}:
        return None
    return (max if op == "greatest" else min)(typed, key=lambda one: p.comparable(one[0]))


def _power(typed: Sequence[Typed]) -> Typed | None:
    """Return a power of integers that a double represents exactly, as Java's `pow` then must."""
    if len(typed) != 2 or any(kind not in INTEGRAL for _, kind in typed):
        return None
    base, exponent = (int(term.words[0]) for term, _ in typed)
    if not 0 <= exponent <= 53 or abs(base) ** exponent > 2**53:
        return None
    return _double(float(base**exponent))


# ------------------------------------------------------------------------------------------ casts

_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,18})?", re.ASCII)


def cast_literal(term: Term, kind: str, target: str) -> Typed | None:
    """Return a literal as a value of another type, or None.

    Of texts, only plain spellings are converted, which are the same in every mode.
    """
    if kind == target:
        return term, kind
    if term.op == "string" and kind == "string":
        return _cast_text(term.words[0], target)
    if target == "string":
        plain_text = term.op == "date" or (term.op == "integer" and kind in INTEGRAL)
        return (Term("string", (), term.words), "string") if plain_text else None
    if term.op == "double":
        return _float(float(term.words[0])) if (kind, target) == ("double", "float") else None
    number = _exact(term, kind)
    if number is None:
        return None
    value = number[0]
    if target in INTEGRAL:
        return integer(int(value), target)  # both round towards zero
    if is_decimal(target):
        digits, scale = map(int, target[8:-1].split(","))
        return _decimal(value, digits - scale, scale)
    if target == "double":
        return _double(float(value))
    return _float(float(value)) if target == "float" else None


def _cast_text(text: str, target: str) -> Typed | None:
    if target in INTEGRAL:
        return integer(int(text), target) if _WHOLE.fullmatch(text) else None
    if _NUMBER.fullmatch(text) and target == "double":
        return _double(float(text))
    if _NUMBER.fullmatch(text) and is_decimal(target):
        digits, scale = map(int, target[8:-1].split(","))
        return _decimal(Decimal(text), digits - scale, scale)
    if target in ("date", "timestamp", "timestamp_ntz"):
        literal = p.time_literal(text, target)
        return None if literal is None else (literal, target)
    return None


def _float(value: float) -> Typed | None:
    """Return a FLOAT literal as the DOUBLE that it equals, if that is the number itself."""
    if abs(value) > 2**24:
        return None
    (nearest,) = struct.unpack("f", struct.pack("f", value))
    return (p.as_double(repr(value)), "float") if nearest == value else None


# ------------------------------------------------------------------------------------------ texts


def _text(value: str) -> Typed | None:
    return (Term("string", (), (value,)), "string") if len(value) <= _MOST_TEXT else None


def _texts_of(typed: Sequence[Typed]) -> list[str] | None:
    texts = [cast_literal(term, kind, "string") for term, kind in typed]
    return None if None in texts else [one[0].words[0] for one in texts if one is not None]


def _concat(typed: Sequence[Typed]) -> Typed | None:
    texts = _texts_of(typed)
    return _text("".join(texts)) if texts else None


def _one_text(function: Callable[[str], str]) -> Callable[[Sequence[Typed]], Typed | None]:
    def of(typed: Sequence[Typed]) -> Typed | None:
        if len(typed) != 1 or typed[0][1] != "string" or not typed[0][0].words[0].isascii():
            return None
        return _text(function(typed[0][0].words[0]))

    return of


def _length(typed: Sequence[Typed]) -> Typed | None:
    if len(typed) != 1 or typed[0][1] != "string":
        return None
    return integer(len(typed[0][0].words[0]), "int")


def _end(at_start: bool) -> Callable[[Sequence[Typed]], Typed | None]:
    def of(typed: Sequence[Typed]) -> Typed | None:
        if [kind for _, kind in typed] != ["string", "int"]:
            return None
        text, n = typed[0][0].words[0], int(typed[1][0].words[0])
        if n <= 0:
            return _text("")
        return _text(text[:n] if at_start else text[-n:])

    return of


def _worded(op: str, words: Sequence[str], typed: Sequence[Typed]) -> Typed | None:
    """Return the value of a function with operands by name, which are sorted by name."""
    names = [word.partition(":")[0] for word in words]
    if op == "sqlglot.hexstring" and len(words) == 2 and names[0] == "this":
        return binary(words[1])
    if len(names) != len(typed):
        return None
    named = dict(zip(names, typed, strict=True))
    if op == "sqlglot.trim" and names == ["this"] and typed[0][1] == "string":
        return _text(typed[0][0].words[0].strip(" "))
    if op == "sqlglot.substring" and named.get("this", ("", ""))[1] == "string":
        numbers = [named.get(name, (None, "int")) for name in ("start", "length")]
        if any(kind != "int" for _, kind in numbers) or "start" not in named:
            return None
        text, start = named["this"][0].words[0], int(named["start"][0].words[0])
        n = int(named["length"][0].words[0]) if "length" in named else len(text)
        return _text(text[max(start - 1, 0) :][:n]) if start > 0 and n >= 0 else None
    return None


def binary(digits: str) -> Typed | None:
    """Return the literal of bytes written as hexadecimal digits."""
    digits = digits.upper()
    if len(digits) % 2 or not re.fullmatch(r"[0-9A-F]*", digits, re.ASCII):
        return None
    return Term("binary", (), (digits,)), "binary"


# ------------------------------------------------------------------------------------------ times


def _day(typed: Typed) -> date | None:
    """Return a literal day; a text that is one is converted, as Spark does for parameters."""
    term, kind = typed
    converted = cast_literal(term, kind, "date") if kind in ("date", "string") else None
    return None if converted is None else date.fromisoformat(converted[0].words[0])


def _number(typed: Typed) -> int | None:
    return int(typed[0].words[0]) if typed[1] in INTEGRAL else None


def _literal_day(value: date) -> Typed | None:
    return Term("date", (), (value.isoformat(),)), "date"


def _make_date(typed: Sequence[Typed]) -> Typed | None:
    numbers = [_number(one) for one in typed]
    if len(numbers) != 3 or None in numbers:
        return None
    return _literal_day(date(*(n for n in numbers if n is not None)))


def _make_timestamp(typed: Sequence[Typed]) -> Typed | None:
    numbers = [_number(one) for one in typed]
    if len(numbers) != 6 or None in numbers:
        return None
    value = datetime(*(n for n in numbers if n is not None))  # pyright: ignore[reportArgumentType]
    return _literal_time(f"{value:%H:%M:%S}", value.date())


def _literal_time(time_text: str, day: date) -> Typed | None:
    literal = p.time_literal(f"{day.isoformat()} {time_text}", "timestamp")
    return None if literal is None else (literal, "timestamp")


def _seconds(typed: Sequence[Typed]) -> Typed | None:
    n = _number(typed[0]) if len(typed) == 1 else None
    if n is None:
        return None
    value = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=n)
    text = f"{value.year:04}-{value:%m-%d %H:%M:%S}Z"
    literal = p.time_literal(text, "timestamp")
    return None if literal is None else (literal, "timestamp")


def _last_day(typed: Sequence[Typed]) -> Typed | None:
    day = _day(typed[0]) if len(typed) == 1 else None
    if day is None:
        return None
    later = day.replace(day=28) + timedelta(days=4)
    return _literal_day(later - timedelta(days=later.day))


def _days_later(sign: int) -> Callable[[Sequence[Typed]], Typed | None]:
    def of(typed: Sequence[Typed]) -> Typed | None:
        day, n = (_day(typed[0]), _number(typed[1])) if len(typed) == 2 else (None, None)
        return None if day is None or n is None else _literal_day(day + timedelta(days=sign * n))

    return of


def _add_months(typed: Sequence[Typed]) -> Typed | None:
    day, n = (_day(typed[0]), _number(typed[1])) if len(typed) == 2 else (None, None)
    if day is None or n is None:
        return None
    year, month = divmod(day.year * 12 + day.month - 1 + n, 12)
    first = date(year, month + 1, 1)
    last = ((first + timedelta(days=31)).replace(day=1) - timedelta(days=1)).day
    return _literal_day(first.replace(day=min(day.day, last)))


_WEEKDAYS = ("MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY")


def _next_day(typed: Sequence[Typed]) -> Typed | None:
    day, name = (_day(typed[0]), typed[1]) if len(typed) == 2 else (None, None)
    if day is None or name is None or name[1] != "string":
        return None
    shorter = [i for i, w in enumerate(_WEEKDAYS) if name[0].words[0].upper() in (w, w[:3], w[:2])]
    if len(shorter) != 1:
        return None
    return _literal_day(day + timedelta(days=(shorter[0] - day.weekday() - 1) % 7 + 1))


def _from_unix_date(typed: Sequence[Typed]) -> Typed | None:
    n = _number(typed[0]) if len(typed) == 1 else None
    return None if n is None else _literal_day(date(1970, 1, 1) + timedelta(days=n))


_FIELDS = {"yyyy": r"(?P<y>\d{4})", "MM": r"(?P<m>\d\d)", "dd": r"(?P<d>\d\d)"}
_PATTERN = re.compile(r"(yyyy|MM|dd)([-./ ]?)(yyyy|MM|dd)([-./ ]?)(yyyy|MM|dd)")


def _to_date(typed: Sequence[Typed]) -> Typed | None:
    """Return a day that a text spells in a pattern of year, month and day, each of all digits."""
    if len(typed) == 1:
        day = _day(typed[0])
        return None if day is None else _literal_day(day)
    if [kind for _, kind in typed] != ["string", "string"]:
        return None
    text, pattern = (term.words[0] for term, _ in typed)
    fields = _PATTERN.fullmatch(pattern)
    if fields is None or {*fields.group(1, 3, 5)} != set(_FIELDS):
        return None
    a, between, b, between_too, c = fields.groups()
    spelled = f"{_FIELDS[a]}{re.escape(between)}{_FIELDS[b]}{re.escape(between_too)}{_FIELDS[c]}"
    parts = re.fullmatch(spelled, text, re.ASCII)
    return None if parts is None else _literal_day(date(*map(int, parts.group("y", "m", "d"))))


def _to_timestamp(typed: Sequence[Typed]) -> Typed | None:
    if len(typed) != 1 or typed[0][1] != "string":
        return None
    return cast_literal(*typed[0], "timestamp")


_FUNCTIONS: Mapping[str, Callable[[Sequence[Typed]], Typed | None]] = {
    "pow": _power,
    "power": _power,
    "concat": _concat,
    "upper": _one_text(str.upper),
    "lower": _one_text(str.lower),
    "ltrim": _one_text(lambda text: text.lstrip(" ")),
    "rtrim": _one_text(lambda text: text.rstrip(" ")),
    "length": _length,
    "left": _end(True),
    "right": _end(False),
    "make_date": _make_date,
    "make_timestamp": _make_timestamp,
    "timestamp_seconds": _seconds,
    "last_day": _last_day,
    "date_add": _days_later(1),
    "date_sub": _days_later(-1),
    "add_months": _add_months,
    "next_day": _next_day,
    "date_from_unix_date": _from_unix_date,
    "to_date": _to_date,
    "to_timestamp": _to_timestamp,
}
