"""Sources in pipe syntax are built and maintained like nested queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from persist_assets.building.builder import Builder

pytestmark = [pytest.mark.proves("V4"), pytest.mark.slow]
SOURCES = """
CREATE TABLE t (k INT, b STRING, v INT) USING delta LOCATION 'raw/t';
CREATE VIEW large AS FROM t |> WHERE t.v > 10 |> SET v = v - 10 |> AS l;
--@ persist refresh=incremental
CREATE VIEW sums AS
FROM large
|> JOIN t ON large.k = t.k AND t.v = large.v + 10
|> SELECT large.k, large.v
|> AGGREGATE sum(v) AS s, count(*) AS n GROUP BY k;
--@ persist
CREATE VIEW top AS
FROM sums |> ORDER BY s DESC, k |> LIMIT 1 |> UNION ALL TABLE sums |> DROP n;
"""


def add(root: Path, *rows: tuple[int, int]) -> None:
    columns = {
        "k": pa.array([k for k, _ in rows], pa.int32()),
        "b": ["x"] * len(rows),
        "v": pa.array([v for _, v in rows], pa.int32()),
    }
    write_deltalake(root / "raw" / "t", pa.table(columns), mode="append")


def build(builder: Builder) -> list[str | None]:
    methods: list[str | None] = []
    for source in builder.project.persisted:
        with builder.work(source) as work:
            builder.publish(work)
        methods.append(work.maintenance)
    return methods


def rows(builder: Builder, name: str) -> list[tuple[object, ...]]:
    source = next(s for s in builder.project.sources if s.name == name)
    return sorted(map(tuple, builder.read(source).collect()))


def test_sources_in_pipe_syntax_are_built_and_maintained(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES})
    add(root, *((k, 5 * k) for k in range(1, 6)))
    first = enter(root)
    build(first)
    assert rows(first, "sums") == [(3, 5, 1), (4, 10, 1), (5, 15, 1)]
    assert rows(first, "top") == [(3, 5), (4, 10), (5, 15), (5, 15)]
    add(root, (3, 60))
    second = enter(root)
    methods = build(second)
    assert methods[0] not in ("whole", None)
    assert rows(second, "sums") == [(3, 55, 2), (4, 10, 1), (5, 15, 1)]
    assert rows(second, "top") == [(3, 55), (3, 55), (4, 10), (5, 15)]
