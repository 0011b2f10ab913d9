"""Committing a build to its Delta table: its files, their statistics, the commit itself."""

from __future__ import annotations

import json
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.core.errors import ConflictError, StorageError
from persist_assets.storage.delta_tables import (
    COMMIT,
    copy_path,
    file_sizes,
    find_table,
    read_commit,
)
from persist_assets.storage.files import (
    copy_file,
    delta_place,
    list_files,
    reached,
    unreachable,
)
from persist_assets.storage.touched_keys import TOUCHED
from persist_assets.storage.types import columns_of_struct
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from deltalake import CommitProperties

    from persist_assets.core.model.columns import Column
    from persist_assets.storage.delta_tables import Live
    from persist_assets.storage.touched_keys import Touched

log = logging.getLogger(__name__)
_STATISTICS_COLUMNS = 32
"""The number of leading columns that get statistics, as in Delta itself."""

_TEXT_STATISTICS = 64
"""Longer strings get no maximum, because a truncated one would be too small."""
_COPIES_AT_ONCE = 8
_UNTOUCHED: Mapping[str, str] = {
    "delta.deletedFileRetentionDuration": "interval 5200 weeks",
    "delta.logRetentionDuration": "interval 5200 weeks",
    "delta.enableExpiredLogCleanup": "false",
}
"""Properties by which VACUUM and checkpoints of other programs leave versions of our tables alone.

Only `persist gc` knows which of them are still read.
"""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of a build.

    Attributes
    ----------
    path
        Relative to the table's directory, POSIX.
    statistics
        Delta's statistics, in JSON.
    """

    path: str
    bytes: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class Staged:
    """Files that are written but not yet part of a version.

    Attributes
    ----------
    schema
        Delta's schema in JSON.
    """

    root: str
    build_uid: str
    schema: str
    files: tuple[File, ...]

    @property
    def rows(self) -> int:
        """The number of rows in the files."""
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        """The total size of the files, in bytes."""
        return sum(f.bytes for f in self.files)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the files."""
        return columns_of_struct(json.loads(self.schema))

    def greatest(self, column: str) -> tuple[Any, int] | None:
        """Return the greatest value of a column by its statistics, and the number of NULLs.

        If there is no value, all are NULL. None if a file lacks the statistics.
        """
        named = {c.name.lower(): c.name for c in self.columns}[column.lower()]
        values: list[Any] = []
        nulls = 0
        for file in self.files:
            statistics = json.loads(file.statistics)
            missing = statistics["nullCount"].get(named)
            if not file.rows or missing == file.rows:
                nulls += file.rows
            elif missing is None or named not in statistics["maxValues"]:
                return None
            else:
                values.append(statistics["maxValues"][named])
                nulls += missing
        return max(values, default=None), nulls


def find_staged(root: str, build_uid: str, schema: str) -> Staged:
    """Return the files that Spark has written for a build, with their statistics.

    Raises
    ------
    StorageError
        They cannot be read.
    """
    directory = f"{root}/{build_uid}"
    files = [
        find_file(root, f"{build_uid}/{listed.name}")
        for listed in list_files(directory)
        if listed.location == f"{directory}/{listed.name}" and listed.name.endswith(".parquet")
    ]
    return Staged(root, build_uid, schema, tuple(files))


def with_copies(staged: Staged, root: str, files: Iterable[Live]) -> Staged:
    """Return staged files, and copies of files of another table of ours beside them.

    Their statistics are made from their footers, as those of all our files were.

    Raises
    ------
    StorageError
        A file is gone, or the copy differs.
    """
    with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        copies = [*pool.map(lambda file: _copied(staged, root, file), files)]
    return replace(staged, files=(*staged.files, *copies))


def _copied(staged: Staged, root: str, file: Live) -> File:
    copy = copy_path(staged.build_uid, file.path)
    place = f"{staged.root}/{copy}"
    copy_file(f"{root}/{file.path}", place)
    copied = find_file(staged.root, copy)
    if (copied.bytes, copied.rows) != (file.bytes, file.rows):
        raise StorageError(f"{place} differs from {root}/{file.path}, of which it is a copy")
    return copied


def find_file(root: str, path: str) -> File:
    """Return a Parquet file of a table, with its statistics.

    Raises
    ------
    StorageError
        It cannot be read.
    """
    import pyarrow.parquet as pq

    with reached(f"{root}/{path}") as (system, place), system.open_input_file(place) as stream:
        n_bytes, metadata = int(stream.size()), pq.read_metadata(stream)
    return File(path, n_bytes, metadata.num_rows, json.dumps(_statistics(metadata)))


def _statistics(metadata: Any) -> dict[str, Any]:
    """Return Delta's statistics of a Parquet file from its footer, without uncertain ones."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for i in range(min(metadata.num_columns, _STATISTICS_COLUMNS)):
        name = metadata.schema.column(i).path
        if "." in name:  # a field of a nested column
            continue
        groups = [
            metadata.row_group(g).column(i).statistics for g in range(metadata.num_row_groups)
        ]
        if not groups or any(s is None for s in groups):
            continue
        if all(s.has_null_count for s in groups):
            nulls[name] = sum(s.null_count for s in groups)
        ranged = [s for s in groups if s.has_min_max]
        full = all(s.has_min_max or (s.has_null_count and not s.num_values) for s in groups)
        if not ranged or not full:
            continue
        try:
            low, high = _plain(min(s.min for s in ranged)), _plain(max(s.max for s in ranged))
        except (OverflowError, ValueError):  # a year that Python does not support
            continue
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return {
        "numRecords": metadata.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def _plain(value: object) -> object:
    """Return a statistic in Delta's JSON form, or None if no exact form exists."""
    match value:
        case bool() | bytes():
            return None
        case int():
            return value
        case float():
            return None if math.isnan(value) or math.isinf(value) else value
        case str():
            return value if len(value) <= _TEXT_STATISTICS else None
        case datetime():
            stamp = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return f"{stamp}Z" if value.tzinfo else stamp
        case date():
            return value.isoformat()
        case _:
            return None


def commit(
    staged: Staged,
    *,
    build_id: str,
    pinned: int | None,
    base: int | None = None,
    kept_files: Collection[str] = (),
    touched: Touched | None = None,
    engine: str = "",
) -> int:
    """Commit staged files as the content of a table, in one new version.

    Parameters
    ----------
    build_id
        Recorded with the version.
    base, kept_files
        A version, and the paths of its files that stay in the table.
    pinned
        The version that readers may use. If the head is ahead of it, a build died between its
        commit and its publication; that commit is undone first.
    touched
        The keys of the rows that differ from an earlier version, which lie beside the files.
    engine
        The name and version of what computed the rows, recorded with the version.

    Returns
    -------
    int
        The new version.

    Raises
    ------
    StorageError
        A staged file is gone, or its size has changed.
    ConflictError
        Another writer committed to the table meanwhile.
    """
    from deltalake.exceptions import DeltaError

    _check_files(staged)
    metadata = {"persist.build": staged.build_uid, "persist.build_id": build_id}
    if engine:
        metadata["persist.engine"] = engine
    if touched is not None:
        metadata[TOUCHED] = touched.as_metadata
    try:
        return _commit(staged, metadata, pinned, base, kept_files)
    except (DeltaError, OSError) as error:
        if is_taken(error):
            raise ConflictError(
                f"another writer committed to {staged.root} at the same time", hint="try again"
            ) from error
        raise unreachable(staged.root, error, f"cannot commit the table {staged.root}") from error


def _commit(
    staged: Staged,
    metadata: Mapping[str, str],
    pinned: int | None,
    base: int | None,
    kept_files: Collection[str],
) -> int:
    table = find_table(staged.root)
    if table is not None:
        if base is not None and table.version() != base:
            table = restore(staged.root, table, base)
        elif base is None and pinned is not None and table.version() > pinned:
            table = _restored_if_possible(staged.root, table, pinned)
    return write_files(table, staged, metadata, kept_files, configuration=_UNTOUCHED)


def _restored_if_possible(root: str, table: Any, version: int) -> Any:
    """Return a table whose content is replaced next, with a version as its newest if that exists.

    Others may have rewritten and vacuumed the table, so that the version's files are gone.
    """
    from deltalake.exceptions import DeltaError

    try:
        return restore(root, table, version)
    except DeltaError as error:
        if is_taken(error):
            raise
        log.warning(
            "action=commit root=%s: version %d cannot be restored: %s", root, version, error
        )
        return find_table(root)


def write_files(
    table: Any,
    staged: Staged,
    metadata: Mapping[str, str],
    kept_files: Collection[str] = (),
    description: str | None = None,
    configuration: Mapping[str, str] | None = None,
) -> int:
    """Commit staged files on top of a version of a table, and return the new version.

    Parameters
    ----------
    table
        The `deltalake.DeltaTable` whose version is succeeded; None: the table is created.
    metadata
        Entries of the commit.
    kept_files
        The paths of the table's files that stay. If there are none, columns may change.
    description, configuration
        Of a table that is created: its comment, and its properties.

    Raises
    ------
    DeltaError, OSError
        It was not written. If the version exists, `is_taken` is true of the error.
    StorageError
        Whether it was written is unknown.
    """
    from deltalake import Schema
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

    now = int(time.time() * 1000)
    adds = [AddAction(f.path, f.bytes, {}, now, True, f.statistics) for f in staged.files]
    schema, hooks = Schema.from_json(staged.schema), _hooks()
    if table is None:
        uri, options = delta_place(staged.root)

        def create(properties: CommitProperties) -> None:
            create_table_with_add_actions(
                uri,
                schema,
                adds,
                mode="error",
                description=description,
                configuration=configuration,
                storage_options=options,
                commit_properties=properties,
                post_commithook_properties=hooks,
            )

        _write_version(staged.root, 0, metadata, create)
        return 0
    # delta-rs writes changed columns only if it replaces all files itself.
    mode, removes = "overwrite", list[RemoveAction]()
    if kept_files:
        gone = [path for path in paths_of(table) if path not in kept_files]
        mode, removes = "append", [RemoveAction(path, True, now) for path in gone]
    expected = int(table.version()) + 1

    def write(properties: CommitProperties) -> None:
        table.create_write_transaction(
            [*adds, *removes],
            mode=mode,
            schema=schema,
            commit_properties=properties,
            post_commithook_properties=hooks,
        )

    _write_version(staged.root, expected, metadata, write)
    return expected


def _write_version(
    root: str,
    version: int,
    metadata: Mapping[str, str],
    write: Callable[[CommitProperties], object],
) -> bool:
    """Write a version of a table unless another writer has; return whether the store answered.

    A store may write a commit although its answer gets lost. delta-rs then retries, and fails
    because the version exists. Therefore each commit has a name that identifies it.

    Raises
    ------
    DeltaError, OSError
        As far as is known, it was not written.
    StorageError
        This commit or another one exists, and it cannot be read.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import DeltaError

    name = uuid4().hex
    properties = CommitProperties(custom_metadata={**metadata, COMMIT: name}, max_commit_retries=0)
    try:
        ask(root, lambda: write(properties))
        return True
    except (DeltaError, OSError) as error:
        try:
            written = read_commit(root, version).get(COMMIT)
        except StorageError as unread:
            if is_taken(error) and not isinstance(unread.__cause__, FileNotFoundError):
                raise
            written = None
        if written != name:
            raise
        log.info("action=commit root=%s version=%d: the response was lost", root, version)
        return False


def is_taken(error: Exception) -> bool:
    """Whether an error of delta-rs means that the version or table exists."""
    from deltalake.exceptions import CommitFailedError

    return isinstance(error, CommitFailedError) or "table already exists" in str(error)


def _hooks() -> Any:
    """Return the properties of a commit that keep old versions until we collect them."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def restore(root: str, table: Any, version: int) -> Any:
    """Make a version of a table its newest again; return the table."""

    def restore(properties: CommitProperties) -> None:
        table.restore(version, commit_properties=properties, post_commithook_properties=_hooks())

    answered = _write_version(root, int(table.version()) + 1, {}, restore)
    return table if answered else find_table(root)


def paths_of(table: Any) -> list[str]:
    """Return the relative, unquoted paths of a table's live files."""
    return [*file_sizes(table)]


def _check_files(staged: Staged) -> None:
    sizes = {f.location: f.bytes for f in list_files(f"{staged.root}/{staged.build_uid}")}
    for file in staged.files:
        size = sizes.get(f"{staged.root}/{file.path}")
        if size != file.bytes:
            state = "is gone" if size is None else f"has {size} bytes, not {file.bytes}"
            raise StorageError(f"{staged.root}/{file.path} {state} before it was committed")
