"""Recursive common table expressions → `Recursive`.

A recursive CTE is the UNION ALL of a query that does not read it and one that does. Its rows are
known as a whole only: which rows a step computes depends on all rows of the step before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from persist_assets.analysis.algebra import Block, Given, Recursive
from persist_assets.analysis.names import renamed
from persist_assets.analysis.scope import Around, Cte, Unanalysable
from persist_assets.analysis.syntax import given_args
from persist_assets.core.dialect import plain
from persist_assets.core.model.columns import Growth, Windows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from persist_assets.analysis.algebra import Out
    from persist_assets.analysis.binding import Binding

_UNION_ARGS = frozenset(("this", "expression", "distinct", "with_"))


def with_ctes(node: exp.With, around: Around) -> Around:
    """Return the surroundings of a query after its WITH."""
    visible = dict(around.ctes)
    for cte in node.expressions:
        names = tuple(plain(c.name) for c in cte.args["alias"].args.get("columns") or ())
        recursive = bool(node.args.get("recursive"))
        sees = Around(around.outer, dict(visible))
        name = plain(cte.alias).lower()
        limit = tuple(key.name for key in cte.args.get("key_expressions") or ())
        visible[name] = Cte(name, cte.this, names, sees, recursive, limit)
    return Around(around.outer, visible)


def is_recursive(cte: Cte) -> bool:
    """Whether a CTE of WITH RECURSIVE reads itself."""
    return cte.recursive and _reads(cte.query, cte.name)


def _reads(query: Any, name: str) -> bool:
    tables = query.find_all(exp.Table)
    return any(not t.args.get("db") and plain(t.name).lower() == name for t in tables)


def bind_recursive(binding: Binding, cte: Cte) -> Block:
    """Return the meaning of a CTE that reads itself.

    Raises
    ------
    Unanalysable
        Spark may refuse it, or its rows are nondeterministic.
    """
    union = cte.query
    if not isinstance(union, exp.Union) or set(given_args(union)) - _UNION_ARGS:
        raise Unanalysable("of WITH RECURSIVE without UNION ALL")
    if union.args.get("distinct"):
        raise Unanalysable("of WITH RECURSIVE with UNION")
    hidden = any(plain(inner.alias).lower() == cte.name for inner in union.find_all(exp.CTE))
    if hidden or _reads(union.this, cte.name):
        raise Unanalysable("of WITH RECURSIVE that reads itself in its first query")
    inner = union.args.get("with_")
    around = with_ctes(inner, cte.around) if inner else cte.around
    start = binding.query(binding, union.this, around)
    columns = renamed(start.columns, cte.names) if cte.names else start.columns
    kinds = tuple(o.type for o in columns)
    n_problems = len(binding.problems)
    while True:
        step = _step(binding, cte, around, columns, kinds)
        if len(step.columns) != len(columns):
            raise Unanalysable("of WITH RECURSIVE of unequal branches")
        # Where the types differ, the rows that a step reads have other types than those of `start`.
        certain = tuple(
            a if a == b.type else None for a, b in zip(kinds, step.columns, strict=True)
        )
        if certain == kinds:
            break
        kinds = certain
        del binding.problems[n_problems:]
    if binding.is_volatile(start, step):
        raise Unanalysable("of a nondeterministic query in WITH RECURSIVE")
    node = Recursive(start, step, cte.words, binding.mark(union))
    return binding.leaf(node, _typed(columns, kinds))


def _step(
    binding: Binding,
    cte: Cte,
    around: Around,
    columns: Sequence[Out],
    kinds: Sequence[str | None],
) -> Block:
    """Bind the query that reads the rows of the step before it."""
    level, n = binding.recursions, len(columns)
    own = Given(
        f"recursion {level}",
        tuple(f"recursion {level} column {i}" for i in range(n)),
        None,
        (frozenset(),) * n,
        tuple(kinds),
        growth=Growth(frozenset(), (), (Windows((), frozenset()),) * n),
    )
    block = binding.leaf(own, _typed(columns, kinds))
    inside = Cte(cte.name, None, (), around, recursive=False, block=block)
    binding.recursions += 1
    try:
        sees = Around(around.outer, {**around.ctes, cte.name: inside})
        return binding.query(binding, cte.query.expression, sees)
    finally:
        binding.recursions -= 1


def _typed(columns: Sequence[Out], kinds: Sequence[str | None]) -> list[Out]:
    return [replace(o, type=kind) for o, kind in zip(columns, kinds, strict=True)]
