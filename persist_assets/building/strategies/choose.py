"""The choice of the strategy that computes the rows of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.building.strategies.incremental import Append, TimeWindow
from persist_assets.building.strategies.partitions import Partitions
from persist_assets.building.strategies.scd2 import History
from persist_assets.building.strategies.view import StoredQuery
from persist_assets.building.strategies.whole import Whole

if TYPE_CHECKING:
    from persist_assets.building.strategies.strategy import Strategy
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source


def strategy_of(project: Project, source: Source, step: Step) -> Strategy:
    """Return the strategy for a step that builds a source."""
    if project.is_view(source):
        return StoredQuery()
    if source.keeps_history:
        return History()
    if step.keys is not None:
        return Partitions(step.keys, step.increment)
    if step.increment is not None:
        return Append(step.increment) if step.increment.added else TimeWindow(step.increment)
    return Whole()
