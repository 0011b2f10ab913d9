"""Queries that `check` rejects because Spark certainly would, and those that it leaves to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings
from tests.support.certain import ACCEPTED, REFUSED, TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.errors import Problem


def problems(root: Path, query: str, toml: str = "") -> tuple[Problem, ...]:
    (root / "sources").mkdir(exist_ok=True)
    (root / "persist.toml").write_text(toml)
    (root / "sources" / "a.sql").write_text(TABLES + query)
    return load_project(load_settings(root)).problems


@pytest.mark.proves("W6")
@pytest.mark.parametrize(("query", "code", "column", "message", "hint"), REFUSED)
def test_queries_that_spark_certainly_rejects_are_errors_with_a_hint(
    tmp_path: Path, query: str, code: str, column: int, message: str, hint: str
) -> None:
    first, *_ = problems(tmp_path, query)
    line = 1 + TABLES.count("\n")
    assert (first.severity, first.code) == ("error", code)
    assert (first.location.line, first.location.column) == (line, column)
    assert message in first.message
    assert hint in (first.hint or "")


@pytest.mark.proves("W6")
@pytest.mark.parametrize("query", ACCEPTED)
def test_queries_that_spark_may_accept_are_not_errors(tmp_path: Path, query: str) -> None:
    assert problems(tmp_path, query) == ()


@pytest.mark.proves("W6")
@pytest.mark.parametrize(
    ("call", "right", "where"),
    [
        ("date_trunc(ts, 'month')", "date_trunc('month', ts)", "first"),
        ('date_trunc(d, "YEAR")', 'date_trunc("YEAR", d)', "first"),
        ("trunc('month', d)", "trunc(d, 'month')", "last"),
    ],
)
def test_swapped_unit_arguments_are_a_warning(
    tmp_path: Path, call: str, right: str, where: str
) -> None:
    (warning,) = problems(tmp_path, f"SELECT {call} AS x FROM t")
    name = call.partition("(")[0]
    assert (warning.severity, warning.hint) == ("warning", right)
    assert warning.message == f"`{name}` takes the unit {where}: this is always NULL"


@pytest.mark.proves("W6")
@pytest.mark.parametrize("toml", ['functions = ["sum"]', '[spark]\n"spark.jars" = "udfs.jar"'])
def test_session_functions_are_allowed_anywhere(tmp_path: Path, toml: str) -> None:
    query = "SELECT a FROM t WHERE sum(a) > 1"
    assert problems(tmp_path, query, toml) == ()
    assert problems(tmp_path, query) != ()


def test_a_plus_sign_makes_a_group_by_position_a_constant(tmp_path: Path) -> None:
    queries = (f"SELECT a, count(*) n FROM t GROUP BY {key}" for key in ("1", "+1"))
    found: list[str | None] = []
    for query in queries:
        assert problems(tmp_path, query.replace("a, count", "1 AS a, count")) == ()
        found.append(load_project(load_settings(tmp_path)).by_id["v@sources/a.sql"].build_id)
    assert found[0] != found[1]
