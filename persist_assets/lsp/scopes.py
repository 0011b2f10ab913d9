"""The tables and columns in scope at a place of an SQL text. Pure.

Read from tokens and brackets, not from a tree: during editing, most texts have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from persist_assets.core.dialect import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.tokenizer_core import Token

_SETS = frozenset(("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "MINUS"))
_AFTER_FROM = frozenset(
    """WHERE GROUP HAVING ORDER LIMIT WINDOW QUALIFY SELECT SORT CLUSTER DISTRIBUTE""".split()
)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)


@dataclass(frozen=True, slots=True)
class Item:
    """An output column of a SELECT, or a star.

    Attributes
    ----------
    name
        Its name; None for a star.
    start, end
        Offsets of the token that names it.
    origin
        The column that it is, unless it is computed: parts of its name. For a star, its qualifier.
    """

    name: str | None
    start: int
    end: int
    origin: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table in scope.

    Attributes
    ----------
    name
        The name that qualifies its columns.
    parts
        The name as written, if it is one.
    start, end
        Offsets of what names it.
    query
        The SELECT whose rows it has, for a subquery or a common table expression.
    """

    name: str
    parts: tuple[str, ...]
    start: int
    end: int
    query: Select | None = None


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT: its output columns, and the tables of its FROM clause."""

    items: tuple[Item, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """The names in scope at a place.

    Attributes
    ----------
    selects
        The SELECTs around the place, innermost first.
    expects_table
        Whether the name of a table stands there.
    qualifier
        What stands before the dot at the place.
    word
        The name that begins before the place or at it, with its offsets; empty if there is none.
    ctes
        The common table expressions in scope.
    """

    selects: tuple[Select, ...]
    expects_table: bool
    qualifier: str | None
    word: Item | None
    ctes: tuple[Table, ...]

    def table(self, name: str) -> Table | None:
        """Return the table that a qualifier means: the innermost of that name."""
        tables = (t for s in self.selects for t in s.tables)
        return next((t for t in tables if t.name.lower() == name.lower()), None)


def scope_at(text: str, offset: int) -> Scope | None:
    """Return the scope at an offset; None outside of statements, and in broken quotes."""
    try:
        tokens: Sequence[Token] = SPARK.tokenize(text)
    except TokenError:
        try:
            tokens = SPARK.tokenize(text[:offset])
        except TokenError:
            return None
    statement: list[Token] = []
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            if token.start >= offset:
                break
            statement = []
        else:
            statement.append(token)
    if not statement or statement[0].start >= offset:
        return None
    return _Reader(statement).scope(offset)


def output_of(text: str, offset: int) -> Select | None:
    """Return the outermost SELECT of the statement at an offset, which its rows come from."""
    scope = scope_at(text, offset)
    return scope.selects[-1] if scope and scope.selects else None


def declared_in(text: str, offset: int) -> tuple[Item, ...]:
    """Return the columns that a CREATE statement lists in brackets after its name.

    Parameters
    ----------
    offset
        Where its name begins.
    """
    end = text.find(";", offset)
    try:
        tokens = SPARK.tokenize(text[offset : end if end >= 0 else len(text)])
    except TokenError:
        return ()
    reader = _Reader(tokens)
    if len(tokens) < 2 or 1 not in reader.closing:
        return ()
    level = reader.level(2, reader.closing[1])
    starts = [
        level[:1],
        *(level[n + 1 : n + 2] for n, at in enumerate(level) if reader.is_comma(at)),
    ]
    items = (reader.item(n) for first in starts for n in first)
    return tuple(Item(i.name, i.start + offset, i.end + offset) for i in items)


class _Reader:
    """One statement. A group is the content of a pair of brackets, as a range of tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.closing: dict[int, int] = {}
        opened: list[int] = []
        for n, token in enumerate(tokens):
            if token.token_type is TokenType.L_PAREN:
                opened.append(n)
            elif token.token_type is TokenType.R_PAREN and opened:
                self.closing[opened.pop()] = n
        self.closing |= dict.fromkeys(opened, len(tokens))  # they are being written

    def word(self, n: int) -> str:
        """Return a token as a keyword; empty for quoted names and strings."""
        token = self.tokens[n]
        quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
        return "" if quoted else token.text.upper()

    def is_comma(self, n: int) -> bool:
        """Whether a token is a comma."""
        return self.tokens[n].token_type is TokenType.COMMA

    def level(self, start: int, end: int) -> list[int]:
        """Return the tokens of a group without those in brackets inside; the brackets count."""
        out: list[int] = []
        n = start
        while n < end:
            out.append(n)
            n = self.closing.get(n, n) + 1
        return out

    def scope(self, offset: int) -> Scope:
        tokens = self.tokens
        around = [(0, len(tokens))]
        for opened, closed in sorted(self.closing.items()):
            ends_at = tokens[closed].start if closed < len(tokens) else offset
            if tokens[opened].end < offset <= ends_at:
                around.append((opened + 1, closed))
        ctes: list[Table] = []
        selects: list[Select] = []
        for start, end in around:
            level = self.level(start, end)
            ctes[:0] = self.ctes(level, ctes)
            segment = self.segment(level, offset)
            if any(self.word(n) in ("SELECT", "FROM") for n in segment):
                selects.insert(0, self.select(segment, ctes))
        at = next((n for n, t in enumerate(tokens) if t.start <= offset <= t.end + 1), None)
        if at is not None and not _is_word(tokens[at]):
            touching = at + 1 < len(tokens) and tokens[at + 1].start == offset
            at = at + 1 if touching and _is_word(tokens[at + 1]) else None
        before = max((n for n, t in enumerate(tokens) if t.end < offset), default=-1)
        previous = before if at is None else at - 1
        return Scope(
            tuple(selects),
            self.expects_table(previous, around[-1][0]),
            self.qualifier(previous),
            self.item(at) if at is not None else None,
            tuple(ctes),
        )

    def item(self, n: int, origin: tuple[str, ...] | None = None) -> Item:
        token = self.tokens[n]
        return Item(token.text, token.start, token.end + 1, origin)

    def qualifier(self, previous: int) -> str | None:
        if previous < 1 or self.tokens[previous].token_type is not TokenType.DOT:
            return None
        return self.tokens[previous - 1].text

    def expects_table(self, previous: int, start: int) -> bool:
        """Whether the name of a table stands after a token of a group that starts somewhere."""
        while previous >= start and self.tokens[previous].token_type is TokenType.DOT:
            previous -= 2  # the qualifier of the name
        if previous < start:
            return False
        if self.word(previous) in ("FROM", "JOIN"):
            return True
        if not self.is_comma(previous):
            return False
        level = [n for n in self.level(start, previous) if n < previous]
        clauses = [self.word(n).split()[0] for n in level if self.word(n)]
        last = [c for c in clauses if c == "FROM" or c in _AFTER_FROM]
        return bool(last) and last[-1] == "FROM"

    def segment(self, level: Sequence[int], offset: int) -> list[int]:
        """Return the part of a group around a place, between UNION and the like."""
        part: list[int] = []
        for n in level:
            if self.word(n) in _SETS:
                if self.tokens[n].start >= offset:
                    break
                part = []
            else:
                part.append(n)
        return part

    def ctes(self, level: Sequence[int], outer: Sequence[Table]) -> list[Table]:
        """Return the common table expressions of a group, the last one first."""
        tables: list[Table] = []
        words = [self.word(n) for n in level]
        if "WITH" not in words:
            return tables
        at = words.index("WITH") + 1
        while at < len(level):
            name, at = level[at], at + 1
            if at < len(level) and level[at] in self.closing:
                at += 1  # names of its columns
            if at + 1 >= len(level) or words[at] != "AS" or level[at + 1] not in self.closing:
                break
            opened = level[at + 1]
            query = self.inner(opened, [*tables, *outer])
            token = self.tokens[name]
            tables.insert(0, Table(token.text, (token.text,), token.start, token.end + 1, query))
            at += 2
            if at >= len(level) or not self.is_comma(level[at]):
                break
            at += 1
        return tables

    def inner(self, opened: int, ctes: Sequence[Table]) -> Select:
        """Return the first SELECT between two brackets."""
        level = self.level(opened + 1, self.closing[opened])
        known = [*self.ctes(level, ctes), *ctes]
        return self.select(self.segment(level, self.tokens[opened].end + 1) or level, known)

    def select(self, level: Sequence[int], ctes: Sequence[Table]) -> Select:
        return Select(tuple(self.items(level)), tuple(self.tables(level, ctes)))

    def tables(self, level: Sequence[int], ctes: Sequence[Table]) -> Iterator[Table]:
        at, in_from, expects = 0, False, False
        while at < len(level):
            n = level[at]
            keyword = self.word(n).split()[0] if self.word(n) else ""
            if keyword in ("FROM", "JOIN"):
                in_from = expects = True
            elif keyword in _AFTER_FROM:
                in_from = expects = False
            elif in_from and self.is_comma(n):
                expects = True
            elif expects and (_is_word(self.tokens[n]) or n in self.closing):
                if keyword == "LATERAL":
                    at += 1
                    continue
                table, at = self.table(level, at, ctes)
                expects = False
                if table is not None:
                    yield table
                continue
            at += 1

    def table(
        self, level: Sequence[int], at: int, ctes: Sequence[Table]
    ) -> tuple[Table | None, int]:
        first = self.tokens[level[at]]
        parts: list[str] = []
        query, end = None, first.end + 1
        if level[at] in self.closing:
            query = self.inner(level[at], ctes)
            at += 1
        else:
            while at < len(level) and _is_word(self.tokens[level[at]]):
                parts.append(self.tokens[level[at]].text)
                end = self.tokens[level[at]].end + 1
                at += 1
                dot = at < len(level) and self.tokens[level[at]].token_type is TokenType.DOT
                if not dot:
                    break
                at += 1
        name = parts[-1] if parts else None
        if at < len(level) and self.word(level[at]) == "AS":
            at += 1
            if at < len(level):
                name, at = self.tokens[level[at]].text, at + 1
        elif at < len(level) and self.tokens[level[at]].token_type in _NAMES:
            name, at = self.tokens[level[at]].text, at + 1
        if len(parts) == 1:
            named = (t.query for t in ctes if t.name.lower() == parts[0].lower())
            query = query or next(named, None)
        if name is None:
            return (Table("", (), first.start, end, query) if query else None), at
        return Table(name, tuple(parts), first.start, end, query), at

    def items(self, level: Sequence[int]) -> Iterator[Item]:
        words = [self.word(n) for n in level]
        if "SELECT" not in words:
            return
        item: list[int] = []
        for n in level[words.index("SELECT") + 1 :]:
            keyword = self.word(n).split()[0] if self.word(n) else ""
            if keyword == "FROM" or keyword in _AFTER_FROM:
                break
            if self.is_comma(n):
                yield from self.named(item)
                item = []
            elif item or keyword not in ("DISTINCT", "ALL"):
                item.append(n)
        yield from self.named(item)

    def named(self, item: Sequence[int]) -> Iterator[Item]:
        """Yield the output column of an expression, if it has a name."""
        if not item:
            return
        last = self.tokens[item[-1]]
        texts = [self.tokens[n].text for n in item]
        if last.token_type is TokenType.STAR:
            yield Item(None, last.start, last.end + 1, tuple(texts[:-1:2]))
            return
        has_as = len(item) > 2 and self.word(item[-2]) == "AS"
        if not (_is_word(last) and (has_as or last.token_type in _NAMES or len(item) == 1)):
            return
        alone = item[:-2] if has_as else item
        dotted = all(self.tokens[n].token_type is TokenType.DOT for n in alone[1::2])
        is_name = (
            len(alone) % 2 == 1 and dotted and all(_is_word(self.tokens[n]) for n in alone[::2])
        )
        origin = tuple(self.tokens[n].text for n in alone[::2]) if is_name else None
        yield self.item(item[-1], origin)


def _is_word(token: Token) -> bool:
    return token.token_type is TokenType.IDENTIFIER or (
        token.token_type is not TokenType.STRING and token.text.replace("_", "a").isalnum()
    )
