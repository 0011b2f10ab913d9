"""Modules of Python as text: what they import, and which code a function reaches. Pure.

No code is run. The invariant: what can change what a function does is among what it is found to
reach. Statements of modules are told apart where a module only defines things; where importing it
does more than that, all of it counts, and where names are looked up by value, all of everything.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import Location, Problem
from persist_assets.core.python_modules import PACKAGE, absolute, files_of, is_foreign, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Find = Callable[[str], str | None]
"""Returns the text of a file by its path relative to the project root, None where there is none."""

DECORATORS = ("source", "model", "table", "incremental_table")
"""What of this package's stands above functions."""

_HOMES = ([PACKAGE], [PACKAGE, "decorators"])

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Imported:
    """What a name stands for that an import binds.

    Attributes
    ----------
    attribute
        None where it is the module itself.
    """

    module: str
    attribute: str | None = None

    @property
    def dotted(self) -> tuple[str, ...]:
        """The parts of the whole name."""
        parts = self.module.split(".")
        return (*parts, self.attribute) if self.attribute else tuple(parts)


@dataclass(slots=True, eq=False)
class Module:
    """One file.

    Attributes
    ----------
    name, package
        Dotted; the package is what relative imports count from.
    body
        Its statements, without what is never run or only typed.
    bindings
        For each name the numbers of the statements that bind it.
    imports
        For each name what imports bind to it, anywhere in the file.
    typed
        The same of imports that only type checkers see.
    stars, imported
        The modules of which everything, or anything, is imported.
    lines
        Of the text, as Python counts them.
    known
        What was found out about its statements, for all functions that reach them.
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
    known: dict[object, Any] = field(default_factory=dict[object, Any])

    def ours(self, node: ast.expr) -> str | None:
        """Return which of our decorators an expression names, or None."""
        chain = chain_of(node.func if isinstance(node, ast.Call) else node)
        for found in self.imports.get(chain[0], ()) if chain else ():
            *home, name = (*found.dotted, *chain[1:])
            if home in _HOMES and name in DECORATORS:
                return name
        if PACKAGE in self.stars and len(chain) == 1 and chain[0] in DECORATORS:
            return chain[0]
        return None

    def place(self, node: ast.AST) -> Location:
        """Return where a node is."""
        line: int = getattr(node, "lineno", 1)
        at: int = getattr(node, "col_offset", 0)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return Location(self.path, line, len(text.encode()[:at].decode(errors="replace")) + 1)


def chain_of(node: ast.AST) -> tuple[str, ...]:
    """Return the names of ``a.b.c``, or nothing where it is something else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _is_for_types(test: ast.expr) -> bool:
    return bool(chain_of(test)) and chain_of(test)[-1] == "TYPE_CHECKING"


def _is_main(test: ast.expr) -> bool:
    match test:
        case ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]):
            return True
        case _:
            return False


@lru_cache(maxsize=64)
def parse_module(text: str, path: str) -> Module:
    """Return a file as a module, which nobody changes: files that import one share it.

    Raises
    ------
    SyntaxError, ValueError, RecursionError, MemoryError
        It is not Python.
    """
    tree = ast.parse(text, path)
    name = name_of(path)
    is_package = path.endswith("/__init__.py")
    module = Module(path, name, name if is_package else name.rpartition(".")[0], text, tree)
    module.lines = re.split(r"\r\n|\r|\n", text)
    for statement in tree.body:
        if isinstance(statement, ast.If) and _is_for_types(statement.test):
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
    """Let imports be bindings whose statements say which of several things a name is.

    So do those of a package, whose names may be those of modules in it.
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
            known = module.bindings.get(name, [])
            module.bindings[name] = sorted({*known, *numbers})


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
                continue
            for alias in node.names:
                if alias.name == "*":
                    if not typed:
                        module.stars.append(origin)
                else:
                    found = Imported(origin, alias.name)
                    imports.setdefault(alias.asname or alias.name, []).append(found)
                if not typed:
                    module.imported += [origin, f"{origin}.{alias.name}"]


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, imports aside."""
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


# ----------------------------------------------------------------------------- only definitions

_PURE = frozenset(
    """
    abs all any bool bytes chr complex dict divmod enumerate filter float frozenset int isinstance
    issubclass len list map max min object ord pow property range repr reversed round set slice
    sorted str sum super tuple type zip
    """.split()
)
"""Builtins that change nothing of what they are given."""
_CALLING = frozenset(("filter", "map"))
"""Those that call their first argument. What is a `key` is called too."""
_CHANGING = re.compile(
    r"(__|add|append|basic|chdir|clear|config|delattr|disable|enable|exec|eval|filterwarnings|insert"
    r"|install|load_dotenv|patch|pop|put|register|remove|seed|set|simplefilter|update|use)"
)
"""How functions are called that change something elsewhere, as ``locale.setlocale``."""


@dataclass(slots=True)
class _Quiet:
    """Tells whether importing a module does no more than define things."""

    module: Module
    own: Callable[[str], bool]

    def body(self, body: Iterable[ast.stmt]) -> bool:
        return all(self.statement(s) for s in body)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Import() | ast.Pass():
                return True
            case ast.ImportFrom():
                return not any(alias.name == "*" for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                values = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
                return self.decorators(node.decorator_list) and all(map(self.value, values))
            case ast.ClassDef():
                bases = all(self.is_external(b) or self.is_builtin(b) for b in node.bases)
                return (
                    bases
                    and not node.keywords
                    and self.decorators(node.decorator_list)
                    and self.body(node.body)
                )
            case ast.Assign():
                return all(map(self.target, node.targets)) and self.value(node.value)
            case ast.AnnAssign():
                return self.target(node.target) and (node.value is None or self.value(node.value))
            case ast.Expr():
                return isinstance(node.value, ast.Constant)
            case ast.If():
                return self.value(node.test) and self.body([*node.body, *node.orelse])
            case ast.Try():
                handled = [s for handler in node.handlers for s in handler.body]
                return self.body([*node.body, *handled, *node.orelse, *node.finalbody])
            case _:
                return False

    def target(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Tuple | ast.List):
            return all(map(self.target, node.elts))
        return isinstance(node, ast.Name)

    def decorators(self, nodes: Iterable[ast.expr]) -> bool:
        return all(
            self.module.ours(node)
            or chain_of(node) in {("staticmethod",), ("classmethod",), ("property",)}
            or (self.is_external(node) and self.given(node) and not self.changes(node))
            for node in nodes
        )

    def given(self, decorator: ast.expr) -> bool:
        """Whether what a decorator is called with does no more than define things."""
        return all(self.value(arg) for arg in _arguments(decorator))

    def value(self, node: ast.expr) -> bool:
        stack: list[ast.AST] = [node]
        while stack:
            this = stack.pop()
            if isinstance(this, ast.Lambda):
                stack += [*this.args.defaults, *(d for d in this.args.kw_defaults if d)]
                continue
            if isinstance(this, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
                return False
            if isinstance(this, ast.Call) and not self.call(this):
                return False
            stack += ast.iter_child_nodes(this)
        return True

    def call(self, node: ast.Call) -> bool:
        chain, given = chain_of(node.func), _arguments(node)
        others = self.is_external(node.func) or self.is_builtin(node.func)
        if self.is_builtin(node.func) and chain[0] in _PURE:
            called = [k.value for k in node.keywords if k.arg in (None, "key")]
            given = [*called, *(node.args[:1] if chain[0] in _CALLING else ())]
        elif not others or self.changes(node.func):
            return False
        names = {n.id for g in given for n in ast.walk(g) if isinstance(n, ast.Name)}
        return not any(n in self.module.bindings or self.own(n) for n in names)

    def changes(self, node: ast.expr) -> bool:
        """Whether what is called is called as if it changed something elsewhere.

        What was made by a call of others' is ours: `StructType().add(…)` changes nothing else. But
        what a function in lower case returns may be others', as ``decimal.getcontext()``.
        """
        func = node.func if isinstance(node, ast.Call) else node
        if isinstance(func, ast.Name):
            imported = self.module.imports.get(func.id, ())
            return any(
                _CHANGING.match(name) for name in (func.id, *(i.dotted[-1] for i in imported))
            )
        if not isinstance(func, ast.Attribute):
            return False
        inner: ast.expr = func.value
        while isinstance(inner, ast.Attribute | ast.Call):
            if isinstance(inner, ast.Call):
                made = inner.func
                name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
                if name[:1].isupper():
                    return False
                inner = made
            else:
                inner = inner.value
        return bool(_CHANGING.match(func.attr))

    def is_external(self, node: ast.expr) -> bool:
        """Whether something belongs to what others import for us, or is written out."""
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute | ast.Call | ast.Subscript):
            inner = inner.func if isinstance(inner, ast.Call) else inner.value
        if isinstance(inner, ast.Constant | ast.JoinedStr):
            return True
        name = inner.id if isinstance(inner, ast.Name) else ""
        known = name in self.module.imports and name not in self.module.bindings
        return known and not self.own(name)

    def is_builtin(self, node: ast.expr) -> bool:
        chain = chain_of(node)
        if len(chain) != 1 or chain[0] in self.module.bindings or chain[0] in self.module.imports:
            return False
        return hasattr(builtins, chain[0])


def _arguments(node: ast.expr) -> list[ast.expr]:
    """Return what something is called with, if it is a call."""
    return [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []


# ------------------------------------------------------------------------------------- reaching

_BY_VALUE = frozenset("eval exec compile globals locals vars __import__".split())
_LOOKING = frozenset(("importlib", "inspect", "runpy", "pkgutil", "gc", "ctypes"))
_OF_SYS = frozenset(("sys.modules", "sys._getframe"))
_OF_FUNCTIONS = frozenset(("__builtins__", "__closure__", "__code__", "__dict__", "__globals__"))
UNSEEN = frozenset(("eval", "exec", "__import__", "importlib", "runpy", "pkgutil"))
"""What imports or runs what no reading of a text finds."""


def looks_around(names: Iterable[str]) -> bool:
    """Whether one of these names finds what others stand for, wherever it is."""
    known = _BY_VALUE | _OF_SYS | _OF_FUNCTIONS
    return any(n in known or n.partition(".")[0] in _LOOKING for n in names)


@dataclass(slots=True)
class Reached:
    """What a function reaches.

    Attributes
    ----------
    wording
        Digest of all code of the project among it.
    names
        Of what belongs to others, dotted: ``pyspark.sql.functions.rand``, ``open``.
    methods
        Names of methods of anything that are called: ``sample``.
    texts
        Strings that stand in it.
    nodes
        All that is reached, with the modules that it is in.
    modules
        Paths and texts of all that is imported when the function's own module is.
    """

    wording: str
    names: frozenset[str]
    methods: frozenset[str]
    texts: frozenset[str]
    nodes: list[tuple[Module, ast.AST]]
    modules: tuple[tuple[str, str], ...]


class Modules:
    """The modules of a project, read when somebody imports them.

    Attributes
    ----------
    looked
        Every file that was looked for, with what was there.
    problems
        Files that are imported and are no Python.
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
        """Return the longest beginning of a name that is a module, and the rest of the name."""
        for n in range(len(dotted), 0, -1):
            found = self.module(".".join(dotted[:n]))
            if found is not None:
                return found, tuple(dotted[n:])
        return None

    def closure(self, module: Module) -> tuple[Module, ...]:
        """Return a module and all of the project that it imports, however far down, by path."""
        known = self._closures.get(module.path)
        if known is None:
            found = {module.path: module}
            todo = [module]
            while todo:
                this = todo.pop()
                for name in self._imported(this):
                    other = self.module(name)
                    if other is not None and other.path not in found:
                        found[other.path] = other
                        todo.append(other)
            known = tuple(found[path] for path in sorted(found))
            self._closures[module.path] = known
        return known

    def _imported(self, module: Module) -> Iterator[str]:
        """Yield the modules that an import runs: those that are named, and their packages."""
        for name in (module.name, *module.imported):
            parts = name.split(".")
            yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))

    def is_quiet(self, module: Module) -> bool:
        """Whether importing a module does no more than define things."""
        if module.path not in self._quiet:

            def own(name: str) -> bool:
                return any(self.resolve(i.dotted) for i in module.imports.get(name, ()))

            self._quiet[module.path] = _Quiet(module, own).body(module.body)
        return self._quiet[module.path]

    def reach(self, module: Module, node: ast.FunctionDef) -> Reached:
        """Return what a function at the top level of a module reaches."""
        return _Reach(self, module).function(node)


def unparsable(error: BaseException, path: str) -> Problem:
    """Return what is wrong with a file that is not Python."""
    if isinstance(error, SyntaxError):
        place = Location(path, error.lineno or 1, max(error.offset or 1, 1))
        return Problem("syntax", f"this is not Python: {error.msg}", place)
    if isinstance(error, RecursionError | MemoryError):
        return Problem("nesting", "this is nested too deeply to be read", Location(path))
    return Problem("syntax", f"this is not Python: {error}", Location(path))


@dataclass(frozen=True, slots=True)
class Mentions:
    """What a piece of code names.

    Attributes
    ----------
    chains
        ``a.b.c``, where `a` is no variable of a function.
    methods, texts
        As of `Reached`.
    imports
        That stand in it.
    """

    chains: frozenset[tuple[str, ...]]
    methods: frozenset[str]
    texts: frozenset[str]
    imports: tuple[ast.Import | ast.ImportFrom, ...]


def mentions(
    root: ast.AST, module: Module, *, bare: bool = False, hidden: frozenset[str] = frozenset()
) -> Mentions:
    """Return what a piece of code names.

    Parameters
    ----------
    bare
        As for `parts`.
    hidden
        The variables of functions around it.
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
        match node:
            case ast.Call(func=ast.Attribute(attr=name)):
                methods.add(name)
            case ast.Attribute(attr=name) if name in _OF_FUNCTIONS:
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


class _Reach:
    """One function's way through the modules of a project.

    Attributes
    ----------
    items
        By path, the statements that are reached by their numbers, as they say.
    todo
        What is reached and not followed yet.
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
        own = [shape(i, self.own, bare=True) for i in inside]
        items = sorted(
            (self.label(path), [text for _, text in sorted(found.items())])
            for path, found in self.items.items()
        )
        imports = sorted((self.label(path), *rest) for path, *rest in self.imports)
        return Reached(
            sha256(repr((own, items, imports)).encode()).hexdigest(),
            frozenset(self.names),
            frozenset(self.methods),
            frozenset(self.texts),
            self.nodes,
            tuple((m.path, m.text) for m in closure),
        )

    def label(self, path: str) -> str:
        """Return what a file is called in digests: where a function itself is does not matter."""
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
            if number not in module.known:
                module.known[number] = shape(node, module), mentions(node, module)
            items[number], named = module.known[number]
            self.nodes.append((module, node))
            self.todo.append((module, named))

    def visit_all(self) -> None:
        while self.todo:
            module, named = self.todo.pop()
            self.methods |= named.methods
            self.texts |= named.texts
            self.names |= _OF_FUNCTIONS.intersection(named.methods | named.texts)
            for node in named.imports:
                self.imported(module, node)
            for chain in named.chains:
                self.names |= _OF_FUNCTIONS.intersection(chain)
                self.chain(module, chain)

    def imported(self, module: Module, node: ast.Import | ast.ImportFrom) -> None:
        """Follow an import that stands in code that is reached."""
        if isinstance(node, ast.Import):
            found = [(a.asname or a.name, Imported(a.name)) for a in node.names]
        else:
            origin = absolute(node.module or "", node.level, module.package)
            found = [
                (a.asname or a.name, Imported(origin, None if a.name == "*" else a.name))
                for a in node.names
                if origin is not None
            ]
        for name, what in found:
            self.reached(module, name, what.dotted)

    def chain(self, module: Module, chain: tuple[str, ...]) -> None:
        """Follow ``a.b.c`` as it means in a module."""
        name, rest = chain[0], chain[1:]
        known = module.imports.get(name, ())
        for what in known:
            self.reached(module, name, (*what.dotted, *rest))
        for number in module.bindings.get(name, ()):
            self.statement(module, number)
        if not known and name not in module.bindings:
            if hasattr(builtins, name):
                self.names.add(".".join(chain))
            for star in module.stars:
                other = self.modules.module(star)
                if other is not None:
                    self.whole(other)
                else:
                    self.names.add(".".join((star, *chain)))

    def reached(self, module: Module, name: str, dotted: tuple[str, ...]) -> None:
        """Follow what a name stands for by an import."""
        for n in range(1, len(dotted)):  # what a package says itself hides a module in it
            package, said = self.modules.module(".".join(dotted[:n])), dotted[n : n + 1]
            if package is None or (package.path, said) in self.followed:
                continue
            if said[0] in package.bindings or said[0] in package.imports:
                self.followed.add((package.path, said))
                self.chain(package, said)
        found = self.modules.resolve(dotted)
        if found is None:
            self.imports.add((module.path, name, dotted))
            self.names.add(".".join(dotted))
            return
        other, rest = found
        self.imports.add((module.path, name, dotted[: len(dotted) - len(rest)]))
        if not rest or not (rest[0] in other.bindings or rest[0] in other.imports):
            self.whole(other)
        elif (other.path, rest) not in self.followed:
            self.followed.add((other.path, rest))
            self.chain(other, rest)


def _declared(node: ast.AST) -> frozenset[str]:
    """Return the names that a function says are those of its module."""
    body: list[ast.stmt] = [] if isinstance(node, ast.Lambda) else getattr(node, "body", [])
    found = (n for statement in body for n in ast.walk(statement) if isinstance(n, ast.Global))
    return frozenset(name for n in found for name in n.names)


def variables(node: FunctionNode | ast.Lambda) -> frozenset[str]:
    """Return the names that are variables of a function wherever it uses them.

    Not those that it imports, nor those of comprehensions, which mean something else around them.
    """
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [a for a in (arguments.vararg, arguments.kwarg) if a]
    found = {a.arg for a in every}
    stack: list[ast.AST] = [] if isinstance(node, ast.Lambda) else [*node.body]
    while stack:
        this = stack.pop()
        match this:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(this.name)
                continue
            case ast.Lambda():
                continue
            case ast.comprehension():
                stack += [this.iter, *this.ifs]
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                found.add(this.id)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                found.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                found.add(name)
            case _:
                pass
        stack += ast.iter_child_nodes(this)
    return frozenset(found) - _declared(node)


def without_docstring(body: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    """Return statements without the text that documents them."""
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def parts(node: ast.AST, module: Module, bare: bool) -> tuple[str, list[tuple[str, object]]]:
    """Return what kind of thing a node is, and its fields that count.

    Documentation and our own decorators do not.

    Parameters
    ----------
    bare
        Annotations do not count either: neither those of a source's parameters nor those of its
        variables. Elsewhere libraries look at them (`pandas_udf`, dataclasses).
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
    """Return what a piece of code says, whatever its layout, comments and documentation.

    It says the same in every version of Python.
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
