"""A Python module as text: its definitions and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location
from persist_assets.core.python_modules import PACKAGE, absolute, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Find = Callable[[str], str | None]
"""Returns the text of a file by its path relative to the project root, None if there is no file."""

DECORATORS = ("source", "model", "table", "incremental_table")
"""The decorators of this package for sources."""
UDF = "udf"
"""The decorator for functions that queries call."""

_HOMES = ([PACKAGE], [PACKAGE, "decorators"])
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Imported:
    """The meaning of a name that an import binds.

    Attributes
    ----------
    attribute
        None if it is the module itself.
    relative
        Whether the import is relative.
    """

    module: str
    attribute: str | None = None
    relative: bool = False

    @property
    def dotted(self) -> tuple[str, ...]:
        """The parts of the full name."""
        parts = self.module.split(".")
        return (*parts, self.attribute) if self.attribute else tuple(parts)


@dataclass(slots=True, eq=False)
class Module:
    """One file.

    Attributes
    ----------
    name, package
        The dotted names that it is imported by; relative imports start from the package.
    body
        Its statements, without those that are never run or only for type checkers.
    bindings
        For each name, the numbers of the statements that bind it.
    imports
        For each name, the imports that bind it, anywhere in the file.
    typed
        The same for imports that only type checkers see.
    stars, imported
        The modules of which everything, or anything, is imported.
    lines
        The lines of the text, as Python counts them.
    facts
        A cache of facts about its statements, for all functions that reach them.
    """

    path: str
    name: str
    package: str
    text: str
    tree: ast.Module
    body: list[ast.stmt] = field(default_factory=list[ast.stmt])
    bindings: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    imports: dict[str, list[Imported]] = field(default_factory=dict[str, list[Imported]])
    typed: dict[str, list[Imported]] = field(default_factory=dict[str, list[Imported]])
    stars: list[str] = field(default_factory=list[str])
    imported: list[str] = field(default_factory=list[str])
    lines: list[str] = field(default_factory=list[str])
    facts: dict[object, Any] = field(default_factory=dict[object, Any])

    def ours(self, node: ast.expr) -> str | None:
        """Return the decorator of ours that an expression names, or None."""
        chain = chain_of(node.func if isinstance(node, ast.Call) else node)
        for origin in self.imports.get(chain[0], ()) if chain else ():
            *home, name = (*origin.dotted, *chain[1:])
            if home in _HOMES and name in (*DECORATORS, UDF):
                return name
        if PACKAGE in self.stars and len(chain) == 1 and chain[0] in (*DECORATORS, UDF):
            return chain[0]
        return None

    def is_udf(self, node: FunctionNode | ast.ClassDef) -> bool:
        """Whether queries call a function."""
        return any(self.ours(d) == UDF for d in node.decorator_list)

    def place(self, node: ast.AST) -> Location:
        """Return the location of a node."""
        line: int = getattr(node, "lineno", 1)
        at: int = getattr(node, "col_offset", 0)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return Location(self.path, line, len(text.encode()[:at].decode(errors="replace")) + 1)


def chain_of(node: ast.AST) -> tuple[str, ...]:
    """Return the names of ``a.b.c``, or nothing for another expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


_CHECKING = tuple((home, "TYPE_CHECKING") for home in ("typing", "typing_extensions"))


def _checking_names(tree: ast.Module) -> frozenset[tuple[str, ...]]:
    """Return the names in a file that are false except for type checkers, such as `typing`'s."""
    false: set[tuple[str, ...]] = set()
    other: set[str] = set()
    for statement in tree.body:
        for node in _outside_functions(statement):
            match node:
                case ast.Import(names=aliases):
                    for a in aliases:
                        bound = a.asname or a.name.partition(".")[0]
                        is_typing = (a.name, "TYPE_CHECKING") in _CHECKING
                        false |= {(bound, "TYPE_CHECKING")} if is_typing else set()
                        other |= set() if is_typing else {bound}
                case ast.ImportFrom(module=home, names=aliases, level=level):
                    for a in aliases:
                        is_typing = not level and (home, a.name) in _CHECKING
                        false |= {(a.asname or a.name,)} if is_typing else set()
                        other |= set() if is_typing else {a.asname or a.name}
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=False)) if (
                    name == "TYPE_CHECKING"
                ):
                    false.add((name,))
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=False)) if (
                    name == "TYPE_CHECKING"
                ):
                    false.add((name,))
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.With():
                    other.update(_bound(node))
                case ast.NamedExpr(target=ast.Name(id=name)):
                    other.add(name)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    other.add(node.name)
                case ast.Global(names=names):
                    other.update(names)
                case _:
                    pass
    return frozenset(chain for chain in false if chain[0] not in other)


def _outside_functions(root: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, without the bodies of functions and classes."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            stack += ast.iter_child_nodes(node)


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]):
            return True
        case _:
            return False


@lru_cache(maxsize=64)
def parse_module(text: str, path: str, name: str | None = None) -> Module:
    """Return a file as a module, which is immutable because importing files share it.

    Parameters
    ----------
    name
        The name that it is imported by, if its path suggests another.

    Raises
    ------
    SyntaxError, ValueError, RecursionError, MemoryError
        It is not Python.
    """
    tree = ast.parse(text, path)
    name = name or name_of(path)
    is_package = path.endswith("/__init__.py")
    module = Module(path, name, name if is_package else name.rpartition(".")[0], text, tree)
    module.lines = re.split(r"\r\n|\r|\n", text)
    checking = _checking_names(tree)
    for statement in tree.body:
        if isinstance(statement, ast.If) and chain_of(statement.test) in checking:
            _learn_imports(module, statement.body, module.typed)
            module.body += statement.orelse
        elif isinstance(statement, ast.If) and _is_main(statement.test):
            module.body += statement.orelse
        else:
            module.body.append(statement)
    _learn_imports(module, module.body, module.imports)
    for number, statement in enumerate(module.body):
        for bound in _bound(statement):
            module.bindings.setdefault(bound, []).append(number)
    _learn_choices(module)
    return module


def _learn_choices(module: Module) -> None:
    """Treat imports as bindings if their statements decide between several meanings of a name.

    This includes the imports of a package, whose names may be those of modules in it.
    """
    places: dict[str, list[int]] = {}
    chosen: set[str] = set()
    for number, statement in enumerate(module.body):
        stack: list[ast.AST] = [statement]
        while stack:
            node = stack.pop()
            if isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {a.asname or a.name.partition(".")[0] for a in node.names}
                for name in names:
                    places.setdefault(name, []).append(number)
                if node is not statement or module.path.endswith("/__init__.py"):
                    chosen |= names
            stack += ast.iter_child_nodes(node)
    for name, numbers in places.items():
        if name in chosen or len(numbers) > 1 or name in module.bindings:
            own_numbers = module.bindings.get(name, [])
            module.bindings[name] = sorted({*own_numbers, *numbers})


def _learn_imports(
    module: Module, body: Sequence[ast.stmt], imports: dict[str, list[Imported]]
) -> None:
    typed = imports is module.typed
    for node in (n for statement in body for n in ast.walk(statement)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                bound = alias.asname or whole
                imports.setdefault(bound, []).append(Imported(whole))
                if not typed:
                    module.imported.append(alias.name)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(node.module or "", node.level, module.package)
            if origin is None:
                continue  # it fails
            for alias in node.names:
                if alias.name == "*":
                    if not typed:
                        module.stars.append(origin)
                else:
                    target = Imported(origin, alias.name, bool(node.level))
                    imports.setdefault(alias.asname or alias.name, []).append(target)
                if not typed:
                    module.imported += [origin, f"{origin}.{alias.name}"]


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, except by imports."""
    if isinstance(statement, FunctionNode | ast.ClassDef):
        yield statement.name
        return
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        if isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Global | ast.MatchAs | ast.MatchStar | ast.ExceptHandler):
            names = node.names if isinstance(node, ast.Global) else [node.name]
            yield from (n for n in names if n)
        stack += ast.iter_child_nodes(node)


UNSEEN = frozenset(("eval", "exec", "__import__", "importlib", "runpy", "pkgutil"))
"""Functions that import or run code that the text does not show."""
