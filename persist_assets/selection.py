"""Which sources a selection means, as far as names and graph tell. Pure.

`name`, `+name`, `name+`, `+name+` and `2+name+1`, over asset keys and names of sources, are
understood here; everything else of Dagster's selection syntax by `plugin.selection`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from persist_assets.errors import ConflictError, NotFoundError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.model import Project, Source, SourceID

_SIMPLE = re.compile(r"(?:(\d*)(\+))?([\w./@-]+)(?:(\+)(\d*))?")


def is_simple(pattern: str) -> bool:
    """Whether `select` understands a pattern."""
    return _SIMPLE.fullmatch(pattern.strip()) is not None


def find_source(project: Project, name: str) -> Source:
    """Return the one source that a name, an asset key (``/`` or ``.``) or a SourceID means.

    Raises
    ------
    NotFoundError
        There is none.
    ConflictError
        There are several.
    """
    if name in project.by_id:
        return project.by_id[name]
    parts = tuple(part.lower() for part in re.split(r"[/.]", name))
    found = [
        s for s in project.sources if tuple(k.lower() for k in s.asset_key[-len(parts) :]) == parts
    ]
    if len(found) == 1:
        return found[0]
    if found:
        keys = ", ".join(s.key for s in found)
        raise ConflictError(f"`{name}` may be any of {keys}", hint="say which")
    known = {s.name for s in project.sources} | {s.key for s in project.sources}
    raise NotFoundError(f"there is no source `{name}`", hint=did_you_mean(name, known))


def select(project: Project, patterns: Iterable[str]) -> tuple[SourceID, ...]:
    """Return the persisted sources that any of the patterns means, in dependency order.

    A pattern that names a source which is not persisted means the persisted ones around it,
    as far as its ``+`` reach.

    Raises
    ------
    NotFoundError
        A pattern names nothing, or nothing that is persisted.
    ConflictError
        A name is that of several sources.
    """
    chosen: set[SourceID] = set()
    for pattern in patterns:
        match = _SIMPLE.fullmatch(pattern.strip())
        if match is None:
            raise NotFoundError(f"`{pattern}` is not a selection")
        before, up, name, down, after = match.groups()
        source = find_source(project, name)
        reached = {source.source_id}
        if up:
            reached |= _walk(
                source.source_id, {s.source_id: s.reads for s in project.sources}, before
            )
        if down:
            reached |= _walk(source.source_id, project.readers, after)
        persisted = {s for s in reached if project.by_id[s].persisted}
        if not persisted:
            hint = "it is a raw table: it is read, not built"
            if source.query:
                mark = "--@" if source.location.path.endswith(".sql") else "#@"
                hint = f"annotate it: {mark} persist"
            raise NotFoundError(f"`{name}` is not persisted", hint=hint)
        chosen |= persisted
    return tuple(s.source_id for s in project.persisted if s.source_id in chosen)


def _walk(
    start: SourceID, edges: Mapping[SourceID, Iterable[SourceID]], depth: str | None
) -> set[SourceID]:
    reached: set[SourceID] = set()
    level, left = {start}, int(depth) if depth else None
    while level and left != 0:
        level = {n for s in level for n in edges[s]} - reached
        reached |= level
        left = None if left is None else left - 1
    return reached
