"""Spark's pipes as nested queries, for the parser, which reorders the steps of a pipe. Pure.

Each step becomes a SELECT over the rows before it. The tokens of the text keep their places. A step
can use the tables of the steps before it as qualifiers (``t.a``), but a nested query hides them.
So steps share a SELECT where they can, and a table that is hidden and used is reported.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import Token, TokenType

from persist_assets.core.dialect import MAX_BRACKETS, beside, marked_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_Type = TokenType
_NAMES = (_Type.VAR, _Type.IDENTIFIER)
_JOINS = frozenset(
    (
        *(_Type.JOIN, _Type.LEFT, _Type.RIGHT, _Type.FULL, _Type.INNER),
        *(_Type.CROSS, _Type.NATURAL, _Type.SEMI, _Type.ANTI),
    )
)
_SET_OPERATIONS = frozenset((_Type.UNION, _Type.EXCEPT, _Type.INTERSECT))
_RESULT_CLAUSES = frozenset((_Type.ORDER_BY, _Type.LIMIT, _Type.OFFSET))
_PARTLY_SORTED = frozenset((_Type.SORT_BY, _Type.CLUSTER_BY, _Type.DISTRIBUTE_BY))
_ROWS = frozenset((_Type.PIVOT, _Type.UNPIVOT, _Type.TABLE_SAMPLE))
_AFTER_FROM = frozenset(
    (_Type.SELECT, _Type.WHERE, _Type.GROUP_BY, _Type.HAVING, _Type.ORDER_BY, _Type.LIMIT)
)


class _Unknown(Exception):
    """A step has a form that is not known."""


def without_pipes(tokens: Sequence[Token]) -> tuple[list[Token], bool]:
    """Return tokens in which pipes are nested queries, and whether these mean the same for sure.

    ``TABLE t`` becomes ``SELECT * FROM t``. Pipes with steps of unknown forms stay.
    """
    if not any(t.token_type in (_Type.PIPE_GT, _Type.TABLE) for t in tokens):
        return [*tokens], True
    stack: list[list[Token]] = [[]]
    is_certain = True
    for n, token in enumerate(tokens):
        if token.token_type is _Type.R_PAREN and len(stack) > 1:
            content, is_known = _query(stack.pop())
            is_certain &= is_known
            stack[-1] += content
        if is_table_query(tokens, n):
            stack[-1] += _words(token, _Type.SELECT, _Type.STAR, _Type.FROM)
        else:
            stack[-1].append(token)
        if token.token_type is _Type.L_PAREN:
            stack.append([])
        if len(stack) > MAX_BRACKETS:
            return [*tokens], False
    content, is_known = _query([t for part in stack for t in part])
    return content, is_certain and is_known


def is_table_query(tokens: Sequence[Token], n: int) -> bool:
    """Whether a token is the TABLE of a query: ``TABLE t``, but not ``f(TABLE t)``."""
    if tokens[n].token_type is not _Type.TABLE:
        return False
    after = tokens[n + 1].token_type if n + 1 < len(tokens) else None
    above, before = (tokens[k].token_type if k >= 0 else None for k in (n - 2, n - 1))
    if before is _Type.L_PAREN:
        is_first = above not in _NAMES
    elif before in (_Type.ALL, _Type.DISTINCT):
        is_first = above in _SET_OPERATIONS
    else:
        is_first = before in (None, _Type.R_PAREN, *_SET_OPERATIONS)
    return is_first and after in _NAMES


def _query(tokens: list[Token]) -> tuple[list[Token], bool]:
    """Return the content of parentheses without pipes; those inside it have none any more."""
    parts = _split(tokens, _Type.PIPE_GT)
    if len(parts) == 1:
        return tokens, True
    start = _end_of_with(tokens)
    parts[0] = parts[0][start:]
    try:
        pipe = _Pipe(parts[0])
        for step in parts[1:]:
            pipe.add(step)
        return tokens[:start] + pipe.result(), pipe.is_certain
    except _Unknown:
        return tokens, False


def _end_of_with(tokens: Sequence[Token]) -> int:
    """Return the number of tokens of a WITH clause at the start."""
    if not tokens or tokens[0].token_type is not _Type.WITH:
        return 0
    depth = 0
    for n, (token, after) in enumerate(pairwise(tokens)):
        depth += (token.token_type is _Type.L_PAREN) - (token.token_type is _Type.R_PAREN)
        closes = not depth and token.token_type is _Type.R_PAREN
        if closes and after.token_type not in (_Type.COMMA, _Type.ALIAS):
            return n + 1
    return 0


class _Pipe:
    """The query that the steps so far make: ``SELECT * FROM source WHERE … ORDER BY …``.

    Attributes
    ----------
    name
        The name of the only table of the source, if there is one.
    names
        Words that may be names of tables of the source.
    hidden
        Words that may be names of tables that nested queries hide.
    """

    def __init__(self, base: list[Token]) -> None:
        self.source: list[Token] = []
        self.inner: list[Token] | None = None
        self.where: list[Token] = []
        self.order: list[Token] = []
        self.name: Token | None = None
        self.names: set[str] = set()
        self.hidden: set[str] = set()
        self.is_certain = True
        if not base:
            raise _Unknown
        all_of = [t.token_type for t in base[:3]] == [_Type.SELECT, _Type.STAR, _Type.FROM]
        rows = base[2:] if all_of else base
        kinds = {t.token_type for t in _outside_parentheses(rows)}
        if rows[0].token_type is _Type.FROM and not kinds & (_AFTER_FROM | _SET_OPERATIONS):
            self.source = rows[1:]
            self.name = _only_table(self.source)
            self.names = _words_in(self.source)
        elif base[0].token_type is _Type.VALUES and not kinds & _SET_OPERATIONS:
            self.source, self.names = base, _words_in(base)
        elif kinds & _RESULT_CLAUSES or base[0].token_type is _Type.FROM:
            raise _Unknown
        else:
            self.hidden = _words_of_tables(base)
            self._nest(base)

    def add(self, step: list[Token]) -> None:
        """Add a step."""
        if not step:
            raise _Unknown
        head, rest = step[0], step[1:]
        kind, word = head.token_type, head.text.upper()
        star = _words(head, _Type.STAR)
        if self._must_nest(kind):
            self._close(head, star, shows_all=True)
        self._check(step)
        if kind is _Type.WHERE and rest:
            also = _words(head, _Type.AND) if self.where else []
            self.where += [*also, *_parentheses(head, rest)]
        elif kind is _Type.SELECT and rest:
            items, window = _cut(rest, _Type.WINDOW)
            self._close(head, items, window)
        elif word == "EXTEND" and rest:
            self._close(head, [*star, *_words(head, _Type.COMMA), *rest])
        elif kind is _Type.DROP and rest:
            dropped = [*_words(head, _Type.EXCEPT), *_parentheses(head, rest)]
            self._close(head, [*star, *dropped])
        elif kind is _Type.SET:
            for assignment in _split(rest, _Type.COMMA):
                self._check(assignment)
                self._close(head, [*star, *_replaced(head, assignment)])
        elif word == "AGGREGATE" and rest:
            self._aggregate(head, rest)
        elif kind is _Type.ALIAS and len(rest) == 1:
            self._close(head, star, name=rest[0])
        elif kind in _JOINS:
            if any(t.token_type is _Type.LATERAL for t in _outside_parentheses(self.source)):
                raise _Unknown  # a join after a LATERAL VIEW, which the parser puts before it
            self.source, self.inner, self.name = [*self.source, *step], None, None
            self.names |= _words_in(step)
        elif kind is _Type.ORDER_BY and rest:
            self.order = step
        elif kind in (_Type.LIMIT, _Type.OFFSET) or kind in _PARTLY_SORTED:
            self._close(head, star, step, shows_all=True)
        elif kind in _SET_OPERATIONS:
            self._combine(head, step)
        elif kind in _ROWS:
            self.names |= _words_in(step)
            self.source = [*self.source, *step]
            self._close(head, star)
        else:
            raise _Unknown

    def _must_nest(self, kind: TokenType) -> bool:
        """Whether a step of a kind needs the query so far as a nested query.

        ORDER BY prefers the names of its SELECT to those of tables.
        """
        if self.order:
            return kind not in (_Type.LIMIT, _Type.OFFSET)
        if kind in _ROWS:
            return bool(self.where) or self.name is None
        return bool(self.where) and kind in _JOINS

    def result(self) -> list[Token]:
        """Return the query."""
        if self.inner is not None and not self.where and not self.order:
            return self.inner
        at = self.source[0]
        return self._select(at, _words(at, _Type.STAR))

    def _select(self, at: Token, items: Sequence[Token], tail: Sequence[Token] = ()) -> list[Token]:
        where = [*_words(at, _Type.WHERE), *self.where] if self.where else []
        return [
            *(*_words(at, _Type.SELECT), *items, *_words(at, _Type.FROM), *self.source),
            *(*where, *self.order, *tail),
        ]

    def _close(
        self,
        at: Token,
        items: Sequence[Token],
        tail: Sequence[Token] = (),
        *,
        shows_all: bool = False,
        name: Token | None = None,
    ) -> None:
        """Nest the query so far.

        Parameters
        ----------
        shows_all
            Whether the SELECT has the columns of its table, so that its name still means these.
        name
            The name of the nested query.
        """
        name = self.name if shows_all else name
        self.hidden |= self.names
        if name is not None:
            self.hidden.discard(name.text.lower())
        self._nest(self._select(at, items, tail), name)

    def _nest(self, query: list[Token], name: Token | None = None) -> None:
        self.inner = query
        self.source, self.where, self.order = _parentheses(query[0], query), [], []
        self.name, self.names = name, set[str]()
        if name is not None:
            self.source += [*_words(name, _Type.ALIAS), name]
            self.names.add(name.text.lower())

    def _aggregate(self, head: Token, rest: Sequence[Token]) -> None:
        calls, by = _cut(rest, _Type.GROUP_BY)
        keys, items = list[list[Token]](), list[list[Token]]()
        names = {after.text.lower() for t, after in pairwise(by) if t.token_type is _Type.ALIAS}
        for key in _split(by[1:], _Type.COMMA) if by else ():
            expr, alias = _cut(key, _Type.ALIAS)
            if (position := _position(expr)) is not None and not alias:
                expr = [marked_name(position)]
            elif len(alias) not in (0, 2) or not _is_certain_key(expr) or names & _words_in(expr):
                raise _Unknown
            keys.append(expr)
            items.append([*expr, *alias])
        shown = _listed(head, [*items, calls] if calls else items)
        self._close(head, shown, [*by[:1], *_listed(head, keys)])

    def _combine(self, head: Token, step: list[Token]) -> None:
        has_word = len(step) > 1 and step[1].token_type in (_Type.ALL, _Type.DISTINCT)
        right = 2 if has_word else 1
        kinds = {t.token_type for t in _outside_parentheses(step[1:])}
        if len(step) <= right or kinds & (_SET_OPERATIONS | _RESULT_CLAUSES):
            raise _Unknown
        words, query = step[:right], step[right:]
        if query[0].token_type is _Type.VALUES:
            query = [*_words(head, _Type.SELECT, _Type.STAR, _Type.FROM), *query]
        elif query[0].token_type is _Type.FROM:
            query = [*_words(head, _Type.SELECT, _Type.STAR), *query]
        left = _parentheses(head, self._select(head, _words(head, _Type.STAR)))
        self.hidden |= self.names
        self._nest([*left, *words, *query])

    def _check(self, step: Sequence[Token]) -> None:
        """Note whether a step uses the name of a hidden table."""
        before: Token | None = None
        for token, after in pairwise(step):
            is_first = before is None or before.token_type is not _Type.DOT
            if after.token_type is _Type.DOT and is_first and token.text.lower() in self.hidden:
                self.is_certain = False
            before = token


def _replaced(head: Token, assignment: Sequence[Token]) -> list[Token]:
    """Return the REPLACE of a star for an assignment of SET."""
    if len(assignment) < 3 or assignment[1].token_type is not _Type.EQ:
        raise _Unknown
    name = marked_name(assignment[0])
    item = [*assignment[2:], *_words(head, _Type.ALIAS), name]
    return [*_words(head, _Type.REPLACE), *_parentheses(head, item)]


def _position(key: Sequence[Token]) -> Token | None:
    """Return the number of a key of AGGREGATE that stands for a column of the rows before it."""
    key = _without_parentheses(key)
    is_number = len(key) == 1 and key[0].token_type is _Type.NUMBER and key[0].text.isdecimal()
    return key[0] if is_number and int(key[0].text) < 2**31 else None  # larger ones are constants


def _without_parentheses(key: Sequence[Token]) -> Sequence[Token]:
    ends = (_Type.L_PAREN, _Type.R_PAREN)
    while len(key) > 1 and (key[0].token_type, key[-1].token_type) == ends:
        key = key[1:-1]
    return key


def _is_certain_key(key: Sequence[Token]) -> bool:
    """Whether a key of AGGREGATE means the same in GROUP BY, and has no alias without AS."""
    key = _without_parentheses(key)  # for Spark, (1) is the number of a column, too
    if not key or any(t.token_type is _Type.SELECT for t in key):
        return False
    if len(key) == 1:
        return key[0].token_type in _NAMES
    operand = (*_NAMES, _Type.R_PAREN, _Type.NUMBER, _Type.STRING, _Type.END)
    return key[-1].token_type not in _NAMES or key[-2].token_type not in operand


def _only_table(source: Sequence[Token]) -> Token | None:
    """Return the name of the only table of a FROM clause, if it has one table."""
    outside = _outside_parentheses(source)
    opened = [n for n, t in enumerate(source) if t.token_type is _Type.L_PAREN]
    if not outside or outside[-1] is not source[-1] or source[-1].token_type not in _NAMES:
        return None
    if {t.token_type for t in outside} - {*_NAMES, _Type.DOT, _Type.ALIAS}:
        return None
    is_nested = bool(opened) and source[0].token_type is _Type.L_PAREN and len(outside) < 3
    return source[-1] if is_nested or not opened else None


def _words_in(tokens: Iterable[Token]) -> set[str]:
    """Return all words, because some keywords are names of tables, too."""
    words = (t.text.lower() for t in tokens if t.token_type is not _Type.STRING)
    return {word for word in words if word.isidentifier()}


def _words_of_tables(query: Sequence[Token]) -> set[str]:
    """Return the words of a query that may be names of tables: those after the first FROM."""
    kinds = [t.token_type for t in query]
    if _Type.VALUES in kinds:
        return _words_in(query)
    return _words_in(query[kinds.index(_Type.FROM) :]) if _Type.FROM in kinds else set()


def _words(at: Token, *kinds: TokenType) -> list[Token]:
    return [beside(at, kind, _TEXTS.get(kind, kind.name)) for kind in kinds]


_TEXTS = {_Type.STAR: "*", _Type.COMMA: ",", _Type.ALIAS: "AS", _Type.L_PAREN: "("}


def _parentheses(at: Token, tokens: Sequence[Token]) -> list[Token]:
    return [beside(at, _Type.L_PAREN, "("), *tokens, beside(tokens[-1], _Type.R_PAREN, ")")]


def _listed(at: Token, parts: Iterable[Sequence[Token]]) -> list[Token]:
    out: list[Token] = []
    for part in parts:
        out += [*(_words(at, _Type.COMMA) if out else []), *part]
    return out


def _levels(tokens: Iterable[Token]) -> Iterator[tuple[Token, int]]:
    """Yield tokens with the number of parentheses around them."""
    depth = 0
    for token in tokens:
        depth -= token.token_type is _Type.R_PAREN
        yield token, depth
        depth += token.token_type is _Type.L_PAREN


def _outside_parentheses(tokens: Iterable[Token]) -> list[Token]:
    edges: Collection[TokenType] = (_Type.L_PAREN, _Type.R_PAREN)
    return [t for t, depth in _levels(tokens) if not depth and t.token_type not in edges]


def _split(tokens: Iterable[Token], kind: TokenType) -> list[list[Token]]:
    """Return the parts between tokens of a kind outside of parentheses."""
    parts: list[list[Token]] = [[]]
    for token, depth in _levels(tokens):
        if not depth and token.token_type is kind:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _cut(tokens: Sequence[Token], kind: TokenType) -> tuple[list[Token], list[Token]]:
    """Return what is before the first token of a kind outside of parentheses, and the rest."""
    for n, (token, depth) in enumerate(_levels(tokens)):
        if not depth and token.token_type is kind:
            return [*tokens[:n]], [*tokens[n:]]
    return [*tokens], []
