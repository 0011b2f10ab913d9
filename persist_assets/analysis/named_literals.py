"""Literals behind names. Pure.

Spark looks at some literals where they are written: beside a decimal, the digits of an integer
decide the type of the result, and beside CHAR(n), a text gets blanks. A column that has the same
value in all rows is treated by its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Call, Rebuild, Ref
from persist_assets.analysis.equivalences import COMPARISONS
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.analysis.types import Types
from persist_assets.core.dialect import char_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Calls, Expr

NO_DECIMALS = (*INTEGRAL, "float", "double")
_TYPED_BY_DIGITS = frozenset(
    "+ - * / mod pmod try_add try_subtract try_multiply try_divide try_mod".split()
)
_PADDED = COMPARISONS | {"in"}
SENSITIVE = _TYPED_BY_DIGITS | _PADDED
"""Operations that take a literal for another value than a column with this value."""


def type_behind_name(op: str, literal: Expr, beside: Sequence[Expr], types: Types | None) -> str:
    """Return the type of a literal if an operation takes a column for another value than it.

    Empty if they are the same.

    Parameters
    ----------
    beside
        The other operands.
    types
        The types of the operands; None if they are unknown.
    """
    if not isinstance(literal, Call) or literal.args:
        return ""
    kinds = [types.of(e) if types is not None else None for e in beside]
    if op in _TYPED_BY_DIGITS and literal.op == "number":
        kind = Types().of(literal)
        is_typed = kind in INTEGRAL and any(k not in NO_DECIMALS for k in kinds)
        return kind if kind and is_typed else ""
    if op in _PADDED and literal.op == "string":
        return "string" if any(char_size(k) is not None for k in kinds) else ""
    return ""


def is_literal(expr: Expr) -> bool:
    """Whether an expression is a number or a text."""
    return isinstance(expr, Call) and expr.op in ("number", "string")


def has_char(types: Types, exprs: Iterable[Expr]) -> bool:
    """Whether an expression is known to be a CHAR(n)."""
    return any(char_size(types.of(e)) is not None for e in exprs)


def behind_names(
    calls: Calls, op: str, args: Sequence[Expr], named: Sequence[bool], types: Types | None
) -> list[Expr]:
    """Return the operands of an operation, with the type of each literal that has a name.

    Parameters
    ----------
    named
        Whether a column stands for each operand.
    """
    made: list[Expr] = []
    for i, (arg, has_name) in enumerate(zip(args, named, strict=True)):
        kind = has_name and type_behind_name(op, arg, [*args[:i], *args[i + 1 :]], types)
        made.append(calls.call("cast", (arg,), (kind,)) if kind else arg)
    return made


class InTermsOf(Rebuild):
    """Rewriter of expressions over leaves whose columns other expressions are.

    Parameters
    ----------
    columns
        The expressions by the instance of the leaf, one for each of its columns.
    """

    def __init__(
        self, calls: Calls, columns: Mapping[int, Sequence[Expr]], types: Types | None
    ) -> None:
        super().__init__(calls, replace=self._stand_in)
        self._columns, self._types = columns, types

    def _stand_in(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Ref) and expr.instance in self._columns:
            return self._columns[expr.instance][expr.column]
        return None

    def _rebuilt(self, thing: object) -> object:
        if not isinstance(thing, Call) or thing.op not in SENSITIVE:
            return Rebuild._rebuilt(self, thing)
        new = [self.done[id(a)] for a in thing.args]
        named = [isinstance(a, Ref) and a.instance in self._columns for a in thing.args]
        new = behind_names(self.calls, thing.op, new, named, self._types)
        return thing if (*new,) == thing.args else self.calls.call(thing.op, new, thing.words)
