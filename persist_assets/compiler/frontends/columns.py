"""The columns of a parameter that a Python function uses, from its syntax tree. Pure.

They are known if the only operation on the parameter is ``.select(…)`` with literal columns. The
invariant: it makes no difference whether the function gets all columns or only the ones found here.
It gets only these, so a column that were overlooked would be missing in a build, but could never
change a table unnoticed.
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
"""Functions of Narwhals that use only the named columns; others use all."""

_NAMING = ("alias", "name", "lit")
"""Calls whose string arguments are not columns."""

_HIDDEN = "_metadata"
"""The metadata columns that Spark adds to files."""


class _Unclear(Exception):
    """The columns are unknown."""


def selected(
    parameter: str,
    node: ast.FunctionDef,
    module: Module,
    modules: Modules,
    reached: Reached,
) -> tuple[str, ...] | None:
    """Return texts that contain every column of a parameter that a function uses.

    None if it may use any column. The columns are known if the parameter is used only in
    ``.select(…)`` or ``.selectExpr(…)``, called with texts, or with expressions of Spark's or
    Narwhals' functions over texts, without a star.

    Parameters
    ----------
    reached
        The code that the function reaches in these modules.
    """
    if looks_around(reached.names) or any(_HIDDEN in text for text in reached.texts):
        return None
    if not all(module.ours(d) for d in node.decorator_list):
        return None  # a decorator of the function may use all columns
    inside = [child for part in ast.iter_child_nodes(node) for child in ast.walk(part)]
    bound = [name for child in inside for name in _bound(child)]
    imported = {name for child in inside for name in _imported(child)}
    if bound.count(parameter) != 1 or parameter in imported:
        return None
    texts: set[str] = set()
    scope = _Scope(module, modules, frozenset(bound))
    try:
        for call in _selects(parameter, node):
            texts.update(scope.texts(call))
    except _Unclear:
        return None
    return tuple(sorted(texts)) or None


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of any kind binds, except by imports."""
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
    """Yield the selections from a parameter.

    Raises
    ------
    _Unclear
        It is used otherwise, or outside the function itself.
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
                continue  # its argument is not a frame, or unclear
            case ast.Lambda() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                named = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
                if parameter in named:
                    raise _Unclear
            case _:
                pass
        stack += ast.iter_child_nodes(node)


class _Scope:
    """Reads expressions of columns; everything else is unclear."""

    def __init__(self, module: Module, modules: Modules, bound: frozenset[str]) -> None:
        self._module, self._modules, self._bound = module, modules, bound

    def texts(self, call: ast.Call) -> Iterator[str]:
        """Yield the texts that name the columns of a selection.

        A text computed by Python does not count: operands are always columns, which only known
        functions return.

        Raises
        ------
        _Unclear
            It may select other columns too.
        """
        columns: list[ast.expr] = []
        pending = _column_arguments(call)
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
        """Return the operands of a column expression: columns, and those that may be values."""
        match node:
            case ast.Call(func=func):
                name = self._function(func)
                if name is not None:
                    return [], _column_arguments(node, name)
                if isinstance(func, ast.Attribute):
                    return [func.value], _column_arguments(node, func.attr)
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
        """Return the function of Spark or Narwhals that a name means, or None."""
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


def _column_arguments(call: ast.Call, name: str = "") -> list[ast.expr]:
    """Return the arguments of a call, without texts that are not columns."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [g for g in arguments if not (name in _NAMING and isinstance(g, ast.Constant))]
