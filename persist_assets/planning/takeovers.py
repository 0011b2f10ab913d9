"""Tables that sources take over because their BuildIDs differ only by software version. Pure.

A release of ours, of sqlglot or of Malloy may give a source with the same text another BuildID. Its
table has the right rows all the same if they were computed from this very text. The invariant: a
table is taken over only if

- the build that computed its rows recorded the text, and the source and everything beneath it have
  exactly this text and these settings now (`compiler.texts`);
- other software made the BuildID: with the same software, something else must differ;
- the source has no table under its new BuildID, and no source still has the old one;
- the table has the columns that the source has now, and every version that it used can be named as
  a build would name it today.

What is stale, tainted, gone or stored in another way is then seen as in any other table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from persist_assets.core.model.snapshots import Origin, RawVersion, Snapshot, View, merge_as_of
from persist_assets.planning.increments import mismatch
from persist_assets.planning.world import CLOCK, DRAW, OLDER, PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import AsOf
    from persist_assets.core.model.sources import Source

_PREFIXES = (DRAW, PARTITIONS, OLDER)
"""The prefixes of BuildIDs in the names of versions."""


def with_takeovers(
    project: Project, manifest: Mapping[BuildID, Snapshot]
) -> dict[BuildID, Snapshot]:
    """Return a manifest with the snapshots that sources take over, also under new BuildIDs."""
    taken = find_takeovers(project, manifest.values(), manifest)
    return {**manifest, **{build_id: snapshots[0] for build_id, snapshots in taken.items()}}


def find_takeovers(
    project: Project, snapshots: Iterable[Snapshot], present: Iterable[BuildID]
) -> dict[BuildID, list[Snapshot]]:
    """Return the snapshots that sources take over, by new BuildID, the best one first.

    They are as if they had been built under the new BuildIDs.

    Parameters
    ----------
    snapshots
        The snapshots that readers have.
    present
        The BuildIDs that need none.
    """
    known = {*present}
    missing = {b: s for b, s in project.by_build_id.items() if b not in known}
    if not missing or not project.software:
        return {}
    by_text: dict[str, list[tuple[Snapshot, Origin]]] = {}
    for snapshot in snapshots:
        origin = snapshot.origin
        if origin is None or not origin.text or origin.software == project.software:
            continue
        if snapshot.build_id not in project.by_build_id:
            by_text.setdefault(origin.text, []).append((snapshot, origin))
    if not by_text:
        return {}
    new_names, twice = _names_by_text(project), _ambiguous_texts(project, by_text)
    taken: dict[BuildID, list[Snapshot]] = {}
    for build_id, sources in missing.items():
        for source in sources:
            text = project.text_of(source.source_id)
            former = by_text.get(text, ())
            if build_id in taken or not former or text in twice:
                continue
            best_first = sorted(former, key=_recency, reverse=True)
            renamed = (_renamed(project, source, *f, new_names) for f in best_first)
            if usable := [snapshot for snapshot in renamed if snapshot is not None]:
                taken[build_id] = usable
    return taken


def _recency(former: tuple[Snapshot, Origin]) -> tuple[datetime, datetime, int]:
    snapshot, _ = former
    return snapshot.built_at, snapshot.known_at, snapshot.version


def names_in(project: Project, source: Source, versions: Iterable[RawVersion]) -> Names:
    """Return the BuildIDs in the versions of a source's data, each with the text it means."""
    named = {_bare(version.raw)[1] for version in versions}
    beneath = (s for s in project.reach([source.source_id], lambda _: False))
    texts = {(s.build_id, project.text_of(s.source_id)) for s in beneath if s.build_id in named}
    return tuple(sorted(texts))


Names = tuple[tuple["BuildID", str], ...]


def versions_in(snapshot: Snapshot) -> Iterator[RawVersion]:
    """Yield all versions that a snapshot names."""
    yield from snapshot.as_of
    yield from snapshot.inputs
    for group in snapshot.partitions.filled if snapshot.partitions else ():
        yield from group.as_of
        yield from group.inputs
    for leaf in snapshot.view.leaves if snapshot.view else ():
        if leaf.raw is not None:
            yield leaf.raw


def _names_by_text(project: Project) -> dict[str, set[BuildID]]:
    names: dict[str, set[BuildID]] = {}
    for source in project.sources:
        if source.is_leaf and (text := project.text_of(source.source_id)):
            names.setdefault(text, set()).add(source.build_id)
    return names


def _ambiguous_texts(
    project: Project, former: Mapping[str, Sequence[tuple[Snapshot, Origin]]]
) -> set[str]:
    """Return the texts to which some software gives several BuildIDs.

    They do not hold all that matters.

    Parameters
    ----------
    former
        The snapshots that other software made, by text.
    """
    build_ids: dict[tuple[str, str], set[BuildID]] = {}
    for source in project.persisted:
        text = project.text_of(source.source_id)
        build_ids.setdefault((text, project.software), set()).add(source.build_id)
    for text, some in former.items():
        for snapshot, origin in some:
            build_ids.setdefault((text, origin.software), set()).add(snapshot.build_id)
    return {text for (text, _), ids in build_ids.items() if len(ids) > 1}


def _bare(name: str) -> tuple[str, str]:
    """Return the prefix of a version's name, and the BuildID."""
    prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
    return prefix, name.removeprefix(prefix)


def _renamed(
    project: Project,
    source: Source,
    snapshot: Snapshot,
    origin: Origin,
    new_names: Mapping[str, set[BuildID]],
) -> Snapshot | None:
    """Return a snapshot under present BuildIDs; None if a name or its columns do not fit."""
    if source.columns and not _has_columns(source, snapshot):
        return None
    names: dict[str, set[BuildID]] = {}
    for build_id, text in origin.names:
        names.setdefault(build_id, set()).update(new_names.get(text, ()))
    names[snapshot.build_id] = {source.build_id}
    used = {_bare(v.raw)[1] for v in versions_in(snapshot) if v.raw != CLOCK}
    if not all(names.get(name) for name in used):
        return None

    def rename(versions: AsOf) -> AsOf:
        return merge_as_of([_new_versions(v, names) for v in versions])

    partitions, view = snapshot.partitions, snapshot.view
    if partitions is not None:
        filled = (
            replace(group, as_of=rename(group.as_of), inputs=rename(group.inputs))
            for group in partitions.filled
        )
        partitions = replace(partitions, filled=tuple(filled))
    if view is not None:
        raws = [_new_versions(leaf.raw, names) if leaf.raw else [None] for leaf in view.leaves]
        if any(len(new) != 1 for new in raws):
            return None
        leaves = (replace(old, raw=new[0]) for old, new in zip(view.leaves, raws, strict=True))
        view = View(view.sql, tuple(leaves))
    renamed = replace(
        snapshot,
        source_id=source.source_id,
        build_id=source.build_id,
        as_of=rename(snapshot.as_of),
        inputs=rename(snapshot.inputs),
        partitions=partitions,
        view=view,
    )
    present = names_in(project, source, versions_in(renamed))
    return replace(renamed, origin=Origin(origin.text, project.software, present))


def _new_versions(version: RawVersion, names: Mapping[str, set[BuildID]]) -> list[RawVersion]:
    prefix, name = _bare(version.raw)
    if version.raw == CLOCK:
        return [version]
    return [RawVersion(prefix + new, version.version) for new in sorted(names[name])]


def _has_columns(source: Source, snapshot: Snapshot) -> bool:
    """Whether a table has the columns of a source, in their order, as far as types are known."""
    had, has = ([c.name.lower() for c in some] for some in (snapshot.columns, source.columns))
    return had == has and mismatch(snapshot.columns, source.columns) is None
