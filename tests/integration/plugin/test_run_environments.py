"""Dagster runs with a tag for the environment in which they build."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from persist_assets.building.observe import Observer
from persist_assets.building.reader import Reader
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import ConflictError
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin.runs import open_instance, run_assets
from persist_assets.plugin.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.settings.values import Settings

SOURCES = """
CREATE TABLE t (a BIGINT, at TIMESTAMP) USING parquet LOCATION 'raw/t';
--@ persist check { expr { small="a < 10" } }
CREATE VIEW p AS SELECT a, at FROM t;
--@ persist
CREATE VIEW q AS SELECT sum(a) AS s, max(date_format(at, 'HH')) AS h FROM p;
"""
SETTINGS = """
[env.prod]
[env.prod.spark]
"spark.sql.session.timeZone" = "Asia/Tokyo"
[env.dev.raw]
t = "sample/t"
[env.same.raw]
t = "sample/t"
"""
P, Q, T = (dg.AssetKey(["m", n]) for n in ("p", "q", "t"))
TAG = "persist/environment"


def write(root: Path, values: list[int], place: str) -> None:
    path = root / place / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    noon = pa.array([43_200_000_000] * len(values), pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"a": pa.array(values, pa.int64()), "at": noon}), path)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES}, SETTINGS)
    write(made, [1, 2], "raw/t")
    write(made, [5], "sample/t")
    return made


def run(
    definitions: dg.Definitions, instance: Any, environment: str | None = None, **options: Any
) -> Any:
    job = definitions.resolve_implicit_global_asset_job_def()
    tags = {TAG: environment} if environment else {}
    return job.execute_in_process(instance=instance, raise_on_error=False, tags=tags, **options)


def metadata_of(result: Any) -> dict[str, dg.AssetMaterialization]:
    assert result.success, [str(e) for e in result.all_events if e.is_failure]
    events = result.get_asset_materialization_events()
    return {e.asset_key.path[-1]: e.materialization for e in events if e.asset_key}


def actions(result: Any) -> dict[str, str]:
    return {name: str(m.metadata["action"].value) for name, m in metadata_of(result).items()}


def standing(root: Path, environment: str) -> tuple[Settings, Project, Mapping[str, Snapshot]]:
    settings = load_settings(root, environment=environment)
    ledger = Ledger(settings.ledger)
    try:
        return settings, load_project(settings), ledger.manifests.fetch(environment)
    finally:
        ledger.close()


def rows(root: Path, environment: str, name: str) -> list[dict[str, Any]]:
    settings, project, manifest = standing(root, environment)
    snapshot = manifest[project.by_id[f"{name}@sources/m.sql"].build_id]
    at = Path(settings.table_root(snapshot.table), snapshot.build_uid)
    return [row for path in at.glob("*.parquet") for row in pq.read_table(path).to_pylist()]


def stale(definitions: dg.Definitions, instance: Any) -> dict[str, str]:
    """Return Dagster's status of the assets of a code location that are not fresh."""
    graph = definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {
        key.path[-1]: resolver.get_status(key).value
        for key in graph.executable_asset_keys
        if resolver.get_status(key) is not StaleStatus.FRESH
    }


@pytest.mark.slow
@pytest.mark.proves("K20")
def test_a_run_builds_in_the_environment_that_its_tag_names(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    definitions = load(root)
    assert actions(run(definitions, instance)) == {"p": "built", "q": "built"}
    in_prod = metadata_of(run(definitions, instance, "prod"))
    assert rows(root, "dev", "q") == [{"s": 5, "h": "12"}]
    assert rows(root, "prod", "q") == [{"s": 3, "h": "21"}]
    _, project, manifest = standing(root, "prod")
    for name in ("p", "q"):
        source = project.by_id[f"{name}@sources/m.sql"]
        metadata = in_prod[name].metadata
        assert metadata["environment"].value == "prod"
        assert metadata["build_id"].value == source.build_id
        assert metadata["dagster/table_name"].value == manifest[source.build_id].table
        assert (in_prod[name].tags or {})[TAG] == "prod"
        exported = json.loads((root / ".persist" / "manifests" / "prod.json").read_text())
        assert source.build_id in exported["entries"]
    assert actions(run(definitions, instance, "prod")) == {"p": "reused", "q": "reused"}
    assert actions(run(definitions, instance, "dev")) == {"p": "reused", "q": "reused"}


@pytest.mark.slow
def test_builds_in_another_environment_leave_assets_stale(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    definitions = load(root)
    # In `same`, BuildIDs are those of the location's own environment, `dev`.
    run(definitions, instance, "same")
    assert stale(definitions, instance) == {"p": "STALE", "q": "STALE"}
    run(definitions, instance)
    assert stale(definitions, instance) == {}
    run(definitions, instance, "dev")
    assert stale(definitions, instance) == {}
    run(definitions, instance, "prod", asset_selection=[P])
    assert "p" in stale(definitions, instance)
    run(definitions, instance)
    assert stale(definitions, instance) == {}


@pytest.mark.slow
@pytest.mark.proves("U7")
def test_a_command_in_another_environment_leaves_assets_stale(
    root: Path,
    load: Callable[..., dg.Definitions],
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))

    def build(environment: str) -> set[str]:
        """Build everything like `persist build --env …`, and return what was left out."""
        settings = load_settings(root, environment=environment)
        project, ledger = load_project(settings), Ledger(settings.ledger)
        reader = Reader(Observer(settings, project, ledger), SparkEngine(settings, lambda: spark))
        done = run_assets(settings, project.persisted, force=False, verbose=False, reader=reader)
        ledger.close()
        assert done.success
        return {s.partition("@")[0] for s in done.settled}

    def stale_here() -> dict[str, str]:
        with open_instance(load_settings(root)) as instance:
            return stale(load(root), instance)

    # In `same`, BuildIDs are those of the default environment, `dev`.
    assert build("same") == set()
    assert "PERSIST_ENV" not in os.environ
    assert stale_here() == {"p": "STALE", "q": "STALE"}
    assert build("same") == {"p", "q"}, "Dagster knows them"
    assert build("dev") == set()
    assert stale_here() == {}
    assert build("dev") == {"p", "q"}
    # A code location with the same variable shows this environment.
    monkeypatch.setenv("PERSIST_ENV", "same")
    assert build("same") == set()
    assert os.environ["PERSIST_ENV"] == "same"
    assert stale_here() == {}


@pytest.mark.slow
def test_a_failed_check_affects_only_the_environment_of_the_run(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    definitions = load(root)
    metadata_of(run(definitions, instance))
    write(root, [99], "raw/t")
    failed = run(definitions, instance, "prod")
    assert not failed.success
    (evaluation,) = failed.get_asset_check_evaluations()
    assert (evaluation.passed, evaluation.metadata["environment"].value) == (False, "prod")
    assert standing(root, "prod")[2] == {}
    assert rows(root, "dev", "q") == [{"s": 5, "h": "12"}]


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ("prd", "unknown environment `prd`.*did you mean `prod`"),
        ("staging", "unknown environment `staging`.*known environments: dev, prod, same"),
        ("../x", "invalid environment name `../x`"),
    ],
)
def test_an_invalid_environment_tag_fails_the_step(
    root: Path,
    load: Callable[..., dg.Definitions],
    instance: Any,
    environment: str,
    says: str,
) -> None:
    failed = run(load(root), instance, environment)
    assert not failed.success
    steps = [e for e in failed.all_events if e.is_step_failure]
    assert [e.step_key for e in steps] == ["m__p"]
    message = str(steps[0].event_specific_data)
    assert f"the run's tag `persist/environment: {environment}`" in message
    assert re.search(f"(?s){says}", message)
    assert not (root / ".persist" / "ledger.db").exists()


def test_sources_that_are_invalid_in_the_environment_fail_the_step(
    make_project: Callable[..., Path], load: Callable[..., dg.Definitions], instance: Any
) -> None:
    made = make_project(
        {
            "m.sql": "CREATE TABLE t USING parquet LOCATION 'raw/t';\n"
            "--@ persist\nCREATE VIEW p AS SELECT a FROM t;"
        },
        '[env.dev]\n[env.prod.raw]\nt = "nowhere"\n',
    )
    write(made, [1], "raw/t")
    failed = run(load(made), instance, "prod")
    (event,) = (e for e in failed.all_events if e.is_step_failure)
    assert "there is no data at" in str(event.event_specific_data)


def test_sources_that_changed_since_they_were_loaded_are_not_built(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    definitions = load(root)
    (root / "sources" / "m.sql").write_text(SOURCES.replace("sum(a)", "max(a)"))
    failed = run(definitions, instance, "prod")
    (event,) = (e for e in failed.all_events if e.is_step_failure)
    assert "the sources changed after they were loaded" in str(event.event_specific_data)
    assert actions(run(load(root), instance, "prod")) == {"p": "built", "q": "built"}


def test_a_process_rejects_concurrent_runs_with_different_spark_settings(root: Path) -> None:
    settings = load_settings(root)
    runtime = Runtime(settings, load_project(settings), frozenset())
    here, there, same = (
        dg.DagsterRun(job_name="j", run_id=name, tags={TAG: name})
        for name in ("dev", "prod", "same")
    )
    dev = runtime.builder(here, lambda: None)
    assert runtime.builder(here, lambda: None) is dev
    with pytest.raises(ConflictError, match="a run in `dev`, whose Spark settings differ"):
        runtime.builder(there, lambda: None)
    assert runtime.builder(same, lambda: None).settings.environment == "same"
    for run_id in ("dev", "same"):
        runtime.close(run_id)
    assert runtime.builder(there, lambda: None).settings.environment == "prod"
    dev.ledger.close()


@pytest.mark.slow
def test_ordinary_assets_have_tables_in_each_environment(
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: Any,
    spark: Any,
) -> None:
    root = make_project({"m.sql": SOURCES}, SETTINGS + '[env.feature]\nreads = "prod"\n')
    write(root, [1, 2], "raw/t")
    write(root, [5], "sample/t")

    @dg.asset(ins={"q": dg.AssetIn(key=Q)}, io_manager_key="persist_io_manager")
    def doubled(q: Any) -> Any:
        return q.selectExpr("s * 2 AS d")

    @dg.asset(ins={"doubled": dg.AssetIn()})
    def total(doubled: Any) -> int:
        return doubled.collect()[0][0]

    definitions = load(root, assets=[doubled, total])

    def outcome(environment: str, *keys: str) -> Any:
        chosen = [dg.AssetKey([k]) for k in keys] or None
        result = run(definitions, instance, environment, asset_selection=chosen)
        assert result.success, [str(e) for e in result.all_events if e.is_failure]
        return result.output_for_node("total")

    assert outcome("prod") == 6
    assert outcome("dev") == 10
    assert outcome("prod", "total") == 6
    assert outcome("feature", "total") == 6
    lacking = run(definitions, instance, "same", asset_selection=[dg.AssetKey("total")])
    (event,) = (e for e in lacking.all_events if e.is_step_failure)
    assert "doubled has no table in `same` yet" in str(event.event_specific_data)


@pytest.mark.slow
@pytest.mark.proves("K20")
def test_a_launched_run_uses_the_spark_settings_of_its_tag(root: Path, tmp_path: Path) -> None:
    """A job with the tag, in a separate process, with a session that the project creates."""
    (root / "definitions.py").write_text(
        "import dagster as dg\n"
        "from persist_assets import load_sources\n"
        "job = dg.define_asset_job('nightly', tags={'persist/environment': 'prod'})\n"
        "defs = dg.Definitions.merge(load_sources('sources'), dg.Definitions(jobs=[job]))\n"
    )
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "dagster", "job", "execute", "-f", "definitions.py"]
    done = warm.run(
        [*command, "-j", "nightly"],
        cwd=root,
        env={**os.environ, "DAGSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert rows(root, "prod", "q") == [{"s": 3, "h": "21"}]
    assert standing(root, "dev")[2] == {}
