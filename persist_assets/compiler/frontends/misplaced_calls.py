"""Calls of Spark's functions that Spark certainly refuses at their place.

Aggregates and window functions have their places in a query; some functions have an order of
arguments that other databases reverse. The invariant: what Spark might accept is left to Spark. A
subquery in an expression may aggregate rows of the query around it, so its conditions are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.functions import AGGREGATES, SPARKS, UNIT_FIRST
from persist_assets.analysis.syntax import FUNCTIONS
from persist_assets.compiler.frontends.sql_trees import BRACKETS
from persist_assets.core.dialect import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.core.errors import Severity


@dataclass(frozen=True, slots=True)
class MisplacedCall:
    """A call that Spark refuses at its place: the function, its offset and the problem."""

    function: str
    offset: int
    code: str
    message: str
    hint: str
    severity: Severity = "error"


def misplaced_calls(tokens: Sequence[Token], text: str, tree: exp.Expr) -> Iterator[MisplacedCall]:
    """Yield the calls of a query that Spark refuses for certain.

    Parameters
    ----------
    tokens
        The tokens of the query in `text`.
    tree
        The parsed query.
    """
    written = _Written(tokens, text)
    for node in tree.walk():
        name = _called(node)
        if name is None or "start" not in node.meta:
            continue
        window = _window_of(node)
        shown = written.call(node, is_windowed=window is not None)
        problem = (
            _without_window(name, window, shown)
            or _nested(node, name, window, shown)
            or _in_clause(node, name, window, shown)
            or _arguments(name, node, written)
        )
        if problem is not None:
            code, message, hint = problem
            severity: Severity = "warning" if code == "argument-order" else "error"
            yield MisplacedCall(name, node.meta["start"], code, message, hint, severity)


_Said = tuple[str, str, str]
"""A code, a message and a hint."""


class _Written:
    """The text of a query, from which messages quote."""

    def __init__(self, tokens: Sequence[Token], text: str) -> None:
        self._tokens, self._text = tokens, text

    @cached_property
    def _indexes(self) -> dict[int, int]:
        return {token.start: i for i, token in enumerate(self._tokens)}

    def call(self, node: Any, *, is_windowed: bool) -> str:
        """Return the text of a call, with its OVER if it has one."""
        first = self._indexes.get(node.meta["start"])
        if first is None:
            return f"{plain(node.name)}(…)"
        last = self._closing(first + 1)
        while is_windowed and last + 1 < len(self._tokens):
            last += 1
            if self._tokens[last].text.upper() == "OVER":
                last = self._closing(last + 1)
                break
        return self._quoted(self._tokens[first].start, self._tokens[last].end)

    def part(self, node: Any) -> str:
        """Return the text of a part of the tree."""
        metas = [n.meta for n in node.walk() if "start" in n.meta]
        if not metas:
            return "…"
        return self._quoted(min(m["start"] for m in metas), max(m["end"] for m in metas))

    def _closing(self, opened: int) -> int:
        depth = 0
        for i in range(opened, len(self._tokens)):
            depth += BRACKETS.get(self._tokens[i].token_type, 0)
            if depth <= 0:
                return i
        return len(self._tokens) - 1

    def _quoted(self, start: int, end: int) -> str:
        shown = " ".join(self._text[start : end + 1].split())
        return shown if len(shown) <= 60 else f"{shown[:59]}…"


def _called(node: Any) -> str | None:
    """Return the name of Spark's function that a node calls, or None."""
    if isinstance(node.parent, exp.Dot):
        return None  # a function of a schema
    if isinstance(node, exp.Anonymous):
        return plain(node.name).lower()
    return FUNCTIONS[type(node)] if isinstance(node, exp.First | exp.Last) else None


_AROUND_CALLS = (exp.IgnoreNulls, exp.RespectNulls, exp.Filter, exp.WithinGroup)


def _window_of(call: Any) -> exp.Window | None:
    """Return the OVER that a call has, or None."""
    while isinstance(call.parent, _AROUND_CALLS) and call.arg_key == "this":
        call = call.parent
    above = call.parent
    return above if isinstance(above, exp.Window) and call.arg_key == "this" else None


def _without_window(name: str, window: exp.Window | None, shown: str) -> _Said | None:
    if SPARKS.get(name) != "window":
        return None
    if window is None:
        message = f"`{name}` needs a window"
        return "window", message, f"{shown} OVER (PARTITION BY … ORDER BY …)"
    if window.args.get("order") or window.args.get("alias"):
        return None
    return "window", f"the window of `{name}` needs ORDER BY", f"{name}(…) OVER (… ORDER BY …)"


def _nested(node: Any, name: str, window: exp.Window | None, shown: str) -> _Said | None:
    """Return the problem of an aggregate or window function inside an aggregate."""
    if window is None and name not in AGGREGATES:
        return None
    outer = _aggregate_around(node)
    if outer is None:
        return None
    if window is not None:
        message = f"the window function `{shown}` is inside the aggregate `{outer}`"
        hint = f"compute it first: SELECT {outer}(x) … FROM (SELECT *, {shown} AS x FROM …)"
        return "nested-aggregate", message, hint
    message = f"the aggregate `{shown}` is inside the aggregate `{outer}`"
    hint = f"aggregate twice: SELECT {outer}(x) … FROM (SELECT {shown} AS x FROM … GROUP BY …)"
    return "nested-aggregate", message, hint


def _aggregate_around(node: Any) -> str | None:
    """Return the aggregate of groups that a node is an argument of, or None."""
    while node.parent is not None and not isinstance(node, exp.Query | exp.Lambda):
        node = node.parent
        name = _called(node)
        if name in AGGREGATES and _window_of(node) is None:
            return name
    return None


_CLAUSES = {
    (exp.Where, "where"): "WHERE",
    (exp.Having, "having"): "HAVING",
    (exp.Group, "group"): "GROUP BY",
    (exp.Join, "joins"): "ON",
}


def _clause_of(node: Any) -> tuple[str, exp.Select] | None:
    """Return the clause of a node, and its SELECT; None for other places."""
    while node.parent is not None and not isinstance(node, exp.Query | exp.Lambda):
        below, node = node, node.parent
        for (kind, key), clause in _CLAUSES.items():
            if isinstance(node, kind) and node.arg_key == key:
                is_on = clause != "ON" or below.arg_key == "on"
                select = node.parent
                return (clause, select) if is_on and isinstance(select, exp.Select) else None
    return None


def _in_clause(node: Any, name: str, window: exp.Window | None, shown: str) -> _Said | None:
    """Return the problem of an aggregate or window function in its clause."""
    if window is None and name not in AGGREGATES:
        return None
    place = _clause_of(node)
    if place is None:
        return None
    clause, select = place
    if window is not None:
        message = f"the window function `{shown}` is not allowed in {clause}"
        hint = f"compute it in a subquery: FROM (SELECT *, {shown} AS x FROM …)"
        if clause in ("WHERE", "HAVING"):
            hint = f"write the condition in QUALIFY: QUALIFY {shown} …"
        return "window", message, hint
    if clause == "HAVING" or (clause != "GROUP BY" and _may_see_around(select)):
        return None
    message = f"the aggregate `{shown}` is not allowed in {clause}"
    hint = {
        "WHERE": f"write the condition in HAVING, after GROUP BY: HAVING {shown} …",
        "ON": f"aggregate in a subquery: JOIN (SELECT …, {shown} AS x FROM … GROUP BY …)",
    }
    return "aggregate", message, hint.get(clause, "group by columns that are not aggregated")


_TRANSPARENT = (exp.Subquery, exp.From, exp.CTE, exp.With, exp.SetOperation)


def _may_see_around(select: exp.Select) -> bool:
    """Whether a SELECT may be a subquery that refers to the query around it."""
    node: Any = select
    while node.parent is not None:
        above = node.parent
        is_relation = isinstance(above, exp.Join) and node.arg_key == "this"
        is_part = isinstance(above, exp.Select) and node.arg_key in ("from_", "joins", "with_")
        if not (is_relation or is_part or isinstance(above, _TRANSPARENT)):
            return True
        node = above
    return False


_UNITS = frozenset(
    """
    year yyyy yy quarter month mon mm week day dd hour minute second millisecond microsecond
    """.split()
)


def _arguments(name: str, node: Any, written: _Written) -> _Said | None:
    """Return the problem of a unit among the arguments of a date function."""
    values = node.expressions
    texts = [isinstance(v, exp.Literal) and v.is_string for v in values]
    if name in UNIT_FIRST and texts[:1] == [True] and len(values) == 3:
        unit = plain(values[0].name)
        if not unit.isidentifier():
            return None
        others = ", ".join(written.part(v) for v in values[1:])
        message = f"the unit of `{name}` is a keyword, not a string"
        return "argument-unit", message, f"{name}({unit.upper()}, {others})"
    unit_at = {"date_trunc": 0, "trunc": 1}.get(name)
    if unit_at is None or len(values) != 2:
        return None
    other = values[1 - unit_at]
    swapped = texts[1 - unit_at] and plain(other.name).lower() in _UNITS and not texts[unit_at]
    if not swapped:
        return None
    right = ", ".join(written.part(v) for v in reversed(values))
    message = f"`{name}` takes the unit {'first' if unit_at == 0 else 'last'}: this is always NULL"
    return "argument-order", message, f"{name}({right})"
