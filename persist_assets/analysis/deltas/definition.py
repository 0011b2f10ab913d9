"""The definition of a source over tables: its query, with the queries of other sources inlined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from persist_assets.analysis.algebra import Given
from persist_assets.analysis.binder import bind, bind_source
from persist_assets.analysis.binding import Binding, Face
from persist_assets.analysis.deltas.pivoting import without_pivots
from persist_assets.analysis.deltas.printing import Printer
from persist_assets.analysis.deltas.splitting import split
from persist_assets.analysis.deltas.staging import Staged, staged
from persist_assets.analysis.fingerprint import Fold
from persist_assets.analysis.scope import Unanalysable
from persist_assets.core.dialect import quote
from persist_assets.core.languages import REFERENCE
from persist_assets.core.model.deltas import NoRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from persist_assets.analysis.algebra import Block
    from persist_assets.analysis.types import Types
    from persist_assets.core.errors import Location
    from persist_assets.core.model.queries import Query, SourceID


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """The algebra of a query over tables.

    Attributes
    ----------
    types
        The types of the columns of all leaves.
    """

    block: Block
    types: Types

    def face(self, leaf: Face) -> Face:
        """Return the face by which readers see through to the tables.

        Parameters
        ----------
        leaf
            The source as a leaf.
        """
        names = leaf.names or ()
        outs = zip(self.block.columns, names, strict=True)
        columns = tuple(replace(o, name=name, written=name) for o, name in outs)
        block = replace(self.block, columns=columns, order=())
        return Face(block, leaf.given, names, self.types, self.types.collated)


def define(
    query: Query,
    path: str,
    upstream: Sequence[Face],
    locate: Callable[[Any], Location] | None = None,
) -> Definition:
    """Return the definition of a query that has its tree.

    Parameters
    ----------
    upstream
        For each reference of the query, its source: a table as a leaf, or `Definition.face`.
    locate
        See `Binding`.

    Raises
    ------
    NoRule
        It cannot be analyzed.
    """
    binding = Binding(bind, path, upstream, REFERENCE, locate=locate)
    binding.types.collated |= "collate" in query.text.lower()
    if query.lost:
        raise NoRule(f"of {query.lost}")
    try:
        block = bind_source(binding, query.tree)
    except Unanalysable as error:
        reason = error.reason.removeprefix("because ")
        raise NoRule(reason, binding.mark(binding.entered)) from None
    if binding.problems:
        raise NoRule(binding.problems[0].message, binding.problems[0].location)
    return Definition(block, binding.types)


def checked(
    definition: Definition, parse: Callable[[str], Query], leaf: Callable[[SourceID], Face]
) -> Staged:
    """Return the staged form of a definition that prints as text of the same meaning.

    Parameters
    ----------
    parse
        Parses a query.
    leaf
        Returns a table as a leaf.

    Raises
    ------
    NoRule
        It cannot be printed, or the text means something else.
    """
    block = without_pivots(definition.block, definition.types)
    query = staged(block, definition.types)

    def table(node: Given, instance: int, columns: Sequence[int]) -> str:
        items = ", ".join(f"{quote(node.columns[k])} AS c{k}" for k in columns) or "1 AS one"
        return f"SELECT {items} FROM {quote(node.rows)}"

    text = Printer(table).block(query.block)
    printed = parse(text)
    faces = [leaf(reference.parts[-1]) for reference in printed.references]
    fold = Fold()
    before, after = (
        fold.relation(replace(block, order=()))
        for block in (block, define(printed, "query", faces).block)
    )
    if (before.rows, before.columns) != (after.rows, after.columns):
        raise NoRule("it is printed with another meaning")
    return split(query)
