"""Durations, as settings and annotations write them."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.places import at

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_duration(key: str, entries: Mapping[str, Any], default: int, meaning: str) -> int:
    """Return the seconds that a key names."""
    if key not in entries:
        return default
    seconds = parse_duration(entries[key])
    if seconds is None:
        raise SettingsError(
            f"`{key}`: `{entries[key]}` is not a duration",
            hint=f'for example, "{_EXAMPLES[key]}"; {meaning}',
            location=at(key),
        )
    return seconds


_EXAMPLES = {"keep": "7 days", "store_timeout": "60s", "store_retry": "5m"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")

_UNITS = {
    unit: seconds
    for seconds, units in (
        (1, "s sec secs second seconds"),
        (60, "m min mins minute minutes"),
        (3600, "h hour hours"),
        (86_400, "d day days"),
        (604_800, "w week weeks"),
    )
    for unit in units.split()
}


def parse_duration(text: str) -> int | None:
    """Return the seconds that `text` names (``24h``, ``90 min``, ``1 day 6h``), or None.

    Examples
    --------
    >>> parse_duration("1 day 6h")
    108000
    >>> parse_duration("soon") is None
    True
    """
    parts = _DURATION.findall(text.lower())
    rest = _DURATION.sub("", text.lower()).strip()
    if not parts or rest or any(unit not in _UNITS for _, unit in parts):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return round(seconds) or None if isfinite(seconds) else None


def in_short(seconds: float) -> str:
    """Return a duration in words: tenths below ten seconds, otherwise at most two units.

    Examples
    --------
    >>> in_short(0.84), in_short(59.7), in_short(200), in_short(7_260), in_short(200_000)
    ('0.8 s', '1 min', '3 min 20 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        n, rest = divmod(rest, size)
        if n:
            parts.append(f"{n} {unit}")
        if parts and (not n or len(parts) == 2):
            break
    return " ".join(parts)
