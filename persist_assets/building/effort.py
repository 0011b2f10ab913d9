"""The effort of a build that updated a table, and how much faster it was than computing all rows.

plan, files written and kept, seconds of earlier builds ─► `Effort`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.snapshots import Effort
from persist_assets.planning.volumes import rows_of_changes

if TYPE_CHECKING:
    from persist_assets.building.stages import Computed
    from persist_assets.building.strategies.strategy import Task
    from persist_assets.core.model.snapshots import Build


def effort_of(task: Task, build: Build, computed: Computed | None = None) -> Effort | None:
    """Return what a build did; None if it computed all rows, or continued no table.

    Parameters
    ----------
    build
        With the method and the seconds by which it computed rows.
    computed
        The rows that it has written; None: it found that no row differs.
    """
    continues = computed is not None and computed.n_kept is not None
    if build.maintenance == "whole" or not (continues or task.step.increment):
        return None
    costs = task.world.costs.get(build.build_id, ())
    whole_s = next((c.seconds for c in costs if c.maintenance == "whole"), None)
    expected = task.step.expected
    by_size_s = expected.by_size_s if expected else None
    saved_s = None
    if whole_s is not None and build.computed_s is not None:
        saved_s = round(whole_s - build.computed_s, 3)
    return Effort(
        rows_changed=rows_of_changes(task.source, task.step, task.world),
        keys_touched=computed.keys_touched if computed else None,
        files_rewritten=computed.n_rewritten if computed and continues else None,
        files_kept=computed.n_kept if computed else None,
        seconds_saved=saved_s,
        seconds_by_size=by_size_s if by_size_s is None else round(by_size_s, 3),
        seconds_shared=round(task.shared.seconds, 3),
    )
