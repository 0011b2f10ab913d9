"""The names in a piece of Python code."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.module_text import FunctionNode, Module, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_BY_VALUE = frozenset("eval exec compile globals locals vars __import__".split())
_LOOKING = frozenset(("importlib", "inspect", "runpy", "pkgutil", "gc", "ctypes"))
_OF_SYS = frozenset(("sys.modules", "sys._getframe"))
OF_FUNCTIONS = frozenset(("__builtins__", "__closure__", "__code__", "__dict__", "__globals__"))


def looks_around(names: Iterable[str]) -> bool:
    """Whether one of these names looks up other names at run time."""
    lookups = _BY_VALUE | _OF_SYS | OF_FUNCTIONS
    return any(n in lookups or n.partition(".")[0] in _LOOKING for n in names)


@dataclass(frozen=True, slots=True)
class Mentions:
    """The names in a piece of code.

    Attributes
    ----------
    chains
        Dotted names ``a.b.c`` whose `a` is not a variable of a function.
    methods, texts
        As in `Reached`.
    imports
        The imports in it.
    """

    chains: frozenset[tuple[str, ...]]
    methods: frozenset[str]
    texts: frozenset[str]
    imports: tuple[ast.Import | ast.ImportFrom, ...]


def mentions(
    root: ast.AST, module: Module, *, bare: bool = False, hidden: frozenset[str] = frozenset()
) -> Mentions:
    """Return the names in a piece of code.

    Parameters
    ----------
    bare
        As for `parts`.
    hidden
        The variables of enclosing functions.
    """
    chains: set[tuple[str, ...]] = set()
    methods: set[str] = set()
    texts: set[str] = set()
    imports: list[ast.Import | ast.ImportFrom] = []
    todo: list[tuple[ast.AST, bool, frozenset[str]]] = [(root, bare, hidden)]
    while todo:
        node, bare, hidden = todo.pop()
        chain = chain_of(node)
        if chain:
            if chain[0] not in hidden:
                chains.add(chain)
            continue
        texts.update(_texts_of_times(node))
        match node:
            case ast.Call(func=ast.Attribute(attr=name)):
                methods.add(name)
            case ast.Attribute(attr=name) if name in OF_FUNCTIONS:
                methods.add(name)
            case ast.Constant(value=str(text)):
                texts.add(text)
            case ast.Import() | ast.ImportFrom():
                imports.append(node)
            case _:
                pass
        bare = bare and not isinstance(node, FunctionNode | ast.ClassDef)
        within = hidden
        if isinstance(node, FunctionNode | ast.Lambda):
            within = (hidden - _declared(node)) | variables(node)
        for name, value in parts(node, module, bare)[1]:
            inside = value if isinstance(value, list) else [value]
            names = within if name == "body" else hidden
            todo += ((i, bare, names) for i in inside if isinstance(i, ast.AST))
    return Mentions(frozenset(chains), frozenset(methods), frozenset(texts), tuple(imports))


_MAKING_TIMES = frozenset("Timestamp datetime64 lit to_date to_datetime to_timestamp".split())


def _texts_of_times(node: ast.AST) -> Iterator[str]:
    """Yield texts that are compared, or from which times are made, in quotes as in SQL.

    In `df.day >= 'today'`, Spark reads the clock.
    """
    match node:
        case ast.Compare(left=left, comparators=others):
            operands = [left, *others]
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *_]) if (
            name in _MAKING_TIMES
        ):
            operands = [first]
        case _:
            return
    for operand in operands:
        if isinstance(operand, ast.Constant) and isinstance(operand.value, str):
            yield f"'{operand.value}'"


def _declared(node: ast.AST) -> frozenset[str]:
    """Return the names that a function declares as global."""
    body: list[ast.stmt] = [] if isinstance(node, ast.Lambda) else getattr(node, "body", [])
    declarations = (
        n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Global)
    )
    return frozenset(name for n in declarations for name in n.names)


def variables(node: FunctionNode | ast.Lambda) -> frozenset[str]:
    """Return the names that are variables in the whole function.

    Imported names and variables of comprehensions are not among them.
    """
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a]
    names = {a.arg for a in every}
    stack: list[ast.AST] = [] if isinstance(node, ast.Lambda) else [*node.body]
    while stack:
        this = stack.pop()
        match this:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(this.name)
                continue
            case ast.Lambda():
                continue
            case ast.comprehension():
                stack += [this.iter, *this.ifs]
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                names.add(this.id)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                names.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                names.add(name)
            case _:
                pass
        stack += ast.iter_child_nodes(this)
    return frozenset(names) - _declared(node)


def without_docstring(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    """Return statements without the docstring."""
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def parts(node: ast.AST, module: Module, bare: bool) -> tuple[str, list[tuple[str, object]]]:
    """Return the kind of a node, and its relevant fields.

    Docstrings and our own decorators are not relevant.

    Parameters
    ----------
    bare
        Type annotations are not relevant either, as for the parameters and variables of a source.
        Elsewhere libraries read them (`pandas_udf`, dataclasses).
    """
    fields: list[tuple[str, object]] = []
    for name, value in ast.iter_fields(node):
        if name in ("ctx", "kind", "type_comment") or value is None or value == []:
            continue
        if name == "body" and isinstance(node, FunctionNode | ast.ClassDef):
            value = list(without_docstring(value)) or [ast.Pass()]
        elif name == "decorator_list":
            value = [d for d in value if not module.ours(d)]
            if not value:
                continue
        elif name == "annotation" and bare and isinstance(node, ast.arg | ast.AnnAssign):
            continue
        fields.append((name, value))
    if bare and isinstance(node, ast.AnnAssign) and node.value is not None and node.simple:
        return "Assign", [("targets", [node.target]), ("value", node.value)]
    return type(node).__name__, fields


def shape(root: ast.AST, module: Module, *, bare: bool = False) -> str:
    """Return a canonical form of a piece of code, without layout, comments and docstrings.

    It is the same in every version of Python.
    """
    words: list[str] = []
    stack: list[tuple[object, bool]] = [(root, bare)]
    while stack:
        item, bare = stack.pop()
        if isinstance(item, str):
            words.append(item)
        elif isinstance(item, tuple):
            words.append(f"{type(item[0]).__name__} {item[0]!r}")
        elif isinstance(item, list):
            words.append("[")
            stack.append(("]", bare))
            stack += ((i if isinstance(i, ast.AST) else (i,), bare) for i in reversed(item))
        elif isinstance(item, ast.AST):
            bare = bare and not isinstance(item, FunctionNode | ast.ClassDef)
            kind, fields = parts(item, module, bare)
            words.append(f"{kind}(")
            stack.append((")", bare))
            for name, value in reversed(fields):
                stack.append((value if isinstance(value, ast.AST | list) else (value,), bare))
                stack.append((f".{name}", bare))
    return " ".join(words)
