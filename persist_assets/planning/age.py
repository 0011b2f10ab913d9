"""Tables that may be read although they are older than their data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.planning.inputs import without_draw
from persist_assets.planning.world import UNVERSIONED, World

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import (
        AsOf,
        Snapshot,
    )
    from persist_assets.core.model.sources import Source


def is_stored_as_declared(project: Project, source: Source, snapshot: Snapshot) -> bool:
    """Whether a snapshot is stored as its source declares: as a view, or as a table."""
    return (snapshot.view is not None) == project.is_view(source)


def is_young(source: Source, snapshot: Snapshot, expected: AsOf, world: World) -> bool:
    """Whether a table is due only because of unversioned data, and its freshness window is open.

    Unversioned data is read again once the table is older than the freshness window of its source.
    """
    if source.annotation.freshness is None or source.source_id in world.expired:
        return False
    then, now = (
        {(v.raw, UNVERSIONED if v.version.startswith(UNVERSIONED) else v.version) for v in versions}
        for versions in (without_draw(snapshot.as_of, source), expected)
    )
    return then == now


def unchecked(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step] | None = None,
) -> tuple[Source, ...]:
    """Return the sources that a build of `source` would read without their blocking checks.

    These are persisted sources with blocking checks that would be computed inline, because they
    have no table to read.
    """
    inline = project.reach(source.bindings, lambda s: has_table(project, s, world, coming or {}))
    return tuple(
        s
        for s in inline
        if s.persisted
        and not has_table(project, s, world, coming or {})
        and any(c.blocking for other in project.by_build_id[s.build_id] for c in other.checks)
    )


def unbuilt(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step] | None = None,
) -> tuple[Source, ...]:
    """Return the histories that a build of `source` would read and that have no table yet."""
    inline = project.reach(source.bindings, lambda s: has_table(project, s, world, coming or {}))
    return tuple(
        s for s in inline if s.keeps_history and not has_table(project, s, world, coming or {})
    )


def has_table(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step]
) -> bool:
    """Whether a source is read from a table: an existing one, or one that is built before."""
    return source.persisted and (
        world.readable(source) is not None
        or any(s.source_id in coming for s in project.by_build_id[source.build_id])
    )
