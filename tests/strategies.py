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
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql  # imported once, for all children
from growing import kind_of
from histories import Child, Clock, Place, Run, Task, Zygote, attempt, step
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from machine import repeat

from persist_assets.engine import Engine
from persist_assets.errors import ConflictError, PersistError
from persist_assets.ledger.store import LEASE_S, Ledger
from persist_assets.model import Snapshot, Source
from persist_assets.partitions import expand
from persist_assets.storage.tables import read_version

Row = tuple[Any, ...]
Raw = Mapping[str, Sequence[Row]]
"""The rows of the raw tables, by name."""

START = datetime(2024, 1, 1, tzinfo=UTC)
BEGIN = START + timedelta(days=9, hours=5)
TICK = timedelta(microseconds=1)
EVENT = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int32()), ("v", pa.int32())])
KEYED = pa.schema([("k", pa.int32()), ("v", pa.int32())])
DECLARED = """
CREATE TABLE ev (ts TIMESTAMP, k INT, v INT) USING delta LOCATION 'raw/ev';
CREATE TABLE pq (ts TIMESTAMP, k INT, v INT) USING parquet LOCATION 'raw/pq';
CREATE TABLE dim (k INT, v INT) USING delta LOCATION 'raw/dim';
"""
FUNCTIONS = """
from persist_assets import incremental_filter, incremental_table
from pyspark.sql import functions as F
"""


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
        What it says: at first, the same in other words, and something else.
    rows
        Returns its rows from those of what it reads, in that order; the last argument is 1 if it
        says something else, and 0 otherwise.
    time
        Which of its columns is the watermark's.
    days
        Of how many days a partition is.
    """

    reads: tuple[str, ...]
    annotation: str
    texts: tuple[str, str, str]
    rows: Callable[..., Iterable[Row]]
    time: int | None = None
    days: int = 0


def _summed(rows: Iterable[Row], key: Callable[[Row], Row]) -> list[Row]:
    """Return for each key the sum and the number of its rows' last values."""
    told = sorted(((key(row), row[-1]) for row in rows), key=repr)
    groups = ((k, [v for _, v in some]) for k, some in groupby(told, lambda pair: pair[0]))
    return [(*k, sum(values), len(values)) for k, values in groups]


def _day(row: Row) -> date | None:
    return None if row[0] is None else row[0].date()


def _week(row: Row) -> date:
    return row[0] - timedelta(row[0].weekday())


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
    "SELECT CAST(ts AS DATE) AS day, date_add(DATE'2024-01-10', 0 - k) AS other, k,"
    " sum(v) OVER (PARTITION BY date_add(DATE'2024-01-10', 0 - k)) AS s FROM ev"
)
"""Of all days of a key the sum, at a day that is the key's own."""


def _other(k: int) -> date:
    return date(2024, 1, 10) - timedelta(k)


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
        '--@ persist partition=daily time_column=day start="2024-01-01"',
        (
            f"{_BY_DAY.format('', '', '')} GROUP BY 1, 2",
            f"{_BY_DAY.format('e.', '', ' AS e')} GROUP BY 1, 2",
            f"{_BY_DAY.format('', ' + 1', '')} GROUP BY 1, 2",
        ),
        lambda rows, n: _summed([(ts, k, v + n) for ts, k, v in rows], lambda r: (_day(r), r[1])),
        time=0,
        days=1,
    ),
    "weekly": Kind(
        ("daily",),
        '--@ persist partition=weekly time_column=week start="2024-01-01"',
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
        days=7,
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
        '--@ persist partition=daily time_column=day start="2024-01-01"',
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
        days=1,
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
    ),
}
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
    sql, functions = [DECLARED], [FUNCTIONS]
    for name, n in code.items():
        kind = KINDS[name]
        if name == "function":
            functions.append(
                f"{kind.annotation}\ndef {name}({kind.reads[0]}):\n    {kind.texts[n]}\n"
            )
        else:
            sql.append(f"{kind.annotation}\nCREATE VIEW {name} AS {kind.texts[n]};\n")
    (root / "sources").mkdir(exist_ok=True)
    (root / "sources" / "m.sql").write_text("".join(sql))
    (root / "sources" / "f.py").write_text("\n".join(functions if "function" in code else [""]))


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

    def some(self, name: str, first: int, n: int) -> dict[str, Any]:
        """Build some partitions."""
        source = self.source(name)
        keys = self.builder.world([source]).keys[source.source_id]
        first %= len(keys)
        return {name: attempt(self._build, name, keys=keys[first : first + n])}

    def rerun(self, name: str, low: str, high: str) -> dict[str, Any]:
        return {name: attempt(self._build, name, again=(low, high))}


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


def begin(port: int, token: str, connection: Any, *given: Any) -> None:
    """Do a task in this process, step by step."""
    spark = join(port, token)
    step(connection, *given, make=partial(Keeping, engine=lambda s: Engine(s, lambda: spark)))


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
    compared: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        parts = [f"{self.histories} histories, {self.steps.total()} steps {dict(self.steps)}"]
        parts.append(f"data and code: {dict(self.events)}")
        parts.append(f"killed {self.killed.total()}: {dict(self.killed.most_common())}")
        parts.append(f"halted {self.halted.total()}: {dict(self.halted.most_common())}")
        parts.append(f"builds: {dict(self.builds.most_common())}")
        return "\n".join([*parts, f"tables compared: {self.compared}"])


_whens = st.sampled_from((0, 0, 0, 1, 1, 2, 4, 7, -1, None))
"""How many days ago; -1 is tomorrow, None no time."""
_row = st.tuples(
    _whens, st.sampled_from((0, 12)), st.sampled_from((0, 1, 2, None)), st.sampled_from(range(5))
)
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

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.children: list[Child] = []

    @initialize(
        chosen=st.one_of(
            st.just(None),
            *(st.sets(st.sampled_from([*KINDS]), min_size=1, max_size=2) for _ in range(99)),
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
        self.names = closed(chosen)
        self.code = dict.fromkeys(self.names, 0)
        self.bases = [b for b in SCHEMAS if any(b in KINDS[n].reads for n in self.names)]
        (self.root / "persist.toml").write_text(self.toml)
        write_code(self.root, self.code)
        self.raw = RawData(self.root)
        for name in self.bases:
            self.raw.append(name, self.timed(rows), 0)
        self.versions: list[Row] = []
        self.promised: dict[str, tuple[Counter[Row], str | None]] = {}
        self.owed: set[str] = set()
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
        partitioned = [name for name in self.names if KINDS[name].days]
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
            self.root, "dev", self.clock, lambda s: Engine(s, lambda: spark), patient=patient
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
                lacking = name in ("weekly", "beside") and "lacks" in str(result)
                unknown = name == "function" and "is not known before" in str(result)
                assert lacking or unknown, f"{name}: {result!r}"

    # ------------------------------------------------------------------------------- the model

    def meant(self) -> Meant:
        """Return what is so now: what a run that begins now has to make tables of."""
        raw = {name: self.raw.rows(name) for name in self.bases}
        return Meant(raw, dict(self.code), self.clock.now.date())

    def owed_names(self) -> list[str]:
        """Return the functions that have to be computed whole: what was promised of data broke."""
        if "function" not in self.names:
            return []
        run = self.run()
        build_id = run.source("function").build_id
        run.close()
        broken = self.breaks(build_id, Counter(self.raw.rows("ev")))
        return ["function"] if build_id in self.owed or broken else []

    def learn(self, meant: Meant, forced: Sequence[str], run: Keeping | None = None) -> None:
        """Note which builds of tables that are no functions of the data there were."""
        for name in {"function", "kept"}.intersection(self.names):
            ledger = run.ledger if run else Ledger(f"sqlite:///{self.root}/.persist/ledger.db")
            builds = ledger.fetch_builds(source_id=f"{name}@{FILES[name]}")
            if run is None:
                ledger.close()
            new = [b for b in builds if b.state == "succeeded" and b.build_uid not in self.seen]
            for build in sorted(new, key=lambda b: b.finished_at or b.started_at):
                self.seen.add(build.build_uid)
                assert build.snapshot
                if name == "kept":
                    assert build.snapshot.current_at
                    turn(self.versions, meant.rows("kept"), build.snapshot.current_at)
                else:
                    self.promise(build.snapshot, Counter(meant.raw["ev"]), name in forced)

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
        results = self.do(("build", self.names, self.owed_names()))
        assert all(isinstance(r, str) for r in results.values()), results
        run, meant = self.run(), self.meant()
        manifest = run.ledger.fetch_manifest("dev")
        for name in self.names:
            self.check_table(run.source(name), manifest[run.source(name).build_id], meant)
        told = json.loads((self.root / ".persist" / "manifests" / "dev.json").read_text())
        versions = {build_id: entry["version"] for build_id, entry in told["entries"].items()}
        assert versions == {b: s.version for b, s in manifest.items()}, "it was not exported"
        run.close()

    def check_claims(self, run: Keeping | None = None) -> None:
        """Check what plans call current, and that all tables that readers see are whole."""
        mine = run or self.run()
        meant, manifest = self.meant(), mine.ledger.fetch_manifest("dev")
        steps = mine.builder.plan(s.source_id for s in mine.project.persisted).steps
        for planned in steps:
            source = mine.project.by_id[planned.source_id]
            snapshot = manifest.get(source.build_id)
            if snapshot is None:
                continue
            self.read(source, snapshot)
            if planned.action == "reuse":
                self.check_table(source, snapshot, meant)
            elif KINDS[source.name].days and snapshot.partitions and planned.keys is not None:
                order = mine.builder.world([source]).keys[source.source_id]
                filled = {k for f in snapshot.partitions.filled for k in expand(order, f.runs)}
                self.check_table(source, snapshot, meant, filled - {*planned.keys})
        if run is None:
            mine.close()

    def read(self, source: Source, snapshot: Snapshot) -> Counter[Row]:
        """Return the rows that readers of a snapshot see, which measure what it says."""
        root = str(self.root / ".persist" / "warehouse" / snapshot.table)
        rows = Counter(read_rows(read_version(root, snapshot.version).files))
        assert rows.total() == snapshot.rows, f"{source.name}: {rows.total()} of {snapshot.rows}"
        key = tuple(c.name for c in snapshot.columns), frozenset(rows.items())
        assert self.contents.setdefault(key, snapshot.content) == snapshot.content, source.name
        time = KINDS[source.name].time
        if time is not None:
            last = max((row[time] for row in rows if row[time] is not None), default=None)
            assert snapshot.watermark == _told(last), f"{source.name}: {snapshot.watermark}, {last}"
        return rows

    def check_table(
        self,
        source: Source,
        snapshot: Snapshot,
        meant: Meant,
        keys: set[str] | None = None,
    ) -> None:
        """Compare rows of a table with what they must be; some partitions' or all."""
        name, found = source.name, self.read(source, snapshot)
        if source.build_id in self.owed:
            return
        wanted = Counter(self.versions if name == "kept" else meant.rows(name))
        if keys is not None:
            found = Counter({r: n for r, n in found.items() if r[0].isoformat() in keys})
            wanted = Counter({r: n for r, n in wanted.items() if r[0].isoformat() in keys})
        self.tally.compared += 1
        assert found == wanted, f"{name}: {found - wanted} too many, {wanted - found} gone"

    def check_measures(self) -> None:
        """Compare what snapshots say of rows with what Spark says when it computes them all."""
        run = self.run()
        builder, manifest = run.builder, run.ledger.fetch_manifest("dev")
        for name in self.names:
            source = run.source(name)
            snapshot = manifest[source.build_id]
            if name == "kept":
                frame = builder.load_snapshot(snapshot)
            else:
                parted = any(n in KINDS and KINDS[n].days for n in KINDS[name].reads)
                read = builder.reading(source.bindings, manifest if parted else {})
                frame = builder.merged(source, builder.compute(source, read))
            if KINDS[name].days:
                column, last = source.annotation.time_column, self.clock.now.date()
                last -= timedelta(KINDS[name].days)
                frame = frame.where(f"{column} BETWEEN '{START.date()}' AND '{last}'")
            column = source.annotation.time_column
            measured = builder.engine.measure(frame, (), column, name)
            found = (snapshot.rows, snapshot.content, snapshot.watermark)
            assert found == (measured.rows, measured.content, measured.watermark), name
        run.close()


FILES = {"function": "sources/f.py", "kept": "sources/m.sql"}


@dataclass(frozen=True)
class Meant:
    """What tables must be of: the rows of raw tables, the variants of sources, and the day."""

    raw: Raw
    code: Mapping[str, int]
    today: date

    def rows(self, name: str) -> list[Row]:
        """Return the rows of a source, computed from scratch."""
        if name in self.raw:
            return [*self.raw[name]]
        kind = KINDS[name]
        rows = kind.rows(*map(self.rows, kind.reads), int(self.code[name] == 2))
        if not kind.days:
            return [*rows]
        last = self.today - timedelta(kind.days)
        return [r for r in rows if r[0] is not None and START.date() <= r[0] <= last]


def turn(versions: list[Row], rows: Iterable[Row], now: datetime) -> None:
    """Let a history of (k, v, from, to) go on: rows are what is so now."""
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
    for old in current.values():
        versions[versions.index(old)] = (*old[:3], max(now, old[2] + TICK))


def _told(value: date | None) -> str | None:
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
) -> Tally:
    """Check so many histories, and return what they came to; see `machine.repeat`."""
    tally = Tally()
    given = {"spark": spark, "zygote": zygote, "toml": toml, "tally": tally, "contents": {}}
    repeat(Histories, given, n, seed=seed, steps=steps, first=first, shrink=shrink)
    return tally
