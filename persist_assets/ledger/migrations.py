"""Numbered migrations of the ledger, each in one transaction with the row that records it.

`tables.py` creates new ledgers at the current version. An existing ledger is upgraded by the
migrations that it lacks, one after another. A migration turns the tables of one version into those
of the next, and is never changed afterwards.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from persist_assets.core.errors import ConflictError, LedgerTooNewError
from persist_assets.core.wants import ACTIVE
from persist_assets.ledger.tables import counters, ledger_version, metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Connection


def _record_parts(connection: Connection) -> None:
    """Add the digests of a build's source, in parts, and the inputs of its rows.

    Both are unknown for existing builds.
    """
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN digests JSON")
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN inputs JSON")


def _record_changes(connection: Connection) -> None:
    """Add the history of changes of manifests, from now on."""
    connection.exec_driver_sql(
        "CREATE TABLE manifest_changes (change_id BIGINT NOT NULL PRIMARY KEY,"
        f" environment VARCHAR(64) NOT NULL, at {_instant(connection)} NOT NULL,"
        " kind VARCHAR(16) NOT NULL"
        " CONSTRAINT ck_manifest_changes_kind CHECK (kind IN ('build', 'promote', 'rollback')),"
        ' "by" TEXT NOT NULL, why TEXT, run_id VARCHAR(64))'
    )
    connection.exec_driver_sql(
        "CREATE INDEX ix_manifest_changes_environment ON manifest_changes (environment, change_id)"
    )
    connection.exec_driver_sql(
        "CREATE TABLE manifest_moves (change_id BIGINT NOT NULL"
        " REFERENCES manifest_changes (change_id), build_id VARCHAR(64) NOT NULL,"
        ' "before" VARCHAR(64), "after" VARCHAR(64),'
        " CONSTRAINT pk_manifest_moves PRIMARY KEY (change_id, build_id))"
    )


def _instant(connection: Connection) -> str:
    """Return the type of a column of instants."""
    return "TIMESTAMP WITH TIME ZONE" if connection.dialect.name == "postgresql" else "TIMESTAMP"


def _collect(connection: Connection) -> None:
    """Add builds' processes, what they keep and until when, and let manifests forget entries."""
    instant = _instant(connection)
    for column in ("process TEXT", f"current_at {instant}", "view JSON", f"collected_at {instant}"):
        connection.exec_driver_sql(f"ALTER TABLE builds ADD COLUMN {column}")
    connection.exec_driver_sql(
        "CREATE TABLE writers (writer VARCHAR(64) NOT NULL PRIMARY KEY,"
        f" token VARCHAR(64) NOT NULL, at {instant} NOT NULL)"
    )
    kinds = "CHECK (kind IN ('build', 'promote', 'rollback', 'collect'))"
    if connection.dialect.name != "sqlite":
        name = "ck_manifest_changes_kind"
        connection.exec_driver_sql(
            f"ALTER TABLE manifest_changes DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {kinds}"
        )
        return
    # SQLite cannot change a constraint: recreate its table, and the table that refers to it.
    for statement in (
        "CREATE TABLE new_changes (change_id BIGINT NOT NULL PRIMARY KEY,"
        " environment VARCHAR(64) NOT NULL, at TIMESTAMP NOT NULL,"
        f" kind VARCHAR(16) NOT NULL CONSTRAINT ck_manifest_changes_kind {kinds},"
        ' "by" TEXT NOT NULL, why TEXT, run_id VARCHAR(64))',
        "INSERT INTO new_changes SELECT * FROM manifest_changes",
        "CREATE TABLE new_moves (change_id BIGINT NOT NULL REFERENCES new_changes (change_id),"
        ' build_id VARCHAR(64) NOT NULL, "before" VARCHAR(64), "after" VARCHAR(64),'
        " CONSTRAINT pk_manifest_moves PRIMARY KEY (change_id, build_id))",
        "INSERT INTO new_moves SELECT * FROM manifest_moves",
        "DROP TABLE manifest_moves",
        "DROP TABLE manifest_changes",
        "ALTER TABLE new_changes RENAME TO manifest_changes",
        "ALTER TABLE new_moves RENAME TO manifest_moves",
        "CREATE INDEX ix_manifest_changes_environment ON manifest_changes (environment, change_id)",
    ):
        connection.exec_driver_sql(statement)


def _name_for_malloy(connection: Connection) -> None:
    """Add Malloy's BuildIDs of environments, from their next builds on."""
    connection.exec_driver_sql(
        "CREATE TABLE malloy_entries (environment VARCHAR(64) NOT NULL,"
        " malloy_id VARCHAR(64) NOT NULL, build_id VARCHAR(64) NOT NULL,"
        " since BIGINT NOT NULL, until BIGINT,"
        " CONSTRAINT pk_malloy_entries PRIMARY KEY (environment, malloy_id, since))"
    )
    connection.exec_driver_sql(
        "CREATE UNIQUE INDEX ix_malloy_entries_present"
        " ON malloy_entries (environment, malloy_id) WHERE until IS NULL"
    )


def _continue_tables(connection: Connection) -> None:
    """Let snapshots share files of other builds; existing snapshots share none."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN parts JSON")
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN time_column TEXT")


def _record_partitions(connection: Connection) -> None:
    """Add the partitions of snapshots; existing snapshots have none."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN partitions JSON")


def _count_written(connection: Connection) -> None:
    """Add how much builds wrote, which is unknown for existing builds."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN written_rows BIGINT")
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN written_bytes BIGINT")


def _record_wants(connection: Connection) -> None:
    """Add wants and their outcomes, and the columns by which events are filtered."""
    instant = _instant(connection)
    for column in (
        "environment VARCHAR(64)",
        "partition_ref TEXT",
        "build_request_id VARCHAR(64)",
        "task_id VARCHAR(64)",
        "job_label TEXT",
    ):
        connection.exec_driver_sql(f"ALTER TABLE events ADD COLUMN {column}")
    states = "'waiting', 'building', 'failing', 'satisfied', 'expired', 'cancelled'"
    for statement in (
        "CREATE INDEX ix_events_partition_ref ON events (partition_ref, idx)",
        "CREATE TABLE wants (want_id VARCHAR(255) NOT NULL,"
        " partition_ref TEXT NOT NULL, environment VARCHAR(64) NOT NULL,"
        f" created_at {instant} NOT NULL, data_timestamp {instant}, ttl_seconds BIGINT,"
        f" sla_seconds BIGINT, deadline {instant}, expires_at {instant},"
        " external_dependencies JSON, source JSON NOT NULL, comment TEXT, parent VARCHAR(255),"
        " state VARCHAR(16) NOT NULL, failures INTEGER NOT NULL, batch INTEGER,"
        f" retry_at {instant}, error TEXT, request_id VARCHAR(64), ended_at {instant},"
        " CONSTRAINT pk_wants PRIMARY KEY (want_id),"
        f" CONSTRAINT ck_wants_state CHECK (state IN ({states})))",
        "CREATE INDEX ix_wants_state ON wants (environment, state)",
        "CREATE INDEX ix_wants_partition_ref ON wants (partition_ref)",
        "CREATE INDEX ix_wants_request_id ON wants (request_id)",
        "CREATE TABLE build_requests (request_id VARCHAR(64) NOT NULL,"
        " environment VARCHAR(64) NOT NULL, partitions JSON NOT NULL, want_ids JSON NOT NULL,"
        ' reason VARCHAR(64) NOT NULL, "trigger" VARCHAR(64) NOT NULL,'
        f" state VARCHAR(16) NOT NULL, requested_at {instant} NOT NULL, started_at {instant},"
        f" ended_at {instant}, run_id VARCHAR(64), error TEXT, culprits JSON,"
        " CONSTRAINT pk_build_requests PRIMARY KEY (request_id),"
        " CONSTRAINT ck_build_requests_state"
        " CHECK (state IN ('requested', 'started', 'succeeded', 'failed')))",
        "CREATE INDEX ix_build_requests_state ON build_requests (environment, state)",
        "CREATE TABLE availability (graph VARCHAR(64) NOT NULL, environment VARCHAR(64) NOT NULL,"
        f" partition_ref TEXT NOT NULL, state VARCHAR(16) NOT NULL, at {instant} NOT NULL,"
        " idx BIGINT NOT NULL, build_uid VARCHAR(64),"
        " CONSTRAINT pk_availability PRIMARY KEY (graph, environment, partition_ref),"
        " CONSTRAINT ck_availability_state CHECK (state IN ('available', 'failed', 'tainted')))",
        "CREATE TABLE sla_misses (want_id VARCHAR(255) NOT NULL, partition_ref TEXT NOT NULL,"
        f" environment VARCHAR(64) NOT NULL, deadline {instant} NOT NULL,"
        f" missed_at {instant} NOT NULL, delivered_at {instant}, blame JSON NOT NULL,"
        " CONSTRAINT pk_sla_misses PRIMARY KEY (want_id))",
        "CREATE TABLE upstreams (graph VARCHAR(64) NOT NULL, environment VARCHAR(64) NOT NULL,"
        f' "cursor" TEXT NOT NULL, at {instant} NOT NULL, problem TEXT,'
        " CONSTRAINT pk_upstreams PRIMARY KEY (graph, environment))",
    ):
        connection.exec_driver_sql(statement)


def _make_views(connection: Connection) -> None:
    """Add views of active and of late wants, for monitors that know only SQL."""
    _create_views(connection, ("waiting", "building", "failing"))


def _create_views(connection: Connection, active: Sequence[str]) -> None:
    """Create the views; `active` are the states of wants that may still be satisfied."""
    states = ", ".join(f"'{state}'" for state in active)
    now = "now()"
    if connection.dialect.name == "sqlite":  # which stores instants as texts in UTC
        now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    connection.exec_driver_sql(
        "CREATE VIEW active_wants AS SELECT * FROM wants"
        f" WHERE state IN ({states})"
        f" AND (expires_at IS NULL OR expires_at > {now})"
    )
    connection.exec_driver_sql(
        "CREATE VIEW sla_violations AS"
        " SELECT want_id, partition_ref, environment, deadline, missed_at, delivered_at, blame"
        " FROM sla_misses UNION ALL"
        " SELECT want_id, partition_ref, environment, deadline, NULL, NULL, NULL FROM wants"
        f" WHERE state IN ({states}) AND deadline < {now}"
        " AND want_id NOT IN (SELECT want_id FROM sla_misses)"
    )


def _cover(connection: Connection) -> None:
    """Add the contents of copies of external tables, and what is needed of them."""
    instant = _instant(connection)
    connection.exec_driver_sql(
        "CREATE TABLE copy_needs (copy_id VARCHAR(64) NOT NULL, environment VARCHAR(64) NOT NULL,"
        f" needs JSON NOT NULL, at {instant} NOT NULL,"
        " CONSTRAINT pk_copy_needs PRIMARY KEY (copy_id, environment))"
    )
    connection.exec_driver_sql(
        "CREATE TABLE copies (copy_id VARCHAR(64) NOT NULL, version TEXT NOT NULL,"
        " table_id VARCHAR(64) NOT NULL, committed BIGINT NOT NULL, predicate TEXT NOT NULL,"
        " format INTEGER NOT NULL, columns JSON NOT NULL,"
        f" as_of {instant} NOT NULL, row_count BIGINT NOT NULL,"
        f" byte_count BIGINT NOT NULL, seen JSON NOT NULL, retired_at {instant},"
        " CONSTRAINT pk_copies PRIMARY KEY (copy_id))"
    )


def _mark(connection: Connection) -> None:
    """Add taints of rows; rows whose partition is tainted by name become tainted.

    So far a name was tainted until its partition was built again; which rows were meant is unknown.
    """
    connection.exec_driver_sql(
        "CREATE TABLE taints (environment VARCHAR(64) NOT NULL, snapshot_uid VARCHAR(64) NOT NULL,"
        " partition_key TEXT NOT NULL,"
        " CONSTRAINT pk_taints PRIMARY KEY (environment, snapshot_uid, partition_key))"
    )
    connection.exec_driver_sql(
        "ALTER TABLE copy_needs ADD COLUMN format INTEGER DEFAULT 1 NOT NULL"
    )
    # All snapshots of that time, with any BuildID that the partition ever had, in any environment.
    connection.exec_driver_sql(
        "INSERT INTO taints SELECT DISTINCT said.environment, made.snapshot_uid, ''"
        " FROM events said JOIN events known ON known.partition_ref = said.partition_ref"
        " JOIN builds one ON one.build_uid = known.task_id"
        " JOIN builds made ON made.build_id = one.build_id AND made.built_at <= said.at"
        " WHERE said.kind = 'partition-tainted' AND known.kind = 'partition-available'"
        " AND made.state = 'succeeded' AND made.snapshot_uid IS NOT NULL"
    )
    # Also the snapshots that keep some of their partitions.
    rows = connection.exec_driver_sql(
        "SELECT snapshot_uid, CAST(partitions AS TEXT) FROM builds"
        " WHERE partitions IS NOT NULL AND snapshot_uid IS NOT NULL"
    )
    bases = {uid: json.loads(text)["base"] for uid, text in rows}
    marks = {(e, u) for e, u, _ in connection.exec_driver_sql("SELECT * FROM taints")}
    new = marks
    while new:
        new = {(e, uid) for uid, base in bases.items() for e, u in new if u == base} - marks
        marks |= new
        for environment, uid in sorted(new):
            mark = {"environment": environment, "uid": uid}
            connection.execute(sa.text("INSERT INTO taints VALUES (:environment, :uid, '')"), mark)


def _tell_requested(connection: Connection) -> None:
    """Distinguish wants whose request was not started yet from wants that are being built."""
    for view in ("active_wants", "sla_violations"):
        connection.exec_driver_sql(f"DROP VIEW {view}")
    states = "'waiting', 'requested', 'building', 'failing', 'satisfied', 'expired', 'cancelled'"
    check = f"CONSTRAINT ck_wants_state CHECK (state IN ({states}))"
    if connection.dialect.name == "sqlite":  # which cannot change a constraint
        for statement in (
            "CREATE TABLE new_wants (want_id VARCHAR(255) NOT NULL,"
            " partition_ref TEXT NOT NULL, environment VARCHAR(64) NOT NULL,"
            " created_at TIMESTAMP NOT NULL, data_timestamp TIMESTAMP, ttl_seconds BIGINT,"
            " sla_seconds BIGINT, deadline TIMESTAMP, expires_at TIMESTAMP,"
            " external_dependencies JSON, source JSON NOT NULL, comment TEXT,"
            " parent VARCHAR(255), state VARCHAR(16) NOT NULL, failures INTEGER NOT NULL,"
            " batch INTEGER, retry_at TIMESTAMP, error TEXT, request_id VARCHAR(64),"
            f" ended_at TIMESTAMP, CONSTRAINT pk_wants PRIMARY KEY (want_id), {check})",
            "INSERT INTO new_wants SELECT * FROM wants",
            "DROP TABLE wants",
            "ALTER TABLE new_wants RENAME TO wants",
            "CREATE INDEX ix_wants_partition_ref ON wants (partition_ref)",
            "CREATE INDEX ix_wants_request_id ON wants (request_id)",
        ):
            connection.exec_driver_sql(statement)
    else:
        connection.exec_driver_sql(f"ALTER TABLE wants DROP CONSTRAINT ck_wants_state, ADD {check}")
        connection.exec_driver_sql("DROP INDEX ix_wants_state")
    connection.exec_driver_sql(
        "CREATE INDEX ix_wants_state ON wants (environment, state, created_at, want_id)"
    )
    connection.exec_driver_sql(
        "CREATE INDEX ix_sla_misses_deadline ON sla_misses (environment, deadline)"
    )
    connection.exec_driver_sql(
        "CREATE INDEX ix_sla_misses_open ON sla_misses (environment, deadline)"
        " WHERE delivered_at IS NULL"
    )
    connection.exec_driver_sql(
        "UPDATE wants SET state = 'requested' WHERE state = 'building' AND request_id IN"
        " (SELECT request_id FROM build_requests WHERE state = 'requested')"
    )
    _create_views(connection, ("waiting", "requested", "building", "failing"))


def _record_methods(connection: Connection) -> None:
    """Add by which method builds computed rows, and in which time; unknown for existing builds."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN maintenance VARCHAR(16)")
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN computed_seconds FLOAT")


def _keep_states(connection: Connection) -> None:
    """Add the states that lie beside snapshots; existing ones have none."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN states JSON")


def _record_effort(connection: Connection) -> None:
    """Add what builds that maintain tables did; unknown for existing builds."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN effort JSON")


def _record_alerts(connection: Connection) -> None:
    """Add alerts, and the messages about them."""
    instant = _instant(connection)
    connection.exec_driver_sql(
        "CREATE TABLE alerts (alert_id VARCHAR(64) NOT NULL PRIMARY KEY,"
        " environment VARCHAR(64) NOT NULL, kind VARCHAR(16) NOT NULL, subject TEXT NOT NULL,"
        f" since {instant} NOT NULL, details JSON NOT NULL, opened_at {instant} NOT NULL,"
        f" closed_at {instant}, outcome VARCHAR(16),"
        " CONSTRAINT ck_alerts_kind CHECK (kind IN ('deadline', 'failed', 'stale', 'silent')),"
        " CONSTRAINT ck_alerts_outcome CHECK ((closed_at IS NULL) = (outcome IS NULL)))"
    )
    connection.exec_driver_sql(
        "CREATE UNIQUE INDEX ix_alerts_open ON alerts (environment, kind, subject)"
        " WHERE closed_at IS NULL"
    )
    connection.exec_driver_sql(
        "CREATE INDEX ix_alerts_opened_at ON alerts (environment, opened_at)"
    )
    connection.exec_driver_sql(
        "CREATE TABLE alert_messages (alert_id VARCHAR(64) NOT NULL REFERENCES alerts (alert_id),"
        " phase VARCHAR(16) NOT NULL, channel VARCHAR(64) NOT NULL, state VARCHAR(16) NOT NULL,"
        f" attempts INTEGER NOT NULL, due_at {instant} NOT NULL, sent_at {instant}, error TEXT,"
        " CONSTRAINT pk_alert_messages PRIMARY KEY (alert_id, phase, channel),"
        " CONSTRAINT ck_alert_messages_phase CHECK (phase IN ('opened', 'recovered')),"
        " CONSTRAINT ck_alert_messages_state CHECK (state IN ('due', 'sent', 'abandoned')))"
    )
    connection.exec_driver_sql(
        "CREATE INDEX ix_alert_messages_state ON alert_messages (state, due_at)"
    )


def _prepare_trims(connection: Connection) -> None:
    """Let a rebuild begin after events that were trimmed, and find taints and builds quickly."""
    for statement in (
        'CREATE TABLE base_rows ("position" BIGINT NOT NULL, part INTEGER NOT NULL,'
        ' table_name VARCHAR(64) NOT NULL, "rows" JSON NOT NULL,'
        ' CONSTRAINT pk_base_rows PRIMARY KEY ("position", part))',
        "CREATE INDEX ix_events_tainted ON events (environment, partition_ref)"
        " WHERE kind = 'partition-tainted'",
        "CREATE INDEX ix_builds_environment ON builds (environment, source_id, started_at)",
    ):
        connection.exec_driver_sql(statement)


def _publish(connection: Connection) -> None:
    """Add the tables under fixed names; there are none yet."""
    connection.exec_driver_sql(
        "CREATE TABLE published_tables (environment VARCHAR(64) NOT NULL, place TEXT NOT NULL,"
        " source_id TEXT NOT NULL, build_uid VARCHAR(64) NOT NULL, version BIGINT NOT NULL,"
        f" described VARCHAR(64) NOT NULL, published_at {_instant(connection)} NOT NULL,"
        " CONSTRAINT pk_published_tables PRIMARY KEY (place))"
    )
    connection.exec_driver_sql(
        "CREATE INDEX ix_published_tables_environment ON published_tables (environment)"
    )


def _record_texts(connection: Connection) -> None:
    """Add from which text the rows of snapshots were computed; unknown for existing ones."""
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN text VARCHAR(64)")
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN software TEXT")
    connection.exec_driver_sql("ALTER TABLE builds ADD COLUMN names JSON")


def _index_runs(connection: Connection) -> None:
    """Add indexes for builds under way, latest builds, and builds by run."""
    for statement in (
        "DROP INDEX ix_builds_environment",
        "CREATE INDEX ix_builds_ended"
        " ON builds (environment, source_id, started_at, state, finished_at, build_id)",
        "CREATE INDEX ix_builds_under_way ON builds (environment) WHERE state = 'started'",
        "CREATE INDEX ix_builds_runs"
        " ON builds (environment, run_id, build_uid, started_at, source_id)",
    ):
        connection.exec_driver_sql(statement)


def _find_beginnings(connection: Connection) -> None:
    """Make PostgreSQL find partitions by prefix, whatever its collation.

    SQLite's indexes do that anyway.
    """
    if connection.dialect.name == "postgresql":
        for statement in (
            "DROP INDEX ix_wants_partition_ref",
            "CREATE INDEX ix_wants_partition_ref ON wants (partition_ref text_pattern_ops)",
            "CREATE INDEX ix_availability_partition_ref"
            " ON availability (partition_ref text_pattern_ops)",
        ):
            connection.exec_driver_sql(statement)


def _share_copies(connection: Connection) -> None:
    """Add which declarations can share a copy, and its columns; unknown for existing ones."""
    connection.exec_driver_sql("ALTER TABLE copies ADD COLUMN family VARCHAR(64)")
    connection.exec_driver_sql("ALTER TABLE copies ADD COLUMN stored JSON")


def _count_reads(connection: Connection) -> None:
    """Add how much the last sync of a copy has read; unknown for existing ones."""
    connection.exec_driver_sql("ALTER TABLE copies ADD COLUMN rows_read BIGINT")
    connection.exec_driver_sql("ALTER TABLE copies ADD COLUMN bytes_read BIGINT")


def _pin_runs(connection: Connection) -> None:
    """Add what the processes of a run have found, for runs that begin from now on."""
    connection.exec_driver_sql(
        "CREATE TABLE run_pins (run_id VARCHAR(64) NOT NULL, subject TEXT NOT NULL,"
        f" pin JSON NOT NULL, at {_instant(connection)} NOT NULL,"
        " CONSTRAINT pk_run_pins PRIMARY KEY (run_id, subject))"
    )
    connection.exec_driver_sql("CREATE INDEX ix_run_pins_at ON run_pins (at)")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _record_parts,
    _record_changes,
    _collect,
    _name_for_malloy,
    _continue_tables,
    _record_partitions,
    _count_written,
    _record_wants,
    _make_views,
    _cover,
    _mark,
    _tell_requested,
    _record_methods,
    _keep_states,
    _record_effort,
    _record_alerts,
    _prepare_trims,
    _publish,
    _record_texts,
    _index_runs,
    _find_beginnings,
    _share_copies,
    _count_reads,
    _pin_runs,
)
"""The migrations from version n to n + 1, for every n from 1."""
VERSION = 1 + len(MIGRATIONS)


def version_of(connection: Connection) -> int:
    """Return the version of a ledger; 0 for an empty database."""
    if not sa.inspect(connection).has_table(ledger_version.name):
        return 0
    return connection.scalar(sa.select(sa.func.max(ledger_version.c.version))) or 0


def migrate(connection: Connection) -> int:
    """Bring a ledger to the version of this release; return the one it had, 0 for none.

    Idempotent; the caller holds the write lock.

    Raises
    ------
    LedgerTooNewError
        The ledger was written by a newer release.
    ConflictError
        The database is not empty and holds no ledger.
    """
    version = version_of(connection)
    refuse_newer(version)
    if version == 0:
        others = sorted({*metadata.tables} & {*sa.inspect(connection).get_table_names()})
        if others:
            raise ConflictError(
                f"the database has a table `{others[0]}` that does not belong to a ledger",
                hint="use a separate database or schema for the ledger",
            )
        metadata.create_all(connection, checkfirst=False)
        _create_views(connection, ACTIVE)
        connection.execute(counters.insert().values(name="events", value=0))
        _record(connection, VERSION)
        return version
    for number in range(version, VERSION):
        MIGRATIONS[number - 1](connection)
        _record(connection, number + 1)
    return version


def refuse_newer(version: int) -> None:
    """Refuse a version of a ledger that this release does not know.

    Raises
    ------
    LedgerTooNewError
        A newer release wrote it.
    """
    if version > VERSION:
        raise LedgerTooNewError(
            f"the ledger has version {version}, but this release supports only up to {VERSION}",
            hint="upgrade persist_assets; nothing was changed",
        )


def _record(connection: Connection, version: int) -> None:
    connection.execute(
        ledger_version.insert().values(version=version, migrated_at=datetime.now(UTC))
    )
