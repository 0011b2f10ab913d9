"""The demo on real flights: its tables are right, and Dagster's own commands build them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from conftest import ROOT

from persist_assets.builder import Builder
from persist_assets.engine import Engine
from persist_assets.ledger.store import Ledger
from persist_assets.plugin.runs import project_job, write_home
from persist_assets.project import load_project, require
from persist_assets.settings import load_settings


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo with its data prepared and nothing built."""
    root = tmp_path_factory.mktemp("flights")
    for name in ("persist.toml", "definitions.py", "workspace.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "examples", root / "examples")
    prepare = [sys.executable, "examples/flights/prepare.py", ".persist/demo"]
    subprocess.run(prepare, cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def builder(flights: Path, spark: Any) -> Iterator[Builder]:
    settings = load_settings(flights)
    ledger = Ledger(settings.ledger)
    project = require(load_project(settings))
    yield Builder(settings, project, ledger, Engine(settings, lambda: spark), run_id="demo")
    ledger.close()


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


def test_every_table_equals_the_query_run_directly_on_the_raw_data(builder: Builder) -> None:
    names = [s.name for s in builder.project.sources if s.query]
    assert len(names) >= 8
    assert any(not s.persisted for s in builder.project.sources if s.query)
    for source in builder.project.persisted:
        builder.build(source)
    manifest = builder.ledger.fetch_manifest("dev")
    assert len(manifest) == len(builder.project.persisted)
    for source in builder.project.sources:
        if source.query is None:
            continue
        statement, read = builder.statement(source.query, source.bindings, {})
        assert not read, "the comparison must not read any of our tables"
        direct = builder.load(statement, read, source.columns)
        ours = builder.read(source)
        assert [c.lower() for c in direct.columns] == [c.lower() for c in ours.columns]
        if source.name in ("flights", "route_delays", "cancelled", "weather"):
            # Large, and without floating point sums: compared inside Spark.
            assert (
                direct.exceptAll(ours).limit(1).count()
                == ours.exceptAll(direct).limit(1).count()
                == 0
            )
            continue
        expected = sorted((tuple(r) for r in direct.collect()), key=lambda r: repr(r[:3]))
        found = sorted((tuple(r) for r in ours.collect()), key=lambda r: repr(r[:3]))
        assert len(expected) == len(found) > 0
        for one, other in zip(expected, found, strict=True):
            assert all(close(a, b) for a, b in zip(one, other, strict=True)), (
                source.name,
                one,
                other,
            )


def test_the_graph_is_three_levels_deep(builder: Builder) -> None:
    level: dict[str, int] = {}
    for source in builder.project.persisted:
        inputs = builder.project.inputs(source)
        level[source.name] = 1 + max((level.get(s.name, 0) for s in inputs), default=0)
    assert max(level.values()) >= 3


def test_types_that_were_certain_before_the_build_are_those_of_the_table(builder: Builder) -> None:
    manifest = builder.ledger.fetch_manifest("dev")
    for source in builder.project.persisted:
        built = {c.name: c.type for c in manifest[source.build_id].columns}
        for column in source.columns:
            assert column.name in built
            assert column.type in (None, built[column.name]), (source.name, column)


@pytest.mark.proves("M5")
def test_inputs_come_before_their_readers(builder: Builder) -> None:
    planned = builder.plan([s.source_id for s in builder.project.persisted])
    position = {step.source_id: i for i, step in enumerate(planned.steps)}
    for source in builder.project.persisted:
        for upstream in builder.project.inputs(source):
            if upstream.persisted:
                assert position[upstream.source_id] < position[source.source_id]


@pytest.mark.proves("K5")
@pytest.mark.parametrize(
    "command",
    [
        ["dagster", "asset", "materialize", "-f", "definitions.py", "--select"],
        ["dg", "launch", "--assets"],
    ],
    ids=["dagster asset materialize", "dg launch"],
)
def test_dagsters_own_commands_build_the_demo(
    command: list[str], flights: Path, builder: Builder
) -> None:
    home = write_home(flights / ".persist" / command[0])
    executable = str(Path(sys.executable).parent / command[0])
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PERSIST_ENV": command[0],
        "VIRTUAL_ENV": str(Path(sys.executable).parent.parent),
    }
    done = subprocess.run(
        [executable, *command[1:], '+key:"causes/fleet_by_age"'],
        cwd=flights,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs()
        assert run.status is dg.DagsterRunStatus.SUCCESS
    source_id = "fleet_by_age@examples/flights/sources/causes.sql"
    found = builder.ledger.find_snapshot(command[0], builder.project.by_id[source_id].build_id)
    assert found is not None
    assert found.rows == 12
    manifest = json.loads((flights / ".persist" / "manifests" / f"{command[0]}.json").read_text())
    assert len(manifest["entries"]) == 3


@pytest.mark.proves("K13")
def test_a_failed_run_is_taken_up_where_it_failed(flights: Path, tmp_path: Path) -> None:
    root = tmp_path / "again"
    shutil.copytree(flights, root, ignore=shutil.ignore_patterns("dagster*", "dg"))
    path = root / "examples" / "flights" / "sources" / "causes.sql"
    good = path.read_text()
    path.write_text(good.replace("floor(age_years / 5) * 5", "raise_error('broken')"))
    home = write_home(root / ".persist" / "home")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        job = dg.build_reconstructable_job(
            "persist_assets.plugin.runs",
            project_job.__name__,
            reconstructable_kwargs={"root": str(root), "sources": "examples/flights/sources"},
        )
        keys = [
            dg.AssetKey(["causes", n])
            for n in ("plane_utilisation", "delays_by_weather", "fleet_by_age")
        ]
        failed = dg.execute_job(job, instance, asset_selection=keys)
        ended = {
            e.step_key: e.event_type_value
            for e in failed.all_events
            if e.is_step_success or e.is_step_failure
        }
        assert ended == {
            "causes__plane_utilisation": "STEP_SUCCESS",
            "causes__delays_by_weather": "STEP_SUCCESS",
            "causes__fleet_by_age": "STEP_FAILURE",
        }
        path.write_text(good)
        again = dg.execute_job(
            job,
            instance,
            reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance),
        )
        assert {e.step_key for e in again.all_events if e.is_step_success} == {
            "causes__fleet_by_age"
        }
        assert again.success


def test_the_walk_through_of_the_readme_is_true(builder: Builder, flights: Path) -> None:
    for source in builder.project.persisted:
        builder.build(source)
    path = flights / "examples" / "flights" / "sources" / "daily.sql"
    before = path.read_text()
    path.write_text(before.replace("dep_delay > 60", "dep_delay   > 90 /* tidied */"))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "persist_assets.cli", "plan"],
            cwd=flights,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        path.write_text(before)
    blocks = (ROOT / "README.md").read_text().split("$ persist plan\n")[2]
    assert done.stdout.strip() == blocks.split("```")[0].strip()
