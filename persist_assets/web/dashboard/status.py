"""The status of each source: building, failed, late, tainted, stale or current. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from persist_assets.planning.promotion import is_due

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.model.sources import Source

State = Literal["building", "failed", "late", "tainted", "unbuilt", "stale", "unknown", "current"]
"""The states of a source, the most urgent first.

``building``
    A build has started and not ended.
``failed``
    Its last build failed.
``late``
    Its table is older than its freshness window, or a want of it is past its deadline.
``tainted``
    Rows of its table must not be used.
``unbuilt``
    It has no table for its current definition and data.
``stale``
    A build would change its table or record newer data.
``unknown``
    It has not been planned yet, so that it may be stale.
``current``
    None of these.
"""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A persisted source and its states.

    Attributes
    ----------
    states
        All that apply, the most urgent first.
    why
        Why it is stale or unbuilt; empty: it is not.
    late_s
        How many seconds it is late; None: it is not.
    building
        The build that is under way, or None.
    last
        The build that ended last, or None.
    """

    source: Source
    states: tuple[State, ...]
    snapshot: Snapshot | None
    last: Build | None
    building: Build | None
    why: str = ""
    late_s: float | None = None

    @property
    def state(self) -> State:
        """The most urgent state."""
        return self.states[0]


@dataclass(frozen=True, slots=True)
class Facts:
    """The records of an environment that the states of its sources follow from.

    Attributes
    ----------
    steps
        The steps of a plan of everything; None: there is no plan.
    late_s
        By asset key, how many seconds the most overdue of its open wants is past its deadline.
    """

    now: datetime
    manifest: Mapping[BuildID, Snapshot]
    last: Mapping[SourceID, Build]
    building: Mapping[SourceID, Build]
    marks: Mapping[str, frozenset[str]]
    late_s: Mapping[str, float]
    steps: Mapping[SourceID, Step] | None


def describe(sources: Iterable[Source], facts: Facts) -> list[SourceStatus]:
    """Return the states of persisted sources, in the given order."""
    return [_describe(source, facts) for source in sources]


def _describe(source: Source, facts: Facts) -> SourceStatus:
    source_id = source.source_id
    snapshot = facts.manifest.get(source.build_id)
    last, building = facts.last.get(source_id), facts.building.get(source_id)
    late = [facts.late_s[source.key]] if source.key in facts.late_s else []
    fresh = source.annotation.freshness
    if snapshot is not None and fresh is not None:
        beyond = (facts.now - snapshot.known_at).total_seconds() - fresh.window_s
        late += [beyond] if beyond > 0 else []
    step = facts.steps.get(source_id) if facts.steps is not None else None
    is_stale = step is not None and is_due(step, facts.manifest)
    tests: dict[State, bool] = {
        "building": building is not None,
        "failed": last is not None and last.state == "failed",
        "late": bool(late),
        "tainted": snapshot is not None and snapshot.build_uid in facts.marks,
        "unbuilt": snapshot is None,
        "stale": snapshot is not None and is_stale,
        "unknown": snapshot is not None and step is None,
    }
    states: tuple[State, ...] = tuple(s for s in STATES if tests.get(s)) or ("current",)
    why = "; ".join(r.message for r in step.reasons) if step is not None and is_stale else ""
    if is_stale and not why:
        why = "another environment has newer rows"
    late_s = max(late) if late else None
    return SourceStatus(source, states, snapshot, last, building, why, late_s)
