"""Which columns of a parameter a function of Python looks at, by its syntax tree. Pure.

It is known of a parameter with which nothing is done but ``.select(…)``, by columns that are
written out. The invariant: for what is found here it makes no difference whether the function is
given all columns or only those. It is given only those, so what would be overlooked here could be
missing in a build, and never be in a table unseen.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.mentions import looks_around
from persist_assets.compiler.frontends.module_text import chain_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from persist_assets.compiler.frontends.module_text import Module
    from persist_assets.compiler.frontends.modules import Modules, Reached

_OF_SPARK = ("pyspark", "sql", "functions")
_OF_NARWHALS = frozenset(
    """
    all_horizontal any_horizontal coalesce col concat_str len lit max max_horizontal mean
    mean_horizontal median min min_horizontal sum sum_horizontal when
    """.split()
)
"""Functions of Narwhals that look at the columns they are told; others look at all."""

_NAMING = ("alias", "name", "lit")
"""Calls whose texts are no columns that are read."""

_HIDDEN = "_metadata"
"""What Spark shows of files beside their columns."""


class _Unclear(Exception):
    """Nobody can tell which columns these are."""


def selected(
    parameter: str,
    node: ast.FunctionDef,
    module: Module,
    modules: Modules,
    reached: Reached,
) -> tuple[str, ...] | None:
    """Return texts in which every column stands that a function looks at of a parameter.

    None where it may look at any: where the parameter is anything else than what ``.select(…)``
    or ``.selectExpr(…)`` is called of, with texts, and expressions of Spark's or Narwhals'
    functions over texts, in which there is no star.

    Parameters
    ----------
    reached
        Of the function, by these modules.
    """
    if looks_around(reached.names) or any(_HIDDEN in text for text in reached.texts):
        return None
    if not all(module.ours(d) for d in node.decorator_list):
        return None  # what wraps the function may look at all it is given
    inside = [child for part in ast.iter_child_nodes(node) for child in ast.walk(part)]
    bound = [name for child in inside for name in _bound(child)]
    imported = {name for child in inside for name in _imported(child)}
    if bound.count(parameter) != 1 or parameter in imported:
        return None
    texts: set[str] = set()
    scope = _Known(module, modules, frozenset(bound))
    try:
        for call in _selects(parameter, node):
            texts.update(scope.texts(call))
    except _Unclear:
        return None
    return tuple(sorted(texts)) or None


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, imports aside, whatever kind of node it is."""
    match node:
        case ast.Name(ctx=ast.Load()) | ast.Attribute() | ast.keyword() | ast.Constant():
            return
        case ast.alias() | ast.ImportFrom():
            return
        case _:
            pass
    for _, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str):
                yield one


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]


def _selects(parameter: str, root: ast.AST) -> Iterator[ast.Call]:
    """Yield the selections that are made of a parameter.

    Raises
    ------
    _Unclear
        Something else is done with it, or somewhere else than in the function itself.
    """
    stack: list[ast.AST] = [*ast.iter_child_nodes(root)]
    while stack:
        node = stack.pop()
        match node:
            case ast.Name(id=name) if name == parameter:
                raise _Unclear
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="select" | "selectExpr")
            ) if name == parameter:
                yield node
                continue  # what is given to it is no frame, or unclear
            case ast.Lambda() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                named = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
                if parameter in named:
                    raise _Unclear
            case _:
                pass
        stack += ast.iter_child_nodes(node)


class _Known:
    """Reads expressions of columns; all else is unclear."""

    def __init__(self, module: Module, modules: Modules, bound: frozenset[str]) -> None:
        self._module, self._modules, self._bound = module, modules, bound

    def texts(self, call: ast.Call) -> Iterator[str]:
        """Yield the texts by which a selection says its columns.

        A text that Python makes of others is none of them: what something is done with is always
        a column, which only functions that are known return.

        Raises
        ------
        _Unclear
            It may select other columns too.
        """
        columns: list[ast.expr] = []
        pending = _given(call)
        while pending or columns:
            if columns:
                more, operands = self._parts(columns.pop())
                columns += more
                pending += operands
                continue
            match node := pending.pop():
                case ast.Constant(value=str(text)):
                    if "*" in text or "`" in text:
                        raise _Unclear
                    yield text
                case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                    pass
                case ast.List(elts=elements) | ast.Tuple(elts=elements):
                    pending += elements
                case _:
                    columns.append(node)

    def _parts(self, node: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
        """Return what of a column's expression is a column too, and what may also be a value."""
        match node:
            case ast.Call(func=func):
                name = self._function(func)
                if name is not None:
                    return [], _given(node, name)
                if isinstance(func, ast.Attribute):
                    return [func.value], _given(node, func.attr)
            case ast.Attribute(value=inner) | ast.UnaryOp(operand=inner):
                return [inner], []
            case ast.Subscript(value=inner, slice=key):
                return [inner], [key]
            case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
                if isinstance(left, ast.Constant):
                    left, right = right, left
                return [left], [right]
            case _:
                pass
        raise _Unclear

    def _function(self, node: ast.expr) -> str | None:
        """Return which function of Spark's or Narwhals' a name means, or None."""
        chain = chain_of(node)
        if not chain or chain[0] in self._bound or chain[0] in self._module.bindings:
            return None
        origins = {(*i.dotted, *chain[1:]) for i in self._module.imports.get(chain[0], ())}
        if len(origins) != 1 or self._module.stars:
            return None
        (dotted,) = origins
        if self._modules.resolve(dotted) is not None:
            return None
        *home, name = dotted
        if tuple(home) == _OF_SPARK:
            return name
        stable = home[:2] == ["narwhals", "stable"] and len(home) == 3
        return name if (home == ["narwhals"] or stable) and name in _OF_NARWHALS else None


def _given(call: ast.Call, name: str = "") -> list[ast.expr]:
    """Return what a call is given, without texts that are no columns that are read."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [g for g in arguments if not (name in _NAMING and isinstance(g, ast.Constant))]
