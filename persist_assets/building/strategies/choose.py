"""The choice of the strategy that computes the rows of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.building.strategies.deltas import Delta
from persist_assets.building.strategies.incremental import Append, TimeWindow
from persist_assets.building.strategies.partitions import Partitions
from persist_assets.building.strategies.scd2 import History
from persist_assets.building.strategies.states import Merge, WithStates
from persist_assets.building.strategies.view import StoredQuery
from persist_assets.building.strategies.whole import Whole
from persist_assets.core.model.deltas import Merging
from persist_assets.planning.deltas import unmaintainable
from persist_assets.planning.increments import may_keep_states
from persist_assets.planning.maintenance import increment_method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.building.strategies.strategy import Scope, Strategy
    from persist_assets.core.model.plans import Maintenance, Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source


_METHODS: Mapping[str, Maintenance] = {
    "append": "append",
    "window": "windows",
    "partitions": "partitions",
    "history": "history",
    "merge": "merge",
}
"""The methods of strategies, by name. The others compute all rows."""


def maintenance_of(source: Source, strategy: Strategy, scope: Scope) -> Maintenance:
    """Return the method by which a strategy has computed rows.

    That is not always the method of the plan: if windows turn out to be unknown, all rows are
    computed.
    """
    method = _METHODS.get(strategy.name, "whole")
    if method == "windows" and scope.window is None:
        return "whole"
    if method in ("append", "windows"):
        return increment_method(source.annotation, adds=method == "append")
    return method


def strategy_of(project: Project, source: Source, step: Step) -> Strategy:
    """Return the strategy for a step that builds a source."""
    if project.is_view(source):
        return StoredQuery()
    if source.keeps_history:
        return History()
    if step.keys is not None:
        return Partitions(step.keys, step.increment)
    program = step.increment.program if step.increment is not None else None
    if step.increment is not None and program is not None:
        by_merging = isinstance(program, Merging)
        return Merge(step.increment, program) if by_merging else Delta(step.increment, program)
    if step.increment is not None:
        return Append(step.increment) if step.increment.added else TimeWindow(step.increment)
    is_query = source.function is None and unmaintainable(source) is None
    if is_query and may_keep_states(project, source):
        return WithStates()
    return Whole()
