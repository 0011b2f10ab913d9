"""Builds, and the runs that they belong to."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Self

from persist_assets.operations.documents.base import Count, Document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.model.sources import Source


class EffortDocument(Document):
    """The work of a build that updated a table without computing all rows, or tried to.

    See `persist_assets.core.model.snapshots.Effort`.
    """

    rows_changed: Count | None
    keys_touched: Count | None
    files_rewritten: Count | None
    files_kept: Count | None
    seconds_saved: float | None
    seconds_by_size: float | None
    seconds_shared: float
    seconds_lost: float
    seconds_owed: float


class BuildDocument(Document):
    """The outcome of a run for one source."""

    source_id: str
    partition: str | None
    partitions: list[tuple[str, str]] | None
    build_id: str
    action: Literal["built", "reused", "failed", "skipped"]
    rows: Count | None
    rows_written: Count | None
    bytes: Count | None
    seconds: float | None
    table: str | None
    version: Count | None
    error: str | None
    build_uid: str | None
    maintenance: str | None
    effort: EffortDocument | None

    @classmethod
    def of(
        cls,
        source: Source,
        build: Build | None,
        failure: str | None,
        settled: Snapshot | None = None,
    ) -> Self:
        """Return the document of a source's build.

        Parameters
        ----------
        build
            None if it did not start.
        failure
            Why the step of the source failed; None if it did not.
        settled
            The table of a source that the run left out, because nothing would change.
        """
        snapshot = build.snapshot if build else settled
        action = "failed" if failure else "reused" if settled else "skipped"
        if build is not None:
            action = "failed" if build.state != "succeeded" else build.action
        partitions = snapshot.partitions if snapshot and action == "built" else None
        spans = partitions.built if partitions else ()
        return cls(
            source_id=source.source_id,
            partition=spans[0][0] if len(spans) == 1 and spans[0][0] == spans[0][1] else None,
            partitions=[*spans] if source.annotation.partition else None,
            build_id=source.build_id,
            action=action,
            rows=snapshot.rows if snapshot else None,
            rows_written=build.written.rows if build and build.written else None,
            bytes=snapshot.bytes if snapshot else None,
            seconds=build.seconds if build else None,
            table=snapshot.table if snapshot else None,
            version=snapshot.version if snapshot else None,
            error=build.error if build else failure,
            build_uid=build.build_uid if build else None,
            maintenance=build.maintenance if build else None,
            effort=EffortDocument.model_validate(build.effort) if build and build.effort else None,
        )


class RunDocument(Document):
    """The builds of one run.

    `run_id` is None if there was nothing to run.
    """

    run_id: str | None
    published: bool
    builds: list[BuildDocument]

    @classmethod
    def of(
        cls,
        run_id: str | None,
        project: Project,
        sources: Sequence[Source],
        builds: Mapping[SourceID, Build],
        failures: Mapping[SourceID, str],
        *,
        settled: Mapping[SourceID, Snapshot] = MappingProxyType({}),
        published: bool,
    ) -> Self:
        """Return the document of a run; the error of a skipped build names the failed inputs.

        Parameters
        ----------
        settled
            The tables of sources that the run left out.
        """
        rows = {
            s.source_id: BuildDocument.of(
                s, builds.get(s.source_id), failures.get(s.source_id), settled.get(s.source_id)
            )
            for s in sources
        }
        for source_id, row in rows.items():
            if row.action == "skipped":
                inputs = project.inputs(project.by_id[source_id])
                stopped = [s.key for s in inputs if s.source_id in rows and rows[s.source_id].error]
                if stopped:
                    error = f"not built because of {', '.join(stopped)}"
                    rows[source_id] = row.model_copy(update={"error": error})
        return cls(run_id=run_id, published=published, builds=[*rows.values()])
