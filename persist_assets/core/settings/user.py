"""Files of the user: the cache directory, private files, secrets."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.keys import CACHE, STATE

if TYPE_CHECKING:
    from collections.abc import Mapping


def user_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache directory, outside any project.

    Raises
    ------
    RuntimeError
        No variable names it, and the user has no home.
    """
    if chosen := environ.get(CACHE):
        return Path(chosen).absolute()
    caches = Path(environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "persist_assets"


SECRETS = ("PERSIST_TOKEN_", "PERSIST_SECRET_")
"""The prefixes of variables whose values a project may send elsewhere."""

ALLOWED = "PERSIST_ALLOW_ENV"
"""The environment variable that lists more such variables, separated by commas."""


def secret_of(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable that a project names to send it; None if it is not set.

    A project may be untrusted, or an unreviewed branch. So it may name only
    variables that are meant for it: by their names, or by the operator's list.

    Raises
    ------
    SettingsError
        It may not be named.
    """
    allowed = [n.strip() for n in environ.get(ALLOWED, "").split(",")]
    if not name.startswith(SECRETS) and name not in allowed:
        raise SettingsError(
            f"a project may not send the environment variable {name} elsewhere",
            hint=f"rename it to {SECRETS[0]}{name}, or allow it outside the project: "
            f"export {ALLOWED}={name}",
        )
    return environ.get(name) or None


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents, which only their owner may enter.

    A project's `.persist` among them gets a `.gitignore` of its own, so that it is not committed.
    It becomes private at that moment; permissions that are changed later stay.

    Raises
    ------
    OSError
        One of them cannot be created.
    """
    places = (directory, *directory.parents)
    for path in reversed([p for p in places if not p.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)
    state = next((p for p in places if p.name == STATE), None)
    if state is not None:
        with suppress(OSError), (state / ".gitignore").open("x", encoding="utf-8") as file:
            file.write("*\n")
            state.chmod(0o700)
