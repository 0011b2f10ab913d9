"""Nothing is computed before a table is written, and of raw data only what can matter is read."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import persist, printed

from persist_assets.builder import Builder

RAW = "CREATE TABLE t (ts TIMESTAMP, only_raw INT) USING parquet LOCATION 'raw';\n"
FILTERED = """
from persist_assets import incremental_filter, incremental_table

@incremental_table(time_column="ts", lookback="1 day", assume="exact")
def f(t):
    more = t.selectExpr("ts", "only_raw + 1 AS n").transform(incremental_filter("ts"))
    # Of this no filter of the result could be pushed down to the scan.
    return more.selectExpr("CAST(CAST(ts AS STRING) AS TIMESTAMP) AS ts", "n")
"""
BOMB = """
from persist_assets import table
raise SystemExit("this file was run")

@table
def f(t):
    return t
"""
PROVEN = """
--@ persist refresh=incremental watermark=ts
CREATE VIEW f AS SELECT ts, only_raw + 1 AS n FROM t;
"""
DAYS, A_DAY = 20, 500
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def put(root: Path, name: str, *days: int) -> None:
    """Write a file of raw data whose groups of rows are days."""
    stamps = [START + dt.timedelta(days=d, seconds=n) for d in days for n in range(A_DAY)]
    columns = {"ts": pa.array(stamps, pa.timestamp("us", "UTC"))}
    columns["only_raw"] = pa.array(range(len(stamps)), pa.int32())
    (root / "raw").mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), root / "raw" / f"{name}.parquet", row_group_size=A_DAY)


class Scans:
    """What Spark scans of the raw data from now on, as its own status tells."""

    def __init__(self, spark: Any) -> None:
        self._status = spark._jsparkSession.sharedState().statusStore()
        self._bus = spark.sparkContext._jsc.sc().listenerBus()
        self._before = max(self._executions(), default=-1)

    def _executions(self) -> list[int]:
        self._bus.waitUntilEmpty()
        return [e.executionId() for e in listed(self._status.executionsList())]

    def told(self) -> tuple[int, list[str]]:
        """Return how many rows were scanned, and how each scan was planned."""
        rows, plans = 0, list[str]()
        for execution in (e for e in self._executions() if e > self._before):
            values = self._status.executionMetrics(execution)
            for node in listed(self._status.planGraph(execution).allNodes()):
                if node.name().startswith("Scan parquet") and "only_raw" in node.desc():
                    plans.append(node.desc())
                    for metric in listed(node.metrics()):
                        told = values.get(metric.accumulatorId())
                        if metric.name() == "number of output rows" and told.isDefined():
                            rows += int(told.get().replace(",", ""))
        return rows, plans


def listed(sequence: Any) -> list[Any]:
    """Return what a sequence of Scala's holds."""
    return [sequence.apply(n) for n in range(sequence.size())]


def build(builder: Builder) -> int:
    """Build f, and return how many rows it has."""
    source = next(s for s in builder.project.sources if s.name == "f")
    snapshot = builder.build(source).snapshot
    assert snapshot is not None
    return snapshot.rows


@pytest.mark.skipif(
    os.environ.get("PERSIST_TEST_SPARK") == "shared", reason="a server tells no client its status"
)
@pytest.mark.proves("P6", "P16")
@pytest.mark.parametrize(
    ("files", "days", "pushed"),
    [
        # The day before the watermark, as `lookback` says, its own, and the new one.
        ({"f.py": FILTERED}, 3, "GreaterThanOrEqual(ts,2024-01-19"),
        # What is proven to add rows of its own is computed over the new file.
        ({"f.sql": PROVEN}, 1, ""),
    ],
    ids=["a filter of a function", "a query that is proven"],
)
def test_of_raw_data_only_what_can_matter_is_scanned(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    spark: Any,
    files: dict[str, str],
    days: int,
    pushed: str,
) -> None:
    root = make_project({"raw.sql": RAW, **files})
    put(root, "0", *range(DAYS))
    scans = Scans(spark)
    assert build(enter(root)) == DAYS * A_DAY
    assert scans.told()[0] >= DAYS * A_DAY
    put(root, "1", DAYS)
    scans = Scans(spark)
    assert build(enter(root)) == (DAYS + 1) * A_DAY
    rows, plans = scans.told()
    assert plans and all(pushed in plan.split("PushedFilters: ")[1] for plan in plans), plans
    assert rows == days * A_DAY
    scans = Scans(spark)
    assert build(enter(root)) == (DAYS + 1) * A_DAY
    assert scans.told() == (0, [])  # nothing changed: nothing is read


@pytest.mark.proves("P16")
def test_check_and_plan_compute_nothing(make_project: Callable[..., Path]) -> None:
    root = make_project({"raw.sql": RAW, "f.py": BOMB, "g.sql": PROVEN.replace("f AS", "g AS")})
    put(root, "0", *range(DAYS))
    # No row of it can be read: there is only what tells of columns and files.
    data = root / "raw" / "0.parquet"
    whole = data.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    data.write_bytes(whole[:4] + bytes(len(whole) - footer - 4) + whole[-footer:])
    with pytest.raises(OSError):
        pq.read_table(data)
    no_java = {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}
    checked = printed(persist("check", "--json", cwd=root, env=no_java))
    assert [len(s["columns"]) for s in checked["sources"]] == [2, 0, 2]
    planned = printed(persist("plan", "--json", cwd=root, env=no_java))
    assert [s["action"] for s in planned["steps"]] == ["build", "build"]
    assert printed(persist("docs", "--json", cwd=root, env=no_java))["pages"] == 6
