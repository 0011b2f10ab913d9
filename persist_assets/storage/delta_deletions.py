"""What is deleted of our Delta tables: builds, tables, replaced files."""

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
"""The names of the directories that builds write to: their uids."""

_LOG_FILE = re.compile(
    r"_last_checkpoint|_commit_[^/]*|(_sidecars/|_staged_commits/)?\d{20}\.[^/]*|_sidecars/[^/]*"
)
"""The names of the files that Delta's writers put into a log."""


def find_written(root: str) -> dict[str, int]:
    """Return what there is at a table's root: builds with files, and its log; and their bytes.

    What lies behind symbolic links is none of it.
    """
    versions: dict[str, int] = {}
    for file in list_own(root):
        name = file.location.removeprefix(f"{root}/").partition("/")[0]
        versions[name] = versions.get(name, 0) + file.bytes
    return versions


def delete_builds(root: str, build_uids: Iterable[str], *, head: int | None) -> None:
    """Delete the files of builds, and the table's log if it is among them.

    Symbolic links, what lies behind them, and files that are of no build and no log stay.

    Parameters
    ----------
    head
        The newest version that is kept, None if there is none: so that who reads the table's
        newest version, and asks nobody, gets one that is whole.

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
    # If we stood still for longer than a lease lives, somebody may have built into the table.
    if LOG in doomed and find_written(root).keys() <= {LOG}:
        _delete_log(root)


def delete_table(root: str) -> None:
    """Delete the files of all builds into a table, and its log; what else is there stays.

    Raises
    ------
    StorageError
        They cannot be deleted.
    """
    for build_uid in filter(_OWN.fullmatch, sorted(find_written(root))):
        delete_directory(f"{root}/{build_uid}")
    _delete_log(root)


def _delete_log(root: str) -> None:
    """Delete the log of a table, and its directories that are empty then."""
    # What is left of a log, whoever interrupts us, is that of a younger table.
    for file in sorted(list_own(f"{root}/{LOG}"), reverse=True):
        if _LOG_FILE.fullmatch(file.location.removeprefix(f"{root}/{LOG}/")):
            delete_file(file.location)
    delete_empty(root)


def delete_replaced(root: str, committed: int, after: timedelta, *, dry_run: bool = False) -> int:
    """Delete files that a table has had no use for some time; return how many bytes they have.

    Nothing, where the table's head is another version than what is known to be committed: what
    that made of files is to be undone first.

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
    # A vacuum would delete all that is in the directory, whoever put it there.
    own_paths = [
        path for path in unused if path in sizes and _OWN.fullmatch(path.partition("/")[0])
    ]
    for path in () if dry_run else own_paths:
        delete_file(f"{root}/{path}")
    return sum(sizes[path] for path in own_paths)
