"""The contract of engines: the Spark engine, and the DuckDB engine of tests without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import DuckDBEngine

from persist_assets.core.errors import BuildError, GoneError, PersistError
from persist_assets.core.model.checks import Check
from persist_assets.core.model.columns import Column
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.planning.render import Statement
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_tables import find_table
from persist_assets.storage.raw import Pin

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.engine.protocol import Engine

ROWS = """
SELECT * FROM VALUES
    (1, 'a', DATE '2024-01-01', TIMESTAMP '2024-01-01 12:00:00.5Z', 1.50BD, 0.5D, true),
    (2, 'b', DATE '2024-01-03', TIMESTAMP '2024-01-02 00:00:00Z', -2.25BD, 1.5D, false),
    (3, 'b', DATE '2024-01-02', NULL, 0.00BD, -1D, NULL)
AS t(n, text, day, at, price, x, yes)
"""
TYPES = "int string date timestamp decimal(3,2) double boolean".split()


@pytest.fixture(params=["spark", "duckdb"])
def engine(request: pytest.FixtureRequest, make_project: Callable[..., Path]) -> Engine:
    settings = load_settings(make_project({}))
    if request.param == "duckdb":
        return DuckDBEngine(settings)
    spark = request.getfixturevalue("spark")
    return SparkEngine(settings, lambda: spark)


def run(engine: Engine, sql: str, *columns: Column) -> Any:
    return engine.run(Statement(sql, {}, ()), columns)


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def content(engine: Engine, sql: str) -> str:
    return engine.measure(run(engine, sql), (), None, "m").content


def results(check_results: tuple[CheckResult, ...]) -> dict[str, tuple[bool, int]]:
    return {r.name: (r.passed, r.failed_rows) for r in check_results}


def test_columns_have_spark_types(engine: Engine) -> None:
    frame = run(engine, ROWS)
    names = "n text day at price x yes".split()
    assert engine.columns(frame, "m") == tuple(map(Column, names, TYPES))
    sums = run(
        engine,
        "SELECT sum(a) AS s, count(*) AS n, a / 2 AS h FROM VALUES (1), (2) AS t(a) GROUP BY a",
    )
    assert [c.type for c in engine.columns(sums, "m")] == ["bigint", "bigint", "double"]


def test_result_columns_have_the_expected_names(engine: Engine) -> None:
    frame = run(engine, "SELECT A, b FROM VALUES (1, 2) AS t(a, b)", Column("A"), Column("b"))
    assert frame.columns == ["A", "b"]
    assert rows(frame) == [(1, 2)]


@pytest.mark.parametrize("sql", ["SELECT nothing FROM VALUES (1) AS t(a)", "SELECT 1 FROM nothing"])
def test_a_query_with_unknown_names_is_an_error(engine: Engine, sql: str) -> None:
    with pytest.raises(BuildError):
        engine.columns(run(engine, sql), "m")


@pytest.mark.parametrize("sql", ["1 / (a - 1)", "a % (a - 1)", "CAST('x' || a AS INT)"])
def test_a_query_that_fails_during_computation_is_a_build_error(engine: Engine, sql: str) -> None:
    frame = run(engine, f"SELECT {sql} AS a FROM VALUES (1) AS t(a)")
    with pytest.raises(BuildError, match="computing `m` failed"):
        engine.write(frame, "m", "uid", (), None, "m")
    root = engine.settings.table_root("m")
    assert find_table(root) is None
    assert not [path for path in Path(root).rglob("*") if path.is_file()]


def test_views_are_created_once_and_read_by_statements(engine: Engine) -> None:
    made: list[int] = []

    def load(n: int) -> Any:
        made.append(n)
        return run(engine, f"SELECT {n} AS a")

    for n in (1, 2):
        assert engine.view("m/v@files:x-1", lambda n=n: load(n)) == "m/v@files:x-1"
    read = "SELECT a + 1 AS a FROM `m/v@files:x-1`"
    assert rows(run(engine, read)) == [(2,)]
    assert made == [1]
    engine.forget()
    engine.view("m/v@files:x-1", lambda: load(3))
    assert rows(run(engine, read)) == [(4,)]
    engine.forget()


def test_a_query_can_read_a_frame(engine: Engine) -> None:
    frame = run(engine, "SELECT * FROM VALUES (1), (2), (3) AS t(a)")
    over = engine.over(frame, lambda name: f"SELECT max(a) AS a FROM `{name}` WHERE a < 3")
    assert rows(over) == [(2,)]
    assert len(engine.collect(frame, 2)) == 2


def test_written_rows_can_be_committed_and_read_back(engine: Engine) -> None:
    frame = run(engine, ROWS)
    staged, measured = engine.write(frame, "tables/m", "uid", (), "at", "m")
    assert (measured.rows, measured.watermark, measured.timeless) == (3, "2024-01-02T00:00:00Z", 1)
    assert staged.rows == 3
    assert [c.type for c in staged.columns] == TYPES
    assert staged.greatest("n") == (3, 0)
    assert staged.greatest("day") == ("2024-01-03", 0)
    assert sum(json.loads(f.statistics)["nullCount"]["at"] for f in staged.files) == 1
    version = commit(staged, build_id="0" * 64, pinned=None)
    table = engine.load_table(engine.settings.table_root("tables/m"), version)
    assert [c.type for c in engine.columns(table, "m")] == TYPES
    assert rows(table) == rows(frame)
    assert engine.measure(table, (), None, "m").content == measured.content


@pytest.mark.parametrize(
    ("column", "last"),
    [
        ("n", "3"),
        ("day", "2024-01-03"),
        ("at", "2024-01-02T00:00:00Z"),
        ("text", "b"),
        ("price", "1.50"),
    ],
)
def test_greatest_values_have_the_format_of_the_ledger(
    engine: Engine, column: str, last: str
) -> None:
    frame = run(engine, ROWS)
    assert engine.greatest(frame, column, "m") == last
    assert engine.measure(frame, (), column, "m").watermark == last
    assert engine.write(frame, "m", "uid", (), column, "m")[1].watermark == last
    assert engine.greatest(run(engine, f"{ROWS} WHERE n > 3"), column, "m") is None


def test_an_unknown_time_column_is_an_error(engine: Engine) -> None:
    with pytest.raises(BuildError, match="the watermark column `nothing` does not exist"):
        engine.write(run(engine, ROWS), "m", "uid", (), "nothing", "m")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("VALUES (1, 2), (3, 4)", "VALUES (3, 4), (1, 2)", True),
        ("VALUES (1, int(NULL))", "VALUES (int(NULL), 1)", False),
        ("VALUES (1, 1), (1, 1)", "VALUES (2, 2), (2, 2)", False),
        ("VALUES (1, 1), (1, 1)", "VALUES (1, 1)", False),
        ("VALUES ('ab', 'c')", "VALUES ('a', 'bc')", False),
        ("VALUES (0.0D, 1)", "VALUES (-0.0D, 1)", False),
    ],
)
def test_content_digests_distinguish_different_rows(
    engine: Engine, one: str, other: str, same: bool
) -> None:
    contents = [content(engine, f"SELECT * FROM {text} AS t(a, b)") for text in (one, other)]
    assert (contents[0] == contents[1]) is same


def test_rows_are_computed_once_for_writing_and_measuring(engine: Engine) -> None:
    frame = run(engine, "SELECT rand() AS a FROM range(100)")
    check = Check("expr", "same", expression="a >= 0 AND a < 1")
    staged, measured = engine.write(frame, "m", "uid", [check], None, "m")
    files = tuple(f"{staged.root}/{f.path}" for f in staged.files)
    written = engine.read_files("parquet", Pin(None, files), staged.columns, {})
    assert engine.measure(written, (), None, "m").content == measured.content


SINCE = datetime(2024, 1, 2, 12, tzinfo=UTC)
CHECKS = {
    Check("not_null", "null", ("at",)): (False, 1),
    Check("accepted_values", "accepted", ("text",), values=("a", "c")): (False, 2),
    Check("range", "range", ("n",), least=2, most=3): (False, 1),
    Check("expr", "expr", expression="yes AND n < 9"): (False, 1),
    Check("unique", "unique", ("text",)): (False, 2),
    Check("unique", "key", ("n", "text")): (True, 0),
    Check("unique", "nulls", ("at",)): (True, 0),
    Check("row_count", "few", least=1, most=2): (False, 0),
    Check("freshness", "old", ("at",), since=SINCE): (False, 0),
    Check("freshness", "young", ("day",), since=SINCE): (True, 0),
    Check("columns", "columns", ("n",), values=("int",), others=True): (True, 0),
    Check("columns", "contract", ("n",), values=("string",), others=True): (False, 0),
}


def test_checks_have_the_same_results_in_write_measure_and_audit(engine: Engine) -> None:
    frame, checks = run(engine, ROWS), [*CHECKS]
    expected = {check.name: result for check, result in CHECKS.items()}
    answers = [
        engine.write(frame, "m", "uid", checks, None, "m")[1].checks,
        engine.measure(frame, checks, None, "m").checks,
        engine.audit(frame, checks, "m"),
    ]
    found = {r.name: r for r in answers[2]}
    assert [results(some) for some in answers] == [expected] * 3
    assert (found["few"].found, found["old"].found) == ("3 rows", "2024-01-02 00:00:00+00:00")
    assert found["old"].basis == "1704153600000000"


def test_an_empty_result_passes_row_checks(engine: Engine) -> None:
    frame = run(engine, f"{ROWS} WHERE n > 3")
    checks = [c for c in CHECKS if c.on_rows or c.kind == "unique"]
    measured = engine.write(frame, "m", "uid", checks, "at", "m")[1]
    assert (measured.rows, measured.watermark, measured.timeless) == (0, None, 0)
    assert all(r.passed for r in measured.checks)


@pytest.mark.parametrize("name", ["null", "accepted", "range", "expr", "unique"])
def test_failing_rows_of_a_check_are_returned(engine: Engine, name: str) -> None:
    (check,) = (c for c in CHECKS if c.name == name)
    frame = run(engine, ROWS)
    bad = engine.failing(frame, check)
    assert bad is not None
    shown = {"null": [3], "accepted": [2, 3], "range": [1], "expr": [2], "unique": [2, 3]}[name]
    found = [json.loads(row) for row in engine.sample(bad, ["n", "text", "at"], 5)]
    assert sorted(row["n"] for row in found) == shown
    assert all(list(row) == ["n", "text", "at"] for row in found)
    assert len(engine.sample(bad, ["n"], 1)) == 1
    assert engine.failing(frame, replace(check, kind="row_count")) is None


def test_unmatched_returns_values_missing_from_another_table(engine: Engine) -> None:
    others = run(engine, "SELECT * FROM VALUES (1, 'a'), (1, 'c') AS t(`the n`, text)")
    assert [r.n for r in engine.unmatched(run(engine, ROWS), "n", others, "the n").collect()] == [
        2,
        3,
    ]
    assert engine.unmatched(run(engine, ROWS), "at", run(engine, ROWS), "at").count() == 0


def test_files_are_read_with_the_declared_columns(engine: Engine, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a [1].parquet", "b*.parquet")]
    pq.write_table(pa.table({"B": [1, 2], "a": ["x", None]}), files[0])
    pq.write_table(pa.table({"b": [3]}), files[1])
    columns = (Column("a", "string"), Column("b", "bigint"))
    frame = engine.read_files("parquet", Pin(None, tuple(files)), columns, {})
    assert [c.type for c in engine.columns(frame, "m")] == ["string", "bigint"]
    assert rows(frame) == [("x", 1), (None, 2), (None, 3)]
    none = engine.read_files("parquet", Pin(None, ()), columns, {})
    assert (none.columns, rows(none)) == (["a", "b"], [])


def test_files_with_a_different_row_count_than_in_the_log_are_rejected(
    engine: Engine, tmp_path: Path
) -> None:
    file = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [1, 2]}), file)
    engine.check_rows("t", Pin(None, (file,), rows={file: 2}))
    engine.forget()
    with pytest.raises(PersistError, match="`t`"):
        engine.check_rows("t", Pin(None, (file,), rows={file: 3}))


def test_missing_files_are_an_error(engine: Engine, tmp_path: Path) -> None:
    pin = Pin(None, (str(tmp_path / "gone.parquet"),))
    with pytest.raises(GoneError):
        engine.view("gone", lambda: engine.read_files("parquet", pin, (Column("a", "bigint"),), {}))


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.session,
        lambda engine: engine.undivided(),
        lambda engine: run(engine, ROWS).toDF(),
        lambda engine: engine.write(run(engine, ROWS), "m", "u", (), None, "m", bounds=["n > 1"]),
        lambda engine: engine.columns(run(engine, "SELECT array(1) AS a"), "m"),
    ],
)
def test_using_spark_features_without_spark_fails_the_test(
    make_project: Callable[..., Path], ask: Callable[[Any], Any]
) -> None:
    engine = DuckDBEngine(load_settings(make_project({})))
    with pytest.raises(pytest.fail.Exception, match="this is a test for Spark"):
        ask(engine)
