"""Changes of a whole environment at once: promotion and rollback. No data is copied."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.building.observe import Observer
from persist_assets.building.publishing import addresses, announce, export, show_views
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import ConflictError, NotFoundError, PersistError, SettingsError
from persist_assets.core.model.snapshots import Move, RawVersion, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.planning.inputs import beneath
from persist_assets.planning.promotion import Promotion, decide, lost_partitions, shown_partitions
from persist_assets.storage.delta_tables import has_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import ManifestChange
    from persist_assets.core.settings.values import Settings
    from persist_assets.core.wants import PartitionRef
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)


def promote(
    builder: Builder | Observer,
    target: str,
    selected: Iterable[SourceID],
    *,
    allow_stale: bool = False,
    dry_run: bool = False,
    expected: str | None = None,
    by: str | None = None,
    why: str | None = None,
) -> tuple[Promotion, int | None]:
    """Publish some sources in `target` as readers of the builder's environment see them.

    Parameters
    ----------
    builder
        An observer is enough unless `target` has views in a catalog, which Spark updates.
    expected
        The digest of the promotion, as far as the user knows it; None: any.
    by
        The user to record; None: the user of this process.

    Returns
    -------
    Promotion, int | None
        The decision, and the number of the change. The number is None if nothing was changed: a
        source is refused, there is nothing to do, or it was a dry run.

    Raises
    ------
    SettingsError
        Both environments are the same, or `target` does not exist.
    ConflictError
        An environment has changed in the meantime.
    """
    settings, ledger, now = builder.settings, builder.ledger, datetime.now(UTC)
    if target == settings.environment:
        message = f"`{target}` cannot be promoted into itself"
        raise SettingsError(message, hint="name two environments")
    selected, sources = [*selected], settings.root / settings.sources
    target_settings = load_settings(settings.root, environment=target).with_sources(sources)
    target_project = require(load_project(target_settings))
    engine = None if isinstance(builder, Observer) else builder.engine
    if target_settings.has_views and engine is None and not dry_run:
        raise _needs_spark(target, f"persist promote {settings.environment} {target}")
    manifests = ledger.manifests
    history = manifests.fetch_history(target, limit=1)
    shown = manifests.fetch(*target_settings.environments)
    promotion = decide(
        builder.project,
        target_project,
        builder.plan(selected),
        manifests.fetch(*settings.environments),
        manifests.fetch(target),
        shown,
        manifests.fetch_passed(*settings.environments),
        allow_stale=allow_stale,
    )
    addresses(target_settings, target_project)
    if dry_run or promotion.refused:
        return promotion, None
    if expected is not None and promotion.digest != expected:
        message = f"{settings.environment} or {target} changed meanwhile"
        raise ConflictError(message, hint="preview the promotion again")
    change = None
    if promotion.snapshots:
        change = manifests.promote(
            settings.environments,
            target,
            promotion.snapshots,
            expected=history[0].change_id if history else 0,
            refs=shown_partitions(target_project, promotion.snapshots.values(), shown, now),
            assets={*target_project.keys.values()},
            malloy=target_project.malloy,
            by=by,
            why=why,
        )
    manifests.confirm(target, promotion.unchanged)
    # Even if nothing moved: an earlier promotion may have died before this point.
    export(target_settings, ledger)
    shared = _sharing(target_project, selected)
    announce(target_settings, ledger, target_project, shared, engine=engine)
    return promotion, change


def _sharing(project: Project, selected: Iterable[SourceID]) -> list[SourceID]:
    """Return the sources whose readers read the tables of selected ones: all of their BuildIDs."""
    build_ids = {project.by_id[s].build_id for s in selected if s in project.by_id}
    return [s.source_id for s in project.persisted if s.build_id in build_ids]


def _needs_spark(environment: str, command: str) -> SettingsError:
    return SettingsError(
        f"`{environment}` has views in a catalog, which only a process with Spark updates",
        hint=f"run {command}",
    )


@dataclass(frozen=True, slots=True)
class Rollback:
    """The effect of a rollback.

    Attributes
    ----------
    to
        The change to whose state the manifest returns, 0: before the first; None: to a state that
        it never had.
    undone
        The changes that are undone, the latest first.
    expected
        The latest change of the manifest when this was decided.
    gone
        The tables of the earlier state that were deleted; if there are any, nothing can be done.
    """

    to: int | None
    undone: tuple[ManifestChange, ...]
    expected: int
    gone: tuple[str, ...]

    @property
    def moves(self) -> tuple[Move, ...]:
        """The effect on each entry that gets other rows: what readers get now, and then."""
        now: dict[BuildID, Snapshot | None] = {}
        then: dict[BuildID, Snapshot | None] = {}
        for change in self.undone:
            for move in change.moves:
                now.setdefault(move.build_id, move.after)
                then[move.build_id] = move.before
        moves = (Move(build_id, then[build_id], now[build_id]) for build_id in now)
        return tuple(m for m in moves if _uid(m.before) != _uid(m.after))


def _uid(snapshot: Snapshot | None) -> str | None:
    return snapshot.build_uid if snapshot is not None else None


def plan_rollback(
    settings: Settings,
    ledger: Ledger,
    *,
    to: int | None = None,
    steps: int = 1,
    run: str | None = None,
) -> Rollback:
    """Return the effect that `roll_back` would have.

    Parameters
    ----------
    to
        The change whose result is restored; None: undo the last `steps` steps that are not undone
        yet (`steps_of`).
    run
        Undo only what this run, or the change with this number, published.

    Raises
    ------
    NotFoundError
        There is no such change or run.
    ConflictError
        A later run published the same tables as `run`.
    """
    environment = settings.environment
    history = ledger.manifests.fetch_history(environment)
    if to is not None:
        if all(c.change_id != to for c in history):
            raise NotFoundError(
                f"{environment} has no change {to}", hint="persist history lists the changes"
            )
        # Collections only remove unused entries, so there is nothing to undo.
        undone = [c for c in history if c.change_id > to and c.kind != "collect"]
        if not undone:
            raise ConflictError(f"{environment} is already at change {to}")
    else:
        steps_left = steps_of(history)
        undone_steps = (
            _steps_of_run(environment, history, steps_left, run)
            if run is not None
            else _last_steps(environment, steps_left, steps)
        )
        undone = [c for step in undone_steps for c in step]
        to = _Standing(history).change_without({c.change_id for c in undone})
    undone = tuple(sorted(undone, key=lambda c: c.change_id, reverse=True))
    earlier = {move.build_id: move.before for change in undone for move in change.moves}
    gone = sorted(
        f"{snapshot.table} version {snapshot.version}"
        for snapshot in earlier.values()
        if snapshot and not has_tables(settings, ledger, snapshot)
    )
    return Rollback(to, undone, history[0].change_id, tuple(gone))


def roll_back(
    settings: Settings,
    ledger: Ledger,
    *,
    to: int | None = None,
    steps: int = 1,
    run: str | None = None,
    expected: int | None = None,
    by: str | None = None,
    why: str | None = None,
    builder: Builder | None = None,
) -> ManifestChange:
    """Reset an environment's manifest to an earlier state, and return the change.

    Parameters
    ----------
    to, steps, run
        See `plan_rollback`.
    expected
        The latest change of the manifest, as far as the user knows; None: any.
    by
        The user to record; None: the user of this process.
    builder
        Updates the views through which others read sources, if the environment has such views.

    Raises
    ------
    NotFoundError
        There is no such change or run.
    ConflictError
        A table of the earlier state is gone, the environment has changed in the meantime, or a
        later run published the same tables as `run`. Nothing was changed.
    """
    environment = settings.environment
    rollback = plan_rollback(settings, ledger, to=to, steps=steps, run=run)
    if rollback.gone:
        raise ConflictError(f"cannot roll back: {', '.join(rollback.gone)} is gone")
    project = publishing_project(settings, builder)
    latest = rollback.expected if expected is None else expected
    lost = _lost_partitions(settings, project, rollback)
    if rollback.to is not None:
        ledger.manifests.roll_back(
            environment, rollback.to, expected=latest, lost=lost, by=by, why=why
        )
    else:
        moved = {c.change_id: c.moved for c in rollback.undone}
        reason = why or f"without {', '.join(map(str, sorted(moved)))}"
        ledger.manifests.undo(environment, moved, expected=latest, lost=lost, by=by, why=reason)
    export(settings, ledger)
    change = ledger.manifests.fetch_history(environment, limit=1)[0]
    announce_moved(settings, ledger, project, builder, change.moves)
    return change


HistoryStep = tuple["ManifestChange", ...]
"""The changes of one run, or the single change of a promotion or an import; earliest first."""


def steps_of(history: Sequence[ManifestChange]) -> list[HistoryStep]:
    """Return the steps that led to a manifest's current state, latest last.

    A step is a promotion, an import, or everything that one run published until it published an
    entry again. Steps that were undone are left out, and so are sources that were up to date.

    Parameters
    ----------
    history
        The latest change first.
    """
    by_id = {c.change_id: c for c in history}
    steps: list[list[ManifestChange]] = []
    last: dict[str | None, tuple[list[ManifestChange], set[str]]] = {}
    for number in _Standing(history).numbers():
        change = by_id[number]
        step, entries = last.get(change.run_id, ([], set[str]()))
        if change.run_id is None or not step or not entries.isdisjoint(change.moved):
            step, entries = [], set[str]()
            steps.append(step)
        step.append(change)
        entries |= change.moved
        last[change.run_id] = step, entries
    return sorted((tuple(step) for step in steps), key=lambda step: step[-1].change_id)


class _Standing:
    """The changes that a manifest rested on after each change, without those that were undone.

    Parameters
    ----------
    history
        The latest change first.
    """

    def __init__(self, history: Sequence[ManifestChange]) -> None:
        # Each node is a change after another node, so equal sequences share one node.
        self._nodes: list[tuple[int, int]] = [(0, 0)]
        self._node_ids: dict[tuple[int, int], int] = {}
        self._after: dict[int, int] = {0: 0}
        self._present = 0
        for change in reversed(history):
            if change.kind == "rollback" and change.back_to is not None:
                self._present = self._after.get(change.back_to, 0)
            elif change.kind == "rollback":
                self._present = self._without({*change.undone})
            elif change.kind != "collect" and change.moved:
                self._present = self._node(self._present, change.change_id)
            self._after[change.change_id] = self._present

    def numbers(self) -> list[int]:
        """Return the changes that led to the manifest's current state, earliest first."""
        change_ids: list[int] = []
        node = self._present
        while node:
            node, number = self._nodes[node]
            change_ids.append(number)
        return change_ids[::-1]

    def change_without(self, numbers: Collection[int]) -> int | None:
        """Return the last change after which it rested on all but `numbers`, or None."""
        node = self._without(numbers)
        return max((n for n, after in self._after.items() if after == node), default=None)

    def _without(self, numbers: Collection[int]) -> int:
        node = 0
        for number in self.numbers():
            if number not in numbers:
                node = self._node(node, number)
        return node

    def _node(self, before: int, number: int) -> int:
        pair = before, number
        if pair not in self._node_ids:
            self._node_ids[pair] = len(self._nodes)
            self._nodes.append(pair)
        return self._node_ids[pair]


def _last_steps(environment: str, present: Sequence[HistoryStep], steps: int) -> list[HistoryStep]:
    """Return the last steps, and those that republished tables of them in the meantime."""
    if not 0 < steps <= len(present):
        n = len(present)
        raise NotFoundError(
            f"{environment} has {n} step{'s' * (n != 1)} to roll back, not {steps}",
            hint="persist history lists the changes",
        )
    chosen = [*present[-steps:]]
    while overriding := _overriding_step(chosen, present):
        chosen.append(overriding)
    return chosen


def _overriding_step(
    chosen: Sequence[HistoryStep], present: Sequence[HistoryStep]
) -> HistoryStep | None:
    """Return a step that republished, later, what the chosen steps published, or None."""
    first: dict[str, int] = {}
    for change in (c for step in chosen for c in step):
        for entry in change.moved:
            first[entry] = min(change.change_id, first.get(entry, change.change_id))
    for step in present:
        later = (c.change_id > first.get(b, c.change_id) for c in step for b in c.moved)
        if step not in chosen and any(later):
            return step
    return None


def _steps_of_run(
    environment: str, history: Sequence[ManifestChange], present: Sequence[HistoryStep], run: str
) -> list[HistoryStep]:
    """Return the steps of a run, or of one change, that are not undone."""
    numbered = next((c for c in history if str(c.change_id) == run), None)

    def fits(change: ManifestChange) -> bool:
        if numbered is not None:  # the ID of another run may begin with these digits
            return change.change_id == numbered.change_id
        return run != "" and (change.run_id or "").startswith(run)  # empty: an unset variable

    if numbered is not None and numbered.kind == "rollback":
        raise NotFoundError(
            f"change {run} of {environment} is a rollback",
            hint="--to CHANGE_ID undoes a rollback: name the change before it",
        )
    runs = {c.run_id or str(c.change_id) for c in history if c.kind != "rollback" and fits(c)}
    if not runs:
        raise NotFoundError(
            f"{environment} has no run {run}", hint="persist history lists runs and changes"
        )
    if len(runs) > 1:
        raise NotFoundError(f"{len(runs)} runs start with {run}", hint="use a longer prefix")
    chosen = [step for step in present if any(map(fits, step))]
    if not chosen:
        raise ConflictError(
            f"{environment} no longer has anything of run {run}",
            hint="it was rolled back, or its tables were already up to date",
        )
    overriding = _overriding_step(chosen, present)
    if overriding is not None:
        later = overriding[-1].run_id or overriding[-1].change_id
        raise ConflictError(
            f"run {later} published tables of run {run} again",
            hint=f"roll that back first: persist rollback --run {later}",
        )
    return chosen


def publishing_project(settings: Settings, builder: Builder | None) -> Project | None:
    """Return the project whose sources an environment publishes or shows; None: it does neither.

    Sources in files with errors are missing in it: a rollback must not wait for their correction.

    Raises
    ------
    PersistError
        The sources to publish are not clear.
    """
    if builder is None and settings.publish is None:
        return None
    project = builder.project if builder is not None else load_project(settings)
    if not project.errors:
        addresses(settings, project)
    return project


def _lost_partitions(
    settings: Settings, project: Project | None, rollback: Rollback
) -> list[PartitionRef]:
    """Return the partitions that tables have now and lack after a rollback."""
    pairs = [
        (move.after, move.before)
        for move in rollback.moves
        if move.after and move.before and move.before.partitions
    ]
    readable = readable_project(settings, project) if pairs else None
    return lost_partitions(readable, pairs, datetime.now(UTC)) if readable else []


def readable_project(settings: Settings, project: Project | None) -> Project | None:
    """Return the project, loaded if necessary; None: it cannot be loaded, which is logged.

    A rollback or an import must not wait for its correction.
    """
    try:
        return project or load_project(settings)
    except PersistError as error:
        log.warning("action=skip-partitions environment=%s error=%s", settings.environment, error)
        return None


def announce_moved(
    settings: Settings,
    ledger: Ledger,
    project: Project | None,
    builder: Builder | None,
    moved: Iterable[Move | Snapshot],
) -> None:
    """Update the published tables and views of sources whose entries have moved."""
    if project is None:
        return
    try:
        announce(settings, ledger, project)
    finally:
        if builder is not None:
            ids = {i for m in moved for i in (m.source_id, m.build_id)}
            sources = [s.source_id for s in project.persisted if {s.source_id, s.build_id} & ids]
            show_views(settings, ledger, project, builder.engine, sources)


def has_tables(settings: Settings, ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether all tables that a snapshot's rows are read from exist."""
    return all(
        isinstance(leaf, RawVersion)
        or (leaf is not None and has_snapshot(settings.table_root(leaf.table), leaf))
        for leaf in beneath(ledger.builds.find_written, snapshot)
    )
