"""Definitions in SQL files other than sources: functions and variables. Pure.

``CREATE FUNCTION`` and ``DECLARE VARIABLE`` in Spark's own syntax. They create no tables and no
assets: what they mean is inlined in the queries that use them; see `sql_inlining`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from persist_assets.analysis.functions import CLOCK, SESSION, SPARKS, VOLATILE
from persist_assets.analysis.syntax import calls_in
from persist_assets.compiler.frontends.annotation_values import IDENTIFIER
from persist_assets.compiler.frontends.sql_trees import BRACKETS, columns_of
from persist_assets.core.dialect import (
    WITHOUT_PARENTHESES,
    faithful,
    lost_feature,
    marked_type,
    parse,
    suffixed,
)
from persist_assets.core.errors import Location, Problem
from persist_assets.core.pipes import without_pipes
from persist_assets.core.spark_types import UnknownTypeError
from persist_assets.core.variables import unfit
from persist_assets.core.variant_paths import without_paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.queries import PythonUdf


class Refused(Exception):
    """A statement cannot be parsed."""

    def __init__(
        self, code: str, message: str, location: Location, hint: str | None = None
    ) -> None:
        self.problem = Problem(code, message, location, hint)


class Text(Protocol):
    """A file that is being read."""

    text: str
    path: str

    def location(self, offset: int) -> Location:
        """Return the place of a character."""
        ...

    def parse(self, tokens: Sequence[Token]) -> Any:
        """Return the tree of tokens."""
        ...

    def typed(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """Return tokens with types as Spark reads them."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """A query or an expression in a file.

    Attributes
    ----------
    tokens
        Its tokens, with offsets in the text of the file.
    tree
        A query; for an expression, a query that selects it.
    is_expression
        It is an expression.
    """

    file: Text
    tokens: Sequence[Token]
    tree: Any
    is_expression: bool = False

    def location(self) -> Location:
        """Return the place of its first token."""
        return self.file.location(self.tokens[0].start)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A parameter of a function.

    Attributes
    ----------
    type
        Spark's name of its type; empty for a function in Python: any type.
    is_optional
        The function itself has a default, which only Python knows.
    """

    name: str
    type: str
    default: Code | None
    is_optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SqlFunction:
    """A function that a file defines.

    Attributes
    ----------
    parameters
        The parameters by name in lower case, in order.
    returns
        The type of its value; empty: that of its expression. None for a function that returns a
        table.
    columns
        Names and types of the columns of its table; an empty type is that of its query.
    body
        What follows RETURN; None for a function in Python.
    udf
        The function in Python that a call means.
    """

    name: str
    location: Location
    parameters: Mapping[str, Parameter]
    returns: str | None
    columns: tuple[tuple[str, str], ...]
    body: Code | None
    udf: PythonUdf | None = None

    @property
    def signature(self) -> str:
        """Its name and parameters, as a user writes them."""
        written: list[str] = []
        for p in self.parameters.values():
            default = "DEFAULT …" if p.default or p.is_optional else ""
            written.append(" ".join(filter(None, (p.name, p.type.upper(), default))))
        return f"{self.name}({', '.join(written)})"


@dataclass(frozen=True, slots=True, eq=False)
class SqlVariable:
    """A variable; `value` is an expression of SQL that has its type."""

    name: str
    location: Location
    type: str
    value: str


@dataclass(frozen=True, slots=True)
class Misread:
    """A definition with an error, of a name if that is known."""

    name: str | None
    problem: Problem


Definition = SqlFunction | SqlVariable | Misread

DEFINES = re.compile(r"\b(?:FUNCTION|DECLARE)\b", re.IGNORECASE)
"""Matches the text of every file that defines functions or variables."""


def defines(tokens: Sequence[Token]) -> bool:
    """Whether a statement defines a function or a variable."""
    words = [t.text.upper() for t in tokens[:6]]
    if words[0] == "DECLARE":
        return True
    end = next((i for i, w in enumerate(words) if w in ("FUNCTION", "VIEW", "TABLE")), 0)
    return words[0] == "CREATE" and words[end] == "FUNCTION"


def read_definition(file: Text, tokens: Sequence[Token]) -> Definition:
    """Return the definition in a statement.

    Parameters
    ----------
    file
        Its file.
    tokens
        Its tokens, of which `defines` is true.
    """
    if tokens[-1].token_type is TokenType.SEMICOLON:
        tokens = tokens[:-1]
    reader = _Reader(file, tokens)
    try:
        return reader.variable() if reader.next_is("DECLARE") else reader.function()
    except Refused as refused:
        return Misread(reader.name, refused.problem)
    except UnknownTypeError as error:
        problem = Problem("type", error.message, file.location(error.at), error.hint)
        return Misread(reader.name, problem)


class _Reader:
    """A statement that is being read, token by token."""

    def __init__(self, file: Text, tokens: Sequence[Token]) -> None:
        self.file, self.tokens, self.at = file, tokens, 0
        self.name: str | None = None

    # ---------------------------------------------------------------------------- tokens

    def next_is(self, *words: str) -> bool:
        """Whether these words come next; if they do, they are read."""
        after = [t.text.upper() for t in self.tokens[self.at : self.at + len(words)]]
        if after != [*words]:
            return False
        self.at += len(words)
        return True

    def expect(self, word: str, after: str) -> None:
        if not self.next_is(word):
            raise self.refused(f"expected {word} after {after}")

    def refused(self, message: str, hint: str | None = None, code: str = "syntax") -> Refused:
        token = self.tokens[min(self.at, len(self.tokens) - 1)]
        return Refused(code, message, self.file.location(token.start), hint)

    def read_name(self, role: str) -> str:
        if self.at >= len(self.tokens):
            raise self.refused(f"expected the name of the {role}")
        name = self.tokens[self.at].text
        if not IDENTIFIER.fullmatch(name):
            hint = "use letters, digits and underscores"
            raise self.refused(f"invalid {role} name `{name}`", hint, "name")
        if name.lower() in WITHOUT_PARENTHESES or name.lower() in ("session", "system"):
            raise self.refused(f"`{name}` has a special meaning in Spark", "rename it", "name")
        self.at += 1
        if self.next_is("."):
            hint = "remove the qualifier: names of functions and variables are the project's"
            raise self.refused(f"the name of the {role} has a qualifier", hint, "name")
        return name

    def read_type(self) -> str:
        if self.at >= len(self.tokens):
            raise self.refused("expected a type")
        at = self.at
        marked, self.at = marked_type(self.tokens, at, self.file.text, lengths=True)
        name = marked[2].text
        if re.search(r"\b(?:var)?char\b", name):
            self.at = at
            message = "Spark has no functions or variables of type CHAR or VARCHAR"
            raise self.refused(message, "use STRING", "type")
        return name

    def read_comment(self) -> None:
        """Read a comment, if one comes next: it does not matter to queries."""
        if self.next_is("COMMENT"):
            if self.at >= len(self.tokens) or not self._is_string():
                raise self.refused("expected a string after COMMENT")
            while self._is_string():
                self.at += 1

    def _is_string(self) -> bool:
        kinds = (TokenType.STRING, TokenType.RAW_STRING)
        return self.at < len(self.tokens) and self.tokens[self.at].token_type in kinds

    def code(self, end: int, *, query: bool = False) -> Code:
        """Return the tokens up to an index as code, and read them."""
        tokens = self.tokens[self.at : end]
        if not tokens:
            raise self.refused("something is missing here")
        lost = lost_feature(tokens, self.file.text)
        typed = without_paths(self.file.typed(faithful(tokens, self.file.text)))
        typed, is_certain = without_pipes(typed)
        if lost or not is_certain:
            raise self.refused(f"{lost or '|>'} cannot be inlined", code="function")
        if query:
            tree = self.file.parse(typed)
            if not isinstance(tree, exp.Query | exp.Values):
                raise self.refused("expected a query", "SELECT …")
        else:
            first = tokens[0]
            select = Token(
                TokenType.SELECT, "SELECT", first.line, first.col, first.start, first.start
            )
            tree = self.file.parse([select, *typed])
            others = [k for k, v in tree.args.items() if v and k not in ("expressions", "kind")]
            is_one = isinstance(tree, exp.Select) and len(tree.expressions) == 1 and not others
            if not is_one or isinstance(tree.expressions[0], exp.Alias):
                raise self.refused("expected a single expression")
        self.at = end
        return Code(self.file, tokens, tree, is_expression=not query)

    def end_of(self, *words: str) -> int:
        """Return the index of the comma, closing bracket or word that ends an expression."""
        depth = 0
        for i in range(self.at, len(self.tokens)):
            token = self.tokens[i]
            depth += BRACKETS.get(token.token_type, 0)
            if depth < 0 or (depth == 0 and token.text.upper() in (",", *words)):
                return i
        return len(self.tokens)

    # ------------------------------------------------------------------------- statements

    def function(self) -> SqlFunction:
        """Return the function that the statement defines."""
        self.next_is("CREATE")
        self.next_is("OR", "REPLACE")
        _ = self.next_is("TEMPORARY") or self.next_is("TEMP")
        if not self.next_is("FUNCTION"):
            raise self.refused("expected FUNCTION", "CREATE FUNCTION f(x INT) RETURNS INT RETURN …")
        self.next_is("IF", "NOT", "EXISTS")
        location = self.file.location(self.tokens[min(self.at, len(self.tokens) - 1)].start)
        name = self.name = self.read_name("function")
        check_name(name, location)
        if self.next_is("AS"):
            hint = f'if the session has it: functions = ["{name}"] in persist.toml'
            raise self.refused("classes cannot be functions of a project", hint, "function")
        parameters = {p.name.lower(): p for p in self.columns(are_parameters=True)}
        returns, columns = self.returned()
        self.characteristics()
        if self.at >= len(self.tokens):
            hint = "CREATE FUNCTION f(x INT) RETURNS INT RETURN …"
            raise self.refused(f"`{name}` has no RETURN", hint)
        is_query = returns is None or self.tokens[self.at].token_type in _QUERIES
        body = self.code(len(self.tokens), query=is_query)
        pairs = tuple((c.name, c.type) for c in columns)
        if returns is None and not pairs:
            pairs = tuple((column, "") for column in columns_of(body.tree))
        return SqlFunction(name, location, parameters, returns, pairs, body)

    def returned(self) -> tuple[str | None, list[Parameter]]:
        """Return the type of a function's value, or None and the columns of its table.

        Both may be missing: then they are those of its expression or query.
        """
        if not self.next_is("RETURNS"):
            return "", []
        if not self.next_is("TABLE"):
            return self.read_type(), []
        has_columns = self.at < len(self.tokens) and self.tokens[self.at].text == "("
        return None, self.columns(are_parameters=False) if has_columns else []

    def columns(self, *, are_parameters: bool) -> list[Parameter]:
        """Return the parameters, or the columns, in brackets."""
        role = "parameter" if are_parameters else "column"
        self.expect("(", "the name" if are_parameters else "TABLE")
        out: list[Parameter] = []
        while not self.next_is(")"):
            if out:
                self.expect(",", f"a {role}")
            at = self.at
            name, kind, default = self.read_name(role), self.read_type(), None
            if name.lower() in [p.name.lower() for p in out]:
                self.at = at
                raise self.refused(f"two {role}s have the name `{name}`", code="name")
            if self.next_is("NOT", "NULL"):
                raise self.refused(f"a {role} cannot be NOT NULL in Spark", "remove it")
            if are_parameters and self.next_is("DEFAULT"):
                default = self.constant(self.end_of("COMMENT"), f"the default of `{name}`")
            self.read_comment()
            out.append(Parameter(name, kind, default))
        return out

    def characteristics(self) -> None:
        """Read the clauses between the type and RETURN; no row depends on them."""
        while not self.next_is("RETURN"):
            before = self.at
            self.read_comment()
            if self.next_is("LANGUAGE"):
                self.expect("SQL", "LANGUAGE")
            any(self.next_is(*words.split()) for words in _CHARACTERISTICS)
            if self.at == before:
                if self.at < len(self.tokens):
                    word = self.tokens[self.at].text
                    raise self.refused(f"unexpected `{word}`: expected RETURN and an expression")
                return

    def variable(self) -> SqlVariable:
        """Return the variable that the statement declares."""
        self.next_is("OR", "REPLACE")
        _ = self.next_is("VARIABLE") or self.next_is("VAR")
        location = self.file.location(self.tokens[min(self.at, len(self.tokens) - 1)].start)
        name = self.name = self.read_name("variable")
        if self.at >= len(self.tokens) or self.tokens[self.at].text.upper() in ("DEFAULT", "="):
            hint = f"DECLARE VARIABLE {name} INT DEFAULT …"
            raise self.refused(f"the variable `{name}` has no type", hint)
        kind = self.read_type()
        if self.at >= len(self.tokens):
            return SqlVariable(name, location, kind, f"CAST(NULL AS {kind})")
        if not (self.next_is("DEFAULT") or self.next_is("=")):
            raise self.refused("expected DEFAULT after the type")
        place = self.file.location(self.tokens[min(self.at, len(self.tokens) - 1)].start)
        code = self.constant(len(self.tokens), f"the value of `{name}`")
        wrong = unfit(_literal(code.tree.expressions[0]), kind)
        if wrong:
            raise Refused("variable", f"`{name}`: {wrong}", place)
        return SqlVariable(name, location, kind, f"CAST({spelled(code)} AS {kind})")

    def constant(self, end: int, subject: str) -> Code:
        """Return a constant expression, and read it."""
        start = self.at
        code = self.code(end)
        called = {name for name, _ in calls_in(code.tree)}
        column = _not_constant(code.tree)
        wrong = sorted(called & (VOLATILE | CLOCK | SESSION)) or sorted(called - SPARKS.keys())
        if column or wrong:
            self.at = start
            part = f": it uses `{column or wrong[0]}`"
            raise self.refused(f"{subject} is not constant{part}", "write a literal", "function")
        return code


_QUERIES = frozenset((TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.FROM))
"""The first words of queries without parentheses."""
_CHARACTERISTICS = (
    "DETERMINISTIC",
    "NOT DETERMINISTIC",
    "CONTAINS SQL",
    "READS SQL DATA",
    "SQL SECURITY DEFINER",
    "SQL SECURITY INVOKER",
)


def _not_constant(tree: Any) -> str | None:
    """Return a column or keyword of an expression whose value is not the same everywhere."""
    for node in tree.walk():
        if isinstance(node, exp.Column):
            return node.name
        if node is not tree and isinstance(node, exp.Query | exp.Subquery | exp.Placeholder):
            return "SELECT" if not isinstance(node, exp.Placeholder) else ":parameter"
    return None


def _literal(node: Any) -> str | int | bool | None:
    """Return the value of a literal that is a text, an integer or a boolean; None of others."""
    if isinstance(node, exp.Neg) and isinstance(value := _literal(node.this), int):
        return -value
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal) and suffixed(node.name) is None:
        text = node.name
        if node.is_string:
            return None if "\\" in text else text
        return int(text) if text.isdigit() else None
    return None


def check_name(name: str, location: Location) -> None:
    """Refuse names of functions that calls could not reach."""
    call = parse(f"SELECT {name}(1)")
    node = call.expressions[0] if isinstance(call, exp.Select) else None
    if name.lower() in SPARKS or not isinstance(node, exp.Anonymous):
        message = f"Spark has a function `{name.lower()}` of its own, which calls would mean"
        raise Refused("function", message, location, "rename the function")


def spelled(code: Code) -> str:
    """Return code as one line without comments, with normalized white space."""
    return one_line(code.tokens, code.file.text)


def one_line(tokens: Sequence[Token], text: str) -> str:
    """Return the tokens of a text as one line without comments."""
    words: list[str] = []
    end = tokens[0].start
    for token in tokens:
        if token.end >= end:  # some spans have several tokens: 1L
            words += " " * (token.start > end), text[token.start : token.end + 1]
            end = token.end + 1
    return "".join(words)
