"""Time ranges in the queries of SQLMesh's models → all of a model's time.

WHERE day BETWEEN @start_ds AND @end_ds AND …   ─►   WHERE day >= '2024-01-01' AND …

SQLMesh computes a query range by range, and keeps the rows of each range. Conditions on the time
column itself leave out no other rows, so they can go; the same macros elsewhere cannot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.operations.importing.sqlmesh_headers import (
    macros_in,
    tokenized,
    unquoted,
)
from persist_assets.operations.importing.translation import UntranslatableError, parse_query

if TYPE_CHECKING:
    from collections.abc import Iterator

_MACRO = re.compile(r"@(start|end)_(ds|date|ts|dt)", re.I)
_STARTS = {
    "ds": "'{day}'",
    "date": "CAST('{day}' AS DATE)",
    "ts": "'{day} 00:00:00'",
    "dt": "CAST('{day} 00:00:00' AS TIMESTAMP)",
}
"""The start of a model's time, in the types of SQLMesh's macros."""
_ORDERED = (
    *(exp.DataType.Type.TEXT, exp.DataType.Type.VARCHAR, exp.DataType.Type.DATE),
    *(exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.DATETIME),
    *(exp.DataType.Type.TIMESTAMPNTZ, exp.DataType.Type.TIMESTAMPLTZ),
)
"""Types in which times have the same order."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The conditions on the time column in one WHERE.

    Attributes
    ----------
    table
        The table that has the column, in parts; None: it is not certain, or computed.
    has_start
        They limit it from below.
    ends
        The macros that limit it from above, in lower case, each with its operator.
    """

    column: str
    table: tuple[str, ...] | None
    has_start: bool
    ends: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Ranged:
    """A query for all of a model's time.

    Attributes
    ----------
    column
        The time column, in lower case.
    since
        The first day; None: there is none.
    limits
        The conditions of the author on the time column; none: SQLMesh alone limits it.
    is_limited
        They limit all rows from below. Otherwise a condition around the query does.
    spans
        Windows, LIMIT or the like are over the rows of a range in SQLMesh, and over all rows here.
    """

    sql: str
    column: str
    since: str | None
    limits: tuple[Limit, ...]
    is_limited: bool
    spans: bool


@dataclass(frozen=True, slots=True)
class _Macro:
    """A macro of a range in a text, with the token before it."""

    edge: str
    form: str
    start: int
    end: int
    before: int


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition on the time column: its macros."""

    operator: str
    macros: tuple[_Macro, ...]


def of_all_time(query: str, dialect: str, time_column: str, since: str | None) -> Ranged:
    """Return a query for all of a model's time.

    Parameters
    ----------
    time_column
        The time column of the model, as it is written.
    since
        The first day of the model's time; None: there is none.

    Raises
    ------
    UntranslatableError
        It has other macros, or those of a range elsewhere, or is not one query.
    """
    macros = macros_in(query, dialect)
    for _, text in macros:
        if not _MACRO.fullmatch(text):
            raise UntranslatableError(f"`{text}` is known only to SQLMesh")
    marked = query
    for start, _ in macros:
        marked = f"{marked[:start]}_{marked[start + 1 :]}"  # the length stays
    column = unquoted(time_column).lower()
    search = _Search(parse_query(marked, dialect), _placed(marked, dialect, macros))
    is_limited = search.visit(search.root, column, is_certain=True)
    limited = query
    edits = [_edit(condition, since) for condition in search.conditions]
    for start, end, new in sorted(edits, reverse=True):
        limited = limited[:start] + new + limited[end:]
    rest = macros_in(limited, dialect)
    if rest:
        raise UntranslatableError(
            f"`{rest[0][1]}` is known only to SQLMesh: it is not in a condition on the time column"
            f" `{column}` that can be converted"
        )
    if not is_limited:
        condition = f">= '{since}'" if since else "IS NOT NULL"
        limited = f"SELECT * FROM (\n{limited}\n) AS q WHERE {time_column} {condition}"
    return Ranged(limited, column, since, tuple(search.limits), is_limited, search.spans)


def _placed(marked: str, dialect: str, macros: list[tuple[int, str]]) -> dict[int, _Macro]:
    """Return the macros by their starts in a text."""
    words = dict(macros)
    placed: dict[int, _Macro] = {}
    before = 0
    for token in tokenized(marked, dialect):
        match = _MACRO.fullmatch(words.get(token.start, ""))
        if match:
            edge, form = match[1].lower(), match[2].lower()
            placed[token.start] = _Macro(
                edge, form, token.start, token.start + len(match[0]), before
            )
        before = token.start
    return placed


def _edit(condition: _Condition, since: str | None) -> tuple[int, int, str]:
    """Return the span of a condition behind its column, and the new text."""
    first = condition.macros[0]
    is_lower = first.edge == "start" and since is not None
    new = f">= {_STARTS[first.form].format(day=since)}" if is_lower else "IS NOT NULL"
    return first.before, condition.macros[-1].end, new


# ------------------------------------------------------------------------------------ conditions


class _Search:
    """Conditions on a column in the queries through which it passes unchanged."""

    def __init__(self, root: exp.Query, macros: dict[int, _Macro]) -> None:
        self.root = root
        self.macros = macros
        self.conditions: list[_Condition] = []
        self.limits: list[Limit] = []
        self.spans = False

    def visit(self, query: Any, column: str | int, *, is_certain: bool) -> bool:
        """Collect the conditions; return whether they limit all rows from below.

        Parameters
        ----------
        column
            The name of the column in the result, in lower case, or its position.
        is_certain
            Each row of the outermost query has the column of a row of this one.
        """
        query = query.unnest() if isinstance(query, exp.Subquery) else query
        if isinstance(query, exp.SetOperation):
            other = column if query.args.get("by_name") else _position(query, column)
            left = self.visit(query.this, column, is_certain=is_certain)
            if other is None:
                return False
            return self.visit(query.expression, other, is_certain=is_certain) and left
        own = _own(query, column) if isinstance(query, exp.Select) else None
        if own is None:
            return False
        own, is_strict = _without_casts(own)
        is_certain = is_certain and is_strict and not _has_totals(query)
        conditions = [*self._conditions(query, own)]
        if conditions:
            self.conditions += conditions
            self.limits.append(self._limit(query, own, conditions))
        below = self._inner(query, own)
        seen = len(self.conditions)
        is_below = below is not None and self.visit(below, own.name.lower(), is_certain=is_certain)
        if conditions or len(self.conditions) > seen:
            self.spans = self.spans or _spans(query, own)
        has_start = any(c.macros[0].edge == "start" for c in conditions)
        return (has_start and is_certain) or is_below

    def _conditions(self, select: exp.Select, own: Any) -> Iterator[_Condition]:
        """Yield the conditions on a column that are AND parts of WHERE."""
        where = select.args.get("where")
        todo: list[Any] = [where.this] if where else []
        while todo:
            node = todo.pop().unnest()
            if isinstance(node, exp.And):
                todo += [node.right, node.left]
            elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
                low, high = self._macro(node.args["low"]), self._macro(node.args["high"])
                if low is None or high is None or low.form != high.form:
                    continue
                is_range = (low.edge, high.edge) == ("start", "end")
                if is_range and _is_same(node.this, own, select):
                    yield _Condition("between", (low, high))
            elif isinstance(node, exp.GTE | exp.LTE | exp.LT):
                macro = self._macro(node.expression)
                edge = "start" if isinstance(node, exp.GTE) else "end"
                if macro and macro.edge == edge and _is_same(node.this, own, select):
                    yield _Condition(node.key, (macro,))

    def _macro(self, node: Any) -> _Macro | None:
        """Return the macro that a node is."""
        if not isinstance(node, exp.Column) or node.table:
            return None
        return self.macros.get(node.this.meta.get("start", -1))

    def _inner(self, select: exp.Select, own: Any) -> Any:
        """Return the query from which a column comes, if only this select reads it."""
        relation: Any = select.args["from_"].this if select.args.get("from_") else None
        joins = select.args.get("joins") or []
        is_alone = not joins and not select.args.get("laterals")
        if not isinstance(own, exp.Column) or not isinstance(relation, exp.Table | exp.Subquery):
            return None
        if own.table.lower() != relation.alias_or_name.lower() and (own.table or not is_alone):
            return None
        if any(join.side not in ("", "LEFT") or _merges(join) for join in joins):
            return None
        if {k for k, v in relation.args.items() if v} - {"this", "alias"} or _renames(relation):
            return None
        if isinstance(relation, exp.Subquery):
            return relation.this
        return self._cte(relation.name.lower())

    def _limit(self, select: exp.Select, own: Any, conditions: list[_Condition]) -> Limit:
        """Return what conditions say about a column."""
        macros = [(macro, c.operator) for c in conditions for macro in c.macros]
        ends = tuple((macro.form, operator) for macro, operator in macros if macro.edge == "end")
        relations: list[Any] = [select.args["from_"].this] if select.args.get("from_") else []
        relations += [join.this for join in select.args.get("joins") or []]
        if isinstance(own, exp.Column) and own.table:
            relations = [r for r in relations if r.alias_or_name.lower() == own.table.lower()]
        relation: Any = relations[0] if len(relations) == 1 else None
        ctes = {cte.alias.lower() for cte in self.root.find_all(exp.CTE)}
        is_table = isinstance(relation, exp.Table) and relation.name.lower() not in ctes
        table = tuple(part.name for part in relation.parts) if relation and is_table else None
        column = own.name.lower() if isinstance(own, exp.Column) else ""
        return Limit(column, table if column else None, len(ends) < len(macros), ends)

    def _cte(self, name: str) -> Any:
        """Return the query of a common table expression that is read once."""
        ctes: list[Any] = [c for c in self.root.find_all(exp.CTE) if c.alias.lower() == name]
        reads = [table for table in self.root.find_all(exp.Table) if table.name.lower() == name]
        if len(ctes) != 1 or len(reads) != 1 or _renames(ctes[0]):
            return None
        is_recursive = isinstance(ctes[0].parent, exp.With) and ctes[0].parent.recursive
        return None if is_recursive else ctes[0].this


def _own(select: exp.Select, column: str | int) -> Any:
    """Return the expression that a column of the result is; None: it is not certain."""
    if isinstance(column, int):
        items = select.selects[: column + 1]
        is_known = len(items) > column and not any(item.is_star for item in items)
        return items[column] if is_known else None
    named = [item for item in select.selects if item.output_name.lower() == column]
    stars = [item for item in select.selects if item.is_star]
    if named or len(stars) != 1:
        return named[0] if len(named) == 1 else None
    star: Any = stars[0].this if isinstance(stars[0], exp.Column) else stars[0]
    inside = {i.name.lower() for i in star.find_all(exp.Identifier)}
    if not isinstance(star, exp.Star) or column in inside:
        return None
    return exp.column(column, table=stars[0].args.get("table"))


def _position(query: exp.SetOperation, column: str | int) -> int | None:
    """Return the position of a column in the results of a UNION and the like."""
    if isinstance(column, int):
        return column
    items = query.selects
    places = [i for i, item in enumerate(items) if item.output_name.lower() == column]
    if len(places) != 1 or any(item.is_star for item in items[: places[0]]):
        return None
    return places[0]


def _without_casts(node: Any) -> tuple[Any, bool]:
    """Return a node without casts that keep the order, and whether it is NULL only if that is."""
    is_strict = True
    while isinstance(node, exp.Alias | exp.Paren | exp.Cast):
        if isinstance(node, exp.Cast):
            if not node.is_type(*_ORDERED) or node.to.expressions:
                break
            is_strict = is_strict and not isinstance(node, exp.TryCast)
        node = node.this
    return node, is_strict


def _is_same(left: Any, own: Any, select: exp.Select) -> bool:
    """Whether the left side of a condition is the column, or the expression behind it."""
    node, _ = _without_casts(left)
    if not isinstance(node, exp.Column) or not isinstance(own, exp.Column):
        return node == own and node.find(exp.Column) is not None
    if node.name.lower() != own.name.lower():
        return False
    if node.table.lower() == own.table.lower():
        return True
    is_merged = any(map(_merges, select.args.get("joins") or []))
    return not is_merged and not (node.table and own.table)


def _merges(join: Any) -> bool:
    """Whether a join makes one column of two."""
    return bool(join.args.get("using")) or join.method == "NATURAL"


def _renames(node: Any) -> bool:
    """Whether an alias renames columns."""
    alias = node.args.get("alias")
    return bool(alias and alias.args.get("columns"))


def _has_totals(select: exp.Select) -> bool:
    """Whether a result has rows in which grouped columns are NULL."""
    group = select.args.get("group")
    return group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None


def _spans(select: exp.Select, own: Any) -> bool:
    """Whether rows of other times change the rows of a time."""
    distinct = select.args.get("distinct")
    if select.args.get("limit") or select.args.get("offset") or (distinct and distinct.args["on"]):
        return True
    windows = (w for w in select.find_all(exp.Window) if w.parent_select is select)
    return any(
        not any(_is_same(part, own, select) for part in window.args.get("partition_by") or [])
        for window in windows
    )
