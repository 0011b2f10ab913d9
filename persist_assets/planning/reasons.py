"""Reasons for builds, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.core.model.plans import Reason, Step
from persist_assets.core.model.snapshots import (
    AsOf,
    Build,
    Snapshot,
    mixed,
)
from persist_assets.core.partitions import in_words as keys_in_words
from persist_assets.planning.age import has_table, unbuilt, unchecked
from persist_assets.planning.diff import (
    Difference,
    changed_inputs,
    differ,
    in_words,
    line_of,
)
from persist_assets.planning.increments import (
    mismatch,
)
from persist_assets.planning.inputs import without_draw
from persist_assets.planning.reach import lacking
from persist_assets.planning.world import CLOCK, DRAW, OLDER, PARTITIONS, UNVERSIONED, World

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.annotations import Fallback
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.sources import Source


def why_other_rows(
    project: Project, source: Source, others: Collection[BuildID]
) -> Iterable[Reason]:
    """Yield the reason for tables with other rows than before, from the same data."""
    if others:
        read = [s.name for s in project.inputs(source) if s.build_id in others]
        yield Reason(
            "input", f"different rows of {', '.join(read or ['its inputs'])} from the same data"
        )


def last_failure(last: Build | None) -> Iterable[Reason]:
    """Yield the reason for a source whose last build failed."""
    if last is not None and last.state == "failed":
        error = (last.error or "").splitlines()
        yield Reason("failed", f"failed last time: {error[0] if error else 'unknown'}")


def history_reasons(
    source: Source, latest: Snapshot | None, history: Snapshot | None, *, is_gone: bool
) -> Iterable[Reason]:
    """Yield whether a history continues or starts over.

    Parameters
    ----------
    is_gone
        The table with the history is gone.
    """
    if latest is None:
        return
    if history is None:
        yield Reason("history", "its history starts over: on_change=rebuild")
        return
    if is_gone:
        message = f"its history is lost with {history.table}: restore the files, or start over"
        yield Reason("history", message)
        return
    message = f"its history continues from {history.table} version {history.version}"
    why = mismatch(history.columns, source.columns, grows=True) if source.columns else None
    yield Reason("history", message if why is None else f"its history cannot be continued: {why}")


def counted(order: Sequence[str], chosen: Collection[str]) -> str:
    """Return some partitions of an order in words: their number and their keys."""
    n = len(chosen)
    return f"{n} partition{'s' * (n != 1)} ({keys_in_words(order, chosen)})"


WHEN_OLD: Mapping[Fallback, str] = {
    "live": "its query is computed instead",
    "stale_ok": "it is read as it is",
    "fail": "it must not be read",
}


def unusable_inputs(
    project: Project, source: Source, world: World, coming: Mapping[SourceID, Step]
) -> Iterable[Reason]:
    """Yield the inputs with tainted or expired tables, and how they are read instead."""
    for upstream in project.inputs(source):
        if upstream.source_id in world.tainted and upstream.source_id not in coming:
            message = f"the table of {upstream.name} was tainted: {WHEN_OLD['live']}"
            yield Reason("tainted", message, upstream.source_id)
        fallback = world.expired.get(upstream.source_id)
        if fallback is not None and upstream.source_id not in coming:
            message = f"the table of {upstream.name} is older than its freshness window: "
            yield Reason("age", message + WHEN_OLD[fallback], upstream.source_id)


def obstacles_to_build(
    project: Project,
    source: Source,
    world: World,
    coming: Mapping[SourceID, Step],
    keys: Collection[str] | None = None,
) -> Iterable[Reason]:
    """Yield why a source that has to be built cannot be built."""
    for upstream_id, missing in lacking(project, source, world, keys, coming).items():
        message = missing_in_words(project.by_id[upstream_id], world, missing)
        yield Reason("partition", message, upstream_id)
    for upstream in project.reach(source.bindings, lambda s: has_table(project, s, world, coming)):
        if upstream.raw is not None and upstream.source_id not in world.versions:
            why = world.absent.get(upstream.source_id, "its data is missing")
            yield Reason("no-data", f"{upstream.name}: {why}", upstream.source_id)
    for upstream in unbuilt(project, source, world, coming):
        message = f"{upstream.name} must be built first: only its table has its history"
        yield Reason("history", message, upstream.source_id)
    for upstream in unchecked(project, source, world, coming):
        yield Reason("unchecked", f"{upstream.name} must pass its checks first", upstream.source_id)


def missing_in_words(upstream: Source, world: World, missing: Collection[str]) -> str:
    """Return the missing partitions of an input in words."""
    order = world.keys[upstream.source_id]
    return f"{upstream.name} lacks {counted(order, missing)}"


def why_no_table(
    project: Project, source: Source, last: Build | None, coming: Mapping[SourceID, Step]
) -> Iterable[Reason]:
    """Yield why a source has no readable table."""
    if last is None or last.build_id == source.build_id:
        yield Reason("new", "never built")
        return
    redefined = last.definition != source.definition
    if redefined:
        yield Reason("code", _describe_change(source, last))
    above = changed_inputs(project, source, last)
    for upstream, difference in above:
        yield Reason(
            "upstream", _describe_input_change(upstream, difference, last), upstream.source_id
        )
    upgraded = _why_not_taken_over(project, source, last, is_edited=redefined or bool(above))
    if upgraded is not None:
        yield upgraded
    if redefined or above or upgraded is not None:
        return
    for upstream_id in source.reads:
        step = coming.get(upstream_id)
        if step is not None and any(r.code in ("code", "upstream") for r in step.reasons):
            name = project.by_id[upstream_id].name
            yield Reason("upstream", f"the columns it reads of {name} changed", upstream_id)
            return
    yield Reason("upstream", "the definition of an input changed")


def _why_not_taken_over(
    project: Project, source: Source, last: Build, *, is_edited: bool
) -> Reason | None:
    """Return why the table of a source is not taken over after an upgrade; None: there was none.

    Parameters
    ----------
    is_edited
        Whether its definition, or that of an input, is known to differ.
    """
    origin = last.snapshot.origin if last.snapshot is not None else None
    if last.snapshot is None or (origin.software if origin else "") == project.software:
        return None
    if origin is None:
        return Reason("upgrade", "built by an older release, which did not record its text")
    if not origin.text:
        message = "newer fingerprint, and its rows were computed from several texts"
    elif origin.text == project.text_of(source.source_id):
        message = "newer fingerprint, and its table does not match it"
    elif is_edited:
        return None
    else:
        message = "newer fingerprint, and a text changed since its rows were computed"
    return Reason("upgrade", message)


def _describe_change(source: Source, last: Build) -> str:
    """Return the change of a source's own definition, as far as its last build shows it."""
    if source.function is not None:
        return f"its code, or code that it uses, changed: {source.location.path}"
    if last.digests is None:
        return f"changed in {source.location}"
    difference = differ(last.digests, source.digests)
    named = (*difference.changed, *difference.added, *(new for _, new in difference.renamed))
    alone = not difference.rows and len(difference.columns) == 1 and len(named) == 1
    line = line_of(source, named[0]) if alone else source.location.line
    change = in_words(difference) or "its annotation, or the order of its columns, changed"
    return f"{change} in {source.location.path}:{line}"


def _describe_input_change(upstream: Source, difference: Difference, last: Build) -> str:
    """Return the change of an input's definition."""
    definitions = {read.source_id: read.definition for read in last.reads}
    if upstream.function is not None:
        return f"the code of {upstream.name} or its inputs changed"
    if difference.rows and upstream.raw is not None:
        if definitions[upstream.source_id] == upstream.definition:
            return f"the location of {upstream.name} or a session setting changed"
        return f"the declaration of {upstream.name} changed"
    return in_words(difference, upstream.name) or f"the columns of {upstream.name} were reordered"


def why_other_data(
    project: Project, source: Source, snapshot: Snapshot, world: World, expected: AsOf
) -> Iterable[Reason]:
    """Yield the differences between the data under a snapshot and that of a build."""
    names = {s.build_id: s for s in project.sources if s.raw is not None}
    then, now = set(without_draw(snapshot.as_of, source)), set(expected)
    changed = {v.raw: v.version for v in sorted(then - now) + sorted(now - then)}
    for raw, version in changed.items():
        upstream = names.get(raw)
        if raw == CLOCK:
            yield Reason("clock", f"`{source.name}` or an input depends on the current time")
        elif raw == PARTITIONS + source.build_id:
            continue  # the mark of its own partitions
        elif raw.startswith(PARTITIONS):
            parted = next((s for s in project.sources if PARTITIONS + s.build_id == raw), None)
            message = f"the partitions of {parted.name if parted else 'an input'} changed"
            yield Reason("upstream", message, parted.source_id if parted else None)
        elif raw.startswith(DRAW):
            drawn = next((s for s in project.sources if DRAW + s.build_id == raw), None)
            name = drawn.name if drawn else "an input"
            history = drawn is not None and drawn.keeps_history
            message = (
                f"the history of {name} continued"
                if history
                else f"nondeterministic {name} was built again"
            )
            yield Reason("upstream", message, drawn.source_id if drawn else None)
        elif raw.startswith(OLDER):
            mixing = next((s for s in project.sources if OLDER + s.build_id == raw), None)
            name = mixing.name if mixing else "an input"
            message = f"different rows of {name} are of older code"
            yield Reason("upstream", message, mixing.source_id if mixing else None)
        elif upstream is None:
            yield Reason(
                "input",
                "it was built from data that is no longer read, or is now declared differently",
            )
        elif version.startswith(UNVERSIONED):
            message = f"it is unknown whether the data of {upstream.name} changed"
            yield Reason("unversioned", message, upstream.source_id)
        elif raw in mixed(snapshot.as_of) and raw not in mixed(expected):
            message = f"it mixes two versions of the data of {upstream.name}"
            yield Reason("mixed", message, upstream.source_id)
        else:
            changed_so = f"the data of {upstream.name} changed"
            message = world.behind.get(upstream.source_id, changed_so)
            yield Reason("input", message, upstream.source_id)
