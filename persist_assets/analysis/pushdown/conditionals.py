"""Conditions on choices of values, such as CASE, and conditions that are not TRUE. Pure.

A choice is a CASE, `if`, `coalesce`, `nullif` or `nvl2`. A condition on a choice holds in one of
its branches: where the branch is taken, and its value satisfies the condition. The invariant: every
result is a consequence of the condition, whatever is NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import Call, Ref
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.analysis.named_literals import has_char
from persist_assets.analysis.predicates.terms import FALSE, TRUE, Term
from persist_assets.analysis.pushdown.comparing import keep_their_values
from persist_assets.analysis.pushdown.equalities import is_decimal
from persist_assets.analysis.pushdown.relation import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.pushdown.constants import Typed
    from persist_assets.analysis.pushdown.relation import Relation


class Translator(Protocol):
    """The interface of `terms.TermReader`: it translates expressions of one relation to terms."""

    relation: Relation
    lost: list[tuple[frozenset[int], Kept]]

    def value(self, expr: Expr) -> Typed | Kept:
        """Return a value and its type, or why the language has no such value."""
        ...

    def predicate(self, expr: Expr, *, negate: bool = False) -> Term:
        """Return a consequence of a condition, or of its negation; record lost conditions."""
        ...

    def made(self, op: str, *args: Expr) -> Call:
        """Return a call that lives as long as its value is remembered."""
        ...


CHOICES = frozenset(("case", "coalesce", "nullif", "nvl2"))
_MOST_BRANCHES = 40
COMPARISONS = frozenset(("=", "<>", "<", "<="))


def is_choice(expr: Expr) -> bool:
    """Whether an expression is a choice of a bounded number of values."""
    return isinstance(expr, Call) and expr.op in CHOICES and len(expr.args) <= _MOST_BRANCHES


def is_null(expr: Expr) -> bool:
    """Whether an expression is the literal NULL, of any type."""
    if isinstance(expr, Call) and expr.op in ("cast", "try_cast"):
        return is_null(expr.args[0])
    return isinstance(expr, Call) and expr.op == "null"


def on_choice(
    reader: Translator, choice: Call, test: Callable[[Expr], Expr], *, negate: bool
) -> Term:
    """Return a consequence of a condition on a choice, or of its negation.

    Parameters
    ----------
    test
        Returns the condition on one value.
    """
    ways: list[Term] = []
    for taken, value in _branches(reader, choice):
        if taken != FALSE:
            ways.append(p.every((taken, reader.predicate(test(value), negate=negate))))
    return p.some(ways)


def _branches(reader: Translator, choice: Call) -> Iterator[tuple[Term, Expr]]:
    """Yield for each value of a choice a consequence of it being taken."""
    match choice:
        case Call("case", args, words):
            before: list[Term] = []
            for test, value in zip(args[::2], args[1::2], strict=False):
                yield p.every((*before, reader.predicate(test))), value
                before.append(untrue(reader, test))
            yield p.every(before), args[-1] if words else reader.made("null")
        case Call("coalesce", args):
            before = []
            for value in args:
                null = reader.made("is null", value)
                yield p.every((*before, reader.predicate(null, negate=True))), value
                before.append(reader.predicate(null))
            yield p.every(before), reader.made("null")
        case Call("nvl2", (value, one, other)):
            null = reader.made("is null", value)
            yield reader.predicate(null, negate=True), one
            yield reader.predicate(null), other
        case Call(_, (value, other)) if has_char(reader.relation.types, (value, other)):
            # NULLIF compares without the blanks that `=` adds to CHAR(n).
            yield TRUE, reader.made("null")
            yield TRUE, value
        case Call(_, (value, other)):
            same = reader.made("=", value, other)
            yield reader.predicate(same), reader.made("null")
            yield untrue(reader, same), value
        case _:
            raise AssertionError(choice)


def values_of(choice: Call) -> Sequence[Expr]:
    """Return the values that a choice may have, besides NULL."""
    match choice:
        case Call("case", args, words):
            values = [*args[1::2], *(args[-1:] if words else ())]
        case Call("coalesce", args):
            values = [*args]
        case Call(_, args):
            values = [*args[1:]] if choice.op == "nvl2" else [args[0]]
    return [value for value in values if not is_null(value)]


def have_one_type(reader: Translator, choice: Call, other: Expr | None = None) -> bool:
    """Whether no value of a choice is converted in a way that matters for comparing it.

    Parameters
    ----------
    other
        What the choice is compared with, if anything.
    """
    kinds = {_kind(reader, value) for value in values_of(choice)}
    if len(kinds) < 2:
        return "" not in kinds
    if other is not None:
        kinds.add(_kind(reader, other))
    exact = [kind in INTEGRAL or is_decimal(kind) for kind in kinds]
    return all(exact) and keep_their_values(kinds)


def _kind(reader: Translator, expr: Expr) -> str:
    value = reader.value(expr)
    kind = reader.relation.types.of(expr) if isinstance(value, Kept) else value[1]
    return kind if kind is not None and not kind.startswith("char(") else ""


def chosen(reader: Translator, choice: Call) -> Typed | None:
    """Return the value of a choice that is the same literal in all rows, or None."""
    if not have_one_type(reader, choice) or len({_kind(reader, v) for v in values_of(choice)}) != 1:
        return None
    match choice:
        case Call("coalesce", args):
            first = next(value for value in args if not is_null(value))
        case Call("case", args, words):
            first = args[-1] if words else None
            for test, value in zip(args[::2], args[1::2], strict=False):
                is_true = truth(reader, test)
                if is_true is None:
                    return None
                if is_true:
                    first = value
                    break
        case _:
            return None
    typed = None if first is None or is_null(first) else reader.value(first)
    return None if isinstance(typed, Kept) or not typed or typed[0].op not in p.LITERALS else typed


# ---------------------------------------------------------------------------------------- not true


def untrue(reader: Translator, expr: Expr) -> Term:
    """Return a consequence of a condition being FALSE or NULL."""
    match expr:
        case Call("and", args):
            return p.some(untrue(reader, a) for a in args)
        case Call("or", args):
            return p.every(untrue(reader, a) for a in args)
        case Call("boolean", (), (word,)):
            return FALSE if word == "true" else TRUE
        case Call(("is null" | "isnull" | "isnotnull" | "is" | "<=>"), _):
            return _without_losses(reader, expr, True)
        case Call("not", (Call("is null" | "isnull" | "isnotnull" | "is" | "<=>") as inner,)):
            return _without_losses(reader, inner, False)
        case _:
            operands = _operands(expr)
            values = [reader.value(o) for o in operands]
            if not values or any(isinstance(v, Kept) for v in values):
                return TRUE
            terms = [v[0] for v in values if not isinstance(v, Kept)]
            nulls = [Term("is null", (t,)) for t in terms if t.op not in p.LITERALS]
            return p.some((_without_losses(reader, expr, True), *nulls))


def _operands(expr: Expr) -> Sequence[Expr]:
    """Return the operands of a test that is NULL if and only if one of them is; else nothing."""
    match expr:
        case Ref():
            return (expr,)
        case Call("not", (inner,)):
            return _operands(inner)
        case Call(op, args) if op in COMPARISONS or op in ("in", "sqlglot.like"):
            return () if any(map(is_null, args)) else args
        case _:
            return ()


def _without_losses(reader: Translator, expr: Expr, negate: bool) -> Term:
    """Return a consequence of a condition or its negation; TRUE if a part of it is lost."""
    lost = len(reader.lost)
    term = reader.predicate(expr, negate=negate)
    if len(reader.lost) == lost:
        return term
    del reader.lost[lost:]
    return TRUE


def truth(reader: Translator, expr: Expr) -> bool | None:
    """Return the value of a constant condition; None if it is not constant."""
    match expr:
        case Call("boolean", (), (word,)):
            return word == "true"
        case Call(op, args) if op in COMPARISONS and all(
            not isinstance(v := reader.value(a), Kept) and v[0].op in p.LITERALS for a in args
        ):
            term = _without_losses(reader, expr, False)
            opposite = _without_losses(reader, expr, True)
            return term == TRUE if {term, opposite} == {TRUE, FALSE} else None
        case _:
            return None


# ------------------------------------------------------------------------------------- strictness

_STRICT = frozenset(
    """
    + - * / div mod negative abs cast try_cast lower upper length reverse left right concat
    sqlglot.trim sqlglot.substring substring trim ltrim rtrim year quarter month dayofmonth
    dayofweek dayofyear weekofyear hour minute second date_trunc trunc date_add date_sub add_months
    last_day datediff date_format round floor ceil sqrt md5 field replace regexp_replace
    initcap extract to_date
    """.split()
)
"""Functions that are NULL if an operand is NULL, whatever the others are."""

_STRICT_TESTS = COMPARISONS | {
    *("sqlglot.like", "sqlglot.ilike", "like", "ilike", "rlike"),
    *("startswith", "endswith", "contains"),
}


def not_null(reader: Translator, expr: Expr) -> Term:
    """Return a test that no column is NULL whose NULL makes a condition NULL."""
    match expr:
        case Call("in" | "between", (needle, *_)):
            stack: list[Expr] = [needle]
        case Call(op, args) if op in _STRICT_TESTS:
            stack = [*args]
        case _:
            return TRUE
    tests: list[Term] = []
    while stack:
        this = stack.pop()
        if isinstance(this, Ref):
            value = reader.value(this)
            if not isinstance(value, Kept):
                tests.append(Term("is not null", (value[0],)))
        elif isinstance(this, Call) and this.op in _STRICT:
            stack += this.args
    return p.every(tests)
