"""Feldera's keywords for streams, in declarations of external tables. Pure.

``ts TIMESTAMP LATENESS INTERVAL 1 HOUR`` and ``WATERMARK …`` let Feldera forget or delay rows.
Nothing here depends on the order in which rows arrive, so they are left out before the declaration
is parsed, with a note that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.frontends.sql_trees import BRACKETS
from persist_assets.core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.core.errors import Location

_STREAM = frozenset(("LATENESS", "WATERMARK"))
_ENDS = frozenset(("NOT", "NULL", "PRIMARY", "DEFAULT", "COMMENT", *_STREAM))
"""Words that begin the next property of a column."""
_MEANINGS = {
    "LATENESS": "rows that arrive late are read like all others, and not dropped",
    "WATERMARK": "rows are not delayed",
}


def without_streaming(
    tokens: Sequence[Token], locate: Callable[[int], Location], problems: list[Problem]
) -> Sequence[Token]:
    """Return a CREATE EXTERNAL TABLE without LATENESS and WATERMARK, each with a note.

    Parameters
    ----------
    locate
        Returns the location of a character of the text.
    problems
        The notes are added here.
    """
    words = [t.text.upper() for t in tokens[:3]]
    if "EXTERNAL" not in words or not any(t.text.upper() in _STREAM for t in tokens):
        return tokens
    remaining: list[Token] = []
    depth = at = 0
    column = ""
    while at < len(tokens):
        token = tokens[at]
        depth += BRACKETS.get(token.token_type, 0)
        begins = bool(remaining) and remaining[-1].token_type in (
            TokenType.L_PAREN,
            TokenType.COMMA,
        )
        if depth == 1 and begins:
            column = token.text
        end = _end(tokens, at + 1)
        word = token.text.upper()
        if depth == 1 and not begins and word in _STREAM and end > at + 1:
            message = f"`{word}` of `{column}` changes nothing here: {_MEANINGS[word]}"
            problems.append(
                Problem("external-stream", message, locate(token.start), severity="note")
            )
            at = end
            continue
        if depth == 0 and token.token_type is TokenType.R_PAREN:
            return [*remaining, *tokens[at:]]
        remaining.append(token)
        at += 1
    return remaining


def _end(tokens: Sequence[Token], at: int) -> int:
    """Return the end of the expression that begins at a token of a column."""
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        is_end = token.token_type is TokenType.COMMA or token.text.upper() in _ENDS
        if depth == 0 and (is_end or token.token_type is TokenType.R_PAREN):
            break
        depth += BRACKETS.get(token.token_type, 0)
        at += 1
    return at


def statement_of_streams(tokens: Sequence[Token]) -> tuple[str, str] | None:
    """Return a message and a hint for a statement of Feldera that declares nothing here."""
    match tokens[0].text.upper():
        case "SET":
            return (
                "`SET` changes the session, which all sources share",
                "set Spark settings in persist.toml, under [spark]; declare values for queries with"
                " DECLARE VARIABLE",
            )
        case "LATENESS":
            message = f"`LATENESS` has no meaning here: {_MEANINGS['LATENESS']}"
            return message, "remove this statement"
        case _:
            return None
