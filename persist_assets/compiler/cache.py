"""The compile cache: results of compilation in a file, shared between processes.

The invariant: it saves time and decides nothing. The key of an entry is a digest of everything that
it depends on. The file belongs to one release of this code and of the parser. It is read completely
or not at all, and replaced atomically, so that processes loading at once do not disturb each other.

The file is a pickle, and loading a pickle runs code. So it is never in a project, which may be a
stranger's, but in the user's cache directory, and it is only unpickled if its signature was made
with a key that only this user can read.
"""

from __future__ import annotations

import hmac
import logging
import os
import pickle
import secrets
import stat
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from persist_assets.compiler.software import digest_code, name_software
from persist_assets.core.settings.user import make_private, user_cache
from persist_assets.core.spark_versions import spark_in_use

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from persist_assets.analysis.semantics import Meaning
    from persist_assets.core.errors import Problem
    from persist_assets.core.model.project import NamedQuery
    from persist_assets.core.model.sources import Declaration

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The declarations of a file.

    Attributes
    ----------
    content
        A digest of the file, and of everything else that decides its declarations.
    declarations
        The declarations, whose queries have no trees.
    reads
        The other files that it depends on, with their digests.
    queried
        The queries whose columns it depends on, with the columns' names and types.
    queries
        The queries that it names.
    inferred
        Those columns of `queried` whose types the sources themselves do not know.
    """

    content: str
    declarations: tuple[Declaration, ...]
    problems: tuple[Problem, ...]
    reads: tuple[tuple[str, str], ...] = ()
    queried: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()
    queries: tuple[NamedQuery, ...] = ()
    inferred: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Cache:
    """The cached parts of a project: files by path, meanings by key."""

    files: dict[str, Parsed] = field(default_factory=dict[str, Parsed])
    meanings: dict[str, Meaning] = field(default_factory=dict[str, "Meaning"])


def parsed(
    content: str, declared: Iterable[Declaration], problems: Iterable[Problem], **more: Any
) -> Parsed:
    """Return the declarations of a file in their cached form."""
    bare = (
        replace(d, query=replace(d.query, tree=None)) if d.query is not None else d
        for d in declared
    )
    return Parsed(content, tuple(bare), tuple(problems), **more)


def cache_file(root: Path, kind: str) -> Path | None:
    """Return the cache file of a project; None if the user has no home.

    Parameters
    ----------
    root
        The project root.
    kind
        A digest of the settings that change results of compilation.
    """
    name = sha256(f"{root.absolute()}\0{kind}".encode(errors="surrogateescape")).hexdigest()
    try:
        return user_cache() / "compiled" / f"{name[:32]}.cache"
    except RuntimeError:
        return None


def save_names(root: Path, names: Iterable[str]) -> None:
    """Keep the names of a project's sources, for shells that complete them."""
    path = _names_file(root)
    if path is not None:
        with suppress(OSError):
            make_private(path.parent)
            _replace(path, "\n".join(sorted(names)).encode())


def load_names(root: Path) -> list[str]:
    """Return the names of a project's sources when it last changed; none if they are unknown."""
    path = _names_file(root)
    try:
        if path is None:
            return []
        names = path.read_text().splitlines()
        os.utime(path)
    except OSError:
        return []
    return names


def _names_file(root: Path) -> Path | None:
    file = cache_file(root, "names")
    return file and file.with_suffix(".names")


def load_cache(path: Path | None) -> Cache:
    """Return the content of a file; nothing if it is missing, damaged or not this user's."""
    content = _load(path)
    return Cache(*content) if content else Cache()


def load_programs(path: Path | None, state: str) -> dict[Any, Any]:
    """Return the cached results for a project in the same state, by key."""
    content = _load(path)
    return content[1] if content and content[0] == state else {}


def save_programs(path: Path | None, state: str, programs: dict[Any, Any]) -> None:
    """Replace what was derived from a project."""
    _save(path, (state, programs))


def _load(path: Path | None) -> tuple[Any, Any] | None:
    if path is None:
        return None
    try:
        key = _read_key(path.parent)
        if key is None:
            return None
        with open(os.open(path, os.O_RDONLY | _NO_LINKS), "rb") as file:
            if time.time() - os.fstat(file.fileno()).st_mtime > _FRESH_S:
                os.utime(path)
            stamp, signature, data = file.read(64), file.read(64), file.read()
        if stamp == _stamp().encode() and hmac.compare_digest(signature, _sign(key, path, data)):
            return pickle.loads(data)
    except (OSError, ValueError):
        pass
    return None


def save_cache(
    path: Path | None, files: dict[str, Parsed], meanings: dict[str, Meaning]
) -> tuple[dict[str, Meaning], bool]:
    """Replace the content of a file; if that is impossible, the next load just takes longer.

    Returns
    -------
    meanings, is_saved
        The meanings in their stored form, which takes less memory; whether the file has them.
    """
    packed = {name: meaning.packed() for name, meaning in meanings.items()}
    return packed, _save(path, (files, packed))


def _save(path: Path | None, content: tuple[Any, Any]) -> bool:
    if path is None:
        return False
    try:
        make_private(path.parent)
        key = _read_key(path.parent) or _make_key(path.parent)
        data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        _replace(path, _stamp().encode() + _sign(key, path, data) + data)
        _forget_old(path.parent)
    except OSError as error:
        log.debug("action=save-cache path=%s error=%s", path, error)
        return False
    return True


def _replace(path: Path, data: bytes) -> None:
    """Replace a file, which only its owner may read.

    Raises
    ------
    OSError
        It cannot be written.
    """
    temporary = path.with_name(f".{uuid4().hex}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


_NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
_KEY = "key"
"""The file with the secret that signs: 32 random bytes."""
_FRESH_S = 24 * 3600
"""The age at which the time of a file in use is updated, in seconds."""
_UNUSED_S = 90 * 24 * 3600
"""The age at which an unused file is deleted, in seconds."""


def _read_key(directory: Path) -> bytes | None:
    """Return the key; None if it is missing, or others may have read or written it."""
    try:
        with open(os.open(directory / _KEY, os.O_RDONLY | _NO_LINKS), "rb") as file:
            facts = os.fstat(file.fileno())
            if hasattr(os, "getuid") and (
                facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077
            ):
                return None
            key = file.read(33)
    except OSError:
        return None
    return key if len(key) == 32 else None


def _make_key(directory: Path) -> bytes:
    """Return a new key, or the one that another process has just created.

    Raises
    ------
    OSError
        There is no key, and none can be created.
    """
    temporary = directory / f".{uuid4().hex}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
    try:
        os.link(temporary, directory / _KEY)
    except FileExistsError:
        if _read_key(directory) is None:  # it is not private, so its signatures are void
            temporary.replace(directory / _KEY)
    finally:
        temporary.unlink(missing_ok=True)
    key = _read_key(directory)
    if key is None:
        raise PermissionError(f"the key in {directory} is not private")
    return key


def _sign(key: bytes, path: Path, data: bytes) -> bytes:
    """Return the signature of data for one file, in hexadecimal digits."""
    mac = hmac.new(key, f"{path.name}\0{_stamp()}\0".encode(), sha256)
    mac.update(data)
    return mac.hexdigest().encode()


def _forget_old(directory: Path) -> None:
    """Delete files that have not been used for a long time: their projects may be gone."""
    before = time.time() - _UNUSED_S
    for file in (f for kind in ("cache", "programs", "names") for f in directory.glob(f"*.{kind}")):
        with suppress(OSError):
            if file.stat().st_mtime < before:
                file.unlink()


def _stamp() -> str:
    """Return a digest of the software whose results are cached."""
    software = f"{sys.version} {name_software()} {digest_code()} Spark {spark_in_use()}"
    return sha256(software.encode()).hexdigest()
