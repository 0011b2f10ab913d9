"""Inputs of a table: versions of raw tables, and the tables it reads."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from persist_assets.core.model.snapshots import (
    AsOf,
    Filled,
    RawVersion,
    Snapshot,
    merge_as_of,
)
from persist_assets.planning.world import CLOCK, DRAW, OLDER, World, older_code

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source


def as_of(project: Project, source: Source, world: World) -> AsOf:
    """Return the raw versions that a build of `source` alone would read."""
    return versions_of(project, source, world, {}, {})


def versions_of(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    inline: dict[tuple[SourceID, SourceID], AsOf],
    reader: SourceID | None = None,
) -> AsOf:
    """Return the versions that a build of `source` would read after the steps before it.

    Parameters
    ----------
    inline
        Cache of the versions of sources that are read inline; it is extended.
    reader
        The reader of `source`, if it is read inline.
    """
    parts: list[Iterable[RawVersion]] = []
    reader = _effective_reader(source, reader)
    whose = reader if reader in world.seen else ""
    if source.reads_clock:
        parts.append(
            [RawVersion(CLOCK, world.day if source.reads_clock == "day" else world.instant)]
        )
    for upstream in project.inputs(source):
        if upstream.raw is not None:
            parts.append([RawVersion(upstream.build_id, world.version(reader, upstream))])
        elif upstream.source_id in coming:
            step = coming[upstream.source_id]
            parts.append(step.as_of)
            if upstream.varies and step.action == "build":
                parts.append([RawVersion(DRAW + upstream.build_id, "to come")])
        elif (snapshot := world.readable(upstream)) is not None:
            parts.append(snapshot.as_of)
        else:
            key = (whose, upstream.source_id)
            if key not in inline:
                inline[key] = versions_of(project, upstream, world, coming, inline, reader)
            parts.append(inline[key])
    return merge_as_of(parts)


def _effective_reader(source: Source, reader: SourceID | None) -> SourceID:
    """Return the source whose needs of external tables count for a source that is read inline.

    A persisted source has the same needs for every reader.
    """
    return source.source_id if reader is None or source.persisted else reader


def rests_alike(snapshot: Snapshot, as_of: AsOf) -> bool:
    """Whether a snapshot used the versions of an as_of, for all raw tables of the snapshot."""
    raws = {v.raw for v in snapshot.as_of}
    return {v for v in as_of if v.raw in raws} == {*snapshot.as_of}


CONTENT = "content:"
"""Prefix of the versions of tables among the inputs of rows."""
_COLUMNS = "#"


def content_version(source: Source, snapshot: Snapshot) -> str:
    """Return the version of a table among the inputs of rows: a digest of its rows.

    The names and types of columns that only the table tells are part of it.
    """
    version = CONTENT + snapshot.content
    if source.known_columns:
        return version
    columns = repr([(c.name, c.type) for c in snapshot.columns])
    return f"{version}{_COLUMNS}{sha256(columns.encode()).hexdigest()[:16]}"


def rows_version(version: str) -> str:
    """Return the version of a table among inputs, without its columns."""
    return version.partition(_COLUMNS)[0]


def inputs(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step] | None = None,
    reader: SourceID | None = None,
) -> AsOf | None:
    """Return the direct inputs of a build of `source`.

    Rows are a function of the BuildID and of these. None if they are not known yet, because a table
    that it reads is built before.
    """
    parts: list[Iterable[RawVersion]] = []
    reader = _effective_reader(source, reader)
    if source.reads_clock:
        now = world.day if source.reads_clock == "day" else world.instant
        parts.append([RawVersion(CLOCK, now)])
    for upstream in project.inputs(source):
        step = (coming or {}).get(upstream.source_id)
        snapshot = step.snapshot if step else world.readable(upstream)
        if upstream.raw is not None:
            parts.append([RawVersion(upstream.build_id, world.version(reader, upstream))])
        elif step is not None and step.action == "build":
            return None
        elif snapshot is not None:
            parts.append([RawVersion(upstream.build_id, content_version(upstream, snapshot))])
        else:
            inline = inputs(project, upstream, world, coming, reader)
            if inline is None:
                return None
            parts.append(inline)
    return merge_as_of(parts)


def is_mixed(source: Source, snapshot: Snapshot, expected: AsOf) -> bool:
    """Whether a table has rows of older code that its source does not allow.

    Such rows stem from a source of the same meaning that allows them, or from before it was
    changed. A source that reads such rows may have them.
    """
    mark = OLDER + source.build_id
    inherited = any(v.raw == mark for v in expected)
    return older_code(snapshot) is not None and not (source.annotation.goes_on or inherited)


def other_rows(former: Iterable[RawVersion], now: AsOf | None) -> frozenset[BuildID]:
    """Return the BuildIDs of the tables whose rows differ between former and present inputs.

    A table gets other rows from the same data if its increments rested on an assumption and it is
    computed in full, or if it is built again after it was tainted.
    """
    after = {v.raw: v.version for v in now or () if v.version.startswith(CONTENT)}
    tables = [v for v in former if v.version.startswith(CONTENT)]
    return frozenset(v.raw for v in tables if after.get(v.raw, v.version) != v.version)


def other_code(source: Source, former: AsOf, now: AsOf) -> frozenset[BuildID]:
    """Return the BuildIDs of other tables that gained or lost rows of older code."""
    marks = {v for v in {*former} ^ {*now} if v.raw.startswith(OLDER)}
    return frozenset(v.raw.removeprefix(OLDER) for v in marks) - {source.build_id}


def follows_from(project: Project, source: Source, others: Collection[BuildID]) -> bool:
    """Whether the rows of a source are known to follow from those of all these tables.

    Rows that follow from the raw data below a table need not follow from the rows of the table
    itself.
    """
    growth = source.growth
    followed = (
        {project.by_id[s].build_id for s in growth.reads & project.by_id.keys()} if growth else ()
    )
    return {*followed}.issuperset(others)


def digest_partitions(groups: Sequence[Filled]) -> str:
    """Return a digest of groups of partitions, for the `as_of` of their readers.

    The ledger stores it, so its text is spelled out and does not depend on names of classes.
    """

    def spelled(versions: AsOf) -> str:
        texts = [f"RawVersion(raw={v.raw!r}, version={v.version!r})" for v in versions]
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"

    text = ", ".join(f"({group.runs!r}, {spelled(group.as_of)})" for group in groups)
    return sha256(f"[{text}]".encode()).hexdigest()[:32]


def drawn(as_of: AsOf, source: Source, build_uid: str) -> AsOf:
    """Return the as_of of a new snapshot; a nondeterministic source adds a draw of its own."""
    draw = [RawVersion(DRAW + source.build_id, build_uid)] if source.varies else []
    return merge_as_of([as_of, draw])


def without_draw(as_of: AsOf, source: Source) -> AsOf:
    """Return an as_of without the snapshot's own draw and without the mark of its older code."""
    return tuple(v for v in as_of if v not in own_marks(as_of, source))


def own_marks(as_of: AsOf, source: Source) -> AsOf:
    """Return the marks in an as_of that identify one build of a source and no other."""
    names = (DRAW + source.build_id, OLDER + source.build_id)
    return tuple(v for v in as_of if v.raw in names)


def beneath(
    find_written: Callable[[str], Snapshot | None], snapshot: Snapshot
) -> Iterable[Snapshot | RawVersion | None]:
    """Yield the tables that a snapshot's rows are read from: its own, or those that its view reads.

    None stands for a table that was collected.

    Parameters
    ----------
    find_written
        Returns the snapshot that a build wrote, None where it was collected: `Builds.find_written`.
    """
    if snapshot.view is None:
        yield snapshot
        return
    for leaf in snapshot.view.leaves:
        if leaf.build_uid is None:
            yield leaf.raw
        elif (read := find_written(leaf.build_uid)) is None:
            yield None
        else:
            yield from beneath(find_written, read)
