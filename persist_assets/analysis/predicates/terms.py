"""Terms of predicates, and their construction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from sqlglot.parsers.spark import SparkParser

from persist_assets.core.dialect import SPARK, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Term:
    """A predicate or a value.

    Attributes
    ----------
    words
        Parts that are not terms: a column's name, a literal's text, a type, a unit.
    """

    op: str
    args: tuple[Term, ...] = ()
    words: tuple[str, ...] = ()


TRUE, FALSE = Term("true"), Term("false")
NOW, TODAY = Term("now"), Term("current_date")
Value = date | datetime | int
FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparisons, with their equivalents for swapped operands."""

NEGATED = {
    **{"=": "<>", "<>": "=", "<": ">=", ">=": "<", "<=": ">", ">": "<="},
    **{"is null": "is not null", "is not null": "is null", "in": "not in", "not in": "in"},
    **{"like": "not like", "not like": "like", "true": "false", "false": "true"},
    **{"and": "or", "or": "and"},
}

LITERALS = frozenset(
    (
        *("integer", "decimal", "double", "string", "boolean", "binary"),
        *("date", "timestamp", "instant", "ntz"),
    )
)
"""Kinds of literals. A `timestamp` is in the session's time zone, an `instant` in UTC."""

_LISTED = frozenset(("integer", "string", "date"))
"""Kinds for which IN is a chain of =. (For -0.0 and decimals of several scales it may not be.)"""

VARIABLES = frozenset(("column", "ref", "out"))
CALM = "2012"
"""Since then no time zone has moved its clock back across a midnight, or skipped a day."""


def column(name: str) -> Term:
    """Return a column of the table."""
    return Term("column", (), (name,))


def compared(op: str, a: Term, b: Term) -> Term:
    """Return a comparison of two values, with the one that depends on the row first."""
    first, second = varies(a), varies(b)
    if (second and not first) or (first == second and as_text(b) < as_text(a)):
        op, a, b = FLIPPED[op], b, a
    if a.op == b.op and a.op in LITERALS - {"timestamp", "ntz"}:
        return TRUE if holds_for(op, comparable(a), comparable(b)) else FALSE
    return Term(op, (a, b))


def within(value: Term, choices: Iterable[Term], *, negated: bool = False) -> Term:
    """Return a test for whether a value is one of some literals, or none of them."""
    chosen = {as_text(c): c for c in choices}
    ordered = tuple(chosen[t] for t in sorted(chosen))
    kinds = {c.op for c in ordered}
    if len(kinds) == 1 and kinds <= _LISTED and varies(value):
        if len(ordered) == 1:
            return compared("<>" if negated else "=", value, *ordered)
        return Term("not in" if negated else "in", (value, *ordered))
    each = [compared("<>" if negated else "=", value, c) for c in ordered]
    return every(each) if negated else some(each)


def every(terms: Iterable[Term]) -> Term:
    """Return the conjunction of predicates."""
    return _joined("and", terms, TRUE, FALSE)


def some(terms: Iterable[Term]) -> Term:
    """Return the disjunction of predicates."""
    return _joined("or", terms, FALSE, TRUE)


def _joined(op: str, terms: Iterable[Term], none: Term, all_: Term) -> Term:
    parts: dict[Term, None] = {}
    for term in terms:
        if term == all_:
            return all_
        parts |= dict.fromkeys(term.args if term.op == op else (term,))
    parts.pop(none, None)
    listed = _listed(op, parts)
    if len(listed) < 2:
        return listed[0] if listed else none
    return Term(op, tuple(sorted(listed, key=as_text)))


def _listed(op: str, parts: Iterable[Term]) -> list[Term]:
    """Return parts, with comparisons of one value with literals merged into one list."""
    one, many = ("=", "in") if op == "or" else ("<>", "not in")
    lists: dict[tuple[Term, str], list[Term]] = {}
    listed: list[Term] = []
    for part in parts:
        fits = part.op == many or (part.op == one and part.args[1].op in _LISTED)
        if fits and varies(part.args[0]):
            lists.setdefault((part.args[0], part.args[1].op), []).extend(part.args[1:])
        else:
            listed.append(part)
    for (value, _), choices in lists.items():
        listed.append(within(value, choices, negated=op == "and"))
    return listed


def negated(term: Term) -> Term:
    """Return the negation of a predicate: TRUE where it is FALSE, and the reverse; else NULL."""
    if term.op in ("and", "or"):
        return (some if term.op == "and" else every)(negated(a) for a in term.args)
    return Term(NEGATED[term.op], term.args, term.words)


def not_true(term: Term) -> Term:
    """Return a test for whether a predicate is FALSE or NULL."""
    return FALSE if term == TRUE else TRUE if term == FALSE else Term("is not true", (term,))


def cast(value: Term, kind: str) -> Term:
    """Return a cast of a value; for a literal of time, the resulting literal."""
    if value.op == "date" and kind in ("timestamp", "timestamp_ntz"):
        return Term("ntz" if kind[9:] else kind, (), (f"{value.words[0]} 00:00:00",))
    if kind == "date" and (value.op == "ntz" or (value.op == "timestamp" and is_calm(value))):
        return Term("date", (), (value.words[0][:10],))
    return Term("cast", (value,), (kind,))


def is_calm(value: Term) -> bool:
    """Whether all times in a value lie where days follow each other in every time zone."""
    is_time = value.op in ("date", "timestamp", "instant", "ntz")
    return all(map(is_calm, value.args)) and not (is_time and value.words[0] < CALM)


UNITS = {
    **dict.fromkeys(("year", "years"), (12, "MONTHS")),
    **dict.fromkeys(("quarter", "quarters"), (3, "MONTHS")),
    **dict.fromkeys(("month", "months"), (1, "MONTHS")),
    **dict.fromkeys(("week", "weeks"), (7, "DAYS")),
    **dict.fromkeys(("day", "days"), (1, "DAYS")),
    **dict.fromkeys(("hour", "hours"), (1, "HOURS")),
    **dict.fromkeys(("minute", "minutes"), (1, "MINUTES")),
    **dict.fromkeys(("second", "seconds"), (1, "SECONDS")),
}
"""Units of intervals, as multiples of the canonical units."""

_MOST = {"MONTHS": 12_000, "DAYS": 366_000, "HOURS": 10**7, "MINUTES": 10**8, "SECONDS": 10**9}
SECONDS = {"DAYS": 86_400, "HOURS": 3600, "MINUTES": 60, "SECONDS": 1}


def shifted(value: Term, count: int, unit: str) -> Term | None:
    """Return a clock time shifted by so many units, or None if that is too far away."""
    each, unit = UNITS[unit.lower()]
    if abs(count * each) > _MOST[unit]:
        return None
    return Term("shift", (value,), (str(count * each), unit)) if count else value


def shifted_date(value: Term, days: int) -> Term | None:
    """Return a date shifted by so many days; a literal date as a literal."""
    if value.op != "date":
        return shifted(value, days, "day")
    try:
        moved = date.fromisoformat(value.words[0]) + timedelta(days=days)
    except OverflowError:
        return None
    return Term("date", (), (moved.isoformat(),))


def rebuilt(term: Term, replace: Callable[[Term], Term | None]) -> Term | None:
    """Return a term with its variables replaced; None if `replace` returns None for one."""
    if term.op in VARIABLES:
        return replace(term)
    if not term.args:
        return term
    args: list[Term] = []
    for arg in term.args:
        rebuilt_arg = rebuilt(arg, replace)
        if rebuilt_arg is None:
            return None
        args.append(rebuilt_arg)
    return made_of(term.op, args, term.words)


def made_of(op: str, args: Sequence[Term], words: tuple[str, ...] = ()) -> Term:
    """Return the canonical term of this shape."""
    if op in FLIPPED:
        return compared(op, *args)
    match op:
        case "and":
            return every(args)
        case "or":
            return some(args)
        case "in" | "not in":
            return within(args[0], args[1:], negated=op == "not in")
        case "cast":
            return cast(args[0], words[0])
        case "is not true":
            return not_true(args[0])
        case _:
            return Term(op, tuple(args), words)


def weakened(term: Term, keep: Callable[[Term], Term]) -> Term:
    """Return a consequence of a predicate, with every atom replaced by the result of `keep`.

    The result of `keep` must follow from the atom; TRUE always does.
    """
    if term.op == "and":
        return every(weakened(a, keep) for a in term.args)
    if term.op == "or":
        return some(weakened(a, keep) for a in term.args)
    return term if term in (TRUE, FALSE) else keep(term)


def variables(term: Term) -> Iterator[Term]:
    """Yield the variables of a term."""
    stack = [term]
    while stack:
        this = stack.pop()
        if this.op in VARIABLES:
            yield this
        stack += this.args


@lru_cache(maxsize=65536)
def varies(term: Term) -> bool:
    """Whether a value depends on the row."""
    return any(True for _ in variables(term))


def conjuncts(term: Term) -> tuple[Term, ...]:
    """Return the conjuncts of a predicate."""
    return term.args if term.op == "and" else () if term == TRUE else (term,)


def disjuncts(term: Term) -> tuple[Term, ...]:
    """Return the disjuncts of a predicate."""
    return term.args if term.op == "or" else () if term == FALSE else (term,)


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_WORDS = frozenset(
    {w.upper() for phrase in SPARK.tokenizer_class.KEYWORDS for w in phrase.split()}
    | {w.upper() for w in SparkParser.FUNCTIONS}
    | {"CURRENT_DATE", "CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP", "CURRENT_USER", "USER"}
)
OF_TEXT = frozenset(("lower", "upper", "length"))
"""Functions of a text that are NULL for NULL and never raise."""

CALLS = OF_TEXT | frozenset(
    ("date_trunc", "trunc", "year", "month", "dayofmonth", "quarter", "hour", "minute", "second")
)


def as_condition(term: Term) -> str | None:
    """Return the text of a predicate, or None if it holds for all rows."""
    return None if term == TRUE else as_text(term)


@lru_cache(maxsize=65536)
def as_text(term: Term) -> str:
    """Return a term as Spark SQL, in its canonical spelling.

    Examples
    --------
    >>> as_text(compared(">=", column("ts"), shifted(NOW, -6, "months")))
    'ts >= NOW() - INTERVAL 6 MONTHS'
    """
    args, words = term.args, term.words
    match term.op:
        case "column":
            (name,) = words
            return name if _is_bare(name) else quote(name)
        case "ref" | "out":
            return f"{term.op}:{':'.join(words)}"
        case "true" | "false":
            return term.op.upper()
        case "now":
            return "NOW()"
        case "current_date":
            return "CURRENT_DATE()"
        case "integer" | "decimal":
            return words[0]
        case "boolean":
            return words[0].upper()
        case "double":
            return f"{words[0]}D"
        case "string":
            return _quoted(words[0])
        case "binary":
            return f"X'{words[0]}'"
        case "field":
            return f"{as_text(args[0])}.{words[0] if _is_bare(words[0]) else quote(words[0])}"
        case "date":
            return f"DATE '{words[0]}'"
        case "timestamp" | "instant":
            return f"TIMESTAMP '{words[0]}'"
        case "ntz":
            return f"TIMESTAMP_NTZ '{words[0]}'"
        case "cast":
            return f"CAST({as_text(args[0])} AS {words[0].upper()})"
        case "shift":
            count, unit = words
            sign = "-" if count.startswith("-") else "+"
            return f"{as_text(args[0])} {sign} INTERVAL {count.lstrip('-')} {unit}"
        case "is null" | "is not null" | "is not true":
            inner = as_text(args[0])
            inner = f"({inner})" if term.op == "is not true" else inner
            return f"{inner} {term.op.upper()}"
        case "in" | "not in":
            choices = ", ".join(map(as_text, args[1:]))
            return f"{as_text(args[0])} {term.op.upper()} ({choices})"
        case "like" | "not like":
            return f"{as_text(args[0])} {term.op.upper()} {as_text(args[1])}"
        case "and":
            return " AND ".join(f"({as_text(a)})" if a.op == "or" else as_text(a) for a in args)
        case "or":
            return " OR ".join(map(as_text, args))
        case op if op in FLIPPED:
            return f"{as_text(args[0])} {op} {as_text(args[1])}"
        case op:
            spelled = [_quoted(w) for w in words]
            before = op == "date_trunc"
            inner = [*spelled, as_text(args[0])] if before else [as_text(args[0]), *spelled]
            return f"{op}({', '.join(inner)})"


@lru_cache(maxsize=4096)
def _is_bare(name: str) -> bool:
    return bool(_BARE.fullmatch(name)) and name.upper() not in _WORDS


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_DATE = r"\d{4}-\d{2}-\d{2}"
_TIME = re.compile(rf"({_DATE})(?:[ T](\d{{2}}:\d{{2}})(?::(\d{{2}})(\.\d{{1,6}})?)?(\+00:00|Z)?)?")


def time_literal(text: str, kind: str) -> Term | None:
    """Return the literal that Spark parses from a text; None if Spark may parse it differently.

    Only plain spellings are accepted: a date, a date with a time, and UTC.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, minutes, seconds, fraction, zone = found.groups()
    try:
        date.fromisoformat(day)
        time.fromisoformat(f"{minutes or '00:00'}:{seconds or '00'}")
    except ValueError:
        return None
    if kind == "date":
        return Term("date", (), (day,)) if minutes is None else None
    time_text = (
        f"{day} {minutes or '00:00'}:{seconds or '00'}{(fraction or '').rstrip('0').rstrip('.')}"
    )
    match kind:
        case "timestamp" if zone:
            return Term("instant", (), (f"{time_text}+00:00",))
        case "timestamp":
            return Term("timestamp", (), (time_text,))
        case "timestamp_ntz" if not zone:
            return Term("ntz", (), (time_text,))
        case _:
            return None


def number_literal(text: str) -> tuple[Term, str] | None:
    """Return the literal of a number, and its Spark type."""
    digits, suffix = text, ""
    while digits[-1:].isalpha():
        digits, suffix = digits[:-1], digits[-1].upper() + suffix
    bare = digits.removeprefix("-")
    try:
        value = Decimal(digits)
    except InvalidOperation:
        return None
    exponent = "e" in bare.lower()
    if suffix in ("", "L", "S", "Y") and bare.isdecimal():
        whole = int(digits)
        if not -(2**63) <= whole < 2**63:
            return None
        kind = {"L": "bigint", "S": "smallint", "Y": "tinyint"}.get(suffix)
        kind = kind or ("int" if -(2**31) <= whole < 2**31 else "bigint")
        return Term("integer", (), (str(whole),)), kind
    if suffix in ("", "BD") and not exponent:
        decimal_text = format(value, "f")
        fraction = len(decimal_text.partition(".")[2])
        whole = len(str(abs(int(value)))) if int(value) else 0
        if fraction == 0 or whole + fraction > 38:
            return None
        return Term(
            "decimal", (), (decimal_text,)
        ), f"decimal({max(whole + fraction, 1)},{fraction})"
    if (suffix == "D" or (suffix == "" and exponent)) and isfinite(float(digits)):
        return as_double(digits), "double"
    return None


def as_double(digits: str) -> Term:
    """Return a number as a DOUBLE literal."""
    return Term("double", (), (repr(float(digits)),))


DAY = timedelta(days=1)


def order_of(a: Term, b: Term) -> int | None:
    """Return the order of two values that do not depend on the row, if it is certain."""
    if a == b:
        return 0
    if a.op in LITERALS and b.op in LITERALS:
        numbers = {"integer", "decimal"}
        if a.op != b.op and not {a.op, b.op} <= numbers:
            return None
        first, second = comparable(a), comparable(b)
        # Texts that are so far apart have this order of instants in every time zone.
        apart = DAY if is_calm(a) and is_calm(b) else 2 * DAY
        if a.op == "timestamp" and abs(first - second) < apart:
            return None
        return (first > second) - (first < second)
    return _order_of_clocks(a, b)


def _order_of_clocks(a: Term, b: Term) -> int | None:
    """Return the order of two shifts of one time, if no calendar can reverse it."""
    (base, n, unit), (other, m, also) = _unshifted(a), _unshifted(b)
    if base != other or (unit and also and unit != also):
        return None
    unit = unit or also
    if unit not in ("MONTHS", "DAYS") and max(abs(n), abs(m)) * SECONDS[unit] >= 86_400:
        return None  # a day of the calendar has 23 to 25 hours, or others
    return (n > m) - (n < m)


def _unshifted(term: Term) -> tuple[Term, int, str]:
    if term.op == "shift":
        return term.args[0], int(term.words[0]), term.words[1]
    return term, 0, ""


def comparable(literal: Term) -> Any:
    """Return the value of a literal, which Python compares as Spark does."""
    (text,) = literal.words
    match literal.op:
        case "integer" | "decimal":
            return Decimal(text)
        case "double":
            return float(text)
        case "date":
            return date.fromisoformat(text)
        case "timestamp" | "ntz" | "instant":
            return datetime.fromisoformat(text)
        case _:
            return text  # code points have the order of the bytes of UTF-8


def holds_for(op: str, a: Any, b: Any) -> bool:
    """Whether a comparison of two values is true."""
    match op:
        case "=":
            return a == b
        case "<>":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case _:
            return a >= b
