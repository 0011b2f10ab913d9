"""Raw tables: their columns, and the current version of their data.

No Spark and no JVM. The invariant: a `Pin` names exactly the files that are read, and two pins of
one raw table have the same version only if they hold the same data.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from persist_assets.core.errors import GoneError, StorageError
from persist_assets.core.model.columns import Column
from persist_assets.core.model.sources import FILE_FORMATS
from persist_assets.core.object_stores import is_local, scheme_of
from persist_assets.storage.delta_features import (
    BY_LOG,
    check_readable,
    marks_of,
    unusual_features,
)
from persist_assets.storage.delta_tables import file_actions
from persist_assets.storage.files import (
    delta_place,
    list_files,
    reached,
    read_bytes,
    unreachable,
)
from persist_assets.storage.partition_texts import (
    NO_VALUE,
    check_layout,
    is_certain,
    partition_columns,
    plain_type,
    texts_by_column,
    unescaped,
)
from persist_assets.storage.types import columns_of_struct, type_of_arrow
from persist_assets.storage.waiting import ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.core.model.sources import RawTable
    from persist_assets.storage.files import Found

SECRETS = re.compile(r"password|token|secret|access_?key|account_?key|user|credential", re.I)
"""The names of options for credentials, which enter no digest and no log."""

OF_FILES, OF_DELTA = "files:", "delta:"
"""The prefixes of versions: a digest of a listing; or the number of a commit, the table's ID and,
for tables that other programs write, a digest of its files."""

OF_PARSED = f"{OF_FILES}w"
"""The prefix of versions of CSV and JSON since all columns of a record decide whether it is
malformed; before, only the columns that a query needed did."""

_WHERE = "check its LOCATION or `uri`"


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a raw table's data.

    Attributes
    ----------
    version
        None if the data has no versions (``jdbc``): every build may read other rows.
    files
        The files to read; None if the data is not in files.
    base
        The directory whose subdirectories are partition columns, if any.
    stamps
        For plain files, the stamps that identify their content: size, time of change, inode.
    rows
        The number of rows of each file according to the table's log, including deleted ones; None
        if the log does not state it. Empty if there is no log.
    commit
        The version of a Delta table that is read; its rows equal those of `version`, which may be
        an earlier one.
    types
        The types of a Delta table's columns, in Delta's words, by lower-case name; nested ones are
        ``""``. Older files may lack some columns.
    bytes
        The size of all files; None if it is unknown.
    by_log
        Whether files alone are not the rows, because a Delta table's log deletes rows, renames
        columns, or has other partition values than the directories. Then `files` is None.
    """

    version: str | None
    files: tuple[str, ...] | None = None
    base: str | None = None
    stamps: tuple[tuple[int, int, str], ...] = ()
    rows: Mapping[str, int | None] = field(
        default_factory=dict[str, "int | None"], compare=False, repr=False
    )
    commit: int | None = None
    types: Mapping[str, str] = field(default_factory=dict[str, str], compare=False, repr=False)
    bytes: int | None = field(default=None, compare=False, repr=False)
    by_log: bool = False

    @property
    def n_rows(self) -> int | None:
        """The number of rows, including deleted ones; None if it is unknown."""
        counts = [n for n in self.rows.values() if n is not None]
        return sum(counts) if self.rows and len(counts) == len(self.rows) else None


_LOGINS = re.compile(r"(?<=://)([^\s/?#@:]*):[^\s/?#@]*@")
_QUOTED_LOGINS = re.compile(r"(?<=['\"])([^\s/?#@:'\"]+):[^\s/?#@'\"]{6,}@(?=[\w-]+[./])")
_PARAMETERS = re.compile(r"([?&;]([^\s=&;?]{1,100})=)([^\s&;'\"]+)")
_KEYS = re.compile(
    r"password|pwd|token|secret|sig$|signature|credential|(?:^|access|account|api|shared)[_-]?key",
    re.I,
)


def without_secrets(text: str) -> str:
    """Return a text with dots in place of the passwords and keys in its addresses.

    It takes time linear in the length of the text.

    Examples
    --------
    >>> without_secrets("s3a://me:mine@bucket/t and https://h/t?sig=abc&page=2")
    's3a://me:…@bucket/t and https://h/t?sig=…&page=2'
    >>> without_secrets("got a URI: 'me:secret@bucket/t', not 'a:b@c'")
    "got a URI: 'me:…@bucket/t', not 'a:b@c'"
    """
    text = _LOGINS.sub(r"\1:…@", text) if "://" in text else text
    text = _QUOTED_LOGINS.sub(r"\1:…@", text) if "@" in text else text
    if "=" not in text:
        return text
    return _PARAMETERS.sub(lambda m: f"{m[1]}…" if _KEYS.search(m[2]) else m[0], text)


def public(value: Any) -> Any:
    """Return a JSON value in which all texts are `without_secrets`."""
    match value:
        case str():
            return without_secrets(value)
        case dict():
            return {key: public(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [public(item) for item in cast("list[Any]", value)]
        case _:
            return value


def public_options(raw: RawTable) -> tuple[tuple[str, str], ...]:
    """Return the options of a raw table that decide what is read, without credentials."""
    return tuple((k, v) for k, v in raw.options if not SECRETS.search(k))


def pin_raw(
    raw: RawTable,
    location: str,
    access: Mapping[str, str] | None = None,
    columns: Sequence[Column] = (),
) -> Pin:
    """Return the current version of a raw table.

    Parameters
    ----------
    location
        Absolute path or URI.
    access
        See `files.reached`; for files only.
    columns
        The declared columns.

    Raises
    ------
    StorageError
        There is no data, or it cannot be read correctly.
    """
    if raw.format == "delta":
        return pin_delta(location)
    if raw.format not in FILE_FORMATS:
        return Pin(None)
    files = _settled(location, access)
    if not files:
        raise StorageError(
            f"there is no data at {location}",
            hint=_WHERE,
        )
    single = files[0].location == location
    base = location.rpartition("/")[0] if single else location
    has_partitions = dict(raw.options).get("recursivefilelookup", "false").lower() != "true"
    locations = tuple(f.location for f in files)
    if not single and has_partitions:
        check_layout(locations, base)
    listing = [(f.location.removeprefix(base), f.bytes, f.changed_ns, f.inode) for f in files]
    kinds = {c.name.lower(): plain_type(c.type) for c in columns}
    texts = texts_by_column(locations, base) if has_partitions else {}
    # Earlier releases read other values from such directories, so tables with them are built again.
    read_since = [] if all(is_certain(kinds.get(n, "string"), t) for n, t in texts) else ["cast"]
    digest = hashlib.sha256(json.dumps([*listing, *read_since]).encode()).hexdigest()
    stamps = tuple((f.bytes, f.changed_ns, f.inode) for f in files)
    kind = OF_PARSED if raw.format in ("csv", "json") else OF_FILES
    size = sum(f.bytes for f in files)
    parted_at = base if has_partitions else None
    return Pin(f"{kind}{digest[:32]}", locations, parted_at, stamps, bytes=size)


def still_holds(pin: Pin, now: Pin) -> bool:
    """Whether the files of a pin are unchanged; there may be new ones.

    Examples
    --------
    >>> a, b = (1, 2, "x"), (1, 3, "y")
    >>> still_holds(Pin("v", ("f",), stamps=(a,)), Pin("w", ("e", "f"), stamps=(b, a)))
    True
    >>> still_holds(Pin("v", ("f",), stamps=(a,)), Pin("w", ("f",), stamps=(b,)))
    False
    """
    if pin.version == now.version:
        return True
    stamps = dict(zip(now.files or (), now.stamps, strict=True))
    return all(stamps.get(f) == t for f, t in zip(pin.files or (), pin.stamps, strict=True))


_TICK_S = 1.1
"""Object stores give times in seconds, so two changes within one second may look like one."""
_RECENT_S = 5.0
"""The age from which a change is certainly in an earlier second, even if clocks differ."""


def _settled(location: str, access: Mapping[str, str] | None) -> list[Found]:
    """Return the files of a location; if they have just changed, wait until that second is over.

    Raises
    ------
    StorageError
        They keep changing.
    """
    for _ in range(5):
        files = [
            f
            for f in list_files(location, access)
            if not _is_hidden(f.location.removeprefix(location))
        ]
        newest = max((f.changed_ns for f in files), default=0) / 1e9
        if is_local(location) or newest < time.time() - _RECENT_S:
            return files
        time.sleep(_TICK_S)
        if set(files) <= set(list_files(location, access)):
            return files
    raise StorageError(f"the data at {location} keeps changing", hint="try again later")


def _is_hidden(below: str) -> bool:
    """Whether Spark ignores a file at this path below the table's location."""
    # the name that Hadoop gives to files that are still being copied
    return below.endswith("._COPYING_") or any(map(is_hidden_name, below.split("/")))


def find_columns(raw: RawTable, location: str) -> tuple[Column, ...]:
    """Return the columns of a raw table that declares none, from the data's own metadata.

    Raises
    ------
    StorageError
        There is no data, or its format has no column types.
    """
    if raw.format == "delta":
        schema = json.loads(open_delta(location).schema().to_json())
        return columns_of_struct(schema)
    if raw.format != "parquet":
        raise StorageError(
            f"the columns of {raw.format} data must be declared",
            hint="CREATE TABLE name (column type, …) USING …",
        )
    pin = pin_raw(raw, location)
    assert pin.files
    parted = () if pin.base is None else partition_columns(pin.files, pin.base)
    names = {c.name.lower() for c in parted}  # they take precedence over those in files
    return (*(c for c in _parquet_columns(pin.files[0]) if c.name.lower() not in names), *parted)


# ------------------------------------------------------------------------------------------ delta


def open_delta(
    location: str, version: int | None = None, access: Mapping[str, str] | None = None
) -> Any:
    """Return the `deltalake.DeltaTable` at a location.

    Parameters
    ----------
    version
        None: the newest.
    access
        Options for its store, in addition to those of the environment.

    Raises
    ------
    GoneError
        There is a table, without this version.
    StorageError
        There is no table, or it cannot be opened.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri, options = delta_place(location)
    if access:
        options = {**(options or {}), **access}
    try:
        return ask(location, lambda: DeltaTable(uri, version=version, storage_options=options))
    except TableNotFoundError as error:
        if version is not None and is_delta(location, access):
            raise _gone(location, version) from error
        raise StorageError(
            f"there is no Delta table at {location}",
            hint=_WHERE,
        ) from error
    except (DeltaError, OSError) as error:
        if "catalog-managed table" in str(error):
            raise StorageError(
                f"the Delta table at {location} has commits that only its catalog knows"
                " (catalogManaged): not supported",
                hint="its owner can turn catalog-managed commits off",
            ) from error
        gap = _GAP.search(str(error))
        if gap:
            missing = int(gap[1]) + 1
            raise GoneError(
                f"the log of the Delta table at {location} lacks version {missing} and continues"
                f" with {gap[2]}",
                hint=f"restore _delta_log/{missing:020}.json, or read an earlier version",
            ) from error
        is_there = isinstance(error, OSError) or _BROKEN.search(str(error))
        if version is not None and not is_there:
            raise _gone(location, version) from error
        failed = f"cannot open the Delta table at {location}"
        if not access and (broken := _broken_file(location, str(error))):
            failed += f" because of {broken}"
        raise unreachable(location, error, failed) from error


def _broken_file(location: str, message: str) -> str | None:
    """Return the last broken file of a Delta table's log; None: there is none.

    Parameters
    ----------
    message
        The error of delta-rs.
    """
    log = f"{location}/_delta_log"
    if "_last_checkpoint" in message:
        return f"{log}/_last_checkpoint"
    kind, is_whole = (".json", _is_json) if "Json error" in message else (".parquet", _is_parquet)
    with suppress(StorageError):
        for file in reversed(list_files(log)):
            if file.name.endswith(kind) and not is_whole(file.location):
                return file.location
    return None


def _is_json(location: str) -> bool:
    """Whether all lines of a file are objects in JSON."""
    lines = read_bytes(location).splitlines()
    try:
        return all(isinstance(json.loads(line), dict) for line in filter(bytes.strip, lines))
    except ValueError:
        return False


def _is_parquet(location: str) -> bool:
    """Whether all of a file can be read as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reached(location) as (system, path), system.open_input_file(path) as file:
        try:
            for _ in pq.ParquetFile(file).iter_batches(use_threads=False):
                pass
        except (pa.ArrowException, OSError, ValueError):
            return False
    return True


_GAP = re.compile(r"(?s)(?:found gap|Gap between).*?version:? (\d+).*(?:version:|commit) (\d+)")
_BROKEN = re.compile(
    r"\b(?:Json|Arrow|Parquet) error|Unsupported:|catalog-managed|Invalid Checkpoint"
)
"""The messages of delta-rs for a log without a commit, and for an unreadable one."""


def is_delta(location: str, access: Mapping[str, str] | None = None) -> bool:
    """Whether there is any version of a Delta table at a location."""
    try:
        open_delta(location, None, access)
    except StorageError:
        return False
    return True


def _gone(location: str, version: int) -> GoneError:
    return GoneError(
        f"version {version} of the Delta table at {location} is missing",
        hint="its log may have been cleaned; the current table can be read again in full",
    )


def check_commits(table: Any, location: str, system: Any, root: str) -> None:
    """Raise if a commit of a Delta table is empty: its rows would be missing silently.

    Parameters
    ----------
    system, root
        The file system of the table, and the prefix of its files' paths there.

    Raises
    ------
    StorageError
        A commit was not written completely.
    """
    from pyarrow import fs

    for file in system.get_file_info(fs.FileSelector(f"{root}_delta_log")):
        number = _COMMIT.fullmatch(file.base_name)
        if number and file.size == 0 and int(number[1]) <= table.version():
            raise StorageError(
                f"{location}/_delta_log/{file.base_name} is empty: it was not fully written,"
                " so its content is unknown",
                hint="have this commit of the Delta table rewritten",
            )


def partition_texts(table: Any, location: str, system: Any, root: str) -> dict[str, Texts]:
    """Return the partition values of a Delta table's files, as its log writes them, by path.

    delta-rs returns typed values, which do not show whether a time had a zone.

    Parameters
    ----------
    system, root
        The `pyarrow.fs.FileSystem` of the table, and the prefix of its files' paths there.

    Raises
    ------
    StorageError
        The log cannot be read, or lacks a file of the table.
    """
    import pyarrow as pa
    from pyarrow import fs

    log = f"{root}_delta_log"
    names = [f.base_name for f in system.get_file_info(fs.FileSelector(log))]
    version: int = table.version()
    start, checkpoint = _checkpoint(names, version)
    by_path: dict[str, Texts] = {}
    try:
        actions = [a for n in checkpoint for a in _checkpointed(system, f"{log}/{n}")]
        sidecars = {a["sidecar"]["path"] for a in actions if a.get("sidecar")}
        for name in sidecars:
            place = name if "/" in name else f"{log}/_sidecars/{name}"
            actions += _checkpointed(system, place)
        for number in range(start, version + 1):
            actions += _json_actions(system, f"{log}/{number:020}.json")
        for action in actions:
            if add := action.get("add"):
                by_path[add["path"]] = dict(add["partitionValues"])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        failed = f"cannot read the log of the Delta table at {location}"
        raise unreachable(location, error, failed) from error
    paths: list[str] = file_actions(table)["path"].to_pylist()
    lost = next((path for path in paths if path not in by_path), None)
    if lost is not None:
        raise StorageError(
            f"the log of the Delta table at {location} lacks the partition of {lost}",
            hint="have a checkpoint of the table rewritten",
        )
    return {path: by_path[path] for path in paths}


def _checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Return the number of the first commit after the last complete checkpoint, and its files."""
    parts: dict[tuple[int, str], list[str]] = {}
    for name in names:
        if (part := _CHECKPOINT.fullmatch(name)) and int(part[1]) <= version:
            parts.setdefault((int(part[1]), part[2] or name), []).append(name)
    whole = [
        (number, sorted(files))
        for (number, of), files in parts.items()
        if not of.isdigit() or len(files) == int(of)
    ]
    if not whole:
        return 0, []
    number, files = max(whole)
    return number + 1, files


def _checkpointed(system: Any, path: str) -> list[dict[str, Any]]:
    """Return the files listed in a checkpoint, or in a part of it."""
    import pyarrow.parquet as pq

    if path.endswith(".json"):
        return _json_actions(system, path)
    columns = ["add.path", "add.partitionValues", "sidecar.path"]
    with system.open_input_file(path) as file:
        return pq.ParquetFile(file).read(columns, use_threads=False).to_pylist()


def _json_actions(system: Any, path: str) -> list[dict[str, Any]]:
    with system.open_input_stream(path) as stream:
        written: bytes = stream.read()
    return [json.loads(line) for line in written.splitlines() if line.strip()]


Texts = dict[str, str | None]
"""The partition values of a file, by the log's names of columns."""

_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)"
)
_COMMIT = re.compile(r"(\d{20})\.json")


def pin_delta(location: str, version: int | None = None) -> Pin:
    """Return a version of a Delta table.

    Parameters
    ----------
    version
        None: the newest.

    Raises
    ------
    GoneError
        There is a table, without this version.
    StorageError
        There is no table, or it cannot be read correctly.
    """
    table = open_delta(location, version)
    with reached(location) as (system, root):
        check_commits(table, location, system, root.rstrip("/") + "/")
    unusual = unusual_features(table, location)
    if not unusual <= BY_LOG:
        check_readable(table, location)
    parted = table.metadata().partition_columns
    by_log = bool(unusual) or (bool(parted) and not _directories_have_values(table, location))
    files = _live(table)
    rows = {file_location(p, location): n for p, (_, n) in sorted(files.items())}
    # In a table without partitions, names of directories have no meaning.
    base = location if parted and not by_log else None
    fields = json.loads(table.schema().to_json())["fields"]
    types = {f["name"].lower(): f["type"] if isinstance(f["type"], str) else "" for f in fields}
    marks = marks_of(table, location) if by_log else []
    return Pin(
        delta_version(table, [*files, *marks]),
        None if by_log else tuple(rows),
        base,
        rows=rows,
        commit=table.version(),
        types=types,
        bytes=sum(size for size, _ in files.values()),
        by_log=by_log,
    )


def delta_version(table: Any, paths: Iterable[str]) -> str:
    """Return the name of a version of a Delta table that other programs write.

    Parameters
    ----------
    paths
        See `digest_of_files`.
    """
    return f"{OF_DELTA}{table.version()}:{table.metadata().id}:{digest_of_files(paths)}"


def digest_of_files(paths: Iterable[str]) -> str:
    """Return a digest that differs between a version and one of a restored, rewritten log.

    Parameters
    ----------
    paths
        The paths of all its files, as in the log; names of files are unique.
    """
    names = sorted(paths)
    # Earlier releases lost the rows of hidden files, so tables built from them have other versions.
    read_since = ["hidden files are read"] if any(map(is_hidden_file, names)) else []
    return hashlib.sha256(json.dumps(names + read_since).encode()).hexdigest()[:12]


def is_hidden_file(path: str) -> bool:
    """Whether Spark's listing skips a file of a Delta table by default because of its name.

    Parameters
    ----------
    path
        The path as the table's log quotes it.

    Examples
    --------
    >>> [is_hidden_file(p) for p in ("_a.parquet", "x/%2Eb", "_x/a.parquet", "_k=1")]
    [True, True, False, False]
    """
    return is_hidden_name(unquote(path).rpartition("/")[2])


def is_hidden_name(name: str) -> bool:
    """Whether Spark's listing skips a file or directory of this name by default.

    Parameters
    ----------
    name
        The name as the file system has it: a `%` in it is just a character.

    Examples
    --------
    >>> [is_hidden_name(n) for n in ("_a.parquet", ".b", "_k=1", "url=%2F_next", "%5Fa.csv")]
    [True, True, False, False, False]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def promised_rows(table: Any) -> dict[str, int | None]:
    """Return the files of a Delta table, as in its log, with their numbers of rows.

    Rows that deletion vectors delete are included.
    """
    return {path: n for path, (_, n) in _live(table).items()}


def _live(table: Any) -> dict[str, tuple[int, int | None]]:
    """Return the files of a Delta table, as in its log, with their bytes and numbers of rows."""
    actions = file_actions(table)
    paths: list[str] = actions["path"].to_pylist()
    counted = "num_records" in actions.column_names
    rows = actions["num_records"].to_pylist() if counted else [None] * len(paths)
    sizes = actions["size_bytes"].to_pylist()
    return dict(zip(paths, zip(sizes, rows, strict=True), strict=True))


def file_location(path: str, base: str) -> str:
    """Return the location of a file that Delta's log names by a quoted relative path or URI."""
    plain = unquote(path)
    if path.startswith("file:"):
        return re.sub(r"^file:(//[^/]*)?", "", plain)
    return plain if scheme_of(path) or plain.startswith("/") else f"{base}/{plain}"


def _directories_have_values(table: Any, location: str) -> bool:
    """Whether Spark reads the partition values of a Delta table from its directories.

    delta-rs quotes some characters so that Spark reads others.
    """
    moments = _partition_moments(table)
    texts: dict[str, Texts] = {}
    if moments:
        with reached(location) as (system, root):
            texts = partition_texts(table, location, system, root.rstrip("/") + "/")
    for action in file_actions(table, flatten=False).to_pylist():
        spelled = dict(p.split("=", 1) for p in action["path"].split("/")[:-1] if "=" in p)
        values = action.get("partition") or action.get("partition_values") or {}
        for name, value in values.items():
            written = NO_VALUE if value is None else str(value)
            written = written.lower() if isinstance(value, bool) else written
            if name in moments and value is not None:
                written = texts[action["path"]][name]
            if unescaped(unquote(spelled.get(name, ""))) != written:
                return False
    return True


def _partition_moments(table: Any) -> frozenset[str]:
    """Return the partition columns of type `TIMESTAMP`."""
    parted = table.metadata().partition_columns
    fields = json.loads(table.schema().to_json())["fields"] if parted else ()
    return frozenset(f["name"] for f in fields if f["type"] == "timestamp") & {*parted}


# ---------------------------------------------------------------------------------------- columns


def _parquet_columns(path: str) -> tuple[Column, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reached(path) as (system, inner):
        try:
            schema = pq.read_schema(inner, filesystem=system)
        except pa.ArrowInvalid as error:
            raise StorageError(f"{path} is not a Parquet file: {error}") from error
    by_spark = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    if by_spark:
        return columns_of_struct(json.loads(by_spark))
    return tuple(Column(f.name, type_of_arrow(f.type, f"{path}: column {f.name}")) for f in schema)
