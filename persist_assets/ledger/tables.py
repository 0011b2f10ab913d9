"""The tables of the ledger. Constraints have names, and each says in one sentence what it keeps.

A new ledger is made of these tables; one that is there already becomes them by `migrations.py`, so
that a change here is a step there.
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
    # What others filter by; of events before version 9 nobody asks.
    sa.Column("environment", sa.String(64)),
    sa.Column("partition_ref", sa.Text),
    sa.Column("build_request_id", sa.String(64)),
    sa.Column("task_id", sa.String(64)),
    sa.Column("job_label", sa.Text),
    sa.Index("ix_events_partition_ref", "partition_ref", "idx"),
)

# The tables from here to `upstreams` are folds of the events: `projections.py` alone writes them.
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
    # When it is late and when it is given up, as the seconds above say.
    sa.Column("deadline", Instant),
    sa.Column("expires_at", Instant),
    sa.Column("external_dependencies", sa.JSON(none_as_null=True)),
    sa.Column("source", sa.JSON, nullable=False),
    sa.Column("comment", sa.Text),
    # The want for which a build found that this one's partition is missing.
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
    # Of each state the newest are found without looking at the others.
    sa.Index("ix_wants_state", "environment", "state", "created_at", "want_id"),
    sa.Index("ix_wants_partition_ref", "partition_ref"),
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

# What is known of partitions: of this graph's by its own builds, of others' by their events.
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
)

# What rows of snapshots shall not be used: it is of them, whoever means them by whatever name.
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
    # The latest are found without looking at the others, and those that are not met yet.
    sa.Index("ix_sla_misses_deadline", "environment", "deadline"),
    sa.Index(
        "ix_sla_misses_open",
        "environment",
        "deadline",
        sqlite_where=sa.text("delivered_at IS NULL"),
        postgresql_where=sa.text("delivered_at IS NULL"),
    ),
)

# How far the events of other graphs were read.
upstreams = sa.Table(
    "upstreams",
    metadata,
    sa.Column("graph", sa.String(64), nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    sa.Column("cursor", sa.Text, nullable=False),
    sa.Column("at", Instant, nullable=False),
    # What was found wrong with it, until it is right again.
    sa.Column("problem", sa.Text),
    # There is one place up to which a graph was read.
    sa.PrimaryKeyConstraint("graph", "environment", name="pk_upstreams"),
)

# What environments need of external tables: their copies hold all of it.
copy_needs = sa.Table(
    "copy_needs",
    metadata,
    sa.Column("copy_id", sa.String(64), nullable=False),
    sa.Column("environment", sa.String(64), nullable=False),
    # Predicates and columns, one for each that differs.
    sa.Column("needs", sa.JSON, nullable=False),
    # Of the predicates.
    sa.Column("format", sa.Integer, nullable=False, server_default="1"),
    sa.Column("at", Instant, nullable=False),
    # An environment has one program.
    sa.PrimaryKeyConstraint("copy_id", "environment", name="pk_copy_needs"),
)

# What the copies hold. It is written after each commit to a copy's own table: what that has beyond
# `committed` was never finished, and is undone.
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
    # The snapshot, once it succeeded:
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
    # What the source and what it read meant, in parts; not known of builds before version 2.
    sa.Column("digests", sa.JSON(none_as_null=True)),
    # What the rows were computed from directly; not known of snapshots before version 2.
    sa.Column("inputs", sa.JSON(none_as_null=True)),
    # Who builds it, `this_process`; not known of builds before version 4.
    sa.Column("process", sa.Text),
    # When all that the snapshot rests on was last known to be current; not known before version 4.
    sa.Column("current_at", Instant),
    # Of a snapshot that is a stored query, what it says and what it reads.
    sa.Column("view", sa.JSON(none_as_null=True)),
    # The other builds whose files the snapshot has too; of one under way, may have.
    sa.Column("parts", sa.JSON(none_as_null=True)),
    # The column that the watermark is of; not known of snapshots before version 6.
    sa.Column("time_column", sa.Text),
    # Which partitions the snapshot has, which of them the build computed, and of what.
    sa.Column("partitions", sa.JSON(none_as_null=True)),
    # How much the build itself wrote; not known of builds before version 8.
    sa.Column("written_rows", sa.BigInteger),
    sa.Column("written_bytes", sa.BigInteger),
    # Since when nothing may refer to the snapshot any more: its files are deleted from then on.
    sa.Column("collected_at", Instant),
    # What a state means is written where the state is.
    sa.CheckConstraint("state IN ('started', 'succeeded', 'failed')", name="ck_builds_state"),
    sa.CheckConstraint("action IN ('built', 'reused')", name="ck_builds_action"),
    # A build that succeeded has a snapshot, and only such a build has one.
    sa.CheckConstraint("(state = 'succeeded') = (version IS NOT NULL)", name="ck_builds_snapshot"),
    sa.Index("ix_builds_source_id", "source_id", "started_at"),
    sa.Index("ix_builds_run_id", "run_id"),
    sa.Index("ix_builds_table_name", "table_name", "state"),
)

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

# What moved in manifests, and why. The change's number is the position of its event.
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
    # The builds that readers got before and after; none where there is no entry.
    sa.Column("before", sa.String(64)),
    sa.Column("after", sa.String(64)),
    # A change moves an entry once.
    sa.PrimaryKeyConstraint("change_id", "build_id", name="pk_manifest_moves"),
)

# By which BuildIDs Malloy's own tools look for tables, and which of ours those of an environment
# mean: from one event until another, so that it can be put back to what it was.
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

# The last transaction of each that writes, by which it finds out whether one took place whose
# answer it lost. On PostgreSQL only: numbers of transactions are given twice after a crash.
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
