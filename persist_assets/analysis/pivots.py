"""Binding of PIVOT and UNPIVOT. Pure.

PIVOT groups rows by the other columns, and has a column for each value. What that has where a group
has no row of the value is Spark's affair (NULL, or 0 for some aggregates). So it is a function of
the group's rows with a name of its own. UNPIVOT generates a row for each of some columns.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import Aggregate, Call, Generate, Out, Ref, walk
from persist_assets.analysis.expressions import expression
from persist_assets.analysis.functions import AGGREGATES, ORDER_SENSITIVE
from persist_assets.analysis.scope import Select, Unanalysable
from persist_assets.analysis.syntax import given_args, without_parens
from persist_assets.core.dialect import plain, suffixed

if TYPE_CHECKING:
    from persist_assets.analysis.algebra import Block, Expr
    from persist_assets.analysis.binding import Binding
    from persist_assets.analysis.scope import Around, From

_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]*")
PIVOT = "sqlglot.pivot"
UNPIVOT = "sqlglot.unpivot"
_ARGS = frozenset(
    "expressions fields alias columns pivot_column_naming unpivot include_nulls".split()
)


def pivoted(binding: Binding, source: From, node: Any, around: Around) -> Block:
    """Return the rows of a PIVOT or UNPIVOT.

    Parameters
    ----------
    source
        The rows before it, with each entry a column of its own.
    """
    unknown = set(given_args(node)) - _ARGS
    if unknown or len(node.args["fields"]) != 1 or not isinstance(node.args["fields"][0], exp.In):
        raise Unanalysable("of PIVOT of an unknown form")
    (field,) = node.args["fields"]
    if node.args.get("unpivot"):
        return _unpivoted(binding, source, node, field, around)
    if not isinstance(field.this, exp.Column):
        raise Unanalysable("of PIVOT of several columns")
    select = Select(source, ctes=around.ctes)
    by = expression(binding, field.this, select)
    calls = [_aggregate(binding, item, select) for item in node.expressions]
    names = [item.alias if isinstance(item, exp.Alias) else None for item in node.expressions]
    used = {e for e in walk(by, *(call for call in calls)) if isinstance(e, Ref)}
    keys = [e for e in source.entries if e.expr not in used]
    outs = [Out(e.name, e.written, e.expr, e.type) for e in keys]
    columns: list[Expr] = []
    for value in field.expressions:
        shown, literal = _value(binding, value, select)
        for name, call in zip(names, calls, strict=True):
            if len(calls) > 1 and name is None:
                raise Unanalysable("of PIVOT with several aggregates without names")
            title = shown if len(calls) == 1 else f"{shown}_{plain(str(name))}"
            columns.append(binding.calls.call(PIVOT, (call, by, literal)))
            outs.append(Out(title, title, columns[-1]))
    rows = replace(source.block(), order=source.order)
    key_exprs = tuple(e.expr for e in keys)
    grouped = Aggregate(rows, key_exprs, tuple(columns), place=binding.mark(node))
    return binding.leaf(grouped, outs)


def _unpivoted(binding: Binding, source: From, node: Any, field: exp.In, around: Around) -> Block:
    values = node.expressions
    if len(values) != 1 or not all(isinstance(n, exp.Identifier) for n in (values[0], field.this)):
        raise Unanalysable("of UNPIVOT of several columns at once")
    select, names = Select(source, ctes=around.ctes), {e.expr: e.name for e in source.entries}
    args: list[Expr] = []
    for item in field.expressions:
        column = item.this if isinstance(item, exp.PivotAlias) else item
        expr = expression(binding, column, select)
        if not isinstance(column, exp.Column) or expr not in names:
            raise Unanalysable("of UNPIVOT of something other than columns")
        shown = f" AS {plain(item.alias)}" if isinstance(item, exp.PivotAlias) else ""
        # Spark shows the name of the column, in the case of the query or of the table.
        text = f"{plain(column.name)} {names[expr]}{shown}"
        args += (binding.calls.call("string", (), (text,)), expr)
    kinds = {binding.types.of(e) for e in args[1::2]}
    kind = kinds.pop() if len(kinds) == 1 else None
    call = binding.calls.call(UNPIVOT, args)
    titles = [(plain(field.this.name), "string"), (plain(values[0].name), kind)]
    outs = [Out(n, n, call, t) for n, t in titles]
    generated = binding.leaf(Generate(call, False, ("string", kind), binding.mark(node)), outs)
    rows = source.block([Out(e.name, e.written, e.expr, e.type) for e in source.entries])
    shown_columns = [o for o in rows.columns if o.expr not in args]
    is_null = binding.calls.call("is null", (generated.columns[1].expr,))
    tests = () if node.args.get("include_nulls") else (binding.calls.call("not", (is_null,)),)
    return replace(
        rows,
        leaves=(*rows.leaves, *generated.leaves),
        conjuncts=(*rows.conjuncts, *tests),
        columns=(*shown_columns, *generated.columns),
    )


def _aggregate(binding: Binding, item: Any, select: Select) -> Call:
    call = expression(binding, item.this if isinstance(item, exp.Alias) else item, select)
    if not isinstance(call, Call) or call.op not in AGGREGATES or call.op in ORDER_SENSITIVE:
        raise Unanalysable("of PIVOT with something other than aggregates of any order")
    return call


def _value(binding: Binding, node: Any, select: Select) -> tuple[str, Expr]:
    """Return the name and the expression of a value of PIVOT."""
    alias = node.alias if isinstance(node, exp.PivotAlias | exp.Alias) else ""
    literal = without_parens(node.this if alias else node)
    if not isinstance(literal, exp.Literal):
        raise Unanalysable("of PIVOT with values that are no literals")
    is_text = literal.is_string and suffixed(literal.this) is None
    if not alias and not is_text and not _PLAIN_NUMBER.fullmatch(literal.this):
        raise Unanalysable("of PIVOT with a value whose name is uncertain")
    return plain(alias) if alias else literal.this, expression(binding, literal, select)
