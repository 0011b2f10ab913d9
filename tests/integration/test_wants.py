"""Wants on Spark: what is asked for is built together and becomes visible together, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from persist_assets.builder import Builder
from persist_assets.engine import Engine
from persist_assets.ledger.store import Ledger
from persist_assets.project import load_project, require
from persist_assets.requests import evaluate_now, run_request
from persist_assets.settings import load_settings
from persist_assets.wants import Evaluation, Request, Want

NOW = datetime(2024, 1, 5, 6, tzinfo=UTC)
RAW = "CREATE TABLE f (day DATE, n INT) USING delta LOCATION 'f';\n"
DAILY = """
--@ persist partition=daily time_column=day start="2024-01-01"
CREATE VIEW daily AS SELECT day, sum(n) AS n FROM f GROUP BY day;
"""
THREE = """
--@ persist
CREATE VIEW a AS SELECT sum(n) AS n FROM f;
--@ persist
CREATE VIEW b AS SELECT max(n) AS n FROM f;
--@ persist
CREATE VIEW c AS SELECT max(1 / (n - {bad})) AS n FROM f;
"""


class Graph:
    """A project, its ledger, and a clock that stands until it is put on."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark, self.now = root, spark, NOW
        self.settings = load_settings(root)
        self.ledger = Ledger(self.settings.ledger, clock=lambda: self.now)

    def builder(self, request: Request | None = None) -> Builder:
        project = require(load_project(self.settings))
        engine = Engine(self.settings, lambda: self.spark)
        return Builder(
            self.settings, project, self.ledger, engine, request=request, clock=lambda: self.now
        )

    def want(self, ref: str, **how: Any) -> str:
        want_id = how.pop("want_id", ref)
        want = Want(want_id, ref, "dev", self.now, source={"type": "cli"}, **how)
        return self.ledger.create_wants([want])[0].want_id

    def evaluate(self, trigger: str = "want") -> tuple[Evaluation, Request | None]:
        return evaluate_now(self.builder(), trigger)

    def step(self) -> bool | None:
        """Evaluate, and build what is asked for; None: nothing is."""
        _, request = self.evaluate("clock")
        return None if request is None else run_request(self.builder(request), request)

    def states(self) -> dict[str, str]:
        asked = self.ledger.fetch_wants("dev")
        return {w.want_id: w.state for w in asked if "build_uid" not in w.source}

    def there(self) -> set[str]:
        return {s.source_id.partition("@")[0] for s in self.ledger.fetch_manifest("dev").values()}


@pytest.fixture
def make_graph(make_project: Callable[..., Path], spark: Any) -> Iterator[Callable[[str], Graph]]:
    made: list[Graph] = []

    def make(text: str) -> Graph:
        root = make_project({"m.sql": RAW + text})
        days = [datetime(2024, 1, n).date() for n in range(1, 5)]
        table = pa.table({"day": days, "n": pa.array([1, 2, 3, 4], pa.int32())})
        write_deltalake(str(root / "f"), table)
        made.append(Graph(root, spark))
        return made[-1]

    yield make
    for graph in made:
        graph.ledger.close()


def test_a_wanted_partition_is_built_and_no_other(make_graph: Callable[[str], Graph]) -> None:
    graph = make_graph(DAILY)
    graph.want("m/daily/2024-01-03")
    assert graph.step() is True
    assert graph.states() == {"m/daily/2024-01-03": "satisfied"}
    (snapshot,) = graph.ledger.fetch_manifest("dev").values()
    assert snapshot.partitions is not None
    assert snapshot.partitions.built == (("2024-01-03", "2024-01-03"),)
    assert graph.step() is None


def test_one_of_three_that_fails_keeps_all_back_and_then_itself_alone(
    make_graph: Callable[[str], Graph],
) -> None:
    graph = make_graph(THREE.format(bad=2))
    for name in "abc":
        graph.want(f"m/{name}")
    assert graph.step() is False
    assert graph.there() == set()
    assert graph.states() == {"m/a": "waiting", "m/b": "waiting", "m/c": "failing"}
    assert graph.step() is True
    assert graph.there() == {"a", "b"}
    assert graph.step() is None
    graph.now += timedelta(minutes=2)
    assert graph.step() is False
    assert graph.states() == {"m/a": "satisfied", "m/b": "satisfied", "m/c": "failing"}


def test_the_tables_of_wants_follow_from_the_events(make_graph: Callable[[str], Graph]) -> None:
    import sqlalchemy as sa

    from persist_assets.ledger.projections import PROJECTIONS

    graph = make_graph(THREE.format(bad=2))
    graph.want("m/a", sla_s=60, ttl_s=3600, comment="soon")
    graph.want("m/c", external_dependencies=("users:data/users",))
    graph.evaluate()
    graph.now += timedelta(hours=2)
    graph.step()

    def dump() -> list[list[Any]]:
        with graph.ledger._read() as connection:
            return [
                [*map(tuple, connection.execute(sa.select(t).order_by(*t.primary_key)))]
                for t in PROJECTIONS
            ]

    before = dump()
    graph.ledger.rebuild_projections()
    assert dump() == before
