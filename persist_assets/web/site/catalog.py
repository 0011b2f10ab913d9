"""What a ledger knows of the sources of a project, read at one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Standing:
    """What readers of an environment read of a source.

    Attributes
    ----------
    same
        It was built of what the files mean: the rows are those of the query on the page.
    """

    environment: str
    snapshot: Snapshot
    same: bool


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of each source.

    Attributes
    ----------
    snapshots
        What readers of the project's environment read of what the files mean.
    standings
        In every environment that has something of it, by their names.
    checks
        What came of the checks of `snapshots`, by the definition of the check.
    last
        The build that ended last in the project's environment.
    """

    snapshots: Mapping[SourceID, Snapshot]
    standings: Mapping[SourceID, tuple[Standing, ...]]
    checks: Mapping[SourceID, Mapping[str, CheckResult]]
    last: Mapping[SourceID, Build]


def read_knowledge(settings: Settings, project: Project, ledger: Ledger) -> Knowledge:
    """Return what the ledger knows; it costs a question for each environment and checked source.

    Raises
    ------
    LedgerError
        The ledger does not answer.
    """
    # What could not be compiled means nothing now; readers read what it was.
    build_ids: dict[SourceID, BuildID | None] = {b.source_id: None for b in project.broken}
    build_ids |= {s.source_id: s.build_id for s in project.persisted}
    standings: dict[SourceID, list[Standing]] = {}
    for environment in ledger.manifests.fetch_environments():
        manifest = ledger.manifests.fetch(environment)
        current = ledger.builds.fetch_current(environment)
        for source_id, build_id in build_ids.items():
            snapshot = manifest.get(build_id) if build_id else None
            if snapshot is None and source_id in current:
                snapshot = current[source_id].snapshot
            if snapshot is not None:
                standing = Standing(environment, snapshot, snapshot.build_id == build_id)
                standings.setdefault(source_id, []).append(standing)
    read = ledger.manifests.fetch(*settings.environments)
    snapshots = {s.source_id: read[s.build_id] for s in project.persisted if s.build_id in read}
    checks = {
        source_id: {c.definition: c for c in ledger.builds.fetch_checks(snapshot.build_uid)}
        for source_id, snapshot in snapshots.items()
        if project.by_id[source_id].checks
    }
    last = ledger.builds.fetch_last(settings.environment)
    return Knowledge(snapshots, {s: tuple(x) for s, x in standings.items()}, checks, last)
