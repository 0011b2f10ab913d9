"""Delta tables under fixed names: each follows the versions of other tables of ours.

A published table is complete in itself. Its files are links to files of the warehouse or, across
file systems and in object stores, copies: delta-rs, polars and DuckDB do not find files outside of
a table's directory. So a move to another version is one commit, it links only files that the table
does not have yet, and readers that began with the earlier version keep its files.

A commit succeeds the version that was opened (`open_published`) or fails. Whoever decides what to
publish therefore opens the table first and looks at the ledger after that: a process that was
suspended in between cannot put earlier rows back.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from persist_assets.core.errors import ConflictError, GoneError, PersistError, StorageError
from persist_assets.core.object_stores import is_local
from persist_assets.storage.delta_commit import File, Staged, find_file, is_taken, write_files
from persist_assets.storage.delta_tables import copy_path, file_sizes, find_table, read_commit
from persist_assets.storage.files import (
    copy_file,
    delete_directory,
    delete_empty,
    delete_file,
    list_files,
    list_own,
    permit_store,
    unreachable,
)
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from persist_assets.storage.files import Found

log = logging.getLogger(__name__)

PUBLISHER = "persist.publisher"
"""The property of a published table, and the entry of its commits, that names its publisher."""
OWNERS = "persist.owners"
"""The property of a published table that lists the owners of its source."""
_AT_ONCE = 8
_OWN = re.compile(r"[0-9a-f]{32}/[^/]+$")
"""The path of a linked file below the table's directory."""
_UNFINISHED_LOG = re.compile(r"_delta_log/(?!\d{20}\.)")
"""The path of a file that delta-rs left when it died before the table's first commit."""
_DIRECTORY = re.compile(r"/[0-9a-f]{32}$")
_AT_ROOT = re.compile(r"[^/]+\.parquet$")
"""The path of a file that another writer put into the table."""
_LONGEST_TEXT = 4000
"""The length of a table's description at which delta-rs refuses to change it, in characters."""
_UNFINISHED = timedelta(days=1)
"""The maximum time of a publication: younger files may belong to one that has not committed yet."""


class OvertakenError(ConflictError):
    """Another process changed a published table meanwhile: it has to be opened again."""


@dataclass(frozen=True, slots=True)
class Description:
    """The description of a table.

    Attributes
    ----------
    comments
        Descriptions of columns by name.
    """

    text: str | None
    comments: Mapping[str, str]
    owners: tuple[str, ...]


def open_published(place: str, publisher: str, *, take_over: bool = False) -> Any:
    """Return the `deltalake.DeltaTable` at a fixed name; None: there is no table yet.

    Parameters
    ----------
    take_over
        Also return a table that another ledger or environment published.

    Raises
    ------
    ConflictError
        The table there has another publisher.
    StorageError
        It cannot be read.
    """
    permit_store(place)
    table = find_table(place)
    if table is None:
        return None
    owner = table.metadata().configuration.get(PUBLISHER)
    for version in () if owner else (int(table.version()), 0):
        with suppress(StorageError, OSError):  # the log may be shortened
            owner = owner or read_commit(place, version).get(PUBLISHER)
    if owner != publisher and not (owner and take_over):
        hint = "publish elsewhere, or delete that table"
        if owner:
            hint += "; if its ledger or environment is gone: persist publish --take-over"
        raise ConflictError(
            f"the table at {place} has another publisher, so it was not changed", hint=hint
        )
    return table


def publish_version(
    place: str,
    table: Any,
    source: tuple[str, int],
    metadata: Mapping[str, str],
    description: Description,
    *,
    verify: bool = False,
) -> int:
    """Give a published table the rows of a version of another table; return its own version.

    Parameters
    ----------
    table
        As `open_published` returned it.
    source
        The directory and the version of the table in the warehouse.
    metadata
        Entries of the commit: `PUBLISHER`, and what was published.
    verify
        Also replace files that the table lists but that are gone from its directory.

    Raises
    ------
    ConflictError
        Others have partitioned the table, or have files in its directory, so it was left alone.
    GoneError
        The version in the warehouse is gone.
    OvertakenError
        Another process changed the published table meanwhile.
    StorageError
        A file cannot be linked, or the table cannot be committed.
    """
    from deltalake.exceptions import DeltaError

    try:
        return _publish(place, table, source, metadata, description, verify=verify)
    except (DeltaError, OSError) as error:
        if is_taken(error) and _is_overtaken(place, table):
            message = f"another process changed the table at {place} at the same time"
            raise OvertakenError(message, hint="try again") from error
        raise unreachable(place, error, f"cannot publish the table at {place}") from error


def _publish(
    place: str,
    table: Any,
    source: tuple[str, int],
    metadata: Mapping[str, str],
    description: Description,
    *,
    verify: bool,
) -> int:
    """Return the version of a published table that has the rows; see `publish_version`."""
    from deltalake.exceptions import DeltaError

    root, version = source
    origin = find_table(root, version)
    if origin is None:
        raise GoneError(f"version {version} of the table {root} is gone", hint="build it again")
    sizes = file_sizes(origin)
    names = {copy_path("", path): path for path in sizes}
    live = _live(place, table)
    present = {f"/{path.rpartition('/')[2]}": path for path in live}
    stay: set[str] = set()
    if table is not None and _columns(table) == _columns(origin):  # else all files are replaced
        present_sizes = {f.location: f.bytes for f in list_files(place)} if verify else None
        stay = {
            name
            for name, path in names.items()
            if name in present and live[present[name]] == sizes[path]
            if present_sizes is None or present_sizes.get(f"{place}/{present[name]}") == sizes[path]
        }
        if len(stay) == len(names) == len(live):
            return int(table.version())
    directory = uuid4().hex
    linked = f"{place}/{directory}"
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            links = [
                *pool.map(
                    lambda name: _linked(root, names[name], sizes, place, f"{directory}{name}"),
                    sorted({*names} - stay),
                )
            ]
    except (PersistError, OSError):
        _discard(linked)
        raise
    staged = Staged(place, directory, _schema(origin, description), tuple(links))
    retained = {present[name] for name in stay}
    try:
        return write_files(table, staged, metadata, retained, _text(description))
    except (DeltaError, OSError):
        _discard(linked)
        raise


def _discard(directory: str) -> None:
    """Delete the files of a publication that has failed; what stays is garbage."""
    with suppress(StorageError):
        delete_directory(directory)


def _live(place: str, table: Any) -> dict[str, int]:
    """Return the files of a published table by path; check that it can be written.

    Raises
    ------
    ConflictError
        Others have partitioned the table, or there are files that are not of a table of ours.
    """
    if table is not None:
        parted = table.metadata().partition_columns
        if parted:
            raise ConflictError(
                f"another program partitioned the table at {place} by {', '.join(parted)}",
                hint="delete its directory, then run persist publish",
            )
        return file_sizes(table)
    check_own(place)
    return {}


def check_own(place: str) -> None:
    """Raise if a directory without a table has files that no publication wrote.

    Raises
    ------
    ConflictError
        There are files of others.
    """
    for file in list_files(place):
        path = file.location.removeprefix(f"{place.rstrip('/')}/")
        if not _OWN.match(path) and not _UNFINISHED_LOG.match(path):
            raise ConflictError(
                f"{file.location} is not a file of a published table, so {place} was not changed",
                hint="move it, or publish elsewhere",
            )


def _is_overtaken(place: str, table: Any) -> bool:
    """Whether a published table has a version that was not there when it was opened."""
    newest = find_table(place)
    return newest is not None and (table is None or newest.version() > table.version())


def _linked(root: str, path: str, sizes: Mapping[str, int], place: str, name: str) -> File:
    """Make a file of a table a file of another one, and return it with its statistics."""
    link_file(f"{root}/{path}", f"{place}/{name}")
    file = find_file(place, name)
    if file.bytes != sizes[path]:
        raise StorageError(f"{root}/{path} has {file.bytes} bytes, not {sizes[path]}")
    return file


def link_file(source: str, target: str) -> None:
    """Make a file available at another place: by a hard link, else as a copy."""
    if is_local(source) and is_local(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in (
                errno.EXDEV,
                errno.EPERM,
                errno.EMLINK,
                errno.ENOTSUP,
                errno.ENOSYS,
            ):
                raise unreachable(target, error, f"cannot link {source}") from error
    copy_file(source, target)


def describe(place: str, table: Any, publisher: str, description: Description) -> bool:
    """Bring the description of a published table up to date; return whether it changed.

    Raises
    ------
    StorageError
        It cannot be committed.
    """
    from deltalake.exceptions import DeltaError

    metadata = table.metadata()
    properties = {PUBLISHER: publisher, OWNERS: ", ".join(description.owners)}
    properties = {k: v for k, v in properties.items() if v or k in metadata.configuration}
    changed = False
    try:
        text = _text(description)
        if (metadata.description or None) != text:
            ask(place, lambda: table.alter.set_table_description(text or ""))
            changed = True
        if any(metadata.configuration.get(k) != v for k, v in properties.items()):
            ask(
                place,
                lambda: table.alter.set_table_properties(properties, raise_if_not_exists=False),
            )
            changed = True
        for field in json.loads(table.schema().to_json())["fields"]:
            comment = description.comments.get(field["name"], "")
            if field["metadata"].get("comment", "") != comment:
                more = {**field["metadata"], "comment": comment}
                name = field["name"]
                ask(place, lambda n=name, m=more: table.alter.set_column_metadata(n, m))
                changed = True
    except (DeltaError, OSError) as error:
        raise unreachable(place, error, f"cannot describe the table at {place}") from error
    return changed


def _text(description: Description) -> str | None:
    """Return the description of a table, as much of it as delta-rs takes."""
    text = description.text or ""
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 1]}…"
    return text or None


def _columns(table: Any) -> Any:
    """Return the columns of a table without their comments."""
    fields = json.loads(table.schema().to_json())["fields"]
    return [{k: v for k, v in field.items() if k != "metadata"} for field in fields]


def _schema(table: Any, description: Description) -> str:
    """Return the schema of a table, in Delta's JSON, with comments."""
    schema = json.loads(table.schema().to_json())
    for field in schema["fields"]:
        comment = description.comments.get(field["name"])
        if comment:
            field["metadata"] = {**field["metadata"], "comment": comment}
    return json.dumps(schema)


def tidy_published(
    place: str, table: Any, keep_s: int, now: datetime, *, dry_run: bool = False
) -> int:
    """Delete the files that a published table no longer has; return their size in bytes.

    Files of publications that died before their commit are deleted as well.

    Parameters
    ----------
    keep_s
        How many seconds files stay that were replaced, because queries may read them.
    now
        Aware.

    Raises
    ------
    StorageError
        A file cannot be deleted.
    """
    from deltalake.exceptions import DeltaError

    hours = -(-keep_s // 3600)

    def list_unused(*, full: bool) -> set[str]:
        paths = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=full)
        return {unquote(path) for path in paths}

    try:
        replaced = ask(place, lambda: list_unused(full=False))
        unused = ask(place, lambda: list_unused(full=True))
    except (DeltaError, OSError) as error:
        raise unreachable(place, error, f"cannot tidy the table at {place}") from error
    # The ages of directories are read before they change by deletions.
    doomed = [
        file
        for file in list_own(place)
        if _is_unused(file.location.removeprefix(f"{place}/"), replaced, unused)
        and now.timestamp() - _changed_s(file) >= _UNFINISHED.total_seconds()
    ]
    if not dry_run:
        for file in doomed:
            delete_file(file.location)
        delete_empty(place)
    return sum(file.bytes for file in doomed)


def _is_unused(path: str, replaced: Collection[str], unused: Collection[str]) -> bool:
    """Whether a file was in a table before, or was written for it and never committed.

    Other files below the table's directory are not ours.
    """
    is_table_file = _OWN.match(path) or _AT_ROOT.match(path)
    return path in replaced or (path in unused and bool(is_table_file))


def _changed_s(file: Found) -> float:
    """Return when a file came to a published table, in seconds since 1970."""
    directory = file.location.rpartition("/")[0]
    if is_local(directory) and _DIRECTORY.search(directory):
        # A link is as old as its file; its directory is as old as the publication.
        return os.stat(directory).st_mtime
    return file.changed_ns / 1e9
