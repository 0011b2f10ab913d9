"""Maintenance of a table by the changes of the tables that it is computed from. Pure.

    changes of the tables ─► program (`analysis/deltas`) ─► Increment, or why all rows are computed
                             expected costs (`costs.py`) ─┘

The invariant: the resulting table equals one computed in full.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from persist_assets.core.model.deltas import Merging, NoRule
from persist_assets.core.model.plans import Increment
from persist_assets.planning.by_keys import unfit_keys
from persist_assets.planning.costs import (
    builds_to_wait,
    dear_comparison,
    estimate,
    is_quick,
    is_too_small,
    is_worth_measuring,
    size_of,
    whole_seconds,
)
from persist_assets.planning.volumes import UNKNOWN, total

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from persist_assets.core.model.deltas import Program
    from persist_assets.core.model.plans import Change, Estimates, Volume
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Cost, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.planning.costs import Experience
    from persist_assets.planning.world import World

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason in costs why all rows are computed although a program computes fewer."""

    why: str
    expected: Estimates


def unmaintainable(source: Source) -> str | None:
    """Return why a source can never be maintained by deltas; None: it depends."""
    annotation = source.annotation
    if source.query is None or (source.function is not None and not annotation.by):
        return "it is computed by a function without `by`"
    if annotation.strategy != "table":
        return f"it is materialized as a {annotation.strategy}"
    if annotation.refresh == "whole":
        return "refresh=whole computes all rows of a stale table"
    if source.keeps_history or annotation.partition is not None or annotation.merge is not None:
        return "its table has other rows than its query"
    if annotation.assume is not None:
        return "assume=exact states which of its rows are new"
    if source.volatile:
        return "it is nondeterministic"
    if source.reads_clock:
        return "it depends on the current time"
    return None


def unreadable(table: Source) -> str | None:
    """Return why the rows that a table had before can no longer be read; None: they can."""
    raw = table.raw
    if raw is None or raw.external is not None or raw.format == "delta":
        return None
    return f"rows of {table.name} changed or were removed, and its files keep no earlier version"


def maintained(
    project: Project,
    source: Source,
    base: Snapshot,
    changes: Mapping[SourceID, Change | None],
    world: World,
    *,
    by_cost: bool,
) -> Increment | Refusal | str | None:
    """Return the increment by which a build maintains a table, or why all rows are computed.

    None: no row can differ.

    Parameters
    ----------
    changes
        The changes of the tables that the source reads, since the base was computed.
    by_cost
        Only if it is expected to be cheaper.
    """
    why = unmaintainable(source)
    if why is not None:
        return why
    if base.view is not None:
        return "its table is a stored query"
    unknown = sorted(project.by_id[s].name for s, change in changes.items() if change is None)
    if unknown:
        return f"the changes in {', '.join(unknown)} are unknown"
    certain = {
        s: _sized(change, world.sizes.get(s, UNKNOWN))
        for s, change in changes.items()
        if change is not None
    }
    changed = {s: c for s, c in certain.items() if c.added or c.lost}
    for source_id, change in changed.items():
        why = unreadable(project.by_id[source_id])
        if change.lost and why is not None:
            return why
    costs = world.costs.get(source.build_id, ())
    whole_s, is_measured = whole_seconds(costs, size_of(certain.values()))
    if by_cost and is_quick(whole_s, costs, world.experience):
        basis = "as the last time" if is_measured else "by the size of its inputs"
        return (
            f"computing all rows takes about {whole_s:.1f} s, {basis}: no more than changes would"
        )
    grown = frozenset(s for s, c in changed.items() if not c.lost)
    program = _derived(project, source, base, frozenset(changed), grown)
    if isinstance(program, str):
        return program
    if program is None:
        may_differ = base.states and changed
        return "its states may have changed, although its rows did not" if may_differ else None
    known, copies = world.experience, base.table in world.foreign
    expected = estimate(program, base, certain, costs, copies=copies, experience=known)
    if by_cost:
        comparing_s = dear_comparison(program, certain, expected.whole_s)
        n_bytes = total(world.sizes.get(s, UNKNOWN) for s in changes).bytes
        why = _why_dearer(expected, costs, known, n_bytes, comparing_s)
        if why is not None:
            return Refusal(why, expected)
    return Increment(base, changes=changed, program=program, expected=expected)


def _why_dearer(
    expected: Estimates,
    costs: Sequence[Cost],
    known: Experience,
    n_bytes: int | None,
    comparing_s: float | None,
) -> str | None:
    """Return why all rows are computed although a program computes fewer; None: they are not.

    Parameters
    ----------
    n_bytes
        The size of all tables that are read; None: unknown.
    comparing_s
        The seconds to compare values that all rows share, if they are too many.
    """
    if not expected.prefers_delta:
        return (
            f"computing all rows takes {expected.whole_s:.1f} s, and computing those that can"
            f" differ about {expected.delta_s:.1f} s"
        )
    n = builds_to_wait(costs, expected.whole_s)
    if n:
        return (
            "the last attempts to compute only rows that can differ failed;"
            f" the next one follows after about {n} full build{'' if n == 1 else 's'}"
        )
    if comparing_s is not None:
        return (
            f"computing all rows takes {expected.whole_s:.1f} s, and only to see whether the value"
            f" of a subquery changed for all of them takes about {comparing_s:.1f} s"
        )
    if is_too_small(costs, n_bytes):
        last = "the last time" if len(costs) > 1 else "the first time"
        return f"its inputs are small, and computing all rows took {expected.whole_s:.1f} s {last}"
    if is_worth_measuring(expected, costs, known):
        return (
            f"computing rows that can differ takes about {expected.delta_s:.1f} s, and computing"
            f" all rows took {expected.whole_s:.1f} s the first time; it is measured once more"
        )
    return None


def _sized(change: Change, size: Volume) -> Change:
    """Return a change with the size of its table, which a table that did not change has too."""
    return replace(change, total_bytes=change.total_bytes or size.bytes or 0)


def _derived(
    project: Project,
    source: Source,
    base: Snapshot,
    changed: frozenset[SourceID],
    grown: frozenset[SourceID],
) -> Program | Merging | str | None:
    """Return the program of a change, or why there is none; None: no row changes.

    States that the table keeps are merged, if they can be.
    """
    if base.states:
        try:
            merging = project.merging(source.source_id, changed, grown)
            if merging.definitions == tuple(s.definition for s in base.states):
                return _changed_map(project, merging, changed - grown) or merging
        except NoRule as error:
            log.debug(
                "`%s` is not merged: %s", source.key, error.reason, extra={"action": "not-merged"}
            )
    if source.annotation.by:
        why = unfit_keys(source, project.by_id, ("its table", base.columns))
        if why is not None:
            return f"its keys cannot be compared: {why}"
    try:
        program = project.program(source.source_id, changed, grown)
    except NoRule as error:
        return error.why
    why = program and _changed_map(project, program, changed - grown)
    if why:
        return why
    if program is not None and program.keys is None and not program.only_adds:
        maps = [c.name for c in base.columns if "map<" in (c.type or "").lower()]
        if maps:
            return f"its rows cannot be compared, because {maps[0]} is a MAP"
    return program


def _changed_map(
    project: Project, program: Program | Merging, lost: Collection[SourceID]
) -> str | None:
    """Return why the changed rows of a table that lost rows cannot be found; None: they can.

    Spark sorts the entries of a MAP that it groups by, and makes numbers of NULLs in them
    (Spark 4.3).
    """
    for source_id in sorted(lost):
        table = project.by_id[source_id]
        for n, name in program.columns.get(source_id, ()):
            if "map<" in (table.known_columns[n].type or "").lower():
                return f"changed rows of {table.name} cannot be compared: {name} is a MAP"
    return None


def describe(project: Project, source: Source, increment: Increment) -> str:
    """Return a description of what an increment with a program computes."""
    names = ", ".join(sorted(project.by_id[s].name for s in increment.changes))
    program = increment.program
    if isinstance(program, Merging):
        return f"the change of {names} is merged into its aggregates"
    if program is not None and program.only_adds:
        return f"only rows that follow from rows added to {names} are computed"
    if source.annotation.by:
        by = ", ".join(source.annotation.by)
        return f"only rows of {by} values that changed in {names} are computed"
    return f"only rows that can differ because {names} changed are computed"
