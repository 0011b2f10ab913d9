"""The modules of a project that a call of a Python function sees.

Each call gets its own modules, created from the texts that its BuildID is computed from. It does
not see what another source, another project or an earlier call did to a module, nor later edits of
a file. This applies to modules of the project; modules of libraries are those of the process. The
process's modules are not changed: project code has its own `__import__`.

Since the modules are not in `sys.modules`, Spark sends their content to its workers by value. A
worker has another `__import__`, so imports of project modules within functions are compiled to
calls of `ProjectModules.imported`, which is sent by value, with the texts, too.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.core import python_modules
from persist_assets.core.python_modules import ROOTS, absolute, files_of, is_foreign, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from persist_assets.core.model.queries import Function

_IMPORTED = "__project_import__"
"""The global name of `ProjectModules.imported` in the project's modules."""


_Compile = Callable[[str, str, str, frozenset[str]], Any]


def modules_of(function: Function, root: Path) -> ProjectModules:
    """Return new modules for a call of a function; `root` is the project's root."""
    from pyspark import cloudpickle

    for module in (sys.modules[__name__], python_modules):
        cloudpickle.register_pickle_by_value(module)
    prefix = f"_persist_{uuid4().hex}"
    return ProjectModules(function.modules, root.resolve(), prefix, _compiled_once)


class ProjectModules:
    """The project modules that one call of a function sees.

    Their real names are unique to the call, so that calls do not disturb each other; the project's
    code uses its own names.

    Parameters
    ----------
    texts
        The paths of the modules' files, relative to the project's root, and their texts.
    root
        The project's root, with links resolved.
    prefix
        The prefix of the modules' real names.
    compiled
        `_compiled`, or `_compiled_once`.
    """

    def __init__(
        self, texts: Sequence[tuple[str, str]], root: Path, prefix: str, compiled: _Compile
    ) -> None:
        self._texts, self._root, self._prefix = dict(texts), root, prefix
        self._compiled, self._files = compiled, frozenset(self._texts)
        self._made: dict[str, ModuleType] = {}
        self._builtins: Mapping[str, Any] = {**vars(builtins), "__import__": self._import}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a worker gets: it creates the modules that its functions import."""
        texts = tuple(self._texts.items())
        return ProjectModules, (texts, self._root, self._prefix, _compiled)

    def load_file(self, path: str) -> ModuleType:
        """Return the module of a file."""
        return self._load(name_of(path), path)

    def imported(self, name: str, items: Sequence[str] | None, *, leaf: bool = False) -> Any:
        """Return what an import in a function binds.

        Parameters
        ----------
        name
            The absolute name of a project module.
        items
            The names after `from … import`, whose values are returned; None: ``import name``.
        leaf
            Return the module itself (``import name as other``), not its outermost package.
        """
        if items is None:
            return self._import(name, fromlist=("*",) if leaf else ())
        module = self._import(name, fromlist=items)
        for item in items:
            if not hasattr(module, item):
                raise ImportError(f"cannot import name {item!r} from {name!r}")
        return tuple(getattr(module, item) for item in items)

    def _load(self, name: str, path: str) -> ModuleType:
        loaded = self._made.get(name)
        if loaded is not None:
            return loaded
        parent, _, last = name.rpartition(".")
        above = self._module(parent) if parent else None
        if name in self._made:
            return self._made[name]
        module = ModuleType(f"{self._prefix}.{name}")
        is_package = not path or path.endswith("/__init__.py")
        package = name if is_package else parent
        namespace = vars(module)
        namespace["__builtins__"] = self._builtins
        namespace["__package__"] = f"{self._prefix}.{package}"
        namespace[_IMPORTED] = self.imported
        place = self._root / (path or name.replace(".", "/"))
        if is_package:
            namespace["__path__"] = [str(place.parent if path else place)]
        self._made[name] = module
        if path:
            namespace["__file__"] = str(place)
            # Dataclasses and others look up a class's module while the class is created.
            sys.modules[module.__name__] = module
            try:
                code = self._compiled(self._texts[path], str(place), package, self._files)
                exec(code, namespace)
            except BaseException:
                del self._made[name]
                raise
            finally:
                sys.modules.pop(module.__name__, None)
        if above is not None:
            setattr(above, last, module)
        return module

    def _module(self, name: str) -> ModuleType | None:
        path = _file_of(name, self._files)
        return None if path is None else self._load(name, path)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Import like the statement, but prefer the project's modules."""
        whole: str | None = name
        if level:
            package = str((globals or {}).get("__package__") or "")
            package = package.removeprefix(self._prefix).removeprefix(".")
            whole = absolute(name, level, package)
            if whole is None or _file_of(whole, self._files) is None:
                raise ImportError(f"there is no module {'.' * level}{name} in {package or 'here'}")
        assert whole is not None
        module = self._module(whole)
        if module is None:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        if not fromlist:
            return self._module(whole.partition(".")[0])
        for item in fromlist:
            if item != "*" and not hasattr(module, item):
                self._module(f"{whole}.{item}")
        return module


@lru_cache(maxsize=512)
def _compiled_once(text: str, path: str, package: str, files: frozenset[str]) -> Any:
    return _compiled(text, path, package, files)


# ------------------------------------------------------------------------- also sent to workers


def _compiled(text: str, path: str, package: str, files: frozenset[str]) -> Any:
    """Return the code of a module.

    Parameters
    ----------
    path
        The path that tracebacks show.
    package
        The dotted name of the module's package.
    files
        The paths of the modules that it may import.
    """
    tree = ast.parse(text, path)
    is_changed = _replace_imports(tree.body, package, files)
    return compile(tree if is_changed else text, path, "exec", dont_inherit=True)


def _file_of(name: str, files: Collection[str]) -> str | None:
    """Return the file of a module, "" for a directory, or None if it is not in the project.

    This must agree with the frontend's `Modules.module`, which finds the files.
    """
    if is_foreign(name):
        return None
    for path in files_of(name):
        if path in files:
            return path
    below = tuple(f"{start}{name.replace('.', '/')}/" for start in ROOTS)
    return "" if any(path.startswith(below) for path in files) else None


_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _replace_imports(body: list[ast.stmt], package: str, files: Collection[str]) -> bool:
    """Replace imports of project modules within functions by calls, which workers can make.

    Not recursive: a chain of ``elif`` is as deep as it is long. Returns whether there were any.
    """
    stack: list[tuple[list[ast.stmt], bool]] = [(body, False)]
    is_changed = False
    while stack:
        statements, is_in_function = stack.pop()
        made: list[ast.stmt] = []
        for node in statements:
            if is_in_function and isinstance(node, ast.Import | ast.ImportFrom):
                instead = _instead_of(node, package, files)
                is_changed |= instead != [node]
                made += instead
                continue
            made.append(node)
            inside = is_in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            holders: list[Any] = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
            lists = (getattr(h, name, ()) for h in holders for name in _LISTS)
            stack += ((some, inside) for some in lists if some)
        statements[:] = made
    return is_changed


_LISTS = ("body", "orelse", "finalbody")
"""The attributes of statements with statements in them."""


def _instead_of(
    node: ast.Import | ast.ImportFrom, package: str, files: Collection[str]
) -> list[ast.stmt]:
    """Return the statements to run instead of an import within a function."""
    if isinstance(node, ast.ImportFrom):
        name = absolute(node.module or "", node.level, package)
        if not name or _file_of(name, files) is None:
            return [node]
        names: list[ast.expr] = [ast.Name(a.asname or a.name, ast.Store()) for a in node.names]
        target = ast.Tuple(names, ast.Store())
        return [_assigned(node, target, name, [a.name for a in node.names])]
    if all(_file_of(alias.name, files) is None for alias in node.names):
        return [node]
    made: list[ast.stmt] = []
    for alias in node.names:
        if _file_of(alias.name, files) is None:
            made.append(ast.copy_location(ast.Import([alias]), node))
        else:
            bound = ast.Name(alias.asname or alias.name.partition(".")[0], ast.Store())
            made.append(_assigned(node, bound, alias.name, None, leaf=alias.asname is not None))
    return made


def _assigned(
    node: ast.stmt,
    target: ast.expr,
    name: str,
    items: Sequence[str] | None,
    *,
    leaf: bool = False,
) -> ast.stmt:
    """Return the assignment of a call of `ProjectModules.imported`."""
    listed = None if items is None else ast.List([ast.Constant(i) for i in items], ast.Load())
    arguments: list[ast.expr] = [ast.Constant(name), listed or ast.Constant(None)]
    keywords = [ast.keyword("leaf", ast.Constant(leaf))]
    call = ast.Call(ast.Name(_IMPORTED, ast.Load()), arguments, keywords)
    # In a class's body, only a function's use of a global name makes cloudpickle send it.
    value = ast.Call(ast.Lambda(_NO_ARGUMENTS, call), [], [])
    return ast.fix_missing_locations(ast.copy_location(ast.Assign([target], value), node))
