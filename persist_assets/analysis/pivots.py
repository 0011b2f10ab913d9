"""Binding of PIVOT and UNPIVOT. Pure.

PIVOT groups rows by the other columns, and has a column for each value. If a group has no row with
the value, Spark decides the result (NULL, or 0 for some aggregates). So the column is a function of
the group's rows with its own name. UNPIVOT generates a row for each of some columns.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import Aggregate, Call, Generate, Out, Ref, Subquery, walk
from persist_assets.analysis.expressions import expression
from persist_assets.analysis.functions import AGGREGATES, ORDER_SENSITIVE
from persist_assets.analysis.scope import NO_WORD, UNKNOWN, Select, Unanalysable, is_certain
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
    several = isinstance(field.this, exp.Tuple)
    if not all(
        isinstance(c, exp.Column) for c in (field.this.expressions if several else [field.this])
    ):
        raise Unanalysable("of PIVOT of something other than columns")
    select = Select(source, ctes=around.ctes)
    by = expression(binding, field.this, select)
    calls = [_aggregate(binding, item, select) for item in node.expressions]
    names = [item.alias if isinstance(item, exp.Alias) else None for item in node.expressions]
    used = {e for e in walk(by, *(call for call in calls)) if isinstance(e, Ref)}
    keys = [e for e in source.entries if e.expr not in used]
    outs = [Out(e.name, e.written, e.expr, e.type) for e in keys]
    columns: list[Expr] = []
    values = [_value(binding, value, select) for value in field.expressions]
    if len({literal for _, literal in values}) < len(values):
        raise Unanalysable("of PIVOT with equal values")
    for shown, literal in values:
        for name, call in zip(names, calls, strict=True):
            title = shown if len(calls) == 1 else _title(shown, name)
            columns.append(binding.calls.call(PIVOT, (call, by, literal)))
            outs.append(Out(title, title, columns[-1]))
    rows = replace(source.block(), order=source.order)
    key_exprs = tuple(e.expr for e in keys)
    grouped = Aggregate(rows, key_exprs, tuple(columns), place=binding.mark(node))
    return binding.leaf(grouped, outs)


def _title(value: str, aggregate: str | None) -> str:
    """Return the name of a column where there are several aggregates."""
    if aggregate is None:
        return NO_WORD  # x_sum(a)
    return f"{value}_{plain(aggregate)}" if is_certain(value) else value


def _unpivoted(binding: Binding, source: From, node: Any, field: exp.In, around: Around) -> Block:
    if len(node.expressions) != 1 or not isinstance(field.this, exp.Identifier):
        raise Unanalysable("of UNPIVOT of an unknown form")
    values = _listed(node.expressions[0])
    if not all(isinstance(value, exp.Identifier) for value in values):
        raise Unanalysable("of UNPIVOT of an unknown form")
    select, names = Select(source, ctes=around.ctes), {e.expr: e.name for e in source.entries}
    args: list[Expr] = []
    columns: list[list[Expr]] = [[] for _ in values]
    for item in field.expressions:
        written = _listed(item.this if isinstance(item, exp.PivotAlias) else item)
        exprs = [expression(binding, column, select) for column in written]
        are_columns = all(isinstance(column, exp.Column) for column in written)
        if len(written) != len(values) or not are_columns or not names.keys() >= {*exprs}:
            raise Unanalysable("of UNPIVOT of something other than columns")
        for some, expr in zip(columns, exprs, strict=True):
            some.append(expr)
        shown = f" AS {plain(item.alias)}" if isinstance(item, exp.PivotAlias) else ""
        # Spark shows the name of the column, in the case of the query or of the table.
        texts = [f"{plain(c.name)} {names[e]}" for c, e in zip(written, exprs, strict=True)]
        args += (binding.calls.call("string", (), (" ".join(texts) + shown,)), *exprs)
    kinds = [{binding.types.of(e) for e in some} for some in columns]
    types = [kind.pop() if len(kind) == 1 else None for kind in kinds]
    call = binding.calls.call(UNPIVOT, args, (str(len(values)),) if len(values) > 1 else ())
    titles: list[tuple[str, str | None]] = [(plain(field.this.name), "string")]
    titles += [(plain(v.name), kind) for v, kind in zip(values, types, strict=True)]
    outs = [Out(n, n, call, t) for n, t in titles]
    generated = binding.leaf(Generate(call, False, ("string", *types), binding.mark(node)), outs)
    rows = source.block([Out(e.name, e.written, e.expr, e.type) for e in source.entries])
    shown_columns = [o for o in rows.columns if o.expr not in args]
    tests = () if node.args.get("include_nulls") else (_some_value(binding, generated),)
    return replace(
        rows,
        leaves=(*rows.leaves, *generated.leaves),
        conjuncts=(*rows.conjuncts, *tests),
        columns=(*shown_columns, *generated.columns),
    )


def _listed(node: Any) -> list[Any]:
    return node.expressions if isinstance(node, exp.Tuple) else [without_parens(node)]


def _some_value(binding: Binding, generated: Block) -> Expr:
    """Return the condition that a row of UNPIVOT has a value."""
    call = binding.calls.call
    tests = [call("is null", (column.expr,)) for column in generated.columns[1:]]
    return call("not", (tests[0] if len(tests) == 1 else call("and", tests),))


def _aggregate(binding: Binding, item: Any, select: Select) -> Call:
    call = expression(binding, item.this if isinstance(item, exp.Alias) else item, select)
    if not isinstance(call, Call) or call.op not in AGGREGATES or call.op in ORDER_SENSITIVE:
        raise Unanalysable("of PIVOT with something other than aggregates of any order")
    return call


def _value(binding: Binding, node: Any, select: Select) -> tuple[str, Expr]:
    """Return the name and the expression of a value of PIVOT."""
    alias = node.alias if isinstance(node, exp.PivotAlias | exp.Alias) else ""
    literal = without_parens(node.this if alias else node)
    value = expression(binding, literal, select)
    if alias:
        shown = plain(alias)
    elif isinstance(literal, exp.Literal):
        is_text = literal.is_string and suffixed(literal.this) is None
        shown = literal.this if is_text or _PLAIN_NUMBER.fullmatch(literal.this) else UNKNOWN
    else:
        shown = NO_WORD if isinstance(literal, exp.Tuple) else UNKNOWN  # {1, x}
    if any(isinstance(part, Ref | Subquery) for part in walk(value)):
        raise Unanalysable("of PIVOT with values that are not constant")
    return shown, value
