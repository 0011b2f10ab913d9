"""Raw tables: which columns they have, and which version of their data there is now.

No Spark and no JVM. The invariant: a `Pin` names the very files that are read, and two pins of
one raw table have the same version only if they hold the same data.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from persist_assets.errors import GoneError, StorageError
from persist_assets.model import FILE_FORMATS, Column
from persist_assets.storage.files import delta_place, list_files, reached, unreachable
from persist_assets.storage.types import columns_of_struct, type_of_arrow
from persist_assets.stores import is_local, scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.model import RawTable
    from persist_assets.storage.files import Found

SECRETS = re.compile(r"password|token|secret|access_?key|account_?key|user|credential", re.I)
"""Options whose names match say who reads, not what is read: they enter no digest and no log."""

OF_FILES, OF_DELTA = "files:", "delta:"
"""What versions begin with: a digest of a listing; the number of a commit, the table's id and, of
data of others, a digest of its files."""

_WHERE = "check where the table is said to be: its LOCATION, or `uri`"
_READABLE_FEATURES = frozenset(("timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"))
"""Features of Delta tables under which their Parquet files alone are their rows."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A version of a raw table's data.

    Attributes
    ----------
    version
        None when the data cannot be versioned (``jdbc``): every build may see other rows.
    files
        What to read, or None when it is not files.
    base
        The directory whose sub-directories are partition columns, if any.
    told
        Of plain files, by what each is known to be the same: its bytes, time of change, number.
    """

    version: str | None
    files: tuple[str, ...] | None = None
    base: str | None = None
    told: tuple[tuple[int, int, str], ...] = ()


def public_options(raw: RawTable) -> tuple[tuple[str, str], ...]:
    """Return the options of a raw table that say what is read, without those that are secret."""
    return tuple((k, v) for k, v in raw.options if not SECRETS.search(k))


def pin_raw(raw: RawTable, location: str) -> Pin:
    """Return the present version of a raw table.

    Parameters
    ----------
    location
        Absolute path or URI.

    Raises
    ------
    StorageError
        There is no data, or it cannot be read correctly.
    """
    if raw.format == "delta":
        return _pin_delta(location)
    if raw.format not in FILE_FORMATS:
        return Pin(None)
    found = _settled(location)
    if not found:
        raise StorageError(
            f"there is no data at {location}",
            hint=_WHERE,
        )
    single = found[0].location == location
    base = location.rpartition("/")[0] if single else location
    told = [(f.location.removeprefix(base), f.bytes, f.changed_ns, f.inode) for f in found]
    told_digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    known = tuple((f.bytes, f.changed_ns, f.inode) for f in found)
    return Pin(f"{OF_FILES}{told_digest[:32]}", tuple(f.location for f in found), base, known)


def still_holds(pin: Pin, now: Pin) -> bool:
    """Whether the files of a pin are there as they were; others may have come since.

    Examples
    --------
    >>> a, b = (1, 2, "x"), (1, 3, "y")
    >>> still_holds(Pin("v", ("f",), told=(a,)), Pin("w", ("e", "f"), told=(b, a)))
    True
    >>> still_holds(Pin("v", ("f",), told=(a,)), Pin("w", ("f",), told=(b,)))
    False
    """
    if pin.version == now.version:
        return True
    there = dict(zip(now.files or (), now.told, strict=True))
    return all(there.get(f) == t for f, t in zip(pin.files or (), pin.told, strict=True))


_TICK_S = 1.1
"""Object stores tell times to the second, so that two changes within one may look like one."""
_RECENT_S = 5.0
"""How old a change has to be for certain to be of another second, clocks being what they are."""


def _settled(location: str) -> list[Found]:
    """Return the files of a location; where they just changed, when their second is over.

    Raises
    ------
    StorageError
        They keep changing.
    """
    for _ in range(5):
        found = [
            f for f in list_files(location) if not _is_hidden(f.location.removeprefix(location))
        ]
        newest = max((f.changed_ns for f in found), default=0) / 1e9
        if is_local(location) or newest < time.time() - _RECENT_S:
            return found
        time.sleep(_TICK_S)
        if set(found) <= set(list_files(location)):
            return found
    raise StorageError(f"the data at {location} keeps changing", hint="run it again later")


def _is_hidden(below: str) -> bool:
    """Whether Spark ignores a file at this path below the table's location."""
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in below.split("/")
    )


def find_columns(raw: RawTable, location: str) -> tuple[Column, ...]:
    """Return the columns of a raw table that declares none, from the data's own metadata.

    Raises
    ------
    StorageError
        There is no data, or its format does not tell.
    """
    if raw.format == "delta":
        schema = json.loads(open_delta(location).schema().to_json())
        return columns_of_struct(schema)
    if raw.format != "parquet":
        raise StorageError(
            f"the columns of {raw.format} data have to be declared",
            hint="CREATE TABLE name (column type, …) USING …",
        )
    pin = pin_raw(raw, location)
    assert pin.files
    return (*_parquet_columns(pin.files[0]), *_partition_columns(pin.files, pin.base or ""))


def missing_columns(pin: Pin, raw: RawTable, columns: Sequence[Column]) -> list[str]:
    """Return the declared columns that the data does not have; Spark would read NULLs."""
    if raw.format not in ("parquet", "delta") or not pin.files:
        return []
    there = {c.name.lower() for c in _parquet_columns(pin.files[0])}
    there |= {c.name.lower() for c in _partition_columns(pin.files, pin.base or "")}
    return [c.name for c in columns if c.name.lower() not in there]


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
        How its store is reached, beside what the environment says.

    Raises
    ------
    GoneError
        There is a table, without this version.
    StorageError
        There is none, or it cannot be opened.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    uri, options = delta_place(location)
    if access:
        options = {**(options or {}), **access}
    try:
        return DeltaTable(uri, version=version, storage_options=options)
    except TableNotFoundError as error:
        if version is not None and is_delta(location, access):
            raise _gone(location, version) from error
        raise StorageError(
            f"there is no Delta table at {location}",
            hint=_WHERE,
        ) from error
    except (DeltaError, OSError) as error:
        gap = _GAP.search(str(error))
        if gap:
            missing = int(gap[1]) + 1
            raise GoneError(
                f"the log of the Delta table at {location} has no version {missing}, and goes on"
                f" with {gap[2]}",
                hint=f"bring _delta_log/{missing:020}.json back, or read an earlier version",
            ) from error
        is_there = isinstance(error, OSError) or _BROKEN.search(str(error))
        if version is not None and not is_there:
            raise _gone(location, version) from error
        failed = f"the Delta table at {location} cannot be opened"
        if not access and (broken := _broken_file(location, str(error))):
            failed += f" for {broken}"
        raise unreachable(location, error, failed) from error


def _broken_file(location: str, said: str) -> str | None:
    """Return the last file of a Delta table's log that is broken, None where none is found.

    Parameters
    ----------
    said
        What delta-rs says of the log.
    """
    log = f"{location}/_delta_log"
    if "_last_checkpoint" in said:
        return f"{log}/_last_checkpoint"
    kind, is_whole = (".json", _is_json) if "Json error" in said else (".parquet", _is_parquet)
    with suppress(StorageError):
        for file in reversed(list_files(log)):
            if file.name.endswith(kind) and not is_whole(file.location):
                return file.location
    return None


def _is_json(location: str) -> bool:
    """Whether all lines of a file are objects in JSON."""
    with reached(location) as (system, path), system.open_input_stream(path) as stream:
        text: bytes = stream.read()
    try:
        return all(
            isinstance(json.loads(line), dict) for line in filter(bytes.strip, text.splitlines())
        )
    except ValueError:
        return False


def _is_parquet(location: str) -> bool:
    """Whether all of a file can be read as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reached(location) as (system, path), system.open_input_file(path) as file:
        try:
            for _ in pq.ParquetFile(file).iter_batches():
                pass
        except (pa.ArrowException, OSError, ValueError):
            return False
    return True


_GAP = re.compile(r"(?s)(?:found gap|Gap between).*?version:? (\d+).*(?:version:|commit) (\d+)")
_BROKEN = re.compile(
    r"\b(?:Json|Arrow|Parquet) error|Unsupported:|catalog-managed|Invalid Checkpoint"
)
"""What delta-rs says of a log without a commit, and of one that it cannot read."""


def is_delta(location: str, access: Mapping[str, str] | None = None) -> bool:
    """Whether there is any version of a Delta table at a location."""
    try:
        open_delta(location, None, access)
    except StorageError:
        return False
    return True


def _gone(location: str, version: int) -> GoneError:
    return GoneError(
        f"version {version} of the Delta table at {location} is not there",
        hint="its log may have been cleaned; what is there can be read again as a whole",
    )


def check_commits(table: Any, location: str, system: Any, root: str) -> None:
    """Raise where a commit of a Delta table is empty: nobody would tell that its rows lack.

    Parameters
    ----------
    system, root
        The file system that the table is in, and what is before the paths of its files there.

    Raises
    ------
    StorageError
        One was not written to its end.
    """
    from pyarrow import fs

    for file in system.get_file_info(fs.FileSelector(f"{root}_delta_log")):
        number = _COMMIT.fullmatch(file.base_name)
        if number and file.size == 0 and int(number[1]) <= table.version():
            raise StorageError(
                f"{location}/_delta_log/{file.base_name} is empty: it was not written to its end,"
                " and what it says is not known",
                hint="have this commit of the Delta table written again",
            )


def deletion_vectors(table: Any, location: str) -> Any:
    """Return the `pyarrow.RecordBatchReader` of a Delta table's deletion vectors.

    Raises
    ------
    GoneError
        A file of them is gone.
    StorageError
        One cannot be read.
    """
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    try:
        return pa.RecordBatchReader.from_stream(table.deletion_vectors())
    except (DeltaError, OSError) as error:
        failed = f"a deletion vector of the Delta table at {location} cannot be read"
        raised = unreachable(location, error, failed)
        raise GoneError(raised.message) if _LOST.search(str(error)) else raised from error


_COMMIT = re.compile(r"(\d{20})\.json")
_LOST = re.compile(r"(?i)not found|no such file")


def _pin_delta(location: str) -> Pin:
    table = open_delta(location)
    with reached(location) as (system, root):
        check_commits(table, location, system, root.rstrip("/") + "/")
    metadata = table.metadata()
    protocol = table.protocol()
    features: list[str] = list(protocol.reader_features or ())
    unknown = set(features) - _READABLE_FEATURES
    if metadata.configuration.get("delta.columnMapping.mode", "none") == "none":
        unknown.discard("columnMapping")
    else:
        unknown.add("columnMapping")
    if "deletionVectors" in unknown and not _has_deletion_vectors(table, location):
        unknown.discard("deletionVectors")
    if unknown:
        raise StorageError(
            f"the Delta table at {location} uses {', '.join(sorted(unknown))}: not supported",
            hint="its Parquet files alone would be wrong rows; write it without this feature",
        )
    paths = _paths(table)
    if metadata.partition_columns:
        _refuse_unusual_partitions(table, location)
    version = f"{OF_DELTA}{table.version()}:{metadata.id}:{digest_of_files(paths)}"
    return Pin(version, tuple(sorted(file_location(p, location) for p in paths)), location)


def digest_of_files(paths: Iterable[str]) -> str:
    """Return what tells a version of a Delta table from one of a log put back and written on.

    Parameters
    ----------
    paths
        Of all its files, as the log has them: each has another name than every other.
    """
    return hashlib.sha256(json.dumps(sorted(paths)).encode()).hexdigest()[:12]


def _has_deletion_vectors(table: Any, location: str) -> bool:
    return any(batch.num_rows for batch in deletion_vectors(table, location))


def _paths(table: Any) -> list[str]:
    """Return the files of a Delta table, as its log has them."""
    import pyarrow as pa

    return pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()


def file_location(path: str, base: str) -> str:
    """Return where a file is that Delta's log names by a relative path or a URI, both quoted."""
    plain = unquote(path)
    if path.startswith("file:"):
        return re.sub(r"^file:(//[^/]*)?", "", plain)
    return plain if scheme_of(path) or plain.startswith("/") else f"{base}/{plain}"


def _refuse_unusual_partitions(table: Any, location: str) -> None:
    """Refuse a table whose directories do not spell its partition values, as Spark reads them."""
    import pyarrow as pa

    for action in pa.table(table.get_add_actions(flatten=False)).to_pylist():
        spelled = dict(p.split("=", 1) for p in action["path"].split("/")[:-1] if "=" in p)
        values = action.get("partition") or action.get("partition_values") or {}
        for name, value in values.items():
            written = "__HIVE_DEFAULT_PARTITION__" if value is None else str(value)
            written = written.lower() if isinstance(value, bool) else written
            if unquote(unquote(spelled.get(name, ""))) != written:
                raise StorageError(
                    f"directories of the Delta table at {location} do not spell {name}'s values",
                    hint="only the usual layout, name=value, can be read",
                )


# ---------------------------------------------------------------------------------------- columns


def _parquet_columns(path: str) -> tuple[Column, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reached(path) as (system, inner):
        try:
            schema = pq.read_schema(inner, filesystem=system)
        except pa.ArrowInvalid as error:
            raise StorageError(f"{path} is not Parquet: {error}") from error
    by_spark = (schema.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata")
    if by_spark:
        return columns_of_struct(json.loads(by_spark))
    return tuple(Column(f.name, type_of_arrow(f.type, f"{path}: column {f.name}")) for f in schema)


def _partition_columns(files: Sequence[str], base: str) -> tuple[Column, ...]:
    """Return the columns that directories named ``name=value`` stand for, typed as Spark does."""
    values: dict[str, set[str]] = {}
    for path in files:
        for part in path.removeprefix(base).split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals:
                values.setdefault(name, set()).add(unquote(value))
    return tuple(Column(name, _partition_type(seen)) for name, seen in values.items())


def _partition_type(values: set[str]) -> str:
    known = values - {"__HIVE_DEFAULT_PARTITION__"}
    if known and all(re.fullmatch(r"-?\d{1,18}", v) for v in known):
        return "int" if all(abs(int(v)) < 2**31 for v in known) else "bigint"
    if known and all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", v) for v in known):
        return "date"
    return "string"
