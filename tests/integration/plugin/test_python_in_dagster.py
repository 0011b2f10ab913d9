"""Python functions as Dagster assets, together with SQL and Malloy sources."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from conftest import need
from malloy import there

from persist_assets import load_sources
from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

RAW = "CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';\n"
PYTHON = '''
from pyspark.sql import DataFrame, SparkSession
from persist_assets import model, source, table
import helper

@source
def outside(spark: SparkSession):
    """Told by others."""
    return spark.createDataFrame([(1, "one")], "a bigint, name string")

@model
def some(t):
    return helper.keep(t)

@table(group="reports", owner="team:flights", check={"not_null": ["a"], "unique": ["a"]})
def named(some, outside) -> DataFrame:
    """What has a name."""
    return some.join(outside, "a")

@table
def counted(named):
    return named.groupBy("b").count()
'''
SQL = "--@ persist\nCREATE VIEW told AS SELECT a, b FROM named;\nCREATE VIEW v AS SELECT a, name FROM named;\n"
MALLOY = """##! experimental.persistence
source: vs is spark.table('v') extend { measure: n is count() }
#@ persist
source: by_name is vs -> { group_by: name; aggregate: n }
"""


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"raw.sql": RAW + SQL, "d.py": PYTHON})
    (made / "helper.py").write_text("def keep(t): return t.filter(t.a > 0)\n")
    path = made / "raw" / "t" / "p.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [0, 1, 2], "b": ["x", "x", "y"]}), path)
    return made


def run(definitions: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, raise_on_error=False)


@pytest.mark.proves("K2")
def test_check_and_the_definitions_agree_for_all_three_languages(root: Path) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    (root / "sources" / "m.malloy").write_text(MALLOY)
    done = warm.run(
        [sys.executable, "-m", "persist_assets.cli", "check", "--json"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = {s["asset_key"]: s for s in json.loads(done.stdout)["sources"] if s["persisted"]}
    assert {s["language"] for s in told.values()} == {"sql", "python", "malloy"}
    graph = load_sources(root / "sources").resolve_asset_graph()
    assert {k.to_user_string(): graph.get(k).code_version for k in graph.executable_asset_keys} == {
        key: s["build_id"] for key, s in told.items()
    }
    keys = {k.to_user_string() for k in graph.get(dg.AssetKey(["d", "named"])).parent_keys}
    assert keys == {"raw/t", "d/outside"}


def test_malloy_reports_unknown_columns_of_python_functions(root: Path) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    text = MALLOY.replace("spark.table('v')", "spark.table('named')")
    (root / "sources" / "m.malloy").write_text(text)
    problems = [str(p) for p in load_project(load_settings(root)).problems]
    assert "the columns of `named` are unknown until it is computed" in problems[0]
    assert "name them in SQL: CREATE VIEW … AS SELECT a, b FROM named" in problems[0]


@pytest.mark.slow
def test_functions_are_assets(
    root: Path, load: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    @dg.asset(ins={"counted": dg.AssetIn(key=["d", "counted"])})
    def report(context: dg.AssetExecutionContext, counted: Any) -> None:
        context.add_output_metadata({"n": counted.count()})

    definitions = load(root, assets=[report])
    specs = {s.key.path[-1]: s for s in definitions.resolve_all_asset_specs()}
    spec = specs["named"]
    assert (spec.description, spec.group_name) == ("What has a name.", "reports")
    assert spec.kinds == {"spark", "python"}
    assert specs["outside"].kinds == {"python"}
    done = run(definitions, instance)
    assert done.success
    events = {
        e.asset_key.path[-1]: e.materialization for e in done.get_asset_materialization_events()
    }
    schema = events["named"].metadata["dagster/column_schema"].value
    assert [(c.name, c.type) for c in schema.columns] == [
        ("a", "bigint"),
        ("b", "string"),
        ("name", "string"),
    ]
    assert {e.check_name: e.passed for e in done.get_asset_check_evaluations()} == {
        "not_null_a": True,
        "unique_a": True,
    }
    assert events["report"].metadata["n"].value == 1
    assert events["told"].metadata["dagster/row_count"].value == 1
    outside = instance.fetch_materializations(dg.AssetKey(["d", "outside"]), limit=1).records
    assert outside[0].asset_materialization is not None
    assert "unversioned:" in (outside[0].asset_materialization.tags or {})["dagster/data_version"]


def test_a_failing_function_fails_its_step_and_reports_the_location(
    root: Path, load: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    (root / "helper.py").write_text("def keep(t):\n    raise ValueError('no luck')\n")
    done = run(load(root), instance)
    failures = {
        e.step_key: e.event_specific_data.error_display_string
        for e in done.all_events
        if e.is_step_failure
    }
    assert list(failures) == ["d__named"]
    assert "helper.py:2:5: `some` failed: ValueError: no luck" in failures["d__named"]
