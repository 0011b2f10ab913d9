"""Wants and sensors for tables that another environment has built, and readers do not get yet."""

from __future__ import annotations

from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from duckdb_engine import DuckDBEngine

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.core.wants import Want
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.watch import due
from persist_assets.plugin.sensors import run_requests
from persist_assets.wants.requests import check_want, evaluate_now, run_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SQL = """
CREATE TABLE raw (id INT) USING parquet LOCATION 'raw';
--@ persist {}
CREATE VIEW t AS SELECT id FROM raw;
"""


@pytest.mark.proves("T28")
@pytest.mark.parametrize(
    ("annotation", "partition", "make_engine"),
    [("", "", DuckDBEngine), ("partition { id=[1, 2, 3] }", "/2", None)],
)
def test_a_table_that_another_environment_built_is_due_until_readers_get_it(
    make_project: Callable[..., Path],
    request: pytest.FixtureRequest,
    annotation: str,
    partition: str,
    make_engine: Any,
) -> None:
    if make_engine is None:
        spark = request.getfixturevalue("spark")
        make_engine = partial(SparkEngine, session=lambda: spark)
    root = make_project({"m.sql": SQL.format(annotation)}, "[env.staging]\n")

    def put(*ids: int) -> None:
        (root / "raw").mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int32())}), root / "raw" / "a.parquet")

    def entered(environment: str, use: Callable[[Builder, Any], Any]) -> Any:
        settings = load_settings(root, environment=environment)
        project, ledger = load_project(settings), Ledger(settings.ledger)
        builder = Builder(settings, project, ledger, make_engine(settings))
        try:
            return use(builder, project.persisted[0])
        finally:
            builder.close()
            ledger.close()

    def build(builder: Builder, source: Any) -> None:
        with builder.work(source) as work:
            builder.publish(work)

    def wanted_as(want_id: str) -> Callable[[Builder, Any], tuple[str, int, int]]:
        """Return a function that returns the state of a new want, and how many runs are due.

        Those of the sensor come first, then those of `persist follow`.
        """

        def use(builder: Builder, source: Any) -> tuple[str, int, int]:
            now, observer = datetime.now(UTC), builder.observer
            want = Want(
                want_id, source.key + partition, "dev", now, sla_s=3600, source={"type": "api"}
            )
            builder.ledger.wants.create([check_want(observer, want)[0]])
            evaluate_now(observer, "want")
            planned = observer.plan([source.source_id])
            runs = run_requests(builder.project, planned, observer.keys(), observer.manifest())
            state = builder.ledger.wants.find(want_id)
            assert state is not None
            sources = due(builder.project, planned, observer.manifest()).sources
            return state.state, len([*runs]), len(sources)

        return use

    put(1, 2)
    entered("dev", build)
    put(1, 2, 3)
    entered("staging", build)
    assert entered("dev", wanted_as("w1")) == ("requested", 1, 1)
    entered("dev", build)
    assert entered("dev", wanted_as("w2")) == ("satisfied", 0, 0)


DAILY = """
CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-05"
CREATE VIEW t AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""


@pytest.mark.slow
@pytest.mark.proves("T28")
def test_partitions_that_only_another_environment_has_are_built_and_announced(
    make_project: Callable[..., Path], enter: Callable[..., Builder]
) -> None:
    root = make_project({"m.sql": DAILY}, "[env.prod]\n[env.dev]\n")

    def put(*days: int) -> None:
        rows = {"day": [date(2024, 1, d) for d in days], "n": pa.array([1] * len(days), pa.int32())}
        write_deltalake(str(root / "f"), pa.table(rows), mode="append")

    def key(day: int) -> str:
        return f"2024-01-{day:02}"

    for day in range(1, 5):
        put(day)
    prod, dev = enter(root, "prod"), enter(root, "dev")
    prod.build(prod.project.persisted[0], keys=[key(1)])
    dev.build(dev.project.persisted[0])
    put(4)
    later = enter(root, "prod")
    observer, ledger = later.observer, later.ledger
    for day in (2, 4):
        want = Want(f"w{day}", f"m/t/{key(day)}", "prod", datetime.now(UTC), source={"type": "api"})
        ledger.wants.create([check_want(observer, want)[0]])
    evaluation, request = evaluate_now(observer, "want")
    assert evaluation.satisfied == ()
    assert request is not None
    assert {*request.partitions} == {f"m/t/{key(day)}" for day in (2, 4)}
    assert run_request(later.anew(request), request)
    assert {w.state for w in ledger.wants.fetch("prod")} == {"satisfied"}
    available = {f"m/t/{key(day)}" for day in range(1, 5)}
    assert ledger.partitions.fetch_available("prod").keys() == available
    readers = enter(root, "prod")
    rows = sorted(tuple(r) for r in readers.read(readers.project.persisted[0]).collect())
    assert rows == [(date(2024, 1, d), 1 + (d == 4)) for d in range(1, 5)]
