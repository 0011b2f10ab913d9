"""The ledger's records of the sources of a project, read at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Build, Effort, Snapshot
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Standing:
    """The table of a source that readers of an environment see.

    Attributes
    ----------
    same
        It was built from the current definition: its rows are those of the query on the page.
    """

    environment: str
    snapshot: Snapshot
    same: bool


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The ledger's records of each source.

    Attributes
    ----------
    snapshots
        The tables of the current definitions that readers of the project's environment see.
    standings
        The tables in every environment that has one, sorted by environment.
    checks
        The results of the checks of `snapshots`, by the definition of the check.
    last
        The build that ended last in the project's environment.
    methods
        By which method the builds of `snapshots` computed rows, and what they did, if they
        recorded it.
    """

    snapshots: Mapping[SourceID, Snapshot]
    standings: Mapping[SourceID, tuple[Standing, ...]]
    checks: Mapping[SourceID, Mapping[str, CheckResult]]
    last: Mapping[SourceID, Build]
    methods: Mapping[SourceID, tuple[str, Effort | None]]


def read_knowledge(
    settings: Settings, project: Project, ledger: Ledger, *, only: Collection[SourceID] = ()
) -> Knowledge:
    """Return the ledger's records; this takes a query for each environment and checked source.

    Parameters
    ----------
    only
        The sources to read the records of; empty: all.

    Raises
    ------
    LedgerError
        The ledger does not answer.
    """
    # Sources that cannot be compiled have no BuildID now; readers still read their last table.
    build_ids: dict[SourceID, BuildID | None] = {b.source_id: None for b in project.broken}
    build_ids |= {s.source_id: s.build_id for s in project.persisted}
    if only:
        build_ids = {s: build_ids[s] for s in only if s in build_ids}
    one = next(iter(only)) if len(only) == 1 else None
    standings: dict[SourceID, list[Standing]] = {}
    for environment in ledger.manifests.fetch_environments():
        manifest = ledger.manifests.fetch(environment)
        current = ledger.builds.fetch_current(environment, source_id=one)
        for source_id, build_id in build_ids.items():
            snapshot = manifest.get(build_id) if build_id else None
            if snapshot is None and source_id in current:
                snapshot = current[source_id].snapshot
            if snapshot is not None:
                standing = Standing(environment, snapshot, snapshot.build_id == build_id)
                standings.setdefault(source_id, []).append(standing)
    read = ledger.manifests.fetch(*settings.environments)
    snapshots = {s: read[b] for s, b in build_ids.items() if b is not None and b in read}
    checks = {
        source_id: {c.definition: c for c in ledger.builds.fetch_checks(snapshot.build_uid)}
        for source_id, snapshot in snapshots.items()
        if project.by_id[source_id].checks
    }
    last = ledger.builds.fetch_last(settings.environment, source_id=one)
    by_uid = ledger.builds.fetch_methods({s.build_uid for s in snapshots.values()})
    methods = {
        source_id: by_uid[snapshot.build_uid]
        for source_id, snapshot in snapshots.items()
        if snapshot.build_uid in by_uid
    }
    return Knowledge(snapshots, {s: tuple(x) for s, x in standings.items()}, checks, last, methods)
