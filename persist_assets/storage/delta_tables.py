"""The Delta tables we write: Spark makes Parquet files, this module commits them. No Spark here.

A table is a directory ``<warehouse>/<name>-<buildid[:12]>`` with a subdirectory of files for each
build, and Delta's log beside them. The invariant: a committed version is immutable and complete
(all its files existed, with their sizes, when it was committed). There are no Hive partition
directories: statistics prune files.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.object_stores import is_local
from persist_assets.core.time_values import from_statistics, overlap
from persist_assets.storage.files import (
    delta_place,
    file_exists,
    list_files,
    reached,
    unreachable,
)
from persist_assets.storage.types import columns_of_struct
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import pyarrow as pa

    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.time_values import Value

log = logging.getLogger(__name__)

LOG = "_delta_log"
"""The directory of a table's log, which lists the files of its versions."""
COMMIT = "persist.commit"
"""The entry of a commit that identifies it."""
_COPY = re.compile(r"[^/]+/(?P<build>[0-9a-f]{32})-(?P<name>[^/]+)")
"""The path of a copy of another table's file: the name begins with the build that wrote it."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The content of one version of a table: absolute paths of files, and columns."""

    files: tuple[str, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Live:
    """A file of a version of a table.

    Attributes
    ----------
    least, greatest
        The extreme values of its columns, by lower-case name; uncertain ones are left out.
    nulls
        The number of NULLs in each column.
    """

    path: str
    bytes: int
    rows: int | None
    least: Mapping[str, Any]
    greatest: Mapping[str, Any]
    nulls: Mapping[str, int]

    def may_have(self, column: str, kind: str, span: tuple[Value, Value | None]) -> bool:
        """Whether the file may have rows with a column's value in a span."""
        name = column.lower()
        if name not in self.nulls or name not in self.least or name not in self.greatest:
            return True
        low = from_statistics(self.least[name], kind)
        high = from_statistics(self.greatest[name], kind)
        return low is None or high is None or overlap((low, high), span)


# ---------------------------------------------------------------------------------------- reading


def find_table(root: str, version: int | None = None) -> Any:
    """Return the `deltalake.DeltaTable` at `root`, None if it or its version does not exist.

    Raises
    ------
    StorageError
        The store does not answer, or not clearly.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri, options = delta_place(root)
    try:
        return ask(root, lambda: DeltaTable(uri, version=version, storage_options=options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        # If a store does not answer, nothing is known.
        if version is not None and (is_local(root) or isinstance(error, DeltaError)):
            return None
        raise unreachable(root, error, f"cannot open the table {root}") from error


def read_version(root: str, version: int) -> TableVersion:
    """Return the content of one version of a table.

    Beside the log, this lists the directory of each build with files in it, usually one.

    Raises
    ------
    GoneError
        The version, or one of its files, is gone.
    StorageError
        The store cannot be read.
    """
    table = find_table(root, version)
    if table is None:
        raise GoneError(f"version {version} of the table {root} is gone", hint="build it again")
    sizes = {f"{root}/{path}": size for path, size in sorted(file_sizes(table).items())}
    builds = sorted({file.rpartition("/")[0] for file in sizes})
    actual = {listed.location: listed.bytes for build in builds for listed in list_files(build)}
    for file, size in sizes.items():
        if actual.get(file) != size:
            problem = f"has {actual[file]} bytes, not {size}" if file in actual else "is gone"
            message = f"{file}, a file of version {version}, {problem}"
            raise GoneError(message, hint="build it again")
    return TableVersion(tuple(sizes), columns_of_struct(json.loads(table.schema().to_json())))


def file_actions(table: Any, *, flatten: bool = True) -> pa.Table:
    """Return a row for each live file of a `deltalake.DeltaTable`, as in its log.

    `pyarrow.table` would import pandas, which takes longer than opening some tables.
    """
    import pyarrow as pa

    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=flatten)).read_all()


def file_sizes(table: Any) -> dict[str, int]:
    """Return the relative, unquoted paths of a table's live files, and their sizes in bytes."""
    actions = file_actions(table).select(["path", "size_bytes"])
    return {row["path"]: row["size_bytes"] for row in actions.to_pylist()}


def copy_path(build_uid: str, path: str) -> str:
    """Return the path that a copy of a file has among the files of a build; see `origin`."""
    return f"{build_uid}/{origin(path).replace('/', '-')}"


def origin(path: str) -> str:
    """Return the path that a file had in the table in which it was written.

    Examples
    --------
    >>> first = "0123456789abcdef" * 2
    >>> origin(copy_path("second", f"{first}/part-0.parquet")) == f"{first}/part-0.parquet"
    True
    """
    match = _COPY.fullmatch(path)
    return f"{match['build']}/{match['name']}" if match else path


def live_files(
    table: Any, among: Collection[str] | None = None, column: str | None = None
) -> dict[str, Live]:
    """Return the live files of a `deltalake.DeltaTable` by path, with their statistics.

    Parameters
    ----------
    among
        The paths to return; None: all.
    column
        The column whose statistics are needed, in upper or lower case; None: all columns. Those
        with a dot in their names have none here.
    """
    import pyarrow as pa

    files: dict[str, Live] = {}
    actions = file_actions(table)
    names = (n for n in actions.column_names if n.count(".") < 2)  # `a.b`: a column, or a field?
    if column is not None:
        suffixes = ("", column.lower())
        names = (n for n in names if n.partition(".")[2].lower() in suffixes)
    actions = actions.select([*names])
    if among is not None:
        actions = actions.filter(
            pa.array([p in among for p in actions["path"].to_pylist()], "bool")
        )
    columns = [file_statistics(actions, name) for name in actions.column_names]
    for values in zip(*columns, strict=True):
        row = dict(zip(actions.column_names, values, strict=True))
        statistics: dict[str, dict[str, Any]] = {"min": {}, "max": {}, "null_count": {}}
        for key, value in row.items():
            kind, _, name = key.partition(".")
            if kind in statistics and name and value is not None:
                statistics[kind][name.lower()] = value
        numbers = (statistics["min"], statistics["max"], statistics["null_count"])
        files[row["path"]] = Live(row["path"], row["size_bytes"], row.get("num_records"), *numbers)
    return files


def nulls_in(root: str, version: int, column: str) -> int | None:
    """Return the number of NULLs in a column of a table; None if statistics do not state it.

    Raises
    ------
    StorageError
        The table cannot be read.
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


def file_statistics(actions: Any, name: str) -> list[Any]:
    """Return a statistic of each file; None if it is missing, or Python cannot represent it."""
    try:
        return actions[name].to_pylist()
    except (KeyError, OverflowError, ValueError):
        return [None] * actions.num_rows


def read_snapshot(root: str, snapshot: Snapshot) -> TableVersion:
    """Return the content of a snapshot.

    Raises
    ------
    GoneError
        It, or one of its files, is gone; or the version belongs to another table, which replaced
        a deleted one.
    StorageError
        The store cannot be read.
    """
    version = read_version(root, snapshot.version)
    # Under which BuildID it was written does not matter: it may have been taken over since.
    written = {path.removeprefix(f"{root}/").partition("/")[0] for path in version.files}
    if (
        (snapshot.rows and not written)
        or written - {snapshot.build_uid, *snapshot.parts}
        or (
            snapshot.parts
            and (find_writer(root, snapshot.version) or ("",))[0] != snapshot.build_uid
        )
    ):
        raise GoneError(
            f"version {snapshot.version} of the table {root} is not the one that was published",
            hint="build it again",
        )
    return version


def has_snapshot(root: str, snapshot: Snapshot) -> bool:
    """Whether a snapshot exists, according to its commit and its directory.

    Its files must have as many bytes as were written, so that none is missing or truncated.

    Raises
    ------
    StorageError
        The store cannot be read.
    """
    if snapshot.parts:  # it no longer has all files of a part
        return is_whole(root, snapshot)
    commit, files = f"{root}/{LOG}/{snapshot.version:020}.json", f"{root}/{snapshot.build_uid}"
    if is_local(root):  # without the price of a file system that may be anywhere
        return os.path.exists(commit) and sum(_parquet_sizes(files)) == snapshot.bytes
    direct = (f for f in list_files(files) if f.location == f"{files}/{f.name}")  # no states
    written = (f.bytes for f in direct if f.name.endswith(".parquet"))
    return file_exists(commit) and sum(written) == snapshot.bytes


def is_whole(root: str, snapshot: Snapshot) -> bool:
    """Whether a snapshot exists with all its files.

    Raises
    ------
    StorageError
        The store cannot be read.
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
            batches = pq.ParquetFile(source).iter_batches(n - len(rows), use_threads=False)
            for batch in batches:
                columns = {name: _values(batch.column(name)) for name in batch.schema.names}
                rows += (
                    dict(zip(columns, row, strict=True))
                    for row in zip(*columns.values(), strict=True)
                )
                if len(rows) >= n:
                    return rows[:n]
    return rows


def _values(column: Any) -> list[Any]:
    """Return the values of an Arrow array; as texts, if Python lacks their dates or times."""
    import pyarrow as pa

    try:
        return column.to_pylist()
    except (OverflowError, ValueError):  # years before 1, or after 9999
        nested = pa.types.is_nested(column.type)
        return ["…"] * len(column) if nested else column.cast(pa.string()).to_pylist()


def find_writer(root: str, version: int) -> tuple[str, str] | None:
    """Return the build that committed a version, and its BuildID; None if another program did.

    This reads the commit itself: `DeltaTable.history` of an older version counts from the head.

    Raises
    ------
    StorageError
        The commit does not exist.
    """
    info = read_commit(root, version)
    if "persist.build" in info:
        return info["persist.build"], info.get("persist.build_id", "")
    return None


def is_own_version(root: str, snapshot: Snapshot) -> bool:
    """Whether the version of a snapshot was committed by its build.

    If a table was deleted and built again, its versions count from 0 again.
    """
    try:
        writer = find_writer(root, snapshot.version)
    except StorageError:
        return False
    return writer is not None and writer[0] == snapshot.build_uid


def read_commit(root: str, version: int) -> Mapping[str, Any]:
    """Return the information that a commit has about itself.

    Raises
    ------
    StorageError
        The commit does not exist, or cannot be read.
    """
    place = f"{root}/{LOG}/{version:020}.json"
    with reached(place) as (system, path), system.open_input_stream(path) as stream:
        lines: list[bytes] = stream.read().splitlines()
    infos: Iterator[dict[str, Any]] = (json.loads(line).get("commitInfo", {}) for line in lines)
    return next(filter(None, infos), {})


def find_parts(root: str, version: int) -> set[str]:
    """Return the builds whose files a version has; empty if it is gone."""
    table = find_table(root, version)
    return set() if table is None else {path.partition("/")[0] for path in file_sizes(table)}
