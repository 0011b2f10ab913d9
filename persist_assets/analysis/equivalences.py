"""Expressions that are the same in Spark although they are written differently. Pure.

`Calls.call` has the equivalences that hold for operands of any type. Those here need types, or
names of units. Each holds exactly: the same values, NULL included, of the same types, and an error
in one is an error in the other. `tests/golden/equal.txt` has a pair for each, and
`tests/golden/different.txt` pairs that look alike and differ for some rows.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Call
from persist_assets.analysis.functions import INTEGRAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.binding import Binding

COMPARISONS = frozenset(("=", "<>", "<", "<=", ">", ">=", "<=>"))

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d)?", re.ASCII)
_TEXTS_OF: Mapping[str | None, re.Pattern[str]] = {"date": _DAY, "timestamp": _INSTANT}


def times_of(binding: Binding, constant: Expr, other: Expr) -> Expr:
    """Return the typed literal for a text that Spark compares with a time, or `constant` itself.

    Spark casts a text beside a date or timestamp to its type. `IN` does so in ANSI mode only.
    """
    if not isinstance(constant, Call) or constant.op != "string":
        return constant
    kind = binding.types.of(other)
    pattern, text = _TEXTS_OF.get(kind), constant.words[0]
    if kind is None or pattern is None or not pattern.fullmatch(text):
        return constant
    try:
        datetime.fromisoformat(text)
    except ValueError:  # an error or NULL in Spark, too
        return constant
    return binding.calls.call("cast", (constant,), (kind,))


def case_of(binding: Binding, args: Sequence[Expr], *, has_else: bool) -> Expr:
    """Return a CASE of tests and values; `coalesce` if it only replaces NULL."""
    if has_else and len(args) == 3:
        test, then, otherwise = args
        match test:
            case Call("is null", (value,)) if value is otherwise:
                whole = _coalesced(binding, value, then)
            case Call("not", (Call("is null", (value,)),)) if value is then:
                whole = _coalesced(binding, value, otherwise)
            case _:
                whole = None
        if whole is not None:
            return whole
    return binding.calls.call("case", args, ("else",) if has_else else ())


def _coalesced(binding: Binding, value: Expr, default: Expr) -> Expr | None:
    kind = binding.types.of(value)
    # The names of a struct's fields come from the first operand, which is another one here.
    if kind is None or kind != binding.types.of(default) or "struct" in kind:
        return None
    if binding.is_volatile(value):
        return None  # drawn twice
    return binding.calls.call("coalesce", (value, default))


_FIELDS: Mapping[str, str] = {
    "year": "year",
    "quarter": "quarter",
    "month": "month",
    "week": "weekofyear",
    "day": "dayofmonth",
    "dayofweek": "dayofweek",
    "dow": "dayofweek",
    "doy": "dayofyear",
    "hour": "hour",
    "minute": "minute",
}
"""Fields of EXTRACT for which there is a function. `second` is not: it drops the fraction."""


def field_of_time(binding: Binding, field: str, value: Expr) -> Expr:
    """Return a field of a time or an interval, in any case of its name."""
    function = _FIELDS.get(field.lower())
    if function is None or binding.types.of(value) not in ("date", "timestamp"):
        return binding.calls.call("extract", (value,), (field.lower(),))
    return binding.calls.call(function, (value,))


_NUMBERS = (*INTEGRAL, "float", "double", "decimal")

_UNIT_AT: Mapping[str, int] = {"date_trunc": 0, "trunc": 1}
"""Functions of a unit as a text, which Spark reads in any case, and the unit's position."""

_PATTERNS: Mapping[str, tuple[str, str]] = {
    "startswith": ("", "%"),
    "endswith": ("%", ""),
    "contains": ("%", "%"),
}
"""Functions of text for which there is a LIKE, with what its pattern has around the text."""


def same_call(binding: Binding, name: str, args: Sequence[Expr]) -> Expr | None:
    """Return the canonical form of a function's call, or None: it has no other form."""
    if name == "if" and len(args) == 3:
        return case_of(binding, args, has_else=True)
    if name == "positive" and len(args) == 1:
        kind, (value,) = binding.types.of(args[0]) or "", args
        # Beside a decimal, the digits of a literal decide the type; behind a plus they do not.
        is_literal = isinstance(value, Call) and value.op == "number"
        return value if kind.startswith(_NUMBERS) and not is_literal else None
    if (name not in _UNIT_AT and name not in _PATTERNS) or len(args) != 2:
        return None
    text = args[_UNIT_AT.get(name, 1)]
    if not isinstance(text, Call) or text.op != "string":
        return None
    call = binding.calls.call
    if name in _UNIT_AT:
        upper = call("string", (), (text.words[0].upper(),))
        return call(name, (upper if a is text else a for a in args))
    if not text.words[0] or set(text.words[0]) & set("%_\\"):
        return None
    if binding.types.of(args[0]) != "string":
        return None
    before, after = _PATTERNS[name]
    pattern = call("string", (), (f"{before}{text.words[0]}{after}",))
    return call("sqlglot.like", (pattern, args[0]), ("expression:1", "this:1"))
