"""Errors for texts that are not Spark SQL, in the words of their authors.

The parser accepts the syntax of several databases, and its messages are about itself. Here are the
forms that Spark's own parser refuses for certain, and the messages for what no parser accepts.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.frontends.sql_trees import BRACKETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot.errors import ParseError
    from sqlglot.tokenizer_core import Token


class Invalid(NamedTuple):
    """An invalid part of a text: its offset, a message and a hint."""

    offset: int
    message: str
    hint: str | None = None


# ------------------------------------------------------------------------------- refused by Spark


def find_refused(tokens: Sequence[Token], text: str) -> Invalid | None:
    """Return the first part of a query that the parser accepts and Spark's refuses for certain.

    In Spark most keywords are names too: ``SELECT a, from FROM t`` reads a column ``from``.
    """
    for i in range(1, len(tokens)):
        rule = _AFTER.get(tokens[i - 1].token_type) or _AT.get(tokens[i].token_type)
        invalid = rule(tokens, i, text) if rule is not None else None
        if invalid is not None:
            return invalid
    last = tokens[-1]
    if last.token_type is TokenType.COMMA:
        return Invalid(last.start, "nothing follows this comma", "remove it")
    opened = _unclosed(tokens, len(tokens) - 1)
    if opened is not None and _word(tokens, opened - 1, text) in _CLOSED_BY_PARSER:
        return Invalid(tokens[opened].start, "this bracket is not closed", "add `)`")
    return _when_without_then(tokens)


_CLOSED_BY_PARSER = ("CAST", "EXTRACT", "TRIM", "TRY_CAST")
"""Calls whose last bracket the parser does not need."""


def _word(tokens: Sequence[Token], i: int, text: str) -> str:
    """Return a token in upper case; empty for a text in quotes or backticks."""
    if not 0 <= i < len(tokens) or text[tokens[i].start] in "'\"`":
        return ""
    return tokens[i].text.upper()


_BEHIND_LISTS = ("WHERE", "HAVING", "QUALIFY", "LIMIT", "GROUP BY", "ORDER BY")
_VALUES = (TokenType.VAR, TokenType.NUMBER)


def _comma(tokens: Sequence[Token], i: int, text: str) -> Invalid | None:
    comma, token = tokens[i - 1], tokens[i]
    if token.token_type is TokenType.L_BRACKET:
        return _bracket(tokens, i, text)
    if token.token_type in (TokenType.COMMA, TokenType.R_PAREN, TokenType.R_BRACKET):
        message = f"nothing is between this comma and `{token.text}`"
        return Invalid(comma.start, message, "remove the comma")
    word = _word(tokens, i, text)
    after = tokens[i + 1 : i + 3]
    is_operand = bool(after) and after[0].token_type in _VALUES
    if word == "FROM":
        is_clause = is_operand and not _has_more_from(tokens, i)
    else:
        # `FROM t, where x` reads a table `where`.
        ends = len(after) < 2 or after[1].token_type in (TokenType.COMMA, TokenType.R_PAREN)
        is_clause = word in _BEHIND_LISTS and is_operand and (" " in word or not ends)
    if not is_clause:
        return None
    return Invalid(comma.start, f"unexpected comma before {word}", "remove it")


def _has_more_from(tokens: Sequence[Token], i: int) -> bool:
    """Whether the SELECT of a token FROM has another FROM behind it: the first one is a name."""
    depth = 0
    for token in tokens[i + 1 :]:
        depth += BRACKETS.get(token.token_type, 0)
        if depth < 0 or (depth == 0 and token.token_type in _SET_OPERATIONS):
            return False
        if depth == 0 and token.token_type is TokenType.FROM:
            return True
    return False


_SET_OPERATIONS = (TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT)


def _quoted_name(tokens: Sequence[Token], i: int, text: str) -> Invalid | None:
    """Return the problem of a string where only a name is allowed."""
    before, token = tokens[i - 1], tokens[i]
    if text[token.start] not in "'\"":
        return None
    is_name = before.token_type in (TokenType.DOT, TokenType.ALIAS, TokenType.WITH, TokenType.JOIN)
    if text[before.start] == "`" or not (is_name or _is_from(tokens, i - 1)):
        return None
    source = text[token.start : token.end + 1]
    lead = "AS " if before.token_type is TokenType.ALIAS else ""
    name = f"{lead}`{token.text}`" if "`" not in token.text else "backticks"
    return Invalid(
        token.start, f"{source} is a string literal in Spark, not a name", f"write {name}"
    )


def _is_from(tokens: Sequence[Token], i: int) -> bool:
    """Whether a token is the FROM of a SELECT.

    It may also be that of a call, ``trim(' ' FROM x)``, or of ``IS DISTINCT FROM``.
    """
    if tokens[i].token_type is not TokenType.FROM:
        return False
    if tokens[i - 1].token_type is TokenType.DISTINCT:
        return False
    depth = 0
    for token in reversed(tokens[:i]):
        depth += BRACKETS.get(token.token_type, 0)
        if depth > 0:
            return False
        if depth == 0 and token.token_type is TokenType.SELECT:
            return True
    return False


def _when_without_then(tokens: Sequence[Token]) -> Invalid | None:
    """Return the problem of a WHEN in a CASE that has no THEN.

    Behind no operand, the words that end it are names: ``WHEN x BETWEEN start AND end THEN``.
    """
    cases: list[Token | None] = []  # of each open CASE, the WHEN that still needs a THEN
    for before, token in pairwise(tokens):
        kind = token.token_type
        if kind is TokenType.CASE:
            cases.append(None)
        elif cases and kind is TokenType.THEN:
            cases[-1] = None
        elif cases and kind in (TokenType.WHEN, TokenType.ELSE, TokenType.END):
            if cases[-1] is not None:
                if before.token_type not in _ENDS_OF_OPERANDS:
                    continue
                hint = "CASE WHEN … THEN … ELSE … END"
                return Invalid(cases[-1].start, "this WHEN has no THEN", hint)
            if kind is TokenType.WHEN:
                cases[-1] = token
            elif kind is TokenType.END:
                cases.pop()
    return None


_BEFORE_OPERANDS = frozenset(
    (
        *(TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.COMMA, TokenType.EQ, TokenType.NEQ),
        *(TokenType.LT, TokenType.LTE, TokenType.GTE, TokenType.PLUS),
        *(TokenType.DASH, TokenType.SLASH, TokenType.DPIPE, TokenType.ARROW),
    )
)


_KEYWORDS_BEFORE_OPERANDS = (
    *(TokenType.WHERE, TokenType.AND, TokenType.OR, TokenType.IN, TokenType.THEN, TokenType.ELSE),
)
_ENDS_OF_OPERANDS = (TokenType.VAR, TokenType.NUMBER, TokenType.STRING, TokenType.R_PAREN)


def _bracket(tokens: Sequence[Token], i: int, text: str) -> Invalid | None:
    before, token = tokens[i - 1], tokens[i]
    names = (TokenType.SELECT, TokenType.COMMA, TokenType.DOT)
    is_name = i > 1 and tokens[i - 2].token_type in names
    starts_list = before.token_type is TokenType.SELECT and not is_name
    is_keyword = before.token_type in _KEYWORDS_BEFORE_OPERANDS and i > 1
    starts_list |= is_keyword and tokens[i - 2].token_type in _ENDS_OF_OPERANDS
    closed = _closing(tokens, i)
    inside = text[token.end + 1 : tokens[closed].start].strip()
    message = "Spark has no arrays in square brackets"
    if before.token_type is TokenType.ARRAY and _has_comma(tokens, i, closed):
        return Invalid(before.start, message, f"write array({inside})")
    if not starts_list and before.token_type not in _BEFORE_OPERANDS:
        return None
    return Invalid(token.start, message, f"write array({inside})")


def _closing(tokens: Sequence[Token], opened: int) -> int:
    depth = 0
    for i in range(opened, len(tokens)):
        depth += BRACKETS.get(tokens[i].token_type, 0)
        if depth == 0:
            return i
    return len(tokens) - 1


def _has_comma(tokens: Sequence[Token], opened: int, closed: int) -> bool:
    depth = 0
    for token in tokens[opened:closed]:
        depth += BRACKETS.get(token.token_type, 0)
        if depth == 1 and token.token_type is TokenType.COMMA:
            return True
    return False


_STAR_WORDS = {
    "EXCLUDE": "write * EXCEPT ({})",
    "EXCEPT": "write * EXCEPT ({})",
    "REPLACE": "write * EXCEPT (column), expression AS column",
    "RENAME": "write * EXCEPT (column), column AS other_name",
}


def _star(tokens: Sequence[Token], i: int, text: str) -> Invalid | None:
    word = _word(tokens, i, text)
    if word not in _STAR_WORDS or i + 1 >= len(tokens):
        return None
    before = tokens[i - 2].token_type if i > 1 else None
    starts_item = before in (TokenType.SELECT, TokenType.COMMA, TokenType.DOT, TokenType.L_PAREN)
    after = tokens[i + 1]
    is_bare = after.token_type is TokenType.VAR or text[after.start] == "`"
    if not starts_item or not (is_bare or (after.text == "(" and word != "EXCEPT")):
        return None
    names = after.text if is_bare else text[after.end + 1 : tokens[_closing(tokens, i + 1)].start]
    message = f"Spark has no * {word}" if word != "EXCEPT" else "* EXCEPT needs brackets"
    return Invalid(tokens[i].start, message, _STAR_WORDS[word].format(names.strip()))


def _limit(tokens: Sequence[Token], i: int, text: str) -> Invalid | None:
    word, token = _word(tokens, i - 1, text), tokens[i]
    is_number = token.token_type is TokenType.NUMBER
    offset = tokens[i - 1].start
    if word == "LIMIT" and is_number and [t.text for t in tokens[i + 1 : i + 2]] == [","]:
        behind = tokens[i + 2].text if i + 2 < len(tokens) else "n"
        hint = f"write LIMIT {behind} OFFSET {token.text}"
        return Invalid(offset, "Spark has no LIMIT with two numbers", hint)
    if word == "TOP" and is_number and _word(tokens, i - 2, text) == "SELECT":
        return Invalid(offset, "Spark has no TOP", f"write LIMIT {token.text} at the end")
    if word == "FETCH" and _word(tokens, i, text) in ("FIRST", "NEXT"):
        n = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if n.isdecimal():
            return Invalid(offset, "Spark has no FETCH", f"write LIMIT {n}")
    return None


_AFTER = {TokenType.COMMA: _comma, TokenType.STAR: _star, TokenType.FETCH: _limit}
_AT = {
    TokenType.STRING: _quoted_name,
    TokenType.L_BRACKET: _bracket,
    TokenType.NUMBER: _limit,
}
"""Rules by the kind of a token, or else of the token behind it."""

# --------------------------------------------------------------------------- refused by the parser

_KEYWORDS = """
    SELECT FROM WHERE GROUP ORDER HAVING QUALIFY LIMIT OFFSET UNION EXCEPT INTERSECT JOIN LEFT
    RIGHT INNER OUTER CROSS LATERAL BETWEEN DISTINCT PARTITION WINDOW VALUES
""".split()
_BY = ("GROUP", "ORDER", "PARTITION", "SORT", "CLUSTER", "DISTRIBUTE")
_JOINS = ("LEFT", "RIGHT", "FULL", "INNER", "CROSS", "ANTI", "SEMI", "OUTER", "NATURAL")
_ITEMS = (TokenType.VAR, TokenType.STRING, TokenType.NUMBER)


def explain(error: ParseError, tokens: Sequence[Token], text: str) -> Invalid:
    """Return the problem that the parser found, in the words of Spark SQL.

    Parameters
    ----------
    tokens
        The tokens that were parsed, of `text`.
    """
    first = error.errors[0] if error.errors else {}
    description = str(first.get("description") or error).split(" but got ")[0].rstrip(".")
    i = _index(tokens, first, text)
    token, opened = tokens[i], _unclosed(tokens, i)
    shown = _shown(token, text)
    # At the end of a text the parser shows the last token, which is right.
    is_end = i == len(tokens) - 1 and not (token.text == ")" and opened is None)
    beside = f"{'after' if is_end else 'before'} `{shown}`"
    hint = _hint(tokens, i, text)
    if description.startswith("Required keyword"):
        return Invalid(token.start, f"something is missing {beside}", hint)
    if description == "Expecting )" and opened is not None:
        if is_end or hint is None:
            place = tokens[opened].start
            where = "" if is_end else f" before `{shown}`"
            return Invalid(place, f"this bracket is not closed{where}", "add `)`")
        return Invalid(token.start, f"unexpected `{shown}`", hint)
    if description == "Invalid expression / Unexpected token":
        return Invalid(token.start, f"unexpected `{shown}`", hint)
    message, hint = _MESSAGES.get(description, (f"{description}, near `{shown}`", hint))
    if message.endswith("{}"):
        message = message.format(beside)
    return Invalid(token.start, message, hint)


_MESSAGES = {
    "Expected table name": ("the name of a table is missing {}", None),
    "Expected END after CASE": ("CASE has no END", "CASE WHEN … THEN … ELSE … END"),
    "Expected AS after CAST": ("CAST has no AS", "CAST(… AS type)"),
    "Expected CTE to have alias": (
        "the name of a common table expression is missing {}",
        "WITH name AS (SELECT …) SELECT …, without a comma before the last SELECT",
    ),
    "Expected TYPE after CAST": ("the type is missing {}", "CAST(… AS type)"),
    "Expected type after '::'": ("the type is missing {}", "…::type"),
}


def _index(tokens: Sequence[Token], place: dict[str, object], text: str) -> int:
    """Return which token an error of the parser is about."""
    line, column = place.get("line"), place.get("col")
    at = [i for i, t in enumerate(tokens) if (t.line, t.col) == (line, column)]
    return at[0] if at else 0


def _shown(token: Token, text: str) -> str:
    return " ".join(text[token.start : token.end + 1].split())


def _unclosed(tokens: Sequence[Token], i: int) -> int | None:
    """Return the innermost bracket that is open before a token, or None."""
    opened: list[int] = []
    for n, token in enumerate(tokens[: i + 1]):
        change = BRACKETS.get(token.token_type, 0)
        if change > 0:
            opened.append(n)
        elif change < 0 and opened:
            opened.pop()
        elif change < 0 and n < i:
            return None
    return opened[-1] if opened else None


def _hint(tokens: Sequence[Token], i: int, text: str) -> str | None:
    """Return the probable intent where a token is unexpected, or None."""
    token, word, before = tokens[i], _word(tokens, i, text), _word(tokens, i - 1, text)
    if token.text == ")" and token.token_type is TokenType.R_PAREN:
        return "remove it, or add the `(` that it closes"
    if token.token_type is TokenType.STRING and before.isidentifier():
        return f"a name with quotes takes backticks: `{token.text}`"
    if before in _BY and word != "BY":
        return f"write {before} BY"
    for joins in (before, word):
        if joins in _JOINS:
            return f"write {joins} JOIN"
    for name in (before, word, _word(tokens, 0, text)):
        close = get_close_matches(name, _KEYWORDS, n=1, cutoff=0.75)
        if close and name not in _KEYWORDS:
            return f"did you mean {close[0]} instead of `{name.lower()}`?"
    both = [t.token_type in _ITEMS for t in (tokens[i - 1], token)] if i else []
    return "a comma or an operator may be missing before it" if all(both) and both else None
