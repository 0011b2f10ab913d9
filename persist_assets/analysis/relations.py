"""Binding of FROM: tables, subqueries, joins and generators → leaves, conjuncts and names.

A relation is merged into its reader where that is sound (`derived_from`); an outer join or a
nondeterministic relation is a leaf.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Derived,
    Generate,
    Lateral,
    Out,
    Outer,
    Ref,
    Subquery,
    Window,
    conjuncts,
    walk,
)
from persist_assets.analysis.binding import MAX_LEAVES
from persist_assets.analysis.expressions import expression
from persist_assets.analysis.functions import TABLE_FUNCTIONS
from persist_assets.analysis.named_literals import behind_names
from persist_assets.analysis.names import refuse_uncertain_names, renamed, using_key
from persist_assets.analysis.pivots import pivoted
from persist_assets.analysis.recursion import bind_recursive, is_recursive
from persist_assets.analysis.scope import Around, Entry, From, Select, Unanalysable
from persist_assets.analysis.syntax import alias_of, depends_on_order, given_args, is_join, word_for
from persist_assets.analysis.types import IMPLICIT, INLINED
from persist_assets.core.dialect import plain
from persist_assets.core.spark_types import UnknownTypeError, fields_of

if TYPE_CHECKING:
    from persist_assets.analysis.algebra import Expr
    from persist_assets.analysis.binding import Binding
    from persist_assets.analysis.scope import Cte


def from_item(binding: Binding, node: Any, around: Around, sibling: From | None = None) -> From:
    """Bind one item of a FROM clause, including its parenthesised joins."""
    unknown = set(given_args(node)) - {
        *("this", "db", "catalog", "alias", "joins", "sample", "with_", "expressions", "hints"),
        *("laterals", "view", "outer", "ordinality", "order", "limit", "offset", "pivots"),
    }
    if unknown:
        raise Unanalysable(f"of {sorted(unknown)[0].upper()} in FROM")
    if node.args.get("laterals") and not isinstance(node, exp.Lateral):
        raise Unanalysable("of LATERAL VIEW inside a joined item")
    name, names = alias_of(node)
    match node:
        case exp.Subquery() if is_join(node):
            binding.enter(node)
            source = from_item(binding, node.this, around)
            binding.depth -= 1
            if name:
                outs = [Out(e.name, e.written, e.expr, e.type) for e in source.entries]
                whole = replace(source.block(outs), order=source.order)
                source = derived_from(binding, whole, name, names, around)
        case exp.Subquery() | exp.Values():
            bare = not set(given_args(node)) - {"this", "alias", "joins", "pivots"}
            query = node.this if bare and isinstance(node, exp.Subquery) else node
            source = derived_from(
                binding, binding.query(binding, query, around), name, names, around
            )
        case exp.Lateral():
            source = lateral(binding, node, around, sibling)
        case exp.Table() if isinstance(node.this, exp.Identifier):
            source = _table(binding, node, name, names, around)
        case exp.Table():
            generated = generate(
                binding, node.this, False, Select(From(around.outer), ctes=around.ctes), names
            )
            source = derived_from(binding, generated, name, (), around)
        case _:
            raise Unanalysable(f"of {word_for(node)} in FROM")
    if node.args.get("sample"):
        raise Unanalysable("of TABLESAMPLE")
    if node.args.get("pivots") and _has_neighbours(node):
        raise Unanalysable("of PIVOT beside other tables")
    for pivot in node.args.get("pivots") or ():
        source = as_leaf(binding, source)
        name, names = alias_of(pivot)
        source = derived_from(binding, pivoted(binding, source, pivot, around), name, names, around)
    for each in node.args.get("joins") or ():
        source = join(binding, source, each, around)
    return source


def _has_neighbours(node: Any) -> bool:
    """Whether an item with PIVOT or UNPIVOT is joined, or has lateral views.

    Spark applies the PIVOT to all tables before it, and may take LEFT or ANTI for its alias.
    """
    above = node.parent.parent if isinstance(node.parent, exp.From) else node.parent
    items = (node, above) if isinstance(above, exp.Select) else (node,)
    joined = any(item.args.get(key) for item in items for key in ("joins", "laterals"))
    return joined or isinstance(above, exp.Join)


def _table(
    binding: Binding,
    node: exp.Table,
    name: str,
    names: tuple[str, ...],
    around: Around,
) -> From:
    number = node.meta.get(binding.reference)
    written = plain(node.name)
    if number is None:
        block = _cte(binding, around.ctes[written.lower()])
        return derived_from(binding, block, name or written, names, around)
    face = binding.upstream[number]
    if face.names is None:
        raise Unanalysable(f"because the columns of `{written}` are unknown")
    if not face.is_ordered and depends_on_order(node.root()):
        raise Unanalysable(f"because the order of the columns of `{written}` is unknown")
    source = derived_from(binding, binding.of_face(face), name or written, names, around)
    for entry, origins in zip(source.entries, face.given.origins, strict=True):
        # Constants come from nowhere.
        if isinstance(entry.expr, Ref) or any(isinstance(p, Ref) for p in walk(entry.expr)):
            binding.origins[entry.expr] = binding.origins.get(entry.expr, frozenset()) | origins
    if not name:
        qualifiers = tuple(plain(p.name).lower() for p in node.parts)
        for entry in source.entries:
            entry.qualifiers = qualifiers
    return source


def _cte(binding: Binding, cte: Cte) -> Block:
    """Return a copy of a common table expression for one reference to it."""
    stack = [cte]  # its inputs are bound first: a chain of CTEs is not nested
    while stack:
        unbound = [c for c in _read_by(binding, stack[-1]) if c.block is None and not c.failure]
        if unbound:
            stack += unbound
        else:
            _bind_cte(binding, stack.pop())
    binding.problems += cte.problems
    if cte.block is None:
        assert cte.failure is not None
        raise cte.failure
    return binding.copy_for_reuse(cte.block)


def _read_by(binding: Binding, cte: Cte) -> list[Cte]:
    """Return the other CTEs that a CTE names; a few too many where an inner WITH hides a name."""
    if cte.block is not None or cte.failure or cte.recursive:
        return []
    names = dict.fromkeys(
        plain(table.name).lower()
        for table in cte.query.find_all(exp.Table)
        if binding.reference not in table.meta
    )
    return [cte.around.ctes[n] for n in names if n in cte.around.ctes]


def _bind_cte(binding: Binding, cte: Cte) -> None:
    """Bind a common table expression; its problems are reported when it is read."""
    if cte.block is not None or cte.failure:
        return
    depth, n_problems = binding.depth, len(binding.problems)
    try:
        if is_recursive(cte):
            cte.block = bind_recursive(binding, cte)
        else:
            block = binding.query(binding, cte.query, cte.around)
            names = cte.names
            cte.block = replace(block, columns=renamed(block.columns, names)) if names else block
    except Unanalysable as failure:
        cte.failure = failure
    binding.depth = depth
    cte.problems = binding.problems[n_problems:]
    del binding.problems[n_problems:]


def derived_from(
    binding: Binding, block: Block, name: str, names: tuple[str, ...], around: Around
) -> From:
    """Return a FROM clause of one relation: merged where that is sound, else a leaf."""
    if binding.types.collated:
        block = _with_implicit_collations(binding, block)
    if binding.computes_in:
        block = binding.memberships.with_marks(binding.calls, INLINED, block)
    columns = renamed(block.columns, names) if names else block.columns
    computed = [o.expr for o in block.columns if not isinstance(o.expr, Ref)]
    volatile = binding.is_volatile(*block.conjuncts, *computed)
    if volatile or binding.is_large(block):
        block = binding.leaf(Derived(block, volatile), columns)
        columns = block.columns
    qualifiers = (name.lower(),) if name else ()
    return From(
        around.outer,
        dict(block.leaves),
        list(block.conjuncts),
        [Entry(o.name, o.written, o.expr, o.type, qualifiers) for o in columns],
        order=block.order,
    )


def _with_implicit_collations(binding: Binding, block: Block) -> Block:
    """Return a Block whose texts are columns: Spark refuses to compare some of these.

    The collation of an expression may be explicit, or the default; that of a column is neither.
    """
    leaves = dict(block.leaves)

    def column(out: Out) -> Out:
        is_text = out.type is None or "string" in out.type
        is_column = isinstance(out.expr, Ref) and not isinstance(
            leaves.get(out.expr.instance), Aggregate
        )
        if not is_text or is_column:
            return out
        return out.of(binding.calls.call(IMPLICIT, (out.expr,)))

    return replace(block, columns=tuple(map(column, block.columns)))


def join(binding: Binding, left: From, node: exp.Join, around: Around) -> From:
    """Join `left` with the item of a JOIN of any kind."""
    unknown = set(given_args(node)) - {"this", "side", "kind", "method", "on", "using", "hint"}
    method = (node.args.get("method") or "").upper()
    if unknown or method not in ("", "NATURAL"):
        raise Unanalysable(f"of {method or sorted(unknown)[0].upper()} JOIN")
    side, kind = (node.args.get("side") or "").upper(), (node.args.get("kind") or "").upper()
    if isinstance(node.this, exp.Lateral):
        if side not in ("", "LEFT") or kind not in ("", "CROSS", "INNER", "OUTER"):
            raise Unanalysable(f"of a {side or kind} JOIN LATERAL")
        if any(isinstance(e, Window) for e in walk(*(e.expr for e in left.entries))):
            left = as_leaf(binding, left)
    right = from_item(binding, node.this, around, sibling=left)
    if isinstance(node.this, exp.Lateral) and (side or not _is_flat(binding, node.this, right)):
        return _lateral_join(binding, left, right, node, around)
    named = node.args.get("using") or ()
    using = [plain(u.name) for u in named]
    if method:
        refuse_uncertain_names(left, right)
        theirs = [e.name.lower() for e in right.entries]
        using = [e.name for e in left.entries if e.name.lower() in theirs]
        if any(theirs.count(name.lower()) > 1 and using.count(name) > 1 for name in using):
            raise Unanalysable("of a NATURAL JOIN by a key that both sides have twice")
        using = [*dict.fromkeys(name.lower() for name in using)]
    both = From(
        around.outer,
        left.leaves | right.leaves,
        [*left.conjuncts, *right.conjuncts],
        [*left.entries, *right.entries],
        [*left.hidden, *right.hidden],
        (*left.order, *right.order),
    )
    place = binding.place(named[0] if named else node)
    keys = [
        (using_key(binding, u, left, place), using_key(binding, u, right, place)) for u in using
    ]
    condition: list[Expr] = []
    for a, b in keys:
        pair = behind_names(binding.calls, "=", (a.expr, b.expr), (True, True), binding.types)
        condition.append(binding.calls.call("=", pair))
    if node.args.get("on") is not None:
        condition += conjuncts(expression(binding, node.args["on"], Select(both, ctes=around.ctes)))
    if kind in ("SEMI", "ANTI"):
        if side not in ("", "LEFT"):
            raise Unanalysable(f"of {side} {kind} JOIN")
        source = _semi_join(binding, left, right, condition, node)
        first = {id(a): a for a, _ in keys}  # as Spark does after USING
        source.entries = [*first.values(), *(e for e in source.entries if id(e) not in first)]
        return source
    if side in ("LEFT", "RIGHT", "FULL"):
        return _outer_join(binding, left, right, condition, keys, node)
    both.conjuncts += condition
    if len(both.leaves) > MAX_LEAVES:  # too large to stay flat
        both = as_leaf(binding, both)
    return _merge_keys(binding, both, left, right, keys, side) if keys else both


def as_leaf(binding: Binding, source: From) -> From:
    """Return `source` as one leaf, with every entry a column of that leaf."""
    everything = [*source.entries, *source.hidden]
    outs = [Out(e.name, e.written, e.expr, e.type) for e in everything]
    merged = binding.leaf(Derived(replace(source.block(outs), order=source.order)), outs)
    for entry, out in zip(everything, merged.columns, strict=True):
        entry.expr = out.expr
    return From(source.outer, dict(merged.leaves), [], source.entries, source.hidden)


def _merge_keys(
    binding: Binding,
    both: From,
    left: From,
    right: From,
    keys: list[tuple[Entry, Entry]],
    side: str,
) -> From:
    """Order the columns as Spark does after USING: the keys once, then the rest."""
    shown: list[Entry] = []
    hidden: list[Entry] = []
    for a, b in keys:
        if side == "RIGHT":
            shown.append(b)
            hidden.append(a)
        elif side == "FULL":
            joint = binding.calls.call("coalesce", (a.expr, b.expr))
            kind = a.type if a.type == b.type else None
            shown.append(Entry(a.name, a.written, joint, kind, ()))
            hidden += (a, b)
        else:
            shown.append(a)
            hidden.append(b)
    merged = {id(e) for pair in keys for e in pair}
    both.entries = shown + [e for e in (*left.entries, *right.entries) if id(e) not in merged]
    both.hidden = [*both.hidden, *hidden]
    return both


def _semi_join(
    binding: Binding, left: From, right: From, condition: list[Expr], node: exp.Join
) -> From:
    inner = Block(tuple(right.leaves.items()), (*right.conjuncts, *condition))
    test: Expr = Subquery("exists", inner, place=binding.mark(node))
    kind = node.args["kind"].upper()
    left.conjuncts.append(test if kind == "SEMI" else binding.calls.call("not", (test,)))
    return left


def _outer_join(
    binding: Binding,
    left: From,
    right: From,
    condition: list[Expr],
    keys: list[tuple[Entry, Entry]],
    node: exp.Join,
) -> From:
    side = node.args["side"].upper()
    first, second = (right, left) if side == "RIGHT" else (left, right)
    sides = [[*s.entries, *s.hidden] for s in (first, second)]
    outs = [[Out(e.name, e.written, e.expr, e.type) for e in entries] for entries in sides]
    joined = Outer(
        "full" if side == "FULL" else "left",
        replace(first.block(outs[0]), order=first.order),
        replace(second.block(outs[1]), order=second.order),
        tuple(dict.fromkeys(condition)),
        binding.mark(node),
    )
    whole = binding.leaf(joined, [*outs[0], *outs[1]])
    for entry, out in zip((*sides[0], *sides[1]), whole.columns, strict=True):
        entry.expr = out.expr
    both = From(
        left.outer,
        dict(whole.leaves),
        [],
        [*left.entries, *right.entries],
        [*left.hidden, *right.hidden],
    )
    return _merge_keys(binding, both, left, right, keys, side) if keys else both


def lateral(
    binding: Binding,
    node: exp.Lateral,
    around: Around,
    sibling: From | None,
) -> From:
    """Bind LATERAL or LATERAL VIEW; its arguments see the columns of `sibling`.

    LATERAL sees them as a subquery does: after functions without parentheses.
    """
    name, names = alias_of(node)
    if isinstance(node.this, exp.Subquery | exp.Query):
        return _lateral_query(
            binding, node.this, Around(sibling or around.outer, around.ctes), name, names
        )
    source = sibling if sibling and node.args.get("view") else From(sibling or around.outer)
    select = Select(source, ctes=around.ctes)
    block = generate(binding, node.this, bool(node.args.get("outer")), select, names)
    return derived_from(binding, block, name, (), around)


def _lateral_query(
    binding: Binding, node: Any, around: Around, name: str, names: tuple[str, ...]
) -> From:
    """Bind a subquery that is joined to each row of the relations before it."""
    query = node.this if isinstance(node, exp.Subquery) else node
    outer = around.outer
    if outer is not None:
        outer.spreads = True
    source = derived_from(binding, binding.query(binding, query, around), name, names, around)
    if outer is not None:
        outer.spreads = False
    return replace(source, order=())


def _is_flat(binding: Binding, node: exp.Lateral, source: From) -> bool:
    """Whether a LATERAL query only filters and computes: then it is a join like any other."""
    if not isinstance(node.this, exp.Subquery | exp.Query):
        return True
    exprs = [*source.conjuncts, *(e.expr for e in source.entries)]
    return not any(map(binding.free.of, source.leaves.values())) and not any(
        isinstance(e, Window) for e in walk(*exprs)
    )


def _lateral_join(
    binding: Binding, left: From, right: From, node: exp.Join, around: Around
) -> From:
    """Join each row with those of a query of its own, which groups, limits or orders rows.

    If a generator has no rows, Spark joins it as if LEFT were missing. This is not modelled: the
    kind of the join is only a part of its meaning.
    """
    if node.args.get("using") or node.args.get("method"):
        raise Unanalysable("of LATERAL with USING")
    both = From(
        around.outer,
        left.leaves | right.leaves,
        entries=[*left.entries, *right.entries],
        hidden=[*left.hidden],
    )
    on: list[Expr] = []
    if node.args.get("on") is not None:
        on += conjuncts(expression(binding, node.args["on"], Select(both, ctes=around.ctes)))
    sides = [[*left.entries, *left.hidden], [*right.entries]]
    outs = [[Out(e.name, e.written, e.expr, e.type) for e in entries] for entries in sides]
    joined = Lateral(
        "left" if node.args.get("side") else "inner",
        replace(left.block(outs[0]), order=left.order),
        right.block(outs[1]),
        tuple(dict.fromkeys(on)),
        binding.mark(node),
    )
    if binding.is_volatile(joined.right, *on):
        raise Unanalysable("of a nondeterministic LATERAL query")
    whole = binding.leaf(joined, [*outs[0], *outs[1]])
    for entry, out in zip((*sides[0], *sides[1]), whole.columns, strict=True):
        entry.expr = out.expr
    return replace(both, leaves=dict(whole.leaves))


def generate(
    binding: Binding, node: Any, outer: bool, select: Select, names: tuple[str, ...]
) -> Block:
    """Bind a call that generates rows; `names` rename its columns."""
    op = plain(node.name).lower() if isinstance(node, exp.Anonymous) else ""
    if op not in TABLE_FUNCTIONS:
        raise Unanalysable(f"of the table function {op or word_for(node)}")
    args = tuple(expression(binding, a, select) for a in node.expressions)
    if op.endswith("_outer"):
        op, outer = op.removesuffix("_outer"), True
    columns = _generated_columns(binding, op, args, len(names))
    if names:
        if len(names) != len(columns):
            raise Unanalysable(f"because {op} does not have {len(names)} columns")
        columns = [(n, t) for n, (_, t) in zip(names, columns, strict=True)]
    call = binding.calls.call(op, args)
    return binding.leaf(
        Generate(call, outer, tuple(t for _, t in columns), binding.mark(node)),
        [Out(n, n, call, t) for n, t in columns],
    )


def _generated_columns(
    binding: Binding, op: str, args: tuple[Expr, ...], n: int
) -> list[tuple[str, str | None]]:
    kind = binding.types.of(args[0]) if args else None
    match op:
        case "range":
            return [("id", "bigint")]
        case "json_tuple":
            return [(f"c{i}", "string") for i in range(len(args) - 1)]
        case "stack" if args:
            rows = args[0]
            if isinstance(rows, Call) and rows.op == "number" and rows.words[0].isdecimal():
                width = -(-(len(args) - 1) // max(int(rows.words[0]), 1))
                return [(f"col{i}", None) for i in range(width)]
        case "inline" if kind and kind.startswith("array<struct<"):
            try:
                return [*fields_of(kind.removeprefix("array<").removesuffix(">"))]
            except UnknownTypeError:
                raise Unanalysable(f"of {op} of {kind}") from None
        case "inline" if n:
            return [("", None)] * n
        case "inline" if args and (fields := _fields_of_structs(binding, args[0])):
            return fields
        case "variant_explode":
            return [("pos", "int"), ("key", "string"), ("value", "variant")]
        case "explode" | "posexplode":
            position: list[tuple[str, str | None]] = [("pos", "int")] if op == "posexplode" else []
            width = n - len(position) if n else 0
            form = kind or _collection(args[0] if args else None)
            if form.startswith("array<") or width == 1:
                element = kind[6:-1] if kind and kind.startswith("array<") else None
                return [*position, ("col", element)]
            if form.startswith("map<") or width == 2:
                return [*position, ("key", None), ("value", None)]
        case _:
            pass
    raise Unanalysable(f"because the columns of {op} are unknown; name them")


def _collection(expr: Expr | None) -> str:
    """Return the start of the type of a call that is an array or a map whatever its operands."""
    op = expr.op if isinstance(expr, Call) else ""
    return "array<" if op in _ARRAYS else "map<" if op in _MAPS else ""


_ARRAYS = frozenset(
    """
    array array_append array_compact array_distinct array_except array_insert array_intersect
    array_prepend array_remove array_repeat array_sort array_union arrays_zip collect_list
    collect_set filter flatten json_object_keys map_entries map_keys map_values regexp_extract_all
    sentences sequence slice sort_array split transform zip_with
    """.split()
)
_MAPS = frozenset(
    """
    map map_concat map_filter map_from_arrays map_from_entries map_zip_with str_to_map
    transform_keys transform_values
    """.split()
)


def _fields_of_structs(binding: Binding, expr: Expr) -> list[tuple[str, str | None]]:
    """Return the fields of ``array(struct(…), …)`` where all structs have the same named ones."""
    if not isinstance(expr, Call) or expr.op != "array" or not expr.args:
        return []
    structs = [e for e in expr.args if isinstance(e, Call) and e.op == "struct"]
    names = {e.words for e in structs}
    if len(structs) < len(expr.args) or len(names) > 1 or not all(names.copy().pop()):
        return []
    columns = zip(*(e.args for e in structs), strict=True)
    kinds = [{binding.types.of(e) for e in column} for column in columns]
    types = [kind.pop() if len(kind) == 1 else None for kind in kinds]
    return [*zip(names.pop(), types, strict=True)]
