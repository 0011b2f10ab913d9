"""Builds and snapshots as rows of the ledger: values to columns and back, and shared queries."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError
from persist_assets.core.model.checks import CheckResult, FailedPartition
from persist_assets.core.model.columns import Column, Parts
from persist_assets.core.model.snapshots import (
    Build,
    Cost,
    Effort,
    Filled,
    KeptState,
    Leaf,
    Origin,
    Partitions,
    RawVersion,
    Snapshot,
    View,
    Written,
)
from persist_assets.core.model.sources import Read
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.processes import this_process
from persist_assets.ledger.tables import builds, manifest_entries, taints

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import AsOf, Runs

ENTRY = manifest_entries.c.build_uid == builds.c.build_uid
"""Joins a manifest entry to the build that it names."""


def published(*environments: str) -> sa.Select[Any]:
    """Return the query for the builds that environments have published, a BuildID's best one last.

    The best one is the one built, or found to be up to date, last. A tainted snapshot counts from
    when it was built: finding it up to date again does not make it better.
    """
    marked = sa.exists().where(
        taints.c.snapshot_uid == builds.c.snapshot_uid, taints.c.environment.in_(environments)
    )
    confirmed = builds.c.current_at > builds.c.finished_at
    since = sa.case(
        (marked, builds.c.built_at),
        (confirmed, builds.c.current_at),
        else_=builds.c.finished_at,
    )
    return (
        sa.select(builds)
        .join(manifest_entries, ENTRY)
        .where(manifest_entries.c.environment.in_(environments))
        .order_by(builds.c.build_id, since, manifest_entries.c.published_at)
    )


def update_each(connection: Connection, uids: Iterable[str], values: Mapping[str, Any]) -> None:
    """Set columns of the builds of some snapshots."""
    for part in in_parts(sorted(uids)):
        these = builds.c.snapshot_uid.in_(part)
        connection.execute(builds.update().where(these).values(**values))


def refuse_collected(connection: Connection, build_uids: Iterable[str]) -> None:
    """Raise ConflictError if the snapshot of one of these builds was collected."""
    for part in in_parts(sorted(build_uids)):
        query = sa.select(builds.c.table_name, builds.c.version).where(
            sa.or_(builds.c.build_uid.in_(part), builds.c.snapshot_uid.in_(part)),
            builds.c.collected_at.is_not(None),
        )
        gone = connection.execute(query).first()
        if gone is not None:
            raise ConflictError(
                f"{gone.table_name} version {gone.version} was collected", hint="build it again"
            )


def refuse_moved(
    connection: Connection,
    expected: Iterable[tuple[Build, Collection[Snapshot | None] | None]],
) -> None:
    """Raise ConflictError if a promotion or rollback changed manifest entries during builds.

    Parameters
    ----------
    expected
        The snapshots that the entry of each build may name; None: any.
    """
    query = sa.select(builds.c.snapshot_uid, builds.c.version).join(manifest_entries, ENTRY)
    for build, snapshots in expected:
        if snapshots is None:
            continue
        here = manifest_entries.c.environment == build.environment
        one = query.where(here, manifest_entries.c.build_id == build.build_id)
        row = connection.execute(one).one_or_none()
        if (row and tuple(row)) not in [s and (s.build_uid, s.version) for s in snapshots]:
            name = build.source_id.partition("@")[0]
            raise ConflictError(
                f"a promotion or rollback changed the table of `{name}` in {build.environment} "
                "during the build",
                hint="build again",
            )


def event_data(build: Build) -> dict[str, Any]:
    """Return the data that all events of a build share."""
    return {
        "source_id": build.source_id,
        "build_id": build.build_id,
        "build_uid": build.build_uid,
        "environment": build.environment,
        "run_id": build.run_id,
        "process": this_process(),
    }


def build_values(build: Build) -> dict[str, Any]:
    """Return the columns of `builds` that are set when a build starts."""
    return {
        "build_uid": build.build_uid,
        "source_id": build.source_id,
        "build_id": build.build_id,
        "definition": build.definition,
        "environment": build.environment,
        "run_id": build.run_id,
        "state": build.state,
        "action": build.action,
        "started_at": build.started_at,
        "digests": _digests_values(build),
        "process": this_process(),
    }


def taken_values(
    build: Build, checks: Mapping[tuple[str, SourceID], Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return the columns of `builds` of a build that only takes a snapshot over.

    Parameters
    ----------
    checks
        The results of checks that snapshots have, by snapshot and source, then by name.
    """
    snapshot = build.snapshot
    assert snapshot is not None
    return {
        **build_values(build),
        **snapshot_values(snapshot),
        "table_name": snapshot.table,
        "finished_at": build.finished_at,
        "checks": [*checks.get((snapshot.build_uid, build.source_id), {}).values()],
    }


def _digests_values(build: Build) -> dict[str, Any] | None:
    if build.digests is None:
        return None
    return {
        **asdict(build.digests),
        "reads": [[r.source_id, r.definition, asdict(r.digests)] for r in build.reads],
    }


def _parts(values: Mapping[str, Any]) -> Parts:
    return Parts(values["rows"], tuple((name, digest) for name, digest in values["columns"]))


def snapshot_values(snapshot: Snapshot) -> dict[str, Any]:
    """Return the columns of `builds` that describe the snapshot."""
    return {
        "snapshot_uid": snapshot.build_uid,
        "version": snapshot.version,
        "as_of": _versions_values(snapshot.as_of),
        "content": snapshot.content,
        "rows": snapshot.rows,
        "bytes": snapshot.bytes,
        "built_at": snapshot.built_at,
        "columns": [[c.name, c.type] for c in snapshot.columns],
        "watermark": snapshot.watermark,
        "inputs": _versions_values(snapshot.inputs),
        "current_at": snapshot.current_at,
        "view": asdict(snapshot.view) if snapshot.view else None,
        "parts": [*snapshot.parts] or None,
        "time_column": snapshot.time_column,
        "partitions": _partitions_values(snapshot.partitions) if snapshot.partitions else None,
        "states": [[s.definition, s.rows] for s in snapshot.states] or None,
        **_origin_values(snapshot.origin),
    }


def _origin_values(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {"text": None, "software": None, "names": None}
    names = [[build_id, text] for build_id, text in origin.names]
    return {"text": origin.text, "software": origin.software, "names": names}


def _origin(row: Row[Any]) -> Origin | None:
    if row.text is None:
        return None
    names = tuple((build_id, text) for build_id, text in row.names or ())
    return Origin(row.text, row.software, names)


def _versions_values(versions: AsOf) -> list[list[str]]:
    return [[v.raw, v.version] for v in versions]


def _partitions_values(partitions: Partitions) -> dict[str, Any]:
    return {
        "filled": [
            [[*map(list, f.runs)], _versions_values(f.as_of), _versions_values(f.inputs)]
            for f in partitions.filled
        ],
        "built": [*map(list, partitions.built)],
        "base": partitions.base,
    }


def _versions(values: Iterable[Sequence[str]]) -> AsOf:
    return tuple(RawVersion(raw, version) for raw, version in values)


def _partitions(values: Mapping[str, Any], inputs: AsOf) -> Partitions:
    """Return partitions; early releases recorded one `inputs` for all groups."""

    def runs(pairs: Sequence[Sequence[str]]) -> Runs:
        return tuple((first, last) for first, last in pairs)

    filled = (
        Filled(runs(pairs), _versions(as_of), _versions(recorded[0]) if recorded else inputs)
        for pairs, as_of, *recorded in values["filled"]
    )
    return Partitions(tuple(filled), runs(values["built"]), values["base"])


def snapshot_of(row: Row[Any]) -> Snapshot:
    """Return the snapshot in a row of `builds`."""
    inputs = _versions(row.inputs or ())
    return Snapshot(
        build_uid=row.snapshot_uid,
        source_id=row.source_id,
        build_id=row.build_id,
        table=row.table_name,
        version=row.version,
        as_of=_versions(row.as_of),
        content=row.content,
        rows=row.rows,
        bytes=row.bytes,
        built_at=row.built_at,
        columns=tuple(Column(name, kind) for name, kind in row.columns),
        watermark=row.watermark,
        inputs=inputs,
        current_at=row.current_at,
        view=_view(row.view) if row.view else None,
        parts=tuple(row.parts or ()),
        time_column=row.time_column,
        partitions=_partitions(row.partitions, inputs) if row.partitions else None,
        states=tuple(KeptState(definition, n) for definition, n in row.states or ()),
        origin=_origin(row),
    )


def _view(values: Mapping[str, Any]) -> View:
    leaves = (
        Leaf(
            v["name"],
            v["build_uid"],
            RawVersion(**v["raw"]) if v["raw"] else None,
            tuple(v.get("columns", ())),
        )
        for v in values["leaves"]
    )
    return View(values["sql"], tuple(leaves))


def cost_of(row: Row[Any]) -> Cost:
    """Return the cost of the build in a row of `builds` that recorded its method."""
    effort = row.effort or {}
    n_rows, n_bytes = row.written_rows or 0, row.written_bytes or 0
    elsewhere_s = effort.get("seconds_shared", 0.0) + effort.get("seconds_lost", 0.0)
    seconds = max(0.0, row.computed_seconds - elsewhere_s)
    by_size_s, owed_s = effort.get("seconds_by_size"), effort.get("seconds_owed", 0.0)
    return Cost(row.maintenance, seconds, n_rows, n_bytes, by_size_s, owed_s)


def build_of(row: Row[Any]) -> Build:
    """Return the build in a row of `builds`."""
    return Build(
        build_uid=row.build_uid,
        source_id=row.source_id,
        build_id=row.build_id,
        definition=row.definition,
        environment=row.environment,
        run_id=row.run_id,
        state=row.state,
        action=row.action,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error,
        snapshot=snapshot_of(row) if row.state == "succeeded" else None,
        digests=_parts(row.digests) if row.digests else None,
        reads=tuple(
            Read(source_id, definition, _parts(values))
            for source_id, definition, values in (row.digests or {}).get("reads", ())
        ),
        written=None if row.written_rows is None else Written(row.written_rows, row.written_bytes),
        maintenance=row.maintenance,
        computed_s=row.computed_seconds,
        effort=Effort(**row.effort) if row.effort else None,
    )


def check_result_of(values: Mapping[str, Any]) -> CheckResult:
    """Return a result of a check from its columns."""
    result = CheckResult(**values)
    places = tuple(FailedPartition(**place) for place in values.get("partitions", ()))
    return replace(result, sample=tuple(result.sample), partitions=places)
