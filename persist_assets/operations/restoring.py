"""Restoring a ledger from a backup, without entries that are no longer true.

The present ledger is backed up first. The backup is changed in a copy of it, and then put into the
ledger in one transaction, so that readers see the one or the other.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.core.errors import (
    ConflictError,
    GoneError,
    LedgerError,
    NotFoundError,
    StorageError,
)
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.user import make_private
from persist_assets.external.coverage import copy_root
from persist_assets.ledger.backups import back_up, check_backup, find_loss, prepare, put_back
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.manifest_file import export_manifest
from persist_assets.operations.environments import has_tables
from persist_assets.planning.world import is_history
from persist_assets.storage.delta_tables import find_table, find_writer, read_version

if TYPE_CHECKING:
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.backups import Loss


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restoration.

    Attributes
    ----------
    loss
        What the ledger before had and the restored one does not.
    removed
        How many manifest entries were removed because their tables are gone.
    histories
        The histories whose tables are gone. Their entries stay, so that no build starts them over.
    before
        The backup of the ledger before; None: nothing had happened in it.
    """

    loss: Loss
    removed: int
    histories: tuple[SourceID, ...]
    before: Path | None


def restore(settings: Settings, file: Path, *, force: bool = False) -> Restored:
    """Replace the ledger by a backup.

    Parameters
    ----------
    force
        Also if the ledger is newer than the backup, is another one, or processes use it.

    Raises
    ------
    NotFoundError
        There is no such file.
    ConflictError
        Something would be lost, or is being built. Nothing was changed.
    LedgerError
        The file is not a backup, or is corrupt, or one of the databases fails. Nothing was changed.
    """
    if not file.is_file():
        raise NotFoundError(f"there is no file {file}", hint="name a backup")
    make_private(settings.state_dir)
    with ExitStack() as stack:
        directory = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="restore-", dir=settings.state_dir)
        )
        copy = Path(shutil.copyfile(file, Path(directory) / "ledger.db"))
        check_backup(copy, file)
        url = f"sqlite:///{copy}"
        backup, present = Ledger(url), Ledger(settings.ledger)
        stack.callback(present.close)
        stack.callback(backup.close)
        if not backup.events.opened_version:
            raise LedgerError(f"{file} is not a ledger backup")
        loss = find_loss(present, backup)
        if str(loss) and not force:
            raise ConflictError(
                f"restoring the backup would lose data: {loss}",
                hint="stop all builds; --force restores it anyway, and keeps a backup of "
                "the current ledger",
            )
        before = _keep(settings, loss)
        known = present if loss.position and not loss.is_other else None
        if known is None:
            backup.copies.forget(_lost_copies(settings, backup))
        missing, histories = _missing(settings, backup)
        removed = prepare(backup, known, missing - histories.keys(), histories)
        backup.close()
        put_back(url, settings.ledger, loss, force=force)
        for name in {settings.environment, *settings.declared}:
            export_manifest(load_settings(settings.root, environment=name), present)
    gone = sorted({s.source_id for uid, s in histories.items() if uid in missing})
    return Restored(loss, removed, tuple(gone), before)


def _keep(settings: Settings, loss: Loss) -> Path | None:
    """Back up the ledger that is replaced; return the file."""
    if not loss.position:
        return None
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    file = settings.state_dir / f"ledger-before-restore-{at}.db"
    back_up(settings.ledger, file)
    return file


def _missing(settings: Settings, backup: Ledger) -> tuple[set[str], dict[str, Snapshot]]:
    """Return the snapshots that manifests of a backup name and of which a file is gone.

    Each is checked with all its files: those of a table that was continued are in the directories
    of several builds, and a stored query reads the tables of other builds.

    Returns
    -------
    missing
        Their UIDs.
    histories
        All histories that manifests name, except those whose tables were built anew.
    """
    environments = backup.manifests.fetch_environments()
    snapshots = {
        snapshot.build_uid: snapshot
        for environment in environments
        for snapshot in backup.manifests.fetch(environment).values()
    }
    missing = {uid for uid, s in snapshots.items() if not has_tables(settings, backup, s)}
    histories = {
        uid: snapshot
        for uid, snapshot in snapshots.items()
        if is_history(snapshot) and not _is_replaced(settings.table_root(snapshot.table), snapshot)
    }
    return missing, histories


def _is_replaced(root: str, snapshot: Snapshot) -> bool:
    """Whether another build committed the version of a snapshot."""
    try:
        writer = find_writer(root, snapshot.version)
    except StorageError:
        return False
    return writer is None or writer[0] != snapshot.build_uid


def _lost_copies(settings: Settings, backup: Ledger) -> list[str]:
    """Return the copies of external tables in a backup whose rows are gone.

    If a copy was made anew since, its table has other rows in the versions of the same numbers.
    """
    lost: list[str] = []
    for copy in backup.copies.fetch():
        root = copy_root(settings, copy.copy_id)
        table = find_table(root, copy.committed)
        try:
            read_version(root, copy.committed)
        except GoneError:
            table = None
        if table is None or table.metadata().id != copy.table_id:
            lost.append(copy.copy_id)
    return lost
