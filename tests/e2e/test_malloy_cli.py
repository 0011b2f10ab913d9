"""Malloy on the command line: queries, the contents of a file, error messages."""

from __future__ import annotations

import json
from resource import RUSAGE_CHILDREN, getrusage
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import document, persist
from conftest import need
from malloy import chains, there

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = """##! experimental.persistence
source: flights is spark.table('flights') extend { measure: n is count() }
#" How many flights a carrier has.
#@ persist
source: by_carrier is flights -> {
  group_by: carrier
  aggregate: n
  nest: longest is { group_by: distance; limit: 2 }
}
#" All of them.
query: whole is by_carrier -> { aggregate: all_n is n.sum() }
"""


@pytest.fixture
def root(make_shared_project: Callable[..., Path]) -> Path:
    need(there(), "bundle Malloy's compiler: make bridge")
    raw = "CREATE TABLE flights (carrier STRING, distance INT) USING parquet LOCATION 'raw/f';"
    made = make_shared_project({"raw.sql": raw, "carriers.malloy": MODEL})
    (made / "raw" / "f").mkdir(parents=True)
    table = pa.table({"carrier": ["AA", "AA", "UA"], "distance": pa.array([5, 9, 7], pa.int32())})
    pq.write_table(table, made / "raw" / "f" / "p.parquet")
    return made


@pytest.mark.slow
def test_show_lists_the_queries_of_a_file_and_query_compiles_them(root: Path) -> None:
    told = document("show", "carriers.malloy", cwd=root)
    assert told["path"] == "sources/carriers.malloy"
    assert [s["source_id"] for s in told["sources"]] == ["by_carrier@sources/carriers.malloy"]
    assert told["queries"] == [{"name": "whole", "line": 11, "description": "All of them."}]
    shown = persist("show", "sources/carriers.malloy", cwd=root)
    assert "carriers.malloy:whole" in shown.stdout
    ran = document("query", "carriers.malloy:whole", "--sql", cwd=root)
    assert ran["route"][0] | {"stale": False} == {
        "source_id": "flights@sources/raw.sql", "from": "raw", "version": None, "stale": False,
    }  # fmt: skip
    assert "COUNT(1)" in ran["sql"]
    for wrong, message in {
        ("carriers.malloy",): "carriers.malloy: whole",
        ("carriers.malloy:whole", "--run", "run: flights"): "not both",
        ("nowhere.malloy:whole",): "there is no file nowhere.malloy",
        ("SELECT 1", "--run", "run: flights"): "FILE.malloy",
        ("carriers.malloy:none",): "none",
        ("carriers.malloy", "--run", "run: nothing -> { group_by: a }"): "nothing",
    }.items():
        done = persist("query", *wrong, cwd=root)
        assert done.returncode in (2, 3, 4), (wrong, done.returncode, done.stderr)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.proves("M18")
def test_queries_read_built_tables_and_return_nested_rows(root: Path) -> None:
    before = document("query", "carriers.malloy:whole", cwd=root)
    assert before["rows"] == [[3]]
    assert [s["action"] for s in document("build", cwd=root)["builds"]] == ["built"]
    after = document("query", "carriers.malloy:whole", cwd=root)
    assert after["rows"] == before["rows"]
    assert [(r["source_id"], r["from"]) for r in after["route"]] == [
        ("by_carrier@sources/carriers.malloy", "table")
    ]
    text = "run: by_carrier -> { select: * }"
    nested = document("query", "sources/carriers.malloy", "--run", text, cwd=root)
    assert nested["rows"][0] == ["AA", [{"distance": 5}, {"distance": 9}], 2]
    shown = persist("query", "carriers.malloy", "--run", text, cwd=root)
    assert "[{distance: 5}, {distance: 9}]" in shown.stdout


@pytest.mark.slow
def test_keep_going_builds_valid_sources_despite_errors_in_others(root: Path) -> None:
    broken = MODEL.replace("by_carrier", "broken").replace("aggregate: n", "aggregate: nn", 1)
    (root / "sources" / "broken.malloy").write_text(broken)
    reader = "--@ persist\nCREATE VIEW reader AS SELECT carrier FROM broken;"
    (root / "sources" / "reader.sql").write_text(reader)
    unchecked = "--@ persist\n--@ check { nothing }\nCREATE VIEW u AS SELECT carrier FROM flights;"
    (root / "sources" / "unchecked.sql").write_text(unchecked)
    refused = persist("build", cwd=root)
    assert refused.returncode == 3
    assert "sources/broken.malloy:7:14" in refused.stderr
    done = persist("build", "--keep-going", "--json", cwd=root)
    assert done.returncode == 3, done.stderr
    assert [(b["source_id"], b["action"]) for b in json.loads(done.stdout)["builds"]] == [
        ("by_carrier@sources/carriers.malloy", "built")
    ]
    assert "sources/broken.malloy:7:14: error: 'nn' is not defined" in done.stderr
    assert "sources/unchecked.sql:2:" in done.stderr


@pytest.mark.slow
@pytest.mark.proves("S16")
def test_a_warm_check_of_two_hundred_chained_files_is_fast(
    root: Path,
) -> None:
    """On an idle machine: 10 CPU s cold and 0.8 s warm, compared with 0.45 s for one file."""
    (root / "sources" / "carriers.malloy").unlink()
    spent: dict[int, list[float]] = {}
    for files in (1, 200):
        for name, text in chains(files, 50, "table").items():
            (root / "sources" / name).write_text(text)
        spent[files] = [_cpu_of_a_check(root) for _ in range(4)]
    cold, *warm = spent[200]
    assert cold < 60, spent
    assert min(warm) < 2.5 * min(spent[1][1:]), spent


def _cpu_of_a_check(root: Path) -> float:
    """Return the CPU seconds of `persist check`, in Python and Node, with bytecode caching."""
    before = getrusage(RUSAGE_CHILDREN)
    done = persist("check", cwd=root, env={"PYTHONDONTWRITEBYTECODE": ""})
    after = getrusage(RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
