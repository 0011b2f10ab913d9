"""The tables that builds write: their names, and the files of builds that did not finish."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from persist_assets.engine.session import translated
from persist_assets.storage.delta_commit import commit
from persist_assets.storage.delta_tables import find_table
from persist_assets.storage.files import delete_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.storage.delta_commit import Staged

log = logging.getLogger(__name__)


class Tables:
    """The tables that builds of one environment write."""

    def __init__(self, settings: Settings, project: Project, ledger: Ledger) -> None:
        self.settings, self.project, self.ledger = settings, project, ledger

    def name_for(self, source: Source) -> str:
        """Return the table that a build of `source` writes; no other environment reads it.

        It is the table that it last wrote in this environment, unless another environment owns it
        now.
        """
        name, environment = self.settings.table_name(source.table), self.settings.environment
        snapshot = self.ledger.manifests.find_snapshot(environment, source.build_id)
        others = self.ledger.manifests.fetch_foreign(environment)  # under whatever BuildID
        tried = [
            *([snapshot.table] if snapshot else []),
            name,
            f"{name}-{self.settings.environment}",
        ]
        free = (t for t in tried if t not in others)
        return next(free, f"{name}-{uuid.uuid4().hex[:8]}")

    def is_own(self, snapshot: Snapshot) -> bool:
        """Whether builds of this environment may continue the table of a snapshot in place."""
        current = self.ledger.manifests.find_snapshot(self.settings.environment, snapshot.build_id)
        source = self.project.by_build_id[snapshot.build_id][0]
        return (
            current is not None and current == snapshot and current.table == self.name_for(source)
        )

    def tidy(self, table: str, alive: Iterable[str]) -> None:
        """Remove the files that dead builds of a table left behind.

        Parameters
        ----------
        alive
            The UIDs of parked builds, which look dead and are not.
        """
        for build_uid in self.ledger.builds.record_interrupted(table, alive=[*alive]):
            log.info("action=tidy table=%s build=%s", table, build_uid)
            self.discard(self.settings.table_root(table), build_uid)

    def discard(self, root: str, build_uid: str) -> None:
        """Delete the files of a build, unless a version of its table holds them."""
        delta = find_table(root)
        commits = delta.history() if delta is not None else []
        if not any(entry.get("persist.build") == build_uid for entry in commits):
            delete_directory(f"{root}/{build_uid}")

    def write_frame(
        self, engine: Engine, frame: DataFrame, root: str, name: str
    ) -> tuple[Staged, int]:
        """Replace the rows of a table that belongs to no source; return its new version.

        Parameters
        ----------
        name
            The name, for messages, of the source that computes the rows.

        Raises
        ------
        PersistError
            It failed; the table is as it was.
        """
        uid = uuid.uuid4().hex
        with self.ledger.leases.hold(f"table {root}", name), translated(f"computing {name}"):
            try:
                staged = engine.write_files(frame, root, uid)
                return staged, commit(staged, build_id="", pinned=None)
            except BaseException:
                self.discard(root, uid)
                raise
