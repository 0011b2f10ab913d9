"""Plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from persist_assets.core.model.plans import Maintenance, ReasonCode
from persist_assets.operations.documents.base import Count, Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.core.model.plans import Estimates, Plan, Step
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.external.status import Holding
    from persist_assets.planning.changed_checks import ChangedCheck


class ReasonDocument(Document):
    """The reason why a step is in a plan."""

    code: ReasonCode
    message: str
    source_id: str | None


class EstimateDocument(Document):
    """The probable cost of a step."""

    rows: int
    bytes: int
    seconds: float | None


class VolumeDocument(Document):
    """The most that a build will read; None if unknown."""

    rows: Count | None
    bytes: Count | None


class ExpectedDocument(Document):
    """The expected seconds to compute the rows that can differ, and to compute all rows."""

    maintained_seconds: float
    whole_seconds: float
    is_measured: bool

    @classmethod
    def of(cls, expected: Estimates) -> Self:
        """Return the document of two estimates."""
        return cls(
            maintained_seconds=expected.delta_s,
            whole_seconds=expected.whole_s,
            is_measured=expected.is_measured,
        )


class ChangedCheckDocument(Document):
    """A check that differs from the last build of its source."""

    name: str
    change: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None


class StepDocument(Document):
    """One source in a plan."""

    source_id: str
    partition: str | None
    partitions: list[tuple[str, str]] | None
    action: Literal["build", "reuse"]
    maintenance: Maintenance
    why: str
    reasons: list[ReasonDocument]
    build_id: str
    notes: list[str]
    estimate: EstimateDocument | None
    reads: VolumeDocument | None
    expected: ExpectedDocument | None
    changed_checks: list[ChangedCheckDocument]

    @classmethod
    def of(cls, project: Project, step: Step, checks: Iterable[ChangedCheck] = ()) -> Self:
        """Return the document of a step, with the changed checks of its source."""
        return cls(
            source_id=step.source_id,
            partition=step.keys[0] if step.keys and len(step.keys) == 1 else None,
            partitions=[*step.partitions.built] if step.partitions else None,
            action=step.action,
            maintenance=step.maintenance,
            why=step.why,
            reasons=[ReasonDocument.model_validate(r) for r in step.reasons],
            build_id=step.build_id,
            notes=[*project.by_id[step.source_id].notes],
            estimate=EstimateDocument.model_validate(step.estimate) if step.estimate else None,
            reads=VolumeDocument.model_validate(step.reads) if step.reads else None,
            expected=ExpectedDocument.of(step.expected) if step.expected else None,
            changed_checks=[ChangedCheckDocument.model_validate(c) for c in checks],
        )


class NotPushedDocument(Document):
    """A condition of a reader that does not limit what is copied."""

    expression: str
    reason: str
    code: str
    reader: str


class NeedDocument(Document):
    """The part of an external table that one source needs."""

    reader: str
    predicate: str
    columns: list[str]


class CopyDocument(Document):
    """The part of an external table that its copy holds."""

    predicate: str
    columns: list[str]
    version: str


class ReadDocument(Document):
    """An upper limit of what is read from an external table."""

    files: Count
    rows: Count | None
    bytes: Count


class ExternalDocument(Document):
    """An external table that a plan depends on."""

    source_id: str
    predicate: str | None
    columns: list[str]
    not_pushed: list[NotPushedDocument]
    needs: list[NeedDocument]
    before: CopyDocument | None
    version: str | None
    missing: str | None
    why: str | None
    again: str | None
    approval: bool
    read: ReadDocument | None
    error: str | None

    @classmethod
    def of(cls, holding: Holding) -> Self:
        """Return the document of an external table and its copy."""
        return cls(
            source_id=holding.source.source_id,
            predicate=holding.predicate,
            columns=[*holding.columns],
            not_pushed=[
                NotPushedDocument(expression=expression, reason=reason, code=code, reader=reader)
                for reader, code, expression, reason in holding.not_pushed
            ],
            needs=[NeedDocument.model_validate(need) for need in holding.needs],
            before=CopyDocument.model_validate(holding.held) if holding.held else None,
            version=holding.pending.version if holding.pending else None,
            missing=holding.missing,
            why=holding.why,
            again=holding.full_read_reason,
            approval=holding.approval,
            read=ReadDocument.model_validate(holding.read) if holding.read else None,
            error=holding.problem.message if holding.problem else None,
        )


class PlanDocument(Document):
    """The steps that a build would take now."""

    environment: str
    steps: list[StepDocument]
    external: list[ExternalDocument]

    @classmethod
    def of(
        cls,
        project: Project,
        plan: Plan,
        holdings: Iterable[Holding],
        checks: Mapping[SourceID, Sequence[ChangedCheck]],
    ) -> Self:
        """Return the document of a plan and of the external tables that it depends on.

        Parameters
        ----------
        checks
            The changed checks of the sources.
        """
        return cls(
            environment=plan.environment,
            steps=[
                StepDocument.of(project, step, checks.get(step.source_id, ()))
                for step in plan.steps
            ],
            external=[ExternalDocument.of(holding) for holding in holdings],
        )
