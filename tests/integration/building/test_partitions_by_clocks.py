"""Hours, days, weeks and months of time zones: partitions contain the rows of the query."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from persist_assets.core.partitions import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from persist_assets.building.builder import Builder

NOW = datetime(2024, 12, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LAST = timedelta(microseconds=1)
Row = tuple[datetime, datetime]
"""An instant, and a time without a zone."""


def put(root: Path, rows: Iterable[Row]) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("at", pa.timestamp("us"))])
    listed = [{"ts": ts, "at": at} for ts, at in rows]
    write_deltalake(str(root / "f"), pa.Table.from_pylist(listed, schema), mode="append")


def around(zone: str, *days: str) -> list[Row]:
    """Return rows at the edges of days of a zone, and every half hour of them."""
    rows: list[Row] = []
    for day in days:
        local = datetime.fromisoformat(day)
        begin = local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        end = (local + timedelta(days=1)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        moments = [begin - LAST, begin, end - LAST, end]
        while begin < end:
            begin += timedelta(minutes=30)
            moments.append(begin + SECOND)
        rows += [(ts, ts.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for ts in moments]
    return rows


def key_of(every: str, local: datetime) -> str:
    """Return the key of the window that a local time is in."""
    local = local.replace(minute=0, second=0, microsecond=0)
    if every == "weekly":
        local -= timedelta(days=local.weekday())
    elif every == "monthly":
        local = local.replace(day=1)
    return local.strftime(FORMATS[every])  # pyright: ignore[reportArgumentType]


BERLIN, YORK = "Europe/Berlin", "America/New_York"
# The cadence, the column, its time zone, the session's, and days with edge cases.
SPRING, AUTUMN = ("2024-03-30", "2024-03-31"), ("2024-10-26", "2024-10-27")
ENDS = ("2024-01-31", "2024-02-29", "2024-03-31", "2024-10-31")
CASES = {
    "hours": ("hourly", "ts", "UTC", "UTC", SPRING),
    "hours, elsewhere": ("hourly", "ts", "UTC", BERLIN, AUTUMN),
    "local hours": ("hourly", "at", "UTC", BERLIN, AUTUMN),
    "days of Berlin": ("daily", "ts", BERLIN, "UTC", (*SPRING, *AUTUMN)),
    "days of Berlin, there": ("daily", "ts", BERLIN, BERLIN, (*SPRING, *AUTUMN)),
    "days of New York": ("daily", "ts", YORK, BERLIN, ("2024-03-10", "2024-11-03")),
    "dates of Berlin": ("daily", "day", BERLIN, BERLIN, (*SPRING, *AUTUMN)),
    "local days": ("daily", "at", BERLIN, BERLIN, (*SPRING, *AUTUMN)),
    "weeks of Berlin": ("weekly", "ts", BERLIN, BERLIN, ("2024-03-31", "2024-10-27")),
    "months": ("monthly", "ts", "UTC", "UTC", ENDS),
    "months of Berlin": ("monthly", "ts", BERLIN, "UTC", ENDS),
    "months of dates": ("monthly", "day", "UTC", YORK, ENDS),
}


@pytest.mark.slow
@pytest.mark.proves("K8", "P22")
@pytest.mark.parametrize("case", CASES)
def test_partitions_contain_exactly_the_rows_of_the_query(
    case: str, make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    every, column, zone, session, days = CASES[case]
    first, last = date.fromisoformat(days[0]), date.fromisoformat(days[-1])
    if every == "hourly":
        span = f'start="{first}" end="{last + timedelta(days=1)}"'
    else:
        span = f'start="2024-01-01" end="2024-11-04" timezone="{zone}"'
    text = (
        "CREATE TABLE f (ts TIMESTAMP, at TIMESTAMP_NTZ) USING delta LOCATION 'f';\n"
        f"--@ persist partition={every} time_column={column} {span}\n"
        "CREATE VIEW s AS SELECT ts, at, CAST(ts AS DATE) AS day FROM f;"
    )
    root = make_project({"m.sql": text}, f'timezone = "{session}"\n')

    def start() -> Builder:
        return enter(root, clock=lambda: NOW)

    def key(row: Row) -> str:
        ts, at = row
        local = ts.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        if column == "day":
            local = ts.astimezone(ZoneInfo(session)).replace(tzinfo=None)
        return key_of(every, at if column == "at" else local)

    def build(keys: Any = None) -> list[str]:
        builder = start()
        source = builder.project.by_id["s@sources/m.sql"]
        with builder.work(source, keys=keys) as work:
            builder.publish(work)
        return [*(work.step.keys or ())] if work.build.action == "built" else []

    def check(keys: Iterable[str]) -> None:
        builder = start()
        source = builder.project.by_id["s@sources/m.sql"]
        snapshot = builder.observer.manifest()[source.build_id]
        told = builder.reader.load_snapshot(snapshot).selectExpr(
            "unix_micros(ts)", "CAST(at AS STRING)"
        )
        found = Counter(r[0] for r in told.collect())
        wanted = Counter(
            (ts - datetime(1970, 1, 1, tzinfo=UTC)) // LAST
            for ts, at in rows
            if key((ts, at)) in {*keys}
        )
        assert found == wanted
        assert snapshot.rows == sum(wanted.values())

    rows = around(zone, *days)
    put(root, rows)
    order = start().observer.keys()["s@sources/m.sql"]
    busy = [k for k in dict.fromkeys(key(row) for row in sorted(rows)) if k in order]
    assert len(busy) > 2
    middle = len(busy) // 2
    # One alone, two together, and then the others.
    assert build([busy[middle]]) == [busy[middle]]
    check([busy[middle]])
    build([busy[middle - 1], busy[-1]])
    check([busy[middle], busy[middle - 1], busy[-1]])
    assert {*build()} == {*order} - {busy[middle], busy[middle - 1], busy[-1]}
    check(order)
    # Late rows, on the last of the days.
    begin = datetime.fromisoformat(days[-1]).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    late = [begin + timedelta(minutes=m, seconds=7) for m in (20, 80, 140, 200)]
    more = [(ts, ts.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for ts in late]
    put(root, more)
    rows += more
    reached = {key(row) for row in more} & {*order}
    assert reached <= {*build()}
    check(order)
    assert build() == []
