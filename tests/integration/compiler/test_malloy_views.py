"""Malloy views that Spark cannot run: only sources and queries that use them are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import need
from malloy import there

from persist_assets.compiler.load import load, load_project
from persist_assets.core.errors import SourcesError
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RAW = "CREATE TABLE t (id BIGINT, k STRING, s STRING) USING parquet LOCATION 'raw/t';\n"
MODEL = """##! experimental.persistence
source: t is spark.table('t') extend {
  measure: n is count()
  view: top is { group_by: k; nest: a is { group_by: s; aggregate: n; limit: 3 } -> { aggregate: m is n.sum() } }
  view: plain is { group_by: k; aggregate: n }
}
#@ persist
source: good is t -> plain
source: computed is t -> plain
query: works is t -> plain
query: fails is t -> top
"""
BAD = "#@ persist\nsource: bad is t -> top\n"
NESTED = "Spark cannot run a pipeline ('->') inside a nest"


@pytest.mark.proves("V26")
def test_an_unsupported_view_removes_only_the_sources_that_use_it(
    make_project: Callable[..., Path],
) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    root = make_project({"raw.sql": RAW, "m.malloy": f"{MODEL}{BAD}"})
    project = load_project(load_settings(root, environ={}))
    assert {s.name for s in project.sources} == {"t", "good", "computed"}
    (error,) = project.errors
    assert (error.message, str(error.location)) == (NESTED, "sources/m.malloy:13:9")


@pytest.mark.proves("V26")
def test_other_queries_of_the_file_compile(make_project: Callable[..., Path]) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    root = make_project({"raw.sql": RAW, "m.malloy": MODEL})
    loaded = load(load_settings(root, environ={}))
    assert not loaded.project.errors
    assert "GROUP BY" in loaded.query("sources/m.malloy", name="works").text
    assert "GROUP BY" in loaded.query("sources/m.malloy", text="run: t -> plain").text
    places = {"fails": "sources/m.malloy:11:8", "run: t -> top": "query:1:1"}
    for query, place in places.items():
        name, text = (None, query) if ":" in query else (query, None)
        with pytest.raises(SourcesError) as caught:
            loaded.query("sources/m.malloy", name=name, text=text)
        (problem,) = caught.value.problems
        assert (problem.message, str(problem.location)) == (NESTED, place)
