"""Answers of the service that no command prints: lists, problems, health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field

from persist_assets.operations.documents.base import Count, Document
from persist_assets.operations.documents.events import EventDocument
from persist_assets.operations.documents.wants import (
    MissDocument,
    PartitionDocument,
    RequestDocument,
    WantDocument,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.core.wants import Want


class EventsDocument(Document):
    """A page of the log."""

    events: list[EventDocument]
    next_idx: Count
    head: Count
    log_id: str
    environment: str
    trimmed_to: Count


class CreatedWantDocument(WantDocument):
    """A want that was just created, or that existed before."""

    warnings: list[str]

    @classmethod
    def of(cls, want: Want, warnings: Iterable[str]) -> Self:
        """Return the document of a want and the warnings about it."""
        document = WantDocument.model_validate(want)
        return cls.model_construct(**dict(document), warnings=[*warnings])


class WantsDocument(Document):
    """A list of wants."""

    wants: list[WantDocument]
    warnings: list[str]


class RequestsDocument(Document):
    """A list of build requests."""

    requests: list[RequestDocument]
    warnings: list[str]


class PartitionsDocument(Document):
    """A page of partitions."""

    partitions: list[PartitionDocument]
    next_after: str | None


class MissesDocument(Document):
    """A list of missed deadlines."""

    misses: list[MissDocument]


class HealthDocument(Document):
    """Whether the service works."""

    status: Literal["ok"]


class ProblemDetail(Document):
    """The problem of one parameter or key."""

    name: str
    detail: str


class ProblemDocument(Document):
    """The reason why a request was refused (RFC 9457); keys without a value are left out."""

    type: Annotated[str, Field(pattern="^urn:persist:")]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    hint: str = ""
    problems: list[ProblemDetail] = Field(default_factory=list)
    head: Count = 0
    log_id: str = ""
    trimmed_to: Count = 0
