"""Costs of sources by day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persist_assets.core.settings.values import Prices
from persist_assets.ledger.costs import Stored, Work
from persist_assets.operations.costs import Spent, account, total

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = START.date()
NOW = START + timedelta(days=10)
BERLIN = ZoneInfo("Europe/Berlin")


def worked(
    source: str,
    run: str,
    begin: float,
    seconds: float | None,
    size: int = 0,
    outcome: str = "built",
) -> Work:
    at = START + timedelta(seconds=begin)
    ended_at = None if seconds is None else at + timedelta(seconds=seconds)
    return Work(source, run, outcome, at, ended_at, size)  # pyright: ignore[reportArgumentType]


def spent(
    *work: Work, prices: Prices | None = None, zone: tzinfo = UTC
) -> dict[tuple[date, str], Spent]:
    first = date(2023, 12, 1)
    return account(work, (), prices or Prices(), first=first, now=NOW, zone=zone)


@pytest.mark.proves("Y1")
def test_builds_of_one_run_share_its_time() -> None:
    days = spent(
        worked("a", "r", 0, 60, 2_000_000_000),
        worked("b", "r", 20, 20, 500_000_000),
        worked("c", "other", 0, 60),
        prices=Prices("EUR", compute_hour=36.0, gb_written=2.0),
    )
    a, b, c = (days[DAY, name] for name in "abc")
    assert (a.seconds, a.compute_seconds) == (60, 50)
    assert (b.seconds, b.compute_seconds) == (20, 10)
    assert c.compute_seconds == 60
    assert a.money == pytest.approx(50 * 0.01 + 4.0)
    assert b.money == pytest.approx(10 * 0.01 + 1.0)


@pytest.mark.proves("Y1")
def test_failed_builds_have_costs_reused_ones_do_not_and_unknown_times_are_counted() -> None:
    days = spent(
        worked("a", "1", 0, 30, outcome="failed"),
        worked("a", "2", 100, 5, 7, outcome="reused"),
        worked("a", "3", 200, None, outcome="failed"),
        prices=Prices(compute_hour=3600.0),
    )
    assert days == {
        (DAY, "a"): Spent(0, 1, 2, 1, seconds=30, compute_seconds=30, bytes_written=0, money=30)
    }


@pytest.mark.proves("Y1")
def test_days_use_the_projects_time_zone_and_amounts_of_money_need_prices() -> None:
    days = spent(worked("a", "r", 23.5 * 3600, 10, 5), zone=BERLIN)
    assert list(days) == [(date(2024, 1, 2), "a")]
    assert days[date(2024, 1, 2), "a"].money is None


@pytest.mark.proves("Y1")
def test_storage_costs_count_the_table_at_the_end_of_each_day_until_it_is_deleted() -> None:
    gigabyte = 1_000_000_000
    stored = (
        Stored("c", "z", START, gigabyte, START + timedelta(days=1, hours=1)),
        Stored("a", "x", START + timedelta(hours=1), gigabyte, None),
        Stored("b", "x", START + timedelta(hours=2), gigabyte, None),  # the same table
        Stored("a", "y", START + timedelta(days=8), 2 * gigabyte, None),
    )
    prices = Prices(gb_month=365.25 / 12)
    days = account((), stored, prices, first=DAY, now=NOW - timedelta(hours=12), zone=UTC)
    of_a = {day.day: s.money for (day, source), s in days.items() if source == "a"}
    assert of_a == pytest.approx({**dict.fromkeys(range(1, 9), 1.0), 9: 2.0, 10: 1.0})
    assert [day.day for day, source in days if source == "c"] == [1]
    # `b` shares the table of `a` until `a` has another one.
    assert [day.day for day, source in days if source == "b"] == [9, 10]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50), st.integers(0, 50)), max_size=12)
)
@example([("a", 0, 0), ("a", 1, 0)])
def test_the_shares_of_parallel_builds_add_up_to_the_busy_time_of_their_run(
    builds: list[tuple[str, int, int]],
) -> None:
    days = spent(*(worked(source, "r", begin, n) for source, begin, n in builds))
    busy = {second for _, begin, n in builds for second in range(begin, begin + n)}
    assert total(days.values()).compute_seconds == pytest.approx(len(busy))
