"""Wants that wait for data that another graph writes, announces, and nobody has built from yet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb_engine import DuckDBEngine

from persist_assets.building.builder import Builder
from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.ledger.ledger import Ledger
from persist_assets.wants.requests import check_want, evaluate_now

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SQL = """
CREATE TABLE raw (id INT) USING parquet LOCATION 'raw';
--@ persist
CREATE VIEW t AS SELECT id FROM raw;
"""
SETTINGS = '[upstream.users]\nurl = "http://127.0.0.1:1"\n'
NEEDED = "data/users/2024-01-02"


@pytest.mark.proves("W32")
def test_data_announced_after_the_plan_does_not_satisfy_a_want(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"m.sql": SQL}, SETTINGS)
    settings = load_settings(root)
    project, ledger = load_project(settings), Ledger(settings.ledger)
    environment = settings.environment

    def put(*ids: int) -> None:
        (root / "raw").mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int32())}), root / "raw" / "a.parquet")

    class Overtaken(Observer):
        """An observer whose plan is outdated when it is made: the other team was faster."""

        def plan(self, *args: Any, **options: Any) -> Any:
            planned = super().plan(*args, **options)
            put(1, 2)
            news = [{"partition_ref": NEEDED, "state": "available"}]
            ledger.upstreams.record_synced(environment, "users", '{"idx": 1}', news, expected=None)
            return planned

    put(1)
    builder = Builder(settings, project, ledger, DuckDBEngine(settings))
    with builder.work(project.persisted[0]) as work:
        builder.publish(work)
    builder.close()
    want = Want(
        "w",
        "m/t",
        environment,
        datetime.now(UTC),
        external_dependencies=(f"users:{NEEDED}",),
        source={"type": "api"},
    )
    observer = Observer(settings, project, ledger)
    ledger.wants.create([check_want(observer, want)[0]])
    _, request = evaluate_now(Overtaken(settings, project, ledger), "want")
    after = ledger.wants.find("w")
    assert after is not None
    assert (after.state, request) == ("waiting", None)
    _, request = evaluate_now(Observer(settings, project, ledger), "clock")
    assert request is not None
    assert request.want_ids == ("w",)
    ledger.close()
