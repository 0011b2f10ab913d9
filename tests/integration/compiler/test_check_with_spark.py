"""`persist check --spark`: Spark's analyser over empty tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.operations.analyser import analyse

if TYPE_CHECKING:
    from pathlib import Path

SQL = """\
CREATE TABLE t (id INT, at TIMESTAMP, v VARCHAR(3), st STRUCT<`a b`: INT>) USING delta LOCATION 't';
-- Columns whose types only Spark knows:
CREATE VIEW typed AS SELECT id, st.`a b` AS z, v, from_json(v, 'q INT') AS j, st FROM t;
CREATE VIEW right AS SELECT typed.id + j.q + st.`a b` AS n FROM typed;
--@ persist refresh=snapshot key=id
CREATE VIEW kept AS SELECT id, v FROM t;
CREATE VIEW history AS SELECT id, valid_from + INTERVAL 1 DAY AS d FROM kept;
CREATE VIEW renamed (k, w) AS SELECT id, array(id) FROM t;
--@ persist refresh=incremental time_column=at
CREATE VIEW since AS SELECT size(w) AS n, at FROM t JOIN renamed ON k = id WHERE at > :watermark;
CREATE VIEW bad AS
SELECT o.id,
  typed.z +
    o.at AS w
FROM t AS o JOIN typed ON o.id = typed.id;
CREATE VIEW follows AS SELECT id FROM bad;
CREATE VIEW computed AS SELECT * FROM made;
"""
PYTHON = """\
from persist_assets import model
from pyspark.sql import DataFrame


@model
def made(t: DataFrame) -> DataFrame:
    return t.select("id")
"""


@pytest.mark.proves("W7")
def test_spark_analyses_each_query_over_empty_tables(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    (tmp_path / "sources" / "a.sql").write_text(SQL)
    (tmp_path / "sources" / "b.py").write_text(PYTHON)
    settings = load_settings(tmp_path)
    project = load_project(settings)
    assert project.errors == ()
    analysis = analyse(tmp_path, project, SparkEngine(settings, lambda: spark))
    assert analysis.n_queries == 7
    shown = [f"{p.location}: {p.severity}: {p.message} [{p.code}]" for p in analysis.problems]
    error, *notes = sorted(shown)
    assert error.startswith("sources/a.sql:13:3: error: Spark: Cannot resolve")
    assert error.endswith(" [spark]")
    assert notes == [
        "sources/a.sql:16:13: note: Spark did not analyse `follows`: it reads `a/bad`, which has an"
        " error [not-analysed]",
        "sources/a.sql:17:13: note: Spark did not analyse `computed`: it reads `b/made`, whose columns"
        " are unknown until it is computed [not-analysed]",
    ]


@pytest.mark.proves("W7")
def test_a_selection_is_analysed_with_column_types_of_its_upstream_sources(
    tmp_path: Path, spark: Any
) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    (tmp_path / "sources" / "a.sql").write_text(SQL.replace("* FROM made", "z FROM typed"))
    settings = load_settings(tmp_path)
    project = load_project(settings)
    engine = SparkEngine(settings, lambda: spark)

    def seen(*names: str) -> tuple[int, list[tuple[str, int, str | None]]]:
        chosen = [f"{name}@sources/a.sql" for name in names]
        analysis = analyse(tmp_path, project, engine, chosen)
        return analysis.n_queries, [(p.code, p.location.line, p.hint) for p in analysis.problems]

    assert seen("right") == (1, []), "the types of `typed` are Spark's, which is not counted"
    assert seen("history", "renamed") == (2, [])
    assert seen("right", "bad") == (2, [("spark", 13, None)])
    hint = "analyse it: persist check --spark a/bad"
    assert seen("follows") == (0, [("not-analysed", 16, hint)])
    assert seen("follows", "bad") == (1, [("spark", 13, None), ("not-analysed", 16, None)])
    assert seen() == (0, [])
