"""Pages → a directory, all at once: who reads it sees all of what was, or all of what is.

The invariant: nothing is deleted that was not written here. A file in the directory names all
others; where there is one more, or no such file, the directory is left alone.
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
"""The file of a site that names all of its files."""
_ATTEMPTS = 5


def write_site(directory: Path, files: Mapping[str, str]) -> Path:
    """Let a directory hold these files and no others; return its path without links.

    It is written beside its place, and put there by renaming; the one that was there before is
    deleted then.

    Raises
    ------
    ConflictError
        There is something at its place that is not of this function's making. It is as it was.
    StorageError
        It cannot be written. What was there is as it was.
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
            is_theirs = target.exists()  # by now another process has put its own there
            if earlier.exists() and not is_theirs:
                earlier.rename(target)
            is_retried = is_theirs and isinstance(error, OSError) and attempt < _ATTEMPTS - 1
            if not is_retried:
                raise


def _check_own(target: Path) -> None:
    """Refuse a place that may not be replaced.

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
    """Whether something is a directory in which something is, and no link to one."""
    return path.is_dir() and not path.is_symlink() and any(path.iterdir())


def _listing(files: Mapping[str, str]) -> str:
    marker = {"made_by": "persist docs", "files": sorted(files)}
    return json.dumps(marker, indent=1, ensure_ascii=False) + "\n"


def _unwritable(target: Path, error: OSError) -> StorageError:
    hint = "use a directory whose parent is writable"
    return StorageError(f"cannot write {target}: {error.strerror or error}", hint=hint)
