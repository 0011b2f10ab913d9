"""Tables under fixed names: which snapshot each of them has to have, and bringing it there.

The ledger moves first; the published tables follow, one commit each. If the process dies in
between, the next build of the source brings its table up to date, even if it reuses everything:
the ledger records what each published table has.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from persist_assets.building.catalog_views import check_catalog, show, shown, shown_as
from persist_assets.core.digests import digest
from persist_assets.core.errors import ConflictError, PersistError, SettingsError, StorageError
from persist_assets.ledger.manifest_file import export_manifest, fetch_document
from persist_assets.ledger.published import REMOVING
from persist_assets.planning.selection import select
from persist_assets.storage.delta_tables import LOG
from persist_assets.storage.files import (
    delete_directory,
    file_exists,
    list_files,
    list_own,
    read_bytes,
    write_text,
)
from persist_assets.storage.published_tables import (
    PUBLISHER,
    Description,
    OvertakenError,
    check_own,
    describe,
    open_published,
    publish_version,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.ledger.published import PublishedTable

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
"""The name of an environment's manifest beside its tables under fixed names."""
_AT_ONCE = 8
_FEW = 8
"""Up to this number of sources are looked up one by one, not in the whole manifest."""
_ATTEMPTS = 5
"""The maximum number of attempts to publish a table that other processes change meanwhile."""

Action = Literal["published", "described", "removed", "current", "skipped", "failed"]
_CHANGES = ("published", "described", "removed")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of publishing a table under a fixed name.

    Attributes
    ----------
    action
        ``published``: it has other rows now; ``described``: only other comments; ``removed``:
        the environment no longer has rows for it; ``current``: it was up to date; ``skipped`` and
        ``failed``: see `reason`.
    build_uid
        The build that it should have; None: the source is not built.
    """

    source_id: SourceID
    place: str
    action: Action
    build_uid: str | None
    reason: str | None = None


def announce(
    settings: Settings,
    ledger: Ledger,
    project: Project,
    among: Collection[SourceID] | None = None,
    *,
    engine: Engine | None = None,
) -> list[Outcome]:
    """Update the published tables to an environment's manifest; return the outcomes.

    Parameters
    ----------
    among
        The sources that may have moved; None: all.
    engine
        Updates views in a catalog; None: these stay as they are.

    Raises
    ------
    StorageError
        A table or a view could not be changed. The environment's own readers get the new rows
        anyway.
    """
    outcomes = publish(settings, ledger, project, among)
    if engine is not None:
        show_views(settings, ledger, project, engine, among)
    for outcome in outcomes:
        if outcome.build_uid and outcome.action in ("skipped", "removed"):
            log.warning("action=publish place=%s: %s", outcome.place, outcome.reason)
    failed = [o for o in outcomes if o.action == "failed"]
    if failed:
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise StorageError(
            f"the table at {failed[0].place} still has earlier rows{more}: {failed[0].reason}",
            hint="persist publish tries again; so does the next build of the source",
        )
    return outcomes


def export(settings: Settings, ledger: Ledger) -> int:
    """Write an environment's manifest to its file and beside its tables under fixed names.

    Returns
    -------
    int
        The number of entries; see `export_manifest`.
    """
    n_entries = export_manifest(settings, ledger)
    share_manifest(settings, ledger)
    return n_entries


def share_manifest(settings: Settings, ledger: Ledger, *, take_over: bool = False) -> None:
    """Write an environment's manifest beside its tables under fixed names, if it has any.

    If that fails, a warning is logged: the next change of the environment writes it.

    Parameters
    ----------
    take_over
        Also replace the manifest of another ledger or environment.
    """
    if settings.publish is None or not settings.publish.path:
        return
    location = f"{settings.publish.path}/{MANIFEST}"
    publisher = publisher_of(settings, ledger)
    with ledger.leases.hold(f"publish {location}", "a publication"):
        try:
            if not take_over and _publisher_at(location) not in (None, publisher):
                log.warning("action=publish place=%s: kept, it has another publisher", location)
                return
            document = {**fetch_document(settings, ledger), "publisher": publisher}
            write_text(location, json.dumps(document, indent=2, sort_keys=True) + "\n")
        except StorageError as error:
            log.warning("action=publish place=%s error=%s", location, error.message)


def _publisher_at(location: str) -> str | None:
    """Return the publisher of the manifest at a location; None: there is none, or it is unknown.

    Raises
    ------
    StorageError
        It cannot be read.
    """
    if not file_exists(location):
        return None
    try:
        return json.loads(read_bytes(location)).get("publisher")
    except (ValueError, AttributeError):  # not a manifest
        return None


def show_views(
    settings: Settings,
    ledger: Ledger,
    project: Project,
    engine: Engine,
    among: Collection[SourceID] | None = None,
    *,
    take_over: bool = False,
) -> None:
    """Bring the views of an environment up to date; see `announce`, and `publish`."""
    sources = project.persisted
    if settings.publish is not None and settings.publish.catalog:
        addresses(settings, project)
        sources = published_sources(settings, project)
    chosen = [s for s in sources if among is None or s.source_id in among]
    show(settings, ledger, engine, chosen, publisher_of(settings, ledger), take_over=take_over)


def find_left(settings: Settings, ledger: Ledger, project: Project) -> list[str]:
    """Return the places of published tables that no longer follow a source, sorted."""
    places = {*addresses(settings, project).values()}
    return [p for p in ledger.published.fetch(settings.environment) if p not in places]


def fixed_name(source: Source) -> tuple[str, ...]:
    """Return the name under which a source is published: its group and name, or annotated parts.

    Source: `name` in its annotation; a dot separates parts.
    """
    name = source.annotation.name
    if name is not None and "." in name:
        return tuple(name.split("."))
    return (source.group, name or source.name)


def addresses(settings: Settings, project: Project) -> dict[SourceID, str]:
    """Return the places of the tables that an environment publishes, by source.

    Raises
    ------
    SettingsError
        Two sources have the same place, or the selection is wrong.
    """
    publish = settings.publish
    if publish is None:
        return {}
    places: dict[SourceID, str] = {}
    owners: dict[str, Source] = {}
    for source in published_sources(settings, project):
        name = fixed_name(source)
        address = name[-1:] if publish.catalog else name
        other = owners.setdefault("/".join(address).lower(), source)
        if other is not source:
            raise SettingsError(
                f"`{other.key}` and `{source.key}` are both published as {'/'.join(address)}",
                hint=f"give one of them another `name`{'' if publish.catalog else ' or `group`'}",
                location=source.location,
            )
        places[source.source_id] = "/".join((publish.path, *name))
    for name, source in owners.items():
        parts = name.split("/")
        for n in range(1, len(parts)):
            other = owners.get("/".join(parts[:n]))
            if other is not None:
                raise SettingsError(
                    f"`{source.key}` would be published inside the table of `{other.key}`",
                    hint="give one of them another `name`",
                    location=source.location,
                )
    return places if publish.path else {}


def check_names(settings: Settings, project: Project, engine: Engine, source: Source) -> None:
    """Raise if readers could not find the rows of a source under its fixed names.

    Raises
    ------
    SettingsError
        See `addresses`, and `check_catalog`.
    """
    addresses(settings, project)
    if (name := shown_as(settings, source)) is not None:
        check_catalog(engine, name)


def published_sources(settings: Settings, project: Project) -> list[Source]:
    """Return the sources that an environment publishes.

    Raises
    ------
    PersistError
        The selection is wrong.
    """
    publish = settings.publish
    if publish is None:
        return []
    if not publish.select:
        return [*project.persisted]
    try:
        chosen = {*select(project, publish.select, selectors=settings.selectors)}
    except PersistError as error:
        error.message = f"`[env.{settings.environment}.publish] select`: {error.message}"
        raise
    return [s for s in project.persisted if s.source_id in chosen]


def publish(
    settings: Settings,
    ledger: Ledger,
    project: Project,
    among: Collection[SourceID] | None = None,
    *,
    dry_run: bool = False,
    verify: bool = False,
    take_over: bool = False,
) -> list[Outcome]:
    """Bring the tables under fixed names up to date with an environment's manifest.

    Parameters
    ----------
    among
        Only these sources; None: all.
    dry_run
        Only say what would be done, according to the ledger.
    verify
        Also check tables that are up to date according to the ledger: someone may have deleted
        or changed them.
    take_over
        Also change tables that another ledger or environment has published.

    Raises
    ------
    SettingsError
        See `addresses`.
    """
    places = addresses(settings, project)
    chosen = {s: p for s, p in places.items() if among is None or s in among}
    outcomes = _without_source(settings, ledger, project) if among is None else []
    if not chosen:
        return outcomes
    environment = settings.environment
    recorded = ledger.published.fetch(
        environment, *(chosen.values() if len(chosen) <= _FEW else ())
    )
    tainted = ledger.taints.fetch(environment)
    snapshots = _shown_to_readers(settings, ledger, [project.by_id[s] for s in chosen])
    due: list[tuple[Source, str]] = []
    for source_id, place in chosen.items():
        source = project.by_id[source_id]
        snapshot = snapshots[source_id]
        outcome = _as_recorded(source, place, snapshot, tainted, recorded.get(place))
        due_now = outcome.action in _CHANGES or (verify and outcome.action == "current")
        if due_now and not dry_run:
            due.append((source, place))
        else:
            outcomes.append(outcome)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes += pool.map(
            lambda d: _publish_one(settings, ledger, *d, verify=verify, take_over=take_over), due
        )
    return sorted(outcomes, key=lambda o: o.place)


def _without_source(settings: Settings, ledger: Ledger, project: Project) -> list[Outcome]:
    """Return the tables that do not follow because their sources have errors."""
    if not project.errors:
        return []
    latest = ledger.builds.fetch_current(settings.environment)
    reason = f"its source has errors: {project.errors[0].message}"
    return [
        Outcome(table.source_id, place, "failed", None, reason)
        for place, table in ledger.published.fetch(settings.environment).items()
        if table.source_id not in project.by_id and not _has(table, latest.get(table.source_id))
    ]


def _has(table: PublishedTable, build: Build | None) -> bool:
    """Whether a published table has the rows of a build."""
    snapshot = build.snapshot if build is not None else None
    return snapshot is not None and snapshot.build_uid == table.build_uid


def _shown_to_readers(
    settings: Settings, ledger: Ledger, sources: Sequence[Source]
) -> dict[SourceID, Snapshot | None]:
    """Return the snapshot that readers of each source get; see `shown`."""
    if len(sources) <= _FEW:
        return {s.source_id: shown(settings, ledger, s) for s in sources}
    manifest = ledger.manifests.fetch(settings.environment)
    latest = ledger.builds.fetch_current(settings.environment)
    snapshots: dict[SourceID, Snapshot | None] = {}
    for source in sources:
        build = latest.get(source.source_id)
        last = manifest.get(build.build_id) if build else None
        snapshots[source.source_id] = manifest.get(source.build_id, last)
    return snapshots


def _as_recorded(
    source: Source,
    place: str,
    snapshot: Snapshot | None,
    tainted: Collection[str],
    table: PublishedTable | None,
) -> Outcome:
    """Return the action that a published table needs, according to the ledger."""
    if snapshot is None and table is not None:
        return Outcome(source.source_id, place, "removed", None, "no longer built there")
    if snapshot is None:
        return Outcome(source.source_id, place, "skipped", None, "not built yet")
    uid = snapshot.build_uid
    if snapshot.view is not None:
        action = "skipped" if table is None else "removed"
        reason = "a stored query has no files; publish it to a catalog"
        return Outcome(source.source_id, place, action, uid, reason)
    if table is None or table.build_uid != uid:
        if uid in tainted:
            reason = "its rows are tainted, so the table keeps the earlier ones"
            return Outcome(source.source_id, place, "skipped", uid, reason)
        return Outcome(source.source_id, place, "published", uid)
    same = table.described == _digest(description_of(source, snapshot))
    return Outcome(source.source_id, place, "current" if same else "described", uid)


def _publish_one(
    settings: Settings, ledger: Ledger, source: Source, place: str, *, verify: bool, take_over: bool
) -> Outcome:
    """Update one table, even if other processes change it at the same time."""
    try:
        with ledger.leases.hold(f"publish {place}", "a publication"):
            return _follow(settings, ledger, source, place, verify=verify, take_over=take_over)
    except PersistError as error:
        reason = f"{error.message}; {error.hint}" if error.hint else error.message
        return Outcome(source.source_id, place, "failed", None, reason)


def _follow(
    settings: Settings, ledger: Ledger, source: Source, place: str, *, verify: bool, take_over: bool
) -> Outcome:
    """Bring one table up to date; see `_publish_one`, which holds its lease.

    Raises
    ------
    PersistError
        It could not be changed.
    """
    for attempt in range(_ATTEMPTS):
        try:
            table = _opened(settings, ledger, place, take_over=take_over)
            # Only now: a version of the table that is newer than this one would be a conflict.
            snapshot = shown(settings, ledger, source)
            tainted = ledger.taints.fetch(settings.environment)
            outcome = _as_recorded(source, place, snapshot, tainted, ledger.published.find(place))
            if outcome.action == "removed":
                remove_published(ledger, settings.environment, place, source.source_id)
            if outcome.action in ("removed", "skipped") or snapshot is None:
                return outcome
            return _move(
                settings,
                ledger,
                source,
                place,
                table,
                snapshot,
                verify=verify,
                take_over=take_over,
            )
        except OvertakenError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _opened(settings: Settings, ledger: Ledger, place: str, *, take_over: bool) -> Any:
    """Return the published table at a place, or None; complete its removal, if that has begun."""
    recorded = ledger.published.find(place)
    is_partial = recorded is not None and recorded.described == REMOVING
    try:
        table = open_published(place, publisher_of(settings, ledger), take_over=take_over)
    except StorageError:  # part of its log is deleted already
        if not is_partial:
            raise
    else:
        if not is_partial:
            return table
    remove_published(ledger, settings.environment, place, recorded.source_id if recorded else "")
    return None


def remove_published(ledger: Ledger, environment: str, place: str, source_id: SourceID) -> None:
    """Delete a published table; the caller holds its lease.

    Raises
    ------
    ConflictError
        There is another table in its directory, or no table but files of others, or the directory
        is a symbolic link.
    StorageError
        A file cannot be deleted.
    """
    files = list_own(place)
    inner = f"/{LOG}/"
    recorded = ledger.published.find(place)
    is_partial = recorded is not None and recorded.described == REMOVING
    if not is_partial and not any(f.location.startswith(f"{place}{inner}") for f in files):
        check_own(place)
    for file in files:
        path = file.location.removeprefix(place)
        if inner in path and not path.startswith(inner):
            table = file.location.rpartition(inner)[0]
            raise ConflictError(f"{place} was not deleted, because another table is at {table}")
    if not files and list_files(place):
        raise ConflictError(f"{place} is a symbolic link: delete it and its table yourself")
    ledger.published.begin(environment, place, source_id, REMOVING)
    delete_directory(place)
    ledger.published.forget(place)


def _move(
    settings: Settings,
    ledger: Ledger,
    source: Source,
    place: str,
    table: Any,
    snapshot: Snapshot,
    *,
    verify: bool,
    take_over: bool,
) -> Outcome:
    """Give an opened table the rows and the description of a snapshot, and record that."""
    description = description_of(source, snapshot)
    publisher = publisher_of(settings, ledger)
    before, token = None if table is None else int(table.version()), uuid4().hex
    ledger.published.begin(settings.environment, place, source.source_id, token)
    version = publish_version(
        place,
        table,
        (settings.table_root(snapshot.table), snapshot.version),
        {
            PUBLISHER: publisher,
            "persist.build": snapshot.build_uid,
            "persist.build_id": snapshot.build_id,
            "persist.source": source.source_id,
        },
        description,
        verify=verify,
    )
    table = open_published(place, publisher, take_over=take_over)
    described = describe(place, table, publisher, description)
    ledger.published.record(place, token, snapshot.build_uid, version, _digest(description))
    action = "published" if version != before else "described" if described else "current"
    log.info("action=publish place=%s version=%d build=%s", place, version, snapshot.build_uid)
    return Outcome(source.source_id, place, action, snapshot.build_uid)


def publisher_of(settings: Settings, ledger: Ledger) -> str:
    """Return the name by which published tables know the ledger and environment they belong to."""
    return f"{ledger.events.log_id()}/{settings.environment}"


def description_of(source: Source, snapshot: Snapshot) -> Description:
    """Return the description of a source's published table."""
    described = {c.name: c.description for c in source.known_columns if c.description}
    present = {c.name for c in snapshot.columns}
    comments = {name: text for name, text in described.items() if name in present}
    return Description(source.description, comments, source.annotation.owners)


def _digest(description: Description) -> str:
    comments = tuple(sorted(description.comments.items()))
    return digest(description.text or "", comments, description.owners)
