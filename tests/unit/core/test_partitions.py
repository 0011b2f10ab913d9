"""Partition keys and windows equal Dagster's; annotations of partitions; stale partitions."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from conftest import compiled, draws
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_assets.core.model.annotations import Cadence, Dimension, Partitioning
from persist_assets.core.partitions import (
    between,
    bounds,
    boxes,
    corners,
    expand,
    in_words,
    keys,
    limits,
    reached,
    runs,
    side,
    split,
)
from persist_assets.core.time_values import overlap, overlaps_any
from persist_assets.planning.reach import needed

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Asia/Kathmandu")
THEIRS: dict[Cadence, Any] = {
    "hourly": dg.HourlyPartitionsDefinition,
    "daily": dg.DailyPartitionsDefinition,
    "weekly": dg.WeeklyPartitionsDefinition,
    "monthly": dg.MonthlyPartitionsDefinition,
}


def timed(every: Cadence, start: str, end: str | None = None, zone: str = "UTC") -> Partitioning:
    return Partitioning((Dimension("t", every),), start, end, zone)


@pytest.mark.proves("K8")
@settings(max_examples=draws(30, 150), deadline=None)
@given(
    st.sampled_from([*THEIRS]),
    st.datetimes(datetime(2013, 1, 1), datetime(2013, 12, 31)),
    st.none() | st.integers(1, 300),
    st.integers(0, 300 * 24),
    st.sampled_from(ZONES),
)
def test_keys_and_windows_are_those_of_dagster(
    every: Cadence, start: datetime, days: int | None, hours: int, zone: str
) -> None:
    zone = "UTC" if every == "hourly" else zone
    start = start.replace(minute=0, second=0, microsecond=0)
    if every != "hourly":
        start = start.replace(hour=0)
    end = None if days is None else start + timedelta(days=days)
    now = start.replace(tzinfo=UTC) + timedelta(hours=hours)
    ours = timed(every, start.isoformat(), end and end.isoformat(), zone)
    more = {"day_offset": 1} if every == "weekly" else {}
    found = keys(ours, now)
    first, last = limits(ours)
    if first == last:
        assert not found
        return
    theirs = THEIRS[every](start_date=first, end_date=last, timezone=zone, **more)
    assert list(found) == theirs.get_partition_keys(current_time=now)
    for key in (*found[:2], *found[-2:]):
        window = theirs.time_window_for_partition_key(key)
        low, high = side(ours, ours.dimensions[0], key, "timestamp")
        assert (low, high) == (
            window.start.astimezone(UTC),
            window.end.astimezone(UTC) - timedelta(microseconds=1),
        )


def test_partitions_exist_as_soon_as_their_window_ends() -> None:
    days = timed("daily", "2026-01-01", zone="Asia/Kolkata")  # midnight is at 18:30
    for minute, last in ((29, "2026-01-03"), (30, "2026-01-04")):
        assert keys(days, datetime(2026, 1, 4, 18, minute, tzinfo=UTC))[-1] == last


def test_windows_of_local_times_and_of_dates() -> None:
    week = timed("weekly", "2013-01-01")
    assert keys(week, datetime(2013, 1, 21, tzinfo=UTC)) == ("2013-01-07", "2013-01-14")
    told = side(week, week.dimensions[0], "2013-01-07", "date")
    assert told == (date(2013, 1, 7), date(2013, 1, 13))
    local = side(week, week.dimensions[0], "2013-01-07", "timestamp_ntz")
    assert local == (datetime(2013, 1, 7), datetime(2013, 1, 13, 23, 59, 59, 999999))
    berlin = timed("daily", "2013-03-30", zone="Europe/Berlin")
    low, high = side(berlin, berlin.dimensions[0], "2013-03-31", "timestamp")
    assert isinstance(low, datetime)
    assert isinstance(high, datetime)
    assert high - low == timedelta(hours=23, microseconds=-1)  # clocks are put forward


def test_partitions_of_two_dimensions_have_the_keys_of_dagster() -> None:
    both = Partitioning(
        (Dimension("t", "daily"), Dimension("origin", None, ("JFK", "EWR"))), "2013-01-01"
    )
    order = keys(both, datetime(2013, 1, 4, tzinfo=UTC))
    assert order[:3] == ("JFK|2013-01-01", "EWR|2013-01-01", "JFK|2013-01-02")
    assert split(both, order[0]) == ("2013-01-01", "JFK")
    found = boxes(both, ["date", "string"], order[:4], order)
    days = (date(2013, 1, 1), date(2013, 1, 2))
    assert set(found) == {(days, ("JFK", "JFK")), (days, ("EWR", "EWR"))}
    theirs = dg.MultiPartitionsDefinition(
        {
            "t": dg.DailyPartitionsDefinition("2013-01-01"),
            "origin": dg.StaticPartitionsDefinition(["JFK", "EWR"]),
        }
    )
    now = datetime(2013, 1, 4, tzinfo=UTC)
    assert {*order} == {*theirs.get_partition_keys(current_time=now)}


@given(st.lists(st.integers(0, 30)), st.integers(1, 31))
def test_runs_of_keys_expand_to_the_same_keys(chosen: list[int], n: int) -> None:
    order = [f"k{i:02}" for i in range(n)]
    some = {f"k{i:02}" for i in chosen if i < n}
    assert expand(order, runs(order, some)) == tuple(sorted(some))
    # More keys at the end change nothing.
    assert expand([*order, "z"], runs(order, some)) == tuple(sorted(some))


@given(st.sets(st.integers(0, 27)), st.integers(0, 27), st.integers(0, 27))
def test_a_change_reaches_the_partitions_that_have_its_rows(
    chosen: set[int], first: int, last: int
) -> None:
    days = timed("daily", "2013-01-01")
    order = keys(days, datetime(2013, 1, 29, tzinfo=UTC))
    first, last = min(first, last), max(first, last)
    changed = (date(2013, 1, 1) + timedelta(first), date(2013, 1, 1) + timedelta(last))
    assert reached(days, "date", order, [changed]) == {*order[first : last + 1]}
    some = [order[n] for n in sorted(chosen)]
    covered = {
        low + timedelta(n)
        for ((low, high),) in boxes(days, ["date"], some, order)
        if isinstance(low, date) and isinstance(high, date)
        for n in range((high - low).days + 1)
    }
    assert covered == {date.fromisoformat(key) for key in some}


def test_bounds_exclude_rows_outside_all_partitions() -> None:
    ended = timed("monthly", "2013-01-15", "2013-04-10")
    assert keys(ended, datetime(2020, 1, 1, tzinfo=UTC)) == ("2013-02-01", "2013-03-01")
    said = "(`t` IS NOT NULL AND `t` >= DATE'2013-02-01' AND `t` <= DATE'2013-03-31')"
    assert bounds(ended, ["date"]) == said
    listed = Partitioning((Dimension("o", None, (1, 2)),))
    assert "CAST('2' AS int)" in bounds(listed, ["int"])


def test_a_range_of_partitions_is_validated() -> None:
    order = ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert between("d", order, "2013-01-01", "2013-01-02") == ("2013-01-01", "2013-01-02")
    with pytest.raises(Exception, match="`d` has no partition `2014-01-01`"):
        between("d", order, "2014-01-01", "2013-01-02")
    with pytest.raises(Exception, match="comes after"):
        between("d", order, "2013-01-02", "2013-01-01")
    assert in_words(order, order[:2]) == "2013-01-01 to 2013-01-02"


RAW = "CREATE TABLE f (day DATE, ts TIMESTAMP, o STRING, n INT) USING delta LOCATION 'f';\n"


def project(annotation: str, query: str = "SELECT day, ts, o, n FROM f") -> Any:
    return compiled({"m.sql": f"{RAW}--@ persist {annotation}\nCREATE VIEW q AS {query};"})


@pytest.mark.parametrize(
    "annotation",
    [
        'partition=daily time_column=day start="2013-01-01"',
        'partition=hourly time_column=ts start="2013-01-01" end="2014-01-01"',
        'partition { ts=weekly } start="2013-01-01" timezone="Europe/Berlin"',
        "partition { o=[EWR, JFK] }",
        "partition { n=[1, 2] } backfill=multi_run",
        'partition { o=[EWR, JFK] day=monthly } start="2013-01-01"',
    ],
)
def test_valid_partition_annotations_are_accepted(annotation: str) -> None:
    found = project(annotation)
    assert not found.problems
    partition = found.by_id["q@sources/m.sql"].annotation.partition
    assert partition is not None
    assert (partition.time is not None) == ("start" in annotation)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("partition=dayly time_column=day", "got `dayly`"),
        ('partition=daily start="2013-01-01"', "needs a time column"),
        ("partition=daily time_column=day", "need a start"),
        ('partition=daily time_column=dya start="2013-01-01"', "`dya` is not a column"),
        ('partition=daily time_column=o start="2013-01-01"', "need a date or a timestamp"),
        ('partition=hourly time_column=day start="2013-01-01"', "need a time of day"),
        ('partition=daily time_column=day start="last year"', "is not a date or time"),
        ('partition=daily time_column=day start="2013-01-01" end="2012-01-01"', "must be after"),
        ('partition=daily time_column=day start="2013-01-01" timezone="Mars"', "unknown time zone"),
        (
            'partition=weekly time_column=day start="2013-01-01" end="2013-01-05"',
            "no partition fits",
        ),
        ("partition=[EWR, JFK]", "must be a cadence or a block"),
        ("partition { o=[1, 2] }", "need the type of its values"),
        ('partition { o=["a|b"] }', "not a valid partition key"),
        ("partition { o=[a, a] }", "must be distinct values"),
        ("partition { o=[a] n=[1] day=daily }", "at most one of them by time"),
        ('partition { o=[a] } start="2013-01-01"', "applies only to time partitions"),
        ('start="2013-01-01"', "needs partitions"),
        ("partition { o=[a] } merge_key=n", "cannot be combined with `partition`"),
        ("partition { o=[a] } refresh=incremental", "cannot be combined with `partition`"),
        ("partition { o=[a] } materialized=view", "a build cannot add rows to a view"),
        ("partition { o=[a] } backfill=both", "got `both`"),
    ],
)
def test_invalid_partition_annotations_are_rejected(annotation: str, expected: str) -> None:
    messages = [p.message for p in project(annotation).problems]
    assert any(expected in message for message in messages), messages


def test_a_nondeterministic_table_cannot_have_partitions() -> None:
    found = project("partition { o=[a] }", "SELECT o, rand() AS r FROM f")
    assert "is nondeterministic" in found.problems[0].message


def test_readers_depend_on_the_columns_they_read_and_on_the_partitions() -> None:
    def build_id(query: str, start: str = "2013-01-01") -> str:
        text = (
            f'{RAW}--@ persist partition=daily time_column=day start="{start}"\n'
            f"CREATE VIEW q AS {query};\n--@ persist\nCREATE VIEW r AS SELECT sum(n) AS s FROM q;"
        )
        return compiled({"m.sql": text}).by_id["r@sources/m.sql"].build_id

    plain = build_id("SELECT day, n, o FROM f")
    assert build_id("SELECT day, n, upper(o) AS o FROM f") == plain
    assert build_id("SELECT day, n, o FROM f", "2013-01-02") != plain
    assert build_id("SELECT day, n + 1 AS n, o FROM f") != plain
    assert build_id("SELECT CAST(ts AS DATE) AS day, n, o FROM f") != plain


def test_corners_of_partitions_with_two_dimensions_span_a_box() -> None:
    day, o = Dimension("day", "daily"), Dimension("o", None, ("JFK", "EWR"))
    partition = Partitioning((day, o), "2024-01-01", "2024-01-05", "UTC")
    order = keys(partition, datetime(2024, 2, 1, tzinfo=UTC))
    some = ["2024-01-01|EWR", "2024-01-02|JFK"]
    assert corners(partition, order, some) == ("2024-01-01|JFK", "2024-01-02|EWR")
    assert corners(partition, order, some[:1]) == (some[0], some[0])


SPANS = st.tuples(st.integers(0, 30), st.none() | st.integers(0, 9)).map(
    lambda drawn: (drawn[0], None if drawn[1] is None else drawn[0] + drawn[1])
)


@pytest.mark.proves("S19")
@given(st.lists(SPANS, max_size=6), st.integers(0, 40), st.integers(0, 9))
def test_overlaps_any_equals_a_comparison_with_each_span(
    spans: list[tuple[int, int | None]], low: int, length: int
) -> None:
    own = (low, low + length)
    assert overlaps_any(spans)(own) == any(overlap(own, span) for span in spans)


@pytest.mark.proves("S19")
def test_planning_partitions_takes_a_linear_number_of_calls() -> None:
    """Every second partition is requested, so that no spans can be merged."""
    project = compiled(
        {
            "m.sql": """
CREATE TABLE f (day DATE, n INT) USING parquet LOCATION 'f';
--@ persist partition=daily time_column=day start="2013-01-01"
CREATE VIEW one AS SELECT day, sum(n) AS n FROM f GROUP BY day;
--@ persist partition=daily time_column=day start="2013-01-01"
CREATE VIEW two AS SELECT day, sum(n) AS n FROM one GROUP BY day;
"""
        }
    )
    one, two = (next(s for s in project.persisted if s.name == n) for n in ("one", "two"))
    assert two.annotation.partition is not None
    order = keys(two.annotation.partition, datetime(2023, 1, 1, tzinfo=UTC))
    every = {one.source_id: order, two.source_id: order}
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        found = needed(project, two, one, order[::2], every, "UTC")
    finally:
        sys.setprofile(None)
    assert found == order[::2]
    assert calls < 100 * len(order), calls / len(order)
