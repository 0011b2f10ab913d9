"""Scopes of names in a query: the mutable values that binding works on.

They change while a query is bound and are discarded afterwards; only the algebra remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.algebra import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.analysis.algebra import Expr, Node, Out, Sort
    from persist_assets.core.errors import Problem


UNKNOWN = ""
"""The name of a column that may have any name."""

NO_WORD = "\0"
"""The name of a column whose real name contains signs that no plain name has: ``count(1)``."""


def is_certain(name: str) -> bool:
    """Whether a column's name is known exactly."""
    return name not in (UNKNOWN, NO_WORD)


def may_be(name: str, sought: str) -> bool:
    """Whether a column of uncertain name may have the sought name."""
    return name == UNKNOWN or (name == NO_WORD and not sought.replace("_", "a").isalnum())


class Unanalysable(Exception):
    """The meaning of this part of a query is not known.

    Attributes
    ----------
    reason
        The obstacle, half a sentence.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Entry:
    """A column that a name may mean at some place of a query.

    Its name may be `UNKNOWN` or `NO_WORD`.
    """

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
    """A FROM clause under construction: leaves, conjuncts, and names.

    Attributes
    ----------
    hidden
        Columns that only a qualified name reaches: the other side's key after USING.
    outer
        The enclosing query, whose names are visible too.
    spreads
        Stars of a query within it (``t.*``) stand for its columns too, as in LATERAL.
    """

    outer: From | None = None
    leaves: dict[int, Node] = field(default_factory=dict)
    conjuncts: list[Expr] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    hidden: list[Entry] = field(default_factory=list)
    order: tuple[Sort, ...] = ()
    spreads: bool = False

    def block(self, columns: Iterable[Out] = ()) -> Block:
        """Return the current rows as a Block with these columns."""
        conjuncts = tuple(dict.fromkeys(self.conjuncts))
        return Block(tuple(self.leaves.items()), conjuncts, tuple(columns))


@dataclass(frozen=True, slots=True)
class Around:
    """The surroundings of a query in its text.

    Attributes
    ----------
    outer
        The FROM clause of the enclosing query.
    ctes
        The visible common table expressions, by their names in lower case.
    """

    outer: From | None = None
    ctes: Mapping[str, Cte] = field(default_factory=dict)


@dataclass(slots=True)
class Cte:
    """A common table expression, bound when it is first read.

    Attributes
    ----------
    name
        In lower case.
    words
        The limit of the recursion, if it is recursive.
    block, failure
        Its meaning, or why that is not known; None before it is bound.
    problems
        Definite errors in it.
    """

    name: str
    query: Any
    names: tuple[str, ...]
    around: Around
    recursive: bool
    words: tuple[str, ...] = ()
    block: Block | None = None
    failure: Unanalysable | None = None
    problems: Sequence[Problem] = ()


@dataclass(slots=True)
class Select:
    """Meanings of names besides columns while a SELECT is bound.

    Attributes
    ----------
    outs
        The output columns bound so far, with aliases or implicit names.
    outs_first
        A name means one of `outs` before it means a column of `source` (ORDER BY, HAVING).
    sorts
        In ORDER BY: functions without parentheses (``current_date``) take precedence over columns
        that are not in the output.
    refuses_doubt
        A name that means different columns in `outs` and in `source` is refused as ambiguous.
    groups
        Expressions are computed from groups, whose keys may be time windows.
    keys
        In HAVING, the keys of the groups: such a column of `source` is meant before one of `outs`.
    """

    source: From
    outs: list[Out] = field(default_factory=list["Out"])
    windows: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    outs_first: bool = False
    sorts: bool = False
    refuses_doubt: bool = False
    groups: bool = False
    keys: tuple[Expr, ...] | None = None
    ctes: Mapping[str, Cte] = field(default_factory=dict)

    @property
    def in_aggregate(self) -> Select:
        """The meanings of names in an argument of an aggregate."""
        if self.keys is None:
            return self
        return replace(self, outs_first=False, refuses_doubt=False, keys=None)

    @property
    def around(self) -> Around:
        """The surroundings of a query within this one."""
        return Around(self.source, self.ctes)
