"""Importing SQLMesh's models by time range: only conditions on the time column are dropped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml
from importing import carried, reasons_of

from persist_assets.operations.importing.sqlmesh import import_sqlmesh
from persist_assets.operations.importing.sqlmesh_ranges import of_all_time
from persist_assets.operations.importing.translation import UntranslatableError

if TYPE_CHECKING:
    from pathlib import Path

RANGE = "BETWEEN @start_date AND @end_date"
SINCE = ">= CAST('2024-01-02' AS DATE)"


def ranged(query: str, dialect: str = "duckdb") -> str:
    """Return a query for all time since 2024-01-02."""
    return of_all_time(query, dialect, "d", "2024-01-02").sql


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT d FROM ev WHERE (d RANGE AND (id > 0))",
        "SELECT * FROM ev WHERE D RANGE -- all",
        "SELECT e.* FROM ev AS e JOIN o ON o.id = e.id WHERE e.d RANGE",
        "SELECT ts::DATE AS d FROM ev AS e WHERE e.ts RANGE GROUP BY ts::DATE",
        "SELECT coalesce(t, u) AS d FROM ev WHERE coalesce(t, u) RANGE",
        "WITH e AS (SELECT * FROM ev WHERE d RANGE) SELECT d, count(*) AS n FROM e GROUP BY d",
        "SELECT q.t AS d FROM (SELECT t FROM ev WHERE t RANGE) AS q LEFT JOIN o ON o.id = q.id",
        "SELECT d FROM a WHERE d RANGE UNION ALL (SELECT t FROM b WHERE b.t RANGE)",
    ],
)
@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "snowflake", "bigquery"])
def test_conditions_on_the_time_column_become_its_start(query: str, dialect: str) -> None:
    assert ranged(query.replace("RANGE", RANGE), dialect) == query.replace("RANGE", SINCE)


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT d FROM a WHERE d RANGE UNION ALL SELECT d FROM b",  # b has rows of all times
        "SELECT d, id FROM ev WHERE d RANGE GROUP BY ROLLUP (d, id)",  # the totals have no time
        "SELECT TRY_CAST(t AS DATE) AS d FROM ev WHERE t RANGE",  # a text may be no time
    ],
)
def test_a_query_that_has_other_rows_of_the_range_is_limited_to_it(query: str) -> None:
    limited = query.replace("RANGE", SINCE)
    wrapped = f"SELECT * FROM (\n{limited}\n) AS q WHERE d >= '2024-01-02'"
    assert ranged(query.replace("RANGE", RANGE)) == wrapped


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT a.d FROM a LEFT JOIN b ON b.id = a.id AND b.d RANGE",
        "SELECT d FROM ev WHERE id = 1 OR d RANGE",
        "SELECT d FROM ev WHERE d NOT RANGE",
        "SELECT a.d, (SELECT sum(x) FROM b WHERE b.d RANGE) AS x FROM a WHERE a.d RANGE",
        "SELECT a.d, (SELECT count(*) FROM b WHERE b.d <= @end_date) AS n FROM a WHERE a.d RANGE",
        "SELECT d FROM a WHERE d RANGE AND id NOT IN (SELECT id FROM b WHERE d < @start_date)",
        "SELECT a.d FROM a JOIN b ON b.id = a.id WHERE b.d RANGE",
        "SELECT a.d FROM a FULL JOIN b USING (d) WHERE d RANGE",
        "SELECT t AS d FROM ev WHERE d RANGE",
        "SELECT max(d) AS d FROM ev WHERE d RANGE",
        "SELECT * EXCLUDE (d), t AS d FROM ev WHERE d RANGE",
        "SELECT * REPLACE (t AS d) FROM ev WHERE d RANGE",
        "SELECT d FROM ev WHERE id >= @start_ds",
        "SELECT CAST(d AS TIME) AS d FROM ev WHERE d RANGE",
        "SELECT d FROM ev WHERE d >= @start_date - 1",
        "SELECT d FROM ev WHERE d BETWEEN @start_ds AND @end_date",
        "SELECT d FROM ev WHERE d BETWEEN @end_ds AND @start_ds",
        "SELECT d FROM ev WHERE d > @start_ds",
        "WITH e AS (SELECT * FROM b WHERE d RANGE) SELECT a.d FROM a LEFT JOIN e ON e.id = a.id",
        "WITH e AS (SELECT * FROM b WHERE d RANGE) SELECT e.d FROM a LEFT JOIN e ON e.id = a.id",
        "WITH e AS (SELECT * FROM a WHERE d RANGE) SELECT e.d, (SELECT max(d) FROM e) AS m FROM e",
        "WITH e (d, t) AS (SELECT t, d FROM a WHERE d RANGE) SELECT d FROM e",
        "WITH e AS (SELECT d FROM a WHERE d RANGE) SELECT e.d FROM e RIGHT JOIN b ON b.d = e.d",
        "SELECT * FROM a WHERE d RANGE UNION ALL SELECT * FROM b WHERE d RANGE",
        "SELECT @end_date AS d",
        "SELECT d FROM ev WHERE d RANGE AND @more",
    ],
)
def test_macros_of_a_range_elsewhere_cannot_be_converted(query: str) -> None:
    with pytest.raises(UntranslatableError, match="known only to SQLMesh"):
        ranged(query.replace("RANGE", RANGE))


# ------------------------------------------------------------------------------------ projects


def project(tmp_path: Path, query: str, tests: str = "", start: str = "2024-01-02") -> Path:
    """Write a project with a model by time range, `x.a`."""
    files = {
        "config.yaml": "model_defaults: {dialect: duckdb}\n",
        "external_models.yaml": (
            "- {name: raw.ev, columns: {id: INT, d: DATE}}\n"
            "- {name: raw.pay, columns: {id: INT, d: DATE}}\n"
        ),
        "models/a.sql": (
            "MODEL (name x.a, kind INCREMENTAL_BY_TIME_RANGE (time_column d),"
            f" start '{start}');\n{query.replace('RANGE', RANGE)};\n"
        ),
        "models/b.sql": "MODEL (name x.b, kind FULL);\nSELECT id FROM raw.pay;\n",
        "tests/test_a.yaml": tests,
    }
    for path, text in files.items():
        (tmp_path / "mesh" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mesh" / path).write_text(text)
    return tmp_path / "mesh"


@pytest.mark.proves("W9")
def test_a_model_with_a_range_elsewhere_is_listed_with_its_place(tmp_path: Path) -> None:
    query = "SELECT e.d, p.id FROM raw.ev e LEFT JOIN raw.pay p ON p.id = e.id AND p.d RANGE"
    imported, _ = carried(import_sqlmesh(project(tmp_path, query)), tmp_path / "new")
    (entry,) = imported.not_carried
    assert (entry.origin.name, entry.origin.path, entry.origin.line) == ("x.a", "models/a.sql", 1)
    assert "`@start_date` is known only to SQLMesh" in entry.reason
    assert "not in a condition on the time column `d`" in entry.reason


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("select", "is_noted"),
    [
        ("id, lag(id) OVER (PARTITION BY id ORDER BY d) AS before", True),
        ("id, lag(id) OVER (PARTITION BY d ORDER BY id) AS before", False),
        ("DISTINCT ON (id) id", True),
        ("id", False),
    ],
)
def test_windows_over_several_ranges_have_a_note(
    tmp_path: Path, select: str, is_noted: bool
) -> None:
    query = f"SELECT {select}, d FROM raw.ev WHERE d RANGE"
    imported, _ = carried(import_sqlmesh(project(tmp_path, query)), tmp_path / "new")
    (entry,) = (c for c in imported.carried if c.origin.name == "x.a")
    assert any("over rows of all times" in note for note in entry.notes) is is_noted


ROWS = "SELECT id, d FROM raw.ev WHERE d RANGE"
JANUARY = "{start: 2024-01-02, end: 2024-01-31}"


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("query", "times", "days", "is_carried"),
    [
        (ROWS, JANUARY, ["2024-01-02", "2024-01-31"], True),
        (ROWS, JANUARY, ["2024-01-01", "2024-01-05", ""], True),  # neither has the first row
        (ROWS, JANUARY, ["2024-01-05", "2024-03-05"], False),  # the range ends before
        (ROWS, "{start: 2024-01-05, end: 2024-01-31}", ["2024-01-04"], False),
        (ROWS, "{start: 2024-01-01, end: 2024-01-31}", ["2024-01-01"], False),
        (ROWS, "{start: 1 week ago, end: 2024-01-31}", ["2024-01-05"], False),
        (ROWS, JANUARY, ["soon"], False),
        (ROWS, "{execution_time: 2024-01-31}", ["2024-01-05"], False),  # SQLMesh has only 1970
        (ROWS, JANUARY, ["2024-01-31 10:00:00"], False),
        (ROWS.replace("RANGE", "BETWEEN @start_ts AND @end_ts"), JANUARY,
         ["2024-01-31 10:00:00"], True),
        (ROWS.replace("RANGE", ">= @start_date AND d < @end_date"), JANUARY, ["2024-01-31"], False),
        (ROWS.replace("RANGE", ">= @start_date"), JANUARY, ["2024-03-01"], True),
        (ROWS.replace("RANGE", "<= @end_date"), JANUARY, ["2024-01-01"], False),
        (f"WITH e AS (SELECT id, d + 1 AS d FROM raw.ev) {ROWS}".replace("FROM raw.ev WHERE",
         "FROM e WHERE"), JANUARY, ["2024-01-05"], False),  # the time is computed
        ("SELECT id, d FROM raw.ev", "{end: 2024-01-03}", ["2024-01-02", "2024-03-01"], True),
        ("SELECT id, d FROM raw.ev", JANUARY, ["2024-01-01"], False),
        # Only the first part is limited by its author, so a condition around the query limits both.
        (f"{ROWS} UNION ALL SELECT id, d FROM raw.x", JANUARY, ["2024-01-01"], False),
    ],
)  # fmt: skip
def test_a_test_whose_range_may_leave_out_other_rows_is_listed(
    tmp_path: Path, query: str, times: str, days: list[str], is_carried: bool
) -> None:
    rows = [{"id": n, "d": day or None} for n, day in enumerate(days)]
    body = {"model": "x.a", "inputs": {"raw.ev": rows}, "outputs": {"query": rows}}
    tests = f"test_it: {{{yaml.dump(body, default_flow_style=True, width=999).strip()[1:-1]}"
    root = project(tmp_path, query, f"{tests}, vars: {times}}}\n")
    imported, _ = carried(import_sqlmesh(root), tmp_path / "new")
    assert (
        ("unit test", "test_it") in {(c.origin.kind, c.origin.name) for c in imported.carried}
    ) is (is_carried)
    if not is_carried:
        (entry,) = imported.not_carried
        assert re.search("may not select the rows|may expect rows before", entry.reason)
        assert (entry.origin.path, entry.origin.line) == ("tests/test_a.yaml", 1)


@pytest.mark.proves("W9")
def test_the_range_of_a_test_of_another_kind_of_model_does_not_matter(tmp_path: Path) -> None:
    tests = """\
test_b:
  model: x.b
  inputs: {raw.pay: [{id: 1, d: 2024-03-01}]}
  outputs: {query: [{id: 1}]}
  vars: {start: 2024-01-01, end: 2024-01-31, region: eu}
"""
    root = project(tmp_path, ROWS, tests)
    imported, _ = carried(import_sqlmesh(root), tmp_path / "new")
    assert reasons_of(imported) == {}
