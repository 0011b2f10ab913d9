"""Files in any store: the one way to reach, list and delete the files of a location.

`core/object_stores.py` defines locations, and the options of delta-rs and Spark for them. This
module reaches them from this process, and reports the errors.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

from persist_assets.core.errors import SettingsError, StorageError
from persist_assets.core.object_stores import (
    CONNECT_S,
    PATIENCE,
    Patience,
    Store,
    any_store,
    bucket_of,
    delta_options,
    delta_uri,
    full_disk,
    hint_about,
    is_full,
    is_local,
    scheme_of,
    unfit_for_tables,
    unknown_scheme,
)
from persist_assets.core.trust import permit
from persist_assets.storage.waiting import ask, be_patient, patience_now

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """An existing file.

    Attributes
    ----------
    location
        Absolute path or URI.
    changed_ns
        The time of its last change, in nanoseconds since 1970.
    inode
        For local files, a number that changes when the file is replaced, even if its size and time
        stay the same.
    """

    location: str
    bytes: int
    changed_ns: int
    inode: str = ""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.location.rpartition("/")[2]


# ----------------------------------------------------------------------------------------- stores

_described: dict[str, Store] = {}
_lock = threading.Lock()


def know_stores(stores: Iterable[Store], patience: Patience = PATIENCE) -> None:
    """Set how buckets are reached, from now on and in the whole process.

    Locations are passed on as text, so one text means one place. The latest patience applies to all
    stores.

    Raises
    ------
    SettingsError
        A bucket was described differently before, by a project that means another place.
    """
    with _lock:
        for store in stores:
            if _described.setdefault(store.bucket, store) != store:
                raise SettingsError(
                    f"two projects in one process describe the bucket `{store.bucket}` differently",
                    hint="use the same description, or load them in separate processes",
                )
    be_patient(patience)


def _store(location: str) -> Store | None:
    bucket = bucket_of(location)
    return None if bucket is None else _described.get(bucket) or any_store(os.environ)


def delta_place(location: str) -> tuple[str, dict[str, str] | None]:
    """Return the URI and the `storage_options` with which delta-rs reaches a location.

    Raises
    ------
    StorageError
        No table can be at this location.
    """
    unfit = unfit_for_tables(location)
    if unfit:
        raise StorageError(f"delta-rs misreads `{unfit}` in {location}", hint="move the table")
    _check_scheme(location)
    permit_store(location)
    return delta_uri(location), delta_options(location, _store(location), patience_now())


def permit_store(location: str) -> None:
    """Refuse a location in a store that must not be reached; local files may always be read.

    Raises
    ------
    UntrustedError
        See `trust.permit`.
    """
    if scheme_of(location) in ("", "file"):
        return
    permit(location)
    store = _store(location)
    if store is not None and store.endpoint not in (None, any_store(os.environ).endpoint):
        permit(store.endpoint)


def _check_scheme(location: str) -> None:
    wrong = unknown_scheme(location)
    if wrong:
        raise StorageError(wrong[0], hint=wrong[1])


# ---------------------------------------------------------------------------------------- reaching


@contextmanager
def reached(location: str, access: Mapping[str, str] | None = None) -> Generator[tuple[Any, str]]:
    """Yield the `pyarrow.fs.FileSystem` of a location, and its path there.

    Read rows of its files with ``use_threads=False``: in object stores, their bytes are objects of
    Python. If a thread of Arrow releases them while the process exits, it ends with a fault.

    Parameters
    ----------
    access
        The options of an S3-compatible store by their canonical names, in addition to those of the
        environment; see `external_options.STORAGE`.

    Raises
    ------
    StorageError
        It cannot be reached, or the block fails to read or write it.
    UntrustedError
        See `trust.permit`.
    """
    from pyarrow import ArrowException

    _check_scheme(location)
    permit_store(location)
    try:
        if is_local(location):
            yield _file_system(location)
        else:
            yield _patient(location, access or {})
    except (ArrowException, OSError) as error:
        raise unreachable(location, error) from error


def _patient(location: str, access: Mapping[str, str]) -> tuple[Any, str]:
    from persist_assets.storage.patient import patient

    system, path = ask(location, lambda: _file_system(location, access), bounded=True)
    return patient(system, location), path


def _file_system(location: str, access: Mapping[str, str] | None = None) -> tuple[Any, str]:
    from pyarrow import fs

    store, answer_s = _store(location), patience_now().answer_s
    if store is not None:
        # Not from the URI, in which it would be quoted, unlike file names.
        path = location.partition("://")[2]
        if access:
            return _s3_with(access, store, answer_s), path
        return _s3(store.endpoint, store.region, answer_s), path
    if is_local(location):
        return fs.LocalFileSystem(), location
    start = location.index("://") + 3
    uri = location[:start] + quote(location[start:], safe="/@:")
    if scheme_of(location) == "gs":
        uri += f"?retry_limit_seconds={answer_s}"
    return fs.FileSystem.from_uri(uri)


@lru_cache
def _s3(endpoint: str | None, region: str | None, answer_s: int) -> Any:
    """Return the file system of an endpoint; it is cached because it keeps connections."""
    from pyarrow import fs

    return fs.S3FileSystem(**_s3_options(endpoint, region, answer_s))


def _s3_with(access: Mapping[str, str], store: Store, answer_s: int) -> Any:
    """Return a file system with credentials of its own; it is not cached, and so are they."""
    from pyarrow import fs

    endpoint = access.get("aws_endpoint", store.endpoint)
    options = _s3_options(endpoint, access.get("aws_region", store.region), answer_s)
    options |= {_S3_KEYS[name]: value for name, value in access.items() if name in _S3_KEYS}
    if "aws_skip_signature" in access:
        options["anonymous"] = True
    return fs.S3FileSystem(**options)


_S3_KEYS = {
    "aws_access_key_id": "access_key",
    "aws_secret_access_key": "secret_key",
    "aws_session_token": "session_token",
}


def _s3_options(endpoint: str | None, region: str | None, answer_s: int) -> dict[str, Any]:
    # By default it gives up three attempts, each after three seconds.
    limits = {"connect_timeout": min(CONNECT_S, answer_s), "request_timeout": answer_s / _ATTEMPTS}
    if endpoint is None:
        return {"region": region, **limits}
    return {
        "region": region or "us-east-1",
        "scheme": urlsplit(endpoint).scheme,
        "endpoint_override": endpoint.partition("://")[2].rstrip("/"),
        **limits,
    }


_ATTEMPTS = 3
"""The default number of attempts of pyarrow's S3 requests."""
_RETRIES = re.compile(r", max_retries: \d+, retry_timeout: [\w.]+ ?")
"""The settings of delta-rs, which it appends to the messages of a store."""


def unreachable(location: str, error: BaseException, failed: str = "") -> StorageError:
    """Return the error to raise for an error of delta-rs or pyarrow at a location.

    Parameters
    ----------
    failed
        The sentence that says what failed; default: the location cannot be reached.
    """
    message = re.sub(r"\x1b\[\d*m", "", getattr(error, "strerror", None) or str(error))
    message = re.sub(r"(?s)\n\s*0: .*", "", message)  # where in delta-rs it was
    message = re.sub(
        r"(?s)<\?xml.*?<Code>(.*?)</Code>.*?<Message>(.*?)</Message>.*", r"\1: \2", message
    )
    message = re.sub(r"\s*\n\s*(?:↳\s*)?", ": ", message.strip()) or type(error).__name__
    message = _RETRIES.sub("", message)
    if is_local(location) and is_full(message):
        return full_disk(
            _directory(location), f"{failed or 'it cannot be written'}: {message[:600]}"
        )
    hint = None if is_local(location) else hint_about(message)
    return StorageError(f"{failed or f'cannot reach {location}'}: {message[:600]}", hint=hint)


def _directory(path: str) -> str:
    """Return the nearest existing directory at or above a path."""
    while path not in ("/", "") and not os.path.isdir(path):
        path = os.path.dirname(path)
    return path or "/"


def list_files(location: str, access: Mapping[str, str] | None = None) -> list[Found]:
    """Return the file at a location, or all files at any depth below it, sorted; maybe none.

    Parameters
    ----------
    access
        See `reached`.

    Raises
    ------
    StorageError
        It cannot be reached.
    """
    from pyarrow import fs

    with reached(location, access) as (system, path):
        path = path.rstrip("/") or "/"
        itself = system.get_file_info(path)
        if itself.type == fs.FileType.NotFound:
            _check_bucket(location, system)
            return []
        below = (
            [itself]
            if itself.is_file
            else system.get_file_info(fs.FileSelector(path, recursive=True))
        )
    local = is_local(location)
    return sorted(
        Found(
            location.rstrip("/") + f.path.removeprefix(path),
            int(f.size or 0),
            int(f.mtime_ns or 0),
            _inode(f.path) if local else "",
        )
        for f in below
        if f.is_file
    )


def _check_bucket(location: str, system: Any) -> None:
    """Raise if the bucket does not exist; pyarrow treats it as an empty one."""
    from pyarrow import fs

    bucket = bucket_of(location)
    if bucket and system.get_file_info(bucket).type == fs.FileType.NotFound:
        raise OSError(f"NoSuchBucket: there is no bucket `{bucket}`")


def _inode(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_ctime_ns}"


def file_exists(location: str) -> bool:
    """Whether a file exists at a location.

    Raises
    ------
    StorageError
        It cannot be reached.
    """
    with reached(location) as (system, path):
        return bool(system.get_file_info(path).is_file)


def copy_file(source: str, target: str) -> None:
    """Copy a file, within a store or from one to another; directories are made.

    Raises
    ------
    StorageError
        It cannot be copied.
    """
    with reached(source) as (system, path), reached(target) as (other, place):
        if is_local(target):
            os.makedirs(os.path.dirname(place), exist_ok=True)
        if system == other:
            system.copy_file(path, place)
            return
        with system.open_input_stream(path) as stream, other.open_output_stream(place) as out:
            while block := stream.read(_BLOCK_BYTES):
                out.write(block)


_BLOCK_BYTES = 8 << 20


def read_bytes(location: str) -> bytes:
    """Return the content of a file.

    Raises
    ------
    StorageError
        It cannot be read.
    """
    with reached(location) as (system, path), system.open_input_stream(path) as stream:
        return stream.read()


def write_text(location: str, text: str) -> None:
    """Write a file that readers see completely or not at all; directories are made.

    Raises
    ------
    StorageError
        It cannot be written.
    """
    with reached(location) as (system, path):
        if not is_local(location):
            with system.open_output_stream(path) as stream:  # an object appears when it is closed
                stream.write(text.encode())
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = f"{path}.{uuid4().hex}.part"
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


def list_own(location: str) -> list[Found]:
    """Return all files at any depth below a directory, sorted, without following symbolic links.

    These files may be deleted; `list_files` returns the files that may be read.

    Raises
    ------
    StorageError
        It cannot be reached.
    """
    if not is_local(location):
        return list_files(location)
    if os.path.islink(location):
        return []
    files: list[Found] = []
    for directory, _, names in os.walk(location):
        for name in names:
            path = f"{directory}/{name}"
            with suppress(FileNotFoundError):
                facts = os.lstat(path)
                if stat.S_ISREG(facts.st_mode):
                    files.append(Found(path, facts.st_size, facts.st_mtime_ns, _inode(path)))
    return sorted(files)


def is_linked(location: str, within: str) -> bool:
    """Whether a symbolic link is on the path from a parent directory to a location."""
    below = location.removeprefix(f"{within.rstrip('/')}/")
    if not is_local(location) or below == location:
        return False
    parts = below.strip("/").split("/")
    ways = ("/".join((within.rstrip("/"), *parts[: n + 1])) for n in range(len(parts)))
    return any(map(os.path.islink, ways))


def delete_directory(location: str) -> None:
    """Delete a directory and its content, if it exists, without following symbolic links.

    If a link is in its place, the link stays, because it is not ours.

    Raises
    ------
    StorageError
        It cannot be deleted.
    """
    if is_local(location):
        if os.path.islink(location):
            return
        try:
            shutil.rmtree(location)
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreachable(location, error) from error
        return
    with reached(location) as (system, path):
        try:
            system.delete_dir(path)
        except FileNotFoundError:
            return


def delete_file(location: str) -> None:
    """Delete a file, if it exists."""
    with reached(location) as (system, path):
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return


def delete_empty(location: str) -> None:
    """Delete the directories at and below a location that contain no files."""
    if is_local(location):
        for directory, _, _ in os.walk(location, topdown=False):
            with suppress(OSError):  # it holds something, whoever put it there this moment
                os.rmdir(directory)


def stored_schema(system: Any, path: str) -> Any:
    """Return the `pyarrow.Schema` of a Parquet file; see `stored_rows`."""
    return read_footer(system, path).schema.to_arrow_schema()


def stored_rows(system: Any, path: str) -> int:
    """Return the number of rows of a Parquet file, from its footer.

    Parameters
    ----------
    system, path
        The `pyarrow.fs.FileSystem` of the file, and its path there.

    Raises
    ------
    StorageError
        It is not Parquet.
    """
    return int(read_footer(system, path).num_rows)


def read_footer(
    system: Any, path: str, *, location: str | None = None, hint: str | None = None
) -> Any:
    """Return the `pyarrow.parquet.FileMetaData` of a file.

    Parameters
    ----------
    system, path
        See `stored_rows`.
    location, hint
        What an error says; by default the path, and no hint.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    StorageError
        It is not Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with system.open_input_file(path) as file:
        try:
            return pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            message = f"{location or path} is not a Parquet file: {error}"
            raise StorageError(message, hint=hint) from error


def rows_in(directory: str) -> tuple[int, frozenset[str]]:
    """Return the number of rows of the Parquet files in a directory, and what may be NULL in them.

    Both are in the footers of the files.

    Returns
    -------
    n_rows, nullable
        `nullable` are the names of the columns that have a NULL, or no statistics of NULLs, and the
        paths of such fields.

    Raises
    ------
    StorageError
        One of them is not Parquet.
    """
    n_rows, nullable = 0, set[str]()
    for file in list_files(directory):
        if file.name.endswith(".parquet"):
            with reached(file.location) as (system, path):
                footer = read_footer(system, path)
            n_rows += int(footer.num_rows)
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for column in map(group.column, range(group.num_columns)):
                    counts = column.statistics
                    if counts is None or not counts.has_null_count or counts.null_count:
                        path = column.path_in_schema.split(".")  # names may have dots, too
                        nullable.update(".".join(path[: n + 1]) for n in range(len(path)))
    return n_rows, frozenset(nullable)
