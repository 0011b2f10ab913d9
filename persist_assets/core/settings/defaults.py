"""Annotations that `persist.toml` gives to the sources of whole directories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.places import at, place_in
from persist_assets.core.settings.values import Default

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def read_defaults(root: Path, entries: Mapping[str, Any]) -> tuple[Default, ...]:
    """Return the defaults in the order of the file; the compiler reads their values.

    Raises
    ------
    SettingsError
        A default is not a table of annotations.
    """
    defaults: list[Default] = []
    for pattern, table in entries.items():
        if not isinstance(table, dict):
            message = f"`defaults.{pattern}` must be a table of annotations, got {table!r}"
            hint = '[defaults."staging/**"], and below it for example owner = "team:staging"'
            raise SettingsError(message, hint=hint, location=at("defaults", pattern))
        for key, value in cast("dict[str, Any]", table).items():
            place = place_in(root, ("defaults", pattern, key))
            text = json.dumps(value, default=str)  # dates are strings in annotations
            defaults.append(Default(pattern, key, text, place))
    return tuple(defaults)
