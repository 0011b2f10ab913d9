"""Realistic analytical queries: all of TPC-H, and more over a star schema."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from conftest import has_taken, printed_under_another_hash_seed
from queries import SUITES, edited, is_analysed, meaning, queries

if TYPE_CHECKING:
    from pathlib import Path

AS_A_WHOLE: set[str] = set()
ALL = [(suite, title) for suite in SUITES for title in queries(suite)]


def test_the_suites_have_all_tpc_h_queries_and_at_least_fifty_more() -> None:
    assert len(queries("tpch")) == 22
    assert len(queries("star")) >= 50


@pytest.mark.parametrize(("suite", "title"), ALL)
def test_a_query_is_analysed_and_digested_within_a_second(suite: str, title: str) -> None:
    started = time.process_time()
    source = meaning(suite, queries(suite)[title])
    took_s = time.process_time() - started
    assert source is not None
    assert is_analysed(source) is (title not in AS_A_WHOLE), source.notes
    has_taken(took_s, within_s=1.0)


@pytest.mark.slow
@pytest.mark.random
def test_edits_that_keep_the_meaning_keep_build_ids() -> None:
    n, lost = 0, list[str]()
    for suite, title in ALL:
        query = queries(suite)[title]
        source = meaning(suite, query)
        assert source is not None
        if not is_analysed(source):
            continue
        for what, text in edited(query, title).items():
            other = meaning(suite, text)
            n += 1
            if other is None or other.build_id != source.build_id:
                lost.append(f"{suite}, {title}, {what}: {text}")
    print(f"{n - len(lost)} of {n} edits kept their BuildIDs")
    assert len(lost) <= n / 100, f"{n - len(lost)} of {n} kept:\n" + "\n".join(lost)


def test_build_ids_of_all_queries_are_the_same_in_every_process(tmp_path: Path) -> None:
    script = "import queries as q; print([q.meaning(s, t).build_id for s in q.SUITES for t in q.queries(s).values()])"
    sources = [meaning(suite, queries(suite)[title]) for suite, title in ALL]
    here = f"{[source.build_id for source in sources if source is not None]}\n"
    assert printed_under_another_hash_seed(script, tmp_path) == here
