"""Builds of sources with parameters read fewer rows, and their tables equal a full rebuild."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from growing import ONE, anew, check, kind_of, put

from persist_assets.building.builder import Builder
from persist_assets.core.partitions import expand
from persist_assets.engine.spark import SparkEngine

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.sources import Source
    from persist_assets.planning.render import Statement

Make = Callable[..., Builder]
NOW = datetime(2024, 1, 13, 5, tzinfo=UTC)


class Recording(SparkEngine):
    """An engine that records the statements that it runs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ran: list[str] = []

    def run(self, statement: Statement, *arguments: Any) -> Any:
        self.ran.append(statement.sql)
        return super().run(statement, *arguments)


@pytest.fixture
def make_builder(
    make_project: Callable[..., Path], enter: Callable[..., Builder], spark: Any
) -> Make:
    """Return a function that makes a builder, a new run, for a project of one SQL file."""

    def make(text: str | None = None, root: Path | None = None) -> Builder:
        root = root or make_project({"m.sql": text or ""})
        return enter(
            root, engine=lambda settings: Recording(settings, lambda: spark), clock=lambda: NOW
        )

    return make


def named(builder: Builder, name: str = "q") -> Source:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def built(builder: Builder, label: str = "", *, force: bool = False) -> str:
    """Build a source, check that its table equals a full rebuild, and return the method."""
    source = named(builder)
    with builder.work(source, force=force) as work:
        builder.publish(work)
    check(builder, source, label)
    return kind_of(work)


# Nothing can be proven about groups by columns other than the time. In the data below, all rows of
# a group are of one day, so that `assume=exact` is true.
BY_DAY = {
    "timestamp": ("max(ts)", "ts > :watermark", ' lookback="2 days"'),
    "timestamp, from the other side": ("max(ts)", ":watermark <= ts", ' lookback="2 days"'),
    "times of dates": ("max(CAST(ts AS DATE))", "ts > :watermark", ' lookback="2 days"'),
    "whole numbers": ("max(day(ts))", "day(ts) > :watermark", ""),
    "decimals": (
        "max(CAST(day(ts) AS DECIMAL(6, 2)))",
        "CAST(day(ts) AS DECIMAL(6, 2)) > :watermark",
        "",
    ),
    "texts": ("max(upper(x))", "upper(x) > :watermark", ""),
}


def by_day(kind: str) -> str:
    greatest, condition, lookback = BY_DAY[kind]
    greatest = greatest.replace("day(ts)", "dayofmonth(ts)")
    condition = condition.replace("day(ts)", "dayofmonth(ts)")
    return ONE + (
        f"--@ persist refresh=incremental watermark=last assume=exact{lookback}\n"
        f"CREATE VIEW q AS SELECT {greatest} AS last, x, count(*) AS n\n"
        f"FROM t WHERE {condition} AND x IS NOT NULL GROUP BY x;"
    )


def row(day: int) -> tuple[int, str]:
    return day, f"d{day:02}"


@pytest.mark.slow
@pytest.mark.proves("P8", "P9", "P34")
@pytest.mark.parametrize("kind", BY_DAY)
def test_random_histories_equal_a_build_from_scratch(make_builder: Make, kind: str) -> None:
    rng, tally = random.Random(kind), Counter[str]()
    builder = make_builder(by_day(kind))
    root, last = builder.settings.root, 4
    late = 2 if BY_DAY[kind][2] else 0
    put(root, 0, row(0), row(4), row(4))
    assert built(builder) == "whole"
    for number in range(1, 5):
        days = [rng.randint(max(last - late, 0), last + 2) for _ in range(rng.randint(1, 4))]
        timeless = [(None, "d99")] if kind != "texts" else []
        put(root, number, row(last), *map(row, days), *timeless)
        builder, force = make_builder(root=root), rng.random() < 0.2
        how = built(builder, f"step {number}: {last}, {days}", force=force)
        tally[how] += 1
        last = max(last, *days)
    assert tally["windows"], tally
    assert built(make_builder(root=root)) == "reused"


@pytest.mark.slow
def test_rows_before_the_window_are_not_read(make_builder: Make) -> None:
    builder = make_builder(by_day("timestamp"))
    root = builder.settings.root
    put(root, 0, row(0), row(5))
    built(builder)
    put(root, 1, row(9))
    builder = make_builder(root=root)
    with builder.work(named(builder)) as work:
        builder.publish(work)
    (narrowed,) = [sql for sql in builder.engine.ran if ">=" in sql]  # pyright: ignore
    assert re.search(r"WHERE ts\s+>= timestamp_micros\(1704326400000000\)\s+AND x", narrowed)
    builder = make_builder(root=root)
    with builder.work(named(builder), force=True) as work:
        builder.publish(work)
    whole = builder.engine.ran[-1]  # pyright: ignore
    assert re.search(r"WHERE ts\s+IS NOT NULL\s+AND x", whole)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", " assume=exact"])
def test_a_watermark_condition_on_another_column_loses_no_rows(
    make_builder: Make, more: str
) -> None:
    # Not even if the user wrongly declares `assume=exact`.
    text = ONE + (
        f"--@ persist refresh=incremental watermark=day{more}\n"
        "CREATE VIEW q AS SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM t"
        " WHERE CAST(x AS DATE) > :watermark GROUP BY 1;"
    )
    builder = make_builder(text)
    root = builder.settings.root
    put(root, 0, (0, "2024-01-01"), (5, "2023-12-31"))
    built(builder)
    put(root, 1, (2, "2024-01-03"), (5, "2024-01-06"), (6, "2023-01-01"))
    assert built(make_builder(root=root)) == "windows"


@pytest.mark.slow
def test_rows_without_a_time_are_not_lost(make_builder: Make) -> None:
    text = by_day("timestamp").replace("max(ts)", "max(CASE WHEN x <> 'none' THEN ts END)")
    builder = make_builder(text)
    root = builder.settings.root
    put(root, 0, (0, "none"), row(1), row(5))
    built(builder)
    put(root, 1, row(9))
    with_one = make_builder(root=root)
    built(with_one)
    (root / "raw" / "0.parquet").unlink()
    put(root, 2, row(9))
    assert built(make_builder(root=root)) == "whole"
    put(root, 3, row(10))
    builder = make_builder(root=root)
    assert built(builder) == "windows"
    assert any(">= timestamp_micros" in sql for sql in builder.engine.ran)  # pyright: ignore


@pytest.mark.slow
def test_a_source_with_a_merge_key_is_updated_by_windows(make_builder: Make) -> None:
    text = ONE + (
        "--@ persist refresh=incremental watermark=ts assume=exact merge_key=x { on_tie=greatest }\n"
        "CREATE VIEW q AS SELECT max(ts) AS ts, x, dayofmonth(ts) AS k FROM t WHERE ts > :watermark"
        " GROUP BY x, dayofmonth(ts);"
    )
    builder = make_builder(text)
    root = builder.settings.root
    put(root, 0, (0, "a"), (5, "a"), (5, "b"))
    built(builder)
    put(root, 1, (5, "c"), (6, "a"))
    assert built(make_builder(root=root)) == "windows"


@pytest.mark.proves("P15")
def test_a_rerun_recomputes_its_whole_window(make_builder: Make) -> None:
    builder = make_builder(by_day("timestamp"))
    root = builder.settings.root
    put(root, 0, row(0), row(3), row(9))
    built(builder)
    put(root, 1, row(9), row(12))
    builder = make_builder(root=root)
    source = named(builder)
    with builder.work(source, recompute_span=("2024-01-04", "2024-01-04")) as work:
        builder.publish(work)
    assert work.step.increment and work.step.increment.past and work.step.increment.spans
    check(builder, source, "a rerun")


def test_an_unbuilt_source_is_computed_in_full_for_downstream_queries(make_builder: Make) -> None:
    text = by_day("timestamp") + "\nCREATE VIEW r AS SELECT count(*) AS n FROM q WHERE n > 0;"
    builder = make_builder(text)
    put(builder.settings.root, 0, row(0), row(3), (None, "d99"))
    assert builder.read(named(builder)).count() == 2
    assert builder.read(named(builder, "r")).collect()[0].n == 2


# -------------------------------------------------------------------------------- partitions

FACTS = "CREATE TABLE f (day DATE, ts TIMESTAMP, o STRING, n INT) USING delta LOCATION 'f';\n"
DAILY = {
    "its column": "SELECT day, o, sum(n) AS n FROM f\n"
    "WHERE day >= :partition_start AND :partition_end > day GROUP BY 1, 2",
    "times of its days": "SELECT CAST(ts AS DATE) AS day, o, n FROM f\n"
    "WHERE ts >= :partition_start AND ts < :partition_end",
}


def add(root: Path, *days: int | None) -> None:
    start = datetime(2024, 1, 1, 18, tzinfo=UTC)
    rows = [
        {
            "day": None if d is None else start.date().replace(day=1 + d),
            "ts": None if d is None else start.replace(day=1 + d),
            "o": "ab"[n % 2],
            "n": n + (d or 0),
        }
        for n, d in enumerate(days)
    ]
    kinds = {"day": pa.date32(), "ts": pa.timestamp("us", "UTC"), "o": pa.string(), "n": pa.int32()}
    table = pa.Table.from_pylist(rows, pa.schema([*kinds.items()]))
    write_deltalake(str(root / "f"), table, mode="append")


@pytest.mark.slow
@pytest.mark.proves("P18")
@pytest.mark.parametrize("how", DAILY)
def test_partitions_equal_a_build_from_scratch_whichever_runs_build_them(
    make_builder: Make, how: str
) -> None:
    text = FACTS + (
        '--@ persist partition=daily time_column=day start="2024-01-01"\n'
        f"CREATE VIEW q AS {DAILY[how]};"
    )
    rng = random.Random(3)
    builder = make_builder(text)
    root = builder.settings.root
    add(root, *range(12), None)
    keys = builder.observer.keys()[named(builder).source_id]
    for number in range(6):
        builder = make_builder(root=root)
        source = named(builder)
        # Partitions that are not adjacent, in one run; the last run builds the rest.
        chosen = None if number == 5 else sorted(rng.sample(keys, 3))
        with builder.work(source, keys=chosen) as work:
            snapshot = builder.publish(work)
        assert snapshot.partitions is not None
        there = {k for g in snapshot.partitions.filled for k in expand(keys, g.runs)}
        rows, _ = anew(builder, source)
        wanted = Counter({r: n for r, n in rows.items() if str(r.day) in there})
        found = Counter(builder.reader.load_snapshot(snapshot).collect())
        if chosen is None:
            assert there == {*keys}
            assert found == wanted, f"{found - wanted} too many, {wanted - found} gone"
        else:
            assert {*chosen} <= there
            for key in chosen:
                assert of(found, key) == of(wanted, key), key
        if number < 4:
            add(root, rng.randrange(12), rng.randrange(12), None)


def of(rows: Counter[Any], key: str) -> dict[Any, int]:
    return {r: n for r, n in rows.items() if str(r.day) == key}
