"""``IDENTIFIER(…)`` → the name that it means. Pure.

Spark reads the value of the expression as a name: of a table, a column or a function, with a dot
between its parts. Strings, variables and concatenations of them are constant. Other expressions are
refused, because their values are unknown before the query runs.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.frontends.sql_functions import Refused
from persist_assets.compiler.frontends.sql_inlining import Broken, Inlined
from persist_assets.compiler.frontends.sql_templates import Piece, copied, fixed
from persist_assets.core.dialect import quote, tokenize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.compiler.frontends.sql_functions import Text
    from persist_assets.compiler.frontends.sql_inlining import Definitions

_PART = r"(?:[A-Za-z0-9_]+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")


def with_names(file: Text, tokens: Sequence[Token], definitions: Definitions) -> Inlined | None:
    """Return a query with the names that ``IDENTIFIER(…)`` means; None if it has none.

    Raises
    ------
    Refused
        A name is not constant, or invalid.
    Broken
        A variable in it has an error.
    """
    pieces: list[Piece] = []
    start = tokens[0].start
    for at, (token, after) in enumerate(pairwise(tokens)):
        is_called = after.token_type is TokenType.L_PAREN and token.token_type is TokenType.VAR
        if not is_called or token.text.upper() != "IDENTIFIER":
            continue
        place = file.location(token.start)
        closing = (n for n, t in enumerate(tokens) if n > at and t.token_type is TokenType.R_PAREN)
        end = next(closing, len(tokens))
        name = _constant(file.text, tokens[at + 2 : end], definitions)
        if name is None:
            _raise_broken(file, tokens[at + 2 : end], definitions)
            hint = "write the name itself, or a string: IDENTIFIER('…')"
            message = "IDENTIFIER(…) hides the name until the query runs"
            raise Refused("identifier", message, place, hint)
        if not _NAME.fullmatch(name):
            hint = "write other names in backticks: IDENTIFIER('`a b`.c')"
            raise Refused("identifier", f"invalid name `{name}` in IDENTIFIER(…)", place, hint)
        is_function = end + 1 < len(tokens) and tokens[end + 1].token_type is TokenType.L_PAREN
        pieces += [copied(file, start, token.start), fixed(_spelled(name, is_function), place)]
        start = tokens[end].end + 1
    if not pieces:
        return None
    return Inlined((*pieces, copied(file, start, tokens[-1].end + 1)), ())


def _spelled(name: str, is_function: bool) -> str:
    parts = [p[1:-1].replace("``", "`") if p[0] == "`" else p for p in re.findall(_PART, name)]
    # Spark reads a few calls, such as `if(…)`, by their keywords, which have no backticks.
    return name if is_function and "`" not in name else ".".join(map(quote, parts))


def _constant(text: str, tokens: Sequence[Token], definitions: Definitions) -> str | None:
    """Return the value of strings, variables and concatenations of them; None: it is not one."""
    terms: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type is TokenType.DPIPE:
            terms.append([])
        else:
            terms[-1].append(token)
    values = [_term(text, term, definitions) for term in terms]
    return None if None in values else "".join(v for v in values if v)


def _term(text: str, tokens: Sequence[Token], definitions: Definitions) -> str | None:
    match [t.text.lower() for t in tokens if t.token_type is not TokenType.STRING]:
        case [] if tokens and all("\\" not in text[t.start : t.end + 1] for t in tokens):
            return "".join(t.text for t in tokens)
        case [name] | ["session", ".", name] if len(tokens) in (1, 3):
            return _of_variable(name, definitions)
        case _:
            return None


def _of_variable(name: str, definitions: Definitions) -> str | None:
    variable = definitions.variables.get(name)
    match = re.fullmatch(r"CAST\((.*) AS string\)", variable.value, re.DOTALL) if variable else None
    return _constant(match[1], tokenize(match[1]), definitions) if match else None


def _raise_broken(file: Text, tokens: Sequence[Token], definitions: Definitions) -> None:
    for token in tokens:
        if token.token_type is TokenType.VAR and token.text.lower() in definitions.broken:
            raise Broken(token.text.lower(), file.location(token.start))
