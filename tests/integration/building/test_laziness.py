"""Nothing is computed before a table is written, and only relevant raw data is read."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import persist, printed
from deltalake import write_deltalake
from scans import Scans

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

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


def put(root: Path, name: str, *days: int, delta: bool = False) -> None:
    """Write a file of raw data with one row group for each day."""
    stamps = [START + dt.timedelta(days=d, seconds=n) for d in days for n in range(A_DAY)]
    columns = {"ts": pa.array(stamps, pa.timestamp("us", "UTC"))}
    columns["only_raw"] = pa.array(range(len(stamps)), pa.int32())
    if delta:
        write_deltalake(root / "raw", pa.table(columns), mode="append")
        return
    (root / "raw").mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), root / "raw" / f"{name}.parquet", row_group_size=A_DAY)


def build(builder: Builder, span: tuple[str, str] | None = None) -> int:
    """Build `f`, and return its number of rows."""
    source = next(s for s in builder.project.sources if s.name == "f")
    snapshot = builder.build(source, recompute_span=span).snapshot
    assert snapshot is not None
    return snapshot.rows


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("PERSIST_TEST_SPARK") == "shared", reason="a server tells no client its status"
)
@pytest.mark.proves("P6", "P16")
@pytest.mark.parametrize(
    ("files", "days", "pushed"),
    [
        # The day before the watermark (`lookback`), the watermark's day, and the new one.
        ({"f.py": FILTERED}, 3, "GreaterThanOrEqual(ts,2024-01-19"),
        # A query that is proven to only add rows is computed from the new file alone.
        ({"f.sql": PROVEN}, 1, ""),
    ],
    ids=["a filter of a function", "a query that is proven"],
)
def test_an_incremental_build_scans_only_relevant_raw_data(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    spark: Any,
    files: dict[str, str],
    days: int,
    pushed: str,
) -> None:
    root = make_project({"raw.sql": RAW, **files})
    put(root, "0", *range(DAYS))
    scans = Scans(spark, "only_raw")
    assert build(enter(root)) == DAYS * A_DAY
    assert scans.told()[0] >= DAYS * A_DAY
    put(root, "1", DAYS)
    scans = Scans(spark, "only_raw")
    assert build(enter(root)) == (DAYS + 1) * A_DAY
    rows, _, plans = scans.told()
    assert plans and all(pushed in plan.split("PushedFilters: ")[1] for plan in plans), plans
    assert rows == days * A_DAY
    scans = Scans(spark, "only_raw")
    assert build(enter(root)) == (DAYS + 1) * A_DAY
    assert scans.told() == (0, 0, [])  # nothing changed: nothing is read


GROUPED = PROVEN.replace("only_raw + 1 AS n FROM t", "max(only_raw) AS n FROM t GROUP BY 1")


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("PERSIST_TEST_SPARK") == "shared", reason="a server tells no client its status"
)
@pytest.mark.proves("P13", "P16")
@pytest.mark.parametrize(
    ("form", "files", "read"),
    [
        # A function may need rows later than the window, so the filter keeps them. Spark skips
        # rows that cannot be in the window if it can see through the function.
        ("parquet", {"f.py": FILTERED}, (11 * A_DAY, 6)),
        (
            "parquet",
            {"f.py": FILTERED.replace("CAST(CAST(ts AS STRING) AS TIMESTAMP) AS ts", "ts")},
            (A_DAY, 6),
        ),
        # Without statistics in a log, Spark reads in each file which rows may be in the window.
        ("parquet", {"f.sql": PROVEN}, (A_DAY, 6)),
        ("parquet", {"f.sql": GROUPED}, (A_DAY, 6)),
        ("delta", {"f.sql": PROVEN}, (3 * A_DAY, 1)),
        ("delta", {"f.sql": GROUPED}, (3 * A_DAY, 1)),
    ],
    ids=[
        "a function",
        "a function that Spark sees through",
        "parquet",
        "groups of parquet",
        "delta",
        "groups of delta",
    ],
)
def test_a_rerun_scans_only_the_rows_that_its_window_needs(
    make_project: Callable[..., Path],
    enter: Callable[..., Builder],
    spark: Any,
    form: str,
    files: dict[str, str],
    read: tuple[int, int],
) -> None:
    root = make_project({"raw.sql": RAW.replace("parquet", form), **files})
    for n in range(6):
        put(root, str(n), *range(3 * n, 3 * n + 3), delta=form == "delta")
    whole = build(enter(root))
    assert whole == 18 * A_DAY
    scans = Scans(spark, "only_raw")
    assert build(enter(root), span=("2024-01-08", "2024-01-08")) == whole
    *found, plans = scans.told()
    assert (tuple(found), len(plans)) == (read, 1), plans


@pytest.mark.slow
@pytest.mark.proves("P16")
def test_check_and_plan_compute_nothing(make_project: Callable[..., Path]) -> None:
    root = make_project({"raw.sql": RAW, "f.py": BOMB, "g.sql": PROVEN.replace("f AS", "g AS")})
    put(root, "0", *range(DAYS))
    # No row of it can be read: only the footer, with its columns and statistics, is left.
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
