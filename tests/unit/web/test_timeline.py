"""The timeline of deadlines and deliveries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from persist_assets.core.wants import Want
from persist_assets.web.dashboard.timeline import draw_timeline

NOW = datetime(2024, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def want(hours_ago: int, due_s: int | None, **how: Any) -> Want:
    return Want(f"w{hours_ago}", "m/a", "dev", NOW - hours_ago * HOUR, sla_s=due_s, **how)


def test_a_late_want_stays_late_when_it_is_delivered() -> None:
    drawn = draw_timeline(
        [
            want(9, 3600, state="satisfied", ended_at=NOW - 2 * HOUR),
            want(8, 3600, state="satisfied", ended_at=NOW - 7.5 * HOUR),
            want(7, 3600),
            want(6, 36000),
            want(5, 3600, state="cancelled", ended_at=NOW),
            want(4, None),
        ],
        NOW,
    )
    states = {bar.want["want_id"]: bar.state for bar in drawn.bars}
    assert states == {
        "w9": "late delivered",
        "w8": "delivered",
        "w7": "late open",
        "w6": "open",
        "w5": "cancelled",
    }


def test_there_is_no_timeline_without_deadlines() -> None:
    assert draw_timeline([want(4, None)], NOW) is None


@given(st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 10**9)), min_size=1, max_size=60))
def test_all_bars_are_within_the_timeline(wants: list[tuple[int, int]]) -> None:
    drawn = draw_timeline([want(*one) for one in wants], NOW, left=10, width=100)
    for bar in drawn.bars:
        assert all(10 <= x <= 113 for x in (bar.begin, bar.end, bar.deadline, drawn.now))
        assert bar.begin < bar.end and bar.y < drawn.height
