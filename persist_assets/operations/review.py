"""The review of a change: how the files differ from an environment or a git revision.

    files ──────────────────┐
    environment or revision ┴─► changes, and the plan of that environment ─► Review ─┐
    builds in an environment of the change, checks, tests, differing rows ───────────┴─► Report

A review reads no rows and starts no Spark. Its plan is that of the environment compared with, as if
no other environment had built anything: so it says the same before and after the builds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.contracts import alike
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.data_diff import NotCompared, compare_snapshots
from persist_assets.operations.revisions import find_place, is_other_settings_file
from persist_assets.operations.verify import key_of
from persist_assets.planning.changed_checks import changed_checks, checks_of_builds
from persist_assets.planning.diff import compare, of_project
from persist_assets.planning.planner import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import DataFrame

    from persist_assets.core.errors import Problem
    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.plans import Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.data_diff import RowsDiffer
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.operations.documents.builds import RunDocument
    from persist_assets.operations.revisions import Place
    from persist_assets.operations.testing import Outcome
    from persist_assets.planning.diff import Change


@dataclass(frozen=True, slots=True)
class Altered:
    """A column or check that both sides have, but that differs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """The differences between the columns of a source.

    Attributes
    ----------
    changed
        The columns of both sides that are computed in another way.
    is_known
        Whether both sides are known; if not, nothing is added, removed or retyped.
    """

    added: tuple[Column, ...] = ()
    removed: tuple[Column, ...] = ()
    retyped: tuple[Altered, ...] = ()
    changed: tuple[str, ...] = ()
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class CheckChanges:
    """The differences between the checks of a source, each in words."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[Altered, ...] = ()

    def __bool__(self) -> bool:
        """Whether they differ."""
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A persisted source that differs, or whose checks do.

    Attributes
    ----------
    step
        What a build in the environment compared with would do; None if the source is gone.
    seconds
        How long the last build took that computed rows by the same method, else by any.
    rebuilt, spared
        The sources that read it, directly or not: those that differ because of it or by
        themselves, and those that read nothing that changed.
    """

    source_id: SourceID
    difference: Change
    step: Step | None
    seconds: float | None
    columns: ColumnChanges
    checks: CheckChanges
    rebuilt: tuple[SourceID, ...] = ()
    spared: tuple[SourceID, ...] = ()

    @property
    def is_rebuilt(self) -> bool:
        """Whether its table would be built."""
        return self.step is not None and self.step.action == "build"


@dataclass(frozen=True, slots=True)
class Review:
    """The differences between the files of a project and a place.

    Attributes
    ----------
    sources
        The sources that differ, in dependency order, and then those that are gone.
    n_same
        The number of selected sources that do not differ.
    notes
        What readers of the review should know.
    tables
        The tables of the environment; None for a git revision.
    """

    against: str
    sources: tuple[Reviewed, ...]
    n_same: int
    notes: tuple[str, ...]
    tables: Mapping[SourceID, Snapshot] | None
    build_ids: Mapping[SourceID, str]


@dataclass(frozen=True, slots=True)
class Violation:
    """A source with a difference that a rule forbids."""

    rule: str
    source_id: SourceID
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """A review, and the results of building and testing the change.

    Attributes
    ----------
    review
        None if the sources have errors.
    environment
        The environment in which the change was built; None if it was not.
    run
        The builds; None if nothing was built.
    checks
        The checks that failed, by source, whether they block or not.
    tests
        None if they did not run.
    violations
        The differences that must not be.
    shows_rows
        Whether examples of rows are shown.
    exit_code
        Zero if nothing is wrong.
    """

    against: str
    review: Review | None = None
    problems: tuple[Problem, ...] = ()
    environment: str | None = None
    run: RunDocument | None = None
    checks: Mapping[SourceID, Sequence[CheckResult]] = field(
        default_factory=dict[str, "Sequence[CheckResult]"]
    )
    tests: tuple[Outcome, ...] | None = None
    rows: Mapping[SourceID, RowsDiffer | NotCompared] = field(
        default_factory=dict[str, "RowsDiffer | NotCompared"]
    )
    notes: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()
    shows_rows: bool = True
    exit_code: int = 0


def review(
    settings: Settings,
    project: Project,
    ledger: Ledger,
    against: str,
    chosen: Collection[SourceID] | None = None,
) -> Review:
    """Compare the files of a project with an environment or a git revision.

    Parameters
    ----------
    against
        An environment, with whose settings the files are compiled; or a git revision.
    chosen
        Only these sources; None: all.

    Raises
    ------
    NotFoundError
        There is no such environment or revision.
    SourcesError
        The sources have errors, with the settings of the environment or at the revision.
    """
    place = find_place(settings, project, ledger, against)
    if place.kind == "build":
        raise SettingsError(
            f"`{against}` is a build", hint="compare with an environment or a git revision"
        )
    if place.kind == "environment" and against != settings.environment:
        settings = load_settings(settings.root, environment=against)
        project = require(load_project(settings))
    before = {k: s for k, s in place.standings.items() if s.persisted}
    after = {k: s for k, s in of_project(project).items() if s.persisted}
    observer = Observer(settings, project, ledger)
    world = replace(observer.observe(project.persisted), elsewhere={})
    steps = {s.source_id: s for s in plan(project, [*after], world).steps}
    changes = compare(before, after)
    differing = {c.source_id for c in changes if c.change != "same"}
    reviewed: list[Reviewed] = []
    for change in changes:
        if chosen is not None and change.source_id in after and change.source_id not in chosen:
            continue
        source, step = project.by_id.get(change.source_id), steps.get(change.source_id)
        checks = _check_changes(place, settings, ledger, project, change)
        if change.change == "same" and not checks:
            continue
        readers = _readers(project, change.source_id) if source else ()
        reviewed.append(
            Reviewed(
                change.source_id,
                change,
                step,
                _seconds(ledger, step) if step else None,
                column_changes(_columns(place, change.source_id), source, change),
                checks,
                tuple(r for r in readers if r in differing),
                tuple(r for r in readers if r not in differing),
            )
        )
    n_stale = sum(s.action == "build" and k not in differing for k, s in steps.items())
    selected = after.keys() if chosen is None else after.keys() & {*chosen}
    n_left_out = len((differing & after.keys()) - selected)
    notes = [*_notes(against, place, n_stale, n_left_out)]
    if place.kind == "files" and is_other_settings_file(settings, against):
        notes.append(
            f"{SETTINGS_FILE} differs in {against}: both sides are compiled with this one, "
            "so its changes are not part of the review"
        )
    n_same = len(selected) - sum(r.source_id in after for r in reviewed)
    build_ids = {s.source_id: s.build_id for s in project.persisted}
    return Review(against, tuple(reviewed), n_same, tuple(notes), place.tables, build_ids)


def _notes(against: str, place: Place, n_stale: int, n_left_out: int) -> Sequence[str]:
    notes: list[str] = []
    if place.tables is not None and not place.tables:
        notes.append(f"{against} has no tables in this ledger, so every source is new to it")
    if n_stale and place.tables is not None:
        verb = "is" if n_stale == 1 else "are"
        notes.append(f"{n_stale} more {verb} stale in {against}, because of newer data")
    if n_left_out:
        verb = "source differs and is" if n_left_out == 1 else "sources differ and are"
        notes.append(f"{n_left_out} more {verb} not selected")
    return notes


def _readers(project: Project, source_id: SourceID) -> tuple[SourceID, ...]:
    """Return the persisted sources that read a source, directly or not, in dependency order."""
    reached: set[SourceID] = set()
    level = {source_id}
    while level := {r for s in level for r in project.readers[s]} - reached:
        reached |= level
    return tuple(s.source_id for s in project.persisted if s.source_id in reached)


def _seconds(ledger: Ledger, step: Step) -> float | None:
    """Return the seconds of the last build of a source, in any environment, if one is known."""
    if step.action == "reuse":
        return None
    costs = ledger.builds.fetch_costs(source_id=step.source_id)
    alike_costs = [c for c in costs if c.maintenance == step.maintenance] or costs
    return alike_costs[0].seconds if alike_costs else None


def _columns(place: Place, source_id: SourceID) -> Sequence[Column] | None:
    """Return the columns of a source at a place, if they are known."""
    if place.project is not None:
        source = place.project.by_id.get(source_id)
        return source.columns or None if source else None
    snapshot = (place.tables or {}).get(source_id)
    return snapshot.columns if snapshot else None


def column_changes(
    before: Sequence[Column] | None, source: Source | None, change: Change
) -> ColumnChanges:
    """Return how the columns of a source differ, as far as they are known.

    Parameters
    ----------
    before
        The columns before; None if they are not known, as for a source that is new.
    source
        What it is now; None if it is gone.
    """
    if change.change != "changed" or source is None:
        return ColumnChanges()
    if before is None or not source.columns:
        return ColumnChanges(changed=change.columns, is_known=False)
    old = {c.name.lower(): c for c in before}
    new = {c.name.lower(): c for c in source.columns}
    both = [(old[k], new[k]) for k in new if k in old]
    return ColumnChanges(
        tuple(c for k, c in new.items() if k not in old),
        tuple(c for k, c in old.items() if k not in new),
        tuple(
            Altered(b.name, a.type, b.type)
            for a, b in both
            if a.type and b.type and not alike(a.type, b.type)
        ),
        tuple(n for n in change.columns if n.lower() in new and n.lower() in old),
    )


def _check_changes(
    place: Place, settings: Settings, ledger: Ledger, project: Project, change: Change
) -> CheckChanges:
    """Return how the checks of a source differ from those that its table there went through.

    Parameters
    ----------
    settings
        Those of the environment compared with.
    """
    source = project.by_id.get(change.source_id)
    if source is None or change.change == "removed":
        return CheckChanges()
    before: Sequence[Check | CheckResult] = ()
    if place.project is not None:
        then = place.project.by_id.get(change.source_id)
        before = checks_of_builds(place.project, then) if then else ()
    elif snapshot := (place.tables or {}).get(change.source_id):
        last = ledger.manifests.fetch_checks(change.source_id, snapshot, *settings.environments)
        before = ledger.builds.fetch_checks(snapshot.build_uid) if last is None else last
    changes = changed_checks(project, source, before)
    return CheckChanges(
        tuple(c.after for c in changes if c.after is not None and c.before is None),
        tuple(c.before for c in changes if c.before is not None and c.after is None),
        tuple(
            Altered(c.name, c.before, c.after)
            for c in changes
            if c.before is not None and c.after is not None
        ),
    )


# ----------------------------------------------------------------------------------- differing rows


def compare_built(
    load: Callable[[Snapshot], DataFrame],
    reviewed: Review,
    project: Project,
    built: Mapping[SourceID, Snapshot],
    environment: str,
    sample: int,
) -> tuple[dict[SourceID, RowsDiffer | NotCompared], list[str]]:
    """Return the differing rows of sources that were built, and notes on what else differs.

    Rows are matched by the key that a source states (`merge_key`, `unique`), if it has one and it
    is one on both sides.

    Parameters
    ----------
    load
        Returns the rows of a snapshot.
    built
        The tables of the environment of the change.
    environment
        Its name.
    sample
        The maximum number of rows of each kind.
    """
    differences: dict[SourceID, RowsDiffer | NotCompared] = {}
    notes: list[str] = []
    for r in reviewed.sources:
        old, new = ((t or {}).get(r.source_id) for t in (reviewed.tables, built))
        if r.difference.change != "changed" or new is None or old is None:
            continue
        names = (reviewed.against, environment)
        key = key_of(project.by_id[r.source_id])
        try:
            difference = compare_snapshots(load, old, new, key=key, sample=sample, names=names)
        except SettingsError:  # it is no key on one of the sides
            difference = NotCompared("", lacks_key=True)
        if key and isinstance(difference, NotCompared) and difference.lacks_key:
            difference = compare_snapshots(load, old, new, sample=sample, names=names)
        differences[r.source_id] = difference
        newer = _newer(project, old, new)
        if newer:
            notes.append(
                f"{project.by_id[r.source_id].key}was built from other data in {environment} "
                f"({', '.join(newer)}), so its rows may differ for that reason"
            )
    return differences, notes


def _newer(project: Project, before: Snapshot, after: Snapshot) -> list[str]:
    """Return the raw tables of which two snapshots used different versions."""
    raws = {s.build_id: s.key for s in project.sources if s.raw is not None}
    old = {v.raw: v.version for v in before.as_of}
    return sorted(
        raws[v.raw] for v in after.as_of if v.raw in raws and old.get(v.raw, v.version) != v.version
    )


def shares(difference: RowsDiffer) -> dict[str, float]:
    """Return by column the share of the rows with the same key on both sides in which it differs.

    Columns that differ nowhere are left out; without a key there are none.
    """
    matched = (difference.before or 0) - difference.removed
    return {name: n / matched for name, n in difference.columns.items() if n and matched > 0}
