"""Spark's SQL as sqlglot sees it: the one parser of the project, and Spark's names of types."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPARK = Spark()

_MARK = "ƒ"
_SPECIAL = frozenset(
    (
        "CAST",
        "TRY_CAST",
        "EXTRACT",
        "POSITION",
        "TRIM",
        "SUBSTRING",
        "SUBSTR",
        "OVERLAY",
        "TRANSFORM",
    )
)
"""Functions whose arguments have a grammar of their own."""
_FUNCTIONS = (frozenset(SparkParser.FUNCTIONS) | frozenset(SparkParser.FUNCTION_PARSERS)) - _SPECIAL


def tokenize(text: str) -> Sequence[Token]:
    """Return the tokens of a text in which comments are no more than blanks.

    Left to itself the tokenizer takes ``GROUP BY`` for one word, and ``GROUP /* x */ BY`` for two
    that the parser cannot read. Hints are no comments.

    Raises
    ------
    TokenError
        Something is not closed.
    """
    tokens = SPARK.tokenize(text)
    gaps = [g for g in _gaps(tokens) if not text[g].isspace()]
    if gaps:
        parts: list[str] = []
        end = 0
        for gap in gaps:
            parts += text[end : gap.start], _NO_LINE_END.sub(" ", text[gap])
            end = gap.stop
        tokens = SPARK.tokenize("".join((*parts, text[end:])))
    if any(" " in t.text and "\n" in text[t.start : t.end] for t in tokens):
        # Lines that end inside a word like GROUP BY have not been counted.
        starts = [0, *(m.end() for m in re.finditer("\n", text))]
        for token in tokens:
            token.line = bisect_right(starts, token.end)
            token.col = token.end - starts[token.line - 1] + 1
    return tokens


_NO_LINE_END = re.compile(r"[^\r\n]")


def _gaps(tokens: Sequence[Token]) -> Iterator[slice]:
    """Yield the stretches of text inside statements that may hold comments."""
    for before, after in pairwise(tokens):
        if after.start - before.end > 3 and before.token_type is not TokenType.SEMICOLON:
            yield slice(before.end + 1, after.start)


def misleading_comment(text: str) -> int | None:
    """Return where a query has a comment that Spark ends elsewhere than `tokenize`, or None.

    For Spark a line comment that ends in a backslash goes on in the next line, and a comment is
    over at the first ``*/`` behind a hint that stands in it.
    """
    if not _MISLEADING.search(text):
        return None
    for gap in _gaps(SPARK.tokenize(text)):
        if found := _MISLEADING.search(text, gap.start, gap.stop):
            return found.start()
    return None


_MISLEADING = re.compile(r"--[^\r\n]*\\\n|/\*(?s:.)*?/\*\+")


def faithful(tokens: Sequence[Token], text: str) -> list[Token]:
    """Return tokens from which the parser makes a tree that loses nothing.

    Left to itself it reads many spellings as one node (date formats, functions of other
    dialects, default arguments), so that different queries would have equal trees. Function
    names are therefore marked (see `plain`), which keeps calls as they are written; strings with
    escapes keep their source text; adjacent strings become one, as in Spark; numbers with a suffix
    (``1L``) are marked strings (see `suffixed`), not casts.
    """
    out: list[Token] = []
    for n, token in enumerate(tokens):
        after = tokens[n + 1] if n + 1 < len(tokens) else None
        kind, word = token.token_type, token.text
        if out and token.start == out[-1].start and out[-1].text.startswith(_MARK):
            continue  # what the tokenizer makes of the suffix of a number
        if kind is TokenType.NUMBER and after is not None and after.start == token.start:
            source = text[token.start : token.end + 1]
            token = Token(
                TokenType.STRING, _MARK + source, token.line, token.col, token.start, token.end
            )
        elif kind is TokenType.STRING:
            source = text[token.start : token.end + 1]
            if "\\" in source or source[1:-1] != word:
                word = source
            if out and out[-1].token_type is TokenType.STRING:
                # 'it''s' is one string with a quote in it, 'it' 's' is two strings joined.
                previous = out.pop()
                glue = source[0] if previous.end + 1 == token.start else ""
                word = previous.text + glue + word
                token = Token(kind, word, previous.line, previous.col, previous.start, token.end)
            elif word != token.text:
                token = Token(kind, word, token.line, token.col, token.start, token.end)
        elif (
            kind is TokenType.VAR
            and after is not None
            and after.token_type is TokenType.L_PAREN
            and word.upper() in _FUNCTIONS
        ):
            token = Token(kind, _MARK + word, token.line, token.col, token.start, token.end)
        out.append(token)
    return out


def parse(text: str) -> exp.Expr | None:
    """Return the tree of a text that is one query or expression, or None where it is none."""
    try:
        trees = SPARK.parser().parse(faithful(tokenize(text), text), text)
    except (SqlglotError, RecursionError):
        return None
    return trees[0] if len(trees) == 1 else None


def plain(name: str) -> str:
    """Return a name as written: without the mark that `faithful` gives to functions.

    Examples
    --------
    >>> plain("ƒcount"), plain("carrier")
    ('count', 'carrier')
    """
    return name.removeprefix(_MARK)


def suffixed(text: str) -> str | None:
    """Return the number with a suffix that a string literal stands for, or None.

    Examples
    --------
    >>> suffixed("ƒ1L"), suffixed("1L")
    ('1L', None)
    """
    return text.removeprefix(_MARK) if text.startswith(_MARK) else None


_BEFORE_OPERANDS = frozenset(
    """
    ALL AND AS BETWEEN BY CASE DISTINCT DIV ELSE ESCAPE FILTER FOR FROM HAVING ILIKE IN INTERVAL IS
    LIKE LIMIT NOT OFFSET ON OR QUALIFY REGEXP RETURN RLIKE SELECT THEN TO USING VALUES WHEN WHERE
    """.split()
)
"""Key words after which an operand comes."""

_LOSABLE = re.compile(rf"\+|\|>|COLLATE|{_MARK}", re.IGNORECASE)


def what_is_lost(tokens: Sequence[Token], text: str) -> str | None:
    """Return what the parser does not tell of a query, or None where its tree is to be trusted.

    It drops the plus before an operand, which makes a number of a string, and collations; and it
    puts the steps of a pipe into an order of its own. What has our mark may be taken for marked.
    """
    if not _LOSABLE.search(text, tokens[0].start, tokens[-1].end + 1):
        return None
    before = ""
    for token in tokens:
        if token.token_type is TokenType.PIPE_GT:
            return "|>"
        if token.token_type is TokenType.PLUS and (
            before in _BEFORE_OPERANDS or not (before[-1:].isalnum() or before[-1:] in "_)]'\"`")
        ):
            return "+ before an operand"
        word = text[token.start : token.end + 1]
        before = word.upper()
        if before == "COLLATE":
            return "COLLATE"
        if _MARK in word:
            return f"the letter {_MARK}"
    return None


def quote(name: str) -> str:
    """Return a name as a quoted identifier.

    Examples
    --------
    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def unpruned(column: str, kind: str) -> str:
    """Return a column of files, in SQL, of which Spark leaves no row group out.

    To Spark NaN is greater than all numbers and both zeros are one, and the statistics and
    dictionaries by which it leaves row groups out tell neither. It does not look behind a function.

    Examples
    --------
    >>> unpruned("`x`", "double"), unpruned("`s`", "struct<y:double>"), unpruned("`i`", "int")
    ('nanvl(`x`, `x`)', 'element_at(array(`s`), 1)', '`i`')
    """
    kind = kind.lower()
    if kind in ("float", "double"):
        return f"nanvl({column}, {column})"
    if kind.startswith("struct") and re.search(r":\s*(float|double)\b", kind):
        return f"element_at(array({column}), 1)"
    return column


_SIMPLE = {
    exp.DType.TIMESTAMPTZ: "timestamp",
    exp.DType.TIMESTAMPLTZ: "timestamp",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
    exp.DType.TEXT: "string",
    exp.DType.VARBINARY: "binary",
    exp.DType.NULL: "void",
}


def type_name(kind: Any) -> str | None:
    """Return Spark's name of a sqlglot type, as `DataType.simpleString` spells it, or None.

    Examples
    --------
    >>> type_name(exp.DataType.build("STRUCT<aB: INT, c: ARRAY<DEC(3)>>", dialect="spark"))
    'struct<aB:int,c:array<decimal(3,0)>>'
    """
    if not isinstance(kind, exp.DataType):
        return str(kind.sql("spark")).lower() if isinstance(kind, exp.Interval) else None
    if kind.this in _SIMPLE:
        return _SIMPLE[kind.this]
    inner = kind.expressions
    match kind.this:
        case exp.DType.UNKNOWN | exp.DType.USERDEFINED:
            return None
        case exp.DType.DECIMAL:
            digits = [p.this.name for p in inner] or ["10"]
            return f"decimal({digits[0]},{digits[1] if len(digits) > 1 else '0'})"
        case exp.DType.ARRAY | exp.DType.MAP:
            names = [type_name(e) for e in inner]
            return (
                f"{kind.this.value.lower()}<{','.join(n or '?' for n in names)}>" if names else None
            )
        case exp.DType.STRUCT:
            fields = [f"{f.name}:{type_name(f.args.get('kind'))}" for f in inner]
            return f"struct<{','.join(fields)}>" if fields else None
        case word if not any(value for key, value in kind.args.items() if key != "this"):
            return _bare(word)
        case _:
            return _written(kind)


def _written(kind: exp.DataType) -> str:
    return kind.sql("spark").lower().replace(", ", ",")


@cache
def _bare(word: exp.DType) -> str:
    """Return the name of a type that is one word: writing it takes sqlglot as long as a query."""
    return _written(exp.DataType(this=word))
