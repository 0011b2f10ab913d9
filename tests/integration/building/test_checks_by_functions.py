"""Python functions as checks of SQL and Malloy sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from malloy import compiler

from persist_assets.compiler.load import load_project
from persist_assets.core.errors import BuildError, CheckFailedError
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.building.builder import Builder

SQL = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ persist
--@ check { function { gaps=".checks.no_gaps" } }
CREATE VIEW v AS SELECT a, b FROM t;
"""
MALLOY = """##! experimental.persistence
#@ persist
#@ check { function="rules.few" { severity=warn } }
source: m is spark.table('t') -> { group_by: b; aggregate: n is count() }
"""
CHECKS = '''"""Checks."""
from pyspark.sql import functions as F
from rules import STEP

def no_gaps(rows):
    """Rows that do not follow one another."""
    return rows.where((F.col("a") % STEP) != 0).select("a")
'''
RULES = """import narwhals as nw
STEP = 2
def few(rows: nw.LazyFrame) -> nw.LazyFrame:
    return rows.filter(nw.col("n") > 1)
"""
V, M = "v@sources/m.sql", "m@sources/n.malloy"


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SQL, "checks.py": CHECKS})
    (made / "rules.py").write_text(RULES)
    put(made, [2, 4, 6])
    return made


def put(root: Path, values: list[int]) -> None:
    (root / "raw/t").mkdir(parents=True, exist_ok=True)
    rows = pa.table({"a": values, "b": ["x" if a < 5 else "y" for a in values]})
    pq.write_table(rows, root / f"raw/t/{values[0]}.parquet")


@pytest.mark.slow
@pytest.mark.proves("K11")
def test_a_failed_python_check_stops_publication_of_a_sql_source(
    root: Path, enter: Callable[..., Builder]
) -> None:
    builder = enter(root)
    built = builder.build(builder.project.by_id[V]).snapshot
    assert built is not None
    (kept,) = builder.ledger.builds.fetch_checks(built.build_uid)
    assert (kept.name, kept.passed, kept.failed_rows) == ("function_gaps", True, 0)
    put(root, [1, 3, 8])
    later = enter(root)
    with pytest.raises(CheckFailedError, match=r"function_gaps \(2 rows\)") as caught:
        later.build(later.project.by_id[V])
    (failed,) = caught.value.results
    assert sorted(json.loads(row)["a"] for row in failed.sample) == [1, 3]
    assert later.ledger.manifests.fetch("dev")[later.project.by_id[V].build_id].rows == 3
    # An edit of code that the check imports changes the check, but not the BuildID.
    (root / "rules.py").write_text(RULES.replace("STEP = 2", "STEP = 1"))
    edited = enter(root)
    assert edited.project.by_id[V].build_id == builder.project.by_id[V].build_id
    published = edited.build(edited.project.by_id[V]).snapshot
    assert published is not None
    assert published.rows == 6


def test_an_edited_check_function_invalidates_cached_sources(root: Path) -> None:
    def checks() -> str:
        project = load_project(load_settings(root))
        assert not project.problems
        return project.by_id[V].checks[0].definition

    first = checks()
    assert checks() == first
    (root / "rules.py").write_text(RULES.replace("STEP = 2", "STEP = 3"))
    assert checks() != first
    (root / "rules.py").write_text(RULES + "# no code\n")
    assert checks() == first
    (root / "rules.py").unlink()
    (root / "src").mkdir()
    (root / "src/rules.py").write_text(RULES)
    assert load_project(load_settings(root)).by_id[V].checks[0].function is not None


def test_an_error_in_a_check_function_has_a_location(
    root: Path, enter: Callable[..., Builder]
) -> None:
    (root / "sources/checks.py").write_text("def no_gaps(rows):\n    return rows.where('z > 1')\n")
    builder = enter(root)
    with pytest.raises(BuildError) as caught:
        builder.build(builder.project.by_id[V])
    assert str(caught.value).startswith("sources/checks.py:2:12: `no_gaps` failed: ")
    assert builder.ledger.manifests.fetch("dev") == {}


@pytest.mark.slow
@pytest.mark.proves("K11")
def test_dagster_shows_results_of_check_functions_for_sql_and_malloy(
    root: Path, load: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    compiler()
    (root / "sources/n.malloy").write_text(MALLOY)
    put(root, [3])
    definitions = load(root)
    job = definitions.resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=instance, raise_on_error=False)
    assert not done.success
    told = {e.check_name: e for e in done.get_asset_check_evaluations()}
    gaps, few = told["function_gaps"], told["function_rules_few"]
    assert (gaps.passed, gaps.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert (few.passed, few.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert gaps.metadata["failed_rows"].value == 1
    assert few.metadata["failed_rows"].value == 1
    assert "| 3 |" in str(gaps.metadata["sample"].value)
    assert "| x | 3 |" in str(few.metadata["sample"].value)
    assert len(instance.fetch_materializations(dg.AssetKey(["n", "m"]), limit=9).records) == 1
    assert not instance.fetch_materializations(dg.AssetKey(["m", "v"]), limit=9).records


@pytest.mark.slow
def test_malloy_is_recompiled_when_its_check_function_changes(root: Path) -> None:
    compiler()
    (root / "sources/n.malloy").write_text(MALLOY)

    def definition() -> str:
        project = load_project(load_settings(root))
        assert not project.problems, [str(p) for p in project.problems]
        return project.by_id[M].checks[0].definition

    first = definition()
    assert definition() == first
    (root / "rules.py").write_text(RULES.replace("> 1", "> 2"))
    assert definition() != first
    (root / "rules.py").write_text(RULES.replace("few", "fewer"))
    (problem,) = load_project(load_settings(root)).problems
    assert "rules.py neither defines nor imports a function `few`" in problem.message
    assert problem.hint == "did you mean `fewer`?"
    assert (problem.location.path, problem.location.line) == ("sources/n.malloy", 3)
