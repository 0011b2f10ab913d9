"""The files of the sources directory, as they are on disk."""

from __future__ import annotations

import errno
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.compiler.registry import FRONTENDS, NAMES
from persist_assets.core.errors import Location, Problem
from persist_assets.core.settings.keys import OUT_OF_PROJECT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from persist_assets.core.model.sources import Declaration


def read_sources(
    root: Path, directory: Path, problems: list[Problem]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the contents of the files of sources by path, in order, and the unreadable paths.

    Parameters
    ----------
    root
        The project root; paths are relative to it.
    directory
        The sources directory.
    problems
        Output: a problem for each unreadable file is added.
    """
    contents: dict[str, bytes] = {}
    unread: list[str] = []
    for path in sorted(_files(directory)):
        relative = path.relative_to(root).as_posix()
        data = _read(root, path, relative, problems)
        if data is None:
            unread.append(relative)
        else:
            contents[relative] = data
    return contents, unread


def _files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        if is_source(path.relative_to(directory)) and (path.is_file() or path.is_symlink()):
            yield path


def is_source(path: PurePath) -> bool:
    """Whether a path in the sources directory is a file of sources."""
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return path.suffix in (*FRONTENDS, MALLOY) and not hidden


def _read(root: Path, path: Path, relative: str, problems: list[Problem]) -> bytes | None:
    try:
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise PermissionError(errno.EPERM, OUT_OF_PROJECT)
        return path.read_bytes()
    except OSError as error:
        problems.append(
            Problem("file", f"cannot read this file: {error.strerror}", Location(relative))
        )
        return None


def decode(data: bytes, relative: str, problems: list[Problem]) -> str | None:
    """Return the text of a file; None if it is not UTF-8.

    Parameters
    ----------
    problems
        Output: the problem of a file that is not UTF-8 is added.
    """
    try:
        if b"\0" in data:  # UTF-16, with or without a byte order mark, can look like valid UTF-8
            raise UnicodeDecodeError("utf-8", data, data.index(b"\0"), len(data), "NUL")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        place = Location(relative, line, column)
        problems.append(Problem("encoding", "this file is not UTF-8", place, "save it as UTF-8"))
        return None


def names_in_bytes(data: bytes, path: str, suffix: str) -> list[Declaration]:
    """Return placeholder declarations for the sources of a file that is not UTF-8."""
    whole = data.replace(b"\0", b"")  # the rest of UTF-16
    by_name: dict[str, Declaration] = {}
    for text in (whole.decode(errors="replace"), whole.decode("latin-1")):
        for declaration in NAMES[suffix](text, path):
            by_name.setdefault(declaration.name.lower(), declaration)
    return list(by_name.values())
