"""A defect of persist in compiling one source is an error of that source only."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import compiled
from sqlglot import exp

from persist_assets.analysis import expressions
from persist_assets.compiler.load import load_project
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.core.settings.load import load_settings

TABLE = "CREATE TABLE t (s STRING, k INT) USING parquet LOCATION 't';\n"


@pytest.mark.proves("S25")
@pytest.mark.parametrize(
    "call", ["stack()", "map(s)", "and(DISTINCT s)", "explode()", "range()", "json_tuple()"]
)
@pytest.mark.parametrize("query", ["SELECT {} FROM t", "SELECT s FROM t WHERE {} IS NULL"])
def test_a_malformed_call_does_not_affect_other_sources(call: str, query: str) -> None:
    files = {"t.sql": TABLE, "a.sql": f"CREATE VIEW a AS {query.format(call)};\nCREATE VIEW b AS SELECT s FROM t"}  # fmt: skip
    made = compiled(files)
    assert all(p.location.path == "sources/a.sql" for p in made.errors)
    assert made.by_id["b@sources/a.sql"].columns


@pytest.mark.proves("S25")
def test_a_failing_analysis_is_an_error_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    monkeypatch.setitem(expressions.EXPRESSIONS, exp.Case, fail)  # pyright: ignore[reportArgumentType]
    made = compiled(
        {
            "t.sql": TABLE,
            "a.sql": "CREATE VIEW fine AS SELECT s FROM t;\n"
            "CREATE VIEW bad AS SELECT CASE WHEN k = 1 THEN s END AS x FROM t;\n"
            "CREATE VIEW above AS SELECT x FROM bad",
        }
    )
    (error,) = made.errors
    assert str(error).startswith(
        "sources/a.sql:2:13: error: persist failed on `bad`: ZeroDivisionError: a defect"
    )
    assert [s.name for s in made.sources] == ["t", "fine"]


@pytest.mark.proves("S25")
def test_a_failing_frontend_is_an_error_of_its_file(
    make_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a defect")

    root = make_project({"t.sql": TABLE, "fine.sql": "CREATE VIEW fine AS SELECT s FROM t", "bad.py": "x"})  # fmt: skip
    settings = load_settings(root)
    monkeypatch.setitem(FRONTENDS, ".py", fail)  # pyright: ignore[reportArgumentType]
    for _ in range(2):  # the failure is not cached
        project = load_project(settings)
        (error,) = project.errors
        assert str(error).startswith("sources/bad.py:1:1: error: persist failed on this file")
        assert {s.name for s in project.sources} == {"t", "fine"}
