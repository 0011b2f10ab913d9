"""SQL in Python functions that are sources: ``return spark.sql("… {x} …", x=x)``. Pure.

Such a function is the query that it passes to Spark, so it is declared as that query. The
invariant: the query returns the rows that a call of the function would. Whatever does not prove
that leaves the function as it is: opaque.
"""

from __future__ import annotations

import ast
import math
import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from persist_assets.compiler.frontends.intervals import missing_keywords
from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.frontends.sql_trees import relocate, tables_read
from persist_assets.core.dialect import quote
from persist_assets.core.errors import Location, Problem, SourcesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from persist_assets.compiler.frontends.module_text import Module
    from persist_assets.compiler.frontends.modules import Modules
    from persist_assets.core.model.queries import Function, Query, Reference
    from persist_assets.core.model.sources import Declaration

Constant = str | int | float


class File(Protocol):
    """A file that is being read."""

    problems: list[Problem]

    def constant(self, name: str) -> ast.expr | None:
        """Return the only value that a name of the module has, or None."""
        ...


class _Opaque(Exception):
    """The function is not certainly one query."""


def see_through(
    declaration: Declaration,
    node: ast.FunctionDef,
    module: Module,
    modules: Modules,
    file: File,
) -> Declaration:
    """Return the declaration of a function as that of the query that it returns, if it is one.

    Its body is ``return spark.sql(text, name=value, …)``, perhaps with names for the text and the
    result. Texts and values are literals, constants of the module, and parameters without a
    default; all frames are read. SQL that cannot be parsed is a warning at its place.

    Parameters
    ----------
    modules
        The modules of the project.
    file
        The file that is read; it gets the warning.
    """
    function, opaque = declaration.function, declaration.query
    if function is None or opaque is None or declaration.annotation.by:
        return declaration
    is_contract = any(c.kind == "columns" for c in declaration.annotation.checks)
    if any(p.hint for p in function.parameters) or (function.result and not is_contract):
        return declaration  # a query would not check them
    if not all(modules.is_quiet(m, module) for m in modules.closure(module)):
        return declaration  # an import may change constants
    try:
        call = _Body(node, module, function, file.constant).call()
        names = (p.name for p in function.frames)
        sql = _filled(call, dict(zip(names, opaque.references, strict=True)))
        query = _query(sql, call, module)
    except _Opaque:
        return declaration
    except SourcesError as error:
        for problem in error.problems:
            if problem.code == "syntax":
                hint = problem.hint or "Spark may refuse it: the function counts as a whole"
                file.problems.append(replace(problem, hint=hint, severity="warning"))
        return declaration
    return replace(declaration, query=query, function=None, wrapper=function)


# ------------------------------------------------------------------------------------- the function


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of ``spark.sql``: its text, and what stands for the names in its braces.

    Values are frames by the names of their parameters, or constants.
    """

    text: ast.Constant
    values: Mapping[str, ast.Name | Constant]


class _Body:
    """The body of a function that only calls ``spark.sql``."""

    def __init__(
        self,
        node: ast.FunctionDef,
        module: Module,
        function: Function,
        constant: Callable[[str], ast.expr | None],
    ) -> None:
        arguments = node.args
        has_default = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
        if has_default or not all(module.ours(d) for d in node.decorator_list):
            raise _Opaque
        self._node, self._constant = node, constant
        self._kinds = {p.name: p.kind for p in function.parameters}
        self._local: dict[str, ast.expr] = {}

    def call(self) -> _Call:
        """Return the call whose result the function returns."""
        *before, last = self._node.body
        if before and ast.get_docstring(self._node) is not None:
            before = before[1:]
        for statement in before:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if name in self._local or name in self._kinds:
                        raise _Opaque
                    self._local[name] = value
                case _:
                    raise _Opaque
        if not isinstance(last, ast.Return) or last.value is None:
            raise _Opaque
        returned = last.value
        if isinstance(returned, ast.Name) and returned.id in self._local:
            returned = self._local.pop(returned.id)
        for value in self._local.values():
            self.value(value)  # evaluating another one might do something
        match returned:
            case ast.Call(func=ast.Attribute(value=session, attr="sql"), args=[text]):
                if not self.is_session(session):
                    raise _Opaque
            case _:
                raise _Opaque
        text = self.meaning(text)
        if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
            raise _Opaque
        values: dict[str, ast.Name | Constant] = {}
        for keyword in returned.keywords:
            if keyword.arg is None or keyword.arg in ("sqlQuery", "args"):
                raise _Opaque
            value = keyword.value
            is_frame = isinstance(value, ast.Name) and self._kinds.get(value.id) == "frame"
            values[keyword.arg] = (
                value if is_frame and isinstance(value, ast.Name) else self.value(value)
            )
        return _Call(text, values)

    def is_session(self, node: ast.expr) -> bool:
        """Whether an expression is the session in which the function is called."""
        match node:
            case ast.Name(id=name):
                return self._kinds.get(name) == "session"
            case ast.Attribute(value=ast.Name(id=name), attr="sparkSession"):
                return self._kinds.get(name) == "frame"
            case _:
                return False

    def meaning(self, node: ast.expr) -> ast.expr:
        """Return the value of a name that is bound once, or another expression as it is."""
        if not isinstance(node, ast.Name):
            return node
        value = self._local.get(node.id)
        if value is None and node.id not in self._kinds:
            value = self._constant(node.id)
        if value is None:
            raise _Opaque
        return value

    def value(self, node: ast.expr) -> Constant:
        """Return the value of a constant."""
        match self.meaning(node):
            case ast.Constant(value=bool() | str() | int() | float() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case _:
                raise _Opaque


# ------------------------------------------------------------------------------------------ its SQL


@dataclass(frozen=True, slots=True)
class _Filled:
    """The text of a call with names of sources for frames, and literals for constants.

    Attributes
    ----------
    offsets
        Pairs of offsets in the new text and in the literal, from which on they advance together.
    frames
        The references of frames, by their offsets in the new text.
    """

    text: str
    offsets: Sequence[tuple[int, int]]
    frames: Mapping[int, Reference]


_BRACES = re.compile(r"\{\{|\}\}|\{([^\W\d]\w*)\}|[{}]")
_PLAIN_TEXT = re.compile(r"[\w .,:;/+-]*", re.ASCII)
"""Texts that are the same between quotes in Python and in SQL."""


def _filled(call: _Call, references: Mapping[str, Reference]) -> _Filled:
    """Return a call's text as Spark's formatter fills it in.

    Parameters
    ----------
    references
        The references of frames by parameter.
    """
    text = str(call.text.value)
    parts: list[str] = []
    offsets: list[tuple[int, int]] = []
    frames: dict[int, Reference] = {}
    start = size = 0

    def add(part: str, offset: int) -> None:
        nonlocal size
        offsets.append((size, offset))
        parts.append(part)
        size += len(part)

    for brace in _BRACES.finditer(text):
        add(text[start : brace.start()], start)
        start = brace.end()
        if brace[1] is None:
            if brace[0] not in ("{{", "}}"):
                raise _Opaque  # a format, or an error
            add(brace[0][0], brace.start())
            continue
        value = call.values.get(brace[1])
        if isinstance(value, ast.Name):
            frames[size] = references[value.id]
            add(quote(references[value.id].parts[-1]), brace.start())
        else:
            add(_literal(value), brace.start())
    add(text[start:], start)
    if {id(r) for r in frames.values()} != {id(r) for r in references.values()} or not frames:
        raise _Opaque  # frames that are not read are inputs all the same
    return _Filled("".join(parts), offsets, frames)


def _literal(value: Constant | None) -> str:
    """Return a constant as Spark's formatter writes it."""
    if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
        return f"'{value}'"
    if value is None or isinstance(value, str) or not math.isfinite(value):
        raise _Opaque
    return str(value)


def _query(sql: _Filled, call: _Call, module: Module) -> Query:
    """Return the query of a filled text.

    Raises
    ------
    SourcesError
        It is not a query.
    """
    if missing_keywords(sql.text):
        raise _Opaque  # the parser would insert them, and offsets were others
    places = _places(sql, call.text, module)
    query = parse_query(sql.text, places)
    if query.wrong_calls or any(p.severity == "error" for _, p in query.misplaced_calls):
        raise _Opaque  # the session may know them
    tables = {t.parts[0].meta["start"] for t in tables_read(query.tree)}
    if len(tables) != len(query.references) or not tables <= sql.frames.keys():
        raise _Opaque  # it reads names of the session
    _check_names(query, sql, tables)
    base = min(tables) - query.references[0].start
    references = tuple(
        replace(r, parts=sql.frames[r.start + base].parts, location=frame.location)
        for r in query.references
        for frame in (sql.frames[r.start + base],)
    )
    relocate(query.tree, places, module.path)
    return replace(query, references=references)


def _check_names(query: Query, sql: _Filled, tables: Iterable[int]) -> None:
    """Require that names of sources mean what the names mean that Spark makes up for frames.

    Where Spark has a generated name, the query has the name of the source.
    """
    base = min(tables) - query.references[0].start
    names = {r.parts[-1].lower() for r in sql.frames.values()}
    if len(names) < len({r.parts for r in sql.frames.values()}):
        raise _Opaque
    bare = {
        sql.frames[r.start + base].parts[-1].lower()
        for r in query.references
        if r.alias_at is not None
    }
    qualifying: set[int] = set()
    for start, name in _qualifiers(query.tree):
        if start in sql.frames:
            qualifying.add(start)
        elif name in bare:
            raise _Opaque
    if qualifying | {*tables} != {*sql.frames}:
        raise _Opaque  # a frame in a comment, in a text, in a hint
    qualified = {sql.frames[start].parts[-1].lower() for start in qualifying}
    if not qualified <= bare or not qualified.isdisjoint(_aliases(query.tree)):
        raise _Opaque
    frames = [r.parts[-1].lower() for r in {id(r): r for r in sql.frames.values()}.values()]
    if any(frames.count(name) > 1 for name in qualified):
        raise _Opaque  # Spark has a name for each of two frames of one source


def _qualifiers(tree: exp.Expr) -> Iterator[tuple[int, str]]:
    """Yield the first names of qualified columns, in lower case, with their offsets."""
    for column in tree.find_all(exp.Column):
        first, *others = column.parts
        if others:
            yield first.meta.get("start", -1), first.name.lower()


def _aliases(tree: exp.Expr) -> set[str]:
    """Return the names of relations that a query itself makes, in lower case."""
    return {alias.name.lower() for alias in tree.find_all(exp.TableAlias)}


def _places(sql: _Filled, literal: ast.Constant, module: Module) -> Callable[[int], Location]:
    """Return a function that maps an offset in a filled text to its place in the file.

    It is exact if the literal has no escapes, and otherwise where the literal begins.
    """
    begin, text = module.place(literal), str(literal.value)
    segment = ast.get_source_segment(module.text, literal) or ""
    opening = re.match(r"""[A-Za-z]*('''|\"\"\"|'|")""", segment)
    is_verbatim = opening is not None and segment[opening.end() : -len(opening[1])] == text
    if opening is None or not is_verbatim:
        return lambda _: begin
    lead = begin.column + opening.end()
    keys = [new for new, _ in sql.offsets]

    def locate(offset: int) -> Location:
        new, old = sql.offsets[max(bisect_right(keys, offset) - 1, 0)]
        following = [o for _, o in sql.offsets if o > old]
        at = min(old + offset - new, following[0] if following else len(text))
        line = text.count("\n", 0, at)
        column = at - text.rfind("\n", 0, at) if line else at + lead
        return Location(begin.path, begin.line + line, column)

    return locate
