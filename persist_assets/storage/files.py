"""Files wherever they are: the one way to reach, list and delete what a path or URI names."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from persist_assets.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A file that is there.

    Attributes
    ----------
    location
        Absolute path or URI.
    changed_ns
        When it last changed, in nanoseconds since 1970.
    inode
        On this machine, what changes with its content even where size and time are kept.
    """

    location: str
    bytes: int
    changed_ns: int
    inode: str = ""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.location.rpartition("/")[2]


def is_local(location: str) -> bool:
    """Whether a location is a path on this machine."""
    return not urlsplit(location).scheme


@contextmanager
def reached(location: str) -> Generator[tuple[Any, str]]:
    """Yield the `pyarrow.fs.FileSystem` of a location, and its path there.

    Raises
    ------
    StorageError
        It cannot be reached, or what the block does with it fails.
    """
    from pyarrow import ArrowException, fs

    try:
        yield fs.FileSystem.from_uri(location)
    except (ArrowException, OSError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise StorageError(f"{location} cannot be reached: {said}") from error


def list_files(location: str) -> list[Found]:
    """Return the file at a location, or all files at any depth below it, sorted; none: nothing."""
    from pyarrow import fs

    with reached(location) as (system, path):
        itself = system.get_file_info(path)
        if itself.type == fs.FileType.NotFound:
            return []
        below = (
            [itself]
            if itself.is_file
            else system.get_file_info(fs.FileSelector(path, recursive=True))
        )
    if is_local(location):
        prefix = ""
    elif location.endswith(path):
        prefix = location.removesuffix(path)
    else:
        prefix = f"{urlsplit(location).scheme}://"
    local = is_local(location)
    return sorted(
        Found(
            f"{prefix}{f.path}",
            int(f.size or 0),
            int(f.mtime_ns or 0),
            _inode(f.path) if local else "",
        )
        for f in below
        if f.is_file
    )


def _inode(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_ino}:{found.st_ctime_ns}"


def delete_directory(location: str) -> None:
    """Delete a directory and all that is in it, if it is there."""
    with reached(location) as (system, path):
        try:
            system.delete_dir(path)
        except FileNotFoundError:
            return


def delete_file(location: str) -> None:
    """Delete a file, if it is there."""
    with reached(location) as (system, path):
        try:
            system.delete_file(path)
        except FileNotFoundError:
            return
