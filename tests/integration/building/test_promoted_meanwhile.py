"""Promotions and rollbacks during a build: it does not undo them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from duckdb_engine import DuckDBEngine

from persist_assets.core.errors import ConflictError
from persist_assets.operations.environments import promote, roll_back

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

    Enter = Callable[..., Builder]

SQL = """
CREATE TABLE t (a BIGINT) USING delta LOCATION 't';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW twin AS SELECT a + 1 AS a FROM t;
"""


@pytest.fixture
def make_engine() -> Any:
    return DuckDBEngine


@pytest.fixture
def root(make_project: Callable[..., Path], enter: Enter) -> Path:
    """A project with a row; `prod` has built it."""
    root = make_project({"m.sql": SQL}, "[env.prod]\n[env.dev]\n")
    put(root, 1)
    prod = enter(root, "prod")
    prod.build(named(prod, "p"))
    return root


def put(root: Path, *values: int) -> None:
    table = pa.table({"a": pa.array(values, pa.int64())})
    write_deltalake(root / "t", table, mode="append")


def named(builder: Builder, name: str) -> Any:
    return builder.project.by_id[f"{name}@sources/m.sql"]


def rows(builder: Builder) -> list[int]:
    return sorted(row[0] for row in builder.read(named(builder, "p")).collect())


@pytest.mark.proves("T33")
def test_a_build_does_not_undo_a_promotion(root: Path, enter: Enter) -> None:
    put(root, 10)
    run = enter(root, "prod")
    run.observer.pins.pin(run.project.by_id["t@sources/m.sql"])
    put(root, 100)
    dev = enter(root, "dev")
    dev.build(named(dev, "p"))
    refused = pytest.raises(ConflictError, match="changed the table of `p` in prod")
    with refused, run.work(named(run, "p")) as work:
        promote(dev, "prod", [named(dev, "p").source_id])
        run.publish(work)
    prod = enter(root, "prod")
    assert rows(prod) == [2, 11, 101]
    assert prod.build(named(prod, "p")).action == "reused"


@pytest.mark.proves("T33")
def test_a_build_does_not_undo_a_rollback(root: Path, enter: Enter) -> None:
    put(root, 10)
    other, run = enter(root, "prod", run_id="other"), enter(root, "prod")
    other.build(named(other, "p"))
    refused = pytest.raises(ConflictError, match="rollback")
    with refused, run.work(named(run, "p"), force=True) as work:
        roll_back(run.settings, run.ledger)
        run.publish(work)
    assert rows(enter(root, "prod")) == [2]


@pytest.mark.proves("T33")
def test_a_parked_build_is_repeated_after_a_promotion(root: Path, enter: Enter) -> None:
    put(root, 10)
    run = enter(root, "prod")
    parked = run.park(named(run, "p"))
    dev = enter(root, "dev")
    dev.build(named(dev, "p"))
    promote(dev, "prod", [named(dev, "p").source_id], allow_stale=True)
    with run.resume(parked) as work:
        assert work is not parked
        run.publish(work)
    assert rows(enter(root, "prod")) == [2, 11]


@pytest.mark.proves("T33")
def test_sources_of_one_run_with_the_same_rows_are_no_conflict(root: Path, enter: Enter) -> None:
    put(root, 10)
    run = enter(root, "prod")
    parked = [run.park(named(run, name)) for name in ("p", "twin")]
    for one in reversed(parked):
        with run.resume(one) as work:
            assert work is one
            run.publish(work)
    assert rows(enter(root, "prod")) == [2, 11]
