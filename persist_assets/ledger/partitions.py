"""The states of partitions (available, failed or tainted), in this graph and in others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from persist_assets.core.wants import UNDER_WAY, Availability, matcher
from persist_assets.ledger.connection import in_parts
from persist_assets.ledger.log import Part, begins, like, repeated
from persist_assets.ledger.rows import event_data
from persist_assets.ledger.tables import availability, builds, events, manifest_entries, wants
from persist_assets.ledger.taints import marked, marked_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy.engine import Connection

    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import Build
    from persist_assets.core.wants import PartitionRef


class Partitions(Part):
    """The states of partitions, as the events define them."""

    @repeated
    def fetch(
        self,
        environment: str,
        graph: str = "",
        *,
        after: PartitionRef = "",
        pattern: str | None = None,
        limit: int = 1000,
    ) -> list[Availability]:
        """Return the states of partitions, in the order of their references.

        Parameters
        ----------
        graph
            Empty: the graph of this ledger.
        after
            Only partitions whose references come after this one.
        pattern
            Only partitions that match; see `matcher`.
        """
        ref = availability.c.partition_ref
        query = sa.select(
            ref,
            availability.c.graph,
            availability.c.state,
            availability.c.at,
            availability.c.idx,
            availability.c.build_uid,
        ).where(availability.c.environment == environment, availability.c.graph == graph)
        if pattern is not None:
            query = query.where(ref.like(like(pattern), escape="\\"))
            query = query.where(begins(ref, pattern, is_postgres=self.database.is_postgres))
        fits = matcher(pattern or "**")
        states: list[Availability] = []
        with self._read() as connection:
            while len(states) < limit:
                later = query.where(ref > after) if after else query
                rows = connection.execute(later.order_by(ref).limit(limit)).all()
                states += [Availability(*row) for row in rows if fits(row.partition_ref)]
                if len(rows) < limit:
                    break
                after = rows[-1].partition_ref
        return states[:limit]

    @repeated
    def fetch_available(
        self, environment: str, graph: str = "", *, refs: Collection[PartitionRef] | None = None
    ) -> dict[PartitionRef, datetime]:
        """Return the available partitions of a graph, or those of `refs`, and since when."""
        query = sa.select(availability.c.partition_ref, availability.c.at).where(
            availability.c.graph == graph,
            availability.c.environment == environment,
            availability.c.state == "available",
        )
        with self._read() as connection:
            if refs is None:
                return {ref: at for ref, at in connection.execute(query)}
            available: dict[PartitionRef, datetime] = {}
            for part in in_parts([*refs]):
                these = query.where(availability.c.partition_ref.in_(part))
                available |= {ref: at for ref, at in connection.execute(these)}
            return available

    @repeated
    def fetch_states(
        self, environment: str, refs: Collection[PartitionRef]
    ) -> tuple[dict[PartitionRef, str], dict[PartitionRef, str]]:
        """Return the states of partitions of this graph, and the states of their active wants.

        If a partition has several wants, the one that is built, or will be built first, counts.
        """
        states: dict[PartitionRef, str] = {}
        want_states: dict[PartitionRef, str] = {}
        with self._read() as connection:
            for part in in_parts([*refs]):
                query = sa.select(availability.c.partition_ref, availability.c.state).where(
                    availability.c.graph == "",
                    availability.c.environment == environment,
                    availability.c.partition_ref.in_(part),
                )
                states |= {ref: state for ref, state in connection.execute(query)}
                query = sa.select(wants.c.partition_ref, wants.c.state, wants.c.environment)
                pairs = {
                    (row.partition_ref, row.state)
                    for row in connection.execute(
                        query.distinct().where(wants.c.partition_ref.in_(part))
                    )
                    if row.environment == environment
                }
                for state in ("waiting", "failing", *UNDER_WAY):
                    want_states |= {ref: s for ref, s in pairs if s == state}
        return states, want_states

    @repeated
    def find_build(self, environment: str, ref: PartitionRef) -> str | None:
        """Return the build of an available partition of this graph, or None."""
        query = sa.select(availability.c.build_uid).where(
            availability.c.graph == "",
            availability.c.environment == environment,
            availability.c.partition_ref == ref,
            availability.c.state == "available",
        )
        with self._read() as connection:
            return connection.scalar(query)

    @repeated
    def confirm(
        self,
        environments: Sequence[str],
        times: Mapping[str, datetime],
        available: Mapping[PartitionRef, Build],
    ) -> None:
        """Record that tables are up to date without a build, unless they are tainted by now.

        Parameters
        ----------
        environments
            The environment, and those that it reads: their taints count.
        times
            Until when the data below published snapshots is known to be current, by the builds that
            wrote them. Snapshots that the environment no longer publishes stay as they are.
        available
            The partitions, each with the last build of its source.
        """
        entries = sa.select(manifest_entries.c.build_uid).where(
            manifest_entries.c.environment == environments[0]
        )
        is_entry = builds.c.build_uid.in_(entries)
        known_at = sa.func.coalesce(builds.c.current_at, builds.c.built_at)
        uid_of = {ref: b.snapshot.build_uid if b.snapshot else "" for ref, b in available.items()}
        with self._write() as connection:
            tainted = marked(connection, {*times, *uid_of.values()}, environments)
            by_time: dict[datetime, list[str]] = {}
            for uid, at in times.items():
                if uid not in tainted:
                    by_time.setdefault(at, []).append(uid)
            for at, uids in by_time.items():
                for part in in_parts(uids):
                    # A later time than now is from a process whose clock was wrong.
                    is_older = sa.or_(known_at < at, known_at > self._now(connection))
                    these = is_entry, builds.c.snapshot_uid.in_(part), is_older
                    connection.execute(builds.update().where(*these).values(current_at=at))
            usable = {ref: b for ref, b in available.items() if uid_of[ref] not in tainted}
            self._events.append_all(connection, announcements(usable))


def announcements(available: Mapping[PartitionRef, Build]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of partitions that become available, each with the build of its rows."""
    return [
        ("partition-available", {**event_data(build), "partition_ref": ref})
        for ref, build in available.items()
    ]


def changed_partitions(
    connection: Connection,
    environment: str,
    refs: Mapping[PartitionRef, BuildID | None],
    shown: Mapping[BuildID, Build],
    assets: Collection[str],
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of partitions after tables of other environments were published.

    Parameters
    ----------
    refs
        The partitions that become available, each with the BuildID of its table, and those that
        readers lose, with None.
    shown
        The builds that readers get.
    assets
        See `tainted_refs`.
    """
    here = {b: replace(build, environment=environment) for b, build in shown.items()}
    lost = {ref for ref, build_id in refs.items() if build_id is None}
    available = {ref: here[build_id] for ref, build_id in refs.items() if build_id is not None}
    uids = {ref: b.snapshot.build_uid for ref, b in available.items() if b.snapshot}
    lost |= tainted_refs(connection, [environment], uids, assets)
    usable = {ref: build for ref, build in available.items() if ref not in lost}
    return [*retractions(connection, environment, refs=lost), *announcements(usable)]


def tainted_refs(
    connection: Connection,
    environments: Collection[str],
    uids: Mapping[PartitionRef, str],
    assets: Collection[str] = (),
) -> set[PartitionRef]:
    """Return the partitions that readers must not use.

    Parameters
    ----------
    environments
        The environments whose taints count.
    uids
        The partitions, each with the snapshot that has its rows.
    assets
        The keys of the assets that have them; empty: any.
    """
    keys = marked_keys(connection, {*uids.values()}, environments)
    return {ref for ref, uid in uids.items() if _is_tainted(ref, keys.get(uid, ()), assets)}


def _is_tainted(ref: PartitionRef, keys: Collection[str], assets: Collection[str] = ()) -> bool:
    """Whether a partition is among tainted keys; keys and assets may contain slashes."""
    if "" in keys:
        return True
    asset, slash, key = ref.partition("/")
    while slash:
        if key in keys and (not assets or asset in assets):
            return True
        part, slash, key = key.partition("/")
        asset += f"/{part}"
    return False


def retractions(
    connection: Connection,
    environment: str,
    build_ids: Collection[BuildID] = (),
    refs: Collection[PartitionRef] = (),
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of available partitions that an environment no longer has.

    Readers must not use them until they are built again.

    Parameters
    ----------
    build_ids
        The BuildIDs whose tables it no longer has.
    refs
        Partitions that its tables lack.
    """
    query = (
        sa.select(availability.c.partition_ref, builds.c.build_id)
        .join(builds, builds.c.build_uid == availability.c.build_uid)
        .where(
            availability.c.graph == "",
            availability.c.environment == environment,
            availability.c.state == "available",
        )
    )
    lost: list[tuple[str, dict[str, Any]]] = []
    tests = [builds.c.build_id.in_(part) for part in in_parts([*build_ids])]
    tests += (availability.c.partition_ref.in_(part) for part in in_parts([*refs]))
    for test in tests:
        for ref, build_id in connection.execute(query.where(test)):
            data = {"environment": environment, "partition_ref": ref, "build_id": build_id}
            lost.append(("partition-tainted", data))
    return lost


def restored_states(
    connection: Connection,
    environment: str,
    changed: Mapping[BuildID, int],
    entries: Mapping[BuildID, str | None],
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of partitions whose state a rollback changes.

    Parameters
    ----------
    changed
        The BuildIDs, each with the change that replaced its restored entry.
    entries
        The restored build of each BuildID, if any: the tainted rows of its snapshot stay tainted.
    """
    here = events.c.environment == environment
    tainted = sa.select(events.c.partition_ref, events.c.data)
    # The kind stands in the text of the query, as it does in that of the index `ix_events_tainted`.
    tainted = tainted.where(here, events.c.kind == sa.literal_column("'partition-tainted'"))
    until: dict[PartitionRef, int] = {}
    build_ids: dict[PartitionRef, BuildID] = {}
    for ref, data in connection.execute(tainted):
        build_id = data.get("build_id")
        if build_id in changed:
            until[ref] = min(changed[build_id], until.get(ref, changed[build_id]))
            build_ids[ref] = build_id
    uids = _snapshot_uids(connection, entries)
    keys = marked_keys(connection, {*uids.values()}, [environment])
    states: list[tuple[str, dict[str, Any]]] = []
    kinds = events.c.kind.in_(("partition-available", "partition-tainted"))
    for ref, change_id in until.items():
        query = sa.select(events).where(here, kinds, events.c.partition_ref == ref)
        history = connection.execute(query.order_by(events.c.idx)).all()
        earlier = [event for event in history if event.idx < change_id]
        build_id = build_ids[ref]
        if _is_tainted(ref, keys.get(uids.get(build_id, ""), ())):
            if history[-1].kind == "partition-available":
                data = {"environment": environment, "partition_ref": ref, "build_id": build_id}
                states.append(("partition-tainted", data))
        elif earlier and earlier[-1].kind != history[-1].kind:
            states.append((earlier[-1].kind, earlier[-1].data))
    return states


def _snapshot_uids(
    connection: Connection, entries: Mapping[BuildID, str | None]
) -> dict[BuildID, str]:
    """Return the snapshots that readers get from entries that name builds."""
    of: dict[str, BuildID] = {uid: build_id for build_id, uid in entries.items() if uid}
    query = sa.select(builds.c.build_uid, builds.c.snapshot_uid)
    uids: dict[BuildID, str] = {}
    for part in in_parts([*of]):
        for row in connection.execute(query.where(builds.c.build_uid.in_(part))):
            uids[of[row.build_uid]] = row.snapshot_uid
    return uids
