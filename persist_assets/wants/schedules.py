"""The wants that annotations create when a time window has ended.

Windows are those of partitions. The ID of a want follows from its source and window, so each want
is made once, whichever process makes it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from persist_assets.core.partitions import FORMATS, following, limits, split
from persist_assets.core.wants import Want, bounded_id, ref_of, scheduled_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from persist_assets.building.observe import Observer
    from persist_assets.core.model.annotations import Cadence, Wanted
    from persist_assets.core.model.sources import Source

_MOST = 10_000
"""The maximum number of past windows to make wants for."""
_SHORTEST_S: Mapping[Cadence, int] = {
    "hourly": 3_600,
    "daily": 86_400,
    "weekly": 7 * 86_400,
    "monthly": 28 * 86_400,
}
_LOOKED_AT = timedelta(days=5 * 366)


def make_wants(observer: Observer, by: str) -> list[Want]:
    """Record the wants of annotations whose windows have ended, and return the new ones.

    Parameters
    ----------
    by
        The process that makes them, for the audit.
    """
    wants: list[Want] = []
    ledger = observer.ledger
    for source in observer.project.persisted:
        want = source.annotation.want
        if want is None:
            continue
        prefix = scheduled_prefix(observer.settings.environment, source.key)
        last = ledger.wants.find_last_end(prefix, until=observer.started_at)
        if due := [*_due(observer, source, want, by, last)]:
            wants += ledger.wants.create_new(due)
    return wants


def next_window(observer: Observer) -> datetime | None:
    """Return when the next window of an annotation ends; None without annotations."""
    ends: list[datetime] = []
    for source in observer.project.persisted:
        want = source.annotation.want
        if want is not None:
            zone = _zone(observer, source)
            begin = _containing(observer.started_at.astimezone(zone), want.every)
            ends.append(following(begin, want.every).replace(tzinfo=zone))
    return min(ends, default=None)


def deadline_cron(every: Cadence, sla_s: int, timezone: str, now: datetime) -> str | None:
    """Return the deadlines of windows as a cron schedule in a time zone, or None.

    Cron goes by clocks, deadlines by the time since a window's end. They differ if clocks change in
    between within the next five years. Cron cannot express seconds either, nor deadlines after the
    end of the next window.

    Examples
    --------
    >>> now = datetime(2026, 1, 1)
    >>> deadline_cron("daily", 9 * 3600, "Asia/Tokyo", now)
    '0 9 * * *'
    >>> deadline_cron("daily", 9 * 3600, "Europe/Berlin", now)  # on two days of the year it is not
    >>> deadline_cron("weekly", 33 * 3600, "Europe/Berlin", now)  # from Monday on: Tuesday at nine
    '0 9 * * 2'
    """
    minutes, seconds = divmod(sla_s, 60)
    if seconds or not 0 < sla_s < _SHORTEST_S[every]:
        return None
    days, (hour, minute) = minutes // 1440, divmod(minutes % 1440, 60)
    if every == "hourly":
        return f"{minute} * * * *"  # of UTC, as hours are
    zone, passed = ZoneInfo(timezone), timedelta(seconds=sla_s)
    end = _containing(now, every)
    while end < now.replace(tzinfo=None) + _LOOKED_AT:
        end = following(end, every)
        local = (end + passed).replace(tzinfo=zone)
        if local.astimezone(UTC) != end.replace(tzinfo=zone).astimezone(UTC) + passed:
            return None
    time = f"{minute} {hour}"
    match every:
        case "daily":
            return f"{time} * * *"
        case "weekly":
            return f"{time} * * {(1 + days) % 7}"
        case "monthly":
            return f"{time} {1 + days} * *"


def _zone(observer: Observer, source: Source) -> ZoneInfo:
    partition, want = source.annotation.partition, source.annotation.want
    if partition is not None and partition.time is not None:
        return ZoneInfo(partition.timezone)
    return ZoneInfo("UTC") if want and want.every == "hourly" else observer.settings.timezone


def _due(
    observer: Observer, source: Source, want: Wanted, by: str, last: datetime | None
) -> Iterator[Want]:
    """Yield the wants of windows that have ended since the last want's window did."""
    zone, form = _zone(observer, source), FORMATS[want.every]
    first = scheduled_prefix(observer.settings.environment, source.key)
    partition = source.annotation.partition
    time = partition.time if partition is not None else None
    keys = observer.keys().get(source.source_id, ()) if time is not None else ()
    for begin in _ended(observer.started_at.astimezone(zone), want.every, last):
        window = begin.strftime(form)
        end = following(begin, want.every).replace(tzinfo=zone)
        if partition is None or time is None:
            parts = [None]
        else:
            start, until = limits(partition)
            if begin < start or (until is not None and begin >= until):
                continue
            parts = [key for key in keys if split(partition, key)[0] == window]
        for key in parts:
            extra = "" if key is None or key == window else f"/{key}"
            yield Want(
                bounded_id(f"{first}{window}{extra}"),
                ref_of(source.key, key),
                observer.settings.environment,
                observer.started_at,
                data_timestamp=end,
                ttl_s=want.ttl_s,
                sla_s=want.sla_s,
                external_dependencies=tuple(f"{need}/{key or window}" for need in want.needs),
                source={"type": "schedule", "annotation": str(source.location), "by": by},
            )


def _ended(now: datetime, every: Cadence, last: datetime | None) -> list[datetime]:
    """Return the starts of the windows that ended after `last`, in order; None: the last one."""
    begin = _containing(now, every)
    begins: list[datetime] = []
    while len(begins) < _MOST:
        begin = _containing(begin - timedelta(microseconds=1), every)
        if last is not None and following(begin, every).replace(tzinfo=now.tzinfo) <= last:
            break
        begins.append(begin)
        if last is None:
            break
    return begins[::-1]


def _containing(now: datetime, every: Cadence) -> datetime:
    """Return the start of the window that contains a time, in local time."""
    begin = now.replace(tzinfo=None, minute=0, second=0, microsecond=0)
    if every == "hourly":
        return begin
    begin = begin.replace(hour=0)
    if every == "weekly":
        return begin - timedelta(days=begin.weekday())
    return begin.replace(day=1) if every == "monthly" else begin
