"""GROUP BY and OVER: aggregate calls, groups, and the rows of windows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import (
    Aggregate,
    Call,
    Out,
    Rebuild,
    Ref,
    Subquery,
    Window,
    walk,
)
from persist_assets.analysis.expressions import (
    AGGREGATE_OPS,
    PENDING,
    expression,
    refuse_drawn_twice,
)
from persist_assets.analysis.functions import AGGREGATES, TIME_WINDOWS
from persist_assets.analysis.memberships import unmarked
from persist_assets.analysis.positions import position
from persist_assets.analysis.scope import Entry, From, Unanalysable, is_certain, may_be
from persist_assets.analysis.syntax import FUNCTIONS, is_star, without_parens
from persist_assets.core.dialect import plain
from persist_assets.core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.binding import Binding
    from persist_assets.analysis.scope import Select
    from persist_assets.core.errors import Location


MAX_CUBE = 12
"""Grouping sets are analysed up to those of a CUBE of this many keys (4096)."""


def aggregates_of(expr: Expr) -> list[Call]:
    """Return the aggregate calls in an expression, outermost first, without those of windows."""
    aggregates: list[Call] = []
    stack: list[Expr] = [expr]
    seen: set[int] = set()
    while stack:
        this = stack.pop()
        if id(this) in seen:
            continue
        seen.add(id(this))
        if isinstance(this, Call) and this.op in AGGREGATE_OPS:
            aggregates.append(this)
        elif isinstance(this, Window):
            function = this.function
            stack += function.args if isinstance(function, Call) else ()
            stack += [*this.partition, *(s.by for s in this.order)]
        elif isinstance(this, Call | Subquery):
            stack += this.args
    return aggregates


def has_sets(group: exp.Group) -> bool:
    """Whether a GROUP BY has grouping sets.

    A key is then NULL in the sets that omit it, unlike another column with the same expression.
    Therefore every column of the grouped rows must be a column of one leaf (`relations.as_leaf`).
    """
    forms = (exp.Rollup, exp.Cube, exp.GroupingSets)
    named = any(group.args.get(k) for k in ("rollup", "cube", "grouping_sets"))
    return named or any(isinstance(e, forms) for e in group.expressions)


def group_rows(
    binding: Binding,
    source: From,
    group: Any,
    grouping: Grouping,
    every: list[Expr],
    node: Any,
) -> tuple[From, Rebuild]:
    """Return the grouped rows of a SELECT, and a rewriter of expressions in their terms.

    Parameters
    ----------
    group, grouping
        The GROUP BY and its keys; None and no keys: one group of all rows.
    every
        All expressions of the SELECT that are computed from groups.
    node
        The SELECT.
    """
    keys, sets = tuple(dict.fromkeys(grouping[0])), grouping[1]
    written = [c for e in every for c in aggregates_of(e)]
    calls = tuple(dict.fromkeys(written))
    _check_aggregates(calls, is_repeated=len(calls) < len(written) and binding.is_volatile(*calls))
    rows = replace(source.block(), order=source.order, place=place_of_rows(binding, node))
    # The value of grouping_id() without arguments depends on the order of the keys.
    counted = (
        binding.calls.call(c.op, keys) if c.op == "grouping_id" and not c.args else c for c in calls
    )
    place = binding.mark(group or node)
    grouped = Aggregate(rows, keys, tuple(counted), sets, place)
    whole = binding.leaf(grouped, [Out("", "", e, binding.types.of(e)) for e in (*keys, *calls)])
    group_columns = {e: o.expr for e, o in zip((*keys, *calls), whole.columns, strict=True)}
    inside = set(source.leaves)
    used = {e for e in walk(*keys) if isinstance(e, Ref)}

    def stand_in(expr: Expr) -> Expr | None:
        if expr in group_columns:
            return group_columns[expr]
        if isinstance(expr, Call) and expr.op in TIME_WINDOWS:
            raise Unanalysable("of a time window that is not grouped by")
        if isinstance(expr, Ref) and expr.instance in inside:
            if not sets and (keys or calls) and expr not in used:
                return _ungrouped(binding, expr, source, node)
            raise Unanalysable("of a column that is neither grouped nor aggregated")
        if isinstance(expr, Window) and expr.rows is not PENDING:
            if any(now in inside for _, now in expr.mapping):
                raise Unanalysable("of a column that is neither grouped nor aggregated")
            return None
        if isinstance(expr, Window) and isinstance(expr.function, Call):
            function = expr.function  # no aggregate itself, but its arguments may be
            return replace(
                expr,
                function=binding.calls.call(
                    function.op, regroup.exprs(function.args), function.words
                ),
                partition=regroup.exprs(expr.partition),
                order=regroup.sorts(expr.order),
            )
        if isinstance(expr, Subquery):
            args = regroup.exprs(expr.args)
            return Subquery(expr.kind, below.block(expr.block), args, expr.place)
        return None

    def stand_in_below(expr: Expr) -> Expr | None:
        # count(*) and constants of a subquery are its own, whatever grouping surrounds it.
        return stand_in(expr) if binding.free.of(expr) else None

    regroup = Rebuild(binding.calls, replace=stand_in)
    below = Rebuild(binding.calls, replace=stand_in_below)
    return From(source.outer, dict(whole.leaves)), regroup


def _ungrouped(binding: Binding, ref: Ref, source: From, node: Any) -> Expr:
    """Report a column that no key of a GROUP BY contains, and return what stands for it."""
    name = next((e.name for e in source.entries if e.expr == ref), None)
    outside: list[Any] = []
    if name is not None and is_certain(name):
        nodes = [c for c in node.find_all(exp.Column) if name.lower() in _words(c)]
        outside = [c for c in nodes if not _is_aggregated(c, node)]
    # In a subquery, an aggregate of an outer column is computed outside.
    outside = [c for c in outside if c.find_ancestor(exp.Select) is node]
    if name is None or not outside:
        raise Unanalysable("of a column that is neither grouped nor aggregated")
    message = f"`{name}` is neither grouped nor aggregated"
    hint = f"add it to GROUP BY, or aggregate it: any_value({name})"
    place = binding.place(outside[0])
    binding.problems.append(Problem("missing-group-by", message, place, hint))
    return binding.calls.call("missing", (), (name,))


def _words(column: Any) -> set[str]:
    """Return the parts of a name such as `t.s.field`, in lower case."""
    return {plain(part.name).lower() for part in column.parts}


def _is_aggregated(column: Any, select: Any) -> bool:
    """Whether a column stands in a call of an aggregate, as far as the text shows."""
    above = column.parent
    while above is not None and above is not select:
        if isinstance(above, exp.Filter):
            return True
        name = plain(above.name) if isinstance(above, exp.Anonymous) else FUNCTIONS.get(type(above))
        if str(name).lower() in AGGREGATES:
            return True
        above = above.parent
    return False


def _check_aggregates(calls: Iterable[Call], *, is_repeated: bool) -> None:
    """Refuse aggregates that are not followed; `is_repeated`: nondeterministic ones occur twice."""
    if is_repeated:
        raise Unanalysable("of several nondeterministic aggregates that are written alike")
    for call in calls:
        if any(aggregates_of(arg) for arg in call.args):
            raise Unanalysable("of an aggregate of an aggregate")
        if any(isinstance(e, Call) and e.op in TIME_WINDOWS for e in walk(*call.args)):
            raise Unanalysable("of an aggregate of a time window")


def place_of_rows(binding: Binding, node: exp.Select) -> Location | None:
    """Return the place of the clause that decides which rows a SELECT reads."""
    clause = node.args.get("from_") if node.args.get("joins") else node.args.get("where")
    return binding.mark(clause or node.args.get("from_") or node)


def add_time_windows(binding: Binding, group: exp.Group, select: Select) -> None:
    """Let names refer to the time windows that a SELECT groups by: ``window.start``.

    Raises
    ------
    Unanalysable
        A column has that name too.
    """
    select.groups = True
    for item in group.expressions:
        call = without_parens(item)
        name = plain(call.name).lower() if isinstance(call, exp.Anonymous) else ""
        if name in TIME_WINDOWS:
            if any(e.name.lower() == name for e in select.source.entries):
                raise Unanalysable(f"because `{name}` is both a column and a time window")
            expr = expression(binding, call, select)
            select.source.entries.append(Entry(name, name, expr, None, ()))


_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)

GroupingSet = tuple["Expr", ...]
"""The keys by which rows are grouped; the other keys are NULL."""

Grouping = tuple[tuple["Expr", ...], tuple[frozenset[int], ...] | None]
"""The keys of a GROUP BY, and the key positions of each of its grouping sets."""


def group_keys(binding: Binding, group: exp.Group, select: Select, outs: list[Out]) -> Grouping:
    """Return the keys of a GROUP BY, and the key positions of each of its grouping sets.

    Raises
    ------
    Unanalysable
        It has too many grouping sets, or some of an unknown form.
    """
    if group.args.get("all"):
        return _keys_of_all(select, outs), None
    keys, elements = _elements(binding, group, select, outs)
    sets = _combined(elements)
    keys += [key for grouping_set in sets for key in grouping_set]
    refuse_drawn_twice(binding, keys)
    unique = tuple(dict.fromkeys(keys))
    if not has_sets(group):
        return unique, None
    return unique, tuple(frozenset(map(unique.index, grouping_set)) for grouping_set in sets)


def _keys_of_all(select: Select, outs: list[Out]) -> tuple[Expr, ...]:
    """Return the keys of GROUP BY ALL: the columns without aggregates."""
    source: From | None = select.source
    names = [out.name for out in outs]
    while source is not None:
        names += (entry.name for entry in source.entries)
        source = source.outer
    if any(name.lower() == "all" or may_be(name, "all") for name in names):
        raise Unanalysable("of GROUP BY ALL beside a column of that name")
    return tuple(out.expr for out in outs if not aggregates_of(out.expr))


def _elements(
    binding: Binding, group: exp.Group, select: Select, outs: list[Out]
) -> tuple[list[Expr], list[list[GroupingSet]]]:
    """Return leading keys, and the elements of a GROUP BY, each with its alternatives."""

    def members(item: Any) -> GroupingSet:
        item = without_parens(item)
        if isinstance(item, exp.Tuple):
            return tuple(_group_key(binding, e, select, outs) for e in item.expressions)
        return (_group_key(binding, item, select, outs),)

    def alternatives(item: Any) -> list[GroupingSet]:
        if not isinstance(item, exp.GroupingSets):
            return _alternatives(item, [members(e) for e in item.expressions])
        nested = (without_parens(e) for e in item.expressions)
        each = (alternatives(e) if isinstance(e, _SETS) else [members(e)] for e in nested)
        return [grouping_set for some in each for grouping_set in some]

    first: list[Expr] = []
    elements = [
        alternatives(item) if isinstance(item, _SETS) else [members(item)]
        for item in group.expressions
    ]
    for name, form in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", None)):
        for analytics in group.args.get(name) or ():
            if form is not None and not analytics.expressions:  # GROUP BY a, b WITH ROLLUP
                elements = [alternatives(form(expressions=group.expressions))]
            elif form is None:  # GROUP BY a, b GROUPING SETS (…): grouping_id() goes by a, b
                if any(len(element) > 1 for element in elements):
                    raise Unanalysable("of several groups of grouping sets")
                first = [key for (keys,) in elements for key in keys]
                elements = [alternatives(analytics)]
            else:
                raise Unanalysable(f"of WITH {name.upper()}")
    return first, elements


def _alternatives(item: Any, members: list[GroupingSet]) -> list[GroupingSet]:
    """Return the grouping sets of a ROLLUP or CUBE; for other items, their members."""
    match item:
        case exp.Rollup():
            return [sum(members[:n], ()) for n in range(len(members), -1, -1)]
        case exp.Cube():
            if len(members) > MAX_CUBE:
                raise Unanalysable(f"of a CUBE of more than {MAX_CUBE} keys")
            picks = range(2 ** len(members) - 1, -1, -1)
            return [sum((m for j, m in enumerate(members) if pick >> j & 1), ()) for pick in picks]
        case _:
            return members


def _combined(elements: list[list[GroupingSet]]) -> list[GroupingSet]:
    """Return the grouping sets of several elements: the product of their alternatives."""
    sets: list[GroupingSet] = [()]
    for element in elements:
        sets = [(*a, *b) for a in sets for b in element]
        if len(sets) > 2**MAX_CUBE:
            raise Unanalysable(f"of more than {2**MAX_CUBE} grouping sets")
    return sets


def _group_key(binding: Binding, item: Any, select: Select, outs: list[Out]) -> Expr:
    column = position(binding, item, len(outs), "GROUP BY")
    if column is None and isinstance(item, exp.Literal) and not item.is_string:
        raise Unanalysable("of a number in GROUP BY that is no position")
    around = item.find_ancestor(exp.Select)  # None in GROUP BY … WITH ROLLUP
    if column is not None and around and any(map(is_star, around.expressions)):
        message = f"GROUP BY {item.name} counts columns, which SELECT * does not list"
        hint = "write the column, or list the columns"
        binding.problems.append(Problem("position", message, binding.place(item), hint))
        raise Unanalysable("of a position beside *")
    _refuse_unclear_alias(item, select)
    key = outs[column].expr if column is not None else expression(binding, item, select)
    if any(call.op in AGGREGATES for call in aggregates_of(key)):
        message = f"GROUP BY {item.name} is an aggregate, and groups come before aggregates"
        hint = "group by columns that are not aggregated, or write GROUP BY ALL"
        binding.problems.append(Problem("aggregate", message, binding.place(item), hint))
        raise Unanalysable("of an aggregate in GROUP BY")
    own = unmarked(key)
    return own if own in (o.expr for o in outs) else key  # an alias, or a column


def _refuse_unclear_alias(item: Any, select: Select) -> None:
    """Raise if several columns of the SELECT have a key's name: Spark groups by one of them."""
    key = without_parens(item)
    if not isinstance(key, exp.Column) or len(key.parts) > 1:
        return
    name = plain(key.name).lower()
    if any(entry.name.lower() == name for entry in select.source.entries):
        return
    if len({out.expr for out in select.outs if out.name.lower() == name}) > 1:
        raise Unanalysable(f"of several columns `{name}`, by which GROUP BY groups")


def finish_windows(binding: Binding, source: From) -> Rebuild:
    """Set the rows of every pending window to the current rows of `source`."""
    rows = replace(source.block(), order=source.order)
    mapping = tuple((i, i) for i in source.leaves)

    def finish(expr: Expr) -> Expr | None:
        if isinstance(expr, Window) and expr.rows is PENDING:
            return replace(expr, rows=rows, mapping=mapping)
        return None

    return Rebuild(binding.calls, replace=finish)
