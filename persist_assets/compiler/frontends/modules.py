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
    OF_PLACES,
    Mentions,
    docstrings,
    looks_around,
    looks_at_classes,
    mentions,
    shape,
    shows_docs,
    shows_place,
    shows_text,
    special_among,
    variables,
    without_docstring,
    words_of,
)
from persist_assets.compiler.frontends.module_text import (
    Find,
    FunctionNode,
    Imported,
    Module,
    parse_module,
)
from persist_assets.compiler.frontends.quiet import Quiet
from persist_assets.core.errors import Location, Problem
from persist_assets.core.python_modules import absolute, files_of, is_foreign, name_of

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
        self._packages: dict[str, dict[str, list[Module]]] = {}
        self._quiet: dict[tuple[str, str], bool] = {}
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
                    plain = name == name_of(path)
                    self._made[name] = parse_module(text, path, None if plain else name)
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
        """Return a module and all project modules that it imports, transitively, by path.

        A file that is imported by two names is two modules.
        """
        members = self._closures.get(module.name)
        if members is None:
            by_name = {module.name: module}
            todo = [module]
            while todo:
                this = todo.pop()
                for name in self._imported(this):
                    other = self.module(name)
                    if other is not None and other.name not in by_name:
                        by_name[other.name] = other
                        todo.append(other)
            members = tuple(sorted(by_name.values(), key=lambda m: (m.path, m.name)))
            self._closures[module.name] = members
        return members

    def _imported(self, module: Module) -> Iterator[str]:
        """Yield the modules that an import runs: the named ones, and their packages."""
        for name in (module.name, *module.imported):
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))

    def is_quiet(self, module: Module, root: Module | None = None) -> bool:
        """Whether importing a module only defines things.

        Parameters
        ----------
        root
            The module whose imports tell the project's directories from libraries.
        """
        among = root or module
        key = module.name, among.name
        if key not in self._quiet:

            def own(name: str) -> bool:
                return any(
                    self.resolve(i.dotted) or self.below(among, i.dotted)
                    for i in module.imports.get(name, ())
                )

            self._quiet[key] = Quiet(module, own, self.definitions).body(module.body)
        return self._quiet[key]

    def below(self, root: Module, dotted: Sequence[str]) -> list[Module]:
        """Return the modules in a package, and itself, among those that a module imports."""
        packages = self._packages.get(root.name)
        if packages is None:
            packages = self._packages[root.name] = {}
            for module in self.closure(root):
                parts = module.name.split(".")
                for n in range(1, len(parts) + 1):
                    packages.setdefault(".".join(parts[:n]), []).append(module)
        return packages.get(".".join(dotted), [])

    def definitions(
        self, module: Module, chain: Sequence[str]
    ) -> list[tuple[Module, ast.stmt]] | None:
        """Return the statements of the project that define a name; None if some are unknown."""
        statements: list[tuple[Module, ast.stmt]] = []
        todo, done = [(module, tuple(chain))], set[tuple[str, tuple[str, ...]]]()
        while todo:
            this, names = todo.pop()
            if (this.name, names) in done:
                continue
            done.add((this.name, names))
            statements += ((this, this.body[n]) for n in this.bindings.get(names[0], ()))
            for origin in this.imports.get(names[0], ()):
                target = self.resolve((*origin.dotted, *names[1:]))
                if target is not None and target[1]:
                    todo.append(target)
            if this is not module and names[0] not in {**this.bindings, **this.imports}:
                return None
        return statements

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


def _is_function(module: Module, names: Sequence[str]) -> bool:
    """Whether a name in a module is that of functions."""
    numbers = module.bindings.get(names[0], ()) if len(names) == 1 else ()
    return bool(numbers) and all(isinstance(module.body[n], FunctionNode) for n in numbers)


class _Reach:
    """The traversal of a project's modules for one function.

    Attributes
    ----------
    items
        By path, the canonical forms of reached statements, by number.
    todo
        Reached code that is not followed yet.
    seen, wholes
        Statements and modules that are followed. A file imported by two names is two modules.
    special, lookups
        As in `Mentions`; of a lookup, the names that it never finds in modules.
    names_place
        Whether the code reads the name or the path of the function's own module.
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
        self.wholes: set[str] = set()
        self.seen: set[tuple[str, int]] = set()
        self.special: set[str] = set()
        self.lookups: set[frozenset[str]] = set()
        self.names_place = False

    def function(self, node: ast.FunctionDef) -> Reached:
        closure = self.modules.closure(self.own)
        head: list[ast.AST] = [*(d for d in node.decorator_list if not self.own.ours(d)), node.args]
        body = without_docstring(node.body)
        inside = [*head, *body]
        hidden = variables(node)
        self.nodes += ((self.own, i) for i in inside)
        self.todo += ((self.own, mentions(i, self.own, bare=True)) for i in head)
        self.todo += (
            (self.own, mentions(i, self.own, bare=True, hidden=hidden, function=node)) for i in body
        )
        for module in closure:
            if not self.modules.is_quiet(module, self.own):
                self.whole(module)
        self.visit_all()
        self.look_up(closure)
        shown = self.shown(closure)
        own_shapes = [shape(i, self.own, bare=True) for i in inside]
        items = sorted(
            (self.label(path), [text for _, text in sorted(statements.items())])
            for path, statements in self.items.items()
        )
        imports = sorted((self.label(path), *rest) for path, *rest in self.imports)
        return Reached(
            sha256(repr((own_shapes, items, imports, *shown)).encode()).hexdigest(),
            frozenset(self.names),
            frozenset(self.methods),
            frozenset(self.texts),
            self.nodes,
            tuple({m.path: m.text for m in closure}.items()),
        )

    def look_up(self, closure: Sequence[Module]) -> None:
        """Follow what the reached code looks up by value, and what that looks up in turn."""
        looked: set[tuple[str, str]] = set()
        while True:
            self.special |= special_among(self.names)
            if looks_around(self.names) or looks_at_classes(self.special):
                for module in closure:
                    self.whole(module)
            if self.lookups:
                texts = [*self.texts, *(d for _, docs in self.docs(closure) for d in docs)]
                words = frozenset[str]().union(*map(words_of, texts))
                words -= frozenset.intersection(*self.lookups)
                for module in closure:
                    for word in sorted(words & {*module.bindings, *module.imports}):
                        if (module.name, word) not in looked:
                            looked.add((module.name, word))
                            self.chain(module, (word,))
            if not self.todo:
                return
            self.visit_all()

    def docs(self, closure: Sequence[Module]) -> list[tuple[str, list[str]]]:
        """Return the docstrings by file, if the reached code may read any."""
        if not shows_docs(self.special):
            return []
        return [(self.label(m.path), docstrings(m)) for m in closure]

    def shown(self, closure: Sequence[Module]) -> list[object]:
        """Return docstrings, texts and the path, if the reached code may read them."""
        docs = self.docs(closure)
        self.texts |= {text for _, texts in docs for text in texts}
        shown: list[object] = [docs] if docs else []
        if shows_text(self.special):
            shown.append([(m.path, m.text) for m in closure])
        words = frozenset[str]().union(*(words_of(t) for t in self.texts if "__" in t))
        if self.names_place or shows_place(self.special) or words & OF_PLACES:
            shown.append(self.own.path)
        return shown

    def is_own(self, module: Module, chain: Sequence[str]) -> bool:
        """Whether a name in a module means only functions of the project, by imports."""
        origins = module.imports.get(chain[0], ()) if chain else ()
        targets = [self.modules.resolve((*i.dotted, *chain[1:])) for i in origins]
        return bool(targets) and all(t is not None and _is_function(*t) for t in targets)

    def label(self, path: str) -> str:
        """Return the name of a file in digests; the function's own location does not matter."""
        return path if path != self.own.path else ""

    def whole(self, module: Module) -> None:
        if module.name in self.wholes:
            return
        self.wholes.add(module.name)
        for number in range(len(module.body)):
            self.statement(module, number)
        for star in module.stars:
            other = self.modules.module(star)
            if other is not None:
                self.whole(other)

    def statement(self, module: Module, number: int) -> None:
        items = self.items.setdefault(module.path, {})
        if (module.name, number) not in self.seen:
            self.seen.add((module.name, number))
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
            self.special |= named.special
            self.lookups |= {
                names for lookup, names in named.lookups if not self.is_own(module, lookup)
            }
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
            is_relative = bool(node.level)
            bindings = [
                (
                    a.asname or a.name,
                    Imported(origin, None if a.name == "*" else a.name, is_relative),
                )
                for a in node.names
                if origin is not None
            ]
        for name, binding in bindings:
            self.reached(module, name, binding.dotted, is_relative=binding.relative)

    def chain(self, module: Module, chain: tuple[str, ...]) -> None:
        """Follow ``a.b.c`` by its meaning in a module."""
        name, rest = chain[0], chain[1:]
        origins = module.imports.get(name, ())
        for origin in origins:
            dotted = (*origin.dotted, *rest)
            self.reached(module, name, dotted, is_relative=origin.relative)
        for number in module.bindings.get(name, ()):
            self.statement(module, number)
        if module.path == self.own.path and (name in OF_PLACES or "__module__" in rest):
            self.names_place = True
        if not origins and name not in module.bindings:
            if hasattr(builtins, name):
                self.names.add(".".join(chain))
            for star in module.stars:
                other = self.modules.module(star)
                if other is not None:
                    self.whole(other)
                    self.member(other, chain)
                else:
                    self.names.add(".".join((star, *chain)))
            self.member(module, chain)

    def member(self, package: Module, chain: tuple[str, ...]) -> None:
        """Follow a global of a package that is a module in it, which any import may create."""
        name = f"{package.name}.{chain[0]}"
        if package.path.endswith("/__init__.py") and self.modules.below(self.own, name.split(".")):
            self.reached(package, chain[0], (*package.name.split("."), *chain))

    def value(self, dotted: Sequence[str]) -> None:
        """Count all imported modules of a package that is used as a value."""
        for module in self.modules.below(self.own, dotted):
            self.whole(module)

    def reached(
        self, module: Module, name: str, dotted: tuple[str, ...], *, is_relative: bool = False
    ) -> None:
        """Follow the target of an imported name."""
        for n in range(1, len(dotted)):  # what a package says itself hides a module in it
            package, member = self.modules.module(".".join(dotted[:n])), dotted[n : n + 1]
            if package is None or (package.name, member) in self.followed:
                continue
            if member[0] in package.bindings or member[0] in package.imports:
                self.followed.add((package.name, member))
                self.chain(package, member)
        target = self.modules.resolve(dotted)
        if target is None:
            self.imports.add((module.path, name, dotted))
            self.names.add(".".join(dotted))
            for n in range(len(dotted), 0, -1):  # a package without a file of its own
                if self.modules.below(self.own, dotted[:n]):
                    self.value(dotted[:n])
                    break
            return
        other, rest = target
        prefix = dotted[: len(dotted) - len(rest)]
        if is_relative and module.name.startswith("src.") and len(prefix) > 1:
            plain = self.modules.module(".".join(prefix[1:]))  # the same file by either name
            prefix = prefix[1:] if plain and plain.path == other.path else prefix
        self.imports.add((module.path, name, prefix))
        if not rest or not (rest[0] in other.bindings or rest[0] in other.imports):
            self.items.setdefault(other.path, {})
            self.whole(other)
            self.value(other.name.split("."))
        elif (other.name, rest) not in self.followed:
            self.followed.add((other.name, rest))
            self.chain(other, rest)
