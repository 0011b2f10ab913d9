"""The tables of the ledger. Constraints have names, and comments that state what each ensures.

A new ledger is created with these tables; `migrations.py` turns an existing one into them, so every
change here needs a migration there.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect


class Instant(TypeDecorator[datetime]):
    """An aware UTC instant, on databases that know time zones and on those that do not."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store instants in UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return instants as aware, in UTC."""
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


metadata = sa.MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "fk": "fk_%(table_name)s_%(column_0_name)s"}
)

_BEGINNINGS = {"partition_ref": "text_pattern_ops"}
"""The operator class with which an index of PostgreSQL answers LIKE in any collation."""

ledger_version = sa.Table(
    "ledger_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("migrated_at", Instant, nullable=False),
)

# One row for each gapless sequence. It is updated in the transaction that uses the number, so
# that numbers become visible in their order and none is ever missing.
counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("idx", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", Instant, nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    # The columns for filters; NULL for events before version 9.
    sa.Column("environment", sa.String(64)),
    sa.Column("partition_ref", sa.Text),
    sa.Column("build_request_id", sa.String(64)),
    sa.Column("task_id", sa.String(64)),
    sa.Column("job_label", sa.Text),
    sa.Index("ix_events_partition_ref", "partition_ref", "idx"),
    # A rollback finds the few taints without reading all other events.
    sa.Index(
        "ix_events_tainted",
        "environment",
        "partition_ref",
        sqlite_where=sa.text("kind = 'partition-tainted'"),
        postgresql_where=sa.text("kind = 'partition-tainted'"),
    ),
)

# The rows of the folds as they were when the log was last trimmed: a rebuild begins with those of
# the position that the counter `base` names. Others belong to a trim that was interrupted.
base_rows = sa.Table(
    "base_rows",
    metadata,
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("table_name", sa.String(64), nullable=False),
    # A list of rows: values by column, instants as texts.
    sa.Column("rows", sa.JSON, nullable=False),
    # A part is recorded once.
    sa.PrimaryKeyConstraint("position", "part", name="pk_base_rows"),
)

# The tables from here to `upstreams`, except `taints`, are folds of the events: only
# `projections.py` writes them.
wants = sa.Table(
    "wants",
    metadata,
    sa.Column("want_id", sa.String(255), primary_key=True),
    sa.Column("partition_ref", sa.Text, nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("data_timestamp", Instant),
    sa.Column("ttl_seconds", sa.BigInteger),
    sa.Column("sla_seconds", sa.BigInteger),
    # When the want is late, and when it expires, according to the seconds above.
    sa.Column("deadline", Instant),
    sa.Column("expires_at", Instant),
    sa.Column("external_dependencies", sa.JSON(none_as_null=True)),
    sa.Column("source", sa.JSON, nullable=False),
    sa.Column("comment", sa.Text),
    # The want whose build found the partition of this one to be missing.
    sa.Column("parent", sa.String(255)),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("batch", sa.Integer),
    sa.Column("retry_at", Instant),
    sa.Column("error", sa.Text),
    sa.Column("request_id", sa.String(64)),
    sa.Column("ended_at", Instant),
    sa.CheckConstraint(
        "state IN ('waiting', 'requested', 'building', 'failing', 'satisfied', 'expired',"
        " 'cancelled')",
        name="ck_wants_state",
    ),
    # The newest wants of each state are found without reading the others.
    sa.Index("ix_wants_state", "environment", "state", "created_at", "want_id"),
    # By whole references, and by how they begin.
    sa.Index("ix_wants_partition_ref", "partition_ref", postgresql_ops=_BEGINNINGS),
    sa.Index("ix_wants_request_id", "request_id"),
)

build_requests = sa.Table(
    "build_requests",
    metadata,
    sa.Column("request_id", sa.String(64), primary_key=True),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("partitions", sa.JSON, nullable=False),
    sa.Column("want_ids", sa.JSON, nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("trigger", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("requested_at", Instant, nullable=False),
    sa.Column("started_at", Instant),
    sa.Column("ended_at", Instant),
    sa.Column("run_id", sa.String(64)),
    sa.Column("error", sa.Text),
    sa.Column("culprits", sa.JSON(none_as_null=True)),
    sa.CheckConstraint(
        "state IN ('requested', 'started', 'succeeded', 'failed')", name="ck_build_requests_state"
    ),
    sa.Index("ix_build_requests_state", "environment", "state"),
)

# The states of partitions: of this graph by its own builds, of other graphs by their events.
availability = sa.Table(
    "availability",
    metadata,
    # Empty: this graph.
    sa.Column("graph", sa.String(64), nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("partition_ref", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("at", Instant, nullable=False),
    sa.Column("idx", sa.BigInteger, nullable=False),
    sa.Column("build_uid", sa.String(64)),
    # A partition is in one state.
    sa.PrimaryKeyConstraint("graph", "environment", "partition_ref", name="pk_availability"),
    sa.CheckConstraint("state IN ('available', 'failed', 'tainted')", name="ck_availability_state"),
    # SQLite's primary key finds references by how they begin.
    sa.Index("ix_availability_partition_ref", "partition_ref", postgresql_ops=_BEGINNINGS).ddl_if(
        dialect="postgresql"
    ),
)

# The rows of snapshots that must not be used, whatever their source is called or means.
taints = sa.Table(
    "taints",
    metadata,
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("snapshot_uid", sa.String(64), nullable=False),
    # Empty: all rows of a table without partitions.
    sa.Column("partition_key", sa.Text, nullable=False),
    # Rows are tainted once.
    sa.PrimaryKeyConstraint("environment", "snapshot_uid", "partition_key", name="pk_taints"),
)

sla_misses = sa.Table(
    "sla_misses",
    metadata,
    # A want misses its deadline once.
    sa.Column("want_id", sa.String(255), primary_key=True),
    sa.Column("partition_ref", sa.Text, nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("deadline", Instant, nullable=False),
    sa.Column("missed_at", Instant, nullable=False),
    sa.Column("delivered_at", Instant),
    sa.Column("blame", sa.JSON, nullable=False),
    # The latest misses are found without reading the others, and so are the open ones.
    sa.Index("ix_sla_misses_deadline", "environment", "deadline"),
    sa.Index(
        "ix_sla_misses_open",
        "environment",
        "deadline",
        sqlite_where=sa.text("delivered_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL"),
    ),
)

# The positions up to which the events of other graphs were read.
upstreams = sa.Table(
    "upstreams",
    metadata,
    sa.Column("graph", sa.String(64), nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("cursor", sa.Text, nullable=False),
    sa.Column("at", Instant, nullable=False),
    # The problem of the last read, if any.
    sa.Column("problem", sa.Text),
    # A graph is read up to one position.
    sa.PrimaryKeyConstraint("graph", "environment", name="pk_upstreams"),
)

# The problems that raise alerts. An alert is open until its problem is over.
alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("alert_id", sa.String(64), primary_key=True),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    # A want, a source or another graph, according to the kind.
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("since", Instant, nullable=False),
    sa.Column("details", sa.JSON, nullable=False),
    sa.Column("opened_at", Instant, nullable=False),
    sa.Column("closed_at", Instant),
    sa.Column("outcome", sa.String(16)),
    sa.CheckConstraint("kind IN ('deadline', 'failed', 'stale', 'silent')", name="ck_alerts_kind"),
    # An alert that is closed has an outcome: it recovered, or there is nothing to recover.
    sa.CheckConstraint("(closed_at IS NULL) = (outcome IS NULL)", name="ck_alerts_outcome"),
    # There is at most one open alert about a problem.
    sa.Index(
        "ix_alerts_open",
        "environment",
        "kind",
        "subject",
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    ),
    sa.Index("ix_alerts_opened_at", "environment", "opened_at"),
)

# The messages about alerts, one for each channel and phase. A process that sends one first moves
# its `due_at` to later, so that others leave it alone.
alert_messages = sa.Table(
    "alert_messages",
    metadata,
    sa.Column("alert_id", sa.ForeignKey("alerts.alert_id"), nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("channel", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due_at", Instant, nullable=False),
    sa.Column("sent_at", Instant),
    # Why the last attempt failed.
    sa.Column("error", sa.Text),
    # A channel is told of each phase once.
    sa.PrimaryKeyConstraint("alert_id", "phase", "channel", name="pk_alert_messages"),
    sa.CheckConstraint("phase IN ('opened', 'recovered')", name="ck_alert_messages_phase"),
    sa.CheckConstraint("state IN ('due', 'sent', 'abandoned')", name="ck_alert_messages_state"),
    sa.Index("ix_alert_messages_state", "state", "due_at"),
)

# The needs of environments of external tables; the copies cover all of them.
copy_needs = sa.Table(
    "copy_needs",
    metadata,
    sa.Column("copy_id", sa.String(64), nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    # Pairs of a predicate and columns, each once.
    sa.Column("needs", sa.JSON, nullable=False),
    # The format of the predicates.
    sa.Column("format", sa.Integer, nullable=False, server_default="1"),
    sa.Column("at", Instant, nullable=False),
    # An environment has one program.
    sa.PrimaryKeyConstraint("copy_id", "environment", name="pk_copy_needs"),
)

# The contents of copies. A row is written after each commit to a copy's own table: commits after
# `committed` were never finished, and are undone.
copies = sa.Table(
    "copies",
    metadata,
    sa.Column("copy_id", sa.String(64), primary_key=True),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("table_id", sa.String(64), nullable=False),
    sa.Column("committed", sa.BigInteger, nullable=False),
    sa.Column("predicate", sa.Text, nullable=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("columns", sa.JSON, nullable=False),
    sa.Column("as_of", Instant, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("byte_count", sa.BigInteger, nullable=False),
    sa.Column("seen", sa.JSON, nullable=False),
    sa.Column("retired_at", Instant),
    # The key of declarations that differ in columns only; NULL: unknown, from before 23.
    sa.Column("family", sa.String(64)),
    # Pairs of a name and a type: the columns of the copy's own table; SQL's NULL if unknown.
    sa.Column("stored", sa.JSON(none_as_null=True)),
    # How much the last sync read that read rows; NULL: unknown, from before 24.
    sa.Column("rows_read", sa.BigInteger),
    sa.Column("bytes_read", sa.BigInteger),
)

builds = sa.Table(
    "builds",
    metadata,
    sa.Column("build_uid", sa.String(64), primary_key=True),
    sa.Column("source_id", sa.Text, nullable=False),
    sa.Column("build_id", sa.String(64), nullable=False),
    sa.Column("definition", sa.String(64), nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("run_id", sa.String(64)),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("finished_at", Instant),
    sa.Column("error", sa.Text),
    sa.Column("table_name", sa.Text, nullable=False),
    # The snapshot, once the build has succeeded:
    sa.Column("snapshot_uid", sa.String(64)),
    sa.Column("version", sa.BigInteger),
    sa.Column("as_of", sa.JSON),
    sa.Column("content", sa.String(128)),
    sa.Column("rows", sa.BigInteger),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("built_at", Instant),
    sa.Column("columns", sa.JSON),
    sa.Column("watermark", sa.Text),
    sa.Column("checks", sa.JSON),
    # The digests of the source and of what it reads, in parts; unknown for builds before version 2.
    sa.Column("digests", sa.JSON(none_as_null=True)),
    # The direct inputs of the rows; unknown for snapshots before version 2.
    sa.Column("inputs", sa.JSON(none_as_null=True)),
    # The process of the build, see `this_process`; unknown for builds before version 4.
    sa.Column("process", sa.Text),
    # When everything that the snapshot depends on was last known to be current; unknown before
    # version 4.
    sa.Column("current_at", Instant),
    # The query and the inputs of a snapshot that is a stored query.
    sa.Column("view", sa.JSON(none_as_null=True)),
    # The other builds whose files the snapshot shares, or may share while it is being built.
    sa.Column("parts", sa.JSON(none_as_null=True)),
    # The column of the watermark; unknown for snapshots before version 6.
    sa.Column("time_column", sa.Text),
    # The partitions of the snapshot, those that the build computed, and their inputs.
    sa.Column("partitions", sa.JSON(none_as_null=True)),
    # The states that lie beside the files of the snapshot.
    sa.Column("states", sa.JSON(none_as_null=True)),
    # How much the build itself wrote; unknown for builds before version 8.
    sa.Column("written_rows", sa.BigInteger),
    sa.Column("written_bytes", sa.BigInteger),
    # By which method the build computed rows, and in which time; unknown for builds before
    # version 14.
    sa.Column("maintenance", sa.String(16)),
    sa.Column("computed_seconds", sa.Float),
    # The work of a build that did not compute all rows; unknown for builds before version 16.
    sa.Column("effort", sa.JSON(none_as_null=True)),
    # The text that all rows of the snapshot were computed from, the software by which it has this
    # BuildID, and the texts of the BuildIDs that the snapshot names; unknown for snapshots before
    # version 20, and for rows of several texts.
    sa.Column("text", sa.String(64)),
    sa.Column("software", sa.Text),
    sa.Column("names", sa.JSON(none_as_null=True)),
    # Since when nothing may refer to the snapshot any more: its files may be deleted from then on.
    sa.Column("collected_at", Instant),
    # A build is in one of three states.
    sa.CheckConstraint("state IN ('started', 'succeeded', 'failed')", name="ck_builds_state"),
    sa.CheckConstraint("action IN ('built', 'reused')", name="ck_builds_action"),
    # A build that succeeded has a snapshot, and only such a build has one.
    sa.CheckConstraint("(state = 'succeeded') = (version IS NOT NULL)", name="ck_builds_snapshot"),
    sa.Index("ix_builds_source_id", "source_id", "started_at"),
    # The latest builds that ended of each source, without a look at the rows.
    sa.Index(
        "ix_builds_ended",
        *("environment", "source_id", "started_at", "state", "finished_at", "build_id"),
    ),
    # The builds under way: few, and looked for all the time.
    sa.Index(
        "ix_builds_under_way",
        "environment",
        sqlite_where=sa.text("state = 'started'"),
        postgresql_where=sa.text("state = 'started'"),
    ),
    # The runs of an environment, the latest first, without a look at the rows.
    sa.Index("ix_builds_runs", "environment", "run_id", "build_uid", "started_at", "source_id"),
    sa.Index("ix_builds_run_id", "run_id"),
    sa.Index("ix_builds_table_name", "table_name", "state"),
)

IS_UNDER_WAY = builds.c.state == sa.literal_column("'started'")
"""The test for builds under way, in the words of the index of these."""

manifest_entries = sa.Table(
    "manifest_entries",
    metadata,
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("build_id", sa.String(64), nullable=False),
    sa.Column("build_uid", sa.ForeignKey("builds.build_uid"), nullable=False),
    sa.Column("published_at", Instant, nullable=False),
    # In one environment a BuildID means one snapshot.
    sa.PrimaryKeyConstraint("environment", "build_id", name="pk_manifest_entries"),
)

# The changes of manifests, and their reasons. A change's number is the position of its event.
manifest_changes = sa.Table(
    "manifest_changes",
    metadata,
    sa.Column("change_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("at", Instant, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("why", sa.Text),
    sa.Column("run_id", sa.String(64)),
    sa.CheckConstraint(
        "kind IN ('build', 'promote', 'rollback', 'collect')", name="ck_manifest_changes_kind"
    ),
    sa.Index("ix_manifest_changes_environment", "environment", "change_id"),
)

manifest_moves = sa.Table(
    "manifest_moves",
    metadata,
    sa.Column("change_id", sa.ForeignKey("manifest_changes.change_id"), nullable=False),
    sa.Column("build_id", sa.String(64), nullable=False),
    # The builds that readers got before and after; NULL if there is no entry.
    sa.Column("before", sa.String(64)),
    sa.Column("after", sa.String(64)),
    # A change moves an entry once.
    sa.PrimaryKeyConstraint("change_id", "build_id", name="pk_manifest_moves"),
)

# The BuildIDs by which Malloy's own tools look tables up, and ours that they mean in an
# environment: from one event until another, so that a manifest can be rolled back.
malloy_entries = sa.Table(
    "malloy_entries",
    metadata,
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("malloy_id", sa.String(64), nullable=False),
    sa.Column("build_id", sa.String(64), nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger),
    sa.PrimaryKeyConstraint("environment", "malloy_id", "since", name="pk_malloy_entries"),
    # In one environment a BuildID of Malloy's means one thing at a time.
    sa.Index(
        "ix_malloy_entries_present",
        "environment",
        "malloy_id",
        unique=True,
        sqlite_where=sa.text("until IS NULL"),
        postgresql_where=sa.text("until IS NULL"),
    ),
)

# The tables under fixed names, and the build whose rows each has.
published_tables = sa.Table(
    "published_tables",
    metadata,
    sa.Column("environment", sa.String(64), nullable=False),
    # One environment publishes at a place.
    sa.Column("place", sa.Text, primary_key=True),
    sa.Column("source_id", sa.Text, nullable=False),
    sa.Column("build_uid", sa.String(64), nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("described", sa.String(64), nullable=False),
    sa.Column("published_at", Instant, nullable=False),
    sa.Index("ix_published_tables_environment", "environment"),
)

# The values on which the processes of a run agree: the instant at which it counts as started, and
# versions of raw tables and copies. The first process that finds one decides for all of them.
run_pins = sa.Table(
    "run_pins",
    metadata,
    sa.Column("run_id", sa.String(64), nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("pin", sa.JSON, nullable=False),
    sa.Column("at", Instant, nullable=False),
    sa.PrimaryKeyConstraint("run_id", "subject", name="pk_run_pins"),
    sa.Index("ix_run_pins_at", "at"),
)

# The last transaction of each writer, by which a writer that lost its connection finds out whether
# it was committed. Only on PostgreSQL, whose transaction numbers may be assigned twice after a
# crash.
writers = sa.Table(
    "writers",
    metadata,
    sa.Column("writer", sa.String(64), primary_key=True),
    sa.Column("token", sa.String(64), nullable=False),
    sa.Column("at", Instant, nullable=False),
)

leases = sa.Table(
    "leases",
    metadata,
    # One holder at a time: the name is the key.
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("token", sa.String(64), nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("acquired_at", Instant, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
)
