"""PIVOT and UNPIVOT as other syntax that has rules: FILTER of aggregates, and stack. Pure.

Where a group has no row with a value, PIVOT gives NULL: it groups by the values first. So a count
becomes a sum of ones, which is NULL for no rows. If an aggregate has a type that cannot be
collected by group (a text, a time), Spark filters the rows of all aggregates instead, and a count
of no rows is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Calls,
    Derived,
    Expr,
    Generate,
    Rebuild,
    Ref,
    walk,
)
from persist_assets.analysis.pivots import PIVOT, UNPIVOT
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.analysis.algebra import Node
    from persist_assets.analysis.types import Types

_INTEGERS = frozenset(("tinyint", "smallint", "int", "bigint"))
_COLLECTED = frozenset((*_INTEGERS, "float", "double", "boolean"))
_EXACT = frozenset(("string", "date", "boolean"))


def without_pivots(block: Block, types: Types) -> Block:
    """Return the Block with FILTER and stack instead of PIVOT and UNPIVOT.

    Raises
    ------
    NoRule
        A result cannot be written in this way.
    """
    calls, replaced = Calls(), dict[int, Expr]()
    leaves = {i: n for b in walk(block) if isinstance(b, Block) for i, n in b.leaves}
    for node in walk(block):
        if not isinstance(node, Aggregate | Generate):
            continue
        try:
            if isinstance(node, Aggregate):
                pairs = _filtered(node, calls, types)
            elif node.call.op == UNPIVOT:
                pairs = [(node.call, _stacked(node, leaves, calls))]
            else:
                continue
        except NoRule as error:
            raise NoRule(error.reason, node.place, node) from None
        for before, after in pairs:
            if replaced.setdefault(id(before), after) != after:
                raise NoRule("of PIVOT of the same rows in two ways", node.place, node)
    if not replaced:
        return block
    return Rebuild(calls, replace=lambda e: replaced.get(id(e))).block(block)


def _filtered(node: Aggregate, calls: Calls, types: Types) -> list[tuple[Expr, Expr]]:
    """Return the columns of PIVOT, each with its aggregate."""
    pivots = [a for a in node.aggregates if isinstance(a, Call) and a.op == PIVOT]
    by_group = all(_is_collected(p.args[0], types) for p in pivots)
    return [(p, _aggregate(p, calls, types, by_group=by_group)) for p in pivots]


def _is_collected(aggregate: Expr, types: Types) -> bool:
    """Whether the results of an aggregate can be collected by group: numbers and booleans."""
    assert isinstance(aggregate, Call)
    if aggregate.op == "count":
        return True
    kind = types.of(aggregate.args[0]) if aggregate.args else None
    if kind is None:
        raise NoRule("of PIVOT with aggregates of unknown type")
    is_sum_of_texts = kind == "string" and aggregate.op in ("sum", "avg")
    return kind in _COLLECTED or kind.startswith("decimal(") or is_sum_of_texts


def _aggregate(pivot: Call, calls: Calls, types: Types, *, by_group: bool) -> Call:
    call, by, value = pivot.args
    assert isinstance(call, Call)
    kinds = {types.of(by), types.of(value)}
    if not (len(kinds) == 1 and kinds <= _EXACT) and not kinds <= _INTEGERS:
        raise NoRule("of PIVOT by values of another type")
    words = () if by_group else ("distinct",)
    if call.op not in ("avg", "count", "max", "min", "sum") or not {*call.words} <= {*words}:
        raise NoRule(f"of {call.op}() in PIVOT")
    op, args = call.op, call.args
    if op == "count" and by_group:
        one, zero = (calls.call("number", (), (n,)) for n in "10")
        present = [calls.call("not", (calls.call("is null", (a,)),)) for a in args]
        op = "sum"
        if present:
            test = present[0] if len(present) == 1 else calls.call("and", present)
            args = (calls.call("case", (test, one, zero), ("else",)),)
        else:
            args = (one,)
    return calls.call(op, (*args, calls.call("=", (by, value))), (*call.words, "filter"))


def _stacked(node: Generate, leaves: Mapping[int, Node], calls: Calls) -> Call:
    """Return the call of stack that generates the rows of an UNPIVOT."""
    for ref in (a for a in node.call.args if isinstance(a, Ref)):
        rows = leaves.get(ref.instance)
        # A subquery that computes would be part of its reader when the printed text is bound.
        if isinstance(rows, Derived) and not isinstance(rows.block.columns[ref.column].expr, Ref):
            raise NoRule("of UNPIVOT of computed columns")
    width = int(node.call.words[0]) if node.call.words else 1
    if None in node.types:
        raise NoRule("of UNPIVOT of columns with other types")
    args: list[Expr] = []
    for at in range(0, len(node.call.args), width + 1):
        title, *columns = node.call.args[at : at + width + 1]
        assert isinstance(title, Call)
        args += (calls.call("string", (), (_name(title.words[0], width),)), *columns)
    n_rows = calls.call("number", (), (str(len(args) // (width + 1)),))
    return calls.call("stack", (n_rows, *args))


def _name(title: str, width: int) -> str:
    """Return the name that Spark shows for columns, from the text of `pivots._unpivoted`."""
    columns, _, alias = title.partition(" AS ")
    names = columns.split(" ")
    if len(names) != 2 * width:
        raise NoRule("of UNPIVOT of columns with blanks in their names")
    return alias or "_".join(names[::2])
