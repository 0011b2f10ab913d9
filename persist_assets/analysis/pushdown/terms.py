"""Translation of expressions of the algebra to terms of predicates."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
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
from persist_assets.analysis.pushdown.comparing import alike, keep_their_values, padded
from persist_assets.analysis.pushdown.conditionals import (
    COMPARISONS,
    chosen,
    have_one_type,
    is_choice,
    is_null,
    not_null,
    on_choice,
    truth,
    untrue,
)
from persist_assets.analysis.pushdown.constants import Typed, constant
from persist_assets.analysis.pushdown.equalities import equal_columns, is_decimal, through
from persist_assets.analysis.pushdown.relation import Kept, Relation
from persist_assets.core.dialect import char_size
from persist_assets.core.time_values import DATE_UNITS, TIMES, UNIT_DAYS

if TYPE_CHECKING:
    from collections.abc import (
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


def _is_padded(expr: Expr) -> bool:
    return isinstance(expr, Ref) or (isinstance(expr, Call) and expr.op == "string")


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
        self._made: list[Expr] = []

    def made(self, op: str, *args: Expr) -> Call:
        """Return a call that lives as long as its value is remembered."""
        call = Call(op, args)
        self._made.append(call)
        return call

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
                return self.column(instance, number)
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
            case Call("localtimestamp", ()):
                return p.cast(p.NOW, "timestamp_ntz"), "timestamp_ntz"
            case Call() if is_choice(expr):
                return chosen(self, expr) or self._unsupported(expr)
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

    def column(self, instance: int, number: int) -> Typed | Kept:
        """Return a column of a leaf as a value, or why the language has no such value."""
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
        if len(typed) == len(call.args) and all(term.op in p.LITERALS for term, _ in typed):
            literal = constant(call.op, call.words, typed)
            if literal is not None:
                return literal
        match call.op, typed:
            case "field", [(term, kind)]:
                return _field(term, kind, call.words[0])
            case "[]", [(term, kind), (Term("string", (), (name,)), "string")]:
                return _field(term, kind, name)
            case "last_day", [(term, "date")] if not p.varies(term):
                after = p.shifted(Term("trunc", (term,), ("month",)), 1, "month")
                last = p.shifted(after, -1, "day") if after is not None else None
                return (last, "date") if last is not None else None
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
                conditions = [self.predicate(c) for c in block.conjuncts]
                term = p.every((*conditions, *self.equalities(expr)))
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
            return not_null(self, expr)
        return atom

    def equalities(self, test: Subquery) -> list[Term]:
        """Return the equalities between the outer rows of ``a IN (SELECT b …)`` and their matches.

        Spark compares integers, and other values of one type, as ``a = b`` does. The rest is left
        out.
        """
        if test.kind != "in":
            return []
        terms: list[Term] = []
        for a, output in zip(test.args, test.block.columns, strict=False):
            kind, also = self._kind(a), self._kind(output.expr)
            is_plain = kind in (*TIMES, "string", "boolean") or is_decimal(kind)
            if (is_plain and kind == also) or (kind in INTEGRAL and also in INTEGRAL):
                pair = self._pair(a, output.expr, equal=True)
                if not isinstance(pair, Kept):
                    terms.append(p.compared("=", *pair))
        return terms

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
            case Call(op, (a, b)) if op in COMPARISONS:
                if is_null(a) or is_null(b):
                    return FALSE
                pair = self._pair(a, b, equal=op in ("=", "<>"))
                if isinstance(pair, Kept):
                    return self._composed(call, negate, pair)
                return p.compared(p.NEGATED[op] if negate else op, *pair)
            case Call(("isnull" | "isnotnull") as op, (inner,)):
                test = self.made("is null", inner)
                return self.predicate(test, negate=negate == (op == "isnull"))
            case Call(("startswith" | "endswith" | "contains"), _):
                return self._part(call, negate)
            case Call() if is_choice(call):
                if self.relation.types.of(call) != "boolean":
                    return Kept("type", "it is not boolean")
                return on_choice(self, call, lambda value: value, negate=negate)
            case Call("<=>", (a, b)):
                return self._same(a, b, negate)
            case Call("is null", (inner,)):
                if is_null(inner):
                    return FALSE if negate else TRUE
                value = self.value(inner)
                if isinstance(value, Kept) and isinstance(inner, Call) and is_choice(inner):
                    test = partial(self.made, "is null")
                    return on_choice(self, inner, test, negate=negate)
                if isinstance(value, Kept):
                    return value
                if value[0].op in p.LITERALS:
                    return TRUE if negate else FALSE
                return Term("is not null" if negate else "is null", (value[0],))
            case Call("is", (inner,), (word,)):
                value = self.value(inner)
                if isinstance(value, Kept):
                    return self._tested(inner, word == "true", negate) or value
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

    def _composed(self, call: Call, negate: bool, otherwise: Kept) -> Term | Kept:
        """Return a comparison of a choice, a condition or a row of values with a constant."""
        op, (a, b) = call.op, call.args
        for one, other in ((a, b), (b, a)):
            if is_choice(one) and not is_choice(other) and isinstance(one, Call):
                if not have_one_type(self, one, other):
                    continue

                def test(value: Expr, one: Expr = one) -> Expr:
                    return self.made(op, *(value if side is one else side for side in (a, b)))

                return on_choice(self, one, test, negate=negate)
            is_true = truth(self, other) if op in ("=", "<>") else None
            if is_true is not None and self.relation.types.of(one) == "boolean":
                return self.predicate(one, negate=negate == ((op == "=") == is_true))
        if op == "=" and not negate:
            return self._same_rows(a, b) or otherwise
        return otherwise

    def _same_rows(self, row: Expr, other: Expr) -> Term | None:
        """Return a test that rows of values are equal (NULL equals NULL); None if uncertain."""
        match row, other:
            case Call("tuple" | "struct"), Call("tuple" | "struct"):
                if len(row.args) != len(other.args):
                    return None
            case _:
                return None
        same: list[Term] = []
        for a, b in zip(row.args, other.args, strict=True):
            kinds = {self._kind(e) for e in (a, b) if not is_null(e)}
            plain_kinds = len(kinds) == 1 and kinds <= {*TIMES, "string", "boolean"}
            if plain_kinds or all(k in INTEGRAL or is_decimal(k) for k in kinds):
                term = self._same(a, b, False)
                same += [] if isinstance(term, Kept) else [term]
        return p.every(same) if same else None

    def _part(self, call: Call, negate: bool) -> Term | Kept:
        """Return a test for a part of a text, as LIKE with an escaped pattern."""
        value, part = (self.value(a) for a in call.args)
        if isinstance(value, Kept):
            return value
        if isinstance(part, Kept) or part[0].op != "string" or value[1] != "string":
            return self._unsupported(call)
        if not part[0].words[0]:
            return FALSE if negate else Term("is not null", (value[0],))
        before, after = {"startswith": ("", "%"), "endswith": ("%", "")}.get(call.op, ("%", "%"))
        escaped = re.sub(r"([%_\\])", r"\\\1", part[0].words[0])
        pattern = Term("string", (), (f"{before}{escaped}{after}",))
        return Term("not like" if negate else "like", (value[0], pattern))

    def _pair(self, a: Expr, b: Expr, *, equal: bool = False) -> tuple[Term, Term] | Kept:
        """Return two values as Spark compares them; `equal`: for equality."""
        one, other = self.value(a), self.value(b)
        if equal and not isinstance(one, Kept) and not isinstance(other, Kept):
            for (_, kind), compared in ((one, b), (other, a)):
                # Spark pads literals, and columns, but no columns that a literal computes.
                if char_size(kind) is not None and not _is_padded(compared):
                    return Kept("type", "a CHAR compared with something else than a literal")
            one, other = padded(one, other), padded(other, one)
        for value in (one, other):
            if isinstance(value, Kept):
                return value
        assert not isinstance(one, Kept)
        assert not isinstance(other, Kept)
        pair = alike(one, other)
        if pair is None:
            words = f"{one[1]} compared with {other[1]} may raise an error or convert either"
            return Kept("may raise under ANSI", words)
        return pair

    def _same(self, a: Expr, b: Expr, negate: bool) -> Term | Kept:
        if is_null(a) or is_null(b):
            value = self.value(b if is_null(a) else a)
            if isinstance(value, Kept):
                return value
            return Term("is not null" if negate else "is null", (value[0],))
        pair = self._pair(a, b)
        if isinstance(pair, Kept):
            for one, other in ((a, b), (b, a)):
                is_true = truth(self, other)
                if is_true is not None:
                    return self._tested(one, is_true, negate) or pair
            return pair
        if not any(term.op in p.LITERALS for term in pair):
            return Kept("function", "<=> of two columns is not pushed")
        return _exactly("=", *pair, negate=negate)

    def _tested(self, inner: Expr, is_true: bool, negate: bool) -> Term | None:
        """Return a test that a condition is TRUE or FALSE, or its negation; None if uncertain."""
        if self.relation.types.of(inner) != "boolean":
            return None
        if not negate:
            return self.predicate(inner, negate=not is_true)
        return untrue(self, inner if is_true else self.made("not", inner))

    def _in(self, needle: Expr, choices: Sequence[Expr], negate: bool) -> Term | Kept:
        if is_null(needle):
            return FALSE
        if isinstance(needle, Call) and is_choice(needle) and have_one_type(self, needle):
            return on_choice(
                self, needle, lambda value: self.made("in", value, *choices), negate=negate
            )
        if isinstance(needle, Call) and needle.op in ("tuple", "struct") and not negate:
            rows = [self._same_rows(needle, choice) for choice in choices]
            if None not in rows:
                return p.some(row for row in rows if row is not None)
        pairs: list[tuple[Term, Term]] = []
        for choice in choices:
            if is_null(choice):
                if negate:
                    return FALSE
                continue
            pair = self._pair(needle, choice, equal=True)
            if isinstance(pair, Kept):
                return pair
            pairs.append(pair)
        kinds = {self._kind(c) for c in choices if not is_null(c)} | {self._kind(needle)}
        kinds = {"string" if char_size(k) else k for k in kinds}
        # A text is converted to a date or an integer, or is spelled as that is: in either mode.
        own = self._kind(needle)
        converted = own == "date" and kinds <= {"date", "string"}
        converted |= own in INTEGRAL and kinds <= {*INTEGRAL, "string"}
        mixed = "string" in kinds and len(kinds) > 1 and not converted
        if len({value for value, _ in pairs}) > 1 or mixed:
            return Kept("may raise under ANSI", "its values are of several types")
        if not pairs:
            return FALSE
        if not keep_their_values(kinds - {"string"} if converted else kinds):
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


def _field(term: Term, kind: str, name: str) -> Typed | None:
    """Return the field of a struct, whatever the case of its name."""
    if not kind.startswith("struct<") or not kind.endswith(">"):
        return None
    fields = [f.partition(":") for f in _split(kind[7:-1])]
    same = [(n, k.strip()) for n, _, k in fields if n.strip("` ").lower() == name.lower()]
    if len(same) != 1 or not re.fullmatch(r"\w+", same[0][0], re.ASCII):
        return None
    field_kind = "string" if same[0][1].startswith("varchar(") else same[0][1]
    return Term("field", (term,), (same[0][0],)), field_kind


def _split(text: str) -> list[str]:
    """Return parts between the commas of a text that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


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
    if term.op in p.LITERALS and not "0100" < term.words[0] < "9000":
        return None  # so may a literal
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
