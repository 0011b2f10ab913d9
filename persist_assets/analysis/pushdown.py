"""Which rows and columns of tables a query needs: a fold over the algebra. Pure.

For each place in which a query reads a table (an instance) the fold finds a predicate P such that
the query has the same rows over every part of the table that holds all rows of P: so the rows of
one place may stand beside those of another. Conditions go down from what reads to what is read:

- past filters, projections, inner joins, sources that are not persisted, CTEs;
- to all columns that a join makes equal, where values that are equal cannot be told apart;
- past groups and DISTINCT, about keys that are in every grouping set;
- past UNION ALL, into each of its branches;
- past outer joins, to the side that is preserved, to the other one from ON, and from above in
  addition where they reject NULLs;
- past windows, where the window itself saw them or they are about all of its partitions;
- never past LIMIT, FULL JOIN, EXCEPT, INTERSECT, generated rows and what draws lots.

Subqueries read places of their own. What a persisted source reads is that source's matter. Only
what cannot raise an error is pushed: comparisons, IN, IS NULL, LIKE, AND, OR, of columns, of times
cut down, and of the clock, with the conversions that Spark makes written out. The invariant: a
predicate is only ever wider than needed, and what was not pushed is told with its reason (`Kept`).
Columns that are not needed have to be there for a query's text, but may be NULL in all rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Expr,
    Free,
    Generate,
    Given,
    Limit,
    Node,
    Opaque,
    Outer,
    Ref,
    SetOperation,
    Sort,
    Subquery,
    Values,
    Window,
    parts,
    walk,
)
from persist_assets.analysis.binder import bind
from persist_assets.analysis.binding import Binding, Face
from persist_assets.analysis.functions import CLOCK, INTEGRAL, SESSION, VOLATILE
from persist_assets.analysis.predicates.terms import FALSE, TRUE, Term
from persist_assets.analysis.semantics import bind_whole, own_origins
from persist_assets.analysis.types import Types
from persist_assets.core.dialect import char_size
from persist_assets.core.languages import REFERENCE
from persist_assets.core.model.project import Needed
from persist_assets.core.time_values import DATE_UNITS, TIMES, UNIT_DAYS

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from persist_assets.core.model.queries import Query, SourceID


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """A condition that is not pushed to a table, and why.

    Attributes
    ----------
    code
        A word or two that are always the same: ``UDF``, ``limit above``, ``null side``, …
    words
        For people: which condition, and what keeps it.
    """

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Disjunct:
    """What one place in which a table is read needs of it.

    Attributes
    ----------
    predicate
        TRUE: all rows.
    columns
        Names, sorted.
    kept
        What was not pushed, sorted.
    """

    predicate: Term
    columns: tuple[str, ...]
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """What a persisted source, or a query, needs of a table.

    Attributes
    ----------
    disjuncts
        One for each place that differs, sorted by text.
    """

    reader: SourceID
    table: SourceID
    disjuncts: tuple[Disjunct, ...]

    @property
    def predicate(self) -> Term:
        """Of all places together."""
        return p.union(d.predicate for d in self.disjuncts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of all places together, sorted."""
        return _sorted(c for d in self.disjuncts for c in d.columns)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """What was not pushed, each once."""
        return tuple(sorted({k for d in self.disjuncts for k in d.kept}))


def needed(need: Need) -> Needed:
    """Return what a project says of a need, in which predicates are texts."""
    return Needed(
        need.reader,
        need.table,
        p.as_text(need.predicate),
        need.columns,
        tuple((kept.code, kept.words) for kept in need.kept),
    )


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


# -------------------------------------------------------------------------------------- relations


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """The algebra of one source, in which every source that it reads is a leaf.

    Attributes
    ----------
    types
        Of the columns of all leaves.
    names
        Of what the leaves show, for people: by instance.
    whole
        Why it could not be analysed, or None.
    volatile
        It draws lots, which fall otherwise over other rows.
    """

    block: Block
    types: Types
    names: Mapping[int, tuple[str, ...]]
    whole: str | None = None
    volatile: bool = False
    free: Free = field(default_factory=Free, repr=False)


def leaf(source_id: SourceID, columns: Sequence[tuple[str, str | None]]) -> Face:
    """Return a source as a leaf of its readers' relations, with the names and types of columns."""
    names = tuple(name for name, _ in columns)
    kinds = tuple(kind for _, kind in columns)
    given = Given(source_id, names, None, own_origins(source_id, names), kinds)
    return Face(None, given, names or None)


def relate(query: Query, path: str, upstream: Sequence[Face]) -> Relation:
    """Return the relation of a query that has its tree.

    Parameters
    ----------
    upstream
        For each reference of the query, what it reads as a `leaf`.
    """
    binding = Binding(bind, path, upstream, REFERENCE, any_condition=True)
    block, notes = bind_whole(binding, query, upstream)
    names: dict[int, tuple[str, ...]] = {}
    for thing in walk(block):
        if isinstance(thing, Block):
            names |= {i: _names_of(node) for i, node in thing.leaves}
    whole = notes[0].partition(":")[0] if notes else None
    return Relation(block, binding.types, names, whole, binding.is_volatile(block))


def _names_of(node: Node) -> tuple[str, ...]:
    match node:
        case Given(columns=names):
            return names
        case Derived(block) | Limit(block):
            return tuple(o.name for o in block.columns)
        case Outer(_, left, right):
            return tuple(o.name for o in (*left.columns, *right.columns))
        case SetOperation(_, branches):
            return tuple(o.name for o in branches[0].columns)
        case _:
            return ()


def opaque(reads: Sequence[Face], because: str) -> Relation:
    """Return the relation of what reads all rows of everything, as a function of Python does.

    Parameters
    ----------
    reads
        With those columns only that it is given.
    """
    node = Opaque((), tuple(face.given for face in reads), 0)
    return Relation(Block(((1, node),)), Types(), {}, because)


# ------------------------------------------------------------------------------------ expressions

_PARTS = frozenset(("year", "month", "dayofmonth", "quarter", "hour", "minute", "second"))
_OF_DAYS = frozenset(("year", "month", "dayofmonth", "quarter"))
_UNIT_NAMES = {
    **{u: u for u in UNIT_DAYS},
    **{"dd": "day", "mon": "month", "mm": "month", "yyyy": "year", "yy": "year"},
}
_MAY_RAISE = frozenset(("cast", "/", "div", "mod", "%", "+", "-", "*", "element_at", "[]"))
_MAX_NESTED = 20

Typed = tuple[Term, str]


def _is_decimal(kind: str) -> bool:
    return kind.startswith("decimal(")


def _digits(kind: str) -> tuple[int, int]:
    """Return how many digits of a number stand before and behind its point."""
    if kind in INTEGRAL:
        return (3, 5, 10, 20)[INTEGRAL.index(kind)], 0
    digits, scale = map(int, kind[8:-1].split(","))
    return digits - scale, scale


def _have_one_type(kinds: Collection[str]) -> bool:
    """Whether values are what they are in the one type in which Spark compares them all."""
    digits = [_digits(k) for k in kinds if _is_decimal(k) or k in INTEGRAL]
    if len(digits) < len(kinds):
        return True  # beside a fraction, all are fractions
    return max(whole for whole, _ in digits) + max(part for _, part in digits) <= 38


def _padded(one: Typed, other: Typed) -> Typed:
    """Return a value as Spark compares it for equality with another, where one is CHAR(n).

    All values of the column have n characters, and so have the literals that it is compared with.
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
    """Return two values in the one type in which Spark compares them; None: it may fail."""
    (one, kind), (other, also) = a, b
    if kind == also and (kind in TIMES or kind in ("string", "boolean", "double")):
        return one, other
    exact = [_is_decimal(k) or k in INTEGRAL for k in (kind, also)]
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
    """Return a time and a literal of text as two times."""
    (one, kind), (other, also) = a, b
    if kind == "string":
        swapped = _of_text(b, a) if also != "string" else None
        return (swapped[1], swapped[0]) if swapped else None
    made = p.time_literal(other.words[0], kind) if other.op == "string" and kind in TIMES else None
    return (one, made) if made is not None else None


def _as_double(term: Term, kind: str, beside: str) -> Term | None:
    """Return a number as the DOUBLE as which Spark compares it with another."""
    if kind == "double":
        return term
    if term.op in ("integer", "decimal") and beside in ("double", "float"):
        if beside == "float" and term.op == "integer":
            return None  # a float is not compared as a double with an integer in every mode
        return p.as_double(term.words[0])
    if beside == "double" and kind in (*INTEGRAL, "float"):
        return p.cast(term, "double")
    if kind == "float" and _is_decimal(beside):
        return p.cast(term, "double")
    return None


class _Reader:
    """Says expressions of one relation in the language of predicates.

    Attributes
    ----------
    lost
        What could not be said, with the instances it is about, since it was last emptied.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.lost: list[tuple[frozenset[int], Kept]] = []
        self._values: dict[int, Typed | Kept] = {}

    # ------------------------------------------------------------------------------------- values

    def value(self, expr: Expr, depth: int = 0) -> Typed | Kept:
        """Return a value and its type, or why it is none of the language."""
        known = self._values.get(id(expr))
        if known is None:
            if depth > _MAX_NESTED:
                return Kept("function", "it is nested too deeply")
            known = self._values[id(expr)] = self._value(expr, depth + 1)
        return known

    def _value(self, expr: Expr, depth: int) -> Typed | Kept:
        match expr:
            case Ref(instance, number):
                return self._column(instance, number)
            case Window():
                return Kept("window", f"{self.said(expr)} looks at other rows")
            case Subquery():
                return Kept("subquery", "it asks another query: joins are not pushed as semi-joins")
            case Call("number", (), (text,)):
                return p.number_literal(text) or Kept("type", f"{text} has a type of its own")
            case Call("string", (), (text,)):
                said = p.string_of(text)
                unsure = Kept("type", f"what {text} says is not certain")
                return unsure if said is None else (Term("string", (), (said,)), "string")
            case Call("boolean", (), (word,)):
                return Term("boolean", (), (word,)), "boolean"
            case Call("current_timestamp", ()):
                return p.NOW, "timestamp"
            case Call("current_date", ()):
                return p.TODAY, "date"
            case Call("user's", _, (name,)):
                return Kept("UDF", f"{name}() is not one of Spark's own functions")
            case Call("parameter"):
                return Kept("parameter", f"{self.said(expr)} differs from build to build")
            case Call(op) if op in VOLATILE or op in SESSION:
                return Kept("draws lots", f"{op}() may answer differently each time")
            case Call():
                return self._call(expr, depth) or self._unsaid(expr)

    def _unsaid(self, call: Call) -> Kept:
        for arg in call.args:
            found = self._values.get(id(arg))
            if isinstance(found, Kept) and found.code != "type":
                return found
        if call.op in _MAY_RAISE:
            return Kept("may raise under ANSI", f"{self.said(call)} may raise an error")
        if call.op in CLOCK:
            return Kept("function", f"{call.op}() is not pushed")
        return Kept("function", f"{self.said(call)} is not among what is pushed")

    def _column(self, instance: int, number: int) -> Typed | Kept:
        kinds = self.relation.types.leaves.get(instance, ())
        kind = kinds[number] if number < len(kinds) else None
        if kind is None:
            return Kept("type", f"the type of {self._name(instance, number)} is not certain")
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
                made = Term("date_trunc", (_to(term, kind, "timestamp"),), (name or "",))
                return (made, "timestamp") if name else None
            case "trunc", [(term, kind), (unit, "string")] if kind in TIMES:
                named = unit.words[0].lower() if unit.op == "string" else ""
                made = Term("trunc", (_to(term, kind, "date"),), (_UNIT_NAMES.get(named, ""),))
                return (made, "date") if named in DATE_UNITS else None
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
        """Return what follows from a condition, or from its being FALSE; what is lost is noted."""
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
                # It holds only if what its own conditions say of the rows around it does. Its own
                # are named here only: a subquery that is read twice is one object.
                self._lose(expr, self.value(expr))
                term = p.every(self.predicate(c) for c in block.conjuncts)
                own = {str(i) for i, _ in block.leaves}
                equal = _equal_columns([term])
                return p.weakened(term, _through(equal, lambda ref: ref.words[0] not in own))
            case Call():
                made = self._atom(expr, negate)
            case _:
                made = self._of_value(expr, negate)
        if isinstance(made, Kept):
            self._lose(expr, made)
            return TRUE
        return made

    def condition(self, expr: Expr) -> tuple[Term, list[tuple[frozenset[int], Kept]]]:
        """Return what follows from a condition, and what of it is lost."""
        self.lost.clear()
        return self.predicate(expr), [*self.lost]

    def _lose(self, expr: Expr, kept: object) -> None:
        assert isinstance(kept, Kept)
        words = f"{self.said(expr)}: {kept.words}"
        self.lost.append((self.relation.free.of(expr), replace(kept, words=words)))

    def _of_value(self, expr: Expr, negate: bool) -> Term | Kept:
        value = self.value(expr)
        if isinstance(value, Kept):
            return value
        if value[1] != "boolean":
            return Kept("type", "it is no boolean")
        return p.compared("=", value[0], Term("boolean", (), ("false" if negate else "true",)))

    def _atom(self, call: Call, negate: bool) -> Term | Kept:
        match call:
            case Call(("=" | "<>" | "<" | "<=") as op, (a, b)):
                if _is_null(a) or _is_null(b):
                    return FALSE
                found = self._pair(a, b, equal=op in ("=", "<>"))
                return (
                    found
                    if isinstance(found, Kept)
                    else (p.compared(p.NEGATED[op] if negate else op, *found))
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
                    return Kept("type", "it is no boolean")
                tested = Term("boolean", (), (word,))
                return _exactly("=", value[0], tested, negate=negate)
            case Call("in", (needle, *choices)):
                return self._in(needle, choices, negate)
            case Call("sqlglot.like", (pattern, subject), words):
                return self._like(pattern, subject, negate != ("negate:1" in words))
            case _:
                return self._of_value(call, negate)

    def _pair(self, a: Expr, b: Expr, *, equal: bool = False) -> tuple[Term, Term] | Kept:
        """Return two values as Spark compares them; `equal`: whether they are equal."""
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
            words = f"{one[1]} compared with {other[1]} may raise an error or change either"
            return Kept("may raise under ANSI", words)
        return pair

    def _same(self, a: Expr, b: Expr, negate: bool) -> Term | Kept:
        if _is_null(a) or _is_null(b):
            value = self.value(b if _is_null(a) else a)
            if isinstance(value, Kept):
                return value
            return Term("is not null" if negate else "is null", (value[0],))
        found = self._pair(a, b)
        if isinstance(found, Kept):
            return found
        if not any(term.op in p.LITERALS for term in found):
            return Kept("function", "<=> of two columns is not pushed")
        return _exactly("=", *found, negate=negate)

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
            return Kept("may raise under ANSI", "no decimal has as many digits as its values")
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

    def said(self, expr: object) -> str:
        """Return an expression in words that people know it by."""
        text = self._said(expr, 0)
        return text if len(text) <= 80 else f"{text[:77]}…"

    def _said(self, expr: object, depth: int) -> str:
        if depth > 6:
            return "…"
        match expr:
            case Ref(instance, number):
                return self._name(instance, number)
            case Window(function):
                return f"{self._said(function, depth + 1)} OVER (…)"
            case Subquery(kind, _, args):
                return (
                    f"{', '.join(self._said(a, depth + 1) for a in args)} {kind} (SELECT …)".strip()
                )
            case Call("string", (), (text,)):
                return f"'{text}'"
            case Call("sqlglot.like", (pattern, subject)):
                return f"{self._said(subject, depth + 1)} LIKE {self._said(pattern, depth + 1)}"
            case Call("cast", (inner,), (kind,)):
                return f"CAST({self._said(inner, depth + 1)} AS {kind.upper()})"
            case Call(("<" | "<=") as op, (Call("number" | "string" | "cast") as a, b)):
                flipped = {"<": ">", "<=": ">="}[op]
                return f"{self._said(b, depth + 1)} {flipped} {self._said(a, depth + 1)}"
            case Call(op, (a, b)) if not op[0].isalpha() or op in ("and", "or", "div"):
                return f"{self._said(a, depth + 1)} {op.upper()} {self._said(b, depth + 1)}"
            case Call("parameter", (), (word,)):
                return f":{word}"
            case Call("user's", args, (name,)):
                return f"{name}({', '.join(self._said(a, depth + 1) for a in args)})"
            case Call(op, (), (word,)) if op in ("number", "boolean"):
                return word
            case Call(op, args):
                inner = ", ".join(self._said(a, depth + 1) for a in args)
                return f"{op.removeprefix('sqlglot.')}({inner})"
            case _:
                return "…"

    def _name(self, instance: int, number: int) -> str:
        names = self.relation.names.get(instance, ())
        return names[number] if number < len(names) else "…"

    def named(self, term: Term) -> str:
        """Return a predicate in words that people know it by."""

        def name(one: Term) -> Term:
            return p.column(self._name(int(one.words[0]), int(one.words[1])))

        made = p.rebuilt(term, name)
        return p.as_text(made) if made is not None else "…"


def _exactly(op: str, a: Term, b: Term, *, negate: bool) -> Term:
    """Return a comparison that is FALSE where a value is NULL, or its being FALSE."""
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


def _to(term: Term, kind: str, wanted: str) -> Term:
    return term if kind == wanted else p.cast(term, wanted)


def _cast(term: Term, kind: str, wanted: str) -> Typed | None:
    if kind == wanted:
        return term, kind
    if kind in TIMES and wanted in TIMES:
        return p.cast(term, wanted), wanted
    if term.op == "string" and wanted in TIMES:
        made = p.time_literal(term.words[0], wanted)
        return (made, wanted) if made is not None else None
    if kind in INTEGRAL and wanted in INTEGRAL[INTEGRAL.index(kind) :]:
        return term, wanted
    return None


_PIECES = re.compile(r"(-?\d+)\s+([a-z]+)")


def _interval(expr: Expr) -> tuple[int, str] | None:
    """Return a constant interval as so many of one unit."""
    match expr:
        case Call("interval", (Call(("string" | "number"), (), (text,)),), (unit,)):
            said = f"{text} {unit}".strip().lower()
        case _:
            return None
    pieces = _PIECES.findall(said)
    if " ".join(f"{n} {u}" for n, u in pieces) != " ".join(said.split()):
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
    """Return a time of the clock, or a literal one, that is moved on or back."""
    intervals = [a for a in call.args if _is_interval(a)]
    sign = -1 if call.op in ("-", "date_sub") else 1
    match call.op, typed:
        case (("+" | "-"), [(term, kind)]) if len(intervals) == 1:
            found = _interval(intervals[0])
            if found is None or (call.op == "-" and _is_interval(call.args[0])):
                return None
            count, unit = found
        case (("+" | "-" | "date_add" | "date_sub"), [(term, "date"), (n, _)]) if not call.words:
            if n.op != "integer":
                return None
            kind, count, unit = "date", int(n.words[0]), "day"
        case "add_months", [(term, "date"), (n, _)] if n.op == "integer":
            kind, count, unit = "date", int(n.words[0]), "month"
        case _:
            return None
    if p.varies(term) or kind not in TIMES:
        return None  # of a column, that may be beyond the calendar
    if kind == "date" and p.UNITS[unit][1] not in ("MONTHS", "DAYS"):
        term, kind = p.cast(term, "timestamp"), "timestamp"
    made = p.shifted(term, sign * count, unit)
    return (made, kind) if made is not None else None


# ------------------------------------------------------------------------------- implied conditions


def with_bounds(term: Term) -> Term:
    """Return a predicate together with bounds of columns that follow from its comparisons.

    Files have statistics of columns, not of functions of them: ``date_trunc('day', ts) >= x`` says
    ``ts >= x`` too.
    """
    found: dict[Term, None] = {}
    todo = [*p.conjuncts(term)]
    while todo:
        this = todo.pop()
        if this in found:
            continue
        found[this] = None
        if this.op in ("=", "<", "<=", ">", ">="):
            todo += _bounds(this.op, *this.args)
    return p.every(found)


def _bounds(op: str, value: Term, limit: Term) -> Iterator[Term]:
    if p.varies(limit):
        return
    match value:
        case Term("cast", (inner,), (kind,)) if (was := _kind_of(inner)) in TIMES:
            if kind != "date" and was == "date":
                yield from _each_way(op, inner, p.cast(limit, "date"))
            elif kind == "date" and was != "date":
                yield from _cut_down(op, inner, limit, was, "day")
        case Term("date_trunc", (inner,), (unit,)):
            yield from _cut_down(op, inner, limit, "timestamp", unit)
        case Term("trunc", (inner,), (unit,)):
            yield from _cut_down(op, inner, limit, "date", unit)
        case Term("year", (inner,)) if limit.op == "integer":
            year, kind = int(limit.words[0]), _kind_of(inner)
            if 1 < year < 9998 and kind in TIMES:
                first, after = (_to_kind(f"{y:04}-01-01", kind) for y in (year, year + 1))
                least = _beyond(after if op == ">" else first, kind, -1)
                most = _beyond(first if op == "<" else after, kind, 1)
                if op in (">=", ">", "=") and least is not None:
                    yield p.compared(">=", inner, least)
                if op in ("<=", "<", "=") and most is not None:
                    yield p.compared("<", inner, most)
        case _:
            return


def _each_way(op: str, inner: Term, limit: Term) -> Iterator[Term]:
    """Yield bounds of a date of which is known how its midnight compares with an instant of a day.

    A day less: of a day that a time zone left out, midnight is that of the next. A day more, where
    the next may have begun already when a clock was put back.
    """
    before, after = p.shifted_date(limit, -1), p.shifted_date(limit, 0 if p.is_calm(limit) else 1)
    if op in (">=", ">", "=") and before is not None:
        yield p.compared(">=", inner, before)
    if op in ("<=", "<", "=") and after is not None:
        yield p.compared("<=", inner, after)


def _cut_down(op: str, inner: Term, limit: Term, kind: str, unit: str) -> Iterator[Term]:
    """Yield bounds of a time of which is known how it compares when it is cut down to a unit."""
    limit = p.cast(limit, kind) if _kind_of(limit) != kind else limit
    fine = unit in ("hour", "minute", "second")
    if op in (">=", ">", "="):
        # Where a clock skips half of an hour, what is cut down to hours is later than it was.
        least = p.shifted(limit, -1, "day") if fine else _beyond(limit, kind, -1)
        if least is not None:
            yield p.compared(">" if op == ">" else ">=", inner, least)
    if op in ("<=", "<", "=") and limit.op in ("date", "timestamp", "ntz") and not fine:
        day, rest = limit.words[0][:10], limit.words[0][10:]
        following = p.next_first(day, unit) if rest in ("", " 00:00:00") else None
        most = _beyond(_to_kind(following, kind), kind, 1) if following is not None else None
        if most is not None:
            yield p.compared("<", inner, most)


def _beyond(limit: Term, kind: str, days: int) -> Term | None:
    """Return a bound that is so much farther, if clocks may have been moved past midnight then."""
    sure = kind != "timestamp" or p.is_calm(limit)
    return limit if sure else p.shifted(limit, days, "day")


def _to_kind(day: str, kind: str) -> Term:
    return _to(Term("date", (), (day,)), "date", kind)


def _kind_of(term: Term) -> str:
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
            return _kind_of(term.args[0])
        case _:
            return ""


# -------------------------------------------------------------------------------------- the fold

_MOST_WAYS = 32
"""A block that is reached in more ways is looked at as if all of it were asked for."""


@dataclass(slots=True)
class _Visit:
    """A Block to be looked at.

    Attributes
    ----------
    extra
        What holds besides its conjuncts, of the rows that matter: in terms of its leaves.
    used
        The expressions of it that are asked for, besides its conjuncts and its order.
    """

    reader: _Reader
    block: Block
    extra: tuple[Term, ...]
    used: tuple[Expr, ...]
    kept: frozenset[Kept]


@dataclass(slots=True)
class _Asked:
    """What is asked of a node: conditions and columns by their numbers in it."""

    conditions: tuple[Term, ...]
    columns: frozenset[int]
    kept: frozenset[Kept]


def find_needs(
    reader: SourceID, relations: Mapping[SourceID, Relation], tables: Container[SourceID]
) -> tuple[Need, ...]:
    """Return what a source or a query needs of tables that are asked about.

    Parameters
    ----------
    reader
        A key of `relations`.
    relations
        Its own, and those of all sources that are not persisted: what is none of them ends the way.
    tables
        Which leaves are asked about.
    """
    search = _Search(relations, tables)
    search.run(reader)
    return tuple(
        Need(reader, table, _merged(reader, search.found[table])) for table in sorted(search.found)
    )


def _merged(reader: SourceID, disjuncts: Iterable[Disjunct]) -> tuple[Disjunct, ...]:
    """Return disjuncts each once, with what any of the same kept."""
    by: dict[tuple[Term, tuple[str, ...]], set[Kept]] = {}
    for one in disjuncts:
        by.setdefault((one.predicate, one.columns), set()).update(one.kept)
    whole = Kept("all rows", f"no condition of this place: all rows are read by {reader}")
    made = [
        Disjunct(term, columns, tuple(sorted(kept | ({whole} if term == TRUE else set()))))
        for (term, columns), kept in by.items()
    ]
    return tuple(sorted(made, key=lambda d: (p.as_text(d.predicate), d.columns)))


class _Search:
    """Goes down from one reader; not recursive: sources and CTEs may be long chains."""

    def __init__(self, relations: Mapping[SourceID, Relation], tables: Container[SourceID]) -> None:
        self.relations, self.tables = relations, tables
        self.found: dict[SourceID, list[Disjunct]] = {}
        self._readers: dict[SourceID, _Reader] = {}
        self._stack: list[_Visit] = []
        self._ways: dict[int, set[Any]] = {}
        self._windows: dict[int, list[tuple[Window, Mapping[int, int]]]] = {}

    def run(self, reader: SourceID) -> None:
        """Look at everything below a reader."""
        block = self.relations[reader].block
        used = tuple(o.expr for o in block.columns)
        self._visit(self._reader(reader), block, (), used, frozenset())
        while self._stack:
            self._block(self._stack.pop())

    def _reader(self, source_id: SourceID) -> _Reader:
        if source_id not in self._readers:
            self._readers[source_id] = _Reader(self.relations[source_id])
        return self._readers[source_id]

    def _visit(
        self,
        reader: _Reader,
        block: Block,
        extra: Iterable[Term],
        used: Iterable[Expr],
        kept: frozenset[Kept],
    ) -> None:
        conditions = p.conjuncts(p.every(extra))
        used = tuple({id(e): e for e in used}.values())
        ways = self._ways.setdefault(id(block), set())
        key = (conditions, frozenset(map(id, used)), kept)
        if key in ways:
            return
        if len(ways) >= _MOST_WAYS:
            conditions, used = (), (*(o.expr for o in block.columns), *used)
            kept = frozenset((Kept("too many ways", "it is read in too many ways to tell apart"),))
            key = (conditions, frozenset(map(id, used)), kept)
            if key in ways:
                return
        ways.add(key)
        self._stack.append(_Visit(reader, block, conditions, used, kept))

    # ------------------------------------------------------------------------------------- blocks

    def _block(self, visit: _Visit) -> None:
        reader, block = visit.reader, visit.block
        leaves = dict(block.leaves)
        exprs = [*visit.used, *block.conjuncts, *(s.by for s in block.order)]
        free = reader.relation.free
        lateral = [n for _, n in block.leaves if not free.of(n).isdisjoint(leaves)]
        columns = _columns_used([*exprs, *lateral], visit.extra)
        windows = [
            (window, now)
            for window, now in self._windows_in([*exprs, *lateral])
            if not leaves.keys().isdisjoint(now.values())
        ]
        pushed: dict[int, list[Term]] = {i: [] for i in leaves}
        kept: dict[int, set[Kept]] = {i: set(visit.kept) for i in leaves}

        asked = [reader.condition(c) for c in block.conjuncts]
        equal = _equal_columns([*(term for term, _ in asked), *visit.extra])

        def push(term: Term) -> None:
            for instance in leaves:
                keep = _through(equal, lambda ref, own=str(instance): ref.words[0] == own)
                own = p.weakened(term, keep)
                if own == TRUE:
                    continue
                blind = [w for w, now in windows if not _sees(reader, w, now, instance, own)]
                if blind:
                    words = f"{reader.named(own)}: {reader.said(blind[0])} looks at rows without it"
                    kept[instance].add(Kept("window", words))
                else:
                    pushed[instance].append(own)

        for term, lost in asked:
            push(term)
            for about, why in lost:
                for instance in about & leaves.keys():
                    kept[instance].add(why)
            for atom in _atoms(term):
                about = _instances(atom)
                if len(about) > 1:
                    why = Kept("two tables", f"{reader.named(atom)}: it compares with other rows")
                    for instance in about & leaves.keys():
                        kept[instance].add(why)
        for term in visit.extra:
            push(term)
        for instance, node in block.leaves:
            conditions = tuple(_numbered(term) for term in pushed[instance])
            numbers = frozenset(columns.get(instance, ()))
            self._node(reader, node, _Asked(conditions, numbers, frozenset(kept[instance])))
        self._subqueries(reader, exprs)

    def _subqueries(self, reader: _Reader, exprs: Iterable[object]) -> None:
        """Look at the queries in expressions, each by itself."""
        seen: set[int] = set()
        stack: list[object] = [*exprs]
        while stack:
            thing = stack.pop()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            match thing:
                case Subquery(kind, block, args):
                    used = () if kind == "exists" else [o.expr for o in block.columns]
                    self._visit(reader, block, (), used, frozenset())
                    stack += args
                case Window(function, partition, order, frame, rows, _):
                    bounds = [f for f in frame if not isinstance(f, str)]
                    stack += [function, *partition, *order, *bounds, *rows.conjuncts]
                case Call(_, args):
                    stack += args
                case Sort(by, _, _):
                    stack.append(by)
                case _:
                    pass

    def _windows_in(self, things: Iterable[object]) -> list[tuple[Window, Mapping[int, int]]]:
        """Return windows in and below things, with what their instances are in these."""
        found: list[tuple[Window, Mapping[int, int]]] = []
        seen: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        stack: list[tuple[object, Mapping[int, int]]] = [(t, {}) for t in things]
        while stack:
            thing, now = stack.pop()
            key = (id(thing), tuple(sorted(now.items())))
            if key in seen:
                continue
            seen.add(key)
            if isinstance(thing, Window):
                inner = {own: now.get(there, there) for own, there in thing.mapping}
                found.append((thing, inner))
                bounds = [f for f in thing.frame if not isinstance(f, str)]
                within = [thing.function, *thing.partition, *thing.order, *bounds]
                stack += [(t, inner) for t in (*within, *thing.rows.conjuncts)]
            else:
                stack += [(t, now) for t in parts(thing)]
        return found

    # -------------------------------------------------------------------------------------- nodes

    def _node(self, reader: _Reader, node: Node, asked: _Asked) -> None:
        match node:
            case Given():
                self._given(node, asked)
            case Derived(block, volatile):
                columns = [o.expr for o in block.columns]
                if volatile:
                    why = "what it is about draws lots"
                    asked = _without(reader, columns, asked, "draws lots", why)
                self._under(reader, block, columns, asked, ())
            case Outer():
                self._outer(reader, node, asked)
            case Aggregate():
                self._aggregate(reader, node, asked)
            case SetOperation(kind, branches):
                self._set_operation(reader, kind, branches, asked)
            case Limit(block, count, offset, _):
                columns = [o.expr for o in block.columns]
                why = "a LIMIT takes its rows before"
                asked = _without(reader, columns, asked, "limit above", why)
                self._under(reader, block, columns, asked, ())
                self._subqueries(reader, [e for e in (count, offset) if e])
            case Generate(call, _, _):
                self._subqueries(reader, [call])
            case Values(rows):
                self._subqueries(reader, [e for row in rows for e in row])
            case Opaque(_, reads, _):
                because = reader.relation.whole or "it is not analysed"
                code = "UDF" if "not one of Spark's own" in because else "not analysed"
                why = asked.kept | {Kept(code, because)}
                for given in reads:
                    everything = frozenset(range(len(given.columns)))
                    self._given(given, _Asked((), everything, why))

    def _given(self, node: Given, asked: _Asked) -> None:
        source_id = node.rows
        if source_id in self.relations:
            reader = self._reader(source_id)
            relation = reader.relation
            columns = [o.expr for o in relation.block.columns]
            if not columns:  # of a function, they are known when it is computed
                asked = _Asked((), frozenset(), asked.kept)
            elif relation.volatile:
                why = "what it is about draws lots"
                asked = _without(reader, columns, asked, "draws lots", why)
            self._under(reader, relation.block, columns, asked, ())
        elif source_id in self.tables:
            names = [next(iter(o)).column for o in node.origins]

            def name(term: Term) -> Term:
                return p.column(names[int(term.words[0])])

            predicate = with_bounds(p.every(asked.conditions))
            made = p.rebuilt(predicate, name)
            assert made is not None
            columns = _sorted(names[i] for i in asked.columns)
            found = self.found.setdefault(source_id, [])
            found.append(Disjunct(made, columns, tuple(sorted(asked.kept))))

    def _under(
        self,
        reader: _Reader,
        block: Block,
        columns: Sequence[Expr],
        asked: _Asked,
        used: Sequence[Expr],
    ) -> None:
        """Go on below a node whose columns are expressions over the leaves of a Block."""
        kept = set(asked.kept)
        extra = [_said_below(reader, c, columns, kept) for c in asked.conditions]
        used = [*used, *(columns[i] for i in sorted(asked.columns))]
        self._visit(reader, block, extra, used, frozenset(kept))

    def _outer(self, reader: _Reader, node: Outer, asked: _Asked) -> None:
        n, on = len(node.left.columns), node.on
        sides = [o.expr for o in node.left.columns], [o.expr for o in node.right.columns]
        every = [*sides[0], *sides[1]]
        left, right = list[Term](), list[Term]()
        kept_left, kept_right = set(asked.kept), set(asked.kept)
        for condition in asked.conditions:
            about = {int(v.words[0]) for v in p.variables(condition)}
            if node.kind != "left":
                why = Kept("full join", f"{_spelled(reader, condition, every)}: above a FULL JOIN")
                kept_left.add(why)
                kept_right.add(why)
                continue
            first = p.weakened(condition, _about({str(i) for i in range(n)}))
            left.append(_said_below(reader, first, every, kept_left))
            second = p.weakened(condition, _about({str(i) for i in range(n, len(every))}))
            if _rejects_nulls(second):
                right.append(_said_below(reader, second, every, kept_right))
            elif any(i >= n for i in about):
                words = (
                    f"{_spelled(reader, condition, every)}: it holds of rows that are not joined"
                )
                kept_right.add(Kept("null side", words))
        inside = [{i for i, _ in side.leaves} for side in (node.left, node.right)]
        for test in on:
            reader.lost.clear()
            term = reader.predicate(test)
            about = _instances(term)
            if node.kind == "left":
                right.append(p.weakened(term, _about(set(map(str, inside[1])))))
                for instances, why in reader.lost:
                    if instances & inside[1]:
                        kept_right.add(why)
            if about & inside[0] or node.kind != "left":
                code = "null side" if node.kind == "left" else "full join"
                words = f"{reader.said(test)}: rows that do not fulfil ON are kept"
                kept_left.add(Kept(code, words))
                if node.kind != "left":
                    kept_right.add(Kept(code, words))
        columns = [
            [every[i] for i in sorted(asked.columns) if (i < n) == left_] for left_ in (True, False)
        ]
        self._visit(reader, node.left, left, [*columns[0], *on], frozenset(kept_left))
        self._visit(reader, node.right, right, [*columns[1], *on], frozenset(kept_right))

    def _aggregate(self, reader: _Reader, node: Aggregate, asked: _Asked) -> None:
        n = len(node.keys)
        fixed = {k for k in range(n) if node.sets is None or all(k in one for one in node.sets)}
        kept, conditions = set(asked.kept), list[Term]()
        every = [*node.keys, *node.aggregates]
        for condition in asked.conditions:
            about = {int(v.words[0]) for v in p.variables(condition)}
            conditions.append(p.weakened(condition, _about(set(map(str, fixed)))))
            if not about <= fixed:
                of_keys = any(k < n for k in about - fixed)
                code = "grouping set" if of_keys else "aggregate"
                words = "a key that not every grouping set has" if of_keys else "an aggregate"
                kept.add(Kept(code, f"{_spelled(reader, condition, every)}: it is about {words}"))
        below = _Asked(
            tuple(conditions), frozenset(i for i in asked.columns if i >= n), frozenset(kept)
        )
        self._under(reader, node.rows, every, below, node.keys)

    def _set_operation(
        self, reader: _Reader, kind: str, branches: Sequence[Block], asked: _Asked
    ) -> None:
        if kind != "union all":
            why = f"it is about the rows of {kind.upper()}"
            exprs = [o.expr for o in branches[0].columns]
            asked = _without(reader, exprs, asked, "set operation", why)
            columns = frozenset(range(len(exprs)))
            asked = replace(asked, columns=columns)
        for branch in branches:
            self._under(reader, branch, [o.expr for o in branch.columns], asked, ())


def _without(
    reader: _Reader, columns: Sequence[Expr], asked: _Asked, code: str, why: str
) -> _Asked:
    """Return what is asked without its conditions, which are kept."""
    kept = {Kept(code, f"{_spelled(reader, c, columns)}: {why}") for c in asked.conditions}
    return _Asked((), asked.columns, asked.kept | kept)


def _about(instances: set[str]) -> Callable[[Term], Term]:
    """Return a function that keeps atoms about nothing else."""

    def keep(atom: Term) -> Term:
        own = {v.words[0] for v in p.variables(atom)}
        return atom if own and own <= instances else TRUE

    return keep


_SAME_IF_EQUAL = frozenset((*INTEGRAL, *TIMES, "string", "boolean"))
"""Types of which values that are equal cannot be told apart; fractions have two zeros."""


def _equal_columns(terms: Iterable[Term]) -> Mapping[Term, frozenset[Term]]:
    """Return for columns those that are the same wherever all of some predicates hold."""
    found: dict[Term, frozenset[Term]] = {}
    for atom in (c for term in terms for c in p.conjuncts(term)):
        if atom.op != "=" or any(a.op != "ref" for a in atom.args):
            continue
        one, other = atom.args
        kind, also = one.words[2], other.words[2]
        if kind == also and (kind in _SAME_IF_EQUAL or _is_decimal(kind)):
            same = found.get(one, frozenset((one,))) | found.get(other, frozenset((other,)))
            found |= dict.fromkeys(same, same)
    return found


def _through(
    equal: Mapping[Term, frozenset[Term]], fits: Callable[[Term], bool]
) -> Callable[[Term], Term]:
    """Return a function that keeps atoms about columns that fit, or says them of equal ones."""

    def fitting(ref: Term) -> Term | None:
        found = [ref] if fits(ref) else [e for e in equal.get(ref, ()) if fits(e)]
        return min(found, key=p.as_text) if found else None

    def keep(atom: Term) -> Term:
        made = p.rebuilt(atom, fitting)
        says = made is not None and p.varies(made) and len(set(made.args)) == len(made.args)
        return made if made is not None and says else TRUE

    return keep


def _instances(term: Term) -> set[int]:
    return {int(v.words[0]) for v in p.variables(term)}


def _atoms(term: Term) -> Iterator[Term]:
    if term.op in ("and", "or"):
        for arg in term.args:
            yield from _atoms(arg)
    else:
        yield term


def _numbered(term: Term) -> Term:
    """Return a predicate about one leaf as one about columns by their numbers."""
    made = p.rebuilt(term, lambda ref: Term("out", (), ref.words[1:]))
    assert made is not None
    return made


def _said_below(reader: _Reader, condition: Term, columns: Sequence[Expr], kept: set[Kept]) -> Term:
    """Return what a condition about columns says of the leaves they are computed from."""

    def inside(out: Term) -> Term | None:
        found = reader.value(columns[int(out.words[0])])
        if isinstance(found, Kept):
            kept.add(
                replace(found, words=f"{reader.said(columns[int(out.words[0])])}: {found.words}")
            )
            return None
        return found[0] if found[1] == out.words[1] else None

    def keep(atom: Term) -> Term:
        made = p.rebuilt(atom, inside)
        return TRUE if made is None else made

    return p.weakened(condition, keep)


def _spelled(reader: _Reader, condition: Term, columns: Sequence[Expr]) -> str:
    def name(out: Term) -> Term:
        return p.column(reader.said(columns[int(out.words[0])]))

    made = p.rebuilt(condition, name)
    return p.as_text(made).replace("`", "") if made is not None else "…"


def _rejects_nulls(term: Term) -> bool:
    """Whether a predicate is not TRUE where all columns are NULL."""
    match term.op:
        case "and":
            return any(map(_rejects_nulls, term.args))
        case "or":
            return all(map(_rejects_nulls, term.args))
        case "true" | "is null" | "is not true":
            return False
        case _:
            return True


def _columns_used(things: Iterable[object], extra: Iterable[Term]) -> dict[int, set[int]]:
    """Return for each instance the columns that things look at, at any depth."""
    found: dict[int, set[int]] = {}
    mappings: set[tuple[int, int]] = set()
    for thing in walk(*things):
        if isinstance(thing, Ref):
            found.setdefault(thing.instance, set()).add(thing.column)
        elif isinstance(thing, Window):
            mappings.update(thing.mapping)
    for term in extra:
        for ref in p.variables(term):
            found.setdefault(int(ref.words[0]), set()).add(int(ref.words[1]))
    changed = True
    while changed:
        changed = False
        for own, now in mappings:
            there = found.setdefault(now, set())
            if not found.get(own, set()) <= there:
                there |= found[own]
                changed = True
    return found


def _sees(
    reader: _Reader, window: Window, now: Mapping[int, int], instance: int, condition: Term
) -> bool:
    """Whether a window is the same without the rows of a leaf that a condition leaves out.

    So it is if it saw the condition, or if that tells nothing apart that one partition holds.
    """
    if instance not in now.values():
        return True

    def here(ref: Term) -> Term:
        return Term("ref", (), (str(now.get(int(ref.words[0]), -1)), *ref.words[1:]))

    def moved(term: Term) -> Term:
        made = p.rebuilt(term, here)
        assert made is not None
        return made

    lost = [*reader.lost]
    seen = [
        p.weakened(moved(reader.predicate(c)), _about({str(instance)}))
        for c in window.rows.conjuncts
    ]
    reader.lost[:] = lost
    if condition in seen:
        return True
    known = [reader.value(e) for e in window.partition]
    partition = {moved(v[0]) for v in known if not isinstance(v, Kept)}

    def covered(term: Term) -> bool:
        return term in partition or (term.op not in p.VARIABLES and all(map(covered, term.args)))

    return covered(condition)
