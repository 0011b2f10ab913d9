"""Selections that `persist.toml` gives a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.places import at, place_in
from persist_assets.core.settings.values import Selector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_selectors(root: Path, entries: Mapping[str, Any]) -> tuple[Selector, ...]:
    """Return the selectors of a project. Their selections are parsed when they are used.

    Parameters
    ----------
    entries
        By name, a selection or a list of some.

    Raises
    ------
    SettingsError
        A value is something else.
    """
    selectors: list[Selector] = []
    for name, value in entries.items():
        patterns = cast("list[Any]", value if isinstance(value, list) else [value])
        if not patterns or not all(isinstance(p, str) and p.strip() for p in patterns):
            raise SettingsError(
                f"`[selectors] {name}` must be a selection or a list of selections, got {value!r}",
                hint=f'for example, {name} = "tag:nightly and not late_*"',
                location=at("selectors", name),
            )
        location = place_in(root, ("selectors", name))
        selectors.append(Selector(name, tuple(patterns), location))
    return tuple(selectors)
