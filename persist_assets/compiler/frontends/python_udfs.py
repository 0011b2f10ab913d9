"""Functions in Python files that queries in SQL call. Pure: the text is read, and no code is run.

They are top-level functions with the decorator ``udf``. A call in a query gets the name of the
function with a digest of all code that the function reaches, and of what the decorator says.
"""

from __future__ import annotations

import ast
import re
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.analysis.functions import drawn_by
from persist_assets.compiler.frontends.annotation_values import IDENTIFIER
from persist_assets.compiler.frontends.module_text import UDF, Module, parse_module
from persist_assets.compiler.frontends.modules import Modules
from persist_assets.compiler.frontends.sql_functions import (
    Definition,
    Misread,
    Parameter,
    Refused,
    SqlFunction,
    check_name,
)
from persist_assets.core.model.queries import Function, PythonUdf
from persist_assets.core.spark_types import parse_type, type_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from persist_assets.compiler.frontends.module_text import Find, FunctionNode
    from persist_assets.compiler.frontends.modules import Reached
    from persist_assets.core.errors import Location

_MAY_DEFINE = re.compile(r"\budf\b|import\s*\*")
"""Matches the text of every file that has such functions."""


def read_udfs(text: str, path: str, find: Find) -> Iterator[Definition]:
    """Yield the functions of a file that queries call.

    Parameters
    ----------
    find
        Returns the text of files that it may import.
    """
    if not _MAY_DEFINE.search(text):
        return
    try:
        module = parse_module(text, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it is reported with its sources
    modules = Modules(find)
    for node in module.tree.body:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and module.is_udf(node):
            try:
                yield _read(node, module, modules)
            except Refused as refused:
                yield Misread(node.name, refused.problem)


def _read(node: FunctionNode, module: Module, modules: Modules) -> SqlFunction:
    """Return one function.

    Raises
    ------
    Refused
        Queries cannot call it.
    """
    place = module.place(node)
    if not isinstance(node, ast.FunctionDef) or _yields(node):
        raise Refused("python-udf", f"`{node.name}` must return one value", place)
    if not IDENTIFIER.fullmatch(node.name):
        hint = "use letters, digits and underscores"
        raise Refused("name", f"invalid function name `{node.name}`", place, hint)
    check_name(node.name, place)
    if len([d for d in node.decorator_list if module.ours(d)]) > 1:
        raise Refused("python-udf", f"`{node.name}` has two persist_assets decorators", place)
    if len(module.bindings.get(node.name, ())) > 1:
        raise Refused("python-udf", f"`{node.name}` is redefined in its file", place, "rename it")
    decorator = next(d for d in node.decorator_list if module.ours(d) == UDF)
    returns, deterministic = _udf_arguments(decorator, module)
    parameters = _parameters(node, module)
    reached = modules.reach(module, node)
    if modules.problems:
        raise Refused("python-udf", f"`{node.name}` imports a file that is not Python", place)
    _check_variability(node.name, reached, deterministic, place)
    is_steady = deterministic is not False
    shown = [(p.name, p.is_optional) for p in parameters.values()]
    wording = f"{reached.wording} {shown} {returns} {is_steady}"
    digest = sha256(wording.encode()).hexdigest()[:16]
    function = Function(module.path, node.name, (), reached.modules)
    registered = f"{node.name.lower()}__py{digest}"
    udf = PythonUdf(node.name, registered, function, returns, is_steady, place)
    return SqlFunction(node.name, place, parameters, returns, (), None, udf)


def _udf_arguments(decorator: ast.expr, module: Module) -> tuple[str, bool | None]:
    """Return the type of the result and the value of `deterministic`; None: not set."""
    place = module.place(decorator)
    example = 'for example, @udf(returns="int")'
    if not isinstance(decorator, ast.Call) or decorator.args:
        raise Refused("python-udf", "@udf needs the type of the result", place, example)
    values: dict[str, object] = {}
    for keyword in decorator.keywords:
        at = module.place(keyword.value)
        if keyword.arg not in ("returns", "deterministic"):
            message = f"@udf has no argument `{keyword.arg or '**'}`"
            raise Refused("python-udf", message, at, "its arguments: returns, deterministic")
        if not isinstance(keyword.value, ast.Constant):
            hint = "write out the value: it is read without running the code"
            raise Refused("python-udf", f"`{keyword.arg}` must be a literal", at, hint)
        values[keyword.arg] = keyword.value.value
    returns, deterministic = values.get("returns"), values.get("deterministic")
    if not isinstance(returns, str):
        raise Refused("python-udf", "@udf needs the type of the result", place, example)
    if not isinstance(deterministic, bool) and "deterministic" in values:
        raise Refused("python-udf", "`deterministic` must be True or False", place)
    kind = parse_type(returns)
    if kind is None or re.search(r"\b(?:var)?char\b", kind):
        hint = "use STRING" if kind else type_hint(returns) or example
        raise Refused("type", f"`{returns}` is not a valid result type", place, hint)
    return kind, deterministic if isinstance(deterministic, bool) else None


def _parameters(node: ast.FunctionDef, module: Module) -> Mapping[str, Parameter]:
    """Return the parameters by name in lower case, in order."""
    arguments = node.args
    for other in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs):
        if other is not None:
            message = f"`{node.name}` must have positional parameters only, not `{other.arg}`"
            raise Refused("python-udf", message, module.place(other))
    names = [*arguments.posonlyargs, *arguments.args]
    n_required = len(names) - len(arguments.defaults)
    parameters: dict[str, Parameter] = {}
    for n, argument in enumerate(names):
        if argument.arg.lower() in parameters:
            message = f"`{argument.arg}` differs from another parameter in case only"
            raise Refused("python-udf", message, module.place(argument), "rename one of them")
        is_optional = n >= n_required
        parameters[argument.arg.lower()] = Parameter(argument.arg, "", None, is_optional)
    return parameters


def _yields(node: ast.FunctionDef) -> bool:
    stack: list[ast.AST] = [*node.body]
    while stack:
        this = stack.pop()
        if isinstance(this, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(this, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack += ast.iter_child_nodes(this)
    return False


def _check_variability(
    name: str, reached: Reached, deterministic: bool | None, place: Location
) -> None:
    """Refuse code with random values or the clock, unless the decorator sets `deterministic`."""
    varying = sorted(set[str]().union(*drawn_by(reached.names, (), ())))
    if varying and deterministic is None:
        message = f"`{name}` uses {varying[0]}, so its results may vary"
        hint = "write @udf(…, deterministic=False), or True if they do not"
        raise Refused("python-udf", message, place, hint)
