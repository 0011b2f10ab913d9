"""Texts with places for arguments: what functions become before they are called. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.sql_functions import spelled
from persist_assets.core.dialect import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from persist_assets.compiler.frontends.sql_functions import Parameter, SqlFunction, Text
    from persist_assets.core.errors import Location
    from persist_assets.core.model.queries import InlinedParameter, PythonUdf


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text, and the places of its characters."""

    text: str
    place: Callable[[int], Location]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a parameter in a function's text.

    Attributes
    ----------
    repeated
        What stands there may be evaluated several times for a row: it is in a lambda function.
    """

    name: str
    repeated: bool


Part = Piece | Slot


@dataclass(frozen=True, slots=True)
class Template:
    """The text of a function with places for its arguments.

    Attributes
    ----------
    lambdas
        The names of the parameters of its lambda functions, in lower case.
    volatile
        It can have different values, or rows, for the same arguments.
    has_query
        It is a value, and has a query.
    reads
        The names without a qualifier of the tables that it reads, in lower case.
    variables, parameters
        Names in its query: see `Inlined`.
    """

    parts: tuple[Part, ...]
    lambdas: frozenset[str]
    volatile: bool
    has_query: bool = False
    reads: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    parameters: tuple[InlinedParameter, ...] = ()

    def slots(self, name: str) -> list[Slot]:
        """Return the places of a parameter."""
        return [p for p in self.parts if isinstance(p, Slot) and p.name == name]


def python_call(udf: PythonUdf, names: Sequence[str], place: Location) -> Iterator[Part]:
    """Yield the text of a call of a function in Python, with a place for each argument.

    If its results vary, the text says so by a call of ``rand()``, which changes nothing else.
    """
    head, tail = ("", "") if udf.deterministic else ("nvl2(rand(), ", ", NULL)")
    yield fixed(f"CAST({head}{udf.registered}(", place)
    for n, name in enumerate(names):
        if n:
            yield fixed(", ", place)
        yield Slot(name, repeated=False)
    yield fixed(f"){tail} AS {udf.returns})", place)


def with_row(
    function: SqlFunction, parts: Iterable[Part], texts: Mapping[str, list[Part]], place: Location
) -> list[Part]:
    """Return the text of a function as a subquery that reads a row with its arguments.

    Names in the function's text mean columns of the row if no table around them has such a column,
    as in Spark. No table is beside the arguments, so their names mean columns of the query that
    calls the function.

    Parameters
    ----------
    parts
        The text of the function.
    texts
        The text of each argument, by the parameter in lower case.
    """
    returns_table = function.returns is None
    # A text that reads `f`.`x` must not read the field `x` of a column `f`.
    alias = quote(f"{function.name} row" if returns_table else function.name)
    names = {k: quote(p.name) for k, p in function.parameters.items()}
    body = [*filled(parts, {k: [fixed(f"{alias}.{name}", place)] for k, name in names.items()})]
    selected, joined = body, list[Part]()
    if returns_table:
        rows = quote(f"{function.name} rows")
        columns = ", ".join(f"{rows}.{quote(name)}" for name, _ in function.columns)
        selected = [fixed(columns, place)]
        joined = [fixed(", LATERAL ", place), *body, fixed(f" AS {rows}", place)]
    row: list[Part] = []
    unused = _unused_name(texts.values())
    for n, text in enumerate(texts.values(), 1):
        row += [fixed(", " if row else "", place), *text, fixed(f" AS `{unused} {n}`", place)]
    row = row or [fixed("1", place)]
    listed = f"({', '.join(names.values())})" if names else ""
    head, tail = fixed(" FROM (SELECT ", place), fixed(f") AS {alias}{listed}", place)
    return [fixed("(SELECT ", place), *selected, head, *row, tail, *joined, fixed(")", place)]


def _unused_name(texts: Iterable[Iterable[Part]]) -> str:
    """Return the beginning of names that are not in any text, as later texts could read them."""
    every = "".join(p.text for text in texts for p in text if isinstance(p, Piece)).lower()
    name = "argument"
    while f"{name} " in every:
        name += "_"
    return name


def copied(file: Text, start: int, end: int) -> Piece:
    """Return a part of the text of a file."""
    return Piece(file.text[start:end], lambda at: file.location(start + at))


def fixed(text: str, place: Location) -> Piece:
    """Return a text that is at one place as a whole."""
    return Piece(text, lambda _: place)


def default(parameter: Parameter, place: Location) -> list[Part]:
    """Return the default of a parameter, for a call at a place."""
    code = parameter.default
    assert code is not None
    return [fixed(spelled(code), place)]


def filled(parts: Iterable[Part], texts: Mapping[str, list[Part]]) -> Iterator[Part]:
    """Yield parts with texts in the places of parameters."""
    for part in parts:
        if not isinstance(part, Slot):
            yield part
            continue
        for inner in texts[part.name]:
            is_slot = isinstance(inner, Slot)
            yield replace(inner, repeated=inner.repeated or part.repeated) if is_slot else inner
