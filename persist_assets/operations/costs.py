"""Costs of sources by day: seconds, bytes, and money by the prices of settings. Pure.

    builds that ended, tables that were stored, prices ─► `Spent`, one for each source and day

The invariant: the seconds of a run's builds add up to the time in which the run built anything. Of
time in which several builds of one run ran, each gets an equal share.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import date, tzinfo

    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.settings.values import Prices
    from persist_assets.ledger.costs import Stored, Work

_MONTH_DAYS = 365.25 / 12
_GB = 1e9


@dataclass(slots=True)
class Spent:
    """The costs of a source on a day, or a sum of such costs.

    Attributes
    ----------
    built, reused, failed
        The builds that started on that day, by outcome.
    unknown
        The number of failed builds that have no time, because their processes were gone.
    seconds
        The time that the builds took; `compute_seconds`: their shares of the time of their runs.
    bytes_written
        The bytes that its builds wrote, as far as it is recorded.
    byte_days
        The bytes of its table, times the days in which the table was stored.
    money
        The amount by the prices; None: nothing has a price.
    """

    built: int = 0
    reused: int = 0
    failed: int = 0
    unknown: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0
    bytes_written: int = 0
    byte_days: float = 0.0
    money: float | None = None

    def add(self, other: Spent) -> None:
        """Add what another one counts."""
        self.built += other.built
        self.reused += other.reused
        self.failed += other.failed
        self.unknown += other.unknown
        self.seconds += other.seconds
        self.compute_seconds += other.compute_seconds
        self.bytes_written += other.bytes_written
        self.byte_days += other.byte_days
        if other.money is not None:
            self.money = (self.money or 0.0) + other.money

    def price(self, prices: Prices) -> None:
        """Set the money by the prices."""
        if prices:
            self.money = (
                self.compute_seconds / 3600 * (prices.compute_hour or 0.0)
                + self.bytes_written / _GB * (prices.gb_written or 0.0)
                + self.byte_days / _GB / _MONTH_DAYS * (prices.gb_month or 0.0)
            )


def total(spent: Iterable[Spent]) -> Spent:
    """Return a sum."""
    result = Spent()
    for one in spent:
        result.add(one)
    return result


def account(
    work: Sequence[Work],
    stored: Sequence[Stored],
    prices: Prices,
    *,
    first: date,
    now: datetime,
    zone: tzinfo,
    last: date | None = None,
) -> dict[tuple[date, SourceID], Spent]:
    """Return what each source cost on each day, in order; days without a cost are left out.

    Parameters
    ----------
    work
        Builds that ended, of any days. A build counts on the day on which it started.
    stored
        The tables that sources had, in order.
    first, last
        The first and the last day, inclusive; None: today.
    zone
        The time zone of the days.
    """
    days: dict[tuple[date, SourceID], Spent] = defaultdict(Spent)
    last = min(last or now.astimezone(zone).date(), now.astimezone(zone).date())
    shares = _shares(work)
    for build, share in zip(work, shares, strict=True):
        day = build.started_at.astimezone(zone).date()
        if first <= day <= last:
            days[day, build.source_id].add(_spent_on(build, share))
    if prices.gb_month is not None:
        for day, source_id, byte_days in _byte_days(stored, first, last, now, zone):
            days[day, source_id].byte_days += byte_days
    for spent in days.values():
        spent.price(prices)
    return dict(sorted(days.items()))


def _spent_on(build: Work, share: float) -> Spent:
    spent = Spent(
        built=build.outcome == "built",
        reused=build.outcome == "reused",
        failed=build.outcome == "failed",
        unknown=build.ended_at is None,
    )
    if build.outcome != "reused" and build.ended_at is not None:
        spent.seconds = (build.ended_at - build.started_at).total_seconds()
        spent.compute_seconds = share
        spent.bytes_written = build.bytes or 0
    return spent


def _shares(work: Sequence[Work]) -> list[float]:
    """Return the share in seconds of each build in the time of its run."""
    shares = [0.0] * len(work)
    runs: dict[str, list[tuple[datetime, int, int]]] = defaultdict(list)
    for n, build in enumerate(work):
        ended_at = build.ended_at
        if build.outcome != "reused" and ended_at is not None and ended_at > build.started_at:
            runs[build.run] += [(build.started_at, 1, n), (ended_at, -1, n)]
    for moments in runs.values():
        active: set[int] = set()
        before = datetime.min.replace(tzinfo=UTC)
        for at, step, n in sorted(moments):
            for other in active:
                shares[other] += (at - before).total_seconds() / len(active)
            before = at
            if step > 0:
                active.add(n)
            else:
                active.discard(n)
    return shares


def _byte_days(
    stored: Sequence[Stored], first: date, last: date, now: datetime, zone: tzinfo
) -> Iterator[tuple[date, SourceID, float]]:
    """Yield for each day and source the bytes of its table, times the part of the day until now.

    The table at the end of a day counts, or now if the day has not ended. Sources that share a
    table: it counts for the first of them.
    """
    current: dict[SourceID, Stored] = {}
    following = iter(stored)
    entry = next(following, None)
    day = first
    while day <= last:
        begin, end = (datetime.combine(d, time(), zone) for d in (day, day + timedelta(days=1)))
        until = min(end, now)
        while entry is not None and entry.since < until:
            current[entry.source_id] = entry
            entry = next(following, None)
        counted: set[str] = set()
        for source_id, table in sorted(current.items()):
            gone = table.collected_at is not None and table.collected_at < until
            if gone or table.snapshot_uid in counted or not table.bytes:
                continue
            counted.add(table.snapshot_uid)
            yield day, source_id, table.bytes * ((until - begin) / (end - begin))
        day += timedelta(days=1)
