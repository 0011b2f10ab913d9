"""Texts without layout and comments, such that equal results mean equal tokens. Pure.

No parser is asked, so that another release of one changes no result. The invariant: two texts with
equal results consist of the same tokens, whatever reads them. So white space goes only where the
characters around it can never become one token; in doubt a space stays, or the whole text does.
Then an edit of the layout counts as an edit, which costs a build but never gives a wrong table.
"""

from __future__ import annotations

import io
import re
import tokenize

_SQL = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<line>--[^\r\n]*)"
    r"|(?P<hint>/\*\+.*?\*/)"
    r"|(?P<block>/\*.*?\*/)"
    r"|(?P<quoted>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`)"
    r"|(?P<word>[\w$]+)"
    r"|(?P<symbol>.)",
    re.S,
)
_UNCERTAIN = re.compile(
    r"\$\$"  # quotes in dollars
    r"|\b[rR]['\"]"  # raw strings
    r"|/\*(?:(?!\*/).)*/\*"  # comments within comments
    r"|\\\r?\n"  # comments that go on in the next line
    r"|/\*\+(?:(?!\*/).)*(?:['\"`]|--)"  # texts and comments in hints, which may hold the end
    r"|[\d.][eE][+-]?(?:\s|--|/\*)",  # 1e- 5 is not 1e-5
    re.S,
)
"""Texts whose end, or whose division into tokens, is not certain."""
_ALONE = frozenset("(),;[]")
"""Symbols that are always separate tokens."""


def plain_sql(text: str, renamed: dict[str, str] | None = None) -> str:
    r"""Return a query in Spark SQL without layout and comments, with hints.

    Parameters
    ----------
    renamed
        Words to replace by others.

    Examples
    --------
    >>> plain_sql("SELECT  a + 1, 'x  y' -- why\nFROM t")
    "SELECT a+1,'x  y' FROM t"
    >>> plain_sql("SELECT 1 - -1, a.`b  c`")
    'SELECT 1- -1,a.`b  c`'
    """
    if _UNCERTAIN.search(text):
        return text
    parts: list[str] = []
    before, gap = "", False
    for match in _SQL.finditer(text):
        kind, piece = match.lastgroup, match.group()
        if kind in ("space", "line", "block"):
            gap = True
            continue
        if gap and before and not _is_apart(before, piece):
            parts.append(" ")
        parts.append((renamed or {}).get(piece, piece) if kind == "word" else piece)
        before, gap = piece, False
    return "".join(parts)


def _is_apart(left: str, right: str) -> bool:
    """Whether two pieces are different tokens even without white space between them."""
    if left in _ALONE or right in _ALONE:
        return True
    kinds = _kind(left), _kind(right)
    if "dot" in kinds or kinds[0] == kinds[1]:
        return False
    return "symbol" in kinds  # r 'x' is not r'x'


_OPERATORS = frozenset("+-*/%<>=!&|^~")


def _kind(piece: str) -> str:
    if piece[0] in "'\"`":
        return "quoted"
    if piece[0] in _OPERATORS:
        return "symbol"
    return "word" if re.match(r"[\w$]", piece) and piece != "$" else "dot"


_MALLOY = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<line>(?:--|//)[^\r\n]*)"
    r"|(?P<block>/\*.*?\*/)"
    r"|(?P<tag>#[^\r\n]*)"
    r'|(?P<quoted>""".*?"""|\'(?:[^\'\\]|\\.)*\'|"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`)'
    r"|(?P<rest>[^\s]+?(?=[\s'\"`#]|--|//|/\*|$))"
    r"|(?P<symbol>.)",
    re.S,
)


_UNCERTAIN_MALLOY = re.compile(r'#\||%\{|"{4}|\\"')
"""Annotations of several lines, Malloy within SQL, and quotes within quotes: where these end is not
certain."""


def plain_malloy(text: str) -> str:
    r"""Return a Malloy file without comments, with a single space for all other layout.

    Annotations stay, with the ends of their lines.

    Examples
    --------
    >>> plain_malloy("source: a is\n  x.table('t')  -- why\n# tag\n")
    "source: a is x.table('t') # tag\n"
    """
    if _UNCERTAIN_MALLOY.search(text):
        return text
    parts: list[str] = []
    gap = False
    for match in _MALLOY.finditer(text):
        kind, piece = match.lastgroup, match.group()
        if kind in ("space", "line", "block"):
            gap = True
            continue
        if gap and parts:
            parts.append(" ")
        parts.append(f"{piece.rstrip()}\n" if kind == "tag" else piece)
        gap = False
    return "".join(parts)


_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)
_MARKS = {tokenize.NEWLINE: "\n", tokenize.INDENT: "{", tokenize.DEDENT: "}"}
# Older releases of Python have one token for such a string.
_STARTS = {getattr(tokenize, f"{kind}STRING_START", -1) for kind in "FT"}
_ENDS = {getattr(tokenize, f"{kind}STRING_END", -1) for kind in "FT"}


def plain_python(text: str) -> str:
    r"""Return the tokens of a Python module, without comments; blocks are in marks of their own.

    Examples
    --------
    >>> plain_python("def f(a):  # why\n    return (a +\n 1)\n") == plain_python(
    ...     "def f( a ):\n  return (a + 1)\n"
    ... )
    True
    """
    lines = [*io.StringIO(text)]  # as the tokens count them: a form feed ends no line
    tokens: list[str] = []
    start, depth = (1, 0), 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _STARTS:
                start, depth = (start if depth else token.start), depth + 1
            elif token.type in _ENDS:
                depth -= 1
                if not depth:
                    tokens.append(_between(lines, start, token.end))
            elif not depth and token.type not in _LAYOUT:
                mark = _MARKS.get(token.type)
                tokens.append(repr(token.string) if mark is None else mark)
    except (tokenize.TokenError, SyntaxError):
        return text
    return " ".join(tokens)


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return a part of a text: places are lines from 1 and columns from 0."""
    part = lines[start[0] - 1 : end[0]]
    part[-1] = part[-1][: end[1]]
    part[0] = part[0][start[1] :]
    return repr("".join(part))
