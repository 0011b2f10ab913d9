"""Facts: predicates that hold for all rows of a relation, whatever its readers require."""

from __future__ import annotations

from typing import TYPE_CHECKING

import persist_assets.analysis.predicates as p
from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Derived,
    Given,
    Lateral,
    Limit,
    Outer,
    SetOperation,
)
from persist_assets.analysis.predicates.terms import TRUE, Term
from persist_assets.analysis.pushdown.equalities import equal_columns, through
from persist_assets.analysis.pushdown.relation import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.pushdown.terms import TermReader
    from persist_assets.core.model.queries import SourceID

_MOST_DEEP = 6
_MOST_FACTS = 16
"""Facts of relations further below, and more facts of one relation, are not sought."""


class Facts:
    """Finder of facts; it remembers them.

    Parameters
    ----------
    reader_of
        Returns the reader of the terms of a source.
    relations
        The sources whose queries are known.
    """

    def __init__(
        self, reader_of: Callable[[SourceID], TermReader], relations: Container[SourceID]
    ) -> None:
        self._reader_of, self._relations = reader_of, relations
        self._blocks: dict[tuple[int, int], tuple[Term, ...]] = {}

    def of_block(
        self, reader: TermReader, block: Block, depth: int = _MOST_DEEP
    ) -> tuple[Term, ...]:
        """Return the facts about the leaves of a Block that hold for all of its rows."""
        key = id(block), depth
        facts = self._blocks.get(key)
        if facts is None:
            lost = [*reader.lost]
            own = [reader.condition(c)[0] for c in block.conjuncts]
            reader.lost[:] = lost
            leaves = (self.of_leaf(reader, i, node, depth) for i, node in block.leaves)
            facts = _few((*own, *(fact for some in leaves for fact in some)))
            self._blocks[key] = facts
        return facts

    def of_leaf(
        self, reader: TermReader, instance: int, node: Node, depth: int = _MOST_DEEP
    ) -> list[Term]:
        """Return the facts about one leaf, in terms of its columns."""

        def column(out: Term) -> Term | None:
            value = reader.column(instance, int(out.words[0]))
            return value[0] if not isinstance(value, Kept) and value[1] == out.words[1] else None

        def keep(atom: Term) -> Term:
            return p.rebuilt(atom, column) or TRUE

        facts = self._of_node(reader, node, depth - 1) if depth > 0 else ()
        return [fact for one in facts if (fact := p.weakened(one, keep)) != TRUE]

    def _of_node(self, reader: TermReader, node: Node, depth: int) -> Sequence[Term]:
        """Return the facts about the rows of a node, by column numbers."""
        match node:
            case Given(rows=source_id) if source_id in self._relations:
                below = self._reader_of(source_id)
                return self._restated(below, below.relation.block, None, depth)
            case Derived(block) | Limit(block):
                return self._restated(reader, block, None, depth)
            case Outer("left", left) | Lateral(_, left):
                return self._restated(reader, left, None, depth)
            case Aggregate(rows, keys, _, sets):
                fixed = [
                    k if sets is None or all(n in one for one in sets) else None
                    for n, k in enumerate(keys)
                ]
                return self._restated(reader, rows, fixed, depth)
            case SetOperation("union all", branches):
                each = [p.every(self._restated(reader, b, None, depth)) for b in branches]
                return _few((p.some(each),))
            case SetOperation(_, branches):
                return self._restated(reader, branches[0], None, depth)
            case _:
                return ()

    def _restated(
        self,
        reader: TermReader,
        block: Block,
        columns: Sequence[Expr | None] | None,
        depth: int,
    ) -> tuple[Term, ...]:
        """Return the facts of a Block about columns that pass on those of its leaves."""
        exprs = [o.expr for o in block.columns] if columns is None else columns
        outs: dict[Term, Term] = {}
        for number, expr in enumerate(exprs):
            value = None if expr is None else reader.value(expr)
            if value is not None and not isinstance(value, Kept) and value[0].op == "ref":
                outs.setdefault(value[0], Term("out", (), (str(number), value[1])))
        if not outs:
            return ()
        facts = self.of_block(reader, block, depth)
        keep = through(equal_columns(facts), outs.__contains__)

        def renamed(atom: Term) -> Term:
            return p.rebuilt(atom, outs.get) or TRUE

        return _few(p.weakened(p.weakened(fact, keep), renamed) for fact in facts)


def _few(facts: Iterable[Term]) -> tuple[Term, ...]:
    """Return the first distinct facts."""
    return tuple(dict.fromkeys(c for f in facts for c in p.conjuncts(f)))[:_MOST_FACTS]
