"""Statements, tokens and trees of SQL → the parts of declarations."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from persist_assets.analysis.functions import ARGUMENTS, PYTHON, SPARKS, UNIT_FIRST
from persist_assets.analysis.syntax import calls_in, first_select, names_in_text
from persist_assets.core.model.queries import Reference
from persist_assets.core.pipes import is_table_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.core.errors import Location


BRACKETS = {
    TokenType.L_PAREN: 1,
    TokenType.R_PAREN: -1,
    TokenType.L_BRACKET: 1,
    TokenType.R_BRACKET: -1,
}
"""By how much a token changes the depth of brackets."""


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment, with its offsets."""

    start: int
    end: int
    text: str

    @property
    def is_annotation(self) -> bool:
        """Whether it is an annotation."""
        return self.text.startswith("--@")


_COMMENT = re.compile(r"--[^\n]*|/\*")


def comments_in(text: str, start: int, end: int) -> Iterator[Comment]:
    """Yield the comments in a part of a text without tokens."""
    while match := _COMMENT.search(text, start, end):
        stop = match.end() if match[0] != "/*" else _block_end(text, match.start(), end)
        yield Comment(match.start(), stop, text[match.start() : stop])
        start = stop


def _block_end(text: str, start: int, end: int) -> int:
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(text, start, end):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return end


def statements_of(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the tokens of each statement, its semicolon included."""
    start = 0
    for i, token in enumerate(tokens):
        if token.token_type is TokenType.SEMICOLON:
            yield tokens[start : i + 1]
            start = i + 1
    if start < len(tokens):
        yield tokens[start:]


def comment_text(comment: str) -> str:
    """Return the text of a comment without its marks."""
    if comment.startswith("--"):
        return comment[2:].strip()
    lines = (line.strip().removeprefix("*").strip() for line in comment[2:-2].splitlines())
    return "\n".join(lines).strip()


def property_of(tree: Any, kind: type[exp.Expr]) -> str | None:
    """Return the value of a property of a CREATE TABLE, or None."""
    node = tree.find(kind)
    return node.this.name if node else None


def option_value(value: Any) -> str:
    """Return the value of an option as Spark reads it."""
    if isinstance(value, exp.Boolean):
        return str(value.this).lower()
    return value.name if isinstance(value, exp.Expr) else str(value)


def column_definitions(tree: Any) -> Sequence[exp.ColumnDef]:
    """Return the columns that a CREATE statement defines."""
    schema = tree.this if isinstance(tree.this, exp.Schema) else None
    return [e for e in schema.expressions if isinstance(e, exp.ColumnDef)] if schema else []


def default_column(tree: Any) -> str | None:
    """Return the name of a column with a DEFAULT, or None."""
    with_default = (d for d in column_definitions(tree) if d.find(exp.DefaultColumnConstraint))
    return next((d.name for d in with_default), None)


def column_comment(definition: Any) -> str | None:
    """Return the comment of a column, or None."""
    constraint = definition.find(exp.CommentColumnConstraint)
    return constraint.name if constraint else None


def after_sample(tokens: Sequence[Token], end: int) -> int:
    """Return the offset for an alias of a table name that ends at `end`: after TABLESAMPLE."""
    i = next((i for i, t in enumerate(tokens) if t.start >= end), len(tokens))
    while (i < len(tokens) and tokens[i].token_type is TokenType.TABLE_SAMPLE) or (
        i < len(tokens) and tokens[i].text.upper() == "REPEATABLE"
    ):
        depth = 0
        while i < len(tokens):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(tokens[i].token_type, 0)
            i += 1
            if depth == 0 and tokens[i - 1].token_type is TokenType.R_PAREN:
                break
        end = tokens[i - 1].end + 1
    return end


def tables_read(tree: exp.Expr) -> list[exp.Table]:
    """Return the tables that a query reads, without its own common table expressions."""
    if not tree.find(exp.With, exp.Hint):
        named = [t for t in tree.find_all(exp.Table) if isinstance(t.this, exp.Identifier)]
        return sorted(named, key=lambda table: table.parts[0].meta["start"])
    tables: list[exp.Table] = []
    stack: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while stack:
        node, visible = stack.pop()
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ else ():
            name = frozenset((cte.alias.lower(),))
            stack.append((cte.this, visible | name if with_.args.get("recursive") else visible))
            visible |= name
        named = isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier)
        if named and (node.args.get("db") or node.name.lower() not in visible):
            tables.append(node)
        for key, value in node.args.items():
            if key not in ("with_", "hint"):
                children = value if isinstance(value, list) else (value,)
                stack += [(child, visible) for child in children if isinstance(child, exp.Expr)]
    return sorted(tables, key=lambda table: table.parts[0].meta["start"])


def reference_to(
    table: exp.Table, tokens: Sequence[Token], base: int, location: Location
) -> Reference:
    """Return the reference that a table of a query is.

    Parameters
    ----------
    tokens
        Those of the query, with offsets in its file.
    base
        The offset of the query.
    """
    start, end = table.parts[0].meta["start"], table.parts[-1].meta["end"] + 1
    before = bisect_left(tokens, start, key=lambda token: token.start) - 1
    return Reference(
        tuple(p.name for p in table.parts),
        start - base,
        end - base,
        None if table.args.get("alias") else after_sample(tokens, end) - base,
        location,
        tokens[before].start - base if before >= 0 and is_table_query(tokens, before) else None,
    )


def words_of(tokens: Sequence[Token], text: str, references: Sequence[Reference]) -> Iterator[str]:
    """Yield the words of a query; for a reference, its number, and its name if it matters."""
    base = tokens[0].start
    places = {base + r.start: (i, r) for i, r in enumerate(references)}
    behind = -1
    for token in tokens:
        if token.start < behind:
            continue
        if token.start in places:
            number, reference = places[token.start]
            behind = base + reference.end
            # Unless an alias hides it, the name as written also qualifies columns.
            name = "" if reference.alias_at is None else reference.parts[-1].lower()
            yield f"reference {number} {name}"
        else:
            yield text[token.start : token.end + 1]


def double_quoted(tokens: Sequence[Token], text: str) -> Iterator[tuple[str, int]]:
    """Yield the strings in double quotes that are words, with their offsets."""
    for token in tokens:
        is_string = token.token_type is TokenType.STRING and text[token.start] == '"'
        if is_string and token.text.isidentifier():
            yield token.text, token.start


def wrong_calls(tokens: Sequence[Token], tree: exp.Expr) -> Iterator[tuple[str, int | None, int]]:
    """Yield the calls that Spark's own functions do not allow: name, arguments, offset.

    The number of arguments is None if Spark has no such function. Functions of a schema are left
    out. The tree tells the places of calls: `t(a, b)` may name a table and its columns.
    """
    called: set[int] | None = None
    for i in range(len(tokens) - 1):
        if tokens[i + 1].token_type is not TokenType.L_PAREN:
            continue
        name = tokens[i].text.lower()
        taken = ARGUMENTS.get(name)
        if name in _OF_GRAMMAR or (taken is None and name in SPARKS) or not name.isidentifier():
            continue
        if PYTHON.fullmatch(name):
            continue
        if i and tokens[i - 1].token_type in (TokenType.DOT, TokenType.DCOLON):
            continue
        n = None if taken is None else _n_arguments(tokens, i + 1)
        if taken is not None and (n is None or n in taken):
            continue
        if called is None:
            nodes = tree.find_all(exp.Anonymous, exp.Func)
            called = {node.meta["start"] for node in nodes if "start" in node.meta}
        if tokens[i].start in called:
            yield name, n, tokens[i].start


def _n_arguments(tokens: Sequence[Token], opened: int) -> int | None:
    """Return the number of arguments of a call; None: its form is one of Spark's grammar."""
    depth, n = 0, 1
    for i in range(opened, len(tokens)):
        kind = tokens[i].token_type
        depth += BRACKETS.get(kind, 0)
        if depth == 0:
            after = tokens[i + 1].text.upper() if i + 1 < len(tokens) else ""
            return None if after == "WITHIN" else 0 if i == opened + 1 else n
        if depth == 1 and kind is TokenType.COMMA:
            n += 1
        elif depth == 1 and (kind in _OTHER_FORMS or tokens[i].text.upper() in _OTHER_WORDS):
            return None
        elif kind is TokenType.LT and tokens[i - 1].text.upper() in _NESTED:
            return None  # the commas of a type
    return None


_OTHER_FORMS = frozenset((TokenType.STAR, TokenType.FROM, TokenType.IN, TokenType.FARROW))
_NESTED = ("ARRAY", "MAP", "STRUCT")
_OTHER_WORDS = frozenset(("PLACING", "FOR", "SELECT", "WITH", "VALUES", "TABLE"))
_OF_GRAMMAR = UNIT_FIRST | frozenset(
    "try_cast and or not between in like ilike rlike regexp div case when cast exists".split()
)
"""Words before brackets that are a part of Spark's grammar."""


def relocate(tree: Any, location: Callable[[int], Location], path: str) -> None:
    """Give the parts of an inlined query their places in files."""
    for node in tree.walk():
        start = node.meta.get("start")
        if start is not None:
            place = location(start)
            node.meta["line"] = place.line
            node.meta["col"] = place.column + node.meta["end"] - start
            if place.path != path:
                node.meta["path"] = place.path


MANY_COLUMNS = ("generator", "table")
"""Kinds of functions that generate rows of several columns."""


def columns_of(tree: Any) -> tuple[str, ...]:
    """Return the names of the columns of a query; none if its text does not show them all."""
    names = names_in_text(tree, frozenset()) if n_columns(tree) is not None else ()
    return names if len({name.lower() for name in names}) == len(names) else ()


def n_columns(tree: Any) -> int | None:
    """Return the number of columns of a query; None: its text does not show it."""
    tree = first_select(tree)
    if not isinstance(tree, exp.Select) or not tree.expressions:
        return None
    unclear = any(e.is_star or isinstance(e, exp.Aliases) for e in tree.expressions)
    generates = any(SPARKS.get(n) in MANY_COLUMNS for e in tree.expressions for n, _ in calls_in(e))
    return None if unclear or generates else len(tree.expressions)
