"""Whether importing a module only defines things."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.module_text import Module, chain_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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

_CHANGING = re.compile(
    r"(__|add|append|basic|chdir|clear|config|delattr|disable|enable|exec|eval|filterwarnings|insert"
    r"|install|load_dotenv|patch|pop|put|register|remove|seed|set|simplefilter|update|use)"
)
"""Names of functions with effects elsewhere, such as ``locale.setlocale``."""


@dataclass(slots=True)
class Quiet:
    """Decides whether importing a module only defines things."""

    module: Module
    own: Callable[[str], bool]

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

    def changes(self, node: ast.expr) -> bool:
        """Whether the name of the called function suggests an effect elsewhere.

        An object created by a library's class is ours: `StructType().add(…)` changes nothing else.
        But the result of a lower-case function may be shared, like ``decimal.getcontext()``.
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


def _arguments(node: ast.expr) -> list[ast.expr]:
    """Return the arguments of an expression, if it is a call."""
    return [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
