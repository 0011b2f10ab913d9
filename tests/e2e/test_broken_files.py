"""A broken file fails only the commands that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import document, persist
from malloy import compiler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def made(make_project: Callable[..., Path]) -> Callable[[dict[str, str]], Path]:
    """Return a function that makes a project with data."""

    def made(files: dict[str, str]) -> Path:
        root = make_project(files)
        (root / "raw" / "t").mkdir(parents=True)
        table = pa.table({"id": pa.array([1], pa.int32()), "x": [0.5]})
        pq.write_table(table, root / "raw" / "t" / "p.parquet")
        return root

    return made


pytestmark = pytest.mark.proves("S16")

FILES = {
    "raw.sql": "CREATE TABLE t (id INT, x DOUBLE) USING parquet LOCATION 'raw/t';",
    "good.sql": "--@ persist\nCREATE VIEW good AS SELECT id FROM t;",
    "bad.sql": "CREATE VIEW bad AS SELECT nothing FROM t; CREATE VIEW beside AS SELECT id FROM t;",
    "above.sql": "CREATE VIEW above AS SELECT id FROM bad;",
    "twice.sql": "CREATE VIEW twice AS SELECT id FROM t;",
    "other/twice.sql": "CREATE VIEW twice AS SELECT nothing FROM t;",
}
MALLOY = {
    "good.malloy": "source: m is spark.table('good') -> { select: id }\n"
    "query: q is m -> { aggregate: n is count() }",
    "bad.malloy": "source: wrong is spark.table('t') -> { select: nowhere }\nquery: w is wrong -> { select: * }",
    "on_bad.malloy": "source: b is spark.table('above')\nquery: w is b -> { select: * }",
}


def refusal(*arguments: str, cwd: Path) -> str:
    done = persist(*arguments, cwd=cwd)
    assert done.returncode == 3, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_broken_file_stops_only_commands_that_need_it(
    made: Callable[[dict[str, str]], Path],
) -> None:
    root = made(FILES)
    assert "FROM" in document("query", "SELECT id FROM good", "--sql", cwd=root)["sql"]
    assert document("show", "good", cwd=root)["source_id"] == "good@sources/good.sql"
    assert document("lineage", "good.id", cwd=root)["edges"]
    for name in ("bad", "above"):
        told = refusal("query", f"SELECT id FROM {name}", "--sql", cwd=root)
        assert "sources/bad.sql:1:27: error: `nothing`" in told
        for command in ("show", "lineage"):
            assert "sources/bad.sql:1:27: error: `nothing`" in refusal(command, name, cwd=root)
    # All sources of a broken file are errors, and names do not resolve to other sources instead.
    assert "sources/bad.sql" in refusal("query", "SELECT id FROM beside", "--sql", cwd=root)
    assert "is ambiguous" in refusal("query", "SELECT id FROM twice", "--sql", cwd=root)
    assert persist("show", "nobody", cwd=root).returncode == 4
    assert "nobody" in refusal("query", "SELECT id FROM nobody", "--sql", cwd=root)


@pytest.mark.slow
def test_a_malloy_query_fails_only_if_its_file_or_an_input_is_broken(
    made: Callable[[dict[str, str]], Path],
) -> None:
    compiler()
    root = made(FILES | MALLOY)
    assert "COUNT(1)" in document("query", "good.malloy:q", "--sql", cwd=root)["sql"]
    assert [q["name"] for q in document("show", "good.malloy", cwd=root)["queries"]] == ["q"]
    assert "nowhere" in refusal("query", "bad.malloy:w", "--sql", cwd=root)
    assert "nowhere" in refusal("show", "bad.malloy", cwd=root)
    assert "`nothing`" in refusal("query", "on_bad.malloy:w", "--sql", cwd=root)


def test_each_problem_is_printed_once(made: Callable[[dict[str, str]], Path]) -> None:
    root = made(FILES)
    message = "sources/bad.sql:1:27: error: `nothing`"
    for words in (["query", "SELECT id FROM bad"], ["show", "bad"], ["explain", "bad"]):
        shown = refusal(*words, cwd=root)
        assert shown.count(message) == 1
        assert "sources/other/twice.sql" not in shown, "other problems are not the reason"
    shown = refusal("query", "SELECT id FROM nobody", cwd=root)
    assert shown.count(message) <= 1


def test_a_build_of_broken_sources_only_reports_their_errors(
    made: Callable[[dict[str, str]], Path],
) -> None:
    files = FILES | {"good.sql": "--@ persist\nCREATE VIEW good AS SELECT nothing FROM t;"}
    root = made(files)
    shown = refusal("build", "--keep-going", cwd=root)
    assert shown.count("sources/good.sql:2:28: error: `nothing`") == 1
    assert shown.splitlines()[-1] == "nothing can be built: all selected sources have errors"
    for pattern in ("good", "+good", "tag:x or 2+good+"):
        named = refusal("build", "--keep-going", pattern, cwd=root)
        assert "sources/good.sql:2:28: error: `nothing`" in named
        assert "unknown source" not in named
    (root / "sources" / "other.sql").write_text("--@ persist\nCREATE VIEW o AS SELECT id FROM t;")
    assert "sources/good.sql" in refusal("build", "--keep-going", "good", cwd=root)
