"""Operators and clauses that the parser lacks, in a spelling that it knows. Pure.

Each stands for a token of another dialect that no Spark SQL has; `analysis/syntax.py` knows the
nodes that come of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import Token, TokenType

if TYPE_CHECKING:
    from collections.abc import Sequence

_Type = TokenType
MARK = "ƒ"
"""The prefix of marked words and literals; see `core/dialect.py`."""
_BEFORE_OPERANDS = frozenset(
    """
    AGGREGATE ALL AND AS BETWEEN BY CASE DISTINCT DIV ELSE ESCAPE EXTEND FILTER FOR FROM HAVING
    ILIKE IN INTERVAL IS LIKE LIMIT NOT OFFSET ON OR QUALIFY REGEXP RETURN RLIKE SELECT THEN TO
    USING VALUES WHEN WHERE
    """.split()
)
"""Keywords before an operand."""

_QUANTIFIERS = (_Type.ALL, _Type.DISTINCT)
_SPELLED = frozenset((_Type.PLUS, _Type.GT, _Type.DCOLON, _Type.VALUES, *_QUANTIFIERS))
_LITERALS = frozenset((_Type.NUMBER, _Type.STRING, _Type.NULL, _Type.TRUE, _Type.FALSE))


def comes_before_operand(before: str) -> bool:
    """Whether a sign after a word (or after nothing) belongs to the operand that follows.

    Examples
    --------
    >>> comes_before_operand("SELECT"), comes_before_operand("("), comes_before_operand("a")
    (True, True, False)
    """
    word = before.upper().split()[-1] if before else ""
    return word in _BEFORE_OPERANDS or not (word[-1:].isalnum() or word[-1:] in "_)]'\"`")


def with_operators(tokens: Sequence[Token], text: str) -> list[Token]:
    """Return tokens with operators and clauses that the parser reads as Spark does.

    - ``a >>> b`` and ``+a`` become operators of other dialects;
    - ``-1::STRING`` casts minus one;
    - each row of ``VALUES 1, 2`` gets parentheses;
    - ``all`` in ``SELECT all, a`` is a name, and ``GROUP BY (ALL)`` is ``GROUP BY ALL``;
    - ``MAX RECURSION LEVEL 9`` becomes the keys that DuckDB has there.

    Parameters
    ----------
    tokens
        `faithful` tokens.
    """
    kinds = {token.token_type for token in tokens}
    limited = any(token.text.upper() == "RECURSION" for token in tokens)
    if kinds.isdisjoint(_SPELLED) and not limited:
        return [*tokens]
    out: list[Token] = []
    n = 0
    while n < len(tokens):
        token, before = tokens[n], _source(tokens[n - 1], text) if n else ""
        kinds_here = tuple(t.token_type for t in tokens[n : n + 3])
        end = n + 1
        if kinds_here == (_Type.GT,) * 3 and _touch(tokens[n : n + 3]):
            out.append(_as(token, _Type.DQMARK, ">>>"))
            end = n + 3
        elif kinds_here[0] is _Type.PLUS and not _adds(tokens, n, before):
            out.append(_as(token, _Type.PIPE_SLASH, "+"))
        elif kinds_here[0] is _Type.DASH and _is_cast(tokens, n) and comes_before_operand(before):
            opened, closed = _as(token, _Type.L_PAREN, "("), _as(token, _Type.R_PAREN, ")")
            out += (opened, token, tokens[n + 1], closed)
            end = n + 2
        elif _groups_by_all(tokens, n):
            out += (token, tokens[n + 2])
            end = n + 4
        elif kinds_here[0] in _QUANTIFIERS and _is_name(tokens, n):
            out.append(_as(token, _Type.VAR, token.text))
        elif kinds_here[0] is _Type.VALUES and (rows := _rows(tokens, n + 1)):
            out += (token, *rows[0])
            end = rows[1]
        elif _limits_recursion(tokens, n):
            out += (
                _as(token, _Type.USING, "USING"),
                _as(token, _Type.VAR, "KEY"),
                _as(token, _Type.L_PAREN, "("),
                tokens[n + 3],
                _as(token, _Type.R_PAREN, ")"),
            )
            end = n + 4
        else:
            out.append(token)
        n = end
    return out


def _adds(tokens: Sequence[Token], n: int, before: str) -> bool:
    """Whether a plus stands between two operands; ``all`` may be the name of a parameter."""
    if before.upper() == "ALL" and n > 1:
        return tokens[n - 2].token_type not in (_Type.SELECT, _Type.L_PAREN)
    return not comes_before_operand(before)


_WITHIN_EXPRESSIONS = frozenset(
    """
    COMMA DOT DCOLON L_BRACKET EQ NEQ NULLSAFE_EQ LT LTE GT GTE SLASH MOD AMP PIPE DPIPE
    CARET ARROW
    """.split()
)
"""Signs between a name and the rest of its expression or list; words can be names themselves."""
_AFTER_NAMES = _WITHIN_EXPRESSIONS | frozenset(
    """
    R_PAREN SEMICOLON FROM WHERE GROUP_BY HAVING ORDER_BY LIMIT UNION EXCEPT INTERSECT
    """.split()
)
"""Tokens that never begin an expression."""
_SIGNS = (_Type.PLUS, _Type.DASH, _Type.STAR)
_OPERANDS = (_Type.VAR, _Type.IDENTIFIER, _Type.NUMBER, _Type.STRING, _Type.L_PAREN)


def _is_name(tokens: Sequence[Token], n: int) -> bool:
    """Whether ALL or DISTINCT, at the start of a list, is a name: no expression follows it.

    Where both are possible (``SELECT all - 1``), Spark reads the keyword. ``GROUP BY ALL`` has
    nothing beside it.
    """
    before = tokens[n - 1].token_type if n else None
    after = tokens[n + 1].token_type if n + 1 < len(tokens) else _Type.SEMICOLON
    if before is _Type.GROUP_BY:
        return _goes_on(tokens, n + 1) or tokens[n].token_type is _Type.DISTINCT
    if before not in (_Type.SELECT, _Type.L_PAREN, _Type.HINT, _Type.COMMA):
        return False
    if after is _Type.STAR:  # SELECT all * 2
        return n + 2 < len(tokens) and tokens[n + 2].token_type in _OPERANDS
    return after.name in _AFTER_NAMES


def _groups_by_all(tokens: Sequence[Token], n: int) -> bool:
    """Whether GROUP BY has ALL in parentheses, and nothing beside it."""
    kinds = tuple(t.token_type for t in tokens[n : n + 4])
    is_all = kinds == (_Type.GROUP_BY, _Type.L_PAREN, _Type.ALL, _Type.R_PAREN)
    return is_all and not _goes_on(tokens, n + 4)


def _goes_on(tokens: Sequence[Token], n: int) -> bool:
    """Whether the token at a position continues an expression or a list."""
    kind = tokens[n].token_type if n < len(tokens) else _Type.SEMICOLON
    return kind.name in _WITHIN_EXPRESSIONS or kind in _SIGNS


def _as(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, token.line, token.col, token.start, token.end)


def _source(token: Token, text: str) -> str:
    return text[token.start : token.end + 1]


def _touch(tokens: Sequence[Token]) -> bool:
    return all(a.end + 1 == b.start for a, b in pairwise(tokens))


def _is_cast(tokens: Sequence[Token], n: int) -> bool:
    """Whether a minus stands before a number that ``::`` casts."""
    if n + 2 >= len(tokens) or tokens[n + 2].token_type is not _Type.DCOLON:
        return False
    number = tokens[n + 1]
    return number.token_type is _Type.NUMBER or number.text.startswith(MARK)


def _rows(tokens: Sequence[Token], n: int) -> tuple[list[Token], int] | None:
    """Return the literals of VALUES in parentheses of their own, and their end."""
    out: list[Token] = []
    while n < len(tokens):
        signed = tokens[n].token_type is _Type.DASH
        literal = n + signed
        if literal >= len(tokens) or tokens[literal].token_type not in _LITERALS:
            return None
        after = tokens[literal + 1].token_type if literal + 1 < len(tokens) else None
        out += (
            _as(tokens[n], _Type.L_PAREN, "("),
            *tokens[n : literal + 1],
            _as(tokens[literal], _Type.R_PAREN, ")"),
        )
        n = literal + 1
        if after is not _Type.COMMA:
            ends = after in (None, _Type.ALIAS, _Type.R_PAREN, _Type.SEMICOLON, _Type.UNION)
            return (out, n) if ends else None
        out.append(tokens[n])
        n += 1
    return None


def _limits_recursion(tokens: Sequence[Token], n: int) -> bool:
    words = [t.text.upper() for t in tokens[n : n + 3]]
    return (
        words == ["MAX", "RECURSION", "LEVEL"]
        and n + 4 < len(tokens)
        and tokens[n + 3].token_type is _Type.NUMBER
        and tokens[n + 4].token_type is _Type.ALIAS
    )
