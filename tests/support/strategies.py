"""Tables of every strategy under random histories: they are what computing from scratch gives.

Raw data of a few rows grows, comes late, is changed and taken away; sources are edited, built,
built in part, again or as a whole, by runs that die at any step of theirs, stand still there while
others build, or build at the same time. Plain Python says which rows every table must have, and
Spark in the end what they measure. The processes are real ones and share this one's Spark, as the
processes of a machine share a server of it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import partial
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql  # imported once, for all children
from growing import kind_of
from histories import Child, Clock, Place, Run, Task, Zygote, attempt, step
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from machine import repeat
from malloy import there

from persist_assets.core.errors import BuildError, ConflictError, PersistError
from persist_assets.core.partitions import expand
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.leases import LEASE_S
from persist_assets.ledger.ledger import Ledger
from persist_assets.planning.world import older_code
from persist_assets.storage.delta_tables import read_version

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Row = tuple[Any, ...]
Raw = Mapping[str, Sequence[Row]]
"""The rows of the raw tables, by name."""

START = datetime(2024, 3, 25, tzinfo=UTC)
BEGIN = START + timedelta(days=9, hours=5)
"""Clocks are put forward in Berlin between the two, and a month ends."""
BERLIN = ZoneInfo("Europe/Berlin")
TICK = timedelta(microseconds=1)
EVENT = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int32()), ("v", pa.int32())])
KEYED = pa.schema([("k", pa.int32()), ("v", pa.int32())])
DECLARED = """
CREATE TABLE ev (ts TIMESTAMP, k INT, v INT) USING delta LOCATION 'raw/ev';
CREATE TABLE pq (ts TIMESTAMP, k INT, v INT) USING parquet LOCATION 'raw/pq';
CREATE TABLE dim (k INT, v INT) USING delta LOCATION 'raw/dim';
"""
HEADS = {
    "sources/m.sql": DECLARED,
    "sources/f.py": """
from persist_assets import incremental_filter, incremental_table, table
from pyspark.sql import functions as F
""",
    "sources/s.malloy": """##! experimental.persistence
source: ev is spark.table('ev')
""",
}
"""How files of sources begin, by their paths."""
Part = Callable[[Row], tuple[str, datetime] | None]
"""Returns the key of the partition that a row is in, and when that is over; None: it is in none."""


@dataclass(frozen=True)
class Kind:
    """A source of one strategy.

    Attributes
    ----------
    reads
        The raw tables and the sources that it reads.
    annotation
        What stands above it; of a function the decorator.
    texts
        What it says: at first, the same in other words, and something else. In a file of Python
        the body of a function, in one of Malloy a source.
    rows
        Returns its rows from those of what it reads, in that order; the last argument is 1 if it
        says something else, and 0 otherwise.
    time
        Which of its columns is the watermark's.
    part
        Which partitions it has.
    file
        Where it is.
    promised
        It is told that rows of the first that it reads are never older than a day before the last.
    ties
        Which of its rows are too many, where it must not be built with such.
    goes_on
        Its table goes on with rows of older code. Returns at which of its times rows are that
        follow from a row that it reads.
    closes
        It keeps versions of its rows: whether those of a key end when that goes.
    adds
        Its rows of a time may be of older code and of new code, each of rows that came under it.
    """

    reads: tuple[str, ...]
    annotation: str
    texts: tuple[str, str, str]
    rows: Callable[..., Iterable[Row]]
    time: int | None = None
    part: Part | None = None
    file: str = "sources/m.sql"
    promised: bool = False
    ties: Callable[[Iterable[Row]], bool] | None = None
    goes_on: Callable[[Row], Any] | None = None
    adds: bool = False
    closes: bool | None = None

    @property
    def is_told(self) -> bool:
        """Whether its rows follow from which builds there were, not from the data of now alone."""
        return self.promised or self.goes_on is not None or self.closes is not None


def _summed(rows: Iterable[Row], key: Callable[[Row], Row]) -> list[Row]:
    """Return for each key the sum and the number of its rows' last values."""
    told = sorted(((key(row), row[-1]) for row in rows), key=repr)
    groups = ((k, [v for _, v in some]) for k, some in groupby(told, lambda pair: pair[0]))
    return [(*k, sum(values), len(values)) for k, values in groups]


def _day(row: Row) -> date | None:
    return None if row[0] is None else row[0].date()


def _week(row: Row) -> date:
    return row[0] - timedelta(row[0].weekday())


def _windows(every: str, start: str, zone: tzinfo = UTC) -> Part:
    """Return which windows rows are in, whose first column is an instant or a day."""

    def part(row: Row) -> tuple[str, datetime] | None:
        if row[0] is None:
            return None
        is_instant = isinstance(row[0], datetime)
        local = row[0].astimezone(zone) if is_instant else datetime.combine(row[0], time())
        begin = local.replace(tzinfo=None, minute=0)
        if every != "hourly":
            begin = begin.replace(hour=0)
        match every:
            case "hourly":
                end = begin + timedelta(hours=1)
            case "weekly":
                begin -= timedelta(begin.weekday())
                end = begin + timedelta(7)
            case "monthly":
                begin = begin.replace(day=1)
                end = (begin + timedelta(31)).replace(day=1)
            case _:
                end = begin + timedelta(1)
        if begin < datetime.fromisoformat(start):
            return None
        form = "%Y-%m-%d-%H:%M" if every == "hourly" else "%Y-%m-%d"
        return begin.strftime(form), end.replace(tzinfo=zone)

    return part


def _listed(row: Row) -> tuple[str, datetime] | None:
    """Return which listed value the first column of a row has."""
    return (str(row[0]), START) if row[0] in (0, 1) else None


def _both(row: Row) -> tuple[str, datetime] | None:
    """Return which day and which listed value a row has."""
    day, listed = _windows("daily", "2024-03-25")(row), _listed(row[1:])
    return day and listed and (f"{day[0]}|{listed[0]}", day[1])


def _tied(rows: Iterable[Row]) -> bool:
    """Whether a key has several last rows, of (k, ts, v)."""
    last: dict[int, set[Row]] = {}
    for row in rows:
        there = last.setdefault(row[0], {row})
        at = next(iter(there))[1]
        if row[1] == at:
            there.add(row)
        elif at is None or (row[1] is not None and row[1] > at):
            last[row[0]] = {row}
    return any(len(there) > 1 for there in last.values())


def _last(rows: Sequence[Row], n: int) -> list[Row]:
    """Return the last row of each key: of equal times the greatest."""
    chosen: dict[int, Row] = {}
    for ts, k, v in rows:
        row = (k, ts, v + n)
        if k is not None:
            chosen[k] = max(chosen.get(k, row), row, key=lambda r: (r[1] is not None, r[1:]))
    return [*chosen.values()]


_BY_DAY = "SELECT CAST({0}ts AS DATE) AS day, {0}k, sum({0}v{1}) AS s, count(*) AS n FROM ev{2}"
_OF_A_DAY = (
    "SELECT CAST(ts AS DATE) AS day, date_add(DATE'2024-04-03', 0 - k) AS other, k,"
    " sum(v) OVER (PARTITION BY date_add(DATE'2024-04-03', 0 - k)) AS s FROM ev"
)
"""Of all days of a key the sum, at a day that is the key's own."""

_MODEL = (
    "source: model is {} -> {{ group_by: `day` is ts::date, k; "
    "aggregate: s is sum(v{}), n is count() }}"
)


def _other(k: int) -> date:
    return date(2024, 4, 3) - timedelta(k)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


KINDS: Mapping[str, Kind] = {
    "whole": Kind(
        ("ev",),
        "--@ persist",
        (
            "SELECT k, sum(v) AS s, count(*) AS n FROM ev GROUP BY k",
            "SELECT e.k, sum(e.v) AS s, count(*) AS n FROM ev AS e GROUP BY 1",
            "SELECT k, sum(v + 1) AS s, count(*) AS n FROM ev GROUP BY k",
        ),
        lambda rows, n: _summed([(k, v + n) for _, k, v in rows], lambda r: (r[0],)),
    ),
    "added": Kind(
        ("pq",),
        "--@ persist refresh=incremental watermark=ts",
        (
            "SELECT ts, k, v FROM pq WHERE v <> 3",
            "SELECT p.ts, p.k, p.v FROM pq AS p WHERE p.v <> 3",
            "SELECT ts, k, v FROM pq WHERE v <> 2",
        ),
        lambda rows, n: [row for row in rows if row[2] != 3 - n],
        time=0,
    ),
    "upper": Kind(
        ("added",),
        "--@ persist refresh=incremental watermark=ts",
        (
            "SELECT ts, sum(v) AS s, count(*) AS n FROM added GROUP BY ts",
            "SELECT a.ts, sum(a.v) AS s, count(*) AS n FROM added AS a GROUP BY a.ts",
            "SELECT ts, sum(v + 1) AS s, count(*) AS n FROM added GROUP BY ts",
        ),
        lambda rows, n: _summed([(ts, v + n) for ts, _, v in rows], lambda r: (r[0],)),
        time=0,
    ),
    "windows": Kind(
        ("ev",),
        "--@ persist refresh=incremental watermark=day",
        (
            f"{_BY_DAY.format('', '', '')} GROUP BY 1, 2",
            f"{_BY_DAY.format('e.', '', ' AS e')} GROUP BY 1, 2",
            f"{_BY_DAY.format('', ' + 1', '')} GROUP BY 1, 2",
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
    ),
    "latest": Kind(
        ("ev",),
        "--@ persist refresh=incremental watermark=ts merge_key=k { on_tie=greatest }",
        (
            "SELECT k, ts, v FROM ev WHERE k IS NOT NULL",
            "SELECT e.k, e.ts, e.v FROM ev AS e WHERE e.k IS NOT NULL",
            "SELECT k, ts, v + 1 AS v FROM ev WHERE k IS NOT NULL",
        ),
        _last,
        time=1,
    ),
    "daily": Kind(
        ("ev",),
        '--@ persist partition=daily time_column=day start="2024-03-25"',
        (
            f"{_BY_DAY.format('', '', '')} GROUP BY 1, 2",
            f"{_BY_DAY.format('e.', '', ' AS e')} GROUP BY 1, 2",
            f"{_BY_DAY.format('', ' + 1', '')} GROUP BY 1, 2",
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
        part=_windows("daily", "2024-03-25"),
    ),
    "weekly": Kind(
        ("daily",),
        '--@ persist partition=weekly time_column=week start="2024-03-25"',
        (
            "SELECT CAST(date_trunc('week', day) AS DATE) AS week, sum(s) AS s, count(*) AS n"
            " FROM daily GROUP BY 1",
            "SELECT CAST(date_trunc('week', d.day) AS DATE) AS week, sum(d.s) AS s, count(*) AS n"
            " FROM daily AS d GROUP BY 1",
            "SELECT CAST(date_trunc('week', day) AS DATE) AS week, sum(s + 1) AS s, count(*) AS n"
            " FROM daily GROUP BY 1",
        ),
        lambda rows, n: _summed([(r[0], r[2] + n) for r in rows], lambda r: (_week(r),)),
        time=0,
        part=_windows("weekly", "2024-03-25"),
    ),
    "function": Kind(
        ("ev",),
        '@incremental_table(time_column="ts", lookback="1 day", assume="exact")',
        (
            "return ev.transform(incremental_filter('ts')).select('ts', 'k', F.expr('v * 2 AS v'))",
            "# twice\n    "
            "return ev.transform(incremental_filter('ts')).select('ts','k', F.expr('v * 2 AS v'))",
            "return ev.transform(incremental_filter('ts')).select('ts', 'k', F.expr('v * 3 AS v'))",
        ),
        lambda rows, n: [(ts, k, v * (2 + n)) for ts, k, v in rows],
        time=0,
        file="sources/f.py",
        promised=True,
    ),
    "merged": Kind(
        ("ev",),
        "#@ merge_key=k { on_tie=greatest }\n"
        '@incremental_table(time_column="ts", lookback="1 day", assume="exact")',
        (
            "return ev.transform(incremental_filter('ts')).filter('k >= 0').select('k', 'ts', 'v')",
            "some = ev.transform(incremental_filter('ts')).filter('k >= 0')\n    "
            "return some.select('k', 'ts', 'v')",
            "return ev.transform(incremental_filter('ts')).filter('k >= 0')"
            ".select('k', 'ts', F.expr('v + 1 AS v'))",
        ),
        _last,
        time=1,
        file="sources/f.py",
        promised=True,
    ),
    "parts": Kind(
        ("ev",),
        '@table(partition="daily", time_column="day", start="2024-03-25")',
        (
            "days = ev.transform(incremental_filter('ts')).selectExpr('CAST(ts AS DATE) AS day', 'k', 'v')\n"
            "    return days.groupBy('day', 'k').agg(F.sum('v').alias('s'), F.count('*').alias('n'))",
            "return (ev.transform(incremental_filter('ts')).selectExpr('CAST(ts AS DATE) AS day', 'k', 'v')\n"
            "        .groupBy('day', 'k').agg(F.sum('v').alias('s'), F.count('*').alias('n')))",
            "days = ev.transform(incremental_filter('ts')).selectExpr('CAST(ts AS DATE) AS day', 'k', 'v')\n"
            "    return days.groupBy('day', 'k').agg(F.expr('sum(v + 1) AS s'), F.count('*').alias('n'))",
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
        part=_windows("daily", "2024-03-25"),
        file="sources/f.py",
    ),
    "since": Kind(
        ("ev",),
        '--@ persist refresh=incremental watermark=last assume=exact lookback="1 day"',
        (
            "SELECT max(ts) AS last, k, sum(v) AS s FROM ev WHERE ts > :watermark GROUP BY k, ts",
            "SELECT max(ts) AS last, e.k, sum(v) AS s FROM ev AS e"
            " WHERE e.ts >= :watermark GROUP BY ts, k",
            "SELECT max(ts) AS last, k, sum(v + 1) AS s FROM ev WHERE ts > :watermark"
            " GROUP BY k, ts",
        ),
        lambda rows, n: [
            row[:3] for row in _summed([(ts, k, v + n) for ts, k, v in rows if ts], lambda r: r[:2])
        ],
        time=0,
        promised=True,
    ),
    "beside": Kind(
        ("ev", "daily"),
        "--@ persist refresh=incremental watermark=ts",
        (
            "SELECT e.ts, e.k, d.s, e.v FROM ev e JOIN daily d ON d.k = e.k AND d.day < e.ts",
            "SELECT e.ts, e.k, d.s, e.v FROM daily d JOIN ev e ON d.day < e.ts AND d.k = e.k",
            "SELECT e.ts, e.k, d.s, e.v + 1 AS v FROM ev e JOIN daily d"
            " ON d.k = e.k AND d.day < e.ts",
        ),
        lambda ev, daily, n: [
            (ts, k, s, v + n)
            for ts, k, v in ev
            for day, i, s, _ in daily
            if ts is not None and k is not None and k == i and _midnight(day) < ts
        ],
        time=0,
    ),
    "against": Kind(
        ("ev", "latest"),
        '--@ persist partition=daily time_column=day start="2024-03-25"',
        (
            "SELECT CAST(e.ts AS DATE) AS day, e.k, max(l.v) AS m, sum(e.v) AS s"
            " FROM ev e JOIN latest l ON l.k = e.k GROUP BY 1, 2",
            "SELECT CAST(e.ts AS DATE) AS day, e.k, max(l.v) AS m, sum(e.v) AS s"
            " FROM latest l JOIN ev e ON e.k = l.k GROUP BY 1, 2",
            "SELECT CAST(e.ts AS DATE) AS day, e.k, max(l.v) AS m, sum(e.v + 1) AS s"
            " FROM ev e JOIN latest l ON l.k = e.k GROUP BY 1, 2",
        ),
        lambda ev, latest, n: [
            (day, k, v, s)
            for day, k, s, _ in _summed(
                [(ts, k, v + n) for ts, k, v in ev], lambda r: (_day(r), r[1])
            )
            for i, _, v in latest
            if k is not None and k == i
        ],
        time=0,
        part=_windows("daily", "2024-03-25"),
    ),
    "shares": Kind(
        ("ev",),
        "--@ persist refresh=incremental watermark=day",
        (
            f"SELECT day, k, s FROM ({_OF_A_DAY}) WHERE other = day",
            f"SELECT x.day, x.k, x.s FROM ({_OF_A_DAY}) AS x WHERE x.day = x.other",
            f"SELECT day, k, s + 1 AS s FROM ({_OF_A_DAY}) WHERE other = day",
        ),
        lambda ev, n: [
            (_day((ts,)), k, n + sum(w for _, i, w in ev if i == k))
            for ts, k, _ in ev
            if ts is not None and k is not None and _other(k) == ts.date()
        ],
        time=0,
    ),
    "kept": Kind(
        ("dim",),
        "--@ persist refresh=snapshot key=k",
        (
            "SELECT k, v FROM dim",
            "SELECT d.k, d.v FROM dim AS d",
            "SELECT k, v + 1 AS v FROM dim",
        ),
        lambda rows, n: [(k, v + n) for k, v in rows],
        closes=True,
    ),
    "ignored": Kind(
        ("dim",),
        "--@ persist refresh=snapshot key=k watch=v hard_deletes=ignore",
        (
            "SELECT k, v FROM dim WHERE k > 0",
            "SELECT d.k, d.v FROM dim AS d WHERE 0 < d.k",
            "SELECT k, v + 1 AS v FROM dim WHERE k > 0",
        ),
        lambda rows, n: [(k, v + n) for k, v in rows if k is not None and k > 0],
        closes=False,
    ),
    "strict": Kind(
        ("ev",),
        "--@ persist refresh=incremental watermark=ts merge_key=k",
        (
            "SELECT k, ts, v FROM ev WHERE k IS NOT NULL AND v IN (1, 4)",
            "SELECT e.k, e.ts, e.v FROM ev AS e WHERE e.v IN (1, 4) AND e.k IS NOT NULL",
            "SELECT k, ts, v + 1 AS v FROM ev WHERE k IS NOT NULL AND v IN (1, 4)",
        ),
        lambda rows, n: _last([row for row in rows if row[2] in (1, 4)], n),
        time=1,
        ties=lambda rows: _tied((k, ts, v) for ts, k, v in rows if k is not None and v in (1, 4)),
    ),
    "hourly": Kind(
        ("ev",),
        '--@ persist partition=hourly time_column=hour start="2024-03-31-00:00"',
        (
            "SELECT date_trunc('HOUR', ts) AS hour, k, sum(v) AS s FROM ev GROUP BY 1, 2",
            "SELECT date_trunc('HOUR', e.ts) AS hour, e.k, sum(v) AS s FROM ev e GROUP BY 1, 2",
            "SELECT date_trunc('HOUR', ts) AS hour, k, sum(v + 1) AS s FROM ev GROUP BY 1, 2",
        ),
        lambda rows, n: [
            row[:3]
            for row in _summed(
                [(ts and ts.replace(minute=0), k, v + n) for ts, k, v in rows], lambda r: r[:2]
            )
        ],
        time=0,
        part=_windows("hourly", "2024-03-31"),
    ),
    "zoned": Kind(
        ("pq",),
        '--@ persist partition=daily time_column=ts timezone="Europe/Berlin" start="2024-02-20"',
        (
            "SELECT ts, k, v FROM pq WHERE v <> 3",
            "SELECT p.ts, p.k, p.v FROM pq AS p WHERE p.v <> 3",
            "SELECT ts, k, v FROM pq WHERE v <> 2",
        ),
        lambda rows, n: [row for row in rows if row[2] != 3 - n],
        time=0,
        part=_windows("daily", "2024-02-20", BERLIN),
    ),
    "monthly": Kind(
        ("zoned",),
        '--@ persist partition=monthly time_column=ts timezone="Europe/Berlin" start="2024-02-01"',
        (
            "SELECT ts, sum(v) AS s, count(*) AS n FROM zoned GROUP BY ts",
            "SELECT l.ts, sum(l.v) AS s, count(*) AS n FROM zoned AS l GROUP BY l.ts",
            "SELECT ts, sum(v + 1) AS s, count(*) AS n FROM zoned GROUP BY ts",
        ),
        lambda rows, n: _summed([(ts, v + n) for ts, _, v in rows], lambda r: (r[0],)),
        time=0,
        part=_windows("monthly", "2024-02-01", BERLIN),
    ),
    "listed": Kind(
        ("ev",),
        "--@ persist partition { k=[0, 1] }",
        (
            "SELECT k, sum(v) AS s, count(*) AS n FROM ev GROUP BY k",
            "SELECT e.k, sum(e.v) AS s, count(*) AS n FROM ev AS e GROUP BY 1",
            "SELECT k, sum(v + 1) AS s, count(*) AS n FROM ev GROUP BY k",
        ),
        lambda rows, n: _summed([(k, v + n) for _, k, v in rows], lambda r: (r[0],)),
        part=_listed,
    ),
    "grid": Kind(
        ("ev",),
        '--@ persist partition { day=daily k=[0, 1] } start="2024-03-25"',
        (
            f"{_BY_DAY.format('', '', '')} GROUP BY 1, 2",
            f"{_BY_DAY.format('e.', '', ' AS e')} GROUP BY 1, 2",
            f"{_BY_DAY.format('', ' + 1', '')} GROUP BY 1, 2",
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
        part=_both,
    ),
    "lines": Kind(
        ("grid",),
        '--@ persist partition=daily time_column=day start="2024-03-25"',
        (
            "SELECT day, sum(s) AS s, count(*) AS n FROM grid GROUP BY day",
            "SELECT g.day, sum(g.s) AS s, count(*) AS n FROM grid AS g GROUP BY 1",
            "SELECT day, sum(s + 1) AS s, count(*) AS n FROM grid GROUP BY day",
        ),
        lambda rows, n: _summed([(day, s + n) for day, _, s, _ in rows], lambda r: (r[0],)),
        time=0,
        part=_windows("daily", "2024-03-25"),
    ),
    "model": Kind(
        ("ev",),
        "#@ persist refresh=incremental watermark=day",
        (
            _MODEL.format("ev", ""),
            _MODEL.format("ev extend { dimension: w is v }", ""),
            _MODEL.format("ev", " + 1"),
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
        file="sources/s.malloy",
    ),
    "onward": Kind(
        ("pq",),
        "--@ persist refresh=incremental on_change=continue watermark=ts",
        (
            "SELECT ts, k, v FROM pq WHERE v <> 3",
            "SELECT p.ts, p.k, p.v FROM pq AS p WHERE p.v <> 3",
            "SELECT ts, k, v + 1 AS v FROM pq WHERE v <> 2",
        ),
        lambda rows, n: [(ts, k, v + n) for ts, k, v in rows if v != 3 - n],
        time=0,
        goes_on=lambda row: row[0],
        adds=True,
    ),
    "mixed": Kind(
        ("onward",),
        "--@ persist refresh=incremental watermark=ts",
        (
            "SELECT ts, sum(v) AS s, count(*) AS n FROM onward GROUP BY ts",
            "SELECT a.ts, sum(a.v) AS s, count(*) AS n FROM onward AS a GROUP BY a.ts",
            "SELECT ts, sum(v + 1) AS s, count(*) AS n FROM onward GROUP BY ts",
        ),
        lambda rows, n: _summed([(ts, v + n) for ts, _, v in rows], lambda r: (r[0],)),
        time=0,
    ),
    "ongoing": Kind(
        ("ev",),
        "--@ persist refresh=incremental on_change=continue watermark=day",
        (
            f"{_BY_DAY.format('', '', '')} GROUP BY 1, 2",
            f"{_BY_DAY.format('e.', '', ' AS e')} GROUP BY 1, 2",
            f"{_BY_DAY.format('', ' + 1', '')} GROUP BY 1, 2",
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
        goes_on=_day,
    ),
    "grouped": Kind(
        ("ev",),
        "--@ persist refresh=incremental",
        (
            "SELECT k, sum(v) AS s, count(*) AS n FROM ev GROUP BY k HAVING sum(v) > 0",
            "SELECT e.k, sum(e.v) AS s, count(*) AS n FROM ev AS e GROUP BY 1 HAVING sum(e.v) > 0",
            "SELECT k, sum(v + 1) AS s, count(*) AS n FROM ev GROUP BY k HAVING sum(v + 1) > 0",
        ),
        lambda rows, n: [
            row for row in _summed([(k, v + n) for _, k, v in rows], lambda r: (r[0],)) if row[1]
        ],
    ),
    "matched": Kind(
        ("ev", "dim"),
        "--@ persist refresh=incremental",
        (
            "SELECT e.k, e.v, d.v AS w FROM ev e LEFT JOIN dim d ON d.k = e.k",
            "SELECT e.k, e.v, d.v AS w FROM dim d RIGHT JOIN ev e ON e.k = d.k",
            "SELECT e.k, e.v + 1 AS v, d.v AS w FROM ev e LEFT JOIN dim d ON d.k = e.k",
        ),
        lambda ev, dim, n: [
            (k, v + n, w)
            for _, k, v in ev
            for w in [w for i, w in dim if i == k and k is not None] or [None]
        ],
    ),
    "ranked": Kind(
        ("ev",),
        "--@ persist refresh=incremental",
        (
            "SELECT k, v, rank() OVER (PARTITION BY k ORDER BY v DESC) AS nth FROM ev",
            "SELECT e.k, v, rank() OVER (PARTITION BY e.k ORDER BY e.v DESC) AS nth FROM ev AS e",
            "SELECT k, v + 1 AS v, rank() OVER (PARTITION BY k ORDER BY v DESC) AS nth FROM ev",
        ),
        lambda ev, n: [(k, v + n, 1 + sum(i == k and w > v for _, i, w in ev)) for _, k, v in ev],
    ),
    "absent": Kind(
        ("dim", "ev"),
        "--@ persist refresh=incremental",
        (
            "SELECT k, v FROM dim d WHERE NOT EXISTS (SELECT 1 FROM ev e WHERE e.k = d.k AND e.v > 2)",
            "SELECT d.k, d.v FROM dim d LEFT ANTI JOIN ev e ON d.k = e.k AND 2 < e.v",
            "SELECT k, v FROM dim d WHERE NOT EXISTS (SELECT 1 FROM ev e WHERE e.k = d.k AND e.v > 1)",
        ),
        lambda dim, ev, n: [
            (k, v) for k, v in dim if not any(i == k and w > 2 - n for _, i, w in ev)
        ],
    ),
    "unique": Kind(
        ("ev",),
        "--@ persist refresh=incremental",
        (
            "SELECT DISTINCT k, v FROM ev",
            "SELECT k, v FROM ev GROUP BY k, v",
            "SELECT DISTINCT k, v + 1 AS v FROM ev",
        ),
        lambda ev, n: {(k, v + n) for _, k, v in ev},
    ),
    "several": Kind(
        ("matched", "grouped"),
        "--@ persist refresh=incremental",
        (
            "SELECT m.v, m.w, g.s FROM matched m JOIN grouped g ON g.k = m.k WHERE m.w > 0",
            "SELECT m.v, m.w, g.s FROM grouped g, matched m WHERE m.k = g.k AND 0 < m.w",
            "SELECT m.v + 1 AS v, m.w, g.s FROM matched m JOIN grouped g ON g.k = m.k WHERE m.w > 0",
        ),
        lambda matched, grouped, n: [
            (v + n, w, s)
            for k, v, w in matched
            for i, s, _ in grouped
            if k is not None and i == k and w is not None and w > 0
        ],
    ),
}
BY_DELTAS = ("grouped", "matched", "ranked", "absent", "unique", "several")
"""Those of which only rows that can differ are computed; `explore` chooses them by their names."""
POSSIBLE = [
    name
    for name, kind in KINDS.items()
    if name not in BY_DELTAS and (kind.file != "sources/s.malloy" or there())
]
"""The others, as far as what is installed can build them."""
SCHEMAS = {"ev": EVENT, "pq": EVENT, "dim": KEYED}


def closed(names: Iterable[str]) -> list[str]:
    """Return sources and those that they read, in an order in which they can be built."""
    wanted = {*names}
    for name in reversed(KINDS):
        if name in wanted:
            wanted |= KINDS.keys() & KINDS[name].reads
    return [name for name in KINDS if name in wanted]


def write_code(root: Path, code: Mapping[str, int]) -> None:
    """Write the files of sources, each in one of its variants."""
    written = {path: [head] for path, head in HEADS.items()}
    for name, n in code.items():
        kind, text = KINDS[name], KINDS[name].texts[n]
        if kind.file == "sources/f.py":
            text = f"def {name}({', '.join(kind.reads)}):\n    {text}"
        elif kind.file == "sources/m.sql":
            text = f"CREATE VIEW {name} AS {text};"
        written[kind.file].append(f"{kind.annotation}\n{text}\n")
    (root / "sources").mkdir(exist_ok=True)
    for path, parts in written.items():
        if len(parts) > 1 or path == "sources/m.sql":
            (root / path).write_text("\n".join(parts))


def read_rows(files: Iterable[str]) -> list[Row]:
    """Return the rows of Parquet files; instants are aware ones."""
    found: list[Row] = []
    for path in files:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            table = file.read(use_threads=False)
        columns = [c.to_pylist() for c in table.columns]
        found += zip(*(map(_aware, column) for column in columns), strict=True)
    return found


def _aware(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


# --------------------------------------------------------------------------------------- the data


class RawData:
    """The raw tables of a project, as others write them."""

    def __init__(self, root: Path) -> None:
        self.root, self.n = root / "raw", 0
        for name, schema in SCHEMAS.items():
            (self.root / name).mkdir(parents=True)
            if name != "pq":
                deltalake.write_deltalake(str(self.root / name), schema.empty_table())

    def rows(self, name: str) -> list[Row]:
        if name == "pq":
            return read_rows(map(str, self._files()))
        return read_rows(deltalake.DeltaTable(str(self.root / name)).file_uris())

    def _files(self) -> list[Path]:
        return sorted((self.root / "pq").glob("*.parquet"))

    def _put(self, name: str, rows: Sequence[Row], mode: Any = "append") -> None:
        schema = SCHEMAS[name]
        listed = [dict(zip(schema.names, row[-len(schema) :], strict=True)) for row in rows]
        table = pa.Table.from_pylist(listed, schema)
        if name == "pq":
            self.n += 1
            pq.write_table(table, self.root / "pq" / f"{self.n:05}.parquet")
        else:
            deltalake.write_deltalake(str(self.root / name), table, mode=mode)

    def append(self, name: str, rows: Sequence[Row], k: int) -> None:
        if name == "dim":  # a key has one row
            known = {row[0]: row for row in self.rows(name)}
            rows = [*(known | {row[1]: row[1:] for row in rows if row[1] is not None}).values()]
            self._put(name, rows, "overwrite")
        else:
            self._put(name, rows)

    def overwrite(self, name: str, rows: Sequence[Row], k: int) -> None:
        for file in self._files() if name == "pq" else ():
            file.unlink()
        if name == "dim":
            rows = [*{row[1]: row for row in rows if row[1] is not None}.values()]
        self._put(name, rows, "overwrite")

    def update(self, name: str, rows: Sequence[Row], k: int) -> None:
        if name != "pq":
            table = deltalake.DeltaTable(str(self.root / name))
            table.update({"v": "v + 1"}, predicate=f"k = {k}")
        for file in self._files()[k : k + 1] if name == "pq" else ():
            self._put(name, [(ts, i, v + 1) for ts, i, v in read_rows([str(file)])])
            file.unlink()

    def delete(self, name: str, rows: Sequence[Row], k: int) -> None:
        if name != "pq":
            deltalake.DeltaTable(str(self.root / name)).delete(f"k = {k}")
        elif len(self._files()) == 1:  # a directory without any file is refused
            self.overwrite(name, [], k)
        else:
            for file in self._files()[k : k + 1]:
                file.unlink()

    def compact(self, name: str, rows: Sequence[Row], k: int) -> None:
        """The same rows are in other files."""
        if name != "pq":
            deltalake.DeltaTable(str(self.root / name)).optimize.compact()
        elif self._files():
            there, files = self.rows(name), self._files()
            self._put(name, there)
            for file in files:
                file.unlink()


# --------------------------------------------------------------------------------------- the runs


class Keeping(Run):
    """A run that builds, by tasks of its own."""

    def source(self, name: str) -> Source:
        return next(s for s in self.project.persisted if s.name == name)

    def _build(self, name: str, **how: Any) -> str:
        with self.builder.work(self.source(name), **how) as work:
            self.builder.publish(work)
        kind = kind_of(work)
        return "partitions" if work.step.keys is not None and kind != "reused" else kind

    def build(self, names: Iterable[str], force: bool | Sequence[str] = False) -> dict[str, Any]:
        """Return of each source how its rows came to be, or its error."""
        forced = names if force is True else force or ()
        return {n: attempt(self._build, n, force=n in forced) for n in names}

    def some(self, name: str, last: int, n: int) -> dict[str, Any]:
        """Build some partitions, up to the one that so many come after."""
        source = self.source(name)
        keys = self.builder.observer.observe([source]).keys[source.source_id]
        end = len(keys) - last % len(keys)
        return {name: attempt(self._build, name, keys=keys[max(end - n, 0) : end])}

    def rerun(self, name: str, low: str, high: str) -> dict[str, Any]:
        return {name: attempt(self._build, name, recompute_span=(low, high))}


def join(port: int, token: str) -> Any:
    """Return the Spark session of another process, in this one.

    Spark's own way for those who bring a session: notebooks do so.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": token}
    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    there = jvm.org.apache.spark.SparkContext.getOrCreate()
    java = jvm.org.apache.spark.api.java.JavaSparkContext(there)
    conf = SparkConf(_jvm=jvm, _jconf=java.getConf())
    context = SparkContext(gateway=gateway, jsc=java, conf=conf)
    return pyspark.sql.SparkSession(context, jvm.org.apache.spark.sql.classic.SparkSession.active())


def begin(port: int, token: str, connection: Any, *arguments: Any) -> None:
    """Do a task in this process, step by step."""
    spark = join(port, token)
    step(
        connection,
        *arguments,
        make=partial(Keeping, engine=lambda s: SparkEngine(s, lambda: spark)),
    )


# ------------------------------------------------------------------------------------ the machine


@dataclass
class Tally:
    """What all histories of a test came to."""

    histories: int = 0
    steps: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])
    killed: Counter[str] = field(default_factory=Counter[str])
    halted: Counter[str] = field(default_factory=Counter[str])
    builds: Counter[str] = field(default_factory=Counter[str])
    tables: Counter[str] = field(default_factory=Counter[str])

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        parts = [f"{self.histories} histories, {self.steps.total()} steps {dict(self.steps)}"]
        parts.append(f"data and code: {dict(self.events)}")
        parts.append(f"killed {self.killed.total()}: {dict(self.killed.most_common())}")
        parts.append(f"halted {self.halted.total()}: {dict(self.halted.most_common())}")
        parts.append(f"builds: {dict(self.builds.most_common())}")
        return "\n".join([*parts, f"tables compared: {dict(self.tables.most_common())}"])


_whens = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 4, 7, 40, -1, None))
"""How many days ago; -1 is tomorrow, None no time."""
_hours = st.sampled_from((0, 1, 12, 12, 22))
"""Where clocks are put forward the second is the one left out, the last one is on the next day."""
_row = st.tuples(_whens, _hours, st.sampled_from((0, 1, 2, None)), st.sampled_from(range(5)))
_rows = st.lists(_row, min_size=1, max_size=3)
_what = st.sampled_from(
    ("append", "append", "append", "append", "update", "delete", "overwrite", "compact", "code")
)
_events = st.lists(
    st.tuples(_what, st.sampled_from(range(6)), _rows, st.sampled_from(range(3))), max_size=2
)
_places = st.tuples(
    st.sampled_from(
        ("delta", "delta", "delta", "files", "transaction", "commit", "export", "files", "")
    ),
    st.sampled_from((0, 0, 1, 1, 2, 3)),
)
_acts = st.sampled_from(
    (
        "build",
        "build",
        "all",
        "force",
        "some",
        "rerun",
        "kill",
        "kill",
        "kill",
        "halt",
        "park",
        "both",
    )
)
_seldom = st.sampled_from((0, 0, 0, 1))


class Histories(RuleBasedStateMachine):
    """One project, which some sources are chosen for."""

    spark: ClassVar[Any]
    zygote: ClassVar[Zygote]
    tally: ClassVar[Tally]
    toml: ClassVar[str]
    contents: ClassVar[dict[Any, str]]
    """What rows measured, anywhere: the same rows always the same."""
    only: ClassVar[str | None] = None
    """What is chosen, whatever would have been."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.children: list[Child] = []

    @initialize(
        chosen=st.one_of(
            st.just(None),
            *(st.sets(st.sampled_from(POSSIBLE), min_size=1, max_size=2) for _ in range(99)),
        ),
        rows=st.lists(_row, min_size=3, max_size=6),
        built=st.sampled_from((True, True, False)),
    )
    def start(self, chosen: set[str] | None, rows: list[Row], built: bool) -> None:
        """None stands for no history: hypothesis begins with what is simplest, at full length."""
        if chosen is None:
            return
        self.tally.histories += 1
        self.root = Path(tempfile.mkdtemp(prefix="strategies-"))
        self.clock = Clock(BEGIN)
        self.names = closed({self.only} if self.only else chosen)
        self.code = dict.fromkeys(self.names, 0)
        self.bases = [b for b in SCHEMAS if any(b in KINDS[n].reads for n in self.names)]
        (self.root / "persist.toml").write_text(self.toml)
        write_code(self.root, self.code)
        self.raw = RawData(self.root)
        for name in self.bases:
            self.raw.append(name, self.timed(rows), 0)
        self.versions: dict[str, list[Row]] = {}
        self.promised: dict[str, tuple[Counter[Row], str | None]] = {}
        self.owed: set[str] = set()
        self.built: dict[str, list[tuple[Counter[Row], Counter[Row]]]] = {}
        self.seen: set[str] = set()
        self.said: list[str] = [f"{self.names}"]
        if built:
            self.build_all()

    @rule(
        events=_events,
        act=_acts,
        n=st.sampled_from(range(6)),
        place=_places,
        days=_seldom,
        more=_seldom,
    )
    def step(self, events: list[Any], act: str, n: int, place: Place, days: int, more: int) -> None:
        """What comes next. One rule for all: hypothesis would leave most of several rules out."""
        if not self.names:
            return
        self.tally.steps[act] += 1
        self.wait(days)
        self.happen(events)
        self.said.append(f"{act} {n} {place} at {self.clock.now}")
        getattr(self, f"do_{act}")(n, place)
        if more:
            self.build_all()

    def teardown(self) -> None:
        if not self.names:
            return
        try:
            self.finish()
            self.build_all()
            self.check_measures()
            if gone_on := [name for name in self.names if KINDS[name].goes_on]:
                self.do(("build", gone_on, True))
                self.build_all()
                self.check_measures()
        except BaseException as error:
            error.add_note("\n".join(self.said))
            raise
        finally:
            for child in self.children:
                child.kill()
            shutil.rmtree(self.root, ignore_errors=True)

    # ------------------------------------------------------------------------ what may happen

    def wait(self, days: int = 0) -> None:
        """Let time pass, more than a dead process' lease lives."""
        self.clock.now += timedelta(days=days, seconds=2 * LEASE_S)

    def timed(self, rows: Iterable[tuple[int | None, int, int | None, int]]) -> list[Row]:
        today = self.clock.now.replace(hour=0, minute=0, second=0, microsecond=0)
        return [
            (None if ago is None else today - timedelta(days=ago) + timedelta(hours=hour), k, v)
            for ago, hour, k, v in rows
        ]

    def happen(self, events: Iterable[tuple[str, int, list[Any], int]]) -> None:
        """Let raw data and code change."""
        for what, which, rows, k in events:
            self.tally.events[what] += 1
            if what == "code":
                name = self.names[which % len(self.names)]
                self.said.append(f"code {name} {k}")
                self.code[name] = k
                write_code(self.root, self.code)
            else:
                name, timed = self.bases[which % len(self.bases)], self.timed(rows)
                self.said.append(f"{what} {name} {timed} {k}")
                getattr(self.raw, what)(name, timed, k)

    def do_build(self, n: int, place: Place) -> None:
        self.do(("build", [self.names[n % len(self.names)]]))

    def do_all(self, n: int, place: Place) -> None:
        self.build_all()

    def do_force(self, n: int, place: Place) -> None:
        self.do(("build", self.names, True))

    def do_some(self, n: int, place: Place) -> None:
        """Build some partitions, of the source that has the most."""
        self.do(self.task(1, n))

    def do_rerun(self, n: int, place: Place) -> None:
        self.do(self.task(2, n))

    def do_kill(self, n: int, place: Place) -> None:
        """Another process builds, and is killed at a step of it."""
        self.hold(self.task(n, n), place, gently=False)
        for child in self.children:
            assert child.step is not None
            self.tally.killed[child.step] += 1
            self.said.append(f"killed {child.step}")
            child.kill()
        self.children.clear()
        self.check_claims()

    def do_halt(self, n: int, place: Place) -> None:
        """Another process stands still for longer than its lease lives, while others build."""
        meant, forced = self.hold(self.task(n, n), place, gently=True)
        if self.children:
            self.happen([("append", n, [(n, 12, 1, 1), (0, 0, 2, 4)], 0)] if n % 2 else ())
            self.build_all()
            self.finish()
            self.learn(meant, forced)
        self.check_claims()

    def do_park(self, n: int, place: Place) -> None:
        """A run builds ahead of its turn, and others build before that comes."""
        run, meant = self.run(), self.meant()
        ahead = {name: run.park(name) for name in self.names}
        self.judge({name: r for name, r in ahead.items() if isinstance(r, PersistError)})
        self.check_claims()
        if n % 3:
            self.happen([("append", n, [(n, 12, 1, 1), (0, 0, 2, 4)], 0)] if n % 2 else ())
            self.build_all()
        done = {name: run.resume(name) for name in run.parked.copy()}
        told = {n: r if isinstance(r, PersistError) else "resumed" for n, r in done.items()}
        self.judge(told, PersistError)
        run.close()
        self.learn(meant, ())
        self.check_claims()

    def do_both(self, n: int, place: Place) -> None:
        """Two runs build the same at once."""
        meant, forced = self.meant(), self.owed_names()
        runs = [self.run(patient=True) for _ in range(2)]
        tasks = [("build", self.names, forced), self.task(n, n)]
        with ThreadPoolExecutor(2) as pool:
            done = [*pool.map(lambda pair: pair[0].perform(pair[1]), zip(runs, tasks, strict=True))]
        for results in done:
            self.judge(results, ConflictError)
        for run in runs:
            run.close()
        self.learn(meant, [*forced, *self.forced(tasks[1])])
        self.check_claims()

    # ------------------------------------------------------------------------------- the runs

    def task(self, kind: int, n: int) -> Task:
        """Return something to do."""
        partitioned = [name for name in self.names if KINDS[name].part]
        timed = [name for name in self.names if KINDS[name].time is not None]
        match kind:
            case 1 if partitioned:
                return ("some", partitioned[0], 2 * n, 1 + n)
            case 2 if timed:
                low = START + timedelta(days=2 * n)
                high = low + timedelta(days=n)
                name = timed[n % len(timed)]
                return ("rerun", name, low.date().isoformat(), high.date().isoformat())
            case 3 | 4:
                return ("build", self.names, True)
            case _:
                return ("build", self.names, self.owed_names())

    @staticmethod
    def forced(task: Task) -> Sequence[str]:
        if task[0] != "build" or len(task) < 3:
            return ()
        return task[1] if task[2] is True else task[2]

    def run(self, *, patient: bool = False) -> Keeping:
        spark = type(self).spark
        return Keeping(
            self.root, "dev", self.clock, lambda s: SparkEngine(s, lambda: spark), patient=patient
        )

    def do(self, task: Task) -> dict[str, Any]:
        """Let a run of this process do something."""
        run, meant = self.run(), self.meant()
        results = run.perform(task)
        self.judge(results)
        self.learn(meant, self.forced(task), run)
        self.check_claims(run)
        run.close()
        return results

    def hold(self, task: Task, place: Place, *, gently: bool) -> tuple[Meant, Sequence[str]]:
        """Let another process do something up to a step, or to its end."""
        gateway = self.spark.sparkContext._gateway.gateway_parameters
        meant, forced = self.meant(), self.forced(task)
        do = partial(begin, gateway.port, gateway.auth_token)
        child = Child(self.zygote, self.root, "dev", task, self.clock, place, gently=gently, do=do)
        if child.step is None:
            self.judge(child.result)
        else:
            self.tally.halted[child.step] += gently
            self.children.append(child)
        self.learn(meant, forced)
        self.wait()
        return meant, forced

    def finish(self) -> None:
        """Let those who stand still come to their end, whatever that is."""
        while self.children:
            child = self.children.pop()
            child.go_on()
            self.judge(child.result, PersistError)

    def judge(self, results: Mapping[str, Any], *allowed: type[PersistError]) -> None:
        """Check what came of builds: what lacks partitions cannot be built, all else can be."""
        for name, result in results.items():
            kind = result if isinstance(result, str) else type(result).__name__
            self.said.append(f"{name}: {kind}")
            self.tally.builds[kind] += 1
            if isinstance(result, PersistError) and not isinstance(result, allowed):
                kind, said = KINDS[name], str(result)
                parted = any(KINDS[n].part for n in KINDS.keys() & kind.reads)
                lacking = parted and "lacks" in said
                unknown = kind.file == "sources/f.py" and "is unknown until" in said
                tied = kind.ties and "have the same merge_key" in said
                assert lacking or unknown or tied, f"{name}: {result!r}"

    # ------------------------------------------------------------------------------- the model

    def meant(self) -> Meant:
        """Return what is so now: what a run that begins now has to make tables of."""
        raw = {name: self.raw.rows(name) for name in self.bases}
        return Meant(raw, dict(self.code), self.clock.now)

    def owed_names(self) -> list[str]:
        """Return what has to be computed whole: what was promised of data broke."""
        promised = [name for name in self.names if KINDS[name].promised]
        if not promised:
            return []
        run, owed = self.run(), list[str]()
        for name in promised:
            build_id = run.source(name).build_id
            if build_id in self.owed or self.breaks(build_id, Counter(self.raw.rows("ev"))):
                owed.append(name)
        run.close()
        return owed

    def learn(self, meant: Meant, forced: Sequence[str], run: Keeping | None = None) -> None:
        """Note which builds of tables that are no functions of the data there were."""
        for name in (name for name in self.names if KINDS[name].is_told):
            ledger = run.ledger if run else Ledger(f"sqlite:///{self.root}/.persist/ledger.db")
            builds = ledger.builds.fetch(source_id=f"{name}@{KINDS[name].file}")
            if run is None:
                ledger.close()
            new = [b for b in builds if b.state == "succeeded" and b.build_uid not in self.seen]
            for build in sorted(new, key=lambda b: b.finished_at or b.started_at):
                self.seen.add(build.build_uid)
                assert build.snapshot
                if (closes := KINDS[name].closes) is not None:
                    assert build.snapshot.current_at
                    versions, now = self.versions.setdefault(name, []), build.snapshot.current_at
                    turn(versions, meant.rows(name), now, closes=closes)
                elif KINDS[name].goes_on:
                    found = self.check_older(name, build.snapshot, meant)
                    base = Counter(meant.raw[KINDS[name].reads[0]])
                    self.built.setdefault(name, []).append((found, base))
                else:
                    self.promise(build.snapshot, Counter(meant.raw["ev"]), name in forced)

    def check_older(self, name: str, snapshot: Snapshot, meant: Meant) -> Counter[Row]:
        """Check a table that goes on: rows are of older code only where nothing changed since.

        Returns its rows.
        """
        kind, found, at = KINDS[name], self.read(name, snapshot), KINDS[name].time
        leads = kind.goes_on
        assert leads and at is not None
        whole, raw = Counter(meant.rows(name)), Counter(meant.raw[kind.reads[0]])
        if older_code(snapshot) is None:
            assert found == whole, f"{name}: {found - whole} too many, {whole - found} gone"
            return found
        before = self.built.get(name, [])
        times = {row[at] for rows in (found, whole, *(rows for rows, _ in before)) for row in rows}

        def of(rows: Counter[Row], when: Any) -> Counter[Row]:
            return Counter({row: n for row, n in rows.items() if row[at] == when})

        def since(rows: Counter[Row], when: Any) -> Counter[Row]:
            return Counter({row: n for row, n in rows.items() if leads(row) == when})

        def is_right(rows: Counter[Row], data: Counter[Row], when: Any) -> bool:
            """Whether rows of a time are what became of those that were there of some data."""
            then, now = since(data, when), since(raw, when)
            fitting = [of(whole, when)]
            if then == now:
                fitting.append(of(rows, when))
            elif kind.adds and then <= now:
                new = kind.rows([*(now - then).elements()], int(meant.code[name] == 2))
                fitting.append(of(rows, when) + Counter(new))
            return of(found, when) in fitting

        right = any(all(is_right(*one, when) for when in times) for one in before)
        assert right, f"{name}: {found} goes on from none of {before}"
        return found

    def promise(self, snapshot: Snapshot, rows: Counter[Row], forced: bool) -> None:
        """Note of which rows a function has been asked, and whether it may have missed some."""
        if self.breaks(snapshot.build_id, rows):
            self.owed.add(snapshot.build_id)
        if forced:
            self.owed.discard(snapshot.build_id)
        self.promised[snapshot.build_id] = rows, snapshot.watermark

    def breaks(self, build_id: str, rows: Counter[Row]) -> bool:
        """Whether rows older than the lookback changed since a function was asked."""
        before, watermark = self.promised.get(build_id, (rows, None))
        if watermark is None:
            return False
        since = datetime.fromisoformat(watermark) - timedelta(days=1)
        return any(r[0] is not None and r[0] < since for r in (*(rows - before), *(before - rows)))

    # ----------------------------------------------------------------------- what must be so

    def build_all(self) -> None:
        """Build everything: every table is what computing from scratch gives."""
        self.wait()
        tied, before = self.tied_names(), self.kept_bytes()
        results = self.do(("build", self.names, self.owed_names()))
        for name, result in results.items():
            assert isinstance(result, BuildError if name in tied else str), (name, result)
        run, meant = self.run(), self.meant()
        manifest = run.ledger.manifests.fetch("dev")
        meant = self.with_tables(meant, run, manifest)
        for name in self.names:
            if name in tied:
                assert self.kept_bytes()[name] == before[name], f"{name} changed, and was not built"
            else:
                self.check_table(run.source(name), manifest[run.source(name).build_id], meant)
        told = json.loads((self.root / ".persist" / "manifests" / "dev.json").read_text())
        versions = {e.get("buildId", b): e["version"] for b, e in told["entries"].items()}
        assert versions == {b: s.version for b, s in manifest.items()}, "it was not exported"
        run.close()

    def tied_names(self) -> list[str]:
        """Return what must not be built, of the data that there is."""
        ties = {name: KINDS[name].ties for name in self.names}
        return [n for n, tied in ties.items() if tied and tied(self.raw.rows(KINDS[n].reads[0]))]

    def kept_bytes(self) -> dict[str, list[bytes] | None]:
        """Return what is in the files of tables that might not be built."""
        found: dict[str, list[bytes] | None] = {}
        for name in self.names:
            if KINDS[name].ties:
                run = self.run()
                there = run.ledger.manifests.fetch("dev").get(run.source(name).build_id)
                run.close()
                found[name] = there and [Path(f).read_bytes() for f in self.files(there)]
        return found

    def files(self, snapshot: Snapshot) -> Sequence[str]:
        root = str(self.root / ".persist" / "warehouse" / snapshot.table)
        return sorted(read_version(root, snapshot.version).files)

    def with_tables(self, meant: Meant, run: Keeping, manifest: Mapping[str, Snapshot]) -> Meant:
        """Return what tables must be of where some are what became of them, and not of the data."""
        there = {
            name: tuple(self.read(name, snapshot).elements())
            for name in self.names
            if KINDS[name].goes_on
            if (snapshot := manifest.get(run.source(name).build_id))
        }
        return replace(meant, tables=there)

    def check_claims(self, run: Keeping | None = None) -> None:
        """Check what plans call current, and that all tables that readers see are whole."""
        mine = run or self.run()
        manifest = mine.ledger.manifests.fetch("dev")
        meant = self.with_tables(self.meant(), mine, manifest)
        steps = mine.builder.plan(s.source_id for s in mine.project.persisted).steps
        for planned in steps:
            source = mine.project.by_id[planned.source_id]
            snapshot = manifest.get(source.build_id)
            if snapshot is None:
                continue
            self.read(source.name, snapshot)
            if planned.action == "reuse":
                self.check_table(source, snapshot, meant)
            elif KINDS[source.name].part and snapshot.partitions and planned.keys is not None:
                order = mine.builder.observer.observe([source]).keys[source.source_id]
                filled = {k for f in snapshot.partitions.filled for k in expand(order, f.runs)}
                self.check_table(source, snapshot, meant, filled - {*planned.keys})
        if run is None:
            mine.close()

    def read(self, name: str, snapshot: Snapshot) -> Counter[Row]:
        """Return the rows that readers of a snapshot see, which measure what it says."""
        rows = Counter(read_rows(self.files(snapshot)))
        assert rows.total() == snapshot.rows, f"{name}: {rows.total()} of {snapshot.rows}"
        key = tuple(c.name for c in snapshot.columns), frozenset(rows.items())
        assert self.contents.setdefault(key, snapshot.content) == snapshot.content, name
        time = KINDS[name].time
        if time is not None:
            last = max((row[time] for row in rows if row[time] is not None), default=None)
            assert snapshot.watermark == watermark_text(last), (
                f"{name}: {snapshot.watermark}, {last}"
            )
        return rows

    def check_table(
        self,
        source: Source,
        snapshot: Snapshot,
        meant: Meant,
        keys: set[str] | None = None,
    ) -> None:
        """Compare rows of a table with what they must be; some partitions' or all."""
        name, found = source.name, self.read(source.name, snapshot)
        self.tally.tables[name] += 1
        if source.build_id in self.owed:
            return
        if KINDS[name].goes_on:
            self.check_older(name, snapshot, replace(meant, tables={}))
            return
        kept = KINDS[name].closes is not None
        wanted = Counter(self.versions.get(name, ()) if kept else meant.rows(name))
        part = KINDS[name].part
        if keys is not None and part:
            found = Counter({r: n for r, n in found.items() if _key(part, r) in keys})
            wanted = Counter({r: n for r, n in wanted.items() if _key(part, r) in keys})
        assert found == wanted, f"{name}: {found - wanted} too many, {wanted - found} gone"

    def check_measures(self) -> None:
        """Compare what snapshots say of rows with what Spark says when it computes them all."""
        run, tied = self.run(), self.tied_names()
        builder, manifest = run.builder, run.ledger.manifests.fetch("dev")
        now = self.clock.now
        for name in self.names:
            source, kind = run.source(name), KINDS[name]
            if name in tied or older_code(manifest[source.build_id]):
                continue
            snapshot = manifest[source.build_id]
            if KINDS[name].closes is not None:
                frame = builder.reader.load_snapshot(snapshot)
            else:
                stored = any(KINDS[n].part or KINDS[n].goes_on for n in KINDS.keys() & kind.reads)
                read = builder.reader.reading(source.bindings, manifest if stored else {})
                frame = builder.reader.merged(source, builder.reader.compute(source, read))
            if kind.part:
                there = [r for r in frame.collect() if _is_in(kind.part, map(_instant, r), now)]
                frame = self.spark.createDataFrame(there, frame.schema)
            column = source.annotation.time_column
            measured = builder.engine.measure(frame, (), column, name)
            found = (snapshot.rows, snapshot.content, snapshot.watermark)
            assert found == (measured.rows, measured.content, measured.watermark), name
        run.close()


def _instant(value: Any) -> Any:
    """Return a value of Spark's rows, whose instants are in the zone of this machine."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _key(part: Part, row: Row) -> str | None:
    found = part(row)
    return found[0] if found else None


def _is_in(part: Part, row: Iterable[Any], now: datetime) -> bool:
    """Whether a row is in a partition that there is."""
    found = part(tuple(row))
    return found is not None and found[1] <= now


@dataclass(frozen=True)
class Meant:
    """What tables must be of: the rows of raw tables, the variants of sources, and the time.

    Attributes
    ----------
    tables
        The rows of tables that are not what their sources say.
    """

    raw: Raw
    code: Mapping[str, int]
    now: datetime
    tables: Raw = field(default_factory=dict[str, Sequence[Row]])

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a source, computed from scratch."""
        there = {**self.raw, **self.tables}
        if name in there:
            return [*there[name]]
        kind = KINDS[name]
        rows = [*kind.rows(*map(self.rows, kind.reads), int(self.code[name] == 2))]
        return [r for r in rows if _is_in(kind.part, r, self.now)] if kind.part else rows


def turn(versions: list[Row], rows: Iterable[Row], now: datetime, *, closes: bool) -> None:
    """Let a history of (k, v, from, to) go on: rows are what is so now.

    Parameters
    ----------
    closes
        Whether versions of keys that are gone end.
    """
    current = {row[0]: row for row in versions if row[3] is None}
    for k, v in rows:
        old = current.pop(k, None)
        if old is None:
            ended = [row[3] for row in versions if row[0] == k]
            versions.append((k, v, max([now, *ended]), None))
        elif old[1] != v:
            since = max(now, old[2] + TICK)
            versions[versions.index(old)] = (*old[:3], since)
            versions.append((k, v, since, None))
    for old in current.values() if closes else ():
        versions[versions.index(old)] = (*old[:3], max(now, old[2] + TICK))


def watermark_text(value: date | None) -> str | None:
    """Return how a watermark is told."""
    return None if value is None else value.isoformat().replace("+00:00", "Z")


def explore(
    n: int,
    spark: Any,
    zygote: Zygote,
    toml: str,
    *,
    seed: int = 0,
    steps: int = 4,
    first: int = 0,
    shrink: bool = True,
    only: str | None = None,
) -> Tally:
    """Check so many histories, and return what they came to; see `machine.repeat`.

    Parameters
    ----------
    only
        The source that all of them are of, with those that it reads.
    """
    tally = Tally()
    given = {"spark": spark, "zygote": zygote, "toml": toml, "tally": tally, "contents": {}}
    given["only"] = only
    repeat(Histories, given, n, seed=seed, steps=steps, first=first, shrink=shrink)
    return tally


def explore_apart(
    n: int, toml: str, *, seed: int, steps: int, first: int, until: float | None = None
) -> Tally:
    """Check so many histories in a Spark of this process' own, and return what they came to.

    Parameters
    ----------
    until
        No more begin then; as `time.monotonic` tells it.
    """
    tally, zygote = Tally(), Zygote("strategies")
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "persist.toml").write_text(toml)
        spark = create_session(load_settings(Path(root)))
        spark.sparkContext.setLogLevel("OFF")
        for number in range(first, first + n, 5):
            if until is not None and monotonic() >= until:
                break
            tally += explore(5, spark, zygote, toml, seed=seed, steps=steps, first=number)
        spark.stop()
    zygote.close()
    return tally
