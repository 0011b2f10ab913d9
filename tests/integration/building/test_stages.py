"""The stages of a build, described without an engine: planning starts no Spark."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.building.explain import stages_of
from persist_assets.building.observe import Observer
from persist_assets.building.strategies.choose import strategy_of
from persist_assets.compiler.load import load_project, require
from persist_assets.core.model.plans import Increment
from persist_assets.core.model.snapshots import Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOURCES = """
CREATE TABLE r (id BIGINT, day DATE) USING parquet LOCATION 'raw/r';
--@ persist check { not_null=[id] }
CREATE VIEW whole AS SELECT id FROM r;
--@ persist materialized=view
CREATE VIEW stored AS SELECT id + 1 AS next FROM r;
--@ persist refresh=snapshot key=id
CREATE VIEW history AS SELECT id, day FROM r;
--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-04"
CREATE VIEW daily AS SELECT day, count(*) AS n FROM r GROUP BY day;
--@ persist refresh=incremental watermark=day
CREATE VIEW growing AS SELECT id, day FROM r;
"""


@pytest.fixture
def observer(make_project: Callable[..., Path]) -> Iterator[Observer]:
    root = make_project({"m.sql": SOURCES})
    (root / "raw/r").mkdir(parents=True)
    columns = {"id": pa.array([1]), "day": pa.array([0], pa.int32()).cast(pa.date32())}
    pq.write_table(pa.table(columns), root / "raw/r/p.parquet")
    settings = load_settings(root)
    ledger = Ledger(settings.ledger)
    yield Observer(settings, require(load_project(settings)), ledger)
    ledger.close()


@pytest.mark.proves("H6")
@pytest.mark.parametrize(
    ("name", "strategy", "scope"),
    [
        ("whole", "whole", "all rows"),
        ("stored", "view", "all rows"),
        ("history", "history", "all rows"),
        ("daily", "partitions", "3 partitions: 2024-01-01, 2024-01-02, 2024-01-03"),
        ("growing", "whole", "all rows"),
    ],
)
def test_the_stages_of_a_build_are_described_in_advance(
    name: str, strategy: str, scope: str, observer: Observer
) -> None:
    (source,) = (s for s in observer.project.persisted if s.name == name)
    stages = {s.name: s for s in stages_of(observer, source)}
    assert list(stages) == ["plan", "compute", "check", "commit", "publish"]
    assert (stages["compute"].strategy, stages["compute"].description) == (strategy, scope)
    assert stages["plan"].description.startswith("build: ")
    assert stages["check"].description == ("not_null_id" if name == "whole" else "none")


@pytest.mark.proves("H6")
def test_a_partition_whose_window_has_not_ended_has_no_stages_yet(observer: Observer) -> None:
    (source,) = (s for s in observer.project.persisted if s.name == "daily")
    (stage,) = stages_of(observer, source, "2024-01-04")
    assert stage.description == "nothing: the window of the partition has not ended"
    one = {s.name: s for s in stages_of(observer, source, "2024-01-02")}
    assert one["compute"].description == "1 partition: 2024-01-02"


@pytest.mark.proves("H6")
def test_an_increment_uses_the_window_or_the_append_strategy(observer: Observer) -> None:
    (source,) = (s for s in observer.project.persisted if s.name == "growing")
    (step,) = observer.plan([source.source_id]).steps
    base = Snapshot("u", source.source_id, source.build_id, "t", 1, (), "", 0, 0, observer.clock())
    window = replace(step, increment=Increment(base))
    added = replace(step, increment=Increment(base, {"r": ("a.parquet",)}))
    assert strategy_of(observer.project, source, window).name == "window"
    assert strategy_of(observer.project, source, added).name == "append"


@pytest.mark.proves("H6")
def test_observing_and_planning_import_no_spark(observer: Observer) -> None:
    script = """
import sys
from pathlib import Path
from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
settings = load_settings(Path(sys.argv[1]))
observer = Observer(settings, require(load_project(settings)), Ledger(settings.ledger))
steps = observer.plan([s.source_id for s in observer.project.persisted]).steps
assert [s.action for s in steps] == ["build"] * 5
assert not {"pyspark", "dagster", "pydantic"} & sys.modules.keys()
"""
    root = str(observer.settings.root)
    subprocess.run([sys.executable, "-c", script, root], check=True)
