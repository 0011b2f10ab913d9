"""`persist diff --rows` compares the rows of environments and of builds."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from typer.testing import CliRunner

from persist_assets.building.builder import Builder
from persist_assets.cli import app, err
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SOURCES = """CREATE TABLE t (a BIGINT, b STRING, x DOUBLE) USING parquet LOCATION 'raw/t';
--@ persist
CREATE VIEW p AS SELECT a, b, x, map('k', x) AS m FROM t WHERE a > 0;
--@ persist
CREATE VIEW q AS SELECT count(*) AS n FROM t;
--@ persist
CREATE VIEW same AS SELECT DISTINCT 1 AS one FROM t;
--@ persist
CREATE VIEW old AS SELECT a FROM t;
"""
EDITED = (
    SOURCES.replace("a, b, x, map", "a, upper(b) AS b, x, map")
    .replace("a > 0", "a > 1")
    .replace("VIEW old AS SELECT a", "VIEW new AS SELECT a, b")
)


def write(root: Path, rows: list[tuple[int, str | None, float | None]]) -> None:
    a, b, x = zip(*rows, strict=True)
    (root / "raw" / "t").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": a, "b": b, "x": x}), root / "raw" / "t" / "p.parquet")


def build(root: Path, environment: str, spark: Any) -> dict[str, str]:
    """Build all sources; return their BuildIDs."""
    settings = load_settings(root, environment=environment)
    ledger = Ledger(settings.ledger)
    engine = SparkEngine(settings, lambda: spark)
    builder = Builder(settings, require(load_project(settings)), ledger, engine, run_id="run")
    for source in builder.project.persisted:
        builder.build(source)
    ledger.close()
    return {s.name: s.build_id for s in builder.project.persisted}


def run(root: Path, *arguments: str) -> Any:
    """Run a command with the Spark session of this process."""
    try:
        return CliRunner().invoke(app, ["--project", str(root), *arguments])
    finally:
        err.file = None  # type: ignore[assignment]  # it was that of the runner, which is closed


def sources_of(root: Path, *arguments: str) -> dict[str, Any]:
    done = run(root, *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return {s["source_id"].partition("@")[0]: s for s in json.loads(done.stdout)["sources"]}


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    return make_project({"m.sql": SOURCES})


@pytest.mark.slow
@pytest.mark.proves("K21")
def test_a_diff_of_environments_lists_sources_columns_and_rows(root: Path, spark: Any) -> None:
    nan = float("nan")
    write(root, [(1, "x", 0.5), (2, "Y", nan), (3, "z", 1.0), (4, None, 0.1 + 0.2)])
    before = build(root, "prod", spark)
    write(root, [(1, "x", 0.5), (2, "Y", nan), (3, "z", 1.0), (4, None, 0.3), (5, "v", None)])
    (root / "sources" / "m.sql").write_text(EDITED)
    after = build(root, "dev", spark)
    assert before["q"] == after["q"]

    differing = sources_of(root, "diff", "prod", "dev", "--rows", "--key", "a")
    assert list(differing) == ["new", "p", "q", "old"]
    p = differing["p"]
    assert (p["change"], p["columns"], p["rows_changed"]) == ("changed", ["b"], True)
    assert {k: p[k] for k in ("rows", "key", "columns_changed", "columns_not_compared")} == {
        "rows": {"added": 1, "removed": 1, "changed": 2, "before": 4, "after": 4},
        "key": ["a"],
        "columns_changed": {"b": 1, "x": 1, "m": 1},
        "columns_not_compared": [],
    }
    assert p["samples"] == {
        "added": [{"a": 5, "b": "V", "x": None, "m": {"k": None}}],
        "removed": [{"a": 1, "b": "x", "x": 0.5, "m": {"k": 0.5}}],
        "changed": [
            {"key": {"a": 3}, "before": {"b": "z"}, "after": {"b": "Z"}},
            {
                "key": {"a": 4},
                "before": {"x": 0.30000000000000004, "m": {"k": 0.30000000000000004}},
                "after": {"x": 0.3, "m": {"k": 0.3}},
            },
        ],
    }
    # The same BuildID with newer data, but without the column `a`.
    q = differing["q"]
    assert (q["change"], q["columns"], q["rows"]) == ("changed", [], None)
    assert q["rows_note"] == "no column `a` with the same type on both sides"
    assert (differing["new"]["change"], differing["new"]["rows"]) == ("added", None)
    assert differing["new"]["rows_note"] == "no table in prod"
    assert differing["old"]["rows_note"] == "no table in dev"

    command = [sys.executable, "-m", "persist_assets.cli", "diff", "prod", "dev"]
    plain = warm.run(
        [*command, "p", "q", "--rows", "--sample", "1"],
        cwd=root, capture_output=True, text=True, timeout=180, check=True,
    ).stdout  # fmt: skip
    assert plain.splitlines() == [
        "prod → dev",
        "├── changed p@sources/m.sql rows, b",
        "└── changed q@sources/m.sql",
        "",
        "p@sources/m.sql 4 → 4 rows: +3 added, -3 removed",
        "   a  b  x    m       ",
        "-  1  x  0.5  {k: 0.5}",
        "+  3  Z  1.0  {k: 1.0}",
        "",
        "q@sources/m.sql 1 → 1 rows: +1 added, -1 removed",
        "   n",
        "-  4",
        "+  5",
    ]

    # Comparing two builds gives the same result as comparing two environments.
    (build_p,) = sources_of(root, "diff", before["p"], after["p"], "--rows", "--key", "a").values()
    assert build_p["rows"] == p["rows"]


@pytest.mark.slow
def test_a_row_diff_reports_why_it_cannot_compare_rows(root: Path, spark: Any) -> None:
    write(root, [(1, "x", 0.5), (1, "y", 1.0)])
    build(root, "prod", spark)
    (root / "sources" / "m.sql").write_text(EDITED.replace("a > 1", "a >= 1"))
    build(root, "dev", spark)

    files = run(root, "diff", "prod", ".", "--rows")
    assert files.exit_code == 2
    assert "`.` refers to files, which have no rows" in files.stderr
    assert "add --rows" in run(root, "diff", "prod", "dev", "--key", "a").stderr
    shared = run(root, "diff", "prod", "dev", "p", "--rows", "--key", "a", "--json")
    assert shared.exit_code == 2
    error = json.loads(shared.stdout)["error"]
    assert error["message"] == "p@sources/m.sql: `a` is not a key: 2 rows of prod have a = 1"
    lacking = run(root, "diff", "prod", "dev", "--rows", "--key", "zz")
    assert lacking.exit_code == 2
    assert "no column `zz`" in lacking.stderr
    for table in (root / ".persist" / "warehouse").glob("p-*"):
        shutil.rmtree(table)
    p = sources_of(root, "diff", "prod", "dev", "p", "--rows")["p"]
    assert p["rows"] is None
    assert "is gone" in p["rows_note"]
