"""Looks whether what sources rest on has changed, and tells what is to be built then. No Spark.

    versions of raw data, position of the ledger ─► anything new? ─► plan ─► what is due

Looking is cheap: a listing or a Delta log for each raw table, one row of the ledger. A plan is made
where either is new; a build is any run's. So whoever follows keeps nothing that could be lost: when
a follower dies, the next one plans from what is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.building.observe import Observer
from persist_assets.planning.world import UNVERSIONED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.model.plans import Plan, ReasonCode
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

CAUSES: frozenset[ReasonCode] = frozenset(
    ("new", "code", "upstream", "input", "strategy", "mixed", "missing")
)
"""Why a build is due. Clocks and data without versions are none: they would make it always due.

So are partitions that are not built yet, or not any more right, unless those alone make them so.
"""
_ALWAYS: frozenset[ReasonCode] = frozenset(("clock", "unversioned"))


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be built now.

    Attributes
    ----------
    sources
        In dependency order.
    waiting
        What is not built because it rests on data that is not there: each with why.
    """

    sources: tuple[SourceID, ...] = ()
    waiting: tuple[tuple[SourceID, str], ...] = ()


def due(project: Project, planned: Plan) -> Due:
    """Return what of a plan is due: what changes of code and data cause. Pure."""
    source_ids: list[SourceID] = []
    idle: set[SourceID] = set()
    waiting: dict[SourceID, str] = {}
    for step in planned.steps:
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
    """What some sources rest on, as it was when it was last looked at.

    Parameters
    ----------
    sources
        Persisted sources. What they read of others is taken as it is published.

    Attributes
    ----------
    renew_s
        How often a run has to look at all of them, so that those with a freshness window are
        known to be current; None: it need not, in seconds.
    """

    def __init__(self, settings: Settings, project: Project, sources: Iterable[SourceID]) -> None:
        self._settings, self._project, self._sources = settings, project, tuple(sources)
        self._raws = [s for s in project.reach(self._sources, lambda _: False) if s.raw]
        self._seen: object = None
        windows = [project.by_id[s].annotation.freshness for s in self._sources]
        self.renew_s = min((w.window_s / 2 for w in windows if w), default=None)

    def look(self, ledger: Ledger) -> Due | None:
        """Return what is due, None where nothing has changed since the last look.

        Raises
        ------
        PersistError
            It cannot be told; the next look tells it.
        """
        # An observer looks at raw data once.
        observer = Observer(self._settings, self._project, ledger)
        versions = [observer.pins.find_version(s) for s in self._raws]
        raw_versions = [None if v is None or v.startswith(UNVERSIONED) else v for v in versions]
        seen = (ledger.events.position(), raw_versions)
        if seen == self._seen:
            return None
        result = due(self._project, observer.plan(self._sources))
        self._seen = seen
        return result

    def forget(self) -> None:
        """Let the next look tell all that is due, whether it is new or not."""
        self._seen = None
