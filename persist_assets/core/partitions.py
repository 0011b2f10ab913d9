"""Partitions: their keys, their rows, and which of them a change may affect. Pure.

A time partition is a window between two local midnights (or hours). Its key is Dagster's:
``2013-01-01``, for hours ``2013-01-01-05:00``. Weeks start on Monday, as in ``date_trunc``. With
listed values, each value is a partition. With two dimensions, a key names a part of each, in the
order of their columns' names, separated by ``|``.

Time partitions exist from `Partitioning.start` until the last window that has ended. Rows in no
window, such as those without a time, are in no partition.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from persist_assets.core.dialect import quote
from persist_assets.core.errors import NotFoundError, did_you_mean
from persist_assets.core.time_values import TIMES, literal, overlaps_any, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from persist_assets.core.model.annotations import Cadence, Dimension, Partitioning
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Filled, Runs, Snapshot
    from persist_assets.core.time_values import Span, Value

SEPARATOR = "|"
"""The separator between the keys of two dimensions."""
FORMATS: Mapping[Cadence, str] = {
    "hourly": "%Y-%m-%d-%H:%M",
    "daily": "%Y-%m-%d",
    "weekly": "%Y-%m-%d",
    "monthly": "%Y-%m-%d",
}
"""The formats of keys, which are the starts of windows."""
_SMALLEST = timedelta(microseconds=1)


def keys(partitioning: Partitioning, now: datetime) -> tuple[str, ...]:
    """Return the keys of all partitions that exist at an instant, in order."""
    return _keys(partitioning, _quarter(now))


def keys_of(project: Project, now: datetime) -> dict[SourceID, tuple[str, ...]]:
    """Return the partitions that every partitioned source of a project has, in order."""
    return {
        source.source_id: keys(partition, now)
        for source in project.persisted
        if (partition := source.annotation.partition) is not None
    }


def _quarter(now: datetime) -> datetime:
    """Return the last quarter of an hour: in all time zones, windows end at one."""
    now = now.astimezone(UTC)
    return now.replace(minute=now.minute - now.minute % 15, second=0, microsecond=0)


@lru_cache(maxsize=256)
def _keys(partitioning: Partitioning, now: datetime) -> tuple[str, ...]:
    values = [_values(partitioning, dimension, now) for dimension in partitioning.dimensions]
    return tuple(_joined(partitioning, parts) for parts in product(*values))


def is_key(partitioning: Partitioning, key: str, now: datetime) -> bool:
    """Whether a key is one of `keys`; in constant time."""
    return key in _key_set(partitioning, _quarter(now))


@lru_cache(maxsize=256)
def _key_set(partitioning: Partitioning, now: datetime) -> frozenset[str]:
    return frozenset(keys(partitioning, now))


def _values(partitioning: Partitioning, dimension: Dimension, now: datetime) -> list[str]:
    if dimension.every is None:
        return [str(value) for value in dimension.values]
    begin, last = limits(partitioning)
    zone = ZoneInfo(partitioning.timezone)
    until = now if last is None else min(now, last.replace(tzinfo=zone))
    form = FORMATS[dimension.every]
    periods: list[str] = []
    while (end := following(begin, dimension.every)).replace(tzinfo=zone) <= until:
        periods.append(begin.strftime(form))
        begin = end
    return periods


def limits(partitioning: Partitioning) -> tuple[datetime, datetime | None]:
    """Return the start of the first window, and the end of the last one, if there is a last one.

    Both are local times. If no window fits between start and end, they are equal.
    """
    assert partitioning.time is not None
    assert partitioning.time.every is not None
    every, first = partitioning.time.every, _first(partitioning, partitioning.time.every)
    if partitioning.end is None:
        return first, None
    until, last = datetime.fromisoformat(partitioning.end), first
    while (end := following(last, every)) <= until:
        last = end
    return first, last


def _first(partitioning: Partitioning, every: Cadence) -> datetime:
    """Return the start of the first window that does not start before `start`."""
    start = datetime.fromisoformat(partitioning.start or "")
    if every == "hourly":
        begin = start.replace(minute=0, second=0, microsecond=0)
    else:
        begin = start.replace(hour=0, minute=0, second=0, microsecond=0)
    if every == "weekly":
        begin -= timedelta(days=begin.weekday())
    elif every == "monthly":
        begin = begin.replace(day=1)
    return begin if begin >= start else following(begin, every)


def following(begin: datetime, every: Cadence) -> datetime:
    """Return the end of the window that starts at a local time."""
    if every == "hourly":
        return begin + timedelta(hours=1)
    if every == "monthly":
        return (begin.replace(day=1) + timedelta(days=32)).replace(day=1)
    return begin + timedelta(days=7 if every == "weekly" else 1)


def window_end(partitioning: Partitioning, key: str) -> datetime:
    """Return the instant at which a partition's window ends; long ago for listed values alone.

    Examples
    --------
    >>> from persist_assets.core.model.annotations import Dimension, Partitioning
    >>> daily = Partitioning((Dimension("day", "daily"),), "2013-01-01", None, "Europe/Berlin")
    >>> window_end(daily, "2013-01-01").isoformat()
    '2013-01-02T00:00:00+01:00'
    """
    time = partitioning.time
    if time is None or time.every is None:
        return datetime.min.replace(tzinfo=UTC)
    end = following(_begin(split(partitioning, key)[0]), time.every)
    return end.replace(tzinfo=ZoneInfo(partitioning.timezone))


def _joined(partitioning: Partitioning, parts: Sequence[str]) -> str:
    named = zip((d.column for d in partitioning.dimensions), parts, strict=True)
    return SEPARATOR.join(part for _, part in sorted(named))


def split(partitioning: Partitioning, key: str) -> tuple[str, ...]:
    """Return the parts of a key, one for each dimension, in order."""
    columns = [d.column for d in partitioning.dimensions]
    parts = key.split(SEPARATOR) if len(columns) > 1 else [key]
    part_by_column = dict(zip(sorted(columns), parts, strict=True))
    return tuple(part_by_column[column] for column in columns)


def corners(
    partitioning: Partitioning, order: Sequence[str], some: Sequence[str]
) -> tuple[str, str]:
    """Return the first and last key of the smallest box that contains some partitions.

    Dagster's ranges are boxes: in each dimension, all parts between those of the two ends.

    Parameters
    ----------
    order
        All existing partitions.
    """
    ends: list[tuple[str, str]] = []
    for parts_in_order, chosen in zip(
        zip(*(split(partitioning, key) for key in order), strict=True),
        zip(*(split(partitioning, key) for key in some), strict=True),
        strict=True,
    ):
        rank = {value: n for n, value in enumerate(dict.fromkeys(parts_in_order))}
        places = sorted(chosen, key=rank.__getitem__)
        ends.append((places[0], places[-1]))
    first, last = zip(*ends, strict=True)
    return _joined(partitioning, first), _joined(partitioning, last)


def misfit(dimension: Dimension, kind: str) -> str | None:
    """Return the required type for the column of a dimension, or None if `kind` is suitable."""
    if dimension.every is None:
        number = isinstance(dimension.values[0], int)
        fits = kind in ("tinyint", "smallint", "int", "bigint") if number else kind == "string"
        return None if fits else "the type of its values"
    if kind == "date" and dimension.every == "hourly":
        return "a time of day"
    return None if kind in TIMES else "a date or a timestamp"


def side(partitioning: Partitioning, dimension: Dimension, part: str, kind: str) -> Span:
    """Return the least and the greatest value of a column for rows of a partition.

    Parameters
    ----------
    part
        The key's part for this dimension.
    kind
        The column's Spark type.
    """
    if dimension.every is None:
        value: Value = next(v for v in dimension.values if str(v) == part)
        return value, value
    begin = _begin(part)
    end = following(begin, dimension.every)
    if kind == "date":
        return begin.date(), (end - timedelta(days=1)).date()
    if kind == "timestamp":
        zone = ZoneInfo(partitioning.timezone)
        begin, end = (t.replace(tzinfo=zone).astimezone(UTC) for t in (begin, end))
    return begin, end - _SMALLEST


def _begin(part: str) -> datetime:
    """Return the local time of a key in one of `FORMATS`; `strptime` takes ten times as long."""
    return datetime.fromisoformat(f"{part[:10]}T{part[11:] or '00:00'}")


def boxes(
    partitioning: Partitioning, kinds: Sequence[str], chosen: Collection[str], order: Sequence[str]
) -> tuple[tuple[Span, ...], ...]:
    """Return boxes, as few as possible, with the values of columns for rows of partitions.

    Parameters
    ----------
    kinds
        The columns' Spark types.
    order
        The keys of all existing partitions.
    """
    firsts: dict[str, int] = {}
    for key in order:
        firsts.setdefault(split(partitioning, key)[0], len(firsts))
    by_rest: dict[tuple[str, ...], list[str]] = {}
    chosen_keys = {*chosen}
    for key in order:
        if key in chosen_keys:
            first, *rest = split(partitioning, key)
            by_rest.setdefault(tuple(rest), []).append(first)
    box_list: list[tuple[Span, ...]] = []
    lead, *others = partitioning.dimensions
    for rest, parts in by_rest.items():
        sides = [
            side(partitioning, d, part, kind)
            for d, part, kind in zip(others, rest, kinds[1:], strict=True)
        ]
        run: list[str] = []
        for part in (*parts, None):
            if run and (part is None or not lead.every or firsts[part] != firsts[run[-1]] + 1):
                ends = [side(partitioning, lead, p, kinds[0]) for p in (run[0], run[-1])]
                box_list.append(((ends[0][0], ends[1][1]), *sides))
                run = []
            if part is not None:
                run.append(part)
    return tuple(box_list)


def reached(
    partitioning: Partitioning, kind: str, order: Iterable[str], spans: Sequence[Span]
) -> frozenset[str]:
    """Return the partitions that may have rows with a value of the spans in their first column."""
    reached_keys: set[str] = set()
    overlap_by_part: dict[str, bool] = {}
    lead = partitioning.dimensions[0]
    is_reached = overlaps_any(spans)
    for key in order:
        part = split(partitioning, key)[0]
        if part not in overlap_by_part:
            overlap_by_part[part] = is_reached(side(partitioning, lead, part, kind))
        if overlap_by_part[part]:
            reached_keys.add(key)
    return frozenset(reached_keys)


def condition(partitioning: Partitioning, kinds: Sequence[str], key: str) -> str:
    """Return the SQL condition that a row is in a partition."""
    dimension_parts = zip(partitioning.dimensions, split(partitioning, key), kinds, strict=True)
    tests = [
        within(d.column, kind, *side(partitioning, d, part, kind))
        for d, part, kind in dimension_parts
    ]
    return " AND ".join(f"({test})" for test in tests)


def units(partitioning: Partitioning, kinds: Sequence[str]) -> tuple[str, ...]:
    """Return SQL expressions whose values identify the partition of a row.

    For a time, the value is the start of its window in hours or days since 1970. See `key_of`.
    """
    return tuple(
        quote(d.column) if d.every is None else _unit(quote(d.column), d.every, kind, partitioning)
        for d, kind in zip(partitioning.dimensions, kinds, strict=True)
    )


def _unit(column: str, every: Cadence, kind: str, partitioning: Partitioning) -> str:
    if every == "hourly":
        if kind == "timestamp":
            return f"CAST(floor(unix_seconds({column}) / 3600) AS BIGINT)"
        return f"unix_date(CAST({column} AS DATE)) * 24 + hour({column})"
    day = f"unix_date(CAST({column} AS DATE))"
    if kind == "timestamp":  # a cast to a date would use the session's time zone
        local = f"unix_seconds(from_utc_timestamp({column}, '{partitioning.timezone}'))"
        day = f"CAST(floor({local} / 86400) AS INT)"
    if every == "weekly":
        return f"{day} - pmod({day} + 3, 7)"
    return f"unix_date(trunc(date_from_unix_date({day}), 'MM'))" if every == "monthly" else day


def key_of(partitioning: Partitioning, values: Sequence[object]) -> str | None:
    """Return the partition key for these values of `units`, or None."""
    parts: list[str] = []
    for dimension, value in zip(partitioning.dimensions, values, strict=True):
        if dimension.every is None:
            parts.append(str(value))
            continue
        if not isinstance(value, int):
            return None
        hours = value if dimension.every == "hourly" else value * 24
        try:
            begin = datetime(1970, 1, 1) + timedelta(hours=hours)
        except OverflowError:
            return None
        parts.append(begin.strftime(FORMATS[dimension.every]))
    return _joined(partitioning, parts)


def bounds(partitioning: Partitioning, kinds: Sequence[str]) -> str:
    """Return the SQL condition that a row can be in a present or future partition."""
    tests: list[str] = []
    for dimension, kind in zip(partitioning.dimensions, kinds, strict=True):
        if dimension.every is None:
            alternatives = [f"({within(dimension.column, kind, v, v)})" for v in dimension.values]
            tests.append(f"({' OR '.join(alternatives)})")
            continue
        zone = ZoneInfo(partitioning.timezone)
        first, last = limits(partitioning)
        low = _value(first, kind, zone, up=False)
        high = None if last is None else _value(last, kind, zone, up=True)
        tests.append(f"({within(dimension.column, kind, low, high)})")
    return " AND ".join(tests)


def _value(local: datetime, kind: str, zone: ZoneInfo, *, up: bool) -> date:
    """Return a local time as a value of a column; with `up`, the last value before it."""
    if kind == "date":
        return local.date() - timedelta(days=up)
    if kind == "timestamp":
        local = local.replace(tzinfo=zone).astimezone(UTC)
    return local - _SMALLEST * up


# ----------------------------------------------------------------------------------- sets of keys


def runs(order: Sequence[str], chosen: Collection[str]) -> Runs:
    """Return some keys as ranges of keys that are consecutive in `order`."""
    chosen_keys, ends, n = {*chosen}, list[tuple[str, str]](), 0
    marks = bytes(map(chosen_keys.__contains__, order))  # plans do this for thousands of keys
    while (first := marks.find(1, n)) >= 0:
        n = marks.find(0, first)
        n = len(marks) if n < 0 else n
        ends.append((order[first], order[n - 1]))
    return tuple(ends)


def expand(order: Sequence[str], key_runs: Runs) -> tuple[str, ...]:
    """Return the keys of ranges, in order."""
    places = {key: n for n, key in enumerate(order)}
    return tuple(
        key
        for first, last in key_runs
        if first in places and last in places
        for key in order[places[first] : places[last] + 1]
    )


def filled_keys(order: Sequence[str], filled: Iterable[Filled]) -> frozenset[str]:
    """Return the keys of all filled partitions."""
    return frozenset(key for group in filled for key in expand(order, group.runs))


def with_rows_of(
    snapshot: Snapshot, keys: Collection[str], tables: Iterable[Snapshot], order: Sequence[str]
) -> dict[str, set[str]]:
    """Return the snapshots that share rows of a table's partitions, with these partitions, by UID.

    Parameters
    ----------
    tables
        All snapshots ever with the same BuildID.
    """
    computed: dict[str, dict[str, str]] = {}
    for table in sorted(tables, key=lambda s: s.built_at):
        if table.partitions is None:
            continue
        base, built = table.partitions.base, {*expand(order, table.partitions.built)}
        before = computed.get(base or "", {})
        computed[table.build_uid] = {
            key: table.build_uid if base is None or key in built else before.get(key, base)
            for key in filled_keys(order, table.partitions.filled)
        }
    own_keys = computed.get(snapshot.build_uid, {})
    keys_by_uid = {snapshot.build_uid: {*keys}}
    for uid, of in computed.items():
        shared = {key for key in keys if key in own_keys and of.get(key) == own_keys[key]}
        if shared:
            keys_by_uid[uid] = shared
    return keys_by_uid


def in_words(order: Sequence[str], chosen: Collection[str]) -> str:
    """Return a short description of some partitions.

    Examples
    --------
    >>> in_words(["a", "b", "c", "d"], ["a", "b", "d"])
    'a to b, d'
    """
    texts = [
        first if first == last else f"{first} to {last}" for first, last in runs(order, chosen)
    ]
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")


def between(name: str, order: Sequence[str], first: str, last: str) -> tuple[str, ...]:
    """Return the partitions from one to another, inclusive.

    Parameters
    ----------
    name
        The name of the source, for messages.

    Raises
    ------
    NotFoundError
        A partition does not exist, or the first comes after the last.
    """
    places = {key: n for n, key in enumerate(order)}
    for key in (first, last):
        if key not in places:
            hint = did_you_mean(key, order)
            if order and hint is None:
                hint = f"known partitions: {order[0]} to {order[-1]}"
            elif not order:
                hint = "there are none yet: the first time window has not ended"
            raise NotFoundError(f"`{name}` has no partition `{key}`", hint=hint)
    if places[first] > places[last]:
        raise NotFoundError(
            f"`{first}` comes after `{last}`", hint="put the earlier partition first"
        )
    return tuple(order[places[first] : places[last] + 1])


def spelled_bounds(partitioning: Partitioning) -> tuple[object, ...]:
    """Return the properties of a partitioning that decide its rows."""
    return (
        partitioning.start if partitioning.time else None,
        partitioning.end if partitioning.time else None,
        partitioning.timezone if partitioning.time else None,
        *((d.column.lower(), d.every, *map(literal_of, d.values)) for d in partitioning.dimensions),
    )


def literal_of(value: str | int) -> str:
    """Return a listed value as SQL."""
    return literal(value, "string" if isinstance(value, str) else "bigint")
