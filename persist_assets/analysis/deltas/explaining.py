"""The rules of a query, node by node, and its obstacles. Pure.

The rules themselves decide (`rules.py`, `merging.py`): the rule of each node is applied to the
change of each table below it, and what it raises is the node's obstacle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Derived,
    Generate,
    Given,
    Limit,
    Outer,
    SetOperation,
    Subquery,
    Window,
    walk,
)
from persist_assets.analysis.deltas.first_rows import first_rows_of
from persist_assets.analysis.deltas.merging import mergeable_in, unmergeable, with_sets_apart
from persist_assets.analysis.deltas.program import change_of
from persist_assets.analysis.deltas.relations import Relations, equated_columns
from persist_assets.analysis.deltas.rules import Rules, common_partition
from persist_assets.analysis.deltas.splitting import joined_rows
from persist_assets.analysis.deltas.staging import outermost, windows_in
from persist_assets.analysis.deltas.wording import Words
from persist_assets.analysis.functions import CLOCK
from persist_assets.core.hints import hint_of
from persist_assets.core.model.deltas import NodeRule, NoRule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from persist_assets.analysis.algebra import Expr, Node
    from persist_assets.analysis.deltas.staging import Staged
    from persist_assets.core.errors import Location
    from persist_assets.core.model.queries import SourceID

    Part = Aggregate | Outer | SetOperation | Limit | Subquery | Window

_PARTS = (Aggregate, Outer, SetOperation, Limit, Subquery, Window)
"""Parts of queries that can have their own obstacle."""
_NODES = (Aggregate, Derived, Outer, SetOperation, Limit)
_MOST_RUNS = 400
"""With more pairs of a node and a table, rules are applied to the whole query only."""
_SAME = "the same over the changed rows"
_JOINED = "the changed rows of each table are joined with the others"
_NOTHING_ADDED = "rows without a match add nothing to the groups"
_ORDERED = "the table's rows and the changed rows are ordered again, while enough rows are left"
_ONE_VALUE = "if it has another value than before, all rows are computed"
_AGAIN = "the rows with touched values are computed again"


def node_rules(query: Staged) -> tuple[NodeRule, ...]:
    """Return the rules of the nodes of a query, the outermost first."""
    try:
        first = first_rows_of(query)
    except NoRule:
        first = None
    if first is None:
        return tuple(_Explaining(query, query.block).nodes())
    text = Words(query.block).node(first.node)
    rule = _rule(0, text, _ORDERED, first.node.place)
    return (rule, *_Explaining(query, first.below.block).nodes(1))


def whole_rule(error: NoRule) -> NodeRule:
    """Return the obstacle of a query whose nodes are not known."""
    return _rule(0, "the whole query", "", None, error)


def unsteady_rule(name: str, place: Location) -> NodeRule:
    """Return the obstacle of a call whose result differs between builds from the same data."""
    what = "reads the clock" if name in CLOCK else "is nondeterministic"
    call = name if name == "tablesample" else f"{name}()"
    return _rule(0, call, "", place, NoRule(f"of {call}, which {what}"))


@dataclass(slots=True)
class _Obstacle:
    """The reason why a part of a query has no rule, and the tables whose changes it affects."""

    error: NoRule
    tables: set[SourceID] = field(default_factory=set["SourceID"])


class _Explaining:
    """Finds the rules of the nodes of a query.

    Parameters
    ----------
    whole
        The query.
    block
        Its algebra without the LIMIT of the whole query, if that has a rule.
    """

    def __init__(self, whole: Staged, block: Block) -> None:
        self._whole = whole
        self._query = query = replace(whole, block=block)
        self._words = Words(block)
        self._tables = _tables_of(query.block)
        self._rules = Rules(query, self._relations(self._tables))
        parts = (p for p in walk(query.block) if isinstance(p, _PARTS))
        self._parts: dict[int, Part] = {id(p): p for p in parts}
        self._inside: dict[int, Subquery] = {
            id(n): s for s in self._parts.values() if isinstance(s, Subquery) for n in walk(s.block)
        }
        self._obstacles: dict[int, _Obstacle] = {}
        self._unplaced: dict[str, NoRule] = {}
        self._states = mergeable_in(with_sets_apart(query))

    def nodes(self, depth: int = 0) -> Iterator[NodeRule]:
        """Yield the rules.

        Parameters
        ----------
        depth
            The number of nodes around all of them.
        """
        self._find_obstacles()
        yield from self._of_block(self._query.block, depth)
        yield from map(whole_rule, self._unplaced.values())

    def _relations(self, changed: frozenset[SourceID]) -> Relations:
        query = self._query
        return Relations(changed, frozenset(), equated_columns(query.block, query.types))

    # ---------------------------------------------------------------------------------- obstacles

    def _find_obstacles(self) -> None:
        """Apply the rules of the whole query, and those of each node, to the change of a table."""
        every = (n for n in walk(self._query.block) if id(n) not in self._inside)
        nodes = [n for n in every if isinstance(n, _NODES)]
        nodes = nodes if len(nodes) * len(self._tables) <= _MOST_RUNS else []
        changes = {t: frozenset((t,)) for t in sorted(self._tables)}
        for table in changes:
            self._note(table, first_rows_of, self._whole)
        for table, one in changes.items():
            rules = Rules(self._query, self._relations(one))
            self._note(table, rules.block, self._query.block)
            for node in nodes:
                self._note(table, rules.node, node)
        for table, one in changes.items():
            self._note(table, change_of, self._whole, one)

    def _note(self, table: SourceID, derive: Callable[..., object], *args: object) -> None:
        """Record the obstacle that deriving the change of a table raises, if any."""
        try:
            derive(*args)
        except NoRule as error:
            self._assign(error, table)

    def _assign(self, error: NoRule, table: SourceID) -> None:
        """Assign an obstacle to its part; if that is a copy, to the part with the same place."""
        part = self._parts.get(id(error.part))
        if part is None and error.location is not None:
            same = (p for p in self._parts.values() if type(p) is type(error.part))
            part = next((p for p in same if p.place == error.location), None)
        while id(part) in self._inside:
            part = self._inside[id(part)]
        if part is None:
            self._unplaced.setdefault(error.reason, error)
        else:
            self._obstacles.setdefault(id(part), _Obstacle(error)).tables.add(table)

    # --------------------------------------------------------------------------------------- nodes

    def _of_block(self, block: Block, depth: int) -> Iterator[NodeRule]:
        shown = [o.expr for o in block.columns]
        windows = windows_in(shown)
        if windows:
            yield self._windows(windows, shown, depth)
            depth += 1
        relations = [n for _, n in block.leaves if not isinstance(n, Generate)]
        reads_table = depth == 0 and any(isinstance(n, Given) for n in relations)
        if len(relations) > 1:
            yield _rule(depth, self._words.tables(block), _JOINED, block.place)
            depth += 1
        elif not windows and (block.conjuncts or reads_table):
            conditions = [c for c in block.conjuncts if not outermost([c], Subquery)]
            word = "HAVING" if isinstance(relations[0], Aggregate) else "WHERE"
            text = f"{word} {self._words.exprs(conditions)}" if conditions else "SELECT"
            yield _rule(depth, text, _SAME, block.place)
            depth += 1
        for subquery in outermost([*block.conjuncts, *shown], Subquery):
            yield self._subquery(subquery, block, depth)
        for _, node in block.leaves:
            yield from self._of_node(node, depth)

    def _windows(self, windows: Sequence[Window], shown: Sequence[Expr], depth: int) -> NodeRule:
        text, place = self._words.exprs(windows), windows[0].place
        try:
            keys = self._words.exprs(common_partition(shown))
        except NoRule as error:
            return _rule(depth, text, "", place, error)
        rule = f"the partitions of touched keys ({keys}) are computed again"
        judged = next((w for w in windows if id(w) in self._obstacles), windows[0])
        return self._judged(judged, depth, text, rule)

    def _subquery(self, subquery: Subquery, block: Block, depth: int) -> NodeRule:
        try:
            if self._rules.has_one_value(subquery):
                rule = _ONE_VALUE
            else:
                keys = self._words.exprs(self._rules.keys_of(subquery, block))
                rule = f"the rows whose key ({keys}) is touched are computed again"
        except NoRule:
            rule = ""
        return self._judged(subquery, depth, self._words.expr(subquery), rule)

    def _of_node(self, node: Node, depth: int) -> Iterator[NodeRule]:
        text, below = self._words.node(node), list[Block]()
        match node:
            case Given():
                return
            case Derived(block):
                yield from self._of_block(block, depth)
            case Generate():
                yield _rule(depth, text, _SAME, node.place)
            case Aggregate(rows=rows):
                yield self._aggregate(node, depth)
                below, joined = [rows], joined_rows(node)
                if joined is not None:
                    yield _rule(depth + 1, "LEFT JOIN", _NOTHING_ADDED, joined.place)
                    below, depth = [joined], depth + 1
            case Outer(left=left, right=right):
                yield self._judged(node, depth, text, self._joined(node))
                below = [left, right]
            case SetOperation(kind, branches):
                rule = "the changed rows of each branch" if kind == "union all" else _AGAIN
                yield self._judged(node, depth, text, rule)
                below = [*branches]
            case Limit(block):
                yield self._judged(node, depth, text, "")
                below = [block]
            case _:
                yield _rule(depth, text, "its rows do not change", None)
        for block in below:
            yield from self._of_block(block, depth + 1)

    def _joined(self, node: Outer) -> str:
        keys = self._words.exprs(self._rules.keys_of(node))
        if node.kind == "full":
            return f"the rows with touched keys ({keys}) are joined again" if keys else ""
        others = f"; those whose key ({keys}) is touched on the right side, again" if keys else ""
        return f"the changed rows of the left side are joined{others}"

    def _aggregate(self, node: Aggregate, depth: int) -> NodeRule:
        text, keys = self._words.node(node), self._words.exprs(node.keys)
        rule = f"the groups of touched keys ({keys}) are computed again"
        if node.sets is not None:
            text = f"GROUP BY {len(node.sets)} grouping sets of {keys}"
            rule = "each grouping set is maintained like a GROUP BY of its own"
        elif not node.aggregates:
            rule = _AGAIN
        return self._judged(node, depth, text, rule if node.keys else "", self._merged(node))

    def _merged(self, node: Aggregate) -> tuple[str, bool]:
        """Return the merged results in words, or why none is merged; and whether they are."""
        is_kept = any(s is node or (s.place and s.place == node.place) for s in self._states)
        error: NoRule | None = None
        for grows in (False, True):
            error = unmergeable(self._query, node, grows=grows)
            if error is None:
                words = self._words.exprs(node.aggregates) or "the number of equal rows"
                only = " while rows are only added" if grows else ""
                return (words + only, True) if is_kept else ("", False)
        assert error is not None
        return error.reason.removeprefix("of ").replace(", which cannot", " cannot"), False

    def _judged(
        self, part: Part, depth: int, text: str, rule: str, merged: tuple[str, bool] = ("", False)
    ) -> NodeRule:
        """Return the rule of a part, and its obstacle."""
        obstacle = self._obstacles.get(id(part))
        if obstacle is None:
            return _rule(depth, text, rule, part.place, None, (), merged)
        tables = obstacle.tables
        when = () if tables >= _tables_of(part) else tuple(sorted(tables))
        return _rule(depth, text, rule if when else "", part.place, obstacle.error, when, merged)


def _rule(
    depth: int,
    text: str,
    rule: str,
    place: Location | None,
    error: NoRule | None = None,
    when: tuple[SourceID, ...] = (),
    merged: tuple[str, bool] = ("", False),
) -> NodeRule:
    reason = error.reason if error else None
    location = place or (error.location if error else None)
    hint = hint_of(reason) if reason else None
    return NodeRule(depth, text, rule, location, reason, hint, when, *merged)


def _tables_of(thing: object) -> frozenset[SourceID]:
    """Return the tables that a part of a query reads."""
    return frozenset(g.rows for g in walk(thing) if isinstance(g, Given))
