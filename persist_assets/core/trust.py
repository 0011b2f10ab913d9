"""Places outside a project, and which of them the user trusts.

`check`, `plan`, `docs` and `doctor` run in unreviewed clones. A clone names databases,
stores and directories, and these commands would reach them with the user's rights. The invariant:
within `confined`, no place outside the project is contacted, opened as a ledger or written unless
the user trusts it. All code that reaches such a place calls `permit` first.

`place_of` names places: a directory or file, the URL of a database without its password, a bucket
(``s3://lake``), or the address of a server (``https://minio.example.com:9000``). Users trust
places, not projects, so a branch that names another place is refused again.
"""

from __future__ import annotations

import json
import os
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from persist_assets.core.errors import SettingsError, UntrustedError
from persist_assets.core.object_stores import bucket_of, is_local, scheme_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

TRUST = "PERSIST_TRUST"
"""The environment variable with the trusted places, separated by blanks; ``*`` means all."""
ALL = "*"
_DATABASES = ("postgres", "postgresql", "postgresql+psycopg")
_SQLITE = "sqlite:///"
_FILE = re.compile(r"file:(//[^/]*)?(?=/)", re.IGNORECASE)
_URL = re.compile(r"(\w+(?:\+\w+)?)://(?:([^:/]*)(?::[^@]*)?@)?([^?]*)(?:\?(.*))?", re.DOTALL)
"""Scheme, user, host with database, and options of a database URL, parsed as in SQLAlchemy, so that
no part of a host is taken for a password."""


def place_of(location: str) -> str:
    """Return the place of a location: all locations of one place are trusted together.

    For a database this is its whole URL without the password, because any part can name another
    host.

    Examples
    --------
    >>> place_of("s3a://lake/x/y"), place_of("https://a.example.com:9000/x"), place_of("/data/x")
    ('s3://lake', 'https://a.example.com:9000', '/data/x')
    >>> place_of("postgresql://me:secret@host/database"), place_of("sqlite:////data/ledger.db")
    ('postgresql://me@host/database', '/data/ledger.db')
    """
    if location.startswith(_SQLITE):
        return location.removeprefix(_SQLITE)
    if _FILE.match(location):
        return unquote(_FILE.sub("", location, count=1))
    if is_local(location):
        return location
    bucket = bucket_of(location)
    if bucket is not None:
        return f"s3://{bucket}"
    scheme = scheme_of(location)
    if scheme in _DATABASES:
        return _without_password(location)
    return f"{scheme}://{urlsplit(location).netloc}"


def _without_password(url: str) -> str:
    parts = _URL.fullmatch(url)
    if parts is None:
        return url
    scheme, user, rest, query = parts.groups()
    user = f"{quote(unquote(user), safe='')}@" if user else ""
    rest = rest.replace("@", "%40")  # else the place of this place would be another
    options = sorted((k, v) for k, v in parse_qsl(query or "") if k != "password")
    return f"{scheme}://{user}{rest}{f'?{urlencode(options)}' if options else ''}"


def place_named(argument: str) -> str:
    """Return the place that a user names; paths become absolute, without symbolic links."""
    place = place_of(argument)
    if place == ALL or not is_local(place):
        return place
    return str(Path(place).expanduser().resolve())


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
        The file of trusted places is invalid, or the variable lists a relative path.
    """
    listed = [place_of(place) for place in environ.get(TRUST, "").split()]
    for n, place in enumerate(listed):
        if place == ALL or not is_local(place):
            continue
        with suppress(RuntimeError):  # the user has no home
            listed[n] = str(Path(place).expanduser())
        if not Path(listed[n]).is_absolute():
            raise SettingsError(
                f"{TRUST} lists the relative path `{place}`",
                hint="use absolute paths, or URLs such as https://minio.example.com:9000",
            )
    try:
        user_places = _read(environ).get(str(root), [])
    except PermissionError:  # of a user who cannot have trusted anything
        user_places = []
    return (*listed, *map(place_of, user_places))


def add_trusted(root: Path, places: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
    """Trust places in a project from now on.

    Raises
    ------
    SettingsError
        The file of trusted places cannot be read or written.
    """
    try:
        trusted = _read(environ)
        old_places = map(place_of, trusted.get(str(root), ()))
        trusted[str(root)] = sorted({*old_places, *places})
        path = trust_file(environ)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(trusted, file, indent=2)
        written.replace(path)
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"cannot write the trusted places: {error}") from error


def _read(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the user's own file.

    Raises
    ------
    PermissionError
        The user may not read it.
    SettingsError
        It cannot be read for another reason.
    """
    try:
        path = trust_file(environ)
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        return {str(root): [str(place) for place in places] for root, places in document.items()}
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return {}
    except PermissionError:
        raise
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SettingsError(f"cannot read {trust_file(environ)}: {error}") from error


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
        Places that were needed and must not be reached, in that order.
    """

    root: Path
    trusted: tuple[str, ...]
    refused: list[str] = field(default_factory=list[str])

    def allows(self, place: str) -> bool:
        """Whether a place is in the project or trusted."""
        if ALL in self.trusted:
            return True
        if not is_local(place):
            return place in self.trusted
        path = Path(place).resolve()
        return any(path.is_relative_to(d) for d in (self.root, *self._directories()))

    def _directories(self) -> Iterator[Path]:
        """Yield the trusted directories and files, without symbolic links.

        Links in the project are not followed, because any branch can change them.
        """
        for place in self.trusted:
            path = Path(place)
            inside = (p.resolve().is_relative_to(self.root) for p in path.parents)
            if is_local(place) and path.is_absolute() and not any(inside):
                yield path.resolve()


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
    """Refuse a location that must not be reached; outside `confined`, all are allowed.

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
        f"{place} is outside the project and not trusted",
        hint="`persist trust` lists all such places; to trust them run `persist trust --all`, or in"
        f" CI set {TRUST}",
    )
