"""Tables compared with the rows that their sources give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from persist_assets.engine.row_values import json_value
from persist_assets.operations.documents.base import Count, Document
from persist_assets.operations.verify import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from persist_assets.operations.verify import Verification


class TypesDocument(Document):
    """A column that one side lacks, or has with another type; None: the side lacks it."""

    column: str
    table: str | None
    computed: str | None


class SamplesDocument(Document):
    """Some of the rows that only one side has."""

    only_in_table: list[dict[str, Any]]
    only_computed: list[dict[str, Any]]


class VerificationDocument(Document):
    """The result for one source."""

    source_id: str
    build_id: str
    table: str | None
    version: Count | None
    rows: Count | None
    status: Status
    reason: str | None
    hint: str | None
    only_in_table: Count | None
    only_computed: Count | None
    columns: dict[str, Count]
    columns_not_compared: list[TypesDocument]
    samples: SamplesDocument
    largest_relative_difference: float | None

    @classmethod
    def of(cls, verification: Verification) -> Self:
        """Return the document of a result."""
        snapshot, difference = verification.snapshot, verification.difference
        uncompared = difference.uncompared if difference else ()
        return cls(
            source_id=verification.source.source_id,
            build_id=verification.source.build_id,
            table=snapshot.table if snapshot else None,
            version=snapshot.version if snapshot else None,
            rows=snapshot.rows if snapshot else None,
            status=verification.status,
            reason=verification.reason,
            hint=verification.hint,
            only_in_table=difference.removed if difference else None,
            only_computed=difference.added if difference else None,
            columns=dict(difference.columns) if difference else {},
            columns_not_compared=[
                TypesDocument(column=u.column, table=u.before, computed=u.after) for u in uncompared
            ],
            samples=SamplesDocument(
                only_in_table=[json_value(r) for r in difference.removed_rows],
                only_computed=[json_value(r) for r in difference.added_rows],
            )
            if difference
            else SamplesDocument(only_in_table=[], only_computed=[]),
            largest_relative_difference=difference.rounding if difference else None,
        )


class VerificationsDocument(Document):
    """The results for the selected sources of an environment."""

    environment: str
    sources: list[VerificationDocument]

    @classmethod
    def of(cls, environment: str, verifications: Iterable[Verification]) -> Self:
        """Return the document of several results."""
        return cls(
            environment=environment,
            sources=[VerificationDocument.of(v) for v in verifications],
        )
