"""Users' tests of sources: their YAML, the comparison of rows, and changes of queries."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.cli.application import Invocation
from persist_assets.cli.testing import cases_of
from persist_assets.core.errors import SourcesError
from persist_assets.operations.cases import Case, Number, Rows, read_cases
from persist_assets.operations.testing import at_clock, minus, up_to_cte

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def cases(root: Path, text: str, name: str = "t.yml") -> list[Case]:
    (root / "tests").mkdir(exist_ok=True)
    (root / "tests" / name).write_text(text)
    return read_cases(root)


@pytest.mark.proves("W5")
def test_tests_are_read_with_their_locations(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,\n")
    text = """
# a comment
first:
  source: s
  clock: 2024-01-31 10:00:00
  inputs:
    t: [{a: 1, day: 2024-01-31}]
    u: rows.csv
    v: "VALUES (1) AS t(a);"
    w: []
  expect: [{n: 1}]
  ctes: {c: [{a: 1}]}
second: {source: d/s, expect: []}
"""
    first, second = cases(tmp_path, text)
    assert (first.name, str(first.location)) == ("first", "tests/t.yml:3:1")
    assert first.clock == datetime(2024, 1, 31, 10)
    assert first.inputs == {
        "t": Rows(({"a": 1, "day": "2024-01-31"},)),
        "u": Rows(({"a": "1", "b": None},)),
        "v": Rows(sql="VALUES (1) AS t(a)"),
        "w": Rows(),
    }
    assert (first.expect, first.ctes) == (Rows(({"n": 1},)), {"c": Rows(({"a": 1},))})
    assert (second.source, second.expect, second.inputs) == ("d/s", Rows(), {})


@pytest.mark.proves("W5")
@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: {source: s, expects: []}", "1:1", "unknown key `expects`"),
        ("\na: {expect: []}", "2:1", "it names no source"),
        ("a: {source: s}", "1:1", "it has neither `expect` nor `ctes`"),
        ("a: {source: s, expect: {n: 1}}", "1:1", "`expect` is not a list of rows"),
        ("a: {source: s, inputs: {t: [1]}, expect: []}", "1:1", "`inputs.t` is not a list of rows"),
        ("a: {source: s, inputs: [t], expect: []}", "1:1", "`inputs` must be a mapping"),
        ("a: {source: s, inputs: {t: no.csv}, expect: []}", "1:1", "there is no file no.csv"),
        ("a: {source: s, clock: noon, expect: []}", "1:1", "`clock` is not a time"),
        ("a: 1", "1:1", "a test must be a mapping"),
        ("- a", "1:1", "expected tests by name"),
        ("a: {source: s\nb: [", "2:2", "invalid YAML"),
        ("a: {source: s, expect: []}\na: {source: s, expect: []}", "2:1", "is also in"),
    ],
)
def test_an_invalid_test_is_an_error_with_its_location(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    with pytest.raises(SourcesError) as caught:
        cases(tmp_path, text)
    (problem,) = caught.value.problems
    assert (str(problem.location), problem.code) == (f"tests/t.yml:{place}", "test")
    assert message in problem.message


@pytest.mark.proves("W5")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.yml", b"a: {source: \xe9}", "it cannot be read: 'utf-8' codec"),
        ("t.yml", b"a: {source: a\x01}", "it cannot be read: unacceptable character #x0001"),
        ("rows.csv", b"a,b\n1,2,3\n", "a row of tests/rows.csv has more values than the header"),
        ("rows.csv", b"a\n\xe9\n", "tests/rows.csv cannot be read: 'utf-8' codec"),
    ],
)
def test_unreadable_files_are_errors_with_a_location(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "tests").mkdir()
    text = "a: {source: s, inputs: {t: tests/rows.csv}, expect: []}"
    (tmp_path / "tests" / "t.yml").write_text(text)
    (tmp_path / "tests" / name).write_bytes(content)
    with pytest.raises(SourcesError) as caught:
        read_cases(tmp_path)
    (problem,) = caught.value.problems
    assert (message in problem.message, problem.location.path) == (True, "tests/t.yml")


@pytest.mark.proves("W5")
def test_column_names_are_always_strings(tmp_path: Path) -> None:
    (case,) = cases(tmp_path, "a: {source: s, expect: [{1: 2, null: 3}]}")
    assert case.expect == Rows(({"1": 2, "None": 3},))


@pytest.mark.proves("W5")
def test_only_unambiguous_yaml_scalars_are_converted(tmp_path: Path) -> None:
    written = "[010, 12:30, 1_000, NO, yes, 2024-01-31, ~, '', 'null', true, -7, 1.10, 1e3, 0x1f]"
    (case,) = cases(tmp_path, f"a: {{source: s, expect: [{{v: {written}}}]}}")
    assert case.expect is not None
    values = case.expect.values[0]["v"]
    assert values == [
        *("010", "12:30", "1_000", "NO", "yes", "2024-01-31", None, "", "null"),
        *(True, -7, 1.1, 1000.0, "0x1f"),
    ]
    assert [v.text for v in values if isinstance(v, Number)] == ["1.10", "1e3"]


TWICE = datetime(2024, 10, 27, 2, 30)
"""An hour that Berlin had twice."""


def test_a_project_without_tests_has_none(tmp_path: Path) -> None:
    assert read_cases(tmp_path) == []
    assert cases(tmp_path, "") == []


@pytest.mark.parametrize(
    ("rows", "others", "rest"),
    [
        ([(1,), (1,), (2,)], [(1,)], [(1,), (2,)]),
        ([(0.1 + 0.2,)], [(0.3,)], []),
        ([(float("nan"),)], [(float("nan"),)], []),
        ([(1.0001,)], [(1.0,)], [(1.0001,)]),
        ([(0.0, {"a": -0.0})], [(-0.0, {"a": 0.0})], []),
        ([(Decimal("1.50"),)], [(Decimal("1.5"),)], []),
        ([(Decimal(10**38 - 1),)], [(Decimal(10**38 - 2),)], [(Decimal(10**38 - 1),)]),
        ([(TWICE,)], [(TWICE.replace(fold=1),)], [(TWICE,)]),
        ([([1, {"k": (2,)}], bytearray(b"x"))], [([1, {"k": (2,)}], b"x")], []),
        ([(None,)], [(0,)], [(None,)]),
    ],
)
def test_rows_are_compared_with_their_number_of_occurrences(
    rows: list[Any], others: list[Any], rest: list[Any]
) -> None:
    assert minus(rows, others) == rest


@pytest.mark.parametrize(
    ("sql", "changed"),
    [
        ("SELECT current_date", "SELECT DATE '2024-01-31'"),
        ("SELECT CURRENT_DATE() - 1", "SELECT DATE '2024-01-31' - 1"),
        ("SELECT now( ), a.now", "SELECT TIMESTAMP '2024-01-31 10:00:00', a.now"),
        ("SELECT 'now()' -- now()", "SELECT 'now()' -- now()"),
        ("SELECT 1 AS current_date", "SELECT 1 AS current_date"),
        ("SELECT localtimestamp", "SELECT TIMESTAMP_NTZ '2024-01-31 10:00:00'"),
        (
            "SELECT unix_timestamp(), unix_timestamp(t)",
            "SELECT unix_timestamp(TIMESTAMP '2024-01-31 10:00:00'), unix_timestamp(t)",
        ),
        ("SELECT `now`() FROM `current_date`", "SELECT `now`() FROM `current_date`"),
    ],
)
def test_clock_functions_are_replaced_by_a_fixed_time(sql: str, changed: str) -> None:
    assert at_clock(sql, datetime(2024, 1, 31, 10)) == changed


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("WITH a AS (SELECT 1), b(x) AS (SELECT (2)) SELECT * FROM b", "a", "SELECT * FROM b"),
        ("WITH a AS (SELECT 1), b(x) AS (SELECT (2)) SELECT * FROM b", "B", "SELECT * FROM b"),
        ("with a as (select 1) (select 2)", "a", "(select 2)"),
        ("WITH a AS (WITH c AS (SELECT 1) SELECT * FROM c) SELECT 2", "c", None),
        ("SELECT 1", "a", None),
        ("WITH RECURSIVE a AS (SELECT 1) SELECT * FROM a", "a", "SELECT * FROM a"),
        ("WITH recursive AS (SELECT 1) SELECT 2", "recursive", "SELECT 2"),
    ],
)
def test_a_query_is_cut_after_its_ctes(text: str, name: str, rest: str | None) -> None:
    cut = up_to_cte(text, name)
    assert (None if cut is None else text[cut:]) == rest


@pytest.mark.proves("W5")
@pytest.mark.parametrize(
    ("patterns", "exclude", "expected"),
    [
        ([], [], "of_p of_v"),
        (["tag:staging"], [], "of_v"),
        (["path:sources/m.sql"], ["tag:staging"], "of_p"),
        (["+p"], [], "of_p of_v"),
        (["selector:views"], [], "of_v"),
    ],
)
def test_selections_include_tests_of_views(
    make_project: Callable[..., Path], patterns: list[str], exclude: list[str], expected: str
) -> None:
    sql = "CREATE TABLE t (a INT) USING parquet LOCATION 't';\n"
    sql += "--@ tags=staging\nCREATE VIEW v AS SELECT a FROM t;\n"
    sql += "--@ persist\nCREATE VIEW p AS SELECT a FROM v;\n"
    root = make_project({"m.sql": sql}, '[selectors]\nviews = "tag:staging"\n')
    listed = cases(root, "".join(f"of_{n}: {{source: {n}, expect: []}}\n" for n in "vp"))
    invocation = Invocation(project_dir=root, exclude=exclude)
    chosen = cases_of(invocation, listed, patterns or None)
    assert sorted(case.name for case in chosen) == expected.split()
