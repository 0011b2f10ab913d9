"""Parameters of SQL queries, and their allowed positions. Pure.

    --@ persist refresh=incremental watermark=ts assume=exact
    … WHERE ts > :watermark

    --@ persist partition=daily time_column=day start="2013-01-01"
    … WHERE day >= :partition_start AND day < :partition_end

The invariant: no parameter decides which rows a source has. A comparison with a parameter means
that the other side is not NULL. A build may use it to read less, and computes the same rows. So it
is allowed only where it can do nothing but limit: alone, or combined by AND, in WHERE.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from persist_assets.core.errors import Problem, did_you_mean
from persist_assets.core.model.queries import Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from persist_assets.core.errors import Location
    from persist_assets.core.model.sources import Declaration

WATERMARK, START, END = "watermark", "partition_start", "partition_end"
_FORMS = {
    WATERMARK: (("GT", "GTE"), "WHERE ts > :watermark"),
    START: (("GTE",), "WHERE ts >= :partition_start"),
    END: (("LT",), "WHERE ts < :partition_end"),
}
"""The comparison operators of each parameter, with the other side first, and an example."""
_TURNED = {"LT": "GT", "LTE": "GTE", "GT": "LT", "GTE": "LTE"}
_AHEAD = frozenset("AND BETWEEN CASE ELSE IN LIKE LIMIT NOT OFFSET ON OR SELECT THEN WHEN".split())
_BEFORE = _AHEAD | {"WHERE", "HAVING", "QUALIFY", "USING", "BY", "VALUES"}
"""Keywords before an operand."""


def joined(tokens: Sequence[Token], text: str) -> list[Token]:
    """Return tokens in which each parameter is one token: a name with a colon before it.

    Colons before the types of fields stay separate.
    """
    if not any(t.token_type is TokenType.COLON for t in tokens):
        return [*tokens]
    out: list[Token] = []
    for token in tokens:
        if out and out[-1].token_type is TokenType.COLON and _is_word(token.text):
            before = [text[t.start : t.end + 1].upper() for t in out[-3:-1]]
            if _wants_operand(before):
                start = out.pop().start
                word = f":{token.text}"
                token = Token(TokenType.VAR, word, token.line, token.col, start, token.end)
        out.append(token)
    return out


def _is_word(text: str) -> bool:
    return text.isidentifier()


def _wants_operand(words: Sequence[str]) -> bool:
    """Whether an operand follows the last of some words."""
    if not words or words[-1] in _BEFORE:
        return not words or words[0] not in (",", "<") or len(words) < 2  # a field's name
    return not (words[-1][-1:].isalnum() or words[-1][-1:] in "_)]}'\"`")


def bounds(
    tree: exp.Expr, tokens: Sequence[Token], base: int, locate: Callable[[int], Location]
) -> tuple[tuple[Bound, ...], list[Problem]]:
    """Return the conditions with parameters in a query, and the problems of invalid ones.

    Parameters are placeholders in the tree.

    Parameters
    ----------
    tree
        The tree of the query, parsed from `joined` tokens.
    tokens
        The `joined` tokens.
    base
        The offset of the query's text.
    locate
        Returns the location of an offset.
    """
    problems = [
        Problem("parameter", "`?` has no value", locate(t.start), "write the value itself")
        for t in tokens
        if t.token_type is TokenType.PLACEHOLDER
    ]
    if not any(t.text.startswith(":") for t in tokens):
        return (), problems
    for one, other in pairwise(tokens):
        if one.text == ":" and any(p.this == other.text for p in tree.find_all(exp.Placeholder)):
            message = f"parameter `:{other.text}` is not allowed here"
            problems.append(Problem("parameter", message, locate(one.start)))
    places = {t.start: i for i, t in enumerate(tokens)}
    conditions: list[Bound] = []
    named = [i for i in tree.find_all(exp.Identifier) if not i.quoted and i.name.startswith(":")]
    for identifier in sorted(named, key=lambda i: i.meta["start"]):
        name, place = identifier.name[1:], locate(identifier.meta["start"])
        column: Any = identifier.parent
        operator, leads = _compared(identifier)
        right = name in _FORMS and operator in _FORMS[name][0]
        if isinstance(column, exp.Column):  # each problem is reported once
            column.replace(exp.Placeholder(this=identifier) if right else exp.Null())
        if name not in _FORMS:
            hint = did_you_mean(f":{name}", [f":{known}" for known in _FORMS])
            hint = hint or f"known parameters: {', '.join(f':{known}' for known in _FORMS)}"
            problems.append(Problem("parameter", f"unknown parameter `:{name}`", place, hint))
            continue
        if not right:
            message = f"`:{name}` may only limit what a build reads"
            hint = f"use it only in a comparison: {_FORMS[name][1]}"
            problems.append(Problem("parameter", message, place, hint))
            continue
        at = places[identifier.meta["start"]]
        first, last = (tokens[at], tokens[at + 1]) if leads else (tokens[at - 1], tokens[at])
        conditions.append(Bound(name, first.start - base, last.end + 1 - base, leads, place))
    return tuple(conditions), problems


def _compared(identifier: Any) -> tuple[str | None, bool]:
    """Return the operator between a parameter and the other side, and whether that comes second.

    None if there is no comparison, or if it decides more than whether a row is read.
    """
    column = identifier.parent
    test = column.parent
    if not isinstance(column, exp.Column) or column.args.get("table"):
        return None, False
    if not isinstance(test, exp.GT | exp.GTE | exp.LT | exp.LTE):
        return None, False
    above = test.parent
    while isinstance(above, exp.And | exp.Paren):
        above = above.parent
    if not isinstance(above, exp.Where) or not isinstance(above.parent, exp.Select):
        return None, False
    kind, leads = type(test).__name__, test.this is column
    return _TURNED[kind] if leads else kind, leads


def unfounded(declaration: Declaration) -> Iterator[Problem]:
    """Yield a problem for each parameter to which the source's annotation gives no value."""
    annotation = declaration.annotation
    parted = annotation.partition is not None and annotation.partition.time is not None
    for bound in declaration.query.bounds if declaration.query else ():
        name = declaration.name
        if not declaration.persisted:
            message = f"`:{bound.name}` has no value: `{name}` has no table to add to"
            hint = "use it in a source that is persisted"
        elif bound.name == WATERMARK and not annotation.is_incremental:
            message = f"`:{bound.name}` has no value: `{name}` is always computed in full"
            hint = "add refresh=incremental, or remove the condition"
        elif bound.name == WATERMARK and annotation.time_column is None:
            message, hint = f"`{name}` has no watermark", "add watermark=column"
        elif bound.name != WATERMARK and not parted:
            message = f"`:{bound.name}` has no value: `{name}` has no time partitions"
            hint = "add partition=daily, or remove the condition"
        else:
            continue
        yield Problem("parameter", message, bound.location, hint)
