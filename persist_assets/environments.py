"""What changes a whole environment at once: promotion and rollback. No data is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_assets.builder import beneath
from persist_assets.errors import ConflictError, NotFoundError, SettingsError
from persist_assets.manifest import export_manifest
from persist_assets.model import RawVersion
from persist_assets.outside import show
from persist_assets.project import load_project, require
from persist_assets.promotion import Promotion, decide
from persist_assets.settings import load_settings
from persist_assets.storage.tables import has_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.builder import Builder
    from persist_assets.ledger.store import Ledger
    from persist_assets.model import ManifestChange, Snapshot, SourceID
    from persist_assets.settings import Settings


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
        raise SettingsError(f"`{target}` cannot be promoted into itself", hint="name two")
    there = load_settings(settings.root, environment=target).with_sources(
        settings.root / settings.sources
    )
    decided = decide(
        builder.project,
        require(load_project(there)),
        builder.plan(selected),
        ledger.fetch_manifest(*settings.environments),
        ledger.fetch_manifest(target),
        ledger.fetch_passed(*settings.environments),
        allow_stale=allow_stale,
    )
    if dry_run or decided.refused or not decided.snapshots:
        return decided, None
    change = ledger.promote(settings.environments, target, decided.snapshots, why=why)
    export_manifest(there, ledger)
    show(there, ledger, builder.engine, decided.sources)
    return decided, change


def roll_back(
    settings: Settings,
    ledger: Ledger,
    *,
    to: int | None = None,
    steps: int = 1,
    why: str | None = None,
    builder: Builder | None = None,
) -> ManifestChange:
    """Put an environment's manifest back to what it was, and return the change.

    Parameters
    ----------
    builder
        What sets views right by which others read sources, where the environment has such.
    to
        The change right after which it was so; None: before the last `steps` changes.

    Raises
    ------
    NotFoundError
        There is no such change.
    ConflictError
        A table of that time is gone, or the environment moved on meanwhile. Nothing was changed.
    """
    environment = settings.environment
    history = ledger.fetch_history(environment)
    # Collection forgets what nobody means any more: nothing that there would be to undo.
    known = [c.change_id for c in history if c.kind != "collect"]
    if to is None:
        if not 0 < steps <= len(known):
            raise NotFoundError(
                f"{environment} has changed {len(known)} times, not {steps}",
                hint="persist history tells the changes",
            )
        to = known[steps] if steps < len(known) else 0
    elif all(c.change_id != to for c in history):
        raise NotFoundError(
            f"{environment} has no change {to}", hint="persist history tells the changes"
        )
    undone = [c for c in history if c.change_id > to and c.kind != "collect"]
    if not undone:
        raise ConflictError(f"{environment} is at change {to} already")
    before = {move.build_id: move.before for change in undone for move in change.moves}
    gone = sorted(
        f"{snapshot.table} version {snapshot.version}"
        for snapshot in before.values()
        if snapshot and not _is_there(settings, ledger, snapshot)
    )
    if gone:
        raise ConflictError(f"there is no way back: {', '.join(gone)} is gone")
    ledger.roll_back(environment, to, expected=history[0].change_id, why=why)
    export_manifest(settings, ledger)
    change = ledger.fetch_history(environment, limit=1)[0]
    if builder is not None:
        moved = {m.source_id for m in change.moves}
        sources = [s for s in builder.project.persisted if s.source_id in moved]
        show(settings, ledger, builder.engine, sources)
    return change


def _is_there(settings: Settings, ledger: Ledger, snapshot: Snapshot) -> bool:
    """Whether all tables are there that the rows of a snapshot are read from."""
    return all(
        isinstance(leaf, RawVersion)
        or (leaf is not None and has_snapshot(settings.table_root(leaf.table), leaf))
        for leaf in beneath(ledger, snapshot)
    )
