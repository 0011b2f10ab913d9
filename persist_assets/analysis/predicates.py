"""Which rows of a table: a small language of predicates, a subset of Spark's SQL. Pure.

    predicate  TRUE | FALSE | AND | OR | comparison | IS [NOT] NULL | [NOT] IN | [NOT] LIKE
    value      column | literal | clock (NOW() - INTERVAL 6 MONTHS, …) | CAST | date_trunc | year …

A row belongs to a predicate where that is TRUE: not where it is NULL. Every term is canonical from
its making on, so that the text of one is the same in each process; `as_text` and `from_text` are
inverse to each other. Nothing in the language can raise an error, draws lots or depends on the
order of rows. What reads the clock stays a symbol, until `evaluated` puts an instant in its place.

The invariant: what `implies` claims is so for every table; where that is not certain it says no.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser

from persist_assets.core.dialect import SPARK, parse, plain, quote, suffixed, type_name
from persist_assets.core.digests import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import tzinfo


@dataclass(frozen=True, slots=True)
class Term:
    """A predicate or a value.

    Attributes
    ----------
    words
        What is no term: a column's name, a literal's text, a type, a unit.
    """

    op: str
    args: tuple[Term, ...] = ()
    words: tuple[str, ...] = ()


TRUE, FALSE = Term("true"), Term("false")
NOW, TODAY = Term("now"), Term("current_date")

_Value = date | datetime | int

# ----------------------------------------------------------------------------------------- making

FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparisons, with those that say the same when the other side comes first."""
NEGATED = {
    **{"=": "<>", "<>": "=", "<": ">=", ">=": "<", "<=": ">", ">": "<="},
    **{"is null": "is not null", "is not null": "is null", "in": "not in", "not in": "in"},
    **{"like": "not like", "not like": "like", "true": "false", "false": "true"},
    **{"and": "or", "or": "and"},
}
LITERALS = frozenset(
    ("integer", "decimal", "double", "string", "boolean", "date", "timestamp", "instant", "ntz")
)
"""Kinds of literals. A `timestamp` is told in the session's time zone, an `instant` in UTC."""
_LISTED = frozenset(("integer", "string", "date"))
"""Kinds of which IN is a chain of =. (Of -0.0 and of decimals of several scales it need not be.)"""
VARIABLES = frozenset(("column", "ref", "out"))
_CALM = "2012"
"""Since then no time zone has moved its clock past a midnight and back, or left out a day."""


def column(name: str) -> Term:
    """Return a column of the table."""
    return Term("column", (), (name,))


def compared(op: str, a: Term, b: Term) -> Term:
    """Return a comparison of two values: what varies with the row stands first."""
    first, second = varies(a), varies(b)
    if (second and not first) or (first == second and as_text(b) < as_text(a)):
        op, a, b = FLIPPED[op], b, a
    if a.op == b.op and a.op in LITERALS - {"timestamp", "ntz"}:
        return TRUE if _holds(op, _comparable(a), _comparable(b)) else FALSE
    return Term(op, (a, b))


def within(value: Term, choices: Iterable[Term], *, negated: bool = False) -> Term:
    """Return whether a value is one of some literals, or none of them."""
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
    """Return that all of some predicates hold."""
    return _joined("and", terms, TRUE, FALSE)


def some(terms: Iterable[Term]) -> Term:
    """Return that one of some predicates holds."""
    return _joined("or", terms, FALSE, TRUE)


def _joined(op: str, terms: Iterable[Term], none: Term, all_: Term) -> Term:
    parts: dict[Term, None] = {}
    for term in terms:
        if term == all_:
            return all_
        parts |= dict.fromkeys(term.args if term.op == op else (term,))
    parts.pop(none, None)
    found = _listed(op, parts)
    if len(found) < 2:
        return found[0] if found else none
    return Term(op, tuple(sorted(found, key=as_text)))


def _listed(op: str, parts: Iterable[Term]) -> list[Term]:
    """Return parts with those that compare one value with literals put into one list."""
    one, many = ("=", "in") if op == "or" else ("<>", "not in")
    lists: dict[tuple[Term, str], list[Term]] = {}
    found: list[Term] = []
    for part in parts:
        fits = part.op == many or (part.op == one and part.args[1].op in _LISTED)
        if fits and varies(part.args[0]):
            lists.setdefault((part.args[0], part.args[1].op), []).extend(part.args[1:])
        else:
            found.append(part)
    for (value, _), choices in lists.items():
        found.append(within(value, choices, negated=op == "and"))
    return found


def negated(term: Term) -> Term:
    """Return what is TRUE where a predicate is FALSE, FALSE where it is TRUE, and else NULL."""
    if term.op in ("and", "or"):
        return (some if term.op == "and" else every)(negated(a) for a in term.args)
    return Term(NEGATED[term.op], term.args, term.words)


def not_true(term: Term) -> Term:
    """Return that a predicate is FALSE or NULL."""
    return FALSE if term == TRUE else TRUE if term == FALSE else Term("is not true", (term,))


def cast(value: Term, kind: str) -> Term:
    """Return a value as another type; of a literal of time, the literal that it is then."""
    if value.op == "date" and kind in ("timestamp", "timestamp_ntz"):
        return Term("ntz" if kind[9:] else kind, (), (f"{value.words[0]} 00:00:00",))
    if kind == "date" and (value.op == "ntz" or (value.op == "timestamp" and is_calm(value))):
        return Term("date", (), (value.words[0][:10],))
    return Term("cast", (value,), (kind,))


def is_calm(value: Term) -> bool:
    """Whether days follow each other in every time zone around what a value tells of times."""
    told = value.op in ("date", "timestamp", "instant", "ntz")
    return all(map(is_calm, value.args)) and not (told and value.words[0] < _CALM)


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
"""Units of intervals: how many of which of those that are told apart."""
_MOST = {"MONTHS": 12_000, "DAYS": 366_000, "HOURS": 10**7, "MINUTES": 10**8, "SECONDS": 10**9}
SECONDS = {"DAYS": 86_400, "HOURS": 3600, "MINUTES": 60, "SECONDS": 1}


def shifted(value: Term, count: int, unit: str) -> Term | None:
    """Return a time of the clock so many units later, or None where that is too far away."""
    each, unit = UNITS[unit.lower()]
    if abs(count * each) > _MOST[unit]:
        return None
    return Term("shift", (value,), (str(count * each), unit)) if count else value


def shifted_date(value: Term, days: int) -> Term | None:
    """Return a date so many days later; a literal one as a literal."""
    if value.op != "date":
        return shifted(value, days, "day")
    try:
        moved = date.fromisoformat(value.words[0]) + timedelta(days=days)
    except OverflowError:
        return None
    return Term("date", (), (moved.isoformat(),))


def rebuilt(term: Term, replace: Callable[[Term], Term | None]) -> Term | None:
    """Return a term with its variables replaced; None where `replace` has nothing for one."""
    if term.op in VARIABLES:
        return replace(term)
    if not term.args:
        return term
    args: list[Term] = []
    for arg in term.args:
        made = rebuilt(arg, replace)
        if made is None:
            return None
        args.append(made)
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
    """Return what follows from a predicate if its atoms are no more than `keep` makes of them.

    What `keep` returns has to follow from the atom; TRUE always does.
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
    """Whether a value is another one in other rows."""
    return any(True for _ in variables(term))


def conjuncts(term: Term) -> tuple[Term, ...]:
    """Return the parts of a predicate that all have to hold."""
    return term.args if term.op == "and" else () if term == TRUE else (term,)


def disjuncts(term: Term) -> tuple[Term, ...]:
    """Return the parts of a predicate of which one has to hold."""
    return term.args if term.op == "or" else () if term == FALSE else (term,)


# ------------------------------------------------------------------------------------------- text

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset(
    {w.upper() for phrase in SPARK.tokenizer_class.KEYWORDS for w in phrase.split()}
    | {w.upper() for w in SparkParser.FUNCTIONS}
    | {"CURRENT_DATE", "CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP", "CURRENT_USER", "USER"}
)
OF_TEXT = frozenset(("lower", "upper", "length"))
"""Functions of a text that are NULL for NULL and never raise."""
_CALLS = OF_TEXT | frozenset(
    ("date_trunc", "trunc", "year", "month", "dayofmonth", "quarter", "hour", "minute", "second")
)


def as_condition(term: Term) -> str | None:
    """Return the text of a predicate, None where it is true of all rows."""
    return None if term == TRUE else as_text(term)


@lru_cache(maxsize=65536)
def as_text(term: Term) -> str:
    """Return a term as Spark's SQL, in its one spelling.

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


class UnreadableError(ValueError):
    """A text is no predicate of the language."""


def from_text(text: str, version: int = FORMAT) -> Term:
    """Return the predicate that a text says, the inverse of `as_text`.

    Raises
    ------
    UnreadableError
        It says something that the language cannot say, or is of another version.

    Examples
    --------
    >>> as_text(from_text("b = 'x' and 3 < a OR false"))
    "a > 3 AND b = 'x'"
    """
    if version != FORMAT:
        raise UnreadableError(f"a predicate of format {version}; this is format {FORMAT}")
    tree = parse(text) if text.strip() else None
    if tree is None:
        raise UnreadableError(f"not a predicate: {text}")
    return _predicate(tree)


_COMPARED: dict[type[Any], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip


def _predicate(node: Any) -> Term:
    match node:
        case exp.Paren():
            return _predicate(node.this)
        case exp.And() | exp.Or():
            operands, stack, kind = list[Any](), [node], type(node)
            while stack:  # a chain is not nested
                this = stack.pop()
                if type(this) is kind:
                    stack += (this.expression, this.this)
                else:
                    operands.append(this)
            return (every if kind is exp.And else some)(map(_predicate, operands))
        case exp.Boolean():
            return TRUE if node.this else FALSE
        case exp.Not():
            inner = node.this
            if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Boolean):
                if inner.expression.this:
                    return not_true(_predicate(inner.this))
                raise _unreadable(node)
            return negated(_predicate(inner))
        case exp.Is() if isinstance(node.expression, exp.Null):
            return Term("is null", (_value(node.this),))
        case exp.In() if node.expressions and not node.args.get("query"):
            return within(_value(node.this), map(_value, node.expressions))
        case exp.Like() if not isinstance(node.expression, exp.Any | exp.All):
            made = Term("like", (_value(node.this), _value(node.expression)))
            return negated(made) if node.args.get("negate") else made
        case _ if type(node) in _COMPARED:
            return compared(_COMPARED[type(node)], _value(node.this), _value(node.expression))
        case _:
            raise _unreadable(node)


def _value(node: Any) -> Term:
    match node:
        case exp.Paren():
            return _value(node.this)
        case exp.Column() if not node.table:
            return column(plain(node.name))
        case exp.Boolean():
            return Term("boolean", (), ("true" if node.this else "false",))
        case exp.Literal():
            return _literal(node)
        case exp.Neg() if isinstance(node.this, exp.Literal):
            number = _value(node.this)
            if number.op in ("integer", "decimal", "double"):
                return Term(number.op, (), (f"-{number.words[0]}",))
        case exp.Cast():  # TryCast is one
            kind = type_name(node.args["to"])
            if isinstance(node.this, exp.Literal) and node.this.is_string and kind:
                made = time_literal(string_of(node.this.this) or "", kind)
                if made is not None:
                    return made
            elif kind in ("date", "timestamp", "timestamp_ntz", "double"):
                return cast(_value(node.this), kind)
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval):
            found = _shift(node.this, node.expression, -1 if isinstance(node, exp.Sub) else 1)
            if found is not None:
                return found
        case exp.Anonymous() | exp.Func():
            name = plain(node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
            args = node.expressions if isinstance(node, exp.Anonymous) else [node.this]
            if name in ("now", "current_timestamp") and not any(args):
                return NOW
            if name == "current_date" and not any(args):
                return TODAY
            if name in ("date_trunc", "trunc") and len(args) == 2:
                unit, inner = args if name == "date_trunc" else reversed(args)
                return Term(name, (_value(inner),), (unit.name,))
            if name in _CALLS and len(args) == 1:
                return Term(name, (_value(args[0]),))
        case _:
            pass
    raise _unreadable(node)


def _literal(node: Any) -> Term:
    number = suffixed(node.this) if node.is_string else node.this
    if number is None:
        text = string_of(node.this)
        if text is None:
            raise _unreadable(node)
        return Term("string", (), (text,))
    made = number_literal(number)
    if made is None:
        raise _unreadable(node)
    return made[0]


def _shift(base: Any, interval: Any, sign: int) -> Term | None:
    count, unit = interval.this, interval.args.get("unit")
    if unit is None or not count.name.isdecimal() or unit.name.lower() not in UNITS:
        return None
    return shifted(_value(base), sign * int(count.name), unit.name)


def _unreadable(node: Any) -> UnreadableError:
    return UnreadableError(f"not in the language of predicates: {node.sql('spark')}")


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}


def string_of(text: str) -> str | None:
    """Return what a string literal says, as `dialect.faithful` spells it; None: not certain."""
    if "\\" not in text:
        return None if re.match(r"[rR]['\"]", text) else text
    quotes, inner = text[:1], text[1:-1]
    if quotes not in "'\"" or text[-1:] != quotes or len(text) < 2:
        return None
    found: list[str] = []
    characters = iter(inner)
    for character in characters:
        if character == quotes:
            return None
        if character == "\\":
            character = _ESCAPES.get(next(characters, ""), "")
            if not character:
                return None
        found.append(character)
    return "".join(found)


_DATE = r"\d{4}-\d{2}-\d{2}"
_TIME = re.compile(rf"({_DATE})(?:[ T](\d{{2}}:\d{{2}})(?::(\d{{2}})(\.\d{{1,6}})?)?(\+00:00|Z)?)?")


def time_literal(text: str, kind: str) -> Term | None:
    """Return the literal of a type that Spark makes of a text; None where it may do otherwise.

    Only the plain spellings are read: a date, a time of it, and UTC.
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
    said = f"{day} {minutes or '00:00'}:{seconds or '00'}{(fraction or '').rstrip('0').rstrip('.')}"
    match kind:
        case "timestamp" if zone:
            return Term("instant", (), (f"{said}+00:00",))
        case "timestamp":
            return Term("timestamp", (), (said,))
        case "timestamp_ntz" if not zone:
            return Term("ntz", (), (said,))
        case _:
            return None


def number_literal(text: str) -> tuple[Term, str] | None:
    """Return the literal that a number is, and its type in Spark."""
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
        said = format(value, "f")
        fraction = len(said.partition(".")[2])
        whole = len(str(abs(int(value)))) if int(value) else 0
        if fraction == 0 or whole + fraction > 38:
            return None
        return Term("decimal", (), (said,)), f"decimal({max(whole + fraction, 1)},{fraction})"
    if (suffix == "D" or (suffix == "" and exponent)) and isfinite(float(digits)):
        return as_double(digits), "double"
    return None


def as_double(digits: str) -> Term:
    """Return a number as a literal of DOUBLE."""
    return Term("double", (), (repr(float(digits)),))


# ---------------------------------------------------------------------------------------- implying


_MOST_CASES = 4096
"""So many pairs of parts are looked at; beyond, nothing is claimed."""
_DAY = timedelta(days=1)


def implies(coverage: Term, wanted: Term) -> bool:
    """Whether a covered predicate certainly holds all rows of a wanted one, in every table.

    Sound, not complete: no means that it is not certain. Of what reads the clock both sides are
    taken at one instant; what was covered at another one is `evaluated` first.

    Examples
    --------
    >>> implies(from_text("a > 2 OR c = 1"), from_text("a = 3 AND b IS NULL"))
    True
    >>> implies(from_text("a = 3"), from_text("a > 2"))
    False
    """
    return _implied(wanted, coverage, [_MOST_CASES])


def _implied(wanted: Term, covered: Term, left: list[int]) -> bool:
    left[0] -= 1
    if left[0] < 0:
        return False
    if covered in (wanted, TRUE) or wanted == FALSE:
        return True
    if wanted.op == "or":
        return all(_implied(w, covered, left) for w in wanted.args)
    if covered.op == "and":
        return all(_implied(wanted, c, left) for c in covered.args)
    if covered.op == "or" and any(_implied(wanted, c, left) for c in covered.args):
        return True
    if wanted.op == "and":
        if any(_implied(w, covered, left) for w in wanted.args):
            return True
        alternatives = [w for w in wanted.args if w.op == "or"]
        return bool(alternatives) and _by_cases(wanted, alternatives[0], covered, left)
    if wanted.op == "in" and covered.op != "in":
        value, *choices = wanted.args
        return all(_implied(compared("=", value, c), covered, left) for c in choices)
    return _atom_implied(wanted, covered)


def _by_cases(wanted: Term, alternative: Term, covered: Term, left: list[int]) -> bool:
    others = [w for w in wanted.args if w is not alternative]
    return all(_implied(every((*others, case)), covered, left) for case in alternative.args)


def _atom_implied(wanted: Term, covered: Term) -> bool:
    if wanted.op in ("is null", "is not true") or not wanted.args or not covered.args:
        return False
    if covered.op == "is not null":
        return any(_strict_in(a, covered.args[0]) for a in wanted.args)
    if wanted.args[0] != covered.args[0]:
        return False
    allowed = covered.args[1:]
    match wanted.op, covered.op:
        case ("=", "in"):
            return wanted.args[1] in allowed
        case ("in", "in"):
            return set(wanted.args[1:]) <= set(allowed)
        case ("not in", "not in"):
            return set(wanted.args[1:]) >= set(allowed)
        case ("not in", "<>"):
            return allowed[0] in wanted.args[1:]
        case ("=", "not in"):
            return all(_bounded("=", wanted.args[1], "<>", one) for one in allowed)
        case (a, b) if a in FLIPPED and b in FLIPPED:
            return _bounded(a, wanted.args[1], b, allowed[0])
        case _:
            return False


def _strict_in(value: Term, other: Term) -> bool:
    """Whether a value is NULL wherever another is."""
    return value == other or any(_strict_in(a, other) for a in value.args)


def _bounded(op: str, bound: Term, other: str, limit: Term) -> bool:
    """Whether ``x op bound`` makes sure of ``x other limit``."""
    order = _order(bound, limit)
    if order is None:
        return False
    match op, other:
        case ("=", _):
            return _holds(other, order, 0)
        case ((">" | ">="), (">" | ">=")):
            return order > 0 or (order == 0 and (other == ">=" or op == ">"))
        case (("<" | "<="), ("<" | "<=")):
            return order < 0 or (order == 0 and (other == "<=" or op == "<"))
        case ((">" | ">="), "<>"):
            return order > 0 or (order == 0 and op == ">")
        case (("<" | "<="), "<>"):
            return order < 0 or (order == 0 and op == "<")
        case _:
            return op == other and order == 0


def _order(a: Term, b: Term) -> int | None:
    """Return how two values that are the same in all rows compare, if that is certain."""
    if a == b:
        return 0
    if a.op in LITERALS and b.op in LITERALS:
        numbers = {"integer", "decimal"}
        if a.op != b.op and not {a.op, b.op} <= numbers:
            return None
        first, second = _comparable(a), _comparable(b)
        # Of texts that are so far apart, every time zone has the instants in this order.
        apart = _DAY if is_calm(a) and is_calm(b) else 2 * _DAY
        if a.op == "timestamp" and abs(first - second) < apart:
            return None
        return (first > second) - (first < second)
    return _order_of_clocks(a, b)


def _order_of_clocks(a: Term, b: Term) -> int | None:
    """Return how two shifts of one time compare: only where calendars cannot turn them round."""
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


def _comparable(literal: Term) -> Any:
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


def _holds(op: str, a: Any, b: Any) -> bool:
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


_MOST_COMPARED = 400
"""Of more disjuncts only those are left out that say what others say with conditions more."""


def union(predicates: Iterable[Term]) -> Term:
    """Return that one of some predicates holds, without those that others include.

    Exactly the rows of the predicates together: nothing is left out that may add a row.

    Examples
    --------
    >>> as_text(union(map(from_text, ("a = 1 AND b > 2", "b > 1", "c = 'x'"))))
    "b > 1 OR c = 'x'"
    """
    whole = some(predicates)
    parts = sorted(disjuncts(whole), key=lambda t: (len(conjuncts(t)), as_text(t)))
    kept: list[Term] = []
    for part in parts:
        if len(parts) > _MOST_COMPARED:
            own = set(conjuncts(part))
            included = any(own.issuperset(conjuncts(k)) for k in kept)
        else:
            included = any(implies(k, part) for k in kept)
        if not included:
            kept.append(part)
    if len(kept) <= _MOST_COMPARED:
        for part in reversed(list(kept)):
            if any(k is not part and implies(k, part) for k in kept):
                kept.remove(part)
    return some(kept)


def difference(wanted: Term, coverage: Term) -> Term:
    """Return the rows of `wanted` that are none of `coverage`; FALSE: there certainly are none.

    ``wanted AND (coverage) IS NOT TRUE``: rows of which a predicate is NULL are not covered by it.
    """
    if implies(coverage, wanted):
        return FALSE
    return every((wanted, not_true(coverage)))


# -------------------------------------------------------------------------------------- evaluating


def reads_clock(term: Term) -> bool:
    """Whether a term has another meaning at another time."""
    return term in (NOW, TODAY) or any(reads_clock(a) for a in term.args)


def evaluated(term: Term, now: datetime, zone: tzinfo) -> Term:
    """Return a term as it is at one instant: without a clock, its times of day as instants.

    Calendar arithmetic is Spark's, which is Java's: a month back from 31 August is 31 July, six
    months are 28 or 29 February; a day back is the same time of the day before, however many hours
    that had; a time that a clock skipped is moved on by what was skipped; of two that were the
    same on the clock it is the one with the offset of the time that is moved, else the first.

    Parameters
    ----------
    now
        Aware.
    zone
        Of the session.
    """
    if not varies(term) and term.op not in NEGATED and term.op != "is not true":
        return _evaluated_value(term, now, zone)
    args = [evaluated(a, now, zone) for a in term.args]
    return made_of(term.op, args, term.words) if args else term


def evaluated_within(term: Term, first: datetime, last: datetime, zone: tzinfo) -> Term:
    """Return a predicate without a clock that holds wherever a predicate does at one of many times.

    For every instant from `first` to `last` it holds for each row for which what is `evaluated` at
    that instant holds, and for few others: each comparison with the clock is widened by itself.
    Where the two are one instant it is what is `evaluated` then.

    Parameters
    ----------
    first, last
        Aware, in this order.
    zone
        Of the session.

    Examples
    --------
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
    """Return between what a value is, without the clock."""
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


def _literal_of(value: _Value) -> Term:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return Term("ntz", (), (_said(value),))
        return Term("instant", (), (f"{_said(value.astimezone(UTC))}+00:00",))
    if isinstance(value, date):
        return Term("date", (), (value.isoformat(),))
    return Term("integer", (), (str(value),))


def _said(value: datetime) -> str:
    said = value.strftime("%H:%M:%S") + (f".{value.microsecond:06}".rstrip("0").rstrip("."))
    return f"{value.year:04}-{value.month:02}-{value.day:02} {said}"


def _at(term: Term, now: datetime, zone: tzinfo) -> _Value | None:
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
            return None if inner is None else _made_at(term, inner, zone)


def _made_at(term: Term, inner: _Value, zone: tzinfo) -> _Value | None:
    """Return the value of a term that is made of one value."""
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
"""What does not fall from one day to the next, nor on one day, where clocks are not moved."""


def _span_at(
    term: Term, first: datetime, last: datetime, zone: tzinfo
) -> tuple[_Value, _Value] | None:
    """Return between what a value that reads the clock is; None where that is not known.

    On each day it is least when that begins, and so is each day's least the greater, the later the
    day: also at the ends of months, where two days become one. So it is enough to look at both
    ends, when the day after the first begins, and when the one before the last ends. Around days on
    which clocks are moved it may be otherwise by hours.
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
    found = [made for v in inside if (made := _made_at(term, v, zone)) is not None]
    if len(found) < len(inside) or not (same or term.op in _RISING):
        return None
    low, high = min(found, key=_in_order), max(found, key=_in_order)
    if same:
        return low, high
    if isinstance(low, datetime):
        certain = not any(_is_moved(v, zone) for v in (*inside, *found))
    else:
        certain = all(isinstance(v, date) and f"{v.year:04}" >= _CALM for v in inside)
    if certain:
        return low, high
    if not isinstance(low, date) or not isinstance(high, date):
        return None
    return low - 2 * _DAY, high + 2 * _DAY


def _in_order(value: _Value) -> Any:
    """Return a value that compares as an instant, whatever clocks show then."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def _days_between(low: _Value, high: _Value, zone: tzinfo) -> Iterator[datetime]:
    """Yield when the day after the first of two times begins, and the one before the last ends."""
    if not isinstance(low, datetime) or not isinstance(high, datetime):
        return
    for day in (low.date() + _DAY, high.date()):
        begins = datetime.combine(day, time())
        begins = begins if low.tzinfo is None else _in_zone(begins, zone)
        ended = _in_order(begins) - timedelta(microseconds=1)
        for one in (begins, ended if low.tzinfo is None else ended.astimezone(zone)):
            if _in_order(low) <= _in_order(one) <= _in_order(high):
                yield one


def _is_moved(value: _Value, zone: tzinfo) -> bool:
    """Whether clocks are moved less than a day before or after a time."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return False
    around = [_in_order(value) + n * _DAY for n in (-1, 0, 1)]
    return len({one.astimezone(zone).utcoffset() for one in around}) > 1


def _in_zone(local: datetime, zone: tzinfo, offset: timedelta | None = None) -> datetime:
    """Return the instant at which clocks show a time, with an offset if they do so with it."""
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
    """Return the first day of the unit after the one in which a day is, or None: no such unit."""
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
