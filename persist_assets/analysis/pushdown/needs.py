"""Needs of a source for a table, and how the relations are made that they are derived from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import (
    Block,
    Derived,
    Given,
    Lateral,
    Limit,
    Node,
    Opaque,
    Outer,
    Recursive,
    SetOperation,
    walk,
)
from persist_assets.analysis.binder import bind
from persist_assets.analysis.binding import Binding, Face
from persist_assets.analysis.pushdown.relation import Kept, Relation
from persist_assets.analysis.semantics import bind_whole, own_origins
from persist_assets.analysis.types import Types
from persist_assets.core.languages import REFERENCE
from persist_assets.core.model.project import Needed

if TYPE_CHECKING:
    from collections.abc import (
        Iterable,
        Sequence,
    )

    from persist_assets.analysis.predicates.terms import Term
    from persist_assets.core.model.queries import Query, SourceID


@dataclass(frozen=True, slots=True)
class Disjunct:
    """The need of one place in which a table is read.

    Attributes
    ----------
    predicate
        TRUE: all rows.
    columns
        Names, sorted.
    kept
        The conditions that were not pushed, sorted.
    """

    predicate: Term
    columns: tuple[str, ...]
    kept: tuple[Kept, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """The rows and columns of a table that a persisted source, or a query, needs.

    Attributes
    ----------
    disjuncts
        One for each distinct place, sorted by text.
    """

    reader: SourceID
    table: SourceID
    disjuncts: tuple[Disjunct, ...]

    @property
    def predicate(self) -> Term:
        """The union of the predicates of all places."""
        return p.union(d.predicate for d in self.disjuncts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all places, sorted."""
        return sorted_names(c for d in self.disjuncts for c in d.columns)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The conditions that were not pushed, each once."""
        return tuple(sorted({k for d in self.disjuncts for k in d.kept}))


def needed(need: Need) -> Needed:
    """Return a need as a project stores it, with its predicate as text."""
    return Needed(
        need.reader,
        need.table,
        p.as_text(need.predicate),
        need.columns,
        tuple((kept.code, kept.words) for kept in need.kept),
    )


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return distinct names, sorted."""
    return tuple(sorted(set(names)))


def leaf(source_id: SourceID, columns: Sequence[tuple[str, str | None]]) -> Face:
    """Return a source as a leaf of its readers' relations, with the names and types of columns."""
    names = tuple(name for name, _ in columns)
    kinds = tuple(kind for _, kind in columns)
    given = Given(source_id, names, None, own_origins(source_id, names), kinds)
    return Face(None, given, names or None)


def relate(query: Query, path: str, upstream: Sequence[Face]) -> Relation:
    """Return the relation of a query that has its tree.

    Parameters
    ----------
    upstream
        For each reference of the query, its source as a `leaf`.
    """
    binding = Binding(bind, path, upstream, REFERENCE, any_condition=True)
    block, notes = bind_whole(binding, query, upstream)
    names: dict[int, tuple[str, ...]] = {}
    for thing in walk(block):
        if isinstance(thing, Block):
            names |= {i: _names_of(node) for i, node in thing.leaves}
    whole = notes[0].partition(":")[0] if notes else None
    return Relation(block, binding.types, names, whole, binding.is_volatile(block))


def _names_of(node: Node) -> tuple[str, ...]:
    match node:
        case Given(columns=names):
            return names
        case Derived(block) | Limit(block):
            return tuple(o.name for o in block.columns)
        case Outer(_, left, right) | Lateral(_, left, right):
            return tuple(o.name for o in (*left.columns, *right.columns))
        case SetOperation(_, branches):
            return tuple(o.name for o in branches[0].columns)
        case Recursive(start):
            return tuple(o.name for o in start.columns)
        case _:
            return ()


def opaque(reads: Sequence[Face], because: str) -> Relation:
    """Return the relation of a query that reads all rows of its inputs, such as a Python function.

    Parameters
    ----------
    reads
        The inputs, with only those columns that it gets.
    """
    node = Opaque((), tuple(face.given for face in reads), 0)
    return Relation(Block(((1, node),)), Types(), {}, because)
