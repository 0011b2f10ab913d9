"""Spark SQL for sqlglot: the one parser of the project."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from persist_assets.core.operators import MARK, with_operators
from persist_assets.core.spark_types import UnknownTypeError, read_type

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARK = Spark()
MAX_BRACKETS = 400
"""The maximum nesting of brackets, because the parser recurses with them."""

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
WITHOUT_PARENTHESES = frozenset(
    """
    current_date current_time current_timestamp current_user localtime session_user user
    """.split()
)
"""Functions that a bare name means if the FROM clause has no column of that name."""
_FUNCTIONS = (frozenset(SparkParser.FUNCTIONS) | frozenset(SparkParser.FUNCTION_PARSERS)) - _SPECIAL


def tokenize(text: str) -> Sequence[Token]:
    """Return the tokens of a text, with comments treated as blanks.

    By itself the tokenizer reads ``GROUP BY`` as one word, and ``GROUP /* x */ BY`` as two that the
    parser does not understand. Hints are not comments.

    Raises
    ------
    TokenError
        A quote or comment is not closed.
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
        # Line ends inside a word like GROUP BY have not been counted.
        starts = [0, *(m.end() for m in re.finditer("\n", text))]
        for token in tokens:
            token.line = bisect_right(starts, token.end)
            token.col = token.end - starts[token.line - 1] + 1
    return tokens


_NO_LINE_END = re.compile(r"[^\r\n]")


def _gaps(tokens: Sequence[Token]) -> Iterator[slice]:
    """Yield the parts of the text inside statements that may contain comments."""
    for before, after in pairwise(tokens):
        if after.start - before.end > 3 and before.token_type is not TokenType.SEMICOLON:
            yield slice(before.end + 1, after.start)


def misleading_comment(text: str) -> int | None:
    """Return the offset of a comment that Spark ends elsewhere than `tokenize` does, or None.

    In Spark a line comment that ends in a backslash continues on the next line, and a comment ends
    at the first ``*/`` after a hint in it.
    """
    if not _MISLEADING.search(text):
        return None
    for gap in _gaps(SPARK.tokenize(text)):
        if match := _MISLEADING.search(text, gap.start, gap.stop):
            return match.start()
    return None


_MISLEADING = re.compile(r"--[^\r\n]*\\\n|/\*(?s:.)*?/\*\+")


def faithful(tokens: Sequence[Token], text: str) -> list[Token]:
    """Return tokens from which the parser builds a tree that loses nothing.

    By itself the parser reads many spellings as one node (date formats, functions of other
    dialects, default arguments), so that different queries would have equal trees. Therefore names
    of functions are marked (see `plain`), which keeps calls as written; strings with escapes keep
    their source text; adjacent strings become one, as in Spark; numbers with a suffix (``1L``) are
    marked strings (see `suffixed`), not casts.
    """
    out: list[Token] = []
    tokens, spelled = _spelled(tokens, text)
    for n, token in enumerate(tokens):
        after = tokens[n + 1] if n + 1 < len(tokens) else None
        kind, word = token.token_type, token.text
        if kind is TokenType.VALUES and n and _is_named_in_parentheses(tokens, n):
            out += (
                beside(token, TokenType.SELECT, "SELECT"),
                beside(token, TokenType.STAR, "*"),
                beside(token, TokenType.FROM, "FROM"),
            )
        if (
            out
            and out[-1].start <= token.start
            and token.end == out[-1].end
            and out[-1].text.startswith(MARK)
        ):
            continue  # the tokens that the tokenizer creates for the suffix of a number
        if kind is TokenType.NUMBER and after is not None and after.start == token.start:
            start = token.start
            if _is_fraction(out, token, text):
                start = out.pop().start
            source = text[start : token.end + 1]
            token = Token(TokenType.STRING, MARK + source, token.line, token.col, start, token.end)
        elif kind is TokenType.STRING and n not in spelled:
            source = text[token.start : token.end + 1]
            if "\\" in source or source[1:-1] != word:
                word = source
            if out and out[-1].token_type is TokenType.STRING:
                # 'it''s' is one string with a quote in it, 'it' 's' is two strings joined.
                previous = out.pop()
                touches = text[token.start - 1] == source[0] and previous.end + 1 == token.start
                glue = source[0] if touches else ""
                word = previous.text + glue + word
                token = Token(kind, word, previous.line, previous.col, previous.start, token.end)
            elif word != token.text:
                token = Token(kind, word, token.line, token.col, token.start, token.end)
        elif kind is TokenType.WINDOW and not _names_window(tokens, n):
            # A function or a column; the parser would end a GROUP BY here.
            token = Token(TokenType.VAR, word, token.line, token.col, token.start, token.end)
        elif (
            kind is TokenType.VAR
            and after is not None
            and after.token_type is TokenType.L_PAREN
            and word.upper() in _FUNCTIONS
        ):
            token = Token(kind, MARK + word, token.line, token.col, token.start, token.end)
        elif after is None or after.token_type is not TokenType.L_PAREN:
            # CURRENT_DATE may be a column, but the parser would read a call.
            token = as_name(token)
        out.append(token)
    return out


def _is_fraction(tokens: Sequence[Token], number: Token, text: str) -> bool:
    """Whether a dot starts a number: ``.5D``."""
    if not tokens or tokens[-1].token_type is not TokenType.DOT:
        return False
    dot = tokens[-1].start
    return dot + 1 == number.start and not re.match(r"[\w\])`]", text[dot - 1 : dot])


_TEXTS = (TokenType.STRING, TokenType.RAW_STRING)
_PIECE = re.compile(
    r"""([rR])(?:'([^']*)'|"([^"]*)")|'((?:[^'\\]|\\.|'')*)'|"((?:[^"\\]|\\.|"")*)\"""", re.DOTALL
)
_UNITS = re.compile(
    r"(?:year|month|week|day|hour|minute|second|millisecond|microsecond|nanosecond)s?",
    re.IGNORECASE,
)


def _spelled(tokens: Sequence[Token], text: str) -> tuple[list[Token], set[int]]:
    """Return tokens with literals of Spark's grammar, and the strings that were created.

    Raw strings beside other strings become one string, ``X '41'`` is a binary, ``0x41`` a name;
    signs inside an interval (``INTERVAL 1 DAY -2 HOURS``) belong to its numbers.
    """
    out: list[Token] = []
    spelled: set[int] = set()
    n = 0
    while n < len(tokens):
        token = tokens[n]
        kind, end = token.token_type, n + 1
        if kind in _TEXTS:
            while end < len(tokens) and tokens[end].token_type in _TEXTS:
                end += 1
            run = tokens[n:end]
            if len(run) > 1 and any(t.token_type is TokenType.RAW_STRING for t in run):
                spelled.add(len(out))
                out.append(_joined(run, text))
            else:
                out += run
        elif (
            kind is TokenType.VAR
            and token.text.upper() == "X"
            and end < len(tokens)
            and tokens[end].token_type is TokenType.STRING
        ):
            literal = tokens[end]
            hexadecimal = TokenType.HEX_STRING
            out.append(
                Token(hexadecimal, literal.text, token.line, token.col, token.start, literal.end)
            )
            end += 1
        elif kind in (TokenType.HEX_STRING, TokenType.BIT_STRING) and text[token.start] == "0":
            out.append(beside(token, TokenType.VAR, text[token.start : token.end + 1]))
        elif kind is TokenType.INTERVAL:
            out.append(token)
            units, end = _units(tokens, end)
            texts = (i for i, t in enumerate(units) if t.token_type is TokenType.STRING)
            spelled.update(len(out) + i for i in texts)
            out += units
        else:
            out.append(token)
        n = end
    return out, spelled


def _joined(run: Sequence[Token], text: str) -> Token:
    """Return adjacent strings, some of them raw, as one string."""
    first, last = run[0], run[-1]
    source = ""
    for before, token in zip((None, *run), run, strict=False):
        touches = before is not None and before.end + 1 == token.start
        source += ("" if touches else " ") + text[token.start : token.end + 1]
    pieces: list[str] = []
    for raw, single, double, text_in_single, text_in_double in _PIECE.findall(source):
        if raw:
            pieces.append((single or double).replace("\\", "\\\\"))
        else:
            pieces.append(text_in_single.replace("''", "'") + text_in_double.replace('""', '"'))
    word = "".join(pieces)
    if "\\" in word:  # a string with escapes keeps its source text
        word = f"'{word}'"
    return Token(TokenType.STRING, word, first.line, first.col, first.start, last.end)


def _units(tokens: Sequence[Token], at: int) -> tuple[list[Token], int]:
    """Return the numbers and units after INTERVAL in a form for the parser, and their end."""
    units: list[Token] = []
    while True:
        signed = at < len(tokens) and tokens[at].token_type in (TokenType.DASH, TokenType.PLUS)
        value = at + signed
        if (
            value + 1 >= len(tokens)
            or tokens[value].token_type is not TokenType.NUMBER
            or not _UNITS.fullmatch(tokens[value + 1].text)
        ):
            return units, at
        number = tokens[value]
        if signed and units:
            minus = "-" if tokens[at].token_type is TokenType.DASH else ""
            units.append(beside(number, TokenType.STRING, minus + number.text))
        else:
            units += tokens[at : value + 1]
        units.append(tokens[value + 1])
        at = value + 2


def as_name(token: Token) -> Token:
    """Return a token in the form that the parser needs for a name that is not a call."""
    if token.token_type not in SparkParser.NO_PAREN_FUNCTIONS:
        return token
    return beside(token, TokenType.VAR, token.text)


def _is_named_in_parentheses(tokens: Sequence[Token], n: int) -> bool:
    """Whether VALUES starts ``(VALUES (1), (2) AS t(a))``, which the parser does not understand."""
    if tokens[n - 1].token_type is not TokenType.L_PAREN:
        return False
    depth = 0
    for before, token in pairwise(tokens[n:]):
        depth += before.token_type is TokenType.L_PAREN
        depth -= before.token_type is TokenType.R_PAREN
        if depth < 0:
            break
        if depth == 0 and before.token_type is TokenType.R_PAREN:
            if token.token_type is TokenType.COMMA:
                continue
            return token.token_type in (TokenType.ALIAS, TokenType.VAR, TokenType.IDENTIFIER)
    return False


def _names_window(tokens: Sequence[Token], n: int) -> bool:
    """Whether WINDOW starts a clause: ``WINDOW w AS (…)``."""
    return n + 2 < len(tokens) and tokens[n + 2].token_type is TokenType.ALIAS


def whole_strings(tokens: Sequence[Token], text: str) -> list[Token]:
    """Return tokens with touching strings joined: ``'it''s'`` contains a quote."""
    out: list[Token] = []
    for token in tokens:
        before = out[-1] if out else None
        strings = before is not None and before.token_type is TokenType.STRING
        touches = strings and before.end + 1 == token.start  # pyright: ignore[reportOptionalMemberAccess]
        touches = touches and text[token.start - 1] == text[token.start]
        if touches and token.token_type is TokenType.STRING:
            previous = out.pop()
            word = previous.text + text[token.start] + token.text
            token = Token(
                token.token_type, word, previous.line, previous.col, previous.start, token.end
            )
        out.append(token)
    return out


def parse(text: str) -> exp.Expr | None:
    """Return the tree of a text that is one query or expression, or None if it is not."""
    try:
        trees = SPARK.parser().parse(typed(faithful(tokenize(text), text), text), text)
    except Exception:  # sqlglot fails over some calls, for example map(a)
        return None
    return trees[0] if len(trees) == 1 else None


def marked_name(token: Token) -> Token:
    """Return a name with a mark (see `plain`) that no query of a user has."""
    return beside(token, TokenType.VAR, MARK + token.text)


def is_marked(name: str) -> bool:
    """Whether a name has a mark."""
    return name.startswith(MARK)


def is_position(node: Any) -> bool:
    """Whether a name stands for the column of a table at a position (`without_pipes`)."""
    return isinstance(node, exp.Column) and is_marked(node.name) and plain(node.name).isdecimal()


def is_path(node: Any) -> bool:
    """Whether a call is a path into a variant (`without_paths`)."""
    return isinstance(node, exp.Anonymous) and node.name.startswith(MARK * 2)


def plain(name: str) -> str:
    """Return a name as written, without the marks of `faithful` and `marked_name`.

    Examples
    --------
    >>> plain("ƒcount"), plain("carrier")
    ('count', 'carrier')
    """
    return name.lstrip(MARK)


def function_named(node: Any) -> str | None:
    """Return the function that a name without parentheses means if no column has that name.

    Examples
    --------
    >>> function_named(parse("Current_Date")), function_named(parse("t.current_date"))
    ('current_date', None)
    """
    if not isinstance(node, exp.Column) or len(node.parts) > 1:
        return None
    name = plain(node.name).lower()
    if name in WITHOUT_PARENTHESES or _is_path(node):
        return name
    return None


def is_never_column(node: Any) -> bool:
    """Whether Spark reads a name as a function even if a column has that name."""
    return isinstance(node, exp.Column) and len(node.parts) == 1 and _is_path(node)


def _is_path(node: exp.Column) -> bool:
    quoted = isinstance(node.this, exp.Identifier) and node.this.args.get("quoted")
    return plain(node.name).lower() == "current_path" and not quoted


def suffixed(text: str) -> str | None:
    """Return the number with a suffix that a marked string represents, or None.

    Examples
    --------
    >>> suffixed("ƒ1L"), suffixed("1L")
    ('1L', None)
    """
    return text.removeprefix(MARK) if text.startswith(MARK) else None


_LOSABLE = re.compile(rf"\+|{MARK}")


def lost_feature(tokens: Sequence[Token], text: str) -> str | None:
    """Return a feature of a query that the parser loses, or None if its tree is complete.

    It drops the plus in an interval. Text that contains our mark could be taken for marked. For
    pipes, see `without_pipes`.
    """
    if not _LOSABLE.search(text, tokens[0].start, tokens[-1].end + 1):
        return None
    before = ""
    for token in tokens:
        if token.token_type is TokenType.PLUS and before == "INTERVAL":
            return "+ before an operand"
        word = text[token.start : token.end + 1]
        before = word.upper().split()[-1]  # ORDER BY is one token
        if MARK in word:
            return f"the letter {MARK}"
    return None


def char_size(kind: str | None) -> int | None:
    """Return the n of CHAR(n), None of other types.

    Examples
    --------
    >>> char_size("char(10)"), char_size("varchar(10)")
    (10, None)
    """
    match = re.fullmatch(r"(?:char|character)\((\d+)\)", (kind or "").strip().lower())
    return int(match[1]) if match else None


def quote(name: str) -> str:
    """Return a name as a quoted identifier.

    Examples
    --------
    >>> quote("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"


def unpruned(column: str, kind: str) -> str:
    """Return a column of files as an SQL expression for which Spark skips no row group.

    In Spark, NaN is greater than all numbers and both zeros are equal, but the statistics and
    dictionaries by which it skips row groups do not reflect that. Behind a function, it skips none.

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
    exp.DType.BOOLEAN: "boolean",
    exp.DType.INT: "int",
    exp.DType.FLOAT: "float",
    exp.DType.DOUBLE: "double",
    exp.DType.TEXT: "string",
    exp.DType.DATE: "date",
    exp.DType.TIME: "time(6)",
    exp.DType.TIMESTAMPTZ: "timestamp",
    exp.DType.TIMESTAMPLTZ: "timestamp",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
}
"""The types of typed literals (``DATE '…'``), and types that are functions too (``int(a)``)."""


def type_name(kind: Any) -> str | None:
    """Return Spark's name of a type in a tree that was parsed from `typed` tokens, or None.

    Examples
    --------
    >>> cast = parse("CAST(a AS STRUCT<aB: INT, c: ARRAY<DEC(3)>>)")
    >>> type_name(cast.args["to"])
    'struct<aB:int,c:array<decimal(3,0)>>'
    """
    if not isinstance(kind, exp.DataType):
        return None
    if kind.this == exp.DType.USERDEFINED and kind.expressions:
        return kind.expressions[0].name
    return None if kind.expressions else _SIMPLE.get(kind.this)


def type_is_written(cast: exp.Cast) -> bool:
    """Whether a cast has its type after AS or ``::``; else it is a function or typed literal."""
    return cast.to.this == exp.DType.USERDEFINED


_TYPED_LITERALS = frozenset(("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"))
_SUFFIXES = frozenset(
    (TokenType.DCOLON, TokenType.DOT, TokenType.L_BRACKET, TokenType.COLON, TokenType.DOTCOLON)
)
"""The operators that apply to a whole typed literal: ``DATE '2024-01-10'::string``."""
_NO_LITERAL_TYPES = frozenset((TokenType.INTERVAL, TokenType.NULL))


def typed(tokens: Sequence[Token], text: str) -> list[Token]:
    """Return tokens with types as Spark reads them.

    sqlglot has its own grammar of types, and applies a cast to the text inside a typed literal
    instead of to the literal. So target types of casts are written as user-defined types with
    Spark's name, which `type_name` returns, and typed literals are put in parentheses.

    Parameters
    ----------
    tokens
        The `faithful` tokens of one query or expression.

    Raises
    ------
    UnknownTypeError
        Spark has no such type; `at` is an offset in the text.
    """
    tokens = with_operators(tokens, text)
    casts: list[bool] = []
    out: list[Token] = []
    n = 0
    while n < len(tokens):
        token = tokens[n]
        kind = token.token_type
        if kind is TokenType.L_PAREN:
            casts.append(n > 0 and tokens[n - 1].text.upper() in ("CAST", "TRY_CAST"))
        elif kind is TokenType.R_PAREN and casts:
            casts.pop()
        after = tokens[n + 1] if n + 1 < len(tokens) else None
        if kind is TokenType.DCOLON or (kind is TokenType.ALIAS and casts and casts[-1]):
            out.append(token)
            marked, n = marked_type(tokens, n + 1, text, lengths=False)
            out += marked
            continue
        is_literal = after is not None and after.token_type is TokenType.STRING
        if is_literal and kind in SparkParser.TYPE_TOKENS and kind not in _NO_LITERAL_TYPES:
            assert after is not None
            word = token.text.upper()
            if word not in _TYPED_LITERALS and not suffixed(after.text):
                literal = text[after.start : after.end + 1]
                message = f"Spark has no literals of type `{token.text}`"
                hint = f"write CAST({literal} AS {token.text})"
                raise UnknownTypeError(token.start, message, hint)
            literal = [token, after]
            if n + 2 < len(tokens) and tokens[n + 2].token_type in _SUFFIXES:
                literal = [
                    beside(token, TokenType.L_PAREN, "("),
                    *literal,
                    beside(after, TokenType.R_PAREN, ")"),
                ]
            out += literal
            n += 2
            continue
        out.append(token)
        n += 1
    return out


def marked_type(
    tokens: Sequence[Token], at: int, text: str, *, lengths: bool, bare_varchar: bool = False
) -> tuple[list[Token], int]:
    """Return the type that starts at a token, in a form for the parser, and the index after it.

    Parameters
    ----------
    lengths, bare_varchar
        See `spark_types.read_type`.

    Raises
    ------
    UnknownTypeError
        Spark has no such type; `at` is an offset in the text.
    """
    words = _Words(tokens, text)
    try:
        name, end = read_type(words, at, lengths=lengths, bare_varchar=bare_varchar)
    except UnknownTypeError as error:
        token = tokens[min(error.at, len(tokens) - 1)]
        raise UnknownTypeError(token.start, error.message, error.hint) from error
    first = tokens[at]
    marked = [
        beside(first, TokenType.USERDEFINED, text[first.start : first.end + 1]),
        beside(first, TokenType.L_PAREN, "("),
        beside(first, TokenType.STRING, name),
        beside(first, TokenType.R_PAREN, ")"),
    ]
    return marked, end


def beside(token: Token, kind: TokenType, text: str) -> Token:
    """Return a further token at the place of a token."""
    return Token(kind, text, token.line, token.col, token.start, token.end)


class _Words(Sequence[str]):
    """Tokens as written; each is read on demand."""

    def __init__(self, tokens: Sequence[Token], text: str) -> None:
        self.tokens, self.text = tokens, text

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        token = self.tokens[at]
        return self.text[token.start : token.end + 1]
