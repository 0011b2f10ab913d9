"""Python modules as text: their imports, and the code that a function reaches. Pure.

No code is run. The invariant: the reached code includes everything that can change what a function
does. If a module only defines things, single statements of it count; if importing it does more, the
whole module counts; if names are looked up by value, everything counts.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.mentions import (
    OF_FUNCTIONS,
    Mentions,
    looks_around,
    mentions,
    shape,
    variables,
    without_docstring,
)
from persist_assets.compiler.frontends.module_text import Find, Imported, Module, parse_module
from persist_assets.compiler.frontends.quiet import Quiet
from persist_assets.core.errors import Location, Problem
from persist_assets.core.python_modules import absolute, files_of, is_foreign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# ------------------------------------------------------------------------------------- reaching


@dataclass(slots=True)
class Reached:
    """The code that a function reaches.

    Attributes
    ----------
    wording
        A digest of all project code in it.
    names
        The dotted names of other code: ``pyspark.sql.functions.rand``, ``open``.
    methods
        The names of called methods of any object: ``sample``.
    texts
        The strings in it.
    nodes
        All reached nodes, with their modules.
    modules
        The paths and texts of all files imported along with the function's module.
    """

    wording: str
    names: frozenset[str]
    methods: frozenset[str]
    texts: frozenset[str]
    nodes: list[tuple[Module, ast.AST]]
    modules: tuple[tuple[str, str], ...]


class Modules:
    """The modules of a project, read on import.

    Attributes
    ----------
    looked
        Every file that was looked up, with its content if it exists.
    problems
        The problems of imported files that are not Python.
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._made: dict[str, Module | None] = {}
        self._closures: dict[str, tuple[Module, ...]] = {}
        self._quiet: dict[str, bool] = {}
        self.looked: dict[str, str | None] = {}
        self.problems: dict[str, Problem] = {}

    def module(self, name: str) -> Module | None:
        """Return the module of the project that a dotted name means, or None."""
        if is_foreign(name):
            return None
        if name not in self._made:
            self._made[name] = None
            for path in files_of(name):
                text = self.read(path)
                if text is None:
                    continue
                try:
                    self._made[name] = parse_module(text, path)
                except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                    self.problems[path] = unparsable(error, path)
                break
        return self._made[name]

    def read(self, path: str) -> str | None:
        """Return the text of a file, or None."""
        if path not in self.looked:
            self.looked[path] = self._find(path)
        return self.looked[path]

    def resolve(self, dotted: Sequence[str]) -> tuple[Module, tuple[str, ...]] | None:
        """Return the longest prefix of a name that is a module, and the rest of the name."""
        for n in range(len(dotted), 0, -1):
            module = self.module(".".join(dotted[:n]))
            if module is not None:
                return module, tuple(dotted[n:])
        return None

    def closure(self, module: Module) -> tuple[Module, ...]:
        """Return a module and all project modules that it imports, transitively, by path."""
        members = self._closures.get(module.path)
        if members is None:
            by_path = {module.path: module}
            todo = [module]
            while todo:
                this = todo.pop()
                for name in self._imported(this):
                    other = self.module(name)
                    if other is not None and other.path not in by_path:
                        by_path[other.path] = other
                        todo.append(other)
            members = tuple(by_path[path] for path in sorted(by_path))
            self._closures[module.path] = members
        return members

    def _imported(self, module: Module) -> Iterator[str]:
        """Yield the modules that an import runs: the named ones, and their packages."""
        for name in (module.name, *module.imported):
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))

    def is_quiet(self, module: Module) -> bool:
        """Whether importing a module only defines things."""
        if module.path not in self._quiet:

            def own(name: str) -> bool:
                return any(self.resolve(i.dotted) for i in module.imports.get(name, ()))

            self._quiet[module.path] = Quiet(module, own).body(module.body)
        return self._quiet[module.path]

    def reach(self, module: Module, node: ast.FunctionDef) -> Reached:
        """Return the code that a top-level function of a module reaches."""
        return _Reach(self, module).function(node)


def unparsable(error: BaseException, path: str) -> Problem:
    """Return the problem of a file that is not Python."""
    if isinstance(error, SyntaxError):
        place = Location(path, error.lineno or 1, max(error.offset or 1, 1))
        return Problem("syntax", f"invalid Python: {error.msg}", place)
    if isinstance(error, RecursionError | MemoryError):
        return Problem("nesting", "the nesting is too deep", Location(path))
    return Problem("syntax", f"invalid Python: {error}", Location(path))


class _Reach:
    """The traversal of a project's modules for one function.

    Attributes
    ----------
    items
        By path, the canonical forms of reached statements, by number.
    todo
        Reached code that is not followed yet.
    """

    def __init__(self, modules: Modules, module: Module) -> None:
        self.modules, self.own = modules, module
        self.items: dict[str, dict[int, str]] = {}
        self.imports: set[tuple[str, str, tuple[str, ...]]] = set()
        self.names: set[str] = set()
        self.methods: set[str] = set()
        self.texts: set[str] = set()
        self.nodes: list[tuple[Module, ast.AST]] = []
        self.todo: list[tuple[Module, Mentions]] = []
        self.followed: set[tuple[str, tuple[str, ...]]] = set()

    def function(self, node: ast.FunctionDef) -> Reached:
        closure = self.modules.closure(self.own)
        head: list[ast.AST] = [*(d for d in node.decorator_list if not self.own.ours(d)), node.args]
        body = without_docstring(node.body)
        inside = [*head, *body]
        hidden = variables(node)
        self.nodes += ((self.own, i) for i in inside)
        self.todo += ((self.own, mentions(i, self.own, bare=True)) for i in head)
        self.todo += ((self.own, mentions(i, self.own, bare=True, hidden=hidden)) for i in body)
        for module in closure:
            if not self.modules.is_quiet(module):
                self.whole(module)
        self.visit_all()
        if looks_around(self.names):
            for module in closure:
                self.whole(module)
            self.visit_all()
        own_shapes = [shape(i, self.own, bare=True) for i in inside]
        items = sorted(
            (self.label(path), [text for _, text in sorted(statements.items())])
            for path, statements in self.items.items()
        )
        imports = sorted((self.label(path), *rest) for path, *rest in self.imports)
        return Reached(
            sha256(repr((own_shapes, items, imports)).encode()).hexdigest(),
            frozenset(self.names),
            frozenset(self.methods),
            frozenset(self.texts),
            self.nodes,
            tuple((m.path, m.text) for m in closure),
        )

    def label(self, path: str) -> str:
        """Return the name of a file in digests; the function's own location does not matter."""
        return path if path != self.own.path else ""

    def whole(self, module: Module) -> None:
        for number in range(len(module.body)):
            self.statement(module, number)
        for star in module.stars:
            other = self.modules.module(star)
            if other is not None and other.path not in self.items:
                self.whole(other)

    def statement(self, module: Module, number: int) -> None:
        items = self.items.setdefault(module.path, {})
        if number not in items:
            node = module.body[number]
            if number not in module.facts:
                module.facts[number] = shape(node, module), mentions(node, module)
            items[number], named = module.facts[number]
            self.nodes.append((module, node))
            self.todo.append((module, named))

    def visit_all(self) -> None:
        while self.todo:
            module, named = self.todo.pop()
            self.methods |= named.methods
            self.texts |= named.texts
            self.names |= OF_FUNCTIONS.intersection(named.methods | named.texts)
            for node in named.imports:
                self.imported(module, node)
            for chain in named.chains:
                self.names |= OF_FUNCTIONS.intersection(chain)
                self.chain(module, chain)

    def imported(self, module: Module, node: ast.Import | ast.ImportFrom) -> None:
        """Follow an import in reached code."""
        if isinstance(node, ast.Import):
            bindings = [(a.asname or a.name, Imported(a.name)) for a in node.names]
        else:
            origin = absolute(node.module or "", node.level, module.package)
            bindings = [
                (a.asname or a.name, Imported(origin, None if a.name == "*" else a.name))
                for a in node.names
                if origin is not None
            ]
        for name, binding in bindings:
            self.reached(module, name, binding.dotted)

    def chain(self, module: Module, chain: tuple[str, ...]) -> None:
        """Follow ``a.b.c`` by its meaning in a module."""
        name, rest = chain[0], chain[1:]
        origins = module.imports.get(name, ())
        for origin in origins:
            self.reached(module, name, (*origin.dotted, *rest))
        for number in module.bindings.get(name, ()):
            self.statement(module, number)
        if not origins and name not in module.bindings:
            if hasattr(builtins, name):
                self.names.add(".".join(chain))
            for star in module.stars:
                other = self.modules.module(star)
                if other is not None:
                    self.whole(other)
                else:
                    self.names.add(".".join((star, *chain)))

    def reached(self, module: Module, name: str, dotted: tuple[str, ...]) -> None:
        """Follow the target of an imported name."""
        for n in range(1, len(dotted)):  # what a package says itself hides a module in it
            package, member = self.modules.module(".".join(dotted[:n])), dotted[n : n + 1]
            if package is None or (package.path, member) in self.followed:
                continue
            if member[0] in package.bindings or member[0] in package.imports:
                self.followed.add((package.path, member))
                self.chain(package, member)
        target = self.modules.resolve(dotted)
        if target is None:
            self.imports.add((module.path, name, dotted))
            self.names.add(".".join(dotted))
            return
        other, rest = target
        self.imports.add((module.path, name, dotted[: len(dotted) - len(rest)]))
        if not rest or not (rest[0] in other.bindings or rest[0] in other.imports):
            self.whole(other)
        elif (other.path, rest) not in self.followed:
            self.followed.add((other.path, rest))
            self.chain(other, rest)
