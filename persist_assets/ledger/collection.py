"""Queries for garbage collection: forgotten entries, unreached snapshots, and holdings."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.core.model.snapshots import Holding
from persist_assets.ledger.rows import ENTRY
from persist_assets.ledger.tables import builds, manifest_changes, manifest_entries, manifest_moves

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from sqlalchemy.engine import Connection

    from persist_assets.core.model.queries import BuildID, SourceID

INTERRUPTED = "interrupted"
"""The error of a build whose end another process recorded."""


def forgotten(
    connection: Connection,
    before: datetime,
    collecting: str,
    defined: Collection[BuildID],
    sources: Collection[SourceID] | None,
) -> dict[str, list[BuildID]]:
    """Return the manifest entries that are no longer needed, by environment.

    Parameters
    ----------
    sources
        All sources defined in the environment `collecting`, which forgets the entries of others.
        None: it keeps these too.
    """
    times_by_source, sharing = _history(connection)
    query = (
        sa.select(manifest_entries, builds.c.current_at)
        .join(builds, ENTRY)
        .order_by(manifest_entries.c.build_id)
    )
    entries = connection.execute(query).all()
    present = {(e.environment, e.build_id) for e in entries}
    for entry in entries:  # a promotion may have found it in place: see `Manifests.confirm`
        for source_id in sharing[entry.build_id]:
            times = times_by_source.get((entry.environment, source_id), {})
            if entry.build_id in times:
                times[entry.build_id] = max(times[entry.build_id], entry.published_at)
    unneeded: dict[str, list[BuildID]] = {}
    for entry in entries:
        environment, build_id = entry.environment, entry.build_id
        published: datetime = entry.published_at
        # Builds that found it up to date may have confirmed it since (`Partitions.confirm`).
        published = max(published, entry.current_at or published)
        at, superseded = published, True
        # A source with this BuildID elsewhere may get it here by a promotion.
        for source_id in sharing[build_id]:
            times = times_by_source.get((environment, source_id), {})
            since = max(times.get(build_id, published), published)
            at = max(at, since)
            # A BuildID that was rolled back has no entry, so it supersedes none.
            later = [t for b, t in times.items() if t > since and (environment, b) in present]
            superseded &= bool(later) and min(later) < before
        gone = sources is not None and sharing[build_id].isdisjoint(sources)
        useless = superseded or (gone and environment == collecting)
        if at < before and useless and build_id not in defined:
            unneeded.setdefault(environment, []).append(build_id)
    return unneeded


def _history(
    connection: Connection,
) -> tuple[dict[tuple[str, SourceID], dict[BuildID, datetime]], dict[BuildID, set[SourceID]]]:
    """Return when each source last got each BuildID, by environment, and the sources of each."""
    moved = (
        sa.select(
            manifest_changes.c.environment,
            manifest_changes.c.at.label("at"),
            builds.c.source_id,
            builds.c.build_id,
        )
        .join(manifest_moves, manifest_moves.c.change_id == manifest_changes.c.change_id)
        .join(builds, manifest_moves.c.after == builds.c.build_uid)
    )
    # Sources with the same BuildID share an entry, which names the build of only one of them; and
    # entries may be older than the history of changes.
    built = sa.select(
        builds.c.environment,
        builds.c.finished_at.label("at"),
        builds.c.source_id,
        builds.c.build_id,
    ).where(builds.c.state == "succeeded")
    history = sa.union_all(moved, built).subquery()
    times_by_source: dict[tuple[str, SourceID], dict[BuildID, datetime]] = {}
    sharing: dict[BuildID, set[SourceID]] = {}
    for row in connection.execute(sa.select(history).order_by(history.c.at)):
        times_by_source.setdefault((row.environment, row.source_id), {})[row.build_id] = row.at
        sharing.setdefault(row.build_id, set()).add(row.source_id)
    return times_by_source, sharing


def unreached(connection: Connection, before: datetime) -> set[str]:
    """Return the snapshots that no reader could have reached since an instant."""
    recent = (
        sa.select(manifest_moves.c.before, manifest_moves.c.after)
        .join(manifest_changes, manifest_changes.c.change_id == manifest_moves.c.change_id)
        .where(manifest_changes.c.at >= before, manifest_changes.c.kind != "collect")
        .subquery()
    )
    named = sa.union(
        sa.select(manifest_entries.c.build_uid),
        sa.select(recent.c.before),
        sa.select(recent.c.after),
    )
    query = sa.select(builds.c.snapshot_uid).where(builds.c.build_uid.in_(named))
    stack, reached = [*connection.scalars(query)], set[str]()
    # Looked up by snapshot: a build that was never published may share its view with others.
    query = sa.select(builds.c.snapshot_uid, builds.c.view).where(builds.c.view.is_not(None))
    views = {row.snapshot_uid: row.view for row in connection.execute(query)}
    while stack:
        uid = stack.pop()
        if uid is not None and uid not in reached:
            reached.add(uid)
            stack += [leaf["build_uid"] for leaf in views.get(uid, {"leaves": ()})["leaves"]]
    alive = sa.select(builds.c.snapshot_uid).where(
        builds.c.state == "succeeded", builds.c.collected_at.is_(None)
    )
    return {*connection.scalars(alive)} - reached


def holdings(connection: Connection, table: str | None = None) -> list[Holding]:
    """Return the holdings of all tables, or of one."""
    query = sa.select(
        *(builds.c[name] for name in ("table_name", "build_id", "build_uid", "state", "version")),
        *(builds.c[name] for name in ("collected_at", "process", "started_at", "snapshot_uid")),
        *(builds.c[name] for name in ("error", "parts")),
    ).order_by(builds.c.table_name, builds.c.started_at)
    if table is not None:
        query = query.where(builds.c.table_name == table)
    tables: list[Holding] = []
    for name, rows in groupby(connection.execute(query), lambda row: row.table_name):
        kept_versions: dict[str, int] = {}
        gone: dict[str, int | None] = {}
        started: list[tuple[str, str | None, datetime]] = []
        build_ids: set[BuildID] = set()
        parts: dict[str, tuple[str, ...]] = {}
        for row in rows:
            build_ids.add(row.build_id)
            if row.parts and row.collected_at is None:
                parts[row.snapshot_uid or row.build_uid] = tuple(row.parts)
            # Builds of the same run still read what a parked build wrote before its interruption.
            is_interrupted = row.state == "failed" and row.error == INTERRUPTED
            if row.state == "started" or is_interrupted:
                started.append((row.build_uid, row.process, row.started_at))
            elif row.state == "failed":
                gone[row.build_uid] = None
            elif row.collected_at is None:
                kept_versions[row.snapshot_uid] = row.version
            elif row.build_uid == row.snapshot_uid:  # otherwise another ledger may need it
                gone[row.snapshot_uid] = row.version
        tables.append(
            Holding(
                name,
                tuple(sorted(build_ids)),
                kept_versions,
                gone,
                tuple(started),
                parts,
            )
        )
    return tables
