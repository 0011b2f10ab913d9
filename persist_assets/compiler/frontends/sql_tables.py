"""Functions that return tables: what their queries and calls must be. Pure.

A call in FROM becomes a subquery. So its arguments must be constants, and no name of the function's
query may mean something of the query that calls it. Calls for which that is uncertain are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.functions import SPARKS
from persist_assets.analysis.syntax import calls_in
from persist_assets.compiler.frontends.sql_trees import MANY_COLUMNS, n_columns, tables_read
from persist_assets.core.dialect import function_named, plain, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from persist_assets.compiler.frontends.sql_functions import SqlFunction

    Refusal = tuple[str, str | None]
    """A message, and a way out."""


def wrapping(function: SqlFunction) -> tuple[str, str]:
    """Return the text before and after the text of a function where it is inlined.

    Its value, or the columns of its table by position, get the declared types and names. A value
    without a declared type is not bare: ``ORDER BY 1`` is not ``ORDER BY f()``.
    """
    if function.returns is not None:
        assert function.body is not None
        begin, end = ("", "") if function.body.is_expression else ("(", ")")
        if function.returns:
            return f"CAST({begin}", f"{end} AS {function.returns})"
        return f"coalesce({begin}", f"{end})"
    names = [quote(name) for name, _ in function.columns]
    typed = (
        f"CAST({name} AS {kind}) AS {name}" if kind else name
        for name, (_, kind) in zip(names, function.columns, strict=True)
    )
    head = f"(SELECT {', '.join(typed)} FROM ("
    return head, f") AS {quote(function.name)}({', '.join(names)}))"


def wrong_body(function: SqlFunction, names: Collection[str]) -> Refusal | None:
    """Return why the query of a function cannot be inlined, or None.

    Parameters
    ----------
    names
        The names that the query gives to columns and tables, or reads tables by, in lower case.
    """
    if not function.columns:
        hint = "write RETURNS TABLE (a INT, …), or name each column of the query"
        return f"the columns of `{function.name}` have no certain names", hint
    if function.name.lower() in names:
        return f"`{function.name}` is also a name in its own query", "rename it there"
    n = n_columns(function.body.tree) if function.body is not None else None
    declared = len(function.columns)
    plural = "s" * (declared != 1)
    if n not in (None, declared):
        return f"`{function.name}` returns {declared} column{plural}, but its query has {n}", None
    return None


def called_tables(tree: Any, functions: Mapping[str, SqlFunction]) -> list[SqlFunction]:
    """Return the functions that return tables and that a query calls."""
    called = {name for name, _ in calls_in(tree)}
    return [f for name, f in functions.items() if name in called and f.returns is None]


def has_plain_names(tree: Any, functions: Collection[str], names: Collection[str]) -> bool:
    """Whether all names of columns in a query are columns of the tables that it reads, or aliases.

    Functions that generate rows, VALUES, PIVOT and the fields of structs bring other names.

    Parameters
    ----------
    functions
        The functions in FROM whose columns are known.
    names
        The names of tables, and others, in lower case.
    """
    for node in tree.walk():
        if isinstance(node, exp.Pivot | exp.Unnest):
            return False
        if isinstance(node, exp.Lateral) and not _is_known(node, functions):
            return False
        if isinstance(node, exp.Values) and node is not tree:
            return False
        is_call = isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier)
        if is_call and node.this.name.lower() not in functions:
            return False
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            if node.parts[0].name.lower() in names:
                continue
            return False  # the fields of a struct
    return all(SPARKS.get(name) not in MANY_COLUMNS for name, _ in calls_in(tree))


def _is_known(lateral: Any, functions: Collection[str]) -> bool:
    """Whether the columns of what follows LATERAL are known."""
    is_call = not lateral.args.get("view") and plain(lateral.this.name).lower() in functions
    return is_call or isinstance(lateral.this, exp.Subquery)


def names_of_tables(tree: Any) -> frozenset[str]:
    """Return the names without a qualifier by which a query reads tables, in lower case."""
    return frozenset(t.name.lower() for t in tables_read(tree) if len(t.parts) == 1)


def common_tables(tree: Any) -> frozenset[str]:
    """Return the names of all common table expressions in a query, in lower case."""
    return frozenset(c.alias.lower() for c in tree.find_all(exp.CTE))


def wrong_call(function: SqlFunction, call: Any, after: str) -> Refusal | None:
    """Return why a call cannot be inlined at its place, or None.

    Parameters
    ----------
    call
        Its node: what is in FROM.
    after
        The token behind it, in upper case.
    """
    name = function.name
    if isinstance(call.parent, exp.Lateral) and call.parent.args.get("view"):
        return f"`{name}` returns a table", f"use LATERAL {name}(…) in FROM"
    if after == "TABLESAMPLE":
        return (
            f"rows of `{name}` cannot be sampled here",
            f"(SELECT * FROM {name}(…)) TABLESAMPLE …",
        )
    return None


def stands_alone(call: Any) -> bool:
    """Whether a call in FROM, and its arguments, cannot read columns of queries around it."""
    node, above = call.parent, call.parent.parent
    if isinstance(node, exp.Lateral):
        return False
    while above is not None:
        is_part = isinstance(above, exp.Select | exp.Join)
        is_value = is_part and node.arg_key in ("expressions", "on")
        if is_value or not isinstance(above, _RELATIONS):
            return False
        node, above = above, above.parent
    return True


_RELATIONS = (
    *(exp.From, exp.Join, exp.Table, exp.Subquery, exp.Paren),
    *(exp.Select, exp.SetOperation, exp.CTE, exp.With, exp.Create),
)
"""Nodes above a table that are not part of an expression."""


def wrong_argument(
    function: SqlFunction, argument: Any, is_replaced: Callable[[Any], bool]
) -> tuple[Any, Refusal] | None:
    """Return the part of an argument that is not constant, and a hint; None if it is constant.

    Parameters
    ----------
    is_replaced
        Whether a name is replaced by a constant: a variable, or a parameter of another function.
    """
    for node in argument.walk():
        if isinstance(node, exp.Query | exp.Subquery):
            hint = "a table function takes constants: join its rows, or write a view"
            return node, (f"an argument of `{function.name}` is a query", hint)
        if not isinstance(node, exp.Column) or is_replaced(node):
            continue
        name = function_named(node)
        if name is not None:
            return node, (f"`{name}` could be a column here", f"write {name}()")
        message = f"an argument of `{function.name}` reads the column `{node.sql('spark')}`"
        hint = "a table function takes constants: join its rows, or write a view"
        return node, (message, hint)
    return None
