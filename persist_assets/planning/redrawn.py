"""Tables whose rows may differ from those of an earlier build although the raw data is the same.

The rows of an incremental source follow from raw data, through the queries of the tables that it
reads. That is not enough where such a table was computed again and may have chosen other rows: the
first of several that tie, for example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.model.deltas import NoRule
from persist_assets.planning.inputs import content_version, rests_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.world import World


def names_of_redrawn(
    project: Project,
    source: Source,
    as_of: AsOf,
    row_inputs: AsOf,
    world: World,
    coming: Mapping[SourceID, Step],
) -> list[str]:
    """Return the names of tables that a source reads and that may have other rows, sorted.

    Parameters
    ----------
    as_of, row_inputs
        The raw versions and the direct inputs that rows of the source were computed from.
    coming
        The steps before the one of the source.
    """
    known = world.redrawn.get((source.source_id, as_of, row_inputs), frozenset())
    followed = _followed(source)
    return sorted(
        table.name
        for table in _dissolved(project, source, followed)
        if table.build_id in known or _will_be_redrawn(project, table, world, coming, {*followed})
    )


def _followed(source: Source) -> frozenset[SourceID]:
    """Return the tables whose own changes the rows of a source follow."""
    return source.growth.reads if source.growth else frozenset()


def _dissolved(
    project: Project, source: Source, followed: Collection[SourceID]
) -> Iterable[Source]:
    """Return the tables that a source reads, and through which its rows follow from others."""
    tables = project.inputs(source)
    return [t for t in tables if t.raw is None and t.source_id not in followed]


def _is_settled(project: Project, table: Source) -> bool:
    try:
        return project.is_settled(table.source_id)
    except NoRule:
        return False


def _will_be_redrawn(
    project: Project,
    table: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    seen: set[SourceID],
) -> bool:
    """Whether a step replaces rows of a table by others from the same data.

    Parameters
    ----------
    seen
        The tables that need no look; it is extended.
    """
    seen.add(table.source_id)
    step = coming.get(table.source_id)
    if step is None:
        return False
    if step.action == "reuse":
        now, table_then = world.readable(table), step.snapshot
        moves = table_then is not None and (now is None or now.content != table_then.content)
        return moves and not _is_settled(project, table)
    if table.source_id in world.tainted:
        return True
    # Where the method is known only later, the plan of the build itself decides.
    is_open = any(reason.code == "increment" for reason in step.reasons)
    if step.increment is None and not is_open and not _is_settled(project, table):
        return True
    return any(
        below.source_id not in seen and _will_be_redrawn(project, below, world, coming, seen)
        for below in _dissolved(project, table, seen)
    )


@dataclass(frozen=True, slots=True)
class Redrawn:
    """Finds the tables that have been computed again, with other rows from the same data.

    Attributes
    ----------
    tainted
        The builds whose rows were tainted.
    snapshots_of
        Returns the snapshots of all builds of a BuildID, the latest first.
    """

    project: Project
    world: World
    tainted: Collection[str]
    snapshots_of: Callable[[BuildID], Iterable[Snapshot]]

    def of(self, source: Source, as_of: AsOf, row_inputs: AsOf) -> frozenset[BuildID]:
        """Return the BuildIDs of such tables that a source reads; see `names_of_redrawn`."""
        followed = _followed(source)
        return frozenset(
            table.build_id
            for table in _dissolved(self.project, source, followed)
            if self._is_redrawn(table, as_of, row_inputs, followed, set())
        )

    def _is_redrawn(
        self,
        table: Source,
        as_of: AsOf,
        row_inputs: AsOf,
        followed: Collection[SourceID],
        seen: set[tuple[SourceID, AsOf, AsOf]],
    ) -> bool:
        seen.add((table.source_id, as_of, row_inputs))
        read = {v.version for v in row_inputs if v.raw == table.build_id}
        now = self.world.readable(table)
        if now is not None and content_version(table, now) in read:
            return False
        snapshots = [*self.snapshots_of(table.build_id), *((now,) if now else ())]
        former = [s for s in snapshots if content_version(table, s) in read]
        if any(s.build_uid in self.tainted for s in former):
            return True
        since = max((s.built_at for s in former), default=None)
        if since and any(s.built_at > since and rests_alike(s, as_of) for s in snapshots):
            return True
        if not (now and _continues(table, now, former)) and not _is_settled(self.project, table):
            return True
        if former:
            as_of, row_inputs = former[0].as_of, former[0].inputs
        return any(
            self._is_redrawn(below, as_of, row_inputs, followed, seen)
            for below in _dissolved(self.project, table, followed)
            if (below.source_id, as_of, row_inputs) not in seen
        )


def _continues(table: Source, now: Snapshot, former: Iterable[Snapshot]) -> bool:
    """Whether increments led from an earlier snapshot of a table to the present one."""
    uids = {now.build_uid, *now.parts}
    return table.annotation.is_incremental and any(s.build_uid in uids for s in former)
