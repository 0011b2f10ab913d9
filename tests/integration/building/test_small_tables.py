"""Small tables are updated incrementally only if two full builds took long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.building.builder import Builder
from persist_assets.building.explain import stages_of
from persist_assets.ledger.tables import builds

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.plans import Step

SQL = """
CREATE TABLE t (usr INT, x INT) USING delta LOCATION 't';
CREATE TABLE u (usr INT, x INT) USING delta LOCATION 'u';
--@ persist
CREATE VIEW total AS SELECT t.usr, sum(t.x) AS n FROM t JOIN u ON t.usr = u.usr GROUP BY t.usr;
"""
SMALL = "its inputs are small, and computing all rows took 6.0 s the first time"


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


def grow(root: Path, *tables: str) -> None:
    for table in tables:
        rows = pa.table({"usr": pa.array([1, 2], pa.int32()), "x": pa.array([3, 4], pa.int32())})
        write_deltalake(root / table, rows, mode="append")


def planned(builder: Builder) -> Step:
    (source,) = builder.project.persisted
    (step,) = builder.plan([source.source_id]).steps
    return step


def build(builder: Builder, seconds: float) -> str | None:
    """Build the source, record a duration for all builds, and return the method."""
    (source,) = builder.project.persisted
    method = builder.build(source).maintenance
    with builder.ledger.events.database.write() as connection:
        connection.execute(builds.update().values(computed_seconds=seconds))
    return method


@pytest.mark.proves("V38")
@pytest.mark.parametrize(("seconds", "method"), [(4.0, "whole"), (20.0, "keys")])
def test_the_second_full_build_of_a_small_table_decides_its_method(
    seconds: float, method: str, make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SQL})
    grow(root, "t", "u")
    assert build(enter(root), 6.0) == "whole"
    grow(root, "t")
    builder = enter(root)
    assert planned(builder).why == SMALL
    (source,) = builder.project.persisted
    stage = stages_of(builder.observer, source)[0]
    assert stage.description == f"build: the data of t changed; {SMALL}"
    assert build(builder, seconds) == "whole"
    grow(root, "t")
    assert planned(enter(root)).maintenance == method
