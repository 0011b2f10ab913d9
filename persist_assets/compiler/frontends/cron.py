"""Validation of cron schedules, with Dagster's results but without importing Dagster."""

from __future__ import annotations

import re

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_DAYS = "sun mon tue wed thu fri sat".split()
_FIELDS: tuple[tuple[str, int, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, 59, {}),
    ("hour", 0, 23, 23, {}),
    ("day of month", 1, 31, 31, {}),
    ("month", 1, 12, 12, {name: n for n, name in enumerate(_MONTHS, 1)}),
    ("day of week", 0, 6, 7, {name: n for n, name in enumerate(_DAYS)}),
)
"""Each field: its name, the first and last value, and the greatest value that may be written."""
NICKNAMES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_PART = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?")
_LONGEST = {1: 31, 2: 29, 3: 31, 4: 30, 5: 31, 6: 30, 7: 31, 8: 31, 9: 30, 10: 31, 11: 30, 12: 31}


def wrong_with(cron: str) -> str | None:
    """Return why a text is not a cron schedule, None if it is one.

    Examples
    --------
    >>> wrong_with("0 6 * * mon-fri")
    >>> wrong_with("0 25 * * *")
    '`25` is not a valid hour: use 0 to 23'
    >>> wrong_with("0 0 30 feb *")
    'no such date exists'
    """
    if cron in NICKNAMES:
        return None
    fields = cron.split()
    if len(fields) != len(_FIELDS):
        return "it must have five fields: minute, hour, day of month, month, day of week"
    values_by_field: list[set[int]] = []
    for text, (name, least, most, greatest, names) in zip(fields, _FIELDS, strict=True):
        values: set[int] = set()
        for part in text.lower().split(","):
            matched = _PART.fullmatch(part)
            if matched is None:
                return f"`{part}` is not a valid {name}"
            star, first, last, step = matched.groups()
            ends: list[int] = [least, most] if star else []
            for end in () if star else (first, last or (most if step else first)):
                number = names.get(str(end), int(end) if str(end).isdecimal() else -1)
                if not least <= number <= greatest:
                    return f"`{end}` is not a valid {name}: use {least} to {greatest}"
                ends.append(number)
            if ends[0] > ends[1]:
                return f"`{part}` is not a valid {name}: the range ends before it begins"
            if step is not None and not 0 < int(step) <= ends[1]:
                return f"`{part}` is not a valid {name}: the step is out of range"
            values |= {*range(ends[0], ends[1] + 1, int(step or 1))}
        values_by_field.append(values)
    _, _, days, months, _ = values_by_field
    if fields[4] == "*" and all(min(days) > _LONGEST[month] for month in months):
        return "no such date exists"
    return None
