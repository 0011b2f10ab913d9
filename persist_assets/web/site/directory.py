"""Pages → a directory, replaced atomically: readers see all of the old site or all of the new.

The invariant: only files written here are deleted. A file in the directory lists all others; if
there is an unlisted file, or no such list, the directory is left alone.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import ConflictError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTING = "persist-docs.json"
"""The file that lists all files of a site."""
_ATTEMPTS = 5


def write_site(directory: Path, files: Mapping[str, str]) -> Path:
    """Replace the contents of a directory by these files; return its path without links.

    The files are written beside the directory and put in place by renaming; the previous contents
    are deleted afterwards.

    Raises
    ------
    ConflictError
        There is something in its place that this function did not write. It is left as it was.
    StorageError
        It cannot be written. The previous contents are left as they were.
    """
    target = directory.resolve()
    _check_own(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        site = scratch / "site"
        for path, text in {**files, LISTING: _listing(files)}.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text, encoding="utf-8", newline="\n")
        _swap(site, target, scratch)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _swap(site: Path, target: Path, scratch: Path) -> None:
    """Put a site in its place; another process may be doing the same."""
    for attempt in range(_ATTEMPTS):
        earlier = scratch / f"before-{attempt}"
        with suppress(FileNotFoundError):
            target.rename(earlier)
        try:
            site.rename(target)
            return
        except BaseException as error:
            is_theirs = target.exists()  # another process has put its own site there
            if earlier.exists() and not is_theirs:
                earlier.rename(target)
            is_retried = is_theirs and isinstance(error, OSError) and attempt < _ATTEMPTS - 1
            if not is_retried:
                raise


def _check_own(target: Path) -> None:
    """Refuse a place that must not be replaced.

    Raises
    ------
    ConflictError
        See `write_site`.
    """
    hint = "use another directory, or an empty one"
    if not target.exists():
        return
    if not target.is_dir():
        raise ConflictError(f"{target} exists and is not a directory", hint=hint)
    present = {p.relative_to(target).as_posix() for p in target.rglob("*") if not _is_plain(p)}
    if not present:
        return
    try:
        listed: Any = json.loads((target / LISTING).read_text(encoding="utf-8"))["files"]
        ours = {LISTING, *map(str, listed)}
    except (OSError, ValueError, KeyError, TypeError):
        message = f"{target} is not empty, and `persist docs` did not write it"
        raise ConflictError(message, hint=hint) from None
    others = sorted(present - ours)
    if others:
        message = f"{target} has a file that `persist docs` did not write: {others[0]}"
        raise ConflictError(message, hint="move it, or use another directory")


def _is_plain(path: Path) -> bool:
    """Whether a path is a directory that is not empty, and not a link to one."""
    return path.is_dir() and not path.is_symlink() and any(path.iterdir())


def _listing(files: Mapping[str, str]) -> str:
    marker = {"made_by": "persist docs", "files": sorted(files)}
    return json.dumps(marker, indent=1, ensure_ascii=False) + "\n"


def _unwritable(target: Path, error: OSError) -> StorageError:
    hint = "use a directory whose parent is writable"
    return StorageError(f"cannot write {target}: {error.strerror or error}", hint=hint)
