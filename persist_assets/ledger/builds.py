"""The transitions of builds: started, failed, interrupted, published, collected.

Changes that belong together happen in one transaction, which also appends an event for each of
them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError
from persist_assets.core.model.snapshots import Build, Cost, Effort, Holding, Snapshot
from persist_assets.ledger.collection import INTERRUPTED, forgotten, holdings, unreached
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.leases import require_leases
from persist_assets.ledger.log import Part, repeated
from persist_assets.ledger.manifests import move_entries, set_malloy
from persist_assets.ledger.partitions import tainted_refs
from persist_assets.ledger.processes import has_ended
from persist_assets.ledger.requests import succeed_request
from persist_assets.ledger.rows import (
    ENTRY,
    build_of,
    build_values,
    check_result_of,
    cost_of,
    event_data,
    published,
    refuse_collected,
    refuse_moved,
    snapshot_of,
    snapshot_values,
    update_each,
)
from persist_assets.ledger.tables import IS_UNDER_WAY, builds, manifest_entries
from persist_assets.ledger.taints import keep_taints, refuse_tainted
from persist_assets.ledger.wants import create_wants, give_up_wants, satisfy_wants

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection

    from persist_assets.core.model.checks import CheckResult
    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import BuildState
    from persist_assets.core.wants import Want
    from persist_assets.ledger.leases import Lease
    from persist_assets.ledger.taints import Kept


@dataclass(frozen=True, slots=True)
class Publication:
    """The result that a finished build publishes.

    Attributes
    ----------
    checks
        The results of its checks.
    leases
        The leases under which the snapshot was written.
    moves
        Whether the manifest entry moves; otherwise readers get the snapshot from another
        environment.
    refs
        The partitions that the publication makes available.
    kept_refs
        Partitions of the kept rows that it also makes available, unless they are tainted.
    kept_rows
        The rows of an earlier snapshot that the build keeps.
    used, environments
        The snapshots that it was computed from, and the environments in which they were read.
    taken
        The snapshot itself, if it comes from another environment.
    asset_key
        The asset that has the partitions.
    replaces
        The snapshots that the manifest entry may name now; None: any.
    """

    build: Build
    snapshot: Snapshot
    checks: Sequence[CheckResult]
    leases: Sequence[Lease] = ()
    moves: bool = True
    refs: Sequence[str] = ()
    kept_refs: Sequence[str] = ()
    kept_rows: Kept | None = None
    used: Collection[str] = ()
    environments: Collection[str] = ()
    taken: Collection[str] = ()
    asset_key: str = ""
    replaces: Collection[Snapshot | None] | None = None


class Builds(Part):
    """The transitions of builds, and queries of their results."""

    @repeated
    def record_started(
        self,
        build: Build,
        table: str,
        *,
        base: Snapshot | None = None,
        kept_rows: Kept | None = None,
        wants: Sequence[Want] = (),
        request_id: str | None = None,
    ) -> None:
        """Record that a build has started, and for which wants.

        Parameters
        ----------
        base
            The snapshot whose files the build's own snapshot may share.
        kept_rows
            The rows of an earlier snapshot that the build keeps.
        wants
            The build's own wants, which end with it.
        request_id
            The request that the build belongs to, if any.
        """
        parts = [*base.parts, base.build_uid] if base else None
        values = {**build_values(build), "table_name": table, "parts": parts}
        with self._write() as connection:
            connection.execute(builds.insert().values(**values))
            if kept_rows is not None:  # builds of the same run may read it before it is published
                keep_taints(connection, build.environment, build.build_uid, kept_rows)
            create_wants(self._events, connection, wants)
            cause = {"want_ids": [w.want_id for w in wants], "build_request_id": request_id}
            self._events.append(connection, "build-started", {**event_data(build), **cause})

    @repeated
    def record_failed(
        self,
        build: Build,
        error: str,
        *,
        request_id: str | None = None,
        checks: Sequence[CheckResult] = (),
    ) -> None:
        """Record that a build failed, unless it has ended. Readers see no change.

        Parameters
        ----------
        request_id
            The request that the build belongs to, if any.
        checks
            The results of its checks, as far as they were run.
        """
        values = {"checks": [asdict(c) for c in checks]} if checks else {}
        with self._write() as connection:
            self._fail(connection, build, error, values, build_request_id=request_id)

    @repeated
    def record_interrupted(self, table: str, *, alive: Sequence[str] = ()) -> list[str]:
        """Record the builds of a table that can never end as interrupted; return their uids.

        The caller holds the table's lease, so the processes of all unfinished builds are gone,
        except those of the builds in `alive`.
        """
        query = sa.select(builds).where(
            builds.c.table_name == table,
            builds.c.state == "started",
            builds.c.build_uid.not_in(alive),
        )
        with self._write() as connection:
            dead = [build_of(row) for row in connection.execute(query)]
            for build in dead:
                self._fail(connection, build, INTERRUPTED)
        return [build.build_uid for build in dead]

    @repeated
    def publish(
        self, publication: Publication, *, malloy: Mapping[BuildID, BuildID] | None = None
    ) -> None:
        """Publish a build to the readers of its environment.

        Parameters
        ----------
        malloy
            Malloy's BuildIDs in the environment from now on, each with ours; None: unchanged.

        Raises
        ------
        ConflictError
            A lease is lost, so another process may write the table; the build was recorded as
            interrupted; the snapshot was collected; an input was tainted; or a promotion or
            rollback changed the manifest entry. Nothing was published.
        """
        with self._write() as connection:
            refuse_moved(connection, [(publication.build, publication.replaces)])
            self._publish(connection, publication, malloy)

    @repeated
    def publish_together(
        self,
        publications: Sequence[Publication],
        *,
        request_id: str,
        malloy: Mapping[BuildID, BuildID] | None = None,
    ) -> None:
        """Publish everything that was built for a request, in one transaction.

        Raises
        ------
        ConflictError
            See `publish`. None of them was published.
        """
        with self._write() as connection:
            refuse_moved(connection, [(p.build, p.replaces) for p in publications])
            for publication in publications:
                self._publish(connection, publication, malloy, request_id=request_id)
            succeed_request(self._events, connection, request_id)

    def _publish(
        self,
        connection: Connection,
        publication: Publication,
        malloy: Mapping[BuildID, BuildID] | None,
        *,
        request_id: str | None = None,
    ) -> None:
        build, snapshot = publication.build, publication.snapshot
        require_leases(connection, publication.leases)
        read = {leaf.build_uid for leaf in snapshot.view.leaves} if snapshot.view else set()
        reused = {snapshot.build_uid} - {build.build_uid}
        refuse_collected(connection, {uid for uid in read | reused if uid})
        if publication.kept_rows is not None:  # includes what was tainted during the build
            keep_taints(connection, build.environment, build.build_uid, publication.kept_rows)
        name = build.source_id.partition("@")[0]
        refuse_tainted(connection, name, publication.used, publication.environments)
        refuse_tainted(connection, name, publication.taken)
        refs = _available(connection, publication, name)
        values = {
            "state": "succeeded",
            "action": build.action,
            "finished_at": self._clock(),
            "checks": [asdict(c) for c in publication.checks],
            "written_rows": build.written.rows if build.written else None,
            "written_bytes": build.written.bytes if build.written else None,
            "maintenance": build.maintenance,
            "computed_seconds": build.computed_s,
            "effort": asdict(build.effort) if build.effort else None,
            # It may have found that the rows are those of another environment's table.
            "table_name": snapshot.table,
            **snapshot_values(snapshot),
        }
        this = builds.c.build_uid == build.build_uid, builds.c.state != "failed"
        if not connection.execute(builds.update().where(*this).values(**values)).rowcount:
            message = f"the build of `{name}` was recorded as interrupted meanwhile"
            raise ConflictError(message, hint="build again")
        data = {**event_data(build), "build_request_id": request_id}
        result = {
            "action": build.action,
            "table": snapshot.table,
            "version": snapshot.version,
            "rows": snapshot.rows,
        }
        idx = self._events.append(connection, "build-succeeded", {**data, **result})
        available = [("partition-available", {**data, "partition_ref": r}) for r in refs]
        self._events.append_all(connection, available)
        satisfy_wants(self._events, connection, build.build_uid)
        if publication.moves:
            entries = {build.build_id: build.build_uid}
            change = {"kind": "build", "run_id": build.run_id}
            move_entries(self._events, connection, idx, build.environment, entries, change)
        if malloy is not None:
            set_malloy(connection, idx, build.environment, malloy)

    def _fail(
        self,
        connection: Connection,
        build: Build,
        error: str,
        columns: Mapping[str, Any] | None = None,
        **data: Any,
    ) -> None:
        """Record that a build failed, unless it has ended; `columns` are more of its row."""
        started = sa.and_(builds.c.build_uid == build.build_uid, builds.c.state == "started")
        # PostgreSQL's text type holds every character but NUL.
        values = {**(columns or {}), "error": error.replace("\0", "")}
        values |= {"state": "failed", "finished_at": self._clock()}
        if connection.execute(builds.update().where(started).values(**values)).rowcount:
            data = {**event_data(build), **data, "error": error}
            self._events.append(connection, "build-failed", data)
            give_up_wants(self._events, connection, build.build_uid, error)

    @repeated
    def fetch(
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
            Only builds with this uid, of this run, of this source or in this environment.
        succeeded_before
            Only builds that started before this instant and succeeded.
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
            return [build_of(row) for row in connection.execute(query)]

    @repeated
    def find(self, prefix: str) -> Build | None:
        """Return the latest build of the one BuildID that begins with `prefix`, or None.

        Raises
        ------
        ConflictError
            Several BuildIDs begin with it.
        """
        query = (
            sa.select(builds)
            .where(builds.c.build_id.startswith(prefix, autoescape=True))
            .order_by(builds.c.state != "succeeded", builds.c.started_at.desc())
        )
        with self._read() as connection:
            rows = connection.execute(query).all()
        if len({row.build_id for row in rows}) > 1:
            raise ConflictError(f"several BuildIDs start with {prefix}", hint="use a longer prefix")
        return build_of(rows[0]) if rows else None

    @repeated
    def fetch_last(
        self, environment: str, *, source_id: SourceID | None = None
    ) -> dict[SourceID, Build]:
        """Return the latest finished build of every source in an environment, or of one source."""
        ended = sa.and_(builds.c.environment == environment, builds.c.state != "started")
        if source_id is not None:
            ended = sa.and_(ended, builds.c.source_id == source_id)
        query = _latest(builds.c.started_at, ended).order_by(builds.c.build_uid.desc())
        with self._read() as connection:
            return {row.source_id: build_of(row) for row in connection.execute(query)}

    def fetch_current(
        self, *environments: str, source_id: SourceID | None = None
    ) -> dict[SourceID, Build]:
        """Return the latest build that readers of an environment got, by source.

        Parameters
        ----------
        environments
            The environment, and those that it falls back to, nearest first.
        source_id
            Only this source.
        """
        current: dict[SourceID, Build] = {}
        for environment in reversed(environments):
            current |= self._current(environment, source_id)
        return current

    @repeated
    def _current(self, environment: str, source_id: SourceID | None) -> dict[SourceID, Build]:
        entries = (
            sa.select(builds, manifest_entries.c.published_at.label("at"))
            .join(manifest_entries, ENTRY)
            .where(manifest_entries.c.environment == environment)
        )
        # Sources with one BuildID share an entry, which names the build of only one of them.
        present = sa.exists().where(
            manifest_entries.c.environment == builds.c.environment,
            manifest_entries.c.build_id == builds.c.build_id,
        )
        done = [builds.c.environment == environment, builds.c.state == "succeeded", present]
        if source_id is not None:
            entries = entries.where(builds.c.source_id == source_id)
            done.append(builds.c.source_id == source_id)
        at = builds.c.finished_at
        sharing = _latest(at, sa.and_(*done)).add_columns(at.label("at"))
        with self._read() as connection:
            rows = [*connection.execute(entries), *connection.execute(sharing)]
        rows.sort(key=lambda row: (row.at, row.build_uid))
        latest = {row.source_id: row for row in rows}
        return {source_id: build_of(row) for source_id, row in sorted(latest.items())}

    @repeated
    def fetch_published(self, *environments: str) -> dict[BuildID, Build]:
        """Return the builds that readers of an environment read: see `Manifests.fetch`."""
        with self._read() as connection:
            return {r.build_id: build_of(r) for r in connection.execute(published(*environments))}

    @repeated
    def fetch_succeeded(self, build_id: BuildID) -> list[Build]:
        """Return all builds of a BuildID that ever succeeded, the latest first."""
        query = (
            sa.select(builds)
            .where(builds.c.build_id == build_id, builds.c.state == "succeeded")
            .order_by(builds.c.started_at.desc(), builds.c.build_uid)
        )
        with self._read() as connection:
            return [build_of(row) for row in connection.execute(query)]

    @repeated
    def fetch_costs(
        self,
        *,
        source_id: SourceID | None = None,
        build_id: BuildID | None = None,
        limit: int = 20,
    ) -> list[Cost]:
        """Return the costs of builds that computed rows, the latest first, at most `limit`.

        Builds of all environments count, if they recorded their method.

        Parameters
        ----------
        source_id, build_id
            Only builds of this source, or with this meaning.
        """
        query = (
            sa.select(builds)
            .where(builds.c.state == "succeeded", builds.c.maintenance.is_not(None))
            .order_by(builds.c.started_at.desc(), builds.c.build_uid)
            .limit(limit)
        )
        if source_id is not None:
            query = query.where(builds.c.source_id == source_id)
        if build_id is not None:
            query = query.where(builds.c.build_id == build_id)
        with self._read() as connection:
            return [cost_of(row) for row in connection.execute(query)]

    def fetch_costs_of(self, build_ids: Collection[BuildID]) -> dict[BuildID, Sequence[Cost]]:
        """Return the latest two costs of each method by which tables were computed.

        The latest come first.
        """
        return self._fetch_latest_costs(builds.c.build_id, build_ids)

    def fetch_costs_of_sources(
        self, source_ids: Collection[SourceID]
    ) -> dict[SourceID, Sequence[Cost]]:
        """Return the same by source, whatever the sources meant then."""
        return self._fetch_latest_costs(builds.c.source_id, source_ids)

    @repeated
    def _fetch_latest_costs(
        self, owner: sa.Column[Any], values: Collection[str]
    ) -> dict[str, Sequence[Cost]]:
        costs: dict[str, list[Cost]] = {}
        with self._read() as connection:
            for part in in_parts([*values]):
                recency = sa.func.row_number().over(
                    partition_by=(owner, builds.c.maintenance),
                    order_by=(builds.c.started_at.desc(), builds.c.build_uid),
                )
                numbered = (
                    sa.select(builds, owner.label("owner"), recency.label("recency"))
                    .where(
                        owner.in_(part),
                        builds.c.state == "succeeded",
                        builds.c.maintenance.is_not(None),
                    )
                    .subquery()
                )
                query = (
                    sa.select(numbered)
                    .where(numbered.c.recency <= 2)
                    .order_by(numbered.c.started_at.desc(), numbered.c.build_uid)
                )
                for row in connection.execute(query):
                    costs.setdefault(row.owner, []).append(cost_of(row))
        return {**costs}

    @repeated
    def fetch_methods(self, build_uids: Collection[str]) -> dict[str, tuple[str, Effort | None]]:
        """Return by which methods builds computed rows, and what they did, if they recorded it."""
        methods: dict[str, tuple[str, Effort | None]] = {}
        with self._read() as connection:
            for part in in_parts([*build_uids]):
                columns = builds.c.build_uid, builds.c.maintenance, builds.c.effort
                query = sa.select(*columns).where(
                    builds.c.build_uid.in_(part), builds.c.maintenance.is_not(None)
                )
                methods |= {
                    uid: (method, Effort(**effort) if effort else None)
                    for uid, method, effort in connection.execute(query)
                }
        return methods

    @repeated
    def fetch_under_way(self) -> list[tuple[Build, str, bool]]:
        """Return the builds that have not ended, each with its process and whether that is gone.

        Processes of other machines count as alive.
        """
        query = sa.select(builds).where(IS_UNDER_WAY).order_by(builds.c.started_at)
        with self._read() as connection:
            rows = connection.execute(query).all()
        return [(build_of(r), r.process or "unknown", has_ended(r.process)) for r in rows]

    @repeated
    def is_under_way(self, build: Build) -> bool:
        """Whether a build has started and not ended."""
        query = sa.select(builds.c.state).where(builds.c.build_uid == build.build_uid)
        with self._read() as connection:
            return connection.scalar(query) == "started"

    @repeated
    def fetch_known(self, build_uids: Collection[str]) -> set[str]:
        """Return the builds of `build_uids` that this ledger knows, or whose snapshots it knows."""
        uids: set[str] = set()
        with self._read() as connection:
            for column in (builds.c.build_uid, builds.c.snapshot_uid):
                for part in in_parts([*build_uids]):
                    uids.update(connection.scalars(sa.select(column).where(column.in_(part))))
        return uids

    @repeated
    def fetch_attempts(
        self, environment: str
    ) -> dict[SourceID, dict[BuildState, tuple[int, datetime]]]:
        """Return the number of ended builds and the end of the last one, by source and state."""
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
        attempts: dict[SourceID, dict[BuildState, tuple[int, datetime]]] = {}
        with self._read() as connection:
            for source_id, state, n, last in connection.execute(query):
                attempts.setdefault(source_id, {})[state] = (n, last)
        return attempts

    @repeated
    def fetch_checks(self, build_uid: str) -> list[CheckResult]:
        """Return the latest result of each check of a build's rows.

        Builds that reuse the rows may have added new checks.
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
        results = (check_result_of(values) for row in rows for values in row or ())
        return [*{r.name: r for r in results}.values()]

    @repeated
    def fetch_last_checks(self, *environments: str) -> dict[SourceID, list[CheckResult]]:
        """Return the results of the checks of each source's last successful build."""
        is_done = sa.and_(builds.c.environment.in_(environments), builds.c.state == "succeeded")
        latest = (
            sa.select(builds.c.source_id, sa.func.max(builds.c.started_at).label("at"))
            .where(is_done)
            .group_by(builds.c.source_id)
            .subquery()
        )
        is_latest = sa.and_(
            builds.c.source_id == latest.c.source_id, builds.c.started_at == latest.c.at
        )
        query = sa.select(builds.c.source_id, builds.c.checks).join(latest, is_latest)
        with self._read() as connection:
            rows = connection.execute(query.where(is_done)).all()
        return {source_id: [check_result_of(v) for v in values or ()] for source_id, values in rows}

    @repeated
    def fetch_table_names(self) -> list[str]:
        """Return the names of all tables that a build ever started to write, sorted."""
        with self._read() as connection:
            return sorted(connection.scalars(sa.select(builds.c.table_name).distinct()))

    @repeated
    def find_pinned_version(self, table: str) -> int | None:
        """Return the latest published version of a table that was not collected, or None."""
        query = sa.select(sa.func.max(builds.c.version)).where(
            builds.c.table_name == table,
            builds.c.view.is_(None),
            builds.c.collected_at.is_(None),
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def find_written(self, build_uid: str) -> Snapshot | None:
        """Return the snapshot that a build wrote; None if there is none, or if it was collected."""
        query = sa.select(builds).where(
            builds.c.snapshot_uid == build_uid,
            builds.c.state == "succeeded",
            builds.c.collected_at.is_(None),
        )
        with self._read() as connection:
            row = connection.execute(query.order_by(builds.c.started_at)).first()
        return snapshot_of(row) if row else None

    @repeated
    def fetch_versions(self) -> set[str]:
        """Return the raw versions that uncollected snapshots were built from."""
        query = sa.select(builds.c.as_of).where(
            builds.c.state == "succeeded", builds.c.collected_at.is_(None)
        )
        with self._read() as connection:
            return {version for as_of in connection.scalars(query) for _, version in as_of}

    @repeated
    def fetch_current_versions(self) -> set[str]:
        """Return the raw versions that published snapshots were built from, in all environments."""
        query = sa.select(builds.c.as_of).join(manifest_entries, ENTRY)
        with self._read() as connection:
            return {version for as_of in connection.scalars(query) for _, version in as_of or ()}

    @repeated
    def fetch_holding(self, table: str) -> Holding:
        """Return which files of one table may be deleted, and which may not; see `Holding`."""
        with self._read() as connection:
            tables = holdings(connection, table)
        return tables[0] if tables else Holding(table, (), {}, {}, ())

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
        """Mark every snapshot as collected that no reader could have reached since an instant.

        A reader reaches the snapshots that a manifest names, or has named since the instant, and
        those that stored queries among them read. A manifest forgets an entry once every source of
        its BuildID has had another BuildID there since before the instant.

        Parameters
        ----------
        environment, defined
            An environment, and the BuildIDs defined in it: no manifest forgets these.
        removed
            Also forget entries of this environment whose sources are no longer defined in it, if
            they were published before the instant.
        dry_run
            Change nothing, and return the outcome.

        Returns
        -------
        list[Holding]
            The holding of every table afterwards.
        """
        with self._write() as connection, connection.begin_nested() as trial:
            sources = {s for ids in defined.values() for s in ids} if removed else None
            unneeded = forgotten(connection, before, environment, {*defined}, sources)
            for name, build_ids in unneeded.items():
                data = {"environment": name, "entries": len(build_ids)}
                idx = self._events.append(connection, "entries-collected", data)
                change = {"kind": "collect", "why": f"not meant since {before.isoformat()}"}
                entries = dict.fromkeys(build_ids)
                move_entries(self._events, connection, idx, name, entries, change)
            uids = unreached(connection, before)
            if uids:
                self._events.append(connection, "snapshots-collected", {"build_uids": sorted(uids)})
                update_each(connection, uids, {"collected_at": self._clock()})
            tables = holdings(connection)
            if dry_run:
                trial.rollback()
        return tables


def _latest(instant: sa.Column[Any], test: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Return the query for each source's builds with the latest instant of those that pass."""
    last = sa.select(builds.c.source_id, sa.func.max(instant).label("last")).where(test)
    last = last.group_by(builds.c.source_id).subquery()
    is_last = sa.and_(builds.c.source_id == last.c.source_id, instant == last.c.last)
    return sa.select(builds).join(last, is_last).where(test)


def _available(connection: Connection, publication: Publication, name: str) -> list[str]:
    """Return the partitions that a publication makes available: those that are not tainted.

    Raises
    ------
    ConflictError
        Rows that the build keeps are tainted by now.
    """
    build, snapshot = publication.build, publication.snapshot
    all_refs = (*publication.refs, *publication.kept_refs)
    uids = dict.fromkeys(all_refs, snapshot.build_uid)
    assets = [publication.asset_key] if publication.asset_key else ()
    tainted = tainted_refs(connection, publication.environments, uids, assets)
    reuses_partitions = snapshot.build_uid != build.build_uid and snapshot.partitions is not None
    if not tainted.isdisjoint(publication.refs) and not reuses_partitions:
        message = f"rows that `{name}` keeps were tainted meanwhile"
        raise ConflictError(message, hint="build again")
    return [ref for ref in all_refs if ref not in tainted]
