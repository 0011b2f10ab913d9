"""The Delta tables we write: Spark makes Parquet files, this module commits them. No Spark here.

A table is a directory ``<warehouse>/<name>-<buildid[:12]>`` with one sub-directory of files for
each build and Delta's log beside them. The invariant: a version, once committed, is immutable
and complete (every file of it was there, with its size, when it was committed), and there are
no Hive partition directories: statistics prune.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.core.errors import ConflictError, GoneError, StorageError
from persist_assets.core.object_stores import is_local
from persist_assets.core.time_values import from_statistics, overlap
from persist_assets.storage.files import (
    delete_directory,
    delete_empty,
    delete_file,
    delta_place,
    is_there,
    list_files,
    list_own,
    reached,
    unreachable,
)
from persist_assets.storage.types import columns_of_struct
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from deltalake import CommitProperties

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.time_values import Value

log = logging.getLogger(__name__)

LOG = "_delta_log"
"""The directory of a table that says which files its versions have."""
_COMMIT = "persist.commit"
"""The entry of a commit that tells it from all others."""
_STATISTICS_COLUMNS = 32
"""As in Delta itself: the leading columns get statistics."""
_TEXT_STATISTICS = 64
"""Longer texts get no greatest value; a cut-off one would be too small."""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of a build.

    Attributes
    ----------
    path
        Relative to the table's directory, POSIX.
    statistics
        Delta's, in JSON.
    """

    path: str
    bytes: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class Staged:
    """Files that are written and not yet part of any version.

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
        """How many rows the files hold."""
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        """The files' sizes together."""
        return sum(f.bytes for f in self.files)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the files have."""
        return columns_of_struct(json.loads(self.schema))

    def greatest(self, column: str) -> tuple[Any, int] | None:
        """Return the greatest value of a column, as statistics have it, and how many are NULL.

        Without a value, all are. None, where not all files tell.
        """
        named = {c.name.lower(): c.name for c in self.columns}[column.lower()]
        values: list[Any] = []
        nulls = 0
        for file in self.files:
            told = json.loads(file.statistics)
            missing = told["nullCount"].get(named)
            if not file.rows or missing == file.rows:
                nulls += file.rows
            elif missing is None or named not in told["maxValues"]:
                return None
            else:
                values.append(told["maxValues"][named])
                nulls += missing
        return max(values, default=None), nulls


@dataclass(frozen=True, slots=True)
class TableVersion:
    """What there is to read of one version of a table: absolute paths, and the columns."""

    files: tuple[str, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Live:
    """A file of a version of a table.

    Attributes
    ----------
    least, greatest
        Of its columns, by names in lower case; what is not certain is not there.
    nulls
        How many NULLs its columns have.
    """

    path: str
    bytes: int
    rows: int | None
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]
    nulls: Mapping[str, int]

    def may_have(self, column: str, kind: str, span: tuple[Value, Value | None]) -> bool:
        """Whether rows of the file may have a value of a span of a column."""
        name = column.lower()
        if name not in self.nulls or name not in self.least or name not in self.greatest:
            return True
        low = from_statistics(self.least[name], kind)
        high = from_statistics(self.greatest[name], kind)
        return low is None or high is None or overlap((low, high), span)


# ---------------------------------------------------------------------------------------- staging


def find_staged(root: str, build_uid: str, schema: str) -> Staged:
    """Return the files that Spark has written for a build, with their statistics.

    Raises
    ------
    StorageError
        They cannot be read.
    """
    import pyarrow.parquet as pq

    directory = f"{root}/{build_uid}"
    files: list[File] = []
    for found in list_files(directory):
        if found.location != f"{directory}/{found.name}" or not found.name.endswith(".parquet"):
            continue
        with reached(found.location) as (system, path), system.open_input_file(path) as source:
            metadata = pq.read_metadata(source)
        statistics = json.dumps(_statistics(metadata))
        files.append(File(f"{build_uid}/{found.name}", found.bytes, metadata.num_rows, statistics))
    return Staged(root, build_uid, schema, tuple(files))


def _statistics(metadata: Any) -> dict[str, Any]:
    """Return Delta's statistics of a Parquet file from its footer; what is unsure is left out."""
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
        except (OverflowError, ValueError):  # of no year that Python has
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
    """Return a statistic in Delta's JSON form, or None where it has none that is exact."""
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


# ----------------------------------------------------------------------------------------- commit


def commit(
    staged: Staged,
    *,
    build_id: str,
    pinned: int | None,
    base: int | None = None,
    kept: Collection[str] = (),
) -> int:
    """Make staged files the content of a table, as one new version.

    Parameters
    ----------
    build_id
        Recorded with the version.
    base, kept
        A version, and the paths of those of its files that stay beside them.
    pinned
        The version that readers may be on. Where the table's head is ahead of it, a build died
        between its commit and its publication: the head is put back first.

    Returns
    -------
    int
        The new version.

    Raises
    ------
    StorageError
        A staged file is gone or has another size than when it was staged.
    ConflictError
        Somebody else committed to the table meanwhile.
    """
    from deltalake.exceptions import DeltaError

    _check_files(staged)
    told = {"persist.build": staged.build_uid, "persist.build_id": build_id}
    try:
        return _commit(staged, told, pinned, base, kept)
    except (DeltaError, OSError) as error:
        if _is_taken(error):
            raise ConflictError(
                f"another writer committed to {staged.root} at the same time", hint="run it again"
            ) from error
        raise unreachable(
            staged.root, error, f"the table {staged.root} cannot be committed"
        ) from error


def _commit(
    staged: Staged,
    told: Mapping[str, str],
    pinned: int | None,
    base: int | None,
    kept: Collection[str],
) -> int:
    from deltalake import Schema
    from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

    now = int(time.time() * 1000)
    adds = [AddAction(f.path, f.bytes, {}, now, True, f.statistics) for f in staged.files]
    schema, hooks = Schema.from_json(staged.schema), _hooks()
    table = find_table(staged.root)
    if table is None:
        uri, options = delta_place(staged.root)

        def create(properties: CommitProperties) -> None:
            create_table_with_add_actions(
                uri,
                schema,
                adds,
                mode="error",
                storage_options=options,
                commit_properties=properties,
                post_commithook_properties=hooks,
            )

        _write_version(staged.root, 0, told, create)
        return 0
    if base is not None and table.version() != base:
        table = _restore(staged.root, table, base)
    elif base is None and pinned is not None and table.version() > pinned:
        table = _restore(staged.root, table, pinned)
    removes = [RemoveAction(path, True, now) for path in _paths(table) if path not in kept]
    expected = int(table.version()) + 1

    def write(properties: CommitProperties) -> None:
        table.create_write_transaction(
            [*adds, *removes],
            mode="append",
            schema=schema,
            commit_properties=properties,
            post_commithook_properties=hooks,
        )

    _write_version(staged.root, expected, told, write)
    return expected


def _write_version(
    root: str, version: int, told: Mapping[str, str], write: Callable[[CommitProperties], object]
) -> bool:
    """Write a version of a table, if nobody else has; return whether its answer came.

    A store may write a commit and its answer get lost. Then delta-rs asks once more, and is
    refused, because there is one. So each commit has a name, by which it is known to be this one.

    Raises
    ------
    DeltaError, OSError
        It was not written, as far as is known.
    StorageError
        Another commit or this one is there, and it cannot be read.
    """
    from deltalake import CommitProperties
    from deltalake.exceptions import DeltaError

    name = uuid4().hex
    properties = CommitProperties(custom_metadata={**told, _COMMIT: name}, max_commit_retries=0)
    try:
        ask(root, lambda: write(properties))
        return True
    except (DeltaError, OSError) as error:
        try:
            written = _read_commit(root, version).get(_COMMIT)
        except StorageError as unread:
            if _is_taken(error) and not isinstance(unread.__cause__, FileNotFoundError):
                raise
            written = None
        if written != name:
            raise
        log.info("action=commit root=%s version=%d: its answer was lost", root, version)
        return False


def _is_taken(error: Exception) -> bool:
    """Whether delta-rs says that there is such a version, or table."""
    from deltalake.exceptions import CommitFailedError

    return isinstance(error, CommitFailedError) or "table already exists" in str(error)


def _hooks() -> Any:
    """Return what delta-rs does after a commit: old versions stay until we collect them."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def _restore(root: str, table: Any, version: int) -> Any:
    """Make a version of a table its newest again; return the table."""

    def restore(properties: CommitProperties) -> None:
        table.restore(version, commit_properties=properties, post_commithook_properties=_hooks())

    answered = _write_version(root, int(table.version()) + 1, {}, restore)
    return table if answered else find_table(root)


def _paths(table: Any) -> list[str]:
    """Return the paths of a table's live files, relative and not quoted."""
    return [*file_sizes(table)]


def _check_files(staged: Staged) -> None:
    there = {f.location: f.bytes for f in list_files(f"{staged.root}/{staged.build_uid}")}
    for file in staged.files:
        size = there.get(f"{staged.root}/{file.path}")
        if size != file.bytes:
            found = "is gone" if size is None else f"has {size} bytes, not {file.bytes}"
            raise StorageError(f"{staged.root}/{file.path} {found} before it was committed")


# ---------------------------------------------------------------------------------------- reading


def find_table(root: str, version: int | None = None) -> Any:
    """Return the `deltalake.DeltaTable` at `root`, None where it or its version is not there.

    Raises
    ------
    StorageError
        That cannot be told.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri, options = delta_place(root)
    try:
        return ask(root, lambda: DeltaTable(uri, version=version, storage_options=options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        # Of a store that does not answer nothing is known.
        if version is not None and (is_local(root) or isinstance(error, DeltaError)):
            return None
        raise unreachable(root, error, f"the table {root} cannot be opened") from error


def read_version(root: str, version: int) -> TableVersion:
    """Return what there is to read of one version of a table.

    Costs, beside Delta's log, one listing of each build that it has files of; mostly that is one.

    Raises
    ------
    GoneError
        The version, or one of its files, is gone.
    StorageError
        That cannot be told.
    """
    table = find_table(root, version)
    if table is None:
        raise GoneError(f"version {version} of the table {root} is gone", hint="build it again")
    sizes = {f"{root}/{path}": size for path, size in sorted(file_sizes(table).items())}
    builds = sorted({file.rpartition("/")[0] for file in sizes})
    there = {found.location: found.bytes for build in builds for found in list_files(build)}
    for file, size in sizes.items():
        if there.get(file) != size:
            what = f"has {there[file]} bytes, not {size}" if file in there else "is gone"
            message = f"{file} {what}, a file of version {version}"
            raise GoneError(message, hint="build it again")
    return TableVersion(tuple(sizes), columns_of_struct(json.loads(table.schema().to_json())))


def file_sizes(table: Any) -> dict[str, int]:
    """Return a table's live files, relative and not quoted, and how many bytes they have."""
    import pyarrow as pa

    actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"])
    return {row["path"]: row["size_bytes"] for row in actions.to_pylist()}


def live_files(
    table: Any, among: Collection[str] | None = None, column: str | None = None
) -> dict[str, Live]:
    """Return the live files of a `deltalake.DeltaTable` by their paths, with their statistics.

    Parameters
    ----------
    among
        Those that are asked for; None: all.
    column
        The one of whose statistics is asked, in any case; None: of all.
    """
    import pyarrow as pa

    found: dict[str, Live] = {}
    actions = pa.table(table.get_add_actions(flatten=True))
    if column is not None:
        wanted = ("", column.lower())
        names = [n for n in actions.column_names if n.partition(".")[2].lower() in wanted]
        actions = actions.select(names)
    if among is not None:
        actions = actions.filter(
            pa.array([p in among for p in actions["path"].to_pylist()], "bool")
        )
    columns = [told_by_files(actions, name) for name in actions.column_names]
    for values in zip(*columns, strict=True):
        row = dict(zip(actions.column_names, values, strict=True))
        told: dict[str, dict[str, Any]] = {"min": {}, "max": {}, "null_count": {}}
        for key, value in row.items():
            kind, _, name = key.partition(".")
            if kind in told and name and value is not None:
                told[kind][name.lower()] = value
        numbers = (told["min"], told["max"], told["null_count"])
        found[row["path"]] = Live(row["path"], row["size_bytes"], row.get("num_records"), *numbers)
    return found


def nulls_in(root: str, version: int, column: str) -> int | None:
    """Return how many rows of a table have no value in a column; None where files do not tell.

    Raises
    ------
    StorageError
        Whether it is there cannot be told.
    """
    table = find_table(root, version)
    if table is None:
        return None
    total = 0
    for file in live_files(table, column=column).values():
        count = file.nulls.get(column.lower())
        if count is None:
            return None
        total += count
    return total


def told_by_files(actions: Any, name: str) -> list[Any]:
    """Return what is told of each file, None where nothing is, or a value that Python has not."""
    try:
        return actions[name].to_pylist()
    except (KeyError, OverflowError, ValueError):
        return [None] * actions.num_rows


def read_snapshot(root: str, snapshot: Snapshot) -> TableVersion:
    """Return what there is to read of a snapshot.

    Raises
    ------
    GoneError
        It, or one of its files, is gone; or the version is that of another table, which was
        made in the place of a deleted one.
    StorageError
        That cannot be told.
    """
    found = read_version(root, snapshot.version)
    written = {path.removeprefix(f"{root}/").partition("/")[0] for path in found.files}
    if (
        (snapshot.rows and not written)
        or written - {snapshot.build_uid, *snapshot.parts}
        or (
            snapshot.parts
            and find_writer(root, snapshot.version) != (snapshot.build_uid, snapshot.build_id)
        )
    ):
        raise GoneError(
            f"version {snapshot.version} of the table {root} is not the one that was published",
            hint="build it again",
        )
    return found


def has_snapshot(root: str, snapshot: Snapshot) -> bool:
    """Whether a snapshot is there, by a look at its commit and its directory.

    Its files have to have as many bytes as were written, so that none is gone or cut off.

    Raises
    ------
    StorageError
        That cannot be told.
    """
    if snapshot.parts:  # not all files of a part are still its own
        return is_whole(root, snapshot)
    commit, files = f"{root}/{LOG}/{snapshot.version:020}.json", f"{root}/{snapshot.build_uid}"
    if is_local(root):  # without the price of a file system that may be anywhere
        return os.path.exists(commit) and sum(_parquet_sizes(files)) == snapshot.bytes
    written = (f.bytes for f in list_files(files) if f.name.endswith(".parquet"))
    return is_there(commit) and sum(written) == snapshot.bytes


def is_whole(root: str, snapshot: Snapshot) -> bool:
    """Whether a snapshot is there with all its files.

    Raises
    ------
    StorageError
        That cannot be told.
    """
    try:
        read_snapshot(root, snapshot)
    except GoneError:
        return False
    return True


def _parquet_sizes(directory: str) -> Iterator[int]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from (e.stat().st_size for e in entries if e.name.endswith(".parquet"))


def read_sample(files: Iterable[str], n: int) -> list[dict[str, Any]]:
    """Return the first rows of a version's files, at most `n`."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = []
    for path in files:
        with reached(path) as (system, inner), system.open_input_file(inner) as source:
            for batch in pq.ParquetFile(source).iter_batches(batch_size=n - len(rows)):
                rows += batch.to_pylist()
                if len(rows) >= n:
                    return rows[:n]
    return rows


def find_writer(root: str, version: int) -> tuple[str, str] | None:
    """Return the build that committed a version, and its BuildID; None if it was none of ours.

    The commit itself is read: `DeltaTable.history` of an older version counts from the head.

    Raises
    ------
    StorageError
        There is no such commit.
    """
    told = _read_commit(root, version)
    if "persist.build" in told:
        return told["persist.build"], told.get("persist.build_id", "")
    return None


def _read_commit(root: str, version: int) -> Mapping[str, Any]:
    """Return what a commit says of itself.

    Raises
    ------
    StorageError
        There is no such commit, or it cannot be read.
    """
    place = f"{root}/{LOG}/{version:020}.json"
    with reached(place) as (system, path), system.open_input_stream(path) as stream:
        lines: list[bytes] = stream.read().splitlines()
    told: Iterator[dict[str, Any]] = (json.loads(line).get("commitInfo", {}) for line in lines)
    return next(filter(None, told), {})


def find_parts(root: str, version: int) -> set[str]:
    """Return the builds whose files a version has; nothing where it is gone."""
    table = find_table(root, version)
    return set() if table is None else {path.partition("/")[0] for path in file_sizes(table)}


# --------------------------------------------------------------------------------------- deletion


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
    found: dict[str, int] = {}
    for file in list_own(root):
        name = file.location.removeprefix(f"{root}/").partition("/")[0]
        found[name] = found.get(name, 0) + file.bytes
    return found


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
        newest = {path.partition("/")[0] for path in _paths(table)}
        if not newest.isdisjoint(doomed):
            try:
                _restore(root, table, head)
            except (DeltaError, OSError) as error:
                raise unreachable(root, error, f"the table {root} cannot be restored") from error
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
        raise unreachable(root, error, f"files of {root} cannot be deleted") from error
    sizes = {f.location.removeprefix(f"{root}/"): f.bytes for f in list_own(root)}
    # A vacuum would delete all that is in the directory, whoever put it there.
    own = [path for path in unused if path in sizes and _OWN.fullmatch(path.partition("/")[0])]
    for path in () if dry_run else own:
        delete_file(f"{root}/{path}")
    return sum(sizes[path] for path in own)
