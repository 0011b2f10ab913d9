"""Translation of expressions of the algebra to terms of predicates."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import (
    Call,
    Expr,
    Ref,
    Subquery,
    Window,
)
from persist_assets.analysis.functions import CLOCK, INTEGRAL, SESSION, VOLATILE
from persist_assets.analysis.predicates.terms import FALSE, TRUE, Term
from persist_assets.analysis.pushdown.equalities import equal_columns, is_decimal, through
from persist_assets.analysis.pushdown.needs import Kept, Relation
from persist_assets.core.dialect import char_size
from persist_assets.core.time_values import DATE_UNITS, TIMES, UNIT_DAYS

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Sequence,
    )


_PARTS = frozenset(("year", "month", "dayofmonth", "quarter", "hour", "minute", "second"))
_OF_DAYS = frozenset(("year", "month", "dayofmonth", "quarter"))

_UNIT_NAMES = {
    **{u: u for u in UNIT_DAYS},
    **{"dd": "day", "mon": "month", "mm": "month", "yyyy": "year", "yy": "year"},
}
_MAY_RAISE = frozenset(("cast", "/", "div", "mod", "%", "+", "-", "*", "element_at", "[]"))
_MAX_NESTED = 20
Typed = tuple[Term, str]


def _digits(kind: str) -> tuple[int, int]:
    """Return how many digits a number has before and after its point."""
    if kind in INTEGRAL:
        return (3, 5, 10, 20)[INTEGRAL.index(kind)], 0
    digits, scale = map(int, kind[8:-1].split(","))
    return digits - scale, scale


def _have_one_type(kinds: Collection[str]) -> bool:
    """Whether values keep their values in the common type in which Spark compares them."""
    digits = [_digits(k) for k in kinds if is_decimal(k) or k in INTEGRAL]
    if len(digits) < len(kinds):
        return True  # beside a float or double, all are
    return max(whole for whole, _ in digits) + max(part for _, part in digits) <= 38


def _padded(one: Typed, other: Typed) -> Typed:
    """Return a value as Spark compares it for equality with another, if one is CHAR(n).

    All values of the column have n characters, and so do the literals that it is compared with.
    """
    (term, kind), (_, other_kind) = one, other
    n = char_size(kind)
    if n is not None and other[0].op == "string" and term.op == "ref":
        return Term("ref", (), (*term.words[:2], "string")), "string"
    n = char_size(other_kind)
    if n is not None and term.op == "string" and other[0].op == "ref":
        text = term.words[0]
        text = text if text[n:].strip(" ") else text[:n].ljust(n)
        return Term("string", (), (text,)), kind
    return one


def _alike(a: Typed, b: Typed) -> tuple[Term, Term] | None:
    """Return two values in Spark's common type for comparing them; None: it may fail."""
    (one, kind), (other, also) = a, b
    if kind == also and (kind in TIMES or kind in ("string", "boolean", "double")):
        return one, other
    exact = [is_decimal(k) or k in INTEGRAL for k in (kind, also)]
    if all(exact):
        (whole, part), (whole_too, part_too) = _digits(kind), _digits(also)
        return (one, other) if max(whole, whole_too) + max(part, part_too) <= 38 else None
    if "string" in (kind, also):
        return _of_text(a, b)
    if kind in TIMES and also in TIMES:
        common = "timestamp" if "timestamp" in (kind, also) else "timestamp_ntz"
        return _to(one, kind, common), _to(other, also, common)
    doubles = [_as_double(t, k, with_) for (t, k), with_ in ((a, also), (b, kind))]
    return (doubles[0], doubles[1]) if doubles[0] and doubles[1] else None


def _of_text(a: Typed, b: Typed) -> tuple[Term, Term] | None:
    """Return a time and a text literal as two times."""
    (one, kind), (other, also) = a, b
    if kind == "string":
        swapped = _of_text(b, a) if also != "string" else None
        return (swapped[1], swapped[0]) if swapped else None
    made = p.time_literal(other.words[0], kind) if other.op == "string" and kind in TIMES else None
    return (one, made) if made is not None else None


def _as_double(term: Term, kind: str, beside: str) -> Term | None:
    """Return a number as the DOUBLE that Spark uses to compare it with another."""
    if kind == "double":
        return term
    if term.op in ("integer", "decimal") and beside in ("double", "float"):
        if beside == "float" and term.op == "integer":
            return None  # a float is not compared as a double with an integer in every mode
        return p.as_double(term.words[0])
    if beside == "double" and kind in (*INTEGRAL, "float"):
        return p.cast(term, "double")
    if kind == "float" and is_decimal(beside):
        return p.cast(term, "double")
    return None


class TermReader:
    """Translator of one relation's expressions to the language of predicates.

    Attributes
    ----------
    lost
        The conditions that could not be translated since it was last cleared, with their instances.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.lost: list[tuple[frozenset[int], Kept]] = []
        self._values: dict[int, Typed | Kept] = {}

    # ------------------------------------------------------------------------------------- values

    def value(self, expr: Expr, depth: int = 0) -> Typed | Kept:
        """Return a value and its type, or why the language has no such value."""
        value = self._values.get(id(expr))
        if value is None:
            if depth > _MAX_NESTED:
                return Kept("function", "the nesting is too deep")
            value = self._values[id(expr)] = self._value(expr, depth + 1)
        return value

    def _value(self, expr: Expr, depth: int) -> Typed | Kept:
        match expr:
            case Ref(instance, number):
                return self._column(instance, number)
            case Window():
                return Kept("window", f"{self.describe(expr)} depends on other rows")
            case Subquery():
                return Kept("subquery", "it contains a subquery, and semi-joins are not pushed")
            case Call("number", (), (text,)):
                return p.number_literal(text) or Kept("type", f"{text} has a special type")
            case Call("string", (), (text,)):
                string_value = p.string_of(text)
                unsure = Kept("type", f"the value of {text} is uncertain")
                return (
                    unsure
                    if string_value is None
                    else (Term("string", (), (string_value,)), "string")
                )
            case Call("boolean", (), (word,)):
                return Term("boolean", (), (word,)), "boolean"
            case Call("current_timestamp", ()):
                return p.NOW, "timestamp"
            case Call("current_date", ()):
                return p.TODAY, "date"
            case Call("user's", _, (name,)):
                return Kept("UDF", f"{name}() is not one of Spark's own functions")
            case Call("parameter"):
                return Kept("parameter", f"{self.describe(expr)} differs from build to build")
            case Call(op) if op in VOLATILE or op in SESSION:
                return Kept("draws lots", f"{op}() is nondeterministic")
            case Call():
                return self._call(expr, depth) or self._unsupported(expr)

    def _unsupported(self, call: Call) -> Kept:
        for arg in call.args:
            arg_value = self._values.get(id(arg))
            if isinstance(arg_value, Kept) and arg_value.code != "type":
                return arg_value
        if call.op in _MAY_RAISE:
            return Kept("may raise under ANSI", f"{self.describe(call)} may raise an error")
        if call.op in CLOCK:
            return Kept("function", f"{call.op}() is not pushed")
        return Kept("function", f"{self.describe(call)} is not supported for pushdown")

    def _column(self, instance: int, number: int) -> Typed | Kept:
        kinds = self.relation.types.leaves.get(instance, ())
        kind = kinds[number] if number < len(kinds) else None
        if kind is None:
            return Kept("type", f"the type of {self._name(instance, number)} is uncertain")
        kind = "string" if kind.startswith("varchar(") else kind
        return Term("ref", (), (str(instance), str(number), kind)), kind

    def _call(self, call: Call, depth: int) -> Typed | None:
        values = [self.value(a, depth) for a in call.args if not _is_interval(a)]
        if any(isinstance(v, Kept) for v in values):
            return None
        typed = [v for v in values if not isinstance(v, Kept)]
        match call.op, typed:
            case (("cast" | "try_cast"), [(term, kind)]):
                return _cast(term, kind, call.words[0])
            case "to_date", [(term, kind)] if kind in TIMES:
                return _to(term, kind, "date"), "date"
            case "date_trunc", [(unit, "string"), (term, kind)] if kind in TIMES:
                name = _UNIT_NAMES.get(unit.words[0].lower()) if unit.op == "string" else None
                truncated = Term("date_trunc", (_to(term, kind, "timestamp"),), (name or "",))
                return (truncated, "timestamp") if name else None
            case "trunc", [(term, kind), (unit, "string")] if kind in TIMES:
                named = unit.words[0].lower() if unit.op == "string" else ""
                truncated = Term("trunc", (_to(term, kind, "date"),), (_UNIT_NAMES.get(named, ""),))
                return (truncated, "date") if named in DATE_UNITS else None
            case (op, [(term, kind)]) if op in _PARTS or op == "extract":
                part = {"day": "dayofmonth"}.get(call.words[0], call.words[0]) if call.words else op
                # EXTRACT(SECOND …) has a fraction, second() has none.
                fits = kind in TIMES and (part in _OF_DAYS or kind != "date")
                fits &= op != "extract" or part != "second"
                return (Term(part, (term,)), "int") if fits and part in _PARTS else None
            case (op, [(term, "string")]) if op in p.OF_TEXT:
                return Term(op, (term,)), "int" if op == "length" else "string"
            case _:
                return _moved(call, typed)

    # ----------------------------------------------------------------------------------- predicates

    def predicate(self, expr: Expr, *, negate: bool = False) -> Term:
        """Return a consequence of a condition, or of its negation; record lost conditions."""
        match expr:
            case Call(("and" | "or") as op, args):
                both = (op == "and") != negate
                each = [self.predicate(a, negate=negate) for a in args]
                return p.every(each) if both else p.some(each)
            case Call("not", (inner,)):
                return self.predicate(inner, negate=not negate)
            case Call("boolean", (), (word,)):
                return TRUE if (word == "true") != negate else FALSE
            case Call("null", ()):
                return FALSE
            case Subquery(("exists" | "in"), block, _) if not negate:
                # It implies its conditions on the outer rows. Its own instances mean nothing
                # outside: a subquery that is read twice is one object.
                self._lose(expr, self.value(expr))
                term = p.every(self.predicate(c) for c in block.conjuncts)
                own_instances = {str(i) for i, _ in block.leaves}
                equal = equal_columns([term])
                return p.weakened(
                    term, through(equal, lambda ref: ref.words[0] not in own_instances)
                )
            case Call():
                atom = self._atom(expr, negate)
            case _:
                atom = self._of_value(expr, negate)
        if isinstance(atom, Kept):
            self._lose(expr, atom)
            return TRUE
        return atom

    def condition(self, expr: Expr) -> tuple[Term, list[tuple[frozenset[int], Kept]]]:
        """Return a consequence of a condition, and its lost parts."""
        self.lost.clear()
        return self.predicate(expr), [*self.lost]

    def _lose(self, expr: Expr, reason: object) -> None:
        assert isinstance(reason, Kept)
        words = f"{self.describe(expr)}: {reason.words}"
        self.lost.append((self.relation.free.of(expr), replace(reason, words=words)))

    def _of_value(self, expr: Expr, negate: bool) -> Term | Kept:
        value = self.value(expr)
        if isinstance(value, Kept):
            return value
        if value[1] != "boolean":
            return Kept("type", "it is not boolean")
        return p.compared("=", value[0], Term("boolean", (), ("false" if negate else "true",)))

    def _atom(self, call: Call, negate: bool) -> Term | Kept:
        match call:
            case Call(("=" | "<>" | "<" | "<=") as op, (a, b)):
                if _is_null(a) or _is_null(b):
                    return FALSE
                pair = self._pair(a, b, equal=op in ("=", "<>"))
                return (
                    pair
                    if isinstance(pair, Kept)
                    else (p.compared(p.NEGATED[op] if negate else op, *pair))
                )
            case Call("<=>", (a, b)):
                return self._same(a, b, negate)
            case Call("is null", (inner,)):
                value = self.value(inner)
                if isinstance(value, Kept):
                    return value
                return Term("is not null" if negate else "is null", (value[0],))
            case Call("is", (inner,), (word,)):
                value = self.value(inner)
                if isinstance(value, Kept):
                    return value
                if value[1] != "boolean":
                    return Kept("type", "it is not boolean")
                tested = Term("boolean", (), (word,))
                return _exactly("=", value[0], tested, negate=negate)
            case Call("in", (needle, *choices)):
                return self._in(needle, choices, negate)
            case Call("sqlglot.like", (pattern, subject)):
                return self._like(pattern, subject, negate)
            case _:
                return self._of_value(call, negate)

    def _pair(self, a: Expr, b: Expr, *, equal: bool = False) -> tuple[Term, Term] | Kept:
        """Return two values as Spark compares them; `equal`: for equality."""
        one, other = self.value(a), self.value(b)
        if equal and not isinstance(one, Kept) and not isinstance(other, Kept):
            one, other = _padded(one, other), _padded(other, one)
        for value in (one, other):
            if isinstance(value, Kept):
                return value
        assert not isinstance(one, Kept)
        assert not isinstance(other, Kept)
        pair = _alike(one, other)
        if pair is None:
            words = f"{one[1]} compared with {other[1]} may raise an error or convert either"
            return Kept("may raise under ANSI", words)
        return pair

    def _same(self, a: Expr, b: Expr, negate: bool) -> Term | Kept:
        if _is_null(a) or _is_null(b):
            value = self.value(b if _is_null(a) else a)
            if isinstance(value, Kept):
                return value
            return Term("is not null" if negate else "is null", (value[0],))
        pair = self._pair(a, b)
        if isinstance(pair, Kept):
            return pair
        if not any(term.op in p.LITERALS for term in pair):
            return Kept("function", "<=> of two columns is not pushed")
        return _exactly("=", *pair, negate=negate)

    def _in(self, needle: Expr, choices: Sequence[Expr], negate: bool) -> Term | Kept:
        pairs: list[tuple[Term, Term]] = []
        for choice in choices:
            if _is_null(choice):
                if negate:
                    return FALSE
                continue
            pair = self._pair(needle, choice, equal=True)
            if isinstance(pair, Kept):
                return pair
            pairs.append(pair)
        kinds = {self._kind(c) for c in choices if not _is_null(c)} | {self._kind(needle)}
        kinds = {"string" if char_size(k) else k for k in kinds}
        if len({value for value, _ in pairs}) > 1 or ("string" in kinds and len(kinds) > 1):
            return Kept("may raise under ANSI", "its values are of several types")
        if not pairs:
            return FALSE
        if not _have_one_type(kinds):
            return Kept("may raise under ANSI", "its values have too many digits for a decimal")
        if any(choice.op not in p.LITERALS for _, choice in pairs):
            each = [p.compared("<>" if negate else "=", *pair) for pair in pairs]
            return p.every(each) if negate else p.some(each)
        return p.within(pairs[0][0], (c for _, c in pairs), negated=negate)

    def _kind(self, expr: Expr) -> str:
        value = self.value(expr)
        return "" if isinstance(value, Kept) else value[1]

    def _like(self, pattern: Expr, subject: Expr, negate: bool) -> Term | Kept:
        value, like = self.value(subject), self.value(pattern)
        if isinstance(value, Kept):
            return value
        if isinstance(like, Kept):
            return like
        if value[1] != "string" or like[0].op != "string" or "\\" in like[0].words[0]:
            return Kept("may raise under ANSI", "only patterns without escapes are pushed")
        return Term("not like" if negate else "like", (value[0], like[0]))

    # --------------------------------------------------------------------------------- for people

    def describe(self, expr: object) -> str:
        """Return an expression in words for people."""
        text = self._text(expr, 0)
        return text if len(text) <= 80 else f"{text[:77]}…"

    def _text(self, expr: object, depth: int) -> str:
        if depth > 6:
            return "…"
        match expr:
            case Ref(instance, number):
                return self._name(instance, number)
            case Window(function):
                return f"{self._text(function, depth + 1)} OVER (…)"
            case Subquery(kind, _, args):
                return (
                    f"{', '.join(self._text(a, depth + 1) for a in args)} {kind} (SELECT …)".strip()
                )
            case Call("string", (), (text,)):
                return f"'{text}'"
            case Call("sqlglot.like", (pattern, subject)):
                return f"{self._text(subject, depth + 1)} LIKE {self._text(pattern, depth + 1)}"
            case Call("cast", (inner,), (kind,)):
                return f"CAST({self._text(inner, depth + 1)} AS {kind.upper()})"
            case Call(("<" | "<=") as op, (Call("number" | "string" | "cast") as a, b)):
                flipped = {"<": ">", "<=": ">="}[op]
                return f"{self._text(b, depth + 1)} {flipped} {self._text(a, depth + 1)}"
            case Call(op, (a, b)) if not op[0].isalpha() or op in ("and", "or", "div"):
                return f"{self._text(a, depth + 1)} {op.upper()} {self._text(b, depth + 1)}"
            case Call("parameter", (), (word,)):
                return f":{word}"
            case Call("user's", args, (name,)):
                return f"{name}({', '.join(self._text(a, depth + 1) for a in args)})"
            case Call(op, (), (word,)) if op in ("number", "boolean"):
                return word
            case Call(op, args):
                inner = ", ".join(self._text(a, depth + 1) for a in args)
                return f"{op.removeprefix('sqlglot.')}({inner})"
            case _:
                return "…"

    def _name(self, instance: int, number: int) -> str:
        names = self.relation.names.get(instance, ())
        return names[number] if number < len(names) else "…"

    def describe_term(self, term: Term) -> str:
        """Return a predicate in words for people."""

        def name(one: Term) -> Term:
            return p.column(self._name(int(one.words[0]), int(one.words[1])))

        renamed = p.rebuilt(term, name)
        return p.as_text(renamed) if renamed is not None else "…"


def _exactly(op: str, a: Term, b: Term, *, negate: bool) -> Term:
    """Return a comparison that is FALSE if a value is NULL, or the negation of that."""
    if not negate:
        return p.compared(op, a, b)
    nulls = [Term("is null", (v,)) for v in (a, b) if v.op not in p.LITERALS]
    return p.some((p.compared("<>", a, b), *nulls))


def _is_null(expr: Expr) -> bool:
    if isinstance(expr, Call) and expr.op in ("cast", "try_cast"):
        return _is_null(expr.args[0])
    return isinstance(expr, Call) and expr.op == "null"


def _is_interval(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.op == "interval"


def _to(term: Term, kind: str, target: str) -> Term:
    return term if kind == target else p.cast(term, target)


def _cast(term: Term, kind: str, target: str) -> Typed | None:
    if kind == target:
        return term, kind
    if kind in TIMES and target in TIMES:
        return p.cast(term, target), target
    if term.op == "string" and target in TIMES:
        literal = p.time_literal(term.words[0], target)
        return (literal, target) if literal is not None else None
    if kind in INTEGRAL and target in INTEGRAL[INTEGRAL.index(kind) :]:
        return term, target
    return None


_PIECES = re.compile(r"(-?\d+)\s+([a-z]+)")


def _interval(expr: Expr) -> tuple[int, str] | None:
    """Return a constant interval as a number of one unit."""
    match expr:
        case Call("interval", (Call(("string" | "number"), (), (text,)),), (unit,)):
            interval_text = f"{text} {unit}".strip().lower()
        case _:
            return None
    pieces = _PIECES.findall(interval_text)
    if " ".join(f"{n} {u}" for n, u in pieces) != " ".join(interval_text.split()):
        return None
    if not pieces or any(u not in p.UNITS for _, u in pieces):
        return None
    if len(pieces) == 1:
        return int(pieces[0][0]), pieces[0][1]
    units = {p.UNITS[u][1] for _, u in pieces}
    if len(units) == 1:
        return sum(int(n) * p.UNITS[u][0] for n, u in pieces), units.pop().lower()
    if "MONTHS" in units or any(n.startswith("-") for n, _ in pieces):
        return None
    return sum(int(n) * p.UNITS[u][0] * p.SECONDS[p.UNITS[u][1]] for n, u in pieces), "second"


def _moved(call: Call, typed: list[Typed]) -> Typed | None:
    """Return a clock time, or a literal time, shifted by an interval."""
    intervals = [a for a in call.args if _is_interval(a)]
    sign = -1 if call.op in ("-", "date_sub") else 1
    match call.op, typed:
        case (("+" | "-"), [(term, kind)]) if len(intervals) == 1:
            interval = _interval(intervals[0])
            if interval is None or (call.op == "-" and _is_interval(call.args[0])):
                return None
            count, unit = interval
        case (("+" | "-" | "date_add" | "date_sub"), [(term, "date"), (n, _)]) if not call.words:
            if n.op != "integer":
                return None
            kind, count, unit = "date", int(n.words[0]), "day"
        case "add_months", [(term, "date"), (n, _)] if n.op == "integer":
            kind, count, unit = "date", int(n.words[0]), "month"
        case _:
            return None
    if p.varies(term) or kind not in TIMES:
        return None  # a shifted column may leave the calendar
    if kind == "date" and p.UNITS[unit][1] not in ("MONTHS", "DAYS"):
        term, kind = p.cast(term, "timestamp"), "timestamp"
    shifted_time = p.shifted(term, sign * count, unit)
    return (shifted_time, kind) if shifted_time is not None else None


def to_kind(day: str, kind: str) -> Term:
    """Return the literal of a day as a value of a time type."""
    return _to(Term("date", (), (day,)), "date", kind)


def kind_of(term: Term) -> str:
    """Return the type of a term, by its form."""
    match term.op:
        case "ref" | "out":
            return term.words[-1]
        case "cast":
            return term.words[0]
        case "date_trunc" | "now" | "timestamp" | "instant":
            return "timestamp"
        case "trunc" | "current_date" | "date":
            return "date"
        case "ntz":
            return "timestamp_ntz"
        case "shift":
            return kind_of(term.args[0])
        case _:
            return ""
