"""Whether importing a module only defines things."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.module_text import Module, chain_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_PURE = frozenset(
    """
    abs all any bool bytes chr complex dict divmod enumerate filter float frozenset int isinstance
    issubclass len list map max min object ord pow property range repr reversed round set slice
    sorted str sum super tuple type zip
    """.split()
)
"""Builtins that do not change their arguments."""

_CALLING = frozenset(("filter", "map"))
"""Builtins that call their first argument. A `key` argument is called too."""

_STATEFUL = (
    ("csv", "field_size_limit"),
    ("duckdb",),
    ("os", "nice"),
    ("os", "umask"),
    ("polars", "Config"),
    ("threading", "stack_size"),
    ("time", "tzset"),
)
"""Functions and classes of libraries whose calls change the state of the library."""

_CHANGING = re.compile(
    r"(__|add|append|basic|chdir|clear|config|delattr|disable|enable|exec|eval|filterwarnings|insert"
    r"|install|load_dotenv|patch|pop|put|register|remove|seed|set|simplefilter|update|use)"
)
"""Names of functions with effects elsewhere, such as ``locale.setlocale``."""


Definitions = Callable[[Module, Sequence[str]], "list[tuple[Module, ast.stmt]] | None"]
"""Returns the statements of the project that define a name in a module; None if unknown."""


@dataclass(slots=True)
class Quiet:
    """Decides whether importing a module only defines things.

    Attributes
    ----------
    own
        Whether an imported name belongs to the project.
    """

    module: Module
    own: Callable[[str], bool]
    definitions: Definitions

    def body(self, body: Iterable[ast.stmt]) -> bool:
        """Whether statements only define things."""
        return all(self.statement(s) for s in body)

    def statement(self, node: ast.stmt) -> bool:
        """Whether a statement only defines things."""
        match node:
            case ast.Import() | ast.Pass():
                return True
            case ast.ImportFrom():
                return not any(alias.name == "*" for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                values = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
                values += self.annotations(node)
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
                is_dropped = all(isinstance(t, ast.Name) and t.id == "_" for t in node.targets)
                if is_dropped and any(isinstance(n, ast.Call) for n in ast.walk(node.value)):
                    return False  # it is called for its effect
                return all(map(self.target, node.targets)) and self.value(node.value)
            case ast.AnnAssign():
                values = [v for v in (node.value, *self.annotations(node)) if v is not None]
                return self.target(node.target) and all(map(self.value, values))
            case ast.Expr():
                return isinstance(node.value, ast.Constant)
            case ast.If():
                return self.value(node.test) and self.body([*node.body, *node.orelse])
            case ast.Try():
                handled = [s for handler in node.handlers for s in handler.body]
                kinds = [handler.type for handler in node.handlers if handler.type]
                statements = [*node.body, *handled, *node.orelse, *node.finalbody]
                return all(map(self.value, kinds)) and self.body(statements)
            case _:
                return False

    def annotations(self, node: ast.stmt) -> list[ast.expr]:
        """Return the annotations of a statement that are evaluated."""
        if any(
            isinstance(s, ast.ImportFrom)
            and s.module == "__future__"
            and any(alias.name == "annotations" for alias in s.names)
            for s in self.module.body
        ):
            return []
        if isinstance(node, ast.AnnAssign):
            return [node.annotation]
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return []
        arguments = (n for n in ast.walk(node.args) if isinstance(n, ast.arg))
        return [a for a in (node.returns, *(g.annotation for g in arguments)) if a is not None]

    def target(self, node: ast.expr) -> bool:
        """Whether an assignment only binds names."""
        if isinstance(node, ast.Tuple | ast.List):
            return all(map(self.target, node.elts))
        return isinstance(node, ast.Name)

    def decorators(self, nodes: Iterable[ast.expr]) -> bool:
        """Whether decorators have no effects elsewhere."""
        return all(
            self.module.ours(node)
            or chain_of(node) in {("staticmethod",), ("classmethod",), ("property",)}
            or (
                self.is_external(node) and self.has_quiet_arguments(node) and not self.changes(node)
            )
            for node in nodes
        )

    def has_quiet_arguments(self, decorator: ast.expr) -> bool:
        """Whether the arguments of a decorator only define things."""
        return all(self.value(arg) for arg in _arguments(decorator))

    def value(self, node: ast.expr) -> bool:
        """Whether evaluating an expression has no effects."""
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
            is_subscript = isinstance(this, ast.Subscript)
            operands = [this.value] if is_subscript else [*ast.iter_child_nodes(this)]
            if isinstance(this, _OPERATIONS) and any(
                self.is_made(chain_of(operand), is_subscript) for operand in operands
            ):
                return False
            stack += ast.iter_child_nodes(this)
        return True

    def call(self, node: ast.Call) -> bool:
        """Whether a call has no effects."""
        chain, arguments = chain_of(node.func), _arguments(node)
        others = self.is_external(node.func) or self.is_builtin(node.func)
        if self.is_builtin(node.func) and chain[0] in _PURE:
            called = [k.value for k in node.keywords if k.arg in (None, "key")]
            arguments = [*called, *(node.args[:1] if chain[0] in _CALLING else ())]
        elif not others or self.changes(node.func):
            return False
        names = {n.id for g in arguments for n in ast.walk(g) if isinstance(n, ast.Name)}
        return not any(n in self.module.bindings or self.own(n) for n in names)

    def is_made(self, chain: Sequence[str], is_subscript: bool) -> bool:
        """Whether an object is created by the project's code, so that operators may run more of it.

        Subscripts of a `defaultdict` have effects too.
        """
        todo, done = [(self.module, tuple(chain))], set[tuple[str, str]]()
        while todo:
            module, names = todo.pop()
            if not names or (module.name, ".".join(names)) in done:
                continue
            done.add((module.name, ".".join(names)))
            statements = self.definitions(module, names)
            if statements is None:
                return True
            for home, statement in statements:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if isinstance(statement, ast.ClassDef) and statement.keywords:
                    return True
                for node in _evaluated(statement):
                    if isinstance(node, ast.Call):
                        called = chain_of(node.func)
                        if is_subscript and called and called[-1] == "defaultdict":
                            return True
                        if called and self.definitions(home, called) != []:
                            return True
                    todo.append((home, chain_of(node)))
        return False

    def changes(self, node: ast.expr) -> bool:
        """Whether the name of the called function suggests an effect elsewhere.

        An object created by a library's class is ours: `StructType().add(…)` changes nothing else.
        But the result of a lower-case function may be shared, like ``decimal.getcontext()``.
        """
        func = node.func if isinstance(node, ast.Call) else node
        chain = chain_of(func)
        for origin in self.module.imports.get(chain[0], ()) if chain else ():
            dotted = (*origin.dotted, *chain[1:])
            if any(dotted[: len(stateful)] == stateful for stateful in _STATEFUL):
                return True
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
                callee = inner.func
                name = (
                    callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
                )
                if name[:1].isupper():
                    return False
                inner = callee
            else:
                inner = inner.value
        return bool(_CHANGING.match(func.attr))

    def is_external(self, node: ast.expr) -> bool:
        """Whether an object belongs to an imported library, or is a literal."""
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute | ast.Call | ast.Subscript):
            inner = inner.func if isinstance(inner, ast.Call) else inner.value
        if isinstance(inner, ast.Constant | ast.JoinedStr):
            return True
        name = inner.id if isinstance(inner, ast.Name) else ""
        is_import = name in self.module.imports and name not in self.module.bindings
        return is_import and not self.own(name)

    def is_builtin(self, node: ast.expr) -> bool:
        """Whether a name is a builtin that the module does not define."""
        chain = chain_of(node)
        if len(chain) != 1 or chain[0] in self.module.bindings or chain[0] in self.module.imports:
            return False
        return hasattr(builtins, chain[0])


_OPERATIONS = (
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Subscript,
    ast.FormattedValue,
    ast.Starred,
    ast.comprehension,
)
"""Expressions that call methods of their operands."""


def _evaluated(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes that a statement evaluates, except in functions."""
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            stack += ast.iter_child_nodes(node)


def _arguments(node: ast.expr) -> list[ast.expr]:
    """Return the arguments of an expression, if it is a call."""
    return [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
