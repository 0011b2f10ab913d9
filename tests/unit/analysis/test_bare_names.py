"""A name like `current_date` is a column where it is one in Spark, else a function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from bare_names import CASES, NAMES, RAW
from conftest import compiled

if TYPE_CHECKING:
    from persist_assets.core.model.sources import Source


def words_of(note: str) -> set[str]:
    return set(re.findall(r"\w+", note))


def source(query: str) -> Source:
    made = compiled({"raw.sql": RAW, "q.sql": f"--@ persist\nCREATE VIEW q AS {query}"})
    assert not made.errors, [str(p) for p in made.errors]
    return made.by_id["q@sources/q.sql"]


@pytest.mark.proves("S2")
def test_bare_names_resolve_to_columns_where_they_do_in_spark() -> None:
    wrong: list[str] = []
    for query, is_column in CASES:
        one = source(query)
        called = [note for note in one.notes if any(n in words_of(note) for n in (*NAMES, "current_path"))]  # fmt: skip
        if any("as a whole" in note for note in one.notes) or bool(called) is is_column:
            wrong.append(f"{query}: {one.notes}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.proves("S2")
@pytest.mark.parametrize("name", NAMES)
def test_a_column_and_a_function_with_one_name_have_different_build_ids(name: str) -> None:
    ids = [
        source(query.format(name)).build_id
        for query in (
            "SELECT string({}) AS x FROM c",
            "SELECT string({}()) AS x FROM c",
            "SELECT string(x) AS x FROM (SELECT a, {0} AS x FROM c ORDER BY c.{0} LIMIT 1)",
            "SELECT string(x) AS x FROM (SELECT a, {0} AS x FROM c ORDER BY {0}() LIMIT 1)",
        )
    ]
    assert len(set(ids)) == len(ids)
    assert ids[0] == source(f"SELECT string(c.`{name}`) AS x FROM c").build_id


@pytest.mark.proves("S2")
def test_a_bare_name_leaves_the_columns_of_an_unanalysed_query_unknown() -> None:
    sampled = "SELECT {} FROM {} TABLESAMPLE (50 PERCENT)"
    assert [c.name for c in source(sampled.format("a, user", "c")).columns] == ["a", "user"]
    for name in NAMES:
        one = source(sampled.format(f"a, {name}", "other"))
        assert not one.columns
        assert any(name in words_of(note) for note in one.notes)


@pytest.mark.proves("S2")
def test_expressions_that_the_parser_does_not_preserve_need_an_alias() -> None:
    assert [c.name for c in source("SELECT +a AS x, w AS y FROM other").columns] == ["x", "y"]
    for item in ("+a", "w COLLATE UTF8_LCASE", "+ current_date"):
        made = compiled({"raw.sql": RAW, "q.sql": f"CREATE VIEW q AS SELECT {item} FROM other"})
        assert [p.code for p in made.errors] == ["column-name"]


@pytest.mark.proves("S15")
def test_columns_may_have_names_of_functions() -> None:
    made = compiled(
        {
            "t.sql": "CREATE TABLE t (current_date DATE, user STRING) USING parquet LOCATION 't';",
            "v.sql": "CREATE VIEW v (session_user, current_date) AS SELECT user, current_date FROM t;",
            "w.sql": "CREATE VIEW w AS WITH q(current_user) AS (SELECT session_user FROM v) SELECT current_user FROM q;",
        }
    )  # fmt: skip
    assert not made.problems
    assert {s.name: [(c.name, c.type) for c in s.columns] for s in made.sources} == {
        "t": [("current_date", "date"), ("user", "string")],
        "v": [("session_user", "string"), ("current_date", "date")],
        "w": [("current_user", "string")],
    }


@pytest.mark.proves("S15")
def test_checks_may_call_functions_without_parentheses() -> None:
    def problems(check: str) -> list[str]:
        query = "CREATE VIEW q AS SELECT a, w, current_date() AS day FROM other"
        text = f'--@ persist\n--@ check {{ expr="{check}" }}\n{query}'
        return [str(p) for p in compiled({"raw.sql": RAW, "q.sql": text}).errors]

    assert not problems("day <= current_date")
    assert "is nondeterministic" in problems("w = user")[0]
