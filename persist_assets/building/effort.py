"""The effort of a build that updated a table, and how much faster it was than computing all rows.

plan, files written and kept, seconds of earlier builds ─► `Effort`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.snapshots import Effort
from persist_assets.planning.costs import owed_after, whole_seconds
from persist_assets.planning.volumes import rows_of_changes

if TYPE_CHECKING:
    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.snapshots import Build


def effort_of(task: Task, build: Build, computed: Computed | None = None) -> Effort | None:
    """Return what a build did; None if it only computed all rows, or continued no table.

    Parameters
    ----------
    build
        With the method and the seconds by which it computed rows.
    computed
        The rows that it has written; None: it found that no row differs.
    """
    continues = computed is not None and computed.n_kept is not None
    costs = task.world.costs.get(build.build_id, ())
    if build.maintenance == "whole":
        lost_s = computed.lost_s if computed else 0.0
        owed_s = owed_after(costs, (build.computed_s or 0.0) - lost_s, lost_s)
        if not lost_s and not owed_s:
            return None
        return Effort(seconds_lost=round(lost_s, 3), seconds_owed=round(owed_s, 3))
    if not (continues or task.step.increment):
        return None
    whole_s, is_measured = whole_seconds(costs, 0)
    expected = task.step.expected
    by_size_s = expected.by_size_s if expected else None
    saved_s = whole_s - build.computed_s if is_measured and build.computed_s is not None else None
    return Effort(
        rows_changed=rows_of_changes(task.source, task.step, task.world),
        keys_touched=computed.keys_touched if computed else None,
        files_rewritten=computed.n_rewritten if computed and continues else None,
        files_kept=computed.n_kept if computed else None,
        seconds_saved=saved_s if saved_s is None else round(saved_s, 3),
        seconds_by_size=by_size_s if by_size_s is None else round(by_size_s, 3),
        seconds_shared=round(task.shared.seconds, 3),
    )
