"""The pairs of tests/golden: queries that mean the same, and queries that do not. No Spark."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from conftest import ROOT, compiled

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project

RAW = """
CREATE TABLE t (a INT, b STRING, d DOUBLE, k INT, arr ARRAY<INT>, m MAP<STRING, INT>)
USING parquet LOCATION 't';
CREATE TABLE u (a INT, c DATE, k INT) USING parquet LOCATION 'u';
CREATE TABLE w (a INT, k INT, z INT) USING parquet LOCATION 'w';
CREATE VIEW tv AS SELECT a, b, d FROM t WHERE k > 1;
CREATE VIEW tl AS SELECT t.a, w.z FROM t LEFT JOIN w ON t.a = w.a;
CREATE VIEW tg AS SELECT a, count(*) AS n FROM t GROUP BY a;
--@ persist
CREATE VIEW tp AS SELECT a, b, d FROM t WHERE k > 1;
"""


def golden(name: str) -> list[tuple[str, str, str]]:
    """Return title, one query and the other of every pair of a file."""
    cases: list[tuple[str, str, str]] = []
    for block in (ROOT / "tests" / "golden" / name).read_text().split("\n# ")[1:]:
        title, pair = block.split("\n", 1)
        one, other = pair.split("\n---\n")
        cases.append((title, one.strip(), other.strip()))
    return cases


def project(query: str) -> Project:
    """Return a project of the raw tables, views of them, and one query, `q`."""
    return compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS {query}"})


def build_id(query: str) -> str:
    """Return the BuildID of a query, which has to be analysed."""
    made = project(query)
    assert not made.errors, [str(p) for p in made.errors]
    source = made.by_id["q@sources/q.sql"]
    assert not any("as a whole" in note for note in source.notes), source.notes
    return source.build_id


@cache
def known_build_id(query: str) -> str:
    """Return the BuildID of a query, computed once; not for tests that replace a rule."""
    return build_id(query)
