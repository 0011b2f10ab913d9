"""Paths into variants as calls, for the parser, which knows few forms of them. Pure.

``v:a.b[0]`` is ``variant_get(v, '$.a.b[0]')`` in Spark, but for the name of a column without an
alias; see `is_path`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import Token, TokenType

from persist_assets.core.dialect import beside, marked_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_Type = TokenType
_NAMES = (_Type.VAR, _Type.IDENTIFIER)
_OPENED = {_Type.R_PAREN: _Type.L_PAREN, _Type.R_BRACKET: _Type.L_BRACKET}
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][\w -]*", re.ASCII)
"""A key in backquotes, between dots."""
_IN_BRACKETS = re.compile(r"[A-Za-z_][\w .-]*", re.ASCII)
"""A key in brackets; a dot is part of it."""


def without_paths(tokens: Sequence[Token]) -> list[Token]:
    """Return tokens in which paths into variants are calls; those of unknown forms stay.

    Parameters
    ----------
    tokens
        Without parameters and types that have colons.
    """
    if not any(t.token_type is _Type.COLON for t in tokens):
        return [*tokens]
    out: list[Token] = []
    n = 0
    while n < len(tokens):
        token = tokens[n]
        start = _operand(out) if token.token_type is _Type.COLON else None
        end, path = _path(tokens, n + 1) if start is not None else (n, None)
        if start is None or path is None:
            out.append(token)
            n += 1
            continue
        first, last = out[start], tokens[end - 1]
        name = marked_name(marked_name(beside(first, _Type.VAR, "variant_get")))
        opened, closed = beside(first, _Type.L_PAREN, "("), beside(last, _Type.R_PAREN, ")")
        comma, text = beside(token, _Type.COMMA, ","), beside(token, _Type.STRING, f"${path}")
        out[start:] = [name, opened, *out[start:], comma, text, closed]
        n = end
    return out


def _operand(tokens: Sequence[Token]) -> int | None:
    """Return where the operand at the end of tokens starts: ``v``, ``s.v``, ``f(x)[0]``."""
    n = len(tokens) - 1
    while n >= 0:
        kind = tokens[n].token_type
        if kind in _OPENED:
            depth = 0
            while n >= 0:
                depth += tokens[n].token_type is kind
                depth -= tokens[n].token_type is _OPENED[kind]
                if not depth:
                    break
                n -= 1
            before = tokens[n - 1].token_type if n > 0 else None
            if kind is _Type.R_PAREN and before not in _NAMES:
                return n if n >= 0 else None
            n -= 1
        elif kind in _NAMES:
            if n < 2 or tokens[n - 1].token_type is not _Type.DOT:
                return n
            n -= 2
        else:
            return None
    return None


def _path(tokens: Sequence[Token], n: int) -> tuple[int, str | None]:
    """Return the end of a path, and its text as a JSON path, or None if it is not a path."""
    path, is_first = "", True
    while n < len(tokens):
        kind = tokens[n].token_type
        if kind is _Type.L_BRACKET and n + 2 < len(tokens):
            key, closed = tokens[n + 1], tokens[n + 2]
            if closed.token_type is not _Type.R_BRACKET:
                return n, None
            if key.token_type is _Type.NUMBER and key.text.isdecimal():
                path += f"[{key.text}]"
            elif key.token_type is _Type.STRING and _IN_BRACKETS.fullmatch(key.text):
                path += _step(key.text)
            else:
                return n, None
            n += 3
        elif is_first or (kind is _Type.DOT and n + 1 < len(tokens)):
            key = tokens[n + (not is_first)]
            quoted = key.token_type is _Type.IDENTIFIER
            keys = key.text.split(".") if quoted else [key.text]
            if not all((_KEY if quoted else _WORD).fullmatch(k) for k in keys):
                return n, None
            path += "".join(map(_step, keys))
            n += 2 - is_first
        else:
            break
        is_first = False
    return n, path or None


def _step(key: str) -> str:
    """Return a key as a step of a JSON path."""
    return f".{key}" if _WORD.fullmatch(key) else f"['{key}']"
