"""Garbage collection: unreadable data is given up in the ledger, then its files are deleted.

Only files of this ledger are deleted: builds that it names, copies that it made, and entries of
`.temporary/` and `.listings/` under its own id and with names of ours. Symbolic links below the
warehouse are not followed. So files of other ledgers and of users stay, wherever they are.

The order makes this safe. Once the ledger has given up a snapshot, no manifest can name it again;
only then are its files deleted, under the leases of those who build into the same table. A
collection that dies in between leaves files that the next one finds already given up.
"""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from persist_assets.building.failing_rows import FAILURES, failures_table
from persist_assets.building.publishing import find_left, publisher_of, remove_published
from persist_assets.building.strategies.temporary import TEMPORARY, temporary_lease
from persist_assets.core.errors import ConflictError, SettingsError, StorageError
from persist_assets.core.settings.load import environments_of, load_settings
from persist_assets.external.coverage import COPIES, copy_root, find_copy_ids
from persist_assets.external.ingestion import STAGED
from persist_assets.ledger.manifest_file import export_manifest
from persist_assets.ledger.processes import has_ended
from persist_assets.storage.changes import listed_version, listings_of
from persist_assets.storage.delta_deletions import (
    delete_builds,
    delete_replaced,
    delete_table,
    find_written,
)
from persist_assets.storage.delta_tables import LOG, find_table
from persist_assets.storage.files import delete_directory, delete_file, is_linked, list_own
from persist_assets.storage.published_tables import open_published, tidy_published

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.snapshots import Holding
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger
    from persist_assets.storage.files import Found

log = logging.getLogger(__name__)

LONGEST = timedelta(days=1)
"""The time for which a build without a lease is assumed to be alive, unless its process is known
to be gone.
"""


@dataclass(frozen=True, slots=True)
class Collected:
    """The data that is deleted from a table.

    Attributes
    ----------
    versions
        Those that were published once; builds that died or failed have none.
    bytes
        The total size of the files.
    """

    table: str
    versions: tuple[int, ...]
    bytes: int


def collect(
    settings: Settings,
    project: Project,
    ledger: Ledger,
    *,
    removed: bool = False,
    dry_run: bool = False,
    is_fresh: bool = True,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Collected]:
    """Delete all data that no manifest, no kept history and no running build needs.

    An interrupted collection loses nothing, and the next one completes it.

    Parameters
    ----------
    project
        The sources that the environment defines.
    removed
        Also remove sources that are not in `project` from the environment's manifest, and delete
        copies that none of its sources need, and published tables that follow none of them.
    dry_run
        Only report what would be deleted.
    is_fresh
        The settings and the project were read just now. Otherwise failing rows that they do not
        know may be those of newer code.

    Raises
    ------
    LedgerError
        The ledger does not answer.
    StorageError
        A file cannot be deleted.
    """
    defined = {b: [s.source_id for s in sources] for b, sources in project.by_build_id.items()}
    horizon = clock() - timedelta(seconds=settings.keep_s)
    holdings = ledger.builds.collect(
        horizon, settings.environment, defined, removed=removed, dry_run=dry_run
    )
    if not dry_run:
        for name in {settings.environment, *settings.declared}:
            export_manifest(load_settings(settings.root, environment=name), ledger)
    collected = [_sweep(settings, ledger, h, clock(), dry_run=dry_run) for h in holdings]
    collected += _sweep_temporary(settings, ledger, dry_run=dry_run)
    unneeded = _find_unneeded_failures(
        settings, project, ledger, horizon, removed=removed, is_fresh=is_fresh
    )
    collected += _delete_failures(unneeded, dry_run=dry_run)
    collected += _sweep_published(
        settings, project, ledger, clock(), removed=removed, dry_run=dry_run
    )
    read = {need.table for need in project.needs}
    ids = find_copy_ids(settings, project.sources, ledger.copies)
    needed = {copy_id for source_id, copy_id in ids.items() if source_id in read}
    copies = ledger.copies.fetch() if removed else ()
    left = {c.copy_id for c in copies if c.copy_id not in needed and c.as_of < horizon}
    for copy in () if dry_run else left:
        ledger.copies.record_needs(copy, settings.environment, ())
    collected += _sweep_copies(settings, ledger, left, dry_run=dry_run)
    if not dry_run:
        _sweep_listings(settings, ledger, clock())
        _sweep_leases(ledger)
    return [c for c in collected if c is not None]


def end_environment(
    settings: Settings, project: Project, ledger: Ledger
) -> tuple[int, list[Collected]]:
    """End an environment: its manifest is forgotten, and what only it read is deleted.

    Snapshots that were promoted elsewhere stay.

    Returns
    -------
    tuple[int, list[Collected]]
        How many entries its manifest had, and what the garbage collection deleted.

    Raises
    ------
    SettingsError
        The environment is not one of a pattern, or it is the default one: others may rely on it.
    ConflictError
        A build or a want of the environment is under way, or another environment reads it.
    """
    name = settings.environment
    default, *others = environments_of(settings.root)
    if not settings.is_temporary(name) or name == default:
        raise SettingsError(
            f"`{name}` is not an environment of a pull request: only those can be ended",
            hint='declare their names as a pattern in persist.toml: [env."pr-*"]',
        )
    for other in (default, *others, *settings.temporary):
        example = f"{other[:-1]}0" if other.endswith("*") else other
        if name in load_settings(settings.root, environment=example).reads:
            raise ConflictError(
                f"{name} cannot end: `{other}` reads it",
                hint=f'change `reads` of [env."{other}"] in persist.toml',
            )
    n_entries = ledger.manifests.end(name, longest=LONGEST)
    collected = [*_forget_failures(settings, ledger), *collect(settings, project, ledger)]
    settings.manifest_path.unlink(missing_ok=True)
    settings.manifest_path.with_name(f"{settings.manifest_path.name}.lock").unlink(missing_ok=True)
    return n_entries, collected


def _forget_failures(settings: Settings, ledger: Ledger) -> Iterable[Collected]:
    """Delete the rows that checks of an environment keep."""
    directory = f"{FAILURES}/{ledger.events.log_id()}/{settings.environment}"
    for warehouse in _warehouses(settings):
        root = f"{warehouse.rstrip('/')}/{directory}"
        if _is_linked(root, warehouse):
            continue
        size = sum(file.bytes for file in list_own(root))
        if size:
            delete_directory(root)
            yield Collected(directory, (), size)


def _sweep(
    settings: Settings, ledger: Ledger, holding: Holding, now: datetime, *, dry_run: bool
) -> Collected | None:
    """Delete what is given up of a table, unless a build writes to it right now."""
    root = settings.table_root(holding.table)
    inside = root.startswith(f"{settings.project_warehouse.rstrip('/')}/")
    if _is_linked(root, settings.project_warehouse if inside else root.rpartition("/")[0]):
        return None
    written = find_written(root)
    doomed = _doomed(holding, written, now)
    # Builds that died before they wrote anything end, too: their meaning may never be built again.
    if dry_run or not (doomed or _dead(holding, now)):
        return _summarise(holding, written, doomed)
    with ExitStack() as leases:
        try:
            for build_id in holding.build_ids:
                leases.enter_context(
                    ledger.leases.hold(f"build {build_id}", "a collection", wait_s=0)
                )
        except ConflictError:
            log.info("action=collect table=%s skipped: it is being built", holding.table)
            return None
        # Builds that were parked since then are alive too.
        holding = ledger.builds.fetch_holding(holding.table)
        alive = [uid for uid, _, _ in holding.started if uid not in _dead(holding, now)]
        ledger.builds.record_interrupted(holding.table, alive=alive)
        holding = ledger.builds.fetch_holding(holding.table)
        written = find_written(root)
        doomed = _doomed(holding, written, now)
        head = max((v for uid, v in holding.readable.items() if uid in written), default=None)
        if doomed:
            delete_builds(root, doomed, head=head)
    log.info("action=collect table=%s builds=%d", holding.table, len(doomed))
    return _summarise(holding, written, doomed)


def _doomed(holding: Holding, written: Collection[str], now: datetime) -> set[str]:
    """Return the builds of a table that are no longer needed; never one unknown to the ledger."""
    dead = _dead(holding, now)
    alive = {*holding.readable, *(uid for uid, _, _ in holding.started if uid not in dead)}
    needed = alive.union(*(holding.parts.get(uid, ()) for uid in alive))
    doomed = ({*holding.gone} | dead) & {*written} - needed
    over = not holding.readable and len(dead) == len(holding.started)
    return doomed | {LOG} & {*written} if over and {*written} <= doomed | {LOG} else doomed


def _dead(holding: Holding, now: datetime) -> set[str]:
    """Return the unfinished builds of a table that can no longer finish."""
    return {
        uid
        for uid, process, since in holding.started
        if now - since > LONGEST or has_ended(process)
    }


def _summarise(holding: Holding, written: Mapping[str, int], doomed: set[str]) -> Collected | None:
    if not doomed:
        return None
    versions = {v for uid in doomed if (v := holding.gone.get(uid)) is not None}
    return Collected(holding.table, tuple(sorted(versions)), sum(written[uid] for uid in doomed))


def _sweep_copies(
    settings: Settings, ledger: Ledger, left: Collection[str], *, dry_run: bool
) -> Iterable[Collected]:
    """Delete unneeded copies of external tables, and the replaced data of the other copies.

    Replaced data is kept for a while, because runs go on reading the version that they began with.

    Parameters
    ----------
    left
        The copies that the environment no longer needs.
    """
    for copy in ledger.copies.fetch():
        name, root = f"{COPIES}/{copy.copy_id}", copy_root(settings, copy.copy_id)
        if _is_linked(root, settings.project_warehouse):
            continue
        with ExitStack() as leases:
            try:
                lease = ledger.leases.hold(f"copy {copy.copy_id}", "a collection", wait_s=0)
                leases.enter_context(lease)
            except ConflictError:
                log.info("action=collect copy=%s skipped: it is being updated", copy.copy_id)
                continue
            if ledger.copies.find(copy.copy_id) != copy:
                continue
            if not _is_table(root, copy.table_id):
                log.warning(
                    "action=collect copy=%s skipped: it belongs to another ledger", copy.copy_id
                )
                continue
            if not dry_run:
                delete_directory(f"{root}{STAGED}")  # of a sync that died
            needing = ledger.copies.fetch_needs(copy.copy_id).keys()
            if not needing - ({settings.environment} if copy.copy_id in left else set()):
                size = sum(file.bytes for file in list_own(root))
                if not dry_run:
                    ledger.copies.forget([copy.copy_id])
                    delete_table(root)
                yield Collected(name, (copy.committed,), size)
                continue
            size = delete_replaced(root, copy.committed, LONGEST, dry_run=dry_run)
            if size:
                yield Collected(name, (), size)


def _sweep_leases(ledger: Ledger) -> None:
    """Release leases of processes that are gone: their sources may never be built again."""
    for lease, is_gone, _ in ledger.leases.fetch():
        if is_gone:
            with suppress(ConflictError), ledger.leases.hold(lease.name, "a collection", wait_s=0):
                pass  # somebody else may have been faster


def _is_table(root: str, table_id: str) -> bool:
    """Whether the table at a root is, as far as can be told, the one that we know."""
    try:
        table = find_table(root)
    except StorageError:  # the table is broken
        return True
    return table is None or table.metadata().id == table_id


def _sweep_listings(settings: Settings, ledger: Ledger, now: datetime) -> None:
    """Delete listings of raw data at versions that no snapshot comes from and no run reads."""
    needed = {*ledger.builds.fetch_versions(), *ledger.run_pins.fetch_versions()}
    for warehouse in _warehouses(settings):
        directory = listings_of(warehouse, ledger.events.log_id())
        if _is_linked(directory, warehouse):
            continue
        for file in list_own(directory):
            old = now.timestamp() - file.changed_ns / 1e9 > LONGEST.total_seconds()
            version = listed_version(file.location)
            if old and version is not None and version not in needed:
                delete_file(file.location)


def _sweep_published(
    settings: Settings,
    project: Project,
    ledger: Ledger,
    now: datetime,
    *,
    removed: bool,
    dry_run: bool,
) -> Iterable[Collected]:
    """Delete replaced files of published tables, and tables that follow no source any more."""
    left = {*find_left(settings, ledger, project)} if removed else set[str]()
    for place, table in ledger.published.fetch(settings.environment).items():
        try:
            with ledger.leases.hold(f"publish {place}", "a collection", wait_s=0):
                opened = open_published(place, publisher_of(settings, ledger))
                size = 0
                if place in left:
                    size = sum(file.bytes for file in list_own(place))
                    if not dry_run:
                        remove_published(ledger, settings.environment, place, table.source_id)
                elif opened is not None:
                    size = tidy_published(place, opened, settings.keep_s, now, dry_run=dry_run)
        except (ConflictError, StorageError) as error:
            log.warning("action=collect place=%s skipped: %s", place, error.message)
            continue
        if size:
            yield Collected(place, (), size)


_TOKEN = re.compile(r"[0-9a-f]{32}")


def _sweep_temporary(settings: Settings, ledger: Ledger, *, dry_run: bool) -> Iterable[Collected]:
    """Delete the temporary tables of this ledger's runs that have ended."""
    directory = f"{TEMPORARY}/{ledger.events.log_id()}"
    for warehouse in _warehouses(settings):
        root = f"{warehouse.rstrip('/')}/{directory}"
        if _is_linked(root, warehouse):
            continue
        bytes_of: dict[str, int] = {}
        for file in list_own(root):
            token = file.location.removeprefix(f"{root}/").partition("/")[0]
            bytes_of[token] = bytes_of.get(token, 0) + file.bytes
        for token, size in sorted(bytes_of.items()):
            if not _TOKEN.fullmatch(token) or ledger.leases.is_held(temporary_lease(token)):
                continue
            if not dry_run:
                delete_directory(f"{root}/{token}")
            yield Collected(f"{directory}/{token}", (), size)


def _find_unneeded_failures(
    settings: Settings,
    project: Project,
    ledger: Ledger,
    horizon: datetime,
    *,
    removed: bool,
    is_fresh: bool,
) -> Iterable[tuple[str, Collected]]:
    """Yield kept rows that no check keeps any more, or of environments that are gone.

    Only the environment's own project says which checks keep rows. Rows that another version of the
    code may keep stay until the `horizon` has passed them; if a file has errors, those of sources
    that are not known stay.
    """
    needed = {
        failures_table(settings, ledger.events.log_id(), s, c.name).rpartition(f"{FAILURES}/")[2]
        for s in project.sources
        for c in s.checks
        if c.keep_failures
    }
    known = tuple(f"{s.key}@" for s in project.sources)
    others = {*settings.declared, *ledger.manifests.fetch_environments()}

    def is_needed(table: str, changed_ns: int) -> bool:
        name, _, check = table.partition("/")
        is_certain = is_fresh
        if name == settings.environment:
            is_known = check.startswith(known)
            # A file with an error may define any source.
            if (project.errors and not is_known) or f"{ledger.events.log_id()}/{table}" in needed:
                return True
            is_certain = is_fresh and (is_known or removed)
        # Before it publishes anything, an environment of a pattern is in no manifest.
        elif name in others or settings.is_temporary(name):
            return True
        return not is_certain and changed_ns / 1e9 >= horizon.timestamp()

    directory = f"{FAILURES}/{ledger.events.log_id()}"
    for warehouse in _warehouses(settings):
        root = f"{warehouse.rstrip('/')}/{directory}"
        if _is_linked(root, warehouse):
            continue
        files: dict[str, list[Found]] = {}
        for file in list_own(root):  # a table has its files in directories of its own
            table = file.location.removeprefix(f"{root}/").rsplit("/", 2)[0]
            files.setdefault(table, []).append(file)
        for table, those in sorted(files.items()):
            if not is_needed(table, max(file.changed_ns for file in those)):
                size = sum(file.bytes for file in those)
                yield f"{root}/{table}", Collected(f"{directory}/{table}", (), size)


def _delete_failures(
    unneeded: Iterable[tuple[str, Collected]], *, dry_run: bool
) -> Iterable[Collected]:
    for location, collected in unneeded:
        if not dry_run:
            delete_directory(location)
        yield collected


def _warehouses(settings: Settings) -> set[str]:
    """Return the warehouses of all environments."""
    names = {settings.environment, *settings.declared}
    return {load_settings(settings.root, environment=name).warehouse for name in names}


def _is_linked(location: str, warehouse: str) -> bool:
    """Whether a location is behind a symbolic link below a warehouse; if so, log a warning."""
    linked = is_linked(location, warehouse)
    if linked:
        log.warning("action=collect place=%s skipped: it is behind a symbolic link", location)
    return linked
