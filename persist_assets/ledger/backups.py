"""Backups of ledgers: made while builds run, and put back.

A backup is a SQLite file of the same tables, whatever kind of database the ledger is in. It is one
consistent state: SQLite copies its file by pages, PostgreSQL's rows are read in one transaction.

A restored ledger must not claim anything that stopped being true since. So it takes over from the
present one what happened to tables, whoever knows of it: taints, what was collected, and copies of
external tables. Builds that had not ended are forgotten, with their files, which stay for that
reason. Positions of events are never used twice: readers of what was lost have to start over.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, LedgerError, NotFoundError
from persist_assets.ledger.connection import Database, parse_url
from persist_assets.ledger.leases import is_live
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.log import TRIMMED
from persist_assets.ledger.manifests import move_entries
from persist_assets.ledger.published import REMOVING
from persist_assets.ledger.rows import update_each
from persist_assets.ledger.tables import (
    alert_messages,
    alerts,
    build_requests,
    builds,
    copies,
    copy_needs,
    counters,
    events,
    leases,
    manifest_changes,
    manifest_entries,
    published_tables,
    taints,
)
from persist_assets.ledger.transfer import copy_rows, replace_rows
from persist_assets.ledger.trims import set_counter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy.engine import Connection

UNKNOWN = 10**9
"""The number of positions to skip if it is unknown how many events were lost."""


def back_up(url: str, file: Path) -> int:
    """Write a backup of a ledger; return its position. Builds go on meanwhile.

    Raises
    ------
    NotFoundError
        There is no ledger.
    ConflictError
        There is a file of this name.
    LedgerError
        The ledger has an older version, or one of the files fails. No file is left.
    """
    if file.exists():
        raise ConflictError(f"{file} exists", hint="name a new file")
    partial = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        if parse_url(url).get_backend_name() == "sqlite":
            _copy_pages(Path(parse_url(url).database or ""), partial)
        else:
            partial.unlink()
            copy_rows(url, f"sqlite:///{partial}", live=True)
        with closing(sqlite3.connect(partial)) as written:
            written.execute("PRAGMA journal_mode = DELETE")  # a backup is one file
        check_backup(partial, file)
        with closing(sqlite3.connect(partial)) as written:
            query = "SELECT value FROM counters WHERE name = 'events'"
            (position,) = written.execute(query).fetchone()
        partial.rename(file)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"cannot write the backup {file}: {error}") from error
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                partial.with_name(f"{partial.name}{end}").unlink(missing_ok=True)
    return position


def check_backup(copy: Path, file: Path) -> None:
    """Check that the copy of a backup is an intact database.

    Raises
    ------
    LedgerError
        It is not; the message names the original file.
    """
    try:
        with closing(sqlite3.connect(copy)) as connection:
            (answer,) = connection.execute("PRAGMA quick_check").fetchone()
    except sqlite3.DatabaseError as error:
        raise LedgerError(f"{file} is not a ledger backup: {error}") from error
    if answer != "ok":
        raise LedgerError(f"the backup {file} is corrupt: {answer}")


def _copy_pages(source: Path, target: Path) -> None:
    if not source.is_file():
        raise NotFoundError(f"there is no ledger {source}", hint="name an existing ledger")
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


_OUTSIDE = (copies, copy_needs, published_tables)
"""The tables about things outside the ledger: their present rows are the true ones."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The contents of the current ledger that a backup lacks.

    Attributes
    ----------
    is_other
        The backup is of another ledger.
    position
        The present one's position; zero: nothing ever happened.
    events, builds, changes
        How many events are newer than the backup, and builds and changes of manifests, by
        environment.
    held
        What processes are doing right now.
    """

    is_other: bool
    position: int
    events: int
    builds: Mapping[str, int]
    changes: Mapping[str, int]
    held: tuple[str, ...]

    def __str__(self) -> str:
        parts: list[str] = []
        if self.is_other:
            parts.append("the backup belongs to another ledger")
        if self.events:
            parts.append(f"{self.events:,} events are newer than the backup")
        for noun, counts in (("builds", self.builds), ("changes of the manifest", self.changes)):
            parts += [f"{n:,} {noun} in `{where}`" for where, n in sorted(counts.items())]
        if self.held:
            parts.append(f"{len(self.held)} leases are held ({self.held[0]})")
        return "; ".join(parts)


def find_loss(present: Ledger, backup: Ledger) -> Loss:
    """Return what would be lost if a backup replaced the present ledger."""
    since, is_other = backup.events.position(), False
    position = present.events.position()
    if position:
        is_other = present.events.log_id() != backup.events.log_id()
    since = 0 if is_other else since
    with present.events.database.read() as connection, backup.events.database.read() as other:
        at = other.scalar(sa.select(sa.func.max(builds.c.started_at)))
        newer = manifest_changes.c.change_id > since
        begun = sa.true() if at is None or is_other else builds.c.started_at > at
        now = present.events.database.now(connection, lambda: datetime.now(UTC))
        held = [x.name for x in connection.execute(sa.select(leases)) if is_live(x, now)]
        return Loss(
            is_other,
            position,
            max(position - since, 0),
            _counted(connection, builds.c.environment, begun),
            _counted(connection, manifest_changes.c.environment, newer),
            tuple(held),
        )


def _counted(connection: Connection, of: sa.Column[Any], test: Any) -> dict[str, int]:
    query = sa.select(of, sa.func.count()).where(test).group_by(of)
    return {name: n for name, n in connection.execute(query)}


def prepare(
    backup: Ledger,
    present: Ledger | None,
    missing: Collection[str],
    histories: Collection[str] = (),
) -> int:
    """Remove from a copy of a backup everything that is no longer true.

    Parameters
    ----------
    present
        The ledger that it replaces; None: it is lost, or of another log.
    missing
        The snapshots whose files are gone.
    histories
        The snapshots that stay published, also if `present` has released them.

    Returns
    -------
    int
        How many manifest entries were removed because their tables are gone.
    """
    log = backup.events
    doomed, marks = {*missing}, set[tuple[str, str, str]]()
    copied: list[list[dict[str, Any]]] = [[] for _ in _OUTSIDE]
    tainted: list[tuple[str, Any]] = []
    if present is not None:
        since = log.position()
        with present.events.database.read() as connection:
            gone = sa.select(builds.c.snapshot_uid).where(builds.c.collected_at.is_not(None))
            doomed |= {*connection.scalars(gone)} - {*histories}
            marks = {(e, u, k) for e, u, k in connection.execute(sa.select(taints))}
            for rows, table in zip(copied, _OUTSIDE, strict=True):
                rows += [dict(r) for r in connection.execute(sa.select(table)).mappings()]
            query = sa.select(events.c.kind, events.c.data).where(
                events.c.idx > since, events.c.kind == sa.literal_column("'partition-tainted'")
            )
            tainted = [(kind, data) for kind, data in connection.execute(query)]
    with log.database.write() as connection:
        position = max(log.position(), present.events.position() if present else 0)
        set_counter(connection, "events", position if present else position + UNKNOWN)
        _forget_unfinished(backup, connection)
        update_each(connection, doomed - {None}, {"collected_at": log.clock()})
        known = {*connection.scalars(sa.select(builds.c.snapshot_uid).distinct())}
        existing_marks = {(e, u, k) for e, u, k in connection.execute(sa.select(taints))}
        names = taints.columns.keys()
        new = [dict(zip(names, m, strict=True)) for m in marks - existing_marks if m[1] in known]
        if new:
            connection.execute(taints.insert(), new)
        if present is not None:
            for rows, table in zip(copied, _OUTSIDE, strict=True):
                connection.execute(table.delete())
                if rows:
                    connection.execute(table.insert(), rows)
        else:  # they may have followed later builds
            is_left = published_tables.c.described != REMOVING
            connection.execute(published_tables.update().where(is_left).values(build_uid=""))
        log.append_all(connection, tainted)
        n_removed = _remove_entries(backup, connection)
        idx = log.append(connection, "ledger-restored", {"removed": n_removed})
        set_counter(connection, TRIMMED, idx)
    return n_removed


def _forget_unfinished(backup: Ledger, connection: Connection) -> None:
    """Forget everything unfinished. Files of such builds stay, like all unknown to the ledger.

    They may have ended after the backup was made, and another ledger may name them.
    """
    connection.execute(leases.delete())
    for table in (alert_messages, alerts):  # current ones are found again
        connection.execute(table.delete())
    connection.execute(builds.delete().where(builds.c.state == "started"))
    query = sa.select(build_requests.c.request_id, build_requests.c.environment)
    is_open = build_requests.c.state.in_(("requested", "started"))
    for request_id, environment in connection.execute(query.where(is_open)).all():
        data = {"build_request_id": request_id, "environment": environment, "culprits": []}
        error = "the ledger was restored from a backup"
        backup.events.append(connection, "build-request-failed", {**data, "error": error})


def _remove_entries(backup: Ledger, connection: Connection) -> int:
    """Remove the manifest entries whose tables were collected since."""
    query = (
        sa.select(manifest_entries.c.environment, manifest_entries.c.build_id)
        .join(builds, builds.c.build_uid == manifest_entries.c.build_uid)
        .where(builds.c.collected_at.is_not(None))
    )
    by_environment: dict[str, list[str]] = {}
    for environment, build_id in connection.execute(query):
        by_environment.setdefault(environment, []).append(build_id)
    for environment, build_ids in sorted(by_environment.items()):
        data = {"environment": environment, "entries": len(build_ids)}
        idx = backup.events.append(connection, "entries-collected", data)
        change = {"kind": "collect", "why": "their tables were deleted after the backup"}
        entries = dict.fromkeys(build_ids)
        move_entries(backup.events, connection, idx, environment, entries, change)
    return sum(map(len, by_environment.values()))


def put_back(backup: str, target: str, loss: Loss, *, force: bool) -> None:
    """Replace all rows of a ledger by those of a prepared backup, in one transaction.

    Raises
    ------
    ConflictError
        Something happened in the ledger since `loss` was found. Nothing was changed.
    """

    def check(database: Database, connection: Connection) -> None:
        position = connection.scalar(sa.select(counters.c.value).where(counters.c.name == "events"))
        now = database.now(connection, lambda: datetime.now(UTC))
        held = [x.name for x in connection.execute(sa.select(leases)) if is_live(x, now)]
        if position != loss.position or (held and not force):
            raise ConflictError(
                "the ledger changed meanwhile", hint="stop all builds, and try again"
            )

    replace_rows(backup, target, check)
