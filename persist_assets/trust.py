"""Places outside a project, and which of them the user trusts.

`check`, `plan`, `docs` and `doctor` run in clones that nobody has read. A clone names databases,
stores and directories, and these commands would reach them with the user's rights. The invariant:
within `confined` nothing outside of the project is contacted, opened as a ledger or written that
the user does not trust. Whatever reaches such a place asks `permit` first.

A place is named as `place_of` does it: a directory or file, the URL of a database, a bucket
(``s3://lake``), or the address of a server (``https://minio.example.com:9000``). Trust is in
places and not in projects, so that a branch that names another place is refused again.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from persist_assets.errors import SettingsError, UntrustedError
from persist_assets.stores import bucket_of, is_local, scheme_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

TRUST = "PERSIST_TRUST"
"""The environment variable that lists trusted places, blanks between them; ``*`` is all."""
ALL = "*"
_DATABASES = ("postgres", "postgresql", "postgresql+psycopg")


def place_of(location: str) -> str:
    """Return the place of a location: all locations of one place are trusted together.

    Of a database that is its whole URL, as any part of it can name another host.

    Examples
    --------
    >>> place_of("s3a://lake/x/y"), place_of("https://a.example.com:9000/x"), place_of("/data/x")
    ('s3://lake', 'https://a.example.com:9000', '/data/x')
    """
    if is_local(location):
        return location
    bucket = bucket_of(location)
    if bucket is not None:
        return f"s3://{bucket}"
    scheme = scheme_of(location)
    return location if scheme in _DATABASES else f"{scheme}://{urlsplit(location).netloc}"


def trust_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's own file of trusted places, by project root.

    Raises
    ------
    RuntimeError
        The user has no home.
    """
    settings = Path(environ.get("XDG_CONFIG_HOME", ""))
    settings = settings if settings.is_absolute() else Path.home() / ".config"
    return settings / "persist_assets" / "trusted.json"


def trusted_places(root: Path, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the places that the user trusts in a project.

    Raises
    ------
    SettingsError
        The file of trusted places cannot be read.
    """
    listed = tuple(map(place_of, environ.get(TRUST, "").split()))
    return (*listed, *_read(environ).get(str(root), ()))


def add_trusted(root: Path, places: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
    """Trust places in a project from now on.

    Raises
    ------
    SettingsError
        The file of trusted places cannot be read or written.
    """
    trusted = _read(environ)
    trusted[str(root)] = sorted({*trusted.get(str(root), ()), *places})
    try:
        path = trust_file(environ)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(trusted, file, indent=2)
        written.replace(path)
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"the trusted places cannot be written: {error}") from error


def _read(environ: Mapping[str, str]) -> dict[str, list[str]]:
    try:
        path = trust_file(environ)
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(root): [str(place) for place in places] for root, places in found.items()}
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SettingsError(f"{trust_file(environ)} cannot be read: {error}") from error


# ----------------------------------------------------------------------------------- confinement


@dataclass(slots=True)
class Confinement:
    """The bounds of a command.

    Attributes
    ----------
    root
        The project root.
    trusted
        Places outside of it that may be reached.
    refused
        Places that were asked for and may not be reached, in that order.
    """

    root: Path
    trusted: tuple[str, ...]
    refused: list[str] = field(default_factory=list[str])

    def allows(self, place: str) -> bool:
        """Whether a place is in the project or trusted."""
        if ALL in self.trusted or place in self.trusted:
            return True
        local = (self.root, *(Path(t) for t in self.trusted if is_local(t)))
        return is_local(place) and any(Path(place).resolve().is_relative_to(p) for p in local)


_confinement: Confinement | None = None
_lock = threading.RLock()


@contextmanager
def confined(root: Path) -> Generator[Confinement]:
    """Let this process reach only the project and trusted places within the block.

    All threads are confined, so one block is entered at a time.

    Raises
    ------
    SettingsError
        The file of trusted places cannot be read.
    """
    global _confinement
    root = root.resolve()
    with _lock:
        before, _confinement = _confinement, Confinement(root, trusted_places(root))
        try:
            yield _confinement
        finally:
            _confinement = before


def permit(location: str) -> None:
    """Refuse a location that may not be reached; outside of `confined` all may be.

    Raises
    ------
    UntrustedError
        It is outside of the project, and its place is not trusted.
    """
    place = place_of(location)
    if _confinement is None or _confinement.allows(place):
        return
    if place not in _confinement.refused:
        _confinement.refused.append(place)
    raise UntrustedError(
        f"{place} is outside of the project, and not trusted",
        hint="persist trust lists all such places; once you know them: persist trust --all, or in"
        f" CI {TRUST}",
    )
