"""The names in a piece of Python code."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.module_text import FunctionNode, Module, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_BY_VALUE = frozenset("eval exec compile globals locals vars __import__".split())
_LOOKING = frozenset(("importlib", "inspect", "runpy", "pkgutil", "gc", "ctypes"))
_OF_SYS = frozenset(("sys.modules", "sys._getframe"))
OF_FUNCTIONS = frozenset(("__builtins__", "__closure__", "__code__", "__dict__", "__globals__"))
_OF_CLASSES = frozenset(("__annotations__", "__subclasses__", "get_type_hints"))

OF_PLACES = frozenset("__file__ __module__ __name__ __package__ __path__ __spec__".split())
"""Names in every module whose values depend on its file."""
_SHOWING_PLACES = frozenset(("__code__", "__globals__", "_getframe", "inspect"))
_SHOWING_DOCS = frozenset("__code__ __doc__ getdoc help inspect pydoc".split())
_SHOWING_TEXT = frozenset("findsource getcomments getsource getsourcelines".split())
_ROOTS = frozenset(("help", "inspect", "pydoc"))
_SPECIAL = (_OF_CLASSES | _SHOWING_PLACES | _SHOWING_DOCS | _SHOWING_TEXT) - _ROOTS


def looks_around(names: Iterable[str]) -> bool:
    """Whether one of these names looks up other names at run time."""
    lookups = _BY_VALUE | _OF_SYS | OF_FUNCTIONS
    return any(n in lookups or n.partition(".")[0] in _LOOKING for n in names)


def looks_at_classes(special: Iterable[str]) -> bool:
    """Whether special names read the subclasses or the annotations of a class or function."""
    return not _OF_CLASSES.isdisjoint(special)


def shows_place(special: Iterable[str]) -> bool:
    """Whether special names give access to the path of the code that uses them."""
    return not _SHOWING_PLACES.isdisjoint(special)


def shows_docs(special: Iterable[str]) -> bool:
    """Whether special names give access to docstrings."""
    return not _SHOWING_DOCS.isdisjoint(special)


def shows_text(special: Iterable[str]) -> bool:
    """Whether special names give access to the text of a file."""
    return not _SHOWING_TEXT.isdisjoint(special)


Lookup = tuple[tuple[str, ...], frozenset[str]]
"""The called function, if it has a name, and the names of parameters and arguments."""


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
    special
        The names in it, also as attributes or texts, that show docstrings, texts or paths of code.
    lookups
        The calls that look up names in texts, each with the names that it never finds in modules.
    """

    chains: frozenset[tuple[str, ...]]
    methods: frozenset[str]
    texts: frozenset[str]
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    special: frozenset[str]
    lookups: frozenset[Lookup]


def mentions(
    root: ast.AST,
    module: Module,
    *,
    bare: bool = False,
    hidden: frozenset[str] = frozenset(),
    function: FunctionNode | None = None,
) -> Mentions:
    """Return the names in a piece of code.

    Parameters
    ----------
    bare
        As for `parts`.
    hidden
        The variables of enclosing functions.
    function
        The enclosing function.
    """
    special, lookups = _special_of(root), frozenset(_lookups(root, module, function))
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
        if _is_logger_by_name(node, module):
            chains.add(chain_of(getattr(node, "func", node)))
            methods.add("getLogger")
            continue
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
    return Mentions(
        frozenset(chains), frozenset(methods), frozenset(texts), tuple(imports), special, lookups
    )


def _special_of(root: ast.AST) -> frozenset[str]:
    """Return the special names in a piece of code, in any role."""
    names: set[str] = set()
    for node in ast.walk(root):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                names.add(name)
            case ast.Constant(value=str(text)) if "__" in text or text in _SPECIAL:
                names.update(words_of(text))
            case _:
                pass
    return frozenset(names & _SPECIAL)


def special_among(names: Iterable[str]) -> frozenset[str]:
    """Return the special names among the dotted names of other code."""
    parts = [name.split(".") for name in names]
    special = {part for name in parts for part in name} & _SPECIAL
    return frozenset(special | ({name[0] for name in parts} & _ROOTS))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text that may be names."""
    return frozenset(re.findall(r"[^\W\d]\w*", text))


def _is_logger_by_name(node: ast.AST, module: Module) -> bool:
    """Whether a node is ``logging.getLogger(__name__)``, whose name does not affect rows."""
    match node:
        case ast.Call(func=func, args=[ast.Name("__name__")], keywords=[]):
            chain = chain_of(func)
        case _:
            return False
    origins = [(*i.dotted, *chain[1:]) for i in module.imports.get(chain[0], ())] if chain else []
    return origins == [("logging", "getLogger")] and chain[0] not in module.bindings


_LOOKUP_CALLS = frozenset("eval evaluate query re_evaluate sql".split())
_CONNECTED_CALLS = frozenset("execute executemany from_query".split())
_LOOKUP_LIBRARIES = frozenset("chdb duckdb formulaic numexpr pandasql patsy statsmodels".split())


def _lookups(root: ast.AST, module: Module, function: FunctionNode | None) -> Iterator[Lookup]:
    """Yield the calls that look up names of a text in their frame. Spark's `sql` does not."""
    stack: list[tuple[ast.AST, FunctionNode | ast.Lambda | None]] = [(root, function)]
    while stack:
        node, around = stack.pop()
        if isinstance(node, FunctionNode | ast.Lambda):
            around = node
        if isinstance(node, ast.Call) and _is_lookup(node.func, module, around):
            keywords = {k.arg for k in node.keywords if k.arg}
            parameters = _parameters(around) if around else set[str]()
            yield chain_of(node.func), frozenset(keywords | parameters)
        stack += ((child, around) for child in ast.iter_child_nodes(node))


def _is_lookup(func: ast.expr, module: Module, around: FunctionNode | ast.Lambda | None) -> bool:
    """Whether a called function looks up names of a text, as far as its name shows."""
    chain = chain_of(func)
    origins = [i.dotted for i in module.imports.get(chain[0], ())] if chain else []
    if any(origin[0] in _LOOKUP_LIBRARIES for origin in origins):
        return True
    names = {(*origin, *chain[1:])[-1] for origin in origins}
    match func:
        case ast.Attribute(attr=name):
            names.add(name)
        case ast.Name(id=name) if name not in module.bindings:
            names.add(name)
        case _:
            return False
    if not names.isdisjoint(_CONNECTED_CALLS):
        imported = {i.dotted[0] for every in module.imports.values() for i in every}
        return not imported.isdisjoint({*_LOOKUP_LIBRARIES, "polars"})
    if names == {"sql"} and isinstance(func, ast.Attribute):
        return not _is_session(func.value, around)
    return not names.isdisjoint(_LOOKUP_CALLS)


def _is_session(node: ast.expr, around: FunctionNode | ast.Lambda | None) -> bool:
    """Whether an expression is a Spark session, as far as its text shows."""
    chain = chain_of(node)
    if "spark" in (chain[-1] if chain else ast.unparse(node)).lower():
        return True
    if len(chain) != 1 or around is None:
        return False
    arguments = around.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg == chain[0] and argument.annotation is not None:
            return "SparkSession" in ast.unparse(argument.annotation)
    return False


def _parameters(node: FunctionNode | ast.Lambda) -> set[str]:
    """Return the names of a function's parameters."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a]
    return {a.arg for a in every}


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
    names = _parameters(node)
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


def docstrings(module: Module) -> list[str]:
    """Return the docstrings in a file."""
    if "docstrings" not in module.facts:
        texts = (
            ast.get_docstring(n, clean=False)
            for n in ast.walk(module.tree)
            if isinstance(n, FunctionNode | ast.ClassDef | ast.Module)
        )
        module.facts["docstrings"] = [text for text in texts if text is not None]
    return module.facts["docstrings"]


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
