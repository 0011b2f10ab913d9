"""Checks of views in Dagster: asset checks of the assets that are computed from the views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_assets.building.failing_rows import read_failures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SQL = """
CREATE TABLE t (a BIGINT, b STRING) USING parquet LOCATION 'raw/t';
--@ check { not_null=[a] unique=[a] { severity=warn keep_failures=true } }
CREATE VIEW v AS SELECT a, b FROM t;
--@ persist refresh=incremental time_column=a
CREATE VIEW r AS SELECT a, b FROM f WHERE a IS NOT NULL;
--@ persist
--@ check { not_null=[n] }
CREATE VIEW s AS SELECT b, count(*) AS n FROM v GROUP BY b;
"""
PYTHON = """from persist_assets import model

def few(rows):
    return rows.where("a > 10")

@model(check={"function": few})
def f(v):
    return v.select("a", "b")
"""
R, S = dg.AssetKey(["m", "r"]), dg.AssetKey(["m", "s"])


def put(root: Path, name: str, **columns: list[Any]) -> None:
    (root / "raw/t").mkdir(parents=True, exist_ok=True)
    rows = pa.table(columns, pa.schema([("a", pa.int64()), ("b", pa.string())]))
    pq.write_table(rows, root / f"raw/t/{name}.parquet")


@pytest.mark.slow
@pytest.mark.proves("W22", "W23")
def test_assets_have_the_checks_of_the_views_that_they_read(
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
) -> None:
    root = make_project({"m.sql": SQL, "f.py": PYTHON})

    def run() -> tuple[bool, dict[tuple[str, str], dg.AssetCheckEvaluation]]:
        job = load(root).resolve_implicit_global_asset_job_def()
        done = job.execute_in_process(instance=instance, raise_on_error=False)
        evaluations = done.get_asset_check_evaluations()
        return done.success, {(e.asset_key.path[-1], e.check_name): e for e in evaluations}

    put(root, "1", a=[1, 2], b=["x", "y"])
    is_done, checks = run()
    assert is_done
    assert {key: e.passed for key, e in checks.items()} == {
        ("r", "m__v__not_null_a"): True,
        ("r", "m__v__unique_a"): True,
        ("r", "f__f__function_few"): True,
        ("s", "m__v__not_null_a"): True,
        ("s", "m__v__unique_a"): True,
        ("s", "not_null_n"): True,
    }
    # An increment of `r` reads only the new file; the rows of `v` are checked together.
    put(root, "2", a=[2], b=["z"])
    is_done, checks = run()
    assert is_done
    shared = checks["r", "m__v__unique_a"]
    assert (shared.passed, shared.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert shared.metadata["failed_rows"].value == 2
    assert shared.metadata["check"].value == "a unique in m/v"
    kept = str(shared.metadata["failing_rows"].value)
    assert kept.endswith("/dev/m/v@unique_a")
    assert sorted(read_failures(kept)["b"].to_pylist()) == ["y", "z"]
    assert shared.metadata["failing_rows_kept"].value == 2
    assert instance.fetch_materializations(R, limit=1).records[0].asset_materialization
    # `r` has neither row.
    put(root, "3", a=[None, 11], b=["x", "y"])
    is_done, checks = run()
    assert not is_done
    missing = checks["r", "m__v__not_null_a"]
    assert (missing.passed, missing.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert missing.description == "1 rows"
    assert not checks["r", "f__f__function_few"].passed
    assert not checks["s", "m__v__not_null_a"].passed
    assert {len(instance.fetch_materializations(key, limit=9).records) for key in (R, S)} == {2}


@pytest.mark.slow
def test_a_location_with_older_code_deletes_no_rows_that_newer_code_keeps(
    make_project: Callable[..., Path],
    load: Callable[..., dg.Definitions],
    instance: dg.DagsterInstance,
) -> None:
    start, _, last = SQL.partition("--@ persist refresh")
    _, _, last = last.partition(";\n")
    before = start.replace(" keep_failures=true", "") + last
    root = make_project({"m.sql": before})
    put(root, "1", a=[1, 1], b=["x", "y"])
    older = load(root)
    (root / "sources" / "m.sql").write_text(
        before.replace("severity=warn", "severity=warn keep_failures=true")
    )
    job = load(root).resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=instance)
    (unique,) = (e for e in done.get_asset_check_evaluations() if "unique" in e.check_name)
    failing_rows = str(unique.metadata["failing_rows"].value)
    assert older.resolve_job_def("persist_gc").execute_in_process(instance=instance).success
    assert sorted(read_failures(failing_rows)["b"].to_pylist()) == ["x", "y"]
