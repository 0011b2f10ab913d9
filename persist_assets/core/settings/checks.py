"""The keys that a table of `persist.toml` may have, and the kinds of their values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import SettingsError, did_you_mean
from persist_assets.core.settings.places import at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.settings.keys import Key


def section_of(path: Sequence[str]) -> str:
    """Return the header of a table, with a blank behind it; nothing for the file itself."""
    names = [n if re.fullmatch(r"[\w-]+", n) else f'"{n}"' for n in path]
    return f"[{'.'.join(names)}] " if names else ""


def check_keys(entries: Mapping[str, Any], known: Mapping[str, Key], *path: str) -> None:
    """Refuse keys of a table that are unknown, and values of the wrong kind."""
    section = section_of(path)
    for key, value in entries.items():
        if key not in known:
            raise SettingsError(
                f"unknown key `{section}{key}`",
                hint=did_you_mean(key, known) or f"known keys: {', '.join(known)}",
                location=at(*path, key),
            )
        fits = (int, float) if known[key].type is float else (known[key].type,)
        if type(value) not in fits:
            raise SettingsError(
                f"`{section}{key}` must be {_KIND_NAMES[known[key].type]}, got {value!r}",
                location=at(*path, key),
            )


_KIND_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    dict: "a table",
    list: "a list",
}
