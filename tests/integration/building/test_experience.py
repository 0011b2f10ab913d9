"""Recorded builds of incremental tables give time estimates for other tables."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from test_ledger import a_build, publish

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.model.snapshots import Cost, Effort, Written
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.planning.costs import Experience

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.core.model.sources import Source

RAW = "CREATE TABLE z (k INT, v INT) USING delta LOCATION 'raw/z';\n"


@pytest.mark.proves("T12")
def test_builds_of_other_tables_are_used_if_a_table_has_too_few_of_its_own(
    make_project: Callable[..., Path],
) -> None:
    views = (f"--@ persist\nCREATE VIEW v{n} AS SELECT k + {n} AS k FROM z;\n" for n in range(4))
    settings = load_settings(make_project({"m.sql": RAW + "".join(views)}))
    project = require(load_project(settings))
    with closing(Ledger(settings.ledger)) as ledger:
        ids = iter(range(100))

        def built(source: Source, method: str, seconds: float, by_size_s: float | None) -> None:
            build = replace(
                a_build(str(next(ids))),
                source_id=source.source_id,
                build_id=source.build_id,
                written=Written(1, 10),
            )
            build = build.computed_by(method, build.started_at + timedelta(seconds=seconds))
            effort = Effort(seconds_by_size=by_size_s) if by_size_s else None
            publish(ledger, replace(build, effort=effort))

        def experience(*costs: Cost) -> Experience:
            observer = Observer(settings, project, ledger)
            return observer._experience({project.persisted[3].build_id: costs})

        whole, kept_up = Cost("whole", 9, 1, 10), Cost("keys", 1, 1, 10, 2.0)
        assert experience(whole) == Experience()
        for n, source in enumerate(project.persisted[:3]):
            built(source, "whole", 9.0, None)
            built(source, "keys", 1.0 + n, 4.0)
            built(source, "whole", 6.0, None)
        first_builds = ((9.0, 1.5),) * 3
        known = Experience(0.5, first_builds)
        assert experience(whole) == experience(kept_up, kept_up, whole) == known
        assert experience(kept_up, whole) == Experience()  # its own builds suffice
        built(project.persisted[0], "whole", 2.0, None)
        assert experience(whole) == Experience(0.5, ((6.0, 3.0), *first_builds[1:]))
