"""Partitioned sources on Spark: builds compute only partitions whose rows may have changed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from growing import anew

from persist_assets.building.builder import Builder
from persist_assets.core.errors import BuildError
from persist_assets.core.partitions import expand

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source

Make = Callable[..., Builder]
NOW = datetime(2024, 1, 29, 5, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
"""A Monday: the four weeks of January that began on a Monday have ended."""

RAW = "CREATE TABLE f (day DATE, o STRING, n INT) USING delta LOCATION 'f';\n"
DAILY = """
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW daily AS SELECT day, o, sum(n) AS n FROM f GROUP BY day, o;
"""
WEEKLY = """
--@ persist partition=weekly time_column=week start="2024-01-01"
CREATE VIEW weekly AS SELECT CAST(date_trunc('week', day) AS DATE) AS week, sum(n) AS n
FROM daily GROUP BY 1;
"""
TOTAL = """
--@ persist
CREATE VIEW total AS SELECT sum(n) AS n FROM daily;
"""


def put(root: Path, rows: list[tuple[date, str, int]], mode: Any = "append") -> None:
    schema = pa.schema([("day", pa.date32()), ("o", pa.string()), ("n", pa.int32())])
    listed = [dict(zip(("day", "o", "n"), row, strict=True)) for row in rows]
    write_deltalake(str(root / "f"), pa.Table.from_pylist(listed, schema), mode=mode)


def day(n: int) -> date:
    return date(2024, 1, 1) + timedelta(n)


def january(root: Path) -> None:
    """Put rows of all days of January, a file for each week."""
    for week in range(5):
        put(root, [(day(n), o, n) for n in range(7 * week, 7 * week + 7) for o in ("EWR", "JFK")])


@pytest.fixture
def make_builder(make_project: Callable[..., Path], enter: Callable[..., Builder]) -> Make:
    """Return a function that makes a builder, a new run, for a project of one SQL file."""

    def make(text: str | None = None, settings: str = "", **how: Any) -> Builder:
        root = how.pop("root", None) or make_project({"m.sql": text or ""}, settings)
        now = how.pop("now", NOW)
        return enter(root, clock=lambda: now, **how)

    return make


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def order(builder: Builder, source: Source) -> tuple[str, ...]:
    return builder.observer.keys()[source.source_id]


def built(
    builder: Builder, name: str, keys: Any = None, **how: Any
) -> tuple[list[str] | None, Snapshot]:
    """Build partitions, and return which were computed, and the snapshot."""
    source = named(builder, name)
    with builder.work(source, keys=keys, **how) as work:
        snapshot = builder.publish(work)
    if work.build.action == "reused":
        return None, snapshot
    return list(work.step.keys or ()), snapshot


def available(builder: Builder, environment: str) -> set[str]:
    return {*builder.ledger.partitions.fetch_available(environment)}


def check(builder: Builder, name: str) -> None:
    """Compare the rows of the built partitions with recomputed rows."""
    source = named(builder, name)
    snapshot = builder.observer.manifest()[source.build_id]
    assert snapshot.partitions is not None
    there = {k for f in snapshot.partitions.filled for k in expand(order(builder, source), f.runs)}
    rows, _ = anew(builder, source)
    partition = source.annotation.partition
    assert partition is not None
    ends = {"daily": 1, "weekly": 7}[partition.dimensions[0].every or ""]
    covered = {(date.fromisoformat(key) + timedelta(n)) for key in there for n in range(ends)}
    wanted = Counter({row: n for row, n in rows.items() if row[0] in covered})
    found = Counter(builder.reader.load_snapshot(snapshot).collect())
    assert found == wanted, name
    assert sum(found.values()) == snapshot.rows


@pytest.mark.slow
@pytest.mark.proves("K8", "P8")
@pytest.mark.parametrize("there", [False, True])
def test_partitions_join_all_rows_of_an_unpartitioned_table(
    make_builder: Make, there: bool
) -> None:
    builder = make_builder(f"""{RAW}
        --@ persist refresh=incremental merge_key=o time_column=day
        CREATE VIEW last AS SELECT o, day, n FROM f;
        --@ persist partition=daily time_column=day start="2024-01-01"
        CREATE VIEW q AS SELECT f.day, f.n, last.n AS m FROM f JOIN last ON f.o = last.o;
    """)
    put(builder.settings.root, [(day(2), "EWR", 10), (day(3), "EWR", 5)])
    if there:
        built(builder, "last")
    _, snapshot = built(builder, "q", ["2024-01-03"])
    assert [tuple(r) for r in builder.reader.load_snapshot(snapshot).collect()] == [(day(2), 10, 5)]


@pytest.mark.slow
@pytest.mark.proves("K8", "P18", "P31")
def test_a_backfill_builds_all_missing_partitions_in_one_build(make_builder: Make) -> None:
    builder = make_builder(RAW + DAILY + WEEKLY + TOTAL)
    root = builder.settings.root
    january(root)
    some = ["2024-01-03", "2024-01-04"]
    assert built(builder, "daily", some)[0] == some
    check(builder, "daily")
    with pytest.raises(BuildError, match=r"daily lacks 26 partitions \(2024-01-01 to 2024-01-02, "):
        builder.build(named(builder, "total"))
    with pytest.raises(BuildError, match=r"daily lacks 5 partitions \(2024-01-01 to 2024-01-02, "):
        builder.build(named(builder, "weekly"), keys=["2024-01-01"])
    computed, snapshot = built(builder, "daily")
    assert computed is not None
    assert len(computed) == 26
    assert snapshot.rows == 2 * 28
    check(builder, "daily")
    assert built(builder, "daily")[0] is None
    assert built(builder, "weekly", ["2024-01-08"])[0] == ["2024-01-08"]
    check(builder, "weekly")
    assert len(built(builder, "weekly")[0] or ()) == 3
    check(builder, "weekly")
    builder.build(named(builder, "total"))
    assert builder.read(named(builder, "total")).collect()[0][0] == 2 * sum(range(28))


@pytest.mark.proves("P31")
def test_files_of_a_backfill_have_disjoint_days(make_builder: Make) -> None:
    text = "--@ persist partition=daily time_column=day start='2024-01-01'\n"
    builder = make_builder(f"{RAW}{text}CREATE VIEW kept AS SELECT day, o, n FROM f WHERE n >= 0;")
    chance = random.Random(7)
    for first in range(0, 28, 2):  # sized so that several days make up a group
        put(
            builder.settings.root,
            [(day(first + n % 2), chance.randbytes(5_000).hex(), n) for n in range(150)],
        )
    _, snapshot = built(builder, "kept")
    table = DeltaTable(builder.settings.table_root(snapshot.table), version=snapshot.version)
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    spans = sorted((f["min.day"], f["max.day"]) for f in files)
    assert 1 < len(spans) < 7
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    check(builder, "kept")
    assert builder.engine.session.conf.get("spark.sql.files.minPartitionNum", None) is None


@pytest.mark.slow
@pytest.mark.proves("K8", "P34")
def test_only_partitions_that_a_change_can_affect_are_stale(make_builder: Make) -> None:
    builder = make_builder(RAW + DAILY + WEEKLY + TOTAL)
    root = builder.settings.root
    january(root)
    for name in ("daily", "weekly", "total"):
        builder.build(named(builder, name))
    put(root, [(day(9), "LGA", 5)])
    again = make_builder(root=root)
    steps = {
        s.source_id.partition("@")[0]: s
        for s in again.plan([s.source_id for s in again.project.persisted]).steps
    }
    assert steps["daily"].keys == ("2024-01-10",)
    assert [r.message for r in steps["daily"].reasons] == [
        "1 partition (2024-01-10) may have changed",
        "the data of f changed",
    ]
    assert steps["weekly"].keys == ("2024-01-08",)
    before = {f.name: f.stat().st_mtime_ns for f in root.rglob("*.parquet")}
    assert built(again, "daily")[0] == ["2024-01-10"]
    assert built(again, "weekly")[0] == ["2024-01-08"]
    check(again, "daily")
    check(again, "weekly")
    assert {f.name: f.stat().st_mtime_ns for f in root.rglob("*.parquet")}.items() >= before.items()
    # The others are unchanged and based on the new data: nothing is left to build.
    last = make_builder(root=root)
    assert built(last, "daily")[0] is None
    assert built(last, "weekly")[0] is None
    # A day later there is one more partition.
    put(root, [(day(28), "LGA", 5)])
    later = make_builder(root=root, now=NOW + timedelta(days=1))
    assert built(later, "daily")[0] == ["2024-01-29"]
    assert built(later, "weekly")[0] is None
    check(later, "daily")
    assert built(later, "total")[1].rows == 1


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_unselected_partitions_stay_stale_until_they_are_built(
    make_builder: Make,
) -> None:
    builder = make_builder(RAW + DAILY)
    root = builder.settings.root
    january(root)
    first = builder.build(named(builder, "daily"))
    put(root, [(day(2), "LGA", 5), (day(3), "LGA", 7)])
    later = make_builder(root=root, now=LATER)
    computed, snapshot = built(later, "daily", ["2024-01-03"])
    assert computed == ["2024-01-03"]
    assert snapshot.partitions is not None
    assert len(snapshot.partitions.filled) == 2
    # The age of the table is that of its oldest partition.
    assert first.snapshot is not None
    assert snapshot.known_at == first.snapshot.known_at == NOW
    computed, snapshot = built(later, "daily", ["2024-01-03"])
    assert (computed, snapshot.known_at) == (None, first.snapshot.known_at)
    computed, snapshot = built(make_builder(root=root, now=LATER), "daily")
    assert (computed, snapshot.known_at) == (["2024-01-04"], LATER)
    check(make_builder(root=root), "daily")
    # A build that computes nothing announces no partition, least of all the whole table.
    assert built(make_builder(root=root), "daily")[0] is None
    assert available(later, "dev") == {
        f"m/daily/{key}" for key in order(later, named(later, "daily"))
    }


@pytest.mark.slow
def test_an_environment_reuses_partitions_of_the_one_that_it_reads(make_builder: Make) -> None:
    builder = make_builder(RAW + DAILY, '[env.dev]\nreads = "prod"\n[env.prod]\n[env.qa]\n')
    root = builder.settings.root
    january(root)
    prod = make_builder(root=root, environment="prod")
    built(prod, "daily")
    qa = make_builder(root=root, environment="qa")
    assert built(qa, "daily")[0] is None
    assert available(qa, "qa") == available(prod, "prod") != set()
    put(root, [(day(2), "LGA", 5)])
    dev = make_builder(root=root, environment="dev")
    computed, snapshot = built(dev, "daily")
    assert computed == ["2024-01-03"]
    check(dev, "daily")
    assert available(dev, "dev") == {"m/daily/2024-01-03"}
    assert snapshot.table != prod.observer.manifest()[snapshot.build_id].table


@pytest.mark.slow
@pytest.mark.proves("K8")
@pytest.mark.parametrize("seed", [1])
def test_partitions_equal_a_rebuild_after_random_changes(make_builder: Make, seed: int) -> None:
    rng = random.Random(seed)
    builder = make_builder(RAW + DAILY + WEEKLY)
    root = builder.settings.root
    january(root)
    for _ in range(7):
        if rng.random() < 0.6:
            put(root, [(day(rng.randrange(-2, 30)), "EWR", 1) for _ in range(rng.randrange(3))])
        elif rng.random() < 0.5:
            DeltaTable(str(root / "f")).delete(f"day = '{day(rng.randrange(28))}'")
        else:
            DeltaTable(str(root / "f")).update(
                {"n": "n + 1"}, predicate=f"day > '{day(rng.randrange(28))}'"
            )
        again = make_builder(root=root)
        every = order(again, named(again, "daily"))
        if rng.random() < 0.5:
            first = rng.randrange(len(every))
            built(again, "daily", every[first : first + rng.randrange(1, 12)])
        else:
            built(again, "daily")
            built(again, "weekly")
            check(again, "weekly")
        if again.observer.manifest()[named(again, "daily").build_id].partitions:
            # Partitions that are not stale have the current rows.
            step = again.plan([named(again, "daily").source_id]).steps[0]
            snapshot = again.observer.manifest()[step.build_id]
            rows, _ = anew(again, named(again, "daily"))
            stale = {date.fromisoformat(key) for key in step.keys or ()}
            found = Counter(again.reader.load_snapshot(snapshot).collect())
            assert {r: n for r, n in found.items() if r[0] not in stale} == {
                r: n for r, n in rows.items() if r[0] not in stale and day(0) <= r[0] < day(28)
            }
    last = make_builder(root=root)
    built(last, "daily")
    built(last, "weekly")
    check(last, "daily")
    check(last, "weekly")


@pytest.mark.slow
def test_partitions_by_list_and_by_two_dimensions_are_built(make_builder: Make) -> None:
    builder = make_builder(
        RAW
        + "--@ persist partition { o=[EWR, JFK] }\nCREATE VIEW l AS SELECT * FROM f;\n"
        + '--@ persist partition { o=[EWR, JFK] day=daily } start="2024-01-20"\n'
        + "CREATE VIEW b AS SELECT day, o, n FROM f;"
    )
    january(builder.settings.root)
    put(builder.settings.root, [(day(1), "LGA", 1)])
    assert built(builder, "l", ["JFK"])[0] == ["JFK"]
    assert {r.o for r in builder.read(named(builder, "l")).collect()} == {"JFK"}
    assert built(builder, "l")[1].rows == 70
    some = ["2024-01-21|JFK", "2024-01-22|EWR"]
    assert built(builder, "b", some)[0] == sorted(some)
    found = {(r.day.isoformat(), r.o) for r in builder.read(named(builder, "b")).collect()}
    assert found == {("2024-01-21", "JFK"), ("2024-01-22", "EWR")}
    assert built(builder, "b")[1].rows == 2 * 9


@pytest.mark.slow
def test_a_table_with_missing_files_is_rebuilt(make_builder: Make) -> None:
    builder = make_builder(RAW + DAILY)
    root = builder.settings.root
    january(root)
    snapshot = built(builder, "daily")[1]
    shutil.rmtree(builder.settings.table_root(snapshot.table))
    assert len(built(make_builder(root=root), "daily")[0] or ()) == 28
    check(make_builder(root=root), "daily")


@pytest.mark.slow
@pytest.mark.proves("K8")
def test_statistics_of_parquet_files_determine_the_stale_partitions(make_builder: Make) -> None:
    builder = make_builder(
        "CREATE TABLE p (ts TIMESTAMP, n INT) USING parquet LOCATION 'p';\n"
        '--@ persist partition=daily time_column=day start="2024-01-01"\n'
        "CREATE VIEW q AS SELECT CAST(ts AS DATE) AS day, sum(n) AS n FROM p GROUP BY 1;"
    )
    root = builder.settings.root
    (root / "p").mkdir()

    def add(name: str, hours: list[int], kind: Any) -> None:
        stamps = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=h) for h in hours]
        pq.write_table(
            pa.table({"ts": pa.array(stamps, kind), "n": pa.array([1] * len(hours), pa.int32())}),
            root / "p" / f"{name}.parquet",
        )

    utc = pa.timestamp("us", "UTC")
    add("a", [24 * n for n in range(28)], utc)
    assert len(built(builder, "q")[0] or ()) == 28
    add("b", [48, 71], utc)
    assert built(make_builder(root=root), "q")[0] == ["2024-01-03"]
    add("c", [23, 24], pa.timestamp("ms", "UTC"))
    assert built(make_builder(root=root), "q")[0] == ["2024-01-01", "2024-01-02"]
    (root / "p" / "c.parquet").unlink()  # its rows are now unknown
    assert len(built(make_builder(root=root), "q")[0] or ()) == 28
    check(make_builder(root=root), "q")
