"""Texts with places for arguments: what functions become before they are called. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.compiler.frontends.sql_functions import spelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from persist_assets.compiler.frontends.sql_functions import Parameter, Text
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
    reads
        The names without a qualifier of the tables that it reads, in lower case.
    variables, parameters
        Names in its query: see `Inlined`.
    """

    parts: tuple[Part, ...]
    lambdas: frozenset[str]
    volatile: bool
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
