"""The relation of a query, and the reasons why its conditions are not pushed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.analysis.free import Free

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.analysis.algebra import Block
    from persist_assets.analysis.types import Types


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """A condition that is not pushed to a table, and why.

    Attributes
    ----------
    code
        A fixed label: ``UDF``, ``limit above``, ``null side``, …
    words
        The condition and the reason, for people.
    """

    code: str
    words: str


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """The algebra of one source, in which every source that it reads is a leaf.

    Attributes
    ----------
    types
        Types of the columns of all leaves.
    names
        Column names of the leaves, for people: by instance.
    whole
        Why it could not be analysed, or None.
    volatile
        It is nondeterministic: over other rows, its results differ.
    """

    block: Block
    types: Types
    names: Mapping[int, tuple[str, ...]]
    whole: str | None = None
    volatile: bool = False
    free: Free = field(default_factory=Free, repr=False)
