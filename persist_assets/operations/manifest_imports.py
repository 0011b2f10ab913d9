"""Importing the manifest file of an environment, from this ledger or another one.

The invariant: an entry is published only if its table exists and confirms the entry.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from persist_assets.building.publishing import export
from persist_assets.core.errors import ConflictError, NotFoundError, StorageError
from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.ledger.manifest_file import Refused, parse_manifest
from persist_assets.operations.environments import (
    announce_moved,
    publishing_project,
    readable_project,
)
from persist_assets.planning.promotion import shown_partitions
from persist_assets.storage.delta_tables import find_parts, find_writer, read_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.building.builder import Builder
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.ledger.manifest_file import Entry, ManifestFile


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of importing a manifest file, or the expected one in a dry run.

    Attributes
    ----------
    moved
        The snapshots that readers did not see before.
    adopted
        The BuildIDs of `moved` whose builds this ledger did not know.
    n_same
        The number of entries that readers saw already.
    refused
        The refused entries. If there are any, nothing is imported, except in a partial import.
    strict
        The file's strict mode. It is not applied: settings decide it.
    change_id
        The number of the change; None if nothing was changed.
    """

    moved: tuple[Snapshot, ...]
    adopted: frozenset[str]
    n_same: int
    refused: tuple[Refused, ...]
    strict: bool | None
    change_id: int | None = None


def import_manifest(
    settings: Settings,
    ledger: Ledger,
    file: Path,
    *,
    dry_run: bool = False,
    why: str | None = None,
    builder: Builder | None = None,
) -> Imported:
    """Publish the entries of a manifest file in an environment: all of them or none.

    An entry becomes the snapshot that the ledger knows at its table and version. For a build of
    another ledger, the file has to describe everything, as our own exports do, and its table has
    to be in this project's warehouse. Every table is checked: it has to hold that version, with
    all its files, written by that build. Entries that the file does not name stay as they are, and
    so do the environment's own Malloy BuildIDs.

    Parameters
    ----------
    builder
        Updates the views through which others read sources, if the environment has such views.

    Raises
    ------
    NotFoundError
        The file cannot be read.
    """
    try:
        read = parse_manifest(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        read = parse_manifest("")
    reason = f"import of {file.name}"
    reason = f"{reason}: {why}" if why else reason
    return import_entries(settings, ledger, read, why=reason, dry_run=dry_run, builder=builder)


def import_entries(
    settings: Settings,
    ledger: Ledger,
    read: ManifestFile,
    *,
    why: str,
    dry_run: bool = False,
    partial: bool = False,
    builder: Builder | None = None,
) -> Imported:
    """Publish the entries of a parsed manifest file in an environment: see `import_manifest`.

    Parameters
    ----------
    partial
        Import the valid entries even if others are refused.
    """
    project = publishing_project(settings, builder)
    present = ledger.manifests.fetch(*settings.environments)
    now = datetime.now(UTC)
    refused = [*read.refused]
    chosen: list[Build] = []
    adopted: set[str] = set()
    n_same = 0
    for entry in read.entries:
        recorded = _find_known(settings, ledger, entry)
        build = recorded
        try:
            if build is None:
                build = _claimed_build(settings, entry, now)
                adopted.add(entry.build_id)
            assert build.snapshot is not None
            _verify(settings, build.snapshot)
        except (ConflictError, StorageError) as error:
            refused.append(Refused(entry.build_id, entry.source_id, error.message))
            continue
        if build.snapshot == present.get(entry.build_id):
            n_same += 1
        else:
            chosen.append(build)
    moved = tuple(b.snapshot for b in chosen if b.snapshot is not None)
    change = None
    if (partial or not refused) and not dry_run:
        if chosen:
            readable = readable_project(settings, project)
            change = ledger.manifests.adopt(
                settings.environment,
                chosen,
                refs=readable and shown_partitions(readable, moved, present, now),
                assets={*readable.keys.values()} if readable else (),
                malloy=dict(read.malloy),
                why=why,
            )
        export(settings, ledger)
        announce_moved(settings, ledger, project, builder, moved)
    new = frozenset(adopted & {s.build_id for s in moved})
    return Imported(moved, new, n_same, tuple(refused), read.strict, change)


def _find_known(settings: Settings, ledger: Ledger, entry: Entry) -> Build | None:
    """Return the build in this ledger that an entry of a file names, if there is one.

    Several builds may have the same table and version; the right one depends on the data versions
    that the file claims.
    """
    builds = [
        b
        for b in ledger.builds.fetch_succeeded(entry.build_id)
        if b.snapshot is not None
        and (settings.table_root(b.snapshot.table), b.snapshot.version)
        == (entry.path, entry.version)
    ]
    claim = entry.claim
    if claim is None:
        return next(iter(builds), None)
    same = (b for b in builds if b.snapshot is not None and b.snapshot.as_of == claim.as_of)
    return next(same, None)


def _claimed_build(settings: Settings, entry: Entry, now: datetime) -> Build:
    """Return the build that an entry claims to exist, to be recorded in this ledger.

    Raises
    ------
    ConflictError
        The file does not describe the build, or its table is outside the warehouse.
    """
    claim, source_id = entry.claim, entry.source_id
    if claim is None or source_id is None:
        raise ConflictError(
            "that version is not in this ledger, and the file does not describe its inputs"
        )
    warehouse = settings.project_warehouse.rstrip("/") + "/"
    if entry.path.startswith(warehouse):
        table = entry.path.removeprefix(warehouse) if settings.owns_ledger else entry.path
    elif entry.path.startswith(settings.warehouse.rstrip("/") + "/"):
        table = entry.path
    else:
        raise ConflictError(
            f"that version is not in this ledger, and {entry.path} is outside its warehouse"
        )
    snapshot = Snapshot(
        build_uid=claim.build_uid,
        source_id=source_id,
        build_id=entry.build_id,
        table=table,
        version=entry.version,
        as_of=claim.as_of,
        content=claim.content,
        rows=claim.rows,
        bytes=claim.bytes,
        built_at=claim.built_at,
        columns=claim.columns,
        watermark=claim.watermark,
        inputs=claim.inputs,
    )
    parts = find_parts(settings.table_root(table), entry.version)
    snapshot = replace(snapshot, parts=tuple(sorted(parts - {claim.build_uid})))
    return Build(
        build_uid=uuid.uuid4().hex,
        source_id=source_id,
        build_id=entry.build_id,
        definition=claim.definition,
        environment=settings.environment,
        run_id=None,
        state="succeeded",
        action="reused",
        started_at=now,
        finished_at=now,
        snapshot=snapshot,
    )


def _verify(settings: Settings, snapshot: Snapshot) -> None:
    """Check that a table holds a snapshot's version, complete and written by its build.

    Raises
    ------
    StorageError
        The version, or one of its files, is gone.
    ConflictError
        Another build wrote it, or its columns differ.
    """
    root = settings.table_root(snapshot.table)
    stored = read_snapshot(root, snapshot)
    if find_writer(root, snapshot.version) != (snapshot.build_uid, snapshot.build_id):
        raise ConflictError(
            f"version {snapshot.version} of the table {root} was written by another build"
        )
    if [(c.name, c.type) for c in stored.columns] != [(c.name, c.type) for c in snapshot.columns]:
        raise ConflictError(f"version {snapshot.version} of the table {root} has different columns")
