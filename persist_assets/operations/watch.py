"""Watches the inputs of sources for changes, and tells which builds they make due. Starts no Spark.

    versions of raw data, position of the ledger ─► anything new? ─► plan ─► due builds

A look is cheap: a listing or a Delta log for each raw table, and one row of the ledger. A plan is
made only if one of them is new; any run may build it. So a follower keeps no state that could be
lost: if it dies, the next one plans from what is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.building.observe import Observer
from persist_assets.planning.promotion import is_elsewhere
from persist_assets.planning.world import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.core.model.plans import Plan, ReasonCode
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

CAUSES: frozenset[ReasonCode] = frozenset(
    ("new", "code", "upstream", "input", "strategy", "mixed", "missing")
)
"""Reasons that make a build due. Clocks and data without versions are not among them: they would
make it always due.

Partitions that are not built yet, or are stale, make a build due unless it also has one of those
two reasons.
"""
_ALWAYS: frozenset[ReasonCode] = frozenset(("clock", "unversioned"))


@dataclass(frozen=True, slots=True)
class Due:
    """The builds that are due now.

    Attributes
    ----------
    sources
        In dependency order.
    waiting
        Sources that are not built because they depend on missing data, each with the reason.
    """

    sources: tuple[SourceID, ...] = ()
    waiting: tuple[tuple[SourceID, str], ...] = ()


def due(project: Project, planned: Plan, manifest: Mapping[BuildID, Snapshot]) -> Due:
    """Return the builds of a plan that changes of code and data make due. Pure.

    Parameters
    ----------
    manifest
        The snapshots that readers get. A source is due if its build gives them another
        environment's.
    """
    source_ids: list[SourceID] = []
    idle: set[SourceID] = set()
    waiting: dict[SourceID, str] = {}
    for step in planned.steps:
        if is_elsewhere(step, manifest):
            source_ids.append(step.source_id)
        if step.action != "build":
            continue
        above = (s for s in project.inputs(project.by_id[step.source_id]))
        reasons = step.reasons
        stops = [r.message for r in reasons if r.code == "no-data"]
        stops += [r.message for r in reasons if r.code == "partition" and r.source_id is not None]
        stops += [f"it reads {s.key}" for s in above if s.source_id in waiting]
        if stops:
            waiting[step.source_id] = stops[0]
        elif any(r.code in CAUSES and r.source_id not in idle for r in reasons) or (
            any(r.code == "partition" for r in reasons)
            and not any(r.code in _ALWAYS for r in reasons)
        ):
            source_ids.append(step.source_id)
        else:
            idle.add(step.source_id)
    return Due(tuple(source_ids), tuple(waiting.items()))


class Watch:
    """The inputs of some sources, as of the last look.

    Parameters
    ----------
    sources
        Persisted sources. Other sources that they read count as they are published.

    Attributes
    ----------
    renew_s
        How often, in seconds, a run has to check all of them, so that those with a freshness window
        are known to be current; None: never.
    """

    def __init__(self, settings: Settings, project: Project, sources: Iterable[SourceID]) -> None:
        self._settings, self._project, self._sources = settings, project, tuple(sources)
        self._raws = [s for s in project.reach(self._sources, lambda _: False) if s.raw]
        self._last_state: object = None
        windows = [project.by_id[s].annotation.freshness for s in self._sources]
        self.renew_s = min((w.window_s / 2 for w in windows if w), default=None)

    def look(self, ledger: Ledger) -> Due | None:
        """Return the due builds, or None if nothing has changed since the last look.

        Raises
        ------
        PersistError
            The check failed; the next look repeats it.
        """
        # An observer looks at raw data once.
        observer = Observer(self._settings, self._project, ledger)
        versions = [observer.pins.find_version(s) for s in self._raws]
        raw_versions = [None if v is None or v.startswith(UNVERSIONED) else v for v in versions]
        state = (ledger.events.position(), raw_versions)
        if state == self._last_state:
            return None
        result = due(self._project, observer.plan(self._sources), observer.manifest())
        self._last_state = state
        return result

    def forget(self) -> None:
        """Let the next look return all that is due, whether it is new or not."""
        self._last_state = None
