"""Functions and variables → the queries that use them, with their meaning inlined. Pure.

A call becomes the function's own text, in which the texts of the arguments, cast to the declared
types, stand for the parameters, as Spark's functions in SQL have it; a variable becomes its value.
Everything that looks at a query later sees the result only: names, meanings, BuildIDs, rows.

The invariant: an inlined call has the rows of Spark's own call. A name means in the result what it
means where it was written; what would be computed several times has the same value each time. A
call for which that is not certain is refused.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.functions import VOLATILE
from persist_assets.analysis.syntax import calls_in
from persist_assets.compiler.frontends.sql_calls import (
    arguments_of,
    bind,
    in_order,
    obstacle_to,
    wrong_place,
    wrong_query,
    wrong_value,
)
from persist_assets.compiler.frontends.sql_functions import (
    Code,
    Misread,
    Parameter,
    Refused,
    SqlFunction,
    SqlVariable,
    Text,
    spelled,
)
from persist_assets.compiler.frontends.sql_places import (
    COMPLEX,
    aliases,
    field_name,
    implicit_names,
    is_repeated,
    is_unit,
    names_column,
    own_name,
    takes_names,
)
from persist_assets.compiler.frontends.sql_tables import (
    called_tables,
    common_tables,
    has_plain_names,
    names_of_tables,
    stands_alone,
    wrapping,
    wrong_argument,
    wrong_body,
    wrong_call,
)
from persist_assets.compiler.frontends.sql_templates import (
    Part,
    Piece,
    Slot,
    Template,
    copied,
    default,
    filled,
    fixed,
    python_call,
    with_row,
)
from persist_assets.core.dialect import function_named, plain, quote
from persist_assets.core.errors import Location, Problem, did_you_mean
from persist_assets.core.model.queries import InlinedParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from sqlglot.tokenizer_core import Token

    from persist_assets.compiler.frontends.sql_functions import Definition
    from persist_assets.core.model.queries import PythonUdf


class Broken(Exception):
    """A query calls a function whose definition has an error, which is reported there."""

    def __init__(self, name: str, location: Location) -> None:
        self.problem = Problem("function", f"the definition of `{name}` has an error", location)


@dataclass(slots=True, eq=False)
class Definitions:
    """The functions and variables of a project, by name in lower case.

    Attributes
    ----------
    broken
        Names whose definitions have errors.
    problems
        These errors.
    columns
        Names that mean columns in queries, and variables only with a qualifier.
    """

    functions: dict[str, SqlFunction] = field(default_factory=dict[str, SqlFunction])
    variables: dict[str, SqlVariable] = field(default_factory=dict[str, SqlVariable])
    broken: set[str] = field(default_factory=set[str])
    problems: list[Problem] = field(default_factory=list[Problem])
    columns: frozenset[str] = frozenset()
    _templates: dict[str, Template] = field(default_factory=dict[str, Template])
    _open: list[str] = field(default_factory=list[str])

    @property
    def names(self) -> set[str]:
        """All defined names, including those of invalid definitions."""
        return {*self.functions, *self.variables, *self.broken}

    @property
    def digest(self) -> str:
        """A digest of what queries see of them, and of the places that errors name."""
        parts = [f"{v.name} {v.value}" for v in self.variables.values()]
        parts += sorted(self.broken)
        for function in self.functions.values():
            parts.append(f"{function.signature} {function.returns} {function.columns}")
            parts += (spelled(p.default) for p in function.parameters.values() if p.default)
            for part in self.template(function).parts:
                parts.append(f"{part.text} {part.place(0)}" if isinstance(part, Piece) else "")
        return sha256("\0".join(parts).encode()).hexdigest()

    @property
    def udfs(self) -> tuple[PythonUdf, ...]:
        """The functions in Python."""
        return tuple(f.udf for f in self.functions.values() if f.udf is not None)

    def content(self, text: str) -> str:
        """Return a digest of a text, and of the definitions if it may use any of them."""
        content = sha256(text.encode()).hexdigest()
        # Names may be put together: IDENTIFIER('twi' || 'ce').
        words = re.findall(r"\w+", text.lower()) if self.names else ()
        if not {"identifier", *self.names}.isdisjoint(words):
            return sha256(f"{content} {self.digest}".encode()).hexdigest()
        return content

    def qualified(self) -> Definitions:
        """Return these definitions with variables that need their qualifier: ``session.x``."""
        return self.without(self.variables)

    def without(self, variables: Collection[str]) -> Definitions:
        """Return these definitions, with columns that have the names of some variables."""
        # In queries of functions, too, these names mean columns.
        return replace(self, columns=frozenset(variables), _templates={})

    def template(self, function: SqlFunction) -> Template:
        """Return the text of a function.

        Raises
        ------
        Refused
            It cannot be inlined.
        Broken
            It calls a function with an error.
        """
        name = function.name.lower()
        if name not in self._templates:
            if name in self._open:
                names = [self.functions[n].name for n in (*self._open, name)]
                message = f"`{function.name}` calls itself: {' → '.join(names)}"
                hint = "SQL functions cannot be recursive; write a Python source"
                raise Refused("function", message, function.location, hint)
            self._open.append(name)
            try:
                self._templates[name] = _template(self, function)
            finally:
                self._open.pop()
        return self._templates[name]


def define(definitions: Iterable[Definition], reserved: Collection[str] = ()) -> Definitions:
    """Return the definitions of all files.

    Parameters
    ----------
    reserved
        The functions that the session has, by the settings.
    """
    known = Definitions()
    places: dict[tuple[bool, str], Location] = {}
    for definition in definitions:
        if isinstance(definition, Misread):
            known.problems.append(definition.problem)
            if definition.name is not None:
                known.broken.add(definition.name.lower())
            continue
        name, is_function = definition.name.lower(), isinstance(definition, SqlFunction)
        first = places.setdefault((is_function, name), definition.location)
        if first is not definition.location:
            message = f"`{definition.name}` is already defined at {first}"
            known.problems.append(Problem("duplicate-name", message, definition.location))
            known.broken.add(name)
        elif is_function and name in reserved:
            message = f"`{definition.name}` is a function of the session, too"
            hint = "rename it, or remove it from `functions` in persist.toml"
            known.problems.append(Problem("function", message, definition.location, hint))
            known.broken.add(name)
        elif isinstance(definition, SqlFunction):
            known.functions[name] = definition
        else:
            known.variables[name] = definition
    for name in known.broken:
        known.functions.pop(name, None)
        known.variables.pop(name, None)
    for name, function in [*known.functions.items()]:
        try:
            known.template(function)
        except Broken:
            known.broken.add(name)
        except Refused as refused:
            known.problems.append(refused.problem)
            known.broken.add(name)
    for name in known.broken:
        known.functions.pop(name, None)
    return known


NO_DEFINITIONS = Definitions()
"""A project without functions and variables."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """A query with the meaning of its functions and variables.

    Attributes
    ----------
    variables
        The names that mean variables (``x``; ``session`` of ``session.x``), unless there are
        columns of these names.
    parameters
        The names that mean parameters of table functions.
    """

    pieces: tuple[Piece, ...]
    variables: tuple[str, ...]
    parameters: tuple[InlinedParameter, ...] = ()

    @property
    def text(self) -> str:
        """The text of the query."""
        return "".join(p.text for p in self.pieces)

    def locate(self) -> Callable[[int], Location]:
        """Return a function for the places of the characters of the text."""
        starts = [0]
        for piece in self.pieces:
            starts.append(starts[-1] + len(piece.text))

        def location(offset: int) -> Location:
            n = min(bisect_right(starts, offset), len(self.pieces)) - 1
            return self.pieces[n].place(offset - starts[n])

        return location


def inline(
    file: Text, tokens: Sequence[Token], tree: Any, definitions: Definitions, *, is_named: bool
) -> Inlined | None:
    """Return a query with the meaning of its functions and variables; None if it has none.

    Parameters
    ----------
    is_named
        A list before the query names its columns.

    Raises
    ------
    Refused
        That is not certain.
    Broken
        The definition of one of them has an error.
    """
    if definitions.names.isdisjoint(t.text.lower() for t in tokens):
        return None
    inlining = _Inlining(definitions, Code(file, tokens, tree), is_named=is_named)
    if not inlining.replaced:
        return None
    parts = inlining.render(0, len(tokens))
    pieces = tuple(p for p in parts if isinstance(p, Piece))
    parameters = tuple(dict.fromkeys(inlining.parameters))
    return Inlined(pieces, tuple(sorted(inlining.variables)), parameters)


def _template(definitions: Definitions, function: SqlFunction) -> Template:
    body = function.body
    if body is None:
        assert function.udf is not None
        parts = python_call(function.udf, [*function.parameters], function.location)
        return Template(tuple(parts), frozenset(), not function.udf.deterministic)
    inlining = _Inlining(definitions, body, function)
    place = body.location()
    parts = inlining.render(0, len(body.tokens))
    before, after = wrapping(function)
    parts = [fixed(before, place), *parts, fixed(after, place)]
    shadowed = inlining.lambdas & function.parameters.keys()
    if shadowed:
        message = f"`{min(shadowed)}` names both a parameter and a parameter of a lambda function"
        raise Refused("function", message, place, "rename one of them")
    has_query = inlining.has_query
    template = Template(
        tuple(parts), frozenset(inlining.lambdas), inlining.volatile, has_query=has_query
    )
    if function.returns is not None and not has_query:
        return template
    return replace(
        template,
        reads=names_of_tables(body.tree) | inlining.reads,
        variables=frozenset(inlining.variables),
        parameters=tuple(inlining.parameters),
    )


MAX_LENGTH = 100_000
"""The maximum length of an inlined call, as calls in arguments multiply."""


class _Inlining:
    """A query or the body of a function in which calls, parameters and variables are replaced.

    Attributes
    ----------
    replaced
        By the index of its first token: the index after its last token, and what is put there.
    variables
        The names that mean variables, unless there are columns of these names.
    parameters
        The names that mean parameters of table functions.
    reads
        The tables that functions read which it calls, by names in lower case.
    has_query
        It is a function that returns a value, and has a query.
    """

    def __init__(
        self,
        definitions: Definitions,
        code: Code,
        function: SqlFunction | None = None,
        *,
        is_named: bool = False,
    ) -> None:
        self.definitions, self.code, self.function = definitions, code, function
        self.is_named = is_named
        self.tokens = code.tokens
        self.replaced: dict[int, tuple[int, Callable[[], list[Part]]]] = {}
        self.lambdas, self.variables, self.volatile = set[str](), set[str](), False
        self.reads, self.parameters = set[str](), list[InlinedParameter]()
        self.constants: list[tuple[SqlFunction, Any]] = []
        self.index: dict[int, int] = {}
        self.has_plain_names = True
        for i, token in enumerate(code.tokens):
            self.index.setdefault(token.start, i)
        nodes = [*code.tree.walk()]
        self.aliases, self.implicit = {*aliases(nodes)}, {*implicit_names(nodes)}
        self.has_query = self._has_query(nodes)
        if function is None or function.returns is None or self.has_query:
            tables = called_tables(code.tree, definitions.functions)
            self.aliases |= {name.lower() for f in tables for name, _ in f.columns}
            known = {f.name.lower() for f in tables}
            self.has_plain_names = has_plain_names(code.tree, known, self.aliases)
        if function is not None:
            self.check_body(function, nodes)
        for node in nodes:
            match node:
                case exp.Anonymous():
                    self.call(node)
                case exp.Column() if not isinstance(node.this, exp.Star):
                    self.column(node)
                case exp.Lambda():
                    self.lambdas |= {e.name.lower() for e in node.expressions}
                case _:
                    pass
        for called, argument in self.constants:
            self.check_constant(called, argument)

    def _has_query(self, nodes: Sequence[Any]) -> bool:
        tree = self.code.tree
        if self.function is None or self.function.returns is None:
            return False
        if any(isinstance(n, exp.Query) for n in nodes if n is not tree):
            return True
        return not self.code.is_expression or bool(self.queried(tree))

    def queried(self, tree: Any) -> set[str]:
        """Return the functions that return values, have queries, and are called in a tree."""
        known = self.definitions.functions
        called = (known[name] for name, _ in calls_in(tree) if name in known)
        return {f.name.lower() for f in called if self.definitions.template(f).has_query}

    def in_query(self, node: Any) -> bool:
        """Whether a node is in a query, and not in the expression of a function."""
        return not self.code.is_expression or node.find_ancestor(exp.Query) is not self.code.tree

    # -------------------------------------------------------------------------- rendering

    def place(self, at: int) -> Location:
        return self.code.file.location(self.tokens[at].start)

    def node_place(self, node: Any) -> Location:
        starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
        return self.code.file.location(min(starts)) if starts else self.code.location()

    def render(self, first: int, end: int) -> list[Part]:
        """Return the tokens in a range, with replacements."""
        parts: list[Part] = []
        at, offset = first, self.tokens[first].start
        while at < end:
            if at in self.replaced:
                parts.append(copied(self.code.file, offset, self.tokens[at].start))
                at, make = self.replaced[at]
                parts += make()
                offset = self.tokens[at - 1].end + 1
            else:
                at += 1
        return [*parts, copied(self.code.file, offset, self.tokens[end - 1].end + 1)]

    # -------------------------------------------------------------------------- variables

    def column(self, node: Any) -> None:
        names = [plain(p.name).lower() for p in node.parts]
        first = self.index.get(node.parts[0].meta.get("start", -1))
        if first is None or is_unit(node):
            return
        if names[0] == "session" or names[:2] == ["system", "session"]:
            self.explicit(first, names, node)
        elif self.function is not None and not self.in_query(node):
            self.parameter(self.function, node, first, names)
        elif self.function is not None and self.is_parameter(self.function, names):
            if not self.has_query:
                self.parameter_in_query(self.function, node, first, names)
        elif len(names) == 1 and self.is_no_column(names[0]):
            variable = self.definitions.variables.get(names[0])
            if variable is not None:
                self.variables.add(names[0])
                self.put(first, first + 1, variable, node)

    def is_no_column(self, name: str) -> bool:
        """Whether no column can have a name, except those of tables that are read."""
        hidden = self.aliases | self.implicit | self.definitions.columns
        return self.has_plain_names and name not in hidden

    def explicit(self, first: int, names: list[str], node: Any) -> None:
        """Replace ``session.x``, unless a table or column has this name."""
        n = 2 if names[0] == "system" else 1
        hidden = names[0] in self.aliases | self.definitions.columns
        variable = self.definitions.variables.get(names[n]) if len(names) > n else None
        if variable is not None and not hidden:
            self.variables.add(names[0])
            self.put(first, first + 2 * n + 1, variable, node if len(names) == n + 1 else None)

    def put(self, first: int, end: int, variable: SqlVariable, node: Any = None) -> None:
        text, place = f"{variable.value}{own_name(node)}", self.place(first)
        if node is not None and takes_names(node):
            message = f"the variable `{variable.name}` needs a name here"
            raise Refused("variable", message, place, f"{variable.name} AS {variable.name}")
        self.replaced[first] = end, lambda: [fixed(text, place)]

    # ------------------------------------------------------------------------- parameters

    def parameter(self, function: SqlFunction, node: Any, first: int, names: list[str]) -> None:
        """Replace a parameter in the body of a function."""
        own = names[0] == function.name.lower() and len(names) > 1
        name, n = (names[1], 3) if own else (names[0], 1)
        if name in function.parameters and self.has_query:
            return
        if name in function.parameters:
            if takes_names(node) and not field_name(node):
                hint = "name the fields: named_struct('a', …)"
                message = f"the result of this call has a field named `{name}`"
                raise Refused("function", message, self.node_place(node), hint)
            self.put_slot(node, first, first + n, name)
        elif len(names) == 1 and function_named(node):
            return
        elif len(names) == 1 and name in self.definitions.variables:
            self.put(first, first + 1, self.definitions.variables[name])
        elif len(names) == 1 and name in self.definitions.broken:
            raise Broken(name, self.node_place(node))
        else:
            parameters = ", ".join(p.name for p in function.parameters.values()) or "none"
            message = f"`{'.'.join(names)}` is not a parameter of `{function.name}`"
            hint = did_you_mean(name, function.parameters) or f"its parameters: {parameters}"
            raise Refused("function", message, self.node_place(node), hint)

    def is_parameter(self, function: SqlFunction, names: Sequence[str]) -> bool:
        """Whether a name in the query of a table function may mean one of its parameters."""
        if len(names) > 1 and names[0] == function.name.lower():
            return names[1] in function.parameters
        return names[0] in function.parameters and (len(names) == 1 or names[0] not in self.aliases)

    def parameter_in_query(
        self, function: SqlFunction, node: Any, first: int, names: list[str]
    ) -> None:
        """Replace a parameter in the query of a table function."""
        own = len(names) > 1 and names[0] == function.name.lower()
        name, n = (names[1], 3) if own else (names[0], 1)
        place, written = self.node_place(node), f"{function.name}.{name}"
        if not own and (name in self.aliases | self.implicit or not self.has_plain_names):
            message = f"`{name}` can mean a column here, or the parameter of `{function.name}`"
            raise Refused("function", message, place, f"for the parameter, write {written}")
        is_field = takes_names(node) and not field_name(node)
        if is_field or names_column(node, outermost=False):
            message = f"the parameter `{name}` needs a name here"
            raise Refused("function-name", message, place, f"for example: {written} AS {name}")
        location, tokens = self.code.file.location, self.tokens
        start, end = location(tokens[0].start), location(tokens[-1].start)
        self.parameters.append(InlinedParameter(names[0], written, place, start, end))
        self.put_slot(node, first, first + n, name)

    def put_slot(self, node: Any, first: int, end: int, name: str) -> None:
        slot, field = Slot(name, is_repeated(node)), fixed(field_name(node), self.place(first))
        self.replaced[first] = end, lambda: [slot, field] if field.text else [slot]

    def check_query(self, function: SqlFunction, nodes: Sequence[Any]) -> None:
        """Refuse what the query of a table function cannot have."""
        wrong = wrong_body(function, self.aliases)
        if wrong:
            raise Refused("function", wrong[0], self.code.location(), wrong[1])
        for node in nodes:
            if isinstance(node, exp.Placeholder | exp.Parameter):
                message = f"`{function.name}` may use its parameters only"
                raise Refused("function", message, self.node_place(node))

    def check_body(self, function: SqlFunction, nodes: Sequence[Any]) -> None:
        """Refuse what the body of a function cannot have."""
        for name, _ in calls_in(self.code.tree):
            self.volatile |= self.varies(name)
        if function.returns is None:
            self.check_query(function, nodes)
            return
        wrong = wrong_query(function, is_volatile=self.volatile) if self.has_query else None
        if wrong:
            raise Refused("function", wrong[0], self.code.location(), wrong[1])
        for node in nodes:
            is_star = isinstance(node, exp.Star) and not self.in_query(node)
            if is_star or isinstance(node, exp.Placeholder | exp.Parameter):
                message = f"`{function.name}` may use its parameters only"
                raise Refused("function", message, self.code.location())
        for name, node in calls_in(self.code.tree):
            is_window = node.find_ancestor(exp.Window) is not None
            obstacle = COMPLEX["window"] if is_window else obstacle_to(name)
            if obstacle and not self.in_query(node):
                message = f"`{function.name}` {obstacle}: `{name}`"
                hint = "functions compute one value from others of the same row"
                raise Refused("function", message, self.node_place(node), hint)

    # ------------------------------------------------------------------------------ calls

    def call(self, node: Any) -> None:
        """Replace the call of a function."""
        name = plain(node.name).lower()
        at = self.index.get(node.meta.get("start", -1))
        if at is None or (at and self.tokens[at - 1].text == "."):
            return
        if name in self.definitions.broken:
            raise Broken(name, self.place(at))
        function = self.definitions.functions.get(name)
        if function is None:
            return
        place = self.place(at)
        template = self.definitions.template(function)
        self.volatile |= template.volatile
        spans, end = arguments_of(self.tokens, at, node, place)
        self.check_position(function, node, end, place)
        is_table = function.returns is None
        has_row = template.has_query or (is_table and not stands_alone(node))
        self.take_over(function, template, place)
        if is_table and not has_row:
            self.constants += ((function, argument) for argument in node.expressions)
        bound = bind(function, spans, node, place)

        def make() -> list[Part]:
            texts: dict[str, list[Part]] = {}
            for parameter, span in bound:
                if span is None and parameter.is_optional:
                    continue  # the function itself has the default
                inner = self.render(*span) if span else default(parameter, place)
                if parameter.type:
                    begin, stop = fixed("CAST(", place), fixed(f" AS {parameter.type})", place)
                    inner = [begin, *inner, stop]
                texts[parameter.name.lower()] = inner
            udf = function.udf
            whole = python_call(udf, [*texts], place) if udf else template.parts
            fill = with_row(function, whole, texts, place) if has_row else filled(whole, texts)
            parts = [*fill]
            if is_table and not node.parent.args.get("alias"):
                parts.append(fixed(f" AS {quote(function.name)}", place))
            if sum(len(p.text) for p in parts if isinstance(p, Piece)) > MAX_LENGTH:
                hint = "compute parts of it in columns of a subquery"
                raise Refused("function", "this call expands to too long a query", place, hint)
            return parts

        self.replaced[at] = end, make
        for (parameter, span), argument in zip(bound, in_order(bound, spans, node), strict=True):
            if span is not None and has_row:
                self.check_value(function, parameter, argument, span)
            elif span is not None:
                self.check_argument(function, template, parameter, argument, span)

    def take_over(self, function: SqlFunction, template: Template, place: Location) -> None:
        """Take over what the query of a function reads and names."""
        self.reads |= template.reads
        self.variables |= template.variables
        self.parameters += template.parameters
        hidden = sorted(template.reads & common_tables(self.code.tree))
        if hidden:
            message = f"`{function.name}` reads `{hidden[0]}`, a common table expression here"
            raise Refused("function", message, place, "rename the common table expression")

    def check_constant(self, function: SqlFunction, argument: Any) -> None:
        """Refuse an argument of a table function that is not constant."""

        def is_replaced(node: Any) -> bool:
            first = self.index.get(node.parts[0].meta.get("start", -1))
            return first in self.replaced or is_unit(node)

        wrong = wrong_argument(function, argument, is_replaced)
        if wrong:
            raise Refused("function", wrong[1][0], self.node_place(wrong[0]), wrong[1][1])

    def check_position(self, function: SqlFunction, node: Any, end: int, place: Location) -> None:
        """Refuse calls where the result would be something else, or have another name."""
        after = self.tokens[end].text.upper() if end < len(self.tokens) else ""
        if after in ("OVER", "FILTER", "WITHIN"):
            message = f"`{function.name}` does not aggregate, so {after} cannot follow"
            raise Refused("function", message, place)
        is_table = isinstance(node.parent, exp.Table | exp.Lateral)
        if is_table != (function.returns is None):
            kind = "a value" if is_table else "a table"
            hint = "use it in FROM" if function.returns is None else "use it in SELECT or WHERE"
            raise Refused("function", f"`{function.name}` returns {kind}", place, hint)
        wrong = wrong_call(function, node, after) if is_table else None
        if not is_table and self.definitions.template(function).has_query:
            wrong = wrong_place(function, node)
        if wrong:
            raise Refused("function", wrong[0], place, wrong[1])
        if any(isinstance(a, exp.Distinct | exp.Star | exp.Ordered) for a in node.expressions):
            raise Refused("function", f"`{function.name}` takes single values only", place)
        names = self.in_query(node) and names_column(
            node, outermost=self.function is None, is_named=self.is_named
        )
        if takes_names(node) or names:
            hint = f"for example: {function.name}(…) AS {function.name.lower()}"
            message = f"the result of `{function.name}` needs a name here"
            raise Refused("function-name", message, place, hint)

    def check_value(
        self, function: SqlFunction, parameter: Parameter, argument: Any, span: tuple[int, int]
    ) -> None:
        """Refuse an argument that cannot be a column of a row."""
        wrong = wrong_value(function, argument, self.queried(argument))
        varies = sorted({name for name, _ in calls_in(argument) if self.varies(name)})
        if varies:
            message = (
                f"the query of `{function.name}` uses `{parameter.name}`, and `{varies[0]}` might "
                "have another value each time"
            )
            wrong = message, "compute the argument in a column of a subquery"
        if wrong:
            raise Refused("function", wrong[0], self.place(span[0]), wrong[1])

    def check_argument(
        self,
        function: SqlFunction,
        template: Template,
        parameter: Parameter,
        argument: Any,
        span: tuple[int, int],
    ) -> None:
        """Refuse an argument that means something else where the parameter stands."""
        place = self.place(span[0])
        slots = template.slots(parameter.name.lower())
        is_table = function.returns is None
        several = is_table or len(slots) > 1 or any(s.repeated for s in slots)
        varies = sorted({name for name, _ in calls_in(argument) if self.varies(name)})
        reads = argument.find(exp.Query) is not None
        if several and (varies or reads):
            culprit = f"`{varies[0]}`" if varies else "this query"
            uses = "for each row" if is_table else "several times"
            message = (
                f"`{function.name}` uses `{parameter.name}` {uses}, and {culprit} might "
                "have another value each time"
            )
            hint = "compute the argument in a column of a subquery"
            hint = "a table function takes constants" if is_table else hint
            raise Refused("function", message, place, hint)
        named = {i.name.lower() for i in argument.find_all(exp.Identifier)}
        captured = sorted(named & template.lambdas) if slots else []
        if captured:
            message = f"`{captured[0]}` is also a name in a lambda function of `{function.name}`"
            raise Refused("function", message, place, "rename it there, or here")

    def varies(self, name: str) -> bool:
        """Whether calls of a function can have different values for the same row."""
        function = self.definitions.functions.get(name)
        if function is not None:
            return self.definitions.template(function).volatile
        return name in VOLATILE or name == "tablesample"
