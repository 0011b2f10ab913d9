"""Deleting builds, tables and replaced files of our Delta tables."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from persist_assets.storage.delta_commit import paths_of, restore
from persist_assets.storage.delta_tables import LOG, find_table
from persist_assets.storage.files import (
    delete_directory,
    delete_empty,
    delete_file,
    list_own,
    unreachable,
)
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta


log = logging.getLogger(__name__)
_OWN = re.compile(r"[0-9a-f]{32}")
"""The names of the directories that builds write to: the builds' UIDs."""

_LOG_FILE = re.compile(
    r"_last_checkpoint|_commit_[^/]*|(_sidecars/|_staged_commits/)?\d{20}\.[^/]*|_sidecars/[^/]*"
)
"""The names of files in a Delta log."""


def find_written(root: str) -> dict[str, int]:
    """Return the builds with files at a table's root, the log, and their sizes in bytes.

    Symbolic links are not followed.
    """
    versions: dict[str, int] = {}
    for file in list_own(root):
        name = file.location.removeprefix(f"{root}/").partition("/")[0]
        versions[name] = versions.get(name, 0) + file.bytes
    return versions


def delete_builds(root: str, build_uids: Iterable[str], *, head: int | None) -> None:
    """Delete the files of builds, and the table's log if it is among them.

    Symbolic links and their targets stay, and so do files that belong to no build and no log.

    Parameters
    ----------
    head
        The newest version that is kept, None if there is none. Programs that read the table's
        newest version without our manifest then get a complete one.

    Raises
    ------
    StorageError
        They cannot be deleted.
    """
    from deltalake.exceptions import DeltaError

    doomed = set(build_uids)
    table = find_table(root) if head is not None else None
    if table is not None and head is not None and table.version() != head:
        newest = {path.partition("/")[0] for path in paths_of(table)}
        if not newest.isdisjoint(doomed):
            try:
                restore(root, table, head)
            except (DeltaError, OSError) as error:
                raise unreachable(root, error, f"cannot restore the table {root}") from error
    for build_uid in filter(_OWN.fullmatch, sorted(doomed)):
        delete_directory(f"{root}/{build_uid}")
    # If this process paused for longer than a lease lasts, another may have built the table.
    if LOG in doomed and find_written(root).keys() <= {LOG}:
        _delete_log(root)


def delete_table(root: str) -> None:
    """Delete the files of all builds of a table, and its log; other files stay.

    Raises
    ------
    StorageError
        They cannot be deleted.
    """
    for build_uid in filter(_OWN.fullmatch, sorted(find_written(root))):
        delete_directory(f"{root}/{build_uid}")
    _delete_log(root)


def _delete_log(root: str) -> None:
    """Delete the log of a table, and the directories that are empty then."""
    # If this is interrupted, the rest is the log of a younger table.
    for file in sorted(list_own(f"{root}/{LOG}"), reverse=True):
        if _LOG_FILE.fullmatch(file.location.removeprefix(f"{root}/{LOG}/")):
            delete_file(file.location)
    delete_empty(root)


def delete_replaced(root: str, committed: int, after: timedelta, *, dry_run: bool = False) -> int:
    """Delete files that a table has not used for some time; return their size in bytes.

    Nothing is deleted if the table's head is not the version that is known to be committed: that
    commit has to be undone first.

    Raises
    ------
    StorageError
        They cannot be deleted.
    """
    from deltalake.exceptions import DeltaError

    table = find_table(root)
    if table is None or table.version() != committed:
        return 0
    try:
        hours = int(after.total_seconds() // 3600)
        unused = ask(
            root, lambda: table.vacuum(hours, dry_run=True, enforce_retention_duration=False)
        )
    except (DeltaError, OSError) as error:
        raise unreachable(root, error, f"cannot delete files of {root}") from error
    sizes = {f.location.removeprefix(f"{root}/"): f.bytes for f in list_own(root)}
    # A vacuum would delete everything in the directory, including files of others.
    own_paths = [
        path for path in unused if path in sizes and _OWN.fullmatch(path.partition("/")[0])
    ]
    for path in () if dry_run else own_paths:
        delete_file(f"{root}/{path}")
    return sum(sizes[path] for path in own_paths)
