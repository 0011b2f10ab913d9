"""What makes two queries the same, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, compiled

from persist_assets.meaning.identity import digest

RAW = """
CREATE TABLE t (a INT, b STRING, d DOUBLE, k INT, arr ARRAY<INT>, m MAP<STRING, INT>)
USING parquet LOCATION 't';
CREATE TABLE u (a INT, c DATE, k INT) USING parquet LOCATION 'u';
CREATE TABLE w (a INT, k INT, z INT) USING parquet LOCATION 'w';
CREATE VIEW tv AS SELECT a, b, d FROM t WHERE k > 3;
--@ persist
CREATE VIEW tp AS SELECT a, b, d FROM t WHERE k > 3;
"""


def golden(name: str) -> list[tuple[str, str, str]]:
    """Return title, one query and the other of every pair of a file."""
    cases: list[tuple[str, str, str]] = []
    for block in (ROOT / "tests" / "golden" / name).read_text().split("\n# ")[1:]:
        title, pair = block.split("\n", 1)
        one, other = pair.split("\n---\n")
        cases.append((title, one.strip(), other.strip()))
    return cases


def build_id(query: str) -> str:
    project = compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS {query}"})
    assert not project.errors, [str(p) for p in project.errors]
    source = project.by_id["q@sources/q.sql"]
    assert not any("as a whole" in note for note in source.notes), source.notes
    return source.build_id


@pytest.mark.proves("K2")
@pytest.mark.parametrize(("title", "one", "other"), golden("equal.txt"), ids=lambda v: v[:40])
def test_queries_of_one_meaning_have_one_build_id(title: str, one: str, other: str) -> None:
    assert build_id(one) == build_id(other)


@pytest.mark.parametrize(("title", "one", "other"), golden("different.txt"), ids=lambda v: v[:40])
def test_queries_of_different_meaning_have_different_build_ids(
    title: str, one: str, other: str
) -> None:
    assert build_id(one) != build_id(other)


@pytest.mark.proves("M7")
def test_two_sources_of_one_meaning_share_a_build_id_and_keep_their_source_ids() -> None:
    text = "CREATE TABLE t (a INT) USING parquet LOCATION 'x'; CREATE VIEW v AS SELECT a FROM t;"
    project = compiled({"one.sql": text, "two/three.sql": "CREATE VIEW w AS SELECT x.A FROM t x"})
    one, two = project.by_id["v@sources/one.sql"], project.by_id["w@sources/two/three.sql"]
    assert one.build_id == two.build_id
    assert one.asset_key == ("one", "v")
    assert two.asset_key == ("two", "three", "w")


@pytest.mark.parametrize(
    ("raw", "same"),
    [
        ("CREATE TABLE t (a INT, b INT) USING parquet LOCATION 'x'", True),
        ("CREATE TABLE t (a INT) USING parquet LOCATION 'y'", False),
        ("CREATE TABLE t (a INT) USING orc LOCATION 'x'", False),
        ("CREATE TABLE t (a BIGINT) USING parquet LOCATION 'x'", False),
        ("CREATE TABLE t (a INT) USING parquet OPTIONS (mergeSchema true) LOCATION 'x'", False),
        ("CREATE TABLE t (a INT) USING parquet OPTIONS (password 'secret') LOCATION 'x'", True),
    ],
)
def test_a_reader_depends_on_where_and_how_raw_data_is_read(raw: str, same: bool) -> None:
    def read(text: str) -> str:
        project = compiled({"a.sql": f"{text}; CREATE VIEW v AS SELECT a FROM t"})
        return project.by_id["v@sources/a.sql"].build_id

    assert (read(raw) == read("CREATE TABLE t (a INT) USING parquet LOCATION 'x'")) is same


def test_csv_columns_are_found_by_position_so_all_of_them_count() -> None:
    def read(columns: str) -> str:
        raw = f"CREATE TABLE t ({columns}) USING csv LOCATION 'x'"
        return compiled({"a.sql": f"{raw}; CREATE VIEW v AS SELECT a FROM t"}).sources[-1].build_id

    assert read("a INT, b INT") != read("a INT")


def test_a_query_that_cannot_be_analysed_depends_on_all_it_reads() -> None:
    def read(upstream: str) -> str:
        project = compiled(
            {
                "a.sql": f"{RAW} CREATE VIEW x AS {upstream}; CREATE VIEW y AS SELECT my_udf(p) AS r FROM x"
            }
        )
        source = project.by_id["y@sources/a.sql"]
        assert "as a whole" in source.notes[0]
        return source.build_id

    assert read("SELECT a AS p, k AS q FROM t") == read("SELECT a AS p,  K AS q FROM t")
    assert read("SELECT a AS p, k AS q FROM t") != read("SELECT a AS p, k + 1 AS q FROM t")


@pytest.mark.proves("M7")
def test_build_ids_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_identity as t;"
        "print([t.build_id(q) for _, q, _ in t.golden('equal.txt')])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "tests")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_a_digest_tells_where_its_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest(["a"], []) != digest([], ["a"])
