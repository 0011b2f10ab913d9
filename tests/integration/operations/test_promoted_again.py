"""Tables that are promoted although the target has them already."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from persist_assets.building.observe import Observer
from persist_assets.compiler.load import load_project, require
from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import Build, RawVersion, Snapshot
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.environments import promote

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAY = timedelta(days=1)
QUERY = (
    "CREATE TABLE f (n INT) USING parquet LOCATION 'f';\n"
    "--@ persist\nCREATE VIEW q AS SELECT {} AS n FROM f;\n"
)


class History:
    """A project whose code changes from day to day, in `dev` and `prod`."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, datetime(2024, 1, 1, 6, tzinfo=UTC)
        self.ledger = Ledger(load_settings(root).ledger, clock=lambda: self.now)
        self._n_builds = 0

    @property
    def observer(self) -> Observer:
        settings = load_settings(self.root)
        project = require(load_project(settings))
        return Observer(settings, project, self.ledger, clock=lambda: self.now)

    def build(self, code: str, *, reused: Snapshot | None = None) -> Snapshot:
        """Edit the query, build it in `dev`, and promote it to `prod`."""
        (self.root / "sources" / "m.sql").write_text(QUERY.format(code))
        self._n_builds += 1
        uid, observer = str(self._n_builds), self.observer
        (source,) = observer.project.persisted
        action = "reused" if reused else "built"
        ids = (source.source_id, source.build_id)
        build = Build(uid, *ids, "def", "dev", f"run{uid}", "started", action, self.now)
        raw, columns = (RawVersion("raw", "v"),), (Column("n", "int"),)
        snapshot = reused or Snapshot(
            uid, *ids, source.table, 0, raw, f"1:{uid}", 1, 1, self.now, columns
        )
        self.ledger.builds.record_started(build, snapshot.table)
        self.ledger.builds.publish(Publication(build, snapshot, []))
        decision, _ = promote(observer, "prod", [source.source_id], allow_stale=True)
        assert decision.refused == ()
        return snapshot


@pytest.mark.proves("T31")
def test_a_table_promoted_again_is_what_the_target_reads(make_project: Callable[..., Path]) -> None:
    """A revert: `prod` has the older table, and later ones that nobody reads any more."""
    history = History(make_project({"m.sql": QUERY.format("n")}, settings="[env.prod]\n"))
    first = history.build("n")
    history.now += DAY
    second = history.build("n + 1")
    history.now += DAY
    history.build("n", reused=first)
    history.now += DAY
    (source,) = history.observer.project.persisted
    current = history.ledger.builds.fetch_current("prod")[source.source_id]
    assert current.build_id == first.build_id
    # Garbage collection in another environment, whose code has changed since.
    history.now += 30 * DAY
    (history.root / "sources" / "m.sql").write_text(QUERY.format("n + 3"))
    by_build_id = history.observer.project.by_build_id
    defined = {b: [s.source_id for s in some] for b, some in by_build_id.items()}
    history.ledger.builds.collect(history.now - 7 * DAY, "dev", defined)
    assert {*history.ledger.manifests.fetch("prod")} == {first.build_id}
    assert second.build_id != first.build_id
