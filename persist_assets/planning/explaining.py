"""The maintenance of a source's table, explained for each table that it reads. Pure.

    rules of its query (`analysis/deltas`), its annotation ─► `Explanation`

The planner's own functions decide; unlike a plan, an explanation knows neither changes nor costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.hints import hint_of
from persist_assets.core.model.deltas import Merging, NoRule
from persist_assets.core.model.sources import FILE_FORMATS
from persist_assets.planning.deltas import unmaintainable, unreadable
from persist_assets.planning.increments import expected_method, may_keep_states, obstacle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.errors import Location
    from persist_assets.core.model.deltas import NodeRule
    from persist_assets.core.model.plans import Maintenance
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.sources import Source


@dataclass(frozen=True, slots=True)
class Way:
    """The way in which a build follows the change of one table.

    Attributes
    ----------
    keys
        The columns whose touched values are computed again; empty: rows are replaced one by one.
    merges
        A table that keeps states merges them instead.
    why, hint
        For ``whole``, why no cheaper method applies, and what to change to make one apply.
    location
        The place of the obstacle, if it is known.
    """

    method: Maintenance
    keys: tuple[str, ...] = ()
    merges: bool = False
    why: str = ""
    hint: str | None = None
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class TableWays:
    """The ways in which a build follows the changes of one table that a source reads.

    Attributes
    ----------
    added, changed
        If rows are only added, and if rows changed or went.
    """

    table: SourceID
    added: Way
    changed: Way


@dataclass(frozen=True, slots=True)
class Explanation:
    """The maintenance of a source's table.

    Attributes
    ----------
    policy
        The annotation in words.
    never, hint
        Why all rows are computed after any change, and what to change; None: it depends.
    nodes
        The rules of its query, the outermost first.
    """

    policy: str
    never: str | None
    hint: str | None
    nodes: tuple[NodeRule, ...]
    tables: tuple[TableWays, ...]


POLICIES: Mapping[str, str] = {
    "auto": "a build computes only rows that can differ, if it expects that to take less time",
    "incremental": "a build computes only rows that can differ, and warns if it cannot",
    "strict": "a build computes only rows that can differ, and fails if it cannot",
    "whole": "a build computes all rows",
    "snapshot": "a build compares all rows with the current versions",
}
"""The meaning of each value of ``refresh``."""


def explain(project: Project, source: Source) -> Explanation:
    """Return how the table of a source is brought up to date."""
    annotation = source.annotation
    never = unmaintainable(source)
    if annotation.is_incremental and (never is None or obstacle(source) is None):
        never = None
    if source.keeps_history or annotation.partition is not None:
        never = None
    policy = POLICIES[annotation.refresh_value]
    if annotation.partition is not None:
        policy = "a build computes only the partitions that can differ"
    tables = tuple(
        TableWays(s.source_id, *(_way(project, source, s, grows=g) for g in (True, False)))
        for s in project.inputs(source)
    )
    hint = hint_of(never) if never else None
    return Explanation(policy, never, hint, project.rules(source.source_id), tables)


def _way(project: Project, source: Source, table: Source, *, grows: bool) -> Way:
    """Return how a build follows a change of one table."""
    annotation = source.annotation
    if source.keeps_history:
        return Way("history")
    if annotation.partition is not None:
        return Way("partitions")
    unknown = _unknown(project, table)
    if unknown is not None:
        return unknown
    if annotation.is_incremental:
        method = expected_method(project, source, table.source_id, grows=grows)
        if method == "append" and annotation.merge is not None:
            return Way("merge", annotation.merge.key)
        if method is not None:
            return Way(method)
        if grows and annotation.assume is not None:
            return Way("windows")
    never = unmaintainable(source)
    if never is not None:
        why = obstacle(source) if annotation.is_incremental else None
        return Way("whole", why=why or never, hint=None if why else hint_of(never))
    why = unreadable(table)
    if why is not None and not grows:
        return Way("whole", why=why, hint=hint_of(why))
    return _by_rules(project, source, table, grows=grows)


def _unknown(project: Project, table: Source) -> Way | None:
    """Return the method if the changes of a table are unknown; None if they are known."""
    why = f"the changes in {table.name} are unknown"
    if table.raw is None:
        is_view = project.is_view(table)
        return Way("whole", why=why, hint="write materialized=table there") if is_view else None
    if table.external is None and table.raw.format not in ("delta", *FILE_FORMATS):
        return Way("whole", why=why, hint="store it as a Delta table or as files")
    return None


def _by_rules(project: Project, source: Source, table: Source, *, grows: bool) -> Way:
    """Return how the rules of a query follow a change of one table."""
    changed = frozenset((table.source_id,))
    grown = changed if grows else frozenset[str]()
    merges = False
    if may_keep_states(project, source) and not project.reads_temporary(source):
        try:
            merging: Merging | None = project.merging(source.source_id, changed, grown)
        except NoRule:
            merging = None
        merges = merging is not None
    if merges and source.annotation.is_incremental:
        return Way("merge")
    try:
        program = project.program(source.source_id, changed, grown)
    except NoRule as error:
        return Way("whole", (), merges, error.why, hint_of(error.reason), error.location)
    if program is None:
        return Way("stamp")
    if program.only_adds:
        return Way("append")
    keys = source.annotation.by or (source.columns[n].name for n in program.key_columns)
    return Way("keys", tuple(keys), merges)
