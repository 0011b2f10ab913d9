"""Files of SQLMesh: `MODEL (…)` and `AUDIT (…)`, and the statements behind them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from persist_assets.operations.importing.translation import UntranslatableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.tokenizer_core import Token

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
_COMMENT = re.compile(r"\s*(?:/\*(?P<block>.*?)\*/|--(?P<line>[^\n]*))", re.S)


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a header: its text, and its line in the file."""

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Headed:
    """A header with what follows it.

    Attributes
    ----------
    word
        ``MODEL`` or ``AUDIT``.
    properties
        By name, in lower case.
    statements
        The texts of the statements up to the next header.
    comment
        The comment above the header.
    """

    word: str
    line: int
    properties: dict[str, Property]
    statements: tuple[str, ...]
    comment: str = ""

    def text(self, name: str) -> str | None:
        """Return a property as text without quotes, or None."""
        return unquoted(self.properties[name].value) if name in self.properties else None


def read_headed(text: str, dialect: str) -> list[Headed]:
    """Return the headers of a file with what follows each.

    Raises
    ------
    UntranslatableError
        The text cannot be cut into tokens, or a parenthesis is not closed.
    """
    tokens = tokenized(text, dialect)
    starts = [
        i
        for i, token in enumerate(tokens[:-1])
        if token.text.upper() in ("MODEL", "AUDIT", "METRIC")
        and tokens[i + 1].token_type is TokenType.L_PAREN
        and (i == 0 or tokens[i - 1].token_type is TokenType.SEMICOLON)
    ]
    ends = [*starts, len(tokens)][1:]
    return [_headed(text, tokens[a:b]) for a, b in zip(starts, ends, strict=True)]


def _headed(text: str, tokens: Sequence[Token]) -> Headed:
    close = _closing(tokens, 1)
    properties: dict[str, Property] = {}
    for part in _parts(tokens[2:close], TokenType.COMMA):
        if len(part) > 1:
            value = text[part[1].start : part[-1].end + 1]
            properties[part[0].text.lower()] = Property(value, part[0].line)
    statements = [
        text[part[0].start : part[-1].end + 1]
        for part in _parts(tokens[close + 1 :], TokenType.SEMICOLON)
    ]
    line = text[: tokens[0].start].count("\n") + 1
    comment = _comment(text[: tokens[0].start].rpartition(";")[2])
    return Headed(tokens[0].text.upper(), line, properties, tuple(statements), comment)


def tokenized(text: str, dialect: str) -> list[Token]:
    """Return the tokens of a text.

    Raises
    ------
    UntranslatableError
        There are none.
    """
    try:
        return sqlglot.tokenize(text, read=dialect)
    except SqlglotError as error:
        raise UntranslatableError(f"not read as {dialect}") from error


def _closing(tokens: Sequence[Token], start: int) -> int:
    """Return the index of the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(tokens)):
        depth += (tokens[i].token_type in _OPENING) - (tokens[i].token_type in _CLOSING)
        if depth == 0:
            return i
    raise UntranslatableError("a parenthesis is not closed")


def _parts(tokens: Sequence[Token], separator: TokenType) -> list[list[Token]]:
    """Return tokens cut at separators that are in no brackets, without empty parts."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if token.token_type is separator and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def _comment(text: str) -> str:
    """Return the text of comments."""
    lines: list[str] = []
    for match in _COMMENT.finditer(text):
        lines += (match["block"] if match["block"] is not None else match["line"]).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


# --------------------------------------------------------------------------------- values


def unquoted(text: str) -> str:
    """Return a text without quotes around it.

    Examples
    --------
    >>> unquoted("'@daily'"), unquoted('"a b"'), unquoted("x")
    ('@daily', 'a b', 'x')
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


def listed(text: str, dialect: str) -> list[str]:
    """Return the elements of a list: `(a, b)`, `[a, b]`, or one value.

    Examples
    --------
    >>> listed("[a, f(b, c)]", "duckdb"), listed("a", "duckdb")
    (['a', 'f(b, c)'], ['a'])
    """
    text = text.strip()
    tokens = tokenized(text, dialect)
    if tokens and tokens[0].token_type in _OPENING and _closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return [text[p[0].start : p[-1].end + 1] for p in _parts(tokens, TokenType.COMMA)]


def call(text: str, dialect: str) -> tuple[str, dict[str, str]]:
    """Return the name, in lower case, and the named arguments of a call; values are texts.

    Examples
    --------
    >>> call("NOT_NULL(columns := (a, b))", "duckdb")
    ('not_null', {'columns': '(a, b)'})

    Raises
    ------
    UntranslatableError
        An argument has no name.
    """
    name, bracket, rest = text.strip().partition("(")
    arguments: dict[str, str] = {}
    if bracket:
        for part in listed(f"({rest}", dialect):
            match = re.match(r"(\w+)\s*(?::=|=>|=)\s*", part)
            if match is None:
                raise UntranslatableError(f"`{part}` has no name")
            arguments[match[1].lower()] = part[match.end() :]
    return name.strip().lower(), arguments


# --------------------------------------------------------------------------------- macros


def macros_in(query: str, dialect: str) -> list[tuple[int, str]]:
    """Return the macros and templates in a query, outside strings and comments, with their starts.

    Examples
    --------
    >>> macros_in("SELECT @x, '@y'", "duckdb")
    [(7, '@x')]
    """
    macros: list[tuple[int, str]] = []
    for token in tokenized(query, dialect):
        match = re.match(r"@\{?\w+|@@\w+|\{\{|\{%", query[token.start :])
        if match:
            macros.append((token.start, match[0]))
    if re.match(r"\s*JINJA_\w+", query):
        macros.insert(0, (0, "JINJA_QUERY_BEGIN"))
    return macros


def without_macros(query: str, dialect: str) -> str:
    """Return a query that has no macros.

    Raises
    ------
    UntranslatableError
        It has one.
    """
    macros = macros_in(query, dialect)
    if macros:
        raise UntranslatableError(f"`{macros[0][1]}` is known only to SQLMesh")
    return query
