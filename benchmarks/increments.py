"""Measure what builds of a part cost beside building all of it, over ten million rows of a year.

Seconds on the wall and of all processors, in one warm session: everything is built first, then
all of it again; then one per cent is appended, one day of the year replaced, and one per cent of
the keys merged. Whatever is measured was done three times before in the same session, with other
rows: else the JVM compiles what is new to it, and seconds of that stand beside twenty of work.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.storage.delta_commit import Staged, commit
from persist_assets.storage.delta_tables import find_table, live_files, read_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from persist_assets.core.settings.values import Settings


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes
    ----------
    turns, warm
        So often everything is done that is measured, and so many of the first do not count.
    """

    rows: int
    days: int = 365
    turns: int = 6
    warm: int = 3

    @classmethod
    def of(cls, rows: int) -> Size:
        """Return the size for so many rows; with few of them nothing but that it runs is shown."""
        return cls(rows) if rows >= 1_000_000 else cls(rows, days=10, turns=1, warm=0)


SETTINGS = """
[spark]
"spark.master" = "local[*]"
"spark.driver.memory" = "8g"
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "8"
"""
COLUMNS = (
    "id BIGINT, ts TIMESTAMP, carrier STRING, origin STRING, dest STRING, tail STRING, "
    "dep_delay INT, arr_delay INT, air_time INT, distance INT, fuel DOUBLE, price DOUBLE"
)
QUERY = """SELECT id, ts, CAST(ts AS DATE) AS day, upper(carrier) AS carrier, origin, dest,
concat(origin, '-', dest) AS route, tail, dep_delay, arr_delay, arr_delay - dep_delay AS gained,
air_time, distance, distance / nullif(air_time, 0) AS speed, fuel, price,
round(price * 1.19, 2) AS gross,
CASE WHEN arr_delay > 15 THEN 'late' WHEN arr_delay < -15 THEN 'early' ELSE 'on time' END AS state,
sha2(concat(tail, id), 256) AS token
FROM flights WHERE distance > 0"""
SOURCES = f"""
CREATE TABLE flights ({COLUMNS}) USING delta LOCATION 'raw/flights';
--@ persist refresh=incremental watermark=ts
CREATE VIEW appended AS {QUERY};
--@ persist
CREATE VIEW plain AS {QUERY} AND id >= 0;
--@ persist partition=daily time_column=day start="2023-01-01"
CREATE VIEW partitioned AS {QUERY};
--@ persist partition=daily time_column=day start="2023-01-01"
CREATE VIEW by_day AS SELECT day, carrier, origin, count(*) AS n, avg(arr_delay) AS arr_delay,
sum(price) AS price, max(token) AS token FROM ({QUERY}) GROUP BY day, carrier, origin;
--@ persist refresh=incremental watermark=ts merge_key=id {{ on_tie=greatest }}
CREATE VIEW merged AS {QUERY};
"""


@dataclass(frozen=True)
class Cost:
    """What a build took and wrote, and how many files of how many it wrote anew."""

    seconds: float
    cpu_s: float
    rows: int
    how: str
    anew: tuple[int, int] | None


class Year:
    """A project whose raw table has a year of flights."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sources").mkdir(parents=True)
        (root / "persist.toml").write_text(SETTINGS)
        (root / "sources" / "m.sql").write_text(SOURCES)
        self.settings: Settings = load_settings(root)
        self.project = require(load_project(self.settings))
        self.spark: Any = create_session(self.settings)

    def put(self, first: int, last: int, day: int, days: int, ids: int | None = None) -> None:
        """Append flights of some days, evenly, by the numbers of a generator."""
        n, number = last - first, "id" if ids is None else f"id - {first} + {ids}"
        frame = self.spark.range(first, last, 1, days).selectExpr(
            f"{number} AS id",
            f"timestamp_seconds(1672531200 + CAST({day} * 86400"
            f" + (id - {first}) * {days} * 86400.0 / {n} AS BIGINT)) AS ts",
            "elt(1 + CAST(pmod(hash(id), 14) AS INT), 'aa','as','b6','dl','ev','f9','fl','ha','mq',"
            "'oo','ua','us','vx','wn') AS carrier",
            "elt(1 + CAST(pmod(id, 3) AS INT), 'EWR', 'JFK', 'LGA') AS origin",
            "concat('D', CAST(pmod(hash(id, 1), 105) AS STRING)) AS dest",
            "concat('N', CAST(pmod(hash(id, 2), 4000) AS STRING)) AS tail",
            "CAST(pmod(hash(id, 3), 120) - 20 AS INT) AS dep_delay",
            "CAST(pmod(hash(id, 4), 140) - 40 AS INT) AS arr_delay",
            "CAST(pmod(hash(id, 5), 400) + 20 AS INT) AS air_time",
            "CAST(pmod(hash(id, 6), 2500) + 80 AS INT) AS distance",
            "pmod(hash(id, 7), 100000) / 100.0D AS fuel",
            "pmod(hash(id, 8), 80000) / 100.0D AS price",
        )
        root = str(self.root / "raw" / "flights")
        staged = SparkEngine(self.settings, lambda: self.spark).write_files(
            frame, root, f"b{time.time_ns()}"
        )
        append(staged, root)

    def build(self, name: str, *, force: bool = False) -> Cost:
        """Build a source in a run of its own."""
        ledger = Ledger(self.settings.ledger)
        engine = SparkEngine(self.settings, lambda: self.spark)
        builder = Builder(self.settings, self.project, ledger, engine)
        source = self.project.by_id[f"{name}@sources/m.sql"]
        before, begun = cpu_seconds(), time.monotonic()
        with builder.work(source, force=force) as work:
            now = builder.publish(work)
        seconds, used = time.monotonic() - begun, cpu_seconds() - before
        builder.close()
        ledger.close()
        how = "; ".join(r.message for r in work.step.reasons)
        anew = None
        if work.step.increment is not None:
            base = work.step.increment.base
            before, after = (
                {*read_version(self.settings.table_root(s.table), s.version).files}
                for s in (base, now)
            )
            anew = len(before - after), len(before)
        return Cost(seconds, used, work.staged.rows if work.staged else 0, how, anew)


def append(staged: Staged, root: str) -> None:
    """Make files one more version of a table, beside those it has."""
    table = find_table(root)
    kept_files = tuple(live_files(table)) if table else ()
    base = table.version() if table else None
    commit(staged, build_id="", pinned=base, base=base, kept_files=kept_files)


def cpu_seconds() -> float:
    """Return what this process, its children and Spark's have used of the processors."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    tick = os.sysconf("SC_CLK_TCK")
    for child in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = child.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == os.getpgrp() and child.parent.name != str(os.getpid()):
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def measure(root: Path, size: Size) -> dict[str, tuple[Cost, Cost]]:
    """Return what parts cost, and what everything does, by what is done."""
    year = Year(root)
    rows, percent = size.rows, size.rows // 100
    year.put(0, rows, 0, size.days)
    names = ("plain", "appended", "partitioned", "by_day", "merged")
    for name in names:
        year.build(name)
    rounds = [{name: year.build(name, force=True) for name in names[:4]} for _ in range(size.turns)]
    whole = {name: _middle([costs[name] for costs in rounds], size) for name in names[:4]}
    whole["merged"] = year.build("merged", force=True)
    parts: dict[str, list[Cost]] = {}
    turns = iter(range(1, 100))

    def build(what: str, *names: str) -> None:
        for name in names:
            parts.setdefault(f"{what} {name}", []).append(year.build(name))

    for turn in islice(turns, size.turns):
        year.put(turn * rows, turn * rows + percent, size.days - 1 + turn, 1)
        build("append", "appended", "merged")
        for name in ("partitioned", "by_day"):
            year.build(name)
    for turn in islice(turns, size.turns):
        year.put(turn * rows, turn * rows + 1000, 29 * turn % size.days, 1)
        build("one day", "partitioned", "by_day")
        year.build("merged")
    for turn in islice(turns, size.turns):
        first = int(rows * 0.06 * (turn - 2 * size.turns))
        year.put(turn * rows, turn * rows + percent, size.days - 1 + turn, 1, ids=first)
        parts.setdefault("merge", []).append(year.build("merged"))
    parts["nothing"] = [year.build("merged") for _ in range(size.turns)]
    found = {"backfill": (whole["partitioned"], whole["plain"])}  # of all its partitions
    for what, costs in parts.items():
        found[what] = _middle(costs, size), whole.get(what.rpartition(" ")[2], whole["merged"])
    return found


def _middle(costs: Sequence[Cost], size: Size) -> Cost:
    """Return of those that came when the JVM had compiled all what is neither least nor most."""
    warm = sorted(costs[size.warm :], key=lambda c: c.cpu_s)
    return warm[len(warm) // 2]


WANTED = {
    "nothing": "no rows read",
    "backfill": "≤ 1.2×",
    "merge": "≤ 0.10×, of its files alone",
}
"""What is wanted of what is done; of all others a twentieth."""


def main(root: Path, rows: int) -> None:
    """Print what was measured, as JSON, a line each: what, everything's, the part's, wanted."""
    for what, (part, whole) in measure(root, Size.of(rows)).items():
        floor = f"everything: {whole.seconds:.1f} s, {whole.cpu_s:.1f} CPU s"
        if what == "backfill":
            floor = floor.replace("everything", "the same rows unpartitioned")
        ours = f"{part.seconds:.2f} s ({part.seconds / whole.seconds:.3f}×), {part.cpu_s:.2f} CPU s"
        ours += f" ({part.cpu_s / whole.cpu_s:.3f}×), {part.rows:,} rows written"
        if part.anew is not None and part.anew[0]:
            ours += ", {} of {} files written anew".format(*part.anew)
        told = f"{rows:,} rows of a year: {what}"
        print(json.dumps([told, floor, ours, WANTED.get(what, "≤ 0.05×")]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
