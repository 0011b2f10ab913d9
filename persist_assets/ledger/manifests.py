"""Manifests: which snapshot of each BuildID the readers of an environment read.

A change is one transaction: readers see all of a publication, promotion or rollback, or nothing.
"""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError
from persist_assets.core.model.snapshots import ManifestChange, Move
from persist_assets.core.wants import ACTIVE
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.partitions import changed_partitions, restored_states, retractions
from persist_assets.ledger.processes import has_ended
from persist_assets.ledger.rows import (
    ENTRY,
    build_of,
    build_values,
    check_result_of,
    published,
    refuse_collected,
    snapshot_of,
    snapshot_values,
    taken_values,
)
from persist_assets.ledger.tables import (
    builds,
    copy_needs,
    events,
    malloy_entries,
    manifest_changes,
    manifest_entries,
    manifest_moves,
    taints,
    wants,
)
from persist_assets.ledger.taints import bring_taints

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.wants import PartitionRef
    from persist_assets.ledger.log import EventLog


class Manifests(Part):
    """The snapshots that readers of each environment read, and every change to them."""

    def __init__(self, events: EventLog) -> None:
        super().__init__(events)
        self._decoded: dict[tuple[str, ...], dict[str, Snapshot]] = {}

    @repeated
    def fetch(self, *environments: str) -> dict[BuildID, Snapshot]:
        """Return the snapshots that readers of an environment read, in one consistent state.

        Parameters
        ----------
        environments
            The environment, and those that it reads. If several have a BuildID, the snapshot that
            was last built, or last found to be up to date, wins; among equals, the one published
            last. Finding a tainted snapshot up to date does not count.
        """
        query = published(*environments).with_only_columns(
            builds.c.build_id, builds.c.build_uid, builds.c.current_at
        )
        decoded = self._decoded.get(environments, {})
        with self._read() as connection:
            rows = connection.execute(query).all()
            best = {row.build_id: row.build_uid for row in rows}
            # The other columns of a snapshot in a build's row are written once, when it succeeds.
            snapshots = {
                row.build_uid: present
                for row in rows
                if (present := decoded.get(row.build_uid)) is not None
                and best[row.build_id] == row.build_uid
                and present.current_at == row.current_at
            }
            for part in in_parts([uid for uid in best.values() if uid not in snapshots]):
                rows = connection.execute(sa.select(builds).where(builds.c.build_uid.in_(part)))
                snapshots |= {row.build_uid: snapshot_of(row) for row in rows}
        self._decoded[environments] = snapshots
        return {build_id: snapshots[uid] for build_id, uid in best.items()}

    @repeated
    def find_snapshot(
        self, environment: str, build_id: BuildID, *, reads: Sequence[str] = ()
    ) -> Snapshot | None:
        """Return the snapshot that readers of one BuildID read, or None; see `fetch`."""
        query = published(environment, *reads).where(builds.c.build_id == build_id)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return snapshot_of(rows[-1]) if rows else None

    @repeated
    def fetch_checks(
        self, source_id: SourceID, snapshot: Snapshot, *environments: str
    ) -> list[CheckResult] | None:
        """Return the results of the checks of a source when environments last published its table.

        None if only another source with the same BuildID was built there.

        Builds of other environments that reuse the table run checks of their own, which do not
        count here.

        Parameters
        ----------
        environments
            The environment, and those that it reads.
        """
        entries = sa.select(manifest_entries.c.build_uid).where(
            manifest_entries.c.environment.in_(environments)
        )
        is_own = builds.c.environment.in_(environments)
        is_promoted = builds.c.build_uid.in_(entries)
        query = (
            sa.select(builds.c.checks)
            .where(builds.c.snapshot_uid == snapshot.build_uid, builds.c.source_id == source_id)
            .where(builds.c.state == "succeeded", sa.or_(is_own, is_promoted))
            .order_by(builds.c.started_at.desc(), builds.c.build_uid)
        )
        with self._read() as connection:
            row = connection.execute(query.limit(1)).first()
        return [check_result_of(values) for values in row.checks or ()] if row else None

    @repeated
    def fetch_passed(self, *environments: str) -> dict[BuildID, set[str]]:
        """Return the definitions of the checks that each published snapshot has passed.

        The latest result counts. Among the builds of the environments are those that only read
        what is published: they have no entries of their own.
        """
        entry = builds.alias()
        is_entry = builds.c.build_uid == entry.c.build_uid
        query = (
            sa.select(builds.c.build_id, builds.c.checks)
            .join(entry, entry.c.snapshot_uid == builds.c.snapshot_uid)
            .join(manifest_entries, manifest_entries.c.build_uid == entry.c.build_uid)
            .where(manifest_entries.c.environment.in_(environments))
            .where(sa.or_(is_entry, builds.c.environment.in_(environments)))
            .where(builds.c.state == "succeeded")
            .order_by(builds.c.started_at)
        )
        results: dict[str, dict[str, bool]] = {}
        with self._read() as connection:
            for build_id, checks in connection.execute(query):
                by_definition = results.setdefault(build_id, {})
                by_definition.update((c["definition"], c["passed"]) for c in checks or ())
        return {b: {d for d, passed in r.items() if passed} for b, r in results.items()}

    @repeated
    def fetch_elsewhere(self, *environments: str) -> dict[BuildID, list[Snapshot]]:
        """Return the snapshots that readers of all other environments read, the latest first."""
        query = (
            sa.select(builds)
            .join(manifest_entries, ENTRY)
            .where(manifest_entries.c.environment.not_in(environments))
            .order_by(builds.c.built_at.desc(), builds.c.build_uid)
        )
        snapshots: dict[str, list[Snapshot]] = {}
        with self._read() as connection:
            for row in connection.execute(query):
                snapshots.setdefault(row.build_id, []).append(snapshot_of(row))
        return snapshots

    @repeated
    def fetch_foreign(self, environment: str) -> frozenset[str]:
        """Return the names of the tables that readers of other environments read as their own."""
        query = (
            sa.select(builds.c.table_name)
            .join(manifest_entries, ENTRY)
            .where(manifest_entries.c.environment != environment)
        )
        with self._read() as connection:
            return frozenset(connection.scalars(query.distinct()))

    @repeated
    def fetch_environments(self) -> list[str]:
        """Return the names of all environments that have a manifest, sorted."""
        query = sa.select(manifest_entries.c.environment).distinct()
        with self._read() as connection:
            return sorted(connection.scalars(query))

    @repeated
    def has_published(self, *environments: str) -> bool:
        """Whether anything was ever published in one of the environments."""
        query = (
            sa.select(manifest_changes.c.change_id)
            .where(manifest_changes.c.environment.in_(environments))
            .limit(1)
        )
        with self._read() as connection:
            return connection.scalar(query) is not None

    @repeated
    def fetch_malloy(self, environment: str) -> dict[BuildID, BuildID]:
        """Return the BuildIDs that Malloy's own tools know, each with ours, in an environment.

        They are only from the environment's own builds, promotions and imports: the environments
        that it reads may have other sources of the same names. The BuildIDs need not be published.
        """
        with self._read() as connection:
            return _malloy_ids(connection, environment)

    @repeated
    def fetch_history(self, environment: str, *, limit: int | None = None) -> list[ManifestChange]:
        """Return the changes of a manifest, the latest first, at most `limit`."""
        query = (
            sa.select(manifest_changes)
            .where(manifest_changes.c.environment == environment)
            .order_by(manifest_changes.c.change_id.desc())
            .limit(limit)
        )
        with self._read() as connection:
            changes = connection.execute(query).mappings().all()
            change_ids = sa.select(query.subquery().c.change_id)
            moved = sa.select(manifest_moves).where(manifest_moves.c.change_id.in_(change_ids))
            moves = connection.execute(moved.order_by(manifest_moves.c.build_id)).all()
            ends = moved.subquery()
            uids = sa.union(sa.select(ends.c.before), sa.select(ends.c.after))
            rows = connection.execute(sa.select(builds).where(builds.c.build_uid.in_(uids)))
            snapshots = {row.build_uid: snapshot_of(row) for row in rows}
            rollbacks = sa.select(events.c.idx, events.c.data).where(
                events.c.kind == "rolled-back", events.c.idx.in_(change_ids)
            )
            data = {row.idx: row.data for row in connection.execute(rollbacks)}
        by_change: dict[int, list[Move]] = {change["change_id"]: [] for change in changes}
        for row in moves:
            move = Move(row.build_id, snapshots.get(row.before), snapshots.get(row.after))
            if move.before or move.after:  # earlier releases recorded moves from nothing to nothing
                by_change[row.change_id].append(move)
        return [
            ManifestChange(
                **row,
                moves=tuple(by_change[row["change_id"]]),
                back_to=data.get(row["change_id"], {}).get("to"),
                undone=tuple(data.get(row["change_id"], {}).get("undone", ())),
            )
            for row in changes
        ]

    @repeated
    def promote(
        self,
        sources: Sequence[str],
        target: str,
        snapshots: Mapping[BuildID, Snapshot],
        *,
        refs: Mapping[PartitionRef, BuildID | None] | None = None,
        assets: Collection[str] = (),
        expected: int | None = None,
        malloy: Mapping[BuildID, BuildID] | None = None,
        by: str | None = None,
        why: str | None = None,
    ) -> int:
        """Publish the snapshots of another environment; return the number of the change.

        Parameters
        ----------
        sources
            The other environment, and those that it reads.
        refs
            The partitions that become available, each with the BuildID of its table, and those that
            readers lose, with None.
        assets
            The keys of the assets that have them; empty: any.
        expected
            The latest change of `target` when this was decided, 0: there was none; None: any.
        malloy
            Malloy's BuildIDs in `target` from now on, each with ours; None: unchanged.
        by
            The user to record; None: the user of this process.

        Raises
        ------
        ConflictError
            One of the environments changed meanwhile. Nothing was changed here.
        """
        query = published(*sources)
        with self._write() as connection:
            if expected is not None:
                _require_latest(connection, target, expected)
            entries: dict[str, str | None] = {}
            rows: dict[str, Row[Any]] = {}
            for row in connection.execute(query):
                if row.build_id in snapshots and snapshot_of(row) == snapshots[row.build_id]:
                    entries[row.build_id] = row.build_uid
                    rows[row.build_id] = row
            missing = [s.source_id for b, s in snapshots.items() if b not in entries]
            if missing:
                raise ConflictError(
                    f"{sources[0]} changed while it was being promoted: {missing[0]}",
                    hint="try again",
                )
            data = {"environment": target, "from": sources[0], "entries": len(entries)}
            bring_taints(connection, target, [s.build_uid for s in snapshots.values()], sources)
            idx = self._events.append(connection, "promoted", data)
            move = _by(by) | {"kind": "promote", "why": why or f"from {sources[0]}"}
            move_entries(self._events, connection, idx, target, entries, move)
            shown = {build_id: build_of(row) for build_id, row in rows.items()}
            changes = changed_partitions(connection, target, refs or {}, shown, assets)
            self._events.append_all(connection, changes)
            if malloy is not None:
                set_malloy(connection, idx, target, malloy)
        return idx

    @repeated
    def confirm(self, environment: str, build_ids: Collection[BuildID]) -> None:
        """Record that readers of an environment read these entries from now on, and not others."""
        of, entries = manifest_entries.c, manifest_entries.update()
        for part in in_parts([*build_ids]):
            these = of.environment == environment, of.build_id.in_(part)
            with self._write() as connection:
                connection.execute(entries.where(*these).values(published_at=self._clock()))

    @repeated
    def adopt(
        self,
        environment: str,
        adopted: Sequence[Build],
        *,
        refs: Mapping[PartitionRef, BuildID | None] | None = None,
        assets: Collection[str] = (),
        why: str,
        malloy: Mapping[BuildID, BuildID],
    ) -> int:
        """Publish the snapshots of finished builds; return the number of the change.

        Parameters
        ----------
        refs, assets
            See `promote`.
        adopted
            Builds that succeeded, in this ledger or in another one. Builds that are new to this
            ledger are recorded in it, without results of checks.
        malloy
            Malloy's BuildIDs, each with ours, for those that the environment does not know yet.
        """
        with self._write() as connection:
            uids = {b.snapshot.build_uid for b in adopted if b.snapshot}
            refuse_collected(connection, uids)
            for build in adopted:
                assert build.snapshot is not None
                recorded = sa.select(builds.c.state).where(builds.c.build_uid == build.build_uid)
                state = connection.scalar(recorded)
                if state is None:
                    values = {
                        **build_values(build),
                        **snapshot_values(build.snapshot),
                        "table_name": build.snapshot.table,
                        "finished_at": build.finished_at,
                    }
                    connection.execute(builds.insert().values(**values))
                elif state != "succeeded":
                    raise ConflictError(f"the build {build.build_uid} is {state} here")
            bring_taints(connection, environment, uids)
            data = {"environment": environment, "entries": len(adopted), "why": why}
            idx = self._events.append(connection, "imported", data)
            entries = {b.build_id: b.build_uid for b in adopted}
            move = {"kind": "promote", "why": why}
            move_entries(self._events, connection, idx, environment, entries, move)
            shown = {b.build_id: b for b in adopted}
            changes = changed_partitions(connection, environment, refs or {}, shown, assets)
            self._events.append_all(connection, changes)
            current = _malloy_ids(connection, environment)
            set_malloy(connection, idx, environment, {**malloy, **current})
        return idx

    @repeated
    def take_over(
        self,
        environment: str,
        takeovers: Sequence[tuple[BuildID, Build]],
        *,
        run_id: str | None,
        malloy: Mapping[BuildID, BuildID],
    ) -> int:
        """Publish snapshots under other BuildIDs, all at once; return how many.

        The entries of the former BuildIDs stay, for processes of the former release. Left out are
        those that such a process has replaced meanwhile, and BuildIDs that were built meanwhile.

        Parameters
        ----------
        takeovers
            The former BuildIDs, each with the build to record. Builds of one BuildID are of sources
            that share a table; its entry names the first one.
        run_id
            The run that does it.
        malloy
            Malloy's BuildIDs in the environment from now on, each with ours.
        """
        query = sa.select(manifest_entries.c.build_id, builds.c.snapshot_uid).join(builds, ENTRY)
        with self._write() as connection:
            here = query.where(manifest_entries.c.environment == environment)
            present = {row.build_id: row.snapshot_uid for row in connection.execute(here)}
            chosen = [
                build
                for former, build in takeovers
                if build.snapshot is not None
                and present.get(former) == build.snapshot.build_uid
                and build.build_id not in present
            ]
            if not chosen:
                return 0
            checks = _checks_before(connection, environment, chosen)
            connection.execute(builds.insert(), [taken_values(b, checks) for b in chosen])
            entries: dict[BuildID, str | None] = {}
            for build in chosen:
                entries.setdefault(build.build_id, build.build_uid)
            data = {"environment": environment, "entries": len(entries), "run_id": run_id}
            idx = self._events.append(connection, "tables-taken-over", data)
            change = {"kind": "build", "why": "same text, newer fingerprint", "run_id": run_id}
            move_entries(self._events, connection, idx, environment, entries, change)
            set_malloy(connection, idx, environment, malloy)
        return len(entries)

    @repeated
    def end(self, environment: str, *, longest: timedelta) -> int:
        """Forget an environment, its history and its needs; return how many entries it had.

        Garbage collection deletes what only this environment read, without keeping it for a while.

        Parameters
        ----------
        longest
            For how long a build is assumed to be alive whose process is on another machine.

        Raises
        ------
        ConflictError
            A build or a want of the environment is under way. Nothing was changed.
        """
        here = manifest_changes.c.environment == environment
        with self._write() as connection:
            _refuse_under_way(connection, environment, self._now(connection) - longest)
            own = sa.select(manifest_changes.c.change_id).where(here)
            connection.execute(manifest_moves.delete().where(manifest_moves.c.change_id.in_(own)))
            connection.execute(manifest_changes.delete().where(here))
            for table in (malloy_entries, taints, copy_needs):
                connection.execute(table.delete().where(table.c.environment == environment))
            entries = manifest_entries.delete().where(manifest_entries.c.environment == environment)
            n_entries = connection.execute(entries).rowcount
            data = {"environment": environment, "entries": n_entries}
            self._events.append(connection, "environment-ended", data)
        return n_entries

    @repeated
    def roll_back(
        self,
        environment: str,
        to: int,
        *,
        expected: int,
        lost: Collection[PartitionRef] = (),
        by: str | None = None,
        why: str | None = None,
    ) -> int:
        """Put a manifest back to its state right after a change; return the new change.

        Parameters
        ----------
        to
            The change, 0 for before the first one.
        expected
            The latest change of the manifest, as far as the caller knows.
        lost
            The partitions that the restored tables lack.
        by
            The user to record; None: the user of this process.

        Raises
        ------
        ConflictError
            The manifest changed meanwhile, or a snapshot of that time was collected. Nothing was
            changed.
        """
        later = sa.and_(manifest_changes.c.change_id > to, manifest_changes.c.kind != "collect")
        with self._write() as connection:
            data = {"to": to}
            move = _by(by) | {"kind": "rollback", "why": why or f"to {to or 'nothing'}"}
            idx = self._take_back(connection, environment, later, expected, lost, move, data)
            set_malloy(connection, idx, environment, _malloy_ids(connection, environment, at=to))
        return idx

    @repeated
    def undo(
        self,
        environment: str,
        moved: Mapping[int, Collection[BuildID]],
        *,
        expected: int,
        lost: Collection[PartitionRef] = (),
        by: str | None = None,
        why: str,
    ) -> int:
        """Undo single changes of a manifest but not later ones; return the new change.

        Parameters
        ----------
        moved
            The changes, each with the entries to undo: no later change has moved these.
        expected, lost, by
            See `roll_back`.

        Raises
        ------
        ConflictError
            See `roll_back`.
        """
        these = manifest_changes.c.change_id.in_(moved)
        with self._write() as connection:
            data = {"undone": sorted(moved)}
            move = _by(by) | {"kind": "rollback", "why": why}
            return self._take_back(
                connection, environment, these, expected, lost, move, data, moved
            )

    def _take_back(
        self,
        connection: Connection,
        environment: str,
        changes: sa.ColumnElement[bool],
        expected: int,
        lost: Collection[PartitionRef],
        move: Mapping[str, Any],
        data: Mapping[str, Any],
        only: Mapping[int, Collection[BuildID]] | None = None,
    ) -> int:
        """Restore entries to their state before some changes; return the new change."""
        here = manifest_changes.c.environment == environment
        moved = (
            sa.select(manifest_moves)
            .join(manifest_changes, manifest_changes.c.change_id == manifest_moves.c.change_id)
            .where(here, changes)
            .order_by(manifest_changes.c.change_id.desc())
        )
        _require_latest(connection, environment, expected)
        undone = [
            row
            for row in connection.execute(moved)
            if only is None or row.build_id in only[row.change_id]
        ]
        entries = {row.build_id: row.before for row in undone}
        refuse_collected(connection, {uid for uid in entries.values() if uid})
        values = {"environment": environment, **data, "entries": len(entries)}
        idx = self._events.append(connection, "rolled-back", values)
        gone = [build_id for build_id, before in entries.items() if before is None]
        self._events.append_all(connection, retractions(connection, environment, gone, lost))
        move_entries(self._events, connection, idx, environment, entries, move)
        changed = {row.build_id: row.change_id for row in undone}
        states = restored_states(connection, environment, changed, entries)
        self._events.append_all(connection, states)
        return idx


def _require_latest(connection: Connection, environment: str, expected: int) -> None:
    """Refuse a change of a manifest that has changed since it was decided."""
    latest = sa.select(sa.func.max(manifest_changes.c.change_id))
    latest = latest.where(manifest_changes.c.environment == environment)
    if (connection.scalar(latest) or 0) != expected:
        raise ConflictError(f"{environment} changed meanwhile", hint="try again")


def _refuse_under_way(connection: Connection, environment: str, since: datetime) -> None:
    """Refuse to end an environment in which something is still being built or wanted.

    Parameters
    ----------
    since
        Builds that started before are not alive.
    """
    query = sa.select(builds.c.source_id, builds.c.process).where(
        builds.c.environment == environment,
        builds.c.state == "started",
        builds.c.started_at > since,
    )
    alive = [row.source_id for row in connection.execute(query) if not has_ended(row.process)]
    if alive:
        raise ConflictError(
            f"{environment} cannot end: {alive[0]} is being built in it",
            hint="wait until the build has ended, or stop it; one whose machine is gone counts as"
            " ended a day after it began",
        )
    query = sa.select(wants.c.want_id).where(
        wants.c.environment == environment, wants.c.state.in_(ACTIVE)
    )
    want_id = connection.scalar(query.limit(1))
    if want_id is not None:
        raise ConflictError(
            f"{environment} cannot end: the want {want_id} is not met yet",
            hint=f"cancel it: persist want cancel {want_id} --env {environment}",
        )


def move_entries(
    event_log: EventLog,
    connection: Connection,
    idx: int,
    environment: str,
    entries: Mapping[BuildID, str | None],
    change: Mapping[str, Any],
) -> None:
    """Point manifest entries at other builds, or remove them, and record the change.

    Parameters
    ----------
    idx
        The position of the event of this change.
    entries
        The builds that the entries name from now on; None removes an entry.
    change
        More columns of `manifest_changes`.
    """
    here = manifest_entries.c.environment == environment
    query = sa.select(manifest_entries.c.build_id, manifest_entries.c.build_uid).where(here)
    if len(entries) == 1:
        query = query.where(manifest_entries.c.build_id.in_(entries))
    before = {row.build_id: row.build_uid for row in connection.execute(query)}
    now = event_log.clock()
    values = {"environment": environment, "at": now, "by": _user(), **change}
    connection.execute(manifest_changes.insert().values(change_id=idx, **values))
    moves = [
        {"change_id": idx, "build_id": b, "before": before.get(b), "after": after}
        for b, after in sorted(entries.items())
        if b in before or after is not None
    ]
    if moves:
        connection.execute(manifest_moves.insert(), moves)
    key = sa.and_(here, manifest_entries.c.build_id == sa.bindparam("old"))
    replaced = [{"old": b} for b in entries if b in before]
    if replaced:
        connection.execute(manifest_entries.delete().where(key), replaced)
    new = [
        {"environment": environment, "build_id": b, "build_uid": uid, "published_at": now}
        for b, uid in entries.items()
        if uid is not None
    ]
    if new:
        connection.execute(manifest_entries.insert(), new)


def _checks_before(
    connection: Connection, environment: str, adopted: Sequence[Build]
) -> dict[tuple[str, SourceID], dict[str, dict[str, Any]]]:
    """Return the latest result of each check by snapshot and source, as an environment has them."""
    entries = sa.select(manifest_entries.c.build_uid).where(
        manifest_entries.c.environment == environment
    )
    is_own = sa.or_(builds.c.environment == environment, builds.c.build_uid.in_(entries))
    query = sa.select(builds.c.snapshot_uid, builds.c.source_id, builds.c.checks)
    query = query.where(is_own, builds.c.state == "succeeded").order_by(builds.c.started_at)
    results: dict[tuple[str, SourceID], dict[str, dict[str, Any]]] = {}
    for part in in_parts(sorted({b.snapshot.build_uid for b in adopted if b.snapshot})):
        for row in connection.execute(query.where(builds.c.snapshot_uid.in_(part))):
            own = results.setdefault((row.snapshot_uid, row.source_id), {})
            own.update((result["name"], result) for result in row.checks or ())
    return results


def _by(user: str | None) -> dict[str, Any]:
    """Return the column of a change for the user who asked for it; empty: the process's user."""
    return {} if user is None else {"by": user}


def _user() -> str:
    """Return the user's name, as the system knows it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def set_malloy(
    connection: Connection,
    idx: int,
    environment: str,
    malloy: Mapping[BuildID, BuildID],
) -> None:
    """Replace Malloy's BuildIDs in an environment, from the event `idx` on."""
    present = _malloy_ids(connection, environment)
    new = {m: b for m, b in malloy.items() if present.get(m) != b}
    ended = [{"old": m} for m in present if m in new or m not in malloy]
    if ended:
        this = sa.and_(
            malloy_entries.c.environment == environment,
            malloy_entries.c.malloy_id == sa.bindparam("old"),
            malloy_entries.c.until.is_(None),
        )
        connection.execute(malloy_entries.update().where(this).values(until=idx), ended)
    if new:
        values = {"environment": environment, "since": idx}
        rows = [{**values, "malloy_id": m, "build_id": b} for m, b in sorted(new.items())]
        connection.execute(malloy_entries.insert(), rows)


def _malloy_ids(
    connection: Connection, environment: str, *, at: int | None = None
) -> dict[BuildID, BuildID]:
    """Return Malloy's BuildIDs, each with ours, in an environment now, or right after an event."""
    columns = malloy_entries.c
    query = sa.select(columns.malloy_id, columns.build_id).where(columns.environment == environment)
    if at is None:
        query = query.where(columns.until.is_(None))
    else:
        later = sa.or_(columns.until.is_(None), columns.until > at)
        query = query.where(columns.since <= at, later)
    return {row.malloy_id: row.build_id for row in connection.execute(query)}
