"""The words of messages for parts of a query: short SQL with the names of columns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Derived,
    Generate,
    Given,
    Limit,
    Outer,
    Ref,
    SetOperation,
    Subquery,
    Values,
    Window,
    walk,
)
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from persist_assets.analysis.algebra import Expr, Node

_LONGEST = 72


class Words:
    """The words for the parts of one query.

    Parameters
    ----------
    block
        The query, in staged form.
    """

    def __init__(self, block: Block) -> None:
        self._leaves: dict[int, Node] = {}
        for thing in walk(block):
            if isinstance(thing, Block):
                self._leaves |= dict(thing.leaves)
        self._printer = Printer(_no_table)

    def node(self, node: Node) -> str:
        """Return the words for a relation."""
        match node:
            case Given(rows):
                return rows.partition("@")[0]
            case Derived(block):
                return f"SELECT … FROM {_read_by(block)}"
            case Outer(kind, left, right):
                return f"{self.tables(left)} {kind.upper()} JOIN {self.tables(right)}"
            case Aggregate(_, keys, aggregates):
                if keys and not aggregates:
                    return "DISTINCT" if node.sets is None else "GROUPING SETS"
                if not keys:
                    return self.exprs(aggregates)
                return f"GROUP BY {self.exprs(keys)}"
            case SetOperation(kind):
                return kind.upper()
            case Limit(_, count, offset):
                parts = [f"LIMIT {self.expr(count)}"] if count else []
                return " ".join([*parts, *([f"OFFSET {self.expr(offset)}"] if offset else [])])
            case Generate(call):
                return f"LATERAL VIEW {self.expr(call)}"
            case Values():
                return "VALUES"
            case _:
                return "a part that cannot be analyzed"

    def tables(self, block: Block) -> str:
        """Return the words for the relations that a Block joins."""
        nodes = [n for _, n in block.leaves if not isinstance(n, Generate)]
        return _short(" JOIN ".join(self._table(n) for n in nodes)) or "no table"

    def _table(self, node: Node) -> str:
        return self.node(node) if isinstance(node, Given) else f"({self.node(node)})"

    def exprs(self, exprs: Iterable[Expr]) -> str:
        """Return the words for expressions, in one list."""
        return _short(", ".join(self._expr(e) for e in exprs))

    def expr(self, expr: Expr) -> str:
        """Return the words for an expression."""
        return _short(self._expr(expr))

    def _expr(self, expr: Expr) -> str:
        match expr:
            case Ref(instance, column):
                return self._column(instance, column)
            case Subquery(kind, block):
                word = {"exists": "EXISTS ", "in": "IN "}.get(kind, "")
                return f"{word}(SELECT … FROM {_read_by(block)})"
            case Window(function, partition, order):
                keys = [f"PARTITION BY {self.exprs(partition)}"] if partition else []
                sorts = (f"{self._expr(s.by)}{' DESC' if s.descending else ''}" for s in order)
                keys += [f"ORDER BY {', '.join(sorts)}"] if order else []
                return f"{self._expr(function)} OVER ({' '.join(keys)})"
            case _:
                refs = (r for r in walk(expr) if isinstance(r, Ref))
                names = {r: self._column(r.instance, r.column) for r in refs}
                try:
                    text = self._printer.expr(expr, names)
                except NoRule:
                    return f"{expr.op}(…)" if expr.op.isidentifier() else "…"
                return _without_parens(text)

    def _column(self, instance: int, column: int) -> str:
        """Return the name of a column of a leaf, or the words for its expression."""
        node = self._leaves.get(instance)
        match node:
            case Given(columns=columns):
                return columns[column]
            case Derived(block):
                return _named(block, column) or self._expr(block.columns[column].expr)
            case SetOperation(_, branches):
                return _named(branches[0], column) or self._expr(branches[0].columns[column].expr)
            case Aggregate(_, keys, aggregates):
                return self._expr((*keys, *aggregates)[column])
            case Outer(_, left, right):
                return self._expr((*left.columns, *right.columns)[column].expr)
            case Limit(block):
                return _named(block, column) or self._expr(block.columns[column].expr)
            case _:
                return f"column {column + 1}"


def _read_by(block: Block) -> str:
    names = (g.rows.partition("@")[0] for g in walk(block) if isinstance(g, Given))
    return _short(", ".join(sorted({*names})))


def _named(block: Block, column: int) -> str:
    return block.columns[column].name


def _no_table(node: Given, instance: int, columns: Sequence[int]) -> str:
    raise NoRule("of a subquery")


def _without_parens(text: str) -> str:
    """Return a text without the pair of parentheses around all of it.

    Examples
    --------
    >>> _without_parens("(a + (b))"), _without_parens("(a) + (b)")
    ('a + (b)', '(a) + (b)')
    """
    depth, last = 0, len(text) - 1
    for n, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and n < last:
            return text
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
