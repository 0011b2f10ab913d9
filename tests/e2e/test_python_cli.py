"""Python sources on the command line: check, plan, build, query, show and diff."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING

import commands
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

persist = partial(commands.persist, seconds=240)
document = partial(commands.document, seconds=240)

DELAYS = '''import narwhals as nw
from persist_assets import model, table
from pyspark.sql import DataFrame

import units


@model
def late(flights: DataFrame) -> DataFrame:
    """Flights that left late."""
    return flights.filter(flights.delay > units.LATE)


@table(check={"not_null": ["carrier"]})
def late_by_carrier(late: nw.LazyFrame) -> nw.LazyFrame:
    """How late each carrier is, when it is."""
    return late.group_by("carrier").agg(nw.col("delay").mean().alias("mean_delay"))
'''


@pytest.fixture
def root(make_shared_project: Callable[..., Path]) -> Path:
    raw = (
        "CREATE TABLE flights (carrier STRING, delay DOUBLE) USING parquet LOCATION 'raw/f';\n"
        "--@ persist\nCREATE VIEW worst AS SELECT carrier FROM late_by_carrier WHERE mean_delay > 80"
    )
    made = make_shared_project({"raw.sql": raw, "delays.py": DELAYS})
    (made / "units.py").write_text("LATE = 15.0\n")
    (made / "raw" / "f").mkdir(parents=True)
    rows = pa.table({"carrier": ["AA", "AA", "UA", "UA"], "delay": [5.0, 90.0, 20.0, 40.0]})
    pq.write_table(rows, made / "raw" / "f" / "p.parquet")
    return made


def test_check_reports_the_location_of_an_error(root: Path) -> None:
    path = root / "sources" / "delays.py"
    path.write_text(DELAYS.replace("late: nw.LazyFrame", "lat: nw.DataFrame"))
    done = persist("check", cwd=root)
    assert done.returncode == 3
    assert "sources/delays.py:15:26: error" in done.stderr.replace("\n", " ")
    assert "narwhals.LazyFrame" in done.stderr


@pytest.mark.slow
def test_python_sources_are_planned_built_queried_and_shown(root: Path) -> None:
    assert [s["action"] for s in document("plan", cwd=root)["steps"]] == ["build", "build"]
    statement = document("query", "SELECT * FROM late_by_carrier", "--sql", cwd=root)
    assert [(r["source_id"], r["from"]) for r in statement["route"]] == [
        ("late_by_carrier@sources/delays.py", "inline")
    ]
    built = persist("build", cwd=root)
    assert built.returncode == 0, built.stderr
    asked = "SELECT carrier, mean_delay FROM late_by_carrier ORDER BY carrier"
    found = document("query", asked, cwd=root)
    assert found["rows"] == [["AA", 90.0], ["UA", 30.0]]
    assert found["route"][0]["from"] == "table"
    assert document("query", "SELECT count(*) AS n FROM late", cwd=root)["rows"] == [[3]]
    shown = document("show", "late_by_carrier", cwd=root)
    assert shown["definition"].startswith("@table(check=")
    assert shown["description"] == "How late each carrier is, when it is."
    assert [(c["name"], c["type"]) for c in shown["columns"]] == [
        ("carrier", "string"),
        ("mean_delay", "double"),
    ]
    assert persist("doctor", cwd=root).returncode == 0
    (root / "units.py").write_text("LATE = 30.0  # minutes\n")
    steps = {s["source_id"]: s for s in document("plan", cwd=root)["steps"]}
    reasons = steps["late_by_carrier@sources/delays.py"]["reasons"]
    assert [r["message"] for r in reasons] == ["the code of late or its inputs changed"]
    (root / "units.py").write_text("# minutes\nLATE = 15.0\n")
    assert [s["action"] for s in document("plan", cwd=root)["steps"]] == ["reuse", "reuse"]


@pytest.mark.slow
def test_show_lists_the_columns_that_a_function_selects(root: Path) -> None:
    text = """from persist_assets import table

@table
def few(flights, worst):
    return flights.select("Carrier").join(worst, "carrier")
"""
    (root / "sources" / "few.py").write_text(text)
    assert document("show", "few", cwd=root)["selects"] == ["raw/flights.carrier"]
    assert "selects" in persist("show", "few", cwd=root).stdout
    assert document("show", "late_by_carrier", cwd=root)["selects"] == []
    assert document("show", "worst", cwd=root)["selects"] == []


def test_a_diff_with_a_git_revision_includes_edits_of_helpers(root: Path) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    for arguments in (["init", "-q"], ["add", "units.py", "sources"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)
    assert document("diff", "HEAD", ".", cwd=root)["sources"] == []
    (root / "units.py").write_text("LATE = 20.0\n")
    changed = document("diff", "HEAD", ".", cwd=root)["sources"]
    assert [(c["source_id"], c["change"]) for c in changed] == [
        ("late@sources/delays.py", "changed"),
        ("late_by_carrier@sources/delays.py", "changed"),
        ("worst@sources/raw.sql", "changed"),
    ]


def test_check_and_plan_warn_of_nondeterminism_and_side_effects(root: Path) -> None:
    path = root / "sources" / "delays.py"
    code = "from pyspark.sql.functions import current_date\n\n\n@table\ndef today(flights):\n"
    writes = "    flights.write.parquet('x')\n"
    path.write_text(f"{DELAYS}\n\n{code}{writes}    return flights.limit(current_date())\n")
    for command in ("check", "plan"):
        done = persist(command, cwd=root)
        assert done.returncode == 0
        assert done.stderr.count(": warning: `today` ") == 3
        assert "nondeterministic (limit)" in done.stderr
        assert "time-dependent (current_date)" in done.stderr
        assert "writes data itself" in done.stderr
    (step,) = (
        s for s in document("plan", cwd=root)["steps"] if s["source_id"].startswith("today@")
    )
    assert [note.split()[0] for note in step["notes"]] == ["nondeterministic", "time-dependent"]


SWAPPED = """from persist_assets import table
from pyspark.sql import DataFrame


@table
def swapped(flights: DataFrame) -> DataFrame:
    reader = flights.sparkSession.read.schema("a INT, b INT").option("header", True)
    return reader.csv("DIRECTORY")
"""


@pytest.mark.slow
@pytest.mark.proves("S5")
def test_a_build_prints_sparks_warnings_about_data(root: Path) -> None:
    (root / "delays.csv").write_text("b,a\n1,2\n")
    code = SWAPPED.replace("DIRECTORY", str(root / "delays.csv"))
    (root / "sources" / "swapped.py").write_text(code)
    done = persist("build", "swapped", cwd=root)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "CSVHeaderChecker" in line]
    assert line.startswith("warning: Spark: CSVHeaderChecker: ")
    assert "Expected: a but found: b" in line and "delays.csv" in line
