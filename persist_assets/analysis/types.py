"""Spark types of expressions, where they are certain. Pure.

An uncertain type is None: a type reported before the first build must be right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import Call, Ref, Subquery, Window
from persist_assets.analysis.functions import INTEGRAL
from persist_assets.core.dialect import char_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.analysis.algebra import Expr

_FIXED_TYPES: dict[str, str] = {
    **dict.fromkeys(("string", "concat_ws", "upper", "lower", "trim", "date_format"), "string"),
    **dict.fromkeys(("substring", "replace", "regexp_replace", "to_json", "initcap"), "string"),
    **dict.fromkeys(
        ("=", "<>", "<", "<=", "<=>", "and", "or", "not", "is null", "is", "in"), "boolean"
    ),
    **dict.fromkeys(("boolean", "bool_or", "bool_and", "rlike", "like", "ilike"), "boolean"),
    **dict.fromkeys(("sqlglot.like", "sqlglot.ilike"), "boolean"),
    **dict.fromkeys(("contains", "startswith", "endswith", "isnull", "isnotnull"), "boolean"),
    **dict.fromkeys(("isnan", "equal_null", "array_contains"), "boolean"),
    **dict.fromkeys(("count", "count_if", "approx_count_distinct", "div"), "bigint"),
    **dict.fromkeys(("crc32", "xxhash64", "factorial", "array_position"), "bigint"),
    **dict.fromkeys(("unix_timestamp", "to_unix_timestamp"), "bigint"),
    **dict.fromkeys(("unix_seconds", "unix_millis", "unix_micros"), "bigint"),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), "int"),
    **dict.fromkeys(("octet_length", "bit_length", "ascii", "bit_count", "levenshtein"), "int"),
    **dict.fromkeys(("instr", "locate", "position", "find_in_set", "regexp_instr"), "int"),
    **dict.fromkeys(("regexp_count", "size", "cardinality", "array_size", "hash"), "int"),
    **dict.fromkeys(("weekday", "weekofyear", "unix_date"), "int"),
    **dict.fromkeys(
        ("row_number", "rank", "dense_rank", "ntile", "year", "month", "dayofmonth"), "int"
    ),
    **dict.fromkeys(
        ("hour", "minute", "second", "quarter", "dayofweek", "dayofyear", "datediff"), "int"
    ),
    **dict.fromkeys(("percent_rank", "cume_dist", "stddev_samp", "stddev_pop", "corr"), "double"),
    **dict.fromkeys(("sqrt", "cbrt", "exp", "expm1", "ln", "log", "log10", "log2"), "double"),
    **dict.fromkeys(("log1p", "pow", "power", "hypot", "sign", "signum", "rint"), "double"),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "atan2"), "double"),
    **dict.fromkeys(("degrees", "radians", "months_between"), "double"),
    **dict.fromkeys(("md5", "sha", "sha1", "sha2", "hex", "base64"), "string"),
    **dict.fromkeys(
        ("current_date", "to_date", "date_add", "date_sub", "make_date", "last_day"), "date"
    ),
    **dict.fromkeys(("trunc", "next_day", "add_months"), "date"),
    **dict.fromkeys(("format_string", "split_part"), "string"),
    **dict.fromkeys(("current_timestamp", "date_trunc"), "timestamp"),
}

INLINED, STORED = IN_COLUMNS = ("inlined in", "stored in")
"""The operators around a column computed by IN where a query reads it: see `memberships.py`."""

_AS_FIRST = frozenset(
    ("min", "max", "first", "last", "lag", "lead", "nth_value", "any_value", "nullif", *IN_COLUMNS)
)
"""Calls with the type of their first operand."""

_AS_ALL = frozenset(("coalesce", "greatest", "least", "case"))
"""Calls with the common type of their results; NULL has any type."""

_NUMERIC = (*INTEGRAL, "double")
_BINARY = "UTF8_BINARY"
"""The collation of plain texts; Spark does not show it in types."""

IMPLICIT = "column"
"""A text as a column of a query within a query: the collation of such a column is implicit."""

_SHIFTS = ("shiftleft", "shiftright", "shiftrightunsigned")


@dataclass(slots=True)
class Types:
    """Types of columns and of expressions over them.

    Attributes
    ----------
    leaves
        For each instance, the types of its columns.
    collated
        A text may have a collation: the type of a function's result follows from its operands.
    """

    leaves: dict[int, tuple[str | None, ...]] = field(default_factory=dict)
    collated: bool = False
    _cached: dict[Expr, str | None] = field(default_factory=dict)

    def of(self, expr: Expr) -> str | None:
        """Return the Spark type of an expression where it is certain."""
        if isinstance(expr, Ref):
            return self._of(expr)
        known_types = self._cached
        if expr in known_types:
            return known_types[expr]
        stack = [expr]  # not recursive: a sum of a thousand terms is a deep expression
        while stack:
            this = stack[-1]
            below = [e for e in self.decisive(this) if e not in known_types]
            if below and this not in known_types:
                stack += below
            else:
                known_types[this] = self._of(this)
                stack.pop()
        return known_types[expr]

    def _of(self, expr: Expr) -> str | None:
        match expr:
            case Ref(instance, column):
                types = self.leaves.get(instance, ())
                return types[column] if column < len(types) else None
            case Window(function=function):
                return self._cached[function]
            case Subquery(kind="scalar", block=block):
                return _of_value(block.columns[0].type)
            case Subquery():
                return "boolean"
            case Call():
                return self.of_call(expr, [self._cached[e] for e in self.decisive(expr)])

    def decisive(self, expr: Expr) -> Sequence[Expr]:
        """Return the operands that decide an expression's type."""
        if self.collated and isinstance(expr, Call) and _FIXED_TYPES.get(expr.op) == "string":
            return expr.args
        return _decisive(expr)

    def of_call(self, call: Call, kinds: Sequence[str | None]) -> str | None:
        """Return the type of a call whose decisive operands have these types."""
        if self.collated and _FIXED_TYPES.get(call.op) == "string":
            return "string" if all(kind and "collate" not in kind for kind in kinds) else None
        return _of_call(call.op, call.words, kinds)


def _decisive(expr: Expr) -> Sequence[Expr]:
    """Return the operands that decide an expression's type."""
    match expr:
        case Window(function=function):
            return (function,)
        case Call(op, args, words):
            if words and op in ("date_add", "datediff"):  # DATEADD(unit, …)
                return ()
            if op in _FIXED_TYPES or op in ("cast", "try_cast", "number", "collate"):
                return ()
            if op in _AS_FIRST:
                return args[:1]
            if op in _AS_ALL:
                values = (*args[1::2], *(args[-1:] if words else ())) if op == "case" else args
                return [a for a in values if not (isinstance(a, Call) and a.op == "null")]
            return args
        case _:
            return ()


def _of_call(op: str, words: tuple[str, ...], kinds: Sequence[str | None]) -> str | None:
    """Return the type of a call whose decisive operands have these types."""
    if words and op in ("date_add", "datediff"):
        return None
    if op in _FIXED_TYPES:
        return _FIXED_TYPES[op]
    if op in ("cast", "try_cast"):
        return None if words[0].endswith(_BINARY) else words[0]
    if op == "collate":
        return None if words[0] == _BINARY else f"string collate {words[0]}"
    if op == IMPLICIT:
        return kinds[0]
    if op in _SHIFTS:
        return kinds[0] if kinds[0] in ("int", "bigint") else None
    if op == "number":
        return _of_number(words[0])
    first = kinds[0] if kinds else None
    if op in _AS_FIRST:
        return _of_value(first)
    if op in _AS_ALL:
        return _of_value(first) if len(set(kinds)) == 1 else _wider(kinds)
    if op in ("+", "-", "*", "mod") and len(kinds) == 2:
        return _wider(kinds)
    if op == "/" and all(k in _NUMERIC for k in kinds):
        return "double"
    if op == "sum" and first in _NUMERIC:
        return "double" if first == "double" else "bigint"
    if op == "avg" and first in _NUMERIC:
        return "double"
    if op in ("round", "abs", "negative") and first in _NUMERIC:
        return first
    if op in ("ceil", "ceiling", "floor") and len(kinds) == 1 and first in _NUMERIC:
        return "bigint"
    return None


def _of_value(kind: str | None) -> str | None:
    """Return the type of a computed value: only columns are CHAR(n)."""
    return "string" if char_size(kind) is not None else kind


def _wider(kinds: Sequence[str | None]) -> str | None:
    """Return Spark's common type of numbers of several types."""
    if not kinds or not all(k in _NUMERIC for k in kinds):
        return None
    return "double" if "double" in kinds else max(kinds, key=INTEGRAL.index)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _of_number(text: str) -> str | None:
    digits = text.removeprefix("-")
    if digits.isdecimal():
        value = int(text)
        if -(2**31) <= value < 2**31:
            return "int"
        return "bigint" if -(2**63) <= value < 2**63 else None
    if digits[:-1].isdecimal() and digits[-1:] in _SUFFIXES:
        return _SUFFIXES[digits[-1:]]
    return "double" if _is_double(digits) else None


_SUFFIXES = {"L": "bigint", "S": "smallint", "Y": "tinyint", "F": "float", "D": "double"}


def _is_double(digits: str) -> bool:
    """Whether a number has an exponent and no suffix."""
    mantissa, e, exponent = digits.lower().partition("e")
    return bool(e) and mantissa.replace(".", "").isdecimal() and exponent.lstrip("+-").isdecimal()
