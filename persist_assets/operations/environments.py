"""What changes a whole environment at once: promotion, rollback, import. No data is copied."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.building.catalog_views import show
from persist_assets.building.observe import beneath
from persist_assets.compiler.load import load_project, require
from persist_assets.core.errors import ConflictError, NotFoundError, SettingsError, StorageError
from persist_assets.core.model.snapshots import Build, RawVersion, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.manifest_file import Refused, export_manifest, parse_manifest
from persist_assets.planning.promotion import Promotion, decide
from persist_assets.storage.delta_tables import (
    find_parts,
    find_writer,
    has_snapshot,
    read_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import ManifestChange, Move
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.ledger.manifest_file import Entry, ManifestFile


def promote(
    builder: Builder,
    target: str,
    selected: Iterable[SourceID],
    *,
    allow_stale: bool = False,
    dry_run: bool = False,
    why: str | None = None,
) -> tuple[Promotion, int | None]:
    """Let readers of `target` see what those of the builder's environment see of some sources.

    Returns
    -------
    Promotion, int | None
        What was decided, and the number of the change; None if nothing was changed: something
        is refused, there is nothing to do, or it was a dry run.

    Raises
    ------
    SettingsError
        The two are one environment, or there is no such.
    ConflictError
        The environment moved on meanwhile.
    """
    settings, ledger = builder.settings, builder.ledger
    if target == settings.environment:
        raise SettingsError(
            f"`{target}` cannot be promoted into itself", hint="name two environments"
        )
    selected = [*selected]
    target_settings = load_settings(settings.root, environment=target).with_sources(
        settings.root / settings.sources
    )
    target_project = require(load_project(target_settings))
    decided = decide(
        builder.project,
        target_project,
        builder.plan(selected),
        ledger.manifests.fetch(*settings.environments),
        ledger.manifests.fetch(target),
        ledger.manifests.fetch(*target_settings.environments),
        ledger.builds.fetch_passed(*settings.environments),
        allow_stale=allow_stale,
    )
    if dry_run or decided.refused:
        return decided, None
    change = None
    if decided.snapshots:
        change = ledger.manifests.promote(
            settings.environments, target, decided.snapshots, malloy=target_project.malloy, why=why
        )
    # Even if nothing moved: whoever promoted before may have died before this.
    export_manifest(target_settings, ledger)
    show(target_settings, ledger, builder.engine, [builder.project.by_id[s] for s in selected])
    return decided, change


def roll_back(
    settings: Settings,
    ledger: Ledger,
    *,
    to: int | None = None,
    steps: int = 1,
    run: str | None = None,
    why: str | None = None,
    builder: Builder | None = None,
) -> ManifestChange:
    """Put an environment's manifest back to what it was, and return the change.

    Parameters
    ----------
    builder
        What sets views right by which others read sources, where the environment has such.
    to
        The change right after which it was so; None: before the last `steps` steps that are not
        taken back yet (`steps_of`).
    run
        Only what one run, or the change of this number, has published is taken back.

    Raises
    ------
    NotFoundError
        There is no such change, or no such run.
    ConflictError
        A table of that time is gone, the environment moved on meanwhile, or a later run published
        the same tables as `run`. Nothing was changed.
    """
    environment = settings.environment
    history = ledger.manifests.fetch_history(environment)
    if to is not None:
        if all(c.change_id != to for c in history):
            raise NotFoundError(
                f"{environment} has no change {to}", hint="persist history lists the changes"
            )
        # Collection forgets what nobody means any more: nothing that there would be to undo.
        undone = [c for c in history if c.change_id > to and c.kind != "collect"]
        if not undone:
            raise ConflictError(f"{environment} is already at change {to}")
    else:
        present = steps_of(history)
        chosen = (
            _of_run(environment, history, present, run)
            if run
            else _last(environment, present, steps)
        )
        undone = [c for step in chosen for c in step]
        to = _Standing(history).change_without({c.change_id for c in undone})
    undone = sorted(undone, key=lambda c: c.change_id, reverse=True)
    earlier = {move.build_id: move.before for change in undone for move in change.moves}
    gone = sorted(
        f"{snapshot.table} version {snapshot.version}"
        for snapshot in earlier.values()
        if snapshot and not _is_there(settings, ledger, snapshot)
    )
    if gone:
        raise ConflictError(f"cannot roll back: {', '.join(gone)} is gone")
    expected = history[0].change_id
    if to is not None:
        ledger.manifests.roll_back(environment, to, expected=expected, why=why)
    else:
        moved = {c.change_id: c.moved for c in undone}
        reason = why or f"without {', '.join(map(str, sorted(moved)))}"
        ledger.manifests.undo(environment, moved, expected=expected, why=reason)
    export_manifest(settings, ledger)
    change = ledger.manifests.fetch_history(environment, limit=1)[0]
    _show_moved(builder, change.moves)
    return change


Taken = tuple["ManifestChange", ...]
"""The changes that one run made, or the one of a promotion or an import; the earliest first."""


def steps_of(history: Sequence[ManifestChange]) -> list[Taken]:
    """Return what a manifest's rows come from, step by step, the latest last.

    A step is all that one run published, until it published an entry again; or a promotion, or an
    import. What was taken back is none, nor is what was found to be up to date.

    Parameters
    ----------
    history
        The latest change first.
    """
    by_id = {c.change_id: c for c in history}
    found: list[list[ManifestChange]] = []
    last: dict[str | None, tuple[list[ManifestChange], set[str]]] = {}
    for number in _Standing(history).numbers():
        change = by_id[number]
        step, entries = last.get(change.run_id, ([], set[str]()))
        if change.run_id is None or not step or not entries.isdisjoint(change.moved):
            step, entries = [], set[str]()
            found.append(step)
        step.append(change)
        entries |= change.moved
        last[change.run_id] = step, entries
    return sorted((tuple(step) for step in found), key=lambda step: step[-1].change_id)


class _Standing:
    """On which changes a manifest rested after each change: none that was taken back.

    Parameters
    ----------
    history
        The latest change first.
    """

    def __init__(self, history: Sequence[ManifestChange]) -> None:
        # Each node is a change after another node, so that equal sequences are one node.
        self._nodes: list[tuple[int, int]] = [(0, 0)]
        self._known: dict[tuple[int, int], int] = {}
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
        """Return the changes that the manifest rests on now, the earliest first."""
        found: list[int] = []
        node = self._present
        while node:
            node, number = self._nodes[node]
            found.append(number)
        return found[::-1]

    def change_without(self, numbers: Collection[int]) -> int | None:
        """Return the last change after which it rested on all but some changes; None: none."""
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
        if pair not in self._known:
            self._known[pair] = len(self._nodes)
            self._nodes.append(pair)
        return self._known[pair]


def _last(environment: str, present: Sequence[Taken], steps: int) -> list[Taken]:
    """Return the last steps, and those that published tables of them again meanwhile."""
    if not 0 < steps <= len(present):
        n = len(present)
        raise NotFoundError(
            f"{environment} has {n} step{'s' * (n != 1)} to roll back, not {steps}",
            hint="persist history lists the changes",
        )
    chosen = [*present[-steps:]]
    while over := _over(chosen, present):
        chosen.append(over)
    return chosen


def _over(chosen: Sequence[Taken], present: Sequence[Taken]) -> Taken | None:
    """Return a step that published what others did, after them; None: there is none."""
    first: dict[str, int] = {}
    for change in (c for step in chosen for c in step):
        for entry in change.moved:
            first[entry] = min(change.change_id, first.get(entry, change.change_id))
    for step in present:
        later = (c.change_id > first.get(b, c.change_id) for c in step for b in c.moved)
        if step not in chosen and any(later):
            return step
    return None


def _of_run(
    environment: str, history: Sequence[ManifestChange], present: Sequence[Taken], run: str
) -> list[Taken]:
    """Return the steps of a run, or the one of a change, that are not taken back."""

    def fits(change: ManifestChange) -> bool:
        return str(change.change_id) == run or (change.run_id or "").startswith(run)

    runs = {c.run_id or str(c.change_id) for c in history if c.kind != "rollback" and fits(c)}
    if not runs:
        raise NotFoundError(
            f"{environment} has no run {run}", hint="persist history lists runs and changes"
        )
    if len(runs) > 1:
        raise NotFoundError(f"{len(runs)} runs start with {run}", hint="give more of it")
    chosen = [step for step in present if any(map(fits, step))]
    if not chosen:
        raise ConflictError(
            f"{environment} no longer has anything of run {run}",
            hint="it was rolled back, or its tables were already up to date",
        )
    over = _over(chosen, present)
    if over is not None:
        later = over[-1].run_id or over[-1].change_id
        raise ConflictError(
            f"run {later} published tables of run {run} again",
            hint=f"roll that back first: persist rollback --run {later}",
        )
    return chosen


def _show_moved(builder: Builder | None, moved: Iterable[Move | Snapshot]) -> None:
    """Set the views right by which others read sources whose entries have moved."""
    if builder is not None:
        ids = {i for m in moved for i in (m.source_id, m.build_id)}
        sources = [s for s in builder.project.persisted if {s.source_id, s.build_id} & ids]
        show(builder.settings, builder.ledger, builder.engine, sources)


def _is_there(settings: Settings, ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether all tables are there that the rows of a snapshot are read from."""
    return all(
        isinstance(leaf, RawVersion)
        or (leaf is not None and has_snapshot(settings.table_root(leaf.table), leaf))
        for leaf in beneath(ledger.builds.find_written, snapshot)
    )


# ------------------------------------------------------------------------------------------ import


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import of a manifest file did, or would do.

    Attributes
    ----------
    moved
        What readers see that they did not see before.
    adopted
        The BuildIDs among them whose builds this ledger did not know.
    n_same
        How many entries they saw already.
    refused
        If anything is, nothing is imported.
    strict
        What the file says of strict mode; settings decide that, and are not changed.
    change_id
        The number of the change; None if nothing was changed.
    """

    moved: tuple[Snapshot, ...]
    adopted: frozenset[str]
    n_same: int
    refused: tuple[Refused, ...]
    strict: bool | None
    change_id: int | None = None


def import_manifest(
    settings: Settings,
    ledger: Ledger,
    file: Path,
    *,
    dry_run: bool = False,
    why: str | None = None,
    builder: Builder | None = None,
) -> Imported:
    """Let readers of an environment see what a manifest file says; all of it or nothing.

    An entry becomes the snapshot that the ledger knows at its table and version. Of builds of
    another ledger the file has to say everything, as our own exports do, and they have to be in
    this project's warehouse. Every table is looked at: it holds that version, with all its files,
    written by that build. Entries that the file does not name stay as they are, and so does what
    the environment says itself of BuildIDs of Malloy's.

    Parameters
    ----------
    builder
        What sets views right by which others read sources, where the environment has such.

    Raises
    ------
    NotFoundError
        There is no such file.
    """
    try:
        read = parse_manifest(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        read = parse_manifest("")
    reason = f"import of {file.name}"
    reason = f"{reason}: {why}" if why else reason
    return import_entries(settings, ledger, read, why=reason, dry_run=dry_run, builder=builder)


def import_entries(
    settings: Settings,
    ledger: Ledger,
    read: ManifestFile,
    *,
    why: str,
    dry_run: bool = False,
    partial: bool = False,
    builder: Builder | None = None,
) -> Imported:
    """Let readers of an environment see what a manifest file says: see `import_manifest`.

    Parameters
    ----------
    partial
        Import what is right although something is refused.
    """
    present = ledger.manifests.fetch(*settings.environments)
    now = datetime.now(UTC)
    refused = [*read.refused]
    chosen: list[Build] = []
    adopted: set[str] = set()
    n_same = 0
    for entry in read.entries:
        recorded = _find_known(settings, ledger, entry)
        build = recorded
        try:
            if build is None:
                build = _claimed(settings, entry, now)
                adopted.add(entry.build_id)
            assert build.snapshot is not None
            _verify(settings, build.snapshot)
        except (ConflictError, StorageError) as error:
            refused.append(Refused(entry.build_id, entry.source_id, error.message))
            continue
        if build.snapshot == present.get(entry.build_id):
            n_same += 1
        else:
            chosen.append(build)
    moved = tuple(b.snapshot for b in chosen if b.snapshot is not None)
    change = None
    if (partial or not refused) and not dry_run:
        if chosen:
            change = ledger.manifests.adopt(
                settings.environment, chosen, malloy=dict(read.malloy), why=why
            )
        export_manifest(settings, ledger)
        _show_moved(builder, moved)
    new = frozenset(adopted & {s.build_id for s in moved})
    return Imported(moved, new, n_same, tuple(refused), read.strict, change)


def _find_known(settings: Settings, ledger: Ledger, entry: Entry) -> Build | None:
    """Return the build of this ledger that an entry of a file means, if it has one.

    Of several with the same rows it is the one that rests on the data that the file says.
    """
    builds = [
        b
        for b in ledger.builds.fetch_succeeded(entry.build_id)
        if b.snapshot is not None
        and (settings.table_root(b.snapshot.table), b.snapshot.version)
        == (entry.path, entry.version)
    ]
    claim = entry.claim
    if claim is None:
        return next(iter(builds), None)
    same = (b for b in builds if b.snapshot is not None and b.snapshot.as_of == claim.as_of)
    return next(same, None)


def _claimed(settings: Settings, entry: Entry, now: datetime) -> Build:
    """Return the build that an entry claims there is, to be recorded in this ledger.

    Raises
    ------
    ConflictError
        It cannot be.
    """
    claim, source_id = entry.claim, entry.source_id
    if claim is None or source_id is None:
        raise ConflictError(
            "that version is not in this ledger, and the file does not describe its inputs"
        )
    warehouse = settings.project_warehouse.rstrip("/") + "/"
    if entry.path.startswith(warehouse):
        table = entry.path.removeprefix(warehouse) if settings.owns_ledger else entry.path
    elif entry.path.startswith(settings.warehouse.rstrip("/") + "/"):
        table = entry.path
    else:
        raise ConflictError(
            f"that version is not in this ledger, and {entry.path} is outside its warehouse"
        )
    snapshot = Snapshot(
        build_uid=claim.build_uid,
        source_id=source_id,
        build_id=entry.build_id,
        table=table,
        version=entry.version,
        as_of=claim.as_of,
        content=claim.content,
        rows=claim.rows,
        bytes=claim.bytes,
        built_at=claim.built_at,
        columns=claim.columns,
        watermark=claim.watermark,
        inputs=claim.inputs,
    )
    parts = find_parts(settings.table_root(table), entry.version)
    snapshot = replace(snapshot, parts=tuple(sorted(parts - {claim.build_uid})))
    return Build(
        build_uid=uuid.uuid4().hex,
        source_id=source_id,
        build_id=entry.build_id,
        definition=claim.definition,
        environment=settings.environment,
        run_id=None,
        state="succeeded",
        action="reused",
        started_at=now,
        finished_at=now,
        snapshot=snapshot,
    )


def _verify(settings: Settings, snapshot: Snapshot) -> None:
    """Raise unless a table holds a snapshot's version, whole, and its build wrote that.

    Raises
    ------
    StorageError
        The version, or a file of it, is gone.
    ConflictError
        Another build wrote it.
    """
    root = settings.table_root(snapshot.table)
    found = read_snapshot(root, snapshot)
    if find_writer(root, snapshot.version) != (snapshot.build_uid, snapshot.build_id):
        raise ConflictError(
            f"version {snapshot.version} of the table {root} was written by another build"
        )
    if [(c.name, c.type) for c in found.columns] != [(c.name, c.type) for c in snapshot.columns]:
        raise ConflictError(f"version {snapshot.version} of the table {root} has different columns")
