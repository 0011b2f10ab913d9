"""What compiling found, kept in a file between processes.

The invariant: it saves time and decides nothing. Every entry is found by a digest of all that it
follows from, the file belongs to one release of this code and of the parser, it is read whole or
not at all, and replaced in one step, so that processes that load at once do not disturb each
other.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.meaning.understanding import Meaning

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.errors import Problem
    from persist_assets.model import Declaration, NamedQuery

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a file declares.

    Attributes
    ----------
    content
        Digest of the file, and of what else decides what it says.
    declarations
        Their queries are without trees.
    reads
        Other files that it is made of, with digests of theirs.
    asked
        Queries whose columns it depends on, with names and types of these.
    queries
        That it gives names.
    """

    content: str
    declarations: tuple[Declaration, ...]
    problems: tuple[Problem, ...]
    reads: tuple[tuple[str, str], ...] = ()
    asked: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    queries: tuple[NamedQuery, ...] = ()


@dataclass(slots=True)
class Cache:
    """What is remembered of a project: files by path, meanings by key."""

    files: dict[str, Parsed] = field(default_factory=dict[str, Parsed])
    meanings: dict[str, Meaning] = field(default_factory=dict[str, "Meaning"])


def parsed(
    content: str, declared: Iterable[Declaration], problems: Iterable[Problem], **more: Any
) -> Parsed:
    """Return what a file declares in the form in which it is remembered."""
    bare = (
        replace(d, query=replace(d.query, tree=None)) if d.query is not None else d
        for d in declared
    )
    return Parsed(content, tuple(bare), tuple(problems), **more)


def load_cache(path: Path) -> Cache:
    """Return what a file holds; nothing where it is not there, not ours or not whole."""
    try:
        with path.open("rb") as file:
            if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                return Cache()
            stamp, digest, data = file.read(64), file.read(64), file.read()
        if stamp.decode() == _stamp() and digest.decode() == sha256(data).hexdigest():
            files, meanings = pickle.loads(data)
            return Cache(files, meanings)
    except (OSError, ValueError):
        pass
    return Cache()


def save_cache(path: Path, files: dict[str, Parsed], meanings: dict[str, Meaning]) -> None:
    """Replace what a file holds; where that is not possible the next load just takes longer."""
    packed = {key: meaning.packed() for key, meaning in meanings.items()}
    data = pickle.dumps((files, packed), pickle.HIGHEST_PROTOCOL)
    temporary = path.with_name(f".{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(_stamp().encode() + sha256(data).hexdigest().encode() + data)
        temporary.replace(path)
    except OSError as error:
        log.debug("action=save-cache path=%s error=%s", path, error)
        temporary.unlink(missing_ok=True)


@cache
def _stamp() -> str:
    """Return a digest of the code that made what is remembered."""
    made = sha256(f"{sys.version} {version('sqlglot')}".encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        made.update(path.read_bytes())
    return made.hexdigest()
