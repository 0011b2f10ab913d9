"""Spark's types of expressions, where they are certain. Pure.

A type that is not certain is None: what is said of a column before its first build must be true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.meaning.algebra import Call, Ref, Subquery, Window
from persist_assets.meaning.functions import INTEGRAL

if TYPE_CHECKING:
    from persist_assets.meaning.algebra import Expr

_FIXED_TYPES: dict[str, str] = {
    **dict.fromkeys(("string", "concat_ws", "upper", "lower", "trim", "date_format"), "string"),
    **dict.fromkeys(("substring", "replace", "regexp_replace", "to_json", "initcap"), "string"),
    **dict.fromkeys(
        ("=", "<>", "<", "<=", "<=>", "and", "or", "not", "is null", "is", "in"), "boolean"
    ),
    **dict.fromkeys(("boolean", "bool_or", "bool_and", "rlike", "like"), "boolean"),
    **dict.fromkeys(("count", "count_if", "approx_count_distinct", "div"), "bigint"),
    **dict.fromkeys(
        ("row_number", "rank", "dense_rank", "ntile", "year", "month", "dayofmonth"), "int"
    ),
    **dict.fromkeys(
        ("hour", "minute", "second", "quarter", "dayofweek", "dayofyear", "datediff"), "int"
    ),
    **dict.fromkeys(("percent_rank", "cume_dist", "stddev_samp", "stddev_pop", "corr"), "double"),
    **dict.fromkeys(
        ("current_date", "to_date", "date_add", "date_sub", "make_date", "last_day"), "date"
    ),
    **dict.fromkeys(("current_timestamp", "date_trunc"), "timestamp"),
}


@dataclass(slots=True)
class Types:
    """Knows the types of columns, and tells those of expressions over them.

    Attributes
    ----------
    leaves
        For each instance the types of its columns.
    """

    leaves: dict[int, tuple[str | None, ...]] = field(default_factory=dict)

    def of(self, expr: Expr) -> str | None:
        """Return the Spark type of an expression where it is certain."""
        match expr:
            case Ref(instance, column):
                types = self.leaves.get(instance, ())
                return types[column] if column < len(types) else None
            case Window(function=function):
                return self.of(function)
            case Subquery(kind="scalar", block=block):
                return block.columns[0].type
            case Subquery():
                return "boolean"
            case Call(op, args, words):
                return self._of_call(op, args, words)

    def _of_call(self, op: str, args: tuple[Expr, ...], words: tuple[str, ...]) -> str | None:
        if op in _FIXED_TYPES:
            return _FIXED_TYPES[op]
        if op in ("cast", "try_cast"):
            return words[0]
        if op == "number":
            return _of_number(words[0])
        if op in ("min", "max", "first", "last", "lag", "lead", "nth_value", "any_value"):
            return self.of(args[0]) if args else None
        if op in ("coalesce", "greatest", "least", "case", "nullif"):
            values = args if op != "case" else (*args[1::2], *(args[-1:] if words else ()))
            if op == "nullif":
                values = args[:1]
            kinds = {self.of(a) for a in values if not (isinstance(a, Call) and a.op == "null")}
            return kinds.pop() if len(kinds) == 1 else None
        kinds = [self.of(a) for a in args]
        if op in ("+", "-", "*", "mod") and len(kinds) == 2:
            if set(kinds) == {"double"}:
                return "double"
            if all(k in INTEGRAL for k in kinds):
                return max(kinds, key=INTEGRAL.index)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if op == "/" and all(k in (*INTEGRAL, "double") for k in kinds):
            return "double"
        if op == "sum" and kinds[:1] and kinds[0] in (*INTEGRAL, "double"):
            return "double" if kinds[0] == "double" else "bigint"
        if op == "avg" and kinds[:1] and kinds[0] in (*INTEGRAL, "double"):
            return "double"
        if op in ("round", "abs", "negative") and kinds[:1] and kinds[0] in (*INTEGRAL, "double"):
            return kinds[0]
        return None


def _of_number(text: str) -> str | None:
    if text.isdecimal():
        return "int" if int(text) < 2**31 else "bigint" if int(text) < 2**63 else None
    return "double" if "e" in text.lower() else None
