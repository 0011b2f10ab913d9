"""After an upgrade, tables of every kind are maintained as without it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from conftest import need_node
from deltalake import write_deltalake

from persist_assets.building.builder import Builder
from persist_assets.core import digests

if TYPE_CHECKING:
    from pathlib import Path

Make = Callable[..., Builder]
NOW = datetime(2024, 1, 15, 5, tzinfo=UTC)
FILES = {
    "m.sql": """
CREATE TABLE t (day DATE, k INT, x INT) USING delta LOCATION 't';
DECLARE VARIABLE least INT DEFAULT 0;
CREATE FUNCTION twice(a INT) RETURNS INT RETURN a * 2;
CREATE VIEW plain AS SELECT day, k, twice(x) AS x FROM t WHERE x > least;
--@ persist refresh=incremental watermark=day
CREATE VIEW added AS SELECT day, k, x + 1 AS y FROM plain;
--@ persist refresh=incremental watermark=day
CREATE VIEW windows AS SELECT day, sum(x) AS s FROM plain GROUP BY day;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-15"
CREATE VIEW daily AS SELECT day, count(*) AS n FROM t GROUP BY day;
--@ persist
CREATE VIEW by_key AS SELECT k, sum(y) AS s, count(*) AS n FROM added GROUP BY k;
--@ persist
CREATE VIEW top AS SELECT max(s) AS s FROM by_key;
--@ persist refresh=incremental watermark=day merge_key=k
CREATE VIEW latest AS SELECT k, day, x FROM plain;
--@ persist refresh=snapshot key=k
CREATE VIEW history AS SELECT k, max(x) AS x FROM plain GROUP BY k;
--@ persist
CREATE VIEW changes AS SELECT count(*) AS n FROM history;
--@ persist materialized=view
CREATE VIEW stored AS SELECT k, n FROM by_key WHERE n > 1;
--@ persist
CREATE VIEW random AS SELECT k, rand() AS r FROM by_key;
--@ persist
CREATE VIEW drawn AS SELECT max(r) AS r FROM random;
""",
    "p.py": """
from persist_assets import table

from sources import rates

@table(inputs={"frame": "by_key"})
def scaled(frame):
    '''Scale.'''
    return frame.selectExpr("k", f"s * {rates.RATE} AS s")
""",
    "rates.py": "RATE = 3\n",
    "q.malloy": """
##! experimental.persistence
source: keys is spark.table('by_key')

#@ persist
source: few is keys -> { select: *; where: n > 1 }
""",
}


@pytest.fixture
def make(enter: Make) -> Make:
    seconds = count()
    return lambda root, **how: enter(
        root, clock=lambda: NOW + timedelta(seconds=next(seconds)), **how
    )


def put(root: Path, *rows: tuple[int, int, int]) -> None:
    columns = {
        "day": pa.array([date(2024, 1, day) for day, _, _ in rows], pa.date32()),
        "k": pa.array([k for _, k, _ in rows], pa.int32()),
        "x": pa.array([x for _, _, x in rows], pa.int32()),
    }
    write_deltalake(root / "t", pa.table(columns), mode="append")


def build(builder: Builder) -> dict[str, tuple[str, str | None, int | None]]:
    """Build everything; return by source: action, method, and number of partitions."""
    done: dict[str, tuple[str, str | None, int | None]] = {}
    for source in builder.project.persisted:
        with builder.work(source) as work:
            builder.publish(work)
        keys = work.step.keys
        done[source.name] = work.build.action, work.build.maintenance, keys and len(keys)
    builder.close()
    return done


def read(builder: Builder) -> dict[str, list[tuple[Any, ...]]]:
    drawn = ("random", "drawn", "history")
    return {
        s.name: sorted(tuple(row) for row in builder.read(s).collect())
        for s in builder.project.persisted
        if s.name not in drawn
    }


@pytest.mark.slow
@pytest.mark.proves("X1", "X2")
def test_tables_of_all_kinds_are_maintained_after_an_upgrade_as_without_it(
    make_project: Callable[..., Path], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_node()
    roots = [make_project(FILES, name=name) for name in ("upgraded", "control")]
    for root in roots:
        put(root, (1, 1, 5), (1, 2, 7), (2, 1, 6))
        build(make(root))
    upgraded, control = roots
    version = digests.VERSION

    def upgrade(to: str) -> None:
        monkeypatch.setattr(digests, "VERSION", to)

    upgrade("another")
    done = build(make(upgraded))
    assert {action for action, _, _ in done.values()} == {"reused"}
    upgrade(version)
    steps: list[tuple[tuple[int, int, int], ...]] = [((3, 1, 9),), ((3, 3, 1), (2, 2, 2))]
    for number, rows in enumerate(steps):
        for root in roots:
            put(root, *rows)
        upgrade(version)
        expected = build(make(control))
        upgrade(f"another {number}")  # the second time with stale tables
        assert build(make(upgraded)) == expected
        tables = read(make(upgraded))
        upgrade(version)
        assert tables == read(make(control))
    upgrade("the last")
    file = upgraded / "sources" / "rates.py"
    file.write_text("RATE = 4  # a comment alone would be no change\n")
    malloy = upgraded / "sources" / "q.malloy"
    malloy.write_text(malloy.read_text().replace("n > 1", "n > 2"))
    done = build(make(upgraded))
    assert {name for name, (action, _, _) in done.items() if action == "built"} == {"scaled", "few"}
