"""Wants and their progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field

from persist_assets.core.wants import Cause, RequestState, WantState
from persist_assets.operations.documents.base import Count, Document, Instant

if TYPE_CHECKING:
    from datetime import datetime

    from persist_assets.core.wants import Evaluation, Miss, Request


class WantDocument(Document):
    """A requested partition."""

    want_id: str
    partition_ref: str
    environment: str
    created_at: Instant
    data_timestamp: Instant | None
    ttl_seconds: Count | None = Field(validation_alias="ttl_s")
    sla_seconds: Count | None = Field(validation_alias="sla_s")
    external_dependencies: list[str]
    source: dict[str, Any]
    comment: str | None
    parent: str | None
    state: WantState
    deadline: Instant | None
    expires_at: Instant | None
    failures: Count
    retry_at: Instant | None
    error: str | None
    build_request_id: str | None = Field(validation_alias="request_id")
    ended_at: Instant | None


class RequestDocument(Document):
    """A build request."""

    build_request_id: str = Field(validation_alias="request_id")
    environment: str
    partitions: list[str]
    want_ids: list[str]
    reason: str
    trigger: str
    state: RequestState
    requested_at: Instant | None
    started_at: Instant | None
    ended_at: Instant | None
    run_id: str | None
    error: str | None
    culprits: list[str]


class BlockedDocument(Document):
    """A want that waits for partitions of other graphs."""

    want_id: str
    partition_ref: str
    missing: list[str]


class EvaluationDocument(Document):
    """The decisions of an evaluation about the wants."""

    build_request_id: str | None
    partitions: list[str]
    blocked: list[BlockedDocument]
    satisfied: list[str]
    expired: list[str]
    deferred: Count
    reason: str

    @classmethod
    def of(cls, evaluation: Evaluation, request: Request | None) -> Self:
        """Return the document of an evaluation and the build request that it made."""
        return cls(
            build_request_id=request.request_id if request else None,
            partitions=[*request.partitions] if request else [],
            blocked=[BlockedDocument.model_validate(b) for b in evaluation.blocked],
            satisfied=[*evaluation.satisfied],
            expired=[*evaluation.expired],
            deferred=evaluation.deferred,
            reason=evaluation.reason,
        )


class BlameDocument(Document):
    """The partition that a late want was waiting for, as recorded by the ledger."""

    model_config = ConfigDict(extra="allow")

    partition_ref: str
    graph: str
    since: str = Field(json_schema_extra={"format": "date-time"})
    cause: Cause
    problem: str | None = None


class MissDocument(Document):
    """A missed deadline."""

    want_id: str
    partition_ref: str
    deadline: Instant
    missed_at: Instant
    delivered_at: Instant | None
    late_seconds: float
    blame: BlameDocument

    @classmethod
    def of(cls, miss: Miss, now: datetime) -> Self:
        """Return the document of a missed deadline, late until `now` if it is still open."""
        return cls(
            want_id=miss.want_id,
            partition_ref=miss.partition_ref,
            deadline=miss.deadline,
            missed_at=miss.missed_at,
            delivered_at=miss.delivered_at,
            late_seconds=((miss.delivered_at or now) - miss.deadline).total_seconds(),
            blame=BlameDocument.model_validate(miss.blame),
        )


class PartitionDocument(Document):
    """A partition that is available, failed or tainted."""

    partition_ref: str
    graph: str
    state: Literal["available", "failed", "tainted"]
    at: Instant
    idx: Count
    build_uid: str | None


class LogDocument(Document):
    """The log that is read under a graph's name."""

    name: str
    log_id: str | None
    environment: str | None


class WaitsDocument(Document):
    """The partitions and graphs that a wanted partition waits for."""

    partition_ref: str
    waits_for: list[str]
    graphs: list[LogDocument]
