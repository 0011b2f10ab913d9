"""Python files → declarations. Pure: the text is read, and no code is run.

A source is a top-level function with one of our decorators, or with a `persist` annotation. The
names of its parameters are its inputs. Its query is its own text, with a reference for each
parameter. The invariant: code that would run differently from how it is understood here is a
problem.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.annotation_keys import KEYS
from persist_assets.compiler.frontends.annotation_values import IDENTIFIER
from persist_assets.compiler.frontends.annotations import misplaced, read_annotation
from persist_assets.compiler.frontends.columns import selected
from persist_assets.compiler.frontends.effects import EFFECTS, call_of, effects_of
from persist_assets.compiler.frontends.module_text import (
    DECORATORS,
    Find,
    FunctionNode,
    Module,
    chain_of,
    parse_module,
)
from persist_assets.compiler.frontends.modules import Modules, unparsable
from persist_assets.compiler.frontends.motly import Line, Tag
from persist_assets.compiler.frontends.python_comments import annotation_lines
from persist_assets.compiler.frontends.python_signatures import (
    check_arrow,
    check_body,
    check_frames,
    parameters_of,
    result_of,
    with_contract,
)
from persist_assets.compiler.frontends.python_sql import see_through
from persist_assets.compiler.frontends.sql_functions import Refused
from persist_assets.core.errors import Location, Problem, did_you_mean
from persist_assets.core.languages import PYTHON
from persist_assets.core.model.queries import Function, Parameter, Query, Reference
from persist_assets.core.model.sources import Declaration, RawTable
from persist_assets.core.python_modules import EXPORTS, PACKAGE, absolute, files_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.compiler.frontends.modules import Reached
    from persist_assets.core.model.checks import Check

SUFFIX = ".py"
OUTSIDE = "python"
"""The format of the raw tables that functions load."""

Looked = tuple[tuple[str, str], ...]
"""Other files that were looked up, with digests of their content; empty for missing files."""


def parse_python(
    text: str, path: str, find: Find
) -> tuple[list[Declaration], list[Problem], Looked]:
    """Return the declarations of a file, its problems, and the other files it depends on.

    Parameters
    ----------
    find
        Returns the text of files that it may import.
    """
    try:
        module = parse_module(text, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return names_in(text, path), [unparsable(error, path)], ()
    modules = Modules(find)
    file = _File(module, modules)
    file.read()
    looked = sorted((p, digest_of(t)) for p, t in modules.looked.items() if p != path)
    return file.declarations, [*file.problems, *modules.problems.values()], tuple(looked)


def with_functions(
    declarations: Iterable[Declaration], find: Find
) -> tuple[list[Declaration], list[Problem], Looked]:
    """Return declarations of another language with their check functions resolved.

    The functions are named like imports: by modules from the project's root, or relatively.

    Parameters
    ----------
    find
        Returns the text of files that may contain them.

    Returns
    -------
    declarations, problems, looked
        As for `parse_python`.
    """
    modules = Modules(find)
    problems: list[Problem] = []
    results: list[Declaration] = []
    for declaration in declarations:
        checks = tuple(
            _with_function(check, check.location or declaration.location, modules, problems)
            if check.kind == "function"
            else check
            for check in declaration.annotation.checks
        )
        annotation = replace(declaration.annotation, checks=checks)
        results.append(replace(declaration, annotation=annotation))
    looked = sorted((p, digest_of(t)) for p, t in modules.looked.items())
    return results, [*problems, *modules.problems.values()], tuple(looked)


def _with_function(
    check: Check, place: Location, modules: Modules, problems: list[Problem]
) -> Check:
    """Return a check at a location with its function resolved."""
    written = str(check.values[0])
    named = written.lstrip(".")
    above, _, name = named.rpartition(".")
    package = name_of(f"{place.path.rpartition('/')[0]}/__init__.py")
    whole = absolute(above, len(written) - len(named), package)
    if not whole:
        message = f"`{written}` does not name the Python file of the function"
        hint = f'use "rules.{name}" for rules.py in the root, ".rules.{name}" for one beside it'
        problems.append(Problem("python-check", message, place, hint))
        return check
    module = modules.module(whole)
    if module is None:
        beside = modules.module(f"{package}.{above}") if named == written else None
        if not modules.problems:
            message = f"no file {files_of(whole)[1]} with the function `{name}`"
            hint = f'did you mean ".{written}"?' if beside is not None else _FROM_ROOT
            problems.append(Problem("python-check", message, place, hint))
        return check
    file = _File(module, modules)
    try:
        check = file.with_function(check, name)
    except Refused as refused:
        file.problems.append(refused.problem)
    problems += file.problems
    return check


_FROM_ROOT = "name modules from the project root, or relatively, with a leading dot"


def digest_of(text: str | None) -> str:
    """Return a digest of a file's content; empty if the file does not exist."""
    return "" if text is None else sha256(text.encode()).hexdigest()


_SAYS_SO = re.compile(r"^[ \t]*#?@", re.MULTILINE)  # what is imported under which name is unknown
_DEFINES = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


def names_in(text: str, path: str) -> list[Declaration]:
    """Return placeholder declarations for the sources of a file that is not Python.

    References to them are not errors, and their names are taken.
    """
    by_name: dict[str, Declaration] = {}
    for marker in _SAYS_SO.finditer(text):
        match = _DEFINES.search(text, marker.end())
        if match and IDENTIFIER.fullmatch(match[1]):
            at = match.start(1)
            place = Location(path, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))
            by_name.setdefault(match[1].lower(), Declaration(match[1], PYTHON, place))
    return list(by_name.values())


_ASSETS = tuple(
    f"{module}{name}"
    for module in ("dg.", "dagster.")
    for name in ("asset", "multi_asset", "graph_asset")
)

_IMPLIED: Mapping[str, Mapping[str, str | None]] = {
    "source": {},
    "model": {},
    "table": {"persist": None},
    "incremental_table": {"persist": None, "refresh": "incremental"},
}
"""The arguments of a decorator, as keys of annotations."""


class _File:
    """One file being read."""

    def __init__(self, module: Module, modules: Modules) -> None:
        self.module, self.modules = module, modules
        self.path = module.path
        self.declarations: list[Declaration] = []
        self.problems: list[Problem] = []

    def problem(self, code: str, message: str, place: Location, hint: str | None = None) -> None:
        self.problems.append(Problem(code, message, place, hint))

    def read(self) -> None:
        self.check_names()
        comments = list(annotation_lines(self.module.text, self.path, self.problems))
        used: set[int] = set()  # the lines of annotations that annotate something
        decorated: set[int] = set()
        end = 0
        for statement in self.module.tree.body:
            head = statement.lineno  # of a function that of its def: lines may stand in between
            lines = [c for c in comments if end < c.location.line < head]
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                ours = [d for d in statement.decorator_list if self.module.ours(d)]
                decorated.update(id(d.func if isinstance(d, ast.Call) else d) for d in ours)
                self.check_assets(statement)
                if (ours or lines) and not self.module.is_udf(statement):
                    used.update(c.location.line for c in lines)
                    self.function(statement, ours, lines)
            end = statement.end_lineno or statement.lineno
        for comment in comments:
            if comment.location.line not in used:
                self.problem(
                    "annotation-dangling",
                    "this annotation is not attached to anything",
                    Location(self.path, comment.location.line, comment.location.column - 2),
                    "put annotations on their own lines, directly above the function",
                )
        self.check_uses(decorated)

    # ------------------------------------------------------------------------------ our own names

    def check_names(self) -> None:
        """Report names that are imported from this package and do not exist."""
        for node in ast.walk(self.module.tree):
            if not isinstance(node, ast.ImportFrom) or node.module != PACKAGE or node.level:
                continue
            for alias in node.names:
                if alias.name != "*" and alias.name not in EXPORTS:
                    hint = did_you_mean(alias.name, EXPORTS) or f"known names: {', '.join(EXPORTS)}"
                    message = f"{PACKAGE} has no `{alias.name}`"
                    self.problem("import", message, self.module.place(alias), hint)

    def check_assets(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Warn of an asset of Dagster, which belongs into the definitions."""
        for decorator in function.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called) in _ASSETS:
                message = f"`{function.name}` is a Dagster asset, not a source"
                hint = "move it to definitions.py, or use @table of persist_assets"
                place = self.module.place(decorator)
                self.problems.append(Problem("dagster-asset", message, place, hint, "warning"))

    def check_uses(self, decorated: set[int]) -> None:
        """Report our decorators anywhere except above a top-level function."""
        # Within functions other things may have these names.
        stack: list[tuple[ast.AST, bool]] = [(self.module.tree, False)]
        while stack:
            node, inside = stack.pop()
            if isinstance(node, ast.Name | ast.Attribute) and chain_of(node):
                ours = self.module.ours(node)
                if ours and not inside and id(node) not in decorated:
                    hint = f"put it above a function at the top level of the file: @{ours}"
                    place = self.module.place(node)
                    self.problem("python-source", f"`{ours}` has no effect here", place, hint)
                continue
            decorators: list[ast.expr] = getattr(node, "decorator_list", [])
            stack += ((d, False) for d in decorators)
            is_ours = any(map(self.module.ours, decorators))
            is_named = isinstance(node, FunctionNode | ast.ClassDef)
            if is_ours and is_named and not self.module.is_udf(node):
                self.stand_for(node)
            inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            stack += ((c, inside) for c in ast.iter_child_nodes(node) if c not in decorators)

    # ---------------------------------------------------------------------------------- functions

    def function(self, node: FunctionNode, ours: Sequence[ast.expr], lines: Sequence[Line]) -> None:
        annotation, problems = read_annotation(lines)
        if not ours and annotation.persist is None:
            hint = f"add persist, or one of {', '.join('@' + d for d in DECORATORS)} above it"
            message = f"`{node.name}` is annotated but is not a source"
            self.problem("python-source", message, lines[0].location, hint)
            self.stand_for(node)
            return
        place = self.name_place(node)
        try:
            if len(ours) > 1:
                message = f"`{node.name}` has two persist_assets decorators"
                raise Refused(
                    "python-source", message, self.module.place(ours[1]), "remove one of them"
                )
            declaration = self.declaration(node, ours[0] if ours else None, lines, place)
        except Refused as refused:
            self.problems += problems
            self.problems.append(refused.problem)
            declaration = Declaration(node.name, PYTHON, place)
        if IDENTIFIER.fullmatch(node.name):
            self.declarations.append(declaration)

    def stand_for(self, node: FunctionNode | ast.ClassDef) -> None:
        """Reserve the name of a function that is not a source but seems to be meant as one."""
        names = {d.name.lower() for d in self.declarations}
        if IDENTIFIER.fullmatch(node.name) and node.name.lower() not in names:
            place = self.module.place(node)
            self.declarations.append(Declaration(node.name, PYTHON, place))

    def name_place(self, node: FunctionNode) -> Location:
        """Return the location of a function's name in its definition."""
        line = self.module.lines[node.lineno - 1]
        match = re.compile(r"def\s+").search(line)
        return Location(self.path, node.lineno, match.end() + 1 if match else node.col_offset + 1)

    def declaration(
        self,
        node: FunctionNode,
        decorator: ast.expr | None,
        lines: Sequence[Line],
        place: Location,
    ) -> Declaration:
        kind = (self.module.ours(decorator) if decorator is not None else None) or "table"
        options, inputs = self.arguments_of(decorator, kind)
        result = result_of(node, self.module)
        options = with_contract(options, result, kind, place)
        annotation, problems = read_annotation(lines, options)
        self.problems += problems
        checks = tuple(
            self.with_function(c, str(c.values[0])) if c.kind == "function" else c
            for c in annotation.checks
        )
        annotation = replace(annotation, checks=checks)
        if not isinstance(node, ast.FunctionDef):
            hint = "remove async"
            raise Refused("python-source", "a source must not be a coroutine", place, hint)
        parameters = parameters_of(node, self.module, self.problems)
        yields = any(p.kind.startswith("Iterator") for p in parameters)
        check_body(node, self.module, place, answers=False, yields=yields)
        frames = [p for p in parameters if p.kind != "session"]
        check_frames(node.name, kind, frames, inputs)
        problem = self.repeated(node)
        if problem is not None:
            raise problem
        reached = self.modules.reach(self.module, node)
        allowed = self.check_effects(node.name, reached, outside=kind == "source")
        if self.modules.problems or not allowed:
            return Declaration(node.name, PYTHON, place)
        text = self.text_of(node)
        references = tuple(_reference(p, inputs) for p in frames)
        called = check_arrow(node, self.module, parameters, annotation, result)
        wording = _wording(reached, parameters, (called, annotation.by) if called else ())
        parameters = tuple(replace(p, selects=self.selects(p, node, reached)) for p in parameters)
        function = self.function_over(node.name, parameters, reached, reached.modules)
        by = annotation.by if called else ()
        function = replace(function, result=called or result, by=by)
        declaration = Declaration(
            name=node.name,
            language=PYTHON,
            location=place,
            annotation=annotation,
            description=ast.get_docstring(node),
            query=Query(text, references, wording=wording) if kind != "source" else None,
            raw=RawTable(OUTSIDE, None, (("wording", wording),)) if kind == "source" else None,
            function=function,
        )
        declaration = see_through(declaration, node, self.module, self.modules, self)
        self.problems += misplaced(declaration)
        return declaration

    def selects(
        self, parameter: Parameter, node: ast.FunctionDef, reached: Reached
    ) -> tuple[str, ...] | None:
        """Return texts with all columns of a parameter that are used; None: any may be."""
        if parameter.hint:
            return tuple(name for name, _ in parameter.hint)
        if parameter.is_arrow:
            return None  # polars selects by patterns too
        return selected(parameter.name, node, self.module, self.modules, reached)

    def text_of(self, node: ast.FunctionDef) -> str:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        return "\n".join(self.module.lines[first - 1 : node.end_lineno])

    def repeated(self, node: ast.FunctionDef) -> Refused | None:
        """Return the problem of a function whose name is assigned again later."""
        numbers = self.module.bindings.get(node.name, [])
        others = [self.module.body[n] for n in numbers if self.module.body[n] is not node]
        if not others or all(isinstance(o, ast.FunctionDef) and self.is_source(o) for o in others):
            return None  # that one is reported as defined twice
        place = self.module.place(others[-1])
        message = f"this redefines the source `{node.name}`"
        return Refused("python-source", message, place, "rename one of the two")

    def is_source(self, node: ast.FunctionDef) -> bool:
        return any(self.module.ours(d) for d in node.decorator_list)

    # ------------------------------------------------------------------------------- arguments

    def arguments_of(
        self, decorator: ast.expr | None, kind: str
    ) -> tuple[Tag | None, Mapping[str, tuple[str, Location]]]:
        """Return the arguments of a decorator as a tag, and its qualifiers of inputs."""
        if decorator is None:
            return None, {}
        place = self.module.place(decorator)
        root = Tag(place, properties={})
        assert root.properties is not None
        inputs: Mapping[str, tuple[str, Location]] = {}
        if isinstance(decorator, ast.Call):
            if decorator.args:
                at = self.module.place(decorator.args[0])
                raise Refused(
                    "python-source",
                    f"@{kind} takes only keyword arguments",
                    at,
                    f'@{kind}(name="…")',
                )
            for keyword in decorator.keywords:
                if keyword.arg is None:
                    at = self.module.place(keyword.value)
                    hint = "write out the keywords: they are read without running the code"
                    raise Refused("python-source", f"@{kind} takes no **", at, hint)
                if keyword.arg == "inputs":
                    inputs = self.inputs(keyword.value)
                else:
                    root.properties[keyword.arg] = self.tag(keyword.value, keyword.arg)
        if kind == "model":
            root.properties.setdefault("persist", Tag(place, deleted=True))
        for key, value in _IMPLIED[kind].items():
            if key in KEYS:
                root.properties.setdefault(key, Tag(place, value))
        return root, inputs

    def inputs(self, node: ast.expr) -> Mapping[str, tuple[str, Location]]:
        tag = self.tag(node, "inputs")
        if tag.value is not None or not tag.properties:
            hint = 'for example, inputs={"flights": "daily/flights"}'
            raise Refused("python-source", "`inputs` must be a dict", tag.location, hint)
        sources: dict[str, tuple[str, Location]] = {}
        for name, below in tag.properties.items():
            if not isinstance(below.value, str) or below.properties or not below.value:
                hint = 'for example, inputs={"flights": "daily/flights"}'
                message = f"`inputs` must name a source for `{name}`"
                raise Refused("python-source", message, below.location, hint)
            sources[name] = below.value, below.location
        return sources

    def tag(self, node: ast.expr, key_name: str) -> Tag:
        """Return a literal value in the form of MOTLY."""
        place = self.module.place(node)
        match node:
            case ast.Constant(value=bool() as flag) if not flag:
                return Tag(place, deleted=True)
            case ast.Constant(value=bool() | str() | int() | float() as value):
                return Tag(place, value)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return Tag(place, -number)
            case ast.List() | ast.Tuple():
                return Tag(place, [self.tag(e, key_name) for e in node.elts])
            case ast.Dict():
                below: dict[str, Tag] = {}
                for key, value in zip(node.keys, node.values, strict=True):
                    if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                        at = self.module.place(key or value)
                        message = f"the keys of `{key_name}` must be string literals"
                        raise Refused("python-source", message, at)
                    below[key.value] = self.tag(value, f"{key_name}.{key.value}")
                return Tag(place, properties=below)
            case ast.Name() if key_name.startswith("check.function"):
                return Tag(place, node.id)
            case ast.Name():
                constant = self.constant(node.id)
                if constant is not None:
                    tag = self.tag(constant, key_name)
                    tag.location = place
                    return tag
            case _:
                pass
        raise Refused(
            "python-source",
            f"the value of `{key_name}` must be a literal",
            place,
            "use strings, numbers, lists and dicts of them, or the name of such a constant: "
            "it is read without running the code",
        )

    def constant(self, name: str) -> ast.expr | None:
        """Return the only value bound to a name of the module, or None."""
        numbers = self.module.bindings.get(name, [])
        if len(numbers) != 1 or name in self.module.imports:
            return None
        match self.module.body[numbers[0]]:
            case ast.Assign(targets=[ast.Name()], value=value):
                return None if isinstance(value, ast.Name) else value
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
                return None if isinstance(value, ast.Name) else value
            case _:
                return None

    # ------------------------------------------------------------------------------------- checks

    def with_function(self, check: Check, name: str) -> Check:
        """Return a check with its function in the file resolved, with all code that it reaches."""
        place = check.location or Location(self.path)
        try:
            module, node = self.function_of(name, place)
        except Refused:
            if self.modules.problems:
                return check  # it may be in a file that nobody can read
            raise
        parameters = parameters_of(node, module, self.problems)
        frames = [p for p in parameters if p.kind != "session"]
        if len(frames) != 1:
            message = f"the check `{name}` must have one parameter for the rows, not {len(frames)}"
            raise Refused("python-check", message, place, f"def {name}(rows): …")
        if frames[0].is_arrow:
            hint = "take a Spark DataFrame, or a Narwhals LazyFrame"
            message = f"the check `{name}` cannot take a {frames[0].kind}"
            raise Refused("python-check", message, frames[0].location, hint)
        check_body(node, module, module.place(node), answers=True, yields=False)
        reached = self.modules.reach(module, node)
        self.check_effects(name, reached, outside=True)
        modules = tuple((m.path, m.text) for m in self.modules.closure(self.module))
        function = self.function_over(name, parameters, reached, modules)
        return replace(check, function=function, wording=_wording(reached, parameters))

    def function_over(
        self,
        name: str,
        parameters: tuple[Parameter, ...],
        reached: Reached,
        modules: tuple[tuple[str, str], ...],
    ) -> Function:
        """Return a function of the file, with the code that it reaches."""
        return Function(
            self.path,
            name,
            parameters,
            modules,
            tuple(sorted(reached.names)),
            tuple(sorted(reached.methods)),
            tuple(sorted({c for text in reached.texts for c in call_of(text)})),
        )

    def function_of(self, name: str, place: Location) -> tuple[Module, ast.FunctionDef]:
        """Return the function of the project that a name of the file means, and its module."""
        module, last = self.module, name
        if name not in module.bindings and name in module.imports:
            target = self.modules.resolve(module.imports[name][-1].dotted)
            if target is not None and len(target[1]) == 1:
                module, last = target[0], target[1][0]
        bound = [module.body[n] for n in module.bindings.get(last, ())]
        if len(bound) == 1 and isinstance(bound[0], ast.FunctionDef):
            return module, bound[0]
        functions = [b for b, at in self.module.bindings.items() if self.defines(at)]
        hint = did_you_mean(name, [*functions, *self.module.imports])
        file = "this file" if place.path == self.path else self.path
        message = f"{file} neither defines nor imports a function `{name}`"
        if bound:
            message, hint = f"`{name}` is not always the same function", "give it a unique name"
        raise Refused("python-check", message, place, hint or f"write one: def {name}(rows): …")

    def defines(self, numbers: Sequence[int]) -> bool:
        """Whether statements of the file are functions."""
        return all(isinstance(self.module.body[n], ast.FunctionDef) for n in numbers)

    def check_effects(self, name: str, reached: Reached, *, outside: bool) -> bool:
        """Return whether a function has only allowed effects; report each other one once."""
        reported_places: set[Location] = set()
        allowed = True
        for module, root in reached.nodes:
            key = ("effects", id(root))
            if key not in module.facts:
                module.facts[key] = tuple(effects_of(root, module))
            for effect, place in module.facts[key]:
                code, severity, message, hint = EFFECTS[effect]
                if place in reported_places or (outside and effect == "read"):
                    continue
                reported_places.add(place)
                allowed &= severity != "error"
                message = message.replace("{name}", f"`{name}`")
                self.problems.append(Problem(code, message, place, hint, severity))
        return allowed


def _wording(reached: Reached, parameters: Sequence[Parameter], called: object = ()) -> str:
    """Return a digest of the code that a function reaches, its parameters, and its calls."""
    shown = repr([(p.name, p.kind, p.positional, *filter(None, [p.hint])) for p in parameters])
    how = f" {called!r}" if called else ""
    return sha256(f"{reached.wording} {shown}{how}".encode()).hexdigest()


def _reference(parameter: Parameter, inputs: Mapping[str, tuple[str, Location]]) -> Reference:
    """Return the reference of a parameter, at a fictitious position in the text."""
    written, place = inputs.get(parameter.name, (parameter.name, parameter.location))
    return Reference(tuple(re.split(r"[/.]", written)), 0, 0, None, place)
