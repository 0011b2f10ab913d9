"""Work that builds of one run share: each build counts its share, whichever build did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.building.held_relations import HeldRelations, SharedWork
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path


def test_each_build_counts_its_share_of_a_relation_once() -> None:
    first, second = SharedWork(), SharedWork()
    first.count("probe", spent=6.0, seconds=6.0, n_users=3)
    assert first.seconds == pytest.approx(4.0)
    for _ in range(2):
        second.count("probe", spent=0.5, seconds=6.0, n_users=3)  # it waited for half a second
        assert second.seconds == pytest.approx(-1.5)


def test_work_with_a_single_user_is_not_shared() -> None:
    work = SharedWork()
    work.count("keys", spent=6.0, seconds=6.0, n_users=1)
    assert work.seconds == 0


SHARING = """CREATE TABLE z (k INT, a INT, b INT, c INT) USING delta LOCATION 'raw/z';
--@ persist
CREATE VIEW a_of AS SELECT k, max_by(a, b) AS a FROM z GROUP BY k;
--@ persist
CREATE VIEW b_of AS SELECT k, min_by(b, c) AS b FROM z GROUP BY k;
"""


@pytest.mark.proves("T12")
def test_only_sources_maintained_in_a_run_share_a_probe_and_its_columns(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"m.sql": SHARING})
    project = require(load_project(load_settings(root)))
    names = {s.name: s.source_id for s in project.sources}
    changed = frozenset({names["z"]})
    program = project.program(names["a_of"], changed, frozenset())
    ((digest, probe),) = program.probes.items()

    def uses(*maintained: str) -> tuple[list[str], int]:
        def find_maintained(some: Collection[str]) -> set[str]:
            return {names[name] for name in maintained}.intersection(some)

        relations = HeldRelations(project, find_maintained)
        programs = relations.programs_with(digest, changed, frozenset())
        columns = sorted({c for p in programs for c in p.columns[probe.table]})
        return [name for _, name in columns], relations.n_users_of(names["z"])

    assert uses("a_of", "b_of") == (["k", "a", "b", "c"], 2)
    assert uses("a_of") == (["k", "a", "b"], 1)
    assert uses() == ([], 1)
