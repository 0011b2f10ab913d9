"""The table of query shapes in docs/maintenance.md agrees with the compiler."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from conftest import with_programs_of

from persist_assets.planning.explaining import Explanation, Way, explain

PAGE = (Path(__file__).parents[3] / "docs" / "maintenance.md").read_text()
_CELLS = re.compile(r"^\| `(SELECT .*?)` \| (.*?) \| (.*?) \| (.*?) \|$", re.M)
ROWS = _CELLS.findall(PAGE)
(RAW,) = re.findall(r"```sql\n(CREATE TABLE .*?)```", PAGE, re.S)


@cache
def explained(query: str) -> Explanation:
    files = {"raw.sql": RAW, "q.sql": f"--@ persist\nCREATE VIEW q AS {query};"}
    project = with_programs_of(files)
    assert not project.errors, project.errors
    return explain(project, project.by_id["q@sources/q.sql"])


def in_words(way: Way) -> str:
    """Return a method as the page writes it."""
    columns = f" ({', '.join(way.keys)})" if way.keys else ""
    return f"{'`merge` or ' if way.merges else ''}`{way.method}`{columns}"


@pytest.mark.proves("T11")
@pytest.mark.parametrize(("query", "tables", "added", "changed"), ROWS)
def test_the_page_lists_the_methods_that_the_compiler_chooses(
    query: str, tables: str, added: str, changed: str
) -> None:
    ways = {w.table.partition("@")[0]: w for w in explained(query).tables}
    for table in tables.split(", "):
        assert (in_words(ways[table].added), in_words(ways[table].changed)) == (added, changed)


def test_the_page_lists_all_tables_that_each_query_reads() -> None:
    assert len(ROWS) > 30
    listed: dict[str, list[str]] = {}
    for query, tables, _, _ in ROWS:
        listed.setdefault(query, []).extend(tables.split(", "))
    for query, tables in listed.items():
        read = [w.table.partition("@")[0] for w in explained(query).tables]
        assert sorted(tables) == sorted(read), query
    methods = {m for _, _, *cells in ROWS for cell in cells for m in re.findall(r"`(\w+)`", cell)}
    assert methods == {"append", "keys", "merge", "whole"}
