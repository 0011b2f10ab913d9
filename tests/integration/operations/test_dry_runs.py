"""Dry runs on the command line list what would change, and change nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of
from typer.testing import CliRunner

from persist_assets.cli import app

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a + {n} AS a FROM t;
"""


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.mark.proves("W17")
def test_dry_runs_of_promote_and_import_list_changes_without_making_them(
    make_project: Callable[..., Path], enter: Callable[..., Builder], tmp_path: Path
) -> None:
    root = make_project({"m.sql": SOURCES.format(n=1)})
    (root / "raw" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array([1], pa.int64())}), root / "raw" / "t" / "p.parquet")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["--project", str(root), *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    builder = enter(root)
    builder.build(builder.project.persisted[0])
    promoted = run("promote", "dev", "prod", "--dry-run").splitlines()
    assert promoted == [
        "would promote p@sources/m.sql",
        "1 from dev to prod, 0 refused: a dry run changes nothing",
    ]
    assert "p@sources/m.sql" not in run("manifest", "--env", "prod")
    manifest = next((root / ".persist" / "manifests").glob("dev*"))
    imported = run("manifest", "--import", str(manifest), "--env", "prod", "--dry-run")
    assert imported.startswith("would import p@sources/m.sql p-")
    assert "1 would be imported, 0 already the same, 0 refused in prod: a dry run" in imported
    assert run("promote", "dev", "prod").startswith("promoted p@sources/m.sql\n1 from dev to prod")

    last_run = run("state").splitlines()[1].split("  ")[1]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", last_run)
