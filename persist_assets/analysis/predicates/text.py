"""Text of predicates: canonical, versioned, and parsed back to the same predicate."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.predicates.terms import (
    CALLS,
    FALSE,
    NOW,
    TODAY,
    TRUE,
    UNITS,
    Term,
    cast,
    column,
    compared,
    every,
    negated,
    not_true,
    number_literal,
    shifted,
    some,
    time_literal,
    within,
)
from persist_assets.core.dialect import parse, plain, suffixed, type_name
from persist_assets.core.digests import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable


class UnreadableError(ValueError):
    """A text is not a predicate of the language."""


def from_text(text: str, version: int = FORMAT) -> Term:
    """Parse a predicate, the inverse of `as_text`.

    Raises
    ------
    UnreadableError
        The text is outside the language, or of another version.

    Examples
    --------
    >>> from persist_assets.analysis.predicates import as_text
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
            like = Term("like", (_value(node.this), _value(node.expression)))
            return negated(like) if node.args.get("negate") else like
        case _ if type(node) in _COMPARED:
            return compared(_COMPARED[type(node)], _value(node.this), _value(node.expression))
        case _:
            raise _unreadable(node)


def _value(node: Any) -> Term:
    match node:
        case exp.Paren():
            return _value(node.this)
        case exp.Column():
            first, *fields = (plain(part.name) for part in node.parts)
            return _field(column(first), fields)
        case exp.Dot() if isinstance(node.expression, exp.Identifier):
            return _field(_value(node.this), [plain(node.expression.name)])
        case exp.HexString():
            return Term("binary", (), (node.name.upper(),))
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
                literal = time_literal(string_of(node.this.this) or "", kind)
                if literal is not None:
                    return literal
            elif kind in ("date", "timestamp", "timestamp_ntz", "double"):
                return cast(_value(node.this), kind)
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval):
            shifted_time = _shift(
                node.this, node.expression, -1 if isinstance(node, exp.Sub) else 1
            )
            if shifted_time is not None:
                return shifted_time
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
            if name in CALLS and len(args) == 1:
                return Term(name, (_value(args[0]),))
        case _:
            pass
    raise _unreadable(node)


def _field(value: Term, names: Iterable[str]) -> Term:
    for name in names:
        value = Term("field", (value,), (name,))
    return value


def _literal(node: Any) -> Term:
    number = suffixed(node.this) if node.is_string else node.this
    if number is None:
        text = string_of(node.this)
        if text is None:
            raise _unreadable(node)
        return Term("string", (), (text,))
    literal = number_literal(number)
    if literal is None:
        raise _unreadable(node)
    return literal[0]


def _shift(base: Any, interval: Any, sign: int) -> Term | None:
    count, unit = interval.this, interval.args.get("unit")
    if unit is None or not count.name.isdecimal() or unit.name.lower() not in UNITS:
        return None
    return shifted(_value(base), sign * int(count.name), unit.name)


def _unreadable(node: Any) -> UnreadableError:
    return UnreadableError(f"not in the language of predicates: {node.sql('spark')}")


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}


def string_of(text: str) -> str | None:
    """Return the value of a string literal as `dialect.faithful` spells it; None if uncertain."""
    if "\\" not in text:
        return None if re.match(r"[rR]['\"]", text) else text
    quotes, inner = text[:1], text[1:-1]
    if quotes not in "'\"" or text[-1:] != quotes or len(text) < 2:
        return None
    decoded: list[str] = []
    characters = iter(inner)
    for character in characters:
        if character == quotes:
            return None
        if character == "\\":
            character = _ESCAPES.get(next(characters, ""), "")
            if not character:
                return None
        decoded.append(character)
    return "".join(decoded)
