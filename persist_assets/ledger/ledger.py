"""The only writer of state: every transition of builds, manifests and leases is a method here.

The invariant: what must change together changes in one transaction, and every change appends an
event in that same transaction. Readers see whole publications or nothing of them.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, LedgerError
from persist_assets.core.model.checks import CheckResult, FailedPartition
from persist_assets.core.model.columns import Column, Parts
from persist_assets.core.model.snapshots import (
    Build,
    Filled,
    Holding,
    Leaf,
    ManifestChange,
    Move,
    Partitions,
    RawVersion,
    Snapshot,
    View,
    Written,
)
from persist_assets.core.model.sources import Read
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.copies import CoverageLog
from persist_assets.ledger.log import repeated
from persist_assets.ledger.tables import (
    builds,
    events,
    leases,
    malloy_entries,
    manifest_changes,
    manifest_entries,
    manifest_moves,
    taints,
)
from persist_assets.ledger.taints import TaintLog
from persist_assets.ledger.wants import WantLog

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
    from typing import ParamSpec, TypeVar

    from sqlalchemy.engine import Connection, Row

    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, BuildState, Runs
    from persist_assets.core.wants import PartitionRef, Want
    from persist_assets.ledger.taints import Kept, Taint

    Given = ParamSpec("Given")
    Result = TypeVar("Result")

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""How long a lease lives without a heartbeat, in seconds."""
_INTERRUPTED = "interrupted"
"""The error of builds of which others recorded that they ended."""


class Ledger(WantLog, CoverageLog, TaintLog):
    """A connection to a ledger, safe to share between threads: see `EventLog`."""

    # -------------------------------------------------------------------------------- builds

    @repeated
    def record_started(
        self,
        build: Build,
        table: str,
        *,
        base: Snapshot | None = None,
        kept: Kept | None = None,
        wanted: Sequence[Want] = (),
        request_id: str | None = None,
    ) -> None:
        """Record that a build has begun, and for which wants.

        Parameters
        ----------
        base
            The snapshot whose files its own may have too.
        kept
            What it keeps of the rows of another snapshot.
        wanted
            What is wanted by the very build, and ends with it.
        request_id
            Else the request that it is of.
        """
        parts = [*base.parts, base.build_uid] if base else None
        values = {**_build_values(build), "table_name": table, "parts": parts}
        with self._write() as connection:
            connection.execute(builds.insert().values(**values))
            if kept is not None:  # builds of its run may read it before others do
                self._keep_taints(connection, build.environment, build.build_uid, kept)
            self._create(connection, wanted)
            told = {"want_ids": [w.want_id for w in wanted], "build_request_id": request_id}
            self._append(connection, "build-started", {**_event_data(build), **told})

    @repeated
    def record_failed(self, build: Build, error: str, *, request_id: str | None = None) -> None:
        """Record that a build failed, unless it has ended; what readers see is as before.

        Parameters
        ----------
        request_id
            The request that it is of.
        """
        with self._write() as connection:
            if self._fail(connection, build.build_uid, error):
                told = {**_event_data(build), "build_request_id": request_id, "error": error}
                self._append(connection, "build-failed", told)
                self._give_up(connection, build.build_uid, error)

    def _fail(self, connection: Connection, build_uid: str, error: str) -> bool:
        """Record that a build failed, and return whether it was under way."""
        started = sa.and_(builds.c.build_uid == build_uid, builds.c.state == "started")
        # PostgreSQL's texts hold any character but this one.
        told = error.replace("\0", "")
        values = {"state": "failed", "finished_at": self._clock(), "error": told}
        return bool(connection.execute(builds.update().where(started).values(**values)).rowcount)

    @repeated
    def is_under_way(self, build: Build) -> bool:
        """Whether a build has begun, and nobody has recorded an end of it."""
        query = sa.select(builds.c.state).where(builds.c.build_uid == build.build_uid)
        with self._read() as connection:
            return connection.scalar(query) == "started"

    @repeated
    def record_interrupted(self, table: str, *, alive: Sequence[str] = ()) -> list[str]:
        """Record builds of a table as failed that can never end; return their uids.

        The caller holds the table's lease, so that whoever began them is gone, but for those
        of the uids `alive`.
        """
        query = sa.select(builds).where(
            builds.c.table_name == table,
            builds.c.state == "started",
            builds.c.build_uid.not_in(alive),
        )
        with self._write() as connection:
            dead = [_build(row) for row in connection.execute(query)]
            for build in dead:
                self._fail(connection, build.build_uid, _INTERRUPTED)
                self._append(
                    connection, "build-failed", {**_event_data(build), "error": _INTERRUPTED}
                )
                self._give_up(connection, build.build_uid, _INTERRUPTED)
        return [build.build_uid for build in dead]

    @repeated
    def publish(
        self, publication: Publication, *, malloy: Mapping[BuildID, BuildID] | None = None
    ) -> None:
        """Let readers of the build's environment see what it produced.

        Parameters
        ----------
        malloy
            All that BuildIDs of Malloy's mean in the environment now; None: what they meant.

        Raises
        ------
        ConflictError
            The lease is lost: somebody else may write the table by now; or the snapshot was
            collected, or what it was computed from tainted. Nothing was published.
        """
        with self._write() as connection:
            self._publish(connection, publication, malloy)

    @repeated
    def publish_together(
        self,
        publications: Sequence[Publication],
        *,
        request_id: str,
        malloy: Mapping[BuildID, BuildID] | None = None,
    ) -> None:
        """Let readers see everything that was built for a request, in one transaction.

        Raises
        ------
        ConflictError
            See `publish`; of any of them. Nothing was published.
        """
        with self._write() as connection:
            for publication in publications:
                self._publish(connection, publication, malloy, request_id=request_id)
            self._succeed(connection, request_id)

    def _publish(
        self,
        connection: Connection,
        publication: Publication,
        malloy: Mapping[BuildID, BuildID] | None,
        *,
        request_id: str | None = None,
    ) -> None:
        build, snapshot, lease = publication.build, publication.snapshot, publication.lease
        if lease is not None:
            held = sa.select(leases.c.token).where(leases.c.name == lease.name)
            if connection.scalar(held) != lease.token:
                raise ConflictError(
                    f"the lease on {lease.name} was lost during the build",
                    hint="the build sent no heartbeat for too long; try again",
                )
        read = {leaf.build_uid for leaf in snapshot.view.leaves} if snapshot.view else set()
        reused = {snapshot.build_uid} - {build.build_uid}
        _refuse_collected(connection, {uid for uid in read | reused if uid})
        if publication.kept is not None:  # what was tainted while it was built too
            self._keep_taints(connection, build.environment, build.build_uid, publication.kept)
        name = build.source_id.partition("@")[0]
        self._refuse_tainted(connection, name, publication.used, publication.environments)
        self._refuse_tainted(connection, name, publication.taken)
        values = {
            "state": "succeeded",
            "action": build.action,
            "finished_at": self._clock(),
            "checks": [asdict(c) for c in publication.checks],
            "written_rows": build.written.rows if build.written else None,
            "written_bytes": build.written.bytes if build.written else None,
            **_snapshot_values(snapshot),
        }
        this = builds.c.build_uid == build.build_uid
        connection.execute(builds.update().where(this).values(**values))
        told = {**_event_data(build), "build_request_id": request_id}
        data = {
            **told,
            "action": build.action,
            "table": snapshot.table,
            "version": snapshot.version,
            "rows": snapshot.rows,
        }
        idx = self._append(connection, "build-succeeded", data)
        there = [("partition-available", {**told, "partition_ref": r}) for r in publication.refs]
        self._append_all(connection, there)
        self._satisfy(connection, build.build_uid)
        if publication.moves:
            entries = {build.build_id: build.build_uid}
            said = {"kind": "build", "run_id": build.run_id}
            self._move(connection, idx, build.environment, entries, said)
        if malloy is not None:
            self._mean(connection, idx, build.environment, malloy)

    def _mean(
        self,
        connection: Connection,
        idx: int,
        environment: str,
        malloy: Mapping[BuildID, BuildID],
    ) -> None:
        """Let BuildIDs of Malloy's mean from an event on what `malloy` says, and no others."""
        present = _meant(connection, environment)
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

    def _move(
        self,
        connection: Connection,
        idx: int,
        environment: str,
        entries: Mapping[BuildID, str | None],
        said: Mapping[str, Any],
    ) -> None:
        """Point manifest entries at other builds, or remove them, and record the change.

        Parameters
        ----------
        idx
            The position of the event that tells of it.
        entries
            What they shall be; None: none.
        said
            Of the change, more values of `manifest_changes`.
        """
        own = manifest_entries.c.environment == environment
        query = sa.select(manifest_entries.c.build_id, manifest_entries.c.build_uid).where(own)
        if len(entries) == 1:
            query = query.where(manifest_entries.c.build_id.in_(entries))
        before = {row.build_id: row.build_uid for row in connection.execute(query)}
        now = self._clock()
        values = {"environment": environment, "at": now, "by": _user(), **said}
        connection.execute(manifest_changes.insert().values(change_id=idx, **values))
        moves = [
            {"change_id": idx, "build_id": b, "before": before.get(b), "after": after}
            for b, after in sorted(entries.items())
            if b in before or after is not None
        ]
        if moves:
            connection.execute(manifest_moves.insert(), moves)
        key = sa.and_(own, manifest_entries.c.build_id == sa.bindparam("old"))
        gone = [{"old": b} for b in entries if b in before]
        if gone:
            connection.execute(manifest_entries.delete().where(key), gone)
        made = [
            {"environment": environment, "build_id": b, "build_uid": uid, "published_at": now}
            for b, uid in entries.items()
            if uid is not None
        ]
        if made:
            connection.execute(manifest_entries.insert(), made)

    @repeated
    def promote(
        self,
        sources: Sequence[str],
        target: str,
        snapshots: Mapping[BuildID, Snapshot],
        *,
        malloy: Mapping[BuildID, BuildID] | None = None,
        why: str | None = None,
    ) -> int:
        """Let readers of an environment see what those of another see; return the change.

        Parameters
        ----------
        sources
            The other one, and those that it reads.
        snapshots
            What was decided upon.
        malloy
            All that BuildIDs of Malloy's mean in `target` now; None: what they meant.

        Raises
        ------
        ConflictError
            The other one has moved on since. Nothing was changed.
        """
        query = _published(*sources)
        with self._write() as connection:
            entries: dict[str, str | None] = {}
            for row in connection.execute(query):
                if row.build_id in snapshots and _snapshot(row) == snapshots[row.build_id]:
                    entries[row.build_id] = row.build_uid
            lacking = [s.source_id for b, s in snapshots.items() if b not in entries]
            if lacking:
                raise ConflictError(
                    f"{sources[0]} changed while it was being promoted: {lacking[0]}",
                    hint="try again",
                )
            data = {"environment": target, "from": sources[0], "entries": len(entries)}
            self._bring_taints(
                connection, target, [s.build_uid for s in snapshots.values()], sources
            )
            idx = self._append(connection, "promoted", data)
            said = {"kind": "promote", "why": why or f"from {sources[0]}"}
            self._move(connection, idx, target, entries, said)
            if malloy is not None:
                self._mean(connection, idx, target, malloy)
        return idx

    @repeated
    def taint(
        self,
        environments: Sequence[str],
        decide: Callable[[Mapping[BuildID, Snapshot], Collection[Snapshot]], Taint],
        *,
        by: str,
    ) -> Taint:
        """Record that readers of an environment shall not use some rows; return which.

        Parameters
        ----------
        environments
            It, and those that it reads.
        decide
            Says which, of what its readers read, and of all snapshots there are.
        """
        kept = sa.select(builds).where(
            builds.c.state == "succeeded", builds.c.collected_at.is_(None)
        )
        with self._write() as connection:  # so that nothing is published meanwhile
            rows = connection.execute(_published(*environments))
            manifest = {row.build_id: _snapshot(row) for row in rows}
            taint = decide(manifest, [_snapshot(row) for row in connection.execute(kept)])
            self._taint(connection, environments[0], taint, by=by)
        return taint

    @repeated
    def roll_back(self, environment: str, to: int, *, expected: int, why: str | None = None) -> int:
        """Put a manifest back to what it was right after a change; return the new change.

        Parameters
        ----------
        to
            The change, 0 for before the first one.
        expected
            The change that the manifest is at, as far as the caller knows.

        Raises
        ------
        ConflictError
            The manifest has moved on, or a snapshot of that time was collected. Nothing was
            changed.
        """
        later = sa.and_(manifest_changes.c.change_id > to, manifest_changes.c.kind != "collect")
        with self._write() as connection:
            data = {"to": to}
            why = why or f"to {to}"
            idx = self._take_back(connection, environment, later, expected, why, data)
            self._mean(connection, idx, environment, _meant(connection, environment, at=to))
        return idx

    @repeated
    def undo(
        self,
        environment: str,
        moved: Mapping[int, Collection[BuildID]],
        *,
        expected: int,
        why: str,
    ) -> int:
        """Take single changes of a manifest back, and leave later ones; return the new change.

        Parameters
        ----------
        moved
            The changes, and which of their entries: no other change has moved these since.
        expected
            The change that the manifest is at, as far as the caller knows.

        Raises
        ------
        ConflictError
            See `roll_back`.
        """
        these = manifest_changes.c.change_id.in_(moved)
        with self._write() as connection:
            data = {"undone": sorted(moved)}
            return self._take_back(connection, environment, these, expected, why, data, moved)

    def _take_back(
        self,
        connection: Connection,
        environment: str,
        changes: sa.ColumnElement[bool],
        expected: int,
        why: str,
        data: Mapping[str, Any],
        only: Mapping[int, Collection[BuildID]] | None = None,
    ) -> int:
        """Give entries what they had before the first of some changes; return the new change."""
        own = manifest_changes.c.environment == environment
        latest = sa.select(sa.func.max(manifest_changes.c.change_id)).where(own)
        moved = (
            sa.select(manifest_moves)
            .join(manifest_changes, manifest_changes.c.change_id == manifest_moves.c.change_id)
            .where(own, changes)
            .order_by(manifest_changes.c.change_id.desc())
        )
        if connection.scalar(latest) != expected:
            raise ConflictError(f"{environment} changed meanwhile", hint="try again")
        undone = [
            row
            for row in connection.execute(moved)
            if only is None or row.build_id in only[row.change_id]
        ]
        entries = {row.build_id: row.before for row in undone}
        _refuse_collected(connection, {uid for uid in entries.values() if uid})
        told = {"environment": environment, **data, "entries": len(entries)}
        idx = self._append(connection, "rolled-back", told)
        self._move(connection, idx, environment, entries, {"kind": "rollback", "why": why})
        left = {row.build_id: row.change_id for row in undone}
        self._append_all(connection, _states(connection, environment, left))
        return idx

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
            told = sa.select(query.subquery().c.change_id)
            moved = sa.select(manifest_moves).where(manifest_moves.c.change_id.in_(told))
            moves = connection.execute(moved.order_by(manifest_moves.c.build_id)).all()
            ends = moved.subquery()
            uids = sa.union(sa.select(ends.c.before), sa.select(ends.c.after))
            rows = connection.execute(sa.select(builds).where(builds.c.build_uid.in_(uids)))
            known = {row.build_uid: _snapshot(row) for row in rows}
            back = sa.select(events.c.idx, events.c.data).where(
                events.c.kind == "rolled-back", events.c.idx.in_(told)
            )
            data = {row.idx: row.data for row in connection.execute(back)}
        by_change: dict[int, list[Move]] = {change["change_id"]: [] for change in changes}
        for row in moves:
            move = Move(row.build_id, known.get(row.before), known.get(row.after))
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
    def fetch_builds(
        self,
        *,
        build_uid: str | None = None,
        run_id: str | None = None,
        source_id: SourceID | None = None,
        environment: str | None = None,
        succeeded_before: datetime | None = None,
        limit: int | None = None,
    ) -> list[Build]:
        """Return builds, the latest first, at most `limit`.

        Parameters
        ----------
        build_uid, run_id, source_id, environment
            Only those of it.
        succeeded_before
            Only those that started before, and succeeded.
        """
        query = (
            sa.select(builds).order_by(builds.c.started_at.desc(), builds.c.build_uid).limit(limit)
        )
        if environment is not None:
            query = query.where(builds.c.environment == environment)
        if succeeded_before is not None:
            earlier = builds.c.started_at < succeeded_before
            query = query.where(earlier, builds.c.state == "succeeded")
        if build_uid is not None:
            query = query.where(builds.c.build_uid == build_uid)
        if run_id is not None:
            query = query.where(builds.c.run_id == run_id)
        if source_id is not None:
            query = query.where(builds.c.source_id == source_id)
        with self._read() as connection:
            return [_build(row) for row in connection.execute(query)]

    @repeated
    def fetch_last_builds(self, environment: str) -> dict[SourceID, Build]:
        """Return the latest finished build of every source in an environment."""
        ranked = (
            sa.select(
                builds,
                sa.func.row_number()
                .over(
                    partition_by=builds.c.source_id,
                    order_by=(builds.c.started_at.desc(), builds.c.build_uid),
                )
                .label("recency"),
            )
            .where(builds.c.environment == environment, builds.c.state != "started")
            .subquery()
        )
        with self._read() as connection:
            rows = connection.execute(sa.select(ranked).where(ranked.c.recency == 1))
            return {row.source_id: _build(row) for row in rows}

    @repeated
    def fetch_attempts(
        self, environment: str
    ) -> dict[SourceID, dict[BuildState, tuple[int, datetime]]]:
        """Return of every source how many builds ended in a state, and when the last one did."""
        query = (
            sa.select(
                builds.c.source_id,
                builds.c.state,
                sa.func.count(),
                sa.func.max(builds.c.finished_at),
            )
            .where(builds.c.environment == environment, builds.c.state != "started")
            .group_by(builds.c.source_id, builds.c.state)
        )
        found: dict[SourceID, dict[BuildState, tuple[int, datetime]]] = {}
        with self._read() as connection:
            for source_id, state, n, last in connection.execute(query):
                found.setdefault(source_id, {})[state] = (n, last)
        return found

    @repeated
    def has_published(self, *environments: str) -> bool:
        """Whether anything was ever published in one of some environments."""
        query = (
            sa.select(manifest_changes.c.change_id)
            .where(manifest_changes.c.environment.in_(environments))
            .limit(1)
        )
        with self._read() as connection:
            return connection.scalar(query) is not None

    @repeated
    def fetch_known(self, build_uids: Collection[str]) -> set[str]:
        """Return those of some builds that this ledger knows, or whose snapshots it knows."""
        found: set[str] = set()
        with self._read() as connection:
            for column in (builds.c.build_uid, builds.c.snapshot_uid):
                for part in in_parts([*build_uids]):
                    found.update(connection.scalars(sa.select(column).where(column.in_(part))))
        return found

    @repeated
    def fetch_environments(self) -> list[str]:
        """Return the names of all environments that have a manifest, sorted."""
        query = sa.select(manifest_entries.c.environment).distinct()
        with self._read() as connection:
            return sorted(connection.scalars(query))

    def fetch_current(
        self, *environments: str, source_id: SourceID | None = None
    ) -> dict[SourceID, Build]:
        """Return for every source the build that an environment's readers last got of it.

        Parameters
        ----------
        environments
            It, and those that it reads, nearest first: those have what it has not.
        source_id
            Only of this source.
        """
        current: dict[SourceID, Build] = {}
        for environment in reversed(environments):
            current |= self._current(environment, source_id)
        return current

    @repeated
    def _current(self, environment: str, source_id: SourceID | None) -> dict[SourceID, Build]:
        entries = (
            sa.select(builds, manifest_entries.c.published_at.label("at"))
            .join(manifest_entries, _ENTRY)
            .where(manifest_entries.c.environment == environment)
        )
        # Sources of one meaning share an entry, which names the build of only one of them.
        sharing = (
            sa.select(builds, builds.c.finished_at.label("at"))
            .join(
                manifest_entries,
                sa.and_(
                    manifest_entries.c.environment == builds.c.environment,
                    manifest_entries.c.build_id == builds.c.build_id,
                ),
            )
            .where(builds.c.environment == environment, builds.c.state == "succeeded")
        )
        if source_id is not None:
            this = builds.c.source_id == source_id
            entries, sharing = entries.where(this), sharing.where(this)
        with self._read() as connection:
            found = [*connection.execute(entries), *connection.execute(sharing)]
        found.sort(key=lambda row: (row.at, row.build_uid))
        latest = {row.source_id: row for row in found}
        return {source_id: _build(row) for source_id, row in sorted(latest.items())}

    @repeated
    def find_build(self, prefix: str) -> Build | None:
        """Return the latest build of the one BuildID that begins with `prefix`, or None.

        Raises
        ------
        ConflictError
            Several begin so.
        """
        query = (
            sa.select(builds)
            .where(builds.c.build_id.startswith(prefix, autoescape=True))
            .order_by(builds.c.state != "succeeded", builds.c.started_at.desc())
        )
        with self._read() as connection:
            found = connection.execute(query).all()
        if len({row.build_id for row in found}) > 1:
            raise ConflictError(f"several BuildIDs start with {prefix}", hint="give more of it")
        return _build(found[0]) if found else None

    @repeated
    def fetch_checks(self, build_uid: str) -> list[CheckResult]:
        """Return what came of the checks of a build's rows, in the end: others may have added some.

        Builds that reuse them do, with checks that are new.
        """
        this = builds.c.build_uid == build_uid
        same = sa.and_(builds.c.snapshot_uid == build_uid, builds.c.state == "succeeded")
        query = (
            sa.select(builds.c.checks)
            .where(sa.or_(this, same))
            .order_by(builds.c.started_at, builds.c.build_uid)
        )
        with self._read() as connection:
            rows = connection.scalars(query).all()
        found: dict[str, CheckResult] = {}
        for values in (values for row in rows for values in row or ()):
            result = CheckResult(**values)
            places = tuple(FailedPartition(**place) for place in values.get("partitions", ()))
            found[result.name] = replace(result, sample=tuple(result.sample), partitions=places)
        return [*found.values()]

    @repeated
    def fetch_passed(self, *environments: str) -> dict[BuildID, set[str]]:
        """Return the definitions of the checks that what is published has passed."""
        query = (
            sa.select(builds.c.build_id, builds.c.checks)
            .join(manifest_entries, _ENTRY)
            .where(manifest_entries.c.environment.in_(environments))
        )
        found: dict[str, set[str]] = {}
        with self._read() as connection:
            for build_id, checks in connection.execute(query):
                passed = {c["definition"] for c in checks or () if c["passed"]}
                found.setdefault(build_id, set()).update(passed)
        return found

    # ------------------------------------------------------------------------------ manifest

    @repeated
    def fetch_manifest(self, *environments: str) -> dict[BuildID, Snapshot]:
        """Return what readers of an environment read: one consistent state.

        Parameters
        ----------
        environments
            It, and those that it reads: of a BuildID's snapshots the one that was built, or
            found to be up to date, last is read, and of equals the one published last. To find
            what is tainted up to date does not count.
        """
        query = _published(*environments)
        with self._read() as connection:
            return {row.build_id: _snapshot(row) for row in connection.execute(query)}

    @repeated
    def fetch_malloy(self, environment: str) -> dict[BuildID, BuildID]:
        """Return what BuildIDs of Malloy's own tools mean in an environment.

        Only what its own builds, promotions and imports said: those that it reads may mean other
        sources of the same names. What they mean need not be published.
        """
        with self._read() as connection:
            return _meant(connection, environment)

    @repeated
    def fetch_elsewhere(self, *environments: str) -> dict[BuildID, list[Snapshot]]:
        """Return what readers of all other environments read, the latest first."""
        query = (
            sa.select(builds)
            .join(manifest_entries, _ENTRY)
            .where(manifest_entries.c.environment.not_in(environments))
            .order_by(builds.c.built_at.desc(), builds.c.build_uid)
        )
        found: dict[str, list[Snapshot]] = {}
        with self._read() as connection:
            for row in connection.execute(query):
                found.setdefault(row.build_id, []).append(_snapshot(row))
        return found

    @repeated
    def fetch_tables(self, build_id: BuildID) -> list[tuple[str, str]]:
        """Return the environments that have a BuildID, and the tables in which."""
        query = (
            sa.select(manifest_entries.c.environment, builds.c.table_name)
            .join(builds, _ENTRY)
            .where(manifest_entries.c.build_id == build_id)
        )
        with self._read() as connection:
            return [(row.environment, row.table_name) for row in connection.execute(query)]

    @repeated
    def find_snapshot(
        self, environment: str, build_id: BuildID, *, reads: Sequence[str] = ()
    ) -> Snapshot | None:
        """Return what readers of one BuildID read, or None: see `fetch_manifest`."""
        query = _published(environment, *reads).where(builds.c.build_id == build_id)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return _snapshot(rows[-1]) if rows else None

    @repeated
    def find_pinned_version(self, table: str) -> int | None:
        """Return the greatest version of a table that was published and is kept, or None."""
        query = sa.select(sa.func.max(builds.c.version)).where(
            builds.c.table_name == table,
            builds.c.view.is_(None),
            builds.c.collected_at.is_(None),
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def find_written(self, build_uid: str) -> Snapshot | None:
        """Return the snapshot that a build wrote, unless it was collected, or None."""
        query = sa.select(builds).where(
            builds.c.snapshot_uid == build_uid,
            builds.c.state == "succeeded",
            builds.c.collected_at.is_(None),
        )
        with self._read() as connection:
            row = connection.execute(query.order_by(builds.c.started_at)).first()
        return _snapshot(row) if row else None

    @repeated
    def fetch_published(self, *environments: str) -> dict[BuildID, Build]:
        """Return the builds whose snapshots readers of an environment read: `fetch_manifest`."""
        with self._read() as connection:
            return {r.build_id: _build(r) for r in connection.execute(_published(*environments))}

    @repeated
    def fetch_succeeded(self, build_id: BuildID) -> list[Build]:
        """Return all builds of a BuildID that ever succeeded, the latest first."""
        query = (
            sa.select(builds)
            .where(builds.c.build_id == build_id, builds.c.state == "succeeded")
            .order_by(builds.c.started_at.desc(), builds.c.build_uid)
        )
        with self._read() as connection:
            return [_build(row) for row in connection.execute(query)]

    @repeated
    def adopt(
        self,
        environment: str,
        adopted: Sequence[Build],
        *,
        why: str,
        malloy: Mapping[BuildID, BuildID],
    ) -> int:
        """Let readers of an environment see what builds have made; return the change.

        Parameters
        ----------
        adopted
            They have succeeded, in this ledger or in another one. Those that this one does not
            know are recorded in it, with no word on checks.
        malloy
            What BuildIDs of Malloy's mean, of which the environment says nothing itself.
        """
        with self._write() as connection:
            uids = {b.snapshot.build_uid for b in adopted if b.snapshot}
            _refuse_collected(connection, uids)
            for build in adopted:
                assert build.snapshot is not None
                known = sa.select(builds.c.state).where(builds.c.build_uid == build.build_uid)
                state = connection.scalar(known)
                if state is None:
                    values = {
                        **_build_values(build),
                        **_snapshot_values(build.snapshot),
                        "table_name": build.snapshot.table,
                        "finished_at": build.finished_at,
                    }
                    connection.execute(builds.insert().values(**values))
                elif state != "succeeded":
                    raise ConflictError(f"the build {build.build_uid} is {state} here")
            self._bring_taints(connection, environment, uids)
            data = {"environment": environment, "entries": len(adopted), "why": why}
            idx = self._append(connection, "imported", data)
            said = {"kind": "promote", "why": why}
            self._move(
                connection, idx, environment, {b.build_id: b.build_uid for b in adopted}, said
            )
            own = _meant(connection, environment)
            self._mean(connection, idx, environment, {**malloy, **own})
        return idx

    @repeated
    def fetch_table_names(self) -> list[str]:
        """Return the names of all tables that were ever built or begun, sorted."""
        with self._read() as connection:
            return sorted(connection.scalars(sa.select(builds.c.table_name).distinct()))

    @repeated
    def fetch_under_way(self) -> list[tuple[Build, str, bool]]:
        """Return the builds that have not ended, their process, and whether that is gone.

        Of processes of other machines nothing is known: they count as there.
        """
        query = sa.select(builds).where(builds.c.state == "started").order_by(builds.c.started_at)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [(_build(r), r.process or "unknown", has_ended(r.process)) for r in rows]

    @repeated
    def fetch_versions(self) -> set[str]:
        """Return the versions of raw data that snapshots rest on, unless they were collected."""
        query = sa.select(builds.c.as_of).where(
            builds.c.state == "succeeded", builds.c.collected_at.is_(None)
        )
        with self._read() as connection:
            return {version for as_of in connection.scalars(query) for _, version in as_of}

    @repeated
    def fetch_current_versions(self) -> set[str]:
        """Return the versions of raw data that rest under what readers of any environment read."""
        query = sa.select(builds.c.as_of).join(manifest_entries, _ENTRY)
        with self._read() as connection:
            return {version for as_of in connection.scalars(query) for _, version in as_of or ()}

    @repeated
    def fetch_leases(self) -> list[tuple[Lease, bool, bool]]:
        """Return who holds what, whether its process is gone, and whether it has expired."""
        with self._read() as connection:
            now = self._database.now(connection, self._clock)
            rows = connection.execute(sa.select(leases).order_by(leases.c.name)).all()
        return [
            (Lease(r.name, r.token, r.holder), is_dead(r.host, r.pid), r.expires_at <= now)
            for r in rows
        ]

    # ---------------------------------------------------------------------------- collection

    @repeated
    def collect(
        self,
        before: datetime,
        environment: str,
        defined: Mapping[BuildID, Collection[SourceID]],
        *,
        removed: bool = False,
        dry_run: bool = False,
    ) -> list[Holding]:
        """Give up every snapshot that nobody has been able to reach since an instant.

        Reached are those that a manifest names or has named since then, and what stored queries
        among them read. A manifest forgets what all sources of a meaning have replaced by another
        one there since then.

        Parameters
        ----------
        environment, defined
            What is defined in an environment: no manifest forgets it.
        removed
            Its own one forgets what sources meant that are no longer defined in it, once that has
            not been published since then.
        dry_run
            Change nothing, and return what would be.

        Returns
        -------
        list[Holding]
            What then is known of every table.
        """
        with self._write() as connection, connection.begin_nested() as trial:
            told = {s for sources in defined.values() for s in sources} if removed else None
            forgotten = _forgotten(connection, before, environment, {*defined}, told)
            for name, build_ids in forgotten.items():
                data = {"environment": name, "entries": len(build_ids)}
                idx = self._append(connection, "entries-collected", data)
                said = {"kind": "collect", "why": f"not meant since {before.isoformat()}"}
                self._move(connection, idx, name, dict.fromkeys(build_ids), said)
            uids = _unreached(connection, before)
            if uids:
                self._append(connection, "snapshots-collected", {"build_uids": sorted(uids)})
                _update_each(connection, uids, {"collected_at": self._clock()})
            found = _holdings(connection)
            if dry_run:
                trial.rollback()
        return found

    @repeated
    def fetch_holding(self, table: str) -> Holding:
        """Return what is known of the builds of one table."""
        with self._read() as connection:
            found = _holdings(connection, table)
        return found[0] if found else Holding(table, (), {}, {}, ())

    # -------------------------------------------------------------------------------- leases

    @repeated
    def is_leased(self, name: str) -> bool:
        """Whether somebody holds the lease of a name."""
        with self._read() as connection:
            now = self._database.now(connection, self._clock)
            held = connection.execute(sa.select(leases).where(leases.c.name == name)).one_or_none()
        return held is not None and is_live(held, now)

    @contextmanager
    def lease(
        self,
        name: str,
        holder: str,
        *,
        wait_s: float = 3600.0,
        over: threading.Event | None = None,
    ) -> Generator[Lease]:
        """Hold the only lease of a name, with heartbeats, until the block ends.

        Parameters
        ----------
        holder
            Whom others are told they wait for.
        wait_s
            How long to wait for another holder, in seconds.
        over
            Ends the wait when it is set.

        Raises
        ------
        ConflictError
            Another holder did not let go in time.
        """
        lease = Lease(name, uuid.uuid4().hex, holder)
        deadline = self._clock() + timedelta(seconds=wait_s)
        pause = 0.05
        over = over or threading.Event()
        while not self._take_lease(lease):
            if over.is_set() or self._clock() >= deadline:
                raise ConflictError(
                    f"{name} is held by {self._holder(name)}", hint="wait, or stop it"
                )
            over.wait(pause)
            pause = min(pause * 1.5, 1.0)
        stop = threading.Event()
        beat = threading.Thread(
            target=self._heartbeat, args=(lease, stop), daemon=True, name=f"lease {name}"
        )
        beat.start()
        try:
            yield lease
        finally:
            stop.set()
            beat.join()
            try:
                self.give_back(lease)
            except LedgerError as error:  # it expires
                log.warning("action=give-back lease=%s error=%s", name, error.message)

    @repeated
    def give_back(self, lease: Lease) -> None:
        """Let others take a lease: its holder publishes nothing any more."""
        with self._write() as connection:
            connection.execute(leases.delete().where(_mine(lease)))

    @repeated
    def _take_lease(self, lease: Lease) -> bool:
        with self._write() as connection:
            now = self._database.now(connection, self._clock)
            held = connection.execute(
                sa.select(leases).where(leases.c.name == lease.name)
            ).one_or_none()
            if held is not None:
                if is_live(held, now):
                    return False
                connection.execute(leases.delete().where(leases.c.name == lease.name))
                self._append(
                    connection, "lease-broken", {"name": lease.name, "holder": held.holder}
                )
            connection.execute(
                leases.insert().values(
                    name=lease.name,
                    token=lease.token,
                    holder=lease.holder,
                    host=THIS_MACHINE,
                    pid=os.getpid(),
                    acquired_at=now,
                    expires_at=now + timedelta(seconds=LEASE_S),
                )
            )
        return True

    def _heartbeat(self, lease: Lease, stop: threading.Event) -> None:
        pause = LEASE_S / 4
        while not stop.wait(pause):
            try:
                with self._write() as connection:
                    until = self._database.now(connection, self._clock) + timedelta(seconds=LEASE_S)
                    connection.execute(leases.update().where(_mine(lease)).values(expires_at=until))
                pause = LEASE_S / 4
            except LedgerError as error:  # publication will notice if the lease is lost
                log.warning("action=heartbeat lease=%s error=%s", lease.name, error.message)
                pause = 1.0

    @repeated
    def _holder(self, name: str) -> str:
        with self._read() as connection:
            return (
                connection.scalar(sa.select(leases.c.holder).where(leases.c.name == name))
                or "nobody"
            )


@dataclass(frozen=True, slots=True)
class Publication:
    """What readers are to see of a build.

    Attributes
    ----------
    checks
        What came of them.
    lease
        Under which the snapshot was written.
    moves
        Whether the manifest entry moves; else they see the snapshot in another environment.
    refs
        The partitions that are available from then on, by reference.
    kept
        What it keeps of the rows of another snapshot.
    used, environments
        The snapshots that it was computed from, and the environments in which they were read.
    taken
        The snapshot that it is, if that is another environment's.
    """

    build: Build
    snapshot: Snapshot
    checks: Sequence[CheckResult]
    lease: Lease | None = None
    moves: bool = True
    refs: Sequence[str] = ()
    kept: Kept | None = None
    used: Collection[str] = ()
    environments: Collection[str] = ()
    taken: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write something, while its token stands in the ledger."""

    name: str
    token: str
    holder: str


def _mine(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.name == lease.name, leases.c.token == lease.token)


def is_live(held: Row[Any], now: datetime) -> bool:
    """Whether a row of `leases` is of somebody who may still be at work."""
    return held.expires_at > now and not is_dead(held.host, held.pid)


def _machine() -> str:
    """Return what tells a machine from others, as far as the numbers of processes mean the same.

    Containers may share a name, and number their processes each on its own.
    """
    told = [socket.gethostname()]
    with suppress(OSError):  # elsewhere than on Linux
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        told.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(told)


THIS_MACHINE = _machine()


def is_dead(host: str, pid: int) -> bool:
    """Whether a process of this machine is gone; of other machines nothing is known."""
    if host != THIS_MACHINE:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


# --------------------------------------------------------------------------------------- queries


_ENTRY = manifest_entries.c.build_uid == builds.c.build_uid


def _published(*environments: str) -> sa.Select[Any]:
    """Return the query of what environments have published, a BuildID's best snapshot last.

    That is the one that was found to be right last. One of which something is tainted counts from
    when it was built: to find it up to date again makes it no better.
    """
    marked = sa.exists().where(
        taints.c.snapshot_uid == builds.c.snapshot_uid, taints.c.environment.in_(environments)
    )
    since = sa.case((marked, builds.c.built_at), else_=builds.c.finished_at)
    return (
        sa.select(builds)
        .join(manifest_entries, _ENTRY)
        .where(manifest_entries.c.environment.in_(environments))
        .order_by(builds.c.build_id, since, manifest_entries.c.published_at)
    )


def _meant(
    connection: Connection, environment: str, *, at: int | None = None
) -> dict[BuildID, BuildID]:
    """Return what BuildIDs of Malloy's mean in an environment, or meant right after an event."""
    columns = malloy_entries.c
    query = sa.select(columns.malloy_id, columns.build_id).where(columns.environment == environment)
    if at is None:
        query = query.where(columns.until.is_(None))
    else:
        later = sa.or_(columns.until.is_(None), columns.until > at)
        query = query.where(columns.since <= at, later)
    return {row.malloy_id: row.build_id for row in connection.execute(query)}


# ------------------------------------------------------------------------------------ collection


def _update_each(connection: Connection, uids: Iterable[str], values: Mapping[str, Any]) -> None:
    for some in in_parts(sorted(uids)):
        these = builds.c.snapshot_uid.in_(some)
        connection.execute(builds.update().where(these).values(**values))


def _refuse_collected(connection: Connection, build_uids: Iterable[str]) -> None:
    for some in in_parts(sorted(build_uids)):
        query = sa.select(builds.c.table_name, builds.c.version).where(
            sa.or_(builds.c.build_uid.in_(some), builds.c.snapshot_uid.in_(some)),
            builds.c.collected_at.is_not(None),
        )
        gone = connection.execute(query).first()
        if gone is not None:
            raise ConflictError(
                f"{gone.table_name} version {gone.version} was collected", hint="build it again"
            )


def _forgotten(
    connection: Connection,
    before: datetime,
    collecting: str,
    defined: Collection[BuildID],
    sources: Collection[SourceID] | None,
) -> dict[str, list[BuildID]]:
    """Return the entries that manifests need no more, by environment.

    Parameters
    ----------
    sources
        All sources there are in the environment `collecting`; what others meant is not needed
        there. None: nobody says so.
    """
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
    # Sources of one meaning share an entry, which names the build of only one of them; and
    # entries may be older than the history of changes.
    built = sa.select(
        builds.c.environment,
        builds.c.finished_at.label("at"),
        builds.c.source_id,
        builds.c.build_id,
    ).where(builds.c.state == "succeeded")
    told = sa.union_all(moved, built).subquery()
    meant: dict[tuple[str, SourceID], dict[BuildID, datetime]] = {}
    sharing: dict[BuildID, set[SourceID]] = {}
    for row in connection.execute(sa.select(told).order_by(told.c.at)):
        meant.setdefault((row.environment, row.source_id), {})[row.build_id] = row.at
        sharing.setdefault(row.build_id, set()).add(row.source_id)
    query = sa.select(manifest_entries).order_by(manifest_entries.c.build_id)
    entries = connection.execute(query).all()
    there = {(e.environment, e.build_id) for e in entries}
    found: dict[str, list[BuildID]] = {}
    for entry in entries:
        environment, build_id = entry.environment, entry.build_id
        published: datetime = entry.published_at
        at, superseded = published, True
        # Whoever means it anywhere may do so here, by a promotion of another's build.
        for source_id in sharing[build_id]:
            times = meant.get((environment, source_id), {})
            since = times.get(build_id, published)
            at = max(at, since)
            # A meaning that was rolled back has no entry, and so replaces none.
            later = [t for b, t in times.items() if t > since and (environment, b) in there]
            superseded &= bool(later) and min(later) < before
        gone = sources is not None and sharing[build_id].isdisjoint(sources)
        useless = superseded or (gone and environment == collecting)
        if at < before and useless and build_id not in defined:
            found.setdefault(environment, []).append(build_id)
    return found


def _unreached(connection: Connection, before: datetime) -> set[str]:
    """Return the snapshots that nobody has been able to reach since an instant."""
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
    # Not by their own rows: of a build that was never published itself others may have the view.
    query = sa.select(builds.c.snapshot_uid, builds.c.view).where(builds.c.view.is_not(None))
    views = {row.snapshot_uid: row.view for row in connection.execute(query)}
    while stack:
        uid = stack.pop()
        if uid is not None and uid not in reached:
            reached.add(uid)
            stack += [leaf["build_uid"] for leaf in views.get(uid, {"leaves": ()})["leaves"]]
    kept = sa.select(builds.c.snapshot_uid).where(
        builds.c.state == "succeeded", builds.c.collected_at.is_(None)
    )
    return {*connection.scalars(kept)} - reached


def _holdings(connection: Connection, table: str | None = None) -> list[Holding]:
    query = sa.select(
        *(builds.c[name] for name in ("table_name", "build_id", "build_uid", "state", "version")),
        *(builds.c[name] for name in ("collected_at", "process", "started_at", "snapshot_uid")),
        *(builds.c[name] for name in ("error", "parts")),
    ).order_by(builds.c.table_name, builds.c.started_at)
    if table is not None:
        query = query.where(builds.c.table_name == table)
    found: list[Holding] = []
    for name, rows in groupby(connection.execute(query), lambda row: row.table_name):
        kept: dict[str, int] = {}
        gone: dict[str, int | None] = {}
        started: list[tuple[str, str | None, datetime]] = []
        build_ids: set[BuildID] = set()
        parts: dict[str, tuple[str, ...]] = {}
        for row in rows:
            build_ids.add(row.build_id)
            if row.parts and row.collected_at is None:
                parts[row.snapshot_uid or row.build_uid] = tuple(row.parts)
            # What was parked and interrupted is still read by builds of its run.
            if row.state == "started" or row.error == _INTERRUPTED:
                started.append((row.build_uid, row.process, row.started_at))
            elif row.state == "failed":
                gone[row.build_uid] = None
            elif row.collected_at is None:
                kept[row.snapshot_uid] = row.version
            elif row.build_uid == row.snapshot_uid:  # else another ledger's may need it
                gone[row.snapshot_uid] = row.version
        found.append(Holding(name, tuple(sorted(build_ids)), kept, gone, tuple(started), parts))
    return found


# ----------------------------------------------------------------------------------- translation


def _event_data(build: Build) -> dict[str, Any]:
    return {
        "source_id": build.source_id,
        "build_id": build.build_id,
        "build_uid": build.build_uid,
        "environment": build.environment,
        "run_id": build.run_id,
        "process": this_process(),
    }


def _user() -> str:
    """Return who asks, by the name the system knows them by."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def this_process() -> str:
    """Return what tells this process from all others that write to the ledger."""
    return f"{THIS_MACHINE}:{os.getpid()}"


def has_ended(process: str | None) -> bool:
    """Whether a process (`this_process`) is known to be gone."""
    host, _, pid = (process or "").rpartition(":")
    return bool(host) and is_dead(host, int(pid))


def _build_values(build: Build) -> dict[str, Any]:
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


def _digests_values(build: Build) -> dict[str, Any] | None:
    if build.digests is None:
        return None
    return {
        **asdict(build.digests),
        "reads": [[r.source_id, r.definition, asdict(r.digests)] for r in build.reads],
    }


def _parts(values: Mapping[str, Any]) -> Parts:
    return Parts(values["rows"], tuple((name, digest) for name, digest in values["columns"]))


def _snapshot_values(snapshot: Snapshot) -> dict[str, Any]:
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
    }


def _states(
    connection: Connection, environment: str, left: Mapping[BuildID, int]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that say what of partitions was tainted when a manifest had them, or not.

    Parameters
    ----------
    left
        Of BuildIDs the changes with which what a manifest had of them was there no more.
    """
    own = events.c.environment == environment
    tainted = sa.select(events.c.partition_ref, events.c.data)
    tainted = tainted.where(own, events.c.kind == "partition-tainted")
    until: dict[PartitionRef, int] = {}
    for ref, data in connection.execute(tainted):
        build_id = data.get("build_id")
        if build_id in left:
            until[ref] = min(left[build_id], until.get(ref, left[build_id]))
    found: list[tuple[str, dict[str, Any]]] = []
    kinds = events.c.kind.in_(("partition-available", "partition-tainted"))
    for ref, change_id in until.items():
        query = sa.select(events).where(own, kinds, events.c.partition_ref == ref)
        told = connection.execute(query.order_by(events.c.idx)).all()
        then = [event for event in told if event.idx < change_id]
        if then and then[-1].kind != told[-1].kind:
            found.append((then[-1].kind, then[-1].data))
    return found


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
    """Return partitions; what a group was computed from was at first recorded of all alone."""

    def runs(told: Sequence[Sequence[str]]) -> Runs:
        return tuple((first, last) for first, last in told)

    filled = (
        Filled(runs(told), _versions(as_of), _versions(own[0]) if own else inputs)
        for told, as_of, *own in values["filled"]
    )
    return Partitions(tuple(filled), runs(values["built"]), values["base"])


def _snapshot(row: Row[Any]) -> Snapshot:
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


def _build(row: Row[Any]) -> Build:
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
        snapshot=_snapshot(row) if row.state == "succeeded" else None,
        digests=_parts(row.digests) if row.digests else None,
        reads=tuple(
            Read(source_id, definition, _parts(values))
            for source_id, definition, values in (row.digests or {}).get("reads", ())
        ),
        written=None if row.written_rows is None else Written(row.written_rows, row.written_bytes),
    )
