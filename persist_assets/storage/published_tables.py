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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from persist_assets.core.errors import ConflictError, GoneError, StorageError
from persist_assets.core.object_stores import is_local
from persist_assets.storage.delta_commit import File, Staged, find_file, is_taken, write_files
from persist_assets.storage.delta_tables import copy_path, file_sizes, find_table, read_commit
from persist_assets.storage.files import (
    copy_file,
    delete_directory,
    delete_empty,
    delete_file,
    list_own,
    permit_store,
    unreachable,
)
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

log = logging.getLogger(__name__)

PUBLISHER = "persist.publisher"
"""The property of a published table, and the entry of its commits, that names its publisher."""
OWNERS = "persist.owners"
"""The property of a published table that lists the owners of its source."""
_AT_ONCE = 8
_UNFINISHED = timedelta(days=1)
"""How long a publication may take: younger files may be those of one that has not committed yet."""


class OvertakenError(ConflictError):
    """Another process changed a published table meanwhile: it has to be opened again."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a table says about itself.

    Attributes
    ----------
    comments
        Descriptions of columns by name.
    """

    text: str | None
    comments: Mapping[str, str]
    owners: tuple[str, ...]


def open_published(place: str, publisher: str) -> Any:
    """Return the `deltalake.DeltaTable` at a fixed name; None: there is no table yet.

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
    if owner != publisher:
        raise ConflictError(
            f"the table at {place} has another publisher, so it was left as it is",
            hint="publish elsewhere, or delete that table",
        )
    return table


def publish_version(
    place: str,
    table: Any,
    source: tuple[str, int],
    metadata: Mapping[str, str],
    description: Description,
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

    Raises
    ------
    GoneError
        The version in the warehouse is gone.
    OvertakenError
        Another process changed the published table meanwhile.
    StorageError
        A file cannot be linked, or the table cannot be committed.
    """
    from deltalake.exceptions import DeltaError

    root, version = source
    origin = find_table(root, version)
    if origin is None:
        raise GoneError(f"version {version} of the table {root} is gone", hint="build it again")
    files = {copy_path("", path): path for path in file_sizes(origin)}
    sizes = file_sizes(origin)
    live = file_sizes(table) if table is not None else {}
    if table is not None and _columns(table) != _columns(origin):
        live = {}  # columns change only if all files are replaced
    present = {f"/{path.rpartition('/')[2]}": path for path in live}
    stay = {n for n, path in files.items() if n in present and live[present[n]] == sizes[path]}
    if table is not None and len(stay) == len(files) == len(file_sizes(table)):
        return int(table.version())
    directory = uuid4().hex
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            links = [
                *pool.map(
                    lambda name: _linked(root, files[name], sizes, place, f"{directory}{name}"),
                    sorted({*files} - stay),
                )
            ]
        staged = Staged(place, directory, _schema(origin, description), tuple(links))
        kept = {present[name] for name in stay}
        return write_files(table, staged, metadata, kept, description.text)
    except (DeltaError, OSError) as error:
        with suppress(StorageError):
            delete_directory(f"{place}/{directory}")
        if is_taken(error):
            message = f"another process changed the table at {place} at the same time"
            raise OvertakenError(message, hint="try again") from error
        raise unreachable(place, error, f"cannot publish the table at {place}") from error


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
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
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
        if (metadata.description or None) != description.text:
            ask(place, lambda: table.alter.set_table_description(description.text or ""))
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

    def list_unused() -> list[str]:
        return table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)

    try:
        unused = {f"{place}/{unquote(path)}" for path in ask(place, list_unused)}
    except (DeltaError, OSError) as error:
        raise unreachable(place, error, f"cannot tidy the table at {place}") from error
    size = 0
    for file in list_own(place):
        directory = file.location.rpartition("/")[0]
        # A link is as old as its file; its directory is as old as the publication.
        age = os.stat(directory).st_mtime if is_local(place) else file.changed_ns / 1e9
        if file.location not in unused or now.timestamp() - age < _UNFINISHED.total_seconds():
            continue
        size += file.bytes
        if not dry_run:
            delete_file(file.location)
    if not dry_run:
        delete_empty(place)
    return size
