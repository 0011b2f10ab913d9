"""Binding of parsed queries: sqlglot's tree → relational algebra, with Spark's name resolution.

`bind` turns sqlglot's tree into a `Block`. It has three outcomes: a Block; problems (a column that
certainly does not exist, with its place); or `Unanalysable`, where Spark knows something that we do
not, and the query is treated as a whole (its wording is digested). Nothing is guessed.

This module binds whole queries: WITH, SELECT, set operations, VALUES, ORDER BY and LIMIT. Their
components are bound in `relations.py`, `expressions.py` and `grouping.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Limit,
    Out,
    Rebuild,
    SetOperation,
    Values,
    conjuncts,
)
from persist_assets.analysis.expressions import expression, folded, sort_keys
from persist_assets.analysis.functions import GENERATORS
from persist_assets.analysis.grouping import (
    add_time_windows,
    aggregates_of,
    finish_windows,
    group_keys,
    group_rows,
    has_sets,
    place_of_rows,
)
from persist_assets.analysis.memberships import unmarked
from persist_assets.analysis.names import expand_star, output_name, qualifiers_of, renamed
from persist_assets.analysis.recursion import with_ctes
from persist_assets.analysis.relations import as_leaf, from_item, generate, join, lateral
from persist_assets.analysis.scope import Around, Entry, From, Select, Unanalysable
from persist_assets.analysis.syntax import (
    alias_of,
    given_args,
    is_star,
    shows_all,
    windows_of,
    without_parens,
    word_for,
)
from persist_assets.core.dialect import is_marked, plain
from persist_assets.core.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.analysis.algebra import Expr, Sort
    from persist_assets.analysis.binding import Binding


_SELECT_ARGS = frozenset(
    """
    with_ expressions from_ joins laterals where group having windows qualify distinct order limit
    offset sort cluster distribute hint kind operation_modifiers
    """.split()
)
"""Parts of a SELECT that can be analysed."""

MAX_BRANCHES = 1000
"""Nested unions are merged into one union of at most so many branches."""

_SUBQUERY_ARGS = frozenset(("this", "with_", "order", "limit", "offset", "alias"))


def bind_source(binding: Binding, tree: Any) -> Block:
    """Return the meaning of the query of a source.

    Raises
    ------
    Unanalysable
        The meaning of the query is not known.
    """
    block = bind(binding, tree, Around())
    if not binding.computes_in:
        return block
    if not binding.any_condition and binding.memberships.depend_on_plan(block):
        raise Unanalysable("of a column computed by IN that is not used as a condition")

    def without_mark(expr: Expr) -> Expr | None:
        own = unmarked(expr)
        return None if own is expr else rebuild.expr(own)

    rebuild = Rebuild(binding.calls, replace=without_mark)
    return binding.with_origins(rebuild, rebuild.block(block))


def bind(binding: Binding, node: Any, around: Around) -> Block:
    """Return the meaning of a query of any form within a source.

    Parameters
    ----------
    binding
        The binding of the source that the query is or belongs to; it collects types, origins and
        problems.
    node
        The query's tree.
    around
        The surroundings that the query sees in its text.

    Raises
    ------
    Unanalysable
        The meaning of the query is not known.
    """
    binding.enter(node)
    chain: list[tuple[Any, Around]] = []  # a UNION b UNION c is a chain, not nested
    while True:
        if node.args.get("with_"):
            around = with_ctes(node.args["with_"], around)
        if not isinstance(node, exp.SetOperation):
            break
        if node.args.get("by_name"):
            raise Unanalysable("of UNION BY NAME")
        chain.append((node, around))
        node = node.this
    block = _bind_one(binding, node, around)
    for operation, operation_around in reversed(chain):
        block = _set_operation(binding, operation, block, operation_around)
    binding.depth -= 1
    return block


def _bind_one(binding: Binding, node: Any, around: Around) -> Block:
    match node:
        case exp.Select():
            return _select(binding, node, around)
        case exp.Values():
            return _values(binding, node, around)
        case exp.Subquery() if isinstance(node.this, exp.Query | exp.Values):
            if not set(given_args(node)) - _SUBQUERY_ARGS:
                block = bind(binding, node.this, around)
                return _ordered(binding, node, block, around)
        case _:
            pass
    raise Unanalysable(f"of {word_for(node)}")


def _set_operation(binding: Binding, node: Any, left: Block, around: Around) -> Block:
    kinds = {exp.Union: "union all", exp.Except: "except", exp.Intersect: "intersect"}
    right = bind(binding, node.expression, around)
    if len(left.columns) != len(right.columns):
        n, m = len(left.columns), len(right.columns)
        message = f"the branches of a set operation have {n} and {m} columns"
        binding.problems.append(Problem("set-operation", message, binding.place(node.expression)))
        raise Unanalysable("of a set operation of unequal branches")
    kind, distinct = kinds[type(node)], bool(node.args.get("distinct"))
    if kind != "union all" and not distinct:
        kind += " all"
    columns = [
        replace(a, type=a.type if a.type == b.type else None)
        for a, b in zip(left.columns, right.columns, strict=True)
    ]
    branches = left, right
    # The type of a column of several types depends on which branches are combined first.
    if all(column.type is not None for column in columns):
        flat = (*_union_branches(binding, left, kind), *_union_branches(binding, right, kind))
        branches = branches if len(flat) > MAX_BRANCHES else flat
    place = binding.mark(node.expression)
    block = binding.leaf(SetOperation(kind, branches, place), columns)
    if kind == "union all" and distinct:
        block = _distinct(binding, block, node.expression)
    return _ordered(binding, node, block, around)


def _union_branches(binding: Binding, block: Block, kind: str) -> tuple[Block, ...]:
    """Return the branches of a nested union, or the block itself as the one branch."""
    if kind != "union all" or block.conjuncts or block.order or len(block.leaves) != 1:
        return (block,)
    instance, node = block.leaves[0]
    if not isinstance(node, SetOperation) or node.kind != kind:
        return (block,)
    untouched = [binding.calls.ref(instance, i) for i in range(len(node.branches[0].columns))]
    return node.branches if [o.expr for o in block.columns] == untouched else (block,)


def _distinct(binding: Binding, block: Block, node: Any) -> Block:
    keys = {out.expr: out for out in block.columns}
    rows = replace(block, columns=(), order=())
    grouped = Aggregate(rows, tuple(keys), (), place=binding.mark(node))
    whole = binding.leaf(grouped, keys.values())
    out_by_key = dict(zip(keys, whole.columns, strict=True))
    return replace(whole, columns=tuple(o.of(out_by_key[o.expr].expr) for o in block.columns))


def _ordered(
    binding: Binding,
    node: Any,
    block: Block,
    around: Around,
    qualifiers: Sequence[tuple[str, ...]] | None = None,
) -> Block:
    """Apply ORDER BY, OFFSET and LIMIT of a whole query.

    Parameters
    ----------
    qualifiers
        The qualifiers that may precede the name of each column; none by default.
    """
    order = node.args.get("order")
    if order:
        before = qualifiers or [()] * len(block.columns)
        entries = [
            Entry(o.name, o.written, o.expr, o.type, q)
            for o, q in zip(block.columns, before, strict=True)
        ]
        select = Select(From(around.outer, entries=entries), ctes=around.ctes)
        block = replace(
            block, order=sort_keys(binding, order, select, [o.expr for o in block.columns])
        )
    return _limited(binding, node, block, around)


def _limited(binding: Binding, node: Any, block: Block, around: Around) -> Block:
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if limit is not None and not isinstance(limit, exp.Limit):
        raise Unanalysable("of FETCH")
    n = limit.expression if limit else None
    if isinstance(n, exp.Var) and n.name.upper() == "ALL":
        n = None
    if n is None and offset is None:
        return block
    select = Select(From(around.outer), ctes=around.ctes)
    how_many = expression(binding, n, select) if n is not None else None
    skipped = expression(binding, offset.expression, select) if offset is not None else None
    ordered = node.args.get("order") is not None
    place = binding.mark(limit or offset)
    return binding.leaf(Limit(block, how_many, skipped, ordered, place), block.columns)


_VALUES_ARGS = frozenset(("expressions", "alias", "joins", "sample", "order", "limit", "offset"))


def _values(binding: Binding, node: exp.Values, around: Around) -> Block:
    unknown = set(given_args(node)) - _VALUES_ARGS - {"with_"}
    if unknown:
        raise Unanalysable(f"of {min(unknown).strip('_').upper()} after VALUES")
    select = Select(From(around.outer), ctes=around.ctes)
    rows = tuple(
        tuple(
            expression(binding, v.this if isinstance(v, exp.Alias) else v, select)
            for v in (row.expressions if isinstance(row, exp.Tuple) else [row])
        )
        for row in node.expressions
    )
    if len({len(row) for row in rows}) != 1:
        raise Unanalysable("of VALUES rows of unequal length")
    types = [{binding.types.of(v) for v in column} for column in zip(*rows, strict=True)]
    columns = [
        Out(f"col{i}", f"col{i}", rows[0][i - 1], kinds.pop() if len(kinds) == 1 else None)
        for i, kinds in enumerate(types, 1)
    ]
    _, names = alias_of(node)
    block = binding.leaf(Values(rows), renamed(columns, names) if names else columns)
    return _ordered(binding, node, block, around)


def _select(binding: Binding, node: exp.Select, around: Around) -> Block:
    unknown = set(given_args(node)) - _SELECT_ARGS
    if unknown or node.args.get("kind") or node.args.get("operation_modifiers"):
        raise Unanalysable(f"of {sorted(unknown or {'SELECT AS'})[0].strip('_').upper()}")
    source = _sources(binding, node, around)
    select = Select(source, windows=windows_of(node), ctes=around.ctes)
    if node.args.get("where"):
        source.conjuncts += conjuncts(expression(binding, node.args["where"].this, select))
    group, having = node.args.get("group"), node.args.get("having")
    if group and has_sets(group):
        source = select.source = as_leaf(binding, source)
    elif group:
        n_columns = len(source.entries)
        add_time_windows(binding, group, select)
        if len(source.entries) > n_columns and any(map(shows_all, node.find_all(exp.Star))):
            raise Unanalysable("of * with a time window")
    outs, qualifiers = _projections(binding, node, select)
    qualify = node.args.get("qualify")
    naming = replace(select, outs_first=True, refuses_doubt=True)
    grouping = group_keys(binding, group, select, outs) if group else ((), None)
    in_having = replace(naming, keys=grouping[0])
    having_filter = expression(binding, having.this, in_having) if having else None
    qualify_filter = expression(binding, qualify.this, naming) if qualify else None
    ordering = replace(select, outs_first=True, sorts=True)
    order = _sorted_by_parts(binding, node, ordering)
    if node.args.get("order") and not node.args.get("distinct"):
        order = sort_keys(binding, node.args["order"], ordering, [o.expr for o in outs])
    every = [
        *(o.expr for o in outs),
        *(s.by for s in order),
        *(e for e in (having_filter, qualify_filter) if e),
    ]
    if group or having or any(aggregates_of(e) for e in every):
        source, regroup = group_rows(binding, source, group, grouping, every, node)
        outs = [o.of(regroup.expr(o.expr)) for o in outs]
        order = regroup.sorts(order)
        having_filter = regroup.expr(having_filter) if having_filter else None
        qualify_filter = regroup.expr(qualify_filter) if qualify_filter else None
    if having_filter:
        source.conjuncts += conjuncts(having_filter)
    if binding.windowed:
        finish = finish_windows(binding, source)
        outs = [o.of(finish.expr(o.expr)) for o in outs]
        order = finish.sorts(order)
        qualify_filter = finish.expr(qualify_filter) if qualify_filter else None
    if qualify_filter:
        source.conjuncts += conjuncts(qualify_filter)
    place = place_of_rows(binding, node)
    block = replace(source.block(outs), order=order or source.order, place=place)
    if node.args.get("distinct"):
        if node.args["distinct"].args.get("on"):
            raise Unanalysable("of DISTINCT ON")
        block = _distinct(binding, block, node)
        return _ordered(binding, node, block, around, qualifiers)
    return _limited(binding, node, block, around)


def _sources(binding: Binding, node: exp.Select, around: Around) -> From:
    """Return the joined tables and generated rows that a SELECT reads."""
    source = From(around.outer)
    if node.args.get("from_"):
        source = from_item(binding, node.args["from_"].this, around)
        for each in node.args.get("joins") or ():
            source = join(binding, source, each, around)
    for view in node.args.get("laterals") or ():
        _add_generated(source, lateral(binding, view, around, source))
    return source


def _sorted_by_parts(binding: Binding, node: exp.Select, select: Select) -> tuple[Sort, ...]:
    """Return the keys of SORT BY, CLUSTER BY and DISTRIBUTE BY, which order rows in part."""
    sorts: list[Sort] = []
    for clause in ("distribute", "cluster", "sort"):
        if node.args.get(clause):
            sorts += (
                replace(s, by=binding.calls.call(f"{clause} by", (s.by,)))
                for s in sort_keys(binding, node.args[clause], select, ())
            )
    return tuple(sorts)


def _add_generated(source: From, generated: From) -> None:
    source.leaves |= generated.leaves
    source.entries += generated.entries


def _projections(
    binding: Binding, node: exp.Select, select: Select
) -> tuple[list[Out], list[tuple[str, ...]]]:
    """Return the columns of a SELECT, and the qualifiers of those that are plain columns."""
    outs = select.outs
    qualifiers: list[tuple[str, ...]] = []
    generators = 0
    for item in node.expressions:
        qualifiers += ((),) * (len(outs) - len(qualifiers))
        inner = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
        if is_star(inner):
            outs += expand_star(binding, inner, select.source, _replaced(binding, inner, select))
            qualifiers += (qualifiers_of(o, select.source) for o in outs[len(qualifiers) :])
            continue
        if isinstance(inner, exp.Anonymous) and plain(inner.name).lower() in GENERATORS:
            generators += 1
            outs += _select_generator(binding, item, inner, node, select)
            if generators > 1:
                raise Unanalysable("of two generators in one SELECT")
            continue
        if isinstance(item, exp.Aliases):
            raise Unanalysable("of several aliases for one expression")
        expr = folded(binding, expression(binding, inner, select))
        name, written = output_name(item, inner, select)
        outs.append(Out(name, written, expr, binding.types.of(expr)))
        if isinstance(without_parens(item), exp.Column):
            qualifiers.append(qualifiers_of(outs[-1], select.source))
    return outs, [*qualifiers, *((),) * (len(outs) - len(qualifiers))]


def _replaced(binding: Binding, star: Any, select: Select) -> dict[str, Out] | None:
    """Return the new columns that the SET of a pipe creates, by name (`without_pipes`)."""
    items = star.args.get("replace") if isinstance(star, exp.Star) else None
    if not items or not all(is_marked(item.alias) for item in items):
        return None
    outs: dict[str, Out] = {}
    for item in items:
        expr, name = folded(binding, expression(binding, item.this, select)), plain(item.alias)
        outs[name.lower()] = Out(name.lower(), name, expr, binding.types.of(expr))
    return outs


def _select_generator(
    binding: Binding, item: Any, call: Any, node: exp.Select, select: Select
) -> list[Out]:
    if node.args.get("group") or any(node.find_all(exp.Window)):
        raise Unanalysable("of a generator with grouping or windows in one SELECT")
    names: tuple[str, ...] = ()
    if isinstance(item, exp.Alias):
        names = (plain(item.alias),)
    elif isinstance(item, exp.Aliases):
        names = tuple(plain(e.name) for e in item.expressions)
    block = generate(binding, call, False, select, names)
    select.source.leaves |= dict(block.leaves)
    return list(block.columns)
