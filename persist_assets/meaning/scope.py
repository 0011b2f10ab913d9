"""What names may mean in one place of a query: the values that binding works on.

They change while a query is bound and are gone afterwards; what remains is the algebra.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persist_assets.meaning.algebra import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.errors import Problem
    from persist_assets.meaning.algebra import Expr, Node, Out, Sort


class Unanalysable(Exception):
    """We do not know what this part of a query means.

    Attributes
    ----------
    reason
        What stands in the way, half a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Entry:
    """A column that a name may mean in some place of a query."""

    name: str
    written: str
    expr: Expr
    type: str | None
    qualifiers: tuple[str, ...]

    def answers(self, qualifiers: tuple[str, ...]) -> bool:
        """Whether a name with these qualifiers may mean this column."""
        return not qualifiers or self.qualifiers[-len(qualifiers) :] == qualifiers


@dataclass(slots=True)
class From:
    """A FROM clause under construction: leaves, conjuncts, and what names mean.

    Attributes
    ----------
    hidden
        Columns that only a qualified name reaches: the other side's key after USING.
    outer
        The query around this one, whose names are visible too.
    """

    outer: From | None = None
    leaves: dict[int, Node] = field(default_factory=dict)
    conjuncts: list[Expr] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    hidden: list[Entry] = field(default_factory=list)
    order: tuple[Sort, ...] = ()

    def block(self, columns: Iterable[Out] = ()) -> Block:
        """Return the rows so far as a Block with these columns."""
        kept = tuple(dict.fromkeys(self.conjuncts))
        return Block(tuple(self.leaves.items()), kept, tuple(columns))


@dataclass(frozen=True, slots=True)
class Around:
    """What a query sees of the text around it.

    Attributes
    ----------
    outer
        The FROM clause of the query that it is part of.
    ctes
        The common table expressions in sight, by their names in lower case.
    """

    outer: From | None = None
    ctes: Mapping[str, Cte] = field(default_factory=dict)


@dataclass(slots=True)
class Cte:
    """A common table expression: bound when it is first read.

    Attributes
    ----------
    block, failure
        What it means, or why that is not known; None before it is bound.
    problems
        What is certainly wrong with it.
    """

    query: Any
    names: tuple[str, ...]
    around: Around
    recursive: bool
    block: Block | None = None
    failure: Unanalysable | None = None
    problems: Sequence[Problem] = ()


@dataclass(slots=True)
class Select:
    """What names may mean besides columns while a SELECT is bound.

    Attributes
    ----------
    aliases_first
        A name means an alias before it means a column (ORDER BY, HAVING).
    refuses_doubt
        A name that is an alias and a column of something else means nothing certain.
    """

    source: From
    aliases: dict[str, tuple[Expr, ...]] = field(default_factory=dict)
    windows: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    aliases_first: bool = False
    refuses_doubt: bool = False
    ctes: Mapping[str, Cte] = field(default_factory=dict)

    @property
    def around(self) -> Around:
        """What a query within this one sees."""
        return Around(self.source, self.ctes)
