"""Programs write all semi joins with keys in one form; builds use `=` in it if no key is NULL."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import chain, product

import pytest
from conftest import with_programs_of
from maintained import QUERIES, sources

from persist_assets.building.semi_joins import JOINED, SEARCH, SEARCHED, SEMI_JOIN
from persist_assets.core.model.deltas import NoRule

ANY = re.compile(r"LEFT SEMI JOIN `(?:keys|change):")


@pytest.mark.proves("T8")
def test_every_semi_join_with_keys_is_recognized_as_a_whole() -> None:
    project = with_programs_of({"m.sql": sources()})
    n_joins = n_joined = n_searches = 0
    for name in QUERIES:
        source_id = f"{name}@sources/m.sql"
        tables = frozenset(i.source_id for i in project.inputs(project.by_id[source_id]))
        changed = {tables, *(frozenset((table,)) for table in tables)}
        for derive, some in product((project.merging, project.program), changed):
            with suppress(NoRule):
                program = derive(source_id, some, frozenset())
                if program is None:
                    continue
                for text in chain(program.statements, program.held.values()):
                    joins = [m[0] for m in SEMI_JOIN.finditer(text)]
                    assert len(joins) == len(ANY.findall(text)), text
                    assert all(j.count("<=>") == j.count(" AND ") + 1 for j in joins)
                    n_joins += len(joins)
                    assert len(JOINED.findall(text)) == text.count("LEFT SEMI JOIN (SELECT *"), text
                    n_joined += len(JOINED.findall(text))
                    for search in SEARCH.finditer(text):
                        assert len(SEARCHED.findall(search["same"])) == search["same"].count("=")
                        n_searches += 1
                    assert text.count("` AS t LEFT SEMI JOIN") == len(SEARCH.findall(text)), text
                    assert not any(
                        text[m.end() :].startswith(" AND") for m in SEMI_JOIN.finditer(text)
                    )
    assert n_joins > 20
    assert n_joined > 5
    assert n_searches > 10


@pytest.mark.parametrize(
    "text",
    [
        "LEFT SEMI JOIN `old:t` AS k ON t.a <=> k.c0",
        "LEFT SEMI JOIN `keys:0a1b` AS k ON t.a = k.c0",
        "JOIN `keys:0a1b` AS k ON t.a <=> k.c0",
        "LEFT SEMI JOIN `keys:0a1b` AS k ON x.a <=> k.c0",
    ],
)
def test_the_pattern_does_not_match_other_joins(text: str) -> None:
    assert not SEMI_JOIN.search(f"SELECT * FROM t AS t {text}")


def test_a_column_name_that_looks_like_a_condition_is_matched() -> None:
    condition = "t.`a ``<=> k.c0 AND t.b` <=> k.c1 AND t.c2 <=> k.c2"
    match = SEMI_JOIN.search(f"LEFT SEMI JOIN `keys:0a1b` AS k ON {condition}) AS l1")
    assert match is not None
    assert match[0].endswith(condition)
