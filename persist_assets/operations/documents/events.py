"""Events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import ConfigDict

from persist_assets.operations.documents.base import Count, Document, Instant

if TYPE_CHECKING:
    from persist_assets.core.model.snapshots import Event


class EventDocument(Document):
    """An event of the ledger's log; each kind has further keys of its own."""

    model_config = ConfigDict(extra="allow")

    idx: Count
    at: Instant
    kind: str
    environment: str | None
    partition_ref: str | None
    build_request_id: str | None
    task_id: str | None
    job_label: str | None

    @classmethod
    def of(cls, event: Event) -> Self:
        """Return the document of an event."""
        data = event.data
        common = {
            "idx": event.idx,
            "at": event.at,
            "kind": event.kind,
            "environment": data.get("environment"),
            "partition_ref": data.get("partition_ref"),
            "build_request_id": data.get("build_request_id"),
            "task_id": data.get("task_id") or data.get("build_uid"),
            "job_label": data.get("job_label") or data.get("source_id"),
        }
        return cls.model_validate({**data, **common})
