"""Plans of sources whose inputs will be reused from another environment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.duckdb_engine import MakeEngine, engine_of

from persist_assets.ledger.tables import builds

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.building.builder import Builder

SQL = """
CREATE TABLE t (day DATE, x INT) USING delta LOCATION 't';
--@ persist
CREATE VIEW total AS SELECT day, sum(x) AS n FROM t GROUP BY day;
--@ persist
CREATE VIEW above AS SELECT max(n) AS most FROM total;
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


def put(root: Path, *days: int) -> None:
    columns = {
        "day": pa.array([date(2024, 1, day) for day in days], pa.date32()),
        "x": pa.array([*days], pa.int32()),
    }
    write_deltalake(root / "t", pa.table(columns), mode="append")


def test_a_reader_of_a_table_reused_from_another_environment_is_built(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": SQL}, "[env.dev]\n[env.prod]\n")
    put(root, 1, 2)
    prod = enter(root, environment="prod")
    for source in prod.project.persisted:
        prod.build(source)
    put(root, 2)
    dev = enter(root, environment="dev")
    dev.build(dev.project.persisted[0])
    with prod.ledger.events.database.write() as connection:  # so incremental builds pay off
        connection.execute(builds.update().values(computed_seconds=1000.0))
    prod = enter(root, environment="prod")
    total, above = prod.plan([s.source_id for s in prod.project.persisted]).steps
    assert (total.action, above.action) == ("reuse", "build")
    for source in prod.project.persisted:
        prod.build(source)
    assert [tuple(row) for row in prod.read(prod.project.persisted[1]).collect()] == [(4,)]
