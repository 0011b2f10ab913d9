"""Roles of names in a tree of SQL: columns, fields, units. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.functions import TIME_WINDOWS, UNIT_FIRST
from persist_assets.core.dialect import is_path, plain, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_NAMED_BY_ARGUMENTS = frozenset(("struct", "arrays_zip"))
"""Functions that name fields of their result as their arguments."""
_NAMELESS_ROWS = (
    *(exp.Group, exp.GroupingSets, exp.Cube, exp.Rollup, exp.Values, exp.In, exp.Tuple),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
)
"""What rows are part of whose fields need no names."""
_KEYS = re.compile(r"\.(\w+)|\['([^']*)'\]")
"""Matches the keys in a path."""
COMPLEX = {
    "aggregate": "aggregates",
    "generator": "generates rows",
    "table": "generates rows",
    "window": "has a window",
}
"""By kind of function, what it does that no function in SQL can do."""


def aliases(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the names that a query gives to columns and tables."""
    for node in nodes:
        if isinstance(node, exp.Alias | exp.PivotAlias):
            yield node.alias.lower()
        elif isinstance(node, exp.TableAlias):
            yield from (n.name.lower() for n in (node.this, *node.columns) if n is not None)
        elif isinstance(node, exp.Aliases):
            yield from (e.name.lower() for e in node.expressions)
        elif isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            yield node.name.lower()


def implicit_names(nodes: Iterable[Any]) -> Iterator[str]:
    """Yield the names that columns may have without an alias.

    They are the names of fields, of keys in paths into variants, and of time windows.
    """
    for node in nodes:
        if is_path(node):
            yield from (
                key.lower() for keys in _KEYS.findall(node.expressions[-1].name) for key in keys
            )
        if isinstance(node, exp.Dot):
            yield node.name.lower()
        elif isinstance(node, exp.Column):
            parts = [plain(part.name).lower() for part in node.parts]
            if len(parts) > 1 and parts[0] not in ("session", "system"):
                yield parts[-1]
        elif isinstance(node, exp.Anonymous) and plain(node.name).lower() in TIME_WINDOWS:
            yield plain(node.name).lower()


def is_repeated(node: Any) -> bool:
    """Whether Spark may evaluate what stands in place of a name several times for a row."""
    below, above = node, node.parent
    while above is not None:
        called = plain(above.name).lower() if isinstance(above, exp.Anonymous) else ""
        is_compared = isinstance(above, exp.Case) and below.arg_key == "this"  # CASE x WHEN …
        is_decoded = called == "decode" and len(above.expressions) > 2 and below.index == 0
        if isinstance(above, exp.Lambda) or is_compared or is_decoded:
            return True
        below, above = above, above.parent
    return False


def is_unit(node: Any) -> bool:
    """Whether a name is a unit of time: ``dateadd(day, 1, d)``, but not ``date_add(day, 1)``."""
    call = node.parent
    is_call = isinstance(call, exp.Anonymous) and plain(call.name).lower() in UNIT_FIRST
    return is_call and len(call.expressions) == 3 and call.expressions[0] is node


def takes_names(node: Any) -> bool:
    """Whether a call or a row around a value names a field of its result as the value."""
    call = _around(node)
    if isinstance(call, exp.PropertyEQ):  # the parser has put the name there
        own = [p.meta.get("start") for p in getattr(node, "parts", ())]
        return call.this.meta.get("start") in (None, *own)
    name = plain(call.name).lower() if isinstance(call, exp.Anonymous) else ""
    is_row = isinstance(call, exp.Tuple) and not isinstance(call.parent, _NAMELESS_ROWS)
    return name in _NAMED_BY_ARGUMENTS or isinstance(call, exp.Struct) or is_row


def _around(node: Any) -> Any:
    """Return what a value is a part of, without the parentheses around it."""
    while isinstance(node.parent, exp.Paren):
        node = node.parent
    return node.parent


def field_name(node: Any) -> str:
    """Return `` AS `x` `` if ``struct`` names a field as a value; otherwise nothing."""
    is_named = isinstance(node.parent, exp.PropertyEQ) and takes_names(node)
    return f" AS {quote(node.parts[-1].name)}" if is_named else ""


def own_name(node: Any) -> str:
    """Return `` AS `x` `` if a name is a whole column, which it names in Spark; otherwise nothing.

    Parameters
    ----------
    node
        The name, or None.
    """
    if node is None or not isinstance(node.parent, exp.Select) or node.arg_key != "expressions":
        return ""
    return f" AS {quote(node.parts[-1].name)}"


def names_column(node: Any, *, outermost: bool = True, is_named: bool = False) -> bool:
    """Whether a column of a query has its name from an expression around a call.

    Parameters
    ----------
    outermost
        The columns of the outermost query have names, too.
    is_named
        A list before that query names its columns: ``CREATE VIEW v (a, b) AS …``. Then only its
        ORDER BY, HAVING and the like can use the names of its expressions.
    """
    below, above = node, node.parent
    while above is not None and not isinstance(above, exp.Select):
        below, above = above, above.parent
    if above is None or below.arg_key != "expressions" or isinstance(below, exp.Alias):
        return False
    if isinstance(below, exp.Aliases | exp.PivotAlias):
        return False
    query, uses_names = above, _uses_names(above)
    while isinstance(query.parent, exp.SetOperation | exp.Subquery | exp.Paren):
        query = query.parent
        uses_names |= _uses_names(query)
    in_from = isinstance(query.parent, exp.From | exp.Join | exp.Lateral | exp.CTE | exp.Table)
    return in_from or (outermost and query.parent is None and (uses_names or not is_named))


def _uses_names(query: Any) -> bool:
    """Whether clauses of a query prefer the names of its columns to those of its tables."""
    clauses = (query.args.get(k) for k in ("order", "sort", "cluster", "distribute", "having"))
    return any(clause.find(exp.Column) for clause in clauses if clause)
