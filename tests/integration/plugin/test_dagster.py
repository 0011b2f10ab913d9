"""Sources as Dagster assets: definitions, runs, checks, ordinary assets beside them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, wait_for
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from persist_assets import AssetTranslator, load_sources
from persist_assets.building.observe import Observer
from persist_assets.building.pins import begin_together, reading_as
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SettingsError, SourcesError
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.plugin.events import report_raw_versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.core.model.sources import Source

SOURCES = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';

--@ persist owner="team:flights" tags=[nightly] tags.tier=gold freshness.window=24h freshness.warn=12h
--@ time_column=a check { not_null=[a] { severity=warn } expr { small="a < 10" } }
-- What this is.
CREATE VIEW p (a COMMENT 'One.', b) AS SELECT a, b FROM t;

CREATE VIEW v AS SELECT a + 1 AS c, b FROM p;

--@ persist group=reports
CREATE VIEW q AS SELECT b, sum(c) AS s FROM v GROUP BY b;

--@ persist
CREATE VIEW other AS SELECT count(*) AS n FROM t;
"""
P, Q, OTHER, T = (dg.AssetKey(["m", n]) for n in ("p", "q", "other", "t"))


def write(root: Path, rows: list[tuple[int | None, str]]) -> None:
    path = root / "raw" / "t" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"a": pa.array([r[0] for r in rows], pa.int64()), "b": [r[1] for r in rows]})
    pq.write_table(table, path)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES})
    write(made, [(1, "x"), (2, "y")])
    return made


def run(definitions: dg.Definitions, instance: dg.DagsterInstance, **options: Any) -> Any:
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, raise_on_error=False, **options)


def materializations(result: Any) -> dict[str, dg.AssetMaterialization]:
    events = result.get_asset_materialization_events()
    return {e.asset_key.path[-1]: e.materialization for e in events if e.asset_key}


# ------------------------------------------------------------------------------------- definitions


@pytest.mark.proves("K1", "K2")
def test_each_persisted_source_is_an_asset_with_its_build_id_as_code_version(
    root: Path, load: Callable[..., dg.Definitions]
) -> None:
    graph = load(root).resolve_asset_graph()
    project = load_project(load_settings(root))
    assert graph.executable_asset_keys == {P, Q, OTHER}
    assert graph.external_asset_keys == {T}
    for source in project.persisted:
        spec = graph.get(dg.AssetKey(source.asset_key))
        assert spec.code_version == source.build_id
    assert graph.get(Q).parent_keys == {P}
    assert graph.get(P).parent_keys == {T}


@pytest.mark.proves("K12", "P29")
def test_an_asset_has_the_metadata_of_its_source(
    root: Path, load: Callable[..., dg.Definitions]
) -> None:
    specs = {s.key: s for s in load(root).resolve_all_asset_specs()}
    p = specs[P]
    assert p.description == "What this is."
    assert list(p.owners) == ["team:flights"]
    assert {k: v for k, v in p.tags.items() if not k.startswith("dagster/")} == {
        "nightly": "",
        "tier": "gold",
    }
    assert p.kinds == {"spark", "sql"}
    assert (p.group_name, specs[Q].group_name) == ("m", "reports")
    assert p.freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=timedelta(hours=24), warn_window=timedelta(hours=12)
    )
    reference = p.metadata["dagster/code_references"].code_references[0]
    assert (reference.file_path, reference.line_number) == (str(root / "sources" / "m.sql"), 7)
    assert [c.name for c in p.metadata["dagster/column_schema"].columns] == ["a", "b"]
    lineage = specs[Q].metadata["dagster/column_lineage"].deps_by_column
    assert {k: [(d.asset_key, d.column_name) for d in v] for k, v in lineage.items()} == {
        "b": [(P, "b")],
        "s": [(P, "a")],
    }
    assert specs[T].kinds == {"parquet"}


@pytest.mark.proves("P16")
def test_loading_starts_no_jvm_and_touches_no_ledger(root: Path) -> None:
    script = (
        "import sys; from persist_assets import load_sources\n"
        "d = load_sources(sys.argv[1]); d.resolve_asset_graph()\n"
        "import pyspark; assert pyspark.SparkContext._gateway is None\n"
        "assert 'deltalake' not in sys.modules, 'deltalake'"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(root / "sources")], check=True, cwd=ROOT
    )
    assert not (root / ".persist").exists()


def test_loading_invalid_sources_fails_with_all_their_problems(
    make_project: Callable[..., Path],
) -> None:
    made = make_project(
        {"a.sql": "CREATE VIEW v AS SELECT (;", "b.sql": "CREATE VIEW w AS SELECT x FROM nope"}
    )
    with pytest.raises(SourcesError, match=r"(?s)2 problems.*a\.sql:1:.*b\.sql:1:"):
        load_sources(made / "sources")


def test_a_missing_or_empty_sources_directory_is_rejected(
    make_project: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="there is no directory"):
        load_sources(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="contains no sources"):
        load_sources(make_project({}) / "sources")


def test_a_translator_customizes_asset_specs(
    root: Path, load: Callable[..., dg.Definitions]
) -> None:
    class Prefixed(AssetTranslator):
        def asset_spec(self, source: Source) -> dg.AssetSpec:
            return super().asset_spec(source).replace_attributes(group_name="lake")

    specs = load(root, translator=Prefixed).resolve_all_asset_specs()
    assert {s.group_name for s in specs} == {"lake"}


# -------------------------------------------------------------------------------------------- runs


@pytest.mark.slow
@pytest.mark.proves("K6", "K12", "P36")
def test_a_run_builds_tables_and_reports_their_metadata(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    result = run(load(root), instance)
    assert result.success
    events = materializations(result)
    metadata = events["p"].metadata
    assert metadata["dagster/row_count"].value == 2
    assert metadata["bytes"].value > 0
    assert metadata["action"].value == "built"
    assert metadata["why"].value == "never built"
    assert metadata["watermark"].value == "2"
    assert "| 1 | x |" in metadata["preview"].value
    assert metadata["dagster/table_name"].value.startswith("p-")
    assert metadata["build_id"].value in (root / ".persist" / "manifests" / "dev.json").read_text()
    schema = metadata["dagster/column_schema"].value.columns
    assert [(c.type, c.description) for c in schema] == [("bigint", "One."), ("string", None)]
    checks = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert checks == {"not_null_a": True, "expr_small": True}
    assert events["p"].tags["dagster/data_version"].startswith("2:")

    again = run(load(root), instance)
    assert again.success
    assert {m.metadata["action"].value for m in materializations(again).values()} == {"reused"}
    assert (
        materializations(again)["p"].tags["dagster/data_version"]
        == events["p"].tags["dagster/data_version"]
    )


@pytest.mark.slow
def test_each_version_of_a_raw_table_is_reported_once(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    def versions() -> list[str]:
        records = instance.fetch_materializations(T, limit=10).records
        return [r.asset_materialization.tags["dagster/data_version"] for r in records]

    first = run(load(root), instance)
    run(load(root), instance)
    assert len(versions()) == 1
    # Even the first step of the run records the version that it reads.
    assert materializations(first)["p"].tags["dagster/input_data_version/m/t"] == versions()[0]
    write(root, [(3, "z")])
    run(load(root), instance)
    assert len(set(versions())) == 2


THREE = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW first AS SELECT a FROM t;
--@ persist
CREATE VIEW second AS SELECT count(*) AS n FROM t;
--@ persist
CREATE VIEW third AS SELECT max(a) AS a FROM t;
"""


def add(root: Path, name: str, *values: int) -> None:
    path = root / "raw" / "t" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path)


def versions_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[str]:
    """Return the versions of a raw table that Dagster knows, the newest first."""
    records = instance.fetch_materializations(key, limit=10).records
    return [(r.event_log_entry.tags or {})["dagster/data_version"] for r in records]


@pytest.mark.slow
@pytest.mark.proves("U7")
def test_a_step_records_the_raw_version_that_its_run_reads(
    make_project: Callable[..., Path], load: Callable[..., dg.Definitions], instance: Any
) -> None:
    root = make_project({"m.sql": THREE})
    add(root, "part-0.parquet", 1, 2)

    class Late(AssetTranslator):
        def asset_spec(self, source: Source) -> dg.AssetSpec:
            spec = super().asset_spec(source)
            return spec.merge_attributes(deps=["arrival"]) if source.name == "second" else spec

    @dg.asset(deps=[["m", "first"]])
    def arrival() -> None:
        add(root, "part-1.parquet", 3)
        assert run(load(root), instance, asset_selection=[dg.AssetKey(["m", "third"])]).success

    definitions = load(root, assets=[arrival], translator=Late)
    chosen = [dg.AssetKey("arrival"), *(dg.AssetKey(["m", n]) for n in ("first", "second"))]
    done = run(definitions, instance, asset_selection=chosen)
    assert done.success
    newer, older = versions_of(instance, T)
    events = materializations(done)
    assert events["first"].tags is not None
    assert events["second"].tags is not None
    assert events["second"].tags["dagster/input_data_version/m/t"] == older != newer
    pointer = "dagster/input_event_pointer/m/t"
    assert events["second"].tags[pointer] == events["first"].tags[pointer]
    graph = definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    status = {n: resolver.get_status(dg.AssetKey(["m", n])).value for n in ("second", "third")}
    assert status == {"second": "STALE", "third": "FRESH"}


@pytest.mark.proves("U7")
def test_a_step_in_another_process_does_not_report_an_older_raw_version(
    make_project: Callable[..., Path], instance: Any
) -> None:
    root = make_project({"m.sql": THREE})
    add(root, "part-0.parquet", 1, 2)
    settings = load_settings(root)
    project, ledger = load_project(settings), Ledger(settings.ledger)

    def report(run_id: str | None) -> str | None:
        """Report what a process of a run reads, and return the version."""
        shared = nullcontext()
        if run_id is not None:
            shared = reading_as(begin_together(ledger, settings, run_id, datetime.now(UTC)))
        with shared:
            observer = Observer(settings, project, ledger)
        report_raw_versions(instance, observer, None)
        return observer.pins.find_version(project.by_key["m", "t"])

    older = report("A")
    add(root, "part-1.parquet", 3)
    newer = report(None)
    assert older != newer
    assert report("A") == older
    assert versions_of(instance, T) == [newer, older]
    (root / "raw" / "t" / "part-1.parquet").unlink()
    assert report(None) == older
    assert versions_of(instance, T) == [older, newer, older]
    ledger.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["tag", "config"])
def test_a_run_can_be_forced(
    how: str, root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    run(load(root), instance)
    given: dict[str, Any] = {"tags": {"persist/force": "true"}}
    if how == "config":
        given = {"run_config": {"ops": {"m__p": {"config": {"force": True}}}}}
    actions = {
        k: m.metadata["action"].value
        for k, m in materializations(run(load(root), instance, **given)).items()
    }
    assert actions["p"] == "built"
    assert actions["q"] == ("built" if how == "tag" else "reused")


@pytest.mark.proves("K11", "K13")
def test_a_failed_check_stops_only_downstream_assets(
    root: Path, load: Callable[..., dg.Definitions], instance: Any
) -> None:
    assert run(load(root), instance).success
    table = sorted((root / ".persist" / "warehouse").glob("p-*/*/*.parquet"))
    write(root, [(1, "x"), (99, "bad")])
    result = run(load(root), instance)
    assert not result.success
    states = {
        e.step_key: e.event_type_value
        for e in result.all_events
        if e.is_step_event and "STEP_" in e.event_type_value
    }
    assert states["m__p"] == "STEP_FAILURE"
    assert states["m__other"] == "STEP_SUCCESS"
    assert "m__q" not in materializations(result)
    checks = {
        e.check_name: (e.passed, e.metadata["failed_rows"].value)
        for e in result.get_asset_check_evaluations()
    }
    assert checks["expr_small"] == (False, 1)
    assert sorted((root / ".persist" / "warehouse").glob("p-*/*/*.parquet")) == table

    write(root, [(1, "x"), (9, "good")])
    job = load(root).resolve_implicit_global_asset_job_def()
    repaired = job.execute_in_process(
        instance=instance,
        asset_selection=[P, Q],
        raise_on_error=False,
    )
    assert {k: m.metadata["action"].value for k, m in materializations(repaired).items()} == {
        "p": "built",
        "q": "built",
    }


def test_an_edit_changes_the_code_version_of_the_affected_assets_only(
    root: Path, load: Callable[..., dg.Definitions]
) -> None:
    def versions() -> dict[str, str | None]:
        return {s.key.path[-1]: s.code_version for s in load(root).resolve_all_asset_specs()}

    before = versions()
    path = root / "sources" / "m.sql"
    path.write_text(
        SOURCES.replace("a + 1 AS c", "a + 2 AS c").replace("-- What", "-- Exactly what")
    )
    after = versions()
    assert {name for name in before if before[name] != after[name]} == {"q"}


# ------------------------------------------------------------------------------ beside other assets


@pytest.mark.slow
@pytest.mark.proves("K7")
def test_ordinary_assets_read_sources_and_feed_them(
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: Any,
    spark: Any,
) -> None:
    root = make_project(
        {
            "m.sql": """
            CREATE TABLE fed (a BIGINT) USING delta LOCATION 'raw/fed';
            --@ persist
            CREATE VIEW p AS SELECT a + 1 AS b FROM fed;
            """
        }
    )
    rows = [1, 2]

    @dg.asset(key=["m", "fed"], io_manager_key="persist_io_manager")
    def fed() -> Any:
        return spark.createDataFrame([(n,) for n in rows], "a BIGINT")

    @dg.asset(ins={"p": dg.AssetIn(key=P)}, io_manager_key="persist_io_manager")
    def doubled(p: Any) -> Any:
        return p.selectExpr("b * 2 AS c")

    @dg.asset(ins={"doubled": dg.AssetIn()})
    def total(doubled: Any) -> int:
        return doubled.agg({"c": "sum"}).collect()[0][0]

    def outcome() -> Any:
        result = run(load(root, assets=[fed, doubled, total]), instance)
        assert result.success, [str(e) for e in result.all_events if e.is_failure]
        return result.output_for_node("total")

    assert outcome() == 10
    rows.append(10)
    assert outcome() == 32


def test_an_asset_may_not_write_a_raw_table_that_is_not_delta(
    root: Path, load: Callable[..., dg.Definitions], instance: Any, spark: Any
) -> None:
    @dg.asset(key=["m", "t"], io_manager_key="persist_io_manager")
    def fed() -> Any:
        return spark.range(1)

    result = run(load(root, assets=[fed]), instance)
    assert not result.success
    failure = next(e for e in result.all_events if e.is_step_failure)
    assert "only raw tables declared USING delta" in str(failure.event_specific_data)


@pytest.mark.slow
def test_a_schedule_that_is_off_by_default_deletes_unneeded_versions(
    root: Path, load: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    toml = root / "persist.toml"
    toml.write_text('keep = "1 s"\n' + toml.read_text())
    assert run(load(root), instance).success
    write(root, [(3, "z")])
    definitions = load(root, gc_cron="30 4 * * *")
    assert run(definitions, instance).success
    schedule = definitions.resolve_schedule_def("persist_gc")
    assert schedule.cron_schedule == "30 4 * * *"
    assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
    versions = [*root.glob(".persist/warehouse/*/*/*.parquet")]
    job = definitions.resolve_job_def("persist_gc")

    def collected() -> int:
        result = job.execute_in_process(instance=instance)
        (output,) = [e for e in result.all_events if e.is_successful_output]
        found = output.step_output_data.metadata["tables"].value
        assert isinstance(found, int)
        return found

    # Each table's first version is deleted as soon as it is a second old.
    deleted = [0]
    while deleted[-1] < 3:
        deleted.append(deleted[-1] + wait_for(collected))
    assert len([*root.glob(".persist/warehouse/*/*/*.parquet")]) == len(versions) / 2
    assert run(definitions, instance).success
