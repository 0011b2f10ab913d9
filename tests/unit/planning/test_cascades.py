"""Which partitions depend on a window of an input that has no partitions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from conftest import compiled

from persist_assets.core.partitions import keys
from persist_assets.planning.reach import reached_within

NOW = datetime(2024, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.proves("P13")
@pytest.mark.parametrize("kept", ["assume=exact", "merge_key=x"])
@pytest.mark.parametrize(
    ("column", "query", "reached"),
    [
        ("day", "SELECT CAST(ts AS DATE) AS day, count(*) AS n FROM q GROUP BY 1", (3, 4)),
        ("ts", "SELECT ts, x FROM q", (3, 4)),
        ("day", "SELECT CAST(ts AS DATE) AS day FROM q JOIN dim ON q.x = dim.x", (3, 4)),
        # The rank of a row may depend on any other row.
        ("ts", "SELECT ts, rank() OVER (ORDER BY x) AS n FROM q", None),
        ("since", "SELECT since, q.x FROM q JOIN dim ON q.x = dim.x", None),
    ],
)
def test_a_window_of_an_input_reaches_the_partitions_that_depend_on_it(
    kept: str, column: str, query: str, reached: tuple[int, ...] | None
) -> None:
    project = compiled(
        {
            "m.sql": "CREATE TABLE t (ts TIMESTAMP, x STRING) USING parquet LOCATION 't';\n"
            "CREATE TABLE dim (x STRING, since TIMESTAMP) USING parquet LOCATION 'd';\n"
            f"--@ persist refresh=incremental watermark=ts {kept}\n"
            "CREATE VIEW q AS SELECT ts, x FROM t;\n"
            f'--@ persist partition=daily time_column={column} start="2024-01-01" end="2024-01-08"\n'
            f"CREATE VIEW d AS {query};"
        }
    )
    assert not project.errors
    q, d = (project.by_id[f"{name}@sources/m.sql"] for name in "qd")
    assert d.annotation.partition is not None
    order = {d.source_id: keys(d.annotation.partition, NOW)}
    low = datetime(2024, 1, 3, 12, tzinfo=UTC)
    found = reached_within(project, d, q, [(low, low + DAY)], order, "UTC")
    wanted = {f"2024-01-0{n}" for n in reached} if reached else {*order[d.source_id]}
    assert {*found} == wanted
