"""Measure what reading a part of an external Delta table costs beside what cannot be spared.

Ten million rows of a year, a file for each day, twenty columns. Bytes of a week and three columns
are compared with the chunks of these columns in the footers of these files, seconds with Spark's
reading of these files and columns alone, and changes of one per cent of the rows, as files that
came and went and as recorded changes, with everything: read, and brought to a copy. In one warm
session, the middle of three. With fewer than a million rows, nothing but that it runs is shown.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from increments import SETTINGS, cpu_seconds

from persist_assets.compiler.load import load_project, require
from persist_assets.core.model.sources import External, RawTable
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.external.connectors import connect
from persist_assets.external.ingestion import Ingestion
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from persist_assets.core.model.snapshots import LocalCopy
    from persist_assets.external.connectors.protocol import Connector

ROWS = 10_000_000
MAY = datetime(2023, 5, 1, tzinfo=UTC)
WEEK = "ts >= TIMESTAMP '2023-05-01 00:00:00Z' AND ts < TIMESTAMP '2023-05-08 00:00:00Z'"
NEXT = "ts >= TIMESTAMP '2023-05-08 00:00:00Z' AND ts < TIMESTAMP '2023-05-15 00:00:00Z'"
COLUMNS = ("ts", "carrier", "price")
KINDS = {
    "id": "BIGINT",
    "ts": "TIMESTAMP",
    **dict.fromkeys(("carrier", "origin", "dest", "tail"), "STRING"),
    "delayed": "BOOLEAN",
    **{f"n{n}": "BIGINT" for n in range(1, 7)},
    **{f"x{n}": "DOUBLE" for n in range(1, 7)},
    "price": "DOUBLE",
}


def day(begin: datetime, number: int, rows: int) -> pa.Table:
    """Return the rows of a day after the first one, twenty columns of them."""
    chance = np.random.default_rng(number)
    first = int((begin + timedelta(days=number)).timestamp() * 1_000_000)
    ts = first + np.sort(chance.integers(0, 86_400_000_000, rows))

    def text(letter: str, kinds: int) -> pa.Array:
        words = pa.array([f"{letter}{n}" for n in range(kinds)])
        picked = pa.array(chance.integers(0, kinds, rows, dtype=np.int32))
        return pa.DictionaryArray.from_arrays(picked, words).cast(pa.string())

    columns: dict[str, Any] = {
        "id": np.arange(number * rows, (number + 1) * rows),
        "ts": pa.array(ts, pa.timestamp("us", tz="UTC")),
        "carrier": text("C", 14),
        "origin": text("O", 3),
        "dest": text("D", 105),
        "tail": text("N", 4000),
        "delayed": chance.random(rows) < 0.2,
    }
    columns |= {f"n{n}": chance.integers(0, 10**n, rows, dtype=np.int64) for n in range(1, 7)}
    columns |= {f"x{n}": chance.random(rows).round(n) for n in range(1, 7)}
    columns["price"] = (chance.random(rows) * 800).round(2)
    return pa.table(columns)


class Year:
    """A Delta table of a year, and the session that reads it."""

    def __init__(self, root: Path, rows: int) -> None:
        (root / "sources").mkdir(parents=True)
        (root / "persist.toml").write_text(SETTINGS)
        is_small = rows < 1_000_000
        self.days, self.times = (20, 0) if is_small else (365, 3)
        self.begin = MAY - timedelta(days=2 if is_small else 120)
        self.home, self.root, self.rows = root, root / "year", rows // self.days
        self.turns = count(1)
        for number in range(self.days):
            self.append(day(self.begin, number, self.rows))
        self.spark: Any = create_session(load_settings(root))

    def append(self, rows: pa.Table) -> None:
        """Write a file; values that are all different into no dictionary, as Spark does."""
        plain = deltalake.ColumnProperties(dictionary_enabled=False)
        how = deltalake.WriterProperties(column_properties={"id": plain, "ts": plain})
        deltalake.write_deltalake(self.root, rows, mode="append", writer_properties=how)

    def connect(self) -> Connector:
        """Return a connector that knows nothing yet."""
        external, place = External("delta_table_input"), str(self.root)
        return connect(
            RawTable("delta", place, (), external), place, (), lambda: self.spark, ZoneInfo("UTC")
        )

    def grow(self, share: float = 0.01) -> int:
        """Append rows of one day more, and return the how many-th change it is."""
        turn = next(self.turns)
        self.append(day(self.begin, self.days + turn, int(self.rows * self.days * share)))
        return turn

    def change(self) -> None:
        """Append half a per cent of the rows, and update as many of some days."""
        turn = self.grow(0.005)
        begin = self.begin + timedelta(days=self.days // 18 * turn)
        until = begin + timedelta(days=self.days / 200)
        deltalake.DeltaTable(self.root).update(
            predicate=f"ts >= '{begin.isoformat()}' AND ts < '{until.isoformat()}'",
            updates={"price": "price + 1"},
        )

    def need(self, query: str) -> None:
        """Write a program that reads the table."""
        config = json.dumps({"uri": str(self.root)})
        connectors = f'[{{"transport": {{"name": "delta_table_input", "config": {config}}}}}]'
        columns = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
        text = f"CREATE EXTERNAL TABLE t ({columns}) WITH ('connectors' = '{connectors}');\n"
        (self.home / "sources" / "m.sql").write_text(
            f"{text}--@ persist\nCREATE VIEW v AS {query};"
        )

    def sync(self, *, from_scratch: bool = False) -> LocalCopy:
        """Bring the copy of the table up to date, as a build does."""
        settings = load_settings(self.home)
        project, ledger = require(load_project(settings)), Ledger(settings.ledger)
        try:
            engine, now = SparkEngine(settings, lambda: self.spark), datetime.now(UTC)
            ingestion = Ingestion(settings, project, ledger, now, engine)
            return ingestion.sync(project.by_id["t@sources/m.sql"], from_scratch=from_scratch)
        finally:
            ledger.close()

    def read(self, frame: Any) -> None:
        """Have Spark read all rows, and put them nowhere."""
        frame.write.format("noop").mode("overwrite").save()

    def bytes_of(self, work: Callable[[], object]) -> int:
        """Return how many bytes are read by some work."""
        vectored = "parquet.hadoop.vectored.io.enabled"
        self.spark.conf.set(vectored, "false")  # what it reads, Hadoop does not count
        before = self.bytes_read()
        work()
        read = self.bytes_read() - before
        self.spark.conf.unset(vectored)
        return read

    def bytes_read(self) -> int:
        """Return how much the tasks of this session have read so far."""
        jvm = self.spark.sparkContext._jvm
        context = self.spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty(60_000)
        store = context.statusStore()
        empty = self.spark.sparkContext._gateway.new_array(jvm.double, 0)
        none = jvm.java.util.ArrayList()
        stages = store.stageList(none, False, False, empty, none)
        return sum(stages.apply(n).inputBytes() for n in range(stages.size()))

    def cost(
        self, work: Callable[[], object], before_each: Callable[[], object] = lambda: None
    ) -> tuple[float, float]:
        """Return seconds on the wall and of processors, the middle of three in a warm JVM."""
        for _ in range(self.times):
            before_each()
            work()
        wall: list[float] = []
        cpu: list[float] = []
        for _ in range(max(1, self.times)):
            before_each()
            begun, before = time.monotonic(), cpu_seconds()
            work()
            wall.append(time.monotonic() - begun)
            cpu.append(cpu_seconds() - before)
        return statistics.median(wall), statistics.median(cpu)


def week_of(root: Path, first: datetime = MAY) -> list[str]:
    """Return the files whose rows may be of a week, as statistics tell."""
    found = pa.table(deltalake.DeltaTable(root).get_add_actions(flatten=True)).to_pylist()
    last = first + timedelta(days=7)
    return [str(root / f["path"]) for f in found if f["max.ts"] >= first and f["min.ts"] < last]


def chunks(files: list[str], columns: tuple[str, ...]) -> int:
    """Return the bytes of columns in files."""
    total = 0
    for file in files:
        footer = pq.read_metadata(file)
        for group in (footer.row_group(n) for n in range(footer.num_row_groups)):
            columns_of_group = [group.column(n) for n in range(group.num_columns)]
            total += sum(
                c.total_compressed_size for c in columns_of_group if c.path_in_schema in columns
            )
    return total


def beside(what: str, floor: tuple[float, float], ours: tuple[float, float], target: str) -> Row:
    """Return a line about what something costs beside something else."""
    figures = f"{ours[0]:.2f} s ({ours[0] / floor[0]:.3f}×), {ours[1]:.2f} CPU s"
    figures += f" ({ours[1] / floor[1]:.3f}×)"
    what, _, bare = what.partition(" beside ")
    return what, f"{bare}: {floor[0]:.2f} s, {floor[1]:.2f} CPU s", figures, target


Row = tuple[str, str, str, str]
"""What, the floor, ours, what is wanted."""


def measure(root: Path, rows: int) -> Iterator[Row]:
    """Yield what was measured, as it is."""
    year = Year(root, rows)
    source = year.connect()
    version = source.pin()
    files = week_of(year.root)
    of_year = f"{year.rows * year.days:,} rows of a year: "

    def ours() -> None:
        year.read(source.snapshot(WEEK, COLUMNS, version))

    def bare() -> None:
        year.read(year.spark.read.parquet(*files).where(WEEK).select(*COLUMNS))

    needed, read = chunks(files, COLUMNS), year.bytes_of(ours)
    yield (
        f"{of_year}a week, 3 of 20 columns",
        f"their chunks: {needed:,} bytes",
        f"{read:,} bytes read ({read / needed:.2f}×)",
        "≤ 1.2×",
    )
    what = f"{of_year}a week, 3 of 20 columns beside Spark on these files"
    yield beside(what, year.cost(bare), year.cost(ours), "≤ 1.3×")
    names = [*KINDS]
    whole = year.cost(lambda: year.read(source.snapshot(None, names, version)))
    for how in ("files that came and went", "recorded changes"):
        if how == "recorded changes":
            on = {"delta.enableChangeDataFeed": "true"}
            deltalake.DeltaTable(year.root).alter.set_table_properties(on)
        since = source.pin()
        year.change()
        until = source.pin()

        def follow(since: str = since, until: str = until) -> None:
            changes = source.changes(since, until, None, names)
            assert changes.frame is not None, changes.full_read_reason
            year.read(changes.frame)

        what = f"{of_year}1 % appended or updated, {how} beside everything"
        yield beside(what, whole, year.cost(follow), "≤ 0.05×")
    yield from brought(year, of_year)


def brought(year: Year, of_year: str) -> Iterator[Row]:
    """Yield what was measured of a copy: a second week of it, and what becomes of everything."""
    year.need(f"SELECT {', '.join(COLUMNS)} FROM t WHERE {WEEK}")
    year.sync()
    year.need(f"SELECT {', '.join(COLUMNS)} FROM t WHERE {WEEK} OR {NEXT}")
    needed, read = (
        chunks(week_of(year.root, MAY + timedelta(days=7)), COLUMNS),
        year.bytes_of(year.sync),
    )
    yield (
        f"{of_year}a second week beside one that is held",
        f"the chunks of the second: {needed:,} bytes",
        f"{read:,} bytes read ({read / needed:.2f}×)",
        "≤ 1.2×",
    )
    year.need("SELECT * FROM t")
    whole = year.cost(lambda: year.sync(from_scratch=True))
    what = f"{of_year}1 % appended, brought beside everything brought"
    yield beside(what, whole, year.cost(year.sync, year.grow), "≤ 0.05×")
    for how in ("recorded changes", "files that came and went"):
        if how != "recorded changes":
            off = {"delta.enableChangeDataFeed": "false"}
            deltalake.DeltaTable(year.root).alter.set_table_properties(off)
            year.sync()
        what = f"{of_year}1 % appended or updated, {how}, brought beside everything brought"
        yield beside(what, whole, year.cost(year.sync, year.change), "≤ 0.05×")


def main(root: Path, rows: int = ROWS) -> None:
    """Print what was measured, as JSON, a line each."""
    for line in measure(root, rows):
        print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
