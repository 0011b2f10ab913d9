"""One Spark session shared by concurrent runs of several projects and environments."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE t (a BIGINT) USING delta LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a FROM t;
--@ persist
CREATE VIEW q AS SELECT a + 1 AS a FROM p;
--@ persist
CREATE VIEW r AS SELECT a + 2 AS a FROM p;
--@ persist
CREATE VIEW s AS SELECT a + 3 AS a FROM t;
--@ persist materialized=view
CREATE VIEW v AS SELECT q.a, t.a AS b FROM q JOIN t ON q.a = t.a + 1;
"""


@pytest.fixture
def enter(enter: Callable[..., Builder]) -> Callable[..., Builder]:
    return lambda root, environment="dev": enter(root, environment, run_id=None)


def build(builder: Builder, *names: str) -> None:
    for name in names:
        builder.build(builder.project.by_id[f"{name}@sources/m.sql"])


def rows(builder: Builder, name: str) -> list[Any]:
    frame = builder.read(builder.project.by_id[f"{name}@sources/m.sql"])
    return sorted(row[0] for row in frame.collect())


def write_two_of_one_version(first: Path, second: Path) -> None:
    """Write two Delta tables with the same ID and version but different rows."""
    number = pa.table({"a": pa.array([1], pa.int64())})
    write_deltalake(first, number)
    shutil.copytree(first, second)
    write_deltalake(first, number, mode="overwrite")
    write_deltalake(second, pa.table({"a": pa.array([100], pa.int64())}), mode="overwrite")


@pytest.mark.slow
def test_projects_with_identical_sources_do_not_read_each_others_tables(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    one, two = (make_project({"m.sql": SOURCES}, name=n) for n in ("one", "two"))
    write_two_of_one_version(one / "raw/t", two / "raw/t")
    first, second = enter(one), enter(two)
    assert [s.build_id for s in first.project.sources] == [
        s.build_id for s in second.project.sources
    ]
    for builder in (first, second):
        build(builder, "p", "q", "v")
    build(first, "r", "s")
    assert (rows(first, "r"), rows(first, "s"), rows(first, "v")) == ([3], [4], [2])
    build(second, "r", "s")
    assert (rows(second, "r"), rows(second, "s"), rows(second, "v")) == ([102], [103], [101])
    assert rows(first, "v") == [2]


def test_environments_do_not_read_each_others_data(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SOURCES}, '[env.dev]\n[env.prod.raw]\nt = "raw/prod"\n')
    write_two_of_one_version(root / "raw/t", root / "raw/prod")
    dev, prod = enter(root), enter(root, "prod")
    build(dev, "p")
    build(prod, "p")
    build(dev, "s")
    assert rows(dev, "s") == [4]
