"""The types of sources' columns that Malloy gets, known before anything is built.

They go further than those of `Source.columns`, from which BuildIDs follow. The invariant: a type is
Spark's own, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.analysis.result_types import result_types

if TYPE_CHECKING:
    from persist_assets.compiler.state import Compilation, Unit

Kinds = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column as Malloy gets it.

    Attributes
    ----------
    type
        Spark's name of the type, or None if it is not certain.
    inferred
        `Source.columns` does not know the type.
    """

    name: str
    type: str | None
    inferred: bool


def shown_types(compilation: Compilation, unit: Unit) -> Kinds:
    """Return the types of a compiled unit's columns, None where they are not certain.

    The results are remembered for the next drafts of the compilation.
    """
    known = compilation.shown_types
    stack = [unit]  # not recursive: views of views may be many
    while stack:
        this = stack[-1]
        below = [compilation.units[b] for b in this.bindings] if _follows(this) else []
        missing = [u for u in below if u.source is not None and u.key not in known]
        if missing and this.key not in known:
            stack += missing
            continue
        if this.key not in known:
            known[this.key] = _types(compilation, this, below)
        stack.pop()
    return known[unit.key]


def _follows(unit: Unit) -> bool:
    """Whether the types of a unit follow from a query that is not the code of a function."""
    declaration, source = unit.declaration, unit.source
    if declaration.raw is not None or declaration.function is not None or source is None:
        return False
    return any(column.type is None for column in source.columns)


def _types(compilation: Compilation, unit: Unit, below: list[Unit]) -> Kinds:
    assert unit.source is not None
    certain = tuple(column.type for column in unit.source.columns)
    if not _follows(unit) or any(u.source is None for u in below):
        return certain
    query = unit.declaration.query
    if query is not None and query.tree is None:
        query = compilation.parsed(unit)
    if query is None:
        return certain
    read = [(u.names(), compilation.shown_types[u.key]) for u in below]
    kinds = result_types(query, read, unit.declaration.location.path)
    if kinds is None:
        return certain
    # A history has columns besides those of its query.
    return tuple(a or b for a, b in zip(certain, (*kinds, *certain[len(kinds) :]), strict=True))
