"""Groups over a LEFT JOIN whose aggregates read its right side only; run in DuckDB."""

from __future__ import annotations

import random

import pytest
from support.deltas import Maintained

from persist_assets.analysis.algebra import SetOperation, walk
from persist_assets.analysis.deltas.explaining import node_rules
from persist_assets.core.model.deltas import relation_name

COLUMNS = {
    "c": {"k": "INT", "n": "INT"},
    "o": {"k": "INT", "v": "INT", "s": "STRING"},
    "i": {"v": "INT", "q": "INT"},
}
RAW = "".join(
    f"CREATE TABLE {t} ({', '.join(map(' '.join, columns.items()))})"
    f" USING delta LOCATION 'data/{t}';\n"
    for t, columns in COLUMNS.items()
)
JOINED = "FROM c LEFT JOIN o ON c.k = o.k"
SPLIT = [
    f"SELECT c.k, count(o.v) AS m {JOINED} GROUP BY c.k",
    f"SELECT m, count(*) AS n FROM (SELECT c.k, count(o.v) AS m {JOINED} AND o.s NOT LIKE 'a%'"
    " GROUP BY c.k) GROUP BY m",
    f"SELECT c.n, sum(o.v + c.k) AS m, count(o.s) AS z {JOINED} WHERE c.n > 0 GROUP BY c.n",
    f"SELECT c.n + 1 AS n, min(o.v) AS m, max(o.v * 2) AS z {JOINED} AND o.v > c.n"
    " GROUP BY c.n + 1 HAVING min(o.v) IS NULL OR max(o.v) > 1",
    f"SELECT count(o.v) AS m {JOINED}",
    f"SELECT c.k, sum(i.q) AS q {JOINED} LEFT JOIN i ON o.v = i.v GROUP BY c.k",
    f"SELECT c.k, sum(i.q) AS q {JOINED} LEFT JOIN i ON o.v = i.v WHERE c.n > 1 GROUP BY c.k",
    f"SELECT c.k, sum(i.q) AS q {JOINED} LEFT JOIN i ON o.v <=> i.v GROUP BY c.k",
    f"SELECT c.k, o.v, sum(i.q) AS q {JOINED} LEFT JOIN i ON o.v = i.v GROUP BY c.k, o.v",
    f"SELECT c.k, max(i.q) AS q {JOINED} LEFT JOIN i ON o.v < i.v AND o.k IS NULL GROUP BY c.k",
    f"SELECT DISTINCT c.k {JOINED}",
    "SELECT c.k, count(o.v) AS m FROM o RIGHT JOIN c ON c.k = o.k GROUP BY c.k",
]
NOT_SPLIT = [
    f"SELECT c.k, count(*) AS m {JOINED} GROUP BY c.k",
    f"SELECT c.k, count(c.n) AS m {JOINED} GROUP BY c.k",
    f"SELECT c.k, count(coalesce(o.v, 1)) AS m {JOINED} GROUP BY c.k",
    f"SELECT c.k, sum(o.v) FILTER (WHERE o.s IS NULL) AS m {JOINED} GROUP BY c.k",
    f"SELECT o.s, count(o.v) AS m {JOINED} GROUP BY o.s",
    f"SELECT c.k, count(o.v) AS m {JOINED} WHERE o.v IS NULL OR o.v > 1 GROUP BY c.k",
    "SELECT k, (SELECT count(x.v) FROM c d LEFT JOIN o x ON d.k = x.k WHERE d.n = c.n) AS m FROM c",
]


@pytest.mark.proves("T17")
@pytest.mark.parametrize("query", [*SPLIT, *NOT_SPLIT])
def test_groups_over_left_joins_follow_changes(query: str) -> None:
    maintained = Maintained(RAW, query, COLUMNS)
    union = any(isinstance(t, SetOperation) for t in walk(maintained.definition.block))
    assert union is (query in SPLIT)
    rng, differs = random.Random(query), 0
    for changed in (["o"], ["c"], ["c", "o"], maintained.reads[-2:]):
        maintained.fill(rng, 6)
        for _ in range(3):
            differs += maintained.follow(rng, changed, merges=True).differs
    assert differs > 2


@pytest.mark.proves("T17")
@pytest.mark.parametrize(
    ("query", "is_read"), [(SPLIT[1], False), (SPLIT[5], False), (NOT_SPLIT[0], True)]
)
def test_a_change_of_the_right_side_is_joined_with_the_left_side_only(
    query: str, is_read: bool
) -> None:
    maintained = Maintained(RAW, query, COLUMNS)
    states = maintained.merging(["o"])
    texts = " ".join((*states.held.values(), *(s.changed or "" for s in states.states)))
    new = relation_name("new", "o@sources/raw.sql")
    assert bool(states.probes or new in texts) is is_read


@pytest.mark.proves("T17")
def test_the_rules_of_a_split_join_name_its_tables() -> None:
    rules = node_rules(Maintained(RAW, SPLIT[0], COLUMNS).definition)
    assert [(r.depth, r.node, r.rule) for r in rules] == [
        (0, "GROUP BY k", "the groups of touched keys (k) are computed again"),
        (1, "LEFT JOIN", "rows without a match add nothing to the groups"),
        (2, "c JOIN o", "the changed rows of each table are joined with the others"),
    ]
    assert rules[0].merging == "count(v)"
