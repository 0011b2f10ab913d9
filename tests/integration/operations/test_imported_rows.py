"""Imported dbt and SQLMesh projects: Spark computes the rows that those tools built."""

from __future__ import annotations

import csv
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from conftest import ROOT, SPARK_TOML
from typer.testing import CliRunner

from persist_assets.cli import app, err
from persist_assets.operations.importing.dbt import import_dbt
from persist_assets.operations.importing.sqlmesh import import_sqlmesh
from persist_assets.operations.importing.writing import write

if TYPE_CHECKING:
    from pathlib import Path

DATA = ROOT / "tests" / "data"


def value(written: Any) -> str:
    """Return a value as text: numbers without trailing zeros, NULL as an empty text."""
    shown = "" if written is None else str(written)
    is_number = re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", shown, re.I)
    return f"{round(Decimal(shown), 9).normalize():f}" if is_number else shown


def rows_of(project: Path, name: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the columns and the rows of a source, computed in the session of this process."""
    arguments = ["--project", str(project), "query", f"SELECT * FROM {name}"]
    try:
        done = CliRunner().invoke(app, [*arguments, "--format", "json", "--limit", "100000"])
    finally:
        err.file = None  # type: ignore[assignment]  # it was that of the runner, which is closed
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    rows = sorted(tuple(value(v) for v in row) for row in document["rows"])
    return [column["name"] for column in document["columns"]], rows


def built_rows(path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the columns and the rows that the other tool built."""
    with path.open(newline="") as file:
        columns, *rows = csv.reader(file)
    return columns, sorted(tuple(value(v) for v in row) for row in rows)


def compare(project: Path, rows: Path) -> None:
    (project / "persist.toml").write_text(SPARK_TOML)
    names = sorted(path.stem for path in rows.glob("*.csv"))
    assert names
    for name in names:
        assert rows_of(project, name) == built_rows(rows / f"{name}.csv"), name


@pytest.mark.slow
@pytest.mark.proves("W8")
@pytest.mark.usefixtures("spark")
def test_models_of_dbt_have_the_rows_that_dbt_built(tmp_path: Path) -> None:
    place = DATA / "jaffle_shop_classic"
    write(import_dbt(place / "project", "duckdb"), tmp_path / "new")
    compare(tmp_path / "new", place / "rows")


@pytest.mark.slow
@pytest.mark.proves("W9")
@pytest.mark.usefixtures("spark")
def test_models_of_sqlmesh_have_the_rows_that_sqlmesh_built(tmp_path: Path) -> None:
    place, new = DATA / "sushi_moderate", tmp_path / "new"
    imported = write(import_sqlmesh(place / "project"), new)
    for raw in imported.to_fill_in:  # as a user would
        file = new / raw.path
        data = place / "raw" / f"{raw.name.removeprefix('raw_')}.csv"
        csv_of = f"USING csv OPTIONS (header 'true') LOCATION '{data}'"
        file.write_text(re.sub(r"USING delta LOCATION '[^']+'", csv_of, file.read_text()))
    compare(new, place / "rows")


ROWS = """(
    SELECT 1 AS id, CAST(2.5 AS DECIMAL(9, 2)) AS d, 'ab' AS s, [1, 2] AS l
    UNION ALL SELECT 2, CAST(1.25 AS DECIMAL(9, 2)), NULL, CAST([] AS INT[])
    UNION ALL SELECT 3, CAST(3 AS DECIMAL(9, 2)), 'x', NULL
) AS t"""
QUERIES = {
    "joined": f"SELECT id, x FROM {ROWS} LEFT JOIN UNNEST(l) AS u(x) ON TRUE",
    "grouped": f"SELECT 4 | 2 & 1 AS a, s || id + 1 AS b, id + 1 << 1 | 1 AS c FROM {ROWS}",
    "divided": f"SELECT id / 3.0 AS a, id * 100.0 / 3 AS b, d / 3 AS c FROM {ROWS}",
    "averaged": f"SELECT sum(d) / count(*) AS a FROM {ROWS}",
    "concatenated": f"SELECT concat(id, d, s) AS a, concat(s, '-', id) AS b FROM {ROWS}",
    "cast_to_text": f"SELECT CAST(s AS VARCHAR(1)) AS a FROM {ROWS}",
}


@pytest.mark.slow
@pytest.mark.proves("W8")
@pytest.mark.usefixtures("spark")
def test_operators_joins_and_casts_have_the_values_of_duckdb(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "models").mkdir(parents=True)
    (old / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    for name, query in QUERIES.items():
        (old / "models" / f"{name}.sql").write_text(query)
    write(import_dbt(old, "duckdb"), new)
    (new / "persist.toml").write_text(SPARK_TOML)
    for name, query in QUERIES.items():
        built = sorted(tuple(value(v) for v in row) for row in duckdb.sql(query).fetchall())
        assert rows_of(new, name)[1] == built, name
