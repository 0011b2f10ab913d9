"""The places of keys in `persist.toml`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from persist_assets.core.errors import Location
from persist_assets.core.settings.keys import SETTINGS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KEY = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEYS = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_STATEMENT = re.compile(rf"[ \t]*(?:\[\[?[ \t]*(?P<header>{_KEYS})|(?P<key>{_KEYS})[ \t]*=)")


@dataclass(frozen=True, slots=True)
class KeyPlace(Location):
    """The place of a key, which is looked up on first use."""

    keys: tuple[str, ...] = ()


def at(*keys: str) -> Location:
    """Return the place of a key, by the names of its tables and its own."""
    return KeyPlace(SETTINGS_FILE, keys=keys)


def place_in(root: Path, keys: tuple[str, ...], environment: str = "") -> Location:
    """Return the place of a key in the `persist.toml` of a project, which may have none."""
    try:
        text = (root / SETTINGS_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    return find_place(text, keys, environment)


def find_place(text: str, keys: tuple[str, ...], environment: str = "") -> Location:
    """Return the place of a key in a file, or else of its table.

    Parameters
    ----------
    text
        The file, valid TOML.
    environment
        Whose values stand before those of the project.

    Examples
    --------
    >>> str(find_place("env.prod.parallel = 4", ("parallel",), "prod"))
    'persist.toml:1:1'
    """
    places = dict(_statements(text))
    dotted = _name(keys)
    for name in (f"env.{environment}.{dotted}", dotted):
        if name in places:
            return Location(SETTINGS_FILE, *places[name])
    for name, place in places.items():
        if name.startswith(f"{dotted}."):  # a table that only its parts name: freshness.window
            return Location(SETTINGS_FILE, *place)
    above = [name for name in places if dotted.startswith(f"{name}.")]
    if not above:
        return Location(SETTINGS_FILE)
    return Location(SETTINGS_FILE, *places[max(above, key=len)])


def _statements(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the dotted names of tables and keys, each with its line and column."""
    lines = text.splitlines(keepends=True)
    table: tuple[str, ...] = ()
    for i, line in enumerate(lines):
        match = _STATEMENT.match(line)
        if match is None or not _is_toml("".join(lines[:i])):  # it is within a value
            continue
        group = "header" if match["header"] else "key"
        keys = tuple(_bare(key) for key in re.findall(_KEY, match[group]))
        if group == "header":
            table = keys
        yield _name(keys if group == "header" else table + keys), (i + 1, match.start(group) + 1)


def _name(keys: tuple[str, ...]) -> str:
    """Return the dotted name of a key. In `[spark]`, a leading `spark.` may be left out."""
    return ".".join(keys).replace("spark.spark.", "spark.", 1)


def _bare(key: str) -> str:
    return key if key[0] not in "\"'" else str(tomllib.loads(f"k = {key}")["k"])


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
