"""The retention of the ledger's events, and their archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.checks import check_keys
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.settings.keys import RETENTION_KEYS, STATE
from persist_assets.core.settings.places import at

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORTEST_S = 3600
"""The shortest time for which events are kept, in seconds: readers need some time to read them."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of the ledger's events.

    Attributes
    ----------
    events_s
        The seconds for which events are kept; zero: forever, unless a user trims the log.
    archive
        The directory of the archives: a path, relative to the project root, or a URI.
    """

    events_s: int = 0
    archive: str = f"{STATE}/archive"


FOR_EVER = Retention()
"""Events are kept for ever."""


def read_retention(entries: Mapping[str, Any]) -> Retention:
    """Return the settings of `[retention]`.

    Raises
    ------
    SettingsError
        A key is unknown, or its value is no duration, or too short.
    """
    check_keys(entries, RETENTION_KEYS, "retention")
    seconds = 0
    if "events" in entries:
        seconds = parse_retention(entries["events"])
        if seconds is None:
            raise SettingsError(
                f"`[retention] events`: `{entries['events']}` is not a duration of at least 1 hour",
                hint='for example, "90 days"',
                location=at("retention", "events"),
            )
    return Retention(seconds, entries.get("archive", FOR_EVER.archive))


def parse_retention(text: str) -> int | None:
    """Return the seconds that a text names, None if it names none or too few.

    Examples
    --------
    >>> parse_retention("90d"), parse_retention("1 min"), parse_retention("old")
    (7776000, None, None)
    """
    seconds = parse_duration(text)
    return seconds if seconds is not None and seconds >= SHORTEST_S else None
